/* train.c - a training run. */
#include "executor/train.h"

#include "core/json_write.h"
#include "executor/data.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static const double pi = 3.14159265358979323846;

void mf_train_options_init(mf_train_options *o) {
    *o = (mf_train_options){.shuffle = true,
                            .seed = 1,
                            .steps = 10,
                            .lr = 3e-4,
                            .lr_min = 3e-5,
                            .lr_schedule = MF_LR_COSINE};
    mf_exec_options_init(&o->exec);
}

double mf_train_lr(mf_lr_schedule schedule, double lr, double lr_min, int64_t warmup, int64_t steps,
                   int64_t step) {
    if (step <= warmup) {
        return lr * (double)step / (double)warmup;
    }
    double span = steps > warmup + 1 ? (double)(steps - warmup - 1) : 1.0;
    double at = (double)(step - warmup - 1) / span;
    switch (schedule) {
    case MF_LR_LINEAR:
        return lr + (lr_min - lr) * at;
    case MF_LR_COSINE:
        return lr_min + (lr - lr_min) * 0.5 * (1.0 + cos(pi * at));
    case MF_LR_WSD:
        return at <= 0.9 ? lr : lr + (lr_min - lr) * (at - 0.9) / 0.1;
    case MF_LR_CONSTANT:
        break;
    }
    return lr;
}

/* --- weights from a seed -------------------------------------------------------------------------
 */

static uint64_t mix(uint64_t v) { /* SplitMix64's finaliser */
    v ^= v >> 30;
    v *= 0xbf58476d1ce4e5b9ull;
    v ^= v >> 27;
    v *= 0x94d049bb133111ebull;
    return v ^ v >> 31;
}

static uint64_t hash_name(const char *name, uint64_t seed) {
    uint64_t h = 0xcbf29ce484222325ull ^ mix(seed); /* FNV-1a */
    for (; *name != '\0'; name++) {
        h = (h ^ (unsigned char)*name) * 0x100000001b3ull;
    }
    return mix(h);
}

/* Standard normal number of (key, element): Box & Muller 1958. */
static double normal_at(uint64_t key, int64_t element) {
    uint64_t a = mix(key + 0x9e3779b97f4a7c15ull * (uint64_t)(2 * element + 1));
    uint64_t b = mix(key + 0x9e3779b97f4a7c15ull * (uint64_t)(2 * element + 2));
    double u = ((double)(a >> 11) + 0.5) * 0x1p-53, v = (double)(b >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(u)) * cos(2.0 * pi * v);
}

void mf_train_init_weights(mf_exec *x, const mf_program *p, const mf_rank_coords *at,
                           uint64_t seed) {
    const mf_params *list = mf_exec_params(x);
    for (int i = 0; i < list->count; i++) {
        const mf_param *q = &list->list[i];
        const mf_block *b = p->blocks[p->block_of[q->position]];
        bool norm = b->tensors[q->tensor].part == MF_PART_NORM;
        float *w = mf_exec_param(x, i);
        mf_param_piece piece;
        for (int64_t k = 0; k < q->rows * q->cols; k++) {
            w[k] = norm ? 1.0f : 0.0f; /* biases, and rows of a padded vocabulary */
        }
        for (int k = 0; !norm && !q->bias && mf_param_piece_at(p, at, q, k, &piece); k++) {
            uint64_t key = hash_name(piece.name, seed);
            for (int64_t r = 0; r < piece.rows; r++) {
                for (int64_t c = 0; c < piece.cols; c++) {
                    int64_t element = ((piece.row + r) << 24) + piece.col + c;
                    w[(piece.at_row + r) * q->cols + piece.at_col + c] =
                        (float)(0.02 * normal_at(key, element));
                }
            }
        }
    }
}

/* --- the run
 * --------------------------------------------------------------------------------------- */

typedef struct run {
    const mf_train_options *o;
    mf_model model;
    mf_layout layout;
    mf_program *program;
    mf_schedule *schedule;
    mf_comm *comm;
    mf_exec *exec;
    mf_data *data;
    mf_data_order order;
    int64_t step;
    FILE *metrics;
} run;

static mf_status next_sample(void *user, int64_t index, int32_t *tokens, mf_err *e) {
    const run *r = user;
    return mf_data_sample(r->data, &r->order, (r->step - 1) * r->layout.gbs + index, tokens, e);
}

static mf_status open_metrics(run *r, mf_err *e) {
    char path[4096];
    if (r->o->out == NULL || mf_comm_rank(r->comm) != 0) {
        return MF_OK;
    }
    if (mkdir(r->o->out, 0777) != 0 && errno != EEXIST) {
        return mf_err_set(e, MF_IO, "%s: %s", r->o->out, strerror(errno));
    }
    snprintf(path, sizeof path, "%s/metrics.jsonl", r->o->out);
    r->metrics = fopen(path, "w");
    return r->metrics != NULL ? MF_OK : mf_err_set(e, MF_IO, "%s: %s", path, strerror(errno));
}

