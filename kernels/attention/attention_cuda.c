/* attention_cuda.c - attention as a cuDNN graph.
 *
 * cuDNN's fused engines recognise the graph by its shape: keys and values enter as views with their
 * last two dims swapped, masks are index, compare, select. Forward:
 *     s = scale (q k^T), masked; m = max s; z = sum exp(s - m); lse = m + log z
 *     o = (exp(s - m) / z) v
 * Backward, with delta = rowsum(do * o):
 *     p = exp(s - lse); dv = p^T do; ds = scale p (do v^T - delta); dk = ds^T q; dq = ds k
 * Gradients that are fixed write dq as the product of ds and k: cuDNN then keeps ds in its
 * workspace, and no block adds to what another has written. Of packed sequences, rows begin where
 * an array says, products are as long as another one says, and scores beyond are hidden. delta and
 * the float sum of dq pass through memory, behind the engine's own workspace. Gradients of shared
 * key heads are summed over their query heads.
 */
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/mla_grad.h"

#include "kernels/device/cudnn_graph.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BF16 CUDNN_DATA_BFLOAT16
#define F32 CUDNN_DATA_FLOAT

/* What the pointers and host values of a plan are bound by. */
enum {
    Q = 1,
    K,
    V,
    O,
    LSE,
    DO,
    DQ,
    DK,
    DV,
    DELTA,
    DQ_SUM,
    SCALE,
    HIDDEN_SCORE,
    ENDED_SCORE,
    ONE,
    REACH,
    SHIFT,
    SINK,
    DSINK,
    Q_LENGTH,
    K_LENGTH,
    Q_AT,
    K_AT,
    V_AT,
    O_AT,
    UIDS
};

struct mf_attention_cuda {
    mf_attention_cuda_shape shape; /* of a piece */
    mf_mla_grad *own;              /* computes it in place of the graph; or NULL */
    mf_graph graph;
    size_t delta_B, dq_sum_B; /* of the workspace, behind the engine's part */
    float scale, minus_infinity, one, reach;
    int32_t shift;
};

mf_status mf_attention_cuda_library_open(void **library, mf_err *e) {
    cudnnHandle_t handle = NULL;
    cudnnStatus_t result = cudnnCreate(&handle);
    *library = handle;
    return result == CUDNN_STATUS_SUCCESS
               ? MF_OK
               : mf_err_set(e, MF_LIBRARY, "cuDNN: cudnnCreate: %s", cudnnGetErrorString(result));
}

void mf_attention_cuda_library_close(void *library) {
    if (library != NULL) {
        (void)cudnnDestroy(library);
    }
}

