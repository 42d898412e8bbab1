/* order_book.c - a table of summaries of orders that many threads read. */
#include "planner/order/order_book.h"

#include "core/base/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Entries are never changed nor taken out, so readers need no lock. */
typedef struct order_key {
    int64_t pp, vpp, schedule;
    int64_t micro_batches; /* 0: enough that more of them change nothing */
    int64_t layers, others;
} order_key;

typedef struct entry {
    struct entry *next;
    order_key key;
    mf_order_summary order;
} entry;

enum { BUCKETS = 4096 };

struct mf_order_book {
    pthread_mutex_t lock; /* of writers */
    mf_pool pool;         /* of entries */
    _Atomic(entry *) bucket[BUCKETS];
};

mf_status mf_order_book_create(mf_order_book **out, mf_err *e) {
    mf_order_book *b = calloc(1, sizeof *b);
    *out = b;
    if (b == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    pthread_mutex_init(&b->lock, NULL);
    return MF_OK;
}

void mf_order_book_destroy(mf_order_book *b) {
    if (b == NULL) {
        return;
    }
    for (int i = 0; i < BUCKETS; i++) {
        for (entry *x = b->bucket[i]; x != NULL; x = x->next) {
            mf_order_summary_clear(&x->order);
        }
    }
    mf_pool_clear(&b->pool);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static size_t bucket_of(const order_key *key) {
    const int64_t word[] = {key->pp,     key->vpp,   key->schedule, key->micro_batches,
                            key->layers, key->others};
    uint64_t h = 0;
    for (size_t i = 0; i < sizeof word / sizeof word[0]; i++) {
        h = (h ^ (h >> 32) ^ (uint64_t)word[i]) * UINT64_C(0x9e3779b97f4a7c15);
    }
    return (size_t)(h >> 40) % BUCKETS;
}

static entry *find_key(mf_order_book *b, const order_key *key) {
    entry *x = atomic_load_explicit(&b->bucket[bucket_of(key)], memory_order_acquire);
    while (x != NULL && memcmp(&x->key, key, sizeof *key) != 0) {
        x = x->next;
    }
    return x;
}

static order_key key_of(const mf_layout *l, int layers, int others, bool saturated) {
    return (order_key){.pp = l->pp,
                       .vpp = l->vpp,
                       .schedule = (int64_t)l->schedule,
                       .micro_batches = saturated ? 0 : l->micro_batches,
                       .layers = layers,
                       .others = others};
}

static entry *find(mf_order_book *b, const mf_layout *l, int layers, int others) {
    const order_key key = key_of(l, layers, others, false);
    const order_key all = key_of(l, layers, others, true);
    entry *x = find_key(b, &key);
    return x != NULL || l->micro_batches <= 8 * l->pp ? x : find_key(b, &all);
}

/* Keeps a summary, which is taken over, unless another thread has kept the same meanwhile, which is
 * equal. NULL: out of memory. */
static entry *keep(mf_order_book *b, const mf_layout *l, int layers, int others, bool saturated,
                   mf_order_summary *made) {
    pthread_mutex_lock(&b->lock);
    entry *x = find(b, l, layers, others);
    if (x != NULL) {
        mf_order_summary_clear(made);
    } else if ((x = mf_pool_take(&b->pool, sizeof *x)) == NULL) {
        mf_order_summary_clear(made);
    } else {
        const order_key key = key_of(l, layers, others, saturated);
        _Atomic(entry *) *head = &b->bucket[bucket_of(&key)];
        *x = (entry){atomic_load_explicit(head, memory_order_relaxed), key, *made};
        atomic_store_explicit(head, x, memory_order_release);
    }
    pthread_mutex_unlock(&b->lock);
    return x;
}

mf_status mf_order_book_get(mf_order_book *b, const mf_layout *l, mf_order_schedule_fn schedule,
                            void *self, int layers, int others, const mf_order_summary **out,
                            mf_err *e) {
    const entry *x = find(b, l, layers, others);
    if (x == NULL) {
        mf_order_summary made;
        bool saturated = false;
        mf_status status =
            mf_order_summarise(l, schedule, self, layers, others, &made, &saturated, e);
        if (status != MF_OK) {
            return status;
        }
        x = keep(b, l, layers, others, saturated, &made);
    }
    if (x == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    *out = &x->order;
    return MF_OK;
}
