/* bench_tokens.cuh - rows of bench_kernels: norms, rope, activations and what stands beside
 * attention. Tokens of one micro-batch to several, widths of shipped models. */
#ifndef MF_BENCH_TOKENS_CUH
#define MF_BENCH_TOKENS_CUH

#include "bench/gpu/bench_rows.cuh"
#include "kernels/attention/attention_merge.h"
#include "kernels/attention/mla.h"
#include "kernels/attention/rope.h"
#include "kernels/moe/gate.h"
#include "kernels/moe/swiglu.h"
#include "kernels/rows/bias.h"
#include "kernels/rows/layernorm.h"
#include "kernels/rows/norm_split.h"
#include "kernels/rows/rmsnorm.h"

struct size2 {
    int64_t rows, cols;
};

static void bench_norm(int64_t t, int64_t h) {
    const std::string shape = text("%lld x %lld", LL(t), LL(h));
    const double n = (double)t * (double)h;
    for (int residual = 0; residual < 2; residual++) {
        row(
            residual ? "rmsnorm forward + residual" : "rmsnorm forward", shape,
            (residual ? 8.0 : 4.0) * n,
            [=] {
                return mf_kernel_rmsnorm{B16,
                                         t,
                                         1,
                                         h,
                                         h,
                                         h,
                                         1e-6f,
                                         bf16(t * h),
                                         residual ? bf16(t * h) : nullptr,
                                         residual ? bf16(t * h) : nullptr,
                                         bf16(h),
                                         bf16(t * h),
                                         f32(t)};
            },
            mf_kernel_rmsnorm_forward_cuda);
        row(
            residual ? "rmsnorm backward + residual" : "rmsnorm backward", shape,
            (residual ? 8.0 : 6.0) * n,
            [=] {
                return mf_kernel_rmsnorm_grad{B16,
                                              t,
                                              1,
                                              h,
                                              h,
                                              h,
                                              bf16(t * h),
                                              bf16(h),
                                              f32(t),
                                              bf16(t * h),
                                              residual ? bf16(t * h) : nullptr,
                                              bf16(t * h),
                                              f32(h),
                                              bytes(mf_kernel_rmsnorm_workspace_B(h))};
            },
            mf_kernel_rmsnorm_backward_cuda);
    }
}

/* Queries inside a row of queries, keys and values. */
static void bench_qk_norm(int64_t t, int64_t heads, int64_t kv) {
    const int64_t d = 128, stride = (heads + 2 * kv) * d;
    const std::string shape = text("%lld x %lld x %lld", LL(t), LL(heads), LL(d));
    const double n = (double)(t * heads * d);
    row(
        "qk-norm forward (strided)", shape, 4.0 * n,
        [=] {
            return mf_kernel_rmsnorm{B16,           t,         heads,   d,
                                     stride,        heads * d, 1e-6f,   bf16(t * stride),
                                     nullptr,       nullptr,   bf16(d), bf16(t * heads * d),
                                     f32(t * heads)};
        },
        mf_kernel_rmsnorm_forward_cuda);
    row(
        "qk-norm backward (strided)", shape, 6.0 * n,
        [=] {
            return mf_kernel_rmsnorm_grad{B16,
                                          t,
                                          heads,
                                          d,
                                          stride,
                                          heads * d,
                                          bf16(t * stride),
                                          bf16(d),
                                          f32(t * heads),
                                          bf16(t * heads * d),
                                          nullptr,
                                          bf16(t * stride),
                                          f32(d),
                                          bytes(mf_kernel_rmsnorm_workspace_B(d))};
        },
        mf_kernel_rmsnorm_backward_cuda);
}

static void bench_layernorm(int64_t t, int64_t h) {
    const std::string shape = text("%lld x %lld", LL(t), LL(h));
    const double n = (double)t * (double)h;
    row(
        "layernorm forward", shape, 4.0 * n,
        [=] {
            return mf_kernel_layernorm{B16,         t,           h,           1e-5f,
                                       bf16(t * h), bf16(2 * h), bf16(t * h), f32(t)};
        },
        mf_kernel_layernorm_forward_cuda);
    row(
        "layernorm backward", shape, 6.0 * n,
        [=] {
            return mf_kernel_layernorm_grad{B16,
                                            t,
                                            h,
                                            bf16(t * h),
                                            bf16(2 * h),
                                            f32(t),
                                            bf16(t * h),
                                            nullptr,
                                            bf16(t * h),
                                            f32(2 * h),
                                            bytes(mf_kernel_layernorm_workspace_B(h))};
        },
        mf_kernel_layernorm_backward_cuda);
}

