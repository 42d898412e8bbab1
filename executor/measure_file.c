/* measure_file.c - the CSV file that measuring appends to: what it holds already is not measured
 * again. Lines are flushed one by one, so that an interrupted run keeps all but its last point. */
#include "executor/measure_file.h"
#include "executor/measure.h"
#include "profiles/csv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_MAX = 512 };

struct mf_measure_file {
    FILE *file;
    char path[1024];
    char **key; /* [n] sorted */
    size_t n, room;
};

static int order(const void *a, const void *b) {
    const char *const *p = a, *const *q = b;
    return strcmp(*p, *q);
}

static mf_status add_key(mf_measure_file *f, const char *text, mf_err *e) {
    if (f->n == f->room) {
        size_t room = f->room > 0 ? 2 * f->room : 1024;
        char **more = realloc(f->key, room * sizeof *more);
        if (more == NULL) {
            return mf_err_set(e, MF_NOMEM, "%s: out of memory", f->path);
        }
        f->key = more;
        f->room = room;
    }
    size_t size = strlen(text) + 1;
    f->key[f->n] = malloc(size);
    if (f->key[f->n] == NULL) {
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", f->path);
    }
    memcpy(f->key[f->n++], text, size);
    return MF_OK;
}

/* Columns gpu, op and dims are the first three, as this file writes them. */
static mf_status read_keys(mf_measure_file *f, mf_err *e) {
    mf_csv *csv = NULL;
    bool more = false;
    char text[KEY_MAX], key[KEY_MAX];
    mf_point p;
    mf_status status = mf_csv_open(f->path, &csv, e);
    status = status == MF_OK ? mf_csv_next(csv, &more, e) : status; /* the header */
    if (status == MF_OK && more && strcmp(mf_csv_field(csv, 1), "op") != 0) {
        status = mf_csv_fail(csv, 1, e, "expected the header gpu,op,dims,...");
    }
    while (status == MF_OK && more) {
        status = mf_csv_next(csv, &more, e);
        if (status != MF_OK || !more) {
            break;
        }
        snprintf(text, sizeof text, "%.40s %.400s", mf_csv_field(csv, 1), mf_csv_field(csv, 2));
        status = mf_point_parse(text, &p, e);
        if (status != MF_OK) {
            mf_err_prefix(e, "%s", f->path);
            break;
        }
        mf_point_format(&p, key, sizeof key);
        status = add_key(f, key, e);
    }
    mf_csv_close(csv);
    qsort(f->key, f->n, sizeof *f->key, order);
    return status;
}

mf_status mf_measure_file_open(const char *path, mf_measure_file **out, mf_err *e) {
    mf_status status = MF_OK;
    mf_measure_file *f = calloc(1, sizeof *f);
    *out = NULL;
    if (f == NULL) {
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
    }
    snprintf(f->path, sizeof f->path, "%s", path);
    FILE *there = fopen(path, "r");
    if (there != NULL) {
        fclose(there);
        status = read_keys(f, e);
    }
    if (status == MF_OK) {
        f->file = fopen(path, "a");
        status = f->file != NULL ? MF_OK : mf_err_set(e, MF_IO, "%s: %s", path, strerror(errno));
    }
    if (status == MF_OK && there == NULL) {
        fputs("gpu,op,dims,time_s,low_s,high_s,samples,versions,date,source,holdout\n", f->file);
    }
    if (status != MF_OK) {
        mf_measure_file_close(f);
        return status;
    }
    *out = f;
    return MF_OK;
}

bool mf_measure_file_has(const mf_measure_file *f, const mf_point *p) {
    char key[KEY_MAX], *text = key;
    mf_point_format(p, key, sizeof key);
    return f->n > 0 && bsearch(&text, f->key, f->n, sizeof *f->key, order) != NULL;
}

mf_status mf_measure_file_append(mf_measure_file *f, const mf_point *p, mf_err *e) {
    char key[KEY_MAX];
    mf_point_format(p, key, sizeof key);
    const char *dims = strchr(key, ' ');
    fprintf(f->file, "%s,%s,%s,%.6g,%.6g,%.6g,%lld,%s,%s,\"%s\",%lld\n", p->gpu, p->op,
            dims != NULL ? dims + 1 : "", p->time_s, p->low_s, p->high_s, (long long)p->samples,
            p->versions, p->date, p->source, (long long)p->holdout);
    return fflush(f->file) == 0 ? MF_OK : mf_err_set(e, MF_IO, "%s: %s", f->path, strerror(errno));
}

void mf_measure_file_close(mf_measure_file *f) {
    if (f == NULL) {
        return;
    }
    if (f->file != NULL) {
        fclose(f->file);
    }
    for (size_t i = 0; i < f->n; i++) {
        free(f->key[i]);
    }
    free(f->key);
    free(f);
}
