/* safetensors_verify.c - are the bytes of tensors what was written? */
#include "executor/files/safetensors.h"

#include "core/base/crc32c.h"

#include <math.h>
#include <stdio.h>

#define LL(x) ((long long)(x))

static bool is_float(mf_st_dtype d) {
    return d == MF_ST_F64 || d == MF_ST_F32 || d == MF_ST_F16 || d == MF_ST_BF16;
}

mf_status mf_safetensors_check_finite(const mf_st_tensor *t, mf_err *e) {
    for (int64_t i = 0; i < t->count && is_float(t->dtype); i++) {
        float value = mf_st_get(t, i);
        if (!isfinite(value)) {
            return mf_err_set(
                e, MF_INPUT,
                "%s: offset %lld: tensor \"%.200s\": element %lld is %s: the file is damaged",
                t->file, LL(t->offset + i * mf_st_dtype_B(t->dtype)), t->name, LL(i),
                isnan(value) ? "not a number" : "infinite");
        }
    }
    return MF_OK;
}

static mf_status verify(const mf_st_tensor *t, mf_err *e) {
    size_t size_B = (size_t)(t->count * mf_st_dtype_B(t->dtype));
    uint32_t crc = t->has_crc ? mf_crc32c(0, t->data, size_B) : 0;
    if (t->has_crc && crc != t->crc) {
        return mf_err_set(e, MF_INPUT,
                          "%s: offset %lld: tensor \"%.200s\": the CRC-32C of its %zu bytes is "
                          "%08x, its header says %08x: the file is damaged",
                          t->file, LL(t->offset), t->name, size_B, crc, t->crc);
    }
    return mf_safetensors_check_finite(t, e);
}

mf_status mf_safetensors_verify(const mf_safetensors *s, size_t first, size_t step, mf_err *e) {
    mf_status status = MF_OK;
    for (size_t i = first; i < mf_safetensors_count(s) && status == MF_OK; i += step) {
        status = verify(mf_safetensors_at(s, i), e);
    }
    return status;
}
