/* store_csv.c - measured points as CSV, in and out. */
#include "core/base/csv.h"
#include "core/base/file.h"
#include "core/base/text.h"
#include "profiles/store_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    COL_GPU,
    COL_OP,
    COL_DIMS,
    COL_TIME,
    COL_LOW,
    COL_HIGH,
    COL_SAMPLES,
    COL_VERSIONS,
    COL_DATE,
    COL_SOURCE,
    COL_HOLDOUT,
    COL_CHOICE,
    COL_ENERGY,
    COL_SUSTAINED,
    COLUMNS
};
enum { KEY_MAX = 600 };
static const char *const columns[COLUMNS] = {
    "gpu",      "op",   "dims",   "time_s",  "low_s",  "high_s",   "samples",
    "versions", "date", "source", "holdout", "choice", "energy_J", "sustained_s"};

/* --- in ------------------------------------------------------------------------------------- */

/* Reads the header: at[column] = index of its field, -1 when left out. */
static mf_status read_header(mf_csv *c, const char *name, int at[COLUMNS], mf_err *e) {
    bool more;
    for (int i = 0; i < COLUMNS; i++) {
        at[i] = -1;
    }
    mf_status st = mf_csv_next(c, &more, e);
    if (st != MF_OK) {
        return st;
    }
    if (!more) {
        return mf_err_set(e, MF_INPUT, "%s:1:1: expected a header \"gpu,op,dims,time_s,...\"",
                          name);
    }
    for (int f = 0; f < mf_csv_fields(c); f++) {
        const char *word = mf_csv_field(c, f);
        int i = 0;
        while (i < COLUMNS && strcmp(columns[i], word) != 0) {
            i++;
        }
        if (i == COLUMNS) {
            return mf_csv_fail(c, f, e,
                               "unknown column \"%.40s\"; known: gpu op dims time_s low_s high_s "
                               "samples versions date source holdout choice energy_J sustained_s",
                               word);
        }
        if (at[i] >= 0) {
            return mf_csv_fail(c, f, e, "column \"%s\" stands twice", word);
        }
        at[i] = f;
    }
    for (int i = COL_GPU; i <= COL_TIME; i++) {
        if (at[i] < 0 && (i < COL_TIME || at[COL_CHOICE] < 0)) {
            return mf_csv_fail(c, 0, e, "column \"%s\" is missing", columns[i]);
        }
    }
    return MF_OK;
}

/* A number field; an empty or absent one leaves *out alone. */
static mf_status read_number(const mf_csv *c, int at, const char *what, double *out, mf_err *e) {
    const char *text = mf_csv_field(c, at);
    if (text[0] == '\0') {
        return MF_OK;
    }
    if (!mf_text_f64(text, out)) {
        return mf_csv_fail(c, at, e, "%s: expected a number, got \"%.40s\"", what, text);
    }
    return MF_OK;
}

static mf_status read_integer(const mf_csv *c, int at, const char *what, int64_t *out, mf_err *e) {
    const char *text = mf_csv_field(c, at);
    if (text[0] != '\0' && !mf_text_i64(text, out)) {
        return mf_csv_fail(c, at, e, "%s: expected a whole number, got \"%.40s\"", what, text);
    }
    return MF_OK;
}

static mf_status read_text(const mf_csv *c, int at, const char *what, char *out, size_t size,
                           mf_err *e) {
    const char *text = mf_csv_field(c, at);
    if (strlen(text) >= size) {
        return mf_csv_fail(c, at, e, "%s: longer than %zu characters", what, size - 1);
    }
    mf_text_copy(out, size, text);
    return MF_OK;
}

