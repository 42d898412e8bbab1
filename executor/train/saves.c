/* saves.c - when a run saves, and what it saves. */
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
           mf_run_now_s() - r->saved_s >= r->o->save_s;
}

mf_status mf_run_save(run *r, mf_err *e) {
    if (r->o->out == NULL || r->saved == r->done) {
        return MF_OK;
    }
    mf_checkpoint_stand s = {.step = r->done,
                             .samples = r->samples,
                             .skipped = r->skipped,
                             .seed = r->order.seed,
                             .shuffle = r->order.shuffle,
                             .seq = r->order.seq,
                             .streams = mf_data_mix_streams(r->data)};
    for (int i = 0; i < s.streams; i++) {
        s.stream_tokens[i] = mf_data_tokens(mf_data_mix_stream(r->data, i));
        s.stream_share[i] = mf_data_mix_share(r->data, i);
    }
    const double began_s = mf_run_now_s();
    mf_board_phase(r->board, r->done, "checkpoint");
    mf_status status = mf_checkpoint_save(r->exec, r->checkpoints, &s, r->o->keep, e);
    r->saved = status == MF_OK ? r->done : r->saved;
    mf_exec_state_release(r->exec);
    r->saved_s = mf_run_now_s();
    if (status == MF_OK && mf_comm_rank(r->comm) == 0 && r->o->saved != NULL) {
        r->o->saved(r->o->user, r->done, r->saved_s - began_s);
    }
    return status;
}
