/* measure_memory_tokens_cuda.c - routing, permutation, embedding, loss and optimizer, by the bytes
 * that lowering counts for them (core/program/lower_*.c).
 */
#include "executor/measure/measure_memory_cuda.h"

#include <stdlib.h>
#include <string.h>

enum {
    HIDDEN = MF_MEASURE_HIDDEN,
    EXPERTS = MF_MEASURE_EXPERTS,
    TOP_K = MF_MEASURE_TOP_K,
    VOCAB = MF_MEASURE_VOCAB
};
static const mf_kernel_dtype BF16 = MF_KERNEL_BF16;

static void make_router(mf_measure_maker *m, mf_measure_args *a) {
    int64_t n = m->rows * EXPERTS, k = m->rows * TOP_K;
    float *scores = mf_measure_make_f32(m, n);
    int32_t *index = mf_measure_make_raw(m, (size_t)k * 4);
    a->router.choose = (mf_kernel_router){.rows = m->rows,
                                          .experts = EXPERTS,
                                          .top_k = TOP_K,
                                          .score = MF_ROUTE_SOFTMAX,
                                          .normalise = true,
                                          .scaling = 1.0f,
                                          .groups = 1,
                                          .group_topk = 1,
                                          .group_score = MF_ROUTE_GROUP_MAX,
                                          .logits = mf_measure_make_f32(m, n),
                                          .scores = scores,
                                          .prob = mf_measure_make_f32(m, k),
                                          .index = index,
                                          .lse = NULL};
    a->router.stats = (mf_kernel_router_stats){
        .rows = m->rows,
        .experts = EXPERTS,
        .top_k = TOP_K,
        .score = MF_ROUTE_SOFTMAX,
        .scopes = 1,
        .scores = scores,
        .index = index,
        .count = mf_measure_make_f32(m, EXPERTS),
        .prob_sum = mf_measure_make_f32(m, EXPERTS),
        .workspace = mf_measure_make_raw(m, mf_kernel_router_workspace_B(1, EXPERTS))};
}
static mf_status run_router(const mf_measure_args *a, void *stream, mf_err *e) {
    mf_status status = mf_kernel_router_forward_cuda(&a->router.choose, stream, e);
    return status == MF_OK ? mf_kernel_router_stats_add_cuda(&a->router.stats, stream, e) : status;
}
static void make_router_grad(mf_measure_maker *m, mf_measure_args *a) {
    int64_t n = m->rows * EXPERTS, k = m->rows * TOP_K;
    a->router_grad =
        (mf_kernel_router_grad){.rows = m->rows,
                                .experts = EXPERTS,
                                .top_k = TOP_K,
                                .score = MF_ROUTE_SOFTMAX,
                                .normalise = true,
                                .scaling = 1.0f,
                                .scores = mf_measure_make(m, (size_t)n * 4, MF_DATA_SCALE),
                                .index = mf_measure_make_ints(m, k, EXPERTS),
                                .dprob = mf_measure_make_f32(m, k),
                                .aux_weight = mf_measure_make_f32(m, EXPERTS),
                                .dlogits = mf_measure_make_raw(m, (size_t)n * 4)};
}
static mf_status run_router_grad(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_router_backward_cuda(&a->router_grad, stream, e);
}

/* rows: of the result, TOP_K for each token. The map is built once, before the timing: its kernel
 * does not depend on the width of the rows. */
static mf_kernel_permute_map make_map(mf_measure_maker *m, int64_t tokens) {
    int64_t slots = tokens * TOP_K;
    mf_kernel_permute_map map = {
        .tokens = tokens,
        .top_k = TOP_K,
        .experts = EXPERTS,
        .align = 1,
        .rows_max = slots,
        .index = mf_measure_make_ints(m, slots, EXPERTS),
        .counts = mf_measure_make_raw(m, EXPERTS * 4),
        .offsets = mf_measure_make_raw(m, (EXPERTS + 1) * 4),
        .row_of_slot = mf_measure_make_raw(m, (size_t)slots * 4),
        .slot_of_row = mf_measure_make_raw(m, (size_t)slots * 4),
        .overflow = mf_measure_make_raw(m, 4),
        .workspace = mf_measure_make_raw(m, mf_kernel_permute_workspace_B(slots, EXPERTS))};
    if (!m->full) {
        m->full = mf_kernel_permute_map_build_cuda(&map, m->s->stream, NULL) != MF_OK;
    }
    return map;
}
static int64_t tokens_of(const mf_measure_maker *m) {
    return m->rows / TOP_K > 0 ? m->rows / TOP_K : 1;
}
static void make_permute(mf_measure_maker *m, mf_measure_args *a) {
    int64_t tokens = tokens_of(m);
    a->permute.map = make_map(m, tokens);
    a->permute.rows =
        (mf_kernel_permute){.dtype = BF16,
                            .rows = tokens * TOP_K,
                            .cols = HIDDEN,
                            .top_k = TOP_K,
                            .slot_of_row = a->permute.map.slot_of_row,
                            .row_of_slot = a->permute.map.row_of_slot,
                            .tokens = tokens,
                            .x = mf_measure_make_bf16(m, tokens * HIDDEN),
                            .out = mf_measure_make_raw(m, (size_t)(tokens * TOP_K * HIDDEN) * 2)};
}
static mf_status run_permute(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_permute_forward_cuda(&a->permute.rows, stream, e);
}
static void make_unpermute(mf_measure_maker *m, mf_measure_args *a) {
    int64_t tokens = tokens_of(m);
    mf_kernel_permute_map map = make_map(m, tokens);
    a->unpermute =
        (mf_kernel_unpermute){.dtype = BF16,
                              .tokens = tokens,
                              .cols = HIDDEN,
                              .top_k = TOP_K,
                              .row_of_slot = map.row_of_slot,
                              .in = mf_measure_make_bf16(m, tokens * TOP_K * HIDDEN),
                              .y = mf_measure_make_raw(m, (size_t)(tokens * HIDDEN) * 2)};
}
static mf_status run_unpermute(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_unpermute_forward_cuda(&a->unpermute, stream, e);
}

