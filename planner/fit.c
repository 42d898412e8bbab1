/* fit.c - phase 1: for every combination of degrees, does it fit, and by how much.
 *
 * Each combination is judged (fit_judge.c) at its leanest: smallest micro-batch, plain 1F1B.
 */
#include "planner/fit_judge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LL(x) ((long long)(x))

static bool pinned(const mf_problem *p, mf_dim d) {
    return (p->pinned >> d & 1u) != 0;
}

/* --- all combinations ------------------------------------------------------------------------- */

typedef struct sweep {
    const mf_problem *p;
    mf_space space;
    const mf_fit_options *o;
    mf_fit_judge *judge;
    mf_fit_progress now;
    double started_s;
    bool first_only; /* stop at the first that fits */
    mf_fit_result *r;
    int64_t capacity;
    bool found;
    mf_err *e;
} sweep;

static mf_status append(sweep *w, const mf_fit_entry *entry) {
    mf_fit_result *r = w->r;
    if (r->count == w->capacity) {
        int64_t capacity = w->capacity ? 2 * w->capacity : 256;
        mf_fit_entry *grown = realloc(r->entry, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            return mf_err_set(w->e, MF_NOMEM, "fit: out of memory");
        }
        r->entry = grown;
        w->capacity = capacity;
    }
    r->entry[r->count++] = *entry;
    r->feasible += entry->fits;
    w->found |= entry->fits;
    return MF_OK;
}

/* The layout of a pair of points at the order that needs least; false when there is none. */
static bool lean_layout(const sweep *w, const mf_dense_point *d, const mf_expert_point *x,
                        mf_layout *out) {
    enum { MAX_ORDERS = 512 };
    mf_order_point orders[MAX_ORDERS];
    int64_t n = mf_space_orders(&w->space, d->pp, d->micro_batches, orders, MAX_ORDERS);
    n = n < MAX_ORDERS ? n : MAX_ORDERS;
    const mf_order_point *best = NULL;
    for (int64_t i = 0; i < n; i++) { /* 1F1B without chunks keeps least in flight */
        bool plain = orders[i].schedule == MF_SCHED_1F1B;
        if (best == NULL || (plain && best->schedule != MF_SCHED_1F1B)) {
            best = &orders[i];
        }
    }
    mf_zero_point zero = {w->space.base.zero, w->space.base.expert_zero};
    if (best == NULL) {
        return false;
    }
    *out = mf_space_layout(&w->space, d, x, best, &zero);
    return true;
}

/* Dense points of the same degrees differ in micro-batch, CP type, precision: the first is lean. */
static bool same_degrees(const mf_dense_point *a, const mf_dense_point *b) {
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp;
}

static bool same_expert_degrees(const mf_expert_point *a, const mf_expert_point *b) {
    return a->ep == b->ep && a->etp == b->etp;
}

static mf_status visit(sweep *w, const mf_dense_point *d, const mf_expert_point *experts,
                       int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        /* The last dispatcher of a pair of degrees counts: prefer all-to-all, which keeps no
         * registered buffers. */
        bool chosen = experts[i].dispatcher == MF_DISPATCH_ALLTOALL || experts[i].ep == 1 ||
                      pinned(w->p, MF_DIM_DISPATCHER);
        bool again =
            i > 0 && same_expert_degrees(&experts[i], &experts[i - 1]) && experts[i].ep == 1;
        if (!chosen || again) {
            continue;
        }
        mf_layout l;
        mf_fit_entry entry = {0};
        bool laid_out = false;
        if (!lean_layout(w, d, &experts[i], &l)) {
            continue;
        }
        mf_status status = mf_fit_judge_leanest(w->judge, l, &entry, &laid_out, w->e);
        if (status == MF_OK && laid_out) {
            status = append(w, &entry);
        }
        if (status != MF_OK || (w->first_only && w->found)) {
            return status;
        }
        if (w->o->cancel != NULL && *w->o->cancel) {
            return mf_err_set(w->e, MF_INTERRUPTED, "fit: interrupted");
        }
    }
    return MF_OK;
}

static double clock_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void tell(sweep *w, int64_t done) {
    w->now.done += done;
    w->now.feasible = w->r->feasible;
    if (w->o->progress != NULL) {
        w->now.wall_s = clock_s() - w->started_s;
        w->o->progress(&w->now, w->o->user);
    }
}

