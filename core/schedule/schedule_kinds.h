/* schedule_kinds.h - private to schedules: the table that a new schedule adds one line to. */
#ifndef MF_CORE_SCHEDULE_KINDS_H
#define MF_CORE_SCHEDULE_KINDS_H

#include "core/schedule/schedule.h"

typedef struct mf_event_list {
    mf_event *events;
    int64_t count, capacity;
    bool failed;
} mf_event_list;

void mf_schedule_push(mf_event_list *list, mf_event event);

/* Fills lists[stage] for every stage; false when out of memory. */
typedef bool mf_schedule_generate(const mf_layout *l, mf_event_list *lists);

/* schedule_zbv.c */
mf_schedule_generate mf_schedule_zb_v;

mf_schedule_generate *mf_schedule_generator(mf_schedule_kind kind); /* NULL when unknown */

#endif
