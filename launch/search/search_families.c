/* search_families.c - families of plans with one memory choice for all layers: which there are for
 * a model, the problem that each of them is, and what is kept of the plans that are found. */
#include "launch/search/search_internal.h"

#include "planner/space/catalogue.h"
#include "planner/tuning/limits.h"

#include <stdlib.h>
#include <string.h>

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
_Static_assert(sizeof choices / sizeof choices[0] == MF_CHOICES, "one for each choice");

/* Whether a schedule that the problem holds is one of these. */
static bool has_schedule(const mf_problem *p, uint32_t schedules) {
    return (p->pinned & MF_PIN(SCHEDULE)) == 0 || (schedules >> p->base.schedule & 1u) != 0;
}

int mf_choice_families_list(const mf_problem *p, mf_choice_family out[2 * MF_CHOICES]) {
    const mf_model *m = p->model;
    const bool held = (p->pinned & MF_PIN(RECOMPUTE)) != 0;
    uint16_t seen[MF_CHOICES];
    int count = 0, kinds = 0;
    for (int i = 0; i < (held ? 1 : MF_CHOICES); i++) {
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
            if (has_schedule(p, MF_PLAIN)) {
                out[count] = (mf_choice_family){.listed = count, .recompute = mask};
                count++;
            }
        }
    }
    const bool merges = m->experts > 0 && m->mtp_layers <= 1 && !mf_target_is_hybrid(m) &&
                        has_schedule(p, MF_MERGED);
    for (int k = 0; k < kinds && merges; k++) {
        if (!(seen[k] & (R(LAYER) | R(MOE)))) {
            out[count] = (mf_choice_family){.listed = count, .recompute = seen[k], .merged = true};
            count++;
        }
    }
    return count;
}

mf_problem mf_choice_families_limit(const mf_problem *p) {
    mf_problem q = *p;
    q.pinned |= MF_PIN(OFFLOAD) | MF_PIN_MOE_ACT;
    q.base.overlap &= (uint8_t)~MF_OVERLAP_CP;
    q.limits.equal_zero = true;
    q.limits.most_chunks = 1 + mf_target_chunk_starts(p->model, NULL);
    return q;
}

mf_status mf_choice_families_none(mf_target t, const mf_problem *p, mf_err *e) {
    const mf_schedule_kind asked = p->base.schedule;
    return mf_err_set(e, MF_LAYOUT, "%s cannot run schedule %s%s", mf_target_info_of(t)->program,
                      mf_schedule_text(asked),
                      asked == MF_SCHED_MERGED ? " of this model, or with what is recomputed" : "");
}

void mf_choice_families_schedule(mf_problem *p, bool merged) {
    p->limits.schedules = merged ? MF_MERGED : MF_PLAIN;
    if (merged) {
        p->limits.dispatchers = 1u << MF_DISPATCH_ALLTOALL | 1u << MF_DISPATCH_FUSED;
        p->limits.least_ep = 2;
        p->limits.chunked = true;
    }
}

