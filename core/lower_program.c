/* lower_program.c - positions, their assignment to virtual stages, and the program of a step. */
#include "core/lower.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LL(x) ((long long)(x))

int mf_model_positions(const mf_model *m) {
    return (int)(2 + m->layers + m->mtp_layers);
}

mf_position_kind mf_position_kind_of(const mf_model *m, int position) {
    if (position == 0) {
        return MF_POS_EMBEDDING;
    }
    if (position <= m->layers) {
        return MF_POS_LAYER;
    }
    return position <= m->layers + m->mtp_layers ? MF_POS_MTP : MF_POS_HEAD;
}

int mf_position_index(const mf_model *m, int position) {
    return position <= m->layers ? position - 1 : position - 1 - (int)m->layers;
}

/* --- assignment ------------------------------------------------------------------------------- */

mf_status mf_assignment_even(const mf_model *m, const mf_layout *l, mf_assignment *out, mf_err *e) {
    int64_t vstages = l->pp * l->vpp;
    int positions = mf_model_positions(m);
    if (vstages > MF_MAX_VSTAGES || positions > MF_MAX_POSITIONS || vstages > positions) {
        return mf_err_set(e, MF_LAYOUT, "PP %lld x VPP %lld: no room for %d positions", LL(l->pp),
                          LL(l->vpp), positions);
    }
    memset(out, 0, sizeof *out);
    out->positions = positions;
    out->vstages = (int)vstages;
    for (int i = 0; i < positions; i++) {
        /* Offloading layers are spread evenly: layer i is one when the running share steps up. */
        bool offloads = floor((double)(i + 1) * l->offload_share + 1e-9) >
                        floor((double)i * l->offload_share + 1e-9);
        out->memory[i] = l->memory;
        out->memory[i].offload = offloads ? l->memory.offload : 0;
    }
    /* Layers that divide are spread evenly, the ends ride along. Otherwise embedding, each MTP
     * depth and head weigh one layer each. */
    int64_t layers = m->layers;
    bool even = layers % vstages == 0;
    int64_t units = even ? layers : positions;
    int64_t base = units / vstages, extra = units % vstages;
    int at = 0;
    for (int64_t v = 0; v < vstages; v++) {
        /* Longer stages in the middle. */
        int64_t middle = (vstages - extra) / 2;
        int64_t n = base + (v >= middle && v < middle + extra ? 1 : 0);
        out->first[v] = at;
        at += (int)n;
        if (even && v == 0) {
            at += 1; /* embedding */
        }
    }
    if (even) {
        at += (int)m->mtp_layers + 1;
    }
    out->first[vstages] = at;
    return at == positions
               ? MF_OK
               : mf_err_set(e, MF_INTERNAL, "assignment covers %d of %d positions", at, positions);
}

mf_status mf_assignment_check(const mf_model *m, const mf_layout *l, const mf_assignment *a,
                              mf_err *e) {
    if (a->vstages != l->pp * l->vpp) {
        return mf_err_set(e, MF_LAYOUT, "assignment has %d virtual stages, PP x VPP = %lld",
                          a->vstages, LL(l->pp * l->vpp));
    }
    if (a->positions != mf_model_positions(m)) {
        return mf_err_set(e, MF_LAYOUT, "assignment places %d positions, %s has %d", a->positions,
                          m->name, mf_model_positions(m));
    }
    if (a->first[0] != 0 || a->first[a->vstages] != a->positions) {
        return mf_err_set(e, MF_LAYOUT, "assignment does not start at embedding and end at head");
    }
    for (int v = 0; v < a->vstages; v++) {
        if (a->first[v + 1] <= a->first[v]) {
            return mf_err_set(e, MF_LAYOUT, "virtual stage %d holds no layer", v);
        }
    }
    return MF_OK;
}

/* --- once-a-step ops -------------------------------------------------------------------------- */

static double param_B(const mf_layout *l) {
    return l->precision == MF_PREC_FP32 ? 4.0 : 2.0;
}

