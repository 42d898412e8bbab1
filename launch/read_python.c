/* read_python.c - Megatron-Bridge's recipes: functions that set fields of a configuration.
 *
 * A recipe is followed as far as its text says what happens: plain assignments, calls of functions
 * whose text is there with their arguments, conditions that can be decided. Nothing is run. What
 * depends on something else (a condition on the machine, a function of another package) is passed
 * over, and the name of an unknown value stands for it.
 */
#include "launch/python_reader.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_CALLS = 16,     /* functions inside one another */
    MOST_TAKEN = 1000,   /* functions in all: each may call each, many times */
    MOST_NESTED = 64,    /* parts of an expression inside one another */
    MOST_LINES = 200000, /* statements in all */
};

/* A function that is read. */
typedef struct frame {
    const mf_python_module *module;
    mf_settings names;
    const char *result; /* NULL: it has not returned */
} frame;

static const char *name_of(mf_python_reader *p, frame *f, const char *name) {
    return mf_python_keep_text(p, mf_settings_text(&f->names, name, NULL));
}

/* --- expressions ------------------------------------------------------------------------------ */

static const char *evaluate(mf_python_reader *p, frame *f, const char *s);

static const char *call(mf_python_reader *p, frame *f, const char *name, size_t length,
                        const char *args);

/* Two operands around the word that parts them; false: the expression has none. */
static bool parted(mf_python_reader *p, const char *s, const char *word, const char **left,
                   const char **right) {
    const size_t at = mf_python_until(s, word);
    if (s[at] == '\0' || strncmp(s + at, word, strlen(word)) != 0) {
        return false;
    }
    *left = mf_python_trimmed(p, s, at);
    *right = mf_python_keep(p, s + at + strlen(word), strlen(s + at + strlen(word)));
    return true;
}

static mf_python_truth within(mf_python_reader *p, frame *f, const char *a, const char *list) {
    const char *item[MF_PYTHON_MOST_ITEMS];
    mf_python_truth found = MF_PYTHON_NO;
    if (list[0] != '[' && list[0] != '(' && list[0] != '{') {
        return MF_PYTHON_UNKNOWN;
    }
    const int n = mf_python_items(p, list + 1, item);
    for (int i = 0; i < n && found != MF_PYTHON_YES; i++) {
        const size_t colon = mf_python_span(item[i], ":"); /* of a dictionary, the keys */
        const mf_python_truth t = mf_python_equal(
            a, list[0] == '{' ? evaluate(p, f, mf_python_keep(p, item[i], colon)) : item[i]);
        found = t == MF_PYTHON_NO ? found : t;
    }
    return found;
}

static mf_python_truth compare(mf_python_reader *p, frame *f, const char *s, bool *is_comparison) {
    static const char *const words[] = {
        " is not ", " is ", " not in ", " in ", " == ", " != ", " <= ", " >= ", " < ", " > "};
    const char *left, *right;
    *is_comparison = true;
    for (int i = 0; i < (int)(sizeof words / sizeof words[0]); i++) {
        if (!parted(p, s, words[i], &left, &right)) {
            continue;
        }
        const char *a = evaluate(p, f, left), *b = evaluate(p, f, right);
        long x, y;
        if (i == 2 || i == 3) {
            const mf_python_truth t = within(p, f, a, b);
            return i == 3 || t == MF_PYTHON_UNKNOWN ? t
                   : t == MF_PYTHON_YES             ? MF_PYTHON_NO
                                                    : MF_PYTHON_YES;
        }
        if (i > 5) {
            if (!mf_python_is_whole(a, &x) || !mf_python_is_whole(b, &y)) {
                return MF_PYTHON_UNKNOWN;
            }
            return (i == 6   ? x <= y
                    : i == 7 ? x >= y
                    : i == 8 ? x < y
                             : x > y)
                       ? MF_PYTHON_YES
                       : MF_PYTHON_NO;
        }
        mf_python_truth t = mf_python_equal(a, b);
        if (t == MF_PYTHON_UNKNOWN && mf_python_is(b, "None") && strchr(a, '(') != NULL &&
            a[0] != '?') {
            t = MF_PYTHON_NO; /* an object is there */
        }
        return i == 1 || i == 4 || t == MF_PYTHON_UNKNOWN ? t
               : t == MF_PYTHON_YES                       ? MF_PYTHON_NO
                                                          : MF_PYTHON_YES;
    }
    *is_comparison = false;
    return MF_PYTHON_UNKNOWN;
}

