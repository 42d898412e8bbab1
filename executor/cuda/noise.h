/* noise.h - values between -1 and 1 without a pattern, for products that are timed before there is
 * data: a product of zeros runs faster than one of numbers. Enqueues. MF_LIBRARY. */
#ifndef MF_EXECUTOR_CUDA_NOISE_H
#define MF_EXECUTOR_CUDA_NOISE_H

#include "kernels/kernel.h"

MF_KERNEL_C_BEGIN
mf_status mf_cuda_noise(void *data, mf_kernel_dtype d, int64_t count, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
