/* choice_search.c - better memory choices for the split of a plan, by simulated steps.
 *
 * Filling a stage weighs bytes by seconds, wherever these are spent. But a step waits for some
 * virtual stages more often than for others. So layers of a stage exchange memory: one takes a
 * faster choice where the longest path passes often, others a smaller one where it passes seldom.
 * Plays say what an exchange promises, simulated steps what it is worth: those that promise most
 * come first, and one is kept where the step becomes shorter and the plan fits.
 */
#include "planner/assign/assign.h"
#include "planner/tuning/limits.h"

#include <stdlib.h>
#include <string.h>

/* Layers of a slot on a virtual stage take another choice. */
typedef struct change {
    int v, slot, from, to, layers;
    double more_s; /* that the order plays longer */
} change;

typedef struct exchange {
    change faster, smaller; /* smaller: of no layers where there is memory without */
    double gain_s;
} exchange;

/* Changes of the layers of a stage, the one that adds least first. */
typedef struct change_list {
    int count;
    change *it;
} change_list;

typedef struct searching {
    mf_partition *in;
    const int *first; /* positions, as they stay */
    int32_t *count;   /* [cells] of the best plan */
    double *free_B;   /* [stages] bytes at most */
    bool missed;      /* some stage was found too large that was thought to fit */
    double *pair_s;
    mf_order_path path, changed; /* of the counts, and with a change */
    change_list faster, smaller;
    exchange listed[MF_EXCHANGES];
    int exchanges;
    int64_t until_ns; /* in->effort_ns at which it ends */
    int64_t simulated;
} searching;

static bool has_effort(const searching *w) {
    return *w->in->effort_ns < w->until_ns;
}

/* Counts of a plan. False: some choice of it is beaten by another one. */
static bool count_plan(const mf_partition *in, const mf_assignment *plan, int32_t *count) {
    for (int v = 0; v < in->vstages; v++) {
        for (int i = plan->first[v]; i < plan->first[v + 1]; i++) {
            const int slot = in->slot_at[i];
            const int m =
                mf_partition_choice_of(mf_partition_class_at(in, v, slot), plan->memory[i]);
            if (m < 0) {
                return false;
            }
            count[mf_partition_cell(in, v, slot, m)]++;
        }
    }
    return true;
}

/* --- changes ---------------------------------------------------------------------------------- */

/* by: 1, or -1 to take it back. */
static void apply(searching *w, const change *x, int by) {
    w->count[mf_partition_cell(w->in, x->v, x->slot, x->from)] -= by * x->layers;
    w->count[mf_partition_cell(w->in, x->v, x->slot, x->to)] += by * x->layers;
}

static bool has_layers(const searching *w, const change *x) {
    return w->count[mf_partition_cell(w->in, x->v, x->slot, x->from)] >= x->layers;
}

static mf_status list_change(searching *w, change_list *list, change x, mf_err *e) {
    apply(w, &x, 1);
    mf_status status =
        mf_partition_play_counts(w->in, w->first, w->count, w->pair_s, &w->changed, e);
    apply(w, &x, -1);
    x.more_s = w->changed.time_s - w->path.time_s;
    int at = list->count++;
    while (at > 0 && list->it[at - 1].more_s > x.more_s) {
        list->it[at] = list->it[at - 1];
        at--;
    }
    list->it[at] = x;
    return status;
}

/* Does the longest path pass through a virtual stage? If not, nothing gains there. */
static bool is_on_path(const searching *w, int v) {
    for (int p = 0; p < MF_ORDER_GATHER; p++) {
        if (w->path.count[p][v] > 0.0) {
            return true;
        }
    }
    return false;
}

/* Changes of a slot's layers on v: of one to what keeps more, or of one or two to what keeps less.
 */
static mf_status find_changes_of(searching *w, int v, int slot, bool smaller, mf_err *e) {
    const mf_partition_class *c = mf_partition_class_at(w->in, v, slot);
    const int32_t *count = &w->count[mf_partition_cell(w->in, v, slot, 0)];
    change_list *list = smaller ? &w->smaller : &w->faster;
    mf_status status = MF_OK;
    for (int m = 0; m < c->choices; m++) {
        for (int to = 0; to < c->choices && count[m] > 0; to++) {
            const double more_B = c->choice[to].cost.saved_B - c->choice[m].cost.saved_B;
            if (smaller ? more_B >= 0.0 : more_B <= 0.0) {
                continue;
            }
            const int most = smaller && count[m] > 1 ? 2 : 1;
            for (int k = 1; k <= most && status == MF_OK && has_effort(w); k++) {
                status = list_change(w, list, (change){v, slot, m, to, k, 0.0}, e);
            }
        }
    }
    return status;
}

