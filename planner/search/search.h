/* search.h - private to the planner: the best-first search over families of layouts.
 *
 * The queue holds families: layouts with the same of what is fixed so far. A family's key is a
 * bound of all its steps. The least is taken out, and either split into smaller families, each with
 * a bound of its own, or, when it is a single layout, bounded more tightly. Levels:
 *
 *   ATTENTION   an attention side (precision, TP, CP and its type, micro-batch), bounded first
 *   EXPERT      and an expert side (EP, ETP, dispatcher)
 *   PIPELINE    and a pipeline degree
 *   PASS_MODE   and the way that passes are played: alone, split or in pairs
 *   ORDER       and a schedule with its VPP, bounded by whole layers
 *   LAYOUT      and ZeRO levels: one layout, bounded with its family's figures
 *   MEAN        its partition bounded by the mean of paths that was found for its order;
 *               where there is no plan yet, an assignment simulated
 *   RELAXATION  where no paths are known for its order: by the coarse relaxation of its
 *               integer program, whose paths and weights then bound the order
 *   SPLITS      by the least over whole splits of the positions, choices mixed
 *   EXACT       by the exact one, answers tried so far excluded by cuts
 *
 * and beside these, where memory decides, layouts of which a plan is tried and nothing else:
 *   TRY         an even split, improved and simulated
 *
 * Several tasks run at the same time, and which of them are known to which does not depend on
 * threads (deterministic_pool.h): results are the same on any number of threads.
 */
#ifndef MF_PLANNER_SEARCH_H
#define MF_PLANNER_SEARCH_H

#include "core/base/pool.h"
#include "planner/assign/assign.h"
#include "planner/bound/family_bound.h"
#include "planner/order/order_book.h"
#include "planner/order/path_mean.h"
#include "planner/planner.h"
#include "planner/space/space.h"
#include "planner/splits/splits.h"
#include "planner/tuning/limits.h"

#include <pthread.h>
#include <stdatomic.h>

typedef enum mf_level {
    MF_LEVEL_ATTENTION,
    MF_LEVEL_EXPERT,
    MF_LEVEL_PIPELINE,
    MF_LEVEL_PASS_MODE,
    MF_LEVEL_ORDER,
    MF_LEVEL_LAYOUT,
    MF_LEVEL_MEAN,
    MF_LEVEL_RELAXATION,
    MF_LEVEL_SPLITS,
    MF_LEVEL_EXACT,
    MF_LEVEL_TRY
} mf_level;

/* `tries` of a node that cannot be worked on any more: its bound stays in the proof. */
#define MF_SEARCH_DONE 255

/* Why a layout cannot be worked on any more. */
typedef enum mf_search_cause {
    MF_CAUSE_STAGES,  /* too many virtual stages for the integer program */
    MF_CAUSE_TREE,    /* the same, and its tree over splits did not end within its limit */
    MF_CAUSE_LIMIT,   /* the integer program did not end within its limit of nodes, or was given up
                       */
    MF_CAUSE_ANSWERS, /* its answer simulates slower than it says, or does not fit */
} mf_search_cause;

/* Answers of the exact program that were tried, kept with their node. */
typedef struct mf_search_node {
    double key_s;
    uint64_t id; /* order of entry: breaks ties */
    uint8_t level, tries;
    uint8_t cause;                             /* EXACT: mf_search_cause, as far as it is known */
    uint8_t mode, schedule, zero, expert_zero; /* as far as the level fixes them, */
    int16_t vpp;
    int32_t side, expert, dense; /* indices */
    int64_t seen; /* LAYOUT: outcomes that were merged when it was bounded with its order */
    bool stalled; /* SPLITS: its tree climbed no more, and nothing but the tree can bound it */
    mf_partition_tried tried;
} mf_search_node;

/* An attention side with the pipeline degrees it is valid for: dense[first .. first + count). */
typedef struct mf_search_side {
    int32_t first, count;
} mf_search_side;

/* A simulated plan. */
typedef struct mf_search_found {
    double time_s;
    double open_s; /* least bound of the layouts of its degrees that were given up; the search sets
                      it */
    mf_layout layout;
    mf_assignment assignment;
} mf_search_found;

/* Most plans that are kept. */
#define MF_SEARCH_FOUND 64

/* Paths that bound an order, with their weights. A task knows what was kept by its start, so older
 * sets stay as long as a task that started with them runs. */
typedef struct mf_search_path_set {
    int64_t since; /* outcomes merged before they were kept */
    int64_t pp, vpp, micro_batches;
    int schedule;
    mf_path_set paths;
    struct mf_split_proof *proof; /* instead of paths: of a tree over splits; owned. Or NULL */
    struct mf_search_path_set *next;
} mf_search_path_set;

