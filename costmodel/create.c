/* create.c - a cost model from a profile store. */
#include "costmodel/sample.h"

#include <stdlib.h>

/* A launch is the host's work: where this GPU's was not measured, that of any other stands in. */
static mf_launch launches_of(const mf_samples *s) {
    mf_launch l = {0, 0};
    for (int d = 0; d < s->ndevices; d++) {
        l.stream_s = l.stream_s > 0 ? l.stream_s : s->launch[d].stream_s;
        l.replay_s = l.replay_s > 0 ? l.replay_s : s->launch[d].replay_s;
    }
    return l;
}

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
    if (st == MF_OK) {
        mf_contention_build(&(*out)->contention, samples);
        (*out)->launch = launches_of(samples);
        snprintf((*out)->measured, sizeof(*out)->measured, "%s", samples->date);
        mf_energy_init(&(*out)->energy, c, samples->cluster[samples->shipped].gpu.power_w);
        mf_energy_fit(&(*out)->energy, samples->energy, samples->nenergy);
    }
    mf_samples_clear(samples);
    free(samples);
    return st;
}
