/* --report: the files of a report, and a page on which every figure is the JSON's. */
#include "tests/support/cli_test.h"
#include "tests/support/sampled.h"

#include "core/base/crc32c.h"
#include "core/base/file.h"
#include "core/base/flag.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char dir[64]; /* of a test */

static int new_folder(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/moefold-report-XXXXXX");
    return mkdtemp(dir) != NULL ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static char *read_file(const char *name) {
    char path[160], *text = NULL;
    size_t length = 0;
    mf_err e;
    mf_err_clear(&e);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (mf_file_load(path, 64 << 20, &text, &length, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return text;
}

static mf_json *read_json(const char *text) {
    mf_json *doc = NULL;
    mf_err e;
    mf_err_clear(&e);
    if (mf_json_parse("file", text, strlen(text), &doc, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return doc;
}

/* The JSON inside a page. */
static mf_json *embedded(const char *page) {
    static const char open[] = "<script type=\"application/json\" id=\"report\">";
    const char *from = strstr(page, open), *to;
    mf_json *doc = NULL;
    assert_non_null(from);
    from += strlen(open);
    to = strstr(from, "</script>");
    assert_non_null(to);
    assert_ok(mf_json_parse("page", from, (size_t)(to - from), &doc, NULL));
    return doc;
}

static const mf_json_value *at(const mf_json_value *v, const char *pointer, size_t length) {
    const char *end = pointer + length;
    char key[96];
    while (pointer < end) {
        size_t n = strcspn(++pointer, "/\"");
        snprintf(key, sizeof key, "%.*s", (int)n, pointer);
        pointer += n;
        if (mf_json_value_type(v) == MF_JSON_ARRAY) {
            size_t index = strtoul(key, NULL, 10);
            assert_below(index, mf_json_size(v));
            v = mf_json_at(v, index);
        } else {
            v = cli_member(v, key);
        }
    }
    return v;
}

/* "3.620 s" as 3.62, and half of what its last digit stands for. */
static double read_shown(const char *text, double *half) {
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{" s", 1},       {" ms", 1e-3},   {" us", 1e-6},   {" d", 86400},   {" TB", 1e12},
                 {" GB", 1e9},    {" MB", 1e6},    {" kB", 1e3},    {" B", 1},       {" %", 0.01},
                 {" TFLOP/s", 1}, {"T", 1e12},     {"B", 1e9},      {"M", 1e6},      {"k", 1e3},
                 {" Wh", 3.6e3},  {" kWh", 3.6e6}, {" MWh", 3.6e9}, {" GWh", 3.6e12}};
    char plain[48] = "";
    size_t used = 0, n = strspn(text, "0123456789.,-");
    for (size_t i = 0; i < n && used < sizeof plain - 1; i++) {
        if (text[i] != ',') {
            plain[used++] = text[i];
        }
        plain[used] = '\0';
    }
    const char *point = strchr(plain, '.');
    const int decimals = point != NULL ? (int)strlen(point + 1) : 0;
    double factor = 1;
    size_t best = 0;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        size_t length = strlen(units[i].unit);
        if (length > best && strncmp(text + n, units[i].unit, length) == 0) {
            best = length;
            factor = units[i].factor;
        }
    }
    *half = 0.5 * pow(10, -decimals) * factor;
    return strtod(plain, NULL) * factor;
}

static void assert_shown(const char *text, double value) {
    double half, shown = read_shown(text, &half);
    if (!(fabs(shown - value) <= half * 1.000001 + 1e-12)) {
        fail_msg("\"%.40s\" stands for %.17g", text, value);
    }
}

/* Every place that names a member of the JSON shows that member. Returns how many there are. */
static int check_figures(const char *page, const mf_json_value *root) {
    static const char mark[] = "data-at=\"";
    int figures = 0;
    for (const char *p = strstr(page, mark); p != NULL; p = strstr(p, mark)) {
        p += strlen(mark);
        size_t length = strcspn(p, "\"");
        const mf_json_value *v = at(root, p, length);
        double value = 0;
        figures++;
        if (mf_json_value_type(v) == MF_JSON_OBJECT) { /* a slice: "F: A to B, ..." */
            const char *title = strstr(p, "<title>");
            assert_non_null(title);
            const char *start = strstr(title, ": "), *end = strstr(title, " to ");
            assert_non_null(start);
            assert_non_null(end);
            assert_shown(start + 2, cli_number(v, "start_s"));
            assert_shown(end + 4, cli_number(v, "end_s"));
            continue;
        }
        assert_ok(mf_json_f64(v, -1e300, 1e300, &value, NULL));
        const char *next = p + length + 1;
        if (strncmp(next, " value=\"", 8) == 0) {
            assert_int_equal(memcmp(&value, &(double){strtod(next + 8, NULL)}, sizeof value), 0);
            assert_shown(strchr(next, '>') + 1, value);
        } else { /* a part of a bar: title="NAME: A" */
            const char *title = strstr(next, "title=\"");
            assert_non_null(title);
            assert_shown(strstr(title, ": ") + 2, value);
        }
    }
    return figures;
}

static void assert_needs_nothing(const char *page) {
    static const char *const words[] = {"http:", "https:", " src=", "url(", "@import", "<script>"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strstr(page, words[i]) != NULL) {
            fail_msg("the page holds %s", words[i]);
        }
    }
}

#define JOB "--model olmoe-1b-7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 "

/* Paper: no dark colours, a head above the rows of each page, no empty page before a long table. */
static void assert_prints_well(const char *page, bool long_table) {
    assert_null(strstr(page, "@media(prefers-color-scheme:dark)"));
    assert_non_null(strstr(page, "@media screen and (prefers-color-scheme:dark)"));
    for (const char *at = page; (at = strstr(at, "<table>")) != NULL; at++) {
        assert_memory_equal(at, "<table><thead><tr>", 18);
    }
    assert_non_null(strstr(page, ".long{break-inside:auto}"));
    assert_int_equal(strstr(page, "<section class=\"long\">") != NULL, long_table);
}

static void a_simulated_step_is_a_page_of_the_numbers_that_json_prints(void **state) {
    (void)state;
    char line[512];
    snprintf(line, sizeof line, "simulate " JOB "--pp 4 --ep 4 -o %s --json", dir);
    cli_result r = cli_json(line);
    char *page = read_file("report.html"), *text = read_file("report.json");
    mf_json *doc = read_json(text), *inside = embedded(page);
    const mf_json_value *step = cli_member(mf_json_root(doc), "step");
    static const char *const keys[] = {"step_time_s", "step_time_low_s", "peak_memory_B", "mfu"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        assert_close(cli_number(step, keys[i]), cli_number(mf_json_root(r.json), keys[i]), 0);
    }
    assert_above(check_figures(page, mf_json_root(doc)), 100);
    assert_above(check_figures(page, mf_json_root(inside)), 100);
    assert_needs_nothing(page);
    /* all passes of all micro-batches: none is thin here */
    assert_int_equal(mf_json_size(cli_member(mf_json_root(doc), "schedule")), 4 * 2 * 16);
    assert_above(mf_json_size(cli_member(mf_json_root(doc), "prices_rest_on")), 1);
    mf_json_destroy(doc);
    mf_json_destroy(inside);
    free(page);
    free(text);
    text = read_file("trace.json");
    mf_json_destroy(read_json(text));
    free(text);
    text = read_file("inputs.json");
    doc = read_json(text);
    assert_int_equal(mf_json_size(cli_member(mf_json_root(doc), "command_line")), 19);
    mf_json_destroy(doc);
    free(text);
    snprintf(line, sizeof line, "simulate --plan %s/plan.json --json", dir);
    cli_result again = cli_json(line);
    assert_close(cli_number(mf_json_root(again.json), "step_time_s"),
                 cli_number(mf_json_root(r.json), "step_time_s"), 1e-12);
    cli_free(&again);
    cli_free(&r);
}

/* 30,720 passes: a reader gets those of both ends, and files that a browser opens. */
static void a_very_long_step_leaves_small_files(void **state) {
    (void)state;
    char line[512];
    snprintf(
        line, sizeof line,
        "simulate --model deepseek-v3 --cluster h100 --gpus 1024 --global-batch 15360 --seq 4096 "
        "--pp 16 --vpp 4 --ep 64 --schedule interleaved -o %s --json",
        dir);
    cli_result r = cli_json(line);
    char *page = read_file("report.html"), *text = read_file("report.json"),
         *trace = read_file("trace.json");
    assert_below(strlen(trace), 4000000);
    assert_below(strlen(page), 1500000);
    mf_json *doc = read_json(text), *drawn = read_json(trace);
    const char *says = "";
    assert_ok(
        mf_json_get_string(cli_member(mf_json_root(drawn), "otherData"), "passes", &says, NULL));
    assert_non_null(strstr(says, "others in one slice"));
    const mf_json_value *slices = cli_member(mf_json_root(doc), "schedule");
    size_t mixed = 0;
    double end_s = 0;
    for (size_t i = 0; i < mf_json_size(slices); i++) {
        const mf_json_value *slice = mf_json_at(slices, i);
        mixed += strcmp(cli_text(slice, "pass"), "mixed") == 0;
        end_s = fmax(end_s, cli_number(slice, "end_s"));
    }
    assert_in_range(mixed, 16, mf_json_size(slices) / 2);
    assert_above(end_s, 0.9 * cli_number(mf_json_root(r.json), "step_time_s"));
    assert_non_null(strstr(page, "several passes together"));
    assert_above(check_figures(page, mf_json_root(doc)), 100);
    mf_json_destroy(doc);
    mf_json_destroy(drawn);
    free(page);
    free(text);
    free(trace);
    cli_free(&r);
}

/* Shares of a list of bases add up to all of the time. */
static void assert_adds_up(const mf_json_value *bases) {
    double sum = 0;
    for (size_t i = 0; i < mf_json_size(bases); i++) {
        sum += cli_number(mf_json_at(bases, i), "share");
    }
    assert_close(sum, 1, 1e-9);
}

/* Whether the page draws every row of an "accuracy" at this place of the JSON. */
static void assert_shows_accuracy(const char *page, const char *place, const mf_json_value *rows) {
    for (size_t i = 0; i < mf_json_size(rows); i++) {
        char mark[96];
        snprintf(mark, sizeof mark, "data-at=\"%s/%zu/mean_error\"", place, i);
        assert_non_null(strstr(page, mark));
        assert_non_null(strstr(page, cli_text(mf_json_at(rows, i), "of")));
        assert_above(cli_number(mf_json_at(rows, i), "runs"), 2);
    }
}

static void a_page_says_how_good_such_predictions_were(void **state) {
    (void)state;
    static const struct {
        const char *line, *head;
        size_t rows;
    } cases[] = {
        {"simulate " JOB "--software megatron-26.06 --json", "published runs under megatron", 3},
        {"simulate --model olmoe-1b-7b --cluster h200 --gpus 2 --global-batch 8 --seq 4096 "
         "--json",
         "runs of moefold on two H200", 5},
        {"simulate " JOB "--software ideal --json", "No run of this program on this GPU", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[512];
        snprintf(line, sizeof line, "%s -o %s", cases[i].line, dir);
        cli_result r = cli_json(line);
        char *page = read_file("report.html"), *text = read_file("report.json");
        mf_json *doc = read_json(text);
        const mf_json_value *said = cli_member(mf_json_root(r.json), "accuracy");
        const mf_json_value *kept = cli_member(cli_member(mf_json_root(doc), "step"), "accuracy");
        assert_int_equal(mf_json_size(said), cases[i].rows);
        assert_int_equal(mf_json_size(kept), cases[i].rows);
        for (size_t k = 0; k < cases[i].rows; k++) {
            assert_close(cli_number(mf_json_at(said, k), "mean_error"),
                         cli_number(mf_json_at(kept, k), "mean_error"), 0);
        }
        assert_shows_accuracy(page, "/step/accuracy", kept);
        assert_non_null(strstr(page, cases[i].head));
        assert_above(check_figures(page, mf_json_root(doc)), 30);
        const mf_json_value *bases = cli_member(mf_json_root(doc), "prices_rest_on");
        assert_adds_up(bases);
        for (size_t k = 0; k < mf_json_size(bases); k++) { /* a part of the bar, and its figure */
            snprintf(line, sizeof line, "<i data-at=\"/prices_rest_on/%zu/share\" style=\"width",
                     k);
            assert_non_null(strstr(page, line));
            snprintf(line, sizeof line, "<data data-at=\"/prices_rest_on/%zu/share\"", k);
            assert_non_null(strstr(page, line));
        }
        mf_json_destroy(doc);
        free(page);
        free(text);
        cli_free(&r);
    }
}

/* What a page says stands in the text in the same words: remedies, and kinds of memory. */
static void a_page_has_the_words_of_the_text(void **state) {
    (void)state;
    char line[512];
    static const char *const kinds[] = {"p2p", "scratch", "comm"};
    snprintf(line, sizeof line, "simulate " JOB "--pp 4 --ep 4 -o %s", dir);
    cli_result r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    char *page = read_file("report.html");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char head[32], label[32];
        snprintf(head, sizeof head, " %s", kinds[i]);
        snprintf(label, sizeof label, "title=\"%s: ", kinds[i]);
        assert_non_null(strstr(r.out, head));
        assert_non_null(strstr(page, label));
    }
    assert_null(strstr(page, ">workspace<"));
    /* sentences, and a legend of what is drawn */
    assert_non_null(strstr(page, "<p class=\"note\">Of "));
    assert_non_null(strstr(page, ". Stage "));
    assert_non_null(strstr(page, " %</span> exposed ep"));
    assert_non_null(strstr(page, "</i>backward</li>"));
    assert_null(strstr(page, "</i>weight gradient</li>"));
    assert_null(strstr(page, "</i>forward of one"));
    cli_free(&r);
    snprintf(line, sizeof line, "explain --plan %s/plan.json --json", dir);
    r = cli_json(line);
    const mf_json_value *remedies = cli_member(mf_json_root(r.json), "remedies");
    bool capped = false;
    for (size_t i = 0; i < mf_json_size(remedies); i++) {
        char name[192], *end;
        const char *what = cli_text(mf_json_at(remedies, i), "what");
        snprintf(name, sizeof name, "<span class=\"name\">%s", what);
        /* "scale-up bandwidth +<span class="keep">10 %</span>" */
        if ((end = strstr(name, " 10 %")) != NULL || (end = strstr(name, " +10 %")) != NULL) {
            *end = '\0';
        }
        assert_non_null(strstr(page, name));
        capped |= strstr(what, "holds on average") != NULL;
    }
    assert_true(capped);
    cli_free(&r);
    free(page);
}

/* Fields of a line of CSV; commas in quotes are text. */
static int fields_of(const char *line) {
    bool quoted = false;
    int count = 1;
    for (; *line != '\n' && *line != '\0'; line++) {
        quoted ^= *line == '"';
        count += *line == ',' && !quoted;
    }
    return count;
}

/* Every line of a table has the fields of its head, whether its size fits or not. */
static void assert_rectangular(const char *csv, int lines) {
    const int fields = fields_of(csv);
    for (const char *line = csv; *line != '\0'; line = strchr(line, '\n') + 1, lines--) {
        assert_int_equal(fields_of(line), fields);
    }
    assert_int_equal(lines, 0);
}

/* On a phone the cells of a row stand in a card: each says what its column's head says. */
static void assert_cells_are_named(const char *page) {
    int cells = 0;
    const char *table = page;
    while ((table = strstr(table, "<table class=\"cards\"><thead><tr>")) != NULL) {
        const char *heads = strstr(table, "<tr>"), *end = strstr(table, "</table>");
        for (const char *row = strstr(heads + 1, "<tr"); row != NULL && row < end;
             row = strstr(row + 1, "<tr")) {
            const char *th = heads, *row_end = strstr(row, "</tr>");
            for (const char *td = strstr(row, "<td"); td != NULL && td < row_end;
                 td = strstr(td + 1, "<td")) {
                const char *name = strstr(td, " data-head=\"");
                th = strstr(th + 1, "<th");
                if (strncmp(td, "<td colspan", strlen("<td colspan")) == 0) {
                    break; /* words across the others */
                }
                assert_non_null(th);
                assert_non_null(name);
                assert_true(name < strchr(td, '>')); /* of this cell, not a later one */
                name += strlen(" data-head=\"");
                const char *said = strchr(th, '>') + 1;
                const size_t length = strcspn(name, "\"");
                assert_int_equal(length, strcspn(said, "<"));
                assert_int_equal(strncmp(said, name, length), 0);
                cells++;
            }
        }
        table = end;
    }
    assert_above(cells, 20);
}

/* The rows that are bold, and the points that are ringed, are those that no other plan beats. */
static void assert_marks_front(const char *page, const mf_json_value *plans) {
    int front = 0, bold = 0, ringed = 0, lines = 0;
    for (size_t i = 0; i < mf_json_size(plans); i++) {
        const mf_json_value *a = mf_json_at(plans, i);
        bool beaten = false;
        for (size_t k = 0; k < mf_json_size(plans); k++) {
            const mf_json_value *b = mf_json_at(plans, k);
            const double faster_s = cli_number(a, "step_time_s") - cli_number(b, "step_time_s");
            const double less_B = cli_number(a, "peak_memory_B") - cli_number(b, "peak_memory_B");
            beaten |= faster_s >= 0 && less_B >= 0 && faster_s + less_B > 0;
        }
        char row[96];
        snprintf(row, sizeof row, "<tr class=\"front\"><td data-head=\"plan\">%zu</td>", i + 1);
        assert_int_equal(strstr(page, row) != NULL, !beaten);
        front += !beaten;
    }
    for (const char *p = page; (p = strstr(p, "<tr class=\"front\">")) != NULL; p++) {
        bold++;
    }
    for (const char *p = page; (p = strstr(p, "class=\"dot front\"")) != NULL; p++) {
        ringed++;
    }
    for (const char *p = page; (p = strstr(p, "<span class=\"h\"")) != NULL; p++) {
        lines++;
    }
    assert_above(front, 0);
    assert_int_equal(bold, front);
    assert_int_equal(ringed, front);
    assert_int_equal(lines, (int)mf_json_size(plans)); /* a band each */
}

static void a_plan_lists_its_candidates(void **state) {
    (void)state;
    char line[512];
    snprintf(line, sizeof line, "plan " JOB "--cp 1 --tp 1 --report %s --json", dir);
    cli_result r = cli_json(line);
    char *page = read_file("report.html"), *text = read_file("report.json");
    char *csv = read_file("candidates.csv");
    mf_json *doc = read_json(text);
    const mf_json_value *root = mf_json_root(doc);
    const size_t plans = mf_json_size(cli_member(root, "candidates"));
    assert_rectangular(csv, (int)plans + 1);
    assert_non_null(strstr(csv, ",precision,cp_type,overlap,cuda_graph,moments,offload_optimizer,"
                                "memory,positions,fits,candidate\n"));
    for (size_t i = 0; i < plans; i++) { /* what layers recompute, as the JSON has it */
        char memory[2200];
        const mf_json_value *c = mf_json_at(cli_member(root, "candidates"), i);
        snprintf(memory, sizeof memory, ",\"%s\",", cli_text(c, "memory"));
        assert_non_null(strstr(csv, memory));
    }
    assert_non_null(strstr(csv, ",\"recompute "));
    assert_int_equal(plans, 1 + mf_json_size(cli_member(mf_json_root(r.json), "runners_up")));
    assert_close(cli_number(cli_member(root, "step"), "step_time_s"),
                 cli_number(cli_member(mf_json_root(r.json), "best"), "step_time_s"), 0);
    assert_above(check_figures(page, root), 50);
    assert_above(plans, 1);
    assert_marks_front(page, cli_member(root, "candidates"));
    assert_cells_are_named(page);
    assert_non_null(strstr(page, "data-at=\"/candidates/1/step_time_low_s\""));
    assert_non_null(strstr(page, "data-at=\"/search/gap\""));
    assert_non_null(strstr(page, "data-at=\"/remedies/0/gain\""));
    mf_json_destroy(doc);
    assert_prints_well(page, false);
    free(page);
    free(text);
    free(csv);
    cli_free(&r);
}

/* Runs under strain that miss a limit have a mark, and no other has one; a card says which. */
static void says_which_limits_are_missed(const char *page, const mf_json_value *root) {
    const mf_json_value *cells = cli_member(cli_member(root, "capacity"), "cells");
    const char *const strains[] = {"skewed", "node_lost"}, *const heads[] = {"skewed", "node lost"};
    int marks = 0, plain = 0;
    for (size_t i = 0; i < 2 * mf_json_size(cells); i++) {
        char place[128];
        const mf_json_value *cell = mf_json_at(cells, i / 2);
        const mf_json_value *x = mf_json_find(cell, strains[i % 2]);
        snprintf(place, sizeof place,
                 "<td class=\"w\" data-head=\"%s\"><data data-at=\"/capacity/cells/%zu/%s/run_s\"",
                 heads[i % 2], i / 2, strains[i % 2]);
        const char *at = strstr(page, place);
        if (x != NULL && at != NULL) {
            bool in_time = false, in_budget = false;
            assert_ok(mf_json_get_bool(x, "in_time", &in_time, NULL));
            assert_ok(mf_json_get_bool(x, "in_budget", &in_budget, NULL));
            const bool kept = in_time && in_budget;
            at = strstr(at, "</data>") + strlen("</data>");
            assert_int_equal(*at == '!', !kept);
            marks += !kept;
            plain += kept;
        }
    }
    assert_above(marks, 0);
    assert_above(plain, 0);
    assert_non_null(strstr(page, "data-head=\"node lost\">none!<"));
    assert_non_null(strstr(page, "; !: misses a limit."));
    assert_cells_are_named(page);
    assert_non_null(strstr(page, " d</data>, misses the deadline"));
    assert_non_null(strstr(page, " d</data>, keeps both"));
}

/* Which verdicts name a cell: how many. */
static int verdicts_of(const mf_json_value *root, double cell) {
    static const char *const keys[] = {"cheapest_in_time", "fastest_in_budget", "smallest",
                                       "cheapest_a_node_less"};
    const mf_json_value *all = cli_member(cli_member(root, "capacity"), "verdicts");
    int count = 0;
    for (size_t k = 0; k < 4; k++) {
        const mf_json_value *verdict = cli_member(mf_json_at(all, 0), keys[k]);
        count += fabs(cli_number(verdict, "cell") - cell) < 0.5;
    }
    return count;
}

/* Every verdict's plan is there, as a file that can be read, as a trace, and on the page. */
static void has_the_plans_of_verdicts(const char *page, const mf_json_value *root) {
    const mf_json_value *plans = cli_member(root, "plans");
    int verdicts = 0;
    assert_above(mf_json_size(plans), 1);
    for (size_t i = 0; i < mf_json_size(plans); i++) {
        const mf_json_value *x = mf_json_at(plans, i);
        const double at = cli_number(x, "cell");
        const mf_json_value *cell =
            mf_json_at(cli_member(cli_member(root, "capacity"), "cells"), (size_t)at);
        char name[128], place[96];
        snprintf(name, sizeof name, "plan-%s-%.0f.json", cli_text(cell, "cluster"),
                 cli_number(cell, "gpus"));
        assert_string_equal(cli_text(x, "plan_file"), i == 0 ? "plan.json" : name);
        char *text = read_file(cli_text(x, "plan_file")),
             *trace = read_file(cli_text(x, "trace_file"));
        mf_json *plan = read_json(text), *slices = read_json(trace);
        const mf_json_value *predicted = cli_member(mf_json_root(plan), "prediction");
        const mf_json_value *search =
            cli_member(cli_member(mf_json_root(plan), "provenance"), "search");
        assert_close(cli_number(predicted, "step_time_s"), cli_number(cell, "step_time_s"), 1e-12);
        assert_close(cli_number(cli_member(x, "step"), "step_time_s"),
                     cli_number(cell, "step_time_s"), 1e-12);
        assert_close(cli_number(search, "gap"), cli_number(cell, "gap"), 1e-12);
        assert_above(cli_number(search, "space"), 1);
        snprintf(place, sizeof place, "data-at=\"/plans/%zu/step/stages/0/memory_B/weights\"", i);
        assert_non_null(strstr(page, place));
        snprintf(place, sizeof place, "data-at=\"/plans/%zu/step/breakdown_s/compute\"", i);
        assert_non_null(strstr(page, place));
        snprintf(place, sizeof place, "data-at=\"/plans/%zu/schedule/0\"", i);
        assert_non_null(strstr(page, place));
        verdicts += verdicts_of(root, at);
        mf_json_destroy(plan);
        mf_json_destroy(slices);
        free(text);
        free(trace);
    }
    assert_int_equal(verdicts, 4);
}

/* Verdicts have one name, in JSON, on their cards and in the text. */
static void says_verdicts_as_the_text_does(const char *page, const char *text,
                                           const mf_json_value *root) {
    static const char *const verdicts[][2] = {
        {"cheapest_in_time", "cheapest in 20d"},
        {"fastest_in_budget", "fastest for 50k USD"},
        {"smallest", "smallest in 20d for 50k USD"},
        {"cheapest_a_node_less", "cheapest, a node less"},
    };
    const mf_json_value *all = mf_json_at(cli_member(cli_member(root, "capacity"), "verdicts"), 0);
    for (size_t i = 0; i < sizeof verdicts / sizeof verdicts[0]; i++) {
        char card[96], line[96];
        const char *label = cli_text(cli_member(all, verdicts[i][0]), "label");
        assert_string_equal(label, verdicts[i][1]);
        snprintf(card, sizeof card, "<span>%s</span><b>", label);
        snprintf(line, sizeof line, "\n  %s  ", label);
        assert_non_null(strstr(page, card));
        assert_non_null(strstr(text, line));
    }
}

static void sizes_are_a_front_of_time_and_money(void **state) {
    (void)state;
    char line[512];
    setenv("SOURCE_DATE_EPOCH", "1806000000", 1); /* 2027-03-25: prices are old then */
    snprintf(line, sizeof line,
             "capacity --models olmoe-1b-7b --clusters h100,h20 --sizes 8..32 --global-batch 64 "
             "--seq 4096 --pp 1 --cp 1 --tokens 1T --deadline 20d --budget 50k --skew zipf:0.5 -o "
             "%s",
             dir);
    cli_result r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    char *page = read_file("report.html"), *text = read_file("report.json");
    char *csv = read_file("candidates.csv");
    mf_json *doc = read_json(text);
    assert_int_equal(mf_json_size(cli_member(cli_member(mf_json_root(doc), "capacity"), "cells")),
                     6);
    assert_above(check_figures(page, mf_json_root(doc)), 50);
    assert_needs_nothing(page);
    assert_non_null(strstr(page, "class=\"plot\""));
    assert_non_null(strstr(page, "data-at=\"/capacity/cells/1/node_lost/run_s\""));
    assert_non_null(strstr(page, "data-at=\"/capacity/cells/1/skewed/step_time_s\""));
    assert_non_null(strstr(page, "data-at=\"/capacity/cells/1/skewed/expert_load\""));
    assert_non_null(strstr(page, "<br>under zipf:0.5: "));
    says_verdicts_as_the_text_does(page, r.out, mf_json_root(doc));
    assert_non_null(strstr(page, "the 95th percentile of 20 draws"));
    says_which_limits_are_missed(page, mf_json_root(doc));
    has_the_plans_of_verdicts(page, mf_json_root(doc));
    const mf_json_value *capacity = cli_member(mf_json_root(doc), "capacity");
    for (size_t i = 0; i < 6; i++) {
        const mf_json_value *cell = mf_json_at(cli_member(capacity, "cells"), i);
        if (cli_bool(cell, "fits")) {
            assert_adds_up(cli_member(cell, "prices_rest_on"));
        }
    }
    assert_int_equal(mf_json_size(cli_member(capacity, "accuracy")), 1); /* moefold on an H100 */
    assert_shows_accuracy(page, "/capacity/accuracy", cli_member(capacity, "accuracy"));
    assert_non_null(strstr(page, "/unmeasured_share\""));
    assert_non_null(strstr(page, " Price: none is known for h20: "));
    assert_null(strstr(page, "none is known for h100"));
    assert_non_null(strstr(page, "</i>h20 (no point: no price is known)</li>"));
    assert_non_null(strstr(page, "</i>h100</li>"));
    assert_non_null(strstr(csv, ",skewed_fits,skewed_step_time_s,skewed_expert_load,"));
    assert_non_null(strstr(csv, ",node_lost_gpus,node_lost_step_time_s,"));
    assert_rectangular(csv, 7);
    assert_non_null(strstr(page, "<b>Warning</b>: the price of h100 is of 2026-09-20"));
    assert_prints_well(page, true);
    assert_non_null(strstr(csv, "\"olmoe-1b-7b\",\"h20\",32,1,0,moefold,bf16,"));
    assert_non_null(strstr(csv, ",dispatcher,cp_type,overlap,cuda_graph,moments,"
                                "offload_optimizer,memory\n"));
    assert_non_null(strstr(csv, ",\"dp,pp\",none,fp32,0,\""));
    mf_json_destroy(doc);
    free(page);
    free(text);
    free(csv);
    cli_free(&r);
}

/* As many GPUs are no tie of time; what a tie is stands there where a card has one. */
static void a_card_of_the_smallest_says_how_much_longer_another_takes(void **state) {
    (void)state;
    static const struct {
        const char *model, *clusters, *sizes;
        int batch;
        bool tie, others;
    } cases[] = {{"mixtral-8x7b", "h100,gb200", "32", 64, false, false},
                 {"olmoe-1b-7b", "h100,gb200", "16", 64, true, false},
                 {"olmoe-1b-7b", "b200,gb200", "8,16,24,32,40", 960, true, true}};
    for (size_t i = 0; i < 3; i++) {
        char line[512];
        snprintf(
            line, sizeof line,
            "capacity --models %s --clusters %s --sizes %s --global-batch %d --seq 4096 --cp 1 "
            "--pp 1 --recompute none --offload none --tokens 1T --deadline 90d --effort 1 -o %s",
            cases[i].model, cases[i].clusters, cases[i].sizes, cases[i].batch, dir);
        cli_result r = cli_run(line, NULL);
        assert_int_equal(r.code, 0);
        char *page = read_file("report.html");
        assert_int_equal(strstr(page, "<br>a tie with ") != NULL, cases[i].tie);
        assert_int_equal(strstr(page, "A tie: ") != NULL, cases[i].tie);
        assert_int_equal(strstr(r.out, "A tie: ") != NULL, cases[i].tie);
        assert_non_null(strstr(page, "</span> is as small, and takes <data "));
        /* the nearest three of many, and that there are others */
        const char *others = strstr(page, " and others (report.json has them)");
        assert_int_equal(others != NULL, cases[i].others);
        double before = 0;
        int shown = 0;
        for (const char *at = strstr(page, "<br>a tie with "); others != NULL; shown++) {
            at = strstr(at, " (+<data ");
            if (at == NULL || at > others) {
                break;
            }
            at = strstr(at, "value=\"") + 7;
            assert_true(strtod(at, NULL) >= before);
            before = strtod(at, NULL);
        }
        assert_int_equal(shown, others != NULL ? 3 : 0);
        free(page);
        cli_free(&r);
    }
}

static void assert_there(const char *name, bool expected) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if ((access(path, F_OK) == 0) != expected) {
        fail_msg("%s is %s", name, expected ? "missing" : "there");
    }
}

/* A folder that had a report has nothing of another job afterwards, whichever command either is of.
 * What no report wrote stays, and what the command line names as input. */
static void files_of_an_earlier_report_are_removed(void **state) {
    (void)state;
#define SIZES(SIZE)                                                                                \
    "capacity --models olmoe-1b-7b --clusters h100 --sizes " SIZE " --global-batch 64 --seq 4096 " \
    "--cp 1 --pp 1 --recompute none --offload none --tokens 1T --effort 1"
    static const struct {
        const char *command, *input;
        bool table, second; /* whether there is a table of sizes, and the second plan of one */
    } run[] = {{SIZES("8,16"), NULL, true, true},
               {"simulate", "plan-h100-16.json", false, true},
               {SIZES("8"), NULL, true, false},
               {"simulate", "plan.json", false, false}};
    char line[768], input[256], mine[256];
    snprintf(mine, sizeof mine, "%s/plan-mine.json", dir);
    fclose(fopen(mine, "w"));
    for (size_t i = 0; i < sizeof run / sizeof run[0]; i++) {
        snprintf(input, sizeof input, " --plan %s/%s", dir,
                 run[i].input != NULL ? run[i].input : "");
        snprintf(line, sizeof line, "%s%s -o %s", run[i].command, run[i].input != NULL ? input : "",
                 dir);
        cli_result r = cli_run(line, NULL);
        assert_int_equal(r.code, 0);
        assert_there("plan.json", true);
        assert_there("trace.json", true);
        assert_there("plan-mine.json", true);
        assert_there("candidates.csv", run[i].table);
        assert_there("plan-h100-16.json", run[i].second);
        assert_there("trace-h100-16.json", i == 0);
        if (i == 0) { /* costs that are nearly alike have two ticks at least all the same */
            char *page = read_file("report.html");
            const char *tick = strstr(page, "<span class=\"y\"");
            assert_non_null(tick);
            assert_non_null(strstr(tick + 1, "<span class=\"y\""));
            free(page);
        }
        cli_free(&r);
    }
}

static void write_file(const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void list_file(char *list, size_t size, const char *name, const char *text) {
    const size_t used = strlen(list);
    snprintf(list + used, size - used, ", {\"path\": \"%s\", \"bytes\": %zu, \"crc32c\": \"%08x\"}",
             name, strlen(text), (unsigned)mf_crc32c(0, text, strlen(text)));
}

/* Whatever the list of an old report.json says: only plans, traces and tables that are as a report
 * wrote them are a report's. */
static void a_list_of_old_files_removes_nothing_else(void **state) {
    (void)state;
    char line[1280], folder[512];
    snprintf(folder, sizeof folder, "%s/plan-folder.json", dir);
    assert_int_equal(mkdir(folder, 0777), 0);
    write_file("plan-notes.txt", "mine");
    write_file("plan.c", "mine");
    write_file("notes.csv", "mine");
    write_file("trace-h100-16.json", "a report's");
    write_file("plan-cluster.json", "{\"extends\": \"h100\"}"); /* which the command reads */
    snprintf(folder, sizeof folder, "%s/sub", dir);
    assert_int_equal(mkdir(folder, 0777), 0);
    write_file("sub/plan-mine.json", "mine");
    static const char *const listed[][2] = {
        {"sub/plan-mine.json", "mine"},
        {"./sub/plan-mine.json", "mine"},
        {"plan-notes.txt", "mine"},
        {"plan.c", "mine"},
        {"notes.csv", "mine"},
        {"plan-folder.json", ""},
        {"", ""},
        {"..", ""},
        {"plan-cluster.json", "{\"extends\": \"h100\"}"},
        {"trace-h100-16.json", "a report's"},
        {"plan-edited.json", "a report's"},
        {"plan-edited-more.json", "a report's"},
        {"plan-link.json", "a report's"},
    };
    char list[2048] = "{\"generator\": \"moefold\", \"files\": [7, null, [], {\"a\": []}, "
                      "\"plan-unmarked.json\", {\"path\": \"plan-unmarked.json\"}";
    for (size_t i = 0; i < sizeof listed / sizeof listed[0]; i++) {
        list_file(list, sizeof list, listed[i][0], listed[i][1]);
    }
    snprintf(list + strlen(list), sizeof list - strlen(list), "]}");
    write_file("report.json", list);
    write_file("plan-edited.json", "a reader's");
    write_file("plan-edited-more.json", "a report's, and more");
    write_file("plan-unmarked.json", "of an older report, or mine");
    snprintf(line, sizeof line, "%s/plan-link.json", dir);
    assert_int_equal(symlink("trace-h100-8.json", line), 0);
    write_file("trace-h100-8.json", "a report's");
    snprintf(
        line, sizeof line,
        "simulate --model olmoe-1b-7b --cluster=%s/plan-cluster.json --gpus 8 --global-batch 64 "
        "--seq 4096 --ep 8 -o %s",
        dir, dir);
    cli_result r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    cli_free(&r);
    assert_there("sub/plan-mine.json", true);
    assert_there("plan-notes.txt", true);
    assert_there("plan.c", true);
    assert_there("notes.csv", true);
    assert_there("plan-folder.json", true);
    assert_there("plan-cluster.json", true);
    assert_there("trace-h100-16.json", false);
    assert_there("plan-edited.json", true);
    assert_there("plan-edited-more.json", true);
    assert_there("plan-unmarked.json", true);
    assert_there("plan-link.json", true);
}

/* A file of zeros, with a last byte. */
static uint32_t write_large(const char *name, size_t bytes, char last) {
    static char zeros[1 << 16];
    char path[512];
    uint32_t crc = 0;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)bytes - 1, SEEK_SET), 0);
    assert_int_equal(fputc(last, f), last);
    assert_int_equal(fclose(f), 0);
    for (size_t left = bytes - 1; left > 0;) {
        const size_t piece = left < sizeof zeros ? left : sizeof zeros;
        crc = mf_crc32c(crc, zeros, piece);
        left -= piece;
    }
    return mf_crc32c(crc, &last, 1);
}

