/* search_free.c - searches in which every layer chooses for itself: their plans, whole layouts and
 * then degrees alone, are tried with each memory choice that the target has for all layers. */
#include "launch/search/search_internal.h"

#include "core/memory/memory.h"
#include "core/program/program.h"
#include "core/schedule/schedule.h"
#include "planner/price/evaluator.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>

/* What a plan of free choices pins for a family: these degrees, or its whole layout. */
#define DEGREES (MF_PIN(TP) | MF_PIN(CP) | MF_PIN(EP) | MF_PIN(ETP) | MF_PIN(MICRO_BATCH))
#define ALIKE ((MF_PIN(COUNT) - 1u) & ~(MF_PIN(STAGES) | MF_PIN(RECOMPUTE)))

/* Looks among a family's plans of a smaller problem for one that is faster than known_s (0: for
 * any). */
static mf_status try_family(mf_searching *c, const mf_problem *near, mf_choice_family *f,
                            double known_s, int64_t budget, mf_err *e) {
    mf_search_result one = {0};
    const mf_problem q = mf_choice_family_problem(near, f);
    mf_search_options some = *c->o;
    some.book = NULL;
    some.starts = 0;
    some.top = 1;
    some.known_s = known_s;
    some.budget = budget;
    mf_status s = mf_planner_search(&q, &some, &one, e);
    mf_searching_add_work(&one.stats, &c->found->stats);
    if (one.count > 0) {
        f->best_s = one.plan[0].prediction.step_time_s;
    }
    if (s == MF_OK || s == MF_INTERRUPTED) {
        const mf_status stored = mf_searching_gather(c->target, &q, &one, c->found, e);
        s = stored != MF_OK ? stored : s;
    } else if (s == MF_INFEASIBLE || s == MF_LAYOUT) {
        s = MF_OK; /* they do not fit, are slower, or are none of the family */
    }
    mf_search_result_clear(&one);
    return s;
}

/* The problem with what is pinned of a layout. */
static mf_problem near_layout(const mf_searching *c, const mf_layout *l, uint32_t pinned) {
    mf_problem near = *c->p;
    near.pinned |= pinned;
    if (pinned == ALIKE) {
        near.base = *l;
        near.base.memory = c->p->base.memory;
        near.base.graph = c->p->base.graph;
        near.base.overlap = c->p->base.overlap;
        near.precisions = 0;
    } else {
        near.base.tp = l->tp;
        near.base.cp = l->cp;
        near.base.ep = l->ep;
        near.base.etp = l->etp;
        near.base.mbs = l->mbs;
    }
    return near;
}

/* Whether a plan's stages hold what a family keeps, by the sums of their memory: another split may
 * fit where this one does not, which is tried with the plan's degrees. */
static mf_status holds(mf_searching *c, const mf_plan *plan, const mf_choice_family *f, bool *fits,
                       mf_err *e) {
    const mf_model *m = c->p->model;
    const mf_common_choice choice = {.recompute = f->recompute, .share = 1};
    mf_program *program = NULL;
    mf_schedule *schedule = NULL;
    mf_memory *memory = NULL;
    mf_layout l = plan->layout;
    mf_assignment a = plan->assignment;
    l.memory.recompute = f->recompute;
    mf_common_choice_apply(m, &choice, &a);
    *fits = false;
    c->found->stats.work += mf_evaluator_memory_ns(a.positions, 0) / 1000;
    if (mf_layout_resolve(&l, m, NULL) != MF_OK) {
        return MF_OK;
    }
    mf_status s = mf_program_lower(m, &l, mf_cost_cluster(c->p->cost), &a, &program, e);
    s = s == MF_OK ? mf_schedule_create(&l, &schedule, e) : s;
    s = s == MF_OK ? mf_memory_sums(program, schedule, &memory, e) : s;
    *fits = s == MF_OK && memory->fits;
    mf_memory_destroy(memory);
    mf_schedule_destroy(schedule);
    mf_program_destroy(program);
    return s;
}

static mf_choice_family *family_listed(mf_searching *c, int listed) {
    mf_choice_family *f = c->families;
    while (f->listed != listed) {
        f++;
    }
    return f;
}

/* Tries a plan's whole layout in each family of its kind of schedule that fits there; one that
 * recomputes all that another such recomputes, and more, is slower. */
