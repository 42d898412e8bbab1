/* train_weights.c - weights from a seed. */
#include "executor/train.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

static uint64_t mix(uint64_t v) { /* SplitMix64's finaliser */
    v ^= v >> 30;
    v *= 0xbf58476d1ce4e5b9ull;
    v ^= v >> 27;
    v *= 0x94d049bb133111ebull;
    return v ^ v >> 31;
}

static uint64_t hash_name(const char *name, uint64_t seed) {
    uint64_t h = 0xcbf29ce484222325ull ^ mix(seed); /* FNV-1a */
    for (; *name != '\0'; name++) {
        h = (h ^ (unsigned char)*name) * 0x100000001b3ull;
    }
    return mix(h);
}

/* Standard normal number of (key, element): Box & Muller 1958. */
static double normal_at(uint64_t key, int64_t element) {
    uint64_t a = mix(key + 0x9e3779b97f4a7c15ull * (uint64_t)(2 * element + 1));
    uint64_t b = mix(key + 0x9e3779b97f4a7c15ull * (uint64_t)(2 * element + 2));
    double u = ((double)(a >> 11) + 0.5) * 0x1p-53, v = (double)(b >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(u)) * cos(2.0 * pi * v);
}

void mf_train_init_weights(mf_exec *x, const mf_program *p, const mf_rank_coords *at,
                           uint64_t seed) {
    const mf_params *list = mf_exec_params(x);
    for (int i = 0; i < list->count; i++) {
        const mf_param *q = &list->list[i];
        const mf_block *b = p->blocks[p->block_of[q->position]];
        bool norm = b->tensors[q->tensor].part == MF_PART_NORM;
        int64_t first = 0, count = q->rows * q->cols;
        float *w = mf_exec_param(x, i);
        w = w != NULL ? w : mf_exec_own_weight(x, i, &first, &count);
        mf_param_piece piece;
        for (int64_t k = 0; k < count; k++) {
            w[k] = norm ? 1.0f : 0.0f; /* biases, and rows of a padded vocabulary */
        }
        for (int k = 0; !norm && !q->bias && mf_param_piece_at(p, at, q, k, &piece); k++) {
            uint64_t key = hash_name(piece.name, seed);
            for (int64_t r = 0; r < piece.rows; r++) {
                for (int64_t c = 0; c < piece.cols; c++) {
                    int64_t element = ((piece.row + r) << 24) + piece.col + c;
                    int64_t here = (piece.at_row + r) * q->cols + piece.at_col + c - first;
                    if (here >= 0 && here < count) {
                        w[here] = (float)(0.02 * normal_at(key, element));
                    }
                }
            }
        }
    }
}
