/* order.c - the graph of a schedule: sorted once, then its longest chain for any stage times. */
#include "planner/order.h"

#include "core/lower.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
} node;

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
    BY_LOST_LATER = 6
};

struct mf_order {
    int stages, vstages;
    int64_t nodes;
    node *node;
    double *start_s, *end_s; /* [nodes] */
    double *work_s;          /* [nodes] what its stage has done up to its end, waits left out */
    double *host_s;          /* [stages] host clock while playing */
    int8_t *by;              /* [nodes] which wait decided the start */
    int8_t *end_by;          /* [nodes] BY_HOST and on: that decided the end, else BY_NOTHING */
    int8_t *as;              /* [nodes] which lower bound of a merged pair decided */
    int32_t *last;           /* [stages] last event of each stage, or NONE */
    int32_t *begun;          /* [stages] first pass of the first chunk, while playing */
    int16_t *stage_of;       /* [vstages] */
    int16_t *chunk_of;       /* [vstages] */
};

/* --- chains ----------------------------------------------------------------------------------- */

mf_status mf_order_chain_init(mf_order_chain *c, int vstages, mf_err *e) {
    memset(c, 0, sizeof *c);
    int32_t *room = calloc((size_t)MF_ORDER_PARTS * (size_t)vstages, sizeof *room);
    if (!room) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    c->vstages = vstages;
    for (int p = 0; p < MF_ORDER_PARTS; p++) {
        c->count[p] = room + (size_t)p * (size_t)vstages;
    }
    return MF_OK;
}

void mf_order_chain_clear(mf_order_chain *c) {
    free(c->count[0]);
    memset(c, 0, sizeof *c);
}

/* --- the graph -------------------------------------------------------------------------------- */

void mf_order_destroy(mf_order *o) {
    if (!o) {
        return;
    }
    free(o->node);
    free(o->start_s);
    free(o->end_s);
    free(o->work_s);
    free(o->host_s);
    free(o->by);
    free(o->end_by);
    free(o->as);
    free(o->last);
    free(o->begun);
    free(o->stage_of);
    free(o->chunk_of);
    free(o);
}

/* Tables of who makes what, while the graph is sorted. */
typedef struct sorting {
    const mf_layout *l;
    const mf_schedule *s;
    int32_t *forward, *backward; /* [vstages][micro_batches] node of the pass, NONE = not yet */
} sorting;

static size_t cell(const sorting *t, int64_t v, int64_t micro_batch) {
    return (size_t)v * (size_t)t->s->micro_batches + (size_t)micro_batch;
}

/* Fills in what a pass waits for; false when that has no node yet. */
static bool wait_for(const sorting *t, int64_t vstages, bool backward, int64_t stage, int64_t v,
                     int64_t micro_batch, int32_t *from, bool *sent) {
    int64_t other = backward ? v + 1 : v - 1;
    *from = NONE;
    *sent = false;
    if (other < 0 || other >= vstages) {
        return true; /* the first forward; the last backward follows its forward on its stage */
    }
    *from = (backward ? t->backward : t->forward)[cell(t, other, micro_batch)];
    *sent = mf_layout_stage_of(t->l, other) != stage;
    return *from != NONE;
}

/* Does the result of virtual stage v travel to its neighbour `to` on another stage? */
static bool travels(const sorting *t, int64_t vstages, int64_t stage, int64_t to) {
    return to >= 0 && to < vstages && mf_layout_stage_of(t->l, to) != stage;
}

