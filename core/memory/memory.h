/* memory.h - the static memory plan of a program: one number per stage and where it comes from.
 *
 * counted = persistent + context + inputs + communication buffers + boundary + gathered weights +
 * the maximum over schedule events, and over the blocks inside an event, of (saved + held for
 * weight gradients + gradients not yet reduced into a ZeRO-2/3 shard + workspace and offload
 * staging of the blocks that run). Saved tensors of the running micro-batch pile up block by block
 * in forward and go block by block in backward. Chunks do not peak at the same time: the maximum of
 * the sum is taken.
 *
 * What comes and goes has places that do not move (core/memory/memory_place.h). Where no
 * arrangement was found that needs no more than the bytes in use together, the rest is a kind of
 * its own, gaps; peak = counted + gaps. This is the size of the executor's arena, to the byte, and
 * the number that the planner, the simulator and every report give.
 */
#ifndef MF_CORE_MEMORY_H
#define MF_CORE_MEMORY_H

#include "core/program/lower.h"
#include "core/schedule/schedule.h"

#define MF_MEMORY_MAP(X)                                                                           \
    X(WEIGHTS, "weights")                                                                          \
    X(GRADIENTS, "gradients")                                                                      \
    X(OPTIMIZER, "optimizer")                                                                      \
    X(ACTIVATIONS, "activations") /* saved, in flight, at the peak */                              \
    X(HELD, "held_for_wgrad")                                                                      \
    X(BOUNDARY, "boundary")                                                                        \
    X(WORKSPACE, "workspace")                                                                      \
    X(GATHERED, "gathered_weights")                                                                \
    X(COMM, "comm_buffers")                                                                        \
    X(INPUTS, "inputs") /* the batch, tables of positions and angles, sums */                      \
    X(CONTEXT, "context")                                                                          \
    X(GAPS, "gaps") /* of the arrangement */
typedef enum mf_memory_kind {
#define X(name, text) MF_MEM_##name,
    MF_MEMORY_MAP(X)
#undef X
        MF_MEM_COUNT
} mf_memory_kind;

typedef struct mf_memory_stage {
    double kind_B[MF_MEM_COUNT]; /* when most is in use; sums to peak_B */
    double peak_B;
    double host_B;              /* activations and optimizer states in host memory, at their peak */
    int64_t peak_event;         /* index into the stage's schedule events */
    double most_B, host_most_B; /* no arrangement takes more: everything at its own maximum */
} mf_memory_stage;

typedef struct mf_memory {
    int64_t stages;
    mf_memory_stage *stage; /* [stages] */
    double peak_B;          /* largest stage */
    int64_t peak_stage;
    double capacity_B, usable_B; /* of the cluster's GPU; usable = capacity x (1 - reserve) */
    bool fits;
    int64_t sure_stages; /* mf_memory_fit: stages before it fit, gaps counted */
    int64_t looks;       /* at pairs of tensors, which arrangements took (core/memory/arrange.h) */
} mf_memory;

mf_status mf_memory_plan(const mf_program *p, const mf_schedule *s, mf_memory **out, mf_err *e);
/* Less of it, in less time. peak: its peak_B, peak_stage, largest host_B and fits; stages that do
 * not decide these are counted without gaps. judge: its fits; everything else may lack gaps. */
mf_status mf_memory_peak(const mf_program *p, const mf_schedule *s, mf_memory **out, mf_err *e);
mf_status mf_memory_judge(const mf_program *p, const mf_schedule *s, mf_memory **out, mf_err *e);
/* In even less time: fits, and where it does not fit all that judge gives. For what fits, the gaps
 * may be larger than a better arrangement's. The caller knows that the first sure_stages
 * stages fit (an earlier call said so, and only later stages have changed since): they are not
 * arranged again. */
mf_status mf_memory_fit(const mf_program *p, const mf_schedule *s, int64_t sure_stages,
                        mf_memory **out, mf_err *e);
/* Sums alone, without gaps: what fits by them may not fit with gaps. */
mf_status mf_memory_sums(const mf_program *p, const mf_schedule *s, mf_memory **out, mf_err *e);
void mf_memory_destroy(mf_memory *m);

/* One stage without gaps: a lower bound for every arrangement. */
mf_status mf_memory_count(const mf_program *p, const mf_schedule *s, int64_t stage,
                          mf_memory_stage *out, mf_err *e);

/* Memory over time of a stage: bytes[i] while schedule event i runs (s->count[stage] entries), gaps
 * not counted. */
mf_status mf_memory_walk(const mf_program *p, const mf_schedule *s, int64_t stage, double *bytes,
                         mf_err *e);

/* Scratch, in FP32 elements, of the rank that needs most to sum a table's gradient over the
 * `copies` stages that hold it: its part of the gradient, which it sends to each other copy and
 * receives from each, and their sum. `table`: the table's elements on a rank; `dense`: all elements
 * of its position but those of experts. 0 where ranks hold whole gradients: these are summed in
 * place. */
int64_t mf_memory_table_sum(const mf_layout *l, int64_t copies, int64_t table, int64_t dense);

/* Bytes of the CUDA context and of the workspaces of cuBLASLt and cuDNN, part of every stage's
 * peak. CPU ranks have none of it; their stages' context is the scratch of the kernels
 * (core/memory/memory_inputs.h). */
double mf_memory_context_B(const mf_cluster *c, const mf_layout *l);
/* Bytes that NCCL takes for the communicators of a layout, the same on all stages
 * (core/memory/comm_memory.c). One GPU and CPU ranks: none. */
double mf_memory_comm_B(const mf_cluster *c, const mf_layout *l);
/* Likewise of the communicators that a stage has beside them, for sums at the end of a step: over
 * copies of K and V heads, and of tables that other stages hold, too. */
double mf_memory_sums_comm_B(const mf_cluster *c, const mf_layout *l, const mf_step_end *end);
/* Bytes of the communicator that sums one table held by `copies` stages. */
double mf_memory_table_comm_B(const mf_cluster *c, const mf_layout *l, int64_t copies);
/* Boundary tensors that a stage reserves memory for: input and output of the running block (of a
 * merged pair, both), and messages between virtual stages. */
double mf_memory_boundaries(const mf_layout *l);
/* Blocks whose gathered weights a stage reserves memory for: the one that runs (of a merged pair,
 * both) and the one prefetched. */
double mf_memory_gathers(const mf_layout *l);

/* Gradients of a block that are kept whole until they are reduced into ZeRO-2/3 shards. */
double mf_memory_unreduced_B(const mf_layout *l, const mf_block *b);
/* The same for that many elements. */
double mf_memory_unreduced_of_B(const mf_layout *l, int64_t dense, int64_t expert);

/* As files and JSON name it; */
const char *mf_memory_text(mf_memory_kind k);
/* and people: "p2p", "scratch", "held for wgrad". */
const char *mf_memory_name(mf_memory_kind k);

#endif
