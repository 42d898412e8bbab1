/* measure_store.c - what was read, as points of a profile store. */
#include "executor/measure/measure_store.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

mf_status mf_measure_store_open(const char *path, mf_store **out, mf_err *e) {
    struct stat info;
    mf_status s = stat(path, &info) != 0 ? mf_store_rebuild(path, e) : MF_OK;
    return s == MF_OK ? mf_store_open(path, out, e) : s;
}

static void fill_in(mf_point *p, const mf_measure_machine *machine, const char *date,
                    const mf_measure_reading *r) {
    char drawn[sizeof p->source];
    memcpy(drawn, p->source, sizeof drawn);
    memcpy(p->gpu, machine->gpu, sizeof p->gpu);
    snprintf(p->date, sizeof p->date, "%s", date);
    mf_measure_versions_of(machine, p->op, p->versions, sizeof p->versions);
    p->time_s = r->time_s;
    p->low_s = r->low_s;
    p->high_s = r->high_s;
    p->energy_J = r->energy_J;
    p->sustained_s = r->sustained_s;
    p->samples = r->samples;
    if (r->sm_MHz > 0) {
        snprintf(p->source, sizeof p->source, "moefold profile, %.80s; SM %d MHz, %d C", drawn,
                 r->sm_MHz, r->temperature_C);
    } else {
        snprintf(p->source, sizeof p->source, "moefold profile, %.80s", drawn);
    }
}

mf_status mf_measure_store_reading(mf_store *store, mf_point *p, const mf_measure_machine *machine,
                                   const char *date, const mf_measure_reading *r, mf_err *e) {
    fill_in(p, machine, date, r);
    if (r->choice.text[0] == '\0') {
        return mf_store_put(store, p, e);
    }
    mf_status s = mf_store_begin(store, e);
    if (s != MF_OK) {
        return s;
    }
    s = mf_store_put(store, p, e);
    s = s == MF_OK ? mf_store_put_choice(store, p, r->choice.text, e) : s;
    return s == MF_OK ? mf_store_commit(store, e) : s;
}