/* The node of an event, or false when it cannot run yet. */
static bool place(const sorting *t, int64_t vstages, int64_t stage, const mf_event *ev, node *n) {
    bool merged = ev->pass == MF_EVENT_FB;
    bool forward = ev->pass == MF_EVENT_F || merged;
    bool backward = ev->pass == MF_EVENT_B || merged;
    int64_t last = t->s->micro_batches - 1;
    *n = (node){.before = NONE, .from = {NONE, NONE}, .v = {NONE, NONE}, .pass = ev->pass};
    bool ready = true;
    if (forward) {
        int64_t v = mf_layout_vstage(t->l, stage, ev->chunk);
        n->v[0] = (int16_t)v;
        n->first = ev->micro_batch == 0;
        n->sends = (uint8_t)(n->sends + travels(t, vstages, stage, v + 1));
        ready = wait_for(t, vstages, false, stage, v, ev->micro_batch, &n->from[0], &n->sent[0]);
    }
    if (!forward || merged) {
        int64_t chunk = merged ? ev->chunk2 : ev->chunk;
        int64_t micro_batch = merged ? ev->micro_batch2 : ev->micro_batch;
        int64_t v = mf_layout_vstage(t->l, stage, chunk);
        n->v[1] = (int16_t)v;
        n->last = micro_batch == last && (ev->pass == MF_EVENT_W || !t->s->split);
        if (backward) {
            n->sends = (uint8_t)(n->sends + travels(t, vstages, stage, v - 1));
            ready = ready &&
                    wait_for(t, vstages, true, stage, v, micro_batch, &n->from[1], &n->sent[1]);
        }
    }
    return ready;
}

static void note(const sorting *t, const mf_event *ev, const node *n, int32_t id) {
    if (ev->pass == MF_EVENT_F || ev->pass == MF_EVENT_FB) {
        t->forward[cell(t, n->v[0], ev->micro_batch)] = id;
    }
    if (ev->pass == MF_EVENT_B) {
        t->backward[cell(t, n->v[1], ev->micro_batch)] = id;
    }
    if (ev->pass == MF_EVENT_FB) {
        t->backward[cell(t, n->v[1], ev->micro_batch2)] = id;
    }
}

/* Stages take turns, each as far as it can go. */
static mf_status sort_events(mf_order *o, const sorting *t, int64_t *at, mf_err *e) {
    int64_t placed = -1;
    o->nodes = 0;
    while (placed != 0) {
        placed = 0;
        for (int64_t p = 0; p < t->s->stages; p++) {
            node n;
            while (at[p] < t->s->count[p] && place(t, o->vstages, p, &t->s->events[p][at[p]], &n)) {
                int32_t id = (int32_t)o->nodes++;
                n.before = o->last[p];
                o->node[id] = n;
                o->last[p] = id;
                note(t, &t->s->events[p][at[p]], &n, id);
                at[p]++;
                placed++;
            }
        }
    }
    for (int64_t p = 0; p < t->s->stages; p++) {
        if (at[p] < t->s->count[p]) {
            return mf_err_set(e, MF_INTERNAL, "schedule deadlocks at event %lld of stage %lld",
                              (long long)at[p], (long long)p);
        }
    }
    return MF_OK;
}

mf_status mf_order_create(const mf_layout *l, const mf_schedule *s, mf_order **out, mf_err *e) {
    mf_status status = MF_OK;
    sorting t = {l, s, NULL, NULL};
    int64_t *at = NULL, events = 0;
    *out = NULL;
    mf_order *o = calloc(1, sizeof *o);
    if (!o) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (int64_t p = 0; p < s->stages; p++) {
        events += s->count[p];
    }
    assert(events > 0); /* every schedule plays every micro-batch */
    size_t cells = (size_t)(s->stages * s->chunks * s->micro_batches);
    o->stages = (int)s->stages;
    o->vstages = (int)(s->stages * s->chunks);
    o->node = malloc((size_t)events * sizeof *o->node);
    o->start_s = malloc((size_t)events * sizeof *o->start_s);
    o->end_s = malloc((size_t)events * sizeof *o->end_s);
    o->work_s = malloc((size_t)events * sizeof *o->work_s);
    o->host_s = malloc((size_t)s->stages * sizeof *o->host_s);
    o->by = malloc((size_t)events);
    o->end_by = malloc((size_t)events);
    o->as = malloc((size_t)events);
    o->stage_of = malloc((size_t)o->vstages * sizeof *o->stage_of);
    o->chunk_of = malloc((size_t)o->vstages * sizeof *o->chunk_of);
    o->last = malloc((size_t)s->stages * sizeof *o->last);
    o->begun = calloc((size_t)s->stages, sizeof *o->begun);
    at = calloc((size_t)s->stages, sizeof *at);
    t.forward = malloc(cells * sizeof *t.forward);
    t.backward = malloc(cells * sizeof *t.backward);
    if (!o->node || !o->start_s || !o->end_s || !o->work_s || !o->host_s || !o->by || !o->end_by ||
        !o->as || !o->last || !o->begun || !o->stage_of || !o->chunk_of || !at || !t.forward ||
        !t.backward || events > INT32_MAX) {
        status =
            mf_err_set(e, MF_NOMEM, "out of memory for %lld schedule events", (long long)events);
        goto out;
    }
    for (int v = 0; v < o->vstages; v++) {
        o->stage_of[v] = (int16_t)mf_layout_stage_of(l, v);
        o->chunk_of[v] = (int16_t)mf_layout_chunk_of(l, v);
    }
    memset(o->last, 0xff, (size_t)s->stages * sizeof *o->last);
    memset(t.forward, 0xff, cells * sizeof *t.forward);
    memset(t.backward, 0xff, cells * sizeof *t.backward);
    status = sort_events(o, &t, at, e);
out:
    free(at);
    free(t.forward);
    free(t.backward);
    if (status != MF_OK) {
        mf_order_destroy(o);
        return status;
    }
    *out = o;
    return MF_OK;
}

