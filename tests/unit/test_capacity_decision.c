/* Verdicts over offers: limits, the front, and differences that are too small to rank. */
#include "tests/support/test.h"

#include "planner/capacity/decision.h"

#include <math.h>

enum { DAY = 86400 };

static mf_offer offer(int cluster, int64_t gpus, double days, double usd) {
    return (mf_offer){.cluster = cluster,
                      .gpus = gpus,
                      .ends = true,
                      .priced = true,
                      .survives = true,
                      .time_s = days * DAY,
                      .low_s = 0.9 * days * DAY,
                      .high_s = 1.2 * days * DAY,
                      .cost_usd = usd,
                      .gap = 0.05};
}

static void verdicts_hold_to_their_limits(void **state) {
    (void)state;
    mf_offer o[] = {offer(0, 64, 20, 100), offer(0, 128, 11, 110), offer(1, 64, 9, 300),
                    offer(1, 128, 5, 330)};
    const mf_decision_limits both = {.deadline_s = 12 * DAY, .budget_usd = 320};
    mf_decide(o, 4, &both);
    assert_int_equal(mf_verdict_best(o, 4, 0, MF_VERDICT_CHEAPEST), 1);
    assert_int_equal(mf_verdict_best(o, 4, 0, MF_VERDICT_FASTEST), 2);
    assert_int_equal(mf_verdict_best(o, 4, 0, MF_VERDICT_SMALLEST), 2);
    assert_true(o[1].in_time);
    assert_true(!o[1].surely_in_time); /* 13.2 days at the end of its band */
    assert_true(o[2].in_budget);
    assert_true(!o[2].surely_in_budget);
    assert_true(o[3].surely_in_time);
    assert_true(!o[3].in_budget);
    const mf_decision_limits none = {.deadline_s = (double)INFINITY,
                                     .budget_usd = (double)INFINITY};
    mf_decide(o, 4, &none);
    assert_int_equal(mf_verdict_best(o, 4, 0, MF_VERDICT_CHEAPEST), 0);
    assert_int_equal(mf_verdict_best(o, 4, 0, MF_VERDICT_FASTEST), 3);
    assert_int_equal(mf_verdict_best(o, 4, 0, MF_VERDICT_SMALLEST), 2); /* of 64 the faster */
    assert_int_equal(mf_verdict_best(o, 4, 1, MF_VERDICT_FASTEST), -1); /* no such model */
}

/* The cheapest may not get over the loss of a node: then what does is dearer. */
static void a_verdict_names_the_cheapest_that_survives_a_lost_node(void **state) {
    (void)state;
    mf_offer o[] = {offer(0, 8, 9, 100), offer(0, 16, 8, 120), offer(1, 16, 8, 140),
                    offer(0, 32, 20, 110)};
    const mf_decision_limits limits = {.deadline_s = 12 * DAY, .budget_usd = 130};
    o[0].survives = false;
    mf_decide(o, 4, &limits);
    assert_int_equal(mf_verdict_best(o, 4, 0, MF_VERDICT_CHEAPEST), 0);
    assert_int_equal(mf_verdict_best(o, 4, 0, MF_VERDICT_SURVIVOR), 1);
    assert_true(!mf_verdict_ties(&o[1], &o[0], MF_VERDICT_SURVIVOR));
    o[1].survives = false;
    mf_decide(o, 4, &limits);
    assert_int_equal(mf_verdict_best(o, 4, 0, MF_VERDICT_SURVIVOR), -1); /* late, or too dear */
}

static void what_does_not_fit_and_what_has_no_price_wins_nothing(void **state) {
    (void)state;
    mf_offer o[] = {offer(0, 8, 1, 1), offer(0, 16, 2, 2), offer(0, 32, 3, 3)};
    o[0].ends = false;
    o[1].priced = false;
    const mf_decision_limits limits = {.deadline_s = 10 * DAY, .budget_usd = 10};
    mf_decide(o, 3, &limits);
    for (int v = 0; v < MF_VERDICT_COUNT; v++) {
        assert_int_equal(mf_verdict_best(o, 3, 0, (mf_verdict)v), 2);
    }
    assert_true(!o[0].on_front);
    assert_true(!o[1].on_front);
    assert_true(o[2].on_front);
}

static void the_front_is_what_no_other_offer_of_the_model_beats(void **state) {
    (void)state;
    mf_offer o[] = {offer(0, 1, 10, 10), offer(0, 2, 5, 20), offer(0, 3, 6, 20),
                    offer(0, 4, 5, 20),  offer(0, 5, 10, 9), offer(0, 6, 1, 1)};
    o[5].model = 1;
    const mf_decision_limits limits = {.deadline_s = 1, .budget_usd = 1}; /* they do not matter */
    static const bool on[] = {false, true, false, true, true, true};
    mf_decide(o, 6, &limits);
    for (int i = 0; i < 6; i++) {
        assert_true(o[i].on_front == on[i]);
    }
}

/* On one cluster the gap alone blurs an order; between clusters the bands do, too. */
static void ties_are_what_gap_and_band_leave_open(void **state) {
    (void)state;
    mf_offer o[] = {offer(0, 64, 10, 100), offer(0, 128, 5.2, 104), offer(0, 256, 3, 106),
                    offer(1, 64, 8, 130), offer(1, 64, 8, 150)};
    const mf_decision_limits none = {.deadline_s = (double)INFINITY,
                                     .budget_usd = (double)INFINITY};
    mf_decide(o, 5, &none);
    assert_int_equal(mf_verdict_best(o, 5, 0, MF_VERDICT_CHEAPEST), 0);
    assert_false(mf_verdict_ties(&o[0], &o[0], MF_VERDICT_CHEAPEST));
    assert_true(mf_verdict_ties(&o[0], &o[1], MF_VERDICT_CHEAPEST));  /* 104 / 1.05 < 100 */
    assert_false(mf_verdict_ties(&o[0], &o[2], MF_VERDICT_CHEAPEST)); /* 106 / 1.05 > 100 */
    assert_true(mf_verdict_ties(&o[0], &o[3], MF_VERDICT_CHEAPEST));  /* 0.9 of it < 120 */
    assert_false(mf_verdict_ties(&o[0], &o[4], MF_VERDICT_CHEAPEST));
    assert_false(mf_verdict_ties(&o[2], &o[1], MF_VERDICT_FASTEST));
    const mf_tie same = mf_verdict_tie(&o[0], &o[1], MF_VERDICT_CHEAPEST);
    assert_true(!same.band); /* of one cluster the gap alone */
    assert_close(same.difference, o[1].cost_usd / o[0].cost_usd - 1, 1e-9);
    assert_close(same.open, 0.05, 1e-9);
    const mf_tie other = mf_verdict_tie(&o[0], &o[3], MF_VERDICT_CHEAPEST);
    assert_true(other.band);
    assert_close(other.open, 1.2 / 0.9 * 1.05 - 1, 1e-9);
    assert_true(mf_verdict_ties(&o[0], &o[3], MF_VERDICT_SMALLEST));
    o[1].model = 1;
    assert_false(mf_verdict_ties(&o[0], &o[1], MF_VERDICT_CHEAPEST));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdicts_hold_to_their_limits),
        cmocka_unit_test(a_verdict_names_the_cheapest_that_survives_a_lost_node),
        cmocka_unit_test(what_does_not_fit_and_what_has_no_price_wins_nothing),
        cmocka_unit_test(the_front_is_what_no_other_offer_of_the_model_beats),
        cmocka_unit_test(ties_are_what_gap_and_band_leave_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
