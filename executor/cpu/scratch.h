/* scratch.h - private to the CPU's device. */
#ifndef MF_EXECUTOR_CPU_SCRATCH_H
#define MF_EXECUTOR_CPU_SCRATCH_H

#include "core/program/lower.h"

/* Bytes that an op of this layout can need beside its operands. */
size_t mf_cpu_scratch_B(const mf_block *b, const mf_op *op, const mf_layout *l, const mf_model *m);

#endif
