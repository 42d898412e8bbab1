/* backend_cpu_attention.c - rotary positions, latent packing and attention on the CPU. */
#include "executor/backend_cpu.h"
#include "executor/rope.h"

#include "kernels/attention.h"
#include "kernels/attention_merge.h"
#include "kernels/mla.h"
#include "kernels/rope.h"

#include <math.h>
#include <string.h>

/* --- rotary positions --------------------------------------------------------------------------
 */

static mf_status rotate(const mf_exec_op *x, mf_kernel_dtype d, void *data, int64_t rows,
                        int64_t heads, int64_t row_stride, int64_t head_stride, bool inverse,
                        mf_err *e) {
    const mf_model *m = x->env->model;
    const mf_kernel_rope a = {.dtype = d,
                              .rows = rows,
                              .heads = heads,
                              .rot_dim = mf_exec_rope_width(m),
                              .row_stride = row_stride,
                              .head_stride = head_stride,
                              .interleaved = m->rope_interleave,
                              .inverse = inverse,
                              .positions = x->env->position,
                              .cos = x->env->rope_cos,
                              .sin = x->env->rope_sin,
                              .x = data};
    return mf_kernel_rope_apply(&a, e);
}

/* The fused projection's q, k, v columns into tensors of their own, q and k rotated. */
static mf_status rope_gqa(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *y = &x->in[0];
    int64_t at[4] = {0}, d = x->env->model->head_dim, kv;
    /* Columns of the three outputs, whichever of them are made here. */
    kv = (y->cols / d - x->env->model->heads / x->env->layout->tp) / 2 * d;
    at[1] = y->cols - 2 * kv;
    at[2] = at[1] + kv;
    mf_status status = MF_OK;
    for (int k = 0; k < x->op->nout && status == MF_OK; k++) {
        const mf_exec_tensor *to = &x->out[k];
        int which = x->out_of[k];
        status = mf_cpu_copy(y->dtype, y->rows, to->cols, mf_cpu_at(y, at[which]), y->cols,
                             to->data, to->cols, e);
        if (status == MF_OK && which < 2) {
            status = rotate(x, to->dtype, to->data, to->rows, to->cols / d, to->cols, d, false, e);
        }
    }
    return status;
}

static mf_status rope_mla(const mf_exec_op *x, mf_err *e) {
    const mf_model *m = x->env->model;
    const mf_exec_tensor *q = &x->in[0], *kv = &x->in[1], *latent = &x->in[2];
    const mf_exec_tensor *to[3] = {NULL, NULL, NULL};
    for (int k = 0; k < x->op->nout; k++) {
        to[x->out_of[k]] = &x->out[k];
    }
    int64_t d = m->head_dim, nope = m->qk_nope_head_dim, heads = q->cols / d;
    mf_status status = MF_OK;
    if (to[0] != NULL) {
        status = mf_cpu_copy(q->dtype, q->rows, q->cols, q->data, q->cols, to[0]->data, q->cols, e);
        if (status == MF_OK) {
            status =
                rotate(x, q->dtype, mf_cpu_at(to[0], nope), q->rows, heads, q->cols, d, false, e);
        }
    }
    if (status == MF_OK && to[1] != NULL && to[2] != NULL) {
        const mf_kernel_mla pack = {.dtype = kv->dtype,
                                    .rows = kv->rows,
                                    .heads = heads,
                                    .nope = nope,
                                    .rope = m->qk_rope_head_dim,
                                    .v_dim = m->v_head_dim,
                                    .rope_stride = latent->cols,
                                    .kv = kv->data,
                                    .k_rope = mf_cpu_at(latent, m->kv_lora_rank),
                                    .k = to[1]->data,
                                    .v = to[2]->data};
        status = mf_kernel_mla_pack(&pack, e);
        if (status == MF_OK) {
            status = rotate(x, kv->dtype, mf_cpu_at(to[1], nope), kv->rows, heads, heads * d, d,
                            false, e);
        }
    }
    return status;
}

mf_status mf_cpu_rope(const mf_exec_op *x, mf_err *e) {
    return x->env->model->attn == MF_ATTN_MLA ? rope_mla(x, e) : rope_gqa(x, e);
}

static mf_status rope_gqa_grad(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *dy = &x->out[0];
    int64_t at = 0, d = x->env->model->head_dim;
    mf_status status = MF_OK;
    for (int i = 0; i < 3 && status == MF_OK; i++) {
        const mf_exec_tensor *from = &x->in[i];
        status = mf_cpu_copy(dy->dtype, dy->rows, from->cols, from->data, from->cols,
                             mf_cpu_at(dy, at), dy->cols, e);
        if (status == MF_OK && i < 2) {
            status = rotate(x, dy->dtype, mf_cpu_at(dy, at), dy->rows, from->cols / d, dy->cols, d,
                            true, e);
        }
        at += from->cols;
    }
    return status == MF_OK ? mf_cpu_add_sum(x, 0, e) : status;
}