static mf_status try_alike(mf_searching *c, const mf_plan *plan, double at_most_s, int64_t until,
                           mf_err *e) {
    const bool merged = plan->layout.schedule == MF_SCHED_MERGED;
    const mf_problem near = near_layout(c, &plan->layout, ALIKE);
    uint16_t held[2 * MF_CHOICES];
    int count = 0;
    mf_status s = MF_OK;
    for (int listed = 0; listed < c->count && s == MF_OK; listed++) {
        mf_choice_family *f = family_listed(c, (listed + 1) % c->count); /* the leanest last */
        bool fits = true;
        for (int k = 0; k < count; k++) {
            fits = fits && (f->recompute & held[k]) != held[k];
        }
        if (f->merged != merged || !fits) {
            continue;
        }
        if (c->found->count > 0 && c->found->stats.work >= until) {
            break;
        }
        s = holds(c, plan, f, &fits, e);
        if (s == MF_OK && fits) {
            held[count++] = f->recompute;
            s = try_family(c, &near, f, at_most_s, MF_LEAST_BUDGET, e);
        }
    }
    return s;
}

static bool same_degrees(const mf_layout *a, const mf_layout *b) {
    return a->tp == b->tp && a->cp == b->cp && a->ep == b->ep && a->etp == b->etp &&
           a->mbs == b->mbs;
}

/* Tries the degrees of each of these plans, in families of its kind of schedule before the others,
 * and in those that recompute much before those that do little: fewer of these fit. */
static mf_status try_degrees(mf_searching *c, const mf_search_result *r, double at_most_s,
                             int64_t until, mf_err *e) {
    mf_status s = MF_OK;
    for (int i = 0; i < 2 * r->count && s == MF_OK; i++) {
        const mf_layout *l = &r->plan[i % r->count].layout;
        const mf_problem near = near_layout(c, l, DEGREES);
        const bool merged = (l->schedule == MF_SCHED_MERGED) == (i < r->count);
        bool known = false;
        for (int j = 0; j < i % r->count; j++) {
            known = known || same_degrees(&r->plan[j].layout, l);
        }
        for (int listed = c->count - 1; listed >= 0 && !known && s == MF_OK; listed--) {
            mf_choice_family *f = family_listed(c, listed);
            if (c->found->count > 0 && c->found->stats.work >= until) {
                return s;
            }
            if (f->merged == merged) {
                s = try_family(c, &near, f, at_most_s, MF_LEAST_BUDGET, e);
            }
        }
    }
    return s;
}

/* The leanest family with this micro-batch, unless another is pinned: with one it takes a fifth of
 * the effort until there is a plan. That one is looked for as if none were known: which layouts a
 * search simulates before it has bounded them depends on it, and so does how soon it has one. */
static mf_status try_leanest(mf_searching *c, int64_t mbs, mf_err *e) {
    mf_problem small = *c->p;
    if ((small.pinned & MF_PIN(MICRO_BATCH)) == 0) {
        small.base.mbs = mbs;
        small.pinned |= MF_PIN(MICRO_BATCH);
    }
    return try_family(c, &small, family_listed(c, 0), 0, MF_LEAST_BUDGET, e);
}

/* Work that tries may have reached: so much more than now, and no more than there is for all. */
static int64_t work_after(const mf_searching *c, int64_t more) {
    const int64_t work = c->found->stats.work + (more > MF_LEAST_BUDGET ? more : MF_LEAST_BUDGET);
    return c->all > 0 && work > c->all ? c->all : work;
}

static bool is_near(const mf_searching *c, double free_s) {
    return mf_searching_best(c) > 0 && mf_searching_best(c) <= MF_FREE_NEAR * free_s;
}

/* Tries each of these plans: its whole layout with so much work, then its degrees alone with half
 * as much. If none is near these plans, the leanest family has one at once. */
static mf_status try_all(mf_searching *c, const mf_search_result *r, int64_t most, mf_err *e) {
    const double free_s = r->plan[0].prediction.step_time_s;
    const double at_most_s = MF_FREE_SLOWER * free_s;
    const int64_t until = work_after(c, most);
    mf_status s = MF_OK;
    for (int i = 0; i < r->count && s == MF_OK; i++) {
        s = try_alike(c, &r->plan[i], at_most_s, until, e);
    }
    if (s == MF_OK && !c->leanest_tried && !is_near(c, free_s)) {
        c->leanest_tried = true;
        s = try_leanest(c, 1, e);
    }
    return s == MF_OK ? try_degrees(c, r, at_most_s, work_after(c, most / 2), e) : s;
}

