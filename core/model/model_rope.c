/* model_rope.c - rotary positions of a config.json: in old places, beside the other keys, or inside
 * "rope_parameters". */
#include "core/model/model_family.h"

#include <math.h>
#include <string.h>

/* Temperature that YaRN gives attention: 0.1 m ln(factor) + 1. */
static double yarn_temperature(double factor, double m) {
    return factor > 1.0 ? 0.1 * m * log(factor) + 1.0 : 1.0;
}

static void read_yarn(mf_config *c, const mf_json_value *v, bool mla, mf_rope_scaling *s) {
    double mscale = 0, all_dim = 0, given = 0;
    s->kind = MF_ROPE_YARN;
    s->beta_fast = 32;
    s->beta_slow = 1;
    s->truncate = true;
    mf_status st = mf_json_opt_f64(v, "beta_fast", 0, 1e9, &s->beta_fast, c->e);
    st = st == MF_OK ? mf_json_opt_f64(v, "beta_slow", 0, 1e9, &s->beta_slow, c->e) : st;
    st = st == MF_OK ? mf_json_opt_bool(v, "truncate", &s->truncate, c->e) : st;
    st = st == MF_OK ? mf_json_opt_f64(v, "mscale", 0, 1e3, &mscale, c->e) : st;
    st = st == MF_OK ? mf_json_opt_f64(v, "mscale_all_dim", 0, 1e3, &all_dim, c->e) : st;
    st = st == MF_OK ? mf_json_opt_f64(v, "attention_factor", 0, 1e3, &given, c->e) : st;
    c->status = st;
    s->table_scale = yarn_temperature(s->factor, 1.0);
    if (given > 0) {
        s->table_scale = given;
    } else if (mscale > 0 && all_dim > 0) {
        s->table_scale = yarn_temperature(s->factor, mscale) / yarn_temperature(s->factor, all_dim);
    }
    if (mla && all_dim > 0) { /* DeepSeek: on both sides of the product */
        double t = yarn_temperature(s->factor, all_dim);
        s->softmax_scale = t * t;
    }
}

static void read_llama3(mf_config *c, const mf_json_value *v, mf_rope_scaling *s) {
    s->kind = MF_ROPE_LLAMA3;
    s->low_freq_factor = 1;
    s->high_freq_factor = 4;
    mf_status st = mf_json_opt_f64(v, "low_freq_factor", 1e-6, 1e6, &s->low_freq_factor, c->e);
    st = st == MF_OK ? mf_json_opt_f64(v, "high_freq_factor", 1e-6, 1e6, &s->high_freq_factor, c->e)
                     : st;
    c->status = st;
    if (st == MF_OK && s->high_freq_factor < s->low_freq_factor) { /* Llama-4-Scout: alike */
        c->status = mf_json_fail(v, c->e, "\"high_freq_factor\" is below \"low_freq_factor\"");
    }
}

/* Members of either object: of all kinds of scaling, of tables for a type of layer, and what says
 * nothing of text (sections for images). */
static const char *const rope_keys[] = {"alpha",
                                        "attention_factor",
                                        "beta_fast",
                                        "beta_slow",
                                        "compress",
                                        "factor",
                                        "full_attention",
                                        "high_freq_factor",
                                        "long_factor",
                                        "low_freq_factor",
                                        "main",
                                        "mrope_interleaved",
                                        "mrope_section",
                                        "mscale",
                                        "mscale_all_dim",
                                        "original_max_position_embeddings",
                                        "partial_rotary_factor",
                                        "rope_theta",
                                        "rope_type",
                                        "short_factor",
                                        "sliding_attention",
                                        "truncate",
                                        "type",
                                        NULL};

/* Kinds that are known and not executed. */
static bool is_other_kind(const char *kind) {
    static const char *const kinds[] = {"dynamic", "longrope", "mrope", "proportional", "su"};
    bool known = false;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        known = known || strcmp(kind, kinds[i]) == 0;
    }
    return known;
}

