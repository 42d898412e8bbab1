/* read_layout.c - settings as a layout and an assignment, with Megatron-LM's defaults for what they
 * leave out.
 *
 * Facts: defaults and derivations of megatron/training/arguments.py (expert tensor parallelism is
 * that of attention; virtual stages from a layout, from layers or from stages; no distributed
 * optimizer; all-gather dispatcher; gradients in FP32), split of layers in
 * megatron/core/transformer/transformer_block.py, at the commit of launch/target/target.c.
 */
#include "launch/read/read_internal.h"

#include "launch/target/target.h"

#include <string.h>

#define MOST (1 << 28)

typedef struct reading {
    mf_read *r;
    mf_settings *s;
    const mf_model *model;
    mf_plan *plan;
    mf_layout *l;
} reading;

static mf_status whole(reading *x, const char *name, int64_t *out, mf_err *e) {
    return mf_settings_i64(x->s, name, 1, MOST, out, e);
}

/* --- degrees ---------------------------------------------------------------------------------- */

/* "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config": benchmarks of Megatron-Bridge are named by their
 * size. 0: the name says none. */
static int64_t recipe_gpus(reading *x) {
    const char *name = mf_settings_text(x->s, "recipe", "");
    const char *at = strstr(name, "gpu_");
    int64_t gpus = 0, digit = 1;
    for (; at != NULL && at > name && at[-1] >= '0' && at[-1] <= '9' && digit <= MOST; at--) {
        gpus += digit * (at[-1] - '0');
        digit *= 10;
    }
    return gpus;
}

static mf_status read_gpus(reading *x, int64_t gpus, mf_err *e) {
    int64_t nodes = 0, each = 0;
    x->l->gpus = gpus;
    if (gpus > 0) {
        return MF_OK;
    }
    mf_status s = whole(x, "world-size", &x->l->gpus, e);
    s = s == MF_OK ? whole(x, "nodes", &nodes, e) : s;
    s = s == MF_OK ? whole(x, "nnodes", &nodes, e) : s;
    s = s == MF_OK ? whole(x, "ntasks-per-node", &each, e) : s;
    s = s == MF_OK ? whole(x, "nproc-per-node", &each, e) : s;
    if (s != MF_OK) {
        return s;
    }
    if (x->l->gpus == 0 && nodes > 0 && each > 0) {
        x->l->gpus = nodes * each;
    }
    x->l->gpus = x->l->gpus > 0 ? x->l->gpus : recipe_gpus(x);
    return x->l->gpus > 0
               ? MF_OK
               : mf_err_set(e, MF_INPUT, "no launch line says on how many GPUs: give --gpus");
}

static mf_status read_degrees(reading *x, mf_err *e) {
    static const struct {
        const char *name;
        size_t at;
    } row[] = {
        {"tensor-model-parallel-size", offsetof(mf_layout, tp)},
        {"context-parallel-size", offsetof(mf_layout, cp)},
        {"pipeline-model-parallel-size", offsetof(mf_layout, pp)},
        {"micro-batch-size", offsetof(mf_layout, mbs)},
        {"dataset.seq_length", offsetof(mf_layout, seq)},
        {"seq-length", offsetof(mf_layout, seq)},
    };
    mf_layout *l = x->l;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        mf_status s = whole(x, row[i].name, (int64_t *)((char *)l + row[i].at), e);
        if (s != MF_OK) {
            return s;
        }
    }
    if (l->seq == 0) {
        const char *recipe = mf_settings_text(x->s, "recipe", "");
        return recipe[0] != '\0' && x->r->python == NULL
                   ? mf_err_set(
                         e, MF_INPUT,
                         "--seq-length is not given, and what the recipe %s says is not "
                         "known: give its Python file in front (--recipe names the function)",
                         recipe)
                   : mf_err_set(e, MF_INPUT, "--seq-length is not given");
    }
    mf_status s = MF_OK;
    if (x->model->experts > 0) {
        l->etp = l->tp;
        s = whole(x, "expert-model-parallel-size", &l->ep, e);
        s = s == MF_OK ? whole(x, "expert-tensor-parallel-size", &l->etp, e) : s;
    } else { /* a dense model's say nothing */
        (void)mf_settings_has(x->s, "expert-model-parallel-size");
        (void)mf_settings_has(x->s, "expert-tensor-parallel-size");
    }
    (void)mf_settings_has(x->s, "sequence-parallel"); /* moefold's TP always is */
    const int64_t parts = l->tp * l->cp * l->pp;
    l->gbs = l->mbs * (l->gpus / (parts > 0 ? parts : 1));
    return s == MF_OK ? whole(x, "global-batch-size", &l->gbs, e) : s;
}

