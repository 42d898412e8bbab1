/* read_shell.c - flags and overrides out of shell text: scripts, command lines, job files.
 *
 * Nothing is run. Words are taken in the order of the text: of arrays and of strings that hold
 * flags where they are written, whether or not a condition stands in front.
 */
#include "launch/read/read_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define MOST_WORD 8192
#define MOST_DEPTH 8
#define MOST_UNFOLDED (1 << 16) /* bytes of values that hold flags: each may hold itself, twice */

/* What the next word may belong to. */
typedef struct cursor {
    mf_read *r;
    mf_settings *into;   /* "# moefold:" lines: names and values as they are; NULL elsewhere */
    const mf_word *word; /* the flag whose values are read; NULL: an unknown one, or none */
    char flag[128];      /* as written, without dashes; "" when no flag is open */
    char value[MOST_WORD];
    bool any;
    int depth;
} cursor;

static mf_status lex(cursor *c, const char *text, size_t length);

static void close_flag(cursor *c) {
    if (c->flag[0] == '\0') {
        return;
    }
    if (c->into != NULL) {
        mf_settings_put_text(c->into, c->flag, c->any ? c->value : "true");
    } else {
        mf_read_flag(c->r, c->flag, strlen(c->flag), c->any ? c->value : "true");
    }
    c->flag[0] = '\0';
    c->any = false;
}

static void add_value(cursor *c, const char *text) {
    size_t used = c->any ? strlen(c->value) : 0;
    snprintf(c->value + used, sizeof c->value - used, "%s%s", used > 0 ? " " : "", text);
    c->any = true;
}

static void open_flag(cursor *c, const char *text) {
    const char *equals = strchr(text, '=');
    size_t length = equals != NULL ? (size_t)(equals - text) : strlen(text);
    close_flag(c);
    length = length < sizeof c->flag ? length : sizeof c->flag - 1;
    memcpy(c->flag, text, length);
    c->flag[length] = '\0';
    c->word = mf_word_of_flag(c->flag, length);
    if (equals != NULL) {
        add_value(c, equals + 1);
        close_flag(c);
    }
}

/* "model.a_b=c", also with Hydra's "+" or "++" in front. */
static bool take_key(cursor *c, const char *text) {
    const char *key = text + strspn(text, "+~");
    const char *equals = strchr(key, '=');
    if (equals == NULL || equals == key || c->into != NULL) {
        return false;
    }
    bool dotted = false;
    for (const char *at = key; at < equals; at++) {
        dotted = dotted || *at == '.';
        if (!islower((unsigned char)*at) && !isdigit((unsigned char)*at) && *at != '_' &&
            *at != '.') {
            return false;
        }
    }
    if (!dotted && mf_word_of_key(key, (size_t)(equals - key)) == NULL) {
        return false;
    }
    close_flag(c);
    c->r->overrides = c->r->overrides || dotted;
    mf_read_key(c->r, key, (size_t)(equals - key), equals + 1);
    return true;
}

/* "NAME=value" sets a variable; a value that holds flags is read as flags, too. */
static bool take_variable(cursor *c, const char *text, mf_status *status) {
    size_t length = 0;
    while (isalnum((unsigned char)text[length]) || text[length] == '_') {
        length++;
    }
    bool append = length > 0 && text[length] == '+' && text[length + 1] == '=';
    if (length == 0 || isdigit((unsigned char)text[0]) || (text[length] != '=' && !append)) {
        return false;
    }
    char name[128];
    const char *value = text + length + 1 + append;
    snprintf(name, sizeof name, "%.*s", (int)(length < 127 ? length : 127), text);
    close_flag(c);
    mf_settings_put_text(&c->r->variables, name, mf_settings_text(&c->r->given, name, value));
    const char *flags = strstr(value, "--");
    if (flags != NULL && (flags == value || isspace((unsigned char)flags[-1])) &&
        c->depth < MOST_DEPTH && c->r->unfolded_B < MOST_UNFOLDED) {
        cursor inner = {.r = c->r, .depth = c->depth + 1};
        c->r->unfolded_B += strlen(value);
        *status = lex(&inner, value, strlen(value));
    }
    return true;
}

/* What Slurm's and Megatron-Bridge's launchers take in short; NULL: no such flag. */
static const char *long_of(const char *text) {
    static const char *const table[][2] = {
        {"-N", "nodes"},
        {"-tp", "tensor-model-parallel-size"},
        {"-pp", "pipeline-model-parallel-size"},
        {"-vp", "virtual-pipeline-model-parallel-size"},
        {"-cp", "context-parallel-size"},
        {"-ep", "expert-model-parallel-size"},
        {"-etp", "expert-tensor-parallel-size"},
        {"-gb", "global-batch-size"},
        {"-mb", "micro-batch-size"},
        {"-sl", "seq-length"},
        {"-ms", "max-steps"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(text, table[i][0]) == 0) {
            return table[i][1];
        }
    }
    return NULL;
}

/* "--fp8-format hybrid" in quotes: an element of an array, which is expanded without. */
static bool is_quoted_pair(const char *text) {
    const size_t flag = strcspn(text, " \t=");
    return text[0] == '-' && text[1] == '-' && isspace((unsigned char)text[flag]);
}

