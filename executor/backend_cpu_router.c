/* backend_cpu_router.c - which experts tokens go to, and what that costs the loss, on the CPU. */
#include "executor/backend_cpu.h"

#include "kernels/router.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Scratch of the router: scores, and a place for results that are not wanted. */
typedef struct router_scratch {
    float *scores, *prob, *lse, *count, *prob_sum; /* count, prob_sum: [scopes, experts] */
    int32_t *index, *scope;
} router_scratch;

size_t mf_cpu_router_scratch_B(const mf_layout *l, const mf_model *m) {
    size_t rows = (size_t)(l->mbs * l->seq), k = (size_t)m->top_k, experts = (size_t)m->experts;
    size_t router = rows * (experts + 2 * k + 2) * 4 + 2 * (size_t)l->mbs * experts * 4;
    size_t drop = rows * (4 * k + 1) * 4;
    return (router > drop ? router : drop) + 256;
}

static router_scratch scratch_of(const mf_exec_op *x, int64_t rows) {
    const mf_model *m = x->env->model;
    int64_t scopes = x->env->layout->mbs;
    router_scratch s;
    s.scores = x->env->scratch;
    s.prob = s.scores + rows * m->experts;
    s.lse = s.prob + rows * m->top_k;
    s.count = s.lse + rows;
    s.prob_sum = s.count + scopes * m->experts;
    void *after = s.prob_sum + scopes * m->experts;
    s.index = after;
    s.scope = s.index + rows * m->top_k;
    return s;
}

