/* cuda_common.cuh - what the CUDA kernels share: 16-byte vectors of floats or bf16, sums over
 * groups of threads, launch checks. Device code only; every .cu includes it. */
#ifndef MF_KERNELS_CUDA_COMMON_CUH
#define MF_KERNELS_CUDA_COMMON_CUH

#include "kernels/device/cuda_check.h"
#include "kernels/kernel.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

typedef __nv_bfloat16 mf_bf16;

/* Elements of T in 16 bytes. */
template <typename T> struct mf_width { static constexpr int value = 16 / (int)sizeof(T); };

/* N elements as they lie in memory: 16 bytes when N is the width of T, else one element. */
template <typename T, int N> struct mf_raw { T v; };
template <> struct mf_raw<float, 4> { uint4 v; };
template <> struct mf_raw<mf_bf16, 8> { uint4 v; };
template <> struct mf_raw<mf_bf16, 4> { uint2 v; }; /* beside floats of 16 bytes */

template <typename T, int N> __device__ inline mf_raw<T, N> mf_fetch(const T *p) {
    return *reinterpret_cast<const mf_raw<T, N> *>(p);
}

/* Of data that is read once: past the first-level cache, which is left to what is read again. */
template <typename T, int N> __device__ inline mf_raw<T, N> mf_fetch_once(const T *p) {
    if constexpr (N == 1) {
        return mf_fetch<T, N>(p);
    } else if constexpr (N * sizeof(T) == 8) {
        mf_raw<T, N> r;
        asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                     : "=r"(r.v.x), "=r"(r.v.y)
                     : "l"((uint64_t)__cvta_generic_to_global(p)));
        return r;
    } else {
        mf_raw<T, N> r;
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r.v.x), "=r"(r.v.y), "=r"(r.v.z), "=r"(r.v.w)
                     : "l"((uint64_t)__cvta_generic_to_global(p)));
        return r;
    }
}

__device__ inline void mf_widen(float (&out)[1], const mf_raw<float, 1> &r) {
    out[0] = r.v;
}
__device__ inline void mf_widen(float (&out)[1], const mf_raw<mf_bf16, 1> &r) {
    out[0] = __bfloat162float(r.v);
}
__device__ inline void mf_widen(float (&out)[4], const mf_raw<float, 4> &r) {
    out[0] = __uint_as_float(r.v.x);
    out[1] = __uint_as_float(r.v.y);
    out[2] = __uint_as_float(r.v.z);
    out[3] = __uint_as_float(r.v.w);
}
__device__ inline void mf_widen(float (&out)[8], const mf_raw<mf_bf16, 8> &r) {
    const unsigned w[4] = {r.v.x, r.v.y, r.v.z, r.v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = __uint_as_float(w[i] << 16);
        out[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}

__device__ inline void mf_widen(float (&out)[4], const mf_raw<mf_bf16, 4> &r) {
    out[0] = __uint_as_float(r.v.x << 16);
    out[1] = __uint_as_float(r.v.x & 0xffff0000u);
    out[2] = __uint_as_float(r.v.y << 16);
    out[3] = __uint_as_float(r.v.y & 0xffff0000u);
}

__device__ inline void mf_store(float *p, const float (&x)[1]) {
    p[0] = x[0];
}
__device__ inline void mf_store(mf_bf16 *p, const float (&x)[1]) {
    p[0] = __float2bfloat16_rn(x[0]);
}
__device__ inline void mf_store(float *p, const float (&x)[4]) {
    *reinterpret_cast<float4 *>(p) = make_float4(x[0], x[1], x[2], x[3]);
}
__device__ inline unsigned mf_pair(float low, float high) {
    __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<unsigned *>(&h);
}
__device__ inline void mf_store(mf_bf16 *p, const float (&x)[4]) {
    *reinterpret_cast<uint2 *>(p) = make_uint2(mf_pair(x[0], x[1]), mf_pair(x[2], x[3]));
}
__device__ inline void mf_store(mf_bf16 *p, const float (&x)[8]) {
    *reinterpret_cast<uint4 *>(p) = make_uint4(mf_pair(x[0], x[1]), mf_pair(x[2], x[3]),
                                               mf_pair(x[4], x[5]), mf_pair(x[6], x[7]));
}

/* Of data that is not read soon: it leaves the second-level cache first. */
__device__ inline void mf_store_once(float *p, const float (&x)[4]) {
    __stcs(reinterpret_cast<float4 *>(p), make_float4(x[0], x[1], x[2], x[3]));
}
__device__ inline void mf_store_once(mf_bf16 *p, const float (&x)[8]) {
    __stcs(reinterpret_cast<uint4 *>(p), make_uint4(mf_pair(x[0], x[1]), mf_pair(x[2], x[3]),
                                                    mf_pair(x[4], x[5]), mf_pair(x[6], x[7])));
}

template <typename T, int N> __device__ inline void mf_load(float (&out)[N], const T *p) {
    mf_widen(out, mf_fetch<T, N>(p));
}

/* The value as it will be read back. */
__device__ inline float mf_round_as(const float *, float x) {
    return x;
}
__device__ inline float mf_round_as(const mf_bf16 *, float x) {
    return __bfloat162float(__float2bfloat16_rn(x));
}

/* exp and division: as exact as the type that is stored needs. */
template <typename T> __device__ inline float mf_exp(float x) {
    return sizeof(T) == 2 ? __expf(x) : expf(x);
}
template <typename T> __device__ inline float mf_sigmoid(float x) {
    return sizeof(T) == 2 ? __fdividef(1.0f, 1.0f + __expf(-x)) : 1.0f / (1.0f + expf(-x));
}

/* Sum over `lanes` threads side by side: a power of two up to 32 (the threads of the rest of the
 * warp take part in sums of their own), or the whole block. `scratch` holds 64 floats of shared
 * memory; `turn` alternates between calls so that one barrier a call is enough. Every thread gets
 * the sum; the order is fixed. */
__device__ inline float mf_group_sum(float x, int lanes, float *scratch, int turn) {
    for (int o = (lanes < 32 ? lanes : 32) / 2; o > 0; o /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, o);
    }
    if (lanes <= 32) {
        return x;
    }
    float *s = scratch + (turn & 1) * 32;
    int warp = (int)threadIdx.x / 32, warps = ((int)blockDim.x + 31) / 32;
    if (threadIdx.x % 32 == 0) {
        s[warp] = x;
    }
    __syncthreads();
    float lane = (int)threadIdx.x % 32 < warps ? s[threadIdx.x % 32] : 0.0f;
    for (int o = 16; o > 0; o /= 2) {
        lane += __shfl_xor_sync(0xffffffffu, lane, o);
    }
    return lane;
}

__device__ inline float mf_warp_sum(float x) {
    for (int o = 16; o > 0; o /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, o);
    }
    return x;
}
__device__ inline float mf_warp_max(float x) {
    for (int o = 16; o > 0; o /= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
    }
    return x;
}
__device__ inline double mf_warp_sum(double x) {
    for (int o = 16; o > 0; o /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, o);
    }
    return x;
}

