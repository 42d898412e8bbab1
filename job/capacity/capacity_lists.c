/* capacity_lists.c - reads lists of names, sizes and prices. */
#include "job/capacity/capacity_lists.h"

#include "core/base/number_text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_in(const mf_name_list *list, const char *word) {
    bool is = false;
    for (int i = 0; i < list->count; i++) {
        is |= strcmp(list->name[i], word) == 0;
    }
    return is;
}

mf_status mf_name_list_parse(const char *list, mf_name_list *out, mf_err *e) {
    char *rest = NULL;
    out->text = strdup(list);
    if (out->text == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (char *w = strtok_r(out->text, ",", &rest); w != NULL; w = strtok_r(NULL, ",", &rest)) {
        w += strspn(w, " ");
        if (is_in(out, w)) {
            continue;
        }
        if (out->count == MF_CAPACITY_MAX_NAMES) {
            return mf_err_set(e, MF_USAGE, "more than %d names in \"%s\"", MF_CAPACITY_MAX_NAMES,
                              list);
        }
        out->name[out->count++] = w;
    }
    if (out->count == 0) {
        return mf_err_set(e, MF_USAGE, "no name in \"%s\"", list);
    }
    const bool empty =
        list[0] == ',' || list[strlen(list) - 1] == ',' || strstr(list, ",,") != NULL;
    return empty ? mf_err_set(e, MF_USAGE, "nothing between two commas, or beside one, in \"%s\"",
                              list)
                 : MF_OK;
}

/* --- sizes ------------------------------------------------------------------------------------ */

static const int64_t most_gpus = 1 << 28;

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static mf_status add_size(int64_t gpus, int64_t *size, int *count, mf_err *e) {
    if (*count == MF_CAPACITY_MAX_SIZES) {
        return mf_err_set(e, MF_USAGE, "more than %d sizes", MF_CAPACITY_MAX_SIZES);
    }
    size[(*count)++] = gpus;
    return MF_OK;
}

/* One word of the list: a size, or "64..512", which "64-512" means as well. */
static mf_status add_word(const char *word, int64_t *size, int *count, mf_err *e) {
    char first[32];
    const char *dots = strstr(word, ".."), *dash = strchr(word, '-');
    const char *rest = dots != NULL ? dots + 2 : dash != NULL && dash > word ? dash + 1 : NULL;
    int64_t low = 0, high = 0;
    mf_status s;
    if (word[strspn(word, "0123456789.-kKmM")] != '\0' ||
        (rest != NULL && strpbrk(rest, ".-") != NULL) || (rest != NULL && *rest == '\0')) {
        return mf_err_set(e, MF_USAGE, "expected sizes such as 64,128 or 64..512, got \"%s\"",
                          word);
    }
    if (rest == NULL) {
        s = mf_parse_size(word, 1, most_gpus, &low, e);
        return s == MF_OK ? add_size(low, size, count, e) : s;
    }
    const long until = (dots != NULL ? dots : dash) - word;
    snprintf(first, sizeof first, "%.*s", (int)(until < 31 ? until : 31), word);
    s = mf_parse_size(first, 1, most_gpus, &low, e);
    s = s == MF_OK ? mf_parse_size(rest, 1, most_gpus, &high, e) : s;
    if (s == MF_OK && high < low) {
        s = mf_err_set(e, MF_USAGE, "\"%s\" descends", word);
    }
    for (; s == MF_OK && low < high; low *= 2) {
        s = add_size(low, size, count, e);
    }
    return s == MF_OK ? add_size(high, size, count, e) : s;
}

mf_status mf_size_list_parse(const char *list, int64_t *size, int *count, mf_err *e) {
    mf_name_list words = {0};
    mf_status s = mf_name_list_parse(list, &words, e);
    *count = 0;
    for (int i = 0; s == MF_OK && i < words.count; i++) {
        s = add_word(words.name[i], size, count, e);
    }
    free(words.text);
    if (s != MF_OK) {
        return mf_err_prefix(e, "--sizes");
    }
    qsort(size, (size_t)*count, sizeof size[0], by_size);
    int different = 1;
    for (int i = 1; i < *count; i++) {
        if (size[i] != size[different - 1]) {
            size[different++] = size[i];
        }
    }
    *count = different;
    return MF_OK;
}
