/* nccl_tests.c - importing nccl-tests results: what both formats have in common. */
#include "profiles/nccl_tests.h"

#include "core/base/text.h"
#include "profiles/ops_table.h"
#include "profiles/store_private.h"

#include "core/base/file.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Programs of nccl-tests; op NULL = it measures none of ours. A name that another one contains
 * stands behind it. */
static const struct {
    const char *program, *op;
} programs[] = {
    {"all_reduce_perf", "all_reduce"},
    {"all_gather_perf", "all_gather"},
    {"reduce_scatter_perf", "reduce_scatter"},
    {"alltoall_perf", "all_to_all"},
    {"sendrecv_perf", "send_recv"},
    {"alltoallv_perf", NULL},
    {"broadcast_perf", NULL},
    {"hypercube_perf", NULL},
    {"gather_perf", NULL},
    {"scatter_perf", NULL},
    {"reduce_perf", NULL},
};

mf_status mf_nccl_name_program(mf_nccl_run *run, const char *text, mf_err *e) {
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        if (strstr(text, programs[i].program) == NULL) {
            continue;
        }
        if (programs[i].op == NULL) {
            return mf_err_set(e, MF_INPUT, "%s measures none of the ops that the store holds",
                              programs[i].program);
        }
        if (run->op != NULL && strcmp(run->op, programs[i].op) != 0) {
            return mf_err_set(e, MF_INPUT,
                              "results of both %s and %s: import one collective at a time", run->op,
                              programs[i].op);
        }
        run->op = programs[i].op;
        return MF_OK;
    }
    return MF_OK;
}

static bool stands_alone(const char *text, const char *at, size_t length) {
    bool before = at > text && isalpha((unsigned char)at[-1]);
    return !before && !isalpha((unsigned char)at[length]);
}

void mf_nccl_name_file(mf_nccl_run *run, const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    for (size_t i = 0; i < sizeof programs / sizeof programs[0] && run->op == NULL; i++) {
        char word[32];
        size_t length = strlen(programs[i].program) - strlen("_perf");
        snprintf(word, sizeof word, "%.*s", (int)length, programs[i].program);
        const char *at = strstr(name, word);
        if (at != NULL && stands_alone(name, at, length)) {
            run->op = programs[i].op;
        }
    }
}

void mf_nccl_name_version(mf_nccl_run *run, int64_t code) {
    if (code >= 20900 && code < 1000000) { /* 2.9 and newer: 10000 x major + 100 x minor + patch */
        snprintf(run->versions, sizeof run->versions, "nccl=%d.%d.%d", (int)(code / 10000),
                 (int)(code / 100 % 100), (int)(code % 100));
    }
}

/* size, time and the two bandwidths say the same thing three times: a truncated or mangled row, or
 * another collective or rank count than assumed, shows here. */
static mf_status check_result(const mf_nccl_run *run, double size_B, const mf_nccl_result *r,
                              mf_err *e) {
    if (!(r->time_us > 0.0 && isfinite(r->time_us))) {
        return mf_err_set(e, MF_INPUT, "expected a time > 0, got %g us", r->time_us);
    }
    if (r->wrong > 0.0) {
        return mf_err_set(e, MF_INPUT, "%g wrong results: this run is not to be trusted", r->wrong);
    }
    double algbw = size_B / r->time_us / 1e3; /* bytes per us -> GB/s */
    double slack = 0.011 + algbw * (0.01 + 0.006 / r->time_us);
    if (!(fabs(algbw - r->algbw_GBps) <= slack)) {
        return mf_err_set(
            e, MF_INPUT,
            "%.0f bytes in %g us are %.2f GB/s, but algbw says %g: is the row truncated?", size_B,
            r->time_us, algbw, r->algbw_GBps);
    }
    double factor = mf_op_busbw_factor(run->op, (double)run->ranks);
    if (r->algbw_GBps >= 10.0 && !(fabs(r->busbw_GBps / r->algbw_GBps - factor) <= 0.01 * factor)) {
        return mf_err_set(e, MF_INPUT,
                          "busbw over algbw is %.3f, but %s over %" PRId64 " ranks has %.3f",
                          r->busbw_GBps / r->algbw_GBps, run->op, run->ranks, factor);
    }
    return MF_OK;
}

