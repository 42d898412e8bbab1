/* step.c - the step engine: chunk events of every stage played in schedule order, one rank per
 * stage.
 *
 * A stage's compute stream plays blocks back to back; the host runs ahead of it until the step
 * ends, so a block ends when both the GPU has done it and the host has issued it. Activations and
 * gradients travel to the neighbouring virtual stage beside compute (`--overlap pp`) or hold the
 * sender. Gradient reductions start when a position's last weight gradient is done, parameter
 * gathers run before a position's first forward, both on their own stream; of what runs beside
 * compute, the software profile's share stays exposed.
 */
#include "simulator/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Times of one pass of a block (or of a merged pair), kept for the whole step. */
typedef struct pass_time {
    int block, beside; /* beside -1 = alone */
    unsigned passes;
    double load;
    mf_block_time t;
} pass_time;

typedef struct stage_state {
    int64_t next;                /* event to play */
    double free_s;               /* compute stream */
    double host_s;               /* host clock */
    double dp_free_s;            /* stream of gradient reductions and parameter gathers */
    double low_s, high_s, mid_s; /* bands of what was played */
    double class_s[MF_BD_COUNT];
    double busy_s;
} stage_state;

typedef struct engine {
    const mf_cost *cost;
    const mf_program *p;
    const mf_schedule *s;
    const mf_step_options *o;
    const mf_software *software;
    mf_err *e;
    pass_time *times;
    int ntimes, times_capacity;
    stage_state *stage;
    double *f_ready, *b_ready; /* [vstage][micro_batch] when the input of F / B is there; < 0 not */
    double *gather_done;       /* [position] */
    double *reduce_s, *gather_s; /* [position] */
    double send_s[2];            /* forward, backward */
    bool overlap_dp, overlap_pp;
    int64_t events, ops;
    mf_status status;
} engine;

static double share(double x) {
    return x < 0 ? 0 : x > 1 ? 1 : x;
}

static double load_of(const engine *g, int position) {
    return g->o != NULL && g->o->load_of_position != NULL ? g->o->load_of_position[position] : 1.0;
}

/* --- times of blocks and ops ------------------------------------------------------------------ */

static const mf_block_time *block_time(engine *g, int block, unsigned passes, int beside,
                                       double load) {
    static const mf_block_time nothing;
    for (int i = 0; i < g->ntimes; i++) {
        const pass_time *k = &g->times[i];
        if (k->block == block && k->beside == beside && k->passes == passes &&
            fabs(k->load - load) < 1e-12) {
            return &k->t;
        }
    }
    if (g->status != MF_OK) {
        return &nothing;
    }
    if (g->ntimes == g->times_capacity) {
        int capacity = g->times_capacity ? 2 * g->times_capacity : 32;
        pass_time *times = realloc(g->times, (size_t)capacity * sizeof *times);
        if (times == NULL) {
            g->status = mf_err_set(g->e, MF_NOMEM, "simulation: out of memory");
            return &nothing;
        }
        g->times = times;
        g->times_capacity = capacity;
    }
    pass_time *k = &g->times[g->ntimes];
    *k = (pass_time){.block = block, .beside = beside, .passes = passes, .load = load};
    g->status = mf_sim_block(g->cost, &g->p->layout, g->p->blocks[block], passes,
                             beside < 0 ? NULL : g->p->blocks[beside], load, false, &k->t, g->e);
    if (g->status != MF_OK) {
        return &nothing;
    }
    g->ntimes++;
    return &k->t;
}

static double op_time(const engine *g, const mf_op *op) {
    if (!(op->bytes > 0) && !(op->flops > 0)) {
        return 0;
    }
    mf_price price;
    mf_cost_op(g->cost, op, 1.0, &price);
    return price.time_s;
}

static void price_once(engine *g) {
    for (int i = 0; i < g->p->assignment.positions; i++) {
        const mf_dp_ops *dp = &g->p->dp[i];
        g->reduce_s[i] = op_time(g, &dp->reduce[0]) + op_time(g, &dp->reduce[1]);
        g->gather_s[i] = op_time(g, &dp->gather[0]) + op_time(g, &dp->gather[1]);
    }
    g->send_s[0] = op_time(g, &g->p->send_forward);
    g->send_s[1] = op_time(g, &g->p->send_backward);
}

/* --- playing ---------------------------------------------------------------------------------- */

