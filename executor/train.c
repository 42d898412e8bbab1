/* train.c - a training run. */
#include "executor/train.h"

#include "executor/agree.h"
#include "executor/board.h"
#include "executor/checkpoint.h"
#include "executor/data_seal.h"
#include "executor/files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LL(x) ((long long)(x))
#define PATH_B 4096
#define SHARD_B ((int64_t)5 << 30) /* as the hub's files are cut */

void mf_train_options_init(mf_train_options *o) {
    *o = (mf_train_options){.shuffle = true,
                            .seed = 1,
                            .steps = 10,
                            .lr = 3e-4,
                            .lr_min = 3e-5,
                            .lr_schedule = MF_LR_COSINE,
                            .keep = 3};
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
        return lr_min + (lr - lr_min) * 0.5 * (1.0 + cos(3.14159265358979323846 * at));
    case MF_LR_WSD:
        return at <= 0.9 ? lr : lr + (lr_min - lr) * (at - 0.9) / 0.1;
    case MF_LR_CONSTANT:
        break;
    }
    return lr;
}

/* --- the run -----------------------------------------------------------------------------------
 */

typedef struct run {
    const mf_train_options *o;
    mf_model model;
    mf_layout layout;
    mf_program *program;
    mf_schedule *schedule;
    mf_comm *comm;
    mf_board *board;
    mf_exec *exec;
    mf_op_timer *timer;
    mf_data_mix *data;
    mf_data_order order;
    mf_metrics *metrics;
    double *loads; /* [positions * experts] */
    char checkpoints[PATH_B], resumed[PATH_B];
    int64_t done;    /* steps, those before this run included */
    int64_t samples; /* consumed */
    int64_t saved;   /* step of the newest checkpoint; -1: none */
    int64_t own;     /* steps of this run */
    double arena_B, began_s;
} run;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static mf_status next_sample(void *user, int64_t index, int32_t *tokens, mf_err *e) {
    const run *r = user;
    return mf_data_mix_sample(r->data, &r->order, r->samples + index, tokens, e);
}

static void before_op(void *user, const mf_exec_op *op) {
    run *r = user;
    mf_board_op(r->board, r->done + 1, op);
    if (r->o->exec.before_op != NULL) {
        r->o->exec.before_op(r->o->exec.user, op);
    }
    mf_op_timer_begin(r->timer);
}

static void after_op(void *user, const mf_exec_op *op) {
    run *r = user;
    if (op->block == NULL) { /* told when it is over */
        mf_board_phase(r->board, r->done + 1, op->op->name);
    }
    mf_op_timer_end(r->timer, op->block, op->op);
    if (r->o->exec.after_op != NULL) {
        r->o->exec.after_op(r->o->exec.user, op);
    }
}

/* --- start -------------------------------------------------------------------------------------
 */

static mf_status build(run *r, mf_err *e) {
    const mf_train_options *o = r->o;
    mf_assignment even;
    const mf_assignment *a = o->assignment;
    mf_exec_options exec = o->exec;
    exec.before_op = before_op;
    exec.after_op = after_op;
    exec.user = r;
    mf_status s = mf_layout_resolve(&r->layout, &r->model, e);
    if (s == MF_OK && a == NULL) {
        s = mf_assignment_even(&r->model, &r->layout, &even, e);
        a = &even;
    }
    s = s == MF_OK ? mf_program_lower(&r->model, &r->layout, o->cluster, a, &r->program, e) : s;
    s = s == MF_OK ? mf_schedule_create(&r->layout, &r->schedule, e) : s;
    s = s == MF_OK ? mf_op_timer_create(r->program, &r->timer, e) : s;
    s = s == MF_OK ? mf_exec_create(r->program, r->schedule, r->comm, mf_exec_backend_cpu(), &exec,
                                    &r->exec, e)
                   : s;
    s = s == MF_OK ? mf_data_mix_open(o->data, r->model.vocab, &r->data, e) : s;
    s = s == MF_OK ? mf_data_mix_check(r->data, r->layout.seq, e) : s;
    r->order = (mf_data_order){.seq = r->layout.seq, .seed = o->seed, .shuffle = o->shuffle};
    size_t loads = s == MF_OK ? (size_t)(r->program->assignment.positions * r->model.experts) : 0;
    r->loads = calloc(loads + 1, sizeof *r->loads);
    return s != MF_OK || r->loads != NULL ? s : mf_err_set(e, MF_NOMEM, "training: out of memory");
}

