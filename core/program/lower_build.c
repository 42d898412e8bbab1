/* lower_build.c - blocks under construction: tensors, ops, what is held, sums. */
#include "core/program/lower_build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double math_B(mf_math math) {
    return math == MF_MATH_FP32 ? 4.0 : math == MF_MATH_FP8 ? 1.0 : math == MF_MATH_FP4 ? 0.5 : 2.0;
}

/* The next capacity of an array that int16_t indexes; 0: none, and the error sticks. */
static int grown(mf_build *bd, int capacity) {
    if (capacity == INT16_MAX) {
        bd->status = MF_LAYOUT;
        return 0;
    }
    capacity = capacity > 0 ? 2 * capacity : 128; /* most blocks take no more than that */
    return capacity < INT16_MAX ? capacity : INT16_MAX;
}

static bool reserve_tensors(mf_build *bd) {
    if (bd->b->ntensors < bd->tensor_capacity) {
        return true;
    }
    int capacity = grown(bd, bd->tensor_capacity);
    if (capacity == 0) {
        return false;
    }
    mf_tensor *tensors = realloc(bd->b->tensors, (size_t)capacity * sizeof *tensors);
    if (tensors != NULL) {
        bd->b->tensors = tensors;
    }
    int16_t *alias = realloc(bd->alias, (size_t)capacity * sizeof *alias);
    if (alias != NULL) {
        bd->alias = alias;
    }
    if (tensors == NULL || alias == NULL) {
        bd->status = MF_NOMEM;
        return false;
    }
    bd->tensor_capacity = capacity;
    return true;
}

static bool reserve_ops(mf_build *bd) {
    if (bd->b->nops < bd->op_capacity) {
        return true;
    }
    int capacity = grown(bd, bd->op_capacity);
    if (capacity == 0) {
        return false;
    }
    mf_op *ops = realloc(bd->b->ops, (size_t)capacity * sizeof *ops);
    if (ops != NULL) {
        bd->b->ops = ops;
    }
    mf_build_extra *extra = realloc(bd->extra, (size_t)capacity * sizeof *extra);
    if (extra != NULL) {
        bd->extra = extra;
    }
    if (ops == NULL || extra == NULL) {
        bd->status = MF_NOMEM;
        return false;
    }
    bd->op_capacity = capacity;
    return true;
}

mf_build_extra *mf_build_last(mf_build *bd) {
    return bd->status != MF_OK ? &bd->scrap_extra : &bd->extra[bd->b->nops - 1];
}

double mf_tensor_balanced_B(const mf_tensor *t) {
    return (double)t->rows * (double)t->cols * t->element_B;
}

int64_t mf_tensor_rows_max(const mf_tensor *t) {
    return t->routed ? (int64_t)((double)t->bytes / ((double)t->cols * t->element_B)) : t->rows;
}

int16_t mf_build_tensor(mf_build *bd, const char *name, int64_t rows, int64_t cols,
                        double element_B) {
    if (!reserve_tensors(bd)) {
        return 0;
    }
    int16_t id = (int16_t)bd->b->ntensors++;
    bd->alias[id] = MF_NO_TENSOR;
    bd->b->tensors[id] = (mf_tensor){
        .name = name,
        .rows = rows,
        .cols = cols,
        .bytes = (int64_t)ceil((double)rows * (double)cols * element_B),
        .element_B = element_B,
        .drop = bd->drop,
        .class = MF_TENSOR_LOCAL,
        .grad = MF_NO_TENSOR,
        .table = MF_TABLE_NONE,
        .producer = -1,
        .offset_B = -1,
    };
    return id;
}

int16_t mf_build_routed(mf_build *bd, const char *name, int64_t rows, int64_t cols,
                        double element_B) {
    int16_t id = mf_build_tensor(bd, name, rows, cols, element_B);
    mf_tensor *t = mf_build_t(bd, id);
    t->routed = true;
    double most = ceil((double)rows * mf_layout_token_headroom(bd->l));
    t->bytes = (int64_t)ceil(most * (double)cols * element_B);
    return id;
}

int16_t mf_build_weight(mf_build *bd, const char *name, mf_weight_part part, int64_t rows,
                        int64_t cols) {
    int16_t id = mf_build_tensor(bd, name, rows, cols, bd->act_B);
    mf_tensor *t = mf_build_t(bd, id);
    t->class = MF_TENSOR_WEIGHT;
    t->part = (uint8_t)part;
    t->drop = 0;
    if (part == MF_PART_NORM || part == MF_PART_ROUTER) {
        mf_build_sum(bd, id, MF_SUM_TP, rows);
    }
    return id;
}

void mf_build_sum(mf_build *bd, int16_t weight, mf_gradient_sum sum, int64_t rows) {
    mf_tensor *t = mf_build_t(bd, weight);
    t->sum = (uint8_t)sum;
    t->sum_rows = rows;
}

