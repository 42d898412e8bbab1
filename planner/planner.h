/* planner.h - what fits, what is fastest, and why.
 *
 *  - mf_planner_fit     phase 1: for every combination of degrees, does it fit and by how much
 *  - mf_planner_search  phase 2: the fastest plan, the runners-up and the proof (bound, gap)
 *  - mf_planner_explain why a layout fits or does not, and what more memory or bandwidth would buy
 *
 * Every function only reads its problem and may be called from several threads at the same time.
 * Results are the same on any number of threads and any machine: work is counted, never timed
 * (wall_s is the one clock, and it is not part of any plan). docs/planner.md explains the method.
 */
#ifndef MF_PLANNER_PLANNER_H
#define MF_PLANNER_PLANNER_H

#include "core/plan/plan.h"
#include "planner/lp/milp.h"
#include "planner/space/space.h"
#include "planner/tuning/mechanisms.h"
#include "simulator/sim.h"

/* Prices of another cluster or software, from the same measurements as a problem's. Errors: as
 * mf_cost_create reports them. */
typedef mf_status (*mf_reprice_fn)(const void *user, const mf_cluster *c, const mf_software *s,
                                   mf_cost **out, mf_err *e);

struct mf_problem;
/* Makes of a layout and its assignment what the program that is to run them would run. False: that
 * is not what the problem asks for. It may be called from several threads at the same time. */
typedef bool (*mf_express_fn)(const void *user, const struct mf_problem *p, mf_layout *l,
                              mf_assignment *a);

/* What to plan. Everything is borrowed for the duration of a call. */
typedef struct mf_problem {
    const mf_model *model;
    const mf_cost *cost;   /* holds the cluster and the software profile */
    mf_reprice_fn reprice; /* of mf_planner_explain; NULL: cost rests on what ships */
    const void *reprice_user;
    const mf_routing *routing; /* NULL = balanced */
    mf_layout base;            /* gpus, gbs, seq, what is not searched, values of pinned dims */
    uint32_t pinned;           /* MF_PIN(...) bits: dimensions that keep base's value */
    uint32_t precisions;       /* 1u << MF_PREC_*: also searched; 0 = base.precision alone */
    mf_space_limits limits;    /* of who is to run the plan */
    mf_express_fn express; /* phase 1 lists what it makes of layouts; NULL: layouts as they are */
    const void *express_user;
    /* provenance, copied into plans; NULL = "" */
    const char *generator, *cluster_name, *measurements, *routing_name;
} mf_problem;

/* Prices of blocks, which do not depend on the number of GPUs. */
typedef struct mf_price_book mf_price_book;
/* What is known of schedules (planner/order/order_book.h). */
typedef struct mf_order_book mf_order_book;

/* --- phase 2: search -------------------------------------------------------------------------- */

/* Why a search ended: a word, and what it means of a search. */
#define MF_SEARCH_END_MAP(X)                                                                       \
    X(NONE, "", "")                                                                                \
    X(PROVEN, "proven", "the gap that is asked for")                                               \
    X(EFFORT, "effort", "it is used")                                                              \
    X(STALLED, "stalled", "the gap did not narrow for a while")                                    \
    X(SLOW, "slow", "the gap that is asked for would take longer than all before")                 \
    X(OPEN, "open", "nothing is left that can be closed")                                          \
    X(NO_FIT, "no fit", "every layout is known not to fit")                                        \
    X(INTERRUPTED, "interrupted", "somebody stopped it")

typedef enum mf_search_end {
#define X(name, text, meaning) MF_SEARCH_END_##name,
    MF_SEARCH_END_MAP(X)
#undef X
        MF_SEARCH_ENDS
} mf_search_end;

const char *mf_search_end_text(mf_search_end end);
const char *mf_search_end_meaning(mf_search_end end);

/* The sentence of a search that ended so, of the gap that was asked for and the counted work. Of
 * STALLED and of layouts that stay open only the search itself can say more: "" and no layouts. */
