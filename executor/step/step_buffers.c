/* step_buffers.c - host buffers of steps: a batch is uploaded and results are downloaded while
 * another step runs. */
#include "core/base/clock.h"
#include "executor/step/exec.h"

#include <math.h>
#include <string.h>

/* --- buffers -------------------------------------------------------------------------------------
 */

int64_t mf_exec_batch_rows(const mf_exec *x) {
    const mf_layout *l = &x->p->layout;
    return (x->p->model.mtp_layers + 1) * 2 * l->mbs * (l->seq / l->cp);
}

/* Bytes of a step's batch; its learning rate and the limit of its loss stand behind them. */
static int64_t batch_B(const mf_exec *x) {
    return mf_align_B(x->p->layout.micro_batches * mf_exec_batch_rows(x) *
                      (int64_t)sizeof(int32_t));
}

static int64_t up_B(const mf_exec *x) {
    return batch_B(x) + MF_ALIGN_B;
}

int64_t mf_exec_ahead(const mf_exec *x) {
    return mf_exec_device(x)->on_host || mf_exec_device(x)->point == NULL ? 1 : MF_DEVICE_POINTS;
}

mf_status mf_exec_step_buffers_init(mf_exec *x, mf_err *e) {
    const mf_device_ops *device = mf_exec_device(x);
    mf_status status = MF_OK;
    void *memory = NULL;
    for (int64_t i = 0; i < mf_exec_ahead(x) && status == MF_OK; i++) {
        step_buffers *f = &x->buffers[i];
        status = device->allocate_host(x->device, up_B(x), &memory, e);
        f->up = memory;
        status =
            status == MF_OK ? device->allocate_host(x->device, x->in.report_B, &memory, e) : status;
        f->down = status == MF_OK ? memory : NULL;
    }
    x->report = x->buffers[0].down;
    x->batch = (int32_t *)(void *)x->buffers[0].up;
    if (!device->on_host && status == MF_OK) {
        status = device->side_queue(x->device, MF_DEVICE_UPLOADS, &x->uploads, e);
    }
    if (!device->on_host && status == MF_OK) {
        status = device->allocate(x->device, 2 * up_B(x), &memory, e);
        x->ahead = memory;
        x->batch = status == MF_OK ? (int32_t *)(void *)(x->ahead + up_B(x)) : NULL;
    }
    return status;
}

/* Steps that nobody reads may still be on their way. */
void mf_exec_step_buffers_clear(mf_exec *x) {
    if (x->entered != x->finished) {
        mf_err ignored;
        (void)mf_exec_device(x)->wait(x->device, &ignored);
    }
    for (int i = 0; i < MF_DEVICE_POINTS; i++) {
        mf_exec_device(x)->release_host(x->device, x->buffers[i].up);
        mf_exec_device(x)->release_host(x->device, x->buffers[i].down);
    }
    mf_exec_device(x)->release(x->device, x->ahead);
}

/* --- up ------------------------------------------------------------------------------------------
 */

/* Tokens and labels of a micro-batch's rows, for the model itself and each MTP depth: depth d reads
 * the token d places further on, and predicts the one after it. Past the sample's end nothing is
 * known: token 0, label ignored. */
static void spread_sample(const mf_exec *x, int32_t *of_batch, int64_t b) {
    const mf_layout *l = &x->p->layout;
    int64_t local = l->seq / l->cp, rows = l->mbs * local;
    for (int64_t depth = 0; depth <= x->p->model.mtp_layers; depth++) {
        int32_t *token = of_batch + 2 * depth * rows, *label = token + rows;
        for (int64_t i = 0; i < local; i++) {
            int64_t at = x->zigzag[i] + depth;
            token[b * local + i] = at <= l->seq ? x->sample[at] : 0;
            label[b * local + i] = at + 1 <= l->seq ? x->sample[at + 1] : -1;
        }
    }
}

static mf_status read_batch(mf_exec *x, const mf_exec_batch *batch, int32_t *out, mf_err *e) {
    const mf_layout *l = &x->p->layout;
    for (int64_t m = 0; m < l->micro_batches; m++) {
        for (int64_t b = 0; b < l->mbs; b++) {
            int64_t index = (m * l->dp + x->at.d) * l->mbs + b;
            mf_status status = batch->sample(batch->user, index, x->sample, e);
            if (status != MF_OK) {
                return status;
            }
            spread_sample(x, out + m * mf_exec_batch_rows(x), b);
        }
    }
    return MF_OK;
}

/* The upload goes beside the step that still runs; only a copy inside the device waits for that. */
static mf_status upload(mf_exec *x, const char *up, mf_err *e) {
    const mf_device_ops *device = mf_exec_device(x);
    const char *from = up;
    mf_status status = MF_OK;
    if (x->ahead != NULL) {
        from = x->ahead;
        status = device->copy(x->uploads, x->ahead, up, (size_t)up_B(x), e);
        status = status == MF_OK ? device->order(x->uploads, x->queue, e) : status;
        status = status == MF_OK ? mf_exec_copy(x, x->batch, from, (size_t)batch_B(x), e) : status;
    }
    status = status == MF_OK
                 ? mf_exec_copy(x, &x->update->lr, from + batch_B(x), sizeof x->update->lr, e)
                 : status;
    status = status == MF_OK
                 ? mf_exec_copy(x, &x->update->limit, from + batch_B(x) + sizeof x->update->lr,
                                sizeof x->update->limit, e)
                 : status;
    return status == MF_OK && x->ahead != NULL ? device->order(x->queue, x->uploads, e) : status;
}

