/* Plans and prices carried between the cells of a table: what is carried changes how long a search
 * takes, never what it may say. And what becomes of a plan under uneven routing, or without a node.
 */
#include "planner/capacity/robust.h"
#include "planner/capacity/wavefront.h"
#include "planner/order/order_book.h"
#include "tests/support/planner_problems.h"

#include <math.h>
#include <stdatomic.h>

typedef struct fixture {
    mf_model model;
    mf_cluster cluster;
    mf_software software;
    mf_cost *cost;
    mf_problem problem;
} fixture;

static void fixture_init(fixture *w) {
    *w = (fixture){.model = test_model_moe(false), .cluster = test_cluster()};
    w->model.layers = 6;
    w->model.layer_classes[0] = (mf_layer_class){.ffn = MF_FFN_MOE};
    w->model.classes = 1;
    memset(w->model.layer_class, 0, sizeof w->model.layer_class);
    rng r = {7};
    w->software = planner_software(&r);
    w->cost = planner_cost(&w->cluster, &w->software);
    mf_layout base;
    mf_layout_init(&base);
    base.gbs = 64;
    base.seq = 1024;
    w->problem = (mf_problem){.model = &w->model,
                              .cost = w->cost,
                              .base = base,
                              .pinned = MF_PIN(CP) | MF_PIN(OFFLOAD) | MF_PIN(CP_TYPE)};
}

static mf_search_result search(const fixture *w, int64_t gpus, const mf_search_options *o) {
    mf_problem p = w->problem;
    mf_search_result r;
    mf_err e = {.text = ""};
    p.base.gpus = gpus;
    if (mf_planner_search(&p, o, &r, &e) != MF_OK) {
        fail_msg("%lld GPUs: %s", (long long)gpus, e.text);
    }
    return r;
}

static mf_search_options options_of(double gap) {
    mf_search_options o;
    mf_search_options_init(&o);
    o.top = 1;
    o.gap = gap;
    o.without = (mf_mechanisms)1 << MF_MECHANISM_SECOND_LOOK; /* no more than the proof needs */
    o.threads = 1;
    return o;
}

/* A plan is faster than a time just above its prediction, and not than its prediction. */
static void assert_outruns(const mf_problem *p, const mf_plan *plan) {
    const double time_s = plan->prediction.step_time_s;
    bool longer = false, same = true;
    assert_ok(mf_planner_outruns(p, &plan->layout, &plan->assignment, time_s * (1 + 1e-12), &longer,
                                 NULL));
    assert_ok(mf_planner_outruns(p, &plan->layout, &plan->assignment, time_s, &same, NULL));
    assert_true(longer);
    assert_false(same);
}

/* Bit by bit: plan and proof, and the work that was counted, less the blocks that a search before
 * has asked for: the first has nothing before it, the last asks for nothing that the first did not.
 */
static void results_do_not_depend_on_shared_books(void **state) {
    (void)state;
    int64_t again = -1;
    fixture w;
    fixture_init(&w);
    mf_search_options o = options_of(0.02), shared = o;
    assert_ok(mf_price_book_create(&w.problem, &o, &shared.book, NULL));
    assert_ok(mf_order_book_create(&shared.orders, NULL));
    static const int64_t sizes[] = {8, 8, 32, 16, 24, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i += (size_t)case_stride(5)) {
        mf_search_result a = search(&w, sizes[i], &o), b = search(&w, sizes[i], &shared);
        const mf_plan *x = &a.plan[0], *y = &b.plan[0];
        assert_memory_equal(&x->layout, &y->layout, sizeof x->layout);
        assert_memory_equal(&x->assignment, &y->assignment, sizeof x->assignment);
        assert_memory_equal(&x->prediction.step_time_s, &y->prediction.step_time_s, sizeof(double));
        assert_memory_equal(&a.stats.lower_bound_s, &b.stats.lower_bound_s, sizeof(double));
        if (i == 0) {
            assert_int_equal(a.stats.work, b.stats.work);
        } else {
            assert_true(b.stats.work < a.stats.work);
        }
        if (sizes[i] == sizes[0]) { /* whatever came between */
            assert_true(i == 0 || again < 0 || b.stats.work == again);
            again = i == 0 ? again : b.stats.work;
        }
        assert_int_equal(a.stats.simulated, b.stats.simulated);
        assert_outruns(&w.problem, x);
        mf_search_result_clear(&a);
        mf_search_result_clear(&b);
    }
    mf_price_book_destroy(shared.book);
    mf_order_book_destroy(shared.orders);
    mf_cost_destroy(w.cost);
}

