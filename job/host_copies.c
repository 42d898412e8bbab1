/* host_copies.c - copies between GPUs and their hosts: what they take and whether they were
 * measured; a search without them, and with them. */
#include "job/host_copies.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool mf_host_copies_in(const mf_layout *l, const mf_assignment *a) {
    bool used = l->offload_optimizer > 0;
    for (int i = 0; i < a->positions; i++) {
        used |= a->memory[i].offload != 0;
    }
    return used;
}

bool mf_host_copies_measured(const mf_host_copies *h) {
    return h->known_gpu && h->gpus <= 1;
}

/* Were copies of the cluster's GPU measured, both ways? A large one is priced as its points say. */
static bool knows_gpu(const mf_cost *cost) {
    static const mf_op_kind ways[] = {MF_OP_COPY_D2H, MF_OP_COPY_H2D};
    bool known = true;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        const mf_op op = {.kind = (uint8_t)ways[i], .bytes = 1 << 26};
        mf_price p;
        mf_cost_op(cost, &op, 1, &p);
        known = known && (p.basis == MF_BASIS_MEASURED || p.basis == MF_BASIS_INTERPOLATED ||
                          p.basis == MF_BASIS_FITTED);
    }
    return known;
}

static double copy_s(const mf_cost *cost, const mf_op *op) {
    mf_price p = {0};
    if (mf_op_kind_class((mf_op_kind)op->kind) == MF_CLASS_COPY) {
        mf_cost_op(cost, op, 1, &p);
    }
    return p.time_s;
}

/* All copies of a stage's step. Balanced routing stands for any. */
static double stage_s(const mf_program *p, const mf_cost *cost, int64_t stage) {
    const mf_layout *l = &p->layout;
    double sum_s = 0;
    mf_op ops[64];
    for (int64_t chunk = 0; chunk < l->vpp; chunk++) {
        const int64_t v = mf_layout_vstage(l, stage, chunk);
        for (int at = p->assignment.first[v]; at < p->assignment.first[v + 1]; at++) {
            const mf_block *b = p->blocks[p->block_of[at]];
            for (int i = 0; i < b->nops; i++) {
                sum_s += (double)l->micro_batches * copy_s(cost, &b->ops[i]);
            }
        }
    }
    const int count = mf_program_optimizer(p, stage, ops, (int)(sizeof ops / sizeof ops[0]));
    for (int i = 0; i < count; i++) {
        sum_s += mf_sim_host_copied(mf_cost_software(cost), &ops[i]) * copy_s(cost, &ops[i]);
    }
    return sum_s;
}

mf_host_copies mf_host_copies_known(const mf_job *j, const mf_layout *l, const mf_assignment *a) {
    const int64_t of_a_host = j->cluster.gpus_per_node;
    mf_host_copies h = {.used = mf_host_copies_in(l, a), .copies_s = NAN, .exposed_s = NAN};
    snprintf(h.gpu, sizeof h.gpu, "%.31s", j->cluster.gpu.name);
    if (!mf_cluster_is_cpu(&j->cluster)) {
        h.gpus = l->gpus < of_a_host ? l->gpus : of_a_host;
        h.known_gpu = knows_gpu(j->cost);
        h.shared_Bps = j->cluster.host_shared_Bps;
    }
    return h;
}

mf_status mf_host_copies_count(const mf_job *j, const mf_layout *l, const mf_assignment *a,
                               double step_s, double exposed_s, mf_host_copies *h, mf_err *e) {
    mf_program *program = NULL;
    const mf_host_copies known = mf_host_copies_known(j, l, a);
    h->used = known.used;
    h->gpus = known.gpus;
    h->known_gpu = known.known_gpu;
    h->shared_Bps = known.shared_Bps;
    memcpy(h->gpu, known.gpu, sizeof h->gpu);
    h->copies_s = 0;
    h->exposed_s = h->used ? exposed_s : 0;
    h->step_s = step_s;
    mf_status s = MF_OK;
    if (h->used) {
        s = mf_program_lower(&j->model, l, &j->cluster, a, &program, e);
    }
    for (int64_t stage = 0; program != NULL && stage < l->pp; stage++) {
        h->copies_s = fmax(h->copies_s, stage_s(program, j->cost, stage));
    }
    mf_program_destroy(program);
    return s;
}

