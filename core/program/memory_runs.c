/* memory_runs.c - finds where the tensors of a block can have separate addresses. */
#include "core/program/program.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A tensor in its kind: bytes [at, end). */
typedef struct extent {
    int kind; /* -1: none */
    int64_t at, end;
} extent;

/* Tensors that outlive their pass are side by side, in the order of the block. */
static void lay_kept(const mf_block *b, extent *x) {
    int64_t end[MF_RUN_KINDS] = {0};
    for (int t = 0; t < b->ntensors; t++) {
        const mf_tensor *q = &b->tensors[t];
        bool early = q->class == MF_TENSOR_GRADIENT && q->for_w;
        int kind = q->class == MF_TENSOR_SAVED           ? (q->for_w ? MF_RUN_KEPT : MF_RUN_SAVED)
                   : q->class == MF_TENSOR_HELD || early ? MF_RUN_MADE
                                                         : -1;
        x[t] = (extent){kind, 0, 0};
        if (kind >= 0) {
            x[t].at = end[kind];
            end[kind] += mf_align_B(q->bytes);
            x[t].end = end[kind];
        }
    }
    assert(end[MF_RUN_SAVED] + end[MF_RUN_KEPT] == b->saved_B);
    assert(end[MF_RUN_KEPT] == b->kept_B && end[MF_RUN_MADE] == b->made_B);
}

static void lay_work(const mf_block *b, bool split, extent *x) {
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        int kind = op->pass == MF_PASS_F            ? MF_RUN_WORK_F
                   : op->pass == MF_PASS_W && split ? MF_RUN_WORK_W
                                                    : MF_RUN_WORK_B;
        for (int k = 0; k < op->nin + op->nout; k++) {
            int t = k < op->nin ? op->in[k] : op->out[k - op->nin];
            const mf_tensor *q = &b->tensors[t];
            if (q->class == MF_TENSOR_LOCAL) {
                assert(x[t].kind < 0 || x[t].kind == kind); /* it dies inside its pass */
                x[t] = (extent){kind, q->offset_B, q->offset_B + mf_align_B(q->bytes)};
            }
        }
    }
}

/* Sorts the extents of a kind by place and keeps the longest at each: a workspace reuses few
 * places. Returns how many are left. */
static int keep(extent *sorted, int n, extent x) {
    int low = 0, high = n;
    while (low < high) {
        int middle = (low + high) / 2;
        if (sorted[middle].at < x.at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low < n && sorted[low].at == x.at) {
        sorted[low].end = x.end > sorted[low].end ? x.end : sorted[low].end;
        return n;
    }
    memmove(&sorted[low + 1], &sorted[low], (size_t)(n - low) * sizeof *sorted);
    sorted[low] = x;
    return n + 1;
}

/* Joins the two neighbours that are smallest together. */
static void join(int64_t *start, int *count) {
    int best = 0;
    for (int k = 1; k + 1 < *count; k++) {
        best = start[k + 2] - start[k] < start[best + 2] - start[best] ? k : best;
    }
    for (int k = best + 1; k < *count; k++) {
        start[k] = start[k + 1];
    }
    --*count;
}

/* Splits a kind where no tensor lies across; order: its extents by place. */
static void split_kind(const extent *order, int n, mf_runs *out) {
    int64_t end = 0, start[MF_RUNS + 2] = {0};
    int count = 0;
    for (int k = 0; k < n; k++) {
        if (order[k].at >= end) {
            start[count++] = end; /* bytes between two tensors belong to the second */
            if (count > MF_RUNS) {
                start[count] = order[k].end;
                join(start, &count);
            }
        }
        end = order[k].end > end ? order[k].end : end;
    }
    start[count] = end;
    out->count = count;
    for (int k = 0; k <= count; k++) {
        out->start[k] = start[k];
    }
    for (int k = 0; k < count; k++) {
        out->size[k] = start[k + 1] - start[k];
    }
}

static void tell(mf_block *b, const extent *x) {
    for (int t = 0; t < b->ntensors; t++) {
        mf_run_place *out = &b->tensors[t].place;
        *out = (mf_run_place){(int8_t)x[t].kind, 0, 0};
        if (x[t].kind >= 0) {
            const mf_runs *r = &b->runs.of[x[t].kind];
            while (out->run + 1 < r->count && r->start[out->run + 1] <= x[t].at) {
                out->run++;
            }
            out->at = r->count > 0 ? x[t].at - r->start[out->run] : 0;
        }
    }
}

mf_status mf_block_find_runs(mf_block *b, bool split, mf_err *e) {
    extent *x = calloc((size_t)b->ntensors + 1, sizeof *x);
    extent *order = calloc((size_t)b->ntensors + 1, sizeof *order);
    mf_status status = MF_OK;
    if (x == NULL || order == NULL) {
        status = mf_err_set(e, MF_NOMEM, "memory plan: out of memory");
        goto out;
    }
    lay_kept(b, x);
    lay_work(b, split, x);
    for (int kind = 0; kind < MF_RUN_KINDS; kind++) {
        int n = 0;
        for (int t = 0; t < b->ntensors; t++) {
            if (x[t].kind == kind && x[t].end > x[t].at) {
                n = keep(order, n, x[t]);
            }
        }
        split_kind(order, n, &b->runs.of[kind]);
    }
    tell(b, x);
out:
    free(x);
    free(order);
    return status;
}
