/* times.c - a hash table of block times. */
#include "simulator/times.h"

#include "simulator/anew.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
    int block, beside;
    unsigned passes;
    bool anew;
    uint64_t load; /* bits of the double */
    mf_block_time time;
} entry;

struct mf_times {
    const mf_cost *cost;
    const mf_program *p;
    bool keep_ops;
    size_t used, allocated; /* allocated: a power of two */
    entry **slot;
};

static uint64_t hash_of(const entry *k) {
    uint64_t h = k->load ^ ((uint64_t)k->block << 40) ^ ((uint64_t)(k->beside + 1) << 20) ^
                 (uint64_t)k->passes ^ ((uint64_t)k->anew << 16);
    h = (h ^ (h >> 33)) * 0xFF51AFD7ED558CCDu;
    h = (h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53u;
    return h ^ (h >> 33);
}

static bool same(const entry *a, const entry *b) {
    return a->load == b->load && a->block == b->block && a->beside == b->beside &&
           a->passes == b->passes && a->anew == b->anew;
}

/* Slot that holds the key, or the free one where it belongs. */
static entry **slot_of(entry **slot, size_t allocated, const entry *key) {
    size_t at = (size_t)hash_of(key) & (allocated - 1);
    while (slot[at] != NULL && !same(slot[at], key)) {
        at = (at + 1) & (allocated - 1);
    }
    return &slot[at];
}

static bool grow(mf_times *t) {
    size_t allocated = t->allocated ? 2 * t->allocated : 64;
    entry **slot = calloc(allocated, sizeof *slot), **old = t->slot;
    if (slot == NULL) {
        return false;
    }
    for (size_t i = 0; i < t->allocated; i++) {
        if (old[i] != NULL) {
            *slot_of(slot, allocated, old[i]) = old[i];
        }
    }
    t->slot = slot;
    t->allocated = allocated;
    free(old);
    return true;
}

mf_status mf_times_create(const mf_cost *cost, const mf_program *p, bool keep_ops, mf_times **out,
                          mf_err *e) {
    mf_times *t = calloc(1, sizeof *t);
    *out = t;
    if (t == NULL || !grow(t)) {
        free(t);
        *out = NULL;
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    t->cost = cost;
    t->p = p;
    t->keep_ops = keep_ops;
    return MF_OK;
}

void mf_times_destroy(mf_times *t) {
    if (t == NULL) {
        return;
    }
    for (size_t i = 0; i < t->allocated; i++) {
        if (t->slot[i] != NULL) {
            mf_block_time_clear(&t->slot[i]->time);
            free(t->slot[i]);
        }
    }
    free(t->slot);
    free(t);
}

/* The time of a first micro-batch from that of any other. */
static mf_status make_anew(mf_times *t, entry *x, double load, mf_err *e) {
    const int back = x->beside < 0 ? x->block : x->beside; /* it makes the weight gradients */
    const mf_block_time *other = NULL;
    mf_status status = mf_times_get(t, x->block, x->beside, x->passes, false, load, &other, e);
    if (status != MF_OK || other == NULL) {
        return status;
    }
    x->time = *other;
    if (other->op != NULL) {
        x->time.op = malloc(((size_t)other->nops + 1) * sizeof *x->time.op);
        if (x->time.op == NULL) {
            return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
        }
        memcpy(x->time.op, other->op, (size_t)other->nops * sizeof *x->time.op);
    }
    return mf_anew_take_off(t->cost, &t->p->model, &t->p->layout, t->p->blocks[back],
                            x->beside >= 0, &x->time, e);
}

static mf_status make(mf_times *t, entry *x, double load, mf_err *e) {
    if (x->anew) {
        return make_anew(t, x, load, e);
    }
    const mf_block *beside = x->beside < 0 ? NULL : t->p->blocks[x->beside];
    return mf_sim_block(t->cost, &t->p->layout, t->p->blocks[x->block], x->passes, beside, load,
                        t->keep_ops, &x->time, e);
}

mf_status mf_times_get(mf_times *t, int block, int beside, unsigned passes, bool anew, double load,
                       const mf_block_time **out, mf_err *e) {
    entry key = {.block = block, .beside = beside, .passes = passes, .anew = anew};
    memcpy(&key.load, &load, sizeof key.load);
    entry *const *known = slot_of(t->slot, t->allocated, &key);
    if (*known != NULL) {
        *out = &(*known)->time;
        return MF_OK;
    }
    entry *made = malloc(sizeof *made);
    if (made == NULL) {
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    *made = key;
    mf_status status = make(t, made, load, e);
    if (status == MF_OK && 2 * t->used >= t->allocated && !grow(t)) {
        status = mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    if (status != MF_OK) {
        mf_block_time_clear(&made->time);
        free(made);
        return status;
    }
    *slot_of(t->slot, t->allocated, &key) = made;
    t->used++;
    *out = &made->time;
    return MF_OK;
}
