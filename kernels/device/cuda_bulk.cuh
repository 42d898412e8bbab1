/* cuda_bulk.cuh - whole rows between global and shared memory by the copy engine (cp.async.bulk,
 * compute capability 9.0), so that many rows are in flight without registers. Sizes and addresses
 * are multiples of 16 bytes. PTX ISA: mbarrier, cp.async.bulk.
 */
#ifndef MF_KERNELS_CUDA_BULK_CUH
#define MF_KERNELS_CUDA_BULK_CUH

#include <stdint.h>

__device__ static inline uint32_t mf_bulk_address(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* A barrier that completes a phase when one thread has arrived and its bytes have landed. Follow by
 * mf_bulk_init_done and __syncthreads before use. */
__device__ static inline void mf_bulk_init(uint64_t *bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(mf_bulk_address(bar)) : "memory");
}
__device__ static inline void mf_bulk_init_many(uint64_t *bar, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mf_bulk_address(bar)),
                 "r"(arrivals)
                 : "memory");
}
__device__ static inline void mf_bulk_init_done(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ static inline void mf_bulk_arrive(uint64_t *bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mf_bulk_address(bar)) : "memory");
}

/* Arrives and announces the bytes of the copies that follow. */
__device__ static inline void mf_bulk_expect(uint64_t *bar, uint32_t size_B) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mf_bulk_address(bar)),
        "r"(size_B)
        : "memory");
}

__device__ static inline void mf_bulk_load(void *shared, const void *global, uint32_t size_B,
                                           uint64_t *bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];" ::"r"(mf_bulk_address(shared)),
                 "l"((uint64_t)__cvta_generic_to_global(global)), "r"(size_B),
                 "r"(mf_bulk_address(bar))
                 : "memory");
}

__device__ static inline void mf_bulk_wait(uint64_t *bar, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(mf_bulk_address(bar)),
                 "r"(parity)
                 : "memory");
}

/* Orders this thread's earlier writes to shared memory before what the copy engine does there after
 * the next barrier. */
__device__ static inline void mf_bulk_fence(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The same for memory of every kind: what was read or acquired so far comes before what the copy
 * engine does from here on. */
__device__ static inline void mf_bulk_fence_all(void) {
    asm volatile("fence.proxy.async;" ::: "memory");
}

__device__ static inline void mf_bulk_store(void *global, const void *shared, uint32_t size_B) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     (uint64_t)__cvta_generic_to_global(global)),
                 "r"(mf_bulk_address(shared)), "r"(size_B)
                 : "memory");
}
__device__ static inline void mf_bulk_commit(void) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Until all but this thread's last N groups have read their shared memory. */
template <int N> __device__ inline void mf_bulk_wait_read(void) {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
template <int N> __device__ inline void mf_bulk_wait_done(void) {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

#endif
