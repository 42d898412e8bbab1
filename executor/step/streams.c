/* streams.c - which ops of a block wait for which of other streams, so that each stream of a
 * program has a queue of its own.
 *
 * An op waits for the ops that the simulator lets it wait for (core/program/waits.h) and for no
 * others: the memory plan has put tensors where nobody needs more. Where it waits for an op of its
 * own queue, the queue's order does; for another queue's op that one signals behind its work, and
 * this one awaits the signal. Before its first work in a block a queue awaits what compute had done
 * when the block began; at the block's end compute waits for all queues, but for what goes on
 * beside the next block (zero_beside.c, offload_beside.c). So blocks, messages and the update
 * follow one another on the queue of compute, as if there were no other.
 *
 * A stream that has nothing beside it in a pass, because each of its ops waits for what is in front
 * of it and is waited for by what is behind, goes on the queue of compute: there a wait costs
 * nothing. In a merged pair another block is beside it, and all streams have their own.
 *
 * Nobody waits for ever: the host enters all ops in the order of the program, which is the same for
 * all members of a group, and waits point backwards in that order. So of all communication that has
 * not ended the first in this order can begin on every member, if the GPU has space for its kernel
 * beside those that wait: one of each stream (executor/cuda/comm_nccl_cuda.c sees to that). */
#include "executor/step/exec.h"

#include "core/program/waits.h"

#include <stdlib.h>
#include <string.h>

/* --- from the waits of a program to signals -----------------------------------------------------
 */

typedef struct draft {
    const mf_block *b;
    const mf_waits *w;
    uint16_t folded;                 /* streams that go on the queue of compute */
    mf_ended known[MF_STREAM_COUNT]; /* by queue: ended before what it does next */
    mf_ended *ended;                 /* [nops] what has ended when an op has */
    int16_t last[MF_STREAM_COUNT];   /* op of each stream so far; -1 */
    bool used[MF_STREAM_COUNT];      /* queues */
} draft;

static int queue_of(uint16_t folded, int stream) {
    return (folded >> stream & 1) != 0 ? MF_STREAM_COMPUTE : stream;
}

static void at_least(mf_ended *x, const mf_ended *y) {
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        x->op[s] = y->op[s] > x->op[s] ? y->op[s] : x->op[s];
    }
}

/* The ops that op i must await: those that neither its queue nor another awaited op implies. */
static void find_awaits(draft *p, int i, op_order *out) {
    const mf_ended *at = &p->w->at[i - p->w->first];
    const mf_ended *known = &p->known[queue_of(p->folded, p->b->ops[i].stream)];
    int16_t wanted[MF_STREAM_COUNT] = {0};
    int n = 0;
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        if (at->op[s] > known->op[s]) {
            wanted[n++] = at->op[s];
        }
    }
    for (int k = 0; k < n; k++) {
        const int stream = p->b->ops[wanted[k]].stream;
        bool implied = false;
        for (int j = 0; j < n; j++) {
            implied |= j != k && p->ended[wanted[j]].op[stream] >= wanted[k];
        }
        if (!implied) {
            out->await[out->awaits++] = wanted[k];
        }
    }
}

static void plan_op(draft *p, int i, op_order *order) {
    const int stream = p->b->ops[i].stream, queue = queue_of(p->folded, stream);
    mf_ended *known = &p->known[queue];
    find_awaits(p, i, &order[i]);
    for (int k = 0; k < order[i].awaits; k++) {
        order[order[i].await[k]].signals = true;
        at_least(known, &p->ended[order[i].await[k]]);
    }
    order[i].begins = queue != MF_STREAM_COMPUTE && !p->used[queue] && order[i].awaits == 0;
    p->used[queue] = true;
    known->op[stream] = (int16_t)i;
    p->ended[i] = *known;
    p->last[stream] = (int16_t)i;
}

/* Has `stream` nothing beside it, with those that are folded? Each of its ops waits for the last of
 * these before it, and the next of these waits for it. */
