/* Shipped models against public figures: parameters as the hub counts them, FLOPs per token; and
 * loading by name and by path. */
#include "core/base/paths.h"
#include "tests/support/test.h"

#include "core/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static mf_model loaded(const char *name) {
    mf_model m;
    mf_err e;
    if (mf_model_load(name, &m, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return m;
}

/* --- parameters ------------------------------------------------------------------------------ */

/* Totals as the weight files on the hub hold them (the safetensors count of each repository), so
 * to the last parameter; buffers and MTP left out where the file has them. */
static void totals_equal_the_published_weight_files(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t total;
    } cases[] = {
        {"llama2-7b", 6738415616},         {"llama2-13b", 13015864320},
        {"llama2-70b", 68976648192},       {"llama3-8b", 8030261248},
        {"llama3-70b", 70553706496},       {"llama3-405b", 405853388800},
        {"mixtral-8x7b", 46702792704},     {"qwen1.5-moe-a2.7b", 14315784192},
        {"qwen2-57b-a14b", 57408658944},   {"qwen2.5-7b", 7615616512},
        {"qwen2.5-32b", 32763876352},      {"qwen3-8b", 8190735360},
        {"qwen3-30b-a3b", 30532122624},    {"qwen3-235b-a22b", 235093634560},
        {"deepseek-v2-lite", 15706484224}, {"deepseek-v2", 235741434880},
        {"deepseek-v3", 671026404352},     {"olmoe-1b-7b", 6919161856},
        {"gpt-oss-20b", 20914757184},      {"gpt-oss-120b", 116829156672},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mf_model m = loaded(cases[i].name);
        mf_model_counts c;
        mf_model_count(&m, &c);
        if (c.total != cases[i].total) {
            fail_msg("%s: %lld parameters, published %lld", cases[i].name, (long long)c.total,
                     (long long)cases[i].total);
        }
    }
}

static int add_buffers(const mf_model_tensor *t, void *user) {
    int64_t *sum = user;
    *sum += t->buffer ? t->rows * t->cols : 0;
    return 0;
}

/* The same for repositories whose files also hold MTP blocks with their own copies of embedding and
 * head, and the selection biases. */
static void totals_with_mtp_and_buffers_equal_the_weight_files(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t total;
        bool buffers; /* counted in `total` */
    } cases[] = {
        {"deepseek-v3", 3918786560 + 680571043840, false}, /* BF16 + FP8; F32 is scales, biases */
        {"glm-4.5", 358337791296, true},
        {"kimi-k2", 1026408232448, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mf_model m = loaded(cases[i].name);
        mf_model_counts c;
        int64_t buffers = 0;
        mf_model_count(&m, &c);
        mf_model_tensors(&m, add_buffers, &buffers);
        int64_t sum = c.total + c.mtp + 2 * m.mtp_layers * m.vocab * m.hidden +
                      (cases[i].buffers ? buffers : 0);
        if (sum != cases[i].total) {
            fail_msg("%s: %lld, published %lld", cases[i].name, (long long)sum,
                     (long long)cases[i].total);
        }
    }
}

/* What model cards round to: billions, and how far the rounding may be off. */
static void totals_and_active_counts_meet_the_model_cards(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double total, active; /* 1e9 */
        double tolerance;     /* relative, of both */
        bool head_only;       /* the card counts the head but not the embedding */
    } cases[] = {
        {"deepseek-v3", 671.0, 37.0, 0.02, false},
        {"deepseek-v2", 236.0, 21.0, 0.02, false},
        {"deepseek-v2-lite", 15.7, 2.4, 0.03, true},
        {"kimi-k2", 1040.0, 32.6, 0.015, false},
        {"mixtral-8x7b", 46.7, 12.9, 0.003, false},
        {"mixtral-8x22b", 140.6, 39.1, 0.003, false},
        {"qwen1.5-moe-a2.7b", 14.3, 2.7, 0.01, false},
        {"qwen2-57b-a14b", 57.4, 14.2, 0.01, false},
        {"qwen3-30b-a3b", 30.5, 3.3, 0.02, false},
        {"qwen3-235b-a22b", 235.1, 22.2, 0.002, false},
        {"gpt-oss-20b", 20.91, 3.61, 0.001, true},
        {"gpt-oss-120b", 116.83, 5.13, 0.001, true},
        {"olmoe-1b-7b", 6.92, 1.28, 0.003, false},
        {"glm-4.5", 355.0, 33.0, 0.02, false},
        {"moonlight-16b-a3b", 15.96, 2.91, 0.003, false},
        {"internal-352b", 352.0, 45.3, 0.002, false},
        {"mixtral-8x22b-g8t8", 140.6, 22.3, 0.003, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mf_model m = loaded(cases[i].name);
        mf_model_counts c;
        mf_model_count(&m, &c);
        double active = (double)c.active;
        active -= cases[i].head_only ? (double)m.vocab * (double)m.hidden : 0;
        if (fabs((double)c.total / 1e9 / cases[i].total - 1) > cases[i].tolerance ||
            fabs(active / 1e9 / cases[i].active - 1) > cases[i].tolerance) {
            fail_msg("%s: %.3f B total, %.3f B active; card %.3f, %.3f", cases[i].name,
                     (double)c.total / 1e9, active / 1e9, cases[i].total, cases[i].active);
        }
    }
}

