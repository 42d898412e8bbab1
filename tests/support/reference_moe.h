/* reference_moe.h - of tests/support/reference_model.h: MLPs, experts, routing, capacity and the
 * routers' losses. */
#ifndef MF_TESTS_REFERENCE_MOE_H
#define MF_TESTS_REFERENCE_MOE_H

#include "kernels/moe/router_choices.h"
#include "tests/support/capacity_ties.h"
#include "tests/support/reference_base.h"

static inline void ref_mlp(ref_model *r, const char *name, int64_t width, const num *x, num *y) {
    char part[96];
    num gate[REF_WIDE], up[REF_WIDE];
    snprintf(part, sizeof part, "%s.gate_proj", name);
    ref_linear(r, part, x, gate);
    snprintf(part, sizeof part, "%s.up_proj", name);
    ref_linear(r, part, x, up);
    for (int64_t i = 0; i < width; i++) {
        gate[i] = t_mul(&r->t, ref_silu(r, gate[i]), up[i]);
    }
    snprintf(part, sizeof part, "%s.down_proj", name);
    ref_linear(r, part, gate, y);
}

/* GPT-OSS: one tensor for gate and up, interleaved by columns, applied from the right. */
static inline void ref_gpt_oss_expert(ref_model *r, int64_t e, const num *x, num *y) {
    const mf_model *m = &r->m;
    tape *t = &r->t;
    const ref_tensor *w1 = ref_weight(r, "mlp.experts.gate_up_proj[%lld]", (long long)e);
    const ref_tensor *b1 = ref_weight(r, "mlp.experts.gate_up_proj_bias[%lld]", (long long)e);
    const ref_tensor *w2 = ref_weight(r, "mlp.experts.down_proj[%lld]", (long long)e);
    const ref_tensor *b2 = ref_weight(r, "mlp.experts.down_proj_bias[%lld]", (long long)e);
    num inner[REF_WIDE];
    for (int64_t i = 0; i < m->moe_ffn; i++) {
        num part[2];
        for (int64_t k = 0; k < 2; k++) {
            part[k] = b1->at + (num)(2 * i + k);
            for (int64_t j = 0; j < m->hidden; j++) {
                part[k] = t_fma(t, part[k], w1->at + (num)(j * w1->cols + 2 * i + k), x[j]);
            }
        }
        num gate = t_clamp(t, part[0], -1e30, m->swiglu_limit);
        num up = t_clamp(t, part[1], -m->swiglu_limit, m->swiglu_limit);
        num glu = t_mul(t, gate, t_sigmoid(t, t_line(t, gate, 1.702, 0.0)));
        inner[i] = t_mul(t, t_line(t, up, 1.0, 1.0), glu);
    }
    for (int64_t c = 0; c < m->hidden; c++) {
        y[c] = b2->at + (num)c;
        for (int64_t i = 0; i < m->moe_ffn; i++) {
            y[c] = t_fma(t, y[c], w2->at + (num)(i * w2->cols + c), inner[i]);
        }
    }
}

static inline void ref_expert(ref_model *r, int64_t e, const num *x, num *y) {
    const mf_model *m = &r->m;
    char name[96];
    if (m->router_score == MF_ROUTER_TOPK_SOFTMAX) {
        ref_gpt_oss_expert(r, e, x, y);
        return;
    }
    if (strcmp(m->family, "mixtral") != 0) {
        snprintf(name, sizeof name, "mlp.experts.%lld", (long long)e);
        ref_mlp(r, name, m->moe_ffn, x, y);
        return;
    }
    num gate[REF_WIDE], up[REF_WIDE];
    snprintf(name, sizeof name, "block_sparse_moe.experts.%lld.w1", (long long)e);
    ref_linear(r, name, x, gate);
    snprintf(name, sizeof name, "block_sparse_moe.experts.%lld.w3", (long long)e);
    ref_linear(r, name, x, up);
    for (int64_t i = 0; i < m->moe_ffn; i++) {
        gate[i] = t_mul(&r->t, ref_silu(r, gate[i]), up[i]);
    }
    snprintf(name, sizeof name, "block_sparse_moe.experts.%lld.w2", (long long)e);
    ref_linear(r, name, gate, y);
}

/* What routing decided for all tokens of a layer. */
typedef struct ref_routing {
    int32_t *index; /* [tokens][top_k] */
    num *prob;      /* [tokens][top_k] */
    num *share;     /* [tokens][experts] p of the auxiliary loss */
    num *log_total; /* [tokens] logsumexp of the logits */
    bool *kept;     /* [tokens][top_k] */
} ref_routing;

/* Highest value among those not taken yet; the first of equals. */
static inline int64_t ref_best(const double *value, const bool *taken, int64_t n) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++) {
        best = !taken[i] && (best < 0 || value[i] > value[best]) ? i : best;
    }
    return best;
}

