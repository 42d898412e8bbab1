/* plan_read.c - plans from JSON: every key is known, every value in range, every length agrees. */
#include "core/plan/plan.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define MAX_WHOLE (INT64_C(1) << 53)

/* A reader goes on after an error and keeps the first one, so that a function that reads many
 * fields needs no checks between them. */
typedef struct reader {
    const mf_json_value *object;
    mf_err *e;
    mf_status status;
} reader;

static void read_i64(reader *r, const char *key, int64_t lo, int64_t hi, int64_t *out) {
    if (r->status == MF_OK) {
        r->status = mf_json_get_i64(r->object, key, lo, hi, out, r->e);
    }
}

static void read_f64(reader *r, const char *key, double lo, double *out) {
    if (r->status == MF_OK) {
        r->status = mf_json_get_f64(r->object, key, lo, DBL_MAX, out, r->e);
    }
}

/* null: nothing was proven. */
static void read_gap(reader *r, double *out) {
    const mf_json_value *v = r->status == MF_OK ? mf_json_find(r->object, "gap") : NULL;
    if (v != NULL && mf_json_value_type(v) == MF_JSON_NULL) {
        *out = HUGE_VAL;
        return;
    }
    read_f64(r, "gap", -1, out);
}

static void read_bool(reader *r, const char *key, bool *out) {
    if (r->status == MF_OK) {
        r->status = mf_json_get_bool(r->object, key, out, r->e);
    }
}

static void read_text(reader *r, const char *key, char *out, size_t size) {
    const char *text = NULL;
    if (r->status == MF_OK) {
        r->status = mf_json_get_string(r->object, key, &text, r->e);
    }
    if (r->status == MF_OK) {
        if (strlen(text) >= size) {
            r->status = mf_json_fail(mf_json_find(r->object, key), r->e,
                                     "\"%s\": expected at most %zu bytes", key, size - 1);
            return;
        }
        memcpy(out, text, strlen(text) + 1);
    }
}

/* Reads a word through one of the layout's parsers; its list of known words gets a position. */
#define READ_WORD(r, key, parse, out)                                                              \
    do {                                                                                           \
        char word_[160];                                                                           \
        read_text((r), (key), word_, sizeof word_);                                                \
        if ((r)->status == MF_OK) {                                                                \
            mf_err inner_;                                                                         \
            mf_err_clear(&inner_);                                                                 \
            if (parse(word_, (out), &inner_) != MF_OK) {                                           \
                (r)->status = mf_json_fail(mf_json_find((r)->object, (key)), (r)->e, "%.1500s",    \
                                           inner_.text);                                           \
            }                                                                                      \
        }                                                                                          \
    } while (0)

/* Enters the member object `key` of v: checks type and keys. */
static reader enter(const mf_json_value *v, const char *const *keys, size_t count, mf_err *e) {
    reader r = {v, e, mf_json_want(v, MF_JSON_OBJECT, e)};
    if (r.status == MF_OK) {
        r.status = mf_json_check_keys(v, keys, count, e);
    }
    return r;
}

static mf_status need(const mf_json_value *object, const char *key, const mf_json_value **out,
                      mf_err *e) {
    *out = mf_json_find(object, key);
    return *out ? MF_OK : mf_json_fail(object, e, "missing key \"%s\"", key);
}

/* KEY=VALUE texts; without the key there are none. */
static void read_set(reader *r, char out[MF_MODEL_SET]) {
    const mf_json_value *v = mf_json_find(r->object, "set");
    size_t used = 0;
    out[0] = '\0';
    if (r->status != MF_OK || v == NULL) {
        return;
    }
    r->status = mf_json_want(v, MF_JSON_ARRAY, r->e);
    if (r->status == MF_OK && mf_json_size(v) > MF_MODEL_SETS) {
        r->status = mf_json_fail(v, r->e, "\"set\": expected at most %d values", MF_MODEL_SETS);
    }
    for (size_t i = 0; r->status == MF_OK && i < mf_json_size(v); i++) {
        const mf_json_value *item = mf_json_at(v, i);
        const char *text = "";
        r->status = mf_json_string(item, &text, r->e);
        if (r->status == MF_OK && (strchr(text, '=') == NULL || strchr(text, '\n') != NULL)) {
            r->status = mf_json_fail(item, r->e, "expected KEY=VALUE");
        }
        if (r->status == MF_OK && used + strlen(text) + 2 > MF_MODEL_SET) {
            r->status =
                mf_json_fail(item, r->e, "\"set\": more than %d bytes in all", MF_MODEL_SET - 1);
        }
        if (r->status == MF_OK) {
            used +=
                (size_t)snprintf(out + used, MF_MODEL_SET - used, "%s%s", i > 0 ? "\n" : "", text);
        }
    }
}

