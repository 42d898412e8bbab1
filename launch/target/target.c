/* target.c - what Megatron-LM and Megatron-Bridge can express, and the step from a plan to it.
 *
 * Facts: validate_args in megatron/training/arguments.py, __post_init__ of
 * megatron/core/transformer/transformer_config.py, and
 * megatron/core/transformer/pipeline_parallel_layer_layout.py, at the commits below. Bridge builds
 * its models from Megatron-Core, so that one set of rules holds for both but where a step says so.
 */
#include "launch/target/target.h"

#include "core/base/json.h"

#include <stdio.h>
#include <string.h>

static const mf_target_info infos[MF_TARGET_COUNT] = {
    [MF_TARGET_MEGATRON] = {"megatron", "Megatron-LM",
                            "d98e8a64ddf34856e74b24714e3bedb2f5a39553 (2026-08-22)"},
    [MF_TARGET_BRIDGE] = {"bridge", "Megatron-Bridge",
                          "067f987df03b8355b03192d88d70f1709fedf51a (2026-08-22)"},
};

const mf_target_info *mf_target_info_of(mf_target t) {
    return &infos[t];
}

mf_status mf_target_parse(const char *word, mf_target *out, mf_err *e) {
    const char *known[MF_TARGET_COUNT];
    for (int t = 0; t < MF_TARGET_COUNT; t++) {
        known[t] = infos[t].word;
        if (strcmp(word, known[t]) == 0) {
            *out = (mf_target)t;
            return MF_OK;
        }
    }
    const char *near = mf_nearest_word(word, known, MF_TARGET_COUNT);
    return mf_err_set(e, MF_USAGE, "unknown format \"%s\"%s%s%s: expected one of megatron bridge",
                      word, near != NULL ? " (did you mean \"" : "", near != NULL ? near : "",
                      near != NULL ? "\"?)" : "");
}

/* --- steps: each returns whether it changed the plan ------------------------------------------ */

typedef struct step_input {
    mf_target target;
    const mf_model *model;
    const mf_common_choice *instead; /* of choices by layer; NULL: what any of them recomputes */
} step_input;

#define SAY(c, ...) snprintf((c)->why, sizeof(c)->why, __VA_ARGS__)

static void plain_schedule(mf_layout *l) {
    l->schedule = l->vpp > 1 ? MF_SCHED_INTERLEAVED : MF_SCHED_1F1B;
}

/* Interleaved 1F1B needs whole rounds of micro-batches; without, chunks of a stage become one. */
static void unroll_chunks(const step_input *in, mf_plan *p) {
    mf_layout *l = &p->layout;
    const mf_assignment old = p->assignment;
    if (l->vpp == 1 || (l->pp > 1 && l->micro_batches % l->pp == 0)) {
        return;
    }
    l->vpp = 1;
    if (mf_assignment_even(in->model, l, &p->assignment, NULL) == MF_OK) {
        memcpy(p->assignment.memory, old.memory, sizeof old.memory);
    }
}

static bool concede_schedule(const step_input *in, mf_plan *p, mf_concession *c) {
    mf_layout *l = &p->layout;
    const mf_schedule_kind asked = l->schedule;
    const char *why = "there is none like it";
    switch (asked) {
    case MF_SCHED_1F1B:
    case MF_SCHED_INTERLEAVED:
        return false;
    case MF_SCHED_MERGED:
        if (l->ep == 1) {
            why = "expert communication overlaps with EP > 1 alone";
        } else if (l->pp > 1 && l->vpp == 1) {
            why = "with PP > 1 it asks for VPP > 1";
        } else if (in->model->mtp_layers > 1) {
            why = "it takes one MTP layer at most";
        } else if (l->dispatcher == MF_DISPATCH_ALLGATHER) {
            why = "it takes no all-gather dispatcher";
        } else if (l->precision == MF_PREC_FP32) {
            why = "it takes no FP32";
        } else {
            return false;
        }
        break;
    case MF_SCHED_GPIPE:
    case MF_SCHED_ZB_H1:
    case MF_SCHED_ZB_V:
    case MF_SCHED_COUNT:
        break;
    }
    unroll_chunks(in, p);
    plain_schedule(l);
    SAY(c, "schedule %s: %s; %s runs instead", mf_schedule_text(asked), why,
        l->vpp > 1 ? "interleaved 1F1B" : "1F1B");
    return true;
}

