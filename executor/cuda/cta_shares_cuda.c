/* cta_shares_cuda.c - how the multiprocessors of the GPU at hand are shared. */
#include "executor/cuda/cta_shares_cuda.h"

#include "kernels/device/cuda_check.h"

#include <cuda_runtime_api.h>

mf_status mf_cuda_cta_shares(const mf_layout *l, mf_cta_shares *out, mf_err *e) {
    int device = 0, sms = 0;
    *out = (mf_cta_shares){0};
    MF_CUDA_TRY(cudaGetDevice(&device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), e);
    *out = mf_cta_shares_of(l, sms);
    return MF_OK;
}
