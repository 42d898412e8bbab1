/* lower_step_end.c - what a rank does at the end of a step and holds for all of it: reductions and
 * gathers over data-parallel ranks, sums over copies, norm, optimizer; persistent memory. */
#include "core/program/lower.h"

#include <math.h>

/* --- end-of-step ops -------------------------------------------------------------------------- */

static double param_B(const mf_layout *l) {
    return l->precision == MF_PREC_FP32 ? 4.0 : 2.0;
}

/* Bytes of one orientation of a quantised weight where quantised weights are the primary ones; else
 * 0. */
static double primary_B(const mf_layout *l) {
    return l->fp8_primary_weights ? mf_precision_quantised_B(l->precision) : 0.0;
}

double mf_param_gathered_B(const mf_layout *l, mf_param_count p, bool expert) {
    double all = (double)(expert ? p.expert : p.dense);
    double low = primary_B(l) > 0.0 ? (double)(expert ? p.expert : p.dense_matrices) : 0.0;
    return low * primary_B(l) + (all - low) * param_B(l);
}

static mf_op dp_op(const mf_layout *l, mf_op_kind kind, mf_group_kind group, double bytes,
                   const char *name) {
    mf_op op = {
        .kind = (uint8_t)kind,
        .pass = MF_PASS_O,
        .stream = MF_STREAM_DP,
        .math = MF_MATH_BF16,
        .module = kind == MF_OP_ALL_GATHER ? MF_MODULE_OPTIMIZER : MF_MODULE_GRADIENTS,
        .group = (uint8_t)group,
        .forward = -1,
        .shape = mf_layout_group(l, group),
        .name = name,
    };
    op.bytes = op.shape.size > 1 ? bytes : 0.0;
    return op;
}

mf_dp_ops mf_param_dp_ops(const mf_layout *l, mf_param_count p) {
    const struct {
        int level;
        mf_group_kind group;
        double elements;
        const char *reduce, *gather;
    } side[2] = {
        {l->zero, MF_GROUP_DP_CP, (double)p.dense, "reduce_gradients", "gather_parameters"},
        {l->expert_zero, MF_GROUP_EDP, (double)p.expert, "reduce_experts", "gather_experts"},
    };
    mf_dp_ops ops;
    for (int s = 0; s < 2; s++) {
        bool shard = side[s].level >= 1;
        double reduce_B = side[s].level <= 1 ? side[s].elements * mf_layout_gradient_B(l) : 0.0;
        double gather_B =
            side[s].level == 1 || side[s].level == 2 ? mf_param_gathered_B(l, p, s == 1) : 0.0;
        ops.reduce[s] = dp_op(l, shard ? MF_OP_REDUCE_SCATTER : MF_OP_ALL_REDUCE, side[s].group,
                              reduce_B, side[s].reduce);
        ops.gather[s] = dp_op(l, MF_OP_ALL_GATHER, side[s].group, gather_B, side[s].gather);
    }
    return ops;
}

mf_stage_memory mf_param_memory(const mf_layout *l, mf_param_count p) {
    mf_stage_memory s = {0, 0, 0, 0};
    double moment_B = l->moments_bf16 ? 2.0 : 4.0;
    /* Quantised weights, along rows and along columns (for the input gradient), are held beside the
     * BF16 weights, or without those where they are primary. */
    double copies_B = 2.0 * mf_precision_quantised_B(l->precision);
    copies_B -= primary_B(l) > 0.0 ? param_B(l) : 0.0;
    const struct {
        double elements, matrices, ranks;
        int level;
    } side[2] = {
        {(double)p.dense, (double)p.dense_matrices, (double)(l->dp * l->cp), l->zero},
        {(double)p.expert, (double)p.expert, (double)l->edp, l->expert_zero},
    };
    for (int i = 0; i < 2; i++) {
        double n = side[i].elements, ranks = side[i].ranks;
        if (!(n > 0)) {
            continue; /* searches call this often, for blocks with either dense or expert weights */
        }
        double weights = n * param_B(l) + side[i].matrices * copies_B;
        double shard = ceil(n / ranks);
        s.weights_B += side[i].level >= 3 ? weights / n * shard : weights;
        s.gradients_B += mf_layout_gradient_B(l) * (side[i].level >= 2 ? shard : n);
        /* FP32 master weights (the parameters themselves when those are FP32), two moments. */
        double master_B = l->precision == MF_PREC_FP32 ? 0.0 : 4.0;
        double own = side[i].level >= 1 ? shard : n;
        double host = l->offload_optimizer > 0 ? floor(own * l->offload_optimizer) : 0.0;
        s.optimizer_host_B += host * (master_B + 2.0 * moment_B);
        s.optimizer_B += (own - host) * (master_B + 2.0 * moment_B);
    }
    return s;
}

