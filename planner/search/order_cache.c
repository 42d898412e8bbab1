/* order_cache.c - the table of what a search knows, and what it knows of orders: the list of a
 * pipeline degree's, and the summary of each. */
#include "planner/search/search.h"

#include <stdlib.h>
#include <string.h>

typedef struct kept_summary {
    mf_search_known head;
    mf_order_summary order;
} kept_summary;

typedef struct kept_list {
    mf_search_known head;
    int count;
    mf_search_listed order[];
} kept_list;

static size_t bucket_of(const mf_search_key *key) {
    uint64_t h = (uint64_t)key->kind;
    for (size_t i = 0; i < sizeof key->word / sizeof key->word[0]; i++) {
        h = (h ^ (h >> 32) ^ (uint64_t)key->word[i]) * UINT64_C(0x9e3779b97f4a7c15);
    }
    return (size_t)(h >> 40) % MF_SEARCH_BUCKETS;
}

void *mf_search_find(const mf_search_context *w, const mf_search_key *key) {
    mf_search_known *x = atomic_load_explicit(&w->known[bucket_of(key)], memory_order_acquire);
    while (x && memcmp(&x->key, key, sizeof *key) != 0) {
        x = x->next;
    }
    return x;
}

void mf_search_publish(mf_search_context *w, const mf_search_key *key, mf_search_known *x) {
    _Atomic(mf_search_known *) *head = &w->known[bucket_of(key)];
    x->key = *key;
    x->next = atomic_load_explicit(head, memory_order_relaxed);
    atomic_store_explicit(head, x, memory_order_release);
}

void mf_search_known_clear(mf_search_context *w) {
    for (int b = 0; b < MF_SEARCH_BUCKETS; b++) {
        for (mf_search_known *x = w->known[b]; x; x = x->next) {
            if (x->key.kind == MF_KNOWN_SUMMARY) {
                mf_order_summary_clear(&((kept_summary *)x)->order);
            }
        }
        w->known[b] = NULL;
    }
    mf_pool_clear(&w->pool);
}

/* --- lists ------------------------------------------------------------------------------------ */

/* The lock is held. NULL: out of memory. */
static kept_list *list_orders(mf_search_context *w, const mf_layout *l) {
    mf_order_point order[MF_SEARCH_ORDERS];
    int64_t all = mf_space_orders(&w->space, l->pp, l->micro_batches, order, MF_SEARCH_ORDERS);
    size_t count = (size_t)(all < MF_SEARCH_ORDERS ? all : MF_SEARCH_ORDERS);
    kept_list *made = mf_pool_take(&w->pool, sizeof *made + count * sizeof made->order[0]);
    if (made) {
        made->count = (int)count;
        for (size_t i = 0; i < count; i++) {
            made->order[i].point = order[i];
            atomic_init(&made->order[i].summary, NULL);
        }
    }
    return made;
}

mf_status mf_search_orders_of(mf_search_context *w, const mf_layout *l, mf_search_listed **out,
                              int *count, mf_err *e) {
    const mf_search_key key = {.kind = MF_KNOWN_ORDERS, .word = {l->pp, l->micro_batches}};
    kept_list *kept = mf_search_find(w, &key);
    if (!kept) {
        pthread_mutex_lock(&w->lock);
        kept = mf_search_find(w, &key); /* another thread's are equal */
        if (!kept) {
            kept = list_orders(w, l);
            if (kept) {
                mf_search_publish(w, &key, &kept->head);
            }
        }
        pthread_mutex_unlock(&w->lock);
    }
    if (!kept) {
        (void)mf_err_set(e, MF_NOMEM, "out of memory");
        return MF_NOMEM;
    }
    *out = kept->order;
    *count = kept->count;
    return MF_OK;
}

/* --- summaries -------------------------------------------------------------------------------- */

/* Of an order with many micro-batches (0: so many that more of them change nothing). */
static mf_search_key summary_key(const mf_layout *l, int64_t micro_batches) {
    return (mf_search_key){.kind = MF_KNOWN_SUMMARY,
                           .word = {l->pp, micro_batches, l->vpp, (int64_t)l->schedule}};
}

static kept_summary *find_summary(const mf_search_context *w, const mf_layout *l) {
    const mf_search_key key = summary_key(l, l->micro_batches), all = summary_key(l, 0);
    kept_summary *kept = mf_search_find(w, &key);
    return kept || l->micro_batches <= 8 * l->pp ? kept : mf_search_find(w, &all);
}

/* Keeps a summary, which is taken over, unless another thread has kept the same meanwhile, which is
 * equal. NULL: out of memory. */
static kept_summary *keep_summary(mf_search_context *w, const mf_layout *l, bool saturated,
                                  mf_order_summary *made) {
    pthread_mutex_lock(&w->lock);
    kept_summary *kept = find_summary(w, l);
    if (kept) {
        mf_order_summary_clear(made);
    } else {
        kept = mf_pool_take(&w->pool, sizeof *kept);
        if (kept) {
            const mf_search_key key = summary_key(l, saturated ? 0 : l->micro_batches);
            kept->order = *made;
            mf_search_publish(w, &key, &kept->head);
        } else {
            mf_order_summary_clear(made);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return kept;
}

mf_status mf_search_order(mf_search_context *w, const mf_layout *l, const mf_order_summary **out,
                          mf_err *e) {
    const kept_summary *kept = find_summary(w, l);
    if (!kept) {
        mf_order_summary made;
        bool saturated = false;
        mf_status status = mf_order_summarise(l, w->evaluator->ops->schedule, w->evaluator->self,
                                              w->layers, w->others, &made, &saturated, e);
        if (status != MF_OK) {
            return status;
        }
        kept = keep_summary(w, l, saturated, &made);
    }
    if (!kept) {
        (void)mf_err_set(e, MF_NOMEM, "out of memory");
        return MF_NOMEM;
    }
    *out = &kept->order;
    return MF_OK;
}
