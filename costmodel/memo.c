/* memo.c - prices that were asked for lately. A step program repeats few shapes often, and so do
 * the layouts of a search; a price from the fields of measured points costs some hundred times as
 * much as finding it again.
 */
#include "costmodel/cost_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 16, ENTRIES = 1024 };

/* All of an op that a price may depend on. */
typedef struct key {
    uint8_t kind, pass, stream, math, module, flags, group, piece, pieces, used, pad[6];
    int64_t size, stride;
    int64_t dim[MF_OP_DIMS];
    double flops, bytes, load;
} key;

typedef struct entry {
    key key;
    mf_price price;
} entry;

typedef struct part {
    pthread_mutex_t lock;
    entry entry[ENTRIES];
} part;

struct mf_price_memo {
    part part[PARTS];
};

mf_price_memo *mf_price_memo_create(void) {
    mf_price_memo *m = calloc(1, sizeof *m);
    for (int i = 0; m != NULL && i < PARTS; i++) {
        pthread_mutex_init(&m->part[i].lock, NULL);
    }
    return m;
}

void mf_price_memo_destroy(mf_price_memo *m) {
    for (int i = 0; m != NULL && i < PARTS; i++) {
        pthread_mutex_destroy(&m->part[i].lock);
    }
    free(m);
}

static key key_of(const mf_op *op, double load) {
    key k;
    memset(&k, 0, sizeof k); /* padding too: keys are compared as bytes */
    k.kind = op->kind;
    k.pass = op->pass;
    k.stream = op->stream;
    k.math = op->math;
    k.module = op->module;
    k.flags = op->flags;
    k.group = op->group;
    k.piece = op->piece;
    k.pieces = op->pieces;
    k.used = 1;
    k.size = op->shape.size;
    k.stride = op->shape.stride;
    memcpy(k.dim, op->dim, sizeof k.dim);
    k.flops = op->flops;
    k.bytes = op->bytes;
    k.load = load;
    return k;
}

static uint64_t hash_of(const key *k) {
    uint64_t word[sizeof *k / sizeof(uint64_t)], h = UINT64_C(0x243f6a8885a308d3);
    memcpy(word, k, sizeof word);
    for (size_t i = 0; i < sizeof word / sizeof *word; i++) {
        h = (h ^ word[i]) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 32;
    }
    return h;
}

void mf_price_memo_get(mf_price_memo *m, const mf_cost *cost, const mf_op *op, double load,
                       mf_price_fn price, mf_price *out) {
    key k = key_of(op, load);
    uint64_t h = hash_of(&k);
    part *p = &m->part[h % PARTS];
    entry *e = &p->entry[h / PARTS % ENTRIES];
    pthread_mutex_lock(&p->lock);
    bool found = memcmp(&e->key, &k, sizeof k) == 0;
    if (found) {
        *out = e->price;
    }
    pthread_mutex_unlock(&p->lock);
    if (found) {
        return;
    }
    price(cost, op, load, out);
    pthread_mutex_lock(&p->lock); /* the later one stays; a price is the same whoever asks */
    e->key = k;
    e->price = *out;
    pthread_mutex_unlock(&p->lock);
}
