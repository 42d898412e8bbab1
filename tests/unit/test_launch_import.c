/* test_launch_import.c - public recipes of Megatron-MoE-ModelZoo and Megatron-Bridge, their facts
 * written anew as flags, variables and overrides, and what each has to become.
 *
 * Sources: best_practice/ and model_configs/ of yanring/Megatron-MoE-ModelZoo at e8650517
 * (2026-05-16), src/megatron/bridge/perf_recipes of NVIDIA-NeMo/Megatron-Bridge at 067f987d
 * (2026-08-22).
 */
#include "tests/support/test.h"

#include "launch/log/log.h"
#include "launch/read/read.h"

#include <stdlib.h>
#include <string.h>

/* Widths as the flags of the model configurations give them. */
#define DEEPSEEK_V3                                                                                \
    "--num-layers 61 --hidden-size 7168 --num-attention-heads 128 --ffn-hidden-size 18432 "        \
    "--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --num-experts 256 "            \
    "--moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 --moe-router-topk 8 "
#define MIXTRAL_8X22B                                                                              \
    "--num-layers 56 --hidden-size 6144 --num-attention-heads 48 --group-query-attention "         \
    "--num-query-groups 8 --ffn-hidden-size 16384 --num-experts 8 --moe-router-topk 2 "
#define QWEN3_235B                                                                                 \
    "--num-layers 94 --hidden-size 4096 --num-attention-heads 64 --group-query-attention "         \
    "--num-query-groups 4 --num-experts 128 --moe-ffn-hidden-size 1536 --moe-router-topk 8 "
#define QWEN3_30B                                                                                  \
    "--num-layers 48 --hidden-size 2048 --num-attention-heads 32 --group-query-attention "         \
    "--num-query-groups 4 --num-experts 128 --moe-ffn-hidden-size 768 --moe-router-topk 8 "
#define ZOO(tp, pp, ep)                                                                            \
    "--tensor-model-parallel-size " #tp " --pipeline-model-parallel-size " #pp                     \
    " --expert-model-parallel-size " #ep " --expert-tensor-parallel-size 1 --micro-batch-size 1 "  \
    "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --bf16 "
#define BRIDGE(recipe, tp, pp, vpp, ep, mbs, gbs, seq)                                             \
    "--recipe " recipe " model.tensor_model_parallel_size=" #tp                                    \
    " model.pipeline_model_parallel_size=" #pp " model.virtual_pipeline_model_parallel_size=" #vpp \
    " model.expert_model_parallel_size=" #ep                                                       \
    " model.expert_tensor_parallel_size=1 train.micro_batch_size=" #mbs                            \
    " train.global_batch_size=" #gbs " model.seq_length=" #seq                                     \
    " ddp.use_distributed_optimizer=true "

typedef struct recipe {
    const char *text;
    int64_t gpus;
    const char *model;
    int64_t degree[5]; /* TP, PP, VPP, EP, ETP */
    int64_t gbs, seq;
    mf_schedule_kind schedule;
    mf_dispatcher dispatcher;
    mf_precision precision;
    int zero;
    uint16_t recompute; /* of the last layer */
} recipe;

#define V3_STAGES "--pipeline-model-parallel-layout 'Et|(tt|)*30mL' --mtp-num-layers 1 "
#define LATENT MF_RECOMPUTE_MLA_UP_PROJ

