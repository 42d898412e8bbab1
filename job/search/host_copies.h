/* host_copies.h - what of a plan rests on copies between GPU and host, and whether they were
 * measured; searches that offload activations only when asked to, or when nothing fits otherwise,
 * because copies of all GPUs of a host at once, during compute and network traffic, never were.
 */
#ifndef MF_JOB_HOST_COPIES_H
#define MF_JOB_HOST_COPIES_H

#include "job/load/job.h"
#include "planner/planner.h"

typedef struct mf_host_copies {
    bool used;         /* by the plan */
    char gpu[32];      /* kind of GPU */
    bool known_gpu;    /* copies of one such GPU alone were measured */
    int64_t gpus;      /* of a host that copy at once; 0: CPU ranks, whose memory is the host's */
    double shared_Bps; /* of the host's memory that they share, by the cluster; 0: not known */
    double copies_s;   /* in a step, one after the other, as priced alone; of the GPU with most */
    double exposed_s;  /* that the step takes longer for them; NAN: not known */
    double step_s;     /* the plan's step */
    /* of a search; not `searched`: the rest is not set */
    bool searched;
    bool infeasible;  /* nothing fits without */
    bool optimizer;   /* nothing fits without optimizer states on the host either */
    double without_s; /* asked for: the best step without; else 0 */
    double with_s;    /* not used: what the best plan's layout takes with them, if less; else 0 */
} mf_host_copies;

/* Whether a layout and its assignment keep activations or optimizer states on the host. */
bool mf_host_copies_in(const mf_layout *l, const mf_assignment *a);

/* Were copies measured as such a plan makes them: on its kind of GPU, and no other GPU of the host
 * copies at the same time? */
bool mf_host_copies_measured(const mf_host_copies *h);

/* Of a layout, what needs no adding up: how many seconds they take is left NAN. */
mf_host_copies mf_host_copies_known(const mf_job *j, const mf_layout *l, const mf_assignment *a);
/* Adds up the copies of a plan of the job; what a search has set in *h stays. step_s: the plan's
 * step; exposed_s: of it, waits for copies, NAN if not known. Errors: those of lowering. */
mf_status mf_host_copies_count(const mf_job *j, const mf_layout *l, const mf_assignment *a,
                               double step_s, double exposed_s, mf_host_copies *h, mf_err *e);
/* The same for a plan with a prediction. */
mf_status mf_host_copies_of_plan(const mf_job *j, const mf_plan *p, mf_host_copies *h, mf_err *e);

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
 * with them, for a counted second, on a thread of its own while the search's answers are made
 * complete plans and whatever else the caller does. */
typedef struct mf_host_gain mf_host_gain;

/* Before the search, whose options it adds to (`found`); problem and options are borrowed until the
 * end. Errors: MF_NOMEM. */
mf_status mf_host_gain_begin(const mf_problem *p, mf_search_options *o, mf_host_gain **out,
                             mf_err *e);
/* After it; *g may be NULL, and is after it. `with_s` of *h is set where the search found a plan
 * without copies that would gain by them; not finding any is no failure. Errors: MF_NOMEM, those of
 * lowering. */
mf_status mf_host_gain_end(mf_host_gain **g, mf_host_copies *h, mf_err *e);
/* Instead of that, where its answer is of no use; g may be NULL. */
void mf_host_gain_drop(mf_host_gain *g);

#endif
