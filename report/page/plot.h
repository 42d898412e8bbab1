/* plot.h - points of two quantities, with their bands, and the front marked: no other point is as
 * small in both. Boxes of CSS, so that it has no script and follows the width.
 */
#ifndef MF_REPORT_PAGE_PLOT_H
#define MF_REPORT_PAGE_PLOT_H

#include "report/page/page.h"

/* A value and its band; a band of no width is not drawn. */
typedef struct mf_plot_value {
    double is, low, high;
} mf_plot_value;

typedef struct mf_plot_point {
    mf_plot_value x, y; /* above 0 on logarithmic scales */
    int colour;
    bool front, tagged;
    char title[256];       /* what pointing at it shows */
    char tag[96];          /* beside it: "/..." is the place of a figure in the JSON, else a text */
    mf_page_unit tag_unit; /* of the figure */
} mf_plot_point;

typedef struct mf_plot_axis {
    mf_page_unit unit; /* of its ticks */
    bool days;         /* ticks are days, of seconds; on logarithmic scales alone */
    double limit;      /* a line there, where it lies between the ends; 0: none */
    double low, high;  /* set by mf_plot_write: its ends */
} mf_plot_axis;

typedef struct mf_plot {
    mf_plot_axis x, y;
    bool logarithmic; /* ticks in multiples of powers of ten, as counts; else even ones */
    mf_plot_point *point;
    int count;
} mf_plot;

/* Sets `front` and `tagged` of every point that no other one is as small as in both and smaller in
 * one. */
void mf_plot_mark_front(mf_plot *plot);

/* A tag for which there is no space near its point is left out. */
void mf_plot_write(const mf_page *p, mf_plot *plot);

#endif
