/* model.c - models by shipped name or by path. */
#include "core/model/model.h"
#include "core/base/paths.h"

#include "core/base/file.h"
#include "core/model/model_reader.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const shipped[] = {
    "deepseek-v2",
    "deepseek-v2-lite",
    "deepseek-v3",
    "deepseek-v3-proxy",
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "dots.llm1",
    "ernie-4.5-21b-a3b",
    "ernie-4.5-300b-a47b",
    "gemma-4-26b-a4b",
    "glm-4.5",
    "glm-5",
    "glm-5.2",
    "gpt-oss-120b",
    "gpt-oss-20b",
    "granite-3.1-1b-a400m",
    "granite-4.0-h-small",
    "hunyuan-a13b",
    "hy3-preview",
    "internal-352b",
    "kimi-k2",
    "kimi-k3",
    "kimi-linear-48b-a3b",
    "ling-1t",
    "ling-2.6-flash",
    "ling-mini-2.0",
    "llama2-13b",
    "llama2-70b",
    "llama2-7b",
    "llama3-405b",
    "llama3-70b",
    "llama3-8b",
    "llama3-8x70b",
    "llama4-maverick",
    "mimo-7b",
    "mimo-v2-flash",
    "minimax-m2.5",
    "minimax-m3",
    "minimax-text-01",
    "mixtral-8x22b",
    "mixtral-8x22b-g8t8",
    "mixtral-8x7b",
    "moonlight-16b-a3b",
    "nemotron-3-nano",
    "nemotron-3-super",
    "nemotron-3-ultra",
    "nemotron-3.5-lightning",
    "nemotron-h-56b",
    "olmoe-1b-7b",
    "phi-3.5-moe",
    "qwen1.5-moe-a2.7b",
    "qwen2-57b-a14b",
    "qwen2.5-32b",
    "qwen2.5-7b",
    "qwen3-235b-a22b",
    "qwen3-30b-a3b",
    "qwen3-8b",
    "qwen3-next-80b-a3b",
    "qwen3.5-27b",
    "qwen3.5-397b-a17b",
    "step-3",
    "step-3.5-flash",
};

const char *const *mf_model_shipped(size_t *count) {
    *count = sizeof shipped / sizeof shipped[0];
    return shipped;
}

/* Python writes Infinity and NaN, for which JSON has no word. They become a number beyond all
 * others and an empty text, of the same length, so that positions in the file stay right. */
static void take_python_numbers(char *text, size_t length) {
    bool quoted = false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\\' && quoted) {
            i++;
        } else if (text[i] == '"') {
            quoted = !quoted;
        } else if (!quoted && length - i >= 8 && memcmp(text + i, "Infinity", 8) == 0) {
            memcpy(text + i, "1e300   ", 8);
            i += 7;
        } else if (!quoted && length - i >= 3 && memcmp(text + i, "NaN", 3) == 0) {
            memcpy(text + i, "\"\" ", 3);
            i += 2;
        }
    }
}

static mf_status load_config(const char *path, mf_json **out, mf_err *e) {
    char *text = NULL;
    size_t length = 0;
    mf_status st = mf_file_load(path, MF_JSON_MAX_BYTES, &text, &length, e);
    if (st == MF_OK) {
        take_python_numbers(text, length);
        st = mf_json_parse(path, text, length, out, e);
    }
    free(text);
    return st;
}

/* "a/b/config.json" -> "b", "a/b/" -> "b", "a/x.json" -> "x": what to call a model from a path. */
static void name_from_path(const char *path, char *name, size_t size) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') {
        end--;
    }
    for (int part = 0; part < 2; part++) {
        size_t start = end;
        while (start > 0 && path[start - 1] != '/') {
            start--;
        }
        size_t length = end - start;
        bool config = length == 11 && memcmp(path + start, "config.json", 11) == 0;
        if (config && part == 0 && start > 1) {
            end = start - 1;
            while (end > 1 && path[end - 1] == '/') {
                end--;
            }
            continue;
        }
        if (length > 5 && memcmp(path + end - 5, ".json", 5) == 0) {
            length -= 5;
        }
        snprintf(name, size, "%.*s", (int)length, path + start);
        return;
    }
}

/* True when the first `length` characters of two names agree. Case does not count, '_' is '-'. */
static bool begins_alike(const char *name, const char *with, size_t length) {
    for (size_t i = 0; i < length; i++) {
        const char a = name[i] == '_' ? '-' : (char)tolower((unsigned char)name[i]);
        const char b = with[i] == '_' ? '-' : (char)tolower((unsigned char)with[i]);
        if (a == '\0' || a != b) {
            return false;
        }
    }
    return true;
}

/* What was given, an organisation or a folder in front aside. */
static const char *last_part(const char *given) {
    const char *slash = strrchr(given, '/');
    return slash != NULL ? slash + 1 : given;
}

/* The shipped names that begin with what was given, one behind the other; how many. */
static int names_from(const char *given, char *names, size_t size) {
    const char *word = last_part(given);
    const size_t length = strlen(word);
    size_t used = 0;
    int count = 0;
    names[0] = '\0';
    for (size_t i = 0; i < sizeof shipped / sizeof shipped[0] && length > 1; i++) {
        if (begins_alike(shipped[i], word, length)) {
            const int n =
                snprintf(names + used, size - used, "%s%s", count > 0 ? ", " : "", shipped[i]);
            used += n > 0 && (size_t)n < size - used ? (size_t)n : 0;
            count++;
        }
    }
    return count;
}

