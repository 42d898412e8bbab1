/* scratch.h - what a GPU's kernels work in. It knows no CUDA: tests hold it against what kernels
 * ask for where there is no toolkit. */
#ifndef MF_EXECUTOR_CUDA_SCRATCH_H
#define MF_EXECUTOR_CUDA_SCRATCH_H

#include "core/program/lower.h"

/* Bytes that an op of this layout can need beside its operands. */
size_t mf_cuda_scratch_B(const mf_block *b, const mf_op *op, const mf_layout *l, const mf_model *m);

#endif
