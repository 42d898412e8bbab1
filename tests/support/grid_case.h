/* grid_case.h - a small model run under a layout for three steps, and what one rank made of it: the
 * reference that all layouts are held against. */
#ifndef MF_TESTS_GRID_CASE_H
#define MF_TESTS_GRID_CASE_H

#include "executor/train/train.h"
#include "tests/support/capacity_ties.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GRID_STEPS = 3, GRID_SEQ = 16, GRID_GBS = 8, GRID_OVERRIDES = 6 };

typedef struct grid_model {
    const char *name, *config;
    double capacity; /* factor; 0: dropless */
    const char *override[GRID_OVERRIDES];
    bool padded;  /* to the capacity */
    bool starved; /* two experts of every layer that no token takes */
} grid_model;

/* Grouped-query attention with biases and a gated shared expert; latent attention with sigmoid
 * routing, a dense first layer and two MTP depths; QK norms with tied tables; plain; the
 * same with a capacity that drops tokens, and with rows padded to it; dense; experts that no token
 * ever takes. Auxiliary losses are
 * those of single samples, which no layout may change. */
static const grid_model grid_models[] = {
    {"qwen2_moe", "qwen2_moe", 0, {"vocab_size=64"}, false, false},
    {"deepseek_v3",
     "deepseek_v3",
     0,
     {"vocab_size=64", "num_nextn_predict_layers=2"},
     false,
     false},
    {"qwen3_moe tied", "qwen3_moe", 0, {"vocab_size=64", "tie_word_embeddings=true"}, false, false},
    {"mixtral", "mixtral", 0, {"vocab_size=61"}, false, false},
    {"mixtral dropping", "mixtral", 1.0, {"vocab_size=64", "rms_norm_eps=5e-5"}, false, false},
    {"mixtral padded", "mixtral", 0.9, {"vocab_size=64", "rms_norm_eps=8e-5"}, true, false},
    {"llama", "llama", 0, {"vocab_size=64", "num_hidden_layers=6"}, false, false},
    {"deepseek_v3 starved",
     "deepseek_v3",
     0,
     {"vocab_size=64", "num_nextn_predict_layers=0"},
     false,
     true},
};
enum { GRID_MODELS = sizeof grid_models / sizeof grid_models[0] };
enum { GRID_BIASES = 256 }; /* positions times experts, at most */

typedef struct grid_case {
    mf_model model;
    mf_layout layout;
    mf_cluster cluster;
    mf_assignment assignment;
    mf_program *program;
    mf_schedule *schedule;
    mf_comm *comm;
    mf_exec *exec;
    int64_t step;
} grid_case;

/* That runs the layouts; NULL: the CPU's own. */
static mf_device *grid_device;
/* Token headroom of the layouts; 0: the worst case. */
static double grid_headroom;

static inline mf_status grid_model_load(const grid_model *g, mf_model *out, mf_err *e) {
    char path[128];
    size_t count = 0;
    while (count < GRID_OVERRIDES && g->override[count] != NULL) {
        count++;
    }
    snprintf(path, sizeof path, "tests/data/hf/%s/config.json", g->config);
    return mf_model_load_with(path, g->override, count, out, e);
}

static inline void grid_layout_init(mf_layout *l) {
    mf_layout_init(l);
    l->gpus = 1;
    l->mbs = l->gbs = GRID_GBS;
    l->seq = GRID_SEQ;
    l->precision = MF_PREC_FP32;
    l->overlap = 0;
}

/* Tokens with some order in them, so that there is something to learn; the same everywhere. */
static inline mf_status grid_sample(void *user, int64_t index, int32_t *tokens, mf_err *e) {
    const grid_case *g = user;
    uint64_t state = (uint64_t)(g->step * GRID_GBS + index + 1) * 0x9E3779B97F4A7C15u;
    (void)e;
    for (int64_t i = 0; i <= GRID_SEQ; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t random = (state >> 33) % 7;
        tokens[i] = (int32_t)((random + 3 * (uint64_t)i + (uint64_t)index) % 61);
    }
    return MF_OK;
}