/* A search with a wide gap that begins with a better plan than it would look for keeps it, says the
 * gap of that plan, and claims no bound above the best step there is. */
static void a_known_plan_is_kept_and_its_gap_is_proven(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w);
    mf_search_options fine = options_of(1e-6), wide = options_of(0.4);
    int better = 0;
    for (int64_t gpus = 8; gpus <= case_count(32, 8); gpus *= 2) {
        mf_search_result best = search(&w, gpus, &fine), alone = search(&w, gpus, &wide);
        const mf_known_plan known = {best.plan[0].layout, best.plan[0].assignment};
        const double best_s = best.plan[0].prediction.step_time_s;
        mf_search_options with = wide;
        with.start = &known;
        with.starts = 1;
        mf_search_result r = search(&w, gpus, &with);
        assert_close(r.plan[0].prediction.step_time_s, best_s, 1e-12 * best_s);
        assert_close(r.stats.gap, best_s / r.stats.lower_bound_s - 1, 1e-12);
        assert_true(r.stats.gap <= 0.4 + 1e-12);
        assert_true(r.stats.lower_bound_s <= best_s * (1 + 1e-12));
        assert_true(r.stats.work <= alone.stats.work + 10000);
        better += alone.plan[0].prediction.step_time_s > best_s * (1 + 1e-9);
        mf_search_result_clear(&r);
        mf_search_result_clear(&alone);
        mf_search_result_clear(&best);
    }
    assert_true(better > 0); /* else the case says nothing */
    mf_cost_destroy(w.cost);
}

/* One that does not fit, and one that is no layout of so many GPUs. */
static void known_plans_that_are_none_are_left_out(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w);
    mf_search_options o = options_of(0.02);
    mf_search_result alone = search(&w, 16, &o);
    mf_known_plan known[2];
    for (int i = 0; i < 2; i++) {
        known[i] = (mf_known_plan){alone.plan[0].layout, alone.plan[0].assignment};
    }
    known[0].layout.mbs = 64 / known[0].layout.dp;
    known[0].layout.seq = 1 << 20; /* too much for any GPU */
    known[1].layout.gpus = 17;
    known[1].layout.tp = 3;
    o.start = known;
    o.starts = 2;
    mf_search_result r = search(&w, 16, &o);
    assert_memory_equal(&r.plan[0].layout, &alone.plan[0].layout, sizeof r.plan[0].layout);
    assert_memory_equal(&r.stats.lower_bound_s, &alone.stats.lower_bound_s, sizeof(double));
    mf_search_result_clear(&r);
    mf_search_result_clear(&alone);
    mf_cost_destroy(w.cost);
}

/* On any number of threads the same. */
static void threads_do_not_change_what_comes_of_known_plans(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w);
    w.problem.pinned |= MF_PIN(MICRO_BATCH); /* at 1, so that four times as many ranks divide */
    mf_search_options o = options_of(0.1);
    mf_search_result small = search(&w, 8, &o);
    mf_problem p = w.problem;
    p.base.gpus = 32;
    const mf_carried from = {0, &small.plan[0].layout, &small.plan[0].assignment};
    mf_known_plan known[MF_CARRY_MOST];
    o.starts = mf_carry_starts(&p, 0, &from, 1, known);
    assert_int_equal(o.starts, 1);
    assert_int_equal(known[0].layout.gpus, 32);
    assert_int_equal(known[0].layout.dp, 4 * small.plan[0].layout.dp);
    o.start = known;
    mf_search_result one = search(&w, 32, &o);
    o.threads = 3;
    mf_search_result three = search(&w, 32, &o);
    assert_memory_equal(&one.plan[0].layout, &three.plan[0].layout, sizeof one.plan[0].layout);
    assert_memory_equal(&one.stats.lower_bound_s, &three.stats.lower_bound_s, sizeof(double));
    assert_int_equal(one.stats.work, three.stats.work);
    mf_search_result_clear(&three);
    mf_search_result_clear(&one);
    mf_search_result_clear(&small);
    mf_cost_destroy(w.cost);
}

/* The nearest sizes, of this cluster before others; not what does not divide, nor host copies where
 * they are pinned. */
