/* lower_block.c - one block from its key: sets the builder up, calls the forward author, derives
 * the backward, adds what ZeRO-2 and ZeRO-3 do inside a block, and merges pairs. */
#include "core/base/scratch.h"
#include "core/program/dispatch_memory.h"
#include "core/program/lower_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mf_block_key mf_block_key_layer(uint8_t layer_class, mf_memory_choice memory, bool split) {
    return (mf_block_key){.kind = MF_POS_LAYER,
                          .layer_class = layer_class,
                          .parts = MF_HALF_BOTH,
                          .split = split,
                          .memory = memory};
}

static void label(mf_block *b, const mf_model *m, const mf_block_key *key) {
    const mf_layer_class *c = &m->layer_classes[key->layer_class];
    char recompute[32];
    mf_recompute_format(key->memory.recompute, recompute, sizeof recompute);
    const char *ffn = c->ffn == MF_FFN_MOE ? "moe" : "dense";
    switch (key->kind) {
    case MF_POS_EMBEDDING:
        snprintf(b->label, sizeof b->label, "embedding");
        break;
    case MF_POS_LAYER:
    case MF_POS_MTP:
        snprintf(b->label, sizeof b->label, "%s%s%s %s%s%s%s",
                 key->kind == MF_POS_MTP ? "mtp" : "layer", key->after_depth ? " after mtp" : "",
                 key->before_depth ? " before mtp" : "", ffn, c->window ? " window" : "",
                 key->memory.recompute ? " recompute " : "",
                 key->memory.recompute ? recompute : "");
        break;
    case MF_POS_HEAD:
        snprintf(b->label, sizeof b->label, "head");
        break;
    }
}

/* --- ZeRO inside a block ---------------------------------------------------------------------- */

typedef struct zero_side {
    int level;
    mf_group_kind group;
    double elements; /* local, before ZeRO */
    const char *gather_name, *reduce_name;
    int16_t gather_op[2]; /* forward, backward; -1 = none */
} zero_side;

static int16_t emit_gather(mf_build *bd, const zero_side *side, uint8_t pass) {
    if (side->level < 3 || mf_layout_group(bd->l, side->group).size == 1) {
        return -1;
    }
    bd->pass = pass;
    bd->module = MF_MODULE_OPTIMIZER;
    bd->forward_op = -1;
    int16_t t = mf_build_tensor(bd, side->gather_name, 1, 1, 1.0);
    mf_build_t(bd, t)->class = MF_TENSOR_WEIGHT;
    mf_build_t(bd, t)->part = UINT8_MAX;
    mf_build_t(bd, t)->indices = true;
    mf_build_t(bd, t)->gather_mark = true;
    mf_op *op =
        mf_build_collective(bd, MF_OP_ALL_GATHER, side->gather_name, MF_STREAM_DP, side->group, 0);
    op->flags |= MF_OPF_PREFETCH;
    mf_op_out(op, t);
    return (int16_t)(bd->b->nops - 1);
}

static bool has_weight(const mf_build *bd, const mf_op *op, bool expert) {
    for (int k = 0; k < op->nin; k++) {
        const mf_tensor *w = &bd->b->tensors[op->in[k]];
        if (w->class == MF_TENSOR_WEIGHT && !w->indices && (w->part == MF_PART_EXPERT) == expert) {
            return true;
        }
    }
    return false;
}

/* An input gradient may read the weight of its forward op (norms, gates, sinks) although that is
 * not among its operands. */
static bool reads_weight(const mf_build *bd, const mf_op *op, bool expert) {
    bool of_forward = op->pass == MF_PASS_B && op->forward >= 0;
    return has_weight(bd, op, expert) ||
           (of_forward && has_weight(bd, &bd->b->ops[op->forward], expert));
}

/* After the last weight, sizes are known: gathers get their bytes, readers of weights wait for
 * them. */
