/* measure_memory_cuda.c - kernels bound by device memory, by the bytes that lowering counts for
 * them (core/lower_*.c), on rows of a usual width.
 */
#include "executor/measure_cuda.h"
#include "kernels/adamw.h"
#include "kernels/bias.h"
#include "kernels/cast.h"
#include "kernels/cross_entropy.h"
#include "kernels/cuda_check.h"
#include "kernels/embedding.h"
#include "kernels/gate.h"
#include "kernels/grad_norm.h"
#include "kernels/permute.h"
#include "kernels/quantise.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "kernels/swiglu.h"

#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 4096, EXPERTS = 128, TOP_K = 8, HEAD = 128, VOCAB = 32768, POSITIONS = 8192 };
static const mf_kernel_dtype BF16 = MF_KERNEL_BF16;

/* Arguments of one set, for one or two kernels in a row. */
typedef union args {
    mf_kernel_rmsnorm norm;
    mf_kernel_rmsnorm_grad norm_grad;
    mf_kernel_rope rope;
    mf_kernel_swiglu swiglu;
    mf_kernel_swiglu_grad swiglu_grad;
    mf_kernel_add add;
    mf_kernel_gate gate;
    mf_kernel_gate_grad gate_grad;
    struct {
        mf_kernel_router choose;
        mf_kernel_router_stats stats;
    } router;
    mf_kernel_router_grad router_grad;
    struct {
        mf_kernel_permute_map map;
        mf_kernel_permute rows;
    } permute;
    mf_kernel_unpermute unpermute;
    mf_kernel_copy_rows split;
    mf_kernel_quantise quantise;
    mf_kernel_bias_grad bias_grad;
    mf_kernel_ce_stats loss;
    mf_kernel_ce_grad loss_grad;
    mf_kernel_grad_norm grad_norm;
    mf_kernel_adamw adamw;
    mf_kernel_cast cast;
    mf_kernel_embedding embedding;
    mf_kernel_embedding_grad embedding_grad;
} args;

/* --- memory of a set -------------------------------------------------------------------------- */

typedef struct maker {
    mf_measure_session *s;
    int64_t rows;
    bool full; /* the arena was too small */
} maker;

static void *take(maker *m, size_t size_B, mf_measure_data data) {
    void *p = mf_measure_take(m->s, size_B, data);
    m->full = m->full || p == NULL;
    return p;
}
static void *bf16(maker *m, int64_t n) {
    return take(m, (size_t)n * 2, MF_DATA_BF16);
}
static float *f32(maker *m, int64_t n) {
    return take(m, (size_t)n * 4, MF_DATA_F32);
}
static void *room(maker *m, size_t size_B) {
    return take(m, size_B + 16, MF_DATA_NONE);
}
static int32_t *ints(maker *m, int64_t n, int64_t below) {
    int32_t *p = room(m, (size_t)n * 4);
    if (p != NULL) {
        (void)mf_measure_fill_int(p, n, (int32_t)below, m->s->seed++, m->s->stream, NULL);
    }
    return p;
}
static void *upload(maker *m, const void *host, size_t size_B) {
    void *p = room(m, size_B);
    if (p != NULL &&
        cudaMemcpyAsync(p, host, size_B, cudaMemcpyHostToDevice, m->s->stream) != cudaSuccess) {
        m->full = true;
    }
    return p;
}

/* --- kinds ------------------------------------------------------------------------------------ */

static void make_norm(maker *m, args *a) {
    int64_t n = m->rows * HIDDEN;
    a->norm = (mf_kernel_rmsnorm){.dtype = BF16,
                                  .rows = m->rows,
                                  .groups = 1,
                                  .cols = HIDDEN,
                                  .x_stride = HIDDEN,
                                  .y_stride = HIDDEN,
                                  .eps = 1e-6f,
                                  .x = bf16(m, n),
                                  .weight = bf16(m, HIDDEN),
                                  .y = bf16(m, n),
                                  .rstd = f32(m, m->rows)};
}
static mf_status run_norm(const args *a, void *stream, mf_err *e) {
    return mf_kernel_rmsnorm_forward_cuda(&a->norm, stream, e);
}

