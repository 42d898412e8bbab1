/* step_engine.h - private to the step engine (step.c, step_chunk.c, step_end.c).
 *
 * Every rank has a compute stream on which blocks follow one another, a host that runs ahead of it
 * until the step ends, and a step-end stream (parameter gathers, gradient reductions). Ranks of
 * an EP group wait for their slowest at the end of a block that exchanges tokens; the other groups
 * of a stage need no meeting of their own, since every EP group sees the same loads.
 */
#ifndef MF_SIMULATOR_STEP_ENGINE_H
#define MF_SIMULATOR_STEP_ENGINE_H

#include "simulator/step.h"
#include "simulator/times.h"

/* A moment, and the same with every price on the way to it at the low or high end of its band. */
typedef struct mf_when {
    double s, low_s, high_s;
} mf_when;

/* One rank. */
typedef struct mf_step_rank {
    mf_when free;                /* compute stream */
    mf_when step_end;            /* step-end stream, if nothing ran beside it from now on */
    double host_s;               /* host clock: when all so far is issued */
    double began_s;              /* its last block */
    double sent_s[2];            /* when the last message forward, backward has left */
    double class_s[MF_BD_COUNT]; /* sums to free.s */
    double busy_s;
} mf_step_rank;

/* One step of a chunk's pass: a block, or a pair, at its position, with its time on each rank of an
 * EP group (or one time when all have the same load). */
typedef struct mf_chunk_step {
    int position, position2;
    unsigned passes, own;       /* own: MF_SIM_... */
    bool exchanges;             /* tokens travel in the EP group */
    const mf_block_time **time; /* [loads] */
    /* [loads] where weight gradients are those of the first micro-batch; behind the above */
    const mf_block_time **anew;
} mf_chunk_step;

typedef struct mf_chunk_play {
    int n;
    mf_chunk_step *step; /* [n] in order of play */
    double offload_s;    /* copies to or from the host that no block hides, above what is in the
                            times of the blocks that they belong to */
} mf_chunk_play;

typedef struct mf_step_engine {
    const mf_cost *cost;
    const mf_software *software;
    const mf_program *p;
    const mf_schedule *s;
    const mf_step_options *o;
    mf_err *e;
    mf_status status; /* first failure */
    mf_times *times;
    int64_t ranks;        /* per stage: 1, or all */
    int64_t loads;        /* different loads in an EP group: 1, or EP */
    double *load;         /* [positions][loads] routed rows over balanced */
    int64_t *next;        /* [stages] event to play */
    mf_step_rank *rank;   /* [stages][ranks] */
    mf_chunk_play **play; /* [stages][kinds of event]: made when first needed */
    int64_t kinds;
    mf_when **in[2];  /* [vstage][micro-batch]: [ranks] input of F, of B; NULL = not there yet */
    mf_price send[2]; /* forward, backward */
    mf_price send_states[2];
    mf_price *reduce[2]; /* [positions] dense, expert; time 0 = none */
    mf_price *gather[2];
    double *gather_behind_s; /* [positions] gathers of the stage behind this position's */
    bool overlap_dp, overlap_pp;
    int64_t events, ops;
} mf_step_engine;

static inline mf_step_rank *mf_step_rank_of(const mf_step_engine *g, int64_t stage, int64_t r) {
    return &g->rank[stage * g->ranks + r];
}

/* Lets a rank wait; no effect when `when` is past. */
void mf_step_wait(mf_step_rank *k, mf_when when, mf_breakdown_kind why);
/* Lets time pass on a rank's compute stream. */
void mf_step_pass(mf_step_rank *k, double time_s, double low_s, double high_s);
void mf_step_observe(mf_step_engine *g, const mf_block_instance *i);

/* step_chunk.c: loads of every position; the passes of an event on all ranks of a stage. */
mf_status mf_step_loads(mf_step_engine *g);
void mf_step_chunk(mf_step_engine *g, int64_t stage, int64_t event);
void mf_step_chunks_clear(mf_step_engine *g);

/* step_end.c: parameter gathers, gradient reductions, gradient norm and optimizer. */
mf_status mf_step_end_price(mf_step_engine *g);
void mf_step_gathers(mf_step_engine *g);
void mf_step_reduce(mf_step_engine *g, int64_t stage, int64_t r, int position);
void mf_step_optimizer(mf_step_engine *g);

#endif
