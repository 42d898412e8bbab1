/* test_planner_block_costs.c - costs do not depend on what was priced before: whatever tables hold,
 * each is, to the bit, that of the block lowered for its own layout and played on its own.
 */
#include "planner/bound/stage_bound.h"
#include "planner/price/block_cache.h"
#include "planner/tuning/limits.h"
#include "simulator/sim.h"
#include "tests/support/planner_problems.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LAYOUTS = 24, BLOCKS = 12, TELLING = 40 };

typedef struct problem {
    mf_model model;
    mf_cluster cluster;
    mf_software software;
    mf_cost *cost;
    mf_space space;
    mf_evaluator_real shared, scratch; /* with a table of templates, and without */
    mf_evaluator with, without;
    mf_block_costs *costs;
} problem;

static void problem_init(problem *p, rng *r) {
    memset(p, 0, sizeof *p);
    p->model = planner_model(r, 4);
    p->cluster = planner_cluster(r);
    p->software = planner_software(r);
    p->cost = planner_cost(&p->cluster, &p->software);
    p->space = planner_space(r, &p->model, 64);
    p->space.base.aux_scope = rng_chance(r, 70) ? MF_AUX_MICRO_BATCH : MF_AUX_GLOBAL;
    p->shared = p->scratch = (mf_evaluator_real){.model = &p->model, .cost = p->cost};
    assert_ok(mf_block_cache_create(&p->shared.block_cache, NULL));
    p->with = mf_evaluator_init(&p->shared);
    p->without = mf_evaluator_init(&p->scratch);
    assert_ok(mf_block_costs_create(&p->with, &p->costs, NULL));
}

static void problem_clear(problem *p) {
    mf_block_costs_destroy(p->costs);
    mf_block_cache_destroy(p->shared.block_cache);
    mf_cost_destroy(p->cost);
}

/* Any block of the model; merged pairs have no split ones. */
static mf_block_key draw_key(rng *r, const mf_model *m, bool split) {
    mf_block_key k = {.kind = (mf_position_kind)rng_range(r, 0, 3),
                      .parts = MF_HALF_BOTH,
                      .split = split,
                      .shared_embedding = rng_chance(r, 50),
                      .shared_head = rng_chance(r, 50)};
    if (k.kind == MF_POS_MTP && m->mtp_layers == 0) {
        k.kind = MF_POS_LAYER;
    }
    if (k.kind == MF_POS_LAYER || k.kind == MF_POS_MTP) {
        mf_memory_choice choice[MF_CATALOGUE_MAX];
        k.layer_class =
            (uint8_t)(k.kind == MF_POS_MTP ? m->mtp_class : rng_range(r, 0, m->classes - 1));
        int n = mf_catalogue(m, k.layer_class, 0, (mf_memory_choice){0, 0}, choice);
        k.memory = choice[rng_range(r, 0, n - 1)];
    }
    k.unplaced = rng_chance(r, 20);
    if (k.kind == MF_POS_LAYER && rng_chance(r, 20)) {
        k.parts = rng_chance(r, 50) ? MF_HALF_ATTENTION : MF_HALF_FFN;
    }
    k.at_end = k.parts == MF_HALF_BOTH && rng_chance(r, 30);
    return k;
}

/* The passes of a block, where it is the last of its virtual stage as the simulator plays that. */
static unsigned played(const problem *p, const mf_block_key *key, unsigned passes) {
    const bool own = key->at_end && p->software.copies_in_pass > 0;
    const unsigned forward = (passes & MF_PASS_F) ? MF_SIM_LAST : 0;
    const unsigned backward = (passes & MF_PASS_B) ? MF_SIM_FIRST : 0;
    return own ? passes | forward | backward : passes;
}

