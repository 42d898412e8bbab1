/* screen_width.c - folds lines and tables that are wider than the screen. */
#include "report/text/screen_lines.h"

#include "report/text/show.h"

#include <ctype.h>
#include <string.h>

/* --- one line --------------------------------------------------------------------------------- */

int mf_screen_without_bar(const mf_screen_line *l) {
    int n = l->length;
    while (n > 0 && l->text[n - 1] == '#') {
        n--;
    }
    bool bar = n < l->length && n >= 2 && l->text[n - 1] == ' ' && l->text[n - 2] == ' ';
    while (bar && n > 0 && l->text[n - 1] == ' ') {
        n--;
    }
    return bar ? n : l->length;
}

/* The column where the rest of a line continues: after its label, if that has 12 to 14 columns, or
 * a little further in than the line began. */
static int hanging(const mf_screen_line *l, int columns) {
    int at = l->indent + 4;
    for (int end = 10; l->indent == 0 && end <= 12 && l->length > end + 2; end++) {
        const char *t = l->text + end;
        if (t[0] == ' ' && t[1] == ' ' && t[2] != ' ' && (end == 10 || t[-1] != ' ')) {
            at = end + 2;
        }
    }
    return at <= columns / 2 ? at : 4;
}

/* How much of the text fits into so many columns: up to the last gap between table columns in its
 * second half, else to the last blank that does not part a number from its unit. */
static int piece(const char *text, int length, int columns) {
    int blank = 0, gap = 0;
    if (length <= columns) {
        return length;
    }
    int begin = 0; /* behind the blanks that indent it: nothing is to stand alone in front */
    while (begin < length && text[begin] == ' ') {
        begin++;
    }
    for (int i = begin + 1; i <= columns; i++) {
        const bool parts = text[i] == ' ' && isdigit((unsigned char)text[i - 1]) != 0 &&
                           i + 1 < length &&
                           mf_show_is_unit(text + i + 1, (size_t)(length - i - 1));
        blank = text[i] == ' ' && !parts ? i : blank;
        gap = text[i] == ' ' && i + 1 < length && text[i + 1] == ' ' ? i : gap;
    }
    return gap > columns / 2 ? gap : blank > 0 ? blank : columns;
}

/* What stands out, wherever it stands. */
static const struct {
    const char *word, *style;
} standouts[] = {
    {"DOES NOT FIT", "\033[1;31m"},
    {"(does not fit)", "\033[31m"},
    {": fits,", "\033[32m"},
};
static const char bold[] = "\033[1m", plain[] = "\033[0m";

/* What begins here, or -1. */
static int standout_at(const char *text, int length) {
    for (size_t i = 0; i < sizeof standouts / sizeof standouts[0]; i++) {
        const int n = (int)strlen(standouts[i].word);
        if (n <= length && strncmp(text, standouts[i].word, (size_t)n) == 0) {
            return (int)i;
        }
    }
    return -1;
}

/* Part of a line, which is one of a verdict or of a front's rows, or none. */
static void write_coloured(FILE *out, const mf_screen_line *l, const char *text, int length) {
    if (l->kept || (l->text[0] == '*' && l->text[1] == ' ')) {
        fprintf(out, "%s%.*s%s", bold, length, text, plain);
        return;
    }
    for (int i = 0, n; i < length; i += n) {
        const int which = standout_at(text + i, length - i);
        n = which >= 0 ? (int)strlen(standouts[which].word) : 1;
        fprintf(out, "%s%.*s%s", which >= 0 ? standouts[which].style : "", n, text + i,
                which >= 0 ? plain : "");
    }
}

int mf_screen_fold(FILE *out, const mf_screen_line *l, int columns, bool colour) {
    const char *at = l->text;
    int left = l->length, indent = 0, height = 0;
    do {
        const bool aligned = height == 0 && l->wrap > 0 && left > columns;
        int n = aligned ? l->wrap : piece(at, left, columns - indent);
        int end = n;
        while (end > 0 && at[end - 1] == ' ') {
            end--;
        }
        if (out != NULL && colour && end > 0) {
            fprintf(out, "%*s", indent, "");
            write_coloured(out, l, at, end);
            putc('\n', out);
        } else if (out != NULL) {
            fprintf(out, "%*s%.*s\n", indent, "", end, at);
        }
        if (aligned) {
            n = l->rest < left ? l->rest : left;
        }
        at += n;
        left -= n;
        while (!aligned && left > 0 && *at == ' ') {
            at++;
            left--;
        }
        indent = hanging(l, columns);
        height++;
    } while (left > 0);
    return height;
}

