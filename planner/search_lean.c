/* search_lean.c - plans where memory decides: what is fast does not fit then, and bounds do not say
 * so for long. A plan that fits, however slow, lets the search close what is slower and end in
 * time; and what its degrees allow with better orders, ZeRO levels, splits and memory choices is
 * tried before anything else, since the least bounds belong to layouts that fit nowhere. So it is
 * with what is open at the end of a search whose gap is wide: of all degrees some are tried. */
#include "planner/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Layouts that are simulated, at most. */
#define MOST_LEAN 64
/* Degrees that are tried, those within so much of the fastest; and layouts of them. */
#define MOST_DEGREES 12
#define NEAR 1.25
#define MOST_TRIED 768
/* Open layouts that are tried. */
#define MOST_OPEN 256

/* A layout that fits, simulated as lean as it gets. */
typedef struct lean_step {
    double time_s;
    const mf_layout *layout;
} lean_step;

static mf_status simulate(const mf_oracle *oracle, const mf_layout *l, mf_search_found *f,
                          mf_step *step, mf_err *e) {
    *f = (mf_search_found){.layout = *l};
    mf_status status = mf_assignment_even(oracle->model, l, &f->assignment, e);
    status = status == MF_OK ? oracle->ops->step(oracle->self, l, &f->assignment, true, step, e)
                             : status;
    f->time_s = step->time_s;
    return status;
}

/* Keeps its place among equals. */
static void enter(lean_step *list, int *count, lean_step x) {
    int at = (*count)++;
    for (; at > 0 && list[at - 1].time_s > x.time_s; at--) {
        list[at] = list[at - 1];
    }
    list[at] = x;
}

/* --- layouts of the same degrees -------------------------------------------------------------- */

typedef void split_fn(mf_search_world *w, const mf_search_node *n, const mf_search_aim *aim,
                      mf_search_outcome *out);

/* Splits families of one level after the other, from stages to layouts; *list becomes what they
 * are split into. */
