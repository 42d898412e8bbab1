/* Heads that are normed and turned in one pass, against double precision and its differences, and
 * against norm, split and rotation one after the other. */
#include "tests/support/kernel_test.h"
#include "tests/support/rope_table.h"

#include "kernels/attention/qk_rope.h"
#include "kernels/attention/rope.h"
#include "kernels/rows/rmsnorm.h"

#define ROWS 5
#define HEADS 3
#define KV 2
#define DIM 10
#define STRIDE ((HEADS + 2 * KV) * DIM + 1)
#define POSITIONS 40
#define EPS 1e-5

typedef struct qk_case {
    double x[ROWS * STRIDE], w[2 * DIM], dy[ROWS * (HEADS + 2 * KV) * DIM];
    double y[ROWS * (HEADS + 2 * KV) * DIM]; /* q, then k, then v, as dy */
    float cos[POSITIONS * DIM / 2], sin[POSITIONS * DIM / 2];
    int32_t positions[ROWS];
    int64_t rot;
    bool pairs;
} qk_case;

#define QN (ROWS * HEADS * DIM)
#define KN (ROWS * KV * DIM)

/* The model in double: y, and its product with dy. */
static double qk_loss(const double *unused, void *user) {
    (void)unused;
    qk_case *k = user;
    const int64_t begin[3] = {0, QN, QN + KN}, heads[3] = {HEADS, KV, KV};
    const int64_t first[3] = {0, HEADS, HEADS + KV};
    double loss = 0.0;
    for (int part = 0; part < 3; part++) {
        for (int64_t rh = 0; rh < ROWS * heads[part]; rh++) {
            int64_t r = rh / heads[part], h = rh % heads[part], half = k->rot / 2;
            const double *x = k->x + r * STRIDE + (first[part] + h) * DIM;
            double *y = k->y + begin[part] + rh * DIM, square = 0.0, n[DIM];
            for (int c = 0; c < DIM; c++) {
                square += x[c] * x[c] / DIM;
            }
            for (int c = 0; c < DIM; c++) {
                n[c] = part == 2 ? x[c] : x[c] / sqrt(square + EPS) * k->w[part * DIM + c];
                y[c] = n[c];
            }
            for (int64_t i = 0; part < 2 && i < half; i++) {
                int64_t u = k->pairs ? 2 * i : i, v = k->pairs ? u + 1 : u + half;
                double c = (double)k->cos[k->positions[r] * half + i];
                double s = (double)k->sin[k->positions[r] * half + i];
                y[u] = n[u] * c - n[v] * s;
                y[v] = n[v] * c + n[u] * s;
            }
            for (int c = 0; c < DIM; c++) {
                loss += y[c] * k->dy[begin[part] + rh * DIM + c];
            }
        }
    }
    return loss;
}

