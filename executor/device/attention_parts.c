/* attention_parts.c - finds which blocks of queries see which blocks of keys, and combines their
 * results. */
#include "executor/device/attention_parts.h"

#include <assert.h>

int mf_attention_parts(const mf_device_sequences *s, mf_attention_part out[MF_ATTENTION_PARTS]) {
    const int64_t half_q = s->seq_q / 2, half_k = s->seq_k / 2;
    const int64_t chunk = s->members > 0 ? half_k / s->members : 0; /* of keys in order */
    const int64_t seen[2] = {(s->member + 1) * chunk, (2 * s->members - s->member) * chunk};
    switch (s->keys) {
    case MF_KEYS_OWN:
        out[0] = (mf_attention_part){.seq_q = s->seq_q, .seq_k = s->seq_k, .causal = true};
        return 1;
    case MF_KEYS_BEFORE:
        out[0] = (mf_attention_part){.seq_q = s->seq_q, .seq_k = half_k};
        return 1;
    case MF_KEYS_BEHIND:
        out[0] = (mf_attention_part){.first_q = half_q, .seq_q = half_q, .seq_k = s->seq_k};
        return 1;
    case MF_KEYS_ALL:
        for (int i = 0; i < 2; i++) {
            out[i] = (mf_attention_part){
                .first_q = i * half_q, .seq_q = half_q, .seq_k = seen[i], .causal = true};
        }
        return 2;
    }
    return 0;
}

/* The piece of a causal part that begins at its query `from` and ends with that query's chunk, with
 * the keys of the chunk up to there. Without chunks: the part itself. */
static mf_attention_part piece_of(const mf_kernel_attention_shape *a, const mf_attention_part *p,
                                  int64_t from) {
    if (!a->chunked || a->window <= 0 || !p->causal) {
        return *p;
    }
    const int64_t at = p->seq_k - p->seq_q + from, begin = at / a->window * a->window;
    const int64_t end = begin + a->window < p->seq_k ? begin + a->window : p->seq_k;
    return (mf_attention_part){.first_q = p->first_q + from,
                               .first_k = p->first_k + begin,
                               .seq_q = end - at,
                               .seq_k = end - begin,
                               .causal = true};
}

/* --- what both passes share ----------------------------------------------------------------------
 */

/* Takes parts of a workspace, one after the other. */
typedef struct workspace_parts {
    char *at;
    size_t left_B;
} workspace_parts;

static mf_status take(workspace_parts *r, int64_t size_B, void **out, mf_err *e) {
    const size_t need_B = (size_t)mf_align_B(size_B);
    *out = r->at;
    if (need_B > r->left_B) {
        return mf_err_set(e, MF_INTERNAL, "attention needs %zu bytes of workspace, %zu are left",
                          need_B, r->left_B);
    }
    r->at += need_B;
    r->left_B -= need_B;
    return MF_OK;
}

/* Statistics of chunks are aligned to 16 bytes. */
#define CHUNK_STEP 4

static mf_status check(const mf_kernel_attention_shape *a, const mf_device_sequences *s,
                       mf_err *e) {
    const bool ring = s->members > 1 && s->keys != MF_KEYS_ALL;
    const bool binds = a->window > 0 && a->window < (ring ? s->members : 1) * s->seq_k;
    if (ring && binds) {
        return mf_err_set(e, MF_INFEASIBLE,
                          "attention %s over a context-parallel ring are not run on this device: "
                          "--cp-type allgather or alltoall",
                          a->chunked ? "chunks" : "windows");
    }
    return a->chunked && binds && a->window % CHUNK_STEP != 0
               ? mf_err_set(e, MF_INFEASIBLE,
                            "attention in chunks of %lld positions is not run on this device: "
                            "multiples of %d are",
                            (long long)a->window, CHUNK_STEP)
               : MF_OK;
}

/* The place of a part's statistics in the library's order (by sequence, then by head): after those
 * of the queries before it. */
static float *lse_of(const mf_kernel_attention_shape *a, const mf_attention_part *p, float *lse) {
    return lse + a->sequences * a->heads * p->first_q;
}

/* Statistics are stored by head over all rows, the library's by sequence. The two agree for one
 * sequence that is whole in the block. */
static bool turns_lse(const mf_kernel_attention_shape *a, const mf_device_sequences *s,
                      const mf_attention_part *p) {
    return s->members > 1 && (a->sequences > 1 || p->seq_q < s->seq_q);
}