/* --- the longest chain ------------------------------------------------------------------------ */

static double part_s(const mf_order_times *t, mf_order_part part, int v) {
    return t->part_s[part] ? t->part_s[part][v] : 0.0;
}

/* The lower bounds of a merged pair: which parts of (forward, backward) they add up. */
static const mf_order_part merged_as[4][2] = {
    {MF_ORDER_F, MF_ORDER_PARTS},
    {MF_ORDER_PARTS, MF_ORDER_B},
    {MF_ORDER_F_PAIR, MF_ORDER_B_PAIR},
    {MF_ORDER_F_EP, MF_ORDER_B_EP},
};

static double merged_s(const mf_order_times *t, const node *n, int8_t *as) {
    double most = -1.0;
    for (int8_t k = 0; k < 4; k++) {
        double sum = 0.0;
        for (int side = 0; side < 2; side++) {
            if (merged_as[k][side] != MF_ORDER_PARTS) {
                sum += part_s(t, merged_as[k][side], n->v[side]);
            }
        }
        if (sum > most) {
            most = sum;
            *as = k;
        }
    }
    return most;
}

/* A merged pair whose time is known as a whole. */
static double pair_s(const mf_order *o, const mf_order_times *t, const node *n) {
    int chunks = o->vstages / o->stages, stage = o->stage_of[n->v[0]];
    int at = (stage * chunks + o->chunk_of[n->v[0]]) * chunks + o->chunk_of[n->v[1]];
    return t->pair_s[at];
}

static double duration_s(const mf_order *o, const mf_order_times *t, const node *n, int8_t *as) {
    switch ((mf_event_pass)n->pass) {
    case MF_EVENT_F:
        return part_s(t, MF_ORDER_F, n->v[0]);
    case MF_EVENT_B:
        return part_s(t, MF_ORDER_B, n->v[1]);
    case MF_EVENT_W:
        return part_s(t, MF_ORDER_W, n->v[1]);
    case MF_EVENT_FB:
        break;
    }
    double least_s = merged_s(t, n, as);
    return t->pair_s ? pair_s(o, t, n) : least_s;
}

static double host_s(const mf_order_times *t, const node *n) {
    double sum = n->v[0] != NONE ? part_s(t, MF_ORDER_F_HOST, n->v[0]) : 0.0;
    if (n->v[1] != NONE) {
        sum += part_s(t, n->pass == MF_EVENT_W ? MF_ORDER_W_HOST : MF_ORDER_B_HOST, n->v[1]);
    }
    return sum;
}