static bool same_pass(const mf_pass_cost *a, const mf_pass_cost *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

static bool same_cost(const mf_block_cost *a, const mf_block_cost *b) {
    return same_pass(&a->f, &b->f) && same_pass(&a->b, &b->b) && same_pass(&a->w, &b->w) &&
           memcmp(&a->flops, &b->flops, sizeof *a - offsetof(mf_block_cost, flops)) == 0;
}

/* What the block fills of the network at least, as the simulator has it: all of it, but for what
 * ZeRO gathers and reduces inside. */
static void check_network(const problem *p, const mf_layout *l, const mf_block_key *key,
                          unsigned passes, double network) {
    mf_block *b = NULL;
    mf_block_time t;
    assert_ok(mf_block_lower(&p->model, l, &p->cluster, key, &b, NULL));
    assert_ok(mf_sim_block(p->cost, l, b, played(p, key, passes), NULL, 1.0, false, &t, NULL));
    double all = t.gpu_time_s > 0 ? t.link_s[MF_LINK_NETWORK] / t.gpu_time_s : 0;
    assert_at_most(network, all * (1 + 1e-12));
    if (l->zero < 2 && l->expert_zero < 2) {
        assert_at_most(all, network * (1 + 1e-12));
    }
    mf_block_time_clear(&t);
    mf_block_destroy(b);
}

/* How often a last block takes longer for its copies. */
static int64_t longer;

/* The simulator on the layout's own block. */
static double simulated_s(const problem *p, const mf_layout *l, const mf_block_key *key,
                          unsigned passes, const mf_block_key *beside) {
    mf_block *b = NULL, *other = NULL;
    double time_s = 0;
    assert_ok(mf_block_lower(&p->model, l, &p->cluster, key, &b, NULL));
    unsigned all = played(p, key, beside ? MF_PASS_F : passes);
    if (beside) {
        assert_ok(mf_block_lower(&p->model, l, &p->cluster, beside, &other, NULL));
        all |= played(p, beside, MF_PASS_BACKWARD);
    }
    assert_ok(mf_sim_block_gpu_s(p->cost, l, b, all, other, 1.0, &time_s, NULL));
    if (all != passes) {
        double plain_s = 0;
        assert_ok(mf_sim_block_gpu_s(p->cost, l, b, passes, other, 1.0, &plain_s, NULL));
        longer += time_s > plain_s * (1 + 1e-3);
    }
    mf_block_destroy(b);
    mf_block_destroy(other);
    return time_s;
}

static bool equal(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

/* All but what was played is the same in both, whatever the exact one is put together from; host
 * time is added up in another order. */
static void check_same_block(const mf_block_cost *exact, const mf_block_cost *rough) {
    mf_block_cost x = *exact, y = *rough;
    mf_pass_cost *pass[3][2] = {{&x.f, &y.f}, {&x.b, &y.b}, {&x.w, &y.w}};
    for (int i = 0; i < 3; i++) {
        assert_at_most(fabs(pass[i][0]->host_s - pass[i][1]->host_s), 1e-12 * pass[i][1]->host_s);
        pass[i][0]->host_s = pass[i][1]->host_s;
        pass[i][0]->time_s = pass[i][1]->time_s;
        pass[i][0]->network = pass[i][1]->network;
    }
    assert_true(same_cost(&x, &y));
}

/* How often a block keeps more where passes merge. */
static int64_t windows;

/* Bytes are those of the layout's own block, whatever they are put together from. */
static void check_bytes(const problem *p, const mf_layout *l, const mf_block_key *key,
                        const mf_block_cost *q) {
    mf_block *b = NULL;
    assert_ok(mf_block_lower_without_runs(&p->model, l, &p->cluster, key, &b, NULL));
    assert_true(equal(q->saved_B, (double)b->saved_B));
    assert_true(equal(q->held_B, key->split ? (double)b->held_B : 0.0));
    assert_true(equal(q->offload_B, (double)b->offload_B));
    assert_true(equal(q->gather_B, (double)b->gather_B));
    const int64_t comm_B = b->comm_B[l->schedule == MF_SCHED_MERGED];
    assert_true(equal(q->comm_B, (double)(comm_B + mf_block_scratch_B(b))));
    windows += b->comm_B[1] > b->comm_B[0];
    assert_true(equal(q->local_f_B, (double)b->local_f_B));
    assert_true(equal(q->local_b_B, (double)(key->split ? b->local_bs_B : b->local_b_B)));
    assert_true(equal(q->local_w_B, key->split ? (double)b->local_w_B : 0.0));
    mf_block_destroy(b);
}

static mf_block_cost fresh_cost(const problem *p, const mf_layout *l, const mf_block_key *key,
                                bool exact) {
    mf_block_cost q;
    assert_ok(p->without.ops->cost(p->without.self, l, key, exact, &q, NULL));
    q.comm_B += l->schedule == MF_SCHED_MERGED ? q.merged_comm_B : 0;
    q.merged_comm_B = 0;
    return q;
}

static void check_cost(problem *p, const mf_layout *l, const mf_block_key *key, bool exact) {
    mf_block_cost kept, fresh;
    assert_ok(mf_block_costs_get(p->costs, l, key, exact, &kept, NULL));
    fresh = fresh_cost(p, l, key, exact);
    assert_true(same_cost(&kept, &fresh));
    check_bytes(p, l, key, &kept);
    if (exact) {
        fresh = fresh_cost(p, l, key, false);
        check_same_block(&kept, &fresh);
        unsigned back = key->split ? MF_PASS_R | MF_PASS_B : MF_PASS_BACKWARD;
        if (key->shared_embedding && key->shared_head) { /* a quarter of them */
            check_network(p, l, key, MF_PASS_F, kept.f.network);
            check_network(p, l, key, back, kept.b.network);
        }
        assert_true(equal(kept.f.time_s, simulated_s(p, l, key, MF_PASS_F, NULL)));
        assert_true(equal(kept.b.time_s, simulated_s(p, l, key, back, NULL)));
        assert_true(!key->split || equal(kept.w.time_s, simulated_s(p, l, key, MF_PASS_W, NULL)));
    }
}

/* Bounds ask for least workspaces without ZeRO (family_hulls.c). */
static void check_workspace(problem *p, const mf_layout *l, const mf_block_key *key) {
    mf_block_cost sharded, plain;
    mf_layout none = *l;
    none.zero = none.expert_zero = 0;
    assert_ok(mf_block_costs_get(p->costs, l, key, false, &sharded, NULL));
    assert_ok(mf_block_costs_get(p->costs, &none, key, false, &plain, NULL));
    assert_true(equal(sharded.local_f_B, plain.local_f_B));
    assert_true(equal(sharded.local_b_B, plain.local_b_B));
    assert_true(equal(sharded.local_w_B, plain.local_w_B));
}

/* MTP depths, and those of them that keep less than all. */
static int64_t depths, choosing;

/* What is alive at one moment when an MTP depth keeps everything says how small its workspace is
 * with any choice (family_hulls.c). */
static void check_alive(problem *p, const mf_layout *l, const mf_block_key *key) {
    mf_block_cost own, all;
    mf_block_key keeps = *key;
    keeps.memory = (mf_memory_choice){0, 0};
    if (key->unplaced) {
        return;
    }
    assert_ok(mf_block_costs_get(p->costs, l, key, false, &own, NULL));
    assert_ok(mf_block_costs_get(p->costs, l, &keeps, false, &all, NULL));
    if (key->kind != MF_POS_MTP) {
        assert_true(equal(all.alive_B, 0));
        return;
    }
    assert_above(all.alive_B, 0);
    assert_at_most(all.alive_B, own.local_b_B);
    depths++;
    choosing += key->memory.recompute != 0 || key->memory.offload != 0;
}

/* How much less a merged pair takes at most with what ZeRO levels add than without. */
static double least_share = 1;

static double pass_s(const mf_pass_cost *q) {
    return fmax(q->bound_s, q->time_s);
}

/* Bounds rest on blocks without ZeRO, which only adds to them (split_orders.c). */
static void check_levels(problem *p, const mf_layout *l, const mf_block_key *key,
                         const mf_block_key *beside) {
    mf_block_cost own, plain;
    mf_layout none = *l;
    none.zero = none.expert_zero = 0;
    assert_ok(mf_block_costs_get(p->costs, l, key, true, &own, NULL));
    assert_ok(mf_block_costs_get(p->costs, &none, key, true, &plain, NULL));
    assert_at_most(pass_s(&plain.f) * MF_LEVELS_SAFETY, pass_s(&own.f));
    assert_at_most(pass_s(&plain.b) * MF_LEVELS_SAFETY, pass_s(&own.b));
    assert_at_most(pass_s(&plain.w) * MF_LEVELS_SAFETY, pass_s(&own.w));
    assert_true(equal(own.saved_B, plain.saved_B));
    assert_at_most(plain.held_B, own.held_B);
    assert_at_most(plain.comm_B, own.comm_B);
    if (beside) {
        double own_s, plain_s;
        assert_ok(mf_block_costs_pair(p->costs, l, key, beside, &own_s, NULL));
        assert_ok(mf_block_costs_pair(p->costs, &none, key, beside, &plain_s, NULL));
        assert_at_most(plain_s * MF_LEVELS_SAFETY, own_s);
        least_share = fmin(least_share, own_s / plain_s);
    }
}

static void check_pair(problem *p, const mf_layout *l, const mf_block_key *f,
                       const mf_block_key *b) {
    double kept_s, fresh_s;
    assert_ok(mf_block_costs_pair(p->costs, l, f, b, &kept_s, NULL));
    assert_ok(p->without.ops->pair(p->without.self, l, f, b, &fresh_s, NULL));
    assert_true(equal(kept_s, fresh_s));
    assert_true(equal(kept_s, simulated_s(p, l, f, MF_PASS_F | MF_PASS_BACKWARD, b)));
}

/* Twice as many data-parallel ranks: more GPUs of a host that share its memory, where the
 * cluster has them.
 */
static mf_layout twice_the_gpus(const problem *p, mf_layout l) {
    l.gpus *= 2;
    l.dp *= 2;
    l.edp *= 2;
    l.gbs *= 2;
    assert_ok(mf_layout_resolve(&l, &p->model, NULL));
    return l;
}

/* Few blocks under many layouts, which differ in little: tables answer often, for other layouts. */
static void costs_do_not_depend_on_what_was_asked_before(void **state) {
    (void)state;
    rng r = rng_init(7101);
    int cases = planner_cases(60, 3);
    for (int i = 0; i < cases; i++) {
        problem p;
        mf_block_key key[BLOCKS];
        problem_init(&p, &r);
        bool split = rng_chance(&r, 40);
        for (int k = 0; k < BLOCKS; k++) {
            key[k] = draw_key(&r, &p.model, split);
        }
        for (int n = 0; n < LAYOUTS; n++) {
            mf_layout l;
            if (!planner_layout(&r, &p.space, &l)) {
                continue;
            }
            for (int k = 0; k < BLOCKS; k++) {
                int other = (int)rng_range(&r, 0, BLOCKS - 1);
                check_cost(&p, &l, &key[k], rng_chance(&r, 80));
                const bool pair =
                    !split && key[k].parts == MF_HALF_BOTH && key[other].parts == MF_HALF_BOTH;
                const mf_layout twice = twice_the_gpus(&p, l);
                check_cost(&p, &twice, &key[k], true);
                mf_layout merged = l;
                merged.schedule = split ? l.schedule : MF_SCHED_MERGED;
                check_cost(&p, &merged, &key[k], true);
                check_workspace(&p, &l, &key[k]);
                check_alive(&p, &l, &key[k]);
                check_levels(&p, &l, &key[k], pair ? &key[other] : NULL);
                if (pair) {
                    check_pair(&p, &l, &key[k], &key[other]);
                }
            }
        }
        problem_clear(&p);
    }
    printf("  %lld last blocks take longer, pairs with ZeRO at least %.6f x\n", (long long)longer,
           least_share);
    printf("  %lld blocks keep more where passes merge\n", (long long)windows);
    printf("  %lld MTP depths, %lld with a choice\n", (long long)depths, (long long)choosing);
    if (cases >= TELLING) { /* of a few, none may copy */
        assert_above(longer, cases);
        assert_above(windows, cases);
        assert_above(choosing, cases);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_do_not_depend_on_what_was_asked_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
