/* router.cu - CUDA kernels of the router behind the forward pass (router_forward.cu): statistics,
 * auxiliary loss, gradient, z-loss, bias. A warp a row, the row's scores in registers.
 */
#include "kernels/device/row_sums.cuh"
#include "kernels/moe/router_near.cuh"

#define CHUNKS_MAX 264                    /* as in router.c */
#define STATS_FLIGHT(V) ((V) > 8 ? 2 : 4) /* rows that a warp has in flight */

/* partial[2, chunk, scope, experts]: counts and probability sums of the chunk's rows. */
template <int V, int VEC>
__global__ void __launch_bounds__(WARPS * 32)
    router_stats(mf_kernel_router_stats a, float *partial) {
    mf_await();
    constexpr int FLIGHT = STATS_FLIGHT(V);
    __shared__ __align__(16) float sums[WARPS][32 * V];
    __shared__ int hist[32 * V];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n = (int)a.experts;
    const int64_t each = (a.rows + gridDim.x - 1) / gridDim.x, begin = (int64_t)blockIdx.x * each;
    const int64_t end = begin + each < a.rows ? begin + each : a.rows;
    const int scope = (int)blockIdx.y;
    float acc[V];
#pragma unroll
    for (int i = 0; i < V; i++) {
        acc[i] = 0.0f;
    }
    for (int i = (int)threadIdx.x; i < 32 * V; i += WARPS * 32) {
        hist[i] = 0;
    }
    __syncthreads();
    for (int64_t r0 = begin + warp; r0 < end; r0 += WARPS * FLIGHT) {
        float x[FLIGHT][V];
        int index[FLIGHT];
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) {
            const int64_t r = r0 + f * WARPS;
            const bool mine = r < end && (!a.scope || a.scope[r] == scope);
            load_row<V, VEC>(x[f], a.scores + r * n, mine ? n : 0, 0.0f);
            index[f] = mine && lane < a.top_k ? a.index[r * a.top_k + lane] : -1;
        }
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) {
            float factor = 1.0f;
            if (a.score == MF_ROUTE_SIGMOID) {
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < V; i++) {
                    sum += x[f][i];
                }
                factor = 1.0f / (mf_warp_sum(sum) + 1e-20f);
            }
#pragma unroll
            for (int i = 0; i < V; i++) {
                acc[i] += x[f][i] * factor;
            }
            if (index[f] >= 0) {
                atomicAdd(&hist[index[f]], 1);
            }
        }
    }
    store_row<V, VEC>(sums[warp], acc, 32 * V);
    __syncthreads();
    const int64_t all = a.scopes * n, at = blockIdx.x * all + (int64_t)scope * n;
    for (int i = (int)threadIdx.x; i < n; i += WARPS * 32) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            sum += sums[w][i];
        }
        partial[at + i] = (float)hist[i];
        partial[gridDim.x * all + at + i] = sum;
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
        *a.aux += factor * aux;
    }
}

template <int V, int VEC>
__global__ void __launch_bounds__(WARPS * 32) router_backward(mf_kernel_router_grad a) {
    mf_await();
    __shared__ __align__(16) float rows[2][WARPS][32 * V]; /* scores, their gradients */
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n = (int)a.experts;
    const int64_t r = (int64_t)blockIdx.x * WARPS + warp;
    if (r >= a.rows) {
        return;
    }
    const bool sigmoid = a.score == MF_ROUTE_SIGMOID;
    const bool has = lane < a.top_k && a.score != MF_ROUTE_SPARSEMIXER; /* router_near_grad */
    float *const scores = rows[0][warp], *const grads = rows[1][warp];
    /* Lane j looks after choice j. */
    const int index = has ? a.index[r * a.top_k + lane] : 0;
    const float dprob = has ? a.dprob[r * a.top_k + lane] : 0.0f;
    float score[V], ds[V];
    load_row<V, VEC>(score, a.scores + r * n, n, 0.0f);
#pragma unroll
    for (int i = 0; i < V; i++) {
        ds[i] = 0.0f;
    }
    store_row<V, VEC>(scores, score, n);
    store_row<V, VEC>(grads, ds, n);
    __syncwarp();
    float d = a.scaling * dprob;
    if (a.normalise || a.score == MF_ROUTE_TOPK_SOFTMAX) {
        const float chosen = has ? scores[index] : 0.0f;
        const float sum = mf_warp_sum(chosen) + 1e-20f, dot = mf_warp_sum(dprob * chosen) / sum;
        d = a.scaling * (dprob - dot) / sum;
    }
    if (has) {
        grads[index] = d; /* choices of a row differ */
    }
    __syncwarp();
    load_row<V, VEC>(ds, grads, n, 0.0f);
    if (a.aux_weight) {
        const float *w = a.aux_weight + (a.scope ? a.scope[r] : 0) * a.experts;
        float weight[V], dot = 0.0f, total = 0.0f, mean = 0.0f, part = 1.0f;
        load_row<V, VEC>(weight, w, n, 0.0f);
        if (sigmoid) {
#pragma unroll
            for (int i = 0; i < V; i++) {
                dot += weight[i] * score[i];
                total += score[i];
            }
            total = mf_warp_sum(total) + 1e-20f;
            mean = mf_warp_sum(dot) / total;
            part = 1.0f / total;
        }
#pragma unroll
        for (int i = 0; i < V; i++) {
            ds[i] += (weight[i] - mean) * part;
        }
    }
    float dot = 0.0f;
    if (!sigmoid) {
#pragma unroll
        for (int i = 0; i < V; i++) {
            dot += ds[i] * score[i];
        }
        dot = mf_warp_sum(dot);
    }
#pragma unroll
    for (int i = 0; i < V; i++) {
        ds[i] = score[i] * (sigmoid ? ds[i] * (1.0f - score[i]) : ds[i] - dot);
    }
    if (a.z_weight != 0.0f) {
        const float lse = a.lse[r], z = 2.0f * a.z_weight * lse;
        float logit[V];
        load_row<V, VEC>(logit, a.logits + r * n, n, -INFINITY);
#pragma unroll
        for (int i = 0; i < V; i++) {
            ds[i] += z * expf(logit[i] - lse);
        }
    }
    store_row<V, VEC>(a.dlogits + r * n, ds, n);
}

