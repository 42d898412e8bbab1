/* rmsnorm.c - reference of the root-mean-square norm. */
#include "kernels/rows/rmsnorm.h"

#include <assert.h>
#include <math.h>

/* One partial row of dweight for each block of the CUDA kernel: many blocks for narrow rows, and
 * about 16 MB at most. */
size_t mf_kernel_rmsnorm_workspace_B(int64_t cols) {
    int64_t blocks = cols > 0 ? (4 << 20) / cols : 1;
    blocks = blocks < 264 ? 264 : blocks > 1056 ? 1056 : blocks;
    return (size_t)(blocks * cols) * sizeof(float);
}

static float weight_at(const void *weight, bool plus_one, mf_kernel_dtype d, int64_t c) {
    float w = weight ? mf_kernel_get(weight, d, c) : 1.0f;
    return plus_one ? 1.0f + w : w;
}

mf_status mf_kernel_rmsnorm_forward(const mf_kernel_rmsnorm *a, mf_err *e) {
    (void)e;
    assert(a->x_stride >= a->groups * a->cols && a->y_stride >= a->groups * a->cols);
    assert(!a->add == !a->sum);
    mf_kernel_dtype d = a->dtype;
    for (int64_t r = 0; r < a->rows; r++) {
        for (int64_t g = 0; g < a->groups; g++) {
            int64_t xo = r * a->x_stride + g * a->cols, yo = r * a->y_stride + g * a->cols;
            const void *s = a->x;
            if (a->add) {
                for (int64_t c = 0; c < a->cols; c++) {
                    mf_kernel_put(a->sum, d, xo + c,
                                  mf_kernel_get(a->x, d, xo + c) +
                                      mf_kernel_get(a->add, d, xo + c));
                }
                s = a->sum;
            }
            double square = 0.0;
            for (int64_t c = 0; c < a->cols; c++) {
                double v = (double)mf_kernel_get(s, d, xo + c);
                square += v * v;
            }
            float rstd = (float)(1.0 / sqrt(square / (double)a->cols + (double)a->eps));
            for (int64_t c = 0; c < a->cols; c++) {
                mf_kernel_put(a->y, d, yo + c,
                              mf_kernel_get(s, d, xo + c) * rstd *
                                  weight_at(a->weight, a->plus_one, d, c));
            }
            if (a->rstd) {
                a->rstd[r * a->groups + g] = rstd;
            }
        }
    }
    return MF_OK;
}

mf_status mf_kernel_rmsnorm_backward(const mf_kernel_rmsnorm_grad *a, mf_err *e) {
    (void)e;
    assert(a->x_stride >= a->groups * a->cols && a->y_stride >= a->groups * a->cols);
    mf_kernel_dtype d = a->dtype;
    for (int64_t r = 0; r < a->rows; r++) {
        for (int64_t g = 0; g < a->groups; g++) {
            int64_t xo = r * a->x_stride + g * a->cols, yo = r * a->y_stride + g * a->cols;
            float rstd = a->rstd[r * a->groups + g];
            double dot = 0.0;
            for (int64_t c = 0; c < a->cols; c++) {
                dot += (double)(mf_kernel_get(a->dy, d, yo + c) *
                                weight_at(a->weight, a->plus_one, d, c)) *
                       (double)mf_kernel_get(a->x, d, xo + c);
            }
            float k = (float)(dot / (double)a->cols) * rstd * rstd;
            for (int64_t c = 0; c < a->cols; c++) {
                float dy = mf_kernel_get(a->dy, d, yo + c), x = mf_kernel_get(a->x, d, xo + c);
                float dx = rstd * (dy * weight_at(a->weight, a->plus_one, d, c) - x * k);
                if (a->dx_add) {
                    dx += mf_kernel_get(a->dx_add, d, xo + c);
                }
                if (a->dweight) {
                    a->dweight[c] += dy * x * rstd;
                }
                mf_kernel_put(a->dx, d, xo + c, dx);
            }
        }
    }
    return MF_OK;
}
