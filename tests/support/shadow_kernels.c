/* shadow_kernels.c - bytes that each kernel reads and writes, from its arguments. */
#include "tests/support/shadow_kernels.h"

#include <stdio.h>
#include <stdlib.h>

/* --- spans --------------------------------------------------------------------------------------
 */

void shadow_spans_clear(shadow_spans *s) {
    free(s->span);
    *s = (shadow_spans){0};
}

void shadow_span_add(shadow_spans *s, const void *begin, int64_t rows, int64_t row_B,
                     int64_t stride_B, bool writes) {
    if (begin == NULL || rows <= 0 || row_B <= 0) {
        return;
    }
    if (s->count == s->allocated) {
        s->allocated = 2 * s->allocated + 8;
        s->span = realloc(s->span, (size_t)s->allocated * sizeof *s->span);
        if (s->span == NULL) {
            fprintf(stderr, "shadow: out of memory\n");
            abort();
        }
    }
    bool tight = rows == 1 || stride_B == row_B;
    s->span[s->count++] = (shadow_span){.begin = begin,
                                        .rows = tight ? 1 : rows,
                                        .row_B = tight ? rows * row_B : row_B,
                                        .stride_B = tight ? rows * row_B : stride_B,
                                        .writes = writes};
}

const char *shadow_span_end(const shadow_span *s) {
    return s->begin + (s->rows - 1) * s->stride_B + s->row_B;
}

/* A row of `a` against all of `b`: the first byte that they share. */
static bool row_meets(const char *row, int64_t row_B, const shadow_span *b, const char **first,
                      int64_t *bytes) {
    int64_t from = row - b->begin, k = from <= 0 ? 0 : from / b->stride_B;
    for (; k < b->rows; k++) {
        const char *other = b->begin + k * b->stride_B;
        const char *begin = row > other ? row : other;
        const char *end = row + row_B < other + b->row_B ? row + row_B : other + b->row_B;
        if (other >= row + row_B) {
            return false;
        }
        if (begin < end) {
            *first = begin;
            *bytes = end - begin;
            return true;
        }
    }
    return false;
}

bool shadow_spans_meet(const shadow_span *a, const shadow_span *b, const char **first,
                       int64_t *bytes) {
    if (a->begin >= shadow_span_end(b) || b->begin >= shadow_span_end(a)) {
        return false;
    }
    for (int64_t i = 0; i < a->rows; i++) {
        if (row_meets(a->begin + i * a->stride_B, a->row_B, b, first, bytes)) {
            return true;
        }
    }
    return false;
}

static void reads(shadow_spans *s, const void *p, int64_t size_B) {
    shadow_span_add(s, p, 1, size_B, size_B, false);
}

static void writes(shadow_spans *s, const void *p, int64_t size_B) {
    shadow_span_add(s, p, 1, size_B, size_B, true);
}

static void raises(shadow_spans *s, const void *p, int64_t size_B) {
    const int before = s->count;
    writes(s, p, size_B);
    for (int k = before; k < s->count; k++) {
        s->span[k].raises = true;
    }
}

static void updates(shadow_spans *s, const void *p, int64_t size_B) {
    reads(s, p, size_B);
    writes(s, p, size_B);
}

static int64_t of(mf_kernel_dtype d, int64_t elements) {
    return (int64_t)mf_kernel_dtype_B(d) * elements;
}

/* rows x cols elements, `stride` elements apart. */
static void read_rows(shadow_spans *s, const void *p, mf_kernel_dtype d, int64_t rows, int64_t cols,
                      int64_t stride) {
    shadow_span_add(s, p, rows, of(d, cols), of(d, stride), false);
}

static void write_rows(shadow_spans *s, const void *p, mf_kernel_dtype d, int64_t rows,
                       int64_t cols, int64_t stride) {
    shadow_span_add(s, p, rows, of(d, cols), of(d, stride), true);
}

/* One more than the largest of n numbers in device memory; 0: none that counts. */
static int64_t reach(const int32_t *map, int64_t n) {
    int64_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        most = map[i] >= most ? map[i] + 1 : most;
    }
    return most;
}

/* --- rows ---------------------------------------------------------------------------------------
 */

