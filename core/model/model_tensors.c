/* model_tensors.c - the weight tensors of a model, and what is summed over them: parameters; FLOPs
 * per token. */
#include "core/model/hub_names.h"
#include "core/model/model_mixers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* `copies` equal tensors (the experts of a layer), of which `t` is the first. */
typedef int (*visit_fn)(const mf_model_tensor *t, int64_t copies, void *user);

typedef struct walk {
    const mf_model *m;
    mf_hub_names hub;
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
                         .buffer = buffer,
                         .fused = part == MF_PART_EXPERT ? (int)w->hub.experts : 0};
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

/* The weight of a norm, and the bias of one that has it. */
static void put_norm(walk *w, int64_t cols, const char *name) {
    char text[96];
    snprintf(text, sizeof text, "%s.weight", name);
    put(w, MF_PART_NORM, cols, 1, text);
    if (w->m->layer_norm) {
        snprintf(text, sizeof text, "%s.bias", name);
        put(w, MF_PART_NORM, cols, 1, text);
    }
}

/* Queries: one map, with the gates of the output beside them, or a narrow one, a norm and a wide
 * one (Step-3). */
static void put_queries(walk *w, int64_t q) {
    const mf_model *m = w->m;
    int64_t rows = m->attn_gate == MF_ATTN_GATE_CHANNEL ? 2 * q : q;
    if (m->q_lora_rank > 0) {
        put_linear(w, MF_PART_ATTENTION, m->q_lora_rank, m->hidden, false, w->hub.q);
        put(w, MF_PART_NORM, m->q_lora_rank, 1, "self_attn.inter_norm.weight");
        put_linear(w, MF_PART_ATTENTION, rows, m->q_lora_rank, false, "self_attn.wq");
    } else {
        put_linear(w, MF_PART_ATTENTION, rows, m->hidden, m->qkv_bias, w->hub.q);
    }
}

