/* local_search.c - a better split of the positions, from a good one.
 *
 * The longest path says how often a step passes through each virtual stage: a layer counts for
 * more where it passes often. The moves that promise most are played, memory choices refilled on
 * the stages that change, and the best is made, be the step a little longer for it: what stands
 * badly at one end often has to pass through several stages. The shortest step of all is kept.
 *
 * What plays alike may differ by a few per cent once it is simulated, with all that passes lose to
 * each other: a search's best plan is improved by simulated steps, too, by moves away from where a
 * position weighs more on the longest path.
 */
#include "planner/assign/assign.h"
#include "planner/bound/stage_bound.h"
#include "planner/tuning/limits.h"

#include <stdlib.h>
#include <string.h>

typedef struct state {
    int *first;     /* [vstages + 1] */
    int32_t *count; /* [cells] */
    double time_s;
    double *weight_s; /* [vstages] what one more main layer adds to the longest path */
} state;

typedef struct improving {
    mf_partition *in;
    double *free_B; /* [stages] */
    double *pair_s;
    int64_t until_ns; /* in->effort_ns at which it ends */
    mf_order_path path;
    state now, next, best; /* best: of the moves of a round */
    state least;           /* of all */
    int from[MF_MOVE_PATIENCE], to[MF_MOVE_PATIENCE],
        made; /* moves since then, not to be taken back */
} improving;

static bool state_init(const mf_partition *in, state *s) {
    size_t n = (size_t)in->vstages;
    s->first = calloc(n + 1, sizeof *s->first);
    s->count = calloc(mf_partition_cells(in), sizeof *s->count);
    s->weight_s = calloc(n, sizeof *s->weight_s);
    return s->first && s->count && s->weight_s;
}

static void state_clear(state *s) {
    free(s->first);
    free(s->count);
    free(s->weight_s);
}

static void swap(state *a, state *b) {
    state t = *a;
    *a = *b;
    *b = t;
}

/* A slot of layers: the one that has most positions. */
static int main_slot(const mf_partition *in) {
    int best = 0;
    for (int s = 1; s < in->slots; s++) {
        int n = in->slot[s].count;
        best = n > in->slot[best].count ? s : best;
    }
    return best;
}

static void weigh_vstages(const improving *w, double *weight_s) {
    const mf_partition *in = w->in;
    int slot = main_slot(in);
    for (int v = 0; v < in->vstages; v++) {
        const mf_partition_class *c = mf_partition_class_at(in, v, slot);
        weight_s[v] = 0.0;
        for (int p = 0; p < MF_ORDER_PARTS; p++) {
            double n = w->path.count[p][v];
            weight_s[v] += n > 0.0 ? n * c->least_s[p] : 0.0;
        }
    }
}

bool mf_partition_is_split(const mf_partition *in, const int *first) {
    for (int v = 0; v < in->vstages; v++) {
        if (first[v + 1] <= first[v]) {
            return false;
        }
        for (int i = first[v]; i < first[v + 1]; i++) {
            const mf_partition_slot *s = &in->slot[in->slot_at[i]];
            if (v < s->v_lo || v > s->v_hi) {
                return false;
            }
        }
    }
    return true;
}

/* Refills the stages whose positions differ from those of `from`, and plays if that fits. */
static mf_status evaluate(improving *w, const state *from, state *s, bool *fits, mf_err *e) {
    mf_partition *in = w->in;
    *fits = true;
    memcpy(s->count, from->count, mf_partition_cells(in) * sizeof *s->count);
    for (int p = 0; p < in->stages && *fits; p++) {
        bool differs = false;
        for (int c = 0; c < in->chunks; c++) {
            int v = (int)mf_layout_vstage(&in->layout, p, c);
            differs =
                differs || s->first[v] != from->first[v] || s->first[v + 1] != from->first[v + 1];
        }
        if (differs) {
            *fits = mf_partition_fill_stage(in, s->first, p, w->free_B[p], s->count);
        }
    }
    if (!*fits) {
        return MF_OK;
    }
    mf_status status = mf_partition_play_counts(in, s->first, s->count, w->pair_s, &w->path, e);
    s->time_s = w->path.time_s;
    weigh_vstages(w, s->weight_s);
    return status;
}

typedef struct move {
    int from, to;
    double gain_s;
} move;

/* The moves that promise most, best first. */
static int find_moves(const improving *w, move out[MF_MOVES]) {
    const mf_partition *in = w->in;
    const state *s = &w->now;
    int n = 0;
    for (int from = 0; from < in->vstages; from++) {
        for (int to = 0; to < in->vstages && s->first[from + 1] - s->first[from] > 1; to++) {
            double gain_s = s->weight_s[from] - s->weight_s[to];
            if (from == to || gain_s <= 0.0 || (n == MF_MOVES && gain_s <= out[n - 1].gain_s)) {
                continue;
            }
            int at = n < MF_MOVES ? n++ : n - 1;
            while (at > 0 && out[at - 1].gain_s < gain_s) {
                out[at] = out[at - 1];
                at--;
            }
            out[at] = (move){from, to, gain_s};
        }
    }
    return n;
}

