/* reference_model.h - every model family in plain double precision, token by token, number by
 * number on a tape: losses, every gradient, and AdamW steps. Shares with the executor the reading
 * of a config.json and the names and shapes of weights (core/model.h); nothing of what is computed.
 *
 * Formulas follow the families' published code and papers: one loop for each sum. */
#ifndef MF_TESTS_REFERENCE_MODEL_H
#define MF_TESTS_REFERENCE_MODEL_H

#include "core/model.h"
#include "tests/capacity_ties.h"
#include "tests/tape.h"

#include <stdarg.h>

typedef struct ref_tensor {
    char name[128];
    int64_t rows, cols;
    bool buffer;
    double *value, *grad, *m, *v;
    num at; /* first number on the tape */
} ref_tensor;

typedef enum ref_scope { REF_MICRO_BATCH, REF_SEQUENCE, REF_GLOBAL } ref_scope;

typedef struct ref_options {
    int64_t seq, samples; /* samples per step */
    int64_t group;        /* samples of a micro-batch of one rank */
    int64_t micro_steps;  /* M */
    ref_scope scope;
    double aux_coef, z_coef, mtp_coef, bias_rate;
    double capacity; /* 0: dropless */
    bool forced;     /* choices go round */
    double lr, beta1, beta2, eps, decay, clip;
} ref_options;

typedef struct ref_result {
    double lm_loss, mtp_loss, aux_loss, z_loss, grad_norm;
    double nearest;  /* smallest distance between a chosen and the best unchosen expert */
    int64_t dropped; /* choices over capacity */
} ref_result;

typedef struct ref_model {
    mf_model m;
    ref_options o;
    ref_tensor *tensor;
    int count;
    tape t;
    int64_t step;
    double *load; /* [layers + mtp][experts] choices of the step, before dropping */
    ref_result r;
    char prefix[64]; /* "model.layers.3." of the layer at hand */
    num aux, z;      /* sums over layers so far; -1 */
} ref_model;

/* --- weights ---------------------------------------------------------------------------------- */

static inline double ref_draw(const char *name, int64_t i) {
    uint64_t h = 0x9e3779b97f4a7c15ull * (uint64_t)(i + 1);
    for (; *name != '\0'; name++) {
        h = (h ^ (unsigned char)*name) * 0x100000001b3ull;
    }
    h = (h ^ h >> 31) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ h >> 29) * 0x94d049bb133111ebull;
    h ^= h >> 32;
    return (double)(h >> 11) * 0x1p-52 - 1.0; /* [-1, 1) */
}

static inline int ref_add_tensor(const mf_model_tensor *from, void *user) {
    ref_model *r = user;
    r->tensor = realloc(r->tensor, (size_t)(r->count + 1) * sizeof *r->tensor);
    ref_tensor *t = &r->tensor[r->count++];
    *t = (ref_tensor){.rows = from->rows, .cols = from->cols, .buffer = from->buffer};
    snprintf(t->name, sizeof t->name, "%s", from->name);
    int64_t n = t->rows * t->cols;
    t->value = calloc((size_t)(4 * n), sizeof *t->value);
    t->grad = t->value + n;
    t->m = t->grad + n;
    t->v = t->m + n;
    bool norm = strstr(t->name, "norm") != NULL;
    bool router = strstr(t->name, "gate.weight") != NULL || strstr(t->name, "router.w") != NULL;
    double size = norm           ? 0.3
                  : t->cols == 1 ? 0.2
                  : router       ? 3.0 / sqrt((double)t->cols)
                                 : 1.3 / sqrt((double)t->cols);
    for (int64_t i = 0; i < n; i++) {
        double drawn = (norm ? 1.0 : 0.0) + size * ref_draw(t->name, i);
        t->value[i] = from->buffer ? (double)(float)(0.1 * drawn) : (double)(float)drawn;
    }
    return 0;
}

static inline void ref_init(ref_model *r, const mf_model *m, const ref_options *o) {
    *r = (ref_model){.m = *m, .o = *o};
    mf_model_tensors(m, ref_add_tensor, r);
    r->load = calloc((size_t)((m->layers + m->mtp_layers) * (m->experts + 1)), sizeof *r->load);
}