void mf_attention_cuda_version(char *text, size_t size) {
    size_t version = cudnnGetVersion();
    snprintf(text, size, "%zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
}

mf_attention_strides mf_attention_packed(int64_t seq, int64_t heads, int64_t width) {
    return (mf_attention_strides){seq * heads * width, heads * width, width};
}

/* --- tensors ---------------------------------------------------------------------------------- */

/* Lengths and first elements of packed sequences; all -1 where they are equally long. */
typedef struct ragged {
    mf_graph_tensor q, k, q_at, k_at, v_at, o_at;
} ragged;

static ragged ragged_of(mf_graph *g, const mf_attention_cuda_shape *s) {
    const int64_t n[4] = {s->batch, 1, 1, 1}, more[4] = {s->batch + 1, 1, 1, 1};
    const int64_t dense[4] = {1, 1, 1, 1};
    const cudnnDataType_t i32 = CUDNN_DATA_INT32;
    if (!s->packed) {
        return (ragged){-1, -1, -1, -1, -1, -1};
    }
    return (ragged){
        mf_graph_input(g, Q_LENGTH, i32, n, dense), mf_graph_input(g, K_LENGTH, i32, n, dense),
        mf_graph_input(g, Q_AT, i32, more, dense),  mf_graph_input(g, K_AT, i32, more, dense),
        mf_graph_input(g, V_AT, i32, more, dense),  mf_graph_input(g, O_AT, i32, more, dense)};
}

static mf_graph_tensor rows_of(mf_graph *g, int64_t uid, int64_t batch, int64_t heads, int64_t seq,
                               int64_t width, const mf_attention_strides *s, mf_graph_tensor at) {
    const int64_t dim[4] = {batch, heads, seq, width};
    const int64_t stride[4] = {s->batch, s->head, s->row, 1};
    return mf_graph_ragged(g, uid, BF16, dim, stride, at);
}

/* The same memory with rows and width swapped. */
static mf_graph_tensor swapped(mf_graph *g, int64_t uid, int64_t batch, int64_t heads, int64_t seq,
                               int64_t width, const mf_attention_strides *s, mf_graph_tensor at) {
    const int64_t dim[4] = {batch, heads, width, seq};
    const int64_t stride[4] = {s->batch, s->head, 1, s->row};
    return mf_graph_ragged(g, uid, BF16, dim, stride, at);
}

/* One float per query row; uid 0: inside the kernel. Statistics lie beside those of other pieces.
 */
static mf_graph_tensor per_row(mf_graph *g, int64_t uid, const mf_attention_cuda_shape *s) {
    const int64_t beside = uid == LSE ? s->pieces : 1;
    const int64_t dim[4] = {s->batch, s->heads, s->seq_q, 1};
    const int64_t stride[4] = {beside * s->heads * s->seq_q, s->seq_q, 1, 1};
    return uid > 0 ? mf_graph_input(g, uid, F32, dim, stride) : mf_graph_inner(g, F32, dim, stride);
}

static mf_graph_tensor per_head(mf_graph *g, int64_t uid, const mf_attention_cuda_shape *s) {
    const int64_t dim[4] = {1, s->heads, 1, 1}, stride[4] = {s->heads, 1, 1, 1};
    return mf_graph_input(g, uid, F32, dim, stride);
}

/* --- the graph -------------------------------------------------------------------------------- */

/* scale (q k^T). */
static mf_graph_tensor scores(mf_graph *g, const mf_attention_cuda_shape *s, const ragged *at,
                              mf_graph_tensor q, mf_graph_tensor k, mf_graph_tensor scale) {
    const mf_graph_extent extent = {at->q, at->k, -1, s->packed && !s->backward};
    mf_graph_tensor raw = mf_graph_matmul_part(
        g, q, k, mf_graph_dense(g, F32, s->batch, s->heads, s->seq_q, s->seq_k), &extent);
    return mf_graph_pointwise(g, CUDNN_POINTWISE_MUL, raw, scale, F32, -1);
}

/* -inf past the end of a packed sequence. */
static mf_graph_tensor ended(mf_graph *g, const mf_attention_cuda_shape *s, const ragged *at,
                             mf_graph_tensor x) {
    if (!s->packed) {
        return x;
    }
    mf_graph_tensor row = mf_graph_index(g, x, 2), column = mf_graph_index(g, x, 3);
    row = mf_graph_pointwise(g, CUDNN_POINTWISE_CMP_LT, row, at->q, CUDNN_DATA_BOOLEAN, -1);
    column = mf_graph_pointwise(g, CUDNN_POINTWISE_CMP_LT, column, at->k, CUDNN_DATA_BOOLEAN, -1);
    mf_graph_tensor inside =
        mf_graph_pointwise(g, CUDNN_POINTWISE_LOGICAL_AND, row, column, CUDNN_DATA_BOOLEAN, -1);
    return mf_graph_select(g, x, mf_graph_scalar(g, ENDED_SCORE, F32), inside);
}

/* -inf where row + (seq_k - seq_q) < column, and where column + reach <= row. */
static mf_graph_tensor masked(mf_graph *g, const mf_attention_cuda_shape *s, mf_graph_tensor x) {
    if (!s->causal) {
        return x;
    }
    mf_graph_tensor hidden = mf_graph_scalar(g, HIDDEN_SCORE, F32);
    mf_graph_tensor row = mf_graph_index(g, x, 2), column = mf_graph_index(g, x, 3);
    if (s->seq_k != s->seq_q) {
        mf_graph_tensor shift = mf_graph_scalar(g, SHIFT, CUDNN_DATA_INT32);
        row = mf_graph_pointwise(g, CUDNN_POINTWISE_ADD, row, shift, CUDNN_DATA_INT32, -1);
    }
    mf_graph_tensor seen =
        mf_graph_pointwise(g, CUDNN_POINTWISE_CMP_GE, row, column, CUDNN_DATA_BOOLEAN, -1);
    x = mf_graph_select(g, x, hidden, seen);
    if (s->window > 0) {
        mf_graph_tensor reach = mf_graph_scalar(g, REACH, F32);
        row = mf_graph_index(g, x, 2);
        column = mf_graph_index(g, x, 3);
        column = mf_graph_pointwise(g, CUDNN_POINTWISE_ADD, column, reach, F32, -1);
        seen = mf_graph_pointwise(g, CUDNN_POINTWISE_CMP_GT, column, row, CUDNN_DATA_BOOLEAN, -1);
        x = mf_graph_select(g, x, hidden, seen);
    }
    return x;
}

/* Softmax of x along its last dim; writes lse. */
static mf_graph_tensor softmax(mf_graph *g, const mf_attention_cuda_shape *s, mf_graph_tensor x) {
    mf_graph_tensor high = mf_graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, x, per_row(g, 0, s));
    mf_graph_tensor sink = s->sink ? per_head(g, SINK, s) : -1;
    if (s->sink) {
        high = mf_graph_pointwise(g, CUDNN_POINTWISE_MAX, high, sink, F32, -1);
    }
    mf_graph_tensor low = mf_graph_pointwise(g, CUDNN_POINTWISE_SUB, x, high, F32, -1);
    mf_graph_tensor power = mf_graph_pointwise(g, CUDNN_POINTWISE_EXP, low, -1, F32, -1);
    mf_graph_tensor sum = mf_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, power, per_row(g, 0, s));
    if (s->sink) {
        mf_graph_tensor more =
            mf_graph_pointwise(g, CUDNN_POINTWISE_SUB, sink, high, F32, per_row(g, 0, s));
        more = mf_graph_pointwise(g, CUDNN_POINTWISE_EXP, more, -1, F32, -1);
        sum = mf_graph_pointwise(g, CUDNN_POINTWISE_ADD, sum, more, F32, -1);
    }
    mf_graph_tensor log_sum = mf_graph_pointwise(g, CUDNN_POINTWISE_LOG, sum, -1, F32, -1);
    (void)mf_graph_pointwise(g, CUDNN_POINTWISE_ADD, high, log_sum, F32, per_row(g, LSE, s));
    /* Rounded to BF16 for the product with v. */
    return mf_graph_pointwise(g, CUDNN_POINTWISE_DIV, power, sum, BF16, -1);
}

