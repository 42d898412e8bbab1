/* family_figures.c - figures of families: what layers take with two sides, and what layouts of a
 * pipeline degree take at the end of a step. Orders of all kinds ask for the same, so they are
 * kept. */
#include "planner/search/search.h"

#include <stddef.h>
#include <string.h>

/* --- layer times ------------------------------------------------------------------------------ */

typedef struct kept_times {
    mf_search_known head;
    mf_costs_noted asked; /* costs that they were made of: a hit is charged for them, too */
    atomic_bool counted;  /* all of these are paid for */
    mf_layer_times times; /* must stay last: its unused entries are not allocated */
} kept_times;

static void *recall(const mf_search_context *w, const mf_search_key *key) {
    const bool keeps = mf_uses(w->evaluator->without, MF_MECHANISM_KEPT_FIGURES);
    return keeps ? mf_search_find(w, key) : NULL;
}

/* Key of both sides of l, with `more` (at least 0, below 2^47). */
static mf_search_key key_of(mf_search_kind kind, const mf_layout *l, int64_t more) {
    return (mf_search_key){.kind = (int64_t)kind,
                           .word = {l->tp | l->cp << 28, l->mbs | l->ep << 28, l->etp,
                                    (int64_t)l->precision | (int64_t)l->cp_type << 8 |
                                        (int64_t)l->dispatcher << 12 | more << 16}};
}

/* Neither PP nor groups matter, but for those of ZeRO where it adds to blocks and where experts are
 * balanced over the ranks of a stage. */
static mf_search_key rates_key(const mf_layout *l, bool exact) {
    const int64_t dense = l->zero >= 2 ? l->zero : 0;
    const int64_t expert = l->expert_zero >= 2 ? l->expert_zero : 0;
    mf_search_key key =
        key_of(MF_KNOWN_TIMES, l,
               (int64_t)mf_pass_mode_of(l->schedule) | exact << 2 | dense << 3 | expert << 5);
    key.word[4] = dense ? l->dp * l->cp : 0;
    key.word[5] = expert ? l->edp : 0;
    key.word[6] = l->aux_scope == MF_AUX_GLOBAL ? l->pp : 0;
    return key;
}

static mf_status make(mf_search_context *w, const mf_layout *l, bool exact, mf_search_times *out,
                      mf_err *e) {
    mf_layer_times *times = &out->times;
    bool gathers = l->zero >= 2 || l->expert_zero >= 2;
    mf_status status = gathers && !exact ? mf_layer_times_paths(w->costs, l, times, e)
                                         : mf_layer_times_whole(w->costs, l, times, e);
    return status == MF_OK && exact ? mf_layer_times_exact_hull(w->costs, l, w->space.pinned, times,
                                                                out->hull, &out->choices, e)
                                    : status;
}

/* A piece of the pool; the lock is held. NULL: out of memory. */
static void *copy_of(mf_search_context *w, const void *from, size_t size_B) {
    void *made = mf_pool_take(&w->pool, size_B);
    return made ? memcpy(made, from, size_B) : NULL;
}

/* The lock is held. NULL: out of memory, which costs time and nothing else. */
static kept_times *copy_times(mf_search_context *w, const mf_search_times *r,
                              const mf_costs_noted *asked) {
    const size_t others = (size_t)r->times.others + (size_t)r->times.kinds,
                 points = (size_t)r->choices.count;
    kept_times *x = mf_pool_take(&w->pool, offsetof(kept_times, times.other) +
                                               others * sizeof r->times.other[0]);
    if (!x) {
        return NULL;
    }
    mf_layer_times_copy(&x->times, &r->times);
    x->asked = (mf_costs_noted){.count = asked->count};
    x->asked.entry = copy_of(w, asked->entry, (size_t)asked->count * sizeof *asked->entry);
    atomic_init(&x->counted, false);
    if (r->times.hull == r->hull) {
        x->times.hull = copy_of(w, r->hull, sizeof r->hull);
    }
    if (r->times.choices != NULL) {
        x->times.choices =
            copy_of(w, &r->choices,
                    offsetof(mf_family_bound_choices, pass) + points * sizeof r->choices.pass[0]);
    }
    const bool whole = x->asked.entry && x->times.hull && (x->times.choices || !r->times.choices);
    return whole ? x : NULL;
}

