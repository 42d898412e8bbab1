/* Text on a terminal: no line is wider, no word is lost, no more lines than asked for, and what is
 * left out is counted. Random texts beside those that were written for it. */
#include "report/text/screen.h"
#include "report/text/show.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

static char *shown_as(const char *text, mf_screen how) {
    char *out = NULL;
    size_t size;
    FILE *f = open_memstream(&out, &size);
    assert_non_null(f);
    assert_ok(mf_screen_write(f, text, &how, NULL));
    fclose(f);
    return out;
}

static char *shown(const char *text, int columns, bool all) {
    return shown_as(text, (mf_screen){.columns = columns, .all = all});
}

/* Lines, the widest of them, and how many were left out by what they say. */
typedef struct shape {
    int lines, widest, left_out;
} shape;

static shape shape_of(const char *text) {
    shape s = {0, 0, 0};
    for (const char *p = text; *p != '\0'; s.lines++) {
        const int length = (int)strcspn(p, "\n");
        int n = 0;
        s.widest = length > s.widest ? length : s.widest;
        s.left_out += sscanf(p, " ... %d more (-v)", &n) == 1 ? n : 0;
        p += length + (p[length] == '\n');
    }
    return s;
}

/* Without blanks: what folding must not change. */
static void squeeze(const char *text, char *out) {
    for (; *text != '\0'; text++) {
        if (*text != ' ' && *text != '\n') {
            *out++ = *text;
        }
    }
    *out = '\0';
}

static void lines_that_fit_are_left_alone(void **state) {
    (void)state;
    static const char text[] =
        "step time   3 s\n\n  stage   peak\n  0       1.5\n    deep in\nend\n";
    char *out = shown(text, 60, false);
    assert_string_equal(out, text);
    free(out);
}

static void wide_lines_go_on_behind_their_label(void **state) {
    (void)state;
    char *out = shown("layout      TP 1  CP 1  PP 1  VPP 1  EP 2  ETP 1  DP 8  EDP 4\n"
                      "  a  1234567890 1234567890 1234567890 1234567890 1234567890\n",
                      40, true);
    assert_string_equal(out, "layout      TP 1  CP 1  PP 1  VPP 1\n"
                             "            EP 2  ETP 1  DP 8  EDP 4\n"
                             "  a  1234567890 1234567890 1234567890\n"
                             "      1234567890 1234567890\n");
    free(out);
}

/* A word that is wider than the screen is split, and no line stays empty in front of it. */
static void a_word_too_wide_stands_where_its_line_begins(void **state) {
    (void)state;
    char *out = shown("            /a/path/that/is/longer/than/forty/columns.json\n", 40, true);
    assert_string_equal(out, "            /a/path/that/is/longer/than/\n"
                             "                forty/columns.json\n");
    free(out);
}

/* What goes on below stands under the text, and a number keeps its unit. */
static void folded_lines_keep_columns_and_units(void **state) {
    (void)state;
    char *out = shown("held back by  the pipeline bubble; what helps: x\n"
                      "memory      154 GB usable, over by 73.18 GB\n"
                      "memory      154 GB usable, over by 73.18 Gb\n",
                      41, true);
    assert_string_equal(out, "held back by  the pipeline bubble; what\n"
                             "              helps: x\n"
                             "memory      154 GB usable, over by\n"
                             "            73.18 GB\n"
                             "memory      154 GB usable, over by 73.18\n"
                             "            Gb\n");
    free(out);
}

static void bars_make_way_all_of_them(void **state) {
    (void)state;
    char *out = shown("  compute      2.635 s   67.8 %  ###########################\n"
                      "  bubble      546.5 ms   14.1 %  ######\n",
                      50, true);
    assert_string_equal(out, "  compute      2.635 s   67.8 %\n  bubble      546.5 ms   14.1 %\n");
    free(out);
}

/* Columns that nothing stands in make way before rows take two lines, and none is glued to the
 * next; numbers of more digits are rows of the same table. */