static void finish_gathers(mf_build *bd, const zero_side *side, bool expert) {
    for (int half = 0; half < 2; half++) {
        if (side->gather_op[half] < 0 || bd->status != MF_OK) {
            continue;
        }
        mf_op *gather = &bd->b->ops[side->gather_op[half]];
        int16_t t = gather->out[0];
        mf_param_count used = bd->b->params;
        *(expert ? &used.expert : &used.dense) = (int64_t)side->elements;
        gather->bytes = mf_param_gathered_B(bd->l, used, expert);
        bd->b->tensors[t].bytes = (int64_t)gather->bytes;
        if (half == 0) {
            bd->b->gather_B += mf_align_B((int64_t)gather->bytes);
        }
        int first = half == 0 ? 0 : bd->b->nforward;
        int last = half == 0 ? bd->b->nforward : bd->b->nops;
        for (int i = first; i < last; i++) {
            mf_op *op = &bd->b->ops[i];
            if (reads_weight(bd, op, expert)) {
                const int before = op->nin;
                mf_op_in(op, t);
                op->marks = (uint8_t)(op->marks + op->nin - before);
            }
        }
    }
}

/* The gradient of a side's weight that the last of the ops of some passes writes, whichever of its
 * outputs it is; those before it are made earlier on the same stream. */
static int16_t last_gradient(const mf_build *bd, unsigned passes, bool expert) {
    const mf_block *b = bd->b;
    for (int i = b->nops - 1; i >= b->nforward; i--) {
        const mf_op *op = &b->ops[i];
        for (int k = 0; k < op->nout && (op->pass & passes) != 0; k++) {
            const mf_tensor *t = &b->tensors[op->out[k]];
            if (t->class == MF_TENSOR_GRADIENT && (t->part == MF_PART_EXPERT) == expert) {
                return op->out[k];
            }
        }
    }
    return MF_NO_TENSOR;
}

/* ZeRO-2 and -3 keep a shard of the gradient. It is reduced after every micro-batch, when all of it
 * is made: by the weight gradients, and by B on the side (norms, gates, sinks). */
static void emit_reduce(mf_build *bd, const zero_side *side, bool expert) {
    if (side->level < 2 || side->elements <= 0 || mf_layout_group(bd->l, side->group).size == 1) {
        return;
    }
    bd->pass = MF_PASS_W;
    bd->module = MF_MODULE_GRADIENTS;
    bd->forward_op = -1;
    mf_op *op = mf_build_collective(bd, MF_OP_REDUCE_SCATTER, side->reduce_name, MF_STREAM_DP,
                                    side->group, side->elements * mf_layout_gradient_B(bd->l));
    const int16_t last[2] = {last_gradient(bd, MF_PASS_W, expert),
                             last_gradient(bd, MF_PASS_BACKWARD, expert)};
    mf_op_in(op, last[0]);
    mf_op_in(op, last[1] != last[0] ? last[1] : MF_NO_TENSOR);
}

/* The weights that a block computes with: its own, and tables that another block holds. */
static void count_weights(const mf_build *bd, double *dense, double *expert) {
    *dense = *expert = 0;
    for (int t = 0; t < bd->b->ntensors; t++) {
        const mf_tensor *w = &bd->b->tensors[t];
        if (w->class == MF_TENSOR_WEIGHT && !w->indices) {
            *(w->part == MF_PART_EXPERT ? expert : dense) += (double)w->rows * (double)w->cols;
        }
    }
}

/* Bytes of copies of tokens in slots, sent or received. */
static int64_t copies_B(const mf_build *bd, const mf_op *op) {
    const int64_t come = mf_dispatch_arriving(bd->m, bd->l, op->dim[MF_OP_DIM_TOKENS]);
    return mf_align_B(bd->l->ep * mf_layout_slot_rows(bd->l, come) * op->dim[MF_OP_DIM_ROW_B]);
}

/* Bytes that a fused dispatcher keeps, shared by all layers: its window, or buffers for what is
 * sent and what arrives. Where a window is planned, the buffers are counted too, as ranks on one
 * GPU have no window. merged: under a schedule that merges passes, or another one. */
static int64_t dispatcher_buffers(const mf_build *bd, bool merged) {
    int64_t bytes = 0, window_B = 0;
    mf_layout l = *bd->l;
    l.schedule = merged ? MF_SCHED_MERGED : MF_SCHED_1F1B;
    if (l.dispatcher != MF_DISPATCH_FUSED) {
        return 0;
    }
    for (int i = 0; i < bd->b->nforward; i++) {
        const mf_op *op = &bd->b->ops[i];
        if (op->kind == MF_OP_DISPATCH || op->kind == MF_OP_COMBINE) {
            const mf_dispatch_memory memory = mf_dispatch_memory_of(&l, bd->c, bd->b, op);
            bytes += op->dim[MF_OP_DIM_ORDERED] > 0 ? copies_B(bd, op)
                                                    : mf_align_B(bd->b->tensors[op->out[0]].bytes);
            window_B =
                mf_dispatch_memory_B(&memory) > window_B ? mf_dispatch_memory_B(&memory) : window_B;
        }
    }
    return bytes > window_B ? bytes : window_B;
}

