/* point_op.c - canonical points ("gemm dtype=bf16 m=..") as ops. */
#include "costmodel/cost_internal.h"
#include "costmodel/point_mixers.h"
#include "profiles/ops_table.h"

#include <math.h>
#include <string.h>

static mf_status set_math(const mf_point *p, mf_op *op, mf_err *e) {
    static const struct {
        const char *text;
        mf_math math;
    } words[] = {{"bf16", MF_MATH_BF16},     {"fp32", MF_MATH_FP32}, {"fp8-tensor", MF_MATH_FP8},
                 {"fp8-block", MF_MATH_FP8}, {"mxfp8", MF_MATH_FP8}, {"nvfp4", MF_MATH_FP4}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (mf_point_is(p, "dtype", words[i].text)) {
            op->math = (uint8_t)words[i].math;
            bool block = mf_point_is(p, "dtype", "fp8-block") || mf_point_is(p, "dtype", "mxfp8");
            op->flags |= block ? MF_OPF_BLOCK_SCALED : 0;
            return MF_OK;
        }
    }
    return mf_err_set(e, MF_USAGE,
                      "%s: dtype must be bf16, fp32, fp8-tensor, fp8-block, mxfp8 or "
                      "nvfp4",
                      p->op);
}

static mf_status gemm_op(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e) {
    (void)c;
    op->kind = MF_OP_GEMM;
    op->dim[MF_OP_DIM_M] = mf_point_int(p, "m", 1);
    op->dim[MF_OP_DIM_N] = mf_point_int(p, "n", 1);
    op->dim[MF_OP_DIM_K] = mf_point_int(p, "k", 1);
    op->flags |= mf_point_is(p, "layout", "tn") ? MF_OPF_WGRAD : 0;
    op->pass = mf_point_is(p, "layout", "nn") ? MF_PASS_B : op->pass;
    op->flags |= mf_point_int(p, "acc", 0) ? MF_OPF_ACC_FP32 : 0;
    op->flops = 2.0 * (double)op->dim[MF_OP_DIM_M] * (double)op->dim[MF_OP_DIM_N] *
                (double)op->dim[MF_OP_DIM_K];
    return set_math(p, op, e);
}

/* The key's m is rows per expert and n, k belong to the weight, whatever the pass; the op's dims
 * are those of the pass's product, with the rows of all experts. */
static mf_status grouped_op(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e) {
    (void)c;
    int64_t experts = mf_point_int(p, "experts", 1);
    int64_t n = mf_point_int(p, "n", 1), k = mf_point_int(p, "k", 1);
    if ((double)mf_point_int(p, "m", 1) * (double)experts > 9007199254740992.0) {
        return mf_err_set(e, MF_USAGE, "grouped_gemm: experts x m must not exceed 2^53");
    }
    int64_t rows = mf_point_int(p, "m", 1) * experts;
    bool dgrad = mf_point_is(p, "pass", "dgrad"), wgrad = mf_point_is(p, "pass", "wgrad");
    op->kind = MF_OP_GROUPED_GEMM;
    op->dim[MF_OP_DIM_M] = wgrad ? n : rows;
    op->dim[MF_OP_DIM_N] = wgrad || dgrad ? k : n;
    op->dim[MF_OP_DIM_K] = wgrad ? rows : dgrad ? n : k;
    op->dim[MF_OP_DIM_GROUPS] = experts;
    op->flags |= wgrad ? MF_OPF_WGRAD : 0;
    op->pass = dgrad ? MF_PASS_B : op->pass;
    op->flags |= mf_point_int(p, "acc", 0) ? MF_OPF_ACC_FP32 : 0;
    op->flops = 2.0 * (double)rows * (double)n * (double)k;
    return set_math(p, op, e);
}