static void build_forward(mf_graph *g, const mf_attention_cuda_shape *s) {
    const ragged at = ragged_of(g, s);
    mf_graph_tensor q = rows_of(g, Q, s->batch, s->heads, s->seq_q, s->qk_dim, &s->q, at.q_at);
    mf_graph_tensor k = swapped(g, K, s->batch, s->kv_heads, s->seq_k, s->qk_dim, &s->k, at.k_at);
    mf_graph_tensor v = rows_of(g, V, s->batch, s->kv_heads, s->seq_k, s->v_dim, &s->v, at.v_at);
    mf_graph_tensor o = rows_of(g, O, s->batch, s->heads, s->seq_q, s->v_dim, &s->o, at.o_at);
    mf_graph_tensor x = scores(g, s, &at, q, k, mf_graph_scalar(g, SCALE, F32));
    const mf_graph_extent extent = {at.q, -1, at.k, false};
    (void)mf_graph_matmul_part(g, softmax(g, s, masked(g, s, ended(g, s, &at, x))), v, o, &extent);
}

/* p^T or ds^T as cuDNN wants it: a BF16 view with rows and columns swapped. */
static mf_graph_tensor transposed(mf_graph *g, const mf_attention_cuda_shape *s,
                                  mf_graph_tensor x) {
    const int64_t plane = s->seq_q * s->seq_k;
    const int64_t dim[4] = {s->batch, s->heads, s->seq_k, s->seq_q};
    const int64_t stride[4] = {s->heads * plane, plane, 1, s->seq_k};
    return mf_graph_reshape(g, x, mf_graph_inner(g, BF16, dim, stride));
}

