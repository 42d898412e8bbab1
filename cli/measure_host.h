/* measure_host.h - measures ranks on this machine's CPU cores, once, for the cluster `cpu`. */
#ifndef MF_CLI_MEASURE_HOST_H
#define MF_CLI_MEASURE_HOST_H

#include "cli/args_request.h"

/* Where the command line plans for the cluster `cpu` with so many ranks, and nobody has measured
 * them here: trains a small model on them for ten steps (seconds), keeps what ops and steps took
 * (job/host_cpu.h) and says so in a line of a->notes. Where that fails the shipped assumptions
 * stand, and why is said. Does nothing in a program without `train`. */
void mf_measure_host(const mf_args *a, const mf_job_request *r);

#endif
