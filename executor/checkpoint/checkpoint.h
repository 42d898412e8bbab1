/* checkpoint.h - the state of a training run on disk, in a form that knows no layout.
 *
 * A checkpoint is a folder FOLDER/step-XXXXXXXX of one safetensors file a rank and manifest.json
 * (docs/training.md has the format). Tensors are pieces of master weights and AdamW moments named
 * by the hub's tensor (an expert by its global number) and the place in it, so that any layout can
 * read what any other wrote. All ranks write at the same time, into a temporary folder; files and
 * folder are synced, the manifest holds sizes and checksums, and renaming the folder is the one
 * moment in which the checkpoint comes to be. Every byte is checked before it is used.
 */
#ifndef MF_EXECUTOR_CHECKPOINT_H
#define MF_EXECUTOR_CHECKPOINT_H

#include "executor/step/program_run.h"

#define MF_CHECKPOINT_FORMAT "moefold-checkpoint"
#define MF_CHECKPOINT_VERSION 1
#define MF_CHECKPOINT_MAX_STREAMS 64

/* Fingerprint of a model: of what shapes its tensors and what they mean; losses are a choice of the
 * run and do not count. */
void mf_checkpoint_fingerprint(const mf_model *m, char out[20]);

/* How far training had come, and which stream of samples it read. */
typedef struct mf_train_progress {
    int64_t step;    /* steps done */
    int64_t samples; /* of the stream consumed: the next one is sample `samples` */
    int64_t skipped; /* of the steps those whose update was left out */
    uint64_t seed;   /* all randomness of a run is a function of it and of positions */
    bool shuffle;
    int64_t seq;
    int streams;
    int64_t stream_tokens[MF_CHECKPOINT_MAX_STREAMS], stream_share[MF_CHECKPOINT_MAX_STREAMS];
} mf_train_progress;

/* Writes FOLDER/step-XXXXXXXX and removes all but the newest `keep` checkpoints (0: keeps all).
 * Collective; makes FOLDER when it is missing. Errors: MF_IO, the same on all ranks, with the text
 * on one of them; the checkpoints that were there before stay. */
mf_status mf_checkpoint_save(mf_exec *x, const char *folder, const mf_train_progress *progress,
                             int keep, mf_err *e);

/* The same in three parts, between which training goes on. _begin copies the state
 * (mf_exec_state_stage) and starts a thread on each rank that writes its file. When all threads are
 * done, the first _advance has rank 0's thread write the manifest and rename the folder, and the
 * second one reports the checkpoint complete; each waits for threads that are not done. The threads
 * do not communicate with other ranks. in_background false: nothing is copied, and _begin and
 * _advance return when their part is written. _begin and _advance are collective, with the errors
 * of mf_checkpoint_save. Every save ends with _destroy (NULL is fine), until which the executor
 * must live; a save that is not complete by then leaves the earlier checkpoints as they were. */
typedef struct mf_checkpoint_saving mf_checkpoint_saving;
mf_status mf_checkpoint_begin(mf_exec *x, const char *folder, const mf_train_progress *progress,
                              int keep, bool in_background, mf_checkpoint_saving **out, mf_err *e);
/* Has this rank's thread written its part? */
bool mf_checkpoint_thread_done(const mf_checkpoint_saving *w);
mf_status mf_checkpoint_advance(mf_checkpoint_saving *w, bool *complete, mf_err *e);
void mf_checkpoint_saving_destroy(mf_checkpoint_saving *w);

/* Path of the newest checkpoint in FOLDER; "" when there is none. Errors: MF_IO. */
mf_status mf_checkpoint_newest(const char *folder, char *out, size_t size, mf_err *e);
/* Path of the checkpoint of a step, which need not be there. Errors: MF_IO. */
mf_status mf_checkpoint_path(const char *folder, int64_t step, char *out, size_t size, mf_err *e);
/* Removes what incomplete saves left behind. */
void mf_checkpoint_clean(const char *folder);

typedef struct mf_checkpoint mf_checkpoint;

/* Opens a checkpoint folder for a model. Checks manifest, sizes and headers, that the pieces cover
 * the model's tensors, and that a folder named after a step holds that step. The caller closes
 * *out. Errors: MF_DAMAGED naming file and offset; MF_INPUT for another model's. */
mf_status mf_checkpoint_open(const char *path, const mf_model *m, mf_checkpoint **out, mf_err *e);
void mf_checkpoint_close(mf_checkpoint *c);
const mf_train_progress *mf_checkpoint_progress(const mf_checkpoint *c);

/* Loads this rank's weights, moments, correction biases and count of updates. Not collective; all
 * ranks must call mf_exec_share_weights afterwards. Errors: MF_DAMAGED naming file, tensor and
 * offset. */
mf_status mf_checkpoint_load(mf_checkpoint *c, mf_exec *x, mf_err *e);

/* Reads one whole hub tensor: rows x cols values of kind MF_EXEC_*, checked. MF_DAMAGED as above.
 */
mf_status mf_checkpoint_tensor(mf_checkpoint *c, int kind, const mf_model_tensor *t, float *out,
                               mf_err *e);

/* Writes the weights unchanged, in float32, as a Hugging Face folder: model.safetensors, or an
 * index and shards that hold at most shard_B bytes of tensors each. Replaces `folder` as a whole.
 * Errors: MF_IO, MF_DAMAGED. */
mf_status mf_checkpoint_export(mf_checkpoint *c, const mf_model *m, const char *folder,
                               int64_t shard_B, mf_err *e);

#endif
