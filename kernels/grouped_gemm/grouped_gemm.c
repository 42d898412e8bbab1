/* grouped_gemm.c - reference of the expert products, and the CUDA kernel's choices in plain C. */
#include "kernels/grouped_gemm/grouped_gemm.h"

#include "kernels/grouped_gemm/grouped_gemm_tiles.h"
#include "kernels/kernel.h"
#include "kernels/moe/swiglu.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

/* --- reference ---------------------------------------------------------------------------------
 */
static int64_t clamp_row(const mf_kernel_grouped_gemm *g, int32_t row) {
    return row < g->rows ? row : g->rows;
}

/* y = x W^T, one row of x and y. */
static void forward_row(const uint16_t *x, const uint16_t *w, int64_t n, int64_t k, uint16_t *y) {
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t j = 0; j < k; j++) {
            sum += (double)mf_kernel_bf16_widen(x[j]) * (double)mf_kernel_bf16_widen(w[i * k + j]);
        }
        y[i] = mf_kernel_bf16_round((float)sum);
    }
}

/* dx = dy W, one row. */
static void dgrad_row(const uint16_t *dy, const uint16_t *w, int64_t n, int64_t k, uint16_t *dx) {
    for (int64_t j = 0; j < k; j++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++) {
            sum += (double)mf_kernel_bf16_widen(dy[i]) * (double)mf_kernel_bf16_widen(w[i * k + j]);
        }
        dx[j] = mf_kernel_bf16_round((float)sum);
    }
}

/* dW (+)= dy^T x over the rows [begin, end) of one expert. */
static void wgrad_expert(const mf_kernel_grouped_gemm *g, int64_t begin, int64_t end,
                         int64_t first) {
    for (int64_t i = 0; i < g->n; i++) {
        for (int64_t j = 0; j < g->k; j++) {
            double sum = 0;
            for (int64_t t = begin; t < end; t++) {
                sum += (double)mf_kernel_bf16_widen(g->a[t * g->n + i]) *
                       (double)mf_kernel_bf16_widen(g->b[t * g->k + j]);
            }
            int64_t at = first + i * g->k + j;
            if (g->bf16) {
                ((uint16_t *)g->out)[at] = mf_kernel_bf16_round((float)sum);
            } else {
                float *dw = (float *)g->out + at;
                *dw = g->accumulate ? *dw + (float)sum : (float)sum;
            }
        }
    }
}

/* Of all experts' rows, once y is there. */
static mf_status activate(const mf_kernel_grouped_gemm *g, mf_err *e) {
    const int64_t begin = clamp_row(g, g->offsets[0]), end = clamp_row(g, g->offsets[g->experts]);
    const mf_kernel_swiglu a = {.shape = {.dtype = MF_KERNEL_BF16,
                                          .kind = MF_SWIGLU_SILU,
                                          .rows = end - begin,
                                          .cols = g->n / 2,
                                          .prob = g->prob != NULL ? g->prob + begin : NULL},
                                .gate_up = (const uint16_t *)g->out + begin * g->n,
                                .y = g->act + begin * (g->n / 2)};
    return mf_kernel_swiglu_forward(&a, e);
}

mf_status mf_kernel_grouped_gemm_run(const mf_kernel_grouped_gemm *g, mf_err *e) {
    assert(g->kind == MF_GROUPED_WGRAD || !g->accumulate);
    assert(g->kind == MF_GROUPED_FORWARD || g->act == NULL);
    assert(!g->accumulate || !g->bf16);
    for (int32_t x = 0; x < g->experts; x++) {
        const int64_t begin = clamp_row(g, g->offsets[x]), end = clamp_row(g, g->offsets[x + 1]);
        assert(begin >= 0 && begin <= end);
        if (g->kind == MF_GROUPED_WGRAD) {
            wgrad_expert(g, begin, end, x * g->n * g->k);
            continue;
        }
        const uint16_t *w = g->b + x * g->n * g->k;
        for (int64_t t = begin; t < end; t++) {
            if (g->kind == MF_GROUPED_FORWARD) {
                forward_row(g->a + t * g->k, w, g->n, g->k, (uint16_t *)g->out + t * g->n);
            } else {
                dgrad_row(g->a + t * g->n, w, g->n, g->k, (uint16_t *)g->out + t * g->k);
            }
        }
    }
    return g->act != NULL ? activate(g, e) : MF_OK;
}

/* --- work --------------------------------------------------------------------------------------
 */
double mf_grouped_flops(const mf_kernel_grouped_gemm *g, int64_t tokens) {
    return 2.0 * (double)tokens * (double)g->n * (double)g->k;
}

double mf_grouped_least_B(const mf_kernel_grouped_gemm *g, int64_t tokens) {
    const int64_t act = g->act != NULL ? g->n / 2 : 0;
    const double activations_B = 2.0 * (double)tokens * (double)(g->n + g->k + act);
    const double weights = (double)g->experts * (double)g->n * (double)g->k;
    if (g->kind != MF_GROUPED_WGRAD) {
        return activations_B + 2.0 * weights;
    }
    return activations_B + (g->accumulate ? 8.0 : g->bf16 ? 2.0 : 4.0) * weights;
}

/* --- choices -----------------------------------------------------------------------------------
 */
enum {
    BOX_B = 64 * 64 * 2, /* what the bulk copies move; a tile_k step of a or b is a few of them */
    WARPS = 8,           /* that multiply and store */
    BUFFER_B = 16 * 128, /* output rows of a warp */
    SLACK_B = 512 + 1024 /* barriers and tiles, alignment to the swizzle's 1024 bytes */
};

