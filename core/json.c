/* json.c - documents and getters: cJSON builds the tree from what the scanner has accepted; each
 * value is a small node that joins cJSON's item to its position. */
#include "core/json.h"

#include "core/json_scan.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mf_json_value {
    const cJSON *item;
    const mf_json *doc;
    mf_json_mark mark;
    uint32_t first; /* of its members in doc->members and doc->sorted */
    uint32_t count;
};

struct mf_json {
    char *name;
    cJSON *tree;
    size_t value_count;
    mf_json_value *values; /* [value_count] in text order */
    uint32_t *members;     /* [value_count] member lists, text order: index into values */
    uint32_t *sorted;      /* [value_count] the same lists; those of objects ordered by key */
};

/* --- building ------------------------------------------------------------------------------- */

typedef struct builder {
    mf_json *doc;
    const mf_json_scan *scan;
    size_t next;   /* value to fill */
    uint32_t used; /* member slots handed out */
    mf_err *e;
} builder;

static int compare_keys(const mf_json *doc, uint32_t a, uint32_t b) {
    int order = strcmp(doc->values[a].item->string, doc->values[b].item->string);
    return order != 0 ? order : (a > b) - (a < b);
}

/* Heap sort of `count` value indices by key, then position (no hidden state, no bad case). */
static void sort_members(const mf_json *doc, uint32_t *list, size_t count) {
    size_t heap = count / 2, end = count;
    while (end > 1) {
        if (heap > 0) {
            heap--;
        } else {
            end--;
            uint32_t top = list[0];
            list[0] = list[end];
            list[end] = top;
        }
        for (size_t at = heap, child; (child = 2 * at + 1) < end; at = child) {
            if (child + 1 < end && compare_keys(doc, list[child], list[child + 1]) < 0) {
                child++;
            }
            if (compare_keys(doc, list[at], list[child]) >= 0) {
                break;
            }
            uint32_t swap = list[at];
            list[at] = list[child];
            list[child] = swap;
        }
    }
}

static mf_status check_duplicates(const builder *b, const mf_json_value *object) {
    const mf_json *doc = b->doc;
    const mf_json_value *worst = NULL,
                        *first = NULL; /* the duplicate that comes first in the text */
    for (uint32_t i = 1; i < object->count; i++) {
        const mf_json_value *before = &doc->values[doc->sorted[object->first + i - 1]];
        const mf_json_value *v = &doc->values[doc->sorted[object->first + i]];
        if (strcmp(before->item->string, v->item->string) == 0 && (worst == NULL || v < worst)) {
            worst = v;
            first = before;
        }
    }
    if (worst == NULL) {
        return MF_OK;
    }
    return mf_err_set(b->e, MF_INPUT, "%s:%u:%u: key \"%.80s\" stands twice, first at %u:%u",
                      doc->name, worst->mark.key_line, worst->mark.key_column, worst->item->string,
                      first->mark.key_line, first->mark.key_column);
}

/* Fills the node of `item` and those below it, in the order in which the scanner marked them. */
static mf_status build(builder *b, const cJSON *item) {
    mf_json *doc = b->doc;
    if (b->next == doc->value_count) {
        return mf_err_set(b->e, MF_INTERNAL, "%s: scanner and cJSON disagree", doc->name);
    }
    mf_json_value *v = &doc->values[b->next];
    *v = (mf_json_value){.item = item, .doc = doc, .mark = b->scan->marks[b->next]};
    b->next++;
    if (cJSON_IsNumber(item) && !isfinite(item->valuedouble)) {
        return mf_json_fail(v, b->e, "number too large for a double");
    }
    const cJSON *child;
    cJSON_ArrayForEach(child, item) {
        v->count++;
    }
    v->first = b->used;
    b->used += v->count;
    uint32_t index = v->first;
    cJSON_ArrayForEach(child, item) {
        doc->members[index] = doc->sorted[index] = (uint32_t)b->next;
        index++;
        mf_status st = build(b, child);
        if (st != MF_OK) {
            return st;
        }
    }
    if (!cJSON_IsObject(item)) {
        return MF_OK;
    }
    sort_members(doc, doc->sorted + v->first, v->count);
    return check_duplicates(b, v);
}

