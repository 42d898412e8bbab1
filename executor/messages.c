/* messages.c - boundary tensors between virtual stages: of other ranks, or of this one. */
#include "executor/exec.h"

#include <string.h>

static int64_t rank_of_stage(const mf_exec *x, int64_t stage) {
    return mf_layout_rank_dense(&x->p->layout, x->at.t, x->at.c, x->at.d, stage);
}

static int tag_of(const mf_exec *x, int64_t vstage, int direction, int micro_batch) {
    return 2 * (int)(vstage * x->s->micro_batches + micro_batch) + direction;
}

/* The buffer is free again when this returns; a message to another rank has left its mailbox when
 * the next one from there is posted. */
mf_status mf_exec_post(mf_exec *x, int64_t from, int64_t to, int direction, int micro_batch,
                       const void *data, mf_err *e) {
    const mf_layout *l = &x->p->layout;
    int64_t stage = mf_layout_stage_of(l, to), edge = direction == 0 ? from : to;
    size_t size_B = (size_t)mf_program_message_B(x->p, edge);
    if (stage == x->stage) {
        for (int i = 0; i < x->waiting; i++) {
            mailbox *m = &x->mail[2 * x->sending + i];
            if (!m->full) {
                m->full = true;
                m->vstage = (int)to;
                m->micro_batch = micro_batch;
                m->direction = direction;
                memcpy(m->data, data, size_B);
                return MF_OK;
            }
        }
        return mf_err_set(e, MF_INTERNAL, "more than %d messages wait on one rank", x->waiting);
    }
    int slot = direction * x->sending + (int)(mf_layout_chunk_of(l, from) % x->sending);
    mf_status status = mf_comm_wait_send(x->comm, slot, e);
    if (status != MF_OK) {
        return status;
    }
    memcpy(x->mail[slot].data, data, size_B);
    mf_exec_ran(x, mf_program_send(x->p, edge, direction));
    return mf_comm_send(x->comm, slot, rank_of_stage(x, stage),
                        tag_of(x, to, direction, micro_batch), x->mail[slot].data, size_B, e);
}

mf_status mf_exec_collect(mf_exec *x, int64_t at, int64_t from, int direction, int micro_batch,
                          void *data, mf_err *e) {
    int64_t stage = mf_layout_stage_of(&x->p->layout, from), edge = direction == 0 ? from : at;
    size_t size_B = (size_t)mf_program_message_B(x->p, edge);
    if (stage != x->stage) {
        return mf_comm_receive(x->comm, rank_of_stage(x, stage),
                               tag_of(x, at, direction, micro_batch), data, size_B, e);
    }
    for (int i = 0; i < x->waiting; i++) {
        mailbox *m = &x->mail[2 * x->sending + i];
        if (m->full && m->vstage == at && m->micro_batch == micro_batch &&
            m->direction == direction) {
            memcpy(data, m->data, size_B);
            m->full = false;
            return MF_OK;
        }
    }
    return mf_err_set(e, MF_INTERNAL, "virtual stage %lld has no input for micro-batch %d",
                      (long long)at, micro_batch);
}

mf_status mf_exec_end_messages(mf_exec *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < 2 * x->sending && status == MF_OK; i++) {
        status = mf_comm_wait_send(x->comm, i, e);
    }
    for (int i = 0; i < x->waiting; i++) {
        x->mail[2 * x->sending + i].full = false;
    }
    return status;
}
