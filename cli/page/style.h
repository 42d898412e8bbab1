/* style.h - how a page looks. */
#ifndef MF_CLI_PAGE_STYLE_H
#define MF_CLI_PAGE_STYLE_H

extern const char mf_page_style[];

#endif