static void wide_tables_move_their_columns_together(void **state) {
    (void)state;
    char *out = shown("fits\n"
                      "   TP   peak GB      headroom   largest           ZeRO\n"
                      "   16     55.19        +26.06   optimizer         3/3\n"
                      "  128    156.08         -2.16   activations       1/1\n",
                      40, false);
    assert_string_equal(out, "fits\n"
                             "   TP peak GB headroom largest      ZeRO\n"
                             "   16   55.19   +26.06 optimizer    3/3\n"
                             "  128  156.08    -2.16 activations  1/1\n");
    free(out);
}

/* Rows that do not fit in one line all go on from the same column. */
static void rows_that_take_two_lines_break_at_one_column(void **state) {
    (void)state;
    char *out = shown("  cluster   GPUs  step time     energy  MFU  layout\n"
                      "  h100       256  3.600 s    19.40 MWh    9  1/1/2/5/4/1\n"
                      "* gb200     1024  14.54 s    1.485 GWh   46  1/1/8/4/32/1 merged\n",
                      40, true);
    assert_string_equal(out, "  cluster GPUs step time    energy MFU\n"
                             "      layout\n"
                             "  h100     256 3.600 s   19.40 MWh   9\n"
                             "      1/1/2/5/4/1\n"
                             "* gb200   1024 14.54 s   1.485 GWh  46\n"
                             "      1/1/8/4/32/1 merged\n");
    free(out);
}

/* Notes make way in whole sentences, as many lines as each has. */
static void notes_are_cut_between_sentences(void **state) {
    (void)state;
    char text[4096] = "trained by  moefold\n\nPlans are proven to be near.\nA short one.\n"
                      "A long one that goes\non in a second line\nand in a third.\n\nmodel\n";
    for (int i = 0; i < 32; i++) {
        snprintf(text + strlen(text), 64, "  h100     %4d  3 d\n", 8 + i);
    }
    char *out = shown(text, 80, false); /* one line too many */
    assert_at_most(shape_of(out).lines, MF_SCREEN_LINES);
    assert_non_null(strstr(out, "A short one.\n... 3 more (-v)\n"));
    free(out);
}

/* What labels say makes way before rows of answers, and of these the best ones stay. */
static void labels_make_way_before_answers(void **state) {
    (void)state;
    char text[4096] = "trained by  moefold\n            and more\n";
    for (int i = 0; i < 14; i++) {
        snprintf(text + strlen(text), 64, "label %d     says\n            this\n", 10 + i);
    }
    strcat(text, "\nwhat would make it fit\n  with   time\n");
    for (int i = 0; i < 6; i++) {
        snprintf(text + strlen(text), 64, "  --pp %d  %d s\n", i, i);
    }
    strcat(text,
           "host copies rest on\n            what was not\n            measured\n\nverdict\n");
    for (int i = 0; i < 22; i++) {
        snprintf(text + strlen(text), 64, "  line %d\n", i);
    }
    char *out = shown(text, 60, false);
    assert_at_most(shape_of(out).lines, MF_SCREEN_LINES);
    assert_non_null(strstr(out, "what would make it fit\n  with   time\n  --pp 0  0 s\n"
                                "  --pp 1  1 s\n  --pp 2  2 s\n"));
    assert_null(strstr(out, "host copies"));
    free(out);
}

/* Words about a table make way before its rows. */
static void notes_make_way_before_rows(void **state) {
    (void)state;
    char text[4096] = "trained by  moefold\n\nEvery plan is proven to be\n";
    for (int i = 0; i < 20; i++) {
        snprintf(text + strlen(text), 64, "note %d\n", i);
    }
    strcat(text, "\nqwen3-8b\n  cluster  GPUs  time\n");
    for (int i = 0; i < 20; i++) {
        snprintf(text + strlen(text), 64, "%c h100     %4d  3 d\n", i % 3 == 0 ? '*' : ' ', 8 + i);
    }
    char *out = shown(text, 80, false);
    const shape s = shape_of(out);
    assert_at_most(s.lines, MF_SCREEN_LINES);
    assert_non_null(strstr(out, "Every plan is proven to be\n"));
    assert_null(strstr(out, "note 19\n"));
    for (int i = 0; i < 20; i++) {
        char row[64];
        snprintf(row, sizeof row, "h100     %4d  3 d\n", 8 + i);
        assert_non_null(strstr(out, row));
    }
    free(out);
}

