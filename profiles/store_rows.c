/* store_rows.c - points of a store, each a row with a checksum. */
#include "profiles/store_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- sums ------------------------------------------------------------------------------------- */

static void sum_bytes(uint64_t *h, const void *bytes, size_t count) { /* FNV-1a */
    const unsigned char *p = bytes;
    for (size_t i = 0; i < count; i++) {
        *h = (*h ^ p[i]) * UINT64_C(0x100000001b3);
    }
}

static void sum_u64(uint64_t *h, uint64_t value) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(value >> (8 * i));
    }
    sum_bytes(h, bytes, sizeof bytes);
}

static void sum_text(uint64_t *h, const char *text) {
    size_t n = strlen(text);
    sum_u64(h, n);
    sum_bytes(h, text, n);
}

static void sum_f64(uint64_t *h, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    sum_u64(h, bits);
}

/* Spreads the last bytes over all bits. */
static uint64_t spread(uint64_t h) {
    h = (h ^ (h >> 32)) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ (h >> 29);
}

static const uint64_t sum_start = UINT64_C(0xcbf29ce484222325);

uint64_t mf_store_text_sum(const char *const *text, size_t n) {
    uint64_t h = sum_start;
    for (size_t i = 0; i < n; i++) {
        sum_text(&h, text[i]);
    }
    return spread(h);
}

uint64_t mf_store_row_sum(const char *gpu, const char *op, const char *key, const mf_point *p) {
    uint64_t h = sum_start;
    sum_text(&h, gpu);
    sum_text(&h, op);
    sum_text(&h, key);
    sum_f64(&h, p->time_s);
    sum_f64(&h, p->low_s);
    sum_f64(&h, p->high_s);
    sum_u64(&h, (uint64_t)p->samples);
    sum_text(&h, p->versions);
    sum_text(&h, p->date);
    sum_text(&h, p->source);
    sum_u64(&h, (uint64_t)p->holdout);
    return spread(h);
}

uint64_t mf_store_energy_sum(const char *gpu, const char *op, const char *key, const mf_point *p) {
    uint64_t h = sum_start;
    sum_text(&h, gpu);
    sum_text(&h, op);
    sum_text(&h, key);
    sum_f64(&h, p->energy_J);
    sum_f64(&h, p->sustained_s);
    return spread(h);
}

void mf_store_key(const mf_point *p, char *key, size_t size) {
    char text[MF_STORE_KEY_MAX];
    mf_point_format(p, text, sizeof text);
    const char *space = strchr(text, ' ');
    snprintf(key, size, "%s", space != NULL ? space + 1 : "");
}

mf_status mf_store_put(mf_store *s, const mf_point *given, mf_err *e) {
    static const char sql[] =
        "INSERT INTO point (gpu, op, key, time_s, low_s, high_s, samples, versions, date, source, "
        "holdout, checksum) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12) "
        "ON CONFLICT (gpu, op, key) DO UPDATE SET time_s=?4, low_s=?5, high_s=?6, samples=?7, "
        "versions=?8, date=?9, source=?10, holdout=?11, checksum=?12";
    char key[MF_STORE_KEY_MAX];
    mf_point p = *given;
    mf_status st = mf_point_check(&p, e);
    st = st == MF_OK ? mf_point_canonical(&p, e) : st;
    if (st != MF_OK) {
        return st;
    }
    mf_store_key(&p, key, sizeof key);
    if (s->put == NULL) {
        MF_SQL(s, sqlite3_prepare_v3(s->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &s->put, NULL),
               "writing");
    }
    MF_SQL(s, sqlite3_bind_text(s->put, 1, p.gpu, -1, SQLITE_STATIC), "writing");
    MF_SQL(s, sqlite3_bind_text(s->put, 2, p.op, -1, SQLITE_STATIC), "writing");
    MF_SQL(s, sqlite3_bind_text(s->put, 3, key, -1, SQLITE_STATIC), "writing");
    MF_SQL(s, sqlite3_bind_double(s->put, 4, p.time_s), "writing");
    MF_SQL(s, sqlite3_bind_double(s->put, 5, p.low_s), "writing");
    MF_SQL(s, sqlite3_bind_double(s->put, 6, p.high_s), "writing");
    MF_SQL(s, sqlite3_bind_int64(s->put, 7, p.samples), "writing");
    MF_SQL(s, sqlite3_bind_text(s->put, 8, p.versions, -1, SQLITE_STATIC), "writing");
    MF_SQL(s, sqlite3_bind_text(s->put, 9, p.date, -1, SQLITE_STATIC), "writing");
    MF_SQL(s, sqlite3_bind_text(s->put, 10, p.source, -1, SQLITE_STATIC), "writing");
    MF_SQL(s, sqlite3_bind_int64(s->put, 11, p.holdout), "writing");
    MF_SQL(s, sqlite3_bind_int64(s->put, 12, (int64_t)mf_store_row_sum(p.gpu, p.op, key, &p)),
           "writing");
    int code = sqlite3_step(s->put);
    if (code != SQLITE_DONE) {
        st = mf_store_fail(s, code, "writing", e);
    }
out:
    if (s->put != NULL) {
        sqlite3_reset(s->put);
        sqlite3_clear_bindings(s->put);
    }
    return st == MF_OK ? mf_store_put_energy(s, &p, key, e) : st;
}

