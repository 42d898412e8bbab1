/* show.c - numbers and tables for people. */
#include "report/text/show.h"

#include "core/base/number_text.h"
#include "report/text/screen.h"

#include <math.h>
#include <string.h>

typedef struct scale {
    double from;
    const char *unit;
} scale;

/* Three or four figures that matter, in the largest unit that leaves at least one before the point.
 */
static mf_shown scaled(double v, const scale *scales, size_t count, const char *gap,
                       const char *suffix) {
    mf_shown t;
    double size = fabs(v);
    size_t i = 0;
    if (!isfinite(v)) {
        snprintf(t.s, sizeof t.s, "-");
        return t;
    }
    while (i + 1 < count && size < scales[i].from * 0.9995) {
        i++;
    }
    double x = v / scales[i].from;
    int digits = fabs(x) >= 999.5 ? 0 : fabs(x) >= 99.95 ? 1 : fabs(x) >= 9.995 ? 2 : 3;
    if (size <= 0) {
        digits = 0;
    }
    snprintf(t.s, sizeof t.s, "%.*f%s%s%s", digits, x, gap, scales[i].unit, suffix);
    return t;
}

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

mf_shown mf_show_time(double time_s) {
    static const scale scales[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}};
    if (time_s <= 0) {
        return (mf_shown){"0 s"};
    }
    if (time_s >= 9999.5 && time_s < 1e15) {
        mf_shown t;
        snprintf(t.s, sizeof t.s, "%.28s s", mf_show_i64(llround(time_s)).s);
        return t;
    }
    return scaled(time_s, scales, COUNT(scales), " ", "");
}

mf_shown mf_show_bytes(double bytes) {
    static const scale scales[] = {{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}, {1, "B"}};
    mf_shown t;
    if (fabs(bytes) < 1000) {
        snprintf(t.s, sizeof t.s, "%.0f B", bytes);
        return t;
    }
    return scaled(bytes, scales, COUNT(scales), " ", "");
}

mf_shown mf_show_count(double n) {
    static const scale scales[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}, {1, ""}};
    mf_shown t;
    if (fabs(n) < 1000) {
        snprintf(t.s, sizeof t.s, "%.0f", n);
        return t;
    }
    return scaled(n, scales, COUNT(scales), "", "");
}

mf_shown mf_show_percent(double share) {
    mf_shown t;
    snprintf(t.s, sizeof t.s, "%.1f %%", 100 * share);
    return t;
}

mf_shown mf_show_rate(double per_s, const char *unit) {
    static const scale scales[] = {{1e15, "P"}, {1e12, "T"}, {1e9, "G"},
                                   {1e6, "M"},  {1e3, "k"},  {1, ""}};
    return scaled(per_s, scales, COUNT(scales), " ", unit);
}

mf_shown mf_show_i64(long long n) {
    mf_shown t;
    snprintf(t.s, sizeof t.s, "%s", mf_number_text(n).s);
    return t;
}

void mf_show_bar(FILE *out, double value, double whole, int width) {
    int filled = whole > 0 ? (int)lround(value / whole * width) : 0;
    if (filled > 0) {
        fputs("  ", out);
    }
    for (int i = 0; i < filled && i < width; i++) {
        putc('#', out);
    }
}

bool mf_show_is_unit(const char *at, size_t size) {
    static const char *const units[] = {"%", "B", "kB", "MB", "GB", "TB",  "s",   "ms",  "us", "d",
                                        "W", "J", "kJ", "MJ", "Wh", "kWh", "MWh", "GWh", "MHz"};
    size_t length = 0;
    while (length < size && strchr(" \n,;.:)!", at[length]) == NULL) {
        length++;
    }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strlen(units[i]) == length && strncmp(at, units[i], length) == 0) {
            return true;
        }
    }
    return false;
}

/* Of the word at p; "39 %" and "1.5 GB" are one. */
static size_t word_length(const char *p) {
    size_t n = strcspn(p, " \n");
    bool number = n > 0 && p[n - 1] >= '0' && p[n - 1] <= '9';
    return number && p[n] == ' ' && mf_show_is_unit(p + n + 1, strlen(p + n + 1))
               ? n + 1 + strcspn(p + n + 1, " \n")
               : n;
}

void mf_show_name(FILE *out, const char *text, int width) {
    enum { INDENT = 2 }; /* of lines after the first */
    int at = 0;
    fputs("  ", out);
    for (const char *p = text; *p != '\0';) {
        const int blank = *p == ' ';
        const int word = (int)strcspn(p + blank, " ,");
        const int length = word + (p[blank + word] == ',');
        if (at > INDENT && at + blank + length > width) {
            fprintf(out, "\n  %*s", INDENT, "");
            at = INDENT;
        } else if (blank) {
            putc(' ', out);
            at++;
        }
        fprintf(out, "%.*s", length, p + blank);
        at += length;
        p += blank + length;
    }
    fprintf(out, "%*s", at < width ? width - at : 0, "");
}

void mf_show_wrap_at(FILE *out, const char *text, int column, int indent, int width) {
    const char *p = text;
    int at = column;
    while (*p != '\0') {
        if (*p == '\n') {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
            p++;
            continue;
        }
        size_t length = word_length(p);
        if (at > indent && at + (int)length > width) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
        }
        fprintf(out, "%.*s", (int)length, p);
        at += (int)length;
        p += length;
        if (*p == ' ') {
            size_t next = word_length(p + 1);
            if (at + 1 + (int)next <= width) {
                putc(' ', out);
                at++;
            } else {
                fprintf(out, "\n%*s", indent, "");
                at = indent;
            }
            p++;
        }
    }
    putc('\n', out);
}

void mf_show_wrap(FILE *out, const char *text, int column, int indent, int width) {
    const int columns = mf_screen_columns(width), narrow = columns < width ? columns : width;
    mf_show_wrap_at(out, text, column, indent <= narrow / 2 ? indent : 4, narrow);
}

void mf_show_roff(FILE *out, const char *text) {
    bool first = true;
    for (; *text != '\0'; text++) {
        if (first && (*text == '.' || *text == '\'')) {
            fputs("\\&", out);
        }
        first = *text == '\n';
        if (*text == '\\') {
            fputs("\\e", out);
        } else if (*text == '-') {
            fputs("\\-", out);
        } else if (*text == '\n') {
            fputs("\n.PP\n", out);
        } else {
            putc(*text, out);
        }
    }
    putc('\n', out);
}

const char *mf_show_limits_kept(bool timed, bool paid, bool in_time, bool in_budget) {
    if (!in_time) {
        return in_budget ? "misses the deadline" : "misses deadline and budget";
    }
    return !in_budget ? "misses the budget"
           : !timed   ? !paid ? "" : "keeps the budget"
           : !paid    ? "keeps the deadline"
                      : "keeps both";
}