/* c = a b, summed over the query heads of each key head where they share it. */
static void head_gradient(mf_graph *g, const mf_attention_cuda_shape *s, const ragged *at,
                          mf_graph_tensor a, mf_graph_tensor b, int64_t width, mf_graph_tensor c) {
    const mf_graph_extent extent = {at->k, -1, at->q, false};
    if (s->heads == s->kv_heads) {
        (void)mf_graph_matmul_part(g, a, b, c, &extent);
        return;
    }
    mf_graph_tensor all = mf_graph_matmul_part(
        g, a, b, mf_graph_dense(g, BF16, s->batch, s->heads, s->seq_k, width), &extent);
    (void)mf_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, all, c);
}

/* delta = rowsum(do * o), and dsink = -sum exp(sink - lse) delta. No node here negates: cuDNN takes
 * the sum for the gradient of sinks and puts the sign in itself (tests/gpu/test_attention.c). */
static mf_graph_tensor row_delta(mf_graph *g, const mf_attention_cuda_shape *s, mf_graph_tensor d_o,
                                 mf_graph_tensor o, mf_graph_tensor lse) {
    mf_graph_tensor both = mf_graph_dense(g, F32, s->batch, s->heads, s->seq_q, s->v_dim);
    (void)mf_graph_pointwise(g, CUDNN_POINTWISE_MUL, d_o, o, F32, both);
    mf_graph_tensor sum = mf_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, both, per_row(g, 0, s));
    if (s->sink) {
        mf_graph_tensor sink = per_head(g, SINK, s);
        mf_graph_tensor low =
            mf_graph_pointwise(g, CUDNN_POINTWISE_SUB, sink, lse, F32, per_row(g, 0, s));
        mf_graph_tensor share = mf_graph_pointwise(g, CUDNN_POINTWISE_EXP, low, -1, F32, -1);
        mf_graph_tensor each = mf_graph_pointwise(g, CUDNN_POINTWISE_MUL, share, sum, F32, -1);
        (void)mf_graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, each, per_head(g, DSINK, s));
    }
    return mf_graph_pointwise(g, CUDNN_POINTWISE_MUL, sum, mf_graph_scalar(g, ONE, F32), F32,
                              per_row(g, DELTA, s));
}

static void build_backward(mf_graph *g, const mf_attention_cuda_shape *s) {
    const ragged at = ragged_of(g, s);
    mf_graph_tensor q = rows_of(g, Q, s->batch, s->heads, s->seq_q, s->qk_dim, &s->q, at.q_at);
    mf_graph_tensor k = swapped(g, K, s->batch, s->kv_heads, s->seq_k, s->qk_dim, &s->k, at.k_at);
    mf_graph_tensor v = swapped(g, V, s->batch, s->kv_heads, s->seq_k, s->v_dim, &s->v, at.v_at);
    mf_graph_tensor o = rows_of(g, O, s->batch, s->heads, s->seq_q, s->v_dim, &s->o, at.o_at);
    mf_graph_tensor d_o = rows_of(g, DO, s->batch, s->heads, s->seq_q, s->v_dim, &s->o, at.o_at);
    mf_graph_tensor dq = rows_of(g, DQ, s->batch, s->heads, s->seq_q, s->qk_dim, &s->q, at.q_at);
    mf_graph_tensor dk = rows_of(g, DK, s->batch, s->kv_heads, s->seq_k, s->qk_dim, &s->k, at.k_at);
    mf_graph_tensor dv = rows_of(g, DV, s->batch, s->kv_heads, s->seq_k, s->v_dim, &s->v, at.v_at);
    mf_graph_tensor lse = per_row(g, LSE, s);
    mf_graph_tensor scale = mf_graph_scalar(g, SCALE, F32);
    mf_graph_tensor delta = row_delta(g, s, d_o, o, lse);

    mf_graph_tensor x = scores(g, s, &at, q, k, scale);
    x = ended(g, s, &at, x);
    x = masked(g, s, mf_graph_pointwise(g, CUDNN_POINTWISE_SUB, x, lse, F32, -1));
    mf_graph_tensor p = mf_graph_pointwise(g, CUDNN_POINTWISE_EXP, x, -1, F32, -1);
    head_gradient(g, s, &at, transposed(g, s, p), d_o, s->v_dim, dv);

    const mf_graph_extent pairs = {at.q, at.k, -1, false};
    mf_graph_tensor ds = mf_graph_matmul_part(
        g, d_o, v, mf_graph_dense(g, F32, s->batch, s->heads, s->seq_q, s->seq_k), &pairs);
    ds = mf_graph_pointwise(g, CUDNN_POINTWISE_SUB, ds, delta, F32, -1);
    ds = mf_graph_pointwise(g, CUDNN_POINTWISE_MUL, ds, p, F32, -1);
    ds = mf_graph_pointwise(g, CUDNN_POINTWISE_MUL, ds, scale, BF16, -1);
    head_gradient(g, s, &at, transposed(g, s, ds), q, s->qk_dim, dk);

    const int64_t k_dim[4] = {s->batch, s->kv_heads, s->seq_k, s->qk_dim};
    const int64_t k_stride[4] = {s->k.batch, s->k.head, s->k.row, 1};
    mf_graph_tensor keys =
        mf_graph_reshape(g, k, mf_graph_inner_ragged(g, BF16, k_dim, k_stride, at.k_at));
    const mf_graph_extent queries = {at.q, -1, at.k, false};
    if (s->fixed) { /* cuDNN keeps ds in its workspace and adds in the order of a product */
        (void)mf_graph_matmul_part(g, ds, keys, dq, &queries);
        return;
    }
    const int64_t sum_dim[4] = {s->batch, s->heads, s->seq_q, s->qk_dim};
    const int64_t sum_stride[4] = {s->heads * s->seq_q * s->qk_dim, s->seq_q * s->qk_dim, s->qk_dim,
                                   1};
    mf_graph_tensor sum = mf_graph_matmul_part(
        g, ds, keys, mf_graph_input(g, DQ_SUM, F32, sum_dim, sum_stride), &queries);
    (void)mf_graph_pointwise(g, CUDNN_POINTWISE_IDENTITY, sum, -1, BF16, dq);
}

