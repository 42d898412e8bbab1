/* python_text.c - logical lines, modules, definitions. */
#include "launch/read/python_text.h"

#include <ctype.h>
#include <string.h>

static bool in_name(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

/* --- modules ---------------------------------------------------------------------------------- */

void mf_python_find_modules(const char *texts, mf_python_modules *out) {
    out->count = 0;
    for (const char *at = texts; *at != '\0' && out->count < MF_PYTHON_MOST_MODULES;) {
        mf_python_module *m = &out->module[out->count++];
        *m = (mf_python_module){.path = "", .from = at};
        if (*at == '\f') {
            m->path = at + 1;
            m->path_length = strcspn(at + 1, "\n");
            m->from = m->path + m->path_length;
        }
        const char *end = strchr(m->from, '\f');
        m->to = end != NULL ? end : m->from + strlen(m->from);
        at = m->to;
    }
}

/* The last line of a module that begins with `word` and then the name and `behind`. */
static const char *find_begin(const mf_python_module *m, const char *word, const char *name,
                              size_t length, const char *behind) {
    const size_t before = strlen(word), after = strlen(behind);
    const char *found = NULL;
    for (const char *at = m->from; at != NULL && at < m->to;) {
        at += *at == '\n';
        if ((size_t)(m->to - at) > before + length + after && strncmp(at, word, before) == 0 &&
            strncmp(at + before, name, length) == 0) {
            const char *rest = at + before + length; /* behind a type, which a constant may have */
            rest += *rest == ':' ? strcspn(rest, "=\n") - (strcspn(rest, "=\n") > 0) : 0;
            found = strncmp(rest, behind, after) == 0 ? rest + after : found;
        }
        at = memchr(at, '\n', (size_t)(m->to - at));
    }
    return found;
}

static const char *defined_in(const mf_python_module *m, const char *name, size_t length,
                              bool constant) {
    const char *at = find_begin(m, constant ? "" : "def ", name, length, constant ? " = " : "(");
    return at != NULL && !constant ? at - 1 : at;
}

/* Whether a module's path ends with a dotted name: ".../a/b.py" or ".../a/b/__init__.py". */
static bool is_module(const mf_python_module *m, const char *dotted, size_t length) {
    size_t path = m->path_length;
    const char *ends[] = {"/__init__.py", ".py"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const size_t n = strlen(ends[i]);
        if (path > n && strncmp(m->path + path - n, ends[i], n) == 0) {
            path -= n;
            break;
        }
    }
    while (length > 0 && *dotted == '.') {
        dotted++;
        length--;
    }
    if (length == 0 || path < length || (path > length && m->path[path - length - 1] != '/')) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        const char c = dotted[i] == '.' ? '/' : dotted[i];
        if (m->path[path - length + i] != c) {
            return false;
        }
    }
    return true;
}

enum { MOST_HOPS = 8 };

static mf_python_place find_from(const mf_python_modules *all, const mf_python_module *m,
                                 const char *name, size_t length, bool constant, int hops);

/* Behind "import": the name, or the one that "as NAME" stands for; *length becomes its own. */
static const char *imported(const char *at, const char *end, const char *name, size_t *length) {
    for (const char *p = at; p < end; p++) {
        if ((p > at && in_name(p[-1])) || (size_t)(end - p) < *length ||
            strncmp(p, name, *length) != 0 || (p + *length < end && in_name(p[*length]))) {
            continue;
        }
        const char *from = p;
        if (p - at >= 4 && strncmp(p - 4, " as ", 4) == 0) {
            const char *stop = p - 4;
            for (from = stop; from > at && in_name(from[-1]); from--) {
            }
            *length = (size_t)(stop - from);
        }
        return from;
    }
    return NULL;
}

/* Through "from X import NAME", "from X import OTHER as NAME" and "from X import *". */
static mf_python_place find_imported(const mf_python_modules *all, const mf_python_module *m,
                                     const char *name, size_t length, bool constant, int hops) {
    static const char from[] = "\nfrom ", word[] = " import ";
    mf_python_place none = {0};
    for (const char *at = m->from;
         hops < MOST_HOPS && (at = strstr(at, from)) != NULL && at < m->to;) {
        const char *dotted = at + sizeof from - 1;
        const size_t size = strcspn(dotted, " \n");
        at = dotted;
        if (strncmp(dotted + size, word, sizeof word - 1) != 0) {
            continue;
        }
        const char *names = dotted + size + sizeof word - 1;
        const char *end = names + strcspn(names, *names == '(' ? ")" : "\n");
        size_t own = length;
        const char *other = *names == '*' ? name : imported(names, end, name, &own);
        for (int i = 0; other != NULL && i < all->count; i++) {
            if (&all->module[i] != m && is_module(&all->module[i], dotted, size)) {
                const mf_python_place p =
                    find_from(all, &all->module[i], other, own, constant, hops + 1);
                if (p.at != NULL) {
                    return p;
                }
            }
        }
        const bool renamed =
            other != NULL && other != name && (own != length || strncmp(other, name, length) != 0);
        for (int i = all->count - 1; renamed && i >= 0; i--) { /* its module goes by another name */
            const mf_python_place p = {&all->module[i],
                                       defined_in(&all->module[i], other, own, constant)};
            if (&all->module[i] != m && p.at != NULL) {
                return p;
            }
        }
    }
    return none;
}

