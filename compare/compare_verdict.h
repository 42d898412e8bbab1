/* compare_verdict.h - the sentence that ends `compare`: what is off most, by how much, what to do.
 */
#ifndef MF_COMPARE_COMPARE_VERDICT_H
#define MF_COMPARE_COMPARE_VERDICT_H

#include "compare/compare.h"
#include "launch/log/log.h"
#include "report/step/verdict_text.h"

/* Of a run of ours. run: its folder; plan: the plan's file; store, record: the measurements that
 * --store and --record name, or NULL. */
typedef struct mf_compared_run {
    const char *run, *plan, *store, *record;
    double tolerance;
} mf_compared_run;

void mf_verdict_text_compare(mf_verdict_text *v, const mf_compare *c, const mf_compared_run *of);

/* Of a Megatron job's log. plan: the plan's file; out: where the correction went, NULL: nowhere. */
typedef struct mf_compared_log {
    const mf_log *log;
    const char *plan, *out;
    double tolerance;
    double memory_B;  /* predicted */
    bool allocated;   /* that is what PyTorch allocates, as the log counts; else it is all that the
                         GPU holds, which says nothing of the log's */
    bool unexplained; /* no correction brings the prediction there */
    bool doubtful;    /* the correction is (launch/log/correct.h) */
    bool kept;        /* commands find it by themselves (job/kept/corrections.h) */
} mf_compared_log;

void mf_verdict_text_log(mf_verdict_text *v, const mf_job *j, const mf_compared_log *of);

#endif
