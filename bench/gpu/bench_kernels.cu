/* Memory-bound kernels at training sizes: time, bytes that must move (each input read once, each
 * output written once), bandwidth, its share of what a large copy on this GPU reaches (read plus
 * written) and of what a copy of as many bytes reaches. Median over runs of several launches on
 * random data that no cache holds.
 *
 *     bench_kernels [part of a name]
 */
#include "bench/gpu/bench_heads.cuh"
#include "bench/gpu/bench_routing.cuh"
#include "bench/gpu/bench_tokens.cuh"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/grad_norm.h"
#include "kernels/rows/cast.h"
#include "kernels/rows/cross_entropy.h"
#include "kernels/rows/quantise.h"

static void bench_loss_of(int64_t t, int64_t v) {
    const std::string shape = text("%lld x %lld", LL(t), LL(v));
    const double n = (double)t * (double)v;
    const auto target = [=] { return ints(t, [=](int64_t) { return dice(v); }); };
    row(
        "cross-entropy statistics", shape, 2.0 * n,
        [=] { return mf_kernel_ce_stats{B16, t, v, v, 0, v, bf16(t * v), target(), f32(3 * t)}; },
        mf_kernel_cross_entropy_stats_cuda);
    row(
        "cross-entropy combine", text("%lld", LL(t)), 0,
        [=] {
            return mf_kernel_ce_combine{t,      1,      f32(3 * t),         target(),
                                        f32(t), f32(t), (double *)bytes(8), 1.0};
        },
        mf_kernel_cross_entropy_combine_cuda);
    row(
        "cross-entropy gradient", shape, 4.0 * n,
        [=] { return mf_kernel_ce_grad{B16, t, v, v, 0, v, target(), f32(t), 1e-4f, bf16(t * v)}; },
        mf_kernel_cross_entropy_backward_cuda);
    row(
        "cross-entropy, loss and gradient", shape, 4.0 * n,
        [=] {
            return mf_kernel_ce_whole{B16,
                                      t,
                                      v,
                                      v,
                                      v,
                                      target(),
                                      1e-4f,
                                      bf16(t * v),
                                      f32(3 * t),
                                      f32(t),
                                      (double *)bytes(8),
                                      1.0};
        },
        mf_kernel_cross_entropy_cuda);
}

static void bench_loss(void) {
    bench_loss_of(8192, 129280);
    bench_loss_of(4096, 128256);
    bench_loss_of(4096, 201088);
    bench_loss_of(8192, 32000);
    bench_loss_of(8192, 16160);
}

template <typename T> static T *on_device(const std::vector<T> &v) {
    T *p = (T *)bytes(v.size() * sizeof v[0]);
    must(cudaMemcpy(p, v.data(), v.size() * sizeof v[0], cudaMemcpyHostToDevice));
    return p;
}

/* `tensors` of `each` values. */
static void bench_optimizer_of(int64_t tensors, int64_t each) {
    const int64_t n = each * tensors;
    const std::string shape = text("%lld x %lld Ki", LL(tensors), LL(each >> 10));
    const std::vector<int64_t> counts((size_t)tensors, each);
    const int64_t chunks = mf_kernel_chunks(counts.data(), tensors, nullptr);
    std::vector<mf_kernel_chunk> chunk((size_t)chunks);
    mf_kernel_chunks(counts.data(), tensors, chunk.data());
    for (const mf_kernel_dtype moments : {MF_KERNEL_F32, MF_KERNEL_BF16}) {
        const bool wide = moments == MF_KERNEL_F32;
        row(
            wide ? "adamw, float moments" : "adamw, bf16 moments", shape,
            (wide ? 30.0 : 22.0) * (double)n,
            [&] {
                float *master = f32(n), *grad = f32(n), *m = f32(n), *v = f32(n);
                uint16_t *param = (uint16_t *)bf16(n);
                std::vector<mf_kernel_adamw_tensor> all;
                for (int64_t i = 0; i < tensors; i++) {
                    all.push_back({master + i * each, param + i * each, grad + i * each,
                                   m + i * each, v + i * each, each, 0.1f});
                }
                return mf_kernel_adamw{
                    moments, 1e-4f,   0.9f,    0.95f,  1e-8f,          1.0f,
                    10,      nullptr, tensors, chunks, on_device(all), on_device(chunk),
                    nullptr};
            },
            mf_kernel_adamw_update_cuda);
    }
    row(
        "gradient norm", shape, 4.0 * (double)n,
        [&] {
            float *grad = f32(n);
            std::vector<mf_kernel_grad_tensor> all((size_t)tensors);
            for (int64_t i = 0; i < tensors; i++) {
                all[(size_t)i].grad = grad + i * each, all[(size_t)i].count = each;
            }
            return mf_kernel_grad_norm{tensors,
                                       chunks,
                                       on_device(all),
                                       on_device(chunk),
                                       (double *)bytes(8),
                                       bytes((size_t)chunks * 8)};
        },
        mf_kernel_grad_norm_add_cuda);
}

