/* Ops with prices by hand, played on streams: order, sharing, what an instant is spent on. */
#include "simulator/play_time.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_OPS = 64 };

typedef struct fixture {
    mf_play play;
    mf_play_op ops[MAX_OPS];
    int deps[MAX_OPS * 4], ndeps, next_of[MAX_OPS];
} fixture;

static void fixture_init(fixture *w) {
    memset(w, 0, sizeof *w);
    w->play.ops = w->ops;
    w->play.deps = w->deps;
    w->play.next_of = w->next_of;
}

/* Adds an op that waits for dep (and dep2) when >= 0. */
static mf_play_op *add(fixture *w, mf_stream s, double time_s, int dep, int dep2) {
    mf_play_op *q = &w->ops[w->play.n++];
    *q = (mf_play_op){.stream = (uint8_t)s,
                      .pass = MF_PASS_F,
                      .alone_s = time_s,
                      .low_s = 0.9 * time_s,
                      .high_s = 1.2 * time_s,
                      .first_dep = w->ndeps};
    if (dep >= 0) {
        w->deps[w->ndeps++] = dep;
    }
    if (dep2 >= 0) {
        w->deps[w->ndeps++] = dep2;
    }
    q->ndeps = w->ndeps - q->first_dep;
    return q;
}

static double sum_classes(const mf_play *p) {
    double sum = 0;
    for (int k = 0; k < MF_BD_COUNT; k++) {
        sum += p->class_s[k];
    }
    return sum;
}

static void one_stream_is_a_serial_sum(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w);
    for (int i = 0; i < 10; i++) {
        add(&w, MF_STREAM_COMPUTE, i + 1, i - 1, -1);
    }
    w.ops[4].pass = MF_PASS_R;
    mf_play_run(&w.play);
    assert_close(w.play.time_s, 55, 1e-12);
    assert_close(w.play.class_s[MF_BD_RECOMPUTE], 5, 1e-12);
    assert_close(w.play.class_s[MF_BD_COMPUTE], 50, 1e-12);
    assert_close(w.play.low_s, 55 * 0.9, 1e-12);
    assert_close(w.play.high_s, 55 * 1.2, 1e-12);
}

static void waiting_belongs_to_what_the_next_compute_op_waits_for(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w);
    add(&w, MF_STREAM_COMPUTE, 2, -1, -1);
    add(&w, MF_STREAM_TP, 3, 0, -1);
    add(&w, MF_STREAM_EP, 4, 1, -1);
    add(&w, MF_STREAM_COMPUTE, 1, 2, -1); /* waits for TP, then EP */
    add(&w, MF_STREAM_D2H, 10, 0, -1);    /* runs on behind all compute */
    mf_play_run(&w.play);
    assert_close(w.play.time_s, 12, 1e-12);
    assert_close(w.play.compute_s, 3, 1e-12);
    assert_close(w.play.class_s[MF_BD_COMPUTE], 3, 1e-12);
    assert_close(w.play.class_s[MF_BD_TP], 3, 1e-12);
    assert_close(w.play.class_s[MF_BD_EP], 4, 1e-12);
    assert_close(w.play.class_s[MF_BD_OFFLOAD], 2, 1e-12);
    /* The path is compute, then the copy. */
    assert_close(w.play.low_s, 12 * 0.9, 1e-12);
}

static void an_input_behind_another_op_of_its_stream_waits_for_that(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w);
    add(&w, MF_STREAM_EP, 5, -1, -1); /* nobody needs it, but it holds the stream */
    add(&w, MF_STREAM_EP, 1, -1, -1);
    add(&w, MF_STREAM_COMPUTE, 1, 1, -1);
    mf_play_run(&w.play);
    assert_close(w.ops[2].start_s, 6, 1e-12);
    assert_close(w.play.class_s[MF_BD_EP], 6, 1e-12);
}

static void the_host_holds_ops_back(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w);
    for (int i = 0; i < 5; i++) {
        add(&w, MF_STREAM_COMPUTE, 1, -1, -1)->issue_s = 3 * (i + 1);
    }
    mf_play_run(&w.play);
    assert_close(w.play.time_s, 16, 1e-12);
    assert_close(w.play.class_s[MF_BD_HOST], 11, 1e-12);
    assert_close(w.play.class_s[MF_BD_COMPUTE], 5, 1e-12);
    assert_close(w.play.low_s, 15 + 0.9, 1e-12); /* host time has no band */
    for (int i = 0; i < 5; i++) {
        assert_at_least(w.ops[i].start_s, w.ops[i].issue_s);
        w.ops[i].issue_s /= 100;
    }
    mf_play_run(&w.play); /* far ahead: hidden */
    assert_close(w.play.time_s, 5.03, 1e-12);
}

