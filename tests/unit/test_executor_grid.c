/* Layouts of 1, 2, 4 and 8 ranks against one rank: loss, every gradient, the norm and the
 * parameters after three steps; the ops that ran are those of the program, each of them has a
 * price, and the arena is the memory plan. Layouts are drawn from all that are valid, by a seed.
 * The program starts itself again under mpirun, once for each number of ranks. */
#include "costmodel/cost.h"
#include "tests/grid_case.h"
#include "tests/rng.h"
#include "tests/test.h"

#include <sys/wait.h>
#include <unistd.h>

#define BOUND 1e-5

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
        l->cp_type = (mf_cp_type)rng_range(r, 0, MF_CP_ALLTOALL);
        l->memory.recompute = recompute[rng_range(r, 0, 6)];
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
             "%s offload %s overlap %s",
             m->name, (int)l->tp, (int)l->cp, mf_cp_type_text(l->cp_type), (int)l->dp, (int)l->pp,
             (int)l->vpp, (int)l->ep, (int)l->etp, (int)l->mbs, l->zero, l->expert_zero,
             mf_schedule_text(l->schedule), mf_dispatcher_text(l->dispatcher), recompute, offload,
             overlap);
}

/* --- what ran -----------------------------------------------------------------------------------
 */

typedef struct watch {
    const grid_case *g;
    const mf_cost *cost;
    int64_t unpriced, foreign;
    double nearest;
    char text[96]; /* the first of those */
} watch;

static bool of_program(const mf_program *p, const mf_op *op, int position) {
    if (position >= 0) {
        const mf_block *b = p->blocks[p->block_of[position]];
        return op >= b->ops && op < b->ops + b->nops;
    }
    return op->pass == MF_PASS_O || op == &p->send_forward || op == &p->send_backward;
}

static void look(void *user, const mf_exec_op *x) {
    watch *w = user;
    mf_price price = {0};
    grid_find_ties(x, &w->nearest);
    if (w->g->step > 0) {
        return;
    }
    if (x->op->bytes > 0 || x->op->flops > 0) {
        mf_cost_op(w->cost, x->op, 1.0, &price);
    }
    bool foreign = !of_program(w->g->program, x->op, x->position), free = !(price.time_s > 0);
    if ((foreign || free) && w->unpriced + w->foreign == 0) {
        snprintf(w->text, sizeof w->text, "position %d %s", x->position, x->op->name);
    }
    w->foreign += foreign;
    w->unpriced += free;
}

static int64_t ops_of(const mf_block *b, unsigned passes) {
    int64_t n = 0;
    for (int i = 0; i < b->nops; i++) {
        n += (b->ops[i].pass & passes) != 0;
    }
    return n;
}

static int64_t ops_of_chunk(const mf_program *p, int64_t v, unsigned passes) {
    int64_t n = 0;
    for (int i = p->assignment.first[v]; i < p->assignment.first[v + 1]; i++) {
        n += ops_of(p->blocks[p->block_of[i]], passes);
    }
    return n;
}

/* Does the result of a pass of virtual stage v leave the stage? */
static bool sends(const mf_program *p, int64_t v, bool forward) {
    int64_t to = forward ? v + 1 : v - 1;
    return to >= 0 && to < p->assignment.vstages &&
           mf_layout_stage_of(&p->layout, to) != mf_layout_stage_of(&p->layout, v);
}

/* Ops of a rank in one step. */
static int64_t ops_of_step(const mf_program *p, const mf_schedule *s, int64_t stage) {
    mf_op ops[MF_ONCE_MAX];
    int64_t n = mf_program_optimizer(p, stage, ops, MF_ONCE_MAX);
    unsigned back = p->split ? MF_PASS_R | MF_PASS_B : MF_PASS_BACKWARD;
    for (int64_t i = 0; i < s->count[stage]; i++) {
        const mf_event *ev = &s->events[stage][i];
        int64_t v = mf_layout_vstage(&p->layout, stage, ev->chunk);
        bool pair = ev->pass == MF_EVENT_FB;
        if (ev->pass == MF_EVENT_F || pair) {
            n += ops_of_chunk(p, v, MF_PASS_F) + sends(p, v, true);
        }
        if (ev->pass == MF_EVENT_W) {
            n += ops_of_chunk(p, v, MF_PASS_W);
        }
        if (ev->pass == MF_EVENT_B || pair) {
            v = pair ? mf_layout_vstage(&p->layout, stage, ev->chunk2) : v;
            n += ops_of_chunk(p, v, back) + sends(p, v, false);
        }
    }
    for (int i = 0; i < p->assignment.positions; i++) {
        for (int k = 0; k < 2 && mf_program_stage_of(p, i) == stage; k++) {
            n += (p->dp[i].reduce[k].bytes > 0) + (p->dp[i].gather[k].bytes > 0);
        }
    }
    return n;
}

