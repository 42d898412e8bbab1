/* rows.c - the published table read into models, clusters and layouts, by its own conventions. */
#include "bench/published/rows_internal.h"

#include "core/base/csv.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum column {
    C_ID,
    C_SOURCE,
    C_MODEL,
    C_SYSTEM,
    C_GPU,
    C_GPUS,
    C_PRECISION,
    C_SEQ,
    C_GBS,
    C_MBS,
    C_TP,
    C_CP,
    C_PP,
    C_VPP,
    C_EP,
    C_ETP,
    C_DP,
    C_RECOMPUTE,
    C_OFFLOAD,
    C_OVERLAP,
    C_DISPATCHER,
    C_GRAPH,
    C_TFLOPS,
    C_MFU,
    C_TOKENS,
    C_STEP,
    C_MEMORY,
    C_NOTES,
    C_COUNT
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Whole number of a field; `missing` when empty. */
static int64_t whole(const char *field, int64_t missing) {
    return *field ? (int64_t)llround(strtod(field, NULL)) : missing;
}

/* Does a step time contradict both other figures of its row, which agree with each other? They
 * stand then, two of three (card-015, card-016: by a factor of 2). */
static bool contradicted(const pub_row *r, const char *const f[C_COUNT]) {
    const mf_layout *l = &r->layout;
    if (*f[C_TOKENS] == '\0' || *f[C_TFLOPS] == '\0') {
        return false;
    }
    double per_gpu = strtod(f[C_TOKENS], NULL), step_s = strtod(f[C_STEP], NULL);
    double from_step = (double)l->gbs * (double)l->seq / (step_s * (double)l->gpus);
    double flops = strtod(f[C_TFLOPS], NULL) * 1e12 / mf_model_flops_per_token(&r->model, l->seq);
    return fabs(log(per_gpu / from_step)) > 0.5 && fabs(log(flops / per_gpu)) < 0.1;
}

/* Step time from what the row gives: itself, tokens/s, or TFLOP/s under the source's convention. */
static void read_truth(pub_row *r, const char *const f[C_COUNT]) {
    const mf_layout *l = &r->layout;
    double tokens = (double)l->gbs * (double)l->seq, gpus = (double)l->gpus;
    if (*f[C_STEP] && !contradicted(r, f)) {
        r->step_s = strtod(f[C_STEP], NULL);
    } else if (*f[C_TOKENS]) {
        r->step_s = tokens / (strtod(f[C_TOKENS], NULL) * gpus);
    } else if (*f[C_TFLOPS]) {
        double per_token = mf_model_flops_per_token(&r->model, l->seq);
        bool full = strcmp(r->source, "mpf") == 0 || strcmp(r->source, "nemo") == 0 ||
                    strcmp(r->source, "ll3") == 0 || pub_has(r->notes, "full-attention FLOP");
        if (full) { /* the other causal half */
            per_token += 3.0 * (double)(r->model.layers + r->model.mtp_layers) *
                         (double)r->model.heads *
                         (double)(r->model.head_dim + r->model.v_head_dim) * (double)l->seq;
        }
        r->step_s = tokens * per_token / (strtod(f[C_TFLOPS], NULL) * 1e12 * gpus);
    }
    if (*f[C_MEMORY]) {
        r->memory_B = strtod(f[C_MEMORY], NULL) * 1e9;
    }
    if (!(r->step_s > 0)) {
        pub_skip(r, "incomplete: no step time, tokens/s or TFLOP/s");
    }
}

/* FNV-1a over what must not leak between fit and judgement. */
static void split(pub_row *r) {
    char text[256];
    const mf_layout *l = &r->layout;
    snprintf(text, sizeof text, "%s %s %lld %lld %lld %lld %lld %lld %lld", r->model_name, r->gpu,
             (long long)l->gpus, (long long)l->tp, (long long)l->cp, (long long)l->pp,
             (long long)l->vpp, (long long)l->ep, (long long)l->etp);
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *p = text; *p; p++) {
        h = (h ^ (uint8_t)*p) * 0x100000001b3u;
    }
    r->held_out = (h >> 17) % 3 == 0;
    r->fold = (int)((h >> 37) % PUB_FOLDS);
}