/* --- stages ----------------------------------------------------------------------------------- */

static mf_status read_vpp(reading *x, mf_err *e) {
    mf_layout *l = x->l;
    int64_t chunk = 0;
    const char *stages = mf_settings_text(x->s, "pipeline-model-parallel-layout", "None");
    const char *letters = mf_settings_text(x->s, "hybrid-layer-pattern", "None");
    const bool hybrid = strcmp(letters, "None") != 0;
    mf_status s = whole(x, "virtual-pipeline-model-parallel-size", &l->vpp, e);
    s = s == MF_OK ? whole(x, "model.virtual_pipeline_model_parallel_size", &l->vpp, e) : s;
    s = s == MF_OK ? whole(x, "num-virtual-stages-per-pipeline-rank", &l->vpp, e) : s;
    s = s == MF_OK ? whole(x, "num-layers-per-virtual-pipeline-stage", &chunk, e) : s;
    if (s == MF_OK && chunk > 0) {
        l->vpp = x->model->layers / (l->pp * chunk);
    }
    if (s == MF_OK && (hybrid || strcmp(stages, "None") != 0)) {
        s = hybrid ? mf_read_letters(letters, x->model, &x->plan->assignment, e)
                   : mf_read_stages(stages, x->model, &x->plan->assignment, e);
        if (s == MF_OK && x->plan->assignment.vstages % l->pp != 0) {
            s = mf_err_set(e, MF_INPUT, "a pipeline layout of %d stages on PP %lld",
                           x->plan->assignment.vstages, (long long)l->pp);
        }
        l->vpp = s == MF_OK && x->plan->assignment.vstages > 0 ? x->plan->assignment.vstages / l->pp
                                                               : l->vpp;
    }
    l->vpp = l->pp == 1 && l->vpp > 1 && x->plan->assignment.vstages == 0 ? 1 : l->vpp;
    return s;
}

/* Layers of virtual stages that no layout states: even ones, but for the first and last stage where
 * these say otherwise; embedding and head ride along or count as a layer each. */
static mf_status split(reading *x, mf_err *e) {
    mf_assignment *a = &x->plan->assignment;
    const mf_model *m = x->model;
    const int64_t pp = x->l->pp, chunks = x->l->vpp, stages = pp * chunks;
    int64_t first = -1, last = -1;
    mf_status s = whole(x, "decoder-first-pipeline-num-layers", &first, e);
    s = s == MF_OK ? whole(x, "decoder-last-pipeline-num-layers", &last, e) : s;
    const bool ends[2] = {mf_settings_is_on(x->s, "account-for-embedding-in-pipeline-split"),
                          mf_settings_is_on(x->s, "account-for-loss-in-pipeline-split")};
    if (s != MF_OK || a->vstages > 0) {
        return s;
    }
    const int64_t units = m->layers + ends[0] + ends[1];
    const int64_t others = pp - (first >= 0) - (last >= 0);
    const int64_t left = units - (first >= 0 ? first : 0) - (last >= 0 ? last : 0);
    if (others > 0 && left % others != 0) {
        return mf_assignment_even(m, x->l, a, e); /* Megatron-LM refuses; the nearest to it */
    }
    memset(a, 0, sizeof *a);
    a->positions = mf_model_positions(m);
    a->vstages = (int)stages;
    int at = 1; /* behind the embedding */
    for (int64_t v = 0; v < stages; v++) {
        const int64_t p = v % pp;
        int64_t mine = p == 0 && first >= 0       ? first
                       : p == pp - 1 && last >= 0 ? last
                       : others > 0               ? left / others
                                                  : 0;
        if (mine % chunks != 0) {
            return mf_assignment_even(m, x->l, a, e);
        }
        a->first[v] = v == 0 ? 0 : at;
        at += (int)(mine / chunks) - (v == 0 && ends[0]) - (v == stages - 1 && ends[1]);
    }
    a->first[stages] = a->positions;
    return mf_assignment_check(m, x->l, a, e);
}

/* --- schedule and communication --------------------------------------------------------------- */