static inline void grid_options(mf_exec_options *o) {
    mf_exec_options_init(o);
    o->eps = 1e-4; /* small gradients then do not leap by their sign */
    o->bias_rate = 1e-3;
    o->aux_coef = 0.05;
}

/* Selection bias that no score makes good, for the second expert and the last. */
static inline void grid_starve(grid_case *g) {
    for (int i = 0; i < g->assignment.positions; i++) {
        float *bias = mf_exec_correction_bias(g->exec, i);
        if (bias != NULL) {
            bias[1] = bias[g->model.experts - 1] = -100.0f;
        }
    }
}

/* `change`, where it is not NULL, sees the program before an executor is made for it. */
static inline mf_status grid_open(grid_case *g, const grid_model *m, const mf_layout *l,
                                  const mf_exec_options *o, void (*change)(grid_case *g),
                                  mf_err *e) {
    memset(g, 0, sizeof *g);
    g->layout = *l;
    mf_status s = grid_model_load(m, &g->model, e);
    s = s == MF_OK ? mf_cluster_load("cpu", &g->cluster, e) : s;
    g->cluster.domain_gpus_used = 2 * l->tp; /* pairs for hierarchical CP */
    g->layout.capacity_factor = m->capacity;
    g->layout.pad_to_capacity = m->padded;
    g->layout.aux_scope = MF_AUX_SEQUENCE;
    g->model.aux_loss_coef = g->model.experts > 0 ? o->aux_coef : 0.0;
    g->layout.token_headroom = grid_headroom > 0.0 ? grid_headroom : (double)g->layout.ep;
    s = s == MF_OK ? mf_layout_resolve(&g->layout, &g->model, e) : s;
    s = s == MF_OK ? mf_assignment_even(&g->model, &g->layout, &g->assignment, e) : s;
    s = s == MF_OK
            ? mf_program_lower(&g->model, &g->layout, &g->cluster, &g->assignment, &g->program, e)
            : s;
    s = s == MF_OK ? mf_schedule_create(&g->layout, &g->schedule, e) : s;
    s = s == MF_OK ? mf_comm_create(&g->layout, &g->comm, e) : s;
    if (s == MF_OK && change != NULL) {
        change(g);
    }
    mf_device *device = grid_device != NULL ? grid_device : mf_device_cpu();
    s = s == MF_OK ? mf_exec_create(g->program, g->schedule, g->comm, device, o, &g->exec, e) : s;
    if (s == MF_OK) {
        mf_rank_coords at = mf_layout_coords(&g->layout, mf_comm_rank(g->comm));
        s = mf_train_init_weights(g->exec, g->program, &at, 17, e);
        if (m->starved) {
            grid_starve(g);
        }
    }
    return s;
}

static inline void grid_close(grid_case *g) {
    mf_exec_destroy(g->exec);
    mf_comm_destroy(g->comm);
    mf_schedule_destroy(g->schedule);
    mf_program_destroy(g->program);
    memset(g, 0, sizeof *g);
}

/* --- the reference: one rank, one micro-batch ---------------------------------------------------
 */

typedef struct grid_tensor {
    char name[160];
    int64_t rows, cols;
    float *gradient, *weight; /* of the first step; after the last one */
    double gradient_norm, weight_norm;
} grid_tensor;

typedef struct grid_reference {
    double lm_loss[GRID_STEPS], mtp_loss[GRID_STEPS], aux_loss[GRID_STEPS], norm[GRID_STEPS];
    double nearest; /* least distance between what was chosen or kept and what was not: rounding in
                       another order must not bridge it */
    double idle;    /* experts, summed over layers, that no token took in the first step */
    float bias[GRID_BIASES]; /* of the routers after the last step, by position and expert */
    int count;
    grid_tensor *tensor;
} grid_reference;