/* dims as those of the weight gradients above. */
static mf_status first_wgrad_op(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e) {
    (void)c;
    const int64_t experts = mf_point_int(p, "experts", 0), m = mf_point_int(p, "m", 1);
    const int64_t groups = experts > 0 ? experts : 1;
    if ((double)m * (double)groups > 9007199254740992.0) {
        return mf_err_set(e, MF_USAGE, "first_wgrad: experts x m must not exceed 2^53");
    }
    op->kind = experts > 0 ? MF_OP_GROUPED_GEMM : MF_OP_GEMM;
    op->dim[MF_OP_DIM_M] = mf_point_int(p, "n", 1);
    op->dim[MF_OP_DIM_N] = mf_point_int(p, "k", 1);
    op->dim[MF_OP_DIM_K] = m * groups;
    op->dim[MF_OP_DIM_GROUPS] = experts;
    op->flags |= MF_OPF_WGRAD | MF_OPF_ACC_FP32 | MF_OPF_ANEW;
    op->flops = 2.0 * (double)op->dim[MF_OP_DIM_M] * (double)op->dim[MF_OP_DIM_N] *
                (double)op->dim[MF_OP_DIM_K];
    return set_math(p, op, e);
}

static mf_status attention_op(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e) {
    (void)c;
    bool backward = mf_point_is(p, "pass", "bwd");
    op->kind = backward ? MF_OP_ATTENTION_BWD : MF_OP_ATTENTION_FWD;
    op->dim[MF_OP_DIM_BATCH] = mf_point_int(p, "b", 1);
    op->dim[MF_OP_DIM_HEADS] = mf_point_int(p, "h", 1);
    op->dim[MF_OP_DIM_KV_HEADS] = mf_point_int(p, "hkv", op->dim[MF_OP_DIM_HEADS]);
    op->dim[MF_OP_DIM_SEQ_Q] = mf_point_int(p, "s", 1);
    op->dim[MF_OP_DIM_SEQ_K] = mf_point_int(p, "skv", op->dim[MF_OP_DIM_SEQ_Q]);
    op->dim[MF_OP_DIM_D_QK] = mf_point_int(p, "dqk", 1);
    op->dim[MF_OP_DIM_D_V] = mf_point_int(p, "dv", op->dim[MF_OP_DIM_D_QK]);
    op->dim[MF_OP_DIM_WINDOW] = mf_point_int(p, "window", 0);
    op->flags |= mf_point_int(p, "causal", 1) ? MF_OPF_CAUSAL : 0;
    if (op->dim[MF_OP_DIM_SEQ_K] < op->dim[MF_OP_DIM_SEQ_Q] && (op->flags & MF_OPF_CAUSAL)) {
        return mf_err_set(e, MF_USAGE, "attention: causal=1 needs skv >= s, got skv=%lld s=%lld",
                          (long long)op->dim[MF_OP_DIM_SEQ_K], (long long)op->dim[MF_OP_DIM_SEQ_Q]);
    }
    op->flags |= backward && mf_point_is(p, "impl", "moefold") ? MF_OPF_KEPT : 0;
    double pairs =
        mf_attention_keys(op) * (double)op->dim[MF_OP_DIM_BATCH] * (double)op->dim[MF_OP_DIM_HEADS];
    op->flops = 2 * pairs * (double)(op->dim[MF_OP_DIM_D_QK] + op->dim[MF_OP_DIM_D_V]);
    op->flops *= backward ? 2.5 : 1; /* five products instead of two */
    return set_math(p, op, e);
}

