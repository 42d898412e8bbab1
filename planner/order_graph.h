/* order_graph.h - private to order*.c: the graph of a schedule and what a play of it leaves behind.
 */
#ifndef MF_PLANNER_ORDER_GRAPH_H
#define MF_PLANNER_ORDER_GRAPH_H

#include "planner/order.h"

#define NONE (-1)

/* An event, after everything that it waits for. */
typedef struct node {
    int32_t before;  /* previous event of the stage, or NONE */
    int32_t from[2]; /* what its forward and its backward pass wait for, or NONE */
    int16_t v[2];    /* virtual stages of its forward and backward (or W) pass, or NONE */
    uint8_t pass;    /* mf_event_pass */
    uint8_t sends;   /* results that go to another stage */
    bool sent[2];    /* from[] comes from another stage */
    bool first;      /* forward of the first micro-batch: waits for gathered parameters */
    bool last;       /* weight gradients of the last micro-batch: reductions start */
    int32_t kind;    /* events of a kind (stage, pass, virtual stages) take the same time */
} node;

/* What events of a kind take in a play. */
typedef struct node_kind {
    int32_t of; /* one of them */
    int16_t stage;
    int8_t as; /* which lower bound of a merged pair decided */
    double own_s, host_s;
} node_kind;

/* Which wait decided when an event starts or ends. */
enum {
    BY_NOTHING = -1,
    BY_BEFORE = 0,
    BY_FORWARD = 1,
    BY_BACKWARD = 2,
    BY_HOST = 3,
    BY_GATHER = 4,
    /* all that the stage did so far and what gathers beside it cost: from the start, or from when
     * the first chunk's parameters are there */
    BY_LOST = 5,
    BY_LOST_LATER = 6,
    BY_GATHER_LOST = 7 /* gathers, and what passes lose to those that come later */
};

struct mf_order {
    int stages, vstages;
    int64_t nodes;
    node *node;
    int32_t kinds;
    node_kind *kind; /* [kinds] */
    /* [nodes] while playing: start (of its first block), and end */
    double *start_s, *end_s;
    double *work_s;       /* [nodes] what its stage has done up to its end, waits left out */
    double *held_s;       /* [nodes] of that, how long sends held it */
    double *host_s;       /* [stages] host clock while playing */
    int8_t *by;           /* [nodes] which wait decided the start */
    int8_t *end_by;       /* [nodes] BY_HOST and on: that decided the end, else BY_NOTHING */
    bool *lost;           /* [nodes] losses to the reductions of the event before are in it */
    double *weight;       /* [nodes] of a chain that is traced, at their ends, */
    double *begun_weight; /* [nodes] and at their starts */
    int32_t *last;        /* [stages] last event of each stage, or NONE */
    int32_t *begun;       /* [stages] first pass of the first chunk, while playing */
    int16_t *stage_of;    /* [vstages] */
    int16_t *chunk_of;    /* [vstages] */
};

/* The lower bounds of a merged pair: which parts of (forward, backward) they add up. */
#define MF_ORDER_MERGED 3
extern const mf_order_part mf_order_merged_as[MF_ORDER_MERGED][2];

/* Where a stage is done: after its last pass, or later for reductions. These start with the last
 * micro-batch's backward passes. From event `from` on (the first of these) the chain stays on its
 * stage; reductions of events before `to` cost the passes beside them their share, those from `to`
 * on are waited for. What does not end beside passes costs all of its time, so that either way
 * holds. */
typedef struct mf_order_finish {
    double time_s;
    int32_t from, to; /* from NONE: the last pass decides; to NONE: all are beside passes */
} mf_order_finish;

/* Plays all events (order_play.c). */
void mf_order_play(mf_order *o, const mf_order_times *t);
mf_order_finish mf_order_finish_of(const mf_order *o, const mf_order_times *t, int stage);
/* Adds the chain that ends with a stage's finish to *out (order_trace.c). */
void mf_order_trace(mf_order *o, double share, int stage, const mf_order_finish *f,
                    mf_order_chain *out);
/* Counts a part once for every virtual stage of a stage. */
void mf_order_count_stage(const mf_order *o, int stage, mf_order_part part, mf_order_chain *out);
/* A part's sum over the virtual stages of a stage. */
double mf_order_stage_s(const mf_order *o, const mf_order_times *t, int stage, mf_order_part part);
/* Is the event's loss to the reductions before it one of MF_LOSS_F, B or W. */
mf_order_loss mf_order_loss_of(const node *n);
/* A loss at another share than that of its layout. */
double mf_order_lost_at(const mf_order_losses *x, mf_order_loss kind, double share, int v);

#endif
