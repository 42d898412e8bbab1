/* The search as its callers see it: same bytes on any number of threads, interruption, integer
 * programs that give up, limits, and problems that nothing fits. */
#include "planner/fit/fit_sweep.h"
#include "planner/planner.h"

#include "core/base/flag.h"
#include "tests/support/planner_problems.h"
#include "tests/support/sampled.h"

#include <stdio.h>
#include <string.h>

#define HAIR 1e-9
/* Asked for, a search goes on until nothing is left that it can close. */
#define NO_GAP 1e-12

/* A problem that takes thousands of families, all levels and integer programs, in well below a
 * second: memory is short, so that choices matter. */
typedef struct fixture {
    mf_model model;
    mf_cluster cluster;
    mf_software software;
    mf_cost *cost;
    mf_problem problem;
} fixture;

static void fixture_init(fixture *w, bool mla, int64_t gpus, double memory_B) {
    memset(w, 0, sizeof *w);
    w->model = test_model_moe(mla);
    w->model.mtp_layers = 0;
    w->cluster = test_cluster();
    w->cluster.gpu.memory_B = memory_B;
    w->software = (mf_software){.name = "test",
                                .gemm_eff = {0.7, 0.7, 0.7, 0.7},
                                .grouped_eff = 0.8,
                                .attention_eff = 0.8,
                                .memory_eff = 0.8,
                                .host_op_s = 4e-6,
                                .host_layer_s = 20e-6,
                                .host_graph = {1, 0.5, 0.1},
                                .comm_eff = {0.8, 0.8, 0.8},
                                .collective_eff = 0.8,
                                .overlap_exposed = {0.3, 0.3, 0.2, 0.4, 0.4},
                                .gpu_power_eff = 1};
    w->cost = planner_cost(&w->cluster, &w->software);
    w->problem = (mf_problem){.model = &w->model, .cost = w->cost, .generator = "test"};
    mf_layout *l = &w->problem.base;
    mf_layout_init(l);
    l->gpus = gpus;
    l->gbs = 4 * gpus;
    l->seq = 2048;
    w->problem.pinned = MF_PIN(CP) | MF_PIN(ETP) | MF_PIN(DISPATCHER) | MF_PIN(ZERO);
}

static void fixture_clear(fixture *w) {
    mf_cost_destroy(w->cost);
}

static mf_status search(const fixture *w, const mf_search_options *o, mf_search_result *x) {
    mf_err e;
    mf_status status = mf_planner_search(&w->problem, o, x, &e);
    if (status != MF_OK && status != MF_INFEASIBLE && status != MF_INTERRUPTED) {
        fail_msg("%s", e.text);
    }
    return status;
}

/* --- threads ---------------------------------------------------------------------------------- */

/* All plans of a result and what it proves, as text. */
static char *bytes_of(const mf_search_result *x) {
    size_t used = 0, allocated = 1;
    char *all = calloc(1, 1);
    for (int i = 0; i < x->count; i++) {
        char *one = NULL;
        size_t length = 0;
        assert_ok(mf_plan_to_json(&x->plan[i], &one, &length, NULL));
        allocated += length;
        all = realloc(all, allocated);
        assert_non_null(all);
        memcpy(all + used, one, length);
        used += length;
        all[used] = '\0';
        free(one);
    }
    return all;
}

