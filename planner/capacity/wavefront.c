/* wavefront.c - cells of a table that are worked on several at a time. */
#include "planner/capacity/wavefront.h"

#include "planner/tuning/limits.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

typedef struct front {
    const mf_wavefront *w;
    pthread_mutex_t lock;
    pthread_cond_t moved; /* a cell is done */
    int *begun, *done;    /* [rows] cells of each, from the left */
    int busy;             /* cells that are worked on */
    mf_status status;
    mf_err err;
    int failed_row, failed_column;
} front;

/* So many cells of the row above end before a cell begins. */
static int above_of(int column) {
    return column > 1 ? column : 1;
}

/* Each row above ends a cell less before; the first ones all end. */
bool mf_wavefront_knows(const mf_wavefront *w, int row, int column, int before, int at) {
    return row == before ? at < column
                         : row > before && row / w->group == before / w->group &&
                               at < above_of(column - (row - before) + 1);
}

static bool is_ready(const front *f, int row) {
    const int column = f->begun[row];
    return column < f->w->columns && column == f->done[row] &&
           (row % f->w->group == 0 || f->done[row - 1] >= above_of(column));
}

/* The row whose next cell may be worked on; -1 where each row waits for another. */
static int next_row(const front *f) {
    int best = -1;
    for (int row = 0; row < f->w->rows; row++) {
        if (is_ready(f, row) && (best < 0 || f->begun[row] < f->begun[best])) {
            best = row;
        }
    }
    return best;
}

static void note_failure(front *f, int row, int column, mf_status s, const mf_err *e) {
    if (f->status == MF_OK || column < f->failed_column ||
        (column == f->failed_column && row < f->failed_row)) {
        f->status = s;
        f->err = *e;
        f->failed_row = row;
        f->failed_column = column;
    }
}

/* Until there is no more to begin. With the lock, which work is without. */
static void work_on(front *f) {
    for (;;) {
        const int row = f->status == MF_OK ? next_row(f) : -1;
        if (row < 0 && f->busy == 0) {
            return;
        }
        if (row < 0) {
            pthread_cond_wait(&f->moved, &f->lock);
            continue;
        }
        const int column = f->begun[row]++;
        mf_err e;
        mf_err_clear(&e);
        f->busy++;
        pthread_mutex_unlock(&f->lock);
        const mf_status s = f->w->work(f->w->user, row, column, &e);
        pthread_mutex_lock(&f->lock);
        f->busy--;
        f->done[row]++;
        if (s != MF_OK) {
            note_failure(f, row, column, s, &e);
        }
        pthread_cond_broadcast(&f->moved);
    }
}

static void *work(void *arg) {
    front *f = arg;
    pthread_mutex_lock(&f->lock);
    work_on(f);
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

mf_status mf_wavefront_run(const mf_wavefront *w, int threads, mf_err *e) {
    front f = {.w = w, .lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};
    pthread_t thread[MF_CELLS_AT_ONCE];
    int more = 0;
    f.begun = calloc(2 * (size_t)w->rows + 1, sizeof *f.begun);
    if (f.begun == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    f.done = f.begun + w->rows;
    while (more + 1 < threads && more + 1 < w->rows && more < MF_CELLS_AT_ONCE &&
           pthread_create(&thread[more], NULL, work, &f) == 0) {
        more++;
    }
    work(&f);
    for (int i = 0; i < more; i++) {
        pthread_join(thread[i], NULL);
    }
    if (f.status != MF_OK && e != NULL) {
        *e = f.err;
    }
    pthread_mutex_destroy(&f.lock);
    pthread_cond_destroy(&f.moved);
    free(f.begun);
    return f.status;
}
