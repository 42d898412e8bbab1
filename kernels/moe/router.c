/* router.c - reference of the router: selection, probabilities, losses, gradients. */
#include "kernels/moe/router.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

/* Slots in expert order, first places of the experts, and the counts of the sort's stretches. */
size_t mf_kernel_router_drop_workspace_B(int64_t slots, int64_t experts) {
    return (size_t)(slots + experts + 1 + (slots / 1024 + 1) * experts) * sizeof(int32_t);
}

size_t mf_kernel_router_workspace_B(int64_t scopes, int64_t experts) {
    return (size_t)(scopes * experts) * 2 * 264 * sizeof(float);
}

/* scores of one row; returns logsumexp(logits). */
static float score_row(const mf_kernel_router *a, const float *logits, float *scores) {
    float high = -INFINITY;
    for (int64_t i = 0; i < a->experts; i++) {
        high = logits[i] > high ? logits[i] : high;
    }
    double sum = 0.0;
    for (int64_t i = 0; i < a->experts; i++) {
        sum += (double)expf(logits[i] - high);
    }
    float lse = sum > 0.0 ? high + (float)log(sum) : -INFINITY;
    for (int64_t i = 0; i < a->experts; i++) {
        scores[i] = a->score == MF_ROUTE_SIGMOID ? 1.0f / (1.0f + expf(-logits[i]))
                                                 : expf(logits[i] - high) / (float)sum;
    }
    return lse;
}

/* Takes the highest `count` of values[n] in turn: fills picked[], marks them by -inf. */
static void take_highest(float *values, int64_t n, int64_t count, int32_t *picked) {
    for (int64_t j = 0; j < count; j++) {
        int64_t best = 0;
        for (int64_t i = 1; i < n; i++) {
            if (values[i] > values[best]) {
                best = i;
            }
        }
        picked[j] = (int32_t)best;
        values[best] = -INFINITY;
    }
}

/* Puts -inf on the choices of groups that are not among the best group_topk. */
static void limit_groups(const mf_kernel_router *a, float *choice) {
    float run[MF_ROUTE_MAX_GROUPS] = {0};
    bool stays[MF_ROUTE_MAX_GROUPS] = {false};
    int32_t best[MF_ROUTE_MAX_GROUPS];
    int64_t width = a->experts / a->groups;
    for (int64_t g = 0; g < a->groups; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (int64_t i = g * width; i < (g + 1) * width; i++) {
            if (choice[i] > first) {
                second = first;
                first = choice[i];
            } else if (choice[i] > second) {
                second = choice[i];
            }
        }
        run[g] = a->group_score == MF_ROUTE_GROUP_TOP2 && width > 1 ? first + second : first;
    }
    take_highest(run, a->groups, a->group_topk, best);
    for (int64_t j = 0; j < a->group_topk; j++) {
        stays[best[j]] = true;
    }
    for (int64_t i = 0; i < a->experts; i++) {
        if (!stays[i / width]) {
            choice[i] = -INFINITY;
        }
    }
}

static void weigh(const mf_kernel_router *a, const float *scores, const int32_t *index,
                  float *prob) {
    float sum = 0.0f;
    for (int64_t j = 0; j < a->top_k; j++) {
        prob[j] = scores[index[j]];
        sum += prob[j];
    }
    bool normalise = a->normalise || a->score == MF_ROUTE_TOPK_SOFTMAX;
    float factor = a->scaling * (normalise ? 1.0f / (sum + 1e-20f) : 1.0f);
    for (int64_t j = 0; j < a->top_k; j++) {
        prob[j] *= factor;
    }
}

/* Of SPARSEMIXER: probabilities over the experts that choice j was made from; 0 where an expert was
 * not near. */
static void near_softmax(const float *logits, int64_t experts, const int32_t *index, int64_t j,
                         float jitter, float *p) {
    const float chosen = logits[index[j]];
    double sum = 0.0;
    for (int64_t i = 0; i < experts; i++) {
        float far = (chosen - logits[i]) / fmaxf(fabsf(logits[i]), chosen);
        bool taken = false;
        for (int64_t k = 0; k < j; k++) {
            taken |= index[k] == (int32_t)i;
        }
        p[i] = taken || far > 2.0f * jitter ? 0.0f : expf(logits[i] - chosen);
        sum += (double)p[i];
    }
    for (int64_t i = 0; i < experts; i++) {
        p[i] = (float)((double)p[i] / sum);
    }
}

static void weigh_near(const mf_kernel_router *a, const float *logits, const int32_t *index,
                       float *prob) {
    float p[MF_ROUTE_MAX_EXPERTS];
    for (int64_t j = 0; j < a->top_k; j++) {
        near_softmax(logits, a->experts, index, j, a->jitter, p);
        prob[j] = a->scaling * p[index[j]];
    }
}

