/* Integer programs through GLPK: optimal against enumeration, silent, bounded, and never fatal. */
#include "tests/support/test.h"

#include "planner/lp/milp.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static uint64_t state_of_dice = 1;

static int roll(int lo, int hi) { /* both ends included */
    state_of_dice = state_of_dice * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return lo + (int)((state_of_dice >> 33) % (uint64_t)(hi - lo + 1));
}

#define COLS 4
#define TOP 3 /* columns take 0 .. TOP */

typedef struct small {
    double cost[COLS], need[COLS], weigh[COLS];
    double needed, limit;
} small;

static small small_random(void) {
    small s;
    for (int j = 0; j < COLS; j++) {
        s.cost[j] = roll(1, 20);
        s.need[j] = roll(1, 9);
        s.weigh[j] = roll(0, 9);
    }
    s.needed = roll(5, 60);
    s.limit = roll(5, 60);
    return s;
}

static double small_enumerate(const small *s) {
    double best = INFINITY;
    for (int code = 0; code < 256; code++) {
        double cost = 0, need = 0, weigh = 0;
        for (int j = 0; j < COLS; j++) {
            int x = (code >> (2 * j)) & 3;
            cost += x * s->cost[j];
            need += x * s->need[j];
            weigh += x * s->weigh[j];
        }
        if (need >= s->needed && weigh <= s->limit && cost < best) {
            best = cost;
        }
    }
    return best;
}

static void small_build(const small *s, mf_milp *p) {
    mf_milp_clear(p);
    int need = mf_milp_add_row(p, s->needed, INFINITY);
    int weigh = mf_milp_add_row(p, -INFINITY, s->limit);
    for (int j = 0; j < COLS; j++) {
        int col = mf_milp_add_col(p, 0, TOP, s->cost[j], true);
        mf_milp_add_entry(p, need, col, s->need[j]);
        mf_milp_add_entry(p, weigh, col, s->weigh[j]);
    }
}

static void small_programs_are_solved_as_enumeration_solves_them(void **state) {
    (void)state;
    mf_milp p;
    mf_milp_init(&p);
    state_of_dice = 20240611;
    print_message("seed %d\n", 20240611);
    for (int i = 0; i < 300; i++) {
        small s = small_random();
        double x[COLS], truth = small_enumerate(&s);
        mf_milp_result r;
        mf_milp_options o = {.cutoff = INFINITY};
        small_build(&s, &p);
        assert_ok(mf_milp_solve(&p, &o, x, &r, NULL));
        if (isinf(truth)) {
            assert_int_equal(r.outcome, MF_MILP_INFEASIBLE);
            continue;
        }
        assert_int_equal(r.outcome, MF_MILP_OPTIMAL);
        assert_below(fabs(r.objective - truth), 1e-6);
        assert_at_most(r.bound, truth + 1e-6);
        o.cutoff = truth - 0.5;
        assert_ok(mf_milp_solve(&p, &o, x, &r, NULL));
        assert_int_equal(r.outcome, MF_MILP_INFEASIBLE);
        o.cutoff = truth + 0.5;
        assert_ok(mf_milp_solve(&p, &o, x, &r, NULL));
        assert_int_equal(r.outcome, MF_MILP_OPTIMAL);
        assert_below(fabs(r.objective - truth), 1e-6);
    }
    mf_milp_clear(&p);
    mf_milp_thread_end();
}

static void an_abort_or_lack_of_memory_inside_glpk_is_an_outcome(void **state) {
    (void)state;
    mf_milp p;
    mf_milp_init(&p);
    state_of_dice = 7;
    small s = small_random();
    s.needed = 5;
    s.limit = 100;
    small_build(&s, &p);
    for (int round = 0; round < 3; round++) {
        double x[COLS];
        mf_milp_result r;
        mf_milp_options o = {.cutoff = INFINITY, .fault = MF_MILP_FAULT_ABORT};
        assert_ok(mf_milp_solve(&p, &o, x, &r, NULL));
        assert_int_equal(r.outcome, MF_MILP_FAILED);
        assert_non_null(strstr(r.text, "planner/lp/glpk_fence.c"));
        assert_true(isinf(r.bound));
        assert_below(r.bound, 0);
        o.fault = MF_MILP_FAULT_NOMEM;
        assert_ok(mf_milp_solve(&p, &o, x, &r, NULL));
        assert_int_equal(r.outcome, MF_MILP_FAILED);
        assert_above(strlen(r.text), 0);
        o.fault = MF_MILP_FAULT_NONE; /* and the next one is sound again */
        assert_ok(mf_milp_solve(&p, &o, x, &r, NULL));
        assert_int_equal(r.outcome, MF_MILP_OPTIMAL);
        assert_below(fabs(r.objective - small_enumerate(&s)), 1e-6);
    }
    mf_milp_clear(&p);
    mf_milp_thread_end();
}

