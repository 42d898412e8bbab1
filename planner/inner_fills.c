/* inner_fills.c - a table of filled stages by the positions that they hold. */
#include "planner/inner_fills.h"

#include "core/pool.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 512 };

typedef struct kept {
    struct kept *next;
    int stage;
    bool fits;
    int32_t data[]; /* [chunks][2] first positions, and those behind the last; counts, if it fits */
} kept;

struct mf_inner_fills {
    const mf_inner *in;
    const double *room_B;
    size_t cells; /* of a virtual stage */
    mf_pool pool;
    int32_t *key; /* [chunks][2] */
    kept *bucket[BUCKETS];
};

mf_inner_fills *mf_inner_fills_create(const mf_inner *in, const double *room_B) {
    mf_inner_fills *f = calloc(1, sizeof *f);
    if (!f) {
        return NULL;
    }
    f->in = in;
    f->room_B = room_B;
    f->cells = mf_inner_cell(in, 1, 0, 0) - mf_inner_cell(in, 0, 0, 0);
    f->key = malloc(2 * (size_t)in->chunks * sizeof *f->key);
    if (!f->key) {
        free(f);
        return NULL;
    }
    return f;
}

void mf_inner_fills_destroy(mf_inner_fills *f) {
    if (f) {
        mf_pool_clear(&f->pool);
        free(f->key);
    }
    free(f);
}

static size_t key_size_B(const mf_inner_fills *f) {
    return 2 * (size_t)f->in->chunks * sizeof *f->key;
}

/* Writes the key; returns its bucket. */
static kept **look_for(mf_inner_fills *f, const int *first, int stage) {
    uint64_t hash = (uint64_t)stage;
    for (int c = 0; c < f->in->chunks; c++) {
        const int64_t v = mf_layout_vstage(&f->in->layout, stage, c);
        f->key[2 * c] = first[v];
        f->key[2 * c + 1] = first[v + 1];
        hash = (hash ^ (uint64_t)first[v]) * UINT64_C(0x9e3779b97f4a7c15);
        hash = (hash ^ (uint64_t)first[v + 1]) * UINT64_C(0xbf58476d1ce4e5b9);
    }
    return &f->bucket[(hash >> 32) % BUCKETS];
}

/* Copies a stage's cells out of the table, or into it. */
static void copy_cells(const mf_inner_fills *f, kept *k, int32_t *count, bool out) {
    int32_t *at = k->data + 2 * f->in->chunks;
    for (int c = 0; c < f->in->chunks; c++, at += f->cells) {
        const int v = (int)mf_layout_vstage(&f->in->layout, k->stage, c);
        int32_t *cells = &count[mf_inner_cell(f->in, v, 0, 0)];
        memcpy(out ? cells : at, out ? at : cells, f->cells * sizeof *cells);
    }
}

bool mf_inner_fills_stage(mf_inner_fills *f, const int *first, int stage, int32_t *count) {
    const size_t key_B = key_size_B(f);
    kept **bucket = look_for(f, first, stage);
    for (kept *k = *bucket; k; k = k->next) {
        if (k->stage == stage && memcmp(k->data, f->key, key_B) == 0) {
            if (k->fits) {
                copy_cells(f, k, count, true);
            }
            return k->fits;
        }
    }
    const bool fits = mf_inner_fill_stage(f->in, first, stage, f->room_B[stage], count);
    const size_t counts = fits ? (size_t)f->in->chunks * f->cells : 0;
    kept *made = mf_pool_take(&f->pool, sizeof *made + key_B + counts * sizeof *made->data);
    if (made) { /* else it is found anew */
        made->next = *bucket;
        made->stage = stage;
        made->fits = fits;
        memcpy(made->data, f->key, key_B);
        if (fits) {
            copy_cells(f, made, count, false);
        }
        *bucket = made;
    }
    return fits;
}
