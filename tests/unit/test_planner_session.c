/* A linear program that stays in its tableau, against GLPK's new ones: rows that come, bases that
 * are kept and gone back to, solves that are given up, columns that are put in by their definition;
 * and the tableau by itself: made anew, made wrong. */
#include "tests/support/test.h"

#include "planner/lp/dual_simplex.h"
#include "planner/lp/milp.h"

#include <math.h>
#include <string.h>

static uint64_t state_of_dice = 1;

static int roll(int lo, int hi) { /* both ends included */
    state_of_dice = state_of_dice * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return lo + (int)((state_of_dice >> 33) % (uint64_t)(hi - lo + 1));
}

#define COLS 24
#define CUTS 400
#define TOP 9.0

/* minimise t, where t >= each of many sums over x, and the x add up to `all` at least. */
typedef struct tall {
    double cut[CUTS][COLS];
    double all, lo[COLS], hi[COLS];
    int asked;
} tall;

static void tall_roll(tall *s) {
    memset(s, 0, sizeof *s);
    for (int i = 0; i < CUTS; i++) {
        for (int j = 0; j < COLS; j++) {
            s->cut[i][j] = roll(0, 2) == 0 ? roll(1, 9) : 0;
        }
    }
    for (int j = 0; j < COLS; j++) {
        s->hi[j] = TOP;
    }
    s->all = roll(30, 90);
}

/* rows: of all cuts, or none. Column COLS is t; COLS + 1 the sum of x, if it is wanted. */
static void tall_build(const tall *s, bool rows, bool sum, mf_milp *p) {
    mf_milp_clear(p);
    for (int j = 0; j < COLS; j++) {
        mf_milp_add_col(p, s->lo[j], s->hi[j], 0, false);
    }
    int t = mf_milp_add_col(p, 0, INFINITY, 1, false);
    int all = mf_milp_add_row(p, sum ? 0 : s->all, sum ? 0 : INFINITY);
    for (int j = 0; j < COLS; j++) {
        mf_milp_add_entry(p, all, j, 1);
    }
    if (sum) {
        int col = mf_milp_add_col(p, s->all, INFINITY, 0, false);
        mf_milp_add_entry(p, all, col, -1);
        mf_milp_define(p, col, all);
    }
    for (int i = 0; rows && i < CUTS; i++) {
        int row = mf_milp_add_row(p, -INFINITY, 0);
        for (int j = 0; j < COLS; j++) {
            mf_milp_add_entry(p, row, j, s->cut[i][j]);
        }
        mf_milp_add_entry(p, row, t, -1);
    }
}

/* The cut that is broken most. */
static bool worst_cut(void *user, const double *x, mf_milp_lazy_row *row) {
    tall *s = user;
    int worst = -1;
    double most = 1e-6;
    for (int i = 0; i < CUTS; i++) {
        double sum = -x[COLS];
        for (int j = 0; j < COLS; j++) {
            sum += s->cut[i][j] * x[j];
        }
        if (sum > most) {
            most = sum;
            worst = i;
        }
    }
    if (worst < 0) {
        return false;
    }
    s->asked++;
    *row = (mf_milp_lazy_row){-INFINITY, 0, 0, row->col, row->value, false};
    for (int j = 0; j < COLS; j++) {
        if (s->cut[worst][j] > 0) {
            row->col[row->count] = j;
            row->value[row->count++] = s->cut[worst][j];
        }
    }
    row->col[row->count] = COLS;
    row->value[row->count++] = -1.0;
    return true;
}

/* The optimum with all cuts, from scratch; INFINITY = infeasible. */
static double truth_of(const tall *s) {
    mf_milp p;
    mf_milp_result r;
    double dual[CUTS + 1];
    mf_milp_init(&p);
    tall_build(s, true, false, &p);
    assert_ok(mf_milp_duals(&p, NULL, dual, &r, NULL)); /* no column is an integer */
    mf_milp_clear(&p);
    return r.outcome == MF_MILP_INFEASIBLE ? HUGE_VAL : r.bound;
}

static void set_range(tall *s, mf_lp *lp, int j) {
    s->lo[j] = roll(0, 5);
    s->hi[j] = s->lo[j] + roll(0, 3);
    mf_lp_set_col(lp, j, s->lo[j], s->hi[j]);
}

#define DEEP 5

/* Ranges by level, as a tree has them. */
typedef struct level {
    double lo[COLS], hi[COLS];
} level;

static void go_back(tall *s, mf_lp *lp, const level *at, const mf_lp_basis *basis) {
    memcpy(s->lo, at->lo, sizeof s->lo);
    memcpy(s->hi, at->hi, sizeof s->hi);
    for (int j = 0; j < COLS; j++) {
        mf_lp_set_col(lp, j, s->lo[j], s->hi[j]);
    }
    mf_lp_go_to(lp, basis);
}

