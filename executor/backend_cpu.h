/* backend_cpu.h - private to the CPU backend: its op functions by file. */
#ifndef MF_EXECUTOR_BACKEND_CPU_H
#define MF_EXECUTOR_BACKEND_CPU_H

#include "executor/backend.h"

mf_status mf_cpu_rmsnorm(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_rmsnorm_grad(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_norm_sum(const mf_exec_op *x, mf_err *e);

mf_status mf_cpu_attention(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_attention_grad(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_attention_merge(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_rope(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_rope_grad(const mf_exec_op *x, mf_err *e);

mf_status mf_cpu_router(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_router_grad(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_router_drop(const mf_exec_op *x, mf_err *e);
/* Bytes of scratch that they need. */
size_t mf_cpu_router_scratch_B(const mf_layout *l, const mf_model *m);
mf_status mf_cpu_permute(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_unpermute(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_grouped_gemm(const mf_exec_op *x, mf_err *e);
/* The bias of the experts' row-parallel product is added, and its gradient taken, by the first ETP
 * rank alone. */
bool mf_cpu_skips_expert_bias(const mf_exec_op *x);
mf_status mf_cpu_swiglu(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_swiglu_grad(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_gate(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_gate_grad(const mf_exec_op *x, mf_err *e);

mf_status mf_cpu_all_reduce(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_all_gather(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_reduce_scatter(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_all_to_all(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_dispatch(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_combine(const mf_exec_op *x, mf_err *e);
mf_status mf_cpu_send_recv(const mf_exec_op *x, mf_err *e);

/* out = sum (when there is one) or zero, over all of its rows. True when there was a sum. */
bool mf_cpu_begin(const mf_exec_op *x, int k);
/* out += sum, for ops that wrote their own part. */
mf_status mf_cpu_add_sum(const mf_exec_op *x, int k, mf_err *e);
/* dst[r, 0..cols) = src[r, 0..cols); strides in elements. */
mf_status mf_cpu_copy(mf_kernel_dtype d, int64_t rows, int64_t cols, const void *src,
                      int64_t src_stride, void *dst, int64_t dst_stride, mf_err *e);
/* Element i of a tensor's memory. */
void *mf_cpu_at(const mf_exec_tensor *t, int64_t i);
/* Row maps of a routed product and its gradients: the last operand. */
mf_row_map mf_cpu_row_map(const mf_exec_op *x, int64_t experts);

#endif
