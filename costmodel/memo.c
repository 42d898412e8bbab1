/* memo.c - prices that were asked for lately. A step program repeats few shapes often, and so do
 * the layouts of a search; a price from the fields of measured points costs some hundred times as
 * much as finding it again.
 */
#include "costmodel/cost_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 16, ENTRIES = 1024 };

/* All of an op that a price may depend on, as words: two of small fields, two of the group, the
 * dimensions, and three numbers by their bits. No op has all words 0. */
enum { WORDS = 7 + MF_OP_DIMS };
typedef struct key {
    uint64_t word[WORDS];
} key;

typedef struct entry {
    key key;
    mf_price price;
} entry;

typedef struct part {
    pthread_mutex_t lock;
    entry entry[ENTRIES];
} part;

struct mf_price_memo {
    part part[PARTS];
};

mf_price_memo *mf_price_memo_create(void) {
    mf_price_memo *m = calloc(1, sizeof *m);
    for (int i = 0; m != NULL && i < PARTS; i++) {
        pthread_mutex_init(&m->part[i].lock, NULL);
    }
    return m;
}

void mf_price_memo_destroy(mf_price_memo *m) {
    for (int i = 0; m != NULL && i < PARTS; i++) {
        pthread_mutex_destroy(&m->part[i].lock);
    }
    free(m);
}

void mf_price_memo_clear(mf_price_memo *m) {
    for (int i = 0; m != NULL && i < PARTS; i++) {
        memset(m->part[i].entry, 0, sizeof m->part[i].entry);
    }
}

static uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static key key_of(const mf_op *op, double load) {
    key k = {{(uint64_t)op->kind | (uint64_t)op->pass << 8 | (uint64_t)op->stream << 16 |
                  (uint64_t)op->math << 24 | (uint64_t)op->module << 32 |
                  (uint64_t)op->flags << 40 | (uint64_t)op->group << 48,
              (uint64_t)op->piece | (uint64_t)op->pieces << 8 | UINT64_C(1) << 63,
              (uint64_t)op->shape.size, (uint64_t)op->shape.stride, bits_of(op->flops),
              bits_of(op->bytes), bits_of(load)}};
    for (int i = 0; i < MF_OP_DIMS; i++) {
        k.word[7 + i] = (uint64_t)op->dim[i];
    }
    return k;
}

/* Two halves at a time, which do not wait for each other. */
static uint64_t hash_of(const key *k) {
    uint64_t a = UINT64_C(0x243f6a8885a308d3), b = UINT64_C(0x13198a2e03707344);
    for (int i = 0; i + 1 < WORDS; i += 2) {
        a = (a ^ k->word[i]) * UINT64_C(0x9e3779b97f4a7c15);
        b = (b ^ k->word[i + 1]) * UINT64_C(0xc2b2ae3d27d4eb4f);
        a ^= a >> 32;
        b ^= b >> 29;
    }
    a ^= WORDS % 2 ? k->word[WORDS - 1] : 0;
    return (a ^ (b << 23 | b >> 41)) * UINT64_C(0x9e3779b97f4a7c15) >> 12;
}

void mf_price_memo_get(mf_price_memo *m, const mf_cost *cost, const mf_op *op, double load,
                       mf_price_fn price, mf_price *out) {
    key k = key_of(op, load);
    uint64_t h = hash_of(&k);
    part *p = &m->part[h % PARTS];
    entry *e = &p->entry[h / PARTS % ENTRIES];
    pthread_mutex_lock(&p->lock);
    bool found = memcmp(e->key.word, k.word, sizeof k.word) == 0;
    if (found) {
        *out = e->price;
    }
    pthread_mutex_unlock(&p->lock);
    if (found) {
        return;
    }
    price(cost, op, load, out);
    pthread_mutex_lock(&p->lock); /* the later one stays; a price is the same whoever asks */
    e->key = k;
    e->price = *out;
    pthread_mutex_unlock(&p->lock);
}
