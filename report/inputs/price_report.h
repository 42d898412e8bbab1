/* price_report.h - the price of one op, and all ops that have one, for people and as JSON. */
#ifndef MF_REPORT_PRICE_REPORT_H
#define MF_REPORT_PRICE_REPORT_H

#include "core/base/json_write.h"
#include "job/figures/op_price.h"

#include <stdio.h>

void mf_price_report_print(FILE *out, const mf_op_priced *p, const mf_cost *cost);
/* Members of the object that is open in w. */
void mf_price_report_json(mf_json_writer *w, const mf_op_priced *p, const mf_cost *cost);

/* Every op with its keys, their defaults and what they mean. */
void mf_price_report_ops(FILE *out);
/* The same as a JSON array, which is all that w holds. */
void mf_price_report_ops_json(mf_json_writer *w);

#endif
