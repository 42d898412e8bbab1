/* Layouts of 1, 2, 4 and 8 ranks against one rank: loss, every gradient, the norm and the
 * parameters after three steps; the ops that ran are those of the program, each of them has a
 * price, and the arena is the memory plan. Layouts are drawn from all that are valid, by a seed.
 * The program starts itself again under mpirun, once for each number of ranks. */
#include "tests/grid_run.h"
#include "tests/rng.h"
#include "tests/test.h"

static const struct { int ranks, cases; } grids[] = {{1, 20}, {2, 50}, {4, 60}, {8, 40}};

/* --- drawing layouts ----------------------------------------------------------------------------
 */

static int64_t pick(rng *r, const int64_t *of, int count) {
    return of[rng_range(r, 0, count - 1)];
}

/* A random valid layout of a random model. */
static const grid_model *draw(rng *r, int ranks, mf_layout *l) {
    static const int64_t degree[] = {1, 1, 2, 4, 8}, one_to_four[] = {1, 1, 2, 4};
    static const uint16_t recompute[] = {0,
                                         0,
                                         MF_RECOMPUTE_LAYER,
                                         MF_RECOMPUTE_CORE_ATTN,
                                         MF_RECOMPUTE_MOE,
                                         MF_RECOMPUTE_NORM | MF_RECOMPUTE_ACT,
                                         MF_RECOMPUTE_EXPERTS | MF_RECOMPUTE_SHARED_EXPERT |
                                             MF_RECOMPUTE_MLP | MF_RECOMPUTE_MLA_UP_PROJ};
    static const uint8_t overlap[] = {0, 0, MF_OVERLAP_TP, MF_OVERLAP_EP,
                                      MF_OVERLAP_DP | MF_OVERLAP_PP};
    static const uint16_t offload[] = {0, 0, 0, MF_OFFLOAD_INPUT | MF_OFFLOAD_QKV,
                                       MF_OFFLOAD_ATTN_OUT | MF_OFFLOAD_EXPERT_IN |
                                           MF_OFFLOAD_EXPERT_FC1 | MF_OFFLOAD_FFN};
    for (;;) {
        const grid_model *g = &grid_models[rng_range(r, 0, GRID_MODELS - 1)];
        mf_model m;
        assert_ok(grid_model_load(g, &m, NULL));
        grid_layout_init(l);
        l->gpus = ranks;
        l->tp = pick(r, degree, 5);
        l->cp = pick(r, degree, 5);
        l->pp = pick(r, degree, 5);
        l->ep = pick(r, degree, 5);
        l->etp = pick(r, degree, 5);
        l->mbs = pick(r, one_to_four, 4);
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
        if (mf_layout_valid(l, &m)) {
            return g;
        }
    }
}

static rng seed_of(int ranks) {
    const char *text = getenv("MF_SEED");
    return (rng){text != NULL ? strtoull(text, NULL, 10) : 20u + (uint64_t)ranks};
}

