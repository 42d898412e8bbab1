/* cost_cache.c - a hash table of costs that many threads read. */
#include "planner/price/cost_cache.h"

#include "core/base/pool.h"
#include "core/base/spin_lock.h"
#include "core/base/table.h"
#include "planner/price/cost_key.h"
#include "planner/tuning/limits.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Entries are never changed nor taken out, so readers need no lock: a path is as good as it was
 * when its head was read. */
typedef struct entry {
    struct entry *next;
    uint64_t hash;
    mf_cost_key key; /* with these in front it is found by a cache line or two */
    bool pair;
    int32_t made_ns; /* what making it is counted as */
    atomic_bool counted;
    union {
        mf_block_cost cost;
        double pair_s; /* of a merged pair, whose entry ends here: as many as costs */
    } is;
} entry;

enum {
    BUCKETS = 1 << 19
}; /* a search asks for some hundred thousand costs, several searches that
    * have one table for some more */
enum { MAKERS = 256, CHOICES = 16 };

/* Where an entry is. */
typedef struct place {
    uint64_t hash;
    size_t bucket;
} place;

struct mf_block_costs {
    const mf_evaluator *evaluator;
    pthread_mutex_t lock;           /* of writers */
    mf_pool pool;                   /* of entries */
    pthread_mutex_t making[MAKERS]; /* by hash: a thread that needs a cost which another one is
                                     * computing waits for it instead of computing it, too */
    _Atomic(entry *) bucket[BUCKETS];
};

mf_status mf_block_costs_create(const mf_evaluator *evaluator, mf_block_costs **out, mf_err *e) {
    mf_block_costs *q = mf_table_create(sizeof *q);
    *out = q;
    if (!q) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    pthread_mutex_init(&q->lock, NULL);
    for (int i = 0; i < MAKERS; i++) {
        pthread_mutex_init(&q->making[i], NULL);
    }
    q->evaluator = evaluator;
    return MF_OK;
}

void mf_block_costs_destroy(mf_block_costs *q) {
    if (!q) {
        return;
    }
    mf_pool_clear(&q->pool);
    pthread_mutex_destroy(&q->lock);
    for (int i = 0; i < MAKERS; i++) {
        pthread_mutex_destroy(&q->making[i]);
    }
    mf_table_destroy(q);
}

const mf_evaluator *mf_block_costs_evaluator(const mf_block_costs *q) {
    return q->evaluator;
}

/* --- the table -------------------------------------------------------------------------------- */

/* A number below 16 for each memory choice. */
static size_t choice_of(uint64_t memory) {
    return (uint32_t)memory * UINT32_C(0x9e3779b1) >> 28;
}

/* Costs that differ by memory choices alone are asked for together, and lie side by side: those of
 * a block in two cache lines. */
static place place_of(const mf_cost_key *key) {
    const uint64_t of = MF_COST_KEY_MEMORY, a = key->word[4], b = key->word[5];
    mf_cost_key plain = *key;
    plain.word[4] &= ~of;
    plain.word[5] &= ~of;
    const uint64_t base = mf_cost_key_hash(&plain), memory[2] = {(a & of) >> 20, (b & of) >> 20};
    const size_t first = (size_t)(base % (BUCKETS / CHOICES)) * CHOICES;
    uint64_t hash = (base ^ memory[0] ^ memory[1] << 32) * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= hash >> 29;
    return (place){hash, (first + CHOICES * choice_of(memory[1]) + choice_of(memory[0])) % BUCKETS};
}

static entry *find(mf_block_costs *q, const place *at, const mf_cost_key *key) {
    if (!mf_uses(q->evaluator->without, MF_MECHANISM_COST_CACHE)) {
        return NULL;
    }
    const uint64_t hash = at->hash;
    entry *x = atomic_load_explicit(&q->bucket[at->bucket], memory_order_acquire);
    while (x && !(x->hash == hash && mf_cost_key_same(&x->key, key))) {
        x = x->next;
    }
    return x;
}

/* One thread at a time for each hash; not where it was made meanwhile. */
static mf_status keep(mf_block_costs *q, size_t bucket, const entry *made, entry **out, mf_err *e) {
    pthread_mutex_lock(&q->lock);
    const size_t size =
        offsetof(entry, is) + (made->pair ? sizeof made->is.pair_s : sizeof made->is);
    entry *x = mf_pool_take(&q->pool, size);
    if (x) {
        _Atomic(entry *) *head = &q->bucket[bucket];
        memcpy(x, made, size);
        x->next = atomic_load_explicit(head, memory_order_relaxed);
        atomic_store_explicit(head, x, memory_order_release);
    }
    pthread_mutex_unlock(&q->lock);
    *out = x;
    return x ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
}

/* A question to the evaluator: the cost of a block, or of a merged pair (b not NULL). */
typedef struct question {
    const mf_layout *l;
    const mf_block_key *a, *b;
    bool exact;
} question;

static mf_status ask(const mf_evaluator *o, const question *x, entry *made, mf_err *e) {
    return x->b ? o->ops->pair(o->self, x->l, x->a, x->b, &made->is.pair_s, e)
                : o->ops->cost(o->self, x->l, x->a, x->exact, &made->is.cost, e);
}

