/* Schedules: complete, free of deadlock, and as hungry for memory as their papers say. */
#include "core/schedule/schedule.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

static mf_layout shape(mf_schedule_kind kind, int64_t pp, int64_t vpp, int64_t micro_batches) {
    mf_layout l;
    mf_layout_init(&l);
    l.gpus = l.pp = pp;
    l.vpp = vpp;
    l.micro_batches = l.gbs = micro_batches;
    l.schedule = kind;
    return l;
}

static void every_schedule_is_complete_and_never_waits_for_ever(void **state) {
    (void)state;
    rng r = rng_init(21);
    for (int i = 0; i < 3000; i++) {
        mf_schedule_kind kind = (mf_schedule_kind)(i % MF_SCHED_COUNT);
        int64_t pp = rng_range(&r, 1, 12), vpp = 1, m = rng_range(&r, 1, 30);
        if (kind == MF_SCHED_ZB_V) {
            vpp = 2;
        } else if (kind == MF_SCHED_INTERLEAVED || kind == MF_SCHED_MERGED) {
            vpp = rng_range(&r, 1, 4);
            m = vpp > 1 ? pp * rng_range(&r, 1, 5) : m;
        }
        mf_layout l = shape(kind, pp, vpp, m);
        mf_schedule *s;
        mf_err e;
        mf_err_clear(&e);
        assert_ok(mf_schedule_create(&l, &s, &e));
        if (mf_schedule_check(&l, s, &e) != MF_OK) {
            fail_msg("%s PP%d VPP%d M%d: %s", mf_schedule_text(kind), (int)pp, (int)vpp, (int)m,
                     e.text);
        }
        mf_schedule_destroy(s);
    }
}

static void the_check_finds_planted_faults(void **state) {
    (void)state;
    mf_layout l = shape(MF_SCHED_1F1B, 4, 1, 8);
    mf_schedule *s;
    mf_err e;
    assert_ok(mf_schedule_create(&l, &s, &e));
    mf_event first = s->events[1][0], last = s->events[1][s->count[1] - 1];
    s->events[1][0] = last; /* a backward before any forward */
    s->events[1][s->count[1] - 1] = first;
    assert_int_equal(mf_schedule_check(&l, s, &e), MF_LAYOUT);
    s->events[1][0] = first;
    s->events[1][s->count[1] - 1] = first; /* a forward twice */
    assert_int_equal(mf_schedule_check(&l, s, &e), MF_LAYOUT);
    s->events[1][s->count[1] - 1] = last;
    assert_ok(mf_schedule_check(&l, s, &e));
    s->count[2]--; /* a backward never played */
    assert_int_equal(mf_schedule_check(&l, s, &e), MF_LAYOUT);
    mf_schedule_destroy(s);
}

