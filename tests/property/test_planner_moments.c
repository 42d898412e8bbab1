/* What bounds know of a schedule's memory: its rows of micro-batches in flight and held are moments
 * of it, so that no weighing of them says more than its worst moment does; where weight gradients
 * are split off, and stages hold most long after most is in flight, none says less. */
#include "planner/order/order.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

#include <math.h>

enum { CHUNKS = 4, WEIGHINGS = 12 };

static mf_status scheduled(void *self, const mf_layout *l, mf_schedule **out, mf_err *e) {
    (void)self;
    return mf_schedule_create(l, out, e);
}

static mf_layout draw(rng *r) {
    mf_layout l;
    mf_layout_init(&l);
    l.schedule = (mf_schedule_kind)rng_range(r, 0, MF_SCHED_COUNT - 1);
    const bool split = l.schedule == MF_SCHED_ZB_H1 || l.schedule == MF_SCHED_ZB_V;
    l.gpus = l.pp = rng_range(r, 2, split ? 48 : 16);
    l.micro_batches = rng_range(r, 1, 3 * l.pp);
    if (l.schedule == MF_SCHED_ZB_V) {
        l.vpp = 2;
    } else if (l.schedule == MF_SCHED_INTERLEAVED || l.schedule == MF_SCHED_MERGED) {
        l.vpp = rng_range(r, 1, CHUNKS);
        l.micro_batches = l.vpp > 1 ? l.pp * rng_range(r, 1, 4) : l.micro_batches;
    }
    l.gbs = l.micro_batches;
    return l;
}

/* Bytes of a micro-batch of each chunk in flight, and held. */
typedef struct weighing {
    double flight[CHUNKS], held[CHUNKS];
} weighing;

static double share(rng *r) {
    return (double)rng_range(r, 0, 1000) / 1000.0;
}

static weighing draw_weighing(rng *r, int64_t chunks) {
    weighing w = {{0.0}, {0.0}};
    for (int64_t c = 0; c < chunks; c++) {
        w.flight[c] = share(r) < 0.2 ? 0.0 : share(r);
        w.held[c] = share(r) < 0.2 ? 0.0 : 3.0 * share(r);
    }
    return w;
}

static double weigh(const weighing *w, const int32_t *flight, const int32_t *held, int64_t chunks) {
    double sum = 0.0;
    for (int64_t c = 0; c < chunks; c++) {
        sum += w->flight[c] * flight[c] + w->held[c] * held[c];
    }
    return sum;
}

/* The worst moment of a stage, by playing its events. */
static double worst_moment(const mf_schedule *s, int64_t p, const weighing *w) {
    int32_t flight[CHUNKS] = {0}, held[CHUNKS] = {0};
    double most = 0.0;
    for (int64_t i = 0; i < s->count[p]; i++) {
        const mf_event *ev = &s->events[p][i];
        const bool pair = ev->pass == MF_EVENT_FB;
        if (ev->pass == MF_EVENT_B || pair) {
            const int16_t chunk = pair ? ev->chunk2 : ev->chunk;
            flight[chunk]--;
            held[chunk] += s->split;
            most = s->split ? fmax(most, weigh(w, flight, held, s->chunks)) : most;
        } else if (ev->pass == MF_EVENT_W) {
            held[ev->chunk]--;
        }
        if (ev->pass == MF_EVENT_F || pair) {
            flight[ev->chunk]++;
            most = fmax(most, weigh(w, flight, held, s->chunks));
        }
    }
    return most;
}

static double worst_row(const mf_order_summary *o, int p, const weighing *w) {
    double most = 0.0;
    for (int k = 0; k < o->rows[p]; k++) {
        int32_t flight[CHUNKS] = {0}, held[CHUNKS] = {0};
        for (int c = 0; c < o->chunks; c++) {
            flight[c] = mf_order_in_flight(o, p, k, c);
            held[c] = mf_order_held(o, p, k, c);
        }
        most = fmax(most, weigh(w, flight, held, o->chunks));
    }
    return most;
}

static void rows_are_the_worst_moments(void **state) {
    (void)state;
    rng r = rng_init(4711);
    for (int i = 0; i < 400; i++) {
        const mf_layout l = draw(&r);
        mf_schedule *s;
        mf_order_summary o;
        assert_ok(mf_schedule_create(&l, &s, NULL));
        assert_ok(mf_order_summarise(&l, scheduled, NULL, 60, 4, &o, NULL, NULL));
        for (int p = 0; p < o.stages; p++) {
            for (int k = 0; k < WEIGHINGS; k++) {
                const weighing w = draw_weighing(&r, l.vpp);
                const double moment = worst_moment(s, p, &w), row = worst_row(&o, p, &w);
                if (row > moment * (1.0 + 1e-9) || (s->split && row < moment * (1.0 - 1e-9))) {
                    fail_msg("%s PP%d VPP%d M%d stage %d: rows weigh %.9g, moments %.9g",
                             mf_schedule_text(l.schedule), (int)l.pp, (int)l.vpp,
                             (int)l.micro_batches, p, row, moment);
                }
            }
        }
        mf_order_summary_clear(&o);
        mf_schedule_destroy(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_worst_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
