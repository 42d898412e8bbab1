/* model_layers.c - which layer of a config.json is of which class. */
#include "core/model/model_family.h"

#include <string.h>

const mf_json_value *mf_model_layer_list(mf_config *c, const char *key, int64_t layers) {
    const mf_json_value *list = mf_config_value(c, MF_KEYS(key));
    if (list == NULL) {
        return NULL;
    }
    int64_t size = (int64_t)mf_json_size(list);
    if (mf_json_value_type(list) != MF_JSON_ARRAY) {
        mf_config_fail(c, key, "\"%s\": expected an array", key);
    } else if (size != layers && !(size > layers && mf_config_is_set(c, "num_hidden_layers"))) {
        mf_config_fail(c, key, "\"%s\" has %lld entries for %lld layers", key, (long long)size,
                       (long long)layers);
    }
    return c->status == MF_OK ? list : NULL;
}

bool mf_model_layer_is(mf_config *c, const mf_json_value *list, int64_t i, const char *word) {
    const char *text = "";
    if (c->status == MF_OK) {
        c->status = mf_json_string(mf_json_at(list, (size_t)i), &text, c->e);
    }
    return c->status == MF_OK && strcmp(text, word) == 0;
}

bool mf_model_layer_either(mf_config *c, const mf_json_value *list, int64_t i, const char *word,
                           const char *other) {
    bool is = mf_model_layer_is(c, list, i, word);
    if (c->status == MF_OK && !is && !mf_model_layer_is(c, list, i, other)) {
        c->status = mf_json_fail(mf_json_at(list, (size_t)i), c->e, "expected \"%s\" or \"%s\"",
                                 word, other);
    }
    return is;
}

bool mf_model_layer_flag(mf_config *c, const mf_json_value *list, int64_t i) {
    int64_t one = 0;
    if (c->status == MF_OK) {
        c->status = mf_json_i64(mf_json_at(list, (size_t)i), 0, 1, &one, c->e);
    }
    return one != 0;
}

static void map_windows(mf_config *c, const mf_model_family *f, const mf_model *m,
                        mf_layer_map *map) {
    int64_t window = 0, from = 0;
    if (f->layers != NULL && f->window == MF_WINDOW_NONE) {
        return; /* the family says */
    }
    if (f->window != MF_WINDOW_NONE) {
        /* null switches the window off where no key would mean the family's own */
        int64_t absent = mf_config_has(c, "sliding_window") ? 0 : f->window_default;
        window = mf_config_opt_int(c, MF_KEYS("sliding_window"), 0, INT64_C(1) << 40, absent);
    }
    if (f->window == MF_WINDOW_SWITCHED) {
        from = mf_config_opt_int(c, MF_KEYS("max_window_layers"), 0, INT64_C(1) << 40, 28);
        window = mf_config_opt_bool(c, MF_KEYS("use_sliding_window"), false) ? window : 0;
    }
    const mf_json_value *types = mf_model_layer_list(c, "layer_types", m->layers);
    for (int64_t i = 0; i < m->layers && c->status == MF_OK; i++) {
        bool sliding = f->window == MF_WINDOW_ALTERNATING ? i % 2 == 0 : i >= from;
        if (types != NULL) {
            const mf_json_value *v = mf_json_at(types, (size_t)i);
            const char *word = "";
            c->status = mf_json_string(v, &word, c->e);
            sliding = strcmp(word, "sliding_attention") == 0 && f->window != MF_WINDOW_NONE;
            if (c->status == MF_OK && !sliding && strcmp(word, "full_attention") != 0) {
                c->status = mf_json_fail(v, c->e, "layer type \"%.40s\" is not supported for %s",
                                         word, f->name);
            }
        }
        map->at[i].window = sliding ? window : 0;
    }
    map->at[m->layers].window = map->at[m->layers - 1].window;
}

static void map_sparse_step(mf_config *c, const mf_model *m, mf_layer_map *map) {
    int64_t step = mf_config_opt_int(c, MF_KEYS("decoder_sparse_step"), 1, 1 << 20, 1);
    for (int64_t i = 0; i <= m->layers; i++) {
        map->at[i].ffn = (i + 1) % step == 0 ? MF_FFN_MOE : MF_FFN_DENSE;
    }
    const mf_json_value *dense = mf_config_value(c, MF_KEYS("mlp_only_layers"));
    if (dense != NULL && mf_json_value_type(dense) != MF_JSON_ARRAY) {
        mf_config_fail(c, "mlp_only_layers", "\"mlp_only_layers\": expected an array");
        return;
    }
    for (size_t k = 0; dense != NULL && k < mf_json_size(dense) && c->status == MF_OK; k++) {
        int64_t i = 0;
        c->status = mf_json_i64(mf_json_at(dense, k), 0, INT64_C(1) << 40, &i, c->e);
        if (c->status == MF_OK && i <= m->layers) {
            map->at[i].ffn = MF_FFN_DENSE;
        }
    }
}

/* "dense" and "sparse" for each layer, as transformers writes them; an MTP block is as the last. */
static bool map_listed(mf_config *c, const mf_model *m, mf_layer_map *map) {
    const mf_json_value *list = mf_model_layer_list(c, "mlp_layer_types", m->layers);
    for (int64_t i = 0; i <= m->layers && list != NULL; i++) {
        int64_t entry = i < m->layers ? i : m->layers - 1;
        bool moe = mf_model_layer_either(c, list, entry, "sparse", "dense");
        map->at[i].ffn = moe ? MF_FFN_MOE : MF_FFN_DENSE;
    }
    return list != NULL;
}

