/* csv.c - the CSV reader: fields are unquoted in place in a private copy of the text. */
#include "core/base/csv.h"

#include "core/base/text.h"

#include "core/base/file.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct csv_field {
    char *text;
    int line, column;
} csv_field;

struct mf_csv {
    char *name;
    char *text; /* [length + 1] */
    char *at;   /* next unread character */
    char *end;
    char *line_start;
    int line;
    int fields, most;
    int allocated;
    csv_field *field; /* [allocated] */
};

/* Takes `text` over. */
static mf_status open_owned(const char *name, char *text, size_t length, mf_csv **out, mf_err *e) {
    mf_csv *c = calloc(1, sizeof *c);
    size_t size = strlen(name) + 1;
    char *copy = malloc(size);
    if (c == NULL || copy == NULL) {
        free(c);
        free(copy);
        free(text);
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", name);
    }
    memcpy(copy, name, size);
    *c = (mf_csv){.name = copy,
                  .text = text,
                  .at = text,
                  .end = text + length,
                  .line = 1,
                  .most = MF_CSV_MAX_FIELDS};
    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* byte order mark */
        c->at += 3;
    }
    c->line_start = c->at;
    *out = c;
    return MF_OK;
}

mf_status mf_csv_open_text(const char *name, const char *text, size_t length, mf_csv **out,
                           mf_err *e) {
    *out = NULL;
    if (length > MF_TEXT_MAX_BYTES) {
        return mf_err_set(e, MF_INPUT, "%s: longer than %u MiB", name, MF_TEXT_MAX_BYTES >> 20);
    }
    char *copy = malloc(length + 1);
    if (copy == NULL) {
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", name);
    }
    if (length > 0) {
        memcpy(copy, text, length);
    }
    copy[length] = '\0';
    return open_owned(name, copy, length, out, e);
}

mf_status mf_csv_open(const char *path, mf_csv **out, mf_err *e) {
    char *text;
    size_t length;
    *out = NULL;
    mf_status st = mf_file_load(path, MF_TEXT_MAX_BYTES, &text, &length, e);
    return st == MF_OK ? open_owned(path, text, length, out, e) : st;
}

void mf_csv_close(mf_csv *c) {
    if (c != NULL) {
        free(c->name);
        free(c->text);
        free(c->field);
        free(c);
    }
}

void mf_csv_allow(mf_csv *c, int most) {
    c->most = most;
}

static int column_of(const mf_csv *c, const char *at) {
    return (int)(at - c->line_start) + 1;
}

static mf_status fail_at(const mf_csv *c, int line, int column, mf_err *e, const char *what) {
    return mf_err_set(e, MF_INPUT, "%s:%d:%d: %s", c->name, line, column, what);
}

mf_status mf_csv_fail(const mf_csv *c, int index, mf_err *e, const char *fmt, ...) {
    bool known = index >= 0 && index < c->fields;
    int last = c->fields > 0 ? c->fields - 1 : 0;
    const csv_field none = {0}, *f = c->fields > 0 ? &c->field[known ? index : last] : &none;
    va_list args;
    va_start(args, fmt);
    mf_err_vset(e, MF_INPUT, fmt, args);
    va_end(args);
    mf_err_prefix(e, "%.400s:%d:%d", c->name, f->line > 0 ? f->line : c->line,
                  f->column > 0 ? f->column : 1);
    return MF_INPUT;
}

/* Moves over the end of a line. */
static void next_line(mf_csv *c) {
    c->at += *c->at == '\r' ? 1 : 0;
    c->at += *c->at == '\n' ? 1 : 0;
    c->line_start = c->at;
    c->line++;
}

static bool at_line_end(const mf_csv *c) {
    return c->at == c->end || *c->at == '\n' || (*c->at == '\r' && c->at[1] == '\n');
}

