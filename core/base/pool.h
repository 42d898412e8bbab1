/* pool.h - memory for many things that live equally long: allocated piece by piece, freed together.
 *
 * A search keeps some hundred thousand small things until its end; allocating and freeing them one
 * by one takes longer than filling them in.
 */
#ifndef MF_CORE_POOL_H
#define MF_CORE_POOL_H

#include <stddef.h>

/* Zeroed: an empty one. */
typedef struct mf_pool {
    struct mf_pool_chunk *chunk; /* the latest */
    size_t used_B;               /* of it */
} mf_pool;

/* Memory for anything, not zeroed; NULL when there is no more. Not for two threads at the same
 * time. */
void *mf_pool_take(mf_pool *p, size_t size_B);
/* Gives all of it back; the pool is empty again. */
void mf_pool_clear(mf_pool *p);

#endif
