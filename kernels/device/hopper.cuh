/* hopper.cuh - the instructions of compute capability 9.0a that CUDA C++ has no words for, one thin
 * function each: transaction barriers, bulk tensor copies, warpgroup matrix products.
 * Names and semantics follow the PTX ISA (mbarrier, cp.async.bulk.tensor, wgmma, setmaxnreg).
 * Addresses of shared memory are 32-bit shared-window addresses.
 */
#ifndef MF_KERNELS_HOPPER_CUH
#define MF_KERNELS_HOPPER_CUH

#include <cuda.h>
#include <stdint.h>
#ifdef MF_HOPPER_WATCHDOG
#include <stdio.h>
#endif

#define MF_DEVICE static __device__ __forceinline__
#define MF_DEVICE_MEMBER __device__ __forceinline__

/* --- threads, clusters ------------------------------------------------------------------------ */
MF_DEVICE uint32_t mf_smem_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

MF_DEVICE uint32_t mf_cluster_rank(void) {
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

MF_DEVICE uint32_t mf_cluster_id(void) {
    uint32_t r;
    asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(r));
    return r;
}

MF_DEVICE uint32_t mf_cluster_count(void) {
    uint32_t r;
    asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(r));
    return r;
}

/* A value that the compiler keeps rather than computing it again. */
MF_DEVICE uint32_t mf_opaque(uint32_t value) {
    asm volatile("" : "+r"(value));
    return value;
}

/* All threads of all blocks of the cluster; orders their memory accesses. */
MF_DEVICE void mf_cluster_sync(void) {
    asm volatile("barrier.cluster.arrive.aligned;\n"
                 "barrier.cluster.wait.aligned;" ::
                     : "memory");
}

