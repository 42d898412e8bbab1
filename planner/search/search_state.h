/* search_state.h - private to the search: the state of its loop, and its end.
 */
#ifndef MF_PLANNER_SEARCH_STATE_H
#define MF_PLANNER_SEARCH_STATE_H

#include "planner/search/deterministic_pool.h"
#include "planner/search/search.h"
#include "planner/search/search_queue.h"
#include "planner/tuning/limits.h"

/* A task: nodes from the top of the queue. */
typedef struct mf_search_task {
    mf_search_node node[MF_TASK_NODES];
    mf_search_outcome out[MF_TASK_NODES];
    mf_costs_noted asked[MF_TASK_NODES]; /* costs that each asked for */
    int count;                           /* 0: it improves the best plan */
    mf_search_node begun[MF_TASK_NODES]; /* the nodes at its start, without what they own: the
                                          * task's thread changes `node` */
    mf_search_aim aim[MF_TASK_NODES];    /* at its start */
    int64_t seen;                        /* outcomes merged by its start */
    double cpu_s;                        /* CPU time that it took */
    bool in_flight;
} mf_search_task;

/* Effort of nodes of one level that had been worked on so often before. */
typedef struct mf_search_taken {
    int64_t us, nodes;
} mf_search_taken;
enum { MF_TAKEN_TRIES = 4, MF_TAKEN_KINDS = (MF_LEVEL_TRY + 1) * MF_TAKEN_TRIES };

/* The gap at some effort. */
typedef struct mf_search_mark {
    int64_t at;
    double gap;
} mf_search_mark;

typedef struct mf_search_state {
    const mf_search_request *r;
    mf_search_context context;
    mf_search_queue queue;  /* aside: parked trees (is_hopeless) */
    mf_search_found *found; /* [most_found + 1] sorted by time, of different degrees each */
    int nfound, most_found;
    double best_s;
    int64_t priced, evaluated, simulated, milps, milp_failed, work;
    int64_t blocks_us;       /* of work, what blocks took: less where books are shared */
    int64_t first_tries_us;  /* of the rest, what layouts took that were tried before trees begin */
    mf_search_node blocking; /* of the layouts that cannot be worked on any more, the one of least
                              * bound; key_s HUGE_VAL: none */
    double held_s;         /* the proof when tries began: their keys lie before all that is open */
    int64_t blocked_count; /* such layouts that were below the target when they were given up */
    mf_search_task task[MF_TASKS_IN_FLIGHT];
    int64_t merged;
    double pricing_s;          /* of tasks that bound families and layouts */
    bool patient;              /* no tree is parked any more but those that climb no more, */
    bool stubborn;             /* nor these */
    bool fits_tried;           /* layouts that `fit` finds were simulated and tried */
    double fits_s;             /* their best step with choices of least memory */
    int64_t closer_until;      /* several kinds of layers: work up to which it goes on towards a
                                * narrower gap; 0: not begun */
    int64_t look_until;        /* work at which the look after the gap is met ends; 0: not begun */
    int64_t fits_tries;        /* layouts of their degrees that are tried whatever the budget */
    int64_t vain_tries;        /* tries that fit since one gave a better plan */
    double improved_s;         /* the best plan when its positions were last moved by steps, */
    int64_t improve_at;        /* and the work from which on they may be again; 0: never were */
    mf_search_found improving; /* the plan that a task in flight improves, */
    bool improves;             /* if one does */
    int64_t improve_us;        /* effort that the last one was given, */
    bool improve_cut;          /* and whether it used all of it */
    double neared_s;           /* the best plan when layouts near the best ones were last tried */
    bool opened;               /* open layouts were tried */
    bool spent;                /* the budget is used: nothing is started any more */
    double narrowed;           /* the gap when it last narrowed, */
    int64_t narrowed_at;       /* and the work then */
    mf_search_mark mark;       /* an earlier gap; HUGE_VAL: none */
    bool slow;                 /* at its recent pace it would not end soon */
    bool stale;                /* it ends since its gap did not narrow */
    int64_t stale_for;         /* for so much work */
    int64_t unblocked_at;    /* work when `blocking` last was not the least of all, or a better plan
                                was found */
    double unblocked_best_s; /* the best plan then */
    mf_search_taken taken[MF_TAKEN_KINDS];
    double target_s;
    /* Runners-up are looked for after the best plan is proven (search_rank.c), with what is below
     * here as it was then. */
    bool ranking;
    int64_t rank_until;  /* work at which it ends */
    double unlisted_s;   /* least bound of layouts given up whose degrees have no plan */
    double proven_s;     /* lower bound, */
    int64_t proven_open; /* layouts that were open, */
    int64_t proven_priced, proven_evaluated;
    mf_search_end end; /* why the search for the best plan ended, */
    char ended[320];   /* and in a sentence */
    mf_status status;
    mf_err err;
    bool interrupted; /* cancelled, or some task did not finish */
} mf_search_state;

