/* scratch.h - files of a run outside its folder, which must not outlive it even when it is killed.
 *
 * What is made is held by a lock of the file system that ends with this process; whoever starts
 * next removes what nobody holds. Not for file systems without locks: there nothing is removed.
 */
#ifndef MF_EXECUTOR_SCRATCH_H
#define MF_EXECUTOR_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>

/* BASE/PREFIXxxxxxx: a folder with the held file `owner` in it, or such a file itself. path: its
 * name, "" when there is none. Returns the descriptor that holds it, -1 when there is none. */
int mf_scratch_folder(const char *base, const char *prefix, char *path, size_t size);
int mf_scratch_file(const char *base, const char *prefix, char *path, size_t size);
/* Removes what was made, with all that is in it, and lets go. "" is fine. */
void mf_scratch_remove(const char *path, int held);
/* Removes what this user's runs of that prefix have left in `base` and nobody holds. */
void mf_scratch_clean(const char *base, const char *prefix);

#endif