/* A trace of an earlier version may be of any size. */
static void large_files_of_an_earlier_report_are_removed(void **state) {
    (void)state;
    enum { LARGE = (64 << 20) + 4711 };
    char line[640];
    const uint32_t crc = write_large("trace-h100-16.json", LARGE, 'x');
    (void)write_large("trace-h100-32.json", LARGE, 'y');
    snprintf(
        line, sizeof line,
        "{\"generator\": \"moefold\", \"files\": [{\"path\": \"trace-h100-16.json\", "
        "\"bytes\": %d, \"crc32c\": \"%08x\"}, {\"path\": \"trace-h100-32.json\", \"bytes\": %d, "
        "\"crc32c\": \"%08x\"}]}",
        LARGE, (unsigned)crc, LARGE, (unsigned)crc);
    write_file("report.json", line);
    snprintf(line, sizeof line, "simulate " JOB "--pp 4 --ep 4 -o %s", dir);
    cli_result r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    cli_free(&r);
    assert_there("trace-h100-16.json", false);
    assert_there("trace-h100-32.json", true); /* of as many bytes, but others */
}

/* The page says of a plan in place of one that does not fit what the text says of it. */
static void a_page_calls_a_remedy_of_a_short_search_so(void **state) {
    (void)state;
    char line[512];
    for (int given = cases_sampled(); given < 2; given++) { /* the short one under sanitizers */
        snprintf(line, sizeof line,
                 "capacity --models mixtral-8x7b --clusters h100 --sizes 32 --pp 1 --tp 1 --cp 1 "
                 "--etp 1 --global-batch 64 --seq 4096 --tokens 1T --skew zipf:2%s -o %s",
                 given ? " --effort 1" : "", dir);
        cli_result r = cli_run(line, NULL);
        assert_int_equal(r.code, 0);
        char *page = read_file("report.html");
        assert_int_equal(strstr(page, "(after a short search: plan may find") != NULL, !given);
        free(page);
        cli_free(&r);
    }
}