static const recipe recipes[] = {
    {DEEPSEEK_V3 ZOO(2, 8, 64) V3_STAGES
     "--global-batch-size 8192 --seq-length 4096 --recompute-granularity selective "
     "--recompute-modules mla_up_proj mlp\nPR=fp8 A2A_OVERLAP=1 NNODES=128 VPP=4",
     0,
     "deepseek-v3",
     {2, 8, 4, 64, 1},
     8192,
     4096,
     MF_SCHED_MERGED,
     MF_DISPATCH_FUSED,
     MF_PREC_FP8_BLOCK,
     1,
     LATENT},
    {DEEPSEEK_V3 ZOO(1, 8, 32) V3_STAGES
     "--global-batch-size 2048 --seq-length 4096 --recompute-granularity selective "
     "--recompute-modules mla_up_proj mlp\nPR=mxfp8 A2A_OVERLAP=1 NNODES=32",
     0,
     "deepseek-v3",
     {1, 8, 4, 32, 1},
     2048,
     4096,
     MF_SCHED_MERGED,
     MF_DISPATCH_FUSED,
     MF_PREC_MXFP8,
     1,
     LATENT},
    {DEEPSEEK_V3 ZOO(
         1, 8, 32) "--pipeline-model-parallel-layout 'Et*2|(tt|)*22t|(tt|)*7mL' --mtp-num-layers 1 "
                   "--global-batch-size 8192 --seq-length 4096 --recompute-granularity selective "
                   "--recompute-modules mla_up_proj moe mlp layernorm\nPR=fp8 OPTIMIZER_OFFLOAD=1 "
                   "NNODES=32",
     0,
     "deepseek-v3",
     {1, 8, 4, 32, 1},
     8192,
     4096,
     MF_SCHED_INTERLEAVED,
     MF_DISPATCH_FUSED,
     MF_PREC_FP8_BLOCK,
     1,
     LATENT | MF_RECOMPUTE_MOE | MF_RECOMPUTE_NORM},
    {DEEPSEEK_V3 ZOO(
         16, 8,
         32) "--pipeline-model-parallel-layout 'Et*2|(tt|)*22t|(tt|)*7mL' --mtp-num-layers 1 "
             "--global-batch-size 960 --seq-length 65536\nPR=fp8 OPTIMIZER_OFFLOAD=1 NNODES=32",
     0,
     "deepseek-v3",
     {16, 8, 4, 32, 1},
     960,
     65536,
     MF_SCHED_INTERLEAVED,
     MF_DISPATCH_FUSED,
     MF_PREC_FP8_BLOCK,
     1,
     0},
    {MIXTRAL_8X22B ZOO(2, 8, 8) "--global-batch-size 256 --seq-length 4096\n"
                                "PR=bf16 DISPATCHER=alltoall NNODES=16",
     0,
     "mixtral-8x22b",
     {2, 8, 1, 8, 1},
     256,
     4096,
     MF_SCHED_1F1B,
     MF_DISPATCH_ALLTOALL,
     MF_PREC_BF16,
     1,
     0},
    {MIXTRAL_8X22B ZOO(2, 8, 8) "--global-batch-size 256 --seq-length 4096\n"
                                "PR=fp8 DISPATCHER=alltoall NNODES=16",
     0,
     "mixtral-8x22b",
     {2, 8, 1, 8, 1},
     256,
     4096,
     MF_SCHED_1F1B,
     MF_DISPATCH_ALLTOALL,
     MF_PREC_FP8_BLOCK,
     1,
     0},
    {QWEN3_235B ZOO(
         2, 8,
         32) "--global-batch-size 2048 --seq-length 4096 --recompute-granularity selective "
             "--recompute-modules moe_act layernorm --account-for-embedding-in-pipeline-split "
             "--account-for-loss-in-pipeline-split\nPR=bf16 DISPATCHER=deepep A2A_OVERLAP=1 VPP=4 "
             "NNODES=32",
     0,
     "qwen3-235b-a22b",
     {2, 8, 4, 32, 1},
     2048,
     4096,
     MF_SCHED_MERGED,
     MF_DISPATCH_FUSED,
     MF_PREC_BF16,
     1,
     MF_RECOMPUTE_ACT | MF_RECOMPUTE_NORM},
    {QWEN3_30B ZOO(1, 1, 8) "--global-batch-size 512 --seq-length 4096\nPR=bf16 NNODES=4",
     0,
     "qwen3-30b-a3b",
     {1, 1, 1, 8, 1},
     512,
     4096,
     MF_SCHED_1F1B,
     MF_DISPATCH_FUSED,
     MF_PREC_BF16,
     1,
     0},
    {BRIDGE("deepseek_v3_pretrain_1024gpu_h100_bf16_config", 2, 8, 4, 64, 1, 16384,
            4096) "mixed_precision=bf16_mixed model.moe_token_dispatcher_type=flex "
                  "model.mtp_num_layers=1 "
                  "'model.pipeline_model_parallel_layout=Et|(tt|)*30mL' "
                  "model.recompute_granularity=selective "
                  "'model.recompute_modules=[mla_up_proj,mlp]'",
     1024,
     "deepseek-v3",
     {2, 8, 4, 64, 1},
     16384,
     4096,
     MF_SCHED_INTERLEAVED,
     MF_DISPATCH_FUSED,
     MF_PREC_BF16,
     1,
     LATENT},
    {BRIDGE("deepseek_v3_pretrain_256gpu_b200_fp8cs_config", 1, 16, None, 8, 1, 4096,
            4096) "mixed_precision=bf16_with_fp8_current_scaling_mixed "
                  "model.moe_token_dispatcher_type=flex",
     256,
     "deepseek-v3",
     {1, 16, 1, 8, 1},
     4096,
     4096,
     MF_SCHED_1F1B,
     MF_DISPATCH_FUSED,
     MF_PREC_FP8_TENSOR,
     1,
     0},
    {BRIDGE("gpt_oss_120b_pretrain_64gpu_h100_bf16_config", 1, 4, None, 8, 1, 1280,
            4096) "mixed_precision=bf16_mixed model.moe_token_dispatcher_type=flex "
                  "model.recompute_granularity=selective "
                  "'model.recompute_modules=[layernorm,moe_act]'",
     64,
     "gpt-oss-120b",
     {1, 4, 1, 8, 1},
     1280,
     4096,
     MF_SCHED_1F1B,
     MF_DISPATCH_FUSED,
     MF_PREC_BF16,
     1,
     MF_RECOMPUTE_NORM | MF_RECOMPUTE_ACT},
    {BRIDGE("gpt_oss_120b_pretrain_64gpu_b200_fp8mx_config", 1, 1, None, 8, 4, 1280,
            4096) "mixed_precision=bf16_with_mxfp8_mixed model.moe_token_dispatcher_type=flex",
     64,
     "gpt-oss-120b",
     {1, 1, 1, 8, 1},
     1280,
     4096,
     MF_SCHED_1F1B,
     MF_DISPATCH_FUSED,
     MF_PREC_MXFP8,
     1,
     0},
    {BRIDGE("llama3_70b_pretrain_64gpu_h100_fp8cs_config", 4, 8, 5, 1, 1, 256,
            8192) "mixed_precision=bf16_with_fp8_current_scaling_mixed",
     64,
     "llama3-70b",
     {4, 8, 5, 1, 1},
     256,
     8192,
     MF_SCHED_INTERLEAVED,
     MF_DISPATCH_FUSED,
     MF_PREC_FP8_TENSOR,
     1,
     0},
    {BRIDGE("llama3_70b_pretrain_32gpu_gb200_bf16_config", 1, 1, None, 1, 1, 256,
            8192) "mixed_precision=bf16_mixed ddp.use_megatron_fsdp=true "
                  "ddp.data_parallel_sharding_strategy=optim_grads_params",
     32,
     "llama3-70b",
     {1, 1, 1, 1, 1},
     256,
     8192,
     MF_SCHED_1F1B,
     MF_DISPATCH_FUSED,
     MF_PREC_BF16,
     3,
     0},
    {BRIDGE("llama3_8b_pretrain_64gpu_b200_bf16_config", 1, 1, None, 1, 2, 128,
            8192) "mixed_precision=bf16_mixed",
     64,
     "llama3-8b",
     {1, 1, 1, 1, 1},
     128,
     8192,
     MF_SCHED_1F1B,
     MF_DISPATCH_FUSED,
     MF_PREC_BF16,
     1,
     0},
    {BRIDGE("llama3_8b_pretrain_64gpu_h100_fp8cs_config", 1, 1, None, 1, 1, 128,
            8192) "mixed_precision=bf16_with_fp8_current_scaling_mixed "
                  "model.recompute_granularity=full "
                  "model.recompute_method=block model.recompute_num_layers=5",
     64,
     "llama3-8b",
     {1, 1, 1, 1, 1},
     128,
     8192,
     MF_SCHED_1F1B,
     MF_DISPATCH_FUSED,
     MF_PREC_FP8_TENSOR,
     1,
     0},
    {BRIDGE("qwen3_235b_a22b_pretrain_256gpu_h100_bf16_config", 2, 8, 4, 32, 1, 8192,
            4096) "mixed_precision=bf16_mixed model.moe_token_dispatcher_type=alltoall "
                  "model.account_for_embedding_in_pipeline_split=true "
                  "model.account_for_loss_in_pipeline_split=true",
     256,
     "qwen3-235b-a22b",
     {2, 8, 4, 32, 1},
     8192,
     4096,
     MF_SCHED_INTERLEAVED,
     MF_DISPATCH_ALLTOALL,
     MF_PREC_BF16,
     1,
     0},
    {BRIDGE("qwen3_235b_a22b_pretrain_64gpu_b200_fp8cs_config", 1, 8, None, 8, 1, 2048,
            4096) "mixed_precision=bf16_with_fp8_current_scaling_mixed "
                  "model.moe_token_dispatcher_type=alltoall",
     64,
     "qwen3-235b-a22b",
     {1, 8, 1, 8, 1},
     2048,
     4096,
     MF_SCHED_1F1B,
     MF_DISPATCH_ALLTOALL,
     MF_PREC_FP8_TENSOR,
     1,
     0},
    {BRIDGE("qwen3_30b_a3b_pretrain_16gpu_h100_fp8cs_config", 1, 1, None, 16, 1, 1024,
            4096) "mixed_precision=bf16_with_fp8_current_scaling_mixed "
                  "model.moe_token_dispatcher_type=flex",
     16,
     "qwen3-30b-a3b",
     {1, 1, 1, 16, 1},
     1024,
     4096,
     MF_SCHED_1F1B,
     MF_DISPATCH_FUSED,
     MF_PREC_FP8_TENSOR,
     1,
     0},
    {BRIDGE("qwen3_30b_a3b_pretrain_8gpu_gb200_fp8mx_config", 1, 1, None, 8, 4, 512,
            4096) "mixed_precision=bf16_with_mxfp8_mixed model.moe_token_dispatcher_type=flex",
     8,
     "qwen3-30b-a3b",
     {1, 1, 1, 8, 1},
     512,
     4096,
     MF_SCHED_1F1B,
     MF_DISPATCH_FUSED,
     MF_PREC_MXFP8,
     1,
     0},
    {BRIDGE(
         "kimi_k2_pretrain_1024gpu_h100_bf16_config", 8, 16, 2, 64, 1, 8192,
         4096) "mixed_precision=bf16_mixed model.moe_token_dispatcher_type=flex "
               "model.recompute_granularity=selective 'model.recompute_modules=[mla_up_proj,mlp]'",
     1024,
     "kimi-k2",
     {8, 16, 2, 64, 1},
     8192,
     4096,
     MF_SCHED_INTERLEAVED,
     MF_DISPATCH_FUSED,
     MF_PREC_BF16,
     1,
     LATENT},
};

