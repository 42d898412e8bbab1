/* router.h - which experts a token goes to, with what weight; auxiliary and z-loss; gradients.
 *
 * Everything is float. Per row t of logits [rows, experts]:
 *     scores = softmax(logits) or sigmoid(logits)
 *     choice = scores + bias   (bias steers the selection only; MF_ROUTE_TOPK_SOFTMAX, and softmax
 *              without bias and group limits, choose by the logits: the same order, no rounding)
 *     group limits: experts in `groups` equal runs; the group_topk runs with the highest run score
 *              (sum of the two highest choices: DeepSeek-V3; highest choice: DeepSeek-V2) stay
 *     index  = the top_k highest choices, highest first, equal ones by lower index
 *     prob_j = scores[index_j], divided by their sum (+ 1e-20) when normalised, times scaling
 * MF_ROUTE_TOPK_SOFTMAX (GPT-OSS): prob = softmax over the chosen logits, times scaling.
 * MF_ROUTE_SPARSEMIXER (Phi-3.5-MoE in evaluation; Liu et al. 2023): choices by logits
 * s, one after the other; prob_j = the softmax, at index_j, over the experts that were not chosen
 * before and are near: (s_j - s_e) / max(|s_e|, s_j) <= 2 jitter; times scaling. Scores are those
 * of softmax.
 *
 * Auxiliary loss of a scope of T tokens (folding.md's rule; Switch Transformer eq. 4, for top-k):
 *     aux = experts / (top_k * T^2) * sum_e count_e * sum_t p_te
 * p = softmax over all experts, or sigmoid scores divided by their sum. Counts carry no gradient.
 *     z-loss = mean over tokens of logsumexp(logits)^2                      (ST-MoE eq. 5)
 * Steps of a layer: forward; stats (counts and probability sums of each scope, on this rank's
 * rows); the sum over ranks of both, by the caller; aux (the loss, and each expert's weight in the
 * gradient); backward. Without an auxiliary loss only forward and backward are needed.
 */
#ifndef MF_KERNELS_ROUTER_H
#define MF_KERNELS_ROUTER_H

#include "kernels/kernel.h"

#ifdef __CUDACC__
#define MF_ROUTER_INLINE static __host__ __device__ __forceinline__
#else
#define MF_ROUTER_INLINE static inline
#endif

typedef enum mf_route_score {
    MF_ROUTE_SOFTMAX,
    MF_ROUTE_TOPK_SOFTMAX,
    MF_ROUTE_SIGMOID,
    MF_ROUTE_SPARSEMIXER,
} mf_route_score;

typedef enum mf_route_group { MF_ROUTE_GROUP_TOP2, MF_ROUTE_GROUP_MAX } mf_route_group;

#define MF_ROUTE_MAX_EXPERTS 512
#define MF_ROUTE_MAX_TOPK 16
#define MF_ROUTE_MAX_GROUPS 64

typedef struct mf_kernel_router {
    int64_t rows, experts, top_k;
    mf_route_score score;
    bool normalise; /* divide by the sum of the chosen */
    float scaling;  /* 1: none */
    int64_t groups; /* 1: no group limits; divides experts */
    int64_t group_topk;
    mf_route_group group_score;
    const float *logits; /* [rows, experts] */
    const float *bias;   /* [experts]; NULL: none */
    float *scores;       /* [rows, experts] what backward and stats read; may be logits */
    float *prob;         /* [rows, top_k] */
    int32_t *index;      /* [rows, top_k] */
    float *lse;          /* [rows] logsumexp(logits), for the z-loss; NULL: not wanted */
    float jitter;        /* SPARSEMIXER */
} mf_kernel_router;

/* Adds what this rank's rows contribute to each scope. A scope is a sample or everything. */
typedef struct mf_kernel_router_stats {
    int64_t rows, experts, top_k;
    mf_route_score score;
    int64_t scopes;
    const int32_t *scope; /* [rows] scope of each row; NULL: all 0 */
    const float *scores;
    const int32_t *index;
    float *count;    /* [scopes, experts], added to; exact below 2^24 */
    float *prob_sum; /* [scopes, experts], added to */
    void *workspace; /* CUDA: mf_kernel_router_workspace_B bytes */
} mf_kernel_router_stats;

/* Loss and gradient weights from the statistics, after the sum over ranks. */
typedef struct mf_kernel_router_aux {
    int64_t experts, top_k, scopes;
    double tokens;      /* T: tokens of one scope over all ranks */
    float weight_scale; /* coefficient * loss scale (mean over scopes is taken here) */
    const float *count, *prob_sum;
    double *aux;   /* [1], added to: mean over scopes, unweighted; NULL: not wanted */
    float *weight; /* [scopes, experts] d(scaled loss) / d p_te; may be count */
} mf_kernel_router_aux;

