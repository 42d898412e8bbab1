/* gpu_test.cuh - a buffer on both sides, filled alike; the reference runs on one, the kernel on the
 * other; results are compared, and bytes past the end must stay as they were. */
#ifndef MF_TESTS_GPU_TEST_CUH
#define MF_TESTS_GPU_TEST_CUH

#include "kernels/device/cuda_check.h"
#include "kernels/kernel.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include <cuda_runtime.h>

#define GUARD_B 256

typedef struct both {
    void *host, *device;
    size_t size_B;
} both;

typedef struct gpu_test {
    std::vector<both> buffers;
    uint64_t state;
    int passed, failed;
    const char *op;
    char what[256];
} gpu_test;

static gpu_test T;

static inline void must(cudaError_t r, const char *what) {
    if (r != cudaSuccess) {
        printf("FATAL %s: %s: %s\n", T.what, what, cudaGetErrorString(r));
        exit(1);
    }
}

static inline uint64_t bits(void) {
    T.state ^= T.state << 13;
    T.state ^= T.state >> 7;
    T.state ^= T.state << 17;
    return T.state * 0x2545f4914f6cdd1dull;
}
static inline double uniform(double low, double high) {
    return low + (high - low) * (double)(bits() >> 11) * 0x1p-53;
}
static inline int64_t whole(int64_t low, int64_t high) {
    return low + (int64_t)(bits() % (uint64_t)(high - low + 1));
}

/* Both sides hold size_B bytes of `fill` and a guard behind them. `shift` elements of misalignment.
 */
static inline both make(size_t size_B, int fill) {
    both b;
    b.size_B = size_B;
    b.host = malloc(size_B + GUARD_B);
    must(cudaMalloc(&b.device, size_B + GUARD_B), "cudaMalloc");
    memset(b.host, fill, size_B);
    memset((char *)b.host + size_B, 0xab, GUARD_B);
    must(cudaMemcpy(b.device, b.host, size_B + GUARD_B, cudaMemcpyHostToDevice), "upload");
    T.buffers.push_back(b);
    return b;
}

static inline void upload(const both *b) {
    must(cudaMemcpy(b->device, b->host, b->size_B, cudaMemcpyHostToDevice), "upload");
}

static inline both poison(int64_t n, mf_kernel_dtype d) {
    return make((size_t)n * mf_kernel_dtype_B(d), 0xff);
}

static inline both random_values(int64_t n, mf_kernel_dtype d, double low, double high) {
    both b = make((size_t)n * mf_kernel_dtype_B(d), 0);
    for (int64_t i = 0; i < n; i++) {
        mf_kernel_put(b.host, d, i, (float)uniform(low, high));
    }
    upload(&b);
    return b;
}

static inline both random_ints(int64_t n, int64_t low, int64_t high) {
    both b = make((size_t)n * 4, 0);
    for (int64_t i = 0; i < n; i++) {
        ((int32_t *)b.host)[i] = (int32_t)whole(low, high);
    }
    upload(&b);
    return b;
}

static inline void report(bool good, const char *name, double error, double bound) {
    if (good) {
        T.passed++;
    } else {
        T.failed++;
        printf("FAIL %s %s: %s error %.3g > %.3g\n", T.op, T.what, name, error, bound);
    }
}

/* Relative error of the device's values against the host's, and the guard. */
static inline void compare(const char *name, const both *b, mf_kernel_dtype d, double bound) {
    std::vector<char> got(b->size_B + GUARD_B);
    must(cudaMemcpy(got.data(), b->device, got.size(), cudaMemcpyDeviceToHost), "download");
    double difference = 0.0, size = 0.0;
    int64_t n = (int64_t)(b->size_B / mf_kernel_dtype_B(d));
    for (int64_t i = 0; i < n; i++) {
        double x = mf_kernel_get(got.data(), d, i), y = mf_kernel_get(b->host, d, i);
        bool untouched = std::isnan(x) && std::isnan(y); /* poison on both sides */
        difference += untouched ? 0.0 : (x - y) * (x - y);
        size += std::isnan(y) ? 0.0 : y * y;
    }
    double error = sqrt(difference) / (sqrt(size) + 1e-30);
    bool guarded = memcmp(got.data() + b->size_B, (char *)b->host + b->size_B, GUARD_B) == 0;
    report(error <= bound && guarded, guarded ? name : "guard", error, bound);
}