/* The stream that a checkpoint's position is a position in. */
static mf_status check_stream(const run *r, const mf_checkpoint_stand *s, mf_err *e) {
    bool same = s->seed == r->order.seed && s->shuffle == r->order.shuffle &&
                s->seq == r->order.seq && s->streams == mf_data_mix_streams(r->data);
    for (int i = 0; same && i < s->streams; i++) {
        same = s->stream_tokens[i] == mf_data_tokens(mf_data_mix_stream(r->data, i)) &&
               s->stream_share[i] == mf_data_mix_share(r->data, i);
    }
    return same ? MF_OK
                : mf_err_set(e, MF_INPUT,
                             "checkpoint %s: its samples came from another stream (--data, --seq, "
                             "--seed or --shuffle differ)",
                             r->resumed);
}

static mf_status load_checkpoint(run *r, mf_err *e) {
    mf_checkpoint *c = NULL;
    mf_status s = mf_checkpoint_open(r->resumed, &r->model, &c, e);
    if (s == MF_OK) {
        s = check_stream(r, mf_checkpoint_stands(c), e);
    }
    if (s == MF_OK) {
        r->done = r->saved = mf_checkpoint_stands(c)->step;
        r->samples = mf_checkpoint_stands(c)->samples;
        s = mf_checkpoint_load(c, r->exec, e);
        s = s == MF_OK ? s : mf_err_prefix(e, "checkpoint %s", r->resumed);
    }
    mf_checkpoint_close(c);
    return s;
}

static mf_status load_weights(run *r, mf_err *e) {
    const mf_train_options *o = r->o;
    mf_status s = MF_OK;
    if (o->out != NULL && o->resume) {
        s = mf_checkpoint_newest(r->checkpoints, r->resumed, sizeof r->resumed, e);
    }
    if (s == MF_OK && r->resumed[0] != '\0') {
        s = load_checkpoint(r, e);
        if ((s == MF_DAMAGED || s == MF_IO) && e != NULL) {
            const mf_err why = *e;
            mf_err_set(e, s, "%s; remove that folder to resume from the one before", why.text);
        }
        return s;
    }
    if (s != MF_OK) {
        return s;
    }
    if (o->init != NULL) {
        mf_safetensors *from = NULL;
        s = mf_safetensors_open(o->init, &from, e);
        s = s == MF_OK ? mf_safetensors_verify(from, (size_t)mf_comm_rank(r->comm),
                                               (size_t)r->layout.gpus, e)
                       : s;
        s = s == MF_OK ? mf_exec_load(r->exec, from, e) : s;
        mf_safetensors_close(from);
    } else {
        mf_rank_coords at = mf_layout_coords(&r->layout, mf_comm_rank(r->comm));
        mf_train_init_weights(r->exec, r->program, &at, o->seed);
    }
    return s;
}

/* Rank 0, before the others look into the folder. */
static mf_status prepare_folder(run *r, mf_err *e) {
    char newest[PATH_B];
    const char *out = r->o->out;
    if (out == NULL) {
        return MF_OK;
    }
    if (!mf_path_join(r->checkpoints, sizeof r->checkpoints, out, "checkpoints", NULL)) {
        return mf_err_set(e, MF_IO, "%s: path too long", out);
    }
    if (mf_comm_rank(r->comm) != 0) {
        return MF_OK;
    }
    mf_status s = mf_folder_make(out, e);
    mf_checkpoint_clean(r->checkpoints);
    s = s == MF_OK ? mf_checkpoint_newest(r->checkpoints, newest, sizeof newest, e) : s;
    if (s == MF_OK && newest[0] != '\0' && !r->o->resume) {
        return mf_err_set(e, MF_USAGE,
                          "%s holds checkpoints of a run: --resume continues it, another --out "
                          "starts one",
                          out);
    }
    return s;
}

