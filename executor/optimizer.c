/* optimizer.c - once a step: gradients summed over ranks, their norm, AdamW, parameters gathered.
 */
#include "executor/exec.h"

#include "kernels/adamw.h"
#include "kernels/grad_norm.h"
#include "kernels/router.h"

#include <math.h>
#include <string.h>

/* Ranges of a flat half that the members of its group own. */
static void shares_of(const mf_exec *x, int half, int64_t begin, int64_t end, int64_t *counts) {
    const mf_layout *l = &x->p->layout;
    int64_t total = half == 0 ? x->params.dense : x->params.expert;
    int64_t ranks = half == 0 ? l->dp * l->cp : l->edp;
    int64_t shard = (total + ranks - 1) / ranks;
    for (int64_t i = 0; i < ranks; i++) {
        int64_t a = i * shard > begin ? i * shard : begin;
        int64_t b = (i + 1) * shard < end ? (i + 1) * shard : end;
        counts[i] = b > a ? b - a : 0;
    }
}

static mf_group_kind group_of(int half) {
    return half == 0 ? MF_GROUP_DP_CP : MF_GROUP_EDP;
}

static int level_of(const mf_exec *x, int half) {
    return half == 0 ? x->p->layout.zero : x->p->layout.expert_zero;
}

/* Range of a position's parameters in a half. */
static bool range_of(const mf_exec *x, int position, int half, int64_t *begin, int64_t *end) {
    *begin = *end = -1;
    for (int i = x->params.first[position]; i < x->params.first[position + 1]; i++) {
        const mf_param *q = &x->params.list[i];
        if (q->expert == (half == 1)) {
            *begin = *begin < 0 ? q->offset : *begin;
            *end = q->offset + q->rows * q->cols;
        }
    }
    return *begin >= 0;
}

/* Every TP rank saw other tokens: what all of them hold whole sums over TP. Replicated K/V heads
 * sum over the ranks that hold the same ones. */
static mf_status sum_replicas(mf_exec *x, const mf_param *q, mf_err *e) {
    const mf_layout *l = &x->p->layout;
    const mf_model *m = &x->p->model;
    float *g = x->gradients[q->expert] + q->offset;
    if (q->expert) { /* bias of FC2: every ETP rank holds it */
        return q->replicated ? mf_comm_all_reduce(x->comm, MF_GROUP_ETP, MF_COMM_F32, MF_COMM_SUM,
                                                  g, q->rows * q->cols, e)
                             : MF_OK;
    }
    if (q->replicated) {
        return mf_comm_all_reduce(x->comm, MF_GROUP_TP, MF_COMM_F32, MF_COMM_SUM, g,
                                  q->rows * q->cols, e);
    }
    if (strcmp(q->name, "qkv_proj") != 0 || m->kv_heads >= l->tp) {
        return MF_OK;
    }
    /* The K and V rows of all TP ranks, of which those of the same heads are summed. */
    int64_t replicas = l->tp / m->kv_heads, first = x->at.t / replicas * replicas;
    int64_t rows = 2 * m->head_dim, count = rows * q->cols;
    float *own = g + (q->rows - rows) * q->cols, *all = x->scratch;
    mf_status status = mf_comm_all_gather(x->comm, MF_GROUP_TP, MF_COMM_F32, own, all, count, e);
    for (int64_t i = 0; i < count && status == MF_OK; i++) {
        double sum = 0.0;
        for (int64_t r = 0; r < replicas; r++) {
            sum += (double)all[(first + r) * count + i];
        }
        own[i] = (float)sum;
    }
    return status;
}

/* In place on the flat gradients: under ZeRO-1 this rank's share of each position is complete. */
static mf_status reduce_position(mf_exec *x, int position, int half, mf_err *e) {
    int64_t begin, end, counts[MF_COMM_MAX_GROUP];
    mf_group_kind group = group_of(half);
    int64_t members = mf_comm_group_size(x->comm, group);
    if (!range_of(x, position, half, &begin, &end) || members == 1) {
        return MF_OK;
    }
    x->ops++;
    float *g = x->gradients[half] + begin;
    if (level_of(x, half) == 0) {
        return mf_comm_all_reduce(x->comm, group, MF_COMM_F32, MF_COMM_SUM, g, end - begin, e);
    }
    shares_of(x, half, begin, end, counts);
    int64_t at = 0, me = mf_comm_group_rank(x->comm, group);
    for (int64_t i = 0; i < me; i++) {
        at += counts[i];
    }
    mf_status status =
        mf_comm_reduce_scatter(x->comm, group, MF_COMM_F32, g, x->scratch, counts, e);
    memcpy(g + at, x->scratch, (size_t)counts[me] * sizeof *g);
    return status;
}

mf_status mf_exec_reduce_gradients(mf_exec *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < x->params.count && status == MF_OK; i++) {
        status = sum_replicas(x, &x->params.list[i], e);
    }
    for (int i = 0; i < x->p->assignment.positions && status == MF_OK; i++) {
        for (int half = 0; half < 2 && status == MF_OK; half++) {
            status = reduce_position(x, i, half, e);
        }
    }
    return status;
}

/* --- norm
 * ------------------------------------------------------------------------------------------- */

static mf_status add_squares(const float *g, int64_t count, double *sum, mf_err *e) {
    const mf_kernel_grad_tensor one = {.grad = g, .count = count};
    const mf_kernel_grad_norm a = {.tensors = 1, .tensor = &one, .sum_sq = sum};
    return mf_kernel_grad_norm_add(&a, e);
}

