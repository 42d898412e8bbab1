/* option_set.c - values of layout options into a layout. */
#include "cli/option_set.h"

#include <string.h>

#define SET_INT(field)                                                                             \
    mf_status mf_option_set_##field(mf_layout *l, const mf_value *v, mf_err *e) {                  \
        (void)e;                                                                                   \
        l->field = v->i;                                                                           \
        return MF_OK;                                                                              \
    }
SET_INT(gpus)
SET_INT(gbs)
SET_INT(seq)
SET_INT(tp)
SET_INT(cp)
SET_INT(pp)
SET_INT(vpp)
SET_INT(ep)
SET_INT(etp)
SET_INT(mbs)

#define SET_WORD(field, parse)                                                                     \
    mf_status mf_option_set_##field(mf_layout *l, const mf_value *v, mf_err *e) {                  \
        return parse(v->text, &l->field, e);                                                       \
    }
SET_WORD(schedule, mf_schedule_parse)
SET_WORD(dispatcher, mf_dispatcher_parse)
SET_WORD(cp_type, mf_cp_type_parse)
SET_WORD(precision, mf_precision_parse)
SET_WORD(graph, mf_graph_parse)
SET_WORD(overlap, mf_overlap_parse)
SET_WORD(traits, mf_traits_parse)

mf_status mf_option_set_recompute(mf_layout *l, const mf_value *v, mf_err *e) {
    return mf_recompute_parse(v->text, &l->memory.recompute, e);
}

mf_status mf_option_set_offload(mf_layout *l, const mf_value *v, mf_err *e) {
    return mf_offload_parse(v->text, &l->memory.offload, e);
}

mf_status mf_option_set_zero(mf_layout *l, const mf_value *v, mf_err *e) {
    (void)e;
    l->zero = (uint8_t)v->i;
    return MF_OK;
}

mf_status mf_option_set_expert_zero(mf_layout *l, const mf_value *v, mf_err *e) {
    (void)e;
    l->expert_zero = (uint8_t)v->i;
    return MF_OK;
}

static mf_status set_bf16(bool *bf16, const mf_value *v, mf_err *e) {
    *bf16 = strcmp(v->text, "bf16") == 0;
    if (!*bf16 && strcmp(v->text, "fp32") != 0) {
        return mf_err_set(e, MF_USAGE, "unknown dtype \"%s\": expected one of fp32 bf16", v->text);
    }
    return MF_OK;
}

mf_status mf_option_set_moments(mf_layout *l, const mf_value *v, mf_err *e) {
    return set_bf16(&l->moments_bf16, v, e);
}

mf_status mf_option_set_grad_dtype(mf_layout *l, const mf_value *v, mf_err *e) {
    return set_bf16(&l->grads_bf16, v, e);
}

mf_status mf_option_set_fp8_attention(mf_layout *l, const mf_value *v, mf_err *e) {
    (void)e;
    l->fp8_attention = v->given;
    return MF_OK;
}

mf_status mf_option_set_fp8_primary_weights(mf_layout *l, const mf_value *v, mf_err *e) {
    (void)e;
    l->fp8_primary_weights = v->given;
    return MF_OK;
}

mf_status mf_option_set_pad_to_capacity(mf_layout *l, const mf_value *v, mf_err *e) {
    (void)e;
    l->pad_to_capacity = v->given;
    return MF_OK;
}

mf_status mf_option_set_deterministic(mf_layout *l, const mf_value *v, mf_err *e) {
    (void)e;
    l->deterministic = v->given;
    return MF_OK;
}

#define SET_REAL(field)                                                                            \
    mf_status mf_option_set_##field(mf_layout *l, const mf_value *v, mf_err *e) {                  \
        (void)e;                                                                                   \
        l->field = v->f;                                                                           \
        return MF_OK;                                                                              \
    }
SET_REAL(offload_share)
SET_REAL(offload_optimizer)
SET_REAL(token_headroom)
SET_REAL(reserve)
SET_REAL(capacity_factor)
