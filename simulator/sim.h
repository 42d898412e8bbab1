/* sim.h - plays a step program against time.
 *
 * Each different block is simulated once for its passes and its neighbours, op by op: the host
 * issues ops in order, an op starts when its inputs are there, its stream is free and the host has
 * issued it, and streams share links and SMs. Then the pipeline is played block by block over the
 * schedule of every stage. The result is the same, because blocks of one rank only meet at the
 * boundaries of their compute streams (a test compares it with a play op by op). Gradient
 * reductions, parameter gathers and sends run beside the blocks.
 */
#ifndef MF_SIMULATOR_SIM_H
#define MF_SIMULATOR_SIM_H

#include "core/memory/memory.h"
#include "core/program/lower.h"
#include "core/schedule/schedule.h"
#include "costmodel/cost.h"

#include <stdio.h>

/* The speed of a collective of the step's end beside a block, over its speed alone: it would fill
 * `share` of a link, of which the block fills `used`. The block goes first. */
static inline double mf_sim_link_rate(double share, double used) {
    if (!(share > 0 && used + share > 1)) {
        return 1;
    }
    const double rate = (1 - used) / share;
    return rate < 0.05 ? 0.05 : rate > 1 ? 1 : rate;
}

/* --- one block -------------------------------------------------------------------------------- */

/* Does an op run during the neighbouring block, if there is one, without waiting for anything in
 * it?
 */
static inline bool mf_sim_detached(const mf_layout *l, const mf_op *op) {
    if (op->stream == MF_STREAM_DP) {
        return (l->overlap & MF_OVERLAP_DP) != 0;
    }
    return op->stream == MF_STREAM_D2H || (op->flags & MF_OPF_PREFETCH) != 0;
}

#define MF_BREAKDOWN_MAP(X)                                                                        \
    X(COMPUTE, "compute")                                                                          \
    X(RECOMPUTE, "recompute")                                                                      \
    X(TP, "exposed_tp")                                                                            \
    X(CP, "exposed_cp")                                                                            \
    X(EP, "exposed_ep")                                                                            \
    X(PP, "exposed_pp")                                                                            \
    X(DP, "exposed_dp")                                                                            \
    X(BUBBLE, "bubble")                                                                            \
    X(OPTIMIZER, "optimizer")                                                                      \
    X(HOST, "host")                                                                                \
    X(OFFLOAD, "offload")
typedef enum mf_breakdown_kind {
#define X(name, text) MF_BD_##name,
    MF_BREAKDOWN_MAP(X)
#undef X
        MF_BD_COUNT
} mf_breakdown_kind;

typedef struct mf_op_time {
    uint8_t side; /* merged pairs: 0 forward block, 1 backward block */
    int16_t op;
    double start_s, end_s; /* from the start of the block */
    double host_s;         /* when the host had issued it */
} mf_op_time;

typedef struct mf_block_time {
    double gpu_time_s; /* until the last op ends, with the host far ahead */
    double time_s;     /* the same if the host starts with the block; >= gpu_time_s */
    double low_s,
        high_s;       /* band of gpu_time_s: the sum of the bands of the ops on the critical path */
    double compute_s; /* part of gpu_time_s in which the compute stream runs */
    double host_s;    /* host time to issue everything; <= time_s */
    double class_s[MF_BD_COUNT];     /* gpu_time_s by class (no bubble; host: synchronisation) */
    double link_s[MF_LINK_HOST + 1]; /* seconds of full use of each mf_link_kind */
    int nops;
    mf_op_time *op; /* [nops] if asked for, else NULL; start and end with the host far ahead */
} mf_block_time;

/* Simulates passes (MF_PASS_* mask) of a block. beside: the backward block of a merged pair, or
 * NULL; with it, the forward pass of b and all backward passes of `beside` are simulated. load:
 * routed rows over the balanced number. keep_ops: fills op[] (free it with mf_block_time_clear).
 *
 * The block is one in a run of equal blocks. Ops that may run during the neighbouring block
 * (prefetched gathers, copies to the host, overlapped gradient reductions of ZeRO-2/3) start with
 * the block and have to end with it, and nothing in the block waits for them. If the program's
 * copies stay in their pass, the time to copy to and from staging buffers on the device is added,
 * and `passes` can say that the block has no neighbour for its copies (MF_SIM_LAST, MF_SIM_FIRST).
 * If the GPU starts a block at g and the host starts to issue it at h, it ends at max(g +
 * gpu_time_s, h + time_s).
 */
enum {
    MF_SIM_LAST = 1 << 16, /* in a forward pass: copies start when their tensors are made */
    MF_SIM_FIRST = 1 << 17 /* in a backward pass: ops that read copies wait for them */
};
mf_status mf_sim_block(const mf_cost *cost, const mf_layout *l, const mf_block *b, unsigned passes,
                       const mf_block *beside, double load, bool keep_ops, mf_block_time *out,
                       mf_err *e);
void mf_block_time_clear(mf_block_time *t);
/* Finds gpu_time_s alone, in half the time; searches use it. */
mf_status mf_sim_block_gpu_s(const mf_cost *cost, const mf_layout *l, const mf_block *b,
                             unsigned passes, const mf_block *beside, double load, double *out,
                             mf_err *e);

