/* host_copies.h - searches that offload activations to host memory only when asked to, or when
 * nothing fits otherwise, because copies of all GPUs of a host at once, during compute and network
 * traffic, were never measured.
 */
#ifndef MF_JOB_HOST_COPIES_H
#define MF_JOB_HOST_COPIES_H

#include "planner/planner.h"

typedef struct mf_host_copies {
    bool used;        /* by the best plan */
    bool infeasible;  /* nothing fits without */
    bool optimizer;   /* nothing fits without optimizer states on the host either */
    double without_s; /* asked for: the best step without; else 0 */
    double with_s;    /* not used: what the best plan's layout takes with them, if less; else 0 */
} mf_host_copies;

/* Whether a plan keeps activations or optimizer states on the host. */
bool mf_host_copies_of(const mf_plan *p);

/* A search: mf_planner_search, or one that is limited. */
typedef mf_status (*mf_search_fn)(void *user, const mf_problem *p, const mf_search_options *o,
                                  mf_search_result *r, mf_err *e);

/* Runs `search` (NULL: mf_planner_search) without offload, then with it if `asked` or if nothing
 * fits. A problem that pins offload is searched once, as it is. */
mf_status mf_host_copies_search(mf_search_fn search, void *user, const mf_problem *p,
                                const mf_search_options *o, bool asked, mf_search_result *r,
                                mf_host_copies *h, mf_err *e);

/* Where nothing fitted: searches with all optimizer states on the host. Errors: as the search's;
 * MF_INFEASIBLE keeps the text that *e came with. */
mf_status mf_host_copies_search_optimizer(mf_search_fn search, void *user, const mf_problem *p,
                                          const mf_search_options *o, mf_search_result *r,
                                          mf_host_copies *h, mf_err *e);

/* What copies would gain where a search left them out: the best plan's layout alone is searched
 * with them, for a counted second. Not finding any gain is no failure. */
mf_status mf_host_copies_gain(const mf_problem *p, const mf_search_options *o, const mf_plan *best,
                              mf_host_copies *h, mf_err *e);

#endif
