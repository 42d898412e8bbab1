/* memory_bound.c - the least that stages need, counted as core/memory/memory.c walks them. */
#include "planner/bound/memory_bound.h"

#include "core/memory/memory.h"
#include "planner/bound/family_blocks.h"
#include "planner/bound/stage_bound.h"

#include <math.h>
#include <string.h>

/* Sums are added up in another order; shards are rounded up there. */
#define SLACK_B 4096.0

/* --- figures ---------------------------------------------------------------------------------- */

static bool same_params(const mf_param_count *a, const mf_param_count *b) {
    return a->dense == b->dense && a->expert == b->expert && a->dense_matrices == b->dense_matrices;
}

/* Does way a need no more than b, while it runs and while it waits? */
static bool beats(const mf_room_way *a, const mf_room_way *b) {
    return a->saved_B <= b->saved_B && a->saved_B + a->f_B <= b->saved_B + b->f_B &&
           a->saved_B + a->b_B <= b->saved_B + b->b_B;
}

/* Keeps a way, drops what it beats; or drops it. */
static void add_way(mf_room *r, const mf_room_way *x) {
    int kept = 0;
    for (int i = 0; i < r->ways; i++) {
        if (beats(&r->way[i], x)) {
            return;
        }
    }
    for (int i = 0; i < r->ways; i++) {
        if (!beats(x, &r->way[i])) {
            r->way[kept++] = r->way[i];
        }
    }
    r->way[kept++] = *x;
    r->ways = kept;
}

static void add_choice(mf_room *r, const mf_block_cost *x) {
    const mf_room_way way = {x->saved_B, x->local_f_B, x->local_b_B};
    if (r->ways == 0) {
        r->saved_B = r->forward_B = r->comm_B = r->boundary_B = HUGE_VAL;
        r->layer = x->params;
        r->alike = true;
    }
    r->saved_B = mf_smaller(r->saved_B, x->saved_B);
    r->forward_B = mf_smaller(r->forward_B, x->saved_B + x->local_f_B);
    r->comm_B = mf_smaller(r->comm_B, x->comm_B);
    r->boundary_B = mf_smaller(r->boundary_B, x->boundary_B);
    r->alike = r->alike && same_params(&r->layer, &x->params);
    add_way(r, &way);
}

/* Workspaces need no play, and ZeRO does not change them. */
static mf_status add_class(mf_block_costs *q, const mf_layout *plain, uint32_t pinned, int class,
                           mf_room *r, mf_err *e) {
    mf_memory_choice choice[MF_CATALOGUE_MAX];
    int n = mf_catalogue(mf_block_costs_evaluator(q)->model, (uint8_t) class, pinned, plain->memory,
                         choice);
    mf_status status = MF_OK;
    for (int i = 0; i < n && status == MF_OK; i++) {
        const mf_block_key key = mf_block_key_layer((uint8_t) class, choice[i], r->split);
        mf_block_cost x;
        status = mf_block_costs_get(q, plain, &key, false, &x, e);
        if (status == MF_OK) {
            add_choice(r, &x);
        }
    }
    return status;
}

static mf_status end_params(mf_block_costs *q, const mf_layout *plain, mf_position_kind kind,
                            bool split, mf_param_count *out, mf_err *e) {
    mf_block_cost x;
    mf_status status = mf_family_bound_cost(q, plain, kind, 0, MF_HALF_BOTH, split, false,
                                            (mf_memory_choice){0, 0}, &x, e);
    if (status == MF_OK) {
        *out = x.params;
    }
    return status;
}

