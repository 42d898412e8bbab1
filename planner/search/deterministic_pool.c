/* deterministic_pool.c - which task is started, worked on and landed when, and by whom. */
#include "planner/search/deterministic_pool.h"

#include "planner/lp/milp.h"

#include <pthread.h>
#include <string.h>

typedef struct slot {
    int64_t order, due;       /* started as the order-th; when it lands, on the flight's clock */
    bool flies, taken, ended; /* started, somebody works on it, nobody does any more */
    bool dropped;             /* it is not to land */
} slot;

typedef struct flight {
    const mf_flight_ops *ops;
    void *self;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t wake;  /* there may be work, or the flight is over */
    slot slot[MF_FLIGHT];
    int asleep;    /* threads */
    bool steering; /* one lands and starts tasks: `started` and `now` are its own meanwhile */
    bool over;
    int64_t started, now;
} flight;

/* --- slots: called with the lock held --------------------------------------------------------- */

static int free_slot(const flight *f) {
    int i = 0;
    while (i < MF_FLIGHT && f->slot[i].flies) {
        i++;
    }
    return i;
}

static bool lands_before(const slot *a, const slot *b) {
    return a->due < b->due || (a->due == b->due && a->order < b->order);
}

/* The next one to land, or NULL. */
static slot *due_slot(flight *f) {
    slot *next = NULL;
    for (int i = 0; i < MF_FLIGHT; i++) {
        slot *t = &f->slot[i];
        if (t->flies && !t->dropped && (!next || lands_before(t, next))) {
            next = t;
        }
    }
    return next;
}

/* The next one to land of those that nobody has taken, or NULL: what lands sooner lets others start
 * sooner. */
static slot *idle_slot(flight *f) {
    slot *next = NULL;
    for (int i = 0; i < MF_FLIGHT; i++) {
        slot *t = &f->slot[i];
        if (t->flies && !t->taken && !t->dropped && (!next || lands_before(t, next))) {
            next = t;
        }
    }
    return next;
}

static int idle_slots(const flight *f) {
    int n = 0;
    for (int i = 0; i < MF_FLIGHT; i++) {
        n += f->slot[i].flies && !f->slot[i].taken && !f->slot[i].dropped;
    }
    return n;
}

/* --- steering --------------------------------------------------------------------------------- */

/* Wakes a thread where there are tasks beside those that the caller sees to. */
static void wake_for(flight *f, int more) {
    if (f->asleep > 0 && more > 0) {
        f->asleep--; /* it is on its way */
        pthread_cond_signal(&f->wake);
    }
}

/* Once there is none to start: marks what is of no use. */
static void mark_useless(flight *f) {
    for (int i = 0; i < MF_FLIGHT && f->ops->is_useless; i++) {
        slot *t = &f->slot[i];
        t->dropped = t->dropped || (t->flies && f->ops->is_useless(f->self, i));
    }
}

/* Takes back what was dropped, but for what is still worked on; true: some. */
static bool take_back(flight *f) {
    bool some = false;
    for (int i = 0; i < MF_FLIGHT; i++) {
        slot *t = &f->slot[i];
        if (t->dropped && (!t->taken || t->ended)) {
            f->ops->drop(f->self, i);
            *t = (slot){0};
            some = true;
        }
    }
    return some;
}

static bool is_flying(const flight *f) {
    bool some = false;
    for (int i = 0; i < MF_FLIGHT; i++) {
        some = some || f->slot[i].flies;
    }
    return some;
}

/* Starts as many tasks as there are slots for. Called with the lock held, as are those below; all
 * of them leave it meanwhile. */
static void fill(flight *f) {
    bool more = true;
    for (int i = free_slot(f); more && i < MF_FLIGHT; i = free_slot(f)) {
        int64_t usual_us = 0;
        pthread_mutex_unlock(&f->lock);
        more = f->ops->start(f->self, i, &usual_us);
        pthread_mutex_lock(&f->lock);
        if (more) {
            f->slot[i] = (slot){.order = f->started++, .due = f->now + usual_us, .flies = true};
            wake_for(f, idle_slots(f) - 1);
        }
    }
    if (!more) {
        mark_useless(f);
    }
}

/* Lands tasks and starts others until the next one to land is still worked on. */
static void steer(flight *f) {
    if (f->steering) { /* whoever steers will see what has ended */
        return;
    }
    f->steering = true;
    do {
        fill(f);
        for (slot *due = due_slot(f); due && due->ended; due = due_slot(f)) {
            f->now = due->due;
            pthread_mutex_unlock(&f->lock);
            f->ops->land(f->self, (int)(due - f->slot));
            pthread_mutex_lock(&f->lock);
            due->flies = false;
            fill(f);
        }
    } while (take_back(f));
    f->steering = false;
    if (!is_flying(f)) {
        f->over = true;
        pthread_cond_broadcast(&f->wake);
    }
}

static void work(flight *f, slot *t) {
    t->taken = true;
    wake_for(f, idle_slots(f));
    pthread_mutex_unlock(&f->lock);
    f->ops->work(f->self, (int)(t - f->slot));
    pthread_mutex_lock(&f->lock);
    t->ended = true;
}

/* --- threads ---------------------------------------------------------------------------------- */

static void *fly(void *arg) {
    flight *f = arg;
    pthread_mutex_lock(&f->lock);
    while (!f->over) {
        slot *t = idle_slot(f);
        if (t) {
            work(f, t);
            steer(f);
        } else {
            f->asleep++;
            pthread_cond_wait(&f->wake, &f->lock);
        }
    }
    pthread_mutex_unlock(&f->lock);
    mf_milp_thread_end();
    return NULL;
}

void mf_flight_run(const mf_flight_ops *ops, void *self, int threads) {
    flight f;
    pthread_t thread[MF_FLIGHT];
    int more = 0;
    memset(&f, 0, sizeof f);
    f.ops = ops;
    f.self = self;
    pthread_mutex_init(&f.lock, NULL);
    pthread_cond_init(&f.wake, NULL);
    pthread_mutex_lock(&f.lock);
    steer(&f);
    pthread_mutex_unlock(&f.lock);
    while (more + 1 < threads && more + 1 < MF_FLIGHT &&
           pthread_create(&thread[more], NULL, fly, &f) == 0) {
        more++;
    }
    fly(&f);
    for (int i = 0; i < more; i++) {
        pthread_join(thread[i], NULL);
    }
    pthread_mutex_destroy(&f.lock);
    pthread_cond_destroy(&f.wake);
}
