/* Ranges of numbers of positions: narrowing them loses no split, and fixes what one split alone
 * leaves open. Held against all splits of small pipelines. */
#include "planner/splits/open_splits.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_VSTAGES = 6, MOST_POSITIONS = 12, MOST_RANGES = MOST_VSTAGES + MOST_VSTAGES };

typedef struct drawn {
    mf_partition in;
    mf_split_range range[MOST_RANGES];
    int sizes;
} drawn;

static drawn draw(rng *r) {
    static const struct {
        int pp, vpp;
        mf_schedule_kind schedule;
    } kind[] = {{3, 1, MF_SCHED_1F1B}, {2, 2, MF_SCHED_INTERLEAVED}, {3, 2, MF_SCHED_ZB_V}};
    const int k = (int)rng_range(r, 0, 2);
    drawn d = {.sizes = kind[k].pp * kind[k].vpp};
    mf_layout_init(&d.in.layout);
    d.in.layout.pp = kind[k].pp;
    d.in.layout.vpp = kind[k].vpp;
    d.in.layout.schedule = kind[k].schedule;
    d.in.stages = kind[k].pp;
    d.in.chunks = kind[k].vpp;
    d.in.vstages = d.sizes;
    d.in.positions = (int)rng_range(r, d.sizes, MOST_POSITIONS);
    d.sizes += d.in.chunks > 1 ? d.in.stages : 0;
    for (int i = 0; i < d.sizes; i++) {
        d.range[i].lo = (int16_t)rng_range(r, 1, 3);
        d.range[i].hi = (int16_t)(d.range[i].lo + rng_range(r, 0, 4));
    }
    return d;
}

/* Sums of stages behind the numbers n[v]. */
static void add_stages(const mf_partition *in, int *n) {
    for (int p = 0; p < in->stages && in->chunks > 1; p++) {
        n[in->vstages + p] = 0;
    }
    for (int v = 0; v < in->vstages && in->chunks > 1; v++) {
        n[in->vstages + mf_layout_stage_of(&in->layout, v)] += n[v];
    }
}

static bool holds(const mf_split_range *r, const int *n, int sizes) {
    bool in = true;
    for (int i = 0; i < sizes; i++) {
        in = in && r[i].lo <= n[i] && n[i] <= r[i].hi;
    }
    return in;
}

/* The next numbers of virtual stages, each at least 1, in some order; false: that was the last. */
static bool next(const mf_partition *in, int *n) {
    for (int v = 0; v < in->vstages; v++) {
        if (n[v]++ < in->positions - in->vstages + 1) {
            return true;
        }
        n[v] = 1;
    }
    return false;
}

static void check(const drawn *d, int *kept, int *empty) {
    mf_split_range r[MOST_RANGES];
    int least[MOST_VSTAGES + 1], most[MOST_VSTAGES + 1], splits = 0;
    int n[MOST_RANGES] = {1, 1, 1, 1, 1, 1};
    memcpy(r, d->range, sizeof r);
    const bool some = mf_split_narrow(&d->in, r, least, most);
    do {
        int sum = 0;
        for (int v = 0; v < d->in.vstages; v++) {
            sum += n[v];
        }
        add_stages(&d->in, n);
        if (sum != d->in.positions || !holds(d->range, n, d->sizes)) {
            continue;
        }
        splits++;
        assert_true(some);
        assert_true(holds(r, n, d->sizes));
        for (int v = 0, before = 0; v <= d->in.vstages; before += n[v], v++) {
            assert_in_range(before, least[v], most[v]);
        }
    } while (next(&d->in, n));
    for (int i = 0; some && i < d->sizes; i++) {
        assert_at_least(r[i].lo, d->range[i].lo);
        assert_at_most(r[i].hi, d->range[i].hi);
        *kept += r[i].lo > d->range[i].lo || r[i].hi < d->range[i].hi;
    }
    *empty += splits == 0 && !some;
}

static void narrowing_ranges_loses_no_split(void **state) {
    (void)state;
    rng r = rng_init(19);
    int narrowed = 0, empty = 0;
    for (int i = 0; i < 300; i++) {
        const drawn d = draw(&r);
        check(&d, &narrowed, &empty);
    }
    assert_above(narrowed, 100);
    assert_above(empty, 20);
}

/* Nodes come out by bound, whatever the order in which they went in, each with its leaf. */
static void open_nodes_come_least_bound_first(void **state) {
    (void)state;
    rng r = rng_init(19);
    mf_open_splits open = {0};
    assert_true(mf_open_splits_bound(&open) > 1e300);
    for (int i = 0; i < 200; i++) {
        const mf_split_range range[2] = {{(int16_t)i, (int16_t)(i + 1)}, {0, 1}};
        assert_true(
            mf_open_splits_add(&open, (double)rng_range(&r, 0, 50) + 1e-3 * i, range, 2, NULL, i));
    }
    double last = -1;
    while (open.count > 10) {
        const double bound = mf_open_splits_bound(&open);
        const mf_open_split x = mf_open_splits_take(&open, mf_open_splits_least(&open));
        assert_close(x.bound, bound, 0);
        assert_above(x.bound, last);
        assert_close(x.range[0].lo, 1e3 * (x.bound - floor(x.bound + 1e-9)), 1e-6);
        assert_int_equal(x.leaf, x.range[0].lo);
        last = x.bound;
        free(x.range);
    }
    mf_open_splits_clear(&open);
    assert_int_equal(open.count, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(narrowing_ranges_loses_no_split),
        cmocka_unit_test(open_nodes_come_least_bound_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
