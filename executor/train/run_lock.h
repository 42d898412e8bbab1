/* run_lock.h - one run at a time writes to a run's folder.
 *
 * FOLDER/lock is a file with the host, the process and the start of the run that writes there; the
 * process holds a lock of the file system on it, which ends with the process, however that ends. A
 * file without a lock on it was left by a run that was killed: the new run takes it over. On a file
 * system without locks the file's text decides: a process of this host that has ended holds
 * nothing, and a process of another host is taken to be alive.
 */
#ifndef MF_EXECUTOR_TRAIN_RUN_LOCK_H
#define MF_EXECUTOR_TRAIN_RUN_LOCK_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct mf_run_lock mf_run_lock;

/* A killed run takes moments to end; a restart waits this long for it. */
#define MF_RUN_LOCK_PATIENCE_S 5.0

/* Takes FOLDER/lock within `patience_s` seconds; FOLDER must exist. former: the run that left the
 * file behind without releasing it, "run on HOST (process 4711, since 2026-01-31T12:00:00Z)"; "":
 * none. The caller releases *out. Errors: MF_USAGE naming the run that holds it; MF_IO. */
mf_status mf_run_lock_take(const char *folder, double patience_s, mf_run_lock **out, char *former,
                           size_t size, mf_err *e);
/* Checks that the folder is still the one that was locked; MF_OK for NULL. Errors: MF_IO when the
 * folder is gone or was replaced. */
mf_status mf_run_lock_stands(const mf_run_lock *l, mf_err *e);
/* Frees l; NULL is fine. ended: also removes the file and its lock; otherwise the process keeps the
 * lock until it exits.
 */
void mf_run_lock_release(mf_run_lock *l, bool ended);

#endif