static int64_t peak(const mf_layout *l, int64_t stage, bool with_held) {
    mf_schedule *s;
    int32_t in_flight[64 * 8], held[64 * 8];
    assert_ok(mf_schedule_create(l, &s, NULL));
    int rows = mf_schedule_in_flight(s, stage, 64, in_flight, held);
    int64_t most = 0;
    for (int k = 0; k < rows; k++) {
        int64_t sum = 0;
        for (int64_t c = 0; c < l->vpp; c++) {
            sum += in_flight[k * l->vpp + c] + (with_held ? held[k * l->vpp + c] : 0);
        }
        most = sum > most ? sum : most;
    }
    mf_schedule_destroy(s);
    return most;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void micro_batches_in_flight_follow_the_known_formulas(void **state) {
    (void)state;
    for (int64_t pp = 1; pp <= 8; pp++) {
        for (int64_t m = 1; m <= 24; m++) {
            for (int64_t p = 0; p < pp; p++) {
                mf_layout l = shape(MF_SCHED_GPIPE, pp, 1, m);
                assert_int_equal(peak(&l, p, false), m);
                l.schedule = MF_SCHED_1F1B;
                assert_int_equal(peak(&l, p, false), least(m, pp - p));
                l.schedule = MF_SCHED_ZB_H1; /* activations and held ones fit 1f1b's worst stage */
                assert_int_equal(peak(&l, p, false), least(m, pp - p));
                assert_at_most(peak(&l, p, true), least(m, pp + 1));
                l.schedule = MF_SCHED_MERGED;
                assert_int_equal(peak(&l, p, false), least(m, 2 * (pp - 1 - p) + 1));
                l = shape(MF_SCHED_ZB_V, pp, 2, m);
                assert_at_most(peak(&l, p, true), 2 * pp);
                if (m % pp == 0 && pp > 1) {
                    l = shape(MF_SCHED_INTERLEAVED, pp, 3, m);
                    assert_int_equal(peak(&l, p, false),
                                     least(3 * m, 2 * (pp - 1 - p) + 2 * pp + 1));
                }
            }
        }
    }
}

static void vectors_do_not_cover_each_other_and_cover_every_moment(void **state) {
    (void)state;
    mf_layout l = shape(MF_SCHED_INTERLEAVED, 4, 4, 16);
    mf_schedule *s;
    int32_t in_flight[64 * 4], held[64 * 4];
    assert_ok(mf_schedule_create(&l, &s, NULL));
    int rows = mf_schedule_in_flight(s, 0, 64, in_flight, held);
    assert_at_least(rows, 1);
    for (int a = 0; a < rows; a++) {
        for (int b = 0; b < rows; b++) {
            int below = 0;
            for (int c = 0; c < 4; c++) {
                below += in_flight[a * 4 + c] <= in_flight[b * 4 + c];
            }
            assert_true(a == b || below < 4);
        }
    }
    int now[4] = {0};
    for (int64_t i = 0; i < s->count[0]; i++) {
        const mf_event *ev = &s->events[0][i];
        now[ev->chunk] += ev->pass == MF_EVENT_F ? 1 : -1;
        int covered = 0;
        for (int k = 0; k < rows && !covered; k++) {
            covered = 1;
            for (int c = 0; c < 4; c++) {
                covered &= in_flight[k * 4 + c] >= now[c];
            }
        }
        assert_true(covered);
    }
    mf_schedule_destroy(s);
}

/* Length in units (each pass one unit), each stage in order, inputs awaited. */
static int64_t makespan(const mf_layout *l, int64_t f_units, int64_t b_units, int64_t w_units) {
    mf_schedule *s;
    assert_ok(mf_schedule_create(l, &s, NULL));
    enum { CELLS = 32 * 64 };
    static int64_t f_end[CELLS], b_end[CELLS];
    int64_t next[32] = {0}, free_at[32] = {0}, vs_count = l->pp * l->vpp, last = 0;
    for (int i = 0; i < CELLS; i++) {
        f_end[i] = b_end[i] = -1;
    }
    for (int moved = 1; moved;) {
        moved = 0;
        for (int64_t p = 0; p < l->pp; p++) {
            while (next[p] < s->count[p]) {
                mf_event ev = s->events[p][next[p]];
                int64_t v = mf_layout_vstage(l, p, ev.chunk), m = ev.micro_batch, t = free_at[p];
                if (ev.pass == MF_EVENT_F) {
                    int64_t need = v ? f_end[(v - 1) * 64 + m] : 0;
                    if (need < 0) {
                        break;
                    }
                    t = (t > need ? t : need) + f_units;
                    f_end[v * 64 + m] = t;
                } else if (ev.pass == MF_EVENT_B) {
                    int64_t need = v + 1 < vs_count ? b_end[(v + 1) * 64 + m] : f_end[v * 64 + m];
                    if (need < 0) {
                        break;
                    }
                    t = (t > need ? t : need) + b_units;
                    b_end[v * 64 + m] = t;
                } else {
                    t += w_units;
                }
                free_at[p] = t;
                last = t > last ? t : last;
                next[p]++;
                moved = 1;
            }
        }
    }
    mf_schedule_destroy(s);
    return last;
}

static void bubbles_are_those_of_the_papers(void **state) {
    (void)state;
    for (int64_t pp = 2; pp <= 8; pp *= 2) {
        int64_t m = 4 * pp;
        mf_layout l = shape(MF_SCHED_1F1B, pp, 1, m);
        assert_int_equal(makespan(&l, 1, 2, 0), 3 * m + 3 * (pp - 1));
        l.schedule = MF_SCHED_GPIPE;
        assert_int_equal(makespan(&l, 1, 2, 0), 3 * m + 3 * (pp - 1));
        l = shape(MF_SCHED_INTERLEAVED, pp, 2, m); /* half the time a chunk: bubble over VPP */
        assert_int_equal(makespan(&l, 1, 2, 0), 2 * 3 * m + 3 * (pp - 1));
        l = shape(MF_SCHED_ZB_H1, pp, 1, m); /* (PP-1)(f + b - w): a third of 1f1b's */
        assert_in_range(makespan(&l, 1, 1, 1), 3 * m + pp - 1, 3 * m + 2 * (pp - 1));
        l = shape(MF_SCHED_ZB_V, pp, 2, m);
        assert_in_range(makespan(&l, 1, 1, 1), 2 * 3 * m, 2 * 3 * m + 3 * pp);
        /* A backward that is longer than the forward must not starve the order. */
        int64_t ideal = 2 * m * 32;
        assert_in_range(makespan(&l, 10, 13, 9), ideal, ideal + ideal / 8);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_is_complete_and_never_waits_for_ever),
        cmocka_unit_test(the_check_finds_planted_faults),
        cmocka_unit_test(micro_batches_in_flight_follow_the_known_formulas),
        cmocka_unit_test(vectors_do_not_cover_each_other_and_cover_every_moment),
        cmocka_unit_test(bubbles_are_those_of_the_papers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