/* "rope_scaling", or the same keys inside "rope_parameters". */
static void read_rope_scaling(mf_config *c, const mf_model_family *f, mf_model *m) {
    mf_rope_scaling s = {.factor = 1, .table_scale = 1, .softmax_scale = 1};
    const mf_json_value *v = mf_config_object(c, "rope_scaling", rope_keys);
    const mf_json_value *nested = mf_config_object(c, "rope_parameters", rope_keys);
    const char *kind = "default";
    m->rope_scaling = s;
    v = v != NULL ? v : nested;
    if (v == NULL || c->status != MF_OK) {
        return;
    }
    mf_status st = mf_json_opt_string(v, "type", &kind, c->e);
    st = st == MF_OK ? mf_json_opt_string(v, "rope_type", &kind, c->e) : st;
    st = st == MF_OK ? mf_json_opt_f64(v, "factor", 1, 1e6, &s.factor, c->e) : st;
    s.original = (double)m->max_position;
    st = st == MF_OK
             ? mf_json_opt_f64(v, "original_max_position_embeddings", 1, 1e12, &s.original, c->e)
             : st;
    c->status = st;
    if (st != MF_OK || strcmp(kind, "default") == 0) {
        return;
    }
    if (strcmp(kind, "yarn") == 0) {
        read_yarn(c, v, f->attn == MF_ATTN_MLA, &s);
    } else if (strcmp(kind, "llama3") == 0) {
        read_llama3(c, v, &s);
    } else {
        s.kind = strcmp(kind, "linear") == 0 ? MF_ROPE_LINEAR : MF_ROPE_OTHER;
        if (s.kind == MF_ROPE_OTHER && !is_other_kind(kind)) {
            mf_config_leave_out(c, "rotary positions of the kind \"%.30s\"", kind);
        }
    }
    m->rope_scaling = s;
}

/* rope_theta and partial_rotary_factor: beside the other keys, or inside "rope_parameters". */
void mf_model_read_rope(mf_config *c, const mf_model_family *f, mf_model *m) {
    double theta = f->theta;
    double partial = f->partial_rotary > 0 ? f->partial_rotary : 1.0;
    const mf_json_value *nested = mf_config_value(c, MF_KEYS("rope_parameters"));
    if (nested != NULL && c->status == MF_OK) {
        c->status = mf_json_opt_f64(nested, "rope_theta", 1, 1e18, &theta, c->e);
        if (c->status == MF_OK) {
            c->status = mf_json_opt_f64(nested, "partial_rotary_factor", 0, 1, &partial, c->e);
        }
    }
    const mf_json_value *given = mf_config_value(c, MF_KEYS("rope_theta"));
    bool listed = f->rope_listed && given != NULL && mf_json_value_type(given) == MF_JSON_ARRAY;
    m->rope_theta = listed ? theta : mf_config_opt_f64(c, MF_KEYS("rope_theta"), 1, 1e18, theta);
    m->partial_rotary = mf_config_opt_f64(c, MF_KEYS("partial_rotary_factor"), 0, 1, partial);
    read_rope_scaling(c, f, m);
}

void mf_model_read_typed_rope(mf_config *c, const char *type, mf_layer_class *x) {
    const mf_json_value *v = mf_config_value(c, MF_KEYS("rope_parameters"));
    v = v != NULL && mf_json_value_type(v) == MF_JSON_OBJECT ? mf_json_find(v, type) : NULL;
    if (v != NULL && c->status == MF_OK) {
        c->status = mf_json_opt_f64(v, "rope_theta", 1, 1e18, &x->rope_theta, c->e);
    }
    if (v != NULL && c->status == MF_OK) {
        c->status = mf_json_opt_f64(v, "partial_rotary_factor", 0, 1, &x->partial_rotary, c->e);
    }
}