static mf_kernel_router router_args(const mf_exec_op *x, const mf_exec_tensor *logits) {
    const mf_model *m = x->env->model;
    static const mf_route_score score[] = {
        [MF_ROUTER_SOFTMAX] = MF_ROUTE_SOFTMAX,
        [MF_ROUTER_TOPK_SOFTMAX] = MF_ROUTE_TOPK_SOFTMAX,
        [MF_ROUTER_SIGMOID] = MF_ROUTE_SIGMOID,
    };
    bool limited = m->n_group > 1 && m->topk_group < m->n_group;
    return (mf_kernel_router){.rows = logits->rows,
                              .experts = m->experts,
                              .top_k = m->top_k,
                              .score = score[m->router_score],
                              .normalise = m->norm_topk,
                              .scaling = (float)m->routed_scaling,
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

/* Row r of this rank among the rows of its CP rank: TP ranks hold consecutive runs. */
static int64_t row_in_region(const mf_exec_op *x, int64_t rows, int64_t r) {
    return x->env->at.t * rows + r;
}

static int64_t sample_of(const mf_layout *l, int64_t row_in_region) {
    return row_in_region / (l->seq / l->cp);
}

static bool by_sample(const mf_exec_op *x) {
    return x->env->layout->aux_scope == MF_AUX_SEQUENCE;
}

static int64_t scopes_of(const mf_exec_op *x) {
    return by_sample(x) ? x->env->layout->mbs : 1;
}

/* --- choices ------------------------------------------------------------------------------------
 */

/* Experts in turn by the token's place in the micro-batch: the same under every layout. */
static void force_balance(const mf_exec_op *x, const mf_kernel_router *a) {
    const mf_layout *l = x->env->layout;
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t at = row_in_region(x, a->rows, r);
        int64_t token = sample_of(l, at) * l->seq + x->env->position[at];
        for (int64_t j = 0; j < a->top_k; j++) {
            a->index[r * a->top_k + j] = (int32_t)((token * a->top_k + j) % a->experts);
        }
    }
}

/* Choices of each scope. Globally: the mean over this step's micro-batches so far, which the sum
 * over ranks that follows makes whole. */
static void count_choices(const mf_exec_op *x, const mf_kernel_router *a, float *count) {
    const float *load = x->env->load;
    assert(load != NULL); /* every position with experts counts */
    int64_t slots = a->rows * a->top_k;
    memset(count, 0, (size_t)(scopes_of(x) * a->experts) * sizeof *count);
    if (x->env->layout->aux_scope == MF_AUX_GLOBAL) {
        double seen = 0.0;
        for (int64_t i = 0; i < a->experts; i++) {
            seen += (double)load[i];
        }
        for (int64_t i = 0; i < a->experts; i++) {
            count[i] = (float)((double)load[i] * (double)slots / seen);
        }
        return;
    }
    for (int64_t i = 0; i < slots; i++) {
        int64_t at = row_in_region(x, a->rows, i / a->top_k);
        int64_t scope = by_sample(x) ? sample_of(x->env->layout, at) : 0;
        count[scope * a->experts + a->index[i]] += 1.0f;
    }
}

mf_status mf_cpu_router(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *logits = &x->in[0];
    mf_kernel_router a = router_args(x, logits);
    router_scratch s = scratch_of(x, a.rows);
    bool again = x->op->pass == MF_PASS_R;
    a.scores = s.scores;
    a.prob = again ? s.prob : x->out[1].data;
    a.index = again ? s.index : x->out[0].data;
    mf_status status = mf_kernel_router_forward(&a, e);
    if (again && x->op->nout > 0) { /* of the choices that were made */
        memcpy(s.index, x->in[1].data, (size_t)(a.rows * a.top_k) * sizeof *s.index);
        a.prob = x->out[0].data;
        return status == MF_OK ? mf_kernel_router_probabilities(&a, e) : status;
    }
    if (again || status != MF_OK) {
        return status;
    }
    if (x->env->force_balance) {
        force_balance(x, &a);
        status = mf_kernel_router_probabilities(&a, e);
    }
    for (int64_t i = 0; x->env->load != NULL && i < a.rows * a.top_k; i++) {
        x->env->load[a.index[i]] += 1.0f;
    }
    if (x->op->nout > 2) {
        count_choices(x, &a, x->out[2].data);
    }
    return status;
}

/* --- capacity -----------------------------------------------------------------------------------
 */

/* The choices of whole samples in order of position, then this rank's of what stays. */
static mf_status drop(const mf_exec_op *x, mf_err *e) {
    const mf_layout *l = x->env->layout;
    const mf_model *m = x->env->model;
    bool gathered = x->nin > 2;
    const int32_t *map = x->in[gathered ? 2 : 0].data;
    const float *prob = x->in[gathered ? 3 : 1].data;
    int64_t k = m->top_k, rows = l->mbs * l->seq, region = l->mbs * (l->seq / l->cp);
    int64_t own_rows = x->out[0].rows, first = x->env->at.c * region + x->env->at.t * own_rows;
    int32_t *index = x->env->scratch, *index_kept = index + rows * k;
    int32_t *sample = index_kept + rows * k;
    void *after = sample + rows;
    float *by_place = after, *prob_kept = by_place + rows * k;
    for (int64_t g = 0; g < rows; g++) {
        int64_t in = sample_of(l, g % region), place = in * l->seq + x->env->ring_position[g];
        sample[place] = (int32_t)in;
        memcpy(index + place * k, map + g * k, (size_t)k * sizeof *index);
        memcpy(by_place + place * k, prob + g * k, (size_t)k * sizeof *by_place);
    }
    const mf_kernel_router_drop a = {.rows = rows,
                                     .experts = m->experts,
                                     .top_k = k,
                                     .capacity = mf_layout_capacity(l, m),
                                     .samples = l->mbs,
                                     .sample = sample,
                                     .prob = by_place,
                                     .index = index,
                                     .prob_kept = prob_kept,
                                     .index_kept = index_kept};
    mf_status status = mf_kernel_router_capacity(&a, e);
    for (int64_t r = 0; r < own_rows; r++) {
        int64_t g = first + r;
        int64_t place = sample_of(l, g % region) * l->seq + x->env->ring_position[g];
        memcpy(mf_cpu_at(&x->out[0], r * k), index_kept + place * k, (size_t)k * 4);
        memcpy(mf_cpu_at(&x->out[1], r * k), prob_kept + place * k, (size_t)k * 4);
    }
    return status;
}

mf_status mf_cpu_router_drop(const mf_exec_op *x, mf_err *e) {
    if (x->op->pass == MF_PASS_F) {
        return drop(x, e);
    }
    /* By what was kept: (kept_map, probs) -> kept_probs. */
    const int32_t *kept = x->in[0].data;
    const float *prob = x->in[1].data;
    float *out = x->op->nout > 0 ? x->out[0].data : NULL;
    for (int64_t i = 0; out != NULL && i < x->out[0].rows * x->out[0].cols; i++) {
        out[i] = kept[i] >= 0 ? prob[i] : 0.0f;
    }
    return MF_OK;
}

/* --- losses -------------------------------------------------------------------------------------
 */

/* The auxiliary loss. Counts of a scope are summed over the ranks that share it; probabilities
 * stand here, so that each rank adds its part of the loss and the parts sum to it. */
static mf_status auxiliary(const mf_exec_op *x, const mf_kernel_router *a, const router_scratch *s,
                           mf_err *e) {
    const mf_model *m = x->env->model;
    const mf_layout *l = x->env->layout;
    const float *count = x->in[3].data;
    int64_t scopes = scopes_of(x);
    double tokens = (double)(by_sample(x) ? l->seq : l->mbs * l->seq);
    tokens *= l->aux_scope == MF_AUX_GLOBAL ? (double)l->dp : 1.0;
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t at = row_in_region(x, a->rows, r);
        s->scope[r] = (int32_t)(by_sample(x) ? sample_of(l, at) : 0);
    }
    memset(s->count, 0, (size_t)(2 * l->mbs * m->experts) * sizeof *s->count);
    const mf_kernel_router_stats stats = {.rows = a->rows,
                                          .experts = m->experts,
                                          .top_k = m->top_k,
                                          .score = a->score,
                                          .scopes = scopes,
                                          .scope = s->scope,
                                          .scores = a->scores,
                                          .index = x->in[2].data,
                                          .count = s->count,
                                          .prob_sum = s->prob_sum};
    mf_status status = mf_kernel_router_stats_add(&stats, e);
    double sum = 0.0;
    for (int64_t i = 0; i < scopes * m->experts; i++) {
        sum += (double)count[i] * (double)s->prob_sum[i];
    }
    *x->env->aux_sum +=
        (double)m->experts / ((double)m->top_k * tokens * tokens * (double)scopes) * sum;
    const mf_kernel_router_aux aux = {.experts = m->experts,
                                      .top_k = m->top_k,
                                      .scopes = scopes,
                                      .tokens = tokens,
                                      .weight_scale = x->env->aux_scale,
                                      .count = count,
                                      .prob_sum = s->prob_sum,
                                      .weight = s->count};
    return status == MF_OK ? mf_kernel_router_aux_loss(&aux, e) : status;
}

