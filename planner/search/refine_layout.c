/* refine_layout.c - single layouts: tighter and tighter bounds, and plans simulated on the way. */
#include "planner/search/search.h"
#include "planner/splits/split_proof.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool uses(const mf_search_context *w, mf_mechanism m) {
    return mf_uses(w->evaluator->without, m);
}

typedef struct refining {
    mf_search_context *w;
    mf_search_node *n;
    mf_partition *in;
    double best_s, target_s, keep_s;
    int64_t most_us;          /* that one thing may take; 0 = any */
    bool wants_plan;          /* any is of use */
    const mf_path_set *known; /* paths of the order to begin with; or NULL */
    mf_search_outcome *out;
} refining;

/* Simulates an assignment; a plan that fits and is the fastest of this task is kept, if it is among
 * the fastest of all. Only then the gaps of its memory's arrangement are found, which takes much
 * longer (sure: it is known to fit with them). Returns its time, or INFINITY when it does not fit;
 * *stage is the one that does not. */
static double simulate(refining *c, const mf_assignment *a, bool sure, int *stage) {
    mf_search_outcome *out = c->out;
    const mf_evaluator *o = c->w->evaluator;
    const mf_layout *l = &c->in->layout;
    mf_step step;
    out->status = o->ops->play(o->self, l, a, &step, &out->err);
    out->simulated++;
    out->work_ns += mf_partition_step_ns(c->in);
    double time_s = step.time_s;
    if (out->status == MF_OK && step.fits && time_s >= c->keep_s) {
        *stage = -1;
        return time_s;
    }
    if (out->status == MF_OK && step.fits && !sure) {
        out->status = o->ops->fit(o->self, l, a, 0, &step, &out->err);
        out->work_ns += mf_evaluator_memory_ns(a->positions, step.looks);
    }
    if (out->status != MF_OK) {
        return HUGE_VAL;
    }
    step.time_s = time_s;
    *stage = step.peak_B > step.usable_B ? (int)step.stage : -1;
    if (!step.fits) {
        return HUGE_VAL;
    }
    if (!out->found || step.time_s < out->plan.time_s) {
        out->found = true;
        out->plan.time_s = step.time_s;
        out->plan.layout = c->in->layout;
        out->plan.assignment = *a;
    }
    return step.time_s;
}

/* What fits by its sums alone may not with the gaps of its arrangement: then these count. */
static void fill_with_gaps(refining *c, const int *first) {
    mf_partition *in = c->in;
    if (!uses(c->w, MF_MECHANISM_REFILL)) {
        return;
    }
    mf_assignment a;
    int stage;
    double *usable_B = malloc((size_t)in->stages * sizeof *usable_B);
    int32_t *count = calloc(mf_partition_cells(in), sizeof *count);
    mf_status status = usable_B && count ? MF_OK : MF_NOMEM;
    for (int p = 0; status == MF_OK && p < in->stages; p++) {
        usable_B[p] = in->usable_B;
    }
    if (status == MF_OK) {
        status = mf_partition_fill_checked(in, first, true, usable_B, count, &a, &c->out->err);
    }
    if (status == MF_OK) {
        simulate(c, &a, true, &stage);
    } else if (status != MF_INFEASIBLE) {
        c->out->status = status;
    }
    free(usable_B);
    free(count);
}

/* --- plans ------------------------------------------------------------------------------------ */

/* The smaller of most_us and the limit of one task (c->most_us), in counted nanoseconds. */
static int64_t effort_ns(const refining *c, int64_t most_us) {
    return 1000 * (c->most_us > 0 && c->most_us < most_us ? c->most_us : most_us);
}

/* Improves a split for most_us at most, fills it with memory choices and simulates it. Not finding
 * any is no failure. */
