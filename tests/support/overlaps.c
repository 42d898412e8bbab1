/* overlaps.c - pairs of ops that touch the same bytes and that no wait orders. */
#include "tests/support/overlaps.h"

#include "core/program/waits.h"

#include <stdlib.h>

/* --- the same bytes -----------------------------------------------------------------------------
 */

/* Local tensors are where the workspace has them, all others by themselves. */
static bool share(const mf_block *b, int16_t s, int16_t t) {
    const mf_tensor *x = &b->tensors[s], *y = &b->tensors[t];
    if (s == t) {
        return true;
    }
    return x->class == MF_TENSOR_LOCAL && y->class == MF_TENSOR_LOCAL && x->offset_B >= 0 &&
           y->offset_B >= 0 && x->offset_B < y->offset_B + mf_align_B(y->bytes) &&
           y->offset_B < x->offset_B + mf_align_B(x->bytes);
}

/* Pieces of one op write parts of their own. */
static bool pieces_of_one(const mf_op *a, const mf_op *b) {
    return mf_op_split_axis(a) != MF_SPLIT_NONE && mf_op_split_axis(a) == mf_op_split_axis(b) &&
           a->pieces == b->pieces && a->piece != b->piece;
}

/* Does op `before` touch what op `after` writes? */
static bool touches(const mf_block *b, int before, int after, mf_overlap *out) {
    const mf_op *x = &b->ops[before], *y = &b->ops[after];
    for (int k = 0; k < y->nout; k++) {
        for (int j = 0; j < x->nin + x->nout; j++) {
            int16_t t = j < x->nin ? x->in[j] : x->out[j - x->nin];
            bool parts = t == y->out[k] && pieces_of_one(x, y);
            if (share(b, t, y->out[k]) && !parts) {
                *out = (mf_overlap){(int16_t)before, (int16_t)after, t, y->out[k]};
                return true;
            }
        }
    }
    return false;
}

/* The last of each other stream that touches what op i writes and may not have ended. */
static int overlaps_of(const mf_waits *w, int i, mf_overlap *out) {
    bool found[MF_STREAM_COUNT] = {false};
    int n = 0;
    found[w->b->ops[i].stream] = true;
    for (int k = i; k-- > w->first;) {
        const int stream = w->b->ops[k].stream;
        if (!mf_waits_plays(w, k) || found[stream]) {
            continue;
        }
        bool ended = mf_waits_ended(w, i, k);
        if (ended || touches(w->b, k, i, &out[n])) {
            n += !ended;
            found[stream] = true; /* those before it on its stream have ended with it */
        }
    }
    return n;
}

/* In order: an op that waits for what it overlaps with orders what comes behind it, too. */
static int find_all(mf_waits *w, mf_overlap *out) {
    int n = 0;
    for (int i = w->first; i < w->end; i++) {
        if (!mf_waits_plays(w, i)) {
            continue;
        }
        mf_waits_add(w, i);
        int more = overlaps_of(w, i, out + n);
        for (int k = n; k < n + more; k++) {
            mf_waits_for(w, i, out[k].before);
        }
        n += more;
    }
    return n;
}

mf_status mf_block_overlaps(const mf_block *b, unsigned passes, mf_overlap **out, int *count,
                            mf_err *e) {
    mf_waits w;
    *out = NULL;
    *count = 0;
    if (mf_waits_open(&w, b, passes) != MF_OK) {
        return mf_err_set(e, MF_NOMEM, "overlaps: out of memory");
    }
    *out = malloc(((size_t)(w.end - w.first) * (MF_STREAM_COUNT - 1) + 1) * sizeof **out);
    if (*out != NULL) {
        *count = find_all(&w, *out);
    }
    mf_waits_clear(&w);
    if (*out == NULL) {
        return mf_err_set(e, MF_NOMEM, "overlaps: out of memory");
    }
    if (*count == 0) {
        free(*out);
        *out = NULL;
    }
    return MF_OK;
}
