/* Lowered programs of the families of 2026: parameters and forward FLOPs are the model's. */
#include "core/program/lower.h"
#include "tests/support/test.h"

#include <math.h>

static const char *const models[] = {
    "dots.llm1",   "ernie-4.5-21b-a3b", "ernie-4.5-300b-a47b", "hunyuan-a13b",    "hy3-preview",
    "ling-1t",     "ling-mini-2.0",     "llama4-maverick",     "mimo-v2-flash",   "minimax-m2.5",
    "phi-3.5-moe", "step-3.5-flash",    "minimax-m3",          "gemma-4-26b-a4b",
};
/* With layers whose FLOPs Megatron counts by other formulas (tests/property/test_lower_mixers.c),
 * or with one KV head, which every TP rank projects. */
static const char *const mixed[] = {
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "glm-5",
    "glm-5.2",
    "granite-4.0-h-small",
    "kimi-k3",
    "kimi-linear-48b-a3b",
    "ling-2.6-flash",
    "minimax-text-01",
    "nemotron-3-nano",
    "nemotron-3-ultra",
    "nemotron-3.5-lightning",
    "nemotron-h-56b",
    "qwen3-next-80b-a3b",
    "qwen3.5-27b",
    "qwen3.5-397b-a17b",
    "step-3",
};
#define MIXED (sizeof mixed / sizeof mixed[0])
#define MODELS (sizeof models / sizeof models[0])

typedef struct fixture {
    mf_model m;
    mf_layout l;
    mf_program *p;
} fixture;

static fixture lowered(const char *name, int64_t tp, int64_t ep, int64_t seq) {
    fixture w;
    mf_cluster c;
    mf_assignment a;
    mf_err e;
    mf_layout_init(&w.l);
    w.l.gpus = tp * ep;
    w.l.tp = tp;
    w.l.ep = ep;
    w.l.gbs = w.l.gpus;
    w.l.mbs = 1;
    w.l.seq = seq;
    if (mf_model_load(name, &w.m, &e) != MF_OK || mf_cluster_load("h200", &c, &e) != MF_OK ||
        mf_layout_resolve(&w.l, &w.m, &e) != MF_OK ||
        mf_assignment_even(&w.m, &w.l, &a, &e) != MF_OK ||
        mf_program_lower(&w.m, &w.l, &c, &a, &w.p, &e) != MF_OK) {
        fail_msg("%s: %s", name, e.text);
    }
    return w;
}

static void parameters_are_those_of_the_model(void **state) {
    (void)state;
    for (size_t i = 0; i < MODELS + MIXED; i++) {
        const char *name = i < MODELS ? models[i] : mixed[i - MODELS];
        mf_model m;
        assert_ok(mf_model_load(name, &m, NULL));
        int64_t ep = m.experts > 0 ? 8 : 1;
        fixture w = lowered(name, 1, ep, 4096);
        mf_param_count n = mf_program_stage_params(w.p, 0);
        mf_model_counts c;
        mf_model_count(&w.m, &c);
        const int64_t padding = mf_model_local_vocab(&w.m, 1) - w.m.vocab;
        const int64_t tables = w.m.tied_embeddings ? 1 : 2;
        double sum = (double)n.dense + (double)ep * (double)n.expert;
        double all = (double)(c.total + c.mtp + padding * w.m.hidden * tables);
        if (fabs(sum - all) > 0.5) {
            fail_msg("%s: %.0f parameters lowered, %.0f in the model and its tables' padding", name,
                     sum, all);
        }
        mf_program_destroy(w.p);
    }
}

