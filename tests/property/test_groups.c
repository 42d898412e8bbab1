/* Rank groups: the rules of parallel folding over thousands of random layouts. */
#include "tests/support/models.h"
#include "tests/support/test.h"

#include <stdbool.h>

static void four_ranks(mf_layout *l, int64_t tp, int64_t cp, int64_t pp, int64_t ep, int64_t etp) {
    mf_model m = test_model_moe(false);
    mf_layout_init(l);
    l->gpus = 4;
    l->gbs = 8;
    l->tp = tp;
    l->cp = cp;
    l->pp = pp;
    l->ep = ep;
    l->etp = etp;
    assert_ok(mf_layout_resolve(l, &m, NULL));
}

static void expect_group(const mf_layout *l, mf_group_kind g, int64_t rank, int64_t first,
                         int64_t size, int64_t stride) {
    mf_group_shape s = mf_layout_group(l, g);
    assert_int_equal(mf_layout_group_first(l, g, rank), first);
    assert_int_equal(s.size, size);
    if (size > 1) {
        assert_int_equal(s.stride, stride);
    }
}

static void the_four_rank_examples_of_folding_hold(void **state) {
    (void)state;
    mf_layout l;
    four_ranks(&l, 2, 1, 1, 4, 1); /* TP2 DP2 with EP4: TP {0,1}{2,3}, DP {0,2}{1,3}, EP all */
    expect_group(&l, MF_GROUP_TP, 3, 2, 2, 1);
    expect_group(&l, MF_GROUP_DP, 3, 1, 2, 2);
    expect_group(&l, MF_GROUP_EP, 2, 0, 4, 1);
    four_ranks(&l, 2, 2, 1, 4, 1); /* TP2 CP2 with EP4: DP.CP {0,2}{1,3} */
    expect_group(&l, MF_GROUP_DP_CP, 2, 0, 2, 2);
    expect_group(&l, MF_GROUP_DP_CP, 3, 1, 2, 2);
    four_ranks(&l, 1, 1, 1, 2, 2); /* DP4 with ETP2 EP2: ETP {0,1}{2,3}, EP {0,2}{1,3} */
    expect_group(&l, MF_GROUP_ETP, 3, 2, 2, 1);
    expect_group(&l, MF_GROUP_EP, 3, 1, 2, 2);
    four_ranks(&l, 2, 1, 2, 2, 1); /* TP2 PP2 with EP2: EP {0,1}{2,3} */
    expect_group(&l, MF_GROUP_EP, 3, 2, 2, 1);
    four_ranks(&l, 1, 2, 1, 2, 1); /* CP2 DP2 with EP2 EDP2: EP {0,1}{2,3}, EDP {0,2}{1,3} */
    expect_group(&l, MF_GROUP_EP, 2, 2, 2, 1);
    expect_group(&l, MF_GROUP_EDP, 3, 1, 2, 2);
}

/* Is `other` in the group that agrees with `rank` on every coordinate not named by g? */
static bool agrees(const mf_layout *l, mf_group_kind g, int64_t rank, int64_t other) {
    mf_rank_coords a = mf_layout_coords(l, rank), b = mf_layout_coords(l, other);
    bool t = a.t == b.t, c = a.c == b.c, d = a.d == b.d, p = a.p == b.p;
    bool et = a.et == b.et, ep = a.e == b.e, ed = a.ed == b.ed;
    switch (g) {
    case MF_GROUP_TP:
        return c && d && p;
    case MF_GROUP_CP:
        return t && d && p;
    case MF_GROUP_DP:
        return t && c && p;
    case MF_GROUP_DP_CP:
        return t && p;
    case MF_GROUP_TP_CP:
        return d && p;
    case MF_GROUP_TP_CP_DP:
        return p;
    case MF_GROUP_ETP:
        return ep && ed && p;
    case MF_GROUP_EP:
        return et && ed && p;
    case MF_GROUP_EDP:
        return et && ep && p;
    case MF_GROUP_PP:
        return t && c && d;
    case MF_GROUP_WORLD:
        return true;
    case MF_GROUP_COUNT:
    case MF_GROUP_NONE:
        break;
    }
    return false;
}

static void every_group_is_the_set_that_agrees_on_the_other_coordinates(void **state) {
    (void)state;
    rng r = rng_init(1);
    mf_model m = test_model_moe(false);
    for (int i = 0; i < 3000; i++) {
        mf_layout l = test_random_layout(&r, &m, 256);
        for (int g = 0; g < MF_GROUP_COUNT; g++) {
            int64_t rank = rng_range(&r, 0, l.gpus - 1);
            int64_t first = mf_layout_group_first(&l, (mf_group_kind)g, rank);
            mf_group_shape s = mf_layout_group(&l, (mf_group_kind)g);
            bool member[256] = {false};
            for (int64_t k = 0; k < s.size; k++) {
                int64_t at = first + k * s.stride;
                assert_in_range(at, 0, l.gpus - 1);
                assert_false(member[at]);
                member[at] = true;
            }
            for (int64_t other = 0; other < l.gpus; other++) {
                assert_int_equal(member[other], agrees(&l, (mf_group_kind)g, rank, other));
            }
        }
    }
}