/* Misuse that GLPK itself detects: an entry that stands twice. */
static void misuse_that_glpk_detects_is_an_outcome(void **state) {
    (void)state;
    mf_milp p;
    mf_milp_result r;
    mf_milp_options o = {.cutoff = INFINITY};
    double x[1];
    mf_milp_init(&p);
    int row = mf_milp_add_row(&p, 1, 2), col = mf_milp_add_col(&p, 0, 1, 1, true);
    mf_milp_add_entry(&p, row, col, 1);
    mf_milp_add_entry(&p, row, col, 1);
    assert_ok(mf_milp_solve(&p, &o, x, &r, NULL));
    assert_int_equal(r.outcome, MF_MILP_FAILED);
    mf_milp_clear(&p);
    mf_milp_thread_end();
}

/* Market-split-like rows keep branch and bound busy: sum(a x) = b with awkward a. */
static void hard_build(mf_milp *p) {
    mf_milp_clear(p);
    int rows[3];
    state_of_dice = 99;
    for (int i = 0; i < 3; i++) {
        rows[i] = mf_milp_add_row(p, 0, 0);
    }
    double sum[3] = {0, 0, 0};
    for (int j = 0; j < 24; j++) {
        int col = mf_milp_add_col(p, 0, 1, 0, true);
        for (int i = 0; i < 3; i++) {
            int a = roll(1, 99);
            sum[i] += a;
            mf_milp_add_entry(p, rows[i], col, a);
        }
    }
    for (int i = 0; i < 3; i++) {
        double half = floor(sum[i] / 2);
        p->row[rows[i]].lo = p->row[rows[i]].hi = half;
        int over = mf_milp_add_col(p, 0, INFINITY, 1, false);
        int under = mf_milp_add_col(p, 0, INFINITY, 1, false);
        mf_milp_add_entry(p, rows[i], over, -1);
        mf_milp_add_entry(p, rows[i], under, 1);
    }
}

static void limits_and_cancelling_leave_a_proven_bound(void **state) {
    (void)state;
    mf_milp p;
    mf_milp_result r;
    double x[40];
    volatile int cancel = 1;
    mf_milp_init(&p);
    hard_build(&p);
    mf_milp_options o = {.cutoff = INFINITY, .node_limit = 20};
    assert_ok(mf_milp_solve(&p, &o, x, &r, NULL));
    assert_int_equal(r.outcome, MF_MILP_LIMIT);
    assert_true(r.nodes == 21);
    assert_at_least(r.bound, -1e-6);
    assert_true(isfinite(r.bound));
    int64_t nodes = r.nodes;
    double bound = r.bound;
    assert_ok(mf_milp_solve(&p, &o, x, &r, NULL)); /* the same again, to the last bit */
    assert_true(r.nodes == nodes);
    assert_true(r.bound == bound);
    o = (mf_milp_options){.cutoff = INFINITY, .cancel = &cancel};
    assert_ok(mf_milp_solve(&p, &o, x, &r, NULL));
    assert_int_equal(r.outcome, MF_MILP_CANCELLED);
    mf_milp_clear(&p);
    mf_milp_thread_end();
}

/* min 3x + y, x integer, x + y >= 4.5, y <= 2.2: x = 3, y = 1.5.
 * With x fixed, half a unit more of the sum costs half a unit of y: the price of the first row
 * is 1. */
