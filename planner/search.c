/* search.c - the queue, the rounds, the threads, and what is reported. */
#include "planner/search.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Tasks in flight at once, and families of one task. As many as there are threads would keep them
 * busy; the numbers do not depend on threads, so that results do not either. */
#define FLIGHT 4
#define FAMILIES 16

#define DEFAULT_GAP 0.03
#define DEFAULT_TOP 4
#define DEFAULT_EFFORT 400000
#define DEFAULT_BUDGET 10000000

/* Some families from the top of the queue, or one layout. */
typedef struct task {
    mf_search_node node[FAMILIES];
    mf_search_outcome out[FAMILIES];
    int count;
    double key_s[FAMILIES]; /* of the nodes */
    mf_search_aim aim;      /* as of its start, */
    int64_t seen;           /* when so many outcomes were merged */
    int64_t order, due;     /* started as the order-th; when it is merged, on the search's clock */
    bool flies, taken, done;
} task;

typedef struct pool {
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    pthread_t thread[64];
    int threads;
    bool quit;
    struct search *s;
} pool;

typedef struct search {
    const mf_search_request *r;
    mf_search_world world;
    mf_search_node *heap;
    int64_t nodes, room;
    uint64_t ids;
    mf_search_found *found; /* [MF_SEARCH_MAX_FOUND + 1] sorted by time */
    int nfound;
    double best_s;
    int64_t priced, evaluated, simulated, milps, milp_failed, work, work_at_gap;
    double stuck_s; /* least bound of layouts that nothing more can be done about */
    task task[FLIGHT];
    int64_t started, merged, now;
    double target_s;
    pool pool;
} search;

/* --- queue ------------------------------------------------------------------------------------ */

static bool before(const mf_search_node *a, const mf_search_node *b) {
    if (a->key_s < b->key_s || a->key_s > b->key_s) {
        return a->key_s < b->key_s;
    }
    return a->id < b->id;
}

static bool heap_push(search *s, const mf_search_node *n) {
    if (s->nodes == s->room) {
        int64_t room = s->room ? 2 * s->room : 4096;
        mf_search_node *grown = realloc(s->heap, (size_t)room * sizeof *grown);
        if (!grown) {
            return false;
        }
        s->heap = grown;
        s->room = room;
    }
    int64_t at = s->nodes++;
    s->heap[at] = *n;
    s->heap[at].id = s->ids++;
    mf_search_node moved = s->heap[at];
    while (at > 0 && before(&moved, &s->heap[(at - 1) / 2])) {
        s->heap[at] = s->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    s->heap[at] = moved;
    return true;
}

static mf_search_node heap_pop(search *s) {
    mf_search_node top = s->heap[0], moved = s->heap[--s->nodes];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= s->nodes) {
            break;
        }
        if (child + 1 < s->nodes && before(&s->heap[child + 1], &s->heap[child])) {
            child++;
        }
        if (!before(&s->heap[child], &moved)) {
            break;
        }
        s->heap[at] = s->heap[child];
        at = child;
    }
    if (s->nodes > 0) {
        s->heap[at] = moved;
    }
    return top;
}

/* --- plans found ------------------------------------------------------------------------------ */

/* Plans of the same degrees count as one: runners-up should differ in more than a ZeRO level. */
static bool same_degrees(const mf_layout *a, const mf_layout *b) {
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp && a->vpp == b->vpp &&
           a->ep == b->ep && a->etp == b->etp && a->mbs == b->mbs && a->schedule == b->schedule &&
           a->precision == b->precision;
}

static void keep_found(search *s, const mf_search_found *f) {
    int at = 0;
    for (int i = 0; i < s->nfound; i++) {
        if (same_degrees(&s->found[i].layout, &f->layout)) {
            if (s->found[i].time_s <= f->time_s) {
                return;
            }
            memmove(&s->found[i], &s->found[i + 1], (size_t)(s->nfound - i - 1) * sizeof *f);
            s->nfound--;
            break;
        }
    }
    while (at < s->nfound && s->found[at].time_s <= f->time_s) {
        at++;
    }
    memmove(&s->found[at + 1], &s->found[at], (size_t)(s->nfound - at) * sizeof *f);
    s->found[at] = *f;
    s->nfound += s->nfound < MF_SEARCH_MAX_FOUND;
    s->best_s = s->found[0].time_s;
}

