/* profile_measure.h - `moefold profile` without another action: measures what the store lacks. */
#ifndef MF_CLI_PROFILE_MEASURE_H
#define MF_CLI_PROFILE_MEASURE_H

#include "cli/cli.h"

typedef struct mf_measured {
    char gpu[32];
    int64_t measured, there /* in the store already */, refused /* no kernel takes the shape */;
} mf_measured;

/* Measures this machine's GPUs into the store at `path`, which begins with the shipped measurements
 * when it is not there yet. Every point is stored as soon as it is known. *out is filled in after
 * an error, too. Errors: MF_USAGE (no GPU, or a build that cannot measure: says how measurements
 * made elsewhere are taken in), MF_INPUT (something would spoil the times), MF_LIBRARY,
 * MF_INTERRUPTED, and those of stores. */
mf_status mf_profile_measure(const mf_args *a, const mf_cli *cli, const char *path,
                             mf_measured *out, mf_err *e);

#endif