static void try_split(refining *c, int64_t most_us, int *first) {
    mf_assignment a;
    int stage;
    double time_s = 0.0;
    mf_status status = mf_partition_improve(c->in, MF_HOPELESS * c->best_s, effort_ns(c, most_us),
                                            first, &a, &time_s, &c->out->err);
    if (status == MF_INFEASIBLE && c->n->level != MF_LEVEL_LAYOUT &&
        uses(c->w, MF_MECHANISM_GIVE_AWAY)) {
        status = mf_partition_give_away(c->in, first, &c->out->err);
        if (status == MF_OK) {
            status = mf_partition_improve(c->in, MF_HOPELESS * c->best_s, effort_ns(c, most_us),
                                          first, &a, &time_s, &c->out->err);
        }
    }
    c->out->tried = status == MF_OK && c->n->level == MF_LEVEL_TRY;
    if (status == MF_OK && time_s < MF_WORSE * c->best_s) {
        if (isinf(simulate(c, &a, false, &stage)) && c->out->status == MF_OK) {
            fill_with_gaps(c, first);
        }
    } else if (status != MF_OK && status != MF_INFEASIBLE) {
        c->out->status = status;
    }
}

/* The node comes back with a better bound, unless that closes it. */
static void requeue(refining *c, double bound_s, mf_level level) {
    mf_search_node next = *c->n;
    next.level = (uint8_t)level;
    next.tries = level == c->n->level ? (uint8_t)(c->n->tries + 1) : 0;
    next.key_s = fmax(bound_s, c->n->key_s);
    double best_s = c->out->found ? fmin(c->best_s, c->out->plan.time_s) : c->best_s;
    if (c->out->status == MF_OK && next.key_s < best_s && mf_search_add(c->out, &next)) {
        memset(&c->n->tried, 0, sizeof c->n->tried); /* handed over */
    }
}

/* The node comes back with a better bound, to be worked on then. */
static void wait_again(refining *c, double bound_s) {
    const uint8_t tries = c->n->tries;
    c->n->tries--;
    requeue(c, bound_s, (mf_level)c->n->level);
    c->n->tries = tries;
}

/* The bound by paths that were found for the order, if any; c->known becomes the set that bounds
 * best. */
static double mean_s(refining *c, double enough_s) {
    const mf_path_set *sets[MF_PATH_SETS];
    int count = mf_search_path_sets_of(c->w, &c->in->layout, 0, c->out->seen, sets);
    double most_s = 0.0;
    c->known = NULL;
    for (int i = 0; i < count && most_s < enough_s && c->out->status == MF_OK; i++) {
        double bound_s = 0.0;
        if (uses(c->w, MF_MECHANISM_PARTITION_MEAN)) {
            c->out->status = mf_partition_mean_s(c->in, sets[i], &bound_s, &c->out->err);
        }
        if (!c->known || bound_s > most_s) {
            c->known = sets[i];
            most_s = bound_s;
        }
    }
    return most_s;
}

/* By what trees of other layouts of the order have proven, as far as that is above proven_s. */
static double proof_s(const refining *c, double proven_s, double enough_s) {
    const mf_split_proof *proofs[MF_PROOFS];
    if (!uses(c->w, MF_MECHANISM_TREE_PROOFS)) {
        return proven_s;
    }
    const int count = mf_search_proofs_of(c->w, &c->in->layout, c->out->seen, proofs);
    for (int i = 0; i < count && proven_s < enough_s; i++) {
        proven_s = fmax(proven_s, mf_partition_proof_s(c->in, proofs[i], proven_s, enough_s));
    }
    return proven_s;
}

/* Looks for a plan, not for a bound: improves the even split. */
static void try_even(refining *c, int64_t most_us) {
    mf_assignment even;
    mf_status status = mf_assignment_even(c->in->model, &c->in->layout, &even, &c->out->err);
    if (status == MF_OK) {
        try_split(c, most_us, even.first);
    } else {
        c->out->status = status == MF_LAYOUT ? MF_OK : status; /* no even split is valid */
    }
}

static void by_bound(refining *c) {
    const double enough_s = fmin(c->best_s, c->target_s);
    const double bound_s = proof_s(c, fmax(c->n->key_s, mean_s(c, enough_s)), enough_s);
    if (c->out->status == MF_OK && c->wants_plan) {
        try_even(c, MF_IMPROVE_US / 4);
    }
    if (c->out->status == MF_OK) { /* where paths are known, the relaxation has nothing to find */
        requeue(c, bound_s,
                c->known || !uses(c->w, MF_MECHANISM_RELAXATION) ? MF_LEVEL_SPLITS
                                                                 : MF_LEVEL_RELAXATION);
    }
}

