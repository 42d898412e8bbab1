/* capacity_strain.c - time and cost of a whole run, and the cells of `capacity` under uneven
 * routing and with a node less. */
#include "job/capacity/capacity_strain.h"

#include "core/base/flag.h"
#include "job/load/problem.h"
#include "planner/capacity/robust.h"

#include <math.h>
#include <stdlib.h>

void mf_capacity_fill_run(mf_capacity_cell *c, const mf_capacity_request *r, const mf_cluster *k) {
    c->run_s =
        c->goodput.share > 0 ? r->tokens / c->tokens_per_s / c->goodput.share : (double)INFINITY;
    c->gpu_h = (double)c->gpus * c->run_s / 3600;
    c->energy_J = (c->gpu_W + k->node_overhead_w) * (double)c->gpus * c->run_s;
    c->cost_usd = c->price.usd_gpu_h * c->gpu_h + r->power_usd_kWh * c->energy_J / 3.6e6;
    c->keeps_deadline = r->deadline_s > 0 && c->run_s <= r->deadline_s;
}

mf_goodput mf_capacity_goodput(const mf_capacity_request *r, const mf_cluster *k, int64_t gpus) {
    return mf_goodput_of((double)gpus, k->mtbf_gpu_h, r->checkpoint_s, r->restart_s);
}

mf_capacity_strain mf_capacity_strain_of(const mf_capacity_cell *c, const mf_capacity_request *r,
                                         const mf_job *j, int64_t gpus, int64_t paid,
                                         double step_time_s) {
    mf_capacity_cell t = *c;
    t.gpus = paid;
    t.tokens_per_s *= mf_capacity_step_s(c) / step_time_s;
    t.goodput = mf_capacity_goodput(r, &j->cluster, gpus);
    mf_capacity_fill_run(&t, r, &j->cluster);
    return (mf_capacity_strain){
        .tried = true,
        .fits = true,
        .gpus = gpus,
        .step_time_s = step_time_s,
        .run_s = t.run_s,
        .cost_usd = t.cost_usd,
        .in_time = !(r->deadline_s > 0) || t.keeps_deadline,
        .in_budget = !(r->budget_usd > 0) || (c->price.known && t.cost_usd <= r->budget_usd),
    };
}

static mf_status draws_of(const mf_job *j, const char *text, mf_capacity_uneven *out, mf_err *e) {
    out->draws = 0;
    mf_routing_init(&out->routing);
    mf_status s = text != NULL ? mf_routing_parse(text, &out->routing, e) : MF_OK;
    if (s == MF_OK && text != NULL && j->model.experts > 0) {
        out->routing.most = j->routing.most;
        s = mf_routing_check(&out->routing, &j->model, e);
        out->draws = mf_robust_draws(&out->routing);
    }
    return s;
}

mf_status mf_capacity_routing_of(const mf_capacity_request *r, const mf_job *j,
                                 mf_capacity_uneven *out, mf_err *e) {
    mf_status s = draws_of(j, j->model.experts > 0 ? r->asked.routing : NULL, out, e);
    if (out->routing.kind == MF_ROUTING_BALANCED) {
        out->draws = 0;
    }
    return s == MF_OK ? s : mf_err_prefix(e, "--routing");
}

mf_status mf_capacity_uneven_of(const mf_capacity_request *r, const mf_job *j,
                                mf_capacity_uneven *out, mf_err *e) {
    if (r->skew == NULL) {
        return mf_capacity_routing_of(r, j, out, e);
    }
    mf_status s = draws_of(j, r->skew, out, e);
    return s == MF_OK ? s : mf_err_prefix(e, "--skew");
}

void mf_capacity_uneven_clear(mf_capacity_uneven *x) {
    mf_routing_clear(&x->routing);
}

mf_status mf_capacity_route(mf_capacity_cell *c, const mf_capacity_request *r, const mf_job *j,
                            mf_err *e) {
    mf_capacity_uneven x;
    mf_problem p;
    c->routed.draws = 0;
    mf_status s = mf_capacity_routing_of(r, j, &x, e);
    if (s == MF_OK && x.draws > 1 && (s = mf_problem_from_job(j, &p, e)) == MF_OK) {
        s = mf_robust_skew(&p, &c->layout, &c->assignment, &x.routing, x.draws, &c->routed, e);
    }
    mf_capacity_uneven_clear(&x);
    return s;
}

