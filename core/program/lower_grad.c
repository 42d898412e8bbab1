/* lower_grad.c - backward passes and recomputation, derived from the forward ops of a block.
 *
 * The forward ops are walked from last to first. Each kind's rule emits the ops of its gradient;
 * what it reads of the forward pass it asks of mf_lower_read_forward, which saves it or makes it
 * again.
 */
#include "core/program/lower_grad.h"
#include "core/program/mixer_costs.h"
#include "core/program/scratch.h"

#include <assert.h>
#include <string.h>

/* --- gradients -------------------------------------------------------------------------------- */

void mf_grad_out_as(mf_build *bd, int16_t op_index, int16_t t, bool slice) {
    if (bd->status != MF_OK) {
        return;
    }
    mf_tensor x = *mf_build_t(bd, t);
    mf_op *op = &bd->b->ops[op_index];
    if (x.grad != MF_NO_TENSOR && slice) {
        mf_op_out(op, x.grad);
        return;
    }
    double element_B = x.element_B < bd->act_B ? bd->act_B : x.element_B;
    int16_t g = mf_build_tensor(bd, x.name, x.rows, x.cols, element_B);
    mf_tensor *grad = mf_build_t(bd, g);
    grad->routed = x.routed;
    grad->drop = 0;
    if (x.routed && x.element_B > 0) {
        grad->bytes = (int64_t)((double)x.bytes * element_B / x.element_B) + 1;
    }
    op = &bd->b->ops[op_index];
    if (x.grad != MF_NO_TENSOR) {
        const int operands = op->nin;
        mf_op_in(op, x.grad);
        op->sums |= (uint8_t)(op->nin > operands ? 1u << op->nout : 0u);
        if (mf_op_kind_class((mf_op_kind)op->kind) != MF_CLASS_COLLECTIVE &&
            mf_op_kind_class((mf_op_kind)op->kind) != MF_CLASS_P2P) {
            op->bytes += mf_tensor_balanced_B(&x);
        }
    }
    mf_op_out(op, g);
    mf_build_t(bd, t)->grad = g;
}

void mf_grad_out(mf_build *bd, int16_t op_index, int16_t t) {
    bool slice = bd->status == MF_OK && (bd->b->ops[op_index].flags & MF_OPF_OVERLAPPED);
    mf_grad_out_as(bd, op_index, t, slice);
}

bool mf_grad_is_wanted(const mf_build *bd, int16_t t) {
    const mf_tensor *x = &bd->b->tensors[t];
    return x->class != MF_TENSOR_WEIGHT && !x->indices && (x->producer >= 0 || t == bd->input);
}

void mf_grad_copy_meaning(mf_op *to, const mf_op *from) {
    to->bias_owner = from->bias_owner;
    to->reduce = from->reduce;
    to->norm_scope = from->norm_scope;
    to->norm_kind = from->norm_kind;
    to->eps = from->eps;
    to->alpha = from->alpha;
}

void mf_grad_copy_shape(mf_op *to, const mf_op *from) {
    mf_grad_copy_meaning(to, from);
    to->math = from->math;
    to->flags = from->flags;
    to->group = from->group;
    to->shape = from->shape;
    to->bytes = from->bytes;
    to->piece = from->piece;
    to->pieces = from->pieces;
    for (int i = 0; i < MF_OP_DIMS; i++) {
        to->dim[i] = from->dim[i];
    }
}

int16_t mf_grad_of_weight(mf_build *bd, int16_t w) {
    if (mf_grad_of(bd, w) != MF_NO_TENSOR) {
        return mf_grad_of(bd, w);
    }
    mf_tensor x = *mf_build_t(bd, w);
    int16_t g = mf_build_tensor(bd, x.name, x.rows, x.cols, mf_layout_gradient_B(bd->l));
    mf_tensor *t = mf_build_t(bd, g);
    t->class = MF_TENSOR_GRADIENT;
    t->part = x.part;
    mf_build_t(bd, w)->grad = g;
    return g;
}

/* Whether forward op f overwrites its input t. Its gradient op then overwrites the gradient of t:
 * no op reads either value from before. */
