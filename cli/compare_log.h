/* compare_log.h - `moefold compare --log`: a plan's prediction beside what a Megatron job printed.
 */
#ifndef MF_CLI_COMPARE_LOG_H
#define MF_CLI_COMPARE_LOG_H

#include "cli/cli.h"

/* Prints both, and with --out writes the correction as a software profile, with --correct keeps it
 * (job/kept/corrections.h). Errors: MF_USAGE without
 * --plan; MF_INPUT for a log without step times; MF_TOLERANCE without words beyond --tolerance: the
 * verdict says it. */
mf_status mf_compare_log(const mf_args *a, const mf_cli *cli, mf_err *e);

#endif
