/* quantise.cu - CUDA kernels of FP8 quantisation: a block a tile of 128 x 128 held in registers (8
 * rows by 8 columns a thread), so that x is read once for both copies; the transposed copy goes
 * through shared memory. A scale for the whole tensor takes a pass of its own.
 */
#include "kernels/device/cuda_common.cuh"
#include "kernels/rows/quantise.h"

#include <cuda_fp8.h>

#define TILE 128
#define THREADS 256
#define PART 8           /* rows and columns of a thread */
#define AMAX_BLOCKS 1024 /* workspace, as in quantise.c */

__device__ static float scale_of(float amax, bool pow2) {
    if (!(amax > 0.0f)) {
        return 1.0f;
    }
    float scale = fmaxf(amax / MF_QUANT_E4M3_MAX, 0x1p-120f);
    if (pow2) { /* up to the next power of two: the mantissa carries into the exponent */
        scale = __uint_as_float((__float_as_uint(scale) + 0x7fffffu) & 0x7f800000u);
    }
    return scale;
}

__device__ static unsigned quantise4(float a, float b, float c, float d) {
    unsigned low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
    unsigned high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}

/* 8 elements as they lie in memory: a float takes twice the registers of a bf16. */
template <typename T> struct eight { mf_raw<T, 16 / (int)sizeof(T)> half[sizeof(T) / 2]; };

template <typename T> __device__ static void widen8(float (&x)[PART], const eight<T> &e) {
    if constexpr (sizeof(T) == 2) {
        mf_widen(x, e.half[0]);
    } else {
        float a[4], b[4];
        mf_widen(a, e.half[0]);
        mf_widen(b, e.half[1]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = a[i];
            x[4 + i] = b[i];
        }
    }
}

template <typename T> __device__ static float amax8(const eight<T> &e) {
    if constexpr (sizeof(T) == 2) { /* magnitudes of bf16 are ordered like their bits */
        const uint4 &w = e.half[0].v;
        unsigned m = __vmaxu2(__vmaxu2(w.x & 0x7fff7fffu, w.y & 0x7fff7fffu),
                              __vmaxu2(w.z & 0x7fff7fffu, w.w & 0x7fff7fffu));
        return __uint_as_float(max(m << 16, m & 0xffff0000u));
    } else {
        float x[PART], high = 0.0f;
        widen8<T>(x, e);
#pragma unroll
        for (int i = 0; i < PART; i++) {
            high = fmaxf(high, fabsf(x[i]));
        }
        return high;
    }
}

template <typename T>
__device__ static void column_amax(float (&amax)[PART], const eight<T> *tile) {
    if constexpr (sizeof(T) == 2) {
        uint4 high = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < PART; i++) {
            const uint4 &w = tile[i].half[0].v;
            high.x = __vmaxu2(high.x, w.x & 0x7fff7fffu);
            high.y = __vmaxu2(high.y, w.y & 0x7fff7fffu);
            high.z = __vmaxu2(high.z, w.z & 0x7fff7fffu);
            high.w = __vmaxu2(high.w, w.w & 0x7fff7fffu);
        }
        mf_raw<mf_bf16, 8> r;
        r.v = high;
        mf_widen(amax, r);
    } else {
#pragma unroll
        for (int i = 0; i < PART; i++) {
            float x[PART];
            widen8<T>(x, tile[i]);
#pragma unroll
            for (int j = 0; j < PART; j++) {
                amax[j] = i == 0 ? fabsf(x[j]) : fmaxf(amax[j], fabsf(x[j]));
            }
        }
    }
}

/* Past the matrix elements are 0. */
template <typename T>
__device__ static eight<T> load8(const T *row, int64_t c, int64_t cols, bool fast) {
    eight<T> e;
    if (fast && c + PART <= cols) {
#pragma unroll
        for (int h = 0; h < (int)sizeof(T) / 2; h++) {
            e.half[h] = mf_fetch<T, 16 / (int)sizeof(T)>(row + c + h * 16 / (int)sizeof(T));
        }
        return e;
    }
    float x[PART];
#pragma unroll
    for (int i = 0; i < PART; i++) {
        float one[1] = {0.0f};
        if (c + i < cols) {
            mf_load(one, row + c + i);
        }
        x[i] = one[0];
    }
    T exact[PART];
#pragma unroll
    for (int i = 0; i < PART; i++) {
        const float one[1] = {x[i]};
        mf_store(&exact[i], one);
    }
    memcpy(&e, exact, sizeof e);
    return e;
}

__device__ static void store8(uint8_t *p, uint2 v, int64_t left, bool fast) {
    if (fast && left >= PART) {
        *reinterpret_cast<uint2 *>(p) = v;
        return;
    }
#pragma unroll
    for (int i = 0; i < PART; i++) {
        if (i < left) {
            p[i] = (uint8_t)((i < 4 ? v.x : v.y) >> (i % 4 * 8));
        }
    }
}