mf_status mf_nccl_add_row(mf_nccl_run *run, double size_B, const char *type, const char *redop,
                          const mf_nccl_result half[2], mf_err *e) {
    if (run->type[0] == '\0') {
        snprintf(run->type, sizeof run->type, "%s", type);
        snprintf(run->redop, sizeof run->redop, "%s", redop);
    }
    if (strcmp(run->type, type) != 0 || strcmp(run->redop, redop) != 0 || size_B < 1.0) {
        return MF_OK; /* sizes below one element per rank are printed as 0 */
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        const mf_nccl_result *r = &half[in_place];
        if (!r->present) {
            continue;
        }
        mf_status st = check_result(run, size_B, r, e);
        if (st != MF_OK) {
            return st;
        }
        mf_point p;
        mf_point_init(&p, run->gpu, run->op);
        mf_point_set_i64(&p, "bytes", (int64_t)size_B);
        mf_point_set_i64(&p, "ranks", run->ranks);
        mf_point_set_i64(&p, "nodes", run->nodes);
        mf_point_set_i64(&p, "inplace", in_place);
        mf_point_set(&p, "algo", run->algo[0] != '\0' ? run->algo : "auto");
        p.time_s = p.low_s = p.high_s = r->time_us * 1e-6;
        p.samples = run->samples;
        snprintf(p.versions, sizeof p.versions, "%s", run->versions);
        snprintf(p.date, sizeof p.date, "%s", run->date);
        const char *base = strrchr(run->name, '/');
        base = base != NULL ? base + 1 : run->name;
        if (mf_text_is_clean(base, strlen(base))) {
            snprintf(p.source, sizeof p.source, "nccl-tests: %.140s", base);
        } else {
            snprintf(p.source, sizeof p.source, "nccl-tests");
        }
        st = mf_store_put(run->store, &p, e);
        if (st != MF_OK) {
            return st;
        }
        run->points++;
    }
    return MF_OK;
}

/* What must be known before the first row. */
static mf_status import(mf_nccl_run *run, const char *text, size_t length, mf_err *e) {
    size_t at = 0;
    while (at < length && strchr(" \t\r\n", text[at]) != NULL && text[at] != '\0') {
        at++;
    }
    mf_status st = at < length && text[at] == '{' ? mf_nccl_read_json(run, text, length, e)
                                                  : mf_nccl_read_text(run, text, length, e);
    if (st == MF_OK && run->points == 0) {
        st = mf_err_set(e, MF_INPUT, "%s: no result rows of nccl-tests found", run->name);
    }
    return st;
}

mf_status mf_store_import_nccl_tests_text(mf_store *s, const char *name, const char *text,
                                          size_t length, const char *gpu, int64_t nodes,
                                          int64_t *count, mf_err *e) {
    mf_nccl_run run = {.store = s, .name = name, .gpu = gpu, .nodes = nodes};
    mf_status st = mf_store_save(s, e);
    if (st == MF_OK) {
        st = mf_store_settle(s, import(&run, text, length, e), e);
    }
    if (count != NULL) {
        *count = st == MF_OK ? run.points : 0;
    }
    return st;
}

mf_status mf_store_import_nccl_tests(mf_store *s, const char *path, const char *gpu, int64_t nodes,
                                     int64_t *count, mf_err *e) {
    char *text;
    size_t length;
    mf_status st = mf_file_load(path, MF_TEXT_MAX_BYTES, &text, &length, e);
    if (st == MF_OK) {
        st = mf_store_import_nccl_tests_text(s, path, text, length, gpu, nodes, count, e);
        free(text);
    }
    return st;
}