/* --- tasks ------------------------------------------------------------------------------------ */

static void work_on(search *s, task *t) {
    for (int i = 0; i < t->count; i++) {
        mf_search_outcome *out = &t->out[i];
        memset(out, 0, offsetof(mf_search_outcome, plan));
        out->seen = t->seen;
        if (t->node[i].level < MF_LEVEL_LAYOUT) {
            mf_search_split(&s->world, &t->node[i], t->aim.best_s, out);
        } else {
            mf_search_close(&s->world, &t->node[i], &t->aim, out);
        }
    }
}

/* The earliest task that nobody works on, or NULL. Called with the lock held. */
static task *next_task(search *s) {
    task *next = NULL;
    for (int i = 0; i < FLIGHT; i++) {
        task *t = &s->task[i];
        if (t->flies && !t->taken && (!next || t->order < next->order)) {
            next = t;
        }
    }
    return next;
}

/* Called with the lock held. */
static void do_task(pool *p, task *t) {
    t->taken = true;
    pthread_mutex_unlock(&p->lock);
    work_on(p->s, t);
    pthread_mutex_lock(&p->lock);
    t->done = true;
    pthread_cond_broadcast(&p->done);
}

static void *worker(void *arg) {
    pool *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->quit) {
        task *t = next_task(p->s);
        if (t) {
            do_task(p, t);
        } else {
            pthread_cond_wait(&p->wake, &p->lock);
        }
    }
    pthread_mutex_unlock(&p->lock);
    mf_milp_thread_end();
    return NULL;
}

static void pool_start(search *s, int threads) {
    pool *p = &s->pool;
    p->s = s;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    /* the calling thread works too; fewer threads than wanted is no failure */
    while (p->threads + 1 < threads && p->threads + 1 < FLIGHT &&
           pthread_create(&p->thread[p->threads], NULL, worker, p) == 0) {
        p->threads++;
    }
}

static void pool_stop(search *s) {
    pool *p = &s->pool;
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->threads; i++) {
        pthread_join(p->thread[i], NULL);
    }
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    mf_milp_thread_end();
}

/* Returns once the task is done, working on what there is meanwhile; it flies no longer. */
static void await(search *s, task *t) {
    pool *p = &s->pool;
    pthread_mutex_lock(&p->lock);
    while (!t->done) {
        task *next = next_task(s);
        if (next) {
            do_task(p, next);
        } else {
            pthread_cond_wait(&p->done, &p->lock);
        }
    }
    t->flies = false;
    pthread_mutex_unlock(&p->lock);
}

/* --- flight -----------------------------------------------------------------------------------
 *
 * Tasks are merged in an order that is known when they start: as if FLIGHT workers took what a kind
 * of task usually takes. The next ones start with what was merged by then. So several threads are
 * busy while a long task runs, and what any task knows does not depend on how long it took.
 */

/* Usual microseconds of a node. */
static int64_t usual(const mf_search_node *n) {
    switch ((mf_level)n->level) {
    case MF_LEVEL_SIDE:
        return 500;
    case MF_LEVEL_POINT:
    case MF_LEVEL_STAGES:
    case MF_LEVEL_ORDER:
        return 15;
    case MF_LEVEL_LAYOUT:
        return 80;
    case MF_LEVEL_BOUND:
    case MF_LEVEL_RELAX:
        return 4000;
    case MF_LEVEL_SPLITS:
    case MF_LEVEL_EXACT:
        return 100000;
    }
    return 0;
}

static task *free_task(search *s) {
    for (int i = 0; i < FLIGHT; i++) {
        if (!s->task[i].flies) {
            return &s->task[i];
        }
    }
    return NULL;
}

/* The next task to be merged, or NULL. */
static task *due_task(search *s) {
    task *next = NULL;
    for (int i = 0; i < FLIGHT; i++) {
        task *t = &s->task[i];
        if (t->flies &&
            (!next || t->due < next->due || (t->due == next->due && t->order < next->order))) {
            next = t;
        }
    }
    return next;
}

/* Least key of what is open. */
static double least_open(const search *s) {
    double least_s = s->nodes > 0 ? s->heap[0].key_s : HUGE_VAL;
    for (int i = 0; i < FLIGHT; i++) {
        const task *t = &s->task[i];
        for (int k = 0; t->flies && k < t->count; k++) {
            least_s = fmin(least_s, t->key_s[k]);
        }
    }
    return least_s;
}

