/* model.c - models by shipped name or by path. */
#include "core/model.h"

#include "core/model_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const shipped[] = {
    "deepseek-v2",   "deepseek-v2-lite",   "deepseek-v3",    "deepseek-v3-proxy",
    "glm-4.5",       "gpt-oss-120b",       "gpt-oss-20b",    "internal-352b",
    "kimi-k2",       "llama2-13b",         "llama2-70b",     "llama2-7b",
    "llama3-405b",   "llama3-70b",         "llama3-8b",      "llama3-8x70b",
    "mixtral-8x22b", "mixtral-8x22b-g8t8", "mixtral-8x7b",   "moonlight-16b-a3b",
    "olmoe-1b-7b",   "qwen1.5-moe-a2.7b",  "qwen2-57b-a14b", "qwen2.5-32b",
    "qwen2.5-7b",    "qwen3-235b-a22b",    "qwen3-30b-a3b",  "qwen3-8b",
};

const char *const *mf_model_shipped(size_t *count) {
    *count = sizeof shipped / sizeof shipped[0];
    return shipped;
}

/* "a/b/config.json" -> "b", "a/b/" -> "b", "a/x.json" -> "x": what to call a model from a path. */
static void name_from_path(const char *path, char *name, size_t room) {
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
        snprintf(name, room, "%.*s", (int)length, path + start);
        return;
    }
}

mf_status mf_model_load_with(const char *name_or_path, const char *const *overrides, size_t count,
                             mf_model *out, mf_err *e) {
    char name[sizeof out->name];
    mf_json *doc = NULL;
    mf_status st = MF_OK;
    struct stat info;
    size_t room = strlen(name_or_path) + strlen(mf_data_dir()) + 32;
    char *path = malloc(room);
    if (path == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    snprintf(path, room, "%s", name_or_path);
    bool known = false;
    for (size_t i = 0; i < sizeof shipped / sizeof shipped[0]; i++) {
        known = known || strcmp(name_or_path, shipped[i]) == 0;
    }
    if (known) {
        snprintf(path, room, "%s/models/%s.json", mf_data_dir(), name_or_path);
    } else if (stat(name_or_path, &info) == 0 && S_ISDIR(info.st_mode)) {
        snprintf(path, room, "%s/config.json", name_or_path);
    } else if (stat(name_or_path, &info) != 0 && strchr(name_or_path, '/') == NULL) {
        const char *near =
            mf_nearest_word(name_or_path, shipped, sizeof shipped / sizeof shipped[0]);
        st = mf_err_set(e, MF_USAGE, "unknown model \"%.80s\"%s%s%s", name_or_path,
                        near != NULL ? "; did you mean \"" : " (no shipped name, and no such file)",
                        near != NULL ? near : "", near != NULL ? "\"?" : "");
        goto out;
    }
    if (known) {
        snprintf(name, sizeof name, "%s", name_or_path);
    } else {
        name_from_path(path, name, sizeof name);
    }
    st = mf_json_load(path, &doc, e);
    if (st == MF_OK) {
        st = mf_model_from_config(doc, name, overrides, count, out, e);
    }
out:
    mf_json_destroy(doc);
    free(path);
    return st;
}

mf_status mf_model_load(const char *name_or_path, mf_model *out, mf_err *e) {
    return mf_model_load_with(name_or_path, NULL, 0, out, e);
}
