/* read_python.c - Megatron-Bridge's recipes: functions that set fields of a configuration.
 *
 * Nothing is run. Read are the plain statements of a function, "cfg.model.a = 1", and those of the
 * functions that it calls where their text is there; what stands under a condition is passed over.
 */
#include "launch/read_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define MOST_CALLS 16   /* inside one another */
#define MOST_TAKEN 1000 /* functions in all: each may call each, many times */

static size_t line_length(const char *at) {
    return strcspn(at, "\n");
}

/* The text behind "def NAME(" of a function, the first of several or the last; NULL when it is not
 * there. */
static const char *find_function(const char *text, const char *name, size_t length, bool last) {
    const char *found = NULL;
    for (const char *at = text; (at = strstr(at, "def ")) != NULL; at += 4) {
        bool begins = at == text || at[-1] == '\n';
        if (begins && strncmp(at + 4, name, length) == 0 && at[4 + length] == '(') {
            found = at + 4 + length;
            if (!last) {
                break;
            }
        }
    }
    return found;
}

/* What "import X as NAME" stands for; *length becomes that of X. NULL: nothing. */
static const char *find_alias(const char *text, const char *name, size_t *length) {
    for (const char *at = text; (at = strstr(at, " as ")) != NULL; at += 4) {
        const char *from = at;
        if (strncmp(at + 4, name, *length) != 0 || isalnum((unsigned char)at[4 + *length]) ||
            at[4 + *length] == '_') {
            continue;
        }
        while (from > text && (isalnum((unsigned char)from[-1]) || from[-1] == '_')) {
            from--;
        }
        *length = (size_t)(at - from);
        return from;
    }
    return NULL;
}

/* Past the signature, which may take several lines. */
static const char *body_of(const char *at) {
    int depth = 0;
    for (; *at != '\0'; at++) {
        depth += (*at == '(') - (*at == ')');
        if (*at == ':' && depth == 0) {
            at += line_length(at);
            return at + (*at == '\n');
        }
    }
    return at;
}

static const char *const roots[] = {"model.",        "train.",      "ddp.",
                                    "optimizer.",    "dataset.",    "scheduler.",
                                    "comm_overlap.", "checkpoint.", "mixed_precision"};

