/* Choices of a store: which algorithm a shape runs with; in and out, as CSV, damaged. */
#include "tests/support/test.h"

#include "profiles/store_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ok(call)                                                                                   \
    do {                                                                                           \
        mf_err_clear(&e);                                                                          \
        if ((call) != MF_OK) {                                                                     \
            fail_msg("%s: %s", #call, e.text);                                                     \
        }                                                                                          \
    } while (0)

static mf_err e;
static const char product[] = "gemm dtype=bf16 m=64 n=128 k=256";

static mf_point named(const char *key) {
    mf_point p;
    ok(mf_point_parse(key, &p, &e));
    strcpy(p.gpu, "h200");
    strcpy(p.date, "2026-11-22");
    return p;
}

static mf_store *empty(void) {
    mf_store *s;
    ok(mf_store_open(":memory:", &s, &e));
    return s;
}

static void a_choice_comes_back_by_the_dims_in_any_order(void **state) {
    (void)state;
    mf_store *s = empty();
    char choice[MF_CHOICE_MAX];
    mf_point p = named(product), again = named("gemm layout=nt k=256 n=128 m=64 dtype=bf16 acc=0");
    mf_point other = named("gemm dtype=bf16 m=64 n=128 k=256 layout=nn");
    ok(mf_store_put_choice(s, &p, "algorithm 1", &e));
    ok(mf_store_put_choice(s, &p, "algorithm 2", &e)); /* replaces */
    ok(mf_store_choice(s, &again, choice, &e));
    assert_string_equal(choice, "algorithm 2");
    ok(mf_store_choice(s, &other, choice, &e));
    assert_string_equal(choice, "");
    strcpy(again.gpu, "h100");
    ok(mf_store_choice(s, &again, choice, &e));
    assert_string_equal(choice, "");
    mf_store_close(s);
}

static void texts_that_are_no_line_are_refused(void **state) {
    (void)state;
    mf_store *s = empty();
    mf_point p = named(product);
    char longest[MF_CHOICE_MAX + 1], back[MF_CHOICE_MAX];
    memset(longest, 'x', sizeof longest);
    longest[MF_CHOICE_MAX] = '\0';
    assert_int_equal(mf_store_put_choice(s, &p, "", &e), MF_INPUT);
    assert_int_equal(mf_store_put_choice(s, &p, "two\nlines", &e), MF_INPUT);
    assert_int_equal(mf_store_put_choice(s, &p, longest, &e), MF_INPUT);
    longest[MF_CHOICE_MAX - 1] = '\0';
    ok(mf_store_put_choice(s, &p, longest, &e));
    ok(mf_store_choice(s, &p, back, &e));
    assert_string_equal(back, longest);
    p.gpu[0] = '\0';
    assert_int_equal(mf_store_put_choice(s, &p, "x", &e), MF_INPUT);
    mf_store_close(s);
}

static int count(const mf_point *p, const char *choice, void *user) {
    (void)p;
    (void)choice;
    ++*(int *)user;
    return 0;
}

static void every_changed_field_of_a_choice_is_seen_and_not_used(void **state) {
    (void)state;
    static const char *const changes[] = {
        "UPDATE choice SET choice='algorithm 7'",       "UPDATE choice SET gpu='h100'",
        "UPDATE choice SET key=replace(key,'64','65')", "UPDATE choice SET date='2026-11-23'",
        "UPDATE choice SET checksum=checksum+1",        "UPDATE choice SET choice=x'00'",
        "UPDATE choice SET key='dtype=bf16 m=64'",      "UPDATE choice SET op='copy'",
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        mf_store *s = empty();
        mf_point p = named(product);
        int seen = 0;
        int64_t damaged = 0;
        ok(mf_store_put_choice(s, &p, "algorithm 1", &e));
        ok(mf_store_check(s, NULL, &damaged, &e));
        assert_int_equal(sqlite3_exec(s->db, changes[i], NULL, NULL, NULL), SQLITE_OK);
        ok(mf_store_each_choice(s, NULL, count, &seen, &damaged, &e));
        assert_int_equal(seen, 0);
        assert_int_equal(damaged, 1);
        assert_int_equal(mf_store_check(s, NULL, NULL, &e), MF_DAMAGED);
        char choice[MF_CHOICE_MAX] = "as before";
        mf_point where[] = {p, named("gemm dtype=bf16 m=65 n=128 k=256")};
        for (int w = 0; w < 2; w++) {
            ok(mf_store_choice(s, &where[w], choice, &e));
            assert_string_equal(choice, "");
        }
        mf_store_close(s);
    }
}

static const char text[] =
    "gpu,op,dims,time_s,date,choice\n"
    "h200,copy,bytes=8,1e-6,2026-11-21,\n"
    "h200,gemm,dtype=bf16 m=64 n=128 k=256,2e-6,2026-11-21,algorithm 1\n"
    "h200,gemm,dtype=bf16 m=64 n=128 k=512,,2026-11-21,\"algorithm 2, split\"\n";

static void csv_carries_choices_with_and_without_a_time(void **state) {
    (void)state;
    char folder[] = "/tmp/mf_choice_XXXXXX", path[64], choice[MF_CHOICE_MAX];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/out.csv", folder);
    mf_store *s = empty();
    int64_t rows = 0;
    ok(mf_store_import_csv_text(s, "text", text, strlen(text), &rows, &e));
    assert_int_equal(rows, 3);
    ok(mf_store_export_csv(s, path, &e));
    mf_store_close(s);
    s = empty();
    ok(mf_store_import_csv(s, path, &rows, &e));
    assert_int_equal(rows, 3);
    ok(mf_store_check(s, &rows, NULL, &e));
    assert_int_equal(rows, 2); /* points */
    mf_point p = named(product), alone = named("gemm dtype=bf16 m=64 n=128 k=512");
    ok(mf_store_choice(s, &p, choice, &e));
    assert_string_equal(choice, "algorithm 1");
    ok(mf_store_choice(s, &alone, choice, &e));
    assert_string_equal(choice, "algorithm 2, split");
    mf_store_close(s);
    unlink(path);
    rmdir(folder);
}

static void a_row_without_time_and_choice_is_refused(void **state) {
    (void)state;
    mf_store *s = empty();
    static const char bad[] = "gpu,op,dims,time_s,choice\nh200,copy,bytes=8,,\n";
    static const char neither[] = "gpu,op,dims\nh200,copy,bytes=8\n";
    assert_int_equal(mf_store_import_csv_text(s, "t", bad, strlen(bad), NULL, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "t:2:19: time_s"));
    assert_int_equal(mf_store_import_csv_text(s, "t", neither, strlen(neither), NULL, &e),
                     MF_INPUT);
    assert_non_null(strstr(e.text, "column \"time_s\" is missing"));
    mf_store_close(s);
}

static void write_file(const char *folder, const char *name, const char *content) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(content, f);
    fclose(f);
}

