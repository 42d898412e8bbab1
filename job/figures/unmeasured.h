/* unmeasured.h - how much of a plan's time rests on prices that nobody measured on its GPU. */
#ifndef MF_JOB_UNMEASURED_H
#define MF_JOB_UNMEASURED_H

#include "job/load/job.h"
#include "planner/explain/plausible.h"

/* Shares of the time of the first stage's ops by what their prices rest on; all 0 where the plan
 * cannot be lowered. It is lowered anew: about a millisecond. */
void mf_basis_shares(const mf_job *j, const mf_layout *l, const mf_assignment *a,
                     double out[MF_BASIS_COUNT]);

/* Of them what rests on data sheets or on another GPU. */
double mf_unmeasured_of(const double share[MF_BASIS_COUNT]);

/* The same of a plan: share of the time of the first stage's ops that rests on data sheets or on
 * another GPU. */
double mf_unmeasured_share(const mf_job *j, const mf_layout *l, const mf_assignment *a);

/* Warns of a share above MF_UNMEASURED_SHARE, unless the job's machine was measured. */
void mf_doubt_prices(mf_doubts *out, const mf_job *j, double share);

#endif