/* Would the move take back one that was made since the shortest step? */
static bool takes_back(const improving *w, const move *m) {
    for (int i = 0; i < w->made; i++) {
        if (w->from[i] == m->to && w->to[i] == m->from) {
            return true;
        }
    }
    return false;
}

static void keep(const mf_partition *in, const state *from, state *to) {
    memcpy(to->first, from->first, (size_t)(in->vstages + 1) * sizeof *to->first);
    memcpy(to->count, from->count, mf_partition_cells(in) * sizeof *to->count);
    to->time_s = from->time_s;
}

/* One round; *moved tells whether any move could be made. */
static mf_status make_best_move(improving *w, bool *moved, mf_err *e) {
    const mf_partition *in = w->in;
    move moves[MF_MOVES];
    int n = find_moves(w, moves), made = -1;
    mf_status status = MF_OK;
    for (int i = 0; i < n && status == MF_OK; i++) {
        bool fits;
        memcpy(w->next.first, w->now.first, (size_t)(in->vstages + 1) * sizeof *w->now.first);
        mf_partition_shift(w->next.first, moves[i].from, moves[i].to);
        if (takes_back(w, &moves[i]) || !mf_partition_is_split(in, w->next.first)) {
            continue;
        }
        status = evaluate(w, &w->now, &w->next, &fits, e);
        if (status == MF_OK && fits && (made < 0 || w->next.time_s < w->best.time_s)) {
            swap(&w->next, &w->best);
            made = i;
        }
    }
    *moved = made >= 0;
    if (*moved) {
        swap(&w->now, &w->best);
        w->from[w->made] = moves[made].from;
        w->to[w->made++] = moves[made].to;
    }
    return status;
}

/* Moves on until the step has not become shorter for a while. */
static mf_status move_on(improving *w, bool *better, mf_err *e) {
    mf_status status = MF_OK;
    bool moved = true;
    for (int round = 0; round < MF_MOVE_ROUNDS && w->made < MF_MOVE_PATIENCE && moved &&
                        status == MF_OK && *w->in->effort_ns < w->until_ns;
         round++) {
        status = make_best_move(w, &moved, e);
        if (status == MF_OK && moved && w->now.time_s < w->least.time_s * (1.0 - 1e-6)) {
            keep(w->in, &w->now, &w->least);
            *better = true;
            w->made = 0;
        }
    }
    return status;
}

static bool improving_init(improving *w, mf_partition *in, mf_err *e) {
    size_t stages = (size_t)in->stages, chunks = (size_t)in->chunks;
    memset(w, 0, sizeof *w);
    w->in = in;
    w->free_B = calloc(stages, sizeof *w->free_B);
    w->pair_s = calloc(stages * chunks * chunks, sizeof *w->pair_s);
    bool good = state_init(in, &w->now);
    good = state_init(in, &w->next) && good;
    good = state_init(in, &w->best) && good;
    good = state_init(in, &w->least) && good;
    return good && w->free_B && w->pair_s && mf_order_path_init(&w->path, in->vstages, e) == MF_OK;
}

static void improving_clear(improving *w) {
    state_clear(&w->now);
    state_clear(&w->next);
    state_clear(&w->best);
    state_clear(&w->least);
    free(w->free_B);
    free(w->pair_s);
    mf_order_path_clear(&w->path);
}

mf_status mf_partition_improve(mf_partition *in, double hopeless_s, int64_t effort_ns, int *first,
                               mf_assignment *out, double *time_s, mf_err *e) {
    improving w;
    size_t bytes = (size_t)(in->vstages + 1) * sizeof *first;
    mf_status status = improving_init(&w, in, e) ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
    if (status != MF_OK) {
        goto out;
    }
    w.until_ns = *in->effort_ns + effort_ns;
    memcpy(w.now.first, first, bytes);
    for (int p = 0; p < in->stages; p++) {
        w.free_B[p] = in->usable_B;
    }
    status = mf_partition_fill_checked(in, first, false, w.free_B, w.now.count, out, e);
    if (status == MF_OK) {
        status = mf_partition_play_counts(in, first, w.now.count, w.pair_s, &w.path, e);
        w.now.time_s = w.path.time_s;
        weigh_vstages(&w, w.now.weight_s);
    }
    bool better = false;
    *time_s = w.now.time_s;
    if (status == MF_OK && w.now.time_s < hopeless_s &&
        mf_uses(in->evaluator->without, MF_MECHANISM_LOCAL_SEARCH)) {
        keep(in, &w.now, &w.least);
        status = move_on(&w, &better, e);
    }
    if (status == MF_OK && better) { /* the memory plan has the last word */
        mf_assignment improved;
        status = mf_partition_fill_checked(in, w.least.first, false, w.free_B, w.least.count,
                                           &improved, e);
        if (status == MF_OK) {
            *out = improved;
            *time_s = w.least.time_s;
            memcpy(first, w.least.first, bytes);
        }
        status = status == MF_INFEASIBLE ? MF_OK : status;
    }
out:
    improving_clear(&w);
    return status;
}