static mf_search_path_set *new_paths(refining *c) {
    const mf_layout *l = &c->in->layout;
    mf_search_path_set *x = calloc(1, sizeof *x);
    if (!x) {
        c->out->status = mf_err_set(&c->out->err, MF_NOMEM, "out of memory");
        return NULL;
    }
    x->pp = l->pp;
    x->vpp = l->vpp;
    x->micro_batches = l->micro_batches;
    x->schedule = (int)l->schedule;
    return x;
}

/* Paths that have a mean are kept for their order. */
static void hand_over(refining *c, mf_search_path_set *found) {
    if (found->paths.mean.count[0]) {
        c->out->paths = found;
    } else {
        mf_path_set_clear(&found->paths);
        free(found);
    }
}

static void hand_over_proof(refining *c, mf_split_proof *proof) {
    mf_search_path_set *x = proof && proof->live >= MF_PROOF_LEAST ? new_paths(c) : NULL;
    if (x) {
        x->proof = proof;
        c->out->proof = x;
    } else {
        mf_split_proof_free(proof);
    }
}

/* The coarse relaxation and the mean of its paths. The split nearest to its point is tried. */
static double relax(refining *c, mf_search_path_set *found) {
    double bound_s = 0.0, mean = 0.0;
    mf_milp_outcome outcome = MF_MILP_FAILED;
    mf_search_outcome *out = c->out;
    int *first = calloc((size_t)c->in->vstages + 1, sizeof *first);
    if (!first) {
        out->status = mf_err_set(&out->err, MF_NOMEM, "out of memory");
        return 0.0;
    }
    out->status =
        mf_partition_relax(c->in, c->known, c->best_s, effort_ns(c, MF_ROOT_US), c->w->fault,
                           &found->paths, first, &outcome, &bound_s, &out->err);
    if (out->status == MF_OK && found->paths.mean.count[0] && bound_s < c->best_s) {
        out->status = mf_partition_mean_s(c->in, &found->paths, &mean, &out->err);
    }
    bound_s = fmax(bound_s, mean);
    out->milp_failed += outcome == MF_MILP_FAILED;
    if (out->status == MF_OK && outcome == MF_MILP_OPTIMAL && c->wants_plan &&
        mf_partition_is_split(c->in, first)) {
        try_split(c, MF_IMPROVE_US, first);
    }
    free(first);
    return bound_s;
}

static void by_relaxation(refining *c) {
    double bound_s =
        fmax(c->n->key_s, mean_s(c, c->target_s)); /* others of the order may have found paths */
    if (c->out->status != MF_OK || bound_s >= c->best_s || bound_s >= c->target_s) {
        requeue(c, bound_s, MF_LEVEL_RELAXATION);
        return;
    }
    if (c->known) {
        requeue(c, bound_s, MF_LEVEL_SPLITS); /* paths and weights are known */
        return;
    }
    mf_search_path_set *found = new_paths(c);
    if (found) {
        bound_s = fmax(bound_s, relax(c, found));
        requeue(c, bound_s, MF_LEVEL_SPLITS);
        hand_over(c, found);
    }
}

/* Effort that a tree may use: more each time that it is taken up. */
static int64_t tree_us(const refining *c) {
    int64_t most_us = c->n->tries == 0 ? MF_ROOT_US : MF_TREE_US;
    for (int i = 1; i < c->n->tries && i < MF_TREE_TRIES; i++) {
        most_us *= MF_TREE_MORE;
    }
    bool look = c->target_s >= c->best_s; /* no plan is known, or the gap is proven */
    return look ? most_us / MF_LOOK_PART : most_us;
}

/* Is the layout small enough for the integer program, and is that switched on? */
static bool has_program(const refining *c) {
    return c->in->vstages <= MF_EXACT_VSTAGES && uses(c->w, MF_MECHANISM_INTEGER_PROGRAM);
}

