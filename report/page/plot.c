/* plot.c - points with bands, ticks, and tags where they hide nothing. */
#include "report/page/plot.h"

#include <math.h>
#include <string.h>

void mf_plot_mark_front(mf_plot *plot) {
    for (int i = 0; i < plot->count; i++) {
        mf_plot_point *a = &plot->point[i];
        a->front = true;
        for (int k = 0; k < plot->count; k++) {
            const mf_plot_point *b = &plot->point[k];
            a->front &= !(b->x.is <= a->x.is && b->y.is <= a->y.is &&
                          (b->x.is < a->x.is || b->y.is < a->y.is));
        }
        a->tagged = a->front;
    }
}

/* --- scales ----------------------------------------------------------------------------------- */

static double scaled(const mf_plot *plot, double value) {
    return plot->logarithmic ? log10(value) : value;
}

/* Percent of the plot's width or height. */
static double place(const mf_plot *plot, const mf_plot_axis *a, double value) {
    return 100 * (scaled(plot, value) - a->low) / (a->high - a->low);
}

static void widen(const mf_plot *plot, mf_plot_axis *a, const mf_plot_value *v) {
    a->low = fmin(a->low, scaled(plot, fmin(v->is, v->low)));
    a->high = fmax(a->high, scaled(plot, fmax(v->is, v->high)));
}

/* All bands lie inside, with some space. */
static void set_scales(mf_plot *plot) {
    plot->x.low = plot->y.low = INFINITY;
    plot->x.high = plot->y.high = -INFINITY;
    for (int i = 0; i < plot->count; i++) {
        widen(plot, &plot->x, &plot->point[i].x);
        widen(plot, &plot->y, &plot->point[i].y);
    }
    mf_plot_axis *axes[] = {&plot->x, &plot->y};
    for (int i = 0; i < 2; i++) {
        mf_plot_axis *a = axes[i];
        /* points that are all but alike do not fill a scale */
        const double middle = (a->low + a->high) / 2;
        const double least = plot->logarithmic ? 0 : 0.02 * fabs(middle) + 1e-12;
        const double half = fmax(a->high - middle, least);
        const double margin = plot->logarithmic ? 0.04 : 0.16 * half;
        a->low = middle - half - margin;
        a->high = middle + half + margin;
    }
}

/* --- ticks ------------------------------------------------------------------------------------ */

static void write_tick(const mf_page *p, bool y, double at, const char *text) {
    fprintf(p->f,
            y ? "<span class=\"g\" style=\"bottom:%.2f%%;left:0;right:0;height:1px\">"
                "</span><span class=\"y\" style=\"bottom:%.2f%%\">%s</span>"
              : "<span class=\"g\" style=\"left:%.2f%%;top:0;bottom:0;width:1px\">"
                "</span><span class=\"x\" style=\"left:%.2f%%\">%s</span>",
            at, at, text);
}

/* "80.00 GB" as "80 GB": a tick is a round number. */
static void drop_zeros(char *text) {
    char *point = strchr(text, '.');
    if (point != NULL) {
        const size_t digits = strspn(point + 1, "0123456789");
        char *end = point + 1 + digits, *last = end;
        while (last > point && (last[-1] == '0' || last[-1] == '.')) {
            last--;
            if (*last == '.') {
                break;
            }
        }
        memmove(last, end, strlen(end) + 1);
    }
}

static void show_tick(const mf_plot *plot, const mf_plot_axis *a, double value, char text[32]) {
    if (a->days) {
        snprintf(text, 32, "%g d", value);
        return;
    }
    mf_page_show(plot->logarithmic ? MF_UNIT_COUNT : a->unit, value, text);
    drop_zeros(text);
}