/* Virtual stages that a row leaves unsaid: as many as divide, as the Folding paper uses; the Llama
 * 3 paper interleaves 126 layers and both ends. */
static void full_vpp(mf_layout *l, const mf_model *m) {
    int64_t micro = l->gbs / (l->mbs * (l->gpus / (l->tp * l->cp * l->pp)));
    int64_t units = m->layers % l->pp == 0 ? m->layers : m->layers + 2;
    if (l->pp > 1 && units % l->pp == 0 && micro % l->pp == 0) {
        l->vpp = units / l->pp;
    }
}

/* The shipped cluster of the row's GPUs, or one whose parts the source says are limited. */
static mf_status load_cluster(pub_row *r, const char *gpu, const char *system, mf_err *e) {
    size_t n = 0;
    for (; gpu[n] && n + 1 < sizeof r->cluster_name; n++) {
        r->cluster_name[n] = (char)tolower((unsigned char)gpu[n]);
    }
    r->cluster_name[n] = '\0';
    if (pub_has(system, "HBM2e, 500 W")) {
        snprintf(r->cluster_name, sizeof r->cluster_name, "bench/published/h100-500w.json");
    }
    return mf_cluster_load(r->cluster_name, &r->cluster, e);
}

static void read_layout(pub_row *r, const char *const f[C_COUNT]) {
    mf_layout *l = &r->layout;
    mf_layout_init(l);
    static const int required[] = {C_GPUS, C_SEQ, C_GBS, C_TP, C_CP, C_PP};
    for (size_t i = 0; i < COUNT(required); i++) {
        if (*f[required[i]] == '\0') {
            pub_skip(r, "incomplete: GPUs, sequence, batch or a degree is not stated");
            return;
        }
    }
    l->gpus = whole(f[C_GPUS], 0);
    l->seq = whole(f[C_SEQ], 0);
    l->gbs = whole(f[C_GBS], 0);
    l->mbs = whole(f[C_MBS], 1);
    l->tp = whole(f[C_TP], 1);
    l->cp = whole(f[C_CP], 1);
    l->pp = whole(f[C_PP], 1);
    l->vpp = whole(f[C_VPP], 1);
    l->ep = whole(f[C_EP], 1);
    l->etp = whole(f[C_ETP], 1);
    l->token_headroom = 1.0; /* forced balance, or capacity factor 1 */
    l->reserve = 0;
    if (r->moe && *f[C_EP] == '\0' && pub_has(f[C_DISPATCHER], "ep")) {
        pub_skip(r, "incomplete: a dispatcher, but no EP is stated");
        return;
    }
    r->unknown |= *f[C_MBS] ? 0 : PUB_UNKNOWN_MBS;
    /* A recipe that was found sets no VPP where it interleaves nothing. */
    bool recipe = pub_has(r->notes, "extras from recipe") || *pub_named_recipe(f[C_SOURCE])->graph;
    r->unknown |= *f[C_VPP] || l->pp == 1 || recipe ? 0 : PUB_UNKNOWN_VPP;
    if (l->gpus <= 0 || l->mbs <= 0 || l->gpus % (l->tp * l->cp * l->pp) != 0 ||
        l->gbs % (l->mbs * (l->gpus / (l->tp * l->cp * l->pp))) != 0) {
        pub_skip(r, "incomplete: the printed degrees do not multiply");
    }
}

static const char *stated(const char *field, const char *in_recipe) {
    return *field ? field : in_recipe;
}

