/* nccl_device.h - the device side of what stands in for NCCL on one GPU: pointers into the windows
 * of all ranks, and barriers between the blocks or warps of one number. */
#ifndef MF_TESTS_ONE_GPU_NCCL_DEVICE_H
#define MF_TESTS_ONE_GPU_NCCL_DEVICE_H

#include "nccl.h"

#include <cuda/atomic>

struct ncclTeamTagLsa {};

struct ncclCoopWarp {
    __device__ void sync(void) const {
        __syncwarp();
    }
    __device__ int number(void) const {
        return (int)threadIdx.x % 32;
    }
};
struct ncclCoopCta {
    __device__ void sync(void) const {
        __syncthreads();
    }
    __device__ int number(void) const {
        return (int)threadIdx.x;
    }
};

__device__ static inline void *ncclGetLsaPointer(ncclWindow_t window, size_t offset, int peer) {
    return window->of[peer] + offset;
}

template <typename Coop> class ncclLsaBarrierSession {
  public:
    __device__ ncclLsaBarrierSession(Coop, const ncclDevComm &comm, ncclTeamTagLsa, unsigned index)
        : comm_(comm), index_(index), epoch_(epochs()[index]) {
    }
    __device__ ~ncclLsaBarrierSession() {
        coop_.sync();
        if (coop_.number() == 0) {
            epochs()[index_] = epoch_;
        }
    }
    ncclLsaBarrierSession(const ncclLsaBarrierSession &) = delete;
    __device__ void arrive(Coop, cuda::memory_order order) {
        coop_.sync();
        if (coop_.number() < comm_.lsaSize) {
            cuda::atomic_ref<uint32_t> box(*inbox(coop_.number(), comm_.rank));
            box.store(epoch_ + 1, order);
        }
    }
    __device__ void wait(Coop, cuda::memory_order) {
        if (coop_.number() < comm_.lsaSize) {
            cuda::atomic_ref<uint32_t> box(*inbox(comm_.rank, coop_.number()));
            while ((int32_t)(box.load(cuda::memory_order_acquire) - (epoch_ + 1)) < 0) {
            }
        }
        epoch_++;
        coop_.sync();
    }

  private:
    const ncclDevComm &comm_;
    Coop coop_;
    unsigned index_;
    uint32_t epoch_;
    __device__ uint32_t *inbox(int owner, int from) const {
        return (uint32_t *)comm_.flags.of[owner] + index_ * (unsigned)comm_.lsaSize + from;
    }
    __device__ uint32_t *epochs(void) const {
        return (uint32_t *)comm_.flags.of[comm_.rank] + comm_.barriers * comm_.lsaSize;
    }
};

#endif
