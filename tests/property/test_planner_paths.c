/* Paths through the order of a pipeline, with all that is known of a plan, take no longer than the
 * plan does: what passes lose to gathers and reductions beside them is never too much. Halves of
 * layers take no more than whole ones. */
#include "tests/support/planner_bounds.h"
#include "tests/support/sampled.h"

/* Halves of layers are priced with weight gradients in their backward passes: whatever travels
 * meanwhile, the whole layer with these split off takes no less. */
static void check_halves(rng *r, nearness *n) {
    static sample s;
    problem p;
    s.seed = r->state;
    problem_init(&p, r, 5, 64);
    for (int k = 0; k < 20; k++) {
        mf_block_costs *costs = NULL;
        mf_layer_times halves, whole;
        if (!planner_layout(r, &p.space, &s.layout)) {
            continue;
        }
        s.model = &p.model;
        s.layout.schedule = MF_SCHED_ZB_H1; /* layer times depend on the pass mode only */
        s.layout.zero = s.layout.expert_zero = 0;
        assert_ok(mf_block_costs_create(&p.evaluator, &costs, NULL));
        assert_ok(mf_layer_times_halves(costs, &s.layout, &halves, NULL));
        assert_ok(mf_layer_times_whole(costs, &s.layout, &whole, NULL));
        const mf_family_bound_pass *of[][2] = {{&halves.layer, &whole.layer},
                                               {&halves.all, &whole.all},
                                               {&halves.embedding, &whole.embedding},
                                               {&halves.head, &whole.head}};
        for (int i = 0; i < 4; i++) {
            note_portion(n, HALVES, &s, "a half's", of[i][0]->time_s[MF_PASS_MODE_SPLIT],
                         of[i][1]->time_s[MF_PASS_MODE_SPLIT]);
        }
        mf_block_costs_destroy(costs);
    }
    problem_clear(&p);
}

/* Pipelines of some depth with data parallelism beside compute, where passes lose most. */
static void check_pipelines(rng *r, nearness *n, int *lost) {
    static sample s;
    problem p;
    s.seed = r->state;
    problem_init(&p, r, 12, 32);
    p.space.base.gpus = 1 << rng_range(r, 2, 5);
    p.space.base.gbs = p.space.base.gpus * rng_range(r, 1, 12);
    p.space.base.overlap |= MF_OVERLAP_DP;
    for (int k = 0; k < 12; k++) {
        mf_partition *in = NULL;
        mf_block_costs *costs = NULL;
        if (!planner_layout(r, &p.space, &s.layout) || s.layout.pp < 2 ||
            s.layout.dp * s.layout.cp < 2) {
            continue;
        }
        s.model = &p.model;
        for (int i = 0; i < TRIES; i++) {
            planner_assignment(r, &p.space, &s.layout, &s.a[i]);
            assert_ok(
                p.evaluator.ops->step(p.evaluator.self, &s.layout, &s.a[i], &s.step[i], NULL));
        }
        assert_ok(mf_block_costs_create(&p.evaluator, &costs, NULL));
        assert_ok(mf_partition_create(costs, &s.layout, p.space.pinned, NULL, &in, NULL));
        *lost += in->losses.start_s > 0.0 || in->losses.share[0] > 0.0;
        check_paths(in, &s, n);
        mf_partition_destroy(in);
        mf_block_costs_destroy(costs);
    }
    problem_clear(&p);
}

/* Pipelines that once had a path above a plan. */
static const uint64_t pipelines_once_broken[] = {
    UINT64_C(717525595070122326),   /* holds of sends counted beside losses, of reductions, */
    UINT64_C(10791889005438349650), /* of both, */
    UINT64_C(5673296433523575432),  /* and of gathers */
    UINT64_C(16149391553371608591), /* weights quantised in other shards than experts', and, with
                                     * other prices, a last block's copies slow it down less */
    UINT64_C(13913629693372772074), /* a backward pass quicker beside an embedding than alone */
    UINT64_C(479547202218865441),   /* weights of all stages quantised more slowly than fewer */
    UINT64_C(1579758967191526944),  /* a pair's shares, least of all choices, below nothing */
};

/* Paths count what passes lose to gathers and reductions beside them, never too much. */
static void losses_of_pipelines_are_never_more_than_played(void **state) {
    (void)state;
    rng r = rng_init(7002);
    nearness n[KINDS] = {{0}};
    int cases = planner_cases(100, 4), lost = 0;
    for (size_t i = 0; i < sizeof pipelines_once_broken / sizeof pipelines_once_broken[0];
         i += (size_t)case_stride(3)) {
        rng fixed = {pipelines_once_broken[i]};
        check_pipelines(&fixed, n, &lost);
    }
    for (int i = 0; i < cases; i++) {
        check_pipelines(&r, n, &lost);
    }
    check_nearness(n);
    assert_above(lost, cases / 2); /* most cases have something to lose */
    assert_above(n[GATHERED].tried, cases / 4);
    assert_above(n[GATHERED].tightest, 0.99);
    assert_above(n[EARLY].tried, cases / 4);
    assert_above(n[EARLY].tightest, 0.99);
}

static void halves_of_layers_take_no_more_than_whole_ones(void **state) {
    (void)state;
    rng r = rng_init(7003);
    nearness n[KINDS] = {{0}};
    int cases = planner_cases(100, 6);
    for (int i = 0; i < cases; i++) {
        check_halves(&r, n);
    }
    check_nearness(n);
    assert_above(n[HALVES].tightest, 0.9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_of_pipelines_are_never_more_than_played),
        cmocka_unit_test(halves_of_layers_take_no_more_than_whole_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
