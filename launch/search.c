/* search.c - short searches in which every layer chooses for itself, whose plans are tried with
 * each memory choice that a target has for all layers; then a search for each of these choices, and
 * the best plans together. */
#include "launch/search.h"

#include "core/memory/memory.h"
#include "core/program/program.h"
#include "core/schedule/schedule.h"
#include "planner/space/catalogue.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>

#define R(name) MF_RECOMPUTE_##name
#define LIGHT (R(NORM) | R(ACT) | R(MLA_UP_PROJ))

/* The leanest first: it says whether anything fits. Then from those that recompute least on, as
 * their plans are fast where they fit, and a fast plan closes others. */
static const uint16_t choices[] = {
    R(LAYER),
    R(NONE),
    R(ACT),
    R(NORM) | R(ACT),
    LIGHT | R(CORE_ATTN),
    LIGHT,
    LIGHT | R(SHARED_EXPERT) | R(MLP),
    LIGHT | R(MOE) | R(MLP),
};
enum { CHOICES = sizeof choices / sizeof choices[0] };

/* A search that may use less ends before it has bounded anything, or tried any plan. */
#define LEAST_BUDGET 250000
/* Searches of free choices, in counted microseconds: each goes on where the one before ended, as
 * searches with more effort do. The first ones look at the smallest micro-batch alone, which takes
 * a fifth of the effort until there is a plan. One that would take more than FREE_SHARE of all is
 * left out; what is tried of its plans may take as much again. */
static const struct {
    int64_t budget;
    bool smallest;
} free_steps[] = {{LEAST_BUDGET, true}, {1000000, true}, {4000000, false}};
enum { FREE_STEPS = sizeof free_steps / sizeof free_steps[0] };
#define FREE_SHARE 0.4
/* A search of all plain schedules may use PLAIN_BUDGET; with less than LEAST_PLAIN it closes
 * nothing. (DeepSeek-V3 on 1,024 H100 with 30 s: proven to 3.9 %, 7.8 without.) */
#define PLAIN_BUDGET 4000000
#define LEAST_PLAIN 2000000
/* Larger micro-batches are tried with no less than that in all. */
#define LEAST_LARGER 2500000
/* A plan that takes at most so many times what the best one of free choices takes is near it. */
#define NEAR 1.1

/* Plans of one choice, with plain schedules or merged; what the last search among them said. */
typedef struct family {
    int listed;
    uint16_t recompute;
    bool merged;
    double bound_s, best_s; /* of its plans; 0: none yet */
    int64_t work;
    mf_search_end end;
    char ended[sizeof((mf_search_stats *)0)->ended];
} family;

enum {
    PLAIN = 1u << MF_SCHED_1F1B | 1u << MF_SCHED_INTERLEAVED,
    MERGED = 1u << MF_SCHED_MERGED,
    ALL_SCHEDULES = PLAIN | MERGED
};

/* Whether a schedule that the problem holds is one of these. */
static bool has_schedule(const mf_problem *p, uint32_t schedules) {
    return (p->pinned & MF_PIN(SCHEDULE)) == 0 || (schedules >> p->base.schedule & 1u) != 0;
}

/* Choices that differ for the model, each with plain schedules and, where they take it, merged. */
static int list_families(const mf_problem *p, family out[2 * CHOICES]) {
    const mf_model *m = p->model;
    const bool held = (p->pinned & MF_PIN(RECOMPUTE)) != 0;
    uint16_t seen[CHOICES];
    int count = 0, kinds = 0;
    for (int i = 0; i < (held ? 1 : CHOICES); i++) {
        uint16_t asked = held ? p->base.memory.recompute : choices[i];
        uint16_t mask = 0;
        for (int k = 0; k < m->classes; k++) {
            mask |= mf_target_recomputed(m, &m->layer_classes[k], asked);
        }
        bool known = false;
        for (int k = 0; k < kinds; k++) {
            known = known || seen[k] == mask;
        }
        if (!known) {
            seen[kinds++] = mask;
            if (has_schedule(p, PLAIN)) {
                out[count] = (family){.listed = count, .recompute = mask};
                count++;
            }
        }
    }
    const bool merges =
        m->experts > 0 && m->mtp_layers <= 1 && !mf_target_is_hybrid(m) && has_schedule(p, MERGED);
    for (int k = 0; k < kinds && merges; k++) {
        if (!(seen[k] & (R(LAYER) | R(MOE)))) {
            out[count] = (family){.listed = count, .recompute = seen[k], .merged = true};
            count++;
        }
    }
    return count;
}

