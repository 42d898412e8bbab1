/* fit_time.c - how long a step takes of combinations of degrees that fit.
 *
 * What needs least memory is slow: it recomputes all that it can. So a combination is timed with
 * the fastest of a few usual choices that fit, simulated as every plan is. A search finds better
 * ones of few combinations; this tells hundreds of them apart.
 */
#include "planner/fit/fit_sweep.h"
#include "planner/tuning/limits.h"

#include "core/base/flag.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

/* --- choices ---------------------------------------------------------------------------------- */

#define SMALL (MF_RECOMPUTE_NORM | MF_RECOMPUTE_ACT | MF_RECOMPUTE_MLA_UP_PROJ)

/* What takes least time first; the first that fits is timed. */
static const struct {
    uint8_t zero;
    uint16_t recompute;
} usual[] = {
    {1, MF_RECOMPUTE_NONE},
    {1, SMALL},
    {1, SMALL | MF_RECOMPUTE_MOE | MF_RECOMPUTE_MLP},
    {1, MF_RECOMPUTE_LAYER},
    {3, MF_RECOMPUTE_LAYER},
};
enum { USUAL = sizeof usual / sizeof usual[0] };

/* Modules that the model has. */
static uint16_t modules_of(const mf_model *m) {
    uint16_t has = MF_RECOMPUTE_NORM | MF_RECOMPUTE_ACT | MF_RECOMPUTE_LAYER;
    has |= m->attn == MF_ATTN_MLA ? MF_RECOMPUTE_MLA_UP_PROJ : 0;
    for (int at = 0; at < mf_model_positions(m); at++) {
        if (mf_position_kind_of(m, at) == MF_POS_LAYER) {
            has |= mf_position_is_moe(m, at) ? MF_RECOMPUTE_MOE : MF_RECOMPUTE_MLP;
        }
    }
    return has;
}

static void choose(const mf_problem *p, int i, mf_layout *l) {
    mf_fit_choose_zero(p, usual[i].zero, l);
    if (!(p->pinned & MF_PIN(RECOMPUTE))) {
        l->memory.recompute = usual[i].recompute & modules_of(p->model);
    }
    if (!(p->pinned & MF_PIN(OFFLOAD))) {
        l->memory.offload = 0;
    }
}

/* Exchanges that take least time as a rule, not least memory. */
static void exchange_fast(const mf_problem *p, mf_layout *l) {
    const uint32_t dispatchers = p->limits.dispatchers;
    if (l->ep > 1 && !(p->pinned & MF_PIN(DISPATCHER)) &&
        (dispatchers == 0 || (dispatchers >> MF_DISPATCH_FUSED & 1u) != 0)) {
        l->dispatcher = MF_DISPATCH_FUSED;
    }
    if (l->cp > 1 && !(p->pinned & MF_PIN(CP_TYPE))) {
        l->cp_type = MF_CP_ALLGATHER;
    }
}

/* Chunks a stage, which shorten a pipeline's bubble: the most that are valid, of those into which
 * the layers fall evenly where there are such. 0: none is. */
static int64_t most_chunks(const mf_model *m, mf_layout l) {
    int64_t most = 0;
    for (l.vpp = 1; l.vpp <= MF_FIT_TIMED_CHUNKS; l.vpp++) {
        const bool even = mf_model_positions(m) % (l.pp * l.vpp) == 0;
        const bool before = most > 1 && mf_model_positions(m) % (l.pp * most) == 0;
        most = mf_layout_valid(&l, m) && (even || !before) ? l.vpp : most;
    }
    return most;
}

/* The layout in this order, with fast exchanges. False: that is no layout of the space. */
static bool order_so(const mf_problem *p, mf_schedule_kind kind, mf_layout *l) {
    const uint32_t schedules = p->limits.schedules;
    if (((p->pinned & MF_PIN(SCHEDULE)) != 0 && p->base.schedule != kind) ||
        (schedules != 0 && (schedules >> kind & 1u) == 0)) {
        return false;
    }
    exchange_fast(p, l);
    l->schedule = kind;
    l->vpp = (p->pinned & MF_PIN(VPP)) != 0 || l->pp == 1 ? l->vpp : most_chunks(p->model, *l);
    return l->vpp > 0 && mf_layout_valid(l, p->model);
}