static void every_way_through_a_tree_finds_what_a_new_program_finds(void **state) {
    (void)state;
    int solved = 0, asked = 0;
    state_of_dice = 20261122;
    for (int i = 0; i < 12; i++) {
        tall s;
        level at[DEEP];
        mf_lp_basis *basis[DEEP] = {NULL}; /* every second one without its tableau */
        mf_milp p;
        mf_lp *lp;
        tall_roll(&s);
        mf_milp_init(&p);
        tall_build(&s, false, i % 2 == 1, &p);
        mf_milp_options o = {.cutoff = INFINITY, .lazy = worst_cut, .lazy_user = &s};
        assert_ok(mf_lp_open(&p, &o, &lp, NULL));
        for (int k = 0, depth = 0; k < 60; k++) {
            double bound, truth = truth_of(&s);
            mf_milp_outcome outcome = mf_lp_solve(lp, INFINITY, 1000, &bound);
            assert_int_equal(outcome, isinf(truth) ? MF_MILP_INFEASIBLE : MF_MILP_OPTIMAL);
            assert_true(isinf(truth) || fabs(bound - truth) < 1e-5 * truth);
            solved += !isinf(truth);
            if (isinf(truth) || depth == DEEP || roll(0, 3) == 0) { /* up, to any level */
                depth = depth > 0 ? roll(0, depth - 1) : 0;
                if (k > 0) {
                    go_back(&s, lp, &at[depth], basis[depth]);
                }
            } else {
                memcpy(at[depth].lo, s.lo, sizeof s.lo);
                memcpy(at[depth].hi, s.hi, sizeof s.hi);
                basis[depth] = mf_lp_note(lp, depth % 2 == 0, basis[depth]);
                assert_non_null(basis[depth++]);
            }
            set_range(&s, lp, roll(0, COLS - 1));
        }
        asked += s.asked;
        for (int d = 0; d < DEEP; d++) {
            mf_lp_forget(basis[d]);
        }
        mf_lp_close(lp);
        mf_milp_clear(&p);
    }
    assert_above(solved, 200);
    print_message("solved %d rows %d\n", solved, asked);
    assert_above(asked, 12 * 40);
    mf_milp_thread_end();
}

static void a_solve_that_is_given_up_says_what_is_proven(void **state) {
    (void)state;
    int given_up = 0, bounded = 0;
    state_of_dice = 7;
    for (int i = 0; i < 40; i++) {
        tall s;
        mf_milp p;
        mf_lp *lp;
        double bound;
        tall_roll(&s);
        mf_milp_init(&p);
        tall_build(&s, true, false, &p);
        double truth = truth_of(&s);
        mf_milp_options o = {.cutoff = INFINITY};
        assert_ok(mf_lp_open(&p, &o, &lp, NULL));
        mf_lp_limit(lp, roll(5, 40));
        mf_milp_outcome outcome = mf_lp_solve(lp, INFINITY, 0, &bound);
        assert_true(outcome == MF_MILP_LIMIT || outcome == MF_MILP_OPTIMAL);
        assert_at_most(bound, truth * (1.0 + 1e-9));
        given_up += outcome == MF_MILP_LIMIT;
        bounded += outcome == MF_MILP_LIMIT && bound > 0.0;
        mf_lp_limit(lp, 0); /* and goes on from there */
        assert_int_equal(mf_lp_solve(lp, INFINITY, 0, &bound), MF_MILP_OPTIMAL);
        assert_below(fabs(bound - truth), 1e-6 * truth);
        mf_lp_close(lp);
        mf_milp_clear(&p);
    }
    print_message("given up %d, bounded %d\n", given_up, bounded);
    assert_above(given_up, 10);
    assert_above(bounded, 5);
    mf_milp_thread_end();
}

static void rows_are_asked_for_until_they_bring_little(void **state) {
    (void)state;
    int fewer = 0;
    state_of_dice = 11;
    for (int i = 0; i < 20; i++) {
        tall s;
        mf_milp p;
        double bound[2];
        int asked[2];
        tall_roll(&s);
        mf_milp_init(&p);
        tall_build(&s, false, false, &p);
        for (int stall = 0; stall < 2; stall++) {
            mf_lp *lp;
            mf_milp_options o = {.cutoff = INFINITY, .lazy = worst_cut, .lazy_user = &s};
            s.asked = 0;
            assert_ok(mf_lp_open(&p, &o, &lp, NULL));
            mf_lp_stall(lp, stall ? 2 : 0, 0.2);
            assert_int_equal(mf_lp_solve(lp, 1000.0, 1000, &bound[stall]), MF_MILP_OPTIMAL);
            asked[stall] = s.asked;
            mf_lp_close(lp);
        }
        assert_at_most(bound[1], bound[0] * (1.0 + 1e-9));
        fewer += asked[1] < asked[0];
        mf_milp_clear(&p);
    }
    assert_above(fewer, 10);
    mf_milp_thread_end();
}

