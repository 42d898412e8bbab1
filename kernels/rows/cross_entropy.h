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
 * Where a rank has all columns, mf_kernel_cross_entropy does all of it: on GPUs, rows as long as a
 * cluster of blocks holds them are read once and written once.
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

/* Loss and gradient of a rank that has all columns: stats, combine and backward in one. */
typedef struct mf_kernel_ce_whole {
    mf_kernel_dtype dtype;
    int64_t rows, cols, stride, vocab;
    const int32_t *target;
    float scale;       /* of the gradient */
    void *logits;      /* in: logits, out: their gradient */
    float *stats;      /* [3, rows], written */
    float *lse;        /* [rows], written */
    double *loss_sum;  /* [1] += loss_scale * sum of loss (deterministic); NULL: not wanted */
    double loss_scale; /* read with loss_sum only */
} mf_kernel_ce_whole;

/* The three steps of it, where they run one after the other. Pure, for both sides. */
static inline mf_kernel_ce_stats mf_kernel_ce_whole_stats(const mf_kernel_ce_whole *a) {
    const mf_kernel_ce_stats s = {a->dtype, a->rows,   a->cols,   a->stride, 0,
                                  a->vocab, a->logits, a->target, a->stats};
    return s;
}
static inline mf_kernel_ce_combine mf_kernel_ce_whole_combine(const mf_kernel_ce_whole *a) {
    const mf_kernel_ce_combine s = {a->rows, 1,    a->stats,    a->target,
                                    a->lse,  NULL, a->loss_sum, a->loss_scale};
    return s;
}
static inline mf_kernel_ce_grad mf_kernel_ce_whole_grad(const mf_kernel_ce_whole *a) {
    const mf_kernel_ce_grad s = {a->dtype, a->rows,   a->cols, a->stride, 0,
                                 a->vocab, a->target, a->lse,  a->scale,  a->logits};
    return s;
}

MF_KERNEL_C_BEGIN
mf_status mf_kernel_cross_entropy(const mf_kernel_ce_whole *a, mf_err *e);
mf_status mf_kernel_cross_entropy_cuda(const mf_kernel_ce_whole *a, void *stream, mf_err *e);
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
