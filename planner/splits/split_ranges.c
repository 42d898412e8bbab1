/* split_ranges.c - ranges of numbers of positions: what sums, stages and all positions say of them.
 */
#include "planner/splits/split_ranges.h"

static int16_t most_of(int a, int b) {
    return (int16_t)(a > b ? a : b);
}

static int16_t least_of(int a, int b) {
    return (int16_t)(a < b ? a : b);
}

/* What a sum and its terms say of each other: part[i] is the mf_split_range of a term, of `count`.
 */
static bool narrow_sum(mf_split_range *sum, mf_split_range *const *part, int count) {
    int lo = 0, hi = 0;
    for (int i = 0; i < count; i++) {
        lo += part[i]->lo;
        hi += part[i]->hi;
    }
    sum->lo = most_of(sum->lo, lo);
    sum->hi = least_of(sum->hi, hi);
    for (int i = 0; i < count; i++) {
        mf_split_range *x = part[i];
        int others_lo = lo - x->lo, others_hi = hi - x->hi;
        mf_split_range was = *x;
        x->lo = most_of(x->lo, sum->lo - others_hi);
        x->hi = least_of(x->hi, sum->hi - others_lo);
        lo += x->lo - was.lo;
        hi += x->hi - was.hi;
        if (x->lo > x->hi) {
            return false;
        }
    }
    return sum->lo <= sum->hi;
}

/* Sums of stages: of their chunks, and all positions together. */
static bool narrow_stages(const mf_partition *in, mf_split_range *r) {
    mf_split_range *part[MF_MAX_VSTAGES] = {NULL},
                   all = {(int16_t)in->positions, (int16_t)in->positions};
    if (in->chunks == 1) {
        return true;
    }
    for (int p = 0; p < in->stages; p++) {
        part[p] = &r[in->vstages + p];
    }
    if (!narrow_sum(&all, part, in->stages)) {
        return false;
    }
    for (int p = 0; p < in->stages; p++) {
        for (int c = 0; c < in->chunks; c++) {
            part[c] = &r[mf_layout_vstage(&in->layout, p, c)];
        }
        if (!narrow_sum(&r[in->vstages + p], part, in->chunks)) {
            return false;
        }
    }
    return true;
}

bool mf_split_narrow(const mf_partition *in, mf_split_range *r, int *least, int *most) {
    int vstages = in->vstages, positions = in->positions;
    if (!narrow_stages(in, r)) {
        return false;
    }
    least[0] = most[0] = 0;
    for (int v = 0; v < vstages; v++) {
        least[v + 1] = least[v] + r[v].lo;
        most[v + 1] = most[v] + r[v].hi;
    }
    int after_lo = 0, after_hi = 0;
    for (int v = vstages; v >= 0; v--) {
        int lo = positions - after_hi, hi = positions - after_lo;
        least[v] = least[v] > lo ? least[v] : lo;
        most[v] = most[v] < hi ? most[v] : hi;
        if (least[v] > most[v]) {
            return false;
        }
        if (v > 0) {
            after_lo += r[v - 1].lo;
            after_hi += r[v - 1].hi;
        }
    }
    for (int v = 0; v < vstages; v++) {
        int lo = least[v + 1] - most[v], hi = most[v + 1] - least[v];
        r[v].lo = (int16_t)(r[v].lo > lo ? r[v].lo : lo);
        r[v].hi = (int16_t)(r[v].hi < hi ? r[v].hi : hi);
        if (r[v].lo > r[v].hi) {
            return false;
        }
    }
    return true;
}
