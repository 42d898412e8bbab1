/* The search finds what trying everything finds, and proves it: on problems small enough that every
 * layout, split and memory choice can be simulated, its plan is the fastest, its bound equal to it
 * and its gap 0. */
#include "planner/planner.h"
#include "tests/support/planner_problems.h"

#include <stdio.h>
#include <string.h>

/* Sums are added up in another order here and there. */
#define HAIR 1e-9
/* Asked for, a search goes on until nothing is left that it can close. */
#define NO_GAP 1e-12
#define MAX_PLANS 1500

/* Every plan of a problem, simulated with memory without end. */
typedef struct tried {
    mf_layout layout;
    mf_assignment *assignment;
    double time_s, peak_B;
} tried;

typedef struct fixture {
    mf_model model;
    mf_cluster cluster;
    mf_software software;
    mf_space space;
    mf_cost *cost;
    mf_evaluator_real real;
    mf_evaluator evaluator;
    tried *plan;
    int64_t plans, allocated, layouts;
} fixture;

static void fixture_clear(fixture *w) {
    for (int64_t i = 0; i < w->plans; i++) {
        free(w->plan[i].assignment);
    }
    free(w->plan);
    mf_cost_destroy(w->cost);
}

/* --- everything ------------------------------------------------------------------------------- */

/* Calls visit for every split of the positions and every choice of every one of them. */
typedef struct odometer {
    const mf_space *space;
    mf_assignment a;
    int choices[MF_MAX_POSITIONS];
    mf_memory_choice choice[32][MF_CATALOGUE_MAX];
} odometer;

static bool next_memory(odometer *o, int *digit) {
    for (int i = 0; i < o->a.positions; i++) {
        if (++digit[i] < o->choices[i]) {
            return true;
        }
        digit[i] = 0;
    }
    return false;
}

/* The next way to split positions into virtual stages, none empty. */
static bool next_split(mf_assignment *a) {
    for (int v = a->vstages - 1; v > 0; v--) {
        if (a->first[v] < a->positions - (a->vstages - v)) {
            a->first[v]++;
            for (int u = v + 1; u < a->vstages; u++) {
                a->first[u] = a->first[u - 1] + 1;
            }
            return true;
        }
    }
    return false;
}

static void odometer_init(odometer *o, const mf_space *s, const mf_layout *l) {
    memset(o, 0, sizeof *o);
    o->space = s;
    o->a.positions = mf_model_positions(s->model);
    o->a.vstages = (int)(l->pp * l->vpp);
    assert_at_most(o->a.positions, 32);
    for (int v = 0; v < o->a.vstages; v++) {
        o->a.first[v] = v;
    }
    o->a.first[o->a.vstages] = o->a.positions;
    for (int i = 0; i < o->a.positions; i++) {
        o->choices[i] = planner_choices(s, i, o->choice[i]);
    }
}

/* Plans of a layout, without trying them. */
static void count_plans(void *user, const mf_layout *l) {
    fixture *w = user;
    odometer o;
    int64_t count = 1;
    odometer_init(&o, &w->space, l);
    for (int k = 1; k < o.a.vstages; k++) {
        count = count * (o.a.positions - k) / k;
    }
    for (int i = 0; i < o.a.positions && count <= MAX_PLANS; i++) {
        count *= o.choices[i];
    }
    w->allocated += count;
    w->layouts++;
}

/* What a plan needs with the gaps of its arrangement: an evaluator that has memory without end does
 * not look for them. */
