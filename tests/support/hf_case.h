/* hf_case.h - a Hugging Face reference of tests/data/hf, run by the executor under a layout. */
#ifndef MF_TESTS_HF_CASE_H
#define MF_TESTS_HF_CASE_H

#include "core/base/json.h"
#include "tests/support/account.h"

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
    /* What hf_watch sees: */
    account account;
    double nearest;        /* least distance between a chosen expert and another */
    double nearest_biased; /* the same of sigmoids and selection biases, by what chooses */
    int64_t micro_batch;   /* of the next logits */
    double logits_square;  /* of the differences, this rank's part */
    double logits_count;   /* compared */
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

/* `cost`: for hf_watch's account of ops; NULL: it is not used. */
static inline mf_status hf_open(hf_case *h, const char *family, const mf_layout *l,
                                const mf_exec_options *o, const mf_cost *cost, mf_err *e) {
    char path[256];
    const char *no_mtp = "num_nextn_predict_layers=0"; /* transformers trains without */
    memset(h, 0, sizeof *h);
    h->layout = *l;
    h->nearest = h->nearest_biased = 1.0;
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
    s = s == MF_OK
            ? mf_exec_create(h->program, h->schedule, h->comm, mf_device_cpu(), o, &h->exec, e)
            : s;
    if (s == MF_OK && cost != NULL) {
        account_open(&h->account, h->program, h->schedule, h->exec, h->comm, cost);
    }
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

/* --- looking on ---------------------------------------------------------------------------------
 */

/* What an expert is chosen by: of a softmax alone the logit will do. */
static inline double hf_choice_score(const mf_exec_op *op, const float *logits, int64_t i) {
    const mf_model *m = op->env->model;
    const float *bias = op->env->correction_bias;
    double score = (double)logits[i], sum = 0.0;
    if (m->router_score == MF_ROUTER_SIGMOID) {
        score = 1.0 / (1.0 + exp(-score));
    } else if (m->correction_bias) {
        for (int64_t k = 0; k < m->experts; k++) {
            sum += exp((double)logits[k] - score);
        }
        score = 1.0 / sum;
    }
    return m->correction_bias && bias != NULL ? score + (double)bias[i] : score;
}

/* Distance between the last chosen and the first other of this op's rows; groups are not looked
 * at. */
static inline void hf_find_ties(hf_case *h, const mf_exec_op *op) {
    const mf_model *m = op->env->model;
    bool plain = m->router_score == MF_ROUTER_SOFTMAX && !m->correction_bias;
    bool biased = m->router_score == MF_ROUTER_SIGMOID || m->router_score == MF_ROUTER_SOFTMAX;
    double *nearest = plain ? &h->nearest : &h->nearest_biased;
    if (op->block == NULL || op->op->kind != MF_OP_ROUTER_FWD || op->op->pass != MF_PASS_F ||
        !(plain || biased) || m->n_group > 1) {
        return;
    }
    const int32_t *choice = op->out[0].data;
    for (int64_t r = 0; r < op->in[0].rows; r++) {
        const float *logits = (const float *)op->in[0].data + r * m->experts;
        double last = (double)INFINITY, other = -(double)INFINITY;
        for (int64_t i = 0; i < m->experts; i++) {
            bool chosen = false;
            for (int64_t k = 0; k < m->top_k; k++) {
                chosen |= choice[r * m->top_k + k] == (int32_t)i;
            }
            double score = hf_choice_score(op, logits, i);
            last = chosen ? fmin(last, score) : last;
            other = chosen ? other : fmax(other, score);
        }
        *nearest = fmin(*nearest, last - other);
    }
}

/* Logits of the first step: rows of this rank's CP part of a micro-batch, columns of its TP part of
 * the vocabulary. Whose rows they are goes by the micro-batch's number; tokens have to agree. */
static inline void hf_compare_logits(hf_case *h, const mf_exec_op *op) {
    const mf_layout *l = &h->layout;
    if (h->step != 0 || op->op->pass != MF_PASS_F || strcmp(op->op->name, "lm_head") != 0 ||
        op->op->piece + 1 < op->op->pieces) {
        return;
    }
    const mf_st_tensor *want = mf_safetensors_find(h->batch, "logits");
    const mf_st_tensor *tokens = mf_safetensors_find(h->batch, "tokens");
    int64_t local = l->seq / l->cp, vocab = h->model.vocab, width = op->out[0].cols;
    int64_t first = (h->micro_batch++ * l->dp + op->env->at.d) * l->mbs;
    for (int64_t r = 0; r < l->mbs * local; r++) {
        int64_t row = (first + r / local) * l->seq + op->env->position[r];
        if (op->env->token[r] != (int32_t)mf_st_get(tokens, row)) {
            h->logits_square = (double)INFINITY;
        }
        for (int64_t c = 0; c < width && op->env->at.t * width + c < vocab; c++) {
            double w = (double)mf_st_get(want, row * vocab + op->env->at.t * width + c);
            double d = (double)((const float *)op->out[0].data)[r * width + c] - w;
            h->logits_square += d * d;
            h->logits_count += 1.0;
        }
    }
}

/* After every op, with the case as `user`. */
static inline void hf_watch(void *user, const mf_exec_op *op) {
    hf_case *h = user;
    account_look(&h->account, op);
    hf_find_ties(h, op);
    hf_compare_logits(h, op);
}

/* Relative error of all logits of the first step; INFINITY unless each was compared once.
 * Collective. */
static inline double hf_logits_error(hf_case *h) {
    const mf_st_tensor *want = mf_safetensors_find(h->batch, "logits");
    double sums[2] = {h->logits_square, h->logits_count}, size = 0.0;
    if (mf_comm_all_reduce(h->comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_SUM, sums, 2, NULL) !=
            MF_OK ||
        sums[1] != (double)want->count || isnan(sums[0])) {
        return (double)INFINITY;
    }
    for (int64_t i = 0; i < want->count; i++) {
        size += (double)mf_st_get(want, i) * (double)mf_st_get(want, i);
    }
    return sqrt(sums[0] / size);
}

/* Largest relative error of an MoE layer's auxiliary loss; INFINITY unless the reference has as
 * many as the model has MoE layers, or none at all (dense). Routers with a selection bias or
 * sigmoids are left out: transformers counts choices for them that the model does not make. */
static inline double hf_aux_error(const hf_case *h, const mf_exec_result *r) {
    const mf_json_value *aux = mf_json_find(mf_json_root(h->expected), "aux_per_layer");
    int64_t layers = 0, listed = (int64_t)mf_json_size(aux), seen = 0;
    bool softmax = h->model.router_score == MF_ROUTER_SOFTMAX ||
                   h->model.router_score == MF_ROUTER_TOPK_SOFTMAX;
    bool has_aux = h->model.experts > 0 && softmax && !h->model.correction_bias;
    double most = 0.0;
    const mf_json_value *steps = mf_json_find(mf_json_root(h->expected), "adamw");
    steps = mf_json_find(steps, "lm_plus_coef_times_sum_of_layers_aux");
    bool none = steps != NULL && mf_json_value_type(steps) == MF_JSON_NULL; /* of this family */
    if (none || (h->model.experts > 0 && !has_aux)) {
        return 0.0;
    }
    for (int64_t i = 0; i < h->model.layers; i++) {
        bool moe = h->model.layer_classes[h->model.layer_class[i]].ffn == MF_FFN_MOE;
        double want = NAN;
        layers += moe && has_aux;
        if (moe && has_aux && seen < listed) {
            mf_json_f64(mf_json_at(aux, (size_t)seen++), 0, 1e9, &want, NULL);
            double error = fabs(r->aux_of_position[i + 1] / want - 1.0);
            most = isnan(error) ? (double)INFINITY : fmax(most, error);
        }
    }
    return layers == listed ? most : (double)INFINITY;
}

/* --- gradients ----------------------------------------------------------------------------------
 */

/* What all ranks together have of the reference's gradients. */
typedef struct hf_sums {
    double *square, *held; /* [tensors] of the differences; elements compared, copies included */
    float *seen;           /* [elements] 1: compared by some rank */
    int64_t *first;        /* [tensors + 1] into seen */
    int64_t tensors;
} hf_sums;

static inline void hf_sums_init(hf_sums *s, const mf_safetensors *of) {
    size_t n = mf_safetensors_count(of);
    *s = (hf_sums){.tensors = (int64_t)n,
                   .square = calloc(2 * n + 2, sizeof(double)),
                   .first = calloc(n + 1, sizeof(int64_t))};
    s->held = s->square + n;
    for (size_t i = 0; i < n; i++) {
        s->first[i + 1] = s->first[i] + mf_safetensors_at(of, i)->count;
    }
    s->seen = calloc((size_t)s->first[n] + 1, sizeof *s->seen);
}

static inline void hf_sums_clear(hf_sums *s) {
    free(s->square);
    free(s->first);
    free(s->seen);
}

/* Selection biases are trained by counts: the reference lists zeros for them. */
static inline bool hf_has_no_gradient(const mf_st_tensor *t) {
    bool bias = strstr(t->name, "e_score_correction_bias") != NULL ||
                strstr(t->name, ".expert_bias") != NULL || strstr(t->name, ".router_bias") != NULL;
    for (int64_t k = 0; bias && k < t->count; k++) {
        bias = mf_st_get(t, k) == 0.0f;
    }
    return bias;
}

/* Largest relative error of a whole tensor, put together from all ranks (of copies the mean
 * square); INFINITY where an element was not compared. Collective. */
static inline double hf_sums_error(hf_case *h, hf_sums *s, char worst[160]) {
    double most = 0.0;
    int64_t elements = s->first[s->tensors];
    if (mf_comm_all_reduce(h->comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_SUM, s->square,
                           2 * s->tensors, NULL) != MF_OK ||
        mf_comm_all_reduce(h->comm, MF_GROUP_WORLD, MF_COMM_F32, MF_COMM_MAX, s->seen, elements,
                           NULL) != MF_OK) {
        return (double)INFINITY;
    }
    for (int64_t i = 0; i < s->tensors; i++) {
        const mf_st_tensor *t = mf_safetensors_at(h->gradients, (size_t)i);
        double size = 0.0, copies = s->held[i] / (double)t->count;
        bool whole = true;
        for (int64_t k = 0; k < t->count; k++) {
            size += (double)mf_st_get(t, k) * (double)mf_st_get(t, k);
            whole = whole && s->seen[s->first[i] + k] > 0.0f;
        }
        double error =
            whole ? sqrt(s->square[i] / copies) / (sqrt(size) + 1e-30) : (double)INFINITY;
        if (!(error <= most) && !hf_has_no_gradient(t)) {
            most = isnan(error) ? (double)INFINITY : error;
            snprintf(worst, 160, "all of %s", t->name);
        }
    }
    return most;
}

/* Adds the squared difference and size of a rectangle's elements that lie in [first, end) of the
 * parameter; got[0] is element `first`. */
static inline void hf_compare(const float *got, const mf_param *q, int64_t first, int64_t end,
                              const mf_st_tensor *want, const mf_param_piece *p, float *seen,
                              double *held, double *difference, double *size) {
    bool matrix = want->dims >= 2 && want->shape[0] != 1;
    int64_t width = matrix ? want->shape[want->dims - 1] : 1;
    for (int64_t r = 0; r < p->rows; r++) {
        for (int64_t c = 0; c < p->cols; c++) {
            int64_t at = (p->at_row + r) * q->cols + p->at_col + c;
            if (at < first || at >= end) {
                continue;
            }
            int64_t element = mf_param_piece_element(p, r, c, width);
            double w = (double)mf_st_get(want, element);
            seen[element] = 1.0f;
            *held += 1.0;
            double d = (double)got[at - first] - w;
            *difference += d * d;
            *size += w * w;
        }
    }
}

/* Which of the reference's gradients: -1 where there is none of that name. */
static inline int64_t hf_gradient(const hf_case *h, const char *name) {
    const mf_st_tensor *t = mf_safetensors_find(h->gradients, name);
    return t != NULL ? t - mf_safetensors_at(h->gradients, 0) : -1;
}

/* Largest relative error of every gradient: of each rank's pieces by themselves, over the elements
 * whose gradients are complete there, and of the whole tensors; the name of the worst, how many
 * pieces were compared here. Collective. */
static inline double hf_gradient_error(hf_case *h, char worst[160], int *compared) {
    const mf_params *list = mf_exec_params(h->exec);
    mf_rank_coords at = mf_layout_coords(&h->layout, mf_comm_rank(h->comm));
    double most = 0.0;
    char whole_worst[160] = "";
    hf_sums sums;
    hf_sums_init(&sums, h->gradients);
    *compared = 0;
    for (int i = 0; i < list->count; i++) {
        const mf_param *q = &list->list[i];
        int64_t first, count;
        mf_param_piece piece;
        const float *g = mf_exec_own_gradient(h->exec, i, &first, &count);
        for (int k = 0; mf_param_piece_at(h->program, &at, q, k, &piece); k++) {
            int64_t n = hf_gradient(h, piece.name);
            double difference = 0.0, size = 0.0, error = NAN;
            if (n >= 0) {
                hf_compare(g, q, first, first + count, mf_safetensors_at(h->gradients, (size_t)n),
                           &piece, sums.seen + sums.first[n], &sums.held[n], &difference, &size);
                sums.square[n] += difference;
                error = sqrt(difference) / (sqrt(size) + 1e-30);
            }
            ++*compared;
            if (!(error <= most)) {
                most = isnan(error) ? (double)INFINITY : error;
                snprintf(worst, 160, "%s", piece.name);
            }
        }
    }
    double whole = hf_sums_error(h, &sums, whole_worst);
    if (whole > most) {
        most = whole;
        snprintf(worst, 160, "%s", whole_worst);
    }
    hf_sums_clear(&sums);
    return most;
}

#endif
