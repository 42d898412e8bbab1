/* The kernels put together to five small models, against Hugging Face's numbers for the same
 * weights and data: logits, loss, auxiliary losses, every gradient, and ten AdamW steps with
 * clipping. */
#include "tests/support/hf_model.h"
#include "tests/support/sampled.h"

#include "core/base/json.h"

enum { SAMPLES = 4, SEQ = 64, ROWS = SAMPLES * SEQ, STEPS = 10 };
static const double bound = 1e-5; /* relative norm; Hugging Face itself moves by 3e-6 in float64 */

typedef struct reference {
    hf_model *h;
    mf_json *expected;
    mf_safetensors *batch, *gradients;
    int32_t input[ROWS], label[ROWS];
} reference;

static void open_reference(reference *r, const char *family) {
    mf_err e;
    char folder[128], path[192];
    snprintf(folder, sizeof folder, "tests/data/hf/%s", family);
    r->h = calloc(1, sizeof *r->h);
    assert_non_null(r->h);
    hf_open(r->h, folder, SAMPLES, SEQ);
    snprintf(path, sizeof path, "%s/expected.json", folder);
    assert_ok(mf_json_load(path, &r->expected, &e));
    snprintf(path, sizeof path, "%s/batch.safetensors", folder);
    assert_ok(mf_safetensors_open(path, &r->batch, &e));
    snprintf(path, sizeof path, "%s/gradients.safetensors", folder);
    assert_ok(mf_safetensors_open(path, &r->gradients, &e));
}

static void close_reference(reference *r) {
    hf_close(r->h);
    free(r->h);
    mf_json_destroy(r->expected);
    mf_safetensors_close(r->batch);
    mf_safetensors_close(r->gradients);
}

/* Sample j is tokens[64 j .. 64 j + 64]; batch i holds samples 4 i .. 4 i + 3. */
static void take_batch(reference *r, int64_t batch) {
    const mf_st_tensor *tokens = mf_safetensors_find(r->batch, "tokens");
    for (int64_t i = 0; i < ROWS; i++) {
        r->input[i] = (int32_t)mf_st_get(tokens, batch * ROWS + i);
        r->label[i] = (int32_t)mf_st_get(tokens, batch * ROWS + i + 1);
    }
}

static double number(const mf_json_value *object, const char *key) {
    double x = NAN;
    assert_ok(mf_json_get_f64(object, key, -1e300, 1e300, &x, NULL));
    return x;
}

static double relative(const float *got, const mf_st_tensor *want) {
    double difference = 0.0, size = 0.0;
    for (int64_t i = 0; i < want->count; i++) {
        double y = (double)mf_st_get(want, i), d = (double)got[i] - y;
        difference += d * d;
        size += y * y;
    }
    return sqrt(difference) / (sqrt(size) + 1e-30);
}

static void near(const char *what, double got, double want) {
    if (!(fabs(got - want) <= bound * (fabs(want) + 1e-30))) {
        fail_msg("%s: %.9g, expected %.9g", what, got, want);
    }
}

static void check_first_batch(reference *r) {
    float *logits = malloc(sizeof(float) * ROWS * (size_t)r->h->m.vocab);
    const mf_json_value *top = mf_json_root(r->expected);
    assert_non_null(logits);
    take_batch(r, 0);
    near("loss", hf_step(r->h, r->input, r->label, logits, NULL), number(top, "lm_loss"));
    assert_at_most(relative(logits, mf_safetensors_find(r->batch, "logits")), bound);
    free(logits);
    const mf_json_value *aux = mf_json_find(top, "aux_per_layer");
    for (size_t i = 0; i < mf_json_size(aux); i++) {
        double want;
        assert_ok(mf_json_f64(mf_json_at(aux, i), 0, 1e9, &want, NULL));
        near("aux", (double)r->h->layer[i].aux, want);
    }
    double worst = 0.0;
    for (int i = 0; i < r->h->count; i++) {
        const hf_param *p = &r->h->params[i];
        double error =
            p->trained ? relative(p->g, mf_safetensors_find(r->gradients, p->name)) : 0.0;
        worst = error > worst ? error : worst;
        if (!(error <= bound)) {
            fail_msg("gradient of %s: relative error %.3g", p->name, error);
        }
    }
    printf("  %s: %d gradients, worst relative error %.2g\n", r->h->m.family, r->h->count, worst);
}

static void check_trajectory(reference *r, const char *key, double coefficient) {
    const mf_json_value *rows = mf_json_find(mf_json_find(mf_json_root(r->expected), "adamw"), key);
    if (mf_json_value_type(rows) == MF_JSON_NULL) {
        return;
    }
    assert_int_equal(mf_json_size(rows), STEPS);
    hf_reset(r->h);
    r->h->aux_coefficient = coefficient;
    for (int64_t step = 1; step <= case_count(STEPS, 2); step++) {
        const mf_json_value *want = mf_json_at(rows, (size_t)(step - 1));
        double aux;
        take_batch(r, step - 1);
        near("loss", hf_step(r->h, r->input, r->label, NULL, &aux), number(want, "lm_loss"));
        if (number(want, "aux_sum") > 0.0) {
            near("aux sum", aux, number(want, "aux_sum"));
        }
        near("gradient norm", hf_update(r->h, step), number(want, "grad_norm"));
    }
    r->h->aux_coefficient = 0.0;
}

static void family(const char *name) {
    reference r;
    open_reference(&r, name);
    check_first_batch(&r);
    check_trajectory(&r, "lm_only", 0.0);
    check_trajectory(&r, "lm_plus_coef_times_sum_of_layers_aux",
                     number(mf_json_root(r.expected), "aux_coef"));
    close_reference(&r);
}

static void llama_equals_hugging_face(void **state) {
    (void)state;
    family("llama");
}
static void mixtral_equals_hugging_face(void **state) {
    (void)state;
    family("mixtral");
}
static void qwen2_moe_equals_hugging_face(void **state) {
    (void)state;
    family("qwen2_moe");
}
static void qwen3_moe_equals_hugging_face(void **state) {
    (void)state;
    family("qwen3_moe");
}
static void deepseek_v3_equals_hugging_face(void **state) {
    (void)state;
    family("deepseek_v3");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_equals_hugging_face),
        cmocka_unit_test(mixtral_equals_hugging_face),
        cmocka_unit_test(qwen2_moe_equals_hugging_face),
        cmocka_unit_test(qwen3_moe_equals_hugging_face),
        cmocka_unit_test(deepseek_v3_equals_hugging_face),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
