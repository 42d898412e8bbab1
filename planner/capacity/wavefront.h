/* wavefront.h - cells of a table (rows x columns) that are worked on several at a time.
 *
 * A cell comes after the one before it in its row, and after the one above it if that row is of its
 * group. What a cell may know, that of these and of those before them, therefore depends neither on
 * how many threads there are nor on how long any cell takes.
 */
#ifndef MF_PLANNER_WAVEFRONT_H
#define MF_PLANNER_WAVEFRONT_H

#include "core/base/status.h"

typedef struct mf_wavefront {
    int rows, columns;
    int group; /* so many rows, one after the other, are of one group */
    /* On any thread, beside cells of other rows. */
    mf_status (*work)(void *user, int row, int column, mf_err *e);
    void *user;
} mf_wavefront;

/* Works on every cell; the calling thread works, too. Leftmost columns first: rows end together.
 * After a failure no cell is begun; returns the first that failed, by column, then by row. Fewer
 * threads than wanted is no failure. Errors: MF_NOMEM, and those of work. */
mf_status mf_wavefront_run(const mf_wavefront *w, int threads, mf_err *e);

#endif
