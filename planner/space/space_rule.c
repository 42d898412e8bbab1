/* space_rule.c - which rule of layouts leaves a space empty. */
#include "planner/space/space.h"

#include "core/program/lower.h"

#include <stdio.h>

/* The base with what rules of degrees look at as it is pinned, or at its smallest. */
static mf_layout smallest(const mf_space *s, uint32_t pins) {
    const mf_layout *b = &s->base;
    mf_layout l = *b;
    l.tp = pins & MF_PIN(TP) ? b->tp : 1;
    l.cp = pins & MF_PIN(CP) ? b->cp : 1;
    l.pp = pins & MF_PIN(PP) ? b->pp : 1;
    l.vpp = pins & MF_PIN(VPP) ? b->vpp : 1;
    l.ep = pins & MF_PIN(EP) ? b->ep : 1;
    l.etp = pins & MF_PIN(ETP) ? b->etp : 1;
    l.mbs = pins & MF_PIN(MICRO_BATCH) ? b->mbs : 1;
    l.schedule = pins & MF_PIN(SCHEDULE) ? b->schedule : MF_SCHED_GPIPE;
    l.cp_type = pins & MF_PIN(CP_TYPE) ? b->cp_type : MF_CP_RING;
    return l;
}

/* The rule that the pins in `pins` break with everything else at its smallest, when they leave
 * nothing of the space: MF_LAYOUT. */
static mf_status try_pins(const mf_space *s, uint32_t pins, mf_err *e) {
    mf_space some = *s;
    mf_layout l = smallest(s, pins);
    int64_t count = 0;
    some.pinned = pins;
    mf_status status = mf_space_count(&some, &count, e);
    return status == MF_OK && count == 0 ? mf_layout_resolve(&l, s->model, e) : status;
}

/* About a hundred times as many as training runs have. */
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
    mf_layout l = smallest(s, 0);
    l.gpus = l.gbs = 1;
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
                mf_layout l = smallest(s, 0);
                l.tp = tp;
                l.cp = cp;
                l.pp = pp;
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
