/* class_bounds.c - least figures of classes, and what a set of positions costs a stage. */
#include "planner/partition/class_bounds.h"

#include "planner/bound/family_bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double own_s(const mf_partition *in, const mf_partition_class *c, int m, mf_order_part f,
                    mf_order_part b) {
    return mf_partition_part_s(in, c, m, f, true) + mf_partition_part_s(in, c, m, b, true);
}

/* What choice m takes more than the least, in whichever of the parts chains count it. */
static double more_s(const mf_partition *in, const mf_partition_class *c, int m,
                     const mf_order_part part[3]) {
    double least_s = MF_NEVER_S;
    for (int i = 0; i < (in->merged ? 3 : 1); i++) {
        double s = mf_partition_part_s(in, c, m, part[i], true) - c->least_s[part[i]];
        least_s = mf_smaller(least_s, s);
    }
    return least_s;
}

static double choice_time_s(const mf_floors *fl, const mf_partition_class *c, int m, int way) {
    static const mf_order_part f[3] = {MF_ORDER_F, MF_ORDER_F_PAIR, MF_ORDER_PAIR_SHARE_F};
    static const mf_order_part b[3] = {MF_ORDER_B, MF_ORDER_B_PAIR, MF_ORDER_PAIR_SHARE_B};
    const mf_partition *in = fl->in;
    if (way == MF_WAY_MORE) {
        return more_s(in, c, m, f) + more_s(in, c, m, b);
    }
    if (in->merged && way == MF_WAY_MODE) {
        int set = 1 + (int)fl->shares;
        return own_s(in, c, m, f[set], b[set]);
    }
    return own_s(in, c, m, f[0], b[0]) + mf_partition_part_s(in, c, m, MF_ORDER_W, true);
}

/* The set of shares that adds up to more over the model. */
static mf_shares better_shares(const mf_partition *in) {
    double sum_s[MF_SHARES] = {0.0};
    for (int s = 0; s < in->slots; s++) {
        const mf_partition_class *c = mf_partition_class_at(in, in->slot[s].v_lo, s);
        for (int i = 0; i < MF_SHARES; i++) {
            sum_s[i] += in->segment[in->slot[s].segment].repeats *
                        (c->choice[0].f_pair_s[i] + c->choice[0].b_pair_s[i]);
        }
    }
    return sum_s[MF_SHARES_F_KEEPS] > sum_s[MF_SHARES_B_KEEPS] ? MF_SHARES_F_KEEPS
                                                               : MF_SHARES_B_KEEPS;
}

static mf_class_floor floor_of(const mf_floors *fl, const mf_partition_class *c) {
    const mf_block_cost *q = &c->choice[0].cost;
    mf_class_floor f = {
        .time_s = {MF_NEVER_S, MF_NEVER_S, MF_NEVER_S},
        .f_s = c->least_s[MF_ORDER_F],
        .b_s = c->least_s[MF_ORDER_B],
        .w_s = c->least_s[MF_ORDER_W],
        .workspace_B = MF_NEVER_S,
        .host_s = c->f_host_s + c->b_host_s + c->w_host_s,
        .reduce_s = c->reduce_s,
        .gather_s = c->gather_s,
        .norm_s = c->least_s[MF_ORDER_NORM],
        .update_s = c->least_s[MF_ORDER_UPDATE],
        .persistent_B = c->persistent_B,
        .comm_B = q->comm_B,
        .gather_B = q->gather_B,
        .boundary_B = q->boundary_B,
    };
    for (int m = 0; m < c->choices; m++) {
        const mf_block_cost *x = &c->choice[m].cost;
        f.workspace_B = mf_smaller(f.workspace_B, mf_larger(x->local_f_B, x->local_b_B));
        for (int way = 0; way < MF_WAYS && c->choice[m].lean; way++) {
            double time_s = choice_time_s(fl, c, m, way);
            if (time_s < f.time_s[way] ||
                (time_s <= f.time_s[way] && x->saved_B < f.saved_B[way])) {
                f.time_s[way] = time_s;
                f.saved_B[way] = x->saved_B;
            }
        }
    }
    return f;
}

