/* device_work.c - small work on the device: copies, zeroes, what the host reads. */
#include "executor/step/exec.h"

#include <string.h>

mf_status mf_exec_copy(const mf_exec *x, void *to, const void *from, size_t size_B, mf_err *e) {
    return size_B > 0 ? mf_exec_device(x)->copy(x->queue, to, from, size_B, e) : MF_OK;
}

mf_status mf_exec_zero_out(const mf_exec *x, void *to, size_t size_B, mf_err *e) {
    return size_B > 0 ? mf_exec_device(x)->zero(x->queue, to, size_B, e) : MF_OK;
}

mf_status mf_exec_fetch(const mf_exec *x, void *host, const void *device, size_t size_B,
                        mf_err *e) {
    mf_status status = mf_exec_copy(x, host, device, size_B, e);
    return status == MF_OK ? mf_exec_device(x)->wait(x->device, e) : status;
}

mf_status mf_exec_put(mf_exec *x, void *device, const void *host, size_t size_B, mf_err *e) {
    mf_status status = mf_exec_copy(x, device, host, size_B, e);
    return status == MF_OK ? mf_exec_device(x)->wait(x->device, e) : status;
}

void mf_exec_use_scratch(mf_exec *x, mf_stream stream) {
    x->env.scratch = (char *)x->scratch + x->scratch_plan.at_B[stream];
    x->env.scratch_B = (size_t)x->scratch_plan.part_B[stream];
}

mf_status mf_exec_add_group(mf_exec *x, int64_t color, mf_group_kind *out, mf_err *e) {
    mf_group_kind same;
    mf_status status = mf_comm_add(x->comm, color, out, e);
    if (status == MF_OK && x->wire != x->comm) {
        status = mf_comm_add(x->wire, color, &same, e);
        if (status == MF_OK && same != *out) {
            status = mf_err_set(e, MF_INTERNAL, "groups of ranks were made in another order");
        }
    }
    return status;
}
