/* router.cu - CUDA kernels of the router: a warp a row, the row's scores in registers (expert
 * lane + 32 i in slot i of a lane), top-k by integer reductions over the warp.
 */
#include "kernels/cuda_common.cuh"
#include "kernels/router.h"

#define WARPS 8
#define CHUNKS_MAX 264 /* as in router.c */

/* Order-preserving bits of a float: larger float, larger unsigned. */
__device__ static unsigned order_bits(float x) {
    unsigned b = __float_as_uint(x);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

/* Index of the highest of the warp's values, given by their bits, 0 = out of play (lowest index
 * among equals); it goes out of play. */
template <int V> __device__ static int take_highest(unsigned (&bits)[V]) {
    int lane = (int)threadIdx.x % 32;
    unsigned best = bits[0];
    int at = lane;
#pragma unroll
    for (int i = 1; i < V; i++) {
        at = bits[i] > best ? lane + 32 * i : at;
        best = max(bits[i], best);
    }
    unsigned top = __reduce_max_sync(0xffffffffu, best);
    int chosen = (int)__reduce_min_sync(0xffffffffu, best == top ? (unsigned)at : 0x7fffffffu);
#pragma unroll
    for (int i = 0; i < V; i++) {
        bits[i] = chosen == lane + 32 * i ? 0 : bits[i];
    }
    return chosen;
}

/* Sets choices outside the best groups to -inf. row: E floats of shared memory of this warp, stays:
 * MF_ROUTE_MAX_GROUPS flags. */
template <int V>
__device__ static void limit_groups(const mf_kernel_router &a, float (&choice)[V], float *row,
                                    unsigned char *stays) {
    int lane = (int)threadIdx.x % 32, groups = (int)a.groups, width = (int)a.experts / groups;
#pragma unroll
    for (int i = 0; i < V; i++) {
        if (lane + 32 * i < a.experts) {
            row[lane + 32 * i] = choice[i];
        }
    }
    __syncwarp();
    float run[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int g = lane + 32 * i;
        run[i] = -INFINITY;
        if (g < groups) {
            float first = -INFINITY, second = -INFINITY;
            int j = g % width; /* start apart, so that lanes read different banks */
            for (int n = 0; n < width; n++) {
                float x = row[g * width + j];
                second = fmaxf(second, fminf(first, x));
                first = fmaxf(first, x);
                j = j + 1 == width ? 0 : j + 1;
            }
            run[i] = a.group_score == MF_ROUTE_GROUP_TOP2 && width > 1 ? first + second : first;
            stays[g] = 0;
        }
    }
    __syncwarp();
    unsigned bits[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bits[i] = lane + 32 * i < groups ? order_bits(run[i]) : 0;
    }
    for (int j = 0; j < a.group_topk; j++) {
        int g = take_highest<2>(bits);
        if (lane == 0) {
            stays[g] = 1;
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < V; i++) {
        int x = lane + 32 * i;
        if (x < a.experts && !stays[x / width]) {
            choice[i] = -INFINITY;
        }
    }
    __syncwarp();
}

template <int V> __global__ void router_forward(mf_kernel_router a) {
    mf_await();
    __shared__ float rows[WARPS][32 * V];
    __shared__ unsigned char stays[WARPS][MF_ROUTE_MAX_GROUPS];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n = (int)a.experts;
    int64_t r = (int64_t)blockIdx.x * WARPS + warp;
    if (r >= a.rows) {
        return;
    }
    float x[V], score[V], high = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < V; i++) {
        x[i] = lane + 32 * i < n ? a.logits[r * n + lane + 32 * i] : -INFINITY;
        high = fmaxf(high, x[i]);
    }
    high = mf_warp_max(high);
#pragma unroll
    for (int i = 0; i < V; i++) {
        score[i] = expf(x[i] - high);
        sum += score[i];
    }
    sum = mf_warp_sum(sum);
    bool sigmoid = a.score == MF_ROUTE_SIGMOID;
    bool by_logits = a.score == MF_ROUTE_TOPK_SOFTMAX ||
                     (a.score == MF_ROUTE_SOFTMAX && !a.bias && a.groups == 1);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int e = lane + 32 * i;
        score[i] = sigmoid ? 1.0f / (1.0f + expf(-x[i])) : score[i] / sum;
        if (e < n) {
            a.scores[r * n + e] = score[i];
            x[i] = by_logits ? x[i] : score[i] + (a.bias ? a.bias[e] : 0.0f);
        }
    }
    if (a.groups > 1) {
        limit_groups<V>(a, x, rows[warp], stays[warp]);
    }
    float mine = 0.0f, total = 0.0f; /* lane j keeps choice j */
    int index = 0;
    unsigned bits[V];
#pragma unroll
    for (int i = 0; i < V; i++) {
        bits[i] = lane + 32 * i < n ? order_bits(x[i]) : 0;
    }
    for (int j = 0; j < a.top_k; j++) {
        int e = take_highest<V>(bits);
        float s = 0.0f;
#pragma unroll
        for (int i = 0; i < V; i++) {
            s = e / 32 == i ? score[i] : s;
        }
        s = __shfl_sync(0xffffffffu, s, e % 32);
        total += s;
        if (lane == j) {
            mine = s;
            index = e;
        }
    }
    bool normalise = a.normalise || a.score == MF_ROUTE_TOPK_SOFTMAX;
    float factor = a.scaling * (normalise ? 1.0f / (total + 1e-20f) : 1.0f);
    if (lane < a.top_k) {
        a.prob[r * a.top_k + lane] = mine * factor;
        a.index[r * a.top_k + lane] = index;
    }
    if (a.lse && lane == 0) {
        a.lse[r] = high + logf(sum);
    }
}

