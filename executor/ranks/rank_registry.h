/* rank_registry.h - who is there: ranks that this program has started, from their first moment to
 * their last.
 *
 * While training runs, ranks look after each other (executor/comm/rank_watch.h). Before they have
 * found each other and after they have parted nobody does but their launcher, by a page of memory
 * that it shares with them: each rank writes itself down when it begins and signs off when it ends.
 * Ranks of another launcher (mpirun or srun of one's own) have no roll: NULL is fine everywhere.
 */
#ifndef MF_EXECUTOR_RANK_REGISTRY_H
#define MF_EXECUTOR_RANK_REGISTRY_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mf_rank_registry mf_rank_registry;

/* The launcher's: empty, for `ranks` ranks, found by the processes that it starts from now on.
 * Errors: MF_IO, MF_NOMEM. */
mf_status mf_rank_registry_create(int64_t ranks, mf_rank_registry **out, mf_err *e);
/* A rank's, which is written down as this process, and on Linux ends with the process that started
 * it; NULL when its launcher keeps none. Before MPI is started: the rank's number is taken from the
 * environment. */
mf_rank_registry *mf_rank_registry_join(void);
/* What this rank is about: the step and what is done in it. */
void mf_rank_registry_phase(mf_rank_registry *r, const char *phase);
/* This rank ends as it should. */
void mf_rank_registry_leave(mf_rank_registry *r);
/* That a rank is gone has been said: the launcher need not. */
void mf_rank_registry_reported(mf_rank_registry *r);
/* This rank ends for what its machine or a library did, not for what it was asked to do: another
 * try may do better. */
void mf_rank_registry_failed(mf_rank_registry *r);
void mf_rank_registry_destroy(mf_rank_registry *r);

/* The launcher's look at the ranks: notes the first that is gone without having left. True: one is.
 */
bool mf_rank_registry_look(mf_rank_registry *r);
/* Has a rank said that one is gone, or that it failed? */
bool mf_rank_registry_has_lost(const mf_rank_registry *r);
/* When ranks have ended by a signal: the line that says which was first and at what, unless that
 * has been said. False: nothing to say. */
bool mf_rank_registry_line(mf_rank_registry *r, char *out, size_t size);

#endif
