/* shared_figures.c - figures that many layouts share, in tables by what they depend on. Whoever
 * asks first finds them; they do not change afterwards. */
#include "planner/search/search.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* What a figure is, and what it depends on. */
typedef enum figure_kind { RATES, STAGES, OWN, ORDERS, SUMMARY } figure_kind;
typedef struct figure_key {
    int64_t kind, a, b, c;
} figure_key;

struct mf_search_figure {
    figure_key key;
    mf_search_figure *next;
    void *it;
};

/* As rates are found, with room for all that there may be. */
typedef struct found_rates {
    mf_rates rates;
    mf_rough_hull hull[2];
    mf_rough_ways ways;
} found_rates;

typedef struct orders {
    int count;
    mf_search_listed order[];
} orders;

/* --- the table -------------------------------------------------------------------------------- */

static size_t bucket_of(const figure_key *key) {
    uint64_t h = (uint64_t)(key->a * 8 + key->kind) * UINT64_C(0x9e3779b97f4a7c15);
    h = (h ^ (h >> 32) ^ (uint64_t)key->b) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ (h >> 32) ^ (uint64_t)key->c) * UINT64_C(0x94d049bb133111eb);
    return (size_t)(h >> 40) % MF_SEARCH_FIGURE_BUCKETS;
}

static void *find(const mf_search_world *w, const figure_key *key) {
    const mf_search_figure *f =
        atomic_load_explicit(&w->figures[bucket_of(key)], memory_order_acquire);
    while (f && memcmp(&f->key, key, sizeof *key) != 0) {
        f = f->next;
    }
    return f ? f->it : NULL;
}

/* Puts a figure that was found into the pool; NULL: out of memory. */
typedef void *copy_fn(mf_pool *pool, const void *made, size_t size);

static void *copy_plain(mf_pool *pool, const void *made, size_t size) {
    void *to = mf_pool_take(pool, size);
    return to ? memcpy(to, made, size) : NULL;
}

