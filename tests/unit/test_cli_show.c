/* Numbers for people: units, figures, wrapping. */
#include "tests/support/test.h"

#include "report/text/show.h"

#include <stdlib.h>

static void times_pick_their_unit(void **state) {
    (void)state;
    assert_string_equal(mf_show_time(3.2144).s, "3.214 s");
    assert_string_equal(mf_show_time(36.2619).s, "36.26 s");
    assert_string_equal(mf_show_time(0.0124).s, "12.40 ms");
    assert_string_equal(mf_show_time(8.2e-6).s, "8.200 us");
    assert_string_equal(mf_show_time(0).s, "0 s");
    assert_string_equal(mf_show_time(9999.4).s, "9999 s");
    assert_string_equal(mf_show_time(31716675.4).s, "31,716,675 s");
    assert_string_equal(mf_show_time(1e-12).s, "0.000 us");
    assert_string_equal(mf_show_time(0.9999).s, "1.000 s"); /* rounds up into the next unit */
    assert_string_equal(mf_show_time(0.0 / 0.0).s, "-");
}

static void sizes_are_decimal(void **state) {
    (void)state;
    assert_string_equal(mf_show_bytes(999).s, "999 B");
    assert_string_equal(mf_show_bytes(74.34e9).s, "74.34 GB");
    assert_string_equal(mf_show_bytes(512e6).s, "512.0 MB");
    assert_string_equal(mf_show_bytes(-1.5e9).s, "-1.500 GB");
    assert_string_equal(mf_show_count(671.0e9).s, "671.0B");
    assert_string_equal(mf_show_count(17).s, "17");
    assert_string_equal(mf_show_rate(450e9, "B/s").s, "450.0 GB/s");
    assert_string_equal(mf_show_percent(0.4123).s, "41.2 %");
}

static void whole_numbers_have_thousands(void **state) {
    (void)state;
    assert_string_equal(mf_show_i64(0).s, "0");
    assert_string_equal(mf_show_i64(999).s, "999");
    assert_string_equal(mf_show_i64(1024).s, "1,024");
    assert_string_equal(mf_show_i64(-1234567).s, "-1,234,567");
    assert_string_equal(mf_show_i64(9223372036854775807).s, "9,223,372,036,854,775,807");
}

static void assert_wrapped(const char *text, int column, int indent, int width, const char *want) {
    char *out = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&out, &size);
    assert_non_null(f);
    mf_show_wrap(f, text, column, indent, width);
    fclose(f);
    assert_string_equal(out, want);
    free(out);
}

static void a_share_stays_with_its_sign(void **state) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    (void)state;
    assert_non_null(out);
    mf_show_wrap_at(out, "slower by 39 %; more", 0, 2, 13);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, "slower by\n  39 %; more\n");
    free(text);
}

static void text_is_wrapped_between_words(void **state) {
    (void)state;
    assert_wrapped("one two three", 0, 0, 80, "one two three\n");
    assert_wrapped("one two three", 0, 2, 8, "one two\n  three\n");
    assert_wrapped("one two", 6, 2, 8, "\n  one\n  two\n");
    assert_wrapped("unbreakablylong word", 0, 0, 6, "unbreakablylong\nword\n");
    assert_wrapped("a\nb", 0, 1, 80, "a\n b\n");
}

static void bars_never_pass_their_width(void **state) {
    (void)state;
    char *out = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&out, &size);
    assert_non_null(f);
    mf_show_bar(f, 0.5, 1, 4);
    mf_show_bar(f, 9, 1, 4);
    mf_show_bar(f, 0, 1, 4);
    mf_show_bar(f, 1, 0, 4);
    fclose(f);
    assert_string_equal(out, "  ##  ####");
    free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_pick_their_unit),
        cmocka_unit_test(sizes_are_decimal),
        cmocka_unit_test(whole_numbers_have_thousands),
        cmocka_unit_test(text_is_wrapped_between_words),
        cmocka_unit_test(a_share_stays_with_its_sign),
        cmocka_unit_test(bars_never_pass_their_width),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