/* Twice as long beside compute, and up to a second until there is space. */
static void communication_loses_to_compute_beside_it(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w);
    mf_play_op *compute = add(&w, MF_STREAM_COMPUTE, 10, -1, -1);
    mf_play_op *first = add(&w, MF_STREAM_EP, 2, -1, -1); /* placed together: no wait */
    mf_play_op *then = add(&w, MF_STREAM_EP, 1, 1, -1);   /* the compute was there first */
    mf_play_op *last = add(&w, MF_STREAM_EP, 3, 2, -1);   /* half of the rest, then alone */
    compute->work = MF_PLAY_PRODUCT;
    for (int i = 1; i < w.play.n; i++) {
        w.ops[i].loss[MF_PLAY_PRODUCT] = (mf_play_loss){2, 1};
    }
    mf_play_run(&w.play);
    assert_close(first->end_s, 4, 1e-12);
    assert_close(then->end_s, 4 + 2 * (1 + 1), 1e-12);
    /* 8 .. 10 at half speed: 1 of the 1 + 3; from there on alone */
    assert_close(last->end_s, 13, 1e-12);
    assert_close(compute->end_s, 10, 1e-12);
    first->alone_s = 4.9; /* until 9.8: the wait of the next ends with the kernel */
    then->alone_s = 1;
    mf_play_run(&w.play);
    assert_close(then->end_s, 10 + (0.2 + 1) - 0.2 / 2, 1e-12);
    compute->work = MF_PLAY_MEMORY; /* to which nothing is lost here */
    mf_play_run(&w.play);
    assert_close(first->end_s, 4.9, 1e-12);
}

static void streams_share_a_link_in_proportion(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w);
    mf_play_op *a = add(&w, MF_STREAM_EP, 4, -1, -1);
    a->link = MF_LINK_SCALEUP;
    a->link_share = 0.75;
    mf_play_op *b = add(&w, MF_STREAM_DP, 2, -1, -1);
    b->link = MF_LINK_SCALEUP;
    b->link_share = 0.75;
    /* Both at 1/1.5 until b ends at 3; a has 2 left and goes on alone. */
    mf_play_run(&w.play);
    assert_close(b->end_s, 3, 1e-12);
    assert_close(a->end_s, 5, 1e-12);
    b->link = MF_LINK_NETWORK; /* another link: no sharing */
    mf_play_run(&w.play);
    assert_close(a->end_s, 4, 1e-12);
    assert_close(b->end_s, 2, 1e-12);
    b->link = MF_LINK_SCALEUP; /* light use: the link has space for both */
    b->link_share = 0.25;
    mf_play_run(&w.play);
    assert_close(a->end_s, 4, 1e-12);
}

static double half_speed(void *user, int i, double sm_share, double memory_Bps) {
    int *calls = user;
    (*calls)++;
    assert_int_equal(i, 0);
    assert_close(sm_share, 0.2, 1e-12);
    assert_close(memory_Bps, 7, 1e-12);
    return 2.0;
}

static void compute_is_slower_while_communication_runs_beside_it(void **state) {
    (void)state;
    fixture w;
    fixture_init(&w);
    int calls = 0;
    add(&w, MF_STREAM_COMPUTE, 10, -1, -1);
    mf_play_op *a = add(&w, MF_STREAM_EP, 4, -1, -1);
    a->sm_share = 0.2;
    a->memory_Bps = 7;
    w.play.slowdown = half_speed;
    w.play.user = &calls;
    mf_play_run(&w.play);
    assert_close(w.play.time_s, 12, 1e-12);
    assert_close(w.play.compute_s, 12, 1e-12);
    assert_int_equal(calls, 1);
    w.play.exposed[MF_STREAM_EP] = 0.75; /* loses three quarters of the time beside it */
    mf_play_run(&w.play);
    assert_close(w.play.time_s, 13, 1e-12);
}

static double some_slowdown(void *user, int i, double sm_share, double memory_Bps) {
    (void)user;
    (void)i;
    return 1.0 + sm_share + memory_Bps;
}

static void random_fixture(rng *r, fixture *w) {
    fixture_init(w);
    int n = (int)rng_range(r, 1, MAX_OPS);
    double issue = 0, host = (double)rng_range(r, 0, 3);
    for (int i = 0; i < n; i++) {
        mf_stream s = (mf_stream)(rng_range(r, 0, 1) ? 0 : rng_range(r, 0, MF_STREAM_COUNT - 1));
        int dep = i && rng_range(r, 0, 3) ? (int)rng_range(r, 0, i - 1) : -1;
        int dep2 = i && rng_range(r, 0, 1) ? (int)rng_range(r, i > 4 ? i - 4 : 0, i - 1) : -1;
        mf_play_op *q =
            add(w, s, rng_range(r, 0, 9) ? (double)rng_range(r, 1, 1000) / 7 : 0, dep, dep2);
        q->pass = rng_range(r, 0, 3) ? MF_PASS_F : MF_PASS_R;
        if (s != MF_STREAM_COMPUTE) {
            q->link = (uint8_t)rng_range(r, 0, 3);
            q->link_share = (double)rng_range(r, 0, 100) / 100;
            q->sm_share = (double)rng_range(r, 0, 30) / 100;
            q->memory_Bps = (double)rng_range(r, 0, 50) / 100;
        }
        issue += host * (double)rng_range(r, 0, 30);
        q->issue_s = issue;
    }
    w->play.slowdown = some_slowdown;
    for (int s = 1; s < MF_STREAM_COUNT; s++) {
        w->play.exposed[s] = (double)rng_range(r, 0, 60) / 100;
    }
    w->play.exposed_inside = (double)rng_range(r, 0, 60) / 100;
}

