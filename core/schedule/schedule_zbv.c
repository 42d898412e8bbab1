/* schedule_zbv.c - zb-v: two chunks of a stage laid out as a V, weight gradients split off (Qi et
 * al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, the V schedule), packed greedily.
 *
 * Every stage plays, whenever it is free, the input gradient of the oldest micro-batch that can
 * run, else a forward where memory allows, else a weight gradient. Memory is that of 1f1b: 2 PP
 * chunks between their forward and their weight gradient; the first chunk leaves one place to the
 * second, whose forwards would otherwise wait for memory that only they can free.
 *
 * Which order comes out depends on the times it is packed with. With equal times the plan has no
 * bubble but starves when an input gradient really takes longer than a forward, as it does with
 * recomputation or token exchange (40 % lost). With F + W = B the order keeps its rhythm for all
 * times tried, from 1:1:1 to 10:20:10 (F:B:W): a third of 1f1b's bubble is left.
 */
#include "core/schedule/schedule_kinds.h"

#include <stdlib.h>

enum { TIME_F = 3, TIME_B = 5, TIME_W = 2 };

typedef struct v_stage {
    int64_t f[2], b[2], w[2]; /* passes begun, by chunk; micro-batches go in order */
    int64_t free_at;
} v_stage;

typedef struct v_play {
    const mf_layout *l;
    mf_event_list *lists;
    v_stage *stage;
    int64_t *f_end, *b_end; /* [2 PP virtual stages][M] when the result is there; 0 = not yet */
    int64_t now;
} v_play;

static int64_t *v_end(const v_play *v, int64_t *end, int64_t vstage, int64_t mb) {
    return &end[vstage * v->l->micro_batches + mb];
}

static bool v_ready(const v_play *v, int64_t *end, int64_t vstage, int64_t mb) {
    int64_t t = *v_end(v, end, vstage, mb);
    return t > 0 && t <= v->now;
}

static void v_emit(v_play *v, int64_t p, mf_event_pass pass, int64_t chunk, int64_t mb,
                   int64_t time) {
    v->stage[p].free_at = v->now + time;
    mf_schedule_push(
        &v->lists[p],
        (mf_event){.pass = (uint8_t)pass, .chunk = (int16_t)chunk, .micro_batch = (int32_t)mb});
}

static bool v_backward(v_play *v, int64_t p) {
    v_stage *s = &v->stage[p];
    int64_t last = 2 * v->l->pp - 1;
    for (int c = 0; c < 2; c++) {
        int64_t mb = s->b[c], at = mf_layout_vstage(v->l, p, c);
        if (mb < s->f[c] && v_ready(v, v->f_end, at, mb) &&
            (at == last || v_ready(v, v->b_end, at + 1, mb))) {
            v_emit(v, p, MF_EVENT_B, c, mb, TIME_B);
            *v_end(v, v->b_end, at, mb) = s->free_at;
            s->b[c]++;
            return true;
        }
    }
    return false;
}

static bool v_forward(v_play *v, int64_t p) {
    v_stage *s = &v->stage[p];
    int64_t left = 2 * v->l->pp - (s->f[0] - s->w[0]) - (s->f[1] - s->w[1]);
    for (int c = 1; c >= 0; c--) {
        int64_t mb = s->f[c], at = mf_layout_vstage(v->l, p, c);
        if (mb < v->l->micro_batches && left >= (c == 1 ? 1 : 2) &&
            (at == 0 || v_ready(v, v->f_end, at - 1, mb))) {
            v_emit(v, p, MF_EVENT_F, c, mb, TIME_F);
            *v_end(v, v->f_end, at, mb) = s->free_at;
            s->f[c]++;
            return true;
        }
    }
    return false;
}

static bool v_weight(v_play *v, int64_t p) {
    v_stage *s = &v->stage[p];
    for (int c = 1; c >= 0; c--) {
        if (s->w[c] < s->b[c]) {
            v_emit(v, p, MF_EVENT_W, c, s->w[c], TIME_W);
            s->w[c]++;
            return true;
        }
    }
    return false;
}

bool mf_schedule_zb_v(const mf_layout *l, mf_event_list *lists) {
    size_t cells = (size_t)(2 * l->pp * l->micro_batches);
    v_play v = {.l = l, .lists = lists};
    v.stage = calloc((size_t)l->pp, sizeof *v.stage);
    v.f_end = calloc(cells, sizeof *v.f_end);
    v.b_end = calloc(cells, sizeof *v.b_end);
    bool ok = v.stage != NULL && v.f_end != NULL && v.b_end != NULL;
    int64_t left = ok ? 6 * l->pp * l->micro_batches : 0;
    for (; left > 0; v.now++) {
        for (int64_t p = 0; p < l->pp; p++) {
            if (v.stage[p].free_at <= v.now) {
                left -= v_backward(&v, p) || v_forward(&v, p) || v_weight(&v, p);
            }
        }
    }
    free(v.stage);
    free(v.f_end);
    free(v.b_end);
    return ok;
}
