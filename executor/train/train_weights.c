/* train_weights.c - weights from a seed. */
#include "executor/train/train.h"
#include "kernels/rows/normal.h"
#include "kernels/rows/normal_value.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t hash_name(const char *name, uint64_t seed) {
    uint64_t h = 0xcbf29ce484222325ull ^ mf_normal_mix(seed); /* FNV-1a */
    for (; *name != '\0'; name++) {
        h = (h ^ (unsigned char)*name) * 0x100000001b3ull;
    }
    return mf_normal_mix(h);
}

/* Are the elements of a parameter drawn? The others are ones and zeros. */
static bool is_drawn(const mf_program *p, const mf_param *q) {
    const mf_block *b = p->blocks[p->block_of[q->position]];
    return b->tensors[q->tensor].part != MF_PART_NORM && !q->bias;
}

/* Piece k of a parameter, without its destination; false: there is none. */
static bool find_piece(const mf_program *p, const mf_rank_coords *at, const mf_param *q,
                       uint64_t seed, int k, mf_kernel_normal *out) {
    mf_param_piece piece;
    if (!mf_param_piece_at(p, at, q, k, &piece)) {
        return false;
    }
    *out = (mf_kernel_normal){.width = q->cols,
                              .at_row = piece.at_row,
                              .at_col = piece.at_col,
                              .rows = piece.rows,
                              .cols = piece.cols,
                              .key = hash_name(piece.name, seed),
                              .row = piece.row,
                              .col = piece.col,
                              .deviation = 0.02};
    return true;
}

/* Elements [first, first + count) of a parameter. */
static void fill(const mf_program *p, const mf_rank_coords *at, const mf_param *q, uint64_t seed,
                 int64_t first, int64_t count, float *w) {
    /* LayerNorm's weights are followed by its biases; weights that 1 is added to begin at 0. */
    const int64_t ones = p->model.zero_centred_norm ? 0
                         : p->model.layer_norm      ? q->rows / 2
                                                    : q->rows;
    const bool norm = !is_drawn(p, q) && !q->bias;
    mf_kernel_normal piece;
    for (int64_t k = 0; k < count; k++) {
        w[k] = norm && first + k < ones ? 1.0f : 0.0f; /* biases, rows of a padded vocabulary */
    }
    for (int k = 0; is_drawn(p, q) && find_piece(p, at, q, seed, k, &piece); k++) {
        piece.w = w;
        piece.first = first;
        piece.count = count;
        (void)mf_kernel_normal_values(&piece, NULL);
    }
}

/* A part of a parameter's elements for one thread. */
typedef struct part {
    const mf_program *p;
    const mf_rank_coords *at;
    const mf_param *q;
    uint64_t seed;
    int64_t first, count;
    float *w;
} part;

static void *fill_part(void *arg) {
    const part *x = arg;
    fill(x->p, x->at, x->q, x->seed, x->first, x->count, x->w);
    return NULL;
}

enum { THREADS_MOST = 64, THREAD_ELEMENTS = 1 << 20 };

/* Runs on as many threads as there are cores; if a thread cannot start, the caller does its
 * part. */
static void fill_all(part whole) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t n = cores < 1 ? 1 : cores < THREADS_MOST ? cores : THREADS_MOST;
    pthread_t thread[THREADS_MOST];
    part piece[THREADS_MOST];
    bool started[THREADS_MOST];
    n = whole.count / THREAD_ELEMENTS + 1 < n ? whole.count / THREAD_ELEMENTS + 1 : n;
    for (int64_t i = 0; i < n; i++) {
        int64_t a = whole.count * i / n, b = whole.count * (i + 1) / n;
        piece[i] = whole;
        piece[i].first += a;
        piece[i].count = b - a;
        piece[i].w += a;
        started[i] = i > 0 && pthread_create(&thread[i], NULL, fill_part, &piece[i]) == 0;
    }
    for (int64_t i = 0; i < n; i++) {
        if (!started[i]) {
            fill_part(&piece[i]);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        if (started[i]) {
            pthread_join(thread[i], NULL);
        }
    }
}

/* On the host, in memory of its own. */
static mf_status init_by_host(mf_exec *x, const mf_program *p, const mf_rank_coords *at,
                              uint64_t seed, int i, mf_err *e) {
    const mf_param *q = &mf_exec_params(x)->list[i];
    int64_t first = 0, count = q->rows * q->cols;
    float *whole = mf_exec_param(x, i);
    if (whole == NULL) {
        mf_exec_owned(x, i, &first, &count);
    }
    float *host = malloc((size_t)count * sizeof *host + 1);
    if (host == NULL) {
        return mf_err_set(e, MF_NOMEM, "initial weights: out of memory");
    }
    fill_all((part){p, at, q, seed, first, count, host});
    mf_status status = whole != NULL ? mf_exec_put(x, whole, host, (size_t)count * sizeof *host, e)
                                     : mf_exec_put_own_weight(x, i, host, e);
    free(host);
    return status;
}

static mf_status init_by_device(mf_exec *x, const mf_program *p, const mf_rank_coords *at,
                                uint64_t seed, int i, mf_err *e) {
    const mf_param *q = &mf_exec_params(x)->list[i];
    mf_kernel_normal piece;
    mf_status status = mf_exec_clear_own_weight(x, i, e);
    for (int k = 0; status == MF_OK && find_piece(p, at, q, seed, k, &piece); k++) {
        status = mf_exec_draw_own_weight(x, i, piece, e);
    }
    return status;
}

mf_status mf_train_init_weights(mf_exec *x, const mf_program *p, const mf_rank_coords *at,
                                uint64_t seed, mf_err *e) {
    const mf_params *list = mf_exec_params(x);
    mf_status status = MF_OK;
    for (int i = 0; i < list->count && status == MF_OK; i++) {
        bool device = mf_exec_draws_own_weight(x, i) && is_drawn(p, &list->list[i]);
        status = device ? init_by_device(x, p, at, seed, i, e) : init_by_host(x, p, at, seed, i, e);
    }
    return status;
}