/* The queue reaches the mark when the step before has ended, or at once where it is idle. */
static mf_status begin_time(mf_exec *x, mf_err *e) {
    const int slot = (int)(x->entered % mf_exec_ahead(x));
    x->buffers[slot].began_s = mf_clock_s();
    return mf_exec_device(x)->mark != NULL ? mf_exec_device(x)->mark(x->queue, 2 * slot, e) : MF_OK;
}

mf_status mf_exec_send_batch(mf_exec *x, const mf_exec_batch *batch, double lr, mf_err *e) {
    const step_buffers *f = &x->buffers[x->entered % mf_exec_ahead(x)];
    const mf_layout *l = &x->p->layout;
    /* Of the sum over all labels. */
    const float given[2] = {(float)lr, (float)(x->loss_limit * (double)(l->gbs * l->seq))};
    if (x->entered - x->finished == mf_exec_ahead(x)) {
        return mf_err_set(e, MF_INTERNAL, "a step was begun before another one had finished");
    }
    mf_status status = begin_time(x, e);
    status = status == MF_OK ? read_batch(x, batch, (int32_t *)(void *)f->up, e) : status;
    memcpy(f->up + batch_B(x), given, sizeof given);
    return status == MF_OK ? upload(x, f->up, e) : status;
}

/* --- down ----------------------------------------------------------------------------------------
 */

mf_status mf_exec_request_results(mf_exec *x, mf_err *e) {
    const int slot = (int)(x->entered % mf_exec_ahead(x));
    step_buffers *f = &x->buffers[slot];
    f->ops = x->ops;
    mf_status status = mf_exec_copy(x, f->down, x->inputs + x->in.sums, (size_t)x->in.report_B, e);
    if (status == MF_OK && x->work.span_ns != NULL) {
        status = mf_exec_copy(x, f->spans, x->work.span_ns,
                              (size_t)mf_exec_spans(x->p) * sizeof *f->spans, e);
    }
    if (status == MF_OK && mf_exec_device(x)->mark != NULL) {
        status = mf_exec_device(x)->mark(x->queue, 2 * slot + 1, e);
    }
    if (status == MF_OK && mf_exec_device(x)->point != NULL) {
        status = mf_exec_device(x)->point(x->queue, slot, e);
    }
    x->entered++;
    return status;
}

double mf_exec_aux_scopes(const mf_exec *x) {
    const mf_layout *l = &x->p->layout;
    return (double)(l->micro_batches * (l->aux_scope == MF_AUX_GLOBAL ? 1 : l->dp));
}

/* From the sums over all ranks of what each of them counted of its own rows. */
static void read_losses(mf_exec *x, const step_buffers *f, mf_exec_result *out) {
    const mf_layout *l = &x->p->layout;
    double *sums = (double *)(void *)f->down, *aux = sums + MF_STEP_SUMS;
    const mf_kernel_update_state *update = (void *)(f->down + (x->in.update - x->in.sums));
    out->grad_norm = sqrt(sums[0]);
    out->lm_loss = sums[1] / (double)(l->gbs * l->seq);
    out->mtp_loss = sums[2];
    out->z_loss = sums[3] / (double)(l->gbs * l->seq);
    out->aux_loss = 0.0;
    for (int i = 0; i < x->p->assignment.positions; i++) {
        aux[i] /= mf_exec_aux_scopes(x);
        out->aux_loss += aux[i];
    }
    out->aux_of_position = aux;
    out->skipped = update->skip != 0;
    out->updates_skipped = update->skipped;
    out->overflowed = update->overflow;
    out->ops = f->ops;
    /* Between two reports, as one follows the other. */
    out->worked_s = 1e-9 * (double)(update->worked_ns - x->work.seen_ns);
    x->work.seen_ns = update->worked_ns;
    out->span_ns = f->spans;
}

static mf_status read_time(mf_exec *x, int slot, double *took_s, mf_err *e) {
    const mf_device_ops *device = mf_exec_device(x);
    *took_s = mf_clock_s() - x->buffers[slot].began_s;
    return device->between != NULL ? device->between(x->device, 2 * slot, 2 * slot + 1, took_s, e)
                                   : MF_OK;
}

mf_status mf_exec_read_results(mf_exec *x, mf_exec_result *out, mf_err *e) {
    const mf_device_ops *device = mf_exec_device(x);
    const int slot = (int)(x->finished % mf_exec_ahead(x));
    if (x->entered == x->finished) {
        return mf_err_set(e, MF_INTERNAL, "no step is on its way");
    }
    mf_status status =
        device->point != NULL ? device->reach(x->device, slot, e) : device->wait(x->device, e);
    x->finished++;
    x->report = x->buffers[slot].down;
    read_losses(x, &x->buffers[slot], out);
    return status == MF_OK ? read_time(x, slot, &out->took_s, e) : status;
}