/* --- plans ------------------------------------------------------------------------------------ */

static size_t rounded(size_t size_B) {
    return (size_B + 255) / 256 * 256;
}

mf_status mf_attention_cuda_create(void *library, const mf_attention_cuda_shape *s,
                                   mf_attention_cuda **out, mf_err *e) {
    mf_attention_cuda *p = calloc(1, sizeof *p);
    *out = NULL;
    if (p == NULL) {
        return mf_err_set(e, MF_NOMEM, "attention: out of memory");
    }
    p->shape = *s;
    if (!s->general && mf_mla_grad_takes(s)) {
        mf_status made = mf_mla_grad_create(s, &p->own, e);
        *out = made == MF_OK ? p : NULL;
        if (made != MF_OK) {
            free(p);
        }
        return made;
    }
    p->shape.pieces = s->backward && s->pieces > 1 ? s->pieces : 1;
    p->shape.heads /= p->shape.pieces;
    p->shape.kv_heads /= p->shape.pieces;
    s = &p->shape;
    p->scale = s->scale;
    p->minus_infinity = -INFINITY;
    p->one = 1.0f;
    p->reach = (float)(s->window - s->seq_k + s->seq_q);
    p->shift = (int32_t)(s->seq_k - s->seq_q);
    mf_graph_init(&p->graph, library, e);
    if (s->backward) {
        p->delta_B = rounded((size_t)(s->batch * s->heads * s->seq_q) * sizeof(float));
        p->dq_sum_B =
            s->fixed
                ? 0
                : rounded((size_t)(s->batch * s->heads * s->seq_q * s->qk_dim) * sizeof(float));
        build_backward(&p->graph, s);
    } else {
        build_forward(&p->graph, s);
    }
    mf_status status = mf_graph_compile(&p->graph, s->fixed);
    if (status != MF_OK) {
        mf_attention_cuda_destroy(p);
        return status;
    }
    *out = p;
    return MF_OK;
}

void mf_attention_cuda_destroy(mf_attention_cuda *p) {
    if (p != NULL) {
        if (p->own == NULL) {
            mf_graph_clear(&p->graph);
        }
        mf_mla_grad_destroy(p->own);
        free(p);
    }
}

size_t mf_attention_cuda_workspace_B(const mf_attention_cuda *p) {
    return p->own != NULL ? mf_mla_grad_workspace_B(&p->shape)
                          : rounded(p->graph.workspace_B) + p->delta_B + p->dq_sum_B;
}

typedef struct binding {
    int n;
    int64_t uid[UIDS];
    void *pointer[UIDS];
} binding;

