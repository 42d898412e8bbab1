/* software.c - named software profiles: profiles/software/NAME.json, every number beside its
 * source.
 */
#include "core/base/json.h"
#include "core/base/paths.h"
#include "core/base/text.h"
#include "costmodel/cost.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Shipped profiles; the megatron ones from old to new. */
static const char *const shipped[] = {"ideal",          "moefold",        "megatron-24.09",
                                      "megatron-25.05", "megatron-25.09", "megatron-25.11",
                                      "megatron-26.02", "megatron-26.04", "megatron-26.06",
                                      "megatron-eager", "pytorch-fsdp"};
enum { SHIPPED = sizeof shipped / sizeof shipped[0] };
static const char release_prefix[] = "megatron-";

const char *const *mf_software_shipped(size_t *count) {
    *count = SHIPPED;
    return shipped;
}

const char *mf_software_newest_megatron(void) {
    const char *newest = NULL;
    const size_t length = sizeof release_prefix - 1;
    for (size_t i = 0; i < SHIPPED; i++) {
        const bool release = strncmp(shipped[i], release_prefix, length) == 0 &&
                             strspn(shipped[i] + length, "0123456789") > 0;
        newest = release ? shipped[i] : newest;
    }
    return newest;
}

static bool is_path(const char *name) {
    return strchr(name, '/') != NULL || mf_text_ends_with(name, ".json");
}

/* --- reading ---------------------------------------------------------------------------------- */

/* {"value": v, "source": "..."}; both needed. */
static mf_status read_figure(const mf_json_value *object, const char *key, double lo, double hi,
                             double *out, mf_err *e) {
    static const char *const known[] = {"value", "source"};
    const mf_json_value *v = mf_json_find(object, key);
    const char *source = "";
    if (v == NULL) {
        return mf_json_fail(object, e, "\"%s\" is missing", key);
    }
    mf_status st = mf_json_want(v, MF_JSON_OBJECT, e);
    st = st == MF_OK ? mf_json_check_keys(v, known, 2, e) : st;
    st = st == MF_OK ? mf_json_get_f64(v, "value", lo, hi, out, e) : st;
    st = st == MF_OK ? mf_json_get_string(v, "source", &source, e) : st;
    if (st == MF_OK && source[0] == '\0') {
        st = mf_json_fail(v, e, "\"source\": expected where the value comes from, got \"\"");
    }
    return st;
}

/* An object with one figure per word. */
static mf_status read_row(const mf_json_value *root, const char *key, const char *const *words,
                          size_t count, double lo, double hi, double *out, mf_err *e) {
    const mf_json_value *row = mf_json_find(root, key);
    if (row == NULL) {
        return mf_json_fail(root, e, "\"%s\" is missing", key);
    }
    mf_status st = mf_json_want(row, MF_JSON_OBJECT, e);
    st = st == MF_OK ? mf_json_check_keys(row, words, count, e) : st;
    for (size_t i = 0; st == MF_OK && i < count; i++) {
        st = read_figure(row, words[i], lo, hi, &out[i], e);
    }
    return st;
}

static mf_status read_text(const mf_json_value *root, const char *key, char *out, size_t size,
                           mf_err *e) {
    const char *text;
    mf_status st = mf_json_get_string(root, key, &text, e);
    if (st == MF_OK && strlen(text) >= size) {
        return mf_json_fail(mf_json_find(root, key), e, "\"%s\": expected at most %zu bytes", key,
                            size - 1);
    }
    if (st == MF_OK) {
        snprintf(out, size, "%s", text);
    }
    return st;
}

/* {"gemm": {"hopper": figure, ...}, "grouped": ..., "attention": ...}; may be missing,
 * and "memory" of it. */
static mf_status read_gpu_eff(const mf_json_value *root, double lo, double hi, mf_software *s,
                              mf_err *e) {
    static const char *const rates[MF_RATE_COUNT] = {"gemm", "grouped",       "attention",
                                                     "host", "low_precision", "memory"};
    static const char *const gpus[] = {
#define X(name, text) text,
        MF_GPU_KIND_MAP(X)
#undef X
    };
    const mf_json_value *v = mf_json_find(root, "gpu_eff");
    if (v == NULL) {
        return MF_OK;
    }
    mf_status st = mf_json_want(v, MF_JSON_OBJECT, e);
    st = st == MF_OK ? mf_json_check_keys(v, rates, MF_RATE_COUNT, e) : st;
    for (int i = 0; st == MF_OK && i < MF_RATE_COUNT; i++) {
        if (i == MF_RATE_MEMORY && mf_json_find(v, rates[i]) == NULL) {
            continue;
        }
        st = read_row(v, rates[i], gpus, MF_GPU_KIND_COUNT, lo, hi, s->gpu_eff[i], e);
    }
    return st;
}

