/* bench_routing.cuh - rows of bench_kernels: router, permutation, embedding. */
#ifndef MF_BENCH_ROUTING_CUH
#define MF_BENCH_ROUTING_CUH

#include "bench/gpu/bench_rows.cuh"
#include "kernels/moe/permute.h"
#include "kernels/moe/router.h"
#include "kernels/rows/embedding.h"

static void bench_router_of(int64_t t, int64_t n, int64_t k) {
    const std::string shape = text("%lld x %lld, top %lld", LL(t), LL(n), LL(k));
    const double scores = 4.0 * (double)(t * n);
    const auto make = [=](bool sigmoid) {
        mf_kernel_router r = {t,       n,          k,          MF_ROUTE_SOFTMAX,      true,
                              1.0f,    1,          1,          MF_ROUTE_GROUP_MAX,    f32(t * n),
                              nullptr, f32(t * n), f32(t * k), (int32_t *)f32(t * k), f32(t)};
        if (sigmoid) {
            r.score = MF_ROUTE_SIGMOID, r.bias = f32(n), r.groups = 8, r.group_topk = 4;
            r.group_score = MF_ROUTE_GROUP_TOP2;
        }
        return r;
    };
    const auto chosen = [=] {
        return ints(t * k, [=](int64_t i) { return (i / k * 31 + i % k * 7) % n; });
    };
    row(
        "router forward, softmax", shape, 2 * scores, [=] { return make(false); },
        mf_kernel_router_forward_cuda, true);
    row(
        "router forward, sigmoid, groups", shape, 2 * scores, [=] { return make(true); },
        mf_kernel_router_forward_cuda, true);
    row(
        "router statistics", shape, scores,
        [=] {
            return mf_kernel_router_stats{t,
                                          n,
                                          k,
                                          MF_ROUTE_SOFTMAX,
                                          1,
                                          nullptr,
                                          f32(t * n),
                                          chosen(),
                                          f32(n),
                                          f32(n),
                                          bytes(mf_kernel_router_workspace_B(1, n))};
        },
        mf_kernel_router_stats_add_cuda, true);
    row(
        "router backward", shape, 2 * scores,
        [=] {
            return mf_kernel_router_grad{
                t,          n,      k,       MF_ROUTE_SOFTMAX, true,   1.0f, f32(t * n), chosen(),
                f32(t * k), f32(n), nullptr, f32(t * n),       f32(t), 0.0f, f32(t * n)};
        },
        mf_kernel_router_backward_cuda, true);
}

static void bench_router(void) {
    bench_router_of(8192, 256, 8);
    bench_router_of(4096, 128, 8);
    bench_router_of(65536, 256, 8);
}

/* The map of t tokens, each with k of n experts, on the GPU. */
static mf_kernel_permute_map make_map(int64_t t, int64_t k, int64_t n) {
    const int64_t slots = t * k;
    int32_t *index = ints(slots, [=](int64_t i) { return (dice(n / k) * k + i % k) % n; });
    const auto none = [](int64_t count) { return ints(count, [](int64_t) { return 0; }); };
    return {t,           k,           n,       1,
            slots,       index,       none(n), none(n + 1),
            none(slots), none(slots), none(1), bytes(mf_kernel_permute_workspace_B(slots, n)),
            0,           nullptr};
}

static mf_kernel_permute_map built_map(int64_t t, int64_t k, int64_t n) {
    const mf_kernel_permute_map m = make_map(t, k, n);
    mf_err e;
    mf_err_clear(&e);
    if (mf_kernel_permute_map_build_cuda(&m, nullptr, &e) != MF_OK) {
        printf("FATAL map: %s\n", e.text);
        exit(1);
    }
    return m;
}

