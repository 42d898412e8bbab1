/* Names and shapes of weight tensors against the weight files that Hugging Face transformers wrote
 * for small models (tests/data/hf: config.json and the list of its safetensors header). */
#include "tests/support/test.h"

#include "core/model/model.h"

#include <stdio.h>
#include <string.h>

#define TENSORS_MAX 1024

typedef struct listing {
    const mf_model *m;
    size_t count;
    struct {
        char name[128];
        long long rows, cols;
        bool seen;
    } list[TENSORS_MAX];
} listing;

static void read_listing(const char *path, listing *l) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (l->count < TENSORS_MAX &&
           fscanf(file, "%127s %lld %lld", l->list[l->count].name, &l->list[l->count].rows,
                  &l->list[l->count].cols) == 3) {
        l->count++;
    }
    assert_true(feof(file));
    assert_above(l->count, 0);
    fclose(file);
}

static int look_up(const mf_model_tensor *t, void *user) {
    listing *l = user;
    if (t->layer >= l->m->layers) {
        return 0; /* transformers leaves MTP blocks out of its weight files */
    }
    for (size_t i = 0; i < l->count; i++) {
        if (strcmp(l->list[i].name, t->name) == 0) {
            if (l->list[i].seen || l->list[i].rows != t->rows || l->list[i].cols != t->cols) {
                fail_msg("%s: [%lld, %lld], the file has [%lld, %lld]", t->name, (long long)t->rows,
                         (long long)t->cols, l->list[i].rows, l->list[i].cols);
            }
            l->list[i].seen = true;
            return 0;
        }
    }
    fail_msg("%s is not in the file", t->name);
    return 1;
}