/* The streams' bytes are those that the run began with. */
static mf_status seal_streams(run *r, mf_err *e) {
    char folder[PATH_B];
    if (r->o->out == NULL || r->o->steps == 0) {
        return MF_OK;
    }
    if (!mf_path_join(folder, sizeof folder, r->o->out, "seals", NULL)) {
        return mf_err_set(e, MF_IO, "%s: path too long", r->o->out);
    }
    return mf_data_mix_seal(r->data, r->comm, folder, r->resumed[0] != '\0', e);
}

static mf_status prepare(run *r, mf_err *e) {
    const mf_train_options *o = r->o;
    mf_status s = mf_comm_agree(r->comm, prepare_folder(r, e), e);
    s = s == MF_OK ? mf_comm_agree(r->comm, build(r, e), e) : s;
    s = s == MF_OK ? mf_comm_agree(r->comm, load_weights(r, e), e) : s;
    s = s == MF_OK ? mf_comm_agree(r->comm, seal_streams(r, e), e) : s;
    s = s == MF_OK ? mf_exec_share_weights(r->exec, e) : s;
    if (s == MF_OK) {
        r->arena_B = (double)mf_exec_arena_B(r->exec);
        s = mf_comm_all_reduce(r->comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, &r->arena_B, 1,
                               e);
    }
    mf_status opened = MF_OK;
    if (s == MF_OK && o->out != NULL && mf_comm_rank(r->comm) == 0) {
        const mf_metrics_parts parts = {r->model.mtp_layers > 0, o->exec.z_coef > 0};
        opened = mf_metrics_open(o->out, r->done, parts, &r->metrics, e);
    }
    return s == MF_OK ? mf_comm_agree(r->comm, opened, e) : s;
}

static int report_start(run *r) {
    mf_train_start s = {.exec = r->exec,
                        .arena_B = (int64_t)r->arena_B,
                        .first_step = r->done + 1,
                        .resumed = r->resumed[0] != '\0' ? r->resumed : NULL,
                        .streams = mf_data_mix_streams(r->data)};
    for (int i = 0; i < s.streams; i++) {
        s.stream_tokens += mf_data_tokens(mf_data_mix_stream(r->data, i));
    }
    return r->o->started != NULL ? r->o->started(r->o->user, &s) : 0;
}

/* --- steps -------------------------------------------------------------------------------------
 */

/* Of the fullest layer: rows of the expert with most over the mean. */
static double load_max_over_mean(const run *r) {
    int64_t experts = r->model.experts;
    double worst = 1.0;
    for (int i = 0; i < r->program->assignment.positions; i++) {
        double sum = 0.0, most = 0.0;
        for (int64_t k = 0; k < experts; k++) {
            double n = r->loads[i * experts + k];
            sum += n;
            most = n > most ? n : most;
        }
        if (sum > 0.0) {
            worst = fmax(worst, most * (double)experts / sum);
        }
    }
    return worst;
}

static void fill_metrics(const run *r, const mf_exec_result *result, double took_s,
                         mf_train_metrics *m) {
    const mf_layout *l = &r->layout;
    double peak = r->o->cluster->gpu.peak_flops[mf_precision_math(l->precision)];
    double tokens = (double)(l->gbs * l->seq);
    m->step = r->done;
    m->samples = r->samples;
    m->lm_loss = result->lm_loss;
    m->mtp_loss = result->mtp_loss;
    m->aux_loss = result->aux_loss;
    m->z_loss = result->z_loss;
    m->grad_norm = result->grad_norm;
    m->step_time_s = took_s;
    m->tokens_per_s = tokens / took_s;
    m->model_tflops_per_gpu =
        1e-12 * m->tokens_per_s / (double)l->gpus * mf_model_flops_per_token(&r->model, l->seq);
    m->mfu = peak > 0.0 ? 1e12 * m->model_tflops_per_gpu / peak : 0.0;
    m->memory_B = r->arena_B;
    m->expert_load_max_over_mean = load_max_over_mean(r);
    m->eta_s = (double)(r->o->steps - r->done) * (now_s() - r->began_s) / (double)r->own;
}

