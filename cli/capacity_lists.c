/* capacity_lists.c - reads lists of names, sizes and prices. */
#include "cli/capacity_lists.h"

#include <stdlib.h>
#include <string.h>

mf_status mf_name_list_parse(const char *list, mf_name_list *out, mf_err *e) {
    char *rest = NULL;
    out->text = strdup(list);
    if (out->text == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (char *w = strtok_r(out->text, ",", &rest); w != NULL; w = strtok_r(NULL, ",", &rest)) {
        if (out->count == MF_CAPACITY_MAX_NAMES) {
            return mf_err_set(e, MF_USAGE, "more than %d names in \"%s\"", MF_CAPACITY_MAX_NAMES,
                              list);
        }
        out->name[out->count++] = w;
    }
    return out->count > 0 ? MF_OK : mf_err_set(e, MF_USAGE, "no name in \"%s\"", list);
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

/* One word of the list: a size, or "64..512". */
static mf_status add_word(const char *word, int64_t *size, int *count, mf_err *e) {
    char first[32];
    const char *dots = strstr(word, "..");
    int64_t low = 0, high = 0;
    mf_status s;
    if (dots == NULL) {
        s = mf_parse_size(word, 1, most_gpus, &low, e);
        return s == MF_OK ? add_size(low, size, count, e) : s;
    }
    snprintf(first, sizeof first, "%.*s", (int)(dots - word < 31 ? dots - word : 31), word);
    s = mf_parse_size(first, 1, most_gpus, &low, e);
    s = s == MF_OK ? mf_parse_size(dots + 2, 1, most_gpus, &high, e) : s;
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

/* --- prices ----------------------------------------------------------------------------------- */

/* The last '=': a path may hold one. */
static bool is_price_of(const char *text, const char *name, const char **usd) {
    const char *equals = strrchr(text, '=');
    *usd = equals != NULL ? equals + 1 : NULL;
    return equals != NULL && strlen(name) == (size_t)(equals - text) &&
           strncmp(text, name, (size_t)(equals - text)) == 0;
}

mf_status mf_price_list_check(const mf_args *a, const mf_name_list *clusters, mf_err *e) {
    const char *usd = NULL;
    double price;
    for (int i = 0; i < a->price_count; i++) {
        bool known = false;
        for (int k = 0; k < clusters->count && !known; k++) {
            known = is_price_of(a->price[i], clusters->name[k], &usd);
        }
        if (usd == NULL) {
            return mf_err_set(e, MF_USAGE, "--price: expected CLUSTER=USD, got \"%s\"",
                              a->price[i]);
        }
        if (!known) {
            return mf_err_set(e, MF_USAGE, "--price: \"%.*s\" is none of --clusters",
                              (int)(usd - 1 - a->price[i]), a->price[i]);
        }
        mf_status s = mf_parse_f64(usd, 0, 1e6, &price, e);
        if (s != MF_OK) {
            return mf_err_prefix(e, "--price");
        }
    }
    return MF_OK;
}

mf_capacity_price mf_price_list_of(const mf_args *a, const char *name, const mf_cluster *c) {
    mf_capacity_price p = {.known = c->price_usd_gpu_h > 0, .usd_gpu_h = c->price_usd_gpu_h};
    const char *usd;
    snprintf(p.date, sizeof p.date, "%s", c->price_date);
    snprintf(p.source, sizeof p.source, "%s", c->price_source);
    for (int i = 0; i < a->price_count; i++) {
        if (is_price_of(a->price[i], name, &usd) &&
            mf_parse_f64(usd, 0, 1e6, &p.usd_gpu_h, NULL) == MF_OK) {
            p.known = true;
            p.date[0] = '\0';
            snprintf(p.source, sizeof p.source, "--price");
        }
    }
    return p;
}