/* Figures that a file may leave out: 0. */
static const struct {
    const char *key;
    double least, most;
    size_t offset;
} optional[] = {
    {"block_scale_eff", 0.01, 2, offsetof(mf_software, block_scale_eff)},
    {"ring_attention_eff", 0.01, 2, offsetof(mf_software, ring_attention_eff)},
    {"scan_eff", 0.01, 2, offsetof(mf_software, scan_eff)},
    {"moe_sync_s", 0, 1, offsetof(mf_software, moe_sync_s)},
    {"host_measured", 0, 1, offsetof(mf_software, host_measured)},
    {"host_adam_s", 0, 1e-3, offsetof(mf_software, host_adam_s)},
    {"power_cap", 0, 2, offsetof(mf_software, power_cap)},
    {"fitted_power", 0, 2, offsetof(mf_software, fitted_power)},
    {"prefetch_exposed", 0, 1, offsetof(mf_software, prefetch_exposed)},
    {"prefetch_inside", 0, 1, offsetof(mf_software, prefetch_inside)},
    {"signal_s", 0, 1e-3, offsetof(mf_software, signal_s)},
    {"first_anew", 0, 1, offsetof(mf_software, first_anew)},
    {"copies_in_pass", 0, 1, offsetof(mf_software, copies_in_pass)},
};
enum { OPTIONAL = sizeof optional / sizeof optional[0] };

static mf_status read_optional(const mf_json_value *root, mf_software *s, mf_err *e) {
    mf_status st = MF_OK;
    for (size_t i = 0; st == MF_OK && i < OPTIONAL; i++) {
        if (mf_json_find(root, optional[i].key) != NULL) {
            double *value = (double *)(void *)((char *)s + optional[i].offset);
            st = read_figure(root, optional[i].key, optional[i].least, optional[i].most, value, e);
        }
    }
    return st;
}

/* {"value": "qkv_copies,...", "source": "..."}; may be missing. */
static mf_status read_traits(const mf_json_value *root, mf_software *s, mf_err *e) {
    static const char *const known[] = {"value", "source"};
    const mf_json_value *v = mf_json_find(root, "traits");
    const char *words = "", *source;
    if (v == NULL) {
        return MF_OK;
    }
    mf_status st = mf_json_want(v, MF_JSON_OBJECT, e);
    st = st == MF_OK ? mf_json_check_keys(v, known, 2, e) : st;
    st = st == MF_OK ? mf_json_get_string(v, "value", &words, e) : st;
    st = st == MF_OK ? mf_json_get_string(v, "source", &source, e) : st;
    mf_err inner = {.text = ""};
    return st == MF_OK && mf_traits_parse(words, &s->traits, &inner) != MF_OK
               ? mf_json_fail(mf_json_find(v, "value"), e, "%.400s", inner.text)
               : st;
}

/* The same, of what the peak of memory that the program prints holds. */
static mf_status read_memory_report(const mf_json_value *root, mf_software *s, mf_err *e) {
    static const char *const known[] = {"value", "source"};
    static const char *const words[] = {
#define X(name, text, bit) text,
        MF_REPORT_MAP(X)
#undef X
    };
    const mf_json_value *v = mf_json_find(root, "memory_report");
    const char *at = "", *source;
    if (v == NULL) {
        return MF_OK;
    }
    mf_status st = mf_json_want(v, MF_JSON_OBJECT, e);
    st = st == MF_OK ? mf_json_check_keys(v, known, 2, e) : st;
    st = st == MF_OK ? mf_json_get_string(v, "value", &at, e) : st;
    st = st == MF_OK ? mf_json_get_string(v, "source", &source, e) : st;
    while (st == MF_OK && *at != '\0') {
        const size_t length = strcspn(at, ",");
        size_t i = 0;
        while (i < sizeof words / sizeof words[0] &&
               (strlen(words[i]) != length || strncmp(words[i], at, length) != 0)) {
            i++;
        }
        if (i == sizeof words / sizeof words[0]) {
            return mf_json_fail(mf_json_find(v, "value"), e,
                                "expected allocated, unread_gradients, head_gradient or "
                                "host_parameters, got \"%.*s\"",
                                (int)length, at);
        }
        s->memory_report |= 1u << i;
        at += length + (at[length] == ',');
    }
    return st;
}

