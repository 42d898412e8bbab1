/* screen_lines.h - private to screen*.c: lines of a text, how wide they are, and which are shown.
 */
#ifndef MF_REPORT_SCREEN_LINES_H
#define MF_REPORT_SCREEN_LINES_H

#include <stdbool.h>
#include <stdio.h>

/* Why one reads a paragraph. */
typedef enum mf_screen_worth {
    MF_SCREEN_PLAIN,
    MF_SCREEN_DETAIL, /* whoever wants it asks with -v */
    MF_SCREEN_NOTE,   /* words about a table, which makes way before its rows do */
    MF_SCREEN_ANSWER, /* plans and remedies: the output is read for them */
    MF_SCREEN_STAYS,  /* without it a verdict would mislead: what of a job was not read */
} mf_screen_worth;

typedef struct mf_screen_line {
    const char *text;
    int length, indent;
    int height; /* lines that it takes */
    int wrap;   /* where a row goes on below, as all rows of its table; 0: where it fits */
    int rest;   /* and the first column of what stands there */
    int hidden; /* number of lines left out from here on; 0: this one is shown */
    bool kept;  /* part of a verdict, or of what stays beside it: no row of a table */
    mf_screen_worth worth;
} mf_screen_line;

/* Rows begin so far in at most; further in stands text that goes on. */
enum { MF_SCREEN_ROW_INDENT = 8 };

/* --- width (screen_width.c) ------------------------------------------------------------------- */

/* Length without a bar at the end ("  ####"). */
int mf_screen_without_bar(const mf_screen_line *l);
/* Writes a line, folded to so many columns; returns how many lines it takes. out NULL: counts them
 * alone. */
int mf_screen_fold(FILE *out, const mf_screen_line *l, int columns, bool colour);
/* Tables wider than the screen move their columns together, and rows that are too wide all the same
 * go on below from one column on. drop and copies: as long as the whole text each. */
void mf_screen_fit_tables(mf_screen_line *l, int count, int columns, char *drop, char *copies);

bool mf_screen_begins(const mf_screen_line *l, const char *word);
/* Lines of one table follow each other, begin alike, and none of them is empty. What a row of
 * answers says at length goes on below it, further in. */
bool mf_screen_is_next_row(const mf_screen_line *first, const mf_screen_line *next);

/* --- length (screen_shorten.c) ---------------------------------------------------------------- */

/* Hides lines until no more than MF_SCREEN_LINES are left. */
void mf_screen_shorten(mf_screen_line *l, int count);

#endif
