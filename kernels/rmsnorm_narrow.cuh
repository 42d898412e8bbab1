/* rmsnorm_narrow.cuh - backward of the norm over narrow groups (QK-norm): a group is at most a
 * vector a thread of one warp.
 *
 * A team of `lanes` threads takes UNITS groups at once, all of them fetched before the first is
 * used; a thread meets the same columns in every group, so its share of dweight is one vector.
 */
#ifndef MF_KERNELS_RMSNORM_NARROW_CUH
#define MF_KERNELS_RMSNORM_NARROW_CUH

#include "kernels/cuda_common.cuh"
#include "kernels/rmsnorm.h"

#define NARROW_THREADS 512
#define NARROW_UNITS 4
#define NARROW_BLOCKS                                                                              \
    1 /* resident on a multiprocessor: each leaves a row of dweight to be added                    \
       */

/* Sums of the block's shares of dweight, as its partial row. Thread i of a team holds columns from
 * i * N on. */
template <int N>
__device__ static void put_narrow_partial(const float (&dw)[N], int lanes, int cols,
                                          float *partial) {
    __shared__ float share[NARROW_THREADS * N];
    const int teams = NARROW_THREADS / lanes, c0 = (int)threadIdx.x % lanes * N;
#pragma unroll
    for (int i = 0; i < N; i++) {
        share[(int)threadIdx.x / lanes * lanes * N + c0 + i] = dw[i];
    }
    __syncthreads();
    for (int c = (int)threadIdx.x; c < cols; c += NARROW_THREADS) {
        float sum = 0.0f;
        for (int t = 0; t < teams; t++) {
            sum += share[t * lanes * N + c];
        }
        partial[c] = sum;
    }
}

/* lanes: a power of two up to 32, lanes * N >= cols. */
template <typename T, int N, bool ADD>
__global__ void __launch_bounds__(NARROW_THREADS, NARROW_BLOCKS)
    norm_backward_narrow(mf_kernel_rmsnorm_grad a, int lanes, float *partial) {
    mf_await();
    const int cols = (int)a.cols, c = (int)threadIdx.x % lanes * N;
    const int teams = (int)gridDim.x * (NARROW_THREADS / lanes);
    const int team = (int)blockIdx.x * (NARROW_THREADS / lanes) + (int)threadIdx.x / lanes;
    const unsigned units = (unsigned)(a.rows * a.groups), groups = (unsigned)a.groups;
    const bool has = c < cols;
    float w[N] = {}, dw[N] = {};
    if (has) {
        mf_load(w, (const T *)a.weight + c);
    }
    /* All teams of a warp take as many turns, because of the sums. */
    const unsigned span = (unsigned)teams * NARROW_UNITS;
    for (unsigned first = 0; first < units; first += span) {
        mf_raw<T, N> x[NARROW_UNITS], dy[NARROW_UNITS], add[NARROW_UNITS];
        float rstd[NARROW_UNITS], dot[NARROW_UNITS];
        int64_t at[NARROW_UNITS];
#pragma unroll
        for (int u = 0; u < NARROW_UNITS; u++) {
            const unsigned unit = first + (unsigned)u * (unsigned)teams + (unsigned)team;
            const unsigned row = unit / groups, g = unit % groups;
            at[u] = has && unit < units ? row * a.x_stride + g * cols + c : -1;
            if (at[u] >= 0) {
                x[u] = mf_fetch_once<T, N>((const T *)a.x + at[u]);
                dy[u] = mf_fetch_once<T, N>((const T *)a.dy + row * a.y_stride + g * cols + c);
                if (ADD) {
                    add[u] = mf_fetch_once<T, N>((const T *)a.dx_add + at[u]);
                }
                rstd[u] = a.rstd[unit];
            }
        }
#pragma unroll
        for (int u = 0; u < NARROW_UNITS; u++) {
            dot[u] = 0.0f;
            if (at[u] >= 0) {
                float vx[N], vy[N];
                mf_widen(vx, x[u]);
                mf_widen(vy, dy[u]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    const float product = vx[i] * vy[i];
                    dw[i] += product * rstd[u];
                    dot[u] += product * w[i];
                }
            }
        }
        for (int o = lanes / 2; o > 0; o /= 2) {
#pragma unroll
            for (int u = 0; u < NARROW_UNITS; u++) {
                dot[u] += __shfl_xor_sync(0xffffffffu, dot[u], o);
            }
        }
#pragma unroll
        for (int u = 0; u < NARROW_UNITS; u++) {
            if (at[u] >= 0) {
                const float f = dot[u] / (float)cols * rstd[u] * rstd[u];
                float vx[N], vy[N], more[N];
                mf_widen(vx, x[u]);
                mf_widen(vy, dy[u]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    vx[i] = rstd[u] * (vy[i] * w[i] - vx[i] * f);
                }
                if (ADD) {
                    mf_widen(more, add[u]);
#pragma unroll
                    for (int i = 0; i < N; i++) {
                        vx[i] += more[i];
                    }
                }
                mf_store((T *)a.dx + at[u], vx);
            }
        }
    }
    if (partial) {
        put_narrow_partial<N>(dw, lanes, cols, partial + (int64_t)blockIdx.x * cols);
    }
}

#endif
