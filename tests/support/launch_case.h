/* launch_case.h - a plan conceded to a target, written as a script, read back and played: the same
 * layers, choices, memory and time. */
#ifndef MF_TESTS_LAUNCH_CASE_H
#define MF_TESTS_LAUNCH_CASE_H

#include "launch/read/read.h"
#include "launch/write/write.h"
#include "simulator/sim.h"
#include "tests/support/models.h"

#include <stdlib.h>

typedef struct played {
    double time_s, peak_B;
} played;

static inline mf_cost *make_cost(const mf_cluster *c) {
    mf_software software;
    mf_cost *cost = NULL;
    mf_err e;
    mf_err_clear(&e);
    assert_int_equal(mf_software_load("ideal", &software, &e), MF_OK);
    assert_int_equal(mf_cost_create(c, &software, NULL, &cost, &e), MF_OK);
    return cost;
}

static played play(const mf_cost *cost, const mf_cluster *c, const mf_model *m, const mf_plan *p) {
    mf_program *program = NULL;
    mf_sim *sim = NULL;
    mf_err e;
    mf_err_clear(&e);
    mf_status s = mf_program_lower(m, &p->layout, c, &p->assignment, &program, &e);
    if (s == MF_OK) {
        s = mf_sim_step(cost, program, &(mf_sim_options){0}, &sim, &e);
    }
    if (s != MF_OK || sim == NULL) {
        fail_msg("%s", e.text);
        return (played){0, 0};
    }
    played out = {sim->step_time_s, sim->memory->peak_B};
    mf_sim_destroy(sim);
    mf_program_destroy(program);
    return out;
}

static int differences;
static char last_difference[320];

static mf_status count(void *user, const mf_plan *p, const mf_concession *c, mf_err *e) {
    (void)user;
    (void)p;
    (void)e;
    assert_above(strlen(c->why), 0);
    differences++;
    snprintf(last_difference, sizeof last_difference, "%s", c->why);
    return MF_OK;
}

static void concede(mf_target t, const mf_model *m, mf_plan *p) {
    mf_err e;
    mf_err_clear(&e);
    if (mf_target_concede(t, m, p, count, NULL, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
}

static char *named_script_of(mf_target t, const mf_model *m, const mf_cluster *c, const mf_plan *p,
                             const char *name) {
    char *text = NULL;
    size_t size = 0;
    mf_err e;
    const mf_launch x = {.target = t,
                         .model = m,
                         .cluster = c,
                         .plan = p,
                         .model_name = name,
                         .cluster_name = "h100"};
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    assert_int_equal(mf_write_script(&x, NULL, 0, out, &e), MF_OK);
    fclose(out);
    return text;
}

static char *script_of(mf_target t, const mf_model *m, const mf_cluster *c, const mf_plan *p) {
    return named_script_of(t, m, c, p, "somewhere/config.json");
}

static void read_back(const char *script, const mf_model *m, mf_plan *out) {
    mf_read r = {0};
    mf_err e;
    mf_err_clear(&e);
    mf_plan_init(out);
    mf_status s = mf_read_text(&r, "script", script, NULL, &e);
    if (s == MF_OK) {
        s = mf_read_plan(&r, m, 0, out, &e);
    }
    if (s != MF_OK) {
        fail_msg("%s\n%s", e.text, script);
    }
    if (r.unknown.count > 0) {
        fail_msg("export writes %s, which import does not know", r.unknown.item[0].name);
    }
    mf_read_clear(&r);
}

static void assert_same_layers(const mf_model *m, const mf_plan *a, const mf_plan *b) {
    assert_int_equal(a->assignment.vstages, b->assignment.vstages);
    for (int v = 0; v <= a->assignment.vstages; v++) {
        assert_int_equal(a->assignment.first[v], b->assignment.first[v]);
    }
    for (int i = 1; i + 1 < mf_model_positions(m); i++) {
        assert_int_equal(a->assignment.memory[i].recompute, b->assignment.memory[i].recompute);
        assert_int_equal(a->assignment.memory[i].offload, b->assignment.memory[i].offload);
    }
}

/* Choices layer by layer, as a search makes them, in half of the plans. */
static void draw_choices(rng *r, mf_plan *p) {
    if (rng_range(r, 0, 1) == 0) {
        return;
    }
    for (int i = 1; i + 1 < p->assignment.positions; i++) {
        mf_memory_choice *c = &p->assignment.memory[i];
        c->recompute = (uint16_t)(rng_range(r, 0, 2) ? 1u << rng_range(r, 0, 8) : 0);
        c->offload = rng_range(r, 0, 3) ? 0 : (uint16_t)rng_range(r, 0, 63);
    }
}

static void draw(rng *r, const mf_model *m, mf_plan *p) {
    mf_err e;
    mf_plan_init(p);
    do {
        p->layout = test_random_layout(r, m, 256);
        p->layout.moments_bf16 = rng_range(r, 0, 1);
        p->layout.offload_optimizer = rng_range(r, 0, 2) ? 0 : 1.0 / (double)rng_range(r, 1, 7);
        p->layout.graph = (mf_graph_mode)rng_range(r, 0, MF_GRAPH_COUNT - 1);
        p->layout.fp8_attention = rng_range(r, 0, 3) == 0;
        p->layout.grads_bf16 = rng_range(r, 0, 3) == 0 && p->layout.precision != MF_PREC_FP32;
        const uint32_t any = 1u << rng_range(r, 0, 18);
        const uint32_t some[] = {0, MF_TRAIT_DISPATCH_PERMUTES, any, any};
        p->layout.traits = some[rng_range(r, 0, 3)];
    } while (mf_assignment_even(m, &p->layout, &p->assignment, &e) != MF_OK);
    draw_choices(r, p);
}

static void say(const char *who, const mf_layout *l) {
    mf_json_writer w;
    char *text = NULL;
    size_t length = 0;
    mf_err e;
    mf_json_writer_init(&w);
    mf_plan_write_layout(&w, NULL, l);
    if (mf_json_writer_finish(&w, &text, &length, &e) == MF_OK) {
        printf("%s %s\n", who, text);
    }
    free(text);
}

static void check(const mf_cost *cost, const mf_cluster *c, const mf_model *m, mf_target t,
                  const mf_plan *drawn) {
    mf_plan p = *drawn, back, again;
    concede(t, m, &p);
    char *script = script_of(t, m, c, &p);
    read_back(script, m, &back);
    free(script);
    assert_same_layers(m, &p, &back);
    assert_int_equal(p.layout.traits, back.layout.traits);
    played a = play(cost, c, m, &p), b = play(cost, c, m, &back);
    if (a.time_s != b.time_s || a.peak_B != b.peak_B) {
        say("drawn", &drawn->layout);
        say("said", &p.layout);
        say("read", &back.layout);
        fail_msg("%s: %.9g s and %.0f B become %.9g s and %.0f B", m->name, a.time_s, a.peak_B,
                 b.time_s, b.peak_B);
    }
    again = back;
    differences = 0;
    concede(t, m, &again);
    if (differences > 0) { /* what was read can be said */
        fail_msg("not settled: %s", last_difference);
    }
}

#endif
