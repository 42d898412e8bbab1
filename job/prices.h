/* prices.h - a request's cluster, software profile and profile store, and the prices they give. */
#ifndef MF_JOB_PRICES_H
#define MF_JOB_PRICES_H

#include "costmodel/cost.h"
#include "job/request.h"

/* Cluster and profile, from the cluster's name and the request's software; `software_name` is used
 * where the request names none; NULL = the default. */
mf_status mf_prices_read(const mf_job_request *r, const char *cluster_name,
                         const char *software_name, mf_cluster *cluster, mf_software *software,
                         mf_err *e);

/* Prices of both, from the request's store. *cost is to be destroyed. */
mf_status mf_prices_create(const mf_job_request *r, const mf_cluster *cluster,
                           const mf_software *software, mf_cost **cost, mf_err *e);

/* One after the other. */
mf_status mf_prices_load(const mf_job_request *r, const char *cluster_name,
                         const char *software_name, mf_cluster *cluster, mf_software *software,
                         mf_cost **cost, mf_err *e);

/* Opens a store that --store names, to read from: one that is not there, or empty, is not made.
 * Damage is reported (MF_DAMAGED) before any row is used; *out is to be closed even then. path
 * NULL: the shipped measurements, *out stays NULL. */
mf_status mf_prices_open_store(const char *path, mf_store **out, int64_t *rows, int64_t *damaged,
                               mf_err *e);

#endif
