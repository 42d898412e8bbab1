/* fill.c - memory choices for a given split of the positions.
 *
 * Stages do not compete for memory, so each is filled on its own: every layer starts at its fastest
 * choice; while the stage is too large, the one change that saves most bytes for each second is
 * made. The evaluator's memory plan has the last word: where it finds a stage too large still, the
 * stage is filled again with that much less memory.
 */
#include "planner/assign/assign.h"
#include "planner/bound/stage_bound.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CHUNKS = 256 };

/* A chunk as the memory plan walks it (core/memory/memory.c): what stays, and what is needed beyond
 * it while the chunk itself runs. */
typedef struct chunk_bytes {
    double saved, held, extra_f, extra_b; /* extra_b: of weight gradients, too */
    double persistent, comm, gather, boundary;
} chunk_bytes;

typedef struct filling {
    const mf_partition *in;
    int32_t *count; /* [cells] */
    const int *first;
    int stage;
    double alone;                  /* alone_share of the stage */
    chunk_bytes chunk[MAX_CHUNKS]; /* of the stage, as of count */
} filling;

/* Seconds of a layer by micro-batch, beside layers that copy nothing: merged, those of the warm-up
 * and of its mirror image run alone. */
static double time_of(const filling *f, const mf_partition_class *c, int m) {
    const mf_partition_choice *x = &c->choice[m];
    double alone_s = x->cost.f.time_s + x->cost.b.time_s + x->cost.w.time_s;
    alone_s += x->inside_f_s + x->inside_b_s;
    return f->in->merged ? x->apart_s + f->alone * (alone_s - x->apart_s) : alone_s;
}

/* Extra time when layers that copy run beside layers that copy. They come first on a virtual stage
 * and backward passes run from its end, so no two of `copies` among n layers meet until they are
 * more than half. met_s: the extra time if each of them meets one. */
static double meeting_s(int n, int copies, double met_s) {
    return 2 * copies > n ? met_s * (2 * copies - n) / copies : 0.0;
}

static int copies_of(const mf_partition_class *c, int m) {
    return c->choice[m].memory.offload != 0;
}

static double met_of(const filling *f, const mf_partition_class *c, int m) {
    const mf_partition_choice *x = &c->choice[m];
    return f->in->merged ? (1.0 - f->alone) * mf_larger(x->pair_s - x->apart_s, 0.0) : 0.0;
}

/* What it takes more as the last of its virtual stage. */
static double end_of(const filling *f, const mf_partition_class *c, int m) {
    const mf_partition_choice *x = &c->choice[m];
    const double alone_s = mf_partition_ends_later_s(x);
    return f->in->merged ? x->end_own_s + f->alone * (alone_s - x->end_own_s) : alone_s;
}

/* The same of the layer that is written last, with one of choice m less. */
static double last_block_cost_of(const filling *f, const mf_partition_class *c,
                                 const int32_t *count, int less) {
    double least_s = HUGE_VAL;
    for (int m = 0; m < c->choices; m++) {
        if (count[m] > (m == less)) {
            least_s = fmin(least_s, end_of(f, c, m));
        }
    }
    return least_s;
}

/* Share of a stage's micro-batches that are not paired. */
static double alone_share(const mf_partition *in, int stage) {
    const int32_t *warm = in->order.warm_up + (size_t)stage * (size_t)in->chunks;
    double sum = 0.0;
    for (int c = 0; c < in->chunks; c++) {
        sum += warm[c];
    }
    return mf_smaller(1.0, sum / ((double)in->chunks * (double)in->layout.micro_batches));
}

/* --- bytes of a stage ------------------------------------------------------------------------- */

/* Choices of a slot as mf_partition_write orders them. */
static void order_choices(const mf_partition_class *c, int order[MF_CATALOGUE_MAX]) {
    for (int m = 0; m < c->choices; m++) {
        int at = m;
        while (at > 0 && mf_partition_stands_before(c, m, order[at - 1])) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = m;
    }
}

/* Whether a slot has layers on a virtual stage at all. */
static bool is_used(const mf_partition_class *c, const int32_t *count) {
    for (int m = 0; m < c->choices; m++) {
        if (count[m] > 0) {
            return true;
        }
    }
    return false;
}