static void read_or_fail(mf_read *r, const recipe *x, mf_read_model *found, mf_plan *plan) {
    mf_err e;
    mf_err_clear(&e);
    mf_plan_init(plan);
    memset(found, 0, sizeof *found);
    mf_status s = mf_read_text(r, "recipe", x->text, NULL, &e);
    s = s == MF_OK ? mf_read_modelzoo(r, &e) : s;
    s = s == MF_OK ? mf_read_find_model(r, NULL, found, &e) : s;
    s = s == MF_OK ? mf_read_plan(r, &found->model, x->gpus, plan, &e) : s;
    if (s != MF_OK) {
        fail_msg("%s: %s", x->model, e.text);
    }
}

static void check_recipe(const recipe *x) {
    mf_read r = {0};
    mf_read_model found = {0};
    mf_plan p;
    mf_plan_init(&p);
    read_or_fail(&r, x, &found, &p);
    const mf_layout *l = &p.layout;
    const int64_t degree[5] = {l->tp, l->pp, l->vpp, l->ep, l->etp};
    assert_string_equal(found.name, x->model);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(degree[i], x->degree[i]);
    }
    assert_int_equal(l->gbs, x->gbs);
    assert_int_equal(l->seq, x->seq);
    assert_int_equal(l->schedule, x->schedule);
    assert_int_equal(l->dispatcher, x->dispatcher);
    assert_int_equal(l->precision, x->precision);
    assert_int_equal(l->zero, x->zero);
    assert_int_equal(p.assignment.memory[found.model.layers].recompute, x->recompute);
    assert_int_equal(r.unknown.count, 0);
    mf_read_clear(&r);
}

