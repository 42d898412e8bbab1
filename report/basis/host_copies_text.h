/* host_copies_text.h - what rests on copies to host memory, for people and as JSON. */
#ifndef MF_REPORT_HOST_COPIES_TEXT_H
#define MF_REPORT_HOST_COPIES_TEXT_H

#include "core/base/json_write.h"
#include "job/search/host_copies.h"
#include "launch/steps/steps.h"

#include <stdio.h>

/* A line where the plan copies, or a search found that it would gain by it; else nothing. */
void mf_host_copies_print(FILE *out, const mf_host_copies *h);
/* Below a table: what was not measured of copies that `who` make ("3 steps rest"). Nothing where *h
 * does not copy or all was measured. */
void mf_host_copies_print_note(FILE *out, const mf_host_copies *h, const char *who);
/* The same below steps, or plans, of the job. */
void mf_host_copies_print_steps(FILE *out, const mf_job *j, const mf_steps *steps);
void mf_host_copies_print_plans(FILE *out, const mf_job *j, const mf_search_result *r);
/* Member "host_copies" of the object that is open; of steps only where they copy. */
void mf_host_copies_json_step(mf_json_writer *w, const mf_job *j, const mf_one_step *s);
void mf_host_copies_json(mf_json_writer *w, const mf_host_copies *h);

#endif
