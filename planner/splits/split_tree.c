/* split_tree.c - whole positions on every virtual stage, by branch and bound.
 *
 * Most of what whole layers cost comes from the split of the positions: relaxed, every virtual
 * stage holds the same fraction of a layer too many or too few, and the schedule's bubbles vanish.
 * The choices of memory may stay in any proportion. So the tree branches on nothing but the number
 * of positions on a virtual stage, or on a stage with all its chunks. With every range of these the
 * places at which positions can stand shrink, since their order is kept: y[v, slot], layers of a
 * slot up to v, lies between what the fewest and the most positions up to v hold of it.
 *
 * Which numbers tell most differs: sums of stages where the steady state is what counts, virtual
 * stages near embedding, dense layers and head. So before a node is branched the most promising
 * numbers of both kinds are tried, each side for a few pivots, until enough is known of them
 * (branch_gains.h).
 */
#include "core/base/flag.h"
#include "planner/bound/overlap_loss.h"
#include "planner/bound/stage_bound.h"

#include "planner/splits/branch_gains.h"
#include "planner/splits/open_splits.h"
#include "planner/splits/rows.h"
#include "planner/splits/split_ranges.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct tree {
    mf_partition *in;
    const mf_partition_split_options *o;
    mf_rows rows;
    mf_lp *lp;
    double cutoff; /* in the program's unit; the least bound of a whole split as soon as one is met:
                    * no more than that can be proven */
    int sizes;     /* numbers that are branched on: n[v], then the sums of stages with chunks */
    mf_split_range *now; /* [2][sizes] of the node that is worked on, and of one below it */
    mf_open_splits open_nodes;
    int last;          /* open node that the program stands at; -1: none */
    mf_lp_basis *here; /* of the node that is worked on */
    int *least, *most; /* [vstages + 1] positions before v: fewest and most */
    int *slots_until;  /* [slots][positions + 1] positions of a slot among the first so many */
    double *n;         /* [sizes] at the last point, */
    double *at,
        *value; /* [sizes] where trials are made: those made already are rounded; as it was */
    mf_branch_gain *gain; /* [sizes] */
    mf_split_range *side; /* [sizes] */
    int *held;            /* [vstages] positions that losses are known for */
    int *fitting;         /* [vstages + stages] positions that memory allows */
    double open;          /* least bound of what is left open or is a whole split */
    int64_t lps;
    int64_t started_ns; /* *in->effort_ns when it began */
    mf_partition_split_result *out;
} tree;

/* --- ranges ------------------------------------------------------------------------------------
 */

/* Puts ranges into the program. */
static void put(tree *t, const mf_split_range *r) {
    const mf_partition *in = t->in;
    for (int i = 0; i < t->sizes; i++) {
        mf_lp_set_row(t->lp, t->rows.first_size_row + i, r[i].lo, r[i].hi);
    }
    for (int v = 0; v < in->vstages; v++) {
        for (int s = 0; s < in->slots; s++) {
            int col = t->rows.until[v * in->slots + s];
            const int *until = t->slots_until + (size_t)s * (size_t)(in->positions + 1);
            if (col >= 0) {
                mf_lp_set_col(t->lp, col, until[t->least[v + 1]], until[t->most[v + 1]]);
            }
        }
    }
}

static void read_sizes(tree *t) {
    const mf_partition *in = t->in;
    memset(t->n, 0, (size_t)t->sizes * sizeof *t->n);
    mf_rows_sizes(&t->rows, mf_lp_point(t->lp), t->n);
    for (int v = 0; v < in->vstages && in->chunks > 1; v++) {
        t->n[in->vstages + mf_layout_stage_of(&in->layout, v)] += t->n[v];
    }
}

/* Counted nanoseconds that are left to it. */
static int64_t left_ns(const tree *t) {
    return t->o->effort_ns - (*t->in->effort_ns - t->started_ns) - mf_lp_effort_ns(t->lp);
}

static bool is_out_of_effort(const tree *t) {
    return t->o->effort_ns > 0 && left_ns(t) <= 0;
}

/* Passes lose what the positions do that every virtual stage holds at least. */
static void take_losses(tree *t, const mf_split_range *r) {
    const int vstages = t->in->vstages;
    bool same = true;
    for (int v = 0; v < vstages; v++) {
        same = same && t->held[v] == r[v].lo;
        t->held[v] = r[v].lo;
    }
    if (t->rows.lossy && !same) {
        mf_partition_losses(t->in, t->held, t->o->cutoff_s);
        mf_rows_take_losses(&t->rows, t->lp);
    }
}

