/* cta_shares_cuda.h - core/schedule/cta_shares.h for the GPU at hand. */
#ifndef MF_EXECUTOR_CTA_SHARES_CUDA_H
#define MF_EXECUTOR_CTA_SHARES_CUDA_H

#include "core/schedule/cta_shares.h"

/* Of the current GPU. */
mf_status mf_cuda_cta_shares(const mf_layout *l, mf_cta_shares *out, mf_err *e);

#endif
