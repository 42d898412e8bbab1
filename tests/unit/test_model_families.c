/* Families of 2026 against published figures: parameters, what is left out, and what each can do.
 */
#include "tests/support/test.h"

#include "core/model/model.h"
#include "core/model/model_mixers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static mf_model loaded(const char *name) {
    mf_model m;
    mf_err e;
    if (mf_model_load(name, &m, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return m;
}

/* Sums of the published checkpoints' tensors without vision and copies, those of them that a token
 * uses, embedding and head with them, and those of MTP blocks; what is published, in billions: by
 * the card, or, where that rounds too far, by the weights at the hub.
 * - dots.llm1: its card and arXiv:2506.05767 cut to 142; the hub's safetensors.total of
 *   rednote-hilab/dots.llm1.base is 142,774,381,696.
 * - Kimi Linear: its card says 48; total_parameters in model.safetensors.index.json of
 *   moonshotai/Kimi-Linear-48B-A3B-Instruct is 49,122,681,728 (total_size 98,245,528,576), and
 *   llama-bench counts 49.12 B (ggml-org/llama.cpp, pull request 17592).
 * - Kimi K3: its card says 2.8 T; safetensors.total is 2,779,931,837,184, a tower for images of
 *   0.4 B in it.
 * - Nemotron 3: arXiv:2512.20848 for Nano; NVIDIA's page of Super says 120.6. */
static const struct published {
    const char *name;
    double total, active, mtp;
    double said;
} published[] = {
    {"deepseek-v4-flash", 284332230231, 13799622231, 6610048635, 284},
    {"gemma-4-26b-a4b", 25232441344, 3821830144, 0, 25.23},
    {"dots.llm1", 142774381696, 14016588928, 0, 142.774381696},
    {"ernie-4.5-21b-a3b", 21825437888, 3352150208, 0, 21.8},
    {"ernie-4.5-300b-a47b", 299484163264, 47926586560, 0, 300},
    {"hunyuan-a13b", 80393183232, 12747448320, 0, 80},
    {"hy3-preview", 295033543488, 20675730240, 3752612096, 295},
    {"ling-1t", 999705328640, 51054427136, 0, 1000},
    {"ling-mini-2.0", 16255643392, 1432973056, 0, 16.26},
    {"llama4-maverick", 400711848960, 17184691200, 0, 400},
    {"mimo-v2-flash", 308778780864, 15445936320, 0, 309},
    {"minimax-m2.5", 228689764864, 11030553088, 0, 229},
    {"phi-3.5-moe", 41873153344, 6640999744, 0, 41.9},
    {"step-3", 316294538240, 38841328640, 0, 316},
    {"step-3.5-flash", 196956130368, 11987323968, 844296960, 196.81},
    {"deepseek-v3.2", 671877929216, 38403807488, 11624027392, 671.88},
    {"glm-5", 743911199232, 41784709632, 9952920320, 743.911199232},
    {"glm-5.2", 743377000704, 41250511104, 9952920320, 743.377000704},
    {"granite-4.0-h-small", 32207337984, 8803121664, 0, 32.2},
    {"kimi-k3", 2779484476000, 105364017760, 0, 2779.931837184},
    {"kimi-linear-48b-a3b", 49122681728, 3484459904, 0, 49.122681728},
    {"ling-2.6-flash", 104186915584, 7449488128, 3307493376, 104},
    {"minimax-m3", 426174572928, 25962473856, 0, 426.2},
    {"minimax-text-01", 456089655296, 48403306496, 0, 456},
    {"nemotron-3-nano", 31577940288, 3580076352, 0, 31.577940288},
    {"nemotron-3-super", 120668707840, 12770237440, 2942325248, 120.6},
    {"nemotron-3-ultra", 549308993536, 56058843136, 11215610368, 550},
    {"nemotron-3.5-lightning", 31577940288, 3580076352, 1335325952, 31.578},
    {"nemotron-h-56b", 56324350464, 56324350464, 0, 56.3},
    {"qwen3-next-80b-a3b", 79674391296, 3874929408, 1650471424, 80},
    {"qwen3.5-27b", 26895998464, 26895998464, 424699392, 26.9},
    {"qwen3.5-397b-a17b", 396346350336, 17349040896, 6595568128, 397},
};
#define PUBLISHED (sizeof published / sizeof published[0])

static void counts_are_within_half_a_percent(void **state) {
    (void)state;
    for (size_t i = 0; i < PUBLISHED; i++) {
        const struct published *p = &published[i];
        mf_model m = loaded(p->name);
        mf_model_counts c;
        mf_model_count(&m, &c);
        /* Gemma's figure has no norms. */
        double off = p->said < 25.5 && p->said > 25.0 ? 1e-5 : 1e-6;
        if (fabs((double)c.total / p->total - 1) > off ||
            fabs((double)c.active / p->active - 1) > 1e-4 ||
            fabs((double)c.mtp - p->mtp) > 1e-4 * p->mtp) {
            fail_msg("%s: %lld parameters, %lld active, %lld of MTP; published %.0f, %.0f, %.0f",
                     p->name, (long long)c.total, (long long)c.active, (long long)c.mtp, p->total,
                     p->active, p->mtp);
        }
        if (fabs((double)c.total / 1e9 / p->said - 1) > 0.005) {
            fail_msg("%s: %.2f B parameters, published %.2f", p->name, (double)c.total / 1e9,
                     p->said);
        }
    }
}

/* What vendors call active: with both embeddings, without that of the input, without either. */
enum { WITH_BOTH, NO_INPUT, NEITHER };

/* As their cards say it, in billions, and the unit of its last digit. */
static const struct {
    const char *name;
    double said, unit;
    int counts;
} vendors[] = {
    {"dots.llm1", 14, 1, WITH_BOTH},
    {"phi-3.5-moe", 6.6, 0.1, WITH_BOTH},
    {"hunyuan-a13b", 13, 1, WITH_BOTH},
    {"llama4-maverick", 17, 1, WITH_BOTH},
    {"granite-4.0-h-small", 9, 1, WITH_BOTH},
    {"ling-2.6-flash", 7.4, 0.1, WITH_BOTH},
    {"nemotron-h-56b", 56, 1, WITH_BOTH},
    {"nemotron-3-super", 12.7, 0.1, WITH_BOTH},
    /* arXiv:2512.20848, section 1: "3.2B are activated per forward pass (3.6B including
     * embeddings)"; the card's 3.5 lies between. */
    {"nemotron-3-nano", 3.6, 0.1, WITH_BOTH},
    {"nemotron-3-nano", 3.2, 0.1, NO_INPUT},
    {"ling-mini-2.0", 1.43, 0.01, WITH_BOTH},
    {"ling-mini-2.0", 0.789, 0.001, NEITHER},
    {"mimo-v2-flash", 15, 1, NO_INPUT},
    {"hy3-preview", 21, 1, WITH_BOTH},
    {"ernie-4.5-300b-a47b", 47, 1, NO_INPUT},
    {"ling-1t", 50, 1, NO_INPUT},
    {"kimi-k3", 104, 1, NO_INPUT},
    {"kimi-linear-48b-a3b", 3, 1, NO_INPUT},
    {"deepseek-v4-flash", 13, 1, NO_INPUT},
    {"nemotron-3-ultra", 55, 1, NO_INPUT},
    {"step-3", 38, 1, NO_INPUT},
    {"step-3.5-flash", 11, 1, NEITHER},
    {"minimax-m2.5", 10, 1, NEITHER},
    {"minimax-m3", 23, 1, NEITHER},
    {"minimax-text-01", 45.9, 0.1, NEITHER},
    {"qwen3-next-80b-a3b", 3, 1, NEITHER},
    {"qwen3.5-397b-a17b", 17, 1, WITH_BOTH},
    {"deepseek-v3.2", 37, 1, NEITHER},
    {"glm-5", 40, 1, NEITHER},
    {"glm-5.2", 40, 1, NEITHER},
};

/* Half a percent beside the rounding of what is said. */
static void active_parameters_are_the_vendors_by_their_count(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof vendors / sizeof vendors[0]; i++) {
        mf_model m = loaded(vendors[i].name);
        mf_model_counts c;
        mf_model_count(&m, &c);
        const double embedding = (double)m.vocab * (double)m.hidden * 1e-9;
        const double is = (double)c.active * 1e-9 - vendors[i].counts * embedding;
        if (fabs(is - vendors[i].said) > 0.005 * vendors[i].said + 0.5 * vendors[i].unit) {
            fail_msg("%s: %.3f B active, its card says %g", m.name, is, vendors[i].said);
        }
    }
}

