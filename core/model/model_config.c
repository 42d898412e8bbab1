/* model_config.c - a model family's config.json as an mf_model: sizes, attention, and the parts
 * that model_family.c, model_rope.c and model_layers.c read. */
#include "core/model/model_family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define VOCAB_MAX (INT64_C(1) << 26)
#define PARAMETERS_MAX 1e15

/* --- what all families have ------------------------------------------------------------------ */

/* Layers where the file does not count them: entries of the list (or letters of the text) that says
 * what each is. */
static int64_t listed_layers(mf_config *c, const char *key) {
    const mf_json_value *v = key != NULL ? mf_config_value(c, MF_KEYS(key)) : NULL;
    const char *text = "";
    if (v != NULL && mf_json_value_type(v) == MF_JSON_STRING &&
        mf_json_string(v, &text, NULL) == MF_OK) {
        return (int64_t)strlen(text);
    }
    return v != NULL && mf_json_value_type(v) == MF_JSON_ARRAY ? (int64_t)mf_json_size(v) : 0;
}

static void read_layer_count(mf_config *c, const mf_model_family *f, mf_model *m) {
    int64_t listed = listed_layers(c, f->layers_key);
    bool counts = mf_config_value(c, MF_KEYS("num_hidden_layers")) != NULL;
    if (!counts && listed > 0 && listed <= MF_MODEL_MAX_LAYERS) {
        m->layers = listed;
    } else {
        m->layers = mf_config_int(c, MF_KEYS("num_hidden_layers"), 1, MF_MODEL_MAX_LAYERS);
    }
}

static void read_common(mf_config *c, const mf_model_family *f, mf_model *m) {
    static const char *const eps_keys[] = {"rms_norm_eps", "layernorm_epsilon",
                                           "layer_norm_epsilon", "norm_eps", NULL};
    read_layer_count(c, f, m);
    m->hidden = mf_config_int(c, MF_KEYS("hidden_size"), 1, MF_CONFIG_WIDTH_MAX);
    m->vocab = mf_config_int(c, MF_KEYS("vocab_size"), 1, VOCAB_MAX);
    m->rms_norm_eps = mf_config_opt_f64(c, eps_keys, 0, 1, f->eps);
    m->max_position =
        mf_config_opt_int(c, MF_KEYS("max_position_embeddings"), 1, INT64_C(1) << 40, 4096);
    bool tied = f->tied;
    if (c->status == MF_OK && c->object != c->root) {
        c->status = mf_json_opt_bool(c->root, "tie_word_embeddings", &tied, c->e);
    }
    m->tied_embeddings = mf_config_opt_bool(c, MF_KEYS("tie_word_embeddings"), tied);
    const char *want = f->act != NULL ? f->act : "silu";
    const char *act =
        mf_config_opt_string(c, MF_KEYS("hidden_act", "mlp_hidden_act", "hidden_activation"), want);
    bool silu = strcmp(want, "silu") == 0 && strcmp(act, "swish") == 0;
    if (strcmp(act, want) != 0 && !silu && want[0] != '\0') {
        mf_config_fail(c, "hidden_act", "\"hidden_act\": expected %s, got \"%.40s\"", want, act);
    }
}

static void read_bias(mf_config *c, const mf_model_family *f, mf_model *m) {
    bool on = false;
    switch (f->bias) {
    case MF_BIAS_NONE:
        if (f->attn == MF_ATTN_MLA && mf_config_opt_bool(c, MF_KEYS("attention_bias"), false)) {
            mf_config_fail(c, "attention_bias", "\"attention_bias\": not supported with MLA");
        }
        break;
    case MF_BIAS_QKV:
        m->qkv_bias = true;
        break;
    case MF_BIAS_QKV_KEY:
        m->qkv_bias = mf_config_opt_bool(c, MF_KEYS("qkv_bias"), true);
        break;
    case MF_BIAS_ATTENTION_QKV:
    case MF_BIAS_ATTENTION_ALL:
        on = mf_config_opt_bool(c, MF_KEYS("attention_bias"), f->window == MF_WINDOW_ALTERNATING);
        m->qkv_bias = on;
        m->o_bias = on && f->bias == MF_BIAS_ATTENTION_ALL;
        break;
    }
}

