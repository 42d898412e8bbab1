/* narrow_ranges.c - how many positions virtual stages and stages can hold in a step below a cutoff.
 *
 * A stage plays all passes of its positions one after the other, so k positions there take at least
 * as long as the quickest k that can stand there, on each chunk one. What one stage cannot hold
 * the others must: ranges of all numbers follow (split_ranges.c). Memory limits them, too
 * (most_positions.c); ranges say which buffers are sure (beside.c), and so limit memory again.
 */
#include "planner/bound/stage_bound.h"
#include "planner/splits/rows.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <string.h>

static int least_of(int a, int b) {
    return a < b ? a : b;
}

/* What a position of slot s on v adds to its stage at least in a step; of merged pairs, by a set of
 * their portions. */
static double position_s(const mf_partition *in, int v, int s, int set) {
    static const mf_order_part pair[MF_PORTIONS][2] = {
        {MF_ORDER_F_PAIR, MF_ORDER_B_PAIR}, {MF_ORDER_PAIR_PORTION_F, MF_ORDER_PAIR_PORTION_B}};
    const mf_partition_class *c = mf_partition_class_at(in, v, s);
    double least_s = HUGE_VAL;
    for (int m = 0; m < c->choices; m++) {
        const double own_s = in->merged ? mf_partition_part_s(in, c, m, pair[set][0], true) +
                                              mf_partition_part_s(in, c, m, pair[set][1], true)
                                        : mf_partition_part_s(in, c, m, MF_ORDER_F, true) +
                                              mf_partition_part_s(in, c, m, MF_ORDER_B, true) +
                                              mf_partition_part_s(in, c, m, MF_ORDER_W, true);
        least_s = fmin(least_s, own_s);
    }
    return (double)in->layout.micro_batches * least_s - c->anew_s;
}

void mf_rows_add_kind(mf_rows_kind *list, int n, mf_rows_kind x) {
    for (; n > 0 && list[n - 1].each > x.each; n--) {
        list[n] = list[n - 1];
    }
    list[n] = x;
}

int mf_rows_most_of(const mf_rows_kind *list, int n, double left) {
    int most = 0;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < list[i].count; j++) {
            left -= list[i].each;
            if (left < 0.0) {
                return most;
            }
            most++;
        }
    }
    return most;
}

/* How many positions chunks [from, to) of a stage can hold in so many seconds, by one set. */
static int most_by_set(const mf_partition *in, int stage, int from, int to, double free_s,
                       int set) {
    mf_rows_kind list[MF_MAX_POSITIONS];
    int n = 0;
    for (int s = 0; s < in->slots; s++) {
        mf_rows_kind k = {HUGE_VAL, in->slot[s].count};
        for (int c = from; c < to; c++) {
            const int v = (int)mf_layout_vstage(&in->layout, stage, c);
            if (v >= in->slot[s].v_lo && v <= in->slot[s].v_hi) {
                k.each = fmin(k.each, position_s(in, v, s, set));
            }
        }
        if (isfinite(k.each)) {
            mf_rows_add_kind(list, n++, k);
        }
    }
    return mf_rows_most_of(list, n, free_s);
}

/* Portions of one pair are of one set (pair_portions.c), so sets are summed one by one. */
static int most_by_time(const mf_partition *in, int stage, int from, int to, double free_s) {
    int most = in->positions;
    for (int set = 0; set < (in->merged ? MF_PORTIONS : 1); set++) {
        most = least_of(most, most_by_set(in, stage, from, to, free_s, set));
    }
    return most;
}

static void find_most(const mf_partition *in, double cutoff_s, int *most) {
    const double free_s = cutoff_s / MF_BOUND_SAFETY * (1.0 + 1e-9);
    for (int p = 0; p < in->stages; p++) {
        for (int c = 0; c < in->chunks; c++) {
            most[mf_layout_vstage(&in->layout, p, c)] = most_by_time(in, p, c, c + 1, free_s);
        }
        most[in->vstages + p] = most_by_time(in, p, 0, in->chunks, free_s);
    }
}

/* At most most[] positions (NULL: any number). False: no split is such. */
static bool narrow(const mf_partition *in, const int *most, mf_split_ranges *ranges) {
    for (int i = 0; i < in->vstages + in->stages; i++) {
        const int chunks = i < in->vstages ? 1 : in->chunks;
        int hi = in->positions - in->vstages + chunks;
        hi = most ? least_of(hi, most[i]) : hi;
        ranges->range[i] = (mf_split_range){(int16_t)chunks, (int16_t)hi};
        if (hi < chunks) {
            return false;
        }
    }
    return mf_split_narrow(in, ranges->range, ranges->least, ranges->most);
}

void mf_split_ranges_by_time(const mf_partition *in, double cutoff_s, mf_split_ranges *ranges) {
    int most[2 * MF_MAX_VSTAGES] = {0};
    if (isfinite(cutoff_s)) {
        find_most(in, cutoff_s, most);
        if (narrow(in, most, ranges)) {
            return;
        }
    }
    narrow(in, NULL, ranges);
}

bool mf_split_ranges_by_memory(const mf_partition *in, mf_split_ranges *ranges) {
    bool fits = true, narrower = true;
    for (int round = 0; round < MF_NARROW_ROUNDS && fits && narrower; round++) {
        int most[2 * MF_MAX_VSTAGES];
        fits = mf_rows_most_positions(in, ranges, most);
        narrower = false;
        for (int i = 0; fits && i < in->vstages + in->stages; i++) {
            mf_split_range *x = &ranges->range[i];
            narrower = narrower || most[i] < x->hi;
            x->hi = (int16_t)least_of(x->hi, most[i]);
            fits = x->lo <= x->hi;
        }
        fits = fits && mf_split_narrow(in, ranges->range, ranges->least, ranges->most);
    }
    return fits;
}