static bool changes_in_place(const mf_op *f, int16_t t) {
    for (int i = 0; i < f->nout; i++) {
        if (f->out[i] == t) {
            return true;
        }
    }
    return false;
}

/* Memory-bound gradient: reads the gradients of all outputs and `kept` forward tensors, writes the
 * gradients of inputs and weights; `traffic` times the forward's bytes. */
static void grad_memory(mf_build *bd, const mf_op *f, mf_op_kind kind, double traffic,
                        const int16_t *kept, int count) {
    int16_t saved[4] = {MF_NO_TENSOR, MF_NO_TENSOR, MF_NO_TENSOR, MF_NO_TENSOR};
    for (int i = 0; i < count; i++) {
        saved[i] = mf_lower_read_forward(bd, kept[i]);
    }
    bd->pass = MF_PASS_B;
    mf_op *op = mf_build_op(bd, kind, f->name, MF_STREAM_COMPUTE);
    mf_grad_copy_shape(op, f);
    op->bytes = f->bytes * traffic;
    for (int i = 0; i < f->nout; i++) {
        mf_op_in(op, mf_grad_of(bd, f->out[i]));
    }
    for (int i = 0; i < count; i++) {
        mf_op_in(op, saved[i]);
    }
    for (int i = 0; i < f->nin; i++) {
        int16_t t = f->in[i];
        if (mf_build_t(bd, t)->class == MF_TENSOR_WEIGHT) {
            int16_t g = mf_grad_of_weight(bd, t);
            mf_op_out(&bd->b->ops[mf_grad_last_op(bd)], g);
        } else if (changes_in_place(f, t)) {
            mf_op_out(&bd->b->ops[mf_grad_last_op(bd)], mf_grad_of(bd, t));
        } else if (mf_grad_is_wanted(bd, t)) {
            mf_grad_out(bd, mf_grad_last_op(bd), t);
        }
    }
}

/* Reads what the forward pass read and its gradient; makes the states again, with their
 * gradients. */
static void grad_scan(mf_build *bd, const mf_op *f) {
    int16_t kept[4];
    int count = 0;
    for (int i = 0; i < f->nin; i++) {
        if (mf_build_t(bd, f->in[i])->class != MF_TENSOR_WEIGHT) {
            kept[count++] = f->in[i];
        }
    }
    if (f->nout > 2) {
        kept[count++] = f->out[2];
    }
    mf_op g = *f;
    g.nout = 1; /* states have no gradient */
    grad_memory(bd, &g, MF_OP_SCAN_BWD, MF_SCAN_GRADIENT_BYTES, kept, count);
    if (bd->status != MF_OK) {
        return;
    }
    const mf_tensor states = *mf_build_t(bd, f->out[1]);
    int16_t both = mf_build_tensor(bd, states.name, 2 * states.rows, states.cols, states.element_B);
    mf_build_t(bd, both)->drop = 0;
    if (bd->status == MF_OK) {
        mf_op *op = &bd->b->ops[mf_grad_last_op(bd)];
        const mf_scan_shape shape = {.rule = (mf_mixer_kind)f->dim[MF_OP_DIM_SCAN_RULE],
                                     .key_dim = f->dim[MF_OP_DIM_SCAN_KEY_DIM],
                                     .value_dim = f->dim[MF_OP_DIM_SCAN_VALUE_DIM],
                                     .chunk = f->dim[MF_OP_DIM_SCAN_CHUNK]};
        op->flops = mf_scan_gradient(&shape) * f->flops;
        mf_op_out(op, both);
    }
}

/* An indexer learns by a loss of its own, against what attention gave the keys that it chose
 * (DeepSeek-V3.2, arXiv:2512.02556, 2.1.1): gradients of the scores of chosen keys take two
 * products where the forward pass takes one, and the teacher's scores of these keys are computed
 * again. */
