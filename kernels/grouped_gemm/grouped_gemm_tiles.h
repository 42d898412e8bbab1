/* grouped_gemm_tiles.h - which output tile a block works on; plain C, the same on host and GPU.
 *
 * The output of an expert is divided into tiles of 128 rows x 256 columns (rows: its tokens, or n
 * for the weight gradient). Two blocks (a cluster) work side by side and share one operand: paired
 * by rows     tiles (2i, j) and (2i+1, j): the same columns, so b is shared paired by columns tiles
 * (last, 2j) and (last, 2j+1): only the last row of tiles when their number is odd, so that no
 * block idles on short segments Pairs are numbered through all experts. Within an expert, `raster`
 * rows of pairs are swept together column by column: the tiles that run at the same time then form
 * a near-square, which reads the least through L2.
 *
 * All pairs take the same time (but for WGRAD of unequal experts), so a number of pairs that is no
 * multiple of the clusters would leave most clusters idle in the last round. Therefore the first
 * few pairs, as many as are over, are divided into slices of columns that fill a short first round;
 * then every cluster has the same number of whole pairs. (mf_grouped_split)
 *
 * With an activation the columns are a gate and an up half. A tile then holds the same columns of
 * both: counted as if boxes of 64 gate and 64 up columns took turns, tile column c of an even box
 * begins at column c / 2 of either half. (gated)
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

enum {
    MF_GROUPED_TILE_M = 128,
    MF_GROUPED_TILE_N = 256,
    MF_GROUPED_TILE_K = 64,
    MF_GROUPED_BOX = 64 /* rows and columns that one bulk copy moves */
};

/* What is walked over. */
typedef struct mf_grouped_space {
    int32_t experts;
    int32_t rows;       /* rows of the token buffers */
    int32_t out_rows;   /* WGRAD: n, rows of one expert's output; otherwise 0 */
    int32_t out_cols;   /* columns of the output */
    int32_t skip_empty; /* an expert without tokens has no tiles (all but overwriting WGRAD) */
    int32_t raster;
    int32_t gated; /* columns are two halves, of which tiles hold the same columns */
} mf_grouped_space;

typedef struct mf_grouped_walk {
    int32_t expert;       /* whose tiles the position is in */
    int32_t begin, count; /* its segment */
    int32_t tiles_m;
    int32_t first, pairs; /* numbers of its pairs: [first, first + pairs) */
} mf_grouped_walk;

typedef struct mf_grouped_tile {
    int32_t expert, begin, count;
    int32_t m, n;  /* first output row (within the expert) and column */
    int32_t boxes; /* width in boxes of 64 columns, 4 or less; 0: nothing but helping the other */
    bool by_rows;  /* how the two blocks of the cluster are paired */
} mf_grouped_tile;

/* How numbers of turns map to pairs: turns below pairs_sliced * slices are slices of the first
 * pairs_sliced pairs, the others are whole pairs. */
typedef struct mf_grouped_split {
    int32_t pairs_sliced, slices;
} mf_grouped_split;

MF_GROUPED_INLINE int32_t mf_grouped_tiles_n(const mf_grouped_space *s) {
    return (s->out_cols + MF_GROUPED_TILE_N - 1) / MF_GROUPED_TILE_N;
}

/* Segment of an expert, ended at the end of the buffers. */
MF_GROUPED_INLINE void mf_grouped_segment(const mf_grouped_space *s, const int32_t *offsets,
                                          int32_t expert, int32_t *begin, int32_t *count) {
    const int32_t from = offsets[expert], to = offsets[expert + 1];
    *begin = from < s->rows ? from : s->rows;
    *count = (to < s->rows ? to : s->rows) - *begin;
}

/* Pairs of an expert with `count` tokens; *tiles_m: its rows of tiles. */
MF_GROUPED_INLINE int32_t mf_grouped_pairs(const mf_grouped_space *s, int32_t count,
                                           int32_t *tiles_m) {
    const int32_t rows = s->out_rows ? s->out_rows : count;
    const int32_t tiles_n = mf_grouped_tiles_n(s);
    *tiles_m = (rows + MF_GROUPED_TILE_M - 1) / MF_GROUPED_TILE_M;
    if (s->skip_empty && count == 0) {
        return 0;
    }
    return *tiles_m / 2 * tiles_n + *tiles_m % 2 * ((tiles_n + 1) / 2);
}

