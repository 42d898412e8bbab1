/* family_figures.c - figures of families: what layers take with two sides, and what layouts of a
 * pipeline degree take once a step. Made each time, from costs that are kept. */
#include "planner/search/search.h"

mf_status mf_search_rates_of(mf_search_context *w, const mf_layout *l, bool exact,
                             mf_search_rates *out, mf_err *e) {
    mf_layer_times *times = &out->times;
    bool gathers = l->zero >= 2 || l->expert_zero >= 2;
    mf_status status = gathers && !exact ? mf_layer_times_paths(w->costs, l, times, e)
                                         : mf_layer_times_whole(w->costs, l, times, e);
    return status == MF_OK && exact ? mf_layer_times_exact_hull(w->costs, l, w->space.pinned, times,
                                                                out->hull, &out->choices, e)
                                    : status;
}

mf_family_bound_fixed mf_search_fixed(const mf_search_context *w, const mf_layout *l) {
    const mf_evaluator *o = w->evaluator;
    mf_param_count none = {0, 0, 0};
    mf_family_bound_fixed f = {.tail = o->ops->tail(o->self, l, none),
                               .fixed_B = o->ops->fixed_B(o->self, l),
                               .usable_B = o->ops->usable_B(o->self, l),
                               .tables_B = o->ops->tables_B(o->self, l)};
    o->ops->send(o->self, l, &f.send_s, &f.hold_s);
    return f;
}

void mf_search_stages_of(const mf_search_context *w, const mf_layout *of,
                         const mf_param_count *layer, mf_search_stages *out) {
    const mf_evaluator *o = w->evaluator;
    mf_layout l = *of;
    l.schedule = MF_SCHED_1F1B;
    out->fixed[0] = mf_search_fixed(w, &l);
    l.schedule = MF_SCHED_MERGED;
    out->fixed[1] = mf_search_fixed(w, &l);
    out->zeros = (int)mf_space_zeros(&w->space, l.dp * l.cp, l.edp, out->zero, MF_SEARCH_ZEROS);
    for (int i = 0; i < out->zeros; i++) {
        l.zero = out->zero[i].zero;
        l.expert_zero = out->zero[i].expert_zero;
        o->ops->once(o->self, &l, *layer, &out->reduce_s[i], &out->gather_s[i]);
    }
}

/* Positions of one kind, and none else between them, of which none stands right behind a main
 * layer: the embedding, or what follows it. */
static bool is_in_front(const mf_layer_times *r, const mf_family_bound_other *x) {
    if (x->last - x->first + 1 != x->count) {
        return false;
    }
    for (int i = 0; i < r->others && x->first > 0; i++) {
        const mf_family_bound_other *y = &r->other[i];
        if (y->last == x->first - 1 && y->last - y->first + 1 == y->count) {
            return true;
        }
    }
    return x->first == 0;
}

void mf_search_add_own(const mf_search_context *w, const mf_layout *l, mf_layer_times *r) {
    const mf_evaluator *o = w->evaluator;
    r->lost = mf_uses(o->without, MF_MECHANISM_OVERLAP_LOSS)
                  ? o->ops->beside(o->self, l, r->layer_params).lost
                  : 0.0;
    for (int i = 0; i < r->others; i++) {
        mf_family_bound_other *x = &r->other[i];
        o->ops->once(o->self, l, x->params, &x->reduce_s, &x->gather_s);
        r->lost = mf_smaller(r->lost, o->ops->beside(o->self, l, x->params).lost);
    }
    r->beside_s = r->layer_reduce_s;
    for (int i = 0; i < r->others; i++) {
        bool head = r->other[i].first == r->positions - 1;
        if (!head && !is_in_front(r, &r->other[i])) {
            r->beside_s = mf_smaller(r->beside_s, r->other[i].reduce_s);
        }
    }
}
