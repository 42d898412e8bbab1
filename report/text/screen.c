/* screen.c - folds lines that are too wide, and leaves out rows of long tables. */
#include "report/text/screen.h"

#include "report/text/show.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

int mf_screen_columns(int otherwise) {
    const char *text = getenv("COLUMNS");
    char *end = NULL;
    long n = text != NULL ? strtol(text, &end, 10) : 0;
    return n >= MF_SCREEN_LEAST && n <= 10000 && *end == '\0' ? (int)n : otherwise;
}

/* Why one reads a paragraph. */
typedef enum worth {
    PLAIN,
    DETAIL, /* whoever wants it asks with -v */
    NOTE,   /* words about a table, which makes way before its rows do */
    ANSWER, /* plans and remedies: the output is read for them */
    STAYS,  /* without it a verdict would mislead: what of a job was not read */
} worth;

static const struct {
    const char *begins;
    worth worth;
    bool whole; /* as far as the next empty line, not only lines further in */
} paragraphs[] = {
    {"what would", ANSWER, false},    {"plans", ANSWER, false},
    {"the fastest", ANSWER, false},   {"what the ops", DETAIL, false},
    {"its costliest", DETAIL, false}, {"left out", DETAIL, false},
    {"FLOPs as ", DETAIL, false},     {"cluster  ", ANSWER, false},
    {"Every plan is ", NOTE, true},   {"Plans are proven ", NOTE, true},
    {"No plan is ", NOTE, true},      {"op by op", ANSWER, false},
    {"every row", ANSWER, false},     {"cluster GPUs", ANSWER, false},
    {"not read ", STAYS, false},      {"launches ", STAYS, false},
};