/* Rows are those of the mean length; FLOPs, and the keys that the last query sees, those of all. */
static mf_status packed_op(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e) {
    (void)c;
    const bool backward = mf_point_is(p, "pass", "bwd");
    const int64_t count = mf_point_int(p, "b", 1), mean = mf_point_int(p, "s", 1),
                  vary = mf_point_int(p, "vary", 0);
    double keys = 0;
    if (vary > 100 || count > 1 << 20) {
        return mf_err_set(e, MF_USAGE,
                          "attention_packed: vary must not exceed 100, b not 2^20, got vary=%lld "
                          "b=%lld",
                          (long long)vary, (long long)count);
    }
    op->kind = backward ? MF_OP_ATTENTION_BWD : MF_OP_ATTENTION_FWD;
    op->flags |= MF_OPF_PACKED | (mf_point_int(p, "causal", 1) ? MF_OPF_CAUSAL : 0);
    op->dim[MF_OP_DIM_BATCH] = count;
    op->dim[MF_OP_DIM_HEADS] = mf_point_int(p, "h", 1);
    op->dim[MF_OP_DIM_KV_HEADS] = mf_point_int(p, "hkv", op->dim[MF_OP_DIM_HEADS]);
    op->dim[MF_OP_DIM_D_QK] = mf_point_int(p, "dqk", 1);
    op->dim[MF_OP_DIM_D_V] = mf_point_int(p, "dv", op->dim[MF_OP_DIM_D_QK]);
    op->dim[MF_OP_DIM_WINDOW] = mf_point_int(p, "window", 0);
    for (int64_t i = 0; i < count; i++) {
        op->dim[MF_OP_DIM_SEQ_Q] = op->dim[MF_OP_DIM_SEQ_K] =
            mf_op_packed_length(mean, vary, count, i);
        keys += mf_attention_keys(op);
    }
    op->dim[MF_OP_DIM_SEQ_Q] = mean; /* SEQ_K: the last is the longest */
    op->flops = 2 * keys * (double)op->dim[MF_OP_DIM_HEADS] *
                (double)(op->dim[MF_OP_DIM_D_QK] + op->dim[MF_OP_DIM_D_V]) * (backward ? 2.5 : 1);
    return set_math(p, op, e);
}

static mf_status memory_op(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e) {
    (void)c;
    const mf_point_dim *name = mf_point_find(p, "op");
    op->bytes = (double)mf_point_int(p, "bytes", 1);
    for (int k = 0; k < MF_OP_COUNT && name != NULL; k++) {
        if (mf_op_kind_class((mf_op_kind)k) == MF_CLASS_MEMORY &&
            strcmp(mf_op_text((mf_op_kind)k), name->text) == 0) {
            op->kind = (uint8_t)k;
            return MF_OK;
        }
    }
    return mf_err_set(e, MF_USAGE,
                      "memory: op=%s is no memory-bound op of a step program (such as "
                      "rmsnorm_fwd, swiglu_fwd, permute, adamw)",
                      name != NULL ? name->text : "");
}

/* A copy on the device reads its bytes and writes them, as slices and concatenations do. */
static mf_status copy_op(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e) {
    (void)c;
    (void)e;
    double bytes = (double)mf_point_int(p, "bytes", 1);
    op->kind = strcmp(p->op, "copy_h2d") == 0   ? MF_OP_COPY_H2D
               : strcmp(p->op, "copy_d2h") == 0 ? MF_OP_COPY_D2H
                                                : MF_OP_SPLIT;
    op->bytes = op->kind == MF_OP_SPLIT ? 2 * bytes : bytes;
    op->flags |= op->kind == MF_OP_SPLIT ? MF_SAMPLE_COPY : 0;
    return MF_OK;
}

/* ranks over nodes hosts: that many per host, the hosts one after the other. */
static mf_status set_shape(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e) {
    int64_t ranks = mf_point_int(p, "ranks", 1), nodes = mf_point_int(p, "nodes", 1), stride = 1;
    if (nodes < 1 || nodes > ranks || ranks % nodes != 0) {
        return mf_err_set(e, MF_USAGE, "%s: nodes must divide ranks, got ranks=%lld nodes=%lld",
                          p->op, (long long)ranks, (long long)nodes);
    }
    if (nodes > 1 && ranks / nodes < c->gpus_per_node) {
        stride = c->gpus_per_node / (ranks / nodes);
    }
    op->shape = (mf_group_shape){ranks, stride};
    return MF_OK;
}