static void mtp_modules_and_towers_are_not_dropped_in_silence(void **state) {
    (void)state;
    assert_string_equal(loaded("minimax-m2.5").left_out,
                        "3 MTP modules, which the published weights lack");
    assert_non_null(strstr(loaded("ernie-4.5-21b-a3b").left_out, "MTP"));
    for (size_t i = 0; i < PUBLISHED; i++) {
        assert_null(strstr(loaded(published[i].name).left_out, "nobody reads"));
    }
}

/* --- layers ------------------------------------------------------------------------------------
 */

static const mf_layer_class *layer(const mf_model *m, int64_t i) {
    return &m->layer_classes[m->layer_class[i]];
}

static void llama4_sees_all_in_every_fourth_layer(void **state) {
    (void)state;
    mf_model m = loaded("llama4-maverick");
    for (int64_t i = 0; i < m.layers; i++) {
        bool all = (i + 1) % 4 == 0;
        assert_int_equal(layer(&m, i)->window, all ? 0 : 8192);
        assert_int_equal(layer(&m, i)->chunked, !all);
        assert_int_equal(layer(&m, i)->no_rope, all);
        assert_int_equal(layer(&m, i)->ffn, i % 2 == 1 ? MF_FFN_MOE : MF_FFN_DENSE);
    }
    assert_int_equal(m.ffn, 16384);
    assert_int_equal(m.moe_ffn, 8192);
    assert_int_equal(m.router_score, MF_ROUTER_TOPK_SIGMOID);
}

