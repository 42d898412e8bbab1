/* scratch.c - makes locked files and folders, and removes those whose lock is gone. */
#include "executor/comm/scratch.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEEPEST = 8, PATH_B = 4096, NAME_B = 256 };

static bool hold(int file) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(file, F_SETLK, &whole) == 0;
}

static bool compose(char *out, size_t size, const char *a, const char *b, const char *c) {
    int n = snprintf(out, size, "%s/%s%s", a, b, c);
    if (n > 0 && (size_t)n < size) {
        return true;
    }
    out[0] = '\0';
    return false;
}

/* Makes a file under a temporary name and renames it when it is locked: under its own name no
 * process ever sees it unlocked and removes it. */
static int make_held(const char *base, const char *name, char *path, size_t size) {
    char made[PATH_B];
    if (!compose(made, sizeof made, base, "moefold-new-", "XXXXXX")) {
        return -1;
    }
    int file = mkstemp(made);
    if (file < 0) {
        return -1;
    }
    (void)fcntl(file, F_SETFD, FD_CLOEXEC);
    (void)hold(file); /* without locks it is not removed by others */
    const char *unique = made + strlen(made) - 6;
    bool own = strchr(name, '-') != NULL; /* a prefix, not a name */
    if (!compose(path, size, base, name, own ? unique : "") || rename(made, path) != 0) {
        unlink(made);
        close(file);
        path[0] = '\0';
        return -1;
    }
    return file;
}

int mf_scratch_file(const char *base, const char *prefix, char *path, size_t size) {
    path[0] = '\0';
    return make_held(base, prefix, path, size);
}

int mf_scratch_folder(const char *base, const char *prefix, char *path, size_t size) {
    char owner[PATH_B];
    if (!compose(path, size, base, prefix, "XXXXXX") || mkdtemp(path) == NULL) {
        path[0] = '\0';
        return -1;
    }
    return make_held(path, "owner", owner, sizeof owner);
}

/* --- removal
 * -----------------------------------------------------------------------------------
 */

static void remove_at(int parent, const char *name, int depth) {
    if (unlinkat(parent, name, 0) == 0 || depth == DEEPEST) {
        return;
    }
    int folder = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = folder >= 0 ? fdopendir(folder) : NULL;
    struct dirent *entry;
    while (d != NULL && (entry = readdir(d)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            remove_at(folder, entry->d_name, depth + 1);
        }
    }
    if (d != NULL) {
        closedir(d);
    } else if (folder >= 0) {
        close(folder);
    }
    (void)unlinkat(parent, name, AT_REMOVEDIR);
}

void mf_scratch_remove(const char *path, int held) {
    if (path[0] != '\0') {
        remove_at(AT_FDCWD, path, 0);
    }
    if (held >= 0) {
        close(held);
    }
}

/* Can its `owner` file be locked, so that no process holds it? A folder without one is not ours. */
static bool is_left(int base, const char *name) {
    char owner[NAME_B + 8];
    struct stat info;
    if (fstatat(base, name, &info, AT_SYMLINK_NOFOLLOW) != 0 || info.st_uid != geteuid()) {
        return false;
    }
    snprintf(owner, sizeof owner, S_ISDIR(info.st_mode) ? "%s/owner" : "%s", name);
    int file = openat(base, owner, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool left = file >= 0 && hold(file);
    if (file >= 0) {
        close(file);
    }
    return left;
}

void mf_scratch_clean(const char *base, const char *prefix) {
    DIR *d = opendir(base);
    struct dirent *entry;
    while (d != NULL && (entry = readdir(d)) != NULL) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0 &&
            is_left(dirfd(d), entry->d_name)) {
            remove_at(dirfd(d), entry->d_name, 0);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
}
