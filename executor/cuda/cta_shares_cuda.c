/* cta_shares_cuda.c - thread blocks of kernels that wait for other ranks. */
#include "executor/cuda/cta_shares_cuda.h"

#include "core/schedule/schedule.h"
#include "kernels/device/cuda_check.h"

#include <cuda_runtime_api.h>

mf_status mf_cta_shares_of(const mf_layout *l, mf_cta_shares *out, mf_err *e) {
    const int kinds =
        (l->tp > 1) + (l->cp > 1) + (l->ep * l->etp > 1) + (l->dp * l->cp > 1) + (l->edp > 1);
    const int sends = 2 * mf_schedule_sending(l), messages = sends > 0 ? sends + 1 : 0;
    int device = 0, sms = 0;
    *out = (mf_cta_shares){0};
    MF_CUDA_TRY(cudaGetDevice(&device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), e);
    const int left = sms - messages * MF_MESSAGE_CTAS, most = left / (kinds > 0 ? kinds : 1);
    *out =
        (mf_cta_shares){.free = left,
                        .kinds = kinds,
                        .each = most > 0 && most < MF_NCCL_TAKES_CTAS ? most : MF_NCCL_TAKES_CTAS};
    return MF_OK;
}
