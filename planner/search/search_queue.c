/* search_queue.c - a heap of small entries, whose nodes stand still, and a list. */
#include "planner/search/search_queue.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void mf_search_queue_init(mf_search_queue *q) {
    memset(q, 0, sizeof *q);
    q->aside_s = HUGE_VAL;
}

void mf_search_queue_clear(mf_search_queue *q) {
    for (int64_t i = 0; i < q->nodes; i++) {
        mf_partition_tried_clear(&q->node[q->heap[i].at].tried);
    }
    for (int64_t i = 0; i < q->asides; i++) {
        mf_partition_tried_clear(&q->aside[i].tried);
    }
    free(q->heap);
    free(q->node);
    free(q->aside);
    mf_search_queue_init(q);
}

static bool before(const mf_search_entry *a, const mf_search_entry *b) {
    if (a->key_s < b->key_s || a->key_s > b->key_s) {
        return a->key_s < b->key_s;
    }
    return a->id < b->id;
}

/* Capacity for `wanted` items: `allocated`, doubled until they fit. */
static int64_t next_allocated(int64_t allocated, int64_t wanted) {
    allocated = allocated > 0 ? allocated : 64;
    while (allocated < wanted) {
        allocated *= 2;
    }
    return allocated;
}

/* Memory for `more` nodes beside those that are there. */
static bool allocate(mf_search_queue *q, int64_t more) {
    int64_t allocated = next_allocated(q->allocated, q->nodes + more);
    if (allocated == q->allocated) {
        return true;
    }
    mf_search_entry *heap = realloc(q->heap, (size_t)allocated * sizeof *heap);
    if (!heap) {
        return false;
    }
    q->heap = heap;
    mf_search_node *node = realloc(q->node, (size_t)allocated * sizeof *node);
    if (!node) {
        return false;
    }
    q->node = node;
    q->allocated = allocated;
    return true;
}

/* --- the heap --------------------------------------------------------------------------------- */

/* Children of a place stand side by side, in a cache line or two. */
enum { CHILDREN = 4 };

/* Enough is allocated. */
static void enter(mf_search_queue *q, const mf_search_node *n) {
    int64_t at = q->nodes++;
    const mf_search_entry moved = {n->key_s, q->ids++, at < q->used ? q->heap[at].at : q->used};
    q->used += at == q->used;
    q->node[moved.at] = *n;
    q->node[moved.at].id = moved.id;
    while (at > 0 && before(&moved, &q->heap[(at - 1) / CHILDREN])) {
        q->heap[at] = q->heap[(at - 1) / CHILDREN];
        at = (at - 1) / CHILDREN;
    }
    q->heap[at] = moved;
}

bool mf_search_queue_push(mf_search_queue *q, const mf_search_node *n) {
    if (!allocate(q, 1)) {
        return false;
    }
    enter(q, n);
    return true;
}

static int64_t least_child(const mf_search_queue *q, int64_t at) {
    int64_t least = CHILDREN * at + 1, end = least + CHILDREN;
    end = end < q->nodes ? end : q->nodes;
    for (int64_t i = least + 1; i < end; i++) {
        least = before(&q->heap[i], &q->heap[least]) ? i : least;
    }
    return least;
}

mf_search_node mf_search_queue_pop(mf_search_queue *q) {
    const mf_search_entry top = q->heap[0], moved = q->heap[--q->nodes];
    int64_t at = 0, child = least_child(q, 0);
    while (child < q->nodes && before(&q->heap[child], &moved)) {
        q->heap[at] = q->heap[child];
        at = child;
        child = least_child(q, at);
    }
    q->heap[at] = moved;
    q->heap[q->nodes].at = top.at; /* free */
    const mf_search_node out = q->node[top.at];
    q->node[top.at].key_s = HUGE_VAL;
    return out;
}

const mf_search_node *mf_search_queue_top(const mf_search_queue *q) {
    return &q->node[q->heap[0].at];
}

/* --- queries ---------------------------------------------------------------------------------- */

bool mf_search_queue_below(const mf_search_queue *q, double key_s) {
    return q->nodes > 0 && q->heap[0].key_s < key_s;
}

bool mf_search_queue_put_aside(mf_search_queue *q) {
    const int64_t allocated = next_allocated(q->asides_allocated, q->asides + 1);
    if (allocated > q->asides_allocated) {
        mf_search_node *grown = realloc(q->aside, (size_t)allocated * sizeof *grown);
        if (!grown) {
            return false;
        }
        q->aside = grown;
        q->asides_allocated = allocated;
    }
    q->aside[q->asides] = mf_search_queue_pop(q);
    q->aside_s = fmin(q->aside_s, q->aside[q->asides++].key_s);
    return true;
}

bool mf_search_queue_bring_back(mf_search_queue *q) {
    if (!allocate(q, q->asides)) {
        return false;
    }
    for (int64_t i = 0; i < q->asides; i++) {
        enter(q, &q->aside[i]);
    }
    q->asides = 0;
    q->aside_s = HUGE_VAL;
    return true;
}

double mf_search_queue_least(const mf_search_queue *q) {
    return q->nodes > 0 ? fmin(q->heap[0].key_s, q->aside_s) : q->aside_s;
}
