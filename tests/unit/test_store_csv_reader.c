/* The CSV reader and the small text helpers: what is read, what is refused, and where. */
#include "tests/support/test.h"

#include "core/base/csv.h"
#include "core/base/text.h"

#include "core/base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads all records and joins them: fields with '|', records with '/'. */
static mf_status read_all(const char *text, size_t length, char *out, size_t size, mf_err *e) {
    mf_csv *c;
    bool more = true;
    out[0] = '\0';
    mf_status st = mf_csv_open_text("t.csv", text, length, &c, e);
    while (st == MF_OK) {
        st = mf_csv_next(c, &more, e);
        if (st != MF_OK || !more) {
            break;
        }
        for (int i = 0; i < mf_csv_fields(c); i++) {
            size_t used = strlen(out);
            snprintf(out + used, size - used, "%s%s", i > 0 ? "|" : "", mf_csv_field(c, i));
        }
        size_t used = strlen(out);
        snprintf(out + used, size - used, "/");
    }
    mf_csv_close(c);
    return st;
}

static void expect_read(const char *text, const char *want) {
    char out[512];
    mf_err e;
    mf_err_clear(&e);
    if (read_all(text, strlen(text), out, sizeof out, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    assert_string_equal(out, want);
}

static void expect_error(const char *text, size_t length, const char *want) {
    char out[512];
    mf_err e;
    mf_err_clear(&e);
    assert_int_equal(read_all(text, length, out, sizeof out, &e), MF_INPUT);
    assert_string_equal(e.text, want);
}

static void records_and_fields_are_read_as_rfc_4180_says(void **state) {
    (void)state;
    expect_read("", "");
    expect_read("a", "a/");
    expect_read("a,b\nc,d\n", "a|b/c|d/");
    expect_read("a,b\r\nc,d\r\n", "a|b/c|d/");
    expect_read("a,,\n,b,\n", "a||/|b|/");
    expect_read("\"a,b\",\"say \"\"x\"\"\",\"\"\n", "a,b|say \"x\"|/");
    expect_read("\xef\xbb\xbf"
                "a,b\n",
                "a|b/");
    expect_read(" \t\n  # comment\na,b\n \t", "a|b/");
    expect_read("# comment\n\na,b\n\r\n# more, \"\n c , d \n#end", "a|b/ c | d /");
}

static void malformed_text_is_refused_with_its_position(void **state) {
    (void)state;
    expect_error("a,b\nc,\"d\n", 9, "t.csv:2:3: quoted field runs over the end of the line");
    expect_error("a,\"d", 4, "t.csv:1:3: quoted field without an end");
    expect_error("a,\"d\"x,c", 8, "t.csv:1:6: text behind a closing quote");
    expect_error("ab\"c", 4, "t.csv:1:3: a quote inside a field that is not quoted");
    expect_error("a,b\0c", 5, "t.csv:1:3: expected text, got control bytes or no UTF-8");
    expect_error("a\n\xc3(", 4, "t.csv:2:1: expected text, got control bytes or no UTF-8");
    char many[2 * MF_CSV_MAX_FIELDS + 1];
    memset(many, ',', sizeof many);
    expect_error(many, MF_CSV_MAX_FIELDS, "t.csv:1:65: too many fields in a line");
}

static void errors_of_a_reader_name_the_field(void **state) {
    (void)state;
    mf_csv *c;
    mf_err e;
    bool more;
    assert_ok(mf_csv_open_text("t.csv", "a,bc,d\n", 7, &c, &e));
    assert_ok(mf_csv_next(c, &more, &e));
    assert_int_equal(mf_csv_fail(c, 1, &e, "bad %d", 7), MF_INPUT);
    assert_string_equal(e.text, "t.csv:1:3: bad 7");
    assert_string_equal(mf_csv_field(c, 3), "");
    assert_string_equal(mf_csv_field(c, -1), "");
    mf_csv_close(c);
}

static void missing_files_and_folders_are_bad_input(void **state) {
    (void)state;
    mf_csv *c;
    mf_err e;
    assert_int_equal(mf_csv_open("/nonexistent/x.csv", &c, &e), MF_INPUT);
    assert_string_equal(e.text, "/nonexistent/x.csv: cannot be opened: No such file or directory");
    assert_int_equal(mf_csv_open("/tmp", &c, &e), MF_INPUT);
    assert_string_equal(e.text, "/tmp: expected a file, not a folder");
}

static void files_beyond_the_limit_are_refused(void **state) {
    (void)state;
    char path[] = "/tmp/mf_huge_XXXXXX", *text;
    size_t length;
    mf_err e;
    int fd = mkstemp(path);
    assert_at_least(fd, 0);
    assert_int_equal(ftruncate(fd, (off_t)MF_TEXT_MAX_BYTES + 1), 0); /* holes: no space taken */
    close(fd);
    assert_int_equal(mf_file_load(path, MF_TEXT_MAX_BYTES, &text, &length, &e), MF_INPUT);
    assert_non_null(strstr(e.text, ": larger than 67108864 bytes"));
    assert_null(text);
    remove(path);
}

static void numbers_are_plain_decimal_numbers(void **state) {
    (void)state;
    static const char *const good[] = {"0", "-1", "1.5", ".5", "5.", "1e9", "1E-9", "0.00088"};
    static const char *const bad[] = {"",   "-",  ".",  "1e",  "0x10", "nan",  "inf",
                                      " 1", "1 ", "+1", "1,5", "1e+",  "1e999"};
    double v;
    int64_t n;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(mf_text_f64(good[i], &v));
        assert_true(v == strtod(good[i], NULL));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(mf_text_f64(bad[i], &v));
    }
    assert_true(mf_text_i64("-42", &n));
    assert_true(n == -42);
    assert_false(mf_text_i64("4.2", &n));
    assert_false(mf_text_i64("99999999999999999999", &n));
}

static void printed_numbers_read_back_exactly(void **state) {
    (void)state;
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < 2000; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        double value = ldexp((double)(x >> 11), -60 - (int)(x % 40)), back;
        char text[40];
        mf_text_format_f64(value, text, sizeof text);
        assert_true(mf_text_f64(text, &back));
        assert_true(back == value);
    }
    char text[40];
    mf_text_format_f64(0.1, text, sizeof text);
    assert_string_equal(text, "0.1");
}

static void only_well_formed_utf8_is_clean(void **state) {
    (void)state;
    static const char *const bad[] = {
        "\x80", "\xc0\x80", "\xc3",         "\xe0\x80\x80", "\xed\xa0\x80",    "\xf4\x90\x80\x80",
        "a\nb", "\x7f",     "\xf0\x9f\x98", "\xe2\x82(",    "\xf5\x80\x80\x80"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(mf_text_is_clean(bad[i], strlen(bad[i])));
    }
    assert_true(mf_text_is_clean("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80\t", 16));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_and_fields_are_read_as_rfc_4180_says),
        cmocka_unit_test(malformed_text_is_refused_with_its_position),
        cmocka_unit_test(errors_of_a_reader_name_the_field),
        cmocka_unit_test(missing_files_and_folders_are_bad_input),
        cmocka_unit_test(files_beyond_the_limit_are_refused),
        cmocka_unit_test(numbers_are_plain_decimal_numbers),
        cmocka_unit_test(printed_numbers_read_back_exactly),
        cmocka_unit_test(only_well_formed_utf8_is_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