static mf_status read_model(const mf_json_value *v, mf_model_identity *m, mf_err *e) {
    static const char *const keys[] = {"name",   "family",  "fingerprint", "layers", "mtp_layers",
                                       "hidden", "experts", "parameters",  "set"};
    reader r = enter(v, keys, COUNT(keys), e);
    read_text(&r, "name", m->name, sizeof m->name);
    read_text(&r, "family", m->family, sizeof m->family);
    read_text(&r, "fingerprint", m->fingerprint, sizeof m->fingerprint);
    read_i64(&r, "layers", 1, MF_MODEL_MAX_LAYERS, &m->layers);
    read_i64(&r, "mtp_layers", 0, MF_MAX_POSITIONS - MF_MODEL_MAX_LAYERS - 2, &m->mtp_layers);
    read_i64(&r, "hidden", 1, MAX_WHOLE, &m->hidden);
    read_i64(&r, "experts", 0, MAX_WHOLE, &m->experts);
    read_i64(&r, "parameters", 1, MAX_WHOLE, &m->parameters);
    read_set(&r, m->set);
    return r.status;
}

static void read_choice(reader *r, mf_memory_choice *out) {
    READ_WORD(r, "recompute", mf_recompute_parse, &out->recompute);
    READ_WORD(r, "offload", mf_offload_parse, &out->offload);
}

static mf_status parse_bf16(const char *s, bool *out, mf_err *e) {
    *out = strcmp(s, "bf16") == 0;
    if (!*out && strcmp(s, "fp32") != 0) {
        return mf_err_set(e, MF_USAGE, "unknown dtype \"%.40s\": expected fp32 or bf16", s);
    }
    return MF_OK;
}

static void read_sizes(reader *r, mf_layout *l) {
    const int64_t most = 1 << 20; /* so that products of three degrees stay exact */
    const int64_t size = 1 << 28; /* as mf_layout_resolve has it */
    read_i64(r, "gpus", 1, size, &l->gpus);
    read_i64(r, "tp", 1, most, &l->tp);
    read_i64(r, "cp", 1, most, &l->cp);
    read_i64(r, "dp", 1, size, &l->dp);
    read_i64(r, "pp", 1, most, &l->pp);
    read_i64(r, "vpp", 1, most, &l->vpp);
    read_i64(r, "ep", 1, most, &l->ep);
    read_i64(r, "etp", 1, most, &l->etp);
    read_i64(r, "edp", 1, size, &l->edp);
    read_i64(r, "micro_batch", 1, size, &l->mbs);
    read_i64(r, "global_batch", 1, size, &l->gbs);
    read_i64(r, "micro_batches", 1, MAX_WHOLE, &l->micro_batches);
    read_i64(r, "seq", 1, size, &l->seq);
}

static void read_techniques(reader *r, mf_layout *l) {
    int64_t zero = 0, expert_zero = 0;
    READ_WORD(r, "schedule", mf_schedule_parse, &l->schedule);
    READ_WORD(r, "dispatcher", mf_dispatcher_parse, &l->dispatcher);
    READ_WORD(r, "cp_type", mf_cp_type_parse, &l->cp_type);
    READ_WORD(r, "overlap", mf_overlap_parse, &l->overlap);
    read_i64(r, "zero", 0, 3, &zero);
    read_i64(r, "expert_zero", 0, 3, &expert_zero);
    l->zero = (uint8_t)zero;
    l->expert_zero = (uint8_t)expert_zero;
    READ_WORD(r, "precision", mf_precision_parse, &l->precision);
    read_bool(r, "fp8_attention", &l->fp8_attention);
    read_bool(r, "fp8_primary_weights", &l->fp8_primary_weights);
    READ_WORD(r, "moments", parse_bf16, &l->moments_bf16);
    READ_WORD(r, "cuda_graph", mf_graph_parse, &l->graph);
    read_f64(r, "offload_optimizer", 0, &l->offload_optimizer);
    read_choice(r, &l->memory);
    read_f64(r, "token_headroom", 1, &l->token_headroom);
    read_f64(r, "reserve", 0, &l->reserve);
}

