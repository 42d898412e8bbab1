/* planner_bounds.h - bounds against simulated plans: random problems, layouts with plans of them,
 * and how near bounds of each kind come. */
#ifndef MF_TESTS_PLANNER_BOUNDS_H
#define MF_TESTS_PLANNER_BOUNDS_H

#include "tests/support/planner_problems.h"

#include <stdio.h>

/* Sums are added up in another order here and there. */
#define HAIR 1e-9

/* Kinds of bounds: name, the least mean of bound over plan in a whole run (within 0.05 of what is
 * measured) and in a sample of few cases, what is bounded. Paths know nothing of
 * what a head hides less of copies to the host than the layer that they belong to. */
#define KIND_MAP(X)                                                                                \
    X(ATTENTION, "attention", 0.12, 0.08, "families, by level")                                    \
    X(EXPERT, "expert", 0.4, 0.3, "")                                                              \
    X(PIPELINE, "pipeline", 0.4, 0.3, "")                                                          \
    X(PASS_MODE, "pass mode", 0.44, 0.35, "")                                                      \
    X(ORDER, "order", 0.48, 0.4, "")                                                               \
    X(LAYOUT, "layout", 0.57, 0.5, "")                                                             \
    X(COARSE, "coarse", 0.9, 0.9, "by the integer program without memory choices")                 \
    X(SPLITS, "splits", 0.9, 0.9, "by the tree, whole or ended near the best plan")                \
    X(SPLIT, "split", 0.9, 0.9, "one split, with what it loses, against its plans")                \
    X(SCARCE, "scarce", 0.9, 0.9, "the same with just the memory that the plan takes")             \
    X(EXACT, "exact", 0.9, 0.9, "by the integer program")                                          \
    X(RELAX, "relax", 0.9, 0.9, "by relaxations, coarse and with choices that stand for all")      \
    X(MEAN, "mean", 0.81, 0.8, "by a mean of paths, its own or of a layout of the same order")     \
    X(FAMILY, "family", 0.67, 0.65, "the same from rates of layers with the fastest choices,")     \
    X(CHOICES, "choices", 0.66, 0.65, "and with all choices")                                      \
    X(PATH, "path", 0.95, 0.93, "one assignment, by its longest path")                             \
    X(LOSSES, "losses", 0.95, 0.93, "the same with the losses of that very assignment")            \
    X(GATHERED, "gathered", 0.9, 0.85, "of these, paths that wait for parameters")                 \
    X(EARLY, "early", 0.9, 0.85, "of these, paths whose first passes lose to gathers")             \
    X(HALVES, "halves", 0.9, 0.9, "a whole layer, by its halves; weight gradients split off")      \
    X(PASS, "pass", 0.97, 0.95, "a block alone, inside a virtual stage or at its end")             \
    X(PORTION, "portion", 0.85, 0.6, "a merged pair or a block alone, by portions of pairs")

typedef enum kind {
#define X(name, text, mean, sampled, what) name,
    KIND_MAP(X)
#undef X
        KINDS
} kind;
static const char *const kind_text[KINDS] = {
#define X(name, text, mean, sampled, what) text,
    KIND_MAP(X)
#undef X
};
static const double least_mean[2][KINDS] = {
#define X(name, text, mean, sampled, what) mean,
    {KIND_MAP(X)},
#undef X
#define X(name, text, mean, sampled, what) sampled,
    {KIND_MAP(X)},
#undef X
};

/* How near the bounds of a kind came: bound over the fastest plan that was tried. */
typedef struct nearness {
    int64_t tried, broken; /* above a plan: the first few are printed, the test goes on */
    double loosest, tightest, sum;
} nearness;

static inline void note(nearness *n, double ratio) {
    n->loosest = n->tried == 0 ? ratio : fmin(n->loosest, ratio);
    n->tightest = n->tried == 0 ? ratio : fmax(n->tightest, ratio);
    n->sum += ratio;
    n->tried++;
}

/* So many tell something about the mean. */
enum { TELLING = 40 };

/* Prints how near bounds came. None may be above a plan. */
static inline void check_none_broken(const nearness *n) {
    for (int k = 0; k < KINDS; k++) {
        if (n[k].tried > 0) {
            printf("  %-9s %6lld bounds (%lld broken): loosest %.4f, mean %.4f, tightest %.9f\n",
                   kind_text[k], (long long)n[k].tried, (long long)n[k].broken, n[k].loosest,
                   n[k].sum / (double)n[k].tried, n[k].tightest);
        }
    }
    for (int k = 0; k < KINDS; k++) {
        if (n[k].broken > 0) {
            fail_msg("%lld %s bounds are above a plan", (long long)n[k].broken, kind_text[k]);
        }
    }
}

/* The same; and the mean of a kind is no lower than it has to be: a bound of nothing would never be
 * above a plan. */