static void duals_are_the_prices_of_rows_at_fixed_integers(void **state) {
    (void)state;
    mf_milp p;
    mf_milp_result r;
    mf_milp_options o = {.cutoff = INFINITY};
    double x[2], dual[2];
    mf_milp_init(&p);
    int sum = mf_milp_add_row(&p, 4.5, INFINITY), top = mf_milp_add_row(&p, -INFINITY, 2.2);
    int cx = mf_milp_add_col(&p, 0, 10, 3, true), cy = mf_milp_add_col(&p, 0, INFINITY, 1, false);
    mf_milp_add_entry(&p, sum, cx, 1);
    mf_milp_add_entry(&p, sum, cy, 1);
    mf_milp_add_entry(&p, top, cy, 1);
    assert_ok(mf_milp_solve(&p, &o, x, &r, NULL));
    assert_int_equal(r.outcome, MF_MILP_OPTIMAL);
    assert_below(fabs(x[0] - 3), 1e-9);
    assert_below(fabs(x[1] - 1.5), 1e-9);
    assert_ok(mf_milp_duals(&p, x, dual, &r, NULL));
    assert_int_equal(r.outcome, MF_MILP_OPTIMAL);
    assert_below(fabs(dual[sum] - 1), 1e-9);
    assert_below(fabs(dual[top]), 1e-9);
    mf_milp_clear(&p);
    mf_milp_thread_end();
}

static void *solve_many(void *out) {
    mf_milp p;
    double *sum = out;
    mf_milp_init(&p);
    for (int i = 0; i < 60; i++) {
        double x[COLS];
        mf_milp_result r;
        mf_milp_options o = {.cutoff = INFINITY,
                             .fault = i % 7 == 3 ? MF_MILP_FAULT_ABORT : MF_MILP_FAULT_NONE};
        small s;
        for (int j = 0; j < COLS; j++) {
            s.cost[j] = 1 + (i * 7 + j * 5) % 20;
            s.need[j] = 1 + (i * 3 + j * 11) % 9;
            s.weigh[j] = (i + j * 2) % 9;
        }
        s.needed = 10 + i % 11;
        s.limit = 60;
        small_build(&s, &p);
        if (mf_milp_solve(&p, &o, x, &r, NULL) == MF_OK && r.outcome == MF_MILP_OPTIMAL) {
            *sum += fabs(r.objective - small_enumerate(&s)) < 1e-6 ? 1 : -1000;
        }
    }
    mf_milp_clear(&p);
    mf_milp_thread_end();
    return NULL;
}

static void threads_do_not_disturb_one_another(void **state) {
    (void)state;
    pthread_t thread[3];
    double sum[3] = {0, 0, 0};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, solve_many, &sum[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], NULL);
    }
    assert_above(sum[0], 40);
    assert_true(sum[0] == sum[1]);
    assert_true(sum[1] == sum[2]);
}

/* A row that is asked for as long as a column stands above a limit. */
typedef struct above {
    int col;
    double limit;
} above;

static bool not_above(void *user, const double *x, mf_milp_lazy_row *row) {
    const above *a = user;
    if (x[a->col] <= a->limit + 1e-9) {
        return false;
    }
    *row = (mf_milp_lazy_row){-INFINITY, a->limit, 1, row->col, row->value, false};
    row->col[0] = a->col;
    row->value[0] = 1.0;
    return true;
}

/* Optimum of a relaxation from scratch; INFINITY = infeasible. */
static double relaxed(mf_milp *p) {
    double dual[8];
    bool integer[COLS];
    mf_milp_result r;
    assert_at_most(p->cols, COLS);
    assert_at_most(p->rows, 8);
    for (int j = 0; j < p->cols; j++) {
        integer[j] = p->col[j].integer;
        p->col[j].integer = false;
    }
    assert_ok(mf_milp_duals(p, NULL, dual, &r, NULL));
    for (int j = 0; j < p->cols; j++) {
        p->col[j].integer = integer[j];
    }
    return r.outcome == MF_MILP_INFEASIBLE ? HUGE_VAL : r.bound;
}

