/* order_cache.c - the table of what a search knows, and what it knows of orders: the list of a
 * pipeline degree's, and the summary of each (planner/order/order_book.h). */
#include "planner/search/search.h"

#include <stdlib.h>
#include <string.h>

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
    return (size_t)(h >> 40) % MF_SEARCH_KNOWN;
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
    for (int b = 0; b < MF_SEARCH_KNOWN; b++) {
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

mf_status mf_search_order(mf_search_context *w, const mf_layout *l, const mf_order_summary **out,
                          mf_err *e) {
    return mf_order_book_get(w->orders, l, w->evaluator->ops->schedule, w->evaluator->self,
                             w->layers, w->others, out, e);
}