static bool has_nothing_beside(const mf_waits *w, uint16_t folded, int stream) {
    int16_t last[MF_STREAM_COUNT], open = -1;
    memset(last, 0xff, sizeof last);
    for (int i = w->first; i < w->end; i++) {
        const int s = w->b->ops[i].stream;
        bool with = s == stream || queue_of(folded, s) == MF_STREAM_COMPUTE;
        if (!mf_waits_plays(w, i) || !with) {
            continue;
        }
        if (open >= 0 && !mf_waits_ended(w, i, open)) {
            return false;
        }
        open = s == stream ? (int16_t)i : -1;
        for (int k = 0; k < MF_STREAM_COUNT && s == stream; k++) {
            if (last[k] >= 0 && !mf_waits_ended(w, i, last[k])) {
                return false;
            }
        }
        last[s] = (int16_t)i;
    }
    return true;
}

static uint16_t find_folded(const mf_waits *w) {
    uint16_t folded = 0;
    for (int s = MF_STREAM_COMPUTE + 1; s < MF_STREAM_COUNT; s++) {
        if (s == MF_STREAM_DP) { /* it goes on beside the next block (zero_beside.c) */
            continue;
        }
        folded |= (uint16_t)(has_nothing_beside(w, folded, s) ? 1u << s : 0);
    }
    return folded;
}

/* `order` of the ops of w's passes, all zero before. */
static void plan_passes(const mf_waits *w, uint16_t folded, mf_ended *ended, stream_plan *out) {
    draft p = {.b = w->b, .w = w, .folded = folded, .ended = ended};
    memset(p.known, 0xff, sizeof p.known);
    memset(p.last, 0xff, sizeof p.last);
    out->folded = folded;
    for (int i = w->first; i < w->end; i++) {
        if (mf_waits_plays(w, i)) {
            plan_op(&p, i, out->order);
            out->forks |= out->order[i].begins;
            out->reduces |=
                mf_exec_is_zero_op(&w->b->ops[i]) && w->b->ops[i].kind == MF_OP_REDUCE_SCATTER;
        }
    }
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        bool joined = p.last[s] <= p.known[MF_STREAM_COMPUTE].op[s];
        out->joins |= (uint16_t)(joined ? 0 : 1u << s);
    }
}

static int pass_set(unsigned passes) {
    return passes == MF_PASS_F ? 0 : passes == MF_PASS_W ? 2 : 1;
}

static mf_status plan_block(const mf_exec *x, const mf_block *b, block_bind *bind, mf_err *e) {
    const unsigned back = x->p->split ? MF_PASS_R | MF_PASS_B : MF_PASS_BACKWARD;
    const unsigned sets[MF_PASS_SETS] = {MF_PASS_F, back, MF_PASS_W};
    const int modes = mf_layout_merges(&x->p->layout) ? 2 : 1;
    mf_ended *ended = malloc(((size_t)b->nops + 1) * sizeof *ended);
    mf_status status = ended != NULL ? MF_OK : MF_NOMEM;
    for (int k = 0; k < MF_PASS_SETS * modes && status == MF_OK; k++) {
        stream_plan *plan = &bind->streams[k / MF_PASS_SETS][k % MF_PASS_SETS];
        mf_waits w;
        plan->order = calloc((size_t)b->nops + 1, sizeof *plan->order);
        status = plan->order != NULL ? mf_waits_open(&w, b, sets[k % MF_PASS_SETS]) : MF_NOMEM;
        if (status != MF_OK) {
            break;
        }
        for (int i = w.first; i < w.end; i++) {
            if (mf_waits_plays(&w, i)) {
                mf_waits_add(&w, i);
            }
        }
        plan_passes(&w, k < MF_PASS_SETS ? find_folded(&w) : 0, ended, plan);
        mf_waits_clear(&w);
    }
    free(ended);
    return status == MF_OK ? MF_OK : mf_err_set(e, MF_NOMEM, "executor: out of memory");
}

mf_status mf_exec_streams_init(mf_exec *x, mf_err *e) {
    mf_status status = MF_OK;
    x->streams = !mf_exec_device(x)->on_host;
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        x->queues[s] = mf_exec_device(x)->queue(x->device, (mf_stream)s);
    }
    for (int i = 0; i < x->p->nblocks && status == MF_OK && x->streams; i++) {
        const mf_block *b = x->p->blocks[i];
        x->slots = b->nops > x->slots ? b->nops : x->slots;
        status = plan_block(x, b, &x->blocks[i], e);
    }
    return status;
}