static void make_norm_grad(maker *m, args *a) {
    int64_t n = m->rows * HIDDEN;
    a->norm_grad =
        (mf_kernel_rmsnorm_grad){.dtype = BF16,
                                 .rows = m->rows,
                                 .groups = 1,
                                 .cols = HIDDEN,
                                 .x_stride = HIDDEN,
                                 .y_stride = HIDDEN,
                                 .x = bf16(m, n),
                                 .weight = bf16(m, HIDDEN),
                                 .rstd = take(m, (size_t)m->rows * 4, MF_DATA_SCALE),
                                 .dy = bf16(m, n),
                                 .dx = bf16(m, n),
                                 .dweight = f32(m, HIDDEN),
                                 .workspace = room(m, mf_kernel_rmsnorm_workspace_B(HIDDEN))};
}
static mf_status run_norm_grad(const args *a, void *stream, mf_err *e) {
    return mf_kernel_rmsnorm_backward_cuda(&a->norm_grad, stream, e);
}

static void make_rope(maker *m, args *a) {
    a->rope = (mf_kernel_rope){.dtype = BF16,
                               .rows = m->rows,
                               .heads = HIDDEN / HEAD,
                               .rot_dim = HEAD,
                               .row_stride = HIDDEN,
                               .head_stride = HEAD,
                               .positions = ints(m, m->rows, POSITIONS),
                               .cos = take(m, POSITIONS * HEAD / 2 * 4, MF_DATA_SCALE),
                               .sin = take(m, POSITIONS * HEAD / 2 * 4, MF_DATA_SCALE),
                               .x = bf16(m, m->rows * HIDDEN)};
}
static mf_status run_rope(const args *a, void *stream, mf_err *e) {
    return mf_kernel_rope_apply_cuda(&a->rope, stream, e);
}

static mf_kernel_swiglu_shape swiglu_shape(maker *m) {
    return (mf_kernel_swiglu_shape){
        .dtype = BF16, .kind = MF_SWIGLU_SILU, .rows = m->rows, .cols = HIDDEN};
}
static void make_swiglu(maker *m, args *a) {
    int64_t n = m->rows * HIDDEN;
    a->swiglu = (mf_kernel_swiglu){swiglu_shape(m), bf16(m, 2 * n), room(m, (size_t)n * 2)};
}
static mf_status run_swiglu(const args *a, void *stream, mf_err *e) {
    return mf_kernel_swiglu_forward_cuda(&a->swiglu, stream, e);
}
static void make_swiglu_grad(maker *m, args *a) {
    int64_t n = m->rows * HIDDEN;
    void *x = bf16(m, 2 * n);
    a->swiglu_grad =
        (mf_kernel_swiglu_grad){swiglu_shape(m), x, bf16(m, n), room(m, (size_t)n * 4), NULL};
}
static mf_status run_swiglu_grad(const args *a, void *stream, mf_err *e) {
    return mf_kernel_swiglu_backward_cuda(&a->swiglu_grad, stream, e);
}

static void make_add(maker *m, args *a) {
    int64_t n = m->rows * HIDDEN;
    a->add = (mf_kernel_add){BF16, n, bf16(m, n), bf16(m, n), room(m, (size_t)n * 2)};
}
static mf_status run_add(const args *a, void *stream, mf_err *e) {
    return mf_kernel_add_values_cuda(&a->add, stream, e);
}

static void make_gate(maker *m, args *a) {
    int64_t n = m->rows * HIDDEN;
    a->gate = (mf_kernel_gate){
        BF16, m->rows, HIDDEN, f32(m, m->rows), bf16(m, n), bf16(m, n), room(m, (size_t)n * 2)};
}
static mf_status run_gate(const args *a, void *stream, mf_err *e) {
    return mf_kernel_gate_forward_cuda(&a->gate, stream, e);
}
static void make_gate_grad(maker *m, args *a) {
    int64_t n = m->rows * HIDDEN;
    a->gate_grad = (mf_kernel_gate_grad){BF16,
                                         m->rows,
                                         HIDDEN,
                                         f32(m, m->rows),
                                         bf16(m, n),
                                         bf16(m, n),
                                         room(m, (size_t)n * 2),
                                         f32(m, m->rows)};
}
static mf_status run_gate_grad(const args *a, void *stream, mf_err *e) {
    return mf_kernel_gate_backward_cuda(&a->gate_grad, stream, e);
}

