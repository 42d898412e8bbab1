/* partition_classes.h - private to partition: classes of blocks, and which of their choices count.
 */
#ifndef MF_PLANNER_PARTITION_CLASSES_H
#define MF_PLANNER_PARTITION_CLASSES_H

#include "planner/partition/partition.h"

/* Finds the class of a block, whose memory choice does not matter; prices its choices if it is new.
 * Errors: MF_NOMEM, those of the evaluator. */
mf_status mf_partition_find_class(mf_partition *in, const mf_block_key *key, uint32_t pinned,
                                  int *out, mf_err *e);

/* When all classes are known: finds which choices are on the hull, which are dear as the last
 * block, and the least figures of each class. */
void mf_partition_compare_choices(mf_partition *in);

#endif
