/* attention.c - rotary positions, latent packing, attention and the merging of its parts. */
#include "executor/ops/ops.h"

/* --- rotary positions --------------------------------------------------------------------------
 */

static void *output(const mf_exec_op *x, int which) {
    for (int k = 0; k < x->op->nout; k++) {
        if (x->out_of[k] == which) {
            return x->out[k].data;
        }
    }
    return NULL;
}

/* Of a fused projection's columns: heads of q, then of k, then of v, then gates. */
static mf_kernel_rope_shape rope_shape(const mf_exec_op *x, const mf_exec_tensor *joined) {
    const mf_exec_env *env = x->env;
    const int64_t *dim = x->op->dim, table = dim[MF_OP_DIM_ROPE_TABLE];
    return (mf_kernel_rope_shape){.dtype = joined->dtype,
                                  .rows = joined->rows,
                                  .heads = dim[MF_OP_DIM_ROPE_HEADS],
                                  .kv_heads = dim[MF_OP_DIM_ROPE_KV_HEADS],
                                  .head_dim = dim[MF_OP_DIM_ROPE_D_QK],
                                  .rot_dim = table >= 0 ? env->rope[table].width : 0,
                                  .joined_stride = joined->cols,
                                  .interleaved = env->model->rope_interleave,
                                  .q_stays = table < 0,
                                  .k_stays = table < 0 || env->rope[table].temperature,
                                  .positions = env->position,
                                  .cos = table >= 0 ? env->rope_cos[table] : NULL,
                                  .sin = table >= 0 ? env->rope_sin[table] : NULL};
}

static mf_kernel_mla_shape mla_shape(const mf_exec_op *x, const mf_exec_tensor *q) {
    const mf_model *m = x->env->model;
    return (mf_kernel_mla_shape){.dtype = q->dtype,
                                 .rows = q->rows,
                                 .heads = q->cols / m->head_dim,
                                 .nope = m->qk_nope_head_dim,
                                 .rope = m->qk_rope_head_dim,
                                 .v_dim = m->v_head_dim,
                                 .interleaved = m->rope_interleave,
                                 .positions = x->env->position,
                                 .cos = x->env->rope_cos[0],
                                 .sin = x->env->rope_sin[0]};
}

/* Low-rank queries with full keys (Step-3): separate rows for q, and for k and v. */
static bool stands_apart(const mf_exec_op *x) {
    return x->forward_nin > 1;
}

static mf_kernel_rope_shape apart_shape(const mf_exec_op *x, const mf_exec_tensor *row, bool keys) {
    mf_kernel_rope_shape s = rope_shape(x, row);
    *(keys ? &s.heads : &s.kv_heads) = 0;
    return s;
}

static mf_status rope_apart(const mf_exec_op *x, mf_err *e) {
    const mf_kernel_rope_split q = {
        .shape = apart_shape(x, &x->in[0], false), .joined = x->in[0].data, .q = output(x, 0)};
    const mf_kernel_rope_split kv = {.shape = apart_shape(x, &x->in[1], true),
                                     .joined = x->in[1].data,
                                     .k = output(x, 1),
                                     .v = output(x, 2)};
    mf_status status = q.q != NULL ? mf_ops_device(x)->rope_split(x->queue, &q, e) : MF_OK;
    return status == MF_OK && (kv.k != NULL || kv.v != NULL)
               ? mf_ops_device(x)->rope_split(x->queue, &kv, e)
               : status;
}

static mf_status rope_apart_grad(const mf_exec_op *x, mf_err *e) {
    const mf_kernel_rope_join q = {.shape = apart_shape(x, &x->out[0], false),
                                   .dq = x->in[0].data,
                                   .add = x->sum[0].data,
                                   .djoined = x->out[0].data};
    const mf_kernel_rope_join kv = {.shape = apart_shape(x, &x->out[1], true),
                                    .dk = x->in[1].data,
                                    .dv = x->in[2].data,
                                    .add = x->sum[1].data,
                                    .djoined = x->out[1].data};
    mf_status status = mf_ops_device(x)->rope_join(x->queue, &q, e);
    return status == MF_OK ? mf_ops_device(x)->rope_join(x->queue, &kv, e) : status;
}

/* Values that differ in width from keys, and gates, are plain columns after q and k. */
static bool copies_values(const mf_exec_op *x) {
    return x->op->dim[MF_OP_DIM_ROPE_D_V] != x->op->dim[MF_OP_DIM_ROPE_D_QK];
}

/* First column of v (2) or of the gates (3) in a joined row. */
static int64_t begin_of(const mf_exec_op *x, int which) {
    const int64_t *dim = x->op->dim, kv = dim[MF_OP_DIM_ROPE_KV_HEADS];
    int64_t v = (dim[MF_OP_DIM_ROPE_HEADS] + kv) * dim[MF_OP_DIM_ROPE_D_QK];
    return which == 2 ? v : v + kv * dim[MF_OP_DIM_ROPE_D_V];
}