mf_status mf_host_copies_of_plan(const mf_job *j, const mf_plan *p, mf_host_copies *h, mf_err *e) {
    const mf_plan_prediction *x = &p->prediction;
    double exposed_s = 0;
    for (int i = 0; i < x->breakdown_count; i++) {
        exposed_s += strcmp(x->breakdown_s[i].key, mf_breakdown_text(MF_BD_OFFLOAD)) == 0
                         ? x->breakdown_s[i].value
                         : 0;
    }
    return mf_host_copies_count(j, &p->layout, &p->assignment, x->step_time_s, exposed_s, h, e);
}

static bool in_plan(const mf_plan *p) {
    return mf_host_copies_in(&p->layout, &p->assignment);
}

/* The search had offload pinned, but not by the user: says so. */
static void say_left_out(mf_search_stats *s) {
    static const char pinned[] = ", offload (pinned)";
    char rest[sizeof s->left_out];
    char *at = strstr(s->left_out, pinned);
    if (at != NULL) {
        snprintf(rest, sizeof rest, "%s", at + strlen(pinned));
        snprintf(at, sizeof s->left_out - (size_t)(at - s->left_out),
                 ", offload (--search-offload)%s", rest);
    }
}

static mf_status whole(void *user, const mf_problem *p, const mf_search_options *o,
                       mf_search_result *r, mf_err *e) {
    (void)user;
    return mf_planner_search(p, o, r, e);
}

mf_status mf_host_copies_search(mf_search_fn search, void *user, const mf_problem *p,
                                const mf_search_options *o, bool asked, mf_search_result *r,
                                mf_host_copies *h, mf_err *e) {
    mf_problem held = *p;
    held.pinned |= MF_PIN(OFFLOAD);
    *h = (mf_host_copies){.searched = true};
    search = search != NULL ? search : whole;
    mf_status s = search(user, &held, o, r, e);
    if (!(p->pinned & MF_PIN(OFFLOAD))) {
        h->infeasible = s == MF_INFEASIBLE;
        if ((asked && s == MF_OK) || h->infeasible) {
            h->without_s = s == MF_OK ? r->plan[0].prediction.step_time_s : 0;
            mf_search_result_clear(r);
            if (e != NULL) {
                mf_err_clear(e);
            }
            s = search(user, p, o, r, e);
        } else {
            say_left_out(&r->stats);
        }
    }
    h->used = r->count > 0 && in_plan(&r->plan[0]);
    return s;
}

mf_status mf_host_copies_search_optimizer(mf_search_fn search, void *user, const mf_problem *p,
                                          const mf_search_options *o, mf_search_result *r,
                                          mf_host_copies *h, mf_err *e) {
    mf_problem hosted = *p;
    mf_search_result with = {0};
    mf_err own;
    mf_err_clear(&own);
    hosted.base.offload_optimizer = 1;
    mf_status s = mf_host_copies_search(search, user, &hosted, o, false, &with, h, &own);
    if (s == MF_INFEASIBLE) {
        mf_search_result_clear(&with);
        return s;
    }
    mf_search_result_clear(r);
    *r = with;
    *e = own;
    h->infeasible = h->optimizer = s == MF_OK;
    return s;
}

mf_status mf_host_copies_gain(const mf_problem *p, const mf_search_options *o, const mf_plan *best,
                              mf_host_copies *h, mf_err *e) {
    enum { COUNTED_US = 1000000 };
    const uint32_t free = MF_PIN(OFFLOAD) | MF_PIN(RECOMPUTE) | MF_PIN(STAGES);
    mf_problem one = *p;
    mf_search_options short_one = *o;
    mf_search_result r = {0};
    if (h->used || (p->pinned & MF_PIN(OFFLOAD)) != 0) {
        return MF_OK;
    }
    one.base = best->layout;
    one.base.memory = p->base.memory;
    one.precisions = 0;
    one.pinned = (MF_PIN(COUNT) - 1u) & ~free;
    one.pinned |= p->pinned & (free | MF_PIN_MOE_ACT);
    short_one.top = 1;
    short_one.budget = COUNTED_US;
    short_one.known_s = best->prediction.step_time_s;
    short_one.progress = NULL;
    mf_status s = mf_planner_search(&one, &short_one, &r, e);
    if (r.count > 0 && in_plan(&r.plan[0])) {
        h->with_s = r.plan[0].prediction.step_time_s;
    }
    mf_search_result_clear(&r);
    if (s == MF_INFEASIBLE || s == MF_INTERRUPTED) {
        mf_err_clear(e);
        s = MF_OK;
    }
    return s;
}
