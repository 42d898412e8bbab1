/* search_queue.c - a binary heap and a list. */
#include "planner/search_queue.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void mf_search_queue_init(mf_search_queue *q) {
    memset(q, 0, sizeof *q);
    q->aside_s = HUGE_VAL;
}

void mf_search_queue_clear(mf_search_queue *q) {
    for (int64_t i = 0; i < q->nodes; i++) {
        mf_inner_tried_clear(&q->heap[i].tried);
    }
    for (int64_t i = 0; i < q->asides; i++) {
        mf_inner_tried_clear(&q->aside[i].tried);
    }
    free(q->heap);
    free(q->aside);
    mf_search_queue_init(q);
}

static bool before(const mf_search_node *a, const mf_search_node *b) {
    if (a->key_s < b->key_s || a->key_s > b->key_s) {
        return a->key_s < b->key_s;
    }
    return a->id < b->id;
}

/* Room for `more` nodes beside the `used` of a list. */
static bool make_room(mf_search_node **list, int64_t used, int64_t more, int64_t *room) {
    int64_t wanted = *room ? *room : 64;
    while (wanted < used + more) {
        wanted *= 2;
    }
    if (wanted == *room) {
        return true;
    }
    mf_search_node *grown = realloc(*list, (size_t)wanted * sizeof *grown);
    if (!grown) {
        return false;
    }
    *list = grown;
    *room = wanted;
    return true;
}

/* There is room. */
static void enter(mf_search_queue *q, const mf_search_node *n) {
    int64_t at = q->nodes++;
    mf_search_node moved = *n;
    moved.id = q->ids++;
    while (at > 0 && before(&moved, &q->heap[(at - 1) / 2])) {
        q->heap[at] = q->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    q->heap[at] = moved;
}

bool mf_search_queue_push(mf_search_queue *q, const mf_search_node *n) {
    if (!make_room(&q->heap, q->nodes, 1, &q->room)) {
        return false;
    }
    enter(q, n);
    return true;
}

mf_search_node mf_search_queue_pop(mf_search_queue *q) {
    mf_search_node top = q->heap[0], moved = q->heap[--q->nodes];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= q->nodes) {
            break;
        }
        if (child + 1 < q->nodes && before(&q->heap[child + 1], &q->heap[child])) {
            child++;
        }
        if (!before(&q->heap[child], &moved)) {
            break;
        }
        q->heap[at] = q->heap[child];
        at = child;
    }
    if (q->nodes > 0) {
        q->heap[at] = moved;
    }
    return top;
}

bool mf_search_queue_below(const mf_search_queue *q, double key_s) {
    return q->nodes > 0 && q->heap[0].key_s < key_s;
}

bool mf_search_queue_put_aside(mf_search_queue *q) {
    if (!make_room(&q->aside, q->asides, 1, &q->asides_room)) {
        return false;
    }
    q->aside[q->asides] = mf_search_queue_pop(q);
    q->aside_s = fmin(q->aside_s, q->aside[q->asides++].key_s);
    return true;
}

bool mf_search_queue_bring_back(mf_search_queue *q) {
    if (!make_room(&q->heap, q->nodes, q->asides, &q->room)) {
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
