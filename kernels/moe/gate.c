/* gate.c - reference of the shared expert's sigmoid gate. */
#include "kernels/moe/gate.h"

#include <math.h>

mf_status mf_kernel_gate_forward(const mf_kernel_gate *a, mf_err *e) {
    (void)e;
    for (int64_t r = 0; r < a->rows; r++) {
        float sig = 1.0f / (1.0f + expf(-a->gate[r]));
        for (int64_t c = 0; c < a->cols; c++) {
            int64_t i = r * a->cols + c;
            float y = sig * mf_kernel_get(a->x, a->dtype, i);
            if (a->add) {
                y += mf_kernel_get(a->add, a->dtype, i);
            }
            mf_kernel_put(a->y, a->dtype, i, y);
        }
    }
    return MF_OK;
}

mf_status mf_kernel_gate_backward(const mf_kernel_gate_grad *a, mf_err *e) {
    (void)e;
    for (int64_t r = 0; r < a->rows; r++) {
        float sig = 1.0f / (1.0f + expf(-a->gate[r]));
        double dot = 0.0;
        for (int64_t c = 0; c < a->cols; c++) {
            int64_t i = r * a->cols + c;
            float dy = mf_kernel_get(a->dy, a->dtype, i);
            dot += (double)dy * (double)mf_kernel_get(a->x, a->dtype, i);
            mf_kernel_put(a->dx, a->dtype, i, sig * dy);
        }
        a->dgate[r] = sig * (1.0f - sig) * (float)dot;
    }
    return MF_OK;
}

size_t mf_kernel_gate_workspace_B(int64_t cols) {
    return (size_t)(MF_GATE_TEAMS * cols) * sizeof(float);
}

mf_status mf_kernel_gate_logits(const mf_kernel_gate_logit *a, mf_err *e) {
    (void)e;
    for (int64_t r = 0; r < a->rows; r++) {
        double sum = 0.0;
        for (int64_t c = 0; c < a->cols; c++) {
            sum += (double)mf_kernel_get(a->x, a->dtype, r * a->cols + c) *
                   (double)mf_kernel_get(a->weight, a->dtype, c);
        }
        a->gate[r] = (float)sum;
    }
    return MF_OK;
}

mf_status mf_kernel_gate_input_backward(const mf_kernel_gate_input_grad *a, mf_err *e) {
    (void)e;
    for (int64_t r = 0; r < a->rows; r++) {
        for (int64_t c = 0; c < a->cols; c++) {
            int64_t i = r * a->cols + c;
            float dx = a->dgate[r] * mf_kernel_get(a->weight, a->dtype, c);
            a->dweight[c] += a->dgate[r] * mf_kernel_get(a->x, a->dtype, i);
            if (a->add) {
                dx = mf_kernel_rounded(a->dtype, dx) + mf_kernel_get(a->add, a->dtype, i);
            }
            mf_kernel_put(a->dx, a->dtype, i, dx);
        }
    }
    return MF_OK;
}
