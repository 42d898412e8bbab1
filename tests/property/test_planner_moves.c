/* Moving positions by what steps take, from a plan that fits: what it ends with fits and takes what
 * it says, never longer than before, and once more it finds nothing. It goes on past its effort
 * only while moves gain. Of exchanging memory choices the same, with memory for just the plan, too;
 * positions stay. */
#include "planner/tuning/limits.h"
#include "tests/support/planner_bounds.h"
#include "tests/support/sampled.h"

#include <stdio.h>

typedef struct tally {
    int plans, better, went_on;
    double gain; /* summed, of the steps before */
} tally;

static double step_of(const problem *p, const mf_layout *l, const mf_assignment *a) {
    mf_step step;
    assert_ok(p->evaluator.ops->step(p->evaluator.self, l, a, &step, NULL));
    return step.fits ? step.time_s : HUGE_VAL;
}

/* With little effort: moves that gain allow as much again, those that gain nothing do not. */
static void check_effort(mf_partition *in, mf_assignment a, double best_s, tally *t) {
    const int64_t effort_ns = 600000, before_ns = *in->effort_ns;
    const double before_s = best_s;
    int64_t simulated = 0;
    assert_ok(mf_partition_improve_step(in, effort_ns, &a, &best_s, &simulated, NULL));
    const double used = (double)(*in->effort_ns - before_ns) / (double)effort_ns;
    mf_step step;
    const mf_evaluator *o = in->evaluator;
    assert_ok(o->ops->fit(o->self, &in->layout, &a, 0, &step, NULL));
    const int64_t move_ns =
        mf_partition_step_ns(in) + mf_evaluator_memory_ns(in->positions, step.looks);
    const double move = (double)move_ns / (double)effort_ns; /* of a plan about as large */
    const double most = best_s < before_s ? 2.0 + MF_STEP_SEARCH_MORE : 2.0;
    assert_at_most(used, most + 4.0 * move);
    t->went_on += used > 1.0 + move;
}

static void check_moves(const problem *p, mf_partition *in, const mf_layout *l, tally *t) {
    mf_assignment a;
    if (mf_assignment_even(&p->model, l, &a, NULL) != MF_OK || isinf(step_of(p, l, &a))) {
        return; /* no even split, or it does not fit */
    }
    const mf_assignment even = a;
    const double before_s = step_of(p, l, &a);
    double best_s = before_s, again_s;
    int64_t none = 0, some = 0;
    assert_ok(mf_partition_improve_step(in, 0, &a, &best_s, &none, NULL)); /* no effort */
    assert_memory_equal(&a, &even, sizeof a);
    assert_int_equal(none, 0);
    check_effort(in, a, best_s, t);
    assert_ok(mf_partition_improve_step(in, INT64_MAX / 2, &a, &best_s, &some, NULL));
    assert_at_most(best_s, before_s);
    assert_close(step_of(p, l, &a), best_s, 1e-9 * best_s);
    again_s = best_s;
    assert_ok(mf_partition_improve_step(in, INT64_MAX / 2, &a, &again_s, &some, NULL));
    assert_close(again_s, best_s, 2e-6 * best_s);
    t->plans++;
    t->better += best_s < before_s * (1 - 1e-3);
    t->gain += 1 - best_s / before_s;
}

static void moves_by_steps_only_make_them_shorter(void **state) {
    (void)state;
    rng r = rng_init(7100);
    tally t = {0};
    for (int i = planner_cases(60, 6); i > 0; i--) {
        problem p;
        problem_init(&p, &r, 10, 16);
        for (int k = 0; k < 6; k++) {
            mf_layout l;
            mf_partition *in = NULL;
            mf_block_costs *costs = NULL;
            if (!planner_layout(&r, &p.space, &l) || l.pp < 2) {
                continue;
            }
            assert_ok(mf_block_costs_create(&p.evaluator, &costs, NULL));
            assert_ok(mf_partition_create(costs, &l, p.space.pinned, NULL, &in, NULL));
            check_moves(&p, in, &l, &t);
            mf_partition_destroy(in);
            mf_block_costs_destroy(costs);
        }
        problem_clear(&p);
    }
    printf("  %d plans, %d of them shorter by more than 0.1 %%, %.2f %% in the mean; %d went on\n",
           t.plans, t.better, 100 * t.gain / t.plans, t.went_on);
    assert_above(t.plans, 2);
    assert_above(t.better, t.plans / 20);
    assert_true(t.went_on > 0 || t.plans < 30); /* a sample of them may hold none */
}

/* *tight: the plan leaves no memory. */
static void check_choices(const problem *p, mf_partition *in, const sample *s, bool is_tight,
                          tally *all, tally *tight) {
    mf_assignment a = s->a[s->best];
    const double before_s = step_of(p, &s->layout, &a);
    double best_s = before_s, again_s;
    int64_t none = 0, some = 0;
    assert_ok(mf_partition_improve_choices(in, 0, &a, &best_s, &none, NULL)); /* no effort */
    assert_memory_equal(&a, &s->a[s->best], sizeof a);
    assert_int_equal(none, 0);
    assert_ok(mf_partition_improve_choices(in, INT64_MAX / 2, &a, &best_s, &some, NULL));
    assert_memory_equal(a.first, s->a[s->best].first, (size_t)(a.vstages + 1) * sizeof a.first[0]);
    assert_at_most(best_s, before_s);
    assert_close(step_of(p, &s->layout, &a), best_s, 1e-9 * best_s);
    again_s = best_s;
    assert_ok(mf_partition_improve_choices(in, INT64_MAX / 2, &a, &again_s, &some, NULL));
    assert_at_most(again_s, best_s);
    for (int i = 0; i < (is_tight ? 2 : 1); i++) {
        tally *t = i == 0 ? all : tight;
        t->plans++;
        t->better += best_s < before_s * (1 - 1e-3);
        t->gain += 1 - best_s / before_s;
        t->went_on += again_s < best_s * (1 - 1e-3);
    }
}

static void choices_by_steps_only_make_them_shorter(void **state) {
    (void)state;
    rng r = rng_init(7300);
    tally all = {0}, tight = {0};
    for (int i = planner_cases(30, 6); i > 0; i--) {
        problem p;
        problem_init(&p, &r, 10, 16);
        for (int k = 0; k < 6; k++) {
            sample s;
            mf_partition *in = NULL;
            mf_block_costs *costs = NULL;
            const double memory_B = p.cluster.gpu.memory_B;
            if (!draw(&r, &p, &s) || s.best < 0) {
                continue;
            }
            assert_ok(mf_block_costs_create(&p.evaluator, &costs, NULL));
            assert_ok(mf_partition_create(costs, &s.layout, p.space.pinned, NULL, &in, NULL));
            check_choices(&p, in, &s, p.cluster.gpu.memory_B != memory_B, &all, &tight);
            mf_partition_destroy(in);
            mf_block_costs_destroy(costs);
        }
        problem_clear(&p);
    }
    printf("  %d plans, %d of them shorter by more than 0.1 %%, %.2f %% in the mean, %d once more; "
           "of %d without memory %d, %.2f %%\n",
           all.plans, all.better, 100 * all.gain / all.plans, all.went_on, tight.plans,
           tight.better, 100 * tight.gain / tight.plans);
    assert_above(all.better, all.plans / 20);
    assert_true(tight.better > tight.plans / 20 || tight.plans < 30); /* as above */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(moves_by_steps_only_make_them_shorter),
                                       cmocka_unit_test(choices_by_steps_only_make_them_shorter)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