mf_status mf_json_parse(const char *name, const char *text, size_t length, mf_json **out,
                        mf_err *e) {
    *out = NULL;
    mf_json_scan scan;
    mf_status st = mf_json_scan_text(name, text, length, &scan, e);
    if (st != MF_OK) {
        return st;
    }
    mf_json *doc = calloc(1, sizeof *doc);
    if (doc == NULL) {
        st = mf_err_set(e, MF_NOMEM, "%s: out of memory", name);
        goto out;
    }
    doc->value_count = scan.count;
    size_t name_size = strlen(name) + 1;
    doc->name = malloc(name_size);
    doc->values = calloc(scan.count, sizeof *doc->values);
    doc->members = calloc(scan.count, sizeof *doc->members);
    doc->sorted = calloc(scan.count, sizeof *doc->sorted);
    doc->tree = cJSON_ParseWithLength(scan.text, scan.length + 1);
    if (doc->name == NULL || doc->values == NULL || doc->members == NULL || doc->sorted == NULL ||
        doc->tree == NULL) {
        /* cJSON refuses nothing that the scanner accepts, so its failure too is lack of memory. */
        st = mf_err_set(e, MF_NOMEM, "%s: out of memory", name);
        goto out;
    }
    memcpy(doc->name, name, name_size);
    st = build(&(builder){.doc = doc, .scan = &scan, .e = e}, doc->tree);
    if (st == MF_OK) {
        *out = doc;
        doc = NULL;
    }
out:
    mf_json_scan_clear(&scan);
    mf_json_destroy(doc);
    return st;
}

mf_status mf_json_load(const char *path, mf_json **out, mf_err *e) {
    *out = NULL;
    mf_status st = MF_OK;
    char *text = NULL;
    size_t length = 0, room = 0;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return mf_err_set(e, MF_INPUT, "%s: cannot be opened: %s", path, strerror(errno));
    }
    for (;;) {
        if (length == room) {
            room = room == 0 ? 16384 : room * 2;
            char *bigger = realloc(text, room);
            if (bigger == NULL) {
                st = mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
                goto out;
            }
            text = bigger;
        }
        size_t got = fread(text + length, 1, room - length, file);
        length += got;
        if (length > MF_JSON_MAX_BYTES) {
            st = mf_err_set(e, MF_INPUT, "%s: larger than %u bytes", path, MF_JSON_MAX_BYTES);
            goto out;
        }
        if (got == 0) {
            break;
        }
    }
    if (ferror(file)) {
        st = mf_err_set(e, MF_INPUT, "%s: cannot be read: %s", path, strerror(errno));
        goto out;
    }
    st = mf_json_parse(path, text, length, out, e);
out:
    free(text);
    fclose(file);
    return st;
}

void mf_json_destroy(mf_json *doc) {
    if (doc == NULL) {
        return;
    }
    cJSON_Delete(doc->tree);
    free(doc->name);
    free(doc->values);
    free(doc->members);
    free(doc->sorted);
    free(doc);
}

/* --- reading -------------------------------------------------------------------------------- */

const mf_json_value *mf_json_root(const mf_json *doc) {
    return &doc->values[0];
}

mf_json_type mf_json_value_type(const mf_json_value *v) {
    switch (v->item->type & 0xff) {
    case cJSON_True:
    case cJSON_False:
        return MF_JSON_BOOL;
    case cJSON_Number:
        return MF_JSON_NUMBER;
    case cJSON_String:
        return MF_JSON_STRING;
    case cJSON_Array:
        return MF_JSON_ARRAY;
    case cJSON_Object:
        return MF_JSON_OBJECT;
    default:
        return MF_JSON_NULL;
    }
}

int mf_json_line(const mf_json_value *v) {
    return (int)v->mark.line;
}

int mf_json_column(const mf_json_value *v) {
    return (int)v->mark.column;
}

size_t mf_json_size(const mf_json_value *v) {
    return v->count;
}

const mf_json_value *mf_json_at(const mf_json_value *v, size_t index) {
    assert(index < v->count);
    return &v->doc->values[v->doc->members[v->first + index]];
}

const char *mf_json_key_at(const mf_json_value *object, size_t index) {
    assert(cJSON_IsObject(object->item));
    return mf_json_at(object, index)->item->string;
}

const mf_json_value *mf_json_find(const mf_json_value *object, const char *key) {
    if (!cJSON_IsObject(object->item)) {
        return NULL;
    }
    const mf_json *doc = object->doc;
    size_t lo = 0, hi = object->count;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const mf_json_value *v = &doc->values[doc->sorted[object->first + mid]];
        int order = strcmp(key, v->item->string);
        if (order == 0) {
            return v;
        }
        if (order < 0) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return NULL;
}

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
    if (hi >= INT64_C(1) << 52 && lo == 1) {
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
    if (hi > 1e300 && lo < -1e300) {
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