typedef struct line {
    const char *text;
    int length, indent;
    int height; /* lines that it takes */
    int wrap;   /* where a row goes on below, as all rows of its table; 0: where it fits */
    int rest;   /* and the first column of what stands there */
    int hidden; /* number of lines left out from here on; 0: this one is shown */
    bool kept;  /* part of a verdict, or of what stays beside it: no row of a table */
    worth worth;
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

/* The column where the rest of a line continues: after its label, if that has 12 to 14 columns, or
 * a little further in than the line began. */
static int hanging(const line *l, int columns) {
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
static void write_coloured(FILE *out, const line *l, const char *text, int length) {
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

/* Returns how many lines it takes; out NULL: counts them alone. */
static int fold(FILE *out, const line *l, int columns, bool colour) {
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

/* Rows begin so far in at most; further in stands text that goes on. */
enum { ROW_INDENT = 8 };
/* Numbers at the beginning of rows have more or fewer digits. */
enum { ROW_DIGITS = 3 };

/* Lines of one table follow each other, begin alike, and none of them is empty. What a row of
 * answers says at length goes on below it, further in. */
static bool is_next_row(const line *first, const line *next) {
    const int more = next->indent - first->indent;
    const bool goes_on = first->worth == ANSWER && first->indent > 0 && next->indent > ROW_INDENT;
    return first->length > 0 && next->length > 0 && !next->kept && next->hidden == 0 &&
           (first->indent == 0 ? more == 0 : next->indent > 0) &&
           ((more <= ROW_DIGITS && more >= -ROW_DIGITS) || goes_on);
}

/* Writes a row without the columns that are marked. */
static int take_out(const line *l, const char *drop, char *out) {
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
static int narrow(const line *l, int rows, int width, int columns, int gap, char *drop) {
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
static void narrow_tables(line *l, int count, int columns, char *drop, char *copies) {
    for (int from = 0, to; from < count; from = to) {
        int width = l[from].length;
        for (to = from + 1; to < count && is_next_row(&l[from], &l[to]); to++) {
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
static bool is_gap(const line *l, int rows, int column) {
    for (int i = 0; i < rows; i++) {
        if (column < l[i].length && l[i].text[column] != ' ') {
            return false;
        }
    }
    return true;
}

/* Rows that are too wide all the same go on below from the same column on: the last gap of the
 * whole table that fits, in its second half. */
static void align_tables(line *l, int count, int columns) {
    for (int from = 0, to; from < count; from = to) {
        int width = l[from].length, at = columns;
        for (to = from + 1; to < count && is_next_row(&l[from], &l[to]); to++) {
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

static worth worth_of(const line *l, bool *whole) {
    for (size_t i = 0; i < sizeof paragraphs / sizeof paragraphs[0]; i++) {
        if (begins(l, paragraphs[i].begins)) {
            *whole = paragraphs[i].whole;
            return paragraphs[i].worth;
        }
    }
    return PLAIN;
}

static bool is_detail(const line *l) {
    return l->worth == DETAIL || l->worth == NOTE;
}

enum { MOST_STAY = 5 }; /* lines of a label that are always shown; its others are details */

/* drop and copies: as long as the text each. */
static void read_lines(const char *text, line *l, int count, int columns, char *drop,
                       char *copies) {
    bool wide = false, verdict = false, whole = false;
    worth now = PLAIN;
    int stays = 0;
    for (int i = 0; i < count; i++) {
        const char *end = strchr(text, '\n');
        const size_t length = end != NULL ? (size_t)(end - text) : strlen(text);
        l[i] = (line){.text = text, .length = (int)length};
        l[i].indent = indent_of(text);
        verdict = length > 0 && (verdict || begins(&l[i], "verdict"));
        whole = whole && length > 0;
        if (!whole) {
            const worth own = length > 0 ? worth_of(&l[i], &whole) : PLAIN;
            now = length == 0 || l[i].indent == 0 || own != PLAIN ? own : now;
        }
        stays = now == STAYS ? stays + 1 : 0;
        l[i].worth = stays > MOST_STAY ? DETAIL : now;
        l[i].kept = verdict || l[i].worth == STAYS;
        wide |= l[i].length > columns && without_bar(&l[i]) < l[i].length;
        text += length + (end != NULL);
    }
    for (int i = 0; i < count; i++) {
        l[i].length = wide ? without_bar(&l[i]) : l[i].length;
    }
    narrow_tables(l, count, columns, drop, copies);
    align_tables(l, count, columns);
    for (int i = 0; i < count; i++) {
        l[i].height = fold(NULL, &l[i], columns, false);
    }
}

/* Rows, with their heading, that a table of answers keeps, and where nothing else helps. */
enum { ANSWER_ROWS = 5, FEWEST_ANSWERS = 4 };

/* The longest table of more than `kept` + 1 rows, `answers` + 1 where it holds answers: its first
 * line, and in *end the one behind it; -1. */
static int longest(const line *l, int count, int kept, int answers, int *end) {
    int best = -1, most = 0;
    for (int from = 0, to; from < count; from = to) {
        to = from + 1;
        while (to < count && is_next_row(&l[from], &l[to])) {
            to++;
        }
        const int rows = l[from].worth == ANSWER && kept < answers ? answers : kept;
        const bool row = l[from].indent <= ROW_INDENT || is_detail(&l[from]);
        if (to - from > rows + 1 && to - from > most && l[from].hidden == 0 && !l[from].kept &&
            row && (kept > 2 || l[from].indent > 0)) {
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

/* Lines on the screen that line `at` takes: lines left out together take one. */
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
    while (first < count && head + height_of(l, first) <= HEAD) {
        head += height_of(l, first++);
    }
    while (end > first && tail + height_of(l, end - 1) < MF_SCREEN_LINES - head) {
        tail += height_of(l, --end);
    }
    int title = end, freed = 0;
    while (title > first && l[title - 1].length > 0) {
        title--;
    }
    int resume = resume_at(l, count, end, &freed);
    if (title > first && title < end && l[title].hidden == 0 && l[title].height == 1 &&
        resume < count && l[resume].length > 0) {
        while (freed < 2 && first > 0) {
            freed += height_of(l, --first);
        }
        while (freed < 2 && resume < count) {
            freed += height_of(l, resume++);
        }
        hide(l, first, title);
        hide(l, title + 1, resume);
    } else {
        hide(l, first, end);
    }
}

static bool ends_sentence(const line *l) {
    return l->length > 0 && l->text[l->length - 1] == '.';
}

/* Notes, whole sentences at a time, down to their first line. */
static void hide_notes(line *l, int count) {
    for (int at = count - 1; at > 0; at--) {
        const bool note = l[at].worth == NOTE && l[at - 1].worth == NOTE && l[at].length > 0;
        const bool begun = at + 1 < count && l[at + 1].hidden > 0 && !ends_sentence(&l[at]);
        if (note && (begun || total(l, count) > MF_SCREEN_LINES)) {
            hide(l, at, at + 1);
        }
    }
}

/* Where one verdict on all ends the text, verdicts of its parts, the last of them first; `whole`:
 * and the tables above them, in the same paragraph. */
static void hide_parts(line *l, int count, bool whole) {
    int end = count;
    while (end > 0 && !(l[end - 1].kept && l[end - 1].indent == 0)) {
        end--;
    }
    for (int from; end > 0 && total(l, count) > MF_SCREEN_LINES; end = from) {
        from = end - 1;
        while (from > 0 && l[from].kept && l[from - 1].kept) {
            from--;
        }
        if (!l[from].kept || l[from].indent == 0) {
            continue;
        }
        while (whole && from > 0 && l[from].length > 0) { /* with the empty line above */
            from--;
        }
        hide(l, from, end);
    }
}

/* As wide as commands write their sentences. */
enum { SENTENCE = 99 };

/* Whether a sentence did not end on the line before, as its next word had no space there. */
static bool goes_on(const line *before, const line *l) {
    const char *word = l->text + l->indent;
    return before->length + 1 + (int)strcspn(word, " \n") > SENTENCE;
}

/* Of a verdict of several offers, each below a label, what is said of them but which they are: the
 * last of them first. */
static void hide_reasons(line *l, int count) {
    for (int end = count, at; end > 0 && total(l, count) > MF_SCREEN_LINES; end = at) {
        at = end - 1;
        if (!l[at].kept || l[at].indent == 0) {
            continue;
        }
        while (at > 0 && l[at].kept && l[at].indent > 2) {
            at--;
        }
        const char *label = l[at].text + l[at].indent, *gap = strstr(label, "  ");
        const bool beside = gap != NULL && gap < l[at].text + l[at].length;
        int from = at + (beside ? 1 : 2);
        while (from < end && goes_on(&l[from - 1], &l[from])) {
            from++;
        }
        if (l[at].kept && l[at].indent == 2 && end - from > 1) {
            hide(l, from, end);
        }
    }
}

/* Details, the last of them first, each down to its title; `whole`: and that. */
static void hide_details(line *l, int count, bool whole) {
    for (int end = count, from; end > 0 && total(l, count) > MF_SCREEN_LINES; end = from) {
        from = end - 1;
        if (!is_detail(&l[from]) || (l[from].indent == 0 && !whole)) {
            continue;
        }
        while (from > 0 && is_detail(&l[from - 1]) && (l[from - 1].indent > 0 || whole)) {
            from--;
        }
        int first = end - 1;
        do {
            hide(l, first, end);
        } while (--first >= from && (whole || total(l, count) > MF_SCREEN_LINES));
    }
}

/* Paragraphs that nothing is read for but themselves, the last of them first: neither answers, nor
 * what stands in front of all, nor what ends it. */
static void hide_paragraphs(line *l, int count) {
    int end = count, from;
    while (end > 0 && l[end - 1].length > 0) {
        end--;
    }
    for (; end > 0 && total(l, count) > MF_SCREEN_LINES; end = from) {
        bool answer = false;
        /* In front of a verdict a line stays empty. */
        const int last = end < count && l[end].kept ? end - 1 : end;
        for (from = end - 1; from > 0 && l[from - 1].length > 0; from--) {
        }
        for (int i = from; i < end; i++) {
            answer |= l[i].worth == ANSWER || l[i].kept;
        }
        int first = from;
        for (int i = 0, height = 0; i < end && height <= HEAD; i++) {
            height += l[i].height;
            first = i >= first ? i + 1 : first;
        }
        if (!answer && first < last) {
            hide(l, first, last);
        }
    }
}

/* The end of a paragraph that begins with a title above a table; 0: it is none. */
static int end_of_table(const line *l, int count, int at) {
    int end = at + 1;
    const bool title = at > 0 && l[at - 1].length == 0 && l[at].length > 0 && l[at].indent == 0;
    while (title && end < count && l[end].length > 0 && l[end].indent > 0) {
        end++;
    }
    return title && end > at + 1 && (end == count || l[end].length == 0) ? end : 0;
}

/* What a label says, with its label, the last of them first; of what begins the text all but the
 * first line. Answers, titles of tables and verdicts stay. */
static void hide_labels(line *l, int count) {
    for (int end = count, from; end > 0 && total(l, count) > MF_SCREEN_LINES; end = from) {
        from = end - 1;
        while (from > 0 && l[from].indent > 0 && l[from - 1].length > 0) {
            from--;
        }
        bool stays = l[from].length == 0 || end_of_table(l, count, from) > 0;
        for (int i = from; i < end; i++) {
            stays |= l[i].worth == ANSWER || l[i].kept;
        }
        if (!stays && end > from + (from == 0)) {
            hide(l, from + (from == 0), end);
        }
    }
}

/* Rows without a mark ("* row") of a table that has some with it, the last of them first. False:
 * none has one, or all. */
static bool hide_unmarked(line *l, int from, int end, int count) {
    bool marks = false, hidden = false;
    for (int i = from + 1; i < end; i++) {
        marks |= l[i].text[0] == '*';
    }
    for (int i = end - 1; marks && i > from && total(l, count) > MF_SCREEN_LINES; i--) {
        if (l[i].text[0] != '*') {
            hide(l, i, i + 1);
            hidden = true;
        }
    }
    return hidden;
}

/* The last rows of the longest tables, which keep so many. */
static void hide_rows(line *l, int count, int kept, int answers) {
    int end = 0, from;
    while (total(l, count) > MF_SCREEN_LINES &&
           (from = longest(l, count, kept, answers, &end)) >= 0) {
        const int least = from + (l[from].worth == ANSWER && kept < answers ? answers : kept);
        int first = end - 1;
        if (hide_unmarked(l, from, end, count)) {
            continue;
        }
        do {
            hide(l, --first, end);
        } while (first > least && total(l, count) > MF_SCREEN_LINES);
    }
}

/* Shows lines [from, end) again, or of rows as many as there is space for, two at least, if rows go
 * on below. */
static void show_again(line *l, int count, int from, int end) {
    int last = end;
    for (int i = from; i < end; i++) {
        l[i].hidden = 0;
    }
    while (last > from && total(l, count) > MF_SCREEN_LINES) {
        last--;
        l[last].hidden = 1;
    }
    if (last < end && (l[from].indent == 0 || last - from < 2)) {
        hide(l, from, end);
    }
}

/* What was left out step by step may leave space: it goes to what has such a worth, from the top.
 */
static void fill_up(line *l, int count, worth w) {
    for (int from = 0, end; from < count; from = end) {
        end = from + 1;
        if (l[from].hidden == 0) {
            continue;
        }
        while (end < count && l[end].hidden > 0) {
            end++;
        }
        if (l[from].worth == w) {
            show_again(l, count, from, end);
        }
    }
}

/* A title goes with its table when no row of that is left. `join`: what is left
 * out on both sides of an empty line is counted together, unless it begins with rows of a table
 * that has others. */
static void hide_bare_titles(line *l, int count, bool join) {
    for (int at = 1; at < count; at++) {
        const int end = l[at].hidden == 0 && !l[at].kept ? end_of_table(l, count, at) : 0;
        bool bare = end > 0;
        for (int i = at + 1; i < end; i++) {
            bare = bare && l[i].hidden > 0;
        }
        if (bare) {
            hide(l, at, end);
        }
    }
    for (int i = 1, first = 0; join && i + 1 < count; i++) {
        first = l[i].hidden > 0 && l[i - 1].hidden == 0 ? i : first;
        if (l[i].length == 0 && l[i - 1].hidden > 0 && l[i + 1].hidden > 0 &&
            l[first].indent == 0) {
            hide(l, i, i + 1);
        }
    }
}

/* Leaves lines out until no more than MF_SCREEN_LINES are left: of notes, then verdicts of parts,
 * then of the longest tables at first, then of details, then of all tables, then whole details,
 * paragraphs and labels, then tables of parts, then what verdicts say of their offers, then what
 * stands in the middle. */
static void shorten(line *l, int count) {
    static const int keep[] = {8, 5, 2, 0};
    hide_notes(l, count);
    hide_parts(l, count, false);
    for (int k = 0; k < 4; k++) {
        hide_rows(l, count, keep[k], ANSWER_ROWS);
        if (k <= 1) {
            hide_details(l, count, k == 1);
        }
    }
    hide_paragraphs(l, count);
    hide_labels(l, count);
    hide_rows(l, count, 0, FEWEST_ANSWERS);
    hide_parts(l, count, true);
    hide_reasons(l, count);
    if (total(l, count) > MF_SCREEN_LINES) {
        hide_middle(l, count);
    }
    hide_bare_titles(l, count, false);
    if (total(l, count) < MF_SCREEN_LINES) {
        fill_up(l, count, ANSWER);
        fill_up(l, count, PLAIN);
        fill_up(l, count, DETAIL);
    }
    hide_bare_titles(l, count, true);
}

mf_status mf_screen_write(FILE *out, const char *text, const mf_screen *how, mf_err *e) {
    const int count = count_lines(text);
    const size_t size = strlen(text) + 1;
    line *l = calloc((size_t)count + 1, sizeof *l);
    char *drop = malloc(size), *copies = malloc(size);
    if (l == NULL || drop == NULL || copies == NULL) {
        free(l);
        free(drop);
        free(copies);
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    read_lines(text, l, count, how->columns, drop, copies);
    if (!how->all) {
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
            (void)fold(out, &l[i], how->columns, how->colour);
        }
    }
    free(l);
    free(drop);
    free(copies);
    return MF_OK;
}
