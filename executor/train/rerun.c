/* rerun.c - steps that made no update: detects spikes of the loss, runs such a step again, and
 * finds where its first bad value came from. */
#include "core/base/sort.h"
#include "executor/train/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- spikes -------------------------------------------------------------------------------------
 */

double mf_run_loss_limit(const run *r) {
    double sorted[MF_RUN_LOSSES];
    const int64_t n = r->losses_known < MF_RUN_LOSSES ? r->losses_known : MF_RUN_LOSSES;
    if (!(r->o->spike > 0.0) || n < MF_RUN_LOSSES_LEAST) {
        return 0.0;
    }
    memcpy(sorted, r->losses, (size_t)n * sizeof *sorted);
    mf_sort_doubles(sorted, (size_t)n);
    return fmax(r->o->spike * sorted[n / 2], log((double)r->model.vocab));
}

void mf_run_loss_counts(run *r, double loss) {
    r->losses[r->losses_known++ % MF_RUN_LOSSES] = loss;
}

/* --- the step once more -------------------------------------------------------------------------
 */

/* The values of the step that has ended. */
static mf_status same_sample(void *user, int64_t index, int32_t *tokens, mf_err *e) {
    run *r = user;
    return mf_data_mix_sample(r->data, &r->order, r->samples - r->layout.gbs + index, tokens, e);
}

static mf_status look(run *r, mf_exec_result *out, mf_inspect_origin *origin, char *text,
                      size_t size, mf_err *e) {
    const mf_exec_batch batch = {same_sample, r};
    mf_status status = mf_inspect_create(r->exec, &r->model, r->device, &r->inspect, e);
    status = mf_comm_agree(r->comm, status, e);
    if (status == MF_OK) {
        mf_exec_use_graph(r->exec, false);
        mf_exec_use_streams(r->exec, false);
        mf_rank_watch_enter_step(r->watch, true); /* ops that are checked take long */
        status = mf_exec_gradients(r->exec, &batch, out, e);
        mf_rank_watch_leave_step(r->watch);
    }
    status = status == MF_OK ? mf_inspect_end(r->inspect, origin, text, size, e) : status;
    mf_inspect_destroy(r->inspect);
    r->inspect = NULL;
    return status;
}

/* Gives all ranks the text of the rank with the largest origin, the lowest rank of several. */
static mf_status spread(run *r, mf_inspect_origin origin, const char *text, mf_run_bad *out,
                        mf_err *e) {
    enum { LENGTH = sizeof out->where };
    double words[LENGTH] = {0};
    char line[LENGTH];
    const int64_t ranks = mf_comm_group_size(r->comm, MF_GROUP_WORLD);
    const int64_t place = ranks - mf_comm_rank(r->comm);
    const double mine =
        origin == MF_INSPECT_NOTHING ? 0.0 : (double)((int64_t)origin * (ranks + 1) + place);
    double best = mine;
    mf_status status =
        mf_comm_all_reduce(r->comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, &best, 1, e);
    snprintf(line, sizeof line, "rank %lld, %s", (long long)mf_comm_rank(r->comm), text);
    for (int i = 0; i < LENGTH && mine > 0.0 && mine >= best; i++) {
        words[i] = (double)(unsigned char)line[i];
        if (line[i] == '\0') {
            break;
        }
    }
    status = status == MF_OK ? mf_comm_all_reduce(r->comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX,
                                                  words, LENGTH, e)
                             : status;
    for (int i = 0; i < LENGTH; i++) {
        out->where[i] = (char)(unsigned char)words[i];
    }
    return status;
}

static bool same_bits(double a, double b) {
    uint64_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x == y || (isnan(a) && isnan(b));
}

static bool same(const mf_exec_result *a, const mf_exec_result *b) {
    return same_bits(a->lm_loss, b->lm_loss) && same_bits(a->mtp_loss, b->mtp_loss) &&
           same_bits(a->aux_loss, b->aux_loss) && same_bits(a->z_loss, b->z_loss) &&
           same_bits(a->grad_norm, b->grad_norm);
}

/* A step without an update, either way. */
static bool is_bad(const run *r, const mf_exec_result *x) {
    const double limit = mf_run_loss_limit(r);
    return !isfinite(x->lm_loss) || !isfinite(x->mtp_loss) || !isfinite(x->aux_loss) ||
           !isfinite(x->z_loss) || !isfinite(x->grad_norm) || (limit > 0.0 && x->lm_loss > limit);
}

mf_status mf_run_rerun(run *r, const mf_exec_result *first, mf_run_bad *out, mf_err *e) {
    mf_exec_result again = {0};
    mf_inspect_origin origin = MF_INSPECT_NOTHING;
    char text[sizeof out->where - 32] = "";
    out->again = MF_AGAIN_UNKNOWN;
    out->where[0] = '\0';
    if (r->begun > 0) { /* its weights are gone */
        return MF_OK;
    }
    mf_status status = look(r, &again, &origin, text, sizeof text, e);
    status = status == MF_OK ? spread(r, origin, text, out, e) : status;
    out->loss = again.lm_loss;
    out->norm = again.grad_norm;
    out->again = same(first, &again) ? MF_AGAIN_SAME
                 : is_bad(r, &again) ? MF_AGAIN_OTHER
                                     : MF_AGAIN_GOOD;
    return status;
}
