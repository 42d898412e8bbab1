/* layout.c - spellings of a layout's choices and the rules that a layout has to keep. */
#include "core/layout/layout.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct word {
    const char *text;
    int value;
} word;

#define X(name, text, ...) {text, MF_SCHED_##name},
static const word schedule_words[] = {MF_SCHEDULE_MAP(X)};
#undef X
#define X(name, text, ...) [MF_SCHED_##name] = {__VA_ARGS__},
const mf_schedule_rule mf_schedule_rules[MF_SCHED_COUNT] = {MF_SCHEDULE_MAP(X)};
#undef X
#define X(name, text) {text, MF_DISPATCH_##name},
static const word dispatcher_words[] = {MF_DISPATCHER_MAP(X)};
#undef X
#define X(name, text) {text, MF_CP_##name},
static const word cp_words[] = {MF_CP_TYPE_MAP(X)};
#undef X
#define X(name, text) {text, MF_PREC_##name},
static const word precision_words[] = {MF_PRECISION_MAP(X)};
#undef X
#define X(name, text) {text, MF_GRAPH_##name},
static const word graph_words[] = {MF_GRAPH_MAP(X)};
#undef X
#define X(name, text) {text, MF_AUX_##name},
static const word aux_scope_words[] = {MF_AUX_SCOPE_MAP(X)};
#undef X
#define X(name, text, bit) {text, 1 << (bit)},
static const word recompute_words[] = {MF_RECOMPUTE_MAP(X){"selective", MF_RECOMPUTE_CORE_ATTN},
                                       {"full", MF_RECOMPUTE_LAYER}};
static const word offload_words[] = {MF_OFFLOAD_MAP(X)};
static const word overlap_words[] = {MF_OVERLAP_MAP(X)};
static const word trait_words[] = {MF_TRAIT_MAP(X)};
#undef X

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static mf_status unknown_word(const char *what, const char *s, size_t length, const word *words,
                              size_t count, mf_err *e) {
    char list[400] = "", given[64];
    const char *known[32];
    for (size_t i = 0; i < count && i < COUNT(known); i++) {
        known[i] = words[i].text;
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? " " : "", words[i].text);
    }
    snprintf(given, sizeof given, "%.*s", (int)length, s);
    const char *near = mf_nearest_word(given, known, count);
    return mf_err_set(e, MF_USAGE, "unknown %s \"%s\"%s%s%s: expected one of %s", what, given,
                      near ? " (did you mean \"" : "", near ? near : "", near ? "\"?)" : "", list);
}

static mf_status parse_word(const char *what, const char *s, const word *words, size_t count,
                            int *out, mf_err *e) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(s, words[i].text) == 0) {
            *out = words[i].value;
            return MF_OK;
        }
    }
    return unknown_word(what, s, strlen(s), words, count, e);
}

/* Comma list of words into a bit mask; "none" alone is the empty set. */
static mf_status parse_mask(const char *what, const char *s, const word *words, size_t count,
                            unsigned *out, mf_err *e) {
    unsigned mask = 0;
    if (strcmp(s, "none") != 0) {
        for (const char *p = s;; p++) {
            size_t length = strcspn(p, ",");
            size_t i = 0;
            while (i < count &&
                   (strlen(words[i].text) != length || strncmp(p, words[i].text, length) != 0)) {
                i++;
            }
            if (i == count && length == 4 && strncmp(p, "none", 4) == 0) {
                return mf_err_set(e, MF_USAGE, "%s \"none\" stands alone, got \"%s\"", what, s);
            }
            if (i == count) {
                return unknown_word(what, p, length, words, count, e);
            }
            mask |= (unsigned)words[i].value;
            p += length;
            if (*p == '\0') {
                break;
            }
        }
    }
    *out = mask;
    return MF_OK;
}

static void format_mask(unsigned mask, const word *words, size_t count, char *out, size_t size) {
    if (size == 0) {
        return;
    }
    out[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        if (mask & (unsigned)words[i].value) {
            size_t used = strlen(out);
            snprintf(out + used, size - used, "%s%s", used ? "," : "", words[i].text);
        }
    }
    if (out[0] == '\0') {
        snprintf(out, size, "none");
    }
}

#define TEXT_OF(function, type, words)                                                             \
    const char *function(type v) {                                                                 \
        return (size_t)v < COUNT(words) ? (words)[v].text : "?";                                   \
    }
