/* shared_figures.c - figures that many layouts share, in one table by what they depend on. Whoever
 * asks first finds them; they do not change afterwards. */
#include "planner/search/search.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* RATES   of two sides: by how passes are played, by ZeRO levels that gather or reduce inside
 *         blocks, and then by the pipeline degree, which sets their groups
 * STAGES  of a pipeline degree with both sides: what its layouts take once a step
 * LEVELS  the same at one pair of ZeRO levels
 * ORDERS  of a pipeline degree and a number of micro-batches
 * SUMMARIES of one order */
typedef enum figures_kind { RATES, STAGES, LEVELS, ORDERS, SUMMARIES } figures_kind;

/* Compared byte by byte: it has no gaps. */
typedef struct figures_key {
    int64_t by[3];
    int32_t kind; /* figures_kind */
    uint8_t way[4];
} figures_key;

/* In front of what is kept. */
struct mf_search_figures {
    mf_search_figures *next;
    figures_key key;
};

typedef struct kept_rates {
    mf_search_figures head;
    mf_layer_times rates; /* last: kept up to the positions that it has */
} kept_rates;

/* As they are found, as large as they may be. */
typedef struct found_rates {
    mf_layer_times rates;
    mf_family_bound_hull hull[2];
    mf_family_bound_ways ways;
} found_rates;

typedef struct kept_stages {
    mf_search_figures head;
    mf_search_stages stages;
} kept_stages;

typedef struct kept_own {
    mf_search_figures head;
    mf_search_own own;
} kept_own;

typedef struct kept_summary {
    mf_search_figures head;
    mf_order_summary order;
} kept_summary;

typedef struct kept_orders {
    mf_search_figures head;
    int count;
    mf_search_listed order[];
} kept_orders;

static size_t bucket_of(const figures_key *key) {
    uint64_t h = (uint64_t)key->kind;
    for (int i = 0; i < 3; i++) {
        h = (h ^ (h >> 32) ^ (uint64_t)key->by[i]) * UINT64_C(0x9e3779b97f4a7c15);
    }
    for (int i = 0; i < 4; i++) {
        h = (h ^ (h >> 29) ^ key->way[i]) * UINT64_C(0xbf58476d1ce4e5b9);
    }
    return (size_t)(h >> 40) % MF_SEARCH_FIGURES;
}

static void *find(const mf_search_context *w, const figures_key *key) {
    if (key->kind < ORDERS && !mf_uses(w->evaluator->without, MF_MECHANISM_SHARED_FIGURES)) {
        return NULL;
    }
    mf_search_figures *x = atomic_load_explicit(&w->figures[bucket_of(key)], memory_order_acquire);
    while (x && memcmp(&x->key, key, sizeof *key) != 0) {
        x = x->next;
    }
    return x;
}

/* With the lock held: others find it from now on. */
static void publish(mf_search_context *w, const figures_key *key, mf_search_figures *x) {
    _Atomic(mf_search_figures *) *head = &w->figures[bucket_of(key)];
    x->key = *key;
    x->next = atomic_load_explicit(head, memory_order_relaxed);
    atomic_store_explicit(head, x, memory_order_release);
}

/* Keeps what was made, unless another thread has kept the same meanwhile, which is equal. NULL: out
 * of memory, and e says so. */
static const void *keep(mf_search_context *w, const figures_key *key, const void *made, size_t size,
                        mf_err *e) {
    pthread_mutex_lock(&w->lock);
    void *kept = find(w, key);
    if (!kept) {
        kept = mf_pool_take(&w->pool, size);
        if (kept) {
            memcpy(kept, made, size);
            publish(w, key, kept);
        }
    }
    pthread_mutex_unlock(&w->lock);
    if (!kept) {
        (void)mf_err_set(e, MF_NOMEM, "out of memory");
    }
    return kept;
}

void mf_search_figures_clear(mf_search_context *w) {
    for (int b = 0; b < MF_SEARCH_FIGURES; b++) {
        for (mf_search_figures *x = w->figures[b]; x; x = x->next) {
            if (x->key.kind == SUMMARIES) {
                mf_order_summary_clear(&((kept_summary *)x)->order);
            }
        }
        w->figures[b] = NULL;
    }
    mf_pool_clear(&w->pool);
}

