/* train_weights.c - weights from a seed. */
#include "executor/train/train.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

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

/* Elements [first, first + count) of a parameter. */
static void fill(const mf_program *p, const mf_rank_coords *at, const mf_param *q, uint64_t seed,
                 int64_t first, int64_t count, float *w) {
    const mf_block *b = p->blocks[p->block_of[q->position]];
    bool norm = b->tensors[q->tensor].part == MF_PART_NORM;
    /* Behind LayerNorm's weights are its biases; those that 1 is added to begin at 0. */
    int64_t ones = p->model.zero_centred_norm ? 0 : p->model.layer_norm ? q->rows / 2 : q->rows;
    mf_param_piece piece;
    for (int64_t k = 0; k < count; k++) {
        w[k] = norm && first + k < ones ? 1.0f : 0.0f; /* biases, rows of a padded vocabulary */
    }
    for (int k = 0; !norm && !q->bias && mf_param_piece_at(p, at, q, k, &piece); k++) {
        uint64_t key = hash_name(piece.name, seed);
        for (int64_t r = 0; r < piece.rows; r++) {
            int64_t row = (piece.at_row + r) * q->cols + piece.at_col - first;
            int64_t from = row < 0 ? -row : 0;
            int64_t to = count - row < piece.cols ? count - row : piece.cols;
            for (int64_t c = from; c < to; c++) {
                int64_t element = ((piece.row + r) << 24) + piece.col + c;
                w[row + c] = (float)(0.02 * normal_at(key, element));
            }
        }
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

/* By as many threads as there are cores; a thread that does not start has its part done here. */
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

mf_status mf_train_init_weights(mf_exec *x, const mf_program *p, const mf_rank_coords *at,
                                uint64_t seed, mf_err *e) {
    const mf_params *list = mf_exec_params(x);
    mf_status status = MF_OK;
    for (int i = 0; i < list->count && status == MF_OK; i++) {
        const mf_param *q = &list->list[i];
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
        status = whole != NULL ? mf_exec_put(x, whole, host, (size_t)count * sizeof *host, e)
                               : mf_exec_put_own_weight(x, i, host, e);
        free(host);
    }
    return status;
}
