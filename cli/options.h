/* options.h - every option of every command, once: name, kind of value, range, default, help text,
 * and for layout options what they set. The parser, the help texts and docs/CLI.md read this table.
 */
#ifndef MF_CLI_OPTIONS_H
#define MF_CLI_OPTIONS_H

#include "core/base/number_text.h"
#include "core/base/status.h"
#include "core/layout/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum mf_option_id {
    /* the job */
    MF_OPT_MODEL,
    MF_OPT_SET,
    MF_OPT_STRICT,
    MF_OPT_CLUSTER,
    MF_OPT_GPUS,
    MF_OPT_GLOBAL_BATCH,
    MF_OPT_SEQ,
    MF_OPT_SOFTWARE,
    MF_OPT_STORE,
    MF_OPT_NO_CORRECTIONS,
    MF_OPT_PLAN,
    /* layout: degrees, then choices */
    MF_OPT_TP,
    MF_OPT_CP,
    MF_OPT_PP,
    MF_OPT_VPP,
    MF_OPT_EP,
    MF_OPT_ETP,
    MF_OPT_MICRO_BATCH,
    MF_OPT_ZERO,
    MF_OPT_EXPERT_ZERO,
    MF_OPT_SCHEDULE,
    MF_OPT_DISPATCHER,
    MF_OPT_CP_TYPE,
    MF_OPT_OVERLAP,
    MF_OPT_RECOMPUTE,
    MF_OPT_OFFLOAD,
    MF_OPT_OFFLOAD_SHARE,
    MF_OPT_OFFLOAD_OPTIMIZER,
    MF_OPT_MOMENTS,
    MF_OPT_GRAD_DTYPE,
    MF_OPT_PRECISION,
    MF_OPT_FP8_ATTENTION,
    MF_OPT_FP8_PRIMARY_WEIGHTS,
    MF_OPT_CUDA_GRAPH,
    MF_OPT_TOKEN_HEADROOM,
    MF_OPT_RESERVE,
    MF_OPT_CAPACITY_FACTOR,
    MF_OPT_PAD_TO_CAPACITY,
    MF_OPT_DETERMINISTIC,
    MF_OPT_TRAITS,
    /* of a layout given by hand */
    MF_OPT_PIPELINE_LAYOUT,
    MF_OPT_RECOMPUTE_LAYERS,
    MF_OPT_UNSURE,
    /* how to play it */
    MF_OPT_ROUTING,
    MF_OPT_EVERY_RANK,
    MF_OPT_TRACE,
    /* search */
    MF_OPT_TOP,
    MF_OPT_PRECISIONS,
    MF_OPT_RUNS_ON,
    MF_OPT_EVEN_STAGES,
    MF_OPT_SEARCH_OFFLOAD,
    MF_OPT_GAP,
    MF_OPT_EFFORT,
    MF_OPT_MIN_HEADROOM,
    MF_OPT_THREADS,
    /* capacity */
    MF_OPT_MODELS,
    MF_OPT_CLUSTERS,
    MF_OPT_SIZES,
    MF_OPT_TOKENS,
    MF_OPT_DEADLINE,
    MF_OPT_BUDGET,
    MF_OPT_PRICE,
    MF_OPT_POWER_PRICE,
    MF_OPT_SKEW,
    MF_OPT_CHECKPOINT_TIME,
    MF_OPT_RESTART_TIME,
    /* profile store */
    MF_OPT_REBUILD,
    MF_OPT_CHECK,
    MF_OPT_IMPORT,
    MF_OPT_EXPORT,
    MF_OPT_RECORD,
    MF_OPT_GPU,
    MF_OPT_NODES,
    MF_OPT_SHARED,
    MF_OPT_ENERGY,
    /* training (options_train.c) */
    MF_OPT_DATA,
    MF_OPT_TRAIN_FIRST = MF_OPT_DATA,
    MF_OPT_INIT,
    MF_OPT_SHUFFLE,
    MF_OPT_STEPS,
    MF_OPT_SEED,
    MF_OPT_LR,
    MF_OPT_LR_MIN,
    MF_OPT_LR_SCHEDULE,
    MF_OPT_WARMUP,
    MF_OPT_ADAM_BETA1,
    MF_OPT_ADAM_BETA2,
    MF_OPT_ADAM_EPS,
    MF_OPT_WEIGHT_DECAY,
    MF_OPT_DECAY,
    MF_OPT_CLIP,
    MF_OPT_AUX_LOSS,
    MF_OPT_AUX_COEF,
    MF_OPT_BIAS_RATE,
    MF_OPT_Z_COEF,
    MF_OPT_FORCE_BALANCE,
    MF_OPT_FORCE_ROUTING,
    MF_OPT_DTYPE,
    MF_OPT_BACKEND,
    MF_OPT_MAX_SKIPS,
    MF_OPT_SPIKE,
    MF_OPT_RERUN,
    MF_OPT_HANG_AFTER,
    MF_OPT_ON_FAILURE,
    MF_OPT_MAX_RESTARTS,
    MF_OPT_SAVE_EVERY,
    MF_OPT_SAVE_MINUTES,
    MF_OPT_SAVE_WAIT,
    MF_OPT_KEEP,
    MF_OPT_RESUME,
    MF_OPT_RUN,
    MF_OPT_TOLERANCE,
    MF_OPT_TRAIN_LAST = MF_OPT_TOLERANCE,
    /* output */
    MF_OPT_OUT,
    MF_OPT_REPORT,
    MF_OPT_FORMAT,
    MF_OPT_LAUNCHER,
    MF_OPT_FORCE,
    MF_OPT_CORRECT,
    MF_OPT_RECIPE,
    MF_OPT_LOG,
    MF_OPT_VERBOSE,
    MF_OPT_JSON,
    MF_OPT_PROGRESS,
    MF_OPT_MARKDOWN,
    MF_OPT_MAN,
    MF_OPT_COMPLETION,
    MF_OPT_HELP,
    MF_OPT_COUNT
} mf_option_id;

