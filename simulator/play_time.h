/* play_time.h - private to the simulator: how long ops take that are played on streams (play.h),
 * the host far ahead, and nothing else. To the last bit what mf_play_run says; searches ask for
 * little else, and ask often.
 */
#ifndef MF_SIMULATOR_PLAY_TIME_H
#define MF_SIMULATOR_PLAY_TIME_H

#include "simulator/play.h"

/* Ops stay where they are: those of several blocks are told in one order, in which each must stand
 * behind what it waits for. */
typedef struct mf_timed_op {
    const mf_play_op *op; /* its first_dep is not read */
    const int *deps;      /* [op->ndeps] places in `done` */
    bool *done;           /* by place: of its block's ops, false beforehand */
    int at;               /* its own place there */
    int next;             /* work space */
} mf_timed_op;

typedef struct mf_timing {
    mf_timed_op *ops; /* [n] in issue order */
    int n;
    const double *exposed; /* [MF_STREAM_COUNT] as in mf_play */
    /* Slow-down (>= 1) of compute with this memory_share beside communication that takes these
     * shares. */
    double (*slowdown)(const void *user, double memory_share, double sm_share, double memory_Bps);
    const void *user;
} mf_timing;

double mf_play_time_s(const mf_timing *t);

#endif
