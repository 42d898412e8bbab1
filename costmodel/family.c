/* family.c - which formula prices which kind of op. */
#include "costmodel/cost_internal.h"

const mf_family *mf_family_of(mf_op_kind kind, int variant) {
    switch (mf_op_kind_class(kind)) {
    case MF_CLASS_GEMM:
        return &mf_family_gemm;
    case MF_CLASS_GROUPED:
        return &mf_family_grouped;
    case MF_CLASS_ATTENTION:
        return kind == MF_OP_ATTENTION_BWD ? &mf_family_attention_bwd : &mf_family_attention_fwd;
    case MF_CLASS_MEMORY:
        return variant == 0 || (kind == MF_OP_SPLIT && variant == MF_VARIANT_COPY)
                   ? mf_family_memory(kind)
                   : NULL;
    case MF_CLASS_COPY:
        return variant == 0 ? &mf_family_copy : NULL;
    case MF_CLASS_COLLECTIVE:
        if (kind == MF_OP_DISPATCH || kind == MF_OP_COMBINE) {
            return variant == MF_DISPATCH_FUSED      ? &mf_family_dispatch_fused
                   : variant == MF_DISPATCH_ALLTOALL ? &mf_family_dispatch_alltoall
                                                     : NULL;
        }
        return NULL;
    case MF_CLASS_P2P:
        return NULL;
    }
    return NULL;
}

int mf_variant_of(const mf_op *op) {
    switch (mf_op_kind_class((mf_op_kind)op->kind)) {
    case MF_CLASS_GEMM:
    case MF_CLASS_GROUPED:
        return (op->math == MF_MATH_FP8 && (op->flags & MF_OPF_BLOCK_SCALED) ? MF_VARIANT_BLOCK
                                                                             : op->math) +
               (op->flags & MF_OPF_WGRAD ? MF_VARIANT_WGRAD : 0);
    case MF_CLASS_ATTENTION:
        return op->math;
    case MF_CLASS_COLLECTIVE:
        return op->kind == MF_OP_DISPATCH || op->kind == MF_OP_COMBINE
                   ? (int)op->dim[MF_OP_DIM_DISPATCHER]
                   : 0;
    case MF_CLASS_MEMORY:
        return op->kind == MF_OP_SPLIT && (op->flags & MF_SAMPLE_COPY) ? MF_VARIANT_COPY : 0;
    case MF_CLASS_COPY:
    case MF_CLASS_P2P:
        return 0;
    }
    return 0;
}
