/* test_better.c - what is better in some figure and worse in none is never slower: a GPU or a link,
 * in the price of every op and in whole steps; the software that loses nothing; and no step does
 * more than the peak of the arithmetic that it runs in. */
#include "costmodel/cost.h"
#include "simulator/sim.h"
#include "tests/support/better_cluster.h"
#include "tests/support/random_op.h"
#include "tests/support/sampled.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const clusters[] = {"h100", "h200", "b200", "gb200", "a100", "mi300x"};
enum { CLUSTERS = sizeof clusters / sizeof clusters[0] };

static mf_cluster cluster(const char *name) {
    mf_cluster c;
    assert_ok(mf_cluster_load(name, &c, NULL));
    return c;
}

static mf_cost *cost_of(const mf_cluster *c, const char *software) {
    mf_software s;
    mf_cost *cost = NULL;
    mf_err e = {.text = ""};
    assert_ok(mf_software_load(software, &s, &e));
    if (mf_cost_create(c, &s, NULL, &cost, &e) != MF_OK) {
        fail_msg("%s: %s", c->name, e.text);
    }
    return cost;
}

/* --- ops -------------------------------------------------------------------------------------- */

static void expect_no_slower(const mf_op *op, const mf_cost *than, const mf_cost *cost,
                             const char *what) {
    mf_price a, b;
    mf_cost_op(than, op, 1, &a);
    mf_cost_op(cost, op, 1, &b);
    if (b.time_s > a.time_s * (1 + 1e-9)) {
        fail_msg(
            "%s: %s flags %x %g B, %lld %lld %lld %lld, %lld ranks %lld apart: %g s after %g s",
            what, mf_op_text((mf_op_kind)op->kind), op->flags, op->bytes, (long long)op->dim[0],
            (long long)op->dim[1], (long long)op->dim[2], (long long)op->dim[3],
            (long long)op->shape.size, (long long)op->shape.stride, b.time_s, a.time_s);
    }
}

/* --- steps ------------------------------------------------------------------------------------ */

typedef struct step_case {
    const char *model, *cluster;
    int64_t gpus, gbs, tp, pp, vpp, ep, cp;
    mf_schedule_kind schedule;
    mf_precision precision;
    uint16_t recompute;
    int64_t seq;
} step_case;

static const step_case steps[] = {
    {"mixtral-8x22b", "h100", 128, 256, 2, 8, 1, 8, 1, MF_SCHED_1F1B, MF_PREC_BF16, 0, 4096},
    {"mixtral-8x7b", "h200", 32, 64, 1, 2, 4, 8, 1, MF_SCHED_INTERLEAVED, MF_PREC_FP8_TENSOR, 0,
     4096},
    {"deepseek-v3", "h100", 1024, 2048, 1, 16, 1, 64, 1, MF_SCHED_MERGED, MF_PREC_BF16,
     MF_RECOMPUTE_NORM, 4096},
    {"deepseek-v3", "gb200", 256, 1024, 1, 4, 1, 64, 1, MF_SCHED_1F1B, MF_PREC_MXFP8, 0, 4096},
    {"qwen3-30b-a3b", "b200", 16, 64, 1, 1, 1, 16, 2, MF_SCHED_1F1B, MF_PREC_NVFP4, 0, 4096},
    {"llama3-70b", "a100", 64, 128, 8, 4, 1, 1, 1, MF_SCHED_ZB_H1, MF_PREC_BF16, MF_RECOMPUTE_LAYER,
     4096},
    {"mixtral-8x7b", "mi300x", 16, 64, 2, 2, 1, 4, 1, MF_SCHED_1F1B, MF_PREC_BF16, 0, 4096},
    /* weights that are read and written for few tokens */
    {"olmoe-1b-7b", "h200", 1, 1, 1, 1, 1, 1, 1, MF_SCHED_1F1B, MF_PREC_BF16, 0, 512},
    {"llama3-8b", "mi300x", 8, 32, 4, 1, 1, 1, 1, MF_SCHED_1F1B, MF_PREC_BF16, 0, 4096},
};
enum { STEPS = sizeof steps / sizeof steps[0] };

