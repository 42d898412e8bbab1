/* files.h - folders and files that must be whole on disk before anybody relies on them. */
#ifndef MF_EXECUTOR_FILES_H
#define MF_EXECUTOR_FILES_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Makes a folder and those above it. Errors: MF_IO. */
mf_status mf_folder_make(const char *path, mf_err *e);
/* Removes a folder with the files in it (one level). What cannot go stays; nothing is reported. */
void mf_folder_remove(const char *path);
/* Waits until the folder's names are on disk. Errors: MF_IO. */
mf_status mf_folder_sync(const char *path, mf_err *e);

/* Writes all bytes to an open file; false, with errno, when that fails. Does not sync. */
_Bool mf_file_put(int fd, const void *bytes, size_t size);
/* Writes a file through a temporary beside it: synced, then renamed. Errors: MF_IO. */
mf_status mf_file_write(const char *path, const void *bytes, size_t size, mf_err *e);
/* Reads up to `most` bytes of a file; the caller frees *bytes; the file's whole size may be larger.
 * Errors: MF_IO. */
mf_status mf_file_read(const char *path, size_t most, unsigned char **bytes, size_t *size,
                       int64_t *file_B, mf_err *e);

/* out = "a/b" or "a/b/c" when c is given; false when it does not fit. */
_Bool mf_path_join(char *out, size_t size, const char *a, const char *b, const char *c);

#endif
