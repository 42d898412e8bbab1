/* store.c - the profile store: opening and checking the SQLite file, rows in and out. */
#include "profiles/store.h"

#include "profiles/ops_table.h"
#include "profiles/store_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_MAX = 640, APPLICATION = 0x6d6f6566 /* "moef" */ };

/* The schema's own text is compared on opening: damage in it must not turn one column into another.
 */
static const char *const schema_sql[] = {
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE point (id INTEGER PRIMARY KEY, gpu TEXT NOT NULL, op TEXT NOT NULL, "
    "key TEXT NOT NULL, time_s REAL NOT NULL, low_s REAL NOT NULL, high_s REAL NOT NULL, "
    "samples INTEGER NOT NULL, versions TEXT NOT NULL, date TEXT NOT NULL, source TEXT NOT NULL, "
    "holdout INTEGER NOT NULL, checksum INTEGER NOT NULL, UNIQUE (gpu, op, key))",
};
enum { SCHEMA_OBJECTS = sizeof schema_sql / sizeof schema_sql[0] };

/* --- errors --------------------------------------------------------------------------------- */

mf_status mf_store_fail(const mf_store *s, int code, const char *what, mf_err *e) {
    const char *words = s->db != NULL ? sqlite3_errmsg(s->db) : sqlite3_errstr(code);
    switch (code & 0xff) {
    case SQLITE_NOMEM:
        return mf_err_set(e, MF_NOMEM, "%s: %s: %s", s->path, what, words);
    case SQLITE_FULL:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_INTERRUPT:
    case SQLITE_NOLFS:
        return mf_err_set(e, MF_IO, "%s: %s: %s", s->path, what, words);
    case SQLITE_IOERR:
        if (code != SQLITE_IOERR_SHORT_READ) {
            return mf_err_set(e, MF_IO, "%s: %s: %s", s->path, what, words);
        }
        break;
    default: /* CORRUPT, NOTADB, and statements that no longer fit the schema */
        break;
    }
    return mf_err_set(e, MF_DAMAGED, "%s: damaged profile store: %s: %s; %s", s->path, what, words,
                      MF_STORE_REBUILD_HINT);
}

static mf_status run(mf_store *s, const char *sql, const char *what, mf_err *e) {
    int code = sqlite3_exec(s->db, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? MF_OK : mf_store_fail(s, code, what, e);
}

/* First column of the first row as a number; 0 without a row. */
static mf_status number(mf_store *s, const char *sql, int64_t *out, mf_err *e) {
    mf_status st = MF_OK;
    sqlite3_stmt *q = NULL;
    *out = 0;
    MF_SQL(s, sqlite3_prepare_v2(s->db, sql, -1, &q, NULL), "reading");
    int code = sqlite3_step(q);
    if (code == SQLITE_ROW) {
        *out = sqlite3_column_int64(q, 0);
    } else if (code != SQLITE_DONE) {
        st = mf_store_fail(s, code, "reading", e);
    }
out:
    sqlite3_finalize(q);
    return st;
}

static mf_status damaged(const mf_store *s, mf_err *e, const char *what) {
    return mf_err_set(e, MF_DAMAGED, "%s: damaged profile store: %s; %s", s->path, what,
                      MF_STORE_REBUILD_HINT);
}

/* --- opening -------------------------------------------------------------------------------- */

/* A file is data from outside: no triggers, views or functions of its making, cells checked, and no
 * value longer than a row of ours can be. */
static mf_status harden(mf_store *s, mf_err *e) {
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_DEFENSIVE, 1, (int *)NULL);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, (int *)NULL);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, (int *)NULL);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, (int *)NULL);
    sqlite3_limit(s->db, SQLITE_LIMIT_LENGTH, 1 << 20);
    sqlite3_busy_timeout(s->db, 5000);
    return run(s, "PRAGMA cell_size_check=ON", "opening", e);
}

static mf_status create_schema(mf_store *s, int schema, mf_err *e) {
    char text[160];
    mf_status st = run(s, "BEGIN IMMEDIATE", "creating", e);
    for (int i = 0; st == MF_OK && i < SCHEMA_OBJECTS; i++) {
        st = run(s, schema_sql[i], "creating", e);
    }
    if (st == MF_OK) {
        snprintf(text, sizeof text, "INSERT INTO meta VALUES ('schema', '%d')", schema);
        st = run(s, text, "creating", e);
    }
    if (st == MF_OK) {
        snprintf(text, sizeof text, "PRAGMA application_id=%d; PRAGMA user_version=%d", APPLICATION,
                 schema);
        st = run(s, text, "creating", e);
    }
    if (st == MF_OK) {
        return run(s, "COMMIT", "creating", e);
    }
    sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return st;
}