static void grad_index(mf_build *bd, const mf_op *f) {
    const mf_build_extra extra = bd->extra[bd->forward_op];
    int16_t kept[4] = {f->out[0], f->in[0], f->in[1], f->in[2]};
    mf_op g = *f;
    g.nout = 0;
    for (int i = 0; i < 4; i++) {
        kept[i] = mf_lower_read_forward(bd, kept[i]);
    }
    grad_memory(bd, &g, MF_OP_INDEX_BWD, MF_INDEX_GRADIENT_BYTES, kept, 4);
    if (bd->status == MF_OK) {
        mf_op *op = &bd->b->ops[mf_grad_last_op(bd)];
        op->flops = mf_index_gradient_flops(
            extra.chosen, f->dim[MF_OP_DIM_INDEX_HEADS], f->dim[MF_OP_DIM_INDEX_DIM],
            extra.teacher * (double)bd->m->heads / (double)bd->l->tp);
    }
}

/* A norm over rows that all TP ranks have: its gradient begins with sums over ranks, as the norm
 * does. */
static void grad_norm_split(mf_build *bd, const mf_op *f) {
    int16_t x = mf_lower_read_forward(bd, f->in[0]), rstd = mf_lower_read_forward(bd, f->out[1]);
    mf_tensor sums = *mf_build_t(bd, f->in[2]);
    bd->pass = MF_PASS_B;
    int16_t dots = mf_build_tensor(bd, sums.name, sums.rows, sums.cols, sums.element_B);
    mf_op *op = mf_build_op(bd, MF_OP_NORM_SUM, f->name, MF_STREAM_COMPUTE);
    mf_grad_copy_shape(op, f);
    mf_op_in(op, mf_grad_of(bd, f->out[0]));
    mf_op_in(op, x);
    mf_op_in(op, rstd);
    mf_op_out(op, dots);
    op = mf_build_collective(bd, MF_OP_ALL_REDUCE, "qk_norm_sums", MF_STREAM_TP, MF_GROUP_TP,
                             mf_tensor_balanced_B(&sums));
    mf_op_in(op, dots);
    mf_op_out(op, dots);
    op = mf_build_op(bd, MF_OP_RMSNORM_BWD, f->name, MF_STREAM_COMPUTE);
    mf_grad_copy_shape(op, f);
    op->bytes = 1.5 * f->bytes;
    mf_op_in(op, mf_grad_of(bd, f->out[0]));
    mf_op_in(op, x);
    mf_op_in(op, rstd);
    mf_op_in(op, dots);
    mf_grad_out(bd, mf_grad_last_op(bd), f->in[0]);
    int16_t dweight = mf_grad_of_weight(bd, f->in[1]);
    mf_op_out(&bd->b->ops[mf_grad_last_op(bd)], dweight);
}

/* The gradient of a sum is the gradient of each term: no op, one tensor. Likewise quantisation. */
static void grad_alias(mf_build *bd, const mf_op *f) {
    int16_t g = mf_grad_of(bd, f->out[0]);
    for (int i = 0; i < f->nin; i++) {
        int16_t t = f->in[i];
        if (!mf_grad_is_wanted(bd, t)) {
            continue;
        }
        int16_t had = mf_grad_of(bd, t);
        if (had == MF_NO_TENSOR) {
            mf_build_t(bd, t)->grad = g;
            continue;
        }
        if (had == g) {
            continue;
        }
        mf_tensor x = *mf_build_t(bd, t);
        bd->pass = MF_PASS_B;
        mf_build_memory_op(bd, MF_OP_ADD, "gradient_sum", x.rows, x.cols,
                           2.0 * (double)x.rows * (double)x.cols * bd->act_B);
        mf_op_in(&bd->b->ops[mf_grad_last_op(bd)], g);
        mf_grad_out(bd, mf_grad_last_op(bd), t);
        if (bd->status == MF_OK) {
            bd->b->ops[mf_grad_last_op(bd)].sums = 0; /* both are operands */
        }
    }
}