/* --- by simulated steps ----------------------------------------------------------------------- */

/* Does a position weigh more on the longest path where it stands than at `to`? */
static bool is_promising(const improving *w, int from, int to) {
    return w->now.weight_s[from] > w->now.weight_s[to];
}

/* Moves one position and simulates what that makes; *better: it fits and takes less than *best_s,
 * the new best. */
static mf_status try_move(improving *w, int from, int to, mf_assignment *out, double *best_s,
                          int64_t *simulated, bool *better, mf_err *e) {
    mf_partition *in = w->in;
    const mf_evaluator_ops *ops = in->evaluator->ops;
    mf_assignment moved;
    mf_step step = {0};
    bool fits = false;
    *better = false;
    memcpy(w->next.first, w->now.first, (size_t)(in->vstages + 1) * sizeof *w->now.first);
    mf_partition_shift(w->next.first, from, to);
    if (!mf_partition_is_split(in, w->next.first)) {
        return MF_OK;
    }
    mf_status status = evaluate(w, &w->now, &w->next, &fits, e);
    if (status != MF_OK || !fits || w->next.time_s >= MF_STEP_SEARCH_WORSE * w->now.time_s) {
        return status;
    }
    status = mf_partition_write(in, w->next.count, &moved, e);
    status =
        status == MF_OK ? ops->play(in->evaluator->self, &in->layout, &moved, &step, e) : status;
    ++*simulated;
    *in->effort_ns += mf_partition_step_ns(in);
    if (status != MF_OK || !step.fits || step.time_s >= *best_s * (1.0 - 1e-6)) {
        return status;
    }
    const double time_s = step.time_s;
    status = ops->fit(in->evaluator->self, &in->layout, &moved, 0, &step, e);
    *in->effort_ns += mf_evaluator_memory_ns(in->positions, step.looks);
    if (status == MF_OK && step.fits) {
        *better = true;
        *out = moved;
        *best_s = time_s;
        swap(&w->now, &w->next);
    }
    return status;
}

/* Moves that promise something between virtual stages so far apart, from each to both sides. */
static mf_status try_moves(improving *w, int apart, mf_assignment *out, double *best_s,
                           int64_t *simulated, bool *better, mf_err *e) {
    const int vstages = w->in->vstages;
    mf_status status = MF_OK;
    *better = false;
    for (int k = 0; k < 2 * vstages && status == MF_OK && *w->in->effort_ns < w->until_ns; k++) {
        const int from = k / 2, to = k % 2 == 0 ? from - apart : from + apart;
        bool one = false;
        if (to >= 0 && to < vstages && is_promising(w, from, to)) {
            status = try_move(w, from, to, out, best_s, simulated, &one, e);
        }
        *better = *better || one;
    }
    return status;
}

mf_status mf_partition_improve_step(mf_partition *in, int64_t effort_ns, mf_assignment *out,
                                    double *best_s, int64_t *simulated, mf_err *e) {
    improving w;
    mf_assignment filled;
    mf_status status = improving_init(&w, in, e) ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
    if (status == MF_OK) {
        for (int v = 0; v <= in->vstages; v++) {
            w.now.first[v] = out->first[v];
        }
        for (int p = 0; p < in->stages; p++) {
            w.free_B[p] = in->usable_B;
        }
        status =
            mf_partition_fill_checked(in, w.now.first, false, w.free_B, w.now.count, &filled, e);
    }
    if (status == MF_OK) {
        status = mf_partition_play_counts(in, w.now.first, w.now.count, w.pair_s, &w.path, e);
        w.now.time_s = w.path.time_s;
        weigh_vstages(&w, w.now.weight_s);
    }
    w.until_ns = *in->effort_ns + effort_ns;
    int more = MF_STEP_SEARCH_MORE; /* times that it may go on */
    for (int apart = 1; apart < in->vstages && status == MF_OK && *in->effort_ns < w.until_ns;) {
        const double before_s = *best_s;
        bool better;
        status = try_moves(&w, apart, out, best_s, simulated, &better, e);
        if (*best_s < before_s * (1.0 - MF_STEP_SEARCH_GAIN) && more > 0) {
            w.until_ns = *in->effort_ns + effort_ns;
            more--;
        }
        apart = better ? 1 : apart + 1;
    }
    improving_clear(&w);
    return status == MF_INFEASIBLE ? MF_OK : status;
}
