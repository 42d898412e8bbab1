/* forced_routing.c - uneven routing for benchmarks: how many choices each expert gets, whatever the
 * router's scores are. What the device holds for it is no part of the memory plan: a step of
 * training has none of it. */
#include "executor/step/exec.h"

#include <math.h>
#include <stdlib.h>

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Near the golden section, so that tokens that lie together choose different experts. */
static int64_t stride_of(int64_t tokens) {
    int64_t stride = (int64_t)(0.618 * (double)tokens) + 1;
    while (common_divisor(stride, tokens) != 1) {
        stride++;
    }
    return stride;
}

/* first[experts + 1]: each expert gets its share of the places, rounded where the sum of those
 * before it ends, but no more than one of each token; what is left goes to the next that have
 * places. load [experts]: over the balanced number. */
static void share_places(const double *load, int64_t experts, int64_t tokens, int64_t places,
                         int32_t *first) {
    double sum = 0, before = 0;
    int64_t left = places;
    for (int64_t i = 0; i < experts; i++) {
        sum += load[i];
    }
    if (!(sum > 0)) { /* a position without experts */
        return;
    }
    for (int64_t i = 0; i < experts; i++) {
        const double begin = round(before / sum * (double)places);
        before += load[i];
        const int64_t mine = (int64_t)(round(before / sum * (double)places) - begin);
        first[i] = (int32_t)(mine < tokens ? mine : tokens);
        left -= first[i];
    }
    for (int64_t i = 0; i < experts && left > 0; i++) {
        const int64_t more = tokens - first[i] < left ? tokens - first[i] : left;
        first[i] += (int32_t)more;
        left -= more;
    }
    int32_t at = 0;
    for (int64_t i = 0; i <= experts; i++) {
        const int32_t count = i < experts ? first[i] : 0;
        first[i] = at;
        at += count;
    }
}

mf_status mf_exec_force_routing(mf_exec *x, mf_err *e) {
    const mf_model *m = &x->p->model;
    const mf_layout *l = &x->p->layout;
    const int64_t positions = x->p->assignment.positions, tokens = l->mbs * l->seq;
    if (x->o.forced == NULL || m->experts == 0) {
        return MF_OK;
    }
    const size_t size_B = (size_t)(positions * (m->experts + 1)) * sizeof(int32_t);
    int32_t *first = calloc(1, size_B);
    void *memory = NULL;
    if (first == NULL) {
        return mf_err_set(e, MF_NOMEM, "executor: out of memory");
    }
    for (int64_t i = 0; i < positions; i++) {
        share_places(x->o.forced + i * m->experts, m->experts, tokens, tokens * m->top_k,
                     first + i * (m->experts + 1));
    }
    mf_status status = mf_exec_device(x)->allocate(x->device, (int64_t)size_B, &memory, e);
    x->forced = memory;
    x->env.forced_stride = stride_of(tokens);
    status = status == MF_OK ? mf_exec_put(x, x->forced, first, size_B, e) : status;
    free(first);
    return status;
}
