/* comm_wait.h - private to comm.c: what a rank does with its core while it waits for others. */
#ifndef MF_EXECUTOR_COMM_WAIT_H
#define MF_EXECUTOR_COMM_WAIT_H

#include <stdbool.h>

/* Open MPI's ranks wait in a loop; told to be kind (mpi_yield_when_idle), they call sched_yield in
 * each turn. In this process that sleeps, the longer the longer a rank has waited, so that waiting
 * takes no turns of those that have work: from the first turn on where ranks outnumber cores
 * (`crowded`), after a fifth of a millisecond where every rank has a core and should answer at
 * once. */
void mf_comm_wait_asleep(bool many);

#endif