static void copy_rows(const mf_kernel_copy_rows *a, bool look, shadow_spans *s) {
    (void)look;
    read_rows(s, a->src, a->dtype, a->rows, a->cols, a->src_stride);
    if (a->accumulate) {
        read_rows(s, a->dst, a->dtype, a->rows, a->cols, a->dst_stride);
    }
    write_rows(s, a->dst, a->dtype, a->rows, a->cols, a->dst_stride);
}

static void add(const mf_kernel_add *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->a, of(a->dtype, a->count));
    reads(s, a->b, of(a->dtype, a->count));
    writes(s, a->y, of(a->dtype, a->count));
}

static void normal(const mf_kernel_normal *a, bool look, shadow_spans *s) {
    (void)look;
    writes(s, a->w, of(MF_KERNEL_F32, a->count));
}

static void cast(const mf_kernel_cast *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->src, of(a->src_dtype, a->count));
    if (a->accumulate) {
        reads(s, a->dst, of(a->dst_dtype, a->count));
    }
    writes(s, a->dst, of(a->dst_dtype, a->count));
}

static void embedding(const mf_kernel_embedding *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->token, 4 * a->tokens);
    reads(s, a->table, of(a->dtype, a->vocab * a->cols));
    writes(s, a->y, of(a->dtype, a->tokens * a->cols));
}

static void embedding_grad(const mf_kernel_embedding_grad *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->token, 4 * a->tokens);
    reads(s, a->dy, of(a->dtype, a->tokens * a->cols));
    updates(s, a->dtable, 4 * a->vocab * a->cols);
    writes(s, a->workspace, (int64_t)mf_kernel_embedding_workspace_B(a->tokens, a->vocab, a->cols));
}

static void rmsnorm(const mf_kernel_rmsnorm *a, bool look, shadow_spans *s) {
    const int64_t width = a->groups * a->cols;
    (void)look;
    read_rows(s, a->x, a->dtype, a->rows, width, a->x_stride);
    read_rows(s, a->add, a->dtype, a->rows, width, a->x_stride);
    reads(s, a->weight, of(a->dtype, a->cols));
    write_rows(s, a->sum, a->dtype, a->rows, width, a->x_stride);
    write_rows(s, a->y, a->dtype, a->rows, width, a->y_stride);
    writes(s, a->rstd, 4 * a->rows * a->groups);
}

static void rmsnorm_grad(const mf_kernel_rmsnorm_grad *a, bool look, shadow_spans *s) {
    const int64_t width = a->groups * a->cols;
    (void)look;
    read_rows(s, a->x, a->dtype, a->rows, width, a->x_stride);
    reads(s, a->weight, of(a->dtype, a->cols));
    reads(s, a->rstd, 4 * a->rows * a->groups);
    read_rows(s, a->dy, a->dtype, a->rows, width, a->y_stride);
    read_rows(s, a->dx_add, a->dtype, a->rows, width, a->x_stride);
    write_rows(s, a->dx, a->dtype, a->rows, width, a->x_stride);
    updates(s, a->dweight, 4 * a->cols);
    writes(s, a->workspace, (int64_t)mf_kernel_rmsnorm_workspace_B(a->cols));
}

static void layernorm(const mf_kernel_layernorm *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->x, of(a->dtype, a->rows * a->cols));
    reads(s, a->weight, of(a->dtype, 2 * a->cols));
    writes(s, a->y, of(a->dtype, a->rows * a->cols));
    writes(s, a->rstd, 4 * a->rows);
}

static void layernorm_grad(const mf_kernel_layernorm_grad *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->x, of(a->dtype, a->rows * a->cols));
    reads(s, a->weight, of(a->dtype, a->cols));
    reads(s, a->rstd, 4 * a->rows);
    reads(s, a->dy, of(a->dtype, a->rows * a->cols));
    reads(s, a->dx_add, of(a->dtype, a->rows * a->cols));
    writes(s, a->dx, of(a->dtype, a->rows * a->cols));
    updates(s, a->dweight, 8 * a->cols);
    writes(s, a->workspace, (int64_t)mf_kernel_layernorm_workspace_B(a->cols));
}

static void norm_square(const mf_kernel_norm_split *a, bool look, shadow_spans *s) {
    (void)look;
    read_rows(s, a->x, a->dtype, a->rows, a->cols, a->x_stride);
    writes(s, a->sum, 4 * a->rows);
}