static inline void check_nearness(const nearness *n) {
    check_none_broken(n);
    for (int k = 0; k < KINDS; k++) {
        const double least = least_mean[cases_sampled() || getenv("MF_CASES") != NULL][k];
        if (n[k].tried >= TELLING && n[k].sum < least * (double)n[k].tried) {
            fail_msg("%s bounds are loose: %.4f in the mean, at least %.4f expected", kind_text[k],
                     n[k].sum / (double)n[k].tried, least);
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

static inline void problem_init(problem *p, rng *r, int64_t layers, int64_t gpus) {
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

static inline void problem_clear(problem *p) {
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
static inline void tighten(rng *r, problem *p, sample *s) {
    double peak_B = s->step[rng_range(r, 0, TRIES - 1)].peak_B + 1.0;
    p->cluster.gpu.memory_B = peak_B / (1.0 - p->space.base.reserve);
    mf_cost_destroy(p->cost);
    p->cost = planner_cost(&p->cluster, &p->software);
    p->real.cost = p->cost;
    s->best = -1;
    for (int i = 0; i < TRIES; i++) {
        mf_step *step = &s->step[i];
        double time_s = step->time_s;
        assert_ok(p->evaluator.ops->fit(p->evaluator.self, &s->layout, &s->a[i], 0, step, NULL));
        step->time_s = time_s; /* does not depend on memory */
        if (step->fits && (s->best < 0 || time_s < s->step[s->best].time_s)) {
            s->best = i;
        }
    }
}

static inline bool draw(rng *r, problem *p, sample *s) {
    if (!planner_layout(r, &p->space, &s->layout)) {
        return false;
    }
    s->model = &p->model;
    s->best = -1;
    for (int i = 0; i < TRIES; i++) {
        mf_err e;
        planner_assignment(r, &p->space, &s->layout, &s->a[i]);
        if (p->evaluator.ops->step(p->evaluator.self, &s->layout, &s->a[i], &s->step[i], &e) !=
            MF_OK) {
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

static inline void check(nearness *n, kind k, double bound_s, const sample *s, int which) {
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

/* --- checks of one layout ----- */

/* The counts of an assignment; false when it takes a choice that the class has not kept. */
static inline bool counts_of(const mf_partition *in, const mf_assignment *a, double *count) {
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

/* How often the last position of a virtual stage took more for its copies. */
static int64_t ends_met;

/* What passes lose, with all that is known of the plan: where its positions stand, and what it
 * takes. The path's own figures say what it takes. */
static inline void check_losses(mf_partition *in, const sample *s, int plan, const double *count,
                                mf_order_path *path, nearness *n) {
    int positions[MF_MAX_VSTAGES];
    for (int v = 0; v < in->vstages; v++) {
        positions[v] = s->a[plan].first[v + 1] - s->a[plan].first[v];
    }
    mf_partition_losses(in, positions, s->step[plan].time_s * (1.0 + 1e-9));
    assert_ok(mf_partition_play(in, count, false, NULL, path, NULL));
    check(n, LOSSES, path->time_s, s, plan);
    double waited_s = 0.0, early = 0.0;
    for (int v = 0; v < in->vstages; v++) {
        waited_s += path->loss[MF_LOSS_LAST][v] * in->losses.kind_s[MF_LOSS_LAST][v];
        for (int k = 0; k < MF_ORDER_AHEAD; k++) {
            early += path->loss[MF_LOSS_AHEAD + k][v];
        }
    }
    if (early > 0.0) {
        check(n, EARLY, path->time_s, s, plan);
    }
    if (waited_s > 0.0) {
        check(n, GATHERED, path->time_s, s, plan);
    }
    double sum_s = mf_partition_path_fixed_s(in, path);
    for (int v = 0; v < in->vstages; v++) {
        for (int slot = 0; slot < in->slots; slot++) {
            const mf_partition_class *c = mf_partition_class_at(in, v, slot);
            for (int m = 0; m < c->choices; m++) {
                double layers = count[mf_partition_cell(in, v, slot, m)];
                for (int p = 0; p < MF_ORDER_PARTS && layers > 0.0; p++) {
                    sum_s += layers * path->count[p][v] *
                             mf_partition_part_s(in, c, m, (mf_order_part)p, false);
                }
            }
        }
    }
    for (int v = 0; v < in->vstages; v++) {
        const double *more = mf_partition_end_more_s(in, v);
        const double share = more ? mf_partition_end_share(in, count, v) : 0.0;
        for (int p = 0; p < MF_ORDER_PARTS && share > 0.0; p++) {
            sum_s += share * path->count[p][v] * more[p];
        }
        ends_met += share > 0.0;
    }
    assert_at_most(fabs(sum_s - path->time_s), 1e-9 * path->time_s);
}

/* The longest path through the order is a bound of that very assignment, fitting or not. */
static inline void check_paths(mf_partition *in, const sample *s, nearness *n) {
    mf_order_path path;
    double *count = calloc(mf_partition_cells(in), sizeof *count);
    assert_ok(mf_order_path_init(&path, in->vstages, NULL));
    for (int i = 0; i < TRIES; i++) {
        if (counts_of(in, &s->a[i], count)) {
            mf_partition_losses(in, NULL, INFINITY);
            assert_ok(mf_partition_play(in, count, false, NULL, &path, NULL));
            check(n, PATH, path.time_s, s, i);
            check_losses(in, s, i, count, &path, n);
        }
    }
    mf_partition_losses(in, NULL, INFINITY);
    mf_order_path_clear(&path);
    free(count);
}

static inline void note_portion(nearness *n, kind k, const sample *s, const char *what,
                                double portion_s, double time_s) {
    if (!(portion_s <= time_s * (1.0 + HAIR)) && n[k].broken++ < 3) {
        printf("seed %llu: %s portion %.12g s is above %.12g s by %.2g\n",
               (unsigned long long)s->seed, what, portion_s, time_s, portion_s / time_s - 1.0);
        planner_print_model(s->model);
        planner_print(&s->layout, &s->a[0]);
    }
    note(&n[k], time_s > 0.0 ? portion_s / time_s : 1.0);
}

#endif
