/* schedule_slices.c - reads passes back from a trace, which holds one event a line. */
#include "report/step/schedule_slices.h"

#include "core/base/json.h"

#include <stdlib.h>
#include <string.h>

typedef struct slice {
    int64_t stage, micro_batch, last, chunk;
    char pass[8];
    double start_s, end_s, waiting_s;
} slice;

typedef struct slices {
    slice *slice;
    size_t count, allocated;
} slices;

/* Thinner than this share of the step a slice is not seen. */
static const double thin = 1.0 / 1500;

/* What a stretch of several passes has for a pass. */
static const char mixed[] = "mixed";

static double number(const mf_json_value *object, const char *key) {
    double x = 0;
    const mf_json_value *v = object != NULL ? mf_json_find(object, key) : NULL;
    return v != NULL && mf_json_f64(v, -1e300, 1e300, &x, NULL) == MF_OK ? x : 0;
}

/* "F 3" of a line of the trace, or "12 passes", without the comma behind it. */
static bool read_slice(char *line, int64_t stage_ranks, slice *out) {
    mf_json *doc = NULL;
    const char *name = "";
    const bool single = strstr(line, "\"cat\":\"pass\"") != NULL;
    size_t length = strcspn(line, "\n");
    length -= length > 0 && line[length - 1] == ',';
    if ((!single && strstr(line, "\"cat\":\"passes\"") == NULL) ||
        mf_json_parse("trace", line, length, &doc, NULL) != MF_OK) {
        return false;
    }
    const mf_json_value *v = mf_json_root(doc);
    const mf_json_value *args = mf_json_find(v, "args");
    *out = (slice){.stage = (int64_t)number(v, "pid") / stage_ranks,
                   .micro_batch = (int64_t)number(args, "micro_batch"),
                   .chunk = (int64_t)number(args, "chunk"),
                   .start_s = number(v, "ts") / 1e6,
                   .end_s = (number(v, "ts") + number(v, "dur")) / 1e6};
    (void)mf_json_get_string(v, "name", &name, NULL);
    out->waiting_s = number(args, "waiting_us") / 1e6;
    out->last = single ? out->micro_batch : (int64_t)number(args, "last_micro_batch");
    snprintf(out->pass, sizeof out->pass, "%.*s", (int)strcspn(single ? name : mixed, " "),
             single ? name : mixed);
    mf_json_destroy(doc);
    return true;
}

static mf_status add(slices *all, const slice *s, mf_err *e) {
    if (all->slice == NULL || all->count == all->allocated) {
        const size_t allocated = all->allocated == 0 ? 1024 : 2 * all->allocated;
        slice *more = realloc(all->slice, allocated * sizeof *more);
        if (more == NULL) {
            return mf_err_set(e, MF_NOMEM, "out of memory");
        }
        all->slice = more;
        all->allocated = allocated;
    }
    all->slice[all->count++] = *s;
    return MF_OK;
}

static mf_status read_all(FILE *trace, int64_t stage_ranks, slices *all, mf_err *e) {
    char line[1024];
    slice s;
    mf_status status = MF_OK;
    rewind(trace);
    while (status == MF_OK && fgets(line, sizeof line, trace) != NULL) {
        if (read_slice(line, stage_ranks, &s)) {
            status = add(all, &s, e);
        }
    }
    return status;
}

static int by_stage_and_start(const void *a, const void *b) {
    const slice *x = a, *y = b;
    if (x->stage != y->stage) {
        return x->stage < y->stage ? -1 : 1;
    }
    return x->start_s < y->start_s ? -1 : x->start_s > y->start_s;
}

/* Joins neighbours that are too thin. */
static void join(slices *all, double thin_s) {
    size_t kept = 0;
    for (size_t i = 0; i < all->count; i++) {
        slice *last = kept > 0 ? &all->slice[kept - 1] : NULL;
        const slice *s = &all->slice[i];
        if (last != NULL && last->stage == s->stage && last->chunk == s->chunk &&
            strcmp(last->pass, s->pass) == 0 && strcmp(s->pass, mixed) != 0 &&
            s->end_s - last->start_s < thin_s) {
            last->end_s = s->end_s;
            last->last = s->micro_batch;
        } else {
            all->slice[kept++] = *s;
        }
    }
    all->count = kept;
}

mf_status mf_schedule_slices_write(mf_json_writer *w, FILE *trace, const mf_layout *l,
                                   double step_time_s, mf_err *e) {
    slices all = {0};
    mf_status status = read_all(trace, l->gpus / l->pp, &all, e);
    if (all.count > 0) {
        qsort(all.slice, all.count, sizeof all.slice[0], by_stage_and_start);
    }
    join(&all, thin * step_time_s);
    mf_json_write_array(w, "schedule", false);
    for (size_t i = 0; i < all.count; i++) {
        const slice *s = &all.slice[i];
        mf_json_write_object(w, NULL, true);
        mf_json_write_i64(w, "stage", s->stage);
        mf_json_write_string(w, "pass", s->pass);
        mf_json_write_i64(w, "micro_batch", s->micro_batch);
        mf_json_write_i64(w, "last_micro_batch", s->last);
        mf_json_write_i64(w, "chunk", s->chunk);
        mf_json_write_f64(w, "start_s", s->start_s);
        mf_json_write_f64(w, "end_s", s->end_s);
        if (strcmp(s->pass, mixed) == 0) {
            mf_json_write_f64(w, "waiting_s", s->waiting_s);
        }
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
    free(all.slice);
    return status;
}
