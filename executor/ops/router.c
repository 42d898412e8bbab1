/* router.c - the router's choices, and the losses that balance them. */
#include "executor/ops/ops.h"

#include <assert.h>

/* What the backward pass needs besides its operands. */
typedef struct router_scratch {
    float *scores, *prob, *lse, *count, *prob_sum; /* count, prob_sum: [scopes, experts] */
    int32_t *index;
    mf_ops_scratch rest;
} router_scratch;

static router_scratch scratch_of(const mf_exec_op *x, int64_t rows) {
    const mf_model *m = x->env->model;
    size_t sums = (size_t)(x->env->layout->mbs * m->experts) * sizeof(float);
    size_t choices = (size_t)(rows * m->top_k) * 4;
    router_scratch s = {.rest = mf_ops_scratch_of(x)};
    s.scores = mf_ops_take(&s.rest, (size_t)(rows * m->experts) * sizeof(float));
    s.prob = mf_ops_take(&s.rest, choices);
    s.index = mf_ops_take(&s.rest, choices);
    s.lse = mf_ops_take(&s.rest, (size_t)rows * sizeof(float));
    s.count = mf_ops_take(&s.rest, sums);
    s.prob_sum = mf_ops_take(&s.rest, sums);
    return s;
}

static mf_kernel_router router_args(const mf_exec_op *x, const mf_exec_tensor *logits) {
    const mf_model *m = x->env->model;
    static const mf_route_score score[] = {
        [MF_ROUTER_SOFTMAX] = MF_ROUTE_SOFTMAX,
        [MF_ROUTER_TOPK_SOFTMAX] = MF_ROUTE_TOPK_SOFTMAX,
        [MF_ROUTER_SIGMOID] = MF_ROUTE_SIGMOID,
        [MF_ROUTER_TOPK_SIGMOID] = MF_ROUTE_SIGMOID, /* they order as the logits do */
        [MF_ROUTER_SPARSEMIXER] = MF_ROUTE_SPARSEMIXER,
    };
    bool limited = m->n_group > 1 && m->topk_group < m->n_group;
    return (mf_kernel_router){.rows = logits->rows,
                              .experts = m->experts,
                              .top_k = m->top_k,
                              .score = score[x->op->dim[MF_OP_DIM_SCORE]],
                              .normalise = m->norm_topk,
                              .scaling = x->op->alpha,
                              .jitter = (float)m->router_jitter,
                              .groups = limited ? m->n_group : 1,
                              .group_topk = limited ? m->topk_group : 1,
                              .group_score = m->router_score == MF_ROUTER_SIGMOID
                                                 ? MF_ROUTE_GROUP_TOP2
                                                 : MF_ROUTE_GROUP_MAX,
                              .logits = logits->data,
                              .bias = x->env->correction_bias};
}

/* --- whose token a row is -----------------------------------------------------------------------
 */

/* The first of this rank's rows among the rows of its CP rank: TP ranks hold consecutive runs. */
static int64_t first_row(const mf_exec_op *x, int64_t rows) {
    return x->env->at.t * rows;
}

static bool by_sample(const mf_exec_op *x) {
    return x->env->layout->aux_scope == MF_AUX_SEQUENCE;
}

static int64_t scopes_of(const mf_exec_op *x) {
    return by_sample(x) ? x->env->layout->mbs : 1;
}

/* Scope of the auxiliary loss of each row; NULL: one scope. */
static const int32_t *scope_of_rows(const mf_exec_op *x, int64_t rows) {
    return by_sample(x) ? x->env->sample + first_row(x, rows) : NULL;
}

/* --- choices ------------------------------------------------------------------------------------
 */

/* Chooses experts by the token's place in the micro-batch, the same under every layout. */
static mf_status force_choices(const mf_exec_op *x, const mf_kernel_router *a, mf_err *e) {
    const mf_layout *l = x->env->layout;
    const mf_kernel_router_force f = {.rows = a->rows,
                                      .top_k = a->top_k,
                                      .experts = a->experts,
                                      .seq = l->seq,
                                      .run = l->seq / l->cp,
                                      .first_row = first_row(x, a->rows),
                                      .position = x->env->position,
                                      .index = a->index,
                                      .first = x->env->forced,
                                      .tokens = l->mbs * l->seq,
                                      .stride = x->env->forced_stride};
    mf_status status = mf_ops_device(x)->router_force(x->queue, &f, e);
    return status == MF_OK ? mf_ops_device(x)->router_probabilities(x->queue, a, e) : status;
}