/* A norm whose columns are spread over ranks. */
static void bench_split_norm(int64_t t, int64_t cols) {
    const std::string shape = text("%lld x %lld", LL(t), LL(cols));
    const double n = (double)t * (double)cols;
    const auto make = [=] {
        mf_kernel_norm_split a = {};
        a.dtype = B16, a.rows = t, a.cols = cols, a.total = 4 * cols;
        a.x_stride = a.y_stride = cols, a.eps = 1e-6f, a.share = 0.25f;
        a.x = bf16(t * cols), a.weight = bf16(cols), a.sum = f32(t), a.y = bf16(t * cols);
        a.rstd = f32(t), a.dy = bf16(t * cols), a.dx = bf16(t * cols), a.dweight = f32(cols);
        a.workspace = bytes(mf_kernel_norm_split_workspace_B(cols));
        return a;
    };
    row("split norm, squares", shape, 2.0 * n, make, mf_kernel_norm_split_square_cuda);
    row("split norm forward", shape, 4.0 * n, make, mf_kernel_norm_split_forward_cuda);
    row("split norm, products", shape, 4.0 * n, make, mf_kernel_norm_split_dot_cuda);
    row("split norm backward", shape, 6.0 * n, make, mf_kernel_norm_split_backward_cuda);
}

static void bench_norms(void) {
    for (const size2 &s : {size2{65536, 2048},
                           {32768, 4096},
                           {18724, 7168},
                           {16384, 2048},
                           {4096, 4096},
                           {8192, 4096},
                           {4096, 7168},
                           {8192, 6144},
                           {8192, 2880}}) {
        bench_norm(s.rows, s.cols);
    }
    bench_layernorm(16384, 4096); /* Phi-3.5-MoE */
    bench_qk_norm(16384, 32, 4);
    bench_qk_norm(8192, 64, 4);
    bench_qk_norm(4096, 32, 8);
    bench_split_norm(32768, 4096);
    bench_split_norm(16384, 2048);
}

/* What memory gives to pieces of 128 bytes, 384 apart, that are read and written in place: the
 * limit of rope on 64 of 192 columns, with next to no arithmetic. */
struct pieces {
    uint4 *x;
    int64_t count;
};

