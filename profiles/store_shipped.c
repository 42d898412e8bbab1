/* store_shipped.c - the points that ship with moefold as text, and stores built from them. */
#include "core/base/file.h"
#include "core/base/paths.h"
#include "core/base/text.h"
#include "core/model/model.h"
#include "profiles/store_private.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_csv(const struct dirent *entry) {
    return entry->d_name[0] != '.' && mf_text_ends_with(entry->d_name, ".csv");
}

/* Does something with one file. */
typedef mf_status (*with_file)(const char *path, void *user, mf_err *e);

/* `must`: the folder has to be there. */
static mf_status each_file(const char *below, bool must, with_file fn, void *user, mf_err *e) {
    char folder[1024], path[1400];
    struct dirent **entries = NULL;
    snprintf(folder, sizeof folder, "%s/measured%s", mf_data_dir(), below);
    int n = scandir(folder, &entries, is_csv, alphasort);
    if (n < 0 && !must && errno == ENOENT) {
        return MF_OK;
    }
    if (n < 0) {
        return mf_err_set(e, MF_IO, "%s: %s (set MOEFOLD_DATA to the folder that holds it)", folder,
                          strerror(errno));
    }
    mf_status st = MF_OK;
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        st = st == MF_OK ? fn(path, user, e) : st;
        free(entries[i]);
    }
    free(entries);
    return st;
}

static mf_status import_file(const char *path, void *user, mf_err *e) {
    return mf_store_import_csv(user, path, NULL, e);
}

mf_status mf_store_load_shipped(mf_store *s, mf_err *e) {
    mf_status st = each_file("", true, import_file, s, e);
    return st == MF_OK ? each_file("/choices", false, import_file, s, e) : st;
}

typedef struct reading {
    mf_point_fn fn;
    void *user;
} reading;

static mf_status read_file(const char *path, void *user, mf_err *e) {
    const reading *r = user;
    return mf_store_csv_each(path, r->fn, r->user, e);
}

mf_status mf_store_each_shipped(mf_point_fn fn, void *user, mf_err *e) {
    reading r = {fn, user};
    return each_file("", true, read_file, &r, e);
}

mf_status mf_store_open_shipped(mf_store **out, mf_err *e) {
    mf_status st = mf_store_open(":memory:", out, e);
    if (st == MF_OK) {
        st = mf_store_load_shipped(*out, e);
        if (st != MF_OK) {
            mf_store_close(*out);
            *out = NULL;
        }
    }
    return st;
}

/* PATH + suffix, to be freed; NULL without memory. */
static char *joined(const char *path, const char *suffix) {
    size_t size = strlen(path) + strlen(suffix) + 1;
    char *text = malloc(size);
    if (text != NULL) {
        snprintf(text, size, "%s%s", path, suffix);
    }
    return text;
}

/* Renames PATH+suffix to PATH.old+suffix, so that a journal of the old file is neither lost nor
 * rolled into the new one. A missing file is fine. */
static mf_status keep_old(const char *path, const char *suffix, mf_err *e) {
    mf_status st = MF_OK;
    char *old = joined(path, ".old"), *from = joined(path, suffix);
    char *to = old != NULL ? joined(old, suffix) : NULL;
    if (to == NULL || from == NULL) {
        st = mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
    } else {
        remove(to);
        if (rename(from, to) != 0 && errno != ENOENT) {
            st = mf_err_set(e, MF_IO, "%s: %s", from, strerror(errno));
        }
    }
    free(old);
    free(from);
    free(to);
    return st;
}

mf_status mf_store_rebuild(const char *path, mf_err *e) {
    static const char *const files[] = {"-journal", "-wal", "-shm", ""};
    char suffix[48];
    if (mf_file_stays(path)) {
        return mf_err_set(e, MF_INPUT, "%s: only a plain file is rebuilt", path);
    }
    snprintf(suffix, sizeof suffix, ".new-%ld", (long)getpid());
    mf_store *s = NULL;
    char *part = joined(path, suffix);
    if (part == NULL) {
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
    }
    remove(part);
    mf_status st = mf_store_open(part, &s, e);
    st = st == MF_OK ? mf_store_load_shipped(s, e) : st;
    mf_store_close(s);
    for (size_t i = 0; st == MF_OK && i < sizeof files / sizeof files[0]; i++) {
        st = keep_old(path, files[i], e);
    }
    if (st == MF_OK && rename(part, path) != 0) {
        st = mf_err_set(e, MF_IO, "%s: %s", path, strerror(errno));
    }
    if (st != MF_OK) {
        remove(part);
    }
    free(part);
    return st;
}