static void read_schedule(reading *x) {
    mf_layout *l = x->l;
    bool merged = mf_settings_is_on(x->s, "overlap-moe-expert-parallel-comm");
    bool delayed = mf_settings_is_on(x->s, "delay-wgrad-compute");
    (void)delayed; /* merged passes always split weight gradients off */
    l->schedule = merged ? MF_SCHED_MERGED : l->vpp > 1 ? MF_SCHED_INTERLEAVED : MF_SCHED_1F1B;
    l->overlap = MF_OVERLAP_PP;
    if (mf_settings_is_on(x->s, "no-overlap-p2p-communication") && l->vpp > 1) {
        l->overlap = 0;
    }
    if (mf_settings_is_on(x->s, "overlap-grad-reduce")) {
        l->overlap |= MF_OVERLAP_DP;
    }
    (void)mf_settings_is_on(x->s, "overlap-param-gather");
    if (mf_settings_is_on(x->s, "tp-comm-overlap") && l->tp > 1) {
        l->overlap |= MF_OVERLAP_TP;
    }
    if (mf_settings_is_on(x->s, "moe-shared-expert-overlap") && !merged && l->ep > 1 &&
        x->model->shared_ffn > 0) {
        l->overlap |= MF_OVERLAP_EP;
    }
}

static mf_status read_context(reading *x, mf_err *e) {
    static const struct {
        const char *word;
        mf_cp_type type;
    } row[] = {{"p2p", MF_CP_RING},
               {"all_gather", MF_CP_ALLGATHER},
               {"allgather", MF_CP_ALLGATHER},
               {"a2a", MF_CP_ALLTOALL},
               {"a2a+p2p", MF_CP_HIERARCHICAL}};
    const bool sparse = strstr(mf_settings_text(x->s, "hub-model", ""), "GLM-5") != NULL;
    const char *word = mf_settings_text(x->s, "cp-comm-type", sparse ? "allgather" : "p2p");
    size_t length = strcspn(word, " ");
    (void)mf_settings_has(x->s, "hierarchical-context-parallel-sizes");
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        if (strlen(row[i].word) == length && strncmp(row[i].word, word, length) == 0) {
            x->l->cp_type = row[i].type;
            return MF_OK;
        }
    }
    return strcmp(word, "None") == 0
               ? MF_OK
               : mf_err_set(e, MF_INPUT,
                            "--cp-comm-type: expected p2p, all_gather, a2a or a2a+p2p, got \"%s\"",
                            word);
}

static mf_status read_capacity(reading *x, mf_err *e) {
    double factor = 0;
    mf_status s = mf_settings_f64(x->s, "moe-expert-capacity-factor", -1, 1e6, &factor, e);
    bool padded = mf_settings_is_on(x->s, "moe-pad-expert-input-to-capacity");
    if (x->model->experts > 0 && factor > 0) {
        x->l->capacity_factor = factor;
        x->l->pad_to_capacity = padded;
    }
    return s;
}

/* What a model of the hub brings along in Megatron-Bridge (models/.../..._bridge.py): all-to-all,
 * and the newest families the fused exchange. */
static const char *usual_dispatcher(reading *x) {
    static const char *const fused[] = {"DeepSeek-V4", "GLM-5", "MiniMax-M3", "Kimi-K2.5"};
    const char *hub = mf_settings_text(x->s, "hub-model", NULL);
    for (size_t i = 0; hub != NULL && i < sizeof fused / sizeof fused[0]; i++) {
        if (strstr(hub, fused[i]) != NULL) {
            return "flex";
        }
    }
    return hub != NULL ? "alltoall" : "allgather";
}

static mf_status read_dispatcher(reading *x, mf_err *e) {
    const char *word = mf_settings_text(x->s, "moe-token-dispatcher-type", "None");
    word = strcmp(word, "None") != 0 ? word : usual_dispatcher(x);
    bool deep = mf_settings_is_on(x->s, "moe-enable-deepep");
    const char *backend = mf_settings_text(x->s, "moe-flex-dispatcher-backend", "deepep");
    bool reorders = mf_settings_is_on(x->s, "moe-permute-fusion-into-hybridep");
    if (x->model->experts == 0 || x->l->ep * x->l->etp == 1) {
        return MF_OK; /* tokens stay where they are */
    }
    if (strcmp(word, "flex") == 0 || deep) {
        x->l->dispatcher = MF_DISPATCH_FUSED;
        if (reorders && strcmp(backend, "hybridep") == 0) { /* DeepEP's exchange reorders no rows */
            x->l->traits |= MF_TRAIT_DISPATCH_PERMUTES;
        }
    } else if (strcmp(word, "alltoall") == 0 || strcmp(word, "alltoall_seq") == 0) {
        x->l->dispatcher = MF_DISPATCH_ALLTOALL;
    } else if (strcmp(word, "allgather") == 0) {
        x->l->dispatcher = MF_DISPATCH_ALLGATHER;
    } else {
        return mf_err_set(
            e, MF_INPUT,
            "--moe-token-dispatcher-type: expected allgather, alltoall or flex, got \"%s\"", word);
    }
    return MF_OK;
}