/* Solves for ranges. Returns the bound, the cutoff at most; INFINITY when nothing is left. The
 * point's n is kept when the bound is below the cutoff. */
static double solve(tree *t, mf_split_range *r, int lazy) {
    double bound;
    if (!mf_split_narrow(t->in, r, t->least, t->most)) {
        return HUGE_VAL;
    }
    put(t, r);
    if (lazy > 0) { /* no trial, which takes those of its node */
        take_losses(t, r);
    }
    t->rows.at_node = lazy < MF_ROOT_ROUNDS;
    mf_milp_outcome outcome = mf_lp_solve(t->lp, t->cutoff, lazy, &bound);
    if (outcome == MF_MILP_FAILED) {
        t->out->outcome = MF_MILP_FAILED;
        return -HUGE_VAL;
    }
    if (outcome == MF_MILP_INFEASIBLE) {
        return HUGE_VAL;
    }
    if (outcome == MF_MILP_OPTIMAL && bound < t->cutoff) {
        read_sizes(t);
    }
    return bound;
}

/* --- trials ------------------------------------------------------------------------------------
 */

/* A side of number i from where the program was kept, for so many pivots: what is below or above
 * its value at the point. */
static double try_side(tree *t, const mf_split_range *r, int i, bool up, int pivots) {
    mf_split_range *side = t->side;
    memcpy(side, r, (size_t)t->sizes * sizeof *side);
    if (up) {
        side[i].lo = (int16_t)(floor(t->at[i]) + 1.0);
    } else {
        side[i].hi = (int16_t)floor(t->at[i]);
    }
    mf_lp_go_to(t->lp, t->here);
    mf_lp_limit(t->lp, pivots);
    double bound = solve(t, side, 0);
    mf_lp_limit(t->lp, 0);
    return bound;
}

/* What a side of number i gained over its node's bound. */
static void note_gain(tree *t, int i, bool up, double value, double side, double bound) {
    mf_branch_note(&t->gain[i], up, value, fmin(side, t->cutoff) - bound);
}

/* Both sides of number i: what the bound gains there. A side that closes is taken from *r. Returns
 * a score, or -1 when a side was closed. */
static double try_both(tree *t, mf_split_range *r, int i, double bound) {
    double gain[2];
    for (int up = 0; up < 2; up++) {
        double side = try_side(t, r, i, up, MF_TRIAL_PIVOTS);
        note_gain(t, i, up, t->at[i], side, bound);
        if (side >= t->cutoff) {
            if (up) {
                r[i].hi = (int16_t)floor(t->at[i]);
            } else {
                r[i].lo = (int16_t)(floor(t->at[i]) + 1.0);
            }
            return -1.0;
        }
        gain[up] = side - bound;
    }
    return mf_branch_score(gain, MF_TRIAL_LITTLE * bound);
}

/* --- the tree ----------------------------------------------------------------------------------
 */

/* What to branch on at the point: of the numbers that promise most, of virtual stages and of stages
 * in turn, the one whose sides gain most. Those that are not known well are tried. The program was
 * noted here. -1: the ranges have changed, since a side of one of them closed. */
static int branch_on(tree *t, mf_split_range *r, double bound) {
    int best = -2, vstages = t->in->vstages;
    double most = -1.0;
    memcpy(t->at, t->n, (size_t)t->sizes * sizeof *t->at);
    memcpy(t->value, t->n, (size_t)t->sizes * sizeof *t->value);
    const mf_mechanisms without = t->in->evaluator->without;
    for (int k = 0; k < MF_TRIALS; k++) {
        const bool sums = k % 2 == 0 && mf_uses(without, MF_MECHANISM_STAGE_SUMS);
        double score;
        const int i =
            mf_branch_promising(t->gain, t->at, sums ? vstages : 0, sums ? t->sizes : vstages,
                                MF_TRIAL_LITTLE * bound, &score);
        if (i < 0) {
            continue;
        }
        if (!mf_uses(without, MF_MECHANISM_TRIALS)) {
            return i;
        }
        if (!mf_branch_is_known(&t->gain[i]) || !mf_uses(without, MF_MECHANISM_BRANCH_GAINS)) {
            score = try_both(t, r, i, bound);
        }
        if (t->out->outcome == MF_MILP_FAILED) {
            return -2;
        }
        if (score < 0.0) {
            return -1;
        }
        if (score > most) {
            most = score;
            best = i;
        }
        t->at[i] = round(t->at[i]); /* looked at */
    }
    return best;
}

