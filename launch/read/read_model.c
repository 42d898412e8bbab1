/* read_model.c - which model the flags describe. */
#include "launch/read/read_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LL(x) ((long long)(x))

/* What flags say of a model; -1 = nothing. */
typedef struct widths {
    int64_t layers, hidden, heads, groups, ffn, experts, top_k, moe_ffn, shared, kv_lora, q_lora;
    int64_t mtp;
} widths;

static mf_status read_widths(mf_read *r, widths *w, mf_err *e) {
    const struct {
        const char *name;
        int64_t *out;
    } row[] = {
        {"num-layers", &w->layers},
        {"hidden-size", &w->hidden},
        {"num-attention-heads", &w->heads},
        {"num-query-groups", &w->groups},
        {"ffn-hidden-size", &w->ffn},
        {"num-experts", &w->experts},
        {"moe-router-topk", &w->top_k},
        {"moe-ffn-hidden-size", &w->moe_ffn},
        {"moe-shared-expert-intermediate-size", &w->shared},
        {"kv-lora-rank", &w->kv_lora},
        {"q-lora-rank", &w->q_lora},
        {"mtp-num-layers", &w->mtp},
    };
    static const char *const rest[] = {
        "kv-channels", "qk-head-dim",    "qk-pos-emb-head-dim",   "v-head-dim",
        "vocab-size",  "moe-layer-freq", "group-query-attention", "multi-latent-attention"};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        *row[i].out = -1;
        mf_status s = mf_settings_i64(&r->settings, row[i].name, 0, 1 << 28, row[i].out, e);
        if (s != MF_OK) {
            return s;
        }
    }
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++) {
        (void)mf_settings_has(&r->settings, rest[i]);
    }
    if (!mf_settings_is_on(&r->settings, "multi-latent-attention")) {
        w->kv_lora = w->q_lora = -1; /* a dump names their defaults for every model */
    } else {
        w->groups = -1;
    }
    if (!mf_settings_is_on(&r->settings, "group-query-attention")) {
        w->groups = -1;
    }
    return MF_OK;
}

/* Widths that set a model apart from others; layers and MTP depths can be set. */
static bool matches(const widths *w, const mf_model *m) {
    const int64_t ffn = m->ffn > 0 ? m->ffn : m->moe_ffn;
    const struct {
        int64_t said, is;
    } row[] = {
        {w->hidden, m->hidden},
        {w->heads, m->heads},
        {w->groups, m->kv_heads},
        {w->experts, m->experts},
        {w->experts > 0 ? w->top_k : -1, m->top_k},
        {w->experts > 0 ? w->moe_ffn : -1, m->moe_ffn},
        {w->experts > 0 ? w->shared : -1, m->shared_ffn},
        {w->kv_lora, m->kv_lora_rank},
        {w->experts > 0 ? -1 : w->ffn, ffn},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        if (row[i].said >= 0 && row[i].said != row[i].is) {
            return false;
        }
    }
    return w->hidden > 0 && (w->experts > 0) == (m->experts > 0);
}

static void set(mf_read_model *out, const char *key, int64_t value) {
    if (out->sets < MF_READ_MAX_SET) {
        snprintf(out->set[out->sets++], sizeof out->set[0], "%s=%lld", key, LL(value));
    }
}

/* Loads the model with as many layers and MTP depths as the flags say. */
static mf_status adopt(const widths *w, mf_read_model *out, mf_err *e) {
    const char *sets[MF_READ_MAX_SET];
    const int64_t mtp = w->mtp > 0 ? w->mtp : 0;
    mf_status s = mf_model_load(out->name, &out->model, e);
    if (s != MF_OK) {
        return s;
    }
    if (w->layers > 0 && w->layers != out->model.layers) {
        set(out, "num_hidden_layers", w->layers);
    }
    if (w->hidden > 0 && mtp != out->model.mtp_layers) {
        set(out, "num_nextn_predict_layers", mtp);
    }
    for (int i = 0; i < out->sets; i++) {
        sets[i] = out->set[i];
    }
    return out->sets > 0 ? mf_model_load_with(out->name, sets, (size_t)out->sets, &out->model, e)
                         : MF_OK;
}