/* A comma list of graph modes or dispatchers, the likely one first. */
static mf_status read_choices(const mf_json_value *v, const char *key, bool graphs, int *count,
                              mf_graph_mode *graph, mf_dispatcher *dispatcher, mf_err *e) {
    const char *text;
    char word[24];
    mf_err inner = {.text = ""};
    mf_status st = mf_json_get_string(v, key, &text, e);
    for (*count = 0; st == MF_OK && *text != '\0'; ++*count) {
        size_t length = strcspn(text, ",");
        if (*count == MF_DEFAULTS_MAX) {
            return mf_json_fail(mf_json_find(v, key), e, "\"%s\": expected at most %d words", key,
                                MF_DEFAULTS_MAX);
        }
        snprintf(word, sizeof word, "%.*s", (int)(length < 23 ? length : 23), text);
        mf_status read = graphs ? mf_graph_parse(word, &graph[*count], &inner)
                                : mf_dispatcher_parse(word, &dispatcher[*count], &inner);
        if (read != MF_OK) {
            return mf_json_fail(mf_json_find(v, key), e, "%.400s", inner.text);
        }
        text += length + (text[length] == ',');
    }
    return st;
}

/* What a user may leave unsaid (mf_profile_defaults); may be missing. */
static mf_status read_unsaid(const mf_json_value *root, mf_profile_defaults *u, mf_err *e) {
    static const char *const known[] = {"source",          "cuda_graph_dense",  "cuda_graph_moe",
                                        "dispatcher_near", "dispatcher_domain", "dispatcher_far",
                                        "band_dense",      "band_moe"};
    const char *const *graph = &known[1], *const *dispatcher = &known[3], *const *band = &known[6];
    const mf_json_value *v = mf_json_find(root, "unsaid");
    const char *source;
    if (v == NULL) {
        return MF_OK;
    }
    mf_status st = mf_json_want(v, MF_JSON_OBJECT, e);
    st = st == MF_OK ? mf_json_check_keys(v, known, sizeof known / sizeof known[0], e) : st;
    st = st == MF_OK ? mf_json_get_string(v, "source", &source, e) : st;
    for (int i = 0; st == MF_OK && i < 2; i++) {
        st = read_choices(v, graph[i], true, &u->graphs[i], u->graph[i], NULL, e);
        st = st == MF_OK ? mf_json_get_f64(v, band[i], 0, 1, &u->band[i], e) : st;
    }
    for (int i = 0; st == MF_OK && i < 3; i++) {
        st = read_choices(v, dispatcher[i], false, &u->dispatchers[i], NULL, u->dispatcher[i], e);
    }
    return st;
}

static mf_status check_keys(const mf_json_value *root, mf_err *e) {
    static const char *const needed[] = {"name",
                                         "release",
                                         "description",
                                         "gemm_eff",
                                         "grouped_eff",
                                         "memory_eff",
                                         "host_op_s",
                                         "attention_eff",
                                         "host_layer_s",
                                         "host_graph",
                                         "comm_eff",
                                         "collective_eff",
                                         "overlap_exposed",
                                         "fixed_step_s",
                                         "gpu_power_eff",
                                         "gpu_eff",
                                         "band",
                                         "nvls"};
    enum { NEEDED = sizeof needed / sizeof needed[0], WORDS = 4 };
    const char *known[NEEDED + OPTIONAL + WORDS];
    for (size_t i = 0; i < NEEDED; i++) {
        known[i] = needed[i];
    }
    for (size_t i = 0; i < OPTIONAL; i++) {
        known[NEEDED + i] = optional[i].key;
    }
    known[NEEDED + OPTIONAL] = "traits";
    known[NEEDED + OPTIONAL + 1] = "unsaid";
    known[NEEDED + OPTIONAL + 2] = "date";
    known[NEEDED + OPTIONAL + 3] = "memory_report";
    return mf_json_check_keys(root, known, NEEDED + OPTIONAL + WORDS, e);
}