static void mimo_windows_have_heads_positions_and_sinks_of_their_own(void **state) {
    (void)state;
    mf_model m = loaded("mimo-v2-flash");
    int windows = 0;
    for (int64_t i = 0; i < m.layers; i++) {
        const mf_layer_class *x = layer(&m, i);
        bool window = x->window == 128;
        windows += window;
        assert_int_equal(mf_model_kv_heads(&m, x), window ? 8 : 4);
        assert_true(x->rope_theta == (window ? 10000 : 0));
        assert_int_equal(x->no_sinks, !window);
    }
    assert_int_equal(windows, 39);
    assert_true(m.head_dim == 192);
    assert_true(m.v_head_dim == 128);
    assert_true(m.value_scale == 0.707);
}

static void step_windows_have_more_heads_and_mtp_blocks_are_dense(void **state) {
    (void)state;
    mf_model m = loaded("step-3.5-flash");
    for (int64_t i = 0; i < m.layers; i++) {
        bool window = i % 4 != 0;
        assert_int_equal(mf_model_heads(&m, layer(&m, i)), window ? 96 : 64);
        assert_int_equal(layer(&m, i)->window, window ? 512 : 0);
        assert_int_equal(layer(&m, i)->ffn, i < 3 ? MF_FFN_DENSE : MF_FFN_MOE);
        assert_true(layer(&m, i)->partial_rotary == (window ? 1.0 : 0.5));
    }
    assert_int_equal(m.mtp_layers, 3);
    assert_int_equal(m.layer_classes[m.mtp_class].ffn, MF_FFN_DENSE);
    assert_int_equal(m.attn_gate, MF_ATTN_GATE_HEAD);
}

