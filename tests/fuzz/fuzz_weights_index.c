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

enum { WEIGHTS_B = 160 };

/* A file of one tensor of four bytes. */
static size_t weights(const char *tensor, unsigned char bytes[WEIGHTS_B]) {
    char header[128];
    int n = snprintf(header, sizeof header,
                     "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", tensor);
    memset(bytes, 0, WEIGHTS_B);
    bytes[0] = (unsigned char)n;
    memcpy(bytes + 8, header, (size_t)n);
    return 8 + (size_t)n + 4;
}

/* From memory; one input of 256 as files. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    unsigned char one[WEIGHTS_B], two[WEIGHTS_B];
    const mf_st_bytes files[] = {{"one.safetensors", one, weights("a", one)},
                                 {"two.safetensors", two, weights("b", two)}};
    const char *folder = "fuzz";
    mf_safetensors *s = NULL;
    mf_err e;
    mf_status status;
    mf_err_clear(&e);
    if (size % 256 == 255) {
        folder = fuzz_folder();
        for (int i = 0; i < 2; i++) {
            fuzz_file(files[i].name, files[i].bytes, files[i].size);
        }
        fuzz_file("model.safetensors.index.json", data, size);
        status = mf_safetensors_open(folder, &s, &e);
    } else {
        status = mf_safetensors_parse_index(folder, (const char *)data, size, files, 2, &s, &e);
    }
    if (status != MF_OK) {
        require(status == MF_INPUT && s == NULL);
        require(strncmp(e.text, folder, strlen(folder)) == 0);
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