/* Hybrids are a model class of their own, which has no merged passes; Megatron-Bridge's asserts
 * that there is one chunk a stage. */
static bool concede_hybrid(const step_input *in, mf_plan *p, mf_concession *c) {
    mf_layout *l = &p->layout;
    const mf_assignment old = p->assignment;
    const bool merged = l->schedule == MF_SCHED_MERGED;
    const bool chunks = in->target == MF_TARGET_BRIDGE && l->vpp > 1;
    if (!mf_target_is_hybrid(in->model) || (!merged && !chunks)) {
        return false;
    }
    if (chunks) {
        l->vpp = 1;
        if (mf_assignment_even(in->model, l, &p->assignment, NULL) == MF_OK) {
            memcpy(p->assignment.memory, old.memory, sizeof old.memory);
        }
    } else {
        unroll_chunks(in, p);
    }
    plain_schedule(l);
    SAY(c, "%s%s%s: hybrids have none; %s runs instead", merged ? "merged passes" : "",
        merged && chunks ? " and " : "", chunks ? "several chunks a stage" : "",
        l->vpp > 1 ? "interleaved 1F1B" : "1F1B");
    return true;
}

/* MTP depths and head: megatron/core places all depths in the last chunk of one stage, not of the
 * first one. */
static bool concede_mtp(const step_input *in, mf_plan *p, mf_concession *c) {
    mf_assignment *a = &p->assignment;
    const mf_layout *l = &p->layout;
    int first = 1 + (int)in->model->layers, last = first + (int)in->model->mtp_layers - 1;
    int home = -1, other = -1;
    if (in->model->mtp_layers == 0 || l->pp == 1) {
        return false;
    }
    for (int v = 0; v < a->vstages; v++) {
        home = a->first[v] <= first && first < a->first[v + 1] ? v : home;
        other = a->first[v] <= last && last < a->first[v + 1] ? v : other;
    }
    bool last_chunk = home / (int)l->pp == (int)l->vpp - 1;
    bool first_stage = home % (int)l->pp == 0 && l->vpp > 1;
    bool hybrid = mf_target_is_hybrid(in->model); /* whose letters end with them */
    if (home == other && last_chunk && !first_stage && (!hybrid || home == a->vstages - 1)) {
        return false;
    }
    /* All of them where the head stands. */
    for (int v = 0; v < a->vstages; v++) {
        if (a->first[v] > first && v > 0) {
            a->first[v] = v == a->vstages - 1 ? first : a->first[v];
        }
    }
    for (int v = a->vstages - 1; v > 0 && a->first[v] <= a->first[v - 1]; v--) {
        a->first[v - 1] = a->first[v] - 1;
    }
    SAY(c, "MTP layers in several chunks, or in a chunk that is not its stage's last: all of them "
           "stand with the head instead");
    return true;
}

int mf_target_chunk_starts(const mf_model *m, int *start) {
    int count = 0;
    for (int at = 1; at < mf_model_positions(m); at++) {
        if (at == 1 || mf_position_kind_of(m, at) != MF_POS_LAYER || m->index_topk == 0 ||
            mf_target_class_at(m, at)->indexer) {
            if (start != NULL) {
                start[count] = at;
            }
            count++;
        }
    }
    return count;
}