/* What people read the output for keeps its best rows, however much else there is; what ends the
 * output stays, too. */
static void answers_keep_their_first_rows(void **state) {
    (void)state;
    char text[8192] = "";
    for (int i = 0; i < 14; i++) {
        snprintf(text + strlen(text), 64, "head %d\n", i);
    }
    static const char *const titles[] = {
        "memory", "time", "what would make it fit", "what would help", "its costliest", "plans"};
    for (int t = 0; t < 6; t++) {
        snprintf(text + strlen(text), 64, "\n%s\n  with\n", titles[t]);
        for (int i = 0; i < 12; i++) {
            snprintf(text + strlen(text), 64, "  row-%d-%d\n", t, i);
        }
        snprintf(text + strlen(text), 64, "held back by %d\n            %d and more\n", t, t);
    }
    strcat(text, "\nprices rest on sand\n");
    char *out = shown(text, 80, false);
    const shape s = shape_of(out);
    assert_above(s.lines, MF_SCREEN_LINES - 4);
    assert_at_most(s.lines, MF_SCREEN_LINES);
    assert_non_null(strstr(out, "\nwhat would make it fit\n  with\n  row-2-0\n  row-2-1\n"));
    assert_non_null(strstr(out, "\nwhat would help\n  with\n  row-3-0\n  row-3-1\n"));
    assert_non_null(strstr(out, "\nplans\n  with\n  row-5-0\n  row-5-1\n"));
    assert_null(strstr(out, "  row-4-0\n"));
    assert_non_null(strstr(out, "\nprices rest on sand\n"));
    free(out);
}

static void long_tables_lose_their_last_rows(void **state) {
    (void)state;
    char text[4096] = "models\n";
    for (int i = 0; i < 80; i++) {
        snprintf(text + strlen(text), 32, "  model-%d\n", i);
    }
    strcat(text, "verdict     all of them\n");
    char *out = shown(text, 80, false);
    const shape s = shape_of(out);
    assert_int_equal(s.lines, MF_SCREEN_LINES);
    assert_int_equal(s.lines - 1 + s.left_out, 82);
    assert_non_null(strstr(out, "  model-36\n  ... 43 more (-v)\nverdict     all of them\n"));
    free(out);
    out = shown(text, 80, true);
    assert_string_equal(out, text);
    free(out);
}

/* A mark in the first column makes a row no other table, and a verdict below is none of its rows.
 */
static void verdicts_are_not_counted_as_rows(void **state) {
    (void)state;
    char text[4096] = "clusters\n";
    for (int i = 0; i < 60; i++) {
        snprintf(text + strlen(text), 32, "%c size-%d\n", i == 3 ? '*' : ' ', i);
    }
    strcat(text, "  verdict\n  cheapest    size-3\n              a tie\n  fastest     size-59\n");
    char *out = shown(text, 80, false);
    const shape s = shape_of(out);
    assert_int_equal(s.lines, MF_SCREEN_LINES);
    assert_int_equal(s.lines - 1 + s.left_out, 65);
    assert_non_null(
        strstr(out, "  size-33\n  ... 26 more (-v)\n  verdict\n  cheapest    size-3\n"));
    free(out);
}

