/* metrics.h - what a training step reports: a line of metrics.jsonl and scalars for TensorBoard. */
#ifndef MF_EXECUTOR_METRICS_H
#define MF_EXECUTOR_METRICS_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Parts of a loss that not every run has. */
typedef struct mf_metrics_parts {
    bool mtp, z, ranks, gpu;
} mf_metrics_parts;

/* X(field, the part it belongs to; ALWAYS). The key in metrics.jsonl is the field's name. */
#define MF_METRICS_MAP(X)                                                                          \
    X(lm_loss, ALWAYS)     /* mean over the labels of the global batch, before the update */       \
    X(mtp_loss, MTP)       /* mean over depths; models with MTP */                                 \
    X(aux_loss, ALWAYS)    /* unweighted sum over layers */                                        \
    X(z_loss, Z)           /* likewise, mean over tokens; runs with a z-loss */                    \
    X(grad_norm, ALWAYS)   /* before clipping */                                                   \
    X(skipped, ALWAYS)     /* updates left out up to here: not finite */                           \
    X(lr, ALWAYS)          /* of this step's update */                                             \
    X(step_time_s, ALWAYS) /* wall time of the step */                                             \
    X(work_median_s,                                                                               \
      RANKS) /* the part of it in which a rank does not wait for others: the median rank's */      \
    X(work_slowest_s, RANKS)        /* and the slowest rank's; several ranks */                    \
    X(slowest_rank, RANKS)          /* the rank that works longest */                              \
    X(tokens_per_s, ALWAYS)         /* of all ranks together */                                    \
    X(model_tflops_per_gpu, ALWAYS) /* as Megatron-LM counts, per rank */                          \
    X(mfu, ALWAYS)                  /* of the cluster's peak for the precision */                  \
    X(memory_B, ALWAYS)             /* arena of the largest rank */                                \
    X(used_B, GPU)    /* of rank 0's GPU, as its driver counts, whoever uses it; GPUs */           \
    X(power_W, GPU)   /* that it drew over the step */                                             \
    X(clock_MHz, GPU) /* of its multiprocessors when the step ended */                             \
    X(expert_load_max_over_mean, ALWAYS) /* of the fullest layer; 1 without experts */             \
    X(eta_s, ALWAYS)                     /* until the last step, from the mean of the run so far */

typedef struct mf_train_metrics {
    int64_t step;    /* from 1 */
    int64_t samples; /* of the stream that training has consumed, this step's included */
#define X(name, part) double name;
    MF_METRICS_MAP(X)
#undef X
} mf_train_metrics;

typedef struct mf_metrics mf_metrics;

/* Opens FOLDER/metrics.jsonl and an event file. Lines of steps after `last_step` (a run that was
 * killed wrote them and this run will write them again), and an incomplete last line, are dropped;
 * 0 begins anew. The caller closes *out. Errors: MF_IO. */
mf_status mf_metrics_open(const char *folder, int64_t last_step, mf_metrics_parts parts,
                          mf_metrics **out, mf_err *e);
/* Copies the lines of `old` that are kept: those up to the first that is incomplete, not a step's
 * or of a step after last_step. False: `old` could not be read, or `new` not written. */
bool mf_metrics_copy_lines(FILE *old, int64_t last_step, FILE *new);
/* One line, flushed. */
mf_status mf_metrics_add(mf_metrics *w, const mf_train_metrics *m, mf_err *e);
/* NULL is fine. Errors: MF_IO for what could not be written. */
mf_status mf_metrics_close(mf_metrics *w, mf_err *e);

#endif