/* Keys that mf_plan_write_layout writes only where the value is not the usual one. */
static void read_unusual(reader *r, mf_layout *l) {
    const mf_json_value *v = r->object;
    if (mf_json_find(v, "grad_dtype") != NULL) {
        READ_WORD(r, "grad_dtype", parse_bf16, &l->grads_bf16);
    }
    if (mf_json_find(v, "aux_scope") != NULL) {
        READ_WORD(r, "aux_scope", mf_aux_scope_parse, &l->aux_scope);
    }
    if (mf_json_find(v, "capacity_factor") != NULL) {
        read_f64(r, "capacity_factor", 0, &l->capacity_factor);
    }
    if (mf_json_find(v, "pad_to_capacity") != NULL) {
        read_bool(r, "pad_to_capacity", &l->pad_to_capacity);
    }
    if (mf_json_find(v, "deterministic") != NULL) {
        read_bool(r, "deterministic", &l->deterministic);
    }
    if (mf_json_find(v, "traits") != NULL) {
        READ_WORD(r, "traits", mf_traits_parse, &l->traits);
    }
}

static mf_status read_layout(const mf_json_value *v, mf_layout *l, mf_err *e) {
    static const char *const keys[] = {"gpus",
                                       "tp",
                                       "cp",
                                       "dp",
                                       "pp",
                                       "vpp",
                                       "ep",
                                       "etp",
                                       "edp",
                                       "micro_batch",
                                       "seq",
                                       "global_batch",
                                       "schedule",
                                       "micro_batches",
                                       "cp_type",
                                       "dispatcher",
                                       "overlap",
                                       "zero",
                                       "precision",
                                       "expert_zero",
                                       "moments",
                                       "fp8_attention",
                                       "recompute",
                                       "fp8_primary_weights",
                                       "offload",
                                       "cuda_graph",
                                       "reserve",
                                       "offload_optimizer",
                                       "token_headroom",
                                       "grad_dtype",
                                       "aux_scope",
                                       "capacity_factor",
                                       "pad_to_capacity",
                                       "deterministic",
                                       "traits"};
    reader r = enter(v, keys, COUNT(keys), e);
    read_sizes(&r, l);
    read_techniques(&r, l);
    read_unusual(&r, l);
    if (r.status == MF_OK && (l->offload_optimizer > 1 || l->reserve >= 1)) {
        r.status = mf_json_fail(v, e, "\"offload_optimizer\" and \"reserve\" are shares below 1");
    }
    return r.status;
}

static mf_status read_first(const mf_json_value *v, mf_assignment *a, mf_err *e) {
    mf_status status = mf_json_want(v, MF_JSON_ARRAY, e);
    if (status != MF_OK) {
        return status;
    }
    size_t count = mf_json_size(v);
    if (count < 2 || count > MF_MAX_VSTAGES + 1) {
        return mf_json_fail(v, e, "\"first\": expected 2 to %d entries, got %zu",
                            MF_MAX_VSTAGES + 1, count);
    }
    int64_t before = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t first = 0;
        int64_t lo = i == count - 1 ? a->positions : before;
        int64_t hi = i == 0 ? 0 : a->positions;
        status = mf_json_i64(mf_json_at(v, i), lo, hi, &first, e);
        if (status != MF_OK) {
            return status;
        }
        a->first[i] = (int)first;
        before = first;
    }
    a->vstages = (int)count - 1;
    return MF_OK;
}

static mf_status read_runs(const mf_json_value *v, mf_assignment *a, mf_err *e) {
    static const char *const keys[] = {"from", "to", "recompute", "offload"};
    mf_status status = mf_json_want(v, MF_JSON_ARRAY, e);
    int64_t next = 0;
    for (size_t i = 0; status == MF_OK && i < mf_json_size(v); i++) {
        int64_t from = 0, to = 0;
        mf_memory_choice choice = {0, 0};
        reader r = enter(mf_json_at(v, i), keys, COUNT(keys), e);
        read_i64(&r, "from", next, next, &from);
        read_i64(&r, "to", next + 1, a->positions, &to);
        read_choice(&r, &choice);
        status = r.status;
        for (int64_t p = from; status == MF_OK && p < to; p++) {
            a->memory[p] = choice;
        }
        next = to;
    }
    if (status == MF_OK && next != a->positions) {
        status = mf_json_fail(v, e, "\"memory\": covers %lld of %d positions", (long long)next,
                              a->positions);
    }
    return status;
}

static mf_status read_assignment(const mf_json_value *v, mf_assignment *a, mf_err *e) {
    static const char *const keys[] = {"positions", "first", "memory"};
    const mf_json_value *part = NULL;
    int64_t positions = 0;
    reader r = enter(v, keys, COUNT(keys), e);
    read_i64(&r, "positions", 3, MF_MAX_POSITIONS, &positions);
    a->positions = (int)positions;
    mf_status status = r.status;
    if (status == MF_OK && (status = need(v, "first", &part, e)) == MF_OK) {
        status = read_first(part, a, e);
    }
    if (status == MF_OK && (status = need(v, "memory", &part, e)) == MF_OK) {
        status = read_runs(part, a, e);
    }
    return status;
}

