/* measure_attention_cuda.c - core attention: cuDNN's, and our own gradients of MLA's. */
#include "core/program/scratch.h"
#include "executor/measure/measure_cuda.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/mla_grad.h"
#include "profiles/ops_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct attention {
    mf_attention_cuda *plan;
    int sets;
    int32_t *packing; /* of packed sequences */
    mf_attention_cuda_data data[MF_MEASURE_SETS];
} attention;

static mf_status launch(void *op, int64_t i, cudaStream_t stream, mf_err *e) {
    attention *a = op;
    return mf_attention_cuda_run(a->plan, &a->data[i % a->sets], stream, e);
}

static mf_attention_cuda_shape shape_of(const mf_point *p) {
    const bool packed = strcmp(p->op, "attention_packed") == 0;
    const int64_t batch = mf_measure_dim(p, "b"), mean = mf_measure_dim(p, "s");
    const int64_t longest =
        packed ? mf_op_packed_length(mean, mf_measure_dim(p, "vary"), batch, batch - 1) : mean;
    mf_attention_cuda_shape s = {.batch = batch,
                                 .heads = mf_measure_dim(p, "h"),
                                 .kv_heads = mf_measure_dim(p, "hkv"),
                                 .seq_q = longest,
                                 .seq_k = packed ? longest : mf_measure_dim(p, "skv"),
                                 .qk_dim = mf_measure_dim(p, "dqk"),
                                 .v_dim = mf_measure_dim(p, "dv"),
                                 .causal = mf_measure_dim(p, "causal") != 0,
                                 .window = mf_measure_dim(p, "window"),
                                 .backward = strcmp(mf_point_word(p, "pass"), "bwd") == 0,
                                 .packed = packed};
    s.general = strcmp(mf_point_word(p, "impl"), "moefold") != 0;
    s.pieces = s.general ? 1 : mf_attention_kept_groups(s.batch, s.heads, s.seq_q);
    s.q = mf_attention_packed(s.seq_q, s.heads, s.qk_dim);
    s.k = mf_attention_packed(s.seq_k, s.kv_heads, s.qk_dim);
    s.v = mf_attention_packed(s.seq_k, s.kv_heads, s.v_dim);
    s.o = mf_attention_packed(s.seq_q, s.heads, s.v_dim);
    s.scale = 1.0f / sqrtf((float)s.qk_dim);
    return s;
}

/* A plan; the GPU rests while it is compiled. */
static mf_status compile(mf_measure_session *s, const mf_attention_cuda_shape *shape,
                         mf_attention_cuda **out, mf_err *e) {
    mf_measure_busy(s);
    mf_status status = mf_attention_cuda_create(s->cudnn, shape, out, e);
    mf_measure_idled(s);
    return status;
}

/* Backward runs on the o and lse of a forward pass: random ones would overflow its exponentials. */
static mf_status run_forward(mf_measure_session *s, mf_attention_cuda_shape shape,
                             const mf_attention_cuda_data *d, mf_err *e) {
    mf_attention_cuda *plan = NULL;
    shape.backward = false;
    mf_status status = compile(s, &shape, &plan, e);
    if (status == MF_OK) {
        mf_attention_cuda_data data = *d;
        size_t before = s->used_B;
        data.workspace = mf_measure_take(s, mf_attention_cuda_workspace_B(plan), MF_DATA_NONE);
        status = data.workspace == NULL ? mf_err_set(e, MF_INPUT, "attention does not fit")
                                        : mf_attention_cuda_run(plan, &data, s->stream, e);
        (void)cudaStreamSynchronize(s->stream);
        s->used_B = before;
    }
    mf_attention_cuda_destroy(plan);
    return status;
}

/* Where the sequences of a packed point begin: a packing on the device; NULL when it does not fit.
 */
static int32_t *take_packing(mf_measure_session *s, const mf_point *p,
                             const mf_attention_cuda_shape *t, mf_err *e) {
    const size_t cu_B = (size_t)(t->batch + 1) * sizeof(int32_t);
    int32_t *host = malloc(cu_B), *cu = mf_measure_take(s, cu_B, MF_DATA_NONE);
    int32_t *packing = mf_measure_take(s, mf_attention_packing_B(t->batch), MF_DATA_NONE);
    bool ok = host != NULL && cu != NULL && packing != NULL;
    if (ok) {
        host[0] = 0;
        for (int64_t i = 0; i < t->batch; i++) {
            host[i + 1] =
                host[i] + (int32_t)mf_op_packed_length(mf_measure_dim(p, "s"),
                                                       mf_measure_dim(p, "vary"), t->batch, i);
        }
        ok = cudaMemcpy(cu, host, cu_B, cudaMemcpyHostToDevice) == cudaSuccess &&
             mf_attention_packing_cuda(t, cu, packing, s->stream, e) == MF_OK;
    }
    free(host);
    return ok ? packing : NULL;
}

