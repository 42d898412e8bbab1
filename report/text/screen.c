/* screen.c - a text as a screen shows it: its lines, what each is read for, and what is left out.
 */
#include "report/text/screen.h"

#include "report/text/screen_lines.h"

#include <stdlib.h>
#include <string.h>

int mf_screen_columns(int otherwise) {
    const char *text = getenv("COLUMNS");
    char *end = NULL;
    long n = text != NULL ? strtol(text, &end, 10) : 0;
    return n >= MF_SCREEN_LEAST && n <= 10000 && *end == '\0' ? (int)n : otherwise;
}

static const struct {
    const char *begins;
    mf_screen_worth worth;
    bool whole; /* as far as the next empty line, not only lines further in */
} paragraphs[] = {
    {"what would", MF_SCREEN_ANSWER, false},    {"plans", MF_SCREEN_ANSWER, false},
    {"the fastest", MF_SCREEN_ANSWER, false},   {"what the ops", MF_SCREEN_DETAIL, false},
    {"its costliest", MF_SCREEN_DETAIL, false}, {"left out", MF_SCREEN_DETAIL, false},
    {"FLOPs as ", MF_SCREEN_DETAIL, false},     {"cluster  ", MF_SCREEN_ANSWER, false},
    {"Every plan is ", MF_SCREEN_NOTE, true},   {"Plans are proven ", MF_SCREEN_NOTE, true},
    {"No plan is ", MF_SCREEN_NOTE, true},      {"op by op", MF_SCREEN_ANSWER, false},
    {"every row", MF_SCREEN_ANSWER, false},     {"cluster GPUs", MF_SCREEN_ANSWER, false},
    {"not read ", MF_SCREEN_STAYS, false},      {"launches ", MF_SCREEN_STAYS, false},
};

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

static mf_screen_worth worth_of(const mf_screen_line *l, bool *whole) {
    for (size_t i = 0; i < sizeof paragraphs / sizeof paragraphs[0]; i++) {
        if (mf_screen_begins(l, paragraphs[i].begins)) {
            *whole = paragraphs[i].whole;
            return paragraphs[i].worth;
        }
    }
    return MF_SCREEN_PLAIN;
}

enum { MOST_STAY = 5 }; /* lines of a label that are always shown; its others are details */

/* drop and copies: as in mf_screen_fit_tables. */
static void read_lines(const char *text, mf_screen_line *l, int count, int columns, char *drop,
                       char *copies) {
    bool wide = false, verdict = false, whole = false;
    mf_screen_worth now = MF_SCREEN_PLAIN;
    int stays = 0;
    for (int i = 0; i < count; i++) {
        const char *end = strchr(text, '\n');
        const size_t length = end != NULL ? (size_t)(end - text) : strlen(text);
        l[i] = (mf_screen_line){.text = text, .length = (int)length};
        l[i].indent = indent_of(text);
        verdict = length > 0 && (verdict || mf_screen_begins(&l[i], "verdict"));
        whole = whole && length > 0;
        if (!whole) {
            const mf_screen_worth own = length > 0 ? worth_of(&l[i], &whole) : MF_SCREEN_PLAIN;
            now = length == 0 || l[i].indent == 0 || own != MF_SCREEN_PLAIN ? own : now;
        }
        stays = now == MF_SCREEN_STAYS ? stays + 1 : 0;
        l[i].worth = stays > MOST_STAY ? MF_SCREEN_DETAIL : now;
        l[i].kept = verdict || l[i].worth == MF_SCREEN_STAYS;
        wide |= l[i].length > columns && mf_screen_without_bar(&l[i]) < l[i].length;
        text += length + (end != NULL);
    }
    for (int i = 0; i < count; i++) {
        l[i].length = wide ? mf_screen_without_bar(&l[i]) : l[i].length;
    }
    mf_screen_fit_tables(l, count, columns, drop, copies);
    for (int i = 0; i < count; i++) {
        l[i].height = mf_screen_fold(NULL, &l[i], columns, false);
    }
}

mf_status mf_screen_write(FILE *out, const char *text, const mf_screen *how, mf_err *e) {
    const int count = count_lines(text);
    const size_t size = strlen(text) + 1;
    mf_screen_line *l = calloc((size_t)count + 1, sizeof *l);
    char *drop = malloc(size), *copies = malloc(size);
    if (l == NULL || drop == NULL || copies == NULL) {
        free(l);
        free(drop);
        free(copies);
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    read_lines(text, l, count, how->columns, drop, copies);
    if (!how->all) {
        mf_screen_shorten(l, count);
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
            (void)mf_screen_fold(out, &l[i], how->columns, how->colour);
        }
    }
    free(l);
    free(drop);
    free(copies);
    return MF_OK;
}
