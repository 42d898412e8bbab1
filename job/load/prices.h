/* prices.h - a request's cluster, software profile and profile store, and the prices they give. */
#ifndef MF_JOB_PRICES_H
#define MF_JOB_PRICES_H

#include "costmodel/cost.h"
#include "job/request/request.h"

/* Reads cluster and software profile. A request that names no software gets `software_name`, of
 * a correction (BASE@CLUSTER) what it corrects; NULL: the default. */
mf_status mf_prices_read(const mf_job_request *r, const char *cluster_name,
                         const char *software_name, mf_cluster *cluster, mf_software *software,
                         mf_err *e);

/* Creates prices of both from the request's store. The caller destroys *cost. */
mf_status mf_prices_create(const mf_job_request *r, const mf_cluster *cluster,
                           const mf_software *software, mf_cost **cost, mf_err *e);

/* One after the other. */
mf_status mf_prices_load(const mf_job_request *r, const char *cluster_name,
                         const char *software_name, mf_cluster *cluster, mf_software *software,
                         mf_cost **cost, mf_err *e);

/* Opens the store that --store names, read-only: an error when it is missing or empty. Reports
 * damage (MF_DAMAGED) before any row is used; the caller closes *out even then. path NULL: *out
 * stays NULL, which stands for the shipped measurements. */
mf_status mf_prices_open_store(const char *path, mf_store **out, int64_t *rows, int64_t *damaged,
                               mf_err *e);

#endif
