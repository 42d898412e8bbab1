/* search_tree.c - families of layouts: how they split, and their rough bounds. */
#include "planner/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- the world -------------------------------------------------------------------------------- */

static bool same_side(const mf_dense_point *a, const mf_dense_point *b) {
    return a->precision == b->precision && a->cp_type == b->cp_type && a->tp == b->tp &&
           a->cp == b->cp && a->mbs == b->mbs;
}

static int by_side(const void *x, const void *y) {
    const mf_dense_point *a = x, *b = y;
    const int32_t keys[][2] = {{a->precision, b->precision}, {a->tp, b->tp},   {a->cp, b->cp},
                               {a->cp_type, b->cp_type},     {a->mbs, b->mbs}, {a->pp, b->pp}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (keys[i][0] != keys[i][1]) {
            return keys[i][0] < keys[i][1] ? -1 : 1;
        }
    }
    return 0;
}

static int by_expert(const void *x, const void *y) {
    const mf_expert_point *a = x, *b = y;
    const int32_t keys[][2] = {
        {a->ep, b->ep}, {a->etp, b->etp}, {a->dispatcher, b->dispatcher}, {a->pp, b->pp}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (keys[i][0] != keys[i][1]) {
            return keys[i][0] < keys[i][1] ? -1 : 1;
        }
    }
    return 0;
}

