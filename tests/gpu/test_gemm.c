/* test_gemm.c - products through cuBLASLt against the C reference: every form and type, odd sizes,
 * accumulation, bias, FP8 with each kind of scale, every proposed algorithm; fresh random inputs
 * and poisoned outputs. The bound is on |got - want| / |want|: rounding of one BF16 result 1.7e-3
 * and of float sums of other order far below 1e-5; FP8 sums keep 14 bits on Hopper: 1e-3 before
 * rounding.
 */
#include "kernels/device/cuda_check.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/rows/quantise.h"
#include "tests/gpu/gpu_draw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WORKSPACE_B = 32 << 20 };

static int passed, failed;
static void *library, *workspace;

static void *allocate(size_t size_B) {
    void *p = calloc(1, size_B + 64);
    if (p == NULL) {
        exit(1);
    }
    return p;
}

static void must(cudaError_t r) {
    if (r != cudaSuccess) {
        printf("FATAL %s\n", cudaGetErrorString(r));
        exit(1);
    }
}

static void *to_device(const void *host, size_t size_B) {
    void *p = NULL;
    must(cudaMalloc(&p, size_B + 64));
    must(cudaMemcpy(p, host, size_B, cudaMemcpyHostToDevice));
    return p;
}

/* One matrix on both sides. e4m3: `wide` holds the values with their scales, as float. */
typedef struct matrix {
    int64_t rows, cols; /* as it lies in memory */
    float *wide;        /* [rows, cols] */
    void *host, *device;
    float *scale; /* device */
} matrix;

static matrix plain(int64_t rows, int64_t cols, mf_kernel_dtype d) {
    matrix x = {.rows = rows, .cols = cols};
    size_t n = (size_t)(rows * cols);
    x.wide = allocate(n * 4);
    x.host = allocate(n * mf_kernel_dtype_B(d));
    for (size_t i = 0; i < n; i++) {
        mf_kernel_put(x.host, d, (int64_t)i, (float)uniform(-1, 1));
        x.wide[i] = mf_kernel_get(x.host, d, (int64_t)i);
    }
    x.device = to_device(x.host, n * mf_kernel_dtype_B(d));
    return x;
}

static matrix quantised(int64_t rows, int64_t cols, mf_gemm_scale mode) {
    matrix x = {.rows = rows, .cols = cols};
    size_t n = (size_t)(rows * cols);
    int64_t blocks = (cols + 127) / 128, rows4 = (rows + 3) / 4 * 4, blocks4 = (blocks + 3) / 4 * 4;
    size_t scales = (size_t)(rows4 * blocks4) + 16;
    float *source = allocate(n * 4), *scale = allocate(scales * 4);
    mf_kernel_quantise q = {.dtype = MF_KERNEL_F32,
                            .block = mode == MF_GEMM_SCALE_TENSOR  ? MF_QUANT_TENSOR
                                     : mode == MF_GEMM_SCALE_1X128 ? MF_QUANT_1X128
                                                                   : MF_QUANT_128X128,
                            .rows = rows,
                            .cols = cols,
                            .x = source,
                            .scale = scale};
    q.scale_i = mode == MF_GEMM_SCALE_1X128 ? 1 : blocks4;
    q.scale_j = mode == MF_GEMM_SCALE_1X128 ? rows4 : 1;
    for (size_t i = 0; i < n; i++) {
        source[i] = (float)(uniform(-1, 1) * (1 + 3 * (double)(i / 4096 % 5)));
    }
    x.host = allocate(n);
    q.q = x.host;
    (void)mf_kernel_quantise_e4m3(&q, NULL);
    x.wide = allocate(n * 4);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) {
            float s = mode == MF_GEMM_SCALE_TENSOR ? scale[0]
                      : mode == MF_GEMM_SCALE_1X128
                          ? scale[i * q.scale_i + j / 128 * q.scale_j]
                          : scale[i / 128 * q.scale_i + j / 128 * q.scale_j];
            x.wide[i * cols + j] = mf_kernel_e4m3_widen(q.q[i * cols + j]) * s;
        }
    }
    x.device = to_device(x.host, n);
    x.scale = to_device(scale, scales * 4);
    free(source);
    free(scale);
    return x;
}

static void drop(matrix *x) {
    free(x->wide);
    free(x->host);
    (void)cudaFree(x->device);
    (void)cudaFree(x->scale);
}

static double error_of(const void *got, mf_kernel_dtype d, const float *want, size_t n) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double x = (double)mf_kernel_get(got, d, (int64_t)i) - (double)want[i];
        difference += x * x;
        size += (double)want[i] * (double)want[i];
    }
    return sqrt(difference) / (sqrt(size) + 1e-30);
}

