/* alike.c - prices of ops that blocks from one forward pass have in common. */
#include "simulator/alike.h"

#include "simulator/block_build.h"

#include <stdlib.h>
#include <string.h>

/* All that the price of an op depends on (costmodel/memo.c), and the stream, by which ops are
 * played. */
typedef struct priced_as {
    uint8_t kind, stream, math, pieces;
    uint16_t flags;
    bool input_gradient;
    mf_group_shape shape;
    int64_t dim[MF_OP_DIMS];
    double flops, bytes;
} priced_as;

/* An op that was priced. */
typedef struct known {
    priced_as as;
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
enum { MOST_OTHERS = 64, MORE_OTHERS = 8 };

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

static priced_as priced_as_of(const mf_op *op) {
    priced_as x = {.kind = op->kind,
                   .stream = op->stream,
                   .math = op->math,
                   .flags = op->flags,
                   .pieces = op->pieces,
                   .input_gradient = op->pass == MF_PASS_B,
                   .shape = op->shape,
                   .flops = op->flops,
                   .bytes = op->bytes};
    memcpy(x.dim, op->dim, sizeof x.dim);
    return x;
}

static bool same_price(const priced_as *a, const mf_op *b) {
    bool same = a->kind == b->kind && a->stream == b->stream && a->math == b->math &&
                a->flags == b->flags && a->pieces == b->pieces &&
                a->input_gradient == (b->pass == MF_PASS_B) && a->shape.size == b->shape.size &&
                a->shape.stride == b->shape.stride && !(a->flops < b->flops) &&
                !(a->flops > b->flops) && !(a->bytes < b->bytes) && !(a->bytes > b->bytes);
    return same && memcmp(a->dim, b->dim, sizeof a->dim) == 0;
}

static bool make_room(mf_alike *a, int room) {
    known *grown = room > a->room ? realloc(a->known, (size_t)room * sizeof *grown) : a->known;
    if (grown == NULL) {
        return false;
    }
    a->known = grown;
    a->room = room > a->room ? room : a->room;
    return true;
}

static bool make_places(mf_alike *a, int nops) {
    int room = nops > a->at_room ? 2 * nops : a->at_room;
    int *grown = room > a->at_room ? realloc(a->at, (size_t)room * sizeof *grown) : a->at;
    if (grown == NULL) {
        return false;
    }
    a->at = grown;
    a->at_room = room;
    return true;
}

/* Its place; -1: out of memory. */
static int append(mf_alike *a, const mf_op *op) {
    if (a->n == a->room && !make_room(a, a->n + MORE_OTHERS)) {
        return -1;
    }
    known *k = &a->known[a->n];
    k->as = priced_as_of(op);
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

/* Among the others, from the one on that was met last: they come in about the same order. -1: out
 * of memory. */
static int find_other(mf_alike *a, const mf_op *op) {
    int others = a->n - a->common;
    for (int k = 0, at = a->seen; k < others; k++) {
        at = at + 1 < a->n ? at + 1 : a->common;
        if (same_price(&a->known[at].as, op)) {
            a->seen = at;
            return at;
        }
    }
    int made = append(a, op);
    a->seen = made >= 0 ? made : a->seen;
    return made;
}

mf_status mf_alike_price(mf_alike *a, const mf_block *b, mf_err *e) {
    if (a->n - a->common > MOST_OTHERS) {
        a->n = a->common;
    }
    bool first = a->common == 0;
    if (!make_places(a, b->nops) || (first && !make_room(a, b->nops + MORE_OTHERS))) {
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    if (first) {
        price_first(a, b); /* for which there is room */
    }
    int next = 0; /* of those of F, then of the gradients */
    a->seen = a->common;
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        int at = op->pass == MF_PASS_R ? op->forward : next;
        bool found = at >= 0 && at < a->common && same_price(&a->known[at].as, op);
        a->at[i] = found ? at : find_other(a, op);
        if (a->at[i] < 0) {
            return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
        }
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