/* Op and dims of the row. */
static mf_status read_key(const mf_csv *c, const int at[COLUMNS], mf_point *p, mf_err *e) {
    char text[KEY_MAX + 40];
    mf_err why;
    mf_err_clear(&why);
    const char *op = mf_csv_field(c, at[COL_OP]), *dims = mf_csv_field(c, at[COL_DIMS]);
    if (strlen(op) >= sizeof p->op || strpbrk(op, " \t") != NULL) {
        return mf_csv_fail(c, at[COL_OP], e, "op: expected the name of an op");
    }
    if (strlen(dims) >= KEY_MAX) {
        return mf_csv_fail(c, at[COL_DIMS], e, "dims: too long");
    }
    size_t length = strlen(op);
    mf_text_copy(text, sizeof text, op);
    text[length] = ' ';
    mf_text_copy(text + length + 1, sizeof text - length - 1, dims);
    if (mf_point_parse(text, p, &why) != MF_OK) {
        return mf_csv_fail(c, at[COL_DIMS], e, "%s", why.text);
    }
    return read_text(c, at[COL_GPU], "gpu", p->gpu, sizeof p->gpu, e);
}

/* checked: also whether the point may be stored. */
static mf_status read_point(const mf_csv *c, const int at[COLUMNS], bool checked, mf_point *p,
                            mf_err *e) {
    mf_err why;
    mf_err_clear(&why);
    p->time_s = 0.0;
    mf_status st = read_key(c, at, p, e);
    if (st == MF_OK && mf_csv_field(c, at[COL_TIME])[0] == '\0') {
        st = mf_csv_fail(c, at[COL_TIME], e, "time_s: expected a number, got \"\"");
    }
    st = st == MF_OK ? read_number(c, at[COL_TIME], "time_s", &p->time_s, e) : st;
    p->low_s = p->high_s = p->time_s;
    st = st == MF_OK ? read_number(c, at[COL_LOW], "low_s", &p->low_s, e) : st;
    st = st == MF_OK ? read_number(c, at[COL_HIGH], "high_s", &p->high_s, e) : st;
    st = st == MF_OK ? read_integer(c, at[COL_SAMPLES], "samples", &p->samples, e) : st;
    st = st == MF_OK ? read_integer(c, at[COL_HOLDOUT], "holdout", &p->holdout, e) : st;
    st = st == MF_OK ? read_number(c, at[COL_ENERGY], "energy_J", &p->energy_J, e) : st;
    st = st == MF_OK ? read_number(c, at[COL_SUSTAINED], "sustained_s", &p->sustained_s, e) : st;
    if (st == MF_OK) {
        st = read_text(c, at[COL_VERSIONS], "versions", p->versions, sizeof p->versions, e);
    }
    st = st == MF_OK ? read_text(c, at[COL_DATE], "date", p->date, sizeof p->date, e) : st;
    st = st == MF_OK ? read_text(c, at[COL_SOURCE], "source", p->source, sizeof p->source, e) : st;
    if (st == MF_OK && checked && mf_point_check(p, &why) != MF_OK) {
        st = mf_csv_fail(c, 0, e, "%s", why.text);
    }
    return st;
}

static const char *choice_of(const mf_csv *c, const int at[COLUMNS]) {
    return at[COL_CHOICE] >= 0 ? mf_csv_field(c, at[COL_CHOICE]) : "";
}

/* A row that says nothing but a choice. */
static bool is_choice_alone(const mf_csv *c, const int at[COLUMNS]) {
    return choice_of(c, at)[0] != '\0' &&
           (at[COL_TIME] < 0 || mf_csv_field(c, at[COL_TIME])[0] == '\0');
}

static mf_status import_row(mf_store *s, const mf_csv *c, const int at[COLUMNS], mf_point *p,
                            mf_err *e) {
    mf_err why;
    mf_status st;
    mf_err_clear(&why);
    if (is_choice_alone(c, at)) {
        st = read_key(c, at, p, e);
        st = st == MF_OK ? read_text(c, at[COL_DATE], "date", p->date, sizeof p->date, e) : st;
    } else {
        st = read_point(c, at, true, p, e);
        st = st == MF_OK ? mf_store_put(s, p, e) : st;
    }
    if (st == MF_OK && choice_of(c, at)[0] != '\0') {
        st = mf_store_put_choice(s, p, choice_of(c, at), &why);
        st = st == MF_INPUT ? mf_csv_fail(c, at[COL_CHOICE], e, "%s", why.text) : st;
    }
    return st;
}

