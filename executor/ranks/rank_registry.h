/* rank_registry.h - lets a launcher know which of the ranks it started run, from their first moment
 * to their last.
 *
 * While training runs, ranks watch each other (executor/comm/rank_watch.h). Before they have
 * connected and after they have disconnected only their launcher does, through a page of memory
 * that it shares with them: each rank registers when it begins and signs off when it ends. Ranks of
 * another launcher (the user's own mpirun or srun) have no registry: NULL is fine everywhere.
 */
#ifndef MF_EXECUTOR_RANK_REGISTRY_H
#define MF_EXECUTOR_RANK_REGISTRY_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mf_rank_registry mf_rank_registry;

/* For the launcher: makes an empty registry for `ranks` ranks, which the processes that it starts
 * from now on find. Errors: MF_IO, MF_NOMEM. */
mf_status mf_rank_registry_create(int64_t ranks, mf_rank_registry **out, mf_err *e);
/* For a rank: registers this process, which on Linux ends with the process that started it. NULL
 * when its launcher has no registry. Call it before MPI starts: the rank's number comes from the
 * environment. */
mf_rank_registry *mf_rank_registry_join(void);
/* Records what this rank does: the step and the phase in it. */
void mf_rank_registry_phase(mf_rank_registry *r, const char *phase);
/* This rank ends as it should. */
void mf_rank_registry_leave(mf_rank_registry *r);
/* A lost rank has been reported: the launcher does not report it again. */
void mf_rank_registry_reported(mf_rank_registry *r);
/* This rank failed because of its machine or a library, not because of its arguments: a restart may
 * succeed. */
void mf_rank_registry_failed(mf_rank_registry *r);
void mf_rank_registry_destroy(mf_rank_registry *r);

/* For the launcher: checks the ranks and records the first that ended without signing off. True if
 * there is one.
 */
bool mf_rank_registry_look(mf_rank_registry *r);
/* Has a rank reported that another is lost, or that it failed itself? */
bool mf_rank_registry_has_lost(const mf_rank_registry *r);
/* After ranks ended by a signal: the line that names the first and what it did, unless that was
 * reported. False: nothing to report. */
bool mf_rank_registry_line(mf_rank_registry *r, char *out, size_t size);

#endif