static double peak_of(const fixture *w, const mf_layout *l, const mf_assignment *a) {
    mf_program *p = NULL;
    mf_schedule *s = NULL;
    mf_memory *m = NULL;
    mf_err e;
    if (mf_program_lower(w->space.model, l, &w->cluster, a, &p, &e) != MF_OK ||
        mf_schedule_create(l, &s, &e) != MF_OK || mf_memory_peak(p, s, &m, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    double peak_B = m->peak_B;
    mf_memory_destroy(m);
    mf_schedule_destroy(s);
    mf_program_destroy(p);
    return peak_B;
}

static void try_plan(fixture *w, const mf_layout *l, const mf_assignment *a) {
    mf_step step;
    mf_err e;
    assert_below(w->plans, w->allocated);
    if (w->evaluator.ops->step(w->evaluator.self, l, a, &step, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    tried *t = &w->plan[w->plans++];
    *t = (tried){.layout = *l,
                 .assignment = malloc(sizeof *a),
                 .time_s = step.time_s,
                 .peak_B = peak_of(w, l, a)};
    assert_non_null(t->assignment);
    *t->assignment = *a;
}

static void try_plans(void *user, const mf_layout *l) {
    fixture *w = user;
    odometer o;
    odometer_init(&o, &w->space, l);
    do {
        int digit[32] = {0};
        do {
            for (int i = 0; i < o.a.positions; i++) {
                o.a.memory[i] = o.choice[i][digit[i]];
            }
            try_plan(w, l, &o.a);
        } while (next_memory(&o, digit));
    } while (next_split(&o.a));
}

/* --- problems --------------------------------------------------------------------------------- */

/* Pins dimensions until few enough plans are left. Each case leaves others free. */
static void pin_some(rng *r, mf_space *s) {
    static const uint32_t dims[] = {MF_PIN(TP),          MF_PIN(CP),         MF_PIN(PP),
                                    MF_PIN(VPP),         MF_PIN(EP),         MF_PIN(ETP),
                                    MF_PIN(SCHEDULE),    MF_PIN(ZERO),       MF_PIN(CP_TYPE),
                                    MF_PIN(EXPERT_ZERO), MF_PIN(DISPATCHER), MF_PIN(MICRO_BATCH),
                                    MF_PIN(RECOMPUTE),   MF_PIN(OFFLOAD)};
    int64_t share = rng_range(r, 20, 90);
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        s->pinned |= rng_chance(r, (int)share) ? dims[i] : 0;
    }
}

/* A random problem with between 2 and MAX_PLANS plans. */
static void fixture_init(fixture *w, rng *r) {
    for (;;) {
        memset(w, 0, sizeof *w);
        w->model = planner_model(r, 3);
        w->cluster = planner_cluster(r);
        w->cluster.gpu.memory_B = 1e12;
        w->cluster.host_memory_B = 0;
        w->software = planner_software(r);
        w->space = planner_space(r, &w->model, 4);
        mf_layout l;
        if (planner_layout(r, &w->space, &l)) { /* pinned dimensions keep this one's values */
            mf_memory_choice memory = w->space.base.memory;
            w->space.base = l;
            w->space.base.memory = memory;
            pin_some(r, &w->space);
            planner_each_layout(&w->space, count_plans, w);
        }
        if (w->allocated > 1 && w->allocated <= MAX_PLANS) {
            break;
        }
    }
    w->plan = calloc((size_t)w->allocated, sizeof *w->plan);
    assert_non_null(w->plan);
    w->cost = planner_cost(&w->cluster, &w->software);
    w->real = (mf_evaluator_real){.model = &w->model, .cost = w->cost};
    w->evaluator = mf_evaluator_init(&w->real);
    planner_each_layout(&w->space, try_plans, w);
    assert_true(w->plans == w->allocated);
}

static int by_peak(const void *a, const void *b) {
    const tried *x = a, *y = b;
    return (x->peak_B > y->peak_B) - (x->peak_B < y->peak_B);
}

static const tried *fastest(const fixture *w, double usable_B) {
    const tried *best = NULL;
    for (int64_t i = 0; i < w->plans; i++) {
        const tried *t = &w->plan[i];
        if (t->peak_B <= usable_B && (!best || t->time_s < best->time_s)) {
            best = t;
        }
    }
    return best;
}

/* --- against the search ----------------------------------------------------------------------- */

static void fail_with(const fixture *w, const tried *best, const mf_search_result *x,
                      const char *what) {
    printf("%s: %lld plans of %lld layouts\n", what, (long long)w->plans, (long long)w->layouts);
    planner_print_model(&w->model);
    if (best) {
        printf(" fastest of all: %.12g s, peak %.9g B\n", best->time_s, best->peak_B);
        planner_print(&best->layout, best->assignment);
    }
    if (x->count > 0) {
        printf(" found: %.12g s, peak %.9g B of %.9g B; bound %.12g s, gap %.3g\n",
               x->plan[0].prediction.step_time_s, x->plan[0].prediction.peak_memory_B,
               x->plan[0].prediction.usable_B, x->stats.lower_bound_s, x->stats.gap);
        planner_print(&x->plan[0].layout, &x->plan[0].assignment);
    }
    fail_msg("%s", what);
}

/* A search that stops at the gap that is usual: the fastest plan lies between its bound and its
 * plan. */
static void check_usual(const fixture *w, const mf_problem *p, const tried *best) {
    mf_search_options o;
    mf_search_result x;
    mf_search_options_init(&o);
    o.threads = 1;
    mf_status status = mf_planner_search(p, &o, &x, NULL);
    if (status != MF_OK) {
        fail_with(w, best, &x, "the usual search finds nothing");
    }
    if (!(x.stats.lower_bound_s <= best->time_s * (1.0 + HAIR) &&
          x.plan[0].prediction.step_time_s >= best->time_s * (1.0 - HAIR))) {
        fail_with(w, best, &x, "the fastest plan lies outside of the usual search's proof");
    }
    mf_search_result_clear(&x);
}

/* Whatever mechanism is switched off, a bound is one and a plan is no better than the fastest. */
static void check_without(const fixture *w, double usable_B, mf_mechanism less) {
    mf_cluster c = w->cluster;
    c.gpu.memory_B = usable_B / (1.0 - w->space.base.reserve);
    mf_cost *cost = planner_cost(&c, &w->software);
    const mf_problem p = {
        .model = &w->model, .cost = cost, .base = w->space.base, .pinned = w->space.pinned};
    const tried *best = fastest(w, mf_cluster_usable_B(&c, w->space.base.reserve));
    mf_search_options o;
    mf_search_result x;
    mf_search_options_init(&o);
    o.threads = 1;
    o.without = (mf_mechanisms)1 << less;
    const mf_status status = mf_planner_search(&p, &o, &x, NULL);
    assert_true(status == MF_OK || status == MF_INFEASIBLE);
    const double plan_s = status == MF_OK ? x.plan[0].prediction.step_time_s : HUGE_VAL;
    if (!(plan_s >= best->time_s * (1.0 - HAIR) &&
          (status != MF_OK || x.stats.lower_bound_s <= best->time_s * (1.0 + HAIR)))) {
        fail_with(w, best, &x, mf_mechanism_text(less));
    }
    mf_search_result_clear(&x);
    mf_cost_destroy(cost);
}

/* --- runners-up ------------------------------------------------------------------------------- */

/* The fastest plans that fit, one of all that have the same degrees, schedule and micro-batch. */
enum { RANKED = 3 };
typedef struct ranking {
    int count; /* RANKED + 1 at most */
    const tried *it[RANKED + 2];
} ranking;

static bool same_degrees(const mf_layout *a, const mf_layout *b) {
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp && a->vpp == b->vpp &&
           a->ep == b->ep && a->etp == b->etp && a->mbs == b->mbs && a->schedule == b->schedule;
}

static ranking rank_all(const fixture *w, double usable_B) {
    ranking r = {.count = 0};
    for (int next = 0; next <= RANKED; next++) {
        const tried *best = NULL;
        for (int64_t i = 0; i < w->plans; i++) {
            const tried *t = &w->plan[i];
            bool ranked = t->peak_B > usable_B;
            for (int k = 0; k < r.count && !ranked; k++) {
                ranked = same_degrees(&t->layout, &r.it[k]->layout);
            }
            best = !ranked && (!best || t->time_s < best->time_s) ? t : best;
        }
        if (best) {
            r.it[r.count++] = best;
        }
    }
    return r;
}

/* The fastest plan that fits with the degrees of a layout. */
static const tried *fastest_like(const fixture *w, double usable_B, const mf_layout *l) {
    const tried *best = NULL;
    for (int64_t i = 0; i < w->plans; i++) {
        const tried *t = &w->plan[i];
        if (t->peak_B <= usable_B && same_degrees(&t->layout, l) &&
            (!best || t->time_s < best->time_s)) {
            best = t;
        }
    }
    return best;
}

/* Plans are listed by time, differ in their degrees, leave what was asked for, and none is faster
 * than the fastest of its degrees. What is said of those that are not listed holds. */
static void check_listed(const fixture *w, double usable_B, double headroom_B,
                         const mf_search_result *x) {
    const ranking all = rank_all(w, usable_B);
    assert_at_least(x->stats.unlisted_s, x->stats.lower_bound_s);
    for (int i = 0; i < x->count; i++) {
        const mf_plan_prediction *found = &x->plan[i].prediction;
        const tried *best = fastest_like(w, usable_B, &x->plan[i].layout);
        assert_non_null(best);
        assert_at_least(found->step_time_s, best->time_s * (1.0 - HAIR));
        assert_true(found->fits);
        assert_at_least(found->usable_B - found->peak_memory_B, headroom_B - 1.0);
        for (int k = 0; k < i; k++) {
            assert_at_least(found->step_time_s, x->plan[k].prediction.step_time_s);
            assert_false(same_degrees(&x->plan[i].layout, &x->plan[k].layout));
        }
    }
    for (int i = 0; i < all.count; i++) {
        bool is_listed = false;
        for (int k = 0; k < x->count; k++) {
            is_listed |= same_degrees(&all.it[i]->layout, &x->plan[k].layout);
        }
        assert_true(is_listed || x->stats.unlisted_s <= all.it[i]->time_s * (1.0 + HAIR));
    }
}

/* Each runner-up is the fastest plan of its degrees; with a gap, the k-th takes no more than that
 * beyond the k-th of all. headroom_B: of the memory that there is, so much has to stay free for the
 * plan to leave usable_B. */
static void check_ranking(const fixture *w, double usable_B, double headroom_B, double gap) {
    mf_cluster c = w->cluster;
    c.gpu.memory_B = (usable_B + headroom_B) / (1.0 - w->space.base.reserve);
    mf_cost *cost = planner_cost(&c, &w->software);
    const mf_problem p = {
        .model = &w->model, .cost = cost, .base = w->space.base, .pinned = w->space.pinned};
    const ranking all = rank_all(w, usable_B);
    const int listed = all.count < RANKED ? all.count : RANKED;
    mf_search_options o;
    mf_search_result x;
    mf_search_options_init(&o);
    o.threads = 1;
    o.top = RANKED;
    o.gap = gap > 0.0 ? gap : NO_GAP;
    o.min_headroom_B = headroom_B;
    if (mf_planner_search(&p, &o, &x, NULL) != MF_OK || x.count != listed) {
        fail_with(w, all.count > 0 ? all.it[0] : NULL, &x, "runners-up are missing");
    }
    for (int i = 0; i < listed; i++) {
        const mf_plan_prediction *found = &x.plan[i].prediction;
        if (!(found->step_time_s >= all.it[i]->time_s * (1.0 - HAIR) &&
              found->step_time_s <= all.it[i]->time_s * (1.0 + gap + HAIR))) {
            fail_with(w, all.it[i], &x, "a runner-up is not the fastest");
        }
    }
    check_listed(w, usable_B, headroom_B, &x);
    mf_search_result_clear(&x);
    mf_cost_destroy(cost);
}

/* With as many wanted as there may be and hardly any effort, fewer are listed; what is said of them
 * and of the others is true all the same. */
static void check_hasty_ranking(const fixture *w, double usable_B, int64_t budget) {
    mf_cluster c = w->cluster;
    c.gpu.memory_B = usable_B / (1.0 - w->space.base.reserve);
    mf_cost *cost = planner_cost(&c, &w->software);
    const mf_problem p = {
        .model = &w->model, .cost = cost, .base = w->space.base, .pinned = w->space.pinned};
    mf_search_options o;
    mf_search_result x;
    mf_search_options_init(&o);
    o.threads = 1;
    o.top = MAX_PLANS;
    o.budget = budget;
    assert_ok(mf_planner_search(&p, &o, &x, NULL));
    assert_above(x.count, 0);
    check_listed(w, usable_B, 0.0, &x);
    mf_search_result_clear(&x);
    mf_cost_destroy(cost);
}

static void check_search(const fixture *w, double usable_B) {
    mf_cluster c = w->cluster;
    c.gpu.memory_B = usable_B / (1.0 - w->space.base.reserve);
    mf_cost *cost = planner_cost(&c, &w->software);
    mf_problem p = {
        .model = &w->model, .cost = cost, .base = w->space.base, .pinned = w->space.pinned};
    mf_search_options o;
    mf_search_result x;
    mf_err e;
    mf_search_options_init(&o);
    o.threads = 1;
    o.gap = NO_GAP;
    const tried *best = fastest(w, mf_cluster_usable_B(&c, w->space.base.reserve));
    mf_status status = mf_planner_search(&p, &o, &x, &e);
    if (best == NULL) {
        assert_int_equal(status, MF_INFEASIBLE);
    } else if (status != MF_OK) {
        fail_with(w, best, &x, e.text);
    } else {
        double time_s = x.plan[0].prediction.step_time_s;
        if (!(fabs(time_s / best->time_s - 1.0) <= HAIR)) {
            fail_with(w, best, &x, "the search's plan is not the fastest");
        }
        if (!(x.stats.gap <= HAIR && fabs(x.stats.lower_bound_s / time_s - 1.0) <= HAIR)) {
            fail_with(w, best, &x, "the proof is not complete");
        }
        assert_true(x.plan[0].prediction.fits);
        /* tried were hierarchical CP's doubles, too, which the search leaves out */
        mf_space distinct = w->space;
        int64_t layouts = 0;
        distinct.domain_gpus = c.domain_gpus_used;
        assert_ok(mf_space_count(&distinct, &layouts, NULL));
        assert_int_equal(x.stats.space, layouts);
        assert_at_most(layouts, w->layouts);
        check_usual(w, &p, best);
    }
    mf_search_result_clear(&x);
    mf_cost_destroy(cost);
}

static void the_search_finds_what_trying_everything_finds(void **state) {
    (void)state;
    rng r = rng_init(9001);
    int cases = planner_cases(36, 2);
    int64_t plans = 0, searches = 0;
    for (int i = 0; i < cases; i++) {
        uint64_t seed = r.state;
        fixture w;
        fixture_init(&w, &r);
        if (getenv("MF_CASES")) {
            printf("case %d, seed %llu: %lld plans of %lld layouts\n", i, (unsigned long long)seed,
                   (long long)w.plans, (long long)w.layouts);
        }
        qsort(w.plan, (size_t)w.plans, sizeof *w.plan, by_peak);
        /* memory for all plans, for some, for the leanest alone, for none */
        int64_t some = rng_range(&r, 0, w.plans - 1);
        check_search(&w, w.plan[w.plans - 1].peak_B + 1.0);
        check_search(&w, w.plan[some].peak_B + 1.0);
        check_search(&w, w.plan[0].peak_B + 1.0);
        check_ranking(&w, w.plan[some].peak_B + 1.0, 0.0, 0.0);
        check_ranking(&w, w.plan[some].peak_B + 1.0, 4e9, 0.03);
        check_hasty_ranking(&w, w.plan[some].peak_B + 1.0, rng_range(&r, 1, 3000));
        check_without(&w, w.plan[some].peak_B + 1.0, (mf_mechanism)(i % MF_MECHANISMS));
        searches += 7;
        plans += w.plans;
        fixture_clear(&w);
    }
    mf_milp_thread_end();
    printf("  %d problems, %lld plans tried, %lld searches\n", cases, (long long)plans,
           (long long)searches);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_finds_what_trying_everything_finds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
