/* job.h - what commands work on: model, cluster, software, prices and a layout, read from the
 * options or from a plan file; and a simulated step of it.
 *
 * A job is used in the order load, simulate, clear; it belongs to one thread.
 */
#ifndef MF_CLI_JOB_H
#define MF_CLI_JOB_H

#include "cli/cli.h"
#include "cli/elsewhere.h"
#include "core/plan/plan.h"
#include "simulator/sim.h"

typedef struct mf_job {
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
    unsigned unsaid, open; /* options that are a guess or not given; of them, not given
                              (cli/unsaid.h) */
    bool borrowed;         /* `cost` belongs to somebody else */
    /* of the last simulation */
    mf_program *program;
    mf_sim *sim;
} mf_job;

/* Model, cluster, software, prices and routing from --plan, or else from --model, --cluster and so
 * on; the plan holds the layout options applied to the defaults, not resolved and without
 * assignment (unless it came from a file). Errors: MF_USAGE, MF_INPUT, MF_LAYOUT, MF_DAMAGED; the
 * job is to be cleared in any case. */
mf_status mf_job_load(mf_job *j, const mf_args *a, mf_err *e);

/* The same without prices: j->cost is NULL. mf_job_price makes them, from --store. */
mf_status mf_job_read(mf_job *j, const mf_args *a, mf_err *e);
mf_status mf_job_price(mf_job *j, const mf_args *a, mf_err *e);

/* The plan of --plan and its model alone, without prices. The job is to be cleared in any case. */
mf_status mf_job_load_plan(mf_job *j, const mf_args *a, mf_err *e);

/* As mf_job_load, and one layout: --gpus, --global-batch and --seq are required, the layout is
 * resolved against the model with what the software does where nothing is said, layers are split
 * evenly or as --pipeline-layout says. mf_job_read_layout: the same without prices. */
mf_status mf_job_load_layout(mf_job *j, const mf_args *a, mf_err *e);
mf_status mf_job_read_layout(mf_job *j, const mf_args *a, mf_err *e);

/* Simulates the plan's layout and assignment and fills in its prediction, whose band covers what
 * the job leaves unsaid. o->routing is set here. */
mf_status mf_job_simulate(mf_job *j, const mf_sim_options *o, mf_err *e);

/* The same plan under the newest release of Megatron, from --store. */
mf_status mf_job_elsewhere(const mf_job *j, const mf_args *a, const mf_plan *p, mf_elsewhere *out,
                           mf_err *e);

void mf_job_forget(mf_job *j); /* drops the last simulation */
void mf_job_clear(mf_job *j);

/* Names what the model leaves out of its config.json, on a->notes; with --strict that is an error:
 * MF_INFEASIBLE. */
mf_status mf_job_say_left_out(const mf_args *a, const mf_model *m, mf_err *e);

/* Refuses what no GPU of the cluster can do: more GPUs than it has, an arithmetic type that it
 * lacks. Errors: MF_LAYOUT. */
mf_status mf_job_check_cluster(const mf_layout *l, const mf_cluster *c, mf_err *e);

#endif
