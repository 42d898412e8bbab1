/* fit.c - phase 1: for every combination of degrees, does it fit, and by how much.
 *
 * Each combination is judged (fit_judge.c) at its least memory: smallest micro-batch, plain 1F1B.
 */
#include "planner/fit/fit_sweep.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define LL(x) ((long long)(x))

typedef struct fit {
    const mf_problem *p;
    const mf_fit_options *o;
    mf_fit_crew crew;
    mf_fit_result *r;
} fit;

/* --- sizes ------------------------------------------------------------------------------------ */

static mf_status fits_at(fit *w, int64_t gpus, bool *fits, mf_err *e) {
    mf_problem there = *w->p;
    there.base.gpus = gpus;
    *fits = false;
    if (mf_planner_least_states_B(&there) >
        mf_cluster_usable_B(mf_cost_cluster(w->p->cost), w->p->base.reserve)) {
        return MF_OK;
    }
    const mf_fit_sweep q = {
        .p = w->p, .o = w->o, .space = mf_fit_space(w->p, gpus), .first_only = true};
    mf_fit_result scratch;
    mf_status status = mf_fit_sweep_run(&q, &w->crew, &scratch, e);
    *fits = scratch.feasible > 0;
    mf_fit_result_clear(&scratch);
    return status;
}

/* The first of the sizes above low and below high that fits: up to a node in steps of one GPU, then
 * in steps of whole nodes; of more than MF_FIT_SIZES nodes, in steps of two, four, ... nodes, at
 * multiples of these, where degrees divide best. */
static mf_status smallest_between(fit *w, int64_t low, int64_t high, int64_t *out, mf_err *e) {
    const mf_cluster *c = mf_cost_cluster(w->p->cost);
    int64_t node = c->gpus_per_node > 0 ? c->gpus_per_node : 1, step = node;
    while ((high - low) / step > MF_FIT_SIZES) {
        step *= 2;
    }
    mf_status status = MF_OK;
    bool fits = false;
    *out = low;
    while (status == MF_OK && !fits) {
        *out = *out < node ? *out + 1 : (*out / step + 1) * step;
        if (*out >= high) {
            *out = high;
            return MF_OK;
        }
        status = fits_at(w, *out, &fits, e);
    }
    return status;
}

/* Doubles until something fits, then tries sizes in between. Two ladders: the problem's own size
 * doubled, which keeps what pinned degrees divide, and nodes by powers of two, where most divides.
 */
static mf_status smallest_size(fit *w, int64_t *out, mf_err *e) {
    const mf_cluster *c = mf_cost_cluster(w->p->cost);
    int64_t most = c->max_gpus > 0 ? (int64_t)c->max_gpus : (int64_t)1 << 17;
    int64_t low = w->p->base.gpus, own = low * 2;
    int64_t nodes = c->gpus_per_node > 0 ? c->gpus_per_node : 1;
    *out = 0;
    for (;;) {
        while (nodes <= low) {
            nodes *= 2;
        }
        int64_t high = own < nodes ? own : nodes;
        if (high > most) {
            return MF_OK;
        }
        bool fits = false;
        mf_status status = fits_at(w, high, &fits, e);
        if (status != MF_OK || fits) {
            return status == MF_OK ? smallest_between(w, low, high, out, e) : status;
        }
        low = high;
        own = own <= low ? own * 2 : own;
    }
}

/* --- result ----------------------------------------------------------------------------------- */

/* Those that fit by headroom, then the rest by what is missing; equals by their degrees, so that
 * the order does not depend on who judged them. */
int mf_fit_by_headroom(const void *a, const void *b) {
    const mf_fit_entry *x = a, *y = b;
    const mf_layout *l = &x->layout, *m = &y->layout;
    const int64_t degree[][2] = {
        {l->pp, m->pp}, {l->tp, m->tp}, {l->cp, m->cp}, {l->ep, m->ep}, {l->etp, m->etp}};
    double first = x->fits ? -x->headroom_B : mf_fit_missing_B(x);
    double second = y->fits ? -y->headroom_B : mf_fit_missing_B(y);
    int c = x->fits != y->fits ? (x->fits ? -1 : 1) : first < second ? -1 : first > second;
    return c != 0 ? c : mf_space_compare(degree, 5);
}