/* grouped_eff is the share of a GEMM's rate, and slows down with that. */
void mf_software_slow(mf_software *s, double factor) {
    double *rates[] = {&s->attention_eff, &s->memory_eff, &s->collective_eff};
    double *times[] = {&s->host_op_s,   &s->host_layer_s, &s->moe_sync_s,
                       &s->host_adam_s, &s->fixed_step_s, &s->signal_s};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        *rates[i] /= factor;
    }
    for (int i = 0; i < MF_MATH_COUNT; i++) {
        s->gemm_eff[i] /= factor;
    }
    for (int i = 0; i < MF_DISPATCH_COUNT; i++) {
        s->comm_eff[i] /= factor;
    }
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        *times[i] *= factor;
    }
    if (factor < 1) { /* prices of an op alone were too high: no rate of the profile says so */
        s->rate_cap = (s->rate_cap > 0 ? s->rate_cap : 1) / factor;
    }
}

/* {"name", "extends", "step_factor", "measured"}: another profile, slower or faster throughout;
 * "measured" (what the factor rests on) is for who keeps it. */
static mf_status read_corrected(const mf_json_value *root, mf_software *out, mf_err *e) {
    static const char *const known[] = {"name", "extends", "step_factor", "measured"};
    const char *base = "";
    double factor = 1;
    mf_software s = {.name = ""};
    char name[sizeof s.name];
    mf_status st = mf_json_check_keys(root, known, sizeof known / sizeof known[0], e);
    st = st == MF_OK ? read_text(root, "name", name, sizeof name, e) : st;
    st = st == MF_OK ? mf_json_get_string(root, "extends", &base, e) : st;
    st = st == MF_OK ? read_figure(root, "step_factor", 0.1, 10, &factor, e) : st;
    if (st == MF_OK && is_path(base)) { /* no chains, which could be circles */
        st = mf_json_fail(mf_json_find(root, "extends"), e, "\"extends\": expected a shipped name");
    }
    st = st == MF_OK ? mf_software_load(base, &s, e) : st;
    if (st == MF_OK) {
        mf_software_slow(&s, factor);
        snprintf(s.name, sizeof s.name, "%s", name);
        *out = s;
    }
    return st;
}

mf_status mf_software_from_json(const mf_json *doc, mf_software *out, mf_err *e) {
    static const char *const maths[] = {"fp32", "bf16", "fp8", "fp4"};
    static const char *const graphs[] = {
#define X(name, text) text,
        MF_GRAPH_MAP(X)
#undef X
    };
    static const char *const dispatchers[] = {
#define X(name, text) text,
        MF_DISPATCHER_MAP(X)
#undef X
    };
    static const char *const overlaps[] = {
#define X(name, text, bit) text,
        MF_OVERLAP_MAP(X)
#undef X
    };
    const double least = 0.01, most = 2.0; /* efficiencies */
    const mf_json_value *root = mf_json_root(doc);
    const char *description;
    mf_software s = {.name = ""};
    double nvls = 0;
    mf_status st = mf_json_want(root, MF_JSON_OBJECT, e);
    if (st == MF_OK && mf_json_find(root, "extends") != NULL) {
        return read_corrected(root, out, e);
    }
#define THEN(call) st = st == MF_OK ? (call) : st
    THEN(check_keys(root, e));
    THEN(read_text(root, "name", s.name, sizeof s.name, e));
    THEN(read_text(root, "release", s.release, sizeof s.release, e));
    THEN(mf_json_get_string(root, "description", &description, e));
    if (mf_json_find(root, "date") != NULL) {
        THEN(read_text(root, "date", s.date, sizeof s.date, e));
    }
    THEN(read_row(root, "gemm_eff", maths, MF_MATH_COUNT, least, most, s.gemm_eff, e));
    THEN(read_figure(root, "grouped_eff", least, most, &s.grouped_eff, e));
    THEN(read_figure(root, "attention_eff", least, most, &s.attention_eff, e));
    THEN(read_figure(root, "memory_eff", least, most, &s.memory_eff, e));
    THEN(read_figure(root, "host_op_s", 0, 1, &s.host_op_s, e));
    THEN(read_figure(root, "host_layer_s", 0, 10, &s.host_layer_s, e));
    THEN(read_row(root, "host_graph", graphs, MF_GRAPH_COUNT, 0, 10, s.host_graph, e));
    THEN(read_row(root, "comm_eff", dispatchers, MF_DISPATCH_COUNT, least, most, s.comm_eff, e));
    THEN(read_figure(root, "collective_eff", least, most, &s.collective_eff, e));
    THEN(read_row(root, "overlap_exposed", overlaps, sizeof overlaps / sizeof overlaps[0], 0, 1,
                  s.overlap_exposed, e));
    THEN(read_figure(root, "fixed_step_s", 0, 100, &s.fixed_step_s, e));
    THEN(read_figure(root, "gpu_power_eff", least, most, &s.gpu_power_eff, e));
    THEN(read_optional(root, &s, e));
    THEN(read_traits(root, &s, e));
    THEN(read_memory_report(root, &s, e));
    THEN(read_unsaid(root, &s.unsaid, e));
    THEN(read_gpu_eff(root, least, most, &s, e));
    THEN(read_figure(root, "band", 0, 2, &s.band, e));
    THEN(read_figure(root, "nvls", 0, 2, &nvls, e));
#undef THEN
    if (st == MF_OK) {
        s.nvls = nvls >= 0.5;
        s.nvls_best = nvls >= 1.5;
        *out = s;
    }
    return st;
}