static void the_nearest_plans_are_carried(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w);
    enum { KNOWN = 8 };
    static const int64_t gpus[KNOWN] = {8, 16, 32, 64, 128, 96, 64, 64};
    static const int cluster[KNOWN] = {0, 0, 0, 0, 0, 0, 1, 1};
    static mf_layout layout[KNOWN];
    static mf_assignment assignment[KNOWN];
    mf_carried known[KNOWN];
    for (int i = 0; i < KNOWN; i++) {
        layout[i] = w.problem.base;
        layout[i].gpus = gpus[i];
        layout[i].pp = gpus[i] == 96 ? 3 : 2;   /* no divisor of 64 */
        layout[i].mbs = i + 1 == KNOWN ? 2 : 1; /* to tell them apart */
        assert_ok(mf_layout_resolve(&layout[i], &w.model, NULL));
        assert_ok(mf_assignment_even(&w.model, &layout[i], &assignment[i], NULL));
        known[i] = (mf_carried){cluster[i], &layout[i], &assignment[i]};
    }
    mf_problem p = w.problem;
    p.base.gpus = 64;
    mf_known_plan start[MF_CARRY_MOST];
    assert_int_equal(mf_carry_starts(&p, 0, known, KNOWN, start), MF_CARRY_MOST);
    for (int i = 0; i < MF_CARRY_MOST; i++) {
        assert_int_equal(start[i].layout.gpus, 64);
        assert_int_equal(start[i].layout.pp, 2);
    }
    assert_int_equal(start[0].layout.mbs, 1); /* its own size on this cluster, */
    assert_int_equal(start[1].layout.mbs, 2); /* then others' */
    assert_int_equal(mf_carry_starts(&p, 2, known, 1, start), 1); /* of any size, too */
    assert_int_equal(mf_carry_starts(&p, 2, known, KNOWN, start), MF_CARRY_MOST);
    assert_int_equal(start[0].layout.mbs, 2); /* the latest of its size first */
    assignment[7].memory[1].offload = MF_OFFLOAD_FFN;
    assert_int_equal(mf_carry_starts(&p, 2, known, KNOWN, start), MF_CARRY_MOST);
    for (int i = 0; i < MF_CARRY_MOST; i++) {
        assert_int_equal(start[i].layout.mbs, 1);
    }
    p.pinned &= ~MF_PIN(OFFLOAD);
    assert_int_equal(mf_carry_starts(&p, 2, known, KNOWN, start), MF_CARRY_MOST);
    assert_int_equal(start[0].layout.mbs, 2);
    mf_cost_destroy(w.cost);
}

/* One rank has nothing to share with: what its level says counts only for sizes of one, too. */
static void levels_over_one_rank_are_not_carried_to_more(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w);
    mf_layout l = w.problem.base;
    l.gpus = 8;
    l.pp = 2;
    l.ep = 4; /* 4 ranks of data parallelism, none of experts' */
    l.mbs = 1;
    l.zero = 2;
    l.expert_zero = 0;
    assert_ok(mf_layout_resolve(&l, &w.model, NULL));
    assert_int_equal(l.edp, 1);
    mf_assignment a;
    assert_ok(mf_assignment_even(&w.model, &l, &a, NULL));
    const mf_carried from = {0, &l, &a};
    mf_known_plan start[MF_CARRY_MOST];
    mf_problem p = w.problem;
    p.base.gpus = 16;
    assert_int_equal(mf_carry_starts(&p, 0, &from, 1, start), 1);
    assert_int_equal(start[0].layout.edp, 2);
    assert_int_equal(start[0].layout.zero, 2);
    assert_int_equal(start[0].layout.expert_zero, 1);
    p.pinned |= MF_PIN(EXPERT_ZERO);
    assert_int_equal(mf_carry_starts(&p, 0, &from, 1, start), 1);
    assert_int_equal(start[0].layout.expert_zero, 0);
    p.pinned &= ~MF_PIN(EXPERT_ZERO);
    const mf_carried back = {0, &start[0].layout, &a};
    start[0].layout.expert_zero = 3;
    mf_known_plan again[MF_CARRY_MOST];
    p.base.gpus = 8;
    assert_int_equal(mf_carry_starts(&p, 0, &back, 1, again), 1);
    assert_int_equal(again[0].layout.expert_zero, 0);
    mf_cost_destroy(w.cost);
}

/* --- several cells at once ---------------------------------------------------------------------
 */

enum { ROWS = 5, COLUMNS = 6, GROUP = 3 };
typedef struct table {
    atomic_int done[ROWS][COLUMNS]; /* how often */
    atomic_int early;               /* cells that began before one that they may know had ended */
    mf_wavefront w;
    int fails[2][2]; /* row and column of those that fail */
} table;

