/* longest_path.c - the longest path through a schedule's order, for any times of its stages. */
#include "core/program/lower.h"
#include "planner/order/order_graph.h"

#include <math.h>
#include <string.h>

static double part_s(const mf_order_times *t, mf_order_part part, int v) {
    return t->part_s[part] ? t->part_s[part][v] : 0.0;
}

const mf_order_part mf_order_merged_as[MF_ORDER_MERGED][2] = {
    {MF_ORDER_F_PAIR, MF_ORDER_B_PAIR},
    {MF_ORDER_PAIR_PORTION_F, MF_ORDER_PAIR_PORTION_B},
    {MF_ORDER_F_EP, MF_ORDER_B_EP},
};

static double merged_s(const mf_order_times *t, const node *n, int8_t *as) {
    double most = -1.0;
    for (int8_t k = 0; k < MF_ORDER_MERGED; k++) {
        double sum = 0.0;
        for (int side = 0; side < 2; side++) {
            sum += part_s(t, mf_order_merged_as[k][side], n->v[side]);
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

/* An event, which takes as long as its kind unless it is a first one. */
static double own_s(const mf_order_times *t, const node *n, const node_kind *kind) {
    return n->anew ? kind->own_s - part_s(t, MF_ORDER_ANEW, n->v[1]) : kind->own_s;
}

static double host_s(const mf_order_times *t, const node *n) {
    double sum = n->v[0] != NONE ? part_s(t, MF_ORDER_F_HOST, n->v[0]) : 0.0;
    if (n->v[1] != NONE) {
        sum += part_s(t, n->pass == MF_EVENT_W ? MF_ORDER_W_HOST : MF_ORDER_B_HOST, n->v[1]);
    }
    return sum;
}

double mf_order_stage_s(const mf_order *o, const mf_order_times *t, int stage, mf_order_part part) {
    double sum = 0.0;
    for (int v = 0; v < o->vstages; v++) {
        sum += o->stage_of[v] == stage ? part_s(t, part, v) : 0.0;
    }
    return sum;
}

/* --- losses ----------------------------------------------------------------------------------- */

static bool has_losses(const mf_order_times *t) {
    return t->losses && t->losses->left_s;
}

static double start_loss_s(const mf_order_times *t) {
    return t->losses ? t->losses->start_s : 0.0;
}

/* Start time plus what is lost to reductions of an earlier event: the part of an event's loss that
 * does not shrink when the event starts later. */
static double start_behind_s(const mf_order *o, const mf_order_times *t, const node *n,
                             double start_s) {
    if (!n->behind || !has_losses(t)) {
        return start_s;
    }
    if (o->played[n->ref].end_by != BY_NOTHING) {
        return start_s; /* the path would not go through that pass, from whose start reductions are
                         * counted */
    }
    const node *ref = &o->node[n->ref];
    double share = t->losses->share[n->behind - 1];
    double free_s = o->played[n->ref].end_s + ref->sends * t->hold_s;
    return start_s - share * (start_s - free_s) +
           mf_order_lost_behind(t->losses, n->behind, share, ref->v[1]);
}

/* A stage when an event is about to start. */
typedef struct stage_state {
    double free_s;         /* when the event before has ended and its results are sent */
    double work_s, held_s; /* work done so far, and for how long sends have blocked the stage */
} stage_state;

static stage_state stage_state_before(const mf_order *o, const mf_order_times *t, int32_t before) {
    if (before == NONE) {
        return (stage_state){0.0, 0.0, 0.0};
    }
    const played *x = &o->played[before];
    double hold_s = o->node[before].sends * t->hold_s;
    return (stage_state){x->end_s + hold_s, x->work_s + hold_s, x->held_s + hold_s};
}

/* Sets *x to the start of an event. Returns that start plus the time that the event loses to
 * reductions: to those of an earlier event, which run from when its stage was free, so that a later
 * start loses less, or to its own. */
static double start_at(const mf_order *o, const mf_order_times *t, const node *n,
                       const stage_state *p, played *x) {
    bool waits = n->from[0] != NONE || n->from[1] != NONE;
    double free_s = waits ? 0.0 : start_loss_s(t), early_s = free_s;
    double own_s = n->last && has_losses(t) ? part_s(t, MF_ORDER_OWN_LOST, n->v[1]) -
                                                  t->losses->kind_s[MF_LOSS_OWN][n->v[1]]
                                            : 0.0;
    x->own_lost = own_s > 0.0;
    own_s = own_s > 0.0 ? own_s : 0.0;
    x->by = BY_NOTHING;
    if (n->before != NONE) {
        free_s = p->free_s;
        early_s = o->played[n->before].early_s[1];
        x->by = BY_BEFORE;
    }
    double start_s = free_s;
    for (int side = 0; side < 2; side++) {
        if (n->from[side] != NONE) {
            const played *from = &o->played[n->from[side]];
            double ready_s = from->end_s + (n->sent[side] ? t->send_s : 0.0);
            if (ready_s > start_s) {
                start_s = ready_s;
                early_s = from->early_s[1];
                x->by = (int8_t)(BY_FORWARD + side);
            }
        }
    }
    x->start_s = start_s;
    x->early_s[0] = x->early_s[1] = early_s;
    double mean_s = start_behind_s(o, t, n, start_s);
    x->lost = mean_s > start_s;
    if (x->lost) {
        double share = t->losses->share[n->behind - 1];
        x->early_s[1] -= share * (early_s - o->played[n->ref].early_s[1]);
    }
    return (x->lost ? mean_s : start_s) + own_s;
}

/* --- gathers ---------------------------------------------------------------------------------- */

/* Parameters of all chunks up to this one come first on the stream that gathers. */
static double gather_s(const mf_order *o, const mf_order_times *t, int v, mf_order_part part) {
    double sum = 0.0;
    for (int u = 0; u <= v; u++) {
        sum += o->stage_of[u] == o->stage_of[v] ? part_s(t, part, u) : 0.0;
    }
    return sum;
}

static void end_later(played *x, double end_s, double early_s, int by) {
    if (end_s > x->end_s) {
        x->end_s = end_s;
        x->early_s[1] = early_s;
        x->end_by = (int8_t)by;
    }
}

/* The last block of a first pass starts when the pass's parameters are gathered. Gathers that are
 * queued behind these slow the rest of the path down. */
static void gathered(const mf_order *o, const mf_order_times *t, int v, played *x) {
    double there_s = gather_s(o, t, v, MF_ORDER_GATHER);
    double left_s = start_loss_s(t) - gather_s(o, t, v, MF_ORDER_GATHER_LOST);
    double last_s = has_losses(t) ? t->losses->kind_s[MF_LOSS_LAST][v] : 0.0;
    if (left_s > 0.0) {
        end_later(x, there_s + last_s + left_s, left_s, BY_GATHER_LOST);
    } else {
        end_later(x, there_s + last_s, 0.0, BY_GATHER);
    }
}

/* Gathers run from the start of the step, so that of all up to a chunk's at least what S leaves is
 * beside the events since the one that starts at S, or between them, until the chunk's first pass
 * is done: these lose their share to it, but for as long as sends held the stage. (S itself then
 * counts no losses to all that gathers at the start.) */
static void note_ahead(const mf_order_times *t, int64_t i, const played *x, const stage_state *p,
                       ahead *most) {
    double done_s = p->work_s - t->lost * p->held_s;
    double ahead_s = (1.0 - t->lost) * (x->start_s - x->early_s[0]) - done_s;
    if (most->since == NONE || ahead_s > most->time_s) {
        *most = (ahead){ahead_s, (int32_t)i};
    }
}

static void gathers_beside(const mf_order *o, const mf_order_times *t, int v, const ahead *most,
                           played *x) {
    double done_s = x->work_s - t->lost * x->held_s;
    o->since[v] = most->since;
    end_later(x, most->time_s + done_s + gather_s(o, t, v, MF_ORDER_GATHER_LOST), 0.0, BY_LOST);
}

/* --- first passes, each with its own loss --------------------------------------------------- */

static bool has_ahead(const mf_order_times *t) {
    return has_losses(t) && t->losses->early_s[0];
}

/* The end of an event on a path without start_s. */
static double bare_end_s(const mf_order *o, int32_t at) {
    const node *n = &o->node[at];
    return n->ahead ? early_of(o, n)->end_s : o->played[at].end_s - o->played[at].early_s[1];
}

/* One of a stage's first forward passes on a path that counts what each of them loses to gathers.
 */
static void play_early(const mf_order *o, const mf_order_times *t, const node *n, double time_s,
                       played *x) {
    early *y = early_of(o, n);
    double start_s = 0.0;
    *y = (early){.by = BY_NOTHING};
    if (n->before != NONE) {
        start_s = bare_end_s(o, n->before) + o->node[n->before].sends * t->hold_s;
        y->by = BY_BEFORE;
    }
    if (n->from[0] != NONE) {
        const double ready_s = bare_end_s(o, n->from[0]) + (n->sent[0] ? t->send_s : 0.0);
        if (ready_s > start_s) {
            start_s = ready_s;
            y->by = BY_FORWARD;
        }
    }
    const int k = n->ahead - 1, v = n->v[0];
    const double share = t->losses->ahead_share[k][v];
    const double mean_s =
        start_s - share * start_s + mf_order_lost_ahead(t->losses, n->ahead, share, v);
    y->lost = mean_s > start_s;
    y->end_s = (y->lost ? mean_s : start_s) + time_s;
    if (n->first) {
        const double there_s =
            gather_s(o, t, v, MF_ORDER_GATHER) + t->losses->kind_s[MF_LOSS_LAST][v];
        y->waited = there_s > y->end_s;
        y->end_s = y->waited ? there_s : y->end_s;
    }
    end_later(x, y->end_s, 0.0, BY_AHEAD);
}

/* --- the play --------------------------------------------------------------------------------- */

void mf_order_play(mf_order *o, const mf_order_times *t) {
    memset(o->host_s, 0, (size_t)o->stages * sizeof *o->host_s);
    for (int p = 0; p < o->stages; p++) {
        o->ahead[p].since = NONE;
    }
    for (int32_t k = 0; k < o->kinds; k++) {
        node_kind *x = &o->kind[k];
        x->as = 0;
        x->own_s = duration_s(o, t, &o->node[x->of], &x->as);
        x->host_s = host_s(t, &o->node[x->of]);
    }
    for (int64_t i = 0; i < o->nodes; i++) {
        const node *n = &o->node[i];
        const node_kind *kind = &o->kind[n->kind];
        const stage_state p = stage_state_before(o, t, n->before);
        const double time_s = own_s(t, n, kind);
        played *x = &o->played[i]; /* in place: a copy would wait for its fields to be stored */
        x->end_by = BY_NOTHING;
        x->work_s = p.work_s + time_s;
        x->held_s = p.held_s;
        x->end_s = start_at(o, t, n, &p, x) + time_s;
        double *host = &o->host_s[kind->stage];
        *host += kind->host_s;
        end_later(x, *host, 0.0, BY_HOST);
        note_ahead(t, i, x, &p, &o->ahead[kind->stage]);
        if (n->first) {
            gathered(o, t, n->v[0], x);
            gathers_beside(o, t, n->v[0], &o->ahead[kind->stage], x);
        }
        if (n->ahead && has_ahead(t)) {
            play_early(o, t, n, time_s, x);
        }
    }
}

/* --- where a stage is done -------------------------------------------------------------------- */

mf_order_finish mf_order_finish_of(const mf_order *o, const mf_order_times *t, int stage) {
    int32_t at = o->last[stage], last[MF_MAX_VSTAGES];
    mf_order_finish f = {0.0, NONE, NONE};
    if (at == NONE) {
        return f;
    }
    double held_s = o->node[at].sends * t->hold_s, reduce_s = 0.0, lost_s = 0.0;
    f.time_s = o->played[at].end_s + held_s;
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
        int v = o->node[i].v[1];
        const stage_state p = stage_state_before(o, t, o->node[i].before);
        double done_s = p.work_s - t->lost * p.held_s + lost_s;
        double first_s = has_losses(t) ? t->losses->kind_s[MF_LOSS_FIRST][v] : 0.0;
        if (o->played[i].start_s - done_s > ahead_s) {
            ahead_s = o->played[i].start_s - done_s;
            from = i;
        }
        if (ahead_s + done_s + first_s + reduce_s > f.time_s) {
            f = (mf_order_finish){ahead_s + done_s + first_s + reduce_s, from, i};
        }
        reduce_s -= part_s(t, MF_ORDER_REDUCE, v);
        lost_s += part_s(t, MF_ORDER_REDUCE_LOST, v);
    }
    double done_s =
        o->played[at].work_s + held_s - t->lost * (o->played[at].held_s + held_s) + lost_s;
    if (ahead_s + done_s > f.time_s) {
        f = (mf_order_finish){ahead_s + done_s, from, NONE};
    }
    return f;
}

void mf_order_longest(mf_order *o, const mf_order_times *t, mf_order_path *out) {
    mf_order_finish latest = {-1.0, NONE, NONE};
    double update_s = -1.0;
    int update_stage = 0;
    mf_order_play(o, t);
    memset(out->count[0], 0, MF_ORDER_PATH_DOUBLES(out->vstages) * sizeof *out->count[0]);
    out->sends = out->holds = out->beside = out->starts = 0.0;
    memset(out->share, 0, sizeof out->share);
    if (has_losses(t)) {
        memcpy(out->share, t->losses->share, sizeof out->share);
        memcpy(out->ahead_share[0], t->losses->ahead_share[0],
               MF_ORDER_AHEAD * (size_t)out->vstages * sizeof *out->ahead_share[0]);
    }
    out->norm_stage = 0;
    out->early = false;
    out->lost = t->lost;
    for (int p = 0; p < o->stages; p++) {
        mf_order_finish f = mf_order_finish_of(o, t, p);
        f.time_s += mf_order_stage_s(o, t, p, MF_ORDER_NORM);
        double after_s = mf_order_stage_s(o, t, p, MF_ORDER_UPDATE);
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
    for (int v = 0; v < o->vstages && o->several; v++) {
        out->time_s += part_s(t, MF_ORDER_ANEW, v);
        out->count[MF_ORDER_ANEW][v] = 1.0;
    }
    mf_order_count_stage(o, out->norm_stage, MF_ORDER_NORM, out);
    mf_order_count_stage(o, update_stage, MF_ORDER_UPDATE, out);
    mf_order_trace(o, out->norm_stage, &latest, out);
}