static void put_gqa(walk *w, const mf_layer_class *x) {
    const mf_model *m = w->m;
    int64_t heads = mf_model_heads(m, x), kv_heads = mf_model_kv_heads(m, x);
    int64_t d = mf_model_head_dim(m, x), dv = mf_model_value_dim(m, x);
    int64_t q = heads * d, k = kv_heads * d, v = x->k_is_v ? 0 : kv_heads * dv;
    if (w->hub.qkv != NULL) {
        put_linear(w, MF_PART_ATTENTION, q + k + v, m->hidden, m->qkv_bias, w->hub.qkv);
    } else {
        put_queries(w, q);
        put_linear(w, MF_PART_ATTENTION, k, m->hidden, m->qkv_bias, w->hub.k);
        if (v > 0) {
            put_linear(w, MF_PART_ATTENTION, v, m->hidden, m->qkv_bias, w->hub.v);
        }
    }
    put_linear(w, MF_PART_ATTENTION, m->hidden, heads * dv, m->o_bias, w->hub.o);
    if (m->attn_gate == MF_ATTN_GATE_HEAD) {
        put_linear(w, MF_PART_ATTENTION, heads, m->hidden, false, "self_attn.g_proj");
    }
    if ((m->qk_norm || m->qk_norm_full) && !x->no_qk_norm) {
        char name[96];
        snprintf(name, sizeof name, "%s.weight", w->hub.q_norm);
        put(w, MF_PART_NORM, m->qk_norm_full ? q : d, 1, name);
        snprintf(name, sizeof name, "%s.weight", w->hub.k_norm);
        put(w, MF_PART_NORM, m->qk_norm_full ? k : d, 1, name);
    }
    if (m->attn_sinks && !x->no_sinks) {
        put(w, MF_PART_ATTENTION, heads, 1, w->hub.sinks);
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
    put_linear(w, MF_PART_ATTENTION, m->hidden, m->heads * m->v_head_dim, false, w->hub.o);
    if (m->attn_gate == MF_ATTN_GATE_CHANNEL) {
        put_linear(w, MF_PART_ATTENTION, m->heads * m->v_head_dim, m->hidden, false,
                   "self_attn.g_proj");
    }
}

/* gate, up and down of a SwiGLU of `width` under `prefix`; up and down where it has no gate. */
static void put_swiglu(walk *w, mf_weight_part part, int64_t width, bool bias, const char *prefix) {
    char name[64];
    if (!w->m->ungated) {
        snprintf(name, sizeof name, "%s.gate_proj", prefix);
        put_linear(w, part, width, w->m->hidden, bias, name);
    }
    snprintf(name, sizeof name, "%s.up_proj", prefix);
    put_linear(w, part, width, w->m->hidden, bias, name);
    snprintf(name, sizeof name, "%s.down_proj", prefix);
    put_linear(w, part, w->m->hidden, width, bias, name);
}

static void put_shared_expert(walk *w) {
    const mf_model *m = w->m;
    char name[96];
    if (m->shared_ffn > 0 && w->hub.shared_gate_up != NULL) {
        snprintf(name, sizeof name, "%s.%s", w->hub.shared, w->hub.shared_gate_up);
        put_linear(w, MF_PART_SHARED_EXPERT, 2 * m->shared_ffn, m->hidden, false, name);
        snprintf(name, sizeof name, "%s.%s", w->hub.shared, w->hub.shared_down);
        put_linear(w, MF_PART_SHARED_EXPERT, m->hidden, m->shared_ffn, false, name);
    } else if (m->shared_ffn > 0) {
        put_swiglu(w, MF_PART_SHARED_EXPERT, m->shared_ffn, false, w->hub.shared);
    }
    if (m->shared_gate) {
        put(w, MF_PART_SHARED_EXPERT, 1, m->hidden, "mlp.shared_expert_gate.weight");
    }
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

/* Experts that a checkpoint keeps in tensors over all of them: slices. */
static void put_fused_experts(walk *w) {
    const mf_model *m = w->m;
    int64_t h = m->hidden, f = m->moe_ffn;
    char name[4][96];
    for (int i = 0; i < 4; i++) {
        snprintf(name[i], sizeof name[i], "%s%s[#]", w->hub.expert[i / 2], i % 2 ? "_bias" : "");
    }
    bool rows = w->hub.experts == MF_HUB_EXPERTS_ROWS;
    const expert_tensor matrices[] = {{name[0], rows ? 2 * f : h, rows ? h : 2 * f},
                                      {name[2], rows ? h : f, rows ? f : h}};
    const expert_tensor biased[] = {matrices[0], {name[1], 2 * f, 1}, matrices[1], {name[3], h, 1}};
    put_expert_tensors(w, m->ffn_bias ? biased : matrices, m->ffn_bias ? 4 : 2);
}

static void put_separate_experts(walk *w) {
    const mf_model *m = w->m;
    int64_t in = m->moe_latent > 0 ? m->moe_latent : m->hidden, f = m->moe_ffn;
    char name[3][96];
    for (int i = 0; i < 3; i++) {
        snprintf(name[i], sizeof name[i], "%s.weight", w->hub.expert[i]);
    }
    const expert_tensor list[] = {{name[0], f, in}, {name[1], f, in}, {name[2], in, f}};
    put_expert_tensors(w, m->ungated ? list + 1 : list, m->ungated ? 2 : 3);
}

static void put_experts(walk *w, const mf_layer_class *x) {
    const mf_model *m = w->m;
    put_linear(w, MF_PART_ROUTER, m->experts, m->hidden, m->router_bias, w->hub.router);
    if (mf_model_has_correction(m, x)) {
        put_share(w, MF_PART_ROUTER, m->experts, 1, 1, 1.0, true, w->hub.correction);
    }
    if (x->hashed) {
        put_share(w, MF_PART_ROUTER, m->vocab, m->top_k, 1, 1.0, true, "mlp.gate.tid2eid");
    }
    if (m->moe_latent > 0) {
        put_linear(w, MF_PART_SHARED_EXPERT, m->moe_latent, m->hidden, false,
                   "mlp.latent_down_proj");
        put_linear(w, MF_PART_SHARED_EXPERT, m->hidden, m->moe_latent, false, "mlp.latent_up_proj");
        if (m->latent_norm) {
            put(w, MF_PART_NORM, m->moe_latent, 1, "mlp.latent_norm.weight");
        }
    }
    if (w->hub.experts == MF_HUB_EXPERTS_EACH) {
        put_separate_experts(w);
    } else {
        put_fused_experts(w);
    }
    put_shared_expert(w);
}

static void put_listed(walk *w, mf_weight_part part, const mf_mixer_tensor *list, int count) {
    for (int i = 0; i < count; i++) {
        put(w, part, list[i].rows, list[i].cols, list[i].name);
    }
}

static void put_mixer(walk *w, const mf_layer_class *x) {
    const mf_model *m = w->m;
    mf_mixer_tensor list[MF_MIXER_TENSORS_MAX];
    put_listed(w, MF_PART_MIXER, list, mf_model_mixer_tensors(m, x, list));
    if (x->mixer == MF_MIXER_ATTENTION && m->attn == MF_ATTN_MLA) {
        put_mla(w);
    } else if (x->mixer == MF_MIXER_ATTENTION) {
        put_gqa(w, x);
    }
    if (x->indexer) {
        put_listed(w, MF_PART_INDEXER, list, mf_model_index_tensors(m, list));
    }
}

static void put_layer(walk *w, int class_index) {
    const mf_model *m = w->m;
    const mf_layer_class *x = &m->layer_classes[class_index];
    if (x->mixer != MF_MIXER_NONE) {
        put_norm(w, m->hidden, w->hub.input_norm);
    }
    put_mixer(w, x);
    mf_mixer_tensor hyper[MF_MIXER_TENSORS_MAX];
    put_listed(w, MF_PART_MIXER, hyper, mf_model_hyper_tensors(m, hyper));
    if (x->ffn != MF_FFN_NONE) {
        put_norm(w, m->hidden, x->mixer == MF_MIXER_NONE ? w->hub.input_norm : w->hub.ffn_norm);
    }
    if (x->ffn == MF_FFN_MOE) {
        put_experts(w, x);
    } else if (x->ffn == MF_FFN_DENSE) {
        put_swiglu(w, MF_PART_DENSE_FFN, m->ffn, m->ffn_bias, w->hub.dense);
    }
}

/* What makes one of the copies of the residual stream at the end. */
static void put_hyper_head(walk *w) {
    const mf_model *m = w->m;
    if (m->hyper_streams > 0) {
        put(w, MF_PART_MIXER, m->hyper_streams, m->hyper_streams * m->hidden, "hc_head_fn");
        put(w, MF_PART_MIXER, m->hyper_streams, 1, "hc_head_base");
        put(w, MF_PART_MIXER, 1, 1, "hc_head_scale");
    }
}

static void visit_tensors(walk *w) {
    const mf_model *m = w->m;
    w->layer = -1;
    w->hub = mf_model_hub_names(m);
    put_linear(w, MF_PART_EMBEDDING, m->vocab, m->hidden, false, w->hub.embedding);
    for (int64_t i = 0; i < m->layers && w->stop == 0; i++) {
        w->layer = i;
        put_layer(w, m->layer_class[i]);
    }
    w->layer = -1;
    put_norm(w, m->hidden, w->hub.norm);
    put_hyper_head(w);
    if (!m->tied_embeddings) {
        put_linear(w, MF_PART_HEAD, m->vocab, m->hidden, m->head_bias, w->hub.head);
    }
    for (int64_t d = 0; d < m->mtp_layers && w->stop == 0; d++) {
        w->layer = m->layers + d;
        put(w, MF_PART_MTP, m->hidden, 1, "enorm.weight");
        put(w, MF_PART_MTP, m->hidden, 1, "hnorm.weight");
        put(w, MF_PART_MTP, m->hidden, 2 * m->hidden, "eh_proj.weight");
        put_layer(w, m->mtp_class);
        put_hyper_head(w);
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
static double attended_keys(const mf_layer_class *x, double seq) {
    double w = (double)x->window;
    if (x->chunked && w > 0 && w < seq) { /* each chunk is a causal square of its own */
        double whole = floor(seq / w), rest = seq - whole * w;
        return (whole * w * w + rest * rest) / (2 * seq);
    }
    return x->window <= 0 || w >= seq ? seq / 2 : w - w * w / (2 * seq);
}

/* Multiply-adds of one token in the attention of a layer. Where an indexer keeps index_topk keys,
 * core attention goes over the latents themselves (DeepSeek-V3.2, arXiv:2512.02556); an indexer of
 * blocks is stored and not run (MiniMax-M3 in Megatron-Bridge). */
static double attention_madds(const mf_model *m, const mf_layer_class *kind, double seq) {
    double h = (double)m->hidden, heads = (double)mf_model_heads(m, kind);
    double kv_heads = (double)mf_model_kv_heads(m, kind), q_rank = (double)m->q_lora_rank;
    double d = (double)mf_model_head_dim(m, kind), dv = (double)mf_model_value_dim(m, kind);
    double qk = heads * d, v = heads * dv;
    double kv_rank = (double)m->kv_lora_rank, rope = (double)m->qk_rope_head_dim;
    double madds = v * h + (q_rank > 0 ? q_rank * (h + qk) : h * qk); /* output, queries */
    if (m->attn == MF_ATTN_MLA) {
        madds += h * (kv_rank + rope);
        madds += kv_rank * heads * (double)(m->qk_nope_head_dim + m->v_head_dim);
    } else {
        madds += h * kv_heads * (kind->k_is_v ? d : d + dv);
    }
    madds += m->attn_gate == MF_ATTN_GATE_CHANNEL ? h * v
             : m->attn_gate == MF_ATTN_GATE_HEAD  ? h * heads
                                                  : 0;
    bool chosen = m->attn == MF_ATTN_MLA && m->index_topk > 0;
    mf_layer_class reach = *kind;
    reach.window = chosen ? m->index_topk : kind->window;
    double pair = chosen ? heads * (2 * kv_rank + rope) : qk + v; /* scores, values */
    madds += kind->indexer && m->attn == MF_ATTN_MLA ? mf_model_index_madds(m, seq / 2) : 0;
    return madds + attended_keys(&reach, seq) * pair;
}

/* Multiply-adds of one token in one layer's forward pass. */
static double layer_madds(const mf_model *m, const mf_layer_class *kind, double seq) {
    double h = (double)m->hidden, in = m->moe_latent > 0 ? (double)m->moe_latent : h;
    double matrices = m->ungated ? 2 : 3;
    double madds = kind->mixer == MF_MIXER_ATTENTION ? attention_madds(m, kind, seq)
                                                     : mf_model_mixer_madds(m, kind, seq);
    if (kind->ffn == MF_FFN_MOE) {
        madds +=
            matrices * (in * (double)m->top_k * (double)m->moe_ffn + h * (double)m->shared_ffn);
        madds += m->moe_latent > 0 ? 2 * h * in : 0;
    } else if (kind->ffn == MF_FFN_DENSE) {
        madds += matrices * h * (double)m->ffn;
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

int64_t mf_model_local_vocab(const mf_model *m, int64_t tp) {
    const int64_t least = (m->vocab + tp - 1) / tp;
    const int64_t even = (least + MF_VOCAB_ROWS - 1) / MF_VOCAB_ROWS * MF_VOCAB_ROWS;
    return even * (tp - 1) < m->vocab ? even : least;
}