/* A lower bound of gpu_time_s: the critical path of the same ops, each as fast as alone. It is
 * never below the sum of any stream (a property test checks that). 0: out of memory. */
double mf_sim_block_bound(const mf_cost *cost, const mf_layout *l, const mf_block *b,
                          unsigned passes, double load);

/* --- the step --------------------------------------------------------------------------------- */

/* How rows are routed: which share of them each rank of an EP group gets. */
typedef struct mf_routing {
    enum { MF_ROUTING_BALANCED, MF_ROUTING_ZIPF, MF_ROUTING_HISTOGRAM } kind;
    double zipf_s;           /* exponent */
    uint64_t seed;           /* decides which experts are hot in each layer */
    int64_t layers, experts; /* HISTOGRAM: counts[layer * experts + e] */
    double *counts;
    double
        most; /* rows that an expert takes, over the balanced number; the rest is dropped; 0: all */
    struct mf_routing_table *table; /* what mf_routing_tabulate knows; copies borrow it */
} mf_routing;
#define MF_ROUTING_MAX_EXPERTS 4096
void mf_routing_init(mf_routing *r); /* balanced */
/* "balanced", "zipf:S" (0 <= S <= 8), or the path of a file of counts per expert: a JSON array with
 * one array for each MoE layer, or CSV with one line for each. Errors: MF_USAGE; MF_INPUT with
 * file:line:col; MF_NOMEM. *out is initialised and is to be cleared, also after an error. */
mf_status mf_routing_parse(const char *text, mf_routing *out, mf_err *e);
void mf_routing_clear(mf_routing *r);
/* Checks that a file has a count for each expert of the model, and that the model has few enough
 * experts for a Zipf law. Errors: MF_INPUT. */
mf_status mf_routing_check(const mf_routing *r, const mf_model *m, mf_err *e);
/* Makes a table of mf_routing_max_load for the model's MoE layers and every EP that divides its
 * experts, since a search asks for each of them thousands of times; answers are the same without
 * the table. Questions about another model, or to a copy whose members have changed, do not use it.
 * Out of memory: there is no table. No other thread may read *r during the call. */
void mf_routing_tabulate(mf_routing *r, const mf_model *m);
/* Sets load[ep] to the routed rows of every EP rank over the balanced number. Their mean is 1, or
 * less if `most` drops rows (of balanced rows it drops none). layer: MoE layers count from 0, MTP
 * depths follow the last; a file with fewer layers starts over. */
void mf_routing_loads(const mf_routing *r, const mf_model *m, int64_t ep, int64_t layer,
                      double *load);
/* The largest of these loads, and at least 1 even if every rank drops rows: the search's bounds
 * rely on that. */
double mf_routing_max_load(const mf_routing *r, const mf_model *m, int64_t ep, int64_t layer);

typedef struct mf_sim_options {
    bool every_rank;           /* all W ranks instead of one per stage */
    const mf_routing *routing; /* NULL = balanced */
    FILE *trace;               /* Chrome trace JSON is streamed here; NULL = none */
    int64_t trace_ranks;       /* the first so many played ranks; 0 = the first of each stage */
    int64_t trace_ops; /* most slices of ops in it, as mf_trace_open has them; 0 = 200,000 */
    const volatile int *cancel; /* set non-zero to stop with MF_INTERRUPTED; may be NULL */
    bool judge;                 /* only find out whether the memory plan fits (mf_memory_judge) */
    bool sums;                  /* only count the memory plan, without gaps (mf_memory_sums) */
} mf_sim_options;

typedef struct mf_sim_stage {
    double busy_s, idle_s; /* compute stream */
    double breakdown_s[MF_BD_COUNT];
    double end_s;
} mf_sim_stage;

typedef struct mf_sim_memory_sample {
    double time_s;
    double bytes;
} mf_sim_memory_sample;

typedef struct mf_sim {
    double step_time_s, low_s, high_s;
    double breakdown_s[MF_BD_COUNT]; /* of the critical rank; sums to step_time_s */
    int64_t critical_stage;          /* of the rank whose compute stream is busiest */
    int64_t critical_rank;           /* its place in the stage; 0 when one rank stands for all */
    int64_t stages;
    mf_sim_stage *stage; /* [stages]; of the busiest rank when all are played */
    int64_t events;      /* block instances played, for events per second */
    int64_t ops;         /* op instances in them */
    mf_memory *memory;   /* static memory plan of the same program */
    int64_t samples;     /* memory over time of the peak stage, a sample for each event's start */
    mf_sim_memory_sample *sample;
    double tokens_per_s_per_gpu, model_tflops_per_gpu, mfu, mfu_bf16;
    double peak_flops, peak_bf16_flops; /* behind mfu and mfu_bf16 */
} mf_sim;

mf_status mf_sim_step(const mf_cost *cost, const mf_program *p, const mf_sim_options *o,
                      mf_sim **out, mf_err *e);
void mf_sim_destroy(mf_sim *s);

/* Which share of a copy of optimizer states a step makes: all of it, or gradients and parameters
 * alone under a program that updates states on the host's CPU. */
double mf_sim_host_copied(const mf_software *s, const mf_op *op);

const char *mf_breakdown_text(mf_breakdown_kind k);

#endif
