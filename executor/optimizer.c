/* optimizer.c - pass O after the reductions: counts, norm, AdamW, parameters gathered. */
#include "executor/exec.h"

#include "kernels/adamw.h"
#include "kernels/grad_norm.h"
#include "kernels/router.h"

#include <math.h>
#include <string.h>

/* --- before the norm -----------------------------------------------------------------------------
 */

/* Auxiliary-loss-free balancing: counts of the step over all ranks of the stage, all layers in one
 * message. */
static mf_status sum_counts(mf_exec *x, const mf_op *op, mf_err *e) {
    int64_t experts = x->p->model.experts, at = 0;
    float *packed = x->scratch;
    mf_status status = MF_OK;
    for (int out = 0; out < 2 && status == MF_OK; out++) {
        at = 0;
        for (int i = 0; i < x->p->assignment.positions; i++) {
            float *load = x->positions[i].load;
            if (load != NULL) {
                memcpy(out ? load : packed + at, out ? packed + at : load,
                       (size_t)experts * sizeof *load);
                at += experts;
            }
        }
        if (out == 0) {
            status = mf_comm_all_reduce(x->comm, (mf_group_kind)op->group, MF_COMM_F32, MF_COMM_SUM,
                                        packed, at, e);
        }
    }
    return status;
}

static mf_status add_squares(const float *g, int64_t count, double *sum, mf_err *e) {
    const mf_kernel_grad_tensor one = {.grad = g, .count = count};
    const mf_kernel_grad_norm a = {.tensors = 1, .tensor = &one, .sum_sq = sum};
    return mf_kernel_grad_norm_add(&a, e);
}

/* This rank's part of the mean over depths of the mean over their labels: what is trained. */
static double mtp_loss(const mf_exec *x) {
    const mf_layout *l = &x->p->layout;
    int64_t depths = x->p->model.mtp_layers;
    double loss = 0.0;
    for (int64_t d = 0; d < depths; d++) {
        loss += x->mtp_sum[d] / (double)(l->gbs * (l->seq - d - 1)) / (double)depths;
    }
    return loss;
}

/* Squares of what this rank counts, beside the losses of its own rows. */
static mf_status norm(mf_exec *x, const mf_op *op, mf_err *e) {
    mf_status status = MF_OK;
    (void)op;
    x->sums[0] = 0.0;
    x->sums[1] = x->loss_sum;
    x->sums[2] = mtp_loss(x);
    x->sums[3] = x->z_sum;
    for (int i = 0; i < x->params.count && status == MF_OK; i++) {
        const mf_param *q = &x->params.list[i];
        bool sharded = mf_exec_zero(x, q->expert) >= 1;
        if (!sharded && mf_comm_group_rank(x->comm, mf_exec_zero_group(q->expert)) != 0) {
            continue;
        }
        int64_t first, count, counted = mf_exec_counted(x, q);
        const float *g = mf_exec_own_gradient(x, i, &first, &count);
        int64_t end = first + count < counted ? first + count : counted;
        if (end > first) {
            status = add_squares(g, end - first, &x->sums[0], e);
        }
    }
    return status;
}

static mf_status sum_over_world(mf_exec *x, const mf_op *op, mf_err *e) {
    return mf_comm_all_reduce(x->comm, (mf_group_kind)op->group, MF_COMM_F64, MF_COMM_SUM, x->sums,
                              MF_STEP_SUMS + x->p->assignment.positions, e);
}

/* --- update
 * ------------------------------------------------------------------------------------------ */

/* States on the host (master weights that are not the weights themselves, moments) come to the
 * device for their update, and go back. */
static void *fetch_state(const mf_exec *x, void *state, int64_t size_B, void *device) {
    if ((char *)state + size_B <= x->host_states) {
        return state;
    }
    memcpy(device, state, (size_t)size_B);
    return device;
}

static void return_state(void *state, int64_t size_B, const void *device) {
    if (device != state) {
        memcpy(state, device, (size_t)size_B);
    }
}