static void every_play_keeps_its_invariants(void **state) {
    (void)state;
    rng r = rng_init(31);
    for (int k = 0; k < 4000; k++) {
        static fixture w;
        double end[MAX_OPS], stream[MF_STREAM_COUNT] = {0}, last = 0;
        random_fixture(&r, &w);
        mf_play_run(&w.play);
        double time = w.play.time_s, eps = 1e-9 * (1 + time);
        assert_close(sum_classes(&w.play), time, eps);
        assert_close(w.play.class_s[MF_BD_COMPUTE] + w.play.class_s[MF_BD_RECOMPUTE],
                     w.play.compute_s, eps);
        assert_at_most(w.play.low_s, time + eps);
        assert_at_least(w.play.high_s, time - eps);
        for (int i = 0; i < w.play.n; i++) {
            const mf_play_op *q = &w.ops[i];
            assert_at_least(q->start_s, q->issue_s - eps);
            assert_at_least(q->start_s, stream[q->stream] - eps);
            assert_at_least(q->end_s, q->start_s + q->alone_s - eps);
            for (int d = 0; d < q->ndeps; d++) {
                assert_at_least(q->start_s, w.ops[w.deps[q->first_dep + d]].end_s - eps);
            }
            stream[q->stream] = q->end_s;
            last = fmax(last, q->end_s);
        }
        assert_close(last, time, eps);
        double bound = mf_play_bound(&w.play, end), sum[MF_STREAM_COUNT] = {0};
        assert_at_most(bound, time + eps);
        for (int i = 0; i < w.play.n; i++) {
            sum[w.ops[i].stream] += w.ops[i].alone_s;
            assert_at_most(sum[w.ops[i].stream], bound + eps);
            w.ops[i].issue_s = 0;
            w.ops[i].link = MF_LINK_NONE;
        }
        w.play.slowdown = NULL; /* without contention the bound is the time */
        memset(w.play.exposed, 0, sizeof w.play.exposed);
        w.play.exposed_inside = 0;
        mf_play_run(&w.play);
        assert_close(w.play.time_s, bound, eps);
        assert_at_most(w.play.time_s, time + eps);
    }
}

/* A slow-down that shows which figures of the op the play passes. */
static double slowdown_of(const void *user, double memory_share, double sm_share,
                          double memory_Bps) {
    (void)user;
    return 1 + memory_share * sm_share + memory_Bps;
}

static double slowdown_at(void *user, int i, double sm_share, double memory_Bps) {
    const fixture *w = user;
    return slowdown_of(NULL, w->ops[i].memory_share, sm_share, memory_Bps);
}

static void time_alone_is_that_of_the_play_to_the_last_bit(void **state) {
    (void)state;
    rng r = rng_init(37);
    for (int k = 0; k < 4000; k++) {
        static fixture w;
        mf_timed_op ops[MAX_OPS];
        mf_timed_work work[MAX_OPS];
        bool done[MAX_OPS] = {false};
        random_fixture(&r, &w);
        for (int i = 0; i < w.play.n; i++) {
            mf_play_op *q = &w.ops[i];
            q->issue_s = 0;
            q->memory_share = (double)rng_range(&r, 0, 10) / 10;
            q->work = (uint8_t)rng_range(&r, 0, MF_PLAY_WORKS - 1);
            for (int v = 0; v < MF_PLAY_WORKS && q->stream != MF_STREAM_COMPUTE; v++) {
                q->loss[v] = (mf_play_loss){1 + (double)rng_range(&r, 0, 9) / 10,
                                            (double)rng_range(&r, 0, 30) / 7};
            }
            work[i] = mf_timed_work_of(q);
            ops[i] = (mf_timed_op){&work[i], w.deps + q->first_dep, done, i, 0};
        }
        w.play.slowdown = slowdown_at;
        w.play.user = &w;
        const mf_timing timing = {.ops = ops,
                                  .n = w.play.n,
                                  .exposed = w.play.exposed,
                                  .exposed_inside = w.play.exposed_inside,
                                  .slowdown = slowdown_of};
        double time_s = mf_play_time_s(&timing);
        mf_play_run(&w.play);
        assert_memory_equal(&time_s, &w.play.time_s, sizeof time_s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_stream_is_a_serial_sum),
        cmocka_unit_test(waiting_belongs_to_what_the_next_compute_op_waits_for),
        cmocka_unit_test(an_input_behind_another_op_of_its_stream_waits_for_that),
        cmocka_unit_test(the_host_holds_ops_back),
        cmocka_unit_test(communication_loses_to_compute_beside_it),
        cmocka_unit_test(streams_share_a_link_in_proportion),
        cmocka_unit_test(compute_is_slower_while_communication_runs_beside_it),
        cmocka_unit_test(every_play_keeps_its_invariants),
        cmocka_unit_test(time_alone_is_that_of_the_play_to_the_last_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