static mf_status write_metrics(run *r, const mf_train_metrics *m, mf_err *e) {
    mf_json_writer w;
    char *text = NULL;
    size_t length = 0;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, true);
    mf_json_write_i64(&w, "step", m->step);
    mf_json_write_f64(&w, "lm_loss", m->lm_loss);
    if (r->model.mtp_layers > 0) {
        mf_json_write_f64(&w, "mtp_loss", m->mtp_loss);
    }
    mf_json_write_f64(&w, "aux_loss", m->aux_loss);
    mf_json_write_f64(&w, "grad_norm", m->grad_norm);
    mf_json_write_f64(&w, "lr", m->lr);
    mf_json_write_f64(&w, "step_time_s", m->step_time_s);
    mf_json_write_f64(&w, "tokens_per_s", m->tokens_per_s);
    mf_json_write_end(&w);
    mf_status status = mf_json_writer_finish(&w, &text, &length, e);
    if (status == MF_OK &&
        (fwrite(text, 1, length, r->metrics) != length || fflush(r->metrics) != 0)) {
        status = mf_err_set(e, MF_IO, "%s/metrics.jsonl: %s", r->o->out, strerror(errno));
    }
    free(text);
    return status;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static mf_status prepare(run *r, mf_err *e) {
    const mf_train_options *o = r->o;
    int64_t rank, size;
    mf_assignment even;
    const mf_assignment *a = o->assignment;
    r->model = *o->model;
    r->layout = *o->layout;
    /* Counts of the auxiliary loss are lowered where the run has one. */
    r->model.aux_loss_coef = r->model.experts > 0 ? o->exec.aux_coef : 0.0;
    r->layout.token_headroom = (double)r->layout.ep;
    mf_status s = mf_comm_start(&rank, &size, e);
    s = s == MF_OK ? mf_layout_resolve(&r->layout, &r->model, e) : s;
    if (s == MF_OK && a == NULL) {
        s = mf_assignment_even(&r->model, &r->layout, &even, e);
        a = &even;
    }
    s = s == MF_OK ? mf_comm_create(&r->layout, &r->comm, e) : s;
    s = s == MF_OK ? mf_program_lower(&r->model, &r->layout, o->cluster, a, &r->program, e) : s;
    s = s == MF_OK ? mf_schedule_create(&r->layout, &r->schedule, e) : s;
    s = s == MF_OK ? mf_exec_create(r->program, r->schedule, r->comm, mf_exec_backend_cpu(),
                                    &o->exec, &r->exec, e)
                   : s;
    s = s == MF_OK ? mf_data_open(o->data, r->model.vocab, &r->data, e) : s;
    r->order = (mf_data_order){.seq = r->layout.seq, .seed = o->seed, .shuffle = o->shuffle};
    if (s == MF_OK && o->init != NULL) {
        mf_safetensors *from = NULL;
        s = mf_safetensors_open(o->init, &from, e);
        s = s == MF_OK ? mf_exec_load(r->exec, from, e) : s;
        mf_safetensors_close(from);
    } else if (s == MF_OK) {
        mf_rank_coords at = mf_layout_coords(&r->layout, rank);
        mf_train_init_weights(r->exec, r->program, &at, o->seed);
    }
    return s == MF_OK ? open_metrics(r, e) : s;
}

/* One step; *stop is what rank 0's caller wants, known to all ranks. */
static mf_status one_step(run *r, double *stop, mf_err *e) {
    const mf_train_options *o = r->o;
    const mf_exec_batch batch = {next_sample, r};
    mf_exec_result result;
    mf_train_metrics m = {.step = r->step};
    double start = now_s();
    m.lr = mf_train_lr(o->lr_schedule, o->lr, o->lr_min, o->warmup, o->steps, r->step);
    mf_status status = mf_exec_step(r->exec, &batch, m.lr, &result, e);
    if (status != MF_OK) {
        return mf_err_prefix(e, "step %lld", (long long)r->step);
    }
    m.lm_loss = result.lm_loss;
    m.mtp_loss = result.mtp_loss;
    m.aux_loss = result.aux_loss;
    m.grad_norm = result.grad_norm;
    m.step_time_s = now_s() - start;
    m.tokens_per_s = (double)(r->layout.gbs * r->layout.seq) / m.step_time_s;
    *stop = 0.0;
    if (r->metrics != NULL) {
        status = write_metrics(r, &m, e);
    }
    if (status == MF_OK && mf_comm_rank(r->comm) == 0 && o->stepped != NULL) {
        *stop = o->stepped(o->user, &m) != 0 ? 1.0 : 0.0;
    }
    return status == MF_OK
               ? mf_comm_all_reduce(r->comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, stop, 1, e)
               : status;
}

mf_status mf_train(const mf_train_options *o, mf_err *e) {
    run r = {.o = o};
    double stop = 0.0;
    mf_status status = prepare(&r, e);
    if (status == MF_OK && mf_comm_rank(r.comm) == 0 && o->started != NULL) {
        stop = o->started(o->user, r.exec) != 0 ? 1.0 : 0.0;
    }
    if (status == MF_OK) {
        status = mf_comm_all_reduce(r.comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, &stop, 1, e);
    }
    for (r.step = 1; r.step <= o->steps && status == MF_OK && stop < 0.5; r.step++) {
        status = one_step(&r, &stop, e);
    }
    if (status == MF_OK && stop > 0.5) {
        status = mf_err_set(e, MF_INTERRUPTED, "ended after step %lld", (long long)(r.step - 1));
    }
    if (r.metrics != NULL && fclose(r.metrics) != 0 && status == MF_OK) {
        status = mf_err_set(e, MF_IO, "%s/metrics.jsonl: %s", o->out, strerror(errno));
    }
    mf_data_close(r.data);
    mf_exec_destroy(r.exec);
    mf_comm_destroy(r.comm);
    mf_schedule_destroy(r.schedule);
    mf_program_destroy(r.program);
    return status;
}
