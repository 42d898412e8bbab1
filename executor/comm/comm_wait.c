/* comm_wait.c - sched_yield as this program has it: MPI's libraries call it by name and find this
 * one first (executor.mk exports it). */
#define _GNU_SOURCE /* syscall */
#include "executor/comm/comm_wait.h"

#ifdef MF_HAVE_MPI

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    SHORT_ns = 30 * 1000,
    LONG_ns = 300 * 1000,
    SPIN_ns = 200 * 1000,  /* with a core of its own a rank stays awake for so long */
    APART_ns = 100 * 1000, /* between two turns of one wait; more: it is another wait */
    SLACK_ns = 1000        /* the default adds 50,000 */
};

static atomic_bool crowded;
/* Of this thread's wait: when it began, when its last turn ended. */
static _Thread_local int64_t began_ns, turned_ns;

void mf_comm_wait_asleep(bool many) {
    prctl(PR_SET_TIMERSLACK, SLACK_ns);
    atomic_store(&crowded, many);
}

static int64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* An eighth of what it has waited: who waits for long answers little later, and wakes seldom. */
static int64_t nap_of(int64_t waited_ns) {
    const int64_t share = waited_ns / 8;
    return share < SHORT_ns ? SHORT_ns : share < LONG_ns ? share : LONG_ns;
}

int sched_yield(void) {
    const int64_t now_ns = clock_ns();
    int result = 0;
    began_ns = now_ns - turned_ns > APART_ns ? now_ns : began_ns;
    if (now_ns - began_ns < SPIN_ns && !atomic_load_explicit(&crowded, memory_order_relaxed)) {
        result = (int)syscall(SYS_sched_yield);
    } else {
        const struct timespec nap = {.tv_nsec = (long)nap_of(now_ns - began_ns)};
        result = nanosleep(&nap, NULL);
    }
    turned_ns = clock_ns();
    return result;
}

#else

void mf_comm_wait_asleep(bool many) {
    (void)many;
}

#endif
