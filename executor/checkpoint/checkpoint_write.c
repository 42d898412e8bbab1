/* checkpoint_write.c - all ranks write their pieces; one rename makes a checkpoint of them. */
#include "executor/checkpoint/checkpoint_manifest.h"
#include "executor/checkpoint/checkpoint_pieces.h"
#include "executor/comm/agree.h"
#include "executor/data/files.h"
#include "executor/step/exec.h"

#include "core/base/crc32c.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_B 4096

/* --- this rank's file --------------------------------------------------------------------------
 */

typedef struct collected {
    mf_st_source *list;
    char (*name)[MF_CHECKPOINT_NAME_MAX];
    size_t count, room;
} collected;

static bool grow(collected *c) {
    size_t room = c->room > 0 ? 2 * c->room : 256;
    mf_st_source *list = realloc(c->list, room * sizeof *list);
    if (list == NULL) {
        return false;
    }
    c->list = list;
    char(*name)[MF_CHECKPOINT_NAME_MAX] = realloc(c->name, room * sizeof *name);
    if (name == NULL) {
        return false;
    }
    c->name = name;
    c->room = room;
    return true;
}

static mf_status collect(const mf_checkpoint_piece *p, void *user, mf_err *e) {
    collected *c = user;
    if (c->count == c->room && !grow(c)) {
        return mf_err_set(e, MF_NOMEM, "checkpoint: out of memory");
    }
    bool bf16 = p->dtype == MF_KERNEL_BF16;
    size_t size_B = (size_t)(p->rows * p->cols) * (bf16 ? 2 : 4);
    mf_checkpoint_name(p, mf_crc32c(0, p->data, size_B), c->name[c->count]);
    c->list[c->count++] = (mf_st_source){.dtype = bf16 ? MF_ST_BF16 : MF_ST_F32,
                                         .dims = 2,
                                         .shape = {p->rows, p->cols},
                                         .data = p->data};
    return MF_OK;
}

static mf_status write_own(mf_exec *x, const char *folder, mf_checkpoint_file *out, mf_err *e) {
    char path[PATH_B], name[40];
    collected c = {0};
    mf_checkpoint_file_name(mf_comm_rank(x->comm), name);
    if (!mf_path_join(path, sizeof path, folder, name, NULL)) {
        return mf_err_set(e, MF_IO, "%s: path too long", folder);
    }
    mf_status status = mf_checkpoint_pieces(x, collect, &c, e);
    for (size_t i = 0; i < c.count; i++) {
        c.list[i].name = c.name[i];
    }
    status = status == MF_OK ? mf_safetensors_write(path, c.list, c.count, e) : status;
    status = status == MF_OK ? mf_checkpoint_file_look(path, out, e) : status;
    out->tensors = (int64_t)c.count;
    free(c.list);
    free(c.name);
    return status;
}

/* --- old ones ----------------------------------------------------------------------------------
 */

/* Step of a folder's name; -1 for another name. */
static int64_t step_of(const char *name) {
    char *end = NULL;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') {
        return -1;
    }
    long long step = strtoll(name + 5, &end, 10);
    return *end == '\0' ? step : -1;
}

/* Newest step below `below`, and how many there are; -1: none. */
static mf_status newest_below(const char *folder, int64_t below, int64_t *step, int *count,
                              mf_err *e) {
    struct dirent *entry;
    *step = -1;
    *count = 0;
    DIR *d = opendir(folder);
    if (d == NULL) {
        return errno == ENOENT ? MF_OK : mf_err_set(e, MF_IO, "%s: %s", folder, strerror(errno));
    }
    while (errno = 0, (entry = readdir(d)) != NULL) {
        int64_t s = step_of(entry->d_name);
        if (s >= 0 && s < below) {
            *step = s > *step ? s : *step;
            ++*count;
        }
    }
    int why = errno; /* a list that breaks off may hide the newest */
    closedir(d);
    return why == 0 ? MF_OK : mf_err_set(e, MF_IO, "%s: %s", folder, strerror(why));
}

static void step_name(int64_t step, char out[40]) {
    snprintf(out, 40, "step-%08lld", (long long)step);
}

mf_status mf_checkpoint_path(const char *folder, int64_t step, char *out, size_t size, mf_err *e) {
    char name[40];
    step_name(step, name);
    return mf_path_join(out, size, folder, name, NULL)
               ? MF_OK
               : mf_err_set(e, MF_IO, "%s: path too long", folder);
}

mf_status mf_checkpoint_newest(const char *folder, char *out, size_t size, mf_err *e) {
    int64_t step;
    int count;
    out[0] = '\0';
    mf_status status = newest_below(folder, INT64_MAX, &step, &count, e);
    return status != MF_OK || step < 0 ? status : mf_checkpoint_path(folder, step, out, size, e);
}

mf_status mf_checkpoint_check_name(const char *path, int64_t step, mf_err *e) {
    char name[40];
    const char *slash = strrchr(path, '/'), *own = slash != NULL ? slash + 1 : path;
    step_name(step, name);
    return step_of(own) < 0 || strcmp(own, name) == 0
               ? MF_OK
               : mf_err_set(e, MF_DAMAGED, "manifest.json is of step %lld: this is not its folder",
                            (long long)step);
}