static void plans_are_the_same_on_any_number_of_threads(void **state) {
    (void)state;
    static const struct {
        bool mla;
        int64_t gpus;
        double memory_B;
        double gap;
        int flight, top;
        int64_t budget; /* runners-up are looked for when it is used, with tasks in flight */
    } cases[] = {{false, 8, 10e9, 0, 2, 0, 0},
                 {false, 8, 10e9, NO_GAP, 0, 6, 200000},
                 {true, 8, 8e9, 0, 0, 0, 0},
                 {true, 4, 30e9, 0, 1, 0, 0},
                 {false, 6, 9e9, NO_GAP, 0, 0, 0}};
    static const int threads[] = {1, 2, 3, 8};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i += (size_t)case_stride(4)) {
        fixture w;
        char *first = NULL;
        mf_search_stats stats = {0};
        fixture_init(&w, cases[i].mla, cases[i].gpus, cases[i].memory_B);
        for (size_t k = 0; k < sizeof threads / sizeof threads[0]; k += (size_t)case_stride(3)) {
            mf_search_options o;
            mf_search_result x;
            mf_search_options_init(&o);
            o.threads = threads[k];
            o.gap = cases[i].gap;
            o.flight = cases[i].flight;
            o.top = cases[i].top;
            o.budget = cases[i].budget;
            assert_int_equal(search(&w, &o, &x), MF_OK);
            char *bytes = bytes_of(&x);
            if (first) {
                assert_string_equal(bytes, first);
                assert_true(stats.priced == x.stats.priced);
                assert_true(stats.pruned == x.stats.pruned);
                assert_true(stats.milp_solved == x.stats.milp_solved);
                assert_true(stats.simulated == x.stats.simulated);
                assert_true(stats.work == x.stats.work);
                free(bytes);
            } else {
                first = bytes;
                stats = x.stats;
            }
            mf_search_result_clear(&x);
        }
        printf("  %lld layouts, %lld priced, %lld integer programs, %lld steps: %zu bytes of "
               "plans\n",
               (long long)stats.space, (long long)stats.priced, (long long)stats.milp_solved,
               (long long)stats.simulated, strlen(first));
        free(first);
        fixture_clear(&w);
    }
}

/* --- what a result has to keep -----------------------------------------------------------------
 */

/* Best first, all fitting, and a bound below them. */
static void check_result(const mf_search_result *x) {
    for (int i = 0; i < x->count; i++) {
        const mf_plan_prediction *p = &x->plan[i].prediction;
        assert_true(p->fits);
        assert_at_most(p->peak_memory_B, p->usable_B);
        assert_at_most(x->stats.lower_bound_s, p->step_time_s * (1 + HAIR));
        assert_true(i == 0 || x->plan[i - 1].prediction.step_time_s <= p->step_time_s);
    }
    if (x->count > 0) {
        double gap = x->plan[0].prediction.step_time_s / x->stats.lower_bound_s - 1.0;
        assert_close(x->stats.gap, gap, HAIR);
    }
    assert_at_least(x->stats.pruned, 0);
    assert_at_least(x->stats.priced, 0);
    assert_at_most(x->stats.pruned, x->stats.space);
}

/* What a search that runs to its end knows: the fastest plan of all lies between. */
typedef struct truth {
    double bound_s, best_s;
} truth;

static truth find_truth_within(const fixture *w, double gap) {
    mf_search_options o;
    mf_search_result x;
    mf_search_options_init(&o);
    o.gap = NO_GAP;
    assert_int_equal(search(w, &o, &x), MF_OK);
    check_result(&x);
    assert_below(x.stats.gap, gap);
    truth t = {x.stats.lower_bound_s, x.plan[0].prediction.step_time_s};
    mf_search_result_clear(&x);
    return t;
}

static truth find_truth(const fixture *w) {
    return find_truth_within(w, 0.06);
}

/* No bound is above a plan, no plan below a bound, whichever search they come from. */
/* A gap that is never reached still leaves a proof and a plan no worse than a wider one does. */
static void a_tighter_gap_proves_no_less(void **state) {
    (void)state;
    static const double gaps[] = {0.2, 0.03, 0.01, 1e-6};
    for (int mla = 0; mla < case_count(2, 1); mla++) {
        fixture w;
        double bound_s = 0.0, plan_s = HUGE_VAL;
        fixture_init(&w, mla, 8, mla ? 8e9 : 10e9);
        for (size_t k = 0; k < sizeof gaps / sizeof gaps[0]; k += (size_t)case_stride(2)) {
            mf_search_options o;
            mf_search_result x;
            mf_search_options_init(&o);
            o.gap = gaps[k];
            assert_int_equal(search(&w, &o, &x), MF_OK);
            check_result(&x);
            printf("  asked %g: plan %.6f s, bound %.6f s\n", gaps[k],
                   x.plan[0].prediction.step_time_s, x.stats.lower_bound_s);
            double gap = x.plan[0].prediction.step_time_s / x.stats.lower_bound_s - 1.0;
            assert_true(gap <= gaps[k] + HAIR || x.stats.lower_bound_s >= bound_s * (1 - HAIR));
            assert_at_most(x.plan[0].prediction.step_time_s, plan_s * (1 + HAIR));
            bound_s = x.stats.lower_bound_s;
            plan_s = x.plan[0].prediction.step_time_s;
            mf_search_result_clear(&x);
        }
        fixture_clear(&w);
    }
}

