/* order.h - the graph of a schedule's passes: how much is in flight, how long warm-up and end take,
 * and the longest path through all stages.
 *
 * Passes of one stage follow one another in the schedule's order; a forward pass waits for the
 * previous virtual stage's, a backward pass for the next one's; a boundary tensor takes send_s
 * between stages and holds its sender for hold_s. Parameters are gathered from the start of the
 * step, gradients reduced from the last micro-batch on, beside compute, which loses a share of
 * their time (simulator/step_chunk.c); the host issues everything of a stage one after the other. A
 * step takes at least the longest path through this graph. Each path is a linear form in the
 * times of the virtual stages, which is what makes it a row of an integer program: the path that
 * is longest for one assignment bounds every other one too.
 *
 * Weight gradients of the first micro-batch take ANEW less (simulator/anew.h). The fixed end of the
 * step (mf_step_end_cost.fixed_s) is charged less by the ANEW of all virtual stages, so every bound
 * that counts no more still holds; a path adds it again for each virtual stage whose first weight
 * gradients it does not pass through.
 *
 * Losses to collectives (mf_order_losses) make means of paths. Take a pass that starts at S, some
 * events after a virtual stage's last backward pass, which left its stage free at E. Reductions run
 * until E + left at least. S >= E + after; a pass that starts at E + after loses `most`, and the
 * loss shrinks as S grows, as a concave function. So the pass ends no earlier than (1 - share) S +
 * share E
 * + its own time + min(most + share after, share left) for any share: a mean of two paths, whose
 * counts are fractions.
 *
 * The same holds at the start of the step, where gathers run until `gathered` at least: a first
 * forward pass of a stage that starts at S >= early ends no earlier than (1 - share) S + its own
 * time + min(most + share early, share gathered). Such a path counts no start_s.
 */
#ifndef MF_PLANNER_ORDER_H
#define MF_PLANNER_ORDER_H

#include "core/schedule/schedule.h"

/* What paths are made of: times of one micro-batch through a virtual stage, and of a step's end. A
 * merged pair takes at least sums of what cannot run side by side: F_PAIR + B_PAIR (compute and
 * what stays exposed, which backward passes count), PAIR_PORTION_F + PAIR_PORTION_B (the same,
 * counted by forward passes), F_EP + B_EP (exchanges). Either pass alone is no lower bound: in a
 * pair ops run in another order, and pairs that recompute have been half a per cent quicker. */
#define MF_ORDER_MAP(X)                                                                            \
    X(F)                                                                                           \
    X(B)                                                                                           \
    X(W)                                                                                           \
    X(F_PAIR)                                                                                      \
    X(B_PAIR)                                                                                      \
    X(PAIR_PORTION_F)                                                                              \
    X(PAIR_PORTION_B)                                                                              \
    X(F_EP)                                                                                        \
    X(B_EP)                                                                                        \
    X(F_HOST)                                                                                      \
    X(B_HOST)                                                                                      \
    X(W_HOST)                                                                                      \
    X(GATHER)      /* parameters of the virtual stage, before its first micro-batch */             \
    X(REDUCE)      /* gradients of the virtual stage, after its last micro-batch */                \
    X(GATHER_LOST) /* what the stage's passes lose to gathers beside them, at least */             \
    X(REDUCE_LOST) /* the same, to reductions */                                                   \
    X(OWN_LOST)    /* blocks of the last backward pass, to the reduction of the one before each */ \
    X(ANEW)        /* what weight gradients of the first micro-batch take less */                  \
    X(NORM)        /* after a stage's last pass, before all stages meet */                         \
    X(UPDATE)      /* after they have met */
typedef enum mf_order_part {
#define X(name) MF_ORDER_##name,
    MF_ORDER_MAP(X)
#undef X
        MF_ORDER_PARTS
} mf_order_part;

/* Events of a stage that may have reductions beside them: so many follow a virtual stage's last
 * backward pass, up to and with the next such pass. */
#define MF_ORDER_BEHIND 8
/* First forward passes of a stage, all of its first chunk, that may have gathers beside them. */
#define MF_ORDER_AHEAD 8

