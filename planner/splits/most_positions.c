/* most_positions.c - how many whole positions memory allows on a stage.
 *
 * At a moment of the schedule (a row of in-flight vectors) a position of slot s on chunk c of a
 * stage takes at least
 *
 *     persistent[s] + min over choices m of (in_flight[c] saved[s, m] + held[c] held[s, m])
 *
 * No chunk is empty. So k positions on a stage take the least that any position takes, on each of
 * its chunks, and k - chunks others besides. Each of these is one of some slot, which has so many
 * and no more, and takes no less than at the chunk where its slot takes least: together they take
 * the k - chunks least of all. Where that is more than there is in any row, no split with k
 * positions there fits, whatever they keep. Linear programs do not know that: they put 2.7 layers
 * where two fit and three do not.
 *
 * A stage of one chunk holds positions in a row, so it is known which they are wherever they begin.
 * Where its backward passes run as a whole, for every workspace W of such a pass either no choice
 * there has one as large, or the last block whose choice has runs at some time, when blocks behind
 * it keep nothing of its micro-batch any more: their choices count one micro-batch less then. The
 * leanest choice, a layer recomputed as a whole, has the largest workspace.
 *
 * Either way the scratch of compute is what its widest op needs, or what the stage sums over copies
 * when a step ends, to which each position adds.
 */
#include "planner/splits/rows.h"
#include "planner/tuning/limits.h"

#include <math.h>

/* What is presumed of the choices on a stage, by the workspace of their backward passes. */
typedef enum presumed {
    ANY,    /* nothing */
    LIGHT,  /* none is as large as that */
    A_HEAVY /* one is: when the last such block runs, blocks behind it keep nothing any more */
} presumed;

/* One stage at one moment. */
typedef struct moment {
    const mf_partition *in;
    int stage, row;
    presumed choices;
    double heavy_B; /* a workspace that is large */
    const mf_split_ranges *ranges;
    bool summed;   /* positions take what is summed over copies for them */
    double free_B; /* beside the least position of every chunk */
} moment;

static bool stands_on(const mf_partition *in, int v, int s) {
    return v >= in->slot[s].v_lo && v <= in->slot[s].v_hi;
}

static double backward_B(const mf_partition *in, const mf_partition_class *c, int m) {
    return c->choice[m].cost.local_b_B + (in->split ? 0.0 : c->whole_B);
}

/* Bytes of a position of slot s on chunk c, at least; INFINITY: none can stand there. */
static double position_B(const moment *x, int c, int s) {
    const mf_partition *in = x->in;
    const int v = (int)mf_layout_vstage(&in->layout, x->stage, c);
    if (!stands_on(in, v, s)) {
        return HUGE_VAL;
    }
    const double flight = mf_order_in_flight(&in->order, x->stage, x->row, c);
    const double held = mf_order_held(&in->order, x->stage, x->row, c);
    const mf_partition_class *class = mf_partition_class_at(in, v, s);
    double least_B = HUGE_VAL;
    for (int m = 0; m < class->choices; m++) {
        const mf_block_cost *q = &class->choice[m].cost;
        const bool heavy = x->choices != ANY && backward_B(in, class, m) >= x->heavy_B;
        const double kept = x->choices == A_HEAVY && !heavy ? fmax(flight - 1.0, 0.0) : flight;
        if (x->choices != LIGHT || !heavy) {
            least_B = fmin(least_B,
                           kept * q->saved_B + held * q->held_B + (x->summed ? q->summed_B : 0.0));
        }
    }
    *in->effort_ns += MF_MOST_POSITIONS_NS * (int64_t) class->choices;
    return class->persistent_B + least_B;
}

/* One chunk: how many positions in a row fit, wherever they begin. */
static int most_in_a_row(const moment *x, double free_B) {
    const mf_partition *in = x->in;
    const mf_split_ranges *ranges = x->ranges;
    const int v = x->stage;
    double each_B[MF_MAX_POSITIONS] = {0};
    int most = 0;
    for (int i = ranges->least[v]; i < ranges->most[v + 1]; i++) {
        const bool alike = i > ranges->least[v] && in->slot_at[i] == in->slot_at[i - 1];
        each_B[i] = alike ? each_B[i - 1] : position_B(x, 0, in->slot_at[i]);
    }
    for (int from = ranges->least[v]; from <= ranges->most[v]; from++) {
        double left_B = free_B;
        for (int i = from; i < ranges->most[v + 1]; i++) {
            left_B -= each_B[i];
            if (!(left_B >= 0.0)) {
                break;
            }
            if (i + 1 >= ranges->least[v + 1] && i + 1 - from > most) {
                most = i + 1 - from;
            }
        }
    }
    return most;
}

