/* Fuzz target: any bytes as a config.json, with overrides in front ("#key=value" lines). A model
 * that was accepted must be whole: counts positive and bounded, classes in range. */
#define MF_FUZZ_WORDS                                                                              \
    "\"model_type\": \"deepseek_v3\"", "\"model_type\": \"gpt_oss\"",                              \
        "\"model_type\": \"qwen3_moe\"", "\"text_config\": {", "\"layer_types\": [", "null", "-1", \
        "0", "1", "1e300", "9007199254740992", "512", "65536", "[", "]", "{", "}", ",", "true",    \
        "\"sliding_attention\"", "\n#num_hidden_layers=512\n", "#n_group=", "\"",                  \
        "\"moe_layer_freq\": [0, 1]", "\"moe_layer_freq\": 3", "\"mlp_only_layers\": [0]"
#include "tests/fuzz/driver.h"

#include "core/model/model_reader.h"

static void require(int truth) {
    if (!truth) {
        abort();
    }
}

static int few_tensors(const mf_model_tensor *t, void *user) {
    int *calls = user;
    require(t->rows > 0 && t->cols > 0 && t->name[0] != '\0' && t->active_share > 0 &&
            t->active_share <= 1);
    return ++*calls > 5000;
}

static void check_model(const mf_model *m) {
    mf_model_counts c;
    int calls = 0;
    require(m->layers >= 1 && m->layers <= MF_MODEL_MAX_LAYERS && m->heads > 0 && m->head_dim > 0);
    require(m->classes >= 1 && m->classes <= MF_MODEL_MAX_CLASSES);
    for (int64_t i = 0; i < m->layers; i++) {
        require(m->layer_class[i] < m->classes);
    }
    require(m->mtp_class < m->classes && m->top_k <= m->experts);
    mf_model_count(m, &c);
    require(c.total > 0 && c.total <= INT64_C(1000000000000000) && c.active > 0 &&
            c.active <= c.total && c.routed < c.total && c.mtp >= 0);
    double flops = mf_model_flops_per_token(m, 4096);
    require(flops > 0 && flops < 1e18);
    mf_model_tensors(m, few_tensors, &calls);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char lines[8][128];
    const char *overrides[8];
    size_t count = 0, at = 0;
    while (count < 8 && at < size && data[at] == '#') {
        size_t end = at + 1, used = 0;
        while (end < size && data[end] != '\n' && data[end] != '\0') {
            if (used + 1 < sizeof lines[0]) {
                lines[count][used++] = (char)data[end];
            }
            end++;
        }
        lines[count][used] = '\0';
        overrides[count] = lines[count];
        count++;
        at = end < size ? end + 1 : size;
    }
    mf_json *doc = NULL;
    mf_err e;
    if (mf_json_parse("fuzz", (const char *)data + at, size - at, &doc, &e) != MF_OK) {
        return 0;
    }
    mf_model m;
    mf_status st = mf_model_from_config(doc, "fuzz", overrides, count, &m, &e);
    require(st == MF_OK || st == MF_INPUT || st == MF_USAGE);
    if (st == MF_OK) {
        check_model(&m);
    } else {
        require(strpbrk(e.text, "\n\r\x1b") == NULL);
    }
    mf_json_destroy(doc);
    return 0;
}
