/* deterministic_pool.c - which task is started, worked on and committed when, and by whom. */
#include "planner/search/deterministic_pool.h"

#include "planner/lp/milp.h"

#include <pthread.h>
#include <string.h>

typedef struct slot {
    int64_t order, due; /* started as the order-th; when it commits, on the flight's clock */
    bool in_flight, taken, ended; /* started, somebody works on it, nobody does any more */
    bool dropped;                 /* it is not to commit */
} slot;

typedef struct task_pool {
    const mf_task_pool_ops *ops;
    void *self;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t wake;  /* there may be work, or the flight is over */
    slot slot[MF_TASKS_IN_FLIGHT];
    int asleep;    /* threads */
    bool steering; /* one commits and starts tasks: `started` and `now` are its own meanwhile */
    bool over;
    int64_t started, now;
} task_pool;

/* --- slots: called with the lock held --------------------------------------------------------- */

static int free_slot(const task_pool *f) {
    int i = 0;
    while (i < MF_TASKS_IN_FLIGHT && f->slot[i].in_flight) {
        i++;
    }
    return i;
}

static bool commits_before(const slot *a, const slot *b) {
    return a->due < b->due || (a->due == b->due && a->order < b->order);
}

/* The task in flight that commits first, or NULL. idle: only tasks that no thread has taken; what
 * commits first is worked on first, since new tasks start when one commits. */
static slot *next_slot(task_pool *f, bool idle) {
    slot *next = NULL;
    for (int i = 0; i < MF_TASKS_IN_FLIGHT; i++) {
        slot *t = &f->slot[i];
        if (t->in_flight && !t->dropped && !(idle && t->taken) &&
            (!next || commits_before(t, next))) {
            next = t;
        }
    }
    return next;
}

static int idle_slots(const task_pool *f) {
    int n = 0;
    for (int i = 0; i < MF_TASKS_IN_FLIGHT; i++) {
        n += f->slot[i].in_flight && !f->slot[i].taken && !f->slot[i].dropped;
    }
    return n;
}

/* --- steering --------------------------------------------------------------------------------- */

/* Wakes a thread where there are tasks beside those that the caller sees to. */
static void wake_for(task_pool *f, int more) {
    if (f->asleep > 0 && more > 0) {
        f->asleep--; /* it is on its way */
        pthread_cond_signal(&f->wake);
    }
}

/* When no task can start: marks those in flight whose results no longer matter. */
static void mark_useless(task_pool *f) {
    for (int i = 0; i < MF_TASKS_IN_FLIGHT && f->ops->is_useless; i++) {
        slot *t = &f->slot[i];
        t->dropped = t->dropped || (t->in_flight && f->ops->is_useless(f->self, i));
    }
}

/* Takes dropped tasks back, except those that a thread still works on; true: there was one. */
static bool drop_tasks(task_pool *f) {
    bool some = false;
    for (int i = 0; i < MF_TASKS_IN_FLIGHT; i++) {
        slot *t = &f->slot[i];
        if (t->dropped && (!t->taken || t->ended)) {
            f->ops->drop(f->self, i);
            *t = (slot){0};
            some = true;
        }
    }
    return some;
}

static bool any_in_flight(const task_pool *f) {
    bool some = false;
    for (int i = 0; i < MF_TASKS_IN_FLIGHT; i++) {
        some = some || f->slot[i].in_flight;
    }
    return some;
}

/* Starts as many tasks as there are slots for. Called with the lock held, as are those below; all
 * of them leave it meanwhile. */
static void fill(task_pool *f) {
    bool more = true;
    for (int i = free_slot(f); more && i < MF_TASKS_IN_FLIGHT; i = free_slot(f)) {
        int64_t usual_us = 0;
        pthread_mutex_unlock(&f->lock);
        more = f->ops->start(f->self, i, &usual_us);
        pthread_mutex_lock(&f->lock);
        if (more) {
            f->slot[i] = (slot){.order = f->started++, .due = f->now + usual_us, .in_flight = true};
            wake_for(f, idle_slots(f) - 1);
        }
    }
    if (!more) {
        mark_useless(f);
    }
}

/* Commits tasks and starts others until the next one to commit is still worked on. */
static void commit_and_start(task_pool *f) {
    if (f->steering) { /* whoever steers will see what has ended */
        return;
    }
    f->steering = true;
    do {
        fill(f);
        for (slot *due = next_slot(f, false); due && due->ended; due = next_slot(f, false)) {
            f->now = due->due;
            pthread_mutex_unlock(&f->lock);
            f->ops->commit(f->self, (int)(due - f->slot));
            pthread_mutex_lock(&f->lock);
            due->in_flight = false;
            fill(f);
        }
    } while (drop_tasks(f));
    f->steering = false;
    if (!any_in_flight(f)) {
        f->over = true;
        pthread_cond_broadcast(&f->wake);
    }
}

static void work(task_pool *f, slot *t) {
    t->taken = true;
    wake_for(f, idle_slots(f));
    pthread_mutex_unlock(&f->lock);
    f->ops->work(f->self, (int)(t - f->slot));
    pthread_mutex_lock(&f->lock);
    t->ended = true;
}

/* --- threads ---------------------------------------------------------------------------------- */

static void *worker(void *arg) {
    task_pool *f = arg;
    pthread_mutex_lock(&f->lock);
    while (!f->over) {
        slot *t = next_slot(f, true);
        if (t) {
            work(f, t);
            commit_and_start(f);
        } else {
            f->asleep++;
            pthread_cond_wait(&f->wake, &f->lock);
        }
    }
    pthread_mutex_unlock(&f->lock);
    mf_milp_thread_end();
    return NULL;
}

void mf_task_pool_run(const mf_task_pool_ops *ops, void *self, int threads) {
    task_pool f;
    pthread_t thread[MF_TASKS_IN_FLIGHT];
    int more = 0;
    memset(&f, 0, sizeof f);
    f.ops = ops;
    f.self = self;
    pthread_mutex_init(&f.lock, NULL);
    pthread_cond_init(&f.wake, NULL);
    pthread_mutex_lock(&f.lock);
    commit_and_start(&f);
    pthread_mutex_unlock(&f.lock);
    while (more + 1 < threads && more + 1 < MF_TASKS_IN_FLIGHT &&
           pthread_create(&thread[more], NULL, worker, &f) == 0) {
        more++;
    }
    worker(&f);
    for (int i = 0; i < more; i++) {
        pthread_join(thread[i], NULL);
    }
    pthread_mutex_destroy(&f.lock);
    pthread_cond_destroy(&f.wake);
}
