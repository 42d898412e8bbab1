/* Tables of our own training runs (docs/ACCURACY.md): what is read of a file, which third is held
 * out, and what the summary counts. */
#include "bench/gpu/runs_table.h"
#include "tests/support/test.h"

/* Files of a release, by the lines that they have: none is passed over in silence. */
static void every_line_of_the_files_is_a_run(void **state) {
    (void)state;
    static const char *const files[] = {
        "bench/gpu/runs-h200.csv", "bench/gpu/runs-h200-x2.csv", "bench/gpu/runs-h200-x4.csv",
        "bench/gpu/runs-h200-models.csv", "bench/gpu/runs-h100-models.csv"};
    static const int without_memory[] = {0, 0, 1, 0, 9};
    static run_row rows[RUNS_MOST];
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        FILE *f = fopen(files[i], "r");
        int lines = 0, without = 0;
        assert_non_null(f);
        for (int c; (c = fgetc(f)) != EOF;) {
            lines += c == '\n';
        }
        fclose(f);
        const int n = runs_read(files[i], rows);
        assert_int_equal(n, lines - 1);
        for (int k = 0; k < n; k++) {
            assert_above(rows[k].step_s, 0);
            assert_above(rows[k].clock_MHz, 0);
            assert_at_least(rows[k].memory_B, 0);
            without += rows[k].memory_B == 0;
        }
        assert_at_most(without, without_memory[i]);
    }
}

/* A run stays on its side when rows are added, and when it says that an older program ran. */
static void the_held_out_third_goes_by_the_options(void **state) {
    (void)state;
    static run_row rows[RUNS_MOST];
    const runs_asked one = {.gpus = 1}, models = {.gpus = 1, .models = true};
    const int n = runs_read("bench/gpu/runs-h200.csv", rows);
    int held = 0;
    for (int i = 0; i < n; i++) {
        const bool is = runs_is_held_out(&one, &rows[i]);
        held += is;
        assert_true(runs_is_held_out(&models, &rows[i]));
        if (strstr(rows[i].arguments, OLDER_PROGRAM) == NULL) {
            strcat(rows[i].arguments, OLDER_PROGRAM);
            assert_int_equal(runs_is_held_out(&one, &rows[i]), is);
        }
    }
    assert_at_least(held, n / 4);
    assert_at_most(held, n / 2);
}

/* What runs_tell_summary writes of the rows; to be freed. */
static char *summary_of(const run_row *rows, int n) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    runs_tell_summary(f, "", rows, n);
    fclose(f);
    return text;
}

static run_row row_of(const char *arguments, double measured_s, double predicted_s) {
    run_row r = {.step_s = measured_s,
                 .memory_B = 1e9,
                 .clock_MHz = 1000,
                 .predicted_s = predicted_s,
                 .predicted_B = 1.01e9,
                 .predicted_MHz = 1050};
    snprintf(r.arguments, sizeof r.arguments, "%s", arguments);
    return r;
}

/* Errors of +10 and -2 %; one pair in order, one not, one of two models, which have none. */
static void the_summary_counts_errors_and_pairs(void **state) {
    (void)state;
    run_row rows[] = {row_of("--model a --x 1", 1.0, 1.1), row_of("--model a --x 2", 2.0, 1.96),
                      row_of("--model b --x 1", 1.0, 0.98)};
    char *text = summary_of(rows, 3);
    /* All of them are fitted, and none copies: other lines would say the same. */
    assert_string_equal(text,
                        "| all | 3 | 4.7 % | +2.0 % | 10.0 % | 1.00 % | 1.00 % | 5.0 % | 5.0 % "
                        "| 1.000 of 1 | 1.000 of 1 |\n");
    free(text);
    rows[1].memory_B = 0;
    rows[2].predicted_B = 1.05e9;
    text = summary_of(rows, 3);
    assert_non_null(strstr(text, "| 10.0 % | 3.00 % (2 runs) | 5.00 % | 5.0 %"));
    free(text);
    rows[0].memory_B = rows[2].memory_B = 0;
    text = summary_of(rows, 3);
    assert_non_null(strstr(text, "| 10.0 % | - | - | 5.0 %"));
    free(text);
    const run_row crossed[] = {row_of("--model a --x 1", 1.0, 2.1),
                               row_of("--model a --x 2", 2.0, 1.96),
                               row_of("--model a --x 3", 2.01, 2.0)};
    const runs_choice any = {"", -1, -1};
    int pairs;
    assert_close(runs_find_tau(&any, crossed, 3, 0, &pairs), -1.0 / 3, 1e-12);
    assert_int_equal(pairs, 3);
    assert_close(runs_find_tau(&any, crossed, 3, 0.01, &pairs), -1, 1e-12);
    assert_int_equal(pairs, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_line_of_the_files_is_a_run),
        cmocka_unit_test(the_held_out_third_goes_by_the_options),
        cmocka_unit_test(the_summary_counts_errors_and_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
