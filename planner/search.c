/* search.c - the queue, the rounds, the threads, and what is reported. */
#include "planner/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Nodes of one round. The numbers decide how much is done on knowledge of the round before; they do
 * not depend on threads, so that results do not either. */
#define ROUND_FAMILIES 64
#define ROUND_LAYOUTS 4

#define DEFAULT_GAP 0.03
#define DEFAULT_EFFORT 400000
#define DEFAULT_BUDGET 10000000

typedef struct task {
    mf_search_node node;
    mf_search_outcome out;
} task;

typedef struct pool {
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    pthread_t thread[64];
    int threads;
    bool quit;
    /* the round */
    struct search *s;
    int next, count, left;
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
    task round[ROUND_FAMILIES];
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

/* --- rounds ----------------------------------------------------------------------------------- */

static void work_on(search *s, task *t) {
    memset(&t->out, 0, sizeof t->out);
    if (t->node.level < MF_LEVEL_LAYOUT) {
        mf_search_split(&s->world, &t->node, s->best_s, &t->out);
    } else {
        mf_search_close(&s->world, &t->node, s->best_s, s->target_s, &t->out);
    }
}

/* Takes tasks until the round has none left. Called with the lock held. */
static void take_tasks(pool *p) {
    while (p->next < p->count) {
        task *t = &p->s->round[p->next++];
        pthread_mutex_unlock(&p->lock);
        work_on(p->s, t);
        pthread_mutex_lock(&p->lock);
        if (--p->left == 0) {
            pthread_cond_broadcast(&p->done);
        }
    }
}

static void *worker(void *arg) {
    pool *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->quit) {
        take_tasks(p);
        if (!p->quit) {
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
    while (p->threads + 1 < threads && p->threads < 64 &&
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

static void run_round(search *s, int count) {
    pool *p = &s->pool;
    if (count == 1 || p->threads == 0) {
        for (int i = 0; i < count; i++) {
            work_on(s, &s->round[i]);
        }
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->next = 0;
    p->count = p->left = count;
    pthread_cond_broadcast(&p->wake);
    take_tasks(p);
    while (p->left > 0) {
        pthread_cond_wait(&p->done, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
}

/* Fills the round from the top of the queue: families, or layouts, of which fewer go at a time. */
static int fill_round(search *s) {
    int count = 0;
    bool layouts = s->heap[0].level >= MF_LEVEL_LAYOUT;
    int most = layouts ? ROUND_LAYOUTS : ROUND_FAMILIES;
    while (count < most && s->nodes > 0 && (s->heap[0].level >= MF_LEVEL_LAYOUT) == layouts &&
           (count == 0 || s->heap[0].key_s < s->best_s)) {
        s->round[count++].node = heap_pop(s);
    }
    return count;
}

static mf_status merge(search *s, task *t, mf_err *e) {
    mf_search_outcome *o = &t->out;
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
    if (o->chains) {
        mf_search_keep_chains(&s->world, o->chains);
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

/* --- the search ------------------------------------------------------------------------------- */

static double lower_bound(const search *s) {
    double least_s = fmin(s->best_s, s->stuck_s);
    return s->nodes > 0 ? fmin(least_s, s->heap[0].key_s) : least_s;
}

static bool is_done(search *s) {
    double gap = s->r->gap > 0.0 ? s->r->gap : DEFAULT_GAP;
    int64_t effort = s->r->effort ? s->r->effort : DEFAULT_EFFORT;
    if (s->nodes == 0 || s->heap[0].key_s >= s->best_s) {
        return true;
    }
    int64_t budget = s->r->budget ? s->r->budget : DEFAULT_BUDGET;
    if (budget > 0 && s->work >= budget && s->nfound > 0) {
        return true;
    }
    s->target_s = s->best_s / (1.0 + gap);
    if (s->heap[0].key_s < s->target_s) {
        return false;
    }
    if (s->work_at_gap < 0) {
        s->work_at_gap = s->work;
    }
    s->target_s = s->best_s;
    return effort > 0 && s->work - s->work_at_gap >= effort;
}

static mf_status run(search *s, bool *interrupted, mf_err *e) {
    mf_search_outcome first;
    memset(&first, 0, sizeof first);
    mf_status status = mf_search_start(&s->world, &first, e);
    for (int64_t i = 0; i < first.children && status == MF_OK; i++) {
        if (!heap_push(s, &first.child[i])) {
            status = mf_err_set(e, MF_NOMEM, "out of memory for the search's queue");
        }
    }
    free(first.child);
    while (status == MF_OK && !is_done(s)) {
        if (s->r->cancel && *s->r->cancel) {
            *interrupted = true;
            break;
        }
        int count = fill_round(s);
        run_round(s, count);
        for (int i = 0; i < count; i++) {
            mf_status one = merge(s, &s->round[i], status == MF_OK ? e : NULL);
            status = status == MF_OK ? one : status;
        }
        if (status == MF_INTERRUPTED) {
            *interrupted = true;
            status = MF_OK;
            break;
        }
        if (s->r->progress) {
            s->r->progress(s->r->user, s->best_s, lower_bound(s), s->priced, s->milps);
        }
    }
    return status;
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
    int top = s->r->top > 0 ? s->r->top : 4;
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