/* A folder is made before long work; nothing is left of it where nothing was written. */
static void a_command_that_fails_leaves_no_empty_folder(void **state) {
    (void)state;
    static const char *const lines[] = {
        "capacity --models nope --clusters h100 --sizes 8 --global-batch 64 --seq 4096",
        "plan --model nope --cluster h100 --gpus 8 --global-batch 64 --seq 4096"};
    char line[512], path[256];
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/new", dir);
        snprintf(line, sizeof line, "%s -o %s", lines[i], path);
        cli_result r = cli_run(line, NULL);
        assert_int_equal(r.code, 2);
        assert_int_not_equal(access(path, F_OK), 0);
        cli_free(&r);
        snprintf(line, sizeof line, "%s -o %s", lines[i], dir); /* that was there stays */
        r = cli_run(line, NULL);
        assert_int_equal(r.code, 2);
        assert_int_equal(access(dir, F_OK), 0);
        cli_free(&r);
    }
}

/* A size that does not fit, and a plan that does not fit under uneven routing, without a run. */
static void a_size_without_figures_has_its_place_in_the_table(void **state) {
    (void)state;
    char line[512];
    snprintf(line, sizeof line,
             "capacity --models qwen3-30b-a3b --clusters h100 --sizes 2,16 --global-batch 64 --seq "
             "4096 --pp 1 --cp 1 --ep 2 --zero 1 --expert-zero 1 --skew zipf:3 --effort 1 -o %s",
             dir);
    cli_result r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "skewed: the step under zipf:3, the 95th percentile"));
    char *page = read_file("report.html"), *csv = read_file("candidates.csv");
    assert_rectangular(csv, 3);
    assert_non_null(strstr(csv, "\"h100\",2,0,0,moefold,,,"));
    assert_non_null(strstr(page, "<br>under zipf:3: does not fit"));
    assert_non_null(strstr(page, "data-head=\"skewed\">none<small><span>load <data "));
    free(page);
    free(csv);
    cli_free(&r);
}

