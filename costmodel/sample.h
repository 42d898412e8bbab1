/* sample.h - points of a store as ops with a measured time, with the GPUs they came from. */
#ifndef MF_COSTMODEL_SAMPLE_H
#define MF_COSTMODEL_SAMPLE_H

#include "costmodel/cost_internal.h"

#include <stdio.h>

/* One side's time while compute and communication both run. */
typedef struct mf_contention_point {
    int device;
    uint8_t comm; /* mf_op_kind */
    bool of_comm; /* whose time: the collective's, or the compute's */
    bool product; /* else a copy on the device */
    int64_t size, ranks;
    double bytes, time_s;
} mf_contention_point;

typedef struct mf_samples {
    int ndevices;
    char gpu[MF_SAMPLE_DEVICES][32];
    mf_cluster cluster[MF_SAMPLE_DEVICES];
    mf_cost_device device[MF_SAMPLE_DEVICES]; /* .cluster NULL: no shipped cluster of that name */
    size_t n, allocated;
    mf_sample *sample; /* [n] */
    size_t ncontention, contention_allocated;
    mf_contention_point *contention; /* [ncontention] */
    mf_launch launch[MF_SAMPLE_DEVICES];
    char date[16]; /* newest of device 0's own points; "" without any */
    size_t nenergy, energy_allocated;
    mf_energy_point *energy; /* [nenergy] of device 0 */
    int shipped; /* device with the figures that device 0's GPU ships with; 0: it does not ship */
} mf_samples;

/* Every sound point of the store (NULL: of those that ship) that is not held out; device 0 is c's
 * own GPU. To be cleared, also after an error. */
mf_status mf_samples_read(mf_samples *out, const mf_cluster *c, mf_store *store, mf_err *e);
void mf_samples_clear(mf_samples *s);

/* The points' evidence on compute beside communication. */
void mf_contention_build(mf_contention *b, const mf_samples *s);

#endif
