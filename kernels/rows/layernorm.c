/* layernorm.c - reference of LayerNorm; the mean is found anew in the backward pass. */
#include "kernels/rows/layernorm.h"

#include "kernels/rows/rmsnorm.h"

#include <math.h>

/* Two partial rows for each block of the CUDA kernel, so that there are half as many blocks. */
size_t mf_kernel_layernorm_workspace_B(int64_t cols) {
    return mf_kernel_rmsnorm_workspace_B(cols);
}

static double mean_of(const void *x, mf_kernel_dtype d, int64_t first, int64_t cols) {
    double sum = 0.0;
    for (int64_t c = 0; c < cols; c++) {
        sum += (double)mf_kernel_get(x, d, first + c);
    }
    return sum / (double)cols;
}

mf_status mf_kernel_layernorm_forward(const mf_kernel_layernorm *a, mf_err *e) {
    (void)e;
    const mf_kernel_dtype d = a->dtype;
    for (int64_t r = 0; r < a->rows; r++) {
        const int64_t at = r * a->cols;
        const double mean = mean_of(a->x, d, at, a->cols);
        double square = 0.0;
        for (int64_t c = 0; c < a->cols; c++) {
            double v = (double)mf_kernel_get(a->x, d, at + c) - mean;
            square += v * v;
        }
        const double rstd = 1.0 / sqrt(square / (double)a->cols + (double)a->eps);
        for (int64_t c = 0; c < a->cols; c++) {
            double n = ((double)mf_kernel_get(a->x, d, at + c) - mean) * rstd;
            float y = (float)n * mf_kernel_get(a->weight, d, c);
            mf_kernel_put(a->y, d, at + c, y + mf_kernel_get(a->weight, d, a->cols + c));
        }
        if (a->rstd) {
            a->rstd[r] = (float)rstd;
        }
    }
    return MF_OK;
}

mf_status mf_kernel_layernorm_backward(const mf_kernel_layernorm_grad *a, mf_err *e) {
    (void)e;
    const mf_kernel_dtype d = a->dtype;
    const double count = (double)a->cols;
    for (int64_t r = 0; r < a->rows; r++) {
        const int64_t at = r * a->cols;
        const double mean = mean_of(a->x, d, at, a->cols), rstd = (double)a->rstd[r];
        double sum = 0.0, dot = 0.0;
        for (int64_t c = 0; c < a->cols; c++) {
            double dy = (double)mf_kernel_get(a->dy, d, at + c);
            double n = ((double)mf_kernel_get(a->x, d, at + c) - mean) * rstd;
            double g = dy * (double)mf_kernel_get(a->weight, d, c);
            sum += g;
            dot += g * n;
            a->dweight[c] += (float)(dy * n);
            a->dweight[a->cols + c] += (float)dy;
        }
        for (int64_t c = 0; c < a->cols; c++) {
            double dy = (double)mf_kernel_get(a->dy, d, at + c);
            double n = ((double)mf_kernel_get(a->x, d, at + c) - mean) * rstd;
            double g = dy * (double)mf_kernel_get(a->weight, d, c);
            float dx = (float)(rstd * (g - sum / count - n * dot / count));
            mf_kernel_put(a->dx, d, at + c,
                          a->dx_add ? dx + mf_kernel_get(a->dx_add, d, at + c) : dx);
        }
    }
    return MF_OK;
}
