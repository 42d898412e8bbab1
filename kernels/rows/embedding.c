/* embedding.c - reference of the table look-up and its gradient. */
#include "kernels/rows/embedding.h"

/* The CUDA kernel sorts (token, position) pairs and sums runs: two buffers of pairs, the counters
 * of the sort, and the runs of more than EMBED_LONG equal tokens. */
#define EMBED_LONG 32

size_t mf_kernel_embedding_workspace_B(int64_t tokens, int64_t vocab, int64_t cols) {
    int64_t runs_most = (tokens + EMBED_LONG - 1) / EMBED_LONG, blocks = (tokens + 1023) / 1024;
    size_t pairs = (size_t)(tokens + 4) * 4 * sizeof(int32_t);
    size_t counters = (size_t)(blocks + 1) * 512 * sizeof(int32_t);
    size_t marks = (size_t)((vocab + 31) / 32) * sizeof(uint32_t); /* tokens that occur again */
    size_t runs = (size_t)(runs_most + 1) * 2 * sizeof(int32_t);
    (void)cols; /* sums need no space of their own */
    return pairs + counters + runs + marks + 64;
}

static float factor(float scale) {
    return scale > 0.0f ? scale : 1.0f;
}

mf_status mf_kernel_embedding_forward(const mf_kernel_embedding *a, mf_err *e) {
    (void)e;
    const float scale = factor(a->scale);
    for (int64_t t = 0; t < a->tokens; t++) {
        int64_t v = a->token[t] - a->begin;
        bool here = v >= 0 && v < a->vocab;
        for (int64_t c = 0; c < a->cols; c++) {
            float x = here ? mf_kernel_get(a->table, a->dtype, v * a->cols + c) : 0.0f;
            mf_kernel_put(a->y, a->dtype, t * a->cols + c, scale * x);
        }
    }
    return MF_OK;
}

mf_status mf_kernel_embedding_backward(const mf_kernel_embedding_grad *a, mf_err *e) {
    (void)e;
    const float scale = factor(a->scale);
    for (int64_t t = 0; t < a->tokens; t++) {
        int64_t v = a->token[t] - a->begin;
        if (v < 0 || v >= a->vocab) {
            continue;
        }
        for (int64_t c = 0; c < a->cols; c++) {
            a->dtable[v * a->cols + c] += scale * mf_kernel_get(a->dy, a->dtype, t * a->cols + c);
        }
    }
    return MF_OK;
}