/* Least losses, whatever the assignment, of a path that passes through: */
typedef enum mf_order_loss {
    MF_LOSS_OWN,    /* what OWN_LOST counts too much: no reduction is before the first block */
    MF_LOSS_FIRST,  /* before the first of these reductions starts: its first block */
    MF_LOSS_LAST,   /* after the last of its gathers: the last block of its first forward pass */
    MF_LOSS_BEHIND, /* the event that follows on the stage, to those that are still under way; */
    /* the one behind it, and so on */
    MF_LOSS_AHEAD = MF_LOSS_BEHIND + MF_ORDER_BEHIND, /* the stage's first forward pass, to
                                                       * gathers; the second, and so on */
    MF_LOSS_KINDS = MF_LOSS_AHEAD + MF_ORDER_AHEAD
} mf_order_loss;

typedef struct mf_order_losses {
    double start_s;                /* every path from the start of the step, to parameter gathers */
    double share[MF_ORDER_BEHIND]; /* at which events behind are taken (see above); 0 = no losses */
    double *kind_s[MF_LOSS_KINDS]; /* [vstages] of the reductions, when nothing is waited for */
    double *left_s; /* [vstages] how long reductions run on at least when the last pass is done */
    double *after_s[MF_ORDER_BEHIND]; /* [vstages] after that an event behind starts at least */
    /* [vstages] left_s, and what passes up to that event hold them up: it has none beside it when
     * it starts so late */
    double *late_s[MF_ORDER_BEHIND];
    /* [vstages] that a first forward pass starts at least, */
    double *early_s[MF_ORDER_AHEAD];
    double *gathered_s[MF_ORDER_AHEAD]; /* that gathers end at least, held up by those before it, */
    double *ahead_share[MF_ORDER_AHEAD]; /* and at which it is taken (see above); 0 = no loss */
} mf_order_losses;
/* Doubles behind left_s, all of the above included. */
#define MF_ORDER_LOSS_DOUBLES(vstages)                                                             \
    ((size_t)(1 + MF_LOSS_KINDS + 2 * MF_ORDER_BEHIND + 3 * MF_ORDER_AHEAD) * (size_t)(vstages))

/* Times by virtual stage (those of NORM and UPDATE add up over the virtual stages of a stage). */
typedef struct mf_order_times {
    const double *part_s[MF_ORDER_PARTS]; /* [vstages]; NULL = 0 */
    double send_s, hold_s;
    double lost; /* share of GATHER and REDUCE that is in their _LOST */
    /* What a merged pair takes indeed, [stages][chunk of its forward][chunk of its backward]; NULL
     * = what it takes at least (then paths are exact rows, else only the time is). */
    const double *pair_s;
    const mf_order_losses *losses; /* NULL = none */
} mf_order_times;

/* A path, or mean of paths: how often it passes through what; its time is the sum of
 * count x time. */
typedef struct mf_order_path {
    double time_s;
    int vstages;
    double *count[MF_ORDER_PARTS]; /* [vstages]; one allocation with loss, */
    double *loss[MF_LOSS_KINDS];   /* [vstages] */
    double sends, holds;
    double beside; /* of the holds so many may have gathers or reductions beside them, which then
                    * cost passes hold_s x lost less */
    double starts; /* of it so much counts losses->start_s */
    double share[MF_ORDER_BEHIND];       /* losses->share that it was found with, */
    bool early;                          /* some loss[MF_LOSS_AHEAD + k] is counted */
    double *ahead_share[MF_ORDER_AHEAD]; /* [vstages] and losses->ahead_share of the passes that
                                          * loss[MF_LOSS_AHEAD + k] counts */
    double lost;        /* that it was found with: holds for layouts that lose no more */
    int32_t norm_stage; /* whose end the others wait for */
} mf_order_path;

/* Doubles behind count[0] that add up in a mean: counts and losses; shares follow. */
#define MF_ORDER_PATH_SUMS(vstages) ((size_t)(MF_ORDER_PARTS + MF_LOSS_KINDS) * (size_t)(vstages))
#define MF_ORDER_PATH_DOUBLES(vstages)                                                             \
    (MF_ORDER_PATH_SUMS(vstages) + (size_t)MF_ORDER_AHEAD * (size_t)(vstages))
