/* progress.c - how far a device that works behind the host has come in a step: a word in the host's
 * memory, which the step's own work sets after every block. */
#include "core/program/pass_text.h"
#include "executor/step/exec.h"

#include <stdio.h>
#include <stdlib.h>

enum { CHUNK = 4096 };

/* Least time of the work between two words: each is a kernel of 2.4 us, so 0.24 % at most. */
#define WORD_S 1e-3

/* On a Hopper GPU. */
static double least_s(const mf_op *op) {
    return op->flops / 1e15 + op->bytes / 4.8e12;
}

/* Places of a step on this rank, at most: for each position that an event plays, in both directions
 * where events are merged, a block, and of each of its ops a wait and work behind one; the update.
 */
static int64_t places_of(const mf_exec *x) {
    const mf_assignment *a = &x->p->assignment;
    int most = 0;
    for (int v = 0; v < a->vstages; v++) {
        most = a->first[v + 1] - a->first[v] > most ? a->first[v + 1] - a->first[v] : most;
    }
    return 2 * x->s->count[x->stage] * most * (1 + 2 * (int64_t)mf_exec_span_ops(x->p)) + 1;
}

mf_status mf_exec_progress_init(mf_exec *x, mf_err *e) {
    step_progress *p = &x->progress;
    const mf_device_ops *device = mf_exec_device(x);
    void *memory = NULL;
    if (device->on_host) {
        return MF_OK;
    }
    p->chunks = places_of(x) / CHUNK + 1;
    p->chunk = calloc((size_t)p->chunks, sizeof(progress_place *));
    mf_status status = p->chunk != NULL
                           ? device->allocate_host(x->device, sizeof(int32_t), &memory, e)
                           : mf_err_set(e, MF_NOMEM, "executor: out of memory");
    p->word = status == MF_OK ? memory : NULL;
    if (p->word != NULL) {
        *p->word = 0;
    }
    return status;
}

void mf_exec_progress_clear(mf_exec *x) {
    step_progress *p = &x->progress;
    mf_exec_device(x)->release_host(x->device, p->word);
    for (int64_t i = 0; p->chunk != NULL && i < p->chunks; i++) {
        free(p->chunk[i]);
    }
    free((void *)p->chunk);
}

bool mf_exec_progress_next(mf_exec *x, const progress_place *here, int32_t *place) {
    step_progress *p = &x->progress;
    const int64_t at = p->at + 1, chunk = at / CHUNK;
    if (p->word == NULL || x->preparing || chunk >= p->chunks) {
        return false;
    }
    if (p->chunk[chunk] == NULL) {
        p->chunk[chunk] = calloc(CHUNK, sizeof *here);
    }
    if (p->chunk[chunk] == NULL) { /* a run goes on without */
        return false;
    }
    p->chunk[chunk][at % CHUNK] = *here;
    p->at = at;
    p->since_s = 0;
    *place = (int32_t)at;
    return true;
}

mf_status mf_exec_progress_op(mf_exec *x, const progress_place *here, mf_err *e) {
    const double op_s = least_s(&x->positions[here->position].block->ops[here->op]);
    mf_kernel_progress one = {.word = x->progress.word};
    const double word_s = x->o.word_s > 0 ? x->o.word_s : WORD_S;
    const bool due =
        x->progress.since_s + op_s >= word_s && mf_exec_progress_next(x, here, &one.place);
    x->progress.since_s += op_s;
    return due ? mf_exec_device(x)->progress(x->queue, &one, e) : MF_OK;
}

mf_status mf_exec_progress_mark(mf_exec *x, int position, unsigned passes, int micro_batch,
                                mf_err *e) {
    const progress_place here = {
        .position = position, .micro_batch = micro_batch, .passes = passes};
    mf_kernel_progress one = {.word = x->progress.word};
    return mf_exec_progress_next(x, &here, &one.place)
               ? mf_exec_device(x)->progress(x->queue, &one, e)
               : MF_OK;
}

int64_t mf_exec_progress(const mf_exec *x) {
    return x->progress.word != NULL ? *(const volatile int32_t *)x->progress.word : 0;
}

/* Where a device is whose word says `at`; NULL: at the step's first ops. */
static const progress_place *place_of(const step_progress *p, int64_t at) {
    const int64_t chunk = at / CHUNK;
    return at > 0 && chunk < p->chunks && p->chunk[chunk] != NULL ? &p->chunk[chunk][at % CHUNK]
                                                                  : NULL;
}

/* Where there are several, the first op that runs behind a wait or a block sets the word. */
bool mf_exec_progress_waits(const mf_exec *x, int64_t at) {
    const progress_place *here = place_of(&x->progress, at);
    return x->work.span_ns != NULL && (here == NULL || here->kind != PROGRESS_WORKS);
}

void mf_exec_progress_text(const mf_exec *x, int64_t at, char *text, size_t size) {
    const progress_place *here = place_of(&x->progress, at);
    char where[64];
    if (here == NULL) {
        snprintf(text, size, "at the step's first ops");
        return;
    }
    if (here->position < 0) {
        snprintf(text, size, "behind an update");
        return;
    }
    const mf_block *b = x->positions[here->position].block;
    mf_position_text(&x->p->model, here->position, where, sizeof where);
    if (here->kind == PROGRESS_BLOCK) {
        const char *pass = here->passes == MF_PASS_F   ? "forward"
                           : here->passes == MF_PASS_W ? "weight gradient"
                                                       : "backward";
        snprintf(text, size, "behind %s of %s (%s), micro-batch %d", pass, where, b->label,
                 here->micro_batch);
        return;
    }
    const mf_op *op = &b->ops[here->op];
    snprintf(text, size, "%s %s (%s) of %s (%s), micro-batch %d%s",
             here->kind == PROGRESS_WAITS ? "at" : "in", op->name, mf_pass_text(op->pass), where,
             b->label, here->micro_batch, here->kind == PROGRESS_WAITS ? "" : ", or behind it");
}