TEXT_OF(mf_schedule_text, mf_schedule_kind, schedule_words)
TEXT_OF(mf_dispatcher_text, mf_dispatcher, dispatcher_words)
TEXT_OF(mf_cp_type_text, mf_cp_type, cp_words)
TEXT_OF(mf_aux_scope_text, mf_aux_scope, aux_scope_words)
TEXT_OF(mf_precision_text, mf_precision, precision_words)
TEXT_OF(mf_graph_text, mf_graph_mode, graph_words)

#define PARSE_WORD(function, type, what, words)                                                    \
    mf_status function(const char *s, type *out, mf_err *e) {                                      \
        int value = 0;                                                                             \
        mf_status status = parse_word(what, s, words, COUNT(words), &value, e);                    \
        if (status == MF_OK) {                                                                     \
            *out = (type)value;                                                                    \
        }                                                                                          \
        return status;                                                                             \
    }
PARSE_WORD(mf_schedule_parse, mf_schedule_kind, "schedule", schedule_words)
PARSE_WORD(mf_dispatcher_parse, mf_dispatcher, "dispatcher", dispatcher_words)
PARSE_WORD(mf_cp_type_parse, mf_cp_type, "context-parallel type", cp_words)
PARSE_WORD(mf_aux_scope_parse, mf_aux_scope, "scope of the auxiliary loss", aux_scope_words)
PARSE_WORD(mf_precision_parse, mf_precision, "precision", precision_words)
PARSE_WORD(mf_graph_parse, mf_graph_mode, "graph mode", graph_words)

#define PARSE_MASK(function, type, what, words)                                                    \
    mf_status function(const char *s, type *out, mf_err *e) {                                      \
        unsigned mask = 0;                                                                         \
        mf_status status = parse_mask(what, s, words, COUNT(words), &mask, e);                     \
        if (status == MF_OK) {                                                                     \
            *out = (type)mask;                                                                     \
        }                                                                                          \
        return status;                                                                             \
    }
PARSE_MASK(mf_recompute_parse, uint16_t, "recompute module", recompute_words)
PARSE_MASK(mf_offload_parse, uint16_t, "offload module", offload_words)
PARSE_MASK(mf_overlap_parse, uint8_t, "overlap", overlap_words)
PARSE_MASK(mf_traits_parse, uint32_t, "trait", trait_words)

/* The last two recompute words are synonyms and are not printed. */
void mf_recompute_format(uint16_t mask, char *out, size_t size) {
    format_mask(mask, recompute_words, COUNT(recompute_words) - 2, out, size);
}

void mf_offload_format(uint16_t mask, char *out, size_t size) {
    format_mask(mask, offload_words, COUNT(offload_words), out, size);
}

void mf_overlap_format(uint8_t mask, char *out, size_t size) {
    format_mask(mask, overlap_words, COUNT(overlap_words), out, size);
}

void mf_traits_format(uint32_t mask, char *out, size_t size) {
    format_mask(mask, trait_words, COUNT(trait_words), out, size);
}

const char *mf_layout_not_executed(const mf_layout *l, bool fp32) {
    return l->grads_bf16                  ? "gradients in bf16 (grad_dtype)"
           : l->precision == MF_PREC_BF16 ? NULL
           : l->precision != MF_PREC_FP32 ? "precisions other than fp32 and bf16"
           : !fp32                        ? "fp32"
                                          : NULL;
}

void mf_layout_init(mf_layout *l) {
    *l = (mf_layout){
        .gpus = 1,
        .tp = 1,
        .cp = 1,
        .pp = 1,
        .vpp = 1,
        .ep = 1,
        .etp = 1,
        .mbs = 1,
        .gbs = 1,
        .seq = 4096,
        .dp = 1,
        .edp = 1,
        .micro_batches = 1,
        .schedule = MF_SCHED_1F1B,
        .dispatcher = MF_DISPATCH_FUSED,
        .cp_type = MF_CP_RING,
        .precision = MF_PREC_BF16,
        .graph = MF_GRAPH_NONE,
        .overlap = MF_OVERLAP_DP | MF_OVERLAP_PP,
        .zero = 1,
        .expert_zero = 1,
        .offload_share = 1.0,
        .token_headroom = 1.25,
        .reserve = 0.05,
    };
}

/* A rule that breaks writes its text to e (when given) and ends the check. */
#define RULE(holds, ...)                                                                           \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            return e ? mf_err_set(e, MF_LAYOUT, __VA_ARGS__) : MF_LAYOUT;                          \
        }                                                                                          \
    } while (0)

