/* search_rank.c - runners-up: the fastest plans of other degrees.
 *
 * The search for the best plan drops whatever cannot be faster than it, so it has seen only some of
 * what comes next. When it has ended, the families of the first level are searched again, with
 * everything that was learnt on the way (block costs, paths of orders): a family is of use as long
 * as it may hold a plan faster than the last one that is wanted, and a layout as long as it may
 * hold one faster than what is known of its own degrees. Trees are worked on when nothing else is
 * left, since a plan of other degrees is worth more than a tighter bound.
 */
#include "planner/search/search_state.h"
#include "planner/tuning/limits.h"

#include <math.h>

bool mf_search_same_degrees(const mf_layout *a, const mf_layout *b) {
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp && a->vpp == b->vpp &&
           a->ep == b->ep && a->etp == b->etp && a->mbs == b->mbs && a->schedule == b->schedule &&
           a->precision == b->precision;
}

bool mf_search_ranks(const mf_search_state *s) {
    return s->r->ranks && mf_search_top(s) > 1 && s->nfound > 0;
}

mf_status mf_search_rank_begin(mf_search_state *s, mf_err *e) {
    const int64_t budget = mf_search_budget(s);
    mf_search_note_end(s);
    mf_search_queue_clear(&s->queue);
    mf_search_queue_init(&s->queue);
    s->ranking = true;
    s->patient = false;
    s->rank_until = budget > 0 ? s->work + budget / MF_RANK_PART : 0;
    return mf_search_begin(s, e);
}

/* The slowest plan that is wanted. */
static double last_s(const mf_search_state *s) {
    const int top = mf_search_top(s);
    return s->nfound >= top ? s->found[top - 1].time_s : HUGE_VAL;
}

int mf_search_rank_place(const mf_search_state *s, const mf_search_node *n) {
    if (n->level < MF_LEVEL_ORDER) {
        return -1;
    }
    const mf_layout l = mf_search_layout(&s->context, n);
    int i = s->nfound - 1;
    while (i >= 0 && !mf_search_same_degrees(&s->found[i].layout, &l)) {
        i--;
    }
    return i;
}

double mf_search_rank_cutoff(const mf_search_state *s, int place) {
    return place >= 0 ? fmin(last_s(s), s->found[place].time_s) : last_s(s);
}

double mf_search_rank_target(const mf_search_state *s, double cutoff_s) {
    return cutoff_s / (1.0 + mf_search_asked_gap(s));
}

static bool is_deep(const mf_search_node *n) {
    return (n->level == MF_LEVEL_SPLITS && n->tries > 0) || n->level == MF_LEVEL_EXACT;
}

/* Takes what is not to be worked on from the top of the queue: what is proven already, and trees as
 * long as there is anything else. False: out of memory. */
static bool clean_top(mf_search_state *s) {
    while (s->queue.nodes > 0) {
        const mf_search_node *top = mf_search_queue_top(&s->queue);
        const double cutoff_s = mf_search_rank_cutoff(s, mf_search_rank_place(s, top));
        if (top->key_s >= mf_search_rank_target(s, cutoff_s)) {
            mf_search_node n = mf_search_queue_pop(&s->queue);
            mf_partition_tried_clear(&n.tried);
        } else if (!s->patient && is_deep(top)) {
            if (!mf_search_queue_put_aside(&s->queue)) {
                return false;
            }
        } else {
            return true;
        }
    }
    return true;
}

double mf_search_unlisted_s(const mf_search_state *s) {
    const int top = mf_search_top(s);
    const mf_search_node *list[2] = {s->queue.node, s->queue.aside};
    const int64_t count[2] = {s->queue.used, s->queue.asides};
    /* nodes left aside were at or above a target no lower than this one */
    double least_s = fmin(s->unlisted_s, mf_search_rank_target(s, last_s(s)));
    for (int k = 0; k < 2; k++) {
        for (int64_t i = 0; i < count[k]; i++) {
            const mf_search_node *n = &list[k][i];
            if (n->key_s < least_s) {
                const int place = mf_search_rank_place(s, n);
                least_s = place < 0 || place >= top ? n->key_s : least_s;
            }
        }
    }
    for (int i = top; i < s->nfound; i++) {
        least_s = fmin(least_s, s->found[i].open_s);
    }
    return least_s;
}

bool mf_search_rank_is_done(mf_search_state *s) {
    bool good = true;
    if (s->rank_until > 0 && s->work >= s->rank_until) {
        return true;
    }
    s->target_s = mf_search_rank_target(s, last_s(s));
    good = clean_top(s);
    if (good && s->queue.nodes == 0 && s->queue.asides > 0 && !mf_search_is_flying(s)) {
        s->patient = true;
        good = mf_search_queue_bring_back(&s->queue) && clean_top(s);
    }
    if (!good) {
        s->status = mf_err_set(&s->err, MF_NOMEM, "out of memory for the search's queue");
    }
    return !good || !mf_search_queue_below(&s->queue, s->target_s);
}