/* partial[chunk, scope, 2, experts]: counts and probability sums of the chunk's rows. */
template <int V> __global__ void router_stats(mf_kernel_router_stats a, float *partial) {
    mf_await();
    __shared__ float sums[WARPS][32 * V];
    __shared__ int hist[32 * V];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n = (int)a.experts;
    int64_t each = (a.rows + gridDim.x - 1) / gridDim.x, begin = (int64_t)blockIdx.x * each;
    int64_t end = begin + each < a.rows ? begin + each : a.rows;
    int scope = (int)blockIdx.y;
    float acc[V];
#pragma unroll
    for (int i = 0; i < V; i++) {
        acc[i] = 0.0f;
    }
    for (int i = (int)threadIdx.x; i < n; i += WARPS * 32) {
        hist[i] = 0;
    }
    __syncthreads();
    for (int64_t r = begin + warp; r < end; r += WARPS) {
        if (a.scope && a.scope[r] != scope) {
            continue;
        }
        float x[V], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < V; i++) {
            x[i] = lane + 32 * i < n ? a.scores[r * n + lane + 32 * i] : 0.0f;
            sum += x[i];
        }
        float factor = a.score == MF_ROUTE_SIGMOID ? 1.0f / (mf_warp_sum(sum) + 1e-20f) : 1.0f;
#pragma unroll
        for (int i = 0; i < V; i++) {
            acc[i] += x[i] * factor;
        }
        if (lane < a.top_k) {
            atomicAdd(&hist[a.index[r * a.top_k + lane]], 1);
        }
    }
#pragma unroll
    for (int i = 0; i < V; i++) {
        sums[warp][lane + 32 * i] = acc[i];
    }
    __syncthreads();
    float *out = partial + ((int64_t)blockIdx.x * a.scopes + scope) * 2 * n;
    for (int i = (int)threadIdx.x; i < n; i += WARPS * 32) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            sum += sums[w][i];
        }
        out[i] = (float)hist[i];
        out[n + i] = sum;
    }
}

static __global__ void router_stats_sum(mf_kernel_router_stats a, const float *partial,
                                        int chunks) {
    mf_await();
    int64_t n = a.experts, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.scopes * n * 2) {
        return;
    }
    float sum = 0.0f;
#pragma unroll 8
    for (int c = 0; c < chunks; c++) {
        sum += partial[c * a.scopes * 2 * n + i];
    }
    int64_t scope = i / (2 * n), e = i % (2 * n);
    if (e < n) {
        a.count[scope * n + e] += sum;
    } else {
        a.prob_sum[scope * n + e - n] += sum;
    }
}

static __global__ void router_aux(mf_kernel_router_aux a) {
    __shared__ double sums[32];
    double factor = (double)a.experts / ((double)a.top_k * a.tokens * a.tokens * (double)a.scopes);
    double aux = 0.0;
    for (int64_t i = threadIdx.x; i < a.scopes * a.experts; i += blockDim.x) {
        float count = a.count[i];
        aux += (double)count * (double)a.prob_sum[i];
        a.weight[i] = (float)(factor * (double)a.weight_scale * (double)count);
    }
    aux = mf_warp_sum(aux);
    if (threadIdx.x % 32 == 0) {
        sums[threadIdx.x / 32] = aux;
    }
    __syncthreads();
    if (threadIdx.x == 0 && a.aux) {
        aux = 0.0;
        for (int w = 0; w < (int)blockDim.x / 32; w++) {
            aux += sums[w];
        }
        *a.aux += (float)(factor * aux);
    }
}

