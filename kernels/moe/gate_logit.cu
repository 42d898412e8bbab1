/* gate_logit.cu - CUDA kernels of the gate's own product. Backward as norm_split.cu's: a thread
 * keeps its columns' sums of dweight over many rows, a team leaves one partial row, and a second
 * kernel adds those up in a fixed order.
 */
#include "kernels/device/cuda_common.cuh"
#include "kernels/device/row_sums.cuh"
#include "kernels/moe/gate.h"

#define THREADS 256
#define BLOCKS 2     /* on a multiprocessor: few partial rows */
#define FLIGHT 8     /* rows that a thread has under way, */
#define ADD_FLIGHT 4 /* where something is added */

template <typename T, int N> __global__ void gate_logits(mf_kernel_gate_logit a, int lanes) {
    mf_await();
    __shared__ float sums[THREADS / 32];
    const int64_t r = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    const bool live = r < a.rows;
    float dot = 0.0f;
#pragma unroll 4
    for (int64_t c = (threadIdx.x % lanes) * N; live && c < a.cols; c += (int64_t)lanes * N) {
        float x[N], w[N];
        mf_load(x, (const T *)a.x + r * a.cols + c);
        mf_load(w, (const T *)a.weight + c);
#pragma unroll
        for (int i = 0; i < N; i++) {
            dot += x[i] * w[i];
        }
    }
    dot = mf_warp_sum(dot);
    const int warp = (int)threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) {
        sums[warp] = dot;
    }
    __syncthreads();
    if (live && threadIdx.x % lanes == 0) {
        float sum = 0.0f;
        for (int w = 0; w < lanes / 32; w++) {
            sum += sums[warp + w];
        }
        a.gate[r] = sum;
    }
}

/* Team t of all teams takes rows t, t + teams, ...; blockIdx.y: the team's stretch of columns. */
template <typename T, int N, int K, bool ADD>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    gate_input_backward(mf_kernel_gate_input_grad a, int lanes, float *partial) {
    mf_await();
    const int64_t c = ((int64_t)blockIdx.y * lanes + threadIdx.x % lanes) * N;
    const int64_t team = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    const int64_t teams = (int64_t)gridDim.x * (THREADS / lanes);
    float w[N], dw[N] = {};
    if (c >= a.cols) {
        return;
    }
    mf_load(w, (const T *)a.weight + c);
    for (int64_t r0 = team; r0 < a.rows; r0 += K * teams) {
        mf_raw<T, N> x[K], more[ADD ? K : 1];
        float dgate[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int64_t r = r0 + k * teams;
            if (r < a.rows) {
                x[k] = mf_fetch_once<T, N>((const T *)a.x + r * a.cols + c);
                if constexpr (ADD) {
                    more[k] = mf_fetch_once<T, N>((const T *)a.add + r * a.cols + c);
                }
                dgate[k] = a.dgate[r];
            }
        }
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int64_t r = r0 + k * teams;
            if (r < a.rows) {
                float v[N];
                mf_widen(v, x[k]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    dw[i] += dgate[k] * v[i];
                    v[i] = dgate[k] * w[i];
                }
                if constexpr (ADD) {
                    float other[N];
                    mf_widen(other, more[k]);
#pragma unroll
                    for (int i = 0; i < N; i++) {
                        v[i] = mf_round_as((const T *)nullptr, v[i]) + other[i];
                    }
                }
                mf_store((T *)a.dx + r * a.cols + c, v);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        partial[team * a.cols + c + i] = dw[i];
    }
}

template <typename T, int N>
static mf_status run_logits(const mf_kernel_gate_logit *a, cudaStream_t stream, mf_err *e) {
    const int lanes = mf_row_threads(mf_ceil_div(a->cols, N), 4);
    const unsigned blocks = (unsigned)mf_ceil_div(a->rows, THREADS / lanes);
    MF_LAUNCH((gate_logits<T, N>), blocks, THREADS, 0, stream, e, *a, lanes);
    return MF_OK;
}

template <typename T, int N>
static mf_status run_backward(const mf_kernel_gate_input_grad *a, cudaStream_t stream, mf_err *e) {
    const int64_t vectors = mf_ceil_div(a->cols, N);
    const int lanes = vectors >= THREADS ? THREADS : mf_pow2_up(vectors < 32 ? 32 : vectors);
    const int per_block = THREADS / lanes;
    const int64_t across = mf_ceil_div(vectors, lanes), rows = mf_ceil_div(a->rows, per_block);
    int device, sms;
    MF_CUDA_TRY(cudaGetDevice(&device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), e);
    int64_t most = (int64_t)BLOCKS * sms / across;
    most = most < MF_GATE_TEAMS / per_block ? most : MF_GATE_TEAMS / per_block;
    most = most < 1 ? 1 : most;
    const dim3 grid((unsigned)(rows < most ? rows : most), (unsigned)across);
    float *partial = (float *)a->workspace;
    if (a->add) {
        MF_LAUNCH((gate_input_backward<T, N, ADD_FLIGHT, true>), grid, THREADS, 0, stream, e, *a,
                  lanes, partial);
    } else {
        MF_LAUNCH((gate_input_backward<T, N, FLIGHT, false>), grid, THREADS, 0, stream, e, *a,
                  lanes, partial);
    }
    return mf_add_partial_rows(partial, 1, (int)grid.x * per_block, a->cols, a->dweight, stream, e);
}

extern "C" mf_status mf_kernel_gate_logits_cuda(const mf_kernel_gate_logit *a, void *stream,
                                                mf_err *e) {
    if (a->rows * a->cols == 0) {
        return MF_OK;
    }
    const bool fast = mf_vectors(a->x, a->dtype, a->cols, a->cols) && mf_aligned(a->weight);
    return MF_KERNEL_PICK(run_logits, a->dtype, fast, a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_gate_input_backward_cuda(const mf_kernel_gate_input_grad *a,
                                                        void *stream, mf_err *e) {
    if (a->rows * a->cols == 0) {
        return MF_OK;
    }
    const bool fast = mf_vectors(a->x, a->dtype, a->cols, a->cols) && mf_aligned(a->weight) &&
                      mf_aligned(a->add) && mf_aligned(a->dx);
    return MF_KERNEL_PICK(run_backward, a->dtype, fast, a, (cudaStream_t)stream, e);
}