/* --- the tableau by itself -------------------------------------------------------------------- */

/* Columns within 0 and a top, some of them fixed; costs, rows of all kinds, many of them tight at a
 * corner of the columns' bounds. */
typedef struct dense {
    int cols, rows;
    double lo[COLS], hi[COLS], cost[COLS], a[COLS][COLS], row_lo[COLS], row_hi[COLS];
} dense;

static void dense_roll(dense *s) {
    memset(s, 0, sizeof *s);
    s->cols = roll(1, COLS);
    s->rows = roll(1, COLS);
    double corner[COLS];
    for (int j = 0; j < s->cols; j++) {
        s->lo[j] = roll(-2, 2);
        s->hi[j] = s->lo[j] + roll(0, 3);
        s->cost[j] = roll(0, 2) == 0 ? roll(-5, 9) : 0;
        corner[j] = roll(0, 1) ? s->hi[j] : s->lo[j];
    }
    for (int i = 0; i < s->rows; i++) {
        double at = 0.0;
        for (int j = 0; j < s->cols; j++) {
            s->a[i][j] = roll(0, 2) == 0 ? roll(-9, 9) * (i % 3 == 0 ? 1000.0 : 0.5) : 0;
            at += s->a[i][j] * corner[j];
        }
        at += roll(0, 9) == 0 ? roll(-3, 3) : 0; /* or beside it */
        int kind = roll(0, 2);
        s->row_lo[i] = kind == 1 ? -HUGE_VAL : at;
        s->row_hi[i] = kind == 2 ? HUGE_VAL : at;
    }
}

/* Its optimum by GLPK; INFINITY = infeasible. */
static double dense_truth(const dense *s) {
    mf_milp p;
    mf_milp_result r;
    double dual[COLS];
    mf_milp_init(&p);
    for (int j = 0; j < s->cols; j++) {
        mf_milp_add_col(&p, s->lo[j], s->hi[j], s->cost[j], false);
    }
    for (int i = 0; i < s->rows; i++) {
        int row = mf_milp_add_row(&p, s->row_lo[i], s->row_hi[i]);
        for (int j = 0; j < s->cols; j++) {
            mf_milp_add_entry(&p, row, j, s->a[i][j]);
        }
    }
    assert_ok(mf_milp_duals(&p, NULL, dual, &r, NULL)); /* no column is an integer */
    mf_milp_clear(&p);
    assert_true(r.outcome == MF_MILP_OPTIMAL || r.outcome == MF_MILP_INFEASIBLE);
    return r.outcome == MF_MILP_INFEASIBLE ? HUGE_VAL : r.bound;
}

static mf_dual *dense_load(const dense *s) {
    mf_dual *d = mf_dual_create(s->cols, s->lo, s->hi, s->cost);
    assert_non_null(d);
    for (int i = 0; i < s->rows; i++) {
        assert_int_equal(mf_dual_add_row(d, s->a[i], s->row_lo[i], s->row_hi[i]), s->cols + i);
    }
    return d;
}

static void assert_solves(mf_dual *d, double truth) {
    double bound;
    mf_dual_outcome outcome = mf_dual_solve(d, INFINITY, 0, &bound);
    assert_int_equal(outcome, isinf(truth) ? MF_DUAL_INFEASIBLE : MF_DUAL_OPTIMAL);
    assert_true(isinf(truth) || fabs(bound - truth) < 1e-5 * (1.0 + fabs(truth)));
}

/* Nudges the tableau's entries. */
static void spoil(mf_dual *d) {
    for (int k = 0; k < (1 + d->basics) * d->stride; k++) {
        d->t[k] += k % d->stride < d->cols && roll(0, 3) == 0 ? 0.05 * roll(-9, 9) : 0.0;
    }
    d->since++;
}

/* Basic and nonbasic variables trade names: no basis, often enough, and no tableau of theirs. */
static void shuffle(mf_dual *d) {
    for (int k = 0; k < 4 && d->basics > 0; k++) {
        int r = roll(0, d->basics - 1), p = roll(0, d->cols - 1);
        int leaves = d->basic[r], enters = d->nonbasic[p];
        d->basic[r] = enters;
        d->nonbasic[p] = leaves;
        d->where[enters] = -1 - r;
        d->where[leaves] = p;
    }
    d->since = INT32_MAX;
}

