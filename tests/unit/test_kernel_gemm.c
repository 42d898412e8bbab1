/* Reference GEMM, casts and MLA packing against double precision. */
#include "tests/support/kernel_test.h"

#include "kernels/attention/mla.h"
#include "kernels/gemm/gemm.h"
#include "kernels/rows/cast.h"

static void check_gemm(mf_gemm_form form, mf_kernel_dtype d, mf_kernel_dtype cd, int64_t m,
                       int64_t n, int64_t k, bool accumulate, bool with_bias) {
    bool ta = form == MF_GEMM_TN, tb = form != MF_GEMM_NT;
    int64_t lda = (ta ? m : k) + 3, ldb = (tb ? n : k) + 5, ldc = n + 2;
    int64_t na = (ta ? k : m) * lda, nb = (tb ? k : n) * ldb;
    double *wa = kt_doubles(na), *wb = kt_doubles(nb), *wc = kt_doubles(m * ldc);
    double *wbias = kt_doubles(n);
    void *a = kt_random(d, na, -1, 1, wa), *b = kt_random(d, nb, -1, 1, wb);
    void *c = kt_random(cd, m * ldc, -1, 1, wc), *bias = kt_random(cd, n, -1, 1, wbias);
    mf_kernel_gemm g = {.form = form,
                        .a_dtype = d,
                        .b_dtype = d,
                        .c_dtype = cd,
                        .m = m,
                        .n = n,
                        .k = k,
                        .lda = lda,
                        .ldb = ldb,
                        .ldc = ldc,
                        .alpha = 0.5f,
                        .accumulate = accumulate,
                        .a = a,
                        .b = b,
                        .bias = with_bias ? bias : NULL,
                        .c = c};
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t p = 0; p < k; p++) {
                sum += wa[ta ? p * lda + i : i * lda + p] * wb[tb ? p * ldb + j : j * ldb + p];
            }
            wc[i * ldc + j] =
                0.5 * sum + (accumulate ? wc[i * ldc + j] : 0.0) + (with_bias ? wbias[j] : 0.0);
        }
    }
    assert_ok(mf_kernel_gemm_run(&g, NULL)); /* columns past n must keep what they held */
    kt_assert_close(c, cd, wc, m * ldc, kt_bound(cd));
    free(a), free(b), free(c), free(bias), free(wa), free(wb), free(wc), free(wbias);
}

static void gemm_matches_double_in_every_form_and_odd_size(void **state) {
    (void)state;
    const mf_gemm_form forms[] = {MF_GEMM_NT, MF_GEMM_NN, MF_GEMM_TN};
    for (int f = 0; f < 3; f++) {
        check_gemm(forms[f], MF_KERNEL_F32, MF_KERNEL_F32, 1, 1, 1, false, false);
        check_gemm(forms[f], MF_KERNEL_F32, MF_KERNEL_F32, 3, 5, 0, false, true);
        check_gemm(forms[f], MF_KERNEL_F32, MF_KERNEL_F32, 49, 130, 200, true, true);
        for (int i = 0; i < 6; i++) {
            mf_kernel_dtype d = i & 1 ? MF_KERNEL_BF16 : MF_KERNEL_F32;
            mf_kernel_dtype cd = i & 2 ? MF_KERNEL_BF16 : MF_KERNEL_F32;
            check_gemm(forms[f], d, cd, kt_int(1, 100), kt_int(1, 150), kt_int(1, 420),
                       kt_int(0, 1), kt_int(0, 1));
        }
    }
}

static double activated(mf_gemm_activation f, double x) {
    const double slope = sqrt(2.0 / acos(-1.0));
    return f == MF_GEMM_RELU   ? (x > 0.0 ? x : 0.0)
           : f == MF_GEMM_GELU ? 0.5 * x * (1.0 + tanh(slope * (x + 0.044715 * x * x * x)))
                               : x;
}