mf_status mf_room_of(mf_block_costs *q, const mf_layout *l, uint32_t pinned, mf_room *out,
                     mf_err *e) {
    const mf_evaluator *o = mf_block_costs_evaluator(q);
    const mf_model *m = o->model;
    const mf_floor_mode mode = mf_floor_mode_of(l->schedule);
    mf_layout plain = *l;
    mf_status status = MF_OK;
    int ways = 0;
    plain.zero = plain.expert_zero = 0;
    *out = (mf_room){.split = mode == MF_FLOOR_SPLIT,
                     .merged = mode == MF_FLOOR_MERGED,
                     .alone = m->mtp_layers == 0,
                     .layers = mf_family_bound_layers(m),
                     .usable_B = o->ops->usable_B(o->self, l)};
    for (int c = 0; c < m->classes; c++) {
        bool main = mf_family_bound_is_main(m, c), any = mf_family_bound_layers_of(m, c) > 0;
        out->alone = out->alone && (main || !any);
        ways += main && any ? MF_CATALOGUE_MAX : 0;
    }
    for (int c = 0; c < m->classes && ways <= MF_ROOM_WAYS && status == MF_OK; c++) {
        if (mf_family_bound_is_main(m, c) && mf_family_bound_layers_of(m, c) > 0) {
            status = add_class(q, &plain, pinned, c, out, e);
        }
    }
    if (status == MF_OK) {
        status = end_params(q, &plain, MF_POS_EMBEDDING, out->split, &out->embedding, e);
    }
    if (status == MF_OK) {
        status = end_params(q, &plain, MF_POS_HEAD, out->split, &out->head, e);
    }
    return status;
}

/* --- one stage -------------------------------------------------------------------------------- */

bool mf_room_is_tight(const mf_layout *l, const mf_param_count *layer, int layers, double fixed_B,
                      double usable_B) {
    double share = ceil((double)layers / (double)l->pp);
    return fixed_B + share * mf_persistent_B(l, *layer) > 0.5 * usable_B;
}

static double gathered_B(const mf_layout *l, const mf_param_count *layer) {
    double bytes = 0.0;
    if (l->zero == 3 && l->dp * l->cp > 1) {
        bytes += mf_param_gathered_B(l, *layer, false);
    }
    if (l->expert_zero == 3 && l->edp > 1) {
        bytes += mf_param_gathered_B(l, *layer, true);
    }
    return bytes;
}

/* A stage of a layout. */
typedef struct stage {
    const mf_room *r;
    const mf_layout *l;
    const mf_order_summary *order;
    int64_t p;
    int ends;          /* embedding and head, of these two */
    double standing_B; /* whatever layers it holds, buffers for them included */
    double layer_B;    /* what each main layer adds */
    double waiting_B;  /* gradients of a main layer until they are reduced */
} stage;

/* What a main layer with a choice needs while its backward pass runs, what it keeps of that
 * micro-batch included. Of a merged pair another one goes forward, at the least. grads_B: its own
 * gradients, and those of the layer behind it on their way. */
static double running_B(const stage *s, const mf_room_way *x, bool paired, double grads_B) {
    const mf_room *r = s->r;
    if (paired) {
        return x->saved_B + x->b_B + grads_B + r->forward_B;
    }
    double back_B = x->b_B + (r->split ? 0.0 : grads_B);
    return x->saved_B + mf_larger(x->f_B, back_B);
}

/* Layers of one chunk, each of which runs while `others` micro-batches of the chunk stand: who
 * needs little while it runs keeps more. None needs more than some way's W; then each keeps at
 * least what the leanest of the ways up to W keeps. */
static double least_B(const stage *s, int layers, double others, bool paired, double grads_B) {
    const mf_room *r = s->r;
    double least = HUGE_VAL;
    for (int i = 0; i < r->ways; i++) {
        double most_B = running_B(s, &r->way[i], paired, grads_B), saved_B = HUGE_VAL;
        for (int k = 0; k < r->ways; k++) {
            bool below = running_B(s, &r->way[k], paired, grads_B) <= most_B;
            saved_B = below ? mf_smaller(saved_B, r->way[k].saved_B) : saved_B;
        }
        least = mf_smaller(least, most_B + others * layers * saved_B);
    }
    return layers > 0 ? least : 0.0;
}

