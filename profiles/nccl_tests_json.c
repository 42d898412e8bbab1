/* nccl_tests_json.c - the JSON that nccl-tests writes with -J (file versions 1 to 3). */
#include "core/base/json.h"
#include "profiles/nccl_tests.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_NUMBER (INT64_C(1) << 53)

/* Prefixes a failure that has no position yet with the one of v. */
static mf_status at_value(const mf_json_value *v, mf_status st, const mf_err *why, mf_err *e) {
    return st == MF_INPUT ? mf_json_fail(v, e, "%s", why->text)
                          : mf_err_set(e, st, "%s", why->text);
}

/* The program is argv[0]; NCCL_ALGO of the environment fixes the algorithm. */
static mf_status read_command(mf_nccl_run *run, const mf_json_value *root, mf_err *e) {
    const mf_json_value *args = mf_json_find(root, "args"), *env = mf_json_find(root, "env");
    const char *text;
    mf_err why;
    mf_err_clear(&why);
    if (args != NULL && mf_json_value_type(args) == MF_JSON_ARRAY && mf_json_size(args) > 0 &&
        mf_json_string(mf_json_at(args, 0), &text, NULL) == MF_OK) {
        mf_status st = mf_nccl_name_program(run, text, &why);
        if (st != MF_OK) {
            return at_value(mf_json_at(args, 0), st, &why, e);
        }
    }
    size_t count = env != NULL && mf_json_value_type(env) == MF_JSON_ARRAY ? mf_json_size(env) : 0;
    for (size_t i = 0; i < count; i++) {
        static const char *const algos[] = {"ring", "tree", "nvls", "nvlstree", "pat"};
        if (mf_json_string(mf_json_at(env, i), &text, NULL) != MF_OK ||
            strncmp(text, "NCCL_ALGO=", 10) != 0) {
            continue;
        }
        for (size_t a = 0; a < sizeof algos / sizeof algos[0]; a++) {
            size_t k = 0;
            while (algos[a][k] != '\0' && tolower((unsigned char)text[10 + k]) == algos[a][k]) {
                k++;
            }
            if (algos[a][k] == '\0' && text[10 + k] == '\0') {
                snprintf(run->algo, sizeof run->algo, "%s", algos[a]);
            }
        }
    }
    return MF_OK;
}

/* `devices` lists one entry per process; each drives nthreads x ngpus ranks. */
static mf_status read_config(mf_nccl_run *run, const mf_json_value *root, mf_err *e) {
    int64_t threads = 1, gpus = 1, nodes = 0;
    const mf_json_value *config = mf_json_find(root, "config"), *devices = NULL;
    if (config == NULL) {
        return mf_json_fail(root, e, "\"config\" is missing: is this the output of nccl-tests -J?");
    }
    mf_status st = mf_json_want(config, MF_JSON_OBJECT, e);
    st = st == MF_OK ? mf_json_opt_i64(config, "nthreads", 1, 65536, &threads, e) : st;
    st = st == MF_OK ? mf_json_opt_i64(config, "ngpus", 1, 65536, &gpus, e) : st;
    if (st == MF_OK) {
        st = mf_json_opt_i64(config, "iterations", 0, INT64_C(1) << 40, &run->samples, e);
    }
    if (st == MF_OK && (devices = mf_json_find(config, "devices")) == NULL) {
        st = mf_json_fail(config, e, "\"devices\" is missing");
    }
    st = st == MF_OK ? mf_json_want(devices, MF_JSON_ARRAY, e) : st;
    if (st != MF_OK) {
        return st;
    }
    const char *last = "", *host;
    for (size_t i = 0; i < mf_json_size(devices); i++) {
        const mf_json_value *device = mf_json_at(devices, i);
        int64_t group = 0;
        st = mf_json_want(device, MF_JSON_OBJECT, e);
        st =
            st == MF_OK ? mf_json_opt_i64(device, "group", -MAX_NUMBER, MAX_NUMBER, &group, e) : st;
        if (st != MF_OK) {
            return st;
        }
        if (group != 0) {
            return mf_json_fail(device, e, "a run split into groups cannot be imported");
        }
        host = "";
        st = mf_json_opt_string(device, "hostname", &host, e);
        if (st != MF_OK) {
            return st;
        }
        nodes += i == 0 || strcmp(host, last) != 0; /* ranks of a host stand together */
        last = host;
    }
    run->ranks = (int64_t)mf_json_size(devices) * threads * gpus;
    run->nodes = run->nodes > 0 ? run->nodes : nodes;
    return run->ranks > 0 ? MF_OK : mf_json_fail(devices, e, "no devices");
}

