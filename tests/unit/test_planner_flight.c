/* A search's tasks in flight: in the same order on any number of threads, however long each takes;
 * several at once; nobody waits for a long one while there is something else to do; and the same
 * ones are dropped. */
#include "planner/search/deterministic_pool.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define TASKS 400

typedef struct errand {
    int id;
    uint64_t hash; /* of what had committed when it started, then of what it found */
    int64_t usual_us;
} errand;

/* A search whose next task depends on all that has committed so far. */
typedef struct errands {
    errand slot[MF_TASKS_IN_FLIGHT];
    bool flies[MF_TASKS_IN_FLIGHT];
    int started, committed, flying, most_flying;
    uint64_t known;          /* hash of what has committed */
    int order[TASKS];        /* ids as they committed */
    uint64_t salt;           /* of how long tasks really take */
    int dropped;             /* tasks, */
    uint64_t dropped_hash;   /* whichever comes first */
    atomic_int worked;       /* tasks that were worked on */
    atomic_int steering;     /* starts and commits at this moment */
    bool broken;             /* two of them at once, or a slot used twice */
    int long_id, long_until; /* works until so many have committed */
    pthread_mutex_t lock;    /* of committed_now */
    pthread_cond_t committing;
    int committed_now;
} errands;

static uint64_t mix(uint64_t a, uint64_t b) {
    rng r = {a ^ (b * UINT64_C(0x9e3779b97f4a7c15))};
    return rng_next(&r);
}

/* Every 16th task is asked for only when nothing else flies. */
static bool start(void *self, int slot, int64_t *usual_us) {
    errands *e = self;
    e->broken |= atomic_fetch_add(&e->steering, 1) != 0;
    bool wait = e->started % 16 == 15 && e->flying > 0;
    bool more = e->started < TASKS && !wait;
    if (more) {
        errand *t = &e->slot[slot];
        e->broken |= e->flies[slot];
        t->id = e->started++;
        t->hash = mix(e->known, (uint64_t)t->id);
        t->usual_us = t->id == e->long_id ? 1000000 : (int64_t)(t->hash % 300);
        *usual_us = t->usual_us;
        e->flies[slot] = true;
        e->flying++;
        e->most_flying = e->flying > e->most_flying ? e->flying : e->most_flying;
    }
    atomic_fetch_sub(&e->steering, 1);
    return more;
}

/* Takes anything from nothing to a few times what is usual. */
static void work(void *self, int slot) {
    errands *e = self;
    errand *t = &e->slot[slot];
    long us = (long)(mix(e->salt, (uint64_t)t->id) % 4) * t->usual_us / 2;
    if (t->id == e->long_id) {
        pthread_mutex_lock(&e->lock);
        while (e->committed_now < e->long_until) {
            pthread_cond_wait(&e->committing, &e->lock);
        }
        pthread_mutex_unlock(&e->lock);
    } else if (us > 0) {
        nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
    }
    t->hash = mix(t->hash, 1);
    atomic_fetch_add(&e->worked, 1);
}

static void commit(void *self, int slot) {
    errands *e = self;
    errand *t = &e->slot[slot];
    e->broken |= atomic_fetch_add(&e->steering, 1) != 0 || !e->flies[slot];
    e->known = mix(e->known, t->hash);
    e->order[e->committed++] = t->id;
    e->flies[slot] = false;
    e->flying--;
    pthread_mutex_lock(&e->lock);
    e->committed_now = e->committed;
    pthread_cond_signal(&e->committing);
    pthread_mutex_unlock(&e->lock);
    atomic_fetch_sub(&e->steering, 1);
}

static void fly_by(const mf_task_pool_ops *ops, errands *e, int threads, uint64_t salt, int long_id,
                   int long_until) {
    memset(e, 0, sizeof *e);
    e->salt = salt;
    e->long_id = long_id;
    e->long_until = long_until;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->committing, NULL);
    mf_task_pool_run(ops, e, threads);
    pthread_cond_destroy(&e->committing);
    pthread_mutex_destroy(&e->lock);
    assert_false(e->broken);
    assert_int_equal(e->committed + e->dropped, TASKS);
    assert_int_equal(e->flying, 0);
}

