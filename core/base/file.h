/* file.h - a file as bytes in memory, read and written whole; what may be replaced by one. */
#ifndef MF_CORE_FILE_H
#define MF_CORE_FILE_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Reads a whole file; *text ends with an extra NUL, which *length does not count; the caller frees
 * it. Errors: MF_INPUT "PATH: ..." when it cannot be opened or read, is a folder or a named pipe
 * (which might never say anything), or is longer than max_B; MF_NOMEM. *text is NULL then. */
mf_status mf_file_load(const char *path, size_t max_B, char **text, size_t *length, mf_err *e);

/* Is there something at this path that no new file may take the place of: a device, a pipe, a link
 * (/dev/stdout)? Such a thing is written as it is; a plain file is replaced whole. */
bool mf_file_stays(const char *path);

/* Writes a file whole or not at all: it takes its name when all of it is there, so that whoever is
 * killed before leaves what was there, and beside it PATH.tmp, which the next such write replaces.
 * Does not wait for the disk, as executor/files/files.h does for what must outlive the machine.
 * Errors: MF_IO "PATH: ..."; MF_NOMEM. */
mf_status mf_file_save(const char *path, const char *text, size_t length, mf_err *e);

#endif
