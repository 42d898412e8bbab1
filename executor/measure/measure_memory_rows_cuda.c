/* measure_memory_rows_cuda.c - kernels over rows of one width, by the bytes that lowering counts
 * for them (core/program/lower_*.c).
 */
#include "executor/measure/measure_memory_cuda.h"

#include <string.h>

enum { HIDDEN = MF_MEASURE_HIDDEN, HEAD = MF_MEASURE_HEAD, POSITIONS = MF_MEASURE_POSITIONS };
static const mf_kernel_dtype BF16 = MF_KERNEL_BF16;

static void make_norm(mf_measure_maker *m, mf_measure_args *a) {
    int64_t n = m->rows * HIDDEN;
    a->norm = (mf_kernel_rmsnorm){.dtype = BF16,
                                  .rows = m->rows,
                                  .groups = 1,
                                  .cols = HIDDEN,
                                  .x_stride = HIDDEN,
                                  .y_stride = HIDDEN,
                                  .eps = 1e-6f,
                                  .x = mf_measure_make_bf16(m, n),
                                  .weight = mf_measure_make_bf16(m, HIDDEN),
                                  .y = mf_measure_make_bf16(m, n),
                                  .rstd = mf_measure_make_f32(m, m->rows)};
}
static mf_status run_norm(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_rmsnorm_forward_cuda(&a->norm, stream, e);
}

static void make_norm_grad(mf_measure_maker *m, mf_measure_args *a) {
    int64_t n = m->rows * HIDDEN;
    a->norm_grad = (mf_kernel_rmsnorm_grad){
        .dtype = BF16,
        .rows = m->rows,
        .groups = 1,
        .cols = HIDDEN,
        .x_stride = HIDDEN,
        .y_stride = HIDDEN,
        .x = mf_measure_make_bf16(m, n),
        .weight = mf_measure_make_bf16(m, HIDDEN),
        .rstd = mf_measure_make(m, (size_t)m->rows * 4, MF_DATA_SCALE),
        .dy = mf_measure_make_bf16(m, n),
        .dx = mf_measure_make_bf16(m, n),
        .dweight = mf_measure_make_f32(m, HIDDEN),
        .workspace = mf_measure_make_raw(m, mf_kernel_rmsnorm_workspace_B(HIDDEN))};
}
static mf_status run_norm_grad(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_rmsnorm_backward_cuda(&a->norm_grad, stream, e);
}

static void make_rope(mf_measure_maker *m, mf_measure_args *a) {
    a->rope = (mf_kernel_rope){.dtype = BF16,
                               .rows = m->rows,
                               .heads = HIDDEN / HEAD,
                               .rot_dim = HEAD,
                               .row_stride = HIDDEN,
                               .head_stride = HEAD,
                               .positions = mf_measure_make_ints(m, m->rows, POSITIONS),
                               .cos = mf_measure_make(m, POSITIONS * HEAD / 2 * 4, MF_DATA_SCALE),
                               .sin = mf_measure_make(m, POSITIONS * HEAD / 2 * 4, MF_DATA_SCALE),
                               .x = mf_measure_make_bf16(m, m->rows * HIDDEN)};
}
static mf_status run_rope(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_rope_apply_cuda(&a->rope, stream, e);
}

static mf_kernel_swiglu_shape swiglu_shape(mf_measure_maker *m) {
    return (mf_kernel_swiglu_shape){
        .dtype = BF16, .kind = MF_SWIGLU_SILU, .rows = m->rows, .cols = HIDDEN};
}
static void make_swiglu(mf_measure_maker *m, mf_measure_args *a) {
    int64_t n = m->rows * HIDDEN;
    a->swiglu = (mf_kernel_swiglu){swiglu_shape(m), mf_measure_make_bf16(m, 2 * n),
                                   mf_measure_make_raw(m, (size_t)n * 2)};
}
static mf_status run_swiglu(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_swiglu_forward_cuda(&a->swiglu, stream, e);
}
static void make_swiglu_grad(mf_measure_maker *m, mf_measure_args *a) {
    int64_t n = m->rows * HIDDEN;
    void *x = mf_measure_make_bf16(m, 2 * n);
    a->swiglu_grad = (mf_kernel_swiglu_grad){swiglu_shape(m), x, mf_measure_make_bf16(m, n),
                                             mf_measure_make_raw(m, (size_t)n * 4), NULL};
}
static mf_status run_swiglu_grad(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_swiglu_backward_cuda(&a->swiglu_grad, stream, e);
}

