/* train.c - a training run from its start to its end, and all that it holds. */
#include "executor/train/run.h"

#include "core/memory/memory.h"
#include "executor/data/data_checksums.h"
#include "executor/device/cuda_side.h"
#include "executor/files/files.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LL(x) ((long long)(x))
#define SHARD_B ((int64_t)5 << 30) /* as large as files on the hub */

void mf_train_options_init(mf_train_options *o) {
    *o = (mf_train_options){.shuffle = true,
                            .seed = 1,
                            .steps = 10,
                            .lr = 3e-4,
                            .lr_min = 3e-5,
                            .lr_schedule = MF_LR_COSINE,
                            .max_skips = 10,
                            .spike = 10.0,
                            .hang_s = 25.0,
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

void mf_run_warn(const run *r, const char *format, ...) {
    char line[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (mf_comm_rank(r->comm) == 0 && r->o->warned != NULL) {
        r->o->warned(r->o->user, line);
    }
}

static void before_op(void *user, const mf_exec_op *op) {
    run *r = user;
    mf_rank_watch_set_op(r->watch, mf_run_entering(r), op->position, op->op);
    if (r->o->exec.before_op != NULL) {
        r->o->exec.before_op(r->o->exec.user, op);
    }
    if (r->inspect != NULL) {
        mf_inspect_before(r->inspect, op);
    } else {
        mf_run_pace_before_op(r);
        mf_op_timer_begin(r->timer);
    }
}

static void after_op(void *user, const mf_exec_op *op) {
    run *r = user;
    if (op->block == NULL) { /* an op outside blocks: its name is known after it */
        mf_rank_watch_set_phase(r->watch, mf_run_entering(r), op->op->name);
    }
    if (r->inspect == NULL) {
        mf_run_pace_after_op(r, op->position, op->block, op->op);
        mf_op_timer_end(r->timer, op->block, op->op);
    }
    if (r->o->exec.after_op != NULL) {
        r->o->exec.after_op(r->o->exec.user, op);
    }
    if (r->inspect != NULL) {
        mf_inspect_after(r->inspect, op);
    }
}

/* --- a device that hangs -------------------------------------------------------------------------
 */

static int64_t progress(void *user) {
    const run *r = user;
    return mf_exec_progress(r->exec);
}

static bool waits_for_others(void *user, int64_t at) {
    const run *r = user;
    return mf_exec_progress_waits(r->exec, at);
}

/* From the watching thread, as the main one may wait for ever. Other ranks notice that this one has
 * ended, or report their own hang. */
static void hangs(void *user, int64_t step, int64_t at) {
    const run *r = user;
    char line[500], last[240], host[64] = "";
    (void)gethostname(host, sizeof host - 1);
    mf_rank_watch_find_stopped(
        r->watch); /* if its process does not run, the device waits for that rank */
    mf_exec_progress_text(r->exec, at, last, sizeof last);
    snprintf(line, sizeof line,
             "rank %lld (process %lld on %s) hangs: step %lld, nothing has moved on its GPU for %g "
             "s; it is %s",
             LL(mf_comm_rank(r->comm)), LL(getpid()), host, LL(step), r->o->hang_s, last);
    mf_rank_watch_speak(r->watch);
    if (r->o->lost != NULL) {
        r->o->lost(r->o->user, line);
    }
    _exit(1);
}

/* It reads the executor, and so has to end first. */
static mf_status watch_device(run *r, mf_err *e) {
    const mf_watchdog_options o = {r->o->hang_s, progress, waits_for_others, hangs, r};
    return r->device->ops->on_host || !(r->o->hang_s > 0.0) ? MF_OK
                                                            : mf_watchdog_open(&o, &r->watchdog, e);
}

/* --- start -------------------------------------------------------------------------------------
 */

/* The CPU, or the GPU of this rank: of a host's GPUs each of its ranks takes the next one. */
static mf_status open_device(run *r, int64_t place, mf_err *e) {
    const mf_cuda_side *side = NULL;
    int gpus = 0;
    if (r->o->device != NULL || !r->o->cuda) {
        r->device = r->o->device != NULL ? r->o->device : mf_device_cpu();
        return MF_OK;
    }
    mf_status s = mf_cuda_side_load(&side, e);
    s = s == MF_OK ? side->count(&gpus, e) : s;
    if (s != MF_OK) {
        return s;
    }
    if (gpus <= 0) {
        return mf_err_set(e, MF_USAGE, "no GPU is here: --backend cpu trains on CPU ranks");
    }
    return side->open((int)(place % gpus), &r->device, e);
}

/* One outcome of a part of the start, for all ranks. Most errors that rank 0 finds the others find,
 * too; where another rank has one, that rank says which it is. */
static mf_status agree(const run *r, mf_status mine, mf_err *e) {
    if (mine != MF_OK && e != NULL && e->text[0] != '\0' && mf_comm_rank(r->comm) > 0) {
        mf_err_prefix(e, "rank %lld", LL(mf_comm_rank(r->comm)));
    }
    return mf_comm_agree(r->comm, mine, e);
}

/* Creates every rank's device, then their communicator. Collective. */
static mf_status open_devices(run *r, mf_err *e) {
    int64_t place = 0;
    mf_status s = r->o->cuda ? mf_comm_place_in_host(r->comm, &place, e) : MF_OK;
    s = s == MF_OK ? agree(r, open_device(r, place, e), e) : s;
    if (s == MF_OK && r->o->deterministic && r->device->ops->fix != NULL) {
        r->device->ops->fix(r->device);
    }
    bool connects = s == MF_OK && r->layout.gpus > 1 && r->device->ops->connect != NULL;
    return connects ? r->device->ops->connect(r->device, r->comm, &r->layout, &r->wire, e) : s;
}

/* Puts the plan's memory in front of the driver's error. */
static mf_status compare_memory(const run *r, mf_err *e) {
    mf_memory *plan = NULL;
    if (mf_memory_plan(r->program, r->schedule, &plan, NULL) != MF_OK) {
        return MF_NOMEM;
    }
    const double peak_B = plan->stage[mf_layout_coords(&r->layout, mf_comm_rank(r->comm)).p].peak_B;
    mf_memory_destroy(plan);
    return mf_err_prefix(e,
                         "out of memory: the plan predicts %.2f GB on rank %lld, context and "
                         "communication included",
                         1e-9 * peak_B, LL(mf_comm_rank(r->comm)));
}

mf_status mf_run_make(run *r, mf_err *e) {
    mf_exec_options exec = r->o->exec;
    exec.wire = r->wire;
    exec.before_op = before_op;
    exec.after_op = after_op;
    exec.user = r;
    mf_status s =
        mf_program_lower(&r->model, &r->layout, r->o->cluster, &r->assignment, &r->program, e);
    s = s == MF_OK ? mf_schedule_create(&r->layout, &r->schedule, e) : s;
    s = s == MF_OK ? mf_op_timer_create(r->program, r->device, &r->timer, e) : s;
    s = s == MF_OK ? mf_exec_create(r->program, r->schedule, r->comm, r->device, &exec, &r->exec, e)
                   : s;
    return s == MF_NOMEM && !r->device->ops->on_host && r->schedule != NULL ? compare_memory(r, e)
                                                                            : s;
}

void mf_run_unmake(run *r) {
    mf_watchdog_close(r->watchdog);
    r->watchdog = NULL;
    mf_exec_destroy(r->exec);
    mf_op_timer_destroy(r->timer);
    mf_schedule_destroy(r->schedule);
    mf_program_destroy(r->program);
    r->exec = NULL;
    r->timer = NULL;
    r->schedule = NULL;
    r->program = NULL;
}

static mf_status build(run *r, mf_err *e) {
    const mf_train_options *o = r->o;
    mf_status s = mf_layout_resolve(&r->layout, &r->model, e);
    if (s == MF_OK && o->assignment == NULL) {
        s = mf_assignment_even(&r->model, &r->layout, &r->assignment, e);
    } else if (s == MF_OK) {
        r->assignment = *o->assignment;
    }
    s = s == MF_OK ? mf_run_make(r, e) : s;
    s = s == MF_OK ? mf_data_mix_open(o->data, r->model.vocab, &r->data, e) : s;
    s = s == MF_OK ? mf_data_mix_check(r->data, r->layout.seq, e) : s;
    r->order = (mf_data_order){.seq = r->layout.seq, .seed = o->seed, .shuffle = o->shuffle};
    size_t loads = s == MF_OK ? (size_t)(r->program->assignment.positions * r->model.experts) : 0;
    r->loads = calloc(loads + 1, sizeof *r->loads);
    return s != MF_OK || r->loads != NULL ? s : mf_err_set(e, MF_NOMEM, "training: out of memory");
}

/* The data stream that a checkpoint's position counts in. */
static mf_status check_stream(const run *r, const mf_train_progress *s, mf_err *e) {
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
        s = check_stream(r, mf_checkpoint_progress(c), e);
    }
    if (s == MF_OK) {
        r->done = r->saved = mf_checkpoint_progress(c)->step;
        r->samples = mf_checkpoint_progress(c)->samples;
        r->skipped = mf_checkpoint_progress(c)->skipped;
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
            mf_err_set(e, s, "%s; %sremove that folder to resume from the one before", why.text,
                       s == MF_IO ? "should that last, " : "");
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
        s = mf_train_init_weights(r->exec, r->program, &at, o->seed, e);
    }
    return s;
}

/* From here on no other run writes to the folder. */
static mf_status lock_folder(run *r, mf_err *e) {
    char former[512];
    mf_status s = mf_folder_make(r->o->out, e);
    s = s == MF_OK ? mf_run_lock_take(r->o->out, MF_RUN_LOCK_PATIENCE_S, &r->lock, former,
                                      sizeof former, e)
                   : s;
    if (s == MF_OK && former[0] != '\0') {
        mf_run_warn(r, "%s: %s is gone without an end: its lock is taken over", r->o->out, former);
    }
    return s;
}

/* On rank 0, before the others read the folder. */
static mf_status prepare_folder(run *r, mf_err *e) {
    char newest[MF_PATH_B];
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
    mf_status s = lock_folder(r, e);
    if (s != MF_OK) {
        return s;
    }
    mf_checkpoint_clean(r->checkpoints);
    s = mf_checkpoint_newest(r->checkpoints, newest, sizeof newest, e);
    if (s == MF_OK && newest[0] != '\0' && !r->o->resume) {
        return mf_err_set(e, MF_USAGE,
                          "%s holds checkpoints of a run: --resume continues it, another --out "
                          "starts one",
                          out);
    }
    return s;
}

/* Checks that the streams' bytes are those that the run began with. */
static mf_status checksum_streams(run *r, mf_err *e) {
    char folder[MF_PATH_B];
    if (r->o->out == NULL || r->o->steps == 0) {
        return MF_OK;
    }
    if (!mf_path_join(folder, sizeof folder, r->o->out, "seals", NULL)) {
        return mf_err_set(e, MF_IO, "%s: path too long", r->o->out);
    }
    return mf_data_mix_checksum(r->data, r->comm, folder, r->resumed[0] != '\0', e);
}

mf_status mf_run_ready(run *r, mf_err *e) {
    mf_status s = mf_exec_share_weights(r->exec, e);
    s = s == MF_OK ? mf_exec_prepare(r->exec, e) : s;
    s = mf_comm_agree(r->comm, s == MF_OK ? watch_device(r, e) : s, e);
    r->arena_B = (double)mf_exec_arena_B(r->exec);
    s = s == MF_OK ? mf_comm_all_reduce(r->comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX,
                                        &r->arena_B, 1, e)
                   : s;
    return s == MF_OK ? mf_run_save_choose(r, e) : s;
}

static mf_status prepare(run *r, mf_err *e) {
    const mf_train_options *o = r->o;
    mf_status s = mf_comm_agree(r->comm, prepare_folder(r, e), e);
    s = s == MF_OK ? open_devices(r, e) : s;
    s = s == MF_OK ? agree(r, build(r, e), e) : s;
    s = s == MF_OK ? agree(r, load_weights(r, e), e) : s;
    s = s == MF_OK ? agree(r, checksum_streams(r, e), e) : s;
    s = s == MF_OK ? mf_run_ready(r, e) : s;
    s = s == MF_OK ? mf_run_pace_open(r, e) : s;
    mf_status opened = MF_OK;
    if (s == MF_OK && o->out != NULL && mf_comm_rank(r->comm) == 0) {
        const mf_metrics_parts parts = {r->model.mtp_layers > 0, o->exec.z_coef > 0,
                                        mf_run_has_pace(r), r->device->ops->draw != NULL};
        opened = mf_metrics_open(o->out, r->done, parts, &r->metrics, e);
        opened = opened == MF_OK ? mf_routing_counts_open(o->out, r->program->assignment.positions,
                                                          r->model.experts, &r->routing, e)
                                 : opened;
    }
    return s == MF_OK ? mf_comm_agree(r->comm, opened, e) : s;
}

/* --- end ---------------------------------------------------------------------------------------
 */

/* Exports the finished run's weights, from the checkpoint that it wrote last: rank 0. */
static mf_status export_weights(const run *r, mf_err *e) {
    char path[MF_PATH_B], folder[MF_PATH_B], config[MF_PATH_B];
    mf_checkpoint *c = NULL;
    mf_status s = mf_checkpoint_path(r->checkpoints, r->saved, path, sizeof path, e);
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
    bool ended = status == MF_OK || status == MF_INTERRUPTED;
    if (r->o->out == NULL || !ended) {
        return status;
    }
    mf_status s = MF_OK;
    mf_rank_watch_set_phase(r->watch, r->done, "results");
    s = mf_run_write_times(r, true, status == MF_OK ? e : NULL);
    if (s == MF_OK && status == MF_OK) {
        s = mf_comm_agree(r->comm, mf_comm_rank(r->comm) == 0 ? export_weights(r, e) : MF_OK, e);
    }
    return s == MF_OK || status != MF_OK ? status : s;
}

static void clear(run *r) {
    mf_checkpoint_saving_destroy(r->saving); /* its thread reads the executor's memory */
    mf_data_mix_close(r->data);
    mf_run_pace_close(r);
    mf_run_unmake(r);
    mf_comm_destroy(r->wire);
    if (r->device != NULL && r->o->device == NULL) {
        r->device->ops->close(r->device);
    }
    free(r->loads);
}

mf_status mf_train(const mf_train_options *o, bool *alone, mf_err *e) {
    run r = {.o = o, .model = *o->model, .layout = *o->layout, .saved = -1, .save_at = -1};
    int64_t rank, size;
    *alone = false;
    /* Lowers counts of the auxiliary loss where the run has one. */
    r.model.aux_loss_coef = r.model.experts > 0 ? o->exec.aux_coef : 0.0;
    mf_status status = mf_comm_start(&rank, &size, e);
    status = status == MF_OK ? mf_layout_resolve(&r.layout, &r.model, e) : status;
    status = status == MF_OK ? mf_comm_create(&r.layout, &r.comm, e) : status;
    if (status == MF_LAYOUT) { /* all ranks found the same */
        return rank == 0 ? status : mf_err_set(e, status, "%s", "");
    }
    status = status == MF_OK
                 ? mf_rank_watch_open(r.comm, &r.model, o->hang_s, o->lost, o->user, &r.watch, e)
                 : status;
    if (status != MF_OK) {
        mf_comm_destroy(r.comm);
        return rank == 0 || e->text[0] == '\0' ? status : mf_err_prefix(e, "rank %lld", LL(rank));
    }
    mf_rank_watch_heed(r.watch, o->cancel);
    status = status == MF_OK ? prepare(&r, e) : status;
    status = status == MF_OK ? mf_run_steps(&r, alone, e) : status;
    status = finish(&r, status, e);
    if (status == MF_LIBRARY) { /* in a step, or where ranks agree between two of them */
        mf_rank_watch_await_lost_host(r.watch);
    }
    if (*alone && !mf_rank_watch_first(r.watch)) {
        mf_err_set(e, status, "%s", "");
    }
    mf_status closed = mf_metrics_close(r.metrics, status == MF_OK ? e : NULL);
    const bool well = status == MF_OK && closed == MF_OK;
    mf_status counted = mf_routing_counts_close(r.routing, well, well ? e : NULL);
    closed = closed == MF_OK ? counted : closed;
    closed = closed == MF_OK ? mf_run_lock_stands(r.lock, status == MF_OK ? e : NULL) : closed;
    mf_run_lock_release(r.lock, !*alone); /* else others may still be writing */
    status = status == MF_OK && !*alone ? mf_comm_agree(r.comm, closed, e) : status;
    mf_rank_watch_close(r.watch, !*alone);
    if (*alone && r.layout.gpus > 1 && !r.device->ops->on_host) {
        return status; /* freeing would wait for its GPU, and that for other ranks, for ever */
    }
    clear(&r);
    mf_comm_destroy(r.comm);
    return status;
}