/* Rows of a parameter that this rank counts: of TP replicas the first, of replicated K/V heads the
 * first of each. */
static int64_t counted_rows(const mf_exec *x, const mf_param *q) {
    const mf_layout *l = &x->p->layout;
    const mf_model *m = &x->p->model;
    if (q->replicated) {
        return (q->expert ? x->at.et : x->at.t) == 0 ? q->rows : 0;
    }
    if (strcmp(q->name, "qkv_proj") == 0 && m->kv_heads < l->tp &&
        x->at.t % (l->tp / m->kv_heads) != 0) {
        return q->rows - 2 * m->head_dim;
    }
    return q->rows;
}

mf_status mf_exec_grad_norm(mf_exec *x, double *norm, mf_err *e) {
    double sum = 0.0;
    mf_status status = MF_OK;
    for (int i = 0; i < x->params.count && status == MF_OK; i++) {
        const mf_param *q = &x->params.list[i];
        bool sharded = level_of(x, q->expert) >= 1;
        if (!sharded && mf_comm_group_rank(x->comm, group_of(q->expert)) != 0) {
            continue;
        }
        int64_t first, count, counted = counted_rows(x, q) * q->cols;
        mf_exec_owned(x, i, &first, &count);
        int64_t end = first + count < counted ? first + count : counted;
        if (end > first) {
            status = add_squares(mf_exec_gradient(x, i) + first, end - first, &sum, e);
        }
    }
    x->ops++;
    if (status == MF_OK) {
        status = mf_comm_all_reduce(x->comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_SUM, &sum, 1, e);
    }
    *norm = sqrt(sum);
    return status;
}

/* --- update
 * ------------------------------------------------------------------------------------------ */

static mf_status update_param(mf_exec *x, int i, double lr, const float *clip, mf_err *e) {
    const mf_param *q = &x->params.list[i];
    int64_t first, count;
    mf_exec_owned(x, i, &first, &count);
    if (count == 0) {
        return MF_OK;
    }
    int half = q->expert;
    int64_t in_shard = q->offset + first - x->owned_first[half];
    bool decays = !x->o.decay_matrices_only || q->cols > 1;
    mf_kernel_adamw_tensor t = {.master = mf_exec_param(x, i) + first,
                                .grad = mf_exec_gradient(x, i) + first,
                                .m = x->moments[0][half] + in_shard,
                                .v = x->moments[1][half] + in_shard,
                                .count = count,
                                .decay = decays ? (float)x->o.weight_decay : 0.0f};
    const mf_kernel_adamw a = {.moments = MF_KERNEL_F32,
                               .lr = (float)lr,
                               .beta1 = (float)x->o.beta1,
                               .beta2 = (float)x->o.beta2,
                               .eps = (float)x->o.eps,
                               .grad_scale = 1.0f,
                               .step = x->step,
                               .clip = clip,
                               .tensors = 1,
                               .tensor = &t};
    return mf_kernel_adamw_update(&a, e);
}

static mf_status gather_position(mf_exec *x, int position, int half, mf_err *e) {
    int64_t begin, end, counts[MF_COMM_MAX_GROUP];
    mf_group_kind group = group_of(half);
    if (level_of(x, half) == 0 || mf_comm_group_size(x->comm, group) == 1 ||
        !range_of(x, position, half, &begin, &end)) {
        return MF_OK;
    }
    x->ops++;
    shares_of(x, half, begin, end, counts);
    return mf_comm_all_gather_v(x->comm, group, MF_COMM_F32, x->weights[half] + begin, counts, e);
}

mf_status mf_exec_share_weights(mf_exec *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < x->p->assignment.positions && status == MF_OK; i++) {
        for (int half = 0; half < 2 && status == MF_OK; half++) {
            status = gather_position(x, i, half, e);
        }
    }
    return status;
}

/* Auxiliary-loss-free balancing: counts of the step over all ranks of the stage. */
static mf_status update_corrections(mf_exec *x, mf_err *e) {
    const mf_model *m = &x->p->model;
    mf_status status = MF_OK;
    for (int i = 0; i < x->p->assignment.positions && status == MF_OK; i++) {
        position_bind *q = &x->positions[i];
        if (q->correction == NULL || x->o.bias_rate <= 0) {
            continue;
        }
        status = mf_comm_all_reduce(x->comm, MF_GROUP_TP_CP_DP, MF_COMM_F32, MF_COMM_SUM, q->load,
                                    m->experts, e);
        if (status == MF_OK) {
            status = mf_kernel_router_bias_update(m->experts, (float)x->o.bias_rate, q->load,
                                                  q->correction, e);
        }
    }
    return status;
}

mf_status mf_exec_update(mf_exec *x, double lr, double norm, mf_err *e) {
    double sum_sq = norm * norm;
    float seen, clip;
    const mf_kernel_grad_clip factor = {.sum_sq = &sum_sq,
                                        .max_norm = (float)x->o.clip,
                                        .grad_scale = 1.0f,
                                        .norm = &seen,
                                        .clip = &clip};
    mf_status status = mf_kernel_grad_clip_factor(&factor, e);
    x->step++;
    for (int i = 0; i < x->params.count && status == MF_OK; i++) {
        status = update_param(x, i, lr, &clip, e);
    }
    x->ops++;
    status = status == MF_OK ? mf_exec_share_weights(x, e) : status;
    return status == MF_OK ? update_corrections(x, e) : status;
}
