/* backend_cpu_norm.c - norms on the CPU: of rows, of heads, and of rows that TP ranks share. */
#include "executor/backend_cpu.h"

#include "kernels/norm_split.h"
#include "kernels/rmsnorm.h"

#include <string.h>

/* A norm's parts: the whole row, or q heads and k heads of a fused projection; what is left of the
 * row passes through. */
typedef struct norm_part {
    int64_t groups, cols, x_at, weight_at, rstd_at;
    int64_t total, copies; /* of a shared row: columns of all TP ranks, ranks that hold each */
} norm_part;

static int norm_parts(const mf_exec_op *x, const mf_exec_tensor *y, norm_part part[2]) {
    const mf_model *m = x->env->model;
    int64_t width = x->forward->dim[1];
    if (strcmp(x->forward->name, "qk_norm") != 0) {
        part[0] = (norm_part){1, width, 0, 0, 0, width, 1};
        return 1;
    }
    int64_t d = m->head_dim, tp = x->env->layout->tp, heads = m->heads / tp;
    int64_t kv = (y->cols / d - heads) / 2;
    if (m->qk_norm_full) {
        int64_t copies = tp * kv / m->kv_heads;
        part[0] = (norm_part){1, heads * d, 0, 0, 0, m->heads * d, 1};
        part[1] = (norm_part){1, kv * d, heads * d, heads * d, y->rows, m->kv_heads * d, copies};
        return 2;
    }
    part[0] = (norm_part){heads, d, 0, 0, 0, d, 1};
    part[1] = (norm_part){kv, d, heads * d, d, y->rows * heads, d, 1};
    return 2;
}

static mf_status rest_of_rows(const mf_exec_op *x, const mf_exec_tensor *from,
                              const mf_exec_tensor *to, const norm_part *last, mf_err *e) {
    int64_t at = last->x_at + last->groups * last->cols;
    if (at >= to->cols) {
        return MF_OK;
    }
    (void)x;
    return mf_cpu_copy(to->dtype, to->rows, to->cols - at, mf_cpu_at(from, at), from->cols,
                       mf_cpu_at(to, at), to->cols, e);
}

/* Norms of latent projections keep the 1e-6 of DeepSeek's published code, whatever the others. */
static float eps_of(const mf_exec_op *x) {
    const char *name = x->forward->name;
    bool latent = strcmp(name, "q_a_norm") == 0 || strcmp(name, "kv_a_norm") == 0;
    return latent ? 1e-6f : (float)x->env->model->rms_norm_eps;
}

/* Part i of a row that TP ranks share; sums lie part by part, [2, rows]. */
static mf_kernel_norm_split split_of(const mf_exec_op *x, const norm_part *part, int i,
                                     const mf_exec_tensor *in, const mf_exec_tensor *y,
                                     float *sums) {
    const mf_exec_tensor *w = &x->weight[1]; /* none where squares are summed */
    return (mf_kernel_norm_split){.dtype = in->dtype,
                                  .rows = in->rows,
                                  .cols = part[i].cols,
                                  .total = part[i].total,
                                  .x_stride = in->cols,
                                  .y_stride = y->cols,
                                  .eps = eps_of(x),
                                  .share = 1.0f / (float)part[i].copies,
                                  .x = mf_cpu_at(in, part[i].x_at),
                                  .weight =
                                      w->data != NULL ? mf_cpu_at(w, part[i].weight_at) : NULL,
                                  .sum = sums + i * in->rows};
}

mf_status mf_cpu_norm_sum(const mf_exec_op *x, mf_err *e) {
    bool backward = x->op->pass == MF_PASS_B;
    const mf_exec_tensor *in = &x->in[backward ? 1 : 0], *y = &x->in[0];
    norm_part part[2];
    int parts = norm_parts(x, in, part);
    mf_status status = MF_OK;
    for (int i = 0; i < parts && status == MF_OK; i++) {
        mf_kernel_norm_split a = split_of(x, part, i, in, y, x->out[0].data);
        a.dy = mf_cpu_at(y, part[i].x_at);
        status = backward ? mf_kernel_norm_split_dot(&a, e) : mf_kernel_norm_split_square(&a, e);
    }
    return status;
}

mf_status mf_cpu_rmsnorm(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *in = &x->in[0], *y = NULL;
    float *rstd = NULL;
    for (int k = 0; k < x->op->nout; k++) {
        if (x->out_of[k] == 0) {
            y = &x->out[k];
        } else {
            rstd = x->out[k].data;
        }
    }
    if (y == NULL) {
        return MF_OK;
    }
    norm_part part[2];
    int parts = norm_parts(x, y, part);
    mf_status status = MF_OK;
    for (int i = 0; i < parts && status == MF_OK; i++) {
        if (x->nin > 2) {
            mf_kernel_norm_split s = split_of(x, part, i, in, y, x->in[2].data);
            s.y = mf_cpu_at(y, part[i].x_at);
            s.rstd = rstd != NULL ? rstd + part[i].rstd_at : NULL;
            status = mf_kernel_norm_split_forward(&s, e);
            continue;
        }
        const mf_kernel_rmsnorm a = {.dtype = y->dtype,
                                     .rows = y->rows,
                                     .groups = part[i].groups,
                                     .cols = part[i].cols,
                                     .x_stride = in->cols,
                                     .y_stride = y->cols,
                                     .eps = eps_of(x),
                                     .x = mf_cpu_at(in, part[i].x_at),
                                     .weight = mf_cpu_at(&x->weight[1], part[i].weight_at),
                                     .y = mf_cpu_at(y, part[i].x_at),
                                     .rstd = rstd != NULL ? rstd + part[i].rstd_at : NULL};
        status = mf_kernel_rmsnorm_forward(&a, e);
    }
    return status == MF_OK ? rest_of_rows(x, in, y, &part[parts - 1], e) : status;
}

mf_status mf_cpu_rmsnorm_grad(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *dy = &x->in[0], *in = &x->in[1], *dx = &x->out[0], *dw = &x->out[1];
    float *rstd = x->in[2].data;
    norm_part part[2];
    int parts = norm_parts(x, dy, part);
    mf_status status = rest_of_rows(x, dy, dx, &part[parts - 1], e);
    for (int i = 0; i < parts && status == MF_OK; i++) {
        if (x->forward_nin > 2) {
            mf_kernel_norm_split s = split_of(x, part, i, in, dy, x->in[3].data);
            s.dy = mf_cpu_at(dy, part[i].x_at);
            s.dx = mf_cpu_at(dx, part[i].x_at);
            s.rstd = rstd + part[i].rstd_at;
            s.dweight = (float *)dw->data + part[i].weight_at;
            status = mf_kernel_norm_split_backward(&s, e);
            continue;
        }
        const mf_kernel_rmsnorm_grad a = {.dtype = dx->dtype,
                                          .rows = dy->rows,
                                          .groups = part[i].groups,
                                          .cols = part[i].cols,
                                          .x_stride = in->cols,
                                          .y_stride = dy->cols,
                                          .x = mf_cpu_at(in, part[i].x_at),
                                          .weight = mf_cpu_at(&x->weight[1], part[i].weight_at),
                                          .rstd = rstd + part[i].rstd_at,
                                          .dy = mf_cpu_at(dy, part[i].x_at),
                                          .dx = mf_cpu_at(dx, part[i].x_at),
                                          .dweight = (float *)dw->data + part[i].weight_at};
        status = mf_kernel_rmsnorm_backward(&a, e);
    }
    return status == MF_OK ? mf_cpu_add_sum(x, 0, e) : status;
}