/* How shared memory is divided, as grouped_gemm.cu is compiled for. Space for another stage is
 * space for three buffers of each warp: enough that half of a tile may come from memory to be added
 * to.
 */
typedef struct smem_shape {
    int32_t stages, store_buffers;
} smem_shape;
static const smem_shape plain = {4, 2}, fetching = {3, 5};

/* Mean rows of an expert below which a weight gradient that is added fetches: with 256 it is 28 %
 * faster that way, with 512 14 %, with 1,024 9 % slower (H200). */
enum { FEW_ROWS = 640 };

static bool fetches(const mf_kernel_grouped_gemm *g) {
    return g->kind == MF_GROUPED_WGRAD && g->accumulate && g->rows < (int64_t)g->experts * FEW_ROWS;
}

static bool has_shape(const mf_grouped_config *c, smem_shape x) {
    return c->stages == x.stages && c->store_buffers == x.store_buffers;
}

bool mf_grouped_config_fetches(const mf_grouped_config *c) {
    return has_shape(c, fetching);
}

static int32_t smem_B(int32_t stages, int32_t store_buffers) {
    const int32_t boxes = (MF_GROUPED_TILE_M + MF_GROUPED_TILE_N) / 64;
    return stages * boxes * BOX_B + WARPS * store_buffers * BUFFER_B + SLACK_B;
}

mf_status mf_grouped_config_check(const mf_grouped_config *c, const mf_grouped_device *dev,
                                  mf_err *e) {
    if (c->tile_m != MF_GROUPED_TILE_M || c->tile_n != MF_GROUPED_TILE_N ||
        c->tile_k != MF_GROUPED_TILE_K || c->cluster != 2 ||
        !(has_shape(c, plain) || has_shape(c, fetching))) {
        char text[160];
        return mf_err_set(e, MF_INPUT, "grouped GEMM: no kernel is built for %s",
                          mf_grouped_config_print(c, text, sizeof text));
    }
    if (c->smem_B < smem_B(c->stages, c->store_buffers) || c->smem_B > dev->smem_max_B) {
        return mf_err_set(
            e, MF_INPUT, "grouped GEMM: %d bytes of shared memory, needed %d, at most %d",
            (int)c->smem_B, (int)smem_B(c->stages, c->store_buffers), (int)dev->smem_max_B);
    }
    if (c->raster < 1) {
        return mf_err_set(e, MF_INPUT, "grouped GEMM: raster %d out of range", (int)c->raster);
    }
    if (c->blocks < c->cluster || c->blocks % c->cluster || c->blocks > dev->sm_count) {
        return mf_err_set(e, MF_INPUT, "grouped GEMM: %d blocks in clusters of %d on %d SMs",
                          (int)c->blocks, (int)c->cluster, (int)dev->sm_count);
    }
    return MF_OK;
}

mf_status mf_grouped_config_choose(const mf_kernel_grouped_gemm *g, const mf_grouped_device *dev,
                                   mf_grouped_config *out, mf_err *e) {
    if (g->n % 8 || g->k % 8) {
        return mf_err_set(e, MF_INPUT,
                          "grouped GEMM: n %" PRId64 " and k %" PRId64 " must be multiples of 8",
                          g->n, g->k);
    }
    if (g->act != NULL && (g->kind != MF_GROUPED_FORWARD || g->n % 16)) {
        return mf_err_set(e, MF_INPUT,
                          "grouped GEMM: an activation is of forward products whose halves are "
                          "multiples of 8, not n %" PRId64,
                          g->n);
    }
    if (g->accumulate && g->bf16) {
        return mf_err_set(e, MF_INPUT, "grouped GEMM: sums are kept in f32, not in bf16");
    }
    if (g->rows > INT32_MAX - MF_GROUPED_TILE_M || g->n > INT32_MAX - MF_GROUPED_TILE_N ||
        g->k > INT32_MAX - MF_GROUPED_TILE_N) {
        return mf_err_set(e, MF_INPUT,
                          "grouped GEMM: %" PRId64 " rows, n %" PRId64 ", k %" PRId64
                          ": an extent is too large",
                          g->rows, g->n, g->k);
    }
    const smem_shape x = fetches(g) ? fetching : plain;
    mf_grouped_config c = {
        .tile_m = MF_GROUPED_TILE_M,
        .tile_n = MF_GROUPED_TILE_N,
        .tile_k = MF_GROUPED_TILE_K,
        .cluster = 2,
        .stages = x.stages,
        .store_buffers = x.store_buffers,
        .raster = 8,
        .balance = 1,
        .blocks = dev->sm_count / 2 * 2,
        .smem_B = smem_B(x.stages, x.store_buffers),
    };
    *out = c;
    return mf_grouped_config_check(out, dev, e);
}

char *mf_grouped_config_print(const mf_grouped_config *c, char *text, size_t size) {
    (void)snprintf(
        text, size,
        "%dx%dx%d cluster %d stages %d buffers %d raster %d balance %d blocks %d smem %d",
        (int)c->tile_m, (int)c->tile_n, (int)c->tile_k, (int)c->cluster, (int)c->stages,
        (int)c->store_buffers, (int)c->raster, (int)c->balance, (int)c->blocks, (int)c->smem_B);
    return text;
}