static void make_router(maker *m, args *a) {
    int64_t n = m->rows * EXPERTS, k = m->rows * TOP_K;
    float *scores = f32(m, n);
    int32_t *index = room(m, (size_t)k * 4);
    a->router.choose = (mf_kernel_router){.rows = m->rows,
                                          .experts = EXPERTS,
                                          .top_k = TOP_K,
                                          .score = MF_ROUTE_SOFTMAX,
                                          .normalise = true,
                                          .scaling = 1.0f,
                                          .groups = 1,
                                          .group_topk = 1,
                                          .group_score = MF_ROUTE_GROUP_MAX,
                                          .logits = f32(m, n),
                                          .scores = scores,
                                          .prob = f32(m, k),
                                          .index = index,
                                          .lse = NULL};
    a->router.stats =
        (mf_kernel_router_stats){.rows = m->rows,
                                 .experts = EXPERTS,
                                 .top_k = TOP_K,
                                 .score = MF_ROUTE_SOFTMAX,
                                 .scopes = 1,
                                 .scores = scores,
                                 .index = index,
                                 .count = f32(m, EXPERTS),
                                 .prob_sum = f32(m, EXPERTS),
                                 .workspace = room(m, mf_kernel_router_workspace_B(1, EXPERTS))};
}
static mf_status run_router(const args *a, void *stream, mf_err *e) {
    mf_status status = mf_kernel_router_forward_cuda(&a->router.choose, stream, e);
    return status == MF_OK ? mf_kernel_router_stats_add_cuda(&a->router.stats, stream, e) : status;
}
static void make_router_grad(maker *m, args *a) {
    int64_t n = m->rows * EXPERTS, k = m->rows * TOP_K;
    a->router_grad = (mf_kernel_router_grad){.rows = m->rows,
                                             .experts = EXPERTS,
                                             .top_k = TOP_K,
                                             .score = MF_ROUTE_SOFTMAX,
                                             .normalise = true,
                                             .scaling = 1.0f,
                                             .scores = take(m, (size_t)n * 4, MF_DATA_SCALE),
                                             .index = ints(m, k, EXPERTS),
                                             .dprob = f32(m, k),
                                             .aux_weight = f32(m, EXPERTS),
                                             .dlogits = room(m, (size_t)n * 4)};
}
static mf_status run_router_grad(const args *a, void *stream, mf_err *e) {
    return mf_kernel_router_backward_cuda(&a->router_grad, stream, e);
}

/* rows: of the result, TOP_K for each token. The map is built once, before the timing: its kernel
 * does not depend on the width of the rows. */
static mf_kernel_permute_map make_map(maker *m, int64_t tokens) {
    int64_t slots = tokens * TOP_K;
    mf_kernel_permute_map map = {.tokens = tokens,
                                 .top_k = TOP_K,
                                 .experts = EXPERTS,
                                 .align = 1,
                                 .rows_max = slots,
                                 .index = ints(m, slots, EXPERTS),
                                 .counts = room(m, EXPERTS * 4),
                                 .offsets = room(m, (EXPERTS + 1) * 4),
                                 .row_of_slot = room(m, (size_t)slots * 4),
                                 .slot_of_row = room(m, (size_t)slots * 4),
                                 .overflow = room(m, 4),
                                 .workspace =
                                     room(m, mf_kernel_permute_workspace_B(slots, EXPERTS))};
    if (!m->full) {
        m->full = mf_kernel_permute_map_build_cuda(&map, m->s->stream, NULL) != MF_OK;
    }
    return map;
}
static int64_t tokens_of(const maker *m) {
    return m->rows / TOP_K > 0 ? m->rows / TOP_K : 1;
}
static void make_permute(maker *m, args *a) {
    int64_t tokens = tokens_of(m);
    a->permute.map = make_map(m, tokens);
    a->permute.rows = (mf_kernel_permute){.dtype = BF16,
                                          .rows = tokens * TOP_K,
                                          .cols = HIDDEN,
                                          .top_k = TOP_K,
                                          .slot_of_row = a->permute.map.slot_of_row,
                                          .row_of_slot = a->permute.map.row_of_slot,
                                          .tokens = tokens,
                                          .x = bf16(m, tokens * HIDDEN),
                                          .out = room(m, (size_t)(tokens * TOP_K * HIDDEN) * 2)};
}
static mf_status run_permute(const args *a, void *stream, mf_err *e) {
    return mf_kernel_permute_forward_cuda(&a->permute.rows, stream, e);
}
static void make_unpermute(maker *m, args *a) {
    int64_t tokens = tokens_of(m);
    mf_kernel_permute_map map = make_map(m, tokens);
    a->unpermute = (mf_kernel_unpermute){.dtype = BF16,
                                         .tokens = tokens,
                                         .cols = HIDDEN,
                                         .top_k = TOP_K,
                                         .row_of_slot = map.row_of_slot,
                                         .in = bf16(m, tokens * TOP_K * HIDDEN),
                                         .y = room(m, (size_t)(tokens * HIDDEN) * 2)};
}
static mf_status run_unpermute(const args *a, void *stream, mf_err *e) {
    return mf_kernel_unpermute_forward_cuda(&a->unpermute, stream, e);
}

