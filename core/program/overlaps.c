/* overlaps.c - pairs of ops that touch the same bytes and that no wait orders. */
#include "core/program/overlaps.h"

#include <stdbool.h>
#include <stdlib.h>

/* --- what waits for what ------------------------------------------------------------------------
 */

/* Ops of the passes, and for each a bit for every op that has ended before it begins. */
typedef struct order {
    const mf_block *b;
    unsigned passes;
    int first, end;
    size_t words;
    uint64_t *past; /* [end - first][words] */
    int *writer;    /* [tensors] last op that wrote it so far; -1 */
    int *before;    /* [end - first] piece before of what it writes; -1 */
} order;

static bool plays(const order *x, int i) {
    return (x->b->ops[i].pass & x->passes) != 0;
}

static uint64_t *past_of(const order *x, int i) {
    return x->past + (size_t)(i - x->first) * x->words;
}

static bool ended(const order *x, int i, int before) {
    int k = before - x->first;
    return (past_of(x, i)[k / 64] >> k % 64 & 1) != 0;
}

static void wait_for(const order *x, int i, int before) {
    uint64_t *past = past_of(x, i), *others = past_of(x, before);
    int k = before - x->first;
    for (size_t w = 0; w < x->words; w++) {
        past[w] |= others[w];
    }
    past[k / 64] |= (uint64_t)1 << k % 64;
}

static bool cut_alike(const mf_op *a, const mf_op *b) {
    return mf_op_cut(a) == mf_op_cut(b) && a->pieces == b->pieces;
}

/* Who makes tensor t for `op`. */
static int maker_of(const order *x, int16_t t, const mf_op *op) {
    int last = x->writer[t], i = mf_op_cut(op) == MF_CUT_NONE ? -1 : last;
    while (i >= 0 && !(cut_alike(&x->b->ops[i], op) && x->b->ops[i].piece == op->piece)) {
        i = x->before[i - x->first];
    }
    return i >= 0 ? i : last;
}

static void note_writer(const order *x, int16_t t, int i) {
    const mf_op *op = &x->b->ops[i];
    int at = x->writer[t];
    const mf_op *last = at >= 0 ? &x->b->ops[at] : NULL;
    bool goes_on = last != NULL && mf_op_cut(op) != MF_CUT_NONE && cut_alike(last, op) &&
                   last->kind == op->kind && last->pass == op->pass;
    x->before[i - x->first] = goes_on ? at : -1;
    x->writer[t] = i;
}

/* What has ended before op i begins; last: op of each stream so far. */
static void find_past(const order *x, int i, int last[MF_STREAM_COUNT]) {
    const mf_op *op = &x->b->ops[i];
    if (last[op->stream] >= 0) {
        wait_for(x, i, last[op->stream]);
    }
    for (int k = 0; k < op->nin; k++) {
        int maker = maker_of(x, op->in[k], op);
        if (maker >= 0) {
            wait_for(x, i, maker);
        }
    }
    for (int k = 0; k < op->nout; k++) {
        note_writer(x, op->out[k], i);
    }
    last[op->stream] = i;
}

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
    return mf_op_cut(a) != MF_CUT_NONE && cut_alike(a, b) && a->piece != b->piece;
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
static int overlaps_of(const order *x, int i, mf_overlap *out) {
    bool found[MF_STREAM_COUNT] = {false};
    int n = 0;
    found[x->b->ops[i].stream] = true;
    for (int k = i; k-- > x->first;) {
        const int stream = x->b->ops[k].stream;
        if (plays(x, k) && !found[stream] && (ended(x, i, k) || touches(x->b, k, i, &out[n]))) {
            n += !ended(x, i, k);
            found[stream] = true; /* those before it on its stream have ended with it */
        }
    }
    return n;
}

/* In order: an op that waits for what it overlaps with orders what comes behind it, too. */
static int find_all(const order *x, mf_overlap *out) {
    int n = 0, last[MF_STREAM_COUNT];
    for (int k = 0; k < MF_STREAM_COUNT; k++) {
        last[k] = -1;
    }
    for (int t = 0; t < x->b->ntensors; t++) {
        x->writer[t] = -1;
    }
    for (int i = x->first; i < x->end; i++) {
        if (!plays(x, i)) {
            continue;
        }
        find_past(x, i, last);
        int more = overlaps_of(x, i, out + n);
        for (int k = n; k < n + more; k++) {
            wait_for(x, i, out[k].before);
        }
        n += more;
    }
    return n;
}

mf_status mf_block_overlaps(const mf_block *b, unsigned passes, mf_overlap **out, int *count,
                            mf_err *e) {
    order x = {.b = b, .passes = passes};
    mf_block_ops_of(b, passes, &x.first, &x.end);
    const size_t ops = (size_t)(x.end - x.first);
    x.words = ops / 64 + 1;
    x.past = calloc(ops * x.words + 1, sizeof *x.past);
    x.writer = malloc(((size_t)b->ntensors + 1) * sizeof *x.writer);
    x.before = malloc((ops + 1) * sizeof *x.before);
    *out = malloc((ops * (MF_STREAM_COUNT - 1) + 1) * sizeof **out);
    *count = 0;
    mf_status status = MF_OK;
    if (x.past == NULL || x.writer == NULL || x.before == NULL || *out == NULL) {
        status = mf_err_set(e, MF_NOMEM, "overlaps: out of memory");
    } else {
        *count = find_all(&x, *out);
    }
    if (*count == 0) {
        free(*out);
        *out = NULL;
    }
    free(x.past);
    free(x.writer);
    free(x.before);
    return status;
}
