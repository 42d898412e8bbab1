/* cluster_json.h - reading a cluster's JSON; private to core/cluster/cluster*.c. */
#ifndef MF_CORE_CLUSTER_JSON_H
#define MF_CORE_CLUSTER_JSON_H

#include "core/cluster/cluster.h"

#define MF_CLUSTER_MAX_EXTENDS 8 /* longest chain of "extends" */

/* A parsed file, on top of what it extends. path: where it came from (NULL: unknown), depth: how
 * many files extend it. Errors: as mf_cluster_from_json. */
mf_status mf_cluster_read(const mf_json *doc, const char *path, int depth, mf_cluster *out,
                          mf_err *e);

/* The cluster that "extends" names, seen from the file that says so. Errors: MF_USAGE for unknown
 * names, else as mf_cluster_read. */
mf_status mf_cluster_base(const char *name, const char *from_path, int depth, mf_cluster *out,
                          mf_err *e);

/* What a figure of a GPU that trains usually is, by its key in SI units ("memory_B"); NULL: any
 * that is sane. */
typedef struct mf_usual {
    const char *key;
    double lo, hi;
    const char *range; /* in words */
} mf_usual;
const mf_usual *mf_cluster_usual(const char *key);

#endif