mf_param_count mf_program_stage_params(const mf_program *p, int64_t stage) {
    mf_param_count sum = {0, 0, 0};
    for (int64_t chunk = 0; chunk < p->layout.vpp; chunk++) {
        int64_t v = mf_layout_vstage(&p->layout, stage, chunk);
        for (int i = p->assignment.first[v]; i < p->assignment.first[v + 1]; i++) {
            const mf_param_count *b = &p->blocks[p->block_of[i]]->params;
            sum.dense += b->dense;
            sum.expert += b->expert;
            sum.dense_matrices += b->dense_matrices;
        }
    }
    return sum;
}

static mf_replica_count stage_replicas(const mf_program *p, int64_t stage) {
    mf_replica_count sum = {{0}};
    for (int i = 0; i < p->assignment.positions; i++) {
        const mf_replica_count *b = &p->blocks[p->block_of[i]]->replicas;
        for (int k = 0; k < MF_SUM_COUNT && mf_program_stage_of(p, i) == stage; k++) {
            sum.of[k] += b->of[k];
        }
    }
    return sum;
}

/* Counts layers whose choice of experts a bias balances. */
static double stage_balanced_layers(const mf_program *p, int64_t stage) {
    const mf_model *m = &p->model;
    double n = 0;
    for (int64_t chunk = 0; chunk < p->layout.vpp; chunk++) {
        int64_t v = mf_layout_vstage(&p->layout, stage, chunk);
        for (int i = p->assignment.first[v]; i < p->assignment.first[v + 1]; i++) {
            const mf_layer_class *x = mf_position_class(m, i);
            n += x != NULL && mf_model_has_correction(m, x) ? 1.0 : 0.0;
        }
    }
    return n;
}

static mf_op optimizer_op(mf_op_kind kind, mf_stream stream, mf_step_end_op step_end,
                          const char *name, double rows, double bytes) {
    return (mf_op){
        .kind = (uint8_t)kind,
        .pass = MF_PASS_O,
        .stream = (uint8_t)stream,
        .math = MF_MATH_BF16,
        .module = MF_MODULE_OPTIMIZER,
        .group = MF_GROUP_NONE,
        .forward = -1,
        .step_end = (uint8_t)step_end,
        .shape = {1, 1},
        .dim = {[MF_OP_DIM_ROWS] = (int64_t)rows, [MF_OP_DIM_COLS] = 1},
        .bytes = bytes,
        .name = name,
    };
}

/* A copy of states to or from the host. */
static mf_op states_op(const mf_layout *l, mf_op_kind kind, mf_stream stream,
                       mf_step_end_op step_end, const char *name, double elements, double bytes) {
    mf_op op = optimizer_op(kind, stream, step_end, name, elements, bytes);
    op.dim[MF_OP_DIM_GPUS] = l->gpus;
    return op;
}

/* A sum over copies of weights, or of counts of all ranks. */
static mf_op sum_op(const mf_layout *l, mf_stream stream, mf_group_kind group,
                    mf_step_end_op step_end, const char *name, double elements, double element_B) {
    mf_op op =
        optimizer_op(MF_OP_ALL_REDUCE, stream, step_end, name, elements, element_B * elements);
    op.module = MF_MODULE_GRADIENTS;
    op.group = (uint8_t)group;
    op.shape = mf_layout_group(l, group);
    return op;
}

/* Sums over copies inside a data-parallel rank. Where gradients are sharded, each rank sums the
 * copies in its shard: on average as many as any other rank. */
