/* bind.c - what running a block's ops needs to know beside the ops: operands, weights, places. */
#include "executor/step/exec.h"

#include <assert.h>
#include <stdlib.h>

/* --- what a block's ops need to know ------------------------------------------------------------
 */

static int without_marks(const mf_op *op) {
    return op->nin - op->marks;
}

static bool writes(const mf_op *op, int16_t t) {
    for (int k = 0; k < op->nout; k++) {
        if (op->out[k] == t) {
            return true;
        }
    }
    return false;
}

static const mf_op *forward_of(const mf_block *b, const mf_op *op) {
    return op->forward >= 0 ? &b->ops[op->forward] : op;
}

/* Partial sums come after the operands, in the order of their outputs; nin counts operands only. */
static void bind_inputs(const mf_op *op, op_bind *out) {
    int next = without_marks(op);
    for (int k = op->nout - 1; k >= 0; k--) {
        out->sum_of[k] = (int16_t)(op->sums >> k & 1 ? --next : -1);
    }
    out->nin = (int16_t)next;
}

/* Output k: what wrote it before in these passes. Pieces of one op write slices of their own; those
 * of another add to them. */
static void bind_writers(const mf_block *b, int i, int k, op_bind *out) {
    const mf_op *op = &b->ops[i];
    bool slice = op->pass == MF_PASS_B && op->pieces > 1;
    out->first[k] = true;
    for (int j = op->pass == MF_PASS_F ? 0 : b->nforward; j < i; j++) {
        if (writes(&b->ops[j], op->out[k])) {
            out->first[k] = false;
            out->adds[k] |= slice && forward_of(b, &b->ops[j])->out[0] != forward_of(b, op)->out[0];
        }
    }
}

static void bind_one(const mf_block *b, int i, op_bind *out) {
    const mf_op *op = &b->ops[i];
    out->forward_nin = (int16_t)without_marks(forward_of(b, op));
    bind_inputs(op, out);
    for (int k = 0, of = 0; k < op->nout; k++, of++) {
        while (op->pass == MF_PASS_R && !(op->makes >> of & 1)) {
            of++;
        }
        out->out_of[k] = (int16_t)of;
        bind_writers(b, i, k, out);
    }
    int at = op->forward >= 0 ? op->forward : i;
    for (int j = 0; j < at; j++) {
        bool step =
            b->ops[j].kind == MF_OP_ATTENTION_FWD && mf_op_split_axis(&b->ops[j]) == MF_SPLIT_NONE;
        out->ring_step = (int16_t)(out->ring_step + step);
    }
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
    out->input = b->input;
    out->output = b->output;
    out->output_gradient = b->output_gradient;
    out->input_gradient = b->input_gradient;
    return MF_OK;
}

/* --- what this executor does not do yet ----------------------------------------------------------
 */

/* Are there layers whose K and V heads stand on different numbers of TP ranks, each on several? */
static bool differs_in_copies(const mf_model *m, const mf_layout *l) {
    int64_t copies = 1;
    bool differs = false;
    for (int i = 0; i < m->classes && m->attn == MF_ATTN_GQA; i++) {
        int64_t own = l->tp / mf_model_kv_heads(m, &m->layer_classes[i]);
        differs |= own > 1 && copies > 1 && own != copies;
        copies = own > copies ? own : copies;
    }
    return differs;
}

_Static_assert(MF_MODEL_MOST_EXPERTS_RUN == MF_ROUTE_MAX_EXPERTS &&
                   MF_MODEL_MOST_CHOICES_RUN == MF_ROUTE_MAX_TOPK,
               "a model that is said to run has no more experts and choices than a router takes");

const char *mf_exec_lacks(const mf_program *p, const mf_device_ops *ops) {
    const mf_layout *l = &p->layout;
    const mf_model *m = &p->model;
    const char *what = ops->on_host ? mf_model_not_executed(m) : mf_model_not_on_gpu(m);
    if (what == NULL) {
        what = differs_in_copies(m, l) ? "more TP than KV heads in layers of two kinds"
                                       : mf_layout_not_executed(l, ops->mixed);
    }
    for (int i = 0; i < p->nblocks && what == NULL; i++) {
        for (int k = 0; k < p->blocks[i]->nops && what == NULL; k++) {
            what = mf_exec_op_lacks(&p->blocks[i]->ops[k]);
        }
    }
    return what;
}

static mf_status refuse(const mf_exec *x, mf_err *e) {
    const char *what = mf_exec_lacks(x->p, x->device->ops);
    return what == NULL ? MF_OK
                        : mf_err_set(e, MF_INFEASIBLE, "the %s backend does not run %s yet",
                                     x->device->ops->name, what);
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
        bool weight = w->class == MF_TENSOR_WEIGHT && !w->gather_mark;
        q->param[t] = weight ? mf_params_find(&x->params, x->p, i, t) : -1;
        if (weight) {
            int64_t *end = w->part == UINT8_MAX ? &shared : &at[w->part == MF_PART_EXPERT];
            q->inner[t] = *end;
            *end += w->rows * w->cols;
        }
    }
    return MF_OK;
}

/* Does another position of this stage hold the parameter as well: a tied table, one of MTP depths?
 */
static bool is_shared(const mf_exec *x, const mf_param *q) {
    const ptrdiff_t index = q - x->params.list;
    for (int i = 0; i < x->p->assignment.positions; i++) {
        const position_bind *other = &x->positions[i];
        for (int16_t t = 0; i != q->position && other->block && t < other->block->ntensors; t++) {
            if (other->param[t] == index) {
                return true;
            }
        }
    }
    return false;
}

/* Is a gradient written whole by the first op of its block that writes it, and by its block alone?
 * Then it need not be cleared before: a step, or a block whose gradients are reduced behind it. */
static bool is_overwritten(const mf_exec *x, const mf_param *q) {
    const mf_block *b = x->p->blocks[x->p->block_of[q->position]];
    const int16_t gradient = b->tensors[q->tensor].grad;
    if (q->shared || gradient < 0 || b->tensors[gradient].for_w) {
        return false;
    }
    for (int i = b->nforward; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        if (writes(op, gradient)) {
            return mf_exec_op_overwrites(op) && op->pieces <= 1 && op->out[0] == gradient;
        }
    }
    return false;
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
    for (int i = 0; i < x->params.count && status == MF_OK; i++) {
        x->params.list[i].shared = is_shared(x, &x->params.list[i]);
        x->params.list[i].overwritten = is_overwritten(x, &x->params.list[i]);
    }
    status = status == MF_OK ? mf_exec_window_open(x, e) : status;
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
    x->device->ops->release(x->device, x->arena);
    x->device->ops->release_host(x->device, x->pinned);
}
