/* read_around.c - what lies around a file and belongs to it: modules that a recipe of
 * Megatron-Bridge imports from its own checkout, the model configuration that ModelZoo's launcher
 * takes for a script's MODEL.
 *
 * A module is looked for under each folder above the file, as Python would with that folder on its
 * path; one that is not there (torch, another package) is passed over. So is one of which nothing
 * but classes is taken: a recipe reads no class, and the models of Bridge and its training loop,
 * hundreds of files, hang on those.
 */
#define _XOPEN_SOURCE 700 /* realpath */
#include "launch/read/read_internal.h"

#include "core/base/file.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_PATH = 4096, MOST_MODULES = 256, MOST_MODULE_B = 4 << 20 };

static bool is_plain_file(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* Makes a folder, or a file, the folder that holds it; false at the top. */
static bool go_up(char *path) {
    char *slash = strrchr(path, '/');
    if (slash == NULL || slash == path) {
        return false;
    }
    *slash = '\0';
    return true;
}

/* DIR/a/b.py or DIR/a/b/__init__.py of "a.b", whose length is given. */
static bool module_in(const char *dir, const char *name, size_t length, char *out) {
    char base[MOST_PATH];
    size_t used = (size_t)snprintf(base, sizeof base, "%s/", dir);
    if (used + length + sizeof "/__init__.py" > sizeof base) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        base[used++] = name[i] == '.' ? '/' : name[i];
    }
    base[used] = '\0';
    snprintf(out, MOST_PATH, "%.*s.py", MOST_PATH - 16, base);
    if (!is_plain_file(out)) {
        snprintf(out, MOST_PATH, "%.*s/__init__.py", MOST_PATH - 16, base);
    }
    return is_plain_file(out);
}

/* The file of a module that `path` imports; each leading dot is a folder up. */
static bool find_module(const char *path, const char *name, size_t length, char *out) {
    char dir[MOST_PATH];
    const size_t dots = strspn(name, ".");
    snprintf(dir, sizeof dir, "%s", path);
    if (dots > 0) {
        for (size_t i = 0; i < dots; i++) {
            if (!go_up(dir)) {
                return false;
            }
        }
        return dots < length && module_in(dir, name + dots, length - dots, out);
    }
    while (go_up(dir)) {
        if (module_in(dir, name, length, out)) {
            return true;
        }
    }
    return false;
}

static mf_status read_module(mf_read *r, const char *path, mf_err *e) {
    char *text = NULL;
    size_t length = 0;
    if (mf_settings_has(&r->modules, path)) {
        return MF_OK;
    }
    if (r->modules.count >= MOST_MODULES) {
        return mf_err_set(e, MF_INPUT, "it imports more than %d modules", MOST_MODULES);
    }
    mf_settings_put(&r->modules, path, "%s", "");
    if (mf_file_load(path, MOST_MODULE_B, &text, &length, NULL) != MF_OK ||
        memchr(text, '\0', length) != NULL) {
        free(text);
        return MF_OK; /* what cannot be read is not there */
    }
    mf_status s = mf_read_imports(r, path, text, e);
    s = s == MF_OK ? mf_read_add_python(r, path, text) : s;
    free(text);
    return s;
}

/* "(a, B as C)" or "a, b": whether one of the names may be a function or a constant, or all are
 * ("*"). Classes are CamelCase. */
static bool takes_more_than_classes(const char *names) {
    const char *end = names + strcspn(names, *names == '(' ? ")" : "\n");
    for (const char *at = names; at < end;) {
        const size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                         "0123456789_");
        size_t lower = 0;
        for (size_t i = 0; i < length; i++) {
            lower += islower((unsigned char)at[i]) != 0;
        }
        const bool is_as = length == 2 && strncmp(at, "as", 2) == 0;
        const bool is_class = length > 0 && isupper((unsigned char)*at) && lower > 0;
        if (*at == '*' || (length > 0 && !is_class && !is_as)) {
            return true;
        }
        if (*at == '#') {
            at += strcspn(at, "\n");
            continue;
        }
        at += length > 0 ? length : 1;
    }
    return false;
}

mf_status mf_read_imports(mf_read *r, const char *path, const char *text, mf_err *e) {
    static const char word[] = "from ";
    char *whole = realpath(path, NULL), found[MOST_PATH];
    mf_status s = MF_OK;
    if (whole == NULL) {
        return MF_OK; /* a text without a file */
    }
    for (const char *at = text; s == MF_OK && (at = strstr(at, word)) != NULL; at++) {
        const char *name = at + sizeof word - 1;
        size_t length = 0;
        while (isalnum((unsigned char)name[length]) || name[length] == '_' || name[length] == '.') {
            length++;
        }
        const bool begins = at == text || at[-1] == '\n';
        if (begins && length > 0 && strncmp(name + length, " import ", 8) == 0 &&
            takes_more_than_classes(name + length + 8) && find_module(whole, name, length, found)) {
            s = read_module(r, found, e);
        }
    }
    free(whole);
    return s;
}

bool mf_read_modelzoo_config(const char *script, const char *model, char *out, size_t size) {
    char *dir = realpath(script, NULL);
    bool found = false;
    while (dir != NULL && !found && model[0] != '\0' && strchr(model, '/') == NULL && go_up(dir)) {
        found =
            snprintf(out, size, "%s/model_configs/benchmarking/%s.yaml", dir, model) < (int)size &&
            is_plain_file(out);
    }
    free(dir);
    return found;
}