/* A run may have overridden what its recipe says: the row itself still leaves it unsaid. */
static void mark_unsaid(pub_row *r, const char *const f[C_COUNT]) {
    static const struct {
        int column;
        unsigned bit;
        bool moe;
    } flags[] = {{C_RECOMPUTE, PUB_UNKNOWN_RECOMPUTE, false},
                 {C_GRAPH, PUB_UNKNOWN_GRAPH, false},
                 {C_OVERLAP, PUB_UNKNOWN_OVERLAP, true},
                 {C_DISPATCHER, PUB_UNKNOWN_DISPATCHER, true}};
    for (size_t i = 0; i < COUNT(flags) && r->in_recipe; i++) {
        bool asked = r->moe || !flags[i].moe;
        r->unknown |= asked && *f[flags[i].column] == '\0' ? flags[i].bit : 0;
    }
}

/* FSDP, and what the program that trained does differently (MF_TRAIT_*). */
static void read_program(pub_row *r, const char *const f[C_COUNT], const pub_recipe *recipe) {
    const bool titan = strcmp(r->source, "tt") == 0;
    const bool eager = titan && !pub_has(r->notes, "compile") &&
                       !pub_has(r->notes, "local batch 8"); /* torchtitan without torch.compile */
    unsigned traits = eager ? MF_TRAIT_UNFUSED_NORM | MF_TRAIT_UNFUSED_ROPE | MF_TRAIT_UNFUSED_ACT
                            : MF_TRAIT_NONE;
    traits |= pub_has(r->notes, "fused grouped MLP") ? MF_TRAIT_FUSED_EXPERTS : 0;
    traits |= titan && pub_has(f[C_SOURCE], "202412") ? MF_TRAIT_UNFUSED_LOSS : 0; /* then */
    traits |= titan && pub_has(f[C_PRECISION], "rowwise") ? MF_TRAIT_ROW_SCALES : 0;
    r->layout.traits |= traits | recipe->traits;
    r->fsdp = pub_has(r->notes, "FSDP") || pub_has(f[C_OVERLAP], "FSDP") ||
              strcmp(r->software, "pytorch-fsdp") == 0;
    /* Llama 3: parameters stay gathered for the step ("ZeRO-2-like, no reshard"); so do
     * torchtitan's under pipeline parallelism (reshard_after_forward). */
    if (pub_has(f[C_OVERLAP], "ZeRO-2-like") || strcmp(r->source, "ll3") == 0 ||
        (titan && r->layout.pp > 1)) {
        r->fsdp = false;
    }
    if (r->fsdp) {
        r->layout.zero = r->layout.expert_zero = 3;
    }
}