/* --- rates ------------------------------------------------------------------------------------ */

static mf_status ask_rates(const mf_search_context *w, const mf_layout *l, mf_search_hulls hulls,
                           bool from_end, found_rates *made, mf_err *e) {
    mf_layer_times *out = &made->rates;
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
static mf_status ask_from_ends(mf_search_context *w, const figures_key *key, const mf_layout *l,
                               mf_search_hulls hulls, found_rates *made, mf_err *e) {
    const figures_key sides = {.by = {key->by[0], key->by[1]}};
    atomic_uint *askers = &w->askers[bucket_of(&sides) % MF_SEARCH_ASKERS];
    const bool from_end = atomic_fetch_add(askers, 1) % 2 == 1;
    mf_status status = ask_rates(w, l, hulls, from_end, made, e);
    atomic_fetch_sub(askers, 1);
    return status;
}

/* Into the pool, as large as they are: most of what they may hold is positions and choices that
 * few models have. The lock is held. NULL: out of memory. */
static kept_rates *copy_of_rates(mf_search_context *w, const found_rates *from) {
    const mf_layer_times *r = &from->rates;
    const size_t others = (size_t)r->others * sizeof r->other[0];
    const size_t rates = offsetof(mf_layer_times, other) + others;
    const bool hulls = r->hull == from->hull, exact = r->ways == &from->ways; /* else none */
    const size_t ways = exact ? offsetof(mf_family_bound_ways, pass) +
                                    (size_t)from->ways.count * sizeof from->ways.pass[0]
                              : 0;
    kept_rates *to = mf_pool_take(&w->pool, offsetof(kept_rates, rates) + rates);
    mf_family_bound_hull *hull = hulls ? mf_pool_take(&w->pool, sizeof from->hull) : NULL;
    mf_family_bound_ways *way = exact ? mf_pool_take(&w->pool, ways) : NULL;
    if (!to || (hulls && !hull) || (exact && !way)) {
        return NULL;
    }
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

mf_status mf_search_rates_of(mf_search_context *w, const mf_search_node *n, const mf_layout *l,
                             mf_search_hulls hulls, const mf_layer_times **out, mf_err *e) {
    bool gathers = l->zero >= 2 || l->expert_zero >= 2;
    bool grouped = gathers || l->aux_scope == MF_AUX_GLOBAL;
    const figures_key key = {.by = {n->side, n->expert, grouped ? n->dense : -1},
                             .kind = RATES,
                             .way = {(uint8_t)mf_floor_mode_of(l->schedule),
                                     l->zero >= 2 ? l->zero : 0,
                                     l->expert_zero >= 2 ? l->expert_zero : 0, (uint8_t)hulls}};
    kept_rates *kept = find(w, &key);
    if (!kept) {
        found_rates made;
        mf_status status = ask_from_ends(w, &key, l, hulls, &made, e);
        if (status != MF_OK) {
            return status;
        }
        pthread_mutex_lock(&w->lock);
        kept = find(w, &key); /* another thread's are equal */
        if (!kept) {
            kept = copy_of_rates(w, &made);
            if (kept) {
                publish(w, &key, &kept->head);
            }
        }
        pthread_mutex_unlock(&w->lock);
    }
    if (!kept) {
        (void)mf_err_set(e, MF_NOMEM, "out of memory");
        return MF_NOMEM;
    }
    *out = &kept->rates;
    return MF_OK;
}

/* --- once a step ------------------------------------------------------------------------------ */

mf_family_bound_fixed mf_search_fixed(const mf_search_context *w, const mf_layout *l) {
    const mf_evaluator *o = w->evaluator;
    mf_param_count none = {0, 0, 0};
    mf_family_bound_fixed f = {.tail = o->ops->tail(o->self, l, none),
                               .fixed_B = o->ops->fixed_B(o->self, l),
                               .usable_B = o->ops->usable_B(o->self, l)};
    o->ops->send(o->self, l, &f.send_s, &f.hold_s);
    return f;
}

static void find_stages(const mf_search_context *w, const mf_layout *from,
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

mf_status mf_search_stages_of(mf_search_context *w, const mf_search_node *n, const mf_layout *l,
                              const mf_param_count *layer, const mf_search_stages **out,
                              mf_err *e) {
    const figures_key key = {.by = {n->dense, n->expert}, .kind = STAGES};
    const kept_stages *kept = find(w, &key);
    if (!kept) {
        kept_stages made = {.stages.zeros = 0};
        find_stages(w, l, layer, &made.stages);
        kept = keep(w, &key, &made, sizeof made, e);
    }
    *out = kept ? &kept->stages : NULL;
    return kept ? MF_OK : MF_NOMEM;
}

/* --- once a step, at ZeRO levels -------------------------------------------------------------- */

static void find_own(const mf_search_context *w, const mf_layout *l, const mf_layer_times *r,
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

mf_status mf_search_own_of(mf_search_context *w, const mf_search_node *n, const mf_layout *l,
                           const mf_layer_times *r, const mf_search_own **out, mf_err *e) {
    const figures_key key = {
        .by = {n->dense, n->expert}, .kind = LEVELS, .way = {l->zero, l->expert_zero}};
    const kept_own *kept = find(w, &key);
    if (!kept) {
        kept_own made = {.own.lost = 0.0};
        find_own(w, l, r, &made.own);
        kept = keep(w, &key, &made, sizeof made, e);
    }
    *out = kept ? &kept->own : NULL;
    return kept ? MF_OK : MF_NOMEM;
}

/* --- orders ----------------------------------------------------------------------------------- */

/* The lock is held. NULL: out of memory. */
static kept_orders *list_orders(mf_search_context *w, const mf_layout *l) {
    mf_order_point order[MF_SEARCH_ORDERS];
    int64_t all = mf_space_orders(&w->space, l->pp, l->micro_batches, order, MF_SEARCH_ORDERS);
    size_t count = (size_t)(all < MF_SEARCH_ORDERS ? all : MF_SEARCH_ORDERS);
    kept_orders *made = mf_pool_take(&w->pool, sizeof *made + count * sizeof made->order[0]);
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
    const figures_key key = {.by = {l->pp, l->micro_batches}, .kind = ORDERS};
    kept_orders *kept = find(w, &key);
    if (!kept) {
        pthread_mutex_lock(&w->lock);
        kept = find(w, &key); /* another thread's are equal */
        if (!kept) {
            kept = list_orders(w, l);
            if (kept) {
                publish(w, &key, &kept->head);
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

/* Of an order with many micro-batches (0: so many that more of them change nothing). */
static figures_key summary_key(const mf_layout *l, int64_t micro_batches) {
    return (figures_key){
        .by = {l->pp, l->vpp, micro_batches}, .kind = SUMMARIES, .way = {(uint8_t)l->schedule}};
}

mf_status mf_search_order(mf_search_context *w, const mf_layout *l, const mf_order_summary **out,
                          mf_err *e) {
    figures_key key = summary_key(l, l->micro_batches), all = summary_key(l, 0);
    const kept_summary *kept = find(w, &key);
    if (!kept && l->micro_batches > 8 * l->pp) {
        kept = find(w, &all);
    }
    if (!kept) {
        kept_summary made = {.order.layers = 0};
        bool saturated = false;
        mf_status status = mf_order_summarise(l, w->evaluator->ops->schedule, w->evaluator->self,
                                              w->layers, w->others, &made.order, &saturated, e);
        if (status != MF_OK) {
            return status;
        }
        kept = keep(w, saturated ? &all : &key, &made, sizeof made, e);
        if (!kept || kept->order.flight != made.order.flight) { /* another thread's is equal */
            mf_order_summary_clear(&made.order);
        }
    }
    *out = kept ? &kept->order : NULL;
    return kept ? MF_OK : MF_NOMEM;
}
