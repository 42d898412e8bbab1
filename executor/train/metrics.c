/* metrics.c - metrics.jsonl and the event file beside it. */
#include "executor/train/metrics.h"

#include "core/base/json.h"
#include "core/base/json_write.h"
#include "executor/train/events.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mf_metrics {
    char path[4096];
    FILE *lines;
    mf_events *events;
    mf_metrics_parts parts;
};

static mf_status failed(const mf_metrics *w, mf_err *e) {
    return mf_err_set(e, MF_IO, "%s: %s", w->path, strerror(errno));
}

static bool is_kept(const char *line, ssize_t length, int64_t last_step) {
    mf_json *doc = NULL;
    int64_t step = 0;
    bool kept =
        length > 0 && line[length - 1] == '\n' &&
        mf_json_parse("metrics", line, (size_t)length, &doc, NULL) == MF_OK &&
        mf_json_get_i64(mf_json_root(doc), "step", 1, INT64_C(1) << 52, &step, NULL) == MF_OK &&
        step <= last_step;
    mf_json_destroy(doc);
    return kept;
}

bool mf_metrics_copy_lines(FILE *old, int64_t last_step, FILE *new) {
    char *line = NULL;
    size_t allocated = 0;
    bool written = true;
    ssize_t length = 0;
    while (written && (length = getline(&line, &allocated, old)) > 0 &&
           is_kept(line, length, last_step)) {
        written = fwrite(line, 1, (size_t)length, new) == (size_t)length;
    }
    free(line);
    return written && (length >= 0 || feof(old));
}

/* Copies lines up to last_step into the file that replaces the old one. */
static mf_status keep_lines(const mf_metrics *w, int64_t last_step, mf_err *e) {
    char temporary[4112];
    FILE *old = fopen(w->path, "r");
    if (old == NULL) {
        return errno == ENOENT ? MF_OK : failed(w, e);
    }
    snprintf(temporary, sizeof temporary, "%s.tmp", w->path);
    FILE *new = fopen(temporary, "w");
    bool written = new != NULL &&mf_metrics_copy_lines(old, last_step, new);
    if (new != NULL) {
        written = fclose(new) == 0 && written;
    }
    mf_status status = written && rename(temporary, w->path) == 0 ? MF_OK : failed(w, e);
    fclose(old);
    return status;
}

mf_status mf_metrics_open(const char *folder, int64_t last_step, mf_metrics_parts parts,
                          mf_metrics **out, mf_err *e) {
    *out = NULL;
    mf_metrics *w = calloc(1, sizeof *w);
    if (w == NULL) {
        return mf_err_set(e, MF_NOMEM, "metrics: out of memory");
    }
    w->parts = parts;
    snprintf(w->path, sizeof w->path, "%s/metrics.jsonl", folder);
    mf_status status = last_step > 0 ? keep_lines(w, last_step, e) : MF_OK;
    if (status == MF_OK) {
        w->lines = fopen(w->path, last_step > 0 ? "a" : "w");
        status = w->lines != NULL ? MF_OK : failed(w, e);
    }
    status = status == MF_OK ? mf_events_open(folder, last_step + 1, &w->events, e) : status;
    if (status != MF_OK) {
        mf_metrics_close(w, NULL);
        return status;
    }
    *out = w;
    return MF_OK;
}

mf_status mf_metrics_add(mf_metrics *w, const mf_train_metrics *m, mf_err *e) {
    mf_event_scalar scalar[32];
    int count = 0;
    mf_json_writer j;
    char *text = NULL;
    size_t length = 0;
    mf_json_writer_init(&j);
    mf_json_write_object(&j, NULL, true);
    mf_json_write_i64(&j, "step", m->step);
    mf_json_write_i64(&j, "samples", m->samples);
#define ALWAYS true
#define MTP w->parts.mtp
#define Z w->parts.z
#define RANKS w->parts.ranks
#define GPU w->parts.gpu
#define X(name, part)                                                                              \
    if (part) {                                                                                    \
        mf_json_write_f64(&j, #name, m->name);                                                     \
        scalar[count++] = (mf_event_scalar){#name, m->name};                                       \
    }
    MF_METRICS_MAP(X)
#undef X
#undef Z
#undef RANKS
#undef GPU
#undef MTP
#undef ALWAYS
    mf_json_write_end(&j);
    mf_status status = mf_json_writer_finish(&j, &text, &length, e);
    if (status == MF_OK && (fwrite(text, 1, length, w->lines) != length || fflush(w->lines) != 0)) {
        status = failed(w, e);
    }
    free(text);
    return status == MF_OK ? mf_events_add(w->events, m->step, scalar, count, e) : status;
}

mf_status mf_metrics_close(mf_metrics *w, mf_err *e) {
    if (w == NULL) {
        return MF_OK;
    }
    mf_status status = MF_OK;
    if (w->lines != NULL && fclose(w->lines) != 0) {
        status = failed(w, e);
    }
    mf_status closed = mf_events_close(w->events, status == MF_OK ? e : NULL);
    free(w);
    return status == MF_OK ? closed : status;
}