/* --- one combination -------------------------------------------------------------------------- */

/* Makes *l the layout that would run. */
static mf_status simulate(const mf_problem *p, mf_layout *l, double *step_s, mf_err *e) {
    const mf_sim_options o = {.routing = p->routing, .sums = true};
    mf_assignment a;
    mf_program *program = NULL;
    mf_sim *sim = NULL;
    mf_status s = mf_planner_lay_out(p, l, &a, e);
    if (s == MF_OK) {
        s = mf_program_lower(p->model, l, mf_cost_cluster(p->cost), &a, &program, e);
    }
    s = s == MF_OK ? mf_sim_step(p->cost, program, &o, &sim, e) : s;
    *step_s = s == MF_OK ? sim->step_time_s : (double)INFINITY;
    mf_sim_destroy(sim);
    mf_program_destroy(program);
    return s;
}

/* Times the first of the usual choices that fits, and keeps it if it is faster than what is known.
 */
static mf_status time_order(const mf_problem *p, mf_fit_judge *j, const mf_layout *order,
                            mf_fit_entry *x, mf_err *e) {
    for (int i = 0; i < USUAL; i++) {
        mf_layout l = *order;
        bool fits = false;
        double step_s, peak_B;
        choose(p, i, &l);
        mf_status s = mf_fit_judge_fits(j, &l, &fits, &peak_B, e);
        s = s == MF_OK && fits ? simulate(p, &l, &step_s, e) : s;
        if (s == MF_OK && fits && (!x->timed || step_s < x->step_time_s)) {
            x->timed = true;
            x->step_time_s = step_s;
            x->timed_layout = l;
            x->timed_peak_B = peak_B;
        }
        if (s != MF_OK || fits) {
            return s;
        }
    }
    return MF_OK;
}

/* Where no order fits with fast exchanges, the entry's own exchanges are timed; where no usual
 * memory choice fits, the entry as it is, if that fits. */
static mf_status time_entry(const mf_problem *p, mf_fit_judge *j, mf_fit_entry *x, mf_err *e) {
    static const mf_schedule_kind orders[] = {MF_SCHED_1F1B, MF_SCHED_INTERLEAVED, MF_SCHED_MERGED};
    mf_status s = MF_OK;
    for (size_t i = 0; i < sizeof orders / sizeof orders[0] && s == MF_OK; i++) {
        mf_layout l = x->layout;
        if (order_so(p, orders[i], &l)) {
            s = time_order(p, j, &l, x, e);
        }
    }
    s = s == MF_OK && !x->timed ? time_order(p, j, &x->layout, x, e) : s;
    if (s != MF_OK || x->timed) {
        return s;
    }
    x->timed_layout = x->layout;
    s = mf_fit_judge_fits(j, &x->layout, &x->timed, &x->timed_peak_B, e);
    return s == MF_OK && x->timed ? simulate(p, &x->timed_layout, &x->step_time_s, e) : s;
}

/* --- all that there is time for --------------------------------------------------------------- */

typedef struct timing {
    const mf_problem *p;
    const mf_fit_options *o;
    mf_fit_entry *const *entry; /* [count], borrowed */
    int64_t count, next;
    mf_status status;
    mf_err *e;
    pthread_mutex_t lock; /* over next, status and e */
} timing;

static mf_fit_entry *take(timing *t) {
    mf_fit_entry *x = NULL;
    pthread_mutex_lock(&t->lock);
    if (mf_flag_is_set(t->o->cancel) && t->status == MF_OK) {
        t->status = mf_err_set(t->e, MF_INTERRUPTED, "interrupted");
    }
    if (t->status == MF_OK && t->next < t->count) {
        x = t->entry[t->next++];
    }
    pthread_mutex_unlock(&t->lock);
    return x;
}

static void time_entries(void *self, mf_fit_judge *judge) {
    timing *t = self;
    for (mf_fit_entry *x; (x = take(t)) != NULL;) {
        mf_err e;
        mf_err_clear(&e);
        const mf_status s = time_entry(t->p, judge, x, &e);
        pthread_mutex_lock(&t->lock);
        if (s != MF_OK && t->status == MF_OK) {
            t->status = mf_err_set(t->e, s, "%s", e.text);
        }
        pthread_mutex_unlock(&t->lock);
    }
}

