/* progress.c - how far a device that works behind the host has come in a step: a word in the host's
 * memory, which the step's own work sets after every block. */
#include "executor/step/exec.h"

#include <stdio.h>
#include <stdlib.h>

/* Places of a step on this rank, at most: a block for each position that an event plays, in both
 * directions where events are merged; and the update. */
static int64_t places_of(const mf_exec *x) {
    const mf_assignment *a = &x->p->assignment;
    int most = 0;
    for (int v = 0; v < a->vstages; v++) {
        most = a->first[v + 1] - a->first[v] > most ? a->first[v + 1] - a->first[v] : most;
    }
    return 2 * x->s->count[x->stage] * most + 1;
}

mf_status mf_exec_progress_init(mf_exec *x, mf_err *e) {
    step_progress *p = &x->progress;
    const mf_device_ops *device = mf_exec_device(x);
    if (device->on_host) {
        return MF_OK;
    }
    p->places = places_of(x);
    void *memory = NULL;
    p->place = calloc((size_t)p->places + 1, sizeof *p->place);
    mf_status status = p->place != NULL
                           ? device->allocate_host(x->device, sizeof(int32_t), &memory, e)
                           : mf_err_set(e, MF_NOMEM, "executor: out of memory");
    p->word = status == MF_OK ? memory : NULL;
    if (p->word != NULL) {
        *p->word = 0;
    }
    return status;
}

void mf_exec_progress_clear(mf_exec *x) {
    mf_exec_device(x)->release_host(x->device, x->progress.word);
    free(x->progress.place);
}

mf_status mf_exec_progress_mark(mf_exec *x, int position, unsigned passes, int micro_batch,
                                mf_err *e) {
    step_progress *p = &x->progress;
    if (p->word == NULL || x->preparing || p->at == p->places) {
        return MF_OK;
    }
    p->at++;
    p->place[p->at] = (progress_place){position, micro_batch, passes};
    const mf_kernel_progress here = {p->word, (int32_t)p->at};
    return mf_exec_device(x)->progress(x->queue, &here, e);
}

int64_t mf_exec_progress(const mf_exec *x) {
    return x->progress.word != NULL ? *(const volatile int32_t *)x->progress.word : 0;
}

void mf_exec_progress_text(const mf_exec *x, int64_t at, char *text, size_t size) {
    if (at <= 0 || at > x->progress.places) {
        snprintf(text, size, "nothing yet");
        return;
    }
    const progress_place *p = &x->progress.place[at];
    if (p->position < 0) {
        snprintf(text, size, "an update");
        return;
    }
    const char *pass = p->passes == MF_PASS_F   ? "forward"
                       : p->passes == MF_PASS_W ? "weight gradient"
                                                : "backward";
    char where[64];
    mf_position_text(&x->p->model, p->position, where, sizeof where);
    snprintf(text, size, "%s of %s (%s), micro-batch %d", pass, where,
             x->positions[p->position].block->label, p->micro_batch);
}