/* What of a path's time no position adds, under any layout of its order: sends, holds, of which
 * `lost` is counted with gathers and reductions, losses, and tail_s. */
double mf_order_path_fixed_s(const mf_order_path *c, double tail_s, double send_s, double hold_s,
                             double lost, const mf_order_losses *losses);

mf_status mf_order_path_init(mf_order_path *c, int vstages, mf_err *e);
void mf_order_path_clear(mf_order_path *c);
/* *copy is initialised. Errors: MF_NOMEM. */
mf_status mf_order_path_copy(mf_order_path *copy, const mf_order_path *path, mf_err *e);

/* The graph of a schedule, sorted once; plays are linear in its events. */
typedef struct mf_order mf_order;
/* Errors: MF_NOMEM; MF_INTERNAL when the order deadlocks. */
mf_status mf_order_create(const mf_layout *l, const mf_schedule *s, mf_order **out, mf_err *e);
void mf_order_destroy(mf_order *o);
/* Number of events of all stages, all of which a play visits. */
int64_t mf_order_nodes(const mf_order *o);
/* Longest path. Uses buffers of the order: one thread at a time. */
void mf_order_longest(mf_order *o, const mf_order_times *t, mf_order_path *out);

/* An event behind a virtual stage's last backward pass (or weight gradients, when split). */
typedef struct mf_order_follow {
    int16_t v;    /* its virtual stage, of a merged pair the backward pass's; -1: none follows */
    uint8_t pass; /* mf_event_pass */
    bool last;    /* a virtual stage's last, in its turn: none is listed behind it */
} mf_order_follow;

/* What bounds need to know of an order. Saturated: taken from fewer micro-batches where more of
 * them change nothing. */
typedef struct mf_order_summary {
    int stages, chunks;
    int *rows;          /* [stages] in-flight vectors of a stage that are under no mean of others */
    int32_t *in_flight; /* [stages][MF_ORDER_ROWS][chunks] micro-batches of each chunk */
    int32_t *held;      /* the same: between B and W of a split backward */
    int32_t *warm_up;   /* [stages][chunks] forward passes before the first backward pass */
    mf_order_follow *follow; /* [vstages][MF_ORDER_BEHIND] */
    bool paired_end;         /* a last backward pass stands in a merged pair */
    /* Averages over the layers of a stage that holds k layers of the kind that counts and at most
     * `others` positions besides: no chunk is empty, so all but `others` chunks hold a layer each,
     * and the rest may stand where it serves. [stages][layers + 1] */
    int layers;
    float *flight;     /* least micro-batches in flight at the worst moment */
    float *warm_least; /* least passes in the warm-up */
    float *warm_most;  /* most */
} mf_order_summary;
#define MF_ORDER_ROWS 24
#define MF_ORDER_SPLIT_ROWS 192 /* of split schedules, before they are thinned out */

/* schedule(self, layout, ...) makes the schedule of a layout. *saturated (may be NULL): more
 * micro-batches than eight by stage would give the same. layers: most that a stage can hold.
 * Errors: MF_NOMEM and schedule's. */
typedef mf_status (*mf_order_schedule_fn)(void *self, const mf_layout *l, mf_schedule **out,
                                          mf_err *e);
mf_status mf_order_summarise(const mf_layout *l, mf_order_schedule_fn schedule, void *self,
                             int layers, int others, mf_order_summary *out, bool *saturated,
                             mf_err *e);
void mf_order_summary_clear(mf_order_summary *s);
/* Micro-batches of a chunk in flight in a row of a stage, and held for weight gradients. */
static inline int32_t mf_order_in_flight(const mf_order_summary *o, int stage, int row, int chunk) {
    return o->in_flight[(stage * MF_ORDER_ROWS + row) * o->chunks + chunk];
}
static inline int32_t mf_order_held(const mf_order_summary *o, int stage, int row, int chunk) {
    return o->held[(stage * MF_ORDER_ROWS + row) * o->chunks + chunk];
}
/* Micro-batches in flight of a chunk at its worst moment. */
double mf_order_most_in_flight(const mf_order_summary *o, int64_t stage, int64_t chunk);

#endif
