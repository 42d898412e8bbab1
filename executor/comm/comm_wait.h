/* comm_wait.h - private to comm/: what a rank does with its core while it waits for others. */
#ifndef MF_EXECUTOR_COMM_WAIT_H
#define MF_EXECUTOR_COMM_WAIT_H

#include <stdbool.h>

/* Open MPI's ranks poll while they wait and, with mpi_yield_when_idle, call sched_yield in each
 * turn. asleep: sched_yield sleeps for tens of microseconds in this process, so that where ranks
 * outnumber cores waiting ranks do not take time from working ones. Otherwise it yields, so that
 * where every rank has a core waiting ranks answer immediately. */
void mf_comm_wait_asleep(bool asleep);

/* One turn of a waiting loop. Yielding returns immediately when no other process wants the core;
 * otherwise it costs the other's whole time slice, and a step has hundreds of waits. After a yield
 * that took so long, the next turns sleep for tens of microseconds each: the scheduler prefers a
 * process that slept. */
void mf_comm_give_way(void);

#endif
