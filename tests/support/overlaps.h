/* overlaps.h - ops of a block that touch the same bytes, one of them writing, where no value passes
 * from one to the other: a tensor that is written over while another stream may still read what it
 * held, or a local tensor that takes the place of one that has died (mf_tensor.offset_B).
 *
 * Dependencies by value order readers behind writers. They do not order a writer behind the readers
 * before it on other streams. Lowering places tensors so that none is left (lower_place.c); this
 * finds those that are.
 */
#ifndef MF_TESTS_OVERLAPS_H
#define MF_TESTS_OVERLAPS_H

#include "core/program/program.h"

/* Op `after` writes bytes that op `before`, on another stream, reads or writes. Of one op after,
 * the last such op of each stream. */
typedef struct mf_overlap {
    int16_t before, after;
    int16_t tensor_before, tensor_after; /* the same, or two in one place */
} mf_overlap;

/* Those of the ops of some passes (as mf_block_ops_of takes them) that no chain of waits orders:
 * an op waits for the op before it on its stream, and for whoever wrote its inputs last (of what is
 * cut alike for the same piece). In order of `after`; *out is the caller's to free, NULL where
 * there are none. A block whose local tensors have no place (mf_block_key.unplaced) has those of
 * single tensors alone. Errors: MF_NOMEM. Thread-safe. */
mf_status mf_block_overlaps(const mf_block *b, unsigned passes, mf_overlap **out, int *count,
                            mf_err *e);

#endif
