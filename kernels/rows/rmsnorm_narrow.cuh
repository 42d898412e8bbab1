/* rmsnorm_narrow.cuh - backward of the norm over narrow groups (QK-norm): a group is at most a
 * vector a thread of one warp.
 *
 * A team of `lanes` threads takes NARROW_UNITS groups at once and has fetched the next ones before
 * it uses these; a thread meets the same columns in every group, so its part of dweight is one
 * vector.
 */
#ifndef MF_KERNELS_RMSNORM_NARROW_CUH
#define MF_KERNELS_RMSNORM_NARROW_CUH

#include "kernels/device/cuda_common.cuh"
#include "kernels/rows/norm_units.cuh"
#include "kernels/rows/rmsnorm.h"

#define NARROW_THREADS 320
#define NARROW_BLOCKS 2 /* on a multiprocessor */
#define NARROW_UNITS 2

/* Sums of the threads' parts of dweight, as its partial row. Thread i of a team holds columns from
 * i * N on. */
template <int N>
__device__ static void put_narrow_partial(float (&dw)[N], int lanes, int cols, float *partial) {
    __shared__ float smem[NARROW_THREADS / 32][32 * N];
    for (int o = 16; o >= lanes; o /= 2) { /* the teams of a warp */
#pragma unroll
        for (int i = 0; i < N; i++) {
            dw[i] += __shfl_xor_sync(0xffffffffu, dw[i], o);
        }
    }
    if ((int)threadIdx.x % 32 < lanes) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            smem[threadIdx.x / 32][threadIdx.x % 32 * N + i] = dw[i];
        }
    }
    __syncthreads();
    for (int c = (int)threadIdx.x; c < cols; c += NARROW_THREADS) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < NARROW_THREADS / 32; w++) {
            sum += smem[w][c];
        }
        partial[c] = sum;
    }
}

/* NARROW_UNITS groups of a team: at < 0 where there is none. */
template <typename T, int N, bool ADD> struct narrow_units {
    mf_raw<T, N> x[NARROW_UNITS], dy[NARROW_UNITS], add[ADD ? NARROW_UNITS : 1];
    float rstd[NARROW_UNITS];
    int64_t at[NARROW_UNITS]; /* in x and dx */
};

template <typename T, int N, bool ADD>
__device__ static inline void fetch_narrow(narrow_units<T, N, ADD> &s,
                                           const mf_kernel_rmsnorm_grad &a, unsigned first,
                                           unsigned teams, unsigned units, int c) {
    const unsigned groups = (unsigned)a.groups;
    const int cols = (int)a.cols;
#pragma unroll
    for (int u = 0; u < NARROW_UNITS; u++) {
        const unsigned unit = first + (unsigned)u * teams;
        const unsigned row = unit / groups, g = unit % groups;
        s.at[u] = c < cols && unit < units ? row * a.x_stride + g * cols + c : -1;
        if (s.at[u] >= 0) {
            s.x[u] = mf_fetch_once<T, N>((const T *)a.x + s.at[u]);
            s.dy[u] = mf_fetch_once<T, N>((const T *)a.dy + row * a.y_stride + g * cols + c);
            if constexpr (ADD) {
                s.add[u] = mf_fetch_once<T, N>((const T *)a.dx_add + s.at[u]);
            }
            s.rstd[u] = a.rstd[unit];
        }
    }
}

/* lanes: a power of two up to 32, lanes * N >= cols. */
template <typename T, int N, bool ADD>
__global__ void __launch_bounds__(NARROW_THREADS, NARROW_BLOCKS)
    norm_backward_narrow(mf_kernel_rmsnorm_grad a, int lanes, float *partial) {
    mf_await();
    const int cols = (int)a.cols, c = (int)threadIdx.x % lanes * N;
    const unsigned teams = gridDim.x * (unsigned)(NARROW_THREADS / lanes);
    const unsigned team = blockIdx.x * (unsigned)(NARROW_THREADS / lanes) + threadIdx.x / lanes;
    const unsigned units = (unsigned)(a.rows * a.groups);
    float w[N] = {}, dw[N] = {};
    if (c < cols) {
        mf_widen(w, fetch_weight<T, N>(a.weight, c));
#pragma unroll
        for (int i = 0; i < N; i++) {
            w[i] += a.plus_one ? 1.0f : 0.0f;
        }
    }
    /* All teams of a warp take as many turns, because of the sums. */
    const unsigned span = teams * NARROW_UNITS;
    narrow_units<T, N, ADD> next;
    fetch_narrow(next, a, team, teams, units, c);
    for (unsigned first = 0; first < units; first += span) {
        const narrow_units<T, N, ADD> s = next;
        fetch_narrow(next, a, first + span + team, teams, units, c);
        float dot[NARROW_UNITS];
#pragma unroll
        for (int u = 0; u < NARROW_UNITS; u++) {
            dot[u] = 0.0f;
            if (s.at[u] >= 0) {
                float vx[N], vy[N];
                mf_widen(vx, s.x[u]);
                mf_widen(vy, s.dy[u]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    const float product = vx[i] * vy[i];
                    dw[i] += product * s.rstd[u];
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
            if (s.at[u] >= 0) {
                const float f = dot[u] / (float)cols * s.rstd[u] * s.rstd[u];
                float vx[N], vy[N], more[N];
                mf_widen(vx, s.x[u]);
                mf_widen(vy, s.dy[u]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    vx[i] = s.rstd[u] * (vy[i] * w[i] - vx[i] * f);
                }
                if constexpr (ADD) {
                    mf_widen(more, s.add[u]);
#pragma unroll
                    for (int i = 0; i < N; i++) {
                        vx[i] += more[i];
                    }
                }
                mf_store_once((T *)a.dx + s.at[u], vx);
            }
        }
    }
    if (partial) {
        put_narrow_partial<N>(dw, lanes, cols, partial + (int64_t)blockIdx.x * cols);
    }
}

#endif
