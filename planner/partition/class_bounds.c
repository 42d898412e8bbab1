/* class_bounds.c - what main layers of a stage take more for want of memory. */
#include "planner/partition/class_bounds.h"

#include "planner/bound/family_bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What choice m takes more than the least, in whichever of the parts paths count it. */
static double more_s(const mf_partition *in, const mf_partition_class *c, int m,
                     const mf_order_part part[3]) {
    double least_s = HUGE_VAL;
    for (int i = 0; i < (in->merged ? 3 : 1); i++) {
        double s = mf_partition_part_s(in, c, m, part[i], true) - c->least_s[part[i]];
        least_s = mf_smaller(least_s, s);
    }
    return least_s;
}

/* What its forward and backward pass take more together. */
static double passes_more_s(const mf_partition *in, const mf_partition_class *c, int m) {
    static const mf_order_part f[3] = {MF_ORDER_F, MF_ORDER_F_PAIR, MF_ORDER_PAIR_PORTION_F};
    static const mf_order_part b[3] = {MF_ORDER_B, MF_ORDER_B_PAIR, MF_ORDER_PAIR_PORTION_B};
    return more_s(in, c, m, f) + more_s(in, c, m, b);
}

static mf_class_bound bound_of(const mf_partition_class *c, bool split) {
    const mf_block_cost *q = &c->choice[0].cost;
    mf_class_bound f = {
        .workspace_B = HUGE_VAL,
        .persistent_B = c->persistent_B,
        .comm_B = q->comm_B,
        .gather_B = q->gather_B,
        .boundary_B = q->boundary_B,
    };
    for (int m = 0; m < c->choices; m++) {
        const mf_block_cost *x = &c->choice[m].cost;
        f.workspace_B = mf_smaller(f.workspace_B, mf_block_sure_work_B(x, split));
    }
    return f;
}

static void take_less(mf_class_bound *least, const mf_class_bound *f) {
    double *to = (double *)least;
    const double *from = (const double *)f;
    for (size_t i = 0; i < sizeof *f / sizeof *from; i++) {
        to[i] = mf_smaller(to[i], from[i]);
    }
}

void mf_class_bounds_make(const mf_partition *in, bool any, mf_class_bounds *out) {
    int found = 0;
    out->in = in;
    out->points = 0;
    for (int i = 0; i < in->classes; i++) {
        const mf_partition_class *c = &in->class[i];
        if (c->key.kind != MF_POS_LAYER ||
            !(any || mf_family_bound_is_main(in->model, c->key.layer_class))) {
            continue;
        }
        const mf_class_bound f = bound_of(c, in->split);
        if (found++ == 0) {
            out->main = f;
        } else {
            take_less(&out->main, &f);
        }
        for (int m = 0; m < c->choices; m++) {
            if (c->choice[m].hull) {
                out->point[out->points++] =
                    (mf_time_memory_point){c->choice[m].cost.saved_B, passes_more_s(in, c, m)};
            }
        }
    }
    out->points = mf_lower_hull_make(out->point, out->points);
    if (found > 1) { /* of several classes, the least that any of their layers keeps */
        out->point[0] = (mf_time_memory_point){out->point[out->points - 1].saved_B, 0.0};
        out->points = 1;
    }
}

/* --- main layers of a stage ------------------------------------------------------------------- */

double mf_main_free_B(const mf_class_bounds *bounds) {
    const mf_partition *in = bounds->in;
    const mf_class_bound *f = &bounds->main;
    return in->usable_B - in->fixed_B - f->comm_B - mf_memory_gathers(&in->layout) * f->gather_B -
           mf_memory_boundaries(&in->layout) * f->boundary_B - f->workspace_B;
}

void mf_partition_extras(const mf_partition *in, double *extra_s) {
    mf_class_bounds bounds;
    int layers = mf_family_bound_layers(in->model);
    size_t points = (size_t)layers + 1;
    memset(extra_s, 0, (size_t)in->stages * points * sizeof *extra_s);
    if (in->classes > MF_CLASS_BOUNDS_MAX) {
        return;
    }
    mf_class_bounds_make(in, false, &bounds);
    for (int p = 0; p < in->stages; p++) {
        /* one byte of slack: sums are added up in another order */
        mf_layers_curve(&in->order, p, layers, mf_main_free_B(&bounds) + 1.0,
                        bounds.main.persistent_B, bounds.point, bounds.points,
                        extra_s + (size_t)p * points);
    }
}