static void bounds_hold_when_the_tableau_is_spoiled(void **state) {
    (void)state;
    int feasible = 0, infeasible = 0, spoiled = 0, none = 0;
    state_of_dice = 5;
    for (int i = 0; i < 2000; i++) {
        dense s;
        dense_roll(&s);
        double truth = dense_truth(&s), bound;
        mf_dual *d = dense_load(&s);
        feasible += isfinite(truth);
        infeasible += isinf(truth);
        double slack = 1e-9 * (1.0 + fabs(truth));
        for (int64_t k = 1; k < 9; k++) { /* on the way */
            mf_dual_outcome outcome = mf_dual_solve(d, INFINITY, 1, &bound);
            assert_true(outcome != MF_DUAL_FAILED);
            assert_true(outcome == MF_DUAL_INFEASIBLE || bound <= truth + slack);
        }
        assert_solves(d, truth);
        if (isfinite(truth)) {
            assert_true(mf_dual_renew(d));
            mf_dual_values(d);
            assert_below(fabs(mf_dual_proven(d) - truth), 1e-5 * (1.0 + fabs(truth)));
            spoil(d); /* weaker, but never wrong */
            assert_at_most(mf_dual_proven(d), truth + slack);
            spoiled += mf_dual_proven(d) < truth - 1e-3;
            for (int r = 0; r < d->basics; r++) {
                assert_false(mf_dual_proves_empty(d, r));
            }
            assert_true(mf_dual_renew(d)); /* and as good as before */
            assert_solves(d, truth);
            shuffle(d);
            none += !mf_dual_renew(d);
            d->since = INT32_MAX;
            assert_solves(d, truth); /* what is no basis is left */
        }
        mf_dual_free(d);
    }
    print_message("feasible %d, infeasible %d, spoiled %d, no basis %d\n", feasible, infeasible,
                  spoiled, none);
    assert_above(feasible, 500);
    assert_above(infeasible, 100);
    assert_above(spoiled, 100);
    assert_above(none, 100);
    mf_milp_thread_end();
}

static void a_column_may_have_to_stand_at_its_upper_bound(void **state) {
    (void)state;
    const double lo[2] = {0, 0}, hi[2] = {1, 1e9}, cost[2] = {0, 1}, all[2] = {0.5, 0},
                 above[2] = {7, -1};
    mf_dual *d = mf_dual_create(2, lo, hi, cost);
    double bound;
    assert_non_null(d);
    assert_int_equal(mf_dual_add_row(d, all, 0.5, 0.5), 2);
    assert_int_equal(mf_dual_add_row(d, above, -INFINITY, 0), 3);
    assert_int_equal(mf_dual_solve(d, INFINITY, 0, &bound), MF_DUAL_OPTIMAL);
    assert_below(fabs(bound - 7.0), 1e-6);
    mf_dual_free(d);
}

static void costs_without_a_bound_below_are_refused(void **state) {
    (void)state;
    const double lo[1] = {-INFINITY}, hi[1] = {1}, cost[1] = {1};
    assert_null(mf_dual_create(1, lo, hi, cost));
}

/* Whatever registers the processor has: the order of additions is part of what is promised. */
static void rows_of_numbers_are_the_same_on_any_processor(void **state) {
    (void)state;
    double a[64], b[64], to[64], expected[64];
    for (int round = 0; round < 200; round++) {
        int n = 4 * roll(0, 16);
        double by = roll(-1000, 1000) / 7.0, sum[4] = {0.0};
        for (int j = 0; j < n; j++) {
            a[j] = ldexp(roll(-1000, 1000) / 3.0, roll(-30, 30));
            b[j] = ldexp(roll(-1000, 1000) / 11.0, roll(-30, 30));
            double product = a[j] * b[j], added = by * b[j];
            sum[j % 4] += product;
            to[j] = a[j];
            expected[j] = a[j] + added;
        }
        double all = (sum[0] + sum[1]) + (sum[2] + sum[3]), got = mf_dual_product(a, b, n);
        assert_memory_equal(&got, &all, sizeof all);
        mf_dual_add_times(to, b, by, n);
        assert_memory_equal(to, expected, (size_t)n * sizeof *to);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_through_a_tree_finds_what_a_new_program_finds),
        cmocka_unit_test(a_solve_that_is_given_up_says_what_is_proven),
        cmocka_unit_test(rows_are_asked_for_until_they_bring_little),
        cmocka_unit_test(bounds_hold_when_the_tableau_is_spoiled),
        cmocka_unit_test(a_column_may_have_to_stand_at_its_upper_bound),
        cmocka_unit_test(costs_without_a_bound_below_are_refused),
        cmocka_unit_test(rows_of_numbers_are_the_same_on_any_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