/* Parameters of all chunks up to this one come first on the stream that gathers. */
static double gather_s(const mf_order *o, const mf_order_times *t, int v) {
    double sum = 0.0;
    for (int u = 0; u <= v; u++) {
        sum += o->stage_of[u] == o->stage_of[v] ? part_s(t, MF_ORDER_GATHER, u) : 0.0;
    }
    return sum;
}

/* Own work of the stage before an event, boundary tensors that held it included. */
static double work_before_s(const mf_order *o, const mf_order_times *t, int64_t i) {
    int32_t before = o->node[i].before;
    return before == NONE ? 0.0 : o->work_s[before] + o->node[before].sends * t->hold_s;
}

static double stage_s(const mf_order *o, const mf_order_times *t, int stage, mf_order_part part) {
    double sum = 0.0;
    for (int v = 0; v < o->vstages; v++) {
        sum += o->stage_of[v] == stage ? part_s(t, part, v) : 0.0;
    }
    return sum;
}

static void start_at(const mf_order *o, const mf_order_times *t, int64_t i) {
    const node *n = &o->node[i];
    o->start_s[i] = 0.0;
    o->by[i] = BY_NOTHING;
    if (n->before != NONE) {
        o->start_s[i] = o->end_s[n->before] + o->node[n->before].sends * t->hold_s;
        o->by[i] = BY_BEFORE;
    }
    for (int side = 0; side < 2; side++) {
        if (n->from[side] != NONE) {
            double ready_s = o->end_s[n->from[side]] + (n->sent[side] ? t->send_s : 0.0);
            if (ready_s > o->start_s[i]) {
                o->start_s[i] = ready_s;
                o->by[i] = (int8_t)(BY_FORWARD + side);
            }
        }
    }
}

/* When the last chunk's first pass is done all parameters are there: gathers cost the passes beside
 * them their share until then. Those of the first chunk are waited for, or beside its pass. */
static void gathers_beside(mf_order *o, const mf_order_times *t, int64_t i, int stage) {
    int chunk = o->chunk_of[o->node[i].v[0]];
    if (chunk == 0) {
        o->begun[stage] = (int32_t)i;
    }
    if (chunk != o->vstages / o->stages - 1) {
        return;
    }
    int32_t begun = o->begun[stage];
    int first = o->node[begun].v[0];
    double lost_s = stage_s(o, t, stage, MF_ORDER_GATHER_LOST);
    double waited_s = part_s(t, MF_ORDER_GATHER, first) - part_s(t, MF_ORDER_GATHER_LOST, first);
    double later_s = waited_s + lost_s + o->work_s[i] - o->work_s[begun];
    if (o->work_s[i] + lost_s > o->end_s[i]) {
        o->end_s[i] = o->work_s[i] + lost_s;
        o->end_by[i] = BY_LOST;
    }
    if (later_s > o->end_s[i]) {
        o->end_s[i] = later_s;
        o->end_by[i] = BY_LOST_LATER;
    }
}

static void play(mf_order *o, const mf_order_times *t) {
    memset(o->host_s, 0, (size_t)o->stages * sizeof *o->host_s);
    for (int64_t i = 0; i < o->nodes; i++) {
        const node *n = &o->node[i];
        int stage = o->stage_of[n->v[0] != NONE ? n->v[0] : n->v[1]];
        start_at(o, t, i);
        o->as[i] = 0;
        o->end_by[i] = BY_NOTHING;
        double own_s = duration_s(o, t, n, &o->as[i]);
        o->end_s[i] = o->start_s[i] + own_s;
        o->work_s[i] = work_before_s(o, t, i) + own_s;
        o->host_s[stage] += host_s(t, n);
        if (o->host_s[stage] > o->end_s[i]) {
            o->end_s[i] = o->host_s[stage];
            o->end_by[i] = BY_HOST;
        }
        double gathered_s = n->first ? gather_s(o, t, n->v[0]) : 0.0;
        if (gathered_s > o->end_s[i]) {
            o->end_s[i] = gathered_s;
            o->end_by[i] = BY_GATHER;
        }
        if (n->first) {
            gathers_beside(o, t, i, stage);
        }
    }
}

