/* BF16 compute, and BF16 moments: near float's losses, the same to the bit however it is recomputed
 * and divided into stages of one rank's arithmetic, in the arena that the memory plan promises.
 * Every step is accounted for. */
#include "tests/support/hf_case.h"
#include "tests/support/sampled.h"
#include "tests/support/test.h"

static const char *const families[] = {"llama", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3"};
#define FAMILIES (sizeof families / sizeof families[0])
#define STEPS 10

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static mf_cost *cost;

static void look_on(void *user, const mf_exec_op *op) {
    hf_case *h = user;
    account_look(&h->account, op);
}

static void open_case(hf_case *h, const char *family, const mf_layout *l) {
    mf_exec_options o;
    mf_err e;
    mf_exec_options_init(&o);
    o.after_op = look_on;
    o.user = h;
    if (hf_open(h, family, l, &o, cost, &e) != MF_OK) {
        fail_msg("%s: %s", family, e.text);
    }
}

static mf_exec_result step(hf_case *h, double lr) {
    const mf_exec_batch batch = {hf_sample, h};
    mf_exec_result r;
    mf_err e;
    mf_status status = lr > 0 ? mf_exec_step(h->exec, &batch, lr, &r, &e)
                              : mf_exec_gradients(h->exec, &batch, &r, &e);
    char text[200] = "";
    if (status != MF_OK || (lr > 0 && !account_step(&h->account, &r, text))) {
        fail_msg("%s", status != MF_OK ? e.text : text);
    }
    return r;
}

/* Largest distance of ten steps' losses from the references', which are float; the mean norm's. */
static double distance(const char *family, mf_precision precision, bool moments, double *norms) {
    hf_case h;
    mf_layout l;
    hf_layout_init(&l);
    l.precision = precision;
    l.moments_bf16 = moments;
    open_case(&h, family, &l);
    const mf_json_value *rows =
        mf_json_find(mf_json_find(mf_json_root(h.expected), "adamw"), "lm_only");
    double most = 0.0;
    *norms = 0.0;
    for (h.step = 0; h.step < STEPS; h.step++) {
        mf_exec_result r = step(&h, 1e-3);
        const mf_json_value *row = mf_json_at(rows, (size_t)h.step);
        most = fmax(most, fabs(r.lm_loss / hf_number(row, "lm_loss") - 1.0));
        *norms += fabs(r.grad_norm / hf_number(row, "grad_norm") - 1.0) / STEPS;
    }
    hf_close(&h);
    return most;
}

static void losses_stay_near_those_of_float(void **state) {
    (void)state;
    for (size_t f = 0; f < FAMILIES; f += (size_t)case_stride(5)) {
        double norms[3];
        double bf16 = distance(families[f], MF_PREC_BF16, false, &norms[0]);
        double both = distance(families[f], MF_PREC_BF16, true, &norms[1]);
        double moments = distance(families[f], MF_PREC_FP32, true, &norms[2]);
        printf("%-12s ten losses off by %.1e (bf16), %.1e (moments too), %.1e (moments alone); "
               "norms by %.1e %.1e %.1e\n",
               families[f], bf16, both, moments, norms[0], norms[1], norms[2]);
        assert_at_most(bf16, 2e-3);
        assert_at_most(both, 2e-3);
        assert_at_most(moments, 1e-3);
        assert_at_most(norms[0], 2e-2);
        assert_at_most(norms[1], 2e-2);
        /* ... and are not float's: something was rounded. */
        assert_above(bf16, 1e-6);
        assert_above(moments, 1e-8);
    }
}

/* Every gradient of a pass, into `out` (of params' dense + expert elements). */
static void gradients(const char *family, uint16_t recompute, bool sharded, float **out,
                      int64_t *count) {
    hf_case h;
    mf_layout l;
    hf_layout_init(&l);
    l.precision = MF_PREC_BF16;
    l.mbs = 2;
    l.memory.recompute = recompute;
    l.zero = l.expert_zero = sharded;
    open_case(&h, family, &l);
    (void)step(&h, 0.0);
    const mf_params *list = mf_exec_params(h.exec);
    *count = list->dense + list->expert;
    *out = calloc((size_t)*count, sizeof **out);
    assert_non_null(*out);
    int64_t at = 0;
    for (int i = 0; i < list->count; i++) {
        int64_t n = list->list[i].rows * list->list[i].cols;
        memcpy(*out + at, mf_exec_gradient(h.exec, i), (size_t)n * sizeof **out);
        at += n;
    }
    hf_close(&h);
}

static void recomputation_changes_no_bit(void **state) {
    (void)state;
    static const uint16_t choices[] = {
        MF_RECOMPUTE_LAYER,
        MF_RECOMPUTE_CORE_ATTN,
        MF_RECOMPUTE_MOE,
        MF_RECOMPUTE_NORM | MF_RECOMPUTE_ACT | MF_RECOMPUTE_MLA_UP_PROJ | MF_RECOMPUTE_EXPERTS |
            MF_RECOMPUTE_SHARED_EXPERT | MF_RECOMPUTE_MLP,
    };
    for (size_t f = cases_sampled(); f < FAMILIES; f += (size_t)case_stride(3)) {
        float *first, *other;
        int64_t count, again;
        gradients(families[f], 0, false, &first, &count);
        for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
            gradients(families[f], choices[i], i % 2 == 1, &other, &again);
            assert_int_equal(count, again);
            for (int64_t k = 0; k < count; k++) {
                if (bits_of(first[k]) != bits_of(other[k])) {
                    fail_msg("%s, choice %zu: element %lld is %g, was %g", families[f], i,
                             (long long)k, (double)other[k], (double)first[k]);
                }
            }
            free(other);
        }
        free(first);
    }
}