/* Three to seven, at multiples of 1, 2 or 5 of a power of ten. */
static void write_even(const mf_page *p, const mf_plot *plot, const mf_plot_axis *a, bool y) {
    const double unit = a->days ? 86400 : 1;
    const double low = (plot->logarithmic ? pow(10, a->low) : a->low) / unit;
    const double high = (plot->logarithmic ? pow(10, a->high) : a->high) / unit;
    const double whole = high - low, power = pow(10, floor(log10(whole / 3)));
    const double step = power * (whole / 3 >= 5 * power ? 5 : whole / 3 >= 2 * power ? 2 : 1);
    char text[32];
    for (double k = ceil(low / step); k * step <= high; k++) {
        show_tick(plot, a, k * step, text);
        write_tick(p, y, place(plot, a, k * step * unit), text);
    }
}

/* A few multiples of powers of ten: how many. p NULL: they are only counted. */
static int write_powers(const mf_page *p, const mf_plot *plot, const mf_plot_axis *a, bool y) {
    static const double steps[] = {1, 1.5, 2, 3, 5, 7};
    const double unit = a->days ? 86400 : 1;
    char text[32];
    int count = 0;
    for (int e = -3; e < 15; e++) {
        for (int i = 0; i < 6; i++) {
            const double value = steps[i] * pow(10, e), at = place(plot, a, value * unit);
            if (at < 0 || at > 100 || (a->high - a->low > 1 && i % 2 != 0) ||
                (a->high - a->low > 2 && i > 0)) {
                continue;
            }
            count++;
            if (p != NULL) {
                show_tick(plot, a, value, text);
                write_tick(p, y, at, text);
            }
        }
    }
    return count;
}

/* Even ticks stand on a short logarithmic axis, too: one of less than two powers' multiples. */
static void write_ticks(const mf_page *p, const mf_plot *plot, const mf_plot_axis *a, bool y) {
    if (plot->logarithmic && write_powers(NULL, plot, a, y) >= 2) {
        (void)write_powers(p, plot, a, y);
    } else {
        write_even(p, plot, a, y);
    }
}

static void write_limit(const mf_page *p, const mf_plot *plot, const mf_plot_axis *a, bool y) {
    const double at = a->limit > 0 ? place(plot, a, a->limit) : -1;
    if (at >= 0 && at <= 100) {
        fprintf(
            p->f,
            y ? "<span class=\"limit\" style=\"bottom:%.2f%%;left:0;right:0;height:2px\"></span>"
              : "<span class=\"limit\" style=\"left:%.2f%%;top:0;bottom:0;width:2px\"></span>",
            at);
    }
}

/* --- points ----------------------------------------------------------------------------------- */

static void write_point(const mf_page *p, const mf_plot *plot, const mf_plot_point *point) {
    const mf_plot_value *x = &point->x, *y = &point->y;
    const double left = place(plot, &plot->x, x->is), bottom = place(plot, &plot->y, y->is);
    const int c = point->colour;
    if (x->high > x->low) {
        const double from = place(plot, &plot->x, x->low);
        fprintf(p->f,
                "<span class=\"h\" style=\"left:%.2f%%;width:%.2f%%;bottom:%.2f%%;background:"
                "var(--c%d)\"></span>",
                from, place(plot, &plot->x, x->high) - from, bottom, c);
    }
    if (y->high > y->low) {
        const double from = place(plot, &plot->y, y->low);
        fprintf(p->f,
                "<span class=\"v\" style=\"left:%.2f%%;bottom:%.2f%%;height:%.2f%%;background:"
                "var(--c%d)\"></span>",
                left, from, place(plot, &plot->y, y->high) - from, c);
    }
    fprintf(p->f,
            "<span class=\"dot%s\" style=\"left:%.2f%%;bottom:%.2f%%;background:var(--c%d)\" "
            "title=\"",
            point->front ? " front" : "", left, bottom, c);
    mf_page_text(p, point->title);
    fputs("\"></span>\n", p->f);
}

/* --- tags ------------------------------------------------------------------------------------- */

/* Tags stand where they hide neither each other nor a point: boxes in percent of a plot as a phone
 * of 390 px shows it, 298 x 300 px; wider ones shrink them towards their points. */