static void count_node(const node *n, int8_t as, mf_order_chain *out) {
    switch ((mf_event_pass)n->pass) {
    case MF_EVENT_F:
        out->count[MF_ORDER_F][n->v[0]]++;
        return;
    case MF_EVENT_B:
        out->count[MF_ORDER_B][n->v[1]]++;
        return;
    case MF_EVENT_W:
        out->count[MF_ORDER_W][n->v[1]]++;
        return;
    case MF_EVENT_FB:
        break;
    }
    for (int side = 0; side < 2; side++) {
        mf_order_part part = merged_as[as][side];
        if (part != MF_ORDER_PARTS) {
            out->count[part][n->v[side]]++;
        }
    }
}

/* All that the host issues on the stage up to event `at`. */
static void count_host(const mf_order *o, int32_t at, mf_order_chain *out) {
    for (; at != NONE; at = o->node[at].before) {
        const node *n = &o->node[at];
        if (n->v[0] != NONE) {
            out->count[MF_ORDER_F_HOST][n->v[0]]++;
        }
        if (n->v[1] != NONE) {
            out->count[n->pass == MF_EVENT_W ? MF_ORDER_W_HOST : MF_ORDER_B_HOST][n->v[1]]++;
        }
    }
}

static void count_gather(const mf_order *o, int v, mf_order_chain *out) {
    for (int u = 0; u <= v; u++) {
        out->count[MF_ORDER_GATHER][u] += o->stage_of[u] == o->stage_of[v];
    }
}

static void count_stage(const mf_order *o, int stage, mf_order_part part, mf_order_chain *out) {
    for (int v = 0; v < o->vstages; v++) {
        out->count[part][v] += o->stage_of[v] == stage;
    }
}

/* The stage's events after `until` (NONE = all) up to `at`, without their waits. */
static void count_work(const mf_order *o, int32_t at, int32_t until, mf_order_chain *out) {
    for (; at != until; at = o->node[at].before) {
        const node *n = &o->node[at];
        count_node(n, o->as[at], out);
        if (n->before != until) {
            out->holds += o->node[n->before].sends;
        }
    }
}

static void count_gathers_beside(const mf_order *o, int32_t at, mf_order_chain *out) {
    int stage = o->stage_of[o->node[at].v[0]];
    int32_t begun = o->begun[stage];
    bool later = o->end_by[at] == BY_LOST_LATER;
    count_work(o, at, later ? begun : NONE, out);
    count_stage(o, stage, MF_ORDER_GATHER_LOST, out);
    if (later) {
        int first = o->node[begun].v[0];
        out->holds += at == begun ? 0 : o->node[begun].sends;
        out->count[MF_ORDER_GATHER_LOST][first]--;
        out->count[MF_ORDER_GATHER][first]++;
    }
}

/* Follows what decided back to the start. `whole`: event `at` itself belongs to the chain. */
static void trace(const mf_order *o, int32_t at, bool whole, mf_order_chain *out) {
    while (at != NONE) {
        const node *n = &o->node[at];
        int8_t by = o->by[at];
        if (whole && o->end_by[at] == BY_HOST) {
            count_host(o, at, out);
            return;
        }
        if (whole && o->end_by[at] == BY_GATHER) {
            count_gather(o, n->v[0], out);
            return;
        }
        if (whole && o->end_by[at] >= BY_LOST) {
            count_gathers_beside(o, at, out);
            return;
        }
        if (whole) {
            count_node(n, o->as[at], out);
        }
        whole = true;
        if (by == BY_FORWARD || by == BY_BACKWARD) {
            out->sends += n->sent[by - BY_FORWARD];
            at = n->from[by - BY_FORWARD];
        } else {
            out->holds += n->before != NONE ? o->node[n->before].sends : 0;
            at = n->before;
        }
    }
}

/* Where a stage is done: after its last pass, or later for reductions. These start with the last
 * micro-batch's backward passes. From event `from` on (the first of these) the chain stays on its
 * stage; reductions of events before `to` cost the passes beside them their share, those from `to`
 * on are waited for. What does not end beside passes costs all of its time, so that either way
 * holds. */