static void wait_until(stage_state *st, double when, mf_breakdown_kind why) {
    if (when > st->free_s) {
        st->class_s[why] += when - st->free_s;
        st->free_s = when;
    }
}

static void observe(engine *g, const mf_block_instance *i) {
    if (g->o != NULL && g->o->observe != NULL) {
        g->o->observe(i, g->o->user);
    }
}

/* Plays one block (or pair) on a stage's compute stream from where it stands. `dp_s`: seconds of
 * gradient or parameter communication that run beside it. */
static void play_block(engine *g, int64_t p, const mf_block_instance *what, int block, int beside,
                       double dp_s) {
    stage_state *st = &g->stage[p];
    const mf_block_time *t = block_time(g, block, what->passes, beside, what->load);
    mf_block_instance i = *what;
    i.stage = p;
    i.start_s = st->free_s;
    i.block = g->p->blocks[block];
    i.beside = beside < 0 ? NULL : g->p->blocks[beside];
    double exposed = dp_s * share(g->software->overlap_exposed[2]);
    st->free_s += t->gpu_time_s + exposed;
    for (int k = 0; k < MF_BD_COUNT; k++) {
        st->class_s[k] += t->class_s[k];
    }
    st->class_s[MF_BD_DP] += exposed;
    st->busy_s += t->compute_s;
    st->host_s += t->host_s;
    wait_until(st, st->host_s, MF_BD_HOST);
    st->low_s += t->low_s;
    st->high_s += t->high_s;
    st->mid_s += t->gpu_time_s;
    i.end_s = st->free_s;
    g->ops += i.block->nops;
    observe(g, &i);
}

static void play_dp_op(engine *g, int64_t p, int position, const mf_op *op, double start,
                       double end) {
    if (end > start) {
        mf_block_instance i = {.stage = p,
                               .event = -1,
                               .position = position,
                               .position2 = -1,
                               .passes = MF_PASS_O,
                               .start_s = start,
                               .end_s = end,
                               .op = op,
                               .load = 1};
        observe(g, &i);
    }
}

/* Reduction of a position's gradients: starts when they are complete and the stream is free. */
static void start_reduce(engine *g, int64_t p, int position) {
    stage_state *st = &g->stage[p];
    if (!(g->reduce_s[position] > 0)) {
        return;
    }
    double start = st->free_s > st->dp_free_s ? st->free_s : st->dp_free_s;
    st->dp_free_s = start + g->reduce_s[position];
    play_dp_op(g, p, position, &g->p->dp[position].reduce[0], start, st->dp_free_s);
    if (!g->overlap_dp) {
        wait_until(st, st->dp_free_s, MF_BD_DP);
    }
}

/* Forward, backward (in reverse) or weight gradients of the positions of a virtual stage. */
static void play_pass(engine *g, int64_t p, int64_t event, int64_t v, int32_t mb, unsigned passes) {
    const mf_assignment *a = &g->p->assignment;
    int first = a->first[v], n = a->first[v + 1] - first;
    bool forward = passes == MF_PASS_F, weights = (passes & MF_PASS_W) != 0;
    bool last_mb = mb == g->s->micro_batches - 1;
    double pending = 0; /* reductions of the positions before run beside this one */
    for (int k = 0; k < n && g->status == MF_OK; k++) {
        int position = forward ? first + k : first + n - 1 - k;
        stage_state *st = &g->stage[p];
        double beside = pending;
        pending = 0;
        if (forward && mb == 0) {
            wait_until(st, g->gather_done[position], MF_BD_DP);
            beside = g->overlap_dp && k + 1 < n ? g->gather_s[position + 1] : 0;
        }
        mf_block_instance i = {.event = event,
                               .position = position,
                               .position2 = -1,
                               .passes = passes,
                               .micro_batch = mb,
                               .micro_batch2 = -1,
                               .load = load_of(g, position)};
        play_block(g, p, &i, g->p->block_of[position], -1, beside);
        if (weights && last_mb) {
            start_reduce(g, p, position);
            pending = g->overlap_dp ? g->reduce_s[position] : 0;
        }
    }
}

/* The k-th forward block of one chunk beside the k-th backward block of another; what is left of
 * the longer chunk follows alone. */
