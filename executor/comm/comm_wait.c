/* comm_wait.c - sched_yield as this program has it: MPI's libraries call it by name and find this
 * one first (executor.mk exports it). */
#define _GNU_SOURCE /* syscall */
#include "executor/comm/comm_wait.h"

#ifdef MF_HAVE_MPI

#include <sched.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SLEEP_ns = 30 * 1000, SLACK_ns = 1000 }; /* slack: the default adds 50,000 */

static atomic_bool sleeps;

void mf_comm_wait_asleep(bool asleep) {
    if (asleep) {
        prctl(PR_SET_TIMERSLACK, SLACK_ns);
    }
    atomic_store(&sleeps, asleep);
}

int sched_yield(void) {
    if (atomic_load_explicit(&sleeps, memory_order_relaxed)) {
        const struct timespec nap = {.tv_nsec = SLEEP_ns};
        return nanosleep(&nap, NULL);
    }
    return (int)syscall(SYS_sched_yield);
}

#else

void mf_comm_wait_asleep(bool asleep) {
    (void)asleep;
}

#endif
