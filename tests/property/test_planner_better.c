/* test_planner_better.c - a cluster that is better in some figures and worse in none never needs
 * longer for a job: what a search proves for it holds for the other's plan, too, which takes no
 * longer there, and a search that begins with that plan ends with one that takes no longer. */
#include "tests/support/better_cluster.h"
#include "tests/support/planner_problems.h"

#include <stdio.h>

/* Under its power cap a GPU with faster products takes as long: what it stretches then lies a hair
 * otherwise beside communication. */
static const double hair = 1e-4;

static const char *const clusters[] = {"h100", "h200", "b200", "gb200", "a100", "h20", "mi300x"};
enum { CLUSTERS = sizeof clusters / sizeof clusters[0] };

/* Any cluster, and a better one, with what is trained by. */
typedef struct pair {
    mf_software software;
    mf_cluster plain, better;
    mf_cost *cost, *better_cost;
} pair;

static void pair_init(pair *p, rng *r, uint64_t *seed) {
    p->plain = planner_cluster(r);
    if (rng_chance(r, 50)) {
        assert_ok(mf_cluster_load(clusters[rng_range(r, 0, CLUSTERS - 1)], &p->plain, NULL));
    }
    if (rng_chance(r, 60)) {
        assert_ok(mf_software_load("moefold", &p->software, NULL));
    } else {
        p->software = planner_software(r);
    }
    p->better = better_cluster(seed, p->plain);
    p->cost = planner_cost(&p->plain, &p->software);
    p->better_cost = planner_cost(&p->better, &p->software);
}

static void pair_clear(pair *p) {
    mf_cost_destroy(p->cost);
    mf_cost_destroy(p->better_cost);
}

/* A small job that leaves something to choose. */
typedef struct job {
    mf_model model;
    mf_problem problem;
} job;

static void job_init(job *j, rng *r) {
    mf_space space;
    mf_layout any;
    do {
        j->model = planner_model(r, 3);
        space = planner_space(r, &j->model, 4);
    } while (!planner_layout(r, &space, &any));
    j->problem = (mf_problem){.model = &j->model, .base = space.base, .pinned = space.pinned};
}

static bool search(mf_problem p, const mf_cost *cost, const mf_known_plan *start,
                   mf_search_result *out) {
    mf_search_options o;
    mf_err e = {.text = ""};
    mf_search_options_init(&o);
    o.top = 1;
    o.gap = 0.3;      /* wide enough for the other's plan to be faster */
    o.budget = 20000; /* microseconds */
    o.threads = 1;
    o.start = start;
    o.starts = start != NULL;
    p.cost = cost;
    const mf_status s = mf_planner_search(&p, &o, out, &e);
    if (s != MF_OK && s != MF_INFEASIBLE) {
        fail_msg("%s", e.text);
    }
    return s == MF_OK;
}

static void expect(bool holds, const job *j, const mf_plan *p, const char *what, double a,
                   double b) {
    if (!holds) {
        planner_print_model(&j->model);
        planner_print(&p->layout, &p->assignment);
        fail_msg("%s: %.9g s, %.9g s", what, a, b);
    }
}

/* Whether the other's plan is the faster one there; false too where nothing fits on the other. */
static bool plan_both(const job *j, const pair *c, int *planned) {
    mf_search_result other, own, begun;
    mf_problem there = j->problem;
    bool faster = false;
    there.cost = c->better_cost;
    if (search(j->problem, c->cost, NULL, &other)) {
        const mf_plan *p = &other.plan[0];
        const mf_known_plan known = {p->layout, p->assignment};
        const double was_s = p->prediction.step_time_s;
        mf_plan again;
        expect(search(there, c->better_cost, NULL, &own), j, p, "nothing fits", was_s, 0);
        expect(search(there, c->better_cost, &known, &begun), j, p, "nothing fits", was_s, 0);
        assert_ok(mf_planner_predict(&there, &p->layout, &p->assignment, &again, NULL, NULL));
        const double again_s = again.prediction.step_time_s;
        expect(again.prediction.fits, j, p, "it does not fit", was_s, again_s);
        expect(again_s <= was_s * (1 + hair), j, p, "it is slower", was_s, again_s);
        expect(own.stats.lower_bound_s <= again_s * (1 + 1e-9), j, p, "it is below the bound",
               own.stats.lower_bound_s, again_s);
        expect(begun.plan[0].prediction.step_time_s <= again_s * (1 + 1e-9), j, p,
               "begun with it a search is slower", begun.plan[0].prediction.step_time_s, again_s);
        faster = again_s < own.plan[0].prediction.step_time_s * (1 - 1e-9);
        ++*planned;
        mf_plan_clear(&again);
        mf_search_result_clear(&own);
        mf_search_result_clear(&begun);
    }
    mf_search_result_clear(&other);
    return faster;
}

static void a_better_cluster_never_takes_longer_with_the_plan_of_the_other(void **state) {
    (void)state;
    rng r = rng_init(11);
    uint64_t seed = r.state + 1;
    const int pairs = planner_cases(6, 1), jobs = 4;
    int planned = 0, faster = 0;
    for (int i = 0; i < pairs; i++) {
        pair c;
        pair_init(&c, &r, &seed);
        for (int n = 0; n < jobs; n++) {
            job j;
            job_init(&j, &r);
            faster += plan_both(&j, &c, &planned);
        }
        pair_clear(&c);
    }
    print_message("%d of %d jobs fit; of %d the other's plan is the faster one\n", planned,
                  jobs * pairs, faster);
    assert_at_least(2 * planned, jobs * pairs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_better_cluster_never_takes_longer_with_the_plan_of_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
