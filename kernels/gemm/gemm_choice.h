/* gemm_choice.h - dense products on a GPU as plain values: what is asked (shape) and how it is to
 * be computed (choice). Both have one short line of text, so that a choice made by measurement can
 * be kept in a store and used by a later run. No GPU and no library is needed here.
 *
 * Who measures calls, for a shape that the store knows nothing of,
 *     mf_gemm_cuda_create, mf_gemm_cuda_tune, mf_gemm_cuda_choice, mf_gemm_choice_print
 * and keeps the line under the text of mf_gemm_shape_print; who runs calls
 *     mf_gemm_choice_read, mf_gemm_cuda_create, mf_gemm_cuda_use
 * and nothing is timed. A choice of another cuBLAS or another GPU is refused by mf_gemm_cuda_use
 * (MF_INPUT) and leaves the plan with its own first proposal: measure again then.
 * (kernels/gemm/gemm_cuda.h)
 *
 * The shape's line is a key: same product, same text. It names no GPU: rows of the store do.
 */
#ifndef MF_KERNELS_GEMM_CHOICE_H
#define MF_KERNELS_GEMM_CHOICE_H

#include "kernels/gemm/gemm.h"

#define MF_GEMM_SHAPE_TEXT 192
#define MF_GEMM_CHOICE_TEXT 384
#define MF_GEMM_STATE_WORDS 8

typedef enum mf_gemm_type { MF_GEMM_F32, MF_GEMM_BF16, MF_GEMM_E4M3 } mf_gemm_type;

typedef enum mf_gemm_scale {
    MF_GEMM_SCALE_NONE,
    MF_GEMM_SCALE_TENSOR,
    MF_GEMM_SCALE_1X128,
    MF_GEMM_SCALE_128X128,
} mf_gemm_scale;

typedef struct mf_gemm_cuda_shape {
    mf_gemm_form form;
    mf_gemm_type a_type, b_type, c_type; /* c: F32 or BF16 */
    mf_gemm_scale a_scale, b_scale;      /* of e4m3 operands */
    int64_t m, n, k;
    int64_t lda, ldb, ldc; /* row strides, elements; multiples of 16 bytes */
    bool accumulate;       /* c += */
    bool bias;             /* [n] of c's type, added to every row */
    bool bias_grad;        /* TN: the sums of a's columns too; not with bias or an activation */
    mf_gemm_activation activation; /* not with accumulate */
    int32_t align_B; /* of all operands; 0: 16 or more. With less, algorithms are few and slow */
} mf_gemm_cuda_shape;

/* The numbers are cuBLASLt's own (cublasLt.h: cublasLtMatmulAlgoConfigAttributes_t); `state` is its
 * description of the same, restored to the bit. */
typedef struct mf_gemm_choice {
    char library[24]; /* "cublas-13.0.2": whose numbers these are */
    char gpu[16];     /* "sm_90": compute capability it was chosen on */
    int32_t algorithm, tile, stages, split_k, reduction, swizzle, inner_shape, cluster, custom;
    uint64_t state[MF_GEMM_STATE_WORDS];
} mf_gemm_choice;

MF_KERNEL_C_BEGIN
/* "nt bf16 bf16 f32 scales none none m 8 n 8 k 8 lda 8 ldb 8 ldc 8 add 0 bias 0", and where they
 * are asked for " bias_grad" and " relu" or " gelu". */
void mf_gemm_shape_print(const mf_gemm_cuda_shape *s, char text[MF_GEMM_SHAPE_TEXT]);

/* "cublas-13.0.2 sm_90 algorithm 66 tile 20 stages 0 split_k 1 reduction 0 swizzle 0 inner_shape 0
 * cluster 5 custom 0 state 42..." on one line; zeros at the end of the state are left out. */
void mf_gemm_choice_print(const mf_gemm_choice *c, char text[MF_GEMM_CHOICE_TEXT]);

/* MF_INPUT, naming the word that is wrong; *out is written only on success. */
mf_status mf_gemm_choice_read(const char *text, mf_gemm_choice *out, mf_err *e);
MF_KERNEL_C_END
#endif