/* --- one case -----------------------------------------------------------------------------------
 */

static double relative(double got, double want) {
    double error = fabs(want) > 0 ? fabs(got / want - 1.0) : fabs(got);
    return isnan(error) ? (double)INFINITY : error;
}

static double parameter_error(grid_case *g, const grid_reference *ref, bool gradient,
                              char worst[200]) {
    const mf_params *list = mf_exec_params(g->exec);
    double most = 0.0;
    for (int i = 0; i < list->count; i++) {
        const mf_param *q = &list->list[i];
        int64_t first = 0, count = q->rows * q->cols;
        char name[200];
        const float *values = gradient ? NULL : mf_exec_param(g->exec, i);
        if (gradient) {
            values = mf_exec_own_gradient(g->exec, i, &first, &count);
        } else if (values == NULL) {
            values = mf_exec_own_weight(g->exec, i, &first, &count);
        }
        double error = grid_error(g, ref, q, gradient, values, first, count, name);
        if (error > most) {
            most = error;
            snprintf(worst, 200, "%s", name);
        }
    }
    return most;
}

/* Largest error of a case on this rank; why in `worst`. */
static double run_case(const grid_model *m, const mf_layout *l, const grid_reference *ref,
                       const mf_cost *cost, char worst[200], mf_err *e) {
    grid_case g;
    mf_exec_options o;
    double most = (double)INFINITY;
    watch w = {.g = &g, .cost = cost, .nearest = 1.0};
    grid_options(&o);
    o.after_op = look;
    o.user = &w;
    if (grid_open(&g, m, l, &o, e) != MF_OK) {
        grid_close(&g);
        return (double)NAN;
    }
    const mf_exec_batch batch = {grid_sample, &g};
    mf_status status = MF_OK;
    most = 0.0;
    for (g.step = 0; g.step < GRID_STEPS && status == MF_OK; g.step++) {
        mf_exec_result r = {0};
        status = mf_exec_step(g.exec, &batch, 1e-3, &r, e);
        double part[4] = {relative(r.lm_loss, ref->lm_loss[g.step]),
                          relative(r.grad_norm, ref->norm[g.step]),
                          relative(r.mtp_loss, ref->mtp_loss[g.step]), 0.0};
        static const char *const text[4] = {"loss", "norm", "MTP loss", ""};
        char name[200] = "";
        if (g.step == 0 && status == MF_OK) {
            part[3] = parameter_error(&g, ref, true, name);
            int64_t ops =
                ops_of_step(g.program, g.schedule, mf_layout_coords(l, mf_comm_rank(g.comm)).p);
            double gaps = (double)mf_exec_gaps_B(g.exec);
            if ((double)mf_exec_arena_B(g.exec) - gaps != mf_exec_planned_B(g.exec)) {
                snprintf(worst, 200, "arena %.0f of %.0f", (double)mf_exec_arena_B(g.exec) - gaps,
                         mf_exec_planned_B(g.exec));
                most = (double)INFINITY;
            }
            if (r.ops != ops || w.foreign > 0 || w.unpriced > 0) {
                snprintf(worst, 200, "%d ops of %d, %d foreign, %d unpriced: %s", (int)r.ops,
                         (int)ops, (int)w.foreign, (int)w.unpriced, w.text);
                most = (double)INFINITY;
            }
        }
        for (int k = 0; k < 4; k++) {
            if (part[k] > most) {
                most = part[k];
                snprintf(worst, 200, "step %d %.150s", (int)g.step + 1, k == 3 ? name : text[k]);
            }
        }
    }
    char name[200] = "";
    double weights = status == MF_OK ? parameter_error(&g, ref, false, name) : (double)NAN;
    if (weights > most) {
        most = weights;
        snprintf(worst, 200, "%s", name);
    }
    grid_close(&g);
    return status == MF_OK ? most : (double)NAN;
}