void mf_search_end_say(mf_search_end end, double gap, int64_t work_us, char *out, size_t size);

typedef struct mf_search_stats {
    int64_t space;        /* distinct valid layouts (before assignments) */
    int64_t priced;       /* of those, how many had their own bound evaluated */
    int64_t pruned;       /* of those, how many were closed by a bound, alone or with their group */
    int64_t milp_solved;  /* integer programs that GLPK solved */
    int64_t milp_failed;  /* ... that it gave up on; their layouts keep the bound from before */
    int64_t simulated;    /* steps simulated */
    double lower_bound_s; /* least over all layouts not closed, simulated ones included */
    double gap;           /* best over lower_bound_s, minus one */
    double pricing_s;     /* of one core, on bounds of families and layouts; the rest of the CPU
                           * time goes into relaxations, trees, programs and simulated steps */
    int64_t work;         /* counted microseconds of one core: the same in every run */
    double wall_s;        /* only this and pricing_s vary between runs: they are timed */
    double unlisted_s; /* no plan of degrees (with schedule, VPP, micro-batch) that the result lacks
                        * takes less; 0 unless runners-up were asked for */
    mf_search_end end; /* why the search for the best plan ended, */
    char ended[320];   /* and in a sentence */
    bool interrupted;  /* stopped by cancel: best so far */
    char left_out[640]; /* what was left out of the space, in words */
    char runs_on[16];   /* who limits the space; "" = nobody. Set by who asks for both: */
    double limited_s, unlimited_s; /* step times of the best plans with the limit and without */
} mf_search_stats;

/* A plan that is known from elsewhere, with the problem's number of GPUs and what it pins. */
typedef struct mf_known_plan {
    mf_layout layout;
    mf_assignment assignment;
} mf_known_plan;

typedef struct mf_search_options {
    int threads; /* 0 = as many as the machine has, at most 8; does not change the result */
    int top;     /* plans wanted, the best included: the fastest of different degrees (with
                  * schedule, VPP, micro-batch), each with its own best assignment, which takes
                  * half as much effort again. 0 = 4, the others as they were met */
    double min_headroom_B; /* memory that every plan leaves free of what is usable */
    double gap;            /* stop when the proof is this tight; 0 = MF_DEFAULT_GAP, 3 % */
    int64_t budget;   /* most work in all, about a microsecond of one core each: counted, not timed.
                       * 0 = MF_DEFAULT_BUDGET_US, 30 s; negative = no limit. There is none until a
                       * plan is found */
    int64_t fits_us;  /* counted microseconds without a plan after which the layouts of least memory
                       * are tried; 0 = MF_FIT_FIRST_US, 3 s. Less where memory is known to be tight
                       */
    int64_t patience; /* open layouts are tried after so much work did not narrow the gap, and the
                       * search ends when as much again did not either; or, after five times that,
                       * where the gap that is wanted would take MF_SLOW_SHARE times as long as all
                       * so far, as fast as it narrows; 0 = it goes on */
    int flight; /* tasks in flight at most: those that start know nothing of those that fly, and as
                 * many threads are of use. Unlike threads it may change the result. 0 = 12, eight
                 * of them long ones */
    double known_s; /* step time of a plan that is known from elsewhere: only faster ones are looked
                     * for, and none is no failure of theirs but MF_INFEASIBLE; 0 = none */
    const mf_known_plan *start; /* [starts] simulated first: the search begins with the fastest
                                 * one that fits. Borrowed */
    int starts;
    const volatile int *cancel; /* set non-zero to stop with the best so far; may be NULL */
    void (*progress)(const mf_search_stats *now, double best_s, void *user); /* may be NULL */
    void *user;
    /* Called once with the best answer as soon as it is known, before the answers are made complete
     * plans; may be NULL */
    void (*found)(void *user, const mf_layout *best, const mf_assignment *a, double step_time_s);
    void *found_user;
    bool bare; /* plans are wanted as layout, assignment and step time alone, with nothing predicted
                */
    mf_price_book *book;   /* of a problem that differs in nothing but base.gpus, made with the same
                            * cancel and without: what is priced stays in it for searches to come, and
                            * no result depends on it. NULL: the search makes its own */
    mf_order_book *orders; /* what is known of schedules: shared between searches of any problems,
                            * and no result depends on it. NULL: the search makes its own */
    mf_milp_fault milp_fault; /* tests: what goes wrong in every integer program */
    mf_mechanisms without;    /* benchmarks: mechanisms that are switched off */
} mf_search_options;

