/* play.h - private to the simulator: ops with given prices, played on streams against time.
 *
 * Each stream runs its ops in the order of the list, one at a time; an op starts when its inputs
 * are made and the host has issued it. What runs together slows down: communication on one kind of
 * link divides it in proportion to what each op would use alone (processor sharing), and compute
 * and communication beside each other run at the rates that the rules give. Knows no cost model:
 * prices come with the ops, so that play can be tested with prices by hand.
 */
#ifndef MF_SIMULATOR_PLAY_H
#define MF_SIMULATOR_PLAY_H

#include "simulator/sim.h"

/* What runs beside communication: kernels bound by memory, and others. */
enum { MF_PLAY_MEMORY, MF_PLAY_PRODUCT, MF_PLAY_WORKS };

/* What communication loses to it: time grows by the factor (0 = 1), and where it was there first,
 * communication waits for a multiprocessor, at most wait_s. */
typedef struct mf_play_loss {
    double factor, wait_s;
} mf_play_loss;

typedef struct mf_play_op {
    const mf_op *op; /* for the rules; may be NULL */
    uint8_t stream;  /* mf_stream */
    uint8_t pass;    /* MF_PASS_* bit */
    uint8_t link;    /* mf_link_kind */
    int first_dep;   /* into mf_play.deps: places of earlier ops that make its inputs */
    int ndeps;
    double alone_s, low_s, high_s;
    double sm_share, link_share, memory_Bps;
    double memory_share;              /* of compute, for the rules (mf_cost_memory_share) */
    uint8_t work;                     /* of compute: MF_PLAY_... */
    mf_play_loss loss[MF_PLAY_WORKS]; /* of communication */
    double issue_s;                   /* when the host has issued it */
    double start_s, end_s;            /* result */
    int cause; /* result: op whose end let it start; -1 = the host, or nothing */
} mf_play_op;

/* Slow-down (>= 1) of compute op `i` beside communication that takes these shares. */
typedef double (*mf_slowdown_fn)(void *user, int i, double sm_share, double memory_Bps);

typedef struct mf_play {
    mf_play_op *ops; /* [n] in issue order */
    int n;
    const int *deps;
    mf_slowdown_fn slowdown;         /* NULL = none */
    double exposed[MF_STREAM_COUNT]; /* share of a stream's time that compute beside it loses */
    double exposed_inside;           /* of MF_STREAM_DP's where it stays inside a domain */
    void *user;

    /* result */
    double time_s;               /* until the last op ends */
    double compute_s;            /* compute stream running */
    double class_s[MF_BD_COUNT]; /* sums to time_s: see MF_BREAKDOWN_MAP in sim.h */
    double low_s, high_s;        /* bands of the ops along the critical path, host time as it is */
    int *next_of;                /* [n] work space: next op of the same stream */
} mf_play;

/* Plays all ops. An op depends on earlier ones in the list only (asserted), so the play ends. */
void mf_play_run(mf_play *p);

/* Critical path of the same ops, each as fast as alone, the host infinitely ahead: never above
 * time_s of mf_play_run. `end` is work space [n]. */
double mf_play_bound(const mf_play *p, double *end);

/* Share of communication's time that compute beside it loses. */
static inline double mf_play_exposed(const double exposed[MF_STREAM_COUNT], double inside,
                                     int stream, int link) {
    return stream == MF_STREAM_DP && link == MF_LINK_SCALEUP ? inside : exposed[stream];
}

/* Class of waiting for a stream. */
mf_breakdown_kind mf_play_stream_class(mf_stream s);

#endif