#define LL(x) ((long long)(x))

static mf_status check_degrees(mf_layout *l, mf_err *e) {
    const struct {
        const char *name;
        int64_t value;
    } degree[] = {{"GPUs", l->gpus},
                  {"TP", l->tp},
                  {"CP", l->cp},
                  {"PP", l->pp},
                  {"VPP", l->vpp},
                  {"EP", l->ep},
                  {"ETP", l->etp},
                  {"micro-batch", l->mbs},
                  {"global batch", l->gbs},
                  {"sequence length", l->seq}};
    for (size_t i = 0; i < COUNT(degree); i++) {
        RULE(degree[i].value >= 1 && degree[i].value <= (1 << 28),
             "%s must lie between 1 and 2^28, got %lld", degree[i].name, LL(degree[i].value));
    }
    /* three times 2^28 is more than an int64_t holds */
    double dense = (double)l->tp * (double)l->cp * (double)l->pp;
    double expert = (double)l->etp * (double)l->ep * (double)l->pp;
    RULE(dense <= (double)l->gpus && l->gpus % (l->tp * l->cp * l->pp) == 0,
         "TP %lld x CP %lld x PP %lld = %.0f does not divide the %lld GPUs", LL(l->tp), LL(l->cp),
         LL(l->pp), dense, LL(l->gpus));
    RULE(expert <= (double)l->gpus && l->gpus % (l->etp * l->ep * l->pp) == 0,
         "ETP %lld x EP %lld x PP %lld = %.0f does not divide the %lld GPUs", LL(l->etp), LL(l->ep),
         LL(l->pp), expert, LL(l->gpus));
    l->dp = l->gpus / (l->tp * l->cp * l->pp);
    l->edp = l->gpus / (l->etp * l->ep * l->pp);
    RULE(l->gbs % (l->mbs * l->dp) == 0,
         "micro-batch %lld x DP %lld = %lld does not divide the global batch %lld", LL(l->mbs),
         LL(l->dp), LL(l->mbs * l->dp), LL(l->gbs));
    l->micro_batches = l->gbs / (l->mbs * l->dp);
    return MF_OK;
}

/* Mixers with a state: heads are split over TP, and over CP, which exchanges them for sequence. */
static mf_status check_mixer(const mf_layout *l, const mf_model *m, const mf_layer_class *x,
                             mf_err *e) {
    if (x->mixer == MF_MIXER_COMPRESSED) {
        RULE(l->cp == 1 || l->cp_type == MF_CP_ALLGATHER,
             "CP %lld: compressed keys are those of the whole samples (--cp-type allgather)",
             LL(l->cp));
        RULE(m->heads % l->tp == 0 && m->o_groups % l->tp == 0,
             "TP %lld does not divide the %lld query heads in %lld output groups", LL(l->tp),
             LL(m->heads), LL(m->o_groups));
        return MF_OK;
    }
    const mf_mixer_shape *s = &m->mixer;
    int64_t ranks = l->tp * l->cp;
    RULE(x->mixer != MF_MIXER_KDA || l->cp == 1,
         "CP %lld: delta attention with decays by channel has no context parallelism", LL(l->cp));
    RULE(
        s->key_heads % ranks == 0 && s->value_heads % ranks == 0,
        "TP %lld x CP %lld does not divide the %lld key heads (groups) and %lld value heads of the "
        "linear mixers",
        LL(l->tp), LL(l->cp), LL(s->key_heads), LL(s->value_heads));
    return MF_OK;
}

/* Heads of the layers of a class, split over TP and, where CP exchanges them, over CP. */
static mf_status check_heads(const mf_layout *l, const mf_model *m, const mf_layer_class *x,
                             mf_err *e) {
    int64_t heads = mf_model_heads(m, x), kv_heads = mf_model_kv_heads(m, x);
    if (x->mixer == MF_MIXER_NONE) {
        return MF_OK;
    }
    if (x->mixer != MF_MIXER_ATTENTION) {
        return check_mixer(l, m, x, e);
    }
    RULE(m->index_topk == 0 || l->cp == 1 || l->cp_type == MF_CP_ALLGATHER,
         "CP %lld: sparse attention wants keys of the whole samples (--cp-type allgather)",
         LL(l->cp));
    RULE(heads % l->tp == 0, "TP %lld does not divide the %lld query heads", LL(l->tp), LL(heads));
    if (m->attn == MF_ATTN_GQA) {
        RULE(kv_heads % l->tp == 0 || l->tp % kv_heads == 0,
             "TP %lld and the %lld KV heads: one must divide the other", LL(l->tp), LL(kv_heads));
    }
    return MF_OK;
}

