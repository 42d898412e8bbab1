/* shared_figures.c - figures that many layouts share, in tables by what they depend on. Whoever
 * asks first finds them; they do not change afterwards. */
#include "planner/search/search.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Rates of two sides: by how passes are played, by ZeRO levels that gather or reduce inside blocks,
 * and then by the pipeline degree, which sets their groups. */
typedef struct rates_key {
    int32_t side, expert, dense;
    uint8_t mode, zero, expert_zero, hulls;
} rates_key;

struct mf_search_rates {
    rates_key key;
    mf_search_rates *next;
    mf_layer_times rates; /* last: kept up to the positions that it has */
};

/* As they are found, with room for all that there may be. */
typedef struct found_rates {
    mf_search_rates r;
    mf_family_bound_hull hull[2];
    mf_family_bound_ways ways;
} found_rates;

struct mf_search_once {
    int32_t expert, dense;
    mf_search_stages stages;
    mf_search_once *next;
};

struct mf_search_levels {
    int32_t expert, dense;
    uint8_t zero, expert_zero;
    mf_search_own own;
    mf_search_levels *next;
};

struct mf_search_orders {
    int64_t pp, micro_batches;
    mf_search_orders *next;
    int count;
    mf_search_listed order[];
};

static size_t bucket_of(int64_t a, int64_t b, int64_t c) {
    uint64_t h = (uint64_t)a * UINT64_C(0x9e3779b97f4a7c15);
    h = (h ^ (h >> 32) ^ (uint64_t)b) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ (h >> 32) ^ (uint64_t)c) * UINT64_C(0x94d049bb133111eb);
    return (size_t)(h >> 40) % MF_SEARCH_BUCKETS;
}

void mf_search_figures_clear(mf_search_world *w) {
    for (int b = 0; b < MF_SEARCH_BUCKETS; b++) {
        for (mf_search_orders *o = w->orders[b], *next; o; o = next) {
            next = o->next;
            free(o);
        }
        w->levels[b] = NULL;
        w->orders[b] = NULL;
        w->rates[b] = NULL;
        w->once[b] = NULL;
    }
    mf_pool_clear(&w->pool);
}

/* --- rates ------------------------------------------------------------------------------------ */

static bool same_rates(const rates_key *a, const rates_key *b) {
    return a->side == b->side && a->expert == b->expert && a->dense == b->dense &&
           a->mode == b->mode && a->zero == b->zero && a->expert_zero == b->expert_zero &&
           a->hulls == b->hulls;
}

static const mf_search_rates *find_rates(const mf_search_world *w, size_t bucket,
                                         const rates_key *key) {
    const mf_search_rates *r = atomic_load_explicit(&w->rates[bucket], memory_order_acquire);
    while (r && !same_rates(&r->key, key)) {
        r = r->next;
    }
    return r;
}

static mf_status ask_rates(const mf_search_world *w, const mf_layout *l, mf_search_hulls hulls,
                           bool from_end, found_rates *made, mf_err *e) {
    mf_layer_times *out = &made->r.rates;
    bool gathers = l->zero >= 2 || l->expert_zero >= 2;
    mf_status status = gathers && hulls == MF_HULLS_NONE
                           ? mf_layer_times_chains(w->costs, l, out, e)
                           : mf_layer_times_whole(w->costs, l, out, e);
    if (status == MF_OK && hulls == MF_HULLS_UNPLAYED) {
        status = mf_layer_times_hull(w->costs, l, w->space.pinned, from_end, out, made->hull, e);
    } else if (status == MF_OK && hulls == MF_HULLS_EXACT) {
        status = mf_layer_times_exact_hull(w->costs, l, w->space.pinned, from_end, out, made->hull,
                                           &made->ways, e);
    }
    return status;
}

/* Two threads often come to the same sides at once, and then to the same blocks. They ask from both
 * ends, so that each finds there what the other one has asked for. */
static mf_status ask_from_ends(mf_search_world *w, const mf_layout *l, mf_search_hulls hulls,
                               found_rates *made, mf_err *e) {
    const size_t sides = bucket_of(made->r.key.side, made->r.key.expert, 0) % MF_SEARCH_ASKERS;
    atomic_uint *askers = &w->askers[sides];
    const bool from_end = atomic_fetch_add(askers, 1) % 2 == 1;
    mf_status status = ask_rates(w, l, hulls, from_end, made, e);
    atomic_fetch_sub(askers, 1);
    return status;
}

/* Into the pool, with room for what is there: most of the room is for positions and choices that
 * few models have. NULL: out of memory. */
