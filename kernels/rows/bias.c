/* bias.c - reference of bias rows and their gradients. */
#include "kernels/rows/bias.h"

#include <assert.h>

/* Stretches of rows that the CUDA kernel sums apart, for each group. */
#define SPLITS_MAX 64

size_t mf_kernel_bias_workspace_B(int64_t groups, int64_t cols) {
    return (size_t)(groups * cols) * SPLITS_MAX * sizeof(float);
}

static int64_t group_end(const int32_t *offsets, int64_t group, int64_t rows) {
    if (!offsets) {
        return rows;
    }
    return offsets[group + 1] < rows ? offsets[group + 1] : rows;
}

mf_status mf_kernel_bias_add(const mf_kernel_bias *a, mf_err *e) {
    (void)e;
    assert(a->offsets || a->groups == 1);
    int64_t rows = mf_kernel_rows(a->rows, a->rows_dev);
    for (int64_t g = 0; g < a->groups; g++) {
        int64_t end = group_end(a->offsets, g, rows);
        for (int64_t r = a->offsets ? a->offsets[g] : 0; r < end; r++) {
            float scale = a->scale ? a->scale[r] : 1.0f;
            for (int64_t c = 0; c < a->cols; c++) {
                int64_t i = r * a->stride + c;
                mf_kernel_put(a->x, a->dtype, i,
                              mf_kernel_get(a->x, a->dtype, i) +
                                  scale * mf_kernel_get(a->bias, a->dtype, g * a->cols + c));
            }
        }
    }
    return MF_OK;
}

mf_status mf_kernel_bias_backward(const mf_kernel_bias_grad *a, mf_err *e) {
    (void)e;
    assert(a->offsets || a->groups == 1);
    int64_t rows = mf_kernel_rows(a->rows, a->rows_dev);
    for (int64_t g = 0; g < a->groups; g++) {
        int64_t begin = a->offsets ? a->offsets[g] : 0, end = group_end(a->offsets, g, rows);
        for (int64_t c = 0; a->dbias && c < a->cols; c++) {
            double sum = 0.0;
            for (int64_t r = begin; r < end; r++) {
                float scale = a->scale ? a->scale[r] : 1.0f;
                sum += (double)(scale * mf_kernel_get(a->dy, a->dtype, r * a->stride + c));
            }
            a->dbias[g * a->cols + c] += (float)sum;
        }
        for (int64_t r = begin; a->dscale && r < end; r++) {
            double sum = 0.0;
            for (int64_t c = 0; c < a->cols; c++) {
                sum += (double)mf_kernel_get(a->dy, a->dtype, r * a->stride + c) *
                       (double)mf_kernel_get(a->bias, a->dtype, g * a->cols + c);
            }
            a->dscale[r] += (float)sum;
        }
    }
    return MF_OK;
}