#define MF_SEARCH_BUCKETS 16384
#define MF_SEARCH_KNOWN 65536 /* lists of figures */
#define MF_SEARCH_PATH_LOCKS 64

/* Figures of orders and families, computed when first asked for and kept (order_cache.c). Entries
 * are never changed or removed, so readers need no lock. Keys are compared byte by byte. */
typedef enum mf_search_kind {
    MF_KNOWN_ORDERS,     /* the orders of a pipeline degree and a number of micro-batches */
    MF_KNOWN_TIMES,      /* layer times of two sides (family_figures.c) */
    MF_KNOWN_STAGES,     /* figures of the step's end of a pipeline degree */
    MF_KNOWN_LAYOUT_END, /* the same of one layout, by position */
    MF_KNOWN_STAGE_END   /* the same of one layout, whatever its stages hold */
} mf_search_kind;
typedef struct mf_search_key {
    int64_t kind, word[7];
} mf_search_key;
typedef struct mf_search_known {
    struct mf_search_known *next;
    mf_search_key key;
} mf_search_known;

/* Orders of a pipeline degree at most. */
#define MF_SEARCH_ORDERS 1100
typedef struct mf_search_listed {
    mf_order_point point;
    _Atomic(const mf_order_summary *) summary; /* NULL: not asked for yet */
} mf_search_listed;
/* A pipeline degree with both sides: what its layouts take at the end of a step, by ZeRO levels. */
#define MF_SEARCH_ZEROS 16
typedef struct mf_search_stages {
    mf_search_known head;
    mf_family_bound_fixed fixed[2]; /* merged schedules: [1] */
    int zeros;
    mf_zero_point zero[MF_SEARCH_ZEROS];
    double reduce_s[MF_SEARCH_ZEROS], gather_s[MF_SEARCH_ZEROS]; /* of a main layer */
} mf_search_stages;

/* Layer times of an attention and an expert side. `times` borrows its hulls and choices from the
 * table of kept figures, or from `hull` and `choices` here. */
typedef struct mf_search_times {
    mf_layer_times times;
    mf_family_bound_hull hull[2];
    mf_family_bound_choices choices;
} mf_search_times;

/* Number of orders of an attention side. */
typedef struct mf_search_count {
    int32_t all, of[MF_PASS_MODES]; /* by pass mode, of the schedules that a search looks at */
} mf_search_count;

/* Data that all tasks share and that does not change while they run (except caches with locks). */
typedef struct mf_search_context {
    mf_space space;
    const mf_evaluator *evaluator;
    mf_block_costs *costs;
    mf_order_book *orders; /* their summaries, with these: */
    int layers, others;
    int kinds; /* of main layers */
    int64_t denses, experts, sides;
    mf_dense_point *dense;
    mf_search_count *order_count; /* [denses] */
    mf_expert_point *expert;      /* every (EP, ETP, dispatcher) once; pp not used */
    mf_search_side *side;
    pthread_mutex_t lock; /* of writers of `known` */
    mf_pool pool;         /* memory of its entries */
    _Atomic(mf_search_known *) known[MF_SEARCH_KNOWN];
    pthread_mutex_t path_lock[MF_SEARCH_PATH_LOCKS]; /* list i: [i % MF_SEARCH_PATH_LOCKS] */
    mf_search_path_set *paths[MF_SEARCH_BUCKETS];
    const volatile int *cancel;
    mf_milp_fault fault;
} mf_search_context;

/* The result of working on one node. */
typedef struct mf_search_outcome {
    int64_t seen; /* set before: outcomes that were merged when the task started */
    mf_status status;
    mf_err err;
    mf_search_node *child; /* new families, or the node itself again with a better key */
    int64_t children, allocated;
    int64_t priced, simulated, milps, milp_failed;
    int64_t work_ns;           /* counted, of one core, */
    int64_t blocks_ns;         /* of it for blocks that nothing before had asked for */
    bool evaluated;            /* a layout was bounded with costs of its own */
    bool tried;                /* one that was to be tried fits: it may be compared */
    bool cut;                  /* an improvement of a plan used all of its effort */
    mf_search_path_set *paths; /* found on the way; owned */
    mf_search_path_set *proof; /* the same */
    bool found;
    mf_search_found plan; /* last: set where found alone */
} mf_search_outcome;

/* Costs come from q, summaries of orders from `orders`; both are borrowed. */
mf_status mf_search_context_init(mf_search_context *w, mf_block_costs *q, mf_order_book *orders,
                                 const mf_space *s, mf_err *e);
void mf_search_context_clear(mf_search_context *w);