/* --- tables ----------------------------------------------------------------------------------- */

bool mf_screen_begins(const mf_screen_line *l, const char *word) {
    return l->length - l->indent >= (int)strlen(word) &&
           strncmp(l->text + l->indent, word, strlen(word)) == 0;
}

/* Numbers at the beginning of rows have more or fewer digits. */
enum { ROW_DIGITS = 3 };

bool mf_screen_is_next_row(const mf_screen_line *first, const mf_screen_line *next) {
    const int more = next->indent - first->indent;
    const bool goes_on = first->worth == MF_SCREEN_ANSWER && first->indent > 0 &&
                         next->indent > MF_SCREEN_ROW_INDENT;
    return first->length > 0 && next->length > 0 && !next->kept && next->hidden == 0 &&
           (first->indent == 0 ? more == 0 : next->indent > 0) &&
           ((more <= ROW_DIGITS && more >= -ROW_DIGITS) || goes_on);
}

/* Writes a row without the columns that are marked. */
static int take_out(const mf_screen_line *l, const char *drop, char *out) {
    int n = 0;
    for (int c = 0; c < l->length; c++) {
        if (!drop[c]) {
            out[n++] = l->text[c];
        }
    }
    return n;
}

/* Takes columns out that are blank in every row, down to `gap` between two others, as far as the
 * widest row needs it. drop: space for its length. Returns how wide the table is then. */
static int narrow(const mf_screen_line *l, int rows, int width, int columns, int gap, char *drop) {
    int run = 0, left = width;
    bool begun = false;
    memset(drop, 0, (size_t)width + 1);
    for (int c = 0; c < width; c++) {
        bool blank = true;
        for (int i = 0; i < rows && blank; i++) {
            blank = c >= l[i].length || l[i].text[c] == ' ';
        }
        run = blank ? run + 1 : 0;
        begun |= !blank;
        if (begun && run > gap && left > columns) {
            drop[c] = 1;
            left--;
        }
    }
    return left;
}

/* Tables wider than the screen move their columns together: rows are copied to *copies. */
static void narrow_tables(mf_screen_line *l, int count, int columns, char *drop, char *copies) {
    for (int from = 0, to; from < count; from = to) {
        int width = l[from].length;
        for (to = from + 1; to < count && mf_screen_is_next_row(&l[from], &l[to]); to++) {
            width = l[to].length > width ? l[to].length : width;
        }
        if (width <= columns || to - from < 2 || l[from].indent == 0) {
            continue;
        }
        if (narrow(l + from, to - from, width, columns, 2, drop) > columns) {
            (void)narrow(l + from, to - from, width, columns, 1, drop);
        }
        for (int i = from; i < to; i++) {
            const int n = take_out(&l[i], drop, copies);
            l[i].text = copies;
            l[i].length = n;
            copies += n;
        }
    }
}

/* Whether a column is blank in every row. */
static bool is_gap(const mf_screen_line *l, int rows, int column) {
    for (int i = 0; i < rows; i++) {
        if (column < l[i].length && l[i].text[column] != ' ') {
            return false;
        }
    }
    return true;
}

/* Rows that are too wide all the same go on below from the same column on: the last gap of the
 * whole table that fits, in its second half. */
static void align_tables(mf_screen_line *l, int count, int columns) {
    for (int from = 0, to; from < count; from = to) {
        int width = l[from].length, at = columns;
        for (to = from + 1; to < count && mf_screen_is_next_row(&l[from], &l[to]); to++) {
            width = l[to].length > width ? l[to].length : width;
        }
        while (at > columns / 2 && !is_gap(l + from, to - from, at)) {
            at--;
        }
        if (width <= columns || to - from < 2 || l[from].indent == 0 || at <= columns / 2) {
            continue;
        }
        int rest = at;
        while (rest < width && is_gap(l + from, to - from, rest)) {
            rest++;
        }
        for (int i = from; i < to; i++) {
            l[i].wrap = at;
            l[i].rest = rest;
        }
    }
}

void mf_screen_fit_tables(mf_screen_line *l, int count, int columns, char *drop, char *copies) {
    narrow_tables(l, count, columns, drop, copies);
    align_tables(l, count, columns);
}