/* --- parameters, optimizer, precision --------------------------------------------------------- */

static mf_status read_sharding(reading *x, mf_err *e) {
    static const char *const levels[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
    mf_layout *l = x->l;
    bool sharded = mf_settings_is_on(x->s, "use-distributed-optimizer");
    bool fsdp = mf_settings_is_on(x->s, "use-megatron-fsdp");
    const char *strategy =
        mf_settings_text(x->s, "data-parallel-sharding-strategy", "optim_grads_params");
    l->zero = sharded ? 1 : 0;
    for (uint8_t z = 0; fsdp && z < 4; z++) {
        l->zero = strcmp(strategy, levels[z]) == 0 ? z : l->zero;
    }
    l->expert_zero = l->zero;
    l->grads_bf16 = mf_settings_is_on(x->s, "grad-reduce-in-bf16");
    (void)mf_settings_is_on(x->s, "accumulate-allreduce-grads-in-fp32");
    (void)mf_settings_is_on(x->s, "use-precision-aware-optimizer");
    (void)mf_settings_has(x->s, "ckpt-format");
    l->moments_bf16 = strstr(mf_settings_text(x->s, "exp-avg-dtype", ""), "bf") != NULL;
    (void)mf_settings_has(x->s, "exp-avg-sq-dtype");
    (void)mf_settings_has(x->s, "overlap-cpu-optimizer-d2h-h2d");
    double share = 1.0; /* what --optimizer-cpu-offload alone means */
    mf_status s = mf_settings_f64(x->s, "optimizer-offload-fraction", 0, 1, &share, e);
    l->offload_optimizer = mf_settings_is_on(x->s, "optimizer-cpu-offload") ? share : 0;
    /* All of them; the GPU makes the update, as in moefold. */
    if (mf_settings_is_on(x->s, "offload-optimizer-states")) {
        l->offload_optimizer = 1;
    }
    return s;
}

static bool says(const char *text, const char *a, const char *b) {
    return strstr(text, a) != NULL || strstr(text, b) != NULL;
}

static void read_precision(reading *x) {
    mf_layout *l = x->l;
    char text[512];
    const bool fp8 = mf_settings_has(x->s, "fp8-format"), fp4 = mf_settings_has(x->s, "fp4-format");
    const bool bf16 = mf_settings_is_on(x->s, "bf16") || mf_settings_is_on(x->s, "fp16");
    const bool named = mf_settings_has(x->s, "mixed_precision");
    snprintf(text, sizeof text, "%s %s", mf_settings_text(x->s, "mixed_precision", ""),
             fp8 ? mf_settings_text(x->s, "fp8-recipe", "delayed") : "");
    (void)mf_settings_has(x->s, "fp8-recipe");
    (void)mf_settings_has(x->s, "fp4-recipe");
    l->precision = bf16 || named ? MF_PREC_BF16 : MF_PREC_FP32;
    if (fp4 || strstr(text, "nvfp4") != NULL) {
        l->precision = MF_PREC_NVFP4;
    } else if (says(text, "mxfp8", "fp8_mx")) {
        l->precision = MF_PREC_MXFP8;
    } else if (says(text, "blockwise", "subchannel") || strstr(text, "fp8_sc") != NULL) {
        l->precision = MF_PREC_FP8_BLOCK;
    } else if (fp8 || strstr(text, text[0] == '{' ? ",fp8:" : "fp8") != NULL) {
        l->precision = MF_PREC_FP8_TENSOR;
    }
    bool gathers8 = mf_settings_is_on(x->s, "fp8-param-gather");
    bool gathers4 = mf_settings_is_on(x->s, "fp4-param-gather");
    l->fp8_primary_weights = gathers8 || gathers4;
    l->fp8_attention = mf_settings_is_on(x->s, "model.fp8_dot_product_attention");
}

/* --- memory choices and graphs ---------------------------------------------------------------- */

/* Words of a list that no choice of moefold stands for, among what was not read. */
static void list_others(reading *x, const char *name, bool (*known)(const char *word, size_t n)) {
    char others[512] = "";
    const char *at = mf_settings_text(x->s, name, "None");
    for (size_t n; *at != '\0'; at += n) {
        at += strspn(at, " ");
        n = strcspn(at, " ");
        const size_t used = strlen(others);
        const bool none = n == 4 && strncmp(at, "None", n) == 0;
        if (n > 0 && !none && !known(at, n)) {
            snprintf(others + used, sizeof others - used, "%s%.*s", used > 0 ? " " : "", (int)n,
                     at);
        }
    }
    if (others[0] != '\0') {
        char flag[64];
        snprintf(flag, sizeof flag, "--%.60s", name);
        mf_settings_put_text(&x->r->unknown, flag, others);
    }
}

static const struct {
    const char *word;
    uint16_t bit;
} recompute_words[] = {
    {"layernorm", MF_RECOMPUTE_NORM},
    {"moe_act", MF_RECOMPUTE_ACT},
    {"mla_up_proj", MF_RECOMPUTE_MLA_UP_PROJ},
    {"core_attn", MF_RECOMPUTE_CORE_ATTN},
    {"shared_experts", MF_RECOMPUTE_SHARED_EXPERT},
    {"moe", MF_RECOMPUTE_MOE},
    {"mlp", MF_RECOMPUTE_MLP},
};

static bool is_recompute_word(const char *word, size_t n) {
    for (size_t i = 0; i < sizeof recompute_words / sizeof recompute_words[0]; i++) {
        const char *own = recompute_words[i].word;
        if (strlen(own) == n && strncmp(own, word, n) == 0) {
            return true;
        }
    }
    return false;
}

static void read_recompute(reading *x, mf_common_choice *c) {
    const char *granularity = mf_settings_text(x->s, "recompute-granularity", "None");
    const char *method = mf_settings_text(x->s, "recompute-method", "None");
    bool modules = mf_settings_has(x->s, "recompute-modules");
    bool selective =
        strcmp(granularity, "selective") == 0 || mf_settings_is_on(x->s, "recompute-activations");
    int64_t layers = 1;
    (void)mf_settings_i64(x->s, "recompute-num-layers", 1, 1 << 20, &layers, NULL);
    if (strcmp(granularity, "full") == 0) {
        c->recompute = MF_RECOMPUTE_LAYER;
        c->first = strcmp(method, "block") == 0 ? (int)layers : 0;
        return;
    }
    for (size_t i = 0; i < sizeof recompute_words / sizeof recompute_words[0] && selective; i++) {
        c->recompute |= mf_settings_lists(x->s, "recompute-modules", recompute_words[i].word)
                            ? recompute_words[i].bit
                            : 0;
    }
    if (selective) {
        list_others(x, "recompute-modules", is_recompute_word);
    }
    if (selective && !modules) {
        c->recompute = MF_RECOMPUTE_CORE_ATTN;
    }
    if (mf_settings_is_on(x->s, "moe-layer-recompute")) {
        c->recompute |= MF_RECOMPUTE_MOE;
    }
}

static mf_status read_offload(reading *x, mf_common_choice *c, mf_err *e) {
    static const struct {
        const char *word;
        uint16_t bit;
    } row[] = {
        {"attn_norm", MF_OFFLOAD_INPUT},      {"mlp_norm", MF_OFFLOAD_INPUT},
        {"core_attn", MF_OFFLOAD_QKV},        {"attn_proj", MF_OFFLOAD_ATTN_OUT},
        {"expert_fc1", MF_OFFLOAD_EXPERT_IN}, {"moe_act", MF_OFFLOAD_EXPERT_FC1},
    };
    bool on = mf_settings_is_on(x->s, "fine-grained-activation-offloading");
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        bool listed = mf_settings_lists(x->s, "offload-modules", row[i].word);
        c->offload |= on && listed ? row[i].bit : 0;
    }
    return mf_settings_f64(x->s, "activation-offload-fraction", 0, 1, &c->share, e);
}

