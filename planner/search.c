/* search.c - what is worked on and when it is enough, what becomes of tasks, what is reported. */
#include "planner/search.h"

#include "planner/search_flight.h"
#include "planner/search_queue.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Nodes of one task: with fewer, threads would wait for each other more than they work. None of
 * them knows what the others find, so they are such as take little each, from the top of the queue.
 */
#define MOST_NODES 16
#define MOST_US 1000
/* Children of a node that room is kept for. */
#define MOST_ROOM 128

#define DEFAULT_GAP 0.03
#define DEFAULT_TOP 4
/* A second look at what takes little; trees that are taken up again take more, and there is --gap
 * to ask for them. */
#define DEFAULT_EFFORT 100000
#define DEFAULT_BUDGET 20000000
/* Without a plan by then, those that are known to fit are simulated; at the end, too, where the gap
 * is still so wide, and then there is so much more effort. */
#define LEAN_WORK 2000000
#define LEAN_GAP 0.04
#define LEAN_MORE 5000000
/* Before that, some of what is open then. */
#define OPEN_MORE 4000000
/* Trees whose bound is so far below what the gap asks for do not get there in any time that is
 * left; those that have been taken up before get half of that.
 */
#define FAR_OFF 1.08
#define FAR_OFF_AGAIN 1.04
/* Who asks for a tighter gap gets the default's proof first, then tighter ones step by step: far
 * below a target, trees are worked on for long before any of them settles. */
#define NEXT_GAP 0.75
#define LEAST_STEP 0.005

/* Nodes from the top of the queue. */
typedef struct task {
    mf_search_node node[MOST_NODES];
    mf_search_outcome out[MOST_NODES];
    int count;
    double key_s[MOST_NODES]; /* of the nodes */
    mf_search_aim aim;        /* as of its start, */
    int64_t seen;             /* when so many outcomes were merged */
    double cpu_s;             /* what it took */
    bool flies;
} task;

typedef struct search {
    const mf_search_request *r;
    mf_search_world world;
    mf_search_queue queue;  /* aside: trees that are not worth their time as long as no better plan
                               is  known (is_hopeless) */
    mf_search_found *found; /* [MF_SEARCH_MAX_FOUND + 1] sorted by time */
    int nfound;
    double best_s;
    int64_t priced, evaluated, simulated, milps, milp_failed, work, work_at_gap;
    double stuck_s; /* least bound of layouts that nothing more can be done about */
    task task[MF_FLIGHT];
    int64_t merged;
    double pricing_s; /* of tasks that bound families and layouts */
    double step_gap;  /* the gap that is worked on, at least the one that was asked for */
    bool patient;     /* no tree is put aside any more */
    bool leaned;      /* layouts that fit were asked for */
    bool opened;      /* open ones were tried */
    mf_search_fits fits;
    int64_t more; /* effort beyond the default budget */
    double target_s;
    mf_status status;
    mf_err err;
    bool interrupted; /* cancelled, or some task did not come to its end */
} search;

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

/* The room for its children stays: given back by the thread that lands a task, it would stop the
 * one that took it each time. */
static void clear_outcome(mf_search_outcome *out) {
    mf_search_node *child = out->child;
    int64_t room = out->room;
    if (room > MOST_ROOM) {
        free(child);
        child = NULL;
        room = 0;
    }
    memset(out, 0, offsetof(mf_search_outcome, plan));
    out->child = child;
    out->room = room;
}

static void free_tasks(search *s) {
    for (int i = 0; i < MF_FLIGHT; i++) {
        for (int k = 0; k < MOST_NODES; k++) {
            free(s->task[i].out[k].child);
        }
    }
}

static double thread_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void work_on(void *self, int slot) {
    search *s = self;
    task *t = &s->task[slot];
    const double start_s = thread_s();
    for (int i = 0; i < t->count; i++) {
        mf_search_outcome *out = &t->out[i];
        clear_outcome(out);
        out->seen = t->seen;
        if (t->node[i].level < MF_LEVEL_LAYOUT) {
            mf_search_split(&s->world, &t->node[i], &t->aim, out);
        } else {
            mf_search_close(&s->world, &t->node[i], &t->aim, out);
        }
    }
    t->cpu_s = thread_s() - start_s;
}

/* Usual microseconds of a node. Better too many than too few where they differ much: what flies
 * beside a task that is late lands after it, while its own result is rarely missed. */