/* Elements [from, from + count) of those that this rank owns of a parameter. */
static mf_status update_piece(mf_exec *x, int i, int64_t from, int64_t count, const float *clip,
                              mf_err *e) {
    const mf_param *q = &x->params.list[i];
    int64_t first, owned;
    float *weight = mf_exec_own_weight(x, i, &first, &owned);
    float *gradient = mf_exec_own_gradient(x, i, &first, &owned), *device = x->scratch;
    int64_t moment_B = (int64_t)mf_kernel_dtype_B(x->moment_type), size_B = moment_B * count;
    int64_t in_shard = q->offset + first - x->owned_first[q->expert] + from;
    char *m = x->moments[0][q->expert] + moment_B * in_shard;
    char *v = x->moments[1][q->expert] + moment_B * in_shard;
    uint16_t *rounded = x->weight_type == MF_KERNEL_BF16 ? mf_exec_own_copy(x, i) : NULL;
    bool decays = !x->o.decay_matrices_only || q->cols > 1;
    mf_kernel_adamw_tensor t = {.master = fetch_state(x, weight + from, 4 * count, device),
                                .grad = gradient + from,
                                .param = rounded != NULL ? rounded + from : NULL,
                                .m = fetch_state(x, m, size_B, device + count),
                                .v = fetch_state(x, v, size_B, device + 2 * count),
                                .count = count,
                                .decay = decays ? (float)x->o.weight_decay : 0.0f};
    const mf_kernel_adamw a = {.moments = x->moment_type,
                               .lr = (float)x->lr,
                               .beta1 = (float)x->o.beta1,
                               .beta2 = (float)x->o.beta2,
                               .eps = (float)x->o.eps,
                               .grad_scale = 1.0f,
                               .step = x->step,
                               .clip = clip,
                               .tensors = 1,
                               .tensor = &t};
    mf_status status = mf_kernel_adamw_update(&a, e);
    return_state(weight + from, 4 * count, t.master);
    return_state(m, size_B, t.m);
    return_state(v, size_B, t.v);
    return status;
}

/* In pieces of at most this many elements where states have to travel. */
enum { PIECE = 512 };

static mf_status update_param(mf_exec *x, int i, const float *clip, mf_err *e) {
    int64_t first, count;
    mf_exec_owned(x, i, &first, &count);
    int64_t piece = x->p->layout.offload_optimizer > 0 ? PIECE : count;
    mf_status status = MF_OK;
    for (int64_t from = 0; from < count && status == MF_OK; from += piece) {
        int64_t left = count - from;
        status = update_piece(x, i, from, left < piece ? left : piece, clip, e);
    }
    return status;
}

/* The copies go piece by piece beside the update, which does them. */
static mf_status goes_with_update(mf_exec *x, const mf_op *op, mf_err *e) {
    (void)x, (void)op, (void)e;
    return MF_OK;
}

static mf_status update_corrections(mf_exec *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < x->p->assignment.positions && status == MF_OK; i++) {
        position_bind *q = &x->positions[i];
        if (q->correction != NULL && x->o.bias_rate > 0) {
            status = mf_kernel_router_bias_update(x->p->model.experts, (float)x->o.bias_rate,
                                                  q->load, q->correction, e);
        }
    }
    return status;
}

static mf_status adamw(mf_exec *x, const mf_op *op, mf_err *e) {
    float seen, clip;
    const mf_kernel_grad_clip factor = {.sum_sq = &x->sums[0],
                                        .max_norm = (float)x->o.clip,
                                        .grad_scale = 1.0f,
                                        .norm = &seen,
                                        .clip = &clip};
    mf_status status = mf_kernel_grad_clip_factor(&factor, e);
    (void)op;
    x->step++;
    for (int i = 0; i < x->params.count && status == MF_OK; i++) {
        status = update_param(x, i, &clip, e);
    }
    return status == MF_OK ? update_corrections(x, e) : status;
}

