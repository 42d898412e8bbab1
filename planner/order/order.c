/* order.c - paths, and the graph of a schedule: sorted once, so that plays of it are linear. */
#include "core/program/lower.h"
#include "planner/order/order_graph.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* --- paths ------------------------------------------------------------------------------------ */

mf_status mf_order_path_init(mf_order_path *c, int vstages, mf_err *e) {
    memset(c, 0, sizeof *c);
    double *figures = calloc(MF_ORDER_PATH_DOUBLES(vstages), sizeof *figures);
    if (!figures) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    c->vstages = vstages;
    for (int p = 0; p < MF_ORDER_PARTS; p++) {
        c->count[p] = figures + (size_t)p * (size_t)vstages;
    }
    for (int k = 0; k < MF_LOSS_KINDS; k++) {
        c->loss[k] = figures + (size_t)(MF_ORDER_PARTS + k) * (size_t)vstages;
    }
    for (int k = 0; k < MF_ORDER_AHEAD; k++) {
        c->ahead_share[k] = figures + MF_ORDER_PATH_SUMS(vstages) + (size_t)k * (size_t)vstages;
    }
    return MF_OK;
}

double mf_order_lost_behind(const mf_order_losses *x, int behind, double share, int v) {
    double at_once_s =
        x->kind_s[MF_LOSS_BEHIND + behind - 1][v] + share * x->after_s[behind - 1][v];
    double late_s = share * x->late_s[behind - 1][v];
    return late_s < at_once_s ? late_s : at_once_s;
}

double mf_order_lost_ahead(const mf_order_losses *x, int pass, double share, int v) {
    double at_once_s = x->kind_s[MF_LOSS_AHEAD + pass - 1][v] + share * x->early_s[pass - 1][v];
    double late_s = share * x->gathered_s[pass - 1][v];
    return late_s < at_once_s ? late_s : at_once_s;
}

/* Seconds of a path's losses, with the losses of any layout of its order. */
static double lost_s(const mf_order_losses *x, const mf_order_path *c) {
    double sum_s = c->starts * x->start_s;
    for (int v = 0; v < c->vstages && x->left_s; v++) {
        sum_s += c->loss[MF_LOSS_FIRST][v] * x->kind_s[MF_LOSS_FIRST][v] +
                 c->loss[MF_LOSS_LAST][v] * x->kind_s[MF_LOSS_LAST][v] -
                 c->loss[MF_LOSS_OWN][v] * x->kind_s[MF_LOSS_OWN][v];
        for (int k = 0; k < MF_ORDER_BEHIND; k++) {
            double count = c->loss[MF_LOSS_BEHIND + k][v];
            sum_s += count > 0.0 ? count * mf_order_lost_behind(x, k + 1, c->share[k], v) : 0.0;
        }
        for (int k = 0; k < MF_ORDER_AHEAD && c->early; k++) {
            double count = c->loss[MF_LOSS_AHEAD + k][v];
            sum_s +=
                count > 0.0 ? count * mf_order_lost_ahead(x, k + 1, c->ahead_share[k][v], v) : 0.0;
        }
    }
    return sum_s;
}

double mf_order_path_fixed_s(const mf_order_path *c, double tail_s, double send_s, double hold_s,
                             double lost, const mf_order_losses *losses) {
    return tail_s + c->sends * send_s + (c->holds - c->beside * lost) * hold_s + lost_s(losses, c);
}

mf_status mf_order_path_copy(mf_order_path *copy, const mf_order_path *path, mf_err *e) {
    mf_status status = mf_order_path_init(copy, path->vstages, e);
    if (status != MF_OK) {
        return status;
    }
    memcpy(copy->count[0], path->count[0],
           MF_ORDER_PATH_DOUBLES(path->vstages) * sizeof *copy->count[0]);
    copy->time_s = path->time_s;
    copy->sends = path->sends;
    copy->holds = path->holds;
    copy->beside = path->beside;
    copy->starts = path->starts;
    copy->early = path->early;
    memcpy(copy->share, path->share, sizeof copy->share);
    copy->norm_stage = path->norm_stage;
    copy->lost = path->lost;
    return MF_OK;
}

void mf_order_path_clear(mf_order_path *c) {
    free(c->count[0]);
    memset(c, 0, sizeof *c);
}

/* --- the graph -------------------------------------------------------------------------------- */

void mf_order_destroy(mf_order *o) {
    if (!o) {
        return;
    }
    free(o->node);
    free(o->played);
    free(o->host_s);
    free(o->kind);
    free(o->weight);
    free(o->last);
    free(o->since);
    free(o->ahead);
    free(o->early);
    free(o->stage_of);
    free(o->chunk_of);
    free(o);
}

