/* messages.c - boundary tensors between virtual stages: of other ranks, or of this one.
 *
 * A message to another rank lies in the mailbox of its slot (mf_schedule_slot) from when it is
 * posted until the receiver takes it, at the beginning of the pass that reads it. Compute waits in
 * two places alone: before it posts into a mailbox that is still full, and where it receives.
 *
 * Nobody waits for ever, whatever the schedule. On a device a send runs on a queue of its slot,
 * behind what compute has put into the mailbox, and compute comes to wait for that queue only at
 * the slot's next post and at the end of the step: so a send holds up nothing else of its rank. A
 * receive runs on the queue of compute. Each (slot, two neighbouring stages) has a communicator of
 * its own, on which one of the two only sends and the other only receives; both do it in the same
 * order. So what waits for what is what waits for what on the CPU: a pass for the message that it
 * reads, a post for the receive of the slot's last message, and each queue for what was entered
 * before. tests/property/test_schedule_messages.c plays every schedule by these rules to its end
 * and finds messages received in the order in which they were sent. A graph of the step has the
 * same edges: a send has one from the copy into its mailbox, and to the next copy there.
 *
 * This rests on sends running beside compute. Their queues share no connection to the GPU with
 * another queue (device_cuda.c), their kernels leave most of the GPU free (comm_nccl_cuda.c), no
 * kernel of a step needs the whole GPU at once, and nothing in a step makes the driver wait for all
 * queues, as loading a kernel may: mf_exec_prepare has loaded all of them, and all communicators
 * have found their peers. */
#include "executor/step/exec.h"

static int64_t rank_of_stage(const mf_exec *x, int64_t stage) {
    return mf_layout_rank_dense(&x->p->layout, x->at.t, x->at.c, x->at.d, stage);
}

static int tag_of(const mf_exec *x, int64_t vstage, int direction, int micro_batch) {
    return 2 * (int)(vstage * x->s->micro_batches + micro_batch) + direction;
}

mf_status mf_exec_open_messages(mf_exec *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < 2 * x->sending && status == MF_OK; i++) {
        status = mf_exec_device(x)->side_queue(x->device, i, &x->mail[i].leaves, e);
    }
    return status;
}

/* Compute goes on when the mailbox's last message has left it. */
static mf_status empty_mailbox(mf_exec *x, int slot, mf_err *e) {
    mailbox *m = &x->mail[slot];
    if (!m->full) {
        return MF_OK;
    }
    m->full = false;
    mf_status status = mf_comm_wait_send(x->wire, slot, e);
    return status == MF_OK ? mf_exec_device(x)->order(m->leaves, x->queue, e) : status;
}

/* What the mailbox holds leaves, beside what compute does meanwhile. */
static mf_status send_mailbox(mf_exec *x, int slot, int64_t to, int tag, size_t size_B, mf_err *e) {
    mailbox *m = &x->mail[slot];
    mf_status status = mf_exec_device(x)->order(x->queue, m->leaves, e);
    if (status == MF_OK) {
        m->full = true;
        mf_comm_use_stream(x->wire, m->leaves->stream);
        status = mf_comm_send(x->wire, slot, to, tag, m->data, size_B, e);
        mf_comm_use_stream(x->wire, x->queue->stream);
    }
    return status;
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
                return mf_exec_copy(x, m->data, data, size_B, e);
            }
        }
        return mf_err_set(e, MF_INTERNAL, "more than %d messages wait on one rank", x->waiting);
    }
    int slot = mf_schedule_slot(l, from, direction);
    mf_exec_begins(x, mf_program_send(x->p, edge, direction));
    mf_status status = empty_mailbox(x, slot, e);
    status = status == MF_OK ? mf_exec_copy(x, x->mail[slot].data, data, size_B, e) : status;
    if (status != MF_OK) {
        return status;
    }
    mf_exec_ran(x, mf_program_send(x->p, edge, direction));
    return send_mailbox(x, slot, rank_of_stage(x, stage), tag_of(x, to, direction, micro_batch),
                        size_B, e);
}

mf_status mf_exec_collect(mf_exec *x, int64_t at, int64_t from, int direction, int micro_batch,
                          void *data, mf_err *e) {
    int64_t stage = mf_layout_stage_of(&x->p->layout, from), edge = direction == 0 ? from : at;
    size_t size_B = (size_t)mf_program_message_B(x->p, edge);
    if (stage != x->stage) {
        return mf_comm_receive(x->wire, mf_schedule_slot(&x->p->layout, from, direction),
                               rank_of_stage(x, stage), tag_of(x, at, direction, micro_batch), data,
                               size_B, e);
    }
    for (int i = 0; i < x->waiting; i++) {
        mailbox *m = &x->mail[2 * x->sending + i];
        if (m->full && m->vstage == at && m->micro_batch == micro_batch &&
            m->direction == direction) {
            m->full = false;
            return mf_exec_copy(x, data, m->data, size_B, e);
        }
    }
    return mf_err_set(e, MF_INTERNAL, "virtual stage %lld has no input for micro-batch %d",
                      (long long)at, micro_batch);
}

mf_status mf_exec_end_messages(mf_exec *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < 2 * x->sending && status == MF_OK; i++) {
        status = empty_mailbox(x, i, e);
    }
    for (int i = 0; i < x->waiting; i++) {
        x->mail[2 * x->sending + i].full = false;
    }
    return status;
}