/* The limits that all families share. */
static mf_problem limit_all(const mf_problem *p) {
    mf_problem q = *p;
    q.pinned |= MF_PIN(OFFLOAD) | MF_PIN_MOE_ACT;
    q.base.overlap &= (uint8_t)~MF_OVERLAP_CP;
    q.limits.equal_zero = true;
    q.limits.most_chunks = 1 + mf_target_chunk_starts(p->model, NULL);
    return q;
}

static mf_problem problem_of(const mf_problem *p, const family *f) {
    mf_problem q = limit_all(p);
    q.pinned |= MF_PIN(RECOMPUTE);
    q.base.memory.recompute = f->recompute;
    if (f->merged) {
        q.limits.schedules = MERGED;
        q.limits.dispatchers = 1u << MF_DISPATCH_ALLTOALL | 1u << MF_DISPATCH_FUSED;
        q.limits.least_ep = 2;
        q.limits.chunked = true;
    } else {
        q.limits.schedules = PLAIN;
    }
    mf_layout like = q.base;
    like.schedule = f->merged ? MF_SCHED_MERGED : MF_SCHED_1F1B;
    if (like.graph == MF_GRAPH_STEP && !mf_target_captures_step(p->model, &like)) {
        q.base.graph = like.graph = MF_GRAPH_PARTIAL; /* as mf_target_concede does, and: */
    }
    if (like.graph == MF_GRAPH_PARTIAL &&
        ((f->recompute & R(LAYER)) || !mf_target_captures_attention(p->model, &like))) {
        q.base.graph = MF_GRAPH_NONE;
    }
    return q;
}

/* Of the plans to begin with, those of the family: a search takes none of another space. */
static int choose_starts(const mf_search_options *o, const family *f, mf_known_plan *out) {
    int count = 0;
    for (int i = 0; i < o->starts; i++) {
        const mf_layout *l = &o->start[i].layout;
        if (l->memory.recompute == f->recompute && (l->schedule == MF_SCHED_MERGED) == f->merged) {
            out[count++] = o->start[i];
        }
    }
    return count;
}

/* What the i-th search may use: the more the earlier it comes, as those come first whose plans are
 * fast; what they leave goes to the others. */
static int64_t budget_of(int64_t all, int64_t left, int i, int count) {
    double parts = 0;
    if (all < 0) {
        return all;
    }
    for (int k = i; k < count; k++) {
        parts += 1.0 / (k + 1);
    }
    return (int64_t)fmax(LEAST_BUDGET, (double)left / ((i + 1) * parts));
}

static mf_status note_change(void *user, const mf_plan *p, const mf_concession *c, mf_err *e) {
    (void)p;
    (void)c;
    (void)e;
    *(bool *)user = true;
    return MF_OK;
}

/* What is left to concede (a stage of MTP layers): predicted anew as the target runs it. */
static mf_status settle(mf_target t, const mf_problem *p, mf_plan *plan, mf_err *e) {
    mf_plan said;
    mf_plan_init(&said);
    said.layout = plan->layout;
    said.assignment = plan->assignment;
    bool changed = false;
    mf_status s = mf_target_concede(t, p->model, &said, note_change, &changed, e);
    if (s != MF_OK || !changed) {
        return s;
    }
    const mf_plan_provenance from = plan->provenance;
    mf_plan made;
    s = mf_planner_predict(p, &said.layout, &said.assignment, &made, NULL, e);
    if (s != MF_OK) {
        mf_plan_clear(&made);
        return s;
    }
    made.provenance = from;
    mf_plan_clear(plan);
    *plan = made;
    return MF_OK;
}

