/* Messages between stages under every schedule, played by the executor's rules (executor/step/
 * messages.c): one mailbox a slot, which is posted into when its last message has been received.
 * Every stage comes to its end, and where messages have no tags they are those that are meant. */
#include "core/schedule/schedule.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_STAGES = 16, MAX_SLOTS = 4, CASES = 4000 };

/* Of more stages than this zb-v has orders that one mailbox a slot does not carry: of 11 with 17
 * micro-batches. */
enum { ZB_V_STAGES = 10 };

typedef struct message {
    bool full;
    int64_t vstage, micro_batch;
    int direction;
} message;

typedef struct fixture {
    const mf_layout *l;
    const mf_schedule *s;
    bool at_once; /* a send is over when its receive is: as if it held its rank up */
    message slot[MAX_STAGES][MAX_SLOTS], waiting[MAX_STAGES][2];
    int64_t event[MAX_STAGES];
    int step[MAX_STAGES]; /* in the event: its receives, then its posts */
    bool sent[MAX_STAGES];
    char wrong[160];
} fixture;

/* One end of an event: a message between `vstage` and its neighbour before (forward) or behind. */
typedef struct pass_end {
    bool there;
    int64_t vstage, other, micro_batch;
    int direction;
} pass_end;

/* Ends of an event in the order of the executor: what comes in, of both passes; what goes out. */
static int ends_of(const fixture *w, int64_t stage, const mf_event *ev, pass_end end[4]) {
    int64_t last = w->l->pp * w->l->vpp - 1;
    int passes = ev->pass == MF_EVENT_W ? 0 : ev->pass == MF_EVENT_FB ? 2 : 1;
    for (int k = 0; k < 2 * passes; k++) {
        bool back = ev->pass == MF_EVENT_B || k % passes == 1, out = k >= passes;
        int64_t v = mf_layout_vstage(w->l, stage, k % passes == 1 ? ev->chunk2 : ev->chunk);
        int64_t other = back == out ? v - 1 : v + 1;
        end[k] = (pass_end){.there = other >= 0 && other <= last,
                            .vstage = v,
                            .other = other,
                            .micro_batch = k % passes == 1 ? ev->micro_batch2 : ev->micro_batch,
                            .direction = back};
    }
    return 2 * passes;
}

static bool is_of(const message *m, int64_t vstage, const pass_end *x) {
    return m->full && m->vstage == vstage && m->micro_batch == x->micro_batch &&
           m->direction == x->direction;
}

static bool receive(fixture *w, int64_t stage, const pass_end *x) {
    int64_t from = mf_layout_stage_of(w->l, x->other);
    message *m = from == stage ? w->waiting[stage]
                               : &w->slot[from][mf_schedule_slot(w->l, x->other, x->direction)];
    if (from == stage) {
        m += is_of(m, x->vstage, x) ? 0 : 1;
    }
    if (!m->full) {
        return false;
    }
    if (!is_of(m, x->vstage, x)) {
        snprintf(w->wrong, sizeof w->wrong, "stage %d gets another message than it reads",
                 (int)stage);
    }
    m->full = false;
    return true;
}

static bool post(fixture *w, int64_t stage, const pass_end *x) {
    int64_t to = mf_layout_stage_of(w->l, x->other);
    message *m = to == stage ? w->waiting[stage]
                             : &w->slot[stage][mf_schedule_slot(w->l, x->vstage, x->direction)];
    if (to == stage) {
        m += m->full ? 1 : 0;
        if (m->full) {
            snprintf(w->wrong, sizeof w->wrong, "three messages wait on stage %d", (int)stage);
        }
    }
    if (m->full) {
        return false;
    }
    *m = (message){true, x->other, x->micro_batch, x->direction};
    w->sent[stage] = to != stage;
    return true;
}

