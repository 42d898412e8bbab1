/* screen_shorten.c - which lines of a text that is longer than a screen are left out. */
#include "report/text/screen.h"
#include "report/text/screen_lines.h"

#include <string.h>

static bool is_detail(const mf_screen_line *l) {
    return l->worth == MF_SCREEN_DETAIL || l->worth == MF_SCREEN_NOTE;
}

/* Rows, with their heading, that a table of answers keeps, and where nothing else helps. */
enum { ANSWER_ROWS = 5, FEWEST_ANSWERS = 4 };

/* The longest table of more than `kept` + 1 rows, `answers` + 1 where it holds answers: its first
 * line, and in *end the one behind it; -1. */
static int longest(const mf_screen_line *l, int count, int kept, int answers, int *end) {
    int best = -1, most = 0;
    for (int from = 0, to; from < count; from = to) {
        to = from + 1;
        while (to < count && mf_screen_is_next_row(&l[from], &l[to])) {
            to++;
        }
        const int rows = l[from].worth == MF_SCREEN_ANSWER && kept < answers ? answers : kept;
        const bool row = l[from].indent <= MF_SCREEN_ROW_INDENT || is_detail(&l[from]);
        if (to - from > rows + 1 && to - from > most && l[from].hidden == 0 && !l[from].kept &&
            row && (kept > 2 || l[from].indent > 0)) {
            most = to - from;
            best = from;
            *end = to;
        }
    }
    return best;
}

static void hide(mf_screen_line *l, int from, int end) {
    for (int i = from; i < end; i++) {
        l[i].hidden = end - i;
    }
}

/* Lines on the screen that line `at` takes: lines left out together take one. */
static int height_of(const mf_screen_line *l, int at) {
    return l[at].hidden == 0 ? l[at].height : at == 0 || l[at - 1].hidden == 0;
}

/* Lines on the screen. */
static int total(const mf_screen_line *l, int count) {
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
static int resume_at(const mf_screen_line *l, int count, int at, int *freed) {
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
static void hide_middle(mf_screen_line *l, int count) {
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

static bool ends_sentence(const mf_screen_line *l) {
    return l->length > 0 && l->text[l->length - 1] == '.';
}

/* Notes, whole sentences at a time, down to their first line. */
static void hide_notes(mf_screen_line *l, int count) {
    for (int at = count - 1; at > 0; at--) {
        const bool note =
            l[at].worth == MF_SCREEN_NOTE && l[at - 1].worth == MF_SCREEN_NOTE && l[at].length > 0;
        const bool begun = at + 1 < count && l[at + 1].hidden > 0 && !ends_sentence(&l[at]);
        if (note && (begun || total(l, count) > MF_SCREEN_LINES)) {
            hide(l, at, at + 1);
        }
    }
}

/* Where one verdict on all ends the text, verdicts of its parts, the last of them first; `whole`:
 * and the tables above them, in the same paragraph. */
static void hide_parts(mf_screen_line *l, int count, bool whole) {
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
static bool goes_on(const mf_screen_line *before, const mf_screen_line *l) {
    const char *word = l->text + l->indent;
    return before->length + 1 + (int)strcspn(word, " \n") > SENTENCE;
}

/* Of a verdict of several offers, each below a label, what is said of them but which they are: the
 * last of them first. */
static void hide_reasons(mf_screen_line *l, int count) {
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
static void hide_details(mf_screen_line *l, int count, bool whole) {
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
static void hide_paragraphs(mf_screen_line *l, int count) {
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
            answer |= l[i].worth == MF_SCREEN_ANSWER || l[i].kept;
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
static int end_of_table(const mf_screen_line *l, int count, int at) {
    int end = at + 1;
    const bool title = at > 0 && l[at - 1].length == 0 && l[at].length > 0 && l[at].indent == 0;
    while (title && end < count && l[end].length > 0 && l[end].indent > 0) {
        end++;
    }
    return title && end > at + 1 && (end == count || l[end].length == 0) ? end : 0;
}

/* What a label says, with its label, the last of them first; of what begins the text all but the
 * first line. Answers, titles of tables and verdicts stay. */
static void hide_labels(mf_screen_line *l, int count) {
    for (int end = count, from; end > 0 && total(l, count) > MF_SCREEN_LINES; end = from) {
        from = end - 1;
        while (from > 0 && l[from].indent > 0 && l[from - 1].length > 0) {
            from--;
        }
        bool stays = l[from].length == 0 || end_of_table(l, count, from) > 0;
        for (int i = from; i < end; i++) {
            stays |= l[i].worth == MF_SCREEN_ANSWER || l[i].kept;
        }
        if (!stays && end > from + (from == 0)) {
            hide(l, from + (from == 0), end);
        }
    }
}

/* Rows without a mark ("* row") of a table that has some with it, the last of them first. False:
 * none has one, or all. */
static bool hide_unmarked(mf_screen_line *l, int from, int end, int count) {
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
static void hide_rows(mf_screen_line *l, int count, int kept, int answers) {
    int end = 0, from;
    while (total(l, count) > MF_SCREEN_LINES &&
           (from = longest(l, count, kept, answers, &end)) >= 0) {
        const int least =
            from + (l[from].worth == MF_SCREEN_ANSWER && kept < answers ? answers : kept);
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
static void show_again(mf_screen_line *l, int count, int from, int end) {
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
static void fill_up(mf_screen_line *l, int count, mf_screen_worth w) {
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
static void hide_bare_titles(mf_screen_line *l, int count, bool join) {
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
void mf_screen_shorten(mf_screen_line *l, int count) {
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
        fill_up(l, count, MF_SCREEN_ANSWER);
        fill_up(l, count, MF_SCREEN_PLAIN);
        fill_up(l, count, MF_SCREEN_DETAIL);
    }
    hide_bare_titles(l, count, true);
}
