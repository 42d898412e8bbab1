/* search_end.c - how a search ends: its reason as a sentence, and the figures that it reports. */
#include "planner/search/search_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- words ------------------------------------------------------------------------------------ */

const char *mf_search_end_text(mf_search_end end) {
    static const char *const texts[] = {
#define X(name, text, meaning) [MF_SEARCH_END_##name] = (text),
        MF_SEARCH_END_MAP(X)
#undef X
    };
    return texts[end];
}

const char *mf_search_end_meaning(mf_search_end end) {
    static const char *const meanings[] = {
#define X(name, text, meaning) [MF_SEARCH_END_##name] = (meaning),
        MF_SEARCH_END_MAP(X)
#undef X
    };
    return meanings[end];
}

void mf_search_end_say(mf_search_end end, double gap, int64_t work_us, char *out, size_t size) {
    const double percent = 100.0 * gap, work_s = 1e-6 * (double)work_us;
    switch (end) {
    case MF_SEARCH_END_PROVEN:
        snprintf(out, size, "a gap of %.3g %% is proven", percent);
        return;
    case MF_SEARCH_END_EFFORT:
        snprintf(out, size,
                 "its effort of %.3g counted seconds of one core is used (--effort allows more)",
                 work_s);
        return;
    case MF_SEARCH_END_SLOW:
        snprintf(out, size,
                 "at its pace of late a gap of %.3g %% would take longer than its %.3g counted "
                 "seconds of one core (--effort allows more)",
                 percent, work_s);
        return;
    case MF_SEARCH_END_OPEN:
        snprintf(out, size, "nothing is left that it can close");
        return;
    case MF_SEARCH_END_NO_FIT:
        snprintf(out, size, "every layout is known not to fit");
        return;
    case MF_SEARCH_END_INTERRUPTED:
        snprintf(out, size, "it was interrupted");
        return;
    case MF_SEARCH_END_NONE:
    case MF_SEARCH_END_STALLED: /* says for how long */
    case MF_SEARCH_ENDS:
        break;
    }
    snprintf(out, size, "%s", "");
}

void mf_search_end_say_nothing(bool spent, int64_t work_us, char *out, size_t size) {
    snprintf(out, size,
             "no plan was found in %.3g counted seconds of one core, but it is not known that "
             "nothing fits%s",
             1e-6 * (double)work_us, spent ? " (--effort allows more)" : "");
}

/* --- open layouts ----------------------------------------------------------------------------- */

/* Counts the open layouts below the best plan; a family counts all of its own. */
static int64_t open_layouts(const mf_search_state *s) {
    int64_t open = 0;
    for (int64_t i = 0; i < s->queue.used; i++) {
        const mf_search_node *n = &s->queue.node[i];
        if (n->key_s < s->best_s && n->level <= MF_LEVEL_LAYOUT) {
            open += mf_search_family(&s->context, n);
        }
    }
    return open;
}

/* As it was asked for where only rounding makes it more. */
static double gap_of(const mf_search_state *s, double bound_s) {
    const double gap = s->best_s / bound_s - 1.0, asked = mf_search_asked_gap(s);
    return gap > asked && gap < asked + 1e-12 ? asked : gap;
}

/* --- why -------------------------------------------------------------------------------------- */

static const char *cause_text(const mf_search_state *s, char *text, size_t size) {
    const mf_layout l = mf_search_layout(&s->context, &s->blocking);
    switch ((mf_search_cause)s->blocking.cause) {
    case MF_CAUSE_STAGES:
        snprintf(text, size,
                 "mixes of memory choices bound it, and an integer program of %lld virtual stages "
                 "is not worked on",
                 (long long)l.pp * l.vpp);
        return text;
    case MF_CAUSE_TREE:
        return "its tree over splits did not end within its limit";
    case MF_CAUSE_LIMIT:
        return "its integer program did not end within its limit";
    case MF_CAUSE_ANSWERS:
        return "the answer of its integer program takes longer than it says, or does not fit";
    }
    return "";
}

