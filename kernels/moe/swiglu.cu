/* swiglu.cu - CUDA kernels of the gated activation. A few warps share a row; each thread takes
 * 16-byte vectors of gate and up, two at a time.
 */
#include "kernels/moe/swiglu.h"
#include "kernels/moe/swiglu_value.cuh"

#define THREADS 256

/* Group of a row: the last one whose offset is not beyond it. */
__device__ static int64_t group_of(const mf_kernel_swiglu_shape &s, int64_t row) {
    int64_t low = 0, high = s.groups - 1;
    while (low < high) {
        int64_t mid = (low + high + 1) / 2;
        if (s.offsets[mid] <= row) {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    return low;
}

typedef struct gated {
    float y, d_gate, d_up;
} gated;

/* The variants of a kernel, by what it computes. */
typedef enum way { SILU, CLAMPED, PROB_IN } way;

template <typename T, way WAY>
__device__ static gated activate(const mf_kernel_swiglu_shape &s, float gate, float up) {
    gated out;
    if (WAY != CLAMPED) {
        float sig = mf_sigmoid<T>(gate);
        out.d_up = gate * sig;
        out.y = mf_swiglu_value<T>(gate, up);
        out.d_gate = sig * (1.0f + gate * (1.0f - sig)) * up;
        return out;
    }
    float g = fminf(gate, s.limit), u = fminf(fmaxf(up, -s.limit), s.limit);
    float sig = mf_sigmoid<T>(s.alpha * g);
    out.y = g * sig * (u + 1.0f);
    out.d_gate = gate <= s.limit ? sig * (1.0f + s.alpha * g * (1.0f - sig)) * (u + 1.0f) : 0.0f;
    out.d_up = up >= -s.limit && up <= s.limit ? g * sig : 0.0f;
    return out;
}

/* Adds columns [c, c + N) of an expert's bias to those of gate and up. */
template <typename T, int N>
__device__ static inline void add_biases(float (&g)[N], float (&u)[N], const T *bias, int64_t cols,
                                         int64_t c) {
    float bg[N], bu[N];
    mf_load(bg, bias + c);
    mf_load(bu, bias + cols + c);
#pragma unroll
    for (int i = 0; i < N; i++) {
        g[i] += bg[i];
        u[i] += bu[i];
    }
}

template <typename T, int N, way WAY>
__global__ void swiglu_forward(mf_kernel_swiglu a, int lanes) {
    mf_await();
    const mf_kernel_swiglu_shape &s = a.shape;
    int64_t r = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    if (r >= mf_rows(s.rows, s.rows_dev)) {
        return;
    }
    const T *gate = (const T *)a.gate_up + r * 2 * s.cols, *up = gate + s.cols;
    const T *bias = s.bias ? (const T *)s.bias + group_of(s, r) * 2 * s.cols : nullptr;
    T *y = (T *)a.y + r * s.cols;
    float prob = s.prob ? s.prob[r] : 1.0f;
    int64_t step = (int64_t)lanes * N;
#pragma unroll 2
    for (int64_t c = (threadIdx.x % lanes) * N; c < s.cols; c += step) {
        float g[N], u[N];
        mf_load(g, gate + c);
        mf_load(u, up + c);
        if (bias) {
            add_biases<T, N>(g, u, bias, s.cols, c);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            g[i] = WAY == PROB_IN ? activate<T, WAY>(s, prob * g[i], prob * u[i]).y
                                  : activate<T, WAY>(s, g[i], u[i]).y * prob;
        }
        mf_store(y + c, g);
    }
}

template <typename T, int N, way WAY>
__global__ void swiglu_backward(mf_kernel_swiglu_grad a, int lanes) {
    mf_await();
    __shared__ float sums[THREADS / 32];
    const mf_kernel_swiglu_shape &s = a.shape;
    int64_t r = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    bool live = r < mf_rows(s.rows, s.rows_dev);
    const T *gate = (const T *)a.gate_up + r * 2 * s.cols, *up = gate + s.cols;
    const T *bias = live && s.bias ? (const T *)s.bias + group_of(s, r) * 2 * s.cols : nullptr;
    const T *dy = (const T *)a.dy + r * s.cols;
    T *dgate = (T *)a.dgate_up + r * 2 * s.cols, *dup = dgate + s.cols;
    float prob = live && s.prob ? s.prob[r] : 1.0f, dprob = 0.0f;
    int64_t step = (int64_t)lanes * N;
#pragma unroll 2
    for (int64_t c = (threadIdx.x % lanes) * N; live && c < s.cols; c += step) {
        float g[N], u[N], d[N];
        mf_load(g, gate + c);
        mf_load(u, up + c);
        mf_load(d, dy + c);
        if (bias) {
            add_biases<T, N>(g, u, bias, s.cols, c);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float in = WAY == PROB_IN ? prob : 1.0f;
            gated x = activate<T, WAY>(s, in * g[i], in * u[i]);
            dprob += d[i] * (WAY == PROB_IN ? x.d_gate * g[i] + x.d_up * u[i] : x.y);
            g[i] = d[i] * prob * x.d_gate;
            u[i] = d[i] * prob * x.d_up;
        }
        mf_store(dgate + c, g);
        mf_store(dup + c, u);
    }
    if (!a.dprob) {
        return;
    }
    dprob = mf_warp_sum(dprob);
    int warp = threadIdx.x / 32, warps = lanes / 32;
    if (threadIdx.x % 32 == 0) {
        sums[warp] = dprob;
    }
    __syncthreads();
    if (live && threadIdx.x % lanes == 0) {
        float sum = 0.0f;
        for (int w = 0; w < warps; w++) {
            sum += sums[warp + w];
        }
        a.dprob[r] = sum;
    }
}

template <typename T, int N>
static mf_status run_forward(const mf_kernel_swiglu *a, cudaStream_t stream, mf_err *e) {
    int lanes = mf_row_threads(mf_ceil_div(a->shape.cols, N), 2);
    unsigned blocks = (unsigned)mf_ceil_div(a->shape.rows, THREADS / lanes);
    if (a->shape.kind == MF_SWIGLU_CLAMPED) {
        MF_LAUNCH((swiglu_forward<T, N, CLAMPED>), blocks, THREADS, 0, stream, e, *a, lanes);
    } else if (a->shape.prob_in) {
        MF_LAUNCH((swiglu_forward<T, N, PROB_IN>), blocks, THREADS, 0, stream, e, *a, lanes);
    } else {
        MF_LAUNCH((swiglu_forward<T, N, SILU>), blocks, THREADS, 0, stream, e, *a, lanes);
    }
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

template <typename T, int N>
static mf_status run_backward(const mf_kernel_swiglu_grad *a, cudaStream_t stream, mf_err *e) {
    int lanes = mf_row_threads(mf_ceil_div(a->shape.cols, N), 2);
    unsigned blocks = (unsigned)mf_ceil_div(a->shape.rows, THREADS / lanes);
    if (a->shape.kind == MF_SWIGLU_CLAMPED) {
        MF_LAUNCH((swiglu_backward<T, N, CLAMPED>), blocks, THREADS, 0, stream, e, *a, lanes);
    } else if (a->shape.prob_in) {
        MF_LAUNCH((swiglu_backward<T, N, PROB_IN>), blocks, THREADS, 0, stream, e, *a, lanes);
    } else {
        MF_LAUNCH((swiglu_backward<T, N, SILU>), blocks, THREADS, 0, stream, e, *a, lanes);
    }
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

static bool shape_is_fast(const mf_kernel_swiglu_shape *s) {
    return mf_vectors(s->bias, s->dtype, s->cols, s->cols);
}

extern "C" mf_status mf_kernel_swiglu_forward_cuda(const mf_kernel_swiglu *a, void *stream,
                                                   mf_err *e) {
    if (a->shape.rows * a->shape.cols == 0) {
        return MF_OK;
    }
    bool fast = shape_is_fast(&a->shape) && mf_aligned(a->gate_up) && mf_aligned(a->y);
    return MF_KERNEL_PICK(run_forward, a->shape.dtype, fast, a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_swiglu_backward_cuda(const mf_kernel_swiglu_grad *a, void *stream,
                                                    mf_err *e) {
    if (a->shape.rows * a->shape.cols == 0) {
        return MF_OK;
    }
    bool fast = shape_is_fast(&a->shape) && mf_aligned(a->gate_up) && mf_aligned(a->dy) &&
                mf_aligned(a->dgate_up);
    return MF_KERNEL_PICK(run_backward, a->shape.dtype, fast, a, (cudaStream_t)stream, e);
}
