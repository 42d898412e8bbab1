/* branch_gains.c - what sides of numbers gained, and what they promise (see branch_gains.h). */
#include "planner/splits/branch_gains.h"

#include "planner/tuning/limits.h"

#include <math.h>

static double off_whole(double value) {
    return fabs(value - round(value));
}

static double distance(double value, bool up) {
    return up ? ceil(value) - value : value - floor(value);
}

int mf_branch_furthest(const double *value, int from, int to) {
    int at = -1;
    double most = MF_BRANCH_WHOLE;
    for (int i = from; i < to; i++) {
        if (off_whole(value[i]) > most) {
            most = off_whole(value[i]);
            at = i;
        }
    }
    return at;
}

void mf_branch_note(mf_branch_gain *g, bool up, double value, double gain) {
    const double by = distance(value, up);
    if (by > MF_BRANCH_WHOLE) {
        g->per_unit[up] += fmax(gain, 0.0) / by;
        g->count[up]++;
    }
}

bool mf_branch_is_known(const mf_branch_gain *g) {
    return g->count[0] >= MF_TRIAL_ENOUGH && g->count[1] >= MF_TRIAL_ENOUGH;
}

double mf_branch_score(const double gain[2], double least) {
    return fmax(gain[0], least) * fmax(gain[1], least);
}

/* Of all numbers in the range together. */
static mf_branch_gain sum_of(const mf_branch_gain *g, int from, int to) {
    mf_branch_gain all = {{0.0, 0.0}, {0, 0}};
    for (int i = from; i < to; i++) {
        for (int up = 0; up < 2; up++) {
            all.per_unit[up] += g[i].per_unit[up];
            all.count[up] += g[i].count[up];
        }
    }
    return all;
}

static double promise(const mf_branch_gain *own, const mf_branch_gain *all, double value,
                      double least) {
    double gain[2];
    for (int up = 0; up < 2; up++) {
        const mf_branch_gain *g = own->count[up] > 0 ? own : all;
        gain[up] = g->per_unit[up] / g->count[up] * distance(value, up);
    }
    return mf_branch_score(gain, least);
}

int mf_branch_promising(const mf_branch_gain *g, const double *value, int from, int to,
                        double least, double *score) {
    const mf_branch_gain all = sum_of(g, from, to);
    int at = -1;
    *score = HUGE_VAL;
    if (all.count[0] == 0 || all.count[1] == 0) {
        return mf_branch_furthest(value, from, to);
    }
    for (int i = from; i < to; i++) {
        if (off_whole(value[i]) > MF_BRANCH_WHOLE) {
            const double own = promise(&g[i], &all, value[i], least);
            const bool more = at < 0 || own > *score ||
                              (own >= *score && off_whole(value[i]) > off_whole(value[at]));
            at = more ? i : at;
            *score = more ? own : *score;
        }
    }
    return at;
}