static void check_family(const char *family) {
    static listing l;
    char path[128];
    mf_model m;
    mf_err e;
    memset(&l, 0, sizeof l);
    snprintf(path, sizeof path, "tests/data/hf/%s", family);
    if (mf_model_load(path, &m, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    assert_string_equal(m.family, family);
    snprintf(path, sizeof path, "tests/data/hf/%s/tensors.txt", family);
    l.m = &m;
    read_listing(path, &l);
    mf_model_tensors(&m, look_up, &l);
    for (size_t i = 0; i < l.count; i++) {
        if (!l.list[i].seen) {
            fail_msg("%s is in the file and was not reported", l.list[i].name);
        }
    }
}

static void llama_tensors_are_those_of_the_file(void **state) {
    (void)state;
    check_family("llama");
}

static void mixtral_tensors_are_those_of_the_file(void **state) {
    (void)state;
    check_family("mixtral");
}

static void qwen2_moe_tensors_are_those_of_the_file(void **state) {
    (void)state;
    check_family("qwen2_moe");
}

static void qwen3_moe_tensors_are_those_of_the_file(void **state) {
    (void)state;
    check_family("qwen3_moe");
}

static void deepseek_v3_tensors_are_those_of_the_file(void **state) {
    (void)state;
    check_family("deepseek_v3");
}

static void families_of_2026_have_the_tensors_of_the_file(void **state) {
    (void)state;
    check_family("minimax_m2");
    check_family("ernie4_5_moe");
    check_family("dots1");
    check_family("hy_v3");
    check_family("glm4_moe");
    check_family("olmoe");
    check_family("hunyuan_v1_moe");
    check_family("phimoe");
    check_family("mimo_v2_flash");
    check_family("qwen3_next");
    check_family("step3p5");
    check_family("step3_text");
}

/* A line for each expert's slice. */
static void experts_kept_in_one_tensor_are_its_slices(void **state) {
    (void)state;
    check_family("llama4_text");
    check_family("granitemoe");
    check_family("granitemoeshared");
}

typedef struct wanted {
    const char *name;
    int64_t rows, cols, layer;
    mf_weight_part part;
    bool buffer;
    int found;
} wanted;

static int match(const mf_model_tensor *t, void *user) {
    for (wanted *w = user; w->name != NULL; w++) {
        if (strcmp(w->name, t->name) == 0) {
            assert_int_equal(t->rows, w->rows);
            assert_int_equal(t->cols, w->cols);
            assert_int_equal(t->layer, w->layer);
            assert_int_equal(t->part, w->part);
            assert_int_equal(t->buffer, w->buffer);
            w->found++;
        }
    }
    return 0;
}

static void check_wanted(const char *name, wanted *list) {
    mf_model m;
    assert_ok(mf_model_load(name, &m, NULL));
    mf_model_tensors(&m, match, list);
    for (wanted *w = list; w->name != NULL; w++) {
        if (w->found != 1) {
            fail_msg("%s: %s reported %d times", name, w->name, w->found);
        }
    }
}

/* Names and shapes as the hub's DeepSeek-V3 index lists them for its MTP block, layer 61. */
static void mtp_blocks_come_as_one_more_layer(void **state) {
    (void)state;
    wanted list[] = {
        {"model.layers.61.enorm.weight", 7168, 1, 61, MF_PART_MTP, false, 0},
        {"model.layers.61.hnorm.weight", 7168, 1, 61, MF_PART_MTP, false, 0},
        {"model.layers.61.eh_proj.weight", 7168, 14336, 61, MF_PART_MTP, false, 0},
        {"model.layers.61.shared_head.norm.weight", 7168, 1, 61, MF_PART_MTP, false, 0},
        {"model.layers.61.mlp.experts.255.down_proj.weight", 7168, 2048, 61, MF_PART_EXPERT, false,
         0},
        {"model.layers.61.mlp.gate.e_score_correction_bias", 256, 1, 61, MF_PART_ROUTER, true, 0},
        {"model.layers.2.mlp.gate_proj.weight", 18432, 7168, 2, MF_PART_DENSE_FFN, false, 0},
        {"model.layers.3.mlp.shared_experts.up_proj.weight", 2048, 7168, 3, MF_PART_SHARED_EXPERT,
         false, 0},
        {"lm_head.weight", 129280, 7168, -1, MF_PART_HEAD, false, 0},
        {NULL, 0, 0, 0, MF_PART_MTP, false, 0},
    };
    check_wanted("deepseek-v3", list);
}

/* GPT-OSS keeps its experts in tensors over all experts, input-major; one slice is one expert's. */
static void gpt_oss_has_sinks_biases_and_fused_experts(void **state) {
    (void)state;
    wanted list[] = {
        {"model.layers.0.self_attn.sinks", 64, 1, 0, MF_PART_ATTENTION, false, 0},
        {"model.layers.0.self_attn.q_proj.bias", 4096, 1, 0, MF_PART_ATTENTION, false, 0},
        {"model.layers.0.self_attn.o_proj.bias", 2880, 1, 0, MF_PART_ATTENTION, false, 0},
        {"model.layers.7.mlp.router.bias", 32, 1, 7, MF_PART_ROUTER, false, 0},
        {"model.layers.7.mlp.experts.gate_up_proj[31]", 2880, 5760, 7, MF_PART_EXPERT, false, 0},
        {"model.layers.7.mlp.experts.gate_up_proj_bias[31]", 5760, 1, 7, MF_PART_EXPERT, false, 0},
        {"model.layers.7.mlp.experts.down_proj[0]", 2880, 2880, 7, MF_PART_EXPERT, false, 0},
        {NULL, 0, 0, 0, MF_PART_MTP, false, 0},
    };
    check_wanted("gpt-oss-20b", list);
}

static void other_families_name_their_norms_and_gates(void **state) {
    (void)state;
    wanted olmoe[] = {
        {"model.layers.0.self_attn.q_norm.weight", 2048, 1, 0, MF_PART_NORM, false, 0},
        {"model.layers.0.self_attn.k_norm.weight", 2048, 1, 0, MF_PART_NORM, false, 0},
        {NULL, 0, 0, 0, MF_PART_MTP, false, 0},
    };
    wanted glm[] = {
        {"model.layers.0.self_attn.q_norm.weight", 128, 1, 0, MF_PART_NORM, false, 0},
        {"model.layers.5.self_attn.k_proj.bias", 1024, 1, 5, MF_PART_ATTENTION, false, 0},
        {"model.layers.3.mlp.gate.weight", 160, 5120, 3, MF_PART_ROUTER, false, 0},
        {"model.layers.92.eh_proj.weight", 5120, 10240, 92, MF_PART_MTP, false, 0},
        {NULL, 0, 0, 0, MF_PART_MTP, false, 0},
    };
    wanted lite[] = {
        {"model.layers.0.self_attn.q_proj.weight", 3072, 2048, 0, MF_PART_ATTENTION, false, 0},
        {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 576, 2048, 0, MF_PART_ATTENTION,
         false, 0},
        {NULL, 0, 0, 0, MF_PART_MTP, false, 0},
    };
    check_wanted("olmoe-1b-7b", olmoe);
    check_wanted("glm-4.5", glm);
    check_wanted("deepseek-v2-lite", lite);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_tensors_are_those_of_the_file),
        cmocka_unit_test(mixtral_tensors_are_those_of_the_file),
        cmocka_unit_test(qwen2_moe_tensors_are_those_of_the_file),
        cmocka_unit_test(qwen3_moe_tensors_are_those_of_the_file),
        cmocka_unit_test(deepseek_v3_tensors_are_those_of_the_file),
        cmocka_unit_test(families_of_2026_have_the_tensors_of_the_file),
        cmocka_unit_test(experts_kept_in_one_tensor_are_its_slices),
        cmocka_unit_test(mtp_blocks_come_as_one_more_layer),
        cmocka_unit_test(gpt_oss_has_sinks_biases_and_fused_experts),
        cmocka_unit_test(other_families_name_their_norms_and_gates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
