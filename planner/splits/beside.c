/* beside.c - the least bytes that a stage needs beside what its blocks keep.
 *
 * A stage also holds the workspace of the block that runs, and buffers that are as large as its
 * largest block needs (core/memory/memory.c). The ranges of positions say which blocks are sure to
 * stand on a stage. For example, a stage that holds more positions than there are layers without
 * experts has the buffers of a layer with experts.
 */
#include "planner/splits/rows.h"

#include <math.h>

/* Bytes that a stage needs beside what its blocks keep: of one block, the least of several blocks,
 * or the most that several blocks need for sure. */
typedef struct beside {
    double work_B; /* workspace while the block runs */
    double comm_B, gather_B, boundary_B, scratch_B;
    double apart_B; /* part of comm_B that is no scratch memory of compute */
    double sum_B;   /* of all buffers and the workspace of one block */
} beside;

static const beside any_block = {HUGE_VAL, HUGE_VAL, HUGE_VAL, HUGE_VAL,
                                 HUGE_VAL, HUGE_VAL, HUGE_VAL};

static double buffers_B(const mf_layout *l, const beside *x) {
    return x->comm_B + mf_memory_gathers(l) * x->gather_B +
           mf_memory_boundaries(l) * x->boundary_B + x->scratch_B;
}

static bool stands_on(const mf_partition *in, int v, int s) {
    return v >= in->slot[s].v_lo && v <= in->slot[s].v_hi;
}

/* Takes the smaller of each figure. */
static void at_most(beside *x, const beside *other) {
    x->work_B = fmin(x->work_B, other->work_B);
    x->comm_B = fmin(x->comm_B, other->comm_B);
    x->gather_B = fmin(x->gather_B, other->gather_B);
    x->boundary_B = fmin(x->boundary_B, other->boundary_B);
    x->scratch_B = fmin(x->scratch_B, other->scratch_B);
    x->apart_B = fmin(x->apart_B, other->apart_B);
    x->sum_B = fmin(x->sum_B, other->sum_B);
}

/* The least that a layer of slot s needs on virtual stage v, whatever it keeps. */
static beside of_slot(const mf_partition *in, int v, int s) {
    beside x = any_block;
    const mf_partition_class *c = mf_partition_class_at(in, v, s);
    for (int m = 0; m < c->choices; m++) {
        const mf_block_cost *q = &c->choice[m].cost;
        const double work_B = in->split ? mf_block_sure_work_B(q, true)
                                        : fmax(q->local_f_B, q->local_b_B + c->whole_B);
        beside own = {.work_B = work_B,
                      .comm_B = q->comm_B,
                      .gather_B = q->gather_B,
                      .boundary_B = q->boundary_B,
                      .scratch_B = c->scratch_B,
                      .apart_B = fmax(q->comm_B - q->compute_B, 0.0)};
        own.sum_B = own.work_B + buffers_B(&in->layout, &own);
        at_most(&x, &own);
    }
    return x;
}

/* Takes the larger of each buffer: blocks of a stage share them. */
static void add_buffers(beside *x, const beside *more) {
    x->comm_B = fmax(x->comm_B, more->comm_B);
    x->gather_B = fmax(x->gather_B, more->gather_B);
    x->boundary_B = fmax(x->boundary_B, more->boundary_B);
    x->scratch_B = fmax(x->scratch_B, more->scratch_B);
    x->apart_B = fmax(x->apart_B, more->apart_B);
}

/* The blocks that can stand on a virtual stage, by slot. */
typedef struct standing {
    beside own[MF_MAX_POSITIONS];
    int from, to; /* positions that can stand there */
} standing;

static void find_standing(const mf_partition *in, const mf_split_ranges *ranges, int v,
                          standing *x) {
    x->from = ranges->least[v];
    x->to = ranges->most[v + 1];
    for (int i = x->from; i < x->to; i++) {
        if (i == x->from || in->slot_at[i] != in->slot_at[i - 1]) {
            x->own[in->slot_at[i]] = of_slot(in, v, in->slot_at[i]);
        }
    }
}

/* The least that virtual stage v needs, at whichever position it begins: buffers for all of its
 * positions, and the workspace of its last block. */
static beside least_on(const mf_partition *in, const mf_split_ranges *ranges, int v) {
    beside x = any_block;
    standing can;
    find_standing(in, ranges, v, &can);
    for (int a = ranges->least[v]; a <= ranges->most[v]; a++) {
        const int lo = a + ranges->range[v].lo, least = ranges->least[v + 1];
        const int end = lo > least ? lo : least;
        beside all = {0, 0, 0, 0, 0, 0, 0};
        for (int i = a; i < end && end <= ranges->most[v + 1]; i++) {
            add_buffers(&all, &can.own[in->slot_at[i]]);
        }
        if (end <= ranges->most[v + 1]) {
            all.work_B = all.sum_B = HUGE_VAL; /* found below, for its last position */
            at_most(&x, &all);
        }
    }
    /* with several chunks, or with passes for weight gradients, any block may be the last to run */
    const bool known = in->chunks == 1 && !in->split;
    for (int i = known ? ranges->least[v + 1] - 1 : ranges->least[v]; i < ranges->most[v + 1];
         i++) {
        const beside *last = &can.own[in->slot_at[i]];
        x.work_B = fmin(x.work_B, last->work_B);
        x.sum_B = fmin(x.sum_B, last->sum_B);
    }
    if (v == in->vstages - 1) { /* the last block is the head */
        x.work_B = can.own[in->slots - 1].work_B;
    }
    return x;
}