mf_status mf_kernel_router_probabilities(const mf_kernel_router *a, mf_err *e) {
    (void)e;
    for (int64_t r = 0; r < a->rows; r++) {
        if (a->score == MF_ROUTE_SPARSEMIXER) {
            weigh_near(a, a->logits + r * a->experts, a->index + r * a->top_k,
                       a->prob + r * a->top_k);
            continue;
        }
        weigh(a, a->scores + r * a->experts, a->index + r * a->top_k, a->prob + r * a->top_k);
    }
    return MF_OK;
}

mf_status mf_kernel_router_forward(const mf_kernel_router *a, mf_err *e) {
    (void)e;
    assert(a->experts <= MF_ROUTE_MAX_EXPERTS && a->top_k <= MF_ROUTE_MAX_TOPK);
    assert(a->top_k <= a->experts && a->groups >= 1 && a->groups <= MF_ROUTE_MAX_GROUPS);
    assert(a->experts % a->groups == 0);
    assert(a->groups == 1 || a->group_topk * (a->experts / a->groups) >= a->top_k);
    bool near = a->score == MF_ROUTE_SPARSEMIXER;
    assert(!near || a->scores != a->logits);
    bool by_logits = a->score == MF_ROUTE_TOPK_SOFTMAX || near ||
                     (a->score == MF_ROUTE_SOFTMAX && !a->bias && a->groups == 1);
    float choice[MF_ROUTE_MAX_EXPERTS] = {0};
    for (int64_t r = 0; r < a->rows; r++) {
        const float *logits = a->logits + r * a->experts;
        float *scores = a->scores + r * a->experts, *prob = a->prob + r * a->top_k;
        int32_t *index = a->index + r * a->top_k;
        memcpy(choice, logits, (size_t)a->experts * sizeof *choice); /* scores may be logits */
        float lse = score_row(a, logits, scores);
        for (int64_t i = 0; !by_logits && i < a->experts; i++) {
            choice[i] = scores[i] + (a->bias ? a->bias[i] : 0.0f);
        }
        if (a->groups > 1) {
            limit_groups(a, choice);
        }
        take_highest(choice, a->experts, a->top_k, index);
        if (near) {
            weigh_near(a, logits, index, prob);
        } else {
            weigh(a, scores, index, prob);
        }
        if (a->lse) {
            a->lse[r] = lse;
        }
    }
    return MF_OK;
}

static float score_sum(const float *scores, int64_t experts) {
    double sum = 0.0;
    for (int64_t i = 0; i < experts; i++) {
        sum += (double)scores[i];
    }
    return (float)sum;
}

mf_status mf_kernel_router_stats_add(const mf_kernel_router_stats *a, mf_err *e) {
    (void)e;
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t scope = a->scope ? a->scope[r] : 0;
        assert(scope >= 0 && scope < a->scopes);
        const float *scores = a->scores + r * a->experts;
        float factor =
            a->score == MF_ROUTE_SIGMOID ? 1.0f / (score_sum(scores, a->experts) + 1e-20f) : 1.0f;
        for (int64_t i = 0; i < a->experts; i++) {
            a->prob_sum[scope * a->experts + i] += scores[i] * factor;
        }
        for (int64_t j = 0; j < a->top_k; j++) {
            a->count[scope * a->experts + a->index[r * a->top_k + j]] += 1.0f;
        }
    }
    return MF_OK;
}

mf_status mf_kernel_router_aux_loss(const mf_kernel_router_aux *a, mf_err *e) {
    (void)e;
    double factor =
        (double)a->experts / ((double)a->top_k * a->tokens * a->tokens * (double)a->scopes);
    double aux = 0.0;
    for (int64_t i = 0; i < a->scopes * a->experts; i++) {
        float count = a->count[i];
        aux += (double)count * (double)a->prob_sum[i];
        a->weight[i] = (float)(factor * (double)a->weight_scale * (double)count);
    }
    if (a->aux) {
        *a->aux += factor * aux;
    }
    return MF_OK;
}

/* Adds to ds[] = d loss / d scores what comes through the chosen probabilities. */
static void chosen_grad(const mf_kernel_router_grad *a, int64_t r, const float *scores, float *ds) {
    const int32_t *index = a->index + r * a->top_k;
    const float *dprob = a->dprob + r * a->top_k;
    if (!a->normalise && a->score != MF_ROUTE_TOPK_SOFTMAX) {
        for (int64_t j = 0; j < a->top_k; j++) {
            ds[index[j]] += dprob[j] * a->scaling;
        }
        return;
    }
    float sum = 1e-20f, dot = 0.0f;
    for (int64_t j = 0; j < a->top_k; j++) {
        sum += scores[index[j]];
    }
    for (int64_t j = 0; j < a->top_k; j++) {
        dot += dprob[j] * scores[index[j]] / sum;
    }
    for (int64_t j = 0; j < a->top_k; j++) {
        ds[index[j]] += a->scaling * (dprob[j] - dot) / sum;
    }
}