template <int V> __global__ void router_backward(mf_kernel_router_grad a) {
    mf_await();
    int lane = (int)threadIdx.x % 32, n = (int)a.experts;
    int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (r >= a.rows) {
        return;
    }
    bool sigmoid = a.score == MF_ROUTE_SIGMOID;
    float score[V], ds[V], total = 0.0f;
#pragma unroll
    for (int i = 0; i < V; i++) {
        score[i] = lane + 32 * i < n ? a.scores[r * n + lane + 32 * i] : 0.0f;
        total += score[i];
        ds[i] = 0.0f;
    }
    total = mf_warp_sum(total) + 1e-20f;
    /* Lane j looks after choice j. */
    int index = lane < a.top_k ? a.index[r * a.top_k + lane] : -1;
    float dprob = lane < a.top_k ? a.dprob[r * a.top_k + lane] : 0.0f;
    float chosen = lane < a.top_k ? a.scores[r * n + index] : 0.0f, d = a.scaling * dprob;
    if (a.normalise || a.score == MF_ROUTE_TOPK_SOFTMAX) {
        float sum = mf_warp_sum(chosen) + 1e-20f, dot = mf_warp_sum(dprob * chosen) / sum;
        d = a.scaling * (dprob - dot) / sum;
    }
    for (int j = 0; j < a.top_k; j++) {
        int e = __shfl_sync(0xffffffffu, index, j);
        float dj = __shfl_sync(0xffffffffu, d, j);
#pragma unroll
        for (int i = 0; i < V; i++) {
            ds[i] += e == lane + 32 * i ? dj : 0.0f;
        }
    }
    if (a.aux_weight) {
        const float *w = a.aux_weight + (a.scope ? a.scope[r] : 0) * a.experts;
        float weight[V], dot = 0.0f;
#pragma unroll
        for (int i = 0; i < V; i++) {
            weight[i] = lane + 32 * i < n ? w[lane + 32 * i] : 0.0f;
            dot += weight[i] * score[i];
        }
        float mean = sigmoid ? mf_warp_sum(dot) / total : 0.0f;
#pragma unroll
        for (int i = 0; i < V; i++) {
            ds[i] += sigmoid ? (weight[i] - mean) / total : weight[i];
        }
    }
    float dot = 0.0f, lse = a.z_weight != 0.0f ? a.lse[r] : 0.0f;
#pragma unroll
    for (int i = 0; i < V; i++) {
        dot += ds[i] * score[i];
    }
    dot = mf_warp_sum(dot);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int64_t at = r * n + lane + 32 * i;
        if (lane + 32 * i < n) {
            float x = sigmoid ? ds[i] * score[i] * (1.0f - score[i]) : score[i] * (ds[i] - dot);
            if (a.z_weight != 0.0f) {
                x += 2.0f * a.z_weight * lse * expf(a.logits[at] - lse);
            }
            a.dlogits[at] = x;
        }
    }
}

/* One block of 1024 threads. */
__device__ static double block_sum(double x) {
    __shared__ double sums[33];
    x = mf_warp_sum(x);
    if (threadIdx.x % 32 == 0) {
        sums[threadIdx.x / 32] = x;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        x = 0.0;
        for (int w = 0; w < (int)blockDim.x / 32; w++) {
            x += sums[w];
        }
        sums[32] = x;
    }
    __syncthreads();
    return sums[32];
}

static __global__ void router_z_sum(int64_t rows, const float *lse, float *sum) {
    double x = 0.0;
    for (int64_t r = threadIdx.x; r < rows; r += blockDim.x) {
        x += (double)lse[r] * (double)lse[r];
    }
    x = block_sum(x);
    if (threadIdx.x == 0) {
        *sum += (float)x;
    }
}

static __global__ void router_bias_update(int64_t experts, float rate, const float *count,
                                          float *bias) {
    double x = 0.0;
    for (int64_t i = threadIdx.x; i < experts; i += blockDim.x) {
        x += (double)count[i];
    }
    float mean = (float)(block_sum(x) / (double)experts);
    for (int64_t i = threadIdx.x; i < experts; i += blockDim.x) {
        bias[i] += count[i] < mean ? rate : count[i] > mean ? -rate : 0.0f;
    }
}

