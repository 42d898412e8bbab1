/* step_values.c - the dimensions that a step may change, and the values of each. */
#include "launch/steps/step_values.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define R(name) MF_RECOMPUTE_##name
#define O(name) MF_OFFLOAD_##name
#define MOST_VPP 16

/* Dimensions that hold a number of the layout. */
typedef struct number {
    const char *option;
    size_t at;
    bool experts; /* of models with experts alone */
    int64_t most; /* every value up to it; 0 = divisors of the GPUs */
} number;
static const number numbers[MF_STEP_NUMBERS] = {
    [MF_STEP_TP] = {"--tp", offsetof(mf_layout, tp), false, 0},
    [MF_STEP_CP] = {"--cp", offsetof(mf_layout, cp), false, 0},
    [MF_STEP_PP] = {"--pp", offsetof(mf_layout, pp), false, 0},
    [MF_STEP_VPP] = {"--vpp", offsetof(mf_layout, vpp), false, MOST_VPP},
    [MF_STEP_EP] = {"--ep", offsetof(mf_layout, ep), true, 0},
    [MF_STEP_ETP] = {"--etp", offsetof(mf_layout, etp), true, 0},
    [MF_STEP_MICRO_BATCH] = {"--micro-batch", offsetof(mf_layout, mbs), false, MF_SPACE_MAX_MBS},
};

static const uint16_t recomputed[] = {
    R(NONE),
    R(ACT),
    R(NORM) | R(ACT),
    R(NORM) | R(ACT) | R(MLA_UP_PROJ),
    R(CORE_ATTN),
    R(NORM) | R(ACT) | R(MLA_UP_PROJ) | R(SHARED_EXPERT) | R(MLP),
    R(NORM) | R(ACT) | R(MLA_UP_PROJ) | R(MOE) | R(MLP),
    R(LAYER),
};
static const uint16_t offloaded[] = {
    O(NONE),
    O(EXPERT_FC1) | O(FFN),
    O(EXPERT_FC1) | O(FFN) | O(EXPERT_IN),
    O(EXPERT_FC1) | O(FFN) | O(EXPERT_IN) | O(INPUT) | O(QKV) | O(ATTN_OUT),
};
static const uint8_t overlaps[] = {MF_OVERLAP_DP, MF_OVERLAP_TP, MF_OVERLAP_DP | MF_OVERLAP_TP};
static const double on_host[] = {0, 0.25, 0.5, 0.75, 1};

/* What a search chooses unless it is pinned; 0: it never does. */
static const uint32_t chosen[MF_STEP_DIMENSIONS] = {
    MF_PIN(TP),
    MF_PIN(CP),
    MF_PIN(PP),
    MF_PIN(VPP),
    MF_PIN(EP),
    MF_PIN(ETP),
    MF_PIN(MICRO_BATCH),
    [MF_STEP_SCHEDULE] = MF_PIN(SCHEDULE),
    [MF_STEP_ZERO] = MF_PIN(ZERO) | MF_PIN(EXPERT_ZERO),
    [MF_STEP_DISPATCHER] = MF_PIN(DISPATCHER),
    [MF_STEP_RECOMPUTE] = MF_PIN(RECOMPUTE),
    [MF_STEP_OFFLOAD] = MF_PIN(OFFLOAD),
};

#define LIST_OF(table, i, value)                                                                   \
    do {                                                                                           \
        if ((i) >= (int)(sizeof(table) / sizeof(table)[0])) {                                      \
            return false;                                                                          \
        }                                                                                          \
        (value) = (table)[i];                                                                      \
    } while (0)

/* VPP follows from the schedule: more chunks are interleaved, one is not. */
static void settle_order(mf_layout *l) {
    if (l->pp == 1 && l->schedule != MF_SCHED_MERGED) {
        l->vpp = 1;
    }
    if (l->schedule == MF_SCHED_1F1B && l->vpp > 1) {
        l->schedule = MF_SCHED_INTERLEAVED;
    } else if (l->schedule == MF_SCHED_INTERLEAVED && l->vpp == 1) {
        l->schedule = MF_SCHED_1F1B;
    }
}

/* The i-th divisor of n, from 1 on; 0 past the last. */
static int64_t divisor(int64_t n, int i) {
    int seen = 0;
    for (int64_t d = 1; d <= n; d++) {
        if (n % d == 0 && seen++ == i) {
            return d;
        }
    }
    return 0;
}

