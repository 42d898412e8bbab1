/* wavefront.h - cells of a table (rows x columns) that are worked on several at a time.
 *
 * A cell comes after the one before it in its row and, if the row above is of its group, after the
 * cell of that row one column to the left; in the first column after the one above it. So rows end
 * at about the same time and none waits long for another. What a cell may know (mf_wavefront_knows)
 * depends neither on how many threads there are nor on how long any cell takes.
 */
#ifndef MF_PLANNER_WAVEFRONT_H
#define MF_PLANNER_WAVEFRONT_H

#include "core/base/status.h"

#include <stdbool.h>

typedef struct mf_wavefront {
    int rows, columns;
    int group; /* rows that follow one another and form a group */
    /* On any thread, beside cells of other rows. */
    mf_status (*work)(void *user, int row, int column, mf_err *e);
    void *user;
} mf_wavefront;

/* Has the cell of row `before` and column `at` always ended when that of `row` and `column` begins?
 */
bool mf_wavefront_knows(const mf_wavefront *w, int row, int column, int before, int at);

/* Works on every cell; the calling thread works, too. Leftmost columns first: rows end together.
 * After a failure no cell is begun; returns the first that failed, by column, then by row. Fewer
 * threads than wanted is no failure. Errors: MF_NOMEM, and those of work. */
mf_status mf_wavefront_run(const mf_wavefront *w, int threads, mf_err *e);

#endif