static void activations_and_the_gradient_of_a_bias_match_double(void **state) {
    (void)state;
    for (int i = 0; i < 12; i++) {
        const mf_kernel_dtype d = i % 2 ? MF_KERNEL_BF16 : MF_KERNEL_F32;
        const mf_gemm_activation f = (mf_gemm_activation)(i % 3);
        const int64_t m = kt_int(1, 40), n = kt_int(1, 40), k = kt_int(1, 60);
        double *wa = kt_doubles(k * m), *wb = kt_doubles(k * n), *wc = kt_doubles(m * n);
        double *wbias = kt_doubles(n), *wgrad = kt_doubles(m);
        void *a = kt_random(d, k * m, -1, 1, wa), *b = kt_random(d, k * n, -1, 1, wb);
        void *bias = kt_random(d, n, -1, 1, wbias), *c = kt_random(d, m * n, -1, 1, NULL);
        void *grad = kt_random(d, m, -1, 1, NULL);
        mf_kernel_gemm g = {.form = MF_GEMM_TN,
                            .a_dtype = d,
                            .b_dtype = d,
                            .c_dtype = d,
                            .m = m,
                            .n = n,
                            .k = k,
                            .lda = m,
                            .ldb = n,
                            .ldc = n,
                            .alpha = 0.5f,
                            .a = a,
                            .b = b,
                            .bias = bias,
                            .c = c,
                            .activation = f,
                            .bias_grad = grad};
        for (int64_t r = 0; r < m; r++) {
            wgrad[r] = 0.0;
            for (int64_t p = 0; p < k; p++) {
                wgrad[r] += wa[p * m + r];
            }
            for (int64_t j = 0; j < n; j++) {
                double sum = 0.0;
                for (int64_t p = 0; p < k; p++) {
                    sum += wa[p * m + r] * wb[p * n + j];
                }
                wc[r * n + j] = activated(f, 0.5 * sum + wbias[j]);
            }
        }
        assert_ok(mf_kernel_gemm_run(&g, NULL));
        kt_assert_close(c, d, wc, m * n, kt_bound(d));
        kt_assert_close(grad, d, wgrad, m, kt_bound(d));
        free(a), free(b), free(c), free(bias), free(grad);
        free(wa), free(wb), free(wc), free(wbias), free(wgrad);
    }
}

static void a_row_of_the_product_does_not_depend_on_its_neighbours(void **state) {
    (void)state;
    enum { M = 61, N = 37, K = 300 };
    float *a = kt_random(MF_KERNEL_F32, M * K, -1, 1, NULL);
    float *b = kt_random(MF_KERNEL_F32, N * K, -1, 1, NULL), all[M * N], one[N];
    mf_kernel_gemm g = {.form = MF_GEMM_NT,
                        .m = M,
                        .n = N,
                        .k = K,
                        .lda = K,
                        .ldb = K,
                        .ldc = N,
                        .alpha = 1.0f,
                        .a = a,
                        .b = b,
                        .c = all};
    assert_ok(mf_kernel_gemm_run(&g, NULL));
    g.m = 1, g.a = a + 50 * K, g.c = one;
    assert_ok(mf_kernel_gemm_run(&g, NULL));
    assert_memory_equal(one, all + 50 * N, sizeof one);
    free(a), free(b);
}

static void casts_round_to_nearest_even_and_accumulate(void **state) {
    (void)state;
    /* 1 + 2^-8 is halfway between 1 and 1 + 2^-7: even wins; just above goes up. */
    const float src[] = {1.00390625f, 1.01171875f, 1.003907f, -0.0f, INFINITY, 3.4e38f};
    const uint16_t want[] = {0x3f80, 0x3f82, 0x3f81, 0x8000, 0x7f80, 0x7f80};
    uint16_t half[6];
    mf_kernel_cast c = {.src_dtype = MF_KERNEL_F32,
                        .dst_dtype = MF_KERNEL_BF16,
                        .count = 6,
                        .alpha = 1.0f,
                        .src = src,
                        .dst = half};
    assert_ok(mf_kernel_cast_values(&c, NULL));
    assert_memory_equal(half, want, sizeof want);
    assert_true(isnan(mf_kernel_bf16_widen(mf_kernel_bf16_round(NAN))));
    float sum[6] = {1, 1, 1, 1, 1, 1};
    mf_kernel_cast acc = {.src_dtype = MF_KERNEL_BF16,
                          .dst_dtype = MF_KERNEL_F32,
                          .count = 3,
                          .alpha = 2.0f,
                          .accumulate = true,
                          .src = half,
                          .dst = sum};
    assert_ok(mf_kernel_cast_values(&acc, NULL));
    assert_true(sum[0] == 3.0f);
    assert_true(sum[1] == 3.03125f);
    assert_true(sum[3] == 1.0f);
    float y[6];
    mf_kernel_add add = {.dtype = MF_KERNEL_F32, .count = 4, .a = sum, .b = src, .y = y};
    assert_ok(mf_kernel_add_values(&add, NULL));
    assert_true(y[0] == 4.00390625f);
    assert_true(y[3] == 1.0f);
    float grid[6] = {0};
    mf_kernel_copy_rows rows = {.dtype = MF_KERNEL_F32,
                                .rows = 2,
                                .cols = 2,
                                .src_stride = 2,
                                .dst_stride = 3,
                                .accumulate = true,
                                .src = sum,
                                .dst = grid};
    assert_ok(mf_kernel_copy_rows_strided(&rows, NULL));
    assert_true(grid[0] == 3.0f);
    assert_true(grid[2] == 0.0f);
    assert_true(grid[4] == 1.0f);
    assert_true(grid[5] == 0.0f);
}

