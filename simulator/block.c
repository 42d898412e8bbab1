/* block.c - the passes of one block (or of a merged pair) played on streams. */
#include "simulator/block_build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- results ---------------------------------------------------------------------------------- */

static mf_status keep(const mf_block_play *b, mf_block_time *out, mf_err *e) {
    out->op = malloc(((size_t)b->play.n + 1) * sizeof *out->op);
    if (out->op == NULL) {
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    for (int i = 0; i < b->play.n; i++) {
        const mf_play_op *q = &b->play.ops[i];
        out->op[i] = (mf_op_time){b->order[i].side, b->order[i].op, q->start_s, q->end_s, 0};
    }
    return MF_OK;
}

/* Issue times from the start of the block; returns when the last op is issued. */
static double issue(mf_block_play *b, bool pair) {
    double host = 0;
    if (b->play.n > 0) { /* the embedding has no input gradient */
        host = mf_cost_host_block_s(b->cost, b->l->graph) * (pair ? 2.0 : 1.0);
    }
    for (int i = 0; i < b->play.n; i++) {
        host += mf_cost_host_s(b->cost, b->play.ops[i].op, b->l->graph);
        b->play.ops[i].issue_s = host;
    }
    return host;
}

/* Where the host has to see what the device made, the device idles until the host catches up. */
static void add_syncs(const mf_block_play *b, mf_block_time *out) {
    double sync = 0;
    for (int i = 0; i < b->play.n; i++) {
        sync += mf_cost_host_sync_s(b->cost, b->play.ops[i].op, b->l->graph);
    }
    out->gpu_time_s += sync;
    out->time_s += sync;
    out->low_s += sync;
    out->high_s += sync;
    out->class_s[MF_BD_HOST] += sync;
}

/* Compute copies what has come and what is to leave where blocks meet. A block at the end of a pass
 * that has its copies to itself is priced the same. */
static void add_staging(const mf_block_play *b, mf_block_time *out) {
    double side[MF_BLOCK_SIDES] = {0}; /* summed as the search does (priced.c), to the bit */
    for (int i = 0; i < b->play.n; i++) {
        side[b->order[i].side] += mf_block_staged_s(b->cost, b->play.ops[i].op, b->load);
    }
    const double staged = side[0] + side[1];
    out->gpu_time_s += staged;
    out->time_s += staged;
    out->low_s += staged;
    out->high_s += staged;
    out->class_s[MF_BD_OFFLOAD] += staged;
}

mf_status mf_sim_block(const mf_cost *cost, const mf_layout *l, const mf_block *b, unsigned passes,
                       const mf_block *beside, double load, bool keep_ops, mf_block_time *out,
                       mf_err *e) {
    memset(out, 0, sizeof *out);
    mf_block_play p = {.cost = cost, .l = l, .load = load};
    mf_status status = mf_block_play_build(&p, b, passes, beside, e);
    if (status != MF_OK) {
        goto done;
    }
    mf_play_run(&p.play); /* the host far ahead */
    out->gpu_time_s = p.play.time_s;
    out->compute_s = p.play.compute_s;
    out->low_s = p.play.low_s;
    out->high_s = p.play.high_s;
    memcpy(out->class_s, p.play.class_s, sizeof out->class_s);
    out->nops = p.play.n;
    for (int i = 0; i < p.play.n; i++) {
        out->link_s[p.play.ops[i].link] += p.play.ops[i].alone_s * p.play.ops[i].link_share;
    }
    if (keep_ops && (status = keep(&p, out, e)) != MF_OK) {
        goto done;
    }
    out->host_s = issue(&p, beside != NULL);
    for (int i = 0; i < p.play.n && keep_ops; i++) {
        out->op[i].host_s = p.play.ops[i].issue_s;
    }
    out->time_s = out->gpu_time_s;
    if (out->host_s > 0) { /* again, the host starting with the block */
        mf_play_run(&p.play);
        /* A late issue may keep communication from running beside compute, to the gain of both. */
        out->time_s = fmax(out->gpu_time_s, p.play.time_s);
    }
    add_syncs(&p, out);
    add_staging(&p, out);
done:
    mf_block_play_clear(&p);
    if (status != MF_OK) {
        mf_block_time_clear(out);
    }
    return status;
}

mf_status mf_sim_block_gpu_s(const mf_cost *cost, const mf_layout *l, const mf_block *b,
                             unsigned passes, const mf_block *beside, double load, double *out,
                             mf_err *e) {
    mf_block_play p = {.cost = cost, .l = l, .load = load};
    mf_block_time t = {.gpu_time_s = 0};
    mf_status status = mf_block_play_build(&p, b, passes, beside, e);
    if (status == MF_OK) {
        mf_play_run(&p.play);
        t.gpu_time_s = p.play.time_s;
        add_syncs(&p, &t);
        add_staging(&p, &t);
        *out = t.gpu_time_s;
    }
    mf_block_play_clear(&p);
    return status;
}

void mf_block_time_clear(mf_block_time *t) {
    free(t->op);
    t->op = NULL;
}

double mf_sim_block_bound(const mf_cost *cost, const mf_layout *l, const mf_block *b,
                          unsigned passes, double load) {
    mf_block_play p = {.cost = cost, .l = l, .load = load};
    double bound = 0;
    if (mf_block_play_build(&p, b, passes, NULL, NULL) == MF_OK) {
        double *end = malloc(((size_t)p.play.n + 1) * sizeof *end);
        bound = end != NULL ? mf_play_bound(&p.play, end) : 0;
        free(end);
    }
    mf_block_play_clear(&p);
    return bound;
}
