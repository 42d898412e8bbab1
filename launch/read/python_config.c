/* python_config.c - the configuration that a recipe fills, handed to import by key. */
#include "launch/read/python_reader.h"

#include <stdlib.h>
#include <string.h>

static const char *const roots[] = {"model",        "train",      "ddp",
                                    "optimizer",    "dataset",    "scheduler",
                                    "comm_overlap", "checkpoint", "mixed_precision"};

bool mf_python_is_part(const char *path) {
    const size_t length = strcspn(path, ".");
    for (size_t i = 0; i < sizeof roots / sizeof roots[0]; i++) {
        if (strlen(roots[i]) == length && strncmp(path, roots[i], length) == 0) {
            return true;
        }
    }
    return false;
}

/* A list of lists of layers, a stage each, in letters: "Et|tt|mL". False: it is none. */
static bool say_stages(mf_python_reader *p, const char *value, char *out, size_t size) {
    static const struct {
        const char *word;
        char letter;
    } row[] = {{"embedding", 'E'}, {"decoder", 't'}, {"mtp", 'm'}, {"loss", 'L'}};
    const char *stage[MF_PYTHON_MOST_ITEMS];
    size_t used = 0;
    const int stages = mf_python_is_list(value) ? mf_python_items(p, value + 1, stage) : 0;
    for (int i = 0; i < stages; i++) {
        const char *layer[MF_PYTHON_MOST_ITEMS];
        const int layers =
            mf_python_is_list(stage[i]) ? mf_python_items(p, stage[i] + 1, layer) : -1;
        if (layers < 0 || used + (size_t)layers + 2 > size) {
            return false;
        }
        for (int k = 0; k < layers; k++) {
            char letter = '\0';
            for (size_t n = 0; n < sizeof row / sizeof row[0]; n++) {
                const size_t length = strlen(row[n].word);
                letter = mf_python_is_text(layer[k]) &&
                                 strncmp(layer[k] + 1, row[n].word, length) == 0 &&
                                 strlen(layer[k]) == length + 2
                             ? row[n].letter
                             : letter;
            }
            if (letter == '\0') {
                return false;
            }
            out[used++] = letter;
        }
        out[used++] = i + 1 < stages ? '|' : '\0';
    }
    return stages > 0;
}

/* What an object of communication overlaps leaves out is off; those of DP are asked of `ddp`. */
static void forget_overlaps(mf_python_reader *p) {
    static const char key[] = "comm_overlap.";
    const mf_word *w;
    for (size_t i = 0; (w = mf_word_at(i)) != NULL; i++) {
        if (w->key != NULL && strncmp(w->key, key, sizeof key - 1) == 0 && !w->inverse &&
            strstr(w->key, "overlap_grad") == NULL && strstr(w->key, "overlap_param") == NULL) {
            mf_read_key(p->r, w->key, strlen(w->key), "False");
        }
    }
}

/* The arguments of an object's making as fields; those without a name are passed over. */
void mf_python_set_object(mf_python_reader *p, const char *path, const char *value) {
    const char *item[MF_PYTHON_MOST_ITEMS];
    const char *open = strchr(value, '(');
    const int n = open != NULL ? mf_python_items(p, open + 1, item) : 0;
    p->objects += path[0] != '\0';
    for (int i = 0; i < n; i++) {
        const size_t equals = mf_python_span(item[i], "=");
        const char *name = mf_python_trimmed(p, item[i], equals);
        if (item[i][equals] == '=' && item[i][equals + 1] != '=' && equals > 0 &&
            !mf_python_is(name, "load_weights")) {
            const char *own = path[0] != '\0' ? mf_python_joined(p, path, ".", name) : name;
            mf_python_set(p, own,
                          mf_python_trimmed(p, item[i] + equals + 1, strlen(item[i] + equals + 1)));
        }
    }
    p->objects -= path[0] != '\0';
}

/* "AutoBridge.from_hf_pretrained("Qwen/Qwen3-8B").to_megatron_provider(seq_length=4096)", or a
 * provider with all widths. */
static void set_model(mf_python_reader *p, const char *value) {
    static const char from[] = ".from_hf_", made[] = ".to_megatron_provider(";
    const char *at = strstr(value, from), *own = strstr(value, made);
    at = at != NULL ? strchr(at, '(') : NULL;
    if (at != NULL && mf_python_is_text(at + 1)) {
        const size_t length = mf_python_span(at + 1, ",");
        mf_settings_put(&p->r->settings, "hub-model", "%.*s", (int)(length > 2 ? length - 2 : 0),
                        at + 2);
    }
    if (at == NULL || own != NULL) {
        mf_python_set_object(p, "model", own != NULL ? own : value);
    }
}