static mf_status read_stage(const mf_json_value *v, mf_plan_stage *s, mf_err *e) {
    static const char *const keys[] = {"peak_B", "host_B", "busy_s", "idle_s", "memory_B"};
    const char *kinds[MF_MEM_COUNT];
    const mf_json_value *memory = NULL;
    for (int k = 0; k < MF_MEM_COUNT; k++) {
        kinds[k] = mf_memory_text((mf_memory_kind)k);
    }
    reader r = enter(v, keys, COUNT(keys), e);
    read_f64(&r, "peak_B", 0, &s->peak_B);
    read_f64(&r, "host_B", 0, &s->host_B);
    read_f64(&r, "busy_s", 0, &s->busy_s);
    read_f64(&r, "idle_s", -DBL_MAX, &s->idle_s);
    mf_status status = r.status;
    if (status == MF_OK && (status = need(v, "memory_B", &memory, e)) == MF_OK) {
        r = enter(memory, kinds, MF_MEM_COUNT, e);
        for (int k = 0; k < MF_MEM_COUNT; k++) {
            bool later = k == MF_MEM_INPUTS || k == MF_MEM_GAPS;
            bool older = later && mf_json_find(memory, kinds[k]) == NULL;
            if (!older) { /* a plan of when that was not counted */
                read_f64(&r, kinds[k], 0, &s->kind_B[k]);
            }
        }
        status = r.status;
    }
    return status;
}

static mf_status read_stages(const mf_json_value *v, mf_plan_prediction *p, mf_err *e) {
    mf_status status = mf_json_want(v, MF_JSON_ARRAY, e);
    if (status != MF_OK) {
        return status;
    }
    size_t count = mf_json_size(v);
    p->stage = calloc(count ? count : 1, sizeof *p->stage);
    if (!p->stage) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    p->stages = (int64_t)count;
    for (size_t i = 0; status == MF_OK && i < count; i++) {
        status = read_stage(mf_json_at(v, i), &p->stage[i], e);
    }
    return status;
}

static mf_status read_breakdown(const mf_json_value *v, mf_plan_prediction *p, mf_err *e) {
    mf_status status = mf_json_want(v, MF_JSON_OBJECT, e);
    if (status == MF_OK && mf_json_size(v) > MF_PLAN_MAX_FIGURES) {
        status = mf_json_fail(v, e, "\"breakdown_s\": expected at most %d members, got %zu",
                              MF_PLAN_MAX_FIGURES, mf_json_size(v));
    }
    for (size_t i = 0; status == MF_OK && i < mf_json_size(v); i++) {
        mf_plan_figure *f = &p->breakdown_s[i];
        const char *key = mf_json_key_at(v, i);
        if (strlen(key) >= sizeof f->key) {
            return mf_json_fail(mf_json_at(v, i), e, "\"breakdown_s\": key is too long");
        }
        memcpy(f->key, key, strlen(key) + 1);
        status = mf_json_f64(mf_json_at(v, i), -DBL_MAX, DBL_MAX, &f->value, e);
        p->breakdown_count = (int)i + 1;
    }
    return status;
}

static mf_status read_prediction(const mf_json_value *v, mf_plan_prediction *p, mf_err *e) {
    static const char *const keys[] = {"fits",
                                       "step_time_s",
                                       "step_time_low_s",
                                       "step_time_high_s",
                                       "tokens_per_s_per_gpu",
                                       "model_tflops_per_gpu",
                                       "mfu",
                                       "mfu_bf16",
                                       "peak_memory_B",
                                       "capacity_B",
                                       "usable_B",
                                       "breakdown_s",
                                       "stages"};
    const mf_json_value *part = NULL;
    reader r = enter(v, keys, COUNT(keys), e);
    read_bool(&r, "fits", &p->fits);
    read_f64(&r, "step_time_s", 0, &p->step_time_s);
    read_f64(&r, "step_time_low_s", 0, &p->step_time_low_s);
    read_f64(&r, "step_time_high_s", 0, &p->step_time_high_s);
    read_f64(&r, "tokens_per_s_per_gpu", 0, &p->tokens_per_s_per_gpu);
    read_f64(&r, "model_tflops_per_gpu", 0, &p->model_tflops_per_gpu);
    read_f64(&r, "mfu", 0, &p->mfu);
    read_f64(&r, "mfu_bf16", 0, &p->mfu_bf16);
    read_f64(&r, "peak_memory_B", 0, &p->peak_memory_B);
    read_f64(&r, "capacity_B", 0, &p->capacity_B);
    read_f64(&r, "usable_B", 0, &p->usable_B);
    mf_status status = r.status;
    if (status == MF_OK && (status = need(v, "breakdown_s", &part, e)) == MF_OK) {
        status = read_breakdown(part, p, e);
    }
    if (status == MF_OK && (status = need(v, "stages", &part, e)) == MF_OK) {
        status = read_stages(part, p, e);
    }
    return status;
}