static void describe(const mf_layout *l, const grid_model *m, char *out, size_t size) {
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

/* --- all cases ----------------------------------------------------------------------------------
 */

/* One process of mpirun, or the only one. `only`: one case, for debugging. */
static int child(int ranks, const char *references, int only) {
    static grid_reference ref[GRID_MODELS];
    int64_t rank = 0, size = 1;
    mf_err e = {.text = ""};
    mf_cost *cost = grid_cost(&e);
    if (cost == NULL || !grid_references_read(references, ref) ||
        mf_comm_start(&rank, &size, &e) != MF_OK || size != ranks) {
        printf("ranks: %lld of %d: %s\n", (long long)size, ranks, e.text);
        return 1;
    }
    int failed = 0, cases = 0;
    for (size_t k = 0; k < sizeof grids / sizeof grids[0]; k++) {
        cases = grids[k].ranks == ranks ? grids[k].cases : cases;
    }
    rng r = seed_of(ranks);
    double worst_of_all = 0.0;
    for (int i = 0; i < cases; i++) {
        mf_layout l;
        char worst[200] = "", name[320];
        const grid_model *m = draw(&r, ranks, &l);
        if (only >= 0 && i != only) {
            continue;
        }
        const grid_run_case run = {m, &l, &ref[m - grid_models], cost, NULL};
        double error = grid_run(&run, worst, &e);
        bool bad = !(error <= GRID_BOUND);
        worst_of_all = fmax(worst_of_all, error);
        describe(&l, m, name, sizeof name);
        if (bad) {
            printf("rank %lld: case %d (%s): %.1e %s %s\n", (long long)rank, i, name, error, worst,
                   isnan(error) ? e.text : "");
            fflush(stdout);
        }
        if (isnan(error)) {
            mf_comm_abort(1);
        }
        failed += bad;
    }
    if (rank == 0) {
        printf("%d ranks: %d layouts, %d failed on rank 0, worst %.1e (seed %llu)\n", ranks, cases,
               failed, worst_of_all, (unsigned long long)r.state);
    }
    mf_cost_destroy(cost);
    for (int i = 0; i < GRID_MODELS; i++) {
        grid_reference_clear(&ref[i]);
    }
    mf_comm_stop();
    return failed > 0;
}

/* Layouts of the grid in which each technique does something. */
static void the_grid_uses_every_technique(void **state) {
    enum {
        ZERO = 0,
        EXPERT_ZERO = 4,
        SCHEDULE = 8,
        DISPATCHER = 14,
        CP = 17,
        OTHERS = 21,
        ALL = 32
    };
    static const char *const others[] = {"TP over the KV heads", "ETP",       "ETP within TP",
                                         "recomputation",        "offload",   "TP overlap",
                                         "EP overlap",           "DP overlap"};
    int used[ALL] = {0}, total = 0;
    (void)state;
    for (size_t k = 0; k < sizeof grids / sizeof grids[0]; k++) {
        rng r = seed_of(grids[k].ranks);
        for (int i = 0; i < grids[k].cases; i++, total++) {
            mf_layout l;
            mf_model m;
            assert_ok(grid_model_load(draw(&r, grids[k].ranks, &l), &m, NULL));
            used[ZERO + l.zero] += l.dp * l.cp > 1;
            used[EXPERT_ZERO + l.expert_zero] += l.edp > 1 && m.experts > 0;
            used[SCHEDULE + l.schedule] += l.pp > 1 && l.micro_batches > 1;
            used[DISPATCHER + l.dispatcher] += l.ep > 1;
            used[CP + l.cp_type] += l.cp > (l.cp_type == MF_CP_HIERARCHICAL ? 2 : 1);
            const bool other[] = {m.kv_heads<l.tp, l.etp> 1,
                                  l.etp > 1 && l.tp > 1,
                                  l.memory.recompute != 0,
                                  l.memory.offload != 0,
                                  l.tp > 1 && (l.overlap & MF_OVERLAP_TP) != 0,
                                  l.ep > 1 && (l.overlap & MF_OVERLAP_EP) != 0,
                                  l.gpus > 1 && (l.overlap & MF_OVERLAP_DP) != 0};
            for (size_t o = 0; o < sizeof other / sizeof other[0]; o++) {
                used[OTHERS + o] += other[o];
            }
        }
    }
    printf("%d layouts; ZeRO %d %d %d %d, expert ZeRO %d %d %d %d", total, used[0], used[1],
           used[2], used[3], used[4], used[5], used[6], used[7]);
    for (int i = SCHEDULE; i < OTHERS + 8; i++) {
        printf(", %s %d",
               i < DISPATCHER ? mf_schedule_text((mf_schedule_kind)(i - SCHEDULE))
               : i < CP       ? mf_dispatcher_text((mf_dispatcher)(i - DISPATCHER))
               : i < OTHERS   ? mf_cp_type_text((mf_cp_type)(i - CP))
                              : others[i - OTHERS],
               used[i]);
    }
    printf("\n");
    assert_true(total >= 150);
    for (int i = 0; i < OTHERS + 8 && getenv("MF_SEED") == NULL; i++) {
        assert_true(used[i] > 0);
    }
}

static void one_rank_equals_itself_however_it_goes_about_it(void **state) {
    (void)state;
    grid_launch(1);
}

static void two_ranks_equal_one(void **state) {
    (void)state;
    grid_launch(2);
}

static void four_ranks_equal_one(void **state) {
    (void)state;
    grid_launch(4);
}

static void eight_ranks_equal_one(void **state) {
    (void)state;
    grid_launch(8);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_grid_uses_every_technique),
        cmocka_unit_test(one_rank_equals_itself_however_it_goes_about_it),
        cmocka_unit_test(two_ranks_equal_one),
        cmocka_unit_test(four_ranks_equal_one),
        cmocka_unit_test(eight_ranks_equal_one),
    };
    grid_program = argv[0];
    if (argc > 3 && strcmp(argv[1], "--child") == 0) {
        return child(atoi(argv[2]), argv[3], argc > 4 ? atoi(argv[4]) : -1);
    }
    return cmocka_run_group_tests(tests, grid_references_make, grid_references_drop);
}