/* The last operator of the weakest kind divides; NULL: there is none. */
static const char *arithmetic(mf_python_reader *p, frame *f, const char *s) {
    static const char *const ops[2][2] = {{" + ", " - "}, {" * ", " // "}};
    for (int kind = 0; kind < 2; kind++) {
        const char *op = NULL;
        size_t at = 0;
        for (int i = 0; i < 2; i++) {
            for (size_t from = 0;;) {
                const size_t n = mf_python_until(s + from, ops[kind][i]);
                if (strncmp(s + from + n, ops[kind][i], strlen(ops[kind][i])) != 0) {
                    break;
                }
                op = op == NULL || from + n > at ? ops[kind][i] : op;
                at = from + n > at ? from + n : at;
                from += n + strlen(ops[kind][i]);
            }
        }
        if (op != NULL && at > 0) {
            const char *a = evaluate(p, f, mf_python_trimmed(p, s, at));
            return mf_python_reckon(p, a, op, evaluate(p, f, s + at + strlen(op)));
        }
    }
    return NULL;
}

/* The items of a list, a tuple, or arguments, each evaluated; `open` and `close` around them. */
static const char *evaluate_items(mf_python_reader *p, frame *f, const char *s, const char *open,
                                  const char *close) {
    const char *item[MF_PYTHON_MOST_ITEMS], *all = open;
    const int n = mf_python_items(p, s, item);
    for (int i = 0; i < n; i++) {
        const size_t equals = mf_python_span(item[i], "=");
        const bool named = item[i][equals] == '=' && item[i][equals + 1] != '=' && equals > 0 &&
                           strchr("!<>", item[i][equals - 1]) == NULL;
        const char *one = named ? mf_python_joined(p, mf_python_keep(p, item[i], equals), "=",
                                                   evaluate(p, f, item[i] + equals + 1))
                                : evaluate(p, f, item[i]);
        all = mf_python_joined(p, all, i > 0 ? ", " : "", one);
    }
    return mf_python_joined(p, all, close, "");
}

/* What a dictionary has under a key; `absent` where it has not. */
static const char *look_up(mf_python_reader *p, frame *f, const char *dict, const char *key,
                           const char *absent) {
    const char *item[MF_PYTHON_MOST_ITEMS];
    const int n = dict[0] == '{' ? mf_python_items(p, dict + 1, item) : 0;
    for (int i = 0; i < n; i++) {
        const size_t colon = mf_python_span(item[i], ":");
        if (item[i][colon] == ':' &&
            mf_python_equal(evaluate(p, f, mf_python_trimmed(p, item[i], colon)), key) ==
                MF_PYTHON_YES) {
            return evaluate(p, f, item[i] + colon + 1);
        }
    }
    return n > 0 && mf_python_is_plain(key) ? absent : "?";
}

static const char *subscript(mf_python_reader *p, frame *f, const char *value, const char *inside) {
    const char *item[MF_PYTHON_MOST_ITEMS];
    const char *key = evaluate(p, f, inside);
    long at;
    if (value[0] == '{') {
        return look_up(p, f, value, key, "?");
    }
    if ((mf_python_is_list(value) || value[0] == '(') && mf_python_is_whole(key, &at)) {
        const int n = mf_python_items(p, value + 1, item);
        at = at < 0 ? at + n : at;
        return at >= 0 && at < n ? item[at] : "?";
    }
    return "?";
}

static const char *member(mf_python_reader *p, const char *value, const char *name) {
    if (value[0] == '@') {
        const char *path = value[1] != '\0' ? mf_python_joined(p, value + 1, ".", name) : name;
        return mf_python_field(p, path, mf_python_joined(p, "?", path, ""));
    }
    return mf_python_joined(p, value, ".", name);
}

/* getattr(object, "name", absent): what nobody set of a model may come from the hub. */
static const char *attribute(mf_python_reader *p, const char **arg, int n) {
    if (n < 2 || arg[0][0] != '@' || !mf_python_is_text(arg[1])) {
        return "?";
    }
    const char *name = mf_python_keep(p, arg[1] + 1, strlen(arg[1]) - 2);
    const char *path = arg[0][1] != '\0' ? mf_python_joined(p, arg[0] + 1, ".", name) : name;
    const bool hub = strncmp(arg[0], "@model", 6) == 0;
    return mf_python_field(p, path, n > 2 && !(hub && mf_python_is(arg[2], "None")) ? arg[2] : "?");
}