/* Adds to dlogits[] what comes through the probabilities of SPARSEMIXER. */
static void near_grad(const mf_kernel_router_grad *a, int64_t r, float *dlogits) {
    const float *logits = a->logits + r * a->experts;
    const int32_t *index = a->index + r * a->top_k;
    float p[MF_ROUTE_MAX_EXPERTS];
    for (int64_t j = 0; j < a->top_k; j++) {
        near_softmax(logits, a->experts, index, j, a->jitter, p);
        const float chosen = p[index[j]], d = a->scaling * a->dprob[r * a->top_k + j] * chosen;
        for (int64_t i = 0; i < a->experts; i++) {
            dlogits[i] += d * ((index[j] == (int32_t)i ? 1.0f : 0.0f) - p[i]);
        }
    }
}

mf_status mf_kernel_router_backward(const mf_kernel_router_grad *a, mf_err *e) {
    (void)e;
    assert(a->experts <= MF_ROUTE_MAX_EXPERTS && a->top_k <= MF_ROUTE_MAX_TOPK);
    float ds[MF_ROUTE_MAX_EXPERTS];
    for (int64_t r = 0; r < a->rows; r++) {
        const float *scores = a->scores + r * a->experts;
        float *dlogits = a->dlogits + r * a->experts;
        float total = score_sum(scores, a->experts);
        for (int64_t i = 0; i < a->experts; i++) {
            ds[i] = 0.0f;
        }
        bool near = a->score == MF_ROUTE_SPARSEMIXER;
        if (!near) {
            chosen_grad(a, r, scores, ds);
        }
        if (a->aux_weight) {
            const float *w = a->aux_weight + (a->scope ? a->scope[r] : 0) * a->experts;
            double dot = 0.0;
            bool sigmoid = a->score == MF_ROUTE_SIGMOID;
            for (int64_t i = 0; sigmoid && i < a->experts; i++) {
                dot += (double)(w[i] * scores[i]);
            }
            float mean = (float)dot / (total + 1e-20f);
            for (int64_t i = 0; i < a->experts; i++) {
                ds[i] += sigmoid ? (w[i] - mean) / (total + 1e-20f) : w[i];
            }
        }
        double dot = 0.0;
        for (int64_t i = 0; a->score != MF_ROUTE_SIGMOID && i < a->experts; i++) {
            dot += (double)(ds[i] * scores[i]);
        }
        float z = a->z_weight != 0.0f ? 2.0f * a->z_weight * a->lse[r] : 0.0f;
        for (int64_t i = 0; i < a->experts; i++) {
            float d = a->score == MF_ROUTE_SIGMOID ? ds[i] * scores[i] * (1.0f - scores[i])
                                                   : scores[i] * (ds[i] - (float)dot);
            if (a->z_weight != 0.0f) {
                d += z * expf(a->logits[r * a->experts + i] - a->lse[r]);
            }
            dlogits[i] = d;
        }
        if (near) {
            near_grad(a, r, dlogits);
        }
    }
    return MF_OK;
}

static uint32_t order_of(float prob) {
    const float plus = prob + 0.0f; /* -0 is 0 */
    uint32_t bits;
    memcpy(&bits, &plus, sizeof bits);
    return mf_kernel_router_order(bits);
}

/* How many slots go before slot s for its expert and sample, counted up to `limit`: those of higher
 * probability, and of equal ones those with a lower number. */
static int64_t slots_before(const mf_kernel_router_drop *a, int64_t s, int64_t limit) {
    int64_t before = 0;
    uint32_t own = order_of(a->prob[s]);
    for (int64_t o = 0; o < a->rows * a->top_k && before < limit; o++) {
        if (a->index[o] != a->index[s] ||
            (a->sample && a->sample[o / a->top_k] != a->sample[s / a->top_k])) {
            continue;
        }
        uint32_t other = order_of(a->prob[o]);
        before += other > own || (other == own && o < s);
    }
    return before;
}

mf_status mf_kernel_router_capacity(const mf_kernel_router_drop *a, mf_err *e) {
    (void)e;
    for (int64_t s = 0; s < a->rows * a->top_k; s++) {
        bool stays = a->index[s] >= 0 && slots_before(a, s, a->capacity) < a->capacity;
        a->index_kept[s] = stays ? a->index[s] : -1;
        a->prob_kept[s] = stays ? a->prob[s] : 0.0f;
    }
    return MF_OK;
}

mf_status mf_kernel_router_z_sum(int64_t rows, const float *lse, double *sum, mf_err *e) {
    (void)e;
    double total = 0.0;
    for (int64_t r = 0; r < rows; r++) {
        total += (double)lse[r] * (double)lse[r];
    }
    *sum += total;
    return MF_OK;
}

mf_status mf_kernel_router_bias_update(const mf_kernel_router_bias *a, mf_err *e) {
    (void)e;
    if (a->skip && *a->skip != 0) {
        return MF_OK;
    }
    double total = 0.0;
    for (int64_t i = 0; i < a->experts; i++) {
        total += (double)a->count[i];
    }
    float mean = (float)(total / (double)a->experts);
    for (int64_t i = 0; i < a->experts; i++) {
        a->bias[i] += a->count[i] < mean ? a->rate : a->count[i] > mean ? -a->rate : 0.0f;
    }
    return MF_OK;
}
