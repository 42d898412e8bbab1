/* fit_sweep.c - judges all combinations of degrees of one size, on several threads.
 *
 * Points with the same (TP, CP) have most of their blocks in common, so a thread stays with one
 * (TP, CP) as long as it has points left, then takes one that no thread works on, then helps the
 * others.
 */
#include "planner/fit/fit_sweep.h"

#include "core/base/clock.h"
#include "core/base/flag.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct side {
    int64_t next, end; /* points that nobody has taken */
    bool begun;
} side;

/* Expert points of a pipeline degree. */
typedef struct expert_list {
    int64_t pp, count;
    mf_expert_point *point;
} expert_list;

enum { MAX_PP = 512 }; /* divisors of a number of GPUs */

typedef struct sweep {
    const mf_fit_sweep *q;
    mf_fit_result *r;
    int64_t allocated;
    mf_dense_point *dense; /* one of each TP, CP and PP, of the least memory */
    side *side;
    int sides;
    expert_list experts[MAX_PP];
    int lists;
    mf_fit_progress now;
    double started_s;
    pthread_mutex_t lock; /* over all that follows, the sides and the result */
    bool stop;
    mf_status status;
    mf_err *e;
} sweep;

/* --- threads ---------------------------------------------------------------------------------- */

mf_status mf_fit_crew_init(mf_fit_crew *crew, const mf_problem *p, int threads, mf_err *e) {
    long cores = threads > 0 ? threads : sysconf(_SC_NPROCESSORS_ONLN);
    mf_status s = MF_OK;
    *crew = (mf_fit_crew){0};
    cores = cores < 1 ? 1 : cores > MF_FIT_THREADS ? MF_FIT_THREADS : cores;
    for (; crew->threads < cores && s == MF_OK; crew->threads++) {
        s = mf_fit_judge_create(p, &crew->judge[crew->threads], e);
    }
    return s;
}

void mf_fit_crew_clear(mf_fit_crew *crew) {
    for (int i = 0; i < crew->threads; i++) {
        mf_fit_judge_destroy(crew->judge[i]);
    }
}

/* --- points ----------------------------------------------------------------------------------- */

mf_space mf_fit_space(const mf_problem *p, int64_t gpus) {
    mf_space s = {.model = p->model, .base = p->base, .pinned = p->pinned, .limits = p->limits};
    s.precisions = p->precisions;
    s.base.gpus = gpus;
    return s;
}

static int by_side(const void *a, const void *b) {
    const mf_dense_point *x = a, *y = b;
    const int64_t keys[][2] = {{x->tp, y->tp}, {x->cp, y->cp}, {x->pp, y->pp}};
    return mf_space_compare(keys, 3);
}

/* Dense points of the same degrees differ in micro-batch, CP type, precision: the first needs
 * least. */
static bool same_degrees(const mf_dense_point *a, const mf_dense_point *b) {
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp;
}

static mf_status add_experts(sweep *w, int64_t pp) {
    for (int i = 0; i < w->lists; i++) {
        if (w->experts[i].pp == pp) {
            return MF_OK;
        }
    }
    if (w->lists == MAX_PP) {
        return mf_err_set(w->e, MF_INTERNAL, "fit: more than %d pipeline degrees", MAX_PP);
    }
    expert_list *x = &w->experts[w->lists++];
    x->pp = pp;
    x->count = mf_space_experts(&w->q->space, pp, NULL, 0);
    x->point = calloc((size_t)x->count + 1, sizeof *x->point);
    if (x->point == NULL) {
        return mf_err_set(w->e, MF_NOMEM, "fit: out of memory");
    }
    mf_space_experts(&w->q->space, pp, x->point, x->count);
    return MF_OK;
}

static const expert_list *experts_of(const sweep *w, int64_t pp) {
    const expert_list *x = w->experts;
    while (x->pp != pp) {
        x++;
    }
    return x;
}

static mf_status find_points(sweep *w) {
    int64_t count = mf_space_dense(&w->q->space, NULL, 0), n = 0;
    mf_status s = MF_OK;
    w->dense = calloc((size_t)count + 1, sizeof *w->dense);
    w->side = calloc((size_t)count + 1, sizeof *w->side);
    if (w->dense == NULL || w->side == NULL) {
        return mf_err_set(w->e, MF_NOMEM, "fit: out of memory");
    }
    mf_space_dense(&w->q->space, w->dense, count);
    for (int64_t i = 0; i < count && s == MF_OK; i++) {
        if (n == 0 || !same_degrees(&w->dense[i], &w->dense[n - 1])) {
            w->dense[n++] = w->dense[i];
            s = add_experts(w, w->dense[i].pp);
        }
    }
    qsort(w->dense, (size_t)n, sizeof *w->dense, by_side);
    for (int64_t i = 0; i < n && s == MF_OK; i++) {
        const mf_dense_point *d = &w->dense[i];
        if (i == 0 || d->tp != d[-1].tp || d->cp != d[-1].cp) {
            w->side[w->sides++].next = i;
        }
        w->side[w->sides - 1].end = i + 1;
        w->now.total += experts_of(w, d->pp)->count;
    }
    return s;
}