static mf_status gather_position(mf_exec *x, int position, int side, mf_err *e) {
    const mf_op *op = &x->p->dp[position].gather[side];
    int64_t begin, end, counts[MF_COMM_MAX_GROUP];
    if (!(op->bytes > 0) || !mf_exec_range(x, position, side, &begin, &end)) {
        return MF_OK;
    }
    mf_exec_shares(x, side, begin, end, counts);
    mf_comm_type type = x->weight_type == MF_KERNEL_BF16 ? MF_COMM_BF16 : MF_COMM_F32;
    mf_status status = mf_exec_runs(x, op)
                           ? mf_comm_all_gather_v(x->comm, mf_exec_zero_group(side), type,
                                                  mf_exec_weight_at(x, side, begin), counts, e)
                           : MF_OK;
    mf_exec_ran(x, op);
    return status;
}

/* --- the ops of pass O
 * ------------------------------------------------------------------------------- */

static mf_status run_once(mf_exec *x, bool update, mf_err *e) {
    static const struct {
        const char *name;
        bool update;
        mf_status (*run)(mf_exec *x, const mf_op *op, mf_err *e);
    } row[] = {
        {"sum_kv_heads", false, mf_exec_sum_copies},
        {"sum_replicated", false, mf_exec_sum_copies},
        {"sum_expert_biases", false, mf_exec_sum_copies},
        {"embedding_copies", false, mf_exec_sum_tables},
        {"head_copies", false, mf_exec_sum_tables},
        {"expert_counts", false, sum_counts},
        {"grad_norm", false, norm},
        {"grad_norm_all_reduce", false, sum_over_world},
        {"optimizer_states_in", true, goes_with_update},
        {"adamw", true, adamw},
        {"optimizer_states_out", true, goes_with_update},
    };
    mf_status status = MF_OK;
    for (; x->once_at < x->nonce && status == MF_OK; x->once_at++) {
        const mf_op *op = &x->once[x->once_at];
        size_t k = 0;
        while (k < sizeof row / sizeof row[0] && strcmp(row[k].name, op->name) != 0) {
            k++;
        }
        if (k == sizeof row / sizeof row[0]) {
            return mf_err_set(e, MF_INTERNAL, "no way to run \"%s\" once a step", op->name);
        }
        if (row[k].update != update) {
            break;
        }
        status = mf_exec_runs(x, op) ? row[k].run(x, op, e) : MF_OK;
        if (status != MF_OK) {
            return mf_err_prefix(e, "%s", op->name);
        }
        mf_exec_ran(x, op);
    }
    return status;
}

mf_status mf_exec_once_gradients(mf_exec *x, mf_err *e) {
    mf_status status = mf_exec_reduce_positions(x, e);
    x->once_at = 0;
    return status == MF_OK ? run_once(x, false, e) : status;
}

/* Ranks get what others updated. */
static mf_status gather_weights(mf_exec *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < x->p->assignment.positions && status == MF_OK; i++) {
        for (int side = 0; side < 2 && status == MF_OK; side++) {
            status = x->positions[i].block != NULL ? gather_position(x, i, side, e) : MF_OK;
        }
    }
    return status;
}

mf_status mf_exec_share_weights(mf_exec *x, mf_err *e) {
    for (int i = 0; i < x->params.count && x->weight_type != MF_KERNEL_F32; i++) {
        int64_t first, count;
        const float *master = mf_exec_own_weight(x, i, &first, &count);
        void *copy = mf_exec_own_copy(x, i);
        for (int64_t k = 0; k < count; k++) {
            mf_kernel_put(copy, x->weight_type, k, master[k]);
        }
    }
    return gather_weights(x, e);
}

mf_status mf_exec_once_update(mf_exec *x, mf_err *e) {
    mf_status status = run_once(x, true, e);
    return status == MF_OK ? gather_weights(x, e) : status;
}
