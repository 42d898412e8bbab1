/* comm_wait.h - private to comm/: what a rank does with its core while it waits for others. */
#ifndef MF_EXECUTOR_COMM_WAIT_H
#define MF_EXECUTOR_COMM_WAIT_H

#include <stdbool.h>

/* Open MPI's ranks wait in a loop; told to be kind (mpi_yield_when_idle), they call sched_yield in
 * each turn. Where ranks outnumber cores that takes turns of the ranks which have work: from now on
 * sched_yield sleeps in this process, for tens of microseconds. Where every rank has a core, it
 * gives way: waiting ranks then answer at once. */
void mf_comm_wait_asleep(bool asleep);

/* One turn of waiting. A yield answers at once where nobody else wants the core. Where others do it
 * costs all of their turn, and a step has hundreds: what took so long is followed by turns that
 * sleep, for tens of microseconds each, behind which the scheduler lets the rank go first. */
void mf_comm_give_way(void);

#endif
