/* scratch.h - memory for a moment: what a thread gives back it gets again, without the allocator.
 *
 * Lowering, pricing and playing a block take a dozen arrays of some KiB each, tens of thousands of
 * times in a search. glibc keeps what a thread frees at hand up to one KiB; above that every free
 * joins neighbours and every malloc splits them again.
 */
#ifndef MF_CORE_SCRATCH_H
#define MF_CORE_SCRATCH_H

#include <stddef.h>

/* Memory for anything, not zeroed; NULL when there is no more. */
void *mf_scratch_take(size_t size_B);
/* Gives it back; NULL is fine. */
void mf_scratch_give(void *p);

#endif
