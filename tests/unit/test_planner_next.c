/* What a search starts next: trees that climb no more wait until nothing else is left, and are
 * worked on as long as there is effort. */
#include "planner/search/search_state.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>

typedef struct fixture {
    mf_evaluator evaluator;
    mf_search_request request;
    mf_search_state *state;
} fixture;

/* A plan of 10 s is known, and a gap of 3 % is asked for. */
static void set_up(fixture *f) {
    f->evaluator = (mf_evaluator){0};
    f->request = (mf_search_request){.evaluator = &f->evaluator, .gap = 0.03, .known_s = 10.0};
    f->state = calloc(1, sizeof *f->state);
    assert_non_null(f->state);
    f->state->r = &f->request;
    f->state->best_s = 10.0;
    f->state->blocking.key_s = HUGE_VAL;
    f->state->opened = true;
    mf_search_queue_init(&f->state->queue);
}

static void tear_down(fixture *f) {
    mf_search_queue_clear(&f->state->queue);
    free(f->state);
}

static void add(fixture *f, double key_s, bool stalled) {
    const mf_search_node tree = {
        .level = MF_LEVEL_SPLITS, .tries = MF_TREE_TRIES, .key_s = key_s, .stalled = stalled};
    assert_true(mf_search_queue_push(&f->state->queue, &tree));
}

static void a_tree_that_climbs_no_more_waits_for_all_others(void **state) {
    (void)state;
    fixture f;
    set_up(&f);
    add(&f, 9.5, true);
    add(&f, 9.6, false);
    assert_false(mf_search_is_done(f.state));
    assert_close(mf_search_queue_pop(&f.state->queue).key_s, 9.6, 0.0);
    assert_false(mf_search_is_done(f.state)); /* and is then worked on */
    assert_close(mf_search_queue_top(&f.state->queue)->key_s, 9.5, 0.0);
    tear_down(&f);
}

static void its_bound_counts_while_it_waits(void **state) {
    (void)state;
    fixture f;
    set_up(&f);
    add(&f, 9.5, true);
    add(&f, 9.6, false);
    assert_false(mf_search_is_done(f.state));
    assert_close(mf_search_lower_bound(f.state), 9.5, 0.0);
    tear_down(&f);
}

static void nothing_is_left_above_the_target(void **state) {
    (void)state;
    fixture f;
    set_up(&f);
    f.evaluator.without = (mf_mechanisms)1 << MF_MECHANISM_SECOND_LOOK;
    add(&f, 9.8, true); /* 10 s over 1.03 are 9.71 */
    assert_true(mf_search_is_done(f.state));
    tear_down(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tree_that_climbs_no_more_waits_for_all_others),
        cmocka_unit_test(its_bound_counts_while_it_waits),
        cmocka_unit_test(nothing_is_left_above_the_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
