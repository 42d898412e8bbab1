/* The least step that a pipeline stage allows, from sums made by hand. */
#include "planner/bound/stage_bound.h"
#include "tests/support/test.h"

#include <math.h>

enum { STAGES = 2, MICRO_BATCHES = 4 };

/* Two stages of one layer each, in an order whose warm-up takes so many forward passes. */
static double bound_of(mf_schedule_kind schedule, int chunks, float warm, mf_stage_sums sums) {
    float passes[STAGES * 2] = {warm, warm, warm, warm};
    mf_order_summary order = {.stages = STAGES,
                              .chunks = chunks,
                              .layers = 1,
                              .flight = passes,
                              .warm_least = passes,
                              .warm_most = passes};
    mf_layout l;
    mf_layout_init(&l);
    l.pp = STAGES;
    l.vpp = chunks;
    l.schedule = schedule;
    l.micro_batches = MICRO_BATCHES;
    return mf_stage_bound_s(&l, &order, 0, &sums);
}

static const mf_schedule_kind schedules[] = {MF_SCHED_GPIPE, MF_SCHED_1F1B,   MF_SCHED_INTERLEAVED,
                                             MF_SCHED_ZB_H1, MF_SCHED_MERGED, MF_SCHED_ZB_V};
enum { SCHEDULES = sizeof schedules / sizeof schedules[0] };

/* As many passes in the warm-up as there are: what follows it takes none of the infinite passes. */
static void a_stage_too_full_for_any_choice_takes_forever_in_every_order(void **state) {
    (void)state;
    const mf_stage_sums full = {
        .time_s = HUGE_VAL, .plain_s = HUGE_VAL, .f_s = 1, .b_s = 2, .host_s = 0.1, .layers = 1};
    for (int i = 0; i < SCHEDULES; i++) {
        for (int chunks = 1; chunks <= 2; chunks++) {
            for (int warm = 0; warm <= MICRO_BATCHES; warm++) {
                assert_at_least(bound_of(schedules[i], chunks, (float)warm, full), HUGE_VAL);
            }
        }
    }
}

static void one_stage_takes_its_passes_and_the_way_through_the_others(void **state) {
    (void)state;
    const mf_stage_sums x = {.time_s = 3,
                             .plain_s = 3,
                             .f_s = 1,
                             .b_s = 2,
                             .behind_s = 3,
                             .step_end_s = 0.5,
                             .layers = 1};
    /* first micro-batch to the end and back, then the rest: 1 + 3 + 2, (4 - 2) x 3 + 2, the update
     */
    assert_below(fabs(bound_of(MF_SCHED_1F1B, 1, 2, x) - 14.5), 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stage_too_full_for_any_choice_takes_forever_in_every_order),
        cmocka_unit_test(one_stage_takes_its_passes_and_the_way_through_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