/* Sum over a block of whole warps, up to 1024 threads, in a fixed order; valid in thread 0. */
__device__ inline double mf_block_sum(double x) {
    __shared__ double sums[32];
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
    }
    return x;
}

__device__ inline int64_t mf_rows(int64_t rows, const int32_t *rows_dev) {
    return rows_dev && *rows_dev < rows ? *rows_dev : rows;
}

/* First of all in a kernel that mf_launch starts: waits for what came before, then lets what comes
 * behind take the places that become free, where it waits likewise. Between kernels of some ten
 * microseconds this saves one or two. */
__device__ inline void mf_await(void) {
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
}

/* Host side. */
static inline bool mf_aligned(const void *p) {
    return ((uintptr_t)p & 15u) == 0;
}

/* Whether rows of `cols` elements with this stride can be read 16 bytes at a time from p. */
static inline bool mf_vectors(const void *p, mf_kernel_dtype d, int64_t cols, int64_t stride) {
    int64_t n = 16 / (int64_t)mf_kernel_dtype_B(d);
    return mf_aligned(p) && cols % n == 0 && stride % n == 0;
}

static inline int64_t mf_ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* Smallest power of two >= x, at least 1. */
static inline int mf_pow2_up(int64_t x) {
    int p = 1;
    while (p < x) {
        p *= 2;
    }
    return p;
}

/* Threads for a row of `vectors` vectors when each takes about `each` or more: 32, 64, 128 or 256,
 * whichever leaves the fewest idle in the last turn. */
static inline int mf_row_threads(int64_t vectors, int each) {
    int most = mf_pow2_up(mf_ceil_div(vectors, each)), best = 32;
    most = most < 32 ? 32 : most > 256 ? 256 : most;
    for (int lanes = 32; lanes <= most; lanes *= 2) {
        if (mf_ceil_div(vectors, lanes) * lanes <= mf_ceil_div(vectors, best) * best) {
            best = lanes;
        }
    }
    return best;
}

/* Launches a kernel that may start while its predecessor in the stream ends: before it reads or
 * writes what others may still use it calls cudaGridDependencySynchronize(), which waits until all
 * that the predecessor wrote is there. */
template <typename... Params, typename... Args>
static inline mf_status mf_launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t share_B,
                                  cudaStream_t stream, mf_err *e, Args... args) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = share_B;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    MF_CUDA_TRY(cudaLaunchKernelEx(&config, kernel, Params(args)...), e);
    return MF_OK;
}

/* The same where the function goes on after it; returns on errors. */
#define MF_LAUNCH(kernel, grid, block, share_B, stream, e, ...)                                    \
    do {                                                                                           \
        const mf_status launched_ =                                                                \
            mf_launch(kernel, dim3(grid), dim3(block), share_B, stream, e, __VA_ARGS__);           \
        if (launched_ != MF_OK) {                                                                  \
            return launched_;                                                                      \
        }                                                                                          \
    } while (0)

#define MF_KERNEL_LAUNCHED(e) MF_CUDA_TRY(cudaPeekAtLastError(), e)

/* Calls run<type, vector width or 1>(args): picks the instance for (dtype, fast). */
#define MF_KERNEL_PICK(run, dtype, fast, ...)                                                      \
    ((dtype) == MF_KERNEL_BF16                                                                     \
         ? ((fast) ? run<mf_bf16, 8>(__VA_ARGS__) : run<mf_bf16, 1>(__VA_ARGS__))                  \
         : ((fast) ? run<float, 4>(__VA_ARGS__) : run<float, 1>(__VA_ARGS__)))

#endif
