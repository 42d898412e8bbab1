/* test_arrange.c - places of things that come and go. */
#include "core/memory/arrange.h"

#include "tests/support/rng.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST = 600, PARTS = 4 };

typedef struct scene {
    mf_lifetimes stays;
    int64_t part[MOST][PARTS], out[MOST][PARTS];
    int groups;
} scene;

static void put(scene *x, int64_t first, int64_t last, int group, int turn, bool transient) {
    int n = x->stays.count, parts = 0;
    int64_t size = 0;
    for (; parts < PARTS && x->part[group][parts] > 0; parts++) {
        size += x->part[group][parts];
    }
    mf_lifetimes_add(&x->stays, (mf_lifetime){.first = first,
                                              .last = last,
                                              .size = size,
                                              .part = x->part[group],
                                              .parts = parts,
                                              .group = group,
                                              .turn = turn,
                                              .transient = transient,
                                              .out = x->out[n]});
}

/* No two things that stand at once overlap, in any of their parts; the highest ends at size_B. */
static void check(const scene *x, int64_t size_B) {
    int64_t high = 0;
    for (int i = 0; i < x->stays.count; i++) {
        const mf_lifetime *a = &x->stays.list[i];
        for (int j = 0; j <= i; j++) {
            const mf_lifetime *b = &x->stays.list[j];
            if (a->first > b->last || b->first > a->last) {
                continue;
            }
            for (int k = 0; k < a->parts; k++) {
                for (int m = 0; m < (i == j ? k : b->parts); m++) {
                    assert_true(a->out[k] + a->part[k] <= b->out[m] ||
                                b->out[m] + b->part[m] <= a->out[k]);
                }
            }
        }
        for (int k = 0; k < a->parts; k++) {
            assert_at_least(a->out[k], 0);
            high = a->out[k] + a->part[k] > high ? a->out[k] + a->part[k] : high;
        }
    }
    assert_int_equal(high, size_B);
}

static void sizes(scene *x, rng *r, int groups, bool many) {
    *x = (scene){.groups = groups};
    for (int g = 0; g < groups; g++) {
        int parts = many ? (int)rng_range(r, 1, PARTS) : 1;
        for (int k = 0; k < parts; k++) {
            x->part[g][k] = 256 * rng_range(r, 1, 40);
        }
    }
}

/* Micro-batches of a pipeline stage: so many in flight, first in first out, blocks at work. */
static void pipeline(scene *x, int blocks, int flight, int micro_batches) {
    for (int m = 0; m < micro_batches; m++) {
        int64_t f = 2 * m * blocks, b = (2 * (int64_t)(m + flight) - 1) * blocks;
        for (int k = 0; k < blocks; k++) {
            put(x, f + k, b + blocks - 1 - k, 3 * k, m, false);
            put(x, f + k, f + k, 3 * k + 1, 0, true);
            put(x, b + blocks - 1 - k, b + blocks - 1 - k, 3 * k + 2, 0, true);
        }
    }
}

static void things_that_stand_at_once_never_overlap(void **state) {
    (void)state;
    rng r = rng_init(4711);
    for (int i = 0; i < 60; i++) {
        scene *x = malloc(sizeof *x);
        int64_t size_B, bound_B;
        mf_err e;
        sizes(x, &r, 40, i % 2 == 1);
        for (int n = 0; n < 200; n++) {
            int64_t first = rng_range(&r, 0, 299), lasts = rng_range(&r, 0, 39);
            put(x, first, first + lasts, n % 40, n / 40, false);
        }
        assert_ok(mf_arrange(&x->stays, i % 3 == 0, &size_B, &bound_B, &e));
        assert_at_least(size_B, bound_B);
        assert_above(bound_B, 0);
        assert_below((double)size_B, 1.5 * (double)bound_B);
        check(x, size_B);
        mf_lifetimes_clear(&x->stays);
        free(x);
    }
}

static void a_stage_of_equal_blocks_has_no_gaps(void **state) {
    (void)state;
    for (int flight = 1; flight <= 6; flight++) {
        scene *x = calloc(1, sizeof *x);
        int64_t size_B, bound_B;
        mf_err e;
        for (int g = 0; g < 15; g++) {
            x->part[g][0] = 256 * (g % 3 == 0 ? 10 : g % 3 == 1 ? 7 : 13);
        }
        pipeline(x, 5, flight, 12);
        assert_ok(mf_arrange(&x->stays, false, &size_B, &bound_B, &e));
        assert_int_equal(size_B, bound_B);
        check(x, size_B);
        mf_lifetimes_clear(&x->stays);
        free(x);
    }
}

static void a_longer_schedule_needs_no_other_size(void **state) {
    (void)state;
    rng r = rng_init(99);
    for (int i = 0; i < 20; i++) {
        int flight = (int)rng_range(&r, 1, 5);
        int64_t size_B[2], bound_B[2];
        mf_err e;
        scene *x = malloc(sizeof *x);
        scene *y = malloc(sizeof *y);
        sizes(x, &r, 12, true);
        *y = *x;
        pipeline(x, 4, flight, 2 * flight + 2);
        pipeline(y, 4, flight, 5 * flight + 3);
        assert_ok(mf_arrange(&x->stays, false, &size_B[0], &bound_B[0], &e));
        assert_ok(mf_arrange(&y->stays, false, &size_B[1], &bound_B[1], &e));
        check(y, size_B[1]);
        assert_int_equal(bound_B[0], bound_B[1]);
        assert_int_equal(size_B[0], size_B[1]);
        mf_lifetimes_clear(&x->stays);
        mf_lifetimes_clear(&y->stays);
        free(x);
        free(y);
    }
}

static void empty_lifetimes_take_no_memory(void **state) {
    (void)state;
    mf_lifetimes none = {0};
    int64_t size_B = 1, bound_B = 1;
    mf_err e;
    mf_lifetimes_add(&none, (mf_lifetime){.first = 0, .last = 3, .size = 0});
    assert_int_equal(none.count, 0);
    assert_ok(mf_arrange(&none, true, &size_B, &bound_B, &e));
    assert_true(size_B == 0);
    assert_true(bound_B == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(things_that_stand_at_once_never_overlap),
        cmocka_unit_test(a_stage_of_equal_blocks_has_no_gaps),
        cmocka_unit_test(a_longer_schedule_needs_no_other_size),
        cmocka_unit_test(empty_lifetimes_take_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