static chunk_bytes weigh_chunk(const filling *f, int v) {
    const mf_partition *in = f->in;
    chunk_bytes x = {0, 0, 0, 0, 0, 0, 0, 0};
    double f_peak = 0.0, b_peak = 0.0, freed = 0.0, w_peak = 0.0;
    for (int pass = 0; pass < 2; pass++) { /* forward order, then backward */
        for (int i = 0; i < in->slots; i++) {
            int s = pass == 0 ? i : in->slots - 1 - i, order[MF_CATALOGUE_MAX];
            if (v < in->slot[s].v_lo || v > in->slot[s].v_hi) {
                continue;
            }
            *in->effort_ns += MF_FILL_SLOT_NS;
            const mf_partition_class *c = mf_partition_class_at(in, v, s);
            const int32_t *count = &f->count[mf_partition_cell(in, v, s, 0)];
            if (!is_used(c, count)) {
                continue;
            }
            order_choices(c, order);
            for (int k = 0; k < c->choices; k++) {
                int m = order[pass == 0 ? k : c->choices - 1 - k];
                const mf_block_cost *q = &c->choice[m].cost;
                double n = count[m];
                if (n <= 0) {
                    continue;
                }
                *in->effort_ns += MF_FILL_CHOICE_NS;
                if (pass == 0) {
                    x.saved += n * q->saved_B;
                    x.held += n * q->held_B;
                    x.persistent += n * c->persistent_B;
                    x.comm = mf_larger(x.comm, q->comm_B);
                    x.gather = mf_larger(x.gather, q->gather_B);
                    x.boundary = mf_larger(x.boundary, q->boundary_B);
                    f_peak = mf_larger(f_peak, x.saved + q->local_f_B);
                } else { /* the first of n runs when least is freed, the last when most is held */
                    b_peak = mf_larger(b_peak, x.saved - freed + q->local_b_B + q->held_B);
                    freed += n * (q->saved_B - q->held_B);
                    b_peak = mf_larger(b_peak, x.saved - freed + q->saved_B - q->held_B +
                                                   q->local_b_B + q->held_B);
                    w_peak = mf_larger(w_peak, q->local_w_B);
                }
            }
        }
    }
    x.extra_f = mf_larger(f_peak - x.saved, 0.0);
    x.extra_b = mf_larger(b_peak - x.saved, w_peak);
    return x;
}

static int chunks_of(const filling *f) {
    return f->in->chunks < MAX_CHUNKS ? f->in->chunks : MAX_CHUNKS;
}

static void weigh_chunks(filling *f) {
    for (int c = 0; c < chunks_of(f); c++) {
        f->chunk[c] = weigh_chunk(f, (int)mf_layout_vstage(&f->in->layout, f->stage, c));
    }
}

/* The stage, its chunks as they were weighed. */
static double weigh_stage(const filling *f) {
    const mf_partition *in = f->in;
    double persistent = 0, gather = 0, boundary = 0, peak = 0, extra_f = 0, extra_b = 0;
    double comm = mf_partition_tables_B(in, f->stage);
    int chunks = chunks_of(f);
    for (int c = 0; c < chunks; c++) {
        const chunk_bytes *x = &f->chunk[c];
        persistent += x->persistent;
        comm = mf_larger(comm, x->comm);
        gather = mf_larger(gather, x->gather);
        boundary = mf_larger(boundary, x->boundary);
        extra_f = mf_larger(extra_f, x->extra_f);
        extra_b = mf_larger(extra_b, x->extra_b);
    }
    for (int k = 0; k < in->order.rows[f->stage]; k++) {
        double now = 0.0;
        for (int c = 0; c < chunks; c++) {
            now += mf_order_in_flight(&in->order, f->stage, k, c) * f->chunk[c].saved +
                   mf_order_held(&in->order, f->stage, k, c) * f->chunk[c].held;
        }
        peak = mf_larger(peak, now);
    }
    return persistent + in->fixed_B + comm + mf_partition_tables_comm_B(in, f->stage) +
           mf_memory_gathers(&in->layout) * gather + mf_memory_boundaries(&in->layout) * boundary +
           peak + (in->merged ? extra_f + extra_b : mf_larger(extra_f, extra_b));
}

/* --- changes ---------------------------------------------------------------------------------- */

typedef struct change {
    int v, slot, from, to;
    double gain; /* bytes by second, workspaces aside */
} change;

#define MAX_BANNED 64

typedef struct banned {
    int count;
    change it[MAX_BANNED];
} banned;

static bool is_banned(const banned *b, int v, int slot, int from, int to) {
    for (int i = 0; i < b->count; i++) {
        const change *c = &b->it[i];
        if (c->v == v && c->slot == slot && c->from == from && c->to == to) {
            return true;
        }
    }
    return false;
}