static inline void ref_clear(ref_model *r) {
    for (int i = 0; i < r->count; i++) {
        free(r->tensor[i].value);
    }
    free(r->tensor);
    free(r->load);
    tape_clear(&r->t);
}

static inline ref_tensor *ref_find(ref_model *r, const char *name) {
    for (int i = 0; i < r->count; i++) {
        if (strcmp(r->tensor[i].name, name) == 0) {
            return &r->tensor[i];
        }
    }
    return NULL;
}

/* A weight of the layer at hand ("" outside layers); NULL where the model has none. */
static inline ref_tensor *ref_weight(ref_model *r, const char *format, ...) {
    char name[192];
    va_list list;
    int at = snprintf(name, sizeof name, "%s", r->prefix);
    va_start(list, format);
    vsnprintf(name + at, sizeof name - (size_t)at, format, list);
    va_end(list);
    return ref_find(r, name);
}

/* --- pieces of layers --------------------------------------------------------------------------
 */

static inline void ref_linear(ref_model *r, const char *name, const num *x, num *y) {
    const ref_tensor *w = ref_weight(r, "%s.weight", name), *b = ref_weight(r, "%s.bias", name);
    for (int64_t i = 0; i < w->rows; i++) {
        num sum = b != NULL ? b->at + (num)i : tape_put(&r->t, 0.0);
        for (int64_t j = 0; j < w->cols; j++) {
            sum = t_fma(&r->t, sum, w->at + (num)(i * w->cols + j), x[j]);
        }
        y[i] = sum;
    }
}

static inline void ref_norm_eps(ref_model *r, const char *name, const num *x, int64_t n, double eps,
                                num *y) {
    const ref_tensor *w = ref_weight(r, "%s.weight", name);
    num sum = tape_put(&r->t, 0.0);
    for (int64_t i = 0; i < n; i++) {
        sum = t_fma(&r->t, sum, x[i], x[i]);
    }
    num scale = t_rsqrt(&r->t, t_line(&r->t, sum, 1.0 / (double)n, eps));
    for (int64_t i = 0; i < n; i++) {
        y[i] = t_mul(&r->t, t_mul(&r->t, x[i], scale), w->at + (num)i);
    }
}

static inline void ref_norm(ref_model *r, const char *name, const num *x, int64_t n, num *y) {
    ref_norm_eps(r, name, x, n, r->m.rms_norm_eps, y);
}

static inline num ref_silu(ref_model *r, num a) {
    return t_mul(&r->t, a, t_sigmoid(&r->t, a));
}

/* --- rotary positions --------------------------------------------------------------------------
 */

static inline double ref_frequency(const mf_model *m, int64_t i, int64_t width) {
    const mf_rope_scaling *s = &m->rope_scaling;
    const double pi = acos(-1.0);
    double base = 1.0 / pow(m->rope_theta, 2.0 * (double)i / (double)width);
    if (s->kind == MF_ROPE_LINEAR) {
        return base / s->factor;
    }
    if (s->kind == MF_ROPE_LLAMA3) { /* by wavelength, as Llama 3.1's code has it */
        double wave = 2.0 * pi / base;
        double longest = s->original / s->low_freq_factor;
        double shortest = s->original / s->high_freq_factor;
        if (wave > longest) {
            return base / s->factor;
        }
        if (wave < shortest) {
            return base;
        }
        double smooth =
            (s->original / wave - s->low_freq_factor) / (s->high_freq_factor - s->low_freq_factor);
        return (1.0 - smooth) * base / s->factor + smooth * base;
    }
    if (s->kind == MF_ROPE_YARN) {
        double edge[2];
        for (int k = 0; k < 2; k++) {
            double turns = k == 0 ? s->beta_fast : s->beta_slow;
            edge[k] =
                (double)width * log(s->original / (turns * 2.0 * pi)) / (2.0 * log(m->rope_theta));
        }
        if (s->truncate) {
            edge[0] = floor(edge[0]);
            edge[1] = ceil(edge[1]);
        }
        edge[0] = edge[0] < 0.0 ? 0.0 : edge[0];
        edge[1] = edge[1] > (double)(width - 1) ? (double)(width - 1) : edge[1];
        double ramp = ((double)i - edge[0]) / (edge[1] - edge[0]);
        ramp = ramp < 0.0 ? 0.0 : ramp > 1.0 ? 1.0 : ramp;
        return base / s->factor * ramp + base * (1.0 - ramp);
    }
    return base;
}