/* The whole split at the point. */
static void keep_split(tree *t, double bound) {
    mf_partition_split_result *out = t->out;
    if ((out->have || out->met) && bound >= out->split_bound_s) {
        return;
    }
    out->have = bound < t->cutoff;
    out->met = !out->have;
    out->near = false;
    out->split_bound_s = bound;
    out->first[0] = 0;
    for (int v = 0; v < t->in->vstages; v++) {
        out->first[v + 1] = out->first[v] + (int)lround(t->n[v]);
    }
}

/* What the whole split at the point takes at least, with the losses of its own passes to what
 * its stages gather and reduce. */
static double fixed_split_bound(tree *t, double before) {
    mf_fixed_split x = {.cutoff_s = t->o->cutoff_s, .known = t->o->kept, .fault = t->o->fault};
    if (t->o->effort_ns > 0) {
        x.effort_ns = left_ns(t) > 1 ? left_ns(t) : 1;
    }
    int first[MF_MAX_VSTAGES + 1] = {0};
    for (int v = 0; v < t->in->vstages; v++) {
        first[v + 1] = first[v] + (int)lround(t->n[v]);
    }
    t->lps++;
    mf_status status = mf_rows_fixed_split(t->in, first, &x, t->rows.e);
    t->rows.status = t->rows.status == MF_OK ? status : t->rows.status;
    return fmax(before, x.bound_s / t->rows.unit_s / MF_BOUND_SAFETY);
}

/* The point is whole: paths are looked for until there are no more. Returns the bound; the split
 * is kept if the point is whole still. */
static double solve_whole_split(tree *t, mf_split_range *r, double before) {
    t->lps++;
    double bound = fmax(solve(t, r, MF_ROOT_ROUNDS), before);
    if (t->out->outcome == MF_MILP_FAILED || bound >= t->cutoff || is_out_of_effort(t) ||
        mf_branch_furthest(t->n, 0, t->sizes) >= 0) {
        return bound;
    }
    double own = t->o->own_losses ? fixed_split_bound(t, bound) : bound;
    keep_split(t, own);
    if (own < t->cutoff) {
        t->open = fmin(t->open, own);
        t->cutoff = own;
    }
    return bound;
}

static bool is_over(const tree *t) {
    return t->lps >= t->o->lp_limit || is_out_of_effort(t) || mf_flag_is_set(t->o->cancel);
}

/* The node whose ranges are at r stays open at this bound. solved: the program stands at it. */
static void leave_open(tree *t, const mf_split_range *r, double bound, bool solved) {
    mf_lp_basis *basis = solved ? mf_lp_note(t->lp, false, NULL) : NULL;
    t->last = solved ? t->open_nodes.count : t->last;
    if (!mf_open_splits_add(&t->open_nodes, bound, r, t->sizes, basis)) {
        t->rows.status = mf_err_set(t->rows.e, MF_NOMEM, "out of memory");
        t->open = fmin(t->open, bound);
    }
}

/* The side of a node whose ranges are at r, from the node's basis. Returns its bound. */
static double add_side(tree *t, mf_split_range *r, double before) {
    mf_lp_go_to(t->lp, t->here);
    t->last = -1;
    if (is_over(t)) {
        leave_open(t, r, before, false);
        return before;
    }
    t->lps++;
    const double bound = fmax(solve(t, r, MF_NODE_ROUNDS), before);
    if (t->out->outcome != MF_MILP_FAILED && bound < t->cutoff) {
        leave_open(t, r, bound, !is_out_of_effort(t)); /* there may be no point */
    }
    return bound;
}

