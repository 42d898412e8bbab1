/* cluster_json.c - a cluster's JSON: one table of figures with their units and sane ranges. */
#include "core/cluster/cluster_json.h"

#include "core/base/text.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* --- units ---------------------------------------------------------------------------------- */

typedef struct unit {
    const char *suffix;
    double factor; /* to SI */
} unit;

/* Units of one kind; the first is SI and the one that struct fields are named after. */
static const unit bytes[] = {{"B", 1},         {"KB", 1e3},         {"MB", 1e6},
                             {"GB", 1e9},      {"TB", 1e12},        {"KiB", 1024},
                             {"MiB", 1048576}, {"GiB", 1073741824}, {"TiB", 1099511627776.0},
                             {NULL, 0}};
static const unit rate[] = {{"Bps", 1},         {"MBps", 1e6},       {"GBps", 1e9}, {"TBps", 1e12},
                            {"Gbitps", 1.25e8}, {"Tbitps", 1.25e11}, {NULL, 0}};
static const unit flops[] = {
    {"flops", 1}, {"gflops", 1e9}, {"tflops", 1e12}, {"pflops", 1e15}, {NULL, 0}};
static const unit seconds[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {NULL, 0}};
static const unit watts[] = {{"w", 1}, {"kw", 1e3}, {NULL, 0}};
static const unit dollars[] = {{"usd_gpu_h", 1}, {NULL, 0}};
static const unit gpu_hours[] = {{"gpu_h", 1}, {NULL, 0}};
static const unit plain[] = {{"", 1}, {NULL, 0}};

/* --- figures -------------------------------------------------------------------------------- */

typedef struct figure {
    const char *stem; /* key without unit */
    const unit *units;
    size_t offset;
    double lo, hi; /* SI; what lies outside is a slip of the unit */
    bool whole;    /* an int64_t, else a double */
    bool required; /* unless something is extended */
    bool unknown;  /* null, for "not known", is fine and becomes 0 */
} figure;

#define GPU(field) offsetof(mf_gpu, field)
#define GPU_OF(field, math) (GPU(field) + (math) * sizeof(double))
static const figure gpu_figures[] = {
    {"peak_fp32", flops, GPU_OF(peak_flops, MF_MATH_FP32), 1e8, 1e18, false, false, true},
    {"peak_bf16", flops, GPU_OF(peak_flops, MF_MATH_BF16), 1e8, 1e18, false, true, false},
    {"peak_fp8", flops, GPU_OF(peak_flops, MF_MATH_FP8), 1e8, 1e18, false, false, true},
    {"peak_fp4", flops, GPU_OF(peak_flops, MF_MATH_FP4), 1e8, 1e18, false, false, true},
    {"measured_fp32", flops, GPU_OF(measured_flops, MF_MATH_FP32), 1e8, 1e18, false, false, true},
    {"measured_bf16", flops, GPU_OF(measured_flops, MF_MATH_BF16), 1e8, 1e18, false, false, true},
    {"measured_fp8", flops, GPU_OF(measured_flops, MF_MATH_FP8), 1e8, 1e18, false, false, true},
    {"measured_fp4", flops, GPU_OF(measured_flops, MF_MATH_FP4), 1e8, 1e18, false, false, true},
    {"memory", bytes, GPU(memory_B), 1e6, 1e14, false, true, false},
    {"memory", rate, GPU(memory_Bps), 1e8, 1e15, false, true, false},
    {"memory_measured", rate, GPU(memory_measured_Bps), 1e8, 1e15, false, false, true},
    {"l2", bytes, GPU(l2_B), 1e4, 1e11, false, false, true},
    {"sms", plain, GPU(sms), 1, 100000, true, true, false},
    {"power", watts, GPU(power_w), 1, 1e5, false, false, true},
};