static void bench_casts(int64_t n) {
    const std::string shape = text("%lld Mi", LL(n >> 20));
    row(
        "cast, bf16 added to float", shape, 10.0 * (double)n,
        [=] { return mf_kernel_cast{B16, MF_KERNEL_F32, n, 1.0f, true, bf16(n), f32(n)}; },
        mf_kernel_cast_values_cuda);
    row(
        "cast, float to bf16", shape, 6.0 * (double)n,
        [=] { return mf_kernel_cast{MF_KERNEL_F32, B16, n, 1.0f, false, f32(n), bf16(n)}; },
        mf_kernel_cast_values_cuda);
    row(
        "cast, bf16 to float", shape, 6.0 * (double)n,
        [=] { return mf_kernel_cast{B16, MF_KERNEL_F32, n, 1.0f, false, bf16(n), f32(n)}; },
        mf_kernel_cast_values_cuda);
    row(
        "add, bf16", shape, 6.0 * (double)n,
        [=] {
            return mf_kernel_add{B16, n, bf16(n), bf16(n), bf16(n)};
        },
        mf_kernel_add_values_cuda);
}

static void bench_optimizer(void) {
    bench_optimizer_of(16, 16 << 20);
    bench_optimizer_of(64, 1 << 20);
    bench_casts(256 << 20);
    bench_casts(32 << 20);
}

static void bench_quantise_of(int64_t t, int64_t h) {
    const std::string shape = text("%lld x %lld", LL(t), LL(h));
    const double n = (double)t * (double)h;
    const struct {
        const char *name;
        mf_quant_block block;
        bool transposed;
        double each_B; /* a value; of a tensor's scale it is read twice */
    } forms[] = {{"quantise 1x128", MF_QUANT_1X128, false, 3.0},
                 {"quantise 1x128 + transposed", MF_QUANT_1X128, true, 4.0},
                 {"quantise 128x128", MF_QUANT_128X128, false, 3.0},
                 {"quantise 128x128 + transposed", MF_QUANT_128X128, true, 4.0},
                 {"quantise tensor", MF_QUANT_TENSOR, false, 5.0},
                 {"quantise tensor + transposed", MF_QUANT_TENSOR, true, 6.0}};
    for (const auto &f : forms) {
        row(
            f.name, shape, f.each_B * n,
            [&] {
                mf_kernel_quantise a = {};
                a = {B16,
                     f.block,
                     false,
                     t,
                     h,
                     bf16(t * h),
                     (uint8_t *)bytes((size_t)(t * h)),
                     nullptr,
                     f32(t * h / 128),
                     1,
                     t,
                     f32(t * h / 128),
                     1,
                     h,
                     bytes(mf_kernel_quantise_workspace_B())};
                a.qt = f.transposed ? (uint8_t *)bytes((size_t)(t * h)) : nullptr;
                return a;
            },
            mf_kernel_quantise_e4m3_cuda);
    }
}

static void bench_quantise(void) {
    bench_quantise_of(32768, 7168);
    bench_quantise_of(8192, 7168);
    bench_quantise_of(4096, 7168);
    bench_quantise_of(8192, 2048);
}

static void measure_copy(void) {
    size_t size_B = (size_t)4 << 30;
    void *a = bytes(size_B), *b = bytes(size_B);
    double t =
        median_s([&](int) { must(cudaMemcpyAsync(b, a, size_B, cudaMemcpyDeviceToDevice)); });
    copy_Bps = 2.0 * (double)size_B / t;
    double f = median_s([&](int) { must(cudaMemsetAsync(b, 1, size_B)); });
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
    printf("| %-36s | %-34s | %8s | %6s | copy | copy of as many bytes |\n", "kernel", "shape",
           "us", "GB/s");
    printf("|---|---|---|---|---|---|\n");
    bench_norms();
    bench_rope();
    bench_heads();
    bench_activations();
    bench_router();
    bench_permute();
    bench_embedding();
    bench_attention_sides();
    bench_loss();
    bench_optimizer();
    bench_quantise();
    printf("%d below 85 %% of the copy\n", below);
    must(cudaDeviceSynchronize());
    return 0;
}
