/* mla_grad.cu - launches of kernels/attention/mla_grad_device.cuh: tensor maps, groups of heads. */
#include "kernels/attention/mla_grad.h"
#include "kernels/attention/mla_grad_device.cuh"
#include "kernels/device/cuda_check.h"
#include "kernels/device/tensor_map.cuh"

#include <stdlib.h>

namespace {

using namespace mf_kept;

bool lies_so(const mf_attention_cuda_shape *s, const mf_attention_strides &x, int width) {
    return x.batch == s->seq_q * x.row && x.row % 8 == 0 && x.head % 8 == 0 && x.head >= width;
}

/* How many heads' scores are kept at once. */
int heads_at_once(const mf_attention_cuda_shape *s) {
    const int64_t all = s->batch * s->heads, groups = s->pieces > 1 ? s->pieces : 1;
    return (int)((all + groups - 1) / groups);
}

/* Groups that are on their way at once. */
int lanes(const mf_attention_cuda_shape *s) {
    return s->pieces > 1 ? 2 : 1;
}

size_t group_B(const mf_attention_cuda_shape *s) {
    return (size_t)heads_at_once(s) * (size_t)tiles_of((int)s->seq_q) * TILE_B;
}

size_t per_row_B(const mf_attention_cuda_shape *s) {
    return (size_t)(s->batch * s->heads * s->seq_q) * sizeof(float);
}

mf_status map_rows(mf_tensor_map_encode encode, CUtensorMap *map, const void *at,
                   const mf_attention_cuda_shape *s, const mf_attention_strides &x, int width,
                   mf_err *e) {
    const mf_tensor_map_array a = {
        at, false, {width, s->batch * s->seq_q, s->heads}, {x.row * 2, x.head * 2}, {BOX, BOX, 1}};
    return mf_tensor_map(encode, map, &a, e);
}

/* A number for each query of each head. */
mf_status map_numbers(mf_tensor_map_encode encode, CUtensorMap *map, const float *at,
                      const mf_attention_cuda_shape *s, mf_err *e) {
    const int64_t row_B = s->seq_q * 4, pairs = s->batch * s->heads;
    const mf_tensor_map_array a = {
        at, true, {s->seq_q, pairs, 1}, {row_B, pairs * row_B}, {BOX, 1, 1}};
    return mf_tensor_map(encode, map, &a, e);
}

mf_status map_all(const mf_attention_cuda_shape *s, const mf_attention_cuda_data *d,
                  const float *delta, const float *lse2, Maps *m, mf_err *e) {
    const struct {
        CUtensorMap *map;
        const void *at;
        const mf_attention_strides *x;
        int width;
    } all[] = {{&m->q, d->q, &s->q, QK},     {&m->k, d->k, &s->k, QK},
               {&m->v, d->v, &s->v, VALUE},  {&m->d_o, d->d_o, &s->o, VALUE},
               {&m->dq, d->dq, &s->q, QK},   {&m->dk, d->dk, &s->k, QK},
               {&m->dv, d->dv, &s->v, VALUE}};
    mf_tensor_map_encode encode = NULL;
    mf_status status = mf_tensor_map_find(&encode, e);
    for (size_t i = 0; i < sizeof all / sizeof all[0] && status == MF_OK; i++) {
        status = map_rows(encode, all[i].map, all[i].at, s, *all[i].x, all[i].width, e);
    }
    status = status == MF_OK ? map_numbers(encode, &m->delta, delta, s, e) : status;
    return status == MF_OK ? map_numbers(encode, &m->lse2, lse2, s, e) : status;
}

} // namespace

bool mf_mla_grad_takes(const mf_attention_cuda_shape *s) {
    return s->backward && s->qk_dim == QK && s->v_dim == VALUE && s->heads == s->kv_heads &&
           s->seq_q == s->seq_k && s->seq_q % QUERIES == 0 && s->causal && s->window == 0 &&
           !s->sink && !s->packed && lies_so(s, s->q, QK) && lies_so(s, s->k, QK) &&
           lies_so(s, s->v, VALUE) && lies_so(s, s->o, VALUE);
}

size_t mf_mla_grad_workspace_B(const mf_attention_cuda_shape *s) {
    return 2 * per_row_B(s) + (size_t)lanes(s) * group_B(s);
}

