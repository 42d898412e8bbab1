/* model_family.c - the table of model families, and which of them a config.json is of. */
#include "core/model/model_family.h"

#include <stdio.h>
#include <string.h>

static const mf_model_family *const families[] = {
#define X(name) &mf_family_##name,
    MF_FAMILY_MAP(X)
#undef X
};
#define FAMILY_COUNT (sizeof families / sizeof families[0])
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static bool among(const char *word, const char *const *list, size_t count) {
    for (size_t i = 0; i < count && list[i] != NULL; i++) {
        if (strcmp(word, list[i]) == 0) {
            return true;
        }
    }
    return false;
}

const mf_model_family *mf_model_family_named(const char *name) {
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        if (strcmp(name, families[i]->name) == 0) {
            return families[i];
        }
    }
    return NULL;
}

/* Where two families have one model_type, the architecture decides. */
static const mf_model_family *by_type(const char *word, const char *architecture) {
    const mf_model_family *found = mf_model_family_named(word);
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        const mf_model_family *f = families[i];
        if (!among(word, f->same, COUNT(f->same))) {
            continue;
        }
        bool better =
            architecture != NULL && among(architecture, f->architectures, COUNT(f->architectures));
        found = found == NULL || better ? f : found;
    }
    return found;
}

static const mf_model_family *by_architecture(const char *word) {
    const mf_model_family *found = NULL;
    for (size_t i = 0; i < FAMILY_COUNT && found == NULL; i++) {
        const mf_model_family *f = families[i];
        found = among(word, f->architectures, COUNT(f->architectures)) ? f : NULL;
    }
    return found;
}

static void fail_unknown(mf_config *c, const mf_json_value *v, const char *word) {
    char known[1024];
    size_t at = 0;
    for (size_t i = 0; i < FAMILY_COUNT && at < sizeof known; i++) {
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i > 0 ? ", " : "",
                               families[i]->name);
    }
    c->status = mf_json_fail(v, c->e, "unknown model family \"%.60s\"; known: %s", word, known);
}

/* architectures[0] and its value: of the text, or of the whole that it is a part of. */
static const char *architecture_of(mf_config *c, const mf_json_value **v) {
    const mf_json_value *list = mf_config_value(c, MF_KEYS("architectures"));
    list = list == NULL ? mf_json_find(c->root, "architectures") : list;
    const char *word = NULL;
    if (list != NULL && mf_json_value_type(list) == MF_JSON_ARRAY && mf_json_size(list) > 0) {
        *v = mf_json_at(list, 0);
        c->status = mf_json_string(*v, &word, c->e);
    }
    return word;
}

const mf_model_family *mf_model_family_find(mf_config *c) {
    const char *type = mf_config_opt_string(c, MF_KEYS("model_type"), NULL);
    const mf_json_value *v = mf_config_value(c, MF_KEYS("model_type")), *at = NULL;
    if (c->status == MF_OK && type == NULL && c->object != c->root) {
        c->status = mf_json_opt_string(c->root, "model_type", &type, c->e);
        v = mf_json_find(c->root, "model_type");
    }
    const char *architecture = c->status == MF_OK ? architecture_of(c, &at) : NULL;
    if (c->status != MF_OK) {
        return NULL;
    }
    const char *word = type != NULL ? type : architecture;
    if (word == NULL) {
        c->status = mf_json_fail(c->object, c->e, "\"model_type\" is missing");
        return NULL;
    }
    const mf_model_family *f = type != NULL ? by_type(type, architecture) : by_architecture(word);
    if (f == NULL) {
        fail_unknown(c, type != NULL ? v : at, word);
    }
    return f;
}

bool mf_model_in_bridge(const mf_model *m) {
    const mf_model_family *f = mf_model_family_named(m->family);
    return f != NULL && !f->no_bridge;
}

/* --- names at the hub ------------------------------------------------------------------------- */

mf_hub_names mf_model_hub_names(const mf_model *m) {
    static const mf_hub_names none;
    const mf_model_family *f = mf_model_family_named(m->family);
    mf_hub_names n = f != NULL ? f->hub : none;
#define COMMON(field, text) n.field = n.field != NULL ? n.field : (text)
    COMMON(embedding, "model.embed_tokens");
    COMMON(norm, "model.norm");
    COMMON(head, "lm_head");
    COMMON(input_norm, "input_layernorm");
    COMMON(ffn_norm, "post_attention_layernorm");
    COMMON(q, "self_attn.q_proj");
    COMMON(k, "self_attn.k_proj");
    COMMON(v, "self_attn.v_proj");
    COMMON(o, "self_attn.o_proj");
    COMMON(q_norm, "self_attn.q_norm");
    COMMON(k_norm, "self_attn.k_norm");
    COMMON(sinks, "self_attn.sinks");
    COMMON(dense, "mlp");
    COMMON(shared, "mlp.shared_experts");
    COMMON(shared_down, "down_proj");
    COMMON(router, "mlp.gate");
    COMMON(correction, "mlp.gate.e_score_correction_bias");
    if (n.expert[0] == NULL) {
        n.expert[0] = "mlp.experts.#.gate_proj";
        n.expert[1] = "mlp.experts.#.up_proj";
        n.expert[2] = "mlp.experts.#.down_proj";
    }
#undef COMMON
    return n;
}
