/* router_choices.h - what is done with the choices that the router made: forced balance, loads of
 * experts, and the ways to and from the order in which capacity drops choices.
 *
 * A region is the rows that the ranks of one TP group share: of each sample of the micro-batch the
 * seq / cp rows of their CP rank, sample behind sample. Ranks hold consecutive runs of it.
 */
#ifndef MF_KERNELS_ROUTER_CHOICES_H
#define MF_KERNELS_ROUTER_CHOICES_H

#include "kernels/moe/router.h"

/* Choices that follow no scores but the token's place in the micro-batch, the same under every
 * layout. Row r is row at = first_row + r of its region, which is token (at / run) * seq +
 * position[at]. Without `first` each run of experts * top_k / gcd(experts, top_k) choices has every
 * expert as often, in an order of its own that looks random: choice j of a token is place
 * (token * top_k + j) mod experts of that order. So a token's experts lie on as many ranks as a
 * router's would, and no rule in the tokens' numbers decides which.
 * With `first` expert e takes the places first[e] to first[e + 1] - 1 of tokens x top_k:
 *     place = j * tokens + (token * stride) mod tokens
 * so that a token chooses different experts where none has more than `tokens` places. stride and
 * tokens have no common divisor: neighbouring tokens choose experts that lie apart.
 */
typedef struct mf_kernel_router_force {
    int64_t rows, top_k, experts;
    int64_t seq;
    int64_t run;             /* rows of one sample in the region: seq / cp */
    int64_t first_row;       /* of these rows in the region */
    const int32_t *position; /* [rows of the region] place of each row in its sample */
    int32_t *index;          /* [rows, top_k], written */
    const int32_t *first;    /* [experts + 1], from 0 to tokens x top_k; NULL: balanced */
    int64_t tokens, stride;  /* with `first`: of the micro-batch */
} mf_kernel_router_force;

/* Place `x` of the order that `key` names of 0 .. count - 1. Each round maps the numbers below a
 * power of two onto themselves one to one: an odd product and a sum, the high bits into the low
 * ones. What lands above `count` goes round again. */
MF_ROUTER_INLINE int64_t mf_router_shuffled(uint32_t x, uint32_t count, uint32_t key) {
    uint32_t bits = 1;
    while (bits < 32 && count > 1u << bits) {
        bits++;
    }
    const uint32_t mask = bits < 32 ? (1u << bits) - 1 : UINT32_MAX;
    do {
        uint32_t k = key;
        for (int round = 0; round < 4; round++) {
            k = k * 747796405u + 2891336453u; /* a linear congruential generator's step */
            x = (x * (k >> 8 | 1) + (k >> 16)) & mask;
            x ^= x >> (bits + 1) / 2;
        }
    } while (x >= count);
    return x;
}

/* Choice j of the token. */
MF_ROUTER_INLINE int32_t mf_router_forced(const mf_kernel_router_force *a, int64_t token,
                                          int64_t j) {
    if (!a->first) {
        int64_t divisor = a->experts;
        for (int64_t rest = a->top_k; rest != 0;) {
            const int64_t next = divisor % rest;
            divisor = rest;
            rest = next;
        }
        const int64_t run = token / (a->experts / divisor), at = token * a->top_k + j;
        return (int32_t)mf_router_shuffled((uint32_t)(at % a->experts), (uint32_t)a->experts,
                                           (uint32_t)run);
    }
    const int64_t place = j * a->tokens + token * a->stride % a->tokens;
    int64_t low = 0, high = a->experts; /* first[low] <= place < first[high] */
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        *(a->first[middle] <= place ? &low : &high) = middle;
    }
    return (int32_t)low;
}

/* How many choices each expert got. load is added to first; then count is written:
 *     count[s, e] = choices of expert e among the rows of scope s, or with `global`
 *     count[e] = load[e] * rows * top_k / sum of load             (double inside; 0 without load)
 * the mean over the micro-batches that load has seen. Choices of -1 are not counted. Exact while
 * values stay below 2^24. */
typedef struct mf_kernel_router_count {
    int64_t rows, top_k, experts;
    int64_t scopes;       /* global: 1 */
    const int32_t *scope; /* [rows] scope of each row; NULL: all 0 */
    bool global;          /* needs load */
    const int32_t *index; /* [rows, top_k] */
    float *load;          /* [experts], added to; NULL: not wanted */
    float *count;         /* [scopes, experts], written; NULL: not wanted */
} mf_kernel_router_count;

/* Rows of top_k elements of 4 bytes into the order of their places and back:
 *     dst[place[r], j] = src[r, j]                 r < rows
 *     dst[r, j] = src[place[first + r], j]         with `back`
 * Places differ, so that each element of dst is written once at most. */
typedef struct mf_kernel_router_place {
    int64_t rows, top_k;
    const int32_t *place; /* [rows], or [first + rows] with `back` */
    bool back;
    int64_t first; /* read with `back` only */
    const void *src;
    void *dst; /* not src */
} mf_kernel_router_place;

/* out[i] = prob[i] where kept[i] >= 0, else 0: probabilities, or their gradients, of what stays. */
typedef struct mf_kernel_router_keep {
    int64_t count;
    const int32_t *kept; /* [count] */
    const float *prob;   /* [count] */
    float *out;          /* [count]; may be prob */
} mf_kernel_router_keep;

MF_KERNEL_C_BEGIN
mf_status mf_kernel_router_force_choices(const mf_kernel_router_force *a, mf_err *e);
mf_status mf_kernel_router_count_choices(const mf_kernel_router_count *a, mf_err *e);
mf_status mf_kernel_router_place_rows(const mf_kernel_router_place *a, mf_err *e);
mf_status mf_kernel_router_keep_values(const mf_kernel_router_keep *a, mf_err *e);

mf_status mf_kernel_router_force_choices_cuda(const mf_kernel_router_force *a, void *stream,
                                              mf_err *e);
mf_status mf_kernel_router_count_choices_cuda(const mf_kernel_router_count *a, void *stream,
                                              mf_err *e);
mf_status mf_kernel_router_place_rows_cuda(const mf_kernel_router_place *a, void *stream,
                                           mf_err *e);
mf_status mf_kernel_router_keep_values_cuda(const mf_kernel_router_keep *a, void *stream,
                                            mf_err *e);
MF_KERNEL_C_END
#endif