static void play_merged(engine *g, int64_t p, int64_t event, int64_t vf, int64_t vb,
                        const mf_event *ev) {
    const mf_assignment *a = &g->p->assignment;
    int nf = a->first[vf + 1] - a->first[vf], nb = a->first[vb + 1] - a->first[vb];
    bool last_mb = ev->micro_batch2 == g->s->micro_batches - 1;
    for (int k = 0; (k < nf || k < nb) && g->status == MF_OK; k++) {
        stage_state *st = &g->stage[p];
        int f = k < nf ? a->first[vf] + k : -1, b = k < nb ? a->first[vb + 1] - 1 - k : -1;
        if (f >= 0 && ev->micro_batch == 0) {
            wait_until(st, g->gather_done[f], MF_BD_DP);
        }
        mf_block_instance i = {.event = event,
                               .position = f >= 0 ? f : b,
                               .position2 = f >= 0 ? b : -1,
                               .passes = f < 0   ? MF_PASS_BACKWARD
                                         : b < 0 ? MF_PASS_F
                                                 : MF_PASS_F | MF_PASS_BACKWARD,
                               .micro_batch = f >= 0 ? ev->micro_batch : ev->micro_batch2,
                               .micro_batch2 = f >= 0 && b >= 0 ? ev->micro_batch2 : -1};
        double lf = f >= 0 ? load_of(g, f) : 0, lb = b >= 0 ? load_of(g, b) : 0;
        i.load = lf > lb ? lf : lb;
        play_block(g, p, &i, g->p->block_of[i.position],
                   i.position2 >= 0 ? g->p->block_of[i.position2] : -1, 0);
        if (b >= 0 && last_mb) {
            start_reduce(g, p, b);
        }
    }
}

/* --- events and what they wait for ------------------------------------------------------------ */

static double *cell(const engine *g, double *table, int64_t v, int64_t mb) {
    return &table[v * g->s->micro_batches + mb];
}

/* Hands a result to the next virtual stage (F) or the one before (B). */
static void deliver(engine *g, int64_t p, int64_t v, int64_t mb, bool forward) {
    int64_t vstages = g->p->layout.pp * g->p->layout.vpp, to = forward ? v + 1 : v - 1;
    stage_state *st = &g->stage[p];
    if (forward && v == vstages - 1) {
        *cell(g, g->b_ready, v, mb) = st->free_s; /* the loss turns it round */
    }
    if (to < 0 || to >= vstages) {
        return;
    }
    bool here = mf_layout_stage_of(&g->p->layout, to) == p;
    double send = here ? 0 : g->send_s[forward ? 0 : 1];
    double arrival = st->free_s + send;
    if (!here && !g->overlap_pp) {
        wait_until(st, arrival, MF_BD_PP);
    } else if (!here) {
        double exposed = send * share(g->software->overlap_exposed[3]);
        wait_until(st, st->free_s + exposed, MF_BD_PP);
    }
    *cell(g, forward ? g->f_ready : g->b_ready, to, mb) = arrival;
}

/* Waits for an input: as far as it was still on its way, pipeline communication; before, bubble. */
static void await_input(engine *g, int64_t p, double arrival, double send, bool remote) {
    stage_state *st = &g->stage[p];
    if (arrival <= st->free_s) {
        return;
    }
    wait_until(st, arrival - (remote ? send : 0), MF_BD_BUBBLE);
    wait_until(st, arrival, MF_BD_PP);
}

static bool forward_input(engine *g, int64_t v, int64_t mb, double *arrival) {
    *arrival = *cell(g, g->f_ready, v, mb);
    return *arrival >= 0;
}

static bool backward_input(engine *g, int64_t v, int64_t mb, double *arrival) {
    *arrival = *cell(g, g->b_ready, v, mb);
    return *arrival >= 0;
}