static void check_against(const truth *t, double bound_s, double plan_s) {
    assert_at_most(bound_s, t->best_s * (1 + HAIR));
    assert_at_least(plan_s, t->bound_s * (1 - HAIR));
}

/* --- interruption ----------------------------------------------------------------------------- */

typedef struct stopper {
    volatile int cancel;
    int64_t calls, after;
} stopper;

static void stop(void *user, double best_s, double bound_s, int64_t priced, int64_t milps) {
    stopper *s = user;
    (void)priced;
    (void)milps;
    assert_at_most(bound_s, best_s);
    mf_flag_set(&s->cancel, ++s->calls >= s->after);
}

/* The search of a fixture, stopped by `user`, which begins with a stopper. */
static mf_search_request request_of(const fixture *w, const mf_evaluator *evaluator,
                                    stopper *user) {
    return (mf_search_request){
        .evaluator = evaluator,
        .space = {.model = &w->model, .base = w->problem.base, .pinned = w->problem.pinned},
        .threads = 2,
        .top = 4,
        .gap = NO_GAP,
        .cancel = &user->cancel,
        .progress = stop,
        .user = user};
}

static void an_interrupted_search_has_its_best_so_far_and_a_valid_bound(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w, false, 8, 10e9);
    truth t = find_truth(&w);
    mf_evaluator_real real = {.model = &w.model, .cost = w.cost};
    mf_evaluator evaluator = mf_evaluator_init(&real);
    int without = 0, with = 0;
    for (int64_t after = 1; after <= 91; after += 6 * case_stride(3)) {
        stopper s = {.after = after};
        const mf_search_request r = request_of(&w, &evaluator, &s);
        mf_search_report x;
        assert_ok(mf_search_run(&r, &x, NULL));
        check_against(&t, x.stats.lower_bound_s, x.count > 0 ? x.found[0].time_s : HUGE_VAL);
        assert_true(x.stats.interrupted || s.calls < after);
        without += x.count == 0;
        with += x.count > 0 && x.stats.interrupted;
        mf_search_report_clear(&x);
    }
    assert_above(without, 0);
    assert_above(with, 0); /* both were seen */
    fixture_clear(&w);
}

static void a_search_that_is_cancelled_at_once_says_so(void **state) {
    (void)state;
    fixture w;
    volatile int cancel = 1;
    mf_search_options o;
    mf_search_result x;
    mf_err e;
    fixture_init(&w, false, 8, 10e9);
    mf_search_options_init(&o);
    o.cancel = &cancel;
    assert_int_equal(mf_planner_search(&w.problem, &o, &x, &e), MF_INTERRUPTED);
    assert_int_equal(x.count, 0);
    assert_true(x.stats.interrupted);
    mf_search_result_clear(&x);
    fixture_clear(&w);
}

/* --- plans that are known to fit --------------------------------------------------------------
 */

/* What fits, of the stopper's problem. */
typedef struct leaner {
    stopper s; /* first: what the request's user points to */
    const mf_problem *problem;
    int64_t asked;
} leaner;

static mf_status list_fit_candidates(void *user, mf_layout **out, int64_t *count, mf_err *e) {
    leaner *l = user;
    const mf_space space = mf_fit_space(l->problem, l->problem->base.gpus);
    l->asked++;
    return mf_fit_list(l->problem, &space, out, count, e);
}

static mf_status judge_fit_candidate(void *user, mf_layout *layout, bool *fits, mf_err *e) {
    const leaner *l = user;
    mf_fit_judge *judge;
    mf_fit_entry entry = {0};
    assert_ok(mf_fit_judge_create(l->problem, &judge, e));
    assert_ok(mf_fit_judge_least_memory(judge, *layout, true, &entry, fits, e));
    mf_fit_judge_destroy(judge);
    *fits = *fits && entry.fits;
    *layout = *fits ? entry.layout : *layout;
    return MF_OK;
}

/* A search that has found nothing by then starts from what fits, ends with the same plan, and asks
 * no second time. */
