/* capacity_lists.h - the lists on `capacity`'s command line: names, sizes. */
#ifndef MF_JOB_CAPACITY_LISTS_H
#define MF_JOB_CAPACITY_LISTS_H

#include "core/base/status.h"

#include <stdint.h>

enum { MF_CAPACITY_MAX_NAMES = 32, MF_CAPACITY_MAX_SIZES = 64 };

typedef struct mf_name_list {
    char *text; /* owned; name[] points into it */
    int count;
    const char *name[MF_CAPACITY_MAX_NAMES];
} mf_name_list;

/* "a,b,c", each once. Errors: MF_USAGE for none or too many. The caller frees out->text. */
mf_status mf_name_list_parse(const char *list, mf_name_list *out, mf_err *e);

/* "64,128..1024,2k": ascending, each once; A..B doubles from A up to B, which is always the last.
 * size[MF_CAPACITY_MAX_SIZES]. Errors: MF_USAGE "--sizes: ...". */
mf_status mf_size_list_parse(const char *list, int64_t *size, int *count, mf_err *e);

#endif
