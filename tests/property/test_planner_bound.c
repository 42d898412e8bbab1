/* Bounds of families and layouts lie at or below the simulated step of every plan in them: at every
 * level of the search, over random models, clusters, software, spaces, layouts and assignments.
 * Prints how near they come. */
#include "tests/support/planner_bounds.h"
#include "tests/support/sampled.h"

#include "planner/splits/rows.h"

#include <stdio.h>

/* --- families --------------------------------------------------------------------------------- */

/* Does the family of a node hold the layout, as far as the node's level fixes it? */
static bool holds(const mf_search_context *w, const mf_search_node *n, const mf_layout *l) {
    const mf_search_side *side = &w->side[n->side];
    const mf_dense_point *d = &w->dense[side->first];
    mf_layout x = mf_search_layout(w, n);
    bool same = d->precision == (uint8_t)l->precision && d->cp_type == (uint8_t)l->cp_type &&
                d->tp == l->tp && d->cp == l->cp && d->mbs == l->mbs;
    if (n->level >= MF_LEVEL_EXPERT) {
        same &= x.ep == l->ep && x.etp == l->etp && x.dispatcher == l->dispatcher;
    }
    if (n->level >= MF_LEVEL_PIPELINE) {
        same &= x.pp == l->pp;
    }
    if (n->level >= MF_LEVEL_PASS_MODE) {
        same &= (mf_pass_mode)n->mode == mf_pass_mode_of(l->schedule);
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
static bool walk_down(mf_search_context *w, const sample *s, nearness *n, mf_search_node *at) {
    static const kind kinds[] = {ATTENTION, EXPERT, PIPELINE, PASS_MODE, ORDER, LAYOUT};
    mf_search_outcome out = {.status = MF_OK};
    mf_err e;
    if (mf_search_start(w, &out, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    at->level = MF_LEVEL_ATTENTION;
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
        const mf_search_aim aim = {HUGE_VAL, HUGE_VAL, HUGE_VAL, .wants_plan = true};
        mf_search_split(w, at, &aim, &out);
        if (out.status != MF_OK) {
            fail_msg("%s", out.err.text);
        }
    }
}

/* --- one layout ------------------------------------------------------------------------------- */

/* A block that a class stands for, with one of its choices: MTP depths of any place, the last of
 * its virtual stage or not, and tables on its stage or not, whatever the class says. */
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
    key.at_end = rng_chance(r, 40);
    return key;
}

/* Passes of any block alone, wherever it stands. */
static void check_passes(rng *r, mf_partition *in, const sample *s, nearness *n) {
    for (int i = 0; i < 50; i++) {
        int class, m;
        mf_block_cost own;
        const mf_block_key key = draw_block(r, in, &class, &m);
        const mf_partition_class *c = &in->class[class];
        const double *end_s[] = {&c->choice[m].end_f_s, &c->choice[m].end_b_s};
        assert_ok(mf_block_costs_get(in->costs, &in->layout, &key, true, &own, NULL));
        const double time_s[] = {own.f.time_s, own.b.time_s, own.w.time_s};
        for (int p = MF_ORDER_F; p <= MF_ORDER_W; p++) {
            const double least_s = mf_partition_part_s(in, c, m, (mf_order_part)p, false);
            note_portion(n, PASS, s, "a pass's", least_s, time_s[p]);
            if (key.at_end && p != MF_ORDER_W) {
                note_portion(n, PASS, s, "a last block's", least_s + *end_s[p], time_s[p]);
            }
        }
    }
}

/* Pairs of any forward with any backward block. */
static void check_portions(rng *r, mf_partition *in, const sample *s, nearness *n) {
    for (int i = 0; in->merged && i < 150; i++) {
        int f, m, b, k;
        double pair_s = 0.0;
        mf_block_cost forward, backward;
        mf_block_key fk = draw_block(r, in, &f, &m), bk = draw_block(r, in, &b, &k);
        assert_ok(mf_block_costs_pair(in->costs, &in->layout, &fk, &bk, &pair_s, NULL));
        assert_ok(mf_block_costs_get(in->costs, &in->layout, &fk, true, &forward, NULL));
        assert_ok(mf_block_costs_get(in->costs, &in->layout, &bk, true, &backward, NULL));
        for (int set = 0; set < MF_PORTIONS; set++) {
            double f_s = in->class[f].choice[m].f_pair_s[set];
            double b_s = in->class[b].choice[k].b_pair_s[set];
            note_portion(n, PORTION, s, "a pair's", f_s + b_s, pair_s);
            note_portion(n, PORTION, s, "a forward pass's", f_s, forward.f.time_s);
            note_portion(n, PORTION, s, "a backward pass's", b_s, backward.b.time_s);
        }
    }
}

static void check_programs(mf_partition *in, const sample *s, nearness *n) {
    static const kind kinds[] = {COARSE, EXACT};
    for (int i = 0; i < 2; i++) {
        mf_partition_options o = {
            .coarse = kinds[i] == COARSE, .cutoff_s = HUGE_VAL, .gap = 1e-3, .node_limit = 40};
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

/* With any cutoff the tree's bound holds; ended below the best plan, the cutoff is what it proves
 * at most. */
static void check_splits(mf_partition *in, const sample *s, nearness *n) {
    static const double cutoffs[] = {0.97, 1.003, 1.02, 1.1, 0};
    double best_s = s->best >= 0 ? s->step[s->best].time_s : 1.0;
    for (size_t i = 0; i < 2 * sizeof cutoffs / sizeof cutoffs[0]; i++) {
        bool below = cutoffs[i / 2] > 0;
        mf_partition_split_options o = {.cutoff_s = below ? cutoffs[i / 2] * best_s : HUGE_VAL,
                                        .lp_limit = below ? 60 : 12,
                                        .own_losses = i % 2 == 1};
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
            mf_fixed_split x = {.cutoff_s = cutoffs[k]};
            for (int v = 0; v <= in->vstages; v++) {
                first[v] = s->a[i].first[v];
            }
            double share = in->losses.share[0], start_s = in->losses.start_s;
            assert_ok(mf_rows_fixed_split(in, first, &x, NULL));
            check(n, SPLIT, x.bound_s, s, i);
            assert_above(x.bound_s, 0.0);
            assert_memory_equal(&share, &in->losses.share[0], sizeof share);
            assert_memory_equal(&start_s, &in->losses.start_s, sizeof start_s);
        }
    }
}

/* How many rows of memory were held against a plan. */
static int64_t rows_checked;

/* No moment of a stage, as rows of memory count it, takes more than the plan does there. */
static void check_memory_rows(const mf_partition *in, const mf_assignment *a) {
    mf_split_ranges any;
    mf_split_ranges_by_time(in, INFINITY, &any);
    for (int p = 0; p < in->stages; p++) {
        const mf_guest guest = mf_rows_guest(in, &any, p);
        for (int k = 0; k < in->order.rows[p]; k++) {
            double sum_B = in->fixed_B + mf_rows_least_beside_B(in, &any, p);
            bool known = true;
            for (int c = 0; c < in->chunks; c++) {
                const int v = (int)mf_layout_vstage(&in->layout, p, c);
                for (int i = a->first[v]; i < a->first[v + 1]; i++) {
                    const mf_partition_class *x = mf_partition_class_at(in, v, in->slot_at[i]);
                    const int m = mf_partition_choice_of(x, a->memory[i]);
                    known = known && m >= 0;
                    sum_B += x->persistent_B + (in->slot_at[i] == guest.slot ? guest.more_B : 0.0);
                    if (m >= 0) {
                        const mf_block_cost *q = &x->choice[m].cost;
                        sum_B += mf_order_in_flight(&in->order, p, k, c) * q->saved_B +
                                 mf_order_held(&in->order, p, k, c) * q->held_B;
                    }
                }
            }
            if (known) {
                assert_at_most(sum_B, in->usable_B);
                rows_checked++;
            }
        }
    }
}

/* Bounds of a split hold with just the memory that a plan of it takes: rows of memory count no more
 * than there is. */
static void check_scarce_split(mf_partition *in, const sample *s, nearness *n) {
    const double usable_B = in->usable_B;
    for (int i = 0; i < TRIES; i++) {
        int first[MF_MAX_VSTAGES + 1];
        mf_fixed_split x = {.cutoff_s = HUGE_VAL};
        mf_step step;
        assert_ok(
            in->evaluator->ops->play(in->evaluator->self, &in->layout, &s->a[i], &step, NULL));
        for (int v = 0; v <= in->vstages; v++) {
            first[v] = s->a[i].first[v];
        }
        in->usable_B = step.peak_B * (1.0 + 1e-9);
        assert_ok(mf_rows_fixed_split(in, first, &x, NULL));
        check(n, SCARCE, x.bound_s, s, i);
        check_memory_rows(in, &s->a[i]);
    }
    in->usable_B = usable_B;
}

/* How often a stage holds as many positions as there is said to be space for. */
static int64_t most_met;

/* Keeps as little as any choice does. */
static mf_assignment leanest(const mf_partition *in, const mf_assignment *a) {
    mf_assignment lean = *a;
    for (int v = 0; v < in->vstages; v++) {
        for (int i = a->first[v]; i < a->first[v + 1]; i++) {
            const mf_partition_class *c = mf_partition_class_at(in, v, in->slot_at[i]);
            const mf_partition_choice *least = &c->choice[0];
            for (int m = 1; m < c->choices; m++) {
                const mf_partition_choice *x = &c->choice[m];
                least = x->cost.saved_B < least->cost.saved_B ? x : least;
            }
            lean.memory[i] = least->memory;
        }
    }
    return lean;
}

/* How often less is known than that each virtual stage holds a position. */
static int64_t narrowed_ranges;

static void assert_in_ranges(const mf_partition *in, const mf_split_ranges *ranges,
                             const mf_assignment *a) {
    int held[MF_MAX_VSTAGES] = {0};
    for (int v = 0; v < in->vstages; v++) {
        const int n = a->first[v + 1] - a->first[v];
        held[mf_layout_stage_of(&in->layout, v)] += n;
        assert_at_most(ranges->range[v].lo, n);
        assert_at_most(n, ranges->range[v].hi);
        assert_at_most(ranges->least[v], a->first[v]);
        assert_at_most(a->first[v], ranges->most[v]);
        narrowed_ranges += ranges->range[v].lo > 1;
    }
    for (int p = 0; p < in->stages && in->chunks > 1; p++) {
        assert_at_most(ranges->range[in->vstages + p].lo, held[p]);
        assert_at_most(held[p], ranges->range[in->vstages + p].hi);
    }
}

/* With just the time and the memory that a plan takes there is space for its split. */
static void check_ranges(mf_partition *in, const mf_assignment *a, const mf_step *step) {
    const double usable_B = in->usable_B;
    mf_split_ranges ranges;
    mf_split_ranges_by_time(in, step->time_s * (1.0 + 1e-9), &ranges);
    assert_in_ranges(in, &ranges, a);
    in->usable_B = step->peak_B * (1.0 + 1e-9);
    assert_true(mf_split_ranges_by_memory(in, &ranges));
    assert_in_ranges(in, &ranges, a);
    in->usable_B = usable_B;
}

/* With just the memory that a split takes there is space for what its stages hold. */
static void check_most_positions(mf_partition *in, const sample *s) {
    const double usable_B = in->usable_B;
    for (int i = 0; i < 2 * TRIES; i++) {
        int most[2 * MF_MAX_VSTAGES], held[MF_MAX_VSTAGES] = {0};
        const mf_assignment *own = &s->a[i / 2], lean = leanest(in, own);
        mf_step step;
        assert_ok(in->evaluator->ops->play(in->evaluator->self, &in->layout, i % 2 ? &lean : own,
                                           &step, NULL));
        mf_split_ranges any;
        check_ranges(in, i % 2 ? &lean : own, &step);
        in->usable_B = step.peak_B;
        mf_split_ranges_by_time(in, INFINITY, &any);
        assert_true(mf_rows_most_positions(in, &any, most));
        for (int v = 0; v < in->vstages; v++) {
            const int n = own->first[v + 1] - own->first[v];
            held[mf_layout_stage_of(&in->layout, v)] += n;
            assert_at_most(n, most[v]);
        }
        for (int p = 0; p < in->stages; p++) {
            const int most_held = most[in->vstages + p];
            assert_at_most(held[p], most_held);
            most_met += held[p] == most_held && in->stages > 1;
        }
    }
    in->usable_B = usable_B;
}

/* Paths of earlier layouts, whatever their models and clusters were: an order is an order. */
typedef struct pool {
    mf_search_path_set *of[64];
    int count, next;
} pool;

static const mf_path_set *pool_find(const pool *k, const mf_layout *l) {
    for (int i = 0; i < k->count; i++) {
        const mf_search_path_set *c = k->of[i];
        if (c->schedule == (int)l->schedule && c->pp == l->pp && c->vpp == l->vpp &&
            c->micro_batches == l->micro_batches) {
            return &c->paths;
        }
    }
    return NULL;
}

static void pool_drop(mf_search_path_set *c) {
    if (c) {
        mf_path_set_clear(&c->paths);
        free(c);
    }
}

static void pool_keep(pool *k, const mf_layout *l, mf_path_set *paths) {
    mf_search_path_set *c = calloc(1, sizeof *c);
    *c = (mf_search_path_set){.pp = l->pp,
                              .vpp = l->vpp,
                              .micro_batches = l->micro_batches,
                              .schedule = (int)l->schedule,
                              .paths = *paths};
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

static void check_mean(mf_partition *in, const mf_path_set *paths, const sample *s, nearness *n) {
    double bound_s = 0.0;
    if (paths && paths->mean.count[0]) {
        assert_ok(mf_partition_mean_s(in, paths, &bound_s, NULL));
        check(n, MEAN, bound_s, s, s->best);
    }
}

static void check_relaxations(mf_partition *in, const sample *s, pool *k, nearness *n) {
    if (s->best < 0) {
        return;
    }
    mf_partition_losses(in, NULL, s->step[s->best].time_s * (1.0 + 1e-9));
    check_mean(in, pool_find(k, &s->layout), s, n);
    for (int i = 0; i < 2; i++) { /* coarse, and the root of the tree over splits */
        mf_path_set paths;
        double bound_s = 0.0;
        const mf_path_set *known = pool_find(k, &s->layout);
        if (i == 0) {
            mf_milp_outcome outcome;
            assert_ok(mf_partition_relax(in, known, HUGE_VAL, 0, MF_MILP_FAULT_NONE, &paths, NULL,
                                         &outcome, &bound_s, NULL));
            assert_int_equal(outcome, MF_MILP_OPTIMAL); /* a plan fits */
        } else {
            mf_partition_split_options o = {
                .cutoff_s = HUGE_VAL, .lp_limit = 0, .known = known, .kept = &paths};
            mf_partition_split_result x;
            assert_ok(mf_partition_splits(in, &o, &x, NULL));
            bound_s = x.bound_s;
            mf_partition_split_result_clear(&x);
        }
        check(n, RELAX, bound_s, s, s->best);
        check_mean(in, &paths, s, n);
        if (paths.mean.count[0]) {
            pool_keep(k, &s->layout, &paths);
        } else {
            mf_path_set_clear(&paths);
        }
    }
}

/* The bound of the layout by its family's figures, with paths that are known for its order. */
static void check_family(mf_search_context *w, const mf_search_node *node, const sample *s, pool *k,
                         nearness *n) {
    const mf_path_set *paths = pool_find(k, &s->layout);
    mf_search_path_set *kept = calloc(1, sizeof *kept);
    mf_search_outcome out = {.status = MF_OK};
    mf_search_node at = *node;
    if (s->best < 0 || !paths) {
        free(kept);
        return;
    }
    *kept = (mf_search_path_set){.pp = s->layout.pp,
                                 .vpp = s->layout.vpp,
                                 .micro_batches = s->layout.micro_batches,
                                 .schedule = (int)s->layout.schedule};
    mf_path_set_init(&kept->paths, paths->stages, paths->chunks);
    for (int i = 0; i < paths->count; i++) {
        assert_ok(mf_path_set_add(&kept->paths, &paths->path[i], NULL));
        kept->paths.weight[i] = paths->weight[i];
    }
    int stage_of[MF_MAX_VSTAGES];
    for (int v = 0; v < paths->vstages; v++) {
        stage_of[v] = (int)mf_layout_stage_of(&s->layout, v);
    }
    assert_true(mf_path_set_weigh(&kept->paths, stage_of));
    mf_search_keep_path_set(w, kept, 0);
    at.key_s = 0.0;
    for (int tries = 0; tries < 2; tries++) { /* with the fastest choices, with all of them */
        double best_s = s->step[s->best].time_s, cutoff_s[] = {HUGE_VAL, best_s * (1.0 + 1e-9)};
        for (int i = 0; i < 2; i++) {
            at.key_s = 0.0;
            at.tries = (uint8_t)tries;
            const mf_search_aim aim = {
                .best_s = cutoff_s[i], .target_s = HUGE_VAL, .wants_plan = isinf(cutoff_s[i])};
            double bound_s = mf_search_bound_again(w, &at, &aim, &out);
            assert_ok(out.status);
            check(n, tries == 0 ? FAMILY : CHOICES, bound_s, s, s->best);
        }
    }
    walk_down(w, s, n, &at); /* families, with these paths */
}

/* How often a split was bounded with a slot for every kind of layers, and how often as without. */
static int64_t gathered, gathered_alike;

static double bound_of_split(mf_partition *in, const mf_assignment *a) {
    mf_fixed_split x = {.cutoff_s = HUGE_VAL};
    int first[MF_MAX_VSTAGES + 1];
    for (int v = 0; v <= in->vstages; v++) {
        first[v] = a->first[v];
    }
    assert_ok(mf_rows_fixed_split(in, first, &x, NULL));
    return x.bound_s;
}

/* With a slot for every kind of layers, bounds hold as well, and those of splits are the same but
 * where memory decides: it is not known which of the layers stand where. */
static void check_gathered(mf_partition *in, const sample *s, pool *k, nearness *n) {
    double split_s[TRIES];
    for (int i = 0; i < TRIES; i++) {
        split_s[i] = bound_of_split(in, &s->a[i]);
    }
    mf_partition_gather(in);
    for (int i = 0; i < TRIES && in->gathered; i++) {
        const double bound_s = bound_of_split(in, &s->a[i]);
        if (s->step[i].fits) {
            check(n, SPLIT, bound_s, s, i);
            gathered++;
            gathered_alike += fabs(bound_s / split_s[i] - 1.0) < 1e-6;
        }
    }
    if (in->gathered) {
        check_paths(in, s, n);
        check_relaxations(in, s, k, n);
        check_splits(in, s, n);
        check_most_positions(in, s);
        check_scarce_split(in, s, n);
    }
}

static void check_layout(rng *r, mf_search_context *w, const problem *p, const sample *s, pool *k,
                         nearness *n) {
    mf_partition *in = NULL;
    mf_err e;
    if (mf_partition_create(w->costs, &s->layout, p->space.pinned, NULL, &in, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    check_paths(in, s, n);
    check_passes(r, in, s, n);
    check_portions(r, in, s, n);
    check_relaxations(in, s, k, n);
    assert_ok(mf_partition_price_all_pairs(in, NULL));
    check_paths(in, s, n);
    check_portions(r, in, s, n);
    check_programs(in, s, n);
    check_splits(in, s, n);
    check_most_positions(in, s);
    check_one_split(in, s, n);
    check_scarce_split(in, s, n);
    check_gathered(in, s, k, n);
    mf_partition_destroy(in);
}

/* What a search of a problem's space works with. */
typedef struct searched {
    mf_search_context context;
    mf_block_costs *costs;
    mf_order_book *orders;
} searched;

static void searched_init(searched *x, const problem *p) {
    assert_ok(mf_block_costs_create(&p->evaluator, &x->costs, NULL));
    assert_ok(mf_order_book_create(&x->orders, NULL));
    assert_ok(mf_search_context_init(&x->context, x->costs, x->orders, &p->space, NULL));
}

static void searched_clear(searched *x) {
    mf_search_context_clear(&x->context);
    mf_order_book_destroy(x->orders);
    mf_block_costs_destroy(x->costs);
}

/* A problem, three layouts of it. Paths are kept for later problems. */
static void check_problem(rng *r, pool *known, nearness *n) {
    static sample s;
    problem p;
    s.seed = r->state;
    rng pairs = {r->state}; /* of its own: problems stay what they were */
    problem_init(&p, r, 5, 16);
    for (int k = 0; k < 3 && draw(r, &p, &s); k++) {
        searched x;
        mf_search_node node;
        searched_init(&x, &p);
        if (walk_down(&x.context, &s, n, &node)) {
            check_layout(&pairs, &x.context, &p, &s, known, n);
            check_family(&x.context, &node, &s, known, n);
        }
        searched_clear(&x);
    }
    problem_clear(&p);
}

/* A layout whose passes are merged, with plans of it, every other one the fastest of its split. */
static bool draw_paired(rng *r, const problem *p, sample *s) {
    bool found = false;
    for (int i = 0; i < 200 && !found; i++) {
        const mf_layout *l = &s->layout;
        found = planner_layout(r, &p->space, &s->layout) && mf_layout_merges(l) && l->pp <= 2 &&
                (l->zero >= 2 || l->ep > 1);
    }
    s->model = &p->model;
    s->best = -1;
    for (int i = 0; i < TRIES && found; i++) {
        mf_assignment *a = &s->a[i];
        planner_assignment(r, &p->space, &s->layout, a);
        for (int k = 0; k < a->positions && i % 2 == 0; k++) {
            mf_memory_choice choice[MF_CATALOGUE_MAX];
            planner_choices(&p->space, k, choice);
            a->memory[k] = choice[0];
        }
        assert_ok(p->evaluator.ops->step(p->evaluator.self, &s->layout, a, &s->step[i], NULL));
        if (s->step[i].fits && (s->best < 0 || s->step[i].time_s < s->step[s->best].time_s)) {
            s->best = i;
        }
    }
    return found;
}

/* A problem whose embedding and head weigh as much as its layers, many micro-batches of which are
 * played in pairs: what passes hide of each other is most of what bounds have to know. */
static void check_paired_problem(rng *r, pool *known, nearness *n) {
    static sample s;
    problem p;
    s.seed = r->state;
    problem_init(&p, r, 2, 16);
    p.model.vocab = 128000;
    p.space.base.gbs = 32 * p.space.base.gpus;
    p.space.base.seq = 256 * rng_pow2(r, 4);
    for (int k = 0; k < 3 && draw_paired(r, &p, &s); k++) {
        searched x;
        mf_search_node node;
        searched_init(&x, &p);
        if (walk_down(&x.context, &s, n, &node)) {
            mf_partition *in = NULL;
            assert_ok(mf_partition_create(x.costs, &s.layout, p.space.pinned, NULL, &in, NULL));
            check_relaxations(in, &s, known, n);
            mf_partition_destroy(in);
            check_family(&x.context, &node, &s, known, n);
        }
        searched_clear(&x);
    }
    problem_clear(&p);
}

/* Layers of several kinds in any order, or alternating: mixers alone, FFNs alone, attention,
 * experts and dense layers. */
static void mix_layers(rng *r, mf_model *m) {
    static const mf_layer_class kinds[] = {
        {.mixer = MF_MIXER_MAMBA2, .ffn = MF_FFN_NONE},
        {.mixer = MF_MIXER_NONE},
        {.ffn = MF_FFN_NONE},
        {.ffn = MF_FFN_MOE},
        {.mixer = MF_MIXER_NONE, .ffn = MF_FFN_MOE},
        {.ffn = MF_FFN_DENSE},
        {.mixer = MF_MIXER_MAMBA2, .ffn = MF_FFN_MOE},
    };
    m->mixer = (mf_mixer_shape){
        .key_heads = 2, .key_dim = 64, .value_heads = 8, .value_dim = 64, .conv = 4, .chunk = 128};
    m->experts = 8;
    m->top_k = rng_range(r, 1, 2);
    m->moe_ffn = 256 * rng_range(r, 1, 6);
    m->classes = (int)rng_range(r, 2, 4);
    for (int i = 0; i < m->classes; i++) {
        m->layer_classes[i] = kinds[rng_range(r, 0, sizeof kinds / sizeof kinds[0] - 1)];
    }
    const bool alternate = rng_chance(r, 50);
    for (int i = 0; i < m->layers; i++) {
        m->layer_class[i] = (uint8_t)(alternate ? i % m->classes : rng_range(r, 0, m->classes - 1));
    }
    m->mtp_layers = 0;
}

/* A problem whose layers are of several kinds, half of the time played in pairs. */
static void check_mixed_problem(rng *r, pool *known, nearness *n) {
    static sample s;
    problem p;
    s.seed = r->state;
    problem_init(&p, r, 8, 16);
    mix_layers(r, &p.model);
    const bool paired = rng_chance(r, 50);
    for (int k = 0; k < 3 && (paired ? draw_paired(r, &p, &s) : draw(r, &p, &s)); k++) {
        searched x;
        mf_search_node node;
        searched_init(&x, &p);
        if (walk_down(&x.context, &s, n, &node)) {
            rng pairs = {r->state};
            check_layout(&pairs, &x.context, &p, &s, known, n);
            check_family(&x.context, &node, &s, known, n);
        }
        searched_clear(&x);
    }
    problem_clear(&p);
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
    UINT64_C(263341140370313767),   /* an entry of 2e-16 made GLPK see no solution */
    UINT64_C(15786258715030662568), /* a stage without main layers charged for their buffers */
    UINT64_C(5439332248371606406),  /* zb-v: workspaces of both passes counted at once */
    UINT64_C(
        15319989636832305737), /* merged: the ends, raised to what ZeRO adds, gave nothing away */
    UINT64_C(7020598548790995484),  /* communicators of ZeRO 3 counted for a family with ZeRO 0 */
    UINT64_C(14433612975389392741), /* merged: a ring waits for attention where keys are not kept */
};

static void no_bound_of_a_family_is_above_a_plan_in_it(void **state) {
    (void)state;
    rng r = rng_init(7001);
    nearness n[KINDS] = {{0}};
    int cases = planner_cases(160, 3);
    static pool known;
    for (size_t i = 0; i < sizeof once_broken / sizeof once_broken[0];
         i += (size_t)case_stride(3)) {
        rng fixed = {once_broken[i]};
        check_problem(&fixed, &known, n);
    }
    for (int i = 0; i < cases; i++) {
        check_problem(&r, &known, n);
    }
    pool_clear(&known);
    mf_milp_thread_end();
    check_nearness(n);
    assert_above(n[EXACT].tried, cases / 4); /* most problems have plans that fit */
    printf("  most positions met %lld times\n", (long long)most_met);
    assert_above(most_met, cases);
    printf("  more than one position sure %lld times\n", (long long)narrowed_ranges);
    assert_above(narrowed_ranges, cases);
    printf("  rows of memory checked %lld times\n", (long long)rows_checked);
    assert_above(rows_checked, cases);
    printf("  last positions that take more met %lld times\n", (long long)ends_met);
    assert_above(ends_met, cases);
    printf("  splits with gathered slots %lld times, %lld as without\n", (long long)gathered,
           (long long)gathered_alike);
    if (cases >= 60) { /* else too few to tell */
        assert_above(gathered, cases / 2);
        assert_at_most(0.98 * (double)gathered, gathered_alike);
    }
}

/* Their ends were charged what reductions inside them take, or copies, though a pair hides these.
 */
static const uint64_t once_broken_in_pairs[] = {UINT64_C(15046055163466202353),
                                                UINT64_C(10247736476424632421)};

static void no_bound_is_above_a_plan_that_is_played_in_pairs(void **state) {
    (void)state;
    rng r = rng_init(7011);
    nearness n[KINDS] = {{0}};
    int cases = planner_cases(40, 1);
    static pool known;
    for (size_t i = 0; i < sizeof once_broken_in_pairs / sizeof once_broken_in_pairs[0]; i++) {
        rng fixed = {once_broken_in_pairs[i]};
        check_paired_problem(&fixed, &known, n);
    }
    for (int i = 0; i < cases; i++) {
        check_paired_problem(&r, &known, n);
    }
    pool_clear(&known);
    mf_milp_thread_end();
    check_none_broken(n);
    assert_above(n[LAYOUT].sum, 0.4 * (double)n[LAYOUT].tried);
    assert_above(n[FAMILY].sum, 0.4 * (double)n[FAMILY].tried);
}

/* Problems of several kinds of layers that once had a bound above a plan. */
static const uint64_t mixed_broken[] = {
    /* the layer of fewest parameters is not that of the fewest bytes: ZeRO shards dense and routed
     * parameters apart */
    UINT64_C(12053813004151776253),
    UINT64_C(17529661040373739003),
    UINT64_C(2240173901205437522),
    UINT64_C(16775797574006567572),
};

static void no_bound_is_above_a_plan_of_mixed_layers(void **state) {
    (void)state;
    rng r = rng_init(7021);
    nearness n[KINDS] = {{0}};
    int cases = planner_cases(60, 2);
    static pool known;
    for (size_t i = 0; i < sizeof mixed_broken / sizeof mixed_broken[0]; i++) {
        rng again = {mixed_broken[i]};
        check_mixed_problem(&again, &known, n);
    }
    for (int i = 0; i < cases; i++) {
        check_mixed_problem(&r, &known, n);
    }
    pool_clear(&known);
    mf_milp_thread_end();
    check_none_broken(n);
    if (cases >= 60) { /* kinds are told apart: about as tight as linear programs */
        assert_above(n[MEAN].sum, 0.84 * (double)n[MEAN].tried);
        assert_above(n[RELAX].sum, 0.9 * (double)n[RELAX].tried);
        assert_above(n[LAYOUT].sum, 0.585 * (double)n[LAYOUT].tried);
        assert_above(n[FAMILY].sum, 0.655 * (double)n[FAMILY].tried);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_bound_is_above_a_plan_of_mixed_layers),
        cmocka_unit_test(no_bound_is_above_a_plan_that_is_played_in_pairs),
        cmocka_unit_test(no_bound_of_a_family_is_above_a_plan_in_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