int64_t mf_step_number(int dimension, int i, const mf_layout *l) {
    const number *n = &numbers[dimension];
    return n->most > 0 ? i + 1 : divisor(l->gpus, i);
}

int64_t mf_step_number_in(int dimension, const mf_layout *l) {
    int64_t value;
    memcpy(&value, (const char *)l + numbers[dimension].at, sizeof value);
    return value;
}

static bool set_number(int dimension, int i, const mf_model *m, mf_layout *l) {
    const number *n = &numbers[dimension];
    const int64_t value = mf_step_number(dimension, i, l);
    if (value == 0 || (n->experts && m->experts == 0) || (n->most > 0 && value > n->most)) {
        return false;
    }
    *(int64_t *)(void *)((char *)l + n->at) = value;
    settle_order(l);
    return true;
}

/* Is the feed-forward part of some layer dense? */
static bool has_dense(const mf_model *m) {
    for (int at = 0; at < mf_model_positions(m); at++) {
        const mf_position_kind kind = mf_position_kind_of(m, at);
        if ((kind == MF_POS_LAYER || kind == MF_POS_MTP) && !mf_position_is_moe(m, at)) {
            return true;
        }
    }
    return false;
}

/* What there is to recompute, and to offload: options name nothing else
 * (job/load/option_applicability.h refuses it). */
static uint16_t modules_of(const mf_model *m) {
    uint16_t mask = R(NORM) | R(ACT) | R(CORE_ATTN) | R(LAYER);
    mask |= m->attn == MF_ATTN_MLA ? R(MLA_UP_PROJ) : 0;
    mask |= m->experts > 0 ? R(MOE) : 0;
    mask |= has_dense(m) ? R(MLP) : 0;
    return (uint16_t)(mask | (m->experts > 0 && m->shared_ffn > 0 ? R(SHARED_EXPERT) : 0));
}

static uint16_t copies_of(const mf_model *m) {
    const bool shared = m->experts > 0 && m->shared_ffn > 0;
    const uint16_t mask = m->experts > 0 ? O(EXPERT_FC1) | O(EXPERT_IN) : 0;
    return (uint16_t)(mask | O(INPUT) | O(QKV) | O(ATTN_OUT) |
                      (shared || has_dense(m) ? O(FFN) : 0));
}

bool mf_step_set(int dimension, int i, const mf_model *m, mf_layout *l) {
    if (dimension < MF_STEP_NUMBERS) {
        return set_number(dimension, i, m, l);
    }
    switch (dimension) {
    case MF_STEP_SCHEDULE:
        l->schedule = (mf_schedule_kind)i;
        return i < MF_SCHED_COUNT;
    case MF_STEP_ZERO:
        l->zero = (uint8_t)(i / 4);
        l->expert_zero = (uint8_t)(m->experts > 0 ? i % 4 : l->zero);
        return i < 16;
    case MF_STEP_DISPATCHER:
        l->dispatcher = (mf_dispatcher)i;
        return m->experts > 0 && i < MF_DISPATCH_COUNT;
    case MF_STEP_GRAPH:
        l->graph = (mf_graph_mode)i;
        return i < MF_GRAPH_COUNT;
    case MF_STEP_OVERLAP: { /* besides what runs beside compute already */
        uint8_t more;
        LIST_OF(overlaps, i, more);
        l->overlap |= more;
        return true;
    }
    case MF_STEP_RECOMPUTE:
        LIST_OF(recomputed, i, l->memory.recompute);
        l->memory.recompute &= modules_of(m);
        return true;
    case MF_STEP_OFFLOAD:
        LIST_OF(offloaded, i, l->memory.offload);
        l->memory.offload &= copies_of(m);
        l->offload_share = 1;
        return true;
    case MF_STEP_OPTIMIZER:
        LIST_OF(on_host, i, l->offload_optimizer);
        return true;
    default:
        l->moments_bf16 = i == 1;
        return i < 2;
    }
}