/* Of rows the marked ones are the answer. */
static void marked_rows_stay(void **state) {
    (void)state;
    char text[4096] = "Every plan is proven\nto be as good\nas can be.\n\nmodel\n  cluster  GPUs\n";
    for (int i = 0; i < 60; i++) {
        snprintf(text + strlen(text), 32, "%c size-%d\n", i % 12 == 11 ? '*' : ' ', i);
    }
    strcat(text, "  verdict\n  cheapest    size-11\n");
    char *out = shown(text, 80, false);
    assert_at_most(shape_of(out).lines, MF_SCREEN_LINES);
    for (int i = 11; i < 60; i += 12) {
        char row[32];
        snprintf(row, sizeof row, "\n* size-%d\n", i);
        assert_non_null(strstr(out, row));
    }
    assert_non_null(strstr(out, "\n  size-0\n"));
    free(out);
}

/* Each offer of a long verdict stays, in whole, and what is said of the last ones makes way. */
static void offers_stay_where_what_is_said_of_them_goes(void **state) {
    (void)state;
    char text[8192] =
        "model\n  cluster   GPUs\n* h100        64\n* h200       128\n\nverdict on model\n";
    for (int i = 0; i < 4; i++) {
        snprintf(text + strlen(text), 160,
                 "  %s%d 64 x h100, 38.1 d (35.0 d to 41.0 d), 263.2k USD; not at the upper\n",
                 i < 3 ? "offer                       "
                       : "offer of a label without space\n                               ",
                 i);
        snprintf(text + strlen(text), 64, "%31send-%d of its band\n", "", i);
        for (int k = 0; k < 8; k++) {
            snprintf(text + strlen(text), 64, "%31sreason %d of %d\n", "", k, i);
        }
    }
    char *out = shown(text, 100, false);
    assert_in_range(shape_of(out).lines, 30, MF_SCREEN_LINES);
    assert_non_null(strstr(out, "\nverdict on model\n  offer  "));
    for (int i = 0; i < 4; i++) {
        char offer[128];
        snprintf(offer, sizeof offer,
                 "%d 64 x h100, 38.1 d (35.0 d to 41.0 d), 263.2k USD; not at "
                 "the upper\n%31send-%d of its band\n",
                 i, "", i);
        assert_non_null(strstr(out, offer));
    }
    assert_non_null(strstr(out, "reason 7 of 0\n"));
    assert_null(strstr(out, "reason 0 of 3\n"));
    free(out);
}

/* Of several tables the last keeps its name and its verdict: rows below another's heading mislead.
 */
static void a_table_cut_in_two_keeps_its_title_and_its_verdict(void **state) {
    (void)state;
    char text[4096] = "";
    for (int m = 0; m < 3; m++) {
        snprintf(text + strlen(text), 64, "%smodel-%d\n", m > 0 ? "\n" : "", m);
        for (int i = 0; i < 8; i++) {
            snprintf(text + strlen(text), 64, "%*srow-%d\n", 2 + 2 * (i % 2), "", i);
        }
        strcat(text, "  verdict\n");
        for (int i = 0; i < 20; i++) {
            snprintf(text + strlen(text), 64, "  verdict-%d-%d\n", m, i);
        }
    }
    char *out = shown(text, 80, false);
    const shape s = shape_of(out);
    assert_at_most(s.lines, MF_SCREEN_LINES);
    assert_non_null(strstr(out, "\nmodel-2\n"));
    assert_non_null(strstr(out, " more (-v)\n  verdict\n  verdict-2-0\n"));
    free(out);
}

/* Two or five models of a table, each with its rows and its verdict, and one verdict on all. */
static char *shown_models(int models) {
    char text[8192] = "trained by  moefold\n\nEvery plan is proven\nnote 1\nnote 2\n";
    for (int m = 0; m < models; m++) {
        snprintf(text + strlen(text), 64, "\nmodel-%d\n  cluster  GPUs\n", m);
        for (int i = 0; i < 8; i++) {
            snprintf(text + strlen(text), 64, "%c h%d-%d  64\n", i % 2 == 0 ? '*' : ' ', m, i);
        }
        strcat(text, "  verdict\n");
        for (int i = 0; i < 6; i++) {
            snprintf(text + strlen(text), 64, "  verdict-%d-%d\n", m, i);
        }
    }
    strcat(text, "\nevery row   bf16\nprices      h0 2\n\nverdict on all models\n");
    for (int m = 0; m < models; m++) {
        snprintf(text + strlen(text), 64, "  model-%d  h%d\n", m, m);
    }
    return shown(text, 80, false);
}