/* How many more positions fit on chunks [from, to), each the least of those that are left. */
static int more_positions(const moment *x, int from, int to, double free_B) {
    const mf_partition *in = x->in;
    mf_rows_kind list[MF_MAX_POSITIONS];
    int n = 0;
    for (int s = 0; s < in->slots; s++) {
        mf_rows_kind k = {HUGE_VAL, in->slot[s].count};
        for (int c = from; c < to; c++) {
            k.each = fmin(k.each, position_B(x, c, s));
        }
        if (isfinite(k.each)) {
            mf_rows_add_kind(list, n++, k);
        }
    }
    return mf_rows_most_of(list, n, free_B);
}

static void at_least(int *most, int n) {
    *most = n < *most ? n : *most;
}

/* At one moment. False: not even one position for each chunk fits. */
static bool most_at(moment *x, int *most) {
    const mf_partition *in = x->in;
    if (in->chunks == 1) {
        const int own = most_in_a_row(x, x->free_B);
        at_least(&most[x->stage], own);
        at_least(&most[in->vstages + x->stage], own);
        return own > 0;
    }
    for (int c = 0; c < in->chunks; c++) {
        double least_B = HUGE_VAL;
        for (int s = 0; s < in->slots; s++) {
            least_B = fmin(least_B, position_B(x, c, s));
        }
        x->free_B -= least_B;
    }
    if (!(x->free_B >= 0.0)) {
        return false;
    }
    at_least(&most[in->vstages + x->stage],
             in->chunks + more_positions(x, 0, in->chunks, x->free_B));
    for (int c = 0; c < in->chunks; c++) {
        at_least(&most[mf_layout_vstage(&in->layout, x->stage, c)],
                 1 + more_positions(x, c, c + 1, x->free_B));
    }
    return true;
}

/* With positions and buffers as they are, or with what is summed over copies. (Where weight
 * gradients are split off, micro-batches that wait for them decide.) */
static bool most_of(const mf_partition *in, const mf_split_ranges *ranges, moment x, int *most) {
    const int ways = in->layout.gpus > 1 && !in->split ? 2 : 1; /* one GPU sums nothing */
    bool fits = true;
    for (int summed = 0; summed < ways && fits; summed++) {
        const double work_B = x.choices == A_HEAVY ? x.heavy_B : 0.0;
        const double beside_B = x.choices == ANY && !summed
                                    ? mf_rows_least_beside_B(in, ranges, x.stage)
                                    : mf_rows_beside_with_B(in, ranges, x.stage, work_B, summed);
        moment own = x;
        own.summed = summed;
        own.free_B = (in->usable_B - in->fixed_B - beside_B) * (1.0 + 1e-9) + 1.0;
        fits = most_at(&own, most);
    }
    return fits;
}

/* One chunk whose backward passes run as a whole: the choices there have workspaces below heavy_B,
 * or one of them has not. */
static void most_by_workspace(const mf_partition *in, const mf_split_ranges *ranges, moment x,
                              int *most) {
    int best = 0;
    for (presumed choices = LIGHT; choices <= A_HEAVY; choices++) {
        int own[2 * MF_MAX_VSTAGES];
        own[x.stage] = own[in->vstages + x.stage] = in->positions;
        x.choices = choices;
        if (most_of(in, ranges, x, own) && own[x.stage] > best) {
            best = own[x.stage];
        }
    }
    at_least(&most[x.stage], best);
    at_least(&most[in->vstages + x.stage], best);
}

static void try_workspaces(const mf_partition *in, const mf_split_ranges *ranges, moment x,
                           int *most) {
    for (int i = 0; i < in->slots; i++) {
        const mf_partition_class *c = mf_partition_class_at(in, x.stage, i);
        for (int m = 0; m < c->choices && stands_on(in, x.stage, i); m++) {
            x.heavy_B = backward_B(in, c, m);
            most_by_workspace(in, ranges, x, most);
        }
    }
}

bool mf_rows_most_positions(const mf_partition *in, const mf_split_ranges *ranges, int *most) {
    for (int i = 0; i < in->vstages + in->stages; i++) {
        most[i] = in->positions;
    }
    for (int p = 0; p < in->stages; p++) {
        for (int row = 0; row < in->order.rows[p]; row++) {
            const moment x = {.in = in, .stage = p, .row = row, .choices = ANY, .ranges = ranges};
            if (!most_of(in, ranges, x, most)) {
                return false;
            }
            if (in->chunks == 1 && !in->split) {
                try_workspaces(in, ranges, x, most);
            }
        }
        if (most[in->vstages + p] < in->chunks) {
            return false;
        }
    }
    return true;
}
