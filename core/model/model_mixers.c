/* model_mixers.c - tensors and products of mixers that are not attention. */
#include "core/model/model_mixers.h"

static int copy(const mf_mixer_tensor *from, int count, mf_mixer_tensor *to) {
    for (int i = 0; i < count; i++) {
        to[i] = from[i];
    }
    return count;
}

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

static int gdn(const mf_model *m, mf_mixer_tensor *out) {
    const mf_mixer_shape *x = &m->mixer;
    int64_t h = m->hidden, k = x->key_heads * x->key_dim, v = x->value_heads * x->value_dim;
    const mf_mixer_tensor list[] = {{"linear_attn.in_proj_qkv.weight", 2 * k + v, h},
                                    {"linear_attn.in_proj_z.weight", v, h},
                                    {"linear_attn.in_proj_b.weight", x->value_heads, h},
                                    {"linear_attn.in_proj_a.weight", x->value_heads, h},
                                    {"linear_attn.conv1d.weight", 2 * k + v, x->conv},
                                    {"linear_attn.A_log", x->value_heads, 1},
                                    {"linear_attn.dt_bias", x->value_heads, 1},
                                    {"linear_attn.norm.weight", x->value_dim, 1},
                                    {"linear_attn.out_proj.weight", h, v}};
    return copy(list, COUNT(list), out);
}

static int kda(const mf_model *m, mf_mixer_tensor *out) {
    const mf_mixer_shape *x = &m->mixer;
    int64_t h = m->hidden, d = x->key_dim, p = x->key_heads * d;
    const mf_mixer_tensor list[] = {{"self_attn.q_proj.weight", p, h},
                                    {"self_attn.k_proj.weight", p, h},
                                    {"self_attn.v_proj.weight", p, h},
                                    {"self_attn.q_conv1d.weight", p, x->conv},
                                    {"self_attn.k_conv1d.weight", p, x->conv},
                                    {"self_attn.v_conv1d.weight", p, x->conv},
                                    {"self_attn.f_a_proj.weight", d, h},
                                    {"self_attn.f_b_proj.weight", p, d},
                                    {"self_attn.b_proj.weight", x->key_heads, h},
                                    {"self_attn.A_log", x->key_heads, 1},
                                    {"self_attn.dt_bias", p, 1},
                                    {"self_attn.o_norm.weight", d, 1},
                                    {"self_attn.o_proj.weight", h, p},
                                    {"self_attn.g_proj.weight", p, h}};
    const mf_mixer_tensor low[] = {{"self_attn.g_a_proj.weight", d, h},
                                   {"self_attn.g_b_proj.weight", p, d}};
    int n = copy(list, COUNT(list), out);
    return x->full_rank_gate ? n : n - 1 + copy(low, 2, out + n - 1);
}

static int mamba2(const mf_model *m, mf_mixer_tensor *out) {
    const mf_mixer_shape *x = &m->mixer;
    int64_t h = m->hidden, d = x->value_heads * x->value_dim, bc = 2 * x->key_heads * x->key_dim;
    const mf_mixer_tensor list[] = {{"mixer.in_proj.weight", 2 * d + bc + x->value_heads, h},
                                    {"mixer.conv1d.weight", d + bc, x->conv},
                                    {"mixer.A_log", x->value_heads, 1},
                                    {"mixer.D", x->value_heads, 1},
                                    {"mixer.dt_bias", x->value_heads, 1},
                                    {"mixer.norm.weight", d, 1},
                                    {"mixer.out_proj.weight", h, d},
                                    {"mixer.conv1d.bias", d + bc, 1}};
    return copy(list, COUNT(list) - (x->conv_bias ? 0 : 1), out);
}

static int lightning(const mf_model *m, mf_mixer_tensor *out) {
    int64_t h = m->hidden, p = m->mixer.key_heads * m->mixer.key_dim;
    const mf_mixer_tensor list[] = {{"self_attn.qkv_proj.weight", 3 * p, h},
                                    {"self_attn.output_gate.weight", p, h},
                                    {"self_attn.norm.weight", p, 1},
                                    {"self_attn.out_proj.weight", h, p}};
    return copy(list, COUNT(list), out);
}

/* Queries of low rank, one head that is K and V, the output by groups. Where keys are compressed,
 * the tensors that make one of `compress` (two overlapping series of them at 4); where those are
 * chosen (at 4), an indexer whose keys are compressed in the same way. */
static int compressed(const mf_model *m, int64_t ratio, mf_mixer_tensor *out) {
    int64_t h = m->hidden, d = m->head_dim, r = m->q_lora_rank, q = m->heads * d;
    int64_t series = ratio == 4 ? 2 : 1, di = m->index_head_dim;
    const mf_mixer_tensor base[] = {
        {"attn.wq_a.weight", r, h},
        {"attn.q_norm.weight", r, 1},
        {"attn.wq_b.weight", q, r},
        {"attn.wkv.weight", d, h},
        {"attn.kv_norm.weight", d, 1},
        {"attn.attn_sink", m->heads, 1},
        {"attn.wo_a.weight", m->o_groups * m->o_lora_rank, m->o_groups > 0 ? q / m->o_groups : q},
        {"attn.wo_b.weight", h, m->o_groups * m->o_lora_rank}};
    const mf_mixer_tensor keys[] = {{"attn.compressor.wkv.weight", series * d, h},
                                    {"attn.compressor.wgate.weight", series * d, h},
                                    {"attn.compressor.ape", ratio * series * d, 1},
                                    {"attn.compressor.norm.weight", d, 1}};
    const mf_mixer_tensor choice[] = {{"attn.indexer.wq_b.weight", m->index_heads * di, r},
                                      {"attn.indexer.weights_proj.weight", m->index_heads, h},
                                      {"attn.indexer.compressor.wkv.weight", series * di, h},
                                      {"attn.indexer.compressor.wgate.weight", series * di, h},
                                      {"attn.indexer.compressor.ape", ratio * series * di, 1},
                                      {"attn.indexer.compressor.norm.weight", di, 1}};
    int n = copy(base, COUNT(base), out);
    n += ratio > 0 ? copy(keys, COUNT(keys), out + n) : 0;
    return n + (ratio == 4 ? copy(choice, COUNT(choice), out + n) : 0);
}

