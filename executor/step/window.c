/* window.c - the window of a fused dispatcher: opened once, for all layers and both passes. */
#include "executor/step/exec.h"

#include "executor/comm/comm_status.h"

#include <stdio.h>
#include <string.h>

_Static_assert((int)MF_WINDOW_RANKS_MAX == (int)MF_DISPATCH_RANKS_MAX &&
                   (int)MF_WINDOW_TOP_K_MAX == (int)MF_DISPATCH_TOP_K_MAX,
               "what the plan gives a window, the kernels take");

/* Of this rank's stage; all of its layers with experts have the same. */
static bool find_shape(const mf_exec *x, mf_dispatch_shape *s, mf_dispatch_memory *memory) {
    const mf_layout *l = &x->p->layout;
    memory->window_B = 0;
    for (int i = 0; i < x->p->assignment.positions && memory->window_B == 0; i++) {
        const mf_block *b = x->positions[i].block;
        for (int k = 0; b != NULL && k < b->nforward && memory->window_B == 0; k++) {
            const mf_op *op = &b->ops[k];
            if (op->kind == MF_OP_DISPATCH) {
                *memory = mf_dispatch_memory_of(l, &x->p->cluster, b, op);
                *s = (mf_dispatch_shape){.ranks = (int)l->ep,
                                         .tokens = op->dim[MF_OP_DIM_TOKENS],
                                         .cols = b->tensors[op->out[0]].cols,
                                         .top_k = op->dim[MF_OP_DIM_TOP_K],
                                         .experts = op->dim[MF_OP_DIM_EXPERTS],
                                         .shared = true};
            }
        }
    }
    return memory->window_B > 0;
}

static mf_status open_own(mf_exec *x, const mf_dispatch_shape *s, mf_err *e) {
    if ((int64_t)mf_dispatch_window_B(s) != x->window.memory.window_B) {
        return mf_err_set(e, MF_INTERNAL, "a window of %zu bytes, %lld are planned",
                          mf_dispatch_window_B(s), (long long)x->window.memory.window_B);
    }
    return mf_exec_device(x)->window_open(x->device, x->wire, s, &x->window.group, &x->window.view,
                                          e);
}

/* window_B: of the ranks that have one; a stage without experts has none. */
static void tell(mf_exec *x, double window_B, const mf_err *why) {
    if (window_B > 0.0) {
        snprintf(x->dispatch_text, sizeof x->dispatch_text,
                 "fused, into the memory of the %lld GPUs of a group: windows of %.3f GB",
                 (long long)x->p->layout.ep, 1e-9 * window_B);
    } else {
        snprintf(x->dispatch_text, sizeof x->dispatch_text,
                 "fused, in slots of equal size through NCCL%s%.120s%s",
                 why->text[0] != '\0' ? " (" : "", why->text, why->text[0] != '\0' ? ")" : "");
    }
}

/* All ranks go through windows, or none does. */
mf_status mf_exec_window_open(mf_exec *x, mf_err *e) {
    const mf_layout *l = &x->p->layout;
    mf_dispatch_shape s = {0};
    mf_err why = {.text = ""};
    if (mf_exec_device(x)->on_host || l->ep == 1 || l->dispatcher != MF_DISPATCH_FUSED) {
        return MF_OK;
    }
    mf_status status = MF_OK;
    if (mf_exec_device(x)->window_open != NULL) {
        status = find_shape(x, &s, &x->window.memory) ? open_own(x, &s, &why) : MF_OK;
        status = mf_comm_agree(x->comm, status, &why);
    }
    if (status != MF_OK) {
        mf_exec_window_close(x);
    }
    if (status == MF_INTERNAL) {
        return mf_err_set(e, status, "%s", why.text);
    }
    double window_B = (double)mf_exec_window_B(x);
    status = mf_comm_all_reduce(x->comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, &window_B, 1, e);
    tell(x, window_B, &why);
    return status;
}

/* Peers' writes to this rank arrive before its own kernels end; closing waits for these. */
void mf_exec_window_close(mf_exec *x) {
    if (x->window.group != NULL) {
        mf_exec_device(x)->window_close(x->device, x->window.group);
    }
    x->window = (mf_ops_window){.group = NULL};
}

const char *mf_exec_dispatch_text(const mf_exec *x) {
    return x->dispatch_text;
}

int64_t mf_exec_window_B(const mf_exec *x) {
    return x->window.group != NULL ? x->window.memory.window_B : 0;
}
