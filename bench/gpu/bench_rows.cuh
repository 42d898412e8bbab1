/* bench_rows.cuh - the harness of bench_kernels: random operands, the median time of a kernel, one
 * line of the table a kernel and shape. A shape whose bytes would stay in the L2 cache is run on
 * several sets of operands in turn. */
#ifndef MF_BENCH_ROWS_CUH
#define MF_BENCH_ROWS_CUH

#include "kernels/device/cuda_check.h"
#include "kernels/kernel.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#define REPEATS 11
#define WARM_MS 40.0
#define LAUNCHES 5     /* one after the other between two events, at least, */
#define BETWEEN_MS 0.5 /* and so long at least */
#define TURN_B 400e6   /* bytes that pass before a set of operands is used again */
#define SETS_MOST 24

#define LL(x) (long long)(x)

static const mf_kernel_dtype B16 = MF_KERNEL_BF16;
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

static std::string text(const char *format, ...) {
    char s[80];
    va_list args;
    va_start(args, format);
    vsnprintf(s, sizeof s, format, args);
    va_end(args);
    return s;
}

/* Median seconds of run(i), i counting up. */
static double median_s(const std::function<void(int)> &run) {
    cudaEvent_t a, b;
    must(cudaEventCreate(&a));
    must(cudaEventCreate(&b));
    std::vector<float> ms;
    double warm_ms = 0.0; /* clocks rise only under load */
    int launches = LAUNCHES, calls = 0;
    for (int i = 0; i < REPEATS; i++) {
        must(cudaEventRecord(a));
        for (int j = 0; j < launches; j++) {
            run(calls++);
        }
        must(cudaEventRecord(b));
        must(cudaEventSynchronize(b));
        float t;
        must(cudaEventElapsedTime(&t, a, b));
        if (warm_ms < WARM_MS) {
            warm_ms += t;
            i = -1;
            launches = std::max(launches, (int)ceil(BETWEEN_MS * launches / t));
            launches = std::min(launches, 200);
            continue;
        }
        ms.push_back(t);
    }
    must(cudaEventDestroy(a));
    must(cudaEventDestroy(b));
    std::sort(ms.begin(), ms.end());
    return ms[ms.size() / 2] * 1e-3 / launches;
}

/* Median seconds of a copy that reads and writes moved_B in all, by powers of two. */
static double copy_of_s(double moved_B) {
    static std::vector<double> known(64, 0.0);
    const int size = std::max(20, std::min(32, (int)lround(log2(moved_B / 2))));
    const size_t each_B = (size_t)1 << size;
    if (known[(size_t)size] == 0.0) {
        const int sets =
            std::max(1, std::min(SETS_MOST, (int)ceil(TURN_B / (2.0 * (double)each_B))));
        char *from, *to;
        must(cudaMalloc(&from, each_B * (size_t)sets));
        must(cudaMalloc(&to, each_B * (size_t)sets));
        fill_bits<<<1024, 256>>>((unsigned *)from, each_B * (size_t)sets / 4, 9, 0xffffffffu, 0);
        known[(size_t)size] =
            2.0 * (double)each_B / median_s([&](int i) {
                const size_t at = each_B * (size_t)(i % sets);
                must(cudaMemcpyAsync(to + at, from + at, each_B, cudaMemcpyDeviceToDevice));
            });
        must(cudaFree(from));
        must(cudaFree(to));
    }
    return moved_B / known[(size_t)size];
}

template <typename A> using kernel_call = mf_status (*)(const A *, void *, mf_err *);

template <typename A>
static double time_sets(const char *name, const std::vector<A> &set, kernel_call<A> kernel) {
    return median_s([&](int i) {
        mf_err e;
        mf_err_clear(&e);
        if (kernel(&set[(size_t)i % set.size()], nullptr, &e) != MF_OK) {
            printf("FATAL %s: %s\n", name, e.text);
            exit(1);
        }
    });
}

/* One line; make() allocates a set of operands, which are freed here. latency: a kernel that few
 * bytes and many steps make: not held to the copy. */
template <typename Make, typename A>
static void row(const char *name, const std::string &shape, double moved_B, const Make &make,
                kernel_call<A> kernel, bool latency = false) {
    if (only && !strstr((std::string(name) + " " + shape).c_str(), only)) {
        return;
    }
    const int sets = std::max(1, std::min(SETS_MOST, (int)ceil(TURN_B / std::max(moved_B, 1e6))));
    std::vector<A> set;
    for (int i = 0; i < sets; i++) {
        set.push_back(make());
    }
    const double t = time_sets<A>(name, set, kernel);
    release();
    if (moved_B <= 0.0) {
        printf("| %-36s | %-34s | %8.1f | - | - | - |\n", name, shape.c_str(), t * 1e6);
        return;
    }
    const double share = moved_B / t / copy_Bps;
    const bool short_of = !latency && share < 0.85;
    below += short_of;
    printf("| %-36s | %-34s | %8.1f | %6.0f | %3.0f%% | %3.0f%% |%s\n", name, shape.c_str(),
           t * 1e6, moved_B / t * 1e-9, share * 100, 100 * copy_of_s(moved_B) / t,
           latency    ? " latency"
           : short_of ? " below 85 %"
                      : "");
    fflush(stdout);
}

#endif
