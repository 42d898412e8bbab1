/* partition_classes.c - classes of blocks with their choices: what each costs, and which choices no
 * other one dominates.
 */
#include "planner/partition/partition_classes.h"

#include "planner/bound/family_bound.h"
#include "planner/bound/overlap_loss.h"
#include "planner/price/least_cost.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- choices ---------------------------------------------------------------------------------- */

static bool same_kind(const mf_block_key *a, const mf_block_key *b) {
    return a->kind == b->kind && a->layer_class == b->layer_class && a->split == b->split &&
           a->shared_embedding == b->shared_embedding && a->shared_head == b->shared_head;
}

/* Does choice a do at least as well as b in every respect? Less saved has to outweigh a larger
 * workspace even with one micro-batch in flight. Copies to the host that cost nothing here fill its
 * memory, and cost something beside another block's. */
static bool beats(const mf_partition_choice *one, const mf_partition_choice *other) {
    const mf_block_cost *a = &one->cost, *b = &other->cost;
    const mf_pass_cost *pass[2][3] = {{&a->f, &a->b, &a->w}, {&b->f, &b->b, &b->w}};
    for (int i = 0; i < 3; i++) {
        const mf_pass_cost *x = pass[0][i], *y = pass[1][i];
        if (x->time_s > y->time_s || x->host_s > y->host_s || x->compute_s > y->compute_s ||
            x->ep_s > y->ep_s) {
            return false;
        }
    }
    return a->f.time_s + one->end_f_s <= b->f.time_s + other->end_f_s &&
           a->b.time_s + one->end_b_s <= b->b.time_s + other->end_b_s &&
           a->f.time_s + one->inside_f_s <= b->f.time_s + other->inside_f_s &&
           a->b.time_s + one->inside_b_s <= b->b.time_s + other->inside_b_s &&
           a->offload_B <= b->offload_B && a->saved_B <= b->saved_B && a->held_B <= b->held_B &&
           a->saved_B + a->local_f_B <= b->saved_B + b->local_f_B &&
           a->saved_B + a->local_b_B <= b->saved_B + b->local_b_B &&
           a->saved_B + a->local_w_B <= b->saved_B + b->local_w_B;
}

/* Keeps c and drops what it beats, or drops c. */
static void add_choice(mf_partition_class *out, const mf_partition_choice *c) {
    int kept = 0;
    for (int k = 0; k < out->choices; k++) {
        if (beats(&out->choice[k], c)) {
            return;
        }
    }
    for (int k = 0; k < out->choices; k++) {
        if (!beats(c, &out->choice[k])) {
            out->choice[kept++] = out->choice[k];
        }
    }
    out->choice[kept++] = *c;
    out->choices = kept;
}

/* Rounds forward passes down to steps of MF_FORWARD_STEP, so that choices can be compared. */
static void round_forwards_down(mf_partition_class *c) {
    double least_s = INFINITY;
    for (int k = 0; k < c->choices; k++) {
        least_s = fmin(least_s, c->choice[k].cost.f.time_s);
    }
    for (int k = 0; k < c->choices; k++) {
        double f_s = c->choice[k].cost.f.time_s;
        double steps = least_s > 0.0 ? floor((f_s / least_s - 1.0) / MF_FORWARD_STEP) : 0.0;
        c->choice[k].f_rounded_s = fmin(f_s, least_s * (1.0 + MF_FORWARD_STEP * steps));
    }
}

enum { CHOICE_FIGURES = 12 };

/* What counts depends on how passes are played; the rest is 0 for all. */
static void choice_figures(const mf_partition_choice *c, bool merged, double out[CHOICE_FIGURES]) {
    out[0] = c->f_rounded_s;
    out[1] = c->cost.b.time_s;
    out[2] = c->cost.w.time_s;
    out[3] = merged ? c->cost.b.ep_s : 0.0;
    out[4] = merged ? c->cost.f.ep_s : 0.0;
    out[5] = c->cost.saved_B;
    out[6] = c->cost.held_B;
    for (int i = 0; i < MF_PORTIONS; i++) {
        out[7 + 2 * i] = merged ? c->f_pair_s[i] : 0.0;
        out[8 + 2 * i] = merged ? c->b_pair_s[i] : 0.0;
    }
    out[11] = c->dear_last;
}

/* Is some mixture of choices with figures x and y (in parts of one) at least as good as one with z,
 * workspaces aside? */
static bool mixture_beats(const double *x, const double *y, const double *z) {
    double lo = 0.0, hi = 1.0;
    for (int i = 0; i < CHOICE_FIGURES && lo <= hi; i++) { /* share * x + (1 - share) * y <= z */
        double slope = x[i] - y[i], more = z[i] - y[i];
        if (slope > 0.0) {
            hi = fmin(hi, more / slope);
        } else if (slope < 0.0) {
            lo = fmax(lo, more / slope);
        } else if (more < 0.0) {
            return false;
        }
    }
    return lo <= hi;
}

