/* primal_heuristics.c - plans where memory decides: what is fast does not fit then, and bounds do
 * not say so for long. A plan that fits, however slow, lets the search close what is slower and end
 * in time; and what its degrees allow with better orders, ZeRO levels, splits and memory choices is
 * tried before anything else, since the least bounds belong to layouts that fit nowhere. So it is
 * with what is open at the end of a search whose gap is wide: of all degrees some are tried. */
#include "planner/search/search.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A layout that fits, simulated with as little memory as it takes. */
typedef struct fit_step {
    double time_s;
    const mf_layout *layout;
} fit_step;

static mf_status simulate(const mf_evaluator *evaluator, const mf_layout *l, mf_search_found *f,
                          mf_step *step, mf_err *e) {
    *f = (mf_search_found){.layout = *l};
    mf_status status = mf_assignment_even(evaluator->model, l, &f->assignment, e);
    status = status == MF_OK ? evaluator->ops->step(evaluator->self, l, &f->assignment, step, e)
                             : status;
    f->time_s = step->time_s;
    return status;
}

/* Just below key_s, the least bound: a node with this key comes before all nodes at that bound. */
static double just_below_s(double key_s) {
    return nextafter(key_s, 0.0);
}

/* Keeps its place among equals. */
static void enter(fit_step *list, int *count, fit_step x) {
    int at = (*count)++;
    for (; at > 0 && list[at - 1].time_s > x.time_s; at--) {
        list[at] = list[at - 1];
    }
    list[at] = x;
}

/* --- layouts of the same degrees -------------------------------------------------------------- */

/* Splits families until all are layouts, which *list then holds. */
static mf_status split_down(mf_search_context *w, const mf_search_aim *aim, mf_search_outcome *list,
                            mf_err *e) {
    for (int level = MF_LEVEL_PIPELINE; level < MF_LEVEL_LAYOUT; level++) {
        mf_search_outcome next = {.status = MF_OK, .work_ns = list->work_ns};
        for (int64_t i = 0; i < list->children && next.status == MF_OK; i++) {
            if (list->child[i].level <= level) {
                mf_search_split(w, &list->child[i], aim, &next);
            } else if (!mf_search_add(&next, &list->child[i])) {
                break; /* its status says so */
            }
        }
        free(list->child);
        *list = next;
        if (next.status != MF_OK) {
            if (e) {
                *e = next.err;
            }
            return next.status;
        }
    }
    return MF_OK;
}

/* Lists the families of these degrees: every micro-batch, CP type and dispatcher. */
static bool add_stages(const mf_search_context *w, const mf_layout *l, mf_search_outcome *list) {
    bool good = true;
    for (int64_t s = 0; s < w->sides; s++) {
        for (int32_t d = w->side[s].first; d < w->side[s].first + w->side[s].count; d++) {
            const mf_dense_point *x = &w->dense[d];
            for (int32_t k = 0; k < w->experts; k++) {
                const mf_expert_point *y = &w->expert[k];
                const mf_search_node n = {
                    .level = MF_LEVEL_PIPELINE, .side = (int32_t)s, .dense = d, .expert = k};
                if (x->tp == l->tp && x->cp == l->cp && x->pp == l->pp && y->ep == l->ep &&
                    y->etp == l->etp) {
                    good = mf_search_add(list, &n) && good;
                }
            }
        }
    }
    return good;
}

static int by_key(const void *a, const void *b) {
    const mf_search_node *x = a, *y = b;
    if (x->key_s < y->key_s || x->key_s > y->key_s) {
        return x->key_s < y->key_s ? -1 : 1;
    }
    return x->id < y->id ? -1 : 1;
}

