/* comm_launch.h - several ranks on this host, without MPI: processes that meet in a file. */
#ifndef MF_EXECUTOR_COMM_LAUNCH_H
#define MF_EXECUTOR_COMM_LAUNCH_H

#include "core/base/status.h"

#include <signal.h>
#include <stdint.h>

/* Starts the program argv[0] (a path; argv ends with NULL) `ranks` times, each with its
 * MOEFOLD_RANK (executor/comm/comm.h), and waits for all. When one has ended with another exit code
 * than 0, or by a signal, the others have two seconds to end by themselves. *code: 0, or the exit
 * code of the first that failed, 128 and the number for a signal. While *cancel (NULL is fine) is
 * not 0, the ranks get SIGUSR1 every half second, as mpirun would pass it on. Ranks end with this
 * process. Errors: MF_LIBRARY, MF_NOMEM. */
mf_status mf_comm_launch(int64_t ranks, char *const *argv, const volatile sig_atomic_t *cancel,
                         int *code, mf_err *e);

#endif
