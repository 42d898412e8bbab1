/* account_report.h - what the ops of a stage cost one by one, for people and as JSON. */
#ifndef MF_REPORT_ACCOUNT_REPORT_H
#define MF_REPORT_ACCOUNT_REPORT_H

#include "core/base/json_write.h"
#include "job/figures/account.h"

#include <stdio.h>

/* top: so many of the costliest ops. */
void mf_account_report_print(FILE *out, const mf_account *a, int top);
/* Members of the object that is open: all of them, and of these "prices_rest_on" alone, time and
 * share by basis. */
void mf_account_report_json(mf_json_writer *w, const mf_account *a, int top);
void mf_account_report_json_bases(mf_json_writer *w, const mf_account *a);

#endif
