/* pool.c - chunks of memory that are handed out from front to back. */
#include "core/base/pool.h"

#include <stdlib.h>

enum { CHUNK_B = 1 << 18 };

typedef struct mf_pool_chunk {
    struct mf_pool_chunk *before;
    max_align_t memory[];
} chunk;

static size_t aligned(size_t size_B) {
    const size_t unit = sizeof(max_align_t);
    return (size_B + unit - 1) / unit * unit;
}

void *mf_pool_take(mf_pool *p, size_t size_B) {
    const size_t need_B = aligned(size_B), least_B = need_B > CHUNK_B ? need_B : CHUNK_B;
    if (!p->chunk || p->used_B + need_B > CHUNK_B) {
        chunk *made = malloc(sizeof *made + least_B);
        if (!made) {
            return NULL;
        }
        made->before = p->chunk;
        p->chunk = made;
        p->used_B = 0;
    }
    void *out = (char *)p->chunk->memory + p->used_B;
    p->used_B += need_B;
    return out;
}

void mf_pool_clear(mf_pool *p) {
    for (chunk *c = p->chunk, *before; c; c = before) {
        before = c->before;
        free(c);
    }
    p->chunk = NULL;
    p->used_B = 0;
}
