/* play_counts.c - the longest path of an answer of the partition problem. */
#include "core/program/pairing.h"
#include "planner/partition/partition.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- plays ------------------------------------------------------------------------------------ */

static mf_status make_graph(mf_partition *in, mf_err *e) {
    mf_schedule *s = NULL;
    mf_status status = in->evaluator->ops->schedule(in->evaluator->self, &in->layout, &s, e);
    if (status == MF_OK) {
        status = mf_order_create(&in->layout, s, &in->graph, e);
    }
    mf_schedule_destroy(s);
    return status;
}

/* Sums of the parts of every virtual stage: part_s[part][vstage]. */
static void sum_parts(const mf_partition *in, const double *count, bool coarse, double *part_s) {
    size_t n = (size_t)in->vstages;
    for (int v = 0; v < in->vstages; v++) {
        for (int s = 0; s < in->slots; s++) {
            const mf_partition_class *c = mf_partition_class_at(in, v, s);
            for (int m = 0; m < (coarse ? 1 : c->choices); m++) {
                double k = count[mf_partition_cell(in, v, s, m)];
                for (int p = 0; p < MF_ORDER_PARTS && k > 0.0; p++) {
                    part_s[(size_t)p * n + (size_t)v] +=
                        k * mf_partition_part_s(in, c, coarse ? -1 : m, (mf_order_part)p, false);
                }
            }
        }
    }
}

/* What last positions take more at least. */
static void sum_ends(const mf_partition *in, const double *count, double *part_s) {
    const size_t n = (size_t)in->vstages;
    for (size_t v = 0; v < n; v++) {
        const double *more = mf_partition_end_more_s(in, (int)v);
        if (more == NULL) {
            continue;
        }
        const double share = mf_partition_end_share(in, count, (int)v);
        for (size_t p = 0; p < MF_ORDER_PARTS; p++) {
            part_s[p * n + v] += share * more[p];
        }
    }
}

/* end_s: what the blocks of each virtual stage take more where they stand, forward, then backward;
 * NULL: not known. */
static mf_status play(mf_partition *in, const double *count, bool coarse,
                      const double *stage_extra_s, const double *pair_s, const double *end_s,
                      mf_order_path *out, mf_err *e) {
    size_t n = (size_t)in->vstages;
    if (!in->graph) {
        mf_status status = make_graph(in, e);
        if (status != MF_OK) {
            return status;
        }
        *in->effort_ns += MF_GRAPH_NODE_NS * mf_order_nodes(in->graph);
    }
    double *part_s = calloc(MF_ORDER_PARTS * n, sizeof *part_s);
    if (!part_s) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    sum_parts(in, count, coarse, part_s);
    if (end_s != NULL) {
        for (size_t v = 0; v < n; v++) {
            part_s[MF_ORDER_F * n + v] += end_s[v];
            part_s[MF_ORDER_B * n + v] += end_s[n + v];
        }
    } else if (!coarse) {
        sum_ends(in, count, part_s);
    }
    for (int v = 0; v < in->vstages && stage_extra_s; v++) { /* spread evenly over the chunks */
        double extra_s = stage_extra_s[mf_layout_stage_of(&in->layout, v)] / in->chunks;
        part_s[MF_ORDER_B * n + (size_t)v] += extra_s;
        part_s[MF_ORDER_B_PAIR * n + (size_t)v] += extra_s;
        part_s[MF_ORDER_PAIR_PORTION_B * n + (size_t)v] += extra_s;
    }
    mf_order_times t = {.send_s = in->send_s,
                        .hold_s = in->hold_s,
                        .lost = in->lost,
                        .pair_s = pair_s,
                        .losses = &in->losses};
    for (size_t p = 0; p < MF_ORDER_PARTS; p++) {
        t.part_s[p] = part_s + p * n;
    }
    mf_order_longest(in->graph, &t, out);
    *in->effort_ns += MF_PLAY_NS + MF_PLAY_NODE_NS * mf_order_nodes(in->graph) +
                      MF_PLAY_CELL_NS * (int64_t)mf_partition_cells(in);
    out->time_s += in->step_end.fixed_s;
    free(part_s);
    return MF_OK;
}

mf_status mf_partition_play(mf_partition *in, const double *count, bool coarse,
                            const double *stage_extra_s, mf_order_path *out, mf_err *e) {
    return play(in, count, coarse, stage_extra_s, NULL, NULL, out, e);
}

/* --- merged pairs as they are ----------------------------------------------------------------- */

/* Time of a forward block beside a backward block. */
static mf_status pair_of(mf_partition *in, int f, int m, int b, int k, double *time_s, mf_err *e) {
    size_t n = (size_t)in->classes * MF_CATALOGUE_MAX;
    size_t at =
        ((size_t)f * MF_CATALOGUE_MAX + (size_t)m) * n + (size_t)b * MF_CATALOGUE_MAX + (size_t)k;
    if (!in->pair_s) {
        in->pair_s = calloc(n * n, sizeof *in->pair_s);
        if (!in->pair_s) {
            return mf_err_set(e, MF_NOMEM, "out of memory");
        }
    }
    if (!(in->pair_s[at] > 0.0)) {
        mf_status status = mf_partition_pair_s(in, f, m, b, k, &in->pair_s[at], e);
        if (status != MF_OK) {
            return status;
        }
    }
    *time_s = in->pair_s[at];
    return MF_OK;
}