typedef struct mf_kernel_router_grad {
    int64_t rows, experts, top_k;
    mf_route_score score;
    bool normalise;
    float scaling;
    const float *scores; /* of the forward pass */
    const int32_t *index;
    const float *dprob;      /* [rows, top_k] */
    const float *aux_weight; /* [scopes, experts] of mf_kernel_router_aux; NULL: no such loss */
    const int32_t *scope;    /* [rows]; NULL: all 0 */
    const float *logits;     /* [rows, experts]; read with z_weight, and by SPARSEMIXER, only */
    const float *lse;        /* [rows]; read with z_weight only */
    float z_weight;          /* coefficient * loss scale / T; 0: no z-loss */
    float *dlogits;          /* [rows, experts], written; may be scores */
    float jitter;            /* SPARSEMIXER */
} mf_kernel_router_grad;

/* What capacity compares of a probability, by the bits of the float: values that order as the
 * floats do, rounded to 12 bits behind the leading one. Runs of one token in a text have equal
 * probabilities, but for the order in which a layout sums: rounded, they tie under all layouts. */
MF_ROUTER_INLINE uint32_t mf_kernel_router_order(uint32_t bits) {
    const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return ((ordered < 0xfffffbffu ? ordered : 0xfffffbffu) + 0x400u) & ~0x7ffu;
}

/* Capacity: of the slots of one sample that chose an expert, the `capacity` with the highest
 * probability stay (in the order above; ties by slot); the others become index -1, probability 0.
 * Rows of a sample must all be here. Probabilities are not normalised again, and the backward pass
 * takes the index from before dropping (dropped slots have dprob 0). */
typedef struct mf_kernel_router_drop {
    int64_t rows, experts, top_k, capacity;
    int64_t samples;
    const int32_t *sample; /* [rows], < samples; NULL: one sample */
    const float *prob;     /* [rows, top_k] */
    const int32_t *index;  /* [rows, top_k] */
    float *prob_kept;      /* [rows, top_k], not prob */
    int32_t *index_kept;   /* [rows, top_k], not index */
    void *workspace;       /* CUDA: mf_kernel_router_drop_workspace_B bytes */
} mf_kernel_router_drop;

/* Auxiliary-loss-free balancing (DeepSeek-V3 2.1.2): bias[e] += rate * sign(mean count - count[e]).
 */
typedef struct mf_kernel_router_bias {
    int64_t experts;
    float rate;
    const float *count;  /* [experts] */
    float *bias;         /* [experts] */
    const int32_t *skip; /* [1] not 0: bias stays as it is; NULL: never */
} mf_kernel_router_bias;

MF_KERNEL_C_BEGIN
size_t mf_kernel_router_workspace_B(int64_t scopes, int64_t experts);
size_t mf_kernel_router_drop_workspace_B(int64_t slots, int64_t experts);

mf_status mf_kernel_router_forward(const mf_kernel_router *a, mf_err *e);
/* prob of the choices in index, which are given (recomputation, forced balance): to the bit what
 * forward of the same side gives where it makes these choices, highest first. Reads scores (which
 * must stand; SPARSEMIXER: logits) and index, of which none is -1; writes prob. */
mf_status mf_kernel_router_probabilities(const mf_kernel_router *a, mf_err *e);
mf_status mf_kernel_router_stats_add(const mf_kernel_router_stats *a, mf_err *e);
mf_status mf_kernel_router_aux_loss(const mf_kernel_router_aux *a, mf_err *e);
mf_status mf_kernel_router_backward(const mf_kernel_router_grad *a, mf_err *e);
mf_status mf_kernel_router_capacity(const mf_kernel_router_drop *a, mf_err *e);
/* *sum += sum over rows of lse^2 (double inside, deterministic). */
mf_status mf_kernel_router_z_sum(int64_t rows, const float *lse, double *sum, mf_err *e);
mf_status mf_kernel_router_bias_update(const mf_kernel_router_bias *a, mf_err *e);

mf_status mf_kernel_router_forward_cuda(const mf_kernel_router *a, void *stream, mf_err *e);
mf_status mf_kernel_router_probabilities_cuda(const mf_kernel_router *a, void *stream, mf_err *e);
mf_status mf_kernel_router_stats_add_cuda(const mf_kernel_router_stats *a, void *stream, mf_err *e);
mf_status mf_kernel_router_aux_loss_cuda(const mf_kernel_router_aux *a, void *stream, mf_err *e);
mf_status mf_kernel_router_backward_cuda(const mf_kernel_router_grad *a, void *stream, mf_err *e);
mf_status mf_kernel_router_capacity_cuda(const mf_kernel_router_drop *a, void *stream, mf_err *e);
mf_status mf_kernel_router_z_sum_cuda(int64_t rows, const float *lse, double *sum, void *stream,
                                      mf_err *e);
mf_status mf_kernel_router_bias_update_cuda(const mf_kernel_router_bias *a, void *stream,
                                            mf_err *e);
MF_KERNEL_C_END
#endif