/* Copies the fused projection's q, k and v columns to separate tensors, with q and k rotated. */
static mf_status rope_gqa(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *y = &x->in[0];
    const mf_kernel_rope_split a = {.shape = rope_shape(x, y),
                                    .joined = y->data,
                                    .q = output(x, 0),
                                    .k = output(x, 1),
                                    .v = copies_values(x) ? NULL : output(x, 2)};
    mf_status status = mf_ops_device(x)->rope_split(x->queue, &a, e);
    for (int i = 0; i < x->op->nout && status == MF_OK; i++) {
        const mf_exec_tensor *to = &x->out[i];
        int which = x->out_of[i];
        if (which == 3 || (which == 2 && copies_values(x))) {
            status = mf_ops_copy(x, y->dtype, y->rows, to->cols, mf_ops_at(y, begin_of(x, which)),
                                 y->cols, to->data, to->cols, e);
        }
    }
    return status;
}

static mf_status rope_gqa_grad(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *dy = &x->out[0];
    bool whole = x->nin == 3 && !copies_values(x);
    const mf_kernel_rope_join a = {.shape = rope_shape(x, dy),
                                   .dq = x->in[0].data,
                                   .dk = x->in[1].data,
                                   .dv = copies_values(x) ? NULL : x->in[2].data,
                                   .add = whole ? x->sum[0].data : NULL,
                                   .djoined = dy->data};
    mf_status status = mf_ops_device(x)->rope_join(x->queue, &a, e);
    for (int i = copies_values(x) ? 2 : 3; i < x->nin && status == MF_OK; i++) {
        status = mf_ops_copy(x, dy->dtype, dy->rows, x->in[i].cols, x->in[i].data, x->in[i].cols,
                             mf_ops_at(dy, begin_of(x, i)), dy->cols, e);
    }
    return status == MF_OK && !whole ? mf_ops_add_sum(x, 0, e) : status;
}

static mf_status rope_mla(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *q = &x->in[0], *latent = &x->in[2];
    const mf_kernel_mla_rope a = {.shape = mla_shape(x, q),
                                  .q = q->data,
                                  .kv = x->in[1].data,
                                  .k_rope = mf_ops_at(latent, x->env->model->kv_lora_rank),
                                  .rope_stride = latent->cols,
                                  .q_out = output(x, 0),
                                  .k_out = output(x, 1),
                                  .v_out = output(x, 2)};
    return mf_ops_device(x)->mla_rope(x->queue, &a, e);
}

static mf_status rope_mla_grad(const mf_exec_op *x, mf_err *e) {
    const mf_kernel_mla_rope_grad a = {.shape = mla_shape(x, &x->out[0]),
                                       .kv_rank = x->env->model->kv_lora_rank,
                                       .dq = x->in[0].data,
                                       .dk = x->in[1].data,
                                       .dv = x->in[2].data,
                                       .add_q = x->sum[0].data,
                                       .add_kv = x->sum[1].data,
                                       .add_latent = x->sum[2].data,
                                       .dq_in = x->out[0].data,
                                       .dkv = x->out[1].data,
                                       .dlatent = x->out[2].data};
    return mf_ops_device(x)->mla_rope_grad(x->queue, &a, e);
}

mf_status mf_op_rope(const mf_exec_op *x, mf_err *e) {
    return x->env->model->attn == MF_ATTN_MLA ? rope_mla(x, e)
           : stands_apart(x)                  ? rope_apart(x, e)
                                              : rope_gqa(x, e);
}

mf_status mf_op_rope_grad(const mf_exec_op *x, mf_err *e) {
    return x->env->model->attn == MF_ATTN_MLA ? rope_mla_grad(x, e)
           : stands_apart(x)                  ? rope_apart_grad(x, e)
                                              : rope_gqa_grad(x, e);
}

/* --- attention ---------------------------------------------------------------------------------
 */

