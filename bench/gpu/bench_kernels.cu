/* Memory-bound kernels at training sizes: time, bytes that must move (each input read once, each
 * output written once), bandwidth, and its share of what a large copy on this GPU reaches (read
 * plus written). Median over runs of a few launches on random data, each far larger than the L2
 * cache. */
#include "kernels/adamw.h"
#include "kernels/bias.h"
#include "kernels/cast.h"
#include "kernels/cross_entropy.h"
#include "kernels/cuda_check.h"
#include "kernels/embedding.h"
#include "kernels/gate.h"
#include "kernels/grad_norm.h"
#include "kernels/mla.h"
#include "kernels/permute.h"
#include "kernels/quantise.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "kernels/swiglu.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include <cuda_runtime.h>

#define REPEATS 11
#define WARM_MS 40.0
#define LAUNCHES 5 /* one after the other between two events */

static double copy_Bps;
static int below;
static const char *only;
static std::vector<void *> held;

static void must(cudaError_t r) {
    if (r != cudaSuccess) {
        printf("FATAL %s\n", cudaGetErrorString(r));
        exit(1);
    }
}

static __global__ void fill_bits(unsigned *p, size_t words, unsigned seed, unsigned mask,
                                 unsigned base) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x) {
        unsigned x = (unsigned)i * 2654435761u + seed;
        x ^= x >> 16;
        x *= 0x85ebca6bu;
        x ^= x >> 13;
        x *= 0xc2b2ae35u;
        x ^= x >> 16;
        p[i] = (x & mask) | base;
    }
}

/* Random finite values of magnitude in [0.5, 2), either sign: float or bf16. */
static void *values(size_t n, mf_kernel_dtype d) {
    size_t words = (n * mf_kernel_dtype_B(d) + 3) / 4;
    void *p;
    must(cudaMalloc(&p, words * 4 + 16));
    bool half = d == MF_KERNEL_BF16;
    fill_bits<<<1024, 256>>>((unsigned *)p, words, (unsigned)held.size() * 77 + 1,
                             half ? 0x80ff80ffu : 0x80ffffffu, half ? 0x3f003f00u : 0x3f000000u);
    must(cudaGetLastError());
    held.push_back(p);
    return p;
}
static void *bf16(int64_t n) {
    return values((size_t)n, MF_KERNEL_BF16);
}
static float *f32(int64_t n) {
    return (float *)values((size_t)n, MF_KERNEL_F32);
}
static void *bytes(size_t n) {
    return values((n + 3) / 4, MF_KERNEL_F32);
}

template <typename F> static int32_t *ints(int64_t n, F f) {
    std::vector<int32_t> host((size_t)n);
    for (int64_t i = 0; i < n; i++) {
        host[(size_t)i] = (int32_t)f(i);
    }
    int32_t *p = (int32_t *)bytes((size_t)n * 4);
    must(cudaMemcpy(p, host.data(), (size_t)n * 4, cudaMemcpyHostToDevice));
    return p;
}

static void release(void) {
    for (void *p : held) {
        cudaFree(p);
    }
    held.clear();
}

static unsigned dice_state = 12345;
static int64_t dice(int64_t n) {
    dice_state = dice_state * 1664525u + 1013904223u;
    return (int64_t)(dice_state >> 8) % n;
}

static double median_s(const std::function<void()> &run) {
    cudaEvent_t a, b;
    must(cudaEventCreate(&a));
    must(cudaEventCreate(&b));
    std::vector<float> ms;
    double warm_ms = 0.0; /* clocks rise only under load */
    for (int i = 0; i < REPEATS; i++) {
        must(cudaEventRecord(a));
        for (int j = 0; j < LAUNCHES; j++) {
            run();
        }
        must(cudaEventRecord(b));
        must(cudaEventSynchronize(b));
        float t;
        must(cudaEventElapsedTime(&t, a, b));
        if (warm_ms < WARM_MS) {
            warm_ms += t;
            i = -1;
            continue;
        }
        ms.push_back(t);
    }
    std::sort(ms.begin(), ms.end());
    return ms[ms.size() / 2] * 1e-3 / LAUNCHES;
}