/* Families of the first level. */
mf_status mf_search_start(mf_search_context *w, mf_search_outcome *out, mf_err *e);
typedef struct mf_search_aim {
    double best_s;   /* the fastest plan so far */
    double target_s; /* bounds at or above are good enough */
    double keep_s;   /* plans at or above are of no interest */
    int64_t most_us; /* counted, that a tree or a local search may take; 0 = any */
    bool wants_plan; /* any is of use: none is known, or few layouts were tried */
} mf_search_aim;
/* Works on one node; drops families at or above the aim's best_s. Thread-safe. */
void mf_search_split(mf_search_context *w, const mf_search_node *n, const mf_search_aim *aim,
                     mf_search_outcome *out);
/* The same, of a node of level PIPELINE, PASS_MODE or ORDER. */
void mf_search_split_pipeline(mf_search_context *w, const mf_search_node *n,
                              const mf_search_aim *aim, mf_search_outcome *out);
void mf_search_split_pass_mode(mf_search_context *w, const mf_search_node *n,
                               const mf_search_aim *aim, mf_search_outcome *out);
void mf_search_split_order(mf_search_context *w, const mf_search_node *n, const mf_search_aim *aim,
                           mf_search_outcome *out);
/* Moves positions of a plan as long as its simulated step becomes shorter: out->plan, and
 * out->found where it did. Errors: MF_NOMEM, and as the evaluator reports. */
mf_status mf_search_improve_plan(mf_search_context *w, const mf_search_found *plan, int64_t most_us,
                                 mf_search_outcome *out, mf_err *e);
void mf_search_refine(mf_search_context *w, mf_search_node *n, const mf_search_aim *aim,
                      mf_search_outcome *out);

/* The layout of a node of level LAYOUT or deeper. */
mf_layout mf_search_layout(const mf_search_context *w, const mf_search_node *n);
/* Number of layouts of a family. */
int64_t mf_search_family(const mf_search_context *w, const mf_search_node *n);
/* Summary of a layout's order, made when it is first asked for. */
mf_status mf_search_order(mf_search_context *w, const mf_layout *l, const mf_order_summary **out,
                          mf_err *e);

/* Rates of whole layers for the sides of l, the way that its order plays passes, and its ZeRO
 * levels. exact: with what memory costs, as simulated. reduce_s and gather_s are left at 0. */
mf_status mf_search_times_of(mf_search_context *w, const mf_layout *l, bool exact,
                             mf_search_times *out, mf_err *e);
/* Figures of l's pipeline degree with both sides, where ZeRO shards nothing; layer: parameters of a
 * main layer. */
void mf_search_stages_of(mf_search_context *w, const mf_layout *l, const mf_param_count *layer,
                         mf_search_stages *out);
/* Adds the end of the step at the ZeRO levels of l, by position, and what passes lose to its
 * reductions and gathers. */
void mf_search_add_own(mf_search_context *w, const mf_layout *l, mf_layer_times *r);
/* Costs at the ZeRO levels of l that no assignment changes, the end of the step for all positions
 * included. */
mf_family_bound_fixed mf_search_fixed_of(mf_search_context *w, const mf_layout *l,
                                         const mf_layer_times *r);
/* Orders of l's pipeline degree and micro-batches; MF_SEARCH_ORDERS at most. */
mf_status mf_search_orders_of(mf_search_context *w, const mf_layout *l, mf_search_listed **out,
                              int *count, mf_err *e);
mf_family_bound_fixed mf_search_fixed(const mf_search_context *w, const mf_layout *l);
/* Finds the figures kept under a key; NULL: there are none. */
void *mf_search_find(const mf_search_context *w, const mf_search_key *key);
/* Adds figures that other threads find from now on. The caller holds the lock. */
void mf_search_publish(mf_search_context *w, const mf_search_key *key, mf_search_known *x);
void mf_search_known_clear(mf_search_context *w);

/* Bound by family figures of a node of level LAYOUT, with the paths that are known by now; at or
 * above the aim's target it may be lower than it could be. */
double mf_search_bound_again(mf_search_context *w, const mf_search_node *n,
                             const mf_search_aim *aim, mf_search_outcome *out);
/* Paths kept for a layout's order after `from` outcomes were merged, by the time that `seen` were,
 * the latest first: layouts of one order may differ in what bounds them (compute, exchanges,
 * memory). Returns how many sets. */
int mf_search_path_sets_of(mf_search_context *w, const mf_layout *l, int64_t from, int64_t seen,
                           const mf_path_set *out[MF_PATH_SETS]);
/* Likewise proofs of trees. */
int mf_search_proofs_of(mf_search_context *w, const mf_layout *l, int64_t seen,
                        const struct mf_split_proof *out[MF_PROOFS]);
void mf_search_path_set_free(mf_search_path_set *x);
/* Keeps paths for their order, for tasks that start from now on; takes them over. No task that
 * runs has seen less than `oldest`. */