static void rebuilding_takes_in_the_shipped_choices(void **state) {
    (void)state;
    char folder[] = "/tmp/mf_choice_XXXXXX", path[64], command[128], choice[MF_CHOICE_MAX];
    mf_store *s;
    int64_t rows;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/p.db", folder);
    snprintf(command, sizeof command, "mkdir -p '%s/measured/choices'", folder);
    assert_int_equal(system(command), 0);
    write_file(folder, "measured/a.csv", "gpu,op,dims,time_s\nh200,copy,bytes=8,1e-6\n");
    write_file(
        folder, "measured/choices/h200.csv",
        "gpu,op,dims,date,choice\nh200,gemm,dtype=bf16 m=64 n=128 k=256,2026-11-22,shipped\n");
    setenv("MOEFOLD_DATA", folder, 1);
    ok(mf_store_rebuild(path, &e));
    unsetenv("MOEFOLD_DATA");
    ok(mf_store_open(path, &s, &e));
    ok(mf_store_check(s, &rows, NULL, &e));
    assert_int_equal(rows, 1);
    mf_point p = named(product);
    ok(mf_store_choice(s, &p, choice, &e));
    assert_string_equal(choice, "shipped");
    mf_store_close(s);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_choice_comes_back_by_the_dims_in_any_order),
        cmocka_unit_test(texts_that_are_no_line_are_refused),
        cmocka_unit_test(every_changed_field_of_a_choice_is_seen_and_not_used),
        cmocka_unit_test(csv_carries_choices_with_and_without_a_time),
        cmocka_unit_test(rebuilding_takes_in_the_shipped_choices),
        cmocka_unit_test(a_row_without_time_and_choice_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
