/* prices.h - prices from the options: cluster, software profile, profile store. */
#ifndef MF_CLI_PRICES_H
#define MF_CLI_PRICES_H

#include "cli/cli.h"
#include "costmodel/cost.h"

/* Cluster, software profile and the prices they give, from the names given and --software, --store.
 * software: used without --software; NULL = the default. *cost is to be destroyed. */
mf_status mf_prices_load(const mf_args *a, const char *cluster_name, const char *software_name,
                         mf_cluster *cluster, mf_software *software, mf_cost **cost, mf_err *e);

/* The two parts of it: names into cluster and profile; these into prices. */
mf_status mf_prices_read(const mf_args *a, const char *cluster_name, const char *software_name,
                         mf_cluster *cluster, mf_software *software, mf_err *e);
mf_status mf_prices_create(const mf_args *a, const mf_cluster *cluster, const mf_software *software,
                           mf_cost **cost, mf_err *e);

/* Opens a store that --store names, to read from: one that is not there, or empty, is not made.
 * Damage is reported (MF_DAMAGED) before any row is used; *out is to be closed even then. */
mf_status mf_prices_open_store(const char *path, mf_store **out, int64_t *rows, int64_t *damaged,
                               mf_err *e);

/* An option's text, or `absent`. */
const char *mf_prices_text(const mf_args *a, mf_option_id id, const char *absent);

/* The option that a single name came from: `list` where the command takes several of them. */
mf_option_id mf_prices_option(const mf_args *a, mf_option_id one, mf_option_id list);

/* Puts "--cluster: " in front of MF_USAGE, which is about a name; errors in files tell their own
 * place. Returns s. */
mf_status mf_prices_name(mf_status s, mf_option_id id, mf_err *e);

#endif
