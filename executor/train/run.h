/* run.h - private to training: a run that goes on, and the parts that it is made of: what it works
 * with (train.c), its steps (steps.c), more room for routed rows (room.c). */
#ifndef MF_EXECUTOR_TRAIN_RUN_H
#define MF_EXECUTOR_TRAIN_RUN_H

#include "executor/checkpoint/checkpoint.h"
#include "executor/comm/comm_status.h"
#include "executor/comm/rank_watch.h"
#include "executor/data/data_mix.h"
#include "executor/train/inspect.h"
#include "executor/train/routing_counts.h"
#include "executor/train/run_lock.h"
#include "executor/train/train.h"
#include "executor/train/watchdog.h"

#include <time.h>

#define MF_PATH_B 4096

typedef struct mf_pace mf_pace;

enum { MF_RUN_LOSSES = 32, MF_RUN_LOSSES_LEAST = 8 };

/* What a step that made no update was when it was run again. */
typedef enum mf_run_again {
    MF_AGAIN_UNKNOWN, /* it was not: the device had begun the next one */
    MF_AGAIN_SAME,    /* to the bit */
    MF_AGAIN_OTHER,   /* bad again, by other numbers */
    MF_AGAIN_GOOD     /* a fault that has passed */
} mf_run_again;
typedef struct mf_run_bad {
    mf_run_again again;
    double loss, norm; /* when it was run again */
    char where[400];   /* its first bad value, on rank 0; "": none was found */
} mf_run_bad;

typedef struct run {
    const mf_train_options *o;
    mf_model model;
    mf_layout layout;
    mf_assignment assignment;
    mf_program *program;
    mf_schedule *schedule;
    mf_comm *comm;
    mf_comm *wire; /* between the memories of GPUs; NULL: comm is that, too */
    mf_device *device;
    mf_rank_watch *watch;
    mf_watchdog *watchdog; /* NULL where the device works while the host waits */
    mf_exec *exec;
    mf_op_timer *timer;
    mf_data_mix *data;
    mf_data_order order;
    mf_pace *pace; /* NULL with one rank */
    mf_metrics *metrics;
    mf_routing_counts *routing; /* rank 0's, of a run with a folder and experts; else NULL */
    mf_run_lock *lock;          /* on the folder: rank 0's */
    double *loads;              /* [positions * experts] */
    char checkpoints[MF_PATH_B], resumed[MF_PATH_B];
    int64_t done;                 /* steps, those before this run included */
    int64_t begun;                /* of those that follow, given to the device */
    int64_t samples;              /* consumed */
    int64_t skipped;              /* updates left out, those before this run included */
    int64_t in_row;               /* of the last steps */
    mf_inspect *inspect;          /* a step is run again, to be looked at; else NULL */
    double losses[MF_RUN_LOSSES]; /* of the last steps that counted */
    int64_t losses_known;         /* all in all */
    int64_t saved;                /* step of the newest complete checkpoint; -1: none */
    mf_checkpoint_saving *saving; /* the one that is being written; NULL: none */
    mf_train_saved save;          /* what there is to say of it */
    bool beside, waited;          /* it goes on beside the steps; one had to wait, as was said */
    double save_began_s;
    int64_t save_at;                  /* step behind which it is time for the next one */
    int64_t own;                      /* steps of this run */
    double arena_B, began_s, saved_s; /* when the first step began, training last went on */
    double entered_s[MF_DEVICE_POINTS], ended_s; /* when steps were begun, and the last one ended */
} run;

static inline double mf_run_now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
/* The step whose ops the host enters. */
static inline int64_t mf_run_entering(const run *r) {
    return r->done + (r->inspect != NULL ? 0 : r->begun + 1);
}
/* One line for the user, from rank 0. */
void mf_run_warn(const run *r, const char *format, ...) MF_PRINTF(2, 3);

/* train.c: the program of the run's layout and what executes it; weights do not stand yet. Their
 * end. */
mf_status mf_run_make(run *r, mf_err *e);
void mf_run_unmake(run *r);
/* Weights stand: every rank has what it computes with, and the device what its ops need. The arena
 * of the largest rank is known. Collective. */
mf_status mf_run_ready(run *r, mf_err *e);

/* steps.c: from the first step on. *alone as of mf_train. */
mf_status mf_run_steps(run *r, bool *alone, mf_err *e);
/* What ops took, once no more of them are timed. */
mf_status mf_run_write_times(run *r, bool ended, mf_err *e);

/* pace.c: are there several ranks? Before the first step, collective; its end. */
bool mf_run_has_pace(const run *r);
mf_status mf_run_pace_open(run *r, mf_err *e);
void mf_run_pace_close(run *r);
/* Around a step and its ops; it took so long: its metrics get the ranks' times, and a rank that is
 * slow over many steps is named. The end is collective. */
void mf_run_pace_begin(run *r);
void mf_run_pace_before_op(run *r);
void mf_run_pace_after_op(run *r, int position, const mf_block *b, const mf_op *op);
mf_status mf_run_pace_end(run *r, double took_s, const mf_exec_result *result, mf_train_metrics *m,
                          mf_err *e);
/* The run has another program: its ops are counted from here on. */
mf_status mf_run_pace_program(run *r, mf_err *e);

/* saves.c: is a checkpoint written behind this step? */
bool mf_run_saves_after(const run *r, int64_t step);
/* Has as much time passed since the last one as the user wants? Rank 0 says so. */
bool mf_run_save_is_due(const run *r);
/* Before the first step: do saves go on beside the steps? Collective. */
mf_status mf_run_save_choose(run *r, mf_err *e);
/* The step at hand, unless it is saved already: written while steps go on. One that is being
 * written is waited for. Collective, like all of these. */
mf_status mf_run_save(run *r, mf_err *e);
/* Does this rank still write its part? Once none does: it is agreed on, and goes on. */
bool mf_run_save_is_busy(const run *r);
mf_status mf_run_save_advance(run *r, mf_err *e);
/* Waits for what is being written. The last one: the step at hand, too, is saved when it returns.
 */
mf_status mf_run_save_finish(run *r, mf_err *e);
mf_status mf_run_save_last(run *r, mf_err *e);

/* rerun.c: the loss above which a step is a spike; 0: none is known. A step that counts. */
double mf_run_loss_limit(const run *r);
void mf_run_loss_counts(run *r, double loss);
/* The last step made no update: it is run again from the same weights and samples, and looked at op
 * by op. Collective. */
mf_status mf_run_rerun(run *r, const mf_exec_result *first, mf_run_bad *out, mf_err *e);

/* room.c: routed rows asked for `asked` thousandths of the room that is there: from here on the run
 * goes by a program that has it, with the same weights. No step is on its way. Collective. Errors:
 * MF_INFEASIBLE where no program with that room fits. */
mf_status mf_run_more_room(run *r, int64_t asked, mf_err *e);

#endif
