/* Bounds of families and layouts lie at or below the simulated step of every plan in them: at every
 * level of the search, over random models, clusters, software, spaces, layouts and assignments.
 * Prints how near they come. */
#include "tests/support/planner_world.h"

#include "planner/bound/memory_bound.h"
#include "planner/partition/rows.h"

#include <stdio.h>

/* Sums are added up in another order here and there. */
#define HAIR 1e-9

typedef enum kind {
    SIDE,
    POINT,
    STAGES,
    MODE,
    ORDER,
    LAYOUT,
    BOUND,
    LEAN,
    SPLITS, /* the tree over splits, whole or cut off somewhere near the best plan */
    SPLIT,  /* one split, told what it loses, against every plan of it */
    EXACT,
    RELAX,   /* relaxations, lean and with the choices that stand for all */
    MEAN,    /* a mean of chains, this layout's or those of an earlier one of the same order */
    ROUGH,   /* the same from rough rates, */
    CHOICES, /* and those of all choices */
    CHAIN,   /* longest chain of one assignment against that assignment */
    LOSSES,  /* the same with the losses of that very assignment */
    HALVES,  /* a layer by its halves against the whole one, weight gradients split off */
    SHARE,   /* shares of a merged pair against that pair, of a block alone against that block */
    ROOM,    /* bytes that a layout needs at least, against the leanest of its plans */
    KINDS
} kind;
static const char *const kind_text[KINDS] = {
    "side",  "point", "stages", "mode",  "order",   "layout", "bound",  "lean",   "splits", "split",
    "exact", "relax", "mean",   "rough", "choices", "chain",  "losses", "halves", "share",  "room"};

/* How near the bounds of a kind came: bound over the fastest plan that was tried. */
typedef struct nearness {
    int64_t tried, broken; /* above a plan: the first few are printed, the test goes on */
    double loosest, tightest, sum;
} nearness;

static void note(nearness *n, double ratio) {
    n->loosest = n->tried == 0 ? ratio : fmin(n->loosest, ratio);
    n->tightest = n->tried == 0 ? ratio : fmax(n->tightest, ratio);
    n->sum += ratio;
    n->tried++;
}

static void print_nearness(const nearness *n) {
    for (int k = 0; k < KINDS; k++) {
        if (n[k].tried > 0) {
            printf("  %-7s %6lld bounds (%lld broken): loosest %.4f, mean %.4f, tightest %.9f\n",
                   kind_text[k], (long long)n[k].tried, (long long)n[k].broken, n[k].loosest,
                   n[k].sum / (double)n[k].tried, n[k].tightest);
        }
    }
}

/* --- a problem and a layout of it ------------------------------------------------------------- */

typedef struct problem {
    mf_model model;
    mf_cluster cluster;
    mf_software software;
    mf_routing routing;
    mf_cost *cost;
    mf_evaluator_real real;
    mf_evaluator evaluator;
    mf_space space;
} problem;

static void problem_init(problem *p, rng *r, int64_t layers, int64_t gpus) {
    memset(p, 0, sizeof *p);
    p->model = planner_model(r, layers);
    p->cluster = planner_cluster(r);
    p->software = planner_software(r);
    p->cost = planner_cost(&p->cluster, &p->software);
    mf_routing_init(&p->routing);
    if (rng_chance(r, 20)) {
        p->routing.kind = MF_ROUTING_ZIPF;
        p->routing.zipf_s = rng_between(r, 0, 1.5);
    }
    p->real = (mf_evaluator_real){.model = &p->model, .cost = p->cost, .routing = &p->routing};
    p->evaluator = mf_evaluator_init(&p->real);
    p->space = planner_space(r, &p->model, gpus);
}

static void problem_clear(problem *p) {
    mf_cost_destroy(p->cost);
    mf_routing_clear(&p->routing);
}

#define TRIES 6

/* A layout with assignments that were simulated. */
typedef struct sample {
    mf_layout layout;
    mf_assignment a[TRIES];
    mf_step step[TRIES];
    const mf_model *model;
    int best;      /* fastest that fits, or -1 */
    uint64_t seed; /* MF_SEED that starts with this problem */
} sample;

/* Gives the GPUs just the memory that one of the plans takes, so that bounds that ask for a byte
 * too much show. */