/* --- one point -------------------------------------------------------------------------------- */

/* The layout of a pair of points at the order that needs least; false when there is none. */
static bool least_memory_layout(const mf_space *space, const mf_dense_point *d,
                                const mf_expert_point *x, mf_layout *out) {
    enum { MAX_ORDERS = 512 };
    mf_order_point orders[MAX_ORDERS];
    int64_t n = mf_space_orders(space, d->pp, d->micro_batches, orders, MAX_ORDERS);
    n = n < MAX_ORDERS ? n : MAX_ORDERS;
    const mf_order_point *best = NULL;
    for (int64_t i = 0; i < n; i++) { /* 1F1B without chunks keeps least in flight */
        bool plain = orders[i].schedule == MF_SCHED_1F1B;
        if (best == NULL || (plain && best->schedule != MF_SCHED_1F1B)) {
            best = &orders[i];
        }
    }
    mf_zero_point zero = {space->base.zero, space->base.expert_zero};
    if (best == NULL) {
        return false;
    }
    *out = mf_space_layout(space, d, x, best, &zero);
    return true;
}

static bool same_expert_degrees(const mf_expert_point *a, const mf_expert_point *b) {
    return a->ep == b->ep && a->etp == b->etp;
}

/* The last dispatcher of a pair of degrees counts: prefer all-to-all, which keeps no registered
 * buffers. */
static bool is_chosen(const mf_problem *p, const mf_expert_point *x, int64_t i) {
    bool again = i > 0 && same_expert_degrees(&x[i], &x[i - 1]) && x[i].ep == 1;
    return !again && (x[i].dispatcher == MF_DISPATCH_ALLTOALL || x[i].ep == 1 ||
                      (p->pinned & MF_PIN(DISPATCHER)) != 0);
}

static mf_status append(sweep *w, const mf_fit_entry *entry, mf_err *e) {
    mf_fit_result *r = w->r;
    mf_status s = MF_OK;
    pthread_mutex_lock(&w->lock);
    if (r->count == w->allocated) {
        int64_t allocated = w->allocated ? 2 * w->allocated : 256;
        mf_fit_entry *grown = realloc(r->entry, (size_t)allocated * sizeof *grown);
        if (grown == NULL) {
            s = mf_err_set(e, MF_NOMEM, "fit: out of memory");
        } else {
            r->entry = grown;
            w->allocated = allocated;
        }
    }
    if (s == MF_OK) {
        r->entry[r->count++] = *entry;
        r->feasible += entry->fits;
        w->stop |= w->q->first_only && entry->fits;
    }
    pthread_mutex_unlock(&w->lock);
    return s;
}

static bool is_over(sweep *w) {
    const volatile int *cancel = w->q->o->cancel;
    pthread_mutex_lock(&w->lock);
    if (mf_flag_is_set(cancel) && w->status == MF_OK) {
        w->status = mf_err_set(w->e, MF_INTERRUPTED, "interrupted");
        w->stop = true;
    }
    bool over = w->stop;
    pthread_mutex_unlock(&w->lock);
    return over;
}

static mf_status visit(sweep *w, mf_fit_judge *judge, const mf_dense_point *d, const expert_list *x,
                       mf_err *e) {
    mf_status s = MF_OK;
    for (int64_t i = 0; i < x->count && s == MF_OK && !is_over(w); i++) {
        mf_layout l;
        mf_fit_entry entry = {0};
        bool laid_out = false;
        if (!is_chosen(w->q->p, x->point, i) ||
            !least_memory_layout(&w->q->space, d, &x->point[i], &l)) {
            continue;
        }
        s = mf_fit_judge_least_memory(judge, l, w->q->first_only, &entry, &laid_out, e);
        if (s == MF_OK && laid_out && w->q->exact) {
            s = mf_fit_judge_exact(judge, &entry, e);
        }
        if (s == MF_OK && laid_out) {
            s = append(w, &entry, e);
        }
    }
    return s;
}

/* --- workers ---------------------------------------------------------------------------------- */