/* Between lse [heads, rows] and a block's [sequences, heads, seq_q]. */
static mf_status turn_lse(mf_queue *q, const mf_kernel_attention_shape *a,
                          const mf_device_sequences *s, const mf_attention_part *p, float *all,
                          float *block, bool out, mf_err *e) {
    const int64_t rows = a->sequences * s->seq_q;
    mf_status status = MF_OK;
    for (int64_t i = 0; i < a->sequences && status == MF_OK; i++) {
        float *there = all + i * s->seq_q + p->first_q, *here = block + i * a->heads * p->seq_q;
        const mf_kernel_copy_rows c = {.dtype = MF_KERNEL_F32,
                                       .rows = a->heads,
                                       .cols = p->seq_q,
                                       .src_stride = out ? p->seq_q : rows,
                                       .dst_stride = out ? rows : p->seq_q,
                                       .src = out ? here : there,
                                       .dst = out ? there : here};
        status = q->device->ops->copy_rows(q, &c, e);
    }
    return status;
}

/* Row `row` of a tensor with rows of so many elements. */
static void *row_of(const mf_kernel_attention_shape *a, const void *base, int64_t row,
                    int64_t elements) {
    return (char *)(uintptr_t)base + row * elements * (int64_t)mf_kernel_dtype_B(a->dtype);
}

static mf_attention_call call_of(const mf_kernel_attention_shape *a, const mf_device_sequences *s,
                                 const mf_attention_part *p, const void *q, const void *k,
                                 const void *v, const void *o) {
    return (mf_attention_call){.shape = a,
                               .seq_q = p->seq_q,
                               .seq_k = p->seq_k,
                               .rows_q = s->seq_q,
                               .rows_k = s->seq_k,
                               .causal = p->causal,
                               .q = row_of(a, q, p->first_q, a->q_row),
                               .k = row_of(a, k, p->first_k, a->k_row),
                               .v = row_of(a, v, p->first_k, a->v_row),
                               .o = row_of(a, o, p->first_q, a->o_row)};
}

/* --- forward -------------------------------------------------------------------------------------
 */

/* Bytes that make a float below all others: a log-sum-exp that has no weight when blocks are
 * merged. */
#define NOTHING 0xfe

/* Queries before the block see no key: sets their outputs to zero and their statistics to the least
 * value. */
static mf_status clear_unseen(mf_queue *q, const mf_device_attention *a, const mf_attention_part *p,
                              mf_err *e) {
    const mf_kernel_attention_shape *shape = &a->a.shape;
    const size_t row_B = (size_t)shape->o_row * mf_kernel_dtype_B(shape->dtype);
    const int64_t rows = shape->sequences * a->s.seq_q;
    assert(shape->o_row == shape->heads * shape->v_dim && a->a.lse != NULL);
    assert(shape->sink == NULL); /* else these queries would see the sink */
    mf_status status = q->device->ops->fill(q, a->a.lse, NOTHING,
                                            (size_t)(shape->heads * rows) * sizeof(float), e);
    for (int64_t i = 0; i < shape->sequences && status == MF_OK; i++) {
        status = q->device->ops->zero(q, row_of(shape, a->a.o, i * a->s.seq_q, shape->o_row),
                                      (size_t)p->first_q * row_B, e);
    }
    return status;
}

static mf_status forward_part(mf_queue *q, const mf_device_attention *a, const mf_attention_part *p,
                              mf_attention_fn library, mf_err *e) {
    const mf_kernel_attention_shape *shape = &a->a.shape;
    workspace_parts r = {a->workspace, a->workspace_B};
    bool turns = turns_lse(shape, &a->s, p) && a->a.lse != NULL;
    mf_attention_call c = call_of(shape, &a->s, p, a->a.q, a->a.k, a->a.v, a->a.o);
    void *block = a->a.lse != NULL ? lse_of(shape, p, a->a.lse) : NULL;
    mf_status status = MF_OK;
    if (turns) {
        status = take(&r, 4 * shape->sequences * shape->heads * p->seq_q, &block, e);
    }
    c.lse = block;
    c.workspace = r.at;
    c.workspace_B = r.left_B;
    status = status == MF_OK ? library(q, &c, e) : status;
    return status == MF_OK && turns ? turn_lse(q, shape, &a->s, p, a->a.lse, block, true, e)
                                    : status;
}

mf_status mf_attention_by_parts(mf_queue *q, const mf_device_attention *a, mf_attention_fn library,
                                mf_err *e) {
    mf_attention_part part[MF_ATTENTION_PARTS];
    const int parts = mf_attention_parts(&a->s, part);
    mf_status status = check(&a->a.shape, &a->s, e);
    if (status == MF_OK && parts == 1 && part[0].first_q > 0) {
        status = clear_unseen(q, a, &part[0], e);
    }
    for (int i = 0; i < parts && status == MF_OK; i++) {
        for (int64_t from = 0; from < part[i].seq_q && status == MF_OK;) {
            const mf_attention_part piece = piece_of(&a->a.shape, &part[i], from);
            status = forward_part(q, a, &piece, library, e);
            from += piece.seq_q;
        }
    }
    return status;
}