/* What a row says below it goes with the row: a table of such rows is not lost as a whole. */
static void rows_that_go_on_below_are_rows(void **state) {
    (void)state;
    char text[8192] = "";
    for (int i = 0; i < 8; i++) {
        snprintf(text + strlen(text), 64, "head %d\n            and more\n", i);
    }
    strcat(text, "\nmodel\n  cluster GPUs time\n");
    for (int i = 0; i < 12; i++) {
        snprintf(text + strlen(text), 96,
                 "  h%-2d        8 needs more\n               than is there\n", i);
    }
    strcat(text, "* h12       8 1 d\n* h13       8 2 d\n\nverdict\n");
    for (int i = 0; i < 10; i++) {
        snprintf(text + strlen(text), 64, "  says %d\n", i);
    }
    char *out = shown(text, 80, false);
    assert_at_most(shape_of(out).lines, MF_SCREEN_LINES);
    assert_non_null(strstr(out, "\nmodel\n  cluster GPUs time\n"));
    assert_non_null(strstr(out, "* h12       8 1 d\n* h13       8 2 d\n\nverdict\n  says 0\n"));
    free(out);
}

/* Where a verdict on all ends the text, those of its parts make way before rows do. */
static void rows_stay_where_verdicts_of_parts_go(void **state) {
    (void)state;
    char *out = shown_models(2);
    assert_at_most(shape_of(out).lines, MF_SCREEN_LINES);
    for (int i = 0; i < 16; i++) {
        char row[32];
        snprintf(row, sizeof row, "\n%c h%d-%d  64\n", i % 2 == 0 ? '*' : ' ', i / 8, i % 8);
        assert_non_null(strstr(out, row));
    }
    assert_null(strstr(out, "verdict-1-0"));
    assert_non_null(strstr(out, "\nprices      h0 2\n\nverdict on all models\n  model-0  h0\n"));
    free(out);
}

/* Of tables that do not all fit the last go as a whole: each that stays has its name, its heading
 * and its best rows, and what holds of all is there. */
static void tables_of_parts_stay_whole_or_go(void **state) {
    (void)state;
    char *out = shown_models(5);
    assert_at_most(shape_of(out).lines, MF_SCREEN_LINES);
    int tables = 0;
    for (int m = 0; m < 5; m++) {
        char title[32], rows[64];
        snprintf(title, sizeof title, "\nmodel-%d\n", m);
        snprintf(rows, sizeof rows, "\nmodel-%d\n  cluster  GPUs\n* h%d-0  64\n", m, m);
        assert_int_equal(strstr(out, title) != NULL, strstr(out, rows) != NULL);
        tables += strstr(out, title) != NULL;
    }
    assert_at_least(tables, 2);
    assert_below(tables, 5); /* a case that says something */
    assert_non_null(strstr(out, "\nevery row   bf16\nprices      h0 2\n\nverdict on all models\n"));
    assert_non_null(strstr(out, "\n  model-4  h4\n"));
    free(out);
}

/* Tables of details lose rows before what is said to help; the end is filled as far as it goes. */
static void remedies_stay_where_details_go(void **state) {
    (void)state;
    char text[8192] = "";
    for (int m = 0; m < 8; m++) {
        snprintf(text + strlen(text), 64, "%s %d\n  with\n", m == 5 ? "what would help" : "detail",
                 m);
        for (int i = 0; i < 12; i++) {
            snprintf(text + strlen(text), 64, "  row-%d-%d\n", m, i);
        }
        strcat(text, "\n");
    }
    char *out = shown(text, 80, false);
    const shape s = shape_of(out);
    assert_above(s.lines, MF_SCREEN_LINES - 3);
    assert_at_most(s.lines, MF_SCREEN_LINES);
    assert_non_null(strstr(out, "\nwhat would help 5\n  with\n  row-5-0\n  row-5-1\n  row-5-2\n"));
    assert_non_null(strstr(out, "\ndetail 6\n  with\n  row-6-0\n  ... 11 more (-v)\n"));
    free(out);
}