typedef struct totals {
    int64_t all, experts, mtp;
    double active;
    const mf_model *m;
} totals;

static int add_tensor(const mf_model_tensor *t, void *user) {
    totals *sum = user;
    int64_t elements = t->rows * t->cols;
    if (t->buffer) {
        return 0;
    }
    if (t->layer >= sum->m->layers) {
        sum->mtp += elements;
        return 0;
    }
    sum->all += elements;
    sum->active += (double)elements * t->active_share;
    sum->experts += t->part == MF_PART_EXPERT ? elements : 0;
    return 0;
}

static void counts_are_the_sums_over_the_tensors(void **state) {
    (void)state;
    size_t count;
    const char *const *names = mf_model_shipped(&count);
    for (size_t i = 0; i < count; i++) {
        mf_model m = loaded(names[i]);
        mf_model_counts c;
        totals sum = {.m = &m};
        mf_model_count(&m, &c);
        mf_model_tensors(&m, add_tensor, &sum);
        assert_int_equal(sum.all, c.total);
        assert_int_equal(sum.experts, c.routed);
        assert_int_equal(sum.mtp, c.mtp);
        assert_below(fabs(sum.active - (double)c.active), 1e-9 * sum.active);
    }
}

static int stop_at_third(const mf_model_tensor *t, void *user) {
    int *calls = user;
    (void)t;
    return ++*calls == 3;
}

static void a_walk_over_tensors_stops_at_a_non_zero_return(void **state) {
    (void)state;
    mf_model m = loaded("deepseek-v3");
    int calls = 0;
    mf_model_tensors(&m, stop_at_third, &calls);
    assert_int_equal(calls, 3);
}

/* --- FLOPs ----------------------------------------------------------------------------------- */

static void check_flops(const mf_model *m, int64_t seq, double expected_gflop, double tolerance) {
    double gflop = mf_model_flops_per_token(m, seq) / 1e9;
    if (fabs(gflop / expected_gflop - 1) > tolerance) {
        fail_msg("%s at %lld: %.3f GFLOP per token, expected %.3f", m->name, (long long)seq, gflop,
                 expected_gflop);
    }
}

/* Published with Megatron-LM's formula (NVIDIA's tables; Llama-3 at the 8K of its recipe). */
static void flops_per_token_are_those_of_megatron(void **state) {
    (void)state;
    mf_model m = loaded("deepseek-v3");
    check_flops(&m, 4096, 260.0, 5e-4);
    m.mtp_layers = 0;
    check_flops(&m, 4096, 249.7, 1e-3);
    m = loaded("qwen3-235b-a22b");
    check_flops(&m, 4096, 148.0, 5e-4);
    m = loaded("llama3-70b");
    check_flops(&m, 8192, 449.0, 1e-3);
    m = loaded("internal-352b");
    check_flops(&m, 8192, 282.5, 5e-4);
}

static void causal_half_attention_is_counted(void **state) {
    (void)state;
    mf_model m = loaded("llama3-70b");
    double causal = mf_model_flops_per_token(&m, 8192);
    double half = 6.0 * (double)m.layers * (double)(m.heads * m.head_dim) * 8192;
    assert_below(fabs((causal + half) / 1e9 / 481.4 - 1), 1e-3); /* the same with full attention */
    assert_below(fabs(mf_model_flops_per_token(&m, 16384) - causal - half), 1e-6 * causal);
}

static void a_window_counts_what_it_reaches(void **state) {
    (void)state;
    mf_model m = loaded("gpt-oss-20b");
    mf_model full = m;
    for (int i = 0; i < full.classes; i++) {
        full.layer_classes[i].window = 0;
    }
    /* up to the window nothing differs; far beyond it, a layer costs W keys per token */
    assert_true(mf_model_flops_per_token(&m, 128) == mf_model_flops_per_token(&full, 128));
    double seq = 1 << 20, layers = 12, width = 2.0 * 64 * 64;
    double saved = 6 * layers * width * (seq / 2 - (128 - 128.0 * 128 / 2 / seq));
    double difference =
        mf_model_flops_per_token(&full, 1 << 20) - mf_model_flops_per_token(&m, 1 << 20);
    assert_below(fabs(difference / saved - 1), 1e-9);
}

/* --- names and paths ------------------------------------------------------------------------- */

static void every_shipped_name_loads_under_its_name(void **state) {
    (void)state;
    size_t count;
    const char *const *names = mf_model_shipped(&count);
    assert_at_least(count, 17);
    for (size_t i = 0; i < count; i++) {
        mf_model m = loaded(names[i]);
        assert_string_equal(m.name, names[i]);
        if (i > 0) {
            assert_below(strcmp(names[i - 1], names[i]), 0);
        }
        char path[512];
        struct stat info;
        snprintf(path, sizeof path, "%s/models/%s.json", mf_data_dir(), names[i]);
        assert_int_equal(stat(path, &info), 0);
    }
}