static void read_graphs(reading *x) {
    const char *impl = mf_settings_text(x->s, "cuda-graph-impl", "none");
    bool scoped = mf_settings_has(x->s, "cuda-graph-modules");
    const char *scope = mf_settings_text(x->s, "cuda-graph-scope", "");
    bool old = mf_settings_is_on(x->s, "enable-cuda-graph");
    bool external = mf_settings_is_on(x->s, "external-cuda-graph");
    (void)scoped;
    if (strcmp(impl, "full_iteration") == 0 || strstr(scope, "full_iteration") != NULL) {
        x->l->graph = MF_GRAPH_STEP;
    } else if ((strcmp(impl, "none") != 0 && strcmp(impl, "None") != 0) || old || external) {
        x->l->graph = MF_GRAPH_PARTIAL;
    }
}

static mf_status read_memory(reading *x, mf_err *e) {
    mf_common_choice c = {.share = 1};
    read_recompute(x, &c);
    mf_status s = read_offload(x, &c, e);
    if (s == MF_OK) {
        mf_common_choice_apply(x->model, &c, &x->plan->assignment);
        x->l->memory = (mf_memory_choice){c.recompute, c.offload};
        x->l->offload_share = c.share;
    }
    return s;
}

/* What moefold wrote beside the flags. */
static mf_status read_ours(reading *x, mf_err *e) {
    mf_settings *s = &x->r->moefold;
    mf_status status = mf_settings_f64(s, "token-headroom", 1, 1e6, &x->l->token_headroom, e);
    return status == MF_OK ? mf_settings_f64(s, "reserve", 0, 0.99, &x->l->reserve, e) : status;
}