static void grad_embedding(mf_build *bd, const mf_op *f) {
    bd->pass = MF_PASS_W;
    int16_t dw = mf_grad_of_weight(bd, f->in[0]);
    mf_op *op = mf_build_memory_op(
        bd, MF_OP_EMBEDDING_BWD, f->name, f->dim[MF_OP_DIM_ROWS], f->dim[MF_OP_DIM_COLS],
        (double)f->dim[MF_OP_DIM_ROWS] * (double)f->dim[MF_OP_DIM_COLS] *
            (bd->act_B + 2.0 * mf_layout_gradient_B(bd->l) / (double)bd->l->tp));
    mf_grad_copy_meaning(op, f);
    mf_op_in(op, mf_grad_of(bd, f->out[0]));
    mf_op_out(op, dw);
}

/* Its forward op wrote it. */
static void grad_stands(mf_build *bd, const mf_op *f) {
    const int16_t logits = mf_lower_read_forward(bd, f->in[0]);
    mf_build_t(bd, logits)->grad = logits;
}

static void grad_cross_entropy(mf_build *bd, const mf_op *f) {
    int16_t logits = mf_lower_read_forward(bd, f->in[0]),
            stats = mf_lower_read_forward(bd, f->out[0]);
    bd->pass = MF_PASS_B;
    mf_op *op = mf_build_memory_op(bd, MF_OP_CROSS_ENTROPY_BWD, f->name, f->dim[MF_OP_DIM_ROWS],
                                   f->dim[MF_OP_DIM_COLS], 2.0 * f->bytes);
    mf_op_in(op, logits);
    mf_op_in(op, stats);
    /* Written over the logits. */
    mf_op_out(op, logits);
    mf_build_t(bd, f->in[0])->grad = logits;
}

/* Reads gate, up and the activation's gradient, writes the gradients of gate and up; forward reads
 * two and writes one. */
#define SWIGLU_GRADIENT (5.0 / 3.0)

/* Traffic of a gradient over the forward pass's, where the kind reads (ways = 1) or reads and
 * writes (2) copies of the residual. */
static double hyper_gradient(const mf_op *f, double ways) {
    double n = (double)f->dim[MF_OP_DIM_STREAMS];
    return ((ways + 1.0) * n + ways) / (ways * n + 1.0);
}

static void grad_hyper_read(mf_build *bd, const mf_op *f) {
    /* Of n + 1 streams: reads 1 + n, writes n. */
    grad_memory(bd, f, MF_OP_HYPER_READ_BWD, hyper_gradient(f, 1.0), f->in, 2);
}

static void grad_hyper_write(mf_build *bd, const mf_op *f) {
    const bool mixes = f->nin > 2; /* of 2 n + 1 streams: reads 2 n + 1, writes n + 1 */
    grad_memory(bd, f, MF_OP_HYPER_WRITE_BWD, mixes ? hyper_gradient(f, 2.0) : 1.0, f->in,
                mixes ? 3 : 0);
}

/* --- a rule for each kind --------------------------------------------------------------------- */

/* Emits the ops of the gradient of forward op f. */
typedef void emit_gradient(mf_build *bd, const mf_op *f);

/* Another op's gradient holds it, or nothing is learnt there. */
static void grad_none(mf_build *bd, const mf_op *f) {
    (void)bd, (void)f;
}

static void grad_product(mf_build *bd, const mf_op *f) {
    mf_grad_gemm(bd, f, bd->extra[bd->forward_op].detached, f->pieces <= 1 || f->piece == 0);
}

static void grad_rmsnorm(mf_build *bd, const mf_op *f) {
    if (f->nin > 2) {
        grad_norm_split(bd, f);
        return;
    }
    const int16_t kept[2] = {f->in[0], f->out[1]};
    grad_memory(bd, f, MF_OP_RMSNORM_BWD, 1.5, kept, 2);
}

/* Dropped choices have no gradient already. */
static void grad_router_drop(mf_build *bd, const mf_op *f) {
    mf_build_t(bd, f->in[1])->grad = mf_grad_of(bd, f->out[1]);
}

static void grad_all_gather(mf_build *bd, const mf_op *f) {
    if (f->nout > 1) { /* rows of tokens with what travels beside them */
        mf_grad_routed(bd, f, MF_OP_REDUCE_SCATTER);
    } else {
        mf_grad_collective(bd, f, MF_OP_REDUCE_SCATTER);
    }
}

