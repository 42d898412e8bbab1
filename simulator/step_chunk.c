/* step_chunk.c - the blocks of one event, on all ranks of its stage. */
#include "core/program/pairing.h"
#include "simulator/step_engine.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* --- loads ------------------------------------------------------------------------------------ */

mf_status mf_step_loads(mf_step_engine *g) {
    const mf_model *m = &g->p->model;
    const mf_routing *routing = g->o->routing;
    int64_t ep = g->p->layout.ep, moe = 0;
    int positions = g->p->assignment.positions;
    bool skewed = routing != NULL && routing->kind != MF_ROUTING_BALANCED && ep > 1;
    mf_status status = skewed ? mf_routing_check(routing, m, g->e) : MF_OK;
    if (status != MF_OK) {
        return status;
    }
    g->loads = skewed && g->o->every_rank ? ep : 1;
    g->load = malloc((size_t)(positions * g->loads) * sizeof *g->load);
    if (g->load == NULL) {
        return mf_err_set(g->e, MF_NOMEM, "simulation: out of memory");
    }
    for (int i = 0; i < positions; i++) {
        double *load = &g->load[i * g->loads];
        bool here = skewed && mf_position_is_moe(m, i);
        if (here && g->loads > 1) {
            mf_routing_loads(routing, m, ep, moe++, load);
        } else if (here) {
            load[0] = mf_routing_max_load(routing, m, ep, moe++);
        } else {
            for (int64_t k = 0; k < g->loads; k++) {
                load[k] = 1.0;
            }
        }
    }
    return MF_OK;
}

/* --- what an event consists of ---------------------------------------------------------------- */

static bool exchanges(const mf_block *b, unsigned passes) {
    for (int i = 0; i < b->nops; i++) {
        if ((b->ops[i].pass & passes) && b->ops[i].group == MF_GROUP_EP &&
            b->ops[i].shape.size > 1) {
            return true;
        }
    }
    return false;
}

/* Has a block copies that no neighbour hides? end: the position behind its chunk. */
static unsigned own_copies(const mf_step_engine *g, int forward, int backward, int end,
                           int backward_end) {
    unsigned own = 0;
    if (g->software->copies_in_pass > 0) {
        own |= forward >= 0 && forward + 1 == end ? MF_SIM_LAST : 0;
        own |= backward >= 0 && backward + 1 == backward_end ? MF_SIM_FIRST : 0;
    }
    return own;
}

/* own: MF_SIM_... */
static void make_step(mf_step_engine *g, mf_chunk_step *c, int forward, int backward,
                      unsigned passes, unsigned own) {
    int position = forward >= 0 ? forward : backward;
    assert(position >= 0);
    int block = g->p->block_of[position];
    *c = (mf_chunk_step){.position = position, .position2 = -1, .passes = passes, .own = own};
    int beside = -1;
    c->exchanges = exchanges(g->p->blocks[block], passes);
    if (forward >= 0 && backward >= 0) { /* of two micro-batches, be it the same block */
        c->position2 = backward;
        beside = g->p->block_of[backward];
        c->exchanges |= exchanges(g->p->blocks[beside], MF_PASS_BACKWARD);
    }
    const bool weights = (passes & MF_PASS_W) != 0;
    c->time = calloc(2 * (size_t)g->loads, sizeof *c->time);
    c->anew = c->time == NULL ? NULL : weights ? c->time + g->loads : c->time;
    if (c->time == NULL) {
        g->status = mf_err_set(g->e, MF_NOMEM, "simulation: out of memory");
        return;
    }
    for (int64_t k = 0; k < g->loads && g->status == MF_OK; k++) {
        double load = g->load[position * g->loads + k];
        if (beside >= 0) {
            load = fmax(load, g->load[backward * g->loads + k]);
        }
        g->status =
            mf_times_get(g->times, block, beside, passes | own, false, load, &c->time[k], g->e);
        if (g->status == MF_OK && weights) {
            g->status =
                mf_times_get(g->times, block, beside, passes | own, true, load, &c->anew[k], g->e);
        }
    }
}