/* Every expert side of any pipeline degree, once. */
static mf_status find_experts(mf_search_world *w, mf_err *e) {
    int64_t room = 0, n = 0;
    for (int64_t i = 0; i < w->denses; i++) {
        bool seen = false;
        for (int64_t k = 0; k < i && !seen; k++) {
            seen = w->dense[k].pp == w->dense[i].pp;
        }
        if (seen) {
            continue;
        }
        int64_t count = mf_space_experts(&w->space, w->dense[i].pp, NULL, 0);
        mf_expert_point *grown = realloc(w->expert, (size_t)(room + count + 1) * sizeof *grown);
        if (!grown) {
            return mf_err_set(e, MF_NOMEM, "out of memory");
        }
        w->expert = grown;
        mf_space_experts(&w->space, w->dense[i].pp, grown + room, count);
        room += count;
    }
    if (room == 0) {
        return MF_OK;
    }
    qsort(w->expert, (size_t)room, sizeof *w->expert, by_expert);
    for (int64_t i = 0; i < room; i++) {
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

static mf_status find_sides(mf_search_world *w, mf_err *e) {
    w->denses = mf_space_dense(&w->space, NULL, 0);
    w->dense = calloc((size_t)w->denses + 1, sizeof *w->dense);
    w->side = calloc((size_t)w->denses + 1, sizeof *w->side);
    if (!w->dense || !w->side) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_space_dense(&w->space, w->dense, w->denses);
    qsort(w->dense, (size_t)w->denses, sizeof *w->dense, by_side);
    for (int64_t i = 0; i < w->denses; i++) {
        if (i == 0 || !same_side(&w->dense[i], &w->dense[i - 1])) {
            w->side[w->sides++] = (mf_search_side){(int32_t)i, 0};
        }
        w->side[w->sides - 1].count++;
    }
    return MF_OK;
}

mf_status mf_search_world_init(mf_search_world *w, const mf_oracle *o, const mf_space *s,
                               mf_err *e) {
    memset(w, 0, sizeof *w);
    w->space = *s;
    w->oracle = o;
    w->layers = mf_rough_layers(s->model);
    w->others = mf_model_positions(s->model) - w->layers;
    pthread_mutex_init(&w->lock, NULL);
    mf_status status = mf_quotes_create(o, &w->quotes, e);
    if (status == MF_OK) {
        status = find_sides(w, e);
    }
    return status == MF_OK ? find_experts(w, e) : status;
}

void mf_search_world_clear(mf_search_world *w) {
    for (int b = 0; b < MF_SEARCH_BUCKETS; b++) {
        for (mf_search_summary *s = w->summaries[b], *next; s; s = next) {
            next = s->next;
            mf_order_summary_clear(&s->order);
            free(s);
        }
        for (mf_search_chains *c = w->chains[b], *next; c; c = next) {
            next = c->next;
            mf_chains_clear(&c->chains);
            free(c);
        }
    }
    mf_quotes_destroy(w->quotes);
    free(w->dense);
    free(w->expert);
    free(w->side);
    pthread_mutex_destroy(&w->lock);
    memset(w, 0, sizeof *w);
}

/* --- orders ----------------------------------------------------------------------------------- */

static size_t order_bucket(const mf_layout *l) {
    uint64_t h = (uint64_t)l->pp * 131 + (uint64_t)l->vpp * 17 + (uint64_t)l->schedule;
    return (size_t)((h * UINT64_C(0x9e3779b97f4a7c15)) >> 40) % MF_SEARCH_BUCKETS;
}

static mf_search_chains *find_chains(const mf_search_world *w, const mf_layout *l) {
    for (mf_search_chains *c = w->chains[order_bucket(l)]; c; c = c->next) {
        if (c->schedule == (int)l->schedule && c->pp == l->pp && c->vpp == l->vpp &&
            c->micro_batches == l->micro_batches) {
            return c;
        }
    }
    return NULL;
}

const mf_chains *mf_search_chains_of(const mf_search_world *w, const mf_layout *l) {
    const mf_search_chains *c = find_chains(w, l);
    return c ? &c->chains : NULL;
}

void mf_search_keep_chains(mf_search_world *w, mf_search_chains *chains) {
    mf_layout l = {.pp = chains->pp,
                   .vpp = chains->vpp,
                   .micro_batches = chains->micro_batches,
                   .schedule = (mf_schedule_kind)chains->schedule};
    mf_search_chains *old = find_chains(w, &l);
    if (old) {
        mf_chains_clear(&old->chains);
        old->chains = chains->chains;
        free(chains);
    } else {
        mf_search_chains **bucket = &w->chains[order_bucket(&l)];
        chains->next = *bucket;
        *bucket = chains;
    }
}

static const mf_order_summary *find_order(const mf_search_world *w, const mf_layout *l) {
    for (const mf_search_summary *s = w->summaries[order_bucket(l)]; s; s = s->next) {
        if (s->schedule == (int)l->schedule && s->pp == l->pp && s->vpp == l->vpp &&
            (s->micro_batches == l->micro_batches ||
             (s->micro_batches == 0 && l->micro_batches > 8 * l->pp))) {
            return &s->order;
        }
    }
    return NULL;
}

mf_status mf_search_order(mf_search_world *w, const mf_layout *l, const mf_order_summary **out,
                          mf_err *e) {
    pthread_mutex_lock(&w->lock);
    *out = find_order(w, l);
    pthread_mutex_unlock(&w->lock);
    if (*out) {
        return MF_OK;
    }
    mf_search_summary *s = calloc(1, sizeof *s);
    if (!s) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    bool saturated = false;
    mf_status status = mf_order_summarise(l, w->oracle->ops->schedule, w->oracle->self, w->layers,
                                          w->others, &s->order, &saturated, e);
    if (status != MF_OK) {
        free(s);
        return status;
    }
    s->pp = l->pp;
    s->vpp = l->vpp;
    s->schedule = (int)l->schedule;
    s->micro_batches = saturated ? 0 : l->micro_batches;
    pthread_mutex_lock(&w->lock);
    const mf_order_summary *other = find_order(w, l); /* another thread's is equal */
    if (!other) {
        mf_search_summary **bucket = &w->summaries[order_bucket(l)];
        s->next = *bucket;
        *bucket = s;
        other = &s->order;
        s = NULL;
    }
    pthread_mutex_unlock(&w->lock);
    if (s) {
        mf_order_summary_clear(&s->order);
        free(s);
    }
    *out = other;
    return MF_OK;
}

/* --- families --------------------------------------------------------------------------------- */

bool mf_search_add(mf_search_outcome *out, const mf_search_node *n) {
    if (out->children == out->room) {
        int64_t room = out->room ? 2 * out->room : 16;
        mf_search_node *grown = realloc(out->child, (size_t)room * sizeof *grown);
        if (!grown) {
            out->status = mf_err_set(&out->err, MF_NOMEM, "out of memory");
            return false;
        }
        out->child = grown;
        out->room = room;
    }
    out->child[out->children++] = *n;
    return true;
}

#define MAX_ORDERS 1100

/* The layout as far as the node fixes it; the rest at its smallest, so that it is valid. */
mf_layout mf_search_layout(const mf_search_world *w, const mf_search_node *n) {
    const mf_search_side *side = &w->side[n->side];
    bool staged = n->level >= MF_LEVEL_STAGES;
    const mf_dense_point *d = &w->dense[staged ? n->dense : side->first];
    mf_layout l = w->space.base;
    l.precision = (mf_precision)d->precision;
    l.tp = d->tp;
    l.cp = d->cp;
    l.pp = d->pp;
    l.mbs = d->mbs;
    l.dp = d->dp;
    l.micro_batches = d->micro_batches;
    l.cp_type = (mf_cp_type)d->cp_type;
    l.ep = l.etp = 1;
    l.dispatcher = MF_DISPATCH_FUSED;
    l.zero = l.expert_zero = 0;
    l.vpp = 1;
    l.schedule = MF_SCHED_GPIPE;
    if (n->level >= MF_LEVEL_POINT) {
        const mf_expert_point *x = &w->expert[n->expert];
        l.ep = x->ep;
        l.etp = x->etp;
        l.dispatcher = (mf_dispatcher)x->dispatcher;
    }
    l.edp = l.gpus / (l.pp * l.ep * l.etp);
    if (n->level >= MF_LEVEL_ORDER) {
        mf_order_point orders[MAX_ORDERS];
        mf_space_orders(&w->space, l.pp, l.micro_batches, orders, MAX_ORDERS);
        l.schedule = (mf_schedule_kind)orders[n->order].schedule;
        l.vpp = orders[n->order].vpp;
    }
    if (n->level >= MF_LEVEL_LAYOUT) {
        mf_zero_point zeros[16];
        mf_space_zeros(&w->space, l.dp * l.cp, l.edp, zeros, 16);
        l.zero = zeros[n->zero].zero;
        l.expert_zero = zeros[n->zero].expert_zero;
    }
    return l;
}

static bool expert_side_fits(const mf_search_world *w, const mf_expert_point *x, int64_t pp) {
    return w->space.base.gpus % (pp * x->ep) == 0 &&
           w->space.base.gpus % (pp * x->ep * x->etp) == 0;
}

int64_t mf_search_family(const mf_search_world *w, const mf_search_node *n) {
    if (n->level >= MF_LEVEL_LAYOUT) {
        return 1;
    }
    const mf_search_side *side = &w->side[n->side];
    bool staged = n->level >= MF_LEVEL_STAGES, pointed = n->level >= MF_LEVEL_POINT;
    int64_t count = 0;
    for (int32_t i = staged ? n->dense : side->first;
         i < (staged ? n->dense + 1 : side->first + side->count); i++) {
        const mf_dense_point *d = &w->dense[i];
        int64_t orders = n->level >= MF_LEVEL_ORDER
                             ? 1
                             : mf_space_orders(&w->space, d->pp, d->micro_batches, NULL, 0);
        for (int64_t k = pointed ? n->expert : 0; k < (pointed ? n->expert + 1 : w->experts); k++) {
            const mf_expert_point *x = &w->expert[k];
            if (expert_side_fits(w, x, d->pp)) {
                int64_t ranks = w->space.base.gpus / ((int64_t)d->pp * x->ep * x->etp);
                count += orders * mf_space_zeros(&w->space, d->dp * d->cp, ranks, NULL, 0);
            }
        }
    }
    return count;
}

/* Ways to play that the space allows. */
static unsigned modes_of(const mf_search_world *w) {
    if (w->space.pinned & MF_PIN(SCHEDULE)) {
        return 1u << mf_floor_mode_of(w->space.base.schedule);
    }
    return (1u << MF_FLOOR_MODES) - 1u;
}

static double rounds_of(const mf_layout *l) {
    return (double)l->gbs * (double)l->tp * (double)l->cp / ((double)l->mbs * (double)l->gpus);
}

/* Once a step, whatever the stages hold. */
static double step_s(const mf_search_world *w, const mf_layout *l) {
    mf_param_count none = {0, 0, 0};
    return w->oracle->ops->tail(w->oracle->self, l, none).fixed_s;
}

mf_status mf_search_start(mf_search_world *w, mf_search_outcome *out, mf_err *e) {
    for (int64_t i = 0; i < w->sides; i++) {
        mf_search_node n = {.level = MF_LEVEL_SIDE, .side = (int32_t)i};
        mf_layout l = mf_search_layout(w, &n);
        mf_rates r;
        mf_status status = mf_rates_dense(w->quotes, &l, &r, e);
        if (status != MF_OK) {
            return status;
        }
        n.key_s = mf_rough_work_s(&r, modes_of(w), rounds_of(&l), step_s(w, &l));
        if (!mf_search_add(out, &n)) {
            return MF_NOMEM;
        }
    }
    return MF_OK;
}

static void push(mf_search_outcome *out, mf_search_node *child, const mf_search_node *parent,
                 double bound_s, double best_s) {
    child->key_s = bound_s > parent->key_s ? bound_s : parent->key_s;
    if (child->key_s < best_s) {
        mf_search_add(out, child);
    }
}

static void split_side(mf_search_world *w, const mf_search_node *n, double best_s,
                       mf_search_outcome *out) {
    const mf_search_side *side = &w->side[n->side];
    for (int32_t k = 0; k < w->experts && out->status == MF_OK; k++) {
        bool fits = false;
        for (int32_t i = 0; i < side->count && !fits; i++) {
            fits = expert_side_fits(w, &w->expert[k], w->dense[side->first + i].pp);
        }
        if (!fits) {
            continue;
        }
        mf_search_node child = *n;
        child.level = MF_LEVEL_POINT;
        child.expert = k;
        mf_layout l = mf_search_layout(w, &child);
        mf_rates r;
        out->status = mf_rates_halves(w->quotes, &l, &r, &out->err);
        if (out->status == MF_OK) {
            push(out, &child, n, mf_rough_work_s(&r, modes_of(w), rounds_of(&l), step_s(w, &l)),
                 best_s);
        }
        out->work += 20;
    }
}

static void split_point(mf_search_world *w, const mf_search_node *n, double best_s,
                        mf_search_outcome *out) {
    const mf_search_side *side = &w->side[n->side];
    mf_layout l = mf_search_layout(w, n);
    mf_rates r;
    out->status = mf_rates_halves(w->quotes, &l, &r, &out->err);
    for (int32_t i = side->first; i < side->first + side->count && out->status == MF_OK; i++) {
        const mf_dense_point *d = &w->dense[i];
        if (!expert_side_fits(w, &w->expert[n->expert], d->pp)) {
            continue;
        }
        mf_search_node child = *n;
        child.level = MF_LEVEL_STAGES;
        child.dense = i;
        push(out, &child, n,
             mf_rough_stages_s(&r, modes_of(w), d->pp, d->micro_batches, step_s(w, &l)), best_s);
        out->work += 1;
    }
}

static mf_rough_fixed fixed_of(const mf_search_world *w, const mf_layout *l) {
    const mf_oracle *o = w->oracle;
    mf_param_count none = {0, 0, 0};
    mf_rough_fixed f = {.tail = o->ops->tail(o->self, l, none),
                        .fixed_B = o->ops->fixed_B(o->self, l),
                        .usable_B = o->ops->usable_B(o->self, l)};
    o->ops->send(o->self, l, &f.send_s, &f.hold_s);
    return f;
}

/* By stages, and by the chains that were found for the order, if any. */
static double order_bound_s(const mf_search_world *w, const mf_rates *r, const mf_layout *l,
                            const mf_order_summary *order, const mf_rough_fixed *fixed) {
    const mf_chains *chains = mf_search_chains_of(w, l);
    double bound_s = mf_rough_layout_s(r, l, order, fixed);
    return chains ? mf_larger(bound_s, mf_rough_mean_s(r, l, order, fixed, chains)) : bound_s;
}

/* Orders are bounded with the ZeRO levels that shard most, at no price. Levels ascend, so that the
 * last pair is the one. */
static void split_stages(mf_search_world *w, const mf_search_node *n, double best_s,
                         mf_search_outcome *out) {
    mf_order_point orders[MAX_ORDERS];
    mf_zero_point zeros[16];
    mf_layout l = mf_search_layout(w, n);
    mf_rough_fixed fixed = fixed_of(w, &l);
    mf_rates r;
    out->status = mf_rates_halves(w->quotes, &l, &r, &out->err);
    int64_t pairs = mf_space_zeros(&w->space, l.dp * l.cp, l.edp, zeros, 16);
    int64_t count = mf_space_orders(&w->space, l.pp, l.micro_batches, orders, MAX_ORDERS);
    l.zero = zeros[pairs - 1].zero;
    l.expert_zero = zeros[pairs - 1].expert_zero;
    for (int32_t i = 0; i < count && i < MAX_ORDERS && out->status == MF_OK; i++) {
        mf_search_node child = *n;
        const mf_order_summary *order = NULL;
        child.level = MF_LEVEL_ORDER;
        child.order = i;
        l.schedule = (mf_schedule_kind)orders[i].schedule;
        l.vpp = orders[i].vpp;
        unsigned mode = 1u << mf_floor_mode_of(l.schedule);
        double bound_s = mf_rough_stages_s(&r, mode, l.pp, l.micro_batches, fixed.tail.fixed_s);
        if (bound_s < best_s) {
            out->status = mf_search_order(w, &l, &order, &out->err);
            if (out->status == MF_OK) {
                bound_s = mf_larger(bound_s, order_bound_s(w, &r, &l, order, &fixed));
            }
        }
        if (out->status == MF_OK) {
            push(out, &child, n, bound_s, best_s);
        }
        out->work += 4;
    }
}

/* Rates of whole layers of the plain layout of the order (ZeRO 0), with hulls or without: levels
 * above 1 add communication to passes, and are quoted only where that is needed. */
static mf_status order_rates(mf_search_world *w, const mf_layout *l, bool hulls, mf_rates *r,
                             mf_err *e) {
    mf_layout plain = *l;
    mf_rough_hull hull[2];
    memset(hull, 0, sizeof hull);
    plain.zero = plain.expert_zero = 0;
    mf_status status = hulls ? mf_rates_hull(w->quotes, &plain, w->space.pinned, hull, e) : MF_OK;
    if (status == MF_OK) {
        status = mf_rates_whole(w->quotes, &plain, r, e);
        memcpy(r->hull, hull, sizeof hull);
    }
    return status;
}

/* Bound of one layout with plain rates. */
static double plain_bound_s(mf_search_world *w, const mf_layout *l, const mf_rates *plain,
                            const mf_order_summary *order, const mf_rough_fixed *fixed) {
    mf_rates r = *plain;
    const mf_oracle *o = w->oracle;
    o->ops->once(o->self, l, r.layer_params, &r.layer_reduce_s, &r.layer_gather_s);
    return order_bound_s(w, &r, l, order, fixed);
}

double mf_search_rebound(mf_search_world *w, const mf_search_node *n, double best_s,
                         mf_search_outcome *out) {
    mf_layout l = mf_search_layout(w, n);
    const mf_order_summary *order = NULL;
    mf_rates r;
    bool gathers = l.zero >= 2 || l.expert_zero >= 2;
    if (!gathers && !mf_search_chains_of(w, &l)) {
        return n->key_s;
    }
    mf_rough_fixed fixed = fixed_of(w, &l);
    out->status = mf_search_order(w, &l, &order, &out->err);
    if (out->status == MF_OK) {
        out->status = order_rates(w, &l, true, &r, &out->err);
    }
    if (out->status != MF_OK) {
        return n->key_s;
    }
    out->work += 20;
    double bound_s = mf_larger(n->key_s, plain_bound_s(w, &l, &r, order, &fixed));
    if (gathers && bound_s < best_s) { /* with its own rates */
        mf_rough_hull hull[2];
        memcpy(hull, r.hull, sizeof hull);
        out->status = mf_rates_whole(w->quotes, &l, &r, &out->err);
        memcpy(r.hull, hull, sizeof hull);
        bound_s = mf_larger(bound_s, order_bound_s(w, &r, &l, order, &fixed));
        out->work += 6;
    }
    return bound_s;
}

/* An order is bounded anew before it is split, with whole layers first, then with what memory
 * costs: most orders need no more than the first. `tries` counts these steps. */
enum { ORDER_HALVES, ORDER_WHOLE, ORDER_HULLS };

/* What is reduced and gathered once a step, at the levels that take least. */
static void least_once(const mf_search_world *w, mf_layout l, const mf_zero_point *zeros,
                       int64_t count, mf_rates *r) {
    const mf_oracle *o = w->oracle;
    r->layer_reduce_s = r->layer_gather_s = HUGE_VAL;
    for (int64_t i = 0; i < count; i++) {
        double reduce_s, gather_s;
        l.zero = zeros[i].zero;
        l.expert_zero = zeros[i].expert_zero;
        o->ops->once(o->self, &l, r->layer_params, &reduce_s, &gather_s);
        r->layer_reduce_s = mf_smaller(r->layer_reduce_s, reduce_s);
        r->layer_gather_s = mf_smaller(r->layer_gather_s, gather_s);
    }
}

static void split_order(mf_search_world *w, const mf_search_node *n, double best_s,
                        mf_search_outcome *out) {
    mf_layout l = mf_search_layout(w, n);
    const mf_order_summary *order = NULL;
    mf_zero_point zeros[16];
    mf_rough_fixed fixed = fixed_of(w, &l);
    mf_rates r;
    out->status = mf_search_order(w, &l, &order, &out->err);
    if (out->status == MF_OK) {
        out->status = order_rates(w, &l, n->tries >= ORDER_WHOLE, &r, &out->err);
    }
    if (out->status != MF_OK) {
        return;
    }
    int64_t count = mf_space_zeros(&w->space, l.dp * l.cp, l.edp, zeros, 16);
    if (n->tries < ORDER_HULLS) {
        mf_search_node again = *n;
        again.tries++;
        least_once(w, l, zeros, count, &r);
        l.zero = zeros[count - 1].zero;
        l.expert_zero = zeros[count - 1].expert_zero;
        push(out, &again, n, order_bound_s(w, &r, &l, order, &fixed), best_s);
        out->work += 4;
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        mf_search_node child = *n;
        child.level = MF_LEVEL_LAYOUT;
        child.tries = 0;
        child.zero = (int32_t)i;
        l.zero = zeros[i].zero;
        l.expert_zero = zeros[i].expert_zero;
        push(out, &child, n, plain_bound_s(w, &l, &r, order, &fixed), best_s);
        out->priced++;
        out->work += 4;
    }
}

void mf_search_split(mf_search_world *w, const mf_search_node *n, double best_s,
                     mf_search_outcome *out) {
    switch ((mf_level)n->level) {
    case MF_LEVEL_SIDE:
        split_side(w, n, best_s, out);
        return;
    case MF_LEVEL_POINT:
        split_point(w, n, best_s, out);
        return;
    case MF_LEVEL_STAGES:
        split_stages(w, n, best_s, out);
        return;
    case MF_LEVEL_ORDER:
        split_order(w, n, best_s, out);
        return;
    case MF_LEVEL_LAYOUT:
    case MF_LEVEL_BOUND:
    case MF_LEVEL_RELAX:
    case MF_LEVEL_SPLITS:
    case MF_LEVEL_EXACT:
        break;
    }
}
