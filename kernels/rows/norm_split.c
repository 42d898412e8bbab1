/* norm_split.c - reference of the norm over rows that ranks share. */
#include "kernels/rows/norm_split.h"

#include <math.h>

size_t mf_kernel_norm_split_workspace_B(int64_t cols) {
    return (size_t)(MF_NORM_SPLIT_TEAMS * cols) * sizeof(float);
}

static double x_at(const mf_kernel_norm_split *a, int64_t r, int64_t c) {
    return (double)mf_kernel_get(a->x, a->dtype, r * a->x_stride + c);
}

/* dy * weight, rounded as the whole norm rounds it. */
static double dyw_at(const mf_kernel_norm_split *a, int64_t r, int64_t c) {
    return (double)(mf_kernel_get(a->dy, a->dtype, r * a->y_stride + c) *
                    mf_kernel_get(a->weight, a->dtype, c));
}

mf_status mf_kernel_norm_split_square(const mf_kernel_norm_split *a, mf_err *e) {
    (void)e;
    for (int64_t r = 0; r < a->rows; r++) {
        double sum = 0.0;
        for (int64_t c = 0; c < a->cols; c++) {
            sum += x_at(a, r, c) * x_at(a, r, c);
        }
        a->sum[r] = (float)(sum * (double)a->share);
    }
    return MF_OK;
}

mf_status mf_kernel_norm_split_forward(const mf_kernel_norm_split *a, mf_err *e) {
    (void)e;
    for (int64_t r = 0; r < a->rows; r++) {
        float rstd = (float)(1.0 / sqrt((double)a->sum[r] / (double)a->total + (double)a->eps));
        for (int64_t c = 0; c < a->cols; c++) {
            mf_kernel_put(a->y, a->dtype, r * a->y_stride + c,
                          (float)x_at(a, r, c) * rstd * mf_kernel_get(a->weight, a->dtype, c));
        }
        if (a->rstd != NULL) {
            a->rstd[r] = rstd;
        }
    }
    return MF_OK;
}

mf_status mf_kernel_norm_split_dot(const mf_kernel_norm_split *a, mf_err *e) {
    (void)e;
    for (int64_t r = 0; r < a->rows; r++) {
        double sum = 0.0;
        for (int64_t c = 0; c < a->cols; c++) {
            sum += dyw_at(a, r, c) * x_at(a, r, c);
        }
        a->sum[r] = (float)(sum * (double)a->share);
    }
    return MF_OK;
}

mf_status mf_kernel_norm_split_backward(const mf_kernel_norm_split *a, mf_err *e) {
    (void)e;
    for (int64_t r = 0; r < a->rows; r++) {
        float rstd = a->rstd[r], k = a->sum[r] / (float)a->total * rstd * rstd;
        for (int64_t c = 0; c < a->cols; c++) {
            float dy = mf_kernel_get(a->dy, a->dtype, r * a->y_stride + c),
                  x = (float)x_at(a, r, c);
            a->dweight[c] += dy * x * rstd;
            mf_kernel_put(a->dx, a->dtype, r * a->x_stride + c,
                          rstd * ((float)dyw_at(a, r, c) - x * k));
        }
    }
    return MF_OK;
}