static mf_kernel_attention_shape shape_of(const mf_exec_op *x, mf_device_sequences *s) {
    const mf_exec_env *env = x->env;
    const int64_t *dim = x->op->dim;
    const mf_layout *l = env->layout;
    int64_t d_qk = dim[MF_OP_DIM_D_QK], d_v = dim[MF_OP_DIM_D_V];
    mf_kernel_attention_shape a = {.dtype = x->in[0].dtype,
                                   .sequences = dim[MF_OP_DIM_BATCH],
                                   .cu_q = env->cu,
                                   .cu_k = env->cu,
                                   .q_pos = env->position,
                                   .k_pos = env->position,
                                   .heads = dim[MF_OP_DIM_HEADS],
                                   .kv_heads = dim[MF_OP_DIM_KV_HEADS],
                                   .qk_dim = d_qk,
                                   .v_dim = d_v,
                                   .causal = true,
                                   .window = dim[MF_OP_DIM_WINDOW],
                                   .chunked = (x->op->flags & MF_OPF_CHUNKED) != 0,
                                   .scale = x->op->alpha,
                                   .q_row = x->in[0].cols,
                                   .q_head = d_qk,
                                   .k_row = x->in[1].cols,
                                   .k_head = d_qk,
                                   .v_row = x->in[2].cols,
                                   .v_head = d_v,
                                   .o_row = x->in[0].cols / d_qk * d_v,
                                   .o_head = d_v};
    int64_t local = l->seq / l->cp;
    *s = (mf_device_sequences){
        .seq_q = local, .seq_k = local, .member = env->at.c, .members = l->cp};
    if (dim[MF_OP_DIM_SEQ_Q] > local) { /* after an all-to-all: rows of `near` CP ranks, keys of a
                                           ring's next */
        int64_t ring = l->cp / env->near, rows = l->mbs * env->near * local;
        int64_t own = env->at.c / env->near, from = (own + ring - x->ring_step) % ring;
        a.cu_q = a.cu_k = env->near_cu;
        a.q_pos = env->near_position + own * rows;
        a.k_pos = env->near_position + from * rows;
        s->seq_q = s->seq_k = env->near * local;
        s->member = own;
        s->members = ring;
        s->keys = from == own ? MF_KEYS_OWN : from < own ? MF_KEYS_BEFORE : MF_KEYS_BEHIND;
    } else if (dim[MF_OP_DIM_SEQ_K] == l->seq && l->cp > 1) { /* keys of the whole samples */
        a.cu_k = env->full_cu;
        a.k_pos = env->full_position;
        s->seq_k = l->seq;
        s->keys = MF_KEYS_ALL;
    } else if (x->ring_step > 0) {
        int64_t from = (env->at.c + l->cp - x->ring_step) % l->cp;
        a.k_pos = env->ring_position + from * l->mbs * local;
        s->keys = from < env->at.c ? MF_KEYS_BEFORE : MF_KEYS_BEHIND;
    }
    return a;
}

/* The sinks of the current heads as float; NULL without sinks. *first: the first head, as after an
 * all-to-all over CP this rank has a part of the heads, and a piece has a part of those. */
static mf_status sinks_of(const mf_exec_op *x, mf_ops_scratch *s, const float **out, int64_t *first,
                          mf_err *e) {
    const mf_exec_tensor *w = &x->weight[3];
    int64_t heads = x->op->dim[MF_OP_DIM_HEADS], held = x->in[0].cols / x->op->dim[MF_OP_DIM_D_QK];
    *out = NULL;
    *first = 0;
    if (x->forward_nin < 4) {
        return MF_OK;
    }
    *first = w->rows > held ? x->env->at.c % (w->rows / held) * held : 0;
    *first += heads * x->op->piece;
    float *sinks = mf_ops_take(s, (size_t)heads * sizeof *sinks);
    const mf_kernel_cast wide = {.src_dtype = w->dtype,
                                 .dst_dtype = MF_KERNEL_F32,
                                 .count = heads,
                                 .alpha = 1.0f,
                                 .src = mf_ops_at(w, *first),
                                 .dst = sinks};
    *out = sinks;
    return mf_ops_device(x)->cast(x->queue, &wide, e);
}

/* The tensor from the piece's first head on, with d columns a head. Pieces split the key heads like
 * the query heads, or, where there are fewer key heads than pieces, several pieces read the same
 * one. */
static void *of_piece(const mf_exec_op *x, const mf_exec_tensor *t, int64_t d) {
    int64_t pieces = x->op->pieces > 1 ? x->op->pieces : 1;
    return mf_ops_at(t, x->op->piece * (t->cols / d) / pieces * d);
}

/* Statistics are stored head by head. */
static float *lse_of_piece(const mf_exec_op *x, const mf_exec_tensor *t) {
    return (float *)t->data + x->op->piece * x->op->dim[MF_OP_DIM_HEADS] * t->rows;
}

