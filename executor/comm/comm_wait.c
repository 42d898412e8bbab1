/* comm_wait.c - how a waiting rank yields its core. Defines sched_yield for the whole program:
 * MPI's libraries call it by name and find this one first (executor.mk exports it). */
#define _GNU_SOURCE /* syscall */
#include "executor/comm/comm_wait.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SLEEP_ns = 30 * 1000,
    SLACK_ns = 1000,       /* the default adds 50,000 */
    TAKEN_ns = 200 * 1000, /* if a yield takes longer, another process had the core, */
    NAPS = 4096            /* and the next so many turns sleep */
};

static atomic_int naps; /* left */

static void nap(void) {
    const struct timespec t = {.tv_nsec = SLEEP_ns};
    nanosleep(&t, NULL);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void mf_comm_give_way(void) {
    if (atomic_load_explicit(&naps, memory_order_relaxed) > 0) {
        atomic_fetch_sub_explicit(&naps, 1, memory_order_relaxed);
        nap();
        return;
    }
    const int64_t before_ns = now_ns();
    (void)syscall(SYS_sched_yield);
    if (now_ns() - before_ns > TAKEN_ns) {
        prctl(PR_SET_TIMERSLACK, SLACK_ns);
        atomic_store_explicit(&naps, NAPS, memory_order_relaxed);
    }
}

#ifdef MF_HAVE_MPI

static atomic_bool sleeps;

void mf_comm_wait_asleep(bool asleep) {
    if (asleep) {
        prctl(PR_SET_TIMERSLACK, SLACK_ns);
    }
    atomic_store(&sleeps, asleep);
}

int sched_yield(void) {
    if (atomic_load_explicit(&sleeps, memory_order_relaxed)) {
        nap();
    } else {
        mf_comm_give_way();
    }
    return 0;
}

#else

void mf_comm_wait_asleep(bool asleep) {
    (void)asleep;
}

#endif
