/* gemm.c - reference matrix product: packed panels, a 6 x 16 register tile, float sums in the order
 * of k.
 *
 * c is divided into tiles of TILE_M x TILE_N. For each stretch of TILE_K the rows of op(a) and the
 * columns of op(b) are converted to float and packed so that the inner loop reads both in order;
 * the tile's sums live on the stack between stretches.
 */
#include "kernels/gemm/gemm.h"

#include <assert.h>
#include <math.h>

#define REG_M 6
#define REG_N 16
#define TILE_M 48
#define TILE_N 128
#define TILE_K 192
static_assert(TILE_M % REG_M == 0 && TILE_N % REG_N == 0, "panels fill tiles");

typedef float lanes __attribute__((vector_size(32)));

/* Sanitizers check that operands, a panel and a tile are large enough once a call (tile_sum's
 * asserts, what pack reads and writes at the ends of lines), not at every element: that would be
 * most of what their runs of the executor take. */
#if defined(__SANITIZE_ADDRESS__) && defined(__GNUC__)
#define CHECKED_BEFORE __attribute__((no_sanitize("address", "undefined")))
#else
#define CHECKED_BEFORE
#endif

/* sums[REG_M, REG_N] (row stride TILE_N) += a[k, REG_M]^T b[k, REG_N]. */
static inline __attribute__((always_inline)) CHECKED_BEFORE void
multiply(int64_t k, const float *a, const float *b, float *sums) {
    lanes s[REG_M][2];
    for (int i = 0; i < REG_M; i++) {
        memcpy(&s[i][0], sums + i * TILE_N, sizeof s[i][0]);
        memcpy(&s[i][1], sums + i * TILE_N + 8, sizeof s[i][1]);
    }
    for (int64_t p = 0; p < k; p++, a += REG_M, b += REG_N) {
        lanes b0, b1;
        memcpy(&b0, b, sizeof b0);
        memcpy(&b1, b + 8, sizeof b1);
        for (int i = 0; i < REG_M; i++) {
            s[i][0] += a[i] * b0;
            s[i][1] += a[i] * b1;
        }
    }
    for (int i = 0; i < REG_M; i++) {
        memcpy(sums + i * TILE_N, &s[i][0], sizeof s[i][0]);
        memcpy(sums + i * TILE_N + 8, &s[i][1], sizeof s[i][1]);
    }
}

typedef void (*multiply_fn)(int64_t, const float *, const float *, float *);

static CHECKED_BEFORE void multiply_plain(int64_t k, const float *a, const float *b, float *sums) {
    multiply(k, a, b, sums);
}

#if defined(__x86_64__) && defined(__GNUC__)
static __attribute__((target("avx2"))) CHECKED_BEFORE void
multiply_avx2(int64_t k, const float *a, const float *b, float *sums) {
    multiply(k, a, b, sums);
}

static multiply_fn multiply_best(void) {
    return __builtin_cpu_supports("avx2") ? multiply_avx2 : multiply_plain;
}
#else
static multiply_fn multiply_best(void) {
    return multiply_plain;
}
#endif

/* Packs up to `width` lines of length k: out[p][line], lines past the end zero. Element (line, p)
 * lies at line * line_step + p * k_step; the loops follow whichever step is 1. */
static void pack_panel(const void *src, mf_kernel_dtype d, int64_t lines, int64_t k,
                       int64_t line_step, int64_t k_step, int64_t width, float *out) {
    bool by_line = k_step == 1;
    int64_t outer = by_line ? lines : k, inner = by_line ? k : lines;
    int64_t outer_step = by_line ? line_step : k_step, inner_step = by_line ? k_step : line_step;
    int64_t outer_out = by_line ? 1 : width, inner_out = by_line ? width : 1;
    if (lines < width) {
        memset(out, 0, (size_t)(k * width) * sizeof *out);
    }
    for (int64_t i = 0; i < outer; i++) {
        float *to = out + i * outer_out;
        if (d == MF_KERNEL_F32) {
            const float *from = (const float *)src + i * outer_step;
            for (int64_t j = 0; j < inner; j++) {
                to[j * inner_out] = from[j * inner_step];
            }
        } else {
            const uint16_t *from = (const uint16_t *)src + i * outer_step;
            for (int64_t j = 0; j < inner; j++) {
                to[j * inner_out] = mf_kernel_bf16_widen(from[j * inner_step]);
            }
        }
    }
}

