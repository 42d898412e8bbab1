/* update.cu - CUDA kernels of what comes before an update of the weights: one warp looks at the
 * sums, its first thread decides; and of the clock of a rank's work, one thread.
 */
#include "kernels/device/cuda_common.cuh"
#include "kernels/optimizer/update_terms.h"

static __global__ void update_begin(mf_kernel_update_begin a) {
    mf_await();
    bool finite = true;
    for (int64_t i = threadIdx.x; i < a.also_count; i += 32) {
        finite = finite && isfinite(a.also_finite[i]);
    }
    finite = __all_sync(0xffffffffu, finite);
    if (threadIdx.x == 0) {
        mf_update_decide(&a, finite);
    }
}

extern "C" mf_status mf_kernel_update_begin_step_cuda(const mf_kernel_update_begin *a, void *stream,
                                                      mf_err *e) {
    return mf_launch(update_begin, dim3(1), dim3(32), 0, (cudaStream_t)stream, e, *a);
}

static __global__ void progress(mf_kernel_progress a) {
    mf_await();
    *(volatile int32_t *)a.word = a.place;
}

extern "C" mf_status mf_kernel_progress_tell_cuda(const mf_kernel_progress *a, void *stream,
                                                  mf_err *e) {
    return mf_launch(progress, dim3(1), dim3(1), 0, (cudaStream_t)stream, e, *a);
}

/* What is in front of it has ended: mf_await waits for all of it. */
static __global__ void work_clock(mf_kernel_work_clock a) {
    unsigned long long now_ns;
    mf_await();
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now_ns));
    mf_update_turn(&a, (int64_t)now_ns);
}

extern "C" mf_status mf_kernel_work_clock_turn_cuda(const mf_kernel_work_clock *a, void *stream,
                                                    mf_err *e) {
    return mf_launch(work_clock, dim3(1), dim3(1), 0, (cudaStream_t)stream, e, *a);
}
