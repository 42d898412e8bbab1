/* SwiGLU (both kinds), grouped biases and the shared expert's gate against double precision. */
#include "tests/support/kernel_test.h"

#include "kernels/moe/gate.h"
#include "kernels/moe/swiglu.h"
#include "kernels/rows/bias.h"

enum { ROWS = 7, COLS = 10, GROUPS = 3 };
static const int32_t offsets[GROUPS + 1] = {0, 4, 4, 6}; /* group 1 is empty; row 6 unused */

typedef struct act_case {
    double gate_up[ROWS * 2 * COLS], bias[GROUPS * 2 * COLS], prob[ROWS], dy[ROWS * COLS];
    double y[ROWS * COLS];
    bool clamped, with_bias;
    int rows;
} act_case;

static double clamp(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}

static double act_loss(const double *unused, void *user) {
    (void)unused;
    act_case *k = user;
    double loss = 0.0;
    for (int r = 0; r < k->rows; r++) {
        int group = r < 4 ? 0 : 2;
        for (int c = 0; c < COLS; c++) {
            double gate = k->gate_up[r * 2 * COLS + c], up = k->gate_up[r * 2 * COLS + COLS + c];
            if (k->with_bias) {
                gate += k->bias[group * 2 * COLS + c];
                up += k->bias[group * 2 * COLS + COLS + c];
            }
            double y;
            if (k->clamped) {
                gate = clamp(gate, -1e9, 1.501);
                y = gate / (1 + exp(-1.702 * gate)) * (clamp(up, -1.501, 1.501) + 1);
            } else {
                y = gate / (1 + exp(-gate)) * up;
            }
            k->y[r * COLS + c] = y * k->prob[r];
            loss += k->y[r * COLS + c] * k->dy[r * COLS + c];
        }
    }
    return loss;
}

static void check_swiglu(mf_kernel_dtype d, bool clamped, bool with_bias) {
    act_case *k = kt_zeros(sizeof *k);
    k->clamped = clamped, k->with_bias = with_bias;
    k->rows = with_bias ? 6 : ROWS;
    void *gate_up = kt_random(d, ROWS * 2 * COLS, -3, 3, k->gate_up);
    void *bias = kt_random(d, GROUPS * 2 * COLS, -1, 1, k->bias);
    void *prob = kt_random(MF_KERNEL_F32, ROWS, 0.1, 1, k->prob);
    void *dy = kt_random(d, ROWS * COLS, -1, 1, k->dy);
    uint8_t *y = kt_poison(sizeof(float) * ROWS * COLS);
    float dprob[ROWS];
    mf_kernel_swiglu f = {.shape = {.dtype = d,
                                    .kind = clamped ? MF_SWIGLU_CLAMPED : MF_SWIGLU_SILU,
                                    .alpha = 1.702f,
                                    .limit = 1.501f,
                                    .rows = ROWS,
                                    .cols = COLS,
                                    .rows_dev = with_bias ? &offsets[GROUPS] : NULL,
                                    .prob = prob,
                                    .bias = with_bias ? bias : NULL,
                                    .offsets = offsets,
                                    .groups = GROUPS},
                          .gate_up = gate_up,
                          .y = y};
    assert_ok(mf_kernel_swiglu_forward(&f, NULL));
    (void)act_loss(NULL, k);
    kt_assert_close(y, d, k->y, k->rows * COLS, kt_bound(d));
    for (size_t i = (size_t)k->rows * COLS * mf_kernel_dtype_B(d);
         i < ROWS * COLS * mf_kernel_dtype_B(d); i++) {
        assert_int_equal(y[i], 0xff); /* rows past *rows_dev stay untouched */
    }
    double want[ROWS * 2 * COLS], want_p[ROWS];
    kt_gradient(act_loss, k, k->gate_up, k->rows * 2 * COLS, want);
    kt_gradient(act_loss, k, k->prob, k->rows, want_p);
    mf_kernel_swiglu_grad b = {
        .shape = f.shape, .gate_up = gate_up, .dy = dy, .dgate_up = gate_up, .dprob = dprob};
    assert_ok(mf_kernel_swiglu_backward(&b, NULL));
    kt_assert_close(gate_up, d, want, k->rows * 2 * COLS, kt_bound(d));
    kt_assert_close(dprob, MF_KERNEL_F32, want_p, k->rows, 3e-6);
    free(k), free(gate_up), free(bias), free(prob), free(dy), free(y);
}

static void swiglu_matches_double_and_its_differences(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        check_swiglu(i & 1 ? MF_KERNEL_BF16 : MF_KERNEL_F32, i & 2, i & 4);
    }
}

static void swiglu_without_probability_is_probability_one(void **state) {
    (void)state;
    float *gate_up = kt_random(MF_KERNEL_F32, ROWS * 2 * COLS, -3, 3, NULL);
    float ones[ROWS] = {1, 1, 1, 1, 1, 1, 1}, y[2][ROWS * COLS];
    for (int i = 0; i < 2; i++) {
        mf_kernel_swiglu f = {.shape = {.dtype = MF_KERNEL_F32,
                                        .kind = MF_SWIGLU_SILU,
                                        .rows = ROWS,
                                        .cols = COLS,
                                        .prob = i ? ones : NULL},
                              .gate_up = gate_up,
                              .y = y[i]};
        assert_ok(mf_kernel_swiglu_forward(&f, NULL));
    }
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    free(gate_up);
}

typedef struct bias_case {
    double x[ROWS * COLS], bias[GROUPS * COLS], scale[ROWS], dy[ROWS * COLS], y[ROWS * COLS];
} bias_case;