static int replica_sums(const mf_layout *l, const mf_step_end *w, mf_op *ops) {
    double dense = l->zero >= 1 ? (double)(l->dp * l->cp) : 1.0;
    double expert = l->expert_zero >= 1 ? (double)l->edp : 1.0;
    const struct {
        mf_gradient_sum sum;
        mf_stream stream;
        mf_group_kind group;
        double ranks;
        mf_step_end_op step_end;
        const char *name;
    } row[] = {
        {MF_SUM_KV, MF_STREAM_TP, MF_GROUP_TP, dense, MF_STEP_END_SUM_KV, "sum_kv_heads"},
        {MF_SUM_TP, MF_STREAM_TP, MF_GROUP_TP, dense, MF_STEP_END_SUM_TP, "sum_replicated"},
        {MF_SUM_ETP, MF_STREAM_EP, MF_GROUP_ETP, expert, MF_STEP_END_SUM_ETP, "sum_expert_biases"},
    };
    int n = 0;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        double elements = ceil((double)w->replicas.of[row[i].sum] / row[i].ranks);
        mf_op op = sum_op(l, row[i].stream, row[i].group, row[i].step_end, row[i].name, elements,
                          mf_layout_gradient_B(l));
        if (row[i].sum == MF_SUM_KV) {
            op.shape.size = w->kv_copies;
        }
        if (elements > 0 && op.shape.size > 1) {
            ops[n++] = op;
        }
    }
    return n;
}

/* Sums of tables that several stages hold. */
static int table_sums(const mf_layout *l, const mf_step_end *w, mf_op *ops) {
    static const char *const name[MF_TABLES] = {"embedding_copies", "head_copies"};
    static const mf_step_end_op step_end[MF_TABLES] = {MF_STEP_END_EMBEDDING_COPIES,
                                                       MF_STEP_END_HEAD_COPIES};
    int n = 0;
    for (int t = 0; t < MF_TABLES; t++) {
        if (w->table_copies[t] <= 1 || w->table_elements[t] <= 0) {
            continue;
        }
        double ranks = l->zero >= 1 ? (double)(l->dp * l->cp) : 1.0;
        mf_op op = sum_op(l, MF_STREAM_PP, MF_GROUP_PP, step_end[t], name[t],
                          ceil(w->table_elements[t] / ranks), mf_layout_gradient_B(l));
        op.shape = (mf_group_shape){w->table_copies[t], (l->pp - 1) * (l->gpus / l->pp)};
        ops[n++] = op;
    }
    return n;
}

/* Weights that a precision recipe covers, among those that this rank updates. */
static double own_matrices(const mf_layout *l, const mf_param_count *p) {
    double dense = (double)p->dense_matrices, expert = (double)p->expert;
    return (l->zero >= 1 ? ceil(dense / (double)(l->dp * l->cp)) : dense) +
           (l->expert_zero >= 1 ? ceil(expert / (double)l->edp) : expert);
}