static void read_row(pub_row *r, const char *const f[C_COUNT], mf_err *e) {
    memset(r, 0, sizeof *r);
    snprintf(r->id, sizeof r->id, "%s", f[C_ID]);
    snprintf(r->source, sizeof r->source, "%.*s", (int)strcspn(f[C_ID], "-"), f[C_ID]);
    snprintf(r->model_name, sizeof r->model_name, "%s", f[C_MODEL]);
    snprintf(r->gpu, sizeof r->gpu, "%s", f[C_GPU]);
    snprintf(r->precision, sizeof r->precision, "%s", f[C_PRECISION]);
    snprintf(r->notes, sizeof r->notes, "%s", f[C_NOTES]);
    pub_read_reason(r);
    if (pub_has(r->notes, "LoRA") || pub_has(r->notes, "LORA") || pub_has(r->notes, "SFT")) {
        pub_skip(r, "fine-tuning (SFT, LoRA)");
    }
    pub_read_software(r, f[C_SOURCE]);
    pub_read_model(r, f[C_MODEL], f[C_ID], e);
    if (r->skipped[0]) {
        return;
    }
    if (load_cluster(r, f[C_GPU], f[C_SYSTEM], e) != MF_OK) {
        mf_err_clear(e);
        pub_skip(r, "accelerator not shipped");
        return;
    }
    read_layout(r, f);
    if (r->skipped[0]) {
        return;
    }
    const pub_recipe *recipe = pub_named_recipe(f[C_SOURCE]);
    if (pub_has(r->notes, "token drop") || pub_has(r->notes, "tokendrop") || recipe->drops) {
        r->layout.capacity_factor = 1;
        r->layout.pad_to_capacity = true;
    }
    read_program(r, f, recipe);
    r->layout.moments_bf16 =
        pub_has(r->notes, "BF16 optimizer moments") || pub_has(r->notes, "BF16 Adam moments");
    r->layout.fp8_attention = pub_has(r->notes, "FP8 attention");
    pub_read_cp_type(r);
    if ((strcmp(r->source, "mpf") == 0 || strcmp(r->source, "ll3") == 0) && !r->fsdp) {
        full_vpp(&r->layout, &r->model);
    }
    pub_read_precision(r, f[C_PRECISION], r->cluster.gpu.arch);
    pub_read_recipe_defaults(r);
    r->layout.grads_bf16 |= recipe->grads_bf16;
    r->in_recipe = *recipe->graph != '\0';
    pub_read_recompute(r, stated(f[C_RECOMPUTE], recipe->recompute));
    pub_read_offload(r, f[C_OFFLOAD]);
    pub_read_run(r, stated(f[C_OVERLAP], recipe->overlap),
                 stated(f[C_DISPATCHER], recipe->dispatcher), stated(f[C_GRAPH], recipe->graph));
    mark_unsaid(r, f);
    read_truth(r, f);
    split(r); /* by the layout as printed */
    /* The Folding paper's older methods: ETP is TP, and not printed. */
    r->unfolded =
        strcmp(r->source, "mpf") == 0 && *f[C_ETP] == '\0' && !pub_has(r->notes, "Folding");
    mf_err_clear(e);
    if (r->skipped[0] == '\0' && mf_layout_resolve(&r->layout, &r->model, e) != MF_OK) {
        char why[96];
        snprintf(why, sizeof why, "layout: %.80s", e->text);
        pub_skip(r, why);
        mf_err_clear(e);
    }
}

mf_status pub_rows_load(const char *path, pub_row **rows, int *count, mf_err *e) {
    mf_csv *csv = NULL;
    *rows = NULL;
    *count = 0;
    int capacity = 0;
    mf_status status = mf_csv_open(path, &csv, e);
    bool more = false;
    if (status == MF_OK) {
        status = mf_csv_next(csv, &more, e); /* header */
    }
    if (status == MF_OK && (!more || mf_csv_fields(csv) != C_COUNT)) {
        status = mf_csv_fail(csv, 0, e, "expected the %d columns of the published table", C_COUNT);
    }
    while (status == MF_OK && (status = mf_csv_next(csv, &more, e)) == MF_OK && more) {
        if (*count == capacity) {
            capacity = capacity ? 2 * capacity : 128;
            pub_row *grown = realloc(*rows, (size_t)capacity * sizeof *grown);
            if (grown == NULL) {
                status = mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
                break;
            }
            *rows = grown;
        }
        const char *f[C_COUNT];
        for (int i = 0; i < C_COUNT; i++) {
            f[i] = mf_csv_field(csv, i);
        }
        read_row(&(*rows)[(*count)++], f, e);
    }
    if (status == MF_OK) {
        pub_read_neighbours(*rows, *count);
    }
    for (int i = 0; i < *count && status == MF_OK; i++) {
        status = (*rows)[i].skipped[0] ? MF_OK : pub_read_command(&(*rows)[i], e);
    }
    mf_csv_close(csv);
    return status;
}

void pub_rows_free(pub_row *rows, int count) {
    for (int i = 0; i < count; i++) {
        if (rows[i].job != NULL) {
            mf_job_clear(rows[i].job);
        }
        free(rows[i].job);
    }
    free(rows);
}
