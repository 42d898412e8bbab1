/* partition.c - the partition problem as data: slots, and figures of the layout. */
#include "planner/partition/partition.h"

#include "planner/bound/family_bound.h"
#include "planner/bound/overlap_loss.h"
#include "planner/partition/partition_classes.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>

/* --- classes ---------------------------------------------------------------------------------- */

int mf_partition_variant(const mf_layout *l, int vstage) {
    int64_t stage = mf_layout_stage_of(l, vstage);
    bool embedding = stage == mf_layout_stage_of(l, 0);
    bool head = stage == mf_layout_stage_of(l, l->pp * l->vpp - 1);
    return (embedding ? 1 : 0) | (head ? 2 : 0);
}

static bool is_end(const mf_partition *in, int stage) {
    return stage == (int)mf_layout_stage_of(&in->layout, 0) ||
           stage == (int)mf_layout_stage_of(&in->layout, in->vstages - 1);
}

double mf_partition_tables_B(const mf_partition *in, int stage) {
    return is_end(in, stage) ? in->tables_B : 0.0;
}

double mf_partition_tables_comm_B(const mf_partition *in, int stage) {
    return is_end(in, stage) ? in->tables_comm_B : 0.0;
}

/* Block of a position on a stage that holds embedding and head or not
 * (core/program/lower_program.c). With MTP depths an earlier one may hold the copies: then the
 * smaller block's parameters are assumed.
 */
static mf_block_key key_of(const mf_model *m, int position, int variant, bool split) {
    mf_block_key key = {
        .kind = mf_position_kind_of(m, position), .parts = MF_HALF_BOTH, .split = split};
    bool several = m->mtp_layers > 1;
    if (key.kind == MF_POS_LAYER) {
        key.layer_class = m->layer_class[mf_position_index(m, position)];
    } else if (key.kind == MF_POS_MTP) {
        key.layer_class = m->mtp_class;
        key.shared_embedding = several || (variant & 1);
        key.shared_head = several || m->tied_embeddings || (variant & 2);
    } else if (key.kind == MF_POS_HEAD) {
        key.shared_embedding = m->mtp_layers > 0 || (variant & 1);
    }
    return key;
}

/* Virtual stages that positions [first, last] can stand on: each of the others holds at least one
 * position. */
static void set_range(const mf_partition *in, mf_partition_slot *slot, int first, int last) {
    int spare = in->positions - in->vstages;
    slot->v_lo = first > spare ? first - spare : 0;
    slot->v_hi = last < in->vstages - 1 ? last : in->vstages - 1;
    if (mf_position_kind_of(in->model, first) == MF_POS_HEAD) {
        slot->v_lo = in->vstages - 1;
    }
}

static bool is_main(const mf_model *m, int position) {
    return mf_position_kind_of(m, position) == MF_POS_LAYER &&
           mf_family_bound_is_main(m, m->layer_class[mf_position_index(m, position)]);
}

static mf_status make_slots(mf_partition *in, uint32_t pinned, mf_err *e) {
    for (int s = 0; s < in->segments; s++) {
        const mf_segment *g = &in->segment[s];
        for (int k = 0; k < g->period; k++) {
            mf_partition_slot *slot = &in->slot[in->slots++];
            int first = g->first + k;
            *slot = (mf_partition_slot){.segment = s,
                                        .place = k,
                                        .first = first,
                                        .count = g->repeats,
                                        .main = is_main(in->model, first)};
            set_range(in, slot, first, first + (g->repeats - 1) * g->period);
            for (int v = slot->v_lo; v <= slot->v_hi; v++) {
                int variant = mf_partition_variant(&in->layout, v);
                mf_block_key key = key_of(in->model, first, variant, in->split);
                mf_status status =
                    mf_partition_find_class(in, &key, pinned, &slot->class_of[variant], e);
                if (status != MF_OK) {
                    return status;
                }
            }
            for (int r = 0; r < g->repeats; r++) {
                in->slot_at[first + r * g->period] = in->slots - 1;
            }
        }
    }
    return MF_OK;
}

/* Joins one slot to another of the same kind of layers. */
static void join(mf_partition_slot *to, const mf_partition_slot *from) {
    to->count += from->count;
    to->v_lo = from->v_lo < to->v_lo ? from->v_lo : to->v_lo;
    to->v_hi = from->v_hi > to->v_hi ? from->v_hi : to->v_hi;
}

