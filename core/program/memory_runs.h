/* memory_runs.h - splits what a block keeps or works in into runs of bytes that may have separate
 * addresses.
 *
 * Tensors of one kind are side by side in the order of the block, those of a workspace where
 * lowering put them. A kind can be split between two tensors; a few runs are enough for an
 * arrangement of the step (core/memory/memory_place.h) to use gaps that the whole would not fit
 * into.
 */
#ifndef MF_CORE_MEMORY_RUNS_H
#define MF_CORE_MEMORY_RUNS_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum mf_run_kind {
    MF_RUN_SAVED,  /* forward to backward, but for what W reads */
    MF_RUN_KEPT,   /* saved tensors that W reads */
    MF_RUN_MADE,   /* what B makes for W */
    MF_RUN_WORK_F, /* workspaces of the passes; the backward one is that of what B plays */
    MF_RUN_WORK_B,
    MF_RUN_WORK_W, /* of a split backward */
    MF_RUN_KINDS
} mf_run_kind;

enum { MF_RUNS = 16 }; /* at most, of a kind */

typedef struct mf_runs {
    int count;
    int64_t start[MF_RUNS + 1]; /* of each; start[count]: bytes of all */
    int64_t size[MF_RUNS];
} mf_runs;

typedef struct mf_block_runs {
    mf_runs of[MF_RUN_KINDS];
} mf_block_runs;

/* Where a tensor is: its kind, the run, bytes from the start of the run. */
typedef struct mf_run_place {
    int8_t kind, run; /* kind -1: none of these */
    int64_t at;
} mf_run_place;

struct mf_block;

/* Splits a lowered block into runs (b->runs, and the place of each tensor); mf_block_lower does it
 * last. Errors: MF_NOMEM. */
mf_status mf_block_find_runs(struct mf_block *b, bool split, mf_err *e);

#endif
