/* attention.c - reference attention: blocks of queries against blocks of keys, products through the
 * reference GEMM, softmax with the true row maximum (found in a first pass).
 */
#include "kernels/attention/attention.h"

#include "kernels/gemm/gemm.h"

#include <assert.h>
#include <math.h>

#define BLOCK_Q 32
#define BLOCK_K 128
#define DIM_MAX 576

typedef mf_kernel_attention_shape shape;

/* A block of scores: query rows q0 .. q0+nq-1 of all rows, key rows k0 .. k0+nk-1, one head. */
typedef struct block {
    int64_t q0, nq, k0, nk;
    int64_t q_begin, k_begin; /* first rows of the sequence */
} block;

static int64_t q_position(const shape *s, const block *b, int64_t i) {
    return s->q_pos ? s->q_pos[b->q0 + i] : b->q0 + i - b->q_begin;
}

static int64_t k_position(const shape *s, const block *b, int64_t j) {
    return s->k_pos ? s->k_pos[b->k0 + j] : b->k0 + j - b->k_begin;
}

static bool seen(const shape *s, int64_t q_pos, int64_t k_pos) {
    bool reached = s->window <= 0 || (s->chunked ? q_pos / s->window == k_pos / s->window
                                                 : q_pos - k_pos < s->window);
    return (!s->causal || k_pos <= q_pos) && reached;
}

static bool none_seen(const shape *s, const block *b) {
    for (int64_t i = 0; i < b->nq; i++) {
        int64_t pos = q_position(s, b, i);
        for (int64_t j = 0; j < b->nk; j++) {
            if (seen(s, pos, k_position(s, b, j))) {
                return false;
            }
        }
    }
    return true;
}

static const void *at(const void *p, mf_kernel_dtype d, int64_t row, int64_t row_stride,
                      int64_t head, int64_t head_stride) {
    return mf_kernel_row(p, d, row * row_stride + head * head_stride, 1);
}

static void *at_mut(void *p, mf_kernel_dtype d, int64_t row, int64_t row_stride, int64_t head,
                    int64_t head_stride) {
    return mf_kernel_row_mut(p, d, row * row_stride + head * head_stride, 1);
}

/* c[m, n] (float, row stride ldc) = alpha * op(a) op(b) (+ c). */
static void product(mf_gemm_form form, int64_t m, int64_t n, int64_t k, float alpha, const void *a,
                    mf_kernel_dtype a_dtype, int64_t lda, const void *b, mf_kernel_dtype b_dtype,
                    int64_t ldb, float *c, int64_t ldc, bool accumulate) {
    mf_kernel_gemm g = {.form = form,
                        .a_dtype = a_dtype,
                        .b_dtype = b_dtype,
                        .c_dtype = MF_KERNEL_F32,
                        .m = m,
                        .n = n,
                        .k = k,
                        .lda = lda,
                        .ldb = ldb,
                        .ldc = ldc,
                        .alpha = alpha,
                        .accumulate = accumulate,
                        .a = a,
                        .b = b,
                        .c = c};
    (void)mf_kernel_gemm_run(&g, NULL);
}

/* scores[nq, BLOCK_K] of the block, -inf where the key is not seen. */
static void block_scores(const shape *s, const block *b, const void *q, const void *k, int64_t head,
                         float *scores) {
    int64_t kv_head = head / (s->heads / s->kv_heads);
    product(MF_GEMM_NT, b->nq, b->nk, s->qk_dim, s->scale,
            at(q, s->dtype, b->q0, s->q_row, head, s->q_head), s->dtype, s->q_row,
            at(k, s->dtype, b->k0, s->k_row, kv_head, s->k_head), s->dtype, s->k_row, scores,
            BLOCK_K, false);
    for (int64_t i = 0; i < b->nq; i++) {
        int64_t pos = q_position(s, b, i);
        for (int64_t j = 0; j < b->nk; j++) {
            if (!seen(s, pos, k_position(s, b, j))) {
                scores[i * BLOCK_K + j] = -INFINITY;
            }
        }
    }
}

/* Steps b to the next block of keys of sequence i that any of its queries sees. */
static bool next_keys(const shape *s, int64_t i, block *b) {
    for (b->k0 += b->nk; b->k0 < s->cu_k[i + 1]; b->k0 += b->nk) {
        int64_t left = s->cu_k[i + 1] - b->k0;
        b->nk = left < BLOCK_K ? left : BLOCK_K;
        if (!none_seen(s, b)) {
            return true;
        }
    }
    return false;
}

static block first_block(const shape *s, int64_t i, int64_t q0) {
    int64_t left = s->cu_q[i + 1] - q0;
    block b = {.q0 = q0,
               .nq = left < BLOCK_Q ? left : BLOCK_Q,
               .k0 = s->cu_k[i],
               .nk = 0,
               .q_begin = s->cu_q[i],
               .k_begin = s->cu_k[i]};
    return b;
}