/* Inputs are bound like outputs; cuDNN's interface knows no const. */
static void bind(binding *b, int64_t uid, const void *pointer) {
    b->uid[b->n] = uid;
    memcpy(&b->pointer[b->n], &pointer, sizeof pointer);
    b->n++;
}

/* A packing: lengths, and first elements in q, k, v, o; each on a 16-byte boundary. */
static int64_t packing_stride(int64_t batch) {
    return (batch + 1 + 3) / 4 * 4;
}

size_t mf_attention_packing_B(int64_t batch) {
    return (size_t)(5 * packing_stride(batch)) * sizeof(int32_t);
}

static void bind_packing(binding *b, int64_t batch, const int32_t *packing) {
    const int64_t step = packing_stride(batch);
    bind(b, Q_LENGTH, packing);
    bind(b, K_LENGTH, packing);
    bind(b, Q_AT, packing + step);
    bind(b, K_AT, packing + 2 * step);
    bind(b, V_AT, packing + 3 * step);
    bind(b, O_AT, packing + 4 * step);
}

static mf_status run_piece(mf_attention_cuda *p, const mf_attention_cuda_data *d, void *stream,
                           mf_err *e) {
    const mf_attention_cuda_shape *s = &p->shape;
    char *behind = (char *)d->workspace + rounded(p->graph.workspace_B);
    binding b = {.n = 0};
    bind(&b, Q, d->q);
    bind(&b, K, d->k);
    bind(&b, V, d->v);
    bind(&b, O, d->o);
    bind(&b, LSE, d->lse);
    bind(&b, SCALE, &p->scale);
    if (s->causal) {
        bind(&b, HIDDEN_SCORE, &p->minus_infinity);
        if (s->seq_k != s->seq_q) {
            bind(&b, SHIFT, &p->shift);
        }
        if (s->window > 0) {
            bind(&b, REACH, &p->reach);
        }
    }
    if (s->sink) {
        bind(&b, SINK, d->sink);
    }
    if (s->packed) {
        bind_packing(&b, s->batch, d->packing);
        bind(&b, ENDED_SCORE, &p->minus_infinity);
    }
    if (s->backward) {
        bind(&b, DO, d->d_o);
        bind(&b, DQ, d->dq);
        bind(&b, DK, d->dk);
        bind(&b, DV, d->dv);
        bind(&b, ONE, &p->one);
        bind(&b, DELTA, behind);
        if (!s->fixed) {
            bind(&b, DQ_SUM, behind + p->delta_B);
        }
        if (s->sink) {
            bind(&b, DSINK, d->dsink);
        }
    }
    return mf_graph_execute(&p->graph, b.n, b.uid, b.pointer, d->workspace, stream, e);
}

/* The same tensor from element `first` on. */
static void *from(const void *data, int64_t first, size_t element_B) {
    return data != NULL ? (char *)(uintptr_t)data + first * (int64_t)element_B : NULL;
}

mf_status mf_attention_cuda_run(mf_attention_cuda *p, const mf_attention_cuda_data *d, void *stream,
                                mf_err *e) {
    const mf_attention_cuda_shape *s = &p->shape;
    const size_t bf16_B = 2, f32_B = sizeof(float);
    mf_status status = MF_OK;
    if (p->own != NULL) {
        return mf_mla_grad_run(p->own, d, stream, e);
    }
    for (int64_t i = 0; i < s->pieces && status == MF_OK; i++) {
        const int64_t head = i * s->heads, kv_head = i * s->kv_heads;
        mf_attention_cuda_data piece = *d;
        piece.q = from(d->q, head * s->q.head, bf16_B);
        piece.k = from(d->k, kv_head * s->k.head, bf16_B);
        piece.v = from(d->v, kv_head * s->v.head, bf16_B);
        piece.sink = from(d->sink, head, f32_B);
        piece.o = from(d->o, head * s->o.head, bf16_B);
        piece.lse = from(d->lse, head * s->seq_q, f32_B);
        piece.d_o = from(d->d_o, head * s->o.head, bf16_B);
        piece.dq = from(d->dq, head * s->q.head, bf16_B);
        piece.dk = from(d->dk, kv_head * s->k.head, bf16_B);
        piece.dv = from(d->dv, kv_head * s->v.head, bf16_B);
        piece.dsink = from(d->dsink, head, f32_B);
        status = run_piece(p, &piece, stream, e);
    }
    return status;
}