int mf_model_hyper_tensors(const mf_model *m, mf_mixer_tensor out[MF_MIXER_TENSORS_MAX]) {
    int64_t n = m->hyper_streams, mixes = n * n + 2 * n, wide = n * m->hidden;
    const mf_mixer_tensor list[] = {{"hc_attn_fn", mixes, wide}, {"hc_attn_base", mixes, 1},
                                    {"hc_attn_scale", 3, 1},     {"hc_ffn_fn", mixes, wide},
                                    {"hc_ffn_base", mixes, 1},   {"hc_ffn_scale", 3, 1}};
    return n > 0 ? copy(list, COUNT(list), out) : 0;
}

int mf_model_mixer_tensors(const mf_model *m, const mf_layer_class *x,
                           mf_mixer_tensor out[MF_MIXER_TENSORS_MAX]) {
    switch (x->mixer) {
    case MF_MIXER_COMPRESSED:
        return compressed(m, x->compress, out);
    case MF_MIXER_ATTENTION:
    case MF_MIXER_NONE:
        break;
    case MF_MIXER_GDN:
        return gdn(m, out);
    case MF_MIXER_KDA:
        return kda(m, out);
    case MF_MIXER_MAMBA2:
        return mamba2(m, out);
    case MF_MIXER_LIGHTNING:
        return lightning(m, out);
    }
    return 0;
}

int mf_model_index_tensors(const mf_model *m, mf_mixer_tensor out[MF_MIXER_TENSORS_MAX]) {
    int64_t h = m->hidden, d = m->index_head_dim, q = m->index_heads * d;
    bool latent = m->attn == MF_ATTN_MLA;
    const mf_mixer_tensor list[] = {
        {"self_attn.indexer.wq_b.weight", q, latent && m->q_lora_rank > 0 ? m->q_lora_rank : h},
        {"self_attn.indexer.wk.weight", d, h},
        {"self_attn.indexer.k_norm.weight", d, 1},
        {"self_attn.indexer.k_norm.bias", d, 1},
        {"self_attn.indexer.weights_proj.weight", m->index_heads, h}};
    const mf_mixer_tensor blocks[] = {{"self_attn.index_q_proj.weight", q, h},
                                      {"self_attn.index_k_proj.weight", d, h},
                                      {"self_attn.index_q_norm.weight", d, 1},
                                      {"self_attn.index_k_norm.weight", d, 1}};
    return latent ? copy(list, COUNT(list), out) : copy(blocks, COUNT(blocks), out);
}

/* Matrices among the tensors: a multiply-add an element; convolutions are of `conv` columns. */
static double products(const mf_mixer_tensor *list, int count) {
    double sum = 0.0;
    for (int i = 0; i < count; i++) {
        /* cppcheck-suppress uninitvar ; the caller's list has `count` of them */
        sum += list[i].cols > 1 ? (double)list[i].rows * (double)list[i].cols : 0.0;
    }
    return sum;
}

/* Keys that a query of DeepSeek-V4 sees on average: of a window, and of compressed ones all (at
 * 128) or the chosen (at 4); and what the indexer scores, which takes no causal half
 * (Megatron-Bridge, utils/flop_utils.py "dsv4_hybrid"). */
static double compressed_rule(const mf_model *m, const mf_layer_class *c, double seq) {
    double n = (double)m->heads, d = (double)m->head_dim, window = (double)c->window;
    double sum = 2 * n * d * (window < seq ? window : seq / 2);
    if (c->compress == 0) {
        return sum;
    }
    double keys = seq / (double)c->compress, top = (double)m->index_topk;
    if (c->compress != 4) {
        return sum + n * d * keys;
    }
    double seen = top < keys ? top - top * top / (2 * keys) : keys / 2;
    return sum + 2 * n * d * seen + keys * (double)(m->index_heads * m->index_head_dim);
}

double mf_model_mixer_madds(const mf_model *m, const mf_layer_class *c, double seq) {
    const mf_mixer_shape *x = &m->mixer;
    mf_mixer_tensor list[MF_MIXER_TENSORS_MAX];
    double sum = products(list, mf_model_mixer_tensors(m, c, list));
    double heads = (double)x->value_heads, d = (double)x->value_dim, rule = 0.0;
    switch (c->mixer) {
    case MF_MIXER_ATTENTION:
    case MF_MIXER_NONE:
        break;
    case MF_MIXER_GDN:
    case MF_MIXER_KDA:
        rule = 4.0 * heads * d * d;
        break;
    case MF_MIXER_MAMBA2:
        rule = 3.5 * heads * d * (double)x->key_dim;
        break;
    case MF_MIXER_LIGHTNING:
        rule = heads * d * ((double)x->chunk + 2.0 * d);
        break;
    case MF_MIXER_COMPRESSED:
        rule = compressed_rule(m, c, seq);
        break;
    }
    return sum + rule;
}

double mf_model_index_madds(const mf_model *m, double keys) {
    mf_mixer_tensor list[MF_MIXER_TENSORS_MAX];
    double sum = products(list, mf_model_index_tensors(m, list));
    return sum + keys * (double)m->index_heads * ((double)m->index_head_dim + 1.0);
}
