/* scratch.h - sizes the scratch memory of a GPU's kernels. It does not include CUDA, so tests can
 * compare it with what the kernels need where there is no toolkit. */
#ifndef MF_EXECUTOR_CUDA_SCRATCH_H
#define MF_EXECUTOR_CUDA_SCRATCH_H

#include "core/program/lower.h"

/* Bytes that an op of this layout can need besides its operands. */
size_t mf_cuda_scratch_B(const mf_block *b, const mf_op *op, const mf_layout *l, const mf_model *m);

#endif
