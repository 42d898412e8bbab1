/* import_job.h - a job that exists, from the words of `import` and `tune`. */
#ifndef MF_CLI_IMPORT_JOB_H
#define MF_CLI_IMPORT_JOB_H

#include "cli/options.h"
#include "job/job.h"
#include "launch/log.h"
#include "launch/read.h"

typedef struct mf_imported {
    mf_read read;
    mf_read_model found;
    mf_job job; /* simulated */
    mf_log log;
} mf_imported;

/* Reads all words (files, NAME=VALUE, flags, overrides), finds the model, resolves the layout and
 * simulates it. *x is zero before, and to be cleared in any case. Errors: MF_USAGE, MF_INPUT,
 * MF_LAYOUT, naming what is missing. */
mf_status mf_import_load(const mf_args *a, mf_imported *x, mf_err *e);
void mf_import_clear(mf_imported *x);

#endif
