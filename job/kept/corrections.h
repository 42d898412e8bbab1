/* corrections.h - what logs of a user's jobs said about software on a cluster, kept for that user
 * and found again by the commands that predict.
 *
 * `compare --log FILE --correct` keeps one: a factor on everything that the software's profile
 * prices, as a profile of its own (costmodel/cost.h). They lie in $MOEFOLD_CORRECTIONS, else
 * $XDG_DATA_HOME/moefold/corrections, else ~/.local/share/moefold/corrections, one for each
 * software and cluster; a newer one replaces it. MOEFOLD_CORRECTIONS=off: none is kept or found.
 */
#ifndef MF_JOB_CORRECTIONS_H
#define MF_JOB_CORRECTIONS_H

#include "core/base/json_write.h"
#include "core/cluster/cluster.h"
#include "costmodel/cost.h"
#include "job/request/request.h"

#include <stdbool.h>

typedef struct mf_kept_correction {
    bool used;       /* false: the rest is not set */
    double factor;   /* on times */
    char base[32];   /* the profile that it corrects */
    char log[208];   /* the file that it rests on, as it was named */
    char date[16];   /* when it was compared */
    char file[1024]; /* where it is kept */
} mf_kept_correction;

/* Where a correction of this software on this cluster is kept; makes the folders on the way to it
 * if `make`. Errors: MF_USAGE where none is kept of them: own files and corrections as software,
 * moefold and ideal (which no log is of), CPU ranks, a request with --store, no folder. */
mf_status mf_corrections_path(const mf_job_request *r, const mf_cluster *c, const mf_software *s,
                              bool make, char out[1024], mf_err *e);

/* Makes *s, a shipped profile, what was kept for it on this cluster, if the request takes
 * corrections and prices from the measurements that ship. One that was found with other figures of
 * the profile is left out, which r->notes says. Errors: MF_INPUT for a damaged file. */
mf_status mf_corrections_use(const mf_job_request *r, const mf_cluster *c, mf_software *s,
                             mf_kept_correction *out, mf_err *e);

/* "1.087 times the time of megatron-26.06, by train.log on 2026-11-30 (--no-corrections)" */
void mf_corrections_say(const mf_kept_correction *k, char *out, size_t size);
/* "correction": {"software", "factor", "log", "date", "file"} of one that is used; else nothing. */
void mf_corrections_json(mf_json_writer *w, const mf_kept_correction *k);

#endif
