/* watchdog.h - notices a device that makes no progress while the host waits for it: a kernel that
 * never ends, a collective that other ranks never join.
 *
 * A thread polls a number that the device's own work changes (mf_exec_progress). When it has not
 * changed for `patience_s` while the host waits for a step, the thread calls `hangs` one time,
 * which has to report it and end the process, as the host may wait for ever. When `waits` says that
 * the device waits for other ranks, the call comes MF_WATCHDOG_YIELDS_S later: then all ranks stand
 * still, and the one whose own work does not end reports first.
 */
#ifndef MF_EXECUTOR_WATCHDOG_H
#define MF_EXECUTOR_WATCHDOG_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define MF_WATCHDOG_YIELDS_S 2.0

typedef struct mf_watchdog mf_watchdog;

typedef struct mf_watchdog_options {
    double patience_s;
    int64_t (*progress)(void *user); /* progress is a number that differs from the one before */
    bool (*waits)(void *user, int64_t progress);
    void (*hangs)(void *user, int64_t step, int64_t progress);
    void *user;
} mf_watchdog_options;

/* All calls take NULL. Errors: MF_NOMEM, MF_LIBRARY. */
mf_status mf_watchdog_open(const mf_watchdog_options *o, mf_watchdog **out, mf_err *e);
/* From here on the host waits for the device to end step `step`, or for nothing (NOTHING). */
void mf_watchdog_wait(mf_watchdog *w, int64_t step);
void mf_watchdog_rest(mf_watchdog *w);
void mf_watchdog_close(mf_watchdog *w);

#endif
