/* swiglu.c - reference of the gated activation. */
#include "kernels/moe/swiglu.h"

#include <assert.h>
#include <math.h>

/* Group of row r, searched onward from `group`: rows come in order. */
static int64_t group_from(const mf_kernel_swiglu_shape *s, int64_t group, int64_t r) {
    while (s->bias && group + 1 < s->groups && r >= s->offsets[group + 1]) {
        group++;
    }
    return group;
}

typedef struct gated {
    float y;      /* activation(gate) * up, without the probability */
    float d_gate; /* dy / d gate */
    float d_up;
} gated;

static gated activate(const mf_kernel_swiglu_shape *s, float gate, float up) {
    gated out;
    if (s->kind == MF_SWIGLU_SILU) {
        float sig = 1.0f / (1.0f + expf(-gate));
        out.y = gate * sig * up;
        out.d_gate = sig * (1.0f + gate * (1.0f - sig)) * up;
        out.d_up = gate * sig;
        return out;
    }
    float g = gate < s->limit ? gate : s->limit;
    float u = up < s->limit ? (up > -s->limit ? up : -s->limit) : s->limit;
    float sig = 1.0f / (1.0f + expf(-s->alpha * g));
    out.y = g * sig * (u + 1.0f);
    out.d_gate = gate <= s->limit ? sig * (1.0f + s->alpha * g * (1.0f - sig)) * (u + 1.0f) : 0.0f;
    out.d_up = up >= -s->limit && up <= s->limit ? g * sig : 0.0f;
    return out;
}

static void read_pair(const mf_kernel_swiglu_shape *s, const void *gate_up, int64_t r,
                      int64_t group, int64_t c, float *gate, float *up) {
    *gate = mf_kernel_get(gate_up, s->dtype, r * 2 * s->cols + c);
    *up = mf_kernel_get(gate_up, s->dtype, r * 2 * s->cols + s->cols + c);
    if (s->bias) {
        *gate += mf_kernel_get(s->bias, s->dtype, group * 2 * s->cols + c);
        *up += mf_kernel_get(s->bias, s->dtype, group * 2 * s->cols + s->cols + c);
    }
}

mf_status mf_kernel_swiglu_forward(const mf_kernel_swiglu *a, mf_err *e) {
    (void)e;
    const mf_kernel_swiglu_shape *s = &a->shape;
    int64_t rows = mf_kernel_rows(s->rows, s->rows_dev), group = 0;
    for (int64_t r = 0; r < rows; r++) {
        group = group_from(s, group, r);
        float prob = s->prob ? s->prob[r] : 1.0f;
        float in = s->prob_in ? prob : 1.0f, out = s->prob_in ? 1.0f : prob;
        for (int64_t c = 0; c < s->cols; c++) {
            float gate, up;
            read_pair(s, a->gate_up, r, group, c, &gate, &up);
            gated g = activate(s, in * gate, in * up);
            mf_kernel_put(a->y, s->dtype, r * s->cols + c, g.y * out);
        }
    }
    return MF_OK;
}

mf_status mf_kernel_swiglu_backward(const mf_kernel_swiglu_grad *a, mf_err *e) {
    (void)e;
    const mf_kernel_swiglu_shape *s = &a->shape;
    int64_t rows = mf_kernel_rows(s->rows, s->rows_dev), group = 0;
    for (int64_t r = 0; r < rows; r++) {
        group = group_from(s, group, r);
        float prob = s->prob ? s->prob[r] : 1.0f;
        float in = s->prob_in ? prob : 1.0f;
        double dprob = 0.0;
        for (int64_t c = 0; c < s->cols; c++) {
            float gate, up;
            read_pair(s, a->gate_up, r, group, c, &gate, &up);
            gated g = activate(s, in * gate, in * up);
            float dy = mf_kernel_get(a->dy, s->dtype, r * s->cols + c);
            dprob += (double)dy * (double)(s->prob_in ? g.d_gate * gate + g.d_up * up : g.y);
            mf_kernel_put(a->dgate_up, s->dtype, r * 2 * s->cols + c, dy * prob * g.d_gate);
            mf_kernel_put(a->dgate_up, s->dtype, r * 2 * s->cols + s->cols + c, dy * prob * g.d_up);
        }
        if (a->dprob) {
            a->dprob[r] = (float)dprob;
        }
    }
    return MF_OK;
}
