/* router_choices.c - reference of what is done with the router's choices. */
#include "kernels/moe/router_choices.h"

#include <assert.h>

mf_status mf_kernel_router_force_choices(const mf_kernel_router_force *a, mf_err *e) {
    (void)e;
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t at = a->first_row + r, token = at / a->run * a->seq + a->position[at];
        for (int64_t j = 0; j < a->top_k; j++) {
            a->index[r * a->top_k + j] = mf_router_forced(a, token, j);
        }
    }
    return MF_OK;
}

/* What load has seen, as a mean over as many choices as there are here. */
static void count_globally(const mf_kernel_router_count *a) {
    double seen = 0.0, slots = (double)(a->rows * a->top_k);
    for (int64_t i = 0; i < a->experts; i++) {
        seen += (double)a->load[i];
    }
    for (int64_t i = 0; i < a->experts; i++) {
        a->count[i] = seen > 0.0 ? (float)((double)a->load[i] * slots / seen) : 0.0f;
    }
}

mf_status mf_kernel_router_count_choices(const mf_kernel_router_count *a, mf_err *e) {
    (void)e;
    assert(!a->global || (a->load != NULL && a->scopes == 1));
    bool by_scope = a->count != NULL && !a->global;
    for (int64_t i = 0; by_scope && i < a->scopes * a->experts; i++) {
        a->count[i] = 0.0f;
    }
    for (int64_t i = 0; i < a->rows * a->top_k; i++) {
        int64_t x = a->index[i], scope = a->scope ? a->scope[i / a->top_k] : 0;
        assert(x < a->experts && scope >= 0 && scope < a->scopes);
        if (x >= 0 && a->load) {
            a->load[x] += 1.0f;
        }
        if (x >= 0 && by_scope) {
            a->count[scope * a->experts + x] += 1.0f;
        }
    }
    if (a->count && a->global) {
        count_globally(a);
    }
    return MF_OK;
}

mf_status mf_kernel_router_place_rows(const mf_kernel_router_place *a, mf_err *e) {
    (void)e;
    const size_t row_B = (size_t)a->top_k * 4;
    for (int64_t r = 0; r < a->rows; r++) {
        const size_t place = (size_t)a->place[a->back ? a->first + r : r], row = (size_t)r;
        const size_t from = a->back ? place : row, to = a->back ? row : place;
        memcpy((char *)a->dst + to * row_B, (const char *)a->src + from * row_B, row_B);
    }
    return MF_OK;
}

mf_status mf_kernel_router_keep_values(const mf_kernel_router_keep *a, mf_err *e) {
    (void)e;
    for (int64_t i = 0; i < a->count; i++) {
        a->out[i] = a->kept[i] >= 0 ? a->prob[i] : 0.0f;
    }
    return MF_OK;
}
