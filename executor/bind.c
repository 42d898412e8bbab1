/* bind.c - what running a block's ops needs to know beside the ops: operands, weights, places. */
#include "executor/exec.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* --- what a block's ops need to know ------------------------------------------------------------
 */

static bool is_gather_mark(const mf_block *b, int16_t t) {
    return b->tensors[t].class == MF_TENSOR_WEIGHT && b->tensors[t].part == UINT8_MAX &&
           strncmp(b->tensors[t].name, "gather_", 7) == 0;
}

static int without_marks(const mf_block *b, const mf_op *op) {
    int nin = op->nin;
    while (nin > 0 && is_gather_mark(b, op->in[nin - 1])) {
        nin--;
    }
    return nin;
}

/* Operands that are not partial sums (core/program.h lists them); 0: all of them. */
static int operands_of(const mf_op *op, const mf_op *forward, int forward_nin) {
    static const int8_t operands[MF_OP_COUNT] = {
        [MF_OP_GEMM] = 2,       [MF_OP_GROUPED_GEMM] = 3,   [MF_OP_RMSNORM_BWD] = 3,
        [MF_OP_GATE_BWD] = 3,   [MF_OP_ROPE_BWD] = 3,       [MF_OP_ATTENTION_BWD] = 6,
        [MF_OP_UNPERMUTE] = 3,  [MF_OP_PERMUTE] = 2,        [MF_OP_COMBINE] = 4,
        [MF_OP_DISPATCH] = 3,   [MF_OP_REDUCE_SCATTER] = 1, [MF_OP_ALL_GATHER] = 1,
        [MF_OP_ALL_TO_ALL] = 1, [MF_OP_SEND_RECV] = 1,      [MF_OP_SPLIT] = 1,
    };
    if (op->pass == MF_PASS_F || op->pass == MF_PASS_R) {
        return op->nin;
    }
    if (op->kind == MF_OP_SWIGLU_BWD) {
        return 1 + forward_nin;
    }
    if (op->kind == MF_OP_RMSNORM_BWD && forward_nin > 2) {
        return 4;
    }
    if (op->kind == MF_OP_BIAS_BWD && op->pass == MF_PASS_B) {
        return 2;
    }
    if (op->kind == MF_OP_ROUTER_BWD) {
        return forward->nout > 2 ? 4 : 3;
    }
    if (op->kind == MF_OP_REDUCE_SCATTER && forward->nout > 1) {
        return 2;
    }
    if (op->kind == MF_OP_SPLIT && forward->nout > 1) {
        return forward->nout;
    }
    return operands[op->kind] > 0 ? operands[op->kind] : op->nin;
}

static bool writes(const mf_op *op, int16_t t) {
    for (int k = 0; k < op->nout; k++) {
        if (op->out[k] == t) {
            return true;
        }
    }
    return false;
}

/* Partial sums follow the operands in the order of the outputs that they belong to. Where some
 * outputs have none, the names tell. */
static void bind_sums(const mf_block *b, const mf_op *op, int operands, int nin, op_bind *out) {
    int sums = nin - operands, eligible = 0, next = operands;
    for (int k = 0; k < op->nout; k++) {
        out->sum_of[k] = -1;
        eligible += b->tensors[op->out[k]].class != MF_TENSOR_GRADIENT;
    }
    for (int k = 0; k < op->nout && next < nin; k++) {
        const mf_tensor *t = &b->tensors[op->out[k]];
        if (t->class != MF_TENSOR_GRADIENT &&
            (sums == eligible || strcmp(b->tensors[op->in[next]].name, t->name) == 0)) {
            out->sum_of[k] = (int16_t)next++;
        }
    }
    assert(next == nin);
}

