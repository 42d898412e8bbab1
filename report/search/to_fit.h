/* to_fit.h - the table of what would make a layout fit. */
#ifndef MF_REPORT_TO_FIT_H
#define MF_REPORT_TO_FIT_H

#include "core/base/json_write.h"
#include "job/load/job.h"
#include "launch/steps/steps.h"

#include <stdio.h>

#define MF_TO_FIT_SHOWN 6

/* now_s: step time as it is, of which each costs a share; 0 = there is none to compare with. */
void mf_to_fit_print(FILE *out, const mf_job *j, const mf_steps *steps, double now_s);
/* "to_fit": [{"what", "step_time_s", "peak_memory_B", "host_copies"}], the last of steps that copy.
 */
void mf_to_fit_json(mf_json_writer *w, const mf_job *j, const mf_steps *steps);

#endif
