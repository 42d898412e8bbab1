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
/* order.c: the choices of tokens and a map that gives each a row. Rows form one run for each
 * expert, or one slot of rank_rows rows for each rank. */
typedef struct mf_ops_order {
    mf_row_map map;
    int64_t tokens, choices;
    int64_t least, ranks, rank_rows; /* of mf_kernel_permute_map */
    bool sparse;                     /* of mf_kernel_permute */
} mf_ops_order;
/* Makes the map, by the expert of each slot; workspace: mf_permute_places_B. */
mf_status mf_ops_order_find(const mf_exec_op *x, const mf_ops_order *o, const int32_t *index,
                            void *workspace, mf_err *e);
/* Copies rows of tokens and values of choices to the rows of the map; leaves rows after the last
 * unchanged. */
mf_status mf_ops_order_rows(const mf_exec_op *x, const mf_ops_order *o, const void *from,
                            const mf_exec_tensor *to, mf_err *e);
mf_status mf_ops_order_values(const mf_exec_op *x, const mf_ops_order *o, const float *from,
                              float *to, mf_err *e);
/* The inverse: the sum of a token's rows, the value of a choice; 0 where it has no row. */
mf_status mf_ops_leave_order(const mf_exec_op *x, const mf_ops_order *o, const mf_exec_tensor *from,
                             void *to, mf_err *e);
mf_status mf_ops_leave_order_values(const mf_exec_op *x, const mf_ops_order *o, const float *from,
                                    float *to, mf_err *e);
/* The order that a dispatch makes and later exchanges of its layer go by (MF_OP_DIM_ORDERED): of
 * the choices of `tokens` tokens that came. map: the row map; rows: of its tensor of rows. */
mf_ops_order mf_ops_order_of(const mf_exec_op *x, const mf_exec_tensor *map, int64_t rows,
                             int64_t tokens);

/* window.c: a fused dispatcher's exchanges, where env->window is there. */
mf_status mf_ops_window_dispatch(const mf_exec_op *x, mf_err *e);
mf_status mf_ops_window_combine(const mf_exec_op *x, mf_err *e);

#endif
