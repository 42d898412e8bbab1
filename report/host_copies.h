/* host_copies.h - searches that offload activations to host memory only where that is asked for, or
 * where nothing fits without: what all GPUs of a host copy at once, beside compute and the network,
 * was not measured.
 */
#ifndef MF_REPORT_HOST_COPIES_H
#define MF_REPORT_HOST_COPIES_H

#include "core/base/json_write.h"
#include "planner/planner.h"

typedef struct mf_host_copies {
    bool used;        /* by the best plan */
    bool infeasible;  /* nothing fits without */
    double without_s; /* asked for: the best step without; else 0 */
} mf_host_copies;

/* Whether a plan keeps activations or optimizer states on the host. */
bool mf_host_copies_of(const mf_plan *p);

/* A search: mf_planner_search, or one that is limited. */
typedef mf_status (*mf_search_fn)(void *user, const mf_problem *p, const mf_search_options *o,
                                  mf_search_result *r, mf_err *e);

/* search (NULL: mf_planner_search), without offload first; with it where `asked`, or where nothing
 * fits. A problem that pins offload is searched as it is. */
mf_status mf_host_copies_search(mf_search_fn search, void *user, const mf_problem *p,
                                const mf_search_options *o, bool asked, mf_search_result *r,
                                mf_host_copies *h, mf_err *e);

/* A line where the best plan, which takes step_s, copies; else nothing. */
void mf_host_copies_print(FILE *out, const mf_host_copies *h, double step_s);
/* Member "host_copies" of the object that is open. */
void mf_host_copies_json(mf_json_writer *w, const mf_host_copies *h);

#endif