static void fly(errands *e, int threads, uint64_t salt, int long_id, int long_until) {
    static const mf_task_pool_ops ops = {.start = start, .work = work, .commit = commit};
    fly_by(&ops, e, threads, salt, long_id, long_until);
}

static void tasks_land_in_the_same_order_on_any_number_of_threads(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 3, 8, 50};
    errands first, again;
    bool sorted = true;
    fly(&first, 1, 0, -1, 0);
    for (int i = 1; i < TASKS; i++) {
        sorted = sorted && first.order[i] > first.order[i - 1];
    }
    assert_false(sorted); /* short ones overtake */
    assert_int_equal(first.most_flying, MF_TASKS_IN_FLIGHT);
    for (size_t k = 0; k < sizeof threads / sizeof threads[0]; k++) {
        fly(&again, threads[k], k + 1, -1, 0);
        assert_memory_equal(again.order, first.order, sizeof first.order);
        assert_true(again.known == first.known);
    }
}

/* The long task ends only when others, started after it, have committed: the thread that works on
 * it must not be the one that they need, whichever that is. */
static void others_land_while_a_long_task_runs(void **state) {
    (void)state;
    errands e, other;
    fly(&e, 2, 1, 0, 12);
    fly(&other, 3, 2, 0, 14);
    assert_memory_equal(e.order, other.order, sizeof e.order);
    assert_true(e.order[0] != 0);
    fly(&e, 2, 1, 1, 12);
}

/* Of the last ones those with odd ids, by what has committed. */
static bool is_useless(void *self, int slot) {
    const errands *e = self;
    return e->started == TASKS && e->committed >= TASKS - 6 && e->slot[slot].id % 2 == 1;
}

static void drop(void *self, int slot) {
    errands *e = self;
    e->broken |= atomic_fetch_add(&e->steering, 1) != 0 || !e->flies[slot];
    e->flies[slot] = false;
    e->flying--;
    e->dropped++;
    e->dropped_hash += mix(1, (uint64_t)e->slot[slot].id);
    atomic_fetch_sub(&e->steering, 1);
}

static void the_same_tasks_are_dropped_on_any_number_of_threads(void **state) {
    (void)state;
    static const mf_task_pool_ops ops = {
        .start = start, .work = work, .commit = commit, .is_useless = is_useless, .drop = drop};
    static const int threads[] = {2, 3, 8, 50};
    errands first, again;
    fly_by(&ops, &first, 1, 0, -1, 0);
    assert_above(first.dropped, 0);
    assert_int_equal(first.worked, first.committed); /* one thread works on nothing ahead */
    for (size_t k = 0; k < sizeof threads / sizeof threads[0]; k++) {
        fly_by(&ops, &again, threads[k], k + 1, -1, 0);
        assert_int_equal(again.committed, first.committed);
        assert_memory_equal(again.order, first.order, sizeof first.order);
        assert_true(again.dropped_hash == first.dropped_hash);
        assert_true(again.known == first.known);
    }
}

static void nothing_to_do_is_a_flight_too(void **state) {
    (void)state;
    static const mf_task_pool_ops ops = {.start = start, .work = work, .commit = commit};
    errands e;
    memset(&e, 0, sizeof e);
    e.started = TASKS;
    mf_task_pool_run(&ops, &e, 4);
    assert_int_equal(e.committed, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_land_in_the_same_order_on_any_number_of_threads),
        cmocka_unit_test(others_land_while_a_long_task_runs),
        cmocka_unit_test(the_same_tasks_are_dropped_on_any_number_of_threads),
        cmocka_unit_test(nothing_to_do_is_a_flight_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