/* Of 8 values that each of 16 threads side by side holds: the highest of value `lane / 2` among
 * them. Threads send half of their values across as long as they hold several. */
__device__ static float highest_of_16(float (&x)[PART]) {
    const int lane = (int)threadIdx.x % 16;
#pragma unroll
    for (int half = PART / 2, o = 8; half >= 1; half /= 2, o /= 2) {
        const bool upper = lane & o;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float away = upper ? x[i] : x[half + i];
            x[i] = fmaxf(upper ? x[half + i] : x[i], __shfl_xor_sync(0xffffffffu, away, o));
        }
    }
    return fmaxf(x[0], __shfl_xor_sync(0xffffffffu, x[0], 1));
}

/* The one scale of a tile or of the tensor: by what amax_blocks found (`highs` values), or by the
 * tile's own highest. Writes it down and returns its inverse. `highest`: shared memory, a float a
 * warp. */
template <typename T, int BLOCK>
__device__ static inline float one_scale(const mf_kernel_quantise &a, const eight<T> (&tile)[PART],
                                         int highs, float *highest) {
    float amax = 0.0f;
    if (BLOCK == MF_QUANT_TENSOR) {
        for (int i = (int)threadIdx.x; i < highs; i += THREADS) {
            amax = fmaxf(amax, ((const float *)a.workspace)[i]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < PART; i++) {
            amax = fmaxf(amax, amax8<T>(tile[i]));
        }
    }
    amax = mf_warp_max(amax);
    if (threadIdx.x % 32 == 0) {
        highest[threadIdx.x / 32] = amax;
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++) {
        amax = fmaxf(amax, highest[w]);
    }
    const float scale = scale_of(amax, a.pow2);
    if (BLOCK == MF_QUANT_128X128 && threadIdx.x == 0) {
        a.scale[blockIdx.y * a.scale_i + blockIdx.x * a.scale_j] = scale;
    }
    if (BLOCK == MF_QUANT_TENSOR && threadIdx.x + blockIdx.x + blockIdx.y == 0) {
        *a.scale = scale;
    }
    return 1.0f / scale;
}

/* Quantises and writes the thread's 8 rows of 8 columns, from (r0 + ry, c0 + cx) on: by scales of
 * their own, which it writes too, or by `inverse`. */
template <typename T, int BLOCK>
__device__ static inline void put_rows(const mf_kernel_quantise &a, const eight<T> (&tile)[PART],
                                       int64_t r0, int ry, int64_t c0, int cx, float inverse) {
    float mine = inverse; /* of row lane / 2, where rows have scales of their own */
    if (BLOCK == MF_QUANT_1X128) {
        float amax[PART];
#pragma unroll
        for (int i = 0; i < PART; i++) {
            amax[i] = amax8<T>(tile[i]);
        }
        const float scale = scale_of(highest_of_16(amax), a.pow2);
        const int64_t r = r0 + ry + (int)threadIdx.x % 16 / 2;
        mine = 1.0f / scale;
        if (threadIdx.x % 2 == 0 && r < a.rows) {
            a.scale[r * a.scale_i + blockIdx.x * a.scale_j] = scale;
        }
    }
#pragma unroll
    for (int i = 0; i < PART; i++) {
        const int64_t r = r0 + ry + i;
        const float f = BLOCK == MF_QUANT_1X128 ? __shfl_sync(0xffffffffu, mine, 2 * i, 16) : mine;
        float x[PART];
        widen8<T>(x, tile[i]);
        uint2 v = make_uint2(quantise4(x[0] * f, x[1] * f, x[2] * f, x[3] * f),
                             quantise4(x[4] * f, x[5] * f, x[6] * f, x[7] * f));
        if (r < a.rows) {
            store8(a.q + r * a.cols + c0 + cx, v, a.cols - c0 - cx, a.cols % PART == 0);
        }
    }
}

/* Scales of the tile's columns, from c0 on, each over the tile's rows: written down, and their
 * inverses left in `inverse` for the whole block. `part`: shared memory, a row a warp. */
template <typename T>
__device__ static inline void scale_columns(const mf_kernel_quantise &a,
                                            const eight<T> (&tile)[PART], int64_t c0, int cx,
                                            float (*part)[TILE], float *inverse) {
    float amax[PART];
    column_amax<T>(amax, tile);
    const bool upper = threadIdx.x & 16; /* of a warp's two rows of parts */
#pragma unroll
    for (int j = 0; j < PART / 2; j++) {
        const float away = upper ? amax[j] : amax[PART / 2 + j];
        amax[j] =
            fmaxf(upper ? amax[PART / 2 + j] : amax[j], __shfl_xor_sync(0xffffffffu, away, 16));
    }
    *reinterpret_cast<float4 *>(&part[threadIdx.x / 32][cx + (upper ? PART / 2 : 0)]) =
        make_float4(amax[0], amax[1], amax[2], amax[3]);
    __syncthreads();
    if (threadIdx.x < TILE) {
        float highest = 0.0f;
#pragma unroll
        for (int w = 0; w < THREADS / 32; w++) {
            highest = fmaxf(highest, part[w][threadIdx.x]);
        }
        const float scale = scale_of(highest, a.pow2);
        inverse[threadIdx.x] = 1.0f / scale;
        if (c0 + threadIdx.x < a.cols) {
            a.scale_t[(c0 + threadIdx.x) * a.scale_t_i + blockIdx.y * a.scale_t_j] = scale;
        }
    }
    __syncthreads();
}

/* Quantises the thread's columns into `turned`, shared memory of one tile by columns; by each
 * column's own inverse scale, or by `tile_inverse`. 8-byte pieces of a row change places by
 * column / 8, so that the 16 threads that write side by side meet different banks. */
template <typename T, int BLOCK>
__device__ static inline void turn_tile(const eight<T> (&tile)[PART], int cx, int ry,
                                        const float *column_inverse, float tile_inverse,
                                        uint8_t *turned) {
#pragma unroll
    for (int j = 0; j < PART; j += 2) { /* two columns: one word of a bf16 vector */
        float x[PART], y[PART];
#pragma unroll
        for (int i = 0; i < PART; i++) {
            float row[PART];
            widen8<T>(row, tile[i]);
            x[i] = row[j];
            y[i] = row[j + 1];
        }
        float f = BLOCK == MF_QUANT_1X128 ? column_inverse[cx + j] : tile_inverse;
        float g = BLOCK == MF_QUANT_1X128 ? column_inverse[cx + j + 1] : tile_inverse;
        uint8_t *to = turned + (cx + j) * TILE + (ry ^ cx);
        *reinterpret_cast<uint2 *>(to) =
            make_uint2(quantise4(x[0] * f, x[1] * f, x[2] * f, x[3] * f),
                       quantise4(x[4] * f, x[5] * f, x[6] * f, x[7] * f));
        *reinterpret_cast<uint2 *>(to + TILE) =
            make_uint2(quantise4(y[0] * g, y[1] * g, y[2] * g, y[3] * g),
                       quantise4(y[4] * g, y[5] * g, y[6] * g, y[7] * g));
    }
    __syncthreads();
}

/* Writes `turned` into rows c0 .. of the transpose, 16 bytes a thread at a time. */
__device__ static inline void put_columns(const mf_kernel_quantise &a, const uint8_t *turned,
                                          int64_t r0, int64_t c0) {
    bool whole = a.rows % 16 == 0 && r0 + TILE <= a.rows;
    for (int i = (int)threadIdx.x; i < TILE * (TILE / 16); i += THREADS) {
        int c = i / (TILE / 16), r = i % (TILE / 16) * 16;
        if (c0 + c >= a.cols) {
            continue;
        }
        int turn = c / PART * PART; /* pieces r, r + 8 lie at (r, r + 8) ^ turn */
        uint4 v = *reinterpret_cast<const uint4 *>(turned + c * TILE + (r ^ (turn & ~15)));
        if (turn & 8) {
            v = make_uint4(v.z, v.w, v.x, v.y);
        }
        uint8_t *to = a.qt + (c0 + c) * a.rows + r0 + r;
        if (whole) {
            *reinterpret_cast<uint4 *>(to) = v;
        } else {
            const unsigned w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int k = 0; k < 16; k++) {
                if (r0 + r + k < a.rows) {
                    to[k] = (uint8_t)(w[k / 4] >> (k % 4 * 8));
                }
            }
        }
    }
}

