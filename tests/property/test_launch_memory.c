/* test_launch_memory.c - where layers choose for themselves and a target has one choice for all,
 * what stands instead is the fastest of its choices that fits, tried one by one.
 */
#include "tests/support/test.h"

#include "launch/target/choose_memory.h"
#include "tests/support/models.h"
#include "tests/support/rng.h"
#include "tests/support/sampled.h"

#include <math.h>

typedef struct fixture {
    mf_model model;
    mf_cluster cluster;
    mf_cost *cost;
    mf_problem problem;
    mf_plan plan;
} fixture;

/* Two stages of a small model; layers draw what they recompute and, if `copies`, offload. */
static void fixture_init(fixture *w, rng *r, bool latent, bool copies) {
    static const uint16_t drawn[] = {0, MF_RECOMPUTE_NORM, MF_RECOMPUTE_ACT, MF_RECOMPUTE_CORE_ATTN,
                                     MF_RECOMPUTE_LAYER};
    mf_software software;
    w->model = test_model_moe(latent);
    w->cluster = test_cluster();
    assert_ok(mf_software_load("megatron-26.06", &software, NULL));
    assert_ok(mf_cost_create(&w->cluster, &software, NULL, &w->cost, NULL));
    mf_plan_init(&w->plan);
    mf_layout *l = &w->plan.layout;
    l->gpus = 32;
    l->pp = 2;
    l->ep = 8;
    l->gbs = 128;
    l->mbs = 2;
    l->seq = 2048;
    l->vpp = rng_range(r, 0, 1) == 0 ? 1 : 2;
    l->schedule = l->vpp == 1               ? MF_SCHED_1F1B
                  : rng_range(r, 0, 1) == 0 ? MF_SCHED_INTERLEAVED
                                            : MF_SCHED_MERGED;
    l->graph = rng_range(r, 0, 1) == 0 ? MF_GRAPH_NONE : MF_GRAPH_PARTIAL;
    assert_ok(mf_layout_resolve(l, &w->model, NULL));
    assert_ok(mf_assignment_even(&w->model, l, &w->plan.assignment, NULL));
    for (int i = 1; i < w->plan.assignment.positions - 1; i++) {
        mf_memory_choice *c = &w->plan.assignment.memory[i];
        c->recompute = drawn[rng_range(r, 0, 4)];
        c->offload = copies && rng_range(r, 0, 2) == 0 ? MF_OFFLOAD_EXPERT_FC1 : 0;
    }
    w->problem = (mf_problem){.model = &w->model, .cost = w->cost, .base = *l};
}

static void fixture_clear(fixture *w) {
    mf_plan_clear(&w->plan);
    mf_cost_destroy(w->cost);
}

/* The plan as Megatron-LM runs it with this choice; NULL: as it runs it unasked. */
static bool play(const fixture *w, const mf_common_choice *c, double *time_s, double *peak_B) {
    mf_plan said, played;
    *time_s = HUGE_VAL;
    *peak_B = 0;
    mf_plan_init(&said);
    said.layout = w->plan.layout;
    said.assignment = w->plan.assignment;
    if (mf_target_concede_to(MF_TARGET_MEGATRON, &w->model, &said, c, NULL, NULL, NULL) != MF_OK) {
        return false;
    }
    assert_ok(mf_planner_predict(&w->problem, &said.layout, &said.assignment, &played, NULL, NULL));
    *time_s = played.prediction.step_time_s;
    *peak_B = played.prediction.peak_memory_B;
    const bool fits = played.prediction.fits;
    mf_plan_clear(&played);
    return fits;
}

/* Every set of modules, and the first layers of stages up to all. */
static double brute_force(const fixture *w) {
    double best_s = HUGE_VAL, time_s, peak_B;
    mf_common_choice c = {.share = 1};
    for (unsigned mask = 0; mask < 1u << 9; mask++) {
        c.recompute = (uint16_t)mask;
        if ((mask & (MF_RECOMPUTE_LAYER | MF_RECOMPUTE_EXPERTS)) == 0 &&
            play(w, &c, &time_s, &peak_B)) {
            best_s = fmin(best_s, time_s);
        }
    }
    c.recompute = MF_RECOMPUTE_LAYER;
    for (c.first = 0; c.first < w->plan.assignment.positions; c.first++) {
        best_s = play(w, &c, &time_s, &peak_B) ? fmin(best_s, time_s) : best_s;
    }
    return best_s;
}

/* Leaves as much memory as a share of what the plan takes as Megatron-LM runs it unasked. */
static void leave_memory(fixture *w, double share) {
    double time_s, peak_B;
    w->problem.base.reserve = w->plan.layout.reserve = 0;
    (void)play(w, NULL, &time_s, &peak_B);
    w->problem.base.reserve = w->plan.layout.reserve =
        1 - share * peak_B / mf_cluster_usable_B(&w->cluster, 0);
}