static void mla_packing_and_its_gradient_are_adjoint(void **state) {
    (void)state;
    enum { R = 3, H = 4, NOPE = 5, ROPE = 2, V = 3, STRIDE = 7 };
    enum { KV = R * H * (NOPE + V), K = R * H * (NOPE + ROPE), VN = R * H * V, KR = R * STRIDE };
    mf_kernel_dtype d = MF_KERNEL_F32;
    float *kv = kt_random(d, KV, -1, 1, NULL), *kr = kt_random(d, KR, -1, 1, NULL);
    float *dk = kt_random(d, K, -1, 1, NULL), *dv = kt_random(d, VN, -1, 1, NULL);
    float k[K], v[VN], dkv[KV], dkr[KR];
    mf_kernel_mla f = {.dtype = d,
                       .rows = R,
                       .heads = H,
                       .nope = NOPE,
                       .rope = ROPE,
                       .v_dim = V,
                       .rope_stride = STRIDE,
                       .kv = kv,
                       .k_rope = kr,
                       .k = k,
                       .v = v};
    assert_ok(mf_kernel_mla_pack(&f, NULL));
    assert_true(k[(1 * H + 2) * (NOPE + ROPE) + 4] == kv[(1 * H + 2) * (NOPE + V) + 4]);
    assert_true(k[(2 * H + 3) * (NOPE + ROPE) + NOPE + 1] == kr[2 * STRIDE + 1]);
    assert_true(v[(1 * H + 2) * V + 1] == kv[(1 * H + 2) * (NOPE + V) + NOPE + 1]);
    mf_kernel_mla_grad b = {.dtype = d,
                            .rows = R,
                            .heads = H,
                            .nope = NOPE,
                            .rope = ROPE,
                            .v_dim = V,
                            .rope_stride = STRIDE,
                            .dk = dk,
                            .dv = dv,
                            .dkv = dkv,
                            .dk_rope = dkr};
    assert_ok(mf_kernel_mla_unpack_grad(&b, NULL));
    double forward = 0.0, backward = 0.0; /* <pack(x), g> = <x, unpack_grad(g)> */
    for (int i = 0; i < K; i++) {
        forward += (double)k[i] * (double)dk[i];
    }
    for (int i = 0; i < VN; i++) {
        forward += (double)v[i] * (double)dv[i];
    }
    for (int i = 0; i < KV; i++) {
        backward += (double)kv[i] * (double)dkv[i];
    }
    for (int r = 0; r < R; r++) {
        for (int c = 0; c < ROPE; c++) {
            backward += (double)kr[r * STRIDE + c] * (double)dkr[r * STRIDE + c];
        }
    }
    assert_below(fabs(forward - backward), 1e-5);
    free(kv), free(kr), free(dk), free(dv);
}

int main(void) {
    kt_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_matches_double_in_every_form_and_odd_size),
        cmocka_unit_test(activations_and_the_gradient_of_a_bias_match_double),
        cmocka_unit_test(a_row_of_the_product_does_not_depend_on_its_neighbours),
        cmocka_unit_test(casts_round_to_nearest_even_and_accumulate),
        cmocka_unit_test(mla_packing_and_its_gradient_are_adjoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