static void check(const char *what, double error, double bound) {
    bool ok = error <= bound;
    ok ? passed++ : failed++;
    printf("%s %s: error %.2g (bound %.1g)\n", ok ? "ok   " : "FAIL ", what, error, bound);
}

/* A choice by way of its text into a fresh plan, which replaces *plan; what must be refused is. */
static void remember(mf_gemm_cuda **plan, const mf_gemm_cuda_shape *s) {
    char text[MF_GEMM_CHOICE_TEXT], again[MF_GEMM_CHOICE_TEXT];
    mf_gemm_choice choice, other, used;
    mf_gemm_cuda *fresh = NULL;
    mf_err e;
    mf_err_clear(&e);
    bool ok = mf_gemm_cuda_choice(*plan, &choice, &e) == MF_OK;
    mf_gemm_choice_print(&choice, text);
    ok = ok && mf_gemm_choice_read(text, &other, &e) == MF_OK &&
         mf_gemm_cuda_create(library, s, WORKSPACE_B, &fresh, &e) == MF_OK &&
         mf_gemm_cuda_use(fresh, &other, &e) == MF_OK &&
         mf_gemm_cuda_choice(fresh, &used, &e) == MF_OK;
    if (ok) {
        mf_gemm_choice_print(&used, again);
        snprintf(other.library, sizeof other.library, "cublas-0.0.0");
        ok = strcmp(text, again) == 0 && mf_gemm_cuda_use(fresh, &other, NULL) == MF_INPUT;
        other = choice;
        memset(other.state, 0xff, sizeof other.state);
        ok = ok && mf_gemm_cuda_use(fresh, &other, NULL) == MF_INPUT;
    }
    ok ? passed++ : failed++;
    if (!ok) {
        printf("FAIL  remembered algorithm: %s: %s\n", text, e.text);
    }
    if (fresh != NULL) {
        mf_gemm_cuda_destroy(*plan);
        *plan = fresh;
    }
}

static void name_case(const mf_gemm_cuda_shape *s, char *what, size_t size) {
    snprintf(what, size, "form %d types %d %d %d scales %d %d m %lld n %lld k %lld%s%s%s%s",
             s->form, s->a_type, s->b_type, s->c_type, s->a_scale, s->b_scale, (long long)s->m,
             (long long)s->n, (long long)s->k, s->accumulate ? " +=" : "", s->bias ? " bias" : "",
             s->bias_grad ? " bias gradient" : "",
             s->activation == MF_GEMM_RELU   ? " relu"
             : s->activation == MF_GEMM_GELU ? " gelu"
                                             : "");
}

/* What a product is to give, and what its output holds before. */
typedef struct wanted {
    mf_kernel_dtype type;
    size_t n, c_B, grad_B;
    float *c, *bias, *bias_grad; /* the reference's; bias: as float */
    void *start, *poison;        /* of C, of the bias gradient */
} wanted;

static wanted run_reference(const mf_gemm_cuda_shape *s, const matrix *a, const matrix *b,
                            void *bias) {
    wanted w = {.type = s->c_type == MF_GEMM_F32 ? MF_KERNEL_F32 : MF_KERNEL_BF16,
                .n = (size_t)(s->m * s->n)};
    w.c_B = w.n * mf_kernel_dtype_B(w.type);
    w.grad_B = (size_t)s->m * mf_kernel_dtype_B(w.type);
    w.c = allocate(w.n * 4), w.bias = allocate((size_t)s->n * 4);
    w.bias_grad = allocate((size_t)s->m * 4);
    w.start = allocate(w.c_B), w.poison = allocate(w.grad_B);
    memset(w.poison, 0xff, w.grad_B);
    for (size_t i = 0; i < w.n; i++) {
        w.c[i] = s->accumulate ? (float)uniform(-1, 1) : NAN;
        mf_kernel_put(w.start, w.type, (int64_t)i, w.c[i]);
        w.c[i] = mf_kernel_get(w.start, w.type, (int64_t)i);
    }
    for (int64_t i = 0; i < s->n; i++) {
        mf_kernel_put(bias, w.type, i, (float)uniform(-1, 1));
        w.bias[i] = mf_kernel_get(bias, w.type, i);
    }
    mf_kernel_gemm reference = {.form = s->form,
                                .a_dtype = MF_KERNEL_F32,
                                .b_dtype = MF_KERNEL_F32,
                                .c_dtype = MF_KERNEL_F32,
                                .m = s->m,
                                .n = s->n,
                                .k = s->k,
                                .lda = a->cols,
                                .ldb = b->cols,
                                .ldc = s->n,
                                .alpha = 0.5f,
                                .accumulate = s->accumulate,
                                .a = a->wide,
                                .b = b->wide,
                                .bias = s->bias ? w.bias : NULL,
                                .c = w.c,
                                .activation = s->activation,
                                .bias_grad = s->bias_grad ? w.bias_grad : NULL};
    (void)mf_kernel_gemm_run(&reference, NULL);
    return w;
}