uint32_t mf_partition_hull(const mf_partition_class *c, bool merged, uint32_t choices) {
    double figures[MF_CATALOGUE_MAX][CHOICE_FIGURES];
    uint32_t hull = choices;
    for (int i = 0; i < c->choices; i++) {
        choice_figures(&c->choice[i], merged, figures[i]);
    }
    for (int i = 0; i < c->choices; i++) {
        for (int a = 0; a < c->choices && (hull >> i & 1) != 0; a++) {
            for (int b = a; b < c->choices && a != i && (hull >> a & 1) != 0; b++) {
                if (b != i && (hull >> b & 1) != 0 &&
                    mixture_beats(figures[a], figures[b], figures[i])) {
                    hull &= ~(UINT32_C(1) << i);
                    break;
                }
            }
        }
    }
    return hull;
}

static void find_hull(mf_partition_class *c, bool merged) {
    const uint32_t hull = mf_partition_hull(c, merged, mf_partition_all_choices(c));
    for (int i = 0; i < c->choices; i++) {
        c->choice[i].hull = (hull >> i & 1) != 0;
    }
}

/* What it takes more than the least as the last of a virtual stage, and inside one. */
static mf_status price_places(mf_partition *in, const mf_block_key *key, mf_partition_choice *c,
                              mf_err *e) {
    mf_block_key at_end = *key;
    mf_block_cost last, inside;
    at_end.at_end = true;
    if (key->kind != MF_POS_LAYER || key->memory.offload == 0 || !in->evaluator->ends_differ ||
        !mf_uses(in->evaluator->without, MF_MECHANISM_END_COPIES)) {
        return MF_OK;
    }
    mf_status status = mf_block_costs_least(in->costs, &in->layout, &at_end, true, &last, e);
    if (status == MF_OK) {
        status = mf_block_costs_least(in->costs, &in->layout, key, true, &inside, e);
    }
    if (status == MF_OK) {
        c->end_f_s = last.f.time_s - c->cost.f.time_s;
        c->end_b_s = last.b.time_s - c->cost.b.time_s;
        c->inside_f_s = inside.f.time_s - c->cost.f.time_s;
        c->inside_b_s = inside.b.time_s - c->cost.b.time_s;
    }
    return status;
}

static mf_status price_class(mf_partition *in, const mf_block_key *key, uint32_t pinned,
                             mf_partition_class *out, mf_err *e) {
    const mf_layout *l = &in->layout;
    memset(out, 0, sizeof *out);
    mf_memory_choice memory[MF_CATALOGUE_MAX] = {{0, 0}};
    bool keeps = key->kind == MF_POS_LAYER || key->kind == MF_POS_MTP;
    int n = keeps ? mf_catalogue(in->model, key->layer_class, pinned, l->memory, memory) : 1;
    out->key = *key;
    out->f_host_s = out->b_host_s = out->w_host_s = INFINITY;
    for (int i = 0; i < n; i++) {
        mf_partition_choice c = {.memory = memory[i]};
        mf_block_key with = *key;
        with.memory = memory[i];
        mf_status status = mf_block_costs_least_anywhere(in->costs, l, &with, &c.cost, e);
        status = status == MF_OK ? price_places(in, &with, &c, e) : status;
        if (status != MF_OK) {
            return status;
        }
        out->f_host_s = fmin(out->f_host_s, c.cost.f.host_s);
        out->b_host_s = fmin(out->b_host_s, c.cost.b.host_s);
        out->w_host_s = fmin(out->w_host_s, c.cost.w.host_s);
        out->anew_s = fmax(out->anew_s, c.cost.anew_s[0] + c.cost.anew_s[1]);
        add_choice(out, &c);
    }
    const mf_block_cost *q = &out->choice[0].cost;
    out->exchanges = q->f.ep_s > 0.0 && key->kind == MF_POS_LAYER;
    out->persistent_B = mf_persistent_B(l, q->params);
    mf_param_count all = q->params;
    all.dense += mf_block_shared_elements(in->model, l, key);
    in->evaluator->ops->unreduced_B(in->evaluator->self, l, all, &out->whole_B, &out->scratch_B);
    in->evaluator->ops->step_comm(in->evaluator->self, l, q->params, &out->reduce_s,
                                  &out->gather_s);
    return MF_OK;
}

mf_status mf_partition_find_class(mf_partition *in, const mf_block_key *key, uint32_t pinned,
                                  int *out, mf_err *e) {
    for (int i = 0; i < in->classes; i++) {
        if (same_kind(&in->class[i].key, key)) {
            *out = i;
            return MF_OK;
        }
    }
    mf_partition_class *grown = realloc(in->class, (size_t)(in->classes + 1) * sizeof *grown);
    if (!grown) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    in->class = grown;
    *out = in->classes++;
    return price_class(in, key, pinned, &in->class[*out], e);
}

/* --- figures ---------------------------------------------------------------------------------- */

/* Time that a layer's block loses in the last backward pass to the reduction of the block before
 * it, with the choice that loses least (the first block's loss is subtracted again). The reduction
 * lasts longer where the block fills its link. In a pair a block may be a little quicker than alone
 * and leaves more of the link. */
