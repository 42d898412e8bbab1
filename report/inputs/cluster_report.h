/* cluster_report.h - a cluster and where its figures come from, for people and as JSON. */
#ifndef MF_REPORT_CLUSTER_REPORT_H
#define MF_REPORT_CLUSTER_REPORT_H

#include "core/base/json.h"
#include "core/base/json_write.h"
#include "core/cluster/cluster.h"

#include <stdio.h>

/* file: what the cluster was read from, which names the sources. */
void mf_cluster_report_print(FILE *out, const mf_cluster *c, const mf_json *file);
/* An object, in the array that is open or alone. file NULL: without sources. */
void mf_cluster_report_json(mf_json_writer *w, const mf_cluster *c, const mf_json *file);

/* A line for each cluster, below the heads of its columns. */
void mf_cluster_report_heads(FILE *out);
void mf_cluster_report_row(FILE *out, const mf_cluster *c);

#endif
