/* router_forward.cu - CUDA kernels of the router's forward pass: a warp a row, the row's scores in
 * registers; and of the probabilities of choices that are given.
 *
 * Top-k: the k-th highest of the lanes' own highest values lies under the row's k-th highest; what
 * reaches it - some ten values - is gathered, one a lane, and each finds its rank by looking at all
 * others. Where more than a warp's lanes reach it (equal values), the highest is taken k times.
 */
#include "kernels/moe/router_near.cuh"

/* Order-preserving bits of a float: larger float, larger unsigned; and back. */
__device__ static unsigned order_bits(float x) {
    const unsigned b = __float_as_uint(x);
    return b ^ ((unsigned)((int)b >> 31) | 0x80000000u);
}
__device__ static float order_float(unsigned b) {
    return __uint_as_float(b & 0x80000000u ? b ^ 0x80000000u : ~b);
}

/* Of one warp. */
struct choice_buffer {
    uint2 key[32]; /* order among candidates: ~expert, value's bits */
    float score[32];
    float run[MF_ROUTE_MAX_GROUPS];
};

/* What a lane found: rank (top_k or more: nothing), expert, its score. */
struct choice {
    int rank, expert;
    float score;
};

/* The highest taken top_k times; lane j keeps choice j. */
template <int V, int VEC>
__device__ static choice take_in_turn(unsigned (&bits)[V], const float (&score)[V], int top_k) {
    const int lane = (int)threadIdx.x % 32;
    choice mine = {MF_ROUTE_MAX_TOPK, 0, 0.0f};
    for (int j = 0; j < top_k; j++) {
        unsigned best = bits[0];
        int at = expert_of<VEC>(0);
        float s = score[0];
#pragma unroll
        for (int i = 1; i < V; i++) {
            if (bits[i] > best) {
                best = bits[i];
                at = expert_of<VEC>(i);
                s = score[i];
            }
        }
        const unsigned top = __reduce_max_sync(0xffffffffu, best);
        const unsigned expert =
            __reduce_min_sync(0xffffffffu, best == top ? (unsigned)at : 0x7fffffffu);
        const unsigned owner = __ballot_sync(0xffffffffu, best == top && (unsigned)at == expert);
        s = __shfl_sync(0xffffffffu, s, __ffs((int)owner) - 1);
#pragma unroll
        for (int i = 0; i < V; i++) {
            bits[i] = expert_of<VEC>(i) == (int)expert ? 0 : bits[i];
        }
        if (lane == j) {
            mine = {j, (int)expert, s};
        }
    }
    return mine;
}

/* bits: of the values, 0 = out of play; at least top_k are in play. */
template <int V, int VEC>
__device__ static choice choose(unsigned (&bits)[V], const float (&score)[V], int top_k,
                                choice_buffer &buffer) {
    if constexpr (V == 1) {
        return take_in_turn<V, VEC>(bits, score, top_k);
    }
    const int lane = (int)threadIdx.x % 32;
    unsigned best = bits[0], least = 0;
#pragma unroll
    for (int i = 1; i < V; i++) {
        best = max(best, bits[i]);
    }
    for (int j = 0; j < top_k; j++) {
        least = __reduce_max_sync(0xffffffffu, best);
        best = best == least ? 0 : best;
    }
    least = max(least, 1u);
    int count = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        count += bits[i] >= least;
    }
    int end = count;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        const int below = __shfl_up_sync(0xffffffffu, end, o);
        end += lane >= o ? below : 0;
    }
    const int all = __shfl_sync(0xffffffffu, end, 31);
    if (all > 32) {
        return take_in_turn<V, VEC>(bits, score, top_k);
    }
    int place = end - count;
#pragma unroll
    for (int i = 0; i < V; i++) {
        if (bits[i] >= least) {
            buffer.key[place] = make_uint2(~(unsigned)expert_of<VEC>(i), bits[i]);
            buffer.score[place] = score[i];
            place++;
        }
    }
    __syncwarp();
    choice mine = {MF_ROUTE_MAX_TOPK, 0, 0.0f};
    if (lane < all) {
        const uint2 key = buffer.key[lane];
        int rank = 0;
        for (int j = 0; j < all; j++) {
            const uint2 other = buffer.key[j];
            rank += other.y > key.y || (other.y == key.y && other.x > key.x);
        }
        mine = {rank, (int)~key.x, buffer.score[lane]};
    }
    return mine;
}