/* Of `held` positions, the largest needs at least this. The list is sorted, smallest first. */
static double largest_of(const mf_rows_kind *list, int kinds, int held) {
    for (int i = 0; i < kinds; i++) {
        held -= list[i].count;
        if (held <= 0) {
            return list[i].each;
        }
    }
    return 0.0;
}

/* Adds the buffers that a stage has for sure because its chunks hold so many positions in all,
 * whichever these are. */
static void add_many(const mf_partition *in, const mf_split_ranges *ranges, int stage,
                     beside *all) {
    enum { COMM, GATHER, BOUNDARY, SCRATCH, KINDS };
    mf_rows_kind of[KINDS][MF_MAX_POSITIONS];
    int kinds = 0, held = ranges->range[in->vstages + stage].lo;
    for (int s = 0; s < in->slots; s++) {
        beside x = any_block;
        for (int k = 0; k < in->chunks; k++) {
            const int v = (int)mf_layout_vstage(&in->layout, stage, k);
            if (stands_on(in, v, s)) {
                const beside own = of_slot(in, v, s);
                at_most(&x, &own);
            }
        }
        if (isfinite(x.sum_B)) {
            const int count = in->slot[s].count;
            mf_rows_add_kind(of[COMM], kinds, (mf_rows_kind){x.comm_B, count});
            mf_rows_add_kind(of[GATHER], kinds, (mf_rows_kind){x.gather_B, count});
            mf_rows_add_kind(of[BOUNDARY], kinds, (mf_rows_kind){x.boundary_B, count});
            mf_rows_add_kind(of[SCRATCH], kinds++, (mf_rows_kind){x.scratch_B, count});
        }
    }
    const beside sure = {.comm_B = largest_of(of[COMM], kinds, held),
                         .gather_B = largest_of(of[GATHER], kinds, held),
                         .boundary_B = largest_of(of[BOUNDARY], kinds, held),
                         .scratch_B = largest_of(of[SCRATCH], kinds, held)};
    add_buffers(all, &sure);
}

static beside least_on_stage(const mf_partition *in, const mf_split_ranges *ranges, int stage) {
    beside all = {.work_B = HUGE_VAL, .sum_B = HUGE_VAL};
    all.comm_B = mf_partition_tables_B(in, stage);
    for (int k = 0; k < in->chunks; k++) {
        const beside x = least_on(in, ranges, (int)mf_layout_vstage(&in->layout, stage, k));
        all.work_B = fmin(all.work_B, x.work_B);
        all.sum_B = fmin(all.sum_B, x.sum_B);
        add_buffers(&all, &x);
    }
    if (in->chunks > 1 && ranges->range[in->vstages + stage].lo > in->chunks) {
        add_many(in, ranges, stage, &all);
    }
    return all;
}

static double sum_beside_B(const mf_partition *in, const beside *x) {
    return fmax(x->sum_B, x->work_B + buffers_B(&in->layout, x));
}

double mf_rows_least_beside_B(const mf_partition *in, const mf_split_ranges *ranges, int stage) {
    const beside all = least_on_stage(in, ranges, stage);
    return mf_partition_tables_comm_B(in, stage) + sum_beside_B(in, &all);
}

double mf_rows_beside_with_B(const mf_partition *in, const mf_split_ranges *ranges, int stage,
                             double work_B, bool summed) {
    beside all = least_on_stage(in, ranges, stage);
    if (summed) { /* the caller counts the scratch memory of compute with the positions */
        all.comm_B = all.apart_B;
    }
    all.work_B = fmax(all.work_B, work_B);
    return mf_partition_tables_comm_B(in, stage) + all.work_B + buffers_B(&in->layout, &all);
}

/* Has the slot one layer only, which may also stand on another virtual stage? */
static bool is_single(const mf_partition *in, int s) {
    return in->slot[s].count == 1 && in->slot[s].v_lo < in->slot[s].v_hi;
}

/* How many bytes more the stage needs at least if the layer of slot s stands on one of its chunks;
 * 0 if it cannot stand there. */
static double more_with(const mf_partition *in, int stage, const beside *all, int s) {
    double more_B = HUGE_VAL;
    for (int k = 0; k < in->chunks; k++) {
        const int v = (int)mf_layout_vstage(&in->layout, stage, k);
        if (stands_on(in, v, s)) {
            beside with = *all;
            const beside own = of_slot(in, v, s);
            add_buffers(&with, &own);
            more_B = fmin(more_B, sum_beside_B(in, &with) - sum_beside_B(in, all));
        }
    }
    return isfinite(more_B) ? more_B : 0.0;
}

mf_guest mf_rows_guest(const mf_partition *in, const mf_split_ranges *ranges, int stage) {
    mf_guest guest = {.slot = -1};
    const beside all = least_on_stage(in, ranges, stage);
    for (int s = 0; s < in->slots; s++) {
        const double more_B = is_single(in, s) ? more_with(in, stage, &all, s) : 0.0;
        if (more_B > guest.more_B) {
            guest = (mf_guest){s, more_B};
        }
    }
    return guest;
}
