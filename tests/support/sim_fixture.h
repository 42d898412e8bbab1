/* sim_fixture.h - cost models, programs and steps for tests of the simulator; no files needed. */
#ifndef MF_TESTS_SIM_FIXTURE_H
#define MF_TESTS_SIM_FIXTURE_H

#include "costmodel/cost_internal.h"
#include "simulator/sim.h"
#include "tests/support/models.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>

/* Every op at its own speed, no host time, nothing exposed. */
static inline mf_software sim_software_ideal(void) {
    mf_software s = {.name = "ideal",
                     .gemm_eff = {1, 1, 1, 1},
                     .grouped_eff = 1,
                     .attention_eff = 1,
                     .memory_eff = 1,
                     .host_graph = {1, 0.5, 0.1},
                     .comm_eff = {1, 1, 1},
                     .collective_eff = 1,
                     .gpu_power_eff = 1};
    return s;
}

static inline mf_software sim_software_real(void) {
    mf_software s = sim_software_ideal();
    const double exposed[5] = {0.3, 0.35, 0.25, 0.5, 0.4};
    memcpy(s.overlap_exposed, exposed, sizeof exposed);
    s.host_op_s = 8e-6;
    s.host_layer_s = 100e-6;
    s.fixed_step_s = 0.01;
    s.band = 0.05;
    return s;
}

static inline mf_cost *sim_cost(const mf_cluster *c, const mf_software *s) {
    mf_cost_device device;
    mf_cost *cost = NULL;
    mf_err e;
    mf_device_init(&device, c);
    if (mf_cost_build(c, s, &device, 1, NULL, 0, &cost, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return cost;
}

static inline mf_program *sim_program(const mf_model *m, const mf_layout *l, const mf_cluster *c) {
    mf_assignment a;
    mf_program *p = NULL;
    mf_err e;
    if (mf_assignment_even(m, l, &a, &e) != MF_OK ||
        mf_program_lower(m, l, c, &a, &p, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return p;
}

static inline mf_sim *sim_step(const mf_cost *cost, const mf_program *p, const mf_sim_options *o) {
    mf_sim *s = NULL;
    mf_err e;
    if (mf_sim_step(cost, p, o, &s, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return s;
}

static inline double sim_sum(const double class_s[MF_BD_COUNT]) {
    double sum = 0;
    for (int k = 0; k < MF_BD_COUNT; k++) {
        sum += class_s[k];
    }
    return sum;
}

/* A layout of a model that is valid, after `change`d from the defaults by the caller. */
static inline mf_layout sim_layout(const mf_model *m, int64_t gpus, int64_t pp, int64_t ep,
                                   int64_t micro_batches) {
    mf_layout l;
    mf_err e;
    mf_layout_init(&l);
    l.gpus = gpus;
    l.pp = pp;
    l.ep = ep;
    l.seq = 2048;
    l.gbs = micro_batches * gpus / pp;
    if (mf_layout_resolve(&l, m, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return l;
}

#endif
