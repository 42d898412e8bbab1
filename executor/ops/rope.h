/* rope.h - tables of angles for a model's rotary positions.
 *
 * All devices of the executor use them, so scaled positions (linear, Llama 3, YaRN) are implemented
 * in one place. Pure functions; thread-safe.
 */
#ifndef MF_EXECUTOR_ROPE_H
#define MF_EXECUTOR_ROPE_H

#include "core/model/model.h"

/* Angle by which pair i of the rotated columns turns from one position to the next. Formulas: Su et
 * al. 2021; Llama 3.1's ramp over wavelengths; YaRN's over dimensions (Peng et al. 2023, 3.2). */
double mf_exec_rope_frequency(const mf_model *m, const mf_rope_table *t, int64_t pair);

/* cos and sin [count, width / 2] of positions 0 .. count - 1, times the table scale; computed in
 * double. A table of temperatures has the factor of each position for cos, and 0 for sin. */
void mf_exec_rope_table(const mf_model *m, const mf_rope_table *t, int64_t count, float *cos,
                        float *sin);

#endif