/* Plays the stage's next event if its inputs exist; false when it has to wait for another stage. */
static bool play_event(engine *g, int64_t p) {
    stage_state *st = &g->stage[p];
    const mf_event *ev = &g->s->events[p][st->next];
    const mf_layout *l = &g->p->layout;
    int64_t v = mf_layout_vstage(l, p, ev->chunk), index = st->next;
    double in = 0, in2 = 0;
    switch ((mf_event_pass)ev->pass) {
    case MF_EVENT_F:
        if (!forward_input(g, v, ev->micro_batch, &in)) {
            return false;
        }
        await_input(g, p, in, g->send_s[0], v > 0);
        play_pass(g, p, index, v, ev->micro_batch, MF_PASS_F);
        deliver(g, p, v, ev->micro_batch, true);
        break;
    case MF_EVENT_B:
        if (!backward_input(g, v, ev->micro_batch, &in)) {
            return false;
        }
        await_input(g, p, in, g->send_s[1], v + 1 < l->pp * l->vpp);
        play_pass(g, p, index, v, ev->micro_batch,
                  g->s->split ? MF_PASS_R | MF_PASS_B : MF_PASS_BACKWARD);
        deliver(g, p, v, ev->micro_batch, false);
        break;
    case MF_EVENT_W:
        play_pass(g, p, index, v, ev->micro_batch, MF_PASS_W);
        break;
    case MF_EVENT_FB: {
        int64_t v2 = mf_layout_vstage(l, p, ev->chunk2);
        if (!forward_input(g, v, ev->micro_batch, &in) ||
            !backward_input(g, v2, ev->micro_batch2, &in2)) {
            return false;
        }
        await_input(g, p, in, g->send_s[0], v > 0);
        await_input(g, p, in2, g->send_s[1], v2 + 1 < l->pp * l->vpp);
        play_merged(g, p, index, v, v2, ev);
        deliver(g, p, v, ev->micro_batch, true);
        deliver(g, p, v2, ev->micro_batch2, false);
        break;
    }
    }
    st->next++;
    g->events++;
    return true;
}

/* Parameter gathers of ZeRO-1/2, in the order in which positions are first used. */
static void start_gathers(engine *g) {
    const mf_layout *l = &g->p->layout;
    for (int64_t p = 0; p < l->pp; p++) {
        stage_state *st = &g->stage[p];
        for (int64_t chunk = 0; chunk < l->vpp; chunk++) {
            int64_t v = mf_layout_vstage(l, p, chunk);
            for (int i = g->p->assignment.first[v]; i < g->p->assignment.first[v + 1]; i++) {
                double start = st->dp_free_s;
                st->dp_free_s += g->gather_s[i];
                g->gather_done[i] = st->dp_free_s;
                play_dp_op(g, p, i, &g->p->dp[i].gather[0], start, st->dp_free_s);
            }
        }
        if (!g->overlap_dp) {
            wait_until(st, st->dp_free_s, MF_BD_DP);
        }
    }
}

/* Gradient norm over all ranks, then the optimizer. */
static void finish_stages(engine *g) {
    enum { MAX_OPS = 10 };
    const mf_layout *l = &g->p->layout;
    double all_ready = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t p = 0; p < l->pp; p++) {
            stage_state *st = &g->stage[p];
            mf_op ops[MAX_OPS];
            int n = mf_program_optimizer(g->p, p, ops, MAX_OPS), norm = 0;
            for (int i = 0; i < n; i++) {
                norm = ops[i].group == MF_GROUP_WORLD ? i + 1 : norm;
            }
            if (pass == 0) {
                wait_until(st, st->dp_free_s, MF_BD_DP);
            } else {
                wait_until(st, all_ready, MF_BD_BUBBLE);
            }
            for (int i = pass == 0 ? 0 : norm; i < (pass == 0 ? norm : n); i++) {
                double t = op_time(g, &ops[i]);
                mf_op_class class = mf_op_kind_class((mf_op_kind)ops[i].kind);
                mf_block_instance b = {.stage = p,
                                       .event = -1,
                                       .position = -1,
                                       .position2 = -1,
                                       .passes = MF_PASS_O,
                                       .start_s = st->free_s,
                                       .end_s = st->free_s + t,
                                       .op = &ops[i],
                                       .load = 1};
                wait_until(st, b.end_s, class == MF_CLASS_COPY ? MF_BD_OFFLOAD : MF_BD_OPTIMIZER);
                st->busy_s += class == MF_CLASS_MEMORY ? t : 0;
                observe(g, &b);
            }
            if (pass == 0 && st->free_s > all_ready) {
                all_ready = st->free_s;
            }
        }
    }
}

