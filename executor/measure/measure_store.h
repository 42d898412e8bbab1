/* measure_store.h - readings of GPUs into a profile store. */
#ifndef MF_EXECUTOR_MEASURE_STORE_H
#define MF_EXECUTOR_MEASURE_STORE_H

#include "executor/measure/measure_machine.h"
#include "executor/measure/measure_reading.h"

/* Opens the store at `path`; one that is not there yet begins with the shipped measurements.
 * Errors: those of stores. */
mf_status mf_measure_store_open(const char *path, mf_store **out, mf_err *e);

/* Puts what was read into the point p (GPU, versions, date as YYYY-MM-DD, times, clock) and the
 * point into the store; the algorithm that it ran with, where there is one, with it or not at all.
 * Errors: those of stores. */
mf_status mf_measure_store_reading(mf_store *store, mf_point *p, const mf_measure_machine *machine,
                                   const char *date, const mf_measure_reading *r, mf_err *e);

#endif
