/* store.c - the profile store: opening, bringing up to date and checking the SQLite file. */
#include "profiles/store.h"

#include "profiles/store_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { APPLICATION = 0x6d6f6566 /* "moef" */ };

/* The schema's own text is compared on opening: damage in it must not turn one column into another.
 * By name, as SQLite is asked for them; `since`: the first schema that has it. */
static const struct {
    int since;
    const char *sql;
} tables[] = {
    {2, "CREATE TABLE choice (gpu TEXT NOT NULL, op TEXT NOT NULL, key TEXT NOT NULL, "
        "choice TEXT NOT NULL, date TEXT NOT NULL, checksum INTEGER NOT NULL, "
        "PRIMARY KEY (gpu, op, key)) WITHOUT ROWID"},
    {3, "CREATE TABLE energy (gpu TEXT NOT NULL, op TEXT NOT NULL, key TEXT NOT NULL, "
        "energy_J REAL NOT NULL, sustained_s REAL NOT NULL, checksum INTEGER NOT NULL, "
        "PRIMARY KEY (gpu, op, key)) WITHOUT ROWID"},
    {1, "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"},
    {1, "CREATE TABLE point (id INTEGER PRIMARY KEY, gpu TEXT NOT NULL, op TEXT NOT NULL, "
        "key TEXT NOT NULL, time_s REAL NOT NULL, low_s REAL NOT NULL, high_s REAL NOT NULL, "
        "samples INTEGER NOT NULL, versions TEXT NOT NULL, date TEXT NOT NULL, source TEXT NOT "
        "NULL, holdout INTEGER NOT NULL, checksum INTEGER NOT NULL, UNIQUE (gpu, op, key))"},
};
enum { TABLES = sizeof tables / sizeof tables[0] };

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
    return mf_err_set(e, MF_DAMAGED, "%s: damaged profile store: %s: %s; " MF_STORE_REBUILD_HINT,
                      s->path, what, words, s->path);
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
    return mf_err_set(e, MF_DAMAGED, "%s: damaged profile store: %s; " MF_STORE_REBUILD_HINT,
                      s->path, what, s->path);
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

/* Brings a database from schema `from` (0: empty) to `to`, all or nothing. */
static mf_status create_schema(mf_store *s, int from, int to, mf_err *e) {
    char text[160];
    mf_status st = run(s, "BEGIN IMMEDIATE", "creating", e);
    for (int i = 0; st == MF_OK && i < TABLES; i++) {
        if (tables[i].since > from && tables[i].since <= to) {
            st = run(s, tables[i].sql, "creating", e);
        }
    }
    if (st == MF_OK) {
        snprintf(text, sizeof text, "INSERT OR REPLACE INTO meta VALUES ('schema', '%d')", to);
        st = run(s, text, "creating", e);
    }
    if (st == MF_OK) {
        snprintf(text, sizeof text, "PRAGMA application_id=%d; PRAGMA user_version=%d", APPLICATION,
                 to);
        st = run(s, text, "creating", e);
    }
    st = st == MF_OK && from > 0 ? mf_store_respell(s, e) : st;
    if (st == MF_OK) {
        return run(s, "COMMIT", "creating", e);
    }
    sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return st;
}

static mf_status check_schema_text(mf_store *s, int schema, mf_err *e) {
    mf_status st = MF_OK;
    sqlite3_stmt *q = NULL;
    int code, seen = 0;
    MF_SQL(s,
           sqlite3_prepare_v2(s->db,
                              "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name",
                              -1, &q, NULL),
           "reading the schema");
    while ((code = sqlite3_step(q)) == SQLITE_ROW) {
        const char *sql = (const char *)sqlite3_column_text(q, 0);
        while (seen < TABLES && tables[seen].since > schema) {
            seen++;
        }
        if (seen == TABLES || sql == NULL || strcmp(sql, tables[seen].sql) != 0) {
            st = damaged(s, e, "the schema is not the one of its version");
            goto out;
        }
        seen++;
    }
    if (code != SQLITE_DONE) {
        st = mf_store_fail(s, code, "reading the schema", e);
    } else if (seen != TABLES) {
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
        const char *line = verdict != NULL ? strchr(verdict, '\n') : NULL;
        /* before what is wrong with a page stands "*** in database main ***" */
        verdict = line != NULL && strncmp(verdict, "***", 3) == 0 ? line + 1 : verdict;
        snprintf(what, sizeof what, "%s", verdict != NULL ? verdict : "no verdict");
        what[strcspn(what, "\r\n")] = '\0';
        st = damaged(s, e, what);
    }
out:
    sqlite3_finalize(q);
    return st;
}

/* Looks at an opened file, and brings an older one to this schema. */
static mf_status inspect(mf_store *s, int schema, mf_err *e) {
    int64_t objects, application, version, written;
    mf_status st = number(s, "SELECT count(*) FROM sqlite_schema", &objects, e);
    st = st == MF_OK ? number(s, "PRAGMA application_id", &application, e) : st;
    st = st == MF_OK ? number(s, "PRAGMA user_version", &version, e) : st;
    if (st != MF_OK) {
        return st;
    }
    if (objects == 0 && application == 0 && version == 0) {
        return create_schema(s, 0, schema, e);
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
    st = check_schema_text(s, (int)version, e);
    st = st == MF_OK ? check_pages(s, e) : st;
    return st == MF_OK && version < schema ? create_schema(s, (int)version, schema, e) : st;
}

mf_status mf_store_open_schema(const char *path, int schema, mf_store **out, mf_err *e) {
    mf_status st = MF_OK;
    struct stat info;
    *out = NULL;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        return mf_err_set(e, MF_INPUT, "%s: expected a file, not a %s", path,
                          S_ISDIR(info.st_mode) ? "folder" : "device or pipe");
    }
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
    st = st == MF_OK ? inspect(s, schema, e) : st;
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
        sqlite3_finalize(s->put_choice);
        sqlite3_finalize(s->choice);
        sqlite3_finalize(s->put_energy);
        sqlite3_finalize(s->drop_energy);
        sqlite3_close(s->db);
        free(s->path);
        free(s);
    }
}

/* --- transactions ----------------------------------------------------------------------------- */

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

/* --- checking --------------------------------------------------------------------------------- */

static int count_row(const mf_point *p, void *user) {
    (void)p;
    ++*(int64_t *)user;
    return 0;
}

static int count_choice(const mf_point *p, const char *choice, void *user) {
    (void)choice;
    return count_row(p, user);
}

mf_status mf_store_check(mf_store *s, int64_t *rows, int64_t *damaged_rows, mf_err *e) {
    int64_t sound = 0, bad = 0, choices = 0, bad_choices = 0;
    mf_status st = check_schema_text(s, MF_STORE_SCHEMA, e);
    st = st == MF_OK ? check_pages(s, e) : st;
    st = st == MF_OK ? mf_store_each(s, NULL, NULL, count_row, &sound, &bad, e) : st;
    st = st == MF_OK ? mf_store_each_choice(s, NULL, count_choice, &choices, &bad_choices, e) : st;
    if (rows != NULL) {
        *rows = sound + bad;
    }
    sound += choices;
    bad += bad_choices;
    if (damaged_rows != NULL) {
        *damaged_rows = bad;
    }
    if (st == MF_OK && bad > 0) {
        st = mf_err_set(e, MF_DAMAGED,
                        "%s: damaged profile store: %" PRId64 " of %" PRId64
                        " rows do not check; " MF_STORE_REBUILD_HINT,
                        s->path, bad, sound + bad, s->path);
    }
    return st;
}
