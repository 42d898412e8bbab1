/* fit_report.h - which combinations of degrees fit, for people and as JSON. */
#ifndef MF_REPORT_FIT_REPORT_H
#define MF_REPORT_FIT_REPORT_H

#include "core/base/json_write.h"
#include "job/load/job.h"
#include "job/search/runs_on.h"
#include "launch/steps/steps.h"
#include "planner/planner.h"

#include <stdio.h>

/* The job, a table of the combinations that fit, of `top` lines at most (by time, where some are
 * timed), a table of those that do not, of `top_missing` lines at most. */
void mf_fit_report_print(FILE *out, const mf_job *j, const mf_fit_result *r, int64_t top,
                         int64_t top_missing);

/* What would make the job fit, each remedy with the time of the fastest plan that was found so. */
void mf_fit_report_remedies(FILE *out, const mf_job *j, const mf_steps *steps);

/* The fastest plans of a short search as a table, whose heading says that it searched `among`;
 * prints nothing when there are none. */
void mf_fit_report_fastest(FILE *out, const mf_job *j, const char *among,
                           const mf_search_result *r);
/* Who is to run what is listed, and what that costs the fastest plan; nothing without a limit. */
void mf_fit_report_runs_on(FILE *out, const mf_runs_on *on, const mf_search_result *r);
/* The same as member "fastest" of the object that is open: {"with": options beside the job's own,
 * "lower_bound_s", "gap", "ended_by", "ended", of a limited search "runs_on" and
 * "unlimited_step_time_s", "plans": [...]}, or null. */
void mf_fit_report_json_fastest(mf_json_writer *w, const mf_job *j, const char *with,
                                const mf_search_result *r);

/* Members of the object that is open in w. "entries" (of those that are timed with "step_time_s",
 * "timed_by", "timed_layout" and "timed_peak_memory_B") holds at most `top` combinations that fit
 * and `top` that do not. */
void mf_fit_report_json(mf_json_writer *w, const mf_job *j, const mf_fit_result *r, int64_t top,
                        bool interrupted);

#endif
