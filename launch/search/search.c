/* search.c - short searches in which every layer chooses for itself, whose plans are tried with
 * each memory choice that a target has for all layers; then a search for each of these choices, and
 * the best plans together. */
#include "launch/search/search_internal.h"

#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Searches of free choices, in counted microseconds: each goes on where the one before ended, as
 * searches with more effort do. The first ones look at the smallest micro-batch alone, which takes
 * a fifth of the effort until there is a plan. One that would take more than MF_FREE_SHARE of all
 * is left out. */
static const struct {
    int64_t budget;
    bool smallest;
} free_steps[] = {{MF_LEAST_BUDGET, true}, {MF_FREE_FIRST_US, true}, {MF_FREE_LAST_US, false}};
enum { FREE_STEPS = sizeof free_steps / sizeof free_steps[0] };
/* One more search for a family, and two that bound all others. */
enum { BOUNDING = 3 };

/* Of the plans to begin with, those of the family: a search takes none of another space. */
static int choose_starts(const mf_search_options *o, const mf_choice_family *f,
                         mf_known_plan *out) {
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
    return (int64_t)fmax(MF_LEAST_BUDGET, (double)left / ((i + 1) * parts));
}

static void add_stats(const mf_search_stats *from, mf_search_stats *into) {
    mf_searching_add_work(from, into);
    into->space += from->space;
    into->pruned += from->pruned;
    snprintf(into->left_out, sizeof into->left_out, "%s", from->left_out);
}

/* A family's search holds dimensions that others of the search vary: the whole holds only those
 * that were pinned. */
static void unsay_pinned(char *text, uint32_t pinned) {
    for (int d = 0; d < MF_DIM_COUNT; d++) {
        char said[64];
        snprintf(said, sizeof said, ", %s (pinned)", mf_dim_text((mf_dim)d));
        char *at = (pinned & 1u << d) == 0 ? strstr(text, said) : NULL;
        if (at != NULL) {
            memmove(at, at + strlen(said), strlen(at + strlen(said)) + 1);
        }
    }
}

/* Space for as many plans as were asked for; the rest goes. Proof and space hold for all. */
static void finish(mf_target t, const mf_problem *p, const mf_search_options *o,
                   mf_search_result *r) {
    const bool chunks = mf_target_chunk_starts(p->model, NULL) < mf_model_positions(p->model) - 1;
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
    unsay_pinned(left_out, p->pinned);
    snprintf(r->stats.left_out, sizeof r->stats.left_out,
             "%.360s; what %s cannot express: other schedules than 1f1b, interleaved and merged, "
             "memory choices by layer, unequal ZeRO levels%s",
             left_out, mf_target_info_of(t)->program,
             chunks ? ", chunks that begin with a layer which shares another's choice of keys"
                    : "");
}

