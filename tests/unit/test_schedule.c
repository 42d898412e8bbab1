/* Pipeline schedules: complete, free of deadlock, and with the peaks and bubbles that are known. */
#include "core/schedule/schedule.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static mf_layout layout_of(mf_schedule_kind kind, int64_t pp, int64_t vpp, int64_t m) {
    mf_layout l;
    mf_layout_init(&l);
    l.schedule = kind;
    l.pp = l.gpus = pp;
    l.vpp = vpp;
    l.micro_batches = l.gbs = m;
    return l;
}

static mf_schedule *create(const mf_layout *l) {
    mf_schedule *s = NULL;
    mf_err e;
    if (mf_schedule_create(l, &s, &e) != MF_OK) {
        fail_msg("%s PP %d VPP %d M %d: %s", mf_schedule_text(l->schedule), (int)l->pp, (int)l->vpp,
                 (int)l->micro_batches, e.text);
    }
    return s;
}

static mf_layout random_layout(rng *r, mf_schedule_kind kind) {
    int64_t pp = rng_range(r, 1, 16), vpp = 1, m = rng_range(r, 1, 40);
    if (kind == MF_SCHED_INTERLEAVED || (kind == MF_SCHED_MERGED && rng_range(r, 0, 1))) {
        vpp = rng_range(r, 2, 5);
        m = pp * rng_range(r, 1, 5);
    } else if (kind == MF_SCHED_ZB_V) {
        vpp = 2;
    }
    return layout_of(kind, pp, vpp, m);
}

static void every_schedule_is_complete_and_runs_without_deadlock(void **state) {
    (void)state;
    rng r = rng_init(1);
    for (int i = 0; i < 6000; i++) {
        mf_layout l = random_layout(&r, (mf_schedule_kind)(i % MF_SCHED_COUNT));
        mf_schedule *s = create(&l);
        mf_err e;
        if (mf_schedule_check(&l, s, &e) != MF_OK) {
            fail_msg("%s PP %d VPP %d M %d: %s", mf_schedule_text(l.schedule), (int)l.pp,
                     (int)l.vpp, (int)l.micro_batches, e.text);
        }
        mf_schedule_destroy(s);
    }
}

/* --- peaks ------------------------------------------------------------------------------------ */

enum { MAX_ROWS = 4096 };
static int32_t in_flight[MAX_ROWS * 8], held[MAX_ROWS * 8];

static int64_t sum_row(const int32_t *v, int64_t row, int64_t chunks) {
    int64_t sum = 0;
    for (int64_t c = 0; c < chunks; c++) {
        sum += v[row * chunks + c];
    }
    return sum;
}

static int64_t peak_in_flight(const mf_schedule *s, int64_t stage, bool with_held) {
    int n = mf_schedule_in_flight(s, stage, MAX_ROWS, in_flight, held);
    assert_in_range(n, 1, MAX_ROWS);
    int64_t peak = 0;
    for (int i = 0; i < n; i++) {
        int64_t sum = sum_row(in_flight, i, s->chunks);
        sum += with_held ? sum_row(held, i, s->chunks) : 0;
        peak = sum > peak ? sum : peak;
    }
    return peak;
}

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t known_peak(const mf_layout *l, int64_t p, bool with_held) {
    int64_t total = l->micro_batches * l->vpp, pp = l->pp;
    switch (l->schedule) {
    case MF_SCHED_GPIPE:
        return l->micro_batches;
    case MF_SCHED_1F1B:
        return min64(l->micro_batches, pp - p);
    case MF_SCHED_INTERLEAVED: /* Megatron-LM: warm-up plus the one at hand */
    case MF_SCHED_MERGED:      /* of a pair, the one goes as the other comes */
        return min64(total, 2 * (pp - p - 1) + (l->vpp - 1) * pp + 1);
    case MF_SCHED_ZB_H1: /* in flight as 1F1B; with what is held no more than its first stage */
        return min64(l->micro_batches, with_held ? pp : pp - p);
    case MF_SCHED_ZB_V: /* PP micro-batches of two chunks */
    case MF_SCHED_COUNT:
        break;
    }
    return 2 * pp;
}

static void peaks_in_flight_follow_the_known_formulas(void **state) {
    (void)state;
    rng r = rng_init(2);
    for (int i = 0; i < 1200; i++) {
        mf_layout l = random_layout(&r, (mf_schedule_kind)(i % MF_SCHED_COUNT));
        mf_schedule *s = create(&l);
        for (int64_t p = 0; p < l.pp; p++) {
            if (l.schedule == MF_SCHED_ZB_V) {
                assert_at_most(peak_in_flight(s, p, true), known_peak(&l, p, true));
                continue;
            }
            assert_int_equal(peak_in_flight(s, p, false), known_peak(&l, p, false));
            if (l.schedule == MF_SCHED_ZB_H1) {
                assert_int_equal(peak_in_flight(s, p, true), known_peak(&l, p, true));
            } else {
                assert_int_equal(peak_in_flight(s, p, true), known_peak(&l, p, false));
            }
        }
        mf_schedule_destroy(s);
    }
}

/* --- bubbles ---------------------------------------------------------------------------------- */

