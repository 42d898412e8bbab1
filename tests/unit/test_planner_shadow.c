/* The price of memory against what it can be found from: on one stage, the exchange rate between
 * two memory choices of a layer. */
#include "planner/explain/shadow_price.h"
#include "planner/partition/partition.h"
#include "tests/support/planner_problems.h"

#include <stdio.h>
#include <string.h>

typedef struct fixture {
    mf_model model;
    mf_cluster cluster;
    mf_software software;
    mf_cost *cost;
    mf_problem problem;
} fixture;

/* One GPU, one schedule: what is left to choose is what layers keep. */
static void fixture_init(fixture *w) {
    memset(w, 0, sizeof *w);
    w->model = test_model_moe(false);
    w->cluster = test_cluster();
    w->software = (mf_software){.name = "test",
                                .gemm_eff = {0.7, 0.7, 0.7, 0.7},
                                .grouped_eff = 0.8,
                                .attention_eff = 0.8,
                                .memory_eff = 0.8,
                                .host_graph = {1, 0.5, 0.1},
                                .comm_eff = {0.8, 0.8, 0.8},
                                .collective_eff = 0.8,
                                .gpu_power_eff = 1};
    w->cost = planner_cost(&w->cluster, &w->software);
    w->problem = (mf_problem){.model = &w->model, .cost = w->cost, .generator = "test"};
    mf_layout *l = &w->problem.base;
    mf_layout_init(l);
    l->gpus = 1;
    l->gbs = 8;
    l->mbs = 4;
    l->seq = 4096;
    w->problem.pinned = MF_PIN(MICRO_BATCH) | MF_PIN(SCHEDULE) | MF_PIN(OFFLOAD);
}

static void fixture_clear(fixture *w) {
    mf_cost_destroy(w->cost);
}

/* With so much memory: the fastest plan, and the price of memory there. */
static mf_shadow price_at(fixture *w, double memory_B, mf_plan *plan) {
    mf_search_options o;
    mf_search_result x;
    mf_shadow price;
    mf_err e;
    w->cluster.gpu.memory_B = memory_B;
    mf_cost_destroy(w->cost);
    w->cost = planner_cost(&w->cluster, &w->software);
    w->problem.cost = w->cost;
    mf_search_options_init(&o);
    if (mf_planner_search(&w->problem, &o, &x, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    *plan = x.plan[0];
    assert_ok(mf_shadow_memory(&w->problem, &plan->layout, &plan->assignment, &plan->prediction,
                               &price, NULL));
    memset(&x.plan[0], 0, sizeof x.plan[0]); /* handed over */
    mf_search_result_clear(&x);
    return price;
}

/* Seconds by byte between two choices of a layer class, in a step of this plan: of all pairs the
 * one that is nearest to `price`. */
static double nearest_rate(const fixture *w, const mf_plan *plan, double price) {
    mf_evaluator_real real = {.model = &w->model, .cost = w->cost};
    mf_evaluator evaluator = mf_evaluator_init(&real);
    double nearest = 0.0, m = (double)plan->layout.micro_batches;
    for (int class = 0; class < w->model.classes; class ++) {
        mf_memory_choice choice[MF_CATALOGUE_MAX];
        mf_block_cost choice_cost[MF_CATALOGUE_MAX];
        int n = mf_catalogue(&w->model, (uint8_t) class, 0, plan->layout.memory, choice);
        for (int i = 0; i < n; i++) {
            mf_block_key key = mf_block_key_layer((uint8_t) class, choice[i], false);
            assert_ok(evaluator.ops->cost(evaluator.self, &plan->layout, &key, true,
                                          &choice_cost[i], NULL));
        }
        for (int a = 0; a < n; a++) {
            for (int b = 0; b < n; b++) {
                double less_B = choice_cost[a].saved_B - choice_cost[b].saved_B;
                double more_s = choice_cost[b].f.time_s + choice_cost[b].b.time_s -
                                choice_cost[a].f.time_s - choice_cost[a].b.time_s;
                double rate = less_B > 0.0 ? m * more_s / less_B : 0.0;
                nearest = fabs(rate - price) < fabs(nearest - price) ? rate : nearest;
            }
        }
    }
    return nearest;
}

static void the_price_of_memory_is_an_exchange_rate_of_two_choices(void **state) {
    (void)state;
    fixture w;
    mf_plan plan;
    fixture_init(&w);
    mf_shadow price = price_at(&w, 80e9, &plan);
    double ample_B = plan.prediction.peak_memory_B;
    assert_at_most(price.seconds_per_B, 0.0); /* all is kept: more memory buys nothing */
    mf_plan_clear(&plan);
    double before = 0.0;
    for (int k = 9; k >= 7; k--) {
        price = price_at(&w, 0.1 * k * ample_B / 0.95, &plan);
        assert_int_equal(price.stage, 0);
        double rate = nearest_rate(&w, &plan, price.seconds_per_B);
        printf("  %.0f %% of %.3g B: %.4g s by GB, a rate of two choices %.4g\n", 10.0 * k, ample_B,
               1e9 * price.seconds_per_B, 1e9 * rate);
        assert_close(price.seconds_per_B, rate, 1e-3 * rate);
        assert_at_least(price.seconds_per_B, before * (1 - 1e-3)); /* the less, the dearer */
        before = price.seconds_per_B;
        mf_plan_clear(&plan);
    }
    fixture_clear(&w);
}

static void explain_prints_the_price_of_a_gigabyte(void **state) {
    (void)state;
    fixture w;
    mf_plan plan;
    mf_explanation x;
    fixture_init(&w);
    price_at(&w, 80e9, &plan);
    double ample_B = plan.prediction.peak_memory_B;
    mf_plan_clear(&plan);
    mf_shadow price = price_at(&w, 0.7 * ample_B / 0.95, &plan);
    assert_ok(mf_planner_explain(&w.problem, &plan.layout, &plan.assignment, &x, NULL));
    int found = 0;
    for (int i = 0; i < x.remedies; i++) {
        if (strcmp(x.remedy[i].basis, "dual price") == 0) {
            double gain = 1e9 * price.seconds_per_B / plan.prediction.step_time_s;
            assert_string_equal(x.remedy[i].what, "1 GB more on stage 0");
            assert_close(x.remedy[i].gain, gain, 1e-9);
            found++;
        }
    }
    assert_int_equal(found, 1);
    mf_plan_clear(&plan);
    fixture_clear(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_price_of_memory_is_an_exchange_rate_of_two_choices),
        cmocka_unit_test(explain_prints_the_price_of_a_gigabyte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