typedef struct mf_search_result {
    int count;     /* plans found, best first; 0 when nothing fits */
    mf_plan *plan; /* [count], complete with predictions and provenance */
    mf_search_stats stats;
} mf_search_result;

void mf_search_options_init(mf_search_options *o);

/* For searches of one problem at several sizes. Borrows what p points at, and o->cancel. Errors:
 * MF_NOMEM. Several searches may use it at the same time. */
mf_status mf_price_book_create(const mf_problem *p, const mf_search_options *o, mf_price_book **out,
                               mf_err *e);
void mf_price_book_destroy(mf_price_book *b);

/* Finds the fastest plan. MF_OK: result->count >= 1. MF_INFEASIBLE: no layout fits, and e says what
 * is missing (see mf_planner_fit for the list). MF_INTERRUPTED: cancelled; result holds the best so
 * far, if any. Other errors as the rooms below report them. *result is to be cleared in any case.
 * The progress function is called a few times a second at most: one call at a time, on any of the
 * search's threads. */
mf_status mf_planner_search(const mf_problem *p, const mf_search_options *o,
                            mf_search_result *result, mf_err *e);
void mf_search_result_clear(mf_search_result *r);

/* A complete plan (predictions, provenance) of one layout and assignment: what `simulate` prints.
 * assignment NULL: the even one with layout->memory everywhere. The layout need not fit. The plan
 * is to be cleared. sim (may be NULL) receives the simulation, to be destroyed. */
mf_status mf_planner_predict(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                             mf_plan *plan, mf_sim **sim, mf_err *e);
/* Would it take less than time_s, and may it fit? Its memory is counted without gaps, which a
 * prediction looks for at length; so one that outruns may turn out not to fit. */
mf_status mf_planner_outruns(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                             double time_s, bool *yes, mf_err *e);

/* --- phase 1: fit ----------------------------------------------------------------------------- */

/* One combination of degrees (TP, CP, PP, EP, ETP) at the choices that need the least memory:
 * smallest micro-batch, ZeRO pair of least memory, schedule, recomputation and offload that are
 * allowed. */
typedef struct mf_fit_entry {
    mf_layout layout; /* those choices; layout.memory for every layer */
    bool fits;
    bool exact;              /* peak and host memory are the memory plan's; else, without gaps */
    double peak_B;           /* largest stage */
    double usable_B;         /* capacity less reserve */
    double headroom_B;       /* usable less peak; negative = missing */
    double fixed_B;          /* of the stage with most: training state and communicators */
    double host_B;           /* that offloading takes of a GPU's share of the host, at most */
    double host_missing_B;   /* ... beyond what there is; 0 = nothing */
    int64_t stage;           /* the one that peaks */
    mf_memory_kind dominant; /* largest kind of memory on it */
    double dominant_B;
    /* set by mf_planner_fit_time, or by who knows a faster plan of these degrees */
    bool timed;
    double step_time_s;
    mf_layout timed_layout; /* with the choices that take so long, which fit */
    double timed_peak_B;    /* and what they need */
    bool searched;          /* they are a search's, */
    bool by_layer;          /* and layers choose otherwise each */
} mf_fit_entry;

