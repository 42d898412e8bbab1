/* schedule_kinds.c - the generators of pipeline schedules.
 *
 *  gpipe        all forwards, then all backwards (Huang et al., arXiv:1811.06965)
 *  1f1b         warm-up of PP-1-p forwards, then one forward, one backward (arXiv:1806.03377)
 *  interleaved  the same over VPP chunks in groups of PP micro-batches (arXiv:2104.04473)
 *  zb-h1        1f1b with the weight gradient split off and deferred by up to p micro-batches on
 *               stage p, which fills the drain and keeps 1f1b's memory (arXiv:2401.10241)
 *  zb-v         two chunks laid out as a V, in the memory of 1f1b (schedule_zbv.c)
 *  merged       one forward and one backward of different micro-batches play as one event, so that
 *               one's all-to-all hides behind the other's compute; neighbouring stages have to be
 *               two micro-batches apart for it (as in DualPipe and Megatron-LM's combined 1F1B)
 */
#include "core/schedule/schedule_kinds.h"

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
            /* In the steady state p weight gradients are pending; the drain runs them, one during
             * each wait for the next stage's gradient. */
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

mf_schedule_generate *mf_schedule_generator(mf_schedule_kind kind) {
    static mf_schedule_generate *const table[MF_SCHED_COUNT] = {
        [MF_SCHED_GPIPE] = gpipe,
        [MF_SCHED_1F1B] = one_f_one_b,
        [MF_SCHED_INTERLEAVED] = interleaved,
        [MF_SCHED_ZB_H1] = zb_h1,
        [MF_SCHED_ZB_V] = mf_schedule_zb_v,
        [MF_SCHED_MERGED] = merged,
    };
    return (unsigned)kind < MF_SCHED_COUNT ? table[kind] : NULL;
}