/* As many chunks a stage as there are beginnings for. */
static bool concede_chunks(const step_input *in, mf_plan *p, mf_concession *c) {
    mf_layout *l = &p->layout;
    const mf_assignment old = p->assignment;
    const int64_t most = mf_target_chunk_starts(in->model, NULL) + 1, asked = l->vpp;
    while (l->vpp > 1 && (l->pp * l->vpp > most || asked % l->vpp != 0)) {
        l->vpp--;
    }
    if (l->vpp == asked) {
        return false;
    }
    if (l->vpp == 1) {
        plain_schedule(l);
    }
    if (mf_assignment_even(in->model, l, &p->assignment, NULL) == MF_OK) {
        memcpy(p->assignment.memory, old.memory, sizeof old.memory);
    }
    SAY(c, "VPP %lld: chunks begin with a layer that chooses keys, and there are fewer of them",
        (long long)asked);
    return true;
}

/* Where layers share a choice of keys, megatron/core wants the one that chooses in the same chunk:
 * a chunk that would begin behind it begins with it, or with the next where it is the chunk
 * before's first. */
static bool concede_choices(const step_input *in, mf_plan *p, mf_concession *c) {
    mf_assignment *a = &p->assignment;
    int start[MF_MAX_POSITIONS] = {0}, next = 0;
    bool changed = false;
    const int count = mf_target_chunk_starts(in->model, start);
    for (int v = 1; v < a->vstages && count >= a->vstages - 1; v++) {
        const int most = count - (a->vstages - v); /* the rest begin somewhere, too */
        while (next < most && start[next + 1] <= a->first[v]) {
            next++;
        }
        changed = changed || start[next] != a->first[v];
        a->first[v] = start[next++];
    }
    SAY(c, "chunks that begin with a layer which shares another's choice of keys: they begin with "
           "a layer that chooses");
    return changed;
}

static bool concede_overlap(const step_input *in, mf_plan *p, mf_concession *c) {
    mf_layout *l = &p->layout;
    const uint8_t asked = l->overlap;
    bool shared = in->model->shared_ffn > 0 && l->schedule != MF_SCHED_MERGED &&
                  l->dispatcher != MF_DISPATCH_ALLGATHER && l->ep > 1;
    c->why[0] = '\0';
    if ((l->overlap & MF_OVERLAP_EP) != 0 && !shared) {
        l->overlap &= (uint8_t)~MF_OVERLAP_EP;
    }
    if ((l->overlap & MF_OVERLAP_CP) != 0 && (l->cp == 1 || l->cp_type != MF_CP_RING)) {
        l->overlap &= (uint8_t)~MF_OVERLAP_CP;
        SAY(c, "overlap cp: all-gather and all-to-all by pieces beside attention have no flag");
    }
    if ((l->overlap & MF_OVERLAP_TP) != 0 && l->tp == 1) {
        l->overlap &= (uint8_t)~MF_OVERLAP_TP;
    }
    if ((l->overlap & MF_OVERLAP_PP) == 0 && (l->pp <= 2 || l->vpp == 1)) {
        l->overlap |= MF_OVERLAP_PP;
        SAY(c, "sends that wait: without VPP > 1 and PP > 2 there is no choice");
    }
    if (c->why[0] == '\0') {
        SAY(c, "overlaps that change nothing");
    }
    return asked != l->overlap;
}

/* Parameters that one rank has alone are not sharded: their level says nothing, and becomes that of
 * the others without a word. */
static bool concede_zero(const step_input *in, mf_plan *p, mf_concession *c) {
    mf_layout *l = &p->layout;
    const uint8_t zero = l->zero, expert = l->expert_zero;
    if (in->model->experts == 0 || l->edp == 1) {
        l->expert_zero = l->zero;
        return false;
    }
    if (l->dp * l->cp == 1) {
        l->zero = l->expert_zero;
        return false;
    }
    if (zero == expert) {
        return false;
    }
    l->zero = l->expert_zero = zero > expert ? zero : expert;
    SAY(c, "ZeRO %d and expert ZeRO %d: dense and expert parameters are sharded alike, at level %d",
        zero, expert, l->zero);
    return true;
}

