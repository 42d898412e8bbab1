/* python_evaluate.c - expressions: names, members, calls, comparisons, sums; nothing is run. */
#include "launch/read/python_reader.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NESTED = 64 }; /* parts of an expression inside one another */

const char *mf_python_name(mf_python_reader *p, mf_python_frame *f, const char *name) {
    return mf_python_keep_text(p, mf_settings_text(&f->names, name, NULL));
}

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

static mf_python_truth within(mf_python_reader *p, mf_python_frame *f, const char *a,
                              const char *list) {
    const char *item[MF_PYTHON_MOST_ITEMS];
    mf_python_truth found = MF_PYTHON_NO;
    if (list[0] != '[' && list[0] != '(' && list[0] != '{') {
        return MF_PYTHON_UNKNOWN;
    }
    const int n = mf_python_items(p, list + 1, item);
    for (int i = 0; i < n && found != MF_PYTHON_YES; i++) {
        const size_t colon = mf_python_span(item[i], ":"); /* of a dictionary, the keys */
        const mf_python_truth t = mf_python_equal(
            a,
            list[0] == '{' ? mf_python_evaluate(p, f, mf_python_keep(p, item[i], colon)) : item[i]);
        found = t == MF_PYTHON_NO ? found : t;
    }
    return found;
}

static mf_python_truth compare(mf_python_reader *p, mf_python_frame *f, const char *s,
                               bool *is_comparison) {
    static const char *const words[] = {
        " is not ", " is ", " not in ", " in ", " == ", " != ", " <= ", " >= ", " < ", " > "};
    const char *left, *right;
    *is_comparison = true;
    for (int i = 0; i < (int)(sizeof words / sizeof words[0]); i++) {
        if (!parted(p, s, words[i], &left, &right)) {
            continue;
        }
        const char *a = mf_python_evaluate(p, f, left), *b = mf_python_evaluate(p, f, right);
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
static const char *arithmetic(mf_python_reader *p, mf_python_frame *f, const char *s) {
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
            const char *a = mf_python_evaluate(p, f, mf_python_trimmed(p, s, at));
            return mf_python_reckon(p, a, op, mf_python_evaluate(p, f, s + at + strlen(op)));
        }
    }
    return NULL;
}

/* The items of a list, a tuple, or arguments, each evaluated; `open` and `close` around them. */
const char *mf_python_evaluate_items(mf_python_reader *p, mf_python_frame *f, const char *s,
                                     const char *open, const char *close) {
    const char *item[MF_PYTHON_MOST_ITEMS], *all = open;
    const int n = mf_python_items(p, s, item);
    for (int i = 0; i < n; i++) {
        const size_t equals = mf_python_span(item[i], "=");
        const bool named = item[i][equals] == '=' && item[i][equals + 1] != '=' && equals > 0 &&
                           strchr("!<>", item[i][equals - 1]) == NULL;
        const char *one = named ? mf_python_joined(p, mf_python_keep(p, item[i], equals), "=",
                                                   mf_python_evaluate(p, f, item[i] + equals + 1))
                                : mf_python_evaluate(p, f, item[i]);
        all = mf_python_joined(p, all, i > 0 ? ", " : "", one);
    }
    return mf_python_joined(p, all, close, "");
}

/* What a dictionary has under a key; `absent` where it has not. */
static const char *look_up(mf_python_reader *p, mf_python_frame *f, const char *dict,
                           const char *key, const char *absent) {
    const char *item[MF_PYTHON_MOST_ITEMS];
    const int n = dict[0] == '{' ? mf_python_items(p, dict + 1, item) : 0;
    for (int i = 0; i < n; i++) {
        const size_t colon = mf_python_span(item[i], ":");
        if (item[i][colon] == ':' &&
            mf_python_equal(mf_python_evaluate(p, f, mf_python_trimmed(p, item[i], colon)), key) ==
                MF_PYTHON_YES) {
            return mf_python_evaluate(p, f, item[i] + colon + 1);
        }
    }
    return n > 0 && mf_python_is_plain(key) ? absent : "?";
}