static void map_first_dense(mf_config *c, const mf_model_family *f, const mf_model *m,
                            mf_layer_map *map) {
    int64_t first =
        mf_config_opt_int(c, MF_KEYS("first_k_dense_replace"), 0, INT64_C(1) << 40, f->first_dense);
    int64_t step = 1;
    const mf_json_value *list = mf_config_value(c, MF_KEYS("moe_layer_freq"));
    if (list != NULL && mf_json_value_type(list) == MF_JSON_ARRAY) {
        list = mf_model_layer_list(c, "moe_layer_freq", m->layers);
    } else {
        list = NULL;
        step = mf_config_opt_int(c, MF_KEYS("moe_layer_freq"), 1, 1 << 20, 1);
    }
    if (map_listed(c, m, map)) {
        return;
    }
    for (int64_t i = 0; i <= m->layers && c->status == MF_OK; i++) {
        bool moe = i >= first && i % step == 0;
        if (list != NULL) {
            moe = mf_model_layer_flag(c, list, i < m->layers ? i : m->layers - 1);
        }
        map->at[i].ffn = moe ? MF_FFN_MOE : MF_FFN_DENSE;
    }
}

static void map_experts(mf_config *c, const mf_model_family *f, const mf_model *m,
                        mf_layer_map *map) {
    switch (f->moe) {
    case MF_MOE_NONE:
        break;
    case MF_MOE_ALL:
        for (int64_t i = 0; i <= m->layers; i++) {
            map->at[i].ffn = MF_FFN_MOE;
        }
        break;
    case MF_MOE_SPARSE_STEP:
        map_sparse_step(c, m, map);
        break;
    case MF_MOE_FIRST_DENSE:
        map_first_dense(c, f, m, map);
        break;
    }
}

bool mf_layer_class_mixes_alike(const mf_layer_class *a, const mf_layer_class *b) {
    bool flags = a->chunked == b->chunked && a->no_rope == b->no_rope &&
                 a->no_qk_norm == b->no_qk_norm && a->no_sinks == b->no_sinks &&
                 a->indexer == b->indexer && a->k_is_v == b->k_is_v && a->head_dim == b->head_dim &&
                 a->compress == b->compress;
    return flags && a->mixer == b->mixer && a->window == b->window && a->heads == b->heads &&
           a->kv_heads == b->kv_heads && !(a->rope_theta < b->rope_theta) &&
           !(a->rope_theta > b->rope_theta) && !(a->partial_rotary < b->partial_rotary) &&
           !(a->partial_rotary > b->partial_rotary);
}

static bool same_class(const mf_layer_class *a, const mf_layer_class *b) {
    return a->ffn == b->ffn && a->hashed == b->hashed && mf_layer_class_mixes_alike(a, b);
}

static uint8_t add_class(mf_config *c, mf_model *m, const mf_layer_class *x) {
    int i = 0;
    while (i < m->classes && !same_class(&m->layer_classes[i], x)) {
        i++;
    }
    if (i == MF_MODEL_MAX_CLASSES) {
        c->status =
            mf_json_fail(c->object, c->e, "layers of more than %d kinds", MF_MODEL_MAX_CLASSES);
        return 0;
    }
    if (i == m->classes) {
        m->layer_classes[m->classes++] = *x;
    }
    return (uint8_t)i;
}

/* The fields in which a class may differ from the model. */
static void check_class(mf_config *c, const mf_model *m, const mf_layer_class *x) {
    int64_t heads = mf_model_heads(m, x), kv = mf_model_kv_heads(m, x);
    if (x->mixer == MF_MIXER_ATTENTION && m->attn == MF_ATTN_GQA && heads % kv != 0) {
        mf_config_fail(c, "num_attention_heads", "%lld heads do not divide into %lld groups",
                       (long long)heads, (long long)kv);
    }
    if (x->mixer == MF_MIXER_ATTENTION && heads * mf_model_head_dim(m, x) > MF_CONFIG_WIDTH_MAX) {
        mf_config_fail(c, "num_attention_heads", "%lld heads of width %lld: too wide",
                       (long long)heads, (long long)mf_model_head_dim(m, x));
    }
}

void mf_model_read_layers(mf_config *c, const mf_model_family *f, mf_model *m) {
    static const mf_layer_map none;
    mf_layer_map map = none;
    if (c->status != MF_OK) {
        return;
    }
    map_windows(c, f, m, &map);
    map_experts(c, f, m, &map);
    if (f->layers != NULL && c->status == MF_OK) {
        f->layers(c, m, &map);
    }
    bool any_dense = false, any_moe = false;
    int64_t count = m->layers + (m->mtp_layers > 0);
    for (int64_t i = 0; i < count && c->status == MF_OK; i++) {
        uint8_t id = add_class(c, m, &map.at[i]);
        check_class(c, m, &map.at[i]);
        any_dense = any_dense || map.at[i].ffn == MF_FFN_DENSE;
        any_moe = any_moe || map.at[i].ffn == MF_FFN_MOE;
        if (i < m->layers) {
            m->layer_class[i] = id;
        } else {
            m->mtp_class = id;
        }
    }
    const char *dense = f->dense_key != NULL ? f->dense_key : "intermediate_size";
    if (any_dense) {
        m->ffn = mf_config_int(c, MF_KEYS(dense), 1, MF_CONFIG_FFN_MAX);
    } else {
        mf_config_has(c, dense);
    }
    if (!any_moe) {
        m->experts = m->top_k = m->moe_ffn = m->shared_ffn = m->moe_latent = 0;
        m->shared_gate = m->correction_bias = m->router_bias = false;
    }
}