static void make_embedding(mf_measure_maker *m, mf_measure_args *a) {
    a->embedding =
        (mf_kernel_embedding){.dtype = BF16,
                              .tokens = m->rows,
                              .cols = HIDDEN,
                              .vocab = VOCAB,
                              .token = mf_measure_make_ints(m, m->rows, VOCAB),
                              .table = mf_measure_make_bf16(m, (int64_t)VOCAB * HIDDEN),
                              .y = mf_measure_make_raw(m, (size_t)(m->rows * HIDDEN) * 2)};
}
static mf_status run_embedding(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_embedding_forward_cuda(&a->embedding, stream, e);
}
static void make_embedding_grad(mf_measure_maker *m, mf_measure_args *a) {
    a->embedding_grad =
        (mf_kernel_embedding_grad){.dtype = BF16,
                                   .tokens = m->rows,
                                   .cols = HIDDEN,
                                   .vocab = VOCAB,
                                   .token = mf_measure_make_ints(m, m->rows, VOCAB),
                                   .dy = mf_measure_make_bf16(m, m->rows * HIDDEN),
                                   .dtable = mf_measure_make_f32(m, (int64_t)VOCAB * HIDDEN),
                                   .workspace = mf_measure_make_raw(
                                       m, mf_kernel_embedding_workspace_B(m->rows, VOCAB, HIDDEN))};
}
static mf_status run_embedding_grad(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_embedding_backward_cuda(&a->embedding_grad, stream, e);
}

static void make_loss(mf_measure_maker *m, mf_measure_args *a) {
    a->loss = (mf_kernel_ce_stats){.dtype = BF16,
                                   .rows = m->rows,
                                   .cols = VOCAB,
                                   .stride = VOCAB,
                                   .vocab = VOCAB,
                                   .logits = mf_measure_make_bf16(m, m->rows * VOCAB),
                                   .target = mf_measure_make_ints(m, m->rows, VOCAB),
                                   .stats = mf_measure_make_f32(m, 3 * m->rows)};
}
static mf_status run_loss(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_cross_entropy_stats_cuda(&a->loss, stream, e);
}
static void make_loss_grad(mf_measure_maker *m, mf_measure_args *a) {
    a->loss_grad = (mf_kernel_ce_grad){.dtype = BF16,
                                       .rows = m->rows,
                                       .cols = VOCAB,
                                       .stride = VOCAB,
                                       .vocab = VOCAB,
                                       .target = mf_measure_make_ints(m, m->rows, VOCAB),
                                       .lse = mf_measure_make_f32(m, m->rows),
                                       .scale = 1.0f,
                                       .logits = mf_measure_make_bf16(m, m->rows * VOCAB)};
}
static mf_status run_loss_grad(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_cross_entropy_backward_cuda(&a->loss_grad, stream, e);
}

static void make_loss_whole(mf_measure_maker *m, mf_measure_args *a) {
    a->loss_whole = (mf_kernel_ce_whole){.dtype = BF16,
                                         .rows = m->rows,
                                         .cols = VOCAB,
                                         .stride = VOCAB,
                                         .vocab = VOCAB,
                                         .target = mf_measure_make_ints(m, m->rows, VOCAB),
                                         .scale = 1.0f,
                                         .logits = mf_measure_make_bf16(m, m->rows * VOCAB),
                                         .stats = mf_measure_make_f32(m, 3 * m->rows),
                                         .lse = mf_measure_make_f32(m, m->rows),
                                         .loss_sum = mf_measure_make_raw(m, 8),
                                         .loss_scale = 1.0};
}
static mf_status run_loss_whole(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_cross_entropy_cuda(&a->loss_whole, stream, e);
}

