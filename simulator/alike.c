/* alike.c - prices of ops that blocks from one forward pass have in common. */
#include "simulator/alike.h"

#include "simulator/block_build.h"

#include <stdlib.h>
#include <string.h>

/* An op that was priced. */
typedef struct known {
    mf_op op;
    mf_play_op price;
} known;

/* Forward ops by where they stand, then gradients in the order in which they come, which is that of
 * the forward ops they derive from; behind these what only some blocks have, in no order. */
struct mf_alike {
    const mf_cost *cost;
    double load;
    known *known;
    int common, n, room;
    int seen; /* of those behind, the one that was met last */
    int *at;  /* [ops of the last block] its place among the known */
    int at_room;
};

/* Copies and turning rings: there are few that differ. */
enum { MOST_OTHERS = 64 };

mf_status mf_alike_create(const mf_cost *cost, double load, mf_alike **out, mf_err *e) {
    mf_alike *a = calloc(1, sizeof *a);
    *out = a;
    if (a == NULL) {
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    a->cost = cost;
    a->load = load;
    return MF_OK;
}

void mf_alike_destroy(mf_alike *a) {
    if (a != NULL) {
        free(a->known);
        free(a->at);
    }
    free(a);
}

/* All that a price depends on (costmodel/memo.c), and the stream, by which ops are played. */
static bool same_price(const mf_op *a, const mf_op *b) {
    bool same = a->kind == b->kind && a->stream == b->stream && a->math == b->math &&
                a->flags == b->flags && a->pieces == b->pieces &&
                (a->pass == MF_PASS_B) == (b->pass == MF_PASS_B) &&
                a->shape.size == b->shape.size && a->shape.stride == b->shape.stride &&
                !(a->flops < b->flops) && !(a->flops > b->flops) && !(a->bytes < b->bytes) &&
                !(a->bytes > b->bytes);
    return same && memcmp(a->dim, b->dim, sizeof a->dim) == 0;
}

static bool make_room(mf_alike *a, int nops) {
    if (a->n + nops > a->room) {
        int room = a->n + nops + MOST_OTHERS;
        known *grown = realloc(a->known, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        a->known = grown;
        a->room = room;
    }
    if (nops > a->at_room) {
        int room = 2 * nops;
        int *grown = realloc(a->at, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        a->at = grown;
        a->at_room = room;
    }
    return true;
}

static int append(mf_alike *a, const mf_op *op) {
    known *k = &a->known[a->n];
    k->op = *op;
    mf_block_price(a->cost, op, a->load, &k->price);
    return a->n++;
}

/* The first block: its forward ops and gradients are what others have, too. */
static void price_first(mf_alike *a, const mf_block *b) {
    for (int gradients = 0; gradients < 2; gradients++) {
        for (int i = 0; i < b->nops; i++) {
            const mf_op *op = &b->ops[i];
            bool copy = op->kind == MF_OP_COPY_D2H || op->kind == MF_OP_COPY_H2D;
            bool gradient = op->pass == MF_PASS_B || op->pass == MF_PASS_W;
            if (!copy && (gradients ? gradient : op->pass == MF_PASS_F)) {
                append(a, op);
            }
        }
    }
    a->common = a->n;
}

/* Among the others, from the one on that was met last: they come in about the same order. */
static int find_other(mf_alike *a, const mf_op *op) {
    int others = a->n - a->common;
    for (int k = 0, at = a->seen; k < others; k++) {
        at = at + 1 < a->n ? at + 1 : a->common;
        if (same_price(&a->known[at].op, op)) {
            a->seen = at;
            return at;
        }
    }
    a->seen = append(a, op);
    return a->seen;
}

mf_status mf_alike_price(mf_alike *a, const mf_block *b, mf_err *e) {
    if (a->n - a->common > MOST_OTHERS) {
        a->n = a->common;
    }
    bool first = a->common == 0;
    if (!make_room(a, first ? 2 * b->nops : b->nops)) {
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    if (first) {
        price_first(a, b);
    }
    int next = 0; /* of those of F, then of the gradients */
    a->seen = a->common;
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        int at = op->pass == MF_PASS_R ? op->forward : next;
        bool found = at >= 0 && at < a->common && same_price(&a->known[at].op, op);
        a->at[i] = found ? at : find_other(a, op);
        next += found && op->pass != MF_PASS_R;
    }
    return MF_OK;
}

double mf_alike_op_s(const mf_alike *a, int i) {
    return a->known[a->at[i]].price.alone_s;
}

const mf_play_op *mf_alike_op(const mf_alike *a, int i) {
    return &a->known[a->at[i]].price;
}
