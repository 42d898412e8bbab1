/* device_cuda.h - private to the CUDA device: its state and its queues. */
#ifndef MF_EXECUTOR_DEVICE_CUDA_H
#define MF_EXECUTOR_DEVICE_CUDA_H

#include "executor/cuda/scratch.h"
#include "executor/device/device.h"
#include "executor/device/nvml.h"

#include <cuda_runtime_api.h>

typedef struct mf_cuda_products mf_cuda_products;
typedef struct mf_cuda_attentions mf_cuda_attentions;

typedef struct mf_cuda_queue {
    mf_queue queue;
    cudaEvent_t reached; /* the point that other queues wait for; NULL while there is no stream */
    uint32_t *turns;     /* device memory: mf_kernel_grouped_gemm.turns of this queue's products */
} mf_cuda_queue;

typedef struct mf_device_cuda {
    mf_device device;
    mf_cuda_queue stream[MF_STREAM_COUNT]; /* of a program */
    mf_cuda_queue side[MF_DEVICE_SIDE_QUEUES];
    int index;
    bool preparing;
    bool fixed;          /* mf_device_ops.fix */
    cudaEvent_t *mark;   /* [marks] */
    cudaEvent_t *signal; /* [signals] */
    int64_t signals;
    cudaEvent_t point[MF_DEVICE_POINTS];
    int64_t marks;
    char name[64];
    mf_nvml *nvml; /* NULL: the driver says nothing */
    mf_cuda_products *products;
    mf_cuda_attentions *attentions;
} mf_device_cuda;

static inline mf_device_cuda *mf_cuda_of(mf_device *d) {
    return (mf_device_cuda *)(void *)d;
}
static inline bool mf_cuda_preparing(const mf_queue *q) {
    return mf_cuda_of(q->device)->preparing;
}

/* Dense products: plans by shape, made and measured while the device prepares. */
mf_status mf_cuda_products_open(mf_cuda_products **out, mf_err *e);
void mf_cuda_products_close(mf_cuda_products *p);
mf_status mf_cuda_gemm(mf_queue *q, const mf_device_gemm *a, mf_err *e);
mf_status mf_cuda_grouped(mf_queue *q, const mf_device_grouped *a, mf_err *e);

/* Attention: cuDNN's plans by shape. */
mf_status mf_cuda_attentions_open(mf_cuda_attentions **out, mf_err *e);
void mf_cuda_attentions_close(mf_cuda_attentions *p);
mf_status mf_cuda_attention(mf_queue *q, const mf_device_attention *a, mf_err *e);
mf_status mf_cuda_attention_grad(mf_queue *q, const mf_device_attention_grad *a, mf_err *e);

/* Captured work (graph_cuda.c). */
mf_status mf_cuda_capture_begin(mf_queue *q, mf_err *e);
mf_status mf_cuda_capture_end(mf_queue *q, mf_device_graph **out, mf_err *e);
mf_status mf_cuda_play(mf_queue *q, mf_device_graph *g, mf_err *e);
void mf_cuda_forget(mf_device_graph *g);

/* Windows of a fused dispatcher: see mf_device_ops. */
mf_status mf_cuda_window_open(mf_device *d, mf_comm *wire, const mf_dispatch_shape *s,
                              mf_dispatch_group **out, mf_dispatch_view *view, mf_err *e);
void mf_cuda_window_close(mf_device *d, mf_dispatch_group *g);
mf_status mf_cuda_window_dispatch(mf_queue *q, mf_dispatch_group *g, const mf_kernel_dispatch *a,
                                  mf_err *e);
mf_status mf_cuda_window_combine(mf_queue *q, mf_dispatch_group *g, const mf_kernel_combine *a,
                                 mf_err *e);

#endif
