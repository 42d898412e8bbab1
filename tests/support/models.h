/* models.h - small models and random valid layouts for tests that need no files. */
#ifndef MF_TESTS_MODELS_H
#define MF_TESTS_MODELS_H

#include "core/cluster/cluster.h"
#include "core/layout/layout.h"
#include "tests/support/rng.h"

#include <string.h>

/* A Mixture-of-Experts model with one dense layer in front; mla: latent attention and a shared
 * expert as in DeepSeek-V3, else grouped-query attention. */
static inline mf_model test_model_moe(bool mla) {
    mf_model m = {
        .layers = 8,
        .mtp_layers = mla ? 1 : 0,
        .hidden = 1024,
        .vocab = 32000,
        .attn = mla ? MF_ATTN_MLA : MF_ATTN_GQA,
        .heads = 16,
        .kv_heads = mla ? 16 : 4,
        .head_dim = mla ? 96 : 64,
        .q_lora_rank = mla ? 256 : 0,
        .kv_lora_rank = mla ? 128 : 0,
        .qk_nope_head_dim = mla ? 64 : 0,
        .qk_rope_head_dim = mla ? 32 : 0,
        .v_head_dim = 64,
        .qk_norm = !mla,
        .ffn = 4096,
        .moe_ffn = 512,
        .experts = 32,
        .top_k = 4,
        .shared_ffn = mla ? 512 : 0,
        .n_group = 1,
        .topk_group = 1,
        .routed_scaling = 1.0,
        .aux_loss_coef = 0.001,
        .classes = 2,
        .layer_classes = {{.ffn = MF_FFN_DENSE}, {.ffn = MF_FFN_MOE}},
        .layer_class = {0, 1, 1, 1, 1, 1, 1, 1},
        .mtp_class = 1,
    };
    strcpy(m.name, mla ? "test-mla-moe" : "test-gqa-moe");
    return m;
}

static inline mf_model test_model_dense(void) {
    mf_model m = test_model_moe(false);
    m.experts = m.top_k = m.moe_ffn = 0;
    m.qk_norm = false;
    m.classes = 1;
    memset(m.layer_class, 0, sizeof m.layer_class);
    strcpy(m.name, "test-dense");
    return m;
}

static inline mf_cluster test_cluster(void) {
    mf_cluster c = {
        .gpu = {.peak_flops = {67e12, 989e12, 1979e12, 0},
                .memory_B = 80e9,
                .memory_Bps = 3.35e12,
                .l2_B = 50e6,
                .sms = 132},
        .gpus_per_node = 8,
        .domain_gpus = 8,
        .domain_gpus_used = 8,
        .scaleup_Bps = 450e9,
        .scaleup_pair_Bps = 450e9,
        .scaleup_latency_s = 2e-6,
        .nic_Bps = 50e9,
        .nic_efficiency = 0.9,
        .nic_latency_s = 5e-6,
        .host_Bps = 55e9,
        .host_memory_B = 256e9,
        .tiers = 1,
    };
    strcpy(c.name, "test-cluster");
    strcpy(c.gpu.name, "test-gpu");
    c.tier[0] = (mf_tier){.gpus = 1 << 20, .oversubscription = 1.0, .latency_s = 5e-6};
    return c;
}

/* A random layout of up to max_gpus that keeps every rule for the model. */
static inline mf_layout test_random_layout(rng *r, const mf_model *m, int64_t max_gpus) {
    for (;;) {
        mf_layout l;
        mf_layout_init(&l);
        l.tp = rng_pow2(r, 8);
        l.cp = rng_pow2(r, 4);
        l.pp = rng_range(r, 0, 2) ? rng_pow2(r, 4) : rng_range(r, 1, 3);
        l.ep = m->experts ? rng_pow2(r, 32) : 1;
        l.etp = m->experts ? rng_pow2(r, 2) : 1;
        int64_t dense = l.tp * l.cp, expert = l.ep * l.etp;
        int64_t stage = (dense > expert ? dense : expert) * rng_pow2(r, 4);
        l.gpus = stage * l.pp;
        l.seq = 2048;
        l.mbs = rng_pow2(r, 4);
        if (l.gpus > max_gpus || l.gpus % (l.tp * l.cp * l.pp)) {
            continue;
        }
        int64_t dp = l.gpus / (l.tp * l.cp * l.pp);
        l.gbs = l.mbs * dp * rng_range(r, 1, 4) * (rng_range(r, 0, 1) ? l.pp : 1);
        l.schedule = (mf_schedule_kind)rng_range(r, 0, MF_SCHED_COUNT - 1);
        l.vpp = l.schedule == MF_SCHED_ZB_V ? 2
                : l.schedule == MF_SCHED_INTERLEAVED || l.schedule == MF_SCHED_MERGED
                    ? rng_range(r, 1, 2)
                    : 1;
        l.dispatcher = (mf_dispatcher)rng_range(r, 0, MF_DISPATCH_COUNT - 1);
        l.cp_type = (mf_cp_type)rng_range(r, 0, MF_CP_COUNT - 1);
        l.overlap = (uint8_t)rng_range(r, 0, 31);
        l.zero = (uint8_t)rng_range(r, 0, 3);
        l.expert_zero = (uint8_t)rng_range(r, 0, 3);
        l.precision = (mf_precision)rng_range(r, 0, MF_PREC_FP8_BLOCK);
        l.memory.recompute = (uint16_t)(rng_range(r, 0, 1) ? rng_range(r, 0, 511) : 0);
        l.memory.offload = (uint16_t)(rng_range(r, 0, 3) ? 0 : rng_range(r, 0, 63));
        l.token_headroom = rng_range(r, 0, 1) ? 1.0 : 1.25;
        if (mf_layout_valid(&l, m)) {
            return l;
        }
    }
}

#endif
