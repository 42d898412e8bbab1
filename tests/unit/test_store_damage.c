/* A damaged store: bits flipped anywhere, files truncated, pages exchanged. No wrong row is ever
 * handed out, nothing crashes, every refusal is one line, and a store that checks holds all its
 * rows. */
#include "tests/support/test.h"

#include "profiles/store.h"

#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROWS = 240, PAGE = 4096, MAX_BYTES = 1 << 18 };

static char path[96];
static unsigned char sound[MAX_BYTES], broken[MAX_BYTES];
static size_t size;
static mf_point truth[ROWS];
static uint64_t state_;

static uint64_t next_random(void) { /* splitmix64 */
    uint64_t x = state_ += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static size_t below(size_t n) {
    return (size_t)(next_random() % n);
}

static void make_truth(void) {
    for (int i = 0; i < ROWS; i++) {
        mf_point *p = &truth[i];
        mf_point_init(p, i % 3 == 0 ? "h100" : "h200", i % 2 == 0 ? "gemm" : "all_reduce");
        if (i % 2 == 0) {
            mf_point_set(p, "dtype", "bf16");
            mf_point_set_i64(p, "m", 64 * (i + 1));
            mf_point_set_i64(p, "n", 7168);
            mf_point_set_i64(p, "k", 2048);
        } else {
            mf_point_set_i64(p, "bytes", 1024 * (i + 1));
            mf_point_set_i64(p, "ranks", 8);
        }
        assert_ok(mf_point_canonical(p, NULL));
        p->time_s = 1e-6 * (i + 1);
        p->low_s = 0.5 * p->time_s;
        p->high_s = 2.0 * p->time_s;
        p->samples = i;
        p->holdout = i % 5 == 0;
        snprintf(p->source, sizeof p->source, "measurement %d of a test", i);
    }
}

static void choice_of(int i, char *text, size_t limit) {
    snprintf(text, limit, "algorithm %d of a test, so and so", 17 * i);
}

static int set_up(void **state) {
    (void)state;
    strcpy(path, "/tmp/mf_damage_XXXXXX");
    int fd = mkstemp(path);
    mf_store *s;
    if (fd < 0 || close(fd) != 0 || mf_store_open(path, &s, NULL) != MF_OK) {
        return -1;
    }
    make_truth();
    mf_store_begin(s, NULL);
    for (int i = 0; i < ROWS; i++) {
        char choice[64];
        choice_of(i, choice, sizeof choice);
        if (mf_store_put(s, &truth[i], NULL) != MF_OK ||
            (i % 4 == 0 && mf_store_put_choice(s, &truth[i], choice, NULL) != MF_OK)) {
            return -1;
        }
    }
    mf_store_commit(s, NULL);
    mf_store_close(s);
    FILE *file = fopen(path, "rb");
    size = fread(sound, 1, sizeof sound, file);
    fclose(file);
    const char *text = getenv("MF_SEED");
    state_ = text != NULL ? strtoull(text, NULL, 10) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)state_);
    return size < sizeof sound && size > 8 * PAGE ? 0 : -1;
}

static void remove_files(void) {
    static const char *const suffixes[] = {"", "-journal", "-wal", "-shm"};
    for (size_t i = 0; i < 4; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", path, suffixes[i]);
        remove(name);
    }
}

static int tear_down(void **state) {
    (void)state;
    remove_files();
    return 0;
}

typedef struct tally {
    int good, wrong;
    bool seen[ROWS];
} tally;

static int judge(const mf_point *p, void *user) {
    tally *t = user;
    for (int i = 0; i < ROWS; i++) {
        mf_point want = truth[i];
        want.id = p->id;
        if (memcmp(&want, p, sizeof want) == 0 && !t->seen[i]) {
            t->seen[i] = true;
            t->good++;
            return 0;
        }
    }
    t->wrong++;
    return 0;
}

/* Every fourth point has a choice; none but its own may come out. */
static int judge_choice(const mf_point *p, const char *choice, void *user) {
    tally *t = user;
    for (int i = 0; i < ROWS; i += 4) {
        char want[64];
        choice_of(i, want, sizeof want);
        if (strcmp(want, choice) == 0 && strcmp(p->gpu, truth[i].gpu) == 0 &&
            memcmp(p->dim, truth[i].dim, sizeof p->dim) == 0 && !t->seen[i]) {
            t->seen[i] = true;
            t->good++;
            return 0;
        }
    }
    t->wrong++;
    return 0;
}

static void one_line(mf_status st, const mf_err *e) {
    assert_true(st == MF_DAMAGED || st == MF_INPUT || st == MF_IO);
    assert_true(e->text[0] != '\0');
    assert_true(strchr(e->text, '\n') == NULL);
    assert_non_null(strstr(e->text, path));
}

/* Opens the first n bytes of `broken` and reads it in every way; returns whether damage was seen.
 */