/* Bounds the layout by its tree over splits, up to the target: what lies above waits. */
static void by_splits(refining *c) {
    mf_partition_split_options o = {
        .proven_s = c->n->key_s,
        .cutoff_s = fmin(c->best_s, c->target_s),
        .lp_limit = c->n->tries == 0 ? 0 : INT64_MAX, /* the relaxation alone at first */
        .effort_ns = effort_ns(c, tree_us(c)),
        .own_losses = c->n->tries > 0 && uses(c->w, MF_MECHANISM_FIXED_SPLIT),
        .rest = uses(c->w, MF_MECHANISM_TREE_REST) ? &c->n->tried.rest : NULL,
        .cancel = c->w->cancel,
        .fault = c->w->fault,
    };
    mf_partition_split_result r;
    const double mean = proof_s(c, fmax(c->n->key_s, mean_s(c, o.cutoff_s)), o.cutoff_s);
    mf_split_proof *proof = NULL;
    o.known = c->known;
    o.proven_s = mean;
    o.proof = c->n->tries > 0 && uses(c->w, MF_MECHANISM_TREE_PROOFS) ? &proof : NULL;
    if (!uses(c->w, MF_MECHANISM_SPLITS)) {
        requeue(c, mean, MF_LEVEL_EXACT);
        return;
    }
    if (c->out->status != MF_OK || mean >= o.cutoff_s) {
        requeue(c, mean, MF_LEVEL_SPLITS);
        return;
    }
    if (o.proof && mean > c->n->key_s * (1.0 + MF_RAISED)) {
        wait_again(c, mean); /* others may be lower now */
        return;
    }
    mf_search_path_set *found = new_paths(c);
    if (!found) {
        return;
    }
    o.kept = &found->paths;
    c->out->status = mf_partition_splits(c->in, &o, &r, &c->out->err);
    hand_over(c, found);
    hand_over_proof(c, proof);
    if (c->out->status != MF_OK) {
        return;
    }
    if (r.outcome == MF_MILP_FAILED) {
        c->out->milp_failed++;
    } else {
        c->out->milps += r.lps > 0;
    }
    if (r.have || r.met ||
        (r.near && (c->n->tries == 0 || uses(c->w, MF_MECHANISM_TREE_POINTS)) &&
         r.bound_s < o.cutoff_s && mf_partition_is_split(c->in, r.first))) {
        try_split(c, MF_IMPROVE_US, r.first);
    }
    const bool more = c->n->tries < MF_TREE_TRIES ||
                      (c->n->tries < MF_SEARCH_DONE - 1 && r.bound_s > c->n->key_s * MF_CLIMB_GAIN);
    /* a program that failed may end when others of its paths are known */
    bool again = r.outcome == MF_MILP_OPTIMAL ? !r.have || (!o.own_losses && more) : more;
    if (!again && r.outcome != MF_MILP_OPTIMAL && c->n->tries < MF_SEARCH_DONE - 1 &&
        !has_program(c) && uses(c->w, MF_MECHANISM_TREE_REST)) {
        c->n->stalled = again = true;
    }
    if (!again) {
        c->n->cause = r.outcome == MF_MILP_OPTIMAL ? c->n->cause : MF_CAUSE_TREE;
        mf_split_rest_clear(&c->n->tried.rest);
    }
    requeue(c, r.bound_s, again ? MF_LEVEL_SPLITS : MF_LEVEL_EXACT);
    mf_partition_split_result_clear(&r);
}

static bool solve(refining *c, mf_partition_solution *s) {
    mean_s(c, c->best_s); /* for the paths */
    mf_partition_options o = {
        .proven_s = c->n->key_s,
        .cutoff_s = c->best_s,
        .node_limit = c->n->tries == 0 ? MF_EXACT_NODES : MF_EXACT_NODES_AGAIN,
        .effort_ns = effort_ns(c, c->n->tries == 0 ? MF_EXACT_US : MF_EXACT_AGAIN_US),
        .known = c->known,
        .cancel = c->w->cancel,
        .fault = c->w->fault,
    };
    if (c->n->key_s >= c->best_s) {
        return false;
    }
    c->out->status = mf_partition_solve(c->in, &c->n->tried, &o, s, &c->out->err);
    if (c->out->status != MF_OK) {
        return false;
    }
    if (s->outcome == MF_MILP_FAILED) {
        c->out->milp_failed++;
    } else {
        c->out->milps++;
    }
    return true;
}