static void keep_times(mf_search_context *w, const mf_search_key *key, const mf_search_times *r,
                       const mf_costs_noted *asked) {
    pthread_mutex_lock(&w->lock);
    if (!mf_search_find(w, key)) { /* another thread's are equal */
        kept_times *x = copy_times(w, r, asked);
        if (x) {
            mf_search_publish(w, key, &x->head);
        }
    }
    pthread_mutex_unlock(&w->lock);
}

static void count_hit(kept_times *x) {
    if (!atomic_load_explicit(&x->counted, memory_order_relaxed) &&
        !mf_block_costs_count_hit(&x->asked)) {
        atomic_store_explicit(&x->counted, true, memory_order_relaxed);
    }
}

mf_status mf_search_times_of(mf_search_context *w, const mf_layout *l, bool exact,
                             mf_search_times *out, mf_err *e) {
    const mf_search_key key = rates_key(l, exact);
    kept_times *kept = recall(w, &key);
    if (kept) {
        mf_layer_times_copy(&out->times, &kept->times);
        count_hit(kept);
        return MF_OK;
    }
    mf_costs_noted asked = {0};
    mf_block_costs_list(&asked);
    mf_status status = make(w, l, exact, out, e);
    mf_block_costs_list(NULL);
    if (status == MF_OK) {
        keep_times(w, &key, out, &asked);
    }
    mf_costs_noted_clear(&asked);
    return status;
}

/* --- the end of a step ------------------------------------------------------------------------ */

/* Without memory it is made again. */
static void keep_figures(mf_search_context *w, const mf_search_key *key, const void *made,
                         size_t size_B) {
    pthread_mutex_lock(&w->lock);
    if (!mf_search_find(w, key)) {
        mf_search_known *x = copy_of(w, made, size_B);
        if (x) {
            mf_search_publish(w, key, x);
        }
    }
    pthread_mutex_unlock(&w->lock);
}

mf_family_bound_fixed mf_search_fixed(const mf_search_context *w, const mf_layout *l) {
    const mf_evaluator *o = w->evaluator;
    mf_param_count none = {0, 0, 0};
    mf_family_bound_fixed f = {.step_end = o->ops->step_end(o->self, l, none),
                               .fixed_B = o->ops->fixed_B(o->self, l),
                               .usable_B = o->ops->usable_B(o->self, l),
                               .tables_B = o->ops->tables_B(o->self, l),
                               .tables_comm_B = o->ops->tables_comm_B(o->self, l)};
    o->ops->send(o->self, l, &f.send_s, &f.hold_s);
    return f;
}

void mf_search_stages_of(mf_search_context *w, const mf_layout *of, const mf_param_count *layer,
                         mf_search_stages *out) {
    const mf_evaluator *o = w->evaluator;
    mf_search_key key = key_of(MF_KNOWN_STAGES, of, 0);
    key.word[4] = of->pp;
    const mf_search_stages *kept = recall(w, &key);
    if (kept) {
        *out = *kept;
        return;
    }
    mf_layout l = *of;
    l.zero = l.expert_zero = 0;
    l.schedule = MF_SCHED_1F1B;
    out->fixed[0] = mf_search_fixed(w, &l);
    l.schedule = MF_SCHED_MERGED;
    out->fixed[1] = mf_search_fixed(w, &l);
    out->zeros = (int)mf_space_zeros(&w->space, l.dp * l.cp, l.edp, out->zero, MF_SEARCH_ZEROS);
    for (int i = 0; i < out->zeros; i++) {
        l.zero = out->zero[i].zero;
        l.expert_zero = out->zero[i].expert_zero;
        o->ops->step_comm(o->self, &l, *layer, &out->reduce_s[i], &out->gather_s[i]);
    }
    keep_figures(w, &key, out, sizeof *out);
}

