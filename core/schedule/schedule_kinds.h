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

typedef struct mf_schedule_ops {
    const char *name;
    int chunks;  /* VPP it takes; 0 = any */
    bool groups; /* works in groups of PP micro-batches when VPP > 1 */
    bool split;  /* emits W events */
    /* Fills lists[stage] for every stage; false when out of memory. */
    bool (*generate)(const mf_layout *l, mf_event_list *lists);
} mf_schedule_ops;

/* schedule_zbv.c */
bool mf_schedule_zb_v(const mf_layout *l, mf_event_list *lists);

const mf_schedule_ops *mf_schedule_ops_of(mf_schedule_kind kind); /* NULL when unknown */

#endif