/* Simulates every plan of a small layout. True: that closed it. */
static bool try_all(refining *c) {
    if (!uses(c->w, MF_MECHANISM_EXHAUSTIVE)) {
        return false;
    }
    mf_partition_all *all = malloc(sizeof *all);
    if (!all) {
        c->out->status = mf_err_set(&c->out->err, MF_NOMEM, "out of memory");
        return false;
    }
    mf_search_outcome *out = c->out;
    out->status = mf_partition_try_all(c->in, c->w->space.pinned, MF_FEW_PLANS, all, &out->err);
    out->simulated += all->tried;
    out->work_ns += all->tried * mf_partition_step_ns(c->in);
    bool closed = all->complete;
    if (out->status == MF_OK && all->found && (!out->found || all->time_s < out->plan.time_s)) {
        out->found = true;
        out->plan.time_s = all->time_s;
        out->plan.layout = c->in->layout;
        out->plan.assignment = all->best;
    }
    free(all);
    return closed;
}

/* The layout stays open at this bound. */
static void leave_open(refining *c, double bound_s, mf_search_cause cause) {
    mf_search_node open = *c->n;
    open.level = MF_LEVEL_EXACT;
    open.tries = MF_SEARCH_DONE;
    open.cause = (uint8_t)cause;
    open.key_s = fmax(bound_s, c->n->key_s);
    memset(&open.tried, 0, sizeof open.tried);
    mf_search_add(c->out, &open);
}

/* The stage is too large in this order of its choices. Is there only one order? Yes where each slot
 * of each of its virtual stages has one kind of choice. */
static bool is_one_order(const mf_partition *in, int stage, const int32_t *count) {
    for (int v = 0; v < in->vstages; v++) {
        for (int s = 0; s < in->slots && mf_layout_stage_of(&in->layout, v) == stage; s++) {
            int kinds = 0;
            for (int m = 0; m < mf_partition_class_at(in, v, s)->choices; m++) {
                kinds += count[mf_partition_cell(in, v, s, m)] > 0;
            }
            if (kinds > 1) {
                return false;
            }
        }
    }
    return true;
}

static bool is_written(refining *c, const int32_t *count, mf_assignment *a) {
    mf_status status = mf_partition_write(c->in, count, a, &c->out->err);
    c->out->status = status == MF_OK ? c->out->status : status;
    return status == MF_OK;
}

/* Simulates one more answer of the exact program. If it takes longer than the program says, the
 * layout stays open: a cut would also exclude what the program cannot tell from the answer (other
 * orders of its choices, and choices that are beaten by its sums). If it is too large for a stage
 * in the one order that there is, a cut excludes it. */
static void by_exact(refining *c) {
    mf_partition_solution s;
    mf_assignment a;
    if (!has_program(c)) {
        leave_open(c, c->n->key_s, (mf_search_cause)c->n->cause);
        return;
    }
    if (!solve(c, &s)) {
        return;
    }
    int stage = -1;
    bool first = c->n->tried.sets == 0;
    if (s.outcome == MF_MILP_FAILED || !s.have) {
        bool again = s.outcome == MF_MILP_LIMIT && c->n->tries < 1;
        if (s.outcome == MF_MILP_INFEASIBLE) {
            /* closed: nothing below the best is left */
        } else if (again) {
            requeue(c, s.bound_s, MF_LEVEL_EXACT);
        } else if (!(first && try_all(c)) && c->out->status == MF_OK) {
            leave_open(c, s.bound_s, MF_CAUSE_LIMIT);
        }
    } else if (is_written(c, s.count, &a)) {
        double time_s = simulate(c, &a, false, &stage);
        bool optimal = s.outcome == MF_MILP_OPTIMAL && time_s <= s.bound_s * (1.0 + 1e-9);
        if (c->out->status == MF_OK && !optimal && !(first && try_all(c)) &&
            c->out->status == MF_OK) {
            bool enough = c->n->tried.sets >= MF_CUTS;
            if (stage < 0 || enough || !is_one_order(c->in, stage, s.count)) {
                leave_open(c, s.bound_s, MF_CAUSE_ANSWERS);
            } else {
                c->out->status =
                    mf_partition_tried_add(c->in, &c->n->tried, stage, s.count, &c->out->err);
                c->n->tries = 0;
                requeue(c, s.bound_s, MF_LEVEL_EXACT);
            }
        }
    }
    mf_partition_solution_clear(&s);
}

/* Programs with every choice are worth tighter portions of merged pairs. */
static void price_all_pairs(refining *c) {
    if (uses(c->w, MF_MECHANISM_PAIR_PORTIONS) && c->in->merged &&
        c->n->level > MF_LEVEL_RELAXATION && c->n->level != MF_LEVEL_TRY) {
        c->out->status = mf_partition_price_all_pairs(c->in, &c->out->err);
    }
}