/* What Megatron cannot run is not what a plan for it should do next. */
static void a_page_proposes_what_the_program_can_do(void **state) {
    static const char *const software[] = {"moefold", "megatron-26.06"};
    (void)state;
    for (int theirs = 0; theirs < 2; theirs++) {
        char line[512];
        snprintf(line, sizeof line,
                 "simulate --model mixtral-8x7b --cluster h100 --gpus 16 --global-batch 64 --seq "
                 "4096 --ep 8 --pp 2 --software %s -o %s",
                 software[theirs], dir);
        cli_result r = cli_run(line, NULL);
        assert_int_equal(r.code, 0);
        char *page = read_file("report.html");
        assert_int_equal(strstr(page, ">--schedule zb-h1") == NULL, theirs);
        assert_non_null(strstr(page, "all communication 10 % faster"));
        free(page);
        cli_free(&r);
    }
}

static void markup_in_a_name_stays_text(void **state) {
    (void)state;
    char line[512];
    snprintf(line, sizeof line, "%s/a", dir);
    assert_int_equal(mkdir(line, 0777), 0);
    snprintf(line, sizeof line,
             "simulate " JOB "--recompute act --recompute-layers 2 --out %s/%s -o %s/a", dir,
             "<b>&x", dir);
    cli_result r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    char *page = read_file("a/report.html");
    assert_null(strstr(page, "<b>&x"));
    assert_non_null(strstr(page, "&lt;b&gt;&amp;x"));
    assert_non_null(strstr(page, "<br>recompute act in layers 0 to 1<"));
    mf_json_destroy(embedded(page));
    free(page);
    cli_free(&r);
}

