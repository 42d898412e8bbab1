/* doubts.h - warnings about a job, its prediction and what these rest on: for people on standard
 * error, one line each, and in JSON as "warnings".
 */
#ifndef MF_REPORT_DOUBTS_H
#define MF_REPORT_DOUBTS_H

#include "core/base/json_write.h"
#include "job/load/job.h"
#include "job/search/runs_on.h"
#include "planner/explain/plausible.h"

/* Of a plan of the job, with its prediction. Plans are lowered for it; where that fails, what the
 * prices rest on is left out. */
void mf_doubts_of_plan(const mf_job *j, const mf_plan *plan, mf_doubts *out);

/* Of a layout and of the plan to change it to, `to`, whose prices may rest on other measurements.
 */
void mf_doubts_of_change(const mf_job *j, const mf_plan *from, const mf_plan *to, mf_doubts *out);

/* Of a plan for Megatron (--runs-on), or beside a log of Megatron's, that has moefold's prices,
 * which nobody asked for. */
void mf_doubt_runner(mf_doubts *out, const mf_job *j, const mf_runs_on *on);

/* "warning: ..." lines; notes NULL: nothing. */
void mf_doubts_print(FILE *notes, const mf_doubts *d);
/* The member "warnings", an array of texts. */
void mf_doubts_json(mf_json_writer *w, const mf_doubts *d);

#endif