void mf_partition_gather(mf_partition *in) {
    int kind[MF_MAX_POSITIONS] = {0}; /* the slot of every slot that was */
    int class[MF_MAX_POSITIONS], slots = 0;
    for (int s = 0; s < in->slots; s++) {
        const mf_partition_slot from = in->slot[s];
        const int own = from.class_of[in->variant[from.v_lo]];
        const bool layer = in->class[own].key.kind == MF_POS_LAYER;
        kind[s] = layer ? 0 : slots;
        while (kind[s] < slots && class[kind[s]] != own) {
            kind[s]++;
        }
        if (kind[s] < slots) {
            join(&in->slot[kind[s]], &from);
            continue;
        }
        in->slot[slots] = from;
        for (int i = 0; layer && i < MF_PARTITION_VARIANTS; i++) {
            in->slot[slots].class_of[i] = own; /* whatever else the stage holds */
        }
        class[slots++] = own;
    }
    for (int i = 0; i < in->positions; i++) {
        in->slot_at[i] = kind[in->slot_at[i]];
    }
    in->gathered = slots < in->slots;
    in->slots = slots;
}

/* --- figures of the layout ----------------------------------------------------------------------
 */

/* Parameters of the whole model on one rank, for the rates of the optimizer. */
static mf_param_count all_params(const mf_partition *in) {
    mf_param_count all = {0, 0, 0};
    for (int s = 0; s < in->slots; s++) {
        int v = in->slot[s].v_lo;
        const mf_param_count *p = &mf_partition_class_at(in, v, s)->choice[0].cost.params;
        int64_t n = in->slot[s].count;
        mf_family_bound_add_params(&all, p, n);
    }
    return all;
}

/* What the first micro-batch takes less on all stages together, at most. */
static double anew_s(const mf_partition *in) {
    double sum_s = 0.0;
    for (int s = 0; s < in->slots; s++) {
        double most_s = 0.0;
        for (int v = in->slot[s].v_lo; v <= in->slot[s].v_hi; v++) {
            most_s = fmax(most_s, mf_partition_class_at(in, v, s)->anew_s);
        }
        sum_s += in->slot[s].count * most_s;
    }
    return sum_s;
}

static mf_status make_losses(mf_partition *in, mf_err *e) {
    double *figures = calloc(MF_ORDER_LOSS_DOUBLES(in->vstages), sizeof *figures);
    if (!figures) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_order_losses_init(&in->losses, figures, in->vstages);
    mf_partition_losses(in, NULL, INFINITY);
    return MF_OK;
}

/* In a backward pass the next position comes before a block. The head, which is first on the last
 * virtual stage and comes before one block alone, is left out: own_most_s makes up for it. */
static void find_beside(mf_partition *in) {
    for (int i = 0; i < in->classes; i++) {
        in->class[i].beside_s = HUGE_VAL;
    }
    for (int i = 0; i + 2 < in->positions; i++) {
        const mf_partition_slot *s = &in->slot[in->slot_at[i]], *t = &in->slot[in->slot_at[i + 1]];
        const int lo = s->v_lo > t->v_lo ? s->v_lo : t->v_lo;
        const int hi = s->v_hi < t->v_hi ? s->v_hi : t->v_hi;
        for (int v = lo; v <= hi; v++) {
            mf_partition_class *c = &in->class[s->class_of[in->variant[v]]];
            c->beside_s =
                fmin(c->beside_s, mf_partition_class_at(in, v, in->slot_at[i + 1])->reduce_s);
        }
    }
    double head_s =
        mf_partition_class_at(in, in->vstages - 1, in->slot_at[in->positions - 1])->reduce_s;
    for (int i = 0; i < in->classes; i++) { /* none: it stands behind the head alone */
        in->class[i].beside_s = isinf(in->class[i].beside_s) ? head_s : in->class[i].beside_s;
    }
}

