/* memo.c - prices that were asked for lately. A step program repeats few shapes often, and so do
 * the layouts of a search; a price from the fields of measured points costs some hundred times as
 * much as finding it again.
 */
#include "costmodel/cost_internal.h"

#include "core/base/table.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRY_BITS = 16, ENTRIES = 1 << ENTRY_BITS };

/* All of an op that a price may depend on, as words: one of small fields, two of the group, the
 * dimensions, and three numbers by their bits. Not where the op stands: its stream, module, kind of
 * group and piece, nor the pass, but that layouts of a product's operands differ in B
 * (model_gemm.c). No op has all words 0. */
enum { WORDS = 6 + MF_OP_DIMS, PRICE_WORDS = (sizeof(mf_price) + 7) / 8 };

typedef struct key {
    uint64_t word[WORDS];
} key;
_Static_assert(WORDS == 14, "differs() compares as many");

/* Read without a lock (a seqlock): what was read counts if `turn` was even and has not changed
 * since. */
typedef struct entry {
    _Atomic uint64_t turn; /* odd: being written */
    _Atomic uint64_t key[WORDS];
    _Atomic uint64_t price[PRICE_WORDS];
} entry;

/* So many prices are looked up at a time: entries are seldom in a near cache, and the processor
 * fetches those of all of them from memory at once. */
enum { TOGETHER = 16, LINE_B = 64 };

struct mf_price_memo {
    entry entry[ENTRIES];
};

mf_price_memo *mf_price_memo_create(void) {
    return mf_table_create(sizeof(mf_price_memo));
}

void mf_price_memo_destroy(mf_price_memo *m) {
    mf_table_destroy(m);
}

void mf_price_memo_clear(mf_price_memo *m) {
    for (int i = 0; m != NULL && i < ENTRIES; i++) {
        for (int k = 0; k < WORDS; k++) {
            atomic_store_explicit(&m->entry[i].key[k], 0, memory_order_relaxed);
        }
    }
}

static uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Word by word: loops over so few are slower by half. */
static key key_of(const mf_op *op, double load) {
    const int64_t *dim = op->dim;
    return (key){{(uint64_t)op->kind | (uint64_t)(op->pass == MF_PASS_B) << 8 |
                      (uint64_t)op->math << 16 | (uint64_t)op->flags << 24 |
                      (uint64_t)op->pieces << 48 | UINT64_C(1) << 63,
                  (uint64_t)op->shape.size, (uint64_t)op->shape.stride, bits_of(op->flops),
                  bits_of(op->bytes), bits_of(op->flags & MF_OPF_ROUTED ? load : 1.0),
                  (uint64_t)dim[0], (uint64_t)dim[1], (uint64_t)dim[2], (uint64_t)dim[3],
                  (uint64_t)dim[4], (uint64_t)dim[5], (uint64_t)dim[6], (uint64_t)dim[7]}};
}

static uint64_t differs_at(const entry *e, const key *k, int i) {
    return atomic_load_explicit(&e->key[i], memory_order_relaxed) ^ k->word[i];
}

static bool differs(const entry *e, const key *k) {
    return ((differs_at(e, k, 4) | differs_at(e, k, 0) | differs_at(e, k, 3)) |
            (differs_at(e, k, 1) | differs_at(e, k, 2) | differs_at(e, k, 5)) |
            (differs_at(e, k, 6) | differs_at(e, k, 7) | differs_at(e, k, 8)) |
            (differs_at(e, k, 9) | differs_at(e, k, 10) | differs_at(e, k, 11)) |
            (differs_at(e, k, 12) | differs_at(e, k, 13))) != 0;
}

/* Hashes the words that tell most ops apart; the other words mostly follow from these. */
static size_t place_of(const key *k) {
    const uint64_t *w = k->word;
    uint64_t a = (w[0] ^ w[4]) * UINT64_C(0x9e3779b97f4a7c15);
    uint64_t b = (w[3] ^ w[6] ^ w[7] << 21) * UINT64_C(0xc2b2ae3d27d4eb4f);
    uint64_t c = (w[5] ^ w[8] ^ w[9] << 17 ^ w[1] << 32) * UINT64_C(0x165667b19e3779f9);
    uint64_t h = a ^ (b << 23 | b >> 41) ^ (c << 47 | c >> 17);
    h = (h ^ h >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(h >> (64 - ENTRY_BITS));
}

static bool find(const entry *e, const key *k, mf_price *out) {
    uint64_t turn = atomic_load_explicit(&e->turn, memory_order_acquire);
    uint64_t price[PRICE_WORDS];
    if (turn & 1 || differs(e, k)) {
        return false;
    }
    for (int i = 0; i < PRICE_WORDS; i++) {
        price[i] = atomic_load_explicit(&e->price[i], memory_order_relaxed);
    }
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&e->turn, memory_order_relaxed) != turn) {
        return false;
    }
    memcpy(out, price, sizeof *out);
    return true;
}

/* Not where another thread is writing. */
static void keep(entry *e, const key *k, const mf_price *p) {
    uint64_t turn = atomic_load_explicit(&e->turn, memory_order_relaxed);
    uint64_t price[PRICE_WORDS] = {0};
    if (turn & 1 || !atomic_compare_exchange_strong_explicit(
                        &e->turn, &turn, turn + 1, memory_order_acquire, memory_order_relaxed)) {
        return;
    }
    atomic_thread_fence(memory_order_release);
    memcpy(price, p, sizeof *p);
    for (int i = 0; i < WORDS; i++) {
        atomic_store_explicit(&e->key[i], k->word[i], memory_order_relaxed);
    }
    for (int i = 0; i < PRICE_WORDS; i++) {
        atomic_store_explicit(&e->price[i], price[i], memory_order_relaxed);
    }
    atomic_store_explicit(&e->turn, turn + 2, memory_order_release);
}

static void fetch_ahead(const entry *e) {
    const char *at = (const char *)e;
    for (size_t k = 0; k < sizeof *e; k += LINE_B) {
        __builtin_prefetch(at + k);
    }
    __builtin_prefetch(at + sizeof *e - 1);
}

static void get(entry *e, const key *k, const mf_cost *cost, const mf_op *op, double load,
                mf_price_fn price, mf_price *out) {
    if (!find(e, k, out)) {
        price(cost, op, load, out);
        keep(e, k, out);
    }
}

void mf_price_memo_get(mf_price_memo *m, const mf_cost *cost, const mf_op *op, double load,
                       mf_price_fn price, mf_price *out) {
    const key k = key_of(op, load);
    get(&m->entry[place_of(&k)], &k, cost, op, load, price, out);
}

void mf_price_memo_get_all(mf_price_memo *m, const mf_cost *cost, const mf_op *ops, int n,
                           double load, mf_price_fn price, mf_price *out) {
    key k[TOGETHER];
    entry *e[TOGETHER];
    for (int i = 0; i < n; i += TOGETHER) {
        const int some = n - i < TOGETHER ? n - i : TOGETHER;
        for (int j = 0; j < some; j++) {
            k[j] = key_of(&ops[i + j], load);
            e[j] = &m->entry[place_of(&k[j])];
            fetch_ahead(e[j]);
        }
        for (int j = 0; j < some; j++) {
            get(e[j], &k[j], cost, &ops[i + j], load, price, &out[i + j]);
        }
    }
}