static mf_status read_half(const mf_json_value *row, const char *key, mf_nccl_result *out,
                           mf_err *e) {
    const mf_json_value *v = mf_json_find(row, key), *wrong;
    *out = (mf_nccl_result){.wrong = (double)NAN};
    if (v == NULL || mf_json_value_type(v) == MF_JSON_NULL) {
        return MF_OK;
    }
    mf_status st = mf_json_want(v, MF_JSON_OBJECT, e);
    if (st == MF_OK && mf_json_find(v, "cpu_time") != NULL) {
        st = mf_json_fail(v, e, "CPU times (-C) are no times of the collective");
    }
    st = st == MF_OK ? mf_json_get_f64(v, "time", 0.0, 1e12, &out->time_us, e) : st;
    st = st == MF_OK ? mf_json_get_f64(v, "alg_bw", 0.0, 1e9, &out->algbw_GBps, e) : st;
    st = st == MF_OK ? mf_json_get_f64(v, "bus_bw", 0.0, 1e9, &out->busbw_GBps, e) : st;
    wrong = mf_json_find(v, "nwrong");
    if (st == MF_OK && wrong != NULL && mf_json_value_type(wrong) != MF_JSON_NULL) {
        st = mf_json_f64(wrong, 0.0, 1e300, &out->wrong, e);
    }
    out->present = st == MF_OK;
    return st;
}

static mf_status read_row(mf_nccl_run *run, const mf_json_value *row, mf_err *e) {
    int64_t size;
    const char *type = "", *redop = "";
    mf_nccl_result half[2];
    mf_err why;
    mf_err_clear(&why);
    mf_status st = mf_json_want(row, MF_JSON_OBJECT, e);
    st = st == MF_OK ? mf_json_get_i64(row, "size", 0, INT64_C(1) << 53, &size, e) : st;
    st = st == MF_OK ? mf_json_opt_string(row, "type", &type, e) : st;
    st = st == MF_OK ? mf_json_opt_string(row, "redop", &redop, e) : st;
    st = st == MF_OK ? read_half(row, "out_of_place", &half[0], e) : st;
    st = st == MF_OK ? read_half(row, "in_place", &half[1], e) : st;
    if (st != MF_OK) {
        return st;
    }
    st = mf_nccl_add_row(run, (double)size, type, redop, half, &why);
    return st == MF_OK ? MF_OK : at_value(row, st, &why, e);
}

static mf_status read_document(mf_nccl_run *run, const mf_json_value *root, mf_err *e) {
    const char *start = "";
    int64_t version = 0;
    mf_status st = mf_json_want(root, MF_JSON_OBJECT, e);
    st = st == MF_OK ? read_command(run, root, e) : st;
    st = st == MF_OK ? mf_json_opt_i64(root, "nccl_version", 0, 1 << 30, &version, e) : st;
    st = st == MF_OK ? mf_json_opt_string(root, "start_time", &start, e) : st;
    st = st == MF_OK ? read_config(run, root, e) : st;
    if (st != MF_OK) {
        return st;
    }
    mf_nccl_name_version(run, version);
    if (strlen(start) >= 10 && start[4] == '-' && start[7] == '-') {
        snprintf(run->date, sizeof run->date, "%.10s", start);
    }
    if (run->op == NULL) {
        st = mf_nccl_name_program(run, run->name, e);
    }
    if (st == MF_OK && run->op == NULL) {
        st = mf_json_fail(root, e, "\"args\" does not name a program such as all_reduce_perf");
    }
    const mf_json_value *results = mf_json_find(root, "results");
    if (st == MF_OK && results == NULL) {
        st = mf_json_fail(root, e, "\"results\" is missing");
    }
    st = st == MF_OK ? mf_json_want(results, MF_JSON_ARRAY, e) : st;
    for (size_t i = 0; st == MF_OK && i < mf_json_size(results); i++) {
        st = read_row(run, mf_json_at(results, i), e);
    }
    return st;
}

mf_status mf_nccl_read_json(mf_nccl_run *run, const char *text, size_t length, mf_err *e) {
    mf_json *doc;
    mf_status st = mf_json_parse(run->name, text, length, &doc, e);
    if (st == MF_OK) {
        st = read_document(run, mf_json_root(doc), e);
        mf_json_destroy(doc);
    }
    return st;
}