/* --- reading ---------------------------------------------------------------------------------- */

bool mf_store_column_text(sqlite3_stmt *q, int column, char *out, size_t size) {
    if (sqlite3_column_type(q, column) != SQLITE_TEXT) {
        return false;
    }
    const char *text = (const char *)sqlite3_column_text(q, column);
    size_t n = (size_t)sqlite3_column_bytes(q, column);
    if (text == NULL || n >= size || memchr(text, '\0', n) != NULL) {
        return false;
    }
    memcpy(out, text, n);
    out[n] = '\0';
    return true;
}

/* The energy of a point, where there is one. */
static bool read_energy(sqlite3_stmt *q, const char *gpu, const char *op, const char *key,
                        mf_point *p) {
    if (sqlite3_column_type(q, 15) == SQLITE_NULL) {
        return true;
    }
    p->energy_J = sqlite3_column_double(q, 13);
    p->sustained_s = sqlite3_column_double(q, 14);
    return sqlite3_column_type(q, 13) == SQLITE_FLOAT &&
           sqlite3_column_type(q, 14) == SQLITE_FLOAT &&
           sqlite3_column_type(q, 15) == SQLITE_INTEGER &&
           (uint64_t)sqlite3_column_int64(q, 15) == mf_store_energy_sum(gpu, op, key, p);
}

/* A row whose fields have the right types, whose checksum holds and whose point is sound. */
static bool read_row(sqlite3_stmt *q, mf_point *p) {
    char gpu[sizeof p->gpu], op[sizeof p->op], key[MF_STORE_KEY_MAX],
        text[MF_STORE_KEY_MAX + sizeof p->op];
    for (int i = 4; i <= 6; i++) {
        if (sqlite3_column_type(q, i) != SQLITE_FLOAT) {
            return false;
        }
    }
    if (!mf_store_column_text(q, 1, gpu, sizeof gpu) ||
        !mf_store_column_text(q, 2, op, sizeof op) ||
        !mf_store_column_text(q, 3, key, sizeof key) ||
        sqlite3_column_type(q, 7) != SQLITE_INTEGER ||
        sqlite3_column_type(q, 11) != SQLITE_INTEGER ||
        sqlite3_column_type(q, 12) != SQLITE_INTEGER) {
        return false;
    }
    snprintf(text, sizeof text, "%s %s", op, key);
    if (mf_point_parse(text, p, NULL) != MF_OK) {
        return false;
    }
    snprintf(p->gpu, sizeof p->gpu, "%s", gpu);
    p->id = sqlite3_column_int64(q, 0);
    p->time_s = sqlite3_column_double(q, 4);
    p->low_s = sqlite3_column_double(q, 5);
    p->high_s = sqlite3_column_double(q, 6);
    p->samples = sqlite3_column_int64(q, 7);
    p->holdout = sqlite3_column_int64(q, 11);
    return mf_store_column_text(q, 8, p->versions, sizeof p->versions) &&
           mf_store_column_text(q, 9, p->date, sizeof p->date) &&
           mf_store_column_text(q, 10, p->source, sizeof p->source) &&
           (uint64_t)sqlite3_column_int64(q, 12) == mf_store_row_sum(gpu, op, key, p) &&
           read_energy(q, gpu, op, key, p) && mf_point_check(p, NULL) == MF_OK;
}

#define SELECT_POINT                                                                               \
    "SELECT id, gpu, op, key, time_s, low_s, high_s, samples, versions, date, source, holdout, "   \
    "point.checksum, energy_J, sustained_s, energy.checksum FROM point "                           \
    "LEFT JOIN energy USING (gpu, op, key) "