/* --- backward ------------------------------------------------------------------------------------
 */

/* to += from, for `rows` rows of each sequence, which begin `apart` rows apart; cols of `row`
 * elements.
 */
static mf_status add_rows(mf_queue *q, const mf_kernel_attention_shape *a, int64_t rows,
                          int64_t apart, int64_t cols, int64_t row, const void *from, void *to,
                          mf_err *e) {
    const bool together = rows == apart;
    mf_status status = MF_OK;
    for (int64_t i = 0; i < (together ? 1 : a->sequences) && status == MF_OK; i++) {
        const mf_kernel_copy_rows c = {.dtype = a->dtype,
                                       .rows = together ? rows * a->sequences : rows,
                                       .cols = cols,
                                       .src_stride = row,
                                       .dst_stride = row,
                                       .accumulate = true,
                                       .src = row_of(a, from, i * apart, row),
                                       .dst = row_of(a, to, i * apart, row)};
        status = q->device->ops->copy_rows(q, &c, e);
    }
    return status;
}

/* Computes a block's gradients into the workspace and adds them from there. */
static mf_status add_block(mf_queue *q, const mf_kernel_attention_shape *s,
                           const mf_attention_call *c, void *dq, void *dk, void *dv, mf_err *e) {
    mf_status status =
        add_rows(q, s, c->seq_q, c->rows_q, s->heads * s->qk_dim, s->q_row, c->dq, dq, e);
    if (status == MF_OK) {
        status =
            add_rows(q, s, c->seq_k, c->rows_k, s->kv_heads * s->qk_dim, s->k_row, c->dk, dk, e);
    }
    return status == MF_OK
               ? add_rows(q, s, c->seq_k, c->rows_k, s->kv_heads * s->v_dim, s->v_row, c->dv, dv, e)
               : status;
}

static mf_status backward_part(mf_queue *q, const mf_device_attention_grad *a,
                               const mf_attention_part *p, mf_attention_fn library, mf_err *e) {
    const mf_kernel_attention_shape *s = &a->a.shape;
    const int64_t element_B = (int64_t)mf_kernel_dtype_B(s->dtype);
    const int64_t rows_q = s->sequences * a->s.seq_q, rows_k = s->sequences * a->s.seq_k;
    workspace_parts r = {a->a.workspace, a->workspace_B};
    mf_attention_call c = call_of(s, &a->s, p, a->a.q, a->a.k, a->a.v, a->a.o);
    void *dq = row_of(s, a->a.dq, p->first_q, s->q_row);
    void *dk = row_of(s, a->a.dk, p->first_k, s->k_row);
    void *dv = row_of(s, a->a.dv, p->first_k, s->v_row);
    void *lse = (float *)(uintptr_t)a->a.lse;
    const bool turns = turns_lse(s, &a->s, p);
    mf_status status = MF_OK;
    c.d_o = row_of(s, a->a.d_o, p->first_q, s->o_row);
    c.dsink = a->a.dsink;
    c.keeps = a->keeps;
    c.dq = dq;
    c.dk = dk;
    c.dv = dv;
    if (a->a.accumulate) {
        status = take(&r, rows_q * s->q_row * element_B, &c.dq, e);
        status = status == MF_OK ? take(&r, rows_k * s->k_row * element_B, &c.dk, e) : status;
        status = status == MF_OK ? take(&r, rows_k * s->v_row * element_B, &c.dv, e) : status;
    }
    if (status == MF_OK && !turns) {
        lse = lse_of(s, p, lse);
    } else if (status == MF_OK) {
        void *all = lse;
        status = take(&r, 4 * s->sequences * s->heads * p->seq_q, &lse, e);
        status = status == MF_OK ? turn_lse(q, s, &a->s, p, all, lse, false, e) : status;
    }
    c.lse = lse;
    c.workspace = r.at;
    c.workspace_B = r.left_B;
    status = status == MF_OK ? library(q, &c, e) : status;
    return status == MF_OK && a->a.accumulate ? add_block(q, s, &c, dq, dk, dv, e) : status;
}

mf_status mf_attention_grad_by_parts(mf_queue *q, const mf_device_attention_grad *a,
                                     mf_attention_fn library, mf_err *e) {
    mf_attention_part part[MF_ATTENTION_PARTS];
    const int parts = mf_attention_parts(&a->s, part);
    mf_status status = check(&a->a.shape, &a->s, e);
    assert(a->a.accumulate || a->s.keys == MF_KEYS_OWN);
    for (int i = 0; i < parts && status == MF_OK; i++) {
        for (int64_t from = 0; from < part[i].seq_q && status == MF_OK;) {
            const mf_attention_part piece = piece_of(&a->a.shape, &part[i], from);
            status = backward_part(q, a, &piece, library, e);
            from += piece.seq_q;
        }
    }
    return status;
}
