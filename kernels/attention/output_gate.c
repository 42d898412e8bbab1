/* output_gate.c - reference of the gate on attention's output. */
#include "kernels/attention/output_gate.h"

#include <assert.h>
#include <math.h>

static float sigmoid_at(const void *gate, mf_kernel_dtype d, int64_t i) {
    return 1.0f / (1.0f + expf(-mf_kernel_get(gate, d, i)));
}

mf_status mf_kernel_output_gate_forward(const mf_kernel_output_gate *a, mf_err *e) {
    (void)e;
    assert(a->width > 0 && a->cols % a->width == 0);
    for (int64_t g = 0; g < a->rows * (a->cols / a->width); g++) {
        const float s = sigmoid_at(a->gate, a->dtype, g);
        for (int64_t i = g * a->width; i < (g + 1) * a->width; i++) {
            mf_kernel_put(a->y, a->dtype, i, s * mf_kernel_get(a->x, a->dtype, i));
        }
    }
    return MF_OK;
}

mf_status mf_kernel_output_gate_backward(const mf_kernel_output_gate_grad *a, mf_err *e) {
    (void)e;
    assert(a->width > 0 && a->cols % a->width == 0);
    for (int64_t g = 0; g < a->rows * (a->cols / a->width); g++) {
        const float s = sigmoid_at(a->gate, a->dtype, g);
        double dot = 0.0;
        for (int64_t i = g * a->width; i < (g + 1) * a->width; i++) {
            const float dy = mf_kernel_get(a->dy, a->dtype, i);
            dot += (double)dy * (double)mf_kernel_get(a->x, a->dtype, i);
            mf_kernel_put(a->dx, a->dtype, i, s * dy);
        }
        mf_kernel_put(a->dgate, a->dtype, g, s * (1.0f - s) * (float)dot);
    }
    return MF_OK;
}
