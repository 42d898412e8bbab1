/* split_proof.c - leaves of a tree over splits, and what they prove for another layout. */
#include "planner/splits/split_proof.h"

#include "planner/order/path_mean.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- leaves ----------------------------------------------------------------------------------- */

/* The mean of weighed paths into *mean, which is all 0. False: there are no weights. */
static bool weigh(const mf_weighed_paths *x, mf_order_path *mean) {
    double sum = 0.0;
    bool first = true;
    for (int i = 0; i < x->count; i++) {
        sum += x->weight[i] > MF_PROOF_WEIGHT ? x->weight[i] : 0.0;
    }
    for (int i = 0; i < x->count; i++) {
        if (x->weight[i] > MF_PROOF_WEIGHT) {
            mf_path_mean_add(mean, &x->path[i], x->weight[i] / sum, first);
            first = false;
        }
    }
    return !first;
}

static bool reserve(mf_split_proof *p) {
    if (p->count < p->allocated) {
        return true;
    }
    const int allocated = 2 * p->allocated + 32;
    mf_split_leaf *grown = realloc(p->leaf, (size_t)allocated * sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    p->leaf = grown;
    p->allocated = allocated;
    return true;
}

static void clear_leaf(mf_split_leaf *x) {
    free(x->range);
    mf_order_path_clear(&x->mean);
    memset(x, 0, sizeof *x);
}

int mf_split_proof_add(mf_split_proof *p, int like, const mf_split_range *r,
                       const mf_weighed_paths *x) {
    const size_t bytes = (size_t)p->sizes * sizeof *r;
    mf_split_leaf one = {.range = p->broken || !reserve(p) ? NULL : malloc(bytes)};
    bool good = one.range != NULL && x->count > 0 &&
                mf_order_path_init(&one.mean, x->path[0].vstages, NULL) == MF_OK;
    if (good && !weigh(x, &one.mean)) {
        mf_order_path_clear(&one.mean);
        memset(&one.mean, 0, sizeof one.mean);
        good = like >= 0 && mf_order_path_copy(&one.mean, &p->leaf[like].mean, NULL) == MF_OK;
    }
    if (!good || p->live >= MF_PROOF_LEAVES) {
        clear_leaf(&one);
        p->broken = true;
        return -1;
    }
    memcpy(one.range, r, bytes);
    p->leaf[p->count] = one;
    p->live++;
    return p->count++;
}

void mf_split_proof_again(mf_split_proof *p, int leaf, const mf_split_range *r,
                          const mf_weighed_paths *x) {
    mf_order_path mean = {0};
    if (p->broken || leaf < 0) {
        return;
    }
    memcpy(p->leaf[leaf].range, r, (size_t)p->sizes * sizeof *r);
    if (x->count > 0 && mf_order_path_init(&mean, x->path[0].vstages, NULL) == MF_OK &&
        weigh(x, &mean)) {
        const mf_order_path was = p->leaf[leaf].mean;
        p->leaf[leaf].mean = mean;
        mean = was;
    }
    mf_order_path_clear(&mean);
}

void mf_split_proof_drop(mf_split_proof *p, int leaf) {
    if (!p->broken && leaf >= 0) {
        clear_leaf(&p->leaf[leaf]);
        p->live--;
    }
}

mf_split_proof *mf_split_proof_copy(const mf_split_proof *p) {
    mf_split_proof *copy = p->broken || p->live == 0 ? NULL : calloc(1, sizeof *copy);
    if (copy == NULL) {
        return NULL;
    }
    copy->sizes = p->sizes;
    copy->positions = p->positions;
    copy->leaf = calloc((size_t)p->live, sizeof *copy->leaf);
    copy->allocated = p->live;
    const size_t bytes = (size_t)p->sizes * sizeof *p->leaf->range;
    bool good = copy->leaf != NULL;
    for (int i = 0; i < p->count && good; i++) {
        if (p->leaf[i].range == NULL) {
            continue;
        }
        mf_split_leaf *to = &copy->leaf[copy->count++];
        to->range = malloc(bytes);
        good = to->range != NULL && mf_order_path_copy(&to->mean, &p->leaf[i].mean, NULL) == MF_OK;
        if (good) {
            memcpy(to->range, p->leaf[i].range, bytes);
        }
    }
    copy->live = copy->count;
    if (!good) {
        mf_split_proof_free(copy);
        copy = NULL;
    }
    return copy;
}

void mf_split_proof_free(mf_split_proof *p) {
    for (int i = 0; p != NULL && i < p->count; i++) {
        clear_leaf(&p->leaf[i]);
    }
    if (p != NULL) {
        free(p->leaf);
    }
    free(p);
}

/* --- another layout --------------------------------------------------------------------------- */

/* A layout's positions under a mean. */
typedef struct placing {
    const mf_partition *in;
    const mf_order_path *mean;
    const mf_split_range *range;
    double each_s[MF_MAX_VSTAGES]; /* a position of the slot that others are compared with */
    int order[MF_MAX_VSTAGES];     /* virtual stages, those where it adds least first */
} placing;

static double visit_s(const placing *x, int v, int slot) {
    const mf_partition_class *c = mf_partition_class_at(x->in, v, slot);
    double sum_s = 0.0;
    for (int p = 0; p < MF_ORDER_PARTS; p++) {
        const double n = x->mean->count[p][v];
        if (n > 0.0 || n < 0.0) {
            sum_s += n * c->least_s[p];
        }
    }
    return sum_s;
}

static bool stands(const mf_partition *in, int slot, int v) {
    return v >= in->slot[slot].v_lo && v <= in->slot[slot].v_hi;
}

/* The slot of most positions. */
static int largest_slot(const mf_partition *in) {
    int at = 0;
    for (int s = 1; s < in->slots; s++) {
        at = in->slot[s].count > in->slot[at].count ? s : at;
    }
    return at;
}

/* What positions of other slots add more than as many of the largest at least, each where that is
 * least; sets each_s. */
static double others_s(placing *x, int largest) {
    const mf_partition *in = x->in;
    double sum_s = 0.0;
    for (int v = 0; v < in->vstages; v++) {
        x->each_s[v] = stands(in, largest, v) ? visit_s(x, v, largest) : 0.0;
    }
    for (int s = 0; s < in->slots; s++) {
        double least_s = HUGE_VAL;
        for (int v = in->slot[s].v_lo; s != largest && v <= in->slot[s].v_hi; v++) {
            least_s = fmin(least_s, visit_s(x, v, s) - x->each_s[v]);
        }
        sum_s += s != largest ? in->slot[s].count * least_s : 0.0;
    }
    return sum_s;
}

static void sort(placing *x) {
    for (int v = 0; v < x->in->vstages; v++) {
        int at = v;
        for (; at > 0 && x->each_s[x->order[at - 1]] > x->each_s[v]; at--) {
            x->order[at] = x->order[at - 1];
        }
        x->order[at] = v;
    }
}

/* The least that all positions add as positions of the largest slot, within the ranges: what every
 * virtual stage holds at least, then what its stage does, then the rest, always where it adds least
 * (ranges of stages hold ranges of virtual stages, so that is optimal). HUGE_VAL: none are. */
static double place_s(placing *x) {
    const mf_partition *in = x->in;
    const mf_split_range *r = x->range;
    int n[MF_MAX_VSTAGES], held[MF_MAX_VSTAGES] = {0}, left = in->positions;
    double sum_s = 0.0;
    sort(x);
    for (int v = 0; v < in->vstages; v++) {
        n[v] = r[v].lo;
        held[mf_layout_stage_of(&in->layout, v)] += n[v];
        left -= n[v];
        sum_s += n[v] * x->each_s[v];
    }
    for (int rest = in->chunks > 1 ? 0 : 1; rest < 2; rest++) {
        for (int i = 0; i < in->vstages; i++) {
            const int v = x->order[i], p = (int)mf_layout_stage_of(&in->layout, v);
            const mf_split_range *stage = in->chunks > 1 ? &r[in->vstages + p] : &r[v];
            int more = (rest != 0 ? stage->hi : stage->lo) - held[p];
            more = r[v].hi - n[v] < more ? r[v].hi - n[v] : more;
            more = rest != 0 && left < more ? left : more;
            if (more > 0) {
                n[v] += more;
                held[p] += more;
                left -= more;
                sum_s += more * x->each_s[v];
            }
        }
    }
    return left == 0 ? sum_s : HUGE_VAL;
}

/* What a leaf's mean says of the splits in the ranges of another leaf, or its own. */
static double under_mean_s(const mf_partition *in, const mf_split_leaf *mean,
                           const mf_split_leaf *leaf, int largest) {
    placing x = {.in = in, .mean = &mean->mean, .range = leaf->range};
    *in->effort_ns += MF_PROOF_LEAF_NS * (int64_t)in->vstages;
    const double fixed_s = mf_partition_path_fixed_s(in, x.mean) + others_s(&x, largest);
    return fixed_s + place_s(&x);
}

/* The highest of what its own mean and those of leaves beside it say, which are near it in the
 * tree: a side that closed early has few multipliers. */
static double leaf_s(const mf_partition *in, const mf_split_proof *p, int i, double enough_s,
                     int largest) {
    double most_s = under_mean_s(in, &p->leaf[i], &p->leaf[i], largest);
    for (int k = 0; k < 2 * MF_PROOF_BESIDE && most_s < enough_s; k++) {
        const int at = k % 2 == 0 ? i - 1 - k / 2 : i + 1 + k / 2;
        if (at >= 0 && at < p->count) {
            most_s = fmax(most_s, under_mean_s(in, &p->leaf[at], &p->leaf[i], largest));
        }
    }
    return most_s;
}

double mf_partition_proof_s(const mf_partition *in, const mf_split_proof *p, double proven_s,
                            double enough_s) {
    const int largest = largest_slot(in);
    double bound_s = HUGE_VAL;
    if (p->broken || p->count == 0 || p->positions != in->positions ||
        p->sizes != in->vstages + (in->chunks > 1 ? in->stages : 0)) {
        return 0.0;
    }
    for (int i = 0; i < p->count; i++) {
        if (in->lost > p->leaf[i].mean.lost) {
            return 0.0;
        }
    }
    for (int i = 0; i < p->count && bound_s > proven_s; i++) {
        bound_s =
            fmin(bound_s, leaf_s(in, p, i, fmin(enough_s / MF_BOUND_SAFETY, bound_s), largest));
    }
    return bound_s > proven_s && bound_s < HUGE_VAL ? bound_s * MF_BOUND_SAFETY : 0.0;
}