typedef struct finish {
    double time_s;
    int32_t from, to; /* from NONE: the last pass decides; to NONE: all are beside passes */
} finish;

static finish finish_of(const mf_order *o, const mf_order_times *t, int stage) {
    int32_t at = o->last[stage], last[MF_MAX_VSTAGES];
    finish f = {0.0, NONE, NONE};
    if (at == NONE) {
        return f;
    }
    double held_s = o->node[at].sends * t->hold_s, reduce_s = 0.0, lost_s = 0.0;
    f.time_s = o->end_s[at] + held_s;
    int n = 0, chunks = o->vstages / o->stages; /* one for each chunk; they stand near the end */
    for (int32_t i = at; i != NONE && n < chunks; i = o->node[i].before) {
        if (o->node[i].last) {
            last[n++] = i;
            reduce_s += part_s(t, MF_ORDER_REDUCE, o->node[i].v[1]);
        }
    }
    if (!(reduce_s > 0.0)) {
        return f;
    }
    double ahead_s = -HUGE_VAL; /* of the stage's own work and losses */
    int32_t from = NONE;
    for (int k = n - 1; k >= 0; k--) { /* in order of play */
        int32_t i = last[k];
        double done_s = work_before_s(o, t, i) + lost_s;
        if (o->start_s[i] - done_s > ahead_s) {
            ahead_s = o->start_s[i] - done_s;
            from = i;
        }
        if (ahead_s + done_s + reduce_s > f.time_s) {
            f = (finish){ahead_s + done_s + reduce_s, from, i};
        }
        reduce_s -= part_s(t, MF_ORDER_REDUCE, o->node[i].v[1]);
        lost_s += part_s(t, MF_ORDER_REDUCE_LOST, o->node[i].v[1]);
    }
    if (ahead_s + o->work_s[at] + held_s + lost_s > f.time_s) {
        f = (finish){ahead_s + o->work_s[at] + held_s + lost_s, from, NONE};
    }
    return f;
}

static void trace_finish(const mf_order *o, int stage, const finish *f, mf_order_chain *out) {
    int32_t at = o->last[stage];
    if (f->from == NONE) {
        out->holds += at == NONE ? 0 : o->node[at].sends;
        trace(o, at, true, out);
        return;
    }
    bool beside = f->to == NONE;
    for (int32_t i = at; i != o->node[f->from].before; i = o->node[i].before) {
        if (o->node[i].last) {
            out->count[beside ? MF_ORDER_REDUCE_LOST : MF_ORDER_REDUCE][o->node[i].v[1]]++;
        }
        beside = beside || i == f->to;
    }
    int32_t until = o->node[f->from].before, end = f->to == NONE ? at : o->node[f->to].before;
    if (end != until) {
        out->holds += o->node[end].sends;
        count_work(o, end, until, out);
    }
    /* up to the start of the event */
    trace(o, f->from, false, out);
}

void mf_order_longest(mf_order *o, const mf_order_times *t, mf_order_chain *out) {
    finish latest = {-1.0, NONE, NONE};
    double update_s = -1.0;
    int update_stage = 0;
    play(o, t);
    memset(out->count[0], 0, (size_t)MF_ORDER_PARTS * (size_t)out->vstages * sizeof *out->count[0]);
    out->sends = out->holds = 0;
    out->norm_stage = 0;
    for (int p = 0; p < o->stages; p++) {
        finish f = finish_of(o, t, p);
        f.time_s += stage_s(o, t, p, MF_ORDER_NORM);
        double after_s = stage_s(o, t, p, MF_ORDER_UPDATE);
        if (f.time_s > latest.time_s) {
            latest = f;
            out->norm_stage = p;
        }
        if (after_s > update_s) {
            update_s = after_s;
            update_stage = p;
        }
    }
    out->time_s = latest.time_s + update_s;
    count_stage(o, out->norm_stage, MF_ORDER_NORM, out);
    count_stage(o, update_stage, MF_ORDER_UPDATE, out);
    trace_finish(o, out->norm_stage, &latest, out);
}
