/* search_pace.c - how fast a search narrows its gap: with patience it ends when that is too slow.
 */
#include "planner/search/search_state.h"
#include "planner/tuning/limits.h"

#include <math.h>

bool mf_search_is_impatient(const mf_search_state *s) {
    return s->r->patience > 0 && s->r->patience < mf_search_budget(s);
}

bool mf_search_is_stale(const mf_search_state *s) {
    return s->r->patience > 0 && mf_search_has_plan(s) &&
           s->work - s->narrowed_at >= s->r->patience;
}

/* Would the gap that was asked for take MF_SLOW_SHARE times as long as all did so far, as fast as
 * the gap has narrowed since the last mark? Asked at every mark, one for each time of patience. */
static void note_pace(mf_search_state *s, double gap) {
    const int64_t patience = s->r->patience;
    if (patience == 0 || s->work - s->mark.at < patience) {
        return;
    }
    const mf_search_mark *then = &s->mark;
    const double narrower = then->gap - gap, left = gap - mf_search_asked_gap(s);
    s->slow = s->work >= MF_SLOW_PATIENCE * patience && isfinite(then->gap) &&
              left * (double)(s->work - then->at) > MF_SLOW_SHARE * narrower * (double)s->work;
    s->mark = (mf_search_mark){s->work, gap};
}

void mf_search_note_gap(mf_search_state *s) {
    const double gap = s->best_s / mf_search_lower_bound(s) - 1.0;
    note_pace(s, gap);
    if ((!s->opened && mf_search_least_open(s) < s->blocking.key_s) ||
        s->best_s < s->unblocked_best_s) {
        s->unblocked_at = s->work;
        s->unblocked_best_s = s->best_s;
    }
    if (!(gap > s->narrowed - MF_NARROWER)) {
        s->narrowed = gap;
        s->narrowed_at = s->work;
    }
}

bool mf_search_is_slow(const mf_search_state *s) {
    return s->slow &&
           (s->queue.nodes == 0 || mf_search_queue_top(&s->queue)->level != MF_LEVEL_TRY);
}
