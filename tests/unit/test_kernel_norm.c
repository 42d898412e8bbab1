/* RMSNorm and rotary embedding references against double precision and central differences. */
#include "tests/support/kernel_test.h"
#include "tests/support/rope_table.h"

#include "kernels/attention/rope.h"
#include "kernels/rows/norm_split.h"
#include "kernels/rows/rmsnorm.h"

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

/* --- a row that ranks share ------------------------------------------------------------------- */

enum { RANKS = 3, TOTAL = 7 + 16 + 9 };
static const int own[RANKS] = {7, 16,
                               9}; /* columns of each rank; a row of all lies in one buffer */

typedef struct shared_case {
    double x[ROWS * TOTAL], weight[TOTAL], dy[ROWS * TOTAL], y[ROWS * TOTAL];
} shared_case;

static double shared_loss(const double *unused, void *user) {
    (void)unused;
    shared_case *k = user;
    double loss = 0.0;
    for (int r = 0; r < ROWS; r++) {
        double square = 0.0;
        for (int c = 0; c < TOTAL; c++) {
            square += k->x[r * TOTAL + c] * k->x[r * TOTAL + c] / TOTAL;
        }
        for (int c = 0; c < TOTAL; c++) {
            int i = r * TOTAL + c;
            k->y[i] = k->x[i] / sqrt(square + eps) * k->weight[c];
            loss += k->y[i] * k->dy[i];
        }
    }
    return loss;
}

typedef mf_status (*split_step)(const mf_kernel_norm_split *a, mf_err *e);

/* A step on every rank; where it makes sums, they become those over all ranks. */
static void on_all(mf_kernel_norm_split *rank, split_step step, bool sums) {
    double all[ROWS] = {0};
    for (int p = 0; p < RANKS; p++) {
        assert_ok(step(&rank[p], NULL));
        for (int r = 0; r < ROWS; r++) {
            all[r] += (double)rank[p].sum[r];
        }
    }
    for (int p = 0; p < RANKS && sums; p++) {
        for (int r = 0; r < ROWS; r++) {
            rank[p].sum[r] = (float)all[r];
        }
    }
}

static void check_shared(mf_kernel_dtype d) {
    shared_case *k = kt_zeros(sizeof *k);
    const size_t B = mf_kernel_dtype_B(d);
    char *x = kt_random(d, ROWS * TOTAL, -2, 2, k->x),
         *w = kt_random(d, TOTAL, 0.5, 1.5, k->weight);
    char *dy = kt_random(d, ROWS * TOTAL, -1, 1, k->dy);
    char *y = kt_poison(ROWS * TOTAL * B), *dx = kt_poison(ROWS * TOTAL * B);
    float sum[RANKS][ROWS], rstd[RANKS][ROWS], dweight[TOTAL];
    double want[ROWS * TOTAL], want_w[TOTAL];
    mf_kernel_norm_split rank[RANKS];
    size_t at = 0;
    for (int p = 0; p < RANKS; at += (size_t)own[p++]) {
        rank[p] = (mf_kernel_norm_split){.dtype = d,
                                         .rows = ROWS,
                                         .cols = own[p],
                                         .total = TOTAL,
                                         .x_stride = TOTAL,
                                         .y_stride = TOTAL,
                                         .eps = (float)eps,
                                         .share = 1.0f,
                                         .x = x + at * B,
                                         .weight = w + at * B,
                                         .sum = sum[p],
                                         .y = y + at * B,
                                         .rstd = rstd[p],
                                         .dy = dy + at * B,
                                         .dx = dx + at * B,
                                         .dweight = dweight + at};
    }
    for (int c = 0; c < TOTAL; c++) {
        dweight[c] = 1.0f; /* what is there is added to */
    }
    on_all(rank, mf_kernel_norm_split_square, true);
    on_all(rank, mf_kernel_norm_split_forward, false);
    shared_loss(NULL, k);
    kt_assert_close(y, d, k->y, ROWS * TOTAL, kt_bound(d));
    on_all(rank, mf_kernel_norm_split_dot, true);
    on_all(rank, mf_kernel_norm_split_backward, false);
    kt_gradient(shared_loss, k, k->x, ROWS * TOTAL, want);
    kt_gradient(shared_loss, k, k->weight, TOTAL, want_w);
    for (int c = 0; c < TOTAL; c++) {
        want_w[c] += 1.0;
    }
    kt_assert_close(dx, d, want, ROWS * TOTAL, kt_bound(d));
    kt_assert_close(dweight, MF_KERNEL_F32, want_w, TOTAL, kt_bound(d));
    free(k), free(x), free(w), free(dy), free(y), free(dx);
}

static void a_norm_over_shared_rows_matches_double_and_its_differences(void **state) {
    (void)state;
    check_shared(MF_KERNEL_F32);
    check_shared(MF_KERNEL_BF16);
}

/* Columns that two ranks hold count once. */
static void a_share_counts_columns_of_several_ranks_once(void **state) {
    (void)state;
    float *x = kt_random(MF_KERNEL_F32, ROWS * COLS, -2, 2, NULL), whole[ROWS], half[ROWS];
    mf_kernel_norm_split a = {.dtype = MF_KERNEL_F32,
                              .rows = ROWS,
                              .cols = COLS,
                              .x_stride = COLS,
                              .share = 1.0f,
                              .x = x,
                              .sum = whole};
    assert_ok(mf_kernel_norm_split_square(&a, NULL));
    a.share = 0.5f;
    a.sum = half;
    assert_ok(mf_kernel_norm_split_square(&a, NULL));
    for (int r = 0; r < ROWS; r++) {
        assert_below(fabsf(2 * half[r] / whole[r] - 1), 1e-6f);
    }
    free(x);
}

static void rope_rotates_pairs_by_their_angle(void **state) {
    (void)state;
    enum { HEADS = 2, DIM = 12, ROT = 8, HALF = ROT / 2, POSITIONS = 50 };
    float cosines[POSITIONS * HALF], sines[POSITIONS * HALF];
    plain_rope_table(10000.0, ROT, POSITIONS, cosines, sines);
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
        cmocka_unit_test(a_norm_over_shared_rows_matches_double_and_its_differences),
        cmocka_unit_test(a_share_counts_columns_of_several_ranks_once),
        cmocka_unit_test(rope_rotates_pairs_by_their_angle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
