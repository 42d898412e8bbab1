/* Statuses: texts, exit codes, and the trace that prefixes build. */
#include "tests/support/test.h"

static void prefixes_read_from_the_outside_in(void **state) {
    (void)state;
    mf_err e;
    mf_err_clear(&e);
    assert_int_equal(mf_err_set(&e, MF_INPUT, "expected %s", "an integer"), MF_INPUT);
    assert_int_equal(mf_err_prefix(&e, "model.json:%d", 12), MF_INPUT);
    assert_int_equal(mf_err_prefix(&e, "plan"), MF_INPUT);
    assert_string_equal(e.text, "plan: model.json:12: expected an integer");
}

static void exit_codes_are_those_of_the_command_line(void **state) {
    (void)state;
    assert_int_equal(mf_status_exit_code(MF_OK), 0);
    assert_int_equal(mf_status_exit_code(MF_USAGE), 2);
    assert_int_equal(mf_status_exit_code(MF_LAYOUT), 2);
    assert_int_equal(mf_status_exit_code(MF_INFEASIBLE), 3);
    assert_int_equal(mf_status_exit_code(MF_INTERRUPTED), 130);
}

static void overlong_texts_are_truncated_not_overrun(void **state) {
    (void)state;
    mf_err e;
    mf_err_set(&e, MF_IO, "%4000s", "x");
    for (int i = 0; i < 8; i++) {
        mf_err_prefix(&e, "%600s", "y");
    }
    assert_true(e.text[MF_ERR_TEXT_MAX - 1] == '\0');
}

static void texts_stay_on_one_line(void **state) {
    (void)state;
    mf_err e;
    mf_err_set(&e, MF_INPUT, "key \"%s\"", "a\nb\x1b[1m");
    mf_err_prefix(&e, "file\r%d", 1);
    assert_string_equal(e.text, "file?1: key \"a?b?[1m\"");
    mf_err_set(&e, MF_INPUT, "key \"a\xc0\x80z\""); /* a NUL, as the JSON reader keeps it */
    assert_string_equal(e.text, "key \"a??z\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefixes_read_from_the_outside_in),
        cmocka_unit_test(exit_codes_are_those_of_the_command_line),
        cmocka_unit_test(overlong_texts_are_truncated_not_overrun),
        cmocka_unit_test(texts_stay_on_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