/* Keeps a figure, unless another thread did, whose one is equal. *kept: whether it was this one. */
static mf_status keep(mf_search_world *w, const figure_key *key, copy_fn *copy, const void *made,
                      size_t size, void **out, bool *kept, mf_err *e) {
    pthread_mutex_lock(&w->lock);
    *out = find(w, key);
    *kept = false;
    if (!*out) {
        mf_search_figure *f = mf_pool_take(&w->pool, sizeof *f);
        *out = f ? copy(&w->pool, made, size) : NULL;
        *kept = *out != NULL;
        if (*kept) {
            _Atomic(mf_search_figure *) *head = &w->figures[bucket_of(key)];
            *f = (mf_search_figure){*key, atomic_load_explicit(head, memory_order_relaxed), *out};
            atomic_store_explicit(head, f, memory_order_release);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return *out ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
}

void mf_search_figures_clear(mf_search_world *w) {
    for (int b = 0; b < MF_SEARCH_FIGURE_BUCKETS; b++) {
        for (const mf_search_figure *f = w->figures[b]; f; f = f->next) {
            if (f->key.kind == SUMMARY) {
                mf_order_summary own = *(const mf_order_summary *)f->it;
                mf_order_summary_clear(&own);
            }
        }
        w->figures[b] = NULL;
    }
    mf_pool_clear(&w->pool);
}

/* --- rates ------------------------------------------------------------------------------------ */

static mf_status ask_rates(const mf_search_world *w, const mf_layout *l, bool choices,
                           bool from_end, found_rates *made, mf_err *e) {
    mf_rates *out = &made->rates;
    bool gathers = l->zero >= 2 || l->expert_zero >= 2;
    mf_status status = gathers && !choices ? mf_rates_chains(w->quotes, l, out, e)
                                           : mf_rates_whole(w->quotes, l, out, e);
    if (status == MF_OK && choices) {
        status = mf_rates_choices(w->quotes, l, w->space.pinned, from_end, out, made->hull,
                                  &made->ways, e);
    }
    return status;
}

/* Two threads often come to the same sides at once, and then to the same blocks. They ask from both
 * ends, so that each finds there what the other one has asked for. */
static mf_status ask_from_ends(mf_search_world *w, const mf_search_node *n, const mf_layout *l,
                               bool choices, found_rates *made, mf_err *e) {
    const figure_key sides = {RATES, n->side, n->expert, 0};
    atomic_uint *askers = &w->askers[bucket_of(&sides) % MF_SEARCH_ASKERS];
    const bool from_end = atomic_fetch_add(askers, 1) % 2 == 1;
    mf_status status = ask_rates(w, l, choices, from_end, made, e);
    atomic_fetch_sub(askers, 1);
    return status;
}

/* With room for what is there: most of the room is for positions and choices that few models have.
 */
static void *copy_of_rates(mf_pool *pool, const void *made, size_t size) {
    const found_rates *from = made;
    const mf_rates *r = &from->rates;
    (void)size;
    const bool hulls = r->hull == from->hull, exact = r->ways == &from->ways; /* else none */
    const size_t rates = offsetof(mf_rates, other) + (size_t)r->others * sizeof r->other[0];
    const size_t ways =
        exact ? offsetof(mf_rough_ways, pass) + (size_t)from->ways.count * sizeof from->ways.pass[0]
              : 0;
    mf_rates *to = mf_pool_take(pool, rates);
    mf_rough_hull *hull = hulls ? mf_pool_take(pool, sizeof from->hull) : NULL;
    mf_rough_ways *way = exact ? mf_pool_take(pool, ways) : NULL;
    if (!to || (hulls && !hull) || (exact && !way)) {
        return NULL;
    }
    memcpy(to, r, rates);
    if (hull) {
        to->hull = memcpy(hull, from->hull, sizeof from->hull);
    }
    if (way) {
        to->ways = memcpy(way, &from->ways, ways);
    }
    return to;
}

/* They depend on the two sides, how passes are played, ZeRO levels that gather or reduce inside
 * blocks, and then on the pipeline degree, which sets their groups. */
mf_status mf_search_rates_of(mf_search_world *w, const mf_search_node *n, const mf_layout *l,
                             bool choices, const mf_rates **out, mf_err *e) {
    bool grouped = l->zero >= 2 || l->expert_zero >= 2 || l->aux_scope == MF_AUX_GLOBAL, kept;
    const int64_t zero = l->zero >= 2 ? l->zero : 0,
                  ezero = l->expert_zero >= 2 ? l->expert_zero : 0;
    const int64_t how = (int64_t)mf_floor_mode_of(l->schedule) + 4 * (int64_t)choices;
    const figure_key key = {RATES, n->side, n->expert,
                            (grouped ? n->dense + 1 : 0) * 256 + how * 16 + zero * 4 + ezero};
    void *found = find(w, &key);
    mf_status status = MF_OK;
    if (!found) {
        found_rates made;
        status = ask_from_ends(w, n, l, choices, &made, e);
        status = status == MF_OK
                     ? keep(w, &key, copy_of_rates, &made, sizeof made, &found, &kept, e)
                     : status;
    }
    *out = found;
    return status;
}

/* --- once a step ------------------------------------------------------------------------------ */

mf_rough_fixed mf_search_fixed(const mf_search_world *w, const mf_layout *l) {
    const mf_oracle *o = w->oracle;
    mf_param_count none = {0, 0, 0};
    mf_rough_fixed f = {.tail = o->ops->tail(o->self, l, none),
                        .fixed_B = o->ops->fixed_B(o->self, l),
                        .usable_B = o->ops->usable_B(o->self, l)};
    o->ops->send(o->self, l, &f.send_s, &f.hold_s);
    return f;
}

static void find_stages(const mf_search_world *w, const mf_layout *from,
                        const mf_param_count *layer, mf_search_stages *out) {
    const mf_oracle *o = w->oracle;
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
    const figure_key key = {STAGES, n->dense, n->expert, 0};
    void *found = find(w, &key);
    mf_status status = MF_OK;
    bool kept;
    if (!found) {
        mf_search_stages made;
        memset(&made, 0, sizeof made);
        find_stages(w, l, layer, &made);
        status = keep(w, &key, copy_plain, &made, sizeof made, &found, &kept, e);
    }
    *out = found;
    return status;
}

/* --- once a step, at ZeRO levels -------------------------------------------------------------- */

static void find_own(const mf_search_world *w, const mf_layout *l, const mf_rates *r,
                     mf_search_own *out) {
    const mf_oracle *o = w->oracle;
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
                           const mf_rates *r, const mf_search_own **out, mf_err *e) {
    const figure_key key = {OWN, n->dense, n->expert, l->zero * 4 + l->expert_zero};
    void *found = find(w, &key);
    mf_status status = MF_OK;
    bool kept;
    if (!found) {
        mf_search_own made;
        memset(&made, 0, sizeof made);
        find_own(w, l, r, &made);
        status = keep(w, &key, copy_plain, &made, sizeof made, &found, &kept, e);
    }
    *out = found;
    return status;
}

/* --- orders ----------------------------------------------------------------------------------- */

mf_status mf_search_orders_of(mf_search_world *w, const mf_layout *l, mf_search_listed **out,
                              int *count, mf_err *e) {
    const figure_key key = {ORDERS, l->pp, l->micro_batches, 0};
    void *found = find(w, &key);
    mf_status status = MF_OK;
    bool kept;
    if (!found) {
        mf_order_point point[MF_SEARCH_ORDERS];
        int64_t all = mf_space_orders(&w->space, l->pp, l->micro_batches, point, MF_SEARCH_ORDERS);
        const int n = (int)(all < MF_SEARCH_ORDERS ? all : MF_SEARCH_ORDERS);
        const size_t size = sizeof(orders) + (size_t)n * sizeof(mf_search_listed);
        orders *made = calloc(1, size);
        if (!made) {
            return mf_err_set(e, MF_NOMEM, "out of memory");
        }
        made->count = n;
        for (int i = 0; i < n; i++) {
            made->order[i].point = point[i];
        }
        status = keep(w, &key, copy_plain, made, size, &found, &kept, e);
        free(made);
    }
    orders *list = found;
    *out = list ? list->order : NULL;
    *count = list ? list->count : 0;
    return status;
}

/* What holds for all larger numbers of micro-batches is kept under 0. */
static const mf_order_summary *find_summary(const mf_search_world *w, const mf_layout *l) {
    figure_key key = {SUMMARY, l->pp * 8 + (int64_t)l->schedule, l->vpp, l->micro_batches};
    const mf_order_summary *found = find(w, &key);
    if (!found && l->micro_batches > 8 * l->pp) {
        key.c = 0;
        found = find(w, &key);
    }
    return found;
}

mf_status mf_search_order(mf_search_world *w, const mf_layout *l, const mf_order_summary **out,
                          mf_err *e) {
    *out = find_summary(w, l);
    if (*out) {
        return MF_OK;
    }
    mf_order_summary made;
    bool saturated = false, kept;
    mf_status status = mf_order_summarise(l, w->oracle->ops->schedule, w->oracle->self, w->layers,
                                          w->others, &made, &saturated, e);
    if (status != MF_OK) {
        return status;
    }
    const figure_key key = {SUMMARY, l->pp * 8 + (int64_t)l->schedule, l->vpp,
                            saturated ? 0 : l->micro_batches};
    void *found;
    status = keep(w, &key, copy_plain, &made, sizeof made, &found, &kept, e);
    if (!kept) {
        mf_order_summary_clear(&made);
    }
    *out = found;
    return status;
}