/* What tune says to change to, in the folder, is kept when it is there, and no layer of it copies
 * to the host: the job did not, and fits. */
static void assert_kept(void) {
    static const char mark[] = "\"offload\": \"";
    char line[256], *plan = read_file("plan.json");
    for (const char *p = strstr(plan, mark); p != NULL; p = strstr(p, mark)) {
        p += strlen(mark);
        assert_int_equal(strncmp(p, "none\"", 5), 0);
    }
    free(plan);
    snprintf(line, sizeof line, "tune --plan %s/plan.json", dir);
    cli_result r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "verdict     keep it"));
    assert_non_null(strstr(r.out, "\n\nsearch      ended: a gap of 3 % is proven\n"));
    cli_free(&r);
}

#define TIGHT                                                                                      \
    "--model granite-3.1-1b-a400m --cluster h100 --gpus 1 --global-batch 8 --seq 4096 "            \
    "--recompute full "

#define EIGHT                                                                                      \
    "--model qwen3-30b-a3b --set num_hidden_layers=8 --cluster h100 --gpus 8 --global-batch 64 "   \
    "--seq 4096 --software megatron-26.06 "

/* Overlap and CUDA graphs that a job goes without do not hold its best plan back. */
static void the_best_plan_of_a_job_is_that_of_plan(void **state) {
    (void)state;
    if (cases_sampled()) {
        return; /* other cases run the same code; this one checks times */
    }
    char line[512];
    cli_result r = cli_json("plan " EIGHT "--json");
    const double best_s = cli_number(cli_member(mf_json_root(r.json), "best"), "step_time_s");
    cli_free(&r);
    snprintf(line, sizeof line,
             "simulate " EIGHT "--tp 2 --ep 4 --overlap none --cuda-graph none --json --out "
             "%s/now.json",
             dir);
    r = cli_json(line);
    assert_above(cli_number(mf_json_root(r.json), "step_time_s"), 1.05 * best_s);
    cli_free(&r);
    snprintf(line, sizeof line, "tune --plan %s/now.json --json", dir);
    r = cli_json(line);
    const mf_json_value *best = cli_member(mf_json_root(r.json), "best");
    const double tuned_s = cli_number(cli_member(best, "prediction"), "step_time_s");
    assert_at_most(tuned_s, 1.03 * best_s); /* either search ends at its gap */
    assert_string_equal(cli_text(mf_json_root(r.json), "ended_by"), "proven");
    assert_string_equal(cli_text(mf_json_root(r.json), "ended"), "a gap of 3 % is proven");
    cli_free(&r);
}

