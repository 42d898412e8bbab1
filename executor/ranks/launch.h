/* launch.h - starts ranks on this machine, and tells a process that it is one of them. */
#ifndef MF_EXECUTOR_LAUNCH_H
#define MF_EXECUTOR_LAUNCH_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The command that is run again by the ranks. */
typedef struct mf_launch_call {
    int argc;                /* the whole command line */
    const char *const *argv; /* argv[0] is left out */
    FILE *out, *err;
    const volatile int *cancel; /* becomes non-zero on SIGINT, SIGTERM, SIGUSR1; may be NULL */
} mf_launch_call;

/* Runs this program again, with the same arguments, as `ranks` processes under mpirun, and waits
 * for them; without MPI in this build or mpirun on this machine, as processes that share a file.
 * SIGINT and SIGTERM (seen through call->cancel) are passed on to the ranks, which save and end.
 * Returns MF_OK with the ranks' exit code in *code, 1 when one was killed. *lost: a rank was
 * killed, hung, or failed for a reason other than its arguments. Errors: MF_LIBRARY when they
 * cannot be started, MF_INTERRUPTED when the signal came before the ranks could handle it and ended
 * them. */
mf_status mf_launch_ranks(const mf_launch_call *call, int64_t ranks, int *code, bool *lost,
                          mf_err *e);

#endif
