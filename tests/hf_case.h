/* hf_case.h - a Hugging Face reference of tests/data/hf, run by the executor under a layout. */
#ifndef MF_TESTS_HF_CASE_H
#define MF_TESTS_HF_CASE_H

#include "core/json.h"
#include "executor/program_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct hf_case {
    mf_model model;
    mf_layout layout;
    mf_cluster cluster;
    mf_assignment assignment;
    mf_program *program;
    mf_schedule *schedule;
    mf_comm *comm;
    mf_exec *exec;
    mf_safetensors *weights, *gradients, *batch;
    mf_json *expected;
    int64_t step; /* batch that samples come from */
    double logits_error;
} hf_case;

static inline mf_status hf_sample(void *user, int64_t index, int32_t *tokens, mf_err *e) {
    const hf_case *h = user;
    const mf_st_tensor *t = mf_safetensors_find(h->batch, "tokens");
    (void)e;
    for (int64_t i = 0; i <= h->layout.seq; i++) {
        tokens[i] = (int32_t)mf_st_get(t, (h->step * h->layout.gbs + index) * h->layout.seq + i);
    }
    return MF_OK;
}

static inline mf_status hf_open_file(const char *family, const char *name, mf_safetensors **out,
                                     mf_err *e) {
    char path[256];
    snprintf(path, sizeof path, "tests/data/hf/%s/%s", family, name);
    return mf_safetensors_open(path, out, e);
}

/* Layout: degrees as the caller set them; the rest is that of the references. */
static inline void hf_layout_init(mf_layout *l) {
    mf_layout_init(l);
    l->gpus = 1;
    l->mbs = l->gbs = 4;
    l->seq = 64;
    l->precision = MF_PREC_FP32;
    l->overlap = 0;
}

static inline mf_status hf_open(hf_case *h, const char *family, const mf_layout *l,
                                const mf_exec_options *o, mf_err *e) {
    char path[256];
    const char *no_mtp = "num_nextn_predict_layers=0"; /* transformers trains without */
    memset(h, 0, sizeof *h);
    h->layout = *l;
    snprintf(path, sizeof path, "tests/data/hf/%s/config.json", family);
    mf_status s =
        mf_model_load_with(path, &no_mtp, strcmp(family, "deepseek_v3") == 0, &h->model, e);
    snprintf(path, sizeof path, "tests/data/hf/%s/expected.json", family);
    s = s == MF_OK ? mf_json_load(path, &h->expected, e) : s;
    s = s == MF_OK ? hf_open_file(family, "model.safetensors", &h->weights, e) : s;
    s = s == MF_OK ? hf_open_file(family, "gradients.safetensors", &h->gradients, e) : s;
    s = s == MF_OK ? hf_open_file(family, "batch.safetensors", &h->batch, e) : s;
    s = s == MF_OK ? mf_cluster_load("cpu", &h->cluster, e) : s;
    h->layout.token_headroom = (double)h->layout.ep; /* the worst case, as CPU ranks take it */
    s = s == MF_OK ? mf_layout_resolve(&h->layout, &h->model, e) : s;
    s = s == MF_OK ? mf_assignment_even(&h->model, &h->layout, &h->assignment, e) : s;
    s = s == MF_OK
            ? mf_program_lower(&h->model, &h->layout, &h->cluster, &h->assignment, &h->program, e)
            : s;
    s = s == MF_OK ? mf_schedule_create(&h->layout, &h->schedule, e) : s;
    s = s == MF_OK ? mf_comm_create(&h->layout, &h->comm, e) : s;
    s = s == MF_OK ? mf_exec_create(h->program, h->schedule, h->comm, mf_exec_backend_cpu(), o,
                                    &h->exec, e)
                   : s;
    return s == MF_OK ? mf_exec_load(h->exec, h->weights, e) : s;
}

static inline void hf_close(hf_case *h) {
    mf_exec_destroy(h->exec);
    mf_comm_destroy(h->comm);
    mf_schedule_destroy(h->schedule);
    mf_program_destroy(h->program);
    mf_safetensors_close(h->weights);
    mf_safetensors_close(h->gradients);
    mf_safetensors_close(h->batch);
    mf_json_destroy(h->expected);
    memset(h, 0, sizeof *h);
}

static inline double hf_number(const mf_json_value *v, const char *key) {
    double x = NAN;
    mf_json_get_f64(v, key, -1e30, 1e30, &x, NULL);
    return x;
}

/* Adds the squared difference and size of a rectangle's elements that lie in [first, end) of the
 * parameter; got[0] is element `first`. */
static inline void hf_compare(const float *got, const mf_param *q, int64_t first, int64_t end,
                              const mf_st_tensor *want, const mf_param_piece *p, double *difference,
                              double *size) {
    bool matrix = want->dims >= 2 && want->shape[0] != 1;
    int64_t width = matrix ? want->shape[want->dims - 1] : 1;
    for (int64_t r = 0; r < p->rows; r++) {
        for (int64_t c = 0; c < p->cols; c++) {
            int64_t at = (p->at_row + r) * q->cols + p->at_col + c;
            if (at < first || at >= end) {
                continue;
            }
            double w = (double)mf_st_get(want, (p->row + r) * width + p->col + c);
            double d = (double)got[at - first] - w;
            *difference += d * d;
            *size += w * w;
        }
    }
}

/* Largest relative error of this rank's pieces of the hub's tensors, over the elements whose
 * gradients are complete here; the name of the worst. */
static inline double hf_gradient_error(hf_case *h, char worst[160], int *compared) {
    const mf_params *list = mf_exec_params(h->exec);
    mf_rank_coords at = mf_layout_coords(&h->layout, mf_comm_rank(h->comm));
    double most = 0.0;
    *compared = 0;
    for (int i = 0; i < list->count; i++) {
        const mf_param *q = &list->list[i];
        int64_t first, count;
        mf_param_piece piece;
        const float *g = mf_exec_own_gradient(h->exec, i, &first, &count);
        for (int k = 0; mf_param_piece_at(h->program, &at, q, k, &piece); k++) {
            const mf_st_tensor *want = mf_safetensors_find(h->gradients, piece.name);
            double difference = 0.0, size = 0.0, error = NAN;
            if (want != NULL) {
                hf_compare(g, q, first, first + count, want, &piece, &difference, &size);
                error = sqrt(difference) / (sqrt(size) + 1e-30);
            }
            ++*compared;
            if (!(error <= most)) {
                most = error;
                snprintf(worst, 160, "%s", piece.name);
            }
        }
    }
    return most;
}

#endif
