/* model_report.h - a model and where its parameters are, for people and as JSON. */
#ifndef MF_REPORT_MODEL_REPORT_H
#define MF_REPORT_MODEL_REPORT_H

#include "core/base/json_write.h"
#include "core/model/model.h"

#include <stdio.h>

void mf_model_report_print(FILE *out, const mf_model *m);
/* An object, in the array that is open or alone. */
void mf_model_report_json(mf_json_writer *w, const mf_model *m);

/* A line for each model, below the heads of its columns. */
void mf_model_report_heads(FILE *out);
void mf_model_report_row(FILE *out, const mf_model *m);

#endif