static mf_status check_schema_text(mf_store *s, mf_err *e) {
    mf_status st = MF_OK;
    sqlite3_stmt *q = NULL;
    int seen = 0, code;
    MF_SQL(s,
           sqlite3_prepare_v2(s->db,
                              "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name",
                              -1, &q, NULL),
           "reading the schema");
    while ((code = sqlite3_step(q)) == SQLITE_ROW) {
        const char *sql = (const char *)sqlite3_column_text(q, 0);
        if (seen == SCHEMA_OBJECTS || sql == NULL || strcmp(sql, schema_sql[seen]) != 0) {
            st = damaged(s, e, "the schema is not the one of its version");
            goto out;
        }
        seen++;
    }
    if (code != SQLITE_DONE) {
        st = mf_store_fail(s, code, "reading the schema", e);
    } else if (seen != SCHEMA_OBJECTS) {
        st = damaged(s, e, "tables are missing");
    }
out:
    sqlite3_finalize(q);
    return st;
}

/* SQLite's own check of every page, cell and index entry. */
static mf_status check_pages(mf_store *s, mf_err *e) {
    mf_status st = MF_OK;
    sqlite3_stmt *q = NULL;
    MF_SQL(s, sqlite3_prepare_v2(s->db, "PRAGMA integrity_check(1)", -1, &q, NULL), "checking");
    int code = sqlite3_step(q);
    if (code != SQLITE_ROW) {
        st = mf_store_fail(s, code, "checking", e);
        goto out;
    }
    const char *verdict = (const char *)sqlite3_column_text(q, 0);
    if (verdict == NULL || strcmp(verdict, "ok") != 0) {
        char what[200];
        snprintf(what, sizeof what, "%s", verdict != NULL ? verdict : "no verdict");
        what[strcspn(what, "\r\n")] = '\0';
        st = damaged(s, e, what);
    }
out:
    sqlite3_finalize(q);
    return st;
}

/* Looks at an opened file. *old: it is a sound store of an earlier schema. */
static mf_status inspect(mf_store *s, int schema, bool *old, mf_err *e) {
    int64_t objects, application, version, written;
    *old = false;
    mf_status st = number(s, "SELECT count(*) FROM sqlite_schema", &objects, e);
    st = st == MF_OK ? number(s, "PRAGMA application_id", &application, e) : st;
    st = st == MF_OK ? number(s, "PRAGMA user_version", &version, e) : st;
    if (st != MF_OK) {
        return st;
    }
    if (objects == 0 && application == 0 && version == 0) {
        return create_schema(s, schema, e);
    }
    if (application != APPLICATION) {
        return mf_err_set(e, MF_INPUT, "%s: this database is no profile store (application id %#x)",
                          s->path, (unsigned)application);
    }
    /* The version stands twice, so that a flipped bit in one is not taken for another version. */
    st = number(s, "SELECT CAST(value AS INTEGER) FROM meta WHERE key='schema'", &written, e);
    if (st != MF_OK) {
        return st;
    }
    if (written != version) {
        return damaged(s, e, "it names two schema versions");
    }
    if (version > schema) {
        return mf_err_set(e, MF_INPUT,
                          "%s: the store has schema %" PRId64
                          ", this moefold reads up to %d: use a newer moefold, or another store",
                          s->path, version, schema);
    }
    *old = version < schema;
    st = *old ? MF_OK : check_schema_text(s, e);
    return st == MF_OK ? check_pages(s, e) : st;
}

mf_status mf_store_open_schema(const char *path, int schema, mf_store **out, mf_err *e) {
    mf_status st = MF_OK;
    bool old = false;
    *out = NULL;
    mf_store *s = calloc(1, sizeof *s);
    char *copy = malloc(strlen(path) + 1);
    if (s == NULL || copy == NULL) {
        free(s);
        free(copy);
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
    }
    s->path = memcpy(copy, path, strlen(path) + 1);
    MF_SQL(s,
           sqlite3_open_v2(path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, (char *)NULL),
           "opening");
    sqlite3_extended_result_codes(s->db, 1);
    st = harden(s, e);
    st = st == MF_OK ? inspect(s, schema, &old, e) : st;
    if (st == MF_OK && old) {
        mf_store_close(s);
        s = NULL;
        st = mf_store_rebuild(path, e);
        return st == MF_OK ? mf_store_open_schema(path, MF_STORE_SCHEMA, out, e) : st;
    }
out:
    if (st != MF_OK) {
        mf_store_close(s);
        return st;
    }
    *out = s;
    return MF_OK;
}

