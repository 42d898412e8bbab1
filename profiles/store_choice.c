/* store_choice.c - the algorithms that a product ran with, as libraries name them: one text a
 * shape, beside the points, each a row with a checksum. */
#include "profiles/store_private.h"

#include <stdio.h>
#include <string.h>

/* The point's names as the columns hold them. */
typedef struct names {
    mf_point p;
    char key[MF_STORE_KEY_MAX];
} names;

static uint64_t sum_of(const char *gpu, const char *op, const char *key, const char *choice,
                       const char *date) {
    const char *const text[] = {gpu, op, key, choice, date};
    return mf_store_text_sum(text, sizeof text / sizeof text[0]);
}

static mf_status names_of(const mf_point *given, names *out, mf_err *e) {
    out->p = *given;
    mf_status st = mf_point_canonical(&out->p, e);
    if (st == MF_OK && out->p.gpu[0] == '\0') {
        st = mf_err_set(e, MF_INPUT, "choice of %s: gpu: expected a name", out->p.op);
    }
    mf_store_key(&out->p, out->key, sizeof out->key);
    return st;
}

static bool is_line(const char *choice) {
    size_t n = strlen(choice);
    bool printable = n > 0 && n < MF_CHOICE_MAX;
    for (size_t i = 0; i < n && printable; i++) {
        printable = choice[i] >= ' ' && choice[i] <= '~';
    }
    return printable;
}

mf_status mf_store_put_choice(mf_store *s, const mf_point *p, const char *choice, mf_err *e) {
    static const char sql[] =
        "INSERT OR REPLACE INTO choice (gpu, op, key, choice, date, checksum) VALUES "
        "(?1,?2,?3,?4,?5,?6)";
    names n;
    mf_status st = names_of(p, &n, e);
    if (st == MF_OK && !is_line(choice)) {
        st = mf_err_set(e, MF_INPUT, "choice of %s %s: expected 1 to %d printable characters",
                        n.p.op, n.key, MF_CHOICE_MAX - 1);
    }
    if (st != MF_OK) {
        return st;
    }
    if (s->put_choice == NULL) {
        MF_SQL(s,
               sqlite3_prepare_v3(s->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &s->put_choice, NULL),
               "writing");
    }
    const char *const text[] = {n.p.gpu, n.p.op, n.key, choice, n.p.date};
    for (int i = 0; i < 5; i++) {
        MF_SQL(s, sqlite3_bind_text(s->put_choice, i + 1, text[i], -1, SQLITE_STATIC), "writing");
    }
    MF_SQL(s,
           sqlite3_bind_int64(s->put_choice, 6,
                              (int64_t)sum_of(n.p.gpu, n.p.op, n.key, choice, n.p.date)),
           "writing");
    int code = sqlite3_step(s->put_choice);
    if (code != SQLITE_DONE) {
        st = mf_store_fail(s, code, "writing", e);
    }
out:
    if (s->put_choice != NULL) {
        sqlite3_reset(s->put_choice);
        sqlite3_clear_bindings(s->put_choice);
    }
    return st;
}

/* --- reading ---------------------------------------------------------------------------------- */

#define SELECT_CHOICE "SELECT gpu, op, key, choice, date, checksum FROM choice "

/* A row whose checksum holds and whose names are canonical. */
static bool read_row(sqlite3_stmt *q, mf_point *p, char *choice) {
    char gpu[sizeof p->gpu], op[sizeof p->op], key[MF_STORE_KEY_MAX], date[sizeof p->date];
    char text[MF_STORE_KEY_MAX + sizeof op];
    if (!mf_store_column_text(q, 0, gpu, sizeof gpu) ||
        !mf_store_column_text(q, 1, op, sizeof op) ||
        !mf_store_column_text(q, 2, key, sizeof key) ||
        !mf_store_column_text(q, 3, choice, MF_CHOICE_MAX) ||
        !mf_store_column_text(q, 4, date, sizeof date) ||
        sqlite3_column_type(q, 5) != SQLITE_INTEGER ||
        (uint64_t)sqlite3_column_int64(q, 5) != sum_of(gpu, op, key, choice, date) ||
        !is_line(choice)) {
        return false;
    }
    snprintf(text, sizeof text, "%s %s", op, key);
    if (mf_point_parse(text, p, NULL) != MF_OK) {
        return false;
    }
    memcpy(p->gpu, gpu, sizeof gpu);
    memcpy(p->date, date, sizeof date);
    return true;
}

mf_status mf_store_choice(mf_store *s, const mf_point *p, char choice[MF_CHOICE_MAX], mf_err *e) {
    names n;
    mf_point found;
    mf_status st = names_of(p, &n, e);
    choice[0] = '\0';
    if (st != MF_OK) {
        return st;
    }
    if (s->choice == NULL) {
        MF_SQL(s,
               sqlite3_prepare_v3(s->db, SELECT_CHOICE "WHERE gpu=?1 AND op=?2 AND key=?3", -1,
                                  SQLITE_PREPARE_PERSISTENT, &s->choice, NULL),
               "reading");
    }
    MF_SQL(s, sqlite3_bind_text(s->choice, 1, n.p.gpu, -1, SQLITE_STATIC), "reading");
    MF_SQL(s, sqlite3_bind_text(s->choice, 2, n.p.op, -1, SQLITE_STATIC), "reading");
    MF_SQL(s, sqlite3_bind_text(s->choice, 3, n.key, -1, SQLITE_STATIC), "reading");
    int code = sqlite3_step(s->choice);
    if (code == SQLITE_ROW) {
        if (!read_row(s->choice, &found, choice)) {
            choice[0] = '\0'; /* mf_store_check reports it */
        }
    } else if (code != SQLITE_DONE) {
        st = mf_store_fail(s, code, "reading", e);
    }
out:
    if (s->choice != NULL) {
        sqlite3_reset(s->choice);
        sqlite3_clear_bindings(s->choice);
    }
    return st;
}

mf_status mf_store_each_choice(mf_store *s, const char *gpu, mf_choice_fn fn, void *user,
                               int64_t *damaged, mf_err *e) {
    mf_status st = MF_OK;
    sqlite3_stmt *q = NULL;
    int64_t bad = 0;
    int code;
    MF_SQL(s,
           sqlite3_prepare_v2(s->db,
                              gpu != NULL ? SELECT_CHOICE "WHERE gpu=?1 ORDER BY gpu, op, key"
                                          : SELECT_CHOICE "ORDER BY gpu, op, key",
                              -1, &q, NULL),
           "reading");
    if (gpu != NULL) {
        MF_SQL(s, sqlite3_bind_text(q, 1, gpu, -1, SQLITE_STATIC), "reading");
    }
    while ((code = sqlite3_step(q)) == SQLITE_ROW) {
        mf_point p;
        char choice[MF_CHOICE_MAX];
        if (!read_row(q, &p, choice) || (gpu != NULL && strcmp(gpu, p.gpu) != 0)) {
            bad++;
        } else if (fn(&p, choice, user) != 0) {
            goto out;
        }
    }
    if (code != SQLITE_DONE) {
        st = mf_store_fail(s, code, "reading", e);
    }
out:
    sqlite3_finalize(q);
    if (damaged != NULL) {
        *damaged = bad;
    }
    return st;
}
