/* open_splits.c - the nodes of a tree over splits that are still open. */
#include "planner/splits/open_splits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(mf_open_splits *o) {
    if (o->count < o->allocated) {
        return true;
    }
    const int allocated = 2 * o->allocated + 32;
    mf_open_split *grown = realloc(o->node, (size_t)allocated * sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    o->node = grown;
    o->allocated = allocated;
    return true;
}

bool mf_open_splits_add(mf_open_splits *o, double bound, const mf_split_range *r, int ranges,
                        mf_lp_basis *basis) {
    mf_split_range *own = reserve(o) ? malloc((size_t)ranges * sizeof *own) : NULL;
    if (!own) {
        mf_lp_forget(basis);
        return false;
    }
    memcpy(own, r, (size_t)ranges * sizeof *own);
    o->node[o->count++] = (mf_open_split){bound, own, basis};
    return true;
}

int mf_open_splits_least(const mf_open_splits *o) {
    int at = o->count - 1;
    for (int i = 0; i < o->count; i++) {
        at = o->node[i].bound < o->node[at].bound ? i : at;
    }
    return at;
}

double mf_open_splits_bound(const mf_open_splits *o) {
    return o->count > 0 ? o->node[mf_open_splits_least(o)].bound : HUGE_VAL;
}

mf_open_split mf_open_splits_take(mf_open_splits *o, int at) {
    const mf_open_split x = o->node[at];
    o->node[at] = o->node[--o->count];
    return x;
}

void mf_open_splits_forget_bases(mf_open_splits *o) {
    for (int i = 0; i < o->count; i++) {
        mf_lp_forget(o->node[i].basis);
        o->node[i].basis = NULL;
    }
}

void mf_open_splits_clear(mf_open_splits *o) {
    mf_open_splits_forget_bases(o);
    for (int i = 0; i < o->count; i++) {
        free(o->node[i].range);
    }
    free(o->node);
    *o = (mf_open_splits){0};
}

void mf_split_rest_clear(mf_split_rest *rest) {
    mf_open_splits_clear(&rest->open);
    free(rest->gain);
    *rest = (mf_split_rest){0};
}
