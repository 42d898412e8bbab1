/* model_experts.c - reads the keys about experts, routing and MTP that several families have. */
#include "core/model/model_family.h"

#include <string.h>

void mf_model_read_experts(mf_config *c, mf_model *m, const char *width_key) {
    static const char *const expert_keys[] = {"num_experts", "num_local_experts",
                                              "n_routed_experts", "moe_num_experts", NULL};
    static const char *const top_k_keys[] = {
        "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_k",
        "moe_top_k",           "moe_topk",          "top_k_experts",         NULL};
    m->experts = mf_config_even_int(c, expert_keys, 1, MF_CONFIG_EXPERTS_MAX);
    m->top_k = mf_config_even_int(c, top_k_keys, 1, MF_CONFIG_EXPERTS_MAX);
    m->moe_ffn = mf_config_even_int(c, MF_KEYS(width_key), 1, MF_CONFIG_FFN_MAX);
    m->aux_loss_coef =
        mf_config_opt_f64(c, MF_KEYS("router_aux_loss_coef", "aux_loss_alpha"), 0, 1e6, 0.001);
    if (c->status == MF_OK && m->top_k > m->experts) {
        mf_config_fail(c, "num_experts_per_tok",
                       "\"num_experts_per_tok\": %lld of %lld experts per token",
                       (long long)m->top_k, (long long)m->experts);
    }
}

void mf_model_read_groups(mf_config *c, mf_model *m, int64_t n_group, int64_t topk_group) {
    m->routed_scaling = mf_config_opt_f64(
        c, MF_KEYS("routed_scaling_factor", "router_scaling_factor", "moe_router_scaling_factor"),
        0, 1e6, m->routed_scaling);
    m->norm_topk = mf_config_opt_bool(
        c, MF_KEYS("norm_topk_prob", "moe_renormalize", "route_norm", "norm_expert_weight"),
        m->norm_topk);
    m->n_group = mf_config_opt_int(c, MF_KEYS("n_group", "num_expert_group"), 0,
                                   MF_CONFIG_EXPERTS_MAX, n_group);
    m->topk_group =
        mf_config_opt_int(c, MF_KEYS("topk_group"), 0, MF_CONFIG_EXPERTS_MAX, topk_group);
    int64_t shared =
        mf_config_opt_int(c, MF_KEYS("n_shared_experts", "num_shared_experts"), 0, 1024, 0);
    m->shared_ffn = shared * m->moe_ffn;
    if (m->n_group == 0) {
        m->n_group = 1;
    }
    if (m->topk_group == 0) {
        m->topk_group = m->n_group;
    }
    if (c->status != MF_OK) {
        return;
    }
    if (m->experts % m->n_group != 0) {
        mf_config_fail(c, "n_group", "\"n_group\": %lld experts do not divide into %lld groups",
                       (long long)m->experts, (long long)m->n_group);
    } else if (m->topk_group > m->n_group) {
        mf_config_fail(c, "topk_group", "\"topk_group\": %lld of %lld groups",
                       (long long)m->topk_group, (long long)m->n_group);
    } else if (m->top_k > m->topk_group * (m->experts / m->n_group)) {
        mf_config_fail(c, "topk_group",
                       "\"topk_group\": %lld groups of %lld experts hold fewer than %lld experts",
                       (long long)m->topk_group, (long long)(m->experts / m->n_group),
                       (long long)m->top_k);
    }
}

void mf_model_read_scoring(mf_config *c, mf_model *m, const char *fallback) {
    static const char *const keys[] = {"scoring_func", "score_function",
                                       "moe_router_activation_func", "moe_router_activation", NULL};
    const char *score = mf_config_opt_string(c, keys, fallback);
    if (strcmp(score, "softmax") == 0) {
        m->router_score = MF_ROUTER_SOFTMAX;
    } else if (strcmp(score, "sigmoid") == 0) {
        m->router_score = MF_ROUTER_SIGMOID;
    } else {
        mf_config_fail(c, "scoring_func", "\"scoring_func\": expected softmax or sigmoid");
    }
}

void mf_model_read_mtp(mf_config *c, mf_model *m) {
    m->mtp_layers = mf_config_opt_int(
        c, MF_KEYS("num_nextn_predict_layers", "mtp_num_hidden_layers"), 0, MF_MODEL_MAX_MTP, 0);
}