/* --- all cases ----------------------------------------------------------------------------------
 */

static bool read_references(const char *path, grid_reference ref[GRID_MODELS]) {
    FILE *f = fopen(path, "rb");
    bool ok = f != NULL;
    for (int i = 0; i < GRID_MODELS && ok; i++) {
        ok = grid_reference_move(f, &ref[i], false);
    }
    if (f != NULL) {
        fclose(f);
    }
    return ok;
}

static mf_cost *make_cost(mf_err *e) {
    mf_cluster c;
    mf_software s;
    mf_cost *cost = NULL;
    if (mf_cluster_load("cpu", &c, e) != MF_OK || mf_software_load("ideal", &s, e) != MF_OK ||
        mf_cost_create(&c, &s, NULL, &cost, e) != MF_OK) {
        return NULL;
    }
    return cost;
}

/* One process of mpirun, or the only one. `only`: one case, for debugging. */
static int child(int ranks, const char *references, int only) {
    static grid_reference ref[GRID_MODELS];
    int64_t rank = 0, size = 1;
    mf_err e = {.text = ""};
    mf_cost *cost = make_cost(&e);
    if (cost == NULL || !read_references(references, ref) ||
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
        double error = run_case(m, &l, &ref[m - grid_models], cost, worst, &e);
        bool bad = !(error <= BOUND);
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

static const char *program;
static char references[64];

static int make_references(void **state) {
    (void)state;
    snprintf(references, sizeof references, "/tmp/moefold-grid-%ld", (long)getpid());
    FILE *f = fopen(references, "wb");
    bool ok = f != NULL;
    for (int i = 0; i < GRID_MODELS && ok; i++) {
        grid_reference ref;
        mf_err e;
        ok = grid_reference_make(&grid_models[i], &ref, &e) == MF_OK;
        if (!ok) {
            printf("%s: %s\n", grid_models[i].name, e.text);
            break;
        }
        printf("%-16s loss %.6f %.6f %.6f norm %.4f, nearest choice %.1e\n", grid_models[i].name,
               ref.lm_loss[0], ref.lm_loss[1], ref.lm_loss[2], ref.norm[0], ref.nearest);
        ok = grid_reference_move(f, &ref, true);
        grid_reference_clear(&ref);
    }
    return f != NULL && fclose(f) == 0 && ok ? 0 : -1;
}

static int drop_references(void **state) {
    (void)state;
    return remove(references);
}

static void run_grid(int ranks) {
    char command[512];
    if (ranks > 1 && (!mf_comm_has_mpi() || system("command -v mpirun >/dev/null 2>&1") != 0)) {
        printf("MF_SKIPPED 1 no MPI: %d ranks are not tested\n", ranks);
        skip();
    }
    fflush(stdout);
    if (ranks == 1) {
        snprintf(command, sizeof command, "%s --child 1 %s", program, references);
    } else {
        snprintf(command, sizeof command,
                 "mpirun --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 "
                 "--mca btl_vader_single_copy_mechanism none -x ASAN_OPTIONS=detect_leaks=0 "
                 "-n %d %s --child %d %s", /* MPI's own leaks are not ours */
                 ranks, program, ranks, references);
    }
    int result = system(command);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
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
            used[CP + l.cp_type] += l.cp > 1;
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
        assert_true(used[i] > 0 || i == CP + MF_CP_HIERARCHICAL);
    }
}

static void one_rank_equals_itself_however_it_goes_about_it(void **state) {
    (void)state;
    run_grid(1);
}

static void two_ranks_equal_one(void **state) {
    (void)state;
    run_grid(2);
}

static void four_ranks_equal_one(void **state) {
    (void)state;
    run_grid(4);
}

static void eight_ranks_equal_one(void **state) {
    (void)state;
    run_grid(8);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_grid_uses_every_technique),
        cmocka_unit_test(one_rank_equals_itself_however_it_goes_about_it),
        cmocka_unit_test(two_ranks_equal_one),
        cmocka_unit_test(four_ranks_equal_one),
        cmocka_unit_test(eight_ranks_equal_one),
    };
    program = argv[0];
    if (argc > 3 && strcmp(argv[1], "--child") == 0) {
        return child(atoi(argv[2]), argv[3], argc > 4 ? atoi(argv[4]) : -1);
    }
    return cmocka_run_group_tests(tests, make_references, drop_references);
}