/* Degrees that do not divide are often none that anybody wrote. */
static mf_status resolve(const reading *x, mf_err *e) {
    mf_status s = mf_layout_resolve(x->l, x->model, e);
    if (s == MF_LAYOUT && x->l->etp > 1 && x->l->etp == x->l->tp &&
        !mf_settings_has(x->s, "expert-tensor-parallel-size")) {
        mf_err cause = *e;
        return mf_err_set(e, s,
                          "%.400s; ETP is TP, Megatron's default where no "
                          "--expert-tensor-parallel-size says otherwise",
                          cause.text);
    }
    return s;
}

/* Overrides change a recipe. Where that was not read, what is not overridden is as recipes begin
 * (_pretrain_common in src/megatron/bridge/recipes/common.py, and the models' providers). */
static void begin_as_recipes(reading *x) {
    static const char *const rows[][2] = {
        {"mixed_precision", "bf16_mixed"},         {"use-distributed-optimizer", "true"},
        {"overlap-grad-reduce", "true"},           {"overlap-param-gather", "true"},
        {"moe-token-dispatcher-type", "alltoall"}, {"expert-tensor-parallel-size", "1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (mf_settings_text(x->s, rows[i][0], NULL) == NULL) {
            mf_settings_put(x->s, rows[i][0], "%s", rows[i][1]);
            x->r->assumed = true;
        }
    }
}

mf_status mf_read_plan(mf_read *r, const mf_model *m, int64_t gpus, mf_plan *out, mf_err *e) {
    reading x = {.r = r, .s = &r->settings, .model = m, .plan = out, .l = &out->layout};
    mf_plan_init(out);
    mf_layout_init(x.l);
    mf_model_identify(m, &out->model);
    x.l->seq = 0;
    if (r->overrides && r->python == NULL) {
        begin_as_recipes(&x);
    }
    mf_status s = read_gpus(&x, gpus, e);
    s = s == MF_OK ? read_degrees(&x, e) : s;
    s = s == MF_OK ? read_vpp(&x, e) : s;
    if (s == MF_OK) {
        read_schedule(&x);
        s = read_context(&x, e);
    }
    s = s == MF_OK ? read_dispatcher(&x, e) : s;
    s = s == MF_OK ? read_capacity(&x, e) : s;
    s = s == MF_OK ? read_sharding(&x, e) : s;
    if (s == MF_OK) {
        read_precision(&x);
        read_graphs(&x);
        s = read_ours(&x, e);
    }
    s = s == MF_OK ? resolve(&x, e) : s;
    s = s == MF_OK ? split(&x, e) : s;
    s = s == MF_OK ? mf_assignment_check(m, x.l, &out->assignment, e) : s;
    return s == MF_OK ? read_memory(&x, e) : s;
}
