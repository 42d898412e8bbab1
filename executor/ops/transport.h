/* transport.h - private to the ops that move rows between ranks. */
#ifndef MF_EXECUTOR_OPS_TRANSPORT_H
#define MF_EXECUTOR_OPS_TRANSPORT_H

#include "executor/ops/ops.h"

mf_comm_type mf_ops_type(const mf_exec_tensor *t);
size_t mf_ops_row_B(const mf_exec_tensor *t);
/* The communicator's group of an op. */
mf_group_kind mf_ops_group(const mf_exec_op *x);
/* Rows of a map from `rows` on have no choices. */
mf_status mf_ops_no_choices_after(const mf_exec_op *x, const mf_exec_tensor *map, int64_t rows,
                                  mf_err *e);
/* window.c: a fused dispatcher's exchanges, where env->window is there. */
mf_status mf_ops_window_dispatch(const mf_exec_op *x, mf_err *e);
mf_status mf_ops_window_combine(const mf_exec_op *x, mf_err *e);

#endif
