/* file.c - reads and writes whole files, and says which may be replaced. */
#include "core/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FIRST_B = 16 << 10 };

/* All bytes up to one more than max_B; the buffer has a byte for a NUL behind them. */
static mf_status read_all(const char *path, FILE *file, size_t max_B, char **text, size_t *length,
                          mf_err *e) {
    size_t allocated = 0, got = 1;
    while (got > 0 && *length <= max_B) {
        if (allocated - *length < 2) {
            allocated = allocated == 0 ? FIRST_B : 2 * allocated;
            char *bigger = realloc(*text, allocated);
            if (bigger == NULL) {
                return mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
            }
            *text = bigger;
        }
        got = fread(*text + *length, 1, allocated - *length - 1, file);
        *length += got;
    }
    if (ferror(file)) {
        return mf_err_set(e, MF_INPUT, "%s: cannot be read: %s", path, strerror(errno));
    }
    if (*length > max_B) {
        return mf_err_set(e, MF_INPUT, "%s: larger than %zu bytes", path, max_B);
    }
    (*text)[*length] = '\0';
    return MF_OK;
}

/* A pipe that this process was handed, open at its other end: standard input, <(...) of a shell. */
static bool is_handed(const char *path) {
    return strcmp(path, "/dev/stdin") == 0 || strncmp(path, "/dev/fd/", 8) == 0;
}

/* Never waits: a named pipe that nobody writes to would keep an open() for ever. */
static mf_status open_input(const char *path, FILE **out, mf_err *e) {
    struct stat info = {0};
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    mf_status status = MF_OK;
    if (fd < 0) {
        return mf_err_set(e, MF_INPUT, "%s: cannot be opened: %s", path, strerror(errno));
    }
    if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
        status = mf_err_set(e, MF_INPUT, "%s: expected a file, not a folder", path);
    } else if (S_ISFIFO(info.st_mode) && !is_handed(path)) {
        status = mf_err_set(e, MF_INPUT, "%s: expected a file, not a pipe", path);
    } else if (S_ISFIFO(info.st_mode)) {
        (void)fcntl(fd, F_SETFL, 0); /* its writer may take a while */
    }
    *out = status == MF_OK ? fdopen(fd, "rb") : NULL;
    if (status == MF_OK && *out == NULL) {
        status = mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
    }
    if (*out == NULL) {
        close(fd);
    }
    return status;
}

mf_status mf_file_load(const char *path, size_t max_B, char **text, size_t *length, mf_err *e) {
    FILE *file = NULL;
    *text = NULL;
    *length = 0;
    mf_status status = open_input(path, &file, e);
    if (status != MF_OK) {
        return status;
    }
    status = read_all(path, file, max_B, text, length, e);
    if (status != MF_OK) {
        free(*text);
        *text = NULL;
        *length = 0;
    }
    fclose(file);
    return status;
}

bool mf_file_stays(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0 && !S_ISREG(info.st_mode);
}

mf_status mf_file_save(const char *path, const char *text, size_t length, mf_err *e) {
    const bool stays = mf_file_stays(path);
    const size_t size = strlen(path) + sizeof ".tmp";
    char *temporary = malloc(size);
    if (temporary == NULL) {
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
    }
    snprintf(temporary, size, stays ? "%s" : "%s.tmp", path);
    mf_status s = MF_OK;
    FILE *f = fopen(temporary, "wb");
    if (f == NULL) {
        s = mf_err_set(e, MF_IO, "%s: %s", path, strerror(errno));
    } else {
        bool written = fwrite(text, 1, length, f) == length;
        written = fclose(f) == 0 && written;
        if (!written || (!stays && rename(temporary, path) != 0)) {
            s = mf_err_set(e, MF_IO, "%s: %s", path, strerror(errno));
            if (!stays) {
                remove(temporary);
            }
        }
    }
    free(temporary);
    return s;
}