static const char *subscript(mf_python_reader *p, mf_python_frame *f, const char *value,
                             const char *inside) {
    const char *item[MF_PYTHON_MOST_ITEMS];
    const char *key = mf_python_evaluate(p, f, inside);
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

const char *mf_python_known_call(mf_python_reader *p, mf_python_frame *f, const char *name,
                                 const char *args) {
    const char *arg[MF_PYTHON_MOST_ITEMS] = {NULL}, *all;
    if (mf_python_is(name, "getattr")) {
        all = mf_python_evaluate_items(p, f, args, "", "");
        return attribute(p, arg, mf_python_items(p, all, arg));
    }
    if (mf_python_is(name, "isinstance")) {
        all = mf_python_evaluate_items(p, f, args, "", "");
        if (mf_python_items(p, all, arg) == 2 && mf_python_is(arg[1], "str")) {
            return mf_python_is_text(arg[0]) ? "True"
                   : arg[0][0] == '@'        ? "?"
                                             : mf_python_truth_text(MF_PYTHON_NO);
        }
        return "?";
    }
    if (mf_python_is(name, "cast") || mf_python_is(name, "deepcopy")) {
        all = mf_python_evaluate_items(p, f, args, "", "");
        const int n = mf_python_items(p, all, arg);
        return n > 0 ? arg[n - 1] : "?";
    }
    if (mf_python_is(name, "get_mixed_precision_config")) { /* by the name of a function */
        return mf_python_evaluate(p, f, args);
    }
    if (mf_python_is(name, "apply_flex_dispatcher_backend")) {
        all = mf_python_evaluate_items(p, f, args, "", "");
        const int n = mf_python_items(p, all, arg);
        set_exchange(p, n == 2 ? arg[1] : "None");
        return "None";
    }
    return NULL;
}

/* The value of a module-level constant; NULL: there is none. */
static const char *constant(mf_python_reader *p, const mf_python_frame *f, const char *name,
                            size_t length) {
    const mf_python_place c = mf_python_find(&p->modules, f->module, name, length, true);
    const char *from = c.at, *value = NULL;
    mf_python_line *line =
        from != NULL && p->calls < MF_PYTHON_MOST_CALLS ? malloc(sizeof *line) : NULL;
    if (line != NULL && mf_python_line_at(&from, c.module->to, line)) {
        mf_python_frame own = {.module = c.module};
        p->calls++;
        value = mf_python_evaluate(p, &own, line->text);
        p->calls--;
        mf_settings_clear(&own.names);
    }
    free(line);
    return value;
}

/* A name, and what is asked of it: members, calls, subscripts. */
static const char *primary(mf_python_reader *p, mf_python_frame *f, const char *s) {
    size_t length = 0;
    while (isalnum((unsigned char)s[length]) || s[length] == '_') {
        length++;
    }
    if (length == 0) {
        return mf_python_keep(p, s, strlen(s));
    }
    const char *name = mf_python_keep(p, s, length);
    const char *value = mf_python_name(p, f, name);
    const char *at = s + length;
    if (*at == '(') {
        const size_t inside = mf_python_span(at + 1, "");
        value = mf_python_call(p, f, name, length, mf_python_keep(p, at + 1, inside));
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
            const char *all =
                mf_python_evaluate_items(p, f, mf_python_keep(p, behind + 1, size), "", "");
            const int given = mf_python_items(p, all, arg);
            value = given > 0 ? look_up(p, f, value, arg[0], given > 1 ? arg[1] : "None") : "?";
            at = behind + 1 + size + (behind[1 + size] == ')');
            continue;
        }
        value =
            *at == '.' ? member(p, value, inside)
            : *at == '['
                ? subscript(p, f, value, inside)
                : mf_python_joined(p, value, mf_python_evaluate_items(p, f, inside, "(", ")"), "");
        at = behind + (*at != '.' && *behind != '\0');
    }
    return *at == '\0' ? value : mf_python_joined(p, value, at, "");
}

/* Texts that stand side by side are one; "|".join((a, b)) is a text, too. */
static const char *literal(mf_python_reader *p, mf_python_frame *f, const char *s) {
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
    const char *list = mf_python_evaluate(p, f, mf_python_keep(p, s, mf_python_span(s, "")));
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

static const char *evaluate_part(mf_python_reader *p, mf_python_frame *f, const char *s) {
    const char *a, *b, *c;
    bool comparison;
    const size_t length = strlen(s);
    if (length == 0) {
        return "";
    }
    if (s[mf_python_span(s, ",")] == ',') { /* a tuple without brackets */
        return mf_python_evaluate_items(p, f, s, "(", ")");
    }
    if (parted(p, s, " if ", &a, &b) && parted(p, b, " else ", &b, &c)) {
        const mf_python_truth t = mf_python_truth_of(mf_python_evaluate(p, f, b));
        return t == MF_PYTHON_YES  ? mf_python_evaluate(p, f, a)
               : t == MF_PYTHON_NO ? mf_python_evaluate(p, f, c)
                                   : "?";
    }
    if (parted(p, s, " or ", &a, &b)) {
        a = mf_python_evaluate(p, f, a);
        const mf_python_truth t = mf_python_truth_of(a);
        b = t == MF_PYTHON_YES ? "" : mf_python_evaluate(p, f, b);
        return t == MF_PYTHON_YES                                            ? a
               : t == MF_PYTHON_NO || mf_python_truth_of(b) == MF_PYTHON_YES ? b
                                                                             : "?";
    }
    if (parted(p, s, " and ", &a, &b)) {
        a = mf_python_evaluate(p, f, a);
        const mf_python_truth t = mf_python_truth_of(a);
        b = t == MF_PYTHON_NO ? "" : mf_python_evaluate(p, f, b);
        return t == MF_PYTHON_NO                       ? a
               : t == MF_PYTHON_YES                    ? b
               : mf_python_truth_of(b) == MF_PYTHON_NO ? b
                                                       : "?";
    }
    if (strncmp(s, "not ", 4) == 0) {
        const mf_python_truth t = mf_python_truth_of(mf_python_evaluate(p, f, s + 4));
        return mf_python_truth_text(t == MF_PYTHON_UNKNOWN ? t
                                    : t == MF_PYTHON_YES   ? MF_PYTHON_NO
                                                           : MF_PYTHON_YES);
    }
    const mf_python_truth t = compare(p, f, s, &comparison);
    if (comparison) {
        return mf_python_truth_text(t);
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
        return mf_python_evaluate_items(p, f, s + 1, "[", "]");
    }
    if (s[0] == '(') {
        const size_t inside = mf_python_span(s + 1, "");
        const char *whole = mf_python_keep(p, s + 1, inside);
        const bool tuple = whole[mf_python_span(whole, ",")] == ',';
        return s[1 + inside] != ')' || s[2 + inside] != '\0' ? "?"
               : tuple ? mf_python_evaluate_items(p, f, whole, "(", ")")
                       : mf_python_evaluate(p, f, whole);
    }
    return primary(p, f, s);
}

const char *mf_python_evaluate(mf_python_reader *p, mf_python_frame *f, const char *s) {
    if (p->nested >= MOST_NESTED) {
        return "?";
    }
    p->nested++;
    const char *value = evaluate_part(p, f, mf_python_trimmed(p, s, strlen(s)));
    p->nested--;
    return value;
}
