/* Measured ops as points of the profile store: the key of an op is the key that prices it. */
#include "compare/compare_points.h"
#include "compare/compare_steps.h"
#include "compare/compare_verdict.h"
#include "costmodel/cost_internal.h"
#include "job/figures/reported_flops.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mf_program *lower(const char *family, mf_precision precision, int ranks, mf_cluster *c) {
    char path[128];
    mf_model m;
    mf_layout l;
    mf_assignment a;
    mf_program *p = NULL;
    mf_err e;
    snprintf(path, sizeof path, "tests/data/hf/%s/config.json", family);
    mf_layout_init(&l);
    l.gpus = ranks;
    l.tp = ranks == 4 ? 2 : 1;
    l.ep = ranks;
    l.gbs = 8;
    l.seq = 64;
    l.precision = precision;
    l.dispatcher = ranks == 4 ? MF_DISPATCH_ALLTOALL : MF_DISPATCH_FUSED;
    if (mf_model_load(path, &m, &e) != MF_OK || mf_cluster_load("cpu", c, &e) != MF_OK ||
        mf_layout_resolve(&l, &m, &e) != MF_OK || mf_assignment_even(&m, &l, &a, &e) != MF_OK ||
        mf_program_lower(&m, &l, c, &a, &p, &e) != MF_OK) {
        fail_msg("%s: %s", family, e.text);
    }
    return p;
}

static void an_op_is_priced_as_the_point_that_it_is_kept_under(void **state) {
    (void)state;
    static const char *const families[] = {"mixtral", "qwen3_moe", "deepseek_v3"};
    int found[MF_OP_COUNT] = {0}, without = 0;
    for (int k = 0; k < 12; k++) {
        mf_cluster c;
        mf_software s;
        mf_cost *cost = NULL;
        mf_err e;
        mf_program *p =
            lower(families[k % 3], k % 2 ? MF_PREC_BF16 : MF_PREC_FP32, k < 6 ? 4 : 2, &c);
        assert_ok(mf_software_load("moefold", &s, &e));
        assert_ok(mf_cost_create(&c, &s, NULL, &cost, &e));
        for (int i = 0; i < p->nblocks; i++) {
            for (int n = 0; n < p->blocks[i]->nops; n++) {
                const mf_op *op = &p->blocks[i]->ops[n];
                mf_point point;
                mf_op again;
                mf_price a, b;
                if (!mf_compare_point(op, &p->layout, "cpu", &point)) {
                    without++;
                    continue;
                }
                if (mf_point_canonical(&point, &e) != MF_OK ||
                    mf_cost_point_op(&point, &c, &again, &e) != MF_OK) {
                    fail_msg("%s: %s", op->name, e.text);
                }
                mf_cost_op(cost, op, 1.0, &a);
                mf_cost_op(cost, &again, 1.0, &b);
                char text[256];
                mf_point_format(&point, text, sizeof text);
                if (fabs(a.time_s / b.time_s - 1.0) > 0.01) {
                    fail_msg("%s (%s): %.4g s, as \"%s\" %.4g s", op->name, p->blocks[i]->label,
                             a.time_s, text, b.time_s);
                }
                found[op->kind]++;
            }
        }
        mf_cost_destroy(cost);
        mf_program_destroy(p);
    }
    static const mf_op_kind wanted[] = {
        MF_OP_GEMM,          MF_OP_GROUPED_GEMM, MF_OP_ALL_GATHER, MF_OP_ATTENTION_FWD,
        MF_OP_ATTENTION_BWD, MF_OP_DISPATCH,     MF_OP_COMBINE,    MF_OP_REDUCE_SCATTER,
        MF_OP_PERMUTE,       MF_OP_RMSNORM_BWD,  MF_OP_SWIGLU_FWD, MF_OP_ROUTER_FWD};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (found[wanted[i]] == 0) {
            fail_msg("no %s has a point", mf_op_text(wanted[i]));
        }
    }
    printf("%d ops have no key\n", without);
}

/* --- what it comes to --------------------------------------------------------------------------
 */

static void verdict_is(mf_compare_op *op, int nops, double predicted_s, double measured_s,
                       const mf_compared_run *of, const char *decides, const char *next) {
    mf_verdict_text v = {0};
    mf_compare c = {.op = op, .nops = nops, .predicted_s = predicted_s, .measured_s = measured_s};
    c.outside = fabs(predicted_s / measured_s - 1) > of->tolerance;
    for (int i = 0; i < nops; i++) {
        c.ops_predicted_s += op[i].predicted_s;
        c.ops_measured_s += op[i].measured_s;
        c.noutside += op[i].outside;
    }
    mf_verdict_text_compare(&v, &c, of);
    assert_string_equal(v.decides, decides);
    assert_string_equal(v.next, next);
}

