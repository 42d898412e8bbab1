/* reduce_beside.c - once-a-step gathers and reductions of data-parallel ranks, on a queue of their
 * own beside compute where the layout overlaps dp.
 *
 * A step begins with gathers of the weights that other ranks have updated (ZeRO-1 and -2), position
 * by position; a block waits for the weights that it reads. (Without such a queue they are gathered
 * behind the update.) The reduction of a position's gradients begins once the step's last pass that
 * adds to them has been entered; pass O waits for the queue. Where a position's weights are tables,
 * other positions read them and add to their gradients, too. */
#include "executor/step/exec.h"

#include <stdlib.h>
#include <string.h>

/* Position i's block adds to gradients, its own and of tables that others own: `by` for each weight
 * that it reads, to the counts of their owners. */
static void count_writers(const mf_exec *x, int i, int by, int *count) {
    const position_bind *q = &x->positions[i];
    for (int16_t t = 0; t < q->block->ntensors; t++) {
        if (q->param[t] >= 0) {
            count[x->params.list[q->param[t]].position] += by;
        }
    }
}

/* The last position whose weights position i's block reads. */
static int last_read(const mf_exec *x, int i) {
    const position_bind *q = &x->positions[i];
    int last = -1;
    for (int16_t t = 0; t < q->block->ntensors; t++) {
        const int owner = q->param[t] >= 0 ? x->params.list[q->param[t]].position : -1;
        last = owner > last ? owner : last;
    }
    return last;
}

mf_status mf_exec_beside_init(mf_exec *x, mf_err *e) {
    dp_beside *r = &x->beside;
    const size_t n = (size_t)x->p->assignment.positions + 1;
    r->writes = calloc(n, sizeof *r->writes);
    r->left = calloc(n, sizeof *r->left);
    r->reduced = calloc(n, sizeof *r->reduced);
    if (r->writes == NULL || r->left == NULL || r->reduced == NULL) {
        return mf_err_set(e, MF_NOMEM, "executor: out of memory");
    }
    for (int i = 0; i < x->p->assignment.positions; i++) {
        if (x->positions[i].block != NULL) {
            count_writers(x, i, (int)x->s->micro_batches, r->writes);
        }
    }
    const bool own_queue = !mf_exec_device(x)->on_host && x->p->layout.gpus > 1 &&
                           (x->p->layout.overlap & MF_OVERLAP_DP) != 0;
    return own_queue ? mf_exec_device(x)->side_queue(x->device, MF_DEVICE_REDUCTIONS, &r->queue, e)
                     : MF_OK;
}

void mf_exec_beside_clear(mf_exec *x) {
    free(x->beside.writes);
    free(x->beside.left);
    free(x->beside.reduced);
}

/* Signals behind the gathers of a position; those of blocks and of ZeRO-3 come first. */
static int gathered_slot(const mf_exec *x, int position) {
    return 5 + 2 * x->slots + position;
}

static mf_status gather_weights(mf_exec *x, bool apart, mf_err *e) {
    dp_beside *r = &x->beside;
    mf_status status = apart ? mf_exec_device(x)->order(x->queue, r->queue, e) : MF_OK;
    for (int i = 0; i < x->p->assignment.positions && status == MF_OK; i++) {
        if (x->positions[i].block == NULL) {
            continue;
        }
        mf_comm_use_stream(x->wire, apart ? r->queue->stream : x->queue->stream);
        status = mf_exec_gather_position(x, i, e);
        mf_comm_use_stream(x->wire, x->queue->stream);
        if (apart && status == MF_OK) {
            status = mf_exec_device(x)->signal(r->queue, gathered_slot(x, i), e);
        }
    }
    return status;
}

mf_status mf_exec_beside_begin(mf_exec *x, mf_err *e) {
    dp_beside *r = &x->beside;
    const size_t n = (size_t)x->p->assignment.positions;
    memcpy(r->left, r->writes, n * sizeof *r->left);
    memset(r->reduced, 0, n * sizeof *r->reduced);
    r->begun = r->gathers = r->queue != NULL && x->streams;
    r->gathered = -1;
    return r->queue != NULL ? gather_weights(x, r->gathers, e) : MF_OK;
}

mf_status mf_exec_beside_end(mf_exec *x, mf_err *e) {
    return x->beside.queue == NULL ? gather_weights(x, false, e) : MF_OK;
}

mf_status mf_exec_beside_enter(mf_exec *x, int position, mf_err *e) {
    dp_beside *r = &x->beside;
    const int last = last_read(x, position);
    if (!r->gathers || last <= r->gathered) {
        return MF_OK;
    }
    r->gathered = last; /* they come in the order of positions */
    return mf_exec_device(x)->await(x->queue, gathered_slot(x, last), e);
}

mf_status mf_exec_beside_block(mf_exec *x, int position, mf_err *e) {
    dp_beside *r = &x->beside;
    mf_status status = MF_OK;
    count_writers(x, position, -1, r->left);
    for (int i = 0; i < x->p->assignment.positions && status == MF_OK; i++) {
        if (r->queue == NULL || !x->streams || x->positions[i].block == NULL || r->left[i] > 0 ||
            r->reduced[i]) {
            continue;
        }
        r->reduced[i] = r->begun = true;
        status = mf_exec_device(x)->order(x->queue, r->queue, e);
        mf_comm_use_stream(x->wire, r->queue->stream);
        status = status == MF_OK ? mf_exec_reduce_position(x, i, e) : status;
        mf_comm_use_stream(x->wire, x->queue->stream);
    }
    return status;
}

mf_status mf_exec_beside_join(mf_exec *x, mf_err *e) {
    const dp_beside *r = &x->beside;
    return r->begun ? mf_exec_device(x)->order(r->queue, x->queue, e) : MF_OK;
}
