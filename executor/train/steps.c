/* steps.c - the steps of a run: started ahead of the device, ended one by one, reported, saved. */
#include "core/base/flag.h"
#include "executor/files/files.h"
#include "executor/train/op_times.h"
#include "executor/train/run.h"

#include <math.h>
#include <stdio.h>

#define LL(x) ((long long)(x))

/* Tells the watchdog and the rank watch that the host waits for the device from here on (an
 * asynchronous one); rest() ends the wait. */
static void await_device(run *r) {
    if (!r->device->ops->on_host) {
        mf_watchdog_wait(r->watchdog, r->done + 1);
        mf_rank_watch_set_waits(r->watch, MF_RANK_WATCH_FOR_DEVICE);
    }
}

static void rest(run *r) {
    mf_watchdog_rest(r->watchdog);
    mf_rank_watch_set_waits(r->watch, MF_RANK_WATCH_WORKS);
}

/* Reads a sample of the step that begins, while steps before it may still run. After the sample the
 * host may wait for the device, whose queues may be full; before it, for a slow file. */
static mf_status next_sample(void *user, int64_t index, int32_t *tokens, mf_err *e) {
    run *r = user;
    const int64_t first = r->samples + r->begun * r->layout.gbs;
    rest(r);
    mf_status status = mf_data_mix_sample(r->data, &r->order, first + index, tokens, e);
    await_device(r);
    return status;
}

/* --- metrics
 * --------------------------------------------------------------------------------------
 */

/* Rows of the busiest expert over the mean, in the most uneven layer. */
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

/* Of rank 0's GPU since the last time. 0: not known. */
static void fill_draw(run *r, mf_train_metrics *m) {
    const mf_device_ops *ops = r->device->ops;
    mf_device_draw now;
    const double now_s = mf_clock_s();
    if (ops->draw == NULL || !ops->draw(r->device, &now)) {
        return;
    }
    m->used_B = (double)ops->used_B(r->device);
    m->clock_MHz = now.clock_MHz;
    m->power_W = r->drawn_s > 0 ? (now.energy_J - r->drawn.energy_J) / (now_s - r->drawn_s) : 0.0;
    r->drawn = now;
    r->drawn_s = now_s;
}

static void fill_metrics(const run *r, const mf_exec_result *result, mf_train_metrics *m) {
    const mf_layout *l = &r->layout;
    double peak = r->o->cluster->gpu.peak_flops[mf_precision_math(l->precision)];
    double tokens = (double)(l->gbs * l->seq);
    m->step = r->done;
    m->samples = r->samples;
    m->skipped = (double)r->skipped;
    m->lm_loss = result->lm_loss;
    m->mtp_loss = result->mtp_loss;
    m->aux_loss = result->aux_loss;
    m->z_loss = result->z_loss;
    m->grad_norm = result->grad_norm;
    m->step_time_s = result->took_s;
    m->tokens_per_s = tokens / result->took_s;
    m->model_tflops_per_gpu =
        1e-12 * m->tokens_per_s / (double)l->gpus * mf_model_flops_per_token(&r->model, l->seq);
    m->mfu = peak > 0.0 ? 1e12 * m->model_tflops_per_gpu / peak : 0.0;
    m->memory_B = r->arena_B;
    m->expert_load_max_over_mean = load_max_over_mean(r);
    m->eta_s = (double)(r->o->steps - r->done) * (mf_clock_s() - r->began_s) / (double)r->own;
}

static bool times_ops(const run *r) {
    return r->device->ops->mark != NULL && r->own < MF_OP_TIMED_STEPS && r->o->out != NULL;
}

static void choose_timing(run *r) {
    bool marks = r->device->ops->mark != NULL;
    mf_op_timer_use(r->timer, !marks || times_ops(r));
    mf_exec_use_graph(r->exec, r->o->exec.graph && !times_ops(r));
    mf_exec_use_streams(r->exec, !times_ops(r));
}

static double rate_of(const run *r, int64_t step) {
    const mf_train_options *o = r->o;
    return mf_train_lr(o->lr_schedule, o->lr, o->lr_min, o->warmup, o->steps, step);
}

