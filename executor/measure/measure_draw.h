/* measure_draw.h - chance, and points drawn from lowered models. */
#ifndef MF_EXECUTOR_MEASURE_DRAW_H
#define MF_EXECUTOR_MEASURE_DRAW_H

#include "core/program/program.h"
#include "executor/measure/measure.h"

uint64_t mf_measure_random(uint64_t *state);
int64_t mf_measure_random_int(uint64_t *state, int64_t below);
/* Even in the logarithm; a multiple of `coarse` three times in four, else of `fine`. */
int64_t mf_measure_random_size(uint64_t *state, double low, double high, int64_t coarse,
                               int64_t fine);
/* Points from `from` on into a deterministic order in which a time limit shortens all families
 * alike.
 */
void mf_measure_shuffle(mf_measure_list *l, int64_t from, uint64_t *state);

/* Adds products, grouped products and attention of shipped models under random layouts, some of
 * them held out. */
mf_status mf_measure_draw_models(mf_measure_list *l, uint64_t *state, mf_err *e);

/* The op as a key of profiles/ops_table.h, truncated to size; false for kinds that have none of
 * their own (collectives depend on a machine's ranks). precision: of the layout that made it. */
bool mf_measure_op_key(const mf_op *op, mf_precision precision, char *key, size_t size);

#endif
