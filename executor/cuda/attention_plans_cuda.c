/* attention_plans_cuda.c - attention through cuDNN, one plan for each shape that a program has. */
#include "executor/cuda/device_cuda.h"

#include "core/program/scratch.h"
#include "executor/device/attention_parts.h"
#include "kernels/attention/attention_cuda.h"

#include <stdlib.h>
#include <string.h>

typedef struct plan {
    mf_attention_cuda_shape shape;
    mf_attention_cuda *attention;
} plan;

struct mf_cuda_attentions {
    void *library;
    void *workspace; /* of forward passes */
    size_t workspace_B;
    plan *list;
    int count, allocated;
};

mf_status mf_cuda_attentions_open(mf_cuda_attentions **out, mf_err *e) {
    *out = calloc(1, sizeof **out);
    return *out == NULL ? mf_err_set(e, MF_NOMEM, "attention: out of memory")
                        : mf_attention_cuda_library_open(&(*out)->library, e);
}

void mf_cuda_attentions_close(mf_cuda_attentions *p) {
    if (p == NULL) {
        return;
    }
    for (int i = 0; i < p->count; i++) {
        mf_attention_cuda_destroy(p->list[i].attention);
    }
    mf_attention_cuda_library_close(p->library);
    if (p->workspace != NULL) {
        (void)cudaFree(p->workspace);
    }
    free(p->list);
    free(p);
}

static mf_attention_strides strides(int64_t rows, int64_t row, int64_t head) {
    return (mf_attention_strides){.batch = rows * row, .row = row, .head = head};
}

static void shape_of(const mf_attention_call *c, bool backward, bool fixed,
                     mf_attention_cuda_shape *out) {
    const mf_kernel_attention_shape *a = c->shape;
    memset(out, 0, sizeof *out); /* shapes compare as bytes */
    out->batch = a->sequences;
    out->heads = a->heads;
    out->kv_heads = a->kv_heads;
    out->seq_q = c->seq_q;
    out->seq_k = c->seq_k;
    out->qk_dim = a->qk_dim;
    out->v_dim = a->v_dim;
    out->q = strides(c->rows_q, a->q_row, a->q_head);
    out->k = strides(c->rows_k, a->k_row, a->k_head);
    out->v = strides(c->rows_k, a->v_row, a->v_head);
    out->o = strides(c->rows_q, a->o_row, a->o_head);
    out->scale = a->scale;
    out->causal = c->causal;
    out->window = c->causal && !a->chunked ? a->window : 0;
    out->sink = a->sink != NULL;
    out->backward = backward;
    out->fixed = fixed;
    out->general = !c->keeps;
    out->pieces = c->keeps            ? mf_attention_kept_groups(a->sequences, a->heads, c->seq_q)
                  : fixed && backward ? mf_attention_ordered_pieces(a->sequences, a->heads,
                                                                    a->kv_heads, c->seq_q, c->seq_k)
                                      : 1;
}

static plan *find(const mf_cuda_attentions *p, const mf_attention_cuda_shape *s) {
    for (int i = 0; i < p->count; i++) {
        if (memcmp(&p->list[i].shape, s, sizeof *s) == 0) {
            return &p->list[i];
        }
    }
    return NULL;
}

/* Forward passes share a workspace, which grows while the device prepares. */
static mf_status grow(mf_cuda_attentions *p, size_t need_B, mf_err *e) {
    if (need_B <= p->workspace_B) {
        return MF_OK;
    }
    if (p->workspace != NULL) {
        (void)cudaFree(p->workspace);
    }
    p->workspace = NULL;
    if (cudaMalloc(&p->workspace, need_B) != cudaSuccess) {
        return mf_err_set(e, MF_NOMEM, "attention: no %zu bytes of workspace", need_B);
    }
    p->workspace_B = need_B;
    return MF_OK;
}

