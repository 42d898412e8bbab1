/* page.c - the frame of a page, and figures that name their place in the JSON. */
#include "report/page/page.h"

#include "report/page/style.h"
#include "report/text/show.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { PLACE = 256 };

/* --- the JSON --------------------------------------------------------------------------------- */

static const mf_json_value *follow(const mf_json_value *v, const char *pointer) {
    char key[96];
    while (v != NULL && *pointer == '/') {
        size_t length = strcspn(++pointer, "/");
        snprintf(key, sizeof key, "%.*s", (int)(length < 95 ? length : 95), pointer);
        pointer += length;
        if (mf_json_value_type(v) == MF_JSON_ARRAY) {
            size_t index = strtoul(key, NULL, 10);
            v = index < mf_json_size(v) ? mf_json_at(v, index) : NULL;
        } else {
            v = mf_json_value_type(v) == MF_JSON_OBJECT ? mf_json_find(v, key) : NULL;
        }
    }
    return v != NULL && mf_json_value_type(v) == MF_JSON_NULL ? NULL : v;
}

/* A pointer in full. */
static void place_of(const mf_page *p, const char *pointer, va_list args, char out[PLACE]) {
    const int used = snprintf(out, PLACE, "%.60s", p->under);
    vsnprintf(out + used, (size_t)(PLACE - used), pointer, args);
}

const mf_json_value *mf_page_at(const mf_page *p, const char *pointer, ...) {
    char place[PLACE];
    va_list args;
    va_start(args, pointer);
    place_of(p, pointer, args, place);
    va_end(args);
    return follow(p->root, place);
}

double mf_page_number(const mf_json_value *v) {
    double x = 0;
    return v != NULL && mf_json_f64(v, -1e300, 1e300, &x, NULL) == MF_OK ? x : 0;
}

const char *mf_page_string(const mf_json_value *v) {
    const char *text = NULL;
    return v != NULL && mf_json_string(v, &text, NULL) == MF_OK ? text : "";
}

bool mf_page_true(const mf_json_value *v) {
    bool x = false;
    return v != NULL && mf_json_bool(v, &x, NULL) == MF_OK && x;
}

/* --- text ------------------------------------------------------------------------------------- */

static void write_text(FILE *f, const char *text, size_t length) {
    for (const char *end = text + length; text < end; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", f);
            break;
        case '>':
            fputs("&gt;", f);
            break;
        case '&':
            fputs("&amp;", f);
            break;
        case '"':
            fputs("&quot;", f);
            break;
        default:
            putc(*text, f);
        }
    }
}

void mf_page_text(const mf_page *p, const char *text) {
    write_text(p->f, text, strlen(text));
}