/* One block of 1024 threads, as the next. */
static __global__ void router_z_sum(int64_t rows, const float *lse, double *sum) {
    double x = 0.0;
    for (int64_t r = threadIdx.x; r < rows; r += blockDim.x) {
        x += (double)lse[r] * (double)lse[r];
    }
    x = mf_block_sum(x);
    if (threadIdx.x == 0) {
        *sum += x;
    }
}

static __global__ void router_bias_update(mf_kernel_router_bias a) {
    if (a.skip && *a.skip != 0) {
        return;
    }
    double x = 0.0;
    for (int64_t i = threadIdx.x; i < a.experts; i += blockDim.x) {
        x += (double)a.count[i];
    }
    __shared__ float mean;
    x = mf_block_sum(x);
    if (threadIdx.x == 0) {
        mean = (float)(x / (double)a.experts);
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < a.experts; i += blockDim.x) {
        a.bias[i] += a.count[i] < mean ? a.rate : a.count[i] > mean ? -a.rate : 0.0f;
    }
}

extern "C" mf_status mf_kernel_router_stats_add_cuda(const mf_kernel_router_stats *a, void *stream,
                                                     mf_err *e) {
    mf_status status = mf_router_check_sizes(a->experts, a->top_k, e);
    if (status != MF_OK || a->rows == 0) {
        return status;
    }
    int64_t chunks = mf_ceil_div(a->rows, 4 * WARPS);
    chunks = chunks < CHUNKS_MAX ? chunks : CHUNKS_MAX;
    const dim3 grid((unsigned)chunks, (unsigned)a->scopes);
    const bool whole = a->experts % 4 == 0 && mf_aligned(a->scores);
    float *partial = (float *)a->workspace;
#define LAUNCH(V, VEC)                                                                             \
    MF_LAUNCH((router_stats<V, VEC>), grid, WARPS * 32, 0, (cudaStream_t)stream, e, *a, partial)
    FOR_WIDTH(a->experts, whole, LAUNCH)
#undef LAUNCH
    return mf_add_partial_rows_to(partial, 2, (int)chunks, a->scopes * a->experts,
                                  {a->count, a->prob_sum}, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_router_aux_loss_cuda(const mf_kernel_router_aux *a, void *stream,
                                                    mf_err *e) {
    router_aux<<<1, 1024, 0, (cudaStream_t)stream>>>(*a);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

extern "C" mf_status mf_kernel_router_backward_cuda(const mf_kernel_router_grad *a, void *stream,
                                                    mf_err *e) {
    mf_status status = mf_router_check_sizes(a->experts, a->top_k, e);
    if (status != MF_OK || a->rows == 0) {
        return status;
    }
    const bool whole = a->experts % 4 == 0 && mf_aligned(a->scores) && mf_aligned(a->dlogits) &&
                       mf_aligned(a->aux_weight) && mf_aligned(a->logits);
    const unsigned blocks = (unsigned)mf_ceil_div(a->rows, WARPS);
#define LAUNCH(V, VEC)                                                                             \
    MF_LAUNCH((router_backward<V, VEC>), blocks, WARPS * 32, 0, (cudaStream_t)stream, e, *a)
    FOR_WIDTH(a->experts, whole, LAUNCH)
#undef LAUNCH
#define LAUNCH(V, VEC)                                                                             \
    MF_LAUNCH((router_near_grad<V, VEC>), blocks, WARPS * 32, 0, (cudaStream_t)stream, e, *a)
    if (a->score == MF_ROUTE_SPARSEMIXER) {
        FOR_WIDTH(a->experts, whole, LAUNCH)
    }
#undef LAUNCH
    return MF_OK;
}

extern "C" mf_status mf_kernel_router_z_sum_cuda(int64_t rows, const float *lse, double *sum,
                                                 void *stream, mf_err *e) {
    router_z_sum<<<1, 1024, 0, (cudaStream_t)stream>>>(rows, lse, sum);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

extern "C" mf_status mf_kernel_router_bias_update_cuda(const mf_kernel_router_bias *a, void *stream,
                                                       mf_err *e) {
    router_bias_update<<<1, 1024, 0, (cudaStream_t)stream>>>(*a);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}