static mf_status one_step(run *r, mf_train_metrics *m, mf_err *e) {
    const mf_train_options *o = r->o;
    const mf_exec_batch batch = {next_sample, r};
    mf_exec_result result;
    double start = now_s();
    *m = (mf_train_metrics){0};
    m->lr = mf_train_lr(o->lr_schedule, o->lr, o->lr_min, o->warmup, o->steps, r->done + 1);
    mf_status status = mf_exec_step(r->exec, &batch, m->lr, &result, e);
    if (status != MF_OK) {
        return mf_err_prefix(e, "step %lld", LL(r->done + 1));
    }
    double took_s = now_s() - start;
    r->done++;
    r->own++;
    r->samples += r->layout.gbs;
    mf_op_timer_step(r->timer, took_s, r->own > 1);
    mf_board_phase(r->board, r->done, "metrics");
    if (r->model.experts > 0) {
        status = mf_exec_expert_load(r->exec, r->loads, e);
    }
    if (status == MF_OK && mf_comm_rank(r->comm) == 0) {
        fill_metrics(r, &result, took_s, m);
    }
    return status;
}

static mf_status save(run *r, mf_err *e) {
    if (r->o->out == NULL || r->saved == r->done) {
        return MF_OK;
    }
    mf_checkpoint_stand s = {.step = r->done,
                             .samples = r->samples,
                             .seed = r->order.seed,
                             .shuffle = r->order.shuffle,
                             .seq = r->order.seq,
                             .streams = mf_data_mix_streams(r->data)};
    for (int i = 0; i < s.streams; i++) {
        s.stream_tokens[i] = mf_data_tokens(mf_data_mix_stream(r->data, i));
        s.stream_share[i] = mf_data_mix_share(r->data, i);
    }
    mf_board_phase(r->board, r->done, "checkpoint");
    mf_status status = mf_checkpoint_save(r->exec, r->checkpoints, &s, r->o->keep, e);
    r->saved = status == MF_OK ? r->done : r->saved;
    return status;
}

/* Does anybody want to end? All ranks learn it at the same step. */
static mf_status ask(run *r, bool wish, bool *stop, mf_err *e) {
    const volatile int *cancel = r->o->cancel;
    double any = wish || (cancel != NULL && *cancel != 0) ? 1.0 : 0.0;
    mf_status status =
        mf_comm_all_reduce(r->comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, &any, 1, e);
    *stop = any > 0.5;
    return status;
}

/* Nothing good comes of weights that such a step has touched: none of them is saved. */
static mf_status check_finite(const run *r, const mf_train_metrics *m, mf_err *e) {
    if (isfinite(m->lm_loss) && isfinite(m->grad_norm)) {
        return MF_OK;
    }
    char saved[80] = "";
    if (r->saved > 0) {
        snprintf(saved, sizeof saved, "; --resume goes back to step %lld", LL(r->saved));
    }
    return mf_err_set(e, MF_DIVERGED, "step %lld: the %s is not finite: training has diverged%s",
                      LL(m->step), isfinite(m->lm_loss) ? "gradient norm" : "loss", saved);
}

/* What only rank 0 does with a step, agreed by all. */
static mf_status tell(run *r, const mf_train_metrics *m, bool *wish, mf_err *e) {
    mf_status status = mf_comm_rank(r->comm) == 0 ? check_finite(r, m, e) : MF_OK;
    if (status == MF_OK && r->metrics != NULL) {
        status = mf_metrics_add(r->metrics, m, e);
    }
    if (status == MF_OK && mf_comm_rank(r->comm) == 0 && r->o->stepped != NULL) {
        *wish = r->o->stepped(r->o->user, m) != 0;
    }
    return mf_comm_agree(r->comm, status, e);
}

static mf_status run_steps(run *r, bool *alone, mf_err *e) {
    bool wish = mf_comm_rank(r->comm) == 0 && report_start(r) != 0, stop = false;
    mf_train_metrics m;
    mf_status status = ask(r, wish, &stop, e);
    r->began_s = now_s();
    while (status == MF_OK && !stop && r->done < r->o->steps) {
        *alone = true;
        status = one_step(r, &m, e);
        if (status != MF_OK) {
            return status;
        }
        *alone = false;
        status = tell(r, &m, &wish, e);
        status = status == MF_OK ? ask(r, wish, &stop, e) : status;
        if (status == MF_OK && r->o->save_every > 0 && r->done % r->o->save_every == 0) {
            status = save(r, e);
        }
    }
    status = status == MF_OK ? save(r, e) : status;
    if (status == MF_OK && stop) {
        status = mf_comm_rank(r->comm) == 0
                     ? mf_err_set(e, MF_INTERRUPTED, "ended after step %lld%s", LL(r->done),
                                  r->saved >= 0 ? ", which is saved" : "")
                     : mf_err_set(e, MF_INTERRUPTED, "%s", "");
    }
    return status;
}