void mf_checkpoint_clean(const char *folder) {
    char path[PATH_B];
    struct dirent *entry;
    DIR *d = opendir(folder);
    while (d != NULL && (entry = readdir(d)) != NULL) {
        if (strncmp(entry->d_name, "tmp-", 4) == 0 &&
            mf_path_join(path, sizeof path, folder, entry->d_name, NULL)) {
            mf_folder_remove(path);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
}

/* A folder gets another name before its files go: half a checkpoint never has a checkpoint's name.
 */
static void drop(const char *folder, int64_t step) {
    char name[40], dead[48], from[PATH_B], to[PATH_B];
    step_name(step, name);
    snprintf(dead, sizeof dead, "tmp-old-%s", name);
    if (mf_path_join(from, sizeof from, folder, name, NULL) &&
        mf_path_join(to, sizeof to, folder, dead, NULL) && rename(from, to) == 0) {
        mf_folder_remove(to);
    }
}

static mf_status drop_old(const char *folder, int keep, mf_err *e) {
    int64_t below = INT64_MAX, step;
    int count;
    mf_status status = MF_OK;
    for (int i = 0; keep > 0 && status == MF_OK; i++) {
        status = newest_below(folder, below, &step, &count, e);
        if (status != MF_OK || step < 0) {
            break;
        }
        if (i >= keep) {
            drop(folder, step);
        }
        below = step;
    }
    return status;
}

/* --- saving ------------------------------------------------------------------------------------
 */

/* Rank 0, when every rank's file is on disk. */
static mf_status complete(const char *folder, const char *temporary, const char *name,
                          const mf_checkpoint_manifest *m, int keep, mf_err *e) {
    char path[PATH_B];
    if (!mf_path_join(path, sizeof path, folder, name, NULL)) {
        return mf_err_set(e, MF_IO, "%s: path too long", folder);
    }
    mf_status status = mf_checkpoint_manifest_write(temporary, m, e);
    status = status == MF_OK ? mf_folder_sync(temporary, e) : status;
    if (status != MF_OK) {
        return status;
    }
    drop(folder, m->stand.step); /* of the same step: a run that was taken back to before it */
    if (rename(temporary, path) != 0) {
        return mf_err_set(e, MF_IO, "%s: %s", path, strerror(errno));
    }
    status = mf_folder_sync(folder, e);
    return status == MF_OK ? drop_old(folder, keep, e) : status;
}

/* What every rank knows of its own file, on all ranks. */
static mf_status gather(mf_exec *x, const mf_checkpoint_file *own, mf_checkpoint_manifest *m,
                        mf_err *e) {
    double mine[3] = {(double)own->size_B, (double)own->tensors, (double)own->header_crc};
    m->files = mf_comm_group_size(x->comm, MF_GROUP_WORLD);
    double *all = calloc((size_t)m->files * 3, sizeof *all);
    m->file = calloc((size_t)m->files, sizeof *m->file);
    bool room = all != NULL && m->file != NULL;
    mf_status status = mf_comm_agree(
        x->comm, room ? MF_OK : mf_err_set(e, MF_NOMEM, "checkpoint: out of memory"), e);
    if (all == NULL || m->file == NULL || status != MF_OK) {
        free(all);
        return status;
    }
    status = mf_comm_all_gather(x->comm, MF_GROUP_WORLD, MF_COMM_F64, mine, all, 3, e);
    for (int64_t i = 0; i < m->files && status == MF_OK; i++) {
        m->file[i] = (mf_checkpoint_file){.size_B = (int64_t)all[3 * i],
                                          .tensors = (int64_t)all[3 * i + 1],
                                          .header_crc = (uint32_t)all[3 * i + 2]};
    }
    free(all);
    return status;
}

/* Of several ranks a failure says whose it is. */
static mf_status agree(const mf_exec *x, mf_status mine, mf_err *e) {
    if (mine != MF_OK && e != NULL && e->text[0] != '\0' &&
        mf_comm_group_size(x->comm, MF_GROUP_WORLD) > 1) {
        mf_err_prefix(e, "rank %lld", (long long)mf_comm_rank(x->comm));
    }
    return mf_comm_agree(x->comm, mine, e);
}

mf_status mf_checkpoint_save(mf_exec *x, const char *folder, const mf_checkpoint_stand *stand,
                             int keep, mf_err *e) {
    bool first = mf_comm_rank(x->comm) == 0;
    char name[40], hidden[48], temporary[PATH_B];
    mf_checkpoint_manifest m = {.stand = *stand};
    mf_checkpoint_file own = {0};
    step_name(stand->step, name);
    snprintf(hidden, sizeof hidden, "tmp-%s", name);
    mf_checkpoint_fingerprint(&x->p->model, m.model);
    mf_status status = mf_path_join(temporary, sizeof temporary, folder, hidden, NULL)
                           ? MF_OK
                           : mf_err_set(e, MF_IO, "%s: path too long", folder);
    if (status == MF_OK && first) {
        mf_folder_remove(temporary);
        status = mf_folder_make(temporary, e);
    }
    status = agree(x, status, e);
    if (status == MF_OK) {
        status = agree(x, write_own(x, temporary, &own, e), e);
    }
    status = status == MF_OK ? gather(x, &own, &m, e) : status;
    if (status == MF_OK) {
        status = agree(x, first ? complete(folder, temporary, name, &m, keep, e) : MF_OK, e);
    }
    mf_checkpoint_manifest_clear(&m);
    return status;
}