static mf_status fill_cell(void *user, int row, int column, mf_err *e) {
    table *t = user;
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        if (mf_wavefront_knows(&t->w, row, column, i / COLUMNS, i % COLUMNS)) {
            atomic_fetch_add(&t->early, t->done[i / COLUMNS][i % COLUMNS] != 1);
        }
    }
    atomic_fetch_add(&t->done[row][column], 1);
    for (int i = 0; i < 2; i++) {
        if (row == t->fails[i][0] && column == t->fails[i][1]) {
            return mf_err_set(e, MF_INPUT, "row %d, column %d", row, column);
        }
    }
    return MF_OK;
}

static void cells_come_after_those_that_they_may_know(void **state) {
    (void)state;
    for (int threads = 1; threads <= 8; threads++) {
        table t = {.fails = {{-1, -1}, {-1, -1}}};
        mf_err e;
        t.w = (mf_wavefront){ROWS, COLUMNS, GROUP, fill_cell, &t};
        assert_ok(mf_wavefront_run(&t.w, threads, &e));
        assert_int_equal(t.early, 0);
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            assert_int_equal(t.done[i / COLUMNS][i % COLUMNS], 1);
        }
    }
}

/* Its own row, the row above to the column before, one less a row higher, of the same group; the
 * first column is known to all below it. */
static void a_cell_knows_its_row_and_what_is_to_its_upper_left(void **state) {
    (void)state;
    const mf_wavefront w = {.rows = ROWS, .columns = COLUMNS, .group = GROUP};
    static const char *const known[] = {"xxx...", "xxxx..", "xxxx.."};
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        const int row = i / COLUMNS, column = i % COLUMNS;
        assert_int_equal(mf_wavefront_knows(&w, 2, 4, row, column),
                         row < GROUP && known[row][column] == 'x');
        assert_int_equal(mf_wavefront_knows(&w, 2, 0, row, column), row < 2 && column == 0);
        assert_int_equal(mf_wavefront_knows(&w, 3, 0, row, column), 0);
        assert_int_equal(mf_wavefront_knows(&w, 4, 1, row, column), row >= GROUP && column == 0);
    }
}

static void after_a_failure_no_cell_begins(void **state) {
    (void)state;
    for (int threads = 1; threads <= 8; threads++) {
        table t = {.fails = {{1, 2}, {3, 2}}};
        mf_err e;
        t.w = (mf_wavefront){ROWS, COLUMNS, GROUP, fill_cell, &t};
        assert_int_equal(mf_wavefront_run(&t.w, threads, &e), MF_INPUT);
        assert_true(strstr(e.text, "column 2") != NULL);
        assert_int_equal(t.done[1][3] + t.done[2][3] + t.done[1][5], 0);
    }
}

/* --- when something is not as planned --------------------------------------------------------- */

static double step_under(const fixture *w, const mf_plan *plan, const mf_routing *r) {
    mf_problem p = w->problem;
    mf_plan out;
    p.routing = r;
    p.base.gpus = plan->layout.gpus;
    assert_ok(mf_planner_predict(&p, &plan->layout, &plan->assignment, &out, NULL, NULL));
    const double step_s = out.prediction.step_time_s;
    mf_plan_clear(&out);
    return step_s;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Against 20 simulations of the planner's own, one for each draw; counts are not drawn. */
static void skew_is_the_second_worst_of_twenty_draws(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w);
    w.problem.pinned |= MF_PIN(EP);
    w.problem.base.ep = 4;
    mf_search_options o = options_of(0.1);
    mf_search_result r = search(&w, 16, &o);
    const mf_plan *plan = &r.plan[0];
    mf_problem p = w.problem;
    mf_routing zipf;
    mf_skewed found;
    double step_s[20];
    p.base.gpus = 16;
    assert_ok(mf_routing_parse("zipf:0.8", &zipf, NULL));
    assert_ok(mf_robust_skew(&p, &plan->layout, &plan->assignment, &zipf, mf_robust_draws(&zipf),
                             &found, NULL));
    for (uint64_t i = 0; i < 20; i++) {
        mf_routing one = zipf;
        one.seed = zipf.seed + i;
        step_s[i] = step_under(&w, plan, &one);
    }
    qsort(step_s, 20, sizeof step_s[0], by_value);
    assert_close(found.step_time_s, step_s[18], 1e-12 * step_s[18]);
    assert_true(step_s[0] < step_s[19]); /* draws differ */
    assert_true(found.load > 1);
    assert_true(found.step_time_s > plan->prediction.step_time_s);
    double counts[64];
    const int64_t experts = w.model.experts;
    assert_true(experts <= 64);
    for (int64_t i = 0; i < experts; i++) {
        counts[i] = i == 0 ? 3 : 1;
    }
    const mf_routing file = {
        .kind = MF_ROUTING_HISTOGRAM, .layers = 1, .experts = experts, .counts = counts};
    assert_ok(mf_robust_skew(&p, &plan->layout, &plan->assignment, &file, mf_robust_draws(&file),
                             &found, NULL));
    const double want_s = step_under(&w, plan, &file);
    assert_close(found.step_time_s, want_s, 1e-12 * want_s);
    const double part = (double)experts / 4, all = (double)experts + 2;
    assert_close(found.load, (part + 2) / all * 4, 1e-12);
    mf_search_result_clear(&r);
    mf_cost_destroy(w.cost);
}

