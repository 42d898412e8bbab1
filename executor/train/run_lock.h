/* run_lock.h - one run at a time writes to a run's folder.
 *
 * FOLDER/lock is a file with the host, the process and the start of the run that writes there; the
 * process holds a lock of the file system on it, which ends with the process, however that ends. A
 * file that is there without a lock on it is left over from a run that was killed: it is taken
 * over. Where a file system knows no locks what stands in the file decides: a process of this host
 * that is gone holds nothing, one of another host is believed.
 */
#ifndef MF_EXECUTOR_TRAIN_RUN_LOCK_H
#define MF_EXECUTOR_TRAIN_RUN_LOCK_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct mf_run_lock mf_run_lock;

/* A run that is killed takes moments to end; whoever starts it again waits for that. */
#define MF_RUN_LOCK_PATIENCE_S 5.0

/* Takes FOLDER/lock, within `patience_s` seconds; FOLDER is there. former: who left the file behind
 * without letting go of it, "run on HOST (process 4711, since 2026-01-31T12:00:00Z)"; "": nobody.
 * *out is to be released. Errors: MF_USAGE naming the run that holds it; MF_IO. */
mf_status mf_run_lock_take(const char *folder, double patience_s, mf_run_lock **out, char *former,
                           size_t size, mf_err *e);
/* Is the folder still the one that was locked? Errors: MF_IO: it is gone, or another. NULL: yes. */
mf_status mf_run_lock_stands(const mf_run_lock *l, mf_err *e);
/* Frees; NULL is fine. ended: removes the file and lets go; else the process holds it to its end.
 */
void mf_run_lock_release(mf_run_lock *l, bool ended);

#endif