MF_DEVICE void mf_bar_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int N> MF_DEVICE void mf_registers_give(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> MF_DEVICE void mf_registers_take(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* --- transaction barriers --------------------------------------------------------------------- */
MF_DEVICE void mf_mbar_init(uint32_t bar, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

MF_DEVICE void mf_mbar_init_fence(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arrives once and expects `bytes` more to be written by bulk copies. */
MF_DEVICE void mf_mbar_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

MF_DEVICE void mf_mbar_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Arrives at the barrier of the same address in block `rank` of the cluster. */
MF_DEVICE void mf_mbar_arrive_at(uint32_t bar, uint32_t rank) {
    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
                 "}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}

/* Writes a word at the same address in block `rank` of the cluster, and counts its bytes at that
 * block's barrier of this address. */
MF_DEVICE void mf_store_at(uint32_t address, uint32_t bar, uint32_t rank, uint32_t value) {
    asm volatile("{\n"
                 ".reg .b32 to, by;\n"
                 "mapa.shared::cluster.u32 to, %0, %2;\n"
                 "mapa.shared::cluster.u32 by, %1, %2;\n"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %3, [by];\n"
                 "}" ::"r"(address),
                 "r"(bar), "r"(rank), "r"(value)
                 : "memory");
}

/* Waits until the phase of this parity is complete. With MF_HOPPER_WATCHDOG (for debugging) a wait
 * of more than about a second names its barrier and ends the kernel. */
MF_DEVICE void mf_mbar_wait(uint32_t bar, uint32_t parity) {
#ifdef MF_HOPPER_WATCHDOG
    for (long long start = clock64();;) {
        uint32_t done;
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
        if (done) {
            return;
        }
        if (clock64() - start > 1500000000ll) {
            printf("stuck: block %d thread %d barrier %x parity %u\n", (int)blockIdx.x,
                   (int)threadIdx.x, bar, parity);
            __trap();
        }
    }
#else
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra finished;\n"
                 "bra again;\n"
                 "finished:\n"
                 "}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
#endif
}

/* --- bulk tensor copies ----------------------------------------------------------------------- */
/* Makes this thread's writes to shared memory visible to the copy engine and the tensor cores. */
MF_DEVICE void mf_fence_async(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

MF_DEVICE void mf_tma_prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"((uint64_t)map) : "memory");
}

MF_DEVICE void mf_tma_load(uint32_t dst, const CUtensorMap *map, uint32_t bar, int x, int y,
                           int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
                 "l"((uint64_t)map), "r"(bar), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

/* Writes the same box at the same address of each block in `mask`, and tells each one's barrier. */
MF_DEVICE void mf_tma_load_multicast(uint32_t dst, const CUtensorMap *map, uint32_t bar, int x,
                                     int y, int z, uint16_t mask) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(dst),
                 "l"((uint64_t)map), "r"(bar), "r"(x), "r"(y), "r"(z), "h"(mask)
                 : "memory");
}

MF_DEVICE void mf_tma_store(const CUtensorMap *map, uint32_t src, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group"
                 " [%0, {%2, %3, %4}], [%1];" ::"l"((uint64_t)map),
                 "r"(src), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

/* Adds the box to what is in memory, element by element. */
MF_DEVICE void mf_tma_add(const CUtensorMap *map, uint32_t src, int x, int y, int z) {
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group"
                 " [%0, {%2, %3, %4}], [%1];" ::"l"((uint64_t)map),
                 "r"(src), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

MF_DEVICE void mf_tma_commit(void) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Until at most N of this thread's groups still read shared memory. */
template <int N> MF_DEVICE void mf_tma_wait_read(void) {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/* Until at most N of this thread's groups are not complete. */
template <int N> MF_DEVICE void mf_tma_wait(void) {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

/* --- warpgroup matrix products ---------------------------------------------------------------- */
/* Descriptor of an operand in 128-byte swizzled shared memory (PTX ISA, "matrix descriptor").
 * Rows of 64 bf16, 128 bytes each, in boxes of rows:
 *   reduction along the row (K-major):     `leading` unused
 *   reduction across the rows (MN-major):  `leading` between boxes (64 output rows or columns)
 * Groups of 8 rows are 1024 bytes apart. */
MF_DEVICE uint64_t mf_wgmma_descriptor(uint32_t low) {
    const uint32_t stride_1024_swizzle_128 = 1024 / 16 | 1u << 30;
    return (uint64_t)stride_1024_swizzle_128 << 32 | low;
}

/* Its low word, to which 1 may be added for each 16 bytes that the operand lies further on. */
MF_DEVICE uint32_t mf_wgmma_descriptor_low(uint32_t address, uint32_t leading_B) {
    return (address & 0x3ffffu) >> 4 | (leading_B >> 4) << 16;
}

MF_DEVICE void mf_wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

MF_DEVICE void mf_wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> MF_DEVICE void mf_wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps the compiler from moving the accumulators across this point. */
template <int N> MF_DEVICE void mf_wgmma_hold(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

/* d[64 x N] (+)= A[64 x 16] B[16 x N], bf16 from shared memory. Thread t of the warpgroup holds,
 * for row r = 16 (t / 32) + (t % 32) / 4 and column c = 8 j + 2 (t % 4): d[4j], d[4j+1] at (r, c),
 * (r, c+1) and d[4j+2], d[4j+3] at (r+8, c), (r+8, c+1). MN_A, MN_B: the operand is MN-major. */
#define MF_D4(i) "+f"(d[(i)]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define MF_D16(i) MF_D4(i), MF_D4((i) + 4), MF_D4((i) + 8), MF_D4((i) + 12)
#define MF_D64(i) MF_D16(i), MF_D16((i) + 16), MF_D16((i) + 32), MF_D16((i) + 48)

template <int MN_A, int MN_B>
MF_DEVICE void mf_wgmma_n256(float (&d)[128], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "
                 "%110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "
                 "%125, %126, %127}, "
                 "%128, %129, p, 1, 1, %131, %132;\n"
                 "}"
                 : MF_D64(0), MF_D64(64)
                 : "l"(a), "l"(b), "r"(add), "n"(MN_A), "n"(MN_B));
}

template <int MN_A, int MN_B>
MF_DEVICE void mf_wgmma_n128(float (&d)[128], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, p, 1, 1, %67, %68;\n"
                 "}"
                 : MF_D64(0)
                 : "l"(a), "l"(b), "r"(add), "n"(MN_A), "n"(MN_B));
}

/* Into the first 32 of a thread's sums. */
template <int MN_A, int MN_B, int SUMS>
MF_DEVICE void mf_wgmma_n64(float (&d)[SUMS], uint64_t a, uint64_t b, int add) {
    static_assert(SUMS >= 32, "64 columns have 32 sums a thread");
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1, %35, %36;\n"
                 "}"
                 : MF_D16(0), MF_D16(16)
                 : "l"(a), "l"(b), "r"(add), "n"(MN_A), "n"(MN_B));
}

/* Stores four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix
 * l / 8 and holds, of matrix i, elements (l / 4, 2 (l % 4)) and its right neighbour in r_i. */
MF_DEVICE void mf_stmatrix_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2,
                              uint32_t r3) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(r0), "r"(r1), "r"(r2), "r"(r3)
        : "memory");
}

#endif
