/* launch.h - ranks of this machine: starting them, and telling that they have been started. */
#ifndef MF_CLI_LAUNCH_H
#define MF_CLI_LAUNCH_H

#include "cli/cli.h"

#include <stdint.h>

/* Runs this program again, with the same arguments, as `ranks` processes under mpirun, and waits;
 * where this build has no MPI, or the machine no mpirun, as processes that meet in a file.
 * SIGINT and SIGTERM (seen through cli->cancel) reach the ranks as a wish to save and end. Returns
 * MF_OK with the ranks' exit code in *code: 1 when one was killed; *lost: a rank was, or hung, or
 * failed by no fault of what was asked for. Errors: MF_LIBRARY when they
 * cannot be started, MF_INTERRUPTED when the wish came before the
 * ranks could hear it and ended them. */
mf_status mf_launch_ranks(const mf_cli *cli, int64_t ranks, int *code, bool *lost, mf_err *e);

#endif
