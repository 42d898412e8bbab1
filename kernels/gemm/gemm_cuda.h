/* gemm_cuda.h - dense matrix products on a GPU through cuBLASLt: the three forms of
 * kernels/gemm/gemm.h in BF16, FP32 and FP8 (e4m3), float sums, also added to a float result
 * (weight gradients).
 *
 * A plan holds the descriptors of one shape and the algorithms that cuBLASLt's heuristic proposes
 * for it, best guess first; mf_gemm_cuda_tune times them on the caller's data and keeps the
 * fastest. What was chosen leaves as plain values with a line of text (kernels/gemm/gemm_choice.h),
 * to be remembered, and is used again by the same version of cuBLAS on the same kind of GPU.
 *
 * FP8 runs in the NT form only (Hopper's tensor cores read both operands along k): gradients pass
 * the transposed copies that quantisation makes (kernels/rows/quantise.h). Scales are floats on the
 * device: MF_GEMM_SCALE_TENSOR   one MF_GEMM_SCALE_1X128    of row i and block j of k at [j * rows
 * + i], rows rounded up to 4 MF_GEMM_SCALE_128X128  of row block i and block j of k at [i * stride
 * + j], stride = blocks of k rounded up to 4; not for both operands (quantise.h: scale_i, scale_j.)
 * Not every combination exists in every cuBLAS: creating such a plan is MF_INPUT with cuBLASLt's
 * own word.
 *
 * Functions that enqueue never synchronise except those that tune. A plan may be used by one
 * thread at a time; the library handle by many.
 */
#ifndef MF_KERNELS_GEMM_CUDA_H
#define MF_KERNELS_GEMM_CUDA_H

#include "kernels/gemm/gemm_choice.h"

#define MF_GEMM_CANDIDATES 8 /* cuBLAS 13 proposes no more of a product */

typedef struct mf_gemm_cuda_data { /* device pointers, aligned to 16 bytes or the shape's align_B */
    const void *a, *b;
    const float *a_scale, *b_scale;
    const void *bias;
    void *c;
    const void *add; /* with accumulate: what the product is added to, of c's type and strides;
                        NULL: c */
    void *workspace; /* of the plan's workspace_B; 256-byte aligned */
    float alpha;
    void *bias_grad; /* [m] of c's type */
} mf_gemm_cuda_data;

typedef struct mf_gemm_cuda mf_gemm_cuda;

MF_KERNEL_C_BEGIN
/* One per process and GPU is enough. MF_LIBRARY. */
mf_status mf_gemm_cuda_library_open(void **library, mf_err *e);
void mf_gemm_cuda_library_close(void *library);
/* "13.1.0" of the cuBLAS that runs. */
void mf_gemm_cuda_version(char *text, size_t size);

/* A plan whose algorithms need at most workspace_B bytes. The heuristic's first proposal is chosen.
 * Errors: MF_INPUT (no algorithm), MF_LIBRARY, MF_NOMEM. */
mf_status mf_gemm_cuda_create(void *library, const mf_gemm_cuda_shape *shape, size_t workspace_B,
                              mf_gemm_cuda **out, mf_err *e);
void mf_gemm_cuda_destroy(mf_gemm_cuda *plan);

/* Proposals in hand, 1 .. MF_GEMM_CANDIDATES, and the one in use. */
int mf_gemm_cuda_candidates(const mf_gemm_cuda *plan);
int mf_gemm_cuda_chosen(const mf_gemm_cuda *plan);
void mf_gemm_cuda_choose(mf_gemm_cuda *plan, int candidate);

/* Times every proposal on `sets` sets of data in turn (more than the L2 cache holds, to be fair)
 * and chooses the fastest: one look at each, then those that may be it in turns (gemm_autotune.h).
 * Writes c; waits for the stream. *best_s (may be NULL) = its time. */
mf_status mf_gemm_cuda_tune(mf_gemm_cuda *plan, const mf_gemm_cuda_data *data, int sets,
                            void *stream, double *best_s, mf_err *e);

/* The same for steps: where a run takes half a millisecond or more, proposals near the fastest are
 * timed at the GPU's power cap, each 90 ms without a pause. There the order is another, by
 * up to 5 % of a product's time on an H100. */
mf_status mf_gemm_cuda_tune_for_steps(mf_gemm_cuda *plan, const mf_gemm_cuda_data *data,
                                      void *stream, mf_err *e);

/* The algorithm in use as plain values. MF_LIBRARY. */
mf_status mf_gemm_cuda_choice(const mf_gemm_cuda *plan, mf_gemm_choice *out, mf_err *e);

/* Uses a remembered choice; it becomes a proposal of the plan (the last of MF_GEMM_CANDIDATES gives
 * way), and nothing is timed. MF_INPUT with the reason, the plan as it was: chosen by another
 * cuBLAS or on another GPU, or this cuBLAS refuses it for this product. */
mf_status mf_gemm_cuda_use(mf_gemm_cuda *plan, const mf_gemm_choice *choice, mf_err *e);

/* Enqueues c = alpha * op(a) op(b) + bias (+ c). MF_LIBRARY. */
mf_status mf_gemm_cuda_run(mf_gemm_cuda *plan, const mf_gemm_cuda_data *data, void *stream,
                           mf_err *e);
MF_KERNEL_C_END
#endif