/* A helper turns the exchange over to a library, where the GPUs have it: DeepEP runs on Hopper,
 * B200 and B300 (training/flex_dispatcher_backend.py), recipes are named by their GPU. */
static void set_exchange(mf_python_reader *p, const char *backend) {
    const bool rack = strstr(p->recipe, "gb200") != NULL || strstr(p->recipe, "gb300") != NULL ||
                      strstr(p->recipe, "vr200") != NULL;
    const bool deep = strstr(backend, "deepep") != NULL;
    if (strstr(backend, "hybridep") != NULL || deep) {
        mf_python_set(p, "model.moe_token_dispatcher_type",
                      deep && rack ? "\"alltoall\"" : "\"flex\"");
    }
}

static const char *known_call(mf_python_reader *p, frame *f, const char *name, const char *args) {
    const char *arg[MF_PYTHON_MOST_ITEMS], *all;
    if (mf_python_is(name, "getattr")) {
        all = evaluate_items(p, f, args, "", "");
        return attribute(p, arg, mf_python_items(p, all, arg));
    }
    if (mf_python_is(name, "isinstance")) {
        all = evaluate_items(p, f, args, "", "");
        if (mf_python_items(p, all, arg) == 2 && mf_python_is(arg[1], "str")) {
            return mf_python_is_text(arg[0]) ? "True"
                   : arg[0][0] == '@'        ? "?"
                                             : mf_python_told(MF_PYTHON_NO);
        }
        return "?";
    }
    if (mf_python_is(name, "cast") || mf_python_is(name, "deepcopy")) {
        all = evaluate_items(p, f, args, "", "");
        const int n = mf_python_items(p, all, arg);
        return n > 0 ? arg[n - 1] : "?";
    }
    if (mf_python_is(name, "get_mixed_precision_config")) { /* by the name of a function */
        return evaluate(p, f, args);
    }
    if (mf_python_is(name, "apply_flex_dispatcher_backend")) {
        all = evaluate_items(p, f, args, "", "");
        const int n = mf_python_items(p, all, arg);
        set_exchange(p, n == 2 ? arg[1] : "None");
        return "None";
    }
    return NULL;
}

/* What a module says once; NULL: nothing. */
static const char *constant(mf_python_reader *p, const frame *f, const char *name, size_t length) {
    const mf_python_place c = mf_python_find(&p->modules, f->module, name, length, true);
    const char *from = c.at, *value = NULL;
    mf_python_line *line = from != NULL && p->calls < MOST_CALLS ? malloc(sizeof *line) : NULL;
    if (line != NULL && mf_python_line_at(&from, c.module->to, line)) {
        frame own = {.module = c.module};
        p->calls++;
        value = evaluate(p, &own, line->text);
        p->calls--;
        mf_settings_clear(&own.names);
    }
    free(line);
    return value;
}

