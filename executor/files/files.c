/* files.c - folders, and files that are written whole or not at all. */
#include "executor/files/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_B 4096

static mf_status failed(const char *path, mf_err *e) {
    return mf_err_set(e, MF_IO, "%s: %s", path, strerror(errno));
}

bool mf_path_join(char *out, size_t size, const char *a, const char *b, const char *c) {
    int n = snprintf(out, size, "%s/%s%s%s", a, b, c != NULL ? "/" : "", c != NULL ? c : "");
    return n > 0 && (size_t)n < size;
}

mf_status mf_folder_make(const char *path, mf_err *e) {
    char part[PATH_B];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof part) {
        return mf_err_set(e, MF_IO, "%s: not a path for a folder", path);
    }
    memcpy(part, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        char keep = part[i];
        if (keep == '/' || keep == '\0') {
            part[i] = '\0';
            if (mkdir(part, 0777) != 0 && errno != EEXIST) {
                return failed(part, e);
            }
            part[i] = keep;
        }
    }
    struct stat info;
    if (stat(path, &info) != 0) {
        return failed(path, e);
    }
    return S_ISDIR(info.st_mode) ? MF_OK : mf_err_set(e, MF_IO, "%s: not a folder", path);
}

void mf_folder_remove(const char *path) {
    char file[PATH_B];
    DIR *d = opendir(path);
    struct dirent *entry;
    while (d != NULL && (entry = readdir(d)) != NULL) {
        bool self = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
        if (!self && mf_path_join(file, sizeof file, path, entry->d_name, NULL)) {
            unlink(file);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    rmdir(path);
}

mf_status mf_folder_sync(const char *path, mf_err *e) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return failed(path, e);
    }
    /* Some file systems cannot sync a folder; they say EINVAL. */
    mf_status status = fsync(fd) == 0 || errno == EINVAL ? MF_OK : failed(path, e);
    close(fd);
    return status;
}

bool mf_file_put(int fd, const void *bytes, size_t size) {
    const char *at = bytes;
    while (size > 0) {
        ssize_t n = write(fd, at, size);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        at += n;
        size -= (size_t)n;
    }
    return true;
}

mf_status mf_file_write(const char *path, const void *bytes, size_t size, mf_err *e) {
    char temporary[PATH_B];
    int n = snprintf(temporary, sizeof temporary, "%s.tmp", path);
    if (n < 0 || (size_t)n >= sizeof temporary) {
        return mf_err_set(e, MF_IO, "%s: path too long", path);
    }
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool done = fd >= 0 && mf_file_put(fd, bytes, size) && fsync(fd) == 0;
    int why = errno;
    if (fd >= 0 && close(fd) != 0 && done) {
        done = false;
        why = errno;
    }
    if (!done || rename(temporary, path) != 0) {
        errno = done ? errno : why;
        mf_status status = failed(path, e);
        unlink(temporary);
        return status;
    }
    return MF_OK;
}

mf_status mf_file_read(const char *path, size_t most, unsigned char **bytes, size_t *size,
                       int64_t *file_B, mf_err *e) {
    struct stat info;
    *bytes = NULL;
    *size = 0;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    bool there = fd >= 0 && fstat(fd, &info) == 0;
    if (!there || !S_ISREG(info.st_mode)) {
        mf_status status = there ? mf_err_set(e, MF_IO, "%s: not a file", path) : failed(path, e);
        if (fd >= 0) {
            close(fd);
        }
        return status;
    }
    *file_B = info.st_size;
    size_t want = (size_t)info.st_size < most ? (size_t)info.st_size : most;
    *bytes = want < SIZE_MAX / 2 ? malloc(want + 1) : NULL;
    if (*bytes == NULL) {
        close(fd);
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
    }
    mf_status status = MF_OK;
    while (status == MF_OK && *size < want) {
        ssize_t n = read(fd, *bytes + *size, want - *size);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            status = n < 0 ? failed(path, e) : mf_err_set(e, MF_IO, "%s: truncated", path);
            break;
        }
        *size += (size_t)n;
    }
    close(fd);
    if (status != MF_OK) {
        free(*bytes);
        *bytes = NULL;
        return status;
    }
    (*bytes)[*size] = '\0';
    return MF_OK;
}