static int by_time(const void *a, const void *b) {
    double x = ((const mf_plan *)a)->prediction.step_time_s;
    double y = ((const mf_plan *)b)->prediction.step_time_s;
    return (x > y) - (x < y);
}

/* Takes over what fits of a family's plans. */
static mf_status gather(mf_target t, const mf_problem *p, mf_search_result *from,
                        mf_search_result *into, mf_err *e) {
    mf_plan *all = realloc(into->plan, (size_t)(into->count + from->count + 1) * sizeof *all);
    mf_status s = all != NULL ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
    into->plan = all != NULL ? all : into->plan;
    for (int i = 0; i < from->count && s == MF_OK; i++) {
        s = settle(t, p, &from->plan[i], e);
        if (s == MF_OK && from->plan[i].prediction.fits) {
            into->plan[into->count++] = from->plan[i];
            mf_plan_init(&from->plan[i]); /* owned there now */
        }
    }
    if (into->count > 0) {
        qsort(into->plan, (size_t)into->count, sizeof *into->plan, by_time);
    }
    return s;
}

/* What a search did; its space is not part of it, as another search's may hold the same layouts. */
static void add_work(const mf_search_stats *from, mf_search_stats *into) {
    into->priced += from->priced;
    into->milp_solved += from->milp_solved;
    into->milp_failed += from->milp_failed;
    into->simulated += from->simulated;
    into->pricing_s += from->pricing_s;
    into->wall_s += from->wall_s;
    into->work += from->work;
    into->interrupted = into->interrupted || from->interrupted;
}

static void add_stats(const mf_search_stats *from, mf_search_stats *into) {
    add_work(from, into);
    into->space += from->space;
    into->pruned += from->pruned;
    snprintf(into->left_out, sizeof into->left_out, "%s", from->left_out);
}

/* Room for as many plans as were asked for; the rest goes. Proof and space hold for all. */
static void finish(mf_target t, const mf_model *m, const mf_search_options *o,
                   mf_search_result *r) {
    const bool chunks = mf_target_chunk_starts(m, NULL) < mf_model_positions(m) - 1;
    const int top = o->top > 0 ? o->top : 4;
    for (; r->count > top; r->count--) {
        mf_plan_clear(&r->plan[r->count - 1]);
    }
    for (int i = 0; i < r->count; i++) {
        mf_plan_provenance *from = &r->plan[i].provenance;
        from->space = r->stats.space;
        from->lower_bound_s = r->stats.lower_bound_s;
        from->gap = r->plan[i].prediction.step_time_s / r->stats.lower_bound_s - 1.0;
    }
    r->stats.gap = r->count > 0 ? r->plan[0].provenance.gap : 0;
    char left_out[sizeof r->stats.left_out];
    snprintf(left_out, sizeof left_out, "%s", r->stats.left_out);
    snprintf(r->stats.left_out, sizeof r->stats.left_out,
             "%.360s; what %s cannot express: other schedules than 1f1b, interleaved and merged, "
             "memory choices by layer, unequal ZeRO levels%s",
             left_out, mf_target_info_of(t)->program,
             chunks ? ", chunks that begin with a layer which shares another's choice of keys"
                    : "");
}

/* All searches of one target, and what they found so far. */
typedef struct searching {
    mf_target target;
    const mf_problem *p;
    const mf_search_options *o;
    mf_known_plan *start; /* [o->starts] */
    family families[2 * CHOICES];
    int count;
    bool leanest_tried;
    int64_t all;          /* counted microseconds; negative: no limit */
    mf_search_stats free; /* of the search of free choices; its work 0: there was none */
    mf_search_result *found;
} searching;

static double best_of(const searching *c) {
    return c->found->count > 0 ? c->found->plan[0].prediction.step_time_s : c->o->known_s;
}

static double asked_gap(const searching *c) {
    return c->o->gap > 0 ? c->o->gap : MF_DEFAULT_GAP;
}

/* Of the gap that is asked for: a family that may hold a plan as much faster is worked on. */
#define FAMILY_GAP 0.5

/* --- choices that are free -------------------------------------------------------------------- */

