/* exec_record.h - a step of the CPU written down op by op: operands, what stood in the outputs
 * before, what stood there after; the gradients that the optimizer took. */
#ifndef MF_TESTS_GPU_EXEC_RECORD_H
#define MF_TESTS_GPU_EXEC_RECORD_H

#include "tests/gpu/exec_case.h"

typedef struct exec_entry {
    mf_op op; /* of the CPU's program */
    int position;
    const char *label; /* of the block; "" of pass O */
    char *in[MF_OP_MAX_IN], *sum[MF_OP_MAX_OUT], *before[MF_OP_MAX_OUT], *after[MF_OP_MAX_OUT];
    size_t in_B[MF_OP_MAX_IN], out_B[MF_OP_MAX_OUT];
    float *bias; /* [experts] of a router's choices; NULL */
} exec_entry;

typedef struct exec_record {
    exec_case *of;
    exec_entry *list;
    int count, allocated;
    char **gradient; /* [parameters] as the norm and the update read them */
} exec_record;

static inline size_t exec_tensor_B(const mf_exec_tensor *t) {
    return t->data == NULL ? 0 : (size_t)(t->rows_max * t->cols) * mf_kernel_dtype_B(t->dtype);
}

/* Which op it is, in words. */
static inline const char *exec_op_name(const exec_entry *t, char text[160]) {
    const char *pass = t->op.pass == MF_PASS_F   ? "F"
                       : t->op.pass == MF_PASS_R ? "R"
                       : t->op.pass == MF_PASS_B ? "B"
                       : t->op.pass == MF_PASS_W ? "W"
                                                 : "O";
    snprintf(text, 160, "position %d %s, %s %s (%s)", t->position, t->label, pass, t->op.name,
             mf_op_text((mf_op_kind)t->op.kind));
    return text;
}

static inline char *exec_kept(const void *data, size_t size_B) {
    char *p = exec_allocate(size_B);
    if (size_B > 0) {
        memcpy(p, data, size_B);
    }
    return p;
}

/* Is this the op before which all gradients stand? */
static inline bool exec_gradients_stand(const mf_op *op) {
    return op->pass == MF_PASS_O && op->step_end == MF_STEP_END_GRAD_NORM;
}

static inline void exec_keep_gradients(exec_record *r) {
    const mf_params *list = mf_exec_params(r->of->exec);
    r->gradient = exec_allocate((size_t)list->count * sizeof *r->gradient);
    for (int i = 0; i < list->count; i++) {
        int64_t first, count;
        const float *g = mf_exec_own_gradient(r->of->exec, i, &first, &count);
        r->gradient[i] = exec_kept(g, (size_t)count * sizeof *g);
    }
}

/* --- hooks, with the record as `user` -----------------------------------------------------------
 */

static inline void exec_record_before(void *user, const mf_exec_op *op) {
    exec_record *r = user;
    if (r->count == r->allocated) {
        r->allocated = 2 * r->allocated + 64;
        r->list = realloc(r->list, (size_t)r->allocated * sizeof *r->list);
        if (r->list == NULL) {
            printf("FATAL out of memory\n");
            exit(1);
        }
    }
    exec_entry *t = &r->list[r->count];
    *t = (exec_entry){.op = *op->op, .position = op->position, .label = ""};
    if (op->block == NULL) {
        if (exec_gradients_stand(op->op)) {
            exec_keep_gradients(r);
        }
        return;
    }
    t->label = op->block->label;
    for (int k = 0; k < op->nin; k++) {
        t->in_B[k] = exec_tensor_B(&op->in[k]);
        t->in[k] = exec_kept(op->in[k].data, t->in_B[k]);
    }
    for (int k = 0; k < op->op->nout; k++) {
        t->out_B[k] = exec_tensor_B(&op->out[k]);
        t->before[k] = exec_kept(op->out[k].data, t->out_B[k]);
        t->sum[k] = op->sum[k].data != NULL ? exec_kept(op->sum[k].data, t->out_B[k]) : NULL;
    }
    if (op->op->kind == MF_OP_ROUTER_FWD && op->env->correction_bias != NULL) {
        t->bias = (float *)(void *)exec_kept(op->env->correction_bias,
                                             (size_t)op->env->model->experts * sizeof *t->bias);
    }
}