static bool use(size_t n) {
    mf_store *s = NULL;
    mf_err e;
    tally t = {0}, filtered = {0}, chosen = {0};
    int64_t damaged = 0, rows = 0;
    remove_files();
    FILE *file = fopen(path, "wb");
    assert_int_equal(fwrite(broken, 1, n, file), n);
    fclose(file);
    mf_err_clear(&e);
    mf_status st = mf_store_open(path, &s, &e);
    if (st != MF_OK) {
        assert_null(s);
        one_line(st, &e);
        return true;
    }
    st = mf_store_each(s, NULL, NULL, judge, &t, &damaged, &e);
    if (st != MF_OK) {
        one_line(st, &e);
    }
    mf_store_each(s, "h200", "gemm", judge, &filtered, NULL, &e);
    mf_store_each_choice(s, NULL, judge_choice, &chosen, NULL, &e);
    assert_int_equal(t.wrong + filtered.wrong + chosen.wrong, 0);
    mf_err_clear(&e);
    mf_status check = mf_store_check(s, &rows, &damaged, &e);
    if (check != MF_OK) {
        one_line(check, &e);
        assert_int_equal(check, MF_DAMAGED);
    } else if (n > 0) { /* an empty file is a new store */
        assert_int_equal(t.good, ROWS);
        assert_int_equal(rows, ROWS);
        assert_int_equal(chosen.good, ROWS / 4);
    }
    mf_store_close(s);
    return check != MF_OK;
}

static void flipped_bits_never_become_wrong_rows(void **state) {
    (void)state;
    int seen = 0;
    for (int run = 0; run < 400; run++) {
        memcpy(broken, sound, size);
        for (size_t flips = 1 + below(run % 4 == 0 ? 64 : 3); flips > 0; flips--) {
            broken[below(size)] ^= (unsigned char)(1u << below(8));
        }
        seen += use(size);
    }
    assert_above(seen, 100); /* most of the file matters */
}

static void flipped_bits_in_the_header_never_become_wrong_rows(void **state) {
    (void)state;
    for (size_t bit = 0; bit < 800; bit += 1 + below(3)) {
        memcpy(broken, sound, size);
        broken[bit / 8] ^= (unsigned char)(1u << (bit % 8));
        use(size);
    }
}

static void truncated_files_are_reported(void **state) {
    (void)state;
    memcpy(broken, sound, size);
    assert_false(use(size));
    for (int run = 0; run < 60; run++) {
        assert_true(use(1 + below(size - PAGE)));
    }
    use(0);
}

static void pages_exchanged_or_blanked_never_become_wrong_rows(void **state) {
    (void)state;
    for (int run = 0; run < 120; run++) {
        memcpy(broken, sound, size);
        unsigned char *a = broken + PAGE * below(size / PAGE);
        unsigned char *b = broken + PAGE * below(size / PAGE);
        if (run % 3 == 0) {
            memset(a, run % 2 == 0 ? 0 : 0xff, PAGE);
            assert_true(use(size));
        } else if (run % 3 == 1) {
            memcpy(a, b, PAGE); /* a page twice: no row may come twice */
            assert_true(a == b || use(size));
        } else {
            unsigned char keep[PAGE];
            memcpy(keep, a, PAGE);
            memcpy(a, b, PAGE);
            memcpy(b, keep, PAGE);
            assert_true(a == b || use(size));
        }
    }
}

static void any_file_at_all_is_refused_in_one_line(void **state) {
    (void)state;
    for (int run = 0; run < 40; run++) {
        for (size_t i = 0; i < size; i++) {
            broken[i] = (unsigned char)next_random();
        }
        if (run % 2 == 0) {
            memcpy(broken, sound, 100); /* a header that looks right */
        }
        assert_true(use(size));
    }
}

/* Rows changed behind the store's back, in a file that SQLite itself finds in order. */
static void changed_rows_are_skipped_and_counted(void **state) {
    (void)state;
    static const char *const changes[] = {
        "time_s = time_s * 1.0000001", "low_s = low_s / 2", "high_s = high_s * 2",
        "samples = samples + 1",       "date = '2026'",     "source = source || ' '",
        "holdout = 1 - holdout",       "gpu = 'b200'",      "key = replace(key, '7168', '7169')",
        "time_s = CAST(1 AS TEXT)",    "op = 'copy'",       "versions = x'00'"};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char sql[160];
        tally t = {0};
        int64_t damaged, rows;
        mf_err e;
        mf_store *s;
        sqlite3 *db;
        remove_files();
        FILE *file = fopen(path, "wb");
        assert_int_equal(fwrite(sound, 1, size, file), size);
        fclose(file);
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        snprintf(sql, sizeof sql, "UPDATE point SET %s WHERE id IN (1, 2, 3) AND op = 'gemm'",
                 changes[i]);
        assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_close(db), SQLITE_OK);
        assert_ok(mf_store_open(path, &s, &e));
        assert_ok(mf_store_each(s, NULL, NULL, judge, &t, &damaged, &e));
        assert_int_equal(t.wrong, 0);
        assert_int_equal(t.good, ROWS - 2);
        assert_int_equal(damaged, 2);
        assert_int_equal(mf_store_check(s, &rows, &damaged, &e), MF_DAMAGED);
        assert_non_null(strstr(e.text, "2 of 300 rows do not check; rebuild it with: moefold"));
        /* Measuring the point again heals it. */
        assert_ok(mf_store_put(s, &truth[0], &e));
        assert_ok(mf_store_put(s, &truth[2], &e));
        memset(&t, 0, sizeof t);
        assert_ok(mf_store_each(s, NULL, NULL, judge, &t, NULL, &e));
        assert_int_equal(t.good, ROWS);
        mf_store_close(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flipped_bits_never_become_wrong_rows),
        cmocka_unit_test(flipped_bits_in_the_header_never_become_wrong_rows),
        cmocka_unit_test(truncated_files_are_reported),
        cmocka_unit_test(pages_exchanged_or_blanked_never_become_wrong_rows),
        cmocka_unit_test(any_file_at_all_is_refused_in_one_line),
        cmocka_unit_test(changed_rows_are_skipped_and_counted),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