static mf_status collective_op(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e) {
    static const mf_op_kind kinds[] = {MF_OP_ALL_REDUCE, MF_OP_ALL_GATHER, MF_OP_REDUCE_SCATTER,
                                       MF_OP_ALL_TO_ALL, MF_OP_SEND_RECV};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(mf_op_text(kinds[i]), p->op) == 0) {
            op->kind = (uint8_t)kinds[i];
        }
    }
    op->group = MF_GROUP_WORLD;
    op->bytes = (double)mf_point_int(p, "bytes", 1);
    return set_shape(p, c, op, e);
}

static mf_status dispatch_op(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e) {
    op->kind = strcmp(p->op, "combine") == 0 ? MF_OP_COMBINE : MF_OP_DISPATCH;
    op->group = MF_GROUP_EP;
    mf_status st = set_math(p, op, e);
    if (st != MF_OK) {
        return st;
    }
    op->dim[MF_OP_DIM_TOKENS] = mf_point_int(p, "tokens", 1);
    op->dim[MF_OP_DIM_ROW_B] =
        (int64_t)ceil((double)mf_point_int(p, "hidden", 1) * mf_math_element_B(op->math));
    op->dim[MF_OP_DIM_TOP_K] = mf_point_int(p, "topk", 1);
    op->dim[MF_OP_DIM_EXPERTS] = mf_point_int(p, "experts", 1);
    op->dim[MF_OP_DIM_DISPATCHER] = mf_point_is(p, "impl", "allgather")  ? MF_DISPATCH_ALLGATHER
                                    : mf_point_is(p, "impl", "alltoall") ? MF_DISPATCH_ALLTOALL
                                                                         : MF_DISPATCH_FUSED;
    if (op->dim[MF_OP_DIM_TOP_K] > op->dim[MF_OP_DIM_EXPERTS]) {
        return mf_err_set(e, MF_USAGE, "%s: topk=%lld of experts=%lld", p->op,
                          (long long)op->dim[MF_OP_DIM_TOP_K],
                          (long long)op->dim[MF_OP_DIM_EXPERTS]);
    }
    /* 256 experts, 8 of them: DeepSeek-V3, whose router reaches 4 of 8 groups. The published times
     * on 64 H100 exceed the network without that limit. */
    op->dim[MF_OP_DIM_GROUPS_MAX] =
        op->dim[MF_OP_DIM_EXPERTS] == 256 && op->dim[MF_OP_DIM_TOP_K] == 8 ? 4 : 0;
    op->bytes = (double)op->dim[MF_OP_DIM_TOKENS] * (double)op->dim[MF_OP_DIM_TOP_K] *
                (double)op->dim[MF_OP_DIM_ROW_B] * (double)mf_point_int(p, "skew", 100) / 100;
    return set_shape(p, c, op, e);
}

static const struct point_ops {
    const char *name;
    mf_status (*make)(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e);
} point_kinds[] = {
    {"gemm", gemm_op},
    {"grouped_gemm", grouped_op},
    {"first_wgrad", first_wgrad_op},
    {"attention", attention_op},
    {"attention_packed", packed_op},
    {"conv", mf_point_conv},
    {"scan", mf_point_scan},
    {"index", mf_point_index},
    {"memory", memory_op},
    {"copy", copy_op},
    {"copy_h2d", copy_op},
    {"copy_d2h", copy_op},
    {"all_reduce", collective_op},
    {"all_gather", collective_op},
    {"reduce_scatter", collective_op},
    {"all_to_all", collective_op},
    {"send_recv", collective_op},
    {"dispatch", dispatch_op},
    {"combine", dispatch_op},
};

mf_status mf_cost_point_op(const mf_point *p, const mf_cluster *c, mf_op *out, mf_err *e) {
    *out = (mf_op){.group = MF_GROUP_NONE, .math = MF_MATH_BF16, .forward = -1, .name = ""};
    for (size_t i = 0; i < sizeof point_kinds / sizeof point_kinds[0]; i++) {
        if (strcmp(point_kinds[i].name, p->op) == 0) {
            return point_kinds[i].make(p, c, out, e);
        }
    }
    return mf_err_set(e, MF_USAGE, "\"%s\" is measured but has no price of its own", p->op);
}