/* Seconds of the copies of a block in that direction. */
static double copies_s(const mf_step_engine *g, const mf_chunk_step *c, mf_stream stream) {
    const mf_block *b = g->p->blocks[g->p->block_of[c->position]];
    double sum_s = 0;
    for (int i = 0; i < b->nops; i++) {
        if (b->ops[i].stream == stream && (b->ops[i].pass & c->passes)) {
            mf_price p;
            mf_cost_op(g->cost, &b->ops[i], g->load[c->position * g->loads], &p);
            sum_s += p.time_s;
        }
    }
    return sum_s;
}

/* Seconds that copies to or from the host add to a pass, above the times of its blocks. The time of
 * a block counts its own copies as beside it, as in a run of equal blocks. But copies to the host
 * run beside the next block of a forward pass, and those from it beside the block that a backward
 * pass runs before: the first block of a forward pass has none beside it, and a head hides less
 * than a layer. */
static double unhidden_s(const mf_step_engine *g, const mf_chunk_play *play, bool forward) {
    const mf_stream stream = forward ? MF_STREAM_D2H : MF_STREAM_H2D;
    const unsigned own = forward ? MF_SIM_LAST : MF_SIM_FIRST;
    double more_s = 0;
    for (int i = 0; i < play->n; i++) {
        const mf_chunk_step *c = &play->step[i];
        const int from = forward ? i - 1 : i + 1;
        const bool travels = from >= 0 && from < play->n && !(play->step[from].own & own);
        const double beside_s = travels ? copies_s(g, &play->step[from], stream) : 0;
        const mf_block_time *t = c->time[0];
        assert(t != NULL); /* every step of a play has one */
        const double without_s = t->gpu_time_s - t->class_s[MF_BD_OFFLOAD];
        const double with_s = c->own & own ? 0 : copies_s(g, c, stream);
        more_s += fmax(beside_s - without_s, 0) - fmax(with_s - without_s, 0);
    }
    return fmax(more_s, 0);
}

/* Blocks in the order in which they run: forward ones from the first, backward ones from the last,
 * those of a merged event as core/program/pairing.h lays them against each other. */
static mf_chunk_play *make_play(mf_step_engine *g, int64_t stage, const mf_event *ev) {
    const mf_assignment *a = &g->p->assignment;
    int64_t vf = mf_layout_vstage(&g->p->layout, stage, ev->chunk), vb = vf;
    unsigned back = ev->pass == MF_EVENT_W ? MF_PASS_W
                    : g->s->split          ? MF_PASS_R | MF_PASS_B
                                           : MF_PASS_BACKWARD;
    mf_pairing order;
    g->status = mf_pairing_init(&order, mf_pairing_longest(a->first, a->vstages), g->e);
    mf_chunk_play *play = calloc(1, sizeof *play);
    if (g->status == MF_OK && ev->pass == MF_EVENT_FB) {
        vb = mf_layout_vstage(&g->p->layout, stage, ev->chunk2);
        mf_pairing_make(&order, &g->p->model, &g->p->layout, a->first, vf, vb);
    } else if (g->status == MF_OK) {
        mf_pairing_alone(&order, ev->pass != MF_EVENT_F, a->first[vf + 1] - a->first[vf]);
    }
    if (play == NULL ||
        (play->step = calloc((size_t)order.count + 1, sizeof *play->step)) == NULL) {
        free(play);
        mf_pairing_clear(&order);
        g->status = mf_err_set(g->e, MF_NOMEM, "simulation: out of memory");
        return NULL;
    }
    for (int k = 0; k < order.count && g->status == MF_OK; k++) {
        const mf_pairing_step *s = &order.step[k];
        int f = s->f >= 0 ? a->first[vf] + s->f : -1,
            b = s->b >= 0 ? a->first[vb + 1] - 1 - s->b : -1;
        make_step(g, &play->step[play->n++], f, b,
                  (f >= 0 ? (unsigned)MF_PASS_F : 0) | (b >= 0 ? back : 0),
                  own_copies(g, f, b, a->first[vf + 1], a->first[vb + 1]));
    }
    mf_pairing_clear(&order);
    if (g->status == MF_OK && g->software->copies_in_pass > 0 &&
        (ev->pass == MF_EVENT_F || ev->pass == MF_EVENT_B)) {
        play->offload_s = unhidden_s(g, play, ev->pass == MF_EVENT_F);
    }
    return play;
}