static void norm_split(const mf_kernel_norm_split *a, bool look, shadow_spans *s) {
    (void)look;
    read_rows(s, a->x, a->dtype, a->rows, a->cols, a->x_stride);
    reads(s, a->weight, of(a->dtype, a->cols));
    reads(s, a->sum, 4 * a->rows);
    write_rows(s, a->y, a->dtype, a->rows, a->cols, a->y_stride);
    writes(s, a->rstd, 4 * a->rows);
}

static void norm_dot(const mf_kernel_norm_split *a, bool look, shadow_spans *s) {
    (void)look;
    read_rows(s, a->x, a->dtype, a->rows, a->cols, a->x_stride);
    read_rows(s, a->dy, a->dtype, a->rows, a->cols, a->y_stride);
    reads(s, a->weight, of(a->dtype, a->cols));
    writes(s, a->sum, 4 * a->rows);
}

static void norm_split_grad(const mf_kernel_norm_split *a, bool look, shadow_spans *s) {
    (void)look;
    read_rows(s, a->x, a->dtype, a->rows, a->cols, a->x_stride);
    read_rows(s, a->dy, a->dtype, a->rows, a->cols, a->y_stride);
    reads(s, a->weight, of(a->dtype, a->cols));
    reads(s, a->sum, 4 * a->rows);
    reads(s, a->rstd, 4 * a->rows);
    write_rows(s, a->dx, a->dtype, a->rows, a->cols, a->x_stride);
    updates(s, a->dweight, 4 * a->cols);
    writes(s, a->workspace, (int64_t)mf_kernel_norm_split_workspace_B(a->cols));
}

static void bias(const mf_kernel_bias *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->rows_dev, 4);
    reads(s, a->offsets, 4 * (a->groups + 1));
    reads(s, a->scale, 4 * a->rows);
    reads(s, a->bias, of(a->dtype, a->groups * a->cols));
    read_rows(s, a->x, a->dtype, a->rows, a->cols, a->stride);
    write_rows(s, a->x, a->dtype, a->rows, a->cols, a->stride);
}

static void bias_grad(const mf_kernel_bias_grad *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->rows_dev, 4);
    reads(s, a->offsets, 4 * (a->groups + 1));
    reads(s, a->scale, 4 * a->rows);
    reads(s, a->dscale != NULL ? a->bias : NULL, of(a->dtype, a->groups * a->cols));
    read_rows(s, a->dy, a->dtype, a->rows, a->cols, a->stride);
    updates(s, a->dbias, 4 * a->groups * a->cols);
    updates(s, a->dscale, 4 * a->rows);
    writes(s, a->workspace, (int64_t)mf_kernel_bias_workspace_B(a->groups, a->cols));
}

/* --- losses -------------------------------------------------------------------------------------
 */

static void loss_whole(const mf_kernel_ce_whole *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->target, 4 * a->rows);
    read_rows(s, a->logits, a->dtype, a->rows, a->cols, a->stride);
    write_rows(s, a->logits, a->dtype, a->rows, a->cols, a->stride);
    writes(s, a->stats, 12 * a->rows);
    writes(s, a->lse, 4 * a->rows);
    updates(s, a->loss_sum, 8);
}

static void loss_stats(const mf_kernel_ce_stats *a, bool look, shadow_spans *s) {
    (void)look;
    read_rows(s, a->logits, a->dtype, a->rows, a->cols, a->stride);
    reads(s, a->target, 4 * a->rows);
    writes(s, a->stats, 12 * a->rows);
}

static void loss_rescale(const mf_kernel_ce_rescale *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->own_highest, 4 * a->rows);
    reads(s, a->stats, 8 * a->rows);
    writes(s, a->stats + a->rows, 4 * a->rows);
}

static void loss_combine(const mf_kernel_ce_combine *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->stats, 12 * a->rows * a->ranks);
    reads(s, a->target, 4 * a->rows);
    writes(s, a->lse, 4 * a->rows);
    writes(s, a->loss, 4 * a->rows);
    updates(s, a->loss_sum, 8);
}

static void loss_grad(const mf_kernel_ce_grad *a, bool look, shadow_spans *s) {
    (void)look;
    reads(s, a->target, 4 * a->rows);
    reads(s, a->lse, 4 * a->rows);
    read_rows(s, a->logits, a->dtype, a->rows, a->cols, a->stride);
    write_rows(s, a->logits, a->dtype, a->rows, a->cols, a->stride);
}