/* What layers compute with is the master weight, rounded; master weights are not. */
static void weights_are_rounded_masters(void **state) {
    (void)state;
    hf_case h;
    mf_layout l;
    hf_layout_init(&l);
    l.precision = MF_PREC_BF16;
    open_case(&h, "mixtral", &l);
    (void)step(&h, 1e-3);
    const mf_params *list = mf_exec_params(h.exec);
    int64_t finer = 0;
    for (int i = 0; i < list->count; i++) {
        int64_t first, count;
        const float *master = mf_exec_own_weight(h.exec, i, &first, &count);
        assert_null(mf_exec_param(h.exec, i)); /* there is no float copy of all */
        for (int64_t k = 0; k < count; k++) {
            float rounded = mf_kernel_rounded(MF_KERNEL_BF16, master[k]);
            finer += bits_of(rounded) != bits_of(master[k]);
        }
    }
    assert_above(finer, (list->dense + list->expert) / 2);
    hf_close(&h);
}

/* States that wait in host memory are the same states: weights and moments of three steps. */
static void where_states_are_kept_changes_no_bit(void **state) {
    (void)state;
    for (int choice = 0; choice < 4; choice += case_stride(3)) {
        hf_case h[3];
        for (int k = 0; k < 3; k++) {
            mf_layout l;
            hf_layout_init(&l);
            l.precision = choice & 1 ? MF_PREC_BF16 : MF_PREC_FP32;
            l.moments_bf16 = (choice & 2) != 0;
            l.offload_optimizer = 0.5 * k;
            open_case(&h[k], "qwen2_moe", &l);
            for (h[k].step = 0; h[k].step < 3; h[k].step++) {
                (void)step(&h[k], 1e-3);
            }
        }
        int kinds = 0;
        for (int i = 0; i < mf_exec_params(h[0].exec)->count; i++) {
            mf_exec_state s[3];
            for (int k = 0; k < 3; k++) {
                assert_int_equal(mf_exec_state_of(h[k].exec, i, &s[k], NULL), MF_OK);
            }
            for (int kind = 0; kind < MF_EXEC_STATES; kind++, kinds++) {
                size_t size = s[0].dtype[kind] == MF_KERNEL_BF16 ? 2 : 4;
                for (int k = 1; k < 3; k++) {
                    assert_int_equal(s[k].count, s[0].count);
                    assert_memory_equal(s[k].value[kind], s[0].value[kind],
                                        (size_t)s[0].count * size);
                }
            }
        }
        assert_above(kinds, 30);
        for (int k = 0; k < 3; k++) {
            hf_close(&h[k]);
        }
    }
}

static void the_arena_is_the_memory_plan(void **state) {
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        for (int choice = 0; choice < 16; choice += case_stride(15)) {
            hf_case h;
            mf_layout l;
            hf_layout_init(&l);
            l.precision = choice & 1 ? MF_PREC_BF16 : MF_PREC_FP32;
            l.moments_bf16 = (choice & 2) != 0;
            l.mbs = choice & 4 ? 2 : 4;
            l.offload_optimizer = choice & 8 ? 0.4 : 0.0;
            open_case(&h, families[f], &l);
            assert_close((double)mf_exec_host_B(h.exec), mf_exec_planned_host_B(h.exec), 0.0);
            assert_close((double)mf_exec_arena_B(h.exec), mf_exec_planned_B(h.exec), 0.0);
            hf_close(&h);
        }
    }
}

static int make_cost(void **state) {
    (void)state;
    cost = account_cost(NULL);
    return cost != NULL ? 0 : -1;
}

static int drop_cost(void **state) {
    (void)state;
    mf_cost_destroy(cost);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_stay_near_those_of_float),
        cmocka_unit_test(recomputation_changes_no_bit),
        cmocka_unit_test(weights_are_rounded_masters),
        cmocka_unit_test(where_states_are_kept_changes_no_bit),
        cmocka_unit_test(the_arena_is_the_memory_plan),
    };
    return cmocka_run_group_tests(tests, make_cost, drop_cost);
}