struct mf_mla_grad {
    mf_attention_cuda_shape shape;
    cudaStream_t beside; /* for every other group */
    cudaEvent_t begun, ended;
};

mf_status mf_mla_grad_create(const mf_attention_cuda_shape *shape, mf_mla_grad **out, mf_err *e) {
    mf_status status = MF_OK;
    mf_mla_grad *g = (mf_mla_grad *)calloc(1, sizeof *g);
    *out = NULL;
    if (g == NULL) {
        return mf_err_set(e, MF_NOMEM, "gradients of attention: out of memory");
    }
    g->shape = *shape;
    MF_CUDA_GOTO(cudaStreamCreateWithFlags(&g->beside, cudaStreamNonBlocking), e);
    MF_CUDA_GOTO(cudaEventCreateWithFlags(&g->begun, cudaEventDisableTiming), e);
    MF_CUDA_GOTO(cudaEventCreateWithFlags(&g->ended, cudaEventDisableTiming), e);
    MF_CUDA_GOTO(cudaFuncSetAttribute(keys_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      KeysSmem::SIZE_B),
                 e);
    MF_CUDA_GOTO(cudaFuncSetAttribute(queries_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      QueriesSmem::SIZE_B),
                 e);
    *out = g;
    return MF_OK;
out:
    mf_mla_grad_destroy(g);
    return status;
}

void mf_mla_grad_destroy(mf_mla_grad *g) {
    if (g == NULL) {
        return;
    }
    if (g->ended != NULL) {
        (void)cudaEventDestroy(g->ended);
    }
    if (g->begun != NULL) {
        (void)cudaEventDestroy(g->begun);
    }
    if (g->beside != NULL) {
        (void)cudaStreamDestroy(g->beside);
    }
    free(g);
}

mf_status mf_mla_grad_run(mf_mla_grad *g, const mf_attention_cuda_data *d, void *stream_,
                          mf_err *e) {
    const mf_attention_cuda_shape *s = &g->shape;
    cudaStream_t stream[2] = {(cudaStream_t)stream_, g->beside};
    const int seq = (int)s->seq_q, all = (int)(s->batch * s->heads), at_once = heads_at_once(s);
    const bool two = lanes(s) > 1;
    const float log2_e = 1.44269504088896340736f;
    uint8_t *scores = (uint8_t *)d->workspace;
    float *delta = (float *)(scores + (size_t)lanes(s) * group_B(s));
    float *lse2 = delta + per_row_B(s) / sizeof(float);
    Maps m;
    mf_status status = map_all(s, d, delta, lse2, &m, e);
    if (status != MF_OK) {
        return status;
    }
    const RowArgs rows = {(const __nv_bfloat16 *)d->o,
                          (const __nv_bfloat16 *)d->d_o,
                          d->lse,
                          delta,
                          lse2,
                          (long long)all * seq,
                          (int)s->heads,
                          seq,
                          s->o.row,
                          s->o.head};
    rows_kernel<<<(unsigned)((rows.rows + 7) / 8), 256, 0, stream[0]>>>(rows);
    if (two) {
        MF_CUDA_TRY(cudaEventRecord(g->begun, stream[0]), e);
        MF_CUDA_TRY(cudaStreamWaitEvent(stream[1], g->begun, 0), e);
    }
    for (int first = 0, lane = 0; first < all; first += at_once, lane = two ? 1 - lane : 0) {
        const int count = all - first < at_once ? all - first : at_once;
        const Args p = {scores + (size_t)lane * group_B(s),
                        first,
                        (int)s->heads,
                        seq,
                        s->scale,
                        s->scale * log2_e};
        keys_kernel<<<(unsigned)(count * (seq / KEYS)), THREADS, KeysSmem::SIZE_B, stream[lane]>>>(
            m, p);
        queries_kernel<<<(unsigned)(count * (seq / QUERIES)), THREADS, QueriesSmem::SIZE_B,
                         stream[lane]>>>(m, p);
    }
    if (two) {
        MF_CUDA_TRY(cudaEventRecord(g->ended, stream[1]), e);
        MF_CUDA_TRY(cudaStreamWaitEvent(stream[0], g->ended, 0), e);
    }
    MF_CUDA_TRY(cudaGetLastError(), e);
    return MF_OK;
}