/* More rows than the plan has space for are space that the run has to find. */
static void a_skew_that_does_not_fit_says_so(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w);
    w.problem.pinned |= MF_PIN(EP);
    w.problem.base.ep = 4;
    mf_search_options o = options_of(0.1);
    mf_search_result r = search(&w, 16, &o);
    const mf_plan *plan = &r.plan[0];
    mf_problem p = w.problem;
    mf_layout l = plan->layout;
    mf_skewed found;
    mf_routing even;
    mf_routing_init(&even);
    p.base.gpus = 16;
    /* space for what balanced routing needs, and not much more */
    l.reserve = 1 - 1.02 * plan->prediction.peak_memory_B / plan->prediction.capacity_B;
    assert_ok(mf_robust_skew(&p, &l, &plan->assignment, &even, 1, &found, NULL));
    assert_true(found.fits);
    assert_true(found.load <= 1 + 1e-12);
    mf_routing zipf;
    assert_ok(mf_routing_parse("zipf:3", &zipf, NULL));
    assert_ok(
        mf_robust_skew(&p, &l, &plan->assignment, &zipf, mf_robust_draws(&zipf), &found, NULL));
    assert_true(!found.fits);
    assert_true(found.load > l.token_headroom);
    mf_search_result_clear(&r);
    mf_cost_destroy(w.cost);
}

/* Against every smaller size on which the plan's degrees divide: the largest of them. */
static void a_node_less_leaves_the_same_degrees_on_fewer_gpus(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w);
    w.problem.pinned |= MF_PIN(MICRO_BATCH);
    mf_search_options o = options_of(0.1);
    mf_search_result r = search(&w, 32, &o);
    const mf_carried known = {0, &r.plan[0].layout, &r.plan[0].assignment};
    mf_problem p = w.problem;
    mf_plan left;
    bool found;
    p.base.gpus = 32;
    assert_ok(mf_robust_left(&p, 24, 0, &known, 1, &left, &found, NULL));
    assert_true(found);
    assert_true(left.prediction.fits);
    int64_t want = 0;
    for (int64_t gpus = 24; gpus >= 12 && want == 0; gpus--) {
        mf_layout l = r.plan[0].layout;
        l.gpus = gpus;
        want = mf_layout_resolve(&l, &w.model, NULL) == MF_OK ? gpus : 0;
    }
    assert_int_equal(left.layout.gpus, want);
    assert_int_equal(left.layout.tp, r.plan[0].layout.tp);
    assert_int_equal(left.layout.pp, r.plan[0].layout.pp);
    assert_true(left.prediction.step_time_s > r.plan[0].prediction.step_time_s);
    mf_plan_clear(&left);
    assert_ok(mf_robust_left(&p, 24, 1, &known, 1, &left, &found, NULL)); /* another cluster's */
    assert_false(found);
    mf_plan_clear(&left);
    mf_search_result_clear(&r);
    mf_cost_destroy(w.cost);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_do_not_depend_on_shared_books),
        cmocka_unit_test(a_known_plan_is_kept_and_its_gap_is_proven),
        cmocka_unit_test(known_plans_that_are_none_are_left_out),
        cmocka_unit_test(threads_do_not_change_what_comes_of_known_plans),
        cmocka_unit_test(the_nearest_plans_are_carried),
        cmocka_unit_test(levels_over_one_rank_are_not_carried_to_more),
        cmocka_unit_test(cells_come_after_those_that_they_may_know),
        cmocka_unit_test(a_cell_knows_its_row_and_what_is_to_its_upper_left),
        cmocka_unit_test(after_a_failure_no_cell_begins),
        cmocka_unit_test(skew_is_the_second_worst_of_twenty_draws),
        cmocka_unit_test(a_skew_that_does_not_fit_says_so),
        cmocka_unit_test(a_node_less_leaves_the_same_degrees_on_fewer_gpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