static void a_search_without_a_plan_takes_one_that_fits(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w, false, 8, 10e9);
    truth t = find_truth(&w);
    mf_evaluator_real real = {.model = &w.model, .cost = w.cost};
    mf_evaluator evaluator = mf_evaluator_init(&real);
    for (int whole = 0; whole < 2; whole++) {
        leaner l = {.s = {.after = whole ? INT64_MAX : 1}, .problem = &w.problem};
        mf_search_request r = request_of(&w, &evaluator, &l.s);
        r.list_fit_candidates = list_fit_candidates;
        r.judge_fit_candidate = judge_fit_candidate;
        r.fits_work = -1;
        mf_search_report x;
        assert_ok(mf_search_run(&r, &x, NULL));
        assert_int_equal(l.asked, 1);
        assert_int_equal(x.stats.interrupted, !whole);
        assert_above(x.count, 0);
        assert_above(x.stats.simulated, 0);
        check_against(&t, x.stats.lower_bound_s, x.found[0].time_s);
        if (whole) {
            assert_at_most(fabs(x.found[0].time_s - t.best_s), HAIR * t.best_s);
        }
        mf_search_report_clear(&x);
    }
    fixture_clear(&w);
}

/* Where memory decides, little effort finds a plan that is nearly the fastest: what fits is tried
 * in every order, with uneven splits and as little recomputed as there is space for. */
static void little_effort_finds_a_good_plan_where_memory_decides(void **state) {
    (void)state;
    const struct {
        double memory_B, above; /* at most so much above the fastest */
        uint16_t traits;        /* of the program that is planned for */
    } tight[] = {
        {4.1e9, 0.01, 0}, {4.6e9, 0.05, 0}, {5.0e9, 0.05, MF_TRAIT_ACT_PASS}, {5.3e9, 0.02, 0}};
    for (size_t i = 0; i < sizeof tight / sizeof tight[0]; i += (size_t)case_stride(4)) {
        fixture w;
        fixture_init(&w, false, 8, tight[i].memory_B);
        w.problem.base.software_traits = tight[i].traits;
        truth t = find_truth_within(&w, 0.12);
        mf_evaluator_real real = {.model = &w.model, .cost = w.cost};
        mf_evaluator evaluator = mf_evaluator_init(&real);
        leaner l = {.s = {.after = INT64_MAX}, .problem = &w.problem};
        mf_search_request r = request_of(&w, &evaluator, &l.s);
        r.budget = 100000;
        r.open_work = 60000;
        r.list_fit_candidates = list_fit_candidates;
        r.judge_fit_candidate = judge_fit_candidate;
        r.fits_work = -1;
        mf_search_report x;
        assert_ok(mf_search_run(&r, &x, NULL));
        check_against(&t, x.stats.lower_bound_s, x.found[0].time_s);
        printf("  %.1f GB: plan %.6f s, the fastest %.6f s\n", tight[i].memory_B / 1e9,
               x.found[0].time_s, t.best_s);
        assert_at_most(x.found[0].time_s, (1 + tight[i].above) * t.best_s);
        mf_search_report_clear(&x);
        fixture_clear(&w);
    }
}

/* Layouts near a plan have its degrees; what is free beside these takes several values. */
static void layouts_near_a_plan_have_its_degrees(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w, false, 8, 10e9);
    mf_evaluator_real real = {.model = &w.model, .cost = w.cost};
    mf_evaluator evaluator = mf_evaluator_init(&real);
    stopper s = {.after = INT64_MAX};
    mf_search_request r = request_of(&w, &evaluator, &s);
    mf_search_report x;
    mf_block_costs *costs;
    mf_order_book *orders;
    mf_search_context context;
    mf_search_outcome out = {.status = MF_OK};
    assert_ok(mf_search_run(&r, &x, NULL));
    assert_ok(mf_block_costs_create(&evaluator, &costs, NULL));
    assert_ok(mf_order_book_create(&orders, NULL));
    assert_ok(mf_search_context_init(&context, costs, orders, &r.space, NULL));
    mf_search_found plan = x.found[0];
    plan.time_s *= 2.0; /* so that others are below it */
    assert_ok(mf_search_try_near(&context, &plan, 1.0, &out, NULL));
    assert_above(out.children, 1);
    int64_t other_mbs = 0, other_schedules = 0;
    for (int64_t i = 0; i < out.children; i++) {
        const mf_layout l = mf_search_layout(&context, &out.child[i]);
        assert_int_equal(out.child[i].level, MF_LEVEL_TRY);
        assert_below(out.child[i].key_s, 1.0);
        assert_int_equal(l.tp, plan.layout.tp);
        assert_int_equal(l.cp, plan.layout.cp);
        assert_int_equal(l.pp, plan.layout.pp);
        assert_int_equal(l.ep, plan.layout.ep);
        assert_int_equal(l.etp, plan.layout.etp);
        other_mbs += l.mbs != plan.layout.mbs;
        other_schedules += l.schedule != plan.layout.schedule;
    }
    assert_above(other_mbs, 0);
    assert_above(other_schedules, 0);
    free(out.child);
    mf_search_context_clear(&context);
    mf_order_book_destroy(orders);
    mf_block_costs_destroy(costs);
    mf_search_report_clear(&x);
    fixture_clear(&w);
}