static mf_search_rates *copy_of_rates(mf_search_world *w, const found_rates *from) {
    const mf_layer_times *r = &from->r.rates;
    const size_t others = (size_t)r->others * sizeof r->other[0];
    const size_t rates = offsetof(mf_layer_times, other) + others;
    const bool hulls = r->hull == from->hull, exact = r->ways == &from->ways; /* else none */
    const size_t ways = exact ? offsetof(mf_family_bound_ways, pass) +
                                    (size_t)from->ways.count * sizeof from->ways.pass[0]
                              : 0;
    mf_search_rates *to = mf_pool_take(&w->pool, offsetof(mf_search_rates, rates) + rates);
    mf_family_bound_hull *hull = hulls ? mf_pool_take(&w->pool, sizeof from->hull) : NULL;
    mf_family_bound_ways *way = exact ? mf_pool_take(&w->pool, ways) : NULL;
    if (!to || (hulls && !hull) || (exact && !way)) {
        return NULL;
    }
    to->key = from->r.key;
    memcpy(&to->rates, r, rates);
    if (hull) {
        memcpy(hull, from->hull, sizeof from->hull);
        to->rates.hull = hull;
    }
    if (way) {
        memcpy(way, &from->ways, ways);
        to->rates.ways = way;
    }
    return to;
}

mf_status mf_search_rates_of(mf_search_world *w, const mf_search_node *n, const mf_layout *l,
                             mf_search_hulls hulls, const mf_layer_times **out, mf_err *e) {
    bool gathers = l->zero >= 2 || l->expert_zero >= 2;
    bool grouped = gathers || l->aux_scope == MF_AUX_GLOBAL;
    const rates_key key = {.side = n->side,
                           .expert = n->expert,
                           .dense = grouped ? n->dense : -1,
                           .mode = (uint8_t)mf_floor_mode_of(l->schedule),
                           .zero = l->zero >= 2 ? l->zero : 0,
                           .expert_zero = l->expert_zero >= 2 ? l->expert_zero : 0,
                           .hulls = (uint8_t)hulls};
    size_t bucket = bucket_of(key.side, key.expert,
                              key.dense * 4 + key.mode + 64 * (key.zero * 4 + key.expert_zero));
    const mf_search_rates *found = find_rates(w, bucket, &key);
    if (found) {
        *out = &found->rates;
        return MF_OK;
    }
    found_rates made;
    made.r.key = key;
    mf_status status = ask_from_ends(w, l, hulls, &made, e);
    if (status != MF_OK) {
        return status;
    }
    pthread_mutex_lock(&w->lock);
    found = find_rates(w, bucket, &key); /* another thread's are equal */
    if (!found) {
        mf_search_rates *kept = copy_of_rates(w, &made);
        if (kept) {
            kept->next = atomic_load_explicit(&w->rates[bucket], memory_order_relaxed);
            atomic_store_explicit(&w->rates[bucket], kept, memory_order_release);
        }
        found = kept;
    }
    pthread_mutex_unlock(&w->lock);
    if (!found) {
        (void)mf_err_set(e, MF_NOMEM, "out of memory");
        return MF_NOMEM;
    }
    *out = &found->rates;
    return MF_OK;
}

/* --- once a step ------------------------------------------------------------------------------ */

static const mf_search_once *find_once(const mf_search_world *w, size_t bucket,
                                       const mf_search_node *n) {
    const mf_search_once *o = atomic_load_explicit(&w->once[bucket], memory_order_acquire);
    while (o && !(o->expert == n->expert && o->dense == n->dense)) {
        o = o->next;
    }
    return o;
}

mf_family_bound_fixed mf_search_fixed(const mf_search_world *w, const mf_layout *l) {
    const mf_evaluator *o = w->evaluator;
    mf_param_count none = {0, 0, 0};
    mf_family_bound_fixed f = {.tail = o->ops->tail(o->self, l, none),
                               .fixed_B = o->ops->fixed_B(o->self, l),
                               .usable_B = o->ops->usable_B(o->self, l)};
    o->ops->send(o->self, l, &f.send_s, &f.hold_s);
    return f;
}

static void find_stages(const mf_search_world *w, const mf_layout *from,
                        const mf_param_count *layer, mf_search_stages *out) {
    const mf_evaluator *o = w->evaluator;
    mf_layout l = *from;
    l.schedule = MF_SCHED_1F1B;
    out->fixed[0] = mf_search_fixed(w, &l);
    l.schedule = MF_SCHED_MERGED;
    out->fixed[1] = mf_search_fixed(w, &l);
    out->zeros = (int)mf_space_zeros(&w->space, l.dp * l.cp, l.edp, out->zero, MF_SEARCH_ZEROS);
    for (int i = 0; i < out->zeros; i++) {
        l.zero = out->zero[i].zero;
        l.expert_zero = out->zero[i].expert_zero;
        o->ops->once(o->self, &l, *layer, &out->reduce_s[i], &out->gather_s[i]);
    }
}

mf_status mf_search_stages_of(mf_search_world *w, const mf_search_node *n, const mf_layout *l,
                              const mf_param_count *layer, const mf_search_stages **out,
                              mf_err *e) {
    size_t bucket = bucket_of(n->dense, n->expert, 0);
    const mf_search_once *found = find_once(w, bucket, n);
    if (!found) {
        mf_search_once made = {.expert = n->expert, .dense = n->dense};
        find_stages(w, l, layer, &made.stages);
        pthread_mutex_lock(&w->lock);
        found = find_once(w, bucket, n); /* another thread's is equal */
        mf_search_once *kept = found ? NULL : mf_pool_take(&w->pool, sizeof *kept);
        if (kept) {
            *kept = made;
            kept->next = atomic_load_explicit(&w->once[bucket], memory_order_relaxed);
            atomic_store_explicit(&w->once[bucket], kept, memory_order_release);
            found = kept;
        }
        pthread_mutex_unlock(&w->lock);
        if (!found) {
            (void)mf_err_set(e, MF_NOMEM, "out of memory");
            return MF_NOMEM;
        }
    }
    *out = &found->stages;
    return MF_OK;
}