/* Lower hull of the lean choices, from the fastest to those that save least. */
static void add_slopes(mf_floors *fl, int class, int way) {
    const mf_partition *in = fl->in;
    const mf_partition_class *c = &in->class[class];
    double time_s = fl->of[class].time_s[way], saved_B = fl->of[class].saved_B[way];
    for (;;) {
        mf_slope best = {class, 0, 0, INFINITY};
        for (int m = 0; m < c->choices; m++) {
            double less_B = saved_B - c->choice[m].cost.saved_B;
            double more_s = choice_time_s(fl, c, m, way) - time_s;
            if (!c->choice[m].lean || less_B <= 0.0) {
                continue;
            }
            double rate = more_s > 0.0 ? more_s / less_B : 0.0;
            if (rate < best.rate || (rate <= best.rate && less_B > best.saved_B)) {
                best = (mf_slope){class, more_s > 0.0 ? more_s : 0.0, less_B, rate};
            }
        }
        if (isinf(best.rate)) {
            return;
        }
        fl->slope[way][fl->slopes[way]++] = best;
        time_s += best.time_s;
        saved_B -= best.saved_B;
    }
}

static int by_rate(const void *a, const void *b) {
    const mf_slope *x = a, *y = b;
    if (x->rate < y->rate || x->rate > y->rate) {
        return x->rate < y->rate ? -1 : 1;
    }
    return x->class - y->class;
}

void mf_floors_clear(mf_floors *f) {
    free(f->of);
    for (int way = 0; way < MF_WAYS; way++) {
        free(f->slope[way]);
    }
    free(f->f_until);
    free(f->b_until);
    memset(f, 0, sizeof *f);
}

/* Least of a position wherever it stands: over the variants of its class. */
static void position_least(const mf_floors *fl, int position, double *f_s, double *b_s) {
    const mf_partition *in = fl->in;
    int slot = in->slot_at[position];
    *f_s = *b_s = MF_NEVER_S;
    for (int v = in->slot[slot].v_lo; v <= in->slot[slot].v_hi; v++) {
        int class = in->slot[slot].class_of[in->variant[v]];
        *f_s = mf_smaller(*f_s, fl->of[class].f_s);
        *b_s = mf_smaller(*b_s, fl->of[class].b_s);
    }
}

static void least_floor(mf_class_floor *least, const mf_class_floor *f) {
    double *to = (double *)least;
    const double *from = (const double *)f;
    for (size_t i = 0; i < sizeof *f / sizeof *from; i++) {
        to[i] = mf_smaller(to[i], from[i]);
    }
}

/* Main layers (family_bound.h): the class itself where there is one, else a floor under all of them
 * that keeps least and has no slopes. */
static void find_main_class(mf_floors *fl) {
    const mf_partition *in = fl->in;
    int found = 0;
    for (int i = 0; i < in->classes; i++) {
        const mf_partition_class *c = &in->class[i];
        if (c->key.kind != MF_POS_LAYER ||
            !mf_family_bound_is_main(in->model, c->key.layer_class)) {
            continue;
        }
        mf_class_floor f = fl->of[i];
        for (int m = 0; m < c->choices; m++) {
            for (int way = 0; way < MF_WAYS; way++) {
                f.saved_B[way] = mf_smaller(f.saved_B[way], c->choice[m].cost.saved_B);
            }
        }
        fl->main_class = i;
        if (found++ == 0) {
            fl->of[in->classes] = f;
        } else {
            least_floor(&fl->of[in->classes], &f);
        }
    }
    fl->main_class = found == 1 ? fl->main_class : in->classes;
}

