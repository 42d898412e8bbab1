/* show.h - numbers and tables for people: the edge where SI units become text. */
#ifndef MF_REPORT_TEXT_SHOW_H
#define MF_REPORT_TEXT_SHOW_H

#include <stdbool.h>
#include <stdio.h>

/* A short text that lives in the caller's hand: printf("%s", mf_show_time(t).s). */
typedef struct mf_shown {
    char s[32];
} mf_shown;

mf_shown mf_show_time(double time_s);   /* "3.214 s" "12.4 ms" "8.21 us" */
mf_shown mf_show_bytes(double bytes);   /* decimal: "74.3 GB" "512 MB" "64 B" */
mf_shown mf_show_count(double n);       /* "671.0 B" as in billions: "671.0B" "14.7M" */
mf_shown mf_show_percent(double share); /* "41.2 %" */
mf_shown mf_show_rate(double per_s, const char *unit); /* "660 TFLOP/s": SI prefix + unit */
mf_shown mf_show_i64(long long n);                     /* "1,024" */

/* Is the first word of at[size] a unit, which should not be parted from its number? */
bool mf_show_is_unit(const char *at, size_t size);

/* Two blanks and a bar of up to `width` places for value of whole, in ASCII; nothing for nothing.
 */
void mf_show_bar(FILE *out, double value, double whole, int width);

/* The first column of a row: two blanks and `text`, padded to `width`. A longer text takes lines of
 * its own, broken behind blanks and commas, so that the columns behind it stay in line. */
void mf_show_name(FILE *out, const char *text, int width);

/* `text` wrapped to `width` columns with `indent` blanks before every line but the first (the
 * cursor stands at column `column`); '\n' begins a new line. Ends with a newline. */
void mf_show_wrap_at(FILE *out, const char *text, int column, int indent, int width);
/* The same to `width` columns or to those of the terminal, if it has fewer (report/text/screen.h).
 */
void mf_show_wrap(FILE *out, const char *text, int column, int indent, int width);

/* `text` as man pages hold it, and a newline: '-' is a minus, so that options can be copied from
 * the page; '\n' begins a new paragraph. */
void mf_show_roff(FILE *out, const char *text);

/* Of a run that has a deadline (timed), a budget (paid) or both: "misses the deadline", "keeps
 * both". */
const char *mf_show_limits_kept(bool timed, bool paid, bool in_time, bool in_budget);

#endif