int mf_param_optimizer(const mf_layout *l, const mf_step_end *w, mf_op *ops, int max) {
    double dense = (double)w->params.dense, expert = (double)w->params.expert;
    double own = (l->zero >= 1 ? ceil(dense / (double)(l->dp * l->cp)) : dense) +
                 (l->expert_zero >= 1 ? ceil(expert / (double)l->edp) : expert);
    double moment_B = l->moments_bf16 ? 2.0 : 4.0, gradient_B = mf_layout_gradient_B(l);
    mf_op made[MF_STEP_END_MAX];
    int n = replica_sums(l, w, made);
    n += table_sums(l, w, made + n);
    if (w->expert_counts > 0 && l->gpus > l->pp) {
        /* Auxiliary-loss-free balancing: expert counts of the batch over all ranks of the stage. */
        made[n++] = sum_op(l, MF_STREAM_DP, MF_GROUP_TP_CP_DP, MF_STEP_END_EXPERT_COUNTS,
                           "expert_counts", w->expert_counts, 4.0);
    }
    made[n++] = optimizer_op(MF_OP_GRAD_NORM, MF_STREAM_COMPUTE, MF_STEP_END_GRAD_NORM, "grad_norm",
                             own, gradient_B * own);
    if (l->gpus > 1) { /* losses are in the norm's message */
        made[n++] = sum_op(l, MF_STREAM_DP, MF_GROUP_WORLD, MF_STEP_END_GRAD_NORM_ALL_REDUCE,
                           "grad_norm_all_reduce", 1.0 + w->losses, 8.0);
        made[n - 1].module = MF_MODULE_OPTIMIZER;
    }
    double host = floor(own * l->offload_optimizer);
    double state_B = (l->precision == MF_PREC_FP32 ? 0.0 : 4.0) + 2.0 * moment_B;
    if (host > 0) {
        made[n++] = states_op(l, MF_OP_COPY_H2D, MF_STREAM_H2D, MF_STEP_END_STATES_IN,
                              "optimizer_states_in", host, host * state_B);
    }
    /* Reads gradient, master and moments; writes master, moments and the parameter. */
    double master_B = l->precision == MF_PREC_FP32 ? 0.0 : 8.0;
    made[n++] = optimizer_op(MF_OP_ADAMW, MF_STREAM_COMPUTE, MF_STEP_END_ADAMW, "adamw", own,
                             own * (gradient_B + master_B + 4.0 * moment_B + 2.0 * param_B(l)));
    if (host > 0) {
        made[n++] = states_op(l, MF_OP_COPY_D2H, MF_STREAM_D2H, MF_STEP_END_STATES_OUT,
                              "optimizer_states_out", host, host * state_B);
    }
    double quant_B = mf_precision_quantised_B(l->precision);
    double low = (double)(w->params.dense_matrices + w->params.expert);
    if (primary_B(l) > 0.0) { /* before they are gathered: each rank quantises its own */
        low = own_matrices(l, &w->params);
    }
    if (quant_B > 0.0) { /* written along rows and along columns */
        made[n++] = optimizer_op(MF_OP_QUANTISE, MF_STREAM_COMPUTE, MF_STEP_END_QUANTISE,
                                 "quantise_weights", low, low * (param_B(l) + 2.0 * quant_B));
    }
    for (int i = 0; i < n && i < max; i++) {
        ops[i] = made[i];
    }
    return n < max ? n : max;
}

bool mf_program_holds(const mf_program *p, int64_t stage, mf_table table) {
    bool tied = p->model.tied_embeddings;
    if (tied && table == MF_TABLE_HEAD) {
        return false; /* it is the embedding */
    }
    for (int i = 0; i < p->assignment.positions; i++) {
        const mf_block *b = p->blocks[p->block_of[i]];
        if (mf_program_stage_of(p, i) != stage) {
            continue;
        }
        for (int t = 0; t < b->ntensors; t++) {
            const mf_tensor *w = &b->tensors[t];
            if (w->class == MF_TENSOR_WEIGHT && w->part != UINT8_MAX &&
                (w->table == table || (tied && w->table == MF_TABLE_HEAD))) {
                return true;
            }
        }
    }
    return false;
}

/* Sums in the norm's message: the auxiliary loss of each position and the others. */
static double losses(const mf_program *p) {
    return (double)(MF_STEP_SUMS - 1 + p->assignment.positions);
}

/* TP ranks that hold the same K and V heads, of the class with the fewest. */
static int64_t kv_copies(const mf_model *m, const mf_layout *l) {
    int64_t most = 1;
    for (int i = 0; i < m->classes; i++) {
        int64_t heads = mf_model_kv_heads(m, &m->layer_classes[i]);
        if (m->attn != MF_ATTN_MLA && l->tp / heads > most) {
            most = l->tp / heads;
        }
    }
    return most;
}

void mf_program_step_end(const mf_program *p, int64_t stage, mf_step_end *out) {
    const mf_layout *l = &p->layout;
    const mf_model *m = &p->model;
    mf_step_end w = {.params = mf_program_stage_params(p, stage),
                     .replicas = stage_replicas(p, stage),
                     .kv_copies = kv_copies(m, l),
                     .losses = losses(p)};
    for (int t = 0; t < MF_TABLES; t++) {
        for (int64_t s = 0; s < l->pp; s++) {
            w.table_copies[t] += mf_program_holds(p, s, (mf_table)t);
        }
        bool here = mf_program_holds(p, stage, (mf_table)t);
        w.table_elements[t] =
            here ? (double)mf_model_local_vocab(m, l->tp) * (double)m->hidden : 0.0;
    }
    w.expert_counts = stage_balanced_layers(p, stage) * (double)m->experts;
    *out = w;
}

int mf_program_optimizer(const mf_program *p, int64_t stage, mf_op *ops, int max) {
    mf_step_end w;
    mf_program_step_end(p, stage, &w);
    return mf_param_optimizer(&p->layout, &w, ops, max);
}