/* Whether the line that begins at c->at has no record. Ends at what is no blank of it. */
static bool is_passed_over(mf_csv *c) {
    char *first = c->at;
    while (*c->at == ' ' || *c->at == '\t') {
        c->at++;
    }
    if (!at_line_end(c) && *c->at != '#') {
        c->at = first;
        return false;
    }
    return true;
}

static void skip_blank_and_comments(mf_csv *c) {
    while (c->at < c->end && is_passed_over(c)) {
        while (!at_line_end(c)) {
            c->at++;
        }
        if (c->at < c->end) {
            next_line(c);
        }
    }
}

/* Memory for one more field. */
static mf_status reserve_field(mf_csv *c, mf_err *e) {
    if (c->fields == c->most) {
        return fail_at(c, c->line, column_of(c, c->at), e, "too many fields in a line");
    }
    if (c->fields == c->allocated) {
        const int more = c->allocated > 0 ? 2 * c->allocated : MF_CSV_MAX_FIELDS;
        csv_field *field = realloc(c->field, (size_t)more * sizeof *field);
        if (field == NULL) {
            return mf_err_set(e, MF_NOMEM, "%s: out of memory", c->name);
        }
        c->field = field;
        c->allocated = more;
    }
    return MF_OK;
}

/* One field at c->at, unquoted in place; leaves c->at on the comma or line end behind it. *end is
 * where the field's NUL goes after that character has been read. */
static mf_status read_quoted(mf_csv *c, csv_field *f, char **end, mf_err *e) {
    char *to = f->text = ++c->at;
    for (;;) {
        if (c->at == c->end) {
            return fail_at(c, f->line, f->column, e, "quoted field without an end");
        }
        if (*c->at == '"') {
            if (c->at[1] != '"') {
                break;
            }
            c->at++;
        } else if (*c->at == '\n') {
            return fail_at(c, f->line, f->column, e, "quoted field runs over the end of the line");
        }
        *to++ = *c->at++;
    }
    c->at++;
    *end = to;
    if (*c->at != ',' && !at_line_end(c)) {
        return fail_at(c, c->line, column_of(c, c->at), e, "text behind a closing quote");
    }
    return MF_OK;
}

static mf_status read_field(mf_csv *c, csv_field *f, char **end, mf_err *e) {
    *f = (csv_field){.text = c->at, .line = c->line, .column = column_of(c, c->at)};
    if (*c->at == '"') {
        mf_status st = read_quoted(c, f, end, e);
        if (st != MF_OK) {
            return st;
        }
    } else {
        while (!at_line_end(c) && *c->at != ',') {
            if (*c->at == '"') {
                return fail_at(c, c->line, column_of(c, c->at), e,
                               "a quote inside a field that is not quoted");
            }
            c->at++;
        }
        *end = c->at;
    }
    if (!mf_text_is_clean(f->text, (size_t)(*end - f->text))) {
        return fail_at(c, f->line, f->column, e, "expected text, got control bytes or no UTF-8");
    }
    return MF_OK;
}

mf_status mf_csv_next(mf_csv *c, bool *more, mf_err *e) {
    c->fields = 0;
    skip_blank_and_comments(c);
    *more = c->at < c->end;
    if (!*more) {
        return MF_OK;
    }
    for (;;) {
        char *end = c->at;
        mf_status st = reserve_field(c, e);
        st = st == MF_OK ? read_field(c, &c->field[c->fields], &end, e) : st;
        if (st != MF_OK) {
            return st;
        }
        c->fields++;
        bool last = at_line_end(c);
        if (!last) {
            c->at++;
        } else if (c->at < c->end) {
            next_line(c);
        }
        *end = '\0';
        if (last) {
            return MF_OK;
        }
    }
}

int mf_csv_fields(const mf_csv *c) {
    return c->fields;
}

const char *mf_csv_field(const mf_csv *c, int index) {
    return index >= 0 && index < c->fields ? c->field[index].text : "";
}