static inline double ref_temperature(double factor, double m) {
    return 0.1 * m * log(factor) + 1.0;
}

static inline void ref_rope(ref_model *r, num *x, int64_t width, int64_t position) {
    const mf_model *m = &r->m;
    double scale = m->rope_scaling.kind == MF_ROPE_YARN ? m->rope_scaling.table_scale : 1.0;
    for (int64_t i = 0; i < width / 2; i++) {
        int64_t u = m->rope_interleave ? 2 * i : i, v = m->rope_interleave ? u + 1 : i + width / 2;
        double angle = (double)position * ref_frequency(m, i, width);
        double c = scale * cos(angle), s = scale * sin(angle);
        num a = x[u], b = x[v];
        x[u] = t_sub(&r->t, t_line(&r->t, a, c, 0.0), t_line(&r->t, b, s, 0.0));
        x[v] = t_add(&r->t, t_line(&r->t, b, c, 0.0), t_line(&r->t, a, s, 0.0));
    }
}

/* --- attention ---------------------------------------------------------------------------------
 */

#define REF_WIDE 512 /* widest vector of these small models */

static inline void ref_gqa(ref_model *r, const num *x, int64_t at, num *q, num *k, num *v) {
    const mf_model *m = &r->m;
    int64_t d = m->head_dim, rot = (int64_t)((double)d * m->partial_rotary + 0.5) / 2 * 2;
    num raw[REF_WIDE];
    for (int side = 0; side < 2; side++) {
        const char *norm = side == 0 ? "self_attn.q_norm" : "self_attn.k_norm";
        num *to = side == 0 ? q : k;
        int64_t heads = side == 0 ? m->heads : m->kv_heads;
        ref_linear(r, side == 0 ? "self_attn.q_proj" : "self_attn.k_proj", x, raw);
        memcpy(to, raw, (size_t)(heads * d) * sizeof *to);
        if (m->qk_norm_full) {
            ref_norm(r, norm, raw, heads * d, to);
        }
        for (int64_t h = 0; h < heads; h++) {
            if (m->qk_norm) {
                ref_norm(r, norm, raw + h * d, d, to + h * d);
            }
            ref_rope(r, to + h * d, rot, at);
        }
    }
    ref_linear(r, "self_attn.v_proj", x, v);
}

static inline void ref_mla(ref_model *r, const num *x, int64_t at, num *q, num *k, num *v) {
    const mf_model *m = &r->m;
    int64_t d = m->head_dim, nope = m->qk_nope_head_dim, rope = m->qk_rope_head_dim;
    num low[REF_WIDE], normed[REF_WIDE], kv[REF_WIDE];
    if (m->q_lora_rank > 0) {
        ref_linear(r, "self_attn.q_a_proj", x, low);
        ref_norm_eps(r, "self_attn.q_a_layernorm", low, m->q_lora_rank, 1e-6, normed);
        ref_linear(r, "self_attn.q_b_proj", normed, q);
    } else {
        ref_linear(r, "self_attn.q_proj", x, q);
    }
    ref_linear(r, "self_attn.kv_a_proj_with_mqa", x, low);
    ref_rope(r, low + m->kv_lora_rank, rope, at);
    ref_norm_eps(r, "self_attn.kv_a_layernorm", low, m->kv_lora_rank, 1e-6, normed);
    ref_linear(r, "self_attn.kv_b_proj", normed, kv);
    for (int64_t h = 0; h < m->heads; h++) {
        const num *head = kv + h * (nope + m->v_head_dim);
        ref_rope(r, q + h * d + nope, rope, at);
        memcpy(k + h * d, head, (size_t)nope * sizeof *k);
        memcpy(k + h * d + nope, low + m->kv_lora_rank, (size_t)rope * sizeof *k);
        memcpy(v + h * m->v_head_dim, head + nope, (size_t)m->v_head_dim * sizeof *v);
    }
}