static double own_lost_s(const mf_partition *in, const mf_partition_class *c) {
    bool layer = c->key.kind == MF_POS_LAYER || c->key.kind == MF_POS_MTP;
    bool paired = in->merged && (in->order.paired_end || !mf_order_end_known(&in->layout));
    double e = in->lost, least_s = HUGE_VAL;
    for (int m = 0; m < c->choices; m++) {
        const mf_pass_cost *back = in->split ? &c->choice[m].cost.w : &c->choice[m].cost.b;
        double rate = paired ? 1.0 : mf_step_overlap_rate(c->beside.network[1], back);
        double time_s = (in->merged ? MF_PAIRED_LEAST : 1.0) * back->time_s;
        time_s -= in->layout.micro_batches == 1 ? c->anew_s : 0.0;
        least_s = fmin(least_s, fmin(c->beside_s / rate, time_s / (1.0 - e)));
    }
    return layer && e > 0.0 && e <= MF_LOST_MOST ? e * least_s : 0.0;
}

static double choice_part_s(const mf_partition *in, const mf_partition_class *c, int m,
                            mf_order_part part, bool rounded) {
    const mf_block_cost *q = &c->choice[m].cost;
    switch (part) {
    case MF_ORDER_F:
        return rounded ? c->choice[m].f_rounded_s : q->f.time_s;
    case MF_ORDER_B:
        return q->b.time_s;
    case MF_ORDER_W:
        return q->w.time_s;
    case MF_ORDER_F_PAIR:
        return c->choice[m].f_pair_s[MF_PORTIONS_B_FULL];
    case MF_ORDER_B_PAIR:
        return c->choice[m].b_pair_s[MF_PORTIONS_B_FULL];
    case MF_ORDER_PAIR_PORTION_F:
        return c->choice[m].f_pair_s[MF_PORTIONS_F_FULL];
    case MF_ORDER_PAIR_PORTION_B:
        return c->choice[m].b_pair_s[MF_PORTIONS_F_FULL];
    case MF_ORDER_F_EP:
        return in->merged ? q->f.ep_s : 0.0;
    case MF_ORDER_B_EP:
        return in->merged ? q->b.ep_s : 0.0;
    case MF_ORDER_F_HOST:
        return rounded ? c->f_host_s : q->f.host_s;
    case MF_ORDER_B_HOST:
        return rounded ? c->b_host_s : q->b.host_s;
    case MF_ORDER_W_HOST:
        return rounded ? c->w_host_s : q->w.host_s;
    case MF_ORDER_GATHER:
        return c->gather_s;
    case MF_ORDER_REDUCE:
        return c->reduce_s;
    case MF_ORDER_GATHER_LOST:
        return in->lost * c->gather_s;
    case MF_ORDER_REDUCE_LOST:
        return in->lost * c->reduce_s;
    case MF_ORDER_OWN_LOST:
        return c->own_lost_s;
    case MF_ORDER_ANEW:
        return c->anew_s;
    case MF_ORDER_NORM:
        return mf_family_bound_norm_s(&in->step_end, &q->params);
    case MF_ORDER_UPDATE:
        return mf_family_bound_update_s(&in->step_end, &q->params);
    case MF_ORDER_PARTS:
        break;
    }
    return 0.0;
}

double mf_partition_part_s(const mf_partition *in, const mf_partition_class *c, int m,
                           mf_order_part part, bool rounded) {
    return m < 0 ? c->least_s[part] : choice_part_s(in, c, m, part, rounded);
}

static void set_least(const mf_partition *in, mf_partition_class *c) {
    for (int p = 0; p < MF_ORDER_PARTS; p++) {
        c->least_s[p] = HUGE_VAL;
        for (int m = 0; m < c->choices; m++) {
            double s = choice_part_s(in, c, m, (mf_order_part)p, true);
            c->least_s[p] = s < c->least_s[p] ? s : c->least_s[p];
        }
    }
}

/* How fast what comes at the end of a step runs on beside the block's passes, at most. */
static void find_rates(mf_partition_class *c) {
    memset(c->rate, 0, sizeof c->rate);
    for (int m = 0; m < c->choices; m++) {
        const mf_block_cost *q = &c->choice[m].cost;
        const mf_pass_cost *pass[] = {
            [MF_ORDER_F] = &q->f, [MF_ORDER_B] = &q->b, [MF_ORDER_W] = &q->w};
        for (int p = MF_ORDER_F; p <= MF_ORDER_W; p++) {
            /* a forward block counts as beside gathers (simulator/step_chunk.c) */
            c->rate[p] =
                fmax(c->rate[p], mf_step_overlap_rate(c->beside.network[p != MF_ORDER_F], pass[p]));
        }
    }
}

void mf_partition_compare_choices(mf_partition *in) {
    mf_partition_find_ends(in);
    for (int i = 0; i < in->classes; i++) {
        mf_partition_class *c = &in->class[i];
        round_forwards_down(c);
        find_hull(c, in->merged);
        c->own_lost_s = own_lost_s(in, c);
        find_rates(c);
        set_least(in, c);
    }
}
