/* pace_ops.c - finds where a slow rank loses its time: the op and layer whose time exceeds most
 * that of the quickest rank with the same op. Collectives are left out, as a quick rank waits in
 * them. */
#include "executor/train/pace_ops.h"

#include "core/base/clock.h"
#include "core/program/pass_text.h"
#include "executor/step/program_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct mf_pace_ops {
    const mf_program *p;
    int most;       /* ops of a block */
    int64_t places; /* positions * most */
    double keep;    /* factor on the old sums at each step */
    double weight;  /* of the steps that the sums hold */
    double started_s;
    double *sum_s;      /* [places] */
    int64_t *seen_ns;   /* [places] of spans */
    bool spans;         /* sums are of spans: an op and what follows it */
    double *quickest_s; /* [places], negative */
};

void mf_pace_ops_destroy(mf_pace_ops *o) {
    if (o != NULL) {
        free(o->sum_s);
        free(o->quickest_s);
        free(o->seen_ns);
        free(o);
    }
}

mf_pace_ops *mf_pace_ops_create(const mf_program *p, int window) {
    mf_pace_ops *o = calloc(1, sizeof *o);
    if (o == NULL) {
        return NULL;
    }
    o->most = mf_exec_span_ops(p);
    o->p = p;
    o->keep = 1.0 - 1.0 / window;
    o->places = mf_exec_spans(p);
    o->sum_s = calloc((size_t)o->places + 1, sizeof *o->sum_s);
    o->quickest_s = calloc((size_t)o->places + 1, sizeof *o->quickest_s);
    o->seen_ns = calloc((size_t)o->places + 1, sizeof *o->seen_ns);
    if (o->sum_s == NULL || o->quickest_s == NULL || o->seen_ns == NULL) {
        mf_pace_ops_destroy(o);
        return NULL;
    }
    return o;
}

void mf_pace_ops_before(mf_pace_ops *o) {
    if (o != NULL) {
        o->started_s = mf_clock_s();
    }
}

void mf_pace_ops_after(mf_pace_ops *o, int position, const mf_block *b, const mf_op *op) {
    if (o != NULL && b != NULL && op->group == MF_GROUP_NONE) {
        o->sum_s[(int64_t)position * o->most + (op - b->ops)] += mf_clock_s() - o->started_s;
    }
}

void mf_pace_ops_spans(mf_pace_ops *o, const int64_t *span_ns) {
    for (int64_t i = 0; o != NULL && i < o->places; i++) {
        o->sum_s[i] += 1e-9 * (double)(span_ns[i] - o->seen_ns[i]);
        o->seen_ns[i] = span_ns[i];
    }
    if (o != NULL) {
        o->spans = true;
    }
}

void mf_pace_ops_step(mf_pace_ops *o, bool counts) {
    const double keep = counts && o != NULL ? o->keep : 0.0;
    for (int64_t i = 0; o != NULL && i < o->places; i++) {
        o->sum_s[i] *= keep;
    }
    if (o != NULL) {
        o->weight = (o->weight + 1.0) * keep;
    }
}

/* The op at which this rank loses most time to the quickest; -1: none. */
static int64_t furthest(const mf_pace_ops *o) {
    int64_t at = -1;
    double most_s = 0.0;
    for (int64_t i = 0; i < o->places; i++) {
        if (o->sum_s[i] + o->quickest_s[i] > most_s) {
            most_s = o->sum_s[i] + o->quickest_s[i];
            at = i;
        }
    }
    return at;
}

mf_status mf_pace_ops_text(mf_pace_ops *o, mf_comm *c, int64_t rank, char *text, size_t size,
                           mf_err *e) {
    double slow[3] = {-1.0, 0.0, 0.0}; /* place, time of this rank, of the quickest */
    text[0] = '\0';
    for (int64_t i = 0; i < o->places; i++) {
        o->quickest_s[i] = o->sum_s[i] > 0.0 ? -o->sum_s[i] : -HUGE_VAL;
    }
    mf_status status = mf_comm_all_reduce(c, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX,
                                          o->quickest_s, o->places, e);
    if (status == MF_OK && mf_comm_rank(c) == rank) {
        const int64_t at = furthest(o);
        slow[0] = (double)at;
        slow[1] = at >= 0 ? o->sum_s[at] / o->weight : 0.0;
        slow[2] = at >= 0 ? -o->quickest_s[at] / o->weight : 0.0;
    } else {
        slow[0] = slow[1] = slow[2] = -HUGE_VAL;
    }
    status = status == MF_OK
                 ? mf_comm_all_reduce(c, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, slow, 3, e)
                 : status;
    if (status == MF_OK && slow[0] >= 0.0) {
        const int position = (int)((int64_t)slow[0] / o->most);
        const mf_op *op = &o->p->blocks[o->p->block_of[position]]->ops[(int64_t)slow[0] % o->most];
        char place[32];
        mf_position_text(&o->p->model, position, place, sizeof place);
        snprintf(text, size,
                 ", most %s %s (%s) of %s%s: %.3g s a step, %.3g s where it is quickest",
                 o->spans ? "from" : "at", op->name, mf_pass_text(op->pass), place,
                 o->spans ? " on" : "", slow[1], slow[2]);
    }
    return status;
}