static int64_t usual(const mf_search_node *n) {
    bool again = n->tries > 0;
    switch ((mf_level)n->level) {
    case MF_LEVEL_SIDE:
        return 1000;
    case MF_LEVEL_POINT:
        return 25;
    case MF_LEVEL_STAGES:
        return 50;
    case MF_LEVEL_MODE:
        return 100;
    case MF_LEVEL_ORDER:
        return 90;
    case MF_LEVEL_LAYOUT:
        return again ? 1500 : 80;
    case MF_LEVEL_BOUND:
    case MF_LEVEL_RELAX:
        return 2500;
    case MF_LEVEL_SPLITS:
        return again ? 500000 : 30000;
    case MF_LEVEL_EXACT:
        return 100000;
    case MF_LEVEL_TRY:
        return 10000;
    }
    return 0;
}

/* Least key of what is open. */
static double least_open(const search *s) {
    double least_s = mf_search_queue_least(&s->queue);
    for (int i = 0; i < MF_FLIGHT; i++) {
        const task *t = &s->task[i];
        for (int k = 0; t->flies && k < t->count; k++) {
            least_s = fmin(least_s, t->key_s[k]);
        }
    }
    return least_s;
}

static bool is_flying(const search *s) {
    for (int i = 0; i < MF_FLIGHT; i++) {
        if (s->task[i].flies) {
            return true;
        }
    }
    return false;
}

static bool is_light(const mf_search_node *n) {
    return n->level < MF_LEVEL_LAYOUT || (n->level == MF_LEVEL_LAYOUT && n->tries == 0);
}

/* Does the top of the queue go with the task? */
static bool goes_with(const search *s, const task *t, int64_t usual_us) {
    return t->count < MOST_NODES && usual_us < MOST_US && is_light(&t->node[0]) &&
           mf_search_queue_below(&s->queue, s->target_s) &&
           is_light(mf_search_queue_top(&s->queue));
}

static void start_task(search *s, task *t, int64_t *usual_us) {
    t->count = 0;
    *usual_us = 0;
    do {
        mf_search_node n = mf_search_queue_pop(&s->queue);
        t->key_s[t->count] = n.key_s;
        t->node[t->count++] = n;
        *usual_us += usual(&n);
    } while (goes_with(s, t, *usual_us));
    int top = s->r->top > 0 ? s->r->top : DEFAULT_TOP;
    t->aim = (mf_search_aim){s->best_s, s->target_s,
                             s->nfound >= top ? s->found[top - 1].time_s : HUGE_VAL, s->leaned};
    t->seen = s->merged;
    t->flies = true;
}

static int64_t oldest_seen(const search *s) {
    int64_t oldest = s->merged;
    for (int i = 0; i < MF_FLIGHT; i++) {
        if (s->task[i].flies && s->task[i].seen < oldest) {
            oldest = s->task[i].seen;
        }
    }
    return oldest;
}

static mf_status no_room(mf_err *e) {
    return mf_err_set(e, MF_NOMEM, "out of memory for the search's queue");
}

/* What was put aside. */
static mf_status open_again(search *s, mf_err *e) {
    return mf_search_queue_bring_back(&s->queue) ? MF_OK : no_room(e);
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
        double before_s = s->best_s;
        keep_found(s, &o->plan);
        if (s->best_s < before_s && status == MF_OK) {
            status = open_again(s, e);
        }
    }
    s->merged++;
    if (o->chains) {
        o->chains->since = s->merged;
        mf_search_keep_chains(&s->world, o->chains, oldest_seen(s));
    }
    if (status == MF_INTERRUPTED && !mf_search_queue_push(&s->queue, node)) { /* still open */
        status = no_room(e);
    }
    for (int64_t i = 0; i < o->children; i++) {
        mf_search_node *n = &o->child[i];
        if (status != MF_OK || n->key_s >= s->best_s) {
            mf_inner_tried_clear(&n->tried);
        } else if (n->level == MF_LEVEL_EXACT && n->tries == MF_SEARCH_DONE) {
            mf_inner_tried_clear(&n->tried);
            s->stuck_s = fmin(s->stuck_s, n->key_s);
        } else if (!mf_search_queue_push(&s->queue, n)) {
            mf_inner_tried_clear(&n->tried);
            status = no_room(e);
        }
    }
    return status;
}

/* --- the search ------------------------------------------------------------------------------- */

static double lower_bound(const search *s) {
    return fmin(least_open(s), fmin(s->best_s, s->stuck_s));
}

/* Is a tree not worth its time? It would not reach the target, or closing it would not help since
 * another one stays open below. */
static bool is_hopeless(const search *s, const mf_search_node *n) {
    const double far_off = n->tries > 1 ? FAR_OFF_AGAIN : FAR_OFF;
    return !s->patient && s->nfound > 0 && n->level == MF_LEVEL_SPLITS && n->tries > 0 &&
           n->key_s < s->target_s &&
           (n->key_s * far_off < s->target_s || s->queue.aside_s < n->key_s);
}