static mf_status import_rows(mf_store *s, mf_csv *c, const char *name, int64_t *count, mf_err *e) {
    int at[COLUMNS];
    mf_status st = read_header(c, name, at, e);
    int header = mf_csv_fields(c);
    while (st == MF_OK) {
        bool more;
        mf_point p;
        st = mf_csv_next(c, &more, e);
        if (st != MF_OK || !more) {
            break;
        }
        if (mf_csv_fields(c) != header) {
            st = mf_csv_fail(c, -1, e, "expected %d fields as in the header, got %d", header,
                             mf_csv_fields(c));
            break;
        }
        st = import_row(s, c, at, &p, e);
        *count += st == MF_OK;
    }
    return st;
}

mf_status mf_store_csv_each(const char *path, mf_point_fn fn, void *user, mf_err *e) {
    int at[COLUMNS];
    mf_csv *c = NULL;
    bool more = true;
    mf_status st = mf_csv_open(path, &c, e);
    st = st == MF_OK ? read_header(c, path, at, e) : st;
    int header = st == MF_OK ? mf_csv_fields(c) : 0;
    while (st == MF_OK) {
        mf_point p;
        st = mf_csv_next(c, &more, e);
        if (st != MF_OK || !more) {
            break;
        }
        if (mf_csv_fields(c) != header) {
            st = mf_csv_fail(c, -1, e, "expected %d fields as in the header, got %d", header,
                             mf_csv_fields(c));
        } else if (!is_choice_alone(c, at)) {
            st = read_point(c, at, false, &p, e);
        } else {
            continue;
        }
        if (st == MF_OK && fn(&p, user) != 0) {
            break;
        }
    }
    mf_csv_close(c);
    return st;
}

/* Takes `c` over. */
static mf_status import(mf_store *s, mf_csv *c, const char *name, int64_t *count, mf_err *e) {
    int64_t rows = 0;
    mf_status st = mf_store_save(s, e);
    if (st == MF_OK) {
        st = mf_store_settle(s, import_rows(s, c, name, &rows, e), e);
    }
    mf_csv_close(c);
    if (count != NULL) {
        *count = st == MF_OK ? rows : 0;
    }
    return st;
}

mf_status mf_store_import_csv_text(mf_store *s, const char *name, const char *text, size_t length,
                                   int64_t *count, mf_err *e) {
    mf_csv *c;
    mf_status st = mf_csv_open_text(name, text, length, &c, e);
    return st == MF_OK ? import(s, c, name, count, e) : st;
}

mf_status mf_store_import_csv(mf_store *s, const char *path, int64_t *count, mf_err *e) {
    mf_csv *c;
    mf_status st = mf_csv_open(path, &c, e);
    return st == MF_OK ? import(s, c, path, count, e) : st;
}

/* --- out ------------------------------------------------------------------------------------ */

static void write_text(FILE *file, const char *text) {
    if (text[0] != '#' && strpbrk(text, ",\"\r\n") == NULL) {
        fputs(text, file);
        return;
    }
    fputc('"', file);
    for (; *text != '\0'; text++) {
        if (*text == '"') {
            fputc('"', file);
        }
        fputc(*text, file);
    }
    fputc('"', file);
}

typedef struct writer {
    FILE *file;
    mf_store *store;
    mf_status status;
    mf_err *e;
} writer;

static void write_key(FILE *file, const mf_point *p) {
    char text[640];
    mf_point_format(p, text, sizeof text);
    const char *dims = strchr(text, ' ');
    fprintf(file, "%s,%s,%s,", p->gpu, p->op, dims != NULL ? dims + 1 : "");
}

