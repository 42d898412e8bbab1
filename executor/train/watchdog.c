/* watchdog.c - the thread that watches a device. */
#include "executor/train/watchdog.h"
#include "core/base/clock.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

enum { NOTHING = 0, PERIOD_MS = 50 };

struct mf_watchdog {
    mf_watchdog_options o;
    atomic_llong step; /* that the host waits for; NOTHING */
    atomic_bool stop;
    pthread_t thread;
};

static double patience_s(const mf_watchdog *w, int64_t progress) {
    return w->o.patience_s + (w->o.waits(w->o.user, progress) ? MF_WATCHDOG_YIELDS_S : 0.0);
}

static void *watch(void *arg) {
    mf_watchdog *w = arg;
    const struct timespec period = {.tv_nsec = PERIOD_MS * 1000 * 1000};
    /* More time than this between two polls means that this process itself was stopped and
     * continued; the device's number may be as old. */
    const double jump_s = fmax(4e-3 * PERIOD_MS, 0.25 * w->o.patience_s);
    int64_t step = NOTHING, progress = 0;
    double since_s = mf_clock_s(), last_s = since_s;
    while (!atomic_load(&w->stop)) {
        const bool jumped = mf_clock_s() - last_s > jump_s;
        last_s = mf_clock_s();
        const int64_t step_now = atomic_load(&w->step);
        const int64_t progress_now = step_now != NOTHING ? w->o.progress(w->o.user) : 0;
        if (jumped || step_now == NOTHING || step_now != step || progress_now != progress) {
            step = step_now;
            progress = progress_now;
            since_s = mf_clock_s();
        } else if (mf_clock_s() - since_s > patience_s(w, progress)) {
            w->o.hangs(w->o.user, step, progress);
            return NULL;
        }
        nanosleep(&period, NULL);
    }
    return NULL;
}

mf_status mf_watchdog_open(const mf_watchdog_options *o, mf_watchdog **out, mf_err *e) {
    mf_watchdog *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w == NULL) {
        return mf_err_set(e, MF_NOMEM, "watchdog: out of memory");
    }
    w->o = *o;
    if (pthread_create(&w->thread, NULL, watch, w) != 0) {
        free(w);
        return mf_err_set(e, MF_LIBRARY, "pthread_create: no watching thread");
    }
    *out = w;
    return MF_OK;
}

void mf_watchdog_wait(mf_watchdog *w, int64_t step) {
    if (w != NULL) {
        atomic_store(&w->step, step);
    }
}

void mf_watchdog_rest(mf_watchdog *w) {
    mf_watchdog_wait(w, NOTHING);
}

void mf_watchdog_close(mf_watchdog *w) {
    if (w != NULL) {
        atomic_store(&w->stop, true);
        pthread_join(w->thread, NULL);
        free(w);
    }
}
