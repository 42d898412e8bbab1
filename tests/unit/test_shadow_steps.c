/* test_shadow_steps.c - training steps on a device that behaves as a GPU (tests/shadow_device.h)
 * leave what they leave on the CPU, to the bit. */
#include "tests/sampled.h"
#include "tests/shadow_case.h"
#include "tests/shadow_hold.h"
#include "tests/test.h"

static const char *const families[] = {"llama", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3"};
enum { FAMILIES = 5, STEPS = 2 };
static int64_t steps = STEPS;

/* The same run on the CPU and on the shadow. */
static void compare(const shadow_setup *s, const shadow_options *o) {
    shadow_bytes want = {0}, got = {0};
    shadow_twin twin;
    mf_device *shadow = NULL;
    mf_err e = {.text = ""};
    char what[160];
    snprintf(what, sizeof what, "%s %s mbs %d recompute %x offload %x%s", s->family,
             mf_precision_text(s->precision), (int)s->mbs, s->recompute, s->offload,
             s->graph ? " graph" : "");
    mf_status status = shadow_train(s, shadow_twin_open(o, &twin), steps, &want, &e);
    status = status == MF_OK ? shadow_open(o, &shadow, &e) : status;
    if (shadow != NULL) {
        status = shadow_train(s, shadow, steps, &got, &e);
        shadow->ops->close(shadow);
    }
    status = status == MF_OK ? shadow_hold(&want, &got, &e) : status;
    shadow_bytes_clear(&want);
    shadow_bytes_clear(&got);
    if (status != MF_OK) {
        fail_msg("%s: %s", what, e.text);
    }
}

static void steps_are_those_of_the_cpu(void **state) {
    (void)state;
    for (int f = 0; f < 2 * FAMILIES; f += case_stride(3)) {
        const shadow_setup s = {.family = families[f % FAMILIES],
                                .precision = f < FAMILIES ? MF_PREC_FP32 : MF_PREC_BF16,
                                .aux_coef = 0.02,
                                .z_coef = 1e-3};
        const shadow_options o = {.seed = (uint64_t)f, .one_queue = true};
        compare(&s, &o);
    }
}

/* What memory choices, routers' losses, dropping and MTP add to a step. */
static void choices_are_those_of_the_cpu(void **state) {
    static const shadow_setup kinds[] = {
        {.family = "deepseek_v3", .recompute = MF_RECOMPUTE_LAYER, .mbs = 1},
        {.family = "qwen2_moe",
         .recompute = MF_RECOMPUTE_NORM | MF_RECOMPUTE_ACT | MF_RECOMPUTE_CORE_ATTN |
                      MF_RECOMPUTE_EXPERTS | MF_RECOMPUTE_SHARED_EXPERT},
        {.family = "mixtral", .recompute = MF_RECOMPUTE_MOE, .mbs = 4},
        {.family = "qwen3_moe",
         .offload = MF_OFFLOAD_INPUT | MF_OFFLOAD_QKV | MF_OFFLOAD_EXPERT_IN},
        {.family = "mixtral", .capacity = 1.0, .aux_coef = 0.02},
        {.family = "deepseek_v3", .mtp = true},
        {.family = "qwen3_moe", .force = true},
        {.family = "olmoe", .aux_coef = 0.02},
    };
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i += (size_t)case_stride(3)) {
        shadow_setup s = kinds[i];
        shadow_options o = {.seed = i, .one_queue = true};
        s.precision = MF_PREC_BF16;
        compare(&s, &o);
        s.graph = o.fused_sums = o.one_type = true;
        compare(&s, &o);
    }
}

/* One capture, ten plays: learning rates, batches and counts are those of each step. */
static void plays_are_steps(void **state) {
    (void)state;
    for (int f = 0; f < FAMILIES; f += case_stride(FAMILIES)) {
        shadow_setup s = {.family = families[f], .precision = MF_PREC_BF16, .graph = true};
        const shadow_options o = {.one_queue = true};
        steps = 10;
        compare(&s, &o);
        steps = STEPS;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_those_of_the_cpu),
        cmocka_unit_test(choices_are_those_of_the_cpu),
        cmocka_unit_test(plays_are_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
