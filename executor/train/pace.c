/* pace.c - finds the rank that delays the others, from the time that each works in a step. For a
 * CPU rank that is the step's time less its waits for others, by the host's clock; for a GPU it is
 * by the GPU's own clock (mf_exec_result.worked_s), as ranks that wait for a slow one wait inside
 * their collectives. */
#include "core/base/sort.h"
#include "executor/train/pace_ops.h"
#include "executor/train/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WINDOW = 20, HOST_B = 64 };
/* A rank's score is the median rank's time over its own. It is slow below slow_score, and reported
 * again only after it was above well_score. Differences below least_s a step do not count. */
static const double slow_score = 0.75, well_score = 0.85, least_s = 0.01;

struct mf_pace {
    int ranks;
    int64_t steps;    /* seen, the first one left out */
    double waited_s;  /* when the step began */
    double *busy_s;   /* [WINDOW][ranks] */
    double *sum_s;    /* [ranks] of the window */
    double *sorted_s; /* [ranks] */
    double *step_s;   /* [ranks] of the step that runs */
    bool *slow;       /* [ranks] has been reported */
    char (*host)[HOST_B];
    mf_pace_ops *ops; /* of the run's program */
};

static void destroy(mf_pace *p) {
    if (p != NULL) {
        free(p->busy_s);
        free(p->sum_s);
        free(p->sorted_s);
        free(p->step_s);
        free(p->slow);
        free(p->host);
        mf_pace_ops_destroy(p->ops);
        free(p);
    }
}

static mf_pace *create(int ranks, mf_err *e) {
    const size_t n = (size_t)ranks;
    mf_pace *p = calloc(1, sizeof *p);
    if (p != NULL) {
        p->ranks = ranks;
        p->busy_s = calloc(WINDOW * n, sizeof *p->busy_s);
        p->sum_s = calloc(n, sizeof *p->sum_s);
        p->sorted_s = calloc(n, sizeof *p->sorted_s);
        p->step_s = calloc(n, sizeof *p->step_s);
        p->slow = calloc(n, sizeof *p->slow);
        p->host = calloc(n, sizeof *p->host);
    }
    if (p == NULL || p->busy_s == NULL || p->sum_s == NULL || p->sorted_s == NULL ||
        p->step_s == NULL || p->slow == NULL || p->host == NULL) {
        mf_err_set(e, MF_NOMEM, "training: out of memory");
        destroy(p);
        return NULL;
    }
    return p;
}

bool mf_run_has_pace(const run *r) {
    return r->layout.gpus > 1;
}

mf_status mf_run_pace_open(run *r, mf_err *e) {
    char own[HOST_B] = "";
    if (!mf_run_has_pace(r)) {
        return MF_OK;
    }
    r->pace = create((int)r->layout.gpus, e);
    mf_status status = r->pace != NULL ? mf_run_pace_program(r, e) : MF_NOMEM;
    status = mf_comm_agree(r->comm, status, e);
    if (gethostname(own, sizeof own - 1) != 0) {
        snprintf(own, sizeof own, "its host");
    }
    return status == MF_OK && r->pace != NULL
               ? mf_comm_all_gather(r->comm, MF_GROUP_WORLD, MF_COMM_I32, own, r->pace->host,
                                    HOST_B / 4, e)
               : status;
}

mf_status mf_run_pace_program(run *r, mf_err *e) {
    if (r->pace == NULL) {
        return MF_OK;
    }
    mf_pace_ops_destroy(r->pace->ops);
    r->pace->ops = mf_pace_ops_create(r->program, WINDOW);
    return r->pace->ops != NULL ? MF_OK : mf_err_set(e, MF_NOMEM, "training: out of memory");
}

void mf_run_pace_close(run *r) {
    destroy(r->pace);
    r->pace = NULL;
}

void mf_run_pace_begin(run *r) {
    if (r->pace != NULL) {
        r->pace->waited_s = mf_rank_watch_waited_s(r->watch);
    }
}

