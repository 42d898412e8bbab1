/* checkpoint_write.h - private to checkpoints: what a save does on disk. None of it speaks to other
 * ranks or reads the executor, so that it may go on in a thread beside the steps. */
#ifndef MF_EXECUTOR_CHECKPOINT_WRITE_H
#define MF_EXECUTOR_CHECKPOINT_WRITE_H

#include "executor/checkpoint/checkpoint_manifest.h"
#include "executor/checkpoint/checkpoint_pieces.h"

void mf_checkpoint_step_name(int64_t step, char out[40]);

/* A rank's pieces into its file of `folder`, synced; *out is what the manifest says of it. Errors:
 * MF_IO, MF_NOMEM. */
mf_status mf_checkpoint_write_own(const char *folder, int64_t rank,
                                  const mf_checkpoint_piece *piece, size_t count,
                                  mf_checkpoint_file *out, mf_err *e);

/* When every rank's file is in FOLDER's `temporary`: manifest, sync, and the rename to `name` that
 * is the checkpoint's birth; all but the newest `keep` go. Errors: MF_IO. */
mf_status mf_checkpoint_complete(const char *folder, const char *temporary, const char *name,
                                 const mf_checkpoint_manifest *m, int keep, mf_err *e);

#endif