/* Families from the top of the queue, or one layout. */
static void start_task(search *s, task *t) {
    bool layout = s->heap[0].level >= MF_LEVEL_LAYOUT;
    t->count = 0;
    t->due = s->now;
    do {
        mf_search_node n = heap_pop(s);
        t->key_s[t->count] = n.key_s;
        t->due += usual(&n);
        t->node[t->count++] = n;
    } while (!layout && t->count < FAMILIES && s->nodes > 0 && s->heap[0].level < MF_LEVEL_LAYOUT &&
             s->heap[0].key_s < s->best_s);
    int top = s->r->top > 0 ? s->r->top : DEFAULT_TOP;
    t->aim = (mf_search_aim){s->best_s, s->target_s,
                             s->nfound >= top ? s->found[top - 1].time_s : HUGE_VAL};
    t->seen = s->merged;
    t->order = s->started++;
    pthread_mutex_lock(&s->pool.lock);
    t->taken = t->done = false;
    t->flies = true;
    pthread_cond_signal(&s->pool.wake);
    pthread_mutex_unlock(&s->pool.lock);
}

static int64_t oldest_seen(const search *s) {
    int64_t oldest = s->merged;
    for (int i = 0; i < FLIGHT; i++) {
        if (s->task[i].flies && s->task[i].seen < oldest) {
            oldest = s->task[i].seen;
        }
    }
    return oldest;
}

static mf_status merge(search *s, mf_search_node *node, mf_search_outcome *o, mf_err *e) {
    mf_status status = o->status;
    if (status != MF_OK && e) {
        *e = o->err;
    }
    s->priced += o->priced;
    s->evaluated += o->evaluated;
    s->simulated += o->simulated;
    s->milps += o->milps;
    s->milp_failed += o->milp_failed;
    s->work += o->work;
    if (o->found) {
        keep_found(s, &o->plan);
    }
    s->merged++;
    if (o->chains) {
        o->chains->since = s->merged;
        mf_search_keep_chains(&s->world, o->chains, oldest_seen(s));
    }
    if (status == MF_INTERRUPTED && !heap_push(s, node)) { /* still open */
        status = mf_err_set(e, MF_NOMEM, "out of memory for the search's queue");
    }
    for (int64_t i = 0; i < o->children; i++) {
        mf_search_node *n = &o->child[i];
        if (status != MF_OK || n->key_s >= s->best_s) {
            mf_inner_tried_clear(&n->tried);
        } else if (n->level == MF_LEVEL_EXACT && n->tries == MF_SEARCH_DONE) {
            mf_inner_tried_clear(&n->tried);
            s->stuck_s = fmin(s->stuck_s, n->key_s);
        } else if (!heap_push(s, n)) {
            mf_inner_tried_clear(&n->tried);
            status = mf_err_set(e, MF_NOMEM, "out of memory for the search's queue");
        }
    }
    free(o->child);
    return status;
}

/* Waits for the task and takes its outcomes over. *interrupted: some did not come to their end. */
static mf_status land(search *s, task *t, bool *interrupted, mf_err *e) {
    mf_status status = MF_OK;
    await(s, t);
    s->now = t->due;
    for (int i = 0; i < t->count; i++) {
        mf_status one = merge(s, &t->node[i], &t->out[i], status == MF_OK ? e : NULL);
        *interrupted |= one == MF_INTERRUPTED;
        status = status == MF_OK && one != MF_INTERRUPTED ? one : status;
    }
    return status;
}

/* --- the search ------------------------------------------------------------------------------- */

static double lower_bound(const search *s) {
    return fmin(least_open(s), fmin(s->best_s, s->stuck_s));
}

/* Is there no more to start? */
static bool is_done(search *s) {
    double gap = s->r->gap > 0.0 ? s->r->gap : DEFAULT_GAP, open_s = least_open(s);
    int64_t effort = s->r->effort ? s->r->effort : DEFAULT_EFFORT;
    int64_t budget = s->r->budget ? s->r->budget : DEFAULT_BUDGET;
    if (s->nodes == 0 || s->heap[0].key_s >= s->best_s) {
        return true;
    }
    if (budget > 0 && s->work >= budget && s->nfound > 0) {
        return true;
    }
    s->target_s = s->best_s / (1.0 + gap);
    if (open_s < s->target_s) { /* what is in flight may be all that is below */
        return s->heap[0].key_s >= s->target_s;
    }
    if (s->work_at_gap < 0) {
        s->work_at_gap = s->work;
    }
    s->target_s = s->best_s;
    return effort > 0 && s->work - s->work_at_gap >= effort;
}

