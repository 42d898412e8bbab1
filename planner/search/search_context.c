/* search_context.c - what all tasks of a search use: its lists of points, and what was found for
 * orders. */
#include "planner/search/search.h"
#include "planner/splits/split_proof.h"

#include <stdlib.h>
#include <string.h>

/* --- the context ------------------------------------------------------------------------------ */

static bool same_side(const mf_dense_point *a, const mf_dense_point *b) {
    return a->precision == b->precision && a->cp_type == b->cp_type && a->tp == b->tp &&
           a->cp == b->cp && a->mbs == b->mbs;
}

/* A dense point while points are sorted. */
typedef struct counted {
    mf_dense_point point;
    mf_search_count orders;
} counted;

static int by_side(const void *x, const void *y) {
    const mf_dense_point *a = &((const counted *)x)->point, *b = &((const counted *)y)->point;
    const int64_t keys[][2] = {{a->precision, b->precision}, {a->tp, b->tp},   {a->cp, b->cp},
                               {a->cp_type, b->cp_type},     {a->mbs, b->mbs}, {a->pp, b->pp}};
    return mf_space_compare(keys, 6);
}

static int by_expert(const void *x, const void *y) {
    const mf_expert_point *a = x, *b = y;
    const int64_t keys[][2] = {
        {a->ep, b->ep}, {a->etp, b->etp}, {a->dispatcher, b->dispatcher}, {a->pp, b->pp}};
    return mf_space_compare(keys, 4);
}

/* Every expert side of any pipeline degree, once. */
static mf_status find_experts(mf_search_context *w, mf_err *e) {
    int64_t all = 0, n = 0;
    for (int64_t i = 0; i < w->denses; i++) {
        bool seen = false;
        for (int64_t k = 0; k < i && !seen; k++) {
            seen = w->dense[k].pp == w->dense[i].pp;
        }
        if (seen) {
            continue;
        }
        int64_t count = mf_space_experts(&w->space, w->dense[i].pp, NULL, 0);
        mf_expert_point *grown = realloc(w->expert, (size_t)(all + count + 1) * sizeof *grown);
        if (!grown) {
            return mf_err_set(e, MF_NOMEM, "out of memory");
        }
        w->expert = grown;
        mf_space_experts(&w->space, w->dense[i].pp, grown + all, count);
        all += count;
    }
    if (all == 0) {
        return MF_OK;
    }
    qsort(w->expert, (size_t)all, sizeof *w->expert, by_expert);
    for (int64_t i = 0; i < all; i++) {
        bool same = n > 0 && w->expert[n - 1].ep == w->expert[i].ep &&
                    w->expert[n - 1].etp == w->expert[i].etp &&
                    w->expert[n - 1].dispatcher == w->expert[i].dispatcher;
        if (!same) {
            w->expert[n++] = w->expert[i];
        }
    }
    w->experts = n;
    return MF_OK;
}

static mf_search_count count_orders(const mf_space *s, const mf_dense_point *d) {
    mf_order_point order[MF_SEARCH_ORDERS];
    int64_t all = mf_space_orders(s, d->pp, d->micro_batches, order, MF_SEARCH_ORDERS);
    mf_search_count c = {.all = (int32_t)all};
    for (int64_t i = 0; i < all && i < MF_SEARCH_ORDERS; i++) {
        c.of[mf_pass_mode_of((mf_schedule_kind)order[i].schedule)]++;
    }
    return c;
}

