/* grouped_gemm_tiles.h - which output tile a block works on; plain C, the same on host and GPU.
 *
 * The output of an expert is cut into tiles of 128 rows x 256 columns (rows: its tokens, or n for
 * the weight gradient). Two blocks (a cluster) work side by side and share one operand:
 *   paired by rows     tiles (2i, j) and (2i+1, j): the same columns, so b is shared
 *   paired by columns  tiles (last, 2j) and (last, 2j+1): only the last row of tiles when their
 *                      number is odd, so that no block idles on short segments
 * Pairs are numbered through all experts; a cluster walks number c, c + clusters, ... Within an
 * expert, `raster` rows of pairs are swept together column by column: the tiles that run at the
 * same time then form a near-square, which reads the least through L2.
 */
#ifndef MF_KERNELS_GROUPED_GEMM_TILES_H
#define MF_KERNELS_GROUPED_GEMM_TILES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define MF_GROUPED_INLINE static __host__ __device__ __forceinline__
#else
#define MF_GROUPED_INLINE static inline
#endif

enum { MF_GROUPED_TILE_M = 128, MF_GROUPED_TILE_N = 256, MF_GROUPED_TILE_K = 64 };

/* What is walked over. */
typedef struct mf_grouped_space {
    int32_t experts;
    int32_t rows;       /* rows of the token buffers */
    int32_t out_rows;   /* WGRAD: n, rows of one expert's output; otherwise 0 */
    int32_t out_cols;   /* columns of the output */
    int32_t skip_empty; /* an expert without tokens has no tiles (all but overwriting WGRAD) */
    int32_t raster;
} mf_grouped_space;

typedef struct mf_grouped_walk {
    int32_t expert;       /* whose tiles the position is in */
    int32_t begin, count; /* its segment */
    int32_t tiles_m;
    int32_t first, pairs; /* numbers of its pairs: [first, first + pairs) */
} mf_grouped_walk;

typedef struct mf_grouped_tile {
    int32_t expert, begin, count;
    int32_t m, n; /* first output row (within the expert) and column */
    bool by_rows; /* how the two blocks of the cluster are paired */
} mf_grouped_tile;

MF_GROUPED_INLINE mf_grouped_walk mf_grouped_walk_start(void) {
    mf_grouped_walk w = {-1, 0, 0, 0, 0, 0};
    return w;
}

/* Finds pair number `pair` for the block of rank 0 or 1. Numbers must not decrease from call to
 * call. False: past the last expert. The tile's columns may lie past the output when an odd column
 * is left over: that block then only helps its neighbour. */
MF_GROUPED_INLINE bool mf_grouped_walk_seek(const mf_grouped_space *s, const int32_t *offsets,
                                            mf_grouped_walk *w, int32_t pair, int32_t rank,
                                            mf_grouped_tile *t) {
    const int32_t tiles_n = (s->out_cols + MF_GROUPED_TILE_N - 1) / MF_GROUPED_TILE_N;
    const int32_t half_n = (tiles_n + 1) / 2;
    while (pair >= w->first + w->pairs) {
        w->first += w->pairs;
        if (++w->expert >= s->experts) {
            return false;
        }
        int32_t begin = offsets[w->expert];
        int32_t end = offsets[w->expert + 1];
        begin = begin < s->rows ? begin : s->rows;
        end = end < s->rows ? end : s->rows;
        w->begin = begin;
        w->count = end - begin;
        const int32_t rows = s->out_rows ? s->out_rows : w->count;
        w->tiles_m = (rows + MF_GROUPED_TILE_M - 1) / MF_GROUPED_TILE_M;
        w->pairs = (w->tiles_m / 2) * tiles_n + (w->tiles_m % 2) * half_n;
        if (s->skip_empty && w->count == 0) {
            w->pairs = 0;
        }
    }
    t->expert = w->expert;
    t->begin = w->begin;
    t->count = w->count;
    int32_t i = pair - w->first;
    const int32_t rows_of_pairs = w->tiles_m / 2;
    if (i >= rows_of_pairs * tiles_n) {
        i -= rows_of_pairs * tiles_n;
        t->by_rows = false;
        t->m = (w->tiles_m - 1) * MF_GROUPED_TILE_M;
        t->n = (2 * i + rank) * MF_GROUPED_TILE_N;
        return true;
    }
    const int32_t band = i / (s->raster * tiles_n);
    const int32_t left = rows_of_pairs - band * s->raster;
    const int32_t height = left < s->raster ? left : s->raster;
    i -= band * s->raster * tiles_n;
    t->by_rows = true;
    t->m = (2 * (band * s->raster + i % height) + rank) * MF_GROUPED_TILE_M;
    t->n = (i / height) * MF_GROUPED_TILE_N;
    return true;
}

#endif
