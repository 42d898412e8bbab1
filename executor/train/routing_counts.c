/* routing_counts.c - routing.csv. */
#include "executor/train/routing_counts.h"

#include "executor/files/files.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_B = 4096, EACH = 256, NUMBER_B = 24, HEAD_B = 128 };

struct mf_routing_counts {
    char path[PATH_B];
    int64_t positions, experts;
    int64_t steps, own; /* since the file was written; in all */
    int64_t last;       /* step */
    double sum[];       /* [positions * experts] */
};

mf_status mf_routing_counts_open(const char *folder, int64_t positions, int64_t experts,
                                 mf_routing_counts **out, mf_err *e) {
    *out = NULL;
    if (experts <= 0) {
        return MF_OK;
    }
    size_t counts = (size_t)(positions * experts);
    mf_routing_counts *c = calloc(1, sizeof *c + counts * sizeof *c->sum);
    if (c == NULL) {
        return mf_err_set(e, MF_NOMEM, "routing.csv: out of memory");
    }
    c->positions = positions;
    c->experts = experts;
    if (!mf_path_join(c->path, sizeof c->path, folder, "routing.csv", NULL)) {
        free(c);
        return mf_err_set(e, MF_IO, "%s: the path is too long", folder);
    }
    *out = c;
    return MF_OK;
}

/* Layers without experts have no rows. */
static bool routes(const mf_routing_counts *c, int64_t position) {
    for (int64_t k = 0; k < c->experts; k++) {
        if (c->sum[position * c->experts + k] > 0) {
            return true;
        }
    }
    return false;
}

static size_t format(const mf_routing_counts *c, char *text, size_t size) {
    const long long last = c->last, first = last - c->steps + 1;
    size_t n = (size_t)snprintf(text, size,
                                "# rows of each expert, one line a MoE layer: means of steps %lld "
                                "to %lld\n",
                                first, last);
    for (int64_t i = 0; i < c->positions; i++) {
        for (int64_t k = 0; routes(c, i) && k < c->experts; k++) {
            n += (size_t)snprintf(text + n, size - n, "%.1f%c",
                                  c->sum[i * c->experts + k] / (double)c->steps,
                                  k + 1 < c->experts ? ',' : '\n');
        }
    }
    return n;
}

static mf_status write_counts(mf_routing_counts *c, mf_err *e) {
    size_t counts = (size_t)(c->positions * c->experts), size = HEAD_B + counts * NUMBER_B;
    char *text = malloc(size);
    if (text == NULL) {
        return mf_err_set(e, MF_NOMEM, "routing.csv: out of memory");
    }
    mf_status status = mf_file_write(c->path, text, format(c, text, size), e);
    free(text);
    c->steps = 0;
    memset(c->sum, 0, counts * sizeof *c->sum);
    return status;
}

mf_status mf_routing_counts_add(mf_routing_counts *c, int64_t step, const double *rows, mf_err *e) {
    for (int64_t i = 0; i < c->positions * c->experts; i++) {
        c->sum[i] += rows[i];
    }
    c->steps++;
    c->own++;
    c->last = step;
    bool due = c->own < EACH ? (c->own & (c->own - 1)) == 0 : c->own % EACH == 0;
    return due ? write_counts(c, e) : MF_OK;
}

mf_status mf_routing_counts_close(mf_routing_counts *c, bool write, mf_err *e) {
    mf_status status = c != NULL && c->steps > 0 && write ? write_counts(c, e) : MF_OK;
    free(c);
    return status;
}
