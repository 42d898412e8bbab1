/* refold.h - a run that goes on on fewer ranks: the fastest plan for what is left. */
#ifndef MF_CLI_REFOLD_H
#define MF_CLI_REFOLD_H

#include "cli/restart.h"
#include "cli/train_settings.h"

typedef struct mf_refold_job {
    const mf_args *a;
    const mf_train_settings *s;
} mf_refold_job;

/* The fastest plan for as many ranks as it can be folded on, at most `most`, with batch, sequence,
 * arithmetic and optimizer states as they are: written to folded-anew.json in the run's folder.
 * out->ranks: how many; 0: none fits. `user` is a mf_refold_job. Errors: of the search, MF_IO. */
mf_status mf_refold(void *user, int64_t most, mf_refolded *out, mf_err *e);

#endif
