/* scratch.h - files of a run outside its folder, which must not outlive it even when it is killed.
 *
 * This process holds a file lock on what it makes; the lock ends with the process, and the next run
 * removes what is not locked. On file systems without locks nothing is removed.
 */
#ifndef MF_EXECUTOR_SCRATCH_H
#define MF_EXECUTOR_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>

/* Makes BASE/PREFIXxxxxxx: a folder with the locked file `owner` in it, or a locked file. path: its
 * name, "" when it could not be made. Returns the descriptor that holds the lock, or -1. */
int mf_scratch_folder(const char *base, const char *prefix, char *path, size_t size);
int mf_scratch_file(const char *base, const char *prefix, char *path, size_t size);
/* Removes the file, or the folder with its content, and releases the lock. "" is fine. */
void mf_scratch_remove(const char *path, int held);
/* Removes what earlier runs of this user left in `base` under that prefix and no process has
 * locked. */
void mf_scratch_clean(const char *base, const char *prefix);

#endif
