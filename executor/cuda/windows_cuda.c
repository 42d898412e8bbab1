/* windows_cuda.c - windows of a fused dispatcher, over the NCCL communicator of the EP group. */
#include "executor/comm/comm_ops.h"
#include "executor/cuda/comm_nccl_cuda.h"
#include "executor/cuda/cta_shares_cuda.h"
#include "executor/cuda/device_cuda.h"

#include <stdlib.h>
#include <string.h>

/* Why these ranks have none, the same on all of them; NULL: they may have. */
static const char *lacks(const mf_comm *wire) {
    const char *by = getenv("MOEFOLD_DISPATCH");
    return by != NULL && strcmp(by, "slots") == 0   ? "MOEFOLD_DISPATCH=slots asks for them"
           : mf_comm_nccl_is_shared(wire)           ? "ranks share a GPU"
           : !mf_comm_nccl_group(wire, MF_GROUP_EP) ? "the group has no communicator of NCCL"
                                                    : NULL;
}

/* Thread blocks of the window's kernels. All other kernels that spin on ranks must fit on the SMs
 * beside them: next to compute they take as many as NCCL would, else what the others leave. */
static mf_status find_blocks(const mf_comm *wire, mf_dispatch_blocks *out, mf_err *e) {
    mf_cta_shares s;
    mf_status status = mf_cuda_cta_shares(&wire->layout, &s, e);
    const int rest = s.free - (s.kinds - 1) * s.each;
    out->alone = rest < s.each ? s.each : rest;
    out->beside = s.each < MF_DISPATCH_BLOCKS_BESIDE ? s.each : MF_DISPATCH_BLOCKS_BESIDE;
    return status;
}

mf_status mf_cuda_window_open(mf_device *d, mf_comm *wire, const mf_dispatch_shape *s,
                              mf_dispatch_group **out, mf_dispatch_view *view, mf_err *e) {
    const char *why = lacks(wire);
    mf_dispatch_blocks blocks = {0};
    (void)d; /* which is current */
    *out = NULL;
    if (why != NULL) {
        return mf_err_set(e, MF_INFEASIBLE, "%s", why);
    }
    mf_status status = find_blocks(wire, &blocks, e);
    void *group = mf_comm_nccl_group(wire, MF_GROUP_EP);
    status = status == MF_OK ? mf_dispatch_group_create(group, s, blocks, out, e) : status;
    if (status == MF_OK) {
        *view = *mf_dispatch_group_view(*out);
    }
    return status;
}

void mf_cuda_window_close(mf_device *d, mf_dispatch_group *g) {
    (void)d->ops->wait(d, NULL);
    mf_dispatch_group_destroy(g);
}

mf_status mf_cuda_window_dispatch(mf_queue *q, mf_dispatch_group *g, const mf_kernel_dispatch *a,
                                  mf_err *e) {
    return mf_cuda_preparing(q) ? MF_OK : mf_kernel_dispatch_run_cuda(g, a, q->stream, e);
}

mf_status mf_cuda_window_combine(mf_queue *q, mf_dispatch_group *g, const mf_kernel_combine *a,
                                 mf_err *e) {
    return mf_cuda_preparing(q) ? MF_OK : mf_kernel_combine_run_cuda(g, a, q->stream, e);
}