static mf_capacity_strain strain_from(const mf_capacity_cell *c, const mf_capacity_request *r,
                                      const mf_job *j, const mf_skewed *found) {
    mf_capacity_strain x = mf_capacity_strain_of(c, r, j, c->gpus, c->gpus, found->step_time_s);
    x.fits = found->fits;
    x.load = found->load;
    x.most_load = found->most_load;
    x.draws = found->draws;
    return x;
}

mf_status mf_capacity_skew(const mf_capacity_cell *c, const mf_capacity_request *r, const mf_job *j,
                           const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                           const mf_capacity_uneven *x, mf_capacity_strain *out, mf_err *e) {
    mf_skewed found;
    mf_status s = mf_robust_skew(p, l, a, &x->routing, x->draws, &found, e);
    if (s == MF_OK) {
        *out = strain_from(c, r, j, &found);
    }
    return s;
}

/* The plans of the row are what is known of its cluster. What is left goes on under the same
 * --routing. */
static mf_status lose_node(mf_capacity *z, const mf_job *j, const mf_problem *p,
                           const mf_capacity_uneven *routing, mf_capacity_cell *c, mf_err *e) {
    const int64_t node = j->cluster.gpus_per_node > 0 ? j->cluster.gpus_per_node : 1;
    mf_plan plan;
    bool found = false;
    int count = 0;
    mf_carried *known = calloc((size_t)z->count + 1, sizeof *known);
    for (int i = 0; known != NULL && i < z->count; i++) {
        const mf_capacity_cell *x = &z->cell[i];
        if (x->feasible && x->row == c->row) {
            known[count++] = (mf_carried){x->row, &x->layout, &x->assignment};
        }
    }
    if (known == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status s = mf_robust_left(p, c->gpus - node, c->row, known, count, &plan, &found, e);
    mf_skewed drawn = {.step_time_s = plan.prediction.step_time_s};
    if (s == MF_OK && found && routing->draws > 1) {
        s = mf_robust_skew(p, &plan.layout, &plan.assignment, &routing->routing, routing->draws,
                           &drawn, e);
    }
    c->lost = (mf_capacity_strain){.tried = s == MF_OK};
    if (s == MF_OK && found) {
        c->lost =
            mf_capacity_strain_of(c, z->r, j, plan.layout.gpus, c->gpus - node, drawn.step_time_s);
    }
    mf_plan_clear(&plan);
    free(known);
    return s;
}

mf_status mf_capacity_strain_row(mf_capacity *z, const mf_job *j, int row, mf_err *e) {
    const bool limits = z->r->deadline_s > 0 || z->r->budget_usd > 0;
    mf_problem problem;
    mf_capacity_uneven uneven, routing;
    mf_status s = mf_capacity_uneven_of(z->r, j, &uneven, e);
    const mf_status read = mf_capacity_routing_of(z->r, j, &routing, e);
    s = s == MF_OK ? read : s;
    s = s == MF_OK ? mf_problem_from_job(j, &problem, e) : s;
    for (int i = 0; s == MF_OK && i < z->count; i++) {
        mf_capacity_cell *c = &z->cell[i];
        if (c->row != row || !c->feasible) {
            continue;
        }
        problem.base.gpus = c->gpus;
        if (z->r->skew == NULL && c->routed.draws > 0) {
            c->skewed = strain_from(c, z->r, j, &c->routed);
        } else if (uneven.draws > 0) {
            s = mf_capacity_skew(c, z->r, j, &problem, &c->layout, &c->assignment, &uneven,
                                 &c->skewed, e);
        }
        s = s == MF_OK && limits ? lose_node(z, j, &problem, &routing, c, e) : s;
        if (s == MF_OK && mf_flag_is_set(z->r->cancel)) {
            s = mf_err_set(e, MF_INTERRUPTED, "interrupted");
        }
    }
    mf_capacity_uneven_clear(&uneven);
    mf_capacity_uneven_clear(&routing);
    return s;
}
