/* waits.c - which ops of a block have ended before another begins. */
#include "core/program/waits.h"

#include "core/base/scratch.h"

#include <string.h>

mf_status mf_waits_open(mf_waits *w, const mf_block *b, unsigned passes) {
    *w = (mf_waits){.b = b, .passes = passes};
    mf_block_ops_of(b, passes, &w->first, &w->end);
    const size_t ops = (size_t)(w->end - w->first), tensors = (size_t)b->ntensors;
    w->at = mf_scratch_take((ops + 1) * sizeof *w->at);
    w->writer = mf_scratch_take((tensors + ops + 1) * sizeof *w->writer);
    if (w->at == NULL || w->writer == NULL) {
        mf_waits_clear(w);
        return MF_NOMEM;
    }
    w->before = w->writer + tensors;
    memset(w->writer, 0xff, tensors * sizeof *w->writer); /* -1 */
    memset(w->last, 0xff, sizeof w->last);
    return MF_OK;
}

void mf_waits_clear(mf_waits *w) {
    mf_scratch_give(w->at);
    mf_scratch_give(w->writer);
    *w = (mf_waits){0};
}

void mf_waits_for(mf_waits *w, int i, int before) {
    mf_ended *at = &w->at[i - w->first];
    const mf_ended *others = &w->at[before - w->first];
    const int stream = w->b->ops[before].stream;
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        at->op[s] = others->op[s] > at->op[s] ? others->op[s] : at->op[s];
    }
    at->op[stream] = before > at->op[stream] ? (int16_t)before : at->op[stream];
}

static bool split_alike(const mf_op *a, const mf_op *b) {
    return mf_op_split_axis(a) == mf_op_split_axis(b) && a->pieces == b->pieces;
}

/* The op that makes tensor t for `op`. */
static int maker_of(const mf_waits *w, int16_t t, const mf_op *op) {
    int last = w->writer[t], i = mf_op_split_axis(op) == MF_SPLIT_NONE ? -1 : last;
    while (i >= 0 && !(split_alike(&w->b->ops[i], op) && w->b->ops[i].piece == op->piece)) {
        i = w->before[i - w->first];
    }
    return i >= 0 ? i : last;
}

/* Pieces write slices of their own; an op that writes what another op wrote adds to it. */
static void note_writer(mf_waits *w, int16_t t, int i) {
    const mf_op *op = &w->b->ops[i];
    int16_t at = w->writer[t];
    const mf_op *last = at >= 0 ? &w->b->ops[at] : NULL;
    bool goes_on = last != NULL && mf_op_split_axis(op) != MF_SPLIT_NONE && split_alike(last, op) &&
                   last->kind == op->kind && last->pass == op->pass;
    if (last != NULL && !goes_on) {
        mf_waits_for(w, i, at);
    }
    w->before[i - w->first] = goes_on ? at : -1;
    w->writer[t] = (int16_t)i;
}

void mf_waits_add(mf_waits *w, int i) {
    const mf_op *op = &w->b->ops[i];
    memset(&w->at[i - w->first], 0xff, sizeof *w->at);
    if (w->last[op->stream] >= 0) {
        mf_waits_for(w, i, w->last[op->stream]);
    }
    for (int k = 0; k < op->nin; k++) {
        int maker = maker_of(w, op->in[k], op);
        if (maker >= 0) {
            mf_waits_for(w, i, maker);
        }
    }
    for (int k = 0; k < op->nout; k++) {
        note_writer(w, op->out[k], i);
    }
    w->last[op->stream] = (int16_t)i;
}
