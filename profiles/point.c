/* point.c - op keys: from text to canonical dims and back, and what makes a point sound. */
#include "profiles/store.h"

#include "core/base/text.h"
#include "profiles/ops_table.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHOLE_DIGITS = 16 };
static const uint64_t max_whole = UINT64_C(1) << 53; /* every whole number up to it is a double */

/* --- values --------------------------------------------------------------------------------- */

/* Digits only, no leading zero, <= 2^53; *end behind them. */
static bool read_whole(const char *text, double *value, const char **end) {
    uint64_t v = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9'; p++) {
        v = v * 10 + (uint64_t)(*p - '0');
        if (p - text >= WHOLE_DIGITS || v > max_whole) {
            return false;
        }
    }
    *value = (double)v;
    *end = p;
    return p > text && !(text[0] == '0' && p > text + 1);
}

static bool read_bytes(const char *text, double *value) {
    static const struct {
        const char *suffix;
        double factor;
    } units[] = {{"", 1.0}, {"B", 1.0}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}};
    const char *end;
    if (!read_whole(text, value, &end)) {
        return false;
    }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(end, units[i].suffix) == 0) {
            *value *= units[i].factor;
            return *value >= 1.0 && *value <= (double)max_whole;
        }
    }
    return false;
}

static bool is_name(const char *text, size_t max) {
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_-.");
    return n > 0 && n <= max && text[n] == '\0';
}

static mf_status bad_value(const mf_op_row *row, const mf_op_dim *dim, const char *text,
                           const char *expected, mf_err *e) {
    return mf_err_set(e, MF_INPUT, "%s: %s: expected %s, got \"%s\"", row->name, dim->key, expected,
                      text);
}

static mf_status check_word(const mf_op_row *row, const mf_op_dim *dim, const char *text,
                            mf_err *e) {
    for (size_t i = 0; dim->words[i] != NULL; i++) {
        if (strcmp(dim->words[i], text) == 0) {
            return MF_OK;
        }
    }
    char known[160] = "one of";
    size_t used = strlen(known);
    for (size_t i = 0; dim->words[i] != NULL; i++) {
        int n = snprintf(known + used, sizeof known - used, " %s", dim->words[i]);
        used += n > 0 && (size_t)n < sizeof known - used ? (size_t)n : 0;
    }
    return bad_value(row, dim, text, known, e);
}

/* A number that is written as it would be written: digits without a leading zero. */
static bool is_plain(const char *text) {
    size_t n = strspn(text, "0123456789");
    return text[n] == '\0' && n <= 15 && (text[0] != '0' || n == 1);
}

/* Reads one value as the dim's kind says; numbers get one spelling. */
static mf_status read_value(const mf_op_row *row, const mf_op_dim *dim, const char *text,
                            mf_point_dim *out, mf_err *e) {
    double value = (double)NAN;
    const char *end;
    switch (dim->kind) {
    case MF_DIM_IS_COUNT:
        if (!read_whole(text, &value, &end) || *end != '\0' || value < 1.0) {
            return bad_value(row, dim, text, "a whole number >= 1", e);
        }
        break;
    case MF_DIM_IS_SIZE:
        if (!read_whole(text, &value, &end) || *end != '\0') {
            return bad_value(row, dim, text, "a whole number >= 0", e);
        }
        break;
    case MF_DIM_IS_BYTES:
        if (!read_bytes(text, &value)) {
            return bad_value(row, dim, text, "bytes such as 4096 or 16MiB", e);
        }
        break;
    case MF_DIM_IS_FLAG:
        if (!read_whole(text, &value, &end) || *end != '\0' || value > 1.0) {
            return bad_value(row, dim, text, "0 or 1", e);
        }
        break;
    case MF_DIM_IS_WORD: {
        mf_status st = check_word(row, dim, text, e);
        if (st != MF_OK) {
            return st;
        }
        break;
    }
    case MF_DIM_IS_NAME:
        if (!is_name(text, sizeof out->text - 1)) {
            return bad_value(row, dim, text, "a name of a-z 0-9 _ - .", e);
        }
        break;
    }
    out->value = value;
    mf_text_copy(out->key, sizeof out->key, dim->key);
    if (isnan(value) || is_plain(text)) {
        mf_text_copy(out->text, sizeof out->text, text);
    } else {
        snprintf(out->text, sizeof out->text, "%.0f", value);
    }
    return MF_OK;
}

/* --- dims ----------------------------------------------------------------------------------- */

static mf_status find_row(const char *op, const mf_op_row **row, mf_err *e) {
    *row = mf_op_row_find(op);
    if (*row != NULL) {
        return MF_OK;
    }
    const char *near = mf_op_row_nearest(op);
    if (near != NULL) {
        return mf_err_set(e, MF_INPUT, "unknown op \"%.60s\": did you mean \"%s\"?", op, near);
    }
    char known[512] = "";
    size_t count, used = 0;
    const mf_op_row *rows = mf_op_rows(&count);
    for (size_t i = 0; i < count; i++) {
        int n = snprintf(known + used, sizeof known - used, " %s", rows[i].name);
        used += n > 0 && (size_t)n < sizeof known - used ? (size_t)n : 0;
    }
    return mf_err_set(e, MF_INPUT, "unknown op \"%.60s\"; known:%s", op, known);
}