/* Looks among a family's plans for one that is faster than known_s (0: for any). */
static mf_status search_family(mf_searching *c, mf_choice_family *f, int64_t budget, double known_s,
                               mf_err *e) {
    const mf_problem q = mf_choice_family_problem(c->p, f);
    mf_search_result one = {0}, *found = c->found;
    mf_search_options some = *c->o;
    some.book = NULL; /* families pin what others do not */
    some.start = c->start;
    some.starts = choose_starts(c->o, f, c->start);
    some.known_s = known_s;
    some.budget = budget;
    some.unfound = mf_searching_unfound(c);
    some.gap = MF_FAMILY_GAP * mf_searching_gap(c);
    mf_status status = mf_planner_search(&q, &some, &one, e);
    if (status == MF_OK || status == MF_INTERRUPTED || status == MF_INFEASIBLE) {
        const mf_status stored = mf_searching_gather(c->target, &q, &one, found, e);
        add_stats(&one.stats, &found->stats);
        mf_searching_note_nothing(c, status, &one.stats);
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
static mf_choice_family *holder_of(mf_searching *c) {
    mf_choice_family *least = &c->families[0];
    for (int i = 1; i < c->count && c->families[i].bound_s > 0; i++) {
        least = c->families[i].bound_s < least->bound_s ? &c->families[i] : least;
    }
    return least;
}

static bool is_proven(const mf_searching *c, double bound_s) {
    return c->found->count > 0 && c->found->plan[0].prediction.step_time_s <=
                                      (1 + mf_searching_gap(c)) * bound_s * (1 + 1e-12);
}

/* Is too little left for one more search? */
static bool is_used(const mf_searching *c) {
    return c->all > 0 && c->all - c->found->stats.work < MF_LEAST_BUDGET;
}

/* Would one more search for a family alone leave too little of one and a half times the effort for
 * those that bound the others? */
static bool is_overspent(const mf_searching *c) {
    int unbounded = 0;
    for (int i = 0; i < c->count; i++) {
        unbounded += !(c->families[i].bound_s > 0);
    }
    const int64_t searches = unbounded < BOUNDING ? unbounded : BOUNDING;
    return c->all > 0 && c->found->stats.work + searches * MF_LEAST_BUDGET > c->all + c->all / 2;
}

/* Each family in turn, while there is effort or one of them has no bound. */
static mf_status search_each(mf_searching *c, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < c->count && status == MF_OK; i++) {
        mf_choice_family *f = &c->families[i];
        const int64_t left = c->all - c->found->stats.work;
        const bool enough = is_used(c) && c->found->count > 0;
        if (enough && !(f->bound_s > 0) && is_overspent(c)) {
            status = mf_choice_families_bound(c, f, e);
        }
        if (f->bound_s > 0 && (is_proven(c, f->bound_s) || enough)) {
            continue;
        }
        if (status == MF_OK) {
            status =
                search_family(c, f, budget_of(c->all, left, i, c->count), mf_searching_best(c), e);
        }
    }
    return status;
}

/* Searches of free choices; one of them bounds all families, or each is to have a search for that.
 * Then, where families of plain schedules could each get a part that is of use, one that may close
 * them all at once. */
static mf_status begin(mf_searching *c, mf_err *e) {
    const bool bounds = mf_choice_families_are_free(c);
    const int64_t all = c->all - (bounds ? 0 : (int64_t)c->count * MF_LEAST_BUDGET);
    const double share = c->all > 0 ? MF_FREE_SHARE * (double)all : HUGE_VAL;
    const bool pinned = (c->p->pinned & MF_PIN(MICRO_BATCH)) != 0;
    bool bounded = false;
    mf_status s = MF_OK;
    for (int i = 0; i < FREE_STEPS && s == MF_OK; i++) {
        const bool smallest = free_steps[i].smallest && !pinned;
        if ((i > 0 && (double)free_steps[i].budget > share) ||
            is_proven(c, holder_of(c)->bound_s)) {
            break;
        }
        s = mf_searching_free(c, MF_ALL_SCHEDULES, smallest, free_steps[i].budget, e);
        bounded = bounded || !smallest;
    }
    if (s == MF_OK && (c->all < 0 || c->all >= MF_LARGER_LEAST_US)) {
        s = mf_searching_larger(c, e);
    }
    const int64_t left = all - c->found->stats.work;
    if (s == MF_OK && !bounded && (bounds || left / 2 > MF_LEAST_BUDGET)) {
        return mf_searching_free(c, MF_ALL_SCHEDULES, false,
                                 left / 2 > MF_LEAST_BUDGET ? left / 2 : MF_LEAST_BUDGET, e);
    }
    const int64_t budget = c->all < 0 || left / 4 > MF_PLAIN_US ? MF_PLAIN_US : left / 4;
    if (s == MF_OK && bounds && budget >= MF_PLAIN_LEAST_US &&
        !is_proven(c, holder_of(c)->bound_s)) {
        s = mf_searching_free(c, MF_PLAIN, false, budget, e);
    }
    return s;
}

/* Searches of free choices, then the families; then what effort they left goes to the family that
 * holds the gap, as long as that is more than it had, and the best plan is tried with other
 * choices. Where a plan is known there are no searches of free choices. */
static mf_status search_all(mf_searching *c, mf_err *e) {
    const bool starts = c->o->known_s != 0 || c->o->starts != 0;
    mf_status status = c->count > 2 && !starts ? begin(c, e) : MF_OK;
    status = status == MF_OK ? search_each(c, e) : status;
    for (int i = 0; i < c->count && status == MF_OK; i++) {
        mf_choice_family *f = holder_of(c);
        const int64_t left = c->all - c->found->stats.work;
        const double bound_s = f->bound_s;
        if (is_proven(c, bound_s) || left < MF_LEAST_BUDGET || left <= f->work) {
            break;
        }
        status = search_family(c, f, left, mf_searching_best(c), e);
        if (!(f->bound_s > bound_s)) {
            break;
        }
    }
    return status == MF_OK && c->count > 1 ? mf_searching_alike(c, e) : status;
}

/* The bound of all, and why there is no tighter one. */
static void note_end(mf_searching *c) {
    const mf_choice_family *f = holder_of(c);
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
        mf_search_end_say(all->end, mf_searching_gap(c), all->work, all->ended, sizeof all->ended);
    } else {
        all->end = f->end;
        snprintf(all->ended, sizeof all->ended, "%s", f->ended);
    }
}

mf_status mf_target_search(mf_target t, const mf_problem *p, const mf_search_options *o,
                           mf_search_result *result, mf_err *e) {
    mf_searching c = {.target = t,
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
    c.count = mf_choice_families_list(p, c.families);
    status = c.count > 0 ? search_all(&c, e) : mf_choice_families_none(t, p, e);
    free(c.start);
    if (status == MF_OK || status == MF_INTERRUPTED) {
        note_end(&c);
        finish(t, p, o, result);
    }
    if ((status != MF_OK && status != MF_INFEASIBLE) || result->count > 0) {
        return status;
    }
    result->stats.end = c.unproven ? MF_SEARCH_END_EFFORT : MF_SEARCH_END_NO_FIT;
    if (c.unproven) {
        mf_search_end_say_nothing(true, result->stats.work, result->stats.ended,
                                  sizeof result->stats.ended);
    } else {
        mf_search_end_say(MF_SEARCH_END_NO_FIT, 0, 0, result->stats.ended,
                          sizeof result->stats.ended);
    }
    return mf_err_set(e, MF_INFEASIBLE, "%s",
                      c.unproven ? result->stats.ended : "no layout fits into memory");
}
