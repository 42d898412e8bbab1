/* fit_parameters.h - what a fit may move in the software profiles, and how far from its prior. */
#ifndef MF_PUBLISHED_FIT_PARAMETERS_H
#define MF_PUBLISHED_FIT_PARAMETERS_H

#include "bench/published/predict.h"

#include <stddef.h>

/* A value of release k is prior_k x exp(common + own_k): `common` moves all releases alike and has
 * standard deviation `common`, `own_k` is release k's and has `own` (0: the parameter is not of the
 * software, all releases share it). Standard deviations are of the logarithm. */
typedef struct pub_parameter_def {
    const char *key; /* path in the profile's JSON: "comm_eff.fused" */
    size_t offset;   /* of the (first) double in mf_software */
    int width;       /* neighbouring doubles that move together */
    double common, own;
    double low, high; /* of the value */
} pub_parameter_def;

extern const pub_parameter_def pub_parameters[];
extern const int pub_parameter_count;

/* The i-th of its doubles. */
double *pub_parameter(mf_software *s, const pub_parameter_def *p, int i);

#endif
