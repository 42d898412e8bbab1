/* Points as CSV: what is read, what is refused and where, and that export and import agree. */
#include "tests/support/test.h"

#include "profiles/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static mf_store *s;
static mf_err e;

static int open_store(void **state) {
    (void)state;
    mf_err_clear(&e);
    return mf_store_open(":memory:", &s, &e) == MF_OK ? 0 : -1;
}

static int close_store(void **state) {
    (void)state;
    mf_store_close(s);
    return 0;
}

static int64_t import(const char *text) {
    int64_t count = -1;
    mf_err_clear(&e);
    if (mf_store_import_csv_text(s, "t.csv", text, strlen(text), &count, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return count;
}

static void expect_refused(const char *text, const char *want) {
    int64_t count = -1, rows = -1;
    assert_int_equal(mf_store_import_csv_text(s, "t.csv", text, strlen(text), &count, &e),
                     MF_INPUT);
    assert_string_equal(e.text, want);
    assert_int_equal(count, 0);
    assert_ok(mf_store_check(s, &rows, NULL, &e));
    assert_int_equal(rows, 0); /* all or nothing */
}

static int keep(const mf_point *p, void *user) {
    *(mf_point *)user = *p;
    return 0;
}

static void a_full_line_gives_all_fields(void **state) {
    (void)state;
    mf_point p;
    assert_int_equal(
        import("# measured somewhere\n"
               "gpu,op,dims,time_s,low_s,high_s,samples,versions,date,source,holdout,"
               "energy_J,sustained_s\n"
               "h200,gemm,k=2048 m=4096 n=7168 dtype=bf16,1.5e-4,1.4e-4,2e-4,20,\"cuda=13.0 "
               "cublas=13.1\",2026-11-21,\"a, \"\"b\"\"\",1,0.11,1.6e-4\n"),
        1);
    assert_ok(mf_store_each(s, "h200", "gemm", keep, &p, NULL, &e));
    assert_true(p.time_s == 1.5e-4);
    assert_true(p.low_s == 1.4e-4);
    assert_true(p.high_s == 2e-4);
    assert_int_equal(p.samples, 20);
    assert_int_equal(p.holdout, 1);
    assert_string_equal(p.versions, "cuda=13.0 cublas=13.1");
    assert_string_equal(p.date, "2026-11-21");
    assert_string_equal(p.source, "a, \"b\"");
    assert_true(mf_point_value(&p, "k") == 2048.0);
    assert_true(p.energy_J == 0.11);
    assert_true(p.sustained_s == 1.6e-4);
}

static void columns_may_be_left_out_and_stand_in_any_order(void **state) {
    (void)state;
    mf_point p;
    assert_int_equal(import("time_s,dims,op,gpu\n0.5,bytes=8,copy,cpu\n"), 1);
    assert_ok(mf_store_each(s, NULL, NULL, keep, &p, NULL, &e));
    assert_true(p.time_s == 0.5);
    assert_true(p.low_s == 0.5);
    assert_true(p.high_s == 0.5);
    assert_int_equal(p.samples, 0);
    assert_int_equal(import("gpu,op,dims,time_s,low_s,high_s\ncpu,copy,bytes=8,0.5,,0.7\n"), 1);
    assert_ok(mf_store_each(s, NULL, NULL, keep, &p, NULL, &e));
    assert_true(p.low_s == 0.5);
    assert_true(p.high_s == 0.7);
}

#define HEAD "gpu,op,dims,time_s\n"

static void mistakes_are_refused_with_file_line_and_column(void **state) {
    (void)state;
    expect_refused("", "t.csv:1:1: expected a header \"gpu,op,dims,time_s,...\"");
    expect_refused("gpu,op,dims,time\n",
                   "t.csv:1:13: unknown column \"time\"; known: gpu op dims time_s low_s high_s "
                   "samples versions date source holdout choice energy_J sustained_s");
    expect_refused("gpu,op,dims\n", "t.csv:1:1: column \"time_s\" is missing");
    expect_refused("gpu,op,dims,time_s,gpu\n", "t.csv:1:20: column \"gpu\" stands twice");
    expect_refused(HEAD "h200,copy,bytes=8,1\nh200,copy,bytes=9\n",
                   "t.csv:3:11: expected 4 fields as in the header, got 3");
    expect_refused(HEAD "h200,copy,bytes=8,1\nh200,coyp,bytes=9,1\n",
                   "t.csv:3:11: unknown op \"coyp\": did you mean \"copy\"?");
    expect_refused(HEAD "h200,copy bytes=8,,1\n", "t.csv:2:6: op: expected the name of an op");
    expect_refused(HEAD "h200,copy,bits=8,1\n",
                   "t.csv:2:11: copy: unknown key \"bits\": did you mean \"bytes\"?");
    expect_refused(HEAD "h200,copy,bytes=8,fast\n",
                   "t.csv:2:19: time_s: expected a number, got \"fast\"");
    expect_refused(HEAD "h200,copy,bytes=8,\n", "t.csv:2:19: time_s: expected a number, got \"\"");
    expect_refused(HEAD "h200,copy,bytes=8,-1\n",
                   "t.csv:2:1: time_s: expected seconds > 0, got -1");
    expect_refused(HEAD "H200,copy,bytes=8,1\n",
                   "t.csv:2:1: gpu: expected a name such as \"h200\", got \"H200\"");
    expect_refused(HEAD "abcdefghijabcdefghijabcdefghijab,copy,bytes=8,1\n",
                   "t.csv:2:1: gpu: longer than 31 characters");
    expect_refused("gpu,op,dims,time_s,samples\nh200,copy,bytes=8,1,1.5\n",
                   "t.csv:2:21: samples: expected a whole number, got \"1.5\"");
    expect_refused("gpu,op,dims,time_s,energy_J\nh200,copy,bytes=8,1,2\n",
                   "t.csv:2:1: energy_J, sustained_s: expected both > 0, or neither, got 2, 0");
    expect_refused("gpu,op,dims,time_s,holdout\nh200,copy,bytes=8,1,2\n",
                   "t.csv:2:1: expected samples >= 0 and holdout 0 or 1");
}

static void a_bad_file_inside_a_transaction_undoes_only_itself(void **state) {
    (void)state;
    int64_t rows;
    assert_ok(mf_store_begin(s, &e));
    assert_int_equal(import(HEAD "h200,copy,bytes=8,1\n"), 1);
    const char *bad = HEAD "h200,copy,bytes=9,1\nh200,copy,bytes=x,1\n";
    assert_int_equal(mf_store_import_csv_text(s, "t.csv", bad, strlen(bad), NULL, &e), MF_INPUT);
    assert_ok(mf_store_commit(s, &e));
    assert_ok(mf_store_check(s, &rows, NULL, &e));
    assert_int_equal(rows, 1);
}

static void binary_and_huge_lines_are_refused(void **state) {
    (void)state;
    size_t size = 1 << 20;
    char *text = malloc(size);
    assert_non_null(text);
    memset(text, 'x', size);
    memcpy(text, HEAD, strlen(HEAD));
    assert_int_equal(mf_store_import_csv_text(s, "t.csv", text, size, NULL, &e), MF_INPUT);
    assert_string_equal(e.text, "t.csv:2:1: expected 4 fields as in the header, got 1");
    memset(text + 64, 0, size - 64);
    assert_int_equal(mf_store_import_csv_text(s, "t.csv", text, size, NULL, &e), MF_INPUT);
    assert_string_equal(e.text, "t.csv:2:1: expected text, got control bytes or no UTF-8");
    free(text);
}

static char *slurp(const char *path) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    assert_above(fread(text, 1, (1 << 16) - 1, file), 0);
    fclose(file);
    return text;
}

static void what_is_exported_reads_back_the_same(void **state) {
    (void)state;
    char first[] = "/tmp/mf_csv_XXXXXX", second[] = "/tmp/mf_csv_XXXXXX";
    int64_t count;
    close(mkstemp(first));
    close(mkstemp(second));
    for (int i = 0; i < 50; i++) {
        mf_point p;
        mf_point_init(&p, "h200", i % 2 == 0 ? "copy" : "copy_h2d");
        mf_point_set_i64(&p, "bytes", 3 * i + 1);
        p.time_s = 1e-6 / (i + 3);
        p.low_s = p.time_s / 3.0;
        p.high_s = p.time_s * 1.1;
        p.samples = i;
        p.holdout = i % 2;
        snprintf(p.source, sizeof p.source, "%s", i % 3 == 0 ? "#1, \"x\"" : "plain");
        assert_ok(mf_store_put(s, &p, &e));
    }
    assert_ok(mf_store_export_csv(s, first, &e));
    mf_store *copy;
    assert_ok(mf_store_open(":memory:", &copy, &e));
    assert_ok(mf_store_import_csv(copy, first, &count, &e));
    assert_int_equal(count, 50);
    assert_ok(mf_store_export_csv(copy, second, &e));
    mf_store_close(copy);
    char *a = slurp(first), *b = slurp(second);
    assert_string_equal(a, b);
    free(a);
    free(b);
    remove(first);
    remove(second);
}

static void exporting_to_nowhere_is_an_io_error(void **state) {
    (void)state;
    assert_int_equal(mf_store_export_csv(s, "/nonexistent/x.csv", &e), MF_IO);
    assert_non_null(strstr(e.text, "No such file"));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_store, close_store)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_full_line_gives_all_fields),
        TEST(columns_may_be_left_out_and_stand_in_any_order),
        TEST(mistakes_are_refused_with_file_line_and_column),
        TEST(a_bad_file_inside_a_transaction_undoes_only_itself),
        TEST(binary_and_huge_lines_are_refused),
        TEST(what_is_exported_reads_back_the_same),
        TEST(exporting_to_nowhere_is_an_io_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