/* A panel that its lines fill; for constant `d` and `width`. */
static inline __attribute__((always_inline)) CHECKED_BEFORE void
pack_whole(const void *src, mf_kernel_dtype d, int64_t k, int64_t line_step, int64_t k_step,
           int64_t width, float *out) {
    for (int64_t p = 0; p < k; p++, out += width) {
        for (int64_t l = 0; l < width; l++) {
            const int64_t at = l * line_step + p * k_step;
            if (d == MF_KERNEL_F32) {
                out[l] = ((const float *)src)[at];
            } else { /* mf_kernel_bf16_widen, which sanitizers keep out of here */
                const uint32_t bits = (uint32_t)((const uint16_t *)src)[at] << 16;
                memcpy(&out[l], &bits, sizeof bits);
            }
        }
    }
}

typedef void (*pack_fn)(const void *, int64_t, int64_t, int64_t, float *);

#define PACK_WHOLE(name, d, width)                                                                 \
    static CHECKED_BEFORE void name(const void *src, int64_t k, int64_t line_step, int64_t k_step, \
                                    float *out) {                                                  \
        pack_whole(src, d, k, line_step, k_step, width, out);                                      \
    }
PACK_WHOLE(pack_a_f32, MF_KERNEL_F32, REG_M)
PACK_WHOLE(pack_b_f32, MF_KERNEL_F32, REG_N)
PACK_WHOLE(pack_a_bf16, MF_KERNEL_BF16, REG_M)
PACK_WHOLE(pack_b_bf16, MF_KERNEL_BF16, REG_N)

/* The ends of each line, and of the panel: what sanitizers see of pack_whole. */
static void look_at_ends(const void *src, mf_kernel_dtype d, int64_t k, int64_t line_step,
                         int64_t k_step, int64_t width, float *out) {
    for (int64_t l = 0; l < width && k > 0; l++) {
        out[l] = mf_kernel_get(src, d, l * line_step);
        out[(k - 1) * width + l] = mf_kernel_get(src, d, l * line_step + (k - 1) * k_step);
    }
}

static void pack(const void *src, mf_kernel_dtype d, int64_t lines, int64_t k, int64_t line_step,
                 int64_t k_step, int64_t width, float *out) {
    const bool f32 = d == MF_KERNEL_F32;
    const pack_fn whole =
        width == REG_M ? (f32 ? pack_a_f32 : pack_a_bf16) : (f32 ? pack_b_f32 : pack_b_bf16);
    for (int64_t l = 0; l < lines; l += width, out += width * k) {
        const void *from = mf_kernel_row(src, d, l, line_step);
        if (lines - l < width) {
            pack_panel(from, d, lines - l, k, line_step, k_step, width, out);
        } else {
            look_at_ends(from, d, k, line_step, k_step, width, out);
            whole(from, k, line_step, k_step, out);
        }
    }
}

static int64_t at_most(int64_t x, int64_t limit) {
    return x < limit ? x : limit;
}

/* What one call needs at hand: tile and panels. */
typedef struct scratch {
    float tile[TILE_M * TILE_N];
    float a[TILE_M * TILE_K];
    float b[TILE_N * TILE_K];
} scratch;

static void tile_sum(const mf_kernel_gemm *g, multiply_fn fn, int64_t i0, int64_t m, int64_t j0,
                     int64_t n, scratch *w) {
    bool a_cols = g->form == MF_GEMM_TN, b_cols = g->form != MF_GEMM_NT;
    int64_t a_line = a_cols ? 1 : g->lda, a_k = a_cols ? g->lda : 1;
    int64_t b_line = b_cols ? 1 : g->ldb, b_k = b_cols ? g->ldb : 1;
    memset(w->tile, 0, (size_t)((m + REG_M - 1) / REG_M * REG_M) * TILE_N * sizeof *w->tile);
    for (int64_t p0 = 0; p0 < g->k; p0 += TILE_K) {
        int64_t k = at_most(g->k - p0, TILE_K);
        const void *a = mf_kernel_row(g->a, g->a_dtype, i0 * a_line + p0 * a_k, 1);
        const void *b = mf_kernel_row(g->b, g->b_dtype, j0 * b_line + p0 * b_k, 1);
        pack(a, g->a_dtype, m, k, a_line, a_k, REG_M, w->a);
        pack(b, g->b_dtype, n, k, b_line, b_k, REG_N, w->b);
        assert(m <= TILE_M && n <= TILE_N && k <= TILE_K);
        for (int64_t i = 0; i < m; i += REG_M) {
            for (int64_t j = 0; j < n; j += REG_N) {
                fn(k, w->a + i * k, w->b + j * k, w->tile + i * TILE_N + j);
            }
        }
    }
}

