/* train.h - a training run: weights from a checkpoint or a seed, tokens from a stream, steps of the
 * program, a line of metrics for each.
 */
#ifndef MF_EXECUTOR_TRAIN_H
#define MF_EXECUTOR_TRAIN_H

#include "executor/program_run.h"

typedef enum mf_lr_schedule {
    MF_LR_CONSTANT,
    MF_LR_LINEAR, /* to lr_min over the steps after warm-up */
    MF_LR_COSINE,
    MF_LR_WSD, /* constant, then linear to lr_min over the last tenth of the steps */
} mf_lr_schedule;

/* Learning rate of step `step` (from 1): linear warm-up, then the schedule. */
double mf_train_lr(mf_lr_schedule schedule, double lr, double lr_min, int64_t warmup, int64_t steps,
                   int64_t step);

typedef struct mf_train_metrics {
    int64_t step; /* from 1 */
    double lm_loss, mtp_loss, aux_loss, grad_norm, lr;
    double step_time_s, tokens_per_s;
} mf_train_metrics;

typedef struct mf_train_options {
    const mf_model *model;
    const mf_cluster *cluster;
    const mf_layout *layout;         /* resolved for the model */
    const mf_assignment *assignment; /* NULL: even */
    const char *init;                /* HF folder or safetensors file; NULL: from the seed */
    const char *data;                /* see executor/data.h */
    bool shuffle;
    uint64_t seed; /* of shuffling and of weights */
    int64_t steps;
    double lr, lr_min;
    mf_lr_schedule lr_schedule;
    int64_t warmup;
    mf_exec_options exec; /* aux_coef > 0: auxiliary loss per micro-batch */
    const char *out;      /* folder for metrics.jsonl, made when missing; NULL: none */
    /* Called on world rank 0 before the first step (arena, plan) and after each step; NULL: none. A
     * non-zero return ends the run after that step (MF_INTERRUPTED). */
    int (*started)(void *user, const mf_exec *x);
    int (*stepped)(void *user, const mf_train_metrics *m);
    void *user;
} mf_train_options;

/* Seed 1, shuffled, lr 3e-4 with cosine to a tenth and no warm-up, defaults of the executor. */
void mf_train_options_init(mf_train_options *o);

/* Trains on the CPU backend. Every rank of the launcher calls it with the same options; the
 * layout's GPUs must be the ranks that run. CPU ranks hold the worst case of routed rows, so the
 * layout's token headroom is not read. Errors: of what is opened, lowered and run, with the step.
 */
mf_status mf_train(const mf_train_options *o, mf_err *e);

/* Weights from a seed: normal with deviation 0.02, norms 1, biases 0; a function of the seed, the
 * hub name and the element alone, so that every layout starts from the same model. */
void mf_train_init_weights(mf_exec *x, const mf_program *p, const mf_rank_coords *at,
                           uint64_t seed);

#endif