/* Space that a long paragraph leaves when it goes is given back to the table that went before it.
 */
static void space_that_is_left_is_filled(void **state) {
    (void)state;
    char text[4096] = "";
    for (int i = 0; i < 7; i++) {
        snprintf(text + strlen(text), 64, "head %d\n            and more\n", i);
    }
    strcat(text, "\nwhere\n");
    for (int i = 0; i < 5; i++) {
        snprintf(text + strlen(text), 64, "  part-%d\n", i);
    }
    strcat(text, "\nplans\n  with\n  row-0\n  row-1\n\nsearch      1\n");
    for (int i = 0; i < 16; i++) {
        snprintf(text + strlen(text), 64, "            and %d\n", i);
    }
    strcat(text, "\nverdict     so\n");
    char *out = shown(text, 80, false);
    assert_at_most(shape_of(out).lines, MF_SCREEN_LINES);
    assert_non_null(strstr(out, "\nwhere\n  part-0\n  part-1\n  part-2\n  part-3\n  part-4\n"));
    assert_non_null(strstr(out, "\nplans\n  with\n  row-0\n  row-1\n"));
    free(out);
}

/* Words, tables, empty lines and words wider than the screen. */
static void random_text(rng *r, char *out, size_t size) {
    size_t used = 0;
    const int64_t lines = rng_range(r, 0, 120);
    *out = '\0';
    for (int64_t i = 0; i < lines && used + 700 < size; i++) {
        const int64_t words = rng_range(r, 0, 14), indent = rng_range(r, 0, 3) * 2;
        used += (size_t)snprintf(out + used, size - used, "%*s", words > 0 ? (int)indent : 0, "");
        for (int64_t k = 0; k < words; k++) {
            const int length = (int)rng_range(r, 1, rng_range(r, 0, 30) == 0 ? 70 : 12);
            used += (size_t)snprintf(out + used, size - used, "%s%.*s",
                                     k == 0                    ? ""
                                     : rng_range(r, 0, 3) == 0 ? "   "
                                                               : " ",
                                     length,
                                     "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"
                                     "abcdefghijklmnopqrstuvwxyz");
        }
        used += (size_t)snprintf(out + used, size - used, "\n");
    }
}

static void any_text_is_held_to_the_screen(void **state) {
    (void)state;
    static char text[128 * 1024], want[128 * 1024], got[128 * 1024];
    rng r = {11};
    int shortened = 0;
    for (int i = 0; i < 3000; i++) {
        const int columns = (int)rng_range(&r, MF_SCREEN_LEAST, 130);
        random_text(&r, text, sizeof text);
        char *all = shown(text, columns, true), *some = shown(text, columns, false);
        const shape a = shape_of(all), s = shape_of(some);
        squeeze(text, want);
        squeeze(all, got);
        assert_string_equal(want, got);
        assert_at_most(a.widest, columns);
        assert_at_most(s.widest, columns);
        assert_at_most(s.lines, MF_SCREEN_LINES);
        if (a.lines <= MF_SCREEN_LINES) {
            assert_string_equal(all, some);
        } else {
            assert_above(s.left_out, 0);
            shortened++;
        }
        free(all);
        free(some);
    }
    assert_above(shortened, 300);
}