static void tighten(rng *r, problem *p, sample *s) {
    double peak_B = s->step[rng_range(r, 0, TRIES - 1)].peak_B + 1.0;
    p->cluster.gpu.memory_B = peak_B / (1.0 - p->space.base.reserve);
    mf_cost_destroy(p->cost);
    p->cost = planner_cost(&p->cluster, &p->software);
    p->real.cost = p->cost;
    s->best = -1;
    for (int i = 0; i < TRIES; i++) {
        mf_step *step = &s->step[i];
        double time_s = step->time_s;
        assert_ok(
            p->evaluator.ops->step(p->evaluator.self, &s->layout, &s->a[i], false, step, NULL));
        step->time_s = time_s; /* does not depend on memory */
        if (step->fits && (s->best < 0 || time_s < s->step[s->best].time_s)) {
            s->best = i;
        }
    }
}

static bool draw(rng *r, problem *p, sample *s) {
    if (!planner_layout(r, &p->space, &s->layout)) {
        return false;
    }
    s->model = &p->model;
    s->best = -1;
    for (int i = 0; i < TRIES; i++) {
        mf_err e;
        planner_assignment(r, &p->space, &s->layout, &s->a[i]);
        if (p->evaluator.ops->step(p->evaluator.self, &s->layout, &s->a[i], true, &s->step[i],
                                   &e) != MF_OK) {
            fail_msg("%s", e.text);
        }
        if (s->step[i].fits && (s->best < 0 || s->step[i].time_s < s->step[s->best].time_s)) {
            s->best = i;
        }
    }
    if (rng_chance(r, 60)) {
        tighten(r, p, s);
    }
    return true;
}

static void check(nearness *n, kind k, double bound_s, const sample *s, int which) {
    double time_s = s->step[which].time_s;
    if (!(bound_s <= time_s * (1.0 + HAIR))) {
        if (n[k].broken++ < 3) {
            printf("seed %llu: the %s bound %.12g s is above a plan of %.12g s by %.2g\n",
                   (unsigned long long)s->seed, kind_text[k], bound_s, time_s,
                   bound_s / time_s - 1.0);
            planner_print_model(s->model);
            planner_print(&s->layout, &s->a[which]);
        }
    }
    if (bound_s < HUGE_VAL) {
        note(&n[k], bound_s / time_s);
    }
}

/* --- families --------------------------------------------------------------------------------- */

/* Does the family of a node hold the layout, as far as the node's level fixes it? */
static bool holds(const mf_search_world *w, const mf_search_node *n, const mf_layout *l) {
    const mf_search_side *side = &w->side[n->side];
    const mf_dense_point *d = &w->dense[side->first];
    mf_layout x = mf_search_layout(w, n);
    bool same = d->precision == (uint8_t)l->precision && d->cp_type == (uint8_t)l->cp_type &&
                d->tp == l->tp && d->cp == l->cp && d->mbs == l->mbs;
    if (n->level >= MF_LEVEL_POINT) {
        same &= x.ep == l->ep && x.etp == l->etp && x.dispatcher == l->dispatcher;
    }
    if (n->level >= MF_LEVEL_STAGES) {
        same &= x.pp == l->pp;
    }
    if (n->level >= MF_LEVEL_MODE) {
        same &= (mf_floor_mode)n->mode == mf_floor_mode_of(l->schedule);
    }
    if (n->level >= MF_LEVEL_ORDER) {
        same &= x.schedule == l->schedule && x.vpp == l->vpp;
    }
    if (n->level >= MF_LEVEL_LAYOUT) {
        same &= x.zero == l->zero && x.expert_zero == l->expert_zero;
    }
    return same;
}

/* Walks from the families of the first level down to the layout; every bound on the way counts.
 * Returns the node of the layout. A family that is dropped though nothing is known to be faster
 * says that nothing in it fits. */
