/* train.h - a training run: loads weights from a checkpoint, a Hugging Face folder or a seed, reads
 * tokens from streams, runs steps, writes a line of metrics for each, and saves checkpoints.
 */
#ifndef MF_EXECUTOR_TRAIN_H
#define MF_EXECUTOR_TRAIN_H

#include "executor/step/program_run.h"
#include "executor/train/metrics.h"
#include "executor/train/op_times.h"

typedef enum mf_lr_schedule {
    MF_LR_CONSTANT,
    MF_LR_LINEAR, /* to lr_min over the steps after warm-up */
    MF_LR_COSINE,
    MF_LR_WSD, /* constant, then linear to lr_min over the last tenth of the steps */
} mf_lr_schedule;

/* Learning rate of step `step` (from 1): linear warm-up, then the schedule. */
double mf_train_lr(mf_lr_schedule schedule, double lr, double lr_min, int64_t warmup, int64_t steps,
                   int64_t step);

/* The interval between checkpoints that loses the least time, to first order, when a checkpoint
 * takes save_s and failures are mtbf_s apart on average (Young 1974, Daly 2006). */
double mf_train_save_interval_s(double save_s, double mtbf_s);

/* What a run starts with, for reports. All borrowed. */
typedef struct mf_train_start {
    const mf_exec *exec;
    mf_device *device;     /* of this rank */
    int64_t arena_B;       /* of the largest rank */
    int64_t first_step;    /* 1, or the one after the checkpoint's */
    const char *resumed;   /* the checkpoint; NULL: from the start */
    int64_t stream_tokens; /* of all data streams */
    int streams;
} mf_train_start;

/* A checkpoint that is complete. */
typedef struct mf_train_saved {
    int64_t step;
    bool beside;    /* written while training continued */
    double took_s;  /* from the copy of the state to the rename */
    double stall_s; /* the part of it in which training waited */
} mf_train_saved;

typedef struct mf_train_options {
    const mf_model *model;
    const mf_cluster *cluster;
    const mf_layout *layout;         /* resolved for the model */
    const mf_assignment *assignment; /* NULL: even */
    bool cuda;                       /* on a GPU each; else on the CPU */
    mf_device *device;               /* on this one, which stays the caller's; NULL: as above */
    const char *init;                /* HF folder or safetensors file; NULL: from the seed */
    const char *data;                /* see executor/data/data_mix.h */
    bool shuffle;
    uint64_t seed; /* of shuffling and of weights */
    int64_t steps;
    double lr, lr_min;
    mf_lr_schedule lr_schedule;
    int64_t warmup;
    bool deterministic; /* two runs agree to the bit on GPUs, too (mf_device_ops.fix) */
    int64_t max_skips;  /* steps in a row whose update may be left out, as the loss or the norm is
                           not finite; one more ends the run (MF_DIVERGED) */
    double spike;  /* a loss above so many times the median of the last steps counts as not finite;
                      0: none does */
    bool rerun;    /* a bad step that has another result when it is run again ends the run
                      (MF_TRANSIENT), and so do too many that stay bad (MF_LASTING, not MF_DIVERGED);
                      needs `deterministic` on GPUs */
    double hang_s; /* a GPU that makes no progress for so long, or another rank of this host
                      (rank_watch.h), ends the run; 0: never */
    mf_exec_options exec; /* aux_coef > 0: auxiliary loss per micro-batch; before_op and after_op
                             are called in addition to the run's own */

    /* Folder for metrics.jsonl, the event file, op_times.json, routing.csv, checkpoints/ and, at
     * the end, the weights as hf/; made when missing. NULL: nothing is written. */
    const char *out;
    bool resume;        /* from the newest checkpoint of `out`, when there is one */
    int64_t save_every; /* steps; 0: only at the end */
    double save_s;      /* also after the first step that ends so long after the last save; 0: no */
    bool save_waits;    /* training waits while a checkpoint is written, not for its copy alone */
    int keep;           /* number of newest checkpoints that are kept; 0: all */
    const char *config; /* text of the config.json that goes beside exported weights; NULL: none */

    const volatile int *cancel; /* non-zero on any rank: save, end with MF_INTERRUPTED; NULL */
    /* Called on world rank 0 before the first step and after each step; NULL: none. A non-zero
     * return ends the run after that step (MF_INTERRUPTED), on a GPU after the next one, which has
     * begun by then. */
    int (*started)(void *user, const mf_train_start *s);
    int (*stepped)(void *user, const mf_train_metrics *m);
    /* Called after each checkpoint, on world rank 0; NULL: none. */
    void (*saved)(void *user, const mf_train_saved *s);
    /* Called with one line about an event in a step that did not end the run, on world rank 0;
     * NULL: none. */
    void (*warned)(void *user, const char *line);
    /* Called from another thread with one line about a rank of this host that is gone or hangs, or
     * about this rank's own GPU that does; then the process ends with exit code 1. NULL: none. */
    void (*lost)(void *user, const char *line);
    void *user;
} mf_train_options;

/* 25 seconds without a move of a GPU or of a rank, seed 1, shuffled, lr 3e-4 with cosine to a tenth
 * and no warm-up, ten skips in a row, three checkpoints kept, defaults of the executor. */
void mf_train_options_init(mf_train_options *o);

/* Trains. Every rank of the launcher calls it with the same options; the layout's GPUs must be the
 * ranks that run. A step that routes more rows than the layout's token headroom allows is run again
 * by a program with more headroom, and so are the steps after it; where no such program fits:
 * MF_INFEASIBLE. Errors: of what is opened, lowered and run. A failure that all ranks agreed on has
 * its text on one of them. *alone says that this rank failed where others may wait for it: the
 * caller should report it and end all ranks (on GPUs what the run holds is not freed then). Where
 * several ranks fail alone, one on each host has a text, and needs the time to report it. */
mf_status mf_train(const mf_train_options *o, bool *alone, mf_err *e);

/* Weights from a seed: normal with deviation 0.02, norms 1, biases 0; a function of the seed, the
 * hub name and the element only, so that every layout starts from the same model. */
mf_status mf_train_init_weights(mf_exec *x, const mf_program *p, const mf_rank_coords *at,
                                uint64_t seed, mf_err *e);

#endif