/* Both sides of number i. */
static void add_sides(tree *t, const mf_split_range *r, int i, double value, double bound) {
    const int below = (int)floor(value);
    const bool up_first = value - below < 0.5;
    for (int side = 0; side < 2 && t->out->outcome != MF_MILP_FAILED; side++) {
        mf_split_range *child = t->now + t->sizes;
        const bool up = (side == 0) == up_first;
        memcpy(child, r, (size_t)t->sizes * sizeof *child);
        if (up) {
            child[i].lo = (int16_t)(below + 1);
        } else {
            child[i].hi = (int16_t)below;
        }
        const double own = add_side(t, child, bound);
        if (t->out->outcome != MF_MILP_FAILED && !is_out_of_effort(t)) {
            note_gain(t, i, up, value, own, bound);
        }
    }
}

/* All splits of a node but the whole one at the point. */
static void add_others(tree *t, mf_split_range *r, double bound) {
    int16_t at[MF_MAX_VSTAGES] = {0};
    for (int v = 0; v < t->in->vstages; v++) {
        at[v] = (int16_t)lround(t->n[v]);
    }
    for (int v = 0; v < t->in->vstages; v++) {
        for (int side = 0; side < 2 && t->out->outcome != MF_MILP_FAILED; side++) {
            mf_split_range *child = t->now + t->sizes;
            memcpy(child, r, (size_t)t->sizes * sizeof *child);
            if (side == 0) {
                child[v].hi = (int16_t)(at[v] - 1);
            } else {
                child[v].lo = (int16_t)(at[v] + 1);
            }
            if (child[v].lo <= child[v].hi) {
                add_side(t, child, bound);
            }
        }
        r[v].lo = r[v].hi = at[v];
    }
}

/* The node whose ranges are at r, at whose last point the program stands, becomes its sides, or
 * stays open where the effort is used. */
static void branch(tree *t, mf_split_range *r, double bound) {
    while (t->out->outcome != MF_MILP_FAILED && bound < t->cutoff) {
        if (!is_over(t) && mf_branch_furthest(t->n, 0, t->sizes) < 0) {
            bound = solve_whole_split(t, r, bound);
            if (t->out->outcome == MF_MILP_FAILED || bound >= t->cutoff) {
                return;
            }
        }
        if (is_over(t)) { /* there may be no point */
            leave_open(t, r, bound, false);
            return;
        }
        t->here = mf_lp_note(t->lp, true, t->here);
        if (mf_branch_furthest(t->n, 0, t->sizes) < 0) {
            add_others(t, r, bound);
            return;
        }
        const int i = branch_on(t, r, bound);
        if (i >= 0 && !is_over(t)) {
            add_sides(t, r, i, t->value[i], bound);
            return;
        }
        mf_lp_go_to(t->lp, t->here);
        if (!is_over(t)) {
            t->lps++;
            bound = fmax(solve(t, r, MF_NODE_ROUNDS), bound);
        }
    }
}

/* --- what is left open ------------------------------------------------------------------------
 */

/* The nodes that an earlier tree left open, if all else is at or above the cutoff of this one. */
static bool take_rest(tree *t) {
    mf_split_rest *x = t->o->rest;
    if (!x || x->open.count == 0 || !(t->o->cutoff_s <= x->cutoff_s)) {
        return false;
    }
    t->open_nodes = x->open;
    x->open = (mf_open_splits){0};
    return true;
}

/* All that is open, unless a whole split has lowered the cutoff, or nothing was branched on; and
 * what is known of its numbers. */
static void leave_rest(tree *t) {
    mf_open_splits_forget_bases(&t->open_nodes); /* of this program's rows */
    if (!t->o->rest) {
        mf_open_splits_clear(&t->open_nodes);
        free(t->gain);
        return;
    }
    mf_split_rest_clear(t->o->rest);
    t->o->rest->gain = t->gain;
    if (t->out->outcome == MF_MILP_LIMIT && t->lps > 1 && !t->out->have) {
        t->o->rest->cutoff_s = t->o->cutoff_s;
        t->o->rest->open = t->open_nodes;
    } else {
        mf_open_splits_clear(&t->open_nodes);
    }
}

/* Takes the next node out; the program stands at its last point, found again where it went on from
 * there. Returns its bound. */
