/* random_op.h - random ops of every kind and size, for properties of prices. */
#ifndef MF_TESTS_RANDOM_OP_H
#define MF_TESTS_RANDOM_OP_H

#include "costmodel/cost_internal.h"

#include <math.h>

static inline uint64_t next(uint64_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    return *s ^= *s << 17;
}
static inline int64_t between(uint64_t *s, int64_t lo, int64_t hi) {
    return lo + (int64_t)(next(s) % (uint64_t)(hi - lo + 1));
}
/* Log-uniform whole number. */
static inline int64_t sized(uint64_t *s, double lo, double hi) {
    double u = (double)(next(s) >> 11) / 9007199254740992.0;
    return (int64_t)(lo * exp(u * log(hi / lo)));
}

static inline mf_op random_op(uint64_t *s) {
    mf_op op = {.kind = (uint8_t)between(s, 0, MF_OP_COUNT - 1),
                .math = (uint8_t)between(s, 0, MF_MATH_COUNT - 1),
                .name = ""};
    op.bytes = (double)sized(s, 1, 1e11);
    op.shape = (mf_group_shape){sized(s, 1, 4096), (int64_t)1 << between(s, 0, 9)};
    switch (mf_op_kind_class((mf_op_kind)op.kind)) {
    case MF_CLASS_GEMM:
    case MF_CLASS_GROUPED:
        op.dim[MF_OP_DIM_M] = sized(s, 1, 1e6);
        op.dim[MF_OP_DIM_N] = sized(s, 1, 2e5);
        op.dim[MF_OP_DIM_K] = sized(s, 1, 2e5);
        op.dim[MF_OP_DIM_GROUPS] = between(s, 1, 64);
        op.flags = (uint8_t)(between(s, 0, 1) ? MF_OPF_WGRAD | MF_OPF_ACC_FP32 : 0);
        op.flops = 2.0 * (double)op.dim[MF_OP_DIM_M] * (double)op.dim[MF_OP_DIM_N] *
                   (double)op.dim[MF_OP_DIM_K];
        break;
    case MF_CLASS_ATTENTION: {
        op.dim[MF_OP_DIM_BATCH] = between(s, 1, 8);
        op.dim[MF_OP_DIM_HEADS] = between(s, 1, 128);
        op.dim[MF_OP_DIM_KV_HEADS] = between(s, 1, op.dim[MF_OP_DIM_HEADS]);
        op.dim[MF_OP_DIM_SEQ_K] = sized(s, 1, 262144);
        op.dim[MF_OP_DIM_SEQ_Q] = between(s, 1, op.dim[MF_OP_DIM_SEQ_K]);
        op.dim[MF_OP_DIM_D_QK] = 64 * between(s, 1, 4);
        op.dim[MF_OP_DIM_D_V] = 64 * between(s, 1, 4);
        op.dim[MF_OP_DIM_WINDOW] = between(s, 0, 3) ? 0 : sized(s, 1, 8192);
        op.flags = (uint8_t)(between(s, 0, 1) ? MF_OPF_CAUSAL : 0);
        double pairs = mf_attention_keys(&op) * (double)op.dim[MF_OP_DIM_BATCH] *
                       (double)op.dim[MF_OP_DIM_HEADS];
        op.flops = 2 * pairs * (double)(op.dim[MF_OP_DIM_D_QK] + op.dim[MF_OP_DIM_D_V]);
        op.flops *= op.kind == MF_OP_ATTENTION_BWD ? 2.5 : 1;
        break;
    }
    case MF_CLASS_COLLECTIVE:
        if (op.kind == MF_OP_DISPATCH || op.kind == MF_OP_COMBINE) {
            op.dim[MF_OP_DIM_TOKENS] = sized(s, 1, 65536);
            op.dim[MF_OP_DIM_ROW_B] = sized(s, 64, 20000);
            op.dim[MF_OP_DIM_EXPERTS] = (int64_t)8 << between(s, 0, 6);
            op.dim[MF_OP_DIM_TOP_K] = between(s, 1, 8);
            op.dim[MF_OP_DIM_DISPATCHER] = between(s, 0, MF_DISPATCH_COUNT - 1);
            op.dim[MF_OP_DIM_GROUPS_MAX] = between(s, 0, 1) * between(s, 1, 8);
            op.shape.size = (int64_t)1 << between(s, 0, 6);
            op.bytes = (double)(op.dim[MF_OP_DIM_TOKENS] * op.dim[MF_OP_DIM_ROW_B] *
                                op.dim[MF_OP_DIM_TOP_K]);
        }
        break;
    case MF_CLASS_COPY:
        op.dim[MF_OP_DIM_GPUS] = op.shape.size % 12;
        break;
    case MF_CLASS_MEMORY:
    case MF_CLASS_P2P:
        break;
    }
    return op;
}

#endif