static mf_status check_model(const mf_layout *l, const mf_model *m, mf_err *e) {
    if (m->experts > 0) {
        RULE(m->experts % l->ep == 0, "EP %lld does not divide the %lld experts", LL(l->ep),
             LL(m->experts));
        RULE(m->moe_ffn % l->etp == 0, "ETP %lld does not divide the expert FFN width %lld",
             LL(l->etp), LL(m->moe_ffn));
    } else {
        RULE(l->ep == 1 && l->etp == 1, "EP %lld x ETP %lld: %s has no experts, both must be 1",
             LL(l->ep), LL(l->etp), m->name);
    }
    static const mf_layer_class plain;
    mf_status status = check_heads(l, m, &plain, e);
    for (int i = 0; i < m->classes && status == MF_OK; i++) {
        status = check_heads(l, m, &m->layer_classes[i], e);
    }
    if (status != MF_OK) {
        return status;
    }
    RULE(m->ffn % l->tp == 0, "TP %lld does not divide the FFN width %lld", LL(l->tp), LL(m->ffn));
    RULE(m->shared_ffn % l->tp == 0, "TP %lld does not divide the shared-expert width %lld",
         LL(l->tp), LL(m->shared_ffn));
    RULE(l->cp == 1 || l->seq % (2 * l->cp) == 0,
         "2 x CP %lld does not divide the sequence length %lld", LL(l->cp), LL(l->seq));
    RULE(l->seq % (l->tp * l->cp) == 0,
         "TP %lld x CP %lld does not divide the sequence length %lld", LL(l->tp), LL(l->cp),
         LL(l->seq));
    RULE(l->cp <= MF_CP_RING_MAX || (l->cp_type != MF_CP_RING && l->cp_type != MF_CP_HIERARCHICAL),
         "%s CP %lld: a ring takes at most %d ranks (all-gather CP takes more)",
         mf_cp_type_text(l->cp_type), LL(l->cp), MF_CP_RING_MAX);
    for (int i = 0; i < m->classes || i == 0; i++) {
        int64_t heads = mf_model_heads(m, &m->layer_classes[i]) / l->tp;
        RULE(l->cp == 1 || l->cp_type != MF_CP_ALLTOALL || heads % l->cp == 0,
             "all-to-all CP %lld does not divide the %lld heads of a TP rank", LL(l->cp),
             LL(heads));
    }
    return MF_OK;
}

