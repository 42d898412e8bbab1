/* request.h - what a job is asked for: names of model, cluster and software, a layout, and which of
 * its choices the user stated. Commands fill it from their options.
 */
#ifndef MF_JOB_REQUEST_H
#define MF_JOB_REQUEST_H

#include "core/base/status.h"
#include "core/layout/layout.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Choices for which it matters whether the user stated them: name, and the option that states them.
 */
#define MF_GIVEN_MAP(X)                                                                            \
    X(GPUS, "gpus")                                                                                \
    X(GLOBAL_BATCH, "global-batch")                                                                \
    X(SEQ, "seq")                                                                                  \
    X(MICRO_BATCH, "micro-batch")                                                                  \
    X(VPP, "vpp")                                                                                  \
    X(DISPATCHER, "dispatcher")                                                                    \
    X(CP_TYPE, "cp-type")                                                                          \
    X(OVERLAP, "overlap")                                                                          \
    X(RECOMPUTE, "recompute")                                                                      \
    X(RECOMPUTE_LAYERS, "recompute-layers")                                                        \
    X(OFFLOAD, "offload")                                                                          \
    X(OFFLOAD_SHARE, "offload-share")                                                              \
    X(PRECISION, "precision")                                                                      \
    X(FP8_PRIMARY_WEIGHTS, "fp8-primary-weights")                                                  \
    X(CUDA_GRAPH, "cuda-graph")                                                                    \
    X(TOKEN_HEADROOM, "token-headroom")                                                            \
    X(CAPACITY_FACTOR, "capacity-factor")                                                          \
    X(PAD_TO_CAPACITY, "pad-to-capacity")

typedef enum mf_given_option {
#define X(id, option) MF_GIVEN_##id,
    MF_GIVEN_MAP(X)
#undef X
        MF_GIVEN_COUNT
} mf_given_option;

/* The caller owns all texts, which must outlive the job; NULL where nothing was given. */
typedef struct mf_job_request {
    const char *model, *cluster; /* names or files */
    const char *model_option;    /* the option that errors name: "model", "models"; NULL: "model" */
    const char *cluster_option;
    const char *const *set; /* KEY=VALUE of the model's config.json, [set_count] */
    size_t set_count;
    bool strict; /* a model that is not read whole is refused */
    const char *software, *store, *routing;
    bool corrected;   /* prices are corrected by what is kept of logs (job/kept/corrections.h) */
    const char *plan; /* a file that holds layout and assignment */
    const char *beside_plan; /* a layout option that was given; an error together with a plan, which
                                layout.deterministic is not, unless a plan may be changed: */
    mf_status (*change)(const void *user, mf_layout *l, mf_err *e); /* sets in a plan's layout what
                                options say; NULL: it stays as it is */
    const void *change_user;
    mf_layout layout;         /* defaults, and what was asked for */
    uint32_t pinned;          /* MF_PIN bits (planner/space/space.h) of what was asked for */
    uint32_t given;           /* bits of mf_given_option */
    const char *stages;       /* layers of virtual stages (job/request/stage_text.h) */
    int64_t recompute_layers; /* with MF_GIVEN_RECOMPUTE_LAYERS: of each virtual stage the first */
    const char *unsure;       /* options whose values are guesses (job/load/unsaid.h) */
    const char *precisions;   /* a search's, instead of the layout's one */
    FILE *notes;              /* where to print what is left out; NULL: nowhere */
} mf_job_request;

/* Makes an empty request with a layout's defaults. */
void mf_job_request_init(mf_job_request *r);

static inline bool mf_request_gives(const mf_job_request *r, mf_given_option what) {
    return (r->given & 1u << what) != 0;
}

/* The option's name, without "--". */
const char *mf_given_option_name(mf_given_option what);

/* MF_USAGE "--seq N is required" where it was not said. */
mf_status mf_request_require(const mf_job_request *r, mf_given_option what, mf_err *e);

/* Prefixes e with "--cluster: " if s is MF_USAGE, an error about a name; errors in files name their
 * own place. Returns s. */
mf_status mf_request_named(mf_status s, const char *option, mf_err *e);

#endif
