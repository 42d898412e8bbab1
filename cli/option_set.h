/* option_set.h - private to the table of options: what each layout option sets. Each puts the
 * option's value into its field of the layout. Errors: MF_USAGE for a word that nobody knows.
 */
#ifndef MF_CLI_OPTION_SET_H
#define MF_CLI_OPTION_SET_H

#include "cli/options.h"

typedef mf_status mf_option_setter(mf_layout *l, const mf_value *v, mf_err *e);

mf_option_setter mf_option_set_capacity_factor, mf_option_set_pad_to_capacity,
    mf_option_set_deterministic, mf_option_set_cp, mf_option_set_cp_type, mf_option_set_dispatcher,
    mf_option_set_ep, mf_option_set_etp, mf_option_set_expert_zero, mf_option_set_fp8_attention,
    mf_option_set_fp8_primary_weights, mf_option_set_gbs, mf_option_set_grad_dtype,
    mf_option_set_gpus, mf_option_set_graph, mf_option_set_mbs, mf_option_set_moments,
    mf_option_set_offload, mf_option_set_offload_optimizer, mf_option_set_offload_share,
    mf_option_set_overlap, mf_option_set_pp, mf_option_set_precision, mf_option_set_recompute,
    mf_option_set_reserve, mf_option_set_schedule, mf_option_set_seq, mf_option_set_token_headroom,
    mf_option_set_tp, mf_option_set_traits, mf_option_set_vpp, mf_option_set_zero;

#endif