mf_status mf_floors_make(const mf_partition *in, mf_floors *out, mf_err *e) {
    size_t n = (size_t)in->positions, slopes = (size_t)in->classes * MF_CATALOGUE_MAX;
    memset(out, 0, sizeof *out);
    out->in = in;
    out->shares = better_shares(in);
    out->of = calloc((size_t)in->classes + 1, sizeof *out->of);
    bool good = true;
    for (int way = 0; way < MF_WAYS; way++) {
        out->slope[way] = calloc(slopes, sizeof *out->slope[way]);
        good = good && out->slope[way];
    }
    out->f_until = calloc(n + 1, sizeof *out->f_until);
    out->b_until = calloc(n + 1, sizeof *out->b_until);
    if (!out->of || !good || !out->f_until || !out->b_until) {
        mf_floors_clear(out);
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (int i = 0; i < in->classes; i++) {
        out->of[i] = floor_of(out, &in->class[i]);
        for (int way = 0; way < MF_WAYS; way++) {
            add_slopes(out, i, way);
        }
    }
    for (int way = 0; way < MF_WAYS; way++) {
        qsort(out->slope[way], (size_t)out->slopes[way], sizeof *out->slope[way], by_rate);
    }
    out->f_least_s = out->b_least_s = MF_NEVER_S;
    for (int i = 0; i < in->positions; i++) {
        double f_s, b_s;
        position_least(out, i, &f_s, &b_s);
        out->f_until[i + 1] = out->f_until[i] + f_s;
        out->b_until[i + 1] = out->b_until[i] + b_s;
        if (i > 0 && i + 1 < in->positions) {
            out->f_least_s = mf_smaller(out->f_least_s, f_s);
            out->b_least_s = mf_smaller(out->b_least_s, b_s);
        }
    }
    find_main_class(out);
    return MF_OK;
}

/* --- loads ------------------------------------------------------------------------------------ */

void mf_load_add(const mf_floors *fl, mf_load *x, int class) {
    const mf_class_floor *f = &fl->of[class];
    x->count[class]++;
    for (int way = 0; way < MF_WAYS; way++) {
        x->time_s[way] += f->time_s[way];
        x->saved_B[way] += f->saved_B[way];
    }
    x->f_s += f->f_s;
    x->b_s += f->b_s;
    x->w_s += f->w_s;
    x->host_s += f->host_s;
    x->reduce_s += f->reduce_s;
    x->gather_s += f->gather_s;
    x->gather_most_s = mf_larger(x->gather_most_s, f->gather_s);
    x->reduce_most_s = mf_larger(x->reduce_most_s, f->reduce_s);
    x->norm_s += f->norm_s;
    x->update_s += f->update_s;
    x->persistent_B += f->persistent_B;
    x->comm_B = mf_larger(x->comm_B, f->comm_B);
    x->gather_B = mf_larger(x->gather_B, f->gather_B);
    x->boundary_B = mf_larger(x->boundary_B, f->boundary_B);
    x->workspace_B = f->workspace_B;
}

double mf_load_room_B(const mf_floors *fl, const mf_load *x, double share) {
    const mf_partition *in = fl->in;
    return (in->usable_B - in->fixed_B - x->comm_B - mf_memory_gathers(&in->layout) * x->gather_B -
            mf_memory_boundaries(&in->layout) * x->boundary_B) *
               share -
           x->persistent_B - x->workspace_B;
}

double mf_load_time_s(const mf_floors *fl, const mf_load *x, int way, double flight, double share) {
    double room_B = mf_load_room_B(fl, x, share);
    if (room_B < 0.0) {
        return MF_NEVER_S;
    }
    double over_B = flight > 0.0 ? x->saved_B[way] - room_B / flight : 0.0;
    double time_s = x->time_s[way];
    for (int i = 0; i < fl->slopes[way] && over_B > 0.0; i++) {
        const mf_slope *s = &fl->slope[way][i];
        double saves_B = s->saved_B * x->count[s->class];
        if (saves_B > 0.0) {
            double part = mf_smaller(1.0, over_B / saves_B);
            time_s += part * s->time_s * x->count[s->class];
            over_B -= part * saves_B;
        }
    }
    return over_B > 1.0 ? MF_NEVER_S : time_s;
}

double mf_load_step_s(const mf_floors *fl, const mf_load *x, const double time_s[MF_WAYS_PLAYED],
                      int p, double in_s, double out_s, double behind_s, int layers) {
    const mf_partition *in = fl->in;
    mf_stage_sums s = {
        .time_s = time_s[MF_WAY_MODE],
        .plain_s = time_s[MF_WAY_ALONE],
        .f_s = x->f_s,
        .b_s = x->b_s,
        .w_s = x->w_s,
        .host_s = x->host_s,
        .hold_s = in->hold_s * ((p > 0) + (p + 1 < in->stages)),
        .gather_s = x->gather_s,
        .reduce_s = x->reduce_s,
        .in_s = in_s,
        .out_s = out_s,
        .behind_s = behind_s,
        .norm_s = x->norm_s,
        .once_s = in->tail.fixed_s + x->update_s,
        .layers = layers,
    };
    double left_s = mf_larger(x->gather_s - in_s, 0.0); /* gathers run on the way in */
    s.exposed_s =
        mf_stage_exposed_s(in->tail.exposed, left_s, in->chunks * x->gather_most_s, x->f_s) +
        mf_stage_exposed_s(in->tail.exposed, x->reduce_s, in->chunks * x->reduce_most_s, x->b_s);
    return mf_stage_floor_s(&in->layout, &in->order, p, &s);
}