static void hybrids_mix_by_their_patterns(void **state) {
    (void)state;
    static const struct {
        const char *name;
        mf_mixer_kind mixer;
        int mixing, attending, moe;
    } cases[] = {
        {"qwen3.5-397b-a17b", MF_MIXER_GDN, 45, 15, 60},
        {"kimi-linear-48b-a3b", MF_MIXER_KDA, 20, 7, 26},
        {"kimi-k3", MF_MIXER_KDA, 69, 24, 92},
        {"nemotron-3-nano", MF_MIXER_MAMBA2, 23, 6, 23},
        {"nemotron-3-ultra", MF_MIXER_MAMBA2, 48, 12, 48},
        {"nemotron-h-56b", MF_MIXER_MAMBA2, 54, 10, 0},
        {"granite-4.0-h-small", MF_MIXER_MAMBA2, 36, 4, 40},
        {"ling-2.6-flash", MF_MIXER_LIGHTNING, 28, 4, 31},
        {"minimax-text-01", MF_MIXER_LIGHTNING, 70, 10, 80},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        mf_model m = loaded(cases[k].name);
        int mixing = 0, attending = 0, moe = 0;
        for (int64_t i = 0; i < m.layers; i++) {
            mixing += layer(&m, i)->mixer == cases[k].mixer;
            attending += layer(&m, i)->mixer == MF_MIXER_ATTENTION;
            moe += layer(&m, i)->ffn == MF_FFN_MOE;
        }
        assert_int_equal(mixing, cases[k].mixing);
        assert_int_equal(attending, cases[k].attending);
        assert_int_equal(moe, cases[k].moe);
    }
}

static void shared_choices_have_no_indexer(void **state) {
    (void)state;
    mf_model m = loaded("glm-5.2");
    int indexers = 0;
    for (int64_t i = 0; i < m.layers; i++) {
        indexers += layer(&m, i)->indexer;
    }
    assert_int_equal(indexers, 21);
    assert_int_equal(m.index_topk, 2048);
}

/* One layer's products, forward, as the sources of expected values have them: Qwen3.5-397B's delta
 * net 235.9 + 8.4 + 0.1 MFLOP, Kimi-K3's 887.2 + 12.6 + 0.3. */
