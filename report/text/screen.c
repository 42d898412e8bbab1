/* screen.c - folds lines that are too wide, and leaves out rows of long tables. */
#include "report/text/screen.h"

#include <stdlib.h>
#include <string.h>

int mf_screen_columns(int otherwise) {
    const char *text = getenv("COLUMNS");
    char *end = NULL;
    long n = text != NULL ? strtol(text, &end, 10) : 0;
    return n >= MF_SCREEN_LEAST && n <= 10000 && *end == '\0' ? (int)n : otherwise;
}

typedef struct line {
    const char *text;
    int length, indent;
    int height; /* lines that it takes */
    int hidden; /* number of lines left out from here on; 0: this one is shown */
    bool kept;  /* part of a verdict, not a row of a table */
    bool remedy;
} line;

/* --- one line --------------------------------------------------------------------------------- */

/* Length without a bar at the end ("  ####"). */
static int without_bar(const line *l) {
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

/* The column where the rest of a line continues: after its label, if that has 12 columns, or a
 * little further in than the line began. */
static int hanging(const line *l, int columns) {
    bool label = l->indent == 0 && l->length > 12 && l->text[10] == ' ' && l->text[11] == ' ' &&
                 l->text[12] != ' ';
    const int at = label ? 12 : l->indent + 4;
    return at <= columns / 2 ? at : 4;
}

/* How much of the text fits into so many columns: up to the last gap between table columns in its
 * second half, else to the last blank. */
static int piece(const char *text, int length, int columns) {
    int blank = 0, gap = 0;
    if (length <= columns) {
        return length;
    }
    for (int i = 1; i <= columns; i++) {
        blank = text[i] == ' ' ? i : blank;
        gap = text[i] == ' ' && i + 1 < length && text[i + 1] == ' ' ? i : gap;
    }
    return gap > columns / 2 ? gap : blank > 0 ? blank : columns;
}

/* Returns how many lines it takes; out NULL: counts them alone. */
static int fold(FILE *out, const line *l, int columns) {
    const char *at = l->text;
    int left = l->length, indent = 0, height = 0;
    do {
        int n = piece(at, left, columns - indent);
        int end = n;
        while (end > 0 && at[end - 1] == ' ') {
            end--;
        }
        if (out != NULL) {
            fprintf(out, "%*s%.*s\n", indent, "", end, at);
        }
        at += n;
        left -= n;
        while (left > 0 && *at == ' ') {
            at++;
            left--;
        }
        indent = hanging(l, columns);
        height++;
    } while (left > 0);
    return height;
}

/* --- all of them ------------------------------------------------------------------------------ */

static int count_lines(const char *text) {
    int n = 0;
    for (const char *p = text; *p != '\0'; p++) {
        n += *p == '\n' || p[1] == '\0';
    }
    return n;
}

/* Leading blanks; a mark in the first column ("* row") counts as one. */
static int indent_of(const char *text) {
    const bool marked = (text[0] == '*' || text[0] == '!') && text[1] == ' ';
    return (int)strspn(text + marked, " ") + marked;
}

static bool begins(const line *l, const char *word) {
    return l->length - l->indent >= (int)strlen(word) &&
           strncmp(l->text + l->indent, word, strlen(word)) == 0;
}

static void cut(const char *text, line *l, int count, int columns) {
    bool wide = false, verdict = false, remedy = false;
    for (int i = 0; i < count; i++) {
        const char *end = strchr(text, '\n');
        const size_t length = end != NULL ? (size_t)(end - text) : strlen(text);
        l[i] = (line){.text = text, .length = (int)length};
        l[i].indent = indent_of(text);
        verdict = length > 0 && (verdict || begins(&l[i], "verdict"));
        l[i].kept = verdict;
        remedy = length > 0 && (remedy || begins(&l[i], "what would"));
        l[i].remedy = remedy;
        wide |= l[i].length > columns && without_bar(&l[i]) < l[i].length;
        text += length + (end != NULL);
    }
    for (int i = 0; i < count; i++) {
        l[i].length = wide ? without_bar(&l[i]) : l[i].length;
        l[i].height = fold(NULL, &l[i], columns);
    }
}

/* Rows are indented by at most so much; lines further in continue a text. */
enum { ROW_INDENT = 8 };
/* Rows, with their heading, that are always kept of a table of remedies, which people read the
 * output for. */
enum { REMEDY_ROWS = 5 };

/* The longest table (lines in a row that begin alike, none of them empty) of more than `kept` + 1
 * rows: its first line, and in *end the one behind it; -1. */
static int longest(const line *l, int count, int kept, int *end) {
    int best = -1, most = 0;
    for (int from = 0, to; from < count; from = to) {
        to = from + 1;
        while (to < count && l[from].length > 0 && l[to].length > 0 && !l[to].kept &&
               l[to].indent == l[from].indent && l[to].hidden == 0) {
            to++;
        }
        const int rows = l[from].remedy && kept < REMEDY_ROWS ? REMEDY_ROWS : kept;
        if (to - from > rows + 1 && to - from > most && l[from].hidden == 0 && !l[from].kept &&
            l[from].indent <= ROW_INDENT && (kept > 0 || l[from].indent > 0)) {
            most = to - from;
            best = from;
            *end = to;
        }
    }
    return best;
}

static void hide(line *l, int from, int end) {
    for (int i = from; i < end; i++) {
        l[i].hidden = end - i;
    }
}

/* Lines on the screen for line `at`: those left out together take one. */
static int height_of(const line *l, int at) {
    return l[at].hidden == 0 ? l[at].height : at == 0 || l[at - 1].hidden == 0;
}

/* Lines on the screen. */
static int total(const line *l, int count) {
    int n = 0;
    for (int i = 0; i < count; i++) {
        n += height_of(l, i);
    }
    return n;
}

/* The most lines at the top that are always shown. */
enum { HEAD = 14 };

/* Where a paragraph continues when the rows before `at` are left out: at its verdict, if it has
 * one, else two lines further down, as its title and the line with the count take two. */
static int resume_at(const line *l, int count, int at, int *freed) {
    int verdict = at, end;
    while (verdict < count && l[verdict].length > 0 && !l[verdict].kept) {
        verdict++;
    }
    const bool has = verdict < count && l[verdict].kept;
    for (end = at, *freed = 0; has ? end < verdict : end < verdict && *freed < 2; end++) {
        *freed += height_of(l, end);
    }
    return end;
}

/* Hides lines in the middle, neither the beginning nor the end, where the verdict is. A paragraph
 * that is divided keeps its title. */
static void hide_middle(line *l, int count) {
    int first = 0, end = count, head = 0, tail = 0;
    while (first < count && l[first].hidden == 0 && head + l[first].height <= HEAD) {
        head += l[first++].height;
    }
    while (end > first && tail + height_of(l, end - 1) < MF_SCREEN_LINES - head) {
        tail += height_of(l, --end);
    }
    int title = end, freed = 0;
    while (title > first && l[title - 1].length > 0) {
        title--;
    }
    const int resume = resume_at(l, count, end, &freed);
    if (title > first && title < end && l[title].hidden == 0 && l[title].height == 1 &&
        resume < count && l[resume].length > 0) {
        while (freed < 2 && first > 0) {
            freed += l[--first].height;
        }
        hide(l, first, title);
        hide(l, title + 1, resume);
    } else {
        hide(l, first, end);
    }
}

/* Leaves lines out until at most MF_SCREEN_LINES are left: first rows of the longest tables, then
 * lines in the middle. */
static void shorten(line *l, int count) {
    static const int keep[] = {5, 2, 0};
    int end = 0, from;
    for (int k = 0; k < 3; k++) {
        while (total(l, count) > MF_SCREEN_LINES &&
               (from = longest(l, count, keep[k], &end)) >= 0) {
            int first = end - 1;
            do {
                hide(l, --first, end);
            } while (first > from + keep[k] && total(l, count) > MF_SCREEN_LINES);
        }
    }
    if (total(l, count) > MF_SCREEN_LINES) {
        hide_middle(l, count);
    }
}

mf_status mf_screen_write(FILE *out, const char *text, int columns, bool all, mf_err *e) {
    const int count = count_lines(text);
    line *l = calloc((size_t)count + 1, sizeof *l);
    if (l == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    cut(text, l, count, columns);
    if (!all) {
        shorten(l, count);
    }
    for (int i = 0; i < count; i++) {
        if (l[i].hidden > 0) {
            int n = l[i].hidden;
            while (i + n < count && l[i + n].hidden > 0) {
                n += l[i + n].hidden;
            }
            fprintf(out, "%*s... %d more (-v)\n", l[i].indent, "", n);
            i += n - 1;
        } else {
            (void)fold(out, &l[i], columns);
        }
    }
    free(l);
    return MF_OK;
}
