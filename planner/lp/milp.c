/* milp.c - building mixed-integer linear programs as plain data. */
#include "planner/lp/milp.h"

#include <stdlib.h>
#include <string.h>

void mf_milp_init(mf_milp *p) {
    memset(p, 0, sizeof *p);
}

void mf_milp_clear(mf_milp *p) {
    free(p->col);
    free(p->row);
    free(p->entry);
    memset(p, 0, sizeof *p);
}

/* Items with one more allocated, or NULL (and *failed) when memory ran out. */
static void *grow(void *items, int count, int *allocated, size_t size, bool *failed) {
    if (count < *allocated) {
        return items;
    }
    int more = *allocated ? 2 * *allocated : 64;
    void *grown = realloc(items, (size_t)more * size);
    if (!grown) {
        *failed = true;
        return NULL;
    }
    *allocated = more;
    return grown;
}

int mf_milp_add_col(mf_milp *p, double lo, double hi, double cost, bool integer) {
    mf_milp_col *col = grow(p->col, p->cols, &p->cols_allocated, sizeof *col, &p->failed);
    if (!col) {
        return 0;
    }
    p->col = col;
    col[p->cols] = (mf_milp_col){lo, hi, cost, integer};
    return p->cols++;
}

int mf_milp_add_row(mf_milp *p, double lo, double hi) {
    mf_milp_row *row = grow(p->row, p->rows, &p->rows_allocated, sizeof *row, &p->failed);
    if (!row) {
        return 0;
    }
    p->row = row;
    row[p->rows] = (mf_milp_row){lo, hi, -1};
    return p->rows++;
}

void mf_milp_add_entry(mf_milp *p, int row, int col, double value) {
    if (value == 0.0) { /* exact: only entries that are zero are left out */
        return;
    }
    mf_milp_entry *entry =
        grow(p->entry, p->entries, &p->entries_allocated, sizeof *entry, &p->failed);
    if (entry) {
        p->entry = entry;
        entry[p->entries++] = (mf_milp_entry){row, col, value};
    }
}

void mf_milp_define(mf_milp *p, int col, int row) {
    if (row < p->rows) { /* not so when memory ran out */
        p->row[row].defines = col;
    }
}
