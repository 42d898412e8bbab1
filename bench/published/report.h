/* report.h - docs/ACCURACY.md from predicted rows. */
#ifndef MF_PUBLISHED_REPORT_H
#define MF_PUBLISHED_REPORT_H

#include "bench/published/predict.h"

#include <stdio.h>

/* Writes the report; the same rows and profiles give the same bytes. */
void pub_report(FILE *f, const pub_profiles *p, const pub_row *rows, int count);
/* The few lines that the command prints. */
void pub_summary(FILE *f, const pub_row *rows, int count);

/* What the programs behind the rows do that a layout does not say: a table in words. */
void pub_mechanisms(FILE *f);

#endif
