/* dispatch_group.cuh - what the kernels of dispatch and combine know of their group: where things
 * lie in every rank's window, and who owns a token's experts. */
#ifndef MF_KERNELS_DISPATCH_GROUP_CUH
#define MF_KERNELS_DISPATCH_GROUP_CUH

#include "kernels/device/cuda_bulk.cuh"
#include "kernels/device/cuda_common.cuh"
#include "kernels/dispatch/dispatch.h"

#include <nccl_device.h>

/* Offsets into every rank's window. */
struct Group {
    ncclWindow_t window;
    int ranks, rank;
    int64_t tokens, cols, top_k, each; /* each: experts of a rank */
    size_t rows, partial, index, prob, prob_grad;
    unsigned flags; /* the first barrier of combine: those before it are of dispatch's blocks */
};

template <typename T> __device__ static T *at_peer(const Group &r, size_t offset, int peer) {
    return (T *)ncclGetLsaPointer(r.window, offset, peer);
}

/* The ranks that own an expert of the token, as bits; lane j holds choice j (or -1). */
__device__ static unsigned owners(const Group &r, int choice) {
    const unsigned bit = choice >= 0 ? 1u << (choice / (int)r.each) : 0u;
    return __reduce_or_sync(0xffffffffu, bit);
}

__device__ static int choice_of(const Group &r, const int32_t *index, int64_t t) {
    const int lane = (int)threadIdx.x % 32;
    return lane < r.top_k ? index[t * r.top_k + lane] : -1;
}

/* Arrival at a barrier with the peers. Not `after_stores`: it only says that this kernel has begun,
 * so that those before it have read what the peers will overwrite. A release would wait for
 * deliveries that have nothing to do with it. */
template <typename Barrier, typename Coop>
__device__ static void arrive_at_peers(Barrier &barrier, Coop coop, bool after_stores) {
    if (after_stores) {
        barrier.arrive(coop, cuda::memory_order_release);
    } else {
        barrier.arrive(coop, cuda::memory_order_relaxed);
    }
}

#endif