/* Layers of a slot on a virtual stage, as of the counts. */
typedef struct slot_layers {
    const mf_partition_class *class;
    const int32_t *count;
    bool last; /* the virtual stage ends with one of them */
    int n;     /* positions of the virtual stage */
    int copies;
    double met_s; /* of those that copy, where each meets another one */
    double time_s[MF_CATALOGUE_MAX];
} slot_layers;

static void find_layers(const filling *f, int v, int s, slot_layers *x) {
    x->class = mf_partition_class_at(f->in, v, s);
    x->count = &f->count[mf_partition_cell(f->in, v, s, 0)];
    x->last = f->in->slot_at[f->first[v + 1] - 1] == s;
    x->n = f->first[v + 1] - f->first[v];
    x->copies = 0;
    x->met_s = 0.0;
    for (int m = 0; m < x->class->choices; m++) {
        x->time_s[m] = time_of(f, x->class, m);
        if (x->count[m] > 0 && copies_of(x->class, m) > 0) {
            x->copies += x->count[m];
            x->met_s += x->count[m] * met_of(f, x->class, m);
        }
    }
}

/* What a layer takes more with choice t instead of m. end_s: of the last one as of now, and of all
 * but the layer. */
static double change_s(const filling *f, const slot_layers *x, int m, int t,
                       const double end_s[2]) {
    const mf_partition_class *c = x->class;
    const int copies = x->copies + copies_of(c, t) - copies_of(c, m);
    double more_s = x->time_s[t] - x->time_s[m];
    if (x->copies + copies > 0) {
        const double met_s = x->met_s + met_of(f, c, t) - met_of(f, c, m);
        more_s += meeting_s(x->n, copies, met_s) - meeting_s(x->n, x->copies, x->met_s);
    }
    return x->last ? more_s + mf_smaller(end_s[1], end_of(f, c, t)) - end_s[0] : more_s;
}

/* Best change of one layer of a slot on v, if better than *best. */
static void best_of_slot(const filling *f, const banned *bans, int v, int s, double flight,
                         change *best) {
    slot_layers x;
    double end_s[2] = {0.0, 0.0};
    *f->in->effort_ns += MF_FILL_LOOK_NS;
    if (!is_used(mf_partition_class_at(f->in, v, s),
                 &f->count[mf_partition_cell(f->in, v, s, 0)])) {
        return;
    }
    find_layers(f, v, s, &x);
    *f->in->effort_ns += MF_FILL_CHANGE_NS * (int64_t)x.class->choices;
    const mf_partition_choice *choice = x.class->choice;
    end_s[0] = x.last ? last_block_cost_of(f, x.class, x.count, -1) : 0.0;
    for (int m = 0; m < x.class->choices; m++) {
        if (x.count[m] <= 0) {
            continue;
        }
        end_s[1] = x.last ? last_block_cost_of(f, x.class, x.count, m) : 0.0;
        for (int t = 0; t < x.class->choices; t++) {
            double less_B = choice[m].cost.saved_B - choice[t].cost.saved_B;
            if (!(less_B > 0.0)) {
                continue;
            }
            const double more_s = mf_larger(change_s(f, &x, m, t, end_s), 1e-9);
            if (flight * less_B < (1.0 - 1e-9) * best->gain * more_s) {
                continue; /* without a division */
            }
            double gain = flight * less_B / more_s;
            if (gain > best->gain && !is_banned(bans, v, s, m, t)) {
                *best = (change){v, s, m, t, gain};
            }
        }
    }
}

static change best_change(const filling *f, const banned *bans) {
    const mf_partition *in = f->in;
    change best = {-1, 0, 0, 0, 0.0};
    for (int c = 0; c < in->chunks; c++) {
        int v = (int)mf_layout_vstage(&in->layout, f->stage, c);
        double flight = mf_order_most_in_flight(&in->order, f->stage, c);
        for (int s = 0; s < in->slots; s++) {
            if (v >= in->slot[s].v_lo && v <= in->slot[s].v_hi) {
                best_of_slot(f, bans, v, s, flight, &best);
            }
        }
    }
    return best;
}

static int fastest(const filling *f, const mf_partition_class *c) {
    int best = 0;
    for (int m = 1; m < c->choices; m++) {
        best = time_of(f, c, m) < time_of(f, c, best) ? m : best;
    }
    return best;
}

