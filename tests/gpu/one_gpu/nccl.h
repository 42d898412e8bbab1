/* nccl.h - stands in for NCCL where several ranks share one GPU, which NCCL refuses: the few calls
 * that dispatch and its tests make, with threads of one process as ranks. So the kernels' work
 * between ranks is tested with any number of ranks on one GPU. Not for timing: nothing crosses a
 * link.
 *
 * Ranks call the collective functions in the same order, each from its thread.
 */
#ifndef MF_TESTS_ONE_GPU_NCCL_H
#define MF_TESTS_ONE_GPU_NCCL_H

#include <cuda_runtime.h>
#include <pthread.h>

#include <stddef.h>
#include <stdint.h>

#define MF_RANKS_ON_ONE_GPU 4 /* and fewer */
#define NCCL_VERSION_CODE 1
#define NCCL_WIN_COLL_SYMMETRIC 1

typedef enum { ncclSuccess, ncclUnhandledCudaError } ncclResult_t;
typedef enum { ncclChar = 1, ncclBfloat16 = 2 } ncclDataType_t; /* bytes */

struct FakeWorld {
    int ranks, comms;
    pthread_barrier_t all;
    void *shown[MF_RANKS_ON_ONE_GPU]; /* what each rank shows the others */
};
struct ncclComm {
    FakeWorld *world;
    int rank;
};
typedef ncclComm *ncclComm_t;

/* Every rank's pointer, for device code. */
struct FakePointers {
    char *of[MF_RANKS_ON_ONE_GPU];
};
typedef FakePointers *ncclWindow_t; /* on the device */

struct ncclDevCommRequirements {
    int lsaBarrierCount;
};
/* flags.of[r]: rank r's inbox [barriers, ranks], then its epochs [barriers]. */
struct ncclDevComm {
    int lsaSize, rank, barriers;
    FakePointers flags;
};

static inline const char *ncclGetErrorString(ncclResult_t r) {
    return r == ncclSuccess ? "no error" : cudaGetErrorString(cudaGetLastError());
}
static inline ncclResult_t fake_result(cudaError_t e) {
    return e == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
static inline ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

static inline ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ranks, const int *) {
    FakeWorld *w = new FakeWorld();
    w->ranks = w->comms = ranks;
    pthread_barrier_init(&w->all, NULL, (unsigned)ranks);
    for (int r = 0; r < ranks; r++) {
        comms[r] = new ncclComm{w, r};
    }
    return ncclSuccess;
}
static inline ncclResult_t ncclCommDestroy(ncclComm_t c) {
    if (--c->world->comms == 0) {
        pthread_barrier_destroy(&c->world->all);
        delete c->world;
    }
    delete c;
    return ncclSuccess;
}
static inline ncclResult_t ncclCommCount(ncclComm_t c, int *ranks) {
    *ranks = c->world->ranks;
    return ncclSuccess;
}
static inline ncclResult_t ncclCommUserRank(ncclComm_t c, int *rank) {
    *rank = c->rank;
    return ncclSuccess;
}
static inline ncclResult_t ncclMemAlloc(void **p, size_t size_B) {
    return fake_result(cudaMalloc(p, size_B));
}
static inline ncclResult_t ncclMemFree(void *p) {
    return fake_result(cudaFree(p));
}

/* What every rank shows. Two meetings: all have shown before any reads, and read before any shows
 * something else. */
static inline FakePointers fake_exchange(ncclComm_t c, void *mine) {
    FakePointers all;
    c->world->shown[c->rank] = mine;
    pthread_barrier_wait(&c->world->all);
    for (int r = 0; r < c->world->ranks; r++) {
        all.of[r] = (char *)c->world->shown[r];
    }
    pthread_barrier_wait(&c->world->all);
    return all;
}

static inline ncclResult_t ncclCommWindowRegister(ncclComm_t c, void *base, size_t,
                                                  ncclWindow_t *window, int) {
    const FakePointers all = fake_exchange(c, base);
    const cudaError_t e = cudaMalloc(window, sizeof all);
    return fake_result(e == cudaSuccess ? cudaMemcpy(*window, &all, sizeof all, cudaMemcpyDefault)
                                        : e);
}
static inline ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t window) {
    return fake_result(cudaFree(window));
}

static inline ncclResult_t ncclDevCommCreate(ncclComm_t c, const ncclDevCommRequirements *needs,
                                             ncclDevComm *out) {
    const size_t words = (size_t)needs->lsaBarrierCount * (size_t)(c->world->ranks + 1);
    void *mine = NULL;
    cudaError_t e = cudaMalloc(&mine, words * sizeof(uint32_t));
    e = e == cudaSuccess ? cudaMemset(mine, 0, words * sizeof(uint32_t)) : e;
    e = e == cudaSuccess ? cudaDeviceSynchronize() : e;
    *out = {c->world->ranks, c->rank, needs->lsaBarrierCount, fake_exchange(c, mine)};
    return fake_result(e);
}
static inline ncclResult_t ncclDevCommDestroy(ncclComm_t c, const ncclDevComm *d) {
    return fake_result(cudaFree(d->flags.of[c->rank]));
}

static inline ncclResult_t ncclAllGather(const void *send, void *recv, size_t count,
                                         ncclDataType_t type, ncclComm_t c, cudaStream_t stream) {
    void *mine;
    __builtin_memcpy(&mine, &send, sizeof mine);
    const FakePointers all = fake_exchange(c, mine);
    for (int r = 0; r < c->world->ranks; r++) {
        const cudaError_t e = cudaMemcpyAsync((char *)recv + (size_t)r * count * type, all.of[r],
                                              count * type, cudaMemcpyDefault, stream);
        if (e != cudaSuccess) {
            return fake_result(e);
        }
    }
    return ncclSuccess;
}

#endif
