/* grid_draw.h - layouts of the grid's models, drawn by a seed from all that are valid. */
#ifndef MF_TESTS_GRID_DRAW_H
#define MF_TESTS_GRID_DRAW_H

#include "tests/support/grid_case.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

static inline int64_t grid_pick(rng *r, const int64_t *of, int count) {
    return of[rng_range(r, 0, count - 1)];
}

/* Read once: of some hundred layouts that are drawn one is valid. */
static inline const mf_model *grid_model_of(const grid_model *g) {
    static mf_model models[GRID_MODELS];
    static bool read[GRID_MODELS];
    const ptrdiff_t i = g - grid_models;
    if (!read[i]) {
        assert_ok(grid_model_load(g, &models[i], NULL));
        read[i] = true;
    }
    return &models[i];
}

/* A random valid layout of a random model. */
static inline const grid_model *grid_draw(rng *r, int ranks, mf_layout *l) {
    static const int64_t degree[] = {1, 1, 2, 4, 8}, one_to_four[] = {1, 1, 2, 4};
    static const uint16_t recompute[] = {0,
                                         0,
                                         MF_RECOMPUTE_LAYER,
                                         MF_RECOMPUTE_CORE_ATTN,
                                         MF_RECOMPUTE_MOE,
                                         MF_RECOMPUTE_NORM | MF_RECOMPUTE_ACT,
                                         MF_RECOMPUTE_EXPERTS | MF_RECOMPUTE_SHARED_EXPERT |
                                             MF_RECOMPUTE_MLP | MF_RECOMPUTE_MLA_UP_PROJ};
    static const uint8_t overlap[] = {0, MF_OVERLAP_CP, MF_OVERLAP_TP | MF_OVERLAP_CP,
                                      MF_OVERLAP_EP | MF_OVERLAP_TP, MF_OVERLAP_DP | MF_OVERLAP_PP};
    static const uint16_t offload[] = {0, 0, 0, MF_OFFLOAD_INPUT | MF_OFFLOAD_QKV,
                                       MF_OFFLOAD_ATTN_OUT | MF_OFFLOAD_EXPERT_IN |
                                           MF_OFFLOAD_EXPERT_FC1 | MF_OFFLOAD_FFN};
    for (;;) {
        const grid_model *g = &grid_models[rng_range(r, 0, GRID_MODELS - 1)];
        grid_layout_init(l);
        l->gpus = ranks;
        l->tp = grid_pick(r, degree, 5);
        l->cp = grid_pick(r, degree, 5);
        l->pp = grid_pick(r, degree, 5);
        l->ep = grid_pick(r, degree, 5);
        l->etp = grid_pick(r, degree, 5);
        l->mbs = grid_pick(r, one_to_four, 4);
        l->schedule = (mf_schedule_kind)rng_range(r, 0, MF_SCHED_COUNT - 1);
        l->vpp = l->schedule == MF_SCHED_INTERLEAVED || l->schedule == MF_SCHED_ZB_V ? 2
                 : l->schedule == MF_SCHED_MERGED ? rng_range(r, 1, 2)
                                                  : 1;
        l->zero = (uint8_t)rng_range(r, 0, 3);
        l->expert_zero = (uint8_t)rng_range(r, 0, 3);
        l->dispatcher = (mf_dispatcher)rng_range(r, 0, MF_DISPATCH_COUNT - 1);
        l->cp_type = (mf_cp_type)rng_range(r, 0, MF_CP_COUNT - 1);
        l->memory.recompute = recompute[rng_range(r, 0, 6)];
        l->offload_optimizer = 0.35 * (double)rng_range(r, 0, 2);
        l->memory.offload = offload[rng_range(r, 0, 4)];
        l->overlap = overlap[rng_range(r, 0, 4)];
        if (mf_layout_valid(l, grid_model_of(g))) {
            return g;
        }
    }
}

static inline rng grid_seed(int ranks) {
    const char *text = getenv("MF_SEED");
    return (rng){text != NULL ? strtoull(text, NULL, 10) : 20u + (uint64_t)ranks};
}

static inline void grid_describe(const mf_layout *l, const grid_model *m, char *out, size_t size) {
    char recompute[96], overlap[64], offload[64];
    mf_offload_format(l->memory.offload, offload, sizeof offload);
    mf_recompute_format(l->memory.recompute, recompute, sizeof recompute);
    mf_overlap_format(l->overlap, overlap, sizeof overlap);
    snprintf(out, size,
             "%s tp %d cp %d %s dp %d pp %d vpp %d ep %d etp %d mbs %d zero %d/%d %s %s recompute "
             "%s offload %s %.2f overlap %s",
             m->name, (int)l->tp, (int)l->cp, mf_cp_type_text(l->cp_type), (int)l->dp, (int)l->pp,
             (int)l->vpp, (int)l->ep, (int)l->etp, (int)l->mbs, l->zero, l->expert_zero,
             mf_schedule_text(l->schedule), mf_dispatcher_text(l->dispatcher), recompute, offload,
             l->offload_optimizer, overlap);
}

#endif
