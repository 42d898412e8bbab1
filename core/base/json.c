/* json.c - documents: cJSON builds the tree from what the scanner has accepted; each value is a
 * small node that joins cJSON's item to its position. */
#include "core/base/file.h"
#include "core/base/json_value.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    char *text = NULL;
    size_t length = 0;
    *out = NULL;
    mf_status st = mf_file_load(path, MF_JSON_MAX_BYTES, &text, &length, e);
    if (st == MF_OK) {
        st = mf_json_parse(path, text, length, out, e);
    }
    free(text);
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