/* Ranks that swap tensors swap their gradients. */
static void grad_exchange(mf_build *bd, const mf_op *f) {
    mf_grad_collective(bd, f, (mf_op_kind)f->kind);
}

static void grad_dispatch(mf_build *bd, const mf_op *f) {
    mf_grad_routed(bd, f, MF_OP_COMBINE);
}

static void grad_combine(mf_build *bd, const mf_op *f) {
    mf_grad_collective(bd, f, MF_OP_DISPATCH);
}

/* The gradient rule of a kind of op: either `emit`, or one memory-bound op with its kind, its
 * traffic over the forward op's, and bit masks of the forward op's inputs and outputs that it
 * reads. */
typedef struct gradient_rule {
    emit_gradient *emit;
    mf_op_kind op;
    double traffic;
    unsigned inputs, outputs;
} gradient_rule;

#define ALL_INPUTS ((1u << MF_OP_MAX_IN) - 1u)

/* Kinds without a row are in no forward pass. */
static const gradient_rule gradient_rules[MF_OP_COUNT] = {
    [MF_OP_GEMM] = {.emit = grad_product},
    [MF_OP_GROUPED_GEMM] = {.emit = grad_product},
    [MF_OP_ATTENTION_FWD] = {.emit = mf_grad_attention},
    [MF_OP_ATTENTION_MERGE] = {.emit = grad_none}, /* parts take that of the merged output */
    [MF_OP_EMBEDDING_FWD] = {.emit = grad_embedding},
    [MF_OP_NORM_SUM] = {.emit = grad_none}, /* the norm's gradient has it */
    [MF_OP_RMSNORM_FWD] = {.emit = grad_rmsnorm},
    [MF_OP_ROPE_FWD] = {NULL, MF_OP_ROPE_BWD, 1.0, 0, 0},
    [MF_OP_SWIGLU_FWD] = {NULL, MF_OP_SWIGLU_BWD, SWIGLU_GRADIENT, ALL_INPUTS, 0},
    [MF_OP_RELU2_FWD] = {NULL, MF_OP_RELU2_BWD, 1.5, ALL_INPUTS, 0},
    [MF_OP_CONV_FWD] = {NULL, MF_OP_CONV_BWD, MF_CONV_GRADIENT_BYTES, 1, 0},
    [MF_OP_DECAY_FWD] = {NULL, MF_OP_DECAY_BWD, 1.5, 1, 0},
    [MF_OP_SCAN_FWD] = {.emit = grad_scan},
    [MF_OP_GATED_NORM_FWD] = {NULL, MF_OP_GATED_NORM_BWD, 5.0 / 3.0, 1 | 2, 2},
    [MF_OP_COMPRESS_FWD] = {NULL, MF_OP_COMPRESS_BWD, 2.0, 1, 0},
    [MF_OP_HYPER_READ_FWD] = {.emit = grad_hyper_read},
    [MF_OP_HYPER_WRITE_FWD] = {.emit = grad_hyper_write},
    [MF_OP_INDEX_FWD] = {.emit = grad_index},
    [MF_OP_ADD] = {.emit = grad_alias},
    [MF_OP_QUANTISE] = {.emit = grad_alias},
    [MF_OP_GATE_FWD] = {NULL, MF_OP_GATE_BWD, 1.0, 1 | 2, 0},
    /* logits; choices, counts of the auxiliary loss */
    [MF_OP_ROUTER_FWD] = {NULL, MF_OP_ROUTER_BWD, 2.0, 1, 1 | 4},
    [MF_OP_ROUTER_DROP] = {.emit = grad_router_drop},
    [MF_OP_PERMUTE] = {NULL, MF_OP_UNPERMUTE, 1.0, 0, 2},
    [MF_OP_UNPERMUTE] = {NULL, MF_OP_PERMUTE, 1.0, 2, 0},
    [MF_OP_SPLIT] = {NULL, MF_OP_SPLIT, 1.0, 0, 0},
    [MF_OP_CROSS_ENTROPY] = {.emit = grad_stands},
    [MF_OP_CROSS_ENTROPY_FWD] = {.emit = grad_cross_entropy},
    [MF_OP_ALL_REDUCE] = {.emit = grad_none}, /* of sums that norms read */
    [MF_OP_ALL_GATHER] = {.emit = grad_all_gather},
    [MF_OP_REDUCE_SCATTER] = {.emit = mf_grad_reduce_scatter},
    [MF_OP_ALL_TO_ALL] = {.emit = grad_exchange},
    [MF_OP_SEND_RECV] = {.emit = grad_exchange},
    [MF_OP_DISPATCH] = {.emit = grad_dispatch},
    [MF_OP_COMBINE] = {.emit = grad_combine},
};

