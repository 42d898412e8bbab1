/* compare_correction.h - the factor that brings a software profile's predictions to what a log
 * measured, and where it is kept.
 */
#ifndef MF_COMPARE_COMPARE_CORRECTION_H
#define MF_COMPARE_COMPARE_CORRECTION_H

#include "job/load/job.h"
#include "launch/log/log.h"

typedef struct mf_log_correction_request {
    const char *log; /* its path, which the correction names */
    const char *out; /* file that it is written to, or NULL */
    bool keep;       /* it is kept where commands find it by themselves (job/kept/corrections.h) */
    bool force;      /* written even where it is doubtful */
} mf_log_correction_request;

typedef struct mf_log_correction {
    double factor;    /* NAN: none brings the prediction there */
    double nearest_s; /* the step nearest to what was measured that factors give */
    bool doubtful;    /* the factor is (launch/log/correct.h) */
    bool withheld;    /* it was to be written and was not: the log may be of another job */
    char kept[1024];  /* file that it is kept in; "" unless asked */
} mf_log_correction;

/* Finds the factor for a job that was simulated, and writes it where it was asked for. Errors:
 * MF_INPUT where no factor explains the log and it was to be written; those of writing. */
mf_status mf_compare_correct(const mf_job *j, const mf_log *l, const mf_log_correction_request *r,
                             mf_log_correction *out, mf_err *e);

#endif
