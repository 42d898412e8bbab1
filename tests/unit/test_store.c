/* The store: rows in and out, versions of the schema, rebuilding. Damage: test_store_damage.c. */
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
static char folder[64], path[96];

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/mf_store_XXXXXX");
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    snprintf(path, sizeof path, "%s/p.sqlite", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static mf_point point(const char *gpu, const char *key, double time_s) {
    mf_point p;
    ok(mf_point_parse(key, &p, &e));
    strcpy(p.gpu, gpu);
    p.time_s = time_s;
    p.low_s = 0.9 * time_s;
    p.high_s = 1.2 * time_s;
    p.samples = 20;
    strcpy(p.versions, "cuda=13.0");
    strcpy(p.date, "2026-11-21");
    strcpy(p.source, "a test");
    return p;
}

static void run_sql(const char *sql) {
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

typedef struct list {
    int count;
    mf_point p[16];
} list;

static int collect(const mf_point *p, void *user) {
    list *l = user;
    assert_below(l->count, 16);
    l->p[l->count++] = *p;
    return 0;
}

static void fill(mf_store *s) {
    static const char *const keys[] = {"gemm m=64 n=64 k=64 dtype=bf16",
                                       "gemm m=128 n=64 k=64 dtype=bf16", "copy bytes=4096"};
    for (int i = 0; i < 3; i++) {
        mf_point p = point(i == 2 ? "a100" : "h200", keys[i], 1e-6 * (i + 1));
        ok(mf_store_put(s, &p, &e));
    }
}

static void points_come_back_as_they_went_in_and_in_order(void **state) {
    (void)state;
    mf_store *s;
    list l = {0};
    int64_t damaged = -1;
    ok(mf_store_open(path, &s, &e));
    fill(s);
    mf_store_close(s);
    ok(mf_store_open(path, &s, &e));
    ok(mf_store_each(s, NULL, NULL, collect, &l, &damaged, &e));
    assert_int_equal(l.count, 3);
    assert_int_equal(damaged, 0);
    assert_string_equal(l.p[0].gpu, "a100");
    mf_point want = point("h200", "gemm m=128 n=64 k=64 dtype=bf16", 2e-6);
    want.id = l.p[1].id;
    assert_memory_equal(&l.p[1], &want, sizeof want);
    assert_above(l.p[1].id, 0);
    mf_store_close(s);
}

/* Replaced with its point, dropped with it, and seen when it is damaged. */
static void the_energy_of_a_point_goes_with_it(void **state) {
    (void)state;
    mf_store *s;
    int64_t damaged = -1;
    mf_point p = point("h200", "copy bytes=4096", 1e-6);
    for (int round = 0; round < 3; round++) {
        list l = {0};
        p.energy_J = round < 2 ? 1e-4 * (round + 1) : 0;
        p.sustained_s = round < 2 ? 2e-6 : 0;
        ok(mf_store_open(path, &s, &e));
        fill(s);
        ok(mf_store_put(s, &p, &e));
        mf_store_close(s);
        ok(mf_store_open(path, &s, &e));
        ok(mf_store_each(s, "h200", NULL, collect, &l, &damaged, &e));
        assert_int_equal(damaged, 0);
        assert_int_equal(l.count, 3);
        assert_true(l.p[0].energy_J == p.energy_J);
        assert_true(l.p[0].sustained_s == p.sustained_s);
        assert_true(l.p[1].energy_J == 0);
        assert_true(l.p[1].sustained_s == 0);
        mf_store_close(s);
    }
    p.energy_J = 1e-4;
    p.sustained_s = 2e-6;
    ok(mf_store_open(path, &s, &e));
    ok(mf_store_put(s, &p, &e));
    mf_store_close(s);
    run_sql("UPDATE energy SET energy_J = 1.1e-4");
    ok(mf_store_open(path, &s, &e));
    list l = {0};
    ok(mf_store_each(s, "h200", "copy", collect, &l, &damaged, &e));
    assert_true(l.count == 0);
    assert_true(damaged == 1);
    mf_store_close(s);
}

static void filters_by_gpu_and_op_and_stopping_early(void **state) {
    (void)state;
    mf_store *s;
    ok(mf_store_open(":memory:", &s, &e));
    fill(s);
    list l = {0};
    ok(mf_store_each(s, "h200", NULL, collect, &l, NULL, &e));
    assert_int_equal(l.count, 2);
    ok(mf_store_each(s, NULL, "copy", collect, &l, NULL, &e));
    assert_int_equal(l.count, 3);
    ok(mf_store_each(s, "a100", "copy", collect, &l, NULL, &e));
    ok(mf_store_each(s, "a100", "gemm", collect, &l, NULL, &e));
    assert_int_equal(l.count, 4);
    mf_store_close(s);
}

static int stop(const mf_point *p, void *user) {
    (void)p;
    ++*(int *)user;
    return 1;
}

static void a_reader_can_stop(void **state) {
    (void)state;
    mf_store *s;
    int seen = 0;
    ok(mf_store_open(":memory:", &s, &e));
    fill(s);
    ok(mf_store_each(s, NULL, NULL, stop, &seen, NULL, &e));
    assert_int_equal(seen, 1);
    mf_store_close(s);
}

static void a_point_with_the_same_dims_replaces_the_old_one(void **state) {
    (void)state;
    mf_store *s;
    list l = {0};
    ok(mf_store_open(":memory:", &s, &e));
    fill(s);
    mf_point p = point("a100", "copy bytes=4KiB", 7e-6);
    ok(mf_store_put(s, &p, &e));
    ok(mf_store_each(s, "a100", NULL, collect, &l, NULL, &e));
    assert_int_equal(l.count, 1);
    assert_true(l.p[0].time_s == 7e-6);
    mf_store_close(s);
}

static void dims_given_in_any_order_are_stored_canonical(void **state) {
    (void)state;
    mf_store *s;
    list l = {0};
    char key[640];
    ok(mf_store_open(":memory:", &s, &e));
    mf_point p;
    mf_point_init(&p, "h200", "gemm");
    mf_point_set_i64(&p, "k", 3);
    mf_point_set_i64(&p, "n", 2);
    mf_point_set_i64(&p, "m", 1);
    mf_point_set(&p, "dtype", "bf16");
    p.time_s = p.low_s = p.high_s = 1.0;
    ok(mf_store_put(s, &p, &e));
    ok(mf_store_each(s, NULL, NULL, collect, &l, NULL, &e));
    mf_point_format(&l.p[0], key, sizeof key);
    assert_string_equal(key, "gemm dtype=bf16 m=1 n=2 k=3 layout=nt acc=0");
    mf_store_close(s);
}

static void unsound_points_are_refused_and_leave_no_trace(void **state) {
    (void)state;
    mf_store *s;
    int64_t rows;
    ok(mf_store_open(":memory:", &s, &e));
    mf_point p = point("h200", "copy bytes=1", 1e-6);
    p.time_s = -1.0;
    assert_int_equal(mf_store_put(s, &p, &e), MF_INPUT);
    p = point("h200", "copy bytes=1", 1e-6);
    strcpy(p.op, "cpoy");
    assert_int_equal(mf_store_put(s, &p, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "did you mean \"copy\""));
    ok(mf_store_check(s, &rows, NULL, &e));
    assert_int_equal(rows, 0);
    mf_store_close(s);
}

static void what_is_not_committed_is_dropped(void **state) {
    (void)state;
    mf_store *s;
    int64_t rows;
    ok(mf_store_open(path, &s, &e));
    ok(mf_store_begin(s, &e));
    fill(s);
    mf_store_close(s);
    ok(mf_store_open(path, &s, &e));
    ok(mf_store_check(s, &rows, NULL, &e));
    assert_int_equal(rows, 0);
    ok(mf_store_begin(s, &e));
    fill(s);
    ok(mf_store_commit(s, &e));
    mf_store_close(s);
    ok(mf_store_open(path, &s, &e));
    ok(mf_store_check(s, &rows, NULL, &e));
    assert_int_equal(rows, 3);
    mf_store_close(s);
}

static void two_handles_on_one_file_see_each_others_points(void **state) {
    (void)state;
    mf_store *a, *b;
    list l = {0};
    ok(mf_store_open(path, &a, &e));
    ok(mf_store_open(path, &b, &e));
    fill(a);
    ok(mf_store_each(b, NULL, NULL, collect, &l, NULL, &e));
    assert_int_equal(l.count, 3);
    mf_store_close(a);
    mf_store_close(b);
}

static void a_folder_is_no_store_and_an_unreachable_path_an_io_error(void **state) {
    (void)state;
    mf_store *s = NULL;
    assert_int_equal(mf_store_open(folder, &s, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "not a folder"));
    assert_null(s);
    char missing[128];
    snprintf(missing, sizeof missing, "%s/none/p.sqlite", folder);
    assert_int_equal(mf_store_open(missing, &s, &e), MF_IO);
    assert_non_null(strstr(e.text, "unable to open"));
}

static void another_database_is_not_taken_for_a_store(void **state) {
    (void)state;
    mf_store *s;
    run_sql("CREATE TABLE cats (name TEXT); INSERT INTO cats VALUES ('Tom')");
    assert_int_equal(mf_store_open(path, &s, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "is no profile store"));
}

static void a_newer_schema_is_refused(void **state) {
    (void)state;
    mf_store *s;
    ok(mf_store_open_schema(path, 7, &s, &e));
    mf_store_close(s);
    assert_int_equal(mf_store_open(path, &s, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "schema 7, this moefold reads up to 3"));
}

/* The last error says how to rebuild this very file. */
static void assert_tells_the_way(void) {
    char way[MF_ERR_TEXT_MAX];
    snprintf(way, sizeof way, MF_STORE_REBUILD_HINT, path);
    assert_non_null(strstr(e.text, way));
}

static void a_foreign_trigger_or_column_is_damage(void **state) {
    (void)state;
    mf_store *s;
    ok(mf_store_open(path, &s, &e));
    mf_store_close(s);
    run_sql("CREATE TRIGGER t AFTER INSERT ON point BEGIN DELETE FROM point; END");
    assert_int_equal(mf_store_open(path, &s, &e), MF_DAMAGED);
    assert_tells_the_way();
    run_sql("DROP TRIGGER t");
    ok(mf_store_open(path, &s, &e));
    mf_store_close(s);
    run_sql("ALTER TABLE point RENAME COLUMN low_s TO mid_s");
    assert_int_equal(mf_store_open(path, &s, &e), MF_DAMAGED);
}

static void use_own_data(const char *csv) {
    char measured[128], file[160];
    snprintf(measured, sizeof measured, "mkdir -p '%s/data/measured'", folder);
    assert_int_equal(system(measured), 0);
    snprintf(file, sizeof file, "%s/data/measured/a.csv", folder);
    FILE *f = fopen(file, "w");
    fputs(csv, f);
    fclose(f);
    snprintf(file, sizeof file, "%s/data", folder);
    setenv("MOEFOLD_DATA", file, 1);
}

static void rebuilding_loads_the_shipped_text_and_keeps_the_old_file_beside(void **state) {
    (void)state;
    mf_store *s;
    int64_t rows;
    char old[128];
    use_own_data("gpu,op,dims,time_s\nh100,copy,bytes=8,1e-6\n");
    ok(mf_store_open(path, &s, &e));
    fill(s);
    mf_store_close(s);
    ok(mf_store_rebuild(path, &e));
    ok(mf_store_open(path, &s, &e));
    ok(mf_store_check(s, &rows, NULL, &e));
    assert_int_equal(rows, 1);
    mf_store_close(s);
    snprintf(old, sizeof old, "%s.old", path);
    ok(mf_store_open(old, &s, &e));
    ok(mf_store_check(s, &rows, NULL, &e));
    assert_int_equal(rows, 3);
    mf_store_close(s);
    unsetenv("MOEFOLD_DATA");
}

static void a_rebuild_that_fails_leaves_the_store_alone(void **state) {
    (void)state;
    mf_store *s;
    int64_t rows;
    use_own_data("gpu,op,dims,time_s\nh100,copy,bytes=8,fast\n");
    ok(mf_store_open(path, &s, &e));
    fill(s);
    mf_store_close(s);
    assert_int_equal(mf_store_rebuild(path, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "a.csv:2:19: time_s: expected a number, got \"fast\""));
    ok(mf_store_open(path, &s, &e));
    ok(mf_store_check(s, &rows, NULL, &e));
    assert_int_equal(rows, 3);
    mf_store_close(s);
    unsetenv("MOEFOLD_DATA");
}

/* A key from before exchanges had a skew. */
#define DISPATCH_1 "tokens=4096 hidden=7168 topk=8 experts=64 ranks=2 nodes=1 dtype=bf16 impl=fused"

/* What a program of schema 1 wrote, word for word. */
static const char schema_1[] =
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE point (id INTEGER PRIMARY KEY, gpu TEXT NOT NULL, op TEXT NOT NULL, "
    "key TEXT NOT NULL, time_s REAL NOT NULL, low_s REAL NOT NULL, high_s REAL NOT NULL, "
    "samples INTEGER NOT NULL, versions TEXT NOT NULL, date TEXT NOT NULL, source TEXT NOT NULL, "
    "holdout INTEGER NOT NULL, checksum INTEGER NOT NULL, UNIQUE (gpu, op, key));"
    "INSERT INTO meta VALUES ('schema', '1');"
    "INSERT INTO point VALUES (1, 'h200', 'copy', 'bytes=8', 1e-6, 1e-6, 2e-6, 7, 'cuda=13.0', "
    "'2026-11-21', 'own', 0, %lld);"
    "INSERT INTO point VALUES (2, 'h200', 'dispatch', '" DISPATCH_1
    "', 1e-6, 1e-6, 2e-6, 7, 'cuda=13.0', '2026-11-21', 'own', 0, %lld);"
    "PRAGMA application_id=%d; PRAGMA user_version=1";

static void write_schema_1(bool sound) {
    char sql[2048];
    mf_point p = point("h200", "copy bytes=8", 1e-6);
    p.low_s = 1e-6;
    p.high_s = 2e-6;
    p.samples = 7;
    strcpy(p.source, "own");
    uint64_t sum = mf_store_row_sum("h200", "copy", "bytes=8", &p);
    uint64_t other = mf_store_row_sum("h200", "dispatch", DISPATCH_1, &p);
    snprintf(sql, sizeof sql, schema_1, (long long)sum, (long long)other, 0x6d6f6566);
    if (!sound) { /* a column of another name */
        memcpy(strstr(sql, "low_s"), "law_s", 5);
    }
    run_sql(sql);
}

static void a_store_of_schema_1_keeps_its_rows_and_takes_choices(void **state) {
    (void)state;
    mf_store *s;
    int64_t rows;
    char choice[MF_CHOICE_MAX];
    mf_point p = point("h200", "copy bytes=8", 1e-6);
    write_schema_1(true);
    for (int round = 0; round < 2; round++) {
        ok(mf_store_open(path, &s, &e));
        ok(mf_store_check(s, &rows, NULL, &e));
        assert_int_equal(rows, 2);
        mf_point dispatch = point("h200", "dispatch " DISPATCH_1 " skew=100", 2e-6);
        ok(mf_store_put(s, &dispatch, &e)); /* replaces the row, whose key is spelled as today */
        ok(mf_store_check(s, &rows, NULL, &e));
        assert_int_equal(rows, 2);
        ok(mf_store_choice(s, &p, choice, &e));
        assert_string_equal(choice, round == 0 ? "" : "this way");
        ok(mf_store_put_choice(s, &p, "this way", &e));
        mf_store_close(s);
    }
}

static void a_damaged_store_of_schema_1_is_refused_as_it_is(void **state) {
    (void)state;
    mf_store *s;
    write_schema_1(false);
    for (int round = 0; round < 2; round++) { /* nothing was changed by the first look */
        assert_int_equal(mf_store_open(path, &s, &e), MF_DAMAGED);
        assert_tells_the_way();
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(points_come_back_as_they_went_in_and_in_order),
        TEST(the_energy_of_a_point_goes_with_it),
        TEST(filters_by_gpu_and_op_and_stopping_early),
        TEST(a_reader_can_stop),
        TEST(a_point_with_the_same_dims_replaces_the_old_one),
        TEST(dims_given_in_any_order_are_stored_canonical),
        TEST(unsound_points_are_refused_and_leave_no_trace),
        TEST(what_is_not_committed_is_dropped),
        TEST(two_handles_on_one_file_see_each_others_points),
        TEST(a_folder_is_no_store_and_an_unreachable_path_an_io_error),
        TEST(another_database_is_not_taken_for_a_store),
        TEST(a_newer_schema_is_refused),
        TEST(a_foreign_trigger_or_column_is_damage),
        TEST(rebuilding_loads_the_shipped_text_and_keeps_the_old_file_beside),
        TEST(a_rebuild_that_fails_leaves_the_store_alone),
        TEST(a_store_of_schema_1_keeps_its_rows_and_takes_choices),
        TEST(a_damaged_store_of_schema_1_is_refused_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
