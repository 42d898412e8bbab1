/* host_copies.c - copies between GPUs and their hosts: how long they take, whether they were
 * measured, and searches without and with them. */
#include "job/search/host_copies.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
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

/* --- what copies would gain ------------------------------------------------------------------- */

struct mf_host_gain {
    const mf_problem *problem;
    mf_search_options options; /* of the search whose answer it looks into */
    mf_problem one;            /* that answer's layout alone */
    bool asked, beside;        /* is there one, and a thread that looks into it? */
    pthread_t thread;
    double known_s, with_s; /* 0: no faster plan with copies */
    mf_status status;
    mf_err err;
};

static void *look(void *user) {
    enum { COUNTED_US = 1000000 };
    mf_host_gain *g = user;
    mf_search_options o = g->options;
    mf_search_result r = {0};
    o.top = 1;
    o.budget = COUNTED_US;
    o.known_s = g->known_s;
    o.bare = true;
    o.without |= (mf_mechanisms)1 << MF_MECHANISM_SECOND_LOOK;
    g->with_s = 0;
    mf_err_clear(&g->err);
    g->status = mf_planner_search(&g->one, &o, &r, &g->err);
    if (r.count > 0 && in_plan(&r.plan[0])) {
        g->with_s = r.plan[0].prediction.step_time_s;
    }
    mf_search_result_clear(&r);
    g->status = g->status == MF_INFEASIBLE || g->status == MF_INTERRUPTED ? MF_OK : g->status;
    return NULL;
}

static void wait_for(mf_host_gain *g) {
    if (g->beside) {
        pthread_join(g->thread, NULL);
    }
    g->beside = false;
}

/* Of several searches the last one counts; what copies already gains nothing by it. */
static void look_into(void *user, const mf_layout *best, const mf_assignment *a,
                      double step_time_s) {
    const uint32_t free = MF_PIN(OFFLOAD) | MF_PIN(RECOMPUTE) | MF_PIN(STAGES);
    mf_host_gain *g = user;
    const mf_problem *p = g->problem;
    wait_for(g);
    g->asked = !mf_host_copies_in(best, a);
    if (!g->asked) {
        return;
    }
    g->one = *p;
    g->one.base = *best;
    g->one.base.memory = p->base.memory;
    g->one.precisions = 0;
    g->one.pinned = (MF_PIN(COUNT) - 1u) & ~free;
    g->one.pinned |= p->pinned & (free | MF_PIN_MOE_ACT);
    g->known_s = step_time_s;
    g->beside = g->options.threads != 1 && pthread_create(&g->thread, NULL, look, g) == 0;
}

mf_status mf_host_gain_begin(const mf_problem *p, mf_search_options *o, mf_host_gain **out,
                             mf_err *e) {
    *out = NULL;
    if (p->pinned & MF_PIN(OFFLOAD)) {
        return MF_OK;
    }
    mf_host_gain *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    g->problem = p;
    g->options = *o;
    g->options.progress = NULL;
    o->found = look_into;
    o->found_user = g;
    *out = g;
    return MF_OK;
}

void mf_host_gain_drop(mf_host_gain *g) {
    if (g != NULL) {
        wait_for(g);
    }
    free(g);
}

mf_status mf_host_gain_end(mf_host_gain **gain, mf_host_copies *h, mf_err *e) {
    mf_host_gain *g = *gain;
    mf_status s = MF_OK;
    *gain = NULL;
    if (g == NULL) {
        return MF_OK;
    }
    if (g->asked && !g->beside) {
        look(g);
    }
    wait_for(g);
    if (g->asked) {
        s = g->status;
        h->with_s = s == MF_OK ? g->with_s : 0;
    }
    if (s != MF_OK && e != NULL) {
        *e = g->err;
    }
    mf_host_gain_drop(g);
    return s;
}