static mf_sim *simulate(const mf_cost *cost, const step_case *k) {
    static mf_model m;
    static mf_assignment a;
    mf_layout l;
    mf_err e = {.text = ""};
    mf_program *program = NULL;
    mf_sim *sim = NULL;
    const mf_sim_options o = {.sums = true};
    assert_ok(mf_model_load(k->model, &m, NULL));
    mf_layout_init(&l);
    l.gpus = k->gpus;
    l.gbs = k->gbs;
    l.tp = k->tp;
    l.pp = k->pp;
    l.vpp = k->vpp;
    l.ep = k->ep;
    l.cp = k->cp;
    l.seq = k->seq;
    l.graph = MF_GRAPH_STEP;
    l.schedule = k->schedule;
    l.precision = k->precision;
    l.memory.recompute = k->recompute;
    if (mf_layout_resolve(&l, &m, &e) != MF_OK || mf_assignment_even(&m, &l, &a, &e) != MF_OK ||
        mf_program_lower(&m, &l, mf_cost_cluster(cost), &a, &program, &e) != MF_OK ||
        mf_sim_step(cost, program, &o, &sim, &e) != MF_OK) {
        fail_msg("%s: %s", k->model, e.text);
    }
    mf_program_destroy(program);
    return sim;
}

/* Under its power cap a GPU with faster products takes as long: what it stretches then lies a hair
 * otherwise beside communication. */
static const double hair = 1e-4;

static void expect_no_slower_steps(const char *name, const mf_cost *than, const mf_cost *cost) {
    for (int k = 0; k < STEPS; k++) {
        if (strcmp(steps[k].cluster, name) != 0) {
            continue;
        }
        mf_sim *before = simulate(than, &steps[k]), *after = simulate(cost, &steps[k]);
        if (after->step_time_s > before->step_time_s * (1 + hair)) {
            fail_msg("%s on %s: %.9g s after %.9g s", steps[k].model, name, after->step_time_s,
                     before->step_time_s);
        }
        mf_sim_destroy(after);
        mf_sim_destroy(before);
    }
}

static void no_price_and_no_step_rises_where_a_figure_gets_better(void **state) {
    (void)state;
    uint64_t seed = 91;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int k = 0; k < CLUSTERS; k++) {
        const mf_cluster c = cluster(clusters[k]);
        mf_cost *plain = cost_of(&c, "moefold");
        for (int round = 0; round < case_count(3, 1); round++) {
            const mf_cluster b = better_cluster(&seed, c);
            mf_cost *improved = cost_of(&b, "moefold");
            for (int i = 0; i < case_count(4000, 400); i++) {
                const mf_op op = random_op(&seed);
                expect_no_slower(&op, plain, improved, c.name);
            }
            expect_no_slower_steps(clusters[k], plain, improved);
            mf_cost_destroy(improved);
        }
        mf_cost_destroy(plain);
    }
}

/* --- software --------------------------------------------------------------------------------- */

/* Of every step of the cluster. */
static void expect_no_faster_steps(const char *name, const mf_cost *ideal, const mf_cost *cost) {
    for (int k = 0; k < STEPS; k++) {
        if (strcmp(steps[k].cluster, name) != 0) {
            continue;
        }
        mf_sim *best = simulate(ideal, &steps[k]), *sim = simulate(cost, &steps[k]);
        if (sim->step_time_s < best->step_time_s * (1 - 1e-9)) {
            fail_msg("%s on %s: %s takes %g s, ideal %g s", steps[k].model, name,
                     mf_cost_software(cost)->name, sim->step_time_s, best->step_time_s);
        }
        assert_above(best->mfu, 0);
        assert_at_most(best->mfu, 1);
        assert_above(sim->mfu, 0);
        assert_at_most(sim->mfu, 1);
        mf_sim_destroy(sim);
        mf_sim_destroy(best);
    }
}

static void no_program_beats_the_ideal_one_or_the_peak_of_its_arithmetic(void **state) {
    (void)state;
    size_t count = 0;
    const char *const *names = mf_software_shipped(&count);
    uint64_t seed = 93;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int k = 0; k < CLUSTERS; k++) {
        const mf_cluster c = cluster(clusters[k]);
        mf_cost *ideal = cost_of(&c, "ideal");
        for (size_t i = (size_t)k % (size_t)case_stride(3); i < count;
             i += (size_t)case_stride(3)) {
            mf_cost *cost = cost_of(&c, names[i]);
            expect_no_faster_steps(clusters[k], ideal, cost);
            for (int n = 0; n < case_count(360, 90); n++) {
                const mf_op op = random_op(&seed);
                expect_no_slower(&op, cost, ideal, names[i]);
            }
            mf_cost_destroy(cost);
        }
        mf_cost_destroy(ideal);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_price_and_no_step_rises_where_a_figure_gets_better),
        cmocka_unit_test(no_program_beats_the_ideal_one_or_the_peak_of_its_arithmetic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