/* moved_B = 0: a kernel that is bound by latency; only its time is printed. */
template <typename A>
static void row(const char *name, const char *shape, double moved_B, const A &args,
                mf_status (*kernel)(const A *, void *, mf_err *)) {
    if (only && !strstr(name, only)) {
        return;
    }
    double t = median_s([&] {
        mf_err e;
        mf_err_clear(&e);
        if (kernel(&args, nullptr, &e) != MF_OK) {
            printf("FATAL %s: %s\n", name, e.text);
            exit(1);
        }
    });
    if (moved_B <= 0.0) {
        printf("| %-34s | %-30s | %8.1f |      - |    - |\n", name, shape, t * 1e6);
        return;
    }
    double share = moved_B / t / copy_Bps;
    below += share < 0.85;
    printf("| %-34s | %-30s | %8.1f | %6.0f | %3.0f%% |%s\n", name, shape, t * 1e6,
           moved_B / t * 1e-9, share * 100, share < 0.85 ? " below 85 %" : "");
    fflush(stdout);
}

static const mf_kernel_dtype B16 = MF_KERNEL_BF16;

static void bench_norms(void) {
    const int64_t t = 16384;
    for (int64_t h : {2048, 4096, 7168}) {
        char shape[64];
        const int64_t t = (16384 * 8192) / h;
        snprintf(shape, sizeof shape, "%lld x %lld", (long long)t, (long long)h);
        void *x = bf16(t * h), *add = bf16(t * h), *sum = bf16(t * h), *y = bf16(t * h);
        void *w = bf16(h), *work = bytes(mf_kernel_rmsnorm_workspace_B(h));
        float *rstd = f32(t), *dw = f32(h);
        mf_kernel_rmsnorm f = {B16, t, 1, h, h, h, 1e-6f, x, nullptr, nullptr, w, y, rstd};
        row("rmsnorm forward", shape, 4.0 * t * h, f, mf_kernel_rmsnorm_forward_cuda);
        f.add = add, f.sum = sum;
        row("rmsnorm forward + residual", shape, 8.0 * t * h, f, mf_kernel_rmsnorm_forward_cuda);
        mf_kernel_rmsnorm_grad b = {B16, t, 1, h, h, h, x, w, rstd, y, nullptr, sum, dw, work};
        row("rmsnorm backward", shape, 6.0 * t * h, b, mf_kernel_rmsnorm_backward_cuda);
        b.dx_add = add;
        row("rmsnorm backward + residual", shape, 8.0 * t * h, b, mf_kernel_rmsnorm_backward_cuda);
        release();
    }
    int64_t heads = 32, d = 128, stride = 40 * 128;
    void *x = bf16(t * stride), *y = bf16(t * heads * d), *w = bf16(d), *dx = bf16(t * stride);
    float *rstd = f32(t * heads), *dw = f32(d);
    void *work = bytes(mf_kernel_rmsnorm_workspace_B(d));
    mf_kernel_rmsnorm f = {B16, t,       heads,   d, stride, heads * d, 1e-6f,
                           x,   nullptr, nullptr, w, y,      rstd};
    row("qk-norm forward (strided)", "16384 x 32 x 128", 4.0 * t * heads * d, f,
        mf_kernel_rmsnorm_forward_cuda);
    mf_kernel_rmsnorm_grad b = {B16, t,    heads, d,       stride, heads * d, x,
                                w,   rstd, y,     nullptr, dx,     dw,        work};
    row("qk-norm backward (strided)", "16384 x 32 x 128", 6.0 * t * heads * d, b,
        mf_kernel_rmsnorm_backward_cuda);
    release();
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

static void bench_rope(void) {
    const int64_t t = 16384;
    int32_t *pos = ints(t, [](int64_t i) { return i % 4096; });
    float *c = f32(4096 * 64), *s = f32(4096 * 64);
    void *x = bf16(t * 40 * 128);
    mf_kernel_rope a = {B16, t, 40, 128, 40 * 128, 128, false, false, pos, c, s, x};
    row("rope, halves", "16384 x 40 x 128", 4.0 * t * 40 * 128, a, mf_kernel_rope_apply_cuda);
    void *q = bf16(t * 128 * 192);
    mf_kernel_rope b = {B16, t, 128, 64, 128 * 192, 192, true, false, pos, c, s, (char *)q + 256};
    row("rope, pairs, 64 of 192", "16384 x 128 x 64", 4.0 * t * 128 * 64, b,
        mf_kernel_rope_apply_cuda);
    const pieces bare = {(uint4 *)((char *)q + 256), t * 128};
    row("rope's pieces, only read and written", "16384 x 128 x 64", 4.0 * t * 128 * 64, bare,
        touch_pieces_cuda);
    release();
}

static void bench_activations(void) {
    for (int64_t cols : {1408, 2048, 16384}) {
        int64_t rows = cols > 10000 ? 16384 : 65536;
        char shape[64];
        snprintf(shape, sizeof shape, "%lld x %lld", (long long)rows, (long long)cols);
        void *gu = bf16(rows * 2 * cols), *y = bf16(rows * cols);
        float *prob = f32(rows), *dp = f32(rows);
        mf_kernel_swiglu_shape s = {};
        s.dtype = B16, s.kind = MF_SWIGLU_SILU, s.rows = rows, s.cols = cols, s.prob = prob;
        mf_kernel_swiglu f = {s, gu, y};
        row("swiglu forward", shape, 6.0 * rows * cols, f, mf_kernel_swiglu_forward_cuda);
        mf_kernel_swiglu_grad b = {s, gu, y, gu, dp};
        row("swiglu backward", shape, 10.0 * rows * cols, b, mf_kernel_swiglu_backward_cuda);
        release();
    }
    const int64_t t = 32768, h = 5120;
    void *x = bf16(t * h), *y = bf16(t * h), *z = bf16(t * h), *bias = bf16(h);
    float *g = f32(t), *db = f32(h);
    void *work = bytes(mf_kernel_bias_workspace_B(1, h));
    mf_kernel_bias ba = {B16, t, h, h, nullptr, 1, nullptr, nullptr, bias, x};
    row("bias", "32768 x 5120", 4.0 * t * h, ba, mf_kernel_bias_add_cuda);
    mf_kernel_bias_grad bg = {B16,     t,    h, h,  nullptr, 1,   nullptr,
                              nullptr, bias, x, db, nullptr, work};
    row("bias gradient", "32768 x 5120", 2.0 * t * h, bg, mf_kernel_bias_backward_cuda);
    mf_kernel_gate gf = {B16, t, h, g, x, y, z};
    row("shared gate forward", "32768 x 5120", 6.0 * t * h, gf, mf_kernel_gate_forward_cuda);
    mf_kernel_gate_grad gb = {B16, t, h, g, x, y, z, db};
    gb.dgate = f32(t);
    row("shared gate backward", "32768 x 5120", 6.0 * t * h, gb, mf_kernel_gate_backward_cuda);
    release();
}

static void bench_router(void) {
    const int64_t t = 8192, n = 256, k = 8;
    float *logits = f32(t * n), *scores = f32(t * n), *prob = f32(t * k), *bias = f32(n);
    float *count = f32(n), *sum = f32(n), *dl = f32(t * n), *lse = f32(t);
    int32_t *index = ints(t * k, [](int64_t i) { return (i * 31) % 256; });
    mf_kernel_router r = {t,
                          n,
                          k,
                          MF_ROUTE_SOFTMAX,
                          true,
                          1.0f,
                          1,
                          1,
                          MF_ROUTE_GROUP_MAX,
                          logits,
                          nullptr,
                          scores,
                          prob,
                          index,
                          lse};
    row("router forward, softmax", "8192 x 256, top 8", 0, r, mf_kernel_router_forward_cuda);
    r.score = MF_ROUTE_SIGMOID, r.bias = bias, r.groups = 8, r.group_topk = 4;
    r.group_score = MF_ROUTE_GROUP_TOP2;
    row("router forward, sigmoid, groups", "8192 x 256, top 8", 0, r,
        mf_kernel_router_forward_cuda);
    mf_kernel_router_stats st = {t,
                                 n,
                                 k,
                                 MF_ROUTE_SOFTMAX,
                                 1,
                                 nullptr,
                                 scores,
                                 index,
                                 count,
                                 sum,
                                 bytes(mf_kernel_router_workspace_B(1, n))};
    row("router statistics", "8192 x 256", 0, st, mf_kernel_router_stats_add_cuda);
    mf_kernel_router_grad b = {t,    n,     k,       MF_ROUTE_SOFTMAX, true, 1.0f, scores, index,
                               prob, count, nullptr, logits,           lse,  0.0f, dl};
    row("router backward", "8192 x 256", 0, b, mf_kernel_router_backward_cuda);
    release();
}

static void bench_permute(void) {
    const int64_t t = 8192, k = 8, n = 256, h = 7168, rows = t * k;
    int32_t *index = ints(rows, [=](int64_t i) { return (dice(n / k) * k + i % k) % n; });
    int32_t *counts = ints(n, [](int64_t) { return 0; });
    int32_t *off = ints(n + 1, [](int64_t) { return 0; });
    int32_t *row_of = ints(rows, [](int64_t) { return 0; });
    int32_t *slot_of = ints(rows, [](int64_t) { return 0; });
    int32_t *over = ints(1, [](int64_t) { return 0; });
    void *work = bytes(mf_kernel_permute_workspace_B(rows, n));
    mf_kernel_permute_map m = {t,   k,      n,       1,    rows, index, counts,
                               off, row_of, slot_of, over, work, 0};
    row("permute map", "8192 x 8 of 256", 0, m, mf_kernel_permute_map_build_cuda);
    mf_err e;
    (void)mf_kernel_permute_map_build_cuda(&m, nullptr, &e);
    void *x = bf16(t * h), *out = bf16(rows * h), *y = bf16(t * h);
    float *w = f32(rows), *dw = f32(rows);
    mf_kernel_permute p = {B16, rows, h, k, off + n, slot_of, row_of, t, nullptr, x, out};
    row("permute", "8192 x 7168, top 8", 2.0 * t * h * (k + 1), p, mf_kernel_permute_forward_cuda);
    p.weight = w;
    row("permute weighted", "8192 x 7168, top 8", 2.0 * t * h * (k + 1), p,
        mf_kernel_permute_forward_cuda);
    p.row_of_slot = nullptr;
    p.weight = nullptr;
    p.top_k = 1, p.x = out, p.rows = rows;
    void *out2 = bf16(rows * h);
    p.out = out2;
    row("permute, regroup", "65536 x 7168", 4.0 * rows * h, p, mf_kernel_permute_forward_cuda);
    mf_kernel_unpermute u = {B16, t, h, k, row_of, w, out, nullptr, y};
    row("unpermute weighted", "8192 x 7168, top 8", 2.0 * t * h * (k + 1), u,
        mf_kernel_unpermute_forward_cuda);
    mf_kernel_unpermute_dweight g = {B16, t, h, k, row_of, x, out, dw};
    row("unpermute weight gradient", "8192 x 7168, top 8", 2.0 * t * h * (k + 1), g,
        mf_kernel_unpermute_weight_grad_cuda);
    release();
}

static void bench_embedding(void) {
    const int64_t t = 16384, h = 7168, v = 32768;
    for (int hot = 0; hot < 2; hot++) {
        std::vector<char> seen((size_t)v, 0);
        double distinct = 0;
        int32_t *token = ints(t, [&](int64_t) {
            int64_t x = hot && dice(10) < 5 ? dice(20) : dice(v);
            distinct += !seen[(size_t)x];
            seen[(size_t)x] = 1;
            return x;
        });
        void *table = bf16(v * h), *y = bf16(t * h);
        float *grad = f32(v * h);
        void *work = bytes(mf_kernel_embedding_workspace_B(t, v, h));
        mf_kernel_embedding f = {B16, t, h, 0, v, token, table, y};
        const char *shape = hot ? "16384 x 7168, half of 20 ids" : "16384 x 7168, uniform";
        row("embedding forward", shape, 2.0 * h * (t + distinct), f,
            mf_kernel_embedding_forward_cuda);
        mf_kernel_embedding_grad b = {B16, t, h, 0, v, token, y, grad, work};
        row("embedding backward", shape, 2.0 * h * t + 8.0 * h * distinct, b,
            mf_kernel_embedding_backward_cuda);
        release();
    }
}

static void bench_loss(void) {
    const int64_t t = 8192, v = 129280;
    void *logits = bf16(t * v);
    int32_t *target = ints(t, [=](int64_t) { return dice(v); });
    float *stats = f32(3 * t), *lse = f32(t), *loss = f32(t), *sum = f32(1);
    mf_kernel_ce_stats s = {B16, t, v, v, 0, v, logits, target, stats};
    row("cross-entropy statistics", "8192 x 129280", 2.0 * t * v, s,
        mf_kernel_cross_entropy_stats_cuda);
    mf_kernel_ce_combine c = {t, 1, stats, target, lse, loss, sum};
    row("cross-entropy combine", "8192", 0, c, mf_kernel_cross_entropy_combine_cuda);
    mf_kernel_ce_grad g = {B16, t, v, v, 0, v, target, lse, 1e-4f, logits};
    row("cross-entropy gradient", "8192 x 129280", 4.0 * t * v, g,
        mf_kernel_cross_entropy_backward_cuda);
    release();
}

static void bench_optimizer(void) {
    const int64_t each = 16 << 20, tensors = 16, n = each * tensors;
    std::vector<int64_t> counts((size_t)tensors, each);
    int64_t chunks = mf_kernel_chunks(counts.data(), tensors, nullptr);
    std::vector<mf_kernel_chunk> host((size_t)chunks);
    mf_kernel_chunks(counts.data(), tensors, host.data());
    mf_kernel_chunk *chunk = (mf_kernel_chunk *)bytes(host.size() * sizeof host[0]);
    must(cudaMemcpy(chunk, host.data(), host.size() * sizeof host[0], cudaMemcpyHostToDevice));
    float *master = f32(n), *grad = f32(n), *m = f32(n), *v = f32(n);
    uint16_t *param = (uint16_t *)bf16(n);
    std::vector<mf_kernel_adamw_tensor> ta((size_t)tensors);
    std::vector<mf_kernel_grad_tensor> tg((size_t)tensors);
    for (int64_t i = 0; i < tensors; i++) {
        mf_kernel_adamw_tensor x = {master + i * each,
                                    param + i * each,
                                    grad + i * each,
                                    m + i * each,
                                    v + i * each,
                                    each,
                                    0.1f};
        ta[(size_t)i] = x;
        tg[(size_t)i].grad = grad + i * each, tg[(size_t)i].count = each;
    }
    void *da = bytes(ta.size() * sizeof ta[0]), *dg = bytes(tg.size() * sizeof tg[0]);
    must(cudaMemcpy(da, ta.data(), ta.size() * sizeof ta[0], cudaMemcpyHostToDevice));
    must(cudaMemcpy(dg, tg.data(), tg.size() * sizeof tg[0], cudaMemcpyHostToDevice));
    mf_kernel_adamw a = {MF_KERNEL_F32,
                         1e-4f,
                         0.9f,
                         0.95f,
                         1e-8f,
                         1.0f,
                         10,
                         nullptr,
                         tensors,
                         chunks,
                         (mf_kernel_adamw_tensor *)da,
                         chunk};
    row("adamw, float moments", "16 x 16 Mi", 30.0 * n, a, mf_kernel_adamw_update_cuda);
    a.moments = MF_KERNEL_BF16;
    row("adamw, bf16 moments", "16 x 16 Mi", 22.0 * n, a, mf_kernel_adamw_update_cuda);
    mf_kernel_grad_norm g = {tensors,
                             chunks,
                             (mf_kernel_grad_tensor *)dg,
                             chunk,
                             (double *)bytes(8),
                             bytes((size_t)chunks * 8)};
    row("gradient norm", "16 x 16 Mi", 4.0 * n, g, mf_kernel_grad_norm_add_cuda);
    mf_kernel_cast c = {B16, MF_KERNEL_F32, n, 1.0f, true, param, grad};
    row("cast, bf16 added to float", "256 Mi", 10.0 * n, c, mf_kernel_cast_values_cuda);
    mf_kernel_cast d = {MF_KERNEL_F32, B16, n, 1.0f, false, grad, param};
    row("cast, float to bf16", "256 Mi", 6.0 * n, d, mf_kernel_cast_values_cuda);
    mf_kernel_add add = {B16, n, m, v, param};
    row("add, bf16", "256 Mi", 6.0 * n, add, mf_kernel_add_values_cuda);
    release();
}

static void bench_mla(void) {
    const int64_t t = 8192, heads = 128, nope = 128, rope = 64, v = 128;
    void *kv = bf16(t * heads * 256), *kr = bf16(t * 576), *k = bf16(t * heads * 192);
    void *vv = bf16(t * heads * v);
    mf_kernel_mla a = {B16, t, heads, nope, rope, v, 576, kv, kr, k, vv};
    double kv_n = (double)t * heads * 256, k_n = (double)t * heads * 192,
           v_n = (double)t * heads * v;
    row("mla pack", "8192 x 128 heads", 2.0 * (kv_n + k_n + v_n), a, mf_kernel_mla_pack_cuda);
    mf_kernel_mla_grad b = {B16, t, heads, nope, rope, v, 576, k, vv, kv, kr};
    row("mla unpack gradient", "8192 x 128 heads", 2.0 * (kv_n + k_n + v_n), b,
        mf_kernel_mla_unpack_grad_cuda);
    release();
}

static void bench_quantise(void) {
    const int64_t t = 32768, h = 7168;
    void *x = bf16(t * h);
    uint8_t *q = (uint8_t *)bytes((size_t)(t * h)), *qt = (uint8_t *)bytes((size_t)(t * h));
    float *s = f32(t * h / 128), *st = f32(t * h / 128);
    void *work = bytes(mf_kernel_quantise_workspace_B());
    mf_kernel_quantise a = {B16, MF_QUANT_1X128, false, t, h, x, q, nullptr, s, 1, t, st, 1, h,
                            work};
    double n = (double)t * h;
    row("quantise 1x128", "32768 x 7168", 3.0 * n, a, mf_kernel_quantise_e4m3_cuda);
    a.qt = qt;
    row("quantise 1x128 + transposed", "32768 x 7168", 4.0 * n, a, mf_kernel_quantise_e4m3_cuda);
    a.block = MF_QUANT_128X128;
    row("quantise 128x128 + transposed", "32768 x 7168", 4.0 * n, a, mf_kernel_quantise_e4m3_cuda);
    a.block = MF_QUANT_TENSOR;
    row("quantise tensor + transposed", "32768 x 7168", 6.0 * n, a, mf_kernel_quantise_e4m3_cuda);
    release();
}

static void measure_copy(void) {
    size_t size_B = (size_t)4 << 30;
    void *a = bytes(size_B), *b = bytes(size_B);
    double t = median_s([&] { must(cudaMemcpyAsync(b, a, size_B, cudaMemcpyDeviceToDevice)); });
    copy_Bps = 2.0 * (double)size_B / t;
    double f = median_s([&] { must(cudaMemsetAsync(b, 1, size_B)); });
    printf("copy of 4 GiB: %.0f GB/s read plus written; fill: %.0f GB/s written\n", copy_Bps * 1e-9,
           (double)size_B / f * 1e-9);
    release();
}

int main(int argc, char **argv) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("no GPU\n");
        return 0;
    }
    only = argc > 1 ? argv[1] : nullptr;
    cudaDeviceProp prop;
    must(cudaGetDeviceProperties(&prop, 0));
    printf("%s, %d multiprocessors\n", prop.name, prop.multiProcessorCount);
    measure_copy();
    printf("| %-34s | %-30s | %8s | %6s | copy |\n", "kernel", "shape", "us", "GB/s");
    printf("|---|---|---|---|---|\n");
    bench_norms();
    bench_rope();
    bench_activations();
    bench_router();
    bench_permute();
    bench_embedding();
    bench_loss();
    bench_optimizer();
    bench_mla();
    bench_quantise();
    printf("%d below 85 %% of the copy\n", below);
    must(cudaDeviceSynchronize());
    return 0;
}