static mf_status fill_in(mf_partition *in, uint32_t pinned, const mf_order_summary *order,
                         mf_err *e) {
    const mf_layout *l = &in->layout;
    const mf_evaluator *o = in->evaluator;
    int layers = mf_family_bound_layers(in->model);
    in->segments = mf_segments(in->model, in->segment, in->positions);
    mf_status status = make_slots(in, pinned, e);
    if (status == MF_OK && order) {
        in->order = *order;
    } else if (status == MF_OK) {
        status = mf_order_summarise(l, o->ops->schedule, o->self, layers, in->positions - layers,
                                    &in->order, NULL, e);
        in->owns_order = status == MF_OK;
    }
    if (status == MF_OK && in->merged) {
        status = mf_partition_portion_pairs(in, false, e);
    }
    if (status != MF_OK) {
        return status;
    }
    o->ops->send(o->self, l, &in->send_s, &in->hold_s);
    in->fixed_B = o->ops->fixed_B(o->self, l);
    in->usable_B = o->ops->usable_B(o->self, l);
    in->tables_B = o->ops->tables_B(o->self, l);
    in->tables_comm_B = o->ops->tables_comm_B(o->self, l);
    in->step_end = o->ops->step_end(o->self, l, all_params(in));
    in->step_end.fixed_s -= anew_s(in);
    in->lost = 1.0;
    for (int i = 0; i < in->classes; i++) {
        mf_partition_class *c = &in->class[i];
        if (mf_uses(o->without, MF_MECHANISM_OVERLAP_LOSS)) {
            c->beside = o->ops->beside(o->self, l, c->choice[0].cost.params);
        }
        in->lost = mf_smaller(in->lost, c->beside.lost);
    }
    find_beside(in);
    mf_partition_compare_choices(in);
    return make_losses(in, e);
}

mf_status mf_partition_price_all_pairs(mf_partition *in, mf_err *e) {
    mf_status status = in->merged ? mf_partition_portion_pairs(in, true, e) : MF_OK;
    if (status == MF_OK && in->merged) {
        mf_partition_compare_choices(in);
    }
    return status;
}

mf_status mf_partition_create(mf_block_costs *costs, const mf_layout *l, uint32_t pinned,
                              const mf_order_summary *order, mf_partition **out, mf_err *e) {
    *out = NULL;
    mf_partition *in = calloc(1, sizeof *in);
    if (!in) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    in->costs = costs;
    in->evaluator = mf_block_costs_evaluator(costs);
    in->model = in->evaluator->model;
    in->layout = *l;
    in->positions = mf_model_positions(in->model);
    in->stages = (int)l->pp;
    in->chunks = (int)l->vpp;
    in->vstages = in->stages * in->chunks;
    in->split = mf_layout_splits(l);
    in->merged = mf_layout_merges(l);
    in->segment = calloc((size_t)in->positions, sizeof *in->segment);
    in->slot = calloc((size_t)in->positions, sizeof *in->slot);
    in->slot_at = calloc((size_t)in->positions, sizeof *in->slot_at);
    in->variant = calloc((size_t)in->vstages, sizeof *in->variant);
    in->effort_ns = calloc(1, sizeof *in->effort_ns);
    in->last_cost = calloc((size_t)in->vstages, sizeof *in->last_cost);
    for (int v = 0; in->variant && v < in->vstages; v++) {
        in->variant[v] = (uint8_t)mf_partition_variant(l, v);
    }
    if (!in->segment || !in->slot || !in->slot_at || !in->variant || !in->effort_ns ||
        !in->last_cost) {
        mf_partition_destroy(in);
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status status = fill_in(in, pinned, order, e);
    if (status != MF_OK) {
        mf_partition_destroy(in);
        return status;
    }
    *in->effort_ns += MF_CREATE_NS + MF_CREATE_CLASS_NS * (int64_t)in->classes;
    *out = in;
    return MF_OK;
}

void mf_partition_destroy(mf_partition *in) {
    if (!in) {
        return;
    }
    if (in->owns_order) {
        mf_order_summary_clear(&in->order);
    }
    mf_order_destroy(in->graph);
    free(in->losses.left_s);
    free(in->pair_s);
    free(in->segment);
    free(in->slot);
    free(in->slot_at);
    free(in->variant);
    free(in->effort_ns);
    free(in->last_cost);
    free(in->class);
    free(in);
}

void mf_partition_shift(int *first, int from, int to) {
    for (int v = from + 1; v <= to; v++) {
        first[v]--;
    }
    for (int v = to + 1; v <= from; v++) {
        first[v]++;
    }
}

int64_t mf_partition_step_ns(const mf_partition *in) {
    return mf_evaluator_step_ns(&in->layout);
}
