/* events.h - scalars for TensorBoard, as an event file.
 *
 * A file is TFRecords (length, its masked CRC-32C, bytes, their masked CRC-32C;
 * https://www.tensorflow.org/tutorials/load_data/tfrecord), each of them an Event message
 * (tensorflow/core/util/event.proto): wall_time 1, step 2, file_version 3, summary 5, session_log
 * 7. Written and flushed step by step; belongs to one thread.
 */
#ifndef MF_EXECUTOR_EVENTS_H
#define MF_EXECUTOR_EVENTS_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mf_events mf_events;

typedef struct mf_event_scalar {
    const char *tag;
    double value; /* stored as float */
} mf_event_scalar;

/* Makes FOLDER/events.out.tfevents.<seconds>.<host>.<pid>. A first record makes readers drop what
 * an earlier run wrote from `first_step` on. The caller closes *out. Errors: MF_IO. */
mf_status mf_events_open(const char *folder, int64_t first_step, mf_events **out, mf_err *e);
mf_status mf_events_add(mf_events *v, int64_t step, const mf_event_scalar *scalar, int count,
                        mf_err *e);
/* NULL is fine. Errors: MF_IO for what could not be written. */
mf_status mf_events_close(mf_events *v, mf_err *e);

#endif
