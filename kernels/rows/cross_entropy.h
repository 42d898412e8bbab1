/* cross_entropy.h - softmax cross-entropy over a vocabulary that is split between ranks, without a
 * kept copy of the logits: the gradient overwrites them.
 *
 * 1. stats:    of this rank's columns: highest logit m_r, sum_r = sum exp(logit - m_r), the
 * target's logit (0 where the target lies elsewhere)
 * 2. the caller gathers the stats of all ranks (one all-gather of 12 bytes a row)
 * 3. combine:  lse = m + log sum_r sum_r exp(m_r - m);  loss = lse - target logit
 * 4. backward: logits[t, v] <- (exp(logits[t, v] - lse[t]) - [v = target]) * scale, in place
 * A target < 0 is ignored: loss 0, gradient 0. `scale` is the loss scale over the number of valid
 * targets of the global batch.
 * Instead of 2 the highest logits may be made one by a maximum over ranks, after which rescale
 * turns each rank's sum into one of exp(logit - m), and sums and targets by a sum over ranks:
 * combine then sees the stats of one rank.
 */
#ifndef MF_KERNELS_CROSS_ENTROPY_H
#define MF_KERNELS_CROSS_ENTROPY_H

#include "kernels/kernel.h"

typedef struct mf_kernel_ce_stats {
    mf_kernel_dtype dtype; /* logits */
    int64_t rows, cols, stride;
    int64_t begin;         /* first vocabulary id of these columns */
    int64_t vocab;         /* ids >= vocab are padding of the table: never summed, gradient 0 */
    const void *logits;    /* [rows, cols] */
    const int32_t *target; /* [rows] vocabulary ids */
    float *stats;          /* [3, rows]: highest, sum, target logit */
} mf_kernel_ce_stats;

typedef struct mf_kernel_ce_combine {
    int64_t rows, ranks;
    const float *stats; /* [ranks, 3, rows] */
    const int32_t *target;
    float *lse;        /* [rows] */
    float *loss;       /* [rows]; NULL: not wanted */
    double *loss_sum;  /* [1] += loss_scale * sum of loss (deterministic); NULL: not wanted */
    double loss_scale; /* 1, or what makes the sum a mean; read with loss_sum only */
} mf_kernel_ce_combine;

/* stats[1, r] *= exp(own_highest[r] - stats[0, r]): this rank's sum, after the highest of its own
 * columns was replaced in stats by that of all columns. */
typedef struct mf_kernel_ce_rescale {
    int64_t rows;
    const float *own_highest; /* [rows] */
    float *stats;             /* [3, rows], of which row 1 is written */
} mf_kernel_ce_rescale;

typedef struct mf_kernel_ce_grad {
    mf_kernel_dtype dtype;
    int64_t rows, cols, stride, begin, vocab;
    const int32_t *target;
    const float *lse;
    float scale;
    void *logits; /* in: logits, out: their gradient */
} mf_kernel_ce_grad;

MF_KERNEL_C_BEGIN
mf_status mf_kernel_cross_entropy_stats(const mf_kernel_ce_stats *a, mf_err *e);
mf_status mf_kernel_cross_entropy_rescale(const mf_kernel_ce_rescale *a, mf_err *e);
mf_status mf_kernel_cross_entropy_combine(const mf_kernel_ce_combine *a, mf_err *e);
mf_status mf_kernel_cross_entropy_backward(const mf_kernel_ce_grad *a, mf_err *e);
mf_status mf_kernel_cross_entropy_stats_cuda(const mf_kernel_ce_stats *a, void *stream, mf_err *e);
mf_status mf_kernel_cross_entropy_rescale_cuda(const mf_kernel_ce_rescale *a, void *stream,
                                               mf_err *e);
mf_status mf_kernel_cross_entropy_combine_cuda(const mf_kernel_ce_combine *a, void *stream,
                                               mf_err *e);
mf_status mf_kernel_cross_entropy_backward_cuda(const mf_kernel_ce_grad *a, void *stream,
                                                mf_err *e);
MF_KERNEL_C_END
#endif