/* --- attention ----------------------------------------------------------------------------------
 */

/* Rows of the tables, `width` columns turning, up to the highest position. */
static void rope_tables(shadow_spans *s, const int32_t *positions, int64_t rows, const float *cos,
                        const float *sin, int64_t width, bool look) {
    const int64_t highest = look ? reach(positions, rows) : 1;
    reads(s, positions, 4 * rows);
    reads(s, cos, 2 * width * highest);
    reads(s, sin, 2 * width * highest);
}

/* Columns of one part of the joined rows, and the tensor that they are beside. */
static void rope_part(shadow_spans *s, const mf_kernel_rope_shape *p, const void *joined,
                      int64_t head, int64_t heads, const void *part, bool split) {
    const char *there = (const char *)joined + of(p->dtype, head * p->head_dim);
    const int64_t cols = heads * p->head_dim;
    if (part == NULL) {
        return;
    }
    shadow_span_add(s, there, p->rows, of(p->dtype, cols), of(p->dtype, p->joined_stride), !split);
    shadow_span_add(s, part, p->rows, of(p->dtype, cols), of(p->dtype, cols), split);
}

static void rope_split(const mf_kernel_rope_split *a, bool look, shadow_spans *s) {
    const mf_kernel_rope_shape *p = &a->shape;
    rope_tables(s, p->positions, p->rows, p->cos, p->sin, p->rot_dim, look);
    rope_part(s, p, a->joined, 0, p->heads, a->q, true);
    rope_part(s, p, a->joined, p->heads, p->kv_heads, a->k, true);
    rope_part(s, p, a->joined, p->heads + p->kv_heads, p->kv_heads, a->v, true);
}

static void rope_join(const mf_kernel_rope_join *a, bool look, shadow_spans *s) {
    const mf_kernel_rope_shape *p = &a->shape;
    rope_tables(s, p->positions, p->rows, p->cos, p->sin, p->rot_dim, look);
    read_rows(s, a->add, p->dtype, p->rows, (p->heads + 2 * p->kv_heads) * p->head_dim,
              p->joined_stride);
    rope_part(s, p, a->djoined, 0, p->heads, a->dq, false);
    rope_part(s, p, a->djoined, p->heads, p->kv_heads, a->dk, false);
    rope_part(s, p, a->djoined, p->heads + p->kv_heads, p->kv_heads, a->dv, false);
}

static int64_t mla_B(const mf_kernel_mla_shape *p, int64_t width) {
    return of(p->dtype, p->rows * p->heads * width);
}

static void mla_rope(const mf_kernel_mla_rope *a, bool look, shadow_spans *s) {
    const mf_kernel_mla_shape *p = &a->shape;
    rope_tables(s, p->positions, p->rows, p->cos, p->sin, p->rope, look);
    reads(s, a->q_out != NULL ? a->q : NULL, mla_B(p, p->nope + p->rope));
    reads(s, a->k_out != NULL || a->v_out != NULL ? a->kv : NULL, mla_B(p, p->nope + p->v_dim));
    read_rows(s, a->k_out != NULL ? a->k_rope : NULL, p->dtype, p->rows, p->rope, a->rope_stride);
    writes(s, a->q_out, mla_B(p, p->nope + p->rope));
    writes(s, a->k_out, mla_B(p, p->nope + p->rope));
    writes(s, a->v_out, mla_B(p, p->v_dim));
}

static void mla_rope_grad(const mf_kernel_mla_rope_grad *a, bool look, shadow_spans *s) {
    const mf_kernel_mla_shape *p = &a->shape;
    const int64_t latent_B = of(p->dtype, p->rows * (a->kv_rank + p->rope));
    rope_tables(s, p->positions, p->rows, p->cos, p->sin, p->rope, look);
    reads(s, a->dq_in != NULL ? a->dq : NULL, mla_B(p, p->nope + p->rope));
    reads(s, a->dkv != NULL || a->dlatent != NULL ? a->dk : NULL, mla_B(p, p->nope + p->rope));
    reads(s, a->dkv != NULL ? a->dv : NULL, mla_B(p, p->v_dim));
    reads(s, a->dq_in != NULL ? a->add_q : NULL, mla_B(p, p->nope + p->rope));
    reads(s, a->dkv != NULL ? a->add_kv : NULL, mla_B(p, p->nope + p->v_dim));
    reads(s, a->dlatent != NULL ? a->add_latent : NULL, latent_B);
    writes(s, a->dq_in, mla_B(p, p->nope + p->rope));
    writes(s, a->dkv, mla_B(p, p->nope + p->v_dim));
    writes(s, a->dlatent, latent_B);
}