/* A name, and what is asked of it: members, calls, subscripts. */
static const char *primary(mf_python_reader *p, frame *f, const char *s) {
    size_t length = 0;
    while (isalnum((unsigned char)s[length]) || s[length] == '_') {
        length++;
    }
    if (length == 0) {
        return mf_python_keep(p, s, strlen(s));
    }
    const char *name = mf_python_keep(p, s, length);
    const char *value = name_of(p, f, name);
    const char *at = s + length;
    if (*at == '(') {
        const size_t inside = mf_python_span(at + 1, "");
        value = call(p, f, name, length, mf_python_keep(p, at + 1, inside));
        at += 1 + inside + (at[1 + inside] == ')');
    } else if (value == NULL && !isdigit((unsigned char)name[0]) && !mf_python_is(name, "None") &&
               !mf_python_is(name, "True") && !mf_python_is(name, "False")) {
        value = constant(p, f, name, length);
    }
    value = value != NULL ? value : name;
    while (*at == '.' || *at == '(' || *at == '[') {
        const size_t n = *at == '.' ? strspn(at + 1, "abcdefghijklmnopqrstuvwxyz"
                                                     "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
                                    : mf_python_span(at + 1, "");
        const char *inside = mf_python_keep(p, at + 1, n);
        const char *behind = at + 1 + n;
        if (*at == '.' && *behind == '(' && mf_python_is(inside, "get") && value[0] == '{') {
            const char *arg[MF_PYTHON_MOST_ITEMS];
            const size_t size = mf_python_span(behind + 1, "");
            const char *all = evaluate_items(p, f, mf_python_keep(p, behind + 1, size), "", "");
            const int given = mf_python_items(p, all, arg);
            value = given > 0 ? look_up(p, f, value, arg[0], given > 1 ? arg[1] : "None") : "?";
            at = behind + 1 + size + (behind[1 + size] == ')');
            continue;
        }
        value = *at == '.' ? member(p, value, inside)
                : *at == '['
                    ? subscript(p, f, value, inside)
                    : mf_python_joined(p, value, evaluate_items(p, f, inside, "(", ")"), "");
        at = behind + (*at != '.' && *behind != '\0');
    }
    return *at == '\0' ? value : mf_python_joined(p, value, at, "");
}

/* Texts that stand side by side are one; "|".join((a, b)) is a text, too. */
static const char *literal(mf_python_reader *p, frame *f, const char *s) {
    static const char join[] = ".join(";
    size_t at = mf_python_span(s, " .");
    const char *value = mf_python_keep(p, s, at), *item[MF_PYTHON_MOST_ITEMS];
    while (s[at] == ' ' && mf_python_is_text(s + at + 1)) {
        s += at + 1;
        at = mf_python_span(s, " .");
        value = mf_python_text_behind(p, value, mf_python_keep(p, s, at));
    }
    if (strncmp(s + at, join, sizeof join - 1) != 0) {
        return s[at] == '\0' ? value : "?";
    }
    s += at + sizeof join - 1;
    const char *list = evaluate(p, f, mf_python_keep(p, s, mf_python_span(s, "")));
    const int n =
        list[0] == '(' || mf_python_is_list(list) ? mf_python_items(p, list + 1, item) : 0;
    const char *all = n > 0 && mf_python_is_text(item[0]) ? item[0] : "?";
    for (int i = 1; i < n && mf_python_is_text(all); i++) {
        all = mf_python_is_text(item[i])
                  ? mf_python_text_behind(p, mf_python_text_behind(p, all, value), item[i])
                  : "?";
    }
    return all;
}

static const char *evaluate_part(mf_python_reader *p, frame *f, const char *s) {
    const char *a, *b, *c;
    bool comparison;
    const size_t length = strlen(s);
    if (length == 0) {
        return "";
    }
    if (s[mf_python_span(s, ",")] == ',') { /* a tuple without brackets */
        return evaluate_items(p, f, s, "(", ")");
    }
    if (parted(p, s, " if ", &a, &b) && parted(p, b, " else ", &b, &c)) {
        const mf_python_truth t = mf_python_truth_of(evaluate(p, f, b));
        return t == MF_PYTHON_YES ? evaluate(p, f, a) : t == MF_PYTHON_NO ? evaluate(p, f, c) : "?";
    }
    if (parted(p, s, " or ", &a, &b)) {
        a = evaluate(p, f, a);
        const mf_python_truth t = mf_python_truth_of(a);
        b = t == MF_PYTHON_YES ? "" : evaluate(p, f, b);
        return t == MF_PYTHON_YES                                            ? a
               : t == MF_PYTHON_NO || mf_python_truth_of(b) == MF_PYTHON_YES ? b
                                                                             : "?";
    }
    if (parted(p, s, " and ", &a, &b)) {
        a = evaluate(p, f, a);
        const mf_python_truth t = mf_python_truth_of(a);
        b = t == MF_PYTHON_NO ? "" : evaluate(p, f, b);
        return t == MF_PYTHON_NO                       ? a
               : t == MF_PYTHON_YES                    ? b
               : mf_python_truth_of(b) == MF_PYTHON_NO ? b
                                                       : "?";
    }
    if (strncmp(s, "not ", 4) == 0) {
        const mf_python_truth t = mf_python_truth_of(evaluate(p, f, s + 4));
        return mf_python_told(t == MF_PYTHON_UNKNOWN ? t
                              : t == MF_PYTHON_YES   ? MF_PYTHON_NO
                                                     : MF_PYTHON_YES);
    }
    const mf_python_truth t = compare(p, f, s, &comparison);
    if (comparison) {
        return mf_python_told(t);
    }
    if ((a = arithmetic(p, f, s)) != NULL) {
        return a;
    }
    if (mf_python_is_text(s)) {
        return literal(p, f, s);
    }
    if (s[0] == '{' || strncmp(s, "lambda", 6) == 0) {
        return mf_python_keep(p, s, length);
    }
    if (s[0] == '[' && mf_python_until(s + 1, " for ") == mf_python_span(s + 1, "")) {
        return evaluate_items(p, f, s + 1, "[", "]");
    }
    if (s[0] == '(') {
        const size_t inside = mf_python_span(s + 1, "");
        const char *whole = mf_python_keep(p, s + 1, inside);
        const bool tuple = whole[mf_python_span(whole, ",")] == ',';
        return s[1 + inside] != ')' || s[2 + inside] != '\0' ? "?"
               : tuple                                       ? evaluate_items(p, f, whole, "(", ")")
                                                             : evaluate(p, f, whole);
    }
    return primary(p, f, s);
}

static const char *evaluate(mf_python_reader *p, frame *f, const char *s) {
    if (p->nested >= MOST_NESTED) {
        return "?";
    }
    p->nested++;
    const char *value = evaluate_part(p, f, mf_python_trimmed(p, s, strlen(s)));
    p->nested--;
    return value;
}

/* --- functions -------------------------------------------------------------------------------- */

/* Values for the names of a signature: as given by place or by name, else what stands there. */
static void bind(mf_python_reader *p, frame *f, const char *signature, const char *args) {
    const char *name[MF_PYTHON_MOST_ITEMS], *arg[MF_PYTHON_MOST_ITEMS];
    const int names = mf_python_items(p, signature, name), given = mf_python_items(p, args, arg);
    int place = 0;
    for (int i = 0; i < names; i++) {
        const size_t equals = mf_python_span(name[i], "=");
        const size_t length = strspn(name[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                              "0123456789_");
        const char *own = mf_python_keep(p, name[i], length);
        const char *value = name[i][equals] == '=' ? evaluate(p, f, name[i] + equals + 1) : NULL;
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

static void take_block(mf_python_reader *p, frame *f, const char **at, int indent);

static const char *take_function(mf_python_reader *p, const mf_python_place *place,
                                 const char *args) {
    mf_python_line line;
    const char *at = place->at, *end = place->module->to;
    frame f = {.module = place->module};
    if (p->calls >= MOST_CALLS || p->r->taken >= MOST_TAKEN) {
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

static const char *call(mf_python_reader *p, frame *f, const char *name, size_t length,
                        const char *args) {
    const mf_python_place place = mf_python_find(&p->modules, f->module, name, length, false);
    const char *value = known_call(p, f, name, args);
    if (value != NULL) {
        return value;
    }
    const char *given = evaluate_items(p, f, args, "", "");
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
static const char *path_of(mf_python_reader *p, frame *f, const char *target, const char **local) {
    const char *dot = strchr(target, '.');
    *local = NULL;
    if (dot == NULL) {
        return NULL;
    }
    const char *name = mf_python_keep(p, target, (size_t)(dot - target));
    const char *value = name_of(p, f, name);
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

static void assign(mf_python_reader *p, frame *f, const char *target, const char *value) {
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
        const char *object = name_of(p, f, local);
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
static void take_statement(mf_python_reader *p, frame *f, const char *s) {
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
    const char *value = evaluate(p, f, s);
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
static void take_inner(mf_python_reader *p, frame *f, const char **at, int indent, bool run) {
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

/* if, elif, else: the first branch that is known to be the one; once it cannot be known, none. */
static void take_branch(mf_python_reader *p, frame *f, const char **at, const mf_python_line *line,
                        mf_python_truth *before) {
    const char *s = line->text;
    if (word_is(s, "if")) {
        *before = MF_PYTHON_NO;
    }
    mf_python_truth own = *before == MF_PYTHON_NO ? MF_PYTHON_YES : MF_PYTHON_NO;
    if (own == MF_PYTHON_YES && !word_is(s, "else")) {
        s += word_is(s, "if") ? 2 : 4;
        own = mf_python_truth_of(evaluate(p, f, mf_python_keep(p, s, mf_python_span(s, ":"))));
        *before = own;
    }
    take_inner(p, f, at, line->indent, own == MF_PYTHON_YES);
}

static void take_block(mf_python_reader *p, frame *f, const char **at, int indent) {
    mf_python_line *line = malloc(sizeof *line);
    const char *next = *at;
    mf_python_truth before = MF_PYTHON_YES;
    while (line != NULL && f->result == NULL && p->lines < MOST_LINES &&
           mf_python_next(&next, f->module->to, line) && line->indent >= indent) {
        const char *s = line->text;
        *at = next;
        p->lines++;
        if (word_is(s, "return")) {
            f->result = evaluate(p, f, s + 6);
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
