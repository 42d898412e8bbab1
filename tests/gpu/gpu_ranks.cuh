/* gpu_ranks.cuh - one thread a GPU as the ranks of one NCCL communicator, for tests and benchmarks
 * of several GPUs in one process. */
#ifndef MF_TESTS_GPU_RANKS_CUH
#define MF_TESTS_GPU_RANKS_CUH

#include "core/status.h"
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

struct GpuRanks {
    int count;
    std::vector<ncclComm_t> comm;
    pthread_barrier_t barrier;

    explicit GpuRanks(int ranks) : count(ranks), comm((size_t)ranks) {
        std::vector<int> devices;
        for (int r = 0; r < ranks; r++) {
            devices.push_back(r);
        }
        NCCL_MUST(ncclCommInitAll(comm.data(), ranks, devices.data()));
        pthread_barrier_init(&barrier, NULL, (unsigned)ranks);
    }
    ~GpuRanks() {
        for (ncclComm_t c : comm) {
            ncclCommDestroy(c);
        }
        pthread_barrier_destroy(&barrier);
    }
    GpuRanks(const GpuRanks &) = delete;
    GpuRanks &operator=(const GpuRanks &) = delete;

    /* work(rank, stream) on all ranks at once, each with its GPU current. */
    void run(const std::function<void(int, cudaStream_t)> &work) {
        std::vector<std::thread> threads;
        for (int r = 0; r < count; r++) {
            threads.emplace_back([&, r] {
                cudaStream_t stream;
                GPU_MUST(cudaSetDevice(r));
                GPU_MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
                work(r, stream);
                GPU_MUST(cudaStreamSynchronize(stream));
                GPU_MUST(cudaStreamDestroy(stream));
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

/* Ranks that this machine has; says what is skipped below two. */
static inline int gpu_ranks(int tests, int most) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
        printf("MF_SKIPPED %d needs two GPUs, found %d\n", tests, count);
        exit(0);
    }
    return count < most ? count : most;
}

#endif