static mf_status rope_mla_grad(const mf_exec_op *x, mf_err *e) {
    const mf_model *m = x->env->model;
    const mf_exec_tensor *dq = &x->out[0], *dkv = &x->out[1], *dlatent = &x->out[2];
    int64_t d = m->head_dim, nope = m->qk_nope_head_dim, heads = dq->cols / d;
    mf_status status =
        mf_cpu_copy(dq->dtype, dq->rows, dq->cols, x->in[0].data, dq->cols, dq->data, dq->cols, e);
    if (status == MF_OK) {
        status = rotate(x, dq->dtype, mf_cpu_at(dq, nope), dq->rows, heads, dq->cols, d, true, e);
    }
    if (status != MF_OK) {
        return status;
    }
    memset(dlatent->data, 0,
           (size_t)(dlatent->rows * dlatent->cols) * mf_kernel_dtype_B(dlatent->dtype));
    void *rope = mf_cpu_at(dlatent, m->kv_lora_rank);
    const mf_kernel_mla_grad unpack = {.dtype = dkv->dtype,
                                       .rows = dkv->rows,
                                       .heads = heads,
                                       .nope = nope,
                                       .rope = m->qk_rope_head_dim,
                                       .v_dim = m->v_head_dim,
                                       .rope_stride = dlatent->cols,
                                       .dk = x->in[1].data,
                                       .dv = x->in[2].data,
                                       .dkv = dkv->data,
                                       .dk_rope = rope};
    status = mf_kernel_mla_unpack_grad(&unpack, e);
    /* Rotations are linear: the sum over heads is turned back once. */
    return status == MF_OK
               ? rotate(x, dlatent->dtype, rope, dlatent->rows, 1, dlatent->cols, 0, true, e)
               : status;
}

mf_status mf_cpu_rope_grad(const mf_exec_op *x, mf_err *e) {
    return x->env->model->attn == MF_ATTN_MLA ? rope_mla_grad(x, e) : rope_gqa_grad(x, e);
}

/* --- attention ---------------------------------------------------------------------------------
 */

static mf_kernel_attention_shape shape_of(const mf_exec_op *x) {
    const mf_exec_env *env = x->env;
    const int64_t *dim = x->op->dim;
    int64_t d_qk = dim[5], d_v = dim[6], all_heads = x->in[0].cols / d_qk;
    mf_kernel_attention_shape s = {.dtype = x->in[0].dtype,
                                   .sequences = dim[0],
                                   .cu_q = env->cu,
                                   .cu_k = env->cu,
                                   .q_pos = env->position,
                                   .k_pos = env->position,
                                   .heads = dim[1],
                                   .kv_heads = dim[2],
                                   .qk_dim = d_qk,
                                   .v_dim = d_v,
                                   .causal = true,
                                   .window = dim[7],
                                   .scale = (float)mf_exec_softmax_scale(env->model),
                                   .q_row = x->in[0].cols,
                                   .q_head = d_qk,
                                   .k_row = x->in[1].cols,
                                   .k_head = d_qk,
                                   .v_row = x->in[2].cols,
                                   .v_head = d_v,
                                   .o_row = all_heads * d_v,
                                   .o_head = d_v};
    const mf_layout *l = env->layout;
    int64_t local = l->seq / l->cp;
    if (dim[3] > local) { /* after an all-to-all: rows of `near` CP ranks, keys of a ring's next */
        int64_t ring = l->cp / env->near, rows = l->mbs * env->near * local;
        int64_t own = env->at.c / env->near, from = (own + ring - x->ring_step) % ring;
        s.cu_q = s.cu_k = env->near_cu;
        s.q_pos = env->near_position + own * rows;
        s.k_pos = env->near_position + from * rows;
    } else if (dim[4] == l->seq) { /* keys of the whole samples */
        s.cu_k = env->full_cu;
        s.k_pos = env->full_position;
    } else if (x->ring_step > 0) {
        int64_t from = (env->at.c + l->cp - x->ring_step) % l->cp;
        s.k_pos = env->ring_position + from * l->mbs * local;
    }
    return s;
}

/* Sinks of the heads at hand as float, at the end of the scratch; NULL where there are none.
 * *first: after an all-to-all over CP this rank has a part of the heads, and a piece has a part of
 * those. */
static float *sinks_of(const mf_exec_op *x, int64_t *first) {
    const mf_exec_tensor *w = &x->weight[3];
    int64_t heads = x->op->dim[1], held = x->in[0].cols / x->op->dim[5];
    if (x->forward_nin < 4) {
        return NULL;
    }
    *first = w->rows > held ? x->env->at.c % (w->rows / held) * held : 0;
    *first += heads * x->op->piece;
    float *sinks = (float *)x->env->scratch + x->env->scratch_B / sizeof(float) - heads;
    for (int64_t h = 0; h < heads; h++) {
        sinks[h] = mf_kernel_get(w->data, w->dtype, *first + h);
    }
    return sinks;
}