static void make_add(mf_measure_maker *m, mf_measure_args *a) {
    int64_t n = m->rows * HIDDEN;
    a->add = (mf_kernel_add){BF16, n, mf_measure_make_bf16(m, n), mf_measure_make_bf16(m, n),
                             mf_measure_make_raw(m, (size_t)n * 2)};
}
static mf_status run_add(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_add_values_cuda(&a->add, stream, e);
}

static void make_gate(mf_measure_maker *m, mf_measure_args *a) {
    int64_t n = m->rows * HIDDEN;
    a->gate = (mf_kernel_gate){BF16,
                               m->rows,
                               HIDDEN,
                               mf_measure_make_f32(m, m->rows),
                               mf_measure_make_bf16(m, n),
                               mf_measure_make_bf16(m, n),
                               mf_measure_make_raw(m, (size_t)n * 2)};
}
static mf_status run_gate(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_gate_forward_cuda(&a->gate, stream, e);
}
static void make_gate_grad(mf_measure_maker *m, mf_measure_args *a) {
    int64_t n = m->rows * HIDDEN;
    a->gate_grad = (mf_kernel_gate_grad){BF16,
                                         m->rows,
                                         HIDDEN,
                                         mf_measure_make_f32(m, m->rows),
                                         mf_measure_make_bf16(m, n),
                                         mf_measure_make_bf16(m, n),
                                         mf_measure_make_raw(m, (size_t)n * 2),
                                         mf_measure_make_f32(m, m->rows)};
}
static mf_status run_gate_grad(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_gate_backward_cuda(&a->gate_grad, stream, e);
}

static void make_split(mf_measure_maker *m, mf_measure_args *a) {
    a->split = (mf_kernel_copy_rows){BF16,
                                     m->rows,
                                     HIDDEN,
                                     HIDDEN + 1024,
                                     HIDDEN,
                                     false,
                                     mf_measure_make_bf16(m, m->rows * (HIDDEN + 1024)),
                                     mf_measure_make_raw(m, (size_t)(m->rows * HIDDEN) * 2)};
}
static mf_status run_split(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_copy_rows_strided_cuda(&a->split, stream, e);
}

static void make_quantise(mf_measure_maker *m, mf_measure_args *a) {
    size_t n = (size_t)(m->rows * HIDDEN);
    int64_t rows4 = (m->rows + 3) / 4 * 4;
    a->quantise = (mf_kernel_quantise){
        .dtype = BF16,
        .block = MF_QUANT_1X128,
        .rows = m->rows,
        .cols = HIDDEN,
        .x = mf_measure_make_bf16(m, (int64_t)n),
        .q = mf_measure_make_raw(m, n),
        .qt = mf_measure_make_raw(m, n),
        .scale = mf_measure_make_raw(m, (size_t)rows4 * (HIDDEN / 128) * 4),
        .scale_i = 1,
        .scale_j = rows4,
        .scale_t = mf_measure_make_raw(m, ((size_t)m->rows / 128 + 1) * HIDDEN * 4),
        .scale_t_i = 1,
        .scale_t_j = HIDDEN};
}
static mf_status run_quantise(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_quantise_e4m3_cuda(&a->quantise, stream, e);
}

