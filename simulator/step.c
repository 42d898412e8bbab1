/* step.c - the step engine: chunk events of every stage played in schedule order.
 *
 * A stage plays its events one after the other; an event waits for its inputs. Activations and
 * gradients travel to the neighbouring virtual stage beside compute (`--overlap pp`), of which the
 * software profile's share stays exposed, or hold the sender. A rank's time is booked by class as
 * it passes, so that classes sum to the step.
 */
#include "simulator/step_engine.h"

#include "core/base/flag.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- time of a rank --------------------------------------------------------------------------- */

void mf_step_wait(mf_step_rank *k, mf_when when, mf_breakdown_kind why) {
    if (when.s > k->free.s) {
        k->class_s[why] += when.s - k->free.s;
        k->free = when;
    }
}

void mf_step_pass(mf_step_rank *k, double time_s, double low_s, double high_s) {
    k->free.s += time_s;
    k->free.low_s += low_s;
    k->free.high_s += high_s;
}

void mf_step_observe(mf_step_engine *g, const mf_block_instance *i) {
    if (g->o->observe != NULL) {
        g->o->observe(i, g->o->user);
    }
}

/* --- messages --------------------------------------------------------------------------------- */

static mf_when **inbox(const mf_step_engine *g, int dir, int64_t v, int64_t mb) {
    return &g->in[dir][v * g->s->micro_batches + mb];
}

/* Virtual stage that the input of (v, direction) comes from; -1 = the data, or the loss. */
static int64_t source_of(const mf_step_engine *g, int dir, int64_t v) {
    int64_t last = g->s->stages * g->s->chunks - 1;
    return dir == 0 ? v - 1 : v == last ? -1 : v + 1;
}

static bool travels(const mf_step_engine *g, int64_t from, int64_t to) {
    return from >= 0 &&
           mf_layout_stage_of(&g->p->layout, from) != mf_layout_stage_of(&g->p->layout, to);
}

static bool has_input(const mf_step_engine *g, int dir, int64_t v, int64_t mb) {
    return (dir == 0 && v == 0) || *inbox(g, dir, v, mb) != NULL;
}

/* What sending takes between v and the virtual stage that its result goes to, or (`in`) its input
 * comes from. */
static const mf_price *send_price(const mf_step_engine *g, int dir, int64_t v, bool in) {
    int64_t edge = v - (in ? dir == 0 : dir == 1);
    return mf_program_send(g->p, edge, dir) == &g->p->send_states[dir] ? &g->send_states[dir]
                                                                       : &g->send[dir];
}

/* Books the wait for an input: as pipeline communication while the message travels, as bubble
 * before that. */
static void take_input(mf_step_engine *g, int64_t stage, int dir, int64_t v, int64_t mb) {
    mf_when **slot = inbox(g, dir, v, mb);
    bool far = travels(g, source_of(g, dir, v), v);
    for (int64_t r = 0; r < g->ranks && *slot != NULL; r++) {
        mf_step_rank *k = mf_step_rank_of(g, stage, r);
        mf_when there = (*slot)[r];
        if (far) {
            const mf_price *p = send_price(g, dir, v, true);
            mf_when sent = {there.s - p->time_s, there.low_s - p->low_s, there.high_s - p->high_s};
            mf_step_wait(k, sent, MF_BD_BUBBLE);
        }
        mf_step_wait(k, there, far ? MF_BD_PP : MF_BD_BUBBLE);
    }
    free(*slot);
    *slot = NULL;
}

static mf_when send(mf_step_engine *g, int64_t stage, int64_t r, int dir, int64_t v, int64_t mb) {
    mf_step_rank *k = mf_step_rank_of(g, stage, r);
    const mf_price *p = send_price(g, dir, v, false);
    mf_when there = k->free;
    there.s = fmax(there.s, k->sent_s[dir]);
    mf_block_instance i = {.stage = stage,
                           .rank = r,
                           .event = g->next[stage],
                           .position = -1,
                           .position2 = -1,
                           .passes = dir == 0 ? MF_PASS_F : MF_PASS_B,
                           .micro_batch = (int32_t)mb,
                           .start_s = there.s,
                           .op = mf_program_send(g->p, dir == 0 ? v : v - 1, dir)};
    there.s += p->time_s;
    there.low_s += p->low_s;
    there.high_s += p->high_s;
    k->sent_s[dir] = i.end_s = there.s;
    if (g->overlap_pp) {
        double share = mf_cost_exposed(g->cost, MF_OVERLAP_PP);
        k->class_s[MF_BD_PP] += share * p->time_s;
        mf_step_pass(k, share * p->time_s, share * p->low_s, share * p->high_s);
    } else {
        mf_step_wait(k, there, MF_BD_PP);
    }
    if (p->time_s > 0) {
        mf_step_observe(g, &i);
    }
    return there;
}

