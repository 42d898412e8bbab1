/* gemm.h - dense matrix products, plain C reference (on GPUs cuBLASLt does this).
 *
 *     c[m, n] = activation(alpha * op(a) op(b) + bias[n]) (+ c when accumulate: then no activation)
 *     MF_GEMM_NT  a [m, k], b [n, k]   forward of a linear layer: x W^T, W [out, in]
 *     MF_GEMM_NN  a [m, k], b [k, n]   its input gradient: dy W
 *     MF_GEMM_TN  a [k, m], b [k, n]   its weight gradient: dy^T x; and with bias_grad that of its
 * bias, bias_grad[m] = the sums of dy's columns, without alpha All matrices are row-major with a
 * row stride. Products are summed in float, for each element of c in the order of k, whatever the
 * block sizes: a row of c does not depend on how many other rows are computed with it. One rounding
 * at the end. bf16 products are exact in float. Blocked for the caches and vectorised (AVX2 where
 * the processor has it: same results to the bit).
 */
#ifndef MF_KERNELS_GEMM_H
#define MF_KERNELS_GEMM_H

#include "kernels/kernel.h"

typedef enum mf_gemm_form { MF_GEMM_NT, MF_GEMM_NN, MF_GEMM_TN } mf_gemm_form;

/* gelu: by tanh, x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). */
typedef enum mf_gemm_activation { MF_GEMM_LINEAR, MF_GEMM_RELU, MF_GEMM_GELU } mf_gemm_activation;

typedef struct mf_kernel_gemm {
    mf_gemm_form form;
    mf_kernel_dtype a_dtype, b_dtype, c_dtype;
    int64_t m, n, k;
    int64_t lda, ldb, ldc; /* row strides, elements */
    float alpha;
    bool accumulate;
    const void *a, *b;
    const void *bias; /* [n] of c_dtype; NULL: none */
    void *c;          /* must not overlap a or b; k = 0 writes zeros (plus bias) */
    mf_gemm_activation activation;
    void *bias_grad; /* [m] of c_dtype, overwritten; MF_GEMM_TN only; NULL: none */
} mf_kernel_gemm;

MF_KERNEL_C_BEGIN
mf_status mf_kernel_gemm_run(const mf_kernel_gemm *a, mf_err *e);
MF_KERNEL_C_END
#endif