/* rows of `heads` heads, each `dim` wide. */
static void heads(shadow_spans *s, const void *p, mf_kernel_dtype d, int64_t rows, int64_t row,
                  int64_t count, int64_t head, int64_t dim, bool write) {
    shadow_span_add(s, p, rows, of(d, (count - 1) * head + dim), of(d, row), write);
}

static void merge(const mf_kernel_attention_merge *a, bool look, shadow_spans *s) {
    (void)look;
    for (int write = 0; write < 2; write++) {
        heads(s, a->o, a->o_dtype, a->rows, a->o_row, a->heads, a->o_head, a->v_dim, write);
        shadow_span_add(s, a->lse, 1, 4 * a->heads * a->rows, 4 * a->heads * a->rows, write);
    }
    heads(s, a->o2, a->o2_dtype, a->rows, a->o_row, a->heads, a->o_head, a->v_dim, false);
    reads(s, a->lse2, 4 * a->heads * a->rows);
}

/* What both passes read. */
static void attention_operands(shadow_spans *s, const mf_kernel_attention_shape *p,
                               const mf_device_sequences *q, const void *of_q, const void *of_k,
                               const void *of_v) {
    const int64_t q_rows = p->sequences * q->seq_q, k_rows = p->sequences * q->seq_k;
    reads(s, p->cu_q, 4 * (p->sequences + 1));
    reads(s, p->cu_k, 4 * (p->sequences + 1));
    reads(s, p->q_pos, 4 * q_rows);
    reads(s, p->k_pos, 4 * k_rows);
    reads(s, p->sink, 4 * p->heads);
    heads(s, of_q, p->dtype, q_rows, p->q_row, p->heads, p->q_head, p->qk_dim, false);
    heads(s, of_k, p->dtype, k_rows, p->k_row, p->kv_heads, p->k_head, p->qk_dim, false);
    heads(s, of_v, p->dtype, k_rows, p->v_row, p->kv_heads, p->v_head, p->v_dim, false);
}

static void attention(const mf_device_attention *x, bool look, shadow_spans *s) {
    const mf_kernel_attention *a = &x->a;
    const mf_kernel_attention_shape *p = &a->shape;
    const int64_t rows = p->sequences * x->s.seq_q;
    (void)look;
    attention_operands(s, p, &x->s, a->q, a->k, a->v);
    heads(s, a->o, a->o_dtype, rows, p->o_row, p->heads, p->o_head, p->v_dim, true);
    writes(s, a->lse, 4 * p->heads * rows);
    writes(s, x->workspace, (int64_t)x->workspace_B);
}

static void attention_grad(const mf_device_attention_grad *x, bool look, shadow_spans *s) {
    const mf_kernel_attention_grad *a = &x->a;
    const mf_kernel_attention_shape *p = &a->shape;
    const int64_t rows = p->sequences * x->s.seq_q, k_rows = p->sequences * x->s.seq_k;
    (void)look;
    attention_operands(s, p, &x->s, a->q, a->k, a->v);
    heads(s, a->o, p->dtype, rows, p->o_row, p->heads, p->o_head, p->v_dim, false);
    heads(s, a->d_o, p->dtype, rows, p->o_row, p->heads, p->o_head, p->v_dim, false);
    reads(s, a->lse, 4 * p->heads * rows);
    for (int write = a->accumulate ? 0 : 1; write < 2; write++) {
        heads(s, a->dq, a->grad_dtype, rows, p->q_row, p->heads, p->q_head, p->qk_dim, write);
        heads(s, a->dk, a->grad_dtype, k_rows, p->k_row, p->kv_heads, p->k_head, p->qk_dim, write);
        heads(s, a->dv, a->grad_dtype, k_rows, p->v_row, p->kv_heads, p->v_head, p->v_dim, write);
    }
    updates(s, a->dsink, 4 * p->heads);
    writes(s, a->workspace, (int64_t)x->workspace_B);
}

/* --- products -----------------------------------------------------------------------------------
 */