static void bench_permute_of(int64_t t, int64_t h, int64_t k, int64_t n) {
    const int64_t rows = t * k;
    const std::string shape = text("%lld x %lld, top %lld of %lld", LL(t), LL(h), LL(k), LL(n));
    const double moved_B = 2.0 * (double)(t * h) * (double)(k + 1);
    row(
        "permute map", shape, 0, [=] { return make_map(t, k, n); },
        mf_kernel_permute_map_build_cuda);
    for (int weighted = 0; weighted < 2; weighted++) {
        row(
            weighted ? "permute weighted" : "permute", shape, moved_B,
            [=] {
                const mf_kernel_permute_map m = built_map(t, k, n);
                return mf_kernel_permute{B16,
                                         rows,
                                         h,
                                         k,
                                         m.offsets + n,
                                         m.slot_of_row,
                                         m.row_of_slot,
                                         t,
                                         weighted ? f32(rows) : nullptr,
                                         bf16(t * h),
                                         bf16(rows * h)};
            },
            mf_kernel_permute_forward_cuda);
    }
    row(
        "permute, regroup", text("%lld x %lld", LL(rows), LL(h)), 4.0 * (double)(rows * h),
        [=] {
            const mf_kernel_permute_map m = built_map(t, k, n);
            return mf_kernel_permute{B16,           rows,    h,    1,       m.offsets + n,
                                     m.slot_of_row, nullptr, rows, nullptr, bf16(rows * h),
                                     bf16(rows * h)};
        },
        mf_kernel_permute_forward_cuda);
    row(
        "unpermute weighted", shape, moved_B,
        [=] {
            return mf_kernel_unpermute{B16,
                                       t,
                                       h,
                                       k,
                                       built_map(t, k, n).row_of_slot,
                                       f32(rows),
                                       bf16(rows * h),
                                       nullptr,
                                       bf16(t * h)};
        },
        mf_kernel_unpermute_forward_cuda);
    row(
        "unpermute weight gradient", shape, moved_B,
        [=] {
            return mf_kernel_unpermute_dweight{
                B16,      t, h, k, built_map(t, k, n).row_of_slot, bf16(t * h), bf16(rows * h),
                f32(rows)};
        },
        mf_kernel_unpermute_weight_grad_cuda);
}

static void bench_permute(void) {
    bench_permute_of(8192, 7168, 8, 256);
    bench_permute_of(4096, 7168, 8, 256);
    bench_permute_of(8192, 2048, 8, 128);
    bench_permute_of(4096, 2048, 8, 128);
    bench_permute_of(8192, 6144, 2, 8);
    bench_permute_of(16384, 2880, 4, 32);
}

/* hot: half of the tokens are one of 20. */
static void bench_embedding_of(int64_t t, int64_t h, int64_t v, bool hot) {
    std::vector<int32_t> token((size_t)t);
    std::vector<char> seen((size_t)v, 0);
    double distinct = 0;
    for (int32_t &x : token) {
        x = (int32_t)(hot && dice(10) < 5 ? dice(20) : dice(v));
        distinct += !seen[(size_t)x];
        seen[(size_t)x] = 1;
    }
    const auto tokens = [&] { return ints(t, [&](int64_t i) { return token[(size_t)i]; }); };
    const std::string shape =
        text("%lld x %lld of %lld, %s", LL(t), LL(h), LL(v), hot ? "half of 20 ids" : "uniform");
    row(
        "embedding forward", shape, 2.0 * (double)h * ((double)t + distinct),
        [&] {
            return mf_kernel_embedding{B16, t, h, 0, v, 1.0f, tokens(), bf16(v * h), bf16(t * h)};
        },
        mf_kernel_embedding_forward_cuda);
    row(
        "embedding backward", shape, 2.0 * (double)(h * t) + 8.0 * (double)h * distinct,
        [&] {
            return mf_kernel_embedding_grad{
                B16,        t,
                h,          0,
                v,          1.0f,
                tokens(),   bf16(t * h),
                f32(v * h), bytes(mf_kernel_embedding_workspace_B(t, v, h))};
        },
        mf_kernel_embedding_backward_cuda);
}

static void bench_embedding(void) {
    for (const bool hot : {false, true}) {
        bench_embedding_of(16384, 7168, 32768, hot);
        bench_embedding_of(8192, 7168, 129280, hot);
        bench_embedding_of(4096, 7168, 129280, hot);
        bench_embedding_of(8192, 4096, 128256, hot);
        bench_embedding_of(16384, 2048, 151936, hot);
    }
}

#endif