/* The precision by its name and by what the object says otherwise. */
static void say_precision(mf_python_reader *p) {
    const char *name = mf_settings_text(&p->fields, "mixed_precision", "");
    const char *fp4 = mf_settings_text(&p->fields, "mixed_precision.fp4", "None");
    const char *fp8 = mf_settings_text(&p->fields, "mixed_precision.fp8", "None");
    const char *recipe = mf_settings_text(&p->fields, "mixed_precision.fp8_recipe", "None");
    const char *gather = mf_settings_text(&p->fields, "mixed_precision.fp8_param_gather", "None");
    char out[512];
    const bool eight = !mf_python_is(fp8, "None") || strstr(name, "fp8") != NULL;
    snprintf(out, sizeof out, "%.*s%s%s%s", (int)strcspn(name, "("), name,
             mf_python_is(fp4, "None") ? "" : " nvfp4", mf_python_is(fp8, "None") ? "" : " fp8 ",
             eight && !mf_python_is(recipe, "None") ? recipe : "");
    mf_read_key(p->r, "mixed_precision", sizeof "mixed_precision" - 1, out);
    if (eight && !mf_python_is(gather, "None")) {
        mf_read_flag(p->r, "fp8-param-gather", sizeof "fp8-param-gather" - 1, gather);
    } else if (!eight) {
        mf_settings_drop(&p->r->settings, "fp8-param-gather");
    }
}

static void set_precision(mf_python_reader *p, const char *path, const char *value) {
    static const char *const parts[] = {"fp4", "fp8", "fp8_recipe", "fp8_param_gather"};
    const size_t length = sizeof "mixed_precision" - 1;
    if (path[length] == '\0') {
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            mf_settings_put_text(&p->fields, mf_python_joined(p, "mixed_precision.", parts[i], ""),
                                 "None");
        }
        mf_python_set_object(p, path, mf_python_is_text(value) ? "()" : value);
    }
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (path[length] == '\0' || mf_python_is(path + length + 1, parts[i])) {
            say_precision(p);
            return;
        }
    }
}

/* Whether a field goes to import: neither what nobody knows and changes no step (the
 * rate's schedule, checkpoints, data), nor the usual arguments of an optimizer. */
static bool is_of_import(const mf_python_reader *p, const char *path, const char *value) {
    static const char *const ignored[] = {"scheduler.", "checkpoint.", "dataset."};
    if (mf_word_of_key(path, strlen(path)) != NULL) {
        return true;
    }
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++) {
        if (strncmp(path, ignored[i], strlen(ignored[i])) == 0) {
            return false;
        }
    }
    const bool usual = strncmp(path, "optimizer.", 10) == 0 || strncmp(path, "train.", 6) == 0;
    return !mf_python_is(value, "None") && !(usual && p->objects > 0);
}

void mf_python_set(mf_python_reader *p, const char *path, const char *value) {
    char stages[4096];
    const size_t length = strlen(path);
    mf_settings_put_text(&p->fields, path, value);
    if (!mf_python_is_part(path)) {
        return;
    }
    if (mf_python_is(path, "model")) {
        set_model(p, value);
    } else if (strncmp(path, "mixed_precision", 15) == 0) {
        set_precision(p, path, value);
    } else if (strchr(path, '.') == NULL) {
        if (mf_python_is(path, "comm_overlap")) {
            forget_overlaps(p);
        }
        mf_python_set_object(p, path, value);
    } else if (mf_python_is(path, "model.pipeline_model_parallel_layout") &&
               !mf_python_is_text(value) && !mf_python_is(value, "None")) {
        if (say_stages(p, value, stages, sizeof stages)) {
            mf_read_key(p->r, path, length, stages);
        } else { /* made by what is not there: even stages stand for it */
            mf_settings_put(&p->r->unknown, "pipeline_model_parallel_layout", "%s", value);
        }
    } else if (is_of_import(p, path, value)) {
        mf_read_key(p->r, path, length, value);
    }
}

/* A field of the configuration, as it was set last; of its parts, the path. */
const char *mf_python_field(mf_python_reader *p, const char *path, const char *absent) {
    const char *value = mf_python_keep_text(p, mf_settings_text(&p->fields, path, NULL));
    if (value != NULL && strchr(path, '.') != NULL) {
        return value;
    }
    return mf_python_is_part(path) && strchr(path, '.') == NULL ? mf_python_joined(p, "@", path, "")
                                                                : absent;
}