mf_status mf_store_each(mf_store *s, const char *gpu, const char *op, mf_point_fn fn, void *user,
                        int64_t *damaged_rows, mf_err *e) {
    static const char *const sql[2][2] = {
        {SELECT_POINT "ORDER BY gpu, op, key", SELECT_POINT "WHERE op=?2 ORDER BY gpu, op, key"},
        {SELECT_POINT "WHERE gpu=?1 ORDER BY gpu, op, key",
         SELECT_POINT "WHERE gpu=?1 AND op=?2 ORDER BY gpu, op, key"},
    };
    mf_status st = MF_OK;
    sqlite3_stmt *q = NULL;
    int64_t bad = 0;
    int code;
    MF_SQL(s, sqlite3_prepare_v2(s->db, sql[gpu != NULL][op != NULL], -1, &q, NULL), "reading");
    if (gpu != NULL) {
        MF_SQL(s, sqlite3_bind_text(q, 1, gpu, -1, SQLITE_STATIC), "reading");
    }
    if (op != NULL) {
        MF_SQL(s, sqlite3_bind_text(q, 2, op, -1, SQLITE_STATIC), "reading");
    }
    while ((code = sqlite3_step(q)) == SQLITE_ROW) {
        mf_point p;
        /* An index entry may lead to the wrong row: what was asked for is looked at again. */
        if (!read_row(q, &p) || (gpu != NULL && strcmp(gpu, p.gpu) != 0) ||
            (op != NULL && strcmp(op, p.op) != 0)) {
            bad++;
        } else if (fn(&p, user) != 0) {
            goto out;
        }
    }
    if (code != SQLITE_DONE) {
        st = mf_store_fail(s, code, "reading", e);
    }
out:
    sqlite3_finalize(q);
    if (damaged_rows != NULL) {
        *damaged_rows = bad;
    }
    return st;
}

typedef struct respelling {
    mf_point *row; /* [n] with their ids */
    size_t n, allocated;
    mf_status status;
    mf_err *e;
} respelling;

/* The key of a row as it is stored. */
static mf_status key_of(mf_store *s, int64_t id, char *key, size_t size, mf_err *e) {
    mf_status st = MF_OK;
    sqlite3_stmt *q = NULL;
    key[0] = '\0';
    MF_SQL(s, sqlite3_prepare_v2(s->db, "SELECT key FROM point WHERE id=?1", -1, &q, NULL),
           "reading");
    MF_SQL(s, sqlite3_bind_int64(q, 1, id), "reading");
    if (sqlite3_step(q) == SQLITE_ROW) {
        (void)mf_store_column_text(q, 0, key, size);
    }
out:
    sqlite3_finalize(q);
    return st;
}

static int collect(const mf_point *p, void *user) {
    respelling *r = user;
    if (r->n == r->allocated) {
        size_t allocated = r->allocated > 0 ? 2 * r->allocated : 256;
        mf_point *more = realloc(r->row, allocated * sizeof *more);
        if (more == NULL) {
            r->status = mf_err_set(r->e, MF_NOMEM, "store: out of memory");
            return 1;
        }
        r->row = more;
        r->allocated = allocated;
    }
    r->row[r->n++] = *p;
    return 0;
}

static mf_status respell_row(mf_store *s, const mf_point *p, mf_err *e) {
    char stored[MF_STORE_KEY_MAX], now[MF_STORE_KEY_MAX], sql[80];
    mf_status st = key_of(s, p->id, stored, sizeof stored, e);
    mf_store_key(p, now, sizeof now);
    if (st != MF_OK || strcmp(stored, now) == 0) {
        return st;
    }
    snprintf(sql, sizeof sql, "DELETE FROM point WHERE id=%lld", (long long)p->id);
    int code = sqlite3_exec(s->db, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? mf_store_put(s, p, e) : mf_store_fail(s, code, "respelling", e);
}

mf_status mf_store_respell(mf_store *s, mf_err *e) {
    respelling r = {.status = MF_OK, .e = e};
    mf_status st = mf_store_each(s, NULL, NULL, collect, &r, NULL, e);
    st = st == MF_OK ? r.status : st;
    for (size_t i = 0; st == MF_OK && i < r.n; i++) {
        st = respell_row(s, &r.row[i], e);
    }
    free(r.row);
    return st;
}

mf_status mf_store_has(mf_store *s, const mf_point *p, bool *there, mf_err *e) {
    mf_status st = MF_OK;
    sqlite3_stmt *q = NULL;
    mf_point found;
    char key[MF_STORE_KEY_MAX];
    mf_store_key(p, key, sizeof key);
    *there = false;
    MF_SQL(
        s,
        sqlite3_prepare_v2(s->db, SELECT_POINT "WHERE gpu=?1 AND op=?2 AND key=?3", -1, &q, NULL),
        "reading");
    MF_SQL(s, sqlite3_bind_text(q, 1, p->gpu, -1, SQLITE_STATIC), "reading");
    MF_SQL(s, sqlite3_bind_text(q, 2, p->op, -1, SQLITE_STATIC), "reading");
    MF_SQL(s, sqlite3_bind_text(q, 3, key, -1, SQLITE_STATIC), "reading");
    int code = sqlite3_step(q);
    if (code == SQLITE_ROW) {
        *there = read_row(q, &found);
    } else if (code != SQLITE_DONE) {
        st = mf_store_fail(s, code, "reading", e);
    }
out:
    sqlite3_finalize(q);
    return st;
}
