/* update.cu - CUDA kernel of what comes before an update of the weights: one warp looks at the
 * sums, its first thread decides.
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
