/* json_value.h - private to core/base/json*.c: what a document and its values are made of. */
#ifndef MF_CORE_JSON_VALUE_H
#define MF_CORE_JSON_VALUE_H

#include "core/base/json.h"
#include "core/base/json_scan.h"

#include <cjson/cJSON.h>

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

#endif
