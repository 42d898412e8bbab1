/* scratch.c - the scratch of reference kernels, as core/memory/memory_inputs.c plans it. */
#include "executor/cpu/scratch.h"

size_t mf_cpu_scratch_B(const mf_block *b, const mf_op *op, const mf_layout *l, const mf_model *m) {
    size_t widest = 0, rows = (size_t)(l->mbs * l->seq), k = (size_t)m->top_k;
    size_t experts = (size_t)m->experts;
    for (int i = 0; i < op->nin + op->nout; i++) {
        const mf_tensor *t = &b->tensors[i < op->nin ? op->in[i] : op->out[i - op->nin]];
        if (t->class != MF_TENSOR_WEIGHT && t->class != MF_TENSOR_GRADIENT &&
            (size_t)t->bytes > widest) {
            widest = (size_t)t->bytes;
        }
    }
    size_t attention = rows * (size_t)(m->head_dim + m->v_head_dim) * 8 + 4096;
    size_t router = rows * (experts + 2 * k + 2) * 4 + 2 * (size_t)l->mbs * experts * 4;
    size_t drop = rows * 4 * k * 4;
    return attention + (router > drop ? router : drop) + 8 * MF_ALIGN_B + 4 * widest + 4096;
}
