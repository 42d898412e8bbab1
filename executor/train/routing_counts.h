/* routing_counts.h - routing.csv: how many rows each expert of a run got, for `simulate --routing`.
 *
 * One line for each MoE layer, one count for each expert: means over the steps since the file was
 * written last. It is written behind steps 1, 2, 4 .. 256, then behind every 256th and at the end,
 * whole or not at all. */
#ifndef MF_EXECUTOR_TRAIN_ROUTING_COUNTS_H
#define MF_EXECUTOR_TRAIN_ROUTING_COUNTS_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mf_routing_counts mf_routing_counts;

/* For a model with `positions` positions, those without experts included. *out is NULL for a model
 * without experts. MF_NOMEM, MF_IO where the path is too long. */
mf_status mf_routing_counts_open(const char *folder, int64_t positions, int64_t experts,
                                 mf_routing_counts **out, mf_err *e);

/* Adds the rows [positions][experts] of step `step`, and writes when it is time. MF_IO, MF_NOMEM.
 */
mf_status mf_routing_counts_add(mf_routing_counts *c, int64_t step, const double *rows, mf_err *e);

/* Frees c, which may be NULL; with `write` first writes the steps not written yet. MF_IO,
 * MF_NOMEM. */
mf_status mf_routing_counts_close(mf_routing_counts *c, bool write, mf_err *e);

#endif