static int32_t made_ns(const mf_model *m, const question *x) {
    if (m->kv_lora_rank > 0) {
        return x->b ? MF_LATENT_BLOCK_PAIR_NS : MF_LATENT_BLOCK_NS;
    }
    return x->b ? MF_BLOCK_PAIR_NS : MF_BLOCK_NS;
}

static mf_status make(mf_block_costs *q, const question *x, const mf_cost_key *key, const place *at,
                      entry **out, mf_err *e) {
    pthread_mutex_t *making = &q->making[(at->hash >> 32) % MAKERS];
    mf_status status = MF_OK;
    mf_spin_lock(making);
    *out = find(q, at, key); /* by another thread meanwhile */
    if (!*out) {
        entry made = {.key = *key,
                      .hash = at->hash,
                      .pair = x->b != NULL,
                      .made_ns = made_ns(q->evaluator->model, x)};
        status = ask(q->evaluator, x, &made, e);
        if (status == MF_OK) {
            status = keep(q, at->bucket, &made, out, e);
        }
    }
    pthread_mutex_unlock(making);
    return status;
}

/* --- counted effort --------------------------------------------------------------------------- */

static _Thread_local mf_costs_noted *noted, *listed;

void mf_block_costs_note(mf_costs_noted *x) {
    noted = x;
}

void mf_block_costs_list(mf_costs_noted *x) {
    listed = x;
}

/* Without memory for it the entry is not counted. */
static void append(mf_costs_noted *to, entry *x) {
    if (to->count == to->allocated) {
        const int64_t allocated = 2 * to->allocated + 64;
        void **grown = realloc(to->entry, (size_t)allocated * sizeof *grown);
        if (!grown) {
            return;
        }
        to->entry = grown;
        to->allocated = allocated;
    }
    to->entry[to->count++] = x;
}

/* False: it is counted. */
static bool note(entry *x) {
    if (noted == NULL || atomic_load_explicit(&x->counted, memory_order_relaxed)) {
        return noted == NULL;
    }
    append(noted, x);
    return true;
}

bool mf_block_costs_count_hit(const mf_costs_noted *x) {
    bool open = false;
    for (int64_t i = 0; i < x->count; i++) {
        open |= note(x->entry[i]);
    }
    return open;
}

int64_t mf_block_costs_count(mf_costs_noted *x) {
    int64_t sum_ns = 0;
    for (int64_t i = 0; i < x->count; i++) {
        entry *one = x->entry[i];
        if (!atomic_exchange_explicit(&one->counted, true, memory_order_relaxed)) {
            sum_ns += one->made_ns;
        }
    }
    x->count = 0;
    return sum_ns;
}

void mf_costs_noted_clear(mf_costs_noted *x) {
    free(x->entry);
    *x = (mf_costs_noted){0};
}

/* --- answers ---------------------------------------------------------------------------------- */

/* The answer, made where nobody has asked yet. */
static mf_status answer(mf_block_costs *q, const question *x, entry **out, mf_err *e) {
    const mf_cost_key key = mf_cost_key_of(q->evaluator->model, x->l, x->a, x->b, x->exact);
    const place at = place_of(&key);
    *out = find(q, &at, &key);
    const mf_status status = *out ? MF_OK : make(q, x, &key, &at, out, e);
    if (status == MF_OK && *out != NULL) {
        (void)note(*out);
        if (listed != NULL) {
            append(listed, *out);
        }
    }
    return status;
}

/* A table that another block of the stage holds is read all the same, and is no parameter of this
 * one; nothing else differs. A cost depends on the schedule by its buffers, and by whether passes
 * are split, which is part of the key. */
static mf_block_key with_own_tables(const mf_block_key *key) {
    mf_block_key own = *key;
    own.shared_embedding = own.shared_head = false;
    return own;
}

mf_status mf_block_costs_get(mf_block_costs *q, const mf_layout *l, const mf_block_key *key,
                             bool exact, mf_block_cost *out, mf_err *e) {
    const mf_block_key own = with_own_tables(key);
    const question x = {l, &own, NULL, exact};
    entry *found;
    mf_status status = answer(q, &x, &found, e);
    if (status != MF_OK) {
        return status;
    }
    *out = found->is.cost;
    out->params.dense -= mf_block_shared_elements(q->evaluator->model, l, key);
    out->comm_B += mf_layout_merges(l) ? out->merged_comm_B : 0.0;
    out->merged_comm_B = 0.0;
    return MF_OK;
}

mf_status mf_block_costs_pair(mf_block_costs *q, const mf_layout *l, const mf_block_key *forward,
                              const mf_block_key *backward, double *time_s, mf_err *e) {
    const mf_block_key f = with_own_tables(forward), b = with_own_tables(backward);
    const question x = {l, &f, &b, true};
    entry *found;
    mf_status status = answer(q, &x, &found, e);
    if (status == MF_OK) {
        *time_s = found->is.pair_s;
    }
    return status;
}
