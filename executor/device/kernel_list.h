/* kernel_list.h - the kernels that a device has, one a line: X(entry of the table, arguments, name
 * of the reference); the CUDA function has that name and `_cuda` behind it (kernels/kernel.h).
 */
#ifndef MF_EXECUTOR_KERNEL_LIST_H
#define MF_EXECUTOR_KERNEL_LIST_H

#include "core/program/lower.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_merge.h"
#include "kernels/attention/mla_rope.h"
#include "kernels/attention/output_gate.h"
#include "kernels/attention/rope_split.h"
#include "kernels/gemm/gemm.h"
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "kernels/moe/exchange.h"
#include "kernels/moe/gate.h"
#include "kernels/moe/permute.h"
#include "kernels/moe/router.h"
#include "kernels/moe/router_choices.h"
#include "kernels/moe/swiglu.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/grad_norm.h"
#include "kernels/optimizer/update.h"
#include "kernels/rows/bias.h"
#include "kernels/rows/cast.h"
#include "kernels/rows/cross_entropy.h"
#include "kernels/rows/embedding.h"
#include "kernels/rows/layernorm.h"
#include "kernels/rows/norm_split.h"
#include "kernels/rows/normal.h"
#include "kernels/rows/rmsnorm.h"

#define MF_KERNEL_LIST(X)                                                                          \
    X(copy_rows, mf_kernel_copy_rows, mf_kernel_copy_rows_strided)                                 \
    X(add, mf_kernel_add, mf_kernel_add_values)                                                    \
    X(cast, mf_kernel_cast, mf_kernel_cast_values)                                                 \
    X(normal, mf_kernel_normal, mf_kernel_normal_values)                                           \
    X(embedding, mf_kernel_embedding, mf_kernel_embedding_forward)                                 \
    X(embedding_grad, mf_kernel_embedding_grad, mf_kernel_embedding_backward)                      \
    X(rmsnorm, mf_kernel_rmsnorm, mf_kernel_rmsnorm_forward)                                       \
    X(rmsnorm_grad, mf_kernel_rmsnorm_grad, mf_kernel_rmsnorm_backward)                            \
    X(layernorm, mf_kernel_layernorm, mf_kernel_layernorm_forward)                                 \
    X(layernorm_grad, mf_kernel_layernorm_grad, mf_kernel_layernorm_backward)                      \
    X(norm_square, mf_kernel_norm_split, mf_kernel_norm_split_square)                              \
    X(norm_split, mf_kernel_norm_split, mf_kernel_norm_split_forward)                              \
    X(norm_dot, mf_kernel_norm_split, mf_kernel_norm_split_dot)                                    \
    X(norm_split_grad, mf_kernel_norm_split, mf_kernel_norm_split_backward)                        \
    X(rope_split, mf_kernel_rope_split, mf_kernel_rope_split_run)                                  \
    X(rope_join, mf_kernel_rope_join, mf_kernel_rope_join_run)                                     \
    X(mla_rope, mf_kernel_mla_rope, mf_kernel_mla_rope_forward)                                    \
    X(mla_rope_grad, mf_kernel_mla_rope_grad, mf_kernel_mla_rope_backward)                         \
    X(merge, mf_kernel_attention_merge, mf_kernel_attention_merge_run)                             \
    X(bias, mf_kernel_bias, mf_kernel_bias_add)                                                    \
    X(bias_grad, mf_kernel_bias_grad, mf_kernel_bias_backward)                                     \
    X(swiglu, mf_kernel_swiglu, mf_kernel_swiglu_forward)                                          \
    X(swiglu_grad, mf_kernel_swiglu_grad, mf_kernel_swiglu_backward)                               \
    X(gate_logit, mf_kernel_gate_logit, mf_kernel_gate_logits)                                     \
    X(gate, mf_kernel_gate, mf_kernel_gate_forward)                                                \
    X(gate_grad, mf_kernel_gate_grad, mf_kernel_gate_backward)                                     \
    X(gate_input_grad, mf_kernel_gate_input_grad, mf_kernel_gate_input_backward)                   \
    X(output_gate, mf_kernel_output_gate, mf_kernel_output_gate_forward)                           \
    X(output_gate_grad, mf_kernel_output_gate_grad, mf_kernel_output_gate_backward)                \
    X(router, mf_kernel_router, mf_kernel_router_forward)                                          \
    X(router_probabilities, mf_kernel_router, mf_kernel_router_probabilities)                      \
    X(router_force, mf_kernel_router_force, mf_kernel_router_force_choices)                        \
    X(router_count, mf_kernel_router_count, mf_kernel_router_count_choices)                        \
    X(router_stats, mf_kernel_router_stats, mf_kernel_router_stats_add)                            \
    X(router_aux, mf_kernel_router_aux, mf_kernel_router_aux_loss)                                 \
    X(router_grad, mf_kernel_router_grad, mf_kernel_router_backward)                               \
    X(router_drop, mf_kernel_router_drop, mf_kernel_router_capacity)                               \
    X(router_place, mf_kernel_router_place, mf_kernel_router_place_rows)                           \
    X(router_keep, mf_kernel_router_keep, mf_kernel_router_keep_values)                            \
    X(bias_update, mf_kernel_router_bias, mf_kernel_router_bias_update)                            \
    X(permute_map, mf_kernel_permute_map, mf_kernel_permute_map_build)                             \
    X(permute, mf_kernel_permute, mf_kernel_permute_forward)                                       \
    X(unpermute, mf_kernel_unpermute, mf_kernel_unpermute_forward)                                 \
    X(permute_scalars, mf_kernel_permute_scalar, mf_kernel_permute_scalars)                        \
    X(choices_keep, mf_kernel_choices_keep, mf_kernel_choices_keep_own)                            \
    X(choices_of_rows, mf_kernel_choices_of_rows, mf_kernel_choices_of_sent_rows)                  \
    X(choices_ranks, mf_kernel_choices_ranks, mf_kernel_choices_find_ranks)                        \
    X(choices_send, mf_kernel_choices_send, mf_kernel_choices_send_copies)                         \
    X(choices_return, mf_kernel_choices_return, mf_kernel_choices_return_values)                   \
    X(loss_whole, mf_kernel_ce_whole, mf_kernel_cross_entropy)                                     \
    X(loss_stats, mf_kernel_ce_stats, mf_kernel_cross_entropy_stats)                               \
    X(loss_rescale, mf_kernel_ce_rescale, mf_kernel_cross_entropy_rescale)                         \
    X(loss_combine, mf_kernel_ce_combine, mf_kernel_cross_entropy_combine)                         \
    X(loss_grad, mf_kernel_ce_grad, mf_kernel_cross_entropy_backward)                              \
    X(grad_norm, mf_kernel_grad_norm, mf_kernel_grad_norm_add)                                     \
    X(update_begin, mf_kernel_update_begin, mf_kernel_update_begin_step)                           \
    X(progress, mf_kernel_progress, mf_kernel_progress_tell)                                       \
    X(work_clock, mf_kernel_work_clock, mf_kernel_work_clock_turn)                                 \
    X(adamw, mf_kernel_adamw, mf_kernel_adamw_update)

#endif
