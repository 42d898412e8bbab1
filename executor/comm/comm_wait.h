/* comm_wait.h - private to comm.c: what a rank does with its core while it waits for others. */
#ifndef MF_EXECUTOR_COMM_WAIT_H
#define MF_EXECUTOR_COMM_WAIT_H

#include <stdbool.h>

/* Open MPI's ranks wait in a loop; told to be kind (mpi_yield_when_idle), they call sched_yield in
 * each turn. Where ranks outnumber cores that takes turns of the ranks which have work: from now on
 * sched_yield sleeps in this process, for tens of microseconds. Where every rank has a core, it
 * should stay as it is: waiting ranks then answer at once. */
void mf_comm_wait_asleep(bool asleep);

#endif