static int by_best(const void *a, const void *b) {
    const mf_choice_family *x = a, *y = b;
    const double p = x->best_s > 0 ? x->best_s : HUGE_VAL;
    const double q = y->best_s > 0 ? y->best_s : HUGE_VAL;
    return p != q ? (p > q) - (p < q) : x->listed - y->listed;
}

/* What it finds is tried with each choice of the target, so that there is a plan before the effort
 * is shared out, and the families have something to beat. A plan that is slower than the best so
 * far would be so with one choice for all layers, too. */
mf_status mf_searching_free(mf_searching *c, uint32_t schedules, bool smallest, int64_t budget,
                            mf_err *e) {
    mf_problem q = mf_choice_families_limit(c->p);
    mf_search_result free_ones = {0};
    mf_search_options some = *c->o;
    mf_search_stats *all = &c->found->stats;
    bool merges = false;
    for (int i = 0; i < c->count; i++) {
        merges = merges || c->families[i].merged;
    }
    q.limits.schedules = schedules & (MF_PLAIN | (merges ? MF_MERGED : 0));
    if (smallest) {
        q.base.mbs = 1;
        q.pinned |= MF_PIN(MICRO_BATCH);
    }
    some.book = NULL;
    some.starts = 0;
    some.top = 0;
    some.known_s = mf_searching_best(c);
    some.budget = budget;
    some.gap = schedules == MF_PLAIN ? MF_FAMILY_GAP * mf_searching_gap(c) : some.gap;
    mf_status s = mf_planner_search(&q, &some, &free_ones, e);
    mf_searching_add_work(&free_ones.stats, all);
    const bool closed = s == MF_INFEASIBLE && mf_searching_best(c) > 0; /* nothing is faster */
    const bool bounds = !smallest && (s == MF_OK || closed) && mf_choice_families_are_free(c);
    for (int i = 0; i < c->count && bounds; i++) {
        mf_choice_family *f = &c->families[i];
        if ((schedules & (f->merged ? MF_MERGED : MF_PLAIN)) != 0) {
            f->bound_s = fmax(f->bound_s, free_ones.stats.lower_bound_s);
        }
    }
    if (!smallest && schedules != MF_PLAIN) {
        c->free = free_ones.stats;
    }
    if (s == MF_OK) {
        const double best_s = free_ones.plan[0].prediction.step_time_s;
        all->unlimited_s = all->unlimited_s > 0 ? fmin(all->unlimited_s, best_s) : best_s;
        s = try_all(c, &free_ones, free_ones.stats.work, e);
    }
    mf_search_result_clear(&free_ones);
    if (c->found->count > 0) {
        qsort(c->families, (size_t)c->count, sizeof c->families[0], by_best);
    }
    return closed || (s == MF_INFEASIBLE && (smallest || !mf_choice_families_are_free(c))) ? MF_OK
                                                                                           : s;
}

mf_status mf_searching_alike(mf_searching *c, mf_err *e) {
    mf_plan best = {.predicted = false};
    double before_s = HUGE_VAL;
    const int64_t until = c->all > 0 ? c->all + c->all / MF_ALIKE_PART : INT64_MAX;
    mf_status s = MF_OK;
    while (s == MF_OK && c->found->count > 0 &&
           c->found->plan[0].prediction.step_time_s < before_s) {
        best.layout = c->found->plan[0].layout; /* plans move as others are found */
        best.assignment = c->found->plan[0].assignment;
        before_s = c->found->plan[0].prediction.step_time_s;
        s = try_alike(c, &best, before_s, until, e);
    }
    return s;
}

mf_status mf_searching_larger(mf_searching *c, mf_err *e) {
    const bool pinned = (c->p->pinned & MF_PIN(MICRO_BATCH)) != 0;
    const double free_s = c->found->stats.unlimited_s;
    mf_status s = MF_OK;
    for (int64_t mbs = 2; mbs <= MF_SPACE_MAX_MBS && !pinned && s == MF_OK; mbs *= 2) {
        s = free_s > 0 && !is_near(c, free_s) ? try_leanest(c, mbs, e) : MF_OK;
    }
    return s;
}