static double take(tree *t, mf_split_range *r) {
    const bool least = mf_uses(t->in->evaluator->without, MF_MECHANISM_LEAST_FIRST);
    const int at = least ? mf_open_splits_least(&t->open_nodes) : t->open_nodes.count - 1;
    const bool there = at == t->last;
    mf_open_split x = mf_open_splits_take(&t->open_nodes, at);
    memcpy(r, x.range, (size_t)t->sizes * sizeof *r);
    t->last = -1;
    if (!there && x.bound < t->cutoff) {
        t->lps++;
        mf_lp_go_to(t->lp, x.basis);
        x.bound = fmax(solve(t, r, MF_AGAIN_ROUNDS), x.bound);
    }
    free(x.range);
    mf_lp_forget(x.basis);
    return x.bound;
}

/* The node of the least bound next, until none is below the cutoff or its effort is used: that is
 * what is proven then. */
static void grow(tree *t, double bound) {
    if (!take_rest(t)) {
        leave_open(t, t->now, bound, true);
    }
    while (t->open_nodes.count > 0 && t->out->outcome != MF_MILP_FAILED &&
           t->rows.status == MF_OK && !is_over(t)) {
        bound = take(t, t->now);
        branch(t, t->now, bound);
    }
    const double least = mf_open_splits_bound(&t->open_nodes);
    if (least < t->cutoff && t->out->outcome != MF_MILP_FAILED) {
        t->out->outcome = MF_MILP_LIMIT;
        t->open = fmin(t->open, least);
    }
}

/* The paths of the root's program get their weights; none are kept from then on. */
static void weigh_root_paths(tree *t) {
    mf_path_set *kept = t->rows.kept;
    double dual[MF_PATH_SET_MAX];
    for (int i = 0; kept && i < kept->count; i++) {
        dual[i] = mf_lp_row_dual(t->lp, t->rows.first_path_row + i);
    }
    if (kept) {
        mf_rows_weigh(&t->rows, dual, kept);
    }
    t->rows.kept = NULL;
}

static void start_ranges(tree *t) {
    int vstages = t->in->vstages;
    for (int i = 0; i < t->sizes; i++) {
        int most = t->in->positions - vstages + (i < vstages ? 1 : t->in->chunks);
        t->now[i] = (mf_split_range){1, (int16_t)(most < t->fitting[i] ? most : t->fitting[i])};
    }
}

/* May anything below the cutoff fit? */
static bool can_fit(const tree *t) {
    mf_split_ranges ranges;
    mf_split_ranges_by_time(t->in, t->o->cutoff_s, &ranges);
    return mf_split_ranges_by_memory(t->in, &ranges);
}

/* What memory allows. False: nothing fits. Numbers are limited where weight gradients are split off
 * and micro-batches wait for them; elsewhere trees end at about the same bounds without, and it is
 * only asked whether anything fits at all. */
static bool find_fitting(tree *t) {
    const mf_partition *in = t->in;
    if (in->split && mf_uses(in->evaluator->without, MF_MECHANISM_MOST_POSITIONS)) {
        return mf_rows_most_positions(in, &t->rows.ranges, t->fitting);
    }
    if (!t->rows.memory_ample && mf_uses(in->evaluator->without, MF_MECHANISM_MOST_POSITIONS) &&
        !can_fit(t)) {
        return false;
    }
    for (int i = 0; i < in->vstages + in->stages; i++) {
        t->fitting[i] = in->positions;
    }
    return true;
}

/* The root, then the tree. */
static void solve_tree(tree *t) {
    if (!find_fitting(t)) {
        return;
    }
    start_ranges(t);
    if (!mf_split_narrow(t->in, t->now, t->least, t->most)) {
        return;
    }
    t->lps++;
    mf_lp_stall(t->lp, MF_ROOT_STALL_ROUNDS, MF_ROOT_STALL_SHARE);
    double bound = solve(t, t->now, MF_ROOT_ROUNDS);
    mf_lp_stall(t->lp, 0, 0.0);
    weigh_root_paths(t);
    if (t->out->outcome == MF_MILP_FAILED || bound >= t->cutoff) {
        return;
    }
    if (!is_out_of_effort(t)) { /* there is a point */
        t->out->near = true;
        mf_rows_nearest(t->in, t->n, t->out->first);
        bound = fmax(bound, t->o->proven_s / t->rows.unit_s / MF_BOUND_SAFETY);
    }
    grow(t, bound);
    if (t->out->near && mf_uses(t->in->evaluator->without, MF_MECHANISM_TREE_POINTS)) {
        mf_rows_nearest(t->in, t->n, t->out->first);
    }
}

/* --- the whole ---------------------------------------------------------------------------------
 */