static void apply_rule(mf_build *bd, const mf_op *f) {
    const gradient_rule *r = &gradient_rules[f->kind];
    assert(r->emit != NULL || r->traffic > 0.0);
    if (r->emit != NULL) {
        r->emit(bd, f);
        return;
    }
    int16_t kept[MF_OP_MAX_IN + MF_OP_MAX_OUT];
    int count = 0;
    for (int i = 0; i < f->nin; i++) {
        if (r->inputs >> i & 1u) {
            kept[count++] = f->in[i];
        }
    }
    for (int i = 0; i < f->nout; i++) {
        if (r->outputs >> i & 1u) {
            kept[count++] = f->out[i];
        }
    }
    grad_memory(bd, f, r->op, r->traffic, kept, count);
}

/* Whether a gradient reaches the op's output `out`, or the op begins one (by a loss of its own, or
 * by outputs that come later). */
static bool has_gradient(mf_build *bd, const mf_op *f, int out) {
    return mf_grad_of(bd, f->out[out]) != MF_NO_TENSOR || f->kind == MF_OP_CROSS_ENTROPY ||
           f->kind == MF_OP_CROSS_ENTROPY_FWD || f->kind == MF_OP_ROUTER_FWD ||
           f->kind == MF_OP_ROUTER_DROP || f->kind == MF_OP_ATTENTION_FWD ||
           f->kind == MF_OP_INDEX_FWD;
}

static void grad_op(mf_build *bd, int i) {
    mf_op f = bd->b->ops[i];
    const bool activates = (f.flags & MF_OPF_ACT) != 0;
    if (bd->extra[i].no_grad || !has_gradient(bd, &f, activates)) {
        return;
    }
    bd->forward_op = (int16_t)i;
    bd->module = f.module;
    if (activates) {
        const mf_op act = mf_lower_act_apart(bd, &f);
        apply_rule(bd, &act);
        f = mf_lower_without_act(bd, &f);
    }
    apply_rule(bd, &f);
    bd->forward_op = -1;
}

void mf_lower_backward(mf_build *bd) {
    mf_block *b = bd->b;
    b->nforward = b->nops;
    bd->drop = 0;
    bd->pass = MF_PASS_B;
    b->input = bd->input;
    b->output = bd->output != bd->input ? bd->output : MF_NO_TENSOR;
    b->output_gradient = b->input_gradient = MF_NO_TENSOR;
    if (bd->output != MF_NO_TENSOR) {
        mf_tensor out = *mf_build_t(bd, bd->output);
        int16_t g = mf_build_tensor(bd, "output_gradient", out.rows, out.cols, bd->act_B);
        mf_build_t(bd, g)->class = MF_TENSOR_BOUNDARY;
        mf_build_t(bd, bd->output)->grad = g;
        b->output_gradient = g;
    }
    for (int i = b->nforward - 1; i >= 0 && bd->status == MF_OK; i--) {
        grad_op(bd, i);
    }
    if (bd->status != MF_OK) {
        return;
    }
    if (bd->input != MF_NO_TENSOR && mf_grad_of(bd, bd->input) != MF_NO_TENSOR) {
        b->input_gradient = mf_grad_of(bd, bd->input);
        mf_build_t(bd, b->input_gradient)->class = MF_TENSOR_BOUNDARY;
    }
    if (bd->output != MF_NO_TENSOR && bd->output != bd->input) {
        /* The next block counts the part of its input that it keeps. */
        mf_build_t(bd, bd->output)->class = MF_TENSOR_BOUNDARY;
    }
}