static void make_split(maker *m, args *a) {
    a->split = (mf_kernel_copy_rows){BF16,
                                     m->rows,
                                     HIDDEN,
                                     HIDDEN + 1024,
                                     HIDDEN,
                                     false,
                                     bf16(m, m->rows * (HIDDEN + 1024)),
                                     room(m, (size_t)(m->rows * HIDDEN) * 2)};
}
static mf_status run_split(const args *a, void *stream, mf_err *e) {
    return mf_kernel_copy_rows_strided_cuda(&a->split, stream, e);
}

static void make_quantise(maker *m, args *a) {
    size_t n = (size_t)(m->rows * HIDDEN);
    int64_t rows4 = (m->rows + 3) / 4 * 4;
    a->quantise = (mf_kernel_quantise){.dtype = BF16,
                                       .block = MF_QUANT_1X128,
                                       .rows = m->rows,
                                       .cols = HIDDEN,
                                       .x = bf16(m, (int64_t)n),
                                       .q = room(m, n),
                                       .qt = room(m, n),
                                       .scale = room(m, (size_t)rows4 * (HIDDEN / 128) * 4),
                                       .scale_i = 1,
                                       .scale_j = rows4,
                                       .scale_t = room(m, ((size_t)m->rows / 128 + 1) * HIDDEN * 4),
                                       .scale_t_i = 1,
                                       .scale_t_j = HIDDEN};
}
static mf_status run_quantise(const args *a, void *stream, mf_err *e) {
    return mf_kernel_quantise_e4m3_cuda(&a->quantise, stream, e);
}

static void make_bias_grad(maker *m, args *a) {
    a->bias_grad =
        (mf_kernel_bias_grad){.dtype = BF16,
                              .rows = m->rows,
                              .cols = HIDDEN,
                              .stride = HIDDEN,
                              .groups = 1,
                              .dy = bf16(m, m->rows * HIDDEN),
                              .dbias = f32(m, HIDDEN),
                              .workspace = room(m, mf_kernel_bias_workspace_B(1, HIDDEN))};
}
static mf_status run_bias_grad(const args *a, void *stream, mf_err *e) {
    return mf_kernel_bias_backward_cuda(&a->bias_grad, stream, e);
}

static void make_loss(maker *m, args *a) {
    a->loss = (mf_kernel_ce_stats){.dtype = BF16,
                                   .rows = m->rows,
                                   .cols = VOCAB,
                                   .stride = VOCAB,
                                   .vocab = VOCAB,
                                   .logits = bf16(m, m->rows * VOCAB),
                                   .target = ints(m, m->rows, VOCAB),
                                   .stats = f32(m, 3 * m->rows)};
}
static mf_status run_loss(const args *a, void *stream, mf_err *e) {
    return mf_kernel_cross_entropy_stats_cuda(&a->loss, stream, e);
}
static void make_loss_grad(maker *m, args *a) {
    a->loss_grad = (mf_kernel_ce_grad){.dtype = BF16,
                                       .rows = m->rows,
                                       .cols = VOCAB,
                                       .stride = VOCAB,
                                       .vocab = VOCAB,
                                       .target = ints(m, m->rows, VOCAB),
                                       .lse = f32(m, m->rows),
                                       .scale = 1.0f,
                                       .logits = bf16(m, m->rows * VOCAB)};
}
static mf_status run_loss_grad(const args *a, void *stream, mf_err *e) {
    return mf_kernel_cross_entropy_backward_cuda(&a->loss_grad, stream, e);
}