static mf_status open_partition(mf_search_context *w, const mf_layout *l, mf_partition **in,
                                mf_err *e) {
    const mf_order_summary *order = NULL;
    const mf_status status = mf_search_order(w, l, &order, e);
    return status == MF_OK ? mf_partition_create(w->costs, l, w->space.pinned, order, in, e)
                           : status;
}

mf_status mf_search_improve_plan(mf_search_context *w, const mf_search_found *plan, int64_t most_us,
                                 mf_search_outcome *out, mf_err *e) {
    mf_partition *in = NULL;
    mf_status status = open_partition(w, &plan->layout, &in, e);
    out->plan = *plan;
    if (status == MF_OK) {
        mf_partition_losses(in, NULL, INFINITY);
        int64_t before_ns = *in->effort_ns;
        status = mf_partition_improve_step(in, 1000 * most_us, &out->plan.assignment,
                                           &out->plan.time_s, &out->simulated, e);
        out->cut = *in->effort_ns - before_ns >= 1000 * most_us;
        if (status == MF_OK && uses(w, MF_MECHANISM_CHOICE_SEARCH)) {
            before_ns = *in->effort_ns;
            status = mf_partition_improve_choices(in, 1000 * most_us, &out->plan.assignment,
                                                  &out->plan.time_s, &out->simulated, e);
            out->cut = out->cut || *in->effort_ns - before_ns >= 1000 * most_us;
        }
        out->found = out->plan.time_s < plan->time_s; /* also where it was interrupted since */
        out->work_ns += *in->effort_ns;
    }
    mf_partition_destroy(in);
    return status;
}

/* The key of a layout listed for a try is not its bound: is its bound below the best plan? */
static bool is_worth_a_try(mf_search_context *w, const mf_search_node *n, const mf_search_aim *aim,
                           mf_search_outcome *out) {
    mf_search_node own = *n;
    const mf_search_aim all = {.best_s = aim->best_s, .target_s = HUGE_VAL};
    own.key_s = 0.0;
    own.tries = 1; /* by every choice, right away */
    return mf_search_bound_again(w, &own, &all, out) < aim->best_s && out->status == MF_OK;
}

void mf_search_refine(mf_search_context *w, mf_search_node *n, const mf_search_aim *aim,
                      mf_search_outcome *out) {
    double best_s = aim->best_s;
    refining c = {.w = w,
                  .n = n,
                  .best_s = best_s,
                  .target_s = aim->target_s,
                  .keep_s = aim->keep_s,
                  .most_us = aim->most_us,
                  .wants_plan = aim->wants_plan,
                  .out = out};
    if (n->level == MF_LEVEL_LAYOUT) {
        double bound_s = mf_search_bound_again(w, n, aim, out);
        if (out->status != MF_OK || bound_s > n->key_s * (1.0 + MF_RAISED)) {
            requeue(&c, bound_s, MF_LEVEL_LAYOUT);
            return;
        }
    }
    if (n->level == MF_LEVEL_TRY && !is_worth_a_try(w, n, aim, out)) {
        return;
    }
    const mf_layout l = mf_search_layout(w, n);
    out->status = open_partition(w, &l, &c.in, &out->err);
    if (out->status == MF_OK && n->level != MF_LEVEL_EXACT) {
        mf_partition_gather(c.in);
    }
    if (out->status == MF_OK) {
        price_all_pairs(&c);
    }
    if (out->status == MF_OK) {
        mf_partition_losses(c.in, NULL, best_s);
        if (n->level == MF_LEVEL_LAYOUT) {
            out->evaluated = true;
            by_bound(&c);
        } else if (n->level == MF_LEVEL_RELAXATION) {
            by_relaxation(&c);
        } else if (n->level == MF_LEVEL_SPLITS) {
            by_splits(&c);
        } else if (n->level == MF_LEVEL_TRY) {
            try_even(&c, MF_IMPROVE_US);
        } else {
            by_exact(&c);
        }
    }
    out->work_ns += c.in ? *c.in->effort_ns : 0;
    mf_partition_destroy(c.in);
    mf_partition_tried_clear(&n->tried);
}
