/* order_graph.h - private to order*.c: the graph of a schedule and the results of a play.
 */
#ifndef MF_PLANNER_ORDER_GRAPH_H
#define MF_PLANNER_ORDER_GRAPH_H

#include "planner/order/order.h"

#define NONE (-1)

/* An event, after everything that it waits for. */
typedef struct node {
    int32_t before;  /* previous event of the stage, or NONE */
    int32_t from[2]; /* the events that its forward and its backward pass wait for, or NONE */
    int16_t v[2];    /* virtual stages of its forward and backward (or W) pass, or NONE */
    uint8_t pass;    /* mf_event_pass */
    uint8_t sends;   /* results that go to another stage */
    bool sent[2];    /* from[] comes from another stage */
    bool first;      /* forward of the first micro-batch: waits for gathered parameters */
    bool last;       /* weight gradients of the last micro-batch: reductions start */
    bool anew;       /* weight gradients of the first of several micro-batches */
    uint8_t behind;  /* events since the last event of its stage with `last`, which is `ref`; 0: */
    int32_t ref;     /* none */
    uint8_t ahead;   /* which of its stage's first forward passes it is, from 1 on; 0: none */
    int32_t kind;    /* events of a kind (stage, pass, virtual stages) take the same time */
} node;

/* Time of the events of a kind in a play. */
typedef struct node_kind {
    int32_t of; /* one of them */
    int16_t stage;
    int8_t as; /* the lower bound of a merged pair that is highest */
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
    BY_LOST = 5,        /* the stage's work since one of its events, and its losses to gathers */
    BY_GATHER_LOST = 6, /* gathers, and losses of passes to later gathers */
    BY_AHEAD = 7        /* a path that counts what first passes lose to gathers, each for itself */
};

/* Result of a play for an event, in one place, since later events read all of it. */
typedef struct played {
    double start_s, end_s; /* of its first block, of all */
    double work_s;         /* its stage's work up to its end, without waits */
    double held_s;         /* part of it: time for which sends blocked the stage */
    double early_s[2];     /* of the start, the end: what losses at the start of the step (of
                            * losses->start_s) add to it */
    int8_t by;             /* which wait decided the start */
    int8_t end_by;         /* BY_HOST and on: that decided the end, else BY_NOTHING */
    bool lost;             /* losses to reductions of an event before are in it, */
    bool own_lost;         /* to its own */
} played;

/* A first forward pass (node.ahead) on a path that counts what each such pass loses to gathers, and
 * not losses->start_s. */
typedef struct early {
    double end_s;
    int8_t by;   /* which wait decided the start */
    bool waited; /* gathers decided the end */
    bool lost;   /* else its loss is in it */
} early;

/* How a part of a path counts losses at the start of the step: as one, not at all, as those of each
 * first pass. */
typedef enum way { WITH_START_LOSS, WITHOUT_START_LOSS, WITH_EARLY_LOSSES, START_LOSSES } way;

/* Weight of a traced path at an event's end, and at its start only. */
typedef struct weights {
    double ended[START_LOSSES], begun[WITH_EARLY_LOSSES];
} weights;

struct mf_order {
    int stages, vstages;
    bool several; /* micro-batches: the first is not the last */
    int64_t nodes;
    node *node;
    int32_t kinds;
    node_kind *kind;     /* [kinds] */
    played *played;      /* [nodes] */
    weights *weight;     /* [nodes] 0 but while a path is traced */
    double *host_s;      /* [stages] host clock while playing */
    int32_t *last;       /* [stages] last event of each stage, or NONE */
    int32_t *since;      /* [vstages] BY_LOST: since which event of the stage */
    early *early;        /* [stages][MF_ORDER_AHEAD] */
    struct ahead *ahead; /* [stages] while playing */
    int16_t *stage_of;   /* [vstages] */
    int16_t *chunk_of;   /* [vstages] */
};

/* The event of a stage from which its work since then, less losses to gathers, gives the latest
 * time. */
typedef struct ahead {
    double time_s;
    int32_t since;
} ahead;

/* The lower bounds of a merged pair: which parts of (forward, backward) they add up. */
#define MF_ORDER_MERGED 3
extern const mf_order_part mf_order_merged_as[MF_ORDER_MERGED][2];

/* Where a stage is done: after its last pass, or later for reductions. These start with the last
 * micro-batch's backward passes. From event `from` on (the first of these) the path stays on its
 * stage; reductions of events before `to` cost the passes beside them their share, those from `to`
 * on are waited for. What does not end beside passes costs all of its time, so that either way
 * holds. */
typedef struct mf_order_finish {
    double time_s;
    int32_t from, to; /* from NONE: the last pass decides; to NONE: all are beside passes */
} mf_order_finish;

/* Plays all events (longest_path.c). */
void mf_order_play(mf_order *o, const mf_order_times *t);
mf_order_finish mf_order_finish_of(const mf_order *o, const mf_order_times *t, int stage);
/* Adds the path that ends with a stage's finish to *out (critical_path.c). */
void mf_order_trace(mf_order *o, int stage, const mf_order_finish *f, mf_order_path *out);
/* Counts a part once for every virtual stage of a stage. */
void mf_order_count_stage(const mf_order *o, int stage, mf_order_part part, mf_order_path *out);
/* A part's sum over the virtual stages of a stage. */
double mf_order_stage_s(const mf_order *o, const mf_order_times *t, int stage, mf_order_part part);
/* What an event so far behind the last pass of virtual stage v ends later for it, at a share. */
double mf_order_lost_behind(const mf_order_losses *x, int behind, double share, int v);
/* Likewise one of the first forward passes of v's stage. */
double mf_order_lost_ahead(const mf_order_losses *x, int pass, double share, int v);
/* A node's place in o->early; n->ahead is not 0. */
static inline early *early_of(const mf_order *o, const node *n) {
    return &o->early[o->stage_of[n->v[0]] * MF_ORDER_AHEAD + n->ahead - 1];
}

#endif