/* Sends the result of (v, micro-batch): forward to the next virtual stage, backward to the one
 * before. After the last stage the loss starts the backward pass. */
static void deliver(mf_step_engine *g, int64_t stage, int dir, int64_t v, int64_t mb) {
    int64_t last = g->s->stages * g->s->chunks - 1, to = dir == 0 ? v + 1 : v - 1;
    int to_dir = dir;
    if (dir == 0 && v == last) {
        to = v;
        to_dir = 1;
    }
    if (to < 0 || g->status != MF_OK) {
        return;
    }
    mf_when *out = malloc((size_t)g->ranks * sizeof *out);
    if (out == NULL) {
        g->status = mf_err_set(g->e, MF_NOMEM, "simulation: out of memory");
        return;
    }
    bool far = travels(g, v, to);
    for (int64_t r = 0; r < g->ranks; r++) {
        out[r] = far ? send(g, stage, r, dir, v, mb) : mf_step_rank_of(g, stage, r)->free;
    }
    *inbox(g, to_dir, to, mb) = out;
}

/* --- events ----------------------------------------------------------------------------------- */

/* Plays the stage's next event if its inputs are there; false when it has to wait. */
static bool play_event(mf_step_engine *g, int64_t stage) {
    const mf_event *ev = &g->s->events[stage][g->next[stage]];
    bool f = ev->pass == MF_EVENT_F || ev->pass == MF_EVENT_FB;
    bool b = ev->pass == MF_EVENT_B || ev->pass == MF_EVENT_FB;
    int64_t v = mf_layout_vstage(&g->p->layout, stage, ev->chunk), v2 = v, mb2 = ev->micro_batch;
    if (ev->pass == MF_EVENT_FB) {
        v2 = mf_layout_vstage(&g->p->layout, stage, ev->chunk2);
        mb2 = ev->micro_batch2;
    }
    if ((f && !has_input(g, 0, v, ev->micro_batch)) || (b && !has_input(g, 1, v2, mb2))) {
        return false;
    }
    if (f) {
        take_input(g, stage, 0, v, ev->micro_batch);
    }
    if (b) {
        take_input(g, stage, 1, v2, mb2);
    }
    mf_step_chunk(g, stage, g->next[stage]);
    if (f) {
        deliver(g, stage, 0, v, ev->micro_batch);
    }
    if (b) {
        deliver(g, stage, 1, v2, mb2);
    }
    g->next[stage]++;
    return true;
}

static void play_all(mf_step_engine *g) {
    for (bool moved = true; moved && g->status == MF_OK;) {
        moved = false;
        for (int64_t p = 0; p < g->s->stages; p++) {
            while (g->next[p] < g->s->count[p] && g->status == MF_OK && play_event(g, p)) {
                moved = true;
                if (mf_flag_is_set(g->o->cancel)) {
                    g->status = mf_err_set(g->e, MF_INTERRUPTED, "simulation interrupted");
                }
            }
        }
    }
    for (int64_t p = 0; p < g->s->stages && g->status == MF_OK; p++) {
        if (g->next[p] < g->s->count[p]) {
            g->status = mf_err_set(g->e, MF_INTERNAL, "simulation: stage %lld waits for ever",
                                   (long long)p);
        }
    }
}

/* --- result ----------------------------------------------------------------------------------- */

/* The step ends when its last rank has done its work at the end of the step; the others wait:
 * bubble. */