void mf_build_sum_since(mf_build *bd, int first, mf_gradient_sum sum, int64_t rows) {
    for (int t = first; t < bd->b->ntensors && bd->status == MF_OK; t++) {
        if (bd->b->tensors[t].class == MF_TENSOR_WEIGHT) {
            mf_build_sum(bd, (int16_t)t, sum, rows);
        }
    }
}

mf_op *mf_build_op(mf_build *bd, mf_op_kind kind, const char *name, mf_stream stream) {
    if (!reserve_ops(bd)) {
        bd->scrap = (mf_op){0};
        return &bd->scrap;
    }
    int id = bd->b->nops++;
    bd->extra[id] = (mf_build_extra){.final_out = MF_NO_TENSOR, .final_lse = MF_NO_TENSOR};
    mf_op *op = &bd->b->ops[id];
    *op = (mf_op){
        .kind = (uint8_t)kind,
        .pass = bd->pass,
        .stream = (uint8_t)stream,
        .math = MF_MATH_BF16,
        .module = bd->module,
        .group = MF_GROUP_NONE,
        .shape = {1, 1},
        .forward = bd->forward_op,
        .alpha = 1.0f,
        .name = name,
    };
    if (bd->act_B > 2.0) {
        op->math = MF_MATH_FP32;
    }
    return op;
}

void mf_build_alpha_since(mf_build *bd, int first, double alpha) {
    for (int i = first; i < bd->b->nops && bd->status == MF_OK; i++) {
        if (bd->b->ops[i].kind == MF_OP_GEMM) {
            bd->b->ops[i].alpha = (float)alpha;
        }
    }
}

void mf_op_piece(mf_op *op, int64_t i, int64_t pieces) {
    if (pieces > 1) {
        op->flags |= MF_OPF_OVERLAPPED;
        op->piece = (uint8_t)i;
        op->pieces = (uint8_t)pieces;
    }
}

mf_op *mf_build_memory_op(mf_build *bd, mf_op_kind kind, const char *name, int64_t rows,
                          int64_t cols, double bytes) {
    mf_op *op = mf_build_op(bd, kind, name, MF_STREAM_COMPUTE);
    op->dim[MF_OP_DIM_ROWS] = rows;
    op->dim[MF_OP_DIM_COLS] = cols;
    op->bytes = bytes;
    return op;
}

mf_op *mf_build_gemm(mf_build *bd, const char *name, mf_math math, int64_t m, int64_t n,
                     int64_t k) {
    mf_op *op = mf_build_op(bd, MF_OP_GEMM, name, MF_STREAM_COMPUTE);
    op->math = (uint8_t)math;
    op->dim[MF_OP_DIM_M] = m;
    op->dim[MF_OP_DIM_N] = n;
    op->dim[MF_OP_DIM_K] = k;
    op->flops = 2.0 * (double)m * (double)n * (double)k;
    op->bytes = math_B(math) * ((double)m * (double)k + (double)k * (double)n) +
                bd->act_B * (double)m * (double)n;
    if (math == MF_MATH_FP8 &&
        (bd->l->precision == MF_PREC_FP8_BLOCK || bd->l->precision == MF_PREC_MXFP8)) {
        op->flags |= MF_OPF_BLOCK_SCALED;
    }
    return op;
}

mf_op *mf_build_collective(mf_build *bd, mf_op_kind kind, const char *name, mf_stream stream,
                           mf_group_kind group, double bytes) {
    mf_op *op = mf_build_op(bd, kind, name, stream);
    op->group = (uint8_t)group;
    op->shape = mf_layout_group(bd->l, group);
    op->bytes = bytes;
    op->dim[MF_OP_DIM_CHUNKS] =
        group == MF_GROUP_CP && (kind == MF_OP_ALL_GATHER || kind == MF_OP_REDUCE_SCATTER);
    return op;
}

/* Moves elements [from, n) to `at`; those in between move up. aside: scratch for the former. */
static void rotate(void *array, size_t size, int from, int n, int at, void *aside) {
    unsigned char *x = array;
    const size_t moved = (size_t)(n - from) * size;
    memcpy(aside, x + (size_t)from * size, moved);
    memmove(x + (size_t)at * size + moved, x + (size_t)at * size, (size_t)(from - at) * size);
    memcpy(x + (size_t)at * size, aside, moved);
}

void mf_lower_move_ops(mf_build *bd, int from, int at) {
    mf_block *b = bd->b;
    if (bd->status != MF_OK || from >= b->nops) {
        return;
    }
    size_t most = sizeof *b->ops > sizeof *bd->extra ? sizeof *b->ops : sizeof *bd->extra;
    void *aside = malloc((size_t)(b->nops - from) * most);
    if (aside == NULL) {
        bd->status = MF_NOMEM;
        return;
    }
    rotate(b->ops, sizeof *b->ops, from, b->nops, at, aside);
    rotate(bd->extra, sizeof *bd->extra, from, b->nops, at, aside);
    free(aside);
}

