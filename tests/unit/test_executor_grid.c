/* Layouts of 1, 2, 4 and 8 ranks against one rank: loss, every gradient, the norm and the
 * parameters after three steps; the ops that ran are those of the program, each of them has a
 * price, and the arena is the memory plan. Layouts are drawn from all that are valid, by a seed.
 * The program starts itself again, once for each number of ranks. */
#include "tests/support/grid_draw.h"
#include "tests/support/grid_run.h"
#include "tests/support/sampled.h"
#include "tests/support/test.h"

static const struct { int ranks, cases; } grids[] = {{1, 20}, {2, 50}, {4, 60}, {8, 40}};

/* --- all cases ----------------------------------------------------------------------------------
 */

/* One rank. `only`: one case, for debugging. */
static int child(int ranks, const char *references, int only) {
    static grid_reference ref[GRID_MODELS];
    int64_t rank = 0, size = 1;
    mf_err e = {.text = ""};
    mf_cost *cost = account_cost(&e);
    if (cost == NULL || !grid_references_read(references, ref) ||
        mf_comm_start(&rank, &size, &e) != MF_OK || size != ranks) {
        printf("ranks: %lld of %d: %s\n", (long long)size, ranks, e.text);
        return 1;
    }
    int failed = 0, cases = 0, played = 0;
    int stride = case_stride(17);
    for (size_t k = 0; k < sizeof grids / sizeof grids[0]; k++) {
        cases = grids[k].ranks == ranks ? grids[k].cases : cases;
    }
    rng r = grid_seed(ranks);
    double worst_of_all = 0.0;
    for (int i = 0; i < cases; i++) {
        mf_layout l;
        char worst[200] = "", name[320];
        const grid_model *m = grid_draw(&r, ranks, &l);
        if (only >= 0 ? i != only : i % stride != 0) {
            continue;
        }
        played++;
        const grid_run_case run = {m, &l, &ref[m - grid_models], cost, NULL};
        double error = grid_run(&run, worst, &e);
        bool bad = !(error <= GRID_BOUND);
        worst_of_all = fmax(worst_of_all, error);
        grid_describe(&l, m, name, sizeof name);
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
        printf("%d ranks: %d layouts, %d failed on rank 0, worst %.1e (seed %llu)\n", ranks, played,
               failed, worst_of_all, (unsigned long long)r.state);
    }
    mf_cost_destroy(cost);
    for (int i = 0; i < GRID_MODELS; i++) {
        grid_reference_clear(&ref[i]);
    }
    mf_comm_stop();
    return failed > 0;
}

/* --- what the grid covers ------------------------------------------------------------------------
 */

typedef struct technique {
    const char *name;
    bool used; /* by the layout at hand: it does something there */
} technique;

enum { TECHNIQUES = 80 };