/* Counts the choices of the step so far, and of each scope. Global scope: the mean over the step's
 * micro-batches so far, which the following sum over ranks completes. */
static mf_status count_choices(const mf_exec_op *x, const mf_kernel_router *a, mf_err *e) {
    bool counted = x->op->nout > 2;
    const mf_kernel_router_count c = {.rows = a->rows,
                                      .top_k = a->top_k,
                                      .experts = a->experts,
                                      .scopes = scopes_of(x),
                                      .scope = scope_of_rows(x, a->rows),
                                      .global = x->env->layout->aux_scope == MF_AUX_GLOBAL,
                                      .index = a->index,
                                      .load = x->env->load,
                                      .count = counted ? x->out[2].data : NULL};
    assert(!counted || x->env->load != NULL); /* every position with experts counts */
    return c.load != NULL || counted ? mf_ops_device(x)->router_count(x->queue, &c, e) : MF_OK;
}

mf_status mf_op_router(const mf_exec_op *x, mf_err *e) {
    mf_kernel_router a = router_args(x, &x->in[0]);
    router_scratch s = scratch_of(x, a.rows);
    bool again = x->op->pass == MF_PASS_R;
    if (again && x->op->nout == 0) {
        return MF_OK;
    }
    a.scores = s.scores;
    a.prob = again ? s.prob : x->out[1].data;
    a.index = again ? s.index : x->out[0].data;
    mf_status status = mf_ops_device(x)->router(x->queue, &a, e);
    if (again) { /* only the probabilities of the choices that were made */
        a.index = x->in[1].data;
        a.prob = x->out[0].data;
        return status == MF_OK ? mf_ops_device(x)->router_probabilities(x->queue, &a, e) : status;
    }
    if (status == MF_OK && (x->env->force_balance || x->env->forced != NULL)) {
        status = force_choices(x, &a, e);
    }
    return status == MF_OK ? count_choices(x, &a, e) : status;
}

/* --- capacity -----------------------------------------------------------------------------------
 */

static mf_status place(const mf_exec_op *x, int64_t rows, bool back, int64_t first, const void *src,
                       void *dst, mf_err *e) {
    const mf_kernel_router_place a = {.rows = rows,
                                      .top_k = x->env->model->top_k,
                                      .place = x->env->place,
                                      .back = back,
                                      .first = first,
                                      .src = src,
                                      .dst = dst};
    return mf_ops_device(x)->router_place(x->queue, &a, e);
}

/* Drops choices over whole samples in order of position, then takes this rank's. */
static mf_status drop(const mf_exec_op *x, mf_err *e) {
    const mf_layout *l = x->env->layout;
    const mf_model *m = x->env->model;
    bool gathered = x->nin > 2;
    int64_t rows = l->mbs * l->seq, region = l->mbs * (l->seq / l->cp);
    int64_t own = x->out[0].rows, first = x->env->at.c * region + x->env->at.t * own;
    size_t choices = (size_t)(rows * m->top_k) * 4;
    mf_ops_scratch s = mf_ops_scratch_of(x);
    int32_t *index = mf_ops_take(&s, choices), *index_kept = mf_ops_take(&s, choices);
    float *prob = mf_ops_take(&s, choices), *prob_kept = mf_ops_take(&s, choices);
    const mf_kernel_router_drop a = {.rows = rows,
                                     .experts = m->experts,
                                     .top_k = m->top_k,
                                     .capacity = mf_layout_capacity(l, m),
                                     .samples = l->mbs,
                                     .sample = x->env->place_sample,
                                     .prob = prob,
                                     .index = index,
                                     .prob_kept = prob_kept,
                                     .index_kept = index_kept,
                                     .workspace = s.at};
    mf_status status = place(x, rows, false, 0, x->in[gathered ? 2 : 0].data, index, e);
    status =
        status == MF_OK ? place(x, rows, false, 0, x->in[gathered ? 3 : 1].data, prob, e) : status;
    status = status == MF_OK ? mf_ops_device(x)->router_drop(x->queue, &a, e) : status;
    status = status == MF_OK ? place(x, own, true, first, index_kept, x->out[0].data, e) : status;
    return status == MF_OK ? place(x, own, true, first, prob_kept, x->out[1].data, e) : status;
}

