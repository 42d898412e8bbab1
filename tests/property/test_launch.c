/* test_launch.c - what export writes, import reads: layouts drawn by a seed, conceded to each
 * target, written as a script and read back, are the same layers, choices, memory and time. */
#include "tests/support/test.h"

#include "tests/support/launch_case.h"

static void test_what_is_written_is_read_back_as_the_same_job(void **state) {
    (void)state;
    rng r = rng_init(20);
    const mf_cluster c = test_cluster();
    const mf_model models[] = {test_model_moe(true), test_model_moe(false), test_model_dense()};
    mf_cost *cost = make_cost(&c);
    for (int i = 0; i < 120; i++) {
        const mf_model *m = &models[i % 3];
        mf_plan p;
        draw(&r, m, &p);
        for (int t = 0; t < MF_TARGET_COUNT; t++) {
            check(cost, &c, m, (mf_target)t, &p);
        }
    }
    mf_cost_destroy(cost);
}

static void test_a_plan_that_can_be_said_is_left_alone(void **state) {
    (void)state;
    const mf_model m = test_model_moe(true);
    mf_plan p;
    mf_err e;
    mf_plan_init(&p);
    p.layout.gpus = 64;
    p.layout.tp = 2;
    p.layout.pp = 4;
    p.layout.ep = 8;
    p.layout.gbs = 64;
    p.layout.seq = 2048;
    p.layout.memory.recompute = MF_RECOMPUTE_NORM | MF_RECOMPUTE_MLA_UP_PROJ;
    assert_int_equal(mf_layout_resolve(&p.layout, &m, &e), MF_OK);
    assert_int_equal(mf_assignment_even(&m, &p.layout, &p.assignment, &e), MF_OK);
    differences = 0;
    concede(MF_TARGET_MEGATRON, &m, &p);
    assert_int_equal(differences, 0);
    p.layout.schedule = MF_SCHED_ZB_H1;
    concede(MF_TARGET_MEGATRON, &m, &p);
    assert_int_equal(differences, 1);
    assert_int_equal(p.layout.schedule, MF_SCHED_1F1B);
}

static void test_stages_repeat_and_nest_as_megatron_spells_them(void **state) {
    (void)state;
    const mf_model m = test_model_moe(true); /* 8 layers, one MTP depth */
    mf_assignment a;
    mf_err e;
    assert_int_equal(mf_read_stages("Et|(tt|)*3tmL", &m, &a, &e), MF_OK);
    assert_int_equal(a.vstages, 5);
    assert_int_equal(a.first[1], 2);
    assert_int_equal(a.first[4], 8);
    assert_int_equal(mf_read_stages("Et*4|t*4,m|L", &m, &a, &e), MF_OK);
    assert_int_equal(a.vstages, 3);
    assert_int_equal(mf_read_stages("Et|(tt|)*3tL", &m, &a, &e), MF_INPUT);
    assert_int_equal(mf_read_stages("Et|(tt|*3tmL", &m, &a, &e), MF_INPUT);
}

/* Most of GLM-5.2's layers share the choice of another: more chunks than there are layers that
 * choose cannot be said. */
static void test_chunks_begin_with_a_layer_that_chooses_keys(void **state) {
    (void)state;
    mf_model m;
    mf_err e;
    mf_err_clear(&e);
    assert_int_equal(mf_model_load("glm-5.2", &m, &e), MF_OK);
    const int starts = mf_target_chunk_starts(&m, NULL);
    assert_below(starts, m.layers / 2);
    for (int pp = 2; pp <= 16; pp *= 2) {
        for (int vpp = 1; vpp * pp <= m.layers; vpp++) {
            mf_plan p;
            mf_plan_init(&p);
            mf_layout_init(&p.layout);
            p.layout.gpus = p.layout.pp = pp;
            p.layout.vpp = vpp;
            p.layout.gbs = 2 * pp;
            p.layout.seq = 4096;
            p.layout.schedule = vpp > 1 ? MF_SCHED_INTERLEAVED : MF_SCHED_1F1B;
            if (mf_layout_resolve(&p.layout, &m, &e) != MF_OK) {
                fail_msg("%s", e.text);
            }
            if (mf_assignment_even(&m, &p.layout, &p.assignment, NULL) != MF_OK) {
                continue;
            }
            concede(MF_TARGET_MEGATRON, &m, &p);
            assert_at_most(p.assignment.vstages, starts + 1);
            for (int v = 1; v < p.assignment.vstages; v++) {
                const int at = p.assignment.first[v];
                assert_above(at, p.assignment.first[v - 1]);
                assert_true(at > m.layers || m.layer_classes[m.layer_class[at - 1]].indexer);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_written_is_read_back_as_the_same_job),
        cmocka_unit_test(test_a_plan_that_can_be_said_is_left_alone),
        cmocka_unit_test(test_stages_repeat_and_nest_as_megatron_spells_them),
        cmocka_unit_test(test_chunks_begin_with_a_layer_that_chooses_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