static double gathered_B(const mf_layout *l) {
    bool low = l->precision != MF_PREC_FP32 && l->precision != MF_PREC_BF16;
    return low && l->fp8_primary_weights ? 1.0 + 4.0 / 128.0 : param_B(l);
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
        double reduce_B = side[s].level <= 1 ? side[s].elements * 4.0 : 0.0;
        double gather_B =
            side[s].level == 1 || side[s].level == 2 ? side[s].elements * gathered_B(l) : 0.0;
        ops.reduce[s] = dp_op(l, shard ? MF_OP_REDUCE_SCATTER : MF_OP_ALL_REDUCE, side[s].group,
                              reduce_B, side[s].reduce);
        ops.gather[s] = dp_op(l, MF_OP_ALL_GATHER, side[s].group, gather_B, side[s].gather);
    }
    return ops;
}

mf_stage_memory mf_param_memory(const mf_layout *l, mf_param_count p) {
    mf_stage_memory s = {0, 0, 0, 0};
    double moment_B = l->moments_bf16 ? 2.0 : 4.0;
    bool low = l->precision != MF_PREC_FP32 && l->precision != MF_PREC_BF16;
    /* FP8 operands stand beside the BF16 weights (rows and, for the input gradient, columns), or
     * alone when they are primary. */
    double copies_B = low ? 2.0 * gathered_B(l) : 0.0;
    if (low && !l->fp8_primary_weights) {
        copies_B = 2.0 * (l->precision == MF_PREC_NVFP4 ? 0.5625 : 1.03125);
    }
    const struct {
        double elements, matrices, ranks;
        int level;
    } side[2] = {
        {(double)p.dense, (double)p.dense_matrices, (double)(l->dp * l->cp), l->zero},
        {(double)p.expert, (double)p.expert, (double)l->edp, l->expert_zero},
    };
    for (int i = 0; i < 2; i++) {
        double n = side[i].elements, ranks = side[i].ranks;
        double weights = n * param_B(l) + side[i].matrices * copies_B;
        if (low && l->fp8_primary_weights) {
            weights -= side[i].matrices * param_B(l);
        }
        double shard = ceil(n / ranks);
        s.weights_B += side[i].level >= 3 ? weights / ranks : weights;
        s.gradients_B += 4.0 * (side[i].level >= 2 ? shard : n);
        /* FP32 master weights (the parameters themselves when those are FP32), two moments. */
        double master_B = l->precision == MF_PREC_FP32 ? 0.0 : 4.0;
        double state = (side[i].level >= 1 ? shard : n) * (master_B + 2.0 * moment_B);
        s.optimizer_host_B += state * l->offload_optimizer;
        s.optimizer_B += state * (1.0 - l->offload_optimizer);
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

/* Stages that hold a copy of the embedding (tied head and MTP) have to sum its gradient. */
static bool embedding_is_copied(const mf_program *p) {
    return p->layout.pp > 1 && (p->model.tied_embeddings || p->model.mtp_layers > 0);
}

static double stage_moe_layers(const mf_program *p, int64_t stage) {
    double n = 0;
    for (int64_t chunk = 0; chunk < p->layout.vpp; chunk++) {
        int64_t v = mf_layout_vstage(&p->layout, stage, chunk);
        for (int i = p->assignment.first[v]; i < p->assignment.first[v + 1]; i++) {
            n += p->blocks[p->block_of[i]]->params.expert > 0 ? 1.0 : 0.0;
        }
    }
    return n;
}

static mf_op optimizer_op(mf_op_kind kind, mf_stream stream, const char *name, double rows,
                          double bytes) {
    return (mf_op){
        .kind = (uint8_t)kind,
        .pass = MF_PASS_O,
        .stream = (uint8_t)stream,
        .math = MF_MATH_BF16,
        .module = MF_MODULE_OPTIMIZER,
        .group = MF_GROUP_NONE,
        .forward = -1,
        .shape = {1, 1},
        .dim = {(int64_t)rows, 1},
        .bytes = bytes,
        .name = name,
    };
}

int mf_param_optimizer(const mf_layout *l, mf_param_count params, double copied_elements,
                       double expert_counts, mf_op *ops, int max) {
    double dense = (double)params.dense, expert = (double)params.expert;
    double own = (l->zero >= 1 ? ceil(dense / (double)(l->dp * l->cp)) : dense) +
                 (l->expert_zero >= 1 ? ceil(expert / (double)l->edp) : expert);
    double moment_B = l->moments_bf16 ? 2.0 : 4.0;
    mf_op made[10];
    int n = 0;
    if (copied_elements > 0) {
        double shard = l->zero >= 1 ? copied_elements / (double)(l->dp * l->cp) : copied_elements;
        made[n] =
            optimizer_op(MF_OP_ALL_REDUCE, MF_STREAM_PP, "embedding_copies", shard, 4.0 * shard);
        made[n].group = MF_GROUP_PP;
        made[n].shape = (mf_group_shape){2, (l->pp - 1) * (l->gpus / l->pp)};
        n++;
    }
    if (expert_counts > 0 && l->gpus > l->pp) {
        /* Auxiliary-loss-free balancing: expert counts of the batch over all ranks of the stage. */
        made[n] = optimizer_op(MF_OP_ALL_REDUCE, MF_STREAM_DP, "expert_counts", expert_counts,
                               4.0 * expert_counts);
        made[n].group = MF_GROUP_TP_CP_DP;
        made[n].shape = mf_layout_group(l, MF_GROUP_TP_CP_DP);
        n++;
    }
    made[n++] = optimizer_op(MF_OP_GRAD_NORM, MF_STREAM_COMPUTE, "grad_norm", own, 4.0 * own);
    if (l->gpus > 1) {
        made[n] = optimizer_op(MF_OP_ALL_REDUCE, MF_STREAM_DP, "grad_norm_all_reduce", 1, 4.0);
        made[n].group = MF_GROUP_WORLD;
        made[n].shape = mf_layout_group(l, MF_GROUP_WORLD);
        n++;
    }
    double host = own * l->offload_optimizer;
    double state_B = 4.0 + 2.0 * moment_B;
    if (host > 0) {
        made[n++] = optimizer_op(MF_OP_COPY_H2D, MF_STREAM_H2D, "optimizer_states_in", host,
                                 host * state_B);
    }
    /* Reads gradient, master and moments; writes master, moments and the parameter. */
    double master_B = l->precision == MF_PREC_FP32 ? 0.0 : 8.0;
    made[n++] = optimizer_op(MF_OP_ADAMW, MF_STREAM_COMPUTE, "adamw", own,
                             own * (4.0 + master_B + 4.0 * moment_B + 2.0 * param_B(l)));
    if (host > 0) {
        made[n++] = optimizer_op(MF_OP_COPY_D2H, MF_STREAM_D2H, "optimizer_states_out", host,
                                 host * state_B);
    }
    double low = (double)(params.dense_matrices + params.expert);
    if (l->precision != MF_PREC_BF16 && l->precision != MF_PREC_FP32) {
        made[n++] = optimizer_op(MF_OP_QUANTISE, MF_STREAM_COMPUTE, "quantise_weights", low,
                                 low * (2.0 + 2.0));
    }
    for (int i = 0; i < n && i < max; i++) {
        ops[i] = made[i];
    }
    return n < max ? n : max;
}

int mf_program_optimizer(const mf_program *p, int64_t stage, mf_op *ops, int max) {
    const mf_layout *l = &p->layout;
    double copied = 0.0;
    if (embedding_is_copied(p) && (stage == 0 || stage == l->pp - 1)) {
        copied = ceil((double)p->model.vocab / (double)l->tp) * (double)p->model.hidden;
    }
    double counts =
        p->model.correction_bias ? stage_moe_layers(p, stage) * (double)p->model.experts : 0.0;
    return mf_param_optimizer(l, mf_program_stage_params(p, stage), copied, counts, ops, max);
}

/* --- the program ------------------------------------------------------------------------------ */

static bool same_key(const mf_block_key *a, const mf_block_key *b) {
    return a->kind == b->kind && a->layer_class == b->layer_class && a->parts == b->parts &&
           a->split == b->split && a->shared_embedding == b->shared_embedding &&
           a->shared_head == b->shared_head && a->memory.recompute == b->memory.recompute &&
           a->memory.offload == b->memory.offload;
}

static int64_t stage_of_position(const mf_program *p, int position) {
    for (int v = 0; v < p->assignment.vstages; v++) {
        if (position < p->assignment.first[v + 1]) {
            return mf_layout_stage_of(&p->layout, v);
        }
    }
    return p->layout.pp - 1;
}

static mf_block_key position_key(const mf_program *p, int position) {
    const mf_model *m = &p->model;
    mf_block_key key = {
        .kind = mf_position_kind_of(m, position), .parts = MF_HALF_BOTH, .split = p->split};
    int64_t stage = stage_of_position(p, position);
    int last = p->assignment.positions - 1;
    if (key.kind == MF_POS_LAYER) {
        key.layer_class = m->layer_class[mf_position_index(m, position)];
        key.memory = p->assignment.memory[position];
    } else if (key.kind == MF_POS_MTP) {
        key.layer_class = m->mtp_class;
        key.memory = p->assignment.memory[position];
        key.shared_head = stage_of_position(p, last) == stage;
        key.shared_embedding = stage_of_position(p, 0) == stage;
        for (int i = (int)m->layers + 1; i < position;
             i++) { /* an earlier depth holds the copies */
            bool here = stage_of_position(p, i) == stage;
            key.shared_head |= here;
            key.shared_embedding |= here;
        }
    } else if (key.kind == MF_POS_HEAD) {
        key.shared_embedding = stage_of_position(p, 0) == stage;
        for (int i = (int)m->layers + 1; i < position; i++) {
            key.shared_embedding |= stage_of_position(p, i) == stage;
        }
    }
    return key;
}

static mf_op send_op(const mf_program *p, const char *name) {
    const mf_layout *l = &p->layout;
    double tokens = (double)l->mbs * (double)l->seq / (double)(l->tp * l->cp);
    double bytes = tokens * (double)p->model.hidden * param_B(l);
    mf_op op = {
        .kind = MF_OP_SEND_RECV,
        .pass = MF_PASS_F,
        .stream = MF_STREAM_PP,
        .math = MF_MATH_BF16,
        .module = MF_MODULE_PIPELINE,
        .group = MF_GROUP_PP,
        .forward = -1,
        .shape = mf_layout_group(l, MF_GROUP_PP),
        .dim = {1},
        .name = name,
    };
    op.bytes = l->pp > 1 ? bytes : 0.0;
    return op;
}

mf_status mf_program_lower(const mf_model *m, const mf_layout *l, const mf_cluster *c,
                           const mf_assignment *a, mf_program **out, mf_err *e) {
    *out = NULL;
    mf_status status = mf_assignment_check(m, l, a, e);
    if (status != MF_OK) {
        return status;
    }
    mf_program *p = calloc(1, sizeof *p);
    mf_block_key *keys = calloc((size_t)a->positions, sizeof *keys);
    if (p != NULL) {
        p->blocks = calloc((size_t)a->positions, sizeof(mf_block *));
    }
    if (p == NULL || keys == NULL || p->blocks == NULL) {
        status = mf_err_set(e, MF_NOMEM, "lowering: out of memory");
        goto fail;
    }
    p->model = *m;
    p->layout = *l;
    p->cluster = *c;
    p->assignment = *a;
    p->split = l->schedule == MF_SCHED_ZB_H1 || l->schedule == MF_SCHED_ZB_V;
    for (int i = 0; i < a->positions; i++) {
        mf_block_key key = position_key(p, i);
        int b = 0;
        while (b < p->nblocks && !same_key(&keys[b], &key)) {
            b++;
        }
        if (b == p->nblocks) {
            status = mf_block_lower(m, l, c, &key, &p->blocks[b], e);
            if (status != MF_OK) {
                goto fail;
            }
            keys[b] = key;
            p->nblocks++;
        }
        p->block_of[i] = b;
        const mf_block *block = p->blocks[b];
        assert(block != NULL);
        p->dp[i] = mf_param_dp_ops(l, block->params);
    }
    p->send_forward = send_op(p, "send_forward");
    p->send_backward = send_op(p, "send_backward");
    p->send_backward.pass = MF_PASS_B;
    p->send_backward.dim[0] = -1;
    free(keys);
    *out = p;
    return MF_OK;
fail:
    free(keys);
    mf_program_destroy(p);
    return status;
}

void mf_program_destroy(mf_program *p) {
    if (p == NULL) {
        return;
    }
    for (int i = 0; i < p->nblocks; i++) {
        mf_block_destroy(p->blocks[i]);
    }
    free(p->blocks);
    free(p);
}
