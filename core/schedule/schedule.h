/* schedule.h - pipeline schedules: for each stage, the order of (chunk, micro-batch, pass).
 *
 * Generators in one table; they know nothing of layers. Virtual stage v sits on
 * mf_layout_stage_of(v) as chunk mf_layout_chunk_of(v).
 */
#ifndef MF_CORE_SCHEDULE_H
#define MF_CORE_SCHEDULE_H

#include "core/layout/layout.h"

typedef enum mf_event_pass {
    MF_EVENT_F,  /* forward of one chunk and micro-batch */
    MF_EVENT_B,  /* backward: input gradient alone when the schedule splits, else both */
    MF_EVENT_W,  /* weight gradient (split schedules) */
    MF_EVENT_FB, /* merged: forward of (chunk, micro_batch) with backward of (chunk2, micro_batch2)
                  */
} mf_event_pass;

typedef struct mf_event {
    uint8_t pass;
    int16_t chunk, chunk2;
    int32_t micro_batch, micro_batch2;
} mf_event;

typedef struct mf_schedule {
    int64_t stages, chunks, micro_batches;
    bool split;        /* W events exist */
    int64_t *count;    /* [stages] */
    mf_event **events; /* [stages][count] */
} mf_schedule;

/* Generates the layout's schedule for its PP, VPP and number of micro-batches. zb-v needs VPP 2.
 * Errors: MF_LAYOUT (rule broken), MF_NOMEM. */
mf_status mf_schedule_create(const mf_layout *l, mf_schedule **out, mf_err *e);
void mf_schedule_destroy(mf_schedule *s);

/* Checks that a schedule is complete (every (chunk, mb) forward and backward once, W after B) and
 * can run without deadlock when sends are buffered. For tests and for schedules from outside. */
mf_status mf_schedule_check(const mf_layout *l, const mf_schedule *s, mf_err *e);

/* Messages between virtual stages that a rank reserves memory for, the size of a boundary tensor
 * each: those on their way to other ranks (one per direction; zb-v, which may have sent two: one
 * per chunk), and those waiting for a chunk of the same rank. */
int mf_schedule_sending(const mf_layout *l); /* per direction */
int mf_schedule_messages(const mf_layout *l);
/* Which of the 2 * mf_schedule_sending buffers a message uses that virtual stage `from` sends, in
 * direction 0 (forward) or 1 (backward): the same on both sides. */
int mf_schedule_slot(const mf_layout *l, int64_t from, int direction);

/* Most micro-batches of each chunk in flight (forward done, backward not) at the same time on a
 * stage: the undominated vectors in_flight[k][chunk], the first max_rows of them; the array holds
 * max_rows x chunks. Returns how many. held[k][chunk]: micro-batches whose B is done and W is not,
 * at that moment. */
int mf_schedule_in_flight(const mf_schedule *s, int64_t stage, int max_rows, int32_t *in_flight,
                          int32_t *held);

#endif
