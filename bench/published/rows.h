/* rows.h - published training runs as moefold sees them: one row of published.csv, the layout and
 * software it ran with, and the step time that it reports.
 *
 * A row becomes a command line of `moefold simulate`, and what that line says is what is predicted:
 * the table knows nothing of a run that no option says. What a row leaves unsaid is left out there,
 * or stands there as a guess (--unsure). Nothing here knows a prediction. A row that cannot be
 * predicted says why in `skipped`.
 */
#ifndef MF_PUBLISHED_ROWS_H
#define MF_PUBLISHED_ROWS_H

#include "job/load/job.h"

#include <stdio.h>

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
#define PUB_WORDS 80

/* The `moefold simulate` line of a row: words behind the command. */
typedef struct pub_command {
    int count;
    char word[PUB_WORDS][112];
} pub_command;

typedef struct pub_row {
    char id[16], source[12], model_name[48], gpu[12], precision[24];
    char notes[400];
    char software[32]; /* release asked for, "megatron-26.04" */
    int profile;       /* index among the profiles in use; -1 = none; set by pub_profiles_load */
    char skipped[96];  /* "" = predicted */
    char reason[160];  /* known peculiarity: stays in every mean, named among the worst */
    bool moe, fsdp;
    bool unfolded;            /* experts follow TP: no ETP of their own */
    bool in_recipe;           /* what it leaves unsaid is what the recipe does that it names */
    bool dispatcher_open;     /* not even the library's default is stated */
    int64_t recompute_layers; /* full recomputation of so many layers a virtual stage; 0 = of all */
    bool held_out;            /* by hash of model, GPU and layout: never seen by a fit */
    int fold;         /* of cross-validation among the others, by another part of that hash */
    unsigned unknown; /* PUB_UNKNOWN_* */
    char shipped[32], cluster_name[48]; /* names of model and cluster for the command line */
    int sets;
    char set[4][48]; /* keys of the model's config.json that the row overrides */
    mf_model model;
    mf_cluster cluster;
    mf_layout layout; /* when not skipped: as the command line says it, resolved */
    mf_layout filled; /* while it is read: with what neighbours state */
    pub_command command;
    mf_job *job;     /* the command line, read; NULL where skipped */
    double step_s;   /* published step time (given, or from tokens/s, or from TFLOP/s) */
    double memory_B; /* published peak; 0 = not stated */

    /* filled by predict */
    double predicted_s, low_s, high_s, predicted_memory_B;
    bool fits;
    double breakdown_s[16];
} pub_row;

/* Reads the table. The caller frees *rows. Errors: MF_INPUT, MF_NOMEM; MF_INTERNAL where a command
 * line says another layout than its row. */
mf_status pub_rows_load(const char *path, pub_row **rows, int *count, mf_err *e);
void pub_rows_free(pub_row *rows, int count);

/* Prints the row's command line, quoted for a shell. */
void pub_command_print(FILE *out, const pub_row *r);

#endif
