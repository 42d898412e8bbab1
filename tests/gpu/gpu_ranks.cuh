/* gpu_ranks.cuh - one thread a GPU as the ranks of one NCCL communicator, for tests and benchmarks
 * of several GPUs in one process. */
#ifndef MF_TESTS_GPU_RANKS_CUH
#define MF_TESTS_GPU_RANKS_CUH

#include "core/base/status.h"
#include "tests/gpu/gpu.h"

#include <nccl.h>
#include <pthread.h>
#include <unistd.h>

#include <functional>
#include <thread>
#include <vector>

/* Ends the process from any rank's thread: the others may still run, so nothing is torn down. */
[[noreturn]] static inline void gpu_ranks_stop(void) {
    fflush(stdout);
    _exit(1);
}

#define NCCL_MUST(call)                                                                            \
    do {                                                                                           \
        ncclResult_t result_ = (call);                                                             \
        if (result_ != ncclSuccess) {                                                              \
            printf("FAIL  %s:%d %s: %s\n", __FILE__, __LINE__, #call,                              \
                   ncclGetErrorString(result_));                                                   \
            gpu_ranks_stop();                                                                      \
        }                                                                                          \
    } while (0)

#define MF_MUST(call, e)                                                                           \
    do {                                                                                           \
        if ((call) != MF_OK) {                                                                     \
            printf("FAIL  %s:%d %s: %s\n", __FILE__, __LINE__, #call, (e).text);                   \
            gpu_ranks_stop();                                                                      \
        }                                                                                          \
    } while (0)

/* The GPU of a rank; blocks that a kernel of each rank may take (0: all), since all ranks' kernels
 * must run at once; numbers of ranks to test. */
#ifdef MF_RANKS_ON_ONE_GPU /* tests/gpu/one_gpu */
static inline int gpu_rank_device(int) {
    return 0;
}
static inline int gpu_rank_blocks(int ranks) {
    int sms = 0;
    GPU_MUST(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    return sms / ranks;
}
static inline std::vector<int> gpu_rank_counts(int tests) {
    setenv("CUDA_MODULE_LOADING", "EAGER",
           1); /* loading waits for kernels, which wait for others */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    gpu_need(tests, 9);
    return {2, 3, 4};
}
#else
static inline int gpu_rank_device(int rank) {
    return rank;
}
static inline int gpu_rank_blocks(int) {
    return 0;
}
/* Says what is skipped below two GPUs. */
static inline std::vector<int> gpu_rank_counts(int tests) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
        printf("MF_SKIPPED %d exchanges over NVLink need two GPUs, found %d\n", tests, count);
        exit(0);
    }
    return {count < 8 ? count : 8};
}
#endif

struct GpuRanks {
    int count;
    std::vector<ncclComm_t> comm;
    std::vector<cudaStream_t> stream; /* made together: kernels of ranks must not share a queue */
    pthread_barrier_t barrier;

    explicit GpuRanks(int ranks) : count(ranks), comm((size_t)ranks), stream((size_t)ranks) {
        std::vector<int> devices;
        for (int r = 0; r < ranks; r++) {
            devices.push_back(gpu_rank_device(r));
            GPU_MUST(cudaSetDevice(devices.back()));
            GPU_MUST(cudaStreamCreateWithFlags(&stream[(size_t)r], cudaStreamNonBlocking));
        }
        warm(devices);
        NCCL_MUST(ncclCommInitAll(comm.data(), ranks, devices.data()));
        pthread_barrier_init(&barrier, NULL, (unsigned)ranks);
    }
    ~GpuRanks() {
        for (int r = 0; r < count; r++) {
            ncclCommDestroy(comm[(size_t)r]);
            cudaStreamDestroy(stream[(size_t)r]);
        }
        pthread_barrier_destroy(&barrier);
    }
    GpuRanks(const GpuRanks &) = delete;
    GpuRanks &operator=(const GpuRanks &) = delete;

    /* Every stream has had work before a kernel waits for those of other streams: where ranks share
     * a GPU, what a new stream queues first may wait for what is running (seen: two kernels of
     * three at work, the third not started, a third of the multiprocessors free). */
    void warm(const std::vector<int> &devices) {
        for (int r = 0; r < count; r++) {
            void *p = NULL;
            GPU_MUST(cudaSetDevice(devices[(size_t)r]));
            GPU_MUST(cudaMalloc(&p, 1 << 20));
            GPU_MUST(cudaMemsetAsync(p, 0, 1 << 20, stream[(size_t)r]));
            GPU_MUST(cudaStreamSynchronize(stream[(size_t)r]));
            GPU_MUST(cudaFree(p));
        }
    }

    /* work(rank, stream) on all ranks at once, each with its GPU current. */
    void run(const std::function<void(int, cudaStream_t)> &work) {
        std::vector<std::thread> threads;
        for (int r = 0; r < count; r++) {
            threads.emplace_back([&, r] {
                GPU_MUST(cudaSetDevice(gpu_rank_device(r)));
                work(r, stream[(size_t)r]);
                GPU_MUST(cudaStreamSynchronize(stream[(size_t)r]));
            });
        }
        for (std::thread &t : threads) {
            t.join();
        }
    }
    void meet(void) {
        pthread_barrier_wait(&barrier);
    }
};

#endif