/* Do all positions of this kind form one run that does not stand right behind a main layer (the
 * embedding, or what follows it)? */
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

/* What one layout takes at the end of a step, for main layers and for each other kind. */
typedef struct own_figures {
    mf_search_known head;
    double reduce_s, gather_s; /* of a main layer */
    double lost, beside_s;
    struct {
        double reduce_s, gather_s;
    } other[MF_FAMILY_OTHERS];
} own_figures;

static void find_own(const mf_search_context *w, const mf_layout *l, const mf_layer_times *r,
                     own_figures *out) {
    const mf_evaluator *o = w->evaluator;
    o->ops->step_comm(o->self, l, r->layer_params, &out->reduce_s, &out->gather_s);
    out->lost = mf_uses(o->without, MF_MECHANISM_OVERLAP_LOSS)
                    ? o->ops->beside(o->self, l, r->layer_params).lost
                    : 0.0;
    for (int i = 0; i < r->others; i++) {
        const mf_family_bound_other *x = &r->other[i];
        o->ops->step_comm(o->self, l, x->params, &out->other[i].reduce_s, &out->other[i].gather_s);
        out->lost = mf_smaller(out->lost, o->ops->beside(o->self, l, x->params).lost);
    }
    out->beside_s = out->reduce_s;
    for (int i = 0; i < r->others; i++) {
        bool head = r->other[i].first == r->positions - 1;
        if (!head && !is_in_front(r, &r->other[i])) {
            out->beside_s = mf_smaller(out->beside_s, out->other[i].reduce_s);
        }
    }
}

/* Of one layout; layer times with choices know an MTP depth for every depth. */
static mf_search_key own_key(mf_search_kind kind, const mf_layout *l, const mf_layer_times *r) {
    mf_search_key key =
        key_of(kind, l,
               (int64_t)l->zero | (int64_t)l->expert_zero << 2 |
                   (int64_t)(r->choices != NULL) << 4 | (int64_t)mf_layout_merges(l) << 5);
    key.word[4] = l->pp;
    return key;
}

void mf_search_add_own(mf_search_context *w, const mf_layout *l, mf_layer_times *r) {
    const mf_search_key key = own_key(MF_KNOWN_LAYOUT_END, l, r);
    own_figures made;
    const own_figures *own = recall(w, &key);
    if (!own) {
        find_own(w, l, r, &made);
        keep_figures(w, &key, &made,
                     offsetof(own_figures, other) + (size_t)r->others * sizeof made.other[0]);
        own = &made;
    }
    r->layer_reduce_s = own->reduce_s;
    r->layer_gather_s = own->gather_s;
    r->lost = own->lost;
    r->beside_s = own->beside_s;
    for (int i = 0; i < r->others; i++) {
        r->other[i].reduce_s = own->other[i].reduce_s;
        r->other[i].gather_s = own->other[i].gather_s;
    }
}

typedef struct kept_fixed {
    mf_search_known head;
    mf_family_bound_fixed fixed;
} kept_fixed;

mf_family_bound_fixed mf_search_fixed_of(mf_search_context *w, const mf_layout *l,
                                         const mf_layer_times *r) {
    const mf_search_key key = own_key(MF_KNOWN_STAGE_END, l, r);
    const kept_fixed *kept = recall(w, &key);
    if (kept) {
        return kept->fixed;
    }
    mf_layout as = *l;
    as.schedule = mf_layout_merges(l) ? MF_SCHED_MERGED : MF_SCHED_1F1B;
    kept_fixed made = {.fixed = mf_search_fixed(w, &as)};
    made.fixed.step_end = w->evaluator->ops->step_end(w->evaluator->self, l, r->all_params);
    keep_figures(w, &key, &made, sizeof made);
    return made.fixed;
}
