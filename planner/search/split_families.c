/* split_families.c - families of layouts: how they split, and their bounds. */
#include "planner/search/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- families --------------------------------------------------------------------------------- */

bool mf_search_add(mf_search_outcome *out, const mf_search_node *n) {
    if (out->children == out->allocated) {
        int64_t allocated = out->allocated ? 2 * out->allocated : 16;
        mf_search_node *grown = realloc(out->child, (size_t)allocated * sizeof *grown);
        if (!grown) {
            out->status = mf_err_set(&out->err, MF_NOMEM, "out of memory");
            return false;
        }
        out->child = grown;
        out->allocated = allocated;
    }
    out->child[out->children++] = *n;
    return true;
}

/* A valid layout with the dimensions that the node fixes, and the smallest value of all others. */
mf_layout mf_search_layout(const mf_search_context *w, const mf_search_node *n) {
    const mf_search_side *side = &w->side[n->side];
    bool staged = n->level >= MF_LEVEL_PIPELINE;
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
    if (n->level >= MF_LEVEL_EXPERT) {
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

static bool expert_side_fits(const mf_search_context *w, const mf_expert_point *x, int64_t pp) {
    return w->space.base.gpus % (pp * x->ep) == 0 &&
           w->space.base.gpus % (pp * x->ep * x->etp) == 0;
}

/* Orders of a dense point that the node's family has. */
static int64_t orders_of(const mf_search_context *w, const mf_search_node *n, int64_t dense) {
    if (n->level >= MF_LEVEL_ORDER) {
        return 1;
    }
    const mf_search_count *c = &w->order_count[dense];
    return n->level == MF_LEVEL_PASS_MODE ? c->of[n->mode] : c->all;
}

int64_t mf_search_family(const mf_search_context *w, const mf_search_node *n) {
    if (n->level >= MF_LEVEL_LAYOUT) {
        return 1;
    }
    const mf_search_side *side = &w->side[n->side];
    bool staged = n->level >= MF_LEVEL_PIPELINE, pointed = n->level >= MF_LEVEL_EXPERT;
    int64_t count = 0;
    for (int32_t i = staged ? n->dense : side->first;
         i < (staged ? n->dense + 1 : side->first + side->count); i++) {
        const mf_dense_point *d = &w->dense[i];
        int64_t orders = orders_of(w, n, i);
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
static unsigned modes_of(const mf_search_context *w) {
    if (w->space.pinned & MF_PIN(SCHEDULE)) {
        return 1u << mf_pass_mode_of(w->space.base.schedule);
    }
    return (1u << MF_PASS_MODES) - 1u;
}

static double rounds_of(const mf_layout *l) {
    return (double)l->gbs * (double)l->tp * (double)l->cp / ((double)l->mbs * (double)l->gpus);
}

/* At the end of a step, whatever the stages hold. */
static double step_s(const mf_search_context *w, const mf_layout *l) {
    mf_param_count none = {0, 0, 0};
    return w->evaluator->ops->step_end(w->evaluator->self, l, none).fixed_s;
}

mf_status mf_search_start(mf_search_context *w, mf_search_outcome *out, mf_err *e) {
    for (int64_t i = 0; i < w->sides; i++) {
        mf_search_node n = {.level = MF_LEVEL_ATTENTION, .side = (int32_t)i};
        if (!mf_search_add(out, &n)) {
            return mf_err_set(e, MF_NOMEM, "out of memory");
        }
    }
    return MF_OK;
}

void mf_search_push(mf_search_outcome *out, mf_search_node *child, const mf_search_node *parent,
                    double bound_s, double best_s) {
    child->key_s = bound_s > parent->key_s ? bound_s : parent->key_s;
    if (child->key_s < best_s) {
        mf_search_add(out, child);
    }
}

static bool bounds_halves(const mf_search_context *w) {
    return mf_uses(w->evaluator->without, MF_MECHANISM_HALVES);
}

/* A side is bounded before it is split; `tries` counts these steps. Nothing is known of it before:
 * that is left to tasks, which go side by side. */
static void bound_side(mf_search_context *w, const mf_search_node *n, double best_s,
                       mf_search_outcome *out) {
    mf_search_node again = *n;
    mf_layout l = mf_search_layout(w, n);
    mf_layer_times r;
    again.tries++;
    if (!bounds_halves(w)) {
        mf_search_push(out, &again, n, 0.0, best_s);
        return;
    }
    out->status = mf_layer_times_dense(w->costs, &l, &r, &out->err);
    if (out->status == MF_OK) {
        mf_search_push(out, &again, n,
                       mf_family_bound_work_s(&r, modes_of(w), rounds_of(&l), step_s(w, &l)),
                       best_s);
    }
    out->work_ns += MF_ATTENTION_BOUND_NS;
}

static void split_attention(mf_search_context *w, const mf_search_node *n, double best_s,
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
        child.level = MF_LEVEL_EXPERT;
        child.tries = 0;
        child.expert = k;
        mf_layout l = mf_search_layout(w, &child);
        mf_layer_times r;
        double bound_s = 0.0;
        if (bounds_halves(w)) {
            out->status = mf_layer_times_halves(w->costs, &l, &r, &out->err);
        }
        if (out->status == MF_OK && bounds_halves(w)) {
            bound_s = mf_family_bound_work_s(&r, modes_of(w), rounds_of(&l), step_s(w, &l));
        }
        if (out->status == MF_OK) {
            mf_search_push(out, &child, n, bound_s, best_s);
        }
        out->work_ns += MF_EXPERT_BOUND_NS;
    }
}

static void split_expert(mf_search_context *w, const mf_search_node *n, double best_s,
                         mf_search_outcome *out) {
    const mf_search_side *side = &w->side[n->side];
    mf_layout l = mf_search_layout(w, n);
    mf_layer_times r;
    const double fixed_s = step_s(w, &l);
    const bool bounded = bounds_halves(w);
    if (bounded) {
        out->status = mf_layer_times_halves(w->costs, &l, &r, &out->err);
    }
    out->work_ns += MF_PIPELINE_FIGURES_NS;
    for (int32_t i = side->first; i < side->first + side->count && out->status == MF_OK; i++) {
        const mf_dense_point *d = &w->dense[i];
        if (!expert_side_fits(w, &w->expert[n->expert], d->pp)) {
            continue;
        }
        mf_search_node child = *n;
        child.level = MF_LEVEL_PIPELINE;
        child.dense = i;
        const double bound_s =
            bounded ? mf_family_bound_stages_s(&r, modes_of(w), d->pp, d->micro_batches, fixed_s)
                    : 0.0;
        mf_search_push(out, &child, n, bound_s, best_s);
        out->work_ns += MF_BOUND_NS;
    }
}

void mf_search_split(mf_search_context *w, const mf_search_node *n, const mf_search_aim *aim,
                     mf_search_outcome *out) {
    switch ((mf_level)n->level) {
    case MF_LEVEL_ATTENTION:
        (n->tries == 0 ? bound_side : split_attention)(w, n, aim->best_s, out);
        return;
    case MF_LEVEL_EXPERT:
        split_expert(w, n, aim->best_s, out);
        return;
    case MF_LEVEL_PIPELINE:
        mf_search_split_pipeline(w, n, aim, out);
        return;
    case MF_LEVEL_PASS_MODE:
        mf_search_split_pass_mode(w, n, aim, out);
        return;
    case MF_LEVEL_ORDER:
        mf_search_split_order(w, n, aim, out);
        return;
    case MF_LEVEL_LAYOUT:
    case MF_LEVEL_MEAN:
    case MF_LEVEL_RELAXATION:
    case MF_LEVEL_SPLITS:
    case MF_LEVEL_EXACT:
    case MF_LEVEL_TRY:
        break;
    }
}