/* --- effort ----------------------------------------------------------------------------------- */

/* A search with more effort goes the way of one with less, and on from there; each says why it
 * ended. */
static void more_effort_never_ends_with_less(void **state) {
    (void)state;
    static const double memory_B[] = {3.45e9, 4e9, 10e9};
    for (size_t i = 0; i < sizeof memory_B / sizeof memory_B[0]; i += (size_t)case_stride(3)) {
        fixture w;
        fixture_init(&w, i > 0, 8, memory_B[i]);
        mf_evaluator_real real = {.model = &w.model, .cost = w.cost};
        mf_evaluator evaluator = mf_evaluator_init(&real);
        double plan_s = HUGE_VAL, bound_s = 0.0;
        int used = 0;
        for (int64_t budget = 6000; budget <= 600000; budget += case_stride(4) * budget / 2) {
            stopper never = {.after = INT64_MAX};
            mf_search_request r = request_of(&w, &evaluator, &never);
            r.gap = 1e-6;
            r.budget = budget;
            r.open_work = 60000;
            mf_search_report x;
            assert_ok(mf_search_run(&r, &x, NULL));
            assert_at_most(x.found[0].time_s, plan_s);
            assert_at_most(x.found[0].time_s / x.stats.lower_bound_s, plan_s / bound_s);
            assert_true(strstr(x.stats.ended, "effort") ||
                        strstr(x.stats.ended, "nothing is left") ||
                        strstr(x.stats.ended, "is proven"));
            used += strstr(x.stats.ended, "effort") != NULL;
            plan_s = x.found[0].time_s;
            bound_s = x.stats.lower_bound_s;
            mf_search_report_clear(&x);
        }
        printf("  %.2f GB: %d searches ended with their effort used\n", memory_B[i] / 1e9, used);
        assert_above(used, 1);
        fixture_clear(&w);
    }
}

/* --- integer programs that give up -------------------------------------------------------------
 */

static void integer_programs_that_give_up_only_weaken_the_proof(void **state) {
    (void)state;
    static const mf_milp_fault faults[] = {MF_MILP_FAULT_ABORT, MF_MILP_FAULT_NOMEM};
    fixture w;
    fixture_init(&w, true, 8, 8e9);
    truth t = find_truth(&w);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i += (size_t)case_stride(2)) {
        mf_search_options o;
        mf_search_result x;
        mf_search_options_init(&o);
        o.threads = 2;
        o.milp_fault = faults[i];
        assert_int_equal(search(&w, &o, &x), MF_OK);
        check_result(&x);
        assert_above(x.stats.milp_failed, 0);
        assert_true(x.stats.milp_solved == 0);
        check_against(&t, x.stats.lower_bound_s, x.plan[0].prediction.step_time_s);
        printf("  fault %d: %.4g s after %lld programs given up, best %.4g s, gap %.3f %%\n",
               (int)faults[i], x.plan[0].prediction.step_time_s, (long long)x.stats.milp_failed,
               t.best_s, 100 * x.stats.gap);
        mf_search_result_clear(&x);
    }
    fixture_clear(&w);
}

/* --- nothing fits ------------------------------------------------------------------------------
 */

static void nothing_fits_is_an_answer_with_a_reason(void **state) {
    (void)state;
    fixture w;
    mf_search_options o;
    mf_search_result x;
    mf_fit_options fit_options = {.shown = 1};
    mf_fit_result fit;
    mf_err e;
    fixture_init(&w, false, 2, 4e9);
    mf_search_options_init(&o);
    assert_int_equal(mf_planner_search(&w.problem, &o, &x, &e), MF_INFEASIBLE);
    assert_int_equal(x.count, 0);
    assert_above(x.stats.space, 0);
    assert_above(strlen(e.text), 0);
    mf_search_result_clear(&x);
    assert_int_equal(mf_planner_fit(&w.problem, &fit_options, &fit, &e), MF_INFEASIBLE);
    assert_int_equal(fit.feasible, 0);
    assert_above(strlen(fit.missing), 0);
    mf_fit_result_clear(&fit);
    fixture_clear(&w);
}

