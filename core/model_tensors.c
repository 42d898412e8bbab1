/* model_tensors.c - the weight tensors of a model, and what is summed over them: parameters; FLOPs
 * per token. */
#include "core/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* `copies` equal tensors (the experts of a layer), of which `t` is the first. */
typedef int (*visit_fn)(const mf_model_tensor *t, int64_t copies, void *user);

typedef struct walk {
    const mf_model *m;
    bool expand; /* experts one by one, and tensors with their names */
    visit_fn visit;
    void *user;
    int64_t layer; /* at hand; -1 outside layers */
    int stop;
} walk;

static void put_share(walk *w, mf_weight_part part, int64_t rows, int64_t cols, int64_t copies,
                      double share, bool buffer, const char *name) {
    mf_model_tensor t = {.part = part,
                         .layer = w->layer,
                         .rows = rows,
                         .cols = cols,
                         .active_share = share,
                         .buffer = buffer};
    if (w->stop != 0) {
        return;
    }
    if (w->expand) {
        if (w->layer >= 0) {
            snprintf(t.name, sizeof t.name, "model.layers.%lld.%s", (long long)w->layer, name);
        } else {
            snprintf(t.name, sizeof t.name, "%s", name);
        }
    }
    w->stop = w->visit(&t, copies, w->user);
}

static void put(walk *w, mf_weight_part part, int64_t rows, int64_t cols, const char *name) {
    put_share(w, part, rows, cols, 1, 1.0, false, name);
}

/* A linear map [rows, cols] and its bias. */
static void put_linear(walk *w, mf_weight_part part, int64_t rows, int64_t cols, bool bias,
                       const char *name) {
    char text[96];
    snprintf(text, sizeof text, "%s.weight", name);
    put(w, part, rows, cols, text);
    if (bias) {
        snprintf(text, sizeof text, "%s.bias", name);
        put(w, part, rows, 1, text);
    }
}

static void put_gqa(walk *w) {
    const mf_model *m = w->m;
    int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    put_linear(w, MF_PART_ATTENTION, q, m->hidden, m->qkv_bias, "self_attn.q_proj");
    put_linear(w, MF_PART_ATTENTION, kv, m->hidden, m->qkv_bias, "self_attn.k_proj");
    put_linear(w, MF_PART_ATTENTION, kv, m->hidden, m->qkv_bias, "self_attn.v_proj");
    put_linear(w, MF_PART_ATTENTION, m->hidden, q, m->o_bias, "self_attn.o_proj");
    if (m->qk_norm || m->qk_norm_full) {
        put(w, MF_PART_NORM, m->qk_norm_full ? q : m->head_dim, 1, "self_attn.q_norm.weight");
        put(w, MF_PART_NORM, m->qk_norm_full ? kv : m->head_dim, 1, "self_attn.k_norm.weight");
    }
    if (m->attn_sinks) {
        put(w, MF_PART_ATTENTION, m->heads, 1, "self_attn.sinks");
    }
}

static void put_mla(walk *w) {
    const mf_model *m = w->m;
    int64_t q = m->heads * m->head_dim;
    if (m->q_lora_rank > 0) {
        put_linear(w, MF_PART_ATTENTION, m->q_lora_rank, m->hidden, false, "self_attn.q_a_proj");
        put(w, MF_PART_NORM, m->q_lora_rank, 1, "self_attn.q_a_layernorm.weight");
        put_linear(w, MF_PART_ATTENTION, q, m->q_lora_rank, false, "self_attn.q_b_proj");
    } else {
        put_linear(w, MF_PART_ATTENTION, q, m->hidden, false, "self_attn.q_proj");
    }
    put_linear(w, MF_PART_ATTENTION, m->kv_lora_rank + m->qk_rope_head_dim, m->hidden, false,
               "self_attn.kv_a_proj_with_mqa");
    put(w, MF_PART_NORM, m->kv_lora_rank, 1, "self_attn.kv_a_layernorm.weight");
    put_linear(w, MF_PART_ATTENTION, m->heads * (m->qk_nope_head_dim + m->v_head_dim),
               m->kv_lora_rank, false, "self_attn.kv_b_proj");
    put_linear(w, MF_PART_ATTENTION, m->hidden, m->heads * m->v_head_dim, false,
               "self_attn.o_proj");
}