/* Everything that makes up a layout, for the option lists of commands: what a search takes or pins,
 * and what a layout given by hand takes besides (a search offloads in every layer what is pinned).
 */
#define MF_OPTS_LAYOUT                                                                             \
    MF_OPTS_SEARCHED, MF_OPT_OFFLOAD_SHARE, MF_OPT_PIPELINE_LAYOUT, MF_OPT_RECOMPUTE_LAYERS,       \
        MF_OPT_UNSURE
#define MF_OPTS_SEARCHED                                                                           \
    MF_OPT_TP, MF_OPT_CP, MF_OPT_PP, MF_OPT_VPP, MF_OPT_EP, MF_OPT_ETP, MF_OPT_MICRO_BATCH,        \
        MF_OPT_ZERO, MF_OPT_EXPERT_ZERO, MF_OPT_SCHEDULE, MF_OPT_DISPATCHER, MF_OPT_CP_TYPE,       \
        MF_OPT_OVERLAP, MF_OPT_RECOMPUTE, MF_OPT_OFFLOAD, MF_OPT_OFFLOAD_OPTIMIZER,                \
        MF_OPT_MOMENTS, MF_OPT_GRAD_DTYPE, MF_OPT_PRECISION, MF_OPT_FP8_ATTENTION,                 \
        MF_OPT_FP8_PRIMARY_WEIGHTS, MF_OPT_CUDA_GRAPH, MF_OPT_TOKEN_HEADROOM, MF_OPT_RESERVE,      \
        MF_OPT_CAPACITY_FACTOR, MF_OPT_PAD_TO_CAPACITY, MF_OPT_DETERMINISTIC, MF_OPT_TRAITS

typedef enum mf_value_kind {
    MF_VALUE_FLAG,
    MF_VALUE_INT,   /* whole, in [low, high] */
    MF_VALUE_REAL,  /* in [low, high] */
    MF_VALUE_SHARE, /* 0.05 or 5%, in [low, high] */
    MF_VALUE_SIZE,  /* whole, in [low, high]: 4096 or 4k, where k is 1,024 and M its square */
    MF_VALUE_COUNT, /* 15T, 1.5e12, 300B: a number with k, M, B or T behind it */
    MF_VALUE_TIME,  /* 90s, 20m, 12h, 30d: seconds, minutes, hours, days */
    MF_VALUE_UNTIL, /* TIME, or a date such as 2027-01-31: the time from now until it begins (UTC)
                     */
    MF_VALUE_TEXT,  /* a name, a word or a path */
    MF_VALUE_LIST,  /* TEXT that may be given many times */
} mf_value_kind;