#define FLAGS                                                                                      \
    "--model olmoe-1b-7b --gpus 16 --cluster h100 %s -- --expert-model-parallel-size 4 "           \
    "--pipeline-model-parallel-size 4 --seq-length 4096 --global-batch-size 64 "                   \
    "--micro-batch-size 1 --use-distributed-optimizer --bf16"

/* A log's memory is what PyTorch allocated: `import` holds it against the same, as `compare --log`
 * does, or says that it is not. */
static void memory_of_a_log_is_held_against_its_like(void **state) {
    (void)state;
    char line[1024], log[256], plan[256];
    snprintf(log, sizeof log, "%s/train.log", dir);
    snprintf(plan, sizeof plan, "%s/now.json", dir);
    FILE *f = fopen(log, "w");
    assert_non_null(f);
    fputs("[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 9000.5 |\n"
          " iteration 1/ 9 | elapsed time per iteration (ms): 500.0 |\n",
          f);
    fclose(f);
    snprintf(line, sizeof line, "import %s " FLAGS, log, "--json");
    cli_result r = cli_json(line);
    const mf_json_value *now = cli_member(cli_member(mf_json_root(r.json), "plan"), "prediction");
    const mf_json_value *measured = cli_member(mf_json_root(r.json), "measured");
    const double peak_B = cli_number(now, "peak_memory_B");
    const double predicted_B = cli_number(measured, "predicted_memory_B");
    assert_true(cli_bool(measured, "allocated"));
    assert_close(cli_number(measured, "memory_B"), 9000.5 * 1048576, 1);
    assert_below(predicted_B, peak_B - 1e9); /* without CUDA context and buffers of NCCL */
    cli_free(&r);
    snprintf(line, sizeof line, "import %s --out %s " FLAGS, log, plan, "");
    r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "            9.438 GB allocated at most; predicted "));
    assert_non_null(strstr(r.out, " GB of that ("));
    cli_free(&r);
    snprintf(line, sizeof line, "compare --plan %s --log %s --tolerance 9999%% --json", plan, log);
    r = cli_json(line);
    assert_close(cli_number(mf_json_root(r.json), "predicted_memory_B"), predicted_B, 1e-3);
    cli_free(&r);
    snprintf(line, sizeof line, "compare --plan %s --log %s --tolerance 9999%% -o %s", plan, log,
             dir);
    r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    cli_free(&r);
    char *page = read_file("report.html");
    assert_non_null(strstr(page, "<span>memory that PyTorch allocated</span>"));
    assert_non_null(strstr(page, "data-at=\"/compare/predicted_memory_B\""));
    assert_null(strstr(page, "measured rate")); /* of which the log says nothing */
    free(page);
    /* a profile that does not say what its program prints */
    snprintf(line, sizeof line, "import %s " FLAGS, log, "--software moefold");
    r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, " GB of all that the GPU holds, CUDA context\n"));
    cli_free(&r);
    remove(log);
    remove(plan);
}

/* A plan's difference is a step from the one before: the last line has the sum, which is what the
 * script's step differs in from the plan's. */
static void differences_of_an_export_are_added_up(void **state) {
    (void)state;
    char line[512], sum[96];
    snprintf(line, sizeof line,
             "simulate --model llama3-70b --cluster h100 --gpus 64 --global-batch 128 --seq 8192 "
             "--tp 4 --cp 2 --pp 4 --schedule zb-h1 --zero 3 --recompute full --overlap tp,dp "
             "--out %s/now.json",
             dir);
    cli_result r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    cli_free(&r);
    snprintf(line, sizeof line, "export --plan %s/now.json --json", dir);
    r = cli_json(line);
    const mf_json_value *root = mf_json_root(r.json), *notes = cli_member(root, "not_the_same");
    assert_int_equal(mf_json_size(notes), 2);
    assert_null(strstr(cli_text(mf_json_at(notes, 0), "what"), "added up"));
    snprintf(sum, sizeof sum, " ms; added up: %+.3f GB, %+.3f ms)",
             (cli_number(root, "peak_memory_B") - cli_number(root, "plan_peak_memory_B")) / 1e9,
             (cli_number(root, "step_time_s") - cli_number(root, "plan_step_time_s")) * 1e3);
    assert_non_null(strstr(cli_text(mf_json_at(notes, 1), "what"), sum));
    cli_free(&r);
    snprintf(line, sizeof line, "%s/now.json", dir);
    remove(line);
}

/* A log beside a job: what it measured stands in verdict, JSON and page, and a prediction that is
 * far off is to be corrected first. */
static void a_log_of_the_job_is_held_against_the_verdict(void **state) {
    (void)state;
    static const struct {
        double share; /* measured over predicted */
        const char *says, *next;
    } cases[] = {{0.5, ", which is predicted 100.0 % too long", "now.json --log LOG --correct"},
                 {0.97, "; yours was measured at ", ""}};
    char line[1024], path[256];
    snprintf(line, sizeof line, "import " FLAGS, "--json");
    cli_result r = cli_json(line);
    const mf_json_value *plan = cli_member(mf_json_root(r.json), "plan");
    const double step_s = cli_number(cli_member(plan, "prediction"), "step_time_s");
    cli_free(&r);
    snprintf(path, sizeof path, "%s/train.log", dir);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i += (size_t)case_stride(2)) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        for (int k = 1; k <= 4; k++) {
            fprintf(f, " iteration %d/ 9 | elapsed time per iteration (ms): %.3f |\n", k,
                    1e3 * cases[i].share * step_s);
        }
        fclose(f);
        snprintf(line, sizeof line, "tune %s -o %s " FLAGS, path, dir, "--effort 1");
        r = cli_run(line, NULL);
        assert_int_equal(r.code, 0);
        assert_true((strstr(r.out, "--log LOG --correct") != NULL) == (cases[i].next[0] != '\0'));
        cli_free(&r);
        char *page = read_file("report.html"), *text = read_file("report.json");
        mf_json *doc = read_json(text);
        const mf_json_value *tune = cli_member(mf_json_root(doc), "tune");
        assert_non_null(strstr(page, "data-at=\"/tune/measured_step_time_s\""));
        assert_close(cli_number(tune, "measured_step_time_s"), cases[i].share * step_s, 1e-4);
        if (strstr(cli_text(tune, "verdict"), cases[i].says) == NULL) {
            fail_msg("\"%s\" is not in: %s", cases[i].says, cli_text(tune, "verdict"));
        }
        /* what was measured says how fast a plan is only where it is near its prediction */
        assert_true((strstr(cli_text(tune, "verdict"), ": beside that it is ") != NULL) ==
                    (cases[i].next[0] == '\0'));
        mf_json_destroy(doc);
        free(page);
        free(text);
    }
    remove(path);
}

/* The better plan stays in a domain, whose exchanges were measured; those of the layout that there
 * is were not, and its time stands in the verdict. */