static mf_status take(cursor *c, const char *text) {
    mf_status status = MF_OK;
    if (is_quoted_pair(text) && c->depth < MOST_DEPTH && c->r->unfolded_B < MOST_UNFOLDED) {
        cursor inner = {.r = c->r, .into = c->into, .depth = c->depth + 1};
        close_flag(c);
        c->r->unfolded_B += strlen(text);
        status = lex(&inner, text, strlen(text));
    } else if (text[0] == '-' && text[1] == '-' && isalpha((unsigned char)text[2])) {
        open_flag(c, text + 2);
    } else if (long_of(text) != NULL) {
        open_flag(c, long_of(text));
    } else if (c->flag[0] != '\0' && c->word != NULL && mf_word_takes_several(c->word)) {
        add_value(c, text);
    } else if (c->flag[0] != '\0' && (c->word == NULL || c->word->kind == MF_WORD_VALUE) &&
               !c->any) {
        add_value(c, text);
        if (c->word != NULL || c->into != NULL) {
            close_flag(c);
        }
    } else if (!take_key(c, text) && !take_variable(c, text, &status)) {
        close_flag(c);
    }
    return status;
}

/* --- variables -------------------------------------------------------------------------------- */

/* A word of up to MOST_WORD - 1 bytes; more is truncated. */
typedef struct word_text {
    size_t used;
    char text[MOST_WORD];
} word_text;

static void append(word_text *w, const char *text, size_t length) {
    size_t left = sizeof w->text - w->used - 1;
    length = length < left ? length : left;
    memcpy(w->text + w->used, text, length);
    w->used += length;
    w->text[w->used] = '\0';
}

/* Text behind "$", which ends where the name does; returns how much was read. What is not known
 * stays as it is written. */
static size_t expand(mf_read *r, const char *text, size_t length, word_text *out) {
    char name[128];
    bool braces = length > 0 && text[0] == '{';
    size_t at = braces, n = 0;
    while (at < length && (isalnum((unsigned char)text[at]) || text[at] == '_') &&
           n + 1 < sizeof name) {
        name[n++] = text[at++];
    }
    name[n] = '\0';
    if (n == 0) {
        append(out, "$", 1);
        return 0;
    }
    size_t end = at;
    for (int depth = 1; braces && end < length; end++) { /* "${A:-${B}}" */
        depth += (text[end] == '{') - (text[end] == '}');
        if (depth == 0) {
            break;
        }
    }
    const char *value = mf_settings_text(&r->variables, name, NULL);
    if (value != NULL && value[0] != '\0') {
        append(out, value, strlen(value));
    } else if (braces && at + 1 < end && text[at] == ':' &&
               (text[at + 1] == '-' || text[at + 1] == '=')) {
        const char *fallback = text + at + 2;
        size_t left = end - at - 2;
        if (left >= 2 && *fallback == '"' && fallback[left - 1] == '"') {
            fallback++;
            left -= 2;
        }
        append(out, fallback, left);
    } else if (!(braces && at < end && text[at] == '[')) { /* arrays were read where they stand */
        append(out, "$", 1);
        append(out, text, braces ? end + 1 : end);
    }
    return braces ? (end < length ? end + 1 : end) : end;
}

/* --- words ------------------------------------------------------------------------------------ */

static bool separates(char ch) {
    return isspace((unsigned char)ch) || strchr("();&|<>", ch) != NULL;
}

static mf_status lex_comment(cursor *c, const char *text, size_t length) {
    static const char ours[] = "# moefold:", slurm[] = "#SBATCH";
    cursor inner = {.r = c->r, .depth = c->depth + 1};
    size_t skip = 0;
    if (length > sizeof ours && strncmp(text, ours, sizeof ours - 1) == 0) {
        inner.into = &c->r->moefold;
        skip = sizeof ours - 1;
    } else if (length > sizeof slurm && strncmp(text, slurm, sizeof slurm - 1) == 0) {
        skip = sizeof slurm - 1;
    }
    return skip > 0 && c->depth < MOST_DEPTH ? lex(&inner, text + skip, length - skip) : MF_OK;
}

/* One word from *at on, unquoted and with its variables in place. */
static void lex_word(cursor *c, const char *text, size_t length, size_t *at, word_text *out) {
    char quote = '\0';
    for (; *at < length && (quote != '\0' || !separates(text[*at])); ++*at) {
        char ch = text[*at];
        if (ch == '\\' && *at + 1 < length && quote != '\'') {
            ++*at;
            append(out, text[*at] == '\n' ? " " : &text[*at], 1);
        } else if (quote == '\0' && (ch == '"' || ch == '\'')) {
            quote = ch;
        } else if (ch == quote) {
            quote = '\0';
        } else if (ch == '$' && quote != '\'') {
            *at += expand(c->r, text + *at + 1, length - *at - 1, out);
        } else {
            append(out, &ch, 1);
        }
    }
}

static mf_status lex(cursor *c, const char *text, size_t length) {
    word_text *word = malloc(sizeof *word);
    mf_status status = word != NULL ? MF_OK : MF_NOMEM;
    bool start = true; /* of a word: a comment may begin */
    for (size_t at = 0; at < length && status == MF_OK;) {
        if (text[at] == '#' && start) {
            size_t end = at;
            while (end < length && text[end] != '\n') {
                end++;
            }
            status = lex_comment(c, text + at, end - at);
            at = end;
        } else if (text[at] == '\\' && at + 1 < length && text[at + 1] == '\n') {
            at += 2;
        } else if (separates(text[at])) {
            if (strchr("();&|\n", text[at]) != NULL) { /* a command, or an array, ends */
                close_flag(c);
            }
            at++;
            start = true;
        } else {
            size_t before = at;
            word->used = 0;
            word->text[0] = '\0';
            lex_word(c, text, length, &at, word);
            at += at == before;
            status = word->text[0] != '\0' ? take(c, word->text) : MF_OK;
            start = false;
        }
    }
    close_flag(c);
    free(word);
    return status;
}

mf_status mf_read_shell(mf_read *r, const char *text, size_t length) {
    cursor *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return MF_NOMEM;
    }
    c->r = r;
    r->unfolded_B = 0;
    mf_status status = lex(c, text, length);
    free(c);
    return status;
}