/* Is a mechanism switched on? */
bool mf_search_uses(const mf_search_state *s, mf_mechanism m);
/* The gap that was asked for. */
double mf_search_asked_gap(const mf_search_state *s);
/* Counted microseconds of one core at most; negative: no limit. */
int64_t mf_search_budget(const mf_search_state *s);
/* Least key of all open nodes; no plan of the space takes less than the bound. */
double mf_search_least_open(const mf_search_state *s);
double mf_search_lower_bound(const mf_search_state *s);
bool mf_search_is_flying(const mf_search_state *s);
/* Puts the families of the first level into the queue. */
mf_status mf_search_begin(mf_search_state *s, mf_err *e);
/* How many plans are wanted. */
int mf_search_top(const mf_search_state *s);

/* --- counted effort (search_effort.c) --- */
/* Usual effort of a node; it decides which of the tasks in flight commits first. */
int64_t mf_search_usual_us(const mf_search_node *n);
/* The most that one tree, program or local search that starts now may take. */
int64_t mf_search_most_us(const mf_search_state *s);
/* Notes the effort of a node that has committed. */
void mf_search_note_taken(mf_search_state *s, const mf_search_node *n, int64_t work_us);
/* Will the tasks in flight and half of the next node use the budget, each at the mean of its kind?
 * Of a search without a plan what it may use until it has one. */
bool mf_search_is_spent(const mf_search_state *s);

/* Has the search a plan, or does it know one from elsewhere? */
bool mf_search_has_plan(const mf_search_state *s);

/* --- which work is left to start (search_next.c) --- */
/* Are bounds raised towards a narrower gap than the one that is asked for? Where main layers are of
 * several kinds. */
bool mf_search_looks_closer(const mf_search_state *s);
/* Is there no more to start? */
bool mf_search_is_done(mf_search_state *s);
/* Returns parked trees to the queue. */
mf_status mf_search_open_again(mf_search_state *s, mf_err *e);

/* --- how fast its gap narrows (search_pace.c) --- */
/* Notes the gap as it is now. */
void mf_search_note_gap(mf_search_state *s);
/* Has the search less patience than effort? */
bool mf_search_is_impatient(const mf_search_state *s);
/* Has the gap not narrowed for as long as the search has patience? */
bool mf_search_is_stale(const mf_search_state *s);
/* Is the gap narrowing too slowly, after everything was done that may give a better plan? */
bool mf_search_is_slow(const mf_search_state *s);

/* --- how it ends (search_end.c) --- */
/* Notes why the search for the best plan ends now (s->end, s->ended), and what it proves. */
void mf_search_note_end(mf_search_state *s);
mf_status mf_search_report_of(mf_search_state *s, mf_search_report *out, mf_err *e);

/* --- runners-up (search_rank.c) --- */
/* Plans of the same degrees count as one: runners-up differ in more than a ZeRO level. */
bool mf_search_same_degrees(const mf_layout *a, const mf_layout *b);
/* Whether runners-up are looked for at all. */
bool mf_search_ranks(const mf_search_state *s);
/* Begins with the families of the first level again. */
mf_status mf_search_rank_begin(mf_search_state *s, mf_err *e);
/* Is there no more to start? */
bool mf_search_rank_is_done(mf_search_state *s);
/* Rank of the best plan with the node's degrees; -1: there is none, or not all degrees are fixed.
 * The cutoff by rank: a node is of use below it. */
int mf_search_rank_place(const mf_search_state *s, const mf_search_node *n);
double mf_search_rank_cutoff(const mf_search_state *s, int place);
double mf_search_rank_target(const mf_search_state *s, double cutoff_s);
/* No plan of degrees that are not listed takes less. */
double mf_search_unlisted_s(const mf_search_state *s);

#endif