static void forward_block(const mf_kernel_attention *a, int64_t i, int64_t q0, int64_t head) {
    const shape *s = &a->shape;
    int64_t kv_head = head / (s->heads / s->kv_heads);
    float scores[BLOCK_Q * BLOCK_K] = {0}, o[BLOCK_Q * DIM_MAX], high[BLOCK_Q] = {0};
    double sum[BLOCK_Q] = {0};
    block b = first_block(s, i, q0);
    for (int64_t r = 0; r < b.nq; r++) {
        high[r] = s->sink ? s->sink[head] : -INFINITY;
    }
    while (next_keys(s, i, &b)) {
        block_scores(s, &b, a->q, a->k, head, scores);
        for (int64_t r = 0; r < b.nq; r++) {
            for (int64_t j = 0; j < b.nk; j++) {
                high[r] = fmaxf(high[r], scores[r * BLOCK_K + j]);
            }
        }
    }
    for (int64_t r = 0; r < b.nq; r++) {
        sum[r] = s->sink ? (double)expf(s->sink[head] - high[r]) : 0.0;
    }
    memset(o, 0, sizeof o);
    b = first_block(s, i, q0);
    while (next_keys(s, i, &b)) {
        block_scores(s, &b, a->q, a->k, head, scores);
        for (int64_t r = 0; r < b.nq; r++) {
            for (int64_t j = 0; j < b.nk; j++) {
                float *p = &scores[r * BLOCK_K + j];
                *p = isinf(*p) ? 0.0f : expf(*p - high[r]);
                sum[r] += (double)*p;
                *p = mf_kernel_rounded(s->dtype, *p);
            }
        }
        product(MF_GEMM_NN, b.nq, s->v_dim, b.nk, 1.0f, scores, MF_KERNEL_F32, BLOCK_K,
                at(a->v, s->dtype, b.k0, s->v_row, kv_head, s->v_head), s->dtype, s->v_row, o,
                DIM_MAX, true);
    }
    for (int64_t r = 0; r < b.nq; r++) {
        float inverse = sum[r] > 0.0 ? (float)(1.0 / sum[r]) : 0.0f;
        void *row = at_mut(a->o, a->o_dtype, q0 + r, s->o_row, head, s->o_head);
        for (int64_t c = 0; c < s->v_dim; c++) {
            mf_kernel_put(row, a->o_dtype, c, o[r * DIM_MAX + c] * inverse);
        }
        if (a->lse) {
            a->lse[head * s->cu_q[s->sequences] + q0 + r] =
                sum[r] > 0.0 ? high[r] + (float)log(sum[r]) : -INFINITY;
        }
    }
}

static void check_shape(const shape *s) {
    assert(s->heads % s->kv_heads == 0);
    assert(s->qk_dim <= DIM_MAX && s->v_dim <= DIM_MAX);
    (void)s;
}

mf_status mf_kernel_attention_forward(const mf_kernel_attention *a, mf_err *e) {
    (void)e;
    const shape *s = &a->shape;
    check_shape(s);
    for (int64_t i = 0; i < s->sequences; i++) {
        for (int64_t h = 0; h < s->heads; h++) {
            for (int64_t q0 = s->cu_q[i]; q0 < s->cu_q[i + 1]; q0 += BLOCK_Q) {
                forward_block(a, i, q0, h);
            }
        }
    }
    return MF_OK;
}

size_t mf_kernel_attention_workspace_B(int64_t k_rows_max, int64_t qk_dim, int64_t v_dim) {
    return (size_t)(k_rows_max * (qk_dim + v_dim)) * sizeof(float);
}

static void put_grad(const mf_kernel_attention_grad *a, void *row, const float *values, int64_t n) {
    for (int64_t c = 0; c < n; c++) {
        float x = values[c] + (a->accumulate ? mf_kernel_get(row, a->grad_dtype, c) : 0.0f);
        mf_kernel_put(row, a->grad_dtype, c, x);
    }
}

/* delta[r] = dot(do, o) of the block's rows; adds to the sink's gradient. */
static void block_delta(const mf_kernel_attention_grad *a, const block *b, int64_t head,
                        float *delta) {
    const shape *s = &a->shape;
    for (int64_t r = 0; r < b->nq; r++) {
        const void *o = at(a->o, s->dtype, b->q0 + r, s->o_row, head, s->o_head);
        const void *d_o = at(a->d_o, s->dtype, b->q0 + r, s->o_row, head, s->o_head);
        double dot = 0.0;
        for (int64_t c = 0; c < s->v_dim; c++) {
            dot += (double)mf_kernel_get(o, s->dtype, c) * (double)mf_kernel_get(d_o, s->dtype, c);
        }
        delta[r] = (float)dot;
        if (a->dsink) {
            float lse = a->lse[head * s->cu_q[s->sequences] + b->q0 + r];
            a->dsink[head] -= expf(s->sink[head] - lse) * delta[r];
        }
    }
}

