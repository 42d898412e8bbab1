/* tried.c - what was done about a layout: counts that are not wanted again, and what a tree over
 * splits left open.
 */
#include "planner/splits/splits.h"

#include <stdlib.h>
#include <string.h>

mf_status mf_partition_tried_add(const mf_partition *in, mf_partition_tried *t, int stage,
                                 const int32_t *count, mf_err *e) {
    size_t cells = mf_partition_cells(in);
    if (t->sets == t->allocated) {
        int allocated = t->allocated ? 2 * t->allocated : 4;
        int *stages = realloc(t->stage, (size_t)allocated * sizeof *stages);
        if (stages) {
            t->stage = stages;
        }
        int32_t *counts = realloc(t->count, (size_t)allocated * cells * sizeof *counts);
        if (counts) {
            t->count = counts;
        }
        if (!stages || !counts) {
            return mf_err_set(e, MF_NOMEM, "out of memory");
        }
        t->allocated = allocated;
    }
    t->stage[t->sets] = stage;
    memcpy(t->count + (size_t)t->sets * cells, count, cells * sizeof *count);
    t->sets++;
    return MF_OK;
}

void mf_partition_tried_clear(mf_partition_tried *t) {
    free(t->stage);
    free(t->count);
    mf_split_rest_clear(&t->rest);
    memset(t, 0, sizeof *t);
}