/* The shipped name that was meant: the longest that what was given begins with, else the nearest.
 * NULL: none. */
static const char *meant(const char *given) {
    const char *word = last_part(given), *shorter = NULL;
    for (size_t i = 0; i < sizeof shipped / sizeof shipped[0]; i++) {
        const size_t known = strlen(shipped[i]);
        if (begins_alike(word, shipped[i], known) && (word[known] == '-' || word[known] == '\0') &&
            (shorter == NULL || known > strlen(shorter))) {
            shorter = shipped[i];
        }
    }
    const bool file = strlen(word) > 5 && strcmp(word + strlen(word) - 5, ".json") == 0;
    return shorter != NULL || file
               ? shorter
               : mf_nearest_word(word, shipped, sizeof shipped / sizeof shipped[0]);
}

static mf_status unknown_name(const char *given, mf_err *e) {
    char names[1024];
    const int count = names_from(given, names, sizeof names);
    const char *near = count == 1 ? names : meant(given);
    const bool whole = near != NULL && strlen(near) == strlen(last_part(given));
    if (count > 1 && !whole) {
        return mf_err_set(e, MF_USAGE, "unknown model \"%.80s\"; names that begin so: %s", given,
                          names);
    }
    return near != NULL
               ? mf_err_set(e, MF_USAGE, "unknown model \"%.80s\"; did you mean \"%s\"?", given,
                            near)
               : mf_err_set(e, MF_USAGE,
                            "unknown model \"%.80s\" (no such file, and no shipped name: `moefold "
                            "models` lists them)",
                            given);
}

/* Where a model's config.json lies (*path to be freed) and what to call the model. */
static mf_status locate(const char *name_or_path, char **path, char *name, size_t name_size,
                        mf_err *e) {
    struct stat info;
    size_t size = strlen(name_or_path) + strlen(mf_data_dir()) + 32;
    *path = malloc(size);
    if (*path == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    snprintf(*path, size, "%s", name_or_path);
    bool known = false;
    for (size_t i = 0; i < sizeof shipped / sizeof shipped[0]; i++) {
        known = known || strcmp(name_or_path, shipped[i]) == 0;
    }
    if (known) {
        snprintf(*path, size, "%s/models/%s.json", mf_data_dir(), name_or_path);
        snprintf(name, name_size, "%s", name_or_path);
        return MF_OK;
    }
    if (stat(name_or_path, &info) == 0 && S_ISDIR(info.st_mode)) {
        snprintf(*path, size, "%s/config.json", name_or_path);
    } else if (stat(name_or_path, &info) != 0) {
        if (meant(name_or_path) != NULL || strchr(name_or_path, '/') == NULL) {
            return unknown_name(name_or_path, e);
        }
    }
    name_from_path(*path, name, name_size);
    return MF_OK;
}

mf_status mf_model_load_with(const char *name_or_path, const char *const *overrides, size_t count,
                             mf_model *out, mf_err *e) {
    char name[sizeof out->name], *path = NULL;
    mf_json *doc = NULL;
    mf_status st = locate(name_or_path, &path, name, sizeof name, e);
    st = st == MF_OK ? load_config(path, &doc, e) : st;
    st = st == MF_OK ? mf_model_from_config(doc, name, overrides, count, out, e) : st;
    mf_json_destroy(doc);
    free(path);
    return st;
}

mf_status mf_model_load(const char *name_or_path, mf_model *out, mf_err *e) {
    return mf_model_load_with(name_or_path, NULL, 0, out, e);
}

static bool same_model(const mf_model *a, const mf_model *b) {
    mf_model_identity x, y;
    mf_model_identify(a, &x);
    mf_model_identify(b, &y);
    return strcmp(x.fingerprint, y.fingerprint) == 0;
}

/* The document with its overrides; *model is what it says. */
static mf_status merge(const mf_json *doc, const char *name, const char *const *overrides,
                       size_t count, mf_model *model, char **text, size_t *length, mf_err *e) {
    mf_config c;
    mf_json_writer w;
    mf_status st = mf_config_open(&c, doc, overrides, count, e);
    st = st == MF_OK ? mf_model_read(&c, name, model) : st;
    if (st == MF_OK) {
        mf_json_writer_init(&w);
        mf_config_merge(&c, &w);
        st = mf_json_writer_finish(&w, text, length, e);
    }
    mf_config_close(&c);
    return st;
}

mf_status mf_model_config_text(const char *name_or_path, const char *const *overrides, size_t count,
                               char **text, size_t *length, mf_err *e) {
    mf_model said, read;
    char name[sizeof said.name], *path = NULL;
    mf_json *doc = NULL;
    *text = NULL;
    mf_status st = locate(name_or_path, &path, name, sizeof name, e);
    if (st == MF_OK && count == 0) {
        st = mf_file_load(path, MF_JSON_MAX_BYTES, text, length, e);
    } else if (st == MF_OK) {
        st = load_config(path, &doc, e);
        st = st == MF_OK ? merge(doc, name, overrides, count, &said, text, length, e) : st;
        mf_json_destroy(doc);
        doc = NULL;
        st = st == MF_OK ? mf_json_parse("config.json", *text, *length, &doc, e) : st;
        st = st == MF_OK ? mf_model_from_json(doc, name, &read, e) : st;
        if (st == MF_OK && !same_model(&said, &read)) {
            st = mf_err_set(e, MF_USAGE,
                            "%s: no config.json says what --set makes of it: change the file "
                            "itself, and give it with --model",
                            path);
        }
        mf_json_destroy(doc);
    }
    free(path);
    return st;
}