static void mixers_cost_what_megatron_counts(void **state) {
    (void)state;
    static const struct {
        const char *name;
        mf_mixer_kind mixer;
        double mflop;
    } cases[] = {
        {"qwen3.5-397b-a17b", MF_MIXER_GDN, 244.4},
        {"kimi-k3", MF_MIXER_KDA, 900.1},
        {"nemotron-3-ultra", MF_MIXER_MAMBA2, 843 + 14.7},
        {"minimax-text-01", MF_MIXER_LIGHTNING, 503.3 + 8.4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mf_model m = loaded(cases[i].name);
        double mflop =
            2e-6 * mf_model_mixer_madds(&m, &(mf_layer_class){.mixer = cases[i].mixer}, 4096);
        if (fabs(mflop / cases[i].mflop - 1) > 0.01) {
            fail_msg("%s: %.1f MFLOP, expected %.1f", cases[i].name, mflop, cases[i].mflop);
        }
    }
}

static void numbers_of_python_are_taken(void **state) {
    (void)state;
    static const char path[] = "build/python_numbers.json";
    FILE *f = fopen(path, "wb");
    mf_model m;
    mf_err e;
    assert_non_null(f);
    fputs("{\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 2, "
          "\"num_attention_heads\": 4, \"intermediate_size\": 96, \"vocab_size\": 256, "
          "\"x_dropout\": NaN, \"y_dropout\": \"NaN\", \"time_step_limit\": [0.0, Infinity, "
          "-Infinity, NaN]}",
          f);
    fclose(f);
    assert_ok(mf_model_load(path, &m, &e));
    assert_string_equal(m.left_out, "");
    f = fopen(path, "wb");
    assert_non_null(f);
    fputs("{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": NaN}", f);
    fclose(f);
    assert_int_equal(mf_model_load(path, &m, &e), MF_INPUT);
    assert_non_null(strstr(e.text, ":1:64: \"hidden_size\": expected an integer"));
    remove(path);
}

static void a_chunk_counts_its_own_causal_square(void **state) {
    (void)state;
    mf_model m = loaded("llama4-maverick"), all = m;
    for (int i = 0; i < all.classes; i++) {
        all.layer_classes[i].window = 0;
        all.layer_classes[i].chunked = false;
    }
    assert_true(mf_model_flops_per_token(&m, 8192) == mf_model_flops_per_token(&all, 8192));
    double saved = mf_model_flops_per_token(&all, 32768) - mf_model_flops_per_token(&m, 32768);
    double expected = 6 * 36.0 * (40 * 2 * 128) * (32768 / 2.0 - 8192 / 2.0);
    assert_below(fabs(saved / expected - 1), 1e-9);
}

static void what_cannot_be_planned_or_run_is_said(void **state) {
    (void)state;
    static const struct {
        const char *name;
        const char *planned, *run, *gpu; /* what is missing; NULL: nothing */
    } cases[] = {
        {"minimax-m2.5", NULL, NULL, NULL},
        {"ernie-4.5-21b-a3b", NULL, NULL, NULL},
        {"dots.llm1", NULL, NULL, NULL},
        {"hy3-preview", NULL, NULL, NULL},
        {"ling-mini-2.0", NULL, NULL, NULL},
        {"mimo-v2-flash", NULL, NULL, NULL},
        {"hunyuan-a13b", NULL, NULL, NULL},
        {"llama4-maverick", NULL, NULL, NULL},
        {"phi-3.5-moe", NULL, NULL, NULL},
        {"step-3.5-flash", NULL, NULL, NULL},
        {"qwen3-next-80b-a3b", NULL, "gated delta nets", "gated delta nets"},
        {"kimi-k3", NULL, "Kimi delta attention", "Kimi delta attention"},
        {"nemotron-3-ultra", NULL, "Mamba-2", "Mamba-2"},
        {"minimax-text-01", NULL, "lightning attention", "lightning attention"},
        {"glm-5.2", NULL, "sparse attention with an indexer", "sparse attention with an indexer"},
        {"deepseek-v4-flash", NULL, "attention over compressed keys",
         "attention over compressed keys"},
        {"gemma-4-26b-a4b", NULL, "heads of several widths", "heads of several widths"},
        {"step-3", NULL, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mf_model m = loaded(cases[i].name);
        const char *said[] = {mf_model_not_lowered(&m), mf_model_not_executed(&m),
                              mf_model_not_on_gpu(&m)};
        const char *want[] = {cases[i].planned, cases[i].run, cases[i].gpu};
        for (int k = 0; k < 3; k++) {
            if ((said[k] == NULL) != (want[k] == NULL) ||
                (want[k] != NULL && strcmp(said[k], want[k]) != 0)) {
                fail_msg("%s: %s", cases[i].name, said[k] != NULL ? said[k] : "nothing is missing");
            }
        }
    }
}

/* Granite-3.1-1B-A400M, by hand: embedding and final norm; attention, two norms, router and experts
 * of 24 layers. */
static void granite_counts_tied_embeddings_once(void **state) {
    (void)state;
    mf_model m = loaded("granite-3.1-1b-a400m");
    mf_model_counts c;
    mf_model_count(&m, &c);
    const int64_t outer = 49155 * 1024 + 1024, inner = 3 * 1024 * 1024 + 2 * 1024 + 1024 * 32;
    assert_int_equal(c.total, outer + 24 * (inner + 32 * 3 * 1024 * 512));
    assert_int_equal(c.active, outer + 24 * (inner + 8 * 3 * 1024 * 512));
    assert_true(m.tied_embeddings);
    assert_true(m.embedding_multiplier == 12.0);
}

/* Ratios 0, 4 and 128 in turn; of each 107.8, 126.9 and 112.0 million parameters, those that mix
 * the streams with them. */
static void deepseek_v4_compresses_keys_by_layer(void **state) {
    (void)state;
    mf_model m = loaded("deepseek-v4-flash");
    int layers[3] = {0};
    for (int64_t i = 0; i < m.layers; i++) {
        const mf_layer_class *x = layer(&m, i);
        mf_mixer_tensor list[2 * MF_MIXER_TENSORS_MAX];
        int n = mf_model_mixer_tensors(&m, x, list);
        n += mf_model_hyper_tensors(&m, list + n);
        double sum = 0;
        for (int k = 0; k < n; k++) {
            sum += (double)(list[k].rows * list[k].cols);
        }
        int kind = x->compress == 0 ? 0 : x->compress == 4 ? 1 : 2;
        const double want[] = {107.742838e6, 126.88511e6, 112.00319e6};
        assert_below(fabs(sum / want[kind] - 1), 1e-6);
        assert_int_equal(x->window, 128);
        layers[kind]++;
    }
    assert_true(layers[0] == 2);
    assert_true(layers[1] == 21);
    assert_true(layers[2] == 20);
    assert_int_equal(m.layer_classes[m.mtp_class].compress, 0);
}

typedef struct router_tensors {
    int tables, corrections;
} router_tensors;

static int note_router(const mf_model_tensor *t, void *user) {
    router_tensors *n = user;
    const char *part = strstr(t->name, ".mlp.gate.");
    if (part != NULL && strcmp(part, ".mlp.gate.tid2eid") == 0) {
        assert_true(t->buffer);
        assert_true(t->rows == 129280);
        assert_true(t->cols == 6);
        assert_true(t->layer == n->tables);
        n->tables++;
    } else if (part != NULL && strcmp(part, ".mlp.gate.e_score_correction_bias") == 0) {
        n->corrections++;
    }
    return 0;
}

/* A table has the experts of a token in the first three layers, none in the MTP block; a bias
 * chooses elsewhere. */
static void deepseek_v4_routes_by_token_at_first(void **state) {
    (void)state;
    mf_model m = loaded("deepseek-v4-flash");
    router_tensors n = {0, 0};
    assert_string_equal(m.left_out, "");
    for (int64_t i = 0; i < m.layers; i++) {
        assert_int_equal(layer(&m, i)->hashed, i < 3);
    }
    assert_false(m.layer_classes[m.mtp_class].hashed);
    mf_model_tensors(&m, note_router, &n);
    assert_int_equal(n.tables, 3);
    assert_int_equal(n.corrections, 43 - 3 + 1);
}

/* "layer_types", "compress_rates" and "mlp_layer_types" say what "compress_ratios" and
 * "num_hash_layers" do. */
static void deepseek_v4_is_read_as_transformers_writes_it(void **state) {
    (void)state;
    char types[4096] = "layer_types=[", ffns[2048] = "mlp_layer_types=[";
    static const char *const words[] = {"sliding_attention", "compressed_sparse_attention",
                                        "heavily_compressed_attention"};
    for (int i = 0; i < 43; i++) {
        size_t at = strlen(types), end = strlen(ffns);
        int k = i < 2 ? 0 : i % 2 == 0 ? 1 : 2;
        snprintf(types + at, sizeof types - at, "\"%s\"%s", words[k], i < 42 ? ", " : "]");
        snprintf(ffns + end, sizeof ffns - end, "\"%s\"%s", i < 3 ? "hash_moe" : "moe",
                 i < 42 ? ", " : "]");
    }
    const char *const set[] = {"compress_ratios=null", "num_hash_layers=null", types, ffns,
                               "compress_rates={\"compressed_sparse_attention\": 4, "
                               "\"heavily_compressed_attention\": 128}"};
    mf_model shipped = loaded("deepseek-v4-flash"), m;
    mf_model_identity a, b;
    mf_err e;
    assert_ok(mf_model_load_with("deepseek-v4-flash", set, sizeof set / sizeof set[0], &m, &e));
    mf_model_identify(&shipped, &a);
    mf_model_identify(&m, &b);
    assert_string_equal(m.left_out, "");
    assert_string_equal(a.fingerprint, b.fingerprint);
    for (size_t i = 2; i < 4; i++) { /* a word that nobody knows */
        const char *const bad[] = {"compress_ratios=null", i == 2 ? "layer_types=[\"x\"]" : types,
                                   i == 3 ? "mlp_layer_types=[\"x\"]" : ffns,
                                   "num_hidden_layers=1"};
        assert_int_equal(mf_model_load_with("deepseek-v4-flash", bad, 4, &m, &e), MF_INPUT);
        assert_non_null(strstr(e.text, "expected \""));
    }
}

/* Every sixth layer sees everything, with heads of 512 whose values are their keys. */
static void gemma4_has_two_kinds_of_heads(void **state) {
    (void)state;
    mf_model m = loaded("gemma-4-26b-a4b");
    for (int64_t i = 0; i < m.layers; i++) {
        const mf_layer_class *x = layer(&m, i);
        bool full = (i + 1) % 6 == 0;
        assert_int_equal(mf_model_head_dim(&m, x), full ? 512 : 256);
        assert_int_equal(mf_model_kv_heads(&m, x), full ? 2 : 8);
        assert_int_equal(x->window, full ? 0 : 1024);
        assert_int_equal(x->k_is_v, full);
    }
    assert_int_equal(m.shared_ffn, 2112);
}

/* All that ship; most of the families are known to Megatron-Bridge. */
static void everything_that_ships_is_planned(void **state) {
    (void)state;
    size_t count, known = 0;
    const char *const *names = mf_model_shipped(&count);
    for (size_t i = 0; i < count; i++) {
        mf_model m = loaded(names[i]);
        assert_null(mf_model_not_lowered(&m));
        known += mf_model_in_bridge(&m);
    }
    mf_model llama4 = loaded("llama4-maverick"), glm = loaded("glm-5");
    assert_false(mf_model_in_bridge(&llama4));
    mf_model k3 = loaded("kimi-k3"), linear = loaded("kimi-linear-48b-a3b");
    assert_true(mf_model_in_bridge(&k3));
    assert_true(!mf_model_in_bridge(&linear));
    assert_true(mf_model_in_bridge(&glm));
    assert_above(2 * known, count);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_within_half_a_percent),
        cmocka_unit_test(active_parameters_are_the_vendors_by_their_count),
        cmocka_unit_test(mtp_modules_and_towers_are_not_dropped_in_silence),
        cmocka_unit_test(llama4_sees_all_in_every_fourth_layer),
        cmocka_unit_test(mimo_windows_have_heads_positions_and_sinks_of_their_own),
        cmocka_unit_test(step_windows_have_more_heads_and_mtp_blocks_are_dense),
        cmocka_unit_test(hybrids_mix_by_their_patterns),
        cmocka_unit_test(shared_choices_have_no_indexer),
        cmocka_unit_test(mixers_cost_what_megatron_counts),
        cmocka_unit_test(numbers_of_python_are_taken),
        cmocka_unit_test(a_chunk_counts_its_own_causal_square),
        cmocka_unit_test(what_cannot_be_planned_or_run_is_said),
        cmocka_unit_test(everything_that_ships_is_planned),
        cmocka_unit_test(deepseek_v4_compresses_keys_by_layer),
        cmocka_unit_test(deepseek_v4_routes_by_token_at_first),
        cmocka_unit_test(deepseek_v4_is_read_as_transformers_writes_it),
        cmocka_unit_test(granite_counts_tied_embeddings_once),
        cmocka_unit_test(gemma4_has_two_kinds_of_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