static void drop_wanted(wanted *w) {
    free(w->c);
    free(w->bias);
    free(w->bias_grad);
    free(w->start);
    free(w->poison);
}

/* The larger error; one that is no number is none that a bound could hold. */
static double larger(double a, double b) {
    return isnan(a) || isnan(b) ? (double)INFINITY : fmax(a, b);
}

/* The plan's choice on poisoned output: the larger error of C and of the bias gradient. */
static double run_choice(mf_gemm_cuda *plan, const mf_gemm_cuda_shape *s,
                         const mf_gemm_cuda_data *d, const wanted *w) {
    mf_err e;
    double error = 0;
    void *got = allocate(w->c_B), *got_grad = allocate(w->grad_B);
    must(cudaMemcpy(d->c, w->start, w->c_B, cudaMemcpyHostToDevice));
    must(cudaMemcpy(d->bias_grad, w->poison, w->grad_B, cudaMemcpyHostToDevice));
    if (mf_gemm_cuda_run(plan, d, NULL, &e) != MF_OK) {
        printf("%s\n", e.text);
        error = INFINITY;
    }
    must(cudaMemcpy(got, d->c, w->c_B, cudaMemcpyDeviceToHost));
    error = larger(error, error_of(got, w->type, w->c, w->n));
    if (s->bias_grad) {
        must(cudaMemcpy(got_grad, d->bias_grad, w->grad_B, cudaMemcpyDeviceToHost));
        error = larger(error, error_of(got_grad, w->type, w->bias_grad, (size_t)s->m));
    }
    free(got);
    free(got_grad);
    return error;
}

/* Runs every proposal on poisoned output, then the tuned one. */
static void compare(const mf_gemm_cuda_shape *s, const matrix *a, const matrix *b, double bound) {
    char what[200];
    mf_gemm_cuda *plan = NULL;
    mf_err e;
    void *bias = allocate((size_t)s->n * 4);
    wanted w = run_reference(s, a, b, bias);
    void *bias_device = to_device(bias, (size_t)s->n * 4);
    mf_gemm_cuda_data d = {.bias_grad = to_device(w.poison, w.grad_B),
                           .a = a->device,
                           .b = b->device,
                           .a_scale = a->scale,
                           .b_scale = b->scale,
                           .bias = bias_device,
                           .c = to_device(w.start, w.c_B),
                           .workspace = workspace,
                           .alpha = 0.5f};
    name_case(s, what, sizeof what);
    if (mf_gemm_cuda_create(library, s, WORKSPACE_B, &plan, &e) != MF_OK) {
        printf("FAIL  %s: %s\n", what, e.text);
        failed++;
        goto out;
    }
    double worst = 0;
    for (int i = 0; i < mf_gemm_cuda_candidates(plan); i++) {
        mf_gemm_cuda_choose(plan, i);
        worst = larger(worst, run_choice(plan, s, &d, &w));
    }
    check(what, worst, bound);
    if (mf_gemm_cuda_tune(plan, &d, 1, NULL, NULL, &e) != MF_OK) {
        printf("FAIL  tune: %s\n", e.text);
        failed++;
    }
    if (mf_gemm_cuda_tune_for_steps(plan, &d, NULL, &e) != MF_OK) {
        printf("FAIL  tune for steps: %s\n", e.text);
        failed++;
    }
    remember(&plan, s);
    if (!(run_choice(plan, s, &d, &w) <= bound)) {
        printf("FAIL  remembered algorithm of %s\n", what);
        failed++;
    }
out:
    mf_gemm_cuda_destroy(plan);
    (void)cudaFree(d.c);
    (void)cudaFree(d.bias_grad);
    (void)cudaFree(bias_device);
    drop_wanted(&w);
    free(bias);
}

static void test_plain(mf_gemm_form form, mf_gemm_type in, mf_gemm_type out, int64_t m, int64_t n,
                       int64_t k, bool accumulate, bool bias) {
    mf_kernel_dtype d = in == MF_GEMM_F32 ? MF_KERNEL_F32 : MF_KERNEL_BF16;
    bool a_t = form == MF_GEMM_TN, b_t = form == MF_GEMM_NT;
    matrix a = plain(a_t ? k : m, a_t ? m : k, d), b = plain(b_t ? n : k, b_t ? k : n, d);
    mf_gemm_cuda_shape s = {.form = form,
                            .a_type = in,
                            .b_type = in,
                            .c_type = out,
                            .m = m,
                            .n = n,
                            .k = k,
                            .lda = a.cols,
                            .ldb = b.cols,
                            .ldc = n,
                            .accumulate = accumulate,
                            .bias = bias};
    compare(&s, &a, &b, out == MF_GEMM_F32 ? 1e-5 : 2e-3);
    drop(&a);
    drop(&b);
}

