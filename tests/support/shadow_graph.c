/* shadow_graph.c - dependencies between queues, and work that is kept and played. */
#include "tests/support/shadow_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static shadow_queue *of(mf_queue *q) {
    return (shadow_queue *)(void *)q;
}

mf_status shadow_refuse_capture(const shadow *x, const char *what, mf_err *e) {
    return x->capture == NULL
               ? MF_OK
               : mf_err_set(e, MF_LIBRARY, "shadow: %s inside a capture (after \"%s\")", what,
                            x->label);
}

/* As an event that is recorded on one stream and waited for on another: with it a capture goes on
 * to the other stream. */
mf_status shadow_order(mf_queue *before, mf_queue *behind, mf_err *e) {
    shadow *x = shadow_of(before->device);
    shadow_queue *a = of(before), *b = of(behind);
    bool capture = x->capture != NULL;
    if (x->preparing || ++x->orders == x->o.no_order || a == b) {
        return MF_OK;
    }
    if (capture && !a->captured) {
        return b->captured ? mf_err_set(e, MF_LIBRARY,
                                        "shadow: queue %d, which is captured, waits for queue %d, "
                                        "which is not",
                                        b->index, a->index)
                           : mf_err_set(e, MF_LIBRARY,
                                        "shadow: queues %d and %d are ordered beside a capture",
                                        a->index, b->index);
    }
    b->captured |= capture;
    const shadow_chain *c = &a->chain[capture];
    for (int64_t k = 0; k < c->also.count; k++) { /* nothing behind it yet that waits for these */
        shadow_push(&b->chain[capture].also, c->also.item[k]);
    }
    if (c->last != NULL) {
        shadow_push(&b->chain[capture].also, c->last);
    }
    return MF_OK;
}

static shadow_signal *signal_of(shadow *x, int slot) {
    while (slot >= x->signals) {
        int64_t allocated = 2 * x->signals + 64;
        x->signal = realloc(x->signal, (size_t)allocated * sizeof *x->signal);
        if (x->signal == NULL) {
            fprintf(stderr, "shadow: out of memory\n");
            abort();
        }
        memset(x->signal + x->signals, 0, (size_t)(allocated - x->signals) * sizeof *x->signal);
        x->signals = allocated;
    }
    return &x->signal[slot];
}

/* As an event that is recorded, */
mf_status shadow_signal_down(mf_queue *before, int slot, mf_err *e) {
    shadow *x = shadow_of(before->device);
    const shadow_queue *q = of(before);
    const bool capture = x->capture != NULL;
    if (x->preparing) {
        return MF_OK;
    }
    if (capture && !q->captured) {
        return mf_err_set(e, MF_LIBRARY, "shadow: queue %d signals beside a capture", q->index);
    }
    shadow_signal *s = signal_of(x, slot);
    const shadow_chain *c = &q->chain[capture];
    s->set = true;
    s->graph = x->capture;
    s->at.count = 0;
    for (int64_t k = 0; k < c->also.count; k++) {
        shadow_push(&s->at, c->also.item[k]);
    }
    if (c->last != NULL) {
        shadow_push(&s->at, c->last);
    }
    return MF_OK;
}

/* and waited for: as the event was recorded last. What CUDA takes as done when nothing was recorded
 * is refused. */
mf_status shadow_await(mf_queue *behind, int slot, mf_err *e) {
    shadow *x = shadow_of(behind->device);
    shadow_queue *q = of(behind);
    const bool capture = x->capture != NULL;
    if (x->preparing || ++x->awaits == x->no_await) {
        return MF_OK;
    }
    const shadow_signal *s = signal_of(x, slot);
    if (!s->set || s->graph != x->capture) {
        return mf_err_set(e, MF_LIBRARY, "shadow: queue %d awaits signal %d, which %s", q->index,
                          slot, s->set ? "is of another capture" : "nobody has put down");
    }
    q->captured |= capture;
    for (int64_t k = 0; k < s->at.count; k++) {
        shadow_push(&q->chain[capture].also, s->at.item[k]);
    }
    return MF_OK;
}

void shadow_end_signals(shadow *x) {
    for (int64_t k = 0; k < x->signals; k++) {
        x->signal[k].at.count = x->signal[k].graph == NULL ? 0 : x->signal[k].at.count;
    }
}

/* --- captures -----------------------------------------------------------------------------------
 */

mf_status shadow_capture_begin(mf_queue *q, mf_err *e) {
    shadow *x = shadow_of(q->device);
    mf_status status = shadow_refuse_capture(x, "a capture begins", e);
    mf_device_graph *g = status == MF_OK ? calloc(1, sizeof *g) : NULL;
    if (g == NULL) {
        return status == MF_OK ? mf_err_set(e, MF_NOMEM, "shadow: out of memory") : status;
    }
    g->device = x;
    x->capture = g;
    for (int k = 0; k < SHADOW_QUEUES; k++) {
        x->queue[k].captured = &x->queue[k] == of(q);
        x->queue[k].chain[1].last = NULL;
        x->queue[k].chain[1].also.count = 0;
    }
    for (int k = 0; k < x->lanes; k++) {
        x->lane[k].last[1] = NULL;
    }
    return MF_OK;
}