/* --- once a step, at ZeRO levels -------------------------------------------------------------- */

static const mf_search_levels *find_levels(const mf_search_world *w, size_t bucket,
                                           const mf_search_node *n, const mf_layout *l) {
    const mf_search_levels *v = atomic_load_explicit(&w->levels[bucket], memory_order_acquire);
    while (v && !(v->expert == n->expert && v->dense == n->dense && v->zero == l->zero &&
                  v->expert_zero == l->expert_zero)) {
        v = v->next;
    }
    return v;
}

static void find_own(const mf_search_world *w, const mf_layout *l, const mf_layer_times *r,
                     mf_search_own *out) {
    const mf_evaluator *o = w->evaluator;
    out->tail = o->ops->tail(o->self, l, r->all_params);
    out->lost = mf_uses(o->without, MF_MECHANISM_OVERLAP_LOSS)
                    ? o->ops->beside(o->self, l, r->layer_params)
                    : 0.0;
    for (int i = 0; i < r->others; i++) {
        const mf_param_count params = r->other[i].params;
        o->ops->once(o->self, l, params, &out->reduce_s[i], &out->gather_s[i]);
        out->lost = mf_smaller(out->lost, o->ops->beside(o->self, l, params));
    }
}

mf_status mf_search_own_of(mf_search_world *w, const mf_search_node *n, const mf_layout *l,
                           const mf_layer_times *r, const mf_search_own **out, mf_err *e) {
    size_t bucket = bucket_of(n->dense, n->expert, 1 + l->zero * 4 + l->expert_zero);
    const mf_search_levels *found = find_levels(w, bucket, n, l);
    if (!found) {
        mf_search_levels made = {.expert = n->expert, .dense = n->dense};
        made.zero = l->zero;
        made.expert_zero = l->expert_zero;
        find_own(w, l, r, &made.own);
        pthread_mutex_lock(&w->lock);
        found = find_levels(w, bucket, n, l); /* another thread's is equal */
        mf_search_levels *kept = found ? NULL : mf_pool_take(&w->pool, sizeof *kept);
        if (kept) {
            *kept = made;
            kept->next = atomic_load_explicit(&w->levels[bucket], memory_order_relaxed);
            atomic_store_explicit(&w->levels[bucket], kept, memory_order_release);
            found = kept;
        }
        pthread_mutex_unlock(&w->lock);
        if (!found) {
            (void)mf_err_set(e, MF_NOMEM, "out of memory");
            return MF_NOMEM;
        }
    }
    *out = &found->own;
    return MF_OK;
}

/* --- orders ----------------------------------------------------------------------------------- */

static mf_search_orders *find_orders(const mf_search_world *w, size_t bucket, const mf_layout *l) {
    mf_search_orders *o = atomic_load_explicit(&w->orders[bucket], memory_order_acquire);
    while (o && !(o->pp == l->pp && o->micro_batches == l->micro_batches)) {
        o = o->next;
    }
    return o;
}

static mf_search_orders *list_orders(const mf_search_world *w, const mf_layout *l) {
    mf_order_point order[MF_SEARCH_ORDERS];
    int64_t all = mf_space_orders(&w->space, l->pp, l->micro_batches, order, MF_SEARCH_ORDERS);
    size_t count = (size_t)(all < MF_SEARCH_ORDERS ? all : MF_SEARCH_ORDERS);
    mf_search_orders *made = malloc(sizeof *made + count * sizeof made->order[0]);
    if (made) {
        made->pp = l->pp;
        made->micro_batches = l->micro_batches;
        made->count = (int)count;
        for (size_t i = 0; i < count; i++) {
            made->order[i].point = order[i];
            atomic_init(&made->order[i].summary, NULL);
        }
    }
    return made;
}

mf_status mf_search_orders_of(mf_search_world *w, const mf_layout *l, mf_search_listed **out,
                              int *count, mf_err *e) {
    size_t bucket = bucket_of(l->pp, l->micro_batches, 0);
    mf_search_orders *found = find_orders(w, bucket, l);
    if (!found) {
        mf_search_orders *made = list_orders(w, l);
        if (!made) {
            (void)mf_err_set(e, MF_NOMEM, "out of memory");
            return MF_NOMEM;
        }
        pthread_mutex_lock(&w->lock);
        found = find_orders(w, bucket, l); /* another thread's is equal */
        if (!found) {
            made->next = atomic_load_explicit(&w->orders[bucket], memory_order_relaxed);
            atomic_store_explicit(&w->orders[bucket], made, memory_order_release);
            found = made;
            made = NULL;
        }
        pthread_mutex_unlock(&w->lock);
        free(made);
    }
    *out = found->order;
    *count = found->count;
    return MF_OK;
}