/* One more thing that a stage does; false: it waits. */
static bool advance(fixture *w, int64_t stage) {
    const mf_event *ev = &w->s->events[stage][w->event[stage]];
    pass_end end[4];
    int ends = ends_of(w, stage, ev, end), k = w->step[stage];
    if (w->sent[stage] && w->at_once) { /* its last message has to be received first */
        for (int i = 0; i < MAX_SLOTS; i++) {
            if (w->slot[stage][i].full) {
                return false;
            }
        }
    }
    w->sent[stage] = false;
    if (k < ends && end[k].there &&
        !(k < ends / 2 ? receive(w, stage, &end[k]) : post(w, stage, &end[k]))) {
        return false;
    }
    w->step[stage]++;
    if (w->step[stage] >= ends) {
        w->step[stage] = 0;
        w->event[stage]++;
    }
    return true;
}

/* Do all stages come to their end? */
static bool plays(fixture *w) {
    bool moved = true, ended = true;
    while (moved && w->wrong[0] == '\0') {
        moved = false;
        ended = true;
        for (int64_t p = 0; p < w->l->pp; p++) {
            while (w->event[p] < w->s->count[p] && advance(w, p)) {
                moved = true;
            }
            ended &= w->event[p] == w->s->count[p];
        }
    }
    for (int64_t p = 0; p < w->l->pp; p++) {
        for (int i = 0; i < MAX_SLOTS; i++) {
            ended &= !w->slot[p][i].full;
        }
    }
    return ended && w->wrong[0] == '\0';
}

static bool play(const mf_layout *l, bool at_once, char wrong[160]) {
    static fixture w;
    mf_schedule *s = NULL;
    mf_err e;
    if (mf_schedule_create(l, &s, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    memset(&w, 0, sizeof w);
    w.l = l;
    w.s = s;
    w.at_once = at_once;
    bool ended = plays(&w);
    snprintf(wrong, 160, "%s", w.wrong[0] != '\0' ? w.wrong : "it waits for ever");
    mf_schedule_destroy(s);
    return ended;
}

static mf_layout layout_of(mf_schedule_kind kind, int64_t pp, int64_t vpp, int64_t m) {
    mf_layout l;
    mf_layout_init(&l);
    l.schedule = kind;
    l.pp = l.gpus = pp;
    l.vpp = vpp;
    l.micro_batches = l.gbs = m;
    return l;
}

static void every_schedule_ends_with_one_mailbox_a_slot(void **state) {
    (void)state;
    rng r = rng_init(7);
    for (int i = 0; i < CASES; i++) {
        mf_schedule_kind kind = (mf_schedule_kind)(i % MF_SCHED_COUNT);
        int64_t pp = rng_range(&r, 1, MAX_STAGES), vpp = 1, m = rng_range(&r, 1, 40);
        char wrong[160];
        if (kind == MF_SCHED_INTERLEAVED || (kind == MF_SCHED_MERGED && rng_range(&r, 0, 1))) {
            vpp = rng_range(&r, 2, 5);
            m = pp * rng_range(&r, 1, 5);
        } else if (kind == MF_SCHED_ZB_V) {
            vpp = 2;
            pp = 1 + pp % ZB_V_STAGES;
        }
        mf_layout l = layout_of(kind, pp, vpp, m);
        assert_at_most(2 * mf_schedule_sending(&l), MAX_SLOTS);
        if (!play(&l, false, wrong)) {
            fail_msg("seed 7, case %d: %s PP %d VPP %d M %d: %s", i, mf_schedule_text(kind),
                     (int)pp, (int)vpp, (int)m, wrong);
        }
    }
}

/* Without queues of their own for what is sent it would not be so: the play tells. */
static void sends_that_hold_their_rank_up_wait_for_ever(void **state) {
    (void)state;
    const mf_layout plain = layout_of(MF_SCHED_1F1B, 4, 1, 8);
    const mf_layout ring = layout_of(MF_SCHED_INTERLEAVED, 4, 2, 8);
    char wrong[160];
    assert_false(play(&plain, true, wrong));
    assert_false(play(&ring, true, wrong));
    assert_true(play(&plain, false, wrong));
    assert_true(play(&ring, false, wrong));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_ends_with_one_mailbox_a_slot),
        cmocka_unit_test(sends_that_hold_their_rank_up_wait_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