/* Steps until all is done when F, B, W of a chunk take the given steps and sends nothing. */
static int64_t makespan(const mf_layout *l, const mf_schedule *s, int64_t tf, int64_t tb,
                        int64_t tw) {
    size_t cells = (size_t)(s->stages * s->chunks * s->micro_batches);
    int64_t *f = calloc(cells, sizeof *f), *b = calloc(cells, sizeof *b), at[64] = {0},
            clock[64] = {0}, left = 1, end = 0;
    int64_t last = s->stages * s->chunks - 1, m = s->micro_batches;
    while (left > 0) {
        left = 0;
        for (int64_t p = 0; p < s->stages; p++) {
            for (; at[p] < s->count[p]; at[p]++) {
                const mf_event *ev = &s->events[p][at[p]];
                bool pair = ev->pass == MF_EVENT_FB;
                int64_t v = mf_layout_vstage(l, p, ev->chunk), start = clock[p],
                        mb = ev->micro_batch;
                int64_t v2 = pair ? mf_layout_vstage(l, p, ev->chunk2) : v;
                int64_t mb2 = pair ? ev->micro_batch2 : mb, length = 0;
                bool back = pair || ev->pass == MF_EVENT_B;
                if (pair || ev->pass == MF_EVENT_F) {
                    int64_t need = v > 0 ? f[(v - 1) * m + mb] : 0;
                    if (v > 0 && need == 0) {
                        break;
                    }
                    start = need > start ? need : start;
                    length += tf;
                }
                if (back) {
                    int64_t need = v2 < last ? b[(v2 + 1) * m + mb2] : 0;
                    if (v2 < last && need == 0) {
                        break;
                    }
                    start = need > start ? need : start;
                    length += s->split ? tb : tb + tw;
                }
                length += ev->pass == MF_EVENT_W ? tw : 0;
                clock[p] = start + length;
                if (pair || ev->pass == MF_EVENT_F) {
                    f[v * m + mb] = clock[p];
                }
                if (back) {
                    b[v2 * m + mb2] = clock[p];
                }
                end = clock[p] > end ? clock[p] : end;
            }
            left += s->count[p] - at[p];
        }
    }
    free(f);
    free(b);
    return end;
}

static int64_t span_of(mf_schedule_kind kind, int64_t pp, int64_t vpp, int64_t m, int64_t tf,
                       int64_t tb, int64_t tw) {
    mf_layout l = layout_of(kind, pp, vpp, m);
    mf_schedule *s = create(&l);
    int64_t t = makespan(&l, s, tf, tb, tw);
    mf_schedule_destroy(s);
    return t;
}

static void bubbles_are_the_known_ones(void **state) {
    (void)state;
    for (int64_t pp = 2; pp <= 16; pp *= 2) {
        for (int64_t k = 2; k <= 6; k += 2) {
            int64_t m = k * pp;
            /* GPipe, 1F1B: (PP-1)(F+B+W). */
            assert_int_equal(span_of(MF_SCHED_GPIPE, pp, 1, m, 2, 2, 2), 6 * m + 6 * (pp - 1));
            assert_int_equal(span_of(MF_SCHED_1F1B, pp, 1, m, 2, 3, 1), 6 * m + 6 * (pp - 1));
            /* Interleaved: the same over VPP. */
            assert_int_equal(span_of(MF_SCHED_INTERLEAVED, pp, 4, m, 1, 1, 1),
                             3 * 4 * m + 3 * (pp - 1));
            /* Merged: pairs never wait in between. */
            assert_int_equal(span_of(MF_SCHED_MERGED, pp, 4, m, 1, 1, 1), 3 * 4 * m + 3 * (pp - 1));
            /* ZB-H1: (PP-1)(F+B-W). */
            assert_int_equal(span_of(MF_SCHED_ZB_H1, pp, 1, m, 2, 2, 2), 6 * m + 2 * (pp - 1));
            assert_int_equal(span_of(MF_SCHED_ZB_H1, pp, 1, m, 2, 4, 1), 7 * m + 5 * (pp - 1));
        }
    }
}

static void zb_v_leaves_well_under_half_of_the_bubble_of_1f1b(void **state) {
    (void)state;
    static const int64_t times[][3] = {
        {10, 10, 10}, {10, 12, 8}, {10, 14, 8}, {10, 18, 8}, {10, 20, 10}};
    for (int64_t pp = 4; pp <= 16; pp *= 2) {
        for (int64_t m = 2 * pp; m <= 8 * pp; m *= 2) {
            for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
                const int64_t *t = times[i], sum = t[0] + t[1] + t[2];
                /* Chunks of half a stage: passes of half the time. */
                int64_t v = span_of(MF_SCHED_ZB_V, pp, 2, m, t[0], t[1], t[2]) - 2 * m * sum;
                int64_t one =
                    span_of(MF_SCHED_1F1B, pp, 1, m, 2 * t[0], 2 * t[1], 2 * t[2]) - 2 * m * sum;
                if (100 * v > 46 * one) {
                    fail_msg("PP %d M %d times %d: %d of %d", (int)pp, (int)m, (int)i, (int)v,
                             (int)one);
                }
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_is_complete_and_runs_without_deadlock),
        cmocka_unit_test(peaks_in_flight_follow_the_known_formulas),
        cmocka_unit_test(bubbles_are_the_known_ones),
        cmocka_unit_test(zb_v_leaves_well_under_half_of_the_bubble_of_1f1b),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