/* What cuBLASLt does behind the sums: activations with and without bias, the bias's gradient. */
static void test_epilogues(void) {
    for (int i = 0; i < 6; i++) {
        int64_t m = 8 * (1 + (int64_t)uniform(0, 60)), n = 8 * (1 + (int64_t)uniform(0, 60));
        int64_t k = 8 * (1 + (int64_t)uniform(0, 120));
        bool grad = i >= 4;
        matrix a = plain(grad ? k : m, grad ? m : k, MF_KERNEL_BF16);
        matrix b = plain(grad ? k : n, grad ? n : k, MF_KERNEL_BF16);
        mf_gemm_cuda_shape s = {.form = grad ? MF_GEMM_TN : MF_GEMM_NT,
                                .a_type = MF_GEMM_BF16,
                                .b_type = MF_GEMM_BF16,
                                .c_type = MF_GEMM_BF16,
                                .m = m,
                                .n = n,
                                .k = k,
                                .lda = a.cols,
                                .ldb = b.cols,
                                .ldc = n,
                                .bias = !grad && i % 2 == 1,
                                .bias_grad = grad,
                                .activation = grad    ? MF_GEMM_LINEAR
                                              : i < 2 ? MF_GEMM_RELU
                                                      : MF_GEMM_GELU};
        compare(&s, &a, &b, 2.5e-3);
        drop(&a);
        drop(&b);
    }
}

static void test_fp8(mf_gemm_scale sa, mf_gemm_scale sb, mf_gemm_type out, int64_t m, int64_t n,
                     int64_t k, bool accumulate) {
    matrix a = quantised(m, k, sa), b = quantised(n, k, sb);
    mf_gemm_cuda_shape s = {.form = MF_GEMM_NT,
                            .a_type = MF_GEMM_E4M3,
                            .b_type = MF_GEMM_E4M3,
                            .c_type = out,
                            .a_scale = sa,
                            .b_scale = sb,
                            .m = m,
                            .n = n,
                            .k = k,
                            .lda = k,
                            .ldb = k,
                            .ldc = n,
                            .accumulate = accumulate};
    compare(&s, &a, &b, out == MF_GEMM_F32 ? 1e-3 : 2.5e-3);
    drop(&a);
    drop(&b);
}

int main(void) {
    int count = 0;
    const char *text = getenv("MF_SEED");
    unsigned long long seed =
        text != NULL ? strtoull(text, NULL, 10) : (unsigned long long)time(NULL);
    mf_err e;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        printf("MF_SKIPPED 1 no GPU: products through cuBLASLt were compiled, not run\n");
        return 0;
    }
    printf("seed %llu\n", seed);
    state = seed * 0x9e3779b97f4a7c15ull + 1;
    must(cudaMalloc(&workspace, WORKSPACE_B));
    if (mf_gemm_cuda_library_open(&library, &e) != MF_OK) {
        printf("FATAL %s\n", e.text);
        return 1;
    }
    for (mf_gemm_form form = MF_GEMM_NT; form <= MF_GEMM_TN; form++) {
        for (int i = 0; i < 3; i++) {
            int64_t m = 8 * (1 + (int64_t)uniform(0, 60)), n = 8 * (1 + (int64_t)uniform(0, 60));
            int64_t k = 8 * (1 + (int64_t)uniform(0, 120));
            test_plain(form, MF_GEMM_BF16, MF_GEMM_BF16, m, n, k, false, i == 1);
            test_plain(form, MF_GEMM_BF16, MF_GEMM_F32, m, n, k, true, false);
        }
        test_plain(form, MF_GEMM_F32, MF_GEMM_F32, 72, 100, 136, false, true);
    }
    test_epilogues();
    static const mf_gemm_scale scales[][2] = {{MF_GEMM_SCALE_TENSOR, MF_GEMM_SCALE_TENSOR},
                                              {MF_GEMM_SCALE_1X128, MF_GEMM_SCALE_128X128},
                                              {MF_GEMM_SCALE_1X128, MF_GEMM_SCALE_1X128},
                                              {MF_GEMM_SCALE_128X128, MF_GEMM_SCALE_1X128}};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        test_fp8(scales[i][0], scales[i][1], MF_GEMM_BF16, 256, 384, 512, false);
        test_fp8(scales[i][0], scales[i][1], MF_GEMM_BF16, 144, 176, 1040, false);
        test_fp8(scales[i][0], scales[i][1], MF_GEMM_F32, 256, 128, 640, true);
    }
    mf_gemm_cuda_library_close(library);
    (void)cudaFree(workspace);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
