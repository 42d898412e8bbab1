/* evaluator.h - the table of functions through which the search gets costs of blocks and whole
 * steps.
 *
 * The search itself (spaces, bounds, integer programs, order of work) knows no GEMM and no link, so
 * its logic can be tested against a model small enough to be searched exhaustively.
 * mf_evaluator_init fills the table with lowering, cost model, memory plan and simulator. Every
 * function may be called from several threads at the same time.
 */
#ifndef MF_PLANNER_EVALUATOR_H
#define MF_PLANNER_EVALUATOR_H

#include "core/memory/memory.h"
#include "core/program/lower.h"
#include "core/schedule/schedule.h"
#include "planner/tuning/mechanisms.h"
#include "simulator/sim.h"

/* One pass of a block. */
typedef struct mf_pass_cost {
    double time_s;    /* simulated alone, the host infinitely ahead; only in exact costs */
    double path_s;    /* longest path of ops through streams and tensors until the compute stream is
                       * done, without contention. Of half a layer: only the part from its input, or
                       * until its output, so that the two halves add up to at most the layer */
    double bound_s;   /* the same, or the busiest stream's sum: never above time_s */
    double host_s;    /* host time to issue it */
    double sync_s;    /* device idle where the host has to see a result; part of the times above */
    double compute_s; /* compute stream busy */
    double ep_s;      /* expert-parallel stream busy */
    double network;   /* share of the network that it fills at least; only in exact costs */
} mf_pass_cost;

typedef struct mf_block_cost {
    mf_pass_cost f; /* forward */
    mf_pass_cost b; /* backward: recomputation, input gradient and, unless split, weight gradient */
    mf_pass_cost w; /* weight gradient when split, else zero */
    /* Time saved in a step's first micro-batch by weight gradients (simulator/anew.h), whatever the
     * memory choice: those of routed experts [1], all others [0]. */
    double anew_s[2];
    double flops; /* of all passes */
    double saved_B, held_B, offload_B, boundary_B, gather_B;
    double
        comm_B; /* dispatcher buffers and kernel scratch: a stage has the largest of its blocks' */
    double merged_comm_B; /* of these more under a schedule that merges passes; costs that
                           * mf_block_costs_get gives have it in comm_B */
    double compute_B; /* of comm_B, scratch of the compute stream, where a stage also packs what it
                       * sums over copies when a step ends; CPU ranks: 0 */
    double summed_B;  /* of these sums, the block's; CPU ranks: 0 */
    double local_f_B, local_b_B, local_w_B; /* workspaces of the three passes above */
    double alive_B; /* of an MTP depth that keeps everything: whatever it kept instead, the
                     * workspace of its backward pass would be no smaller; else 0 */
    mf_param_count params;
} mf_block_cost;

/* What is sure to be needed beside what passes keep, at the moments that rows of memory tell
 * (mf_order_in_flight): a forward pass has just run, and a backward pass, which runs whole, comes
 * next. Where weight gradients are split off, a row follows either pass, and W may come next. */
static inline double mf_block_sure_work_B(const mf_block_cost *q, bool split) {
    const double f_B = q->local_f_B, b_B = q->local_b_B;
    const double smaller_B = f_B < b_B ? f_B : b_B, larger_B = f_B < b_B ? b_B : f_B;
    return split ? smaller_B : larger_B;
}

/* Time from a stage's last pass to the end of the step: `norm` until all stages meet, then
 * `update`. Linear in the parameters that the stage holds, and never above the simulated time. */
typedef struct mf_step_end_cost {
    double fixed_s; /* whatever the stages hold */
    double exposed; /* share of gathers and reductions that passes wait for; 1 = nothing overlaps */
    double norm_dense_s, norm_expert_s, update_dense_s, update_expert_s; /* by parameter */
    double update_matrix_s; /* more by parameter of a dense matrix that is quantised */
} mf_step_end_cost;

/* Time that a block loses to gathers and reductions that run beside it. */
typedef struct mf_step_overlap {
    double lost; /* least share of their time that the block loses; 1: they do not run beside it */
    double network[2]; /* share of the network that gathers, reductions fill; 0: another link */
} mf_step_overlap;

/* Speed of a gather or reduction that fills so much of the network while a pass runs. */
static inline double mf_step_overlap_rate(double network, const mf_pass_cost *pass) {
    return mf_sim_link_rate(network, pass->network);
}

/* A step of one layout and assignment. */
typedef struct mf_step {
    bool fits;
    double time_s; /* simulated (also when it does not fit, unless only memory was asked for) */
    double peak_B; /* largest stage; with gaps of the arrangement if they could decide whether it
                      fits */
    double usable_B;
    int64_t stage;       /* the one that peaks */
    int64_t sure_stages; /* fit: stages before it fit, gaps of the arrangement counted */
    int64_t looks;       /* fit: at pairs of tensors, which arrangements took */
} mf_step;

