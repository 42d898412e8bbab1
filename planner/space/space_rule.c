/* space_rule.c - which rule of layouts leaves a space empty. */
#include "planner/space/space.h"

#include "core/program/lower.h"

#include <stdio.h>

/* Takes one pinned value of the base over into l. */
static void take(mf_layout *l, const mf_layout *base, mf_dim d) {
    switch (d) {
    case MF_DIM_TP:
        l->tp = base->tp;
        break;
    case MF_DIM_CP:
        l->cp = base->cp;
        break;
    case MF_DIM_PP:
        l->pp = base->pp;
        break;
    case MF_DIM_VPP:
        l->vpp = base->vpp;
        break;
    case MF_DIM_EP:
        l->ep = base->ep;
        break;
    case MF_DIM_ETP:
        l->etp = base->etp;
        break;
    case MF_DIM_MICRO_BATCH:
        l->mbs = base->mbs;
        break;
    case MF_DIM_SCHEDULE:
        l->schedule = base->schedule;
        break;
    case MF_DIM_CP_TYPE:
        l->cp_type = base->cp_type;
        break;
    case MF_DIM_ZERO:
    case MF_DIM_EXPERT_ZERO:
    case MF_DIM_DISPATCHER:
    case MF_DIM_PRECISION:
    case MF_DIM_RECOMPUTE:
    case MF_DIM_OFFLOAD:
    case MF_DIM_STAGES:
    case MF_DIM_COUNT:
        break; /* no rule of degrees */
    }
}

/* The rule that the pins in `pins` break with everything else at its smallest, when they leave
 * nothing of the space: MF_LAYOUT. */
static mf_status try_pins(const mf_space *s, uint32_t pins, mf_err *e) {
    mf_space some = *s;
    mf_layout l = s->base;
    int64_t count = 0;
    some.pinned = pins;
    mf_status status = mf_space_count(&some, &count, e);
    if (status != MF_OK || count > 0) {
        return status;
    }
    l.tp = l.cp = l.pp = l.vpp = l.ep = l.etp = l.mbs = 1;
    l.schedule = MF_SCHED_GPIPE;
    l.cp_type = MF_CP_RING;
    for (int d = 0; d < MF_DIM_COUNT; d++) {
        if ((pins >> d & 1u) != 0) {
            take(&l, &s->base, (mf_dim)d);
        }
    }
    return mf_layout_resolve(&l, s->model, e);
}

/* Some hundred times as many as training has. */
#define MOST_MICRO_BATCHES 4096

mf_status mf_space_check_batch(const mf_space *s, mf_err *e) {
    const bool pinned = (s->pinned & MF_PIN(MICRO_BATCH)) != 0;
    const int64_t each = pinned ? s->base.mbs : MF_SPACE_MAX_MBS;
    const int64_t least = s->base.gbs / s->base.gpus / each;
    if (least <= MOST_MICRO_BATCHES) {
        return MF_OK;
    }
    return mf_err_set(e, MF_LAYOUT,
                      "a global batch of %lld on %lld GPUs is %lld micro-batches of %lld a GPU at "
                      "the least: searched are up to %d; a smaller batch or more GPUs makes fewer",
                      (long long)s->base.gbs, (long long)s->base.gpus, (long long)least,
                      (long long)each, MOST_MICRO_BATCHES);
}

/* The rule that what is held breaks whatever the degrees, as FP32 weights with BF16 gradients:
 * MF_LAYOUT. One GPU and one sample break none of degrees. */
static mf_status held_rule(const mf_space *s, mf_err *e) {
    mf_layout l = s->base;
    l.gpus = l.gbs = 1;
    l.tp = l.cp = l.pp = l.vpp = l.ep = l.etp = l.mbs = 1;
    l.schedule = MF_SCHED_GPIPE;
    l.cp_type = MF_CP_RING;
    return mf_layout_resolve(&l, s->model, e);
}

mf_status mf_space_rule(const mf_space *s, mf_err *e) {
    mf_space free_of_pins = *s;
    int64_t count = 0;
    free_of_pins.pinned = 0;
    mf_status status = mf_space_count(&free_of_pins, &count, e);
    if (status == MF_OK && count == 0) {
        return held_rule(s, e); /* no pin is to blame */
    }
    for (int d = 0; d < MF_DIM_COUNT && status == MF_OK; d++) {
        uint32_t pin = s->pinned & 1u << d;
        status = pin != 0 ? try_pins(s, pin, e) : MF_OK;
    }
    return status == MF_OK ? try_pins(s, s->pinned, e) : status;
}

/* The split of the GPUs over tensors, tokens and stages that leaves the least DP by the rules of
 * the model; false when there is none. */
static bool least_dp(const mf_space *s, mf_layout *out) {
    int64_t gpus = s->base.gpus;
    bool found = false;
    for (int64_t tp = 1; tp <= gpus && tp <= s->model->heads; tp++) {
        for (int64_t cp = 1; gpus % tp == 0 && cp <= gpus / tp; cp++) {
            for (int64_t pp = 1; gpus / tp % cp == 0 && pp <= mf_model_positions(s->model); pp++) {
                mf_layout l = s->base;
                l.tp = tp;
                l.cp = cp;
                l.pp = pp;
                l.vpp = l.ep = l.etp = l.mbs = 1;
                l.schedule = MF_SCHED_GPIPE;
                l.cp_type = MF_CP_RING;
                if (gpus / tp / cp % pp != 0) {
                    continue;
                }
                l.gbs = gpus / tp / cp / pp; /* one sample each */
                if ((!found || l.gbs < out->dp) && mf_layout_resolve(&l, s->model, NULL) == MF_OK) {
                    *out = l;
                    found = true;
                }
            }
        }
    }
    return found;
}

void mf_space_why_empty(const mf_space *s, char *out, size_t size) {
    mf_layout l;
    if (!least_dp(s, &l) || s->base.gbs % l.dp == 0) {
        snprintf(out, size, "no combination of degrees divides GPUs, heads, experts and batch");
        return;
    }
    snprintf(out, size,
             "no combination of degrees takes the %lld GPUs and the global batch %lld: DP has to "
             "divide the batch, and is at least %lld (TP %lld, CP %lld, PP %lld)",
             (long long)l.gpus, (long long)s->base.gbs, (long long)l.dp, (long long)l.tp,
             (long long)l.cp, (long long)l.pp);
}