static inline void ref_choose(ref_model *r, const double *choice, int64_t token, int32_t *index) {
    const mf_model *m = &r->m;
    bool closed[REF_WIDE] = {false}, taken[REF_WIDE] = {false};
    int64_t groups = m->n_group, width = m->experts / groups;
    if (groups > 1 && m->topk_group < groups) {
        double score[64];
        bool open[64] = {false};
        for (int64_t g = 0; g < groups; g++) {
            bool seen[REF_WIDE] = {false};
            int64_t a = ref_best(choice + g * width, seen, width);
            seen[a] = true;
            score[g] = choice[g * width + a];
            if (m->router_score == MF_ROUTER_SIGMOID && width > 1) {
                score[g] += choice[g * width + ref_best(choice + g * width, seen, width)];
            }
        }
        double last = 0.0;
        for (int64_t k = 0; k <= m->topk_group; k++) {
            int64_t g = ref_best(score, open, groups);
            if (k < m->topk_group) {
                open[g] = true;
                last = score[g];
            } else {
                r->r.nearest = fmin(r->r.nearest, last - score[g]);
            }
        }
        for (int64_t i = 0; i < m->experts; i++) {
            closed[i] = taken[i] = !open[i / width];
        }
    }
    double last = 0.0;
    for (int64_t k = 0; k < m->top_k; k++) {
        int64_t best = ref_best(choice, taken, m->experts);
        taken[best] = true;
        last = choice[best];
        index[k] = (int32_t)best;
    }
    int64_t next = ref_best(choice, taken, m->experts);
    if (next >= 0 && !closed[next]) {
        r->r.nearest = fmin(r->r.nearest, last - choice[next]);
    }
    const mf_kernel_router_force even = {.top_k = m->top_k, .experts = m->experts};
    for (int64_t k = 0; r->o.forced && k < m->top_k; k++) {
        index[k] = mf_router_forced(&even, token, k);
    }
}

static inline void ref_route(ref_model *r, const num *x, int64_t token, ref_routing *out) {
    const mf_model *m = &r->m;
    tape *t = &r->t;
    const char *name = m->router_score == MF_ROUTER_TOPK_SOFTMAX ? "mlp.router"
                       : strcmp(m->family, "mixtral") == 0       ? "block_sparse_moe.gate"
                                                                 : "mlp.gate";
    num logit[REF_WIDE], score[REF_WIDE], total = tape_put(t, 0.0), chosen = tape_put(t, 0.0);
    num *share = out->share + token * m->experts, *prob = out->prob + token * m->top_k;
    int32_t *index = out->index + token * m->top_k;
    double choice[REF_WIDE];
    ref_linear(r, name, x, logit);
    for (int64_t i = 0; i < m->experts; i++) {
        score[i] =
            m->router_score == MF_ROUTER_SIGMOID ? t_sigmoid(t, logit[i]) : t_exp(t, logit[i]);
        total = t_add(t, total, score[i]);
    }
    num exps = tape_put(t, 0.0);
    for (int64_t i = 0; i < m->experts; i++) {
        share[i] = t_div(t, score[i], total);
        exps = t_add(t, exps, t_exp(t, logit[i]));
        score[i] = m->router_score == MF_ROUTER_SIGMOID ? score[i] : share[i];
        choice[i] = val(t, score[i]);
    }
    out->log_total[token] = t_log(t, exps);
    const ref_tensor *bias = ref_weight(r, "mlp.gate.e_score_correction_bias");
    for (int64_t i = 0; i < m->experts && bias != NULL; i++) {
        choice[i] += bias->value[i];
    }
    ref_choose(r, choice, token % (r->o.seq * r->o.group), index);
    for (int64_t k = 0; k < m->top_k; k++) {
        prob[k] = score[index[k]];
        chosen = t_add(t, chosen, prob[k]);
    }
    for (int64_t k = 0; k < m->top_k; k++) {
        if (m->norm_topk || m->router_score == MF_ROUTER_TOPK_SOFTMAX) {
            prob[k] = t_div(t, prob[k], chosen);
        }
        prob[k] = t_line(t, prob[k], m->routed_scaling, 0.0);
    }
}