static double bias_loss(const double *unused, void *user) {
    (void)unused;
    bias_case *k = user;
    double loss = 0.0;
    for (int r = 0; r < offsets[GROUPS]; r++) {
        int group = r < 4 ? 0 : 2;
        for (int c = 0; c < COLS; c++) {
            k->y[r * COLS + c] = k->x[r * COLS + c] + k->scale[r] * k->bias[group * COLS + c];
            loss += k->y[r * COLS + c] * k->dy[r * COLS + c];
        }
    }
    return loss;
}

static void grouped_bias_matches_double_and_its_differences(void **state) {
    (void)state;
    bias_case *k = kt_zeros(sizeof *k);
    mf_kernel_dtype d = MF_KERNEL_F32;
    void *x = kt_random(d, ROWS * COLS, -1, 1, k->x);
    void *bias = kt_random(d, GROUPS * COLS, -1, 1, k->bias);
    void *scale = kt_random(d, ROWS, -1, 1, k->scale);
    void *dy = kt_random(d, ROWS * COLS, -1, 1, k->dy);
    mf_kernel_bias f = {.dtype = d,
                        .rows = ROWS,
                        .cols = COLS,
                        .stride = COLS,
                        .rows_dev = &offsets[GROUPS],
                        .groups = GROUPS,
                        .offsets = offsets,
                        .scale = scale,
                        .bias = bias,
                        .x = x};
    assert_ok(mf_kernel_bias_add(&f, NULL));
    (void)bias_loss(NULL, k);
    kt_assert_close(x, d, k->y, offsets[GROUPS] * COLS, 1e-6);
    float dbias[GROUPS * COLS], dscale[ROWS];
    double want[GROUPS * COLS], want_s[ROWS];
    for (int i = 0; i < GROUPS * COLS; i++) {
        dbias[i] = 2.0f;
    }
    for (int i = 0; i < ROWS; i++) {
        dscale[i] = 3.0f;
    }
    mf_kernel_bias_grad b = {.dtype = d,
                             .rows = ROWS,
                             .cols = COLS,
                             .stride = COLS,
                             .rows_dev = &offsets[GROUPS],
                             .groups = GROUPS,
                             .offsets = offsets,
                             .scale = scale,
                             .bias = bias,
                             .dy = dy,
                             .dbias = dbias,
                             .dscale = dscale};
    assert_ok(mf_kernel_bias_backward(&b, NULL));
    kt_gradient(bias_loss, k, k->bias, GROUPS * COLS, want);
    kt_gradient(bias_loss, k, k->scale, ROWS, want_s);
    for (int i = 0; i < GROUPS * COLS; i++) {
        want[i] += 2.0;
    }
    for (int i = 0; i < ROWS; i++) {
        want_s[i] += 3.0;
    }
    kt_assert_close(dbias, d, want, GROUPS * COLS, 1e-6);
    kt_assert_close(dscale, d, want_s, ROWS, 1e-6);
    free(k), free(x), free(bias), free(scale), free(dy);
}

typedef struct gate_case {
    double x[ROWS * COLS], gate[ROWS], add[ROWS * COLS], dy[ROWS * COLS], y[ROWS * COLS];
} gate_case;

static double gate_loss(const double *unused, void *user) {
    (void)unused;
    gate_case *k = user;
    double loss = 0.0;
    for (int i = 0; i < ROWS * COLS; i++) {
        k->y[i] = k->x[i] / (1 + exp(-k->gate[i / COLS])) + k->add[i];
        loss += k->y[i] * k->dy[i];
    }
    return loss;
}

static void sigmoid_gate_matches_double_and_its_differences(void **state) {
    (void)state;
    gate_case *k = kt_zeros(sizeof *k);
    mf_kernel_dtype d = MF_KERNEL_F32;
    void *x = kt_random(d, ROWS * COLS, -1, 1, k->x);
    void *gate = kt_random(d, ROWS, -3, 3, k->gate);
    void *add = kt_random(d, ROWS * COLS, -1, 1, k->add);
    void *dy = kt_random(d, ROWS * COLS, -1, 1, k->dy);
    void *y = kt_poison(sizeof(float) * ROWS * COLS);
    mf_kernel_gate f = {
        .dtype = d, .rows = ROWS, .cols = COLS, .gate = gate, .x = x, .add = add, .y = y};
    assert_ok(mf_kernel_gate_forward(&f, NULL));
    (void)gate_loss(NULL, k);
    kt_assert_close(y, d, k->y, ROWS * COLS, 1e-6);
    double want[ROWS * COLS], want_g[ROWS];
    float dgate[ROWS];
    kt_gradient(gate_loss, k, k->x, ROWS * COLS, want);
    kt_gradient(gate_loss, k, k->gate, ROWS, want_g);
    mf_kernel_gate_grad b = {.dtype = d,
                             .rows = ROWS,
                             .cols = COLS,
                             .gate = gate,
                             .x = x,
                             .dy = dy,
                             .dx = dy,
                             .dgate = dgate};
    assert_ok(mf_kernel_gate_backward(&b, NULL));
    kt_assert_close(dy, d, want, ROWS * COLS, 1e-6);
    kt_assert_close(dgate, d, want_g, ROWS, 2e-6);
    free(k), free(x), free(gate), free(add), free(dy), free(y);
}

int main(void) {
    kt_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swiglu_matches_double_and_its_differences),
        cmocka_unit_test(swiglu_without_probability_is_probability_one),
        cmocka_unit_test(grouped_bias_matches_double_and_its_differences),
        cmocka_unit_test(sigmoid_gate_matches_double_and_its_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