/* Runs' scores where a run of experts is held by 2^n lanes, or is a part of a lane's vectors. */
template <int V>
__device__ static void score_runs(const float (&value)[V], int shift, int experts, bool top2,
                                  float *run) {
#pragma unroll
    for (int i = 0; i < V; i += 4) {
        float first = fmaxf(value[i], value[i + 1]), second = fminf(value[i], value[i + 1]);
        const float high = fmaxf(value[i + 2], value[i + 3]);
        second = fmaxf(fminf(first, high), fmaxf(second, fminf(value[i + 2], value[i + 3])));
        first = fmaxf(first, high);
        for (int o = 1; o < 1 << (shift - 2); o *= 2) {
            const float f = __shfl_xor_sync(0xffffffffu, first, o);
            const float s = __shfl_xor_sync(0xffffffffu, second, o);
            second = fmaxf(fminf(first, f), fmaxf(second, s));
            first = fmaxf(first, f);
        }
        const int e = expert_of<4>(i);
        if (e < experts && (e & ((1 << shift) - 1)) == 0) {
            run[e >> shift] = top2 ? first + second : first;
        }
    }
}

/* The same for any width, by a lane a run; row: the experts' values. */
__device__ static void score_runs_any(const float *row, int groups, int width, bool top2,
                                      float *run) {
    for (int g = (int)threadIdx.x % 32; g < groups; g += 32) {
        float first = -INFINITY, second = -INFINITY;
        int j = g % width; /* start apart, so that lanes read different banks */
        for (int n = 0; n < width; n++) {
            const float x = row[g * width + j];
            second = fmaxf(second, fminf(first, x));
            first = fmaxf(first, x);
            j = j + 1 == width ? 0 : j + 1;
        }
        run[g] = top2 && width > 1 ? first + second : first;
    }
}

/* Sets values outside the best groups to -inf. row: space for the experts' values of this warp. */
template <int V, int VEC>
__device__ static void limit_groups(const mf_kernel_router &a, float (&value)[V], float *row,
                                    float *run) {
    const int groups = (int)a.groups, experts = (int)a.experts, width = experts / groups;
    const bool top2 = a.group_score == MF_ROUTE_GROUP_TOP2;
    const int shift = 31 - __clz(width);
    const bool scored = VEC == 4 && shift >= 2 && shift <= 7 && 1 << shift == width;
    if constexpr (VEC == 4) {
        if (scored) {
            score_runs<V>(value, shift, experts, top2, run);
        }
    }
    if (!scored) {
        store_row<V, VEC>(row, value, experts);
        __syncwarp();
        score_runs_any(row, groups, width, top2, run);
    }
    __syncwarp();
    uint64_t stays = 0;
    for (int half = 0; half * 32 < groups; half++) {
        const int g = half * 32 + (int)threadIdx.x % 32;
        int rank = MF_ROUTE_MAX_GROUPS;
        if (g < groups) {
            const float mine = run[g];
            rank = 0;
            for (int h = 0; h < groups; h++) {
                const float other = run[h];
                rank += other > mine || (other == mine && h < g);
            }
        }
        stays |= (uint64_t)__ballot_sync(0xffffffffu, rank < (int)a.group_topk) << (half * 32);
    }
#pragma unroll
    for (int i = 0; i < V; i++) {
        const int e = expert_of<VEC>(i), g = scored ? e >> shift : e / width;
        if (e < experts && !(stays >> g & 1)) {
            value[i] = -INFINITY;
        }
    }
}

/* What a row's chosen scores are multiplied with. score: of choice j in lane j of `lanes` (a power
 * of two, at least top_k), 0 in lanes without a choice, whose number does not change the sum. */
__device__ static float prob_factor(const mf_kernel_router &a, float score, int lanes) {
    const float total = mf_group_sum(score, lanes, nullptr, 0);
    const bool normalise = a.normalise || a.score == MF_ROUTE_TOPK_SOFTMAX;
    return a.scaling * (normalise ? 1.0f / (total + 1e-20f) : 1.0f);
}

