/* robust.c - a plan under uneven routing, and what remains without a node. */
#include "planner/capacity/robust.h"

#include "core/memory/memory.h"

#include <math.h>
#include <stdlib.h>

/* --- routing ---------------------------------------------------------------------------------- */

static double most_load(const mf_model *m, const mf_routing *r, int64_t ep) {
    int64_t layers = m->mtp_layers;
    double most = 1;
    for (int64_t i = 0; i < m->layers; i++) {
        layers += m->layer_classes[m->layer_class[i]].ffn == MF_FFN_MOE;
    }
    for (int64_t i = 0; m->experts > 0 && i < layers; i++) {
        most = fmax(most, mf_routing_max_load(r, m, ep, i));
    }
    return most;
}

/* One draw; *fits is only ever set to false. */
static mf_status draw(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                      const mf_routing *skew, double *step_s, double *load, bool *fits, mf_err *e) {
    mf_layout with_headroom = *l;
    mf_program *program = NULL;
    mf_sim *sim = NULL;
    const mf_sim_options o = {.routing = skew, .judge = true};
    *load = most_load(p->model, skew, l->ep);
    if (l->capacity_factor <= 0) { /* else rows above capacity are dropped */
        with_headroom.token_headroom = fmax(l->token_headroom, *load);
    }
    mf_status s =
        mf_program_lower(p->model, &with_headroom, mf_cost_cluster(p->cost), a, &program, e);
    s = s == MF_OK ? mf_sim_step(p->cost, program, &o, &sim, e) : s;
    if (s == MF_OK) {
        *step_s = sim->step_time_s;
        *fits = *fits && sim->memory->fits;
    }
    mf_sim_destroy(sim);
    mf_program_destroy(program);
    return s;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int mf_robust_draws(const mf_routing *skew) {
    return skew->kind == MF_ROUTING_ZIPF ? MF_SKEW_DRAWS : 1;
}

static mf_routing nth_draw(const mf_routing *skew, int i) {
    mf_routing one = *skew; /* its counts are borrowed */
    one.seed = skew->seed + (uint64_t)i;
    return one;
}

double mf_robust_most_load(const mf_model *m, const mf_routing *skew, int draws, int64_t ep) {
    double most = 1;
    for (int i = 0; i < draws; i++) {
        const mf_routing one = nth_draw(skew, i);
        most = fmax(most, most_load(m, &one, ep));
    }
    return most;
}

mf_status mf_robust_skew(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                         const mf_routing *skew, int draws, mf_skewed *out, mf_err *e) {
    const int at = draws > 1 ? draws * 95 / 100 - 1 : 0;
    double step_s[MF_SKEW_DRAWS] = {0}, load[MF_SKEW_DRAWS] = {0};
    mf_status s = MF_OK;
    *out = (mf_skewed){.fits = true, .draws = draws};
    for (int i = 0; s == MF_OK && i < draws; i++) {
        const mf_routing one = nth_draw(skew, i);
        s = draw(p, l, a, &one, &step_s[i], &load[i], &out->fits, e);
    }
    qsort(step_s, (size_t)draws, sizeof step_s[0], by_value);
    qsort(load, (size_t)draws, sizeof load[0], by_value);
    out->step_time_s = step_s[at];
    out->load = load[at];
    out->most_load = load[draws - 1];
    return s;
}

/* --- a node less ------------------------------------------------------------------------------ */

/* The largest size up to `gpus` on which the plan's degrees divide; 0: none above half of it. */
static int64_t largest(const mf_problem *p, int64_t gpus, const mf_carried *x,
                       mf_known_plan *plan) {
    const mf_layout *l = x->layout;
    const int64_t replica = l->tp * l->cp * l->pp;
    for (int64_t dp = gpus / replica; dp > 0 && 2 * dp * replica >= gpus; dp--) {
        mf_problem q = *p;
        q.base.gpus = dp * replica;
        if (mf_carry_starts(&q, x->cluster, x, 1, plan) == 1) {
            return q.base.gpus;
        }
    }
    return 0;
}

mf_status mf_robust_left(const mf_problem *p, int64_t gpus, int cluster, const mf_carried *known,
                         int count, mf_plan *out, bool *found, mf_err *e) {
    mf_status s = MF_OK;
    mf_known_plan plan[MF_CARRY_MOST];
    *found = false;
    mf_plan_init(out);
    for (int i = 0; s == MF_OK && i < count; i++) {
        mf_problem q = *p;
        mf_plan one;
        q.base.gpus = known[i].cluster == cluster ? largest(p, gpus, &known[i], plan) : 0;
        if (q.base.gpus == 0) {
            continue;
        }
        s = mf_planner_predict(&q, &plan[0].layout, &plan[0].assignment, &one, NULL, e);
        if (s == MF_OK && one.prediction.fits &&
            (!*found || one.prediction.step_time_s < out->prediction.step_time_s)) {
            mf_plan_clear(out);
            *out = one;
            *found = true;
        } else {
            mf_plan_clear(&one);
        }
    }
    return s;
}
