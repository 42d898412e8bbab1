/* order_summary.c - in-flight vectors and warm-up passes of a schedule, stage by stage. */
#include "planner/order/order.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void mf_order_summary_clear(mf_order_summary *s) {
    free(s->rows);
    free(s->in_flight);
    free(s->held);
    free(s->warm_up);
    free(s->follow);
    free(s->flight);
    free(s->warm_least);
    free(s->warm_most);
    memset(s, 0, sizeof *s);
}

double mf_order_most_in_flight(const mf_order_summary *o, int64_t stage, int64_t chunk) {
    int32_t most = 0;
    for (int k = 0; k < o->rows[stage]; k++) {
        int32_t n = mf_order_in_flight(o, (int)stage, k, (int)chunk);
        most = n > most ? n : most;
    }
    return most;
}

static int ascending(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Average of n over k layers on chunks, one at least on all chunks but `others`, which are those
 * that would count most (least = true) or least. sorted: n ascending. */
static double extreme(const int32_t *sorted, int chunks, int k, int others, bool least) {
    int held = chunks > others ? chunks - others : 0;
    int64_t sum = 0;
    int32_t rest = least ? sorted[0] : sorted[chunks - 1];
    for (int c = 0; c < held && c < k; c++) {
        sum += least ? sorted[c] : sorted[chunks - 1 - c];
    }
    if (k <= held) { /* fewer layers than chunks that need one: more positions help out */
        return k > 0 ? (double)sum / k : rest;
    }
    return ((double)sum + (double)(k - held) * rest) / k;
}

/* The averages of one stage, of `wide` rows at most. */
static void average(const mf_order_summary *s, int p, int wide, int others, int32_t *sorted) {
    size_t chunks = (size_t)s->chunks, to = (size_t)p * (size_t)(s->layers + 1);
    for (int row = -1; row < s->rows[p]; row++) {
        const int32_t *n = row < 0
                               ? s->warm_up + (size_t)p * chunks
                               : s->in_flight + ((size_t)p * (size_t)wide + (size_t)row) * chunks;
        memcpy(sorted, n, chunks * sizeof *sorted);
        qsort(sorted, chunks, sizeof *sorted, ascending);
        for (int k = 0; k <= s->layers; k++) {
            double least = extreme(sorted, s->chunks, k, others, true);
            if (row < 0) {
                s->warm_least[to + (size_t)k] = (float)least;
                s->warm_most[to + (size_t)k] = (float)extreme(sorted, s->chunks, k, others, false);
            } else if (least > (double)s->flight[to + (size_t)k]) {
                s->flight[to + (size_t)k] = (float)least;
            }
        }
    }
}

/* Is the row dominated by a mean of two other rows? Then it constrains nothing that these two do
 * not. A row lists micro-batches in flight by chunk, then those that are held. */
static bool is_under_mean(const int32_t *row, const int32_t *a, const int32_t *b, int n) {
    double lo = 0.0, hi = 1.0; /* share of a */
    for (int c = 0; c < n; c++) {
        double slope = (double)a[c] - b[c], need = (double)row[c] - b[c];
        if (slope > 0.0) {
            lo = need / slope > lo ? need / slope : lo;
        } else if (slope < 0.0) {
            hi = need / slope < hi ? need / slope : hi;
        } else if (need > 0.0) {
            return false;
        }
    }
    return lo <= hi;
}

/* Leaves the rows of a stage that are under no mean of two others, the first MF_ORDER_ROWS of them,
 * and moves them to where they stay. both: space for the rows, in flight and held side by side. */
static void thin_out(mf_order_summary *s, int p, int wide, int32_t *both) {
    size_t chunks = (size_t)s->chunks, width = 2 * chunks;
    const size_t from = (size_t)p * (size_t)wide * chunks, to = (size_t)p * MF_ORDER_ROWS * chunks;
    bool gone[MF_ORDER_SPLIT_ROWS] = {false};
    int rows = s->rows[p], kept = 0;
    for (int k = 0; k < rows; k++) {
        int32_t *row = both + (size_t)k * width;
        memcpy(row, s->in_flight + from + (size_t)k * chunks, chunks * sizeof *both);
        memcpy(row + chunks, s->held + from + (size_t)k * chunks, chunks * sizeof *both);
    }
    for (int k = 0; k < rows; k++) {
        for (int a = 0; a < rows && !gone[k]; a++) {
            for (int b = a + 1; b < rows && !gone[k] && !gone[a]; b++) {
                gone[k] = a != k && b != k && !gone[b] &&
                          is_under_mean(both + (size_t)k * width, both + (size_t)a * width,
                                        both + (size_t)b * width, (int)width);
            }
        }
    }
    for (int k = 0; k < rows && kept < MF_ORDER_ROWS; k++) {
        if (!gone[k]) {
            const int32_t *row = both + (size_t)k * width;
            memcpy(s->in_flight + to + (size_t)kept * chunks, row, chunks * sizeof *row);
            memcpy(s->held + to + (size_t)kept * chunks, row + chunks, chunks * sizeof *row);
            kept++;
        }
    }
    s->rows[p] = kept;
}

/* Frees the memory of rows that were left out. */
static void shrink(int32_t **rows, size_t cells) {
    int32_t *less = realloc(*rows, cells * sizeof *less);
    if (less != NULL) {
        *rows = less;
    }
}

static mf_status average_all(mf_order_summary *s, int wide, int layers, int others, mf_err *e) {
    size_t n = (size_t)s->stages * (size_t)(layers + 1);
    int32_t *sorted = calloc(2 * (size_t)wide * (size_t)s->chunks, sizeof *sorted);
    s->layers = layers;
    s->flight = calloc(n, sizeof *s->flight);
    s->warm_least = calloc(n, sizeof *s->warm_least);
    s->warm_most = calloc(n, sizeof *s->warm_most);
    bool good = sorted && s->flight && s->warm_least && s->warm_most;
    for (int p = 0; p < s->stages && good; p++) {
        average(s, p, wide, others, sorted); /* of all rows: the least of a mean may be more */
        thin_out(s, p, wide, sorted);
    }
    free(sorted);
    if (!good) {
        mf_order_summary_clear(s);
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    if (wide > MF_ORDER_ROWS) {
        const size_t cells = (size_t)s->stages * MF_ORDER_ROWS * (size_t)s->chunks;
        shrink(&s->in_flight, cells);
        shrink(&s->held, cells);
    }
    return MF_OK;
}

/* What an event is to those behind which it stands. */
static mf_order_follow follow_of(const mf_layout *l, const mf_schedule *s, int64_t p,
                                 const mf_event *ev) {
    bool merged = ev->pass == MF_EVENT_FB;
    int64_t v = mf_layout_vstage(l, p, merged ? ev->chunk2 : ev->chunk);
    int64_t micro_batch = merged ? ev->micro_batch2 : ev->micro_batch;
    bool ends = s->split ? ev->pass == MF_EVENT_W : ev->pass != MF_EVENT_F;
    return (mf_order_follow){(int16_t)v, ev->pass, ends && micro_batch == s->micro_batches - 1};
}

/* The events behind the last backward passes of a stage's chunks. */
static void list_follows(const mf_layout *l, const mf_schedule *s, int64_t p,
                         mf_order_summary *out) {
    const mf_order_follow none = {-1, 0, false};
    for (int64_t c = 0; c < s->chunks; c++) {
        mf_order_follow *to = out->follow + mf_layout_vstage(l, p, c) * MF_ORDER_BEHIND;
        for (int k = 0; k < MF_ORDER_BEHIND; k++) {
            to[k] = none;
        }
    }
    for (int64_t i = 0; i < s->count[p]; i++) {
        mf_order_follow of = follow_of(l, s, p, &s->events[p][i]);
        mf_order_follow *to = out->follow + (size_t)of.v * MF_ORDER_BEHIND;
        out->paired_end = out->paired_end || (of.last && of.pass == MF_EVENT_FB);
        for (int64_t k = i + 1; of.last && k < s->count[p] && k - i <= MF_ORDER_BEHIND; k++) {
            to[k - i - 1] = follow_of(l, s, p, &s->events[p][k]);
            of.last = !to[k - i - 1].last;
        }
    }
}

/* Rows of a stage before they are thinned out. Where weight gradients are split off, micro-batches
 * in flight turn one by one into held ones, and each step is a row: with few of them the last would
 * be missing, where stages hold most. */
static int rows_of(const mf_layout *l) {
    return mf_layout_splits(l) ? MF_ORDER_SPLIT_ROWS : MF_ORDER_ROWS;
}

static mf_status summarise(const mf_layout *l, mf_order_schedule_fn schedule, void *self,
                           mf_order_summary *out, mf_err *e) {
    mf_schedule *s = NULL;
    const int wide = rows_of(l);
    memset(out, 0, sizeof *out);
    mf_status status = schedule(self, l, &s, e);
    if (status != MF_OK) {
        return status;
    }
    size_t stages = (size_t)s->stages, chunks = (size_t)s->chunks;
    out->stages = (int)s->stages;
    out->chunks = (int)s->chunks;
    out->rows = calloc(stages, sizeof *out->rows);
    const size_t cells = (size_t)wide * chunks;
    out->in_flight = calloc(stages * cells, sizeof *out->in_flight);
    out->held = calloc(stages * cells, sizeof *out->held);
    out->warm_up = calloc(stages * chunks, sizeof *out->warm_up);
    out->follow = calloc(stages * chunks * MF_ORDER_BEHIND, sizeof *out->follow);
    if (!out->rows || !out->in_flight || !out->held || !out->warm_up || !out->follow) {
        status = mf_err_set(e, MF_NOMEM, "out of memory");
        mf_order_summary_clear(out);
        goto out;
    }
    for (size_t p = 0; p < stages; p++) {
        out->rows[p] = mf_schedule_in_flight(s, (int64_t)p, wide, out->in_flight + p * cells,
                                             out->held + p * cells);
        for (int64_t i = 0; i < s->count[p] && s->events[p][i].pass == MF_EVENT_F; i++) {
            out->warm_up[p * chunks + (size_t)s->events[p][i].chunk]++;
        }
        list_follows(l, s, (int64_t)p, out);
    }
out:
    mf_schedule_destroy(s);
    return status;
}

static bool same(const mf_order_summary *a, const mf_order_summary *b, int wide) {
    size_t stages = (size_t)a->stages, chunks = (size_t)a->chunks;
    size_t cells = stages * (size_t)wide * chunks * sizeof *a->in_flight;
    assert(a->rows && b->rows);
    return memcmp(a->rows, b->rows, stages * sizeof *a->rows) == 0 &&
           memcmp(a->in_flight, b->in_flight, cells) == 0 && memcmp(a->held, b->held, cells) == 0 &&
           memcmp(a->warm_up, b->warm_up, stages * chunks * sizeof *a->warm_up) == 0 &&
           a->paired_end == b->paired_end &&
           memcmp(a->follow, b->follow, stages * chunks * MF_ORDER_BEHIND * sizeof *a->follow) == 0;
}

static mf_status with(const mf_layout *l, int64_t micro_batches, mf_order_schedule_fn schedule,
                      void *self, mf_order_summary *out, mf_err *e) {
    mf_layout fewer = *l;
    fewer.micro_batches = micro_batches;
    fewer.gbs = micro_batches * l->mbs * l->dp;
    return summarise(&fewer, schedule, self, out, e);
}

mf_status mf_order_summarise(const mf_layout *l, mf_order_schedule_fn schedule, void *self,
                             int layers, int others, mf_order_summary *out, bool *saturated,
                             mf_err *e) {
    int64_t few = 4 * l->pp;
    bool enough = false;
    if (l->micro_batches > 2 * few) {
        mf_order_summary twice;
        mf_status status = with(l, few, schedule, self, out, e);
        if (status != MF_OK) {
            return status;
        }
        status = with(l, 2 * few, schedule, self, &twice, e);
        if (status == MF_OK) {
            enough = same(out, &twice, rows_of(l));
            mf_order_summary_clear(&twice);
        }
        if (!enough) {
            mf_order_summary_clear(out);
        }
        if (status != MF_OK) {
            return status;
        }
    }
    if (saturated) {
        *saturated = enough;
    }
    mf_status status = enough ? MF_OK : with(l, l->micro_batches, schedule, self, out, e);
    return status == MF_OK ? average_all(out, rows_of(l), layers, others, e) : status;
}