mf_status mf_cpu_router_grad(const mf_exec_op *x, mf_err *e) {
    const mf_model *m = x->env->model;
    const mf_exec_tensor *logits = &x->in[1];
    mf_kernel_router a = router_args(x, logits);
    router_scratch s = scratch_of(x, a.rows);
    a.scores = s.scores;
    a.prob = s.prob;
    a.index = s.index;
    a.lse = s.lse;
    mf_status status = mf_kernel_router_forward(&a, e);
    bool has_aux = x->nin > 3;
    if (status == MF_OK && has_aux) {
        status = auxiliary(x, &a, &s, e);
    }
    for (int64_t r = 0; x->env->z_scale > 0 && r < a.rows; r++) {
        *x->env->z_sum += (double)s.lse[r] * (double)s.lse[r];
    }
    const mf_kernel_router_grad grad = {.rows = a.rows,
                                        .experts = m->experts,
                                        .top_k = m->top_k,
                                        .score = a.score,
                                        .normalise = a.normalise,
                                        .scaling = a.scaling,
                                        .scores = a.scores,
                                        .index = x->in[2].data,
                                        .dprob = x->in[0].data,
                                        .aux_weight =
                                            has_aux && x->env->aux_scale > 0 ? s.count : NULL,
                                        .scope = s.scope,
                                        .logits = logits->data,
                                        .lse = s.lse,
                                        .z_weight = x->env->z_scale,
                                        .dlogits = x->out[0].data};
    return status == MF_OK ? mf_kernel_router_backward(&grad, e) : status;
}
