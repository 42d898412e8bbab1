/* kernel.h - what every kernel shares: element types, rounding, the shape of a kernel function.
 *
 * A kernel OP has a plain C reference in OP.c and, where a CUDA toolkit is present, a CUDA kernel
 * in OP.cu. Both take the same argument struct:
 *     mf_status mf_kernel_OP(const mf_kernel_op *a, mf_err *e);
 *     mf_status mf_kernel_OP_cuda(const mf_kernel_op *a, void *stream, mf_err *e);
 * The reference reads host memory and is finished when it returns. The CUDA function takes device
 * pointers (unless a field says "host"), enqueues on `stream` (a cudaStream_t; NULL = the default
 * stream) and never synchronises. Its only errors are MF_LIBRARY (a CUDA call failed) and MF_INPUT
 * (a shape that the kernel does not take, named in the text). References always return MF_OK
 * unless the header says otherwise. Wrong arguments are bugs of the caller (assert).
 *
 * Rounding is the same on both sides: every value is read into float, the whole kernel computes in
 * float, and each stored element is rounded once (to nearest, ties to even). References reduce in
 * double unless the header says otherwise, so they are the more exact of the two. Gradients of
 * parameters are float and are added to what is there.
 *
 * Rows of routed tokens: `rows` is what the buffers hold; where `rows_dev` is not NULL only the
 * first min(rows, *rows_dev) rows are read and written, the count being read where the kernel runs
 * so that it never comes back to the host.
 *
 * All functions are thread-safe as long as their outputs do not overlap. Outputs may alias inputs
 * only where the header says so. Pointers are aligned to 16 bytes, and row strides are multiples of
 * 16 bytes, for the fast path; other alignments are computed by a slower one.
 */
#ifndef MF_KERNELS_KERNEL_H
#define MF_KERNELS_KERNEL_H

#ifdef __cplusplus
#define MF_KERNEL_C_BEGIN extern "C" {
#define MF_KERNEL_C_END }
#else
#define MF_KERNEL_C_BEGIN
#define MF_KERNEL_C_END
#endif

MF_KERNEL_C_BEGIN
#include "core/base/status.h"
MF_KERNEL_C_END

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum mf_kernel_dtype {
    MF_KERNEL_F32,
    MF_KERNEL_BF16, /* uint16_t: the upper half of a float */
} mf_kernel_dtype;

static inline size_t mf_kernel_dtype_B(mf_kernel_dtype d) {
    return d == MF_KERNEL_BF16 ? 2 : 4;
}

/* float -> bf16, to nearest, ties to even; NaN stays NaN, overflow becomes infinity. */
static inline uint16_t mf_kernel_bf16_round(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float mf_kernel_bf16_widen(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* Element i of an array of type d. */
static inline float mf_kernel_get(const void *p, mf_kernel_dtype d, int64_t i) {
    return d == MF_KERNEL_BF16 ? mf_kernel_bf16_widen(((const uint16_t *)p)[i])
                               : ((const float *)p)[i];
}

static inline void mf_kernel_put(void *p, mf_kernel_dtype d, int64_t i, float value) {
    if (d == MF_KERNEL_BF16) {
        ((uint16_t *)p)[i] = mf_kernel_bf16_round(value);
    } else {
        ((float *)p)[i] = value;
    }
}

/* What `value` becomes when it is stored as d. */
static inline float mf_kernel_rounded(mf_kernel_dtype d, float value) {
    return d == MF_KERNEL_BF16 ? mf_kernel_bf16_widen(mf_kernel_bf16_round(value)) : value;
}

/* First element of row `row`, `stride` elements apart. */
static inline const void *mf_kernel_row(const void *p, mf_kernel_dtype d, int64_t row,
                                        int64_t stride) {
    return (const char *)p + (ptrdiff_t)(row * stride) * (ptrdiff_t)mf_kernel_dtype_B(d);
}

static inline void *mf_kernel_row_mut(void *p, mf_kernel_dtype d, int64_t row, int64_t stride) {
    return (char *)p + (ptrdiff_t)(row * stride) * (ptrdiff_t)mf_kernel_dtype_B(d);
}

/* Thousandths of the space for `places` rows that `rows` rows ask for, rounded up: more than
 * MF_KERNEL_ALL_SPACE where they have no place. */
#define MF_KERNEL_ALL_SPACE 1000
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int32_t
    mf_kernel_asked(int64_t rows, int64_t places) {
    const int64_t none = rows > 0 ? INT32_MAX : 0;
    const int64_t asked = places > 0 ? (MF_KERNEL_ALL_SPACE * rows + places - 1) / places : none;
    return asked < INT32_MAX ? (int32_t)asked : INT32_MAX;
}

/* Rows to work on: the reference's reading of rows and rows_dev. */
static inline int64_t mf_kernel_rows(int64_t rows, const int32_t *rows_dev) {
    return rows_dev && *rows_dev < rows ? *rows_dev : rows;
}

#endif