/* The `most` layouts of the least bounds among those of the same degrees. */
static mf_status try_degrees(mf_search_context *w, const fit_step *near, int count, int most,
                             double best_s, double key_s, mf_search_outcome *out, mf_err *e) {
    const mf_search_aim aim = {.best_s = best_s, .target_s = HUGE_VAL};
    mf_search_outcome list = {.status = MF_OK};
    mf_status status = MF_OK;
    for (int i = 0; i < count && status == MF_OK; i++) {
        status =
            add_stages(w, near[i].layout, &list) ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
    }
    status = status == MF_OK ? split_down(w, &aim, &list, e) : status;
    for (int64_t i = 0; i < list.children; i++) {
        list.child[i].id = (uint64_t)i;
    }
    if (status == MF_OK && list.children > 0) {
        qsort(list.child, (size_t)list.children, sizeof *list.child, by_key);
    }
    for (int64_t i = 0; i < list.children && i < most && status == MF_OK; i++) {
        list.child[i].level = MF_LEVEL_TRY;
        list.child[i].key_s = just_below_s(key_s);
        status = mf_search_add(out, &list.child[i]) ? MF_OK : MF_NOMEM;
    }
    out->work_ns += list.work_ns;
    free(list.child);
    return status;
}

mf_status mf_search_try_near(mf_search_context *w, const mf_search_found *found, double key_s,
                             mf_search_outcome *out, mf_err *e) {
    const fit_step near = {found->time_s, &found->layout};
    return try_degrees(w, &near, 1, MF_NEAR_TRIES, found->time_s, key_s, out, e);
}

/* --- open layouts ----------------------------------------------------------------------------- */

/* A layout or a family that is open, its degrees, and how it is played (-1: in several ways). */
enum { MODE = 5, DEGREES };
typedef struct open_layout {
    int64_t degree[DEGREES];
    int memory_rank; /* the more, the less memory it takes: ZeRO levels first */
    int64_t mbs;
    int64_t turn; /* which of those that are played alike, by bound */
    mf_search_node node;
} open_layout;

static int by_degrees(const void *a, const void *b) {
    const open_layout *x = a, *y = b;
    for (int i = 0; i < DEGREES; i++) {
        if (x->degree[i] != y->degree[i]) {
            return x->degree[i] < y->degree[i] ? -1 : 1;
        }
    }
    return by_key(&x->node, &y->node);
}

static bool same_group(const open_layout *x, const open_layout *y) {
    return memcmp(x->degree, y->degree, sizeof x->degree) == 0;
}

/* Sharding saves most memory, then schedules that run no two micro-batches at once, then small
 * micro-batches. */
static int memory_rank(const mf_search_node *n, int64_t mbs) {
    return (n->zero + n->expert_zero) * 64 +
           ((mf_schedule_rules[n->schedule].does & MF_SCHEDULE_MERGES) != 0 ? 0 : 32) - (int)mbs;
}

/* Of each run of equal degrees in [0, count): the least, the least of the smallest micro-batches,
 * and the least of those of least memory. */
static int64_t choose(open_layout *x, int64_t count) {
    int64_t kept = 0;
    for (int64_t i = 0, end; i < count; i = end) {
        int64_t small = i, least = i;
        for (end = i; end < count && same_group(&x[i], &x[end]); end++) {
            small = x[end].mbs < x[small].mbs ? end : small;
            least = x[end].memory_rank > x[least].memory_rank ? end : least;
        }
        const open_layout one[] = {x[i], x[small], x[least]};
        for (int k = 0; k < 3; k++) {
            bool again = (k == 1 && small == i) || (k == 2 && (least == i || least == small));
            if (!again) {
                x[kept++] = one[k];
            }
        }
    }
    return kept;
}

static int by_bound(const void *a, const void *b) {
    return by_key(&((const open_layout *)a)->node, &((const open_layout *)b)->node);
}

static int by_turn(const void *a, const void *b) {
    const open_layout *x = a, *y = b;
    return x->turn != y->turn ? (x->turn > y->turn) - (x->turn < y->turn) : by_bound(a, b);
}

/* Those of least bound and of least memory of all degrees, by their bounds, ways to play in turn:
 * pairs have the least bounds, and take most memory. */
static int64_t choose_open(open_layout *x, int64_t n) {
    int64_t turns[MF_PASS_MODES + 1] = {0};
    if (n == 0) {
        return 0;
    }
    qsort(x, (size_t)n, sizeof *x, by_degrees);
    n = choose(x, n);
    qsort(x, (size_t)n, sizeof *x, by_bound);
    for (int64_t i = 0; i < n; i++) {
        x[i].turn = turns[x[i].degree[MODE] + 1]++;
    }
    qsort(x, (size_t)n, sizeof *x, by_turn);
    return n;
}

