/* json_read.c - values and members as numbers, words and switches, within bounds; what is wrong
 * with one is said with its place in the file. */
#include "core/base/json_value.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- errors --------------------------------------------------------------------------------- */

mf_status mf_json_fail(const mf_json_value *v, mf_err *e, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    mf_err_vset(e, MF_INPUT, fmt, args);
    va_end(args);
    if (e != NULL) {
        mf_err_prefix(e, "%.400s:%d:%d", v->doc->name, mf_json_line(v), mf_json_column(v));
    }
    return MF_INPUT;
}

/* As mf_json_fail, with the member's key between position and text unless it is NULL. */
static mf_status fail_at(const mf_json_value *v, const char *key, mf_err *e, const char *expected) {
    char got[72];
    switch (mf_json_value_type(v)) {
    case MF_JSON_NULL:
        snprintf(got, sizeof got, "null");
        break;
    case MF_JSON_BOOL:
        snprintf(got, sizeof got, cJSON_IsTrue(v->item) ? "true" : "false");
        break;
    case MF_JSON_NUMBER:
        snprintf(got, sizeof got, "%.15g", v->item->valuedouble);
        if (strtod(got, NULL) != v->item->valuedouble) {
            snprintf(got, sizeof got, "%.17g", v->item->valuedouble);
        }
        break;
    case MF_JSON_STRING: {
        size_t at = 0, length = strlen(v->item->valuestring);
        got[at++] = '"';
        for (size_t i = 0; i < length && i < 48; i++) { /* one line, whatever the string holds */
            char c = v->item->valuestring[i];
            got[at++] = (unsigned char)c < 0x20 || c == 0x7f ? '?' : c;
        }
        while (length > 48 && at > 1 &&
               ((unsigned char)v->item->valuestring[at - 1] & 0xc0) == 0x80) {
            at--; /* not in the middle of a character */
        }
        snprintf(got + at, sizeof got - at, length > 48 ? "...\"" : "\"");
        break;
    }
    case MF_JSON_ARRAY:
        snprintf(got, sizeof got, "an array");
        break;
    case MF_JSON_OBJECT:
        snprintf(got, sizeof got, "an object");
        break;
    }
    if (key == NULL) {
        return mf_json_fail(v, e, "expected %s, got %s", expected, got);
    }
    return mf_json_fail(v, e, "\"%.80s\": expected %s, got %s", key, expected, got);
}

/* --- values --------------------------------------------------------------------------------- */

static const double exact_limit = 9007199254740992.0; /* 2^53 */

static mf_status read_i64(const mf_json_value *v, const char *key, int64_t lo, int64_t hi,
                          int64_t *out, mf_err *e) {
    assert(lo >= -(INT64_C(1) << 53) && hi <= INT64_C(1) << 53 && lo <= hi);
    double x = v->item->valuedouble;
    if (cJSON_IsNumber(v->item) && x >= -exact_limit && x <= exact_limit && floor(x) == x &&
        (int64_t)x >= lo && (int64_t)x <= hi) {
        *out = (int64_t)x;
        return MF_OK;
    }
    char expected[80];
    if (lo == hi) {
        snprintf(expected, sizeof expected, "%lld", (long long)lo);
    } else if (hi >= INT64_C(1) << 52 && lo == 1) {
        snprintf(expected, sizeof expected, "an integer > 0");
    } else if (hi >= INT64_C(1) << 52) {
        snprintf(expected, sizeof expected, "an integer >= %lld", (long long)lo);
    } else {
        snprintf(expected, sizeof expected, "an integer in %lld..%lld", (long long)lo,
                 (long long)hi);
    }
    return fail_at(v, key, e, expected);
}

static mf_status read_f64(const mf_json_value *v, const char *key, double lo, double hi,
                          double *out, mf_err *e) {
    double x = v->item->valuedouble;
    if (cJSON_IsNumber(v->item) && x >= lo && x <= hi) {
        *out = x;
        return MF_OK;
    }
    char expected[80];
    if (hi >= 1e300 && lo <= -1e300) {
        snprintf(expected, sizeof expected, "a number");
    } else if (hi > 1e300) {
        snprintf(expected, sizeof expected, "a number >= %g", lo);
    } else if (lo < -1e300) {
        snprintf(expected, sizeof expected, "a number <= %g", hi);
    } else {
        snprintf(expected, sizeof expected, "a number in %g..%g", lo, hi);
    }
    return fail_at(v, key, e, expected);
}

static mf_status read_bool(const mf_json_value *v, const char *key, bool *out, mf_err *e) {
    if (!cJSON_IsBool(v->item)) {
        return fail_at(v, key, e, "true or false");
    }
    *out = cJSON_IsTrue(v->item);
    return MF_OK;
}

static mf_status read_string(const mf_json_value *v, const char *key, const char **out, mf_err *e) {
    if (!cJSON_IsString(v->item)) {
        return fail_at(v, key, e, "a string");
    }
    if (strstr(v->item->valuestring, "\xc0\x80") != NULL) {
        return fail_at(v, key, e, "a string without \\u0000");
    }
    *out = v->item->valuestring;
    return MF_OK;
}

