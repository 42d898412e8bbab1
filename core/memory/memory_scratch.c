/* memory_scratch.c - scratch that kernels need beside their operands: a part for each stream of a
 * GPU, one for all streams of CPU ranks. */
#include "core/memory/memory.h"
#include "core/memory/memory_inputs.h"

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* --- scratch of reference kernels ---------------------------------------------------------------
 */

/* The largest operand that is not a weight. */
static int64_t widest_B(const mf_program *p) {
    int64_t widest = 0;
    for (int i = 0; i < p->nblocks; i++) {
        for (int t = 0; t < p->blocks[i]->ntensors; t++) {
            const mf_tensor *x = &p->blocks[i]->tensors[t];
            if (x->class != MF_TENSOR_WEIGHT && x->class != MF_TENSOR_GRADIENT) {
                widest = most(widest, x->bytes);
            }
        }
    }
    return widest;
}

/* Scratch of attention (queries and keys in float), of routers (scores, choices by place), and of
 * exchanges (rows that leave and arrive, each with its choices and probabilities). */
static int64_t ops_B(const mf_program *p, int64_t widest) {
    const mf_layout *l = &p->layout;
    const mf_model *m = &p->model;
    int64_t rows = l->mbs * l->seq, k = m->top_k, experts = m->experts;
    int64_t attention = 8 * rows * (m->head_dim + m->v_head_dim) + 4096;
    int64_t router = 4 * (rows * (experts + 2 * k + 2) + 2 * l->mbs * experts);
    return attention + most(router, 4 * rows * (4 * k + 1)) + 4 * widest + 4096 + 8 * MF_ALIGN_B;
}

/* Gradients of a position on their way to their shards. */
static int64_t positions_B(const mf_program *p, int64_t stage) {
    int64_t largest = 0;
    for (int i = 0; i < p->assignment.positions; i++) {
        const mf_block *b = p->blocks[p->block_of[i]];
        if (mf_program_stage_of(p, i) == stage) {
            largest = most(largest, 4 * (b->params.dense + b->params.expert + b->shared));
        }
    }
    return largest;
}

int64_t mf_memory_table_sum(const mf_layout *l, int64_t copies, int64_t table, int64_t dense) {
    const int64_t ranks = l->dp * l->cp, window = dense / ranks + ranks - 1;
    return l->zero == 0 || ranks == 1 ? 0 : (2 * copies - 1) * (window < table ? window : table);
}

/* The largest position of a stage, by elements outside its experts. */
static int64_t largest_dense(const mf_program *p, int64_t stage) {
    int64_t largest = 0;
    for (int i = 0; i < p->assignment.positions; i++) {
        const int64_t dense = p->blocks[p->block_of[i]]->params.dense;
        largest = mf_program_stage_of(p, i) == stage ? most(largest, dense) : largest;
    }
    return largest;
}

/* What pass O packs into one message: counts, sums over copies, shards of tables from and for other
 * stages. */
static int64_t step_end_B(const mf_program *p, int64_t stage, const mf_step_end *w) {
    int64_t largest = p->assignment.positions * p->model.experts;
    for (int k = 0; k < MF_SUM_COUNT; k++) {
        largest = most(largest, w->replicas.of[k]);
    }
    for (int t = 0; t < MF_TABLES; t++) {
        if (w->table_elements[t] > 0.0 && w->table_copies[t] > 1) {
            largest = most(largest, mf_memory_table_sum(&p->layout, w->table_copies[t],
                                                        (int64_t)w->table_elements[t],
                                                        largest_dense(p, stage)));
        }
    }
    return 4 * largest;
}

/* Each stream's part is what its widest op needs. Where there are several ranks, what they sum at
 * the end of a step is packed in the part of compute; gradients on their way to a shard use that of
 * DP. */
static void gpu_scratch(const mf_program *p, int64_t stage, const mf_step_end *end, mf_scratch *x) {
    bool parts = p->layout.zero >= 2 || p->layout.expert_zero >= 2; /* added to a shard */
    x->part_B[MF_STREAM_COMPUTE] = 1 << 20;
    for (int i = 0; i < p->assignment.positions; i++) {
        for (int s = 0; s < MF_STREAM_COUNT && mf_program_stage_of(p, i) == stage; s++) {
            x->part_B[s] = most(x->part_B[s], p->blocks[p->block_of[i]]->scratch_B[s]);
        }
    }
    if (p->layout.gpus > 1) {
        int64_t *compute_B = &x->part_B[MF_STREAM_COMPUTE], *dp_B = &x->part_B[MF_STREAM_DP];
        *compute_B = most(*compute_B, step_end_B(p, stage, end));
        *dp_B = most(*dp_B, parts ? positions_B(p, stage) : 0);
    }
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        x->at_B[s] = x->size_B;
        x->part_B[s] = mf_align_B(x->part_B[s]);
        x->size_B += x->part_B[s];
    }
}

void mf_memory_scratch(const mf_program *p, int64_t stage, const mf_step_end *end,
                       mf_scratch *out) {
    *out = (mf_scratch){.size_B = 0};
    if (!mf_cluster_is_cpu(&p->cluster)) {
        gpu_scratch(p, stage, end, out);
        return;
    }
    int64_t widest = widest_B(p);
    int64_t part_B = most(ops_B(p, widest), most(positions_B(p, stage), step_end_B(p, stage, end)));
    out->lent_B = p->layout.precision == MF_PREC_FP32 ? 0 : mf_align_B(widest);
    out->size_B = mf_align_B(part_B) + out->lent_B;
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        out->part_B[s] = mf_align_B(part_B);
    }
}