static inline void exec_record_after(void *user, const mf_exec_op *op) {
    exec_record *r = user;
    exec_entry *t = &r->list[r->count++];
    for (int k = 0; op->block != NULL && k < op->op->nout; k++) {
        t->after[k] = exec_kept(op->out[k].data, t->out_B[k]);
    }
}

static inline void exec_record_clear(exec_record *r) {
    for (int i = 0; i < r->count; i++) {
        exec_entry *t = &r->list[i];
        for (int k = 0; k < MF_OP_MAX_IN; k++) {
            free(t->in[k]);
        }
        for (int k = 0; k < MF_OP_MAX_OUT; k++) {
            free(t->sum[k]);
            free(t->before[k]);
            free(t->after[k]);
        }
        free(t->bias);
    }
    for (int i = 0; r->gradient != NULL && i < mf_exec_params(r->of->exec)->count; i++) {
        free(r->gradient[i]);
    }
    free(r->gradient);
    free(r->list);
    *r = (exec_record){0};
}

/* --- statistics of attention --------------------------------------------------------------------
 */

/* Is operand (or output) k attention's log-sum-exp? The CPU keeps it as [heads, rows], rows sample
 * by sample; cuDNN as [samples, heads, rows of a sample], of attention inside chunks chunk by
 * chunk. */
static inline bool exec_is_lse(const mf_exec_op *x, bool output, int k) {
    return output ? x->op->kind == MF_OP_ATTENTION_FWD && x->out_of[k] == 1
                  : x->op->kind == MF_OP_ATTENTION_BWD && k == 4;
}

/* Into the GPU's order, or back into the CPU's. */
static inline void exec_turn_lse(const mf_exec_op *x, float *lse, size_t size_B, bool to_gpu) {
    const int64_t *dim = x->op->dim;
    int64_t samples = dim[MF_OP_DIM_BATCH], seq = dim[MF_OP_DIM_SEQ_Q],
            heads = dim[MF_OP_DIM_HEADS];
    int64_t window = dim[MF_OP_DIM_WINDOW];
    int64_t chunk = (x->op->flags & MF_OPF_CHUNKED) && window < seq ? window : seq;
    int64_t piece = samples * seq * heads, pieces = (int64_t)(size_B / sizeof *lse) / piece;
    float *from = (float *)(void *)exec_kept(lse, size_B);
    for (int64_t i = 0; i < pieces * piece; i++) {
        int64_t p = i / piece, h = i % piece / (samples * seq), b = i / seq % samples, s = i % seq;
        int64_t at = s / chunk * chunk, rows = seq - at < chunk ? seq - at : chunk;
        int64_t there = p * piece + samples * heads * at + (b * heads + h) * rows + s - at;
        lse[to_gpu ? there : i] = from[to_gpu ? i : there];
    }
    free(from);
}

/* --- host and device ----------------------------------------------------------------------------
 */

/* The CPU's bytes into operand or output k on the device. */
static inline void exec_upload(const mf_exec_op *x, const mf_exec_tensor *t, bool output, int k,
                               const char *bytes, size_t size_B) {
    mf_device *d = x->queue->device;
    if (d->ops->on_host || !exec_is_lse(x, output, k)) {
        exec_copy(d, t->data, bytes, size_B);
        return;
    }
    char *turned = exec_kept(bytes, size_B);
    exec_turn_lse(x, (float *)(void *)turned, size_B, true);
    exec_copy(d, t->data, turned, size_B);
    free(turned);
}

/* Operand or output k, in the CPU's order; to be freed. */
static inline char *exec_download(const mf_exec_op *x, const mf_exec_tensor *t, bool output,
                                  int k) {
    mf_device *d = x->queue->device;
    size_t size_B = exec_tensor_B(t);
    char *bytes = exec_allocate(size_B);
    exec_copy(d, bytes, t->data, size_B);
    if (!d->ops->on_host && exec_is_lse(x, output, k)) {
        exec_turn_lse(x, (float *)(void *)bytes, size_B, false);
    }
    return bytes;
}

#endif