/* Class and choice of every position, as mf_partition_write orders them. */
typedef struct placed {
    int16_t class, choice;
} placed;

static void place_positions(const mf_partition *in, const int *first, const int32_t *count,
                            placed *out) {
    for (int v = 0; v < in->vstages; v++) {
        int32_t left[MF_CATALOGUE_MAX];
        int variant = mf_partition_variant(&in->layout, v);
        for (int s = 0; s < in->slots; s++) {
            bool loaded = false;
            const mf_partition_class *c = mf_partition_class_at(in, v, s);
            for (int i = first[v]; i < first[v + 1]; i++) {
                if (in->slot_at[i] != s) {
                    continue;
                }
                if (!loaded) {
                    memcpy(left, count + mf_partition_cell(in, v, s, 0), sizeof left);
                    loaded = true;
                }
                int m = mf_partition_next_choice(c, left);
                m = m < 0 ? 0 : m;
                left[m]--;
                out[i] = (placed){(int16_t)in->slot[s].class_of[variant], (int16_t)m};
            }
        }
    }
}

static bool differs_at_end(const mf_partition_choice *c) {
    return c->end_f_s > 0.0 || c->end_b_s > 0.0 || c->inside_f_s > 0.0 || c->inside_b_s > 0.0;
}

/* Chunk vf forward beside chunk vb backward of one stage, as core/program/pairing.h lays them. */
static mf_status chunk_pair(mf_partition *in, const int *first, const placed *at, int vf, int vb,
                            mf_pairing *order, double *sum_s, mf_err *e) {
    mf_status status = MF_OK;
    *sum_s = 0.0;
    mf_pairing_make(order, in->model, &in->layout, first, vf, vb);
    for (int k = 0; k < order->count && status == MF_OK; k++) {
        const mf_pairing_step *s = &order->step[k];
        const placed *f = s->f >= 0 ? &at[first[vf] + s->f] : NULL;
        const placed *b = s->b >= 0 ? &at[first[vb + 1] - 1 - s->b] : NULL;
        const mf_partition_choice *fc = f ? &in->class[f->class].choice[f->choice] : NULL;
        const mf_partition_choice *bc = b ? &in->class[b->class].choice[b->choice] : NULL;
        const bool f_ends = f && first[vf] + s->f + 1 == first[vf + 1];
        const bool b_ends = b && s->b == 0;
        double time_s = 0.0;
        if (f && b && ((f_ends && differs_at_end(fc)) || (b_ends && differs_at_end(bc)))) {
            status = mf_partition_end_pair_s(in, f->class, f->choice, f_ends, b->class, b->choice,
                                             b_ends, &time_s, e);
        } else if (f && b) {
            status = pair_of(in, f->class, f->choice, b->class, b->choice, &time_s, e);
        } else if (f) {
            time_s = fc->cost.f.time_s + (f_ends ? fc->end_f_s : fc->inside_f_s);
        } else if (b) {
            time_s = bc->cost.b.time_s + (b_ends ? bc->end_b_s : bc->inside_b_s);
        }
        *sum_s += time_s;
    }
    return status;
}

static mf_status chunk_pairs(mf_partition *in, const int *first, const placed *at, double *pair_s,
                             mf_err *e) {
    mf_pairing order;
    mf_status status = mf_pairing_init(&order, mf_pairing_longest(first, in->vstages), e);
    for (int p = 0; p < in->stages; p++) {
        for (int x = 0; x < in->chunks; x++) {
            for (int y = 0; y < in->chunks && status == MF_OK; y++, pair_s++) {
                int vf = (int)mf_layout_vstage(&in->layout, p, x);
                int vb = (int)mf_layout_vstage(&in->layout, p, y);
                status = chunk_pair(in, first, at, vf, vb, &order, pair_s, e);
            }
        }
    }
    mf_pairing_clear(&order);
    return status;
}

mf_status mf_partition_play_counts(mf_partition *in, const int *first, const int32_t *count,
                                   double *pair_s, mf_order_path *out, mf_err *e) {
    size_t cells = mf_partition_cells(in), n = (size_t)in->vstages;
    double *amount = malloc((cells + 2 * n) * sizeof *amount);
    placed *at = calloc((size_t)in->positions, sizeof *at);
    mf_status status = MF_OK;
    if (!amount || !at) {
        free(amount);
        free(at);
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < cells; i++) {
        amount[i] = count[i];
    }
    double *end_s = amount + cells;
    place_positions(in, first, count, at);
    for (size_t v = 0; v < n; v++) {
        end_s[v] = end_s[n + v] = 0.0;
        for (int i = first[v]; i < first[v + 1]; i++) {
            const mf_partition_choice *c = &in->class[at[i].class].choice[at[i].choice];
            const bool last = i + 1 == first[v + 1];
            end_s[v] += last ? c->end_f_s : c->inside_f_s;
            end_s[n + v] += last ? c->end_b_s : c->inside_b_s;
        }
    }
    if (in->merged) {
        status = chunk_pairs(in, first, at, pair_s, e);
    }
    if (status == MF_OK) {
        status = play(in, amount, false, NULL, in->merged ? pair_s : NULL, end_s, out, e);
    }
    free(amount);
    free(at);
    return status;
}
