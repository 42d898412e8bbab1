/* Fuzz target: a profile store with damage that the bytes describe: triples of a place (two bytes,
 * over all that are not zero) and what is XORed there; a single byte left over truncates the file
 * at its share. Every row and choice that is handed out is one that was put in; all else is a
 * refusal in one line that names the file. */
#define MF_FUZZ_WORDS "\x01\x12\xff", "\x01\x10\x80", "\xff\xff\x01", "\x80\x01\x40"
#include "tests/fuzz/driver.h"

#include "profiles/store.h"
#include "tests/fuzz/file.h"

#include <sqlite3.h>

enum { ROWS = 12, MOST_B = 1 << 18 };

/* File-level because LLVMFuzzerTestOneInput takes no context. */
static unsigned char sound[MOST_B], broken[MOST_B];
static size_t sound_B, place[MOST_B], places; /* of bytes that say something */
static mf_point truth[ROWS];
static char choice_of[ROWS][64], key_of[ROWS][640];

static void require(int truth_of_it) {
    if (!truth_of_it) {
        abort();
    }
}

static void make_sound(void) {
    const char *path = fuzz_file("store.db", "", 0);
    mf_store *s;
    /* One thread: SQLite's locks and counters would be a tenth of the time. */
    require(sqlite3_config(SQLITE_CONFIG_SINGLETHREAD) == SQLITE_OK &&
            sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0) == SQLITE_OK);
    require(mf_store_open(path, &s, NULL) == MF_OK && mf_store_begin(s, NULL) == MF_OK);
    for (int i = 0; i < ROWS; i++) {
        mf_point *p = &truth[i];
        mf_point_init(p, i % 3 == 0 ? "h100" : "h200", "gemm");
        mf_point_set(p, "dtype", "bf16");
        mf_point_set_i64(p, "m", 64 * (i + 1));
        mf_point_set_i64(p, "n", 4096);
        mf_point_set_i64(p, "k", 2048);
        require(mf_point_canonical(p, NULL) == MF_OK);
        mf_point_format(p, key_of[i], sizeof key_of[i]);
        p->time_s = p->low_s = p->high_s = 1e-6 * (i + 1);
        p->samples = i;
        snprintf(p->source, sizeof p->source, "row %d", i);
        snprintf(choice_of[i], sizeof choice_of[i], "algorithm %d", 17 * i);
        require(mf_store_put(s, p, NULL) == MF_OK);
        require(i % 4 != 0 || mf_store_put_choice(s, p, choice_of[i], NULL) == MF_OK);
    }
    require(mf_store_commit(s, NULL) == MF_OK);
    mf_store_close(s);
    FILE *f = fopen(path, "rb");
    require(f != NULL);
    sound_B = fread(sound, 1, MOST_B, f);
    require(fclose(f) == 0 && sound_B > 4096 && sound_B < MOST_B);
    for (size_t i = 0; i < sound_B; i++) {
        place[places] = i;
        places += sound[i] != 0;
    }
}

/* Which row of the truth a point is; -1: none. */
static int row_of(const mf_point *p) {
    char key[640];
    mf_point_format(p, key, sizeof key);
    for (int i = 0; i < ROWS; i++) {
        if (strcmp(p->gpu, truth[i].gpu) == 0 && strcmp(key, key_of[i]) == 0) {
            return i;
        }
    }
    return -1;
}

static int see_row(const mf_point *p, void *user) {
    int i = row_of(p);
    require(i >= 0 && p->time_s == truth[i].time_s && p->samples == truth[i].samples);
    require(strcmp(p->source, truth[i].source) == 0);
    ++*(int *)user;
    return 0;
}

static int see_choice(const mf_point *p, const char *choice, void *user) {
    int i = row_of(p);
    (void)user;
    require(i >= 0 && strcmp(choice, choice_of[i]) == 0);
    return 0;
}

static size_t damage(const uint8_t *data, size_t size) {
    size_t left = sound_B;
    memcpy(broken, sound, sound_B);
    for (size_t i = 0; i + 2 < size; i += 3) {
        broken[place[((size_t)data[i] << 8 | data[i + 1]) * places >> 16]] ^= data[i + 2];
    }
    if (size % 3 == 1) {
        left = sound_B * data[size - 1] / 255;
    }
    return left;
}

/* Exit code 2 is for files that are something else, 1 for stores that are damaged. */
static void require_refusal(mf_status st, const mf_err *e, const char *path) {
    require(st == MF_DAMAGED || st == MF_INPUT || st == MF_IO);
    require(strncmp(e->text, path, strlen(path)) == 0 && strchr(e->text, '\n') == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf_store *s;
    mf_err e;
    int seen = 0;
    int64_t damaged = 0, rows = 0, lost = 0;
    if (sound_B == 0) {
        make_sound();
    }
    const char *path = fuzz_file("store.db", broken, damage(data, size));
    mf_err_clear(&e);
    mf_status st = mf_store_open(path, &s, &e);
    if (st != MF_OK) {
        require_refusal(st, &e, path);
        return 0;
    }
    st = mf_store_each(s, NULL, NULL, see_row, &seen, &damaged, &e);
    if (st != MF_OK) {
        require_refusal(st, &e, path);
    }
    mf_err_clear(&e);
    st = mf_store_each_choice(s, NULL, see_choice, NULL, &damaged, &e);
    if (st != MF_OK) {
        require_refusal(st, &e, path);
    }
    mf_err_clear(&e);
    st = mf_store_check(s, &rows, &lost, &e);
    if (st != MF_OK) {
        require_refusal(st, &e, path);
    } else {
        require(seen == rows);
    }
    mf_store_close(s);
    return 0;
}