static mf_status make(mf_cuda_attentions *p, const mf_attention_cuda_shape *s, mf_err *e) {
    if (p->count == p->allocated) {
        int allocated = 2 * p->allocated + 8;
        plan *list = realloc(p->list, (size_t)allocated * sizeof *list);
        if (list == NULL) {
            return mf_err_set(e, MF_NOMEM, "attention: out of memory");
        }
        p->list = list;
        p->allocated = allocated;
    }
    plan *made = &p->list[p->count];
    made->shape = *s;
    mf_status status = mf_attention_cuda_create(p->library, s, &made->attention, e);
    p->count += status == MF_OK;
    if (status == MF_OK && !s->backward) {
        status = grow(p, mf_attention_cuda_workspace_B(made->attention), e);
    }
    return status;
}

/* The plan of a shape; made while the device prepares. */
static mf_status plan_for(mf_queue *q, const mf_attention_cuda_shape *s, plan **out, mf_err *e) {
    mf_cuda_attentions *p = mf_cuda_of(q->device)->attentions;
    mf_status status = MF_OK;
    *out = find(p, s);
    if (*out == NULL && mf_cuda_preparing(q)) {
        status = make(p, s, e);
        *out = find(p, s);
    }
    return *out == NULL && status == MF_OK
               ? mf_err_set(e, MF_INTERNAL, "an attention of this shape was not prepared")
               : status;
}

static mf_status forward(mf_queue *q, const mf_attention_call *c, mf_err *e) {
    mf_attention_cuda_shape s;
    plan *known = NULL;
    shape_of(c, false, mf_cuda_of(q->device)->fixed, &s);
    mf_status status = plan_for(q, &s, &known, e);
    if (status != MF_OK || mf_cuda_preparing(q)) {
        return status;
    }
    const mf_attention_cuda_data d = {.q = c->q,
                                      .k = c->k,
                                      .v = c->v,
                                      .sink = c->shape->sink,
                                      .o = c->o,
                                      .lse = c->lse,
                                      .workspace = mf_cuda_of(q->device)->attentions->workspace};
    return mf_attention_cuda_run(known->attention, &d, q->stream, e);
}

/* Gradients of sinks are written by cuDNN and added to by the program: through the workspace's end.
 */
static mf_status backward(mf_queue *q, const mf_attention_call *c, mf_err *e) {
    mf_attention_cuda_shape s;
    plan *known = NULL;
    shape_of(c, true, mf_cuda_of(q->device)->fixed, &s);
    mf_status status = plan_for(q, &s, &known, e);
    if (status != MF_OK) {
        return status;
    }
    const size_t sink_B = c->shape->sink != NULL ? (size_t)mf_align_B(4 * c->shape->heads) : 0;
    const size_t need_B =
        (size_t)mf_align_B((int64_t)mf_attention_cuda_workspace_B(known->attention));
    if (need_B + sink_B > c->workspace_B) {
        return mf_err_set(e, MF_INTERNAL,
                          "attention's gradient needs %zu bytes of workspace, %zu are planned",
                          need_B + sink_B, c->workspace_B);
    }
    if (mf_cuda_preparing(q)) {
        return MF_OK;
    }
    float *dsink = sink_B > 0 ? (float *)(void *)((char *)c->workspace + need_B) : NULL;
    const mf_attention_cuda_data d = {.q = c->q,
                                      .k = c->k,
                                      .v = c->v,
                                      .sink = c->shape->sink,
                                      .o = c->o,
                                      .lse = c->lse,
                                      .d_o = c->d_o,
                                      .dq = c->dq,
                                      .dk = c->dk,
                                      .dv = c->dv,
                                      .dsink = dsink,
                                      .workspace = c->workspace};
    status = mf_attention_cuda_run(known->attention, &d, q->stream, e);
    if (status != MF_OK || c->dsink == NULL) {
        return status;
    }
    const mf_kernel_cast add = {
        .count = c->shape->heads, .alpha = 1.0f, .accumulate = true, .src = dsink, .dst = c->dsink};
    return mf_kernel_cast_values_cuda(&add, q->stream, e);
}

mf_status mf_cuda_attention(mf_queue *q, const mf_device_attention *a, mf_err *e) {
    return mf_attention_by_parts(q, a, forward, e);
}

mf_status mf_cuda_attention_grad(mf_queue *q, const mf_device_attention_grad *a, mf_err *e) {
    return mf_attention_grad_by_parts(q, a, backward, e);
}