static mf_status begin_step(run *r, mf_err *e) {
    const mf_exec_batch batch = {next_sample, r};
    const int64_t step = mf_run_entering(r);
    choose_timing(r);
    mf_exec_limit_loss(r->exec, mf_run_loss_limit(r));
    mf_run_pace_begin(r);
    mf_status status = mf_exec_step_begin(r->exec, &batch, rate_of(r, step), e);
    rest(r);
    r->begun++;
    return status == MF_OK ? status : mf_err_prefix(e, "step %lld", LL(step));
}

/* Begins the current step and, while it runs, the next one. But not past a checkpoint, which holds
 * the state between two steps, not while ops are timed one by one, and not when the step may have
 * to run again from its weights. */
static mf_status begin_steps(run *r, mf_err *e) {
    mf_status status = MF_OK;
    while (status == MF_OK && r->begun < mf_exec_ahead(r->exec) &&
           r->done + r->begun < r->o->steps &&
           (r->begun == 0 || !(times_ops(r) || r->o->rerun || r->in_row > 0 ||
                               mf_run_saves_after(r, r->done + r->begun)))) {
        status = begin_step(r, e);
    }
    return status;
}

/* Rows of a step did not fit, so the device skipped its update and those of all steps after it.
 * Ends these steps; afterwards none counts as begun. */
static mf_status take_back(run *r, mf_err *e) {
    mf_exec_result ignored;
    mf_status status = MF_OK;
    while (--r->begun > 0 && status == MF_OK) {
        status = mf_exec_step_finish(r->exec, &ignored, e);
    }
    return status;
}

/* Ends a step: waits until the device is done with it. */
static mf_status end_step(run *r, mf_train_metrics *m, mf_run_bad *bad, int64_t *overflowed,
                          mf_err *e) {
    mf_exec_result result;
    *bad = (mf_run_bad){.again = MF_AGAIN_UNKNOWN};
    *m = (mf_train_metrics){0};
    m->lr = rate_of(r, r->done + 1);
    await_device(r);
    mf_status status = mf_exec_step_finish(r->exec, &result, e);
    rest(r);
    if (status != MF_OK) {
        return mf_err_prefix(e, "step %lld", LL(r->done + 1));
    }
    *overflowed = result.overflowed;
    if (result.overflowed != 0) {
        return take_back(r, e);
    }
    r->done++;
    r->begun--;
    r->own++;
    r->samples += r->layout.gbs;
    r->skipped = result.updates_skipped;
    r->in_row = result.skipped ? r->in_row + 1 : 0;
    mf_op_timer_step(r->timer, result.took_s, r->own > 1);
    mf_rank_watch_set_phase(r->watch, r->done, "metrics");
    status = mf_run_pace_end(r, &result, m, e);
    if (status == MF_OK && r->model.experts > 0) {
        status = mf_exec_expert_load(r->exec, r->loads, e);
    }
    if (status == MF_OK && mf_comm_rank(r->comm) == 0) {
        fill_metrics(r, &result, m);
        fill_draw(r, m);
    }
    if (!result.skipped) {
        mf_run_loss_counts(r, result.lm_loss);
        return status;
    }
    mf_rank_watch_set_phase(r->watch, r->done, "the step once more");
    return status == MF_OK ? mf_run_rerun(r, &result, bad, e) : status;
}

/* Agrees over all ranks, at the same step: does one want to end, is it time to save by rank 0's
 * clock, does one still write its part of a checkpoint? */
static mf_status ask(run *r, bool wish, bool *stop, mf_err *e) {
    const volatile int *cancel = r->o->cancel;
    double any[3] = {wish || mf_flag_is_set(cancel), mf_run_save_is_due(r), mf_run_save_is_busy(r)};
    mf_status status =
        mf_comm_all_reduce(r->comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, any, 3, e);
    *stop = any[0] > 0.5;
    if (any[1] > 0.5 && r->save_at < r->done) {
        r->save_at = r->done + r->begun; /* after the steps that have begun */
    }
    return status == MF_OK && r->saving != NULL && any[2] < 0.5 ? mf_run_save_advance(r, e)
                                                                : status;
}