/* Has each layer, where it chooses for itself, every choice that a family makes for it? Then a
 * bound for free choices holds for the families, too. */
static bool frees_all(const searching *c) {
    const mf_model *m = c->p->model;
    mf_memory_choice has[MF_CATALOGUE_MAX];
    for (int k = 0; k < m->classes; k++) {
        const int n =
            mf_catalogue(m, (uint8_t)k, MF_PIN(OFFLOAD) | MF_PIN_MOE_ACT, c->p->base.memory, has);
        for (int i = 0; i < c->count; i++) {
            const uint16_t mask =
                mf_target_recomputed(m, &m->layer_classes[k], c->families[i].recompute);
            bool known = false;
            for (int j = 0; j < n; j++) {
                known = known || has[j].recompute == mask;
            }
            if (!known) {
                return false;
            }
        }
    }
    return c->p->base.graph == MF_GRAPH_NONE; /* families may have to do without one */
}

/* A family's plan that takes more than so many times the best plan of free choices is not kept:
 * other degrees have better ones. */
#define SLOWER 1.5
/* What a plan of free choices pins for a family: these degrees, or its whole layout. */
#define DEGREES (MF_PIN(TP) | MF_PIN(CP) | MF_PIN(EP) | MF_PIN(ETP) | MF_PIN(MICRO_BATCH))
#define ALIKE ((MF_PIN(COUNT) - 1u) & ~(MF_PIN(STAGES) | MF_PIN(RECOMPUTE)))

/* Looks among a family's plans of a smaller problem for one that is faster than known_s (0: for
 * any). */
static mf_status try_family(searching *c, const mf_problem *near, family *f, double known_s,
                            int64_t budget, mf_err *e) {
    mf_search_result one = {0};
    const mf_problem q = problem_of(near, f);
    mf_search_options some = *c->o;
    some.book = NULL;
    some.starts = 0;
    some.top = 1;
    some.known_s = known_s;
    some.budget = budget;
    mf_status s = mf_planner_search(&q, &some, &one, e);
    add_work(&one.stats, &c->found->stats);
    if (one.count > 0) {
        f->best_s = one.plan[0].prediction.step_time_s;
    }
    if (s == MF_OK || s == MF_INTERRUPTED) {
        const mf_status stored = gather(c->target, &q, &one, c->found, e);
        s = stored != MF_OK ? stored : s;
    } else if (s == MF_INFEASIBLE || s == MF_LAYOUT) {
        s = MF_OK; /* they do not fit, are slower, or are none of the family */
    }
    mf_search_result_clear(&one);
    return s;
}

