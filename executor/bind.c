/* bind.c - from tensors of a program to addresses of a rank's arena. */
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

/* Operands that are not partial sums (core/program.h lists them); 0: all of them. */
static int operands_of(const mf_op *op, const mf_op *forward) {
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
        return 1 + forward->nin;
    }
    if (op->kind == MF_OP_RMSNORM_BWD && forward->nin > 2) {
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
    int nin = op->nin;
    while (nin > 0 && is_gather_mark(b, op->in[nin - 1])) {
        nin--;
    }
    int operands = operands_of(op, forward);
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
        out->ring_step = (int16_t)(out->ring_step + (b->ops[j].kind == MF_OP_ATTENTION_FWD));
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

static mf_status bind_block(const mf_block *b, block_bind *out, mf_err *e) {
    out->op = calloc((size_t)b->nops + 1, sizeof *out->op);
    out->saved_at = calloc((size_t)b->ntensors + 1, sizeof *out->saved_at);
    out->weight_of = calloc((size_t)b->ntensors + 1, sizeof *out->weight_of);
    if (out->op == NULL || out->saved_at == NULL || out->weight_of == NULL) {
        return mf_err_set(e, MF_NOMEM, "executor: out of memory");
    }
    for (int i = 0; i < b->nops; i++) {
        bind_one(b, i, &out->op[i]);
    }
    int64_t at = 0;
    for (int16_t t = 0; t < b->ntensors; t++) {
        out->saved_at[t] = out->weight_of[t] = -1;
        if (b->tensors[t].class == MF_TENSOR_SAVED) {
            out->saved_at[t] = at;
            at += mf_align_B(b->tensors[t].bytes);
        }
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
    what = l->zero > 1 || l->expert_zero > 1 ? "ZeRO-2 and ZeRO-3" : what;
    what = l->schedule == MF_SCHED_ZB_H1 || l->schedule == MF_SCHED_ZB_V ||
                   l->schedule == MF_SCHED_MERGED
               ? "schedules that split or merge passes"
               : what;
    what = l->precision != MF_PREC_FP32 ? "precisions other than fp32" : what;
    what = l->moments_bf16 ? "BF16 moments" : what;
    what = m->rope_scaling.kind == MF_ROPE_OTHER ? "this rope_scaling" : what;
    what =
        l->cp > 1 && l->cp_type == MF_CP_HIERARCHICAL ? "hierarchical context parallelism" : what;
    for (int i = 0; i < x->p->assignment.positions; i++) {
        what = x->p->assignment.memory[i].offload ? "offloading" : what;
    }
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

/* --- slots ---------------------------------------------------------------------------------------
 */

/* A slot for each micro-batch in flight, the lowest free one first. */
static mf_status assign_slots(mf_exec *x, int64_t chunk, mf_err *e) {
    chunk_slots *c = &x->chunks[chunk];
    int64_t m = x->s->micro_batches;
    c->slot_of = calloc((size_t)m + 1, sizeof *c->slot_of);
    bool *busy = calloc((size_t)m + 1, sizeof *busy);
    if (c->slot_of == NULL || busy == NULL) {
        free(busy);
        return mf_err_set(e, MF_NOMEM, "executor: out of memory");
    }
    for (int64_t i = 0; i < x->s->count[x->stage]; i++) {
        const mf_event *ev = &x->s->events[x->stage][i];
        if (ev->chunk != chunk) {
            continue;
        }
        if (ev->pass == MF_EVENT_F) {
            int slot = 0;
            while (busy[slot]) {
                slot++;
            }
            busy[slot] = true;
            c->slot_of[ev->micro_batch] = slot;
            c->slots = slot + 1 > c->slots ? slot + 1 : c->slots;
        } else if (ev->pass == MF_EVENT_B) {
            busy[c->slot_of[ev->micro_batch]] = false;
        }
    }
    free(busy);
    return MF_OK;
}

static mf_status bind_positions(mf_exec *x, int64_t *workspace_B, mf_err *e) {
    const mf_layout *l = &x->p->layout;
    *workspace_B = 0;
    x->boundary_B = mf_align_B(l->mbs * l->seq / (l->tp * l->cp) * x->p->model.hidden * 4);
    for (int64_t chunk = 0; chunk < x->p->layout.vpp; chunk++) {
        int64_t v = mf_layout_vstage(&x->p->layout, x->stage, chunk);
        int64_t at = 0;
        for (int i = x->p->assignment.first[v]; i < x->p->assignment.first[v + 1]; i++) {
            position_bind *q = &x->positions[i];
            q->block = x->p->blocks[x->p->block_of[i]];
            q->bind = &x->blocks[x->p->block_of[i]];
            q->slot_at = at;
            at += q->block->saved_B;
            q->param = calloc((size_t)q->block->ntensors + 1, sizeof *q->param);
            if (q->param == NULL) {
                return mf_err_set(e, MF_NOMEM, "executor: out of memory");
            }
            for (int16_t t = 0; t < q->block->ntensors; t++) {
                bool weight =
                    q->block->tensors[t].class == MF_TENSOR_WEIGHT && !is_gather_mark(q->block, t);
                q->param[t] = weight ? mf_params_find(&x->params, x->p, i, t) : -1;
            }
            int64_t local = q->block->local_f_B > q->block->local_b_B ? q->block->local_f_B
                                                                      : q->block->local_b_B;
            *workspace_B = local > *workspace_B ? local : *workspace_B;
            x->overlaid_B = at + local > x->overlaid_B ? at + local : x->overlaid_B;
        }
        x->chunks[chunk].slot_B = at;
        mf_status status = assign_slots(x, chunk, e);
        if (status != MF_OK) {
            return status;
        }
    }
    return MF_OK;
}

/* --- the arena
 * ------------------------------------------------------------------------------------ */

static char *take(char **at, int64_t bytes) {
    char *here = *at;
    *at += bytes;
    return here;
}

static mf_status lay_out(mf_exec *x, int64_t workspace_B, mf_err *e) {
    const mf_layout *l = &x->p->layout;
    const int64_t total[2] = {x->params.dense, x->params.expert};
    const int64_t ranks[2] = {l->dp * l->cp, l->edp};
    const int level[2] = {l->zero, l->expert_zero};
    const int64_t place[2] = {mf_comm_group_rank(x->comm, MF_GROUP_DP_CP),
                              mf_comm_group_rank(x->comm, MF_GROUP_EDP)};
    int64_t state = 0, slots = 0;
    for (int h = 0; h < 2; h++) {
        int64_t shard = level[h] >= 1 ? (total[h] + ranks[h] - 1) / ranks[h] : total[h];
        x->owned_first[h] = level[h] >= 1 ? place[h] * shard : 0;
        x->owned_first[h] = x->owned_first[h] < total[h] ? x->owned_first[h] : total[h];
        int64_t left = total[h] - x->owned_first[h];
        x->owned_count[h] = left < shard ? left : shard;
        state += 4 * (2 * total[h] + 2 * shard);
    }
    for (int64_t c = 0; c < l->vpp; c++) {
        slots += x->chunks[c].slot_B * x->chunks[c].slots;
    }
    x->overlaid = l->vpp == 1 && x->chunks[0].slots == 1;
    if (x->overlaid) {
        slots = x->overlaid_B;
        workspace_B = 0;
    }
    int64_t padding = mf_align_B(state) - state;
    x->arena_B = state + slots + workspace_B + 2 * x->boundary_B;
    x->arena = aligned_alloc(MF_ALIGN_B, (size_t)mf_align_B(x->arena_B + padding) + MF_ALIGN_B);
    if (x->arena == NULL) {
        return mf_err_set(e, MF_NOMEM, "executor: no %lld bytes for the arena",
                          (long long)x->arena_B);
    }
    memset(x->arena, 0, (size_t)(x->arena_B + padding));
    char *at = x->arena;
    for (int h = 0; h < 2; h++) {
        x->weights[h] = (float *)(void *)take(&at, 4 * total[h]);
    }
    for (int h = 0; h < 2; h++) {
        x->gradients[h] = (float *)(void *)take(&at, 4 * total[h]);
    }
    for (int h = 0; h < 2; h++) {
        int64_t shard = level[h] >= 1 ? (total[h] + ranks[h] - 1) / ranks[h] : total[h];
        for (int k = 0; k < 2; k++) {
            x->moments[k][h] = (float *)(void *)take(&at, 4 * shard);
        }
    }
    at = x->arena + mf_align_B(at - x->arena);
    for (int64_t c = 0; c < l->vpp; c++) {
        x->chunks[c].base =
            take(&at, x->overlaid ? slots : x->chunks[c].slot_B * x->chunks[c].slots);
    }
    x->workspace = take(&at, workspace_B);
    x->boundary[0] = take(&at, x->boundary_B);
    x->boundary[1] = take(&at, x->boundary_B);
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
    x->chunks = calloc((size_t)p->layout.vpp, sizeof *x->chunks);
    if (x->blocks == NULL || x->positions == NULL || x->chunks == NULL) {
        return mf_err_set(e, MF_NOMEM, "executor: out of memory");
    }
    status = mf_params_list(p, x->stage, &x->params, e);
    for (int i = 0; i < p->nblocks && status == MF_OK; i++) {
        status = bind_block(p->blocks[i], &x->blocks[i], e);
    }
    int64_t workspace_B = 0;
    if (status == MF_OK) {
        status = bind_positions(x, &workspace_B, e);
    }
    return status == MF_OK ? lay_out(x, workspace_B, e) : status;
}

void mf_exec_unbind(mf_exec *x) {
    for (int i = 0; x->blocks != NULL && i < x->p->nblocks; i++) {
        free(x->blocks[i].op);
        free(x->blocks[i].saved_at);
        free(x->blocks[i].weight_of);
    }
    for (int i = 0; x->positions != NULL && i < x->p->assignment.positions; i++) {
        free(x->positions[i].param);
    }
    for (int64_t c = 0; x->chunks != NULL && c < x->p->layout.vpp; c++) {
        free(x->chunks[c].slot_of);
    }
    free(x->blocks);
    free(x->positions);
    free(x->chunks);
    mf_params_clear(&x->params);
    free(x->arena);
}

/* --- addresses
 * ------------------------------------------------------------------------------------ */

static char *slot_of(const mf_exec *x, int position, int64_t chunk, int micro_batch) {
    const chunk_slots *c = &x->chunks[chunk];
    return c->base + c->slot_of[micro_batch] * c->slot_B + x->positions[position].slot_at;
}

void *mf_exec_input(const mf_exec *x, int position, int64_t chunk, int micro_batch, void *buffer) {
    const block_bind *b = x->positions[position].bind;
    if (b->input >= 0 && b->saved_at[b->input] >= 0) {
        return slot_of(x, position, chunk, micro_batch) + b->saved_at[b->input];
    }
    return buffer;
}

static void *address(const mf_exec *x, int position, char *slot, int16_t t, const boundary_at *at) {
    const position_bind *q = &x->positions[position];
    const mf_tensor *b = &q->block->tensors[t];
    int param;
    switch ((mf_tensor_class)b->class) {
    case MF_TENSOR_WEIGHT:
        param = q->param[t];
        return param < 0 ? NULL
                         : x->weights[x->params.list[param].expert] + x->params.list[param].offset;
    case MF_TENSOR_GRADIENT:
        param = q->param[q->bind->weight_of[t]];
        return param < 0
                   ? NULL
                   : x->gradients[x->params.list[param].expert] + x->params.list[param].offset;
    case MF_TENSOR_SAVED:
        return slot + q->bind->saved_at[t];
    case MF_TENSOR_BOUNDARY:
        return t == q->bind->input             ? at->input
               : t == q->bind->output          ? at->output
               : t == q->bind->output_gradient ? at->output_gradient
                                               : at->input_gradient;
    case MF_TENSOR_LOCAL:
    case MF_TENSOR_HELD:
        break;
    }
    /* One slot: what later blocks will save is free while this block runs. */
    char *workspace = x->overlaid ? slot + q->block->saved_B : x->workspace;
    return workspace + b->offset_B;
}

static mf_exec_tensor operand(const mf_exec *x, int position, char *slot, int16_t t,
                              const boundary_at *at) {
    const mf_tensor *b = &x->positions[position].block->tensors[t];
    mf_exec_tensor out = {.data = address(x, position, slot, t, at),
                          .rows = b->rows,
                          .cols = b->cols,
                          .dtype = b->element_B < 4.0 ? MF_KERNEL_BF16 : MF_KERNEL_F32};
    out.rows_max = (int64_t)((double)b->bytes / ((double)b->cols * b->element_B));
    return out;
}

void mf_exec_bind_op(const mf_exec *x, int position, int64_t chunk, int micro_batch, int op_index,
                     const boundary_at *at, mf_exec_op *out) {
    const position_bind *q = &x->positions[position];
    const mf_op *op = &q->block->ops[op_index];
    const op_bind *bind = &q->bind->op[op_index];
    char *slot = slot_of(x, position, chunk, micro_batch);
    out->op = op;
    out->forward = op->forward >= 0 ? &q->block->ops[op->forward] : op;
    out->block = q->block;
    out->position = position;
    out->ring_step = bind->ring_step;
    out->nin = bind->nin;
    out->env = &x->env;
    for (int k = 0; k < bind->nin; k++) {
        out->in[k] = operand(x, position, slot, op->in[k], at);
    }
    for (int k = 0; k < op->nout; k++) {
        out->out[k] = operand(x, position, slot, op->out[k], at);
        out->sum[k] = (mf_exec_tensor){0};
        if (bind->sum_of[k] >= 0) {
            out->sum[k] = operand(x, position, slot, op->in[bind->sum_of[k]], at);
        } else if (bind->adds[k]) {
            out->sum[k] = out->out[k];
        }
        out->out_of[k] = bind->out_of[k];
        out->first[k] = bind->first[k];
    }
    for (int k = 0; k < out->forward->nin; k++) {
        int16_t t = out->forward->in[k];
        bool weight = q->block->tensors[t].class == MF_TENSOR_WEIGHT;
        out->weight[k] = weight ? operand(x, position, slot, t, at) : (mf_exec_tensor){0};
    }
}