static mf_status check_keys(const mf_op_row *row, const mf_point *p, mf_err *e) {
    for (int i = 0; i < p->dims; i++) {
        const char *key = p->dim[i].key;
        if (mf_op_dim_find(row, key) == NULL) {
            const char *near = mf_op_dim_nearest(row, key);
            return mf_err_set(e, MF_INPUT, "%s: unknown key \"%s\"%s%s%s", row->name, key,
                              near != NULL ? ": did you mean \"" : "", near != NULL ? near : "",
                              near != NULL ? "\"?" : "");
        }
    }
    return MF_OK;
}

mf_status mf_point_canonical(mf_point *p, mf_err *e) {
    const mf_op_row *row;
    mf_status st = find_row(p->op, &row, e);
    if (st == MF_OK) {
        st = check_keys(row, p, e);
    }
    mf_point_dim ordered[MF_POINT_MAX_DIMS];
    memset(ordered, 0, sizeof ordered);
    for (int i = 0; st == MF_OK && i < row->dims; i++) {
        const mf_op_dim *dim = &row->dim[i];
        const mf_point_dim *given = mf_point_find(p, dim->key);
        const char *text = given != NULL ? given->text : dim->fallback;
        if (text == NULL) {
            return mf_err_set(e, MF_INPUT, "%s: %s is missing (%s)", row->name, dim->key,
                              dim->meaning);
        }
        for (int j = 0; given == NULL && text[0] == '@' && j < i; j++) {
            if (strcmp(ordered[j].key, text + 1) == 0) {
                text = ordered[j].text;
            }
        }
        st = read_value(row, dim, text, &ordered[i], e);
    }
    if (st != MF_OK) {
        return st;
    }
    memcpy(p->dim, ordered, sizeof ordered);
    p->dims = row->dims;
    return MF_OK;
}

const mf_point_dim *mf_point_find(const mf_point *p, const char *key) {
    for (int i = 0; i < p->dims; i++) {
        if (strcmp(p->dim[i].key, key) == 0) {
            return &p->dim[i];
        }
    }
    return NULL;
}

double mf_point_value(const mf_point *p, const char *key) {
    const mf_point_dim *dim = mf_point_find(p, key);
    return dim != NULL ? dim->value : (double)NAN;
}

const char *mf_point_word(const mf_point *p, const char *key) {
    const mf_point_dim *dim = mf_point_find(p, key);
    return dim != NULL ? dim->text : "";
}

bool mf_point_is(const mf_point *p, const char *key, const char *word) {
    const mf_point_dim *dim = mf_point_find(p, key);
    return dim != NULL && strcmp(dim->text, word) == 0;
}

int64_t mf_point_int(const mf_point *p, const char *key, int64_t absent) {
    const mf_point_dim *dim = mf_point_find(p, key);
    return dim != NULL && isfinite(dim->value) ? (int64_t)dim->value : absent;
}

/* --- building ------------------------------------------------------------------------------- */

void mf_point_init(mf_point *p, const char *gpu, const char *op) {
    memset(p, 0, sizeof *p);
    mf_text_copy(p->gpu, sizeof p->gpu, gpu);
    mf_text_copy(p->op, sizeof p->op, op);
}

void mf_point_set(mf_point *p, const char *key, const char *text) {
    int at = 0;
    while (at < p->dims && strcmp(p->dim[at].key, key) != 0) {
        at++;
    }
    assert(at < MF_POINT_MAX_DIMS);
    p->dims = at == p->dims ? at + 1 : p->dims;
    mf_text_copy(p->dim[at].key, sizeof p->dim[at].key, key);
    mf_text_copy(p->dim[at].text, sizeof p->dim[at].text, text);
    p->dim[at].value = (double)NAN;
}

void mf_point_set_i64(mf_point *p, const char *key, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    mf_point_set(p, key, text);
}

/* Copies the next word of *text and moves behind it; false when it is longer than size - 1. */
static bool next_word(const char **text, char *word, size_t size) {
    *text += strspn(*text, " \t");
    size_t n = strcspn(*text, " \t");
    size_t kept = n < size ? n : size - 1;
    memcpy(word, *text, kept);
    word[kept] = '\0';
    *text += n;
    return n < size;
}