static void meets_double(mf_kernel_dtype d, int64_t rot, bool pairs, bool with_add) {
    qk_case *k = kt_zeros(sizeof *k);
    k->rot = rot, k->pairs = pairs;
    plain_rope_table(10000.0, rot, POSITIONS, k->cos, k->sin);
    for (int r = 0; r < ROWS; r++) {
        k->positions[r] = (int32_t)kt_int(0, POSITIONS - 1);
    }
    void *x = kt_random(d, ROWS * STRIDE, -2, 2, k->x), *w = kt_random(d, 2 * DIM, 0.5, 2, k->w);
    void *dy = kt_random(d, QN + 2 * KN, -1, 1, k->dy), *y = kt_poison((QN + 2 * KN) * 4);
    double more[ROWS * STRIDE], dx_want[ROWS * STRIDE], dw_want[2 * DIM], dw_first[2 * DIM];
    void *dx = kt_random(d, ROWS * STRIDE, -1, 1, more);
    float *dw = kt_random(MF_KERNEL_F32, 2 * DIM, -1, 1, dw_first), rstd[ROWS * (HEADS + KV)];
    const mf_kernel_rope_shape shape = {.dtype = d,
                                        .rows = ROWS,
                                        .heads = HEADS,
                                        .kv_heads = KV,
                                        .head_dim = DIM,
                                        .rot_dim = rot,
                                        .joined_stride = STRIDE,
                                        .interleaved = pairs,
                                        .positions = k->positions,
                                        .cos = k->cos,
                                        .sin = k->sin};
    const mf_kernel_qk_rope f = {.shape = shape,
                                 .eps = (float)EPS,
                                 .weight_q = w,
                                 .weight_k = mf_kernel_row(w, d, DIM, 1),
                                 .joined = x,
                                 .q = y,
                                 .k = mf_kernel_row_mut(y, d, QN, 1),
                                 .v = mf_kernel_row_mut(y, d, QN + KN, 1),
                                 .rstd = rstd};
    assert_ok(mf_kernel_qk_rope_forward(&f, NULL));
    (void)qk_loss(NULL, k);
    kt_assert_close(y, d, k->y, QN + 2 * KN, kt_bound(d));
    kt_gradient(qk_loss, k, k->x, ROWS * STRIDE, dx_want);
    kt_gradient(qk_loss, k, k->w, 2 * DIM, dw_want);
    for (int i = 0; i < ROWS * STRIDE; i++) { /* between rows nothing is written */
        bool gap = i % STRIDE == STRIDE - 1;
        dx_want[i] = gap ? more[i] : dx_want[i] + (with_add ? more[i] : 0.0);
    }
    for (int i = 0; i < 2 * DIM; i++) {
        dw_want[i] += dw_first[i];
    }
    const mf_kernel_qk_rope_grad b = {.shape = shape,
                                      .weight_q = f.weight_q,
                                      .weight_k = f.weight_k,
                                      .joined = x,
                                      .rstd = rstd,
                                      .dq = dy,
                                      .dk = mf_kernel_row(dy, d, QN, 1),
                                      .dv = mf_kernel_row(dy, d, QN + KN, 1),
                                      .add = with_add ? dx : NULL,
                                      .djoined = dx,
                                      .dweight = dw};
    assert_ok(mf_kernel_qk_rope_backward(&b, NULL));
    kt_assert_close(dx, d, dx_want, ROWS * STRIDE, kt_bound(d));
    kt_assert_close(dw, MF_KERNEL_F32, dw_want, 2 * DIM, 2e-6);
    free(k), free(x), free(w), free(dy), free(y), free(dx), free(dw);
}

static void normed_and_turned_heads_match_double_and_its_differences(void **state) {
    (void)state;
    for (int i = 0; i < 16; i++) {
        meets_double(i & 1 ? MF_KERNEL_BF16 : MF_KERNEL_F32, i & 2 ? 6 : DIM, i & 4, i & 8);
    }
}

static void rstd_has_the_layout_of_two_separate_norms(void **state) {
    (void)state;
    const mf_kernel_dtype d = MF_KERNEL_F32;
    float *x = kt_random(d, ROWS * STRIDE, -2, 2, NULL), w[DIM], y[QN], rstd[ROWS * (HEADS + KV)];
    float cos[POSITIONS * DIM / 2], sin[POSITIONS * DIM / 2], want[ROWS * (HEADS + KV)], n[QN];
    int32_t positions[ROWS] = {0}; /* no turn */
    plain_rope_table(10000.0, DIM, POSITIONS, cos, sin);
    for (int c = 0; c < DIM; c++) {
        w[c] = 1.0f + (float)c;
    }
    for (int part = 0; part < 2; part++) {
        const mf_kernel_rmsnorm norm = {.dtype = d,
                                        .rows = ROWS,
                                        .groups = part == 0 ? HEADS : KV,
                                        .cols = DIM,
                                        .x_stride = STRIDE,
                                        .y_stride = (part == 0 ? HEADS : KV) * DIM,
                                        .eps = (float)EPS,
                                        .x = x + part * HEADS * DIM,
                                        .weight = w,
                                        .y = n,
                                        .rstd = want + part * ROWS * HEADS};
        assert_ok(mf_kernel_rmsnorm_forward(&norm, NULL));
        mf_kernel_qk_rope f = {.shape = {.dtype = d,
                                         .rows = ROWS,
                                         .heads = HEADS,
                                         .kv_heads = KV,
                                         .head_dim = DIM,
                                         .rot_dim = DIM,
                                         .joined_stride = STRIDE,
                                         .positions = positions,
                                         .cos = cos,
                                         .sin = sin},
                               .eps = (float)EPS,
                               .weight_q = w,
                               .weight_k = w,
                               .joined = x,
                               .q = part == 0 ? y : NULL,
                               .k = part == 1 ? y : NULL,
                               .rstd = rstd};
        assert_ok(mf_kernel_qk_rope_forward(&f, NULL));
        assert_memory_equal(y, n, (part == 0 ? QN : KN) * sizeof(float));
    }
    assert_memory_equal(rstd, want, sizeof want);
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normed_and_turned_heads_match_double_and_its_differences),
        cmocka_unit_test(rstd_has_the_layout_of_two_separate_norms),
    };
    kt_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