static void tune_warns_of_the_present_layouts_prices(void **state) {
    (void)state;
    char line[512];
    snprintf(line, sizeof line,
             "simulate --model olmoe-1b-7b --cluster h100 --gpus 32 --global-batch 256 --seq 4096 "
             "--ep 32 --dispatcher alltoall --software megatron-26.06 --json --out %s/now.json",
             dir);
    cli_result r = cli_json(line);
    const mf_json_value *w = cli_member(mf_json_root(r.json), "warnings");
    const char *warning = NULL;
    assert_int_equal(mf_json_size(w), 1);
    assert_ok(mf_json_string(mf_json_at(w, 0), &warning, NULL));
    snprintf(line, sizeof line, "tune --plan %s/now.json --effort 1 --json", dir);
    cli_result tuned = cli_json(line);
    const mf_json_value *best = cli_member(mf_json_root(tuned.json), "best");
    assert_int_equal(mf_json_value_type(best), MF_JSON_OBJECT);
    const mf_json_value *theirs = cli_member(mf_json_root(tuned.json), "warnings");
    const char *same = NULL;
    assert_int_equal(mf_json_size(theirs), 1);
    assert_ok(mf_json_string(mf_json_at(theirs, 0), &same, NULL));
    assert_string_equal(same, warning);
    cli_free(&tuned);
    cli_free(&r);
}

/* A job that there is: its present layout, its log. Memory is tight: offloading would be faster. */
static void a_job_is_tuned_and_compared_on_a_page(void **state) {
    (void)state;
    char line[512];
    snprintf(line, sizeof line, "simulate " TIGHT "--reserve 70%% --json --out %s/now.json", dir);
    cli_result r = cli_json(line);
    const double step_s = cli_number(mf_json_root(r.json), "step_time_s");
    cli_free(&r);
    snprintf(line, sizeof line, "tune --plan %s/now.json -o %s", dir, dir);
    r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    cli_free(&r);
    char *page = read_file("report.html"), *text = read_file("report.json");
    mf_json *doc = read_json(text);
    assert_above(check_figures(page, mf_json_root(doc)), 30);
    assert_non_null(strstr(page, "data-at=\"/tune/best/prediction/step_time_s\""));
    assert_non_null(strstr(page, "data-at=\"/tune/steps/"));
    const mf_json_value *tune = cli_member(mf_json_root(doc), "tune");
    assert_int_equal(mf_json_value_type(cli_member(tune, "measured_step_time_s")), MF_JSON_NULL);
    char *csv = read_file("candidates.csv");
    assert_rectangular(csv, 3 + (int)mf_json_size(cli_member(tune, "steps")));
    int points = 0;
    assert_non_null(strstr(page, "class=\"plot\""));
    assert_non_null(strstr(page, "title=\"now: "));
    assert_non_null(strstr(page, "title=\"change to: "));
    /* drawn last, so that no other hides it */
    assert_null(strstr(strstr(page, "title=\"now: "), "class=\"dot"));
    for (size_t i = 0; i < mf_json_size(cli_member(tune, "steps")); i++) {
        const mf_json_value *s = mf_json_at(cli_member(tune, "steps"), i);
        const double time_s = cli_number(s, "step_time_s");
        assert_below(cli_number(s, "step_time_low_s"), time_s);
        assert_above(cli_number(s, "step_time_high_s"), time_s);
        const bool drawn = cli_bool(s, "fits") && time_s <= 1.5 * step_s;
        snprintf(line, sizeof line, " title=\"%s: ", cli_text(s, "what"));
        assert_int_equal(strstr(page, line) != NULL, drawn);
        points += drawn;
    }
    assert_above(points, 1);
    assert_non_null(strstr(csv, ",1,\"present\"\n"));
    assert_non_null(strstr(csv, ",1,\"best\"\n"));
    assert_non_null(strstr(csv, ",\"--recompute act\"\n"));
    assert_non_null(strstr(csv, ",bf16,0,\"recompute layer in every layer\",")); /* --moments */
    free(csv);
    mf_json_destroy(doc);
    assert_prints_well(page, false);
    free(page);
    free(text);
    assert_kept();
    snprintf(line, sizeof line, "%s/log", dir);
    FILE *f = fopen(line, "w");
    assert_non_null(f);
    for (int i = 1; i <= 12; i++) {
        fprintf(
            f,
            " [2026-01-01 10:00:00] iteration %8d/     100 | consumed samples: %d | elapsed "
            "time per iteration (ms): %.1f | learning rate: 1E-4 | global batch size:    64 |\n",
            i, i * 64, 1.05e3 * step_s);
    }
    fclose(f);
    snprintf(line, sizeof line, "compare --plan %s/now.json --log %s/log -o %s", dir, dir, dir);
    r = cli_run(line, NULL);
    if (r.code != 0) {
        fail_msg("%s", r.err);
    }
    cli_free(&r);
    page = read_file("report.html");
    text = read_file("report.json");
    doc = read_json(text);
    assert_above(check_figures(page, mf_json_root(doc)), 30);
    assert_non_null(strstr(page, "data-at=\"/compare/measured_step_time_s\""));
    assert_close(cli_number(cli_member(mf_json_root(doc), "compare"), "error"), 1 / 1.05 - 1, 1e-3);
    mf_json_destroy(doc);
    csv = read_file("compared.csv");
    assert_rectangular(csv, 4); /* of FLOP/s and memory the log says nothing */
    const char *row = strstr(csv, "\n\"\",\"step time\",,s,1,");
    double predicted_s, measured_s, error;
    assert_non_null(row);
    assert_int_equal(sscanf(row + 22, "%lf,%lf,%lf", &predicted_s, &measured_s, &error), 3);
    assert_close(measured_s, 1.05 * step_s, 1e-4);
    assert_close(error, predicted_s / measured_s - 1, 1e-9);
    free(csv);
    char *inputs = read_file("inputs.json");
    doc = read_json(inputs);
    const mf_json_value *files = cli_member(mf_json_root(doc), "files");
    assert_int_equal(mf_json_size(files), 2);
    snprintf(line, sizeof line, "%s/log", dir);
    assert_string_equal(cli_text(mf_json_at(files, 0), "option"), "plan");
    assert_string_equal(cli_text(mf_json_at(files, 1), "option"), "log");
    assert_string_equal(cli_text(mf_json_at(files, 1), "path"), line);
    assert_above(cli_number(mf_json_at(files, 1), "bytes"), 1000);
    assert_int_equal(strlen(cli_text(mf_json_at(files, 1), "crc32c")), 8);
    free(inputs);
    mf_json_destroy(doc);
    assert_prints_well(page, false);
    free(page);
    free(text);
}

/* Sets `cancel` once the process has worked for so long: the same place of the work on any machine,
 * whoever else it works for. */
typedef struct watch {
    double until_s;
    volatile int cancel;
    volatile int over;
} watch;

static double worked_s(void) {
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *watch_work(void *user) {
    watch *w = user;
    while (!mf_flag_is_set(&w->over) && worked_s() < w->until_s) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    mf_flag_set(&w->cancel, true);
    return NULL;
}

static cli_result run_for(const char *line, double work_s) {
    watch w = {.until_s = worked_s() + work_s};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, watch_work, &w), 0);
    cli_result r = cli_run(line, &w.cancel);
    mf_flag_set(&w.over, true);
    pthread_join(thread, NULL);
    return r;
}

static bool has_file(const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, R_OK) == 0;
}

/* Interrupted later and later: as soon as a phase is done, what was found is printed and stands in
 * the folder, which says that it is not all. */
static void an_interrupted_tune_keeps_what_it_found(void **state) {
    (void)state;
    char line[512];
    int kept = 0, code = 130;
    snprintf(line, sizeof line, "simulate " EIGHT "--tp 2 --ep 4 --out %s/now.json", dir);
    cli_result r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    cli_free(&r);
    snprintf(line, sizeof line, "tune --plan %s/now.json -o %s/found --threads 1 --effort 1", dir,
             dir);
    for (double work_s = 0.02; code == 130; work_s *= cases_sampled() ? 3.0 : 1.5) {
        char command[160];
        snprintf(command, sizeof command, "rm -rf %s/found", dir);
        assert_int_equal(system(command), 0);
        r = run_for(line, work_s);
        code = r.code;
        if (code == 130 &&
            strstr(r.err, "interrupted: what was found so far was printed") == NULL) {
            assert_non_null(strstr(r.err, "interrupted before it was found what fits"));
            assert_false(has_file("found/report.json"));
        } else if (code == 130) {
            char *page = read_file("found/report.html"), *text = read_file("found/report.json");
            mf_json *doc = read_json(text);
            const mf_json_value *tune = cli_member(mf_json_root(doc), "tune");
            assert_true(cli_bool(tune, "interrupted"));
            assert_above(cli_number(tune, "feasible"), 0);
            assert_above(check_figures(page, mf_json_root(doc)), 30);
            assert_non_null(strstr(page, "<b>Interrupted</b>"));
            assert_non_null(strstr(r.out, "verdict     interrupted"));
            assert_null(strstr(r.out, "keep it"));
            assert_null(strstr(r.out, "less than 0"));
            assert_true(has_file("found/candidates.csv"));
            assert_true(has_file("found/plan.json"));
            mf_json_destroy(doc);
            free(page);
            free(text);
            kept++;
        }
        cli_free(&r);
    }
    assert_int_equal(code, 0);
    char *page = read_file("found/report.html");
    assert_null(strstr(page, "<b>Interrupted</b>"));
    free(page);
    assert_above(kept, 0);
}