template <int V, int VEC>
__global__ void __launch_bounds__(WARPS * 32, V <= 8 ? 5 : 3) router_forward(mf_kernel_router a) {
    mf_await();
    __shared__ choice_buffer buffers[WARPS];
    __shared__ __align__(16) float rows[WARPS][32 * V];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n = (int)a.experts;
    const int64_t r = (int64_t)blockIdx.x * WARPS + warp;
    if (r >= a.rows) {
        return;
    }
    const bool sigmoid = a.score == MF_ROUTE_SIGMOID;
    const bool by_logits = a.score == MF_ROUTE_TOPK_SOFTMAX || a.score == MF_ROUTE_SPARSEMIXER ||
                           (a.score == MF_ROUTE_SOFTMAX && !a.bias && a.groups == 1);
    float x[V], score[V];
    load_row<V, VEC>(x, a.logits + r * n, n, -INFINITY);
    if (!sigmoid || a.lse) {
        float high = x[0], sum = 0.0f;
#pragma unroll
        for (int i = 1; i < V; i++) {
            high = fmaxf(high, x[i]);
        }
        high = order_float(__reduce_max_sync(0xffffffffu, order_bits(high)));
#pragma unroll
        for (int i = 0; i < V; i++) {
            score[i] = expf(x[i] - high);
            sum += score[i];
        }
        sum = mf_warp_sum(sum);
        const float part = 1.0f / sum;
#pragma unroll
        for (int i = 0; i < V; i++) {
            score[i] *= part;
        }
        if (a.lse && lane == 0) {
            a.lse[r] = high + logf(sum);
        }
    }
    if (sigmoid) {
#pragma unroll
        for (int i = 0; i < V; i++) {
            score[i] = __fdividef(1.0f, 1.0f + expf(-x[i])); /* one rounding off at most */
        }
    }
    store_row<V, VEC>(a.scores + r * n, score, n);
    if (!by_logits) {
        if (a.bias) {
            load_row<V, VEC>(x, a.bias, n, 0.0f);
        }
#pragma unroll
        for (int i = 0; i < V; i++) {
            x[i] = expert_of<VEC>(i) < n ? score[i] + (a.bias ? x[i] : 0.0f) : -INFINITY;
        }
        if (a.groups > 1) {
            limit_groups<V, VEC>(a, x, rows[warp], buffers[warp].run);
        }
    }
    unsigned bits[V];
#pragma unroll
    for (int i = 0; i < V; i++) {
        bits[i] = expert_of<VEC>(i) < n ? order_bits(x[i]) : 0;
    }
    const int top_k = (int)a.top_k;
    const choice mine = choose<V, VEC>(bits, score, top_k, buffers[warp]);
    const bool chosen = mine.rank < top_k;
    float *const by_rank = buffers[warp].score;
    __syncwarp(); /* candidates' scores were read */
    if (chosen) {
        by_rank[mine.rank] = mine.score;
    }
    __syncwarp();
    const float factor = prob_factor(a, lane < top_k ? by_rank[lane] : 0.0f, 32);
    if (chosen) {
        a.prob[r * top_k + mine.rank] = mine.score * factor;
        a.index[r * top_k + mine.rank] = mine.expert;
    }
}

/* `lanes` threads a row, a choice each. */
static __global__ void router_probabilities(mf_kernel_router a, int lanes) {
    mf_await();
    const int64_t r = (int64_t)blockIdx.x * (WARPS * 32 / lanes) + (int)threadIdx.x / lanes;
    const int64_t slot = r * a.top_k + (int)threadIdx.x % lanes;
    const bool has = r < a.rows && (int)threadIdx.x % lanes < a.top_k;
    const float score = has ? a.scores[r * a.experts + a.index[slot]] : 0.0f;
    const float factor = prob_factor(a, score, lanes);
    if (has) {
        a.prob[slot] = score * factor;
    }
}

/* Choices of SPARSEMIXER, in whose logits the probabilities lie. */
static mf_status near_probabilities(const mf_kernel_router *a, cudaStream_t stream, mf_err *e) {
    const bool whole = a->experts % 4 == 0 && mf_aligned(a->logits);
    const unsigned blocks = (unsigned)mf_ceil_div(a->rows, WARPS);
#define LAUNCH(V, VEC) MF_LAUNCH((router_near<V, VEC>), blocks, WARPS * 32, 0, stream, e, *a)
    FOR_WIDTH(a->experts, whole, LAUNCH)
#undef LAUNCH
    return MF_OK;
}

extern "C" mf_status mf_kernel_router_probabilities_cuda(const mf_kernel_router *a, void *stream,
                                                         mf_err *e) {
    const mf_status status = mf_router_check_sizes(a->experts, a->top_k, e);
    if (status != MF_OK || a->rows == 0) {
        return status;
    }
    if (a->score == MF_ROUTE_SPARSEMIXER) {
        return near_probabilities(a, (cudaStream_t)stream, e);
    }
    const int lanes = mf_pow2_up(a->top_k);
    const unsigned blocks = (unsigned)mf_ceil_div(a->rows, WARPS * 32 / lanes);
    return mf_launch(router_probabilities, dim3(blocks), dim3(WARPS * 32), 0, (cudaStream_t)stream,
                     e, *a, lanes);
}

extern "C" mf_status mf_kernel_router_forward_cuda(const mf_kernel_router *a, void *stream,
                                                   mf_err *e) {
    mf_status status = mf_router_check_sizes(a->experts, a->top_k, e);
    if (status != MF_OK || a->rows == 0) {
        return status;
    }
    const bool whole = a->experts % 4 == 0 && mf_aligned(a->logits) && mf_aligned(a->scores) &&
                       mf_aligned(a->bias);
    const unsigned blocks = (unsigned)mf_ceil_div(a->rows, WARPS);
#define LAUNCH(V, VEC)                                                                             \
    MF_LAUNCH((router_forward<V, VEC>), blocks, WARPS * 32, 0, (cudaStream_t)stream, e, *a)
    FOR_WIDTH(a->experts, whole, LAUNCH)
#undef LAUNCH
    return a->score == MF_ROUTE_SPARSEMIXER ? near_probabilities(a, (cudaStream_t)stream, e)
                                            : MF_OK;
}
