/* gemm_choice.c - text of a product and of the way it is computed. */
#include "kernels/gemm/gemm_choice.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const form_words[] = {"nt", "nn", "tn"};
static const char *const type_words[] = {"f32", "bf16", "e4m3"};
static const char *const activation_words[] = {"", " relu", " gelu"};
static const char *const scale_words[] = {"none", "tensor", "1x128", "128x128"};

void mf_gemm_shape_print(const mf_gemm_cuda_shape *s, char text[MF_GEMM_SHAPE_TEXT]) {
    snprintf(text, MF_GEMM_SHAPE_TEXT,
             "%s %s %s %s scales %s %s m %" PRId64 " n %" PRId64 " k %" PRId64 " lda %" PRId64
             " ldb %" PRId64 " ldc %" PRId64 " add %d bias %d%s%s",
             form_words[s->form], type_words[s->a_type], type_words[s->b_type],
             type_words[s->c_type], scale_words[s->a_scale], scale_words[s->b_scale], s->m, s->n,
             s->k, s->lda, s->ldb, s->ldc, s->accumulate, s->bias, s->bias_grad ? " bias_grad" : "",
             activation_words[s->activation]);
}

/* The numbers of a choice, in the order of the text. */
typedef struct field {
    const char *name;
    size_t offset;
} field;

static const field fields[] = {
    {"algorithm", offsetof(mf_gemm_choice, algorithm)},
    {"tile", offsetof(mf_gemm_choice, tile)},
    {"stages", offsetof(mf_gemm_choice, stages)},
    {"split_k", offsetof(mf_gemm_choice, split_k)},
    {"reduction", offsetof(mf_gemm_choice, reduction)},
    {"swizzle", offsetof(mf_gemm_choice, swizzle)},
    {"inner_shape", offsetof(mf_gemm_choice, inner_shape)},
    {"cluster", offsetof(mf_gemm_choice, cluster)},
    {"custom", offsetof(mf_gemm_choice, custom)},
};

enum { FIELDS = sizeof fields / sizeof fields[0] };

void mf_gemm_choice_print(const mf_gemm_choice *c, char text[MF_GEMM_CHOICE_TEXT]) {
    const size_t size = MF_GEMM_CHOICE_TEXT;
    size_t at = (size_t)snprintf(text, size, "%s %s", c->library, c->gpu);
    for (size_t i = 0; i < FIELDS; i++) {
        int32_t value;
        memcpy(&value, (const char *)c + fields[i].offset, sizeof value);
        at += (size_t)snprintf(text + at, size - at, " %s %" PRId32, fields[i].name, value);
    }
    at += (size_t)snprintf(text + at, size - at, " state ");
    size_t words = MF_GEMM_STATE_WORDS;
    while (words > 1 && c->state[words - 1] == 0) {
        words--;
    }
    for (size_t i = 0; i < words; i++) {
        at += (size_t)snprintf(text + at, size - at, "%016" PRIx64, c->state[i]);
    }
}

/* The next word of *text, at most size - 1 characters; false: there is none, or it is longer. */
static bool next_word(const char **text, char *word, size_t size) {
    *text += strspn(*text, " ");
    size_t length = strcspn(*text, " ");
    if (length == 0 || length >= size) {
        return false;
    }
    memcpy(word, *text, length);
    word[length] = '\0';
    *text += length;
    return true;
}

static bool read_number(const char *word, int32_t *out) {
    char *end;
    long value = strtol(word, &end, 10);
    if (end == word || *end != '\0' || value < INT32_MIN || value > INT32_MAX) {
        return false;
    }
    *out = (int32_t)value;
    return true;
}

/* 16 hexadecimal digits a word of the state; words that are not there are zero. */
static bool read_state(const char *digits, uint64_t *state) {
    size_t length = strlen(digits);
    if (length == 0 || length % 16 != 0 || length > (size_t)MF_GEMM_STATE_WORDS * 16 ||
        strspn(digits, "0123456789abcdef") != length) {
        return false;
    }
    memset(state, 0, MF_GEMM_STATE_WORDS * sizeof *state);
    for (size_t i = 0; i < length / 16; i++) {
        char word[17] = "";
        memcpy(word, digits + 16 * i, 16);
        state[i] = strtoull(word, NULL, 16);
    }
    return true;
}

mf_status mf_gemm_choice_read(const char *text, mf_gemm_choice *out, mf_err *e) {
    mf_gemm_choice c;
    char word[MF_GEMM_STATE_WORDS * 16 + 1];
    memset(&c, 0, sizeof c);
    if (!next_word(&text, c.library, sizeof c.library) || strncmp(c.library, "cublas-", 7) != 0) {
        return mf_err_set(e, MF_INPUT, "algorithm of a product: expected cublas-VERSION first");
    }
    if (!next_word(&text, c.gpu, sizeof c.gpu) || strncmp(c.gpu, "sm_", 3) != 0) {
        return mf_err_set(e, MF_INPUT, "algorithm of a product: expected sm_NN as second word");
    }
    for (size_t i = 0; i < FIELDS; i++) {
        int32_t value;
        if (!next_word(&text, word, sizeof word) || strcmp(word, fields[i].name) != 0 ||
            !next_word(&text, word, sizeof word) || !read_number(word, &value)) {
            return mf_err_set(e, MF_INPUT, "algorithm of a product: expected \"%s\" and a number",
                              fields[i].name);
        }
        memcpy((char *)&c + fields[i].offset, &value, sizeof value);
    }
    if (!next_word(&text, word, sizeof word) || strcmp(word, "state") != 0 ||
        !next_word(&text, word, sizeof word) || !read_state(word, c.state) ||
        text[strspn(text, " ")] != '\0') {
        return mf_err_set(e, MF_INPUT,
                          "algorithm of a product: expected \"state\" and %d to %d "
                          "hexadecimal digits at the end",
                          16, MF_GEMM_STATE_WORDS * 16);
    }
    *out = c;
    return MF_OK;
}