/* x [samples * seq][hidden] += attention. */
static inline void ref_attention(ref_model *r, num *x, int64_t window) {
    const mf_model *m = &r->m;
    tape *t = &r->t;
    int64_t h = m->hidden, d = m->head_dim, dv = m->v_head_dim, seq = r->o.seq;
    int64_t kvh = m->attn == MF_ATTN_MLA ? m->heads : m->kv_heads;
    num *q = calloc((size_t)(seq * REF_WIDE * 3), sizeof *q);
    num *k = q + seq * REF_WIDE, *v = k + seq * REF_WIDE;
    const ref_tensor *sinks = m->attn_sinks ? ref_weight(r, "self_attn.sinks") : NULL;
    double scale = 1.0 / sqrt((double)d);
    if (m->rope_scaling.kind == MF_ROPE_YARN) {
        scale *= m->rope_scaling.softmax_scale;
    }
    for (int64_t s = 0; s < r->o.samples; s++) {
        num *rows = x + s * seq * h;
        for (int64_t i = 0; i < seq; i++) {
            num normed[REF_WIDE];
            ref_norm(r, "input_layernorm", rows + i * h, h, normed);
            (m->attn == MF_ATTN_MLA ? ref_mla : ref_gqa)(r, normed, i, q + i * REF_WIDE,
                                                         k + i * REF_WIDE, v + i * REF_WIDE);
        }
        for (int64_t i = 0; i < seq; i++) {
            num out[REF_WIDE], y[REF_WIDE];
            for (int64_t head = 0; head < m->heads; head++) {
                int64_t kv = head / (m->heads / kvh);
                num total = sinks != NULL ? t_exp(t, sinks->at + (num)head) : tape_put(t, 0.0);
                num *o = out + head * dv;
                for (int64_t c = 0; c < dv; c++) {
                    o[c] = tape_put(t, 0.0);
                }
                for (int64_t j = 0; j <= i; j++) {
                    if (window > 0 && i - j >= window) {
                        continue;
                    }
                    num dot = tape_put(t, 0.0);
                    for (int64_t c = 0; c < d; c++) {
                        dot = t_fma(t, dot, q[i * REF_WIDE + head * d + c],
                                    k[j * REF_WIDE + kv * d + c]);
                    }
                    num weight = t_exp(t, t_line(t, dot, scale, 0.0));
                    total = t_add(t, total, weight);
                    for (int64_t c = 0; c < dv; c++) {
                        o[c] = t_fma(t, o[c], weight, v[j * REF_WIDE + kv * dv + c]);
                    }
                }
                for (int64_t c = 0; c < dv; c++) {
                    o[c] = t_div(t, o[c], total);
                }
            }
            ref_linear(r, "self_attn.o_proj", out, y);
            for (int64_t c = 0; c < h; c++) {
                rows[i * h + c] = t_add(t, rows[i * h + c], y[c]);
            }
        }
    }
    free(q);
}

