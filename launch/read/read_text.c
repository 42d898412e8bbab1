/* read_text.c - what kind of text it is, and its settings by whichever name they have there. */
#include "launch/read/read_internal.h"

#include "core/base/file.h"
#include "core/base/text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define MOST_FILE (64 << 20)

void mf_read_clear(mf_read *r) {
    mf_settings_clear(&r->settings);
    mf_settings_clear(&r->given);
    mf_settings_clear(&r->variables);
    mf_settings_clear(&r->moefold);
    mf_settings_clear(&r->unknown);
    mf_settings_clear(&r->modules);
    free(r->python);
    *r = (mf_read){0};
}

/* --- values ----------------------------------------------------------------------------------- */

/* "['a', 'b']", "[a,b]" and "(1, 2)" as words parted by blanks; quotes go. */
static void plain_value(const char *value, bool list, char *out, size_t size) {
    size_t used = 0;
    bool gap = false;
    const char *drop = list ? "[]()'\"" : "'\"";
    for (const char *at = value; *at != '\0' && used + 2 < size; at++) {
        if (strchr(drop, *at) != NULL) {
            continue;
        }
        if (list && (*at == ',' || isspace((unsigned char)*at))) {
            gap = used > 0;
            continue;
        }
        if (gap) {
            out[used++] = ' ';
        }
        gap = false;
        out[used++] = *at;
    }
    out[used] = '\0';
}

static void unknown(mf_read *r, const char *name, size_t length, const char *value) {
    char text[160];
    snprintf(text, sizeof text, "%.*s", (int)(length < 159 ? length : 159), name);
    mf_settings_put_text(&r->unknown, text, value);
}

static void put(mf_read *r, const mf_word *w, bool inverse, const char *value) {
    char text[8192];
    if (strchr(value, '$') != NULL) { /* a variable that nothing sets */
        if (!w->ignored) {
            unknown(r, w->flag, strlen(w->flag), value);
        }
        return;
    }
    plain_value(value, mf_word_takes_several(w), text, sizeof text);
    if (w->kind == MF_WORD_SWITCH) {
        bool on = strcmp(text, "false") != 0 && strcmp(text, "False") != 0 &&
                  strcmp(text, "None") != 0 && strcmp(text, "null") != 0 && strcmp(text, "0") != 0;
        mf_settings_put_text(&r->settings, w->flag, on != inverse ? "true" : "false");
        return;
    }
    mf_settings_put_text(&r->settings, w->flag, strcmp(text, "null") == 0 ? "None" : text);
}

void mf_read_flag(mf_read *r, const char *flag, size_t length, const char *value) {
    const mf_word *w = mf_word_of_flag(flag, length);
    if (w != NULL) {
        put(r, w, false, value);
    } else {
        char name[160];
        snprintf(name, sizeof name, "--%.*s", (int)(length < 150 ? length : 150), flag);
        unknown(r, name, strlen(name), value);
    }
}

void mf_read_key(mf_read *r, const char *key, size_t length, const char *value) {
    static const char ddp[] = "ddp.";
    const mf_word *w = mf_word_of_key(key, length);
    char other[160];
    if (w == NULL && length > 4 && strncmp(key, ddp, 4) == 0) { /* overlaps stand in both */
        snprintf(other, sizeof other, "comm_overlap.%.*s", (int)(length - 4), key + 4);
        w = mf_word_of_key(other, strlen(other));
    }
    const char *last = key;
    for (size_t i = 0; i < length; i++) {
        last = key[i] == '.' ? key + i + 1 : last;
    }
    const mf_word *flag = mf_word_of_flag(last, (size_t)(key + length - last));
    if (w != NULL) {
        put(r, w, w->inverse, value);
    } else if (flag == NULL || !flag->ignored) {
        unknown(r, key, length, value);
    }
}

void mf_read_dest(mf_read *r, const char *dest, size_t length, const char *value) {
    const mf_word *w = mf_word_of_dest(dest, length);
    if (w != NULL) { /* a dump holds every argument there is: what is not known says nothing */
        put(r, w, w->inverse && w->dest != NULL, value);
    }
}

/* --- lines ------------------------------------------------------------------------------------ */

/* "[default0]:  seq_length .......... 4096", with whatever a launcher puts in front. */
bool mf_read_dump_line(mf_read *r, const char *line, size_t length) {
    static const char dots[] = " ....";
    char value[8192];
    const char *mid = NULL;
    for (size_t i = 0; i + sizeof dots - 1 < length && mid == NULL; i++) {
        mid = strncmp(line + i, dots, sizeof dots - 1) == 0 ? line + i : NULL;
    }
    if (mid == NULL) {
        return false;
    }
    const char *name = mid;
    while (name > line && (isalnum((unsigned char)name[-1]) || name[-1] == '_')) {
        name--;
    }
    const char *end = line + length, *at = mid + 1;
    while (at < end && *at == '.') {
        at++;
    }
    if (name == mid || at == end || *at != ' ') {
        return false;
    }
    while (at < end && *at == ' ') {
        at++;
    }
    while (end > at && isspace((unsigned char)end[-1])) {
        end--;
    }
    snprintf(value, sizeof value, "%.*s", (int)(end - at < 8191 ? end - at : 8191), at);
    mf_read_dest(r, name, (size_t)(mid - name), value);
    return true;
}