/* rows: of all sequences, of queries and of keys. */
static mf_status take_set(mf_measure_session *s, const mf_attention_cuda_shape *t,
                          const int64_t rows[2], const attention *a, mf_attention_cuda_data *d,
                          mf_err *e) {
    size_t q_B = (size_t)(rows[0] * t->heads * t->qk_dim) * 2;
    size_t k_B = (size_t)(rows[1] * t->kv_heads * t->qk_dim) * 2;
    size_t v_B = (size_t)(rows[1] * t->kv_heads * t->v_dim) * 2;
    size_t o_B = (size_t)(rows[0] * t->heads * t->v_dim) * 2;
    *d = (mf_attention_cuda_data){
        .q = mf_measure_take(s, q_B, MF_DATA_BF16),
        .k = mf_measure_take(s, k_B, MF_DATA_BF16),
        .v = mf_measure_take(s, v_B, MF_DATA_BF16),
        .o = mf_measure_take(s, o_B, MF_DATA_NONE),
        .lse = mf_measure_take(s, (size_t)(t->batch * t->heads * t->seq_q) * 4, MF_DATA_NONE),
        .workspace = mf_measure_take(s, mf_attention_cuda_workspace_B(a->plan), MF_DATA_NONE),
        .packing = a->packing};
    bool full = d->o == NULL || d->lse == NULL || d->workspace == NULL;
    if (t->backward && !full) {
        d->d_o = mf_measure_take(s, o_B, MF_DATA_BF16);
        d->dq = mf_measure_take(s, q_B, MF_DATA_NONE);
        d->dk = mf_measure_take(s, k_B, MF_DATA_NONE);
        d->dv = mf_measure_take(s, v_B, MF_DATA_NONE);
        full = d->dv == NULL;
        if (!full) {
            return run_forward(s, *t, d, e);
        }
    }
    return full ? mf_err_set(e, MF_INPUT, "attention does not fit into the GPU's memory") : MF_OK;
}

static void close_library(void *library) {
    mf_attention_cuda_library_close(library);
}

mf_status mf_measure_attention(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                               mf_err *e) {
    attention a = {.plan = NULL};
    mf_attention_cuda_shape shape = shape_of(p);
    mf_status status = MF_OK;
    if (strcmp(mf_point_word(p, "dtype"), "bf16") != 0 ||
        (shape.general ? strcmp(mf_point_word(p, "impl"), "cudnn") != 0
                       : !mf_mla_grad_takes(&shape))) {
        return mf_err_set(e, MF_INPUT, "no kernel for this kind of attention");
    }
    if (s->cudnn == NULL) {
        status = mf_attention_cuda_library_open(&s->cudnn, e);
        s->cudnn_close = close_library;
    }
    status = status == MF_OK ? compile(s, &shape, &a.plan, e) : status;
    if (status == MF_OK) {
        double elements = (double)(shape.batch * shape.seq_q * shape.heads) *
                          (double)(shape.qk_dim + shape.v_dim);
        /* Sets beyond the second cost a forward pass each; attention reads its operands often. */
        a.sets = elements * 2 > 3.0 * (double)s->l2_B ? 1 : 3;
    }
    int64_t rows[2] = {shape.batch * shape.seq_q, shape.batch * shape.seq_k};
    if (status == MF_OK && shape.packed) {
        rows[0] = rows[1] = 0;
        for (int64_t i = 0; i < shape.batch; i++) {
            rows[0] = rows[1] += mf_op_packed_length(mf_measure_dim(p, "s"),
                                                     mf_measure_dim(p, "vary"), shape.batch, i);
        }
        a.packing = take_packing(s, p, &shape, e);
        status = a.packing != NULL ? MF_OK : mf_err_set(e, MF_INPUT, "attention does not fit");
    }
    for (int i = 0; i < a.sets && status == MF_OK; i++) {
        status = take_set(s, &shape, rows, &a, &a.data[i], e);
    }
    status = status == MF_OK ? mf_measure_run(s, launch, &a, out, e) : status;
    mf_attention_cuda_destroy(a.plan);
    return status;
}