/* Dense points by side, with their orders. */
static mf_status find_denses(mf_search_context *w, mf_err *e) {
    w->denses = mf_space_dense(&w->space, NULL, 0);
    size_t n = (size_t)w->denses + 1;
    counted *list = malloc(n * sizeof *list);
    w->dense = malloc(n * sizeof *w->dense);
    w->order_count = malloc(n * sizeof *w->order_count);
    if (!list || !w->dense || !w->order_count) {
        free(list);
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_space_dense(&w->space, w->dense, w->denses);
    for (int64_t i = 0; i < w->denses; i++) {
        const mf_dense_point *d = &w->dense[i];
        bool same = i > 0 && d[-1].pp == d->pp && d[-1].micro_batches == d->micro_batches;
        list[i] = (counted){*d, same ? list[i - 1].orders : count_orders(&w->space, d)};
    }
    qsort(list, (size_t)w->denses, sizeof *list, by_side);
    for (int64_t i = 0; i < w->denses; i++) {
        w->dense[i] = list[i].point;
        w->order_count[i] = list[i].orders;
    }
    free(list);
    return MF_OK;
}

static mf_status find_sides(mf_search_context *w, mf_err *e) {
    w->side = calloc((size_t)w->denses + 1, sizeof *w->side);
    if (!w->side) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (int64_t i = 0; i < w->denses; i++) {
        if (i == 0 || !same_side(&w->dense[i], &w->dense[i - 1])) {
            w->side[w->sides++] = (mf_search_side){(int32_t)i, 0};
        }
        w->side[w->sides - 1].count++;
    }
    return MF_OK;
}

mf_status mf_search_context_init(mf_search_context *w, mf_block_costs *q, mf_order_book *orders,
                                 const mf_space *s, mf_err *e) {
    memset(w, 0, sizeof *w);
    w->space = *s;
    w->evaluator = mf_block_costs_evaluator(q);
    w->costs = q;
    w->orders = orders;
    w->layers = mf_family_bound_layers(s->model);
    w->others = mf_model_positions(s->model) - w->layers;
    w->kinds = mf_family_bound_kinds(s->model);
    pthread_mutex_init(&w->lock, NULL);
    for (int i = 0; i < MF_SEARCH_PATH_LOCKS; i++) {
        pthread_mutex_init(&w->path_lock[i], NULL);
    }
    mf_status status = find_denses(w, e);
    if (status == MF_OK) {
        status = find_sides(w, e);
    }
    return status == MF_OK ? find_experts(w, e) : status;
}

void mf_search_context_clear(mf_search_context *w) {
    for (int b = 0; b < MF_SEARCH_BUCKETS; b++) {
        for (mf_search_path_set *c = w->paths[b], *next; c; c = next) {
            next = c->next;
            mf_search_path_set_free(c);
        }
    }
    mf_search_known_clear(w);
    free(w->dense);
    free(w->order_count);
    free(w->expert);
    free(w->side);
    pthread_mutex_destroy(&w->lock);
    for (int i = 0; i < MF_SEARCH_PATH_LOCKS; i++) {
        pthread_mutex_destroy(&w->path_lock[i]);
    }
    memset(w, 0, sizeof *w);
}

/* --- orders ----------------------------------------------------------------------------------- */

static size_t order_bucket(const mf_layout *l) {
    uint64_t h = (uint64_t)l->pp * 131 + (uint64_t)l->vpp * 17 + (uint64_t)l->schedule;
    return (size_t)((h * UINT64_C(0x9e3779b97f4a7c15)) >> 40) % MF_SEARCH_BUCKETS;
}

static bool same_order(const mf_search_path_set *c, const mf_layout *l) {
    return c->schedule == (int)l->schedule && c->pp == l->pp && c->vpp == l->vpp &&
           c->micro_batches == l->micro_batches;
}

int mf_search_path_sets_of(mf_search_context *w, const mf_layout *l, int64_t from, int64_t seen,
                           const mf_path_set *out[MF_PATH_SETS]) {
    const size_t bucket = order_bucket(l);
    pthread_mutex_t *lock = &w->path_lock[bucket % MF_SEARCH_PATH_LOCKS];
    int count = 0;
    pthread_mutex_lock(lock);
    const mf_search_path_set *c = w->paths[bucket]; /* the latest first */
    const int most = mf_uses(w->evaluator->without, MF_MECHANISM_PATH_SETS) ? MF_PATH_SETS : 1;
    for (; c && count < most; c = c->next) {
        if (!c->proof && same_order(c, l) && c->since <= seen && c->since > from) {
            out[count++] = &c->paths;
        }
    }
    pthread_mutex_unlock(lock);
    return count;
}

int mf_search_proofs_of(mf_search_context *w, const mf_layout *l, int64_t seen,
                        const mf_split_proof *out[MF_PROOFS]) {
    const size_t bucket = order_bucket(l);
    pthread_mutex_t *lock = &w->path_lock[bucket % MF_SEARCH_PATH_LOCKS];
    int count = 0;
    pthread_mutex_lock(lock);
    for (const mf_search_path_set *c = w->paths[bucket]; c && count < MF_PROOFS; c = c->next) {
        if (c->proof && same_order(c, l) && c->since <= seen) {
            out[count++] = c->proof;
        }
    }
    pthread_mutex_unlock(lock);
    return count;
}

void mf_search_path_set_free(mf_search_path_set *x) {
    mf_path_set_clear(&x->paths);
    mf_split_proof_free(x->proof);
    free(x);
}

void mf_search_keep_path_set(mf_search_context *w, mf_search_path_set *paths, int64_t oldest) {
    mf_layout l = {.pp = paths->pp,
                   .vpp = paths->vpp,
                   .micro_batches = paths->micro_batches,
                   .schedule = (mf_schedule_kind)paths->schedule};
    int covered = 0; /* sets that the oldest task knows */
    const size_t bucket = order_bucket(&l);
    pthread_mutex_t *lock = &w->path_lock[bucket % MF_SEARCH_PATH_LOCKS];
    pthread_mutex_lock(lock);
    mf_search_path_set **at = &w->paths[bucket];
    paths->next = *at;
    *at = paths;
    while (*at) {
        mf_search_path_set *c = *at;
        const bool same = same_order(c, &l) && !c->proof == !paths->proof;
        if (same && covered >= (paths->proof ? MF_PROOFS : MF_PATH_SETS)) {
            *at = c->next;
            mf_search_path_set_free(c);
            continue;
        }
        covered += same && c->since <= oldest;
        at = &c->next;
    }
    pthread_mutex_unlock(lock);
}