/* The value of a module's constant ("SEQ_LENGTH = 8192"), in place of its name. */
static void take_constant(const mf_read *r, char *value, size_t size) {
    const size_t length = strspn(value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    if (length == 0 || value[length] != '\0' || isdigit((unsigned char)value[0])) {
        return;
    }
    for (const char *at = r->python; (at = strstr(at, value)) != NULL; at += length) {
        const bool begins = at == r->python || at[-1] == '\n';
        if (begins && strncmp(at + length, " = ", 3) == 0) {
            const char *from = at + length + 3;
            snprintf(value, size, "%.*s", (int)strcspn(from, " #\n"), from);
            return;
        }
    }
}

/* "cfg.model.a = value" and "model_cfg.a = value". */
static bool take_statement(mf_read *r, const char *at, const char *end) {
    char value[4096];
    const char *equals = at;
    while (equals < end && (isalnum((unsigned char)*equals) || *equals == '_' || *equals == '.')) {
        equals++;
    }
    const char *behind = equals;
    while (equals < end && *equals == ' ') {
        equals++;
    }
    if (equals >= end || *equals != '=' || equals + 1 >= end || equals[1] == '=') {
        return false;
    }
    const char *key = at;
    const char *dot = memchr(at, '.', (size_t)(behind - at));
    if (dot == NULL) {
        return false;
    }
    key = strncmp(at, "model.", 6) == 0 ? at : dot + 1;
    const char *text = equals + 1;
    while (text < end && *text == ' ') {
        text++;
    }
    const char *stop = end;
    const char *hash = NULL;
    for (const char *p = text; p + 2 < end && hash == NULL; p++) {
        hash = p[0] == ' ' && p[1] == '#' ? p : NULL;
    }
    stop = hash != NULL ? hash : stop;
    while (stop > text && isspace((unsigned char)stop[-1])) {
        stop--;
    }
    snprintf(value, sizeof value, "%.*s", (int)(stop - text < 4095 ? stop - text : 4095), text);
    take_constant(r, value, sizeof value);
    const mf_word *same =
        strncmp(value, "cfg.", 4) == 0 ? mf_word_of_key(value + 4, strlen(value) - 4) : NULL;
    if (same != NULL) { /* as another field */
        snprintf(value, sizeof value, "%s", mf_settings_text(&r->settings, same->flag, "None"));
    }
    if (strstr(value, "_layout(") != NULL) { /* made by a function: even stages stand for it */
        mf_settings_put(&r->unknown, "pipeline_model_parallel_layout", "%s", value);
        return true;
    }
    for (size_t i = 0; i < sizeof roots / sizeof roots[0]; i++) {
        if (strncmp(key, roots[i], strlen(roots[i])) == 0) {
            mf_read_key(r, key, (size_t)(behind - key), value);
            return true;
        }
    }
    return false;
}

static void take_function(mf_read *r, const char *name, size_t length, int depth);

/* Calls in a line: of functions whose text is there; a stage layout among the arguments is taken.
 */
static void take_calls(mf_read *r, const char *at, const char *end, int depth) {
    for (const char *p = at; p < end; p++) {
        if (*p != '(' || p == at) {
            continue;
        }
        const char *name = p;
        while (name > at && (isalnum((unsigned char)name[-1]) || name[-1] == '_')) {
            name--;
        }
        if (name < p) {
            take_function(r, name, (size_t)(p - name), depth + 1);
        }
    }
    for (const char *p = at; p < end; p++) {
        const char *close = *p == '"' ? memchr(p + 1, '"', (size_t)(end - p - 1)) : NULL;
        if (close == NULL) {
            continue;
        }
        bool stages = p[1] == 'E' && memchr(p, '|', (size_t)(close - p)) != NULL;
        if (stages) {
            mf_settings_put(&r->settings, "pipeline-model-parallel-layout", "%.*s",
                            (int)(close - p - 1), p + 1);
        }
        bool fused = strncmp(p, "\"deepep\"", 8) == 0 || strncmp(p, "\"hybridep\"", 10) == 0;
        if (fused) { /* a helper turns the exchange over to it */
            mf_settings_put(&r->settings, "moe-token-dispatcher-type", "flex");
        }
        p = close;
    }
}

static void take_function(mf_read *r, const char *name, size_t length, int depth) {
    const char *at = find_function(r->python, name, length, true);
    const char *other = at == NULL ? find_alias(r->python, name, &length) : NULL;
    /* a benchmark's function may be called as the library's that it begins with */
    at = other != NULL ? find_function(r->python, other, length, false) : at;
    if (at == NULL || depth > MOST_CALLS || r->taken >= MOST_TAKEN) {
        return;
    }
    r->taken++;
    for (at = body_of(at); *at != '\0';) {
        size_t size = line_length(at), indent = strspn(at, " ");
        if (indent < size && indent == 0) {
            return; /* the function's end */
        }
        if (indent == 4 && at[indent] != '#') {
            const char *statement = at + indent, *end = at + size;
            take_calls(r, statement, end, depth);
            (void)take_statement(r, statement, end);
        }
        at += size + (at[size] == '\n');
    }
}

/* The last function of the text, where none is named. */
static const char *last_function(const char *text, size_t *length) {
    const char *last = NULL;
    for (const char *at = text; (at = strstr(at, "def ")) != NULL; at += 4) {
        if (at == text || at[-1] == '\n') {
            last = at + 4;
        }
    }
    *length = last != NULL ? strcspn(last, "(") : 0;
    return last;
}

mf_status mf_read_add_python(mf_read *r, const char *text) {
    size_t old = r->python != NULL ? strlen(r->python) : 0, length = strlen(text);
    char *all = realloc(r->python, old + length + 2);
    if (all == NULL) {
        return MF_NOMEM;
    }
    memcpy(all + old, text, length + 1);
    all[old + length] = '\n';
    all[old + length + 1] = '\0';
    r->python = all;
    return MF_OK;
}

mf_status mf_read_python(mf_read *r, const char *text, const char *recipe, mf_err *e) {
    if (mf_read_add_python(r, text) != MF_OK) {
        return MF_NOMEM;
    }
    r->taken = 0;
    const char *name = recipe;
    size_t size = name != NULL ? strlen(name) : 0;
    if (name == NULL) {
        name = last_function(text, &size);
    } else if (find_function(r->python, name, size, true) == NULL) {
        return MF_OK; /* in a file that comes later */
    }
    (void)e;
    if (name != NULL) {
        take_function(r, name, size, 0);
    }
    return MF_OK;
}
