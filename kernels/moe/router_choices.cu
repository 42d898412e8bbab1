/* router_choices.cu - CUDA kernels of what is done with the router's choices: a thread a choice.
 * Loads are whole numbers, so that sums by atomics are the same in every order.
 */
#include "kernels/moe/router_choices.h"
#include "kernels/moe/router_rows.cuh"

#define THREADS 256
#define STRETCH 2048 /* choices that a block counts */

static __global__ void router_force(mf_kernel_router_force a) {
    mf_await();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, r = i / a.top_k;
    if (r >= a.rows) {
        return;
    }
    const int64_t at = a.first_row + r, token = at / a.run * a.seq + a.position[at];
    a.index[i] = mf_router_forced(&a, token, i - r * a.top_k);
}

/* Choices of scope blockIdx.y; a.scope NULL: of all. */
static __global__ void router_count(mf_kernel_router_count a) {
    mf_await();
    __shared__ int hist[MF_ROUTE_MAX_EXPERTS];
    const int scope = (int)blockIdx.y, experts = (int)a.experts;
    const int64_t slots = a.rows * a.top_k, begin = (int64_t)blockIdx.x * STRETCH;
    for (int x = (int)threadIdx.x; x < experts; x += THREADS) {
        hist[x] = 0;
    }
    __syncthreads();
#pragma unroll 4
    for (int64_t i = begin + threadIdx.x; i < begin + STRETCH && i < slots; i += THREADS) {
        const int x = a.index[i];
        if (x >= 0 && (!a.scope || a.scope[i / a.top_k] == scope)) {
            atomicAdd(&hist[x], 1);
        }
    }
    __syncthreads();
    for (int x = (int)threadIdx.x; x < experts; x += THREADS) {
        if (hist[x] > 0 && a.load) {
            atomicAdd(&a.load[x], (float)hist[x]);
        }
        if (hist[x] > 0 && a.count) {
            atomicAdd(&a.count[(int64_t)scope * experts + x], (float)hist[x]);
        }
    }
}

/* One block; every warp sums all loads, which is exact. */
static __global__ void router_count_globally(mf_kernel_router_count a) {
    mf_await();
    double seen = 0.0, slots = (double)(a.rows * a.top_k);
    for (int64_t i = threadIdx.x % 32; i < a.experts; i += 32) {
        seen += (double)a.load[i];
    }
    seen = mf_warp_sum(seen);
    for (int64_t i = threadIdx.x; i < a.experts; i += THREADS) {
        a.count[i] = seen > 0.0 ? (float)((double)a.load[i] * slots / seen) : 0.0f;
    }
}

static __global__ void router_place(mf_kernel_router_place a) {
    mf_await();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, r = i / a.top_k;
    if (r >= a.rows) {
        return;
    }
    const int64_t place = a.place[a.back ? a.first + r : r];
    const int64_t there = place * a.top_k + (i - r * a.top_k);
    ((uint32_t *)a.dst)[a.back ? i : there] = ((const uint32_t *)a.src)[a.back ? there : i];
}

/* The first `vectors` threads take four values each, those behind them one. */
static __global__ void router_keep(mf_kernel_router_keep a, int64_t vectors) {
    mf_await();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < vectors) {
        const int4 kept = reinterpret_cast<const int4 *>(a.kept)[i];
        const float4 p = reinterpret_cast<const float4 *>(a.prob)[i];
        reinterpret_cast<float4 *>(a.out)[i] =
            make_float4(kept.x >= 0 ? p.x : 0.0f, kept.y >= 0 ? p.y : 0.0f,
                        kept.z >= 0 ? p.z : 0.0f, kept.w >= 0 ? p.w : 0.0f);
        return;
    }
    i += 3 * vectors;
    if (i < a.count) {
        a.out[i] = a.kept[i] >= 0 ? a.prob[i] : 0.0f;
    }
}

extern "C" mf_status mf_kernel_router_force_choices_cuda(const mf_kernel_router_force *a,
                                                         void *stream, mf_err *e) {
    const int64_t slots = a->rows * a->top_k;
    if (slots == 0) {
        return MF_OK;
    }
    return mf_launch(router_force, dim3((unsigned)mf_ceil_div(slots, THREADS)), dim3(THREADS), 0,
                     (cudaStream_t)stream, e, *a);
}

extern "C" mf_status mf_kernel_router_count_choices_cuda(const mf_kernel_router_count *a,
                                                         void *stream, mf_err *e) {
    const cudaStream_t s = (cudaStream_t)stream;
    const int64_t slots = a->rows * a->top_k;
    const bool by_scope = a->count && !a->global;
    if (a->experts > MF_ROUTE_MAX_EXPERTS || a->scopes > 65535) {
        return mf_err_set(e, MF_INPUT, "router: %lld experts, %lld scopes are too many to count",
                          (long long)a->experts, (long long)a->scopes);
    }
    if (by_scope) {
        const size_t size_B = (size_t)(a->scopes * a->experts) * sizeof(float);
        MF_CUDA_TRY(cudaMemsetAsync(a->count, 0, size_B, s), e);
    }
    if (slots > 0 && (a->load || by_scope)) {
        mf_kernel_router_count here = *a;
        here.count = by_scope ? a->count : nullptr;
        here.scope = by_scope ? a->scope : nullptr;
        const dim3 grid((unsigned)mf_ceil_div(slots, STRETCH),
                        here.scope ? (unsigned)a->scopes : 1);
        MF_LAUNCH((router_count), grid, THREADS, 0, s, e, here);
    }
    if (a->count && a->global) {
        MF_LAUNCH((router_count_globally), 1, THREADS, 0, s, e, *a);
    }
    return MF_OK;
}

extern "C" mf_status mf_kernel_router_place_rows_cuda(const mf_kernel_router_place *a, void *stream,
                                                      mf_err *e) {
    const int64_t slots = a->rows * a->top_k;
    if (slots == 0) {
        return MF_OK;
    }
    return mf_launch(router_place, dim3((unsigned)mf_ceil_div(slots, THREADS)), dim3(THREADS), 0,
                     (cudaStream_t)stream, e, *a);
}

extern "C" mf_status mf_kernel_router_keep_values_cuda(const mf_kernel_router_keep *a, void *stream,
                                                       mf_err *e) {
    if (a->count == 0) {
        return MF_OK;
    }
    const bool whole = mf_aligned(a->kept) && mf_aligned(a->prob) && mf_aligned(a->out);
    const int64_t vectors = whole ? a->count / 4 : 0, threads = a->count - 3 * vectors;
    return mf_launch(router_keep, dim3((unsigned)mf_ceil_div(threads, THREADS)), dim3(THREADS), 0,
                     (cudaStream_t)stream, e, *a, vectors);
}
