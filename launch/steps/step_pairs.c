/* step_pairs.c - what makes a plan fit: single steps, and pairs of them. */
#include "launch/steps/step_player.h"
#include "launch/steps/step_values.h"

#include "planner/tuning/limits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int by_peak(const void *a, const void *b) {
    const mf_one_step *x = a, *y = b;
    return (x->peak_B > y->peak_B) - (x->peak_B < y->peak_B);
}

/* Two steps of a list, with what they let expect: shares of time and peak multiply. */
typedef struct couple {
    int first, second;
    double time_s, rank_s; /* rank_s: time_s times what it is above the usable memory, squared */
} couple;

static int by_rank(const void *a, const void *b) {
    const couple *x = a, *y = b;
    if (x->rank_s != y->rank_s) {
        return x->rank_s > y->rank_s ? 1 : -1;
    }
    return x->first != y->first ? x->first - y->first : x->second - y->second;
}

/* Couples that may fit, best rank first; the caller frees them. NULL: no memory. One that fits
 * alone is coupled with what makes it faster. */
static couple *find_couples(const mf_steps *single, const mf_plan_prediction *now, int *count) {
    const size_t n = (size_t)single->count;
    couple *out = malloc((n * n / 2 + 1) * sizeof *out);
    *count = 0;
    for (int i = 0; out != NULL && i < single->count; i++) {
        for (int k = i + 1; k < single->count; k++) {
            const mf_one_step *x = &single->step[i], *y = &single->step[k];
            const double time_s = x->step_time_s * y->step_time_s / now->step_time_s;
            const double peak_B = x->peak_B * y->peak_B / now->peak_memory_B;
            const double above = peak_B > now->usable_B ? peak_B / now->usable_B : 1;
            const bool slower = (x->fits && y->step_time_s >= now->step_time_s) ||
                                (y->fits && x->step_time_s >= now->step_time_s);
            if (x->dimension != y->dimension && !slower && above <= MF_PAIRS_PEAK_SLACK) {
                out[(*count)++] = (couple){i, k, time_s, time_s * above * above};
            }
        }
    }
    if (*count > 0) {
        qsort(out, (size_t)*count, sizeof *out, by_rank);
    }
    return out;
}

/* The time of the most-th fastest that fits, HUGE_VAL where there are fewer. */
static double slowest_kept(const mf_steps *s, int most) {
    double last_s = 0;
    for (int i = 0; i < most && last_s < HUGE_VAL; i++) {
        double next_s = HUGE_VAL;
        for (int k = 0; k < s->count; k++) {
            const mf_one_step *x = &s->step[k];
            next_s = x->fits && x->step_time_s > last_s ? fmin(next_s, x->step_time_s) : next_s;
        }
        last_s = next_s;
    }
    return last_s;
}

static mf_status play_pair(mf_step_player *x, const mf_layout *l, const mf_assignment *a,
                           const mf_one_step *first, const mf_one_step *second, mf_err *e) {
    const mf_model *m = x->p->model;
    mf_one_step pair = {
        .dimension = first->dimension, .layout = *l, .faster_only = first->fits || second->fits};
    char name[2][120];
    if (first->dimension == MF_STEP_VPP) { /* the number of stages first: one has no chunks */
        const mf_one_step *last = first;
        first = second;
        second = last;
    }
    mf_step_set(first->dimension, first->value, m, &pair.layout);
    mf_step_name(first->dimension, &pair.layout, name[0], sizeof name[0]);
    if (!mf_step_set(second->dimension, second->value, m, &pair.layout)) {
        return MF_OK;
    }
    mf_step_name(second->dimension, &pair.layout, name[1], sizeof name[1]);
    snprintf(pair.what, sizeof pair.what, "%s %s", name[0], name[1]);
    bool memory = first->dimension == MF_STEP_RECOMPUTE || first->dimension == MF_STEP_OFFLOAD ||
                  second->dimension == MF_STEP_RECOMPUTE || second->dimension == MF_STEP_OFFLOAD;
    return mf_steps_play(x, &pair, l, a, memory ? MF_STEP_RECOMPUTE : -1, e);
}