typedef struct box {
    double left, right, bottom, top;
} box;

enum { TAGS = 64 };                                      /* of one plot, at most */
static const double char_width = 2.4, line_height = 5.4; /* of text of 12 px */
static const double dot_width = 2.6, dot_height = 2.4;   /* from its middle */
enum { PLACES = 6, NEAR = 3 }; /* a name, which could be another point's, stands near its point */
static const double between[PLACES] = {0,    5.4,   -5.4,
                                       10.8, -10.8, 16.2}; /* a tag and its point, upwards */

static bool overlap(const box *a, const box *b) {
    return a->left < b->right && b->left < a->right && a->bottom < b->top && b->bottom < a->top;
}

static bool is_free(const box *at, const box *taken, int count) {
    bool is = at->left >= 0 && at->right <= 100 && at->bottom >= 0 && at->top <= 100;
    for (int i = 0; i < count; i++) {
        is = is && !overlap(at, &taken[i]);
    }
    return is;
}

/* The nearest free place for a tag beside its point, of the first `places`. false: there is none.
 */
static bool find_place(double left, double bottom, double width, int places, const box *taken,
                       int count, box *out) {
    for (int i = 0; i < places; i++) {
        for (int back = 0; back < 2; back++) {
            const double from = back ? left - dot_width - width : left + dot_width;
            const double middle = bottom + between[i];
            *out = (box){from, from + width, middle - line_height / 2, middle + line_height / 2};
            if (is_free(out, taken, count)) {
                return true;
            }
        }
    }
    return false;
}

static double width_of(const mf_page *p, const mf_plot_point *point) {
    char text[32];
    if (point->tag[0] != '/') {
        return char_width * (double)strlen(point->tag);
    }
    mf_page_show(point->tag_unit, mf_page_number(mf_page_at(p, "%s", point->tag)), text);
    return char_width * (double)strlen(text);
}

static void write_tag(const mf_page *p, const mf_plot_point *point, double left, const box *at) {
    const bool back = at->right < left;
    fprintf(p->f, "<span class=\"tag%s\" style=\"%s:%.2f%%;bottom:%.2f%%\">", back ? " back" : "",
            back ? "right" : "left", back ? 100 - left : left, at->bottom);
    if (point->tag[0] == '/') {
        mf_page_figure(p, point->tag_unit, "%s", point->tag);
    } else {
        mf_page_text(p, point->tag);
    }
    fputs("</span>\n", p->f);
}

static void write_tags(const mf_page *p, const mf_plot *plot) {
    box taken[2 * TAGS];
    int count = 0;
    for (int i = 0; i < plot->count && count < TAGS; i++) {
        const double left = place(plot, &plot->x, plot->point[i].x.is);
        const double bottom = place(plot, &plot->y, plot->point[i].y.is);
        taken[count++] =
            (box){left - dot_width, left + dot_width, bottom - dot_height, bottom + dot_height};
    }
    for (int i = 0; i < plot->count && count < 2 * TAGS; i++) {
        const mf_plot_point *point = &plot->point[i];
        const double left = place(plot, &plot->x, point->x.is);
        box at;
        if (point->tagged &&
            find_place(left, place(plot, &plot->y, point->y.is), width_of(p, point),
                       point->tag[0] == '/' ? PLACES : NEAR, taken, count, &at)) {
            write_tag(p, point, left, &at);
            taken[count++] = at;
        }
    }
}

void mf_plot_write(const mf_page *p, mf_plot *plot) {
    set_scales(plot);
    fputs("<div class=\"plot\">", p->f);
    write_ticks(p, plot, &plot->x, false);
    write_ticks(p, plot, &plot->y, true);
    write_limit(p, plot, &plot->x, false);
    write_limit(p, plot, &plot->y, true);
    for (int i = plot->count - 1; i >= 0; i--) { /* those that are named first hide the others */
        write_point(p, plot, &plot->point[i]);
    }
    write_tags(p, plot);
    fputs("</div>\n", p->f);
}
