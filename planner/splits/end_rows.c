/* end_rows.c - dear last blocks in the integer program: a column for each virtual stage, which says
 * how much of its last position is of a dear one at least (end_copies.c).
 */
#include "planner/splits/rows.h"

#include <math.h>

void mf_rows_add_ends(mf_rows *b) {
    const mf_partition *in = b->in;
    for (int v = 0; v < in->vstages; v++) {
        b->end_col[v] = -1;
        if (mf_partition_end_more_s(in, v) == NULL) {
            continue;
        }
        b->end_col[v] = mf_milp_add_col(&b->milp, 0, 1, 0, false);
        const int row = mf_milp_add_row(&b->milp, 1, INFINITY);
        mf_milp_add_entry(&b->milp, row, b->end_col[v], 1);
        for (int s = 0; s < in->slots; s++) {
            const mf_partition_class *c = mf_partition_class_at(in, v, s);
            for (int m = 0; m < c->choices; m++) {
                const int col = b->col[mf_partition_cell(in, v, s, m)];
                if (col >= 0 && !c->choice[m].dear_last) {
                    mf_milp_add_entry(&b->milp, row, col, 1);
                }
            }
        }
    }
}

double mf_rows_end_s(const mf_rows *b, const mf_order_path *path, int v) {
    const double *more = b->end_col[v] >= 0 ? mf_partition_end_more_s(b->in, v) : NULL;
    double sum_s = 0.0;
    for (int p = 0; more && p < MF_ORDER_PARTS; p++) {
        sum_s += path->count[p][v] * more[p];
    }
    return sum_s;
}