#define AT(field) offsetof(mf_cluster, field)
static const figure cluster_figures[] = {
    {"gpus_per_node", plain, AT(gpus_per_node), 1, MF_CLUSTER_MAX_NODE, true, true, false},
    {"domain_gpus", plain, AT(domain_gpus), 1, 65536, true, false, false},
    {"domain_gpus_used", plain, AT(domain_gpus_used), 1, 65536, true, false, false},
    {"scaleup", rate, AT(scaleup_Bps), 1e6, 1e14, false, true, false},
    {"scaleup_effective", rate, AT(scaleup_effective_Bps), 1e6, 1e14, false, false, true},
    {"scaleup_pair", rate, AT(scaleup_pair_Bps), 1e6, 1e14, false, false, false},
    {"scaleup_pair_effective", rate, AT(scaleup_pair_effective_Bps), 1e6, 1e14, false, false,
     false},
    {"scaleup_latency", seconds, AT(scaleup_latency_s), 0, 1, false, false, true},
    {"nic", rate, AT(nic_Bps), 1e6, 1e14, false, false, true},
    {"nic_efficiency", plain, AT(nic_efficiency), 0.01, 1, false, false, false},
    {"nic_latency", seconds, AT(nic_latency_s), 0, 1, false, false, true},
    {"host", rate, AT(host_Bps), 1e6, 1e14, false, true, false},
    {"host_shared", rate, AT(host_shared_Bps), 1e6, 1e14, false, false, true},
    {"host_memory", bytes, AT(host_memory_B), 1e6, 1e16, false, false, true},
    {"price", dollars, AT(price_usd_gpu_h), 1e-4, 1e4, false, false, true},
    {"node_overhead", watts, AT(node_overhead_w), 0, 1e5, false, false, true},
    {"mtbf", gpu_hours, AT(mtbf_gpu_h), 1, 1e9, false, false, true},
    {"max_gpus", plain, AT(max_gpus), 1, 1e9, false, false, true},
};

static const figure tier_figures[] = {
    {"gpus", plain, offsetof(mf_tier, gpus), 2, 1e9, true, false, false},
    {"oversubscription", plain, offsetof(mf_tier, oversubscription), 1, 1000, false, false, false},
    {"latency", seconds, offsetof(mf_tier, latency_s), 0, 1, false, false, true},
};

/* A section of the file: its figures and the other keys that it may hold. */
typedef struct section {
    const figure *figures;
    size_t count;
    const char *const *others;
    size_t other_count;
} section;

