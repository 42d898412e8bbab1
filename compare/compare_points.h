/* compare_points.h - what a run measured, as points of the profile store. */
#ifndef MF_COMPARE_COMPARE_POINTS_H
#define MF_COMPARE_COMPARE_POINTS_H

#include "executor/train/op_times.h"
#include "job/load/job.h"
#include "profiles/store.h"

/* The key under which the store keeps an op's time on `gpu`; false for what it has no key for. The
 * counterpart of mf_cost_point_op: a price of the point's op is a price of this one. */
bool mf_compare_point(const mf_op *op, const mf_layout *l, const char *gpu, mf_point *out);

/* Writes the times of the run's ops as CSV that `moefold profile --import` takes; ops with one key
 * are averaged. Of collectives the shortest time counts: the last rank to come waits for nobody.
 * *points: how many. Errors: MF_IO, MF_INPUT, MF_NOMEM. */
mf_status mf_compare_export(const mf_job *j, const mf_op_times *t, const char *run,
                            const char *path, int64_t *points, mf_err *e);

/* The same, into the store at `path`, which is made with the shipped measurements when missing.
 * Errors: MF_DAMAGED, too. */
mf_status mf_compare_record(const mf_job *j, const mf_op_times *t, const char *run,
                            const char *path, int64_t *points, mf_err *e);

#endif