static int write_row(const mf_point *p, void *user) {
    writer *w = user;
    char number[3][32], choice[MF_CHOICE_MAX];
    w->status = mf_store_choice(w->store, p, choice, w->e);
    mf_text_format_f64(p->time_s, number[0], sizeof number[0]);
    mf_text_format_f64(p->low_s, number[1], sizeof number[1]);
    mf_text_format_f64(p->high_s, number[2], sizeof number[2]);
    write_key(w->file, p);
    fprintf(w->file, "%s,%s,%s,%" PRId64 ",", number[0], number[1], number[2], p->samples);
    write_text(w->file, p->versions);
    fprintf(w->file, ",%s,", p->date);
    write_text(w->file, p->source);
    fprintf(w->file, ",%" PRId64 ",", p->holdout);
    write_text(w->file, choice);
    fputc(',', w->file);
    if (p->energy_J > 0) {
        mf_text_format_f64(p->energy_J, number[0], sizeof number[0]);
        mf_text_format_f64(p->sustained_s, number[1], sizeof number[1]);
        fprintf(w->file, "%s,%s", number[0], number[1]);
    } else {
        fputc(',', w->file);
    }
    fputc('\n', w->file);
    return w->status != MF_OK || ferror(w->file);
}

/* A choice whose point the store does not have: the columns between are empty. */
static int write_choice_alone(const mf_point *p, const char *choice, void *user) {
    writer *w = user;
    bool there = false;
    w->status = mf_store_has(w->store, p, &there, w->e);
    if (w->status == MF_OK && !there) {
        write_key(w->file, p);
        fprintf(w->file, ",,,,,%s,,,", p->date);
        write_text(w->file, choice);
        fputs(",,\n", w->file);
    }
    return w->status != MF_OK || ferror(w->file);
}

mf_status mf_store_export_csv(mf_store *s, const char *path, mf_err *e) {
    mf_status st = MF_OK;
    int64_t damaged = 0, damaged_choices = 0;
    FILE *file = NULL;
    char *part = malloc(strlen(path) + 32);
    if (part == NULL) {
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
    }
    bool stays = mf_file_stays(path);
    if (stays) {
        snprintf(part, strlen(path) + 32, "%s", path);
    } else {
        snprintf(part, strlen(path) + 32, "%s.part-%ld", path, (long)getpid());
    }
    file = fopen(part, "wb");
    if (file == NULL) {
        st = mf_err_set(e, MF_IO, "%s: %s", path, strerror(errno));
        goto out;
    }
    for (int i = 0; i < COLUMNS; i++) {
        fprintf(file, "%s%s", columns[i], i + 1 < COLUMNS ? "," : "\n");
    }
    writer w = {file, s, MF_OK, e};
    st = mf_store_each(s, NULL, NULL, write_row, &w, &damaged, e);
    st = st == MF_OK ? w.status : st;
    if (st == MF_OK) {
        st = mf_store_each_choice(s, NULL, write_choice_alone, &w, &damaged_choices, e);
        st = st == MF_OK ? w.status : st;
    }
    damaged += damaged_choices;
    int failed = ferror(file);
    failed |= fclose(file);
    if (st == MF_OK && failed != 0) {
        st = mf_err_set(e, MF_IO, "%s: writing failed: %s", path, strerror(errno));
    }
    if (st == MF_OK && !stays && rename(part, path) != 0) {
        st = mf_err_set(e, MF_IO, "%s: %s", path, strerror(errno));
    }
    if (st != MF_OK) {
        if (!stays) {
            remove(part);
        }
        goto out;
    }
    if (damaged > 0) {
        st = mf_err_set(e, MF_DAMAGED,
                        "%s: damaged profile store: %" PRId64
                        " rows left out; " MF_STORE_REBUILD_HINT,
                        s->path, damaged, s->path);
    }
out:
    free(part);
    return st;
}