/* rows of HIDDEN elements, in tensors as large as a layer's weights. */
static mf_kernel_chunk *make_chunks(maker *m, int64_t count, int64_t *chunks) {
    *chunks = mf_kernel_chunks(&count, 1, NULL);
    mf_kernel_chunk *host = malloc((size_t)*chunks * sizeof *host), *p = NULL;
    if (host != NULL) {
        (void)mf_kernel_chunks(&count, 1, host);
        p = upload(m, host, (size_t)*chunks * sizeof *host);
        (void)cudaStreamSynchronize(m->s->stream); /* the host's copy goes */
    }
    m->full = m->full || p == NULL;
    free(host);
    return p;
}
static void make_grad_norm(maker *m, args *a) {
    int64_t n = m->rows * HIDDEN;
    mf_kernel_grad_tensor tensor = {f32(m, n), n};
    a->grad_norm = (mf_kernel_grad_norm){.tensors = 1, .sum_sq = room(m, 8)};
    a->grad_norm.chunk = make_chunks(m, n, &a->grad_norm.chunks);
    a->grad_norm.tensor = upload(m, &tensor, sizeof tensor);
    a->grad_norm.workspace = room(m, (size_t)a->grad_norm.chunks * 8);
}
static mf_status run_grad_norm(const args *a, void *stream, mf_err *e) {
    return mf_kernel_grad_norm_add_cuda(&a->grad_norm, stream, e);
}
static void make_adamw(maker *m, args *a) {
    int64_t n = m->rows * HIDDEN;
    mf_kernel_adamw_tensor tensor = {.master = f32(m, n),
                                     .param = room(m, (size_t)n * 2),
                                     .grad = f32(m, n),
                                     .m = f32(m, n),
                                     .v = take(m, (size_t)n * 4, MF_DATA_SCALE),
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
    a->adamw.tensor = upload(m, &tensor, sizeof tensor);
}
static mf_status run_adamw(const args *a, void *stream, mf_err *e) {
    return mf_kernel_adamw_update_cuda(&a->adamw, stream, e);
}

static void make_cast(maker *m, args *a) {
    int64_t n = m->rows * HIDDEN;
    a->cast =
        (mf_kernel_cast){MF_KERNEL_F32, BF16, n, 1.0f, false, f32(m, n), room(m, (size_t)n * 2)};
}
static mf_status run_cast(const args *a, void *stream, mf_err *e) {
    return mf_kernel_cast_values_cuda(&a->cast, stream, e);
}

static void make_embedding(maker *m, args *a) {
    a->embedding = (mf_kernel_embedding){.dtype = BF16,
                                         .tokens = m->rows,
                                         .cols = HIDDEN,
                                         .vocab = VOCAB,
                                         .token = ints(m, m->rows, VOCAB),
                                         .table = bf16(m, (int64_t)VOCAB * HIDDEN),
                                         .y = room(m, (size_t)(m->rows * HIDDEN) * 2)};
}
static mf_status run_embedding(const args *a, void *stream, mf_err *e) {
    return mf_kernel_embedding_forward_cuda(&a->embedding, stream, e);
}
static void make_embedding_grad(maker *m, args *a) {
    a->embedding_grad = (mf_kernel_embedding_grad){
        .dtype = BF16,
        .tokens = m->rows,
        .cols = HIDDEN,
        .vocab = VOCAB,
        .token = ints(m, m->rows, VOCAB),
        .dy = bf16(m, m->rows * HIDDEN),
        .dtable = f32(m, (int64_t)VOCAB * HIDDEN),
        .workspace = room(m, mf_kernel_embedding_workspace_B(m->rows, VOCAB, HIDDEN))};
}
static mf_status run_embedding_grad(const args *a, void *stream, mf_err *e) {
    return mf_kernel_embedding_backward_cuda(&a->embedding_grad, stream, e);
}

/* --- the table -------------------------------------------------------------------------------- */

static const struct kind {
    const char *name;
    double row_B; /* what lowering counts for a row */
    void (*make)(maker *m, args *a);
    mf_status (*run)(const args *a, void *stream, mf_err *e);
} kinds[] = {
    {"rmsnorm_fwd", 4.0 * HIDDEN + 4, make_norm, run_norm},
    {"rmsnorm_bwd", 6.0 * HIDDEN + 6, make_norm_grad, run_norm_grad},
    {"rope_fwd", 4.0 * HIDDEN, make_rope, run_rope},
    {"rope_bwd", 4.0 * HIDDEN, make_rope, run_rope},
    {"swiglu_fwd", 6.0 * HIDDEN, make_swiglu, run_swiglu},
    {"swiglu_bwd", 10.0 * HIDDEN, make_swiglu_grad, run_swiglu_grad},
    {"add", 6.0 * HIDDEN, make_add, run_add},
    {"gate_fwd", 6.0 * HIDDEN, make_gate, run_gate},
    {"gate_bwd", 6.0 * HIDDEN, make_gate_grad, run_gate_grad},
    {"router_fwd", 4.0 * EXPERTS + 8.0 * TOP_K, make_router, run_router},
    {"router_bwd", 8.0 * EXPERTS + 16.0 * TOP_K, make_router_grad, run_router_grad},
    {"permute", 2.0 * HIDDEN *(1 + 1.0 / TOP_K), make_permute, run_permute},
    {"unpermute", 2.0 * HIDDEN *(1 + 1.0 / TOP_K), make_unpermute, run_unpermute},
    {"split", 4.0 * HIDDEN, make_split, run_split},
    {"quantise", 4.0 * HIDDEN, make_quantise, run_quantise},
    {"bias_bwd", 2.0 * HIDDEN, make_bias_grad, run_bias_grad},
    {"cross_entropy_fwd", 2.0 * VOCAB, make_loss, run_loss},
    {"cross_entropy_bwd", 4.0 * VOCAB, make_loss_grad, run_loss_grad},
    {"grad_norm", 4.0 * HIDDEN, make_grad_norm, run_grad_norm},
    {"adamw", 32.0 * HIDDEN, make_adamw, run_adamw},
    {"cast", 6.0 * HIDDEN, make_cast, run_cast},
    {"embedding_fwd", 4.0 * HIDDEN, make_embedding, run_embedding},
    {"embedding_bwd", 10.0 * HIDDEN, make_embedding_grad, run_embedding_grad},
};

typedef struct memory_op {
    const struct kind *kind;
    int sets;
    args set[MF_MEASURE_SETS];
} memory_op;

static mf_status launch(void *op, int64_t i, cudaStream_t stream, mf_err *e) {
    memory_op *m = op;
    return m->kind->run(&m->set[i % m->sets], stream, e);
}

mf_status mf_measure_memory(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                            mf_err *e) {
    const char *name = mf_point_word(p, "op");
    double bytes = mf_point_value(p, "bytes");
    memory_op *op = calloc(1, sizeof *op);
    mf_status status = MF_OK;
    if (op == NULL) {
        return mf_err_set(e, MF_NOMEM, "measuring: out of memory");
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        op->kind = strcmp(kinds[i].name, name) == 0 ? &kinds[i] : op->kind;
    }
    if (op->kind == NULL) {
        status = mf_err_set(e, MF_INPUT, "no kernel for %s yet", name);
        goto out;
    }
    /* Tokens of a training step come in sixteens, and some kernels are quick only then. */
    int64_t rows = (int64_t)(bytes / op->kind->row_B / 16 + 0.5) * 16;
    maker m = {s, rows < 16 ? 16 : rows, false};
    op->sets = mf_measure_sets(s, (size_t)bytes * 3 / 2);
    for (int i = 0; i < op->sets; i++) {
        size_t before = s->used_B;
        op->kind->make(&m, &op->set[i]);
        if (m.full && i > 0) { /* tables beside the operands: fewer sets fit than hoped */
            s->used_B = before;
            op->sets = i;
            m.full = false;
        }
    }
    status = m.full ? mf_err_set(e, MF_INPUT, "%s of %.0f bytes does not fit", name, bytes)
                    : mf_measure_run(s, launch, op, out, e);
out:
    free(op);
    return status;
}
