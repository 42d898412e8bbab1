/* run.h - private to training: the state of a run, and its parts: setup (train.c), steps (steps.c),
 * more headroom for routed rows (headroom.c). */
#ifndef MF_EXECUTOR_TRAIN_RUN_H
#define MF_EXECUTOR_TRAIN_RUN_H

#include "core/base/clock.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/comm/comm_status.h"
#include "executor/comm/rank_watch.h"
#include "executor/data/data_mix.h"
#include "executor/train/inspect.h"
#include "executor/train/routing_counts.h"
#include "executor/train/run_lock.h"
#include "executor/train/train.h"
#include "executor/train/watchdog.h"

#define MF_PATH_B 4096

typedef struct mf_pace mf_pace;

enum { MF_RUN_LOSSES = 32, MF_RUN_LOSSES_LEAST = 8 };

/* What came out when a step that made no update was run again. */
typedef enum mf_run_again {
    MF_AGAIN_UNKNOWN, /* not run again: the device had begun the next one */
    MF_AGAIN_SAME,    /* the same numbers, to the bit */
    MF_AGAIN_OTHER,   /* bad again, with other numbers */
    MF_AGAIN_GOOD     /* good: the fault was transient */
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
    int64_t begun;                /* steps after these that the device has been given */
    int64_t samples;              /* consumed */
    int64_t skipped;              /* updates left out, those before this run included */
    int64_t in_row;               /* of the last steps */
    mf_inspect *inspect;          /* a step is run again, to be looked at; else NULL */
    double losses[MF_RUN_LOSSES]; /* of the last steps that counted */
    int64_t losses_known;         /* all in all */
    int64_t saved;                /* step of the newest complete checkpoint; -1: none */
    mf_checkpoint_saving *saving; /* the one that is being written; NULL: none */
    mf_train_saved save;          /* its step and times, to be reported */
    bool beside, waited;          /* saves run during training; one had to wait */
    double save_began_s;
    int64_t save_at;         /* step after which the next save is due */
    int64_t own;             /* steps of this run */
    int grown;               /* times that routing asked for more space */
    double arena_B;          /* of the largest rank */
    double began_s, saved_s; /* start of the first step, end of the last save */
    mf_device_draw drawn;    /* the driver's counts at drawn_s; 0 s: not known yet */
    double drawn_s;
} run;

/* The step whose ops the host enqueues. */
static inline int64_t mf_run_entering(const run *r) {
    return r->done + (r->inspect != NULL ? 0 : r->begun + 1);
}
/* One line for the user, from rank 0. */
void mf_run_warn(const run *r, const char *format, ...) MF_PRINTF(2, 3);

/* train.c: makes the program of the run's layout and its executor, without weights; frees them. */
mf_status mf_run_make(run *r, mf_err *e);
void mf_run_unmake(run *r);
/* Call it when weights are loaded: sends each copy of a weight to the ranks that hold copies,
 * prepares the device for its ops, finds the largest rank's arena. Collective. */
mf_status mf_run_ready(run *r, mf_err *e);

/* steps.c: runs all steps. *alone: as in mf_train. */
mf_status mf_run_steps(run *r, bool *alone, mf_err *e);
/* Writes the times of ops, when no more of them are measured. */
mf_status mf_run_write_times(run *r, bool ended, mf_err *e);

/* pace.c: has the run several ranks? Setup before the first step, which is collective; cleanup. */
bool mf_run_has_pace(const run *r);
mf_status mf_run_pace_open(run *r, mf_err *e);
void mf_run_pace_close(run *r);
/* Call them around a step and its ops. The end puts the ranks' times into the metrics and reports a
 * rank that is slow over many steps; it is collective. */
void mf_run_pace_begin(run *r);
void mf_run_pace_before_op(run *r);
void mf_run_pace_after_op(run *r, int position, const mf_block *b, const mf_op *op);
mf_status mf_run_pace_end(run *r, const mf_exec_result *result, mf_train_metrics *m, mf_err *e);
/* The run has a new program, whose ops are measured from here on. */
mf_status mf_run_pace_program(run *r, mf_err *e);

/* saves.c: is a checkpoint written after this step? */
bool mf_run_saves_after(const run *r, int64_t step);
/* Has the time between saves that the user asked for passed, by rank 0's clock? */
bool mf_run_save_is_due(const run *r);
/* Before the first step: decides whether saves run while training continues. Collective. */
mf_status mf_run_save_choose(run *r, mf_err *e);
/* Saves the current step, unless it is saved already. Waits for an earlier save that is still being
 * written. Collective, like all of these. */
mf_status mf_run_save(run *r, mf_err *e);
/* Does this rank still write its part? When no rank does, mf_run_save_advance starts the next part.
 */
bool mf_run_save_is_busy(const run *r);
mf_status mf_run_save_advance(run *r, mf_err *e);
/* Waits until the save that is being written is complete; _last also saves the current step and
 * waits for that.
 */
mf_status mf_run_save_finish(run *r, mf_err *e);
mf_status mf_run_save_last(run *r, mf_err *e);

/* rerun.c: the loss above which a step is a spike, 0 while it is not known; and adds the loss of a
 * step that counts. */
double mf_run_loss_limit(const run *r);
void mf_run_loss_counts(run *r, double loss);
/* Runs the last step, which made no update, again from the same weights and samples, and checks it
 * op by op. Collective. */
mf_status mf_run_rerun(run *r, const mf_exec_result *first, mf_run_bad *out, mf_err *e);

/* headroom.c: routed rows needed `asked` thousandths of the rows that the program holds. Replaces
 * the program by one that holds as many, with the same weights. No step may be running. Collective.
 * Errors: MF_INFEASIBLE where no such program fits. */
mf_status mf_run_more_headroom(run *r, int64_t asked, mf_err *e);

#endif