/* Every layer at its fastest choice. */
static void start_stage(filling *f, const int *first) {
    const mf_partition *in = f->in;
    for (int c = 0; c < in->chunks; c++) {
        int v = (int)mf_layout_vstage(&in->layout, f->stage, c);
        memset(&f->count[mf_partition_cell(in, v, 0, 0)], 0,
               (size_t)in->slots * MF_CATALOGUE_MAX * sizeof *f->count);
        for (int i = first[v]; i < first[v + 1]; i++) {
            int s = in->slot_at[i];
            int m = fastest(f, mf_partition_class_at(in, v, s));
            f->count[mf_partition_cell(in, v, s, m)]++;
        }
    }
    weigh_chunks(f);
}

static void apply(filling *f, const change *c, int by) {
    f->count[mf_partition_cell(f->in, c->v, c->slot, c->from)] -= by;
    f->count[mf_partition_cell(f->in, c->v, c->slot, c->to)] += by;
}

/* Changes that free nothing in the end (their workspace is larger) are taken back and not tried
 * again. */
static bool fill_stage(filling *f, const int *first, double free_B) {
    banned bans = {.count = 0};
    f->alone = alone_share(f->in, f->stage);
    f->first = first;
    start_stage(f, first);
    double weight_B = weigh_stage(f);
    while (weight_B > free_B) {
        change c = best_change(f, &bans);
        if (c.v < 0) {
            return false;
        }
        int64_t k = mf_layout_chunk_of(&f->in->layout, c.v);
        chunk_bytes *changed = &f->chunk[k < MAX_CHUNKS ? k : 0], was = *changed;
        apply(f, &c, 1);
        *changed = k < MAX_CHUNKS ? weigh_chunk(f, c.v) : was;
        double now_B = weigh_stage(f);
        if (now_B < weight_B) {
            weight_B = now_B;
        } else if (bans.count < MAX_BANNED) {
            apply(f, &c, -1);
            *changed = was;
            bans.it[bans.count++] = c;
        } else {
            return false;
        }
    }
    return true;
}

bool mf_partition_fill_stage(const mf_partition *in, const int *first, int stage, double free_B,
                             int32_t *count) {
    filling f = {.in = in, .count = count, .stage = stage};
    return fill_stage(&f, first, free_B);
}

double mf_partition_stage_B(const mf_partition *in, int32_t *count, int stage) {
    filling f = {.in = in, .count = count, .stage = stage};
    weigh_chunks(&f);
    return weigh_stage(&f);
}

mf_status mf_partition_fill_checked(mf_partition *in, const int *first, bool gaps, double *free_B,
                                    int32_t *count, mf_assignment *out, mf_err *e) {
    filling f = {.in = in, .count = count};
    int misses[MF_MAX_VSTAGES] = {0};
    int64_t sure_stages = 0;
    mf_status status = mf_partition_own_pairs(in, e);
    for (int p = 0; p < in->stages && status == MF_OK; p++) {
        f.stage = p;
        status = fill_stage(&f, first, free_B[p]) ? MF_OK : MF_INFEASIBLE;
    }
    for (int tries = 0; status == MF_OK; tries++) {
        mf_step step;
        status = mf_partition_write(in, f.count, out, e);
        if (status != MF_OK) {
            return status;
        }
        const mf_evaluator_ops *ops = in->evaluator->ops;
        status = gaps ? ops->fit(in->evaluator->self, &in->layout, out, sure_stages, &step, e)
                      : ops->count(in->evaluator->self, &in->layout, out, &step, e);
        *in->effort_ns += mf_evaluator_memory_ns(in->positions, step.looks);
        if (status != MF_OK || step.fits) {
            return status;
        }
        double over_B = step.peak_B - step.usable_B;
        f.stage = (int)step.stage;
        sure_stages = step.stage < step.sure_stages ? step.stage : step.sure_stages;
        if (over_B <= 0.0 || tries >= MF_FILL_TRIES(in->stages)) {
            break; /* host memory is missing, or too many tries */
        }
        int missed = misses[f.stage]++;
        double by = missed < MF_FILL_FEW_MISSES ? 1.0 : ldexp(1.0, missed - MF_FILL_FEW_MISSES + 1);
        weigh_chunks(&f);
        free_B[f.stage] = mf_smaller(free_B[f.stage], weigh_stage(&f)) - by * over_B;
        status = fill_stage(&f, first, free_B[f.stage]) ? MF_OK : MF_INFEASIBLE;
    }
    return mf_err_set(e, MF_INFEASIBLE, "no memory choice makes stage %d fit", f.stage);
}