/* Thread t: rows t / 16 * 8 .., columns t % 16 * 8 .. of the tile. */
template <typename T, int BLOCK, bool TRANSPOSE>
__global__ void __launch_bounds__(THREADS, sizeof(T) == 4 ? 2
                                           : TRANSPOSE    ? 3
                                                          : 4)
    quantise_tile(mf_kernel_quantise a, bool fast, int highs) {
    mf_await();
    __shared__ __align__(16) float part[THREADS / 32][TILE];
    __shared__ float column_inverse[TILE];
    __shared__ __align__(16) uint8_t turned[TRANSPOSE ? TILE * TILE : 16];
    int cx = (int)threadIdx.x % 16 * PART, ry = (int)threadIdx.x / 16 * PART;
    int64_t r0 = (int64_t)blockIdx.y * TILE, c0 = (int64_t)blockIdx.x * TILE;
    eight<T> tile[PART];
    float tile_inverse = 1.0f;
#pragma unroll
    for (int i = 0; i < PART; i++) {
        int64_t r = r0 + ry + i;
        if (r < a.rows) {
            tile[i] = load8<T>((const T *)a.x + r * a.cols, c0 + cx, a.cols, fast);
        } else {
            memset(&tile[i], 0, sizeof tile[i]);
        }
    }
    if (BLOCK != MF_QUANT_1X128) {
        tile_inverse = one_scale<T, BLOCK>(a, tile, highs, column_inverse);
    }
    if (a.q) {
        put_rows<T, BLOCK>(a, tile, r0, ry, c0, cx, tile_inverse);
    }
    if constexpr (TRANSPOSE) {
        if (BLOCK == MF_QUANT_1X128) {
            scale_columns<T>(a, tile, c0, cx, part, column_inverse);
        }
        turn_tile<T, BLOCK>(tile, cx, ry, column_inverse, tile_inverse, turned);
        put_columns(a, turned, r0, c0);
    }
}