/* Megatron's convention halves the causal square and leaves the router out. */
static void forward_flops_are_those_of_the_model(void **state) {
    (void)state;
    for (size_t i = 0; i < MODELS; i++) {
        for (int64_t seq = 4096; seq <= 32768; seq *= 8) {
            fixture w = lowered(models[i], 2, 4, seq);
            double sum = 0.0, router = 0.0;
            for (int k = 0; k < w.p->assignment.positions; k++) {
                const mf_block *b = w.p->blocks[w.p->block_of[k]];
                sum += b->flops_f;
                router += b->params.expert > 0 ? 2.0 * (double)(w.m.hidden * w.m.experts) : 0.0;
            }
            double per_token = sum / (double)(w.l.mbs * seq) * (double)w.l.tp - router;
            double want = mf_model_flops_per_token(&w.m, seq) / 3.0;
            if (fabs(per_token / want - 1.0) > 1e-3) {
                fail_msg("%s at %lld: %.4g FLOP a token lowered, %.4g in the model", models[i],
                         (long long)seq, per_token, want);
            }
            mf_program_destroy(w.p);
        }
    }
}

static const mf_op *attention_of(const fixture *w, int layer, mf_op_kind kind) {
    const mf_block *b = w->p->blocks[w->p->block_of[1 + layer]];
    for (int i = 0; i < b->nforward; i++) {
        if (b->ops[i].kind == kind) {
            return &b->ops[i];
        }
    }
    return NULL;
}

static void layers_attend_with_their_own_heads_and_windows(void **state) {
    (void)state;
    fixture w = lowered("mimo-v2-flash", 4, 2, 32768);
    const mf_op *full = attention_of(&w, 0, MF_OP_ATTENTION_FWD);
    const mf_op *window = attention_of(&w, 1, MF_OP_ATTENTION_FWD);
    assert_int_equal(full->dim[MF_OP_DIM_KV_HEADS], 1);
    assert_int_equal(window->dim[MF_OP_DIM_KV_HEADS], 2);
    assert_int_equal(window->dim[MF_OP_DIM_WINDOW], 128);
    assert_int_equal(full->dim[MF_OP_DIM_D_QK], 192);
    assert_int_equal(full->dim[MF_OP_DIM_D_V], 128);
    assert_int_equal(full->nin, 3);
    assert_int_equal(window->nin, 4); /* sinks */
    mf_program_destroy(w.p);
    w = lowered("step-3.5-flash", 8, 1, 4096);
    assert_int_equal(attention_of(&w, 0, MF_OP_ATTENTION_FWD)->dim[MF_OP_DIM_HEADS], 8);
    assert_int_equal(attention_of(&w, 1, MF_OP_ATTENTION_FWD)->dim[MF_OP_DIM_HEADS], 12);
    assert_non_null(attention_of(&w, 1, MF_OP_GATE_FWD));
    mf_program_destroy(w.p);
}

static void a_chunk_costs_its_own_causal_square(void **state) {
    (void)state;
    fixture w = lowered("llama4-maverick", 8, 1, 32768);
    double chunk = attention_of(&w, 0, MF_OP_ATTENTION_FWD)->flops;
    double all = attention_of(&w, 3, MF_OP_ATTENTION_FWD)->flops;
    assert_below(fabs(chunk / all - 4 * 8192.0 * 8193.0 / (32768.0 * 32769.0)), 1e-9);
    mf_program_destroy(w.p);
}

static void what_lowering_does_not_know_is_refused_by_name(void **state) {
    (void)state;
    mf_model m;
    mf_layout l;
    mf_cluster c;
    mf_assignment a;
    mf_program *p = NULL;
    mf_err e;
    assert_ok(mf_model_load("step-3", &m, &e));
    m.qk_norm = true;
    assert_ok(mf_cluster_load("h200", &c, &e));
    mf_layout_init(&l);
    l.gpus = l.gbs = 1;
    l.seq = 4096;
    assert_ok(mf_layout_resolve(&l, &m, &e));
    assert_ok(mf_assignment_even(&m, &l, &a, &e));
    assert_int_equal(mf_program_lower(&m, &l, &c, &a, &p, &e), MF_INFEASIBLE);
    assert_string_equal(e.text, "step-3: low-rank queries beside gates or norms of q and k can be "
                                "read and counted, not planned yet");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_those_of_the_model),
        cmocka_unit_test(forward_flops_are_those_of_the_model),
        cmocka_unit_test(layers_attend_with_their_own_heads_and_windows),
        cmocka_unit_test(a_chunk_costs_its_own_causal_square),
        cmocka_unit_test(what_lowering_does_not_know_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
