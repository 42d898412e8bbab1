/* checkpoint_save.c - a save in parts, from the copy of the state to the rename of the folder. A
 * thread on each rank writes to disk while training continues; between two steps the ranks agree on
 * the outcome. */
#include "executor/checkpoint/checkpoint_write.h"
#include "executor/comm/comm_status.h"
#include "executor/files/files.h"
#include "executor/step/exec.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_B 4096

typedef enum part { OWN_FILE, MANIFEST, COMPLETE } part;

struct mf_checkpoint_saving {
    mf_exec *exec;
    bool in_background;
    int keep;
    char folder[PATH_B], temporary[PATH_B], name[40];
    mf_checkpoint_piece *piece; /* of this rank */
    size_t count, allocated;
    mf_checkpoint_file own;
    mf_checkpoint_manifest manifest;

    part at; /* the part that runs, or is done but not yet agreed on */
    pthread_t thread;
    bool threaded;    /* a thread runs the part and has to be joined */
    atomic_bool done; /* by this rank */
    mf_status status; /* how it ended; valid after the join */
    mf_err why;
};

/* --- this rank's part --------------------------------------------------------------------------
 */

static mf_status collect(const mf_checkpoint_piece *p, void *user, mf_err *e) {
    mf_checkpoint_saving *w = user;
    if (w->count == w->allocated) {
        size_t allocated = w->allocated > 0 ? 2 * w->allocated : 256;
        mf_checkpoint_piece *piece = realloc(w->piece, allocated * sizeof *piece);
        if (piece == NULL) {
            return mf_err_set(e, MF_NOMEM, "checkpoint: out of memory");
        }
        w->piece = piece;
        w->allocated = allocated;
    }
    w->piece[w->count++] = *p;
    return MF_OK;
}

static bool is_first(const mf_checkpoint_saving *w) {
    return mf_comm_rank(w->exec->comm) == 0;
}

static void *work(void *arg) {
    mf_checkpoint_saving *w = arg;
    mf_err_clear(&w->why);
    if (w->at == OWN_FILE) {
        w->status = mf_checkpoint_write_own(w->temporary, mf_comm_rank(w->exec->comm), w->piece,
                                            w->count, &w->own, &w->why);
    } else {
        w->status = mf_checkpoint_complete(w->folder, w->temporary, w->name, &w->manifest, w->keep,
                                           &w->why);
    }
    atomic_store(&w->done, true);
    return NULL;
}

/* Runs the current part: in a thread, or here when none can be started. */
static void start(mf_checkpoint_saving *w, bool mine) {
    w->status = MF_OK;
    atomic_store(&w->done, !mine);
    w->threaded = mine && w->in_background && pthread_create(&w->thread, NULL, work, w) == 0;
    if (mine && !w->threaded) {
        work(w);
    }
}

static void join(mf_checkpoint_saving *w) {
    if (w->threaded) {
        pthread_join(w->thread, NULL);
    }
    w->threaded = false;
}

/* --- of all ranks ------------------------------------------------------------------------------
 */

/* With several ranks, a failure names the rank. */
static mf_status agree(const mf_checkpoint_saving *w, mf_status mine, mf_err *e) {
    mf_comm *c = w->exec->comm;
    if (mine != MF_OK && e != NULL && e->text[0] != '\0' &&
        mf_comm_group_size(c, MF_GROUP_WORLD) > 1) {
        mf_err_prefix(e, "rank %lld", (long long)mf_comm_rank(c));
    }
    return mf_comm_agree(c, mine, e);
}

