/* grouped_gemm.h - the expert products of a Mixture-of-Experts layer, BF16 with FP32 accumulation,
 * and the gated activation behind the first of them.
 *
 * T token rows are sorted by expert: expert e owns rows [offsets[e], offsets[e+1]). With the
 * weights W [experts, n, k] of one linear layer, row-major:
 *
 *     MF_GROUPED_FORWARD  y  [T, n] = x  [T, k] . W_e^T         out = y, a = x, b = W
 *     MF_GROUPED_DGRAD    dx [T, k] = dy [T, n] . W_e           out = dx, a = dy, b = W
 *     MF_GROUPED_WGRAD    dW [experts, n, k] (+)= dy_e^T . x_e  out = dW, a = dy, b = x
 *
 * All are bf16 but dW, which is f32 unless `bf16` is set.
 *
 * With `act` (FORWARD) y is a gate and an up half, n/2 columns each, and beside y
 *
 *     act [T, n/2] = silu(gate) * up (* prob of the row)
 *
 * is written, equal to the bit to what kernels/moe/swiglu.h makes of y.
 *
 * Any counts: empty experts, counts that are no multiple of anything. Rows outside an expert's
 * segment never reach its results (not even NaN), and only rows [offsets[0], offsets[experts]) of y
 * and dx (and act) are written. An empty expert's dW becomes zero, or stays as it is with
 * `accumulate`.
 *
 * The offsets are read where the kernel runs: on the GPU nothing comes back to the host. They never
 * decrease; values past `rows` (a buffer that overflowed) are read as `rows`.
 *
 * The CUDA side needs compute capability 9.0, n and k multiples of 8 (n/2 with `act`), and pointers
 * aligned to 16 bytes (the bulk copy engine's terms). Products are exact, sums are float in an
 * order that does not depend on the other experts' counts: results repeat to the bit. One rounding
 * at the end.
 *
 * Thread-safe as long as outputs do not overlap. Nothing is allocated; the caller owns all memory.
 */
#ifndef MF_KERNELS_GROUPED_GEMM_H
#define MF_KERNELS_GROUPED_GEMM_H

#ifdef __cplusplus
extern "C" {
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/status.h"

typedef enum mf_grouped_kind {
    MF_GROUPED_FORWARD,
    MF_GROUPED_DGRAD,
    MF_GROUPED_WGRAD
} mf_grouped_kind;

#define MF_GROUPED_KINDS 3

typedef struct mf_kernel_grouped_gemm {
    mf_grouped_kind kind;
    bool accumulate; /* WGRAD only: add to out instead of overwriting it */
    int32_t experts;
    int64_t rows;           /* rows that the token buffers hold; at least offsets[experts] */
    int64_t n, k;           /* of one expert's weight [n, k] */
    const int32_t *offsets; /* [experts + 1] */
    const uint16_t *a;      /* bf16: x (FORWARD) or dy */
    const uint16_t *b;      /* bf16: W, or x (WGRAD) */
    void *out;              /* bf16 [rows, n or k]; WGRAD: [experts, n, k], f32 unless ... */
    bool bf16;              /* ... this; not with accumulate */
    uint16_t *act;          /* FORWARD: bf16 [rows, n / 2]; NULL: none */
    const float *prob;      /* [rows], of act; NULL: 1 */
    /* A word of device memory that is 0 when the product begins, is 0 again when it has ended, and
     * belongs to no other product meanwhile. Blocks then take their next tile when they are free:
     * beside a collective, whose blocks hold some multiprocessors, a static share would keep those
     * waiting that began late. NULL: each block has its share from the start. The results are the
     * same to the bit. */
    uint32_t *turns;
} mf_kernel_grouped_gemm;

/* How the CUDA kernel divides the work. Plain data, chosen without a GPU, so that it can be tested
 * and printed; any value that mf_grouped_config_check accepts gives right results. */
typedef struct mf_grouped_config {
    int32_t tile_m, tile_n, tile_k; /* output tile of one block; reduction step */
    int32_t cluster;                /* blocks that share an operand by multicast */
    int32_t stages;                 /* tile_k steps in flight in shared memory */
    int32_t store_buffers;          /* 2 KiB output buffers of each consumer warp */
    int32_t raster;                 /* tile rows (of cluster pairs) swept together, for L2 reuse */
    int32_t balance;                /* 1: slices fill the last round */
    int32_t blocks;                 /* persistent blocks, a multiple of cluster */
    int32_t smem_B;                 /* dynamic shared memory of a block */
} mf_grouped_config;

/* What the choice needs to know about a GPU. */
typedef struct mf_grouped_device {
    int32_t sm_count;
    int32_t smem_max_B; /* largest dynamic shared memory of one block */
    int64_t l2_B;
} mf_grouped_device;

/* Chooses a config. MF_INPUT with the reason when the shape is outside the CUDA kernel's terms. */
mf_status mf_grouped_config_choose(const mf_kernel_grouped_gemm *g, const mf_grouped_device *dev,
                                   mf_grouped_config *out, mf_err *e);

/* MF_INPUT unless the CUDA kernel is built for this config and it fits the device. */
mf_status mf_grouped_config_check(const mf_grouped_config *c, const mf_grouped_device *dev,
                                  mf_err *e);

/* Does half of each tile come from memory to be added to? Weight gradients with `accumulate` alone
 * run so; what they give is the same to the bit either way, but for subnormal numbers. */
bool mf_grouped_config_fetches(const mf_grouped_config *c);

/* One line such as "128x256x64 cluster 2 stages 4 ...", truncated to size; returns text. */
char *mf_grouped_config_print(const mf_grouped_config *c, char *text, size_t size);

/* Floating-point operations of `tokens` routed rows, and the fewest bytes they move (each input
 * read once, each output written once, the sum read once more with accumulate; probabilities, which
 * are few, apart). */
double mf_grouped_flops(const mf_kernel_grouped_gemm *g, int64_t tokens);
double mf_grouped_least_B(const mf_kernel_grouped_gemm *g, int64_t tokens);

/* Reference: host memory, sums in double, finished on return. Always MF_OK. */
mf_status mf_kernel_grouped_gemm_run(const mf_kernel_grouped_gemm *g, mf_err *e);

/* CUDA: device pointers; enqueues on `stream` (a cudaStream_t, NULL = default stream), never
 * synchronises, can be captured in a graph. MF_LIBRARY with CUDA's own words, MF_INPUT as above. */
mf_status mf_kernel_grouped_gemm_run_cuda(const mf_kernel_grouped_gemm *g, void *stream, mf_err *e);

/* The same with a config of the caller's. */
mf_status mf_kernel_grouped_gemm_run_cuda_config(const mf_kernel_grouped_gemm *g,
                                                 const mf_grouped_config *c, void *stream,
                                                 mf_err *e);

#ifdef __cplusplus
}
#endif
#endif