static bool walk_down(mf_search_world *w, const sample *s, nearness *n, mf_search_node *at) {
    static const kind kinds[] = {SIDE, POINT, STAGES, MODE, ORDER, LAYOUT};
    mf_search_outcome out = {.status = MF_OK};
    mf_err e;
    if (mf_search_start(w, &out, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    at->level = MF_LEVEL_SIDE;
    for (;;) {
        int found = -1, level = at->level;
        for (int64_t i = 0; i < out.children; i++) {
            if (holds(w, &out.child[i], &s->layout)) {
                assert_int_equal(found, -1); /* families share no layout */
                found = (int)i;
            }
        }
        if (found < 0) {
            free(out.child);
            if (s->best >= 0) {
                check(n, kinds[level], HUGE_VAL, s, s->best);
            }
            return false;
        }
        *at = out.child[found];
        level = at->level;
        free(out.child);
        if (s->best >= 0) {
            check(n, kinds[level], at->key_s, s, s->best);
        }
        if (level == MF_LEVEL_LAYOUT) {
            return true;
        }
        memset(&out, 0, sizeof out);
        const mf_search_aim aim = {HUGE_VAL, HUGE_VAL, HUGE_VAL, .none = true};
        mf_search_split(w, at, &aim, &out);
        if (out.status != MF_OK) {
            fail_msg("%s", out.err.text);
        }
    }
}

/* --- one layout ------------------------------------------------------------------------------- */

/* The counts of an assignment; false when it takes a choice that the class has not kept. */
static bool counts_of(const mf_partition *in, const mf_assignment *a, double *count) {
    memset(count, 0, mf_partition_cells(in) * sizeof *count);
    for (int v = 0; v < a->vstages; v++) {
        for (int i = a->first[v]; i < a->first[v + 1]; i++) {
            const mf_partition_class *c = mf_partition_class_at(in, v, in->slot_at[i]);
            mf_position_kind place = mf_position_kind_of(in->model, i);
            bool free_choice = place == MF_POS_LAYER || place == MF_POS_MTP;
            int m = 0;
            while (free_choice && m < c->choices &&
                   memcmp(&c->choice[m].memory, &a->memory[i], sizeof a->memory[i]) != 0) {
                m++;
            }
            if (m == c->choices) {
                return false;
            }
            count[mf_partition_cell(in, v, in->slot_at[i], m)] += 1.0;
        }
    }
    return true;
}

/* What passes lose, told with all that is known of the plan: where its positions stand, and what it
 * takes. The chain's own figures say what it takes. */
static void check_losses(mf_partition *in, const sample *s, int plan, const double *count,
                         mf_order_chain *chain, nearness *n) {
    int positions[MF_MAX_VSTAGES];
    for (int v = 0; v < in->vstages; v++) {
        positions[v] = s->a[plan].first[v + 1] - s->a[plan].first[v];
    }
    mf_partition_losses(in, positions, s->step[plan].time_s * (1.0 + 1e-9));
    assert_ok(mf_partition_play(in, count, false, NULL, chain, NULL));
    check(n, LOSSES, chain->time_s, s, plan);
    double sum_s = mf_partition_chain_fixed_s(in, chain);
    for (int v = 0; v < in->vstages; v++) {
        for (int slot = 0; slot < in->slots; slot++) {
            const mf_partition_class *c = mf_partition_class_at(in, v, slot);
            for (int m = 0; m < c->choices; m++) {
                double layers = count[mf_partition_cell(in, v, slot, m)];
                for (int p = 0; p < MF_ORDER_PARTS && layers > 0.0; p++) {
                    sum_s += layers * chain->count[p][v] *
                             mf_partition_part_s(in, c, m, (mf_order_part)p, false);
                }
            }
        }
    }
    assert_at_most(fabs(sum_s - chain->time_s), 1e-9 * chain->time_s);
}

/* The longest chain through the order is a bound of that very assignment, fitting or not. */
static void check_chains(mf_partition *in, const sample *s, nearness *n) {
    mf_order_chain chain;
    double *count = calloc(mf_partition_cells(in), sizeof *count);
    assert_ok(mf_order_chain_init(&chain, in->vstages, NULL));
    for (int i = 0; i < TRIES; i++) {
        if (counts_of(in, &s->a[i], count)) {
            mf_partition_losses(in, NULL, INFINITY);
            assert_ok(mf_partition_play(in, count, false, NULL, &chain, NULL));
            check(n, CHAIN, chain.time_s, s, i);
            check_losses(in, s, i, count, &chain, n);
        }
    }
    mf_partition_losses(in, NULL, INFINITY);
    mf_order_chain_clear(&chain);
    free(count);
}

/* A block that a class stands for, with one of its choices: MTP depths of any place, and tables on
 * its stage or not, whatever the class says. */
static mf_block_key draw_block(rng *r, const mf_partition *in, int *class, int *choice) {
    *class = (int)rng_range(r, 0, in->classes - 1);
    const mf_partition_class *c = &in->class[*class];
    *choice = (int)rng_range(r, 0, c->choices - 1);
    mf_block_key key = c->key;
    key.memory = c->choice[*choice].memory;
    bool mtp = key.kind == MF_POS_MTP;
    key.shared_embedding = rng_chance(r, 50);
    key.shared_head = rng_chance(r, 50);
    int64_t depth = mtp ? rng_range(r, 1, in->model->mtp_layers) : 1;
    key.after_depth = depth > 1;
    key.before_depth = mtp && depth < in->model->mtp_layers;
    return key;
}

static void note_share(nearness *n, kind k, const sample *s, const char *what, double share_s,
                       double time_s) {
    if (!(share_s <= time_s * (1.0 + HAIR)) && n[k].broken++ < 3) {
        printf("seed %llu: %s share %.12g s is above %.12g s by %.2g\n",
               (unsigned long long)s->seed, what, share_s, time_s, share_s / time_s - 1.0);
        planner_print_model(s->model);
        planner_print(&s->layout, &s->a[0]);
    }
    note(&n[k], time_s > 0.0 ? share_s / time_s : 1.0);
}

/* Pairs of any forward with any backward block. */
static void check_shares(rng *r, mf_partition *in, const sample *s, nearness *n) {
    for (int i = 0; in->merged && i < 150; i++) {
        int f, m, b, k;
        double pair_s = 0.0;
        mf_block_cost forward, backward;
        mf_block_key fk = draw_block(r, in, &f, &m), bk = draw_block(r, in, &b, &k);
        assert_ok(mf_block_costs_pair(in->costs, &in->layout, &fk, &bk, &pair_s, NULL));
        assert_ok(mf_block_costs_get(in->costs, &in->layout, &fk, true, &forward, NULL));
        assert_ok(mf_block_costs_get(in->costs, &in->layout, &bk, true, &backward, NULL));
        for (int set = 0; set < MF_SHARES; set++) {
            double f_s = in->class[f].choice[m].f_pair_s[set];
            double b_s = in->class[b].choice[k].b_pair_s[set];
            note_share(n, SHARE, s, "a pair's", f_s + b_s, pair_s);
            note_share(n, SHARE, s, "a forward pass's", f_s, forward.f.time_s);
            note_share(n, SHARE, s, "a backward pass's", b_s, backward.b.time_s);
        }
    }
}

static void check_programs(mf_partition *in, const sample *s, nearness *n) {
    static const kind kinds[] = {LEAN, EXACT};
    for (int i = 0; i < 2; i++) {
        mf_partition_options o = {.lean = kinds[i] == LEAN,
                                  .cutoff_s = HUGE_VAL,
                                  .target_s = HUGE_VAL,
                                  .gap = 1e-3,
                                  .node_limit = 40};
        mf_partition_solution x;
        mf_err e;
        if (mf_partition_solve(in, NULL, &o, &x, &e) != MF_OK) {
            fail_msg("%s", e.text);
        }
        assert_int_not_equal(x.outcome, MF_MILP_FAILED);
        if (s->best >= 0) {
            check(n, kinds[i], x.bound_s, s, s->best);
        }
        mf_partition_solution_clear(&x);
    }
}

/* With any cutoff the tree's bound holds; cut off below the best plan, the cutoff is what it proves
 * at most. */
static void check_splits(mf_partition *in, const sample *s, nearness *n) {
    static const double cutoffs[] = {0.97, 1.003, 1.02, 1.1, 0};
    double best_s = s->best >= 0 ? s->step[s->best].time_s : 1.0;
    for (size_t i = 0; i < 2 * sizeof cutoffs / sizeof cutoffs[0]; i++) {
        bool cut = cutoffs[i / 2] > 0;
        mf_partition_split_options o = {.cutoff_s = cut ? cutoffs[i / 2] * best_s : HUGE_VAL,
                                        .lp_limit = cut ? 60 : 12,
                                        .told = i % 2 == 1};
        mf_partition_split_result x;
        mf_err e;
        if (mf_partition_splits(in, &o, &x, &e) != MF_OK) {
            fail_msg("%s", e.text);
        }
        assert_int_not_equal(x.outcome, MF_MILP_FAILED);
        assert_at_most(x.bound_s, o.cutoff_s * (1.0 + 1e-12));
        if (x.have) {
            assert_true(mf_partition_is_split(in, x.first));
            assert_at_most(x.bound_s, x.split_bound_s);
        }
        if (s->best >= 0) {
            check(n, SPLITS, x.bound_s, s, s->best);
        }
        mf_partition_split_result_clear(&x);
    }
}

static void check_one_split(mf_partition *in, const sample *s, nearness *n) {
    for (int i = 0; i < TRIES; i++) {
        double cutoffs[] = {HUGE_VAL, s->step[i].time_s * (1.0 + 1e-9)};
        for (int k = 0; k < 2 && s->step[i].fits; k++) {
            int first[MF_MAX_VSTAGES + 1];
            mf_partition_told x = {.cutoff_s = cutoffs[k]};
            for (int v = 0; v <= in->vstages; v++) {
                first[v] = s->a[i].first[v];
            }
            double share = in->losses.share[0], start_s = in->losses.start_s;
            assert_ok(mf_rows_told(in, first, &x, NULL));
            check(n, SPLIT, x.bound_s, s, i);
            assert_above(x.bound_s, 0.0);
            assert_memory_equal(&share, &in->losses.share[0], sizeof share);
            assert_memory_equal(&start_s, &in->losses.start_s, sizeof start_s);
        }
    }
}

/* Chains of earlier layouts, whatever their models and clusters were: an order is an order. */
typedef struct pool {
    mf_search_chains *of[64];
    int count, next;
} pool;

static const mf_chains *pool_find(const pool *k, const mf_layout *l) {
    for (int i = 0; i < k->count; i++) {
        const mf_search_chains *c = k->of[i];
        if (c->schedule == (int)l->schedule && c->pp == l->pp && c->vpp == l->vpp &&
            c->micro_batches == l->micro_batches) {
            return &c->chains;
        }
    }
    return NULL;
}

static void pool_drop(mf_search_chains *c) {
    if (c) {
        mf_chains_clear(&c->chains);
        free(c);
    }
}

static void pool_keep(pool *k, const mf_layout *l, mf_chains *chains) {
    mf_search_chains *c = calloc(1, sizeof *c);
    *c = (mf_search_chains){.pp = l->pp,
                            .vpp = l->vpp,
                            .micro_batches = l->micro_batches,
                            .schedule = (int)l->schedule,
                            .chains = *chains};
    pool_drop(k->of[k->next]);
    k->of[k->next] = c;
    k->next = (k->next + 1) % 64;
    k->count = k->count < 64 ? k->count + 1 : 64;
}

static void pool_clear(pool *k) {
    for (int i = 0; i < 64; i++) {
        pool_drop(k->of[i]);
    }
}

static void check_mean(mf_partition *in, const mf_chains *chains, const sample *s, nearness *n) {
    double bound_s = 0.0;
    if (chains && chains->part[0]) {
        assert_ok(mf_partition_mean_s(in, chains, &bound_s, NULL));
        check(n, MEAN, bound_s, s, s->best);
    }
}

static void check_relaxations(mf_partition *in, const sample *s, pool *k, nearness *n) {
    if (s->best < 0) {
        return;
    }
    mf_partition_losses(in, NULL, s->step[s->best].time_s * (1.0 + 1e-9));
    check_mean(in, pool_find(k, &s->layout), s, n);
    for (int i = 0; i < 2; i++) { /* lean, and the root of the tree over splits */
        mf_chains chains;
        double bound_s = 0.0;
        const mf_chains *known = pool_find(k, &s->layout);
        if (i == 0) {
            mf_milp_outcome outcome;
            assert_ok(mf_partition_relax(in, known, HUGE_VAL, 0, MF_MILP_FAULT_NONE, &chains, NULL,
                                         &outcome, &bound_s, NULL));
            assert_int_equal(outcome, MF_MILP_OPTIMAL); /* a plan fits */
        } else {
            mf_partition_split_options o = {
                .cutoff_s = HUGE_VAL, .lp_limit = 0, .known = known, .kept = &chains};
            mf_partition_split_result x;
            assert_ok(mf_partition_splits(in, &o, &x, NULL));
            bound_s = x.bound_s;
            mf_partition_split_result_clear(&x);
        }
        check(n, RELAX, bound_s, s, s->best);
        check_mean(in, &chains, s, n);
        if (chains.part[0]) {
            pool_keep(k, &s->layout, &chains);
        } else {
            mf_chains_clear(&chains);
        }
    }
}

/* The rough bound of the layout with chains that are known for its order. */
static void check_rough(mf_search_world *w, const mf_search_node *node, const sample *s, pool *k,
                        nearness *n) {
    const mf_chains *chains = pool_find(k, &s->layout);
    mf_search_chains *kept = calloc(1, sizeof *kept);
    mf_search_outcome out = {.status = MF_OK};
    mf_search_node at = *node;
    if (s->best < 0 || !chains) {
        free(kept);
        return;
    }
    *kept = (mf_search_chains){.pp = s->layout.pp,
                               .vpp = s->layout.vpp,
                               .micro_batches = s->layout.micro_batches,
                               .schedule = (int)s->layout.schedule};
    mf_chains_init(&kept->chains, chains->stages, chains->chunks);
    for (int i = 0; i < chains->count; i++) {
        assert_ok(mf_chains_add(&kept->chains, &chains->chain[i], NULL));
        kept->chains.weight[i] = chains->weight[i];
    }
    int stage_of[MF_MAX_VSTAGES];
    for (int v = 0; v < chains->vstages; v++) {
        stage_of[v] = (int)mf_layout_stage_of(&s->layout, v);
    }
    assert_true(mf_chains_weigh(&kept->chains, stage_of));
    mf_search_keep_chains(w, kept, 0);
    at.key_s = 0.0;
    for (int tries = 0; tries < 2; tries++) { /* with the fastest choices, with all of them */
        double best_s = s->step[s->best].time_s, cutoff_s[] = {HUGE_VAL, best_s * (1.0 + 1e-9)};
        for (int i = 0; i < 2; i++) {
            at.key_s = 0.0;
            at.tries = (uint8_t)tries;
            const mf_search_aim aim = {
                .best_s = cutoff_s[i], .target_s = HUGE_VAL, .none = isinf(cutoff_s[i])};
            double bound_s = mf_search_rebound(w, &at, &aim, &out);
            assert_ok(out.status);
            check(n, tries == 0 ? ROUGH : CHOICES, bound_s, s, s->best);
        }
    }
    walk_down(w, s, n, &at); /* families, with these chains */
}

/* The leanest of many plans, of which most have the same memory choice everywhere. */
static double leanest_B(rng *r, const problem *p, const sample *s) {
    static mf_assignment a;
    double least_B = HUGE_VAL;
    for (int i = 0; i < 40; i++) {
        mf_step step;
        planner_assignment(r, &p->space, &s->layout, &a);
        mf_memory_choice same = a.memory[rng_range(r, 1, a.positions - 2)];
        for (int k = 1; k + 1 < a.positions && i % 4 > 0; k++) {
            a.memory[k] = same;
        }
        assert_ok(p->evaluator.ops->count(p->evaluator.self, &s->layout, &a, &step, NULL));
        least_B = fmin(least_B, step.peak_B);
    }
    return least_B;
}

/* The least memory that the layout is said to fit into. */
static void check_room(rng *r, const mf_partition *in, const problem *p, const sample *s,
                       nearness *n) {
    mf_room room;
    const double fixed_B = p->evaluator.ops->fixed_B(p->evaluator.self, &s->layout);
    double least_B = leanest_B(r, p, s), low_B = 0.0;
    assert_ok(mf_room_of(in->costs, &s->layout, p->space.pinned, &room, NULL));
    double high_B = 2.0 * least_B;
    for (int i = 0; i < 50; i++) {
        room.usable_B = 0.5 * (low_B + high_B);
        *(mf_room_fits(&room, &s->layout, &in->order, fixed_B) ? &high_B : &low_B) = room.usable_B;
    }
    n[ROOM].broken += high_B > least_B * (1.0 + HAIR);
    note(&n[ROOM], high_B / least_B);
    if (high_B > least_B * (1.0 + HAIR)) {
        printf("MF_SEED=%llu: needs %.0f bytes, and a plan takes %.0f\n",
               (unsigned long long)s->seed, high_B, least_B);
    }
}

static void check_layout(rng *r, mf_search_world *w, const problem *p, const sample *s, pool *k,
                         nearness *n) {
    mf_partition *in = NULL;
    mf_err e;
    double bound_s = 0.0;
    bool have = false;
    if (mf_partition_create(w->costs, &s->layout, p->space.pinned, NULL, &in, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    int *first = calloc((size_t)in->vstages + 1, sizeof *first);
    assert_ok(mf_partition_bound(in, HUGE_VAL, &bound_s, first, &have, NULL));
    if (s->best >= 0) {
        check(n, BOUND, bound_s, s, s->best);
    }
    free(first);
    check_room(r, in, p, s, n);
    check_chains(in, s, n);
    check_shares(r, in, s, n);
    check_relaxations(in, s, k, n);
    assert_ok(mf_partition_sharpen(in, NULL));
    check_chains(in, s, n);
    check_shares(r, in, s, n);
    check_programs(in, s, n);
    check_splits(in, s, n);
    check_one_split(in, s, n);
    mf_partition_destroy(in);
}

/* Halves of layers are priced with weight gradients in their backward passes: whatever travels
 * meanwhile, the whole layer with these split off takes no less. */
static void check_halves(rng *r, nearness *n) {
    static sample s;
    problem p;
    s.seed = r->state;
    problem_init(&p, r, 5, 64);
    for (int k = 0; k < 20; k++) {
        mf_block_costs *costs = NULL;
        mf_layer_times halves, whole;
        if (!planner_layout(r, &p.space, &s.layout)) {
            continue;
        }
        s.model = &p.model;
        s.layout.schedule = MF_SCHED_ZB_H1; /* rates ask for no more than how passes are played */
        s.layout.zero = s.layout.expert_zero = 0;
        assert_ok(mf_block_costs_create(&p.evaluator, &costs, NULL));
        assert_ok(mf_layer_times_halves(costs, &s.layout, &halves, NULL));
        assert_ok(mf_layer_times_whole(costs, &s.layout, &whole, NULL));
        const mf_family_bound_pass *of[][2] = {{&halves.layer, &whole.layer},
                                               {&halves.all, &whole.all},
                                               {&halves.embedding, &whole.embedding},
                                               {&halves.head, &whole.head}};
        for (int i = 0; i < 4; i++) {
            note_share(n, HALVES, &s, "a half's", of[i][0]->time_s[MF_FLOOR_SPLIT],
                       of[i][1]->time_s[MF_FLOOR_SPLIT]);
        }
        mf_block_costs_destroy(costs);
    }
    problem_clear(&p);
}

/* A problem, three layouts of it. Chains are kept for later problems. */
static void check_problem(rng *r, pool *known, nearness *n) {
    static sample s;
    problem p;
    s.seed = r->state;
    rng pairs = {r->state}; /* of its own: problems stay what they were */
    problem_init(&p, r, 5, 16);
    for (int k = 0; k < 3 && draw(r, &p, &s); k++) {
        mf_search_world w;
        mf_search_node node;
        mf_block_costs *costs;
        assert_ok(mf_block_costs_create(&p.evaluator, &costs, NULL));
        assert_ok(mf_search_world_init(&w, costs, &p.space, NULL));
        if (walk_down(&w, &s, n, &node)) {
            check_layout(&pairs, &w, &p, &s, known, n);
            check_rough(&w, &node, &s, known, n);
        }
        mf_search_world_clear(&w);
        mf_block_costs_destroy(costs);
    }
    problem_clear(&p);
}

/* Pipelines of some depth with data parallelism beside compute, where passes lose most. */
static void check_pipelines(rng *r, nearness *n, int *lost) {
    static sample s;
    problem p;
    s.seed = r->state;
    rng lean = {r->state}; /* of its own: problems stay what they were */
    problem_init(&p, r, 12, 32);
    p.space.base.gpus = 1 << rng_range(r, 2, 5);
    p.space.base.gbs = p.space.base.gpus * rng_range(r, 1, 12);
    p.space.base.overlap |= MF_OVERLAP_DP;
    for (int k = 0; k < 12; k++) {
        mf_partition *in = NULL;
        mf_block_costs *costs = NULL;
        if (!planner_layout(r, &p.space, &s.layout) || s.layout.pp < 2 ||
            s.layout.dp * s.layout.cp < 2) {
            continue;
        }
        s.model = &p.model;
        for (int i = 0; i < TRIES; i++) {
            planner_assignment(r, &p.space, &s.layout, &s.a[i]);
            assert_ok(p.evaluator.ops->step(p.evaluator.self, &s.layout, &s.a[i], true, &s.step[i],
                                            NULL));
        }
        assert_ok(mf_block_costs_create(&p.evaluator, &costs, NULL));
        assert_ok(mf_partition_create(costs, &s.layout, p.space.pinned, NULL, &in, NULL));
        *lost += in->losses.start_s > 0.0 || in->losses.share[0] > 0.0;
        check_chains(in, &s, n);
        check_room(&lean, in, &p, &s, n);
        mf_partition_destroy(in);
        mf_block_costs_destroy(costs);
    }
    problem_clear(&p);
}

/* Pipelines that once had a chain above a plan. */
static const uint64_t pipelines_once_broken[] = {
    UINT64_C(717525595070122326),   /* holds of sends counted beside losses, of reductions, */
    UINT64_C(10791889005438349650), /* of both, */
    UINT64_C(5673296433523575432),  /* and of gathers */
    UINT64_C(16149391553371608591), /* weights quantised in other shards than experts' */
    UINT64_C(13913629693372772074), /* a backward pass quicker beside an embedding than alone */
    UINT64_C(479547202218865441),   /* weights of all stages quantised more slowly than fewer */
    UINT64_C(1579758967191526944),  /* a pair's shares, least of all choices, below nothing */
};

/* Chains count what passes lose to gathers and reductions beside them, never too much. */
static void losses_of_pipelines_are_never_more_than_played(void **state) {
    (void)state;
    rng r = rng_init(7002);
    nearness n[KINDS] = {{0}};
    int cases = planner_cases(200, 20), lost = 0;
    for (size_t i = 0; i < sizeof pipelines_once_broken / sizeof pipelines_once_broken[0]; i++) {
        rng fixed = {pipelines_once_broken[i]};
        check_pipelines(&fixed, n, &lost);
    }
    for (int i = 0; i < cases; i++) {
        check_pipelines(&r, n, &lost);
    }
    print_nearness(n);
    assert_int_equal(n[CHAIN].broken, 0);
    assert_int_equal(n[LOSSES].broken, 0);
    assert_int_equal(n[ROOM].broken, 0);
    assert_above(n[ROOM].tightest, 0.99);
    assert_above(lost, cases / 2); /* most cases have something to lose */
}

static void halves_of_layers_take_no_more_than_whole_ones(void **state) {
    (void)state;
    rng r = rng_init(7003);
    nearness n[KINDS] = {{0}};
    int cases = planner_cases(200, 20);
    for (int i = 0; i < cases; i++) {
        check_halves(&r, n);
    }
    print_nearness(n);
    assert_int_equal(n[HALVES].broken, 0);
    assert_above(n[HALVES].tightest, 0.9);
}

/* Problems that once had a bound above a plan. */
static const uint64_t once_broken[] = {
    UINT64_C(2966057787105133910),  /* zb-h1: the way back before a stage counted as behind it */
    UINT64_C(12643127486875744537), /* merged: what recomputes may be quicker backward */
    UINT64_C(2384525845150119317),  /* merged: two passes that copy, quicker by a hair */
    UINT64_C(
        326549092414288977), /* merged: a pass that was not asked for, alone slower by a hair */
    UINT64_C(8522296148613861788), /* a first MTP depth plays shorter than one without a second */
    UINT64_C(
        10408872960104777178), /* merged: one pass that copies beside a head, quicker by a hair */
};

static void no_bound_of_a_family_is_above_a_plan_in_it(void **state) {
    (void)state;
    rng r = rng_init(7001);
    nearness n[KINDS] = {{0}};
    int cases = planner_cases(160, 12);
    static pool known;
    for (size_t i = 0; i < sizeof once_broken / sizeof once_broken[0]; i++) {
        rng fixed = {once_broken[i]};
        check_problem(&fixed, &known, n);
    }
    for (int i = 0; i < cases; i++) {
        check_problem(&r, &known, n);
    }
    pool_clear(&known);
    mf_milp_thread_end();
    print_nearness(n);
    for (int k = 0; k < KINDS; k++) {
        if (n[k].broken > 0) {
            fail_msg("%lld %s bounds are above a plan", (long long)n[k].broken, kind_text[k]);
        }
    }
    assert_above(n[EXACT].tried, cases / 4); /* most problems have plans that fit */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_bound_of_a_family_is_above_a_plan_in_it),
        cmocka_unit_test(losses_of_pipelines_are_never_more_than_played),
        cmocka_unit_test(halves_of_layers_take_no_more_than_whole_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