/* How near a choice of a sample that an expert kept was to giving way to one that it dropped. */
static inline void grid_find_drops(const mf_exec_op *op, double *nearest) {
    const mf_model *m = op->env->model;
    int64_t k = m->top_k, seq = op->env->layout->seq;
    const int32_t *map = op->in[0].data, *kept = op->out[0].data;
    const float *prob = op->in[1].data;
    for (int64_t i = 0; i < op->in[0].rows * k; i++) {
        int64_t first = i / (seq * k) * seq * k;
        for (int64_t j = first; kept[i] >= 0 && j < first + seq * k; j++) {
            if (map[j] == map[i] && kept[j] < 0) {
                *nearest = fmin(*nearest, tie_apart(i, (double)prob[i], j, (double)prob[j]));
            }
        }
    }
}

/* How near a choice of experts was to falling the other way, on one rank. */
static inline void grid_find_ties(const mf_exec_op *op, double *nearest) {
    if (op->op->kind == MF_OP_ROUTER_DROP && op->op->pass == MF_PASS_F) {
        grid_find_drops(op, nearest);
    }
    if (op->op->kind != MF_OP_ROUTER_FWD || op->op->pass != MF_PASS_F) {
        return;
    }
    const mf_model *m = op->env->model;
    const float *bias = op->env->correction_bias;
    for (int64_t r = 0; r < op->in[0].rows; r++) {
        const float *logits = (const float *)op->in[0].data + r * m->experts;
        double last = -INFINITY, first = last, score[512];
        bool taken[512] = {false};
        for (int64_t i = 0; i < m->experts; i++) {
            double value = (double)logits[i];
            score[i] = bias != NULL ? 1.0 / (1.0 + exp(-value)) + (double)bias[i] : value;
        }
        for (int64_t k = 0; k <= m->top_k; k++) {
            int64_t best = -1;
            for (int64_t i = 0; i < m->experts; i++) {
                best = !taken[i] && (best < 0 || score[i] > score[best]) ? i : best;
            }
            taken[best] = true;
            last = k < m->top_k ? score[best] : last;
            first = score[best];
        }
        *nearest = fmin(*nearest, last - first);
    }
}

static inline void grid_watch_ties(void *user, const mf_exec_op *op) {
    grid_find_ties(op, user);
}

/* Correction biases, which every rank of a stage holds, beside those of the reference: how many
 * differ in any bit. Keeps them instead where `keep`. */
static inline int grid_biases(grid_case *g, grid_reference *ref, bool keep) {
    int differ = 0;
    int64_t experts = g->model.experts;
    for (int i = 0; i < g->assignment.positions; i++) {
        const float *bias = mf_exec_correction_bias(g->exec, i);
        for (int64_t k = 0; k < experts && bias != NULL; k++) {
            float *own = &ref->bias[i * experts + k];
            if (i * experts + k >= GRID_BIASES) {
                return 1;
            }
            *own = keep ? bias[k] : *own;
            differ += *own != bias[k];
        }
    }
    return differ;
}

static inline double grid_norm(const float *x, int64_t count) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    return sqrt(sum);
}

/* Space for every piece; copies its part of `from` (the whole parameter) to gradient or weight. */
static inline void grid_keep(grid_case *g, grid_reference *ref, bool gradient) {
    const mf_params *list = mf_exec_params(g->exec);
    mf_rank_coords at = mf_layout_coords(&g->layout, 0);
    int n = 0;
    for (int i = 0; i < list->count; i++) {
        const mf_param *q = &list->list[i];
        const float *from = gradient ? mf_exec_gradient(g->exec, i) : mf_exec_param(g->exec, i);
        mf_param_piece piece;
        for (int k = 0; mf_param_piece_at(g->program, &at, q, k, &piece); k++, n++) {
            if (gradient) {
                ref->tensor = realloc(ref->tensor, (size_t)(n + 1) * sizeof *ref->tensor);
                ref->tensor[n] = (grid_tensor){.rows = piece.rows, .cols = piece.cols};
                snprintf(ref->tensor[n].name, sizeof ref->tensor[n].name, "%s", piece.name);
            }
            grid_tensor *t = &ref->tensor[n];
            float *to = calloc((size_t)(t->rows * t->cols), sizeof *to);
            for (int64_t r = 0; r < piece.rows; r++) {
                memcpy(to + r * piece.cols, from + (piece.at_row + r) * q->cols + piece.at_col,
                       (size_t)piece.cols * sizeof *to);
            }
            double norm = grid_norm(to, t->rows * t->cols);
            if (gradient) {
                t->gradient = to;
                t->gradient_norm = norm;
            } else {
                t->weight = to;
                t->weight_norm = norm;
            }
        }
    }
    ref->count = n;
}

