/* today.h - which day it is, as far as answers depend on it: how old a price is, the date that a
 * file is written with. */
#ifndef MF_BASE_TODAY_H
#define MF_BASE_TODAY_H

#include <stddef.h>
#include <stdint.h>

/* Days since 1970-01-01 in UTC; of the second that SOURCE_DATE_EPOCH names, where it is set to one
 * (as builds and tests do that are to give the same bytes on any day). */
int64_t mf_today(void);

/* "2026-11-30" of such days; "" where the calendar of this host ends before it. */
void mf_today_text(int64_t days, char out[16]);

#endif