typedef struct mf_fit_result {
    int64_t count; /* combinations of degrees */
    int64_t feasible;
    mf_fit_entry *entry;   /* [count]: those that fit by headroom, then the rest by what is missing;
                            * of each the first mf_fit_options.shown, in this order, are exact */
    int64_t smallest_gpus; /* nothing fits: smallest number of GPUs found that would, from one node
                            * on in whole nodes; 0 = none up to the cluster's limit. Otherwise the
                            * problem's own size */
    char missing[512];     /* nothing fits: what is missing, in words; else "" */
    int64_t timed;         /* of those that fit, the number that is timed */
} mf_fit_result;

typedef struct mf_fit_progress {
    int64_t gpus;        /* the problem's size, or one that is tried because nothing fits there */
    int64_t done, total; /* combinations of degrees */
    int64_t feasible;
    double wall_s;
} mf_fit_progress;

typedef struct mf_fit_options {
    const volatile int *cancel; /* set non-zero to stop; may be NULL */
    void (*progress)(const mf_fit_progress *now, void *user); /* may be NULL; one call at a time */
    void *user;
    int64_t shown; /* entries of those that fit, and of the rest, that are wanted; at least one is
                    * made exact */
    int threads;   /* 0 = as many as the machine has, at most 8; does not change the result */
} mf_fit_options;

/* Even stages with the layout's memory choice everywhere, both as the program that is to run them
 * has them (mf_problem.express). Errors: MF_LAYOUT where there is no such assignment. */
mf_status mf_planner_lay_out(const mf_problem *p, mf_layout *l, mf_assignment *out, mf_err *e);

/* MF_OK: something fits. MF_INFEASIBLE: nothing does; result is complete all the same.
 * MF_LAYOUT: there is no combination because of what is pinned; e names the rule that it breaks;
 * result is empty. MF_INTERRUPTED: cancelled; result holds what was judged so far, in order. */
mf_status mf_planner_fit(const mf_problem *p, const mf_fit_options *o, mf_fit_result *result,
                         mf_err *e);
void mf_fit_result_clear(mf_fit_result *r);

/* Times entry[0, feasible), as many as counted work allows, those that divide layers least first:
 * each with the fastest of a few usual choices that fit, by simulation (one that does not fit is
 * not timed); then puts them in order. What is timed does not depend on threads. Errors: those of
 * lowering; MF_INTERRUPTED: some are timed, and in order. */
mf_status mf_planner_fit_time(const mf_problem *p, const mf_fit_options *o, int64_t work_us,
                              mf_fit_result *r, mf_err *e);
/* Puts what fits in the order of time, what is not timed behind that by headroom, counts it, and
 * makes the first o->shown exact. */
mf_status mf_planner_fit_rank(const mf_problem *p, const mf_fit_options *o, mf_fit_result *r,
                              mf_err *e);

/* Least bytes of parameters, gradients and optimizer states on the fullest GPU, however they are
 * sharded. Nothing fits if that is more than usable. 0: not known. */
double mf_planner_least_states_B(const mf_problem *p);

/* --- explain ---------------------------------------------------------------------------------- */

/* What one more unit of something would buy for a plan. */
typedef struct mf_remedy {
    char what[64];      /* "memory of stage 3", "scale-up bandwidth +10 %" */
    double step_time_s; /* with it */
    double gain;        /* share of the step time that it saves */
    char basis[40];     /* "dual price", "re-simulated" */
} mf_remedy;

#define MF_EXPLAIN_MAX_REMEDIES 16

typedef struct mf_explanation {
    bool fits;
    char memory[512]; /* one paragraph: which stage peaks, of what, by how much it (mis)fits */
    char time[512];   /* one paragraph: where the step goes */
    int remedies;     /* largest gain first */
    mf_remedy remedy[MF_EXPLAIN_MAX_REMEDIES];
} mf_explanation;

mf_status mf_planner_explain(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                             mf_explanation *out, mf_err *e);

#endif
