/* store_energy.c - the energy of points where it was measured: a row beside theirs. */
#include "profiles/store_private.h"

static mf_status bind_names(mf_store *s, sqlite3_stmt *q, const mf_point *p, const char *key,
                            mf_err *e) {
    const char *const text[] = {p->gpu, p->op, key};
    mf_status st = MF_OK;
    for (int i = 0; i < 3; i++) {
        MF_SQL(s, sqlite3_bind_text(q, i + 1, text[i], -1, SQLITE_STATIC), "writing");
    }
out:
    return st;
}

/* Runs a prepared statement; prepares it on first use. */
static mf_status run_prepared(mf_store *s, sqlite3_stmt **q, const char *sql, const mf_point *p,
                              const char *key, mf_err *e) {
    mf_status st = MF_OK;
    if (*q == NULL) {
        MF_SQL(s, sqlite3_prepare_v3(s->db, sql, -1, SQLITE_PREPARE_PERSISTENT, q, NULL),
               "writing");
    }
    st = bind_names(s, *q, p, key, e);
    if (st == MF_OK && p->energy_J > 0) {
        MF_SQL(s, sqlite3_bind_double(*q, 4, p->energy_J), "writing");
        MF_SQL(s, sqlite3_bind_double(*q, 5, p->sustained_s), "writing");
        MF_SQL(s, sqlite3_bind_int64(*q, 6, (int64_t)mf_store_energy_sum(p->gpu, p->op, key, p)),
               "writing");
    }
    if (st == MF_OK) {
        int code = sqlite3_step(*q);
        st = code == SQLITE_DONE ? MF_OK : mf_store_fail(s, code, "writing", e);
    }
out:
    if (*q != NULL) {
        sqlite3_reset(*q);
        sqlite3_clear_bindings(*q);
    }
    return st;
}

mf_status mf_store_put_energy(mf_store *s, const mf_point *p, const char *key, mf_err *e) {
    static const char put[] = "INSERT OR REPLACE INTO energy (gpu, op, key, energy_J, sustained_s, "
                              "checksum) VALUES (?1,?2,?3,?4,?5,?6)";
    static const char drop[] = "DELETE FROM energy WHERE gpu=?1 AND op=?2 AND key=?3";
    return p->energy_J > 0 ? run_prepared(s, &s->put_energy, put, p, key, e)
                           : run_prepared(s, &s->drop_energy, drop, p, key, e);
}