/* Highest magnitude of a stretch for each block. */
template <typename T, int N> __global__ void amax_blocks(const T *x, int64_t count, float *out) {
    mf_await();
    __shared__ float highs[32];
    float high = 0.0f;
    int64_t step = (int64_t)gridDim.x * blockDim.x * N;
#pragma unroll 4
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count; i += step) {
        float v[N];
        mf_load(v, x + i);
#pragma unroll
        for (int k = 0; k < N; k++) {
            high = fmaxf(high, fabsf(v[k]));
        }
    }
    high = mf_warp_max(high);
    if (threadIdx.x % 32 == 0) {
        highs[threadIdx.x / 32] = high;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < (int)blockDim.x / 32; w++) {
            high = fmaxf(high, highs[w]);
        }
        out[blockIdx.x] = high;
    }
}

/* *highs: values that lie in the workspace then. */
template <typename T, int N>
static mf_status run_amax(const mf_kernel_quantise *a, int *highs, cudaStream_t stream, mf_err *e) {
    const int64_t count = a->rows * a->cols, blocks = mf_ceil_div(count, 256 * 4 * N);
    *highs = (int)(blocks < AMAX_BLOCKS ? blocks : AMAX_BLOCKS);
    MF_LAUNCH((amax_blocks<T, N>), (unsigned)*highs, 256, 0, stream, e, (const T *)a->x, count,
              (float *)a->workspace);
    return MF_OK;
}

template <typename T, int BLOCK>
static mf_status run_tiles(const mf_kernel_quantise *a, int highs, cudaStream_t stream, mf_err *e) {
    bool fast = mf_vectors(a->x, a->dtype, a->cols, a->cols);
    int64_t row_tiles = mf_ceil_div(a->rows, TILE);
    if (row_tiles > 65535) {
        return mf_err_set(e, MF_INPUT, "quantise: %lld rows are more than %d", (long long)a->rows,
                          65535 * TILE);
    }
    dim3 grid((unsigned)mf_ceil_div(a->cols, TILE), (unsigned)row_tiles);
    if (a->qt) {
        MF_LAUNCH((quantise_tile<T, BLOCK, true>), grid, THREADS, 0, stream, e, *a, fast, highs);
    } else {
        MF_LAUNCH((quantise_tile<T, BLOCK, false>), grid, THREADS, 0, stream, e, *a, fast, highs);
    }
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

template <typename T>
static mf_status run_block(const mf_kernel_quantise *a, int highs, cudaStream_t stream, mf_err *e) {
    switch (a->block) {
    case MF_QUANT_TENSOR:
        return run_tiles<T, MF_QUANT_TENSOR>(a, highs, stream, e);
    case MF_QUANT_1X128:
        return run_tiles<T, MF_QUANT_1X128>(a, highs, stream, e);
    case MF_QUANT_128X128:
        return run_tiles<T, MF_QUANT_128X128>(a, highs, stream, e);
    }
    return mf_err_set(e, MF_INPUT, "quantise: unknown block kind %d", (int)a->block);
}

extern "C" mf_status mf_kernel_quantise_e4m3_cuda(const mf_kernel_quantise *a, void *stream,
                                                  mf_err *e) {
    cudaStream_t s = (cudaStream_t)stream;
    if (a->rows * a->cols == 0) {
        return MF_OK;
    }
    int highs = 0;
    if (a->block == MF_QUANT_TENSOR) {
        bool fast = mf_vectors(a->x, a->dtype, a->rows * a->cols, 0);
        mf_status status = MF_KERNEL_PICK(run_amax, a->dtype, fast, a, &highs, s, e);
        if (status != MF_OK) {
            return status;
        }
    }
    return a->dtype == MF_KERNEL_BF16 ? run_block<mf_bf16>(a, highs, s, e)
                                      : run_block<float>(a, highs, s, e);
}