/* What Megatron-LM recomputes with a choice. */
static void recomputed(const fixture *w, const mf_common_choice *c, mf_assignment *out) {
    mf_plan said;
    mf_plan_init(&said);
    said.layout = w->plan.layout;
    said.assignment = w->plan.assignment;
    assert_ok(mf_target_concede_to(MF_TARGET_MEGATRON, &w->model, &said, c, NULL, NULL, NULL));
    *out = said.assignment;
}

/* The first so many layers of every virtual stage are not all of them: "all" says that. */
static void assert_not_all(const fixture *w, const mf_common_choice *c) {
    mf_assignment some, all;
    mf_common_choice whole = *c;
    int others = 0;
    whole.first = 0;
    recomputed(w, c, &some);
    recomputed(w, &whole, &all);
    for (int i = 0; i < some.positions; i++) {
        others += some.memory[i].recompute != all.memory[i].recompute;
    }
    assert_above(others, 0);
}

static void test_the_fastest_choice_that_fits_stands_instead(void **state) {
    static const double shares[] = {1.3, 1, 0.9, 0.8};
    (void)state;
    rng r = rng_init(20);
    int faster = 0, unfit = 0, whole = 0;
    for (int i = 0; i < (cases_sampled() ? 2 : 8); i++) {
        fixture w;
        fixture_init(&w, &r, i % 2 == 0, false);
        for (size_t k = 0; k < sizeof shares / sizeof shares[0]; k++) {
            mf_common_choice choice;
            bool found;
            double time_s = HUGE_VAL, unasked_s, peak_B;
            leave_memory(&w, shares[k]);
            assert_ok(mf_target_choose_memory(MF_TARGET_MEGATRON, &w.problem, &w.plan, &choice,
                                              &found, NULL));
            const bool unasked_fits = play(&w, NULL, &unasked_s, &peak_B);
            const double best_s = brute_force(&w);
            assert_true(!found || play(&w, &choice, &time_s, &peak_B));
            if (time_s != best_s) {
                fail_msg("plan %d, %g times its memory: brute force %.9g s, chosen %.9g s", i,
                         shares[k], best_s, time_s);
            }
            unfit += found && !unasked_fits;
            faster += unasked_fits && time_s < unasked_s;
            if (found && choice.first > 0) {
                assert_not_all(&w, &choice);
            }
            whole += found && choice.recompute == MF_RECOMPUTE_LAYER && choice.first == 0;
        }
        fixture_clear(&w);
    }
    if (!cases_sampled()) {
        assert_above(faster, 4);
        assert_above(unfit, 1);
        assert_above(whole, 1); /* the first ones of every stage are all that it has */
    }
}

/* Where some layers offload, what stands instead is no slower than as many that offload by turns
 * while all recompute what any does. */
static void test_offloading_is_weighed_too(void **state) {
    (void)state;
    rng r = rng_init(21);
    int faster = 0;
    for (int i = 0; i < 4; i++) {
        fixture w;
        mf_common_choice choice;
        bool found;
        double time_s, unasked_s, peak_B;
        fixture_init(&w, &r, i % 2 == 0, true);
        leave_memory(&w, 1.3);
        assert_true(play(&w, NULL, &unasked_s, &peak_B));
        assert_ok(mf_target_choose_memory(MF_TARGET_MEGATRON, &w.problem, &w.plan, &choice, &found,
                                          NULL));
        assert_true(found);
        assert_true(play(&w, &choice, &time_s, &peak_B));
        assert_at_most(time_s, unasked_s);
        faster += time_s < unasked_s;
        fixture_clear(&w);
    }
    assert_above(faster, 1);
}

/* Where layers offload different modules, one of them may do for all: nothing that copies none, one
 * or all of them is faster, in all layers or in as many as offload it. */