static mf_status play_pairs(mf_step_player *x, const mf_layout *l, const mf_assignment *a,
                            const mf_steps *single, const mf_plan_prediction *now, int most,
                            mf_err *e) {
    mf_status s = MF_OK;
    int count, weighed = 0, played = 0;
    couple *pair = find_couples(single, now, &count);
    if (pair == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    double slowest_s = slowest_kept(x->out, most);
    for (int i = 0; i < count && s == MF_OK; i++) {
        const int before = x->out->count;
        if (weighed == MF_PAIRS_WEIGHED || played == MF_PAIRS_PLAYED) {
            break;
        }
        if (pair[i].time_s > slowest_s * MF_PAIRS_TIME_SLACK) {
            continue;
        }
        s = play_pair(x, l, a, &single->step[pair[i].first], &single->step[pair[i].second], e);
        if (x->out->count > before) {
            const mf_one_step *last = &x->out->step[before];
            weighed++;
            played += last->step_time_s > 0;
            slowest_s = last->fits ? slowest_kept(x->out, most) : slowest_s;
        }
    }
    free(pair);
    return s;
}

/* Keeps those that fit, at most `most`; of the pairs with a step that fits alone, the one that is
 * faster than all else. */
static void keep_fitting(mf_steps *s, int most) {
    int kept = 0;
    qsort(s->step, (size_t)s->count, sizeof *s->step, mf_steps_by_time);
    for (int i = 0; i < s->count && kept < most && s->step[i].fits; i++) {
        if (!s->step[i].faster_only || i == 0) {
            s->step[kept++] = s->step[i];
        }
    }
    s->count = kept;
}

/* A number that is valid only beside another (EP 32 with fewer stages) lets expect what the next
 * smaller valid one does. */
static void guess(mf_one_step *step, const mf_steps *single, const mf_layout *l,
                  const mf_plan_prediction *now) {
    const int d = step->dimension;
    const int64_t value = mf_step_number(d, step->value, l);
    int64_t nearest = mf_step_number_in(d, l) < value ? mf_step_number_in(d, l) : 0;
    step->step_time_s = now->step_time_s;
    step->peak_B = now->peak_memory_B;
    for (int i = 0; i < single->count; i++) {
        const mf_one_step *x = &single->step[i];
        const int64_t has = mf_step_number_in(d, &x->layout);
        if (x->dimension == d && has < value && has > nearest) {
            nearest = has;
            step->step_time_s = x->step_time_s;
            step->peak_B = x->peak_B;
        }
    }
}

/* Adds numbers that are not valid alone to the valid single steps. */
static mf_status add_beside(const mf_step_player *x, const mf_layout *l,
                            const mf_plan_prediction *now, mf_steps *single, mf_err *e) {
    const mf_steps valid = *single;
    mf_steps more = {0};
    mf_status s = MF_OK;
    for (int d = 0; d < MF_STEP_NUMBERS && s == MF_OK; d++) {
        for (int i = 0; i < MF_STEP_MOST_VALUES && s == MF_OK; i++) {
            mf_one_step step = {.dimension = d, .value = i, .layout = *l};
            if (!mf_steps_is_tried(x, d) || !mf_step_set(d, i, x->p->model, &step.layout) ||
                (mf_layout_valid(&step.layout, x->p->model) &&
                 mf_step_number_in(d, &step.layout) == mf_step_number(d, i, l))) {
                continue;
            }
            guess(&step, &valid, l, now);
            s = mf_steps_add(&more, &step) ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
        }
    }
    for (int i = 0; i < more.count && s == MF_OK; i++) {
        s = mf_steps_add(single, &more.step[i]) ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_steps_clear(&more);
    return s;
}

static mf_status find_to_fit(const mf_step_player *how, const mf_layout *l, const mf_assignment *a,
                             int most, mf_err *e) {
    mf_steps single = {0};
    mf_plan now;
    mf_steps *out = how->out;
    mf_step_player alone = *how, x = *how;
    alone.out = &single;
    x.weigh = true;
    *out = (mf_steps){0};
    mf_status s = mf_planner_predict(how->p, l, a, &now, NULL, e);
    if (s != MF_OK) {
        return s;
    }
    s = mf_steps_play_single(&alone, l, a, e);
    for (int i = 0; i < single.count && s == MF_OK; i++) {
        s = mf_steps_add(out, &single.step[i]) ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
    }
    s = s == MF_OK ? add_beside(how, l, &now.prediction, &single, e) : s;
    if (s == MF_OK && single.count > 0) {
        qsort(single.step, (size_t)single.count, sizeof *single.step, by_peak);
        s = play_pairs(&x, l, a, &single, &now.prediction, most, e);
    }
    mf_steps_clear(&single);
    mf_plan_clear(&now);
    if (out->count > 0) {
        keep_fitting(out, most);
    }
    return s;
}

mf_status mf_steps_to_fit(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                          const mf_target *target, const volatile int *cancel, int most,
                          mf_steps *out, mf_err *e) {
    const mf_step_player how = {
        .p = p, .target = target, .cancel = cancel, .out = out, .to_fit = true};
    return find_to_fit(&how, l, a, most, e);
}

mf_status mf_steps_to_fit_asked(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                                const mf_target *target, const volatile int *cancel, int most,
                                mf_steps *out, mf_err *e) {
    const mf_step_player how = {
        .p = p, .target = target, .cancel = cancel, .out = out, .to_fit = true, .asked = true};
    return find_to_fit(&how, l, a, most, e);
}