/* Every technique and degree, in the same order whatever the layout. */
static int techniques_of(const mf_layout *l, const mf_model *m, const grid_model *g,
                         technique out[TECHNIQUES]) {
    const bool moe = m->experts > 0, stages = l->pp > 1, mla = m->attn == MF_ATTN_MLA;
    const unsigned again = l->memory.recompute;
    const int64_t members = l->cp_type == MF_CP_ALLTOALL ? l->cp : 1;
    const int64_t heads = m->heads / l->tp / members, kv = m->kv_heads / l->tp / members;
    const bool by_heads = l->cp > 1 && (l->overlap & MF_OVERLAP_CP) != 0;
    const bool dense_grid_differs = l->tp != l->etp || l->cp * l->dp != l->ep * l->edp;
    const technique all[] = {
        {"TP 2", l->tp == 2},
        {"TP 4", l->tp == 4},
        {"TP over the KV heads", m->kv_heads < l->tp && !mla},
        {"CP 2", l->cp == 2},
        {"CP 4", l->cp == 4},
        {"CP 8", l->cp == 8},
        {"DP 2", l->dp == 2},
        {"DP 4", l->dp == 4},
        {"PP 2", l->pp == 2},
        {"PP 4", l->pp == 4},
        {"VPP 2", l->vpp == 2 && stages},
        {"EP 2", l->ep == 2},
        {"EP 4", l->ep == 4},
        {"EP 8", l->ep == 8},
        {"ETP 2", l->etp == 2},
        {"ETP 4", l->etp == 4},
        {"ETP beside TP", l->etp > 1 && l->tp > 1},
        {"EP with ETP", l->ep > 1 && l->etp > 1},
        {"EDP", l->edp > 1 && l->ep > 1},
        {"EP over TP and CP", l->ep > 1 && l->tp > 1 && l->cp > 1},
        {"grids that differ", moe && dense_grid_differs},
        {"accumulation", l->micro_batches > 1 && !stages},
        {"ZeRO 0", l->zero == 0 && l->dp * l->cp > 1},
        {"ZeRO 1", l->zero == 1 && l->dp * l->cp > 1},
        {"ZeRO 2", l->zero == 2 && l->dp * l->cp > 1},
        {"ZeRO 3", l->zero == 3 && l->dp * l->cp > 1},
        {"expert ZeRO 0", l->expert_zero == 0 && l->edp > 1 && moe},
        {"expert ZeRO 1", l->expert_zero == 1 && l->edp > 1 && moe},
        {"expert ZeRO 2", l->expert_zero == 2 && l->edp > 1 && moe},
        {"expert ZeRO 3", l->expert_zero == 3 && l->edp > 1 && moe},
        {"ring", l->cp_type == MF_CP_RING && l->cp > 1},
        {"allgather CP", l->cp_type == MF_CP_ALLGATHER && l->cp > 1},
        {"alltoall CP", l->cp_type == MF_CP_ALLTOALL && l->cp > 1},
        {"hierarchical CP", l->cp_type == MF_CP_HIERARCHICAL && l->cp > 2},
        {"allgather dispatcher", l->dispatcher == MF_DISPATCH_ALLGATHER && l->ep > 1},
        {"alltoall dispatcher", l->dispatcher == MF_DISPATCH_ALLTOALL && l->ep > 1},
        {"fused dispatcher", l->dispatcher == MF_DISPATCH_FUSED && l->ep > 1},
        {"recompute layer", (again & MF_RECOMPUTE_LAYER) != 0},
        {"recompute core_attn", (again & MF_RECOMPUTE_CORE_ATTN) != 0},
        {"recompute moe", (again & MF_RECOMPUTE_MOE) != 0 && moe},
        {"recompute norm", (again & MF_RECOMPUTE_NORM) != 0},
        {"recompute act", (again & MF_RECOMPUTE_ACT) != 0},
        {"recompute experts", (again & MF_RECOMPUTE_EXPERTS) != 0 && moe},
        {"recompute shared_expert", (again & MF_RECOMPUTE_SHARED_EXPERT) && m->shared_ffn > 0},
        {"recompute mla_up_proj", (again & MF_RECOMPUTE_MLA_UP_PROJ) != 0 && mla},
        {"recompute mlp", (again & MF_RECOMPUTE_MLP) != 0 && m->ffn > 0},
        {"offload of activations", l->memory.offload != 0},
        {"offload of states", l->offload_optimizer > 0},
        {"TP overlap", l->tp > 1 && (l->overlap & MF_OVERLAP_TP) != 0},
        {"EP overlap", l->ep > 1 && (l->overlap & MF_OVERLAP_EP) != 0},
        {"gathered by heads", by_heads && l->cp_type == MF_CP_ALLGATHER && kv > 1},
        {"exchanged by heads", by_heads && l->cp_type == MF_CP_ALLTOALL && kv > 1},
        {"of one KV head", by_heads && l->cp_type == MF_CP_ALLTOALL && kv < 2 && heads > 1},
        {"by heads, again", by_heads && l->cp_type == MF_CP_ALLGATHER && kv > 1 &&
                                (again & (MF_RECOMPUTE_CORE_ATTN | MF_RECOMPUTE_LAYER)) != 0},
        {"PP overlap", stages && (l->overlap & MF_OVERLAP_PP) != 0},
        {"DP overlap", l->gpus > 1 && (l->overlap & MF_OVERLAP_DP) != 0},
        {"dropping", g->capacity > 0 && l->gpus > 1},
        {"dropping, EP", g->capacity > 0 && l->ep > 1},
        {"dropping, CP or TP", g->capacity > 0 && l->tp * l->cp > 1},
        {"dropping again", g->capacity > 0 && (again & (MF_RECOMPUTE_LAYER | MF_RECOMPUTE_MOE))},
        {"padding, EP", g->padded && l->ep > 1},
        {"idle experts, EP", g->starved && l->ep > 1},
        {"tied over stages", m->tied_embeddings && stages},
        {"MTP over stages", m->mtp_layers > 0 && stages},
    };
    int n = sizeof all / sizeof all[0];
    memcpy(out, all, sizeof all);
    for (int k = 0; k < MF_SCHED_COUNT; k++) {
        out[n++] =
            (technique){mf_schedule_text((mf_schedule_kind)k),
                        l->schedule == (mf_schedule_kind)k && stages && l->micro_batches > 1};
    }
    return n;
}

