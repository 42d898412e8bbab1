/* quantise.h - FP8 (e4m3) copies of a matrix with their scales, optionally with a transposed copy.
 *
 *     scale = amax of the block / 448 (1 for an all-zero block; pow2: rounded up to a power of two)
 *     q = e4m3(x * (1 / scale)), 1 / scale rounded to float;  to nearest even, saturating
 *     x ~ q * scale
 * Blocks: the whole tensor, 1 x 128 (along a row), or 128 x 128; the last ones may be smaller.
 * The transposed copy qt [cols, rows] has blocks of its own: 1 x 128 along its rows (so 128 x 1 of
 * x); with 128 x 128 and whole-tensor blocks it holds the same values and scales as q.
 * Scales of block (i, j) lie at scale[i * scale_i + j * scale_j], so that the order which a GEMM
 * wants (cuBLASLt: vectors along M side by side) can be written directly. qt's: with i counted over
 * the rows of qt, j over its blocks along a row.
 */
#ifndef MF_KERNELS_QUANTISE_H
#define MF_KERNELS_QUANTISE_H

#include "kernels/kernel.h"

typedef enum mf_quant_block {
    MF_QUANT_TENSOR,
    MF_QUANT_1X128,
    MF_QUANT_128X128,
} mf_quant_block;

#define MF_QUANT_E4M3_MAX 448.0f

typedef struct mf_kernel_quantise {
    mf_kernel_dtype dtype; /* x */
    mf_quant_block block;
    bool pow2;
    int64_t rows, cols;
    const void *x;            /* [rows, cols] */
    uint8_t *q;               /* [rows, cols]; NULL: not wanted */
    uint8_t *qt;              /* [cols, rows]; NULL: not wanted */
    float *scale;             /* TENSOR: [1]; of q's blocks; also of qt's when not 1x128 */
    int64_t scale_i, scale_j; /* strides in elements; not read for TENSOR */
    float *scale_t;           /* 1X128 with qt: of qt's blocks */
    int64_t scale_t_i, scale_t_j;
    void *workspace; /* CUDA, TENSOR only: mf_kernel_quantise_workspace_B bytes */
} mf_kernel_quantise;

/* value -> e4m3 byte (OCP FP8: 4 exponent bits, bias 7, no infinity, 0x7f NaN), to nearest even;
 * beyond 448 saturates; NaN stays NaN. */
uint8_t mf_kernel_e4m3_round(float value);
float mf_kernel_e4m3_widen(uint8_t q);

MF_KERNEL_C_BEGIN
size_t mf_kernel_quantise_workspace_B(void);

mf_status mf_kernel_quantise_e4m3(const mf_kernel_quantise *a, mf_err *e);
mf_status mf_kernel_quantise_e4m3_cuda(const mf_kernel_quantise *a, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
