/* memory_inputs.h - what the ops of a step read and write beside the tensors of blocks: the batch,
 * tables of positions and angles, sums; and the scratch of reference kernels. Part of the
 * memory plan; the executor's arena holds them at these places.
 */
#ifndef MF_CORE_MEMORY_INPUTS_H
#define MF_CORE_MEMORY_INPUTS_H

#include "core/program/lower.h"

/* Size of a mf_kernel_update_state (kernels/optimizer/update.h). */
#define MF_UPDATE_B 64

/* Places from the start, each at a multiple of MF_ALIGN_B. Rows are those inside TP regions, MB * S
 * / CP. */
typedef struct mf_inputs {
    int64_t rows[2];   /* [depths][2][rows] int32: tokens and labels, by side of a merged event */
    int64_t positions; /* [rows] int32 in the sample */
    int64_t cu;        /* [MB + 1] int32: first row of each sample, */
    int64_t full_cu;   /* likewise of what is gathered over CP, */
    int64_t near_cu;   /* and over a part of CP */
    int64_t ring_position, full_position, near_position; /* [rows * CP] int32 */
    int64_t sample;                                      /* [rows] int32 of the micro-batch */
    int64_t place, place_sample; /* [rows * CP] int32: sample * S + position; sample of a place */
    int64_t rope;                /* [tables][2][S][head_dim / 2] float: cos, sin */
    int64_t sums;                /* [sums] double: norm, losses */
    int64_t update;              /* a mf_kernel_update_state: what the update reads */
    int64_t loads;               /* [positions][experts] float: choices of the step */
    int64_t corrections;         /* [positions][experts] float: correction biases */
    int64_t experts_of_token;    /* [layers that have one][vocab][top_k] int32: tables of experts */
    int64_t size_B;
    int64_t report_B; /* from sums to the end of loads: what the host reads after a step */
} mf_inputs;

void mf_memory_inputs(const mf_model *m, const mf_layout *l, mf_inputs *out);

/* Scratch that the ops of a stage need beside their operands, in one region. On GPUs ops of
 * different streams run at the same time, so each stream has its own part. CPU ranks have one
 * part, and the region's end holds BF16 sums that are in flight. */
typedef struct mf_scratch {
    int64_t size_B;                  /* of the region; part of every stage's context */
    int64_t lent_B;                  /* of it, at the end: for sums in flight */
    int64_t at_B[MF_STREAM_COUNT];   /* where a stream's part begins */
    int64_t part_B[MF_STREAM_COUNT]; /* its size; 0: its ops need none */
} mf_scratch;

/* end: of the stage, as mf_program_step_end has it. */
void mf_memory_scratch(const mf_program *p, int64_t stage, const mf_step_end *end, mf_scratch *out);

#endif