/* The same of doubles; all must be numbers. */
static inline void compare_doubles(const char *name, const both *b, double bound) {
    std::vector<char> got(b->size_B + GUARD_B);
    must(cudaMemcpy(got.data(), b->device, got.size(), cudaMemcpyDeviceToHost), "download");
    double difference = 0.0, size = 0.0;
    for (size_t i = 0; i < b->size_B / 8; i++) {
        double x, y;
        memcpy(&x, got.data() + i * 8, 8), memcpy(&y, (char *)b->host + i * 8, 8);
        difference += (x - y) * (x - y);
        size += y * y;
    }
    double error = sqrt(difference) / (sqrt(size) + 1e-300);
    bool guarded = memcmp(got.data() + b->size_B, (char *)b->host + b->size_B, GUARD_B) == 0;
    report(error <= bound && guarded, guarded ? name : "guard", error, bound);
}

/* Bytes that differ. */
static inline void compare_bits(const char *name, const both *b, double allowed) {
    std::vector<char> got(b->size_B + GUARD_B);
    must(cudaMemcpy(got.data(), b->device, got.size(), cudaMemcpyDeviceToHost), "download");
    double wrong = 0;
    for (size_t i = 0; i < got.size(); i++) {
        wrong += got[i] != ((char *)b->host)[i];
    }
    report(wrong <= allowed, name, wrong, allowed);
}

/* Bytes that differ between two results of the same side, on both. */
static inline void same_bits(const char *name, const both *x, const both *y) {
    std::vector<char> a(x->size_B), b(x->size_B);
    must(cudaMemcpy(a.data(), x->device, a.size(), cudaMemcpyDeviceToHost), "download");
    must(cudaMemcpy(b.data(), y->device, b.size(), cudaMemcpyDeviceToHost), "download");
    double wrong = 0;
    for (size_t i = 0; i < a.size(); i++) {
        wrong += (a[i] != b[i]) + (((char *)x->host)[i] != ((char *)y->host)[i]);
    }
    report(wrong == 0, name, wrong, 0);
}

static inline void free_all(void) {
    for (both &b : T.buffers) {
        free(b.host);
        cudaFree(b.device);
    }
    T.buffers.clear();
}

/* Runs fill(false) through the reference and fill(true) through the kernel: P(buffer) in the lambda
 * picks the side. */
#define P(b) (dev ? (b).device : (b).host)

template <typename A, typename Fill>
static void run_both(Fill fill, mf_status (*reference)(const A *, mf_err *),
                     mf_status (*kernel)(const A *, void *, mf_err *)) {
    mf_err e;
    mf_err_clear(&e);
    A host = fill(false), device = fill(true);
    if (reference(&host, &e) != MF_OK || kernel(&device, nullptr, &e) != MF_OK) {
        printf("FATAL %s %s: %s\n", T.op, T.what, e.text);
        exit(1);
    }
    must(cudaDeviceSynchronize(), T.op);
}

#define CASE(name, ...)                                                                            \
    do {                                                                                           \
        T.op = name;                                                                               \
        snprintf(T.what, sizeof T.what, __VA_ARGS__);                                              \
    } while (0)

/* Prints the seed; ends the program where there is no GPU. */
static inline void begin_tests(void) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("MF_SKIPPED 1 no GPU: CUDA kernels were compiled, not run\n");
        exit(0);
    }
    const char *text = getenv("MF_SEED");
    unsigned long long seed =
        text ? strtoull(text, nullptr, 10) : (unsigned long long)time(nullptr);
    printf("seed %llu\n", seed);
    T.state = seed * 0x9e3779b97f4a7c15ull + 1;
}
static inline int end_tests(void) {
    printf("%d passed, %d failed\n", T.passed, T.failed);
    return T.failed != 0;
}

static inline double bound_of(mf_kernel_dtype d) {
    return d == MF_KERNEL_BF16 ? 1.5e-3 : 3e-6;
}
static inline const char *name_of(mf_kernel_dtype d) {
    return d == MF_KERNEL_BF16 ? "bf16" : "f32";
}

#endif