static void the_verdict_names_what_is_off_most_and_what_to_do(void **state) {
    (void)state;
    mf_compare_op op[] = {{.where = "layer moe",
                           .name = "expert_fc1",
                           .pass = "input_gradient",
                           .predicted_s = 0.5,
                           .measured_s = 0.8,
                           .outside = true},
                          {.where = "head",
                           .name = "lm_head",
                           .pass = "forward",
                           .predicted_s = 0.2,
                           .measured_s = 0.2}};
    mf_compared_run of = {.run = "run", .plan = "run/plan.json", .tolerance = 0.1};
    verdict_is(op, 2, 0.75, 1.0, &of,
               "the step is predicted 25.0 % too short (750.0 ms, measured 1.000 s), outside "
               "10.0 %, and so 1 of 2 ops is; off most is expert_fc1 of layer moe, input gradient, "
               "by 300.0 ms (500.0 ms, measured 800.0 ms)",
               "moefold compare --run run --record my.db keeps what was measured, --store my.db "
               "prices from it");
    of.record = "here.db";
    verdict_is(op, 2, 1.02, 1.0, &of,
               "the step is predicted 2.0 % too long (1.020 s, measured 1.000 s), within 10.0 %, "
               "but 1 of 2 ops is not; off most is what ops do not say: overlap, waiting and the "
               "host make the step 0 s longer than its ops, predicted 320.0 ms longer",
               "plan, simulate and compare with --store here.db");
    op[0] = (mf_compare_op){.where = "layer moe",
                            .name = "dispatch",
                            .pass = "forward",
                            .collective = true,
                            .predicted_s = 0.7,
                            .measured_s = 0.75};
    verdict_is(op, 2, 1.0, 1.0, &of,
               "the step is predicted 0.0 % too long (1.000 s, measured 1.000 s), within 10.0 %; "
               "off most is dispatch of layer moe, forward, by 50.00 ms (700.0 ms, measured "
               "750.0 ms with the wait for other ranks)",
               "moefold tune --plan run/plan.json");
    op[0].measured_s = 0.7;
    of.record = NULL;
    verdict_is(op, 2, 1.0, 1.3, &of,
               "the step is predicted 23.1 % too short (1.000 s, measured 1.300 s), outside "
               "10.0 %; off most is what ops do not say: overlap, waiting and the host make the "
               "step 400.0 ms longer than its ops, predicted 100.0 ms longer",
               "more steps with nothing else on the machine, then compare again");
}

static void the_verdict_of_a_log_says_when_it_is_of_another_job(void **state) {
    (void)state;
    mf_job *j = calloc(1, sizeof *j);
    mf_verdict_text v = {0};
    assert_non_null(j);
    j->plan.prediction.step_time_s = 2.0;
    j->plan.prediction.model_tflops_per_gpu = 400;
    j->plan.prediction.peak_memory_B = 64e9;
    mf_log l = {.step_time_s = 2.5, .tflops = 320, .memory_B = 61e9};
    mf_compared_log of = {
        .log = &l, .plan = "plan.json", .tolerance = 0.1, .memory_B = 60e9}; /* of 64e9 in all */
    mf_verdict_text_log(&v, j, &of);
    assert_string_equal(
        v.decides,
        "the step is predicted 20.0 % too short (2.000 s, measured 2.500 s), outside 10.0 %");
    assert_string_equal(v.next,
                        "the same with --out mine.json, which --software mine.json then prices by");
    snprintf(j->software.name, sizeof j->software.name, "megatron-26.06");
    mf_verdict_text_log(&v, j, &of);
    assert_string_equal(
        v.next, "the same with --correct, which plan, simulate, tune and capacity then price by");
    of.unexplained = true; /* --correct would be refused */
    mf_verdict_text_log(&v, j, &of);
    assert_string_equal(
        v.next, "the same with the plan of the log's job (moefold import LOG --out plan.json)");
    of.unexplained = false;
    of.kept = true;
    mf_verdict_text_log(&v, j, &of);
    assert_string_equal(v.next, "moefold tune --plan plan.json");
    of.kept = false;
    l.memory_B = 80e9; /* a quarter more */
    of.out = "mine.json";
    mf_verdict_text_log(&v, j, &of);
    assert_null(strstr(v.decides, "memory")); /* all that the GPU holds is another thing */
    assert_string_equal(v.next, "plan, simulate, capacity and tune with --software mine.json");
    of.allocated = true;
    mf_verdict_text_log(&v, j, &of);
    assert_non_null(strstr(v.decides, "; allocated memory is off more, by 25.0 % (60.00 GB, "));
    l.tflops = 400; /* in a longer step: a quarter more FLOPs */
    of.out = NULL;
    of.tolerance = 0.5;
    mf_verdict_text_log(&v, j, &of);
    assert_non_null(strstr(v.decides, "; the log's step has 25.0 % more FLOPs than the plan's"));
    assert_true(mf_reported_is_other_job(j, &l));
    assert_string_equal(
        v.next, "the same with the plan of the log's job (moefold import LOG --out plan.json)");
    free(j);
}