static void test_public_recipes_import_without_edits(void **state) {
    (void)state;
    const size_t count = sizeof recipes / sizeof recipes[0];
    assert_at_least(count, 20);
    for (size_t i = 0; i < count; i++) {
        check_recipe(&recipes[i]);
    }
}

/* HybridEP's exchange can reorder the rows; another exchange has no such kernel. */
static void test_rows_are_reordered_in_hybrideps_exchange_where_flags_say_so(void **state) {
    (void)state;
    static const struct {
        const char *flags;
        uint32_t traits;
    } rows[] = {
        {"--moe-flex-dispatcher-backend hybridep --moe-permute-fusion-into-hybridep",
         MF_TRAIT_DISPATCH_PERMUTES},
        {"--moe-flex-dispatcher-backend hybridep", 0},
        {"--moe-flex-dispatcher-backend deepep --moe-permute-fusion-into-hybridep", 0},
        {"--moe-permute-fusion-into-hybridep\nDISPATCHER=hybridep", MF_TRAIT_DISPATCH_PERMUTES},
        {"--moe-permute-fusion-into-hybridep\nDISPATCHER=alltoall", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[1024];
        snprintf(text, sizeof text,
                 MIXTRAL_8X22B ZOO(1, 1, 8) "--seq-length 4096 --moe-token-dispatcher-type flex %s",
                 rows[i].flags);
        const recipe x = {.text = text, .gpus = 64, .model = "mixtral-8x22b"};
        mf_read r = {0};
        mf_read_model found = {0};
        mf_plan p;
        mf_plan_init(&p);
        read_or_fail(&r, &x, &found, &p);
        assert_int_equal(p.layout.traits, rows[i].traits);
        assert_int_equal(r.unknown.count, 0);
        mf_read_clear(&r);
    }
}

/* Names that ModelZoo's model configurations still use: the first is the name of what
 * --experimental-attention-variant says today, the second chooses parameters that decay. */
static void test_flags_of_older_releases_are_known(void **state) {
    (void)state;
    const recipe x = {
        .text = MIXTRAL_8X22B ZOO(
            1, 1, 8) "--seq-length 4096\n"
                     "  --linear-attention-type gated_delta_net "
                     "--no-weight-decay-cond-type qwen3_next --apply-wd-to-qk-layernorm",
        .gpus = 64,
        .model = "mixtral-8x22b"};
    mf_read r = {0};
    mf_read_model found = {0};
    mf_plan p;
    mf_plan_init(&p);
    read_or_fail(&r, &x, &found, &p);
    assert_int_equal(r.unknown.count, 0);
    mf_read_clear(&r);
}

static void test_megatrons_defaults_hold_for_what_is_not_said(void **state) {
    (void)state;
    const recipe x = {.text = MIXTRAL_8X22B
                      "--tensor-model-parallel-size 2 --pipeline-model-parallel-size "
                      "4 --expert-model-parallel-size 4 --micro-batch-size 1 "
                      "--seq-length 4096 --bf16 --an-unknown-flag 3",
                      .gpus = 64,
                      .model = "mixtral-8x22b"};
    mf_read r = {0};
    mf_read_model found = {0};
    mf_plan p;
    mf_plan_init(&p);
    read_or_fail(&r, &x, &found, &p);
    assert_int_equal(p.layout.etp, 2); /* that of attention */
    assert_int_equal(p.layout.zero, 0);
    assert_int_equal(p.layout.gbs, 8); /* one micro-batch a rank */
    assert_int_equal(p.layout.dispatcher, MF_DISPATCH_ALLGATHER);
    assert_int_equal(p.layout.overlap & MF_OVERLAP_DP, 0);
    assert_int_equal(r.unknown.count, 1);
    assert_string_equal(r.unknown.item[0].name, "--an-unknown-flag");
    mf_read_clear(&r);
}

/* Benchmarks of Megatron-Bridge carry their size in their name. */
static void test_a_recipes_name_says_how_many_gpus(void **state) {
    (void)state;
    static const char text[] = "def qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config():\n"
                               "    cfg.model.expert_model_parallel_size = 16\n"
                               "    cfg.dataset.seq_length = 4096\n"
                               "    cfg.train.global_batch_size = 512\n"
                               "    cfg.train.micro_batch_size = 1\n";
    mf_read r = {0};
    mf_read_model found = {0};
    mf_plan p;
    mf_err e;
    mf_err_clear(&e);
    mf_plan_init(&p);
    assert_int_equal(mf_read_text(&r, "recipe.py", text, NULL, &e), MF_OK);
    mf_settings_put(&r.settings, "recipe", "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config");
    assert_int_equal(mf_read_find_model(&r, NULL, &found, &e), MF_OK);
    if (mf_read_plan(&r, &found.model, 0, &p, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    assert_int_equal(p.layout.gpus, 16);
    mf_settings_put(&r.settings, "recipe", "qwen3_30b_a3b_pretrain_config");
    assert_int_equal(mf_read_plan(&r, &found.model, 0, &p, &e), MF_INPUT); /* no size in it */
    mf_read_clear(&r);
}

/* A recipe as they are written: arguments and their defaults, constants, conditions, objects that
 * are made anew, a table of layouts. */
static void test_a_recipe_is_followed_through_its_functions(void **state) {
    (void)state;
    static const char text[] =
        "LONG: int = 2 * 4096  # tokens\n"
        "_HUB = \"mistralai/\" \"Mixtral-8x7B-v0.1\"\n"
        "def base(size=32, *, seq: int = 4096):\n"
        "    \"\"\"A text = that says nothing.\"\"\"\n"
        "    opt, plan = optimizers(rate=0.1)\n"
        "    cfg = ConfigContainer(model=None, train=TrainingConfig(global_batch_size=size,\n"
        "                                                           micro_batch_size=2),\n"
        "                          optimizer=opt, dataset=Data(seq_length=seq),\n"
        "                          ddp=Ddp(use_distributed_optimizer=True, "
        "overlap_grad_reduce=True))\n"
        "    cfg.comm_overlap = Overlap(overlap_moe_expert_parallel_comm=True)\n"
        "    return cfg\n"
        "def optimizers(rate):\n"
        "    made = Adam(exp_avg_dtype=torch.float32)\n"
        "    made.exp_avg_dtype = torch.bfloat16\n"
        "    return made, None\n"
        "def layouts(pp, vp):\n"
        "    table = {(1, 1): None,\n"
        "             (4, 1): [[\"embedding\"] + [\"decoder\"] * 9] + [[\"decoder\"] * 8] * 2 +\n"
        "                     [[\"decoder\"] * 7 + [\"loss\"]]}\n"
        "    if (pp, vp) not in table:\n"
        "        raise ValueError()\n"
        "    return table[(pp, vp)]\n"
        "def with_batch(cfg, batch):\n"
        "    cfg.train.global_batch_size = batch\n"
        "    return cfg\n"
        "def exchange(model, backend=None):\n"
        "    if machine.has(backend):\n"
        "        model.tensor_model_parallel_size = 8  # nobody knows\n"
        "    elif backend == \"none\":\n"
        "        return\n"
        "    if backend in (\"deepep\", \"hybridep\") and not model.moe_enable_deepep:\n"
        "        model.moe_token_dispatcher_type = \"flex\"\n"
        "    elif backend is None:\n"
        "        model.moe_token_dispatcher_type = \"allgather\"\n"
        "    else:\n"
        "        model.moe_token_dispatcher_type = \"alltoall\"\n"
        "def recipe_16gpu_config():\n"
        "    cfg = base(64, seq=LONG)\n"
        "    cfg.model = Auto.from_hf_pretrained(_HUB).to_megatron_provider(load_weights=False)\n"
        "    cfg.model.moe_enable_deepep = False\n"
        "    cfg.model.seq_length = cfg.dataset.seq_length if cfg.dataset.seq_length > 1 else 1\n"
        "    cfg.model.tensor_model_parallel_size = cfg.model.pipeline_model_parallel_size = 4\n"
        "    cfg.model.tensor_model_parallel_size = 1\n"
        "    cfg.model.expert_model_parallel_size = 4\n"
        "    cfg.model.pipeline_model_parallel_layout = layouts(4, 1)\n"
        "    cfg.model.moe_flex_dispatcher_backend = \"hybridep\"\n"
        "    exchange(cfg.model, backend=%s)\n"
        "    cfg.comm_overlap = Overlap(tp_comm_overlap=True)\n"
        "    cfg.mixed_precision = fast()\n"
        "    return with_batch(cfg, 128)\n"
        "def fast():\n"
        "    cfg = Precision(bf16=True, fp8=None)\n"
        "    cfg.fp8 = \"e4m3\"\n"
        "    cfg.fp8_recipe = \"mxfp8\"\n"
        "    return cfg\n";
    static const struct {
        const char *backend;
        mf_dispatcher dispatcher;
    } rows[] = {{"\"deepep\"", MF_DISPATCH_FUSED},
                {"\"other\"", MF_DISPATCH_ALLTOALL},
                {"None", MF_DISPATCH_ALLGATHER},
                {"\"none\"", MF_DISPATCH_ALLTOALL}}; /* what the model of the hub brings */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char own[sizeof text + 32];
        mf_read r = {0};
        mf_read_model found = {0};
        mf_plan p;
        mf_err e;
        mf_err_clear(&e);
        mf_plan_init(&p);
        snprintf(own, sizeof own, text, rows[i].backend);
        assert_int_equal(mf_read_text(&r, "recipe.py", own, "recipe_16gpu_config", &e), MF_OK);
        if (mf_read_find_model(&r, NULL, &found, &e) != MF_OK ||
            mf_read_plan(&r, &found.model, 16, &p, &e) != MF_OK) {
            fail_msg("%s", e.text);
        }
        const mf_layout *l = &p.layout;
        assert_string_equal(found.name, "mixtral-8x7b");
        assert_int_equal(l->gbs, 128);
        assert_int_equal(l->mbs, 2);
        assert_int_equal(l->seq, 8192);
        assert_int_equal(l->tp, 1);
        assert_int_equal(l->pp, 4);
        assert_int_equal(l->ep, 4);
        assert_int_equal(l->zero, 1);
        assert_int_equal(l->schedule, MF_SCHED_1F1B);
        assert_int_equal(l->precision, MF_PREC_MXFP8);
        assert_true(l->moments_bf16);
        assert_true((l->overlap & MF_OVERLAP_DP) != 0);
        assert_int_equal(l->dispatcher, rows[i].dispatcher);
        assert_int_equal(p.assignment.first[1], 10); /* the embedding and nine layers */
        assert_int_equal(p.assignment.first[3], 26);
        mf_read_clear(&r);
    }
}

/* A name is looked for where its module takes it from. */
static void test_functions_of_one_name_stay_apart(void **state) {
    (void)state;
    static const char library[] = "def start_config():\n"
                                  "    cfg.dataset.seq_length = 2048\n"
                                  "    set_degrees(cfg)\n"
                                  "def set_degrees(cfg):\n"
                                  "    cfg.model.expert_model_parallel_size = 2\n";
    static const char fast[] = "from lib.recipes.base import start_config as _start\n"
                               "def start_config():\n"
                               "    _start()\n"
                               "    set_degrees(cfg)\n"
                               "def set_degrees(cfg):\n"
                               "    cfg.model.pipeline_model_parallel_size = 2\n";
    mf_read r = {0};
    mf_err e;
    assert_int_equal(mf_read_text(&r, "src/lib/recipes/base.py", library, "none", &e), MF_OK);
    assert_int_equal(mf_read_text(&r, "src/lib/fast.py", fast, "start_config", &e), MF_OK);
    assert_string_equal(mf_settings_text(&r.settings, "dataset.seq_length", ""), "2048");
    assert_string_equal(mf_settings_text(&r.settings, "expert-model-parallel-size", ""), "2");
    assert_string_equal(mf_settings_text(&r.settings, "pipeline-model-parallel-size", ""), "2");
    mf_read_clear(&r);
}

/* A module that moefold cannot recompute is not passed over. */
static void test_modules_that_are_not_known_are_listed(void **state) {
    (void)state;
    mf_read r = {0};
    mf_read_model found = {0};
    mf_plan p;
    mf_err e;
    mf_err_clear(&e);
    mf_plan_init(&p);
    assert_int_equal(mf_read_text(&r, "flags",
                                  "--seq-length 4096 --micro-batch-size 1 --recompute-granularity "
                                  "selective --recompute-modules layernorm streams moe_act other",
                                  NULL, &e),
                     MF_OK);
    assert_int_equal(mf_read_find_model(&r, "mixtral-8x7b", &found, &e), MF_OK);
    assert_int_equal(mf_read_plan(&r, &found.model, 8, &p, &e), MF_OK);
    assert_string_equal(mf_settings_text(&r.unknown, "--recompute-modules", ""), "streams other");
    mf_read_clear(&r);
}

/* WAN, which makes videos, has the widths of Llama-2-13B. */
static void test_a_model_with_cross_attention_is_not_taken_for_one_of_its_widths(void **state) {
    (void)state;
    static const char widths[] = "model.num_layers=40 model.hidden_size=5120 "
                                 "model.ffn_hidden_size=13824 model.num_attention_heads=40";
    mf_read r = {0};
    mf_read_model found = {0};
    mf_err e;
    mf_err_clear(&e);
    assert_int_equal(mf_read_text(&r, "overrides", widths, NULL, &e), MF_OK);
    assert_int_equal(mf_read_find_model(&r, NULL, &found, &e), MF_OK);
    assert_string_equal(found.name, "llama2-13b");
    assert_int_equal(mf_read_text(&r, "overrides", "model.crossattn_emb_size=5120", NULL, &e),
                     MF_OK);
    assert_int_equal(mf_read_find_model(&r, NULL, &found, &e), MF_INPUT);
    mf_read_clear(&r);
}

/* Part of a name is another size of the family. */
static void test_another_size_is_another_model(void **state) {
    (void)state;
    static const struct {
        const char *recipe, *model; /* NULL: none that ships */
    } rows[] = {{"nemotron_3_nano_pretrain_8gpu_h100_bf16_config", "nemotron-3-nano"},
                {"nemotron_3_nano_30b_a3b_pretrain_config", "nemotron-3-nano"},
                {"nemotron_3_nano_4b_pretrain_8gpu_h100_bf16_config", NULL},
                {"deepseek_v3_pretrain_256gpu_gb200_fp8mx_config", "deepseek-v3"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mf_read r = {0};
        mf_read_model found = {0};
        mf_err e;
        mf_settings_put(&r.settings, "recipe", "%s", rows[i].recipe);
        const mf_status s = mf_read_find_model(&r, NULL, &found, &e);
        assert_int_equal(s, rows[i].model != NULL ? MF_OK : MF_INPUT);
        if (rows[i].model != NULL) {
            assert_string_equal(found.name, rows[i].model);
        }
        mf_read_clear(&r);
    }
}

static void test_the_launchers_defaults_stand_for_what_nobody_sets(void **state) {
    (void)state;
    static const char flags[] = "--tensor-model-parallel-size: ${TP}\n"
                                "--pipeline-model-parallel-size: ${PP}\n";
    mf_read r = {0};
    mf_err e;
    mf_err_clear(&e);
    assert_int_equal(
        mf_read_text(&r, "run.sh", "export MODEL=Mixtral-8x22B\nexport PP=4\n", NULL, &e), MF_OK);
    mf_read_modelzoo_defaults(&r);
    assert_int_equal(mf_read_text(&r, "model.yaml", flags, NULL, &e), MF_OK);
    assert_string_equal(mf_settings_text(&r.settings, "tensor-model-parallel-size", ""), "2");
    assert_string_equal(mf_settings_text(&r.settings, "pipeline-model-parallel-size", ""), "4");
    assert_string_equal(mf_settings_text(&r.variables, "NNODES", ""), "16");
    assert_int_equal(r.unknown.count, 0);
    mf_read_clear(&r);
}

/* A script of ModelZoo starts several jobs: neither flags nor variables of one reach another. */
static void test_one_of_several_launches_is_read(void **state) {
    (void)state;
    static const char text[] = MIXTRAL_8X22B
        "--global-batch-size 256 --seq-length 4096\n"
        "# PR=bf16 bash sbatch_benchmarking.sh --moe-expert-capacity-factor 1.0\n"
        "PR=fp8 DISPATCHER=alltoall NNODES=8 bash ./sbatch_benchmarking.sh --bf16 \\\n"
        "  --moe-expert-capacity-factor 1.0\n"
        "PR=bf16 DISPATCHER=hybridep NNODES=16 bash ./sbatch_benchmarking.sh --bf16\n";
    static const struct {
        const char *recipe;
        int64_t gpus;
        double capacity;
    } rows[] = {{NULL, 128, 0}, {"1", 64, 1}, {"2", 128, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mf_read r = {0};
        mf_read_model found = {0};
        mf_plan p;
        mf_err e;
        mf_err_clear(&e);
        assert_int_equal(mf_read_text(&r, "run.sh", text, rows[i].recipe, &e), MF_OK);
        assert_int_equal(mf_read_modelzoo(&r, &e), MF_OK);
        assert_int_equal(mf_read_find_model(&r, NULL, &found, &e), MF_OK);
        if (mf_read_plan(&r, &found.model, 0, &p, &e) != MF_OK) {
            fail_msg("%s", e.text);
        }
        assert_int_equal(r.launches, 2);
        assert_int_equal(p.layout.gpus, rows[i].gpus);
        assert_close(p.layout.capacity_factor, rows[i].capacity, 0);
        mf_read_clear(&r);
    }
    mf_read r = {0};
    mf_err e;
    mf_err_clear(&e);
    assert_int_equal(mf_read_text(&r, "run.sh", text, "3", &e), MF_INPUT);
    mf_read_clear(&r);
}

static void test_an_argument_dump_reads_as_the_flags_do(void **state) {
    (void)state;
    static const char dump[] =
        "[default0]:------------------------ arguments ------------------------\n"
        "[default0]:  bf16 ............................................ True\n"
        "[default0]:  expert_model_parallel_size ...................... 8\n"
        "[default0]:  expert_tensor_parallel_size ..................... 1\n"
        "[default0]:  global_batch_size ............................... 256\n"
        "[default0]:  group_query_attention ........................... True\n"
        "[default0]:  hidden_size ..................................... 6144\n"
        "[default0]:  kv_lora_rank .................................... 32\n"
        "[default0]:  micro_batch_size ................................ 1\n"
        "[default0]:  moe_token_dispatcher_type ....................... alltoall\n"
        "[default0]:  num_attention_heads ............................. 48\n"
        "[default0]:  num_experts ..................................... 8\n"
        "[default0]:  num_layers ...................................... 56\n"
        "[default0]:  num_query_groups ................................ 8\n"
        "[default0]:  overlap_p2p_comm ................................ True\n"
        "[default0]:  pipeline_model_parallel_size .................... 4\n"
        "[default0]:  recompute_granularity ........................... selective\n"
        "[default0]:  recompute_modules ............................... ['moe_act', 'layernorm']\n"
        "[default0]:  seq_length ...................................... 4096\n"
        "[default0]:  tensor_model_parallel_size ...................... 2\n"
        "[default0]:  use_distributed_optimizer ....................... True\n"
        "[default0]:  virtual_pipeline_model_parallel_size ............ 2\n"
        "[default0]:  world_size ...................................... 64\n";
    const recipe x = {.text = dump, .model = "mixtral-8x22b"};
    mf_read r = {0};
    mf_read_model found = {0};
    mf_plan p;
    mf_plan_init(&p);
    read_or_fail(&r, &x, &found, &p);
    assert_string_equal(found.name, "mixtral-8x22b");
    assert_int_equal(p.layout.gpus, 64);
    assert_int_equal(p.layout.vpp, 2);
    assert_int_equal(p.layout.overlap & MF_OVERLAP_PP, MF_OVERLAP_PP);
    assert_int_equal(p.assignment.memory[1].recompute, MF_RECOMPUTE_ACT | MF_RECOMPUTE_NORM);
    mf_read_clear(&r);
}

static void test_a_log_gives_medians_past_the_warm_up(void **state) {
    (void)state;
    mf_log l = {0};
    mf_log_read(&l,
                " iteration 1/ 9 | elapsed time per iteration (ms): 90000.0 | throughput per "
                "GPU (TFLOP/s/GPU): 10.0 |\n"
                "[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: "
                "70000.5 | reserved: 2\n"
                " iteration 2/ 9 | elapsed time per iteration (ms): 5000.0 | throughput per GPU "
                "(TFLOP/s/GPU): 400.0 |\n"
                " iteration 3/ 9 | elapsed time per iteration (ms): 5200.0 | throughput per GPU "
                "(TFLOP/s/GPU): 380.0 |\n");
    assert_int_equal(l.steps, 3);
    assert_int_equal(l.used, 2);
    assert_close(l.step_time_s, 5.1, 1e-9);
    assert_close(l.tflops, 390, 1e-9);
    assert_close(l.memory_B, 70000.5 * 1048576, 1);
    mf_log_clear(&l);
}

/* A line that is damaged is passed over, and what it would say with it. */
static void test_a_log_has_no_step_without_end(void **state) {
    (void)state;
    mf_log l = {0};
    mf_log_read(&l, " iteration 1/ 9 | elapsed time per iteration (ms): 1e308 | throughput per GPU "
                    "(TFLOP/s/GPU): inf |\n"
                    " iteration 2/ 9 | elapsed time per iteration (ms): nan | throughput per GPU "
                    "(TFLOP/s/GPU): -3 |\n"
                    "memory (MB) | allocated: 1.0 | max allocated: 1e300 | reserved: 2\n");
    assert_int_equal(l.steps, 0);
    assert_int_equal(l.rates, 0);
    assert_close(l.memory_B, 0, 0);
    mf_log_clear(&l);
}

/* Best practice of ModelZoo for DeepSeek-V3 on GB200: kept on the host, updated on the GPU. */
static void test_optimizer_states_may_wait_on_the_host(void **state) {
    static const char text[] = DEEPSEEK_V3 ZOO(1, 4, 64) V3_STAGES
        "--global-batch-size 8192 --seq-length 4096 --offload-optimizer-states "
        "--cuda-graph-impl transformer_engine --cuda-graph-warmup-steps 0";
    mf_read r = {0};
    mf_read_model found = {0};
    mf_plan p;
    mf_err e;
    (void)state;
    mf_err_clear(&e);
    mf_plan_init(&p);
    assert_int_equal(mf_read_text(&r, "run.sh", text, NULL, &e), MF_OK);
    assert_int_equal(mf_read_find_model(&r, NULL, &found, &e), MF_OK);
    assert_int_equal(mf_read_plan(&r, &found.model, 256, &p, &e), MF_OK);
    assert_true(p.layout.offload_optimizer == 1);
    assert_int_equal(r.unknown.count, 0);
    mf_plan_clear(&p);
    mf_read_clear(&r);
}

/* The degree that does not divide is ETP, which Megatron sets to TP where a script does not. */
static void test_a_degree_that_nobody_wrote_is_explained(void **state) {
    static const char *const ends[] = {"", "--expert-tensor-parallel-size 8"};
    (void)state;
    for (int said = 0; said < 2; said++) {
        char text[1024];
        mf_read r = {0};
        mf_read_model found = {0};
        mf_plan p;
        mf_err e;
        mf_err_clear(&e);
        mf_plan_init(&p);
        snprintf(text, sizeof text,
                 QWEN3_30B "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 "
                           "--expert-model-parallel-size 8 --global-batch-size 64 "
                           "--micro-batch-size 1 --seq-length 4096 %s",
                 ends[said]);
        assert_int_equal(mf_read_text(&r, "run.sh", text, NULL, &e), MF_OK);
        assert_int_equal(mf_read_find_model(&r, NULL, &found, &e), MF_OK);
        assert_int_equal(mf_read_plan(&r, &found.model, 64, &p, &e), MF_LAYOUT);
        assert_non_null(strstr(e.text, "ETP 8 x EP 8 x PP 2 = 128"));
        assert_int_equal(strstr(e.text, "ETP is TP") == NULL, said);
        mf_plan_clear(&p);
        mf_read_clear(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_public_recipes_import_without_edits),
        cmocka_unit_test(test_rows_are_reordered_in_hybrideps_exchange_where_flags_say_so),
        cmocka_unit_test(test_flags_of_older_releases_are_known),
        cmocka_unit_test(test_megatrons_defaults_hold_for_what_is_not_said),
        cmocka_unit_test(test_a_recipes_name_says_how_many_gpus),
        cmocka_unit_test(test_a_recipe_is_followed_through_its_functions),
        cmocka_unit_test(test_functions_of_one_name_stay_apart),
        cmocka_unit_test(test_modules_that_are_not_known_are_listed),
        cmocka_unit_test(test_a_model_with_cross_attention_is_not_taken_for_one_of_its_widths),
        cmocka_unit_test(test_another_size_is_another_model),
        cmocka_unit_test(test_the_launchers_defaults_stand_for_what_nobody_sets),
        cmocka_unit_test(test_one_of_several_launches_is_read),
        cmocka_unit_test(test_optimizer_states_may_wait_on_the_host),
        cmocka_unit_test(test_a_degree_that_nobody_wrote_is_explained),
        cmocka_unit_test(test_an_argument_dump_reads_as_the_flags_do),
        cmocka_unit_test(test_a_log_gives_medians_past_the_warm_up),
        cmocka_unit_test(test_a_log_has_no_step_without_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
