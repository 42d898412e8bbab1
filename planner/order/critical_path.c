/* critical_path.c - what the longest path of a play passes through: counts, and means of counts.
 */
#include "planner/order/order_graph.h"

static void count_node(const node *n, int8_t as, double by, mf_order_path *out) {
    if (n->anew) {
        out->count[MF_ORDER_ANEW][n->v[1]] -= by;
    }
    switch ((mf_event_pass)n->pass) {
    case MF_EVENT_F:
        out->count[MF_ORDER_F][n->v[0]] += by;
        return;
    case MF_EVENT_B:
        out->count[MF_ORDER_B][n->v[1]] += by;
        return;
    case MF_EVENT_W:
        out->count[MF_ORDER_W][n->v[1]] += by;
        return;
    case MF_EVENT_FB:
        break;
    }
    for (int side = 0; side < 2; side++) {
        out->count[mf_order_merged_as[as][side]][n->v[side]] += by;
    }
}

/* All that the host issues on the stage up to event `at`. */
static void count_host(const mf_order *o, int32_t at, double by, mf_order_path *out) {
    for (; at != NONE; at = o->node[at].before) {
        const node *n = &o->node[at];
        if (n->v[0] != NONE) {
            out->count[MF_ORDER_F_HOST][n->v[0]] += by;
        }
        if (n->v[1] != NONE) {
            out->count[n->pass == MF_EVENT_W ? MF_ORDER_W_HOST : MF_ORDER_B_HOST][n->v[1]] += by;
        }
    }
}

static void count_gather(const mf_order *o, int32_t at, double by, way w, mf_order_path *out) {
    int v = o->node[at].v[0];
    bool lost = o->played[at].end_by == BY_GATHER_LOST && w == WITH_START_LOSS;
    out->starts += lost ? by : 0.0;
    out->loss[MF_LOSS_LAST][v] += by;
    for (int u = 0; u <= v; u++) {
        if (o->stage_of[u] == o->stage_of[v]) {
            out->count[MF_ORDER_GATHER][u] += by;
            out->count[MF_ORDER_GATHER_LOST][u] -= lost ? by : 0.0;
        }
    }
}

void mf_order_count_stage(const mf_order *o, int stage, mf_order_part part, mf_order_path *out) {
    for (int v = 0; v < o->vstages; v++) {
        out->count[part][v] += o->stage_of[v] == stage ? 1.0 : 0.0;
    }
}

/* Holds that gathers or reductions may run beside. */
static void count_held(double holds, mf_order_path *out) {
    out->holds += holds;
    out->beside += holds;
}

/* The stage's events after `until` (NONE = all) up to `at`, without their waits. */
static void count_work(const mf_order *o, int32_t at, int32_t until, double by,
                       mf_order_path *out) {
    for (; at != until; at = o->node[at].before) {
        const node *n = &o->node[at];
        count_node(n, o->kind[o->node[at].kind].as, by, out);
        if (n->before != until) {
            count_held(by * o->node[n->before].sends, out);
        }
    }
}

static void count_gathers_beside(mf_order *o, int32_t at, double by, mf_order_path *out) {
    int v = o->node[at].v[0];
    int32_t since = o->since[v];
    count_work(o, at, o->node[since].before, by, out);
    for (int u = 0; u <= v; u++) {
        out->count[MF_ORDER_GATHER_LOST][u] += o->stage_of[u] == o->stage_of[v] ? by : 0.0;
    }
    o->weight[since].begun[WITHOUT_START_LOSS] += by * (1.0 - out->lost);
}

/* The path goes on at when an event of the same stage left it free. */
static void pass_back(mf_order *o, int32_t to, double by, way w, mf_order_path *out) {
    o->weight[to].ended[w] += by;
    out->holds += by * o->node[to].sends;
}

/* Hands the weight of an event on to the event that its start waited for. */
static void pass_on(mf_order *o, int32_t at, double by, bool lost, way w, mf_order_path *out) {
    const node *n = &o->node[at];
    int8_t why = o->played[at].by;
    if (lost) {
        double back = by * out->share[n->behind - 1];
        out->loss[MF_LOSS_BEHIND + n->behind - 1][o->node[n->ref].v[1]] += by;
        pass_back(o, n->ref, back, w, out);
        by -= back;
    }
    if (why == BY_NOTHING) {
        out->starts += w == WITH_START_LOSS ? by : 0.0;
    } else if (why == BY_BEFORE) {
        pass_back(o, n->before, by, w, out);
    } else {
        int32_t from = n->from[why - BY_FORWARD];
        o->weight[from].ended[w] += by;
        out->sends += n->sent[why - BY_FORWARD] ? by : 0.0;
    }
}

