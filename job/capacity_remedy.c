/* capacity_remedy.c - what gets a cell's plan over uneven routing that it does not fit under. */
#include "job/capacity_strain.h"

#include "job/problem.h"
#include "launch/steps.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    SEARCHES = 3,
    STEPS = 4,           /* that are simulated with the draws, the fastest under even routing */
    EFFORT_US = 2000000, /* of each search for a plan with memory for the rows of every draw */
};

/* A cell whose plan does not fit under a routing, while something that does is looked for. */
typedef struct overfull {
    const mf_capacity *z;
    mf_capacity_cell *c;
    const mf_job *j;
    mf_problem p;
    mf_routing skew;
    mf_runs_on on;
    double headroom; /* what is tried: rows of the worst draw, rounded up to what is printed */
} overfull;

static double rounded_up(double load) {
    return ceil(100 * load) / 100;
}

/* Takes a plan if it fits in every draw, and is faster than what was taken before. most_load: what
 * there is to have memory for; may be NULL. */
static mf_status take(const overfull *x, const mf_layout *l, const mf_assignment *a,
                      const char *with, bool searched, double *most_load, mf_err *e) {
    mf_capacity_cell *c = x->c;
    mf_capacity_strain now = {.fits = false};
    mf_status s = mf_capacity_skew(c, x->z->r, x->j, &x->p, l, a, &x->skew, &now, e);
    if (most_load != NULL) {
        *most_load = now.most_load;
    }
    if (s != MF_OK || !now.fits ||
        (c->remedied.tried && now.step_time_s >= c->remedied.step_time_s)) {
        return s;
    }
    c->remedied = now;
    c->remedy_searched = searched;
    snprintf(c->remedy, sizeof c->remedy, "--token-headroom %.2f%s%.200s",
             fmax(x->headroom, rounded_up(now.most_load)), with[0] != '\0' ? " " : "", with);
    return MF_OK;
}

/* Single steps and pairs of them from the plan with memory for the rows of the worst draw. */
static mf_status try_steps(const overfull *x, mf_err *e) {
    const mf_capacity_cell *c = x->c;
    mf_layout l = c->layout;
    mf_steps found = {0};
    l.token_headroom = x->headroom;
    mf_status s = mf_steps_to_fit(&x->p, &l, &c->assignment, x->on.limited ? &x->on.target : NULL,
                                  x->z->r->cancel, STEPS, &found, e);
    for (int i = 0; s == MF_OK && i < found.count; i++) {
        const mf_one_step *step = &found.step[i];
        s = take(x, &step->layout, &step->assignment, step->what, false, NULL, e);
    }
    mf_steps_clear(&found);
    return s;
}

/* A search chooses all anew, with that memory. That it finds none is no error. *most_load: of what
 * it found; 0: nothing. */
static mf_status search_with(overfull *x, double *most_load, mf_err *e) {
    const mf_capacity_request *r = x->z->r;
    mf_problem p = x->p;
    mf_search_options o;
    mf_search_result found = {0};
    mf_host_copies host = {0};
    mf_err why;
    mf_err_clear(&why);
    mf_search_options_init(&o);
    o.cancel = r->cancel;
    o.top = 1;
    o.gap = r->gap;
    o.budget = EFFORT_US;
    o.threads = r->threads;
    p.base.token_headroom = x->headroom;
    *most_load = 0;
    mf_status s = mf_host_copies_search(mf_runs_on_search, &x->on, &p, &o, r->search_offload,
                                        &found, &host, &why);
    if (s == MF_OK) {
        s = take(x, &found.plan[0].layout, &found.plan[0].assignment, "", true, most_load, e);
    } else {
        s = s == MF_INFEASIBLE || s == MF_LAYOUT ? MF_OK : mf_err_set(e, s, "%s", why.text);
    }
    mf_search_result_clear(&found);
    return s;
}

/* A plan that a search finds may have more expert ranks, and a busier one among them: then there is
 * to be memory for its rows. */
static mf_status try_searches(overfull *x, mf_err *e) {
    mf_status s = MF_OK;
    const double of_plan = x->headroom;
    double most_load = 0;
    for (int i = 0; s == MF_OK && i < SEARCHES; i++) {
        s = search_with(x, &most_load, e);
        if (x->c->remedied.tried || rounded_up(most_load) <= x->headroom) {
            break; /* found; or nothing fits with it */
        }
        x->headroom = rounded_up(most_load);
    }
    x->headroom = of_plan;
    return s;
}

/* The next larger size of the row whose plan fits in every draw. */
static void take_larger(const overfull *x) {
    for (int i = x->z->count - 1; i >= 0; i--) {
        const mf_capacity_cell *other = &x->z->cell[i];
        if (other->row == x->c->row && other->gpus > x->c->gpus && other->skewed.fits) {
            x->c->remedied = other->skewed;
        }
    }
}

mf_status mf_capacity_find_remedy(mf_capacity *z, mf_capacity_cell *c, mf_err *e) {
    overfull x = {.z = z, .c = c, .j = &z->job[c->row]};
    if (!c->skewed.tried || c->skewed.fits || c->remedied.tried) {
        return MF_OK;
    }
    x.headroom = rounded_up(fmax(c->layout.token_headroom, c->skewed.most_load));
    mf_routing_init(&x.skew);
    mf_status s = mf_problem_from_job(x.j, &x.p, e);
    x.p.base.gpus = c->gpus;
    s = s == MF_OK ? mf_routing_parse(z->r->skew, &x.skew, e) : s;
    s = s == MF_OK ? mf_runs_on_parse(z->r->runs_on, x.j->software.name, &x.on, e) : s;
    s = s == MF_OK ? try_searches(&x, e) : s;
    s = s == MF_OK && !c->remedied.tried ? try_steps(&x, e) : s;
    if (s == MF_OK && !c->remedied.tried) {
        take_larger(&x);
    }
    mf_routing_clear(&x.skew);
    return s;
}