static mf_status find_changes(searching *w, int stage, bool smaller, mf_err *e) {
    const mf_partition *in = w->in;
    mf_status status = MF_OK;
    for (int k = 0; k < in->chunks; k++) {
        const int v = (int)mf_layout_vstage(&in->layout, stage, k);
        for (int s = 0; s < in->slots && status == MF_OK && (smaller || is_on_path(w, v)); s++) {
            if (v >= in->slot[s].v_lo && v <= in->slot[s].v_hi) {
                status = find_changes_of(w, v, s, smaller, e);
            }
        }
    }
    return status;
}

/* --- exchanges -------------------------------------------------------------------------------- */

/* Makes an exchange if the layers are there and the stage is not too large then. */
static bool make(searching *w, const exchange *x) {
    const int stage = (int)mf_layout_stage_of(&w->in->layout, x->faster.v);
    if (!has_layers(w, &x->faster)) {
        return false;
    }
    apply(w, &x->faster, 1);
    if (has_layers(w, &x->smaller)) {
        apply(w, &x->smaller, 1);
        if (mf_partition_stage_B(w->in, w->count, stage) <= w->free_B[stage]) {
            return true;
        }
        apply(w, &x->smaller, -1);
    }
    apply(w, &x->faster, -1);
    return false;
}

static void take_back(searching *w, const exchange *x) {
    apply(w, &x->smaller, -1);
    apply(w, &x->faster, -1);
}

/* Does it promise something, and more than the last one of a full list? */
static bool is_wanted(const searching *w, double gain_s) {
    return gain_s > MF_STEP_SHORTER * w->path.time_s &&
           (w->exchanges < MF_EXCHANGES || gain_s > w->listed[w->exchanges - 1].gain_s);
}

static void list_exchange(searching *w, const exchange *x) {
    int at = w->exchanges < MF_EXCHANGES ? w->exchanges++ : w->exchanges - 1;
    while (at > 0 && w->listed[at - 1].gain_s < x->gain_s) {
        w->listed[at] = w->listed[at - 1];
        at--;
    }
    w->listed[at] = *x;
}

/* Lists a faster choice with the smaller ones that add least, of those that make it fit. */
static void list_best(searching *w, const change *faster) {
    exchange x = {.faster = *faster, .gain_s = -faster->more_s};
    for (int k = 0; is_wanted(w, x.gain_s); k++) {
        if (make(w, &x)) {
            take_back(w, &x);
            list_exchange(w, &x);
            return;
        }
        if (k == w->smaller.count) {
            return;
        }
        x.smaller = w->smaller.it[k];
        x.gain_s = -faster->more_s - x.smaller.more_s;
    }
}

static mf_status find_exchanges(searching *w, int stage, mf_err *e) {
    w->faster.count = w->smaller.count = 0;
    mf_status status = find_changes(w, stage, false, e);
    if (status == MF_OK && w->faster.count > 0 && is_wanted(w, -w->faster.it[0].more_s)) {
        status = find_changes(w, stage, true, e);
    }
    for (int i = 0; i < w->faster.count && status == MF_OK; i++) {
        list_best(w, &w->faster.it[i]);
    }
    return status;
}

/* --- steps ------------------------------------------------------------------------------------ */

/* A stage is larger than it was thought to be: it may take that much less. */
static void note_miss(searching *w, const mf_step *step) {
    const int stage = (int)step->stage;
    const double over_B = step->peak_B - step->usable_B;
    const double free_B = mf_partition_stage_B(w->in, w->count, stage) - over_B;
    if (over_B > 0.0 && free_B < w->free_B[stage]) {
        w->free_B[stage] = free_B;
        w->missed = true;
    }
}