/* Puts trees aside that are not worth their time, from the top of the queue. */
static bool park(search *s) {
    while (s->queue.nodes > 0 && is_hopeless(s, mf_search_queue_top(&s->queue))) {
        if (!mf_search_queue_put_aside(&s->queue)) {
            return false;
        }
    }
    return true;
}

static double asked_gap(const search *s) {
    return s->r->gap > 0.0 ? s->r->gap : DEFAULT_GAP;
}

/* Whoever asks for a tighter gap or says how much effort may be made has trees taken up again that
 * were put aside. True: some are. */
static bool grow_patient(search *s) {
    const mf_search_request *r = s->r;
    if (s->queue.asides == 0 || s->patient ||
        (r->budget == 0 && r->effort >= 0 && asked_gap(s) >= DEFAULT_GAP)) {
        return false;
    }
    s->patient = true;
    s->status = open_again(s, &s->err);
    return s->status == MF_OK;
}

/* Is there something to start on the way to the gap that is worked on? Goes over to tighter gaps
 * as they are reached. */
static bool has_below_target(search *s) {
    for (;;) {
        double open_s = least_open(s);
        s->target_s = s->best_s / (1.0 + s->step_gap);
        if (open_s >= s->target_s) {
            if (s->step_gap <= asked_gap(s)) {
                return false;
            }
            s->step_gap = s->step_gap > LEAST_STEP ? s->step_gap * NEXT_GAP : 0.0;
            s->step_gap = fmax(s->step_gap, asked_gap(s));
            s->patient = true;
            continue;
        }
        if (!park(s)) {
            s->status = no_room(&s->err);
            return false;
        }
        if (mf_search_queue_below(&s->queue, s->target_s)) {
            return true;
        }
        /* what is in flight may be all that is below */
        if (is_flying(s) || !grow_patient(s)) {
            return false;
        }
    }
}

/* Is there no more to start? */
static bool is_done(search *s) {
    int64_t effort = s->r->effort ? s->r->effort : DEFAULT_EFFORT;
    int64_t budget = s->r->budget ? s->r->budget : DEFAULT_BUDGET;
    if (budget > 0 && s->work >= budget + s->more && s->nfound > 0) {
        return true;
    }
    if (has_below_target(s)) {
        return false;
    }
    if (s->status != MF_OK || least_open(s) < s->target_s ||
        !mf_search_queue_below(&s->queue, s->best_s)) {
        return true;
    }
    if (s->work_at_gap < 0) {
        s->work_at_gap = s->work;
    }
    s->target_s = s->best_s;
    return effort > 0 && s->work - s->work_at_gap + usual(mf_search_queue_top(&s->queue)) > effort;
}

static mf_status begin(search *s, mf_err *e) {
    mf_search_outcome *first = calloc(1, sizeof *first);
    mf_status status =
        first ? mf_search_start(&s->world, first, e) : mf_err_set(e, MF_NOMEM, "out of memory");
    for (int64_t i = 0; first && i < first->children && status == MF_OK; i++) {
        if (!mf_search_queue_push(&s->queue, &first->child[i])) {
            status = no_room(e);
        }
    }
    free(first ? first->child : NULL);
    free(first);
    return status;
}

static void keep_lean(void *self, const mf_search_found *f) {
    search *s = self;
    keep_found(s, f);
}

/* What is to be tried goes before all that is open. */
static mf_status push_tries(search *s, mf_search_outcome *out, mf_err *e) {
    mf_status status = MF_OK;
    s->simulated += out->simulated;
    s->work += out->work;
    for (int64_t i = 0; i < out->children && status == MF_OK; i++) {
        status = mf_search_queue_push(&s->queue, &out->child[i]) ? MF_OK : no_room(e);
    }
    return status;
}

/* Layouts that fit, or some of those that are open. */
static mf_status find_tries(search *s, bool open, mf_err *e) {
    mf_search_outcome *out = calloc(1, sizeof *out);
    if (!out) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    const double key_s = lower_bound(s);
    const mf_search_open all = {.list = {s->queue.node, s->queue.aside},
                                .count = {s->queue.used, s->queue.asides},
                                .fits = &s->fits,
                                .best_s = s->best_s};
    mf_status status = mf_search_fits_find(&s->fits, s->r, e);
    if (status == MF_OK) {
        status = open ? mf_search_try_open(&s->world, &all, key_s, out, e)
                      : mf_search_lean(&s->world, s->r, &s->fits, key_s, s->best_s, keep_lean, s,
                                       out, e);
    }
    status = status == MF_OK ? push_tries(s, out, e) : status;
    free(out->child);
    free(out);
    return status;
}