/* Collects on all ranks what each one knows of its own file. */
static mf_status gather(mf_checkpoint_saving *w, mf_err *e) {
    const mf_checkpoint_file *own = &w->own;
    mf_checkpoint_manifest *m = &w->manifest;
    mf_comm *c = w->exec->comm;
    double mine[3] = {(double)own->size_B, (double)own->tensors, (double)own->header_crc};
    m->files = mf_comm_group_size(c, MF_GROUP_WORLD);
    double *all = calloc((size_t)m->files * 3, sizeof *all);
    m->file = calloc((size_t)m->files, sizeof *m->file);
    bool allocated = all != NULL && m->file != NULL;
    mf_status status =
        agree(w, allocated ? MF_OK : mf_err_set(e, MF_NOMEM, "checkpoint: out of memory"), e);
    if (all == NULL || m->file == NULL || status != MF_OK) {
        free(all);
        return status;
    }
    status = mf_comm_all_gather(c, MF_GROUP_WORLD, MF_COMM_F64, mine, all, 3, e);
    for (int64_t i = 0; i < m->files && status == MF_OK; i++) {
        m->file[i] = (mf_checkpoint_file){.size_B = (int64_t)all[3 * i],
                                          .tensors = (int64_t)all[3 * i + 1],
                                          .header_crc = (uint32_t)all[3 * i + 2]};
    }
    free(all);
    return status;
}

/* Sets the names, lists this rank's pieces and, on rank 0, makes the folder that all write to. */
static mf_status prepare(mf_checkpoint_saving *w, mf_err *e) {
    char hidden[48];
    snprintf(hidden, sizeof hidden, "tmp-%s", w->name);
    if (!mf_path_join(w->temporary, sizeof w->temporary, w->folder, hidden, NULL)) {
        return mf_err_set(e, MF_IO, "%s: path too long", w->folder);
    }
    mf_status status = w->in_background ? mf_exec_state_stage(w->exec, e) : MF_OK;
    status = status == MF_OK ? mf_checkpoint_pieces(w->exec, collect, w, e) : status;
    if (status == MF_OK && is_first(w)) {
        mf_folder_remove(w->temporary);
        status = mf_folder_make(w->temporary, e);
    }
    return status;
}

mf_status mf_checkpoint_begin(mf_exec *x, const char *folder, const mf_train_progress *progress,
                              int keep, bool in_background, mf_checkpoint_saving **out, mf_err *e) {
    mf_checkpoint_saving *w = calloc(1, sizeof *w);
    mf_status status = w != NULL ? MF_OK : mf_err_set(e, MF_NOMEM, "checkpoint: out of memory");
    *out = NULL;
    if (w != NULL) {
        w->exec = x;
        w->in_background = in_background;
        w->keep = keep;
        w->manifest.progress = *progress;
        mf_checkpoint_step_name(progress->step, w->name);
        mf_checkpoint_fingerprint(&x->p->model, w->manifest.model);
        snprintf(w->folder, sizeof w->folder, "%s", folder);
        status = prepare(w, e);
    }
    const mf_checkpoint_saving of_all = {.exec = x};
    status = agree(&of_all, status, e);
    if (status != MF_OK || w == NULL) {
        mf_checkpoint_saving_destroy(w);
        return status != MF_OK ? status : MF_NOMEM;
    }
    start(w, true);
    *out = w;
    return MF_OK;
}

bool mf_checkpoint_thread_done(const mf_checkpoint_saving *w) {
    return atomic_load(&w->done);
}

mf_status mf_checkpoint_advance(mf_checkpoint_saving *w, bool *complete, mf_err *e) {
    join(w);
    *complete = false;
    if (w->status != MF_OK && e != NULL) {
        *e = w->why;
    }
    mf_status status = agree(w, w->status, e);
    if (status == MF_OK && w->at == OWN_FILE) {
        status = gather(w, e);
        w->at = MANIFEST;
        if (status == MF_OK) {
            start(w, is_first(w));
        }
    } else if (status == MF_OK) {
        w->at = COMPLETE;
        *complete = true;
    }
    return status;
}

void mf_checkpoint_saving_destroy(mf_checkpoint_saving *w) {
    if (w != NULL) {
        join(w);
        mf_checkpoint_manifest_clear(&w->manifest);
        free(w->piece);
    }
    free(w);
}

mf_status mf_checkpoint_save(mf_exec *x, const char *folder, const mf_train_progress *progress,
                             int keep, mf_err *e) {
    mf_checkpoint_saving *w = NULL;
    bool complete = false;
    mf_status status = mf_checkpoint_begin(x, folder, progress, keep, false, &w, e);
    while (status == MF_OK && !complete) {
        status = mf_checkpoint_advance(w, &complete, e);
    }
    mf_checkpoint_saving_destroy(w);
    return status;
}
