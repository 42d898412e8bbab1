/* Fuzz target: any bytes as a safetensors file. What was accepted must hold together: every tensor
 * lies inside the bytes, is found by its name, and can be read and verified. */
#include "tests/fuzz/driver.h"

#include "executor/files/safetensors.h"

static void require(int truth) {
    if (!truth) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf_safetensors *s = NULL;
    mf_err e;
    mf_err_clear(&e);
    mf_status status = mf_safetensors_parse("fuzz", data, size, &s, &e);
    if (status != MF_OK) {
        require(status == MF_INPUT && s == NULL && strncmp(e.text, "fuzz:", 5) == 0);
        return 0;
    }
    int64_t sum_B = 0;
    for (size_t i = 0; i < mf_safetensors_count(s); i++) {
        const mf_st_tensor *t = mf_safetensors_at(s, i);
        int64_t bytes = t->count * mf_st_dtype_B(t->dtype);
        require(mf_safetensors_find(s, t->name) == t);
        require((const uint8_t *)t->data >= data &&
                (const uint8_t *)t->data + bytes <= data + size);
        sum_B += bytes;
        for (int64_t k = 0; k < t->count && k < 64; k++) {
            volatile float value = mf_st_get(t, k);
            (void)value;
        }
    }
    require(sum_B < (int64_t)size);
    status = mf_safetensors_verify(s, 0, 1, &e);
    require(status == MF_OK || (status == MF_INPUT && strncmp(e.text, "fuzz: offset", 12) == 0));
    mf_safetensors_close(s);
    return 0;
}
