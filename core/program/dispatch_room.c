/* dispatch_room.c - bytes that a fused dispatcher keeps. */
#include "core/program/dispatch_room.h"

#include "core/program/row_map.h"

#include <string.h>

static bool has_window(const mf_layout *l, const mf_cluster *c, const mf_block *b,
                       const mf_op *op) {
    const mf_group_shape ep = mf_layout_group(l, MF_GROUP_EP);
    const mf_tensor *rows = &b->tensors[op->kind == MF_OP_DISPATCH ? op->out[0] : op->in[0]];
    const int64_t slots = ep.size * op->dim[MF_OP_DIM_TOKENS] * op->dim[MF_OP_DIM_TOP_K];
    return op->dim[MF_OP_DIM_DISPATCHER] == MF_DISPATCH_FUSED &&
           (l->traits | l->software_traits) == 0 && c != NULL && !mf_cluster_is_cpu(c) &&
           (ep.size - 1) * ep.stride < c->domain_gpus_used && ep.size > 1 &&
           ep.size <= MF_WINDOW_RANKS_MAX && op->dim[MF_OP_DIM_TOP_K] <= MF_WINDOW_TOP_K_MAX &&
           rows->element_B == 2.0 && rows->cols % 8 == 0 && slots <= INT32_MAX;
}

/* A part of a window. */
static int64_t aligned(int64_t size_B) {
    return (size_B + 255) / 256 * 256;
}

mf_dispatch_room mf_dispatch_room_of(const mf_layout *l, const mf_cluster *c, const mf_block *b,
                                     const mf_op *op) {
    mf_dispatch_room r;
    memset(&r, 0, sizeof r);
    if (!has_window(l, c, b, op)) {
        return r;
    }
    const mf_tensor *arrived = &b->tensors[op->kind == MF_OP_DISPATCH ? op->out[0] : op->in[0]];
    const int64_t own = op->dim[MF_OP_DIM_TOKENS], tokens = l->ep * own;
    const int64_t slots = tokens * op->dim[MF_OP_DIM_TOP_K];
    const int64_t rows = l->ep * mf_layout_slot_rows(l, arrived->rows);
    r.window_B = aligned(2 * tokens * arrived->cols) + 2 * aligned(4 * slots) +
                 aligned(4 * own * op->dim[MF_OP_DIM_TOP_K]) + 256;
    r.map_B = mf_align_B(4 * mf_row_map_elements(1, rows, tokens));
    r.local_B = r.back_B = mf_align_B(4 * slots);
    r.side_B = r.map_B + r.local_B;
    r.sides = l->schedule == MF_SCHED_MERGED ? 2 : 1;
    return r;
}

int64_t mf_dispatch_kept_B(const mf_dispatch_room *r) {
    return r->sides * r->side_B + r->back_B;
}

int64_t mf_dispatch_room_B(const mf_dispatch_room *r) {
    return mf_align_B(r->window_B) + mf_dispatch_kept_B(r);
}