static float activate(mf_gemm_activation f, float x) {
    const float slope = 0.7978845608f; /* sqrt(2 / pi) */
    switch (f) {
    case MF_GEMM_RELU:
        return x > 0.0f ? x : 0.0f;
    case MF_GEMM_GELU:
        return 0.5f * x * (1.0f + tanhf(slope * (x + 0.044715f * x * x * x)));
    case MF_GEMM_LINEAR:
        break;
    }
    return x;
}

/* row += from; elements of type d. */
static void add_to(float *row, const void *from, mf_kernel_dtype d, int64_t n) {
    if (d == MF_KERNEL_F32) {
        for (int64_t j = 0; j < n; j++) {
            row[j] += ((const float *)from)[j];
        }
    } else {
        for (int64_t j = 0; j < n; j++) {
            row[j] += mf_kernel_bf16_widen(((const uint16_t *)from)[j]);
        }
    }
}

static void put_row(void *to, mf_kernel_dtype d, const float *row, int64_t n) {
    if (d == MF_KERNEL_F32) {
        memcpy(to, row, (size_t)n * sizeof *row);
    } else {
        for (int64_t j = 0; j < n; j++) {
            ((uint16_t *)to)[j] = mf_kernel_bf16_round(row[j]);
        }
    }
}

static void tile_store(const mf_kernel_gemm *g, int64_t i0, int64_t m, int64_t j0, int64_t n,
                       const scratch *w) {
    for (int64_t i = 0; i < m; i++) {
        void *c = mf_kernel_row_mut(g->c, g->c_dtype, (i0 + i) * g->ldc + j0, 1);
        float row[TILE_N];
        for (int64_t j = 0; j < n; j++) {
            row[j] = g->alpha * w->tile[i * TILE_N + j];
        }
        if (g->bias) {
            add_to(row, mf_kernel_row(g->bias, g->c_dtype, j0, 1), g->c_dtype, n);
        }
        if (g->accumulate) {
            add_to(row, c, g->c_dtype, n);
        }
        for (int64_t j = 0; g->activation != MF_GEMM_LINEAR && j < n; j++) {
            row[j] = activate(g->activation, row[j]);
        }
        put_row(c, g->c_dtype, row, n);
    }
}

/* The sums of a's columns, [k, m]. */
static void sum_columns(const mf_kernel_gemm *g) {
    for (int64_t i = 0; i < g->m; i++) {
        double sum = 0.0;
        for (int64_t p = 0; p < g->k; p++) {
            sum += (double)mf_kernel_get(g->a, g->a_dtype, p * g->lda + i);
        }
        mf_kernel_put(g->bias_grad, g->c_dtype, i, (float)sum);
    }
}

mf_status mf_kernel_gemm_run(const mf_kernel_gemm *a, mf_err *e) {
    (void)e;
    assert(a->ldc >= a->n && a->lda >= (a->form == MF_GEMM_TN ? a->m : a->k));
    assert(a->ldb >= (a->form == MF_GEMM_NT ? a->k : a->n));
    assert(!a->accumulate || a->activation == MF_GEMM_LINEAR);
    assert(a->bias_grad == NULL || a->form == MF_GEMM_TN);
    multiply_fn fn = multiply_best();
    scratch w;
    if (a->bias_grad != NULL) {
        sum_columns(a);
    }
    for (int64_t j = 0; j < a->n; j += TILE_N) {
        for (int64_t i = 0; i < a->m; i += TILE_M) {
            int64_t m = at_most(a->m - i, TILE_M), n = at_most(a->n - j, TILE_N);
            tile_sum(a, fn, i, m, j, n, &w);
            tile_store(a, i, m, j, n, &w);
        }
    }
    return MF_OK;
}