/* rows of HIDDEN elements, in tensors as large as a layer's weights. */
static mf_kernel_chunk *make_chunks(mf_measure_maker *m, int64_t count, int64_t *chunks) {
    *chunks = mf_kernel_chunks(&count, 1, NULL);
    mf_kernel_chunk *host = malloc((size_t)*chunks * sizeof *host), *p = NULL;
    if (host != NULL) {
        (void)mf_kernel_chunks(&count, 1, host);
        p = mf_measure_make_copy(m, host, (size_t)*chunks * sizeof *host);
        (void)cudaStreamSynchronize(m->s->stream); /* the host's copy goes */
    }
    m->full = m->full || p == NULL;
    free(host);
    return p;
}
static void make_grad_norm(mf_measure_maker *m, mf_measure_args *a) {
    int64_t n = m->rows * HIDDEN;
    mf_kernel_grad_tensor tensor = {mf_measure_make_f32(m, n), n};
    a->grad_norm = (mf_kernel_grad_norm){.tensors = 1, .sum_sq = mf_measure_make_raw(m, 8)};
    a->grad_norm.chunk = make_chunks(m, n, &a->grad_norm.chunks);
    a->grad_norm.tensor = mf_measure_make_copy(m, &tensor, sizeof tensor);
    a->grad_norm.workspace = mf_measure_make_raw(m, (size_t)a->grad_norm.chunks * 8);
}
static mf_status run_grad_norm(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_grad_norm_add_cuda(&a->grad_norm, stream, e);
}
static void make_adamw(mf_measure_maker *m, mf_measure_args *a) {
    int64_t n = m->rows * HIDDEN;
    mf_kernel_adamw_tensor tensor = {.master = mf_measure_make_f32(m, n),
                                     .param = mf_measure_make_raw(m, (size_t)n * 2),
                                     .grad = mf_measure_make_f32(m, n),
                                     .m = mf_measure_make_f32(m, n),
                                     .v = mf_measure_make(m, (size_t)n * 4, MF_DATA_SCALE),
                                     .count = n,
                                     .decay = 0.1f};
    a->adamw = (mf_kernel_adamw){.moments = MF_KERNEL_F32,
                                 .lr = 1e-4f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .eps = 1e-8f,
                                 .grad_scale = 1.0f,
                                 .step = 10,
                                 .tensors = 1};
    a->adamw.chunk = make_chunks(m, n, &a->adamw.chunks);
    a->adamw.tensor = mf_measure_make_copy(m, &tensor, sizeof tensor);
}
static mf_status run_adamw(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_adamw_update_cuda(&a->adamw, stream, e);
}

/* Rows of the whole batch, of which this rank keeps all; the capacity is the mean. */
static void make_drop(mf_measure_maker *m, mf_measure_args *a) {
    const int64_t k = m->rows * TOP_K;
    a->drop = (mf_kernel_router_drop){
        .rows = m->rows,
        .experts = EXPERTS,
        .top_k = TOP_K,
        .capacity = (k + EXPERTS - 1) / EXPERTS,
        .samples = 1,
        .prob = mf_measure_make(m, (size_t)k * 4, MF_DATA_SCALE),
        .index = mf_measure_make_ints(m, k, EXPERTS),
        .prob_kept = mf_measure_make_f32(m, k),
        .index_kept = mf_measure_make_raw(m, (size_t)k * 4),
        .workspace = mf_measure_make_raw(m, mf_kernel_router_drop_workspace_B(k, EXPERTS))};
}
static mf_status run_drop(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_router_capacity_cuda(&a->drop, stream, e);
}

static const mf_measure_kind kinds[] = {
    {"router_fwd", 4.0 * EXPERTS + 8.0 * TOP_K, make_router, run_router},
    {"router_bwd", 8.0 * EXPERTS + 16.0 * TOP_K, make_router_grad, run_router_grad},
    {"permute", 2.0 * HIDDEN *(1 + 1.0 / TOP_K), make_permute, run_permute},
    {"unpermute", 2.0 * HIDDEN *(1 + 1.0 / TOP_K), make_unpermute, run_unpermute},
    {"cross_entropy", 4.0 * VOCAB, make_loss_whole, run_loss_whole},
    {"cross_entropy_fwd", 2.0 * VOCAB, make_loss, run_loss},
    {"cross_entropy_bwd", 4.0 * VOCAB, make_loss_grad, run_loss_grad},
    {"grad_norm", 4.0 * HIDDEN, make_grad_norm, run_grad_norm},
    {"adamw", 32.0 * HIDDEN, make_adamw, run_adamw},
    {"embedding_fwd", 4.0 * HIDDEN, make_embedding, run_embedding},
    {"embedding_bwd", 10.0 * HIDDEN, make_embedding_grad, run_embedding_grad},
    /* what lowering counts for a choice of the batch that stays on this rank: read, and written
       twice */
    {"router_drop", 24.0 * TOP_K, make_drop, run_drop},
};

const mf_measure_kind *mf_measure_kind_of_tokens(const char *name) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            return &kinds[i];
        }
    }
    return NULL;
}