/* What any layer recomputes all do, so that none keeps more; as many layers offload. */
static mf_common_choice all_of(const mf_model *m, const mf_assignment *a) {
    mf_common_choice all = {.share = 1};
    int layers = 0, offload = 0;
    for (int i = 1; i < a->positions - 1; i++) {
        all.recompute |= a->memory[i].recompute;
        all.offload |= a->memory[i].offload;
        offload += a->memory[i].offload != 0;
        layers++;
    }
    if (all.recompute & MF_RECOMPUTE_LAYER) {
        all.recompute = MF_RECOMPUTE_LAYER;
    }
    if (all.recompute & MF_RECOMPUTE_EXPERTS) {
        all.recompute = (uint16_t)((all.recompute & ~MF_RECOMPUTE_EXPERTS) | MF_RECOMPUTE_MOE);
    }
    if ((all.recompute & MF_RECOMPUTE_ACT) && m->experts == 0) {
        all.recompute = (uint16_t)((all.recompute & ~MF_RECOMPUTE_ACT) | MF_RECOMPUTE_MLP);
    }
    if (offload < layers) {
        all.share = (double)(offload + 1) / a->positions;
    }
    return all;
}

/* "all layers recompute norm,act" */
static void say_choice(const mf_common_choice *c, char *out, size_t size) {
    char recompute[96], offload[96], who[64] = "all layers recompute";
    mf_recompute_format(c->recompute, recompute, sizeof recompute);
    mf_offload_format(c->offload, offload, sizeof offload);
    if (c->first > 0) {
        snprintf(who, sizeof who, "the first %d of every virtual stage recompute", c->first);
    }
    snprintf(out, size, "%s%s%s%s%s", c->recompute != 0 ? who : "none recomputes",
             c->recompute != 0 ? " " : "", c->recompute != 0 ? recompute : "",
             c->offload != 0 ? c->share < 1 ? ", some offload " : ", all offload " : "",
             c->offload != 0 ? offload : "");
}

bool mf_target_chose_alike(const mf_model *m, const mf_assignment *a) {
    const mf_memory_choice *first = NULL;
    for (int i = 0; i < a->positions; i++) {
        const mf_memory_choice *x = &a->memory[i];
        if (mf_position_class(m, i) == NULL) {
            continue;
        }
        if (first != NULL && (x->recompute != first->recompute || x->offload != first->offload)) {
            return false;
        }
        first = x;
    }
    return true;
}

static bool concede_memory(const step_input *in, mf_plan *p, mf_concession *c) {
    mf_assignment *a = &p->assignment;
    const mf_assignment asked = *a;
    mf_common_choice common;
    char instead[224];
    if (mf_common_choice_of(in->model, a, &common)) {
        return false;
    }
    const mf_common_choice alike = common; /* what any layer chooses */
    common = in->instead != NULL ? *in->instead : all_of(in->model, a);
    mf_common_choice_apply(in->model, &common, a);
    const int layers = a->positions - 2; /* and depths of MTP */
    int others = 0;
    for (int i = 1; i <= layers; i++) {
        others += a->memory[i].recompute != asked.memory[i].recompute ||
                  a->memory[i].offload != asked.memory[i].offload;
    }
    say_choice(&common, instead, sizeof instead);
    const char *found = in->instead != NULL ? ", the fastest choice that fits" : "";
    p->layout.memory = (mf_memory_choice){common.recompute, common.offload};
    if (mf_target_chose_alike(in->model, &asked)) {
        char chosen[224];
        say_choice(&alike, chosen, sizeof chosen);
        SAY(c, "memory choices: %s has no words for what the plan chooses (%.80s); instead %.80s%s",
            mf_target_info_of(in->target)->program, chosen, instead, found);
        return true;
    }
    SAY(c,
        "memory choices: one holds for all layers, and %d of %d layers choose otherwise in the "
        "plan; instead %.160s%s",
        others, layers, instead, in->instead != NULL ? ", the fastest such choice that fits" : "");
    return true;
}