static mf_status make_tree(tree *t, mf_err *e) {
    const mf_partition *in = t->in;
    size_t vstages = (size_t)in->vstages, positions = (size_t)in->positions;
    t->sizes = in->vstages + (in->chunks > 1 ? in->stages : 0);
    t->now = calloc(3 * (size_t)t->sizes, sizeof *t->now);
    t->least = calloc(5 * vstages + 2 + (size_t)in->slots * (positions + 1), sizeof *t->least);
    t->n = calloc(3 * (size_t)t->sizes, sizeof *t->n);
    if (t->o->rest && t->o->rest->gain) {
        t->gain = t->o->rest->gain; /* this layout's tree has as many numbers each time */
        t->o->rest->gain = NULL;
    } else {
        t->gain = calloc((size_t)t->sizes, sizeof *t->gain);
    }
    t->out->first = calloc(vstages + 1, sizeof *t->out->first);
    if (!t->now || !t->least || !t->n || !t->gain || !t->out->first) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    t->side = t->now + 2 * t->sizes;
    t->most = t->least + vstages + 1;
    t->held = t->most + vstages + 1;
    t->fitting = t->held + vstages; /* there are no more stages than virtual ones */
    t->slots_until = t->fitting + 2 * vstages;
    t->at = t->n + t->sizes;
    t->value = t->at + t->sizes;
    for (int s = 0; s < in->slots; s++) {
        int *until = t->slots_until + (size_t)s * (positions + 1);
        for (size_t i = 0; i < positions; i++) {
            until[i + 1] = until[i] + (in->slot_at[i] == s);
        }
    }
    return MF_OK;
}

mf_status mf_partition_splits(mf_partition *in, const mf_partition_split_options *o,
                              mf_partition_split_result *out, mf_err *e) {
    tree t = {
        .in = in, .o = o, .out = out, .open = HUGE_VAL, .last = -1, .started_ns = *in->effort_ns};
    const mf_partition_options ro = {.hull = true,
                                     .splits = true,
                                     .memory_ample = mf_rows_memory_is_ample(in),
                                     .lossy = in->lost > 0.0 && in->lost <= MF_LOST_MOST,
                                     .cutoff_s = o->cutoff_s};
    memset(out, 0, sizeof *out);
    if (o->kept) {
        mf_path_set_init(o->kept, in->stages, in->chunks);
    }
    mf_status status = mf_rows_make(&t.rows, in, NULL, &ro, o->known, o->kept, e);
    if (status != MF_OK) {
        return status;
    }
    const mf_milp_options mo = {
        .cutoff = HUGE_VAL, .lazy = mf_rows_lazy_path, .lazy_user = &t.rows, .fault = o->fault};
    status = make_tree(&t, e);
    if (status == MF_OK) {
        status = mf_lp_open(&t.rows.milp, &mo, &t.lp, e);
    }
    if (status == MF_OK) {
        out->outcome = MF_MILP_OPTIMAL;
        t.cutoff = o->cutoff_s / t.rows.unit_s / MF_BOUND_SAFETY;
        mf_lp_allow(t.lp, o->effort_ns);
        solve_tree(&t);
        status = t.rows.status;
    }
    if (status == MF_OK) {
        bool failed = out->outcome == MF_MILP_FAILED;
        double bound_s = fmin(t.open * t.rows.unit_s * MF_BOUND_SAFETY, o->cutoff_s);
        out->bound_s = failed ? o->proven_s : fmin(fmax(bound_s, o->proven_s), o->cutoff_s);
        out->split_bound_s =
            fmax(out->split_bound_s * t.rows.unit_s * MF_BOUND_SAFETY, out->bound_s);
        out->lps = t.lps;
    }
    *in->effort_ns += t.lp ? mf_lp_effort_ns(t.lp) : 0;
    mf_lp_close(t.lp);
    mf_rows_clear(&t.rows);
    leave_rest(&t);
    mf_lp_forget(t.here);
    free(t.now);
    free(t.least);
    free(t.n);
    mf_partition_losses(in, NULL, INFINITY);
    if (status != MF_OK) {
        mf_partition_split_result_clear(out);
    }
    return status;
}

void mf_partition_split_result_clear(mf_partition_split_result *r) {
    free(r->first);
    memset(r, 0, sizeof *r);
}
