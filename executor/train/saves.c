/* saves.c - when a run saves, what it saves, and how long training stands still for it. */
#include "executor/train/run.h"

#include <math.h>

double mf_train_save_interval_s(double save_s, double mtbf_s) {
    return sqrt(2.0 * save_s * mtbf_s);
}

bool mf_run_saves_after(const run *r, int64_t step) {
    return (r->o->save_every > 0 && step % r->o->save_every == 0) || step == r->save_at;
}

bool mf_run_save_is_due(const run *r) {
    return r->o->save_s > 0.0 && r->own > 0 && mf_comm_rank(r->comm) == 0 &&
           mf_clock_s() - r->saved_s >= r->o->save_s;
}

/* The copy takes memory that no plan counts: on CPU ranks it has to fit beside the arena. */
mf_status mf_run_save_choose(run *r, mf_err *e) {
    double most_B = (double)mf_exec_staging_B(r->exec);
    mf_status status =
        mf_comm_all_reduce(r->comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, &most_B, 1, e);
    const double usable_B = mf_cluster_usable_B(r->o->cluster, r->layout.reserve);
    const bool fits = !r->device->ops->on_host || r->arena_B + most_B <= usable_B;
    r->beside = !r->o->save_waits && fits;
    if (status == MF_OK && !fits && !r->o->save_waits && r->o->out != NULL) {
        mf_run_warn(r,
                    "training waits while checkpoints are written: a rank's copy of %.2f GB does "
                    "not fit beside its %.2f GB into the %.2f usable",
                    1e-9 * most_B, 1e-9 * r->arena_B, 1e-9 * usable_B);
    }
    return status;
}

static void progress_of(const run *r, mf_train_progress *s) {
    *s = (mf_train_progress){.step = r->done,
                             .samples = r->samples,
                             .skipped = r->skipped,
                             .seed = r->order.seed,
                             .shuffle = r->order.shuffle,
                             .seq = r->order.seq,
                             .streams = mf_data_mix_streams(r->data)};
    for (int i = 0; i < s->streams; i++) {
        s->stream_tokens[i] = mf_data_tokens(mf_data_mix_stream(r->data, i));
        s->stream_share[i] = mf_data_mix_share(r->data, i);
    }
}

bool mf_run_save_is_busy(const run *r) {
    return r->saving != NULL && !mf_checkpoint_thread_done(r->saving);
}

static mf_status advance(run *r, bool steps_wait, mf_err *e) {
    bool complete = false;
    const double began_s = mf_clock_s();
    mf_status status = mf_checkpoint_advance(r->saving, &complete, e);
    const double now_s = mf_clock_s();
    r->save.stall_s += steps_wait ? now_s - began_s : 0.0;
    if (status == MF_OK && !complete) {
        return MF_OK;
    }
    mf_checkpoint_saving_destroy(r->saving);
    r->saving = NULL;
    if (status == MF_OK) {
        r->saved = r->save.step;
        r->save.took_s = now_s - r->save_began_s;
        if (mf_comm_rank(r->comm) == 0 && r->o->saved != NULL) {
            r->o->saved(r->o->user, &r->save);
        }
    }
    return status;
}

mf_status mf_run_save_advance(run *r, mf_err *e) {
    return advance(r, true, e);
}

static mf_status finish(run *r, bool steps_wait, mf_err *e) {
    mf_status status = MF_OK;
    if (r->saving != NULL) {
        mf_rank_watch_set_phase(r->watch, r->done, "checkpoint");
    }
    while (r->saving != NULL && status == MF_OK) {
        status = advance(r, steps_wait, e);
    }
    return status;
}

mf_status mf_run_save_finish(run *r, mf_err *e) {
    return finish(r, true, e);
}

/* Begins to save the current step; no other save is being written. */
static mf_status begin(run *r, mf_err *e) {
    mf_train_progress s;
    progress_of(r, &s);
    mf_rank_watch_set_phase(r->watch, r->done, "checkpoint");
    const double began_s = mf_clock_s();
    r->save = (mf_train_saved){.step = r->done, .beside = r->beside};
    r->save_began_s = began_s;
    mf_status status =
        mf_checkpoint_begin(r->exec, r->checkpoints, &s, r->o->keep, r->beside, &r->saving, e);
    r->save.stall_s = mf_clock_s() - began_s;
    return status != MF_OK || r->beside ? status : mf_run_save_finish(r, e);
}

static bool is_saved(const run *r) {
    return r->o->out == NULL || r->saved == r->done ||
           (r->saving != NULL && r->save.step == r->done);
}

mf_status mf_run_save(run *r, mf_err *e) {
    mf_status status = MF_OK;
    if (is_saved(r)) {
        return MF_OK;
    }
    if (r->saving != NULL) {
        const int64_t step = r->save.step;
        const double began_s = mf_clock_s();
        status = mf_run_save_finish(r, e);
        if (status == MF_OK && !r->waited) {
            mf_run_warn(r,
                        "step %lld: its checkpoint waited %.3g s for that of step %lld to be "
                        "written: saves are closer together than a save takes (said once)",
                        (long long)r->done, mf_clock_s() - began_s, (long long)step);
            r->waited = true;
        }
    }
    status = status == MF_OK ? begin(r, e) : status;
    r->saved_s = mf_clock_s();
    return status;
}

/* No step waits for this save, so its time is no stall. */
mf_status mf_run_save_last(run *r, mf_err *e) {
    mf_status status = is_saved(r) ? MF_OK : finish(r, false, e);
    status = status == MF_OK && !is_saved(r) ? begin(r, e) : status;
    return status == MF_OK ? finish(r, false, e) : status;
}