static open_layout open_of(const mf_search_context *w, const mf_search_node *n) {
    const mf_dense_point *d = &w->dense[n->dense];
    const mf_expert_point *p = &w->expert[n->expert];
    int mode = n->level >= MF_LEVEL_ORDER ? (int)mf_pass_mode_of((mf_schedule_kind)n->schedule)
               : n->level == MF_LEVEL_PASS_MODE ? (int)n->mode
                                                : -1;
    open_layout x = {.degree = {d->tp, d->cp, d->pp, p->ep, p->etp, mode},
                     .memory_rank = n->level >= MF_LEVEL_LAYOUT ? memory_rank(n, d->mbs) : 0,
                     .mbs = d->mbs,
                     .node = *n};
    x.node.tried = (mf_partition_tried){0};
    return x;
}

/* Appends the open nodes of some levels below the best plan to the *n listed so far. */
static void list_open(const mf_search_context *w, const mf_search_open *open, mf_level from,
                      mf_level until, open_layout *x, int64_t *n) {
    for (int k = 0; k < 2; k++) {
        for (int64_t i = 0; i < open->count[k]; i++) {
            const mf_search_node *node = &open->list[k][i];
            if (node->level >= from && node->level <= until && node->level != MF_LEVEL_TRY &&
                node->key_s < open->best_s) {
                x[(*n)++] = open_of(w, node);
            }
        }
    }
}

static int64_t count_open(const mf_search_open *open) {
    return open->count[0] + open->count[1];
}

/* Splits open families into layouts and keeps those of the least bounds. */
static mf_status list_families(mf_search_context *w, const mf_search_open *open,
                               mf_search_outcome *list, mf_err *e) {
    const mf_search_aim aim = {.best_s = open->best_s, .target_s = HUGE_VAL};
    open_layout *x = malloc((size_t)(count_open(open) + 1) * sizeof *x);
    int64_t n = 0;
    if (!x) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    list_open(w, open, MF_LEVEL_PIPELINE, MF_LEVEL_ORDER, x, &n);
    n = choose_open(x, n);
    bool good = true;
    for (int64_t i = 0; i < n && i < MF_OPEN_FAMILIES && good; i++) {
        good = mf_search_add(list, &x[i].node);
    }
    free(x);
    if (!good) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status status = split_down(w, &aim, list, e);
    for (int64_t i = 0; i < list->children; i++) { /* behind all that have a number */
        list->child[i].id = (UINT64_C(1) << 62) + (uint64_t)i;
    }
    return status;
}

static bool add_tries(const open_layout *x, int64_t n, double target_s, double key_s,
                      mf_search_outcome *out) {
    int behind = 0;
    bool good = true;
    for (int64_t i = 0; i < n && out->children < MF_OPEN_TRIES && good; i++) {
        mf_search_node one = x[i].node;
        behind += one.key_s >= target_s;
        if (one.key_s >= target_s && behind > MF_OPEN_BEHIND) {
            continue;
        }
        one.level = MF_LEVEL_TRY;
        one.tries = 0;
        one.key_s = just_below_s(key_s);
        good = mf_search_add(out, &one);
    }
    return good;
}

mf_status mf_search_try_open(mf_search_context *w, const mf_search_open *open, double key_s,
                             mf_search_outcome *out, mf_err *e) {
    mf_search_outcome list = {.status = MF_OK};
    mf_status status = list_families(w, open, &list, e);
    if (status == MF_OK) {
        open_layout *x = malloc((size_t)(count_open(open) + list.children + 1) * sizeof *x);
        int64_t n = 0;
        bool good = x != NULL;
        if (good) {
            list_open(w, open, MF_LEVEL_LAYOUT, MF_LEVEL_TRY, x, &n);
            for (int64_t i = 0; i < list.children; i++) {
                x[n++] = open_of(w, &list.child[i]);
            }
            good = add_tries(x, choose_open(x, n), open->target_s, key_s, out);
        }
        status = good ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
        free(x);
    }
    out->work_ns += list.work_ns;
    free(list.child);
    return status;
}