static void describe_blocking(mf_search_state *s) {
    if (isinf(s->blocking.key_s)) {
        mf_search_end_say(MF_SEARCH_END_OPEN, 0, 0, s->ended, sizeof s->ended);
        return;
    }
    const mf_layout l = mf_search_layout(&s->context, &s->blocking);
    char why[128];
    snprintf(s->ended, sizeof s->ended,
             "nothing is left that it can close: %lld layout%s, the least at %.1f %% below the "
             "plan (TP %lld CP %lld PP %lld VPP %lld EP %lld, %s): %s",
             (long long)s->blocked_count, s->blocked_count == 1 ? " stays open" : "s stay open",
             100.0 * (1.0 - s->blocking.key_s / s->best_s), (long long)l.tp, (long long)l.cp,
             (long long)l.pp, (long long)l.vpp, (long long)l.ep, mf_schedule_text(l.schedule),
             cause_text(s, why, sizeof why));
}

static mf_search_end end_of(const mf_search_state *s) {
    const double gap = isfinite(s->best_s) ? gap_of(s, s->proven_s) : HUGE_VAL;
    return s->interrupted                  ? MF_SEARCH_END_INTERRUPTED
           : isinf(s->proven_s)            ? MF_SEARCH_END_NO_FIT
           : gap <= mf_search_asked_gap(s) ? MF_SEARCH_END_PROVEN
           : s->stale && s->slow           ? MF_SEARCH_END_SLOW
           : s->stale                      ? MF_SEARCH_END_STALLED
           : s->spent                      ? MF_SEARCH_END_EFFORT
                                           : MF_SEARCH_END_OPEN;
}

void mf_search_note_end(mf_search_state *s) {
    if (s->ranking) { /* it is known */
        return;
    }
    s->proven_s = mf_search_lower_bound(s);
    s->proven_open = open_layouts(s);
    s->proven_priced = s->priced;
    s->proven_evaluated = s->evaluated;
    s->end = end_of(s);
    if (isinf(s->best_s) && isfinite(s->proven_s) && !s->interrupted) {
        mf_search_end_say_nothing(s->spent, s->work, s->ended, sizeof s->ended);
    } else if (s->end == MF_SEARCH_END_OPEN) {
        describe_blocking(s);
    } else if (s->end == MF_SEARCH_END_STALLED) {
        snprintf(s->ended, sizeof s->ended,
                 "the last %.3g of its %.3g counted seconds of one core did not narrow the gap "
                 "(--effort allows more)",
                 1e-6 * (double)s->stale_for, 1e-6 * (double)s->work);
    } else {
        mf_search_end_say(s->end, mf_search_asked_gap(s), s->work, s->ended, sizeof s->ended);
    }
}

/* --- the report ------------------------------------------------------------------------------- */

mf_status mf_search_report_of(mf_search_state *s, mf_search_report *out, mf_err *e) {
    mf_search_stats *x = &out->stats;
    mf_status status = mf_space_count(&s->r->space, &x->space, e);
    x->priced = s->proven_priced;
    x->pruned = x->space - s->proven_open - s->proven_evaluated;
    x->milp_solved = s->milps;
    x->milp_failed = s->milp_failed;
    x->simulated = s->simulated;
    x->work = s->work;
    x->lower_bound_s = fmin(s->proven_s, s->best_s);
    x->pricing_s = s->pricing_s;
    x->gap = s->nfound > 0 ? gap_of(s, x->lower_bound_s) : 0.0;
    x->unlisted_s = s->ranking ? fmax(mf_search_unlisted_s(s), x->lower_bound_s) : 0.0;
    x->interrupted = s->interrupted;
    x->end = s->end;
    memcpy(x->ended, s->ended, sizeof x->ended);
    const int top = mf_search_top(s);
    out->count = s->nfound < top ? s->nfound : top;
    out->found = calloc((size_t)out->count + 1, sizeof *out->found);
    if (!out->found) {
        out->count = 0;
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    memcpy(out->found, s->found, (size_t)out->count * sizeof *out->found);
    return status;
}