mf_problem mf_choice_family_problem(const mf_problem *p, const mf_choice_family *f) {
    mf_problem q = mf_choice_families_limit(p);
    q.pinned |= MF_PIN(RECOMPUTE);
    q.base.memory.recompute = f->recompute;
    mf_choice_families_schedule(&q, f->merged);
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

/* Has each layer, where it chooses for itself, the choice that the family makes for it? */
static bool is_free(const mf_problem *p, const mf_choice_family *f) {
    const mf_model *m = p->model;
    mf_memory_choice has[MF_CATALOGUE_MAX];
    bool known = true;
    for (int k = 0; k < m->classes && known; k++) {
        const int n =
            mf_catalogue(m, (uint8_t)k, MF_PIN(OFFLOAD) | MF_PIN_MOE_ACT, p->base.memory, has);
        const uint16_t mask = mf_target_recomputed(m, &m->layer_classes[k], f->recompute);
        known = false;
        for (int j = 0; j < n; j++) {
            known = known || has[j].recompute == mask;
        }
    }
    return known;
}

bool mf_choice_families_are_free(const mf_searching *c) {
    bool free = true;
    for (int i = 0; i < c->count; i++) {
        free = free && is_free(c->p, &c->families[i]);
    }
    return free && c->p->base.graph == MF_GRAPH_NONE; /* families may have to do without one */
}

/* Is it one of those that a search with this kind of graph holds, and still without a bound? */
static bool is_to_bound(const mf_problem *p, const mf_choice_family *f, mf_graph_mode graph) {
    return !(f->bound_s > 0) && mf_choice_family_problem(p, f).base.graph == graph && is_free(p, f);
}

mf_status mf_choice_families_bound(mf_searching *c, const mf_choice_family *of, mf_err *e) {
    const mf_graph_mode graph = mf_choice_family_problem(c->p, of).base.graph;
    mf_problem q = mf_choice_families_limit(c->p);
    mf_search_result one = {0};
    mf_search_options some = *c->o;
    q.base.graph = graph;
    q.limits.schedules = 0;
    for (int i = 0; i < c->count; i++) {
        const mf_choice_family *f = &c->families[i];
        q.limits.schedules |= is_to_bound(c->p, f, graph) ? (f->merged ? MF_MERGED : MF_PLAIN) : 0;
    }
    if (q.limits.schedules == 0 || (c->p->pinned & MF_PIN(RECOMPUTE)) != 0) {
        return MF_OK;
    }
    some.book = NULL;
    some.starts = 0;
    some.top = 0;
    some.known_s = mf_searching_best(c);
    some.budget = MF_LEAST_BUDGET;
    mf_status s = mf_planner_search(&q, &some, &one, e);
    mf_searching_add_work(&one.stats, &c->found->stats);
    s = s == MF_INFEASIBLE ? MF_OK : s; /* nothing is faster */
    for (int i = 0; i < c->count && s == MF_OK; i++) {
        mf_choice_family *f = &c->families[i];
        if (is_to_bound(c->p, f, graph)) {
            f->bound_s = one.stats.lower_bound_s;
            f->end = one.stats.end;
            snprintf(f->ended, sizeof f->ended, "%s", one.stats.ended);
        }
    }
    mf_search_result_clear(&one);
    return s;
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
    changed = changed || said.layout.zero != plan->layout.zero ||
              said.layout.expert_zero != plan->layout.expert_zero;
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

static bool same_assignment(const mf_assignment *a, const mf_assignment *b) {
    bool same = a->positions == b->positions && a->vstages == b->vstages &&
                memcmp(a->first, b->first, (size_t)(a->vstages + 1) * sizeof a->first[0]) == 0;
    for (int i = 0; same && i < a->positions; i++) {
        same = a->memory[i].recompute == b->memory[i].recompute &&
               a->memory[i].offload == b->memory[i].offload;
    }
    return same;
}

/* Is it among the plans already? Searches of other families, and of more effort, meet the same. */
static bool is_known(const mf_search_result *r, const mf_plan *p) {
    bool known = false;
    const mf_layout *l = &p->layout;
    for (int i = 0; i < r->count && !known; i++) {
        const mf_plan *q = &r->plan[i];
        const mf_layout *o = &q->layout;
        known = o->tp == l->tp && o->cp == l->cp && o->pp == l->pp && o->vpp == l->vpp &&
                o->ep == l->ep && o->etp == l->etp && o->mbs == l->mbs &&
                o->schedule == l->schedule && o->dispatcher == l->dispatcher &&
                o->cp_type == l->cp_type && o->precision == l->precision && o->graph == l->graph &&
                o->overlap == l->overlap && o->zero == l->zero &&
                o->expert_zero == l->expert_zero &&
                same_assignment(&q->assignment, &p->assignment) &&
                !(q->prediction.step_time_s < p->prediction.step_time_s) &&
                !(q->prediction.step_time_s > p->prediction.step_time_s);
    }
    return known;
}

mf_status mf_searching_gather(mf_target t, const mf_problem *p, mf_search_result *from,
                              mf_search_result *into, mf_err *e) {
    mf_plan *all = realloc(into->plan, (size_t)(into->count + from->count + 1) * sizeof *all);
    mf_status s = all != NULL ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
    into->plan = all != NULL ? all : into->plan;
    for (int i = 0; i < from->count && s == MF_OK; i++) {
        s = settle(t, p, &from->plan[i], e);
        if (s == MF_OK && from->plan[i].prediction.fits && !is_known(into, &from->plan[i])) {
            into->plan[into->count++] = from->plan[i];
            mf_plan_init(&from->plan[i]); /* owned there now */
        }
    }
    if (into->count > 0) {
        qsort(into->plan, (size_t)into->count, sizeof *into->plan, by_time);
    }
    return s;
}

void mf_searching_add_work(const mf_search_stats *from, mf_search_stats *into) {
    into->priced += from->priced;
    into->milp_solved += from->milp_solved;
    into->milp_failed += from->milp_failed;
    into->simulated += from->simulated;
    into->pricing_s += from->pricing_s;
    into->wall_s += from->wall_s;
    into->work += from->work;
    into->interrupted = into->interrupted || from->interrupted;
}

double mf_searching_best(const mf_searching *c) {
    return c->found->count > 0 ? c->found->plan[0].prediction.step_time_s : c->o->known_s;
}

int64_t mf_searching_unfound(const mf_searching *c) {
    const int64_t first = c->all > 0 && c->all < MF_FIRST_PLAN_US ? MF_FIRST_PLAN_US : c->all;
    const int64_t most = c->o->unfound != 0 ? c->o->unfound : first;
    const int64_t left = most - c->found->stats.work;
    return most < 0 ? most : left > 0 ? left : 1;
}

void mf_searching_note_nothing(mf_searching *c, mf_status s, const mf_search_stats *of) {
    c->unproven |=
        s == MF_INFEASIBLE && of->end != MF_SEARCH_END_NO_FIT && !(mf_searching_best(c) > 0);
}

double mf_searching_gap(const mf_searching *c) {
    return c->o->gap > 0 ? c->o->gap : MF_DEFAULT_GAP;
}