/* A title with none of its rows says nothing: it goes with them. */
static void titles_go_with_the_last_of_their_rows(void **state) {
    (void)state;
    char text[8192] = "";
    for (int i = 0; i < 8; i++) {
        snprintf(text + strlen(text), 64, "%shead %d\n", i > 0 ? "\n" : "", i);
    }
    strcat(text, "\nmemory by stage at its peak\n");
    for (int i = 0; i < 5; i++) {
        snprintf(text + strlen(text), 64, "  stage-%d  12.0\n", i);
    }
    strcat(text, "\nwhere the step goes\n");
    for (int i = 0; i < 12; i++) {
        snprintf(text + strlen(text), 64, "  part-%d  12.0\n", i);
    }
    strcat(text, "\nwhat would help\n");
    for (int i = 0; i < 8; i++) {
        snprintf(text + strlen(text), 64, "  remedy-%d  12.0\n", i);
    }
    strcat(text, "\nverdict     go on\n");
    for (int i = 0; i < 7; i++) {
        strcat(text, "            and on\n");
    }
    char *out = shown(text, 80, false);
    const shape s = shape_of(out);
    assert_at_most(s.lines, MF_SCREEN_LINES);
    assert_null(strstr(out, "memory by stage at its peak\n  ... "));
    assert_null(strstr(out, "where the step goes\n  ... "));
    assert_non_null(strstr(out, "what would help\n  remedy-0"));
    assert_non_null(strstr(out, "  remedy-3"));
    free(out);
}

/* Colour adds escapes and nothing else, to whole lines of a verdict wherever they are folded. */
static void colour_changes_no_word(void **state) {
    (void)state;
    static const char text[] =
        "memory      90 GB of 81 GB usable on stage 0: DOES NOT FIT, over by 9 GB\n"
        "* h100  64\n  h200  64\n\nverdict     run it with everything "
        "that it says here and then go on\n";
    char *plain = shown(text, 48, true);
    char *coloured = shown_as(text, (mf_screen){.columns = 48, .all = true, .colour = true});
    assert_non_null(strstr(coloured, "\033[1;31mDOES NOT FIT\033[0m"));
    assert_non_null(strstr(coloured, "\033[1m* h100  64\033[0m\n  h200"));
    assert_non_null(strstr(coloured, "\n\033[1mverdict     run it"));
    assert_non_null(strstr(coloured, "\n            \033[1m"));
    char *to = coloured;
    for (const char *p = coloured; *p != '\0'; p++) {
        if (*p == '\033') {
            p += strcspn(p, "m");
        } else {
            *to++ = *p;
        }
    }
    *to = '\0';
    assert_string_equal(plain, coloured);
    free(plain);
    free(coloured);
}

static char *named(const char *text, int width) {
    char *out = NULL;
    size_t size;
    FILE *f = open_memstream(&out, &size);
    assert_non_null(f);
    mf_show_name(f, text, width);
    fputs("|", f);
    fclose(f);
    return out;
}

/* Columns behind the name of a row stay in line, however long the name is. */
static void names_of_rows_keep_columns_in_line(void **state) {
    (void)state;
    const char *const names[] = {
        "--tp 2",
        "power limit of the GPU +10 %",
        "--recompute mla_up_proj,norm,act,core_attn and --offload-optimizer 50%",
        "onewordthatislongerthanthecolumniswide",
        "",
    };
    const int widths[] = {21, 25, 36, 80};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        for (size_t k = 0; k < sizeof widths / sizeof widths[0]; k++) {
            char *text = named(names[i], widths[k]);
            const char *last = strrchr(text, '\n');
            last = last != NULL ? last + 1 : text;
            if (i == 3 && k < 3) { /* it cannot be broken */
                assert_true(strlen(last) == 2 + strlen(names[i]) + 1);
            } else {
                assert_int_equal(strlen(last), 2 + widths[k] + 1);
                assert_at_most(shape_of(text).widest, 2 + widths[k] + 1);
            }
            char *to = text; /* blanks and line ends apart, nothing is lost */
            for (const char *p = text; *p != '\0'; p++) {
                *to = *p;
                to += *p != ' ' && *p != '\n' && *p != '|';
            }
            *to = '\0';
            to = text;
            for (const char *p = names[i]; *p != '\0'; p++) {
                if (*p != ' ') {
                    assert_int_equal(*to++, *p);
                }
            }
            assert_int_equal(*to, '\0');
            free(text);
        }
    }
}

