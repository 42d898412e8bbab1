/* hopper_wgmma.cuh - more warpgroup matrix products (kernels/device/hopper.cuh has those of the
 * grouped products): as wide as their sums, and with the left operand in registers.
 *
 * Names end in s, or in r, and N: d[64 x N] (+)= A[64 x 16] B[16 x N], bf16. s: both from shared
 * memory; r: A from registers: thread t of the warpgroup holds, for r = 16 (t / 32) + (t % 32) /
 * 4 and c = 2 (t % 4), pairs of bf16, the lower column in the lower half: a[0] at (r, c), a[1] at
 *     (r + 8, c), a[2] at (r, c + 8), a[3] at (r + 8, c + 8). So 16 columns of sums become a left
 *     operand by rounding alone: d[8k..8k+7] -> a[0..3].
 */
#ifndef MF_KERNELS_HOPPER_WGMMA_CUH
#define MF_KERNELS_HOPPER_WGMMA_CUH

#include "kernels/device/hopper.cuh"

template <int MN_A, int MN_B>
MF_DEVICE void mf_wgmma_s192(float (&d)[96], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
                 "%96, %97, p, 1, 1, %99, %100;\n"
                 "}"
                 : MF_D64(0), MF_D16(64), MF_D16(80)
                 : "l"(a), "l"(b), "r"(add), "n"(MN_A), "n"(MN_B));
}

template <int MN_B>
MF_DEVICE void mf_wgmma_r128(float (&d)[64], const uint32_t *a, uint64_t b, int add) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n"
                 "}"
                 : MF_D64(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(MN_B));
}

template <int MN_B>
MF_DEVICE void mf_wgmma_r192(float (&d)[96], const uint32_t *a, uint64_t b, int add) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %101, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
                 "{%96, %97, %98, %99}, %100, p, 1, 1, %102;\n"
                 "}"
                 : MF_D64(0), MF_D16(64), MF_D16(80)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(MN_B));
}

#endif