/* --- a block ---------------------------------------------------------------------------------- */

/* A lowered forward pass, before anything is derived from it. */
typedef struct forward_pass {
    mf_layout layout;
    mf_build bd;
    zero_side side[2];
    int sides;
} forward_pass;

static void clear_scratch(mf_build *bd) {
    free(bd->extra);
    free(bd->alias);
    mf_scratch_give(bd->first_producer);
    mf_scratch_give(bd->ring);
}

/* Of the key, `memory`, `split` and `unplaced` do not count. */
static mf_status lower_forward(forward_pass *f, const mf_model *m, const mf_layout *l,
                               const mf_cluster *c, const mf_block_key *key, mf_err *e) {
    f->layout = *l;
    l = &f->layout;
    f->bd = (mf_build){.m = m, .l = l, .c = c, .key = *key, .pass = MF_PASS_F, .forward_op = -1};
    mf_build *bd = &f->bd;
    zero_side *side = f->side;
    bd->b = calloc(1, sizeof *bd->b);
    if (bd->b == NULL) {
        return mf_err_set(e, MF_NOMEM, "lowering: out of memory");
    }
    bd->tokens_attn = l->mbs * (l->seq / l->cp);
    bd->tokens = bd->tokens_attn / l->tp;
    bd->act_B = l->precision == MF_PREC_FP32 ? 4.0 : 2.0;
    bd->math = mf_precision_math(l->precision);
    bd->quant_B = mf_precision_quantised_B(l->precision);
    bd->input = bd->output = MF_NO_TENSOR;
    side[0] =
        (zero_side){l->zero, MF_GROUP_DP_CP, 0, "gather_weights", "reduce_gradients", {-1, -1}};
    side[1] =
        (zero_side){l->expert_zero, MF_GROUP_EDP, 0, "gather_experts", "reduce_experts", {-1, -1}};
    bool ffn =
        key->kind == MF_POS_MTP || (key->kind == MF_POS_LAYER && (key->parts & MF_HALF_FFN) != 0);
    bool moe = ffn && m->layer_classes[key->layer_class].ffn == MF_FFN_MOE;
    f->sides = moe ? 2 : 1;
    for (int s = 0; s < f->sides; s++) {
        side[s].gather_op[0] = emit_gather(bd, &side[s], MF_PASS_F);
    }
    if (key->kind != MF_POS_EMBEDDING) {
        bd->drop = MF_RECOMPUTE_LAYER;
        int64_t states = key->after_depth ? 2 : 1;
        bd->input = mf_build_tensor(bd, "input", bd->tokens,
                                    states * mf_lower_streams(m) * m->hidden, bd->act_B);
        mf_build_t(bd, bd->input)->class = MF_TENSOR_BOUNDARY;
        mf_build_t(bd, bd->input)->offload = MF_OFFLOAD_INPUT;
    }
    static void (*const author[])(mf_build *) = {
        [MF_POS_EMBEDDING] = mf_lower_embedding,
        [MF_POS_LAYER] = mf_lower_layer,
        [MF_POS_MTP] = mf_lower_mtp,
        [MF_POS_HEAD] = mf_lower_head,
    };
    author[key->kind](bd);
    mf_lower_note_forward(bd);
    mf_build_sum_params(bd);
    count_weights(bd, &side[0].elements, &side[1].elements);
    return MF_OK;
}

/* Adds offloading and what ZeRO does behind the backward passes; frees the builder's scratch, and
 * the block on errors. */
