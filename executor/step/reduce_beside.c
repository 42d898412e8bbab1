/* reduce_beside.c - data-parallel reductions of a position's gradients beside compute: they begin
 * on a queue of their own once the step's last pass that adds to them has been entered, where the
 * layout overlaps dp; pass O waits for that queue. Where a position's gradients are tables, other
 * positions add to them, too. */
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

mf_status mf_exec_beside_init(mf_exec *x, mf_err *e) {
    reductions *r = &x->reductions;
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
    bool beside = !mf_exec_device(x)->on_host && x->p->layout.gpus > 1 &&
                  (x->p->layout.overlap & MF_OVERLAP_DP) != 0;
    return beside ? mf_exec_device(x)->side_queue(x->device, MF_DEVICE_REDUCTIONS, &r->queue, e)
                  : MF_OK;
}

void mf_exec_beside_clear(mf_exec *x) {
    free(x->reductions.writes);
    free(x->reductions.left);
    free(x->reductions.reduced);
}

void mf_exec_beside_begin(mf_exec *x) {
    reductions *r = &x->reductions;
    const size_t n = (size_t)x->p->assignment.positions;
    memcpy(r->left, r->writes, n * sizeof *r->left);
    memset(r->reduced, 0, n * sizeof *r->reduced);
    r->begun = false;
}

mf_status mf_exec_beside_block(mf_exec *x, int position, mf_err *e) {
    reductions *r = &x->reductions;
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
    const reductions *r = &x->reductions;
    return r->begun ? mf_exec_device(x)->order(r->queue, x->queue, e) : MF_OK;
}
