/* quantise.c - reference of FP8 quantisation, and the e4m3 format itself. */
#include "kernels/rows/quantise.h"

#include <assert.h>
#include <math.h>

uint8_t mf_kernel_e4m3_round(float value) {
    uint8_t sign = signbit(value) ? 0x80 : 0;
    float x = fabsf(value);
    if (isnan(value)) {
        return sign | 0x7f;
    }
    if (x >= MF_QUANT_E4M3_MAX) {
        return sign | 0x7e;
    }
    /* Steps of 2^-9 below 2^-6 (subnormal), of 2^(exponent-3) above. */
    int exponent = -6;
    if (x >= 0x1p-6f) {
        (void)frexpf(x, &exponent);
        exponent -= 1;
    }
    float steps = rintf(ldexpf(x, 3 - exponent)); /* 8 .. 16 when normal: 16 carries over */
    int code = (int)steps + (exponent + 6) * 8;
    return sign | (uint8_t)code;
}

float mf_kernel_e4m3_widen(uint8_t q) {
    int exponent = (q >> 3) & 15, mantissa = q & 7;
    float x = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
    if ((q & 0x7f) == 0x7f) {
        x = NAN;
    }
    return q & 0x80 ? -x : x;
}

size_t mf_kernel_quantise_workspace_B(void) {
    return 1024 * sizeof(float);
}

/* A rectangle of x: rows [r0, r1), columns [c0, c1). */
typedef struct rect {
    int64_t r0, r1, c0, c1;
} rect;

static float block_scale(const mf_kernel_quantise *a, rect b) {
    float amax = 0.0f;
    for (int64_t r = b.r0; r < b.r1; r++) {
        for (int64_t c = b.c0; c < b.c1; c++) {
            amax = fmaxf(amax, fabsf(mf_kernel_get(a->x, a->dtype, r * a->cols + c)));
        }
    }
    if (!(amax > 0.0f)) {
        return 1.0f;
    }
    float scale = fmaxf(amax / MF_QUANT_E4M3_MAX, 0x1p-120f);
    if (a->pow2) {
        int exponent;
        float fraction = frexpf(scale, &exponent);
        scale = ldexpf(1.0f, fraction > 0.5f ? exponent : exponent - 1);
    }
    return scale;
}

static void block_write(const mf_kernel_quantise *a, rect b, float scale, uint8_t *q, uint8_t *qt) {
    float inverse = 1.0f / scale;
    for (int64_t r = b.r0; r < b.r1; r++) {
        for (int64_t c = b.c0; c < b.c1; c++) {
            uint8_t v =
                mf_kernel_e4m3_round(mf_kernel_get(a->x, a->dtype, r * a->cols + c) * inverse);
            if (q) {
                q[r * a->cols + c] = v;
            }
            if (qt) {
                qt[c * a->rows + r] = v;
            }
        }
    }
}

static int64_t at_most(int64_t x, int64_t limit) {
    return x < limit ? x : limit;
}

mf_status mf_kernel_quantise_e4m3(const mf_kernel_quantise *a, mf_err *e) {
    (void)e;
    if (a->block == MF_QUANT_TENSOR) {
        rect all = {0, a->rows, 0, a->cols};
        *a->scale = block_scale(a, all);
        block_write(a, all, *a->scale, a->q, a->qt);
        return MF_OK;
    }
    int64_t tall = a->block == MF_QUANT_128X128 ? 128 : 1;
    for (int64_t r = 0; r < a->rows && (a->q || tall > 1); r += tall) {
        for (int64_t c = 0; c < a->cols; c += 128) {
            rect b = {r, at_most(r + tall, a->rows), c, at_most(c + 128, a->cols)};
            float scale = block_scale(a, b);
            a->scale[r / tall * a->scale_i + c / 128 * a->scale_j] = scale;
            block_write(a, b, scale, a->q, tall > 1 ? a->qt : NULL);
        }
    }
    for (int64_t r = 0; r < a->rows && a->qt && tall == 1; r += 128) {
        for (int64_t c = 0; c < a->cols; c++) {
            rect b = {r, at_most(r + 128, a->rows), c, c + 1};
            float scale = block_scale(a, b);
            a->scale_t[c * a->scale_t_i + r / 128 * a->scale_t_j] = scale;
            block_write(a, b, scale, NULL, a->qt);
        }
    }
    return MF_OK;
}