mf_status mf_store_open(const char *path, mf_store **out, mf_err *e) {
    return mf_store_open_schema(path, MF_STORE_SCHEMA, out, e);
}

void mf_store_close(mf_store *s) {
    if (s != NULL) {
        sqlite3_finalize(s->put);
        sqlite3_close(s->db);
        free(s->path);
        free(s);
    }
}

/* --- rows ----------------------------------------------------------------------------------- */

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

uint64_t mf_store_row_sum(const char *gpu, const char *op, const char *key, const mf_point *p) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
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
    h = (h ^ (h >> 32)) * UINT64_C(0x9e3779b97f4a7c15); /* spread the last bytes over all bits */
    return h ^ (h >> 29);
}

/* Dims of a canonical point without the op in front. */
static void format_key(const mf_point *p, char *key, size_t size) {
    char text[KEY_MAX];
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
    char key[KEY_MAX];
    mf_point p = *given;
    mf_status st = mf_point_check(&p, e);
    st = st == MF_OK ? mf_point_canonical(&p, e) : st;
    if (st != MF_OK) {
        return st;
    }
    format_key(&p, key, sizeof key);
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
    return st;
}

mf_status mf_store_begin(mf_store *s, mf_err *e) {
    return run(s, "BEGIN IMMEDIATE", "beginning", e);
}

mf_status mf_store_commit(mf_store *s, mf_err *e) {
    return run(s, "COMMIT", "committing", e);
}

mf_status mf_store_save(mf_store *s, mf_err *e) {
    return run(s, "SAVEPOINT bulk", "beginning", e);
}

mf_status mf_store_settle(mf_store *s, mf_status st, mf_err *e) {
    if (st != MF_OK) {
        sqlite3_exec(s->db, "ROLLBACK TO bulk", NULL, NULL, NULL);
        sqlite3_exec(s->db, "RELEASE bulk", NULL, NULL, NULL);
        return st;
    }
    return run(s, "RELEASE bulk", "committing", e);
}

/* Text of a column into a field of `size`; false for another type, a NUL inside or too long. */
static bool column_text(sqlite3_stmt *q, int column, char *out, size_t size) {
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

/* A row whose fields have the right types, whose checksum holds and whose point is sound. */
static bool read_row(sqlite3_stmt *q, mf_point *p) {
    char gpu[sizeof p->gpu], op[sizeof p->op], key[KEY_MAX], text[KEY_MAX + sizeof p->op];
    for (int i = 4; i <= 6; i++) {
        if (sqlite3_column_type(q, i) != SQLITE_FLOAT) {
            return false;
        }
    }
    if (!column_text(q, 1, gpu, sizeof gpu) || !column_text(q, 2, op, sizeof op) ||
        !column_text(q, 3, key, sizeof key) || sqlite3_column_type(q, 7) != SQLITE_INTEGER ||
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
    return column_text(q, 8, p->versions, sizeof p->versions) &&
           column_text(q, 9, p->date, sizeof p->date) &&
           column_text(q, 10, p->source, sizeof p->source) &&
           (uint64_t)sqlite3_column_int64(q, 12) == mf_store_row_sum(gpu, op, key, p) &&
           mf_point_check(p, NULL) == MF_OK;
}

#define SELECT_POINT                                                                               \
    "SELECT id, gpu, op, key, time_s, low_s, high_s, samples, versions, date, source, holdout, "   \
    "checksum FROM point "

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

static int count_row(const mf_point *p, void *user) {
    (void)p;
    ++*(int64_t *)user;
    return 0;
}

mf_status mf_store_check(mf_store *s, int64_t *rows, int64_t *damaged_rows, mf_err *e) {
    int64_t sound = 0, bad = 0;
    mf_status st = check_schema_text(s, e);
    st = st == MF_OK ? check_pages(s, e) : st;
    st = st == MF_OK ? mf_store_each(s, NULL, NULL, count_row, &sound, &bad, e) : st;
    if (rows != NULL) {
        *rows = sound + bad;
    }
    if (damaged_rows != NULL) {
        *damaged_rows = bad;
    }
    if (st == MF_OK && bad > 0) {
        st = mf_err_set(e, MF_DAMAGED,
                        "%s: damaged profile store: %" PRId64 " of %" PRId64
                        " rows do not check; %s",
                        s->path, bad, sound + bad, MF_STORE_REBUILD_HINT);
    }
    return st;
}
