/* export.h - a plan in the words of another program. */
#ifndef MF_CLI_EXPORT_H
#define MF_CLI_EXPORT_H

#include "core/plan.h"

#define MF_EXPORT_MAX_ITEMS 96
#define MF_EXPORT_MAX_NOTES 24

/* A setting: Megatron-LM's flag and Megatron-Bridge's key, either of which may be NULL where only
 * the other program has it. value "" = a switch that is on. */
typedef struct mf_export_item {
    const char *flag; /* "--tensor-model-parallel-size" */
    const char *key;  /* "model.tensor_model_parallel_size" */
    char value[2048]; /* words parted by blanks where the flag takes several */
    bool list;        /* Bridge wants [a,b] */
} mf_export_item;

typedef struct mf_export {
    int items, notes;
    mf_export_item item[MF_EXPORT_MAX_ITEMS];
    char note[MF_EXPORT_MAX_NOTES][256]; /* what the program cannot express, or does otherwise */
} mf_export;

/* Fills in the settings of a checked plan. The model's own flags are no part of it. */
void mf_export_plan(const mf_plan *p, const mf_model *m, mf_export *out);

/* "Et*3|t*4|...|tmL": the layers of each virtual stage, in Megatron-LM's notation. */
void mf_export_stages(const mf_plan *p, const mf_model *m, char *out, size_t size);

#endif