static void summarise(mf_step_engine *g, mf_sim *out) {
    double fixed = g->software->fixed_step_s;
    mf_when end = {0, 0, 0};
    int64_t busiest = 0;
    for (int64_t i = 0; i < g->s->stages * g->ranks; i++) {
        end = g->rank[i].free.s > end.s ? g->rank[i].free : end;
        busiest = g->rank[i].busy_s > g->rank[busiest].busy_s ? i : busiest;
    }
    out->step_time_s = end.s + fixed;
    out->low_s = fmin(end.low_s, end.s) + fixed;
    out->high_s = fmax(end.high_s, end.s) + fixed;
    out->critical_stage = busiest / g->ranks;
    out->critical_rank = busiest % g->ranks;
    out->stages = g->s->stages;
    for (int64_t p = 0; p < g->s->stages; p++) {
        mf_step_rank *k = mf_step_rank_of(g, p, 0);
        for (int64_t r = 1; r < g->ranks; r++) {
            mf_step_rank *other = mf_step_rank_of(g, p, r);
            k = other->busy_s > k->busy_s ? other : k;
        }
        mf_sim_stage *s = &out->stage[p];
        s->end_s = k->free.s;
        s->busy_s = k->busy_s;
        s->idle_s = out->step_time_s - k->busy_s;
        mf_step_wait(k, end, MF_BD_BUBBLE);
        k->class_s[MF_BD_HOST] += fixed;
        double sum = 0;
        for (int b = 0; b < MF_BD_COUNT; b++) {
            sum += k->class_s[b];
        }
        /* The rounding of thousands of additions goes to the bubble, so that the sum is exact. */
        assert(fabs(out->step_time_s - sum) <= 1e-7 * out->step_time_s);
        k->class_s[MF_BD_BUBBLE] = fmax(0, k->class_s[MF_BD_BUBBLE] + out->step_time_s - sum);
        memcpy(s->breakdown_s, k->class_s, sizeof s->breakdown_s);
    }
    for (int b = 0; b < MF_BD_COUNT; b++) {
        out->breakdown_s[b] = out->stage[out->critical_stage].breakdown_s[b];
    }
    out->events = g->events;
    out->ops = g->ops;
}

static mf_status prepare(mf_step_engine *g, mf_sim *out) {
    const mf_schedule *s = g->s;
    size_t stages = (size_t)s->stages, ranks = stages * (size_t)g->ranks;
    size_t cells = stages * (size_t)(s->chunks * s->micro_batches);
    g->kinds = (int64_t)(MF_EVENT_FB + 1) * s->chunks * (s->chunks + 1);
    g->next = calloc(stages, sizeof *g->next);
    g->rank = calloc(ranks, sizeof *g->rank);
    g->play = calloc(stages * (size_t)g->kinds, sizeof *g->play);
    g->in[0] = calloc(cells, sizeof *g->in[0]);
    g->in[1] = calloc(cells, sizeof *g->in[1]);
    g->gather_behind_s = calloc((size_t)g->p->assignment.positions, sizeof *g->gather_behind_s);
    out->stage = calloc(stages, sizeof *out->stage);
    if (!g->next || !g->rank || !g->play || !g->in[0] || !g->in[1] || !g->gather_behind_s ||
        !out->stage) {
        return mf_err_set(g->e, MF_NOMEM, "simulation: out of memory");
    }
    mf_status status = mf_times_create(g->cost, g->p, g->o->keep_ops, &g->times, g->e);
    if (status == MF_OK) {
        status = mf_step_loads(g);
    }
    return status == MF_OK ? mf_step_end_price(g) : status;
}

static void clear(mf_step_engine *g) {
    int64_t cells = g->s->stages * g->s->chunks * g->s->micro_batches;
    mf_step_chunks_clear(g);
    for (int dir = 0; dir < 2; dir++) {
        for (int64_t i = 0; g->in[dir] != NULL && i < cells; i++) {
            free(g->in[dir][i]);
        }
        free(g->in[dir]);
        free(g->reduce[dir]);
        free(g->gather[dir]);
    }
    mf_times_destroy(g->times);
    free(g->next);
    free(g->rank);
    free(g->load);
    free(g->gather_behind_s);
}

mf_status mf_step_play(const mf_cost *cost, const mf_program *p, const mf_schedule *s,
                       const mf_step_options *o, mf_sim *out, mf_err *e) {
    mf_step_engine g = {.cost = cost,
                        .software = mf_cost_software(cost),
                        .p = p,
                        .s = s,
                        .o = o,
                        .e = e,
                        .ranks = o->every_rank ? p->layout.gpus / p->layout.pp : 1,
                        .overlap_dp = (p->layout.overlap & MF_OVERLAP_DP) != 0,
                        .overlap_pp = (p->layout.overlap & MF_OVERLAP_PP) != 0};
    g.status = prepare(&g, out);
    if (g.status == MF_OK) {
        mf_step_gathers(&g);
        play_all(&g);
    }
    if (g.status == MF_OK) {
        mf_step_optimizer(&g);
    }
    if (g.status == MF_OK) {
        summarise(&g, out);
    }
    clear(&g);
    return g.status;
}