/* gate, up and down of a SwiGLU of `width` under `prefix`. */
static void put_swiglu(walk *w, mf_weight_part part, int64_t width, bool bias, const char *prefix) {
    char name[64];
    snprintf(name, sizeof name, "%s.gate_proj", prefix);
    put_linear(w, part, width, w->m->hidden, bias, name);
    snprintf(name, sizeof name, "%s.up_proj", prefix);
    put_linear(w, part, width, w->m->hidden, bias, name);
    snprintf(name, sizeof name, "%s.down_proj", prefix);
    put_linear(w, part, w->m->hidden, width, bias, name);
}

typedef struct expert_tensor {
    const char *name; /* printf format with the expert's number */
    int64_t rows, cols;
} expert_tensor;

static void put_expert_tensors(walk *w, const expert_tensor *list, size_t count) {
    const mf_model *m = w->m;
    double share = (double)m->top_k / (double)m->experts;
    int64_t listed = w->expand ? m->experts : 1;
    for (int64_t expert = 0; expert < listed && w->stop == 0; expert++) {
        for (size_t i = 0; i < count; i++) {
            char name[64] = "";
            if (w->expand) {
                const char *mark = strchr(list[i].name, '#');
                snprintf(name, sizeof name, "%.*s%lld%s", (int)(mark - list[i].name), list[i].name,
                         (long long)expert, mark + 1);
            }
            put_share(w, MF_PART_EXPERT, list[i].rows, list[i].cols, w->expand ? 1 : m->experts,
                      share, false, name);
        }
    }
}

static void put_experts(walk *w) {
    const mf_model *m = w->m;
    int64_t h = m->hidden, f = m->moe_ffn;
    if (m->router_score == MF_ROUTER_TOPK_SOFTMAX) { /* GPT-OSS: slices of tensors over experts */
        const expert_tensor list[] = {{"mlp.experts.gate_up_proj[#]", h, 2 * f},
                                      {"mlp.experts.gate_up_proj_bias[#]", 2 * f, 1},
                                      {"mlp.experts.down_proj[#]", f, h},
                                      {"mlp.experts.down_proj_bias[#]", h, 1}};
        put_linear(w, MF_PART_ROUTER, m->experts, h, m->router_bias, "mlp.router");
        put_expert_tensors(w, list, 4);
    } else if (strcmp(m->family, "mixtral") == 0) {
        const expert_tensor list[] = {{"block_sparse_moe.experts.#.w1.weight", f, h},
                                      {"block_sparse_moe.experts.#.w3.weight", f, h},
                                      {"block_sparse_moe.experts.#.w2.weight", h, f}};
        put_linear(w, MF_PART_ROUTER, m->experts, h, m->router_bias, "block_sparse_moe.gate");
        put_expert_tensors(w, list, 3);
    } else {
        const expert_tensor list[] = {{"mlp.experts.#.gate_proj.weight", f, h},
                                      {"mlp.experts.#.up_proj.weight", f, h},
                                      {"mlp.experts.#.down_proj.weight", h, f}};
        put_linear(w, MF_PART_ROUTER, m->experts, h, m->router_bias, "mlp.gate");
        if (m->correction_bias) {
            put_share(w, MF_PART_ROUTER, m->experts, 1, 1, 1.0, true,
                      "mlp.gate.e_score_correction_bias");
        }
        put_expert_tensors(w, list, 3);
    }
    if (m->shared_ffn > 0) {
        put_swiglu(w, MF_PART_SHARED_EXPERT, m->shared_ffn, false,
                   m->shared_gate ? "mlp.shared_expert" : "mlp.shared_experts");
    }
    if (m->shared_gate) {
        put(w, MF_PART_SHARED_EXPERT, 1, h, "mlp.shared_expert_gate.weight");
    }
}

static void put_layer(walk *w, int class_index) {
    const mf_model *m = w->m;
    put(w, MF_PART_NORM, m->hidden, 1, "input_layernorm.weight");
    if (m->attn == MF_ATTN_MLA) {
        put_mla(w);
    } else {
        put_gqa(w);
    }
    put(w, MF_PART_NORM, m->hidden, 1, "post_attention_layernorm.weight");
    if (m->layer_classes[class_index].ffn == MF_FFN_MOE) {
        put_experts(w);
    } else {
        put_swiglu(w, MF_PART_DENSE_FFN, m->ffn, m->ffn_bias, "mlp");
    }
}