static void read_gqa(mf_config *c, const mf_model_family *f, mf_model *m) {
    m->kv_heads = mf_config_opt_int(c, MF_KEYS("num_key_value_heads", "num_attention_groups"), 1,
                                    MF_CONFIG_WIDTH_MAX, m->heads);
    m->head_dim = mf_config_opt_int(c, MF_KEYS("head_dim", "attention_head_dim"), 1,
                                    MF_CONFIG_WIDTH_MAX, f->head_dim);
    if (c->status != MF_OK) {
        return;
    }
    if (m->head_dim == 0) {
        if (m->hidden % m->heads != 0) {
            mf_config_fail(c, "num_attention_heads",
                           "\"hidden_size\" %lld does not divide into %lld heads, and \"head_dim\" "
                           "is missing",
                           (long long)m->hidden, (long long)m->heads);
        }
        m->head_dim = m->hidden / m->heads;
    }
    if (m->heads % m->kv_heads != 0) {
        mf_config_fail(c, "num_key_value_heads", "%lld heads do not divide into %lld groups",
                       (long long)m->heads, (long long)m->kv_heads);
    }
    m->v_head_dim = m->head_dim;
}

static void read_mla(mf_config *c, mf_model *m) {
    m->kv_heads = m->heads;
    m->q_lora_rank = mf_config_opt_int(c, MF_KEYS("q_lora_rank"), 0, MF_CONFIG_WIDTH_MAX, 0);
    m->kv_lora_rank = mf_config_int(c, MF_KEYS("kv_lora_rank"), 1, MF_CONFIG_WIDTH_MAX);
    m->qk_nope_head_dim = mf_config_int(c, MF_KEYS("qk_nope_head_dim"), 1, MF_CONFIG_WIDTH_MAX);
    m->qk_rope_head_dim = mf_config_int(c, MF_KEYS("qk_rope_head_dim"), 1, MF_CONFIG_WIDTH_MAX);
    m->v_head_dim = mf_config_int(c, MF_KEYS("v_head_dim"), 1, MF_CONFIG_WIDTH_MAX);
    m->head_dim = m->qk_nope_head_dim + m->qk_rope_head_dim;
    m->partial_rotary = (double)m->qk_rope_head_dim / (double)m->head_dim;
}

static void read_attention(mf_config *c, const mf_model_family *f, mf_model *m) {
    m->attn = f->attn;
    m->heads = mf_config_int(c, MF_KEYS("num_attention_heads"), 1, MF_CONFIG_WIDTH_MAX);
    mf_model_read_rope(c, f, m);
    read_bias(c, f, m);
    if (f->attn == MF_ATTN_MLA) {
        read_mla(c, m);
    } else {
        read_gqa(c, f, m);
    }
    if (c->status == MF_OK && m->heads * m->head_dim > MF_CONFIG_WIDTH_MAX) {
        mf_config_fail(c, "num_attention_heads", "%lld heads of width %lld: too wide",
                       (long long)m->heads, (long long)m->head_dim);
    }
}

/* --- entry ----------------------------------------------------------------------------------- */