/* A name without what parts words: "Qwen/Qwen3-235B-A22B", "qwen3_235b_a22b_pretrain". */
static void squeeze(const char *text, char *out, size_t size) {
    size_t used = 0;
    for (const char *at = text; *at != '\0' && used + 1 < size; at++) {
        if (isalnum((unsigned char)*at)) {
            out[used++] = (char)tolower((unsigned char)*at);
        }
    }
    out[used] = '\0';
}

/* Whether what stands behind a model's name says another size: "nemotron3nano" in
 * "nemotron3nano4bsft" is not the one of 30 billion parameters. */
static bool is_other_size(const char *behind, const char *name) {
    char *end = NULL;
    const double said = strtod(behind, &end);
    mf_model m;
    mf_model_counts p;
    if (end == behind || *end != 'b' || mf_model_load(name, &m, NULL) != MF_OK) {
        return false;
    }
    mf_model_count(&m, &p);
    const double is = (double)p.total / 1e9;
    return said < 0.7 * is || said > 1.4 * is;
}

/* The shipped model whose name the text holds; the longest of several. */
static const char *named_in(const char *text) {
    size_t count = 0, best = 0;
    const char *const *names = mf_model_shipped(&count);
    const char *found = NULL;
    char all[512], one[128];
    squeeze(text, all, sizeof all);
    static const struct {
        const char *word, *model;
    } others[] = {
        {"llama31405b", "llama3-405b"}, {"glm45355b", "glm-4.5"}, {"olmoe7b", "olmoe-1b-7b"}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (strstr(all, others[i].word) != NULL) {
            return others[i].model;
        }
    }
    for (size_t i = 0; i < count; i++) {
        squeeze(names[i], one, sizeof one);
        const char *at = strstr(all, one);
        if (at != NULL && strlen(one) > best && !is_other_size(at + strlen(one), names[i])) {
            best = strlen(one);
            found = names[i];
        }
    }
    return found;
}

mf_status mf_read_find_model(mf_read *r, const char *name, mf_read_model *out, mf_err *e) {
    widths w;
    size_t count = 0;
    const char *const *names = mf_model_shipped(&count);
    memset(out, 0, sizeof *out);
    mf_status s = read_widths(r, &w, e);
    if (s != MF_OK) {
        return s;
    }
    const char *ours = mf_settings_text(&r->moefold, "model", NULL);
    name = name != NULL ? name : ours;
    if (name == NULL && mf_settings_has(&r->settings, "model.crossattn_emb_size")) {
        return mf_err_set(e, MF_INPUT,
                          "its layers attend to a second sequence (crossattn_emb_size): no model "
                          "that moefold knows does");
    }
    for (size_t i = 0; name == NULL && w.hidden > 0 && i < count; i++) {
        mf_model m;
        if (mf_model_load(names[i], &m, NULL) == MF_OK && matches(&w, &m)) {
            name = names[i];
        }
    }
    const char *recipe = mf_settings_text(&r->settings, "recipe", "");
    const char *hub = mf_settings_text(&r->settings, "hub-model", "");
    if (name == NULL && w.hidden <= 0) {
        name = named_in(recipe);
        name = name != NULL ? name : named_in(hub);
    }
    if (name == NULL) {
        return w.hidden > 0
                   ? mf_err_set(e, MF_INPUT,
                                "no shipped model has hidden size %lld and %lld experts with these "
                                "widths: give its config.json with --model",
                                LL(w.hidden), LL(w.experts > 0 ? w.experts : 0))
                   : mf_err_set(e, MF_INPUT, "nothing says which model it is: give --model");
    }
    snprintf(out->name, sizeof out->name, "%s", name);
    return adopt(&w, out, e);
}