static const mf_chunk_play *play_of(mf_step_engine *g, int64_t stage, const mf_event *ev) {
    int64_t second = ev->pass == MF_EVENT_FB ? ev->chunk2 + 1 : 0;
    int64_t kind = (ev->pass * g->s->chunks + ev->chunk) * (g->s->chunks + 1) + second;
    mf_chunk_play **play = &g->play[stage * g->kinds + kind];
    if (*play == NULL) {
        *play = make_play(g, stage, ev);
    }
    return g->status == MF_OK ? *play : NULL;
}

void mf_step_chunks_clear(mf_step_engine *g) {
    for (int64_t i = 0; g->play != NULL && i < g->s->stages * g->kinds; i++) {
        mf_chunk_play *play = g->play[i];
        for (int k = 0; play != NULL && k < play->n; k++) {
            free(play->step[k].time);
        }
        if (play != NULL) {
            free(play->step);
        }
        free(play);
    }
    free(g->play);
}

/* --- playing ---------------------------------------------------------------------------------- */

/* Compute time lost because the step-end stream runs beside a block: to its SMs, at least the
 * software profile's exposed share. That stream gives way where the block's own communication fills
 * the link that both use, and loses what a collective of its kind loses beside products. */
static double beside_step_end(mf_step_engine *g, mf_step_rank *k, mf_op_kind kind,
                              const mf_price *price, const mf_block_time *t) {
    double left = k->step_end.s - k->free.s;
    if (!g->overlap_dp || !(left > 0) || !(t->gpu_time_s > 0)) {
        return 0;
    }
    double exposed = fmax(mf_cost_exposed(g->cost, MF_OVERLAP_DP), fmin(price->sm_share, 0.9));
    double used = price->link != MF_LINK_NONE ? t->link_s[price->link] / t->gpu_time_s : 0;
    double rate = mf_sim_link_rate(price->link_share, used);
    if (price->link == MF_LINK_SCALEUP) {
        const mf_op collective = {.kind = (uint8_t)kind};
        double factor, wait_s;
        mf_cost_comm_slowdown(g->cost, &collective, false, &factor, &wait_s);
        rate /= factor;
    }
    double together = fmin(left / rate, t->gpu_time_s / (1 - exposed));
    double later = together - together * rate; /* than if it had run alone */
    k->step_end.s += later;
    k->step_end.low_s += later;
    k->step_end.high_s += later;
    return exposed * together;
}

static void play_block(mf_step_engine *g, int64_t stage, int64_t r, const mf_chunk_step *c,
                       const mf_block_time *t) {
    mf_step_rank *k = mf_step_rank_of(g, stage, r);
    int last = g->reduce[1][c->position].time_s > 0 ? 1 : 0;
    const bool gathers = (c->passes & MF_PASS_F) != 0;
    const mf_price *price = gathers ? &g->gather[last][c->position] : &g->reduce[last][c->position];
    double issued = k->host_s + t->time_s;
    k->began_s = k->free.s;
    double lost =
        beside_step_end(g, k, gathers ? MF_OP_ALL_GATHER : MF_OP_REDUCE_SCATTER, price, t);
    mf_step_pass(k, t->gpu_time_s + lost, t->low_s + lost, t->high_s + lost);
    for (int b = 0; b < MF_BD_COUNT; b++) {
        k->class_s[b] += t->class_s[b];
    }
    k->class_s[MF_BD_DP] += lost;
    k->busy_s += t->compute_s;
    k->host_s += t->host_s;
    mf_step_wait(k, (mf_when){issued, issued, issued}, MF_BD_HOST);
    g->events++;
    g->ops += t->nops;
}

