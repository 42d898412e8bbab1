/* Which open layouts a search tries at its end: of all degrees and ways to play the least bound,
 * the smallest micro-batch and the leanest. */
#include "planner/search/search.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>

enum { DEGREES = 3, EACH = 8 };

/* Degrees TP 1, 2 and 4 with micro-batches of 1 and 2; every ZeRO level, merged or not. */
typedef struct fixture {
    mf_search_context context;
    mf_dense_point dense[2 * DEGREES];
    mf_expert_point expert[1];
    mf_search_node open[DEGREES * EACH];
} fixture;

static fixture make(void) {
    fixture f = {.expert = {{.ep = 1, .etp = 1}}};
    for (int d = 0; d < 2 * DEGREES; d++) {
        f.dense[d] = (mf_dense_point){.tp = 1 << d / 2, .cp = 1, .pp = 1, .mbs = 1 + d % 2};
    }
    for (int i = 0; i < DEGREES * EACH; i++) {
        bool merged = i % 2 == 0;
        int zero = i / 2 % 4, tp = i / EACH;
        f.open[i] = (mf_search_node){.level = MF_LEVEL_SPLITS,
                                     .tries = 1,
                                     .schedule = merged ? MF_SCHED_MERGED : MF_SCHED_1F1B,
                                     .zero = (uint8_t)zero,
                                     .dense = 2 * tp,
                                     .id = (uint64_t)i,
                                     /* merged is faster, and so is what shards less */
                                     .key_s = 10.0 + tp + 0.1 * zero + (merged ? 0.0 : 0.05)};
    }
    return f;
}

static mf_search_outcome chosen(fixture *f, int64_t heap, int64_t aside, double best_s) {
    mf_search_outcome out = {.status = MF_OK};
    const mf_search_open open = {
        .list = {f->open, f->open + heap}, .count = {heap, aside}, .best_s = best_s};
    f->context.dense = f->dense;
    f->context.expert = f->expert;
    assert_ok(mf_search_try_open(&f->context, &open, 3.5, &out, NULL));
    return out;
}

static void the_least_and_the_leanest_of_all_degrees_are_tried_in_turn(void **state) {
    (void)state;
    fixture f = make();
    for (int64_t heap = 0; heap <= DEGREES * EACH; heap += EACH) { /* wherever they are kept */
        mf_search_outcome out = chosen(&f, heap, DEGREES * EACH - heap, HUGE_VAL);
        assert_int_equal(out.children, 4 * DEGREES);
        for (int64_t i = 0; i < out.children; i++) {
            const mf_search_node *n = &out.child[i];
            bool merged = i % 2 == 0, least = i / 2 % 2 == 0;
            assert_int_equal(n->level, MF_LEVEL_TRY);
            assert_int_equal(n->tries, 0);
            assert_below(n->key_s, 3.5); /* before what stands at the least bound */
            assert_above(n->key_s, 3.5 * (1.0 - 1e-12));
            assert_int_equal(n->dense, 2 * (i / 4)); /* in the order of their bounds */
            assert_int_equal(n->zero, least ? 0 : 3);
            assert_int_equal(n->schedule, merged ? MF_SCHED_MERGED : MF_SCHED_1F1B);
        }
        free(out.child);
    }
}

static void layouts_that_the_best_plan_closes_are_not_tried(void **state) {
    (void)state;
    fixture f = make();
    f.open[0].level = MF_LEVEL_EXPERT; /* of no pipeline degree yet */
    mf_search_outcome out = chosen(&f, DEGREES * EACH, 0, 11.05);
    assert_int_equal(out.children, 5); /* four of TP 1, the one of TP 2 that is below */
    for (int64_t i = 0; i < out.children; i++) {
        assert_at_most(out.child[i].dense, 2);
        assert_false(out.child[i].dense == 0 && out.child[i].id == 0);
    }
    free(out.child);
    out = chosen(&f, DEGREES * EACH, 0, 5.0);
    assert_int_equal(out.children, 0);
    free(out.child);
}

static void small_micro_batches_are_leaner(void **state) {
    (void)state;
    fixture f = make();
    for (int i = 0; i < EACH; i++) { /* all of TP 1 alike but for their micro-batches */
        f.open[i].zero = 1;
        f.open[i].schedule = MF_SCHED_1F1B;
        f.open[i].dense = i == 5 ? 0 : 1;
        f.open[i].key_s = 10.0 + 0.01 * i;
    }
    mf_search_outcome out = chosen(&f, EACH, 0, HUGE_VAL);
    assert_int_equal(out.children, 2);
    assert_int_equal(out.child[0].dense, 1);
    assert_int_equal(out.child[1].dense, 0);
    free(out.child);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_and_the_leanest_of_all_degrees_are_tried_in_turn),
        cmocka_unit_test(layouts_that_the_best_plan_closes_are_not_tried),
        cmocka_unit_test(small_micro_batches_are_leaner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
