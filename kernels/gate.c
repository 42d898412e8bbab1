/* gate.c - reference of the shared expert's sigmoid gate. */
#include "kernels/gate.h"

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