/* An upper bound that cannot overflow: every sum of parameters then fits an int64_t. */
static double parameters_bound(const mf_model *m) {
    const mf_mixer_shape *x = &m->mixer;
    double h = (double)m->hidden, latent = (double)m->moe_latent, per_layer = 0;
    double most = (double)m->heads, wide = (double)(m->head_dim + m->v_head_dim), ratio = 0;
    for (int i = 0; i < m->classes; i++) {
        most = fmax(most, (double)mf_model_heads(m, &m->layer_classes[i]));
        wide = fmax(wide, 2 * (double)m->layer_classes[i].head_dim);
        ratio = fmax(ratio, (double)m->layer_classes[i].compress);
    }
    double heads = most * wide;
    heads += 4 * ((double)x->key_heads + (double)x->value_heads + 1) *
             ((double)x->key_dim + (double)x->value_dim);
    heads += ((double)m->index_heads + 1) * (double)m->index_head_dim;
    per_layer +=
        4 * h * heads + ((double)m->q_lora_rank + (double)m->kv_lora_rank) * (h + 3 * heads);
    per_layer += 4 * h * ((double)m->ffn + (double)m->shared_ffn);
    per_layer += 4 * (h + latent) * (double)m->moe_ffn * (double)m->experts + 3 * h * latent;
    per_layer += (double)x->conv * 4 * heads;
    per_layer += (double)m->o_groups * (double)m->o_lora_rank * (h + heads);
    per_layer += pow((double)m->hyper_streams + 2, 3) * 4 * h;
    per_layer += 2 * ratio * (wide + (double)m->index_head_dim);
    return ((double)m->layers + (double)m->mtp_layers) * per_layer + 2 * h * (double)m->vocab;
}

mf_status mf_model_read(mf_config *c, const char *name, mf_model *out) {
    mf_model m = {.routed_scaling = 1.0, .n_group = 1, .topk_group = 1};
    const mf_model_family *f = mf_model_family_find(c);
    if (f == NULL) {
        return c->status;
    }
    snprintf(m.name, sizeof m.name, "%s", name);
    snprintf(m.family, sizeof m.family, "%s", f->name);
    read_common(c, f, &m);
    read_attention(c, f, &m);
    if (f->read != NULL) {
        f->read(c, &m);
    }
    mf_model_read_layers(c, f, &m);
    mf_config_leave_out_unread(c);
    memcpy(m.left_out, c->left_out, sizeof m.left_out);
    if (c->status == MF_OK && parameters_bound(&m) > PARAMETERS_MAX) {
        c->status = mf_json_fail(c->object, c->e, "more than %.0e parameters", PARAMETERS_MAX);
    }
    mf_status st = mf_config_check_overrides(c, f->name);
    if (st == MF_OK) {
        *out = m;
    }
    return st;
}

/* All of them or none: some alone would describe another model. */
static void keep_overrides(const char *const *overrides, size_t count, char out[MF_MODEL_SET]) {
    size_t used = 0;
    bool fits = count <= MF_MODEL_SETS;
    out[0] = '\0';
    for (size_t i = 0; i < count && fits; i++) {
        const size_t length = strlen(overrides[i]);
        fits = used + length + 2 <= MF_MODEL_SET && strchr(overrides[i], '\n') == NULL;
        if (fits) {
            used += (size_t)snprintf(out + used, MF_MODEL_SET - used, "%s%s", i > 0 ? "\n" : "",
                                     overrides[i]);
        }
    }
    if (!fits) {
        out[0] = '\0';
    }
}

int mf_model_split_set(char set[MF_MODEL_SET], const char *out[MF_MODEL_SETS]) {
    int count = 0;
    for (char *at = set; at != NULL && at[0] != '\0' && count < MF_MODEL_SETS;) {
        char *end = strchr(at, '\n');
        out[count++] = at;
        if (end != NULL) {
            *end++ = '\0';
        }
        at = end;
    }
    return count;
}

mf_status mf_model_from_config(const mf_json *doc, const char *name, const char *const *overrides,
                               size_t count, mf_model *out, mf_err *e) {
    mf_config c;
    mf_status st = mf_config_open(&c, doc, overrides, count, e);
    st = st == MF_OK ? mf_model_read(&c, name, out) : st;
    mf_config_close(&c);
    if (st == MF_OK) {
        keep_overrides(overrides, count, out->set);
    }
    return st;
}

mf_status mf_model_from_json(const mf_json *doc, const char *name, mf_model *out, mf_err *e) {
    return mf_model_from_config(doc, name, NULL, 0, out, e);
}
