/* search_tree.c - families of layouts: how they split, and their rough bounds. */
#include "planner/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ORDERS 1100

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
        l.schedule = (mf_schedule_kind)n->schedule;
        l.vpp = n->vpp;
    }
    if (n->level >= MF_LEVEL_LAYOUT) {
        l.zero = n->zero;
        l.expert_zero = n->expert_zero;
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
        out->work += 6;
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

/* By stages, and by the chains that were found for the order, if any. INFINITY at or above best_s:
 * how much is of no use. */
static double order_bound_s(mf_search_world *w, int64_t seen, const mf_rates *r, const mf_layout *l,
                            const mf_order_summary *order, const mf_rough_fixed *fixed,
                            double best_s) {
    double bound_s = mf_rough_layout_s(r, l, order, fixed, best_s);
    const mf_chains *chains[MF_SEARCH_CHAINS];
    int sets = bound_s < best_s ? mf_search_chains_of(w, l, seen, chains) : 0;
    for (int i = 0; i < sets && bound_s < best_s; i++) {
        bound_s = mf_larger(bound_s, mf_rough_mean_s(r, l, order, fixed, chains[i], best_s));
    }
    return bound_s < best_s ? bound_s : HUGE_VAL;
}

/* Orders are bounded with the ZeRO levels that shard most, at no price. Levels ascend, so that the
 * last pair is the one. */
static void split_stages(mf_search_world *w, const mf_search_node *n, double best_s,
                         mf_search_outcome *out) {
    mf_order_point orders[MAX_ORDERS];
    mf_zero_point zeros[16];
    mf_layout l = mf_search_layout(w, n);
    mf_rough_fixed fixed = mf_search_fixed(w, &l);
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
        child.schedule = orders[i].schedule;
        child.vpp = (int16_t)orders[i].vpp;
        l.schedule = (mf_schedule_kind)orders[i].schedule;
        l.vpp = orders[i].vpp;
        unsigned mode = 1u << mf_floor_mode_of(l.schedule);
        double bound_s = mf_rough_stages_s(&r, mode, l.pp, l.micro_batches, fixed.tail.fixed_s);
        if (bound_s < best_s) {
            out->status = mf_search_order(w, &l, &order, &out->err);
            if (out->status == MF_OK) {
                bound_s =
                    mf_larger(bound_s, order_bound_s(w, out->seen, &r, &l, order, &fixed, best_s));
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
static mf_status order_rates(mf_search_world *w, const mf_search_node *n, const mf_layout *l,
                             mf_search_hulls hulls, const mf_rates **r,
                             const mf_search_stages **stages, mf_err *e) {
    mf_layout plain = *l;
    plain.zero = plain.expert_zero = 0;
    mf_status status = mf_search_rates_of(w, n, &plain, hulls, r, e);
    return status == MF_OK ? mf_search_stages_of(w, n, &plain, &(*r)->layer_params, stages, e)
                           : status;
}

static const mf_rough_fixed *fixed_of(const mf_search_stages *s, const mf_layout *l) {
    return &s->fixed[l->schedule == MF_SCHED_MERGED];
}

static int zero_index(const mf_search_stages *s, const mf_layout *l) {
    int i = 0;
    while (s->zero[i].zero != l->zero || s->zero[i].expert_zero != l->expert_zero) {
        i++;
    }
    return i;
}

/* What positions take once a step, and what passes lose to that. */
static void add_once(const mf_search_world *w, const mf_layout *l, mf_rates *r) {
    const mf_oracle *o = w->oracle;
    r->lost = o->ops->beside(o->self, l, r->layer_params);
    for (int i = 0; i < r->others; i++) {
        mf_rough_other *x = &r->other[i];
        o->ops->once(o->self, l, x->params, &x->reduce_s, &x->gather_s);
        r->lost = mf_smaller(r->lost, o->ops->beside(o->self, l, x->params));
    }
}

/* A layout's figures beside its rates. */
typedef struct bounding {
    mf_search_world *w;
    const mf_search_node *n;
    const mf_layout *l;
    const mf_order_summary *order;
    double best_s;
    mf_search_outcome *out;
} bounding;

/* The layout's bound. NONE: by plain blocks and the chains of its own ZeRO levels, which only add
 * to these. EXACT: by every choice as simulated, at the levels of `of`; where those are less than
 * its own, with the chains of these besides. */
static double own_bound_s(const bounding *b, mf_search_hulls hulls, const mf_layout *of) {
    const mf_layout *l = b->l;
    const mf_oracle *o = b->w->oracle;
    const mf_rates *base = NULL, *own = NULL;
    const mf_search_stages *stages = NULL;
    mf_search_outcome *out = b->out;
    bool exact = hulls == MF_HULLS_EXACT;
    bool less = !exact || of->zero != l->zero || of->expert_zero != l->expert_zero;
    out->status = order_rates(b->w, b->n, l, MF_HULLS_ROUGH, &base, &stages, &out->err);
    if (out->status == MF_OK && exact) {
        out->status = mf_search_rates_of(b->w, b->n, of, hulls, &base, &out->err);
    }
    if (out->status == MF_OK && less) {
        out->status = mf_search_rates_of(b->w, b->n, l, MF_HULLS_NONE, &own, &out->err);
    }
    if (out->status != MF_OK) {
        return 0.0;
    }
    mf_rates r = *base;
    if (less) {
        mf_rates_larger(&r, own);
    }
    int i = zero_index(stages, l);
    r.layer_reduce_s = stages->reduce_s[i];
    r.layer_gather_s = stages->gather_s[i];
    add_once(b->w, l, &r);
    mf_rough_fixed fixed = *fixed_of(stages, l);
    if (exact) {
        fixed.tail = o->ops->tail(o->self, l, r.all_params);
    }
    return order_bound_s(b->w, out->seen, &r, l, b->order, &fixed, b->best_s);
}

/* By what its choices take: at level 2 at first, whose figures more layouts share and which closes
 * most. */
static double choices_bound_s(const bounding *b, double enough_s) {
    mf_layout of = *b->l;
    double bound_s = 0.0;
    of.zero = of.zero > 2 ? 2 : of.zero;
    of.expert_zero = of.expert_zero > 2 ? 2 : of.expert_zero;
    if (of.zero != b->l->zero || of.expert_zero != b->l->expert_zero) {
        bound_s = own_bound_s(b, MF_HULLS_EXACT, &of);
        b->out->work += 17;
    }
    if (b->out->status == MF_OK && bound_s < enough_s) {
        bound_s = mf_larger(bound_s, own_bound_s(b, MF_HULLS_EXACT, b->l));
        b->out->work += 17;
    }
    return bound_s;
}

double mf_search_rebound(mf_search_world *w, const mf_search_node *n, const mf_search_aim *aim,
                         mf_search_outcome *out) {
    mf_layout l = mf_search_layout(w, n);
    bounding b = {.w = w, .n = n, .l = &l, .best_s = aim->best_s, .out = out};
    const mf_chains *chains[MF_SEARCH_CHAINS];
    bool gathers = l.zero >= 2 || l.expert_zero >= 2;
    double bound_s = n->key_s;
    out->status = mf_search_order(w, &l, &b.order, &out->err);
    if (out->status == MF_OK && n->tries == 0 &&
        (gathers || mf_search_chains_of(w, &l, out->seen, chains) > 0)) {
        bound_s = mf_larger(bound_s, own_bound_s(&b, MF_HULLS_NONE, &l));
        out->work += 17;
    }
    /* what its choices take is asked for the layout anyway, unless it is closed by that; chains may
     * have been found since it was asked last */
    if (out->status == MF_OK && !(bound_s > n->key_s * (1.0 + 1e-4))) {
        bound_s = mf_larger(bound_s, choices_bound_s(&b, fmin(aim->best_s, aim->target_s)));
    }
    return bound_s;
}

/* An order is bounded anew before it is split, with whole layers first, then with what memory
 * costs: most orders need no more than the first. `tries` counts these steps. */
enum { ORDER_HALVES, ORDER_WHOLE, ORDER_HULLS };

/* What is reduced and gathered once a step, at the levels that take least. */
static void least_once(const mf_search_stages *s, mf_rates *r) {
    r->layer_reduce_s = r->layer_gather_s = HUGE_VAL;
    for (int i = 0; i < s->zeros; i++) {
        r->layer_reduce_s = mf_smaller(r->layer_reduce_s, s->reduce_s[i]);
        r->layer_gather_s = mf_smaller(r->layer_gather_s, s->gather_s[i]);
    }
}

static void split_order(mf_search_world *w, const mf_search_node *n, double best_s,
                        mf_search_outcome *out) {
    mf_layout l = mf_search_layout(w, n);
    const mf_order_summary *order = NULL;
    const mf_rates *plain = NULL;
    const mf_search_stages *stages = NULL;
    out->status = mf_search_order(w, &l, &order, &out->err);
    if (out->status == MF_OK) {
        out->status =
            order_rates(w, n, &l, n->tries >= ORDER_WHOLE ? MF_HULLS_ROUGH : MF_HULLS_NONE, &plain,
                        &stages, &out->err);
    }
    if (out->status != MF_OK) {
        return;
    }
    mf_rates r = *plain;
    if (n->tries < ORDER_HULLS) {
        mf_search_node again = *n;
        again.tries++;
        least_once(stages, &r);
        l.zero = stages->zero[stages->zeros - 1].zero;
        l.expert_zero = stages->zero[stages->zeros - 1].expert_zero;
        push(out, &again, n,
             order_bound_s(w, out->seen, &r, &l, order, fixed_of(stages, &l), best_s), best_s);
        out->work += n->tries == ORDER_HALVES ? 10 : 30;
        return;
    }
    for (int i = 0; i < stages->zeros; i++) {
        mf_search_node child = *n;
        child.level = MF_LEVEL_LAYOUT;
        child.tries = 0;
        child.zero = l.zero = stages->zero[i].zero;
        child.expert_zero = l.expert_zero = stages->zero[i].expert_zero;
        r.layer_reduce_s = stages->reduce_s[i];
        r.layer_gather_s = stages->gather_s[i];
        push(out, &child, n,
             order_bound_s(w, out->seen, &r, &l, order, fixed_of(stages, &l), best_s), best_s);
        out->priced++;
        out->work += 3;
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
