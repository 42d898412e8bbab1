/* safetensors_values.c - types of tensors, and their values as floats. */
#include "executor/files/safetensors.h"

#include <math.h>
#include <string.h>

const char *mf_st_dtype_text(mf_st_dtype d) {
    static const char *const text[] = {
#define X(name, spelling, bytes) spelling,
        MF_ST_DTYPE_MAP(X)
#undef X
    };
    return (unsigned)d < MF_ST_DTYPE_COUNT ? text[d] : "?";
}

int64_t mf_st_dtype_B(mf_st_dtype d) {
    static const int64_t size[] = {
#define X(name, spelling, bytes) bytes,
        MF_ST_DTYPE_MAP(X)
#undef X
    };
    return size[d];
}

static float half(uint16_t bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double value = exponent == 31  ? (mantissa ? (double)NAN : (double)INFINITY)
                   : exponent == 0 ? ldexp((double)mantissa, -24)
                                   : ldexp((double)(mantissa + 1024), exponent - 25);
    return (float)(bits & 0x8000 ? -value : value);
}

float mf_st_get(const mf_st_tensor *t, int64_t i) {
    const unsigned char *at = (const unsigned char *)t->data + i * mf_st_dtype_B(t->dtype);
    union {
        double f64;
        float f32;
        int64_t i64;
        int32_t i32;
        int16_t i16;
        uint16_t u16;
        uint32_t u32;
    } v;
    switch (t->dtype) {
    case MF_ST_F64:
        memcpy(&v.f64, at, 8);
        return (float)v.f64;
    case MF_ST_F32:
        memcpy(&v.f32, at, 4);
        return v.f32;
    case MF_ST_F16:
        memcpy(&v.u16, at, 2);
        return half(v.u16);
    case MF_ST_BF16: {
        uint16_t upper;
        memcpy(&upper, at, 2);
        v.u32 = (uint32_t)upper << 16;
        return v.f32;
    }
    case MF_ST_I64:
        memcpy(&v.i64, at, 8);
        return (float)v.i64;
    case MF_ST_I32:
        memcpy(&v.i32, at, 4);
        return (float)v.i32;
    case MF_ST_I16:
        memcpy(&v.i16, at, 2);
        return (float)v.i16;
    case MF_ST_I8:
        return (float)(signed char)*at;
    case MF_ST_U8:
    case MF_ST_BOOL:
        return (float)*at;
    case MF_ST_DTYPE_COUNT:
        break;
    }
    return 0.0f;
}

mf_status mf_st_read(const mf_st_tensor *t, int64_t row, int64_t rows, int64_t col, int64_t cols,
                     float *out, int64_t out_stride, mf_err *e) {
    int64_t width = t->dims >= 2 ? t->shape[t->dims - 1] : 1;
    int64_t height = width > 0 ? t->count / width : 0;
    if (t->dtype > MF_ST_BF16) {
        return mf_err_set(e, MF_INPUT, "%s: \"%.100s\": expected a float type, got %s", t->file,
                          t->name, mf_st_dtype_text(t->dtype));
    }
    if (row < 0 || col < 0 || row + rows > height || col + cols > width) {
        return mf_err_set(e, MF_INPUT,
                          "%s: \"%.100s\": expected rows up to %lld and columns up to %lld, it is "
                          "%lld x %lld",
                          t->file, t->name, (long long)row + rows, (long long)col + cols,
                          (long long)height, (long long)width);
    }
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            out[r * out_stride + c] = mf_st_get(t, (row + r) * width + col + c);
        }
    }
    return MF_OK;
}