/* The layout in words, without what does nothing in it. */
static void describe_what_matters(const mf_layout *l, const grid_model *g, const mf_model *m,
                                  char *out, size_t size) {
    mf_layout plain = *l;
    if (l->ep == 1) {
        plain.dispatcher = MF_DISPATCH_FUSED;
    }
    plain.cp_type = l->cp == 1 ? MF_CP_RING : l->cp_type;
    plain.zero = l->dp * l->cp == 1 ? 0 : l->zero;
    plain.expert_zero = l->edp == 1 || m->experts == 0 ? 0 : l->expert_zero;
    plain.overlap = l->gpus == 1 ? 0 : l->overlap;
    if (l->pp == 1 && l->schedule <= MF_SCHED_1F1B) {
        plain.schedule = MF_SCHED_GPIPE;
    }
    grid_describe(&plain, g, out, size);
}

static void the_grid_uses_every_technique(void **state) {
    enum { MOST = 512 };
    static char seen[MOST][320];
    technique t[TECHNIQUES];
    int used[TECHNIQUES] = {0}, layouts = 0, distinct = 0, n = 0;
    (void)state;
    for (size_t k = 0; k < sizeof grids / sizeof grids[0]; k++) {
        rng r = grid_seed(grids[k].ranks);
        for (int i = 0; i < grids[k].cases; i++, layouts++) {
            mf_layout l;
            mf_model m;
            const grid_model *g = grid_draw(&r, grids[k].ranks, &l);
            assert_ok(grid_model_load(g, &m, NULL));
            n = techniques_of(&l, &m, g, t);
            assert_at_most(n, TECHNIQUES);
            assert_below(distinct, MOST);
            for (int j = 0; j < n; j++) {
                used[j] += t[j].used;
            }
            describe_what_matters(&l, g, &m, seen[distinct], sizeof seen[0]);
            bool known = false;
            for (int j = 0; j < distinct; j++) {
                known = known || strcmp(seen[j], seen[distinct]) == 0;
            }
            distinct += !known;
        }
    }
    printf("%d layouts, %d that differ;", layouts, distinct);
    for (int j = 0; j < n; j++) {
        printf(" %s %d,", t[j].name, used[j]);
    }
    printf("\n");
    assert_at_least(distinct, 150);
    for (int j = 0; j < n && getenv("MF_SEED") == NULL; j++) {
        if (used[j] == 0) {
            fail_msg("no layout uses %s", t[j].name);
        }
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
    int launched = self_launch(argc, argv);
    if (launched >= 0) {
        return launched;
    }
    if (argc > 3 && strcmp(argv[1], "--child") == 0) {
        return child(atoi(argv[2]), argv[3], argc > 4 ? atoi(argv[4]) : -1);
    }
    return cmocka_run_group_tests(tests, grid_references_make, grid_references_drop);
}
