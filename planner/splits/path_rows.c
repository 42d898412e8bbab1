/* path_rows.c - paths as rows of the integer program: T is at least each of them. */
#include "planner/splits/rows.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- paths ----------------------------------------------------------------------------------- */

/* Seconds that one layer adds to the path, at the least of its choices. */
static double path_s(const mf_rows *b, int v, int slot) {
    const mf_partition_class *c = mf_partition_class_at(b->in, v, slot);
    double sum_s = 0.0;
    for (int p = 0; p < MF_ORDER_PARTS; p++) {
        double n = b->path.count[p][v];
        if (n > 0.0 || n < 0.0) {
            sum_s += n * mf_partition_part_s(b->in, c, -1, (mf_order_part)p, b->hull);
        }
    }
    return sum_s;
}

/* Coarse: an entry for every slot on every virtual stage, and what stages take more. */
static void coarse_path(const mf_rows *b, mf_milp_lazy_row *row) {
    const mf_partition *in = b->in;
    for (int v = 0; v < in->vstages; v++) {
        for (int s = 0; s < in->slots; s++) {
            const int col = b->col[mf_partition_cell(in, v, s, 0)];
            const double each_s = col >= 0 ? path_s(b, v, s) : 0.0;
            if (each_s > 0.0 || each_s < 0.0) {
                row->col[row->count] = col;
                row->value[row->count++] = each_s / b->unit_s;
            }
        }
    }
    for (int p = 0; p < in->stages; p++) {
        double least = HUGE_VAL; /* whichever chunk has it */
        for (int k = 0; k < in->chunks; k++) {
            int v = (int)mf_layout_vstage(&in->layout, p, k);
            least = fmin(least, mf_path_visits(&b->path, v));
        }
        if (least > 0.0) {
            row->col[row->count] = b->extra[p];
            row->value[row->count++] = least;
        }
    }
}

/* With every choice: an entry for every sum of a part that it passes through. */
static void whole_path(const mf_rows *b, mf_milp_lazy_row *row) {
    for (int v = 0; v < b->in->vstages; v++) {
        for (int p = 0; p < MF_ORDER_PARTS; p++) {
            const double n = b->path.count[p][v];
            const int col = b->figure_col[v * MF_FIGURES + p];
            if (col >= 0 && (n > 0.0 || n < 0.0)) {
                row->col[row->count] = col;
                row->value[row->count++] = n;
            }
        }
    }
    for (int v = 0; v < b->in->vstages; v++) {
        const double more_s = mf_rows_end_s(b, &b->path, v);
        if (more_s > 0.0 || more_s < 0.0) {
            row->col[row->count] = b->end_col[v];
            row->value[row->count++] = more_s / b->unit_s;
        }
    }
}

/* The path as a row: sum x * seconds - T <= -(what does not depend on x). */
static void path_row(mf_rows *b, mf_milp_lazy_row *row) {
    const mf_partition *in = b->in;
    row->count = 0;
    row->lo = -INFINITY;
    row->hi = -mf_partition_path_fixed_s(in, &b->path) / b->unit_s;
    if (b->splits) {
        mf_rows_split_path(b, &b->path, row);
    } else if (b->coarse) {
        coarse_path(b, row);
    } else {
        whole_path(b, row);
    }
    row->col[row->count] = b->step;
    row->value[row->count++] = -1.0;
}

/* By how much a row is broken at a point. */
static double excess(const mf_milp_lazy_row *row, const double *x) {
    double sum = -row->hi;
    for (int k = 0; k < row->count; k++) {
        sum += row->value[k] * x[row->col[k]];
    }
    return sum;
}

/* The longest path at b->count. */
static bool play(mf_rows *b) {
    const double *extra_s = b->coarse ? b->count + mf_partition_cells(b->in) : NULL;
    b->status = mf_partition_play(b->in, b->count, b->coarse, extra_s, &b->path, b->e);
    return b->status == MF_OK;
}

static void swap_paths(mf_order_path *a, mf_order_path *b) {
    mf_order_path was = *a;
    *a = *b;
    *b = was;
}

static bool is_violated(mf_rows *b, const double *x, mf_milp_lazy_row *row) {
    path_row(b, row);
    return excess(row, x) > x[b->step] * MF_PATH_TOLERANCE;
}

