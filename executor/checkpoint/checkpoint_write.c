/* checkpoint_write.c - what a save does on disk: writes a rank's file, makes a checkpoint of all of
 * them by a rename, removes old ones. */
#include "executor/checkpoint/checkpoint_write.h"

#include "executor/files/files.h"
#include "executor/files/safetensors.h"

#include "core/base/crc32c.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_B 4096

/* --- this rank's file --------------------------------------------------------------------------
 */

/* Names and sources of `count` pieces, both to be freed. */
static mf_status describe(const mf_checkpoint_piece *piece, size_t count, mf_st_source **list,
                          char (**name)[MF_CHECKPOINT_NAME_MAX], mf_err *e) {
    *list = calloc(count + 1, sizeof **list);
    *name = calloc(count + 1, sizeof **name);
    if (*list == NULL || *name == NULL) {
        return mf_err_set(e, MF_NOMEM, "checkpoint: out of memory");
    }
    for (size_t i = 0; i < count; i++) {
        const mf_checkpoint_piece *p = &piece[i];
        bool bf16 = p->dtype == MF_KERNEL_BF16;
        size_t size_B = (size_t)(p->rows * p->cols) * (bf16 ? 2 : 4);
        mf_checkpoint_name(p, mf_crc32c(0, p->data, size_B), (*name)[i]);
        (*list)[i] = (mf_st_source){.name = (*name)[i],
                                    .dtype = bf16 ? MF_ST_BF16 : MF_ST_F32,
                                    .dims = 2,
                                    .shape = {p->rows, p->cols},
                                    .data = p->data};
    }
    return MF_OK;
}

mf_status mf_checkpoint_write_own(const char *folder, int64_t rank,
                                  const mf_checkpoint_piece *piece, size_t count,
                                  mf_checkpoint_file *out, mf_err *e) {
    char path[PATH_B], file[40];
    mf_st_source *list = NULL;
    char(*name)[MF_CHECKPOINT_NAME_MAX] = NULL;
    mf_checkpoint_file_name(rank, file);
    if (!mf_path_join(path, sizeof path, folder, file, NULL)) {
        return mf_err_set(e, MF_IO, "%s: path too long", folder);
    }
    mf_status status = describe(piece, count, &list, &name, e);
    status = status == MF_OK ? mf_safetensors_write(path, list, count, e) : status;
    status = status == MF_OK ? mf_checkpoint_file_look(path, out, e) : status;
    out->tensors = (int64_t)count;
    free(list);
    free(name);
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
    int why = errno; /* an incomplete listing may miss the newest */
    closedir(d);
    return why == 0 ? MF_OK : mf_err_set(e, MF_IO, "%s: %s", folder, strerror(why));
}

void mf_checkpoint_step_name(int64_t step, char out[40]) {
    snprintf(out, 40, "step-%08lld", (long long)step);
}

mf_status mf_checkpoint_path(const char *folder, int64_t step, char *out, size_t size, mf_err *e) {
    char name[40];
    mf_checkpoint_step_name(step, name);
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
    mf_checkpoint_step_name(step, name);
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

/* Renames a folder before it removes its files: half a checkpoint never has a checkpoint's name.
 */
static void drop(const char *folder, int64_t step) {
    char name[40], dead[48], from[PATH_B], to[PATH_B];
    mf_checkpoint_step_name(step, name);
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

/* --- the whole ---------------------------------------------------------------------------------
 */

mf_status mf_checkpoint_complete(const char *folder, const char *temporary, const char *name,
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
    drop(folder, m->progress.step); /* of the same step: a run that was taken back to before it */
    if (rename(temporary, path) != 0) {
        return mf_err_set(e, MF_IO, "%s: %s", path, strerror(errno));
    }
    status = mf_folder_sync(folder, e);
    return status == MF_OK ? drop_old(folder, keep, e) : status;
}
