/* search_queue.h - private to the planner: what is open, least bound first, and what was put aside.
 */
#ifndef MF_PLANNER_SEARCH_QUEUE_H
#define MF_PLANNER_SEARCH_QUEUE_H

#include "planner/search/search.h"

/* The key that orders a node, and its place. */
typedef struct mf_search_entry {
    double key_s;
    uint64_t id; /* order of entry: breaks ties */
    int64_t at;
} mf_search_entry;

/* Nodes by key, ties by order of entry; owns what its nodes hold. */
typedef struct mf_search_queue {
    mf_search_entry *heap; /* [nodes]; [0]: the least; behind them, places that are free */
    mf_search_node *node;  /* [used] by place; key_s HUGE_VAL: free */
    int64_t nodes, used, allocated;
    uint64_t ids;
    mf_search_node *aside; /* [asides] in order of entry */
    int64_t asides, asides_allocated;
    double aside_s; /* their least key, s; HUGE_VAL: none */
} mf_search_queue;

void mf_search_queue_init(mf_search_queue *q);
void mf_search_queue_clear(mf_search_queue *q);

/* False: out of memory, the node stays the caller's. */
bool mf_search_queue_push(mf_search_queue *q, const mf_search_node *n);
/* The least, which has to be there, becomes the caller's. */
mf_search_node mf_search_queue_pop(mf_search_queue *q);
/* The least, which has to be there, until the queue changes. */
const mf_search_node *mf_search_queue_top(const mf_search_queue *q);
/* Is the least there, and below? */
bool mf_search_queue_below(const mf_search_queue *q, double key_s);

/* Puts the least, which has to be there, aside. False: out of memory, it stays. */
bool mf_search_queue_put_aside(mf_search_queue *q);
/* All that was put aside is open again. False: out of memory, it stays aside. */
bool mf_search_queue_bring_back(mf_search_queue *q);
/* Least key of all, s; HUGE_VAL: none. */
double mf_search_queue_least(const mf_search_queue *q);

#endif