static void test_one_module_may_be_offloaded_for_several(void **state) {
    static const uint16_t drawn[] = {0, MF_OFFLOAD_EXPERT_FC1, MF_OFFLOAD_EXPERT_IN,
                                     MF_OFFLOAD_EXPERT_FC1 | MF_OFFLOAD_QKV};
    static const uint16_t copied[] = {
        0, MF_OFFLOAD_EXPERT_FC1, MF_OFFLOAD_EXPERT_IN, MF_OFFLOAD_QKV,
        MF_OFFLOAD_EXPERT_FC1 | MF_OFFLOAD_EXPERT_IN | MF_OFFLOAD_QKV};
    static const double shares[] = {1, 0.9, 0.8};
    const uint16_t sets = MF_RECOMPUTE_NORM | MF_RECOMPUTE_ACT | MF_RECOMPUTE_CORE_ATTN |
                          MF_RECOMPUTE_MLA_UP_PROJ | MF_RECOMPUTE_MOE;
    (void)state;
    rng r = rng_init(22);
    int single = 0;
    for (int i = 0; i < (cases_sampled() ? 1 : 4); i++) {
        fixture w;
        fixture_init(&w, &r, i % 2 == 0, false);
        const mf_assignment *a = &w.plan.assignment;
        for (int k = 1; k < a->positions - 1; k++) {
            w.plan.assignment.memory[k].offload = drawn[k % 4];
        }
        for (size_t n = 0; n < sizeof shares / sizeof shares[0]; n++) {
            mf_common_choice choice;
            bool found;
            double best_s = HUGE_VAL, chosen_s = HUGE_VAL, time_s, peak_B;
            leave_memory(&w, shares[n]);
            assert_ok(mf_target_choose_memory(MF_TARGET_MEGATRON, &w.problem, &w.plan, &choice,
                                              &found, NULL));
            for (size_t k = 0; k < sizeof copied / sizeof copied[0]; k++) {
                mf_common_choice c = {.offload = copied[k]};
                int as_many = 1;
                for (int at = 0; at < a->positions; at++) {
                    as_many += (a->memory[at].offload & copied[k]) != 0;
                }
                for (int all = 0; all < 2; all++) {
                    c.share = all ? 1 : fmin((double)as_many / a->positions, 1);
                    for (unsigned mask = 0; mask < 1u << 9; mask++) {
                        c.recompute = (uint16_t)mask;
                        if ((mask & ~(unsigned)sets) == 0 && play(&w, &c, &time_s, &peak_B)) {
                            best_s = fmin(best_s, time_s);
                        }
                    }
                }
            }
            assert_true(!found || play(&w, &choice, &chosen_s, &peak_B));
            if (chosen_s > best_s * (1 + 1e-9)) {
                fail_msg("plan %d, %g times its memory: brute force %.9g s, chosen %.9g s", i,
                         shares[n], best_s, chosen_s);
            }
            single += found && choice.offload != 0 && (choice.offload & (choice.offload - 1)) == 0;
        }
        fixture_clear(&w);
    }
    if (!cases_sampled()) {
        assert_above(single, 0);
    }
}

/* What all layers choose alike stays, as near as the target has it, while that fits: a faster
 * choice that nobody asked for is none of it. Where it does not fit the fastest stands instead. */
static void test_a_choice_for_all_layers_stays_while_it_fits(void **state) {
    (void)state;
    rng r = rng_init(3);
    fixture w;
    mf_common_choice choice;
    bool found = true;
    double time_s, peak_B;
    fixture_init(&w, &r, true, false);
    for (int i = 0; i < w.plan.assignment.positions; i++) {
        w.plan.assignment.memory[i] =
            (mf_memory_choice){.recompute = MF_RECOMPUTE_EXPERTS | MF_RECOMPUTE_NORM};
    }
    leave_memory(&w, 1.3);
    assert_ok(
        mf_target_choose_memory(MF_TARGET_MEGATRON, &w.problem, &w.plan, &choice, &found, NULL));
    assert_false(found);
    assert_true(play(&w, NULL, &time_s, &peak_B));
    assert_below(brute_force(&w), time_s); /* something else would be faster */
    leave_memory(&w, 0.95);
    assert_ok(
        mf_target_choose_memory(MF_TARGET_MEGATRON, &w.problem, &w.plan, &choice, &found, NULL));
    assert_true(found);
    w.plan.assignment.memory[1].recompute = 0; /* one that chooses otherwise */
    leave_memory(&w, 1.3);
    assert_ok(
        mf_target_choose_memory(MF_TARGET_MEGATRON, &w.problem, &w.plan, &choice, &found, NULL));
    assert_true(found);
    fixture_clear(&w);
}

/* What the target can say is left alone, and so is what says nothing: dense layers have no experts
 * to offload. */
static void test_a_plan_that_can_be_said_keeps_its_choice(void **state) {
    (void)state;
    rng r = rng_init(1);
    fixture w;
    mf_common_choice choice;
    bool found = true;
    fixture_init(&w, &r, false, false);
    for (int i = 0; i < w.plan.assignment.positions; i++) {
        w.plan.assignment.memory[i] = (mf_memory_choice){0};
    }
    assert_ok(
        mf_target_choose_memory(MF_TARGET_MEGATRON, &w.problem, &w.plan, &choice, &found, NULL));
    assert_false(found);
    for (int i = 0; i < w.plan.assignment.positions; i++) {
        w.plan.assignment.memory[i] = (mf_memory_choice){MF_RECOMPUTE_NORM, MF_OFFLOAD_EXPERT_FC1};
    }
    assert_ok(
        mf_target_choose_memory(MF_TARGET_MEGATRON, &w.problem, &w.plan, &choice, &found, NULL));
    assert_false(found);
    fixture_clear(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_fastest_choice_that_fits_stands_instead),
        cmocka_unit_test(test_offloading_is_weighed_too),
        cmocka_unit_test(test_one_module_may_be_offloaded_for_several),
        cmocka_unit_test(test_a_plan_that_can_be_said_keeps_its_choice),
        cmocka_unit_test(test_a_choice_for_all_layers_stays_while_it_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
