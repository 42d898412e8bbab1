/* host_measure.h - measures this machine's CPU ranks when a command first plans for them. */
#ifndef MF_CLI_HOST_MEASURE_H
#define MF_CLI_HOST_MEASURE_H

#include "job/request.h"

#include <stdio.h>

/* Where the request is for the cluster `cpu` with a number of ranks that nobody has measured on
 * this machine: measures them, keeps the result (job/host_cpu.h) and says so on `notes` (NULL:
 * nowhere). A disturbed measurement is repeated once the cores are free; until then a warning names
 * it. When measuring fails, prices stay the shipped assumptions, and a note says why. Without
 * `train` among the commands of the program it does nothing. */
void mf_host_measure(const mf_job_request *r, FILE *notes);

#endif