static mf_status check_sizes(int64_t experts, int64_t top_k, mf_err *e) {
    if (experts > MF_ROUTE_MAX_EXPERTS || top_k > MF_ROUTE_MAX_TOPK) {
        return mf_err_set(e, MF_INPUT, "router: %lld experts, top-%lld are more than %d, %d",
                          (long long)experts, (long long)top_k, MF_ROUTE_MAX_EXPERTS,
                          MF_ROUTE_MAX_TOPK);
    }
    return MF_OK;
}

/* Calls macro(V) for the slots a lane needs. */
#define FOR_WIDTH(experts, launch)                                                                 \
    if ((experts) <= 32) {                                                                         \
        launch(1);                                                                                 \
    } else if ((experts) <= 64) {                                                                  \
        launch(2);                                                                                 \
    } else if ((experts) <= 128) {                                                                 \
        launch(4);                                                                                 \
    } else if ((experts) <= 256) {                                                                 \
        launch(8);                                                                                 \
    } else {                                                                                       \
        launch(16);                                                                                \
    }

extern "C" mf_status mf_kernel_router_forward_cuda(const mf_kernel_router *a, void *stream,
                                                   mf_err *e) {
    mf_status status = check_sizes(a->experts, a->top_k, e);
    if (status != MF_OK || a->rows == 0) {
        return status;
    }
    unsigned blocks = (unsigned)mf_ceil_div(a->rows, WARPS);
#define LAUNCH(V) MF_LAUNCH((router_forward<V>), blocks, WARPS * 32, 0, (cudaStream_t)stream, e, *a)
    FOR_WIDTH(a->experts, LAUNCH)
#undef LAUNCH
    return MF_OK;
}

extern "C" mf_status mf_kernel_router_stats_add_cuda(const mf_kernel_router_stats *a, void *stream,
                                                     mf_err *e) {
    mf_status status = check_sizes(a->experts, a->top_k, e);
    if (status != MF_OK || a->rows == 0) {
        return status;
    }
    int64_t chunks = mf_ceil_div(a->rows, 4 * WARPS);
    chunks = chunks < CHUNKS_MAX ? chunks : CHUNKS_MAX;
    dim3 grid((unsigned)chunks, (unsigned)a->scopes);
    float *partial = (float *)a->workspace;
#define LAUNCH(V)                                                                                  \
    MF_LAUNCH((router_stats<V>), grid, WARPS * 32, 0, (cudaStream_t)stream, e, *a, partial)
    FOR_WIDTH(a->experts, LAUNCH)
#undef LAUNCH
    unsigned blocks = (unsigned)mf_ceil_div(a->scopes * a->experts * 2, 128);
    MF_LAUNCH((router_stats_sum), blocks, 128, 0, (cudaStream_t)stream, e, *a, partial,
              (int)chunks);
    return MF_OK;
}

extern "C" mf_status mf_kernel_router_aux_loss_cuda(const mf_kernel_router_aux *a, void *stream,
                                                    mf_err *e) {
    router_aux<<<1, 1024, 0, (cudaStream_t)stream>>>(*a);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

extern "C" mf_status mf_kernel_router_backward_cuda(const mf_kernel_router_grad *a, void *stream,
                                                    mf_err *e) {
    mf_status status = check_sizes(a->experts, a->top_k, e);
    if (status != MF_OK || a->rows == 0) {
        return status;
    }
    unsigned blocks = (unsigned)mf_ceil_div(a->rows, WARPS);
#define LAUNCH(V)                                                                                  \
    MF_LAUNCH((router_backward<V>), blocks, WARPS * 32, 0, (cudaStream_t)stream, e, *a)
    FOR_WIDTH(a->experts, LAUNCH)
#undef LAUNCH
    return MF_OK;
}

extern "C" mf_status mf_kernel_router_z_sum_cuda(int64_t rows, const float *lse, float *sum,
                                                 void *stream, mf_err *e) {
    router_z_sum<<<1, 1024, 0, (cudaStream_t)stream>>>(rows, lse, sum);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

extern "C" mf_status mf_kernel_router_bias_update_cuda(int64_t experts, float rate,
                                                       const float *count, float *bias,
                                                       void *stream, mf_err *e) {
    router_bias_update<<<1, 1024, 0, (cudaStream_t)stream>>>(experts, rate, count, bias);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}