typedef struct mf_evaluator_ops {
    /* exact: also time_s. Errors: MF_LAYOUT when the layout asks for what the model cannot give. */
    mf_status (*cost)(void *self, const mf_layout *l, const mf_block_key *key, bool exact,
                      mf_block_cost *out, mf_err *e);
    /* A forward block beside a backward block of another micro-batch (merged schedules). */
    mf_status (*pair)(void *self, const mf_layout *l, const mf_block_key *forward,
                      const mf_block_key *backward, double *time_s, mf_err *e);
    /* Time of one boundary tensor to the next stage, alone on its link, and how long it holds its
     * sender; 0 when PP is 1. */
    void (*send)(void *self, const mf_layout *l, double *send_s, double *hold_s);
    /* At the end of a step, for a block with these parameters: gradients reduced, parameters
     * gathered. */
    void (*step_comm)(void *self, const mf_layout *l, mf_param_count params, double *reduce_s,
                      double *gather_s);
    /* Time that a block with these parameters loses while gathers or reductions run. */
    mf_step_overlap (*beside)(void *self, const mf_layout *l, mf_param_count params);
    /* The end of a step. `all`: parameters of all stages together, on one rank. */
    mf_step_end_cost (*step_end)(void *self, const mf_layout *l, mf_param_count all);
    /* Least time of so many floating-point operations in any layer. */
    double (*flops_s)(void *self, const mf_layout *l, double flops);
    /* Bytes on every rank that do not depend on its blocks: context, communication buffers. */
    double (*fixed_B)(void *self, const mf_layout *l);
    /* Least bytes of scratch on the stages of embedding and head, to sum copies of a table over
     * stages. */
    double (*tables_B)(void *self, const mf_layout *l);
    /* Bytes of the communicators for these sums. */
    double (*tables_comm_B)(void *self, const mf_layout *l);
    /* Bytes of a block's gradient where ranks keep shards of sums: `whole`, from its backward pass
     * on until it is reduced; `scratch`, which a stage has for the largest of its blocks. 0: none.
     * params: all that the block computes gradients of. */
    void (*unreduced_B)(void *self, const mf_layout *l, mf_param_count params, double *whole,
                        double *scratch);
    /* Bytes a rank may use. */
    double (*usable_B)(void *self, const mf_layout *l);
    /* The simulated step and its memory. */
    mf_status (*step)(void *self, const mf_layout *l, const mf_assignment *a, mf_step *out,
                      mf_err *e);
    /* The memory plan alone; of what fits, its size may have gaps too many. The first sure_stages
     * stages are known to fit: those that an earlier call found, if only later ones have changed.
     */
    mf_status (*fit)(void *self, const mf_layout *l, const mf_assignment *a, int64_t sure_stages,
                     mf_step *out, mf_err *e);
    /* The simulated step; memory without the gaps of its arrangement. */
    mf_status (*play)(void *self, const mf_layout *l, const mf_assignment *a, mf_step *out,
                      mf_err *e);
    /* The memory plan alone, gaps of the arrangement left out: never more than with them, and much
     * quicker to find. */
    mf_status (*count)(void *self, const mf_layout *l, const mf_assignment *a, mf_step *out,
                       mf_err *e);
    /* The layout's schedule, as the simulator plays it. */
    mf_status (*schedule)(void *self, const mf_layout *l, mf_schedule **out, mf_err *e);
} mf_evaluator_ops;

typedef struct mf_evaluator {
    const mf_evaluator_ops *ops;
    void *self;
    const mf_model *model;
    mf_mechanisms without; /* mechanisms that are switched off */
    bool ends_differ;      /* a block with copies has other times as the last of its virtual stage
                            * (mf_block_key.at_end) */
} mf_evaluator;

typedef struct mf_block_cache mf_block_cache; /* planner/price/block_cache.h */

/* The real one. Everything is borrowed. */
typedef struct mf_evaluator_real {
    const mf_model *model;
    const mf_cost *cost;
    const mf_routing *routing; /* NULL = balanced */
    const volatile int *cancel;
    mf_block_cache
        *block_cache; /* of this model and cost; NULL = every block is made from scratch */
    mf_mechanisms without;
} mf_evaluator_real;
mf_evaluator mf_evaluator_init(mf_evaluator_real *real);

/* Effort counted for a simulated step of a layout, in nanoseconds. */
int64_t mf_evaluator_step_ns(const mf_layout *l);
/* Effort counted for a memory plan of so many positions, whose arrangements took `looks` (mf_step).
 */
int64_t mf_evaluator_memory_ns(int64_t positions, int64_t looks);

#endif
