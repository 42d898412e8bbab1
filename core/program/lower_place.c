/* lower_place.c - where the local tensors of a block are in its workspace.
 *
 * A tensor may overwrite another one that is dead: when every op that touches the dead one has
 * ended before any op that writes the new one begins, on whatever streams they are (waits.h). So
 * two streams never meet in the same bytes, and no op waits for memory.
 */
#include "core/base/scratch.h"
#include "core/program/lower_build.h"
#include "core/program/waits.h"

#include <string.h>

typedef struct local {
    int16_t tensor;
    int16_t first;    /* the first op that touches it */
    mf_ended before;  /* ops that have ended before any of its writers begins */
    mf_ended touches; /* the last op of each stream that touches it; -1 */
} local;

/* A range of the workspace, and the ops that must have ended before it is free. */
typedef struct place {
    int64_t at, end;
    mf_ended touches;
} place;

typedef struct locals {
    local *all; /* in the order of `first`, those of one op by number */
    int n;
    int *slot; /* [tensors] index in `all`; -1 */
} locals;

/* One number for each stream, as a vector of GCC and clang. */
typedef int16_t streams __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint64_t words __attribute__((vector_size(16)));
_Static_assert(sizeof(streams) == sizeof(mf_ended), "a vector has all streams");

/* Have all ops that touch a place ended? Compares all streams at once, as every tensor asks it of
 * many places. */
static bool is_free(const mf_ended *touches, const mf_ended *ended) {
    const words later = (words)(*(const streams *)touches > *(const streams *)ended);
    return (later[0] | later[1]) == 0;
}

static void at_most(mf_ended *x, const mf_ended *y) {
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        x->op[s] = y->op[s] < x->op[s] ? y->op[s] : x->op[s];
    }
}

/* A tensor that op i touches first, among those of the op by number. */
static local *enlist(locals *x, int16_t tensor, int i, const mf_ended *ended) {
    int at = x->n++;
    for (; at > 0 && x->all[at - 1].first == i && x->all[at - 1].tensor > tensor; at--) {
        x->all[at] = x->all[at - 1];
        x->slot[x->all[at].tensor] = at;
    }
    local *one = &x->all[at];
    *one = (local){.tensor = tensor, .first = (int16_t)i, .before = *ended};
    memset(&one->touches, 0xff, sizeof one->touches);
    x->slot[tensor] = at;
    return one;
}

static void find_locals(locals *x, mf_waits *w) {
    const mf_block *b = w->b;
    memset(x->slot, 0xff, (size_t)b->ntensors * sizeof *x->slot);
    for (int i = w->first; i < w->end; i++) {
        if (!mf_waits_plays(w, i)) {
            continue;
        }
        mf_waits_add(w, i);
        const mf_op *op = &b->ops[i];
        const mf_ended *ended = &w->at[i - w->first];
        for (int k = 0; k < op->nin + op->nout; k++) {
            int16_t t = k < op->nin ? op->in[k] : op->out[k - op->nin];
            if (b->tensors[t].class != MF_TENSOR_LOCAL) {
                continue;
            }
            local *one = x->slot[t] < 0 ? enlist(x, t, i, ended) : &x->all[x->slot[t]];
            one->touches.op[op->stream] = (int16_t)i;
            if (k >= op->nin) {
                at_most(&one->before, ended);
            }
        }
    }
}

/* Replaces w->at: for each op, what has ended before it and before every later op. */
static void look_ahead(mf_waits *w) {
    mf_ended *behind = NULL;
    for (int i = w->end; i-- > w->first;) {
        if (!mf_waits_plays(w, i)) {
            continue;
        }
        if (behind != NULL) {
            at_most(&w->at[i - w->first], behind);
        }
        behind = &w->at[i - w->first];
    }
}

/* An op that waits for all ops that touch `over` also waits for those that touch what `over`
 * replaced: that was free when the first writer came, and what has ended for an op has ended for
 * all that wait for it. So the parts of x[*n] that `over` covers are dropped. Without this a ring
 * of a thousand ranks would have thousands of places to look at for every tensor. */
static void cover(place *x, int *n, const place *over) {
    int kept = 0;
    for (int i = 0; i < *n; i++) {
        place y = x[i];
        if (y.at >= over->at && y.at < over->end) {
            y.at = over->end < y.end ? over->end : y.end;
        } else if (y.at < over->at && y.end > over->at && y.end <= over->end) {
            y.end = over->at;
        }
        if (y.at < y.end) {
            x[kept++] = y;
        }
    }
    *n = kept;
}

/* Puts a tensor into the lowest gap among the places that are not free for it. x[*n] is sorted by
 * place; always: ops that have ended before every op from now on, so that places free by then are
 * dropped. */
static int64_t put(place *x, int *n, const local *one, int64_t size, const mf_ended *always) {
    int kept = 0, entry = 0;
    place new = {.touches = one->touches};
    int64_t at = 0;
    bool found = false;
    for (int i = 0; i < *n; i++) {
        if (is_free(&x[i].touches, always)) {
            continue;
        }
        x[kept++] = x[i];
        const place *y = &x[kept - 1];
        if (!found && !is_free(&y->touches, &one->before)) {
            found = y->at - at >= size;
            at = found || y->end < at ? at : y->end;
        }
    }
    new.at = at;
    new.end = at + size;
    cover(x, &kept, &new);
    for (entry = kept; entry > 0 && x[entry - 1].at > at; entry--) {
        x[entry] = x[entry - 1];
    }
    x[entry] = new;
    *n = kept + 1;
    return at;
}

/* Places the local tensors of the passes in one workspace, first fit by time of birth; returns the
 * workspace's size. */
static int64_t place_locals(mf_build *bd, unsigned passes) {
    mf_block *b = bd->b;
    const size_t tensors = (size_t)b->ntensors + 1;
    mf_waits w = {0};
    locals x = {mf_scratch_take(tensors * sizeof *x.all), 0,
                mf_scratch_take(tensors * sizeof *x.slot)};
    place *places = mf_scratch_take(tensors * sizeof *places);
    int nplaces = 0;
    int64_t high = 0;
    if (x.all == NULL || x.slot == NULL || places == NULL ||
        mf_waits_open(&w, b, passes) != MF_OK) {
        bd->status = MF_NOMEM;
        goto out;
    }
    find_locals(&x, &w);
    look_ahead(&w);
    for (int i = 0; i < x.n; i++) {
        const local *one = &x.all[i];
        mf_tensor *t = &b->tensors[one->tensor];
        const int64_t size = mf_align_B(t->bytes);
        t->offset_B = put(places, &nplaces, one, size, &w.at[one->first - w.first]);
        high = t->offset_B + size > high ? t->offset_B + size : high;
    }
    mf_waits_clear(&w);
out:
    mf_scratch_give(x.all);
    mf_scratch_give(x.slot);
    mf_scratch_give(places);
    return high;
}

void mf_build_place(mf_build *bd) {
    mf_block *b = bd->b;
    b->local_f_B = place_locals(bd, MF_PASS_F);
    if (bd->key.split) {
        b->local_bs_B = place_locals(bd, MF_PASS_R | MF_PASS_B);
        b->local_w_B = place_locals(bd, MF_PASS_W);
        b->local_b_B = b->local_bs_B > b->local_w_B ? b->local_bs_B : b->local_w_B;
    } else {
        b->local_b_B = b->local_bs_B = place_locals(bd, MF_PASS_BACKWARD);
    }
}