/* Tables of who makes what, while the graph is sorted. */
typedef struct sorting {
    const mf_layout *l;
    const mf_schedule *s;
    int32_t *forward, *backward; /* [vstages][micro_batches] node of the pass, NONE = not yet */
    int32_t *kind; /* [3][vstages] of single passes, [vstages][chunks] of pairs; NONE = none yet */
} sorting;

static size_t cell(const sorting *t, int64_t v, int64_t micro_batch) {
    return (size_t)v * (size_t)t->s->micro_batches + (size_t)micro_batch;
}

/* Finds the pass of a neighbouring virtual stage that a pass waits for; false when that has no node
 * yet. */
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
        const bool makes = ev->pass == MF_EVENT_W || !t->s->split;
        n->last = micro_batch == last && makes;
        n->anew = micro_batch == 0 && last > 0 && makes;
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

/* The kind of a node, made when it is the first. */
static int32_t kind_of(mf_order *o, const sorting *t, int64_t stage, const node *n, int32_t id) {
    int64_t v = o->vstages, at = 0;
    switch ((mf_event_pass)n->pass) {
    case MF_EVENT_F:
        at = n->v[0];
        break;
    case MF_EVENT_B:
        at = v + n->v[1];
        break;
    case MF_EVENT_W:
        at = 2 * v + n->v[1];
        break;
    case MF_EVENT_FB:
        at = 3 * v + n->v[0] * t->s->chunks + o->chunk_of[n->v[1]];
        break;
    }
    if (t->kind[at] == NONE) {
        t->kind[at] = o->kinds;
        o->kind[o->kinds++] = (node_kind){.of = id, .stage = (int16_t)stage};
    }
    return t->kind[at];
}

/* How far behind its stage's latest last backward pass an event stands. */
static void set_behind(const mf_order *o, node *n) {
    const node *before = n->before == NONE ? NULL : &o->node[n->before];
    n->ref = NONE;
    if (before && before->last) {
        n->behind = 1;
        n->ref = n->before;
    } else if (before && before->behind > 0 && before->behind < MF_ORDER_BEHIND) {
        n->behind = (uint8_t)(before->behind + 1);
        n->ref = before->ref;
    }
}

/* How many first forward passes of its first chunk a stage has run with this one. */
static void set_ahead(const mf_order *o, node *n) {
    const node *before = n->before == NONE ? NULL : &o->node[n->before];
    if (n->pass == MF_EVENT_F && o->chunk_of[n->v[0]] == 0 && n->behind == 0) {
        n->ahead = before == NULL ? 1
                   : before->ahead > 0 && before->ahead < MF_ORDER_AHEAD
                       ? (uint8_t)(before->ahead + 1)
                       : 0;
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
                set_behind(o, &n);
                set_ahead(o, &n);
                n.kind = kind_of(o, t, p, &n, id);
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
    sorting t = {l, s, NULL, NULL, NULL};
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
    o->several = s->micro_batches > 1;
    size_t kinds = (size_t)o->vstages * (size_t)(3 + s->chunks);
    o->node = calloc((size_t)events, sizeof *o->node);
    o->played = malloc((size_t)events * sizeof *o->played);
    o->weight = calloc((size_t)events, sizeof *o->weight);
    o->host_s = malloc((size_t)s->stages * sizeof *o->host_s);
    o->kind = malloc(kinds * sizeof *o->kind);
    o->stage_of = malloc((size_t)o->vstages * sizeof *o->stage_of);
    o->chunk_of = malloc((size_t)o->vstages * sizeof *o->chunk_of);
    o->last = malloc((size_t)s->stages * sizeof *o->last);
    o->since = calloc((size_t)o->vstages, sizeof *o->since);
    o->ahead = calloc((size_t)s->stages, sizeof *o->ahead);
    o->early = calloc((size_t)s->stages * MF_ORDER_AHEAD, sizeof *o->early);
    at = calloc((size_t)s->stages, sizeof *at);
    t.forward = malloc(cells * sizeof *t.forward);
    t.backward = malloc(cells * sizeof *t.backward);
    t.kind = malloc(kinds * sizeof *t.kind);
    if (!o->node || !o->played || !o->weight || !o->host_s || !o->kind || !t.kind || !o->last ||
        !o->since || !o->ahead || !o->early || !o->stage_of || !o->chunk_of || !at || !t.forward ||
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
    memset(t.kind, 0xff, kinds * sizeof *t.kind);
    status = sort_events(o, &t, at, e);
out:
    free(at);
    free(t.forward);
    free(t.backward);
    free(t.kind);
    if (status != MF_OK) {
        mf_order_destroy(o);
        return status;
    }
    *out = o;
    return MF_OK;
}

int64_t mf_order_nodes(const mf_order *o) {
    return o->nodes;
}