/* The op timer of a device whose ops are done when they return; a GPU reports spans by its own
 * clock. */
static mf_pace_ops *timed_by_host(const run *r) {
    return r->pace != NULL && r->device->ops->on_host ? r->pace->ops : NULL;
}

void mf_run_pace_before_op(run *r) {
    mf_pace_ops_before(timed_by_host(r));
}

void mf_run_pace_after_op(run *r, int position, const mf_block *b, const mf_op *op) {
    mf_pace_ops_after(timed_by_host(r), position, b, op);
}

/* The lower of the two in the middle: with two ranks the quicker one. */
static double middle_of(mf_pace *p, const double *of) {
    memcpy(p->sorted_s, of, (size_t)p->ranks * sizeof *of);
    mf_sort_doubles(p->sorted_s, (size_t)p->ranks);
    return p->sorted_s[(p->ranks - 1) / 2];
}

/* Replaces the oldest step of the window by this one. */
static void add(mf_pace *p, const double *busy_s) {
    double *row = &p->busy_s[p->steps++ % WINDOW * p->ranks];
    memcpy(row, busy_s, (size_t)p->ranks * sizeof *row);
    for (int i = 0; i < p->ranks; i++) {
        p->sum_s[i] = 0.0;
        for (int k = 0; k < WINDOW; k++) {
            p->sum_s[i] += p->busy_s[k * p->ranks + i];
        }
    }
}

/* All ranks see the same times and so call the collective below for the same ranks. */
static mf_status judge(run *r, mf_err *e) {
    mf_pace *p = r->pace;
    mf_status status = MF_OK;
    const double middle_s = middle_of(p, p->sum_s);
    for (int i = 0; i < p->ranks && p->steps >= WINDOW; i++) {
        const double score = p->sum_s[i] > 0.0 ? middle_s / p->sum_s[i] : 1.0;
        const bool slow = score < slow_score && p->sum_s[i] - middle_s > least_s * (double)WINDOW;
        if (slow && !p->slow[i] && status == MF_OK) {
            char at[160] = "";
            status = mf_pace_ops_text(p->ops, r->comm, i, at, sizeof at, e);
            mf_run_warn(r,
                        "step %lld: rank %d on %s is slow: over %d steps it worked %.3g s a step, "
                        "the median rank %.3g s (score %.2f)%s: the others wait for it",
                        (long long)r->done, i, p->host[i], (int)WINDOW, p->sum_s[i] / WINDOW,
                        middle_s / WINDOW, score, at);
        }
        p->slow[i] = slow || (p->slow[i] && score < well_score);
    }
    return status;
}

static void fill(mf_pace *p, const double *busy_s, mf_train_metrics *m) {
    int slowest = 0;
    for (int i = 1; i < p->ranks; i++) {
        slowest = busy_s[i] > busy_s[slowest] ? i : slowest;
    }
    m->work_median_s = middle_of(p, busy_s);
    m->work_slowest_s = busy_s[slowest];
    m->slowest_rank = slowest;
}

mf_status mf_run_pace_end(run *r, const mf_exec_result *result, mf_train_metrics *m, mf_err *e) {
    mf_pace *p = r->pace;
    if (p == NULL) {
        return MF_OK;
    }
    const double own_s = r->device->ops->on_host
                             ? result->took_s - (mf_rank_watch_waited_s(r->watch) - p->waited_s)
                             : result->worked_s;
    mf_status status =
        mf_comm_all_gather(r->comm, MF_GROUP_WORLD, MF_COMM_F64, &own_s, p->step_s, 1, e);
    if (status == MF_OK) {
        fill(p, p->step_s, m);
        if (result->span_ns != NULL) {
            mf_pace_ops_spans(p->ops, result->span_ns);
        }
        mf_pace_ops_step(p->ops, r->own > 1);
        if (r->own > 1) { /* in the first one memory is touched for the first time */
            add(p, p->step_s);
            status = judge(r, e);
        }
    }
    return status;
}