/* The end of one of a stage's first passes, with its own loss to gathers. */
static void count_early(mf_order *o, int32_t at, double by, mf_order_path *out) {
    const node *n = &o->node[at];
    const early *x = early_of(o, n);
    const int k = n->ahead - 1, v = n->v[0];
    if (x->waited) {
        count_gather(o, at, by, WITH_EARLY_LOSSES, out);
        return;
    }
    count_node(n, 0, by, out);
    if (x->lost) {
        out->loss[MF_LOSS_AHEAD + k][v] += by;
        out->early = true;
        by -= by * out->ahead_share[k][v];
    }
    if (x->by == BY_NOTHING) {
        return;
    }
    const int32_t to = x->by == BY_BEFORE ? n->before : n->from[0];
    const way w = o->node[to].ahead ? WITH_EARLY_LOSSES : WITHOUT_START_LOSS;
    if (x->by == BY_BEFORE) {
        pass_back(o, to, by, w, out);
    } else {
        o->weight[to].ended[w] += by;
        out->sends += n->sent[0] ? by : 0.0;
    }
}

/* An event's end. */
static void count_end(mf_order *o, int32_t at, double by, way w, mf_order_path *out) {
    const node *n = &o->node[at];
    switch (w == WITH_EARLY_LOSSES ? BY_AHEAD : o->played[at].end_by) {
    case BY_AHEAD:
        count_early(o, at, by, out);
        return;
    case BY_HOST:
        count_host(o, at, by, out);
        return;
    case BY_GATHER:
    case BY_GATHER_LOST:
        count_gather(o, at, by, w, out);
        return;
    case BY_LOST:
        count_gathers_beside(o, at, by, out);
        return;
    default:
        break;
    }
    count_node(n, o->kind[o->node[at].kind].as, by, out);
    if (o->played[at].own_lost) {
        out->count[MF_ORDER_OWN_LOST][n->v[1]] += by;
        out->loss[MF_LOSS_OWN][n->v[1]] += by;
    }
    pass_on(o, at, by, o->played[at].lost, w, out);
}

/* Follows what decided back to the start: events with a weight, from the last to the first. */
static void follow(mf_order *o, int32_t at, mf_order_path *out) {
    for (; at >= 0; at--) {
        weights *x = &o->weight[at];
        for (int w = WITH_START_LOSS; w < START_LOSSES; w++) {
            if (x->ended[w] > 0.0) {
                count_end(o, at, x->ended[w], (way)w, out);
            }
            if (w < WITH_EARLY_LOSSES && x->begun[w] > 0.0) {
                pass_on(o, at, x->begun[w], false, (way)w, out);
            }
        }
        *x = (weights){0};
    }
}

void mf_order_trace(mf_order *o, int stage, const mf_order_finish *f, mf_order_path *out) {
    int32_t at = o->last[stage];
    if (at == NONE) {
        return;
    }
    if (f->from == NONE) {
        out->holds += o->node[at].sends;
        o->weight[at].ended[WITH_START_LOSS] = 1.0;
        follow(o, at, out);
        return;
    }
    bool beside = f->to == NONE;
    if (!beside) {
        out->loss[MF_LOSS_FIRST][o->node[f->to].v[1]] += 1.0;
    }
    for (int32_t i = at; i != o->node[f->from].before; i = o->node[i].before) {
        if (o->node[i].last) {
            out->count[beside ? MF_ORDER_REDUCE_LOST : MF_ORDER_REDUCE][o->node[i].v[1]] += 1.0;
        }
        beside = beside || i == f->to;
    }
    int32_t until = o->node[f->from].before, end = f->to == NONE ? at : o->node[f->to].before;
    if (end != until) {
        count_held(o->node[end].sends, out);
        count_work(o, end, until, 1.0, out);
    }
    o->weight[f->from].begun[WITH_START_LOSS] = 1.0; /* up to the start of the event */
    follow(o, f->from, out);
}
