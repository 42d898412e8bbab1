/* Fuzz target: any bytes as model.safetensors.index.json beside two files of weights. What was
 * accepted names tensors that are there, in the file that it says, and no file outside the folder.
 */
#define MF_FUZZ_WORDS                                                                              \
    "{", "}", "[", "]", ",", ":", "\"", "null", "-1", "0", "\"weight_map\"", "\"metadata\"",       \
        "\"a\"", "\"b\"", "one.safetensors", "two.safetensors", "../", "/", "."
#include "tests/fuzz/driver.h"

#include "executor/files/safetensors.h"
#include "tests/fuzz/file.h"

static void require(int truth) {
    if (!truth) {
        abort();
    }
}

/* One tensor of four bytes in each of two files. */
static void weights(const char *file, const char *tensor) {
    char header[128];
    unsigned char bytes[160] = {0};
    int n = snprintf(header, sizeof header,
                     "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", tensor);
    bytes[0] = (unsigned char)n;
    memcpy(bytes + 8, header, (size_t)n);
    fuzz_file(file, bytes, 8 + (size_t)n + 4);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf_safetensors *s = NULL;
    mf_err e;
    if (fuzz_file_count == 0) {
        weights("one.safetensors", "a");
        weights("two.safetensors", "b");
    }
    fuzz_file("model.safetensors.index.json", data, size);
    mf_err_clear(&e);
    mf_status status = mf_safetensors_open(fuzz_folder(), &s, &e);
    if (status != MF_OK) {
        require(status == MF_INPUT && s == NULL);
        require(strncmp(e.text, fuzz_folder(), strlen(fuzz_folder())) == 0);
        return 0;
    }
    for (size_t i = 0; i < mf_safetensors_count(s); i++) {
        const mf_st_tensor *t = mf_safetensors_at(s, i);
        const char *file = strcmp(t->name, "a") == 0 ? "one.safetensors" : "two.safetensors";
        require(t->count == 1 && mf_st_get(t, 0) == 0.0f);
        require(strcmp(strrchr(t->file, '/') + 1, file) == 0);
    }
    mf_safetensors_close(s);
    return 0;
}
