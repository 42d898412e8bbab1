/* read_python.c - Megatron-Bridge's recipes: functions that set fields of a configuration.
 *
 * A recipe is followed as far as its text says what happens: plain assignments, calls of functions
 * whose text is there with their arguments, conditions that can be decided. Nothing is run. What
 * depends on something else (a condition on the machine, a function of another package) is passed
 * over, and the name of an unknown value stands for it.
 */
#include "launch/read/python_reader.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_TAKEN = 1000,  /* functions in all: each may call each, many times */
    MOST_LINES = 20000, /* statements in all */
};

/* --- functions -------------------------------------------------------------------------------- */

/* Values for the names of a signature: as given by place or by name, else what stands there. */
static void bind(mf_python_reader *p, mf_python_frame *f, const char *signature, const char *args) {
    const char *name[MF_PYTHON_MOST_ITEMS], *arg[MF_PYTHON_MOST_ITEMS];
    const int names = mf_python_items(p, signature, name), given = mf_python_items(p, args, arg);
    int place = 0;
    for (int i = 0; i < names; i++) {
        const size_t equals = mf_python_span(name[i], "=");
        const size_t length = strspn(name[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                              "0123456789_");
        const char *own = mf_python_keep(p, name[i], length);
        const char *value =
            name[i][equals] == '=' ? mf_python_evaluate(p, f, name[i] + equals + 1) : NULL;
        for (int k = 0; k < given && length > 0; k++) {
            const bool named = strncmp(arg[k], own, length) == 0 && arg[k][length] == '=';
            value =
                named ? mf_python_keep(p, arg[k] + length + 1, strlen(arg[k] + length + 1)) : value;
        }
        if (place < given && arg[place][mf_python_span(arg[place], "=")] != '=' && length > 0) {
            value = arg[place++];
        }
        if (length > 0 && value != NULL) {
            mf_settings_put_text(&f->names, own, value);
        }
    }
}

static void take_block(mf_python_reader *p, mf_python_frame *f, const char **at, int indent);

static const char *take_function(mf_python_reader *p, const mf_python_place *place,
                                 const char *args) {
    mf_python_line line;
    const char *at = place->at, *end = place->module->to;
    mf_python_frame f = {.module = place->module};
    if (p->calls >= MF_PYTHON_MOST_CALLS || p->r->taken >= MOST_TAKEN) {
        return "?";
    }
    p->r->taken++;
    p->calls++;
    if (mf_python_next(&at, end, &line)) { /* "(a, b=1) -> type:", from its bracket on */
        const size_t inside = mf_python_span(line.text + 1, "");
        bind(p, &f, mf_python_keep(p, line.text + 1, inside), args);
    }
    at = mf_python_body(place->at, end);
    const char *first = at;
    if (mf_python_next(&first, end, &line) && line.indent > 0) {
        take_block(p, &f, &at, line.indent);
    }
    p->calls--;
    mf_settings_clear(&f.names);
    return f.result != NULL ? f.result : "None";
}

const char *mf_python_call(mf_python_reader *p, mf_python_frame *f, const char *name, size_t length,
                           const char *args) {
    const mf_python_place place = mf_python_find(&p->modules, f->module, name, length, false);
    const char *value = mf_python_known_call(p, f, name, args);
    if (value != NULL) {
        return value;
    }
    const char *given = mf_python_evaluate_items(p, f, args, "", "");
    if (place.at != NULL) {
        return take_function(p, &place, given);
    }
    value = mf_python_joined(p, name, "(", mf_python_joined(p, given, ")", ""));
    if (mf_python_is(name, "ConfigContainer")) {
        mf_python_set_object(p, "", value);
        return "@";
    }
    return value;
}

/* --- statements ------------------------------------------------------------------------------- */

/* "cfg.model.a" becomes "model.a"; NULL: it is no part of the configuration. An object that is no
 * part yet, *local, is made with one more argument. */
static const char *path_of(mf_python_reader *p, mf_python_frame *f, const char *target,
                           const char **local) {
    const char *dot = strchr(target, '.');
    *local = NULL;
    if (dot == NULL) {
        return NULL;
    }
    const char *name = mf_python_keep(p, target, (size_t)(dot - target));
    const char *value = mf_python_name(p, f, name);
    if (value != NULL && value[0] == '@') {
        return value[1] != '\0' ? mf_python_joined(p, value + 1, ".", dot + 1)
                                : mf_python_keep(p, dot + 1, strlen(dot + 1));
    }
    if (mf_python_is_part(dot + 1)) {
        return mf_python_keep(p, dot + 1, strlen(dot + 1));
    }
    if (mf_python_is(name, "model") && value == NULL) {
        return mf_python_keep(p, target, strlen(target));
    }
    *local = value != NULL && value[0] != '\0' && value[strlen(value) - 1] == ')' ? name : NULL;
    return NULL;
}

static void assign(mf_python_reader *p, mf_python_frame *f, const char *target, const char *value) {
    const char *local, *part[MF_PYTHON_MOST_ITEMS], *given[MF_PYTHON_MOST_ITEMS];
    if (target[mf_python_span(target, ",")] == ',') {
        const char *inside = value[0] == '(' || value[0] == '[' ? value + 1 : "";
        const int parts = mf_python_items(p, target, part),
                  values = mf_python_items(p, inside, given);
        for (int i = 0; i < parts; i++) {
            assign(p, f, part[i], parts == values ? given[i] : "?");
        }
        return;
    }
    const char *path = path_of(p, f, target, &local);
    if (path != NULL && mf_python_is(path, "mixed_precision") &&
        mf_python_is_text(value)) { /* by its function's name */
        const mf_python_place place =
            mf_python_find(&p->modules, NULL, value + 1, strlen(value) - 2, false);
        const char *made = place.at != NULL ? take_function(p, &place, "") : NULL;
        value = made != NULL && strchr(made, '(') != NULL ? made : value;
    }
    if (path != NULL) {
        mf_python_set(p, path, value);
    } else if (local != NULL) {
        const char *object = mf_python_name(p, f, local);
        const bool empty = object[strlen(object) - 2] == '(';
        const char *more = mf_python_joined(p, empty ? "" : ", ", target + strlen(local) + 1, "=");
        object = mf_python_joined(p, mf_python_keep(p, object, strlen(object) - 1), more, value);
        mf_settings_put_text(&f->names, local, mf_python_joined(p, object, ")", ""));
    } else if (strcspn(target, ".[(") == strlen(target)) {
        const char *name = mf_python_trimmed(p, target, strcspn(target, ":"));
        mf_settings_put_text(&f->names, name, value);
    }
}

/* "a = b = value"; a call alone. */
static void take_statement(mf_python_reader *p, mf_python_frame *f, const char *s) {
    const char *target[8];
    int targets = 0;
    for (;;) {
        const size_t at = mf_python_span(s, "=");
        const bool equals = s[at] == '=' && s[at + 1] != '=' && at > 0 &&
                            strchr("!<>+-*/|&", s[at - 1]) == NULL && targets < 8;
        if (!equals) {
            break;
        }
        target[targets++] = mf_python_trimmed(p, s, at);
        s += at + 1;
    }
    const char *value = mf_python_evaluate(p, f, s);
    for (int i = 0; i < targets; i++) {
        assign(p, f, target[i], value);
    }
}

static void skip_block(const char **at, const char *end, int indent) {
    mf_python_line line;
    for (const char *next = *at; mf_python_next(&next, end, &line) && line.indent > indent;) {
        *at = next;
    }
}

/* The block of a statement that ends with ":", which may be passed over. */
static void take_inner(mf_python_reader *p, mf_python_frame *f, const char **at, int indent,
                       bool run) {
    mf_python_line line;
    const char *next = *at;
    if (run && mf_python_next(&next, f->module->to, &line) && line.indent > indent) {
        take_block(p, f, at, line.indent);
    }
    if (f->result == NULL) {
        skip_block(at, f->module->to, indent);
    }
}

static bool word_is(const char *s, const char *word) {
    const size_t length = strlen(word);
    return strncmp(s, word, length) == 0 && !isalnum((unsigned char)s[length]) && s[length] != '_';
}

/* if, elif, else: takes the first branch whose condition is known to be true; after a condition
 * that cannot be evaluated, none. */
static void take_branch(mf_python_reader *p, mf_python_frame *f, const char **at,
                        const mf_python_line *line, mf_python_truth *before) {
    const char *s = line->text;
    if (word_is(s, "if")) {
        *before = MF_PYTHON_NO;
    }
    mf_python_truth own = *before == MF_PYTHON_NO ? MF_PYTHON_YES : MF_PYTHON_NO;
    if (own == MF_PYTHON_YES && !word_is(s, "else")) {
        s += word_is(s, "if") ? 2 : 4;
        own = mf_python_truth_of(
            mf_python_evaluate(p, f, mf_python_keep(p, s, mf_python_span(s, ":"))));
        *before = own;
    }
    take_inner(p, f, at, line->indent, own == MF_PYTHON_YES);
}

static void take_block(mf_python_reader *p, mf_python_frame *f, const char **at, int indent) {
    mf_python_line *line = malloc(sizeof *line);
    const char *next = *at;
    mf_python_truth before = MF_PYTHON_YES;
    while (line != NULL && f->result == NULL && p->lines < MOST_LINES &&
           mf_python_next(&next, f->module->to, line) && line->indent >= indent) {
        const char *s = line->text;
        *at = next;
        p->lines++;
        if (word_is(s, "return")) {
            f->result = mf_python_evaluate(p, f, s + 6);
        } else if (word_is(s, "raise")) {
            f->result = "?";
        } else if (word_is(s, "if") || word_is(s, "elif") || word_is(s, "else")) {
            take_branch(p, f, at, line, &before);
        } else if (word_is(s, "with") || word_is(s, "try")) {
            take_inner(p, f, at, line->indent, true);
        } else if (s[strlen(s) - 1] == ':' || s[0] == '@') { /* loops, functions, except */
            take_inner(p, f, at, line->indent, false);
        } else {
            take_statement(p, f, s);
        }
        next = *at;
    }
    free(line);
}

/* --- texts ------------------------------------------------------------------------------------ */

/* The last function of the text, where none is named. */
static const char *last_function(const char *s, size_t *length) {
    const char *last = NULL;
    for (const char *at = s; (at = strstr(at, "def ")) != NULL; at += 4) {
        if (at == s || at[-1] == '\n') {
            last = at + 4;
        }
    }
    *length = last != NULL ? strcspn(last, "(\n") : 0;
    return last;
}

mf_status mf_read_add_python(mf_read *r, const char *path, const char *s) {
    const size_t old = r->python != NULL ? strlen(r->python) : 0;
    const size_t size = old + strlen(path) + strlen(s) + 4;
    char *all = realloc(r->python, size);
    if (all == NULL) {
        return MF_NOMEM;
    }
    snprintf(all + old, size - old, "\f%s\n%s\n", path, s);
    for (char *at = all + old + 1; (at = strchr(at, '\f')) != NULL;) {
        *at = ' '; /* the text's own */
    }
    r->python = all;
    return MF_OK;
}

mf_status mf_read_python(mf_read *r, const char *path, const char *s, const char *recipe) {
    mf_python_reader *p = calloc(1, sizeof *p);
    if (p == NULL || mf_read_add_python(r, path, s) != MF_OK) {
        free(p);
        return MF_NOMEM;
    }
    r->taken = 0;
    p->r = r;
    p->recipe = recipe != NULL ? recipe : "";
    mf_python_find_modules(r->python, &p->modules);
    size_t length = recipe != NULL ? strlen(recipe) : 0;
    const char *name = recipe != NULL ? recipe : last_function(s, &length);
    if (name != NULL && length > 0) { /* one that is named may come in a later file */
        const mf_python_module *last = &p->modules.module[p->modules.count - 1];
        const mf_python_place place = mf_python_find(&p->modules, last, name, length, false);
        if (place.at != NULL) {
            (void)take_function(p, &place, "");
        }
    }
    const bool failed = p->fields.failed;
    while (p->texts != NULL) {
        mf_python_kept *next = p->texts->next;
        free(p->texts);
        p->texts = next;
    }
    mf_settings_clear(&p->fields);
    free(p);
    return failed ? MF_NOMEM : MF_OK;
}