/* Those that divide a layer and its batch least: they are the fastest, as a rule. */
static int by_promise(const void *a, const void *b) {
    const mf_layout *l = &(*(mf_fit_entry *const *)a)->layout,
                    *m = &(*(mf_fit_entry *const *)b)->layout;
    const int64_t keys[][2] = {{l->tp * l->cp * l->etp, m->tp * m->cp * m->etp},
                               {l->tp * l->cp * l->pp, m->tp * m->cp * m->pp},
                               {l->ep, m->ep},
                               {l->tp, m->tp},
                               {l->cp, m->cp},
                               {l->pp, m->pp},
                               {l->etp, m->etp}};
    return mf_space_compare(keys, sizeof keys / sizeof keys[0]);
}

/* Simulated passes of a step, which its time to simulate grows with. */
static int64_t work_of(const mf_layout *l) {
    return MF_FIT_TIMED_US + MF_FIT_TIMED_PASS_NS * l->pp * l->micro_batches / 1000;
}

/* The timed ones first, fastest first; the others as they stand. */
static int by_time(const void *a, const void *b) {
    const mf_fit_entry *x = a, *y = b;
    if (x->timed != y->timed) {
        return y->timed - x->timed;
    }
    if (x->timed && x->step_time_s != y->step_time_s) {
        return x->step_time_s < y->step_time_s ? -1 : 1;
    }
    return mf_fit_by_headroom(a, b);
}

/* Makes memory of an entry exact: of its leanest choices, and of those that are timed; a search's
 * plans have theirs. */
static mf_status make_exact(mf_fit_judge *judge, mf_fit_entry *x, mf_err *e) {
    mf_status s = x->exact ? MF_OK : mf_fit_judge_exact(judge, x, e);
    if (s == MF_OK && x->timed && !x->searched) {
        mf_fit_entry timed = {.layout = x->timed_layout};
        s = mf_fit_judge_exact(judge, &timed, e);
        x->timed_peak_B = timed.peak_B;
    }
    return s;
}

mf_status mf_planner_fit_rank(const mf_problem *p, const mf_fit_options *o, mf_fit_result *r,
                              mf_err *e) {
    mf_fit_judge *judge = NULL;
    mf_status s = mf_fit_judge_create(p, &judge, e);
    r->timed = 0;
    for (int64_t i = 0; i < r->feasible; i++) {
        r->timed += r->entry[i].timed;
    }
    if (r->feasible > 0) {
        qsort(r->entry, (size_t)r->feasible, sizeof *r->entry, by_time);
    }
    for (int64_t i = 0; i < r->feasible && i < o->shown && s == MF_OK; i++) {
        s = make_exact(judge, &r->entry[i], e);
    }
    mf_fit_judge_destroy(judge);
    return s;
}

mf_status mf_planner_fit_time(const mf_problem *p, const mf_fit_options *o, int64_t work_us,
                              mf_fit_result *r, mf_err *e) {
    mf_fit_entry **entry = malloc(((size_t)r->feasible + 1) * sizeof *entry);
    mf_fit_crew crew = {0};
    timing t = {.p = p, .o = o, .entry = entry, .status = MF_OK, .e = e};
    if (entry == NULL || pthread_mutex_init(&t.lock, NULL) != 0) {
        free(entry);
        return mf_err_set(e, MF_NOMEM, "fit: out of memory");
    }
    for (int64_t i = 0; i < r->feasible; i++) {
        entry[i] = &r->entry[i];
    }
    qsort(entry, (size_t)r->feasible, sizeof(mf_fit_entry *), by_promise);
    for (int64_t left_us = work_us; t.count < r->feasible && left_us > 0; t.count++) {
        left_us -= work_of(&entry[t.count]->layout);
    }
    mf_status s = mf_fit_crew_init(&crew, p, o->threads, e);
    if (s == MF_OK) {
        mf_fit_crew_run(&crew, time_entries, &t);
        s = t.status;
    }
    mf_fit_crew_clear(&crew);
    pthread_mutex_destroy(&t.lock);
    free(entry);
    mf_fit_options quick = *o;
    quick.shown = 0;
    mf_status ranked = mf_planner_fit_rank(p, &quick, r, s == MF_OK ? e : NULL);
    return s == MF_OK ? ranked : s;
}