/* About how long the layout's step takes, kept at its fastest: by its bound and its bubble. */
static mf_status estimate(mf_search_context *w, const mf_layout *l, fit_step *out, mf_err *e) {
    mf_layer_times r;
    mf_status status = mf_layer_times_halves(w->costs, l, &r, e);
    *out = (fit_step){HUGE_VAL, l};
    if (status == MF_OK) {
        const double all_s =
            mf_family_bound_stages_s(&r, 1u << MF_PASS_MODE_PLAIN, l->pp, l->micro_batches, 0.0);
        out->time_s = all_s * (1.0 + (double)(l->pp - 1) / (double)l->micro_batches);
    }
    return status;
}

static int by_time(const void *a, const void *b) {
    const fit_step *x = a, *y = b;
    if (x->time_s < y->time_s || x->time_s > y->time_s) {
        return x->time_s < y->time_s ? -1 : 1;
    }
    return (x->layout > y->layout) - (x->layout < y->layout);
}

/* The layouts, by about how long they take. To be freed. */
static mf_status sort_by_estimate(mf_search_context *w, const mf_layout *candidate, int64_t count,
                                  fit_step **out, int64_t *work_ns, mf_err *e) {
    mf_status status = MF_OK;
    *out = malloc(((size_t)count + 1) * sizeof **out);
    if (!*out) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (int64_t i = 0; i < count && status == MF_OK; i++) {
        status = estimate(w, &candidate[i], &(*out)[i], e);
        *work_ns += MF_EXPERT_BOUND_NS;
    }
    if (status == MF_OK && count > 0) {
        qsort(*out, (size_t)count, sizeof **out, by_time);
    }
    return status;
}

/* Simulates the fastest of those that fit, in the order of the estimates; found[*n] by time. */
static mf_status simulate_fits(const mf_search_request *r, mf_layout *candidate,
                               fit_step *by_estimate, int64_t count, fit_step found[MF_FIT_LAYOUTS],
                               int *n, mf_search_keep *keep, void *user, mf_search_outcome *out,
                               mf_err *e) {
    mf_status status = MF_OK;
    mf_search_found *f = malloc(sizeof *f);
    if (!f) {
        return mf_err_set(e, MF_NOMEM, "out of memory for a plan");
    }
    for (int64_t i = 0; i < count && *n < MF_FIT_LAYOUTS && status == MF_OK; i++) {
        mf_layout *l = &candidate[by_estimate[i].layout - candidate];
        mf_step step = {0};
        bool fits = false;
        status = r->judge_fit_candidate(r->user, l, &fits, e);
        out->work_ns += MF_JUDGE_NS;
        if (status != MF_OK || !fits) {
            continue;
        }
        status = simulate(r->evaluator, l, f, &step, e);
        out->simulated += status == MF_OK;
        out->work_ns +=
            mf_evaluator_step_ns(l) + mf_evaluator_memory_ns(f->assignment.positions, step.looks);
        if (status == MF_OK && step.fits) {
            keep(user, f);
            enter(found, n, (fit_step){step.time_s, l});
        }
    }
    free(f);
    return status;
}

mf_status mf_search_try_fits(mf_search_context *w, const mf_search_request *r, double key_s,
                             double best_s, mf_search_keep *keep, void *user,
                             mf_search_outcome *out, mf_err *e) {
    fit_step found[MF_FIT_LAYOUTS] = {{0}}, *by_estimate = NULL;
    int n = 0, near = 0;
    int64_t count = 0;
    mf_layout *candidate = NULL;
    mf_status status = r->list_fit_candidates(r->user, &candidate, &count, e);
    if (status == MF_OK) {
        status = sort_by_estimate(w, candidate, count, &by_estimate, &out->work_ns, e);
    }
    if (status == MF_OK) {
        status = simulate_fits(r, candidate, by_estimate, count, found, &n, keep, user, out, e);
    }
    while (near < n && near < MF_FIT_DEGREES &&
           found[near].time_s <= MF_FIT_NEAR * found[0].time_s) {
        near++;
    }
    if (status == MF_OK && near > 0) {
        status =
            try_degrees(w, found, near, MF_FIT_TRIES, fmin(best_s, found[0].time_s), key_s, out, e);
    }
    free(by_estimate);
    free(candidate);
    return status;
}