/* --- feed-forward ------------------------------------------------------------------------------
 */

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
    for (int64_t k = 0; r->o.forced && k < m->top_k; k++) {
        index[k] = (int32_t)((token * m->top_k + k) % m->experts);
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
    double room = ceil(r->o.capacity * (double)(k * seq) / (double)m->experts);
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
            d->kept[i] = (double)before < room;
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

static inline void ref_layer(ref_model *r, int64_t layer, uint8_t class_index, num *x) {
    const mf_model *m = &r->m;
    int64_t tokens = r->o.samples * r->o.seq, h = m->hidden;
    num *normed = calloc((size_t)(tokens * h), sizeof *normed);
    snprintf(r->prefix, sizeof r->prefix, "model.layers.%lld.", (long long)layer);
    ref_attention(r, x, m->layer_classes[class_index].window);
    for (int64_t i = 0; i < tokens; i++) {
        ref_norm(r, "post_attention_layernorm", x + i * h, h, normed + i * h);
    }
    if (m->layer_classes[class_index].ffn == MF_FFN_MOE) {
        ref_moe(r, normed, x, r->load + layer * m->experts);
    } else {
        for (int64_t i = 0; i < tokens; i++) {
            num y[REF_WIDE];
            ref_mlp(r, "mlp", m->ffn, normed + i * h, y);
            for (int64_t c = 0; c < h; c++) {
                x[i * h + c] = t_add(&r->t, x[i * h + c], y[c]);
            }
        }
    }
    free(normed);
}

/* --- the whole ----------------------------------------------------------------------------------
 */

/* Sum over tokens whose label is known of the cross-entropy; labels lie `ahead` places on. */
static inline num ref_loss(ref_model *r, const char *norm, const num *x, const int32_t *tokens,
                           int64_t ahead) {
    const mf_model *m = &r->m;
    tape *t = &r->t;
    const ref_tensor *head =
        ref_find(r, m->tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
    num sum = tape_put(t, 0.0), *logit = calloc((size_t)m->vocab, sizeof *logit);
    for (int64_t s = 0; s < r->o.samples; s++) {
        for (int64_t i = 0; i + ahead <= r->o.seq; i++) {
            num normed[REF_WIDE], total = tape_put(t, 0.0);
            int32_t label = tokens[s * (r->o.seq + 1) + i + ahead];
            ref_norm(r, norm, x + (s * r->o.seq + i) * m->hidden, m->hidden, normed);
            for (int64_t v = 0; v < m->vocab; v++) {
                logit[v] = tape_put(t, 0.0);
                for (int64_t c = 0; c < m->hidden; c++) {
                    logit[v] = t_fma(t, logit[v], head->at + (num)(v * m->hidden + c), normed[c]);
                }
                total = t_add(t, total, t_exp(t, logit[v]));
            }
            sum = t_add(t, sum, t_sub(t, t_log(t, total), logit[label]));
        }
    }
    free(logit);
    return sum;
}

static inline num ref_embed(ref_model *r, int32_t token, int64_t c) {
    return ref_find(r, "model.embed_tokens.weight")->at + (num)(token * r->m.hidden + c);
}

/* Depth d (from 0) of multi-token prediction on the hidden states `x`, which become its own. */
static inline num ref_mtp(ref_model *r, int64_t d, num *x, const int32_t *tokens) {
    const mf_model *m = &r->m;
    int64_t h = m->hidden, seq = r->o.seq;
    snprintf(r->prefix, sizeof r->prefix, "model.layers.%lld.", (long long)(m->layers + d));
    for (int64_t s = 0; s < r->o.samples; s++) {
        for (int64_t i = 0; i < seq; i++) {
            num both[REF_WIDE], embedded[REF_WIDE], *row = x + (s * seq + i) * h;
            int64_t at = i + d + 1; /* past the end nothing is known: token 0, no label */
            int32_t token = at <= seq ? tokens[s * (seq + 1) + at] : 0;
            for (int64_t c = 0; c < h; c++) {
                embedded[c] = ref_embed(r, token, c);
            }
            ref_norm(r, "enorm", embedded, h, both);
            ref_norm(r, "hnorm", row, h, both + h);
            ref_linear(r, "eh_proj", both, row);
        }
    }
    ref_layer(r, m->layers + d, m->mtp_class, x);
    return ref_loss(r, "shared_head.norm", x, tokens, d + 2);
}

/* Losses and every gradient of a batch: tokens [samples][seq + 1]. */
static inline void ref_gradients(ref_model *r, const int32_t *tokens) {
    const mf_model *m = &r->m;
    tape *t = &r->t;
    int64_t h = m->hidden, n = r->o.samples * r->o.seq;
    t->count = 0;
    r->r = (ref_result){.nearest = 1e9};
    memset(r->load, 0, (size_t)((m->layers + m->mtp_layers) * m->experts) * sizeof *r->load);
    for (int i = 0; i < r->count; i++) {
        ref_tensor *w = &r->tensor[i];
        for (int64_t k = 0; k < w->rows * w->cols; k++) {
            num at = tape_put(t, w->value[k]);
            w->at = k == 0 ? at : w->at;
        }
    }
    r->aux = tape_put(t, 0.0);
    r->z = tape_put(t, 0.0);
    num *x = calloc((size_t)(n * h), sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        int32_t token = tokens[i / r->o.seq * (r->o.seq + 1) + i % r->o.seq];
        for (int64_t c = 0; c < h; c++) {
            x[i * h + c] = ref_embed(r, token, c);
        }
    }
    for (int64_t i = 0; i < m->layers; i++) {
        ref_layer(r, i, m->layer_class[i], x);
    }
    r->prefix[0] = '\0';
    num loss = t_line(t, ref_loss(r, "model.norm", x, tokens, 1), 1.0 / (double)n, 0.0);
    r->r.lm_loss = val(t, loss);
    r->r.mtp_loss = 0.0;
    for (int64_t d = 0; d < m->mtp_layers; d++) {
        num sum = ref_mtp(r, d, x, tokens);
        double labels = (double)(r->o.samples * (r->o.seq - d - 1));
        double weight = r->o.mtp_coef / (double)m->mtp_layers / labels;
        r->r.mtp_loss += val(t, sum) / (double)m->mtp_layers / labels;
        loss = t_add(t, loss, t_line(t, sum, weight, 0.0));
    }
    r->r.aux_loss = val(t, r->aux);
    r->r.z_loss = val(t, r->z);
    loss = t_add(t, loss, t_line(t, r->aux, r->o.aux_coef, 0.0));
    loss = t_add(t, loss, t_line(t, r->z, r->o.z_coef, 0.0));
    tape_backward(t, loss);
    double sum = 0.0;
    for (int i = 0; i < r->count; i++) {
        ref_tensor *w = &r->tensor[i];
        for (int64_t k = 0; k < w->rows * w->cols && !w->buffer; k++) {
            w->grad[k] = t->node[w->at + (num)k].grad;
            sum += w->grad[k] * w->grad[k];
        }
    }
    r->r.grad_norm = sqrt(sum);
    free(x);
}

/* One AdamW update by the gradients that stand, and of the correction biases. */
static inline void ref_update(ref_model *r) {
    const ref_options *o = &r->o;
    const mf_model *m = &r->m;
    double n = (double)++r->step;
    double clip = r->r.grad_norm > o->clip ? o->clip / (r->r.grad_norm + 1e-6) : 1.0;
    for (int i = 0; i < r->count; i++) {
        ref_tensor *w = &r->tensor[i];
        for (int64_t k = 0; k < w->rows * w->cols && !w->buffer; k++) {
            double g = clip * w->grad[k];
            w->m[k] = o->beta1 * w->m[k] + (1.0 - o->beta1) * g;
            w->v[k] = o->beta2 * w->v[k] + (1.0 - o->beta2) * g * g;
            double mean = w->m[k] / (1.0 - pow(o->beta1, n));
            double square = w->v[k] / (1.0 - pow(o->beta2, n));
            w->value[k] -= o->lr * (mean / (sqrt(square) + o->eps) + o->decay * w->value[k]);
        }
    }
    for (int64_t layer = 0; layer < m->layers + m->mtp_layers; layer++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%lld.mlp.gate.e_score_correction_bias",
                 (long long)layer);
        ref_tensor *bias = ref_find(r, name);
        const double *load = r->load + layer * m->experts;
        double mean = 0.0;
        for (int64_t e = 0; e < m->experts; e++) {
            mean += load[e] / (double)m->experts;
        }
        for (int64_t e = 0; e < m->experts && bias != NULL; e++) {
            bias->value[e] += load[e] < mean ? o->bias_rate : load[e] > mean ? -o->bias_rate : 0.0;
        }
    }
}

#endif
