/* cross_entropy.c - reference of the vocabulary-parallel cross-entropy. */
#include "kernels/rows/cross_entropy.h"

#include <assert.h>
#include <math.h>

/* Columns that are no padding. */
static int64_t live_cols(int64_t cols, int64_t begin, int64_t vocab) {
    int64_t left = vocab > begin ? vocab - begin : 0;
    return left < cols ? left : cols;
}

mf_status mf_kernel_cross_entropy_stats(const mf_kernel_ce_stats *a, mf_err *e) {
    (void)e;
    int64_t cols = live_cols(a->cols, a->begin, a->vocab);
    for (int64_t r = 0; r < a->rows; r++) {
        const void *row = mf_kernel_row(a->logits, a->dtype, r, a->stride);
        float high = -INFINITY;
        for (int64_t c = 0; c < cols; c++) {
            float x = mf_kernel_get(row, a->dtype, c);
            high = x > high ? x : high;
        }
        double sum = 0.0;
        for (int64_t c = 0; c < cols; c++) {
            sum += (double)expf(mf_kernel_get(row, a->dtype, c) - high);
        }
        int64_t t = a->target[r] - a->begin;
        a->stats[r] = high;
        a->stats[a->rows + r] = (float)sum;
        a->stats[2 * a->rows + r] =
            a->target[r] >= 0 && t >= 0 && t < cols ? mf_kernel_get(row, a->dtype, t) : 0.0f;
    }
    return MF_OK;
}

mf_status mf_kernel_cross_entropy_rescale(const mf_kernel_ce_rescale *a, mf_err *e) {
    (void)e;
    for (int64_t r = 0; r < a->rows; r++) {
        float own = a->own_highest[r], high = a->stats[r];
        a->stats[a->rows + r] *= own < high ? expf(own - high) : 1.0f; /* both may be -inf */
    }
    return MF_OK;
}

mf_status mf_kernel_cross_entropy_combine(const mf_kernel_ce_combine *a, mf_err *e) {
    (void)e;
    double total = 0.0;
    for (int64_t r = 0; r < a->rows; r++) {
        float high = -INFINITY, target = 0.0f;
        for (int64_t k = 0; k < a->ranks; k++) {
            const float *s = a->stats + k * 3 * a->rows;
            high = s[r] > high ? s[r] : high;
            target += s[2 * a->rows + r];
        }
        double sum = 0.0;
        for (int64_t k = 0; k < a->ranks; k++) {
            const float *s = a->stats + k * 3 * a->rows;
            sum += (double)s[a->rows + r] * exp((double)s[r] - (double)high);
        }
        float lse = sum > 0.0 ? (float)((double)high + log(sum)) : -INFINITY;
        float loss = a->target[r] >= 0 ? lse - target : 0.0f;
        a->lse[r] = lse;
        if (a->loss) {
            a->loss[r] = loss;
        }
        total += (double)loss;
    }
    if (a->loss_sum) {
        *a->loss_sum += total * a->loss_scale;
    }
    return MF_OK;
}

mf_status mf_kernel_cross_entropy_backward(const mf_kernel_ce_grad *a, mf_err *e) {
    (void)e;
    int64_t cols = live_cols(a->cols, a->begin, a->vocab);
    for (int64_t r = 0; r < a->rows; r++) {
        void *row = mf_kernel_row_mut(a->logits, a->dtype, r, a->stride);
        float scale = a->target[r] >= 0 ? a->scale : 0.0f;
        for (int64_t c = 0; c < a->cols; c++) {
            float p = 0.0f;
            if (c < cols) {
                p = expf(mf_kernel_get(row, a->dtype, c) - a->lse[r]);
                p -= c + a->begin == a->target[r] ? 1.0f : 0.0f;
            }
            mf_kernel_put(row, a->dtype, c, p * scale);
        }
    }
    return MF_OK;
}

mf_status mf_kernel_cross_entropy(const mf_kernel_ce_whole *a, mf_err *e) {
    const mf_kernel_ce_stats stats = mf_kernel_ce_whole_stats(a);
    const mf_kernel_ce_combine sum = mf_kernel_ce_whole_combine(a);
    const mf_kernel_ce_grad grad = mf_kernel_ce_whole_grad(a);
    mf_status status = mf_kernel_cross_entropy_stats(&stats, e);
    status = status == MF_OK ? mf_kernel_cross_entropy_combine(&sum, e) : status;
    return status == MF_OK ? mf_kernel_cross_entropy_backward(&grad, e) : status;
}