static inline mf_status grid_count_idle(grid_case *g, double *idle, mf_err *e) {
    int64_t experts = g->model.experts, n = g->assignment.positions * experts;
    double *counts = calloc((size_t)n + 1, sizeof *counts);
    mf_status s = experts > 0 ? mf_exec_expert_load(g->exec, counts, e) : MF_OK;
    for (int64_t i = 0; i < n; i++) {
        const bool routes = mf_exec_correction_bias(g->exec, (int)(i / experts)) != NULL;
        *idle += routes && !(counts[i] > 0.0);
    }
    free(counts);
    return s;
}

/* Runs on a layout of one rank. */
static inline mf_status grid_reference_make(const grid_model *m, grid_reference *ref, mf_err *e) {
    grid_case g;
    mf_layout l;
    mf_exec_options o;
    grid_layout_init(&l);
    grid_options(&o);
    *ref = (grid_reference){.nearest = 1.0};
    o.after_op = grid_watch_ties;
    o.user = &ref->nearest;
    mf_status s = grid_open(&g, m, &l, &o, NULL, e);
    const mf_exec_batch batch = {grid_sample, &g};
    for (g.step = 0; g.step < GRID_STEPS && s == MF_OK; g.step++) {
        mf_exec_result r;
        s = mf_exec_step(g.exec, &batch, 1e-3, &r, e);
        ref->lm_loss[g.step] = r.lm_loss;
        ref->mtp_loss[g.step] = r.mtp_loss;
        ref->aux_loss[g.step] = r.aux_loss;
        ref->norm[g.step] = r.grad_norm;
        if (g.step == 0 && s == MF_OK) {
            grid_keep(&g, ref, true);
            s = grid_count_idle(&g, &ref->idle, e);
        }
    }
    if (s == MF_OK) {
        grid_keep(&g, ref, false);
        s = grid_biases(&g, ref, true) == 0 ? MF_OK : mf_err_set(e, MF_INTERNAL, "more biases");
    }
    grid_close(&g);
    return s;
}

static inline void grid_reference_clear(grid_reference *ref) {
    for (int i = 0; i < ref->count; i++) {
        free(ref->tensor[i].gradient);
        free(ref->tensor[i].weight);
    }
    free(ref->tensor);
    *ref = (grid_reference){0};
}

/* To and from a file: processes of several ranks cannot run a layout of one. */
static inline bool grid_reference_move(FILE *f, grid_reference *ref, bool write) {
#define MOVE(data, size) (write ? fwrite(data, size, 1, f) : fread(data, size, 1, f)) == 1
    bool ok = MOVE(ref, offsetof(grid_reference, tensor));
    if (ok && !write) {
        ref->tensor = calloc((size_t)ref->count + 1, sizeof *ref->tensor);
    }
    for (int i = 0; i < ref->count && ok; i++) {
        grid_tensor *t = &ref->tensor[i], disk = *t;
        ok = MOVE(&disk, sizeof disk);
        size_t size_B = (size_t)(disk.rows * disk.cols) * sizeof(float);
        if (!write) {
            *t = disk;
            t->gradient = malloc(size_B);
            t->weight = malloc(size_B);
        }
        ok = ok && MOVE(t->gradient, size_B) && MOVE(t->weight, size_B);
    }
#undef MOVE
    return ok;
}

/* --- comparison ---------------------------------------------------------------------------------
 */

static inline const grid_tensor *grid_find(const grid_reference *ref, const char *name) {
    for (int i = 0; i < ref->count; i++) {
        if (strcmp(ref->tensor[i].name, name) == 0) {
            return &ref->tensor[i];
        }
    }
    return NULL;
}

/* What all ranks hold of the reference's tensors, and how far off it is. */
typedef struct grid_sums {
    double *difference, *held; /* [tensors] squares of differences; elements, copies included */
    float *seen;               /* [elements of all tensors] 1: some rank holds it */
    int64_t *first;            /* [tensors + 1] into seen */
} grid_sums;