static mf_python_place find_from(const mf_python_modules *all, const mf_python_module *m,
                                 const char *name, size_t length, bool constant, int hops) {
    const mf_python_place own = {m, defined_in(m, name, length, constant)};
    return own.at != NULL ? own : find_imported(all, m, name, length, constant, hops);
}

mf_python_place mf_python_find(const mf_python_modules *all, const mf_python_module *module,
                               const char *name, size_t length, bool constant) {
    mf_python_place found = {0};
    if (module != NULL) {
        found = find_from(all, module, name, length, constant, 0);
    }
    for (int i = all->count - 1; found.at == NULL && i >= 0; i--) {
        found =
            (mf_python_place){&all->module[i], defined_in(&all->module[i], name, length, constant)};
    }
    return found;
}

/* --- lines ------------------------------------------------------------------------------------ */

/* Behind a string that begins at `at`; its length with both quotes. */
static size_t string_length(const char *at, const char *end) {
    const bool triple = end - at >= 3 && at[1] == at[0] && at[2] == at[0];
    size_t n = triple ? 3 : 1;
    const size_t most = (size_t)(end - at);
    for (; n < most; n++) {
        if (at[n] == '\\') {
            n++;
        } else if (at[n] == at[0] &&
                   (!triple || (n + 2 < most && at[n + 1] == at[0] && at[n + 2] == at[0]))) {
            return n + (triple ? 3 : 1);
        } else if (at[n] == '\n' && !triple) {
            return n;
        }
    }
    return most;
}

static bool is_quote(char c) {
    return c == '"' || c == '\'';
}

static void add(mf_python_line *out, size_t *used, const char *text, size_t length) {
    for (size_t i = 0; i < length && *used + 1 < sizeof out->text; i++) {
        out->text[(*used)++] = text[i];
    }
}

/* One logical line from `at` on, into out->text; where it ends. */
static const char *gather(const char *at, const char *end, mf_python_line *out) {
    int depth = 0;
    size_t used = 0;
    while (at < end && (*at != '\n' || depth > 0)) {
        if (is_quote(*at)) {
            const size_t n = string_length(at, end);
            add(out, &used, at, n);
            at += n;
        } else if (*at == '#') {
            while (at < end && *at != '\n') {
                at++;
            }
        } else if (isspace((unsigned char)*at) || (*at == '\\' && at + 1 < end && at[1] == '\n')) {
            if (used > 0 && out->text[used - 1] != ' ' && out->text[used - 1] != '(' &&
                out->text[used - 1] != '[') {
                add(out, &used, " ", 1);
            }
            at += *at == '\\' ? 2 : 1;
        } else {
            depth += strchr("([{", *at) != NULL;
            depth -= strchr(")]}", *at) != NULL;
            depth = depth < 0 ? 0 : depth;
            add(out, &used, at, 1);
            at++;
        }
    }
    while (used > 0 && out->text[used - 1] == ' ') {
        used--;
    }
    out->text[used] = '\0';
    return at < end ? at + 1 : at;
}

bool mf_python_line_at(const char **at, const char *end, mf_python_line *out) {
    out->indent = 0;
    while (*at < end && (**at == ' ' || **at == '\t')) {
        (*at)++;
        out->indent++;
    }
    *at = gather(*at, end, out);
    return out->text[0] != '\0';
}

bool mf_python_next(const char **at, const char *end, mf_python_line *out) {
    while (*at < end) {
        if (mf_python_line_at(at, end, out) && !is_quote(out->text[0])) {
            return true;
        }
    }
    return false;
}

const char *mf_python_body(const char *at, const char *end) {
    int depth = 0;
    for (; at < end; at++) {
        if (is_quote(*at)) {
            at += string_length(at, end) - 1;
            continue;
        }
        if (*at == '#') {
            while (at < end && *at != '\n') {
                at++;
            }
            continue;
        }
        depth += strchr("([{", *at) != NULL;
        depth -= strchr(")]}", *at) != NULL;
        if (*at == ':' && depth == 0) {
            while (at < end && *at != '\n') {
                at++;
            }
            return at < end ? at + 1 : at;
        }
    }
    return end;
}

/* --- parts of an expression ------------------------------------------------------------------- */

static size_t find_outside(const char *text, const char *stop, const char *word) {
    const char *end = text + strlen(text);
    const size_t length = word != NULL ? strlen(word) : 0;
    int depth = 0;
    for (const char *at = text; at < end; at++) {
        if (depth == 0 && at > text && word != NULL && strncmp(at, word, length) == 0) {
            return (size_t)(at - text);
        }
        if (is_quote(*at)) {
            at += string_length(at, end) - 1;
            continue;
        }
        if (depth == 0 && stop != NULL && strchr(stop, *at) != NULL) {
            return (size_t)(at - text);
        }
        depth += strchr("([{", *at) != NULL;
        if (strchr(")]}", *at) != NULL && depth-- == 0) {
            return (size_t)(at - text);
        }
    }
    return (size_t)(end - text);
}

size_t mf_python_span(const char *text, const char *stop) {
    return find_outside(text, stop, NULL);
}

size_t mf_python_until(const char *text, const char *word) {
    return find_outside(text, NULL, word);
}