/* Modules that exclude one another. */
static bool concede_modules(const step_input *in, mf_plan *p, mf_concession *c) {
    mf_common_choice common;
    if (!mf_common_choice_of(in->model, &p->assignment, &common)) {
        return false;
    }
    const uint16_t asked = common.offload;
    if (common.offload & MF_OFFLOAD_ATTN_OUT) {
        common.offload |= MF_OFFLOAD_QKV;
    }
    if (common.recompute & MF_RECOMPUTE_MOE) {
        common.offload &= (uint16_t) ~(MF_OFFLOAD_EXPERT_IN | MF_OFFLOAD_EXPERT_FC1);
    }
    if (common.recompute & MF_RECOMPUTE_LAYER) {
        common.offload = 0;
    }
    if (common.offload == asked) {
        return false;
    }
    SAY(c, "offload modules: attn_proj comes with core_attn, and what is recomputed whole is not "
           "offloaded");
    mf_common_choice_apply(in->model, &common, &p->assignment);
    p->layout.memory.offload = common.offload;
    return true;
}

static bool concede_merged_memory(const step_input *in, mf_plan *p, mf_concession *c) {
    mf_layout *l = &p->layout;
    mf_common_choice common;
    if (l->schedule != MF_SCHED_MERGED ||
        !mf_common_choice_of(in->model, &p->assignment, &common) ||
        !(common.recompute & (MF_RECOMPUTE_LAYER | MF_RECOMPUTE_MOE))) {
        return false;
    }
    unroll_chunks(in, p);
    plain_schedule(l);
    SAY(c, "merged passes take no recomputation of whole layers or MoE modules: %s runs instead",
        mf_schedule_text(l->schedule));
    return true;
}

bool mf_target_captures_attention(const mf_model *m, const mf_layout *l) {
    return l->schedule != MF_SCHED_MERGED || (l->overlap & MF_OVERLAP_DP) == 0 ||
           !(m->qkv_bias || m->o_bias);
}

bool mf_target_captures_step(const mf_model *m, const mf_layout *l) {
    return m->experts == 0 || l->pad_to_capacity;
}

static bool concede_graph(const step_input *in, mf_plan *p, mf_concession *c) {
    mf_layout *l = &p->layout;
    bool whole = false, offload = false;
    for (int i = 1; i < p->assignment.positions - 1; i++) {
        whole = whole || (p->assignment.memory[i].recompute & MF_RECOMPUTE_LAYER) != 0;
        offload = offload || p->assignment.memory[i].offload != 0;
    }
    if (l->graph == MF_GRAPH_PARTIAL && whole) {
        SAY(c, "cuda_graph partial: layers that are recomputed whole cannot be captured in parts");
    } else if (l->graph == MF_GRAPH_PARTIAL && !mf_target_captures_attention(in->model, l)) {
        SAY(c, "cuda_graph partial: attention with biases is not captured where merged passes "
               "delay its weight gradients");
    } else if (l->graph == MF_GRAPH_STEP && offload) {
        SAY(c, "cuda_graph step: offloading has no settings there that moefold knows");
    } else if (l->graph == MF_GRAPH_STEP && !mf_target_captures_step(in->model, l)) {
        SAY(c, "cuda_graph step: routed rows that are not padded to a capacity cannot be captured; "
               "parts of the layers are");
        l->graph = MF_GRAPH_PARTIAL;
        return true;
    } else {
        return false;
    }
    l->graph = MF_GRAPH_NONE;
    return true;
}