/* One block of queries: writes dq, adds to dk and dv [key rows of the sequence, dim]. */
static void backward_block(const mf_kernel_attention_grad *a, int64_t i, int64_t q0, int64_t head,
                           float *dk, float *dv) {
    const shape *s = &a->shape;
    int64_t kv_head = head / (s->heads / s->kv_heads);
    float p[BLOCK_Q * BLOCK_K], ds[BLOCK_Q * BLOCK_K], dq[BLOCK_Q * DIM_MAX], delta[BLOCK_Q];
    block b = first_block(s, i, q0);
    const float *lse = a->lse + head * s->cu_q[s->sequences] + q0;
    const void *q = at(a->q, s->dtype, q0, s->q_row, head, s->q_head);
    const void *d_o = at(a->d_o, s->dtype, q0, s->o_row, head, s->o_head);
    block_delta(a, &b, head, delta);
    memset(dq, 0, sizeof dq);
    while (next_keys(s, i, &b)) {
        const void *k = at(a->k, s->dtype, b.k0, s->k_row, kv_head, s->k_head);
        const void *v = at(a->v, s->dtype, b.k0, s->v_row, kv_head, s->v_head);
        float *dk_block = dk + (b.k0 - b.k_begin) * s->qk_dim;
        float *dv_block = dv + (b.k0 - b.k_begin) * s->v_dim;
        block_scores(s, &b, a->q, a->k, head, p);
        product(MF_GEMM_NT, b.nq, b.nk, s->v_dim, 1.0f, d_o, s->dtype, s->o_row, v, s->dtype,
                s->v_row, ds, BLOCK_K, false);
        for (int64_t r = 0; r < b.nq; r++) {
            for (int64_t j = r * BLOCK_K; j < r * BLOCK_K + b.nk; j++) {
                p[j] = isinf(p[j]) ? 0.0f : expf(p[j] - lse[r]);
                ds[j] = mf_kernel_rounded(s->dtype, p[j] * (ds[j] - delta[r]));
                p[j] = mf_kernel_rounded(s->dtype, p[j]);
            }
        }
        product(MF_GEMM_TN, b.nk, s->v_dim, b.nq, 1.0f, p, MF_KERNEL_F32, BLOCK_K, d_o, s->dtype,
                s->o_row, dv_block, s->v_dim, true);
        product(MF_GEMM_TN, b.nk, s->qk_dim, b.nq, s->scale, ds, MF_KERNEL_F32, BLOCK_K, q,
                s->dtype, s->q_row, dk_block, s->qk_dim, true);
        product(MF_GEMM_NN, b.nq, s->qk_dim, b.nk, s->scale, ds, MF_KERNEL_F32, BLOCK_K, k,
                s->dtype, s->k_row, dq, DIM_MAX, true);
    }
    for (int64_t r = 0; r < b.nq; r++) {
        put_grad(a, at_mut(a->dq, a->grad_dtype, q0 + r, s->q_row, head, s->q_head),
                 dq + r * DIM_MAX, s->qk_dim);
    }
}

mf_status mf_kernel_attention_backward(const mf_kernel_attention_grad *a, mf_err *e) {
    (void)e;
    const shape *s = &a->shape;
    check_shape(s);
    int64_t share = s->heads / s->kv_heads;
    for (int64_t i = 0; i < s->sequences; i++) {
        int64_t k_rows = s->cu_k[i + 1] - s->cu_k[i];
        float *dk = a->workspace, *dv = dk + k_rows * s->qk_dim;
        for (int64_t g = 0; g < s->kv_heads; g++) {
            memset(dk, 0, mf_kernel_attention_workspace_B(k_rows, s->qk_dim, s->v_dim));
            for (int64_t h = g * share; h < (g + 1) * share; h++) {
                for (int64_t q0 = s->cu_q[i]; q0 < s->cu_q[i + 1]; q0 += BLOCK_Q) {
                    backward_block(a, i, q0, h, dk, dv);
                }
            }
            for (int64_t r = 0; r < k_rows; r++) {
                int64_t row = s->cu_k[i] + r;
                put_grad(a, at_mut(a->dk, a->grad_dtype, row, s->k_row, g, s->k_head),
                         dk + r * s->qk_dim, s->qk_dim);
                put_grad(a, at_mut(a->dv, a->grad_dtype, row, s->v_row, g, s->v_head),
                         dv + r * s->v_dim, s->v_dim);
            }
        }
    }
    return MF_OK;
}