static void write_metrics(const char *folder, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* Steps that were timed op by op, and the one that waits for them, do not count. */
static void a_gpu_step_is_the_mean_of_those_behind_the_timed_ones(void **state) {
    (void)state;
    char folder[] = "/tmp/moefold-compare-XXXXXX", command[300];
    mf_compare_steps steps;
    mf_compare c = {.predicted_s = 0.3, .measured_s = 9, .error = -0.9, .outside = true};
    mf_err e;
    assert_non_null(mkdtemp(folder));
    assert_ok(mf_compare_steps_read(folder, 1, &steps, &e)); /* no file: no steps */
    assert_int_equal(steps.steps, 0);
    mf_compare_steps_use(&steps, 0.1, &c);
    assert_close(c.measured_s, 9, 0);
    write_metrics(folder, "{\"step\": 5, \"step_time_s\": 9, \"used_B\": 8e10, \"power_W\": 300, "
                          "\"clock_MHz\": 1000}\n"
                          "{\"step\": 6, \"step_time_s\": 0.2, \"used_B\": 6e10, \"power_W\": 600, "
                          "\"clock_MHz\": 1400}\n"
                          "{\"step\": 7, \"step_time_s\": 0.4, \"used_B\": 7e10, \"power_W\": 700, "
                          "\"clock_MHz\": 1600}\n"
                          "{\"step\": 8, \"step_ti");
    assert_ok(mf_compare_steps_read(folder, 1, &steps, &e));
    assert_int_equal(steps.steps, 2);
    assert_close(steps.step_time_s, 0.3, 1e-12);
    assert_close(steps.used_B, 7e10, 0);
    assert_close(steps.power_W, 650, 1e-9);
    assert_close(steps.clock_MHz, 1500, 1e-9);
    mf_compare_steps_use(&steps, 0.1, &c);
    assert_close(c.error, 0, 1e-12);
    assert_false(c.outside);
    write_metrics(folder, "{\"step\": 6, \"step_time_s\": \"long\"}\n");
    assert_int_equal(mf_compare_steps_read(folder, 1, &steps, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "metrics.jsonl, line 1:1:"));
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* Steps 101 to 112 that take 9 s where they do not count, 0.5 s behind, and what a driver says. */
static void write_resumed(const char *folder, int64_t first, const char *gpu) {
    char text[4096] = "";
    size_t n = 0;
    for (int64_t step = first; step < first + 12; step++) {
        n +=
            (size_t)snprintf(text + n, sizeof text - n, "{\"step\": %lld, \"step_time_s\": %g%s}\n",
                             (long long)step, step < 106 ? 9.0 : 0.5, gpu);
    }
    write_metrics(folder, text);
}

/* The ops were timed again, in the first steps of the run that resumed. */
static void steps_of_a_resumed_run_count_from_its_first(void **state) {
    (void)state;
    static const char gpu[] = ", \"used_B\": 6e10, \"power_W\": 600, \"clock_MHz\": 1400";
    char folder[] = "/tmp/moefold-compare-XXXXXX", command[300];
    mf_compare_steps steps;
    assert_non_null(mkdtemp(folder));
    write_resumed(folder, 101, gpu); /* in a folder of its own */
    for (int64_t first = 0; first <= 101; first += 101) {
        assert_ok(mf_compare_steps_read(folder, first, &steps, NULL));
        assert_int_equal(steps.steps, 7);
        assert_close(steps.step_time_s, 0.5, 1e-12);
    }
    write_resumed(folder, 97, gpu); /* behind the lines of the run that it resumes */
    assert_ok(mf_compare_steps_read(folder, 101, &steps, NULL));
    assert_int_equal(steps.steps, 3);
    assert_close(steps.step_time_s, 0.5, 1e-12);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* Steps are steps where the driver says nothing, or not all. */
static void what_a_driver_does_not_say_is_not_known(void **state) {
    (void)state;
    char folder[] = "/tmp/moefold-compare-XXXXXX", command[300];
    mf_compare_steps steps;
    assert_non_null(mkdtemp(folder));
    write_resumed(folder, 101, ", \"used_B\": 0, \"power_W\": 0, \"clock_MHz\": 0");
    assert_ok(mf_compare_steps_read(folder, 101, &steps, NULL));
    assert_int_equal(steps.steps, 7);
    assert_close(steps.used_B + steps.power_W + steps.clock_MHz, 0, 0);
    write_resumed(folder, 101, ", \"power_W\": 700");
    assert_ok(mf_compare_steps_read(folder, 101, &steps, NULL));
    assert_close(steps.power_W, 700, 1e-9);
    assert_close(steps.used_B + steps.clock_MHz, 0, 0);
    write_resumed(folder, 101, ""); /* CPU ranks, all of whose ops were timed */
    assert_ok(mf_compare_steps_read(folder, 101, &steps, NULL));
    assert_int_equal(steps.steps, 0);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_of_a_resumed_run_count_from_its_first),
        cmocka_unit_test(what_a_driver_does_not_say_is_not_known),
        cmocka_unit_test(a_gpu_step_is_the_mean_of_those_behind_the_timed_ones),
        cmocka_unit_test(an_op_is_priced_as_the_point_that_it_is_kept_under),
        cmocka_unit_test(the_verdict_names_what_is_off_most_and_what_to_do),
        cmocka_unit_test(the_verdict_of_a_log_says_when_it_is_of_another_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
