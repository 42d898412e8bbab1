/* capacity_remedy.c - what gets a cell's plan over uneven routing that it does not fit under. */
#include "job/capacity/capacity_strain.h"
#include "job/capacity/capacity_table.h"

#include "job/load/problem.h"
#include "launch/steps/steps.h"
#include "planner/capacity/robust.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A cell whose plan does not fit under a routing, while something that does is looked for. */
typedef struct overfull {
    const mf_capacity *z;
    mf_capacity_cell *c;
    const mf_job *j;
    mf_problem p;
    mf_capacity_uneven uneven;
    mf_runs_on on;
    double headroom; /* what is tried: rows of the worst draw, rounded up to what is printed */
} overfull;

static double rounded_up(double load) {
    return ceil(100 * load) / 100;
}

/* What keeps more limits is better, then what takes less time; without a limit all keep it. */
static bool is_better(const mf_capacity_strain *x, const mf_capacity_strain *than) {
    const int kept = x->in_time + x->in_budget, before = than->in_time + than->in_budget;
    return !than->tried || (kept != before ? kept > before : x->step_time_s < than->step_time_s);
}

/* The options of a remedy: memory for so many rows, and the rest. */
static void write_options(char out[MF_STEP_TEXT], double headroom, const char *rest) {
    snprintf(out, MF_STEP_TEXT, "--token-headroom %.2f%s%.200s", headroom,
             rest[0] != '\0' ? " " : "", rest);
}

/* Takes a plan for these options if it fits in every draw, and is better than what was taken
 * before. */
static void take(const overfull *x, const mf_capacity_strain *now, bool searched,
                 const char *options) {
    mf_capacity_cell *c = x->c;
    if (now->fits && is_better(now, &c->remedied)) {
        c->remedied = *now;
        c->remedy_searched = searched;
        c->remedy_short = searched && x->z->r->effort_us == 0;
        snprintf(c->remedy, sizeof c->remedy, "%s", options);
    }
}

/* Single steps and pairs of them from the plan with memory for the rows of the worst draw. */
static mf_status try_steps(const overfull *x, mf_err *e) {
    const mf_capacity_cell *c = x->c;
    mf_layout l = c->layout;
    mf_steps found = {0};
    l.token_headroom = x->headroom;
    mf_status s = mf_steps_to_fit(&x->p, &l, &c->assignment, x->on.limited ? &x->on.target : NULL,
                                  x->z->r->cancel, MF_OVERFULL_STEPS, &found, e);
    for (int i = 0; s == MF_OK && i < found.count; i++) {
        const mf_one_step *step = &found.step[i];
        mf_capacity_strain now = {.fits = false};
        char options[MF_STEP_TEXT];
        s = mf_capacity_skew(c, x->z->r, x->j, &x->p, &step->layout, &step->assignment, &x->uneven,
                             &now, e);
        write_options(options, fmax(x->headroom, rounded_up(now.most_load)), step->what);
        if (s == MF_OK) {
            take(x, &now, false, options);
        }
    }
    mf_steps_clear(&found);
    return s;
}

/* A search of p chooses all anew, with as much effort as the cell's was asked to have, so that who
 * types its options gets its plan. That it finds none is no error: now->tried is false then. */
static mf_status search(overfull *x, const mf_problem *p, int64_t *ep, mf_capacity_strain *now,
                        mf_err *e) {
    const mf_capacity_request *r = x->z->r;
    mf_search_options o;
    mf_search_result found = {0};
    mf_host_copies host = {0};
    mf_err why;
    mf_err_clear(&why);
    mf_search_options_init(&o);
    o.cancel = r->cancel;
    o.top = 1;
    o.gap = r->gap;
    o.budget = r->effort_us > 0 ? r->effort_us : MF_OVERFULL_US;
    o.threads = r->threads;
    o.flight = mf_capacity_flight(r);
    *now = (mf_capacity_strain){.tried = false};
    mf_status s = mf_host_copies_search(mf_runs_on_search, &x->on, p, &o, r->search_offload, &found,
                                        &host, &why);
    if (s == MF_OK) {
        *ep = found.plan[0].layout.ep;
        s = mf_capacity_skew(x->c, r, x->j, p, &found.plan[0].layout, &found.plan[0].assignment,
                             &x->uneven, now, e);
    } else {
        s = s == MF_INFEASIBLE || s == MF_LAYOUT ? MF_OK : mf_err_set(e, s, "%s", why.text);
    }
    mf_search_result_clear(&found);
    return s;
}