void mf_step_name(int dimension, const mf_layout *l, char *out, size_t size) {
    char mask[96];
    if (dimension < MF_STEP_NUMBERS) {
        snprintf(out, size, "%s %lld", numbers[dimension].option,
                 (long long)mf_step_number_in(dimension, l));
    } else if (dimension == MF_STEP_SCHEDULE) {
        snprintf(out, size, "--schedule %s", mf_schedule_text(l->schedule));
    } else if (dimension == MF_STEP_ZERO) {
        snprintf(out, size, "--zero %d --expert-zero %d", l->zero, l->expert_zero);
    } else if (dimension == MF_STEP_DISPATCHER) {
        snprintf(out, size, "--dispatcher %s", mf_dispatcher_text(l->dispatcher));
    } else if (dimension == MF_STEP_GRAPH) {
        snprintf(out, size, "--cuda-graph %s", mf_graph_text(l->graph));
    } else if (dimension == MF_STEP_OVERLAP) {
        mf_overlap_format(l->overlap, mask, sizeof mask);
        snprintf(out, size, "--overlap %s", mask);
    } else if (dimension == MF_STEP_RECOMPUTE) {
        mf_recompute_format(l->memory.recompute, mask, sizeof mask);
        snprintf(out, size, "--recompute %s", mask);
    } else if (dimension == MF_STEP_OFFLOAD) {
        mf_offload_format(l->memory.offload, mask, sizeof mask);
        snprintf(out, size, "--offload %s", mask);
    } else if (dimension == MF_STEP_OPTIMIZER) {
        snprintf(out, size, "--offload-optimizer %g%%", 100 * l->offload_optimizer);
    } else {
        snprintf(out, size, "--moments %s", l->moments_bf16 ? "bf16" : "fp32");
    }
}

uint32_t mf_step_chosen(int dimension) {
    return chosen[dimension];
}

/* --- layouts ---------------------------------------------------------------------------------- */

bool mf_step_same(const mf_layout *a, const mf_layout *b) {
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp && a->vpp == b->vpp &&
           a->ep == b->ep && a->etp == b->etp && a->mbs == b->mbs && a->schedule == b->schedule &&
           a->zero == b->zero && a->expert_zero == b->expert_zero &&
           a->dispatcher == b->dispatcher && a->graph == b->graph && a->overlap == b->overlap &&
           a->memory.recompute == b->memory.recompute && a->memory.offload == b->memory.offload &&
           a->moments_bf16 == b->moments_bf16 && a->offload_optimizer == b->offload_optimizer;
}

bool mf_step_is_of_held(const mf_layout *from, const mf_one_step *step) {
    mf_layout held = *from;
    held.moments_bf16 = step->layout.moments_bf16;
    held.offload_optimizer = step->layout.offload_optimizer;
    return mf_step_same(&held, &step->layout);
}

void mf_steps_copy_asked(const mf_problem *p, const mf_layout *from, mf_layout *to) {
    const uint32_t pinned = p->pinned;
    for (int d = 0; d < MF_STEP_NUMBERS; d++) {
        if ((pinned & chosen[d]) != 0) {
            memcpy((char *)to + numbers[d].at, (const char *)from + numbers[d].at, sizeof to->tp);
        }
    }
    to->schedule = (pinned & MF_PIN(SCHEDULE)) != 0 ? from->schedule : to->schedule;
    to->zero = (pinned & MF_PIN(ZERO)) != 0 ? from->zero : to->zero;
    to->expert_zero = (pinned & MF_PIN(EXPERT_ZERO)) != 0 ? from->expert_zero : to->expert_zero;
    to->dispatcher = (pinned & MF_PIN(DISPATCHER)) != 0 ? from->dispatcher : to->dispatcher;
    if ((pinned & MF_PIN(RECOMPUTE)) != 0) {
        to->memory.recompute = from->memory.recompute;
    }
    if ((pinned & MF_PIN(OFFLOAD)) != 0) {
        to->memory.offload = from->memory.offload;
        to->offload_share = from->offload_share;
    }
    to->moments_bf16 = from->moments_bf16;
    to->offload_optimizer = from->offload_optimizer;
}

mf_problem mf_steps_ask(const mf_problem *p, const mf_one_step *step) {
    mf_problem out = *p;
    mf_steps_copy_asked(p, &step->layout, &out.base);
    if (out.base.zero != p->base.zero || out.base.expert_zero != p->base.expert_zero) {
        out.base.zero = step->layout.zero; /* the step names both */
        out.base.expert_zero = step->layout.expert_zero;
        out.pinned |= chosen[MF_STEP_ZERO];
    }
    return out;
}
