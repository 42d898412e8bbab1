/* play_time.h - private to the simulator: how long ops take that are played on streams (play.h),
 * the host far ahead, and nothing else. To the last bit what mf_play_run says; searches ask for
 * little else, and ask often.
 */
#ifndef MF_SIMULATOR_PLAY_TIME_H
#define MF_SIMULATOR_PLAY_TIME_H

#include "simulator/play.h"

/* The fields of an mf_play_op that decide times: half its size, since a search keeps many. */
typedef struct mf_timed_work {
    uint8_t stream, link, work;
    uint8_t ndeps; /* no op has as many inputs */
    int first_dep; /* not read here */
    double alone_s;
    double sm_share, link_share, memory_Bps;
    double memory_share;
    mf_play_loss loss[MF_PLAY_WORKS];
} mf_timed_work;

mf_timed_work mf_timed_work_of(const mf_play_op *op);

/* Pointers to ops of one or several blocks in one order, each after those that it depends on. */
typedef struct mf_timed_op {
    const mf_timed_work *op;
    const int *deps; /* [op->ndeps] places in `done` */
    bool *done;      /* by place: of its block's ops, false beforehand */
    int at;          /* its own place there */
    int next;        /* work space */
} mf_timed_op;

typedef struct mf_timing {
    mf_timed_op *ops; /* [n] in issue order */
    int n;
    const double *exposed; /* [MF_STREAM_COUNT] as in mf_play */
    double exposed_inside;
    /* Slow-down (>= 1) of compute with this memory_share beside communication that takes these
     * shares. */
    double (*slowdown)(const void *user, double memory_share, double sm_share, double memory_Bps);
    const void *user;
} mf_timing;

double mf_play_time_s(const mf_timing *t);

#endif