static void a_program_kept_under_other_bounds_is_as_good_as_a_new_one(void **state) {
    (void)state;
    mf_milp p;
    mf_milp_init(&p);
    state_of_dice = 20261122;
    int solved = 0, lazy = 0;
    for (int i = 0; i < 60; i++) {
        small s = small_random();
        small_build(&s, &p);
        above a = {roll(0, COLS - 1), TOP};
        mf_milp_options o = {.cutoff = INFINITY, .lazy = not_above, .lazy_user = &a};
        mf_lp *lp;
        assert_ok(mf_lp_open(&p, &o, &lp, NULL));
        double limit = roll(0, TOP - 1);
        mf_lp_basis *basis = NULL;
        for (int k = 0; k < 12; k++) { /* the row from 4 on; its basis noted before */
            double bound;
            int col = roll(0, COLS - 1), lo = roll(0, TOP), hi = roll(lo, TOP);
            p.col[col].lo = lo;
            p.col[col].hi = hi;
            p.row[1].hi = roll(5, 60);
            mf_lp_set_col(lp, col, lo, hi);
            mf_lp_set_row(lp, 1, -INFINITY, p.row[1].hi);
            a.limit = k >= 4 ? limit : TOP;
            if (k == 8) {
                mf_lp_go_to(lp, basis);
            }
            mf_milp_col own = p.col[a.col];
            p.col[a.col].hi = own.hi < a.limit ? own.hi : a.limit;
            double truth = p.col[a.col].hi < own.lo ? HUGE_VAL : relaxed(&p);
            p.col[a.col] = own;
            mf_milp_outcome outcome = mf_lp_solve(lp, INFINITY, 4, &bound);
            if (isinf(truth)) {
                assert_int_equal(outcome, MF_MILP_INFEASIBLE);
            } else {
                assert_int_equal(outcome, MF_MILP_OPTIMAL);
                assert_below(fabs(bound - truth), 1e-6);
                assert_at_most(mf_lp_point(lp)[a.col], a.limit + 1e-6);
                solved++;
                assert_int_equal(mf_lp_solve(lp, truth - 0.5, 4, &bound), MF_MILP_OPTIMAL);
                assert_at_most(bound, truth - 0.5 + 1e-12); /* ended, and says no more */
            }
            if (k == 3) {
                basis = mf_lp_note(lp, roll(0, 1) == 0, basis);
            }
        }
        mf_lp_forget(basis);
        lazy += (int)mf_lp_lazy_rows(lp);
        mf_lp_close(lp);
    }
    assert_above(solved, 100);
    assert_above(lazy, 20);
    mf_milp_clear(&p);
    mf_milp_thread_end();
}

static void a_kept_program_survives_what_ends_glpk(void **state) {
    (void)state;
    mf_milp p;
    mf_lp *lp;
    double bound;
    mf_milp_init(&p);
    state_of_dice = 7;
    small s = small_random();
    s.needed = 5;
    s.limit = 100;
    small_build(&s, &p);
    for (int fault = MF_MILP_FAULT_ABORT; fault <= MF_MILP_FAULT_NOMEM; fault++) {
        mf_milp_options o = {.cutoff = INFINITY, .fault = (mf_milp_fault)fault};
        assert_ok(mf_lp_open(&p, &o, &lp, NULL));
        mf_lp_set_col(lp, 0, 1, 2);
        mf_lp_set_row(lp, 0, 1, 2);
        mf_lp_basis *basis = mf_lp_note(lp, true, NULL);
        assert_null(basis); /* there is none */
        mf_lp_go_to(lp, basis);
        assert_int_equal(mf_lp_solve(lp, INFINITY, 4, &bound), MF_MILP_FAILED);
        assert_true(isinf(bound));
        assert_below(bound, 0);
        mf_lp_close(lp);
        o.fault = MF_MILP_FAULT_NONE; /* and the next one is sound again */
        assert_ok(mf_lp_open(&p, &o, &lp, NULL));
        assert_int_equal(mf_lp_solve(lp, INFINITY, 4, &bound), MF_MILP_OPTIMAL);
        assert_below(fabs(bound - relaxed(&p)), 1e-9);
        mf_lp_close(lp);
    }
    mf_milp_clear(&p);
    mf_milp_thread_end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_programs_are_solved_as_enumeration_solves_them),
        cmocka_unit_test(an_abort_or_lack_of_memory_inside_glpk_is_an_outcome),
        cmocka_unit_test(misuse_that_glpk_detects_is_an_outcome),
        cmocka_unit_test(limits_and_cancelling_leave_a_proven_bound),
        cmocka_unit_test(duals_are_the_prices_of_rows_at_fixed_integers),
        cmocka_unit_test(threads_do_not_disturb_one_another),
        cmocka_unit_test(a_program_kept_under_other_bounds_is_as_good_as_a_new_one),
        cmocka_unit_test(a_kept_program_survives_what_ends_glpk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
