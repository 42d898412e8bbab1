/* option_applicability.c - refuses options that say nothing about this job. */
#include "job/load/option_applicability.h"

/* What a layer must have for a module to be there. */
typedef struct anatomy {
    bool experts, shared, dense, mla;
} anatomy;

static anatomy anatomy_of(const mf_model *m) {
    anatomy x = {.mla = m->attn == MF_ATTN_MLA || m->o_groups > 0}; /* or DeepSeek-V4 */
    for (int at = 0; at < mf_model_positions(m); at++) {
        mf_position_kind kind = mf_position_kind_of(m, at);
        bool layer = kind == MF_POS_LAYER || kind == MF_POS_MTP;
        x.experts |= layer && mf_position_is_moe(m, at);
        x.dense |= layer && !mf_position_is_moe(m, at);
    }
    x.shared = x.experts && m->shared_ffn > 0;
    return x;
}

static mf_status missing(const char *option, const char *module, const mf_model *m,
                         const char *lacks, mf_err *e) {
    return mf_err_set(e, MF_LAYOUT, "--%s%s%s: %s has no %s", option, module[0] ? " " : "", module,
                      m->name, lacks);
}

static mf_status check_modules(const mf_job *j, mf_err *e) {
    const anatomy x = anatomy_of(&j->model);
    const mf_memory_choice c = j->plan.layout.memory;
    const struct {
        mf_given_option id;
        unsigned given;
        const char *module;
        bool there;
        const char *lacks;
    } modules[] = {
        {MF_GIVEN_RECOMPUTE, c.recompute & MF_RECOMPUTE_MLA_UP_PROJ, "mla_up_proj", x.mla,
         "latent attention (MLA)"},
        {MF_GIVEN_RECOMPUTE, c.recompute & MF_RECOMPUTE_SHARED_EXPERT, "shared_expert", x.shared,
         "shared expert"},
        {MF_GIVEN_RECOMPUTE, c.recompute & MF_RECOMPUTE_EXPERTS, "experts", x.experts, "experts"},
        {MF_GIVEN_RECOMPUTE, c.recompute & MF_RECOMPUTE_MOE, "moe", x.experts, "experts"},
        {MF_GIVEN_RECOMPUTE, c.recompute & MF_RECOMPUTE_MLP, "mlp", x.dense, "dense MLP"},
        {MF_GIVEN_OFFLOAD, c.offload & MF_OFFLOAD_EXPERT_IN, "expert_in", x.experts, "experts"},
        {MF_GIVEN_OFFLOAD, c.offload & MF_OFFLOAD_EXPERT_FC1, "expert_fc1", x.experts, "experts"},
        {MF_GIVEN_OFFLOAD, c.offload & MF_OFFLOAD_FFN, "ffn", x.dense || x.shared,
         "dense or shared MLP"},
    };
    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++) {
        if (mf_request_gives(&j->asked, modules[i].id) && modules[i].given && !modules[i].there) {
            return missing(mf_given_option_name(modules[i].id), modules[i].module, &j->model,
                           modules[i].lacks, e);
        }
    }
    return MF_OK;
}

/* A factor of 0 asks for nothing, and neither does balanced routing. */
static mf_status check_experts(const mf_job *j, mf_err *e) {
    const mf_job_request *r = &j->asked;
    const char *option = r->layout.capacity_factor > 0                   ? "capacity-factor"
                         : mf_request_gives(r, MF_GIVEN_PAD_TO_CAPACITY) ? "pad-to-capacity"
                         : j->routing.kind != MF_ROUTING_BALANCED        ? "routing"
                                                                         : NULL;
    return option == NULL || j->model.experts > 0 ? MF_OK
                                                  : missing(option, "", &j->model, "experts", e);
}

mf_status mf_job_check_options(const mf_job *j, mf_err *e) {
    const mf_job_request *r = &j->asked;
    const mf_layout *l = &j->plan.layout;
    if (mf_request_gives(r, MF_GIVEN_FP8_PRIMARY_WEIGHTS) && r->precisions == NULL &&
        mf_precision_quantised_B(l->precision) <= 0) {
        return mf_err_set(e, MF_LAYOUT, "--fp8-primary-weights: precision %s quantises no weights",
                          mf_precision_text(l->precision));
    }
    if (mf_request_gives(r, MF_GIVEN_CUDA_GRAPH) && l->graph != MF_GRAPH_NONE &&
        mf_cluster_is_cpu(&j->cluster)) { /* a plan for GPUs may be tried out */
        return mf_err_set(e, MF_LAYOUT, "--cuda-graph %s: the ranks of %s are CPU processes",
                          mf_graph_text(l->graph), j->cluster.name);
    }
    mf_status s = check_experts(j, e);
    if (s == MF_OK && mf_request_gives(r, MF_GIVEN_OFFLOAD_SHARE) && l->memory.offload == 0) {
        return mf_err_set(e, MF_LAYOUT, "--offload-share: without --offload nothing is offloaded");
    }
    if (s == MF_OK && mf_request_gives(r, MF_GIVEN_RECOMPUTE_LAYERS) && l->memory.recompute == 0) {
        return mf_err_set(e, MF_LAYOUT,
                          "--recompute-layers: without --recompute nothing is recomputed");
    }
    return s == MF_OK ? check_modules(j, e) : s;
}