static __global__ void touch_pieces(pieces a) {
    constexpr int EACH = 8;
    const int64_t first = ((int64_t)blockIdx.x * EACH * blockDim.x + threadIdx.x);
    uint4 v[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int64_t at = first + i * (int64_t)blockDim.x;
        if (at < a.count * 8) {
            v[i] = a.x[at / 8 * 24 + at % 8];
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int64_t at = first + i * (int64_t)blockDim.x;
        if (at < a.count * 8) {
            a.x[at / 8 * 24 + at % 8] = make_uint4(v[i].x ^ 1, v[i].y, v[i].z, v[i].w);
        }
    }
}

static mf_status touch_pieces_cuda(const pieces *a, void *stream, mf_err *e) {
    const unsigned blocks = (unsigned)((a->count * 8 + 1023) / 1024);
    touch_pieces<<<blocks, 128, 0, (cudaStream_t)stream>>>(*a);
    MF_CUDA_TRY(cudaPeekAtLastError(), e);
    return MF_OK;
}

/* `turn` of the last columns of every head; queries and keys side by side unless MLA. */
static void bench_rope_of(int64_t t, int64_t heads, int64_t d, int64_t turn, bool pairs) {
    const std::string shape = text("%lld x %lld x %lld", LL(t), LL(heads), LL(turn));
    const double moved_B = 4.0 * (double)(t * heads * turn);
    const char *name =
        turn == d ? pairs ? "rope, pairs" : "rope, halves" : "rope, pairs, 64 of 192";
    row(
        name, shape, moved_B,
        [=] {
            int32_t *position = ints(t, [](int64_t i) { return i % 4096; });
            char *x = (char *)bf16(t * heads * d);
            return mf_kernel_rope{
                B16,   t,     heads,    turn,           heads * d,      d,
                pairs, false, position, f32(4096 * 64), f32(4096 * 64), x + (d - turn) * 2};
        },
        mf_kernel_rope_apply_cuda);
    if (turn != d) {
        row(
            "rope's pieces, only read and written", shape, moved_B,
            [=] {
                return pieces{(uint4 *)((char *)bf16(t * heads * d) + 256), t * heads};
            },
            touch_pieces_cuda, true);
    }
}

static void bench_rope(void) {
    bench_rope_of(16384, 40, 128, 128, false);
    bench_rope_of(4096, 40, 128, 128, false);
    bench_rope_of(8192, 68, 128, 128, false);
    bench_rope_of(8192, 72, 64, 64, false);
    bench_rope_of(16384, 128, 192, 64, true);
    bench_rope_of(4096, 128, 192, 64, true);
    bench_rope_of(16384, 16, 192, 64, true);
}

static void bench_swiglu(int64_t rows, int64_t cols) {
    const std::string shape = text("%lld x %lld", LL(rows), LL(cols));
    const double n = (double)rows * (double)cols;
    const auto make = [=] {
        mf_kernel_swiglu_shape s = {};
        s.dtype = B16, s.kind = MF_SWIGLU_SILU, s.rows = rows, s.cols = cols, s.prob = f32(rows);
        return s;
    };
    row(
        "swiglu forward", shape, 6.0 * n,
        [=] {
            return mf_kernel_swiglu{make(), bf16(rows * 2 * cols), bf16(rows * cols)};
        },
        mf_kernel_swiglu_forward_cuda);
    row(
        "swiglu backward", shape, 10.0 * n,
        [=] {
            void *both = bf16(rows * 2 * cols);
            return mf_kernel_swiglu_grad{make(), both, bf16(rows * cols), both, f32(rows)};
        },
        mf_kernel_swiglu_backward_cuda);
}

static void bench_bias_and_gate(int64_t t, int64_t h) {
    const std::string shape = text("%lld x %lld", LL(t), LL(h));
    const double n = (double)t * (double)h;
    row(
        "bias", shape, 4.0 * n,
        [=] {
            return mf_kernel_bias{B16, t, h, h, nullptr, 1, nullptr, nullptr, bf16(h), bf16(t * h)};
        },
        mf_kernel_bias_add_cuda);
    row(
        "bias gradient", shape, 2.0 * n,
        [=] {
            return mf_kernel_bias_grad{B16,
                                       t,
                                       h,
                                       h,
                                       nullptr,
                                       1,
                                       nullptr,
                                       nullptr,
                                       nullptr,
                                       bf16(t * h),
                                       f32(h),
                                       nullptr,
                                       bytes(mf_kernel_bias_workspace_B(1, h))};
        },
        mf_kernel_bias_backward_cuda);
    row(
        "shared gate forward", shape, 6.0 * n,
        [=] { return mf_kernel_gate{B16, t, h, f32(t), bf16(t * h), bf16(t * h), bf16(t * h)}; },
        mf_kernel_gate_forward_cuda);
    row(
        "shared gate backward", shape, 6.0 * n,
        [=] {
            return mf_kernel_gate_grad{B16,         t,           h,           f32(t),
                                       bf16(t * h), bf16(t * h), bf16(t * h), f32(t)};
        },
        mf_kernel_gate_backward_cuda);
}

static void bench_activations(void) {
    for (const size2 &s : {size2{65536, 1408},
                           {65536, 2048},
                           {16384, 16384},
                           {32768, 768},
                           {4096, 14336},
                           {8192, 2048},
                           {16384, 2880}}) {
        bench_swiglu(s.rows, s.cols);
    }
    bench_bias_and_gate(32768, 5120);
    bench_bias_and_gate(8192, 2048);
}

static void bench_mla(int64_t t, int64_t heads) {
    const int64_t nope = 128, turn = 64, v = 128;
    const double n = (double)(t * heads);
    const std::string shape = text("%lld x %lld heads", LL(t), LL(heads));
    row(
        "mla pack", shape, 2.0 * n * (256 + 192 + 128),
        [=] {
            return mf_kernel_mla{B16,
                                 t,
                                 heads,
                                 nope,
                                 turn,
                                 v,
                                 576,
                                 bf16(t * heads * 256),
                                 bf16(t * 576),
                                 bf16(t * heads * 192),
                                 bf16(t * heads * v)};
        },
        mf_kernel_mla_pack_cuda);
    row(
        "mla unpack gradient", shape, 2.0 * n * (256 + 192 + 128),
        [=] {
            return mf_kernel_mla_grad{B16,
                                      t,
                                      heads,
                                      nope,
                                      turn,
                                      v,
                                      576,
                                      bf16(t * heads * 192),
                                      bf16(t * heads * v),
                                      bf16(t * heads * 256),
                                      bf16(t * 576)};
        },
        mf_kernel_mla_unpack_grad_cuda);
}

static void bench_merge(int64_t t, int64_t heads) {
    const int64_t d = 128;
    row(
        "attention merge", text("%lld x %lld x %lld", LL(t), LL(heads), LL(d)),
        10.0 * (double)(t * heads * d),
        [=] {
            return mf_kernel_attention_merge{t,
                                             heads,
                                             d,
                                             heads * d,
                                             d,
                                             MF_KERNEL_F32,
                                             f32(t * heads * d),
                                             f32(t * heads),
                                             B16,
                                             bf16(t * heads * d),
                                             f32(t * heads)};
        },
        mf_kernel_attention_merge_run_cuda);
}

static void bench_attention_sides(void) {
    bench_mla(8192, 128);
    bench_mla(4096, 128);
    bench_mla(16384, 16);
    bench_merge(16384, 32);
    bench_merge(4096, 32);
}

#endif