static mf_status read_provenance(const mf_json_value *v, mf_plan_provenance *p, mf_err *e) {
    static const char *const keys[] = {"generator", "cluster",      "cluster_fingerprint",
                                       "software",  "measurements", "routing",
                                       "search"};
    static const char *const search_keys[] = {"space", "lower_bound_s", "gap"};
    reader r = enter(v, keys, COUNT(keys), e);
    read_text(&r, "generator", p->generator, sizeof p->generator);
    read_text(&r, "cluster", p->cluster, sizeof p->cluster);
    read_text(&r, "cluster_fingerprint", p->cluster_fingerprint, sizeof p->cluster_fingerprint);
    read_text(&r, "software", p->software, sizeof p->software);
    read_text(&r, "measurements", p->measurements, sizeof p->measurements);
    read_text(&r, "routing", p->routing, sizeof p->routing);
    const mf_json_value *search = r.status == MF_OK ? mf_json_find(v, "search") : NULL;
    if (search) {
        r = enter(search, search_keys, COUNT(search_keys), e);
        read_i64(&r, "space", 0, MAX_WHOLE, &p->space);
        read_f64(&r, "lower_bound_s", 0, &p->lower_bound_s);
        read_gap(&r, &p->gap);
        p->searched = true;
    }
    return r.status;
}

mf_status mf_plan_from_json(const mf_json *doc, mf_plan *out, mf_err *e) {
    static const char *const keys[] = {"format",     "version",    "model",     "layout",
                                       "assignment", "prediction", "provenance"};
    const mf_json_value *root = mf_json_root(doc), *part = NULL;
    char format[32] = "";
    int64_t version = 0;
    mf_plan_init(out);
    /* the version comes first: a newer plan may have keys that this reader does not know */
    reader r = {root, e, mf_json_want(root, MF_JSON_OBJECT, e)};
    read_text(&r, "format", format, sizeof format);
    if (r.status == MF_OK && strcmp(format, MF_PLAN_FORMAT) != 0) {
        r.status = mf_json_fail(mf_json_find(root, "format"), e,
                                "\"format\": expected \"" MF_PLAN_FORMAT "\", got \"%s\"", format);
    }
    read_i64(&r, "version", 1, MAX_WHOLE, &version);
    if (r.status == MF_OK && version != MF_PLAN_VERSION) {
        r.status = mf_json_fail(mf_json_find(root, "version"), e,
                                "\"version\": this moefold reads plans of version %d, got %lld",
                                MF_PLAN_VERSION, (long long)version);
    }
    mf_status status = r.status;
    if (status == MF_OK) {
        status = mf_json_check_keys(root, keys, COUNT(keys), e);
    }
    if (status == MF_OK && (status = need(root, "model", &part, e)) == MF_OK) {
        status = read_model(part, &out->model, e);
    }
    if (status == MF_OK && (status = need(root, "layout", &part, e)) == MF_OK) {
        status = read_layout(part, &out->layout, e);
    }
    if (status == MF_OK && (status = need(root, "assignment", &part, e)) == MF_OK) {
        status = read_assignment(part, &out->assignment, e);
    }
    if (status == MF_OK && out->assignment.vstages != out->layout.pp * out->layout.vpp) {
        status = mf_json_fail(part, e, "\"first\": %d virtual stages, but PP x VPP is %lld",
                              out->assignment.vstages,
                              (long long)out->layout.pp * (long long)out->layout.vpp);
    }
    if (status == MF_OK && (part = mf_json_find(root, "prediction")) != NULL) {
        out->predicted = true;
        status = read_prediction(part, &out->prediction, e);
    }
    if (status == MF_OK && (status = need(root, "provenance", &part, e)) == MF_OK) {
        status = read_provenance(part, &out->provenance, e);
    }
    return status;
}

mf_status mf_plan_load(const char *path, mf_plan *out, mf_err *e) {
    mf_json *doc = NULL;
    mf_plan_init(out);
    mf_status status = mf_json_load(path, &doc, e);
    if (status == MF_OK) {
        status = mf_plan_from_json(doc, out, e);
    }
    mf_json_destroy(doc);
    return status;
}
