/* dispatch_memory.c - bytes that a fused dispatcher keeps. */
#include "core/program/dispatch_memory.h"

#include "core/program/row_map.h"

#include <math.h>
#include <string.h>

bool mf_dispatch_has_window(const mf_layout *l, const mf_cluster *c, const mf_routed_shape *s) {
    const mf_group_shape ep = mf_layout_group(l, MF_GROUP_EP);
    return l->dispatcher == MF_DISPATCH_FUSED && (l->traits | l->software_traits) == 0 &&
           c != NULL && !mf_cluster_is_cpu(c) && (ep.size - 1) * ep.stride < c->domain_gpus_used &&
           ep.size > 1 && ep.size <= MF_WINDOW_RANKS_MAX && s->top_k <= MF_WINDOW_TOP_K_MAX &&
           s->element_B == 2.0 && s->cols % 8 == 0 && ep.size * s->tokens * s->top_k <= INT32_MAX;
}

bool mf_dispatch_orders(const mf_layout *l, const mf_cluster *c, const mf_routed_shape *s) {
    const bool on_cpu = c != NULL && mf_cluster_is_cpu(c) && l->ep > 1 &&
                        l->dispatcher == MF_DISPATCH_FUSED && (l->traits | l->software_traits) == 0;
    return l->etp == 1 && (on_cpu || mf_dispatch_has_window(l, c, s));
}

/* Expected number of distinct EP ranks that a token with top_k of experts spread evenly reaches. */
static double distinct_ranks(const mf_model *m, int64_t ep) {
    double n = (double)ep, k = (double)m->top_k;
    if (m->n_group > 1 && m->topk_group > 0 && m->topk_group < m->n_group) {
        double reachable = n * (double)m->topk_group / (double)m->n_group;
        n = reachable > 1.0 ? reachable : 1.0;
    }
    return n * (1.0 - pow(1.0 - 1.0 / n, k));
}

int64_t mf_dispatch_arriving(const mf_model *m, const mf_layout *l, int64_t tokens) {
    return (int64_t)ceil((double)tokens * distinct_ranks(m, l->ep));
}

/* A part of a window. */
static int64_t aligned(int64_t size_B) {
    return (size_B + 255) / 256 * 256;
}

mf_dispatch_memory mf_dispatch_memory_of(const mf_layout *l, const mf_cluster *c, const mf_block *b,
                                         const mf_op *op) {
    mf_dispatch_memory r;
    const mf_tensor *there = &b->tensors[op->kind == MF_OP_DISPATCH ? op->out[0] : op->in[0]];
    const int64_t own = op->dim[MF_OP_DIM_TOKENS], top_k = op->dim[MF_OP_DIM_TOP_K];
    const mf_routed_shape shape = {own, top_k, there->cols, there->element_B};
    memset(&r, 0, sizeof r);
    if (!mf_dispatch_has_window(l, c, &shape)) {
        return r;
    }
    const int64_t tokens = l->ep * own, slots = tokens * top_k;
    const int64_t rows = l->ep * mf_layout_slot_rows(l, there->rows);
    const bool ordered = op->dim[MF_OP_DIM_ORDERED] > 0;
    r.window_B =
        aligned(2 * tokens * there->cols) + 2 * aligned(4 * slots) + aligned(4 * own * top_k) + 256;
    r.map_B = ordered ? 0 : mf_align_B(4 * mf_row_map_elements(1, rows, tokens));
    r.local_B = r.back_B = mf_align_B(4 * slots);
    r.side_B = r.map_B + r.local_B;
    r.sides = mf_layout_merges(l) ? 2 : 1;
    return r;
}

int64_t mf_dispatch_kept_B(const mf_dispatch_memory *r) {
    return r->sides * r->side_B + r->back_B;
}

int64_t mf_dispatch_memory_B(const mf_dispatch_memory *r) {
    return mf_align_B(r->window_B) + mf_dispatch_kept_B(r);
}