/* Names the metric of a step that is not finite; NULL when all are. */
static const char *not_finite(const mf_train_metrics *m, double *value) {
    const struct {
        const char *name;
        double value;
    } part[] = {{"loss", m->lm_loss},
                {"MTP loss", m->mtp_loss},
                {"z-loss", m->z_loss},
                {"gradient norm", m->grad_norm}};
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++) {
        *value = part[i].value;
        if (!isfinite(part[i].value)) {
            return part[i].name;
        }
    }
    return NULL;
}

/* Says what is wrong with the step, and what came out when it was run again. */
static void describe_bad(const run *r, const mf_train_metrics *m, const mf_run_bad *bad, char *out,
                         size_t size) {
    double value = 0.0;
    const char *name = not_finite(m, &value);
    int n;
    if (name == NULL && isfinite(m->grad_norm) && r->o->spike > 0.0) {
        n = snprintf(out, size, "step %lld: the loss is %.4g, a spike", LL(m->step), m->lm_loss);
    } else {
        n = snprintf(out, size, "step %lld: the %s is %s", LL(m->step),
                     name != NULL ? name : "sum of squares of the gradients",
                     isnan(value) ? "not a number" : "infinite");
    }
    char *more = out + n;
    const size_t left = size - (size_t)n;
    if (bad->where[0] != '\0') {
        snprintf(more, left, " (first bad value: %s)", bad->where);
    } else if (bad->again == MF_AGAIN_GOOD) {
        snprintf(more, left,
                 " (run again, its loss is %.4f and its norm %.3f: a fault that passed)", bad->loss,
                 bad->norm);
    } else if (bad->again == MF_AGAIN_OTHER) {
        snprintf(more, left, " (run again, its loss is %.4g and its norm %.4g)", bad->loss,
                 bad->norm);
    } else if (bad->again == MF_AGAIN_SAME) {
        snprintf(more, left, " (the same again, of finite values)");
    }
}

/* Reports a step whose update was left out. Too many in a row end the run, and so does a transient
 * fault when the user asked to check for them; the state is then that before the first such step.
 */
static mf_status check_skipped(const run *r, const mf_train_metrics *m, const mf_run_bad *bad,
                               mf_err *e) {
    char what[700];
    if (r->in_row == 0) {
        return MF_OK;
    }
    describe_bad(r, m, bad, what, sizeof what);
    if (r->o->rerun && bad->again == MF_AGAIN_GOOD) {
        return mf_err_set(e, MF_TRANSIENT, "%s", what);
    }
    if (r->in_row <= r->o->max_skips) {
        mf_run_warn(r, "%s: its update is left out (%lld in a row)", what, LL(r->in_row));
        return MF_OK;
    }
    return mf_err_set(e, r->o->rerun ? MF_LASTING : MF_DIVERGED,
                      "%s, the update of %lld step%s in a row left out: training has diverged",
                      what, LL(r->in_row), r->in_row == 1 ? "" : "s");
}

/* Reports a step. Only rank 0 does, and all ranks agree on the outcome. */
static mf_status tell(run *r, const mf_train_metrics *m, const mf_run_bad *bad, bool *wish,
                      mf_err *e) {
    mf_status status = mf_comm_rank(r->comm) == 0 ? check_skipped(r, m, bad, e) : MF_OK;
    status = status == MF_OK ? mf_run_lock_stands(r->lock, e) : status;
    if (status == MF_OK && r->metrics != NULL) {
        status = mf_metrics_add(r->metrics, m, e);
    }
    if (status == MF_OK && r->routing != NULL) {
        status = mf_routing_counts_add(r->routing, m->step, r->loads, e);
        mf_err gone; /* the run's folder is gone: that is the error to report */
        if (status == MF_IO && e != NULL && mf_run_lock_stands(r->lock, &gone) != MF_OK) {
            *e = gone;
        }
    }
    if (status == MF_OK && mf_comm_rank(r->comm) == 0 && r->o->stepped != NULL) {
        *wish = r->o->stepped(r->o->user, m) != 0;
    }
    return mf_comm_agree(r->comm, status, e);
}

