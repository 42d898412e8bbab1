/* Copies to host memory: `plan` leaves them out unless it is asked, says what they would gain in
 * the layout that it chose, and what of its step rests on them where it was asked. */
#include "tests/support/cli_test.h"

#include <math.h>

#define JOB                                                                                        \
    "plan --model qwen3-30b-a3b --cluster h200 --gpus 4 --global-batch 64 --seq 8192 --threads 2 " \
    "--top 1 --json "

static double step_of(const cli_result *r) {
    return cli_number(cli_member(mf_json_root(r->json), "best"), "step_time_s");
}

static const mf_json_value *copies_of(const cli_result *r) {
    return cli_member(mf_json_root(r->json), "host_copies");
}

static void a_plan_says_what_copies_would_gain(void **state) {
    (void)state;
    cli_result without = cli_json(JOB), with = cli_json(JOB "--search-offload");
    const double gained_s = cli_number(copies_of(&without), "step_time_with_s");
    assert_false(cli_bool(copies_of(&without), "used"));
    assert_below(gained_s, 0.995 * step_of(&without));
    /* The whole search with copies has that layout, too. */
    assert_true(cli_bool(copies_of(&with), "used"));
    assert_at_most(step_of(&with), gained_s * (1 + 1e-12));
    assert_close(cli_number(copies_of(&with), "step_time_without_s"), step_of(&without), 0);
    cli_free(&without);
    cli_free(&with);
}

/* Nothing is said of them where the user holds what is offloaded. */
static void pinned_offload_is_not_looked_into(void **state) {
    (void)state;
    cli_result r = cli_json(JOB "--offload none");
    assert_int_equal(mf_json_value_type(cli_member(copies_of(&r), "step_time_with_s")),
                     MF_JSON_NULL);
    cli_free(&r);
}

/* OLMoE's states alone are more than an H100 holds. */
static void optimizer_states_go_to_the_host_where_nothing_fits(void **state) {
    (void)state;
#define ALONE "plan --model olmoe-1b-7b --cluster h100 --gpus 1 --global-batch 8 --seq 4096 --json "
    cli_result r = cli_json(ALONE), held;
    assert_true(cli_bool(copies_of(&r), "optimizer"));
    assert_true(cli_bool(copies_of(&r), "used"));
    assert_false(cli_bool(copies_of(&r), "fits_without"));
    cli_free(&r);
    held = cli_run(ALONE "--offload-optimizer 0", NULL);
    assert_int_equal(held.code, 3);
    assert_non_null(strstr(held.err, "nothing fits: the leanest layout"));
    cli_free(&held);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_says_what_copies_would_gain),
        cmocka_unit_test(optimizer_states_go_to_the_host_where_nothing_fits),
        cmocka_unit_test(pinned_offload_is_not_looked_into),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