/* Simulates what the counts make; *better: it fits and takes less than *best_s, the new best. */
static mf_status simulate(searching *w, mf_assignment *out, double *best_s, bool *better,
                          mf_err *e) {
    mf_partition *in = w->in;
    const mf_evaluator_ops *ops = in->evaluator->ops;
    mf_assignment plan;
    mf_step step = {0};
    mf_status status = mf_partition_write(in, w->count, &plan, e);
    status =
        status == MF_OK ? ops->play(in->evaluator->self, &in->layout, &plan, &step, e) : status;
    w->simulated++;
    *in->effort_ns += mf_partition_step_ns(in);
    *better = status == MF_OK && step.fits && step.time_s < *best_s * (1.0 - MF_STEP_SHORTER);
    const double time_s = step.time_s;
    if (*better) {
        status = ops->fit(in->evaluator->self, &in->layout, &plan, 0, &step, e);
        *in->effort_ns += mf_evaluator_memory_ns(in->positions, step.looks);
        *better = status == MF_OK && step.fits;
    }
    if (*better) {
        *out = plan;
        *best_s = time_s;
    } else if (status == MF_OK && !step.fits) {
        note_miss(w, &step);
    }
    return status;
}

/* Exchanges that promise something, best first. */
static mf_status try_exchanges(searching *w, mf_assignment *out, double *best_s, bool *better,
                               mf_err *e) {
    mf_partition *in = w->in;
    mf_status status = mf_partition_play_counts(in, w->first, w->count, w->pair_s, &w->path, e);
    *better = w->missed = false;
    w->exchanges = 0;
    for (int p = 0; p < in->stages && status == MF_OK; p++) {
        status = find_exchanges(w, p, e);
    }
    for (int i = 0; i < w->exchanges && status == MF_OK && has_effort(w); i++) {
        bool one = false;
        if (!make(w, &w->listed[i])) {
            continue;
        }
        status = simulate(w, out, best_s, &one, e);
        if (!one) {
            take_back(w, &w->listed[i]);
        }
        *better = *better || one;
    }
    return status;
}

static bool searching_init(searching *w, mf_partition *in, mf_err *e) {
    const size_t stages = (size_t)in->stages, chunks = (size_t)in->chunks;
    const size_t changes = 2 * (size_t)in->positions * MF_CATALOGUE_MAX;
    memset(w, 0, sizeof *w);
    w->in = in;
    w->count = calloc(mf_partition_cells(in), sizeof *w->count);
    w->free_B = calloc(stages, sizeof *w->free_B);
    w->pair_s = calloc(stages * chunks * chunks, sizeof *w->pair_s);
    w->faster.it = calloc(changes, sizeof *w->faster.it);
    w->smaller.it = calloc(changes, sizeof *w->smaller.it);
    bool good = mf_order_path_init(&w->path, in->vstages, e) == MF_OK;
    good = mf_order_path_init(&w->changed, in->vstages, e) == MF_OK && good;
    return good && w->count && w->free_B && w->pair_s && w->faster.it && w->smaller.it;
}

static void searching_clear(searching *w) {
    free(w->count);
    free(w->free_B);
    free(w->pair_s);
    free(w->faster.it);
    free(w->smaller.it);
    mf_order_path_clear(&w->path);
    mf_order_path_clear(&w->changed);
}

mf_status mf_partition_improve_choices(mf_partition *in, int64_t effort_ns, mf_assignment *out,
                                       double *best_s, int64_t *simulated, mf_err *e) {
    searching w;
    mf_status status = searching_init(&w, in, e) ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
    bool better = status == MF_OK && count_plan(in, out, w.count);
    for (int p = 0; p < in->stages && better; p++) {
        w.free_B[p] = in->usable_B;
    }
    w.first = out->first;
    w.until_ns = *in->effort_ns + effort_ns;
    int more = MF_STEP_SEARCH_MORE; /* times that it may go on */
    while (status == MF_OK && (better || w.missed) && has_effort(&w)) {
        const double before_s = *best_s;
        status = try_exchanges(&w, out, best_s, &better, e);
        if (*best_s < before_s * (1.0 - MF_STEP_SEARCH_GAIN) && more > 0) {
            w.until_ns = *in->effort_ns + effort_ns;
            more--;
        }
    }
    *simulated += w.simulated;
    searching_clear(&w);
    return status;
}
