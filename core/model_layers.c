/* model_layers.c - which layer of a config.json is of which class. */
#include "core/model_family.h"

#include <string.h>

typedef struct layer_map {
    int64_t window[MF_MODEL_MAX_LAYERS + 1]; /* [layers + 1]; the last stands for an MTP block */
    bool moe[MF_MODEL_MAX_LAYERS + 1];
} layer_map;

/* The list under `key`, checked to have one entry per layer (or more, when --set has shortened the
 * model); NULL when absent or after a failure. */
static const mf_json_value *layer_list(mf_config *c, const char *key, int64_t layers) {
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

static void map_windows(mf_config *c, const mf_model_family *f, const mf_model *m, layer_map *map) {
    int64_t window = 0, from = 0;
    if (f->window != MF_WINDOW_NONE) {
        /* null switches the window off where no key would mean the family's own */
        int64_t absent = mf_config_has(c, "sliding_window") ? 0 : f->window_default;
        window = mf_config_opt_int(c, MF_KEYS("sliding_window"), 0, INT64_C(1) << 40, absent);
    }
    if (f->window == MF_WINDOW_SWITCHED) {
        from = mf_config_opt_int(c, MF_KEYS("max_window_layers"), 0, INT64_C(1) << 40, 28);
        window = mf_config_opt_bool(c, MF_KEYS("use_sliding_window"), false) ? window : 0;
    }
    const mf_json_value *types = layer_list(c, "layer_types", m->layers);
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
        map->window[i] = sliding ? window : 0;
    }
    map->window[m->layers] = map->window[m->layers - 1];
}

static void map_sparse_step(mf_config *c, const mf_model *m, layer_map *map) {
    int64_t step = mf_config_opt_int(c, MF_KEYS("decoder_sparse_step"), 1, 1 << 20, 1);
    for (int64_t i = 0; i <= m->layers; i++) {
        map->moe[i] = (i + 1) % step == 0;
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
            map->moe[i] = false;
        }
    }
}

static void map_first_dense(mf_config *c, const mf_model_family *f, const mf_model *m,
                            layer_map *map) {
    int64_t first = mf_config_opt_int(c, MF_KEYS("first_k_dense_replace"), 0, INT64_C(1) << 40,
                                      strcmp(f->name, "glm4_moe") == 0 ? 1 : 0);
    int64_t step = 1;
    const mf_json_value *list = mf_config_value(c, MF_KEYS("moe_layer_freq"));
    if (list != NULL && mf_json_value_type(list) == MF_JSON_ARRAY) {
        list = layer_list(c, "moe_layer_freq", m->layers);
    } else {
        list = NULL;
        step = mf_config_opt_int(c, MF_KEYS("moe_layer_freq"), 1, 1 << 20, 1);
    }
    for (int64_t i = 0; i <= m->layers && c->status == MF_OK; i++) {
        int64_t one = i >= first && i % step == 0;
        if (list != NULL) {
            int64_t entry = i < m->layers ? i : m->layers - 1;
            c->status = mf_json_i64(mf_json_at(list, (size_t)entry), 0, 1, &one, c->e);
        }
        map->moe[i] = one != 0;
    }
}

static void map_experts(mf_config *c, const mf_model_family *f, const mf_model *m, layer_map *map) {
    switch (f->moe) {
    case MF_MOE_NONE:
        break;
    case MF_MOE_ALL:
        for (int64_t i = 0; i <= m->layers; i++) {
            map->moe[i] = true;
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

static uint8_t add_class(mf_model *m, bool moe, int64_t window) {
    mf_ffn_kind ffn = moe ? MF_FFN_MOE : MF_FFN_DENSE;
    int i = 0;
    while (i < m->classes &&
           (m->layer_classes[i].ffn != ffn || m->layer_classes[i].window != window)) {
        i++;
    }
    if (i == m->classes) { /* two kinds of FFN and two of windows: never more than four */
        m->layer_classes[m->classes++] = (mf_layer_class){ffn, window};
    }
    return (uint8_t)i;
}

void mf_model_read_layers(mf_config *c, const mf_model_family *f, mf_model *m) {
    layer_map map = {0};
    if (c->status != MF_OK) {
        return;
    }
    map_windows(c, f, m, &map);
    map_experts(c, f, m, &map);
    bool any_dense = false, any_moe = false;
    int64_t count = m->layers + (m->mtp_layers > 0);
    for (int64_t i = 0; i < count && c->status == MF_OK; i++) {
        uint8_t id = add_class(m, map.moe[i], map.window[i]);
        any_dense = any_dense || !map.moe[i];
        any_moe = any_moe || map.moe[i];
        if (i < m->layers) {
            m->layer_class[i] = id;
        } else {
            m->mtp_class = id;
        }
    }
    if (any_dense) {
        m->ffn = mf_config_int(c, MF_KEYS("intermediate_size"), 1, MF_CONFIG_FFN_MAX);
    } else {
        mf_config_has(c, "intermediate_size");
    }
    if (!any_moe) {
        m->experts = m->top_k = m->moe_ffn = m->shared_ffn = 0;
        m->shared_gate = m->correction_bias = m->router_bias = false;
    }
}