static mf_status split_down(mf_search_world *w, const mf_search_aim *aim, mf_search_outcome *list,
                            mf_err *e) {
    static split_fn *const split[] = {mf_search_split_stages, mf_search_split_mode,
                                      mf_search_split_order};
    for (size_t level = 0; level < sizeof split / sizeof split[0]; level++) {
        mf_search_outcome next = {.status = MF_OK, .work = list->work};
        for (int64_t i = 0; i < list->children && next.status == MF_OK; i++) {
            split[level](w, &list->child[i], aim, &next);
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

/* Families of these degrees: every micro-batch, CP type and dispatcher. */
static bool add_stages(const mf_search_world *w, const mf_layout *l, mf_search_outcome *list) {
    bool good = true;
    for (int64_t s = 0; s < w->sides; s++) {
        for (int32_t d = w->side[s].first; d < w->side[s].first + w->side[s].count; d++) {
            const mf_dense_point *x = &w->dense[d];
            for (int32_t k = 0; k < w->experts; k++) {
                const mf_expert_point *y = &w->expert[k];
                const mf_search_node n = {
                    .level = MF_LEVEL_STAGES, .side = (int32_t)s, .dense = d, .expert = k};
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

static mf_status try_degrees(mf_search_world *w, const lean_step *near, int count, double best_s,
                             double key_s, mf_search_outcome *out, mf_err *e) {
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
    for (int64_t i = 0; i < list.children && i < MOST_TRIED && status == MF_OK; i++) {
        list.child[i].level = MF_LEVEL_TRY;
        list.child[i].key_s = key_s;
        status = mf_search_add(out, &list.child[i]) ? MF_OK : MF_NOMEM;
    }
    out->work += list.work;
    free(list.child);
    return status;
}

/* --- what is open ----------------------------------------------------------------------------- */

/* An open layout and its degrees. */
typedef struct open_layout {
    int64_t degree[5];
    int lean; /* the more, the less memory it takes: ZeRO levels first */
    mf_search_node node;
} open_layout;

static int by_degrees(const void *a, const void *b) {
    const open_layout *x = a, *y = b;
    for (int i = 0; i < 5; i++) {
        if (x->degree[i] != y->degree[i]) {
            return x->degree[i] < y->degree[i] ? -1 : 1;
        }
    }
    return by_key(&x->node, &y->node);
}

static bool same_group(const open_layout *x, const open_layout *y) {
    return memcmp(x->degree, y->degree, sizeof x->degree) == 0;
}

/* Sharding saves most, then that no two micro-batches are at work at once, then small ones. */
static int leanness(const mf_search_node *n, int64_t mbs) {
    return (n->zero + n->expert_zero) * 64 + (n->schedule == MF_SCHED_MERGED ? 0 : 32) - (int)mbs;
}

/* Of each run of equal degrees in [0, count): the least, and the least of the leanest. */
static int64_t choose(open_layout *x, int64_t count) {
    int64_t kept = 0;
    for (int64_t i = 0, end; i < count; i = end) {
        int64_t lean = i;
        for (end = i; end < count && same_group(&x[i], &x[end]); end++) {
            lean = x[end].lean > x[lean].lean ? end : lean;
        }
        const open_layout first = x[i], second = x[lean];
        x[kept++] = first;
        if (lean > i) {
            x[kept++] = second;
        }
    }
    return kept;
}

static int by_bound(const void *a, const void *b) {
    return by_key(&((const open_layout *)a)->node, &((const open_layout *)b)->node);
}

mf_status mf_search_try_open(const mf_search_world *w, const mf_search_node *const list[2],
                             const int64_t counts[2], double best_s, double key_s,
                             mf_search_outcome *out, mf_err *e) {
    open_layout *x = malloc((size_t)(counts[0] + counts[1] + 1) * sizeof *x);
    int64_t n = 0;
    bool good = x != NULL;
    for (int k = 0; k < 2 && good; k++) {
        for (int64_t i = 0; i < counts[k]; i++) {
            const mf_search_node *from = &list[k][i];
            if (from->level >= MF_LEVEL_LAYOUT && from->level != MF_LEVEL_TRY &&
                from->key_s < best_s) {
                const mf_dense_point *d = &w->dense[from->dense];
                const mf_expert_point *p = &w->expert[from->expert];
                x[n] = (open_layout){.degree = {d->tp, d->cp, d->pp, p->ep, p->etp},
                                     .lean = leanness(from, d->mbs),
                                     .node = *from};
                x[n++].node.tried = (mf_inner_tried){0};
            }
        }
    }
    if (n > 0) {
        qsort(x, (size_t)n, sizeof *x, by_degrees);
        n = choose(x, n);
        qsort(x, (size_t)n, sizeof *x, by_bound);
    }
    for (int64_t i = 0; i < n && i < MOST_OPEN && good; i++) {
        mf_search_node one = x[i].node;
        one.level = MF_LEVEL_TRY;
        one.tries = 0;
        one.open = false;
        one.key_s = key_s;
        good = mf_search_add(out, &one);
    }
    free(x);
    return good ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
}

mf_status mf_search_lean(mf_search_world *w, const mf_search_request *r, double key_s,
                         double best_s, mf_search_keep *keep, void *user, mf_search_outcome *out,
                         mf_err *e) {
    mf_layout *lean = NULL;
    int64_t count = 0;
    lean_step found[MOST_LEAN];
    int n = 0, near = 0;
    mf_search_found *f = malloc(sizeof *f);
    mf_status status = f ? r->lean(r->user, &lean, &count, e)
                         : mf_err_set(e, MF_NOMEM, "out of memory for a plan");
    for (int64_t i = 0; i < count && i < MOST_LEAN && status == MF_OK; i++) {
        mf_step step = {0};
        status = simulate(r->oracle, &lean[i], f, &step, e);
        out->simulated += status == MF_OK;
        if (status == MF_OK && step.fits) {
            keep(user, f);
            enter(found, &n, (lean_step){step.time_s, &lean[i]});
        }
    }
    while (near < n && near < MOST_DEGREES && found[near].time_s <= NEAR * found[0].time_s) {
        near++;
    }
    if (status == MF_OK && near > 0) {
        status = try_degrees(w, found, near, fmin(best_s, found[0].time_s), key_s, out, e);
    }
    free(lean);
    free(f);
    return status;
}
