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
 */
#include "planner/partition/rows.h"
#include "planner/tuning/limits.h"

#include <math.h>

/* Positions of a kind, of so many bytes each. */
typedef struct kind {
    double each_B;
    int count;
} kind;

/* One stage at one moment. */
typedef struct moment {
    const mf_partition *in;
    int stage, row;
    double free_B; /* beside the least position of every chunk */
    double least_B[MF_MAX_VSTAGES];
} moment;

static bool stands_on(const mf_partition *in, int v, int s) {
    return v >= in->slot[s].v_lo && v <= in->slot[s].v_hi;
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
        least_B = fmin(least_B, flight * q->saved_B + held * q->held_B);
    }
    *in->effort_ns += MF_MOST_POSITIONS_NS * (int64_t) class->choices;
    return class->persistent_B + least_B;
}

static void add_kind(kind *list, int n, kind x) {
    for (; n > 0 && list[n - 1].each_B > x.each_B; n--) {
        list[n] = list[n - 1];
    }
    list[n] = x;
}

/* How many more positions fit on chunks [from, to), each the least of those that are left. */
static int more_positions(const moment *x, int from, int to, double free_B) {
    const mf_partition *in = x->in;
    kind list[MF_MAX_POSITIONS];
    int n = 0, more = 0;
    for (int s = 0; s < in->slots; s++) {
        kind k = {HUGE_VAL, in->segment[in->slot[s].segment].repeats};
        for (int c = from; c < to; c++) {
            k.each_B = fmin(k.each_B, position_B(x, c, s));
        }
        if (isfinite(k.each_B)) {
            add_kind(list, n++, k);
        }
    }
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < list[i].count; j++) {
            free_B -= list[i].each_B;
            if (free_B < 0.0) {
                return more;
            }
            more++;
        }
    }
    return more;
}

static void at_least(int *most, int n) {
    *most = n < *most ? n : *most;
}

bool mf_rows_most_positions(const mf_partition *in, int *most) {
    for (int i = 0; i < in->vstages + in->stages; i++) {
        most[i] = in->positions;
    }
    for (int p = 0; p < in->stages; p++) {
        const double free_B = in->usable_B - in->fixed_B - mf_rows_least_beside_B(in, p);
        for (int row = 0; row < in->order.rows[p]; row++) {
            moment x = {.in = in, .stage = p, .row = row, .free_B = free_B * (1.0 + 1e-9) + 1.0};
            for (int c = 0; c < in->chunks; c++) {
                x.least_B[c] = HUGE_VAL;
                for (int s = 0; s < in->slots; s++) {
                    x.least_B[c] = fmin(x.least_B[c], position_B(&x, c, s));
                }
                x.free_B -= x.least_B[c];
            }
            if (x.free_B < 0.0) {
                return false;
            }
            at_least(&most[in->vstages + p],
                     in->chunks + more_positions(&x, 0, in->chunks, x.free_B));
            for (int c = 0; c < in->chunks; c++) {
                at_least(&most[mf_layout_vstage(&in->layout, p, c)],
                         1 + more_positions(&x, c, c + 1, x.free_B));
            }
        }
    }
    return true;
}