static void visit_tensors(walk *w) {
    const mf_model *m = w->m;
    w->layer = -1;
    put(w, MF_PART_EMBEDDING, m->vocab, m->hidden, "model.embed_tokens.weight");
    for (int64_t i = 0; i < m->layers && w->stop == 0; i++) {
        w->layer = i;
        put_layer(w, m->layer_class[i]);
    }
    w->layer = -1;
    put(w, MF_PART_NORM, m->hidden, 1, "model.norm.weight");
    if (!m->tied_embeddings) {
        put(w, MF_PART_HEAD, m->vocab, m->hidden, "lm_head.weight");
    }
    for (int64_t d = 0; d < m->mtp_layers && w->stop == 0; d++) {
        w->layer = m->layers + d;
        put(w, MF_PART_MTP, m->hidden, 1, "enorm.weight");
        put(w, MF_PART_MTP, m->hidden, 1, "hnorm.weight");
        put(w, MF_PART_MTP, m->hidden, 2 * m->hidden, "eh_proj.weight");
        put_layer(w, m->mtp_class);
        put(w, MF_PART_MTP, m->hidden, 1, "shared_head.norm.weight");
    }
}

/* --- the two walks --------------------------------------------------------------------------- */

typedef struct forward {
    mf_model_tensor_fn fn;
    void *user;
} forward;

static int visit_one(const mf_model_tensor *t, int64_t copies, void *user) {
    const forward *f = user;
    (void)copies; /* 1: names are wanted */
    return f->fn(t, f->user);
}

void mf_model_tensors(const mf_model *m, mf_model_tensor_fn fn, void *user) {
    forward f = {fn, user};
    visit_tensors(&(walk){.m = m, .expand = true, .visit = visit_one, .user = &f});
}

typedef struct tally {
    int64_t layers;
    mf_model_counts *out;
} tally;

static int visit_count(const mf_model_tensor *t, int64_t copies, void *user) {
    const tally *sum = user;
    int64_t elements = t->rows * t->cols * copies;
    if (t->buffer) {
        return 0;
    }
    if (t->layer >= sum->layers) {
        sum->out->mtp += elements;
        return 0;
    }
    sum->out->total += elements;
    sum->out->active += llround((double)elements * t->active_share);
    if (t->part == MF_PART_EXPERT) {
        sum->out->routed += elements;
    }
    return 0;
}

void mf_model_count(const mf_model *m, mf_model_counts *out) {
    *out = (mf_model_counts){0};
    tally sum = {m->layers, out};
    visit_tensors(&(walk){.m = m, .visit = visit_count, .user = &sum});
}

/* --- FLOPs ----------------------------------------------------------------------------------- */

/* Keys that a token attends to, on average over a sample, as Megatron-LM counts them: half of the
 * causal square, seq / 2; a window of w < seq keys leaves w - w^2 / (2 seq). */
static double attended_keys(int64_t window, double seq) {
    double w = (double)window;
    return window <= 0 || w >= seq ? seq / 2 : w - w * w / (2 * seq);
}

/* Multiply-adds of one token in one layer's forward pass. */
static double layer_madds(const mf_model *m, const mf_layer_class *kind, double seq) {
    double h = (double)m->hidden, heads = (double)m->heads;
    double qk = heads * (double)m->head_dim, v = heads * (double)m->v_head_dim;
    double madds = v * h + attended_keys(kind->window, seq) * (qk + v); /* output; scores, values */
    if (m->attn == MF_ATTN_MLA) {
        double q_rank = (double)m->q_lora_rank, kv_rank = (double)m->kv_lora_rank;
        madds += q_rank > 0 ? q_rank * (h + qk) : h * qk;
        madds += h * (kv_rank + (double)m->qk_rope_head_dim);
        madds += kv_rank * heads * (double)(m->qk_nope_head_dim + m->v_head_dim);
    } else {
        madds += h * (qk + 2 * (double)m->kv_heads * (double)m->head_dim);
    }
    if (kind->ffn == MF_FFN_MOE) {
        madds += 3 * h * ((double)m->top_k * (double)m->moe_ffn + (double)m->shared_ffn);
    } else {
        madds += 3 * h * (double)m->ffn;
    }
    return madds;
}

double mf_model_flops_per_token(const mf_model *m, int64_t seq) {
    double h = (double)m->hidden, s = (double)seq, mtp = (double)m->mtp_layers;
    double madds = h * (double)m->vocab * (1 + mtp);
    for (int64_t i = 0; i < m->layers; i++) {
        madds += layer_madds(m, &m->layer_classes[m->layer_class[i]], s);
    }
    if (m->mtp_layers > 0) {
        madds += mtp * (layer_madds(m, &m->layer_classes[m->mtp_class], s) + 2 * h * h);
    }
    return 3 * 2 * madds;
}