bool mf_read_yaml_line(mf_read *r, const char *line, size_t length) {
    char rest[8192];
    const char *at = line, *end = line + length;
    while (at < end && isspace((unsigned char)*at)) {
        at++;
    }
    const char *colon = memchr(at, ':', (size_t)(end - at));
    bool flag = end - at > 3 && at[0] == '-' && at[1] == '-';
    if (!flag || colon == NULL || colon + 1 >= end || colon[1] != ' ' ||
        memchr(at, ' ', (size_t)(colon - at)) != NULL) {
        return false;
    }
    const char *value = colon + 1;
    const char *hash = value;
    while (hash < end && !(*hash == '#' && hash[-1] == ' ')) {
        hash++;
    }
    while (value < hash && isspace((unsigned char)*value)) {
        value++;
    }
    while (hash > value && isspace((unsigned char)hash[-1])) {
        hash--;
    }
    size_t name = (size_t)(colon - at);
    size_t size = (size_t)(hash - value);
    const char *off[] = {"false", "False"};
    if (size == 5 && (strncmp(value, off[0], 5) == 0 || strncmp(value, off[1], 5) == 0)) {
        return true;
    }
    if (size == 4 && (strncmp(value, "true", 4) == 0 || strncmp(value, "True", 4) == 0)) {
        mf_read_flag(r, at + 2, name - 2, "true");
        return true;
    }
    snprintf(rest, sizeof rest, "%.*s \"%.*s\"", (int)name, at, (int)size, value);
    return mf_read_shell(r, rest, strlen(rest)) == MF_OK;
}

/* --- texts ------------------------------------------------------------------------------------ */

typedef bool (*line_fn)(mf_read *r, const char *line, size_t length);

static int each_line(mf_read *r, const char *text, line_fn fn) {
    int taken = 0;
    for (const char *at = text; *at != '\0';) {
        size_t length = strcspn(at, "\n");
        taken += fn(r, at, length);
        at += length + (at[length] == '\n');
    }
    return taken;
}

static bool is_python(const char *name, const char *text) {
    return mf_text_ends_with(name, ".py") || strncmp(text, "def ", 4) == 0 ||
           strstr(text, "\ndef ") != NULL;
}

static mf_status read_script(mf_read *r, const char *text, const char *recipe, mf_err *e) {
    char *copy = strdup(text), *end = NULL;
    if (copy == NULL) {
        return MF_NOMEM;
    }
    const long number = recipe != NULL ? strtol(recipe, &end, 10) : 0;
    const bool numbered = recipe != NULL && end != recipe && *end == '\0';
    const int count = mf_read_one_launch(copy, numbered && number > 0 ? (int)number : 0);
    mf_status status = MF_OK;
    if (count > 0 && numbered && (number < 1 || number > count)) {
        status = mf_err_set(e, MF_INPUT, "--recipe: expected one of its %d launches, got %s", count,
                            recipe);
    }
    r->launches = count > 1 ? count : r->launches;
    status = status == MF_OK ? mf_read_shell(r, copy, strlen(copy)) : status;
    free(copy);
    return status;
}

mf_status mf_read_text(mf_read *r, const char *name, const char *text, const char *recipe,
                       mf_err *e) {
    mf_status status = MF_OK;
    if (is_python(name, text)) {
        status = mf_read_python(r, name, text, recipe);
    } else if (each_line(r, text, mf_read_dump_line) == 0 &&
               each_line(r, text, mf_read_yaml_line) == 0) {
        status = read_script(r, text, recipe, e);
    }
    bool lost = r->settings.failed || r->variables.failed || r->moefold.failed || r->unknown.failed;
    if (status == MF_NOMEM || lost) {
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", name);
    }
    return status == MF_OK ? status : mf_err_prefix(e, "%s", name);
}

/* What has an option of its own is no job. */
static mf_status check_is_job(const char *path, const char *text, mf_err *e) {
    if (text[strspn(text, " \t\r\n")] != '{') {
        return MF_OK;
    }
    if (strstr(text, "\"moefold-plan\"") != NULL) {
        return mf_err_set(e, MF_USAGE,
                          "%s is a plan: tune, simulate, explain and export take it as --plan %s",
                          path, path);
    }
    return strstr(text, "\"model_type\"") == NULL
               ? MF_OK
               : mf_err_set(e, MF_USAGE, "%s is a model's config.json: give it as --model %s", path,
                            path);
}

mf_status mf_read_file(mf_read *r, const char *path, const char *recipe, mf_err *e) {
    char *text = NULL;
    size_t length = 0;
    mf_status status = mf_file_load(path, MOST_FILE, &text, &length, e);
    if (status == MF_OK && memchr(text, '\0', length) != NULL) {
        status = mf_err_set(e, MF_INPUT, "%s: expected text, found a zero byte", path);
    }
    status = status == MF_OK ? check_is_job(path, text, e) : status;
    if (status == MF_OK && is_python(path, text)) {
        status = mf_read_imports(r, path, text, e);
    }
    if (status == MF_OK) {
        status = mf_read_text(r, path, text, recipe, e);
    }
    free(text);
    return status;
}