/* Under the lock: the next point for who works on a side (-1: on none yet); NULL: all are taken. */
static const mf_dense_point *take(sweep *w, int *own) {
    int best = *own >= 0 && w->side[*own].next < w->side[*own].end ? *own : -1;
    for (int i = 0; i < w->sides && best < 0; i++) {
        best = w->side[i].begun ? -1 : i;
    }
    for (int i = 0; i < w->sides && best < 0; i++) {
        best = w->side[i].next < w->side[i].end ? i : -1;
    }
    if (best < 0 || w->stop) {
        return NULL;
    }
    *own = best;
    w->side[best].begun = true;
    return &w->dense[w->side[best].next++];
}

/* Under the lock. */
static void tell(sweep *w, int64_t done) {
    w->now.done += done;
    w->now.feasible = w->r->feasible;
    if (w->q->o->progress != NULL) {
        w->now.wall_s = mf_clock_s() - w->started_s;
        w->q->o->progress(&w->now, w->q->o->user);
    }
}

static void judge_points(void *self, mf_fit_judge *judge) {
    sweep *w = self;
    int own = -1;
    pthread_mutex_lock(&w->lock);
    for (const mf_dense_point *d; (d = take(w, &own)) != NULL;) {
        const expert_list *x = experts_of(w, d->pp);
        mf_err e = {0};
        pthread_mutex_unlock(&w->lock);
        mf_status s = visit(w, judge, d, x, &e);
        pthread_mutex_lock(&w->lock);
        if (s != MF_OK && w->status == MF_OK) {
            w->status = s;
            w->stop = true;
            if (w->e != NULL) {
                *w->e = e;
            }
        }
        tell(w, x->count);
    }
    pthread_mutex_unlock(&w->lock);
}

typedef struct worker {
    void (*work)(void *self, mf_fit_judge *judge);
    void *self;
    mf_fit_judge *judge;
    pthread_t thread;
} worker;

static void *begin_work(void *arg) {
    worker *me = arg;
    me->work(me->self, me->judge);
    return NULL;
}

void mf_fit_crew_run(mf_fit_crew *crew, void (*work)(void *self, mf_fit_judge *judge), void *self) {
    worker workers[MF_FIT_THREADS];
    int started = 1;
    for (int i = 0; i < crew->threads; i++) {
        workers[i] = (worker){.work = work, .self = self, .judge = crew->judge[i]};
    }
    while (started < crew->threads &&
           pthread_create(&workers[started].thread, NULL, begin_work, &workers[started]) == 0) {
        started++;
    }
    work(self, crew->judge[0]);
    for (int i = 1; i < started; i++) {
        pthread_join(workers[i].thread, NULL);
    }
}

static void clear_points(sweep *w) {
    for (int i = 0; i < w->lists; i++) {
        free(w->experts[i].point);
    }
    free(w->dense);
    free(w->side);
}

mf_status mf_fit_list(const mf_problem *p, const mf_space *space, mf_layout **out, int64_t *count,
                      mf_err *e) {
    const mf_fit_sweep q = {.p = p, .space = *space};
    sweep w = {.q = &q, .e = e, .status = MF_OK};
    mf_status s = find_points(&w);
    *count = 0;
    *out = s == MF_OK ? malloc(((size_t)w.now.total + 1) * sizeof **out) : NULL;
    if (s == MF_OK && *out == NULL) {
        s = mf_err_set(e, MF_NOMEM, "fit: out of memory");
    }
    for (int i = 0; s == MF_OK && i < w.sides; i++) {
        for (int64_t k = w.side[i].next; k < w.side[i].end; k++) {
            const expert_list *x = experts_of(&w, w.dense[k].pp);
            for (int64_t n = 0; n < x->count; n++) {
                *count += is_chosen(p, x->point, n) &&
                          least_memory_layout(space, &w.dense[k], &x->point[n], &(*out)[*count]);
            }
        }
    }
    clear_points(&w);
    return s;
}

mf_status mf_fit_sweep_run(const mf_fit_sweep *q, mf_fit_crew *crew, mf_fit_result *r, mf_err *e) {
    sweep w = {.q = q,
               .r = r,
               .e = e,
               .now = {.gpus = q->space.base.gpus},
               .started_s = mf_clock_s(),
               .status = MF_OK};
    *r = (mf_fit_result){0};
    mf_status s = find_points(&w);
    if (s == MF_OK && pthread_mutex_init(&w.lock, NULL) != 0) {
        s = mf_err_set(e, MF_NOMEM, "fit: out of memory");
    } else if (s == MF_OK) {
        mf_fit_crew_run(crew, judge_points, &w);
        pthread_mutex_destroy(&w.lock);
        s = w.status;
    }
    clear_points(&w);
    return s;
}
