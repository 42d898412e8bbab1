/* search_report.h - what a search did and found, for people and as JSON. */
#ifndef MF_REPORT_SEARCH_REPORT_H
#define MF_REPORT_SEARCH_REPORT_H

#include "core/base/json_write.h"
#include "planner/planner.h"

#include <stdio.h>

/* Its size, its proof, why it ended, what it left out. */
void mf_search_report_print(FILE *out, const mf_search_stats *s);
/* Its line on who limits the space, and what that costs; nothing where nobody does. */
void mf_search_report_print_runs_on(FILE *out, const mf_search_stats *s);
/* A line for each plan, the fastest first. */
void mf_search_report_ranking(FILE *out, const mf_search_result *r);
/* Members "ended_by", the word of the reason, and "ended", its sentence. */
/* "runs_on" and "unlimited_step_time_s", of a limited search. */
void mf_search_report_json_runs_on(mf_json_writer *w, const mf_search_stats *s);
void mf_search_report_json_end(mf_json_writer *w, const mf_search_stats *s);
/* Member "search" of the object that is open; found: there is a plan, and so a gap. */
void mf_search_report_json(mf_json_writer *w, const mf_search_stats *s, bool found);

#endif