/* Effort used beyond the budget: by tasks that were in flight, and for what was tried. */
static int64_t over_budget(const search *s) {
    return s->work > DEFAULT_BUDGET ? s->work - DEFAULT_BUDGET : 0;
}

static void take(search *s, bool open, bool ends) {
    if (ends) {
        int64_t more = open ? OPEN_MORE : LEAN_MORE;
        s->more = s->r->budget == 0 ? more + over_budget(s) : 0;
    }
    *(open ? &s->opened : &s->leaned) = true;
    s->status = find_tries(s, open, &s->err);
    s->interrupted |= s->status == MF_INTERRUPTED;
    s->status = s->status == MF_INTERRUPTED ? MF_OK : s->status;
}

static bool goes_on(const search *s) {
    return s->status == MF_OK && !s->interrupted;
}

static bool is_wide(const search *s) {
    return s->nfound > 0 && lower_bound(s) < s->best_s / (1.0 + LEAN_GAP);
}

static bool start(void *self, int slot, int64_t *usual_us) {
    search *s = self;
    const int64_t lean_after = s->r->lean_work ? s->r->lean_work : LEAN_WORK;
    s->interrupted |= s->r->cancel && *s->r->cancel;
    if (goes_on(s) && s->r->lean && !s->leaned && s->nfound == 0 && s->work >= lean_after) {
        take(s, false, false);
    }
    bool done = !goes_on(s) || is_done(s);
    while (done && goes_on(s) && !is_flying(s) && is_wide(s) &&
           (!s->opened || (s->r->lean && !s->leaned))) {
        take(s, !s->opened, true);
        done = !goes_on(s) || is_done(s);
    }
    if (done) {
        return false;
    }
    start_task(s, &s->task[slot], usual_us);
    return true;
}

/* Takes the outcomes of a task over. */
static void land(void *self, int slot) {
    search *s = self;
    task *t = &s->task[slot];
    t->flies = false;
    s->pricing_s += t->node[0].level <= MF_LEVEL_LAYOUT ? t->cpu_s : 0.0;
    for (int i = 0; i < t->count; i++) {
        mf_status one = merge(s, &t->node[i], &t->out[i], s->status == MF_OK ? &s->err : NULL);
        s->interrupted |= one == MF_INTERRUPTED;
        s->status = s->status == MF_OK && one != MF_INTERRUPTED ? one : s->status;
    }
    if (s->r->progress && s->status == MF_OK) {
        s->r->progress(s->r->user, s->best_s, lower_bound(s), s->priced, s->milps);
    }
}

static mf_status run(search *s, mf_err *e) {
    static const mf_flight_ops ops = {.start = start, .work = work_on, .land = land};
    s->status = begin(s, e);
    if (s->status == MF_OK) {
        mf_flight_run(&ops, s, s->r->threads);
        if (s->status != MF_OK && e) {
            *e = s->err;
        }
    }
    return s->status;
}

/* As it was asked for where only rounding makes it more. */
static double gap_of(const search *s, double bound_s) {
    const double gap = s->best_s / bound_s - 1.0, asked = asked_gap(s);
    return gap > asked && gap < asked + 1e-12 ? asked : gap;
}

static mf_status report(search *s, mf_search_report *out, mf_err *e) {
    int64_t open = 0;
    mf_status status = mf_space_count(&s->r->space, &out->space, e);
    for (int64_t i = 0; i < s->queue.used; i++) {
        const mf_search_node *n = &s->queue.node[i];
        if (n->key_s < s->best_s && n->level <= MF_LEVEL_LAYOUT) {
            open += mf_search_family(&s->world, n);
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
    out->pricing_s = s->pricing_s;
    out->gap = s->nfound > 0 ? gap_of(s, out->lower_bound_s) : 0.0;
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
    mf_search_queue_init(&s->queue);
    s->work_at_gap = -1;
    s->step_gap = fmax(asked_gap(s), DEFAULT_GAP);
    s->found = calloc(MF_SEARCH_MAX_FOUND + 1, sizeof *s->found);
    mf_status status = s->found ? mf_search_world_init(&s->world, r->oracle, &r->space, e)
                                : mf_err_set(e, MF_NOMEM, "out of memory");
    if (status == MF_OK) {
        s->world.cancel = r->cancel;
        s->world.fault = r->fault;
        status = run(s, e);
        out->interrupted = s->interrupted;
    }
    if (status == MF_OK) {
        status = report(s, out, e);
    }
    mf_search_world_clear(&s->world);
    mf_search_queue_clear(&s->queue);
    mf_search_fits_clear(&s->fits);
    free_tasks(s);
    free(s->found);
    free(s);
    return status;
}

void mf_search_report_clear(mf_search_report *r) {
    free(r->found);
    memset(r, 0, sizeof *r);
}
