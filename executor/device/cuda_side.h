/* cuda_side.h - what libmoefold_cuda.so gives to the program that loads it. Planning needs no CUDA
 * library: the program has no link to one, and loads this when it trains on GPUs.
 */
#ifndef MF_EXECUTOR_CUDA_SIDE_H
#define MF_EXECUTOR_CUDA_SIDE_H

#include "executor/comm/comm_ops.h"
#include "executor/device/device.h"

/* Program and library have structs in common, so a library of another build is refused. */
#define MF_CUDA_SIDE_ABI                                                                           \
    ((uint32_t)(sizeof(mf_device_ops) * 1000003u + sizeof(mf_model) * 1009u +                      \
                sizeof(mf_layout) * 31u + sizeof(mf_op) + sizeof(mf_comm_ops) * 7919u +            \
                sizeof(mf_comm)))

typedef struct mf_cuda_side {
    uint32_t abi;
    mf_status (*count)(int *out, mf_err *e); /* GPUs that this process sees */
    /* "NVIDIA H200" */
    mf_status (*name)(int index, char *text, size_t size, mf_err *e);
    /* Makes GPU `index` the thread's device; its own ops close it. MF_INFEASIBLE: the kernels are
     * not built for this GPU. */
    mf_status (*open)(int index, mf_device **out, mf_err *e);
} mf_cuda_side;

/* In the library, under this name: */
#define MF_CUDA_SIDE_SYMBOL "mf_cuda_side_of"
const mf_cuda_side *mf_cuda_side_of(void);
mf_status mf_device_cuda_open(int index, mf_device **out, mf_err *e);
mf_status mf_device_cuda_count(int *out, mf_err *e);

/* Loads the library when first called: from MOEFOLD_CUDA_LIBRARY, beside the program, or from
 * ../lib/moefold. MF_LIBRARY with the loader's words where it is missing or cannot be loaded. Not
 * thread-safe. */
mf_status mf_cuda_side_load(const mf_cuda_side **out, mf_err *e);

#endif
