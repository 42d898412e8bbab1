/* schedule_slices.h - a step's schedule as slices, for a picture. */
#ifndef MF_REPORT_SCHEDULE_SLICES_H
#define MF_REPORT_SCHEDULE_SLICES_H

#include "core/base/json_write.h"
#include "core/base/status.h"
#include "core/layout/layout.h"

#include <stdio.h>

/* Writes member "schedule" into the object that is open: an array of a pass of a chunk each,
 * {stage, pass, micro_batch, last_micro_batch, chunk, start_s, end_s}, by stage and start. `trace`
 * is what the simulator wrote for this layout (simulator/trace.h), read from its beginning. Passes
 * of one kind that stand side by side and would be too thin to see are written as one, up to
 * last_micro_batch; a stretch of passes that the trace has as one has "mixed" for a pass, chunk 0,
 * the range of its micro-batches, and the time in it that the stage waits (waiting_s). Errors:
 * MF_NOMEM. */
mf_status mf_schedule_slices_write(mf_json_writer *w, FILE *trace, const mf_layout *l,
                                   double step_time_s, mf_err *e);

#endif