/* --- phase 1 ---------------------------------------------------------------------------------- */

static void fits_are_the_same_on_any_number_of_threads(void **state) {
    (void)state;
    fixture w;
    mf_err e;
    mf_fit_result r[3];
    static const int threads[3] = {1, 2, 7};
    fixture_init(&w, false, 64 / case_stride(4), 3e9);
    w.problem.pinned = 0;
    for (int i = 0; i < 3; i++) { /* the last one makes only what is wanted exact */
        const mf_fit_options o = {.shown = i < 2 ? INT64_MAX : 5, .threads = threads[i]};
        assert_int_equal(mf_planner_fit(&w.problem, &o, &r[i], &e), MF_OK);
        assert_int_equal(r[i].count, r[0].count);
        assert_int_equal(r[i].feasible, r[0].feasible);
    }
    assert_above(r[0].count, 50);
    assert_below(r[0].feasible, r[0].count);
    const double share_B = mf_planner_least_states_B(&w.problem);
    assert_above(share_B, 0.0);
    for (int64_t k = 0; k < r[0].count; k++) {
        const mf_fit_entry *a = &r[0].entry[k], *b = &r[1].entry[k], *c = &r[2].entry[k];
        int64_t nth = k < r[0].feasible ? k : k - r[0].feasible;
        assert_true(a->exact);
        assert_true(b->exact);
        assert_compared(a->peak_B, ==, b->peak_B);
        assert_at_most(share_B, a->peak_B);
        assert_int_equal(a->layout.tp, b->layout.tp);
        assert_int_equal(a->layout.ep, b->layout.ep);
        assert_int_equal(a->layout.pp, b->layout.pp);
        if (nth < 5) {
            assert_true(c->exact);
            assert_compared(a->peak_B, ==, c->peak_B);
            assert_int_equal(a->stage, c->stage);
        }
    }
    for (int i = 0; i < 3; i++) {
        mf_fit_result_clear(&r[i]);
    }
    fixture_clear(&w);
}

static bool same_degrees(const mf_layout *a, const mf_layout *b) {
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp && a->ep == b->ep && a->etp == b->etp;
}

/* The search, which judges one by one, is given the degrees that phase 1 judges. */
static void what_is_listed_is_what_fit_judges(void **state) {
    (void)state;
    fixture w;
    mf_fit_result r;
    mf_layout *lean = NULL;
    int64_t count = 0, found = 0;
    const int64_t gpus = 64 / case_stride(2);
    fixture_init(&w, false, gpus, 3e9);
    w.problem.pinned = 0;
    const mf_fit_options o = {.shown = 1, .threads = 1};
    const mf_space space = mf_fit_space(&w.problem, gpus);
    assert_int_equal(mf_planner_fit(&w.problem, &o, &r, NULL), MF_OK);
    assert_ok(mf_fit_list(&w.problem, &space, &lean, &count, NULL));
    assert_at_least(count, r.count); /* layers of some cannot be placed */
    for (int64_t k = 0; k < r.count; k++) {
        int64_t i = 0;
        while (i < count && !same_degrees(&lean[i], &r.entry[k].layout)) {
            i++;
        }
        found += i < count;
    }
    assert_int_equal(found, r.count);
    free(lean);
    mf_fit_result_clear(&r);
    fixture_clear(&w);
}

static volatile int halt;

static void stop_soon(const mf_fit_progress *now, void *user) {
    *(int64_t *)user = now->total;
    mf_flag_set(&halt, now->done > now->total / 4);
}

static void an_interrupted_fit_has_what_it_found(void **state) {
    (void)state;
    fixture w;
    mf_err e;
    mf_fit_result whole, part;
    int64_t total = 0;
    fixture_init(&w, false, 64 / case_stride(2), 3e9);
    w.problem.pinned = 0;
    mf_fit_options o = {.shown = INT64_MAX, .threads = 1};
    assert_int_equal(mf_planner_fit(&w.problem, &o, &whole, &e), MF_OK);
    o.cancel = &halt;
    o.progress = stop_soon;
    o.user = &total;
    halt = 0;
    assert_int_equal(mf_planner_fit(&w.problem, &o, &part, &e), MF_INTERRUPTED);
    assert_above(part.count, 0);
    assert_below(part.count, whole.count);
    assert_above(total, 0);
    for (int64_t k = 0; k < part.count; k++) {
        assert_int_equal(part.entry[k].fits, k < part.feasible);
        assert_true(part.entry[k].exact);
    }
    mf_fit_result_clear(&whole);
    mf_fit_result_clear(&part);
    fixture_clear(&w);
}

