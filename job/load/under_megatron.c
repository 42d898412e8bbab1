/* under_megatron.c - the same plan under the newest release of Megatron. */
#include "job/load/under_megatron.h"

#include "job/kept/corrections.h"
#include "job/load/unsaid.h"
#include "launch/target/target.h"

#include <stdio.h>

static mf_status note_difference(void *user, const mf_plan *p, const mf_concession *c, mf_err *e) {
    mf_under_megatron *out = user;
    (void)p;
    (void)e;
    if (out->why[0] == '\0') {
        snprintf(out->why, sizeof out->why, "%s", c->what);
    }
    return MF_OK;
}

/* The first thing that Megatron has no words for goes to out->why. */
static mf_status express(const mf_model *m, const mf_plan *p, mf_under_megatron *out) {
    mf_plan asked = *p; /* layout and assignment are its own; the rest is left alone */
    mf_err e = {.text = ""};
    if (mf_target_check_model(MF_TARGET_MEGATRON, m, m->name, NULL) != MF_OK &&
        mf_target_check_model(MF_TARGET_BRIDGE, m, m->name, NULL) != MF_OK) {
        snprintf(out->why, sizeof out->why, "model");
        return MF_OK;
    }
    mf_status s = mf_target_concede(MF_TARGET_MEGATRON, m, &asked, note_difference, out, &e);
    if (s == MF_LAYOUT && out->why[0] == '\0') {
        snprintf(out->why, sizeof out->why, "%.63s", e.text);
    }
    return s == MF_LAYOUT ? MF_OK : s;
}

static uint16_t recomputed(const mf_assignment *a) {
    uint16_t all = 0;
    for (int i = 0; i < a->positions; i++) {
        all |= a->memory[i].recompute;
    }
    return all;
}

/* Makes the newest release what the user's logs of it say on this cluster; says once what is left
 * out of them. */
static mf_status correct(const mf_job_request *r, const mf_cluster *c, bool first,
                         mf_software *software, mf_under_megatron *out, mf_err *e) {
    mf_job_request newest = *r;
    mf_kept_correction kept;
    newest.software = NULL; /* that is another's */
    newest.notes = first ? r->notes : NULL;
    mf_status s = mf_corrections_use(&newest, c, software, &kept, e);
    out->factor = s == MF_OK && kept.used ? kept.factor : 0;
    return s;
}

mf_status mf_price_under_megatron(const mf_job_request *r, const mf_model *m, const mf_cluster *c,
                                  const mf_plan *p, const mf_routing *routing, mf_store *store,
                                  mf_cost **cost, mf_under_megatron *out, mf_err *e) {
    mf_software software;
    mf_program *program = NULL;
    mf_sim *sim = NULL;
    mf_layout l = p->layout;
    const mf_sim_options options = {.routing = routing, .sums = true};
    *out = (mf_under_megatron){.step_time_s = 0};
    mf_status s = mf_software_load("megatron-99.12", &software, e); /* the newest */
    if (s != MF_OK) {
        return s;
    }
    snprintf(out->software, sizeof out->software, "%s", software.name);
    s = express(m, p, out);
    if (s != MF_OK || out->why[0] != '\0') {
        return s;
    }
    s = correct(r, c, *cost == NULL, &software, out, e);
    l.software_traits = software.traits;
    if (l.graph == MF_GRAPH_NONE) {
        l.graph = mf_unsaid_graph(&software.unsaid, m, recomputed(&p->assignment), l.graph);
    }
    out->graph = l.graph;
    s = s == MF_OK && *cost == NULL ? mf_cost_create(c, &software, store, cost, e) : s;
    s = s == MF_OK ? mf_program_lower(m, &l, c, &p->assignment, &program, e) : s;
    s = s == MF_OK ? mf_sim_step(*cost, program, &options, &sim, e) : s;
    if (s == MF_OK) {
        out->step_time_s = sim->step_time_s;
        out->more = sim->step_time_s / p->prediction.step_time_s - 1;
    }
    mf_sim_destroy(sim);
    mf_program_destroy(program);
    return s;
}