/* The problem with what is pinned of a layout. */
static mf_problem near_layout(const searching *c, const mf_layout *l, uint32_t pinned) {
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
static mf_status holds(searching *c, const mf_plan *plan, const family *f, bool *fits, mf_err *e) {
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
    c->found->stats.work += MF_LAID_OUT_US + (int64_t)MF_LAID_OUT_POSITION_US * a.positions;
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

static family *family_listed(searching *c, int listed) {
    family *f = c->families;
    while (f->listed != listed) {
        f++;
    }
    return f;
}

/* Tries a plan's whole layout in each family of its kind of schedule that fits there; one that
 * recomputes all that another such recomputes, and more, is slower. */
static mf_status try_alike(searching *c, const mf_plan *plan, double at_most_s, int64_t until,
                           mf_err *e) {
    const bool merged = plan->layout.schedule == MF_SCHED_MERGED;
    const mf_problem near = near_layout(c, &plan->layout, ALIKE);
    uint16_t held[2 * CHOICES];
    int count = 0;
    mf_status s = MF_OK;
    for (int listed = 0; listed < c->count && s == MF_OK; listed++) {
        family *f = family_listed(c, (listed + 1) % c->count); /* the leanest last */
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
            s = try_family(c, &near, f, at_most_s, LEAST_BUDGET, e);
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
static mf_status try_degrees(searching *c, const mf_search_result *r, double at_most_s,
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
            family *f = family_listed(c, listed);
            if (c->found->count > 0 && c->found->stats.work >= until) {
                return s;
            }
            if (f->merged == merged) {
                s = try_family(c, &near, f, at_most_s, LEAST_BUDGET, e);
            }
        }
    }
    return s;
}

/* The leanest family with this micro-batch, unless another is pinned: with one it takes a fifth of
 * the effort until there is a plan. That one is looked for as if none were known: which layouts a
 * search simulates before it has bounded them depends on it, and so does how soon it has one. */
static mf_status try_leanest(searching *c, int64_t mbs, mf_err *e) {
    mf_problem small = *c->p;
    if ((small.pinned & MF_PIN(MICRO_BATCH)) == 0) {
        small.base.mbs = mbs;
        small.pinned |= MF_PIN(MICRO_BATCH);
    }
    return try_family(c, &small, family_listed(c, 0), 0, LEAST_BUDGET, e);
}

/* Work that tries may have reached: so much more than now, and no more than there is for all. */
static int64_t work_after(const searching *c, int64_t more) {
    const int64_t work = c->found->stats.work + (more > LEAST_BUDGET ? more : LEAST_BUDGET);
    return c->all > 0 && work > c->all ? c->all : work;
}

static bool is_near(const searching *c, double free_s) {
    return best_of(c) > 0 && best_of(c) <= NEAR * free_s;
}

/* Tries each of these plans: its whole layout with so much work, then its degrees alone with half
 * as much. If none is near these plans, the leanest family has one at once. */
static mf_status try_all(searching *c, const mf_search_result *r, int64_t most, mf_err *e) {
    const double free_s = r->plan[0].prediction.step_time_s;
    const double at_most_s = SLOWER * free_s;
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
    const family *x = a, *y = b;
    const double p = x->best_s > 0 ? x->best_s : HUGE_VAL;
    const double q = y->best_s > 0 ? y->best_s : HUGE_VAL;
    return p != q ? (p > q) - (p < q) : x->listed - y->listed;
}

/* A search in which every layer chooses for itself: what it finds is tried with each choice that
 * the target has for all layers. So there is a plan before the effort is shared out, and the
 * families have something to beat. A plan that is slower than the best so far would be so with one
 * choice for all layers, too. MF_INFEASIBLE: nothing fits even then. */
static mf_status search_free(searching *c, uint32_t schedules, bool smallest, int64_t budget,
                             mf_err *e) {
    mf_problem q = limit_all(c->p);
    mf_search_result free_ones = {0};
    mf_search_options some = *c->o;
    mf_search_stats *all = &c->found->stats;
    bool merges = false;
    for (int i = 0; i < c->count; i++) {
        merges = merges || c->families[i].merged;
    }
    q.limits.schedules = schedules & (PLAIN | (merges ? MERGED : 0));
    if (smallest) {
        q.base.mbs = 1;
        q.pinned |= MF_PIN(MICRO_BATCH);
    }
    some.book = NULL;
    some.starts = 0;
    some.top = 0;
    some.known_s = best_of(c);
    some.budget = budget;
    some.gap = schedules == PLAIN ? FAMILY_GAP * asked_gap(c) : some.gap;
    mf_status s = mf_planner_search(&q, &some, &free_ones, e);
    add_work(&free_ones.stats, all);
    const bool closed = s == MF_INFEASIBLE && best_of(c) > 0; /* nothing is faster */
    const bool bounds = !smallest && (s == MF_OK || closed) && frees_all(c);
    for (int i = 0; i < c->count && bounds; i++) {
        family *f = &c->families[i];
        if ((schedules & (f->merged ? MERGED : PLAIN)) != 0) {
            f->bound_s = fmax(f->bound_s, free_ones.stats.lower_bound_s);
        }
    }
    if (!smallest && schedules != PLAIN) {
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
    return closed || (s == MF_INFEASIBLE && (smallest || !frees_all(c))) ? MF_OK : s;
}

/* --- families --------------------------------------------------------------------------------- */

/* Looks among a family's plans for one that is faster than known_s (0: for any). */
static mf_status search_family(searching *c, family *f, int64_t budget, double known_s, mf_err *e) {
    const mf_problem q = problem_of(c->p, f);
    mf_search_result one = {0}, *found = c->found;
    mf_search_options some = *c->o;
    some.book = NULL; /* families pin what others do not */
    some.start = c->start;
    some.starts = choose_starts(c->o, f, c->start);
    some.known_s = known_s;
    some.budget = budget;
    some.gap = FAMILY_GAP * asked_gap(c);
    mf_status status = mf_planner_search(&q, &some, &one, e);
    if (status == MF_OK || status == MF_INTERRUPTED || status == MF_INFEASIBLE) {
        const mf_status stored = gather(c->target, &q, &one, found, e);
        add_stats(&one.stats, &found->stats);
        f->bound_s = fmax(f->bound_s, one.stats.lower_bound_s);
        f->work = one.stats.work;
        f->end = one.stats.end;
        snprintf(f->ended, sizeof f->ended, "%s", one.stats.ended);
        const bool none = status == MF_INFEASIBLE && found->count == 0 && c->o->known_s == 0;
        status = stored != MF_OK            ? stored
                 : none                     ? status /* the leanest fits nowhere */
                 : status == MF_INTERRUPTED ? status
                                            : MF_OK;
    }
    mf_search_result_clear(&one);
    return status;
}

/* The family of the least bound, which is the bound of all that were searched. */
static family *holder_of(searching *c) {
    family *least = &c->families[0];
    for (int i = 1; i < c->count && c->families[i].bound_s > 0; i++) {
        least = c->families[i].bound_s < least->bound_s ? &c->families[i] : least;
    }
    return least;
}

static bool is_proven(const searching *c, double bound_s) {
    return c->found->count > 0 &&
           c->found->plan[0].prediction.step_time_s <= (1 + asked_gap(c)) * bound_s * (1 + 1e-12);
}

/* Is too little left for one more search? */
static bool is_used(const searching *c) {
    return c->all > 0 && c->all - c->found->stats.work < LEAST_BUDGET;
}

/* Each family in turn, while there is effort or one of them has no bound. */
static mf_status search_each(searching *c, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < c->count && status == MF_OK; i++) {
        family *f = &c->families[i];
        const int64_t left = c->all - c->found->stats.work;
        const bool enough = is_used(c) && c->found->count > 0;
        if (f->bound_s > 0 && (is_proven(c, f->bound_s) || enough)) {
            continue;
        }
        status = search_family(c, f, budget_of(c->all, left, i, c->count), best_of(c), e);
    }
    return status;
}

/* The leanest family with larger micro-batches, if no plan is near those of free choices: where the
 * host holds a step back these are the faster ones (Qwen3-235B on 256 H100 under megatron-26.06).
 */
static mf_status try_larger(searching *c, mf_err *e) {
    const bool pinned = (c->p->pinned & MF_PIN(MICRO_BATCH)) != 0;
    const double free_s = c->found->stats.unlimited_s;
    mf_status s = MF_OK;
    for (int64_t mbs = 2; mbs <= MF_SPACE_MAX_MBS && !pinned && s == MF_OK; mbs *= 2) {
        s = free_s > 0 && !is_near(c, free_s) ? try_leanest(c, mbs, e) : MF_OK;
    }
    return s;
}

/* Searches of free choices; one of them bounds all families, or each is to have a search for that.
 * Then, where families of plain schedules could each get a part that is of use, one that may close
 * them all at once. */
static mf_status begin(searching *c, mf_err *e) {
    const bool bounds = frees_all(c);
    const int64_t all = c->all - (bounds ? 0 : (int64_t)c->count * LEAST_BUDGET);
    const double share = c->all > 0 ? FREE_SHARE * (double)all : HUGE_VAL;
    const bool pinned = (c->p->pinned & MF_PIN(MICRO_BATCH)) != 0;
    bool bounded = false;
    mf_status s = MF_OK;
    for (int i = 0; i < FREE_STEPS && s == MF_OK; i++) {
        const bool smallest = free_steps[i].smallest && !pinned;
        if ((i > 0 && (double)free_steps[i].budget > share) ||
            is_proven(c, holder_of(c)->bound_s)) {
            break;
        }
        s = search_free(c, ALL_SCHEDULES, smallest, free_steps[i].budget, e);
        bounded = bounded || !smallest;
    }
    if (s == MF_OK && (c->all < 0 || c->all >= LEAST_LARGER)) {
        s = try_larger(c, e);
    }
    const int64_t left = all - c->found->stats.work;
    if (s == MF_OK && !bounded && (bounds || left / 2 > LEAST_BUDGET)) {
        return search_free(c, ALL_SCHEDULES, false,
                           left / 2 > LEAST_BUDGET ? left / 2 : LEAST_BUDGET, e);
    }
    const int64_t budget = c->all < 0 || left / 4 > PLAIN_BUDGET ? PLAIN_BUDGET : left / 4;
    if (s == MF_OK && bounds && budget >= LEAST_PLAIN && !is_proven(c, holder_of(c)->bound_s)) {
        s = search_free(c, PLAIN, false, budget, e);
    }
    return s;
}

/* Searches of free choices, then the families; then what effort they left goes to the family that
 * holds the gap, as long as that is more than it had. Where a plan is known there are no searches
 * of free choices. */
static mf_status search_all(searching *c, mf_err *e) {
    const bool starts = c->o->known_s != 0 || c->o->starts != 0;
    mf_status status = c->count > 2 && !starts ? begin(c, e) : MF_OK;
    status = status == MF_OK ? search_each(c, e) : status;
    for (int i = 0; i < c->count && status == MF_OK; i++) {
        family *f = holder_of(c);
        const int64_t left = c->all - c->found->stats.work;
        const double bound_s = f->bound_s;
        if (is_proven(c, bound_s) || left < LEAST_BUDGET || left <= f->work) {
            break;
        }
        status = search_family(c, f, left, best_of(c), e);
        if (!(f->bound_s > bound_s)) {
            break;
        }
    }
    return status;
}

/* The bound of all, and why there is no tighter one. */
static void note_end(searching *c) {
    const family *f = holder_of(c);
    mf_search_stats *all = &c->found->stats;
    bool each = true;
    for (int i = 0; i < c->count; i++) {
        each = each && c->families[i].work > 0;
    }
    if (!each && c->free.work > 0) { /* its space holds theirs */
        all->space = c->free.space;
        snprintf(all->left_out, sizeof all->left_out, "%s", c->free.left_out);
    }
    all->lower_bound_s = f->bound_s;
    const bool proven = is_proven(c, f->bound_s);
    if (proven || is_used(c)) {
        all->end = proven ? MF_SEARCH_END_PROVEN : MF_SEARCH_END_EFFORT;
        mf_search_end_say(all->end, asked_gap(c), all->work, all->ended, sizeof all->ended);
    } else {
        all->end = f->end;
        snprintf(all->ended, sizeof all->ended, "%s", f->ended);
    }
}

mf_status mf_target_search(mf_target t, const mf_problem *p, const mf_search_options *o,
                           mf_search_result *result, mf_err *e) {
    searching c = {.target = t,
                   .p = p,
                   .o = o,
                   .all = o->budget != 0 ? o->budget : MF_DEFAULT_BUDGET_US,
                   .start = calloc((size_t)o->starts + 1, sizeof *c.start),
                   .found = result};
    mf_status status = MF_OK;
    *result = (mf_search_result){0};
    if (c.start == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    c.count = list_families(p, c.families);
    status = c.count > 0
                 ? search_all(&c, e)
                 : mf_err_set(e, MF_LAYOUT, "%s cannot run schedule %s%s",
                              mf_target_info_of(t)->program, mf_schedule_text(p->base.schedule),
                              p->base.schedule == MF_SCHED_MERGED ? " of this model, or with what "
                                                                    "is recomputed"
                                                                  : "");
    free(c.start);
    if (status == MF_OK || status == MF_INTERRUPTED) {
        note_end(&c);
        finish(t, p->model, o, result);
    }
    return status == MF_OK && result->count == 0
               ? mf_err_set(e, MF_INFEASIBLE, "no layout fits into memory")
               : status;
}