/* From the first head of the piece on: d columns a head. A piece's keys are a part of their heads
 * as large as the piece is, or one of fewer heads that several pieces read. */
static void *of_piece(const mf_exec_op *x, const mf_exec_tensor *t, int64_t d) {
    int64_t pieces = x->op->pieces > 1 ? x->op->pieces : 1;
    return mf_cpu_at(t, x->op->piece * (t->cols / d) / pieces * d);
}

/* Statistics lie head by head. */
static float *lse_of_piece(const mf_exec_op *x, const mf_exec_tensor *t) {
    return (float *)t->data + x->op->piece * x->op->dim[1] * t->rows;
}

mf_status mf_cpu_attention(const mf_exec_op *x, mf_err *e) {
    const int64_t d_qk = x->op->dim[5], d_v = x->op->dim[6];
    int64_t first_head;
    mf_kernel_attention a = {.shape = shape_of(x),
                             .q = of_piece(x, &x->in[0], d_qk),
                             .k = of_piece(x, &x->in[1], d_qk),
                             .v = of_piece(x, &x->in[2], d_v),
                             .o_dtype = x->in[0].dtype};
    void *scratch = x->env->scratch;
    a.o = scratch;
    a.shape.sink = sinks_of(x, &first_head);
    for (int k = 0; k < x->op->nout; k++) {
        if (x->out_of[k] == 0) {
            a.o = of_piece(x, &x->out[k], d_v);
        } else {
            a.lse = lse_of_piece(x, &x->out[k]);
        }
    }
    return mf_kernel_attention_forward(&a, e);
}

/* Gradients that add up: over the steps of a ring, over pieces that read the same keys. What is not
 * begun yet begins here, of queries the heads of the piece. */
static void begin_sums(const mf_exec_op *x) {
    const mf_exec_tensor *dq = &x->out[0];
    if (mf_op_cut(x->op) == MF_CUT_NONE) {
        mf_cpu_begin(x, 0);
    } else {
        const int64_t cols = dq->cols / x->op->pieces;
        const size_t row_B = (size_t)cols * mf_kernel_dtype_B(dq->dtype);
        for (int64_t r = 0; r < dq->rows_max; r++) {
            memset(mf_cpu_at(dq, r * dq->cols + x->op->piece * cols), 0, row_B);
        }
    }
    mf_cpu_begin(x, 1);
    mf_cpu_begin(x, 2);
}

mf_status mf_cpu_attention_grad(const mf_exec_op *x, mf_err *e) {
    const int64_t d_qk = x->op->dim[5], d_v = x->op->dim[6];
    bool sums = mf_op_cut(x->op) != MF_CUT_NONE && x->in[1].cols / d_qk < x->op->pieces;
    for (int k = 0; k < 3; k++) {
        sums |= x->sum[k].data != NULL;
    }
    if (sums) {
        begin_sums(x);
    }
    int64_t first_head = 0;
    const float *sinks = sinks_of(x, &first_head);
    mf_kernel_attention_grad a = {.shape = shape_of(x),
                                  .q = of_piece(x, &x->in[0], d_qk),
                                  .k = of_piece(x, &x->in[1], d_qk),
                                  .v = of_piece(x, &x->in[2], d_v),
                                  .o = of_piece(x, &x->in[3], d_v),
                                  .lse = lse_of_piece(x, &x->in[4]),
                                  .d_o = of_piece(x, &x->in[5], d_v),
                                  .grad_dtype = x->out[0].dtype,
                                  .accumulate = sums,
                                  .dq = of_piece(x, &x->out[0], d_qk),
                                  .dk = of_piece(x, &x->out[1], d_qk),
                                  .dv = of_piece(x, &x->out[2], d_v),
                                  .workspace = x->env->scratch};
    a.shape.sink = sinks;
    a.dsink = sinks != NULL ? (float *)x->out[3].data + first_head : NULL;
    return mf_kernel_attention_backward(&a, e);
}

mf_status mf_cpu_attention_merge(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *part = &x->in[0], *lse = &x->in[1], *o = &x->out[0], *sum = &x->out[1];
    if (x->first[0]) {
        memcpy(o->data, part->data, (size_t)(o->rows * o->cols) * mf_kernel_dtype_B(o->dtype));
        memcpy(sum->data, lse->data, (size_t)(sum->rows * sum->cols) * sizeof(float));
        return MF_OK;
    }
    const mf_kernel_attention_merge a = {.rows = o->rows,
                                         .heads = sum->cols,
                                         .v_dim = o->cols / sum->cols,
                                         .o_row = o->cols,
                                         .o_head = o->cols / sum->cols,
                                         .o_dtype = o->dtype,
                                         .o = o->data,
                                         .lse = sum->data,
                                         .o2_dtype = part->dtype,
                                         .o2 = part->data,
                                         .lse2 = lse->data};
    return mf_kernel_attention_merge_run(&a, e);
}
