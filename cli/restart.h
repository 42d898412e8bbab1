/* restart.h - ranks of this machine that are started again when one of them is lost. */
#ifndef MF_CLI_RESTART_H
#define MF_CLI_RESTART_H

#include "cli/cli.h"

#include <stdint.h>

/* A plan for fewer ranks. */
typedef struct mf_refolded {
    int64_t ranks; /* 0: there is none */
    char plan[4096];
} mf_refolded;

typedef struct mf_restart {
    const char *out; /* --out; NULL where `most` is 0 */
    bool resumes;    /* the command line says --resume already */
    int64_t most;    /* restarts in a row without a new checkpoint; 0: none at all */
    /* Looks for a plan for at most so many ranks. */
    mf_status (*refold)(void *user, int64_t most, mf_refolded *out, mf_err *e);
    void *user;
} mf_restart;

/* As mf_launch_ranks (launch.h), and again with --resume for as long as a rank is lost. Where the
 * restarts come no further, the run goes on on fewer ranks, by the plan that `refold` finds for
 * them, if it does. What the ranks end for otherwise, and a wish to end, is no reason to begin
 * again. Each restart, the plan, and that there is neither any more, is said. */
mf_status mf_launch_restarting(const mf_cli *cli, const mf_restart *how, int64_t ranks, int *code,
                               mf_err *e);

#endif