static void bind_one(const mf_block *b, int i, op_bind *out) {
    const mf_op *op = &b->ops[i];
    const mf_op *forward = op->forward >= 0 ? &b->ops[op->forward] : op;
    int nin = without_marks(b, op);
    out->forward_nin = (int16_t)without_marks(b, forward);
    int operands = operands_of(op, forward, out->forward_nin);
    operands = operands < nin ? operands : nin;
    out->nin = (int16_t)operands;
    bind_sums(b, op, operands, nin, out);
    for (int k = 0; k < op->nout; k++) {
        const mf_tensor *t = &b->tensors[op->out[k]];
        out->out_of[k] = (int16_t)k;
        for (int j = 0; op->pass == MF_PASS_R && j < forward->nout; j++) {
            if (strcmp(b->tensors[forward->out[j]].name, t->name) == 0) {
                out->out_of[k] = (int16_t)j;
            }
        }
        out->first[k] = true;
        for (int j = op->pass == MF_PASS_F ? 0 : b->nforward; j < i; j++) {
            if (writes(&b->ops[j], op->out[k])) {
                out->first[k] = false;
                out->adds[k] |= op->pass == MF_PASS_B && op->pieces > 1 &&
                                strcmp(b->ops[j].name, op->name) != 0;
            }
        }
    }
    int at = op->forward >= 0 ? op->forward : i;
    for (int j = 0; j < at; j++) {
        bool step = b->ops[j].kind == MF_OP_ATTENTION_FWD && mf_op_cut(&b->ops[j]) == MF_CUT_NONE;
        out->ring_step = (int16_t)(out->ring_step + step);
    }
}

static int16_t find_named(const mf_block *b, const char *name, int to) {
    for (int t = 0; t < to; t++) {
        if (strcmp(b->tensors[t].name, name) == 0) {
            return (int16_t)t;
        }
    }
    return -1;
}

/* Copies come back in the order in which they left. */
static void bind_copies(const mf_block *b, block_bind *out) {
    int64_t there = 0, back = 0;
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        if (op->kind == MF_OP_COPY_D2H) {
            out->host_at[i] = there;
            there += mf_align_B(b->tensors[op->in[0]].bytes);
        } else if (op->kind == MF_OP_COPY_H2D) {
            out->host_at[i] = back;
            back += mf_align_B(b->tensors[op->out[0]].bytes);
        }
    }
    assert(there == b->offload_B && back == b->offload_B);
}

static mf_status bind_block(const mf_block *b, block_bind *out, mf_err *e) {
    out->op = calloc((size_t)b->nops + 1, sizeof *out->op);
    out->host_at = calloc((size_t)b->nops + 1, sizeof *out->host_at);
    out->weight_of = calloc((size_t)b->ntensors + 1, sizeof *out->weight_of);
    if (!out->op || !out->host_at || !out->weight_of) {
        return mf_err_set(e, MF_NOMEM, "executor: out of memory");
    }
    for (int i = 0; i < b->nops; i++) {
        bind_one(b, i, &out->op[i]);
    }
    bind_copies(b, out);
    for (int16_t t = 0; t < b->ntensors; t++) {
        out->weight_of[t] = -1;
    }
    for (int16_t t = 0; t < b->ntensors; t++) {
        if (b->tensors[t].class == MF_TENSOR_WEIGHT && b->tensors[t].grad >= 0) {
            out->weight_of[b->tensors[t].grad] = t;
        }
    }
    out->input = find_named(b, "input", b->ntensors);
    out->output_gradient = find_named(b, "output_gradient", b->ntensors);
    out->output = -1;
    for (int16_t t = 0; t < b->ntensors; t++) {
        if (b->tensors[t].class == MF_TENSOR_BOUNDARY && b->tensors[t].producer >= 0 &&
            b->tensors[t].producer < b->nforward && t != out->input) {
            out->output = t;
        }
    }
    out->input_gradient = out->input >= 0 ? b->tensors[out->input].grad : (int16_t)-1;
    return MF_OK;
}

/* --- what this executor does not do yet ----------------------------------------------------------
 */