static const char *const gpu_others[] = {"name", "arch", "note"};
static const char *const cluster_others[] = {"name", "extends", "gpu", "tiers", "note"};
static const char *const tier_others[] = {"name", "note"};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define SECTION(of)                                                                                \
    { of##_figures, COUNT(of##_figures), of##_others, COUNT(of##_others) }
static const section gpu_section = SECTION(gpu), cluster_section = SECTION(cluster),
                     tier_section = SECTION(tier);

enum { KEY_MAX = 48, SECTION_MAX = 32 };

/* "memory" and "GiB" -> "memory_GiB"; a plain figure's key is its stem. */
static void spell(const figure *f, const unit *u, char out[KEY_MAX]) {
    snprintf(out, KEY_MAX, "%s%s%s", f->stem, u->suffix[0] != '\0' ? "_" : "", u->suffix);
}

static const figure *find_figure(const section *s, const char *key, const unit **u) {
    char spelled[KEY_MAX];
    for (size_t i = 0; i < s->count; i++) {
        for (*u = s->figures[i].units; (*u)->suffix != NULL; ++*u) {
            spell(&s->figures[i], *u, spelled);
            if (strcmp(spelled, key) == 0) {
                return &s->figures[i];
            }
        }
    }
    return NULL;
}

/* The section that a misplaced figure belongs to; NULL: no section has it. */
static const char *home_of(const section *s, const char *key) {
    static const struct {
        const section *section;
        const char *place;
    } all[] = {{&gpu_section, "in \"gpu\""},
               {&cluster_section, "beside \"gpu\", not in it"},
               {&tier_section, "in one of \"tiers\""}};
    const unit *u;
    for (size_t i = 0; i < COUNT(all); i++) {
        if (all[i].section != s && find_figure(all[i].section, key, &u) != NULL) {
            return all[i].place;
        }
    }
    return NULL;
}

static mf_status unknown_key(const section *s, const mf_json_value *v, const char *key, mf_err *e) {
    char spelled[SECTION_MAX][KEY_MAX], units[160] = "";
    const char *known[2 * SECTION_MAX] = {NULL};
    size_t count = 0, used = 0;
    const char *home = home_of(s, key);
    if (home != NULL) {
        return mf_json_fail(v, e, "unknown key \"%.60s\" here: it belongs %s", key, home);
    }
    for (size_t i = 0; i < s->count; i++) {
        const figure *f = &s->figures[i];
        size_t stem = strlen(f->stem);
        spell(f, f->units, spelled[i]);
        known[count++] = spelled[i];
        bool same = strncmp(key, f->stem, stem) == 0 && (key[stem] == '_' || key[stem] == '\0') &&
                    strchr(key + stem + (key[stem] != '\0'), '_') == NULL;
        for (const unit *u = f->units; same && u->suffix != NULL && used < sizeof units - 12; u++) {
            used += (size_t)snprintf(units + used, sizeof units - used, " %s", u->suffix);
        }
    }
    for (size_t i = 0; i < s->other_count; i++) {
        known[count++] = s->others[i];
    }
    const char *near = mf_nearest_word(key, known, count);
    if (used > 1) {
        return mf_json_fail(v, e, "unknown key \"%.60s\": expected one of these units:%s", key,
                            units);
    }
    return mf_json_fail(v, e, "unknown key \"%.60s\"%s%s%s", key,
                        near != NULL ? ": did you mean \"" : "", near != NULL ? near : "",
                        near != NULL ? "\"?" : "");
}

/* The number of a figure: itself, or "value" of an object that also names source and date. */
static mf_status read_number(const mf_json_value *v, const char *key, double *out, mf_err *e) {
    static const char *const keys[] = {"value", "source", "date", "note"};
    if (mf_json_value_type(v) == MF_JSON_OBJECT) {
        const char *text;
        mf_status st = mf_json_check_keys(v, keys, COUNT(keys), e);
        for (size_t i = 1; st == MF_OK && i < COUNT(keys); i++) {
            st = mf_json_opt_string(v, keys[i], &text, e);
        }
        return st == MF_OK ? mf_json_get_f64(v, "value", -1e300, 1e300, out, e) : st;
    }
    if (mf_json_value_type(v) != MF_JSON_NUMBER) {
        return mf_json_fail(v, e, "\"%s\": expected a number, or {\"value\": ..., \"source\": ...}",
                            key);
    }
    return mf_json_f64(v, -1e300, 1e300, out, e);
}

static mf_status read_figure(const figure *f, const unit *u, const mf_json_value *v,
                             const char *key, char *base, mf_err *e) {
    double number = 0.0;
    if (mf_json_value_type(v) != MF_JSON_NULL || !f->unknown) {
        mf_status st = read_number(v, key, &number, e);
        if (st != MF_OK) {
            return st;
        }
        double value = number * u->factor;
        if (!(value >= f->lo && value <= f->hi)) {
            return mf_json_fail(v, e, "\"%s\": expected %g to %g, got %g", key, f->lo / u->factor,
                                f->hi / u->factor, number);
        }
        if (f->whole && value != floor(value)) {
            return mf_json_fail(v, e, "\"%s\": expected a whole number, got %g", key, number);
        }
        number = value;
    }
    if (f->whole) {
        int64_t whole = (int64_t)number;
        memcpy(base + f->offset, &whole, sizeof whole);
    } else {
        memcpy(base + f->offset, &number, sizeof number);
    }
    return MF_OK;
}

/* Reads all figures of an object into the struct at base; other keys are left to the caller. */
static mf_status read_section(const section *s, const mf_json_value *object, void *base,
                              uint32_t *seen, mf_err *e) {
    *seen = 0;
    mf_status st = mf_json_want(object, MF_JSON_OBJECT, e);
    for (size_t i = 0; st == MF_OK && i < mf_json_size(object); i++) {
        const char *key = mf_json_key_at(object, i);
        const mf_json_value *v = mf_json_at(object, i);
        const unit *u;
        const figure *f = find_figure(s, key, &u);
        bool other = false;
        for (size_t k = 0; k < s->other_count; k++) {
            other = other || strcmp(s->others[k], key) == 0;
        }
        if (f == NULL) {
            st = other ? MF_OK : unknown_key(s, v, key, e);
            continue;
        }
        uint32_t bit = 1u << (f - s->figures);
        if (*seen & bit) {
            return mf_json_fail(v, e, "\"%s\" stands twice, in different units", f->stem);
        }
        *seen |= bit;
        st = read_figure(f, u, v, key, base, e);
    }
    return st;
}

/* The unit that would put a number into its usual range, the one nearest to the unit that it has;
 * NULL: none does. */
static const unit *meant_unit(const figure *f, const unit *has, double number,
                              const mf_usual *usual) {
    const unit *best = NULL;
    double nearest = 0;
    for (const unit *u = f->units; u->suffix != NULL; u++) {
        /* decimal for decimal, binary for binary: GiB is meant rather than GB by MiB */
        const bool alike = (strstr(u->suffix, "iB") != NULL) == (strstr(has->suffix, "iB") != NULL);
        const double value = number * u->factor,
                     apart = fabs(log(u->factor / has->factor)) + (alike ? 0.0 : 0.2);
        if (value >= usual->lo && value <= usual->hi && (best == NULL || apart < nearest)) {
            best = u;
            nearest = apart;
        }
    }
    return best;
}

/* Adds a doubt for each figure of an object that lies outside its usual range, after all were read.
 */
static void doubt_section(const section *s, const mf_json_value *object, mf_cluster *c) {
    for (size_t i = 0; object != NULL && i < mf_json_size(object); i++) {
        const mf_json_value *v = mf_json_at(object, i);
        const char *key = mf_json_key_at(object, i);
        const unit *u;
        const figure *f = find_figure(s, key, &u);
        double number = 0;
        char spelled[KEY_MAX] = "", meant[KEY_MAX] = "";
        if (f != NULL) {
            spell(f, f->units, spelled);
        }
        const mf_usual *usual = mf_cluster_usual(spelled);
        if (usual == NULL || c->doubts == MF_CLUSTER_MAX_DOUBTS ||
            read_number(v, key, &number, NULL) != MF_OK || number <= 0 ||
            (number * u->factor >= usual->lo && number * u->factor <= usual->hi)) {
            continue;
        }
        const unit *better = meant_unit(f, u, number, usual);
        if (better != NULL) {
            spell(f, better, meant);
        }
        mf_err says;
        mf_err_clear(&says);
        (void)mf_json_fail(v, &says, "\"%s\": expected %s, got %g%s%s%s", key, usual->range, number,
                           better != NULL ? ": was \"" : "", meant,
                           better != NULL ? "\" meant?" : "");
        snprintf(c->doubt[c->doubts], sizeof c->doubt[0], "%.255s", says.text);
        c->doubts++;
    }
}

/* Where the price comes from: a new price does not inherit the source of the one that it replaces.
 */
static mf_status read_price(const mf_json_value *root, mf_cluster *c, mf_err *e) {
    const mf_json_value *v = mf_json_find(root, "price_usd_gpu_h");
    const char *date = NULL, *source = NULL;
    mf_status st = MF_OK;
    if (v == NULL) {
        return MF_OK;
    }
    if (mf_json_value_type(v) == MF_JSON_OBJECT) {
        st = mf_json_opt_string(v, "date", &date, e);
        st = st == MF_OK ? mf_json_opt_string(v, "source", &source, e) : st;
    }
    snprintf(c->price_date, sizeof c->price_date, "%.31s", date != NULL ? date : "");
    snprintf(c->price_source, sizeof c->price_source, "%.127s", source != NULL ? source : "");
    return st;
}

static mf_status want_all(const section *s, const mf_json_value *object, uint32_t seen, mf_err *e) {
    char key[KEY_MAX];
    for (size_t i = 0; i < s->count; i++) {
        if (s->figures[i].required && !(seen & (1u << i))) {
            spell(&s->figures[i], s->figures[i].units, key);
            return mf_json_fail(object, e,
                                "\"%s\" is missing (or start from a known cluster: \"extends\": "
                                "\"h100\")",
                                key);
        }
    }
    return MF_OK;
}

/* --- the file ------------------------------------------------------------------------------- */

/* A name that may become part of file names and keys. */
static mf_status read_name(const mf_json_value *object, const char *key, char *out, size_t size,
                           mf_err *e) {
    const char *text = NULL;
    mf_status st = mf_json_opt_string(object, key, &text, e);
    if (st != MF_OK || text == NULL) {
        return st;
    }
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_. ");
    if (n == 0 || text[n] != '\0' || n >= size) {
        return mf_json_fail(mf_json_find(object, key), e,
                            "\"%s\": expected 1 to %zu letters, digits, - _ or .", key, size - 1);
    }
    snprintf(out, size, "%s", text);
    return MF_OK;
}

static mf_status read_gpu(const mf_json_value *root, bool extends, mf_gpu *gpu, uint32_t *seen,
                          mf_err *e) {
    const mf_json_value *v = mf_json_find(root, "gpu");
    if (v == NULL) {
        return extends ? MF_OK : mf_json_fail(root, e, "\"gpu\" is missing");
    }
    mf_status st = read_section(&gpu_section, v, gpu, seen, e);
    st = st == MF_OK ? read_name(v, "name", gpu->name, sizeof gpu->name, e) : st;
    st = st == MF_OK ? read_name(v, "arch", gpu->arch, sizeof gpu->arch, e) : st;
    if (st == MF_OK && !extends) {
        st = want_all(&gpu_section, v, *seen, e);
        if (st == MF_OK && gpu->name[0] == '\0') {
            st = mf_json_fail(v, e, "\"name\" is missing");
        }
    }
    return st;
}

static mf_status read_tiers(const mf_json_value *root, mf_cluster *c, mf_err *e) {
    const mf_json_value *list = mf_json_find(root, "tiers");
    if (list == NULL) {
        return MF_OK;
    }
    mf_status st = mf_json_want(list, MF_JSON_ARRAY, e);
    size_t count = st == MF_OK ? mf_json_size(list) : 0;
    if (st == MF_OK && (count == 0 || count > MF_CLUSTER_MAX_TIERS)) {
        st = mf_json_fail(list, e, "\"tiers\": expected 1 to %d tiers, got %zu",
                          MF_CLUSTER_MAX_TIERS, count);
    }
    memset(c->tier, 0, sizeof c->tier);
    c->tiers = (int)count;
    for (size_t i = 0; st == MF_OK && i < count; i++) {
        const mf_json_value *v = mf_json_at(list, i);
        mf_tier *t = &c->tier[i];
        uint32_t seen;
        *t = (mf_tier){.gpus = INT64_MAX, .oversubscription = 1.0};
        snprintf(t->name, sizeof t->name, "tier %d", (int)i + 1);
        st = read_section(&tier_section, v, t, &seen, e);
        st = st == MF_OK ? read_name(v, "name", t->name, sizeof t->name, e) : st;
        if (st == MF_OK && i + 1 < count && t->gpus == INT64_MAX) {
            st = mf_json_fail(v, e, "\"gpus\" is missing: only the last tier reaches everything");
        } else if (st == MF_OK && i > 0 && t->gpus <= c->tier[i - 1].gpus) {
            st = mf_json_fail(v, e, "a tier must reach more GPUs than the one before it");
        }
        if (st == MF_OK && i + 1 == count) {
            t->gpus = INT64_MAX;
        }
    }
    return st;
}

static bool given(const section *s, uint32_t seen, size_t offset) {
    for (size_t i = 0; i < s->count; i++) {
        if (s->figures[i].offset == offset) {
            return (seen & (1u << i)) != 0;
        }
    }
    return false;
}
#define GIVEN(field) given(&cluster_section, seen, AT(field))

/* Where a file does not say; 0: a switch. */
static double pair_reached_Bps(const mf_cluster *c) {
    return c->scaleup_pair_Bps < c->scaleup_Bps ? MF_SCALEUP_REACHED * c->scaleup_pair_Bps : 0.0;
}

/* What follows from a figure that overrides an inherited one: a node of another size has a domain
 * of that size where the two were equal, and what was measured on other hardware is not known here.
 */
static void follow(mf_cluster *c, const mf_cluster *base, uint32_t seen, uint32_t gpu_seen) {
    if (GIVEN(gpus_per_node) && !GIVEN(domain_gpus) && base->domain_gpus == base->gpus_per_node) {
        c->domain_gpus = c->gpus_per_node;
    }
    if (!GIVEN(domain_gpus_used) &&
        (base->domain_gpus_used == base->domain_gpus || c->domain_gpus_used > c->domain_gpus)) {
        c->domain_gpus_used = c->domain_gpus;
    }
    if (GIVEN(scaleup_Bps)) {
        c->scaleup_effective_Bps = GIVEN(scaleup_effective_Bps) ? c->scaleup_effective_Bps : 0.0;
        if (!GIVEN(scaleup_pair_Bps)) {
            c->scaleup_pair_Bps = c->scaleup_Bps * base->scaleup_pair_Bps / base->scaleup_Bps;
        }
    }
    if (!GIVEN(scaleup_pair_effective_Bps)) { /* a mesh's links keep their share of all of them */
        if (GIVEN(scaleup_pair_Bps)) {
            c->scaleup_pair_effective_Bps = pair_reached_Bps(c);
        } else if (base->scaleup_pair_effective_Bps > 0.0) {
            c->scaleup_pair_effective_Bps *=
                mf_cluster_scaleup_reached_Bps(c, 1) / mf_cluster_scaleup_reached_Bps(base, 1);
        }
    }
    if (given(&gpu_section, gpu_seen, GPU(memory_Bps)) &&
        !given(&gpu_section, gpu_seen, GPU(memory_measured_Bps))) {
        c->gpu.memory_measured_Bps = 0.0;
    }
    for (size_t m = 0; m < MF_MATH_COUNT; m++) {
        if (given(&gpu_section, gpu_seen, GPU_OF(peak_flops, m)) &&
            !given(&gpu_section, gpu_seen, GPU_OF(measured_flops, m))) {
            c->gpu.measured_flops[m] = 0.0;
        }
    }
}

/* Figures that were neither given nor inherited. */
static void fill_in(mf_cluster *c, bool extends) {
    c->domain_gpus = c->domain_gpus > 0 ? c->domain_gpus : c->gpus_per_node;
    c->domain_gpus_used = c->domain_gpus_used > 0 ? c->domain_gpus_used : c->domain_gpus;
    c->scaleup_pair_Bps = c->scaleup_pair_Bps > 0.0 ? c->scaleup_pair_Bps : c->scaleup_Bps;
    if (c->scaleup_pair_effective_Bps <= 0.0 && !extends) {
        c->scaleup_pair_effective_Bps = pair_reached_Bps(c);
    }
    c->nic_efficiency = c->nic_efficiency > 0.0 ? c->nic_efficiency : 0.95;
    if (c->tiers == 0) {
        c->tiers = 1;
        c->tier[0] = (mf_tier){.gpus = INT64_MAX, .oversubscription = 1.0};
        snprintf(c->tier[0].name, sizeof c->tier[0].name, "network");
    }
    if (c->nic_Bps <= 0.0 && c->max_gpus <= 0.0) {
        c->max_gpus = (double)c->domain_gpus_used;
    }
}

static mf_status check(const mf_cluster *c, const mf_json_value *root, mf_err *e) {
    if (c->domain_gpus_used > c->domain_gpus) {
        return mf_json_fail(root, e, "\"domain_gpus_used\" %lld is more than \"domain_gpus\" %lld",
                            (long long)c->domain_gpus_used, (long long)c->domain_gpus);
    }
    if (c->scaleup_effective_Bps > c->scaleup_Bps || c->scaleup_pair_Bps > c->scaleup_Bps) {
        return mf_json_fail(root, e,
                            "\"scaleup_effective_Bps\" %g and \"scaleup_pair_Bps\" %g cannot "
                            "exceed \"scaleup_Bps\" %g",
                            c->scaleup_effective_Bps, c->scaleup_pair_Bps, c->scaleup_Bps);
    }
    if (c->scaleup_pair_effective_Bps > c->scaleup_pair_Bps) {
        return mf_json_fail(root, e,
                            "\"scaleup_pair_effective_Bps\" %g cannot exceed \"scaleup_pair_Bps\" "
                            "%g",
                            c->scaleup_pair_effective_Bps, c->scaleup_pair_Bps);
    }
    if (c->host_shared_Bps > 0.0 && c->host_shared_Bps < c->host_Bps) {
        return mf_json_fail(root, e,
                            "\"host_shared_Bps\" %g of a node is less than \"host_Bps\" %g, which "
                            "one of its GPUs takes alone",
                            c->host_shared_Bps, c->host_Bps);
    }
    for (int m = 0; m < MF_MATH_COUNT; m++) {
        if (c->gpu.measured_flops[m] > c->gpu.peak_flops[m]) {
            static const char *const names[] = {"fp32", "bf16", "fp8", "fp4"};
            return mf_json_fail(root, e, "\"measured_%s_flops\" %g exceeds the peak %g", names[m],
                                c->gpu.measured_flops[m], c->gpu.peak_flops[m]);
        }
    }
    if (c->gpu.memory_measured_Bps > c->gpu.memory_Bps) {
        return mf_json_fail(root, e, "\"memory_measured_Bps\" %g exceeds \"memory_Bps\" %g",
                            c->gpu.memory_measured_Bps, c->gpu.memory_Bps);
    }
    return MF_OK;
}

/* What "extends" names, first; *extends tells whether there is such a key. */
static mf_status read_base(const mf_json_value *root, const char *path, int depth, bool *extends,
                           mf_cluster *c, mf_err *e) {
    const char *base = NULL;
    mf_err why;
    mf_err_clear(&why);
    mf_status st = mf_json_opt_string(root, "extends", &base, e);
    *extends = base != NULL;
    if (st != MF_OK || base == NULL) {
        return st;
    }
    const mf_json_value *v = mf_json_find(root, "extends");
    if (depth == MF_CLUSTER_MAX_EXTENDS) {
        return mf_json_fail(v, e, "\"extends\": more than %d files deep: does it extend itself?",
                            MF_CLUSTER_MAX_EXTENDS);
    }
    st = mf_cluster_base(base, path, depth + 1, c, &why);
    if (st == MF_USAGE) {
        return mf_json_fail(v, e, "\"extends\": %s", why.text);
    }
    return st == MF_OK ? MF_OK : mf_err_set(e, st, "%s", why.text);
}

/* "sites/a.json" -> "a" */
static void name_after(const char *path, char *out, size_t size) {
    const char *slash = strrchr(path, '/');
    const char *base = slash != NULL ? slash + 1 : path;
    size_t n = strlen(base);
    n -= n > 5 && mf_text_ends_with(base, ".json") ? 5 : 0;
    snprintf(out, size, "%.*s", (int)(n < size ? n : size - 1), base);
    for (char *p = out; *p != '\0'; p++) { /* one line, whatever the file is called */
        *p = (unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f ? '_' : *p;
    }
}

mf_status mf_cluster_read(const mf_json *doc, const char *path, int depth, mf_cluster *out,
                          mf_err *e) {
    const mf_json_value *root = mf_json_root(doc);
    mf_cluster c, base;
    uint32_t seen = 0, gpu_seen = 0;
    bool extends = false;
    memset(&c, 0, sizeof c);
    mf_status st = mf_json_want(root, MF_JSON_OBJECT, e);
    st = st == MF_OK ? read_base(root, path, depth, &extends, &c, e) : st;
    base = c;
    if (st == MF_OK && path != NULL) {
        name_after(path, c.name, sizeof c.name);
    }
    st = st == MF_OK ? read_section(&cluster_section, root, &c, &seen, e) : st;
    st = st == MF_OK ? read_price(root, &c, e) : st;
    st = st == MF_OK ? read_name(root, "name", c.name, sizeof c.name, e) : st;
    st = st == MF_OK ? read_gpu(root, extends, &c.gpu, &gpu_seen, e) : st;
    st = st == MF_OK && !extends ? want_all(&cluster_section, root, seen, e) : st;
    st = st == MF_OK ? read_tiers(root, &c, e) : st;
    if (st != MF_OK) {
        return st;
    }
    if (extends) {
        follow(&c, &base, seen, gpu_seen);
    }
    fill_in(&c, extends);
    if (c.name[0] == '\0') {
        snprintf(c.name, sizeof c.name, "%s", c.gpu.name);
    }
    st = check(&c, root, e);
    if (st == MF_OK && !mf_cluster_is_cpu(&c)) {
        doubt_section(&gpu_section, mf_json_find(root, "gpu"), &c);
        doubt_section(&cluster_section, root, &c);
    }
    if (st == MF_OK) {
        *out = c;
    }
    return st;
}