static mf_status lower_rest(mf_build *bd, zero_side *side, int sides, mf_err *e) {
    if (bd->status == MF_OK) {
        mf_lower_offload(bd);
    }
    for (int s = 0; s < sides && bd->status == MF_OK; s++) {
        int at = bd->b->nops;
        if ((side[s].gather_op[1] = emit_gather(bd, &side[s], MF_PASS_B)) >= 0) {
            mf_lower_move_ops(bd, at, bd->b->nforward);
            side[s].gather_op[1] = (int16_t)bd->b->nforward;
            if (s == 1 && side[0].gather_op[1] >= 0) {
                side[0].gather_op[1]++;
            }
        }
    }
    for (int s = 0; s < sides; s++) {
        finish_gathers(bd, &side[s], s == 1);
        emit_reduce(bd, &side[s], s == 1);
    }
    mf_lower_pace_rings(bd);
    bd->b->comm_B[0] = dispatcher_buffers(bd, false);
    bd->b->comm_B[1] = dispatcher_buffers(bd, true);
    mf_status status = mf_build_finish(bd, e);
    clear_scratch(bd);
    if (status != MF_OK) {
        mf_block_destroy(bd->b);
        bd->b = NULL;
    }
    return status;
}

static void choose(mf_build *bd, const mf_block_key *key) {
    bool end = bd->key.kind == MF_POS_EMBEDDING || bd->key.kind == MF_POS_HEAD;
    bd->key.memory = end ? (mf_memory_choice){0, 0} : key->memory;
    bd->key.split = key->split;
    bd->key.unplaced = key->unplaced;
}

/* A block without the traits of the program that trains. */
static mf_status lower_plainly(const mf_model *m, const mf_layout *l, const mf_cluster *c,
                               const mf_block_key *key, mf_block **out, mf_err *e) {
    forward_pass f;
    *out = NULL;
    mf_status status = lower_forward(&f, m, l, c, key, e);
    if (status == MF_OK) {
        choose(&f.bd, key);
        label(f.bd.b, m, &f.bd.key);
        mf_lower_backward(&f.bd);
        status = lower_rest(&f.bd, f.side, f.sides, e);
        *out = f.bd.b;
    }
    return status;
}

mf_status mf_block_lower_without_runs(const mf_model *m, const mf_layout *l, const mf_cluster *c,
                                      const mf_block_key *key, mf_block **out, mf_err *e) {
    mf_status status = lower_plainly(m, l, c, key, out, e);
    if (status == MF_OK) {
        mf_lower_apply_traits(m, l, c, *out);
    }
    return status;
}

mf_status mf_block_lower(const mf_model *m, const mf_layout *l, const mf_cluster *c,
                         const mf_block_key *key, mf_block **out, mf_err *e) {
    mf_status status = lower_plainly(m, l, c, key, out, e);
    if (status == MF_OK && (status = mf_block_find_runs(*out, key->split, e)) != MF_OK) {
        mf_block_destroy(*out);
        *out = NULL;
    }
    if (status == MF_OK) {
        mf_lower_apply_traits(m, l, c, *out);
    }
    return status;
}

void mf_block_destroy(mf_block *b) {
    if (b == NULL) {
        return;
    }
    free(b->ops);
    free(b->tensors);
    free(b);
}

/* --- merged pairs ----------------------------------------------------------------------------- */

static bool is_exchange(const mf_op *op) {
    return op->stream == MF_STREAM_EP;
}

/* Does the dispatcher itself put rows into order behind this dispatch, or take them out of it
 * before this combine? Then both ops are one exchange. */
static bool one_exchange(const mf_op *op, const mf_op *next) {
    return (next->kind == MF_OP_PERMUTE && is_exchange(next)) || op->kind == MF_OP_UNPERMUTE;
}

/* Both sides run until just after their next exchange, in turns: while one side's rows travel, the
 * other computes. The backward side begins, since its first exchange (the gradient of combine)
 * comes near its start and then runs beside the forward side's attention; at the end the forward
 * side's combine runs beside the backward side's attention. The rest of the longer side follows. */
int mf_block_turn(const mf_block *b, int at, int end) {
    while (at < end) {
        const mf_op *op = &b->ops[at++];
        bool more = at < end && one_exchange(op, op + 1);
        if (is_exchange(op) && !more) {
            break;
        }
    }
    return at;
}

int mf_block_merge(const mf_block *forward, const mf_block *backward, mf_merged_op *order) {
    const mf_block *block[2] = {forward, backward};
    int at[2] = {0, backward->nforward}, end[2] = {forward->nforward, backward->nops};
    int n = 0, side = 1;
    while (at[0] < end[0] || at[1] < end[1]) {
        for (int to = mf_block_turn(block[side], at[side], end[side]); at[side] < to; at[side]++) {
            order[n++] = (mf_merged_op){(uint8_t)side, (int16_t)at[side]};
        }
        side = 1 - side;
    }
    return n;
}