/* Per expert and sample the `capacity` choices of highest probability, earlier ones of equals. */
static inline void ref_drop(ref_model *r, ref_routing *d) {
    const mf_model *m = &r->m;
    int64_t k = m->top_k, seq = r->o.seq;
    double capacity = ceil(r->o.capacity * (double)(k * seq) / (double)m->experts);
    for (int64_t s = 0; s < r->o.samples; s++) {
        for (int64_t i = s * seq * k; i < (s + 1) * seq * k; i++) {
            int64_t before = 0;
            for (int64_t j = s * seq * k; j < (s + 1) * seq * k; j++) {
                double step, mine = tie_rounded(val(&r->t, d->prob[i]), &step);
                double other = tie_rounded(val(&r->t, d->prob[j]), &step);
                if (d->index[j] == d->index[i] && j != i) {
                    before += other > mine || (other >= mine && j < i);
                }
            }
            d->kept[i] = (double)before < capacity;
            r->r.dropped += !d->kept[i];
        }
        for (int64_t i = s * seq * k; i < (s + 1) * seq * k; i++) {
            for (int64_t j = s * seq * k; j < (s + 1) * seq * k; j++) {
                if (d->index[i] == d->index[j] && d->kept[i] && !d->kept[j]) {
                    double apart = tie_apart(i, val(&r->t, d->prob[i]), j, val(&r->t, d->prob[j]));
                    r->r.nearest = fmin(r->r.nearest, apart);
                }
            }
        }
    }
}

/* Auxiliary loss of the layer, and the z-loss. */
static inline void ref_router_losses(ref_model *r, const ref_routing *d) {
    const mf_model *m = &r->m;
    tape *t = &r->t;
    int64_t tokens = r->o.samples * r->o.seq, per_step = r->o.samples / r->o.micro_steps;
    int64_t samples = r->o.scope == REF_SEQUENCE      ? 1
                      : r->o.scope == REF_MICRO_BATCH ? r->o.group
                                                      : per_step;
    int64_t scope = samples * r->o.seq, scopes = tokens / scope;
    double count[REF_WIDE] = {0};
    for (int64_t s = 0; s < scopes; s++) {
        for (int64_t i = 0; i < m->experts && r->o.scope != REF_GLOBAL; i++) {
            count[i] = 0.0;
        }
        for (int64_t i = s * scope * m->top_k; i < (s + 1) * scope * m->top_k; i++) {
            count[d->index[i]] += 1.0;
        }
        for (int64_t e = 0; e < m->experts; e++) {
            double seen = r->o.scope == REF_GLOBAL ? count[e] / (double)(s + 1) : count[e];
            num sum = tape_put(t, 0.0);
            for (int64_t i = s * scope; i < (s + 1) * scope; i++) {
                sum = t_add(t, sum, d->share[i * m->experts + e]);
            }
            double factor = (double)m->experts * seen /
                            ((double)m->top_k * (double)scope * (double)scope * (double)scopes);
            r->aux = t_add(t, r->aux, t_line(t, sum, factor, 0.0));
        }
    }
    for (int64_t i = 0; i < tokens; i++) {
        num square = t_mul(t, d->log_total[i], d->log_total[i]);
        r->z = t_add(t, r->z, t_line(t, square, 1.0 / (double)tokens, 0.0));
    }
}

static inline void ref_moe(ref_model *r, const num *normed, num *x, double *load) {
    const mf_model *m = &r->m;
    tape *t = &r->t;
    int64_t tokens = r->o.samples * r->o.seq, h = m->hidden, k = m->top_k;
    ref_routing d = {.index = calloc((size_t)(tokens * k), sizeof *d.index),
                     .prob = calloc((size_t)(tokens * k), sizeof *d.prob),
                     .share = calloc((size_t)(tokens * m->experts), sizeof *d.share),
                     .log_total = calloc((size_t)tokens, sizeof *d.log_total),
                     .kept = calloc((size_t)(tokens * k), sizeof *d.kept)};
    for (int64_t i = 0; i < tokens; i++) {
        ref_route(r, normed + i * h, i, &d);
    }
    for (int64_t i = 0; i < tokens * k; i++) {
        d.kept[i] = true;
        load[d.index[i]] += 1.0;
    }
    if (r->o.capacity > 0.0) {
        ref_drop(r, &d);
    }
    ref_router_losses(r, &d);
    for (int64_t i = 0; i < tokens; i++) {
        num y[REF_WIDE];
        for (int64_t j = 0; j < k; j++) {
            if (!d.kept[i * k + j]) {
                continue;
            }
            ref_expert(r, d.index[i * k + j], normed + i * h, y);
            for (int64_t c = 0; c < h; c++) {
                x[i * h + c] = t_fma(t, x[i * h + c], d.prob[i * k + j], y[c]);
            }
        }
        if (m->shared_ffn > 0) {
            ref_mlp(r, m->shared_gate ? "mlp.shared_expert" : "mlp.shared_experts", m->shared_ffn,
                    normed + i * h, y);
            num gate = tape_put(t, 1.0);
            if (m->shared_gate) {
                ref_linear(r, "mlp.shared_expert_gate", normed + i * h, &gate);
                gate = t_sigmoid(t, gate);
            }
            for (int64_t c = 0; c < h; c++) {
                x[i * h + c] = t_fma(t, x[i * h + c], gate, y[c]);
            }
        }
    }
    free(d.index);
    free(d.prob);
    free(d.share);
    free(d.log_total);
    free(d.kept);
}

#endif