/* The same passes through the same virtual stages? */
static bool is_known(const mf_rows *b) {
    size_t n = MF_ORDER_PATH_DOUBLES(b->in->vstages);
    for (int i = 0; i < b->founds; i++) {
        if (memcmp(b->found[i].count[0], b->path.count[0], n * sizeof(double)) == 0) {
            return true;
        }
    }
    return false;
}

/* Plays b->count; its path is kept if the program's point breaks it. */
static bool try_point(mf_rows *b, const double *x, mf_milp_lazy_row *row) {
    if (!play(b)) {
        return false;
    }
    if (is_violated(b, x, row) && !is_known(b)) {
        swap_paths(&b->path, &b->found[b->founds++]);
        return true;
    }
    return false;
}

static size_t point_size(const mf_rows *b) {
    return mf_partition_cells(b->in) + (b->coarse ? (size_t)b->in->stages : 0);
}

/* Between the point and a better one that was met before (in-out separation): a program's points
 * are extreme, and paths found at them say little about others. Not at nodes of a tree: trees
 * get further without it (DeepSeek-V3 on 5,120 B200, docs/PLANNER_MEASURED.md), presumably since
 * the better point mostly stands outside a node's ranges. */
static void separate_in_out(mf_rows *b, const double *x, mf_milp_lazy_row *row) {
    size_t size = point_size(b);
    double here_s = b->found[0].time_s, by = MF_BETWEEN_SHARE;
    if (!(b->best_count_s < here_s) || !mf_uses(b->in->evaluator->without, MF_MECHANISM_BETWEEN)) {
        memcpy(b->best_count, b->point, size * sizeof *b->best_count);
        b->best_count_s = here_s;
        return;
    }
    for (int k = 0; k < MF_BETWEEN_STEPS && b->founds < MF_ROWS_FOUND;
         k++, by *= MF_BETWEEN_SHARE) {
        for (size_t i = 0; i < size; i++) {
            b->count[i] = by * b->point[i] + (1.0 - by) * b->best_count[i];
        }
        bool more = try_point(b, x, row);
        if (b->status != MF_OK) {
            return;
        }
        double time_s = more ? b->found[b->founds - 1].time_s : b->path.time_s;
        if (time_s < b->best_count_s) {
            memcpy(b->best_count, b->count, size * sizeof *b->best_count);
            b->best_count_s = time_s;
            return;
        }
    }
}

/* Of the path whose row is about to be added. */
static mf_status note_row(mf_rows *b, const mf_milp_lazy_row *row) {
    if (b->path_rows == b->path_rows_allocated) {
        int allocated = 2 * b->path_rows_allocated + 64;
        mf_path_row *grown = realloc(b->path_row, (size_t)allocated * sizeof *grown);
        if (!grown) {
            return mf_err_set(b->e, MF_NOMEM, "out of memory");
        }
        b->path_row = grown;
        b->path_rows_allocated = allocated;
    }
    const size_t n = (size_t)b->in->vstages;
    mf_path_row *x = &b->path_row[b->path_rows];
    double *loss = malloc((MF_LOSS_KINDS + MF_ORDER_AHEAD) * n * sizeof *loss);
    if (!loss) {
        return mf_err_set(b->e, MF_NOMEM, "out of memory");
    }
    x->path = b->path;
    memset(x->path.count, 0, sizeof x->path.count);
    for (size_t k = 0; k < MF_LOSS_KINDS; k++) {
        x->path.loss[k] = loss + k * n;
        memcpy(x->path.loss[k], b->path.loss[k], n * sizeof *loss);
    }
    for (size_t k = 0; k < MF_ORDER_AHEAD; k++) {
        x->path.ahead_share[k] = loss + (MF_LOSS_KINDS + k) * n;
        memcpy(x->path.ahead_share[k], b->path.ahead_share[k], n * sizeof *loss);
    }
    x->bound = row->hi + mf_partition_path_fixed_s(b->in, &b->path) / b->unit_s;
    *b->in->effort_ns += 2 * MF_LOSS_CELL_NS * (int64_t)n;
    b->path_rows++;
    return MF_OK;
}

void mf_rows_take_losses(mf_rows *b, mf_lp *lp) {
    for (int i = 0; i < b->path_rows; i++) {
        const mf_path_row *x = &b->path_row[i];
        double fixed = mf_partition_path_fixed_s(b->in, &x->path) / b->unit_s;
        mf_lp_set_row(lp, b->first_path_row + i, -INFINITY, x->bound - fixed);
    }
    *b->in->effort_ns += MF_LOSS_CELL_NS * (int64_t)b->path_rows * b->in->vstages;
}

