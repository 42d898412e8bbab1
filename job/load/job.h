/* job.h - what commands work on: model, cluster, software, prices and a layout, from a request or a
 * plan file, and a simulated step of it.
 *
 * A job is used in the order load, simulate, clear; it belongs to one thread.
 */
#ifndef MF_JOB_JOB_H
#define MF_JOB_JOB_H

#include "core/plan/plan.h"
#include "job/kept/corrections.h"
#include "job/kept/host_cpu.h"
#include "job/load/under_megatron.h"
#include "job/request/request.h"
#include "simulator/sim.h"

typedef struct mf_job {
    mf_job_request asked; /* the caller owns its texts */
    mf_model model;
    mf_cluster cluster;
    mf_software software;
    mf_routing routing;
    mf_cost *cost;
    /* Layout, assignment and provenance are set by the load functions; the prediction by
     * mf_job_simulate. From a file: as it was there, checked against the model. */
    mf_plan plan;
    bool from_file;
    char made_for[64];     /* cluster of a plan file that was made for another one; "" */
    unsigned unsaid, open; /* options that are guesses or were not given; those of them not given
                              (job/load/unsaid.h) */
    mf_kept_correction correction; /* of `software`, which it is then named after */
    mf_host_cpu host;              /* `known` for the cluster `cpu` when it was measured */
    bool borrowed;                 /* another job owns `cost` */
    /* of the last simulation */
    mf_program *program;
    mf_sim *sim;
} mf_job;

/* Makes an empty job, which may be cleared. */
void mf_job_init(mf_job *j);

/* Loads model, cluster, software, prices and routing of a request, or of the plan file that it
 * names; cluster and routing files that a plan names are looked for from here, then beside the
 * plan's file. Unless it came from a file, the plan then holds the request's layout, not resolved
 * and without assignment; CUDA graphs that the request does not state are the software's default.
 * Errors: MF_USAGE, MF_INPUT, MF_LAYOUT, MF_DAMAGED; the caller clears the job in any case. */
mf_status mf_job_load(mf_job *j, const mf_job_request *r, mf_err *e);

/* The same without prices: j->cost is NULL until mf_job_price creates them. Errors: as above. */
mf_status mf_job_read(mf_job *j, const mf_job_request *r, mf_err *e);
mf_status mf_job_price(mf_job *j, mf_err *e);

/* Reads into j->routing what was asked for, or else what the plan was made for (`planned`; "": even
 * routing), and sets *name to what it is. A planned file of counts that is not there any more is no
 * reason to refuse a plan: even routing takes its place, which j->asked.notes says. j->model and
 * the plan's layout must be read: what it has no capacity for is dropped. Errors: MF_INPUT, MF_IO.
 */
mf_status mf_job_read_routing(mf_job *j, const char *planned, const char **name, mf_err *e);

/* Prices of another cluster or software, from the job's store or measurements of this machine. */
mf_status mf_job_price_as(const mf_job *j, const mf_cluster *c, const mf_software *s, mf_cost **out,
                          mf_err *e);

/* As mf_job_load, and resolves one layout against the model: GPUs, batch and sequence are required,
 * options that were not given are the software's defaults, and layers are split evenly or as the
 * request's stages say. mf_job_read_layout: the same without prices. */
mf_status mf_job_load_layout(mf_job *j, const mf_job_request *r, mf_err *e);
mf_status mf_job_read_layout(mf_job *j, const mf_job_request *r, mf_err *e);

/* Simulates the plan's layout and assignment and fills in its prediction, whose band covers options
 * that were not given. Sets o->routing itself. */
mf_status mf_job_simulate(mf_job *j, const mf_sim_options *o, mf_err *e);

/* The same plan under the newest release of Megatron, priced from the job's store. */
mf_status mf_job_under_megatron(const mf_job *j, const mf_plan *p, mf_under_megatron *out,
                                mf_err *e);

/* Frees the last simulation. */
void mf_job_forget(mf_job *j);
/* Frees all that the job owns; fine after mf_job_init and after a load that failed. */
void mf_job_clear(mf_job *j);

/* Prints to r->notes what the model leaves out of its config.json; for a strict request that is an
 * error, MF_INFEASIBLE. */
mf_status mf_job_say_left_out(const mf_job_request *r, const mf_model *m, mf_err *e);

/* Refuses what no GPU of the cluster can do: more GPUs than it has, an arithmetic type that it
 * lacks. Errors: MF_LAYOUT. */
mf_status mf_job_check_cluster(const mf_layout *l, const mf_cluster *c, mf_err *e);

#endif