static mf_status refuse(const mf_exec *x, mf_err *e) {
    const mf_layout *l = &x->p->layout;
    const mf_model *m = &x->p->model;
    const char *what = NULL;
    what = l->precision != MF_PREC_FP32 && l->precision != MF_PREC_BF16
               ? "precisions other than fp32 and bf16"
               : what;
    what = l->grads_bf16 ? "gradients in bf16 (grad_dtype)" : what;
    what = m->rope_scaling.kind == MF_ROPE_OTHER ? "this rope_scaling" : what;
    for (int i = 0; i < x->p->nblocks && what == NULL; i++) {
        for (int k = 0; k < x->p->blocks[i]->nops; k++) {
            if (x->backend->run[x->p->blocks[i]->ops[k].kind] == NULL) {
                what = mf_op_text((mf_op_kind)x->p->blocks[i]->ops[k].kind);
            }
        }
    }
    return what == NULL ? MF_OK
                        : mf_err_set(e, MF_INFEASIBLE, "the %s backend does not run %s yet",
                                     x->backend->name, what);
}

/* --- positions -----------------------------------------------------------------------------------
 */

static mf_status bind_position(mf_exec *x, int i, mf_err *e) {
    position_bind *q = &x->positions[i];
    q->block = x->p->blocks[x->p->block_of[i]];
    q->bind = &x->blocks[x->p->block_of[i]];
    q->param = calloc((size_t)q->block->ntensors + 1, sizeof *q->param);
    q->inner = calloc((size_t)q->block->ntensors + 1, sizeof *q->inner);
    if (q->param == NULL || q->inner == NULL) {
        return mf_err_set(e, MF_NOMEM, "executor: out of memory");
    }
    q->own[0] = q->block->params.dense;
    q->own[1] = q->block->params.expert;
    int64_t at[2] = {0, 0}, shared = q->own[0];
    for (int16_t t = 0; t < q->block->ntensors; t++) {
        const mf_tensor *w = &q->block->tensors[t];
        bool weight = w->class == MF_TENSOR_WEIGHT && !is_gather_mark(q->block, t);
        q->param[t] = weight ? mf_params_find(&x->params, x->p, i, t) : -1;
        if (weight) {
            int64_t *end = w->part == UINT8_MAX ? &shared : &at[w->part == MF_PART_EXPERT];
            q->inner[t] = *end;
            *end += w->rows * w->cols;
        }
    }
    return MF_OK;
}

mf_status mf_exec_bind(mf_exec *x, mf_err *e) {
    const mf_program *p = x->p;
    mf_status status = refuse(x, e);
    if (status != MF_OK) {
        return status;
    }
    x->blocks = calloc((size_t)p->nblocks, sizeof *x->blocks);
    x->positions = calloc((size_t)p->assignment.positions, sizeof *x->positions);
    if (x->blocks == NULL || x->positions == NULL) {
        return mf_err_set(e, MF_NOMEM, "executor: out of memory");
    }
    status = mf_params_list(p, x->stage, &x->params, e);
    for (int i = 0; i < p->nblocks && status == MF_OK; i++) {
        status = bind_block(p->blocks[i], &x->blocks[i], e);
    }
    for (int i = 0; i < p->assignment.positions && status == MF_OK; i++) {
        if (mf_program_stage_of(p, i) == x->stage) {
            status = bind_position(x, i, e);
        }
    }
    return status == MF_OK ? mf_exec_lay_out(x, e) : status;
}

void mf_exec_unbind(mf_exec *x) {
    for (int i = 0; x->blocks != NULL && i < x->p->nblocks; i++) {
        free(x->blocks[i].op);
        free(x->blocks[i].host_at);
        free(x->blocks[i].weight_of);
    }
    for (int i = 0; x->positions != NULL && i < x->p->assignment.positions; i++) {
        free(x->positions[i].param);
        free(x->positions[i].inner);
    }
    free(x->blocks);
    free(x->positions);
    mf_params_clear(&x->params);
    mf_places_destroy(x->places);
    free(x->mail);
    free(x->arena);
}