static inline void grid_sums_init(grid_sums *s, const grid_reference *ref) {
    size_t n = (size_t)ref->count + 1;
    *s = (grid_sums){.difference = calloc(2 * n, sizeof(double)), .first = calloc(n, 8)};
    s->held = s->difference + n;
    for (int i = 0; i < ref->count; i++) {
        s->first[i + 1] = s->first[i] + ref->tensor[i].rows * ref->tensor[i].cols;
    }
    s->seen = calloc((size_t)s->first[ref->count] + 1, sizeof *s->seen);
}

static inline void grid_sums_clear(grid_sums *s) {
    free(s->difference);
    free(s->first);
    free(s->seen);
}

/* Relative error of elements [first, first + count) of a parameter, against its pieces of the
 * reference; values[0] is element `first`. Adds them to the sums. */
static inline double grid_error(const grid_case *g, const grid_reference *ref, const mf_param *q,
                                bool gradient, const float *values, int64_t first, int64_t count,
                                grid_sums *sums, char worst[200]) {
    mf_rank_coords at = mf_layout_coords(&g->layout, mf_comm_rank(g->comm));
    mf_param_piece p;
    double most = 0.0;
    for (int k = 0; mf_param_piece_at(g->program, &at, q, k, &p); k++) {
        const grid_tensor *t = grid_find(ref, p.name);
        double difference = 0.0;
        for (int64_t r = 0; r < p.rows && t != NULL; r++) {
            for (int64_t c = 0; c < p.cols; c++) {
                int64_t i = (p.at_row + r) * q->cols + p.at_col + c - first;
                if (i >= 0 && i < count) {
                    const float *want = gradient ? t->gradient : t->weight;
                    int64_t element = (p.row + r) * t->cols + p.col + c;
                    double d = (double)values[i] - (double)want[element];
                    difference += d * d;
                    sums->held[t - ref->tensor] += 1.0;
                    sums->seen[sums->first[t - ref->tensor] + element] = 1.0f;
                }
            }
        }
        if (t != NULL) {
            sums->difference[t - ref->tensor] += difference;
        }
        double norm = t == NULL ? 0.0 : gradient ? t->gradient_norm : t->weight_norm;
        double error =
            t == NULL || isnan(difference) ? (double)INFINITY : sqrt(difference) / (norm + 1e-30);
        if (error > most) {
            most = error;
            snprintf(worst, 200, "%s of %s", gradient ? "gradient" : "weight", p.name);
        }
    }
    return most;
}

/* Largest relative error of whole tensors, put together from all ranks; of copies the mean square.
 * INFINITY where no rank holds an element. Collective. */
static inline double grid_sums_error(const grid_case *g, const grid_reference *ref, grid_sums *s,
                                     bool gradient, char worst[200]) {
    double most = 0.0;
    int64_t n = 2 * ((int64_t)ref->count + 1), elements = s->first[ref->count];
    if (mf_comm_all_reduce(g->comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_SUM, s->difference, n,
                           NULL) != MF_OK ||
        mf_comm_all_reduce(g->comm, MF_GROUP_WORLD, MF_COMM_F32, MF_COMM_MAX, s->seen, elements,
                           NULL) != MF_OK) {
        return (double)INFINITY;
    }
    for (int i = 0; i < ref->count; i++) {
        const grid_tensor *t = &ref->tensor[i];
        double size = (double)(t->rows * t->cols), copies = s->held[i] / size;
        double norm = gradient ? t->gradient_norm : t->weight_norm;
        double error = sqrt(s->difference[i] / copies) / (norm + 1e-30);
        for (int64_t k = s->first[i]; k < s->first[i + 1]; k++) {
            error = s->seen[k] > 0.0f ? error : (double)INFINITY;
        }
        if (!(error <= most)) {
            most = isnan(error) ? (double)INFINITY : error;
            snprintf(worst, 200, "%s of all of %s", gradient ? "gradient" : "weight", t->name);
        }
    }
    return most;
}

#endif
