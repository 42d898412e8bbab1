/* stage_bound.c - the least step that one pipeline stage allows. */
#include "planner/bound/stage_bound.h"

#include <math.h>

mf_pass_mode mf_pass_mode_of(mf_schedule_kind k) {
    const unsigned does = mf_schedule_rules[k].does;
    if ((does & MF_SCHEDULE_MERGES) != 0) {
        return MF_PASS_MODE_MERGED;
    }
    return (does & MF_SCHEDULE_SPLITS) != 0 ? MF_PASS_MODE_SPLIT : MF_PASS_MODE_PLAIN;
}

/* The stage's work from its first backward pass on, less one forward and one backward pass, which
 * the way of that micro-batch already counts. n: forward passes done before. */
static double work_after_first_backward_s(mf_pass_mode mode, double m, double n,
                                          const mf_stage_sums *x) {
    double rest = (m - n) * x->time_s + (n - 1.0) * x->b_s;
    return mode == MF_PASS_MODE_SPLIT ? rest + n * x->w_s : rest;
}

double mf_stage_exposed_s(double exposed, double collective_s, double uncounted_s,
                          double beside_s) {
    if (exposed >= 1.0) {
        return collective_s;
    }
    double counted_s = mf_smaller(collective_s - uncounted_s, beside_s);
    return counted_s > 0.0 ? exposed * counted_s : 0.0;
}

double mf_persistent_B(const mf_layout *l, mf_param_count params) {
    mf_stage_memory s = mf_param_memory(l, params);
    double rounding_B = 32.0; /* a shard's last element: four figures of eight bytes at most */
    double bytes = s.weights_B + s.gradients_B + s.optimizer_B;
    return bytes > rounding_B ? bytes - rounding_B : 0.0;
}

double mf_stage_bound_s(const mf_layout *l, const mf_order_summary *o, int64_t p,
                        const mf_stage_sums *x) {
    if (isinf(x->time_s) || isinf(x->plain_s)) {
        return HUGE_VAL; /* terms below multiply these by zero, which would give NaN */
    }
    mf_pass_mode mode = mf_pass_mode_of(l->schedule);
    bool one = o->chunks == 1;
    size_t at = (size_t)p * (size_t)(o->layers + 1) + (size_t)x->layers;
    double m = (double)l->micro_batches, least = (double)o->warm_least[at];
    double most = (double)o->warm_most[at];
    double way_s = mode == MF_PASS_MODE_SPLIT ? 0.0 : x->out_s, last_s = 0.0;
    if (p > 0 &&
        mode != MF_PASS_MODE_SPLIT) { /* the last tensor leaves while the way out counts it */
        last_s = x->hold_s / (double)((p > 0) + (p + 1 < o->stages));
    }
    double out_s = mf_larger(way_s, x->norm_s);
    double held_s = m * x->hold_s + x->exposed_s;
    double work_s = m * x->time_s;
    if (mode ==
        MF_PASS_MODE_MERGED) { /* pairs are made of what is neither warm-up nor its mirror */
        work_s = (m - least) * x->time_s + least * x->plain_s;
    }
    double own_s = l->micro_batches == 1 ? x->all_anew_s : x->anew_s;
    double step_s = x->in_s + work_s + held_s + mf_larger(way_s - last_s, x->norm_s) - own_s;
    double n = l->schedule == MF_SCHED_GPIPE ? 1.0 : most;
    if (one) {
        double turn_s = x->in_s + x->f_s + x->b_s + x->behind_s + out_s - x->all_anew_s;
        step_s = mf_larger(step_s, turn_s + work_after_first_backward_s(mode, m, n, x) +
                                       x->hold_s * (m - n));
    } else {
        step_s = mf_larger(step_s, x->behind_s + (m - n) * x->time_s + n * (x->b_s + x->w_s) +
                                       out_s - own_s);
    }
    if (x->reduce_s > 0.0) {
        double before_s = one ? (m - 1.0) * x->time_s + x->f_s : m * x->f_s;
        if (mode == MF_PASS_MODE_MERGED) {
            before_s = m * x->f_s;
        }
        step_s = mf_larger(step_s, x->in_s + before_s + x->reduce_s + x->norm_s - own_s);
    }
    if (x->gather_s > 0.0) {
        double after_s = one && mode != MF_PASS_MODE_MERGED ? m * x->time_s - x->f_s : m * x->b_s;
        step_s = mf_larger(step_s, x->gather_s + after_s + out_s - own_s);
    }
    step_s = mf_larger(step_s, m * x->host_s + x->norm_s);
    return step_s + x->step_end_s;
}