/* The expert points of every pipeline degree that the dense points have. */
typedef struct expert_lists {
    int64_t pp, count;
    mf_expert_point *point;
} expert_lists;

static mf_status experts_of(const sweep *w, int64_t pp, expert_lists *x) {
    if (x->point != NULL && x->pp == pp) {
        return MF_OK;
    }
    free(x->point);
    x->pp = pp;
    x->count = mf_space_experts(&w->space, pp, NULL, 0);
    x->point = calloc((size_t)x->count + 1, sizeof *x->point);
    if (x->point == NULL) {
        return mf_err_set(w->e, MF_NOMEM, "fit: out of memory");
    }
    mf_space_experts(&w->space, pp, x->point, x->count);
    return MF_OK;
}

static mf_status run_sweep(sweep *w) {
    int64_t count = mf_space_dense(&w->space, NULL, 0);
    mf_dense_point *dense = calloc((size_t)count + 1, sizeof *dense);
    expert_lists experts = {0};
    mf_status status = dense ? MF_OK : mf_err_set(w->e, MF_NOMEM, "fit: out of memory");
    if (status == MF_OK) {
        mf_space_dense(&w->space, dense, count);
        w->now = (mf_fit_progress){.gpus = w->space.base.gpus};
        w->started_s = clock_s();
    }
    for (int pass = 0; dense != NULL && pass < 2; pass++) { /* counts, then judges */
        for (int64_t i = 0; status == MF_OK && i < count; i++) {
            if (i > 0 && same_degrees(&dense[i], &dense[i - 1])) {
                continue;
            }
            status = experts_of(w, dense[i].pp, &experts);
            if (status == MF_OK && pass == 0) {
                w->now.total += experts.count;
            } else if (status == MF_OK) {
                status = visit(w, &dense[i], experts.point, experts.count);
                tell(w, experts.count);
            }
            if (w->first_only && w->found) {
                break;
            }
        }
    }
    free(experts.point);
    free(dense);
    return status;
}

static mf_space space_of(const mf_problem *p, int64_t gpus) {
    mf_space s = {.model = p->model, .base = p->base, .pinned = p->pinned};
    s.precisions = p->precisions;
    s.base.gpus = gpus;
    return s;
}

/* --- sizes ------------------------------------------------------------------------------------ */

static mf_status fits_at(const sweep *like, int64_t gpus, bool *fits, mf_err *e) {
    mf_fit_result scratch = {0};
    sweep w = {.p = like->p,
               .space = space_of(like->p, gpus),
               .o = like->o,
               .judge = like->judge,
               .first_only = true,
               .r = &scratch,
               .e = e};
    mf_status status = run_sweep(&w);
    *fits = w.found;
    mf_fit_result_clear(&scratch);
    return status;
}

/* Doubles until something fits, then tries whole nodes in between, from below. */
static mf_status smallest_size(const sweep *w, int64_t *out, mf_err *e) {
    const mf_problem *p = w->p;
    const mf_cluster *c = mf_cost_cluster(p->cost);
    int64_t node = c->gpus_per_node > 0 ? c->gpus_per_node : 1;
    int64_t most = c->max_gpus > 0 ? (int64_t)c->max_gpus : (int64_t)1 << 17;
    int64_t low = p->base.gpus, high = 0;
    *out = 0;
    for (int64_t n = low * 2; n <= most && high == 0; n *= 2) {
        bool fits = false;
        mf_status status = fits_at(w, n, &fits, e);
        if (status != MF_OK) {
            return status;
        }
        if (fits) {
            high = n;
        } else {
            low = n;
        }
    }
    if (high == 0) {
        return MF_OK;
    }
    int64_t step = (high - low) / 8 / node * node;
    step = step < node ? node : step;
    for (int64_t n = low + step; n < high; n += step) {
        bool fits = false;
        mf_status status = fits_at(w, n, &fits, e);
        if (status != MF_OK) {
            return status;
        }
        if (fits) {
            high = n;
        }
    }
    *out = high;
    return MF_OK;
}

/* --- result ----------------------------------------------------------------------------------- */