/* A plan that a search finds may have more expert ranks, and a busier one among them: then there is
 * to be memory for its rows. *ep: of what was found last; 0: nothing. */
static mf_status try_headroom(overfull *x, int64_t *ep, mf_err *e) {
    mf_problem p = x->p;
    mf_status s = MF_OK;
    p.base.token_headroom = x->headroom;
    *ep = 0;
    for (int i = 0; s == MF_OK && i < MF_OVERFULL_SEARCHES; i++) {
        mf_capacity_strain now;
        char options[MF_STEP_TEXT];
        s = search(x, &p, ep, &now, e);
        const double needed = rounded_up(now.most_load);
        const bool enough = needed <= p.base.token_headroom;
        if (s == MF_OK && (enough || i == MF_OVERFULL_SEARCHES - 1)) {
            write_options(options, fmax(p.base.token_headroom, needed), "");
            take(x, &now, true, options);
            break;
        }
        p.base.token_headroom = needed;
    }
    return s;
}

/* With fewer expert ranks the busiest one has fewer rows. */
static mf_status try_ep(overfull *x, int64_t ep, mf_err *e) {
    mf_problem p = x->p;
    mf_capacity_strain now;
    int64_t found = 0;
    char degree[32], options[MF_STEP_TEXT];
    const double needed =
        rounded_up(mf_robust_most_load(p.model, &x->uneven.routing, x->uneven.draws, ep));
    p.base.ep = ep;
    p.pinned |= MF_PIN(EP);
    snprintf(degree, sizeof degree, "--ep %lld", (long long)ep);
    if (needed > p.base.token_headroom) {
        p.base.token_headroom = needed;
        write_options(options, needed, degree);
    } else {
        snprintf(options, sizeof options, "%s", degree);
    }
    mf_status s = search(x, &p, &found, &now, e);
    if (s == MF_OK) {
        take(x, &now, true, options);
    }
    return s;
}

/* With memory for the rows of every draw; and, since a search takes what is fastest under even
 * routing (of --skew), with no expert parallelism and with half as much. */
static mf_status try_searches(overfull *x, mf_err *e) {
    const int64_t half = x->c->layout.ep / 2;
    int64_t found = 0;
    mf_status s = try_headroom(x, &found, e);
    if ((x->p.pinned & MF_PIN(EP)) != 0) {
        return s;
    }
    s = s == MF_OK && found != 1 ? try_ep(x, 1, e) : s;
    return s == MF_OK && half > 1 ? try_ep(x, half, e) : s;
}

/* The next larger size of the row whose plan fits in every draw, if it keeps more limits, or
 * nothing of this size fits. */
static void take_larger(const overfull *x) {
    mf_capacity_strain *best = &x->c->remedied;
    for (int i = 0; i < x->z->count; i++) {
        const mf_capacity_cell *other = &x->z->cell[i];
        const mf_capacity_strain *now = &other->skewed;
        if (other->row == x->c->row && other->gpus > x->c->gpus && now->tried && now->fits &&
            (!best->tried || now->in_time + now->in_budget > best->in_time + best->in_budget)) {
            *best = *now;
            x->c->remedy[0] = '\0';
            x->c->remedy_searched = x->c->remedy_short = false;
        }
    }
}

mf_status mf_capacity_find_remedy(mf_capacity *z, mf_capacity_cell *c, mf_err *e) {
    overfull x = {.z = z, .c = c, .j = &z->job[c->row]};
    if (!c->skewed.tried || c->skewed.fits || c->remedied.tried) {
        return MF_OK;
    }
    x.headroom = rounded_up(fmax(c->layout.token_headroom, c->skewed.most_load));
    mf_status s = mf_capacity_uneven_of(z->r, x.j, &x.uneven, e);
    s = s == MF_OK ? mf_problem_from_job(x.j, &x.p, e) : s;
    x.p.base.gpus = c->gpus;
    s = s == MF_OK ? mf_runs_on_parse(z->r->runs_on, x.j->software.name, &x.on, e) : s;
    s = s == MF_OK ? try_searches(&x, e) : s;
    s = s == MF_OK ? try_steps(&x, e) : s;
    if (s == MF_OK) {
        take_larger(&x);
    }
    mf_capacity_uneven_clear(&x.uneven);
    return s;
}
