/* cuda_check.h - one macro through which every CUDA runtime result passes: it keeps CUDA's own
 * words and the call's text, and returns MF_LIBRARY from the enclosing function (MF_CUDA_TRY) or
 * sets `status` and jumps to `out` (MF_CUDA_GOTO). */
#ifndef MF_KERNELS_CUDA_CHECK_H
#define MF_KERNELS_CUDA_CHECK_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "core/base/status.h"
#ifdef __cplusplus
}
#endif

/* What was reported is CUDA's last error no more: the next launch would find it again. */
#define MF_CUDA_SET(e, result, what)                                                               \
    ((void)cudaGetLastError(), mf_err_set((e), MF_LIBRARY, "CUDA: %s: %s (%s)", (what),            \
                                          cudaGetErrorString(result), cudaGetErrorName(result)))

#define MF_CUDA_TRY(call, e)                                                                       \
    do {                                                                                           \
        cudaError_t cuda_result_ = (call);                                                         \
        if (cuda_result_ != cudaSuccess) {                                                         \
            return MF_CUDA_SET(e, cuda_result_, #call);                                            \
        }                                                                                          \
    } while (0)

#define MF_CUDA_GOTO(call, e)                                                                      \
    do {                                                                                           \
        cudaError_t cuda_result_ = (call);                                                         \
        if (cuda_result_ != cudaSuccess) {                                                         \
            status = MF_CUDA_SET(e, cuda_result_, #call);                                          \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

#endif