void mf_exec_streams_clear(mf_exec *x) {
    for (int i = 0; x->blocks != NULL && i < x->p->nblocks; i++) {
        for (int k = 0; k < 2 * MF_PASS_SETS; k++) {
            free(x->blocks[i].streams[k / MF_PASS_SETS][k % MF_PASS_SETS].order);
        }
    }
}

void mf_exec_use_streams(mf_exec *x, bool on) {
    x->streams = on && !mf_exec_device(x)->on_host;
}

/* --- blocks at work -----------------------------------------------------------------------------
 */

/* Signals: of a block's beginning; behind the ops of a side. */
static int slot_of(const mf_exec *x, const block_at *at, int op) {
    return 1 + at->side * x->slots + op;
}

mf_queue *mf_exec_queue_of(const mf_exec *x, const block_at *at, int stream) {
    return at->streams == NULL ? x->queue : x->queues[queue_of(at->streams->folded, stream)];
}

void mf_exec_enter_streams(const mf_exec *x, unsigned passes, bool paired, block_at *at) {
    const block_bind *bind = x->positions[at->position].bind;
    at->streams = x->streams ? &bind->streams[paired][pass_set(passes)] : NULL;
}

mf_status mf_exec_fork(const mf_exec *x, const block_at *at, mf_err *e) {
    const bool forks = at->streams != NULL && (at->streams->forks || at->staging != NULL);
    return forks ? mf_exec_device(x)->signal(x->queue, 0, e) : MF_OK;
}

/* What was gathered or fetched ahead had come when compute began the block. */
static mf_status await_op(const mf_exec *x, const block_at *at, int op, mf_queue *q, mf_err *e) {
    const mf_op *awaited = &x->positions[at->position].block->ops[op];
    const bool gathered = at->gathered_ahead && mf_exec_is_gather(awaited, awaited->pass);
    if (gathered || (at->staging != NULL && mf_exec_is_fetch(awaited))) {
        return q == x->queue ? MF_OK : mf_exec_device(x)->await(q, 0, e);
    }
    return mf_exec_device(x)->await(q, slot_of(x, at, op), e);
}

mf_status mf_exec_before_op(const mf_exec *x, const block_at *at, int op, mf_queue *q, mf_err *e) {
    const mf_op *one = &x->positions[at->position].block->ops[op];
    const bool apart = at->staging != NULL && mf_exec_copied_beside(at, one);
    const op_order *order = at->streams != NULL && !apart ? &at->streams->order[op] : NULL;
    mf_status status = MF_OK;
    if (order != NULL && order->begins) {
        status = mf_exec_device(x)->await(q, 0, e);
    }
    for (int k = 0; order != NULL && k < order->awaits && status == MF_OK; k++) {
        status = await_op(x, at, order->await[k], q, e);
    }
    return status;
}

mf_status mf_exec_after_op(const mf_exec *x, const block_at *at, int op, mf_queue *q, mf_err *e) {
    bool signals = at->streams != NULL && at->streams->order[op].signals;
    return signals ? mf_exec_device(x)->signal(q, slot_of(x, at, op), e) : MF_OK;
}

mf_status mf_exec_join(mf_exec *x, const block_at *at, bool ends, mf_err *e) {
    const bool deferred = mf_exec_defers_reductions(x, at, ends);
    mf_status status = mf_exec_join_reductions(x, at, deferred, e);
    for (int s = 0; s < MF_STREAM_COUNT && at->streams != NULL && status == MF_OK; s++) {
        const bool copies = s == MF_STREAM_D2H || s == MF_STREAM_H2D;
        if ((at->streams->joins >> s & 1) != 0 && !copies && !(deferred && s == MF_STREAM_DP)) {
            status = mf_exec_device(x)->order(x->queues[s], x->queue, e);
        }
    }
    return status == MF_OK && at->streams != NULL ? mf_exec_join_copies(x, at, e) : status;
}