/* As plan does: plans and steps leave so much free, and a layout that does not is changed although
 * it fits and is faster. */
static void tune_leaves_the_headroom_that_is_asked_for(void **state) {
    (void)state;
    static const double share[] = {0.4, 0.75};
    char line[512];
    snprintf(
        line, sizeof line,
        "simulate --model granite-3.1-1b-a400m --cluster h100 --gpus 8 --global-batch 64 --seq "
        "4096 --micro-batch 4 --json --out %s/now.json",
        dir);
    cli_result r = cli_json(line);
    const double now_B = cli_number(mf_json_root(r.json), "peak_memory_B");
    const double usable_B = cli_number(mf_json_root(r.json), "usable_B");
    cli_free(&r);
    for (int i = cases_sampled(); i < 2; i++) {
        const double free_B = share[i] * usable_B / 0.95;
        snprintf(line, sizeof line, "tune --plan %s/now.json --json --effort 2 --min-headroom %g",
                 dir, share[i]);
        r = cli_json(line);
        const mf_json_value *o = mf_json_root(r.json), *steps = cli_member(o, "steps");
        const bool fits = usable_B - now_B >= free_B;
        assert_int_equal(fits, i == 0); /* a case of each */
        assert_close(cli_number(o, "min_headroom_B"), free_B, 1e-6 * free_B);
        assert_int_equal(cli_bool(o, "present_fits"), fits);
        int full = 0;
        for (size_t k = 0; k < mf_json_size(steps); k++) {
            const mf_json_value *s = mf_json_at(steps, k);
            const double left_B = usable_B - cli_number(s, "peak_memory_B");
            full += left_B > 0 && left_B < free_B;
            assert_int_equal(cli_bool(s, "fits"), left_B >= free_B);
        }
        assert_above(full, 0);
        if (!fits) {
            const mf_json_value *best = cli_member(cli_member(o, "best"), "prediction");
            assert_at_least(usable_B - cli_number(best, "peak_memory_B"), free_B);
            assert_above(mf_json_size(cli_member(o, "to_fit")), 0);
            assert_close(cli_number(cli_member(cli_member(o, "best"), "layout"), "reserve"), 0.05,
                         0);
        }
        cli_free(&r);
    }
}

static void what_fits_with_the_optimizer_on_the_host_is_planned(void **state) {
    (void)state;
    char line[512];
    snprintf(line, sizeof line, "simulate " TIGHT "--reserve 80%% --out %s/now.json", dir);
    cli_result r = cli_run(line, NULL);
    cli_free(&r);
    snprintf(line, sizeof line, "tune --plan %s/now.json -o %s --out %s/best.json", dir, dir, dir);
    r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "  with --offload-optimizer "));
    assert_non_null(strstr(r.out, " of the optimizer on the host\n"));
    assert_non_null(strstr(r.out, " and it fits (yours would take "));
    cli_free(&r);
    snprintf(line, sizeof line, "simulate --plan %s/best.json", dir);
    r = cli_run(line, NULL);
    assert_non_null(strstr(r.out, ": fits, headroom"));
    cli_free(&r);
    char *page = read_file("report.html");
    assert_null(strstr(page, "nothing fits"));
    assert_non_null(strstr(page, "and it fits"));
    free(page);
}

static void a_job_that_does_not_fit_gets_what_would_make_it_fit(void **state) {
    (void)state;
    char line[512];
    snprintf(line, sizeof line, "simulate " TIGHT "--reserve 90%% --out %s/now.json", dir);
    cli_result r = cli_run(line, NULL);
    cli_free(&r);
    snprintf(line, sizeof line, "tune --plan %s/now.json -o %s", dir, dir);
    r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "verdict     nothing fits: the leanest layout"));
    char *page = read_file("report.html");
    assert_non_null(strstr(page, "<p class=\"lead\">nothing fits: the leanest layout"));
    assert_non_null(
        strstr(page, "the smallest size that would: <span class=\"keep\">4 GPUs</span>.</p>"));
    assert_null(strstr(page, "keep it"));
    assert_non_null(strstr(page, "it does not fit"));
    free(page);
    cli_free(&r);
}

/* A search of this effort finds nothing faster by itself; --vpp 4 is. */
static void advice_is_no_slower_than_the_best_single_step(void **state) {
    (void)state;
    if (cases_sampled()) {
        return; /* other cases run the same code; this one checks the advice */
    }
    char line[512];
    snprintf(line, sizeof line,
             "simulate --model mixtral-8x7b --cluster h100 --gpus 64 --global-batch 256 --seq 4096 "
             "--tp 2 --pp 4 --ep 8 --etp 2 --dispatcher alltoall --overlap none --software "
             "megatron-26.06 --out %s/now.json",
             dir);
    cli_result r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    cli_free(&r);
    snprintf(line, sizeof line, "tune --plan %s/now.json --effort 1", dir);
    r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "\n  --vpp 4 "));
    assert_null(strstr(r.out, "keep it"));
    cli_free(&r);
}

static void a_target_recomputes_nothing_where_all_fits(void **state) {
    (void)state;
    if (cases_sampled()) {
        return; /* other cases run the same code; this one checks two lines */
    }
    cli_result r = cli_run("plan --model qwen3-30b-a3b --cluster h100 --gpus 32 --global-batch 256 "
                           "--seq 4096 --runs-on megatron --software moefold",
                           NULL);
    assert_int_equal(r.code, 0);
    char *others = strstr(r.out, "\nplans ");
    assert_non_null(others);
    *others = '\0'; /* what is left is about the best plan */
    assert_null(strstr(r.out, "in every layer"));
    cli_free(&r);
}

static void what_can_be_no_folder_is_refused_before_the_work(void **state) {
    (void)state;
    char line[512];
    snprintf(line, sizeof line, "%s/file", dir);
    FILE *f = fopen(line, "w");
    assert_non_null(f);
    fclose(f);
    snprintf(line, sizeof line, "plan " JOB "-o %s/file", dir);
    cli_result r = cli_run(line, NULL);
    assert_int_equal(r.code, 2);
    assert_non_null(strstr(r.err, "is no folder"));
    cli_free(&r);
    snprintf(line, sizeof line, "plan " JOB "-o %s/plan.json", dir);
    r = cli_run(line, NULL);
    assert_int_equal(r.code, 2);
    assert_non_null(strstr(r.err, "--out names a file"));
    cli_free(&r);
    snprintf(line, sizeof line, "plan " JOB "-o %s/none/there", dir);
    r = cli_run(line, NULL);
    assert_int_equal(r.code, 1);
    assert_non_null(strstr(r.err, "--report"));
    cli_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_page_has_the_words_of_the_text, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_very_long_step_leaves_small_files, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_simulated_step_is_a_page_of_the_numbers_that_json_prints,
                                        new_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_page_says_how_good_such_predictions_were, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(advice_is_no_slower_than_the_best_single_step, new_folder,
                                        remove_folder),
        cmocka_unit_test(a_target_recomputes_nothing_where_all_fits),
        cmocka_unit_test_setup_teardown(a_plan_lists_its_candidates, new_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_size_without_figures_has_its_place_in_the_table,
                                        new_folder, remove_folder),
        cmocka_unit_test_setup_teardown(sizes_are_a_front_of_time_and_money, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_page_calls_a_remedy_of_a_short_search_so, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_list_of_old_files_removes_nothing_else, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(large_files_of_an_earlier_report_are_removed, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(files_of_an_earlier_report_are_removed, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_command_that_fails_leaves_no_empty_folder, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_card_of_the_smallest_says_how_much_longer_another_takes,
                                        new_folder, remove_folder),
        cmocka_unit_test_setup_teardown(tune_leaves_the_headroom_that_is_asked_for, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(an_interrupted_tune_keeps_what_it_found, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(what_fits_with_the_optimizer_on_the_host_is_planned,
                                        new_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_job_that_does_not_fit_gets_what_would_make_it_fit,
                                        new_folder, remove_folder),
        cmocka_unit_test_setup_teardown(the_best_plan_of_a_job_is_that_of_plan, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(memory_of_a_log_is_held_against_its_like, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(differences_of_an_export_are_added_up, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_log_of_the_job_is_held_against_the_verdict, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(tune_warns_of_the_present_layouts_prices, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_job_is_tuned_and_compared_on_a_page, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(markup_in_a_name_stays_text, new_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_page_proposes_what_the_program_can_do, new_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(what_can_be_no_folder_is_refused_before_the_work,
                                        new_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