static void gemm(const mf_device_gemm *x, bool look, shadow_spans *s) {
    const mf_kernel_gemm *a = &x->g;
    bool tn = a->form == MF_GEMM_TN, nt = a->form == MF_GEMM_NT;
    (void)look;
    read_rows(s, a->a, a->a_dtype, tn ? a->k : a->m, tn ? a->m : a->k, a->lda);
    read_rows(s, a->b, a->b_dtype, nt ? a->n : a->k, nt ? a->k : a->n, a->ldb);
    reads(s, a->bias, of(a->c_dtype, a->n));
    if (a->accumulate) {
        read_rows(s, a->c, a->c_dtype, a->m, a->n, a->ldc);
    }
    read_rows(s, x->add, a->c_dtype, a->m, a->n, a->ldc);
    write_rows(s, a->c, a->c_dtype, a->m, a->n, a->ldc);
    writes(s, a->bias_grad, of(a->c_dtype, a->m));
}

static void grouped(const mf_device_grouped *a, bool look, shadow_spans *s) {
    const int64_t wide = a->experts * a->n * a->k;
    bool wgrad = a->kind == MF_GROUPED_WGRAD, forward = a->kind == MF_GROUPED_FORWARD;
    (void)look;
    reads(s, a->offsets, 4 * (a->experts + 1));
    reads(s, a->a, of(a->dtype, a->rows * (forward ? a->k : a->n)));
    reads(s, a->b, of(a->dtype, wgrad ? a->rows * a->k : wide));
    int64_t out_B = of(a->out_dtype, wgrad ? wide : a->rows * (forward ? a->n : a->k));
    reads(s, wgrad && a->accumulate ? a->out : NULL, out_B);
    writes(s, a->out, out_B);
    reads(s, a->prob, 4 * a->rows);
    writes(s, a->act, of(a->out_dtype, a->rows * a->n / 2));
}

/* --- the table ----------------------------------------------------------------------------------
 */

#include "tests/support/shadow_kernels_moe.h"

#define SHADOW_ONE(entry, type)                                                                    \
    static void spans_##entry(const void *args, bool look, shadow_spans *s) {                      \
        entry((const type *)args, look, s);                                                        \
    }                                                                                              \
    static mf_status run_##entry(const void *args, mf_err *e) {                                    \
        mf_device *cpu = mf_device_cpu();                                                          \
        return cpu->ops->entry(cpu->ops->queue(cpu, MF_STREAM_COMPUTE), (const type *)args, e);    \
    }
SHADOW_KERNELS
#undef SHADOW_ONE

static const struct {
    const char *name;
    size_t args_B;
    void (*spans)(const void *args, bool look, shadow_spans *s);
    mf_status (*run)(const void *args, mf_err *e);
} kernels[] = {
#define SHADOW_ONE(entry, type) {#entry, sizeof(type), spans_##entry, run_##entry},
    SHADOW_KERNELS
#undef SHADOW_ONE
};

void shadow_kernel_spans(shadow_kind kind, const void *args, bool look, shadow_spans *out) {
    kernels[kind].spans(args, look, out);
}

const char *shadow_kind_name(shadow_kind kind) {
    static const char *const others[] = {"copy", "fill", "mark", "join", "comm"};
    return kind < SHADOW_KERNEL_COUNT ? kernels[kind].name : others[kind - SHADOW_KERNEL_COUNT];
}

size_t shadow_kernel_args_B(shadow_kind kind) {
    return kernels[kind].args_B;
}

/* The reference of attention's gradient works in memory of its own: what is planned for a GPU's may
 * be less. */
static mf_status run_beside(const mf_device_attention_grad *x, mf_err *e) {
    const mf_kernel_attention_shape *s = &x->a.shape;
    mf_device_attention_grad own = *x;
    own.a.workspace =
        malloc(mf_kernel_attention_workspace_B(s->sequences * x->s.seq_k, s->qk_dim, s->v_dim) + 1);
    mf_status status = own.a.workspace != NULL
                           ? run_attention_grad(&own, e)
                           : mf_err_set(e, MF_NOMEM, "attention: out of memory");
    free(own.a.workspace);
    return status;
}

mf_status shadow_kernel_run(shadow_kind kind, const void *args, mf_err *e) {
    return kind == SHADOW_attention_grad ? run_beside(args, e) : kernels[kind].run(args, e);
}