static void say_missing(const mf_space *s, mf_fit_result *r) {
    if (r->count == 0) {
        mf_space_why_empty(s, r->missing, sizeof r->missing);
        return;
    }
    const mf_fit_entry *f = &r->entry[0];
    const mf_layout *l = &f->layout;
    char device[200] = "", host[120] = "";
    if (f->headroom_B < 0) {
        snprintf(device, sizeof device,
                 "needs %.1f GB on stage %lld, usable are %.1f GB: %.1f GB are missing; largest "
                 "kind: %s, %.1f GB",
                 f->peak_B / 1e9, LL(f->stage), f->usable_B / 1e9, -f->headroom_B / 1e9,
                 mf_memory_name(f->dominant), f->dominant_B / 1e9);
    }
    if (f->host_missing_B > 0) {
        snprintf(host, sizeof host,
                 "%soffloads %.1f GB, for which %.1f GB of host memory are missing",
                 device[0] != '\0' ? "; it " : "", f->host_B / 1e9, f->host_missing_B / 1e9);
    }
    snprintf(r->missing, sizeof r->missing,
             "the leanest layout (TP %lld, CP %lld, PP %lld, EP %lld, ETP %lld) %s%s", LL(l->tp),
             LL(l->cp), LL(l->pp), LL(l->ep), LL(l->etp), device, host);
}

/* Makes the first entries of [from, to) exact. That moves them back, never forward. */
static mf_status make_exact(fit *w, int64_t from, int64_t to, int64_t shown, mf_err *e) {
    mf_fit_entry *list = w->r->entry;
    int64_t end = to - from > shown ? from + shown : to;
    end = end == from && to > from ? from + 1 : end;
    for (int64_t i = from; i < end;) {
        if (list[i].exact) {
            i++;
            continue;
        }
        mf_fit_entry x = list[i];
        mf_status status = mf_fit_judge_exact(w->crew.judge[0], &x, e);
        if (status != MF_OK) {
            return status;
        }
        int64_t at = i;
        for (; at + 1 < to && mf_fit_by_headroom(&x, &list[at + 1]) > 0; at++) {
            list[at] = list[at + 1];
        }
        list[at] = x;
    }
    return MF_OK;
}

static mf_status put_in_order(fit *w, int64_t shown, mf_err *e) {
    mf_fit_result *r = w->r;
    if (r->count > 0) {
        qsort(r->entry, (size_t)r->count, sizeof *r->entry, mf_fit_by_headroom);
    }
    mf_status status = make_exact(w, 0, r->feasible, shown, e);
    return status == MF_OK ? make_exact(w, r->feasible, r->count, shown, e) : status;
}

/* Nothing fits: says so, and where it would. */
static mf_status look_further(fit *w, mf_err *e) {
    const mf_space space = mf_fit_space(w->p, w->p->base.gpus);
    say_missing(&space, w->r);
    mf_status status = smallest_size(w, &w->r->smallest_gpus, e);
    return status == MF_OK ? mf_err_set(e, MF_INFEASIBLE, "%s", w->r->missing) : status;
}

mf_status mf_planner_fit(const mf_problem *p, const mf_fit_options *o, mf_fit_result *result,
                         mf_err *e) {
    *result = (mf_fit_result){0};
    fit w = {.p = p, .o = o, .r = result};
    const mf_fit_sweep q = {
        .p = p, .o = o, .space = mf_fit_space(p, p->base.gpus), .exact = o->shown > MF_FIT_ALL};
    mf_status status = mf_space_check_batch(&q.space, e);
    if (status != MF_OK) {
        return status;
    }
    status = mf_fit_crew_init(&w.crew, p, o->threads, e);
    if (status == MF_OK) {
        status = mf_fit_sweep_run(&q, &w.crew, result, e);
    }
    if (status == MF_OK && result->count == 0) {
        status = mf_space_rule(&q.space, e);
    }
    if (status == MF_OK || status == MF_INTERRUPTED) {
        mf_status ordered = put_in_order(&w, o->shown < MF_FIT_ALL ? o->shown : MF_FIT_ALL, e);
        status = ordered == MF_OK ? status : ordered;
    }
    if (status == MF_OK && result->feasible > 0) {
        result->smallest_gpus = p->base.gpus;
    } else if (status == MF_OK) {
        status = look_further(&w, e);
    }
    if (status != MF_OK && status != MF_INFEASIBLE && status != MF_INTERRUPTED) {
        mf_fit_result_clear(result);
    }
    mf_fit_crew_clear(&w.crew);
    return status;
}

void mf_fit_result_clear(mf_fit_result *r) {
    free(r->entry);
    *r = (mf_fit_result){0};
}
