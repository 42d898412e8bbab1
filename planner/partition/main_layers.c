/* main_layers.c - what main layers (family_bound.h) on a stage take together, by their number, when
 * memory choices are mixed in any proportion and as little is in flight as any distribution over
 * the stage's chunks allows. */
#include "planner/bound/family_bound.h"
#include "planner/bound/stage_bound.h"
#include "planner/partition/partition.h"

#include <math.h>

/* Is a class one of main layers? */
static bool is_main(const mf_inner *in, const mf_inner_class *c) {
    return c->key.kind == MF_POS_LAYER && mf_rough_is_main(in->model, c->key.layer_class);
}

mf_main_layers mf_main_layers_of(const mf_inner *in) {
    double each_B = HUGE_VAL, beside_B = HUGE_VAL;
    for (int i = 0; i < in->classes; i++) {
        const mf_inner_class *c = &in->class[i];
        const mf_quote *q = &c->choice[0].quote;
        double workspace_B = HUGE_VAL;
        for (int m = 0; m < c->choices; m++) {
            const mf_quote *x = &c->choice[m].quote;
            workspace_B = mf_smaller(workspace_B, mf_larger(x->local_f_B, x->local_b_B));
        }
        if (is_main(in, c)) {
            each_B = mf_smaller(each_B, c->persistent_B);
            beside_B = mf_smaller(beside_B, workspace_B + q->comm_B +
                                                mf_memory_gathers(&in->layout) * q->gather_B +
                                                mf_memory_boundaries(&in->layout) * q->boundary_B);
        }
    }
    return (mf_main_layers){.room_B = in->usable_B - in->fixed_B - beside_B, .each_B = each_B};
}

/* What choice m takes more than the least, in whichever of the parts chains count it. */
static double more_s(const mf_inner *in, const mf_inner_class *c, int m,
                     const mf_order_part part[3]) {
    double least_s = HUGE_VAL;
    for (int i = 0; i < (in->merged ? 3 : 1); i++) {
        double s = mf_inner_part_s(in, c, m, part[i], true) - c->least_s[part[i]];
        least_s = mf_smaller(least_s, s);
    }
    return least_s;
}

enum { MOST_WAYS = 1024 };

/* What every forward and backward pass takes more than the fastest choice's. */
static int extra_ways(const mf_inner *in, mf_way way[MOST_WAYS]) {
    static const mf_order_part f[3] = {MF_ORDER_F, MF_ORDER_F_PAIR, MF_ORDER_F_KEEP};
    static const mf_order_part b[3] = {MF_ORDER_B, MF_ORDER_B_PAIR, MF_ORDER_B_GIVE};
    int ways = 0;
    for (int i = 0; i < in->classes; i++) {
        const mf_inner_class *c = &in->class[i];
        for (int m = 0; m < c->choices && is_main(in, c); m++) {
            if (ways == MOST_WAYS) { /* no model has so many; nothing is claimed then */
                way[0] = (mf_way){0.0, 0.0};
                return 1;
            }
            way[ways++] =
                (mf_way){c->choice[m].quote.saved_B, more_s(in, c, m, f) + more_s(in, c, m, b)};
        }
    }
    return mf_ways_hull(way, ways);
}

void mf_main_layers_curve(const mf_inner *in, const mf_main_layers *x, int stage, const mf_way *way,
                          int ways, double *curve_s) {
    const float *flight = in->order.flight + (size_t)stage * (size_t)(in->order.layers + 1);
    mf_ways_curve(way, ways, flight, x->room_B, x->each_B, mf_rough_layers(in->model), curve_s);
}

void mf_inner_extras(const mf_inner *in, double *extra_s) {
    mf_way way[MOST_WAYS];
    const int ways = extra_ways(in, way);
    const size_t points = (size_t)mf_rough_layers(in->model) + 1;
    const mf_main_layers x = mf_main_layers_of(in);
    for (int p = 0; p < in->stages; p++) {
        mf_main_layers_curve(in, &x, p, way, ways, extra_s + (size_t)p * points);
    }
}
