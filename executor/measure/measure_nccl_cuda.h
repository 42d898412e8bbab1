/* measure_nccl_cuda.h - the GPUs of one host as NCCL ranks of one process, for measuring. */
#ifndef MF_EXECUTOR_MEASURE_NCCL_CUDA_H
#define MF_EXECUTOR_MEASURE_NCCL_CUDA_H

#include "executor/measure/measure_cuda.h"

typedef struct mf_measure_gpus mf_measure_gpus;

/* Communicators of 2 .. ranks GPUs. MF_USAGE without that many GPUs, MF_LIBRARY, MF_NOMEM. */
mf_status mf_measure_gpus_open(int ranks, mf_measure_gpus **out, mf_err *e);
void mf_measure_gpus_close(mf_measure_gpus *w);
/* Times a collective or a "beside" point. MF_INPUT when it cannot be measured here. */
mf_status mf_measure_gpus_point(mf_measure_gpus *w, const mf_point *p, mf_measure_time *out,
                                mf_err *e);
void mf_measure_nccl_version(char *text, size_t size);

#endif
