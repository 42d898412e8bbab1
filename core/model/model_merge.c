/* model_merge.c - writes the config.json with overrides merged in, for programs that load the
 * trained weights. */
#include "core/model/model_reader.h"

#include <math.h>
#include <string.h>

static bool hidden(const mf_config *c, const char *key) {
    for (size_t i = 0; i < c->hidden_count; i++) {
        if (strcmp(c->hidden[i], key) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < c->override_count; i++) {
        if (strcmp(c->overrides[i].key, key) == 0) {
            return true;
        }
    }
    return false;
}

/* Entries of the file's lists, one for each layer, and how many an override leaves. */
typedef struct layer_override {
    size_t from, to;
} layer_override;

static layer_override layer_override_of(const mf_config *c) {
    static const char key[] = "num_hidden_layers";
    int64_t from = 0, to = 0;
    mf_json_opt_i64(c->object, key, 0, 1 << 20, &from, NULL);
    const mf_json_value *blocks = mf_json_find(c->object, "layers_block_type");
    if (from == 0 && blocks != NULL && mf_json_value_type(blocks) == MF_JSON_ARRAY) {
        from = (int64_t)mf_json_size(blocks); /* the file counts layers by it alone */
    }
    for (size_t i = 0; i < c->override_count; i++) { /* the last one wins */
        mf_json_opt_i64(mf_json_root(c->overrides[i].doc), key, 0, 1 << 20, &to, NULL);
    }
    return to > 0 && to < from ? (layer_override){(size_t)from, (size_t)to}
                               : (layer_override){0, 0};
}

static void write_value(mf_json_writer *w, const char *key, const mf_json_value *v,
                        layer_override layers);

static void write_number(mf_json_writer *w, const char *key, const mf_json_value *v) {
    double x = 0.0;
    mf_json_f64(v, -HUGE_VAL, HUGE_VAL, &x, NULL);
    if (floor(x) == x && fabs(x) < 1e15) {
        mf_json_write_i64(w, key, (int64_t)x);
    } else {
        mf_json_write_f64(w, key, x);
    }
}

static void write_members(mf_json_writer *w, const char *key, const mf_json_value *v,
                          layer_override layers) {
    size_t n = mf_json_size(v);
    bool array = mf_json_value_type(v) == MF_JSON_ARRAY;
    if (array) {
        mf_json_write_array(w, key, false);
        n = layers.from > 0 && n == layers.from ? layers.to : n;
    } else {
        mf_json_write_object(w, key, false);
    }
    for (size_t i = 0; i < n; i++) {
        write_value(w, array ? NULL : mf_json_key_at(v, i), mf_json_at(v, i),
                    (layer_override){0, 0});
    }
    mf_json_write_end(w);
}

/* A text with a letter for each layer is truncated as lists are. */
static void write_text(mf_json_writer *w, const char *key, const char *text,
                       layer_override layers) {
    char shorter[MF_MODEL_MAX_LAYERS + 1];
    bool letters = key != NULL && strcmp(key, "hybrid_override_pattern") == 0;
    if (letters && layers.from > 0 && strlen(text) == layers.from && layers.to < sizeof shorter) {
        memcpy(shorter, text, layers.to);
        shorter[layers.to] = '\0';
        text = shorter;
    }
    mf_json_write_string(w, key, text);
}

static void write_value(mf_json_writer *w, const char *key, const mf_json_value *v,
                        layer_override layers) {
    const char *text = NULL;
    bool truth = false;
    switch (mf_json_value_type(v)) {
    case MF_JSON_NULL:
        mf_json_write_null(w, key);
        break;
    case MF_JSON_BOOL:
        mf_json_bool(v, &truth, NULL);
        mf_json_write_bool(w, key, truth);
        break;
    case MF_JSON_NUMBER:
        write_number(w, key, v);
        break;
    case MF_JSON_STRING:
        mf_json_string(v, &text, NULL);
        write_text(w, key, text, layers);
        break;
    case MF_JSON_ARRAY:
    case MF_JSON_OBJECT:
        write_members(w, key, v, layers);
        break;
    }
}

void mf_config_write_value(mf_json_writer *w, const char *key, const mf_json_value *v) {
    write_value(w, key, v, (layer_override){0, 0});
}

/* The object that is read: its own members, then the overrides; of one key the last. */
static void write_read(mf_json_writer *w, const mf_config *c, const char *key) {
    layer_override layers = layer_override_of(c);
    mf_json_write_object(w, key, false);
    for (size_t i = 0; i < mf_json_size(c->object); i++) {
        const char *name = mf_json_key_at(c->object, i);
        if (!hidden(c, name)) {
            write_value(w, name, mf_json_at(c->object, i), layers);
        }
    }
    for (size_t i = 0; i < c->override_count; i++) {
        const mf_config_override *o = &c->overrides[i];
        bool last = true;
        for (size_t k = i + 1; k < c->override_count; k++) {
            last = last && strcmp(c->overrides[k].key, o->key) != 0;
        }
        if (last) {
            write_value(w, o->key, mf_json_at(mf_json_root(o->doc), 0), (layer_override){0, 0});
        }
    }
    mf_json_write_end(w);
}

void mf_config_merge(const mf_config *c, mf_json_writer *w) {
    if (c->object == c->root) {
        write_read(w, c, NULL);
        return;
    }
    mf_json_write_object(w, NULL, false);
    for (size_t i = 0; i < mf_json_size(c->root); i++) {
        const char *name = mf_json_key_at(c->root, i);
        if (mf_json_at(c->root, i) == c->object) {
            write_read(w, c, name);
        } else {
            write_value(w, name, mf_json_at(c->root, i), (layer_override){0, 0});
        }
    }
    mf_json_write_end(w);
}