typedef struct mf_value {
    bool given;
    int64_t i;        /* INT, SIZE */
    double f;         /* REAL, SHARE, COUNT, TIME and UNTIL (in seconds) */
    const char *text; /* as written; of a LIST the last */
} mf_value;

#define MF_ARGS_MAX_WORDS 96
#define MF_ARGS_MAX_LIST 64

/* A parsed command line; texts belong to argv. */
typedef struct mf_args {
    mf_value value[MF_OPT_COUNT];
    int words;
    const char *word[MF_ARGS_MAX_WORDS];
    int set_count; /* of --set */
    const char *set[MF_ARGS_MAX_LIST];
    int price_count; /* of --price */
    const char *price[MF_ARGS_MAX_LIST];
    bool corrected; /* the command takes kept corrections, and is not told to leave them out */
    FILE *notes;    /* where commands say what they leave out; NULL: nowhere */
} mf_args;

typedef enum mf_option_group {
    MF_OPTS_JOB,
    MF_OPTS_DEGREES,
    MF_OPTS_CHOICES,
    MF_OPTS_PLAY,
    MF_OPTS_SEARCH,
    MF_OPTS_CAPACITY,
    MF_OPTS_STORE,
    MF_OPTS_TRAIN,
    MF_OPTS_OUTPUT,
    MF_OPTS_GROUPS
} mf_option_group;

typedef struct mf_option {
    const char *name;  /* without "--" */
    const char *alias; /* another name that it is taken under; NULL */
    mf_option_group group;
    mf_value_kind kind;
    double low, high;
    const char *argument; /* "N", "FILE"; NULL for flags */
    const char *words;    /* " a b c": the words that it takes, for help; NULL */
    const char *fallback; /* default, as help says it; NULL = none */
    const char *help;     /* sentences without the last full stop */
    /* Layout options: sets its field. The text was not checked before. Errors without the name of
     * the option in front. NULL elsewhere. */
    mf_status (*apply)(mf_layout *l, const mf_value *v, mf_err *e);
    uint32_t pin; /* MF_PIN bits (planner/space/space.h): dimensions that the option fixes */
} mf_option;

const mf_option *mf_option_get(mf_option_id id);
/* Row of an option of training: MF_OPT_TRAIN_FIRST to MF_OPT_TRAIN_LAST. */
const mf_option *mf_option_get_train(mf_option_id id);
const char *mf_option_group_text(mf_option_group g);

/* Id of an option by name or alias among `allowed` (ends with MF_OPT_COUNT; NULL = all);
 * MF_OPT_COUNT when there is none. */
mf_option_id mf_option_find(const char *name, size_t length, const mf_option_id *allowed);

/* Parses argv[0..argc) (what follows the command) against the options that the command allows.
 * "--name value" and "--name=value"; "--" ends options; what does not begin with "-" is a word.
 * Layout values are parsed once against a scratch layout, so that a bad word is reported here.
 * Errors: MF_USAGE naming the option. */
mf_status mf_args_parse(int argc, const char *const *argv, const mf_option_id *allowed,
                        int max_words, mf_args *out, mf_err *e);

/* Sets every given layout option, in the order of the table. Errors: MF_USAGE "--ep: ...". */
mf_status mf_args_apply(const mf_args *a, mf_layout *l, mf_err *e);

/* MF_PIN bits (planner/space/space.h) of all given options. */
uint32_t mf_args_pinned(const mf_args *a);

/* What --threads says; 0 = not given. */
int mf_args_threads(const mf_args *a);

/* MF_USAGE "--model is required" when it was not given. */
mf_status mf_args_require(const mf_args *a, mf_option_id id, mf_err *e);

#endif
