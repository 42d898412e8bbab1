/* gpu.h - what GPU tests share: a check that counts, a skip without GPU, random bf16, buffers with
 * canaries. Plain C++ of the CUDA kind; no test library is needed on the machine with the GPU. */
#ifndef MF_TESTS_GPU_GPU_H
#define MF_TESTS_GPU_GPU_H

#include <cuda_runtime.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int gpu_failed, gpu_passed;

#define GPU_MUST(call)                                                                             \
    do {                                                                                           \
        cudaError_t result_ = (call);                                                              \
        if (result_ != cudaSuccess) {                                                              \
            printf("FAIL  %s:%d %s: %s\n", __FILE__, __LINE__, #call,                              \
                   cudaGetErrorString(result_));                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Prints one line a check and counts it. */
#define GPU_CHECK(ok, ...)                                                                         \
    do {                                                                                           \
        const bool ok_ = (ok);                                                                     \
        printf(ok_ ? "ok    " : "FAIL  ");                                                         \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        *(ok_ ? &gpu_passed : &gpu_failed) += 1;                                                   \
    } while (0)

/* Exit code 0 with a word when there is no GPU of compute capability `major`.0 or more. */
static inline void gpu_need(int tests, int major) {
    int count = 0, found = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        printf("MF_SKIPPED %d no GPU: the kernel was compiled, not run\n", tests);
        exit(0);
    }
    GPU_MUST(cudaDeviceGetAttribute(&found, cudaDevAttrComputeCapabilityMajor, 0));
    if (found != major) {
        printf("MF_SKIPPED %d needs compute capability %d.0, this GPU has %d\n", tests, major,
               found);
        exit(0);
    }
}

/* From MF_SEED or the clock; printed so that a run can be repeated. */
static inline uint64_t gpu_seed(void) {
    const char *text = getenv("MF_SEED");
    const uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)seed);
    return seed;
}

static inline __host__ __device__ uint64_t gpu_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline int gpu_report(void) {
    printf("%d passed, %d failed, 0 skipped\n", gpu_passed, gpu_failed);
    return gpu_failed ? 1 : 0;
}

#endif
