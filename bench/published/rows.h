/* rows.h - published training runs as moefold sees them: one row of published.csv, the layout and
 * software it ran with, and the step time that it reports.
 *
 * Nothing here knows a prediction; what a row leaves unsaid is counted in `unknown` and widens the
 * band of its prediction. A row that cannot be predicted says why in `skipped`.
 */
#ifndef MF_PUBLISHED_ROWS_H
#define MF_PUBLISHED_ROWS_H

#include "core/cluster.h"
#include "core/layout.h"
#include "core/model.h"

enum {
    PUB_UNKNOWN_GRAPH = 1,
    PUB_UNKNOWN_DISPATCHER = 2,
    PUB_UNKNOWN_RECOMPUTE = 4,
    PUB_UNKNOWN_OVERLAP = 8,
    PUB_UNKNOWN_MBS = 16,
    PUB_UNKNOWN_VPP = 32,
    PUB_UNKNOWN_CP_TYPE = 64,
};

#define PUB_FOLDS 3
#define PUB_MAX_WAYS 4

typedef struct pub_row {
    char id[16], source[12], model_name[48], gpu[12], precision[24];
    char notes[400];
    char software[32]; /* release asked for, "megatron-26.04" */
    int profile;       /* index among the profiles in use; -1 = none; set by pub_profiles_load */
    char skipped[96];  /* "" = predicted */
    char reason[160];  /* known peculiarity: stays in every mean, named among the worst */
    bool moe, dropped_tokens, fsdp;
    bool unfolded;            /* experts follow TP: no ETP of their own */
    bool in_recipe;           /* what it leaves unsaid is what the recipe does that it names */
    bool dispatcher_open;     /* not even the library's default is stated */
    int64_t recompute_layers; /* full recomputation of so many layers a virtual stage; 0 = of all */
    bool delayed_scales;      /* FP8 with the scales of earlier steps, NeMo's default until 25.05 */
    bool eager;               /* torchtitan without torch.compile */
    bool unfused;             /* Megatron without its fused RoPE and activation */
    bool op_checkpoints;      /* torchtitan's selective checkpoints: every second product again */
    bool hybrid_ep;     /* HybridEP: dispatch puts rows into order, combine takes them out of it */
    bool plain_loss;    /* cross-entropy op by op over FP32 copies of the logits */
    bool gathers_wide;  /* rowwise FP8: TP gathers BF16, every rank quantises all rows */
    bool fused_experts; /* activation and its quantisation in the grouped GEMM's epilogue */
    bool held_out;      /* by hash of model, GPU and layout: never seen by a fit */
    int fold;           /* of cross-validation among the others, by another part of that hash */
    unsigned unknown;   /* PUB_UNKNOWN_* */
    mf_model model;
    mf_cluster cluster;
    mf_layout layout; /* resolved when not skipped; the first way */
    int ways;         /* in which it may have run, equally likely: its unsaid flags filled in */
    mf_layout way[PUB_MAX_WAYS];
    double step_s;   /* published step time (given, or from tokens/s, or from TFLOP/s) */
    double memory_B; /* published peak; 0 = not stated */

    /* filled by predict */
    double predicted_s, low_s, high_s, predicted_memory_B;
    bool fits;
    double breakdown_s[16];
} pub_row;

/* Reads the table. *rows is to be freed. Errors: MF_INPUT, MF_NOMEM. */
mf_status pub_rows_load(const char *path, pub_row **rows, int *count, mf_err *e);

#endif
