/* predict.c - a complete plan of one layout and assignment: lowered, simulated, with provenance. */
#include "planner/planner.h"
#include "simulator/prediction.h"

#include <stdio.h>

static void copy_text(char *out, size_t size, const char *text) {
    snprintf(out, size, "%s", text != NULL ? text : "");
}

static void describe(const mf_problem *p, mf_plan *plan) {
    const mf_cluster *c = mf_cost_cluster(p->cost);
    mf_model_identify(p->model, &plan->model);
    mf_plan_provenance *from = &plan->provenance;
    copy_text(from->generator, sizeof from->generator, p->generator);
    copy_text(from->cluster, sizeof from->cluster, p->cluster_name ? p->cluster_name : c->name);
    mf_cluster_fingerprint(c, from->cluster_fingerprint);
    copy_text(from->software, sizeof from->software, mf_cost_software(p->cost)->name);
    copy_text(from->measurements, sizeof from->measurements, p->measurements);
    copy_text(from->routing, sizeof from->routing, p->routing_name);
}

/* The layout resolved, its assignment (a NULL: the even one), and their program. */
static mf_status lower(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                       mf_layout *resolved, mf_assignment *assigned, mf_program **program,
                       mf_err *e) {
    *resolved = *l;
    mf_status status = mf_layout_resolve(resolved, p->model, e);
    if (status == MF_OK && a == NULL) {
        status = mf_assignment_even(p->model, resolved, assigned, e);
    } else if (status == MF_OK) {
        *assigned = *a;
    }
    if (status == MF_OK) {
        status =
            mf_program_lower(p->model, resolved, mf_cost_cluster(p->cost), assigned, program, e);
    }
    return status;
}

mf_status mf_planner_outruns(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                             double time_s, bool *yes, mf_err *e) {
    mf_layout resolved;
    mf_assignment assigned;
    mf_program *program = NULL;
    mf_sim *sim = NULL;
    const mf_sim_options options = {.routing = p->routing, .sums = true};
    *yes = false;
    mf_status status = lower(p, l, a, &resolved, &assigned, &program, e);
    if (status == MF_OK) {
        status = mf_sim_step(p->cost, program, &options, &sim, e);
    }
    if (status == MF_OK) {
        *yes = sim->step_time_s < time_s && sim->memory->fits;
    }
    mf_sim_destroy(sim);
    mf_program_destroy(program);
    return status;
}

mf_status mf_planner_predict(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                             mf_plan *plan, mf_sim **sim, mf_err *e) {
    mf_program *program = NULL;
    mf_sim *made = NULL;
    const mf_sim_options options = {.routing = p->routing};
    mf_plan_init(plan);
    if (sim != NULL) {
        *sim = NULL;
    }
    mf_status status = lower(p, l, a, &plan->layout, &plan->assignment, &program, e);
    if (status == MF_OK) {
        status = mf_sim_step(p->cost, program, &options, &made, e);
    }
    if (status == MF_OK) {
        status = mf_sim_prediction(made, &plan->prediction, e);
    }
    if (status == MF_OK) {
        plan->predicted = true;
        describe(p, plan);
        if (sim != NULL) {
            *sim = made;
            made = NULL;
        }
    }
    mf_sim_destroy(made);
    mf_program_destroy(program);
    return status;
}