/* Searches of one problem with more and less patience; how many of them were stale, and slow. */
static void check_patience(fixture *w, int *stale, int *slow) {
    static const int64_t patience[] = {0, INT64_MAX / 2, 2000, 1000};
    double bound_s = 0, least_s = HUGE_VAL;
    int64_t work[4];
    for (int i = 0; i < 4; i++) {
        double plan_s = 0;
        for (int threads = 1; threads <= 3; threads += 2 * case_stride(2)) {
            mf_evaluator_real real = {.model = &w->model, .cost = w->cost};
            mf_evaluator evaluator = mf_evaluator_init(&real);
            stopper never = {.after = INT64_MAX};
            mf_search_request r = request_of(w, &evaluator, &never);
            r.gap = 1e-6;
            r.budget = case_count(600000, 240000);
            r.patience = patience[i];
            r.threads = threads;
            mf_search_report x;
            assert_ok(mf_search_run(&r, &x, NULL));
            assert_true(threads == 1 || x.found[0].time_s == plan_s);
            assert_true(threads == 1 || x.stats.work == work[i]);
            plan_s = x.found[0].time_s;
            work[i] = x.stats.work;
            bound_s = fmax(bound_s, x.stats.lower_bound_s);
            least_s = fmin(least_s, plan_s);
            *stale += strstr(x.stats.ended, "did not narrow the gap") != NULL;
            *slow += strstr(x.stats.ended, "at its pace of late") != NULL;
            mf_search_report_clear(&x);
        }
    }
    printf("  counted: %lld us, %lld with patience; so far %d stale, %d slow\n", (long long)work[0],
           (long long)work[3], *stale, *slow);
    assert_at_most(bound_s, least_s * (1 + HAIR)); /* each bound holds for every plan */
    assert_int_equal(work[0], work[1]);
    assert_below(work[2], work[0]);
    assert_below(work[3], work[0]);
}

/* A search of limited patience ends where its gap has not narrowed for long, or narrows too slowly
 * to be proven in as much time again, says so, and goes the way of one without until then. Several
 * problems: which of the two it is hangs on prices. */
static void patience_ends_what_does_not_narrow_the_gap(void **state) {
    (void)state;
    static const struct {
        bool mla;
        int64_t gpus;
        double memory_B;
    } cases[] = {{false, 8, 10e9}, {true, 4, 10e9}, {false, 4, 10e9}};
    int stale = 0, slow = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i += (size_t)case_stride(2)) {
        fixture w;
        fixture_init(&w, cases[i].mla, cases[i].gpus, cases[i].memory_B);
        check_patience(&w, &stale, &slow);
        fixture_clear(&w);
    }
    if (!cases_sampled()) {
        assert_int_equal(stale % 2, 0);
        assert_int_equal(slow % 2, 0);
    }
    assert_above(stale, 0);
    assert_above(slow, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_are_the_same_on_any_number_of_threads),
        cmocka_unit_test(a_tighter_gap_proves_no_less),
        cmocka_unit_test(an_interrupted_search_has_its_best_so_far_and_a_valid_bound),
        cmocka_unit_test(a_search_that_is_cancelled_at_once_says_so),
        cmocka_unit_test(a_search_without_a_plan_takes_one_that_fits),
        cmocka_unit_test(little_effort_finds_a_good_plan_where_memory_decides),
        cmocka_unit_test(layouts_near_a_plan_have_its_degrees),
        cmocka_unit_test(more_effort_never_ends_with_less),
        cmocka_unit_test(patience_ends_what_does_not_narrow_the_gap),
        cmocka_unit_test(integer_programs_that_give_up_only_weaken_the_proof),
        cmocka_unit_test(nothing_fits_is_an_answer_with_a_reason),
        cmocka_unit_test(fits_are_the_same_on_any_number_of_threads),
        cmocka_unit_test(what_is_listed_is_what_fit_judges),
        cmocka_unit_test(an_interrupted_fit_has_what_it_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