static mf_status check_schedule(const mf_layout *l, const mf_model *m, mf_err *e) {
    int64_t positions = m->layers + m->mtp_layers + 2;
    RULE(l->pp * l->vpp <= positions,
         "PP %lld x VPP %lld: %s has only %lld layers and ends to place", LL(l->pp), LL(l->vpp),
         m->name, LL(positions));
    RULE(l->micro_batches * l->pp * l->vpp <= MF_LAYOUT_MAX_PASSES,
         "%lld micro-batches x PP %lld x VPP %lld: more than %d passes in a step; a larger "
         "micro-batch or more data parallelism makes fewer",
         LL(l->micro_batches), LL(l->pp), LL(l->vpp), MF_LAYOUT_MAX_PASSES);
    RULE(
        l->micro_batches * positions <= MF_LAYOUT_MAX_PASSES * l->pp,
        "%lld micro-batches of %lld layers and ends on %lld stages: more than %d blocks of a stage "
        "in a step; a larger micro-batch or more data parallelism makes fewer",
        LL(l->micro_batches), LL(positions), LL(l->pp), MF_LAYOUT_MAX_PASSES);
    const char *name = mf_schedule_text(l->schedule);
    const mf_schedule_rule *rule = &mf_schedule_rules[l->schedule];
    RULE(rule->most_vpp != 0 || (l->vpp >= rule->least_vpp && l->pp >= rule->least_pp),
         "schedule %s takes PP and VPP of at least %lld, got %lld, %lld", name, LL(rule->least_pp),
         LL(l->pp), LL(l->vpp));
    RULE(rule->most_vpp == 0 || l->vpp == rule->most_vpp, "schedule %s takes VPP %lld, got %lld%s",
         name, LL(rule->most_vpp), LL(l->vpp),
         rule->most_vpp == 1 ? " (interleaved takes more)" : "");
    RULE((rule->does & MF_SCHEDULE_GROUPS) == 0 || l->vpp == 1 || l->micro_batches % l->pp == 0,
         "PP %lld does not divide the %lld micro-batches (%s%s)", LL(l->pp), LL(l->micro_batches),
         name, rule->least_vpp == 1 ? " with VPP > 1" : "");
    RULE(l->pp >= rule->least_pp, "schedule %s takes PP of at least %lld", name,
         LL(rule->least_pp));
    RULE(l->zero <= 3 && l->expert_zero <= 3, "ZeRO levels must lie between 0 and 3, got %d and %d",
         (int)l->zero, (int)l->expert_zero);
    RULE(l->capacity_factor >= 0.0, "capacity factor must not be negative, got %g",
         l->capacity_factor);
    RULE(!l->pad_to_capacity || l->capacity_factor > 0.0,
         "rows are padded to a capacity: the capacity factor must be above 0, got %g",
         l->capacity_factor);
    RULE(l->token_headroom >= 1.0, "token headroom must be at least 1, got %g", l->token_headroom);
    RULE(l->reserve >= 0.0 && l->reserve < 1.0, "reserve must lie in [0, 1), got %g", l->reserve);
    RULE(!l->grads_bf16 || l->precision != MF_PREC_FP32,
         "gradients of FP32 weights accumulate in fp32, got %s", "bf16");
    RULE(l->offload_optimizer >= 0.0 && l->offload_optimizer <= 1.0,
         "optimizer offload must lie in [0, 1], got %g", l->offload_optimizer);
    RULE(l->offload_share >= 0.0 && l->offload_share <= 1.0,
         "share of offloading layers must lie in [0, 1], got %g", l->offload_share);
    return MF_OK;
}

double mf_layout_asked_headroom(const mf_layout *l) {
    return l->headroom_worst_case ? (double)l->ep : l->token_headroom;
}

double mf_layout_token_headroom(const mf_layout *l) {
    return fmin(mf_layout_asked_headroom(l), (double)l->ep);
}

int64_t mf_layout_slot_rows(const mf_layout *l, int64_t rows) {
    return (int64_t)((double)rows * mf_layout_token_headroom(l)) / l->ep;
}

double mf_layout_gradient_B(const mf_layout *l) {
    return l->grads_bf16 ? 2.0 : 4.0;
}

mf_status mf_layout_resolve(mf_layout *l, const mf_model *m, mf_err *e) {
    mf_status status = check_degrees(l, e);
    if (status == MF_OK) {
        status = check_model(l, m, e);
    }
    if (status == MF_OK) {
        status = check_schedule(l, m, e);
    }
    return status;
}

int64_t mf_layout_capacity(const mf_layout *l, const mf_model *m) {
    if (!(l->capacity_factor > 0.0) || m->experts == 0) {
        return 0;
    }
    double choices = (double)(m->top_k * l->seq) / (double)m->experts;
    return (int64_t)ceil(l->capacity_factor * choices);
}

static int64_t common_divisor(int64_t a, int64_t b) {
    return b == 0 ? a : common_divisor(b, a % b);
}

/* A group is `many` ranks in a row, tokens of a sample lie on `of_sample` ranks in a row; both
 * begin at multiples of their sizes. */
static int64_t samples_touched(int64_t many, int64_t of_sample) {
    return (of_sample - common_divisor(many, of_sample) + many - 1) / of_sample + 1;
}

int64_t mf_layout_padded_rows(const mf_layout *l, const mf_model *m) {
    int64_t capacity = l->pad_to_capacity ? mf_layout_capacity(l, m) : 0, ranks = l->ep * l->etp;
    capacity = capacity < l->seq ? capacity : l->seq;
    int64_t rows = capacity * l->mbs * samples_touched(ranks, l->tp * l->cp);
    int64_t own = l->mbs * l->seq / (l->tp * l->cp), tokens = own * ranks;
    if (capacity > 0 && ((l->traits | l->software_traits) & MF_TRAIT_RANK_CAPACITY)) {
        double choices = (double)(m->top_k * own) / (double)m->experts;
        rows = (int64_t)ceil(l->capacity_factor * choices) * ranks;
    }
    return rows < tokens ? rows : tokens;
}

bool mf_layout_valid(mf_layout *l, const mf_model *m) {
    return mf_layout_resolve(l, m, NULL) == MF_OK;
}
