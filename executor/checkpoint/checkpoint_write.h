/* checkpoint_write.h - private to checkpoints: what a save does on disk. Nothing here communicates
 * with other ranks or reads the executor, so it can run in a thread while training continues. */
#ifndef MF_EXECUTOR_CHECKPOINT_WRITE_H
#define MF_EXECUTOR_CHECKPOINT_WRITE_H

#include "executor/checkpoint/checkpoint_manifest.h"
#include "executor/checkpoint/checkpoint_pieces.h"

void mf_checkpoint_step_name(int64_t step, char out[40]);

/* Writes a rank's pieces to its file in `folder` and syncs it; *out is the file's entry in the
 * manifest. Errors: MF_IO, MF_NOMEM. */
mf_status mf_checkpoint_write_own(const char *folder, int64_t rank,
                                  const mf_checkpoint_piece *piece, size_t count,
                                  mf_checkpoint_file *out, mf_err *e);

/* Call it when every rank's file is in FOLDER's `temporary`: writes the manifest, syncs, renames
 * the folder to `name`, which makes it a checkpoint, and removes all but the newest `keep`. Errors:
 * MF_IO. */
mf_status mf_checkpoint_complete(const char *folder, const char *temporary, const char *name,
                                 const mf_checkpoint_manifest *m, int keep, mf_err *e);

#endif