/* --- end ---------------------------------------------------------------------------------------
 */

/* The finished run's weights for others, from its last checkpoint: rank 0. */
static mf_status export_weights(const run *r, mf_err *e) {
    char path[PATH_B], folder[PATH_B], config[PATH_B];
    mf_checkpoint *c = NULL;
    mf_status s = mf_checkpoint_newest(r->checkpoints, path, sizeof path, e);
    if (s == MF_OK && !mf_path_join(folder, sizeof folder, r->o->out, "hf", NULL)) {
        s = mf_err_set(e, MF_IO, "%s: path too long", r->o->out);
    }
    s = s == MF_OK ? mf_checkpoint_open(path, &r->model, &c, e) : s;
    s = s == MF_OK ? mf_checkpoint_export(c, &r->model, folder, SHARD_B, e) : s;
    if (s == MF_OK && r->o->config != NULL &&
        mf_path_join(config, sizeof config, folder, "config.json", NULL)) {
        s = mf_file_write(config, r->o->config, strlen(r->o->config), e);
    }
    mf_checkpoint_close(c);
    return s;
}

static mf_status finish(run *r, mf_status status, mf_err *e) {
    char path[PATH_B];
    bool ended = status == MF_OK || status == MF_INTERRUPTED;
    if (r->o->out == NULL || !ended) {
        return status;
    }
    mf_status s = MF_OK;
    mf_board_phase(r->board, r->done, "results");
    if (r->own > 1 && mf_path_join(path, sizeof path, r->o->out, "op_times.json", NULL)) {
        s = mf_op_timer_write(r->timer, r->comm, path, status == MF_OK ? e : NULL);
    }
    if (s == MF_OK && status == MF_OK) {
        s = mf_comm_agree(r->comm, mf_comm_rank(r->comm) == 0 ? export_weights(r, e) : MF_OK, e);
    }
    return s == MF_OK || status != MF_OK ? status : s;
}

static void clear(run *r) {
    mf_data_mix_close(r->data);
    mf_exec_destroy(r->exec);
    mf_op_timer_destroy(r->timer);
    mf_schedule_destroy(r->schedule);
    mf_program_destroy(r->program);
    free(r->loads);
}

mf_status mf_train(const mf_train_options *o, bool *alone, mf_err *e) {
    run r = {.o = o, .model = *o->model, .layout = *o->layout, .saved = -1};
    int64_t rank, size;
    *alone = false;
    /* Counts of the auxiliary loss are lowered where the run has one. */
    r.model.aux_loss_coef = r.model.experts > 0 ? o->exec.aux_coef : 0.0;
    mf_status status = mf_comm_start(&rank, &size, e);
    status = status == MF_OK ? mf_layout_resolve(&r.layout, &r.model, e) : status;
    status = status == MF_OK ? mf_comm_create(&r.layout, &r.comm, e) : status;
    if (status != MF_OK) { /* all ranks found the same */
        return rank == 0 ? status : mf_err_set(e, status, "%s", "");
    }
    status = mf_board_open(r.comm, o->lost, o->user, &r.board, e);
    status = status == MF_OK ? prepare(&r, e) : status;
    status = status == MF_OK ? run_steps(&r, alone, e) : status;
    status = finish(&r, status, e);
    if (*alone && !mf_board_first(r.board)) {
        mf_err_set(e, status, "%s", "");
    }
    mf_status closed = mf_metrics_close(r.metrics, status == MF_OK ? e : NULL);
    status = status == MF_OK && !*alone ? mf_comm_agree(r.comm, closed, e) : status;
    mf_board_close(r.board, !*alone);
    clear(&r);
    mf_comm_destroy(r.comm);
    return status;
}
