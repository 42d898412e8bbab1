/* memory_inputs.c - sizes of what ops need beside tensors. */
#include "core/memory_inputs.h"

#include <string.h>

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t place(mf_inputs *x, int64_t size_B) {
    int64_t at = x->size_B;
    x->size_B += mf_align_B(size_B);
    return at;
}

void mf_memory_inputs(const mf_model *m, const mf_layout *l, mf_inputs *out) {
    mf_inputs *x = out;
    int64_t rows = l->mbs * (l->seq / l->cp), positions = mf_model_positions(m);
    *x = (mf_inputs){.size_B = 0};
    x->tokens = place(x, 4 * l->mbs * (l->seq + 1));
    for (int side = 0; side < (l->schedule == MF_SCHED_MERGED ? 2 : 1); side++) {
        x->rows[side] = place(x, 4 * 2 * rows * (m->mtp_layers + 1));
    }
    x->positions = place(x, 4 * rows);
    x->cu = place(x, 4 * (l->mbs + 1));
    x->full_cu = place(x, 4 * (l->mbs + 1));
    x->near_cu = place(x, 4 * (l->mbs + 1));
    x->ring_position = place(x, 4 * rows * l->cp);
    x->full_position = place(x, 4 * rows * l->cp);
    x->near_position = place(x, 4 * rows * l->cp);
    x->rope = place(x, 4 * l->seq * m->head_dim);
    x->sums = place(x, 8 * (MF_STEP_SUMS + positions));
    x->loads = place(x, 4 * positions * m->experts);
    x->corrections = place(x, 4 * positions * m->experts);
}

/* --- the room of reference kernels -------------------------------------------------------------
 */

/* Largest operand that is no weight. */
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

/* Of attention (queries and keys in float), routers (scores, choices by place), exchanges (what
 * leaves and what arrives, each with what is beside it). */
static int64_t ops_B(const mf_program *p, int64_t widest) {
    const mf_layout *l = &p->layout;
    const mf_model *m = &p->model;
    int64_t rows = l->mbs * l->seq, k = m->top_k, experts = m->experts;
    int64_t attention = 8 * rows * (m->head_dim + m->v_head_dim) + 4096;
    int64_t router = 4 * (rows * (experts + 2 * k + 2) + 2 * l->mbs * experts);
    return attention + most(router, 4 * rows * (4 * k + 1)) + 4 * widest + 4096 + 256;
}

/* Gradients of a position in flight to their shards. */
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

/* What pass O packs: counts, sums over copies, shards of tables from and for other stages. */
static int64_t once_B(const mf_program *p, int64_t stage) {
    mf_once w;
    mf_program_once(p, stage, &w);
    int64_t largest = p->assignment.positions * p->model.experts;
    for (int k = 0; k < MF_SUM_COUNT; k++) {
        largest = most(largest, w.replicas.of[k]);
    }
    for (int t = 0; t < MF_TABLES; t++) {
        if (w.table_elements[t] > 0.0 && w.table_copies[t] > 1) {
            largest = most(largest, (2 * w.table_copies[t] + 1) * (int64_t)w.table_elements[t]);
        }
    }
    return 4 * largest;
}

int64_t mf_memory_scratch_B(const mf_program *p, int64_t stage, int64_t *lent_B) {
    *lent_B = 0;
    if (!mf_cluster_is_cpu(&p->cluster)) {
        return 0;
    }
    int64_t widest = widest_B(p);
    int64_t room = most(ops_B(p, widest), most(positions_B(p, stage), once_B(p, stage)));
    *lent_B = p->layout.precision == MF_PREC_FP32 ? 0 : mf_align_B(widest);
    return mf_align_B(room) + *lent_B;
}
