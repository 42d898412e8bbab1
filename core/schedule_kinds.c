/* schedule_kinds.c - the generators of pipeline schedules.
 *
 *  gpipe        all forwards, then all backwards (Huang et al., arXiv:1811.06965)
 *  1f1b         warm-up of PP-1-p forwards, then one forward, one backward (arXiv:1806.03377)
 *  interleaved  the same over VPP chunks in groups of PP micro-batches (arXiv:2104.04473)
 *  zb-h1        1f1b with the weight gradient split off and deferred by up to p micro-batches on
 *               stage p, which fills the drain and keeps 1f1b's memory (arXiv:2401.10241)
 *  zb-v         two chunks laid out as a V, greedily packed (with typical times) under a memory
 * limit of PP micro-batches (same paper, section on the V schedule) merged       one forward and
 * one backward of different micro-batches play as one event, so that one's all-to-all hides behind
 * the other's compute; neighbouring stages have to be two micro-batches apart for it (as in
 * DualPipe and Megatron-LM's combined 1F1B)
 */
#include "core/schedule_kinds.h"

#include <stdlib.h>

static mf_event event(mf_event_pass pass, int64_t chunk, int64_t micro_batch) {
    return (mf_event){
        .pass = (uint8_t)pass, .chunk = (int16_t)chunk, .micro_batch = (int32_t)micro_batch};
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static bool gpipe(const mf_layout *l, mf_event_list *lists) {
    for (int64_t p = 0; p < l->pp; p++) {
        for (int64_t m = 0; m < l->micro_batches; m++) {
            mf_schedule_push(&lists[p], event(MF_EVENT_F, 0, m));
        }
        for (int64_t m = 0; m < l->micro_batches; m++) {
            mf_schedule_push(&lists[p], event(MF_EVENT_B, 0, m));
        }
    }
    return true;
}

/* k-th forward or backward of a stage under interleaving: PP micro-batches of a chunk, then the
 * next chunk; backward takes the chunks from the last. With VPP 1: micro-batch k. */
static mf_event kth(const mf_layout *l, mf_event_pass pass, int64_t k) {
    if (l->vpp == 1) {
        return event(pass, 0, k);
    }
    int64_t group = k / (l->pp * l->vpp), within = k % (l->pp * l->vpp);
    int64_t chunk = within / l->pp;
    return event(pass, pass == MF_EVENT_F ? chunk : l->vpp - 1 - chunk,
                 group * l->pp + within % l->pp);
}

/* `warm` forwards; then forward and backward in turn (as one event when merged); then backwards. */
static void one_forward_one_backward(const mf_layout *l, mf_event_list *list, int64_t warm,
                                     bool merged) {
    int64_t total = l->micro_batches * l->vpp;
    warm = least(warm, total);
    for (int64_t k = 0; k < warm; k++) {
        mf_schedule_push(list, kth(l, MF_EVENT_F, k));
    }
    for (int64_t k = warm; k < total; k++) {
        mf_event f = kth(l, MF_EVENT_F, k), b = kth(l, MF_EVENT_B, k - warm);
        if (merged) {
            f.pass = MF_EVENT_FB;
            f.chunk2 = b.chunk;
            f.micro_batch2 = b.micro_batch;
            mf_schedule_push(list, f);
        } else {
            mf_schedule_push(list, f);
            mf_schedule_push(list, b);
        }
    }
    for (int64_t k = total - warm; k < total; k++) {
        mf_schedule_push(list, kth(l, MF_EVENT_B, k));
    }
}

static bool one_f_one_b(const mf_layout *l, mf_event_list *lists) {
    for (int64_t p = 0; p < l->pp; p++) {
        one_forward_one_backward(l, &lists[p], l->pp - 1 - p, false);
    }
    return true;
}

static int64_t interleaved_warm_up(const mf_layout *l, int64_t p) {
    return 2 * (l->pp - 1 - p) + (l->vpp - 1) * l->pp;
}

static bool interleaved(const mf_layout *l, mf_event_list *lists) {
    for (int64_t p = 0; p < l->pp; p++) {
        one_forward_one_backward(l, &lists[p], interleaved_warm_up(l, p), false);
    }
    return true;
}

/* One more forward than interleaving needs: the pair then never holds the two passes of one
 * micro-batch and chunk. */
static bool merged(const mf_layout *l, mf_event_list *lists) {
    for (int64_t p = 0; p < l->pp; p++) {
        one_forward_one_backward(l, &lists[p], interleaved_warm_up(l, p) + 1, true);
    }
    return true;
}

static bool zb_h1(const mf_layout *l, mf_event_list *lists) {
    int64_t total = l->micro_batches;
    for (int64_t p = 0; p < l->pp; p++) {
        int64_t warm = least(l->pp - 1 - p, total), f = 0, b = 0, w = 0;
        while (f < warm) {
            mf_schedule_push(&lists[p], event(MF_EVENT_F, 0, f++));
        }
        while (b < total) {
            if (f < total) {
                mf_schedule_push(&lists[p], event(MF_EVENT_F, 0, f++));
            }
            mf_schedule_push(&lists[p], event(MF_EVENT_B, 0, b++));
            /* In the steady state p weight gradients wait; the drain works them off, since there
             * every wait for the next stage's gradient has room for one. */
            int64_t deferred = f < total ? p : least(p, total - b);
            while (b - w > deferred && (f < total || b - w > 0)) {
                mf_schedule_push(&lists[p], event(MF_EVENT_W, 0, w++));
                if (f >= total) {
                    break;
                }
            }
        }
        while (w < total) {
            mf_schedule_push(&lists[p], event(MF_EVENT_W, 0, w++));
        }
    }
    return true;
}

/* --- zb-v: greedy packing --------------------------------------------------------------------- */

/* The greedy packing needs times. The order is played with others, so it has to bear them: packed
 * with equal times it loses 24 to 38 % once backward takes longer than forward; with these it stays
 * within 3 to 10 % of no bubble for input gradients of 1 to 1.5 forwards. */
enum { V_FORWARD = 10, V_BACKWARD = 13, V_WEIGHT = 9 };

typedef struct v_stage {
    int64_t f[2], b[2], w[2]; /* micro-batches done of each chunk, in order */
    int64_t free_at;
} v_stage;

typedef struct v_state {
    const mf_layout *l;
    v_stage *stage;
    /* Time at which each pass of (vstage, micro-batch) is done; -1 = not yet. */
    int64_t *f_done, *b_done;
} v_state;

static int64_t *v_cell(const v_state *v, int64_t *table, int64_t vstage, int64_t mb) {
    return &table[vstage * v->l->micro_batches + mb];
}

static bool v_done(const v_state *v, int64_t *table, int64_t vstage, int64_t mb, int64_t now) {
    int64_t t = *v_cell(v, table, vstage, mb);
    return t >= 0 && t <= now;
}

/* The event that stage p plays at time `now`, by priority: the input gradient of the oldest
 * micro-batch, the returning forward, a new forward while fewer than PP micro-batches are open on
 * the stage (so two chunks of each fit into 1f1b's memory), a weight gradient. */
static bool v_choose(const v_state *v, int64_t p, int64_t now, mf_event *out) {
    const mf_layout *l = v->l;
    v_stage *s = &v->stage[p];
    int64_t last = 2 * l->pp - 1;
    int64_t vs[2] = {mf_layout_vstage(l, p, 0), mf_layout_vstage(l, p, 1)};
    int best = -1;
    for (int c = 1; c >= 0; c--) {
        int64_t m = s->b[c];
        bool ready = m < s->f[c] && v_done(v, v->f_done, vs[c], m, now) &&
                     (vs[c] == last || v_done(v, v->b_done, vs[c] + 1, m, now));
        if (ready && (best < 0 || m < s->b[best])) {
            best = c;
        }
    }
    if (best >= 0) {
        *out = event(MF_EVENT_B, best, s->b[best]);
        return true;
    }
    if (s->f[1] < s->f[0] && v_done(v, v->f_done, vs[1] - 1, s->f[1], now)) {
        *out = event(MF_EVENT_F, 1, s->f[1]);
        return true;
    }
    int64_t open = s->f[0] - least(s->w[0], s->w[1]);
    if (s->f[0] < l->micro_batches && open < l->pp &&
        (vs[0] == 0 || v_done(v, v->f_done, vs[0] - 1, s->f[0], now))) {
        *out = event(MF_EVENT_F, 0, s->f[0]);
        return true;
    }
    for (int c = 1; c >= 0; c--) {
        if (s->w[c] < s->b[c] && (best < 0 || s->w[c] < s->w[best])) {
            best = c;
        }
    }
    if (best >= 0) {
        *out = event(MF_EVENT_W, best, s->w[best]);
        return true;
    }
    return false;
}

static bool zb_v(const mf_layout *l, mf_event_list *lists) {
    size_t cells = (size_t)(2 * l->pp * l->micro_batches);
    v_state v = {.l = l};
    v.stage = calloc((size_t)l->pp, sizeof *v.stage);
    v.f_done = malloc(cells * sizeof *v.f_done);
    v.b_done = malloc(cells * sizeof *v.b_done);
    bool ok = v.stage != NULL && v.f_done != NULL && v.b_done != NULL;
    for (size_t i = 0; i < cells && ok; i++) {
        v.f_done[i] = v.b_done[i] = -1;
    }
    int64_t left = ok ? 6 * l->pp * l->micro_batches : 0;
    for (int64_t now = 0; left > 0; now++) {
        for (int64_t p = 0; p < l->pp; p++) {
            mf_event ev;
            v_stage *s = &v.stage[p];
            if (s->free_at > now || !v_choose(&v, p, now, &ev)) {
                continue;
            }
            s->free_at = now + (ev.pass == MF_EVENT_F   ? V_FORWARD
                                : ev.pass == MF_EVENT_B ? V_BACKWARD
                                                        : V_WEIGHT);
            int64_t vs = mf_layout_vstage(l, p, ev.chunk);
            if (ev.pass == MF_EVENT_F) {
                s->f[ev.chunk]++;
                *v_cell(&v, v.f_done, vs, ev.micro_batch) = s->free_at;
            } else if (ev.pass == MF_EVENT_B) {
                s->b[ev.chunk]++;
                *v_cell(&v, v.b_done, vs, ev.micro_batch) = s->free_at;
            } else {
                s->w[ev.chunk]++;
            }
            mf_schedule_push(&lists[p], ev);
            left--;
        }
    }
    free(v.stage);
    free(v.f_done);
    free(v.b_done);
    return ok;
}

const mf_schedule_ops *mf_schedule_ops_of(mf_schedule_kind kind) {
    static const mf_schedule_ops table[MF_SCHED_COUNT] = {
        [MF_SCHED_GPIPE] = {"gpipe", 1, false, false, gpipe},
        [MF_SCHED_1F1B] = {"1f1b", 1, false, false, one_f_one_b},
        [MF_SCHED_INTERLEAVED] = {"interleaved", 0, true, false, interleaved},
        [MF_SCHED_ZB_H1] = {"zb-h1", 1, false, true, zb_h1},
        [MF_SCHED_ZB_V] = {"zb-v", 2, false, true, zb_v},
        [MF_SCHED_MERGED] = {"merged", 0, true, false, merged},
    };
    return (unsigned)kind < MF_SCHED_COUNT ? &table[kind] : NULL;
}