/* --- names ------------------------------------------------------------------------------------ */

/* "YY.MM" as YY * 100 + MM; -1 when it is no release. */
static int release_of(const char *text) {
    int year = 0, month = 0, digits = 0;
    for (; *text >= '0' && *text <= '9' && digits < 2; text++, digits++) {
        year = year * 10 + (*text - '0');
    }
    if (digits != 2 || *text != '.') {
        return -1;
    }
    text++;
    for (digits = 0; *text >= '0' && *text <= '9' && digits < 2; text++, digits++) {
        month = month * 10 + (*text - '0');
    }
    return digits == 2 && *text == '\0' && month >= 1 && month <= 12 ? year * 100 + month : -1;
}

/* The shipped profile that answers to a name; NULL when none does. */
static const char *resolve(const char *name) {
    const char *found = NULL;
    size_t prefix = strlen(release_prefix);
    int wanted = strncmp(name, release_prefix, prefix) == 0 ? release_of(name + prefix) : -1;
    for (size_t i = 0; i < SHIPPED; i++) {
        if (strcmp(name, shipped[i]) == 0) {
            return shipped[i];
        }
        int release =
            strncmp(shipped[i], release_prefix, prefix) == 0 ? release_of(shipped[i] + prefix) : -1;
        if (wanted >= 0 && release >= 0 && release <= wanted) {
            found = shipped[i]; /* in order of release: the last is the newest */
        }
    }
    return found;
}

static mf_status unknown_name(const char *name, mf_err *e) {
    char known[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < SHIPPED; i++) {
        int n = snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", shipped[i]);
        used += n > 0 && (size_t)n < sizeof known - used ? (size_t)n : 0;
    }
    const char *near = mf_nearest_word(name, shipped, SHIPPED);
    return mf_err_set(e, MF_USAGE, "unknown software \"%.60s\"%s%s%s; known: %s", name,
                      near != NULL ? ": did you mean \"" : "", near != NULL ? near : "",
                      near != NULL ? "\"?" : "", known);
}

mf_status mf_software_load(const char *name, mf_software *out, mf_err *e) {
    char path[1400];
    name = name != NULL ? name : MF_SOFTWARE_OURS;
    if (is_path(name)) {
        snprintf(path, sizeof path, "%s", name);
    } else {
        const char *file = resolve(name);
        if (file == NULL) {
            return unknown_name(name, e);
        }
        snprintf(path, sizeof path, "%s/software/%s.json", mf_data_dir(), file);
    }
    mf_json *doc = NULL;
    mf_status st = mf_json_load(path, &doc, e);
    if (st == MF_OK) {
        st = mf_software_from_json(doc, out, e);
    }
    mf_json_destroy(doc);
    return st;
}