mf_status mf_json_i64(const mf_json_value *v, int64_t lo, int64_t hi, int64_t *out, mf_err *e) {
    return read_i64(v, NULL, lo, hi, out, e);
}

mf_status mf_json_f64(const mf_json_value *v, double lo, double hi, double *out, mf_err *e) {
    return read_f64(v, NULL, lo, hi, out, e);
}

mf_status mf_json_bool(const mf_json_value *v, bool *out, mf_err *e) {
    return read_bool(v, NULL, out, e);
}

mf_status mf_json_string(const mf_json_value *v, const char **out, mf_err *e) {
    return read_string(v, NULL, out, e);
}

/* --- members -------------------------------------------------------------------------------- */

/* *v = the member, or NULL when it is absent or null and not required. */
static mf_status member(const mf_json_value *object, const char *key, bool required,
                        const mf_json_value **v, mf_err *e) {
    mf_status st = mf_json_want(object, MF_JSON_OBJECT, e);
    if (st != MF_OK) {
        return st;
    }
    *v = mf_json_find(object, key);
    if (*v == NULL && required) {
        return mf_json_fail(object, e, "\"%s\" is missing", key);
    }
    if (*v != NULL && !required && cJSON_IsNull((*v)->item)) {
        *v = NULL;
    }
    return MF_OK;
}

mf_status mf_json_get_i64(const mf_json_value *object, const char *key, int64_t lo, int64_t hi,
                          int64_t *out, mf_err *e) {
    const mf_json_value *v;
    mf_status st = member(object, key, true, &v, e);
    return st != MF_OK ? st : read_i64(v, key, lo, hi, out, e);
}

mf_status mf_json_opt_i64(const mf_json_value *object, const char *key, int64_t lo, int64_t hi,
                          int64_t *out, mf_err *e) {
    const mf_json_value *v;
    mf_status st = member(object, key, false, &v, e);
    return st != MF_OK || v == NULL ? st : read_i64(v, key, lo, hi, out, e);
}

mf_status mf_json_get_f64(const mf_json_value *object, const char *key, double lo, double hi,
                          double *out, mf_err *e) {
    const mf_json_value *v;
    mf_status st = member(object, key, true, &v, e);
    return st != MF_OK ? st : read_f64(v, key, lo, hi, out, e);
}

mf_status mf_json_opt_f64(const mf_json_value *object, const char *key, double lo, double hi,
                          double *out, mf_err *e) {
    const mf_json_value *v;
    mf_status st = member(object, key, false, &v, e);
    return st != MF_OK || v == NULL ? st : read_f64(v, key, lo, hi, out, e);
}

mf_status mf_json_get_bool(const mf_json_value *object, const char *key, bool *out, mf_err *e) {
    const mf_json_value *v;
    mf_status st = member(object, key, true, &v, e);
    return st != MF_OK ? st : read_bool(v, key, out, e);
}

mf_status mf_json_opt_bool(const mf_json_value *object, const char *key, bool *out, mf_err *e) {
    const mf_json_value *v;
    mf_status st = member(object, key, false, &v, e);
    return st != MF_OK || v == NULL ? st : read_bool(v, key, out, e);
}

mf_status mf_json_get_string(const mf_json_value *object, const char *key, const char **out,
                             mf_err *e) {
    const mf_json_value *v;
    mf_status st = member(object, key, true, &v, e);
    return st != MF_OK ? st : read_string(v, key, out, e);
}

mf_status mf_json_opt_string(const mf_json_value *object, const char *key, const char **out,
                             mf_err *e) {
    const mf_json_value *v;
    mf_status st = member(object, key, false, &v, e);
    return st != MF_OK || v == NULL ? st : read_string(v, key, out, e);
}

mf_status mf_json_want(const mf_json_value *v, mf_json_type type, mf_err *e) {
    static const char *const words[] = {
        [MF_JSON_NULL] = "null",       [MF_JSON_BOOL] = "true or false",
        [MF_JSON_NUMBER] = "a number", [MF_JSON_STRING] = "a string",
        [MF_JSON_ARRAY] = "an array",  [MF_JSON_OBJECT] = "an object",
    };
    return mf_json_value_type(v) == type ? MF_OK : fail_at(v, v->item->string, e, words[type]);
}

mf_status mf_json_check_keys(const mf_json_value *object, const char *const *known, size_t count,
                             mf_err *e) {
    mf_status st = mf_json_want(object, MF_JSON_OBJECT, e);
    for (size_t i = 0; st == MF_OK && i < object->count; i++) {
        const mf_json_value *v = mf_json_at(object, i);
        const char *key = v->item->string;
        bool found = false;
        for (size_t j = 0; j < count && !found; j++) {
            found = strcmp(key, known[j]) == 0;
        }
        if (found) {
            continue;
        }
        const char *near = mf_nearest_word(key, known, count);
        st = mf_err_set(e, MF_INPUT, "%s:%u:%u: unknown key \"%.80s\"%s%s%s", v->doc->name,
                        v->mark.key_line, v->mark.key_column, key,
                        near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                        near != NULL ? "\"?" : "");
    }
    return st;
}
