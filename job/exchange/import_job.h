/* import_job.h - reads a job of another program from the words of `import` and `tune`. */
#ifndef MF_JOB_IMPORT_JOB_H
#define MF_JOB_IMPORT_JOB_H

#include "job/load/job.h"
#include "launch/log/log.h"
#include "launch/read/read.h"

typedef struct mf_imported {
    mf_read read;
    mf_read_model found;
    mf_job job; /* simulated */
    mf_log log;
} mf_imported;

/* The caller owns all texts. */
typedef struct mf_import_request {
    const char *const *word; /* [words]: files, NAME=VALUE, flags, overrides */
    int words;
    const char *recipe;   /* function of a Python file, number of a script's job; NULL */
    mf_job_request asked; /* its model, cluster, GPUs, software and store override the words */
} mf_import_request;

/* Reads all words (files, NAME=VALUE, flags, overrides), finds the model, resolves the layout and
 * simulates it. *x must be zero before; the caller clears it in any case. Errors: MF_USAGE,
 * MF_INPUT, MF_LAYOUT, naming what is missing. */
mf_status mf_import_load(const mf_import_request *r, mf_imported *x, mf_err *e);
void mf_import_clear(mf_imported *x);

#endif
