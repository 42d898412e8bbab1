/* exec_choices.h - routers that chose otherwise: allowed where the scores of what was chosen and of
 * what was left out tie within rounding. */
#ifndef MF_TESTS_GPU_EXEC_CHOICES_H
#define MF_TESTS_GPU_EXEC_CHOICES_H

#include "tests/gpu/exec_record.h"

typedef struct exec_scores {
    double choice[MF_ROUTE_MAX_EXPERTS], group[MF_ROUTE_MAX_GROUPS];
    int64_t experts, groups, run; /* run: experts of a group */
} exec_scores;

/* What row `row` is chosen by (kernels/moe/router.h); softmax by its logits. */
static inline void exec_score_row(const mf_exec_op *x, const exec_entry *t, int64_t row,
                                  exec_scores *s) {
    const mf_model *m = x->env->model;
    const bool sigmoid = m->router_score == MF_ROUTER_SIGMOID;
    s->experts = m->experts;
    s->groups = m->n_group > 1 && m->topk_group < m->n_group ? m->n_group : 1;
    s->run = s->experts / s->groups;
    for (int64_t i = 0; i < s->experts; i++) {
        double logit = (double)mf_kernel_get(t->in[0], x->in[0].dtype, row * s->experts + i);
        s->choice[i] = (sigmoid ? 1.0 / (1.0 + exp(-logit)) : logit) +
                       (t->bias != NULL ? (double)t->bias[i] : 0.0);
    }
    for (int64_t g = 0; g < s->groups; g++) {
        double first = -(double)INFINITY, second = first;
        for (int64_t i = g * s->run; i < (g + 1) * s->run; i++) {
            second = fmax(second, fmin(first, s->choice[i]));
            first = fmax(first, s->choice[i]);
        }
        s->group[g] = first + (sigmoid ? second : 0.0);
    }
}

static inline bool exec_has(const int32_t *choices, int64_t n, int32_t expert) {
    for (int64_t k = 0; k < n; k++) {
        if (choices[k] == expert) {
            return true;
        }
    }
    return false;
}

/* How far two experts are from having been chosen the other way round. */
static inline double exec_gap(const exec_scores *s, int32_t a, int32_t b) {
    if (a < 0 || b < 0 || a >= s->experts || b >= s->experts) {
        return (double)INFINITY;
    }
    double apart = fabs(s->choice[a] - s->choice[b]);
    bool same = a / s->run == b / s->run;
    return same ? apart : fmin(apart, fabs(s->group[a / s->run] - s->group[b / s->run]));
}

/* Of a row whose choices differ: the widest gap that rounding must have bridged. Other experts: to
 * the nearest of those that were left out for them. The same in another order: place by place. */
static inline double exec_row_gap(const exec_scores *s, const int32_t *want, const int32_t *got,
                                  int64_t top_k) {
    double widest = 0.0;
    bool others = false;
    for (int64_t k = 0; k < top_k; k++) {
        if (exec_has(want, top_k, got[k])) {
            continue;
        }
        double nearest = (double)INFINITY;
        for (int64_t j = 0; j < top_k; j++) {
            if (!exec_has(got, top_k, want[j])) {
                nearest = fmin(nearest, exec_gap(s, got[k], want[j]));
            }
        }
        others = true;
        widest = fmax(widest, nearest);
    }
    for (int64_t k = 0; k < top_k && !others; k++) {
        widest = fmax(widest, got[k] != want[k] ? exec_gap(s, got[k], want[k]) : 0.0);
    }
    return widest;
}

typedef struct exec_choices {
    int64_t rows, otherwise; /* rows compared; of them, those whose choices differ */
    double widest;           /* gap of those, in root mean squares of the scores */
} exec_choices;

/* got[0]: choices, got[1]: probabilities of a router's forward op. Rows that chose otherwise are
 * counted, and from here on have what the CPU chose. */
static inline exec_choices exec_settle(const mf_exec_op *x, const exec_entry *t, char *const *got) {
    const int64_t top_k = x->env->model->top_k, experts = x->env->model->experts;
    exec_choices c = {.rows = x->in[0].rows};
    double square = 0.0;
    for (int64_t r = 0; r < c.rows; r++) {
        const int32_t *want = (const int32_t *)(const void *)t->after[0] + r * top_k;
        int32_t *index = (int32_t *)(void *)got[0] + r * top_k;
        exec_scores s;
        exec_score_row(x, t, r, &s);
        for (int64_t i = 0; i < experts; i++) {
            square += s.choice[i] * s.choice[i];
        }
        if (memcmp(want, index, (size_t)top_k * sizeof *want) == 0) {
            continue;
        }
        c.otherwise++;
        c.widest = fmax(c.widest, exec_row_gap(&s, want, index, top_k));
        memcpy(index, want, (size_t)top_k * sizeof *want);
        memcpy(got[1] + r * top_k * 4, t->after[1] + r * top_k * 4, (size_t)top_k * 4);
    }
    c.widest /= sqrt(square / (double)(c.rows * experts)) + 1e-30;
    return c;
}

#endif