static void write_remedies(char *text) {
    strcpy(text, "head\n");
    for (int m = 0; m < 6; m++) {
        snprintf(text + strlen(text), 64, "\nwhat would help %d\n", m);
        for (int i = 0; i < 12; i++) {
            snprintf(text + strlen(text), 64, "  row-%d-%d\n", m, i);
        }
    }
}

/* A list of a hundred settings leaves space for what else there is. */
static void a_long_list_of_what_was_not_read_makes_way(void **state) {
    (void)state;
    char text[8192];
    write_remedies(text);
    strcat(text, "\nnot read    100 settings that moefold does not know:\n");
    for (int i = 0; i < 25; i++) {
        snprintf(text + strlen(text), 64, "            --unknown-%d\n", i);
    }
    strcat(text, "\nverdict     it fits\n");
    char *out = shown(text, 80, false);
    assert_at_most(shape_of(out).lines, MF_SCREEN_LINES);
    assert_non_null(strstr(out, "\nnot read    100 settings that moefold does not know:\n"
                                "            --unknown-0\n            --unknown-1\n"));
    assert_null(strstr(out, "--unknown-24"));
    assert_non_null(strstr(out, "\nwhat would help 0\n  row-0-0\n"));
    free(out);
}

/* What of a job was not read stays beside the verdict, whatever makes way. */
static void what_was_not_read_stays(void **state) {
    (void)state;
    char text[8192];
    write_remedies(text);
    strcat(text, "\nassumed     much\nnot read    5 settings that moefold does not know:\n"
                 "            --a 1, --b 2, --c 3, --d 4\n            --e 5\n"
                 "measured    3 s\n\nverdict     it fits\n");
    char *out = shown(text, 80, false);
    assert_at_most(shape_of(out).lines, MF_SCREEN_LINES);
    assert_above(shape_of(out).left_out, 20);
    assert_non_null(strstr(out, "\nnot read    5 settings that moefold does not know:\n"
                                "            --a 1, --b 2, --c 3, --d 4\n            --e 5\n"));
    assert_non_null(strstr(out, "\n\nverdict     it fits\n"));
    free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_that_fit_are_left_alone),
        cmocka_unit_test(wide_lines_go_on_behind_their_label),
        cmocka_unit_test(a_word_too_wide_stands_where_its_line_begins),
        cmocka_unit_test(folded_lines_keep_columns_and_units),
        cmocka_unit_test(bars_make_way_all_of_them),
        cmocka_unit_test(wide_tables_move_their_columns_together),
        cmocka_unit_test(rows_that_take_two_lines_break_at_one_column),
        cmocka_unit_test(notes_make_way_before_rows),
        cmocka_unit_test(notes_are_cut_between_sentences),
        cmocka_unit_test(labels_make_way_before_answers),
        cmocka_unit_test(answers_keep_their_first_rows),
        cmocka_unit_test(long_tables_lose_their_last_rows),
        cmocka_unit_test(verdicts_are_not_counted_as_rows),
        cmocka_unit_test(marked_rows_stay),
        cmocka_unit_test(offers_stay_where_what_is_said_of_them_goes),
        cmocka_unit_test(a_table_cut_in_two_keeps_its_title_and_its_verdict),
        cmocka_unit_test(space_that_is_left_is_filled),
        cmocka_unit_test(rows_that_go_on_below_are_rows),
        cmocka_unit_test(rows_stay_where_verdicts_of_parts_go),
        cmocka_unit_test(tables_of_parts_stay_whole_or_go),
        cmocka_unit_test(remedies_stay_where_details_go),
        cmocka_unit_test(what_was_not_read_stays),
        cmocka_unit_test(a_long_list_of_what_was_not_read_makes_way),
        cmocka_unit_test(titles_go_with_the_last_of_their_rows),
        cmocka_unit_test(colour_changes_no_word),
        cmocka_unit_test(any_text_is_held_to_the_screen),
        cmocka_unit_test(names_of_rows_keep_columns_in_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
