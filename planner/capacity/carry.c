/* carry.c - plans carried from one cell of a table to the next. */
#include "planner/capacity/carry.h"

#include "planner/tuning/limits.h"

#include <math.h>

/* A level that had no ranks to shard over says nothing of a size that has: states of optimizers are
 * sharded then, which costs least of all that saves memory. None where there are none. */
static uint8_t level(uint8_t was, int64_t ranks_then, int64_t ranks) {
    return ranks == 1 ? 0 : ranks_then == 1 ? 1 : was;
}

/* The searched dimensions of a plan, put on the GPUs of p with everything else as p has it. */
static bool refold(const mf_problem *p, const mf_layout *from, mf_layout *out) {
    mf_layout l = p->base;
    l.precision = from->precision;
    l.tp = from->tp;
    l.cp = from->cp;
    l.pp = from->pp;
    l.vpp = from->vpp;
    l.mbs = from->mbs;
    l.cp_type = from->cp_type;
    l.ep = from->ep;
    l.etp = from->etp;
    l.dispatcher = from->dispatcher;
    l.schedule = from->schedule;
    l.zero = from->zero;
    l.expert_zero = from->expert_zero;
    *out = l;
    if (mf_layout_resolve(out, p->model, NULL) != MF_OK) {
        return false;
    }
    if ((p->pinned & MF_PIN(ZERO)) == 0) {
        out->zero = level(l.zero, from->dp * from->cp, out->dp * out->cp);
    }
    if ((p->pinned & MF_PIN(EXPERT_ZERO)) == 0) {
        out->expert_zero = level(l.expert_zero, from->edp, out->edp);
    }
    return mf_layout_resolve(out, p->model, NULL) == MF_OK;
}

static bool copies(const mf_assignment *a) {
    for (int i = 0; i < a->positions; i++) {
        if (a->memory[i].offload != 0) {
            return true;
        }
    }
    return false;
}

/* Distance of a plan from p's size, in doublings; INFINITY: it cannot be carried. */
static double distance(const mf_problem *p, int cluster, const mf_carried *x) {
    const double size = log2((double)x->layout->gpus / (double)p->base.gpus);
    mf_layout l;
    if (!refold(p, x->layout, &l) ||
        ((p->pinned & MF_PIN(OFFLOAD)) != 0 && copies(x->assignment))) {
        return INFINITY;
    }
    return fabs(size) + (x->cluster == cluster ? 0.0 : MF_OTHER_CLUSTER);
}

int mf_carry_starts(const mf_problem *p, int cluster, const mf_carried *known, int count,
                    mf_known_plan start[MF_CARRY_MOST]) {
    double far[MF_CARRY_MOST];
    int n = 0;
    for (int i = count - 1; i >= 0; i--) {
        const double d = distance(p, cluster, &known[i]);
        int at = n < MF_CARRY_MOST ? n : MF_CARRY_MOST - 1;
        if (isinf(d) || (n == MF_CARRY_MOST && d >= far[at])) {
            continue;
        }
        for (; at > 0 && far[at - 1] > d; at--) {
            far[at] = far[at - 1];
            start[at] = start[at - 1];
        }
        far[at] = d;
        (void)refold(p, known[i].layout, &start[at].layout);
        start[at].assignment = *known[i].assignment;
        n += n < MF_CARRY_MOST;
    }
    return n;
}