mf_status mf_op_router_drop(const mf_exec_op *x, mf_err *e) {
    if (x->op->pass == MF_PASS_F) {
        return drop(x, e);
    }
    if (x->op->nout == 0) {
        return MF_OK;
    }
    /* By the choices that were kept: (kept_map, probs) -> kept_probs. */
    const mf_kernel_router_keep a = {.count = x->out[0].rows * x->out[0].cols,
                                     .kept = x->in[0].data,
                                     .prob = x->in[1].data,
                                     .out = x->out[0].data};
    return mf_ops_device(x)->router_keep(x->queue, &a, e);
}

/* --- losses -------------------------------------------------------------------------------------
 */

/* The auxiliary loss. Counts of a scope are summed over the ranks that have tokens in it,
 * probabilities are this rank's, so each rank adds its part and the parts sum to the loss. */
static mf_status auxiliary(const mf_exec_op *x, const mf_kernel_router *a, const router_scratch *s,
                           mf_err *e) {
    const mf_model *m = x->env->model;
    const mf_layout *l = x->env->layout;
    const mf_device_ops *k = mf_ops_device(x);
    double tokens = (double)(by_sample(x) ? l->seq : l->mbs * l->seq);
    tokens *= l->aux_scope == MF_AUX_GLOBAL ? (double)l->dp : 1.0;
    size_t sums_B = (size_t)((char *)(s->prob_sum + l->mbs * m->experts) - (char *)s->count);
    const mf_kernel_router_stats stats = {.rows = a->rows,
                                          .experts = m->experts,
                                          .top_k = m->top_k,
                                          .score = a->score,
                                          .scopes = scopes_of(x),
                                          .scope = scope_of_rows(x, a->rows),
                                          .scores = a->scores,
                                          .index = x->in[2].data,
                                          .count = s->count,
                                          .prob_sum = s->prob_sum,
                                          .workspace = s->rest.at};
    const mf_kernel_router_aux aux = {.experts = m->experts,
                                      .top_k = m->top_k,
                                      .scopes = scopes_of(x),
                                      .tokens = tokens,
                                      .weight_scale = x->env->aux_scale,
                                      .count = x->in[3].data,
                                      .prob_sum = s->prob_sum,
                                      .aux = x->env->aux_sum,
                                      .weight = s->count};
    mf_status status = k->zero(x->queue, s->count, sums_B, e);
    status = status == MF_OK ? k->router_stats(x->queue, &stats, e) : status;
    return status == MF_OK ? k->router_aux(x->queue, &aux, e) : status;
}

mf_status mf_op_router_grad(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *logits = &x->in[1];
    const mf_device_ops *k = mf_ops_device(x);
    mf_kernel_router a = router_args(x, logits);
    router_scratch s = scratch_of(x, a.rows);
    a.scores = s.scores;
    a.prob = s.prob;
    a.index = s.index;
    a.lse = s.lse;
    mf_status status = k->router(x->queue, &a, e);
    bool has_aux = x->nin > 3;
    if (status == MF_OK && has_aux) {
        status = auxiliary(x, &a, &s, e);
    }
    if (status == MF_OK && x->env->z_scale > 0) {
        const mf_device_z z = {.rows = a.rows, .lse = s.lse, .sum = x->env->z_sum};
        status = k->router_z(x->queue, &z, e);
    }
    const mf_kernel_router_grad grad = {.rows = a.rows,
                                        .experts = a.experts,
                                        .top_k = a.top_k,
                                        .score = a.score,
                                        .normalise = a.normalise,
                                        .scaling = a.scaling,
                                        .jitter = a.jitter,
                                        .scores = a.scores,
                                        .index = x->in[2].data,
                                        .dprob = x->in[0].data,
                                        .aux_weight =
                                            has_aux && x->env->aux_scale > 0 ? s.count : NULL,
                                        .scope = scope_of_rows(x, a.rows),
                                        .logits = logits->data,
                                        .lse = s.lse,
                                        .z_weight = x->env->z_scale,
                                        .dlogits = x->out[0].data};
    return status == MF_OK ? k->router_grad(x->queue, &grad, e) : status;
}
