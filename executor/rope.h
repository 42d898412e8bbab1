/* rope.h - rotary positions as a model wants them: width, table of angles, scale of attention.
 *
 * What every backend of the executor shares, so that scaled positions (linear, Llama 3, YaRN) are
 * written down once. Pure functions; thread-safe.
 */
#ifndef MF_EXECUTOR_ROPE_H
#define MF_EXECUTOR_ROPE_H

#include "core/model.h"

/* Rotated columns of a head: all, the given share (rounded down to pairs), or MLA's rotary part. */
int64_t mf_exec_rope_width(const mf_model *m);

/* Angle by which pair i of the rotated columns turns from one position to the next. Formulas: Su et
 * al. 2021; Llama 3.1's ramp over wavelengths; YaRN's over dimensions (Peng et al. 2023, 3.2). */
double mf_exec_rope_frequency(const mf_model *m, int64_t pair);

/* cos and sin [count, width / 2] of positions 0 .. count - 1, times the table scale; computed in
 * double. */
void mf_exec_rope_table(const mf_model *m, int64_t count, float *cos, float *sin);

/* Factor on q k^T: 1 / sqrt(head_dim), times what the scaling asks for. */
double mf_exec_softmax_scale(const mf_model *m);

#endif
