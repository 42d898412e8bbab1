/* Public configs of 2026, written anew as what a shipped model and a few keys say (architectures of
 * the files that ai-dynamo/aiconfigurator 095f58a collects, 83 of its 86): parameters, total and
 * active, and what is left out. The sums come from formulas of their own, layer by layer. */
#include "tests/support/test.h"

#include "core/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* V4-Pro: a ratio for each layer and one for the MTP block. */
#define RATIOS_10 "4, 128, 4, 128, 4, 128, 4, 128, 4, 128, "
#define RATIOS                                                                                     \
    "compress_ratios=[128, 128, " RATIOS_10 RATIOS_10 RATIOS_10 RATIOS_10 RATIOS_10                \
    "4, 128, 4, 128, 4, 128, 4, 128, 4, 0]"

static const struct {
    int files;               /* that say this, in BF16, FP8 and NVFP4, of several releases */
    int nested;              /* of them with the text inside "text_config", beside a tower */
    const char *is;          /* one of them */
    const char *model, *set; /* "|" between keys */
    double total, active;
} configs[] = {
    {4, 0, "MiniMax-M2.7", "minimax-m2.5", "attn_type_list=null", 228689748992, 11030537216},
    {2, 1, "MiniMax-M3", "minimax-m3", "moe_intermediate_size=3072", 426174565632, 25962466560},
    {1, 0, "Qwen3-0.6B", "qwen3-8b",
     "hidden_size=1024|num_hidden_layers=28|num_attention_heads=16|intermediate_size=3072|"
     "tie_word_embeddings=true",
     596049920, 596049920},
    {2, 1, "Qwen3-VL-2B", "qwen3-8b",
     "hidden_size=2048|num_hidden_layers=28|num_attention_heads=16|intermediate_size=6144|"
     "tie_word_embeddings=true",
     1720574976, 1720574976},
    {1, 1, "Qwen3-VL-4B", "qwen3-8b",
     "hidden_size=2560|intermediate_size=9728|tie_word_embeddings=true", 4022468096, 4022468096},
    {2, 1, "Qwen3-VL-8B", "qwen3-8b", "", 8190735360, 8190735360},
    {5, 2, "Qwen3-VL-32B", "qwen3-8b",
     "hidden_size=5120|num_hidden_layers=64|num_attention_heads=64|intermediate_size=25600",
     32762123264, 32762123264},
    {3, 1, "Qwen3-VL-30B-A3B", "qwen3-30b-a3b", "", 30532122624, 3353032704},
    {4, 1, "Qwen3-VL-235B-A22B", "qwen3-235b-a22b", "", 235093634560, 22190763520},
    {1, 0, "Qwen3-Coder-480B-A35B", "qwen3-30b-a3b",
     "hidden_size=6144|num_hidden_layers=62|num_attention_heads=96|num_key_value_heads=8|"
     "intermediate_size=8192|moe_intermediate_size=2560|num_experts=160|use_qk_norm=true",
     480154875392, 35474765312},
    {2, 2, "Qwen3.5-27B", "qwen3.5-27b", "output_gate_type=swish", 26895998464, 26895998464},
    {2, 2, "Qwen3.5-35B-A3B", "qwen3.5-397b-a17b",
     "hidden_size=2048|num_hidden_layers=40|num_attention_heads=16|moe_intermediate_size=512|"
     "shared_expert_intermediate_size=512|num_experts=256|num_experts_per_tok=8|"
     "linear_num_value_heads=32",
     34660610688, 3454988928},
    {2, 2, "Qwen3.5-122B-A10B", "qwen3.5-397b-a17b",
     "hidden_size=3072|num_hidden_layers=48|num_experts=256|num_experts_per_tok=8", 122111526912,
     9771288576},
    {2, 2, "Qwen3.5-397B-A17B", "qwen3.5-397b-a17b", "", 396346350336, 17349040896},
    {1, 0, "MiMo-7B", "mimo-7b", "", 7622619136, 7622619136},
    {1, 0, "MiMo-V2-Flash", "mimo-v2-flash", "", 308778768832, 15445924288},
    {3, 0, "DeepSeek-V3", "deepseek-v3", "", 671026404352, 37552282624},
    {2, 0, "DeepSeek-V3.2", "deepseek-v3.2", "", 671877929216, 38403807488},
    {3, 0, "DeepSeek-V4-Flash", "deepseek-v4-flash", "", 284332230231, 13799622231},
    {3, 0, "DeepSeek-V4-Pro", "deepseek-v4-flash",
     "hidden_size=7168|num_hidden_layers=61|num_attention_heads=128|moe_intermediate_size=3072|"
     "n_routed_experts=384|q_lora_rank=1536|index_topk=1024|o_groups=16|" RATIOS,
     1572997179491, 49779058787},
    {2, 2, "Gemma-4-26B-A4B", "gemma-4-26b-a4b", "", 25232631040, 3822019840},
    {1, 1, "Gemma-4-31B", "gemma-4-26b-a4b",
     "hidden_size=5376|num_hidden_layers=60|layer_types=null|num_attention_heads=32|"
     "num_key_value_heads=16|num_global_key_value_heads=4|intermediate_size=21504|"
     "enable_moe_block=false",
     30696700160, 30696700160},
    {1, 1, "Llama-4-Maverick", "llama4-maverick", "", 400711848960, 17184691200},
    {1, 1, "Llama-4-Scout", "llama4-maverick",
     "num_local_experts=16|interleave_moe_layer_step=1|rope_scaling={\"rope_type\": \"llama3\", "
     "\"factor\": 16, \"low_freq_factor\": 1, \"high_freq_factor\": 1}",
     107769861120, 17172894720},
    {1, 0, "Llama-3.1-405B", "llama3-405b", "", 405853388800, 405853388800},
    {2, 0, "Llama-3.1-70B", "llama3-405b",
     "hidden_size=8192|num_hidden_layers=80|num_attention_heads=64|intermediate_size=28672",
     70553706496, 70553706496},
    {1, 0, "Llama-3.1-8B", "llama3-8b", "", 8030261248, 8030261248},
    {1, 0, "Mixtral-8x22B", "mixtral-8x22b", "vocab_size=32000", 140620634112, 39152031744},
    {1, 0, "Mixtral-8x7B", "mixtral-8x7b", "", 46702792704, 12879925248},
    {5, 4, "Kimi-K2.6", "kimi-k2",
     "rope_scaling={\"type\": \"yarn\", \"factor\": 64, \"beta_fast\": 32, \"mscale\": 1, "
     "\"mscale_all_dim\": 1, \"original_max_position_embeddings\": 4096}",
     1026408209408, 32861477888},
    {1, 1, "Kimi-K3", "kimi-k3", "", 2779481712736, 105361254496},
    {6, 0, "GLM-5.1", "glm-5", "", 743911199232, 41784709632},
    {3, 0, "GLM-5.2", "glm-5.2", "", 743377000704, 41250511104},
    {2, 0, "Nemotron-3-Nano", "nemotron-3-nano", "", 31577937344, 3580073408},
    {2, 0, "Nemotron-3-Super", "nemotron-3-super", "", 120668687360, 12770216960},
    {3, 0, "Nemotron-3-Ultra", "nemotron-3-ultra", "", 549308968960, 56058818560},
    {1, 0, "Nemotron-3.5-Lightning", "nemotron-3.5-lightning", "", 31577937344, 3580073408},
    {1, 0, "Nemotron-H-56B", "nemotron-h-56b", "", 56324350464, 56324350464},
    {1, 0, "GPT-OSS-120B", "gpt-oss-120b", "", 116829156672, 5711982912},
    {1, 0, "GPT-OSS-20B", "gpt-oss-20b", "", 20914757184, 4187440704},
};
#define CONFIGS (sizeof configs / sizeof configs[0])