static void make_bias_grad(mf_measure_maker *m, mf_measure_args *a) {
    a->bias_grad = (mf_kernel_bias_grad){
        .dtype = BF16,
        .rows = m->rows,
        .cols = HIDDEN,
        .stride = HIDDEN,
        .groups = 1,
        .dy = mf_measure_make_bf16(m, m->rows * HIDDEN),
        .dbias = mf_measure_make_f32(m, HIDDEN),
        .workspace = mf_measure_make_raw(m, mf_kernel_bias_workspace_B(1, HIDDEN))};
}
static mf_status run_bias_grad(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_bias_backward_cuda(&a->bias_grad, stream, e);
}

static void make_cast(mf_measure_maker *m, mf_measure_args *a) {
    int64_t n = m->rows * HIDDEN;
    a->cast = (mf_kernel_cast){MF_KERNEL_F32,
                               BF16,
                               n,
                               1.0f,
                               false,
                               mf_measure_make_f32(m, n),
                               mf_measure_make_raw(m, (size_t)n * 2)};
}
static mf_status run_cast(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_cast_values_cuda(&a->cast, stream, e);
}

static void make_norm_sum(mf_measure_maker *m, mf_measure_args *a) {
    a->norm_sum = (mf_kernel_norm_split){.dtype = BF16,
                                         .rows = m->rows,
                                         .cols = HIDDEN,
                                         .total = HIDDEN,
                                         .x_stride = HIDDEN,
                                         .y_stride = HIDDEN,
                                         .eps = 1e-6f,
                                         .share = 1.0f,
                                         .x = mf_measure_make_bf16(m, m->rows * HIDDEN),
                                         .sum = mf_measure_make_f32(m, m->rows)};
}
static mf_status run_norm_sum(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_norm_split_square_cuda(&a->norm_sum, stream, e);
}

static void make_merge(mf_measure_maker *m, mf_measure_args *a) {
    const int64_t n = m->rows * HIDDEN, heads = HIDDEN / HEAD;
    a->merge = (mf_kernel_attention_merge){.rows = m->rows,
                                           .heads = heads,
                                           .v_dim = HEAD,
                                           .o_row = HIDDEN,
                                           .o_head = HEAD,
                                           .o_dtype = BF16,
                                           .o = mf_measure_make_bf16(m, n),
                                           .lse = mf_measure_make_f32(m, m->rows * heads),
                                           .o2_dtype = BF16,
                                           .o2 = mf_measure_make_bf16(m, n),
                                           .lse2 = mf_measure_make_f32(m, m->rows * heads)};
}
static mf_status run_merge(const mf_measure_args *a, void *stream, mf_err *e) {
    return mf_kernel_attention_merge_run_cuda(&a->merge, stream, e);
}

static const mf_measure_kind kinds[] = {
    {"rmsnorm_fwd", 4.0 * HIDDEN + 4, make_norm, run_norm},
    {"rmsnorm_bwd", 6.0 * HIDDEN + 6, make_norm_grad, run_norm_grad},
    {"rope_fwd", 4.0 * HIDDEN, make_rope, run_rope},
    {"rope_bwd", 4.0 * HIDDEN, make_rope, run_rope},
    {"swiglu_fwd", 6.0 * HIDDEN, make_swiglu, run_swiglu},
    {"swiglu_bwd", 10.0 * HIDDEN, make_swiglu_grad, run_swiglu_grad},
    {"add", 6.0 * HIDDEN, make_add, run_add},
    {"gate_fwd", 6.0 * HIDDEN, make_gate, run_gate},
    {"gate_bwd", 6.0 * HIDDEN, make_gate_grad, run_gate_grad},
    {"split", 4.0 * HIDDEN, make_split, run_split},
    {"quantise", 4.0 * HIDDEN, make_quantise, run_quantise},
    {"bias_bwd", 2.0 * HIDDEN, make_bias_grad, run_bias_grad},
    {"cast", 6.0 * HIDDEN, make_cast, run_cast},
    {"norm_sum", 2.0 * HIDDEN, make_norm_sum, run_norm_sum},
    {"attention_merge", 6.0 * HIDDEN, make_merge, run_merge},
};

const mf_measure_kind *mf_measure_kind_of_rows(const char *name) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            return &kinds[i];
        }
    }
    return NULL;
}
