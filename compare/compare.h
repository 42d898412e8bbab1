/* compare.h - measured op times of a training run beside those that were predicted for it. */
#ifndef MF_COMPARE_COMPARE_H
#define MF_COMPARE_COMPARE_H

#include "executor/train/op_times.h"
#include "job/load/job.h"

/* An op template, or all ops of a name outside blocks. Times are of one rank and step. */
typedef struct mf_compare_op {
    const char *where, *name, *pass; /* owned by the program or the measured times */
    bool collective;                 /* measured time holds the wait for other ranks */
    double count;                    /* a rank and step */
    double predicted_s, measured_s;
    double error; /* predicted over measured, minus one */
    bool counts;  /* large enough a share of the step to be judged */
    bool outside; /* judged, and beyond the tolerance */
} mf_compare_op;

typedef struct mf_compare {
    double predicted_s, measured_s, error;  /* step time */
    bool outside;                           /* of the step */
    double ops_predicted_s, ops_measured_s; /* sums over ops: no overlap, no idle time */
    int nops, noutside;
    mf_compare_op *op; /* [nops] largest difference first; owned */
} mf_compare;

/* Ops below this share of the measured step are shown, not judged. */
#define MF_COMPARE_SHARE 0.01

/* The job must be simulated. The caller clears *out. Errors: MF_INPUT for times of another program
 * than the plan's, naming the op. */
mf_status mf_compare_run(const mf_job *j, const mf_op_times *t, double tolerance, mf_compare *out,
                         mf_err *e);
void mf_compare_clear(mf_compare *c);

#endif
