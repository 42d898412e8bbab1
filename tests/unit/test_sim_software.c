/* test_sim_software.c - what a software profile says of overlap and of the host shows in the step.
 */
#include "core/program/lower.h"
#include "simulator/sim.h"
#include "tests/support/test.h"

#include <math.h>

static void base_layout(mf_layout *l) {
    mf_layout_init(l);
    l->gpus = 16;
    l->gbs = 32;
    l->seq = 4096;
    l->reserve = 0;
}

static double step_s(const mf_layout *asked, const mf_software *s) {
    mf_err e = {.text = ""};
    mf_model m;
    mf_cluster c;
    mf_layout l = *asked;
    mf_assignment a;
    mf_program *p = NULL;
    mf_cost *cost = NULL;
    mf_sim *sim = NULL;
    mf_sim_options options = {0};
    assert_ok(mf_model_load("llama3-8b", &m, &e));
    assert_ok(mf_cluster_load("h100", &c, &e));
    assert_ok(mf_layout_resolve(&l, &m, &e));
    assert_ok(mf_assignment_even(&m, &l, &a, &e));
    assert_ok(mf_program_lower(&m, &l, &c, &a, &p, &e));
    assert_ok(mf_cost_create(&c, s, NULL, &cost, &e));
    assert_ok(mf_sim_step(cost, p, &options, &sim, &e));
    double time_s = sim->step_time_s;
    mf_sim_destroy(sim);
    mf_cost_destroy(cost);
    mf_program_destroy(p);
    return time_s;
}

static mf_software profile(void) {
    mf_software s;
    assert_ok(mf_software_load("moefold", &s, NULL));
    return s;
}

static void prefetched_gathers_cost_what_the_profile_says_and_only_under_zero_3(void **state) {
    (void)state;
    mf_layout l;
    base_layout(&l);
    mf_software little = profile(), much = little;
    little.prefetch_exposed = 0.05;
    much.prefetch_exposed = 0.9;
    double one = step_s(&l, &little), other = step_s(&l, &much);
    assert_below(fabs(one - other), 1e-12);
    l.zero = 3;
    one = step_s(&l, &little);
    other = step_s(&l, &much);
    assert_above(other, 1.05 * one);
}

static void gathers_inside_a_domain_cost_what_the_profile_says_of_those(void **state) {
    (void)state;
    mf_layout l;
    base_layout(&l);
    l.zero = 3;
    mf_software same = profile(), inside = same;
    same.prefetch_exposed = inside.prefetch_exposed = 0.9;
    inside.prefetch_inside = 0.3;
    /* 16 ranks lie on two machines. */
    assert_below(fabs(step_s(&l, &same) - step_s(&l, &inside)), 1e-12);
    l.gpus = 8;
    l.gbs /= 2;
    const double all_s = step_s(&l, &same), less_s = step_s(&l, &inside);
    assert_above(all_s, 1.02 * less_s);
    inside.prefetch_exposed = 0.3;
    assert_below(fabs(step_s(&l, &inside) - less_s), 1e-12);
    inside.prefetch_inside = 0; /* as the others */
    assert_below(fabs(step_s(&l, &inside) - less_s), 1e-12);
}

static void adam_on_the_host_costs_its_time_per_element(void **state) {
    (void)state;
    mf_layout l;
    base_layout(&l);
    mf_software streamed = profile(), host = streamed, slow = streamed;
    host.host_adam_s = 1e-9;
    slow.host_adam_s = 3e-9;
    assert_below(fabs(step_s(&l, &streamed) - step_s(&l, &slow)), 1e-12); /* nothing offloaded */
    l.offload_optimizer = 0.5;
    /* Half of 8.03e9 parameters, sharded over 16 ranks, at 2 ns an element more. */
    double more = step_s(&l, &slow) - step_s(&l, &host);
    assert_below(fabs(more / (0.5 * 8.03e9 / 16 * 2e-9) - 1), 0.01);
}

/* A ring's first piece is over a rank's own keys: an attention as any other. */
static void
pieces_of_a_ring_over_keys_of_others_are_slower_and_whole_attention_is_not(void **state) {
    (void)state;
    mf_layout l;
    base_layout(&l);
    mf_software whole = profile();
    whole.power_cap = 0; /* what is slower would draw less */
    mf_software pieces = whole, all = whole;
    pieces.ring_attention_eff = 0.5;
    all.attention_eff *= 0.5;
    assert_below(fabs(step_s(&l, &whole) - step_s(&l, &pieces)), 1e-12);
    l.seq = 32768;
    for (l.cp = 2; l.cp <= 4; l.cp *= 2) {
        const double whole_s = step_s(&l, &whole);
        const double share = (step_s(&l, &pieces) - whole_s) / (step_s(&l, &all) - whole_s);
        assert_close(share, 1 - 1.0 / (double)l.cp, 0.02);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefetched_gathers_cost_what_the_profile_says_and_only_under_zero_3),
        cmocka_unit_test(gathers_inside_a_domain_cost_what_the_profile_says_of_those),
        cmocka_unit_test(adam_on_the_host_costs_its_time_per_element),
        cmocka_unit_test(
            pieces_of_a_ring_over_keys_of_others_are_slower_and_whole_attention_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