void mf_search_keep_path_set(mf_search_context *w, mf_search_path_set *paths, int64_t oldest);

/* Appends a child; on lack of memory sets out->status and returns false. */
bool mf_search_add(mf_search_outcome *out, const mf_search_node *n);
/* Appends a child with a key of bound_s, raised to its parent's; drops one at or above best_s. */
void mf_search_push(mf_search_outcome *out, mf_search_node *child, const mf_search_node *parent,
                    double bound_s, double best_s);

/* The whole search (search.c), on an evaluator: what mf_planner_search runs. */
typedef struct mf_search_request {
    const mf_evaluator *evaluator;
    mf_block_costs *costs; /* of that evaluator, shared with other searches; NULL = its own */
    mf_order_book *orders; /* shared with other searches; NULL = its own */
    bool lowers;           /* its blocks are lowered and priced, which is counted */
    mf_space space;
    int threads, top;
    int flight; /* tasks in flight at most; 0 = MF_TASKS_IN_FLIGHT. Fewer keep fewer threads busy
                 * and work less for nothing */
    bool ranks; /* runners-up are looked for after the best plan is proven, with half as much effort
                 * again: the fastest of other degrees, each with its own best assignment */
    double gap;
    int64_t
        budget; /* work at most, in counted microseconds; 0 = the default, negative = no limit */
    int64_t unfound;  /* work at most without a plan: 0 = the budget or MF_FIRST_PLAN_US, if that is
                       * more; negative = no limit */
    int64_t patience; /* counted microseconds without a narrower gap; 0 = any */
    double known_s;   /* of a plan from elsewhere: only faster ones are looked for; 0 = none */
    const mf_known_plan *start; /* [starts] plans from elsewhere, simulated at first */
    int starts;
    const volatile int *cancel;
    mf_milp_fault fault;
    /* One layout of every combination of degrees, in the order that needs least memory: *out
     * [*count], to be freed. Asked for once, on any thread, if no plan was found by `fits_work`
     * counted microseconds: bounds tell little where memory decides. NULL = it is not asked for. */
    mf_status (*list_fit_candidates)(void *user, mf_layout **out, int64_t *count, mf_err *e);
    /* Gives such a layout the choices that need least; *fits: split evenly, with its own memory
     * choice in every layer. On any thread, one at a time. */
    mf_status (*judge_fit_candidate)(void *user, mf_layout *l, bool *fits, mf_err *e);
    int64_t fits_work; /* 0 = the default */
    int64_t open_work; /* after which open layouts are tried where the gap is wide; 0 = the default
                        */
    /* one call at a time, on any thread */
    void (*progress)(void *user, double best_s, double bound_s, int64_t priced, int64_t milps);
    void *user; /* of these three */
} mf_search_request;

/* Simulates the fastest of the layouts that r->list_fit_candidates yields and
 * r->judge_fit_candidate lets through, evenly split, and gives what fits to `keep`. Layouts of the
 * fastest degrees among them, in every order and at all ZeRO levels, become children of `out`, of
 * level TRY and with key_s: those of least bound (primal_heuristics.c). */
typedef void mf_search_keep(void *user, const mf_search_found *f);
mf_status mf_search_try_fits(mf_search_context *w, const mf_search_request *r, double key_s,
                             double best_s, mf_search_keep *keep, void *user,
                             mf_search_outcome *out, mf_err *e);

/* Simulates the request's plans from elsewhere and gives those that fit to `keep`. One that is no
 * layout of the model's is left out. */
mf_status mf_search_begin_with(const mf_search_request *r, mf_search_keep *keep, void *user,
                               mf_search_outcome *out, mf_err *e);

/* Nodes that are open, in two lists; those that are bounded below best_s count. */
typedef struct mf_search_open {
    const mf_search_node *list[2];
    int64_t count[2];
    double best_s, target_s; /* of those at or above target_s few are tried */
} mf_search_open;

/* Layouts of a plan's degrees become such children: those of least bound. */
mf_status mf_search_try_near(mf_search_context *w, const mf_search_found *found, double key_s,
                             mf_search_outcome *out, mf_err *e);
/* Of open layouts, and of layouts in open families, two of all degrees and ways to play (that of
 * least bound, and that of least memory) become such children: those of least bound. */
mf_status mf_search_try_open(mf_search_context *w, const mf_search_open *open, double key_s,
                             mf_search_outcome *out, mf_err *e);

typedef struct mf_search_report {
    int count;
    mf_search_found *found; /* [count] best first, of different degrees each; owned */
    mf_search_stats stats;  /* but for wall_s, words on the space, and its limit */
} mf_search_report;

mf_status mf_search_run(const mf_search_request *r, mf_search_report *out, mf_err *e);
void mf_search_report_clear(mf_search_report *r);

#endif