mf_status mf_op_attention(const mf_exec_op *x, mf_err *e) {
    const int64_t d_qk = x->op->dim[MF_OP_DIM_D_QK], d_v = x->op->dim[MF_OP_DIM_D_V];
    int64_t first_head;
    mf_ops_scratch s = mf_ops_scratch_of(x);
    mf_device_attention a = {.a = {.q = of_piece(x, &x->in[0], d_qk),
                                   .k = of_piece(x, &x->in[1], d_qk),
                                   .v = of_piece(x, &x->in[2], d_v),
                                   .o_dtype = x->in[0].dtype}};
    a.a.shape = shape_of(x, &a.s);
    mf_status status = sinks_of(x, &s, &a.a.shape.sink, &first_head, e);
    for (int k = 0; k < x->op->nout; k++) {
        if (x->out_of[k] == 0) {
            a.a.o = of_piece(x, &x->out[k], d_v);
        } else {
            a.a.lse = lse_of_piece(x, &x->out[k]);
        }
    }
    if (a.a.o == NULL) { /* only the statistics are wanted */
        a.a.o = mf_ops_take(&s, (size_t)(x->in[0].rows * a.a.shape.o_row) *
                                    mf_kernel_dtype_B(a.a.o_dtype));
    }
    a.workspace = s.at;
    a.workspace_B = (size_t)(s.end - s.at);
    return status == MF_OK ? mf_ops_device(x)->attention(x->queue, &a, e) : status;
}

/* Do several pieces read this piece's key heads, and so add to the same gradients? */
static bool shares_keys(const mf_exec_op *x) {
    return mf_op_split_axis(x->op) != MF_SPLIT_NONE &&
           x->in[1].cols / x->op->dim[MF_OP_DIM_D_QK] < x->op->pieces;
}

/* Zeroes the columns of a piece by copies of one zero row. */
static mf_status zero_piece(const mf_exec_op *x, const mf_exec_tensor *t, mf_ops_scratch s,
                            mf_err *e) {
    const int64_t cols = t->cols / x->op->pieces;
    const size_t row_B = (size_t)cols * mf_kernel_dtype_B(t->dtype);
    void *zero = mf_ops_take(&s, row_B);
    mf_status status = mf_ops_device(x)->zero(x->queue, zero, row_B, e);
    return status == MF_OK ? mf_ops_copy(x, t->dtype, t->rows_max, cols, zero, 0,
                                         mf_ops_at(t, x->op->piece * cols), t->cols, e)
                           : status;
}

/* Gradients that are accumulated over the steps of a ring, over parts of the keys, or over pieces
 * that read the same keys. Initialises those that no op has written yet; for pieces, their own
 * heads. */
static mf_status begin_sums(const mf_exec_op *x, mf_ops_scratch s, mf_err *e) {
    const bool split = mf_op_split_axis(x->op) != MF_SPLIT_NONE, shared = shares_keys(x);
    mf_status status = MF_OK;
    for (int k = 0; k < 3 && status == MF_OK; k++) {
        status = split && (k == 0 || !shared) && x->sum[k].data == NULL
                     ? zero_piece(x, &x->out[k], s, e)
                     : mf_ops_begin(x, k, e);
    }
    return status;
}

mf_status mf_op_attention_grad(const mf_exec_op *x, mf_err *e) {
    const int64_t d_qk = x->op->dim[MF_OP_DIM_D_QK], d_v = x->op->dim[MF_OP_DIM_D_V];
    mf_device_sequences sequences;
    const mf_kernel_attention_shape shape = shape_of(x, &sequences);
    bool sums = shares_keys(x) || sequences.keys != MF_KEYS_OWN;
    for (int k = 0; k < 3; k++) {
        sums |= x->sum[k].data != NULL;
    }
    int64_t first_head = 0;
    mf_ops_scratch s = mf_ops_scratch_of(x);
    const float *sinks = NULL;
    mf_status status = sums ? begin_sums(x, s, e) : MF_OK;
    status = status == MF_OK ? sinks_of(x, &s, &sinks, &first_head, e) : status;
    mf_device_attention_grad a = {.a = {.q = of_piece(x, &x->in[0], d_qk),
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
                                        .workspace = s.at},
                                  .s = sequences,
                                  .workspace_B = (size_t)(s.end - s.at),
                                  .keeps = (x->op->flags & MF_OPF_KEPT) != 0};
    a.a.shape = shape;
    a.a.shape.sink = sinks;
    a.a.dsink = sinks != NULL ? (float *)x->out[3].data + first_head : NULL;
    return status == MF_OK ? mf_ops_device(x)->attention_grad(x->queue, &a, e) : status;
}

mf_status mf_op_attention_merge(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *part = &x->in[0], *lse = &x->in[1], *o = &x->out[0], *sum = &x->out[1];
    const mf_device_ops *k = mf_ops_device(x);
    if (x->first[0]) {
        mf_status status = k->copy(x->queue, o->data, part->data,
                                   (size_t)(o->rows * o->cols) * mf_kernel_dtype_B(o->dtype), e);
        return status == MF_OK ? k->copy(x->queue, sum->data, lse->data,
                                         (size_t)(sum->rows * sum->cols) * sizeof(float), e)
                               : status;
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
    return k->merge(x->queue, &a, e);
}
