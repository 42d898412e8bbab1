/* measure_take.h - takes what the measuring program reads into a store, as it comes. */
#ifndef MF_EXECUTOR_MEASURE_TAKE_H
#define MF_EXECUTOR_MEASURE_TAKE_H

#include "executor/measure/measure_worker.h"
#include "profiles/store.h"

/* After each point: how many of all were read, and the op of this one. */
typedef void (*mf_measure_progress_fn)(void *user, int64_t done, int64_t all, const char *op);

/* Stores every reading of the list at once, with today's date, until the program ends. *measured
 * and *refused (no kernel takes the shape) count on from where they are, and are right after an
 * error, too. Errors: of mf_measure_worker_next and mf_measure_store_reading. */
mf_status mf_measure_take(mf_measure_worker *w, mf_measure_list *l, mf_store *store,
                          const mf_measure_machine *machine, mf_measure_progress_fn progress,
                          void *user, int64_t *measured, int64_t *refused, mf_err *e);

#endif