static void both_grids_number_the_ranks_and_agree_on_the_stage(void **state) {
    (void)state;
    rng r = rng_init(2);
    mf_model m = test_model_moe(true);
    for (int i = 0; i < 3000; i++) {
        mf_layout l = test_random_layout(&r, &m, 512);
        int64_t rank = rng_range(&r, 0, l.gpus - 1);
        mf_rank_coords k = mf_layout_coords(&l, rank);
        assert_int_equal(mf_layout_rank_dense(&l, k.t, k.c, k.d, k.p), rank);
        assert_int_equal(mf_layout_rank_expert(&l, k.et, k.e, k.ed, k.p), rank);
        assert_int_equal(k.p, rank / (l.gpus / l.pp));
        assert_below(k.t, l.tp);
        assert_below(k.c, l.cp);
        assert_below(k.d, l.dp);
        assert_below(k.p, l.pp);
        assert_below(k.et, l.etp);
        assert_below(k.e, l.ep);
        assert_below(k.ed, l.edp);
        assert_int_equal(l.tp * l.cp * l.dp * l.pp, l.gpus);
        assert_int_equal(l.etp * l.ep * l.edp * l.pp, l.gpus);
        for (int64_t v = 0; v < l.pp * l.vpp; v++) {
            int64_t stage = mf_layout_stage_of(&l, v), chunk = mf_layout_chunk_of(&l, v);
            assert_int_equal(mf_layout_vstage(&l, stage, chunk), v);
        }
    }
}

static void broken_rules_are_named(void **state) {
    (void)state;
    mf_model m = test_model_moe(false), dense = test_model_dense();
    const struct {
        int64_t gpus, tp, cp, pp, vpp, ep, etp, mbs, gbs;
        mf_schedule_kind schedule;
        const mf_model *model;
        const char *says;
    } bad[] = {
        {8, 3, 1, 1, 1, 1, 1, 1, 8, MF_SCHED_1F1B, &m, "does not divide the 8 GPUs"},
        {12, 1, 1, 1, 1, 12, 1, 1, 12, MF_SCHED_1F1B, &m, "EP 12 does not divide the 32 experts"},
        {96, 3, 1, 1, 1, 1, 1, 1, 96, MF_SCHED_1F1B, &m, "TP 3 does not divide the 16 query heads"},
        {8, 1, 1, 1, 1, 2, 1, 1, 8, MF_SCHED_1F1B, &dense, "has no experts"},
        {8, 1, 1, 1, 1, 1, 1, 3, 8, MF_SCHED_1F1B, &m, "does not divide the global batch 8"},
        {8, 1, 1, 2, 2, 1, 1, 1, 12, MF_SCHED_INTERLEAVED, &m,
         "does not divide the 3 micro-batches"},
        {8, 1, 1, 2, 2, 1, 1, 1, 8, MF_SCHED_1F1B, &m, "takes VPP 1"},
        {8, 1, 1, 2, 1, 1, 1, 1, 8, MF_SCHED_ZB_V, &m, "takes VPP 2"},
        {64, 1, 1, 64, 1, 1, 1, 1, 64, MF_SCHED_1F1B, &m, "layers and ends to place"},
        {0, 1, 1, 1, 1, 1, 1, 1, 8, MF_SCHED_1F1B, &m, "GPUs must lie between"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        mf_layout l;
        mf_err e;
        mf_layout_init(&l);
        l.gpus = bad[i].gpus;
        l.tp = bad[i].tp;
        l.cp = bad[i].cp;
        l.pp = bad[i].pp;
        l.vpp = bad[i].vpp;
        l.ep = bad[i].ep;
        l.etp = bad[i].etp;
        l.mbs = bad[i].mbs;
        l.gbs = bad[i].gbs;
        l.schedule = bad[i].schedule;
        mf_err_clear(&e);
        assert_int_equal(mf_layout_resolve(&l, bad[i].model, &e), MF_LAYOUT);
        if (strstr(e.text, bad[i].says) == NULL) {
            fail_msg("case %d says: %s", (int)i, e.text);
        }
        assert_false(mf_layout_valid(&l, bad[i].model));
    }
}

static void words_round_trip_and_unknown_ones_get_a_near_one(void **state) {
    (void)state;
    uint16_t mask;
    uint8_t overlap;
    char text[128];
    mf_err e;
    assert_ok(mf_recompute_parse("norm,act,mla_up_proj", &mask, NULL));
    mf_recompute_format(mask, text, sizeof text);
    assert_string_equal(text, "norm,act,mla_up_proj");
    assert_ok(mf_recompute_parse("full", &mask, NULL));
    assert_int_equal(mask, MF_RECOMPUTE_LAYER);
    assert_ok(mf_overlap_parse("none", &overlap, NULL));
    assert_int_equal(overlap, 0);
    mf_schedule_kind kind;
    assert_int_equal(mf_schedule_parse("interleavd", &kind, &e), MF_USAGE);
    assert_non_null(strstr(e.text, "did you mean \"interleaved\""));
    assert_int_equal(mf_recompute_parse("norm,,act", &mask, &e), MF_USAGE);
    assert_int_equal(mf_recompute_parse("", &mask, &e), MF_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_four_rank_examples_of_folding_hold),
        cmocka_unit_test(every_group_is_the_set_that_agrees_on_the_other_coordinates),
        cmocka_unit_test(both_grids_number_the_ranks_and_agree_on_the_stage),
        cmocka_unit_test(broken_rules_are_named),
        cmocka_unit_test(words_round_trip_and_unknown_ones_get_a_near_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