/* The text of a config, with what storage, generation and the hub add to it. */
static char *write_config(size_t i, mf_err *e) {
    char keys[1024], *text = NULL;
    const char *set[16];
    size_t n = 0, length = 0;
    snprintf(keys, sizeof keys, "%s", configs[i].set);
    for (char *at = strtok(keys, "|"); at != NULL; at = strtok(NULL, "|")) {
        set[n++] = at;
    }
    if (strstr(configs[i].model, "qwen3.5") != NULL) {
        set[n++] = "layer_types=null"; /* every fourth layer attends in any case */
    }
    if (mf_model_config_text(configs[i].model, set, n, &text, &length, e) != MF_OK) {
        fail_msg("%s: %s", configs[i].is, e->text);
    }
    return text;
}

static mf_model read_text(const char *text) {
    mf_json *doc = NULL;
    mf_model m;
    mf_err e;
    if (mf_json_parse("config.json", text, strlen(text), &doc, &e) != MF_OK ||
        mf_model_from_json(doc, "x", &m, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    mf_json_destroy(doc);
    return m;
}

static void check_counts(size_t i, const mf_model *m) {
    mf_model_counts c;
    mf_model_count(m, &c);
    if (fabs((double)c.total / configs[i].total - 1) > 1e-9 ||
        fabs((double)c.active / configs[i].active - 1) > 1e-9) {
        fail_msg("%s: %lld parameters, %lld active; expected %.0f and %.0f", configs[i].is,
                 (long long)c.total, (long long)c.active, configs[i].total, configs[i].active);
    }
}

static void most_of_86_public_configs_are_read(void **state) {
    (void)state;
    int files = 0;
    for (size_t i = 0; i < CONFIGS; i++) {
        mf_err e;
        char *text = write_config(i, &e);
        mf_model m = read_text(text);
        check_counts(i, &m);
        assert_null(strstr(m.left_out, "nobody reads"));
        files += configs[i].files;
        free(text);
    }
    printf("%d of 86 files\n", files);
    assert_int_equal(files, 83);
}

/* The same text beside a tower reads the same, and the tower is named. */
static void text_beside_a_tower_reads_the_same(void **state) {
    (void)state;
    for (size_t i = 0; i < CONFIGS; i++) {
        mf_err e;
        char *text = write_config(i, &e);
        size_t size = strlen(text) + 256;
        char *whole = malloc(size);
        assert_non_null(whole);
        snprintf(whole, size,
                 "{\"architectures\": [\"SomeForConditionalGeneration\"], \"image_token_id\": 7, "
                 "\"vision_config\": {\"depth\": 27, \"model_type\": \"some\"}, "
                 "\"text_config\": %s}",
                 text);
        if (configs[i].nested > 0 && strstr(text, "text_config") == NULL) {
            mf_model m = read_text(whole);
            check_counts(i, &m);
            assert_non_null(strstr(m.left_out, "a vision tower (\"vision_config\")"));
        }
        free(whole);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(most_of_86_public_configs_are_read),
        cmocka_unit_test(text_beside_a_tower_reads_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
