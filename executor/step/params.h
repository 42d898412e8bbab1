/* params.h - the parameters that one rank holds, and where each piece stands in a Hugging Face
 * checkpoint.
 *
 * Lowering names the weights of a block; this list gives every weight of the rank's positions its
 * place in one flat buffer and says which rows and columns of which hub tensors it is made of. The
 * flat buffer is the concatenation in order of position, dense weights and routed experts apart, so
 * that ZeRO shards are ranges of it.
 */
#ifndef MF_EXECUTOR_PARAMS_H
#define MF_EXECUTOR_PARAMS_H

#include "core/program/lower.h"
#include "executor/files/safetensors.h"

typedef struct mf_param {
    int position;     /* position of the model */
    int16_t tensor;   /* tensor of the position's block */
    const char *name; /* lowering's name; of a bias: that of its linear map */
    bool bias;
    mf_table table;      /* MF_TABLE_NONE: no table */
    bool expert;         /* in the expert half of the flat buffer */
    mf_gradient_sum sum; /* over copies of the last `sum_rows` rows */
    int64_t sum_rows;
    int64_t rows, cols;
    int64_t offset;   /* elements from the start of its half */
    bool shared;      /* another position of the stage holds it, too */
    bool overwritten; /* its gradient is made by weight gradients of its own position alone */
} mf_param;

typedef struct mf_params {
    int count;
    mf_param *list;
    int64_t dense, expert; /* elements of both halves */
    int *first;            /* [positions + 1] parameters of position i: [first[i], first[i + 1]) */
} mf_params;

/* The parameters of pipeline stage `stage`. *out is to be cleared. Errors: MF_NOMEM. */
mf_status mf_params_list(const mf_program *p, int64_t stage, mf_params *out, mf_err *e);
void mf_params_clear(mf_params *p);

/* Elements [begin, end) of a half that a position's parameters take; false: it has none there. */
bool mf_params_range(const mf_params *p, int position, bool expert, int64_t *begin, int64_t *end);

/* The parameter that tensor t of a position's block binds to. A shared embedding or head (tied, or
 * read by an MTP depth) gives the one that its owner on this stage holds. -1: none. */
int mf_params_find(const mf_params *p, const mf_program *program, int position, int16_t tensor);

/* A rectangle of a hub tensor and the same rectangle of the local parameter. */
typedef struct mf_param_piece {
    char name[160];
    int64_t row, col; /* in the hub tensor */
    int64_t rows, cols;
    int64_t at_row, at_col; /* in the local parameter */
    bool first_replica;     /* no lower TP rank of this grid holds the same piece */
    /* Where the hub keeps the experts of a layer in one tensor [experts, cols, rows] (GPT-OSS,
     * Llama 4), row and col count in the matrices of all experts, one below the other: slice rows
     * and slice_cols columns each, whose `halves` the hub interleaves (gate and up of GPT-OSS: 2;
     * 1: it does not). slice 0: elsewhere. */
    int64_t slice, slice_cols, halves;
} mf_param_piece;

/* Element of the hub tensor, whose rows are `width` wide, at (r, c) of the piece. */
int64_t mf_param_piece_element(const mf_param_piece *p, int64_t r, int64_t c, int64_t width);

/* Piece i of a parameter on the rank with coordinates `c`; false past the last. */
bool mf_param_piece_at(const mf_program *p, const mf_rank_coords *c, const mf_param *q, int i,
                       mf_param_piece *out);

/* Hub name of the router's correction bias at a position; false where there is none. */
bool mf_param_correction_bias(const mf_program *p, int position, char *out, size_t size);

/* Reads all parameters from a checkpoint into the halves of the flat buffer (rows of a padded
 * vocabulary become zero). Errors: MF_INPUT naming file and tensor. */
mf_status mf_params_load(const mf_params *list, const mf_program *p, const mf_rank_coords *c,
                         const mf_safetensors *from, float *dense, float *expert, mf_err *e);

#endif
