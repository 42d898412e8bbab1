/* create.c - a cost model from a profile store. */
#include "costmodel/sample.h"

#include <stdlib.h>

mf_status mf_cost_create(const mf_cluster *c, const mf_software *s, mf_store *store, mf_cost **out,
                         mf_err *e) {
    mf_samples *samples = calloc(1, sizeof *samples);
    *out = NULL;
    if (samples == NULL) {
        return mf_err_set(e, MF_NOMEM, "cost model: out of memory");
    }
    mf_status st = mf_samples_read(samples, c, store, e);
    if (st == MF_OK) {
        st = mf_cost_build(c, s, samples->device, samples->ndevices, samples->sample, samples->n,
                           out, e);
    }
    mf_samples_clear(samples);
    free(samples);
    return st;
}