/* The split for `pairs` pairs in all on `clusters` clusters: 1, 2 or 4 slices (2 of gated
 * tiles, whose boxes come in pairs), whichever makes the short round shortest. Slices take longer
 * than their share of the columns, since they read as many rows; the percentages are of a whole
 * pair's time, quarters being slow when all clusters have one (measured on H200). */
MF_GROUPED_INLINE mf_grouped_split mf_grouped_split_choose(const mf_grouped_space *s, int32_t pairs,
                                                           int32_t clusters) {
    const int32_t most = s->gated ? 2 : 4;
    const int32_t over = pairs % clusters;
    mf_grouped_split best = {over, 1};
    int32_t best_percent = over ? 100 : 0;
    for (int32_t slices = 2, percent = 54; slices <= most; slices *= 2, percent = 45) {
        const int32_t rounds = (over * slices + clusters - 1) / clusters;
        if (rounds * percent < best_percent) {
            best.slices = slices;
            best_percent = rounds * percent;
        }
    }
    return best;
}

MF_GROUPED_INLINE mf_grouped_walk mf_grouped_walk_start(void) {
    mf_grouped_walk w = {-1, 0, 0, 0, 0, 0};
    return w;
}

/* Turn number k of cluster c: slices first, then whole pairs; -1 when it has no such turn of
 * slices and goes on with k + 1. */
MF_GROUPED_INLINE int32_t mf_grouped_turn(const mf_grouped_split *x, int32_t k, int32_t c,
                                          int32_t clusters) {
    const int32_t slices = x->pairs_sliced * x->slices;
    const int32_t rounds = (slices + clusters - 1) / clusters;
    const int32_t turn = k * clusters + c;
    if (k < rounds) {
        return turn < slices ? turn : -1;
    }
    return slices + turn - rounds * clusters;
}

/* Finds the tile of turn `turn` for the block of rank 0 or 1. Turns must not decrease from call to
 * call. False: past the last expert. */
MF_GROUPED_INLINE bool mf_grouped_walk_seek(const mf_grouped_space *s, const mf_grouped_split *x,
                                            const int32_t *offsets, mf_grouped_walk *w,
                                            int32_t turn, int32_t rank, mf_grouped_tile *t) {
    const int32_t tiles_n = mf_grouped_tiles_n(s);
    const int32_t slices = x->pairs_sliced * x->slices;
    const bool sliced = turn < slices;
    const int32_t slice = sliced ? turn % x->slices : 0;
    const int32_t pair = sliced ? turn / x->slices : turn - slices + x->pairs_sliced;
    while (pair >= w->first + w->pairs) {
        w->first += w->pairs;
        if (++w->expert >= s->experts) {
            return false;
        }
        mf_grouped_segment(s, offsets, w->expert, &w->begin, &w->count);
        w->pairs = mf_grouped_pairs(s, w->count, &w->tiles_m);
    }
    t->expert = w->expert;
    t->begin = w->begin;
    t->count = w->count;
    int32_t i = pair - w->first;
    const int32_t rows_of_pairs = w->tiles_m / 2;
    t->by_rows = i < rows_of_pairs * tiles_n;
    if (t->by_rows) {
        const int32_t band = i / (s->raster * tiles_n);
        const int32_t left = rows_of_pairs - band * s->raster;
        const int32_t height = left < s->raster ? left : s->raster;
        i -= band * s->raster * tiles_n;
        t->m = (2 * (band * s->raster + i % height) + rank) * MF_GROUPED_TILE_M;
        t->n = i / height * MF_GROUPED_TILE_N;
    } else {
        i -= rows_of_pairs * tiles_n;
        t->m = (w->tiles_m - 1) * MF_GROUPED_TILE_M;
        t->n = (2 * i + rank) * MF_GROUPED_TILE_N;
    }
    const int32_t boxes = MF_GROUPED_TILE_N / MF_GROUPED_BOX / (sliced ? x->slices : 1);
    t->n += slice * boxes * MF_GROUPED_BOX;
    const int32_t cols = s->gated ? (s->out_cols - t->n) / 2 : s->out_cols - t->n;
    const int32_t there = (cols + MF_GROUPED_BOX - 1) / MF_GROUPED_BOX * (s->gated ? 2 : 1);
    t->boxes = there < 0 ? 0 : there < boxes ? there : boxes;
    return true;
}

#endif