mf_status mf_point_parse(const char *text, mf_point *out, mf_err *e) {
    char word[48];
    mf_point_init(out, "", "");
    if (!next_word(&text, word, sizeof word) || word[0] == '\0') {
        return mf_err_set(e, MF_INPUT, "expected an op such as \"gemm\", got \"%s\"", word);
    }
    const mf_op_row *row;
    mf_status st = find_row(word, &row, e);
    if (st != MF_OK) {
        return st;
    }
    mf_text_copy(out->op, sizeof out->op, row->name);
    for (;;) {
        if (!next_word(&text, word, sizeof word)) {
            return mf_err_set(e, MF_INPUT, "%s: \"%s...\" is too long", out->op, word);
        }
        if (word[0] == '\0') {
            break;
        }
        char *equals = strchr(word, '=');
        if (equals == NULL || equals == word || equals[1] == '\0') {
            return mf_err_set(e, MF_INPUT, "%s: expected key=value, got \"%s\"", out->op, word);
        }
        *equals = '\0';
        if (strlen(word) >= sizeof out->dim[0].key || out->dims == MF_POINT_MAX_DIMS) {
            return mf_err_set(e, MF_INPUT, "%s: unknown key \"%s\"", out->op, word);
        }
        if (strlen(equals + 1) >= sizeof out->dim[0].text) {
            return mf_err_set(e, MF_INPUT, "%s: %s: value \"%s\" is too long", out->op, word,
                              equals + 1);
        }
        if (mf_point_find(out, word) != NULL) {
            return mf_err_set(e, MF_INPUT, "%s: %s stands twice", out->op, word);
        }
        mf_point_set(out, word, equals + 1);
    }
    return mf_point_canonical(out, e);
}

void mf_point_format(const mf_point *p, char *out, size_t size) {
    if (size == 0) {
        return;
    }
    size_t used = (size_t)snprintf(out, size, "%s", p->op);
    for (int i = 0; i < p->dims && used < size; i++) {
        used += (size_t)snprintf(out + used, size - used, " %s=%s", p->dim[i].key, p->dim[i].text);
    }
}

/* --- soundness ------------------------------------------------------------------------------ */

static bool is_date(const char *date) { /* "", YYYY, YYYY-MM or YYYY-MM-DD */
    size_t n = strlen(date);
    if (n != 0 && n != 4 && n != 7 && n != 10) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        bool dash = i == 4 || i == 7;
        if (dash ? date[i] != '-' : (date[i] < '0' || date[i] > '9')) {
            return false;
        }
    }
    int month = n >= 7 ? atoi(date + 5) : 1, day = n == 10 ? atoi(date + 8) : 1;
    return month >= 1 && month <= 12 && day >= 1 && day <= 31;
}

static mf_status check_text(const char *what, const char *text, size_t size, mf_err *e) {
    const char *end = memchr(text, '\0', size);
    if (end == NULL || !mf_text_is_clean(text, (size_t)(end - text))) {
        return mf_err_set(e, MF_INPUT, "%s: expected printable text", what);
    }
    return MF_OK;
}

mf_status mf_point_check(const mf_point *p, mf_err *e) {
    if (memchr(p->gpu, '\0', sizeof p->gpu) == NULL || !is_name(p->gpu, sizeof p->gpu - 1)) {
        return mf_err_set(e, MF_INPUT, "gpu: expected a name such as \"h200\", got \"%.31s\"",
                          p->gpu);
    }
    mf_point copy = *p;
    mf_status st = mf_point_canonical(&copy, e);
    if (st != MF_OK) {
        return st;
    }
    if (!(isfinite(p->time_s) && p->time_s > 0.0)) {
        return mf_err_set(e, MF_INPUT, "time_s: expected seconds > 0, got %g", p->time_s);
    }
    if (!(isfinite(p->low_s) && isfinite(p->high_s) && p->low_s > 0.0 && p->low_s <= p->time_s &&
          p->time_s <= p->high_s)) {
        return mf_err_set(e, MF_INPUT, "low_s, high_s: expected 0 < low <= %g <= high, got %g, %g",
                          p->time_s, p->low_s, p->high_s);
    }
    if (!(isfinite(p->energy_J) && isfinite(p->sustained_s) && p->energy_J >= 0.0 &&
          (p->energy_J > 0.0 ? p->sustained_s > 0.0 : p->sustained_s == 0.0))) {
        return mf_err_set(e, MF_INPUT,
                          "energy_J, sustained_s: expected both > 0, or neither, got %g, %g",
                          p->energy_J, p->sustained_s);
    }
    if (p->samples < 0 || (p->holdout != 0 && p->holdout != 1)) {
        return mf_err_set(e, MF_INPUT, "expected samples >= 0 and holdout 0 or 1");
    }
    st = check_text("versions", p->versions, sizeof p->versions, e);
    st = st == MF_OK ? check_text("source", p->source, sizeof p->source, e) : st;
    st = st == MF_OK ? check_text("date", p->date, sizeof p->date, e) : st;
    if (st == MF_OK && !is_date(p->date)) {
        st = mf_err_set(e, MF_INPUT, "date: expected YYYY-MM-DD, got \"%s\"", p->date);
    }
    return st;
}