static bool is_one_of(const char *word, size_t length, const char *const *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (strlen(list[i]) == length && memcmp(list[i], word, length) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether a line must not break between two words: "4.272 s", "9.2 %", "128 x", "EP 8". */
static bool belong_together(const char *word, size_t length, const char *next, size_t next_length) {
    static const char *const units[] = {
        "%",     "s",    "ms",  "us",      "ns",          "min",      "h",
        "d",     "days", "x",   "B",       "kB",          "MB",       "GB",
        "TB",    "MiB",  "GiB", "TFLOP/s", "TFLOP/s/GPU", "W",        "kW",
        "MW",    "J",    "kJ",  "MJ",      "GJ",          "Wh",       "kWh",
        "MWh",   "GWh",  "USD", "GPU",     "GPUs",        "tokens/s", "tokens/s/GPU",
        "GPU-h", "nodes"};
    static const char *const degrees[] = {"TP",  "CP", "PP",  "VPP",  "EP",
                                          "ETP", "DP", "EDP", "ZeRO", "micro-batch"};
    const char last = word[length - 1];
    while (next_length > 1 && strchr(".,;:)", next[next_length - 1]) != NULL) {
        next_length--;
    }
    if (last >= '0' && last <= '9') {
        return is_one_of(next, next_length, units, sizeof units / sizeof units[0]);
    }
    while (length > 1 && *word == '(') {
        word++, length--;
    }
    return *next >= '0' && *next <= '9' &&
           is_one_of(word, length, degrees, sizeof degrees / sizeof degrees[0]);
}

void mf_page_prose(const mf_page *p, const char *text) {
    while (*text != '\0') {
        const size_t spaces = strspn(text, " ");
        write_text(p->f, text, spaces);
        text += spaces;
        size_t whole = strcspn(text, " "), word = 0;
        const size_t first = whole;
        while (text[whole] == ' ') {
            const char *next = text + whole + 1;
            const size_t length = strcspn(next, " ");
            if (length == 0 || !belong_together(text + word, whole - word, next, length)) {
                break;
            }
            word = whole + 1;
            whole += 1 + length;
        }
        fputs(whole > first ? "<span class=\"keep\">" : "", p->f);
        write_text(p->f, text, whole);
        fputs(whole > first ? "</span>" : "", p->f);
        text += whole;
    }
}

void mf_page_show(mf_page_unit unit, double value, char out[32]) {
    mf_shown s = {""};
    switch (unit) {
    case MF_UNIT_TIME:
        s = mf_show_time(value);
        break;
    case MF_UNIT_DAYS:
        snprintf(s.s, sizeof s.s, "%.1f d", value / 86400);
        break;
    case MF_UNIT_BYTES:
        s = mf_show_bytes(value);
        break;
    case MF_UNIT_SHARE:
        s = mf_show_percent(value);
        break;
    case MF_UNIT_COUNT:
        s = mf_show_count(value);
        break;
    case MF_UNIT_CENTS:
        snprintf(s.s, sizeof s.s, value >= 1 ? "%.2f" : "%.4f", value);
        break;
    case MF_UNIT_WHOLE:
        s = mf_show_i64(llround(value));
        break;
    case MF_UNIT_TFLOPS:
        if (value < 1) { /* of CPU ranks */
            s = mf_show_rate(value * 1e12, "FLOP/s");
        } else if (value >= 1000) { /* as wide as below, and so a tile of a phone */
            snprintf(s.s, sizeof s.s, "%.16s TFLOP/s", mf_show_i64(llround(value)).s);
        } else {
            snprintf(s.s, sizeof s.s, "%.1f TFLOP/s", value);
        }
        break;
    case MF_UNIT_WH:
        s = mf_show_rate(value / 3600, "Wh");
        break;
    case MF_UNIT_FACTOR:
        snprintf(s.s, sizeof s.s, "%.3f", value);
        break;
    }
    snprintf(out, 32, "%s", s.s);
}

void mf_page_figure(const mf_page *p, mf_page_unit unit, const char *pointer, ...) {
    char place[PLACE], text[32];
    va_list args;
    va_start(args, pointer);
    place_of(p, pointer, args, place);
    va_end(args);
    const mf_json_value *v = follow(p->root, place);
    if (v == NULL || mf_json_value_type(v) != MF_JSON_NUMBER) {
        putc('-', p->f);
        return;
    }
    mf_page_show(unit, mf_page_number(v), text);
    fprintf(p->f, "<data data-at=\"%s\" value=\"%.17g\">%s</data>", place, mf_page_number(v), text);
}

void mf_page_cell(const mf_page *p, const char *head, const char *style) {
    fputs("<td", p->f);
    if (style[0] != '\0') {
        fprintf(p->f, " class=\"%s\"", style);
    }
    fprintf(p->f, " data-head=\"%s\">", head);
}

/* --- the frame -------------------------------------------------------------------------------- */

/* A script element ends at "</script", wherever that stands: '<' goes in as its escape. */
static void embed(FILE *f, const char *json) {
    fputs("<script type=\"application/json\" id=\"report\">\n", f);
    for (; *json != '\0'; json++) {
        if (*json == '<') {
            fputs("\\u003c", f);
        } else {
            putc(*json, f);
        }
    }
    fputs("</script>\n", f);
}

static void write_inputs(const mf_page *p) {
    const mf_json_value *line = mf_page_at(p, "/command_line");
    fputs("<section><h2>Inputs</h2>\n<pre>", p->f);
    for (size_t i = 0; line != NULL && i < mf_json_size(line); i++) {
        const char *word = mf_page_string(mf_json_at(line, i));
        const bool whole = strlen(word) <= 32; /* not broken at its hyphens */
        fputs(i > 0 ? " " : "", p->f);
        fputs(whole ? "<span class=\"keep\">" : "", p->f);
        mf_page_text(p, word);
        fputs(whole ? "</span>" : "", p->f);
    }
    fputs("</pre>\n<p class=\"note\">Made by ", p->f);
    mf_page_text(p, mf_page_string(mf_page_at(p, "/generator")));
    fputs(". Every figure of this page is a member of the JSON that it embeds, which is also "
          "report.json beside it.</p></section>\n",
          p->f);
}

static void write_verdict(const mf_page *p) {
    const mf_json_value *verdict = mf_page_at(p, "/verdict");
    if (verdict != NULL) {
        fputs("<p class=\"lead\">", p->f);
        mf_page_prose(p, mf_page_string(verdict));
        fputs(".</p>\n", p->f);
    }
}

/* One a line; those of `capacity` and `tune` stand among their own members. */
static void write_warnings(const mf_page *p) {
    static const char *const places[] = {"/warnings", "/capacity/warnings", "/tune/warnings"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const mf_json_value *list = mf_page_at(p, "%s", places[i]);
        for (size_t k = 0; list != NULL && k < mf_json_size(list); k++) {
            fputs("<p class=\"note\"><b>Warning</b>: ", p->f);
            mf_page_prose(p, mf_page_string(mf_json_at(list, k)));
            fputs("</p>\n", p->f);
        }
    }
}

/* That the work was not done when it was ended. */
static void write_interrupted(const mf_page *p) {
    if (mf_page_true(mf_page_at(p, "/search/interrupted")) ||
        mf_page_true(mf_page_at(p, "/tune/interrupted")) ||
        mf_page_true(mf_page_at(p, "/capacity/interrupted"))) {
        fputs("<p class=\"note\"><b>Interrupted</b>: this is what was found until then.</p>\n",
              p->f);
    }
}

void mf_page_write(FILE *f, const mf_json *report, const char *text) {
    const mf_page p = {.f = f, .root = mf_json_root(report), .under = ""};
    const char *title = mf_page_string(mf_page_at(&p, "/title"));
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<link rel=\"icon\" href=\"data:,\">\n<title>",
          f);
    mf_page_text(&p, title);
    fprintf(f, "</title>\n<style>\n%s%s%s</style></head>\n<body><main>\n<header><h1>",
            mf_page_style, mf_page_plot_style, mf_page_print_style);
    mf_page_prose(&p, title);
    fputs("</h1></header>\n", f);
    write_verdict(&p);
    write_interrupted(&p);
    write_warnings(&p);
    mf_page_job(&p);
    mf_page_step(&p);
    mf_page_capacity(&p);
    mf_page_schedule(&p);
    mf_page_help(&p);
    mf_page_plans(&p);
    mf_page_accuracy(&p);
    mf_page_provenance(&p);
    write_inputs(&p);
    fputs("</main>\n", f);
    embed(f, text);
    fputs("</body></html>\n", f);
}