/* Ranks of an EP group leave a block that exchanges tokens together. */
static void meet(mf_step_engine *g, int64_t stage) {
    const mf_layout *l = &g->p->layout;
    int64_t group = l->etp * l->ep;
    for (int64_t first = 0; first < g->ranks; first += group) {
        for (int64_t et = 0; et < l->etp; et++) {
            mf_when last = {0, 0, 0};
            for (int64_t e = 0; e < l->ep; e++) {
                mf_when end = mf_step_rank_of(g, stage, first + et + l->etp * e)->free;
                last = end.s > last.s ? end : last;
            }
            for (int64_t e = 0; e < l->ep; e++) {
                mf_step_wait(mf_step_rank_of(g, stage, first + et + l->etp * e), last, MF_BD_EP);
            }
        }
    }
}

static void play_step(mf_step_engine *g, int64_t stage, const mf_chunk_step *c,
                      mf_block_instance *i, bool first_use, bool last_use) {
    const mf_layout *l = &g->p->layout;
    const bool begins = (c->position2 >= 0 ? i->micro_batch2 : i->micro_batch) == 0;
    const mf_block_time **time = begins ? c->anew : c->time;
    bool meets = c->exchanges && g->loads > 1;
    int backward = c->position2 >= 0 ? c->position2 : c->position;
    for (int64_t r = 0; r < g->ranks; r++) {
        mf_step_rank *k = mf_step_rank_of(g, stage, r);
        if (first_use && (c->passes & MF_PASS_F)) {
            double behind = g->gather_behind_s[c->position];
            mf_when gathered = {k->step_end.s - behind, k->step_end.low_s - behind,
                                k->step_end.high_s - behind};
            mf_step_wait(k, gathered, MF_BD_DP);
        }
        i->time = time[g->loads > 1 ? r / l->etp % l->ep : 0];
        play_block(g, stage, r, c, i->time);
        if (!meets) {
            i->rank = r;
            i->start_s = k->began_s;
            i->end_s = k->free.s;
            mf_step_observe(g, i);
        }
        if (last_use && (c->passes & MF_PASS_W) && !meets) {
            mf_step_reduce(g, stage, r, backward);
        }
    }
    if (!meets) {
        return;
    }
    meet(g, stage);
    for (int64_t r = 0; r < g->ranks; r++) {
        const mf_step_rank *k = mf_step_rank_of(g, stage, r);
        i->time = time[r / l->etp % l->ep];
        i->rank = r;
        i->start_s = k->began_s;
        i->end_s = k->free.s;
        mf_step_observe(g, i);
        if (last_use && (c->passes & MF_PASS_W)) {
            mf_step_reduce(g, stage, r, backward);
        }
    }
}

void mf_step_chunk(mf_step_engine *g, int64_t stage, int64_t event) {
    const mf_event *ev = &g->s->events[stage][event];
    const mf_chunk_play *play = play_of(g, stage, ev);
    int32_t back = ev->pass == MF_EVENT_FB ? ev->micro_batch2 : ev->micro_batch;
    for (int k = 0; play != NULL && k < play->n; k++) {
        const mf_chunk_step *c = &play->step[k];
        bool pair = c->position2 >= 0, f = (c->passes & MF_PASS_F) != 0;
        mf_block_instance i = {
            .stage = stage,
            .event = event,
            .position = c->position,
            .position2 = c->position2,
            .passes = c->passes,
            .micro_batch = f ? ev->micro_batch : back,
            .micro_batch2 = pair ? back : -1,
            .block = g->p->blocks[g->p->block_of[c->position]],
            .beside = pair ? g->p->blocks[g->p->block_of[c->position2]] : NULL,
        };
        play_step(g, stage, c, &i, ev->micro_batch == 0, back == g->s->micro_batches - 1);
    }
    for (int64_t r = 0; play != NULL && play->offload_s > 0 && r < g->ranks; r++) {
        mf_step_rank *k = mf_step_rank_of(g, stage, r);
        mf_step_pass(k, play->offload_s, play->offload_s, play->offload_s);
        k->class_s[MF_BD_OFFLOAD] += play->offload_s;
    }
}
