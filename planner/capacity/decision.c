/* decision.c - verdicts over offers, and ties. */
#include "planner/capacity/decision.h"

#include <math.h>

/* At the upper end of its band. */
static double high_usd(const mf_offer *o) {
    return o->cost_usd * (o->high_s / o->time_s);
}

static bool beats(const mf_offer *a, const mf_offer *b) {
    return a->time_s <= b->time_s && a->cost_usd <= b->cost_usd &&
           (a->time_s < b->time_s || a->cost_usd < b->cost_usd);
}

void mf_decide(mf_offer *offer, int count, const mf_decision_limits *l) {
    for (int i = 0; i < count; i++) {
        mf_offer *o = &offer[i];
        o->in_time = o->ends && o->time_s <= l->deadline_s;
        o->surely_in_time = o->in_time && o->high_s <= l->deadline_s;
        o->in_budget =
            o->ends && (isinf(l->budget_usd) || (o->priced && o->cost_usd <= l->budget_usd));
        o->surely_in_budget =
            o->in_budget && (isinf(l->budget_usd) || high_usd(o) <= l->budget_usd);
        o->on_front = o->ends && o->priced;
        for (int k = 0; o->on_front && k < count; k++) {
            const mf_offer *other = &offer[k];
            o->on_front =
                !(other->model == o->model && other->ends && other->priced && beats(other, o));
        }
    }
}

static bool runs_for(const mf_offer *o, mf_verdict v) {
    switch (v) {
    case MF_VERDICT_CHEAPEST:
        return o->in_time && o->priced;
    case MF_VERDICT_FASTEST:
        return o->in_budget;
    case MF_VERDICT_SMALLEST:
        return o->in_time && o->in_budget;
    case MF_VERDICT_SURVIVOR:
        return o->in_time && o->in_budget && o->priced && o->survives;
    case MF_VERDICT_COUNT:
        break;
    }
    return false;
}

static double figure(const mf_offer *o, mf_verdict v) {
    return v == MF_VERDICT_SMALLEST  ? (double)o->gpus
           : v == MF_VERDICT_FASTEST ? o->time_s
                                     : o->cost_usd;
}

/* Of as many GPUs the faster; else by the figure alone. */
static bool better(const mf_offer *a, const mf_offer *b, mf_verdict v) {
    const double x = figure(a, v), y = figure(b, v);
    return x < y || (v == MF_VERDICT_SMALLEST && a->gpus == b->gpus && a->time_s < b->time_s);
}

int mf_verdict_best(const mf_offer *offer, int count, int model, mf_verdict v) {
    int best = -1;
    for (int i = 0; i < count; i++) {
        if (offer[i].model == model && runs_for(&offer[i], v) &&
            (best < 0 || better(&offer[i], &offer[best], v))) {
            best = i;
        }
    }
    return best;
}

mf_tie mf_verdict_tie(const mf_offer *best, const mf_offer *other, mf_verdict v) {
    if (best == other || best->model != other->model || !runs_for(other, v)) {
        return (mf_tie){.ties = false};
    }
    if (v == MF_VERDICT_SMALLEST) {
        return (mf_tie){.ties = best->gpus == other->gpus,
                        .difference = other->time_s / best->time_s - 1};
    }
    mf_tie t = {.band = best->cluster != other->cluster};
    double most = figure(best, v), least = figure(other, v) / (1 + other->gap);
    if (t.band) {
        most *= best->high_s / best->time_s;
        least *= other->low_s / other->time_s;
    }
    t.ties = least <= most;
    t.difference = figure(other, v) / figure(best, v) - 1;
    t.open = (most / figure(best, v)) / (least / figure(other, v)) - 1;
    return t;
}
