/* search_next.c - whether there is something left to start: below the target, parked, or past it.
 */
#include "planner/search/search_state.h"
#include "planner/tuning/limits.h"

mf_status mf_search_open_again(mf_search_state *s, mf_err *e) {
    return mf_search_queue_bring_back(&s->queue) ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
}

/* Is a tree not worth its time? It would not reach the target, or closing it would not help since
 * another one stays open below; or it climbs no more. */
static bool is_hopeless(const mf_search_state *s, const mf_search_node *n) {
    const double far_off = n->tries > 1 ? MF_FAR_OFF_AGAIN : MF_FAR_OFF;
    if (n->stalled && !s->stubborn) {
        return true;
    }
    return !s->patient && mf_search_has_plan(s) && n->level == MF_LEVEL_SPLITS && n->tries > 0 &&
           n->key_s < s->target_s &&
           (n->key_s * far_off < s->target_s || s->queue.aside_s < n->key_s);
}

/* Puts trees aside that are not worth their time, from the top of the queue. */
static bool park(mf_search_state *s) {
    while (s->queue.nodes > 0 && is_hopeless(s, mf_search_queue_top(&s->queue))) {
        if (!mf_search_queue_put_aside(&s->queue)) {
            return false;
        }
    }
    return true;
}

/* Trees that were put aside are taken up again when nothing else is left, those that climb no more
 * last. True: some are. */
static bool unpark(mf_search_state *s) {
    if (s->queue.asides == 0 || s->stubborn) {
        return false;
    }
    s->stubborn = s->patient;
    s->patient = true;
    s->status = mf_search_open_again(s, &s->err);
    return s->status == MF_OK;
}

/* Has a layout about which nothing can be done the least bound of all, and was no better plan found
 * for long? */
static bool is_blocked(const mf_search_state *s, double open_s) {
    return mf_search_uses(s, MF_MECHANISM_HELD) && mf_search_has_plan(s) &&
           open_s >= s->blocking.key_s && s->work - s->unblocked_at >= MF_HELD_US;
}

/* Is there work to start below the target? Returns parked trees to the queue when nothing else is
 * left. */
static bool has_below_target(mf_search_state *s) {
    for (;;) {
        double open_s = mf_search_least_open(s);
        s->target_s = s->best_s / (1.0 + mf_search_asked_gap(s));
        if (open_s >= s->target_s || is_blocked(s, open_s)) {
            return false;
        }
        if (!park(s)) {
            s->status = mf_err_set(&s->err, MF_NOMEM, "out of memory");
            return false;
        }
        if (mf_search_queue_below(&s->queue, s->target_s)) {
            return true;
        }
        /* the tasks in flight may hold all nodes below it */
        if (mf_search_is_flying(s) || !unpark(s)) {
            return false;
        }
    }
}

/* Is it time to try open layouts? The moment does not depend on the budget. */
static bool is_time_to_try(const mf_search_state *s) {
    const int64_t after = s->r->open_work ? s->r->open_work : MF_TRY_OPEN_US;
    return !s->opened && (s->work >= after || mf_search_is_stale(s) || mf_search_is_slow(s)) &&
           mf_search_has_plan(s);
}

/* True if the best plan uses the choices of least memory and few alternatives were tried: then the
 * search goes on past its effort, since a better plan is likely near. */
static bool has_least_memory(const mf_search_state *s) {
    return s->best_s >= s->fits_s && s->fits_tries > 0 && s->queue.nodes > 0 &&
           mf_search_queue_top(&s->queue)->level == MF_LEVEL_TRY;
}

/* The effort at which cheap tasks end after the gap is met. */
static int64_t look_until(const mf_search_state *s) {
    const int64_t until = s->work + MF_SECOND_LOOK_US;
    const bool has_time = s->r->patience <= 0 || s->r->patience > MF_SECOND_LOOK_UNTIL_US;
    return has_time && until < MF_SECOND_LOOK_UNTIL_US ? MF_SECOND_LOOK_UNTIL_US : until;
}

/* Does the next node usually take longer than the look after the gap is met? */
static bool takes_too_long(const mf_search_state *s) {
    return s->work + mf_search_usual_us(mf_search_queue_top(&s->queue)) > s->look_until;
}

/* A small search that has time left puts aside what takes too long and goes on with the rest: what
 * takes little comes in any order among it. */
static bool look_past(mf_search_state *s) {
    while (s->look_until == MF_SECOND_LOOK_UNTIL_US && takes_too_long(s)) {
        if (!mf_search_queue_put_aside(&s->queue)) {
            s->status = mf_err_set(&s->err, MF_NOMEM, "out of memory");
            return false;
        }
        if (!mf_search_queue_below(&s->queue, s->best_s)) {
            return false;
        }
    }
    return !takes_too_long(s);
}

bool mf_search_looks_closer(const mf_search_state *s) {
    return s->context.kinds > 1 && !mf_search_is_impatient(s) && !s->ranking;
}

/* It goes on towards the narrower gap for a while. */
static bool goes_closer(mf_search_state *s) {
    const double gap = MF_CLOSER_GAP * mf_search_asked_gap(s);
    if (!mf_search_looks_closer(s)) {
        return false;
    }
    if (s->closer_until == 0) {
        s->closer_until = s->work + (int64_t)(MF_CLOSER_SHARE * (double)s->work);
    }
    s->target_s = s->best_s / (1.0 + gap);
    return s->work < s->closer_until && mf_search_queue_below(&s->queue, s->target_s);
}

/* Cheap tasks go on for a while after the gap is met. */
static bool continues_past_gap(mf_search_state *s) {
    if (!mf_search_uses(s, MF_MECHANISM_SECOND_LOOK) || s->status != MF_OK ||
        mf_search_is_spent(s) || mf_search_least_open(s) < s->target_s ||
        !mf_search_queue_below(&s->queue, s->best_s)) {
        return false;
    }
    if (goes_closer(s)) {
        return true;
    }
    if (s->look_until == 0) {
        s->look_until = look_until(s);
    }
    s->target_s = s->best_s;
    return look_past(s);
}

bool mf_search_is_done(mf_search_state *s) {
    if (s->ranking) {
        return mf_search_rank_is_done(s);
    }
    if (s->spent || is_time_to_try(s)) {
        return true;
    }
    if (!has_below_target(s)) {
        return !continues_past_gap(s);
    }
    s->stale = s->opened && (mf_search_is_stale(s) || mf_search_is_slow(s));
    s->stale_for = s->work - s->narrowed_at;
    s->spent = s->stale || (!has_least_memory(s) && mf_search_is_spent(s));
    return s->spent;
}