static void models_of_the_command_line_are_shipped(void **state) {
    (void)state;
    static const char *const wanted[] = {
        "llama3-8b",       "llama3-70b",     "llama3-405b",      "mixtral-8x7b",
        "mixtral-8x22b",   "qwen2-57b-a14b", "qwen3-30b-a3b",    "qwen1.5-moe-a2.7b",
        "qwen3-235b-a22b", "deepseek-v2",    "deepseek-v2-lite", "deepseek-v3",
        "kimi-k2",         "gpt-oss-20b",    "gpt-oss-120b",     "olmoe-1b-7b",
        "glm-4.5"};
    size_t count;
    const char *const *names = mf_model_shipped(&count);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        bool found = false;
        for (size_t j = 0; j < count; j++) {
            found = found || strcmp(names[j], wanted[i]) == 0;
        }
        assert_true(found);
    }
}

static void a_path_may_be_a_folder_or_a_file(void **state) {
    (void)state;
    mf_model m = loaded("tests/data/hf/mixtral");
    assert_string_equal(m.name, "mixtral");
    m = loaded("tests/data/hf/mixtral/");
    assert_string_equal(m.name, "mixtral");
    m = loaded("tests/data/hf/qwen3_moe/config.json");
    assert_string_equal(m.name, "qwen3_moe");
    char path[600];
    snprintf(path, sizeof path, "%s/models/olmoe-1b-7b.json", mf_data_dir());
    m = loaded(path);
    assert_string_equal(m.name, "olmoe-1b-7b");
}

static void an_unknown_name_is_bad_usage_with_the_nearest(void **state) {
    (void)state;
    mf_model m;
    mf_err e;
    assert_int_equal(mf_model_load("deepsek-v3", &m, &e), MF_USAGE);
    assert_string_equal(e.text, "unknown model \"deepsek-v3\"; did you mean \"deepseek-v3\"?");
    assert_int_equal(mf_model_load("", &m, &e), MF_USAGE);
    assert_int_equal(mf_model_load("xyzzy", &m, &e), MF_USAGE);
    assert_non_null(strstr(e.text, "no such file"));
    assert_int_equal(mf_model_load("no/such/config.json", &m, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "no/such/config.json: cannot be opened"));
    assert_int_equal(mf_model_load("tests/unit", &m, &e), MF_INPUT);
}

static void the_data_folder_follows_the_environment(void **state) {
    (void)state;
    mf_model m;
    mf_err e;
    char *before = strdup(mf_data_dir());
    assert_int_equal(setenv("MOEFOLD_DATA", "/nowhere", 1), 0);
    assert_string_equal(mf_data_dir(), "/nowhere");
    assert_int_equal(mf_model_load("deepseek-v3", &m, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "/nowhere/models/deepseek-v3.json"));
    assert_int_equal(unsetenv("MOEFOLD_DATA"), 0);
    assert_string_equal(mf_data_dir(), before);
    free(before);
}

/* Whole groups of eight rows a rank, which leave no rank without one; every row has a place. */
static void ranks_share_the_vocabulary_in_groups(void **state) {
    (void)state;
    static const struct {
        int64_t vocab, tp, rows;
    } cases[] = {{128000, 1, 128000}, {128167, 1, 128168}, {128167, 8, 16024}, {49155, 2, 24584},
                 {61, 1, 64},         {61, 4, 16},         {48, 4, 12},        {9, 4, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const mf_model m = {.vocab = cases[i].vocab};
        assert_int_equal(mf_model_local_vocab(&m, cases[i].tp), cases[i].rows);
    }
    for (mf_model m = {.vocab = 64}; m.vocab < 2000; m.vocab++) {
        for (int64_t tp = 1; tp <= 8; tp *= 2) {
            const int64_t rows = mf_model_local_vocab(&m, tp);
            assert_at_least(rows * tp, m.vocab);
            assert_at_most(rows * (tp - 1), m.vocab - 1);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_share_the_vocabulary_in_groups),
        cmocka_unit_test(totals_equal_the_published_weight_files),
        cmocka_unit_test(totals_with_mtp_and_buffers_equal_the_weight_files),
        cmocka_unit_test(totals_and_active_counts_meet_the_model_cards),
        cmocka_unit_test(counts_are_the_sums_over_the_tensors),
        cmocka_unit_test(a_walk_over_tensors_stops_at_a_non_zero_return),
        cmocka_unit_test(flops_per_token_are_those_of_megatron),
        cmocka_unit_test(causal_half_attention_is_counted),
        cmocka_unit_test(a_window_counts_what_it_reaches),
        cmocka_unit_test(every_shipped_name_loads_under_its_name),
        cmocka_unit_test(models_of_the_command_line_are_shipped),
        cmocka_unit_test(a_path_may_be_a_folder_or_a_file),
        cmocka_unit_test(an_unknown_name_is_bad_usage_with_the_nearest),
        cmocka_unit_test(the_data_folder_follows_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
