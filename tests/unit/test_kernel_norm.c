/* RMSNorm and rotary embedding references against double precision and central differences. */
#include "tests/kernel_test.h"

#include "kernels/rmsnorm.h"
#include "kernels/rope.h"

enum { ROWS = 5, GROUPS = 3, COLS = 24, X_STRIDE = GROUPS * COLS + 8, Y_STRIDE = GROUPS * COLS };

typedef struct norm_case {
    double x[ROWS * X_STRIDE], add[ROWS * X_STRIDE], weight[COLS], dy[ROWS * Y_STRIDE];
    double y[ROWS * Y_STRIDE];
    bool with_add;
} norm_case;

static const double eps = 1e-5;

static void norm_model(norm_case *k) {
    for (int r = 0; r < ROWS; r++) {
        for (int g = 0; g < GROUPS; g++) {
            double s[COLS], square = 0.0;
            for (int c = 0; c < COLS; c++) {
                int i = r * X_STRIDE + g * COLS + c;
                s[c] = k->x[i] + (k->with_add ? k->add[i] : 0.0);
                square += s[c] * s[c] / COLS;
            }
            for (int c = 0; c < COLS; c++) {
                k->y[r * Y_STRIDE + g * COLS + c] = s[c] / sqrt(square + eps) * k->weight[c];
            }
        }
    }
}

static double norm_loss(const double *unused, void *user) {
    (void)unused;
    norm_case *k = user;
    norm_model(k);
    double sum = 0.0;
    for (int i = 0; i < ROWS * Y_STRIDE; i++) {
        sum += k->y[i] * k->dy[i];
    }
    return sum;
}

static void check_norm(mf_kernel_dtype d, bool with_add) {
    norm_case *k = kt_zeros(sizeof *k);
    k->with_add = with_add;
    void *x = kt_random(d, ROWS * X_STRIDE, -2, 2, k->x);
    void *add = kt_random(d, ROWS * X_STRIDE, -2, 2, k->add);
    void *weight = kt_random(d, COLS, 0.5, 1.5, k->weight);
    void *dy = kt_random(d, ROWS * Y_STRIDE, -1, 1, k->dy);
    void *sum = kt_poison(sizeof(float) * ROWS * X_STRIDE);
    void *y = kt_poison(sizeof(float) * ROWS * Y_STRIDE);
    float rstd[ROWS * GROUPS];
    mf_kernel_rmsnorm f = {.dtype = d,
                           .rows = ROWS,
                           .groups = GROUPS,
                           .cols = COLS,
                           .x_stride = X_STRIDE,
                           .y_stride = Y_STRIDE,
                           .eps = (float)eps,
                           .x = x,
                           .add = with_add ? add : NULL,
                           .sum = with_add ? sum : NULL,
                           .weight = weight,
                           .y = y,
                           .rstd = rstd};
    assert_ok(mf_kernel_rmsnorm_forward(&f, NULL));
    norm_model(k);
    kt_assert_close(y, d, k->y, ROWS * Y_STRIDE, kt_bound(d));

    /* Backward, with dx over the gradient that arrives from the residual path, and dweight added.
     */
    double extra[ROWS * X_STRIDE], want[ROWS * X_STRIDE], want_w[COLS];
    void *dx = kt_random(d, ROWS * X_STRIDE, -1, 1, extra);
    float dweight[COLS];
    for (int c = 0; c < COLS; c++) {
        dweight[c] = 1.0f;
    }
    mf_kernel_rmsnorm_grad b = {.dtype = d,
                                .rows = ROWS,
                                .groups = GROUPS,
                                .cols = COLS,
                                .x_stride = X_STRIDE,
                                .y_stride = Y_STRIDE,
                                .x = with_add ? sum : x,
                                .weight = weight,
                                .rstd = rstd,
                                .dy = dy,
                                .dx_add = dx,
                                .dx = dx,
                                .dweight = dweight};
    assert_ok(mf_kernel_rmsnorm_backward(&b, NULL));
    kt_gradient(norm_loss, k, k->x, ROWS * X_STRIDE, want);
    kt_gradient(norm_loss, k, k->weight, COLS, want_w);
    for (int i = 0; i < ROWS * X_STRIDE; i++) {
        want[i] += extra[i];
    }
    for (int c = 0; c < COLS; c++) {
        want_w[c] += 1.0;
    }
    kt_assert_close(dx, d, want, ROWS * X_STRIDE, kt_bound(d));
    kt_assert_close(dweight, MF_KERNEL_F32, want_w, COLS, kt_bound(d));
    free(k), free(x), free(add), free(weight), free(dy), free(sum), free(y), free(dx);
}

static void rmsnorm_matches_double_and_its_differences(void **state) {
    (void)state;
    for (int with_add = 0; with_add < 2; with_add++) {
        check_norm(MF_KERNEL_F32, with_add);
        check_norm(MF_KERNEL_BF16, with_add);
    }
}

static void rope_rotates_pairs_by_their_angle(void **state) {
    (void)state;
    enum { HEADS = 2, DIM = 12, ROT = 8, HALF = ROT / 2, POSITIONS = 50 };
    float cosines[POSITIONS * HALF], sines[POSITIONS * HALF];
    mf_kernel_rope_table(10000.0, ROT, POSITIONS, cosines, sines);
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        double x[ROWS * HEADS * DIM], want[ROWS * HEADS * DIM];
        int32_t positions[ROWS];
        float *got = kt_random(MF_KERNEL_F32, ROWS * HEADS * DIM, -1, 1, x);
        memcpy(want, x, sizeof want);
        for (int r = 0; r < ROWS; r++) {
            positions[r] = (int32_t)kt_int(0, POSITIONS - 1);
            for (int h = 0; h < HEADS; h++) {
                for (int i = 0; i < HALF; i++) {
                    int base = (r * HEADS + h) * DIM;
                    int u = base + (interleaved ? 2 * i : i), v = interleaved ? u + 1 : u + HALF;
                    double angle = positions[r] / pow(10000.0, 2.0 * i / ROT);
                    want[u] = x[u] * cos(angle) - x[v] * sin(angle);
                    want[v] = x[v] * cos(angle) + x[u] * sin(angle);
                }
            }
        }
        mf_kernel_rope a = {.dtype = MF_KERNEL_F32,
                            .rows = ROWS,
                            .heads = HEADS,
                            .rot_dim = ROT,
                            .row_stride = HEADS * DIM,
                            .head_stride = DIM,
                            .interleaved = interleaved,
                            .positions = positions,
                            .cos = cosines,
                            .sin = sines,
                            .x = got};
        assert_ok(mf_kernel_rope_apply(&a, NULL));
        kt_assert_close(got, MF_KERNEL_F32, want, ROWS * HEADS * DIM, 1e-6);
        a.inverse = true;
        assert_ok(mf_kernel_rope_apply(&a, NULL));
        kt_assert_close(got, MF_KERNEL_F32, x, ROWS * HEADS * DIM, 1e-6);
        free(got);
    }
}

int main(void) {
    kt_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_matches_double_and_its_differences),
        cmocka_unit_test(rope_rotates_pairs_by_their_angle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