static int by_headroom(const void *a, const void *b) {
    const mf_fit_entry *x = a, *y = b;
    if (x->fits != y->fits) {
        return x->fits ? -1 : 1;
    }
    double first = x->fits ? -x->headroom_B : mf_fit_missing_B(x);
    double second = y->fits ? -y->headroom_B : mf_fit_missing_B(y);
    return first < second ? -1 : first > second;
}

static void say_missing(const mf_space *s, mf_fit_result *r) {
    if (r->count == 0) {
        mf_space_why_empty(s, r->missing, sizeof r->missing);
        return;
    }
    const mf_fit_entry *f = &r->entry[0];
    const mf_layout *l = &f->layout;
    char device[200] = "", host[120] = "";
    if (f->headroom_B < 0) {
        snprintf(device, sizeof device,
                 "needs %.1f GB on stage %lld, usable are %.1f GB: %.1f GB are missing; largest "
                 "kind: %s, %.1f GB",
                 f->peak_B / 1e9, LL(f->stage), f->usable_B / 1e9, -f->headroom_B / 1e9,
                 mf_memory_text(f->dominant), f->dominant_B / 1e9);
    }
    if (f->host_missing_B > 0) {
        snprintf(host, sizeof host,
                 "%soffloads %.1f GB, for which %.1f GB of host memory are missing",
                 device[0] != '\0' ? "; it " : "", f->host_B / 1e9, f->host_missing_B / 1e9);
    }
    snprintf(r->missing, sizeof r->missing,
             "the leanest layout (TP %lld, CP %lld, PP %lld, EP %lld, ETP %lld) %s%s", LL(l->tp),
             LL(l->cp), LL(l->pp), LL(l->ep), LL(l->etp), device, host);
}

/* Makes the first entries of [from, to) exact. That moves them back, never forward. */
static mf_status make_exact(sweep *w, int64_t from, int64_t to) {
    mf_fit_entry *list = w->r->entry;
    int64_t end = to - from > w->o->shown ? from + w->o->shown : to;
    end = end == from && to > from ? from + 1 : end;
    for (int64_t i = from; i < end;) {
        if (list[i].exact) {
            i++;
            continue;
        }
        mf_fit_entry x = list[i];
        mf_status status = mf_fit_judge_exact(w->judge, &x, w->e);
        if (status == MF_OK && w->o->cancel != NULL && *w->o->cancel) {
            status = mf_err_set(w->e, MF_INTERRUPTED, "fit: interrupted");
        }
        if (status != MF_OK) {
            return status;
        }
        int64_t at = i;
        for (; at + 1 < to && by_headroom(&x, &list[at + 1]) > 0; at++) {
            list[at] = list[at + 1];
        }
        list[at] = x;
    }
    return MF_OK;
}

static mf_status arrange_result(sweep *w) {
    mf_fit_result *r = w->r;
    if (r->count == 0) {
        return mf_space_rule(&w->space, w->e);
    }
    qsort(r->entry, (size_t)r->count, sizeof *r->entry, by_headroom);
    mf_status status = make_exact(w, 0, r->feasible);
    return status == MF_OK ? make_exact(w, r->feasible, r->count) : status;
}

mf_status mf_planner_fit(const mf_problem *p, const mf_fit_options *o, mf_fit_result *result,
                         mf_err *e) {
    *result = (mf_fit_result){0};
    sweep w = {.p = p, .space = space_of(p, p->base.gpus), .o = o, .r = result, .e = e};
    mf_status status = mf_fit_judge_create(p, &w.judge, e);
    if (status == MF_OK) {
        status = run_sweep(&w);
    }
    if (status == MF_OK) {
        status = arrange_result(&w);
    }
    if (status != MF_OK) {
        mf_fit_result_clear(result);
        goto out;
    }
    if (result->feasible > 0) {
        result->smallest_gpus = p->base.gpus;
        goto out;
    }
    say_missing(&w.space, result);
    status = smallest_size(&w, &result->smallest_gpus, e);
    if (status == MF_OK) {
        status = mf_err_set(e, MF_INFEASIBLE, "%s", result->missing);
    }
out:
    mf_fit_judge_destroy(w.judge);
    return status;
}

void mf_fit_result_clear(mf_fit_result *r) {
    free(r->entry);
    *r = (mf_fit_result){0};
}