/* --- what is held, and sums ----------------------------------------------------------------------
 */

/* Are gradients of this part of the weights reduced into a shard after every micro-batch? */
static bool shards_gradient(const mf_build *bd, const mf_tensor *g) {
    bool expert = g->part == MF_PART_EXPERT;
    return (expert ? bd->l->expert_zero : bd->l->zero) >= 2 &&
           mf_layout_group(bd->l, expert ? MF_GROUP_EDP : MF_GROUP_DP_CP).size > 1;
}

/* Marks the tensors of F, R or B that W reads, and gradients of vectors that B writes and W
 * reduces: they are held when W is split off. Sums the bytes that W needs from F and B. */
static void hold_for_w(mf_block *b, mf_build *bd) {
    uint8_t *made_by = calloc((size_t)b->ntensors + 1, 1),
            *read = calloc((size_t)b->ntensors + 1, 1);
    if (made_by == NULL || read == NULL) {
        bd->status = MF_NOMEM;
        goto out;
    }
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        for (int k = 0; k < op->nout; k++) {
            made_by[op->out[k]] = op->pass;
        }
        for (int k = 0; k < op->nin && op->pass == MF_PASS_W; k++) {
            read[op->in[k]] = 1;
        }
    }
    for (int t = 0; t < b->ntensors; t++) {
        mf_tensor *x = &b->tensors[t];
        bool early = x->class == MF_TENSOR_GRADIENT && made_by[t] == MF_PASS_B;
        bool gradient = x->class == MF_TENSOR_GRADIENT || x->class == MF_TENSOR_WEIGHT;
        x->for_w =
            gradient ? early && shards_gradient(bd, x) : read[t] != 0 && made_by[t] != MF_PASS_W;
        if (!x->for_w) {
            continue;
        }
        x->class = x->class == MF_TENSOR_LOCAL ? MF_TENSOR_HELD : x->class;
        b->held_B += mf_align_B(x->bytes);
        b->kept_B += x->class == MF_TENSOR_SAVED ? mf_align_B(x->bytes) : 0;
        b->made_B += x->class == MF_TENSOR_HELD || gradient ? mf_align_B(x->bytes) : 0;
    }
out:
    free(made_by);
    free(read);
}

void mf_build_sum_params(mf_build *bd) {
    mf_block *b = bd->b;
    for (int t = 0; t < b->ntensors; t++) {
        const mf_tensor *w = &b->tensors[t];
        if (w->class == MF_TENSOR_WEIGHT && w->part == UINT8_MAX && !w->indices) {
            b->shared += w->rows * w->cols;
        }
        if (w->class != MF_TENSOR_WEIGHT || w->part == UINT8_MAX) {
            continue;
        }
        int64_t elements = w->rows * w->cols;
        b->replicas.of[w->sum] += w->sum_rows * w->cols;
        if (w->part == MF_PART_EXPERT) {
            b->params.expert += elements;
        } else {
            b->params.dense += elements;
            bool matrix = w->cols > 1 && w->part != MF_PART_EMBEDDING && w->part != MF_PART_HEAD &&
                          w->part != MF_PART_ROUTER;
            b->params.dense_matrices += matrix ? elements : 0;
        }
    }
}

mf_status mf_build_failed(const mf_build *bd, mf_err *e) {
    if (bd->status == MF_LAYOUT) {
        return mf_err_set(e, MF_LAYOUT, "lowering: a layer takes more than %d ops or tensors",
                          INT16_MAX);
    }
    return mf_err_set(e, bd->status, "lowering: out of memory");
}

mf_status mf_build_finish(mf_build *bd, mf_err *e) {
    if (bd->status != MF_OK) {
        return mf_build_failed(bd, e);
    }
    mf_block *b = bd->b;
    if (bd->key.split) {
        hold_for_w(b, bd);
    }
    for (int t = 0; t < b->ntensors; t++) {
        const mf_tensor *s = &b->tensors[t];
        if (s->class == MF_TENSOR_SAVED) {
            b->saved_B += mf_align_B(s->bytes);
        } else if (s->offloaded) {
            b->offload_B += mf_align_B(s->bytes);
        }
    }
    if (!bd->key.unplaced) {
        mf_build_place(bd);
    }
    if (bd->output != MF_NO_TENSOR) {
        b->boundary_B = mf_align_B(b->tensors[bd->output].bytes);
    }
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        double *sum = op->pass == MF_PASS_F   ? &b->flops_f
                      : op->pass == MF_PASS_R ? &b->flops_r
                      : op->pass == MF_PASS_B ? &b->flops_b
                                              : &b->flops_w;
        *sum += op->flops;
    }
    mf_build_find_scratch(bd);
    return bd->status == MF_OK ? MF_OK : mf_build_failed(bd, e);
}