static mf_status begin(search *s, mf_err *e) {
    mf_search_outcome *first = calloc(1, sizeof *first);
    mf_status status =
        first ? mf_search_start(&s->world, first, e) : mf_err_set(e, MF_NOMEM, "out of memory");
    for (int64_t i = 0; first && i < first->children && status == MF_OK; i++) {
        if (!heap_push(s, &first->child[i])) {
            status = mf_err_set(e, MF_NOMEM, "out of memory for the search's queue");
        }
    }
    free(first ? first->child : NULL);
    free(first);
    return status;
}

static mf_status run(search *s, bool *interrupted, mf_err *e) {
    mf_status status = begin(s, e);
    for (;;) {
        *interrupted |= s->r->cancel && *s->r->cancel;
        task *idle;
        while (status == MF_OK && !*interrupted && !is_done(s) && (idle = free_task(s)) != NULL) {
            start_task(s, idle);
        }
        task *due = due_task(s);
        if (!due) {
            return status;
        }
        mf_status one = land(s, due, interrupted, status == MF_OK ? e : NULL);
        status = status == MF_OK ? one : status;
        if (s->r->progress && status == MF_OK) {
            s->r->progress(s->r->user, s->best_s, lower_bound(s), s->priced, s->milps);
        }
    }
}

static mf_status report(search *s, mf_search_report *out, mf_err *e) {
    int64_t open = 0;
    mf_status status = mf_space_count(&s->r->space, &out->space, e);
    for (int64_t i = 0; i < s->nodes; i++) {
        if (s->heap[i].key_s < s->best_s && s->heap[i].level <= MF_LEVEL_LAYOUT) {
            open += mf_search_family(&s->world, &s->heap[i]);
        }
    }
    out->priced = s->priced;
    out->pruned = out->space - open - s->evaluated;
    out->milps = s->milps;
    out->milp_failed = s->milp_failed;
    out->simulated = s->simulated;
    out->quotes = mf_quotes_asked(s->world.quotes);
    out->work = s->work;
    out->lower_bound_s = lower_bound(s);
    out->gap = s->nfound > 0 ? s->best_s / out->lower_bound_s - 1.0 : 0.0;
    int top = s->r->top > 0 ? s->r->top : DEFAULT_TOP;
    out->count = s->nfound < top ? s->nfound : top;
    out->found = calloc((size_t)out->count + 1, sizeof *out->found);
    if (!out->found) {
        out->count = 0;
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    memcpy(out->found, s->found, (size_t)out->count * sizeof *out->found);
    return status;
}

mf_status mf_search_run(const mf_search_request *r, mf_search_report *out, mf_err *e) {
    memset(out, 0, sizeof *out);
    search *s = calloc(1, sizeof *s);
    if (!s) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    s->r = r;
    s->best_s = s->stuck_s = s->target_s = HUGE_VAL;
    s->work_at_gap = -1;
    s->found = calloc(MF_SEARCH_MAX_FOUND + 1, sizeof *s->found);
    mf_status status = s->found ? mf_search_world_init(&s->world, r->oracle, &r->space, e)
                                : mf_err_set(e, MF_NOMEM, "out of memory");
    if (status == MF_OK) {
        s->world.cancel = r->cancel;
        s->world.fault = r->fault;
        pool_start(s, r->threads);
        status = run(s, &out->interrupted, e);
        pool_stop(s);
    }
    if (status == MF_OK) {
        status = report(s, out, e);
    }
    for (int64_t i = 0; i < s->nodes; i++) {
        mf_inner_tried_clear(&s->heap[i].tried);
    }
    mf_search_world_clear(&s->world);
    free(s->heap);
    free(s->found);
    free(s);
    return status;
}

void mf_search_report_clear(mf_search_report *r) {
    free(r->found);
    memset(r, 0, sizeof *r);
}
