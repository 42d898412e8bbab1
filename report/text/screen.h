/* screen.h - text as a terminal shows it: no line wider than it, and no more lines than fit one.
 *
 * Commands print their tables as wide as these are. Where somebody looks at them, lines that are
 * too wide go on below, indented; bars that do not fit are left out; and of the longest tables the
 * last rows make way, with a line that says how many, until MF_SCREEN_LINES are left; a verdict
 * (from a line that begins with that word to the next empty one) is no table. What goes into a file
 * or a pipe is left as it is. In colour, a verdict, the rows of a front and what does not fit stand
 * out; the words are the same without.
 */
#ifndef MF_REPORT_TEXT_SCREEN_H
#define MF_REPORT_TEXT_SCREEN_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdio.h>

enum { MF_SCREEN_LINES = 40, MF_SCREEN_LEAST = 40 };

/* Columns of whoever looks: $COLUMNS, from MF_SCREEN_LEAST on; else `otherwise`. */
int mf_screen_columns(int otherwise);

typedef struct mf_screen {
    int columns;
    bool all; /* as many lines as there are */
    bool colour;
} mf_screen;

/* Errors: MF_NOMEM. */
mf_status mf_screen_write(FILE *out, const char *text, const mf_screen *how, mf_err *e);

#endif
