/* checkpoint_pieces.h - private to checkpoints: divides a rank's state into rectangles of hub
 * tensors, each of them contiguous in its memory. */
#ifndef MF_EXECUTOR_CHECKPOINT_PIECES_H
#define MF_EXECUTOR_CHECKPOINT_PIECES_H

#include "executor/step/program_run.h"

#define MF_CHECKPOINT_NAME_MAX 256

/* A rectangle of a hub tensor. */
typedef struct mf_checkpoint_piece {
    int kind; /* MF_EXEC_* */
    char tensor[160];
    int64_t row, col, rows, cols;
    mf_kernel_dtype dtype;
    const void *data; /* rows x cols without gaps */
} mf_checkpoint_piece;

/* Calls fn for each piece that this rank writes. Where several ranks hold the same state, each
 * writes an equal part; of replicas the first writes all. Errors: those of fn; MF_INFEASIBLE for a
 * parameter that the hub has no name for. */
typedef mf_status (*mf_checkpoint_piece_fn)(const mf_checkpoint_piece *p, void *user, mf_err *e);
mf_status mf_checkpoint_pieces(mf_exec *x, mf_checkpoint_piece_fn fn, void *user, mf_err *e);

/* "weight|model.norm.weight|0,0|1a2b3c4d": kind, hub tensor, row and column of its first element,
 * CRC-32C of its bytes. */
void mf_checkpoint_name(const mf_checkpoint_piece *p, uint32_t crc,
                        char out[MF_CHECKPOINT_NAME_MAX]);
/* The inverse: sets kind, tensor, row and col of *p, and the checksum. False when the text is no
 * such name. */
bool mf_checkpoint_parse_name(const char *text, mf_checkpoint_piece *p, uint32_t *crc);

/* The slice of one expert, NAME[e] among a model's tensors, of a tensor over all experts.
 * Pieces of NAME hold it as layers compute with it, expert after expert, outputs by inputs, gate
 * before up: [experts * rows, cols]. */
typedef struct mf_checkpoint_slice {
    char tensor[160]; /* NAME */
    int64_t expert, rows, cols;
    int64_t halves; /* outputs that the hub keeps in turns: 2 for gate and up of GPT-OSS, else 1; 0:
                       the hub keeps the slice as layers compute with it (Granite) */
} mf_checkpoint_slice;

/* False: no such slice. */
bool mf_checkpoint_slice_of(const mf_model_tensor *t, mf_checkpoint_slice *out);

#endif