/* Keeps the path whose row is about to be added. */
static mf_status keep_path(mf_rows *b, const mf_milp_lazy_row *row) {
    mf_status status = b->lossy ? note_row(b, row) : MF_OK;
    return status == MF_OK && b->kept ? mf_path_set_add(b->kept, &b->path, b->e) : status;
}

static bool add_found(mf_rows *b, const mf_milp_lazy_row *row) {
    b->paths++;
    b->status = keep_path(b, row);
    return b->status == MF_OK;
}

/* The last of the paths that were found becomes a row. */
static bool take_found(mf_rows *b, mf_milp_lazy_row *row) {
    swap_paths(&b->path, &b->found[--b->founds]);
    path_row(b, row);
    row->more = b->founds > 0;
    return add_found(b, row);
}

/* --- a point ---------------------------------------------------------------------------------- */

/* Longest path at a point of the program; true when it is longer than T says. */
static bool find_path(mf_rows *b, const double *x, mf_milp_lazy_row *row) {
    size_t cells = mf_partition_cells(b->in);
    if (b->founds > 0) {
        return take_found(b, row);
    }
    bool exact = !b->splits && !b->coarse;
    if ((b->paths >= MF_EXACT_PATHS && exact) || b->status != MF_OK) {
        return false;
    }
    for (size_t i = 0; i < cells; i++) {
        b->count[i] = b->col[i] >= 0 ? x[b->col[i]] : 0.0;
    }
    for (int p = 0; p < b->in->stages && b->coarse; p++) {
        b->count[cells + (size_t)p] = x[b->extra[p]] * b->unit_s;
    }
    if (exact) {
        return play(b) && is_violated(b, x, row) && add_found(b, row);
    }
    memcpy(b->point, b->count, point_size(b) * sizeof *b->point);
    if (!try_point(b, x, row)) {
        return false;
    }
    if (!b->at_node) {
        separate_in_out(b, x, row);
    }
    return b->status == MF_OK && take_found(b, row);
}

bool mf_rows_lazy_path(void *rows, const double *x, mf_milp_lazy_row *row) {
    return find_path(rows, x, row);
}

/* The longest path of layers spread evenly over the stages. */
static mf_status first_path(mf_rows *b) {
    const mf_partition *in = b->in;
    memset(b->count, 0, point_size(b) * sizeof *b->count);
    for (int s = 0; s < in->slots; s++) {
        double n = in->slot[s].count;
        int width = in->slot[s].v_hi - in->slot[s].v_lo + 1;
        for (int v = in->slot[s].v_lo; v <= in->slot[s].v_hi; v++) {
            b->count[mf_partition_cell(in, v, s, 0)] = n / width;
        }
    }
    return mf_partition_play(b->in, b->count, b->coarse, NULL, &b->path, b->e);
}

/* b->path becomes a row of the program. */
static mf_status add_row(mf_rows *b, mf_milp_lazy_row *row) {
    path_row(b, row);
    int at = mf_milp_add_row(&b->milp, row->lo, row->hi);
    for (int k = 0; k < row->count; k++) {
        mf_milp_add_entry(&b->milp, at, row->col[k], row->value[k]);
    }
    return keep_path(b, row);
}

mf_status mf_rows_add_paths(mf_rows *b, const mf_path_set *known) {
    size_t cols = (size_t)b->milp.cols + 1;
    mf_milp_lazy_row row = {.col = malloc(cols * sizeof *row.col),
                            .value = malloc(cols * sizeof *row.value)};
    mf_status status = MF_OK;
    b->first_path_row = b->milp.rows;
    if (!row.col || !row.value) {
        free(row.col);
        free(row.value);
        return mf_err_set(b->e, MF_NOMEM, "out of memory");
    }
    if (known && b->in->lost > known->mean.lost) {
        known = NULL; /* they hold for layouts that lose no more */
    }
    if (!known || known->count == 0) {
        status = first_path(b);
        status = status == MF_OK ? add_row(b, &row) : status;
    }
    mf_order_path own = b->path;
    for (int i = 0; known && i < known->count && status == MF_OK; i++) {
        b->path = known->path[i]; /* borrowed */
        status = add_row(b, &row);
    }
    b->path = own;
    free(row.col);
    free(row.value);
    return status;
}