static void summarise(engine *g, mf_sim *out) {
    const mf_layout *l = &g->p->layout;
    double end = 0, fixed = g->software->fixed_step_s;
    for (int64_t p = 0; p < l->pp; p++) {
        end = g->stage[p].free_s > end ? g->stage[p].free_s : end;
    }
    out->step_time_s = end + fixed;
    out->stages = l->pp;
    out->critical_stage = 0;
    for (int64_t p = 0; p < l->pp; p++) {
        stage_state *st = &g->stage[p];
        wait_until(st, end, MF_BD_BUBBLE);
        st->class_s[MF_BD_HOST] += fixed;
        mf_sim_stage *r = &out->stage[p];
        r->busy_s = st->busy_s;
        r->idle_s = out->step_time_s - st->busy_s;
        r->end_s = st->free_s;
        memcpy(r->breakdown_s, st->class_s, sizeof r->breakdown_s);
        if (st->busy_s > out->stage[out->critical_stage].busy_s) {
            out->critical_stage = p;
        }
    }
    const stage_state *c = &g->stage[out->critical_stage];
    double sum = 0;
    for (int k = 0; k < MF_BD_COUNT; k++) {
        out->breakdown_s[k] = c->class_s[k];
        sum += c->class_s[k];
    }
    /* Rounding of thousands of additions goes to the bubble, so that the sum is the step. */
    out->breakdown_s[MF_BD_BUBBLE] += out->step_time_s - sum;
    double low = c->mid_s > 0 ? c->low_s / c->mid_s : 1,
           high = c->mid_s > 0 ? c->high_s / c->mid_s : 1;
    out->low_s = out->step_time_s * (low < 1 ? low : 1) * (1.0 - g->software->band);
    out->high_s = out->step_time_s * (high > 1 ? high : 1) * (1.0 + g->software->band);
    out->events = g->events;
    out->ops = g->ops;
}

static mf_status play_all(engine *g) {
    const mf_layout *l = &g->p->layout;
    for (bool moved = true; moved && g->status == MF_OK;) {
        moved = false;
        for (int64_t p = 0; p < l->pp; p++) {
            while (g->stage[p].next < g->s->count[p] && g->status == MF_OK && play_event(g, p)) {
                moved = true;
            }
        }
        if (g->o != NULL && g->o->cancel != NULL && *g->o->cancel) {
            return mf_err_set(g->e, MF_INTERRUPTED, "simulation interrupted");
        }
    }
    for (int64_t p = 0; p < l->pp && g->status == MF_OK; p++) {
        if (g->stage[p].next < g->s->count[p]) {
            return mf_err_set(g->e, MF_INTERNAL, "simulation: stage %lld waits for ever",
                              (long long)p);
        }
    }
    return g->status;
}

mf_status mf_step_play(const mf_cost *cost, const mf_program *p, const mf_schedule *s,
                       const mf_step_options *o, mf_sim *out, mf_err *e) {
    const mf_layout *l = &p->layout;
    size_t cells = (size_t)(l->pp * l->vpp * s->micro_batches);
    size_t positions = (size_t)p->assignment.positions;
    engine g = {.cost = cost,
                .p = p,
                .s = s,
                .o = o,
                .software = mf_cost_software(cost),
                .e = e,
                .overlap_dp = (l->overlap & MF_OVERLAP_DP) != 0,
                .overlap_pp = (l->overlap & MF_OVERLAP_PP) != 0,
                .status = MF_OK};
    g.stage = calloc((size_t)l->pp, sizeof *g.stage);
    g.f_ready = malloc(cells * sizeof *g.f_ready);
    g.b_ready = malloc(cells * sizeof *g.b_ready);
    g.gather_done = calloc(positions, sizeof *g.gather_done);
    g.reduce_s = calloc(positions, sizeof *g.reduce_s);
    g.gather_s = calloc(positions, sizeof *g.gather_s);
    out->stage = calloc((size_t)l->pp, sizeof *out->stage);
    if (g.stage == NULL || g.f_ready == NULL || g.b_ready == NULL || g.gather_done == NULL ||
        g.reduce_s == NULL || g.gather_s == NULL || out->stage == NULL) {
        g.status = mf_err_set(e, MF_NOMEM, "simulation: out of memory");
        goto done;
    }
    for (size_t i = 0; i < cells; i++) {
        g.f_ready[i] = (int64_t)i < s->micro_batches ? 0 : -1;
        g.b_ready[i] = -1;
    }
    price_once(&g);
    start_gathers(&g);
    g.status = play_all(&g);
    if (g.status == MF_OK) {
        finish_stages(&g);
        summarise(&g, out);
    }
done:
    for (int i = 0; i < g.ntimes; i++) {
        mf_block_time_clear(&g.times[i].t);
    }
    free(g.times);
    free(g.stage);
    free(g.f_ready);
    free(g.b_ready);
    free(g.gather_done);
    free(g.reduce_s);
    free(g.gather_s);
    return g.status;
}
