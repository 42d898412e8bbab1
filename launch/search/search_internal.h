/* search_internal.h - a search under a target's limits: what its parts share. Private to
 * launch/search/. */
#ifndef MF_LAUNCH_SEARCH_INTERNAL_H
#define MF_LAUNCH_SEARCH_INTERNAL_H

#include "launch/search/search.h"

enum { MF_CHOICES = 8 }; /* memory choices that are tried for all layers */

/* Plans of one choice, with plain schedules or merged; what the last search among them said. */
typedef struct mf_choice_family {
    int listed;
    uint16_t recompute;
    bool merged;
    double bound_s, best_s; /* of its plans; 0: none yet */
    int64_t work;
    mf_search_end end;
    char ended[sizeof((mf_search_stats *)0)->ended];
} mf_choice_family;

enum {
    MF_PLAIN = 1u << MF_SCHED_1F1B | 1u << MF_SCHED_INTERLEAVED,
    MF_MERGED = 1u << MF_SCHED_MERGED,
    MF_ALL_SCHEDULES = MF_PLAIN | MF_MERGED
};

/* All searches of one target, and what they found so far. */
typedef struct mf_searching {
    mf_target target;
    const mf_problem *p;
    const mf_search_options *o;
    mf_known_plan *start; /* [o->starts] */
    mf_choice_family families[2 * MF_CHOICES];
    int count;
    bool leanest_tried;
    int64_t all;          /* counted microseconds; negative: no limit */
    mf_search_stats free; /* of the search of free choices; its work 0: there was none */
    bool unproven;        /* some search found nothing, and it is not known that nothing fits */
    mf_search_result *found;
} mf_searching;

/* --- families (search_families.c) ------------------------------------------------------------- */

/* Choices that differ for the model, each with plain schedules and, where they take it, merged;
 * only what the problem pins, if it does. Returns how many; 0: it holds a schedule that no family
 * has. */
int mf_choice_families_list(const mf_problem *p, mf_choice_family out[2 * MF_CHOICES]);
/* The problem with the limits that all families share. */
mf_problem mf_choice_families_limit(const mf_problem *p);
/* Why there are none: MF_LAYOUT. */
mf_status mf_choice_families_none(mf_target t, const mf_problem *p, mf_err *e);
/* Limits a problem to schedules that merge passes, or to the others. */
void mf_choice_families_schedule(mf_problem *p, bool merged);
/* The problem whose plans are the family's. */
mf_problem mf_choice_family_problem(const mf_problem *p, const mf_choice_family *f);
/* Has each layer, where it chooses for itself, every choice that a family makes for it? Then a
 * bound for free choices holds for the families, too. */
bool mf_choice_families_are_free(const mf_searching *c);
/* One short search bounds all families at once that have no bound yet, share `of`'s kind of graph
 * and hold no choice but free ones: where there is a plan and the effort is used, each of them
 * would else take a search of its own for that (14 of 0.15 s of DeepSeek-V3). Errors: as
 * mf_planner_search. */
mf_status mf_choice_families_bound(mf_searching *c, const mf_choice_family *of, mf_err *e);

/* --- what was found (search_families.c) ------------------------------------------------------- */

/* Takes over what fits of a family's plans and is not there yet, fastest first; those are no longer
 * owned by `from`. Errors: MF_NOMEM, and of a prediction. */
mf_status mf_searching_gather(mf_target t, const mf_problem *p, mf_search_result *from,
                              mf_search_result *into, mf_err *e);
/* What a search did; its space is not part of it, as another search's may hold the same layouts. */
void mf_searching_add_work(const mf_search_stats *from, mf_search_stats *into);
/* Of the fastest plan so far, or what is known from elsewhere; seconds, 0: there is none. */
double mf_searching_best(const mf_searching *c);
/* What the next search may use without a plan, and what one that found none proved of that. */
int64_t mf_searching_unfound(const mf_searching *c);
void mf_searching_note_nothing(mf_searching *c, mf_status s, const mf_search_stats *of);
/* The gap that is asked for. */
double mf_searching_gap(const mf_searching *c);

/* --- choices that are free (search_free.c) ---------------------------------------------------- */

/* A search in which every layer chooses for itself, among these schedules (1 << MF_SCHED_...), with
 * micro-batches of one sample alone if `smallest`, and so many counted microseconds; what it finds
 * is tried with each choice of the families, which may take as much again. Sets bounds of families
 * where it holds theirs, too, and puts families in order: the fastest first. Errors: as
 * mf_planner_search; MF_INFEASIBLE: nothing fits even then. */
mf_status mf_searching_free(mf_searching *c, uint32_t schedules, bool smallest, int64_t budget,
                            mf_err *e);
/* The best plan's whole layout with each other choice that fits there, until none is faster. It
 * begins one as long as no more than all effort and its MF_ALIKE_PART-th part are used. Errors: as
 * mf_planner_search. */
mf_status mf_searching_alike(mf_searching *c, mf_err *e);
/* The leanest family with larger micro-batches, if no plan is near those of free choices: where the
 * host holds a step back these are the faster ones (Qwen3-235B on 256 H100 under megatron-26.06).
 * Errors: as mf_planner_search. */
mf_status mf_searching_larger(mf_searching *c, mf_err *e);

#endif