/* Layers of one chunk with their own gradients, and with those of the layer behind them: all but
 * the last. */
static double chunk_B(const stage *s, int layers, double others, bool paired) {
    bool beside = (s->l->overlap & MF_OVERLAP_DP) != 0 && s->r->alone;
    double once_B = least_B(s, layers, others, paired, s->waiting_B);
    double twice_B = beside ? least_B(s, layers - 1, others, paired, 2.0 * s->waiting_B) : 0.0;
    return mf_larger(once_B, twice_B);
}

/* While main layers of the stage run. Some chunk holds its share of them at least, in a row where
 * there are no others. Where such a chunk is beside itself in a merged pair, so are all its layers,
 * but for one where embedding or head are among them (core/program/pairing.c). */
static double most_running_B(const stage *s, int k) {
    const mf_room *r = s->r;
    const int share = (k + s->order->chunks - 1) / s->order->chunks;
    const int own = s->order->own[s->p], paired = s->order->paired[s->p];
    double most_B = chunk_B(s, share, own > 0 ? own : 0.0, false);
    if (r->merged && r->alone && paired >= 0 && (s->ends == 0 || share > 2)) {
        most_B = mf_larger(most_B, chunk_B(s, s->ends > 0 ? share - 1 : share, paired, true));
    }
    return most_B;
}

/* What is there when most micro-batches are in flight: where nothing but main layers stands, with
 * the least that one of them needs beyond what they keep. */
static double most_standing_B(const stage *s, int k) {
    const mf_room *r = s->r;
    double n = (double)s->order->flight[s->p * (s->order->layers + 1) + k];
    double beyond_B = HUGE_VAL;
    for (int i = 0; i < r->ways; i++) {
        const mf_room_way *x = &r->way[i];
        beyond_B = mf_smaller(beyond_B, x->saved_B - r->saved_B + mf_larger(x->f_B, x->b_B));
    }
    return n * k * r->saved_B + (r->alone && s->ends == 0 && !r->merged ? beyond_B : 0.0);
}

/* With k main layers. */
static double need_B(const stage *s, int k) {
    return s->standing_B + k * s->layer_B + mf_larger(most_running_B(s, k), most_standing_B(s, k));
}

static stage stage_of(const mf_room *r, const mf_layout *l, const mf_order_summary *order,
                      double fixed_B, int64_t p) {
    bool first = p == 0, last = p == mf_layout_stage_of(l, l->pp * l->vpp - 1);
    stage s = {.r = r,
               .l = l,
               .order = order,
               .p = p,
               .ends = first + last,
               .layer_B = mf_persistent_B(l, r->layer),
               .waiting_B = mf_memory_unreduced_of_B(l, r->layer.dense, r->layer.expert)};
    s.standing_B = fixed_B + r->comm_B + mf_memory_gathers(l) * gathered_B(l, &r->layer) +
                   mf_memory_boundaries(l) * r->boundary_B;
    s.standing_B += first ? mf_persistent_B(l, r->embedding) : 0.0;
    s.standing_B += last ? mf_persistent_B(l, r->head) : 0.0;
    return s;
}

bool mf_room_fits(const mf_room *r, const mf_layout *l, const mf_order_summary *order,
                  double fixed_B) {
    int taken = 0, most = order->layers;
    if (!r->alike || most == 0) {
        return true;
    }
    for (int64_t p = 0; p < l->pp && taken < r->layers; p++) {
        const stage s = stage_of(r, l, order, fixed_B, p);
        double room_B = r->usable_B + SLACK_B - s.standing_B;
        int k = s.layer_B * most <= room_B ? most : (int)mf_larger(room_B / s.layer_B, 0.0);
        while (k > 0 && need_B(&s, k) > r->usable_B + SLACK_B) {
            k--;
        }
        taken += k;
    }
    return taken >= r->layers;
}