static bool concede_optimizer(const step_input *in, mf_plan *p, mf_concession *c) {
    mf_layout *l = &p->layout;
    (void)in;
    if (l->offload_optimizer > 0 && l->fp8_primary_weights) {
        l->fp8_primary_weights = false;
        SAY(c, "quantised primary weights: not with optimizer states on the host");
        return true;
    }
    if (l->fp8_primary_weights && l->zero == 0) {
        l->fp8_primary_weights = false;
        SAY(c, "quantised primary weights: with a distributed optimizer alone");
        return true;
    }
    return false;
}

static bool concede_attention(const step_input *in, mf_plan *p, mf_concession *c) {
    if (!p->layout.fp8_attention || in->target == MF_TARGET_BRIDGE) {
        return false;
    }
    p->layout.fp8_attention = false;
    SAY(c, "FP8 attention: no flag sets fp8_dot_product_attention");
    return true;
}

static bool concede_order(const step_input *in, mf_plan *p, mf_concession *c) {
    (void)in;
    if (!p->layout.deterministic) {
        return false;
    }
    p->layout.deterministic = false;
    SAY(c, "sums in one order: --deterministic-mode asks for flags and variables of its own");
    return true;
}

/* What a plan was priced with by hand; a target's own lie in its software profile. */
static bool concede_traits(const step_input *in, mf_plan *p, mf_concession *c) {
    mf_layout *l = &p->layout;
    const uint32_t asked = l->traits;
    const bool fused =
        in->model->experts > 0 && l->dispatcher == MF_DISPATCH_FUSED && l->ep * l->etp > 1;
    char words[256];
    l->traits &= fused ? MF_TRAIT_DISPATCH_PERMUTES : MF_TRAIT_NONE;
    mf_traits_format(asked & ~l->traits, words, sizeof words);
    SAY(c, "traits %.160s: no flag says them", words);
    return l->traits != asked;
}

static const struct step {
    const char *what;
    bool (*concede)(const step_input *in, mf_plan *p, mf_concession *c);
} steps[] = {
    {"hybrid", concede_hybrid},
    {"schedule", concede_schedule},
    {"MTP", concede_mtp},
    {"chunks", concede_chunks},
    {"choices", concede_choices},
    {"overlap", concede_overlap},
    {"ZeRO", concede_zero},
    {MF_CONCESSION_MEMORY, concede_memory},
    {"modules", concede_modules},
    {"merged", concede_merged_memory},
    {"CUDA graphs", concede_graph},
    {"optimizer", concede_optimizer},
    {"FP8 attention", concede_attention},
    {"order of sums", concede_order},
    {"traits", concede_traits},
};

/* One step after another; what one changes, another may have to look at again. */
#define MOST_ROUNDS 4

static mf_status take_step(const struct step *step, const step_input *in, mf_plan *p, bool *changed,
                           mf_conceded_fn note, void *user, mf_err *e) {
    mf_concession c = {.what = step->what};
    if (!step->concede(in, p, &c)) {
        return MF_OK;
    }
    *changed = true;
    mf_status s = mf_layout_resolve(&p->layout, in->model, e);
    s = s == MF_OK ? mf_assignment_check(in->model, &p->layout, &p->assignment, e) : s;
    return s == MF_OK && note != NULL ? note(user, p, &c, e) : s;
}

mf_status mf_target_concede_to(mf_target t, const mf_model *m, mf_plan *p,
                               const mf_common_choice *instead, mf_conceded_fn note, void *user,
                               mf_err *e) {
    const step_input in = {t, m, instead};
    bool changed = true;
    for (int round = 0; round < MOST_ROUNDS && changed; round++) {
        changed = false;
        for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
            mf_status s = take_step(&steps[i], &in, p, &changed, note, user, e);
            if (s != MF_OK) {
                return s;
            }
        }
    }
    return MF_OK;
}

mf_status mf_target_concede(mf_target t, const mf_model *m, mf_plan *p, mf_conceded_fn note,
                            void *user, mf_err *e) {
    return mf_target_concede_to(t, m, p, NULL, note, user, e);
}