mf_status mf_run_write_times(run *r, bool ended, mf_err *e) {
    char path[MF_PATH_B];
    bool marks = r->device->ops->mark != NULL;
    bool due = marks && r->own >= MF_OP_TIMED_STEPS ? r->own == MF_OP_TIMED_STEPS && !ended : ended;
    if (r->o->out == NULL || !due || r->own < 2 ||
        !mf_path_join(path, sizeof path, r->o->out, "op_times.json", NULL)) {
        return MF_OK;
    }
    return mf_op_timer_write(r->timer, r->comm, r->done - r->own + 1, path, e);
}

static int report_start(run *r) {
    mf_train_start s = {.exec = r->exec,
                        .device = r->device,
                        .arena_B = (int64_t)r->arena_B,
                        .first_step = r->done + 1,
                        .resumed = r->resumed[0] != '\0' ? r->resumed : NULL,
                        .streams = mf_data_mix_streams(r->data)};
    for (int i = 0; i < s.streams; i++) {
        s.stream_tokens += mf_data_tokens(mf_data_mix_stream(r->data, i));
    }
    return r->o->started != NULL ? r->o->started(r->o->user, &s) : 0;
}

/* Does one step, or ends one that was begun, and then what follows it: a save, more headroom.
 * *alone: the error is this rank's, and the others do not know of it. */
static mf_status step(run *r, bool *wish, bool *stop, bool *alone, mf_err *e) {
    int64_t overflowed = 0;
    mf_train_metrics m;
    mf_run_bad bad;
    *alone = true;
    mf_rank_watch_enter_step(r->watch, r->own == 0);
    mf_status status = *stop ? MF_OK : begin_steps(r, e);
    status = status == MF_OK ? end_step(r, &m, &bad, &overflowed, e) : status;
    mf_rank_watch_leave_step(r->watch);
    if (status != MF_OK) {
        return status;
    }
    *alone = false;
    if (overflowed != 0) {
        status = mf_run_save_finish(r, e); /* which still uses the old program */
        mf_rank_watch_set_phase(r->watch, r->done + 1, "more headroom");
        return status == MF_OK ? mf_run_more_headroom(r, overflowed, e) : status;
    }
    status = tell(r, &m, &bad, wish, e);
    status = status == MF_OK ? ask(r, *wish || *stop, stop, e) : status;
    status = status == MF_OK ? mf_run_write_times(r, false, e) : status;
    return status == MF_OK && mf_run_saves_after(r, r->done) ? mf_run_save(r, e) : status;
}

/* All ranks end for the same error: completes the checkpoint that is being written, as if training
 * had waited for it. */
static mf_status end_failed(run *r, mf_status status, mf_err *e) {
    (void)mf_run_save_finish(r, NULL);
    const bool of_steps = status == MF_DIVERGED || status == MF_TRANSIENT || status == MF_LASTING;
    if (of_steps && r->saved > 0 && e != NULL && e->text[0] != '\0') {
        const mf_err why = *e;
        mf_err_set(e, status, "%s; --resume goes back to step %lld", why.text, LL(r->saved));
    }
    return status;
}

mf_status mf_run_steps(run *r, bool *alone, mf_err *e) {
    bool wish = mf_comm_rank(r->comm) == 0 && report_start(r) != 0, stop = false;
    mf_status status = ask(r, wish, &stop, e);
    r->began_s = r->saved_s = mf_clock_s();
    while (status == MF_OK && (!stop || r->begun > 0) && r->done < r->o->steps) {
        status = step(r, &wish, &stop, alone, e);
    }
    if (status != MF_OK) {
        return *alone ? status : end_failed(r, status, e);
    }
    status = mf_run_save_last(r, e);
    if (status == MF_OK && stop) {
        status = mf_comm_rank(r->comm) == 0
                     ? mf_err_set(e, MF_INTERRUPTED, "ended after step %lld%s", LL(r->done),
                                  r->saved >= 0 ? ", which is saved" : "")
                     : mf_err_set(e, MF_INTERRUPTED, "%s", "");
    }
    return status;
}
