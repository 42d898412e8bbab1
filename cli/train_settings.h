/* train_settings.h - what `moefold train` was asked for, resolved. */
#ifndef MF_CLI_TRAIN_SETTINGS_H
#define MF_CLI_TRAIN_SETTINGS_H

#include "cli/options.h"
#include "executor/train/train.h"
#include "job/load/job.h"

typedef struct mf_train_settings {
    mf_job job;
    bool detected;      /* no --cluster: the machine as it is */
    char gpu[96];       /* what trains, "NVIDIA H200"; empty: CPU ranks */
    char unused[320];   /* why GPUs that are here do not train; empty: none is, or they do */
    int64_t restarts;   /* in a row that come no further: --on-failure restart; 0: none */
    double *forced;     /* [positions][experts]: --force-routing; NULL: none */
    char *config;       /* text of the model's config.json, --set included */
    mf_train_options o; /* borrows from job and argv */
} mf_train_settings;

/* From the options; the layout is resolved and simulated. To be cleared in any case. Errors:
 * MF_USAGE, MF_INPUT, MF_LAYOUT; MF_INFEASIBLE when the plan does not fit. */
mf_status mf_train_settings_load(const mf_args *a, mf_train_settings *s, mf_err *e);
void mf_train_settings_clear(mf_train_settings *s);

/* Every resolved setting, and what the step is predicted to take. */
void mf_train_settings_print(FILE *out, const mf_train_settings *s);

#endif
