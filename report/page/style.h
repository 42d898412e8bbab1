/* style.h - how a page looks. */
#ifndef MF_REPORT_PAGE_STYLE_H
#define MF_REPORT_PAGE_STYLE_H

extern const char mf_page_style[];
/* Of plots (plot.h). */
extern const char mf_page_plot_style[];
/* On paper, behind it. */
extern const char mf_page_print_style[];

#endif