/* Marks what `i` rests on. */
static void mark_before(shadow_item *first) {
    shadow_items stack = {0};
    shadow_push(&stack, first);
    while (stack.count > 0) {
        shadow_item *i = stack.item[--stack.count];
        for (int64_t k = 0; k < i->deps.count && !i->wanted; k++) {
            shadow_push(&stack, i->deps.item[k]);
        }
        i->wanted = true;
    }
    free(stack.item);
}

/* All queues that the capture went on to have come back to the one where it began. */
static mf_status check_joined(const shadow *x, const shadow_queue *q, mf_err *e) {
    const shadow_items *all = &x->capture->items;
    const shadow_chain *c = &q->chain[1];
    for (int64_t k = 0; k < all->count; k++) {
        all->item[k]->wanted = false;
    }
    for (int64_t k = 0; k < c->also.count; k++) {
        mark_before(c->also.item[k]);
    }
    if (c->last != NULL) {
        mark_before(c->last);
    }
    for (int64_t k = 0; k < all->count; k++) {
        const shadow_item *i = all->item[k];
        if (!i->wanted) {
            return mf_err_set(e, MF_LIBRARY,
                              "shadow: the capture ends, and nothing has waited for %s (%s) on "
                              "queue %d",
                              i->name, i->label, i->queue);
        }
    }
    return MF_OK;
}

mf_status shadow_capture_end(mf_queue *q, mf_device_graph **out, mf_err *e) {
    shadow *x = shadow_of(q->device);
    mf_device_graph *g = x->capture;
    *out = NULL;
    if (g == NULL) {
        return mf_err_set(e, MF_LIBRARY, "shadow: no capture to end");
    }
    mf_status status = check_joined(x, of(q), e);
    for (int64_t k = 0; k < x->signals; k++) {
        x->signal[k].set &= x->signal[k].graph != g;
    }
    x->capture = NULL;
    for (int k = 0; k < SHADOW_QUEUES; k++) {
        x->queue[k].captured = false;
    }
    if (status != MF_OK) {
        shadow_forget(g);
        return status;
    }
    *out = g;
    return MF_OK;
}

/* --- playing ------------------------------------------------------------------------------------
 */

static mf_status play_one(shadow_queue *q, shadow_queue *alone, const shadow_item *kept,
                          shadow_item **played, mf_err *e) {
    shadow *x = shadow_of(q->queue.device);
    bool root = kept->deps.count == 0;
    shadow_chain *c = &alone->chain[0];
    c->last = root ? q->chain[0].last : NULL;
    c->also.count = 0;
    for (int64_t k = 0; root && k < q->chain[0].also.count; k++) {
        shadow_push(&c->also, q->chain[0].also.item[k]);
    }
    for (int64_t k = 0; k < kept->deps.count; k++) {
        shadow_push(&c->also, played[kept->deps.item[k]->place]);
    }
    alone->index = kept->queue;
    shadow_item like = *kept;
    like.deps = like.next = (shadow_items){0};
    like.waits = 0;
    return shadow_enter(x, alone, &like, &played[kept->place], e);
}

mf_status shadow_play(mf_queue *queue, mf_device_graph *g, mf_err *e) {
    shadow *x = shadow_of(queue->device);
    shadow_queue *q = of(queue), alone = {.queue = *queue};
    mf_status status = shadow_refuse_capture(x, "a graph is played", e);
    shadow_item **played = calloc((size_t)g->items.count + 1, sizeof *played);
    shadow_items ends = {0};
    if (played == NULL) {
        return mf_err_set(e, MF_NOMEM, "shadow: out of memory");
    }
    for (int64_t k = 0; k < g->items.count && status == MF_OK; k++) {
        shadow_item *kept = g->items.item[k];
        kept->place = k;
        status = play_one(q, &alone, kept, played, e);
        if (status == MF_OK && kept->next.count == 0) {
            shadow_push(&ends, played[k]);
        }
    }
    for (int64_t k = 0; k < ends.count; k++) {
        shadow_push(&q->chain[0].also, ends.item[k]);
    }
    if (status == MF_OK) {
        shadow_item join = {.kind = SHADOW_JOIN, .name = "join", .lane = -1};
        join.args = &join; /* of no bytes */
        status = shadow_enter(x, q, &join, NULL, e);
    }
    free(alone.chain[0].also.item);
    free(ends.item);
    free(played);
    return status;
}

void shadow_forget(mf_device_graph *g) {
    if (g != NULL) {
        shadow_forget_items(&g->items);
        free(g);
    }
}
