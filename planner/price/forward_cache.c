/* forward_cache.c - a table of forward passes with prices. */
#include "planner/price/forward_cache.h"

#include "planner/price/cost_key.h"

#include <pthread.h>
#include <stdlib.h>

/* Threads that come to the same layer at once each have their own. */
enum { SLOTS = 96, WAYS = 2 }; /* some 40 KiB each */

typedef struct mf_forward_slot {
    pthread_mutex_t lock; /* held by whoever works with what is kept */
    mf_quote_key key;
    double load;
    mf_forward *forward; /* NULL: nothing is kept */
    mf_alike *alike;
    mf_quoted_forward quoted; /* of choices that do not offload */
} slot;

struct mf_forwards {
    slot slot[SLOTS * WAYS];
};

static void drop(slot *s) {
    mf_forward_destroy(s->forward);
    mf_alike_destroy(s->alike);
    s->forward = NULL;
    s->alike = NULL;
}

mf_status mf_forwards_create(mf_forwards **out, mf_err *e) {
    mf_forwards *t = calloc(1, sizeof *t);
    *out = t;
    if (!t) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (int i = 0; i < SLOTS * WAYS; i++) {
        pthread_mutex_init(&t->slot[i].lock, NULL);
    }
    return MF_OK;
}

void mf_forwards_destroy(mf_forwards *t) {
    for (int i = 0; t && i < SLOTS * WAYS; i++) {
        drop(&t->slot[i]);
        pthread_mutex_destroy(&t->slot[i].lock);
    }
    free(t);
}

/* Is it one of many that come from one forward pass, and does its key say all of it (with ZeRO
 * inside, sizes of groups are missing there)? */
static bool has_siblings(const mf_layout *l, const mf_block_key *key) {
    bool layer = key->kind == MF_POS_LAYER || key->kind == MF_POS_MTP;
    return layer && key->parts == MF_HALF_BOTH && l->zero < 2 && l->expert_zero < 2;
}

static mf_quote_key family_of(const mf_model *m, const mf_layout *l, const mf_block_key *key) {
    mf_block_key any = *key;
    any.memory = (mf_memory_choice){0, 0};
    any.split = any.unplaced = false;
    return mf_template_key_of(m, l, &any);
}

static mf_status make(slot *s, const mf_block_prices *p, const mf_layout *l,
                      const mf_block_key *key, const mf_quote_key *words, double load, mf_err *e) {
    drop(s);
    mf_status status = mf_forward_lower(p->model, l, mf_cost_cluster(p->cost), key, &s->forward, e);
    if (status == MF_OK) {
        status = mf_alike_create(p->cost, load, &s->alike, e);
    }
    if (status != MF_OK) {
        drop(s);
    }
    s->quoted.known = false;
    s->key = *words;
    s->load = load;
    return status;
}

static mf_status from_slot(slot *s, const mf_block_prices *p, const mf_layout *l,
                           const mf_block_key *key, const mf_quote_key *words, double load,
                           mf_made_block *out, mf_err *e) {
    mf_status status = MF_OK;
    bool here =
        s->forward && mf_quote_key_same(&s->key, words) && !(s->load < load) && !(s->load > load);
    if (!here) {
        status = make(s, p, l, key, words, load, e);
    }
    if (status == MF_OK) {
        status = mf_forward_block(s->forward, key, &out->block, e);
    }
    if (status == MF_OK) {
        status = mf_alike_price(s->alike, out->block, e);
        out->alike = s->alike;
        out->forward = key->memory.offload == 0 ? &s->quoted : NULL;
    }
    return status;
}

/* A slot for the hash; NULL: other threads are at all of them, and nobody waits. */
static slot *locked(mf_forwards *t, uint64_t hash) {
    for (int i = 0; i < WAYS; i++) {
        slot *s = &t->slot[hash % SLOTS * WAYS + (uint64_t)i];
        if (pthread_mutex_trylock(&s->lock) == 0) {
            return s;
        }
    }
    return NULL;
}

mf_status mf_forwards_block(mf_forwards *t, const mf_block_prices *p, const mf_layout *l,
                            const mf_block_key *key, double load, mf_made_block *out, mf_err *e) {
    *out = (mf_made_block){.block = NULL};
    if (t && has_siblings(l, key)) {
        const mf_quote_key words = family_of(p->model, l, key);
        slot *s = locked(t, mf_quote_key_hash(&words) >> 20);
        if (s) {
            out->slot = s;
            mf_status status = from_slot(s, p, l, key, &words, load, out, e);
            if (status != MF_OK) {
                mf_forwards_let_go(out);
            }
            return status;
        }
    }
    return mf_block_lower_uncut(p->model, l, mf_cost_cluster(p->cost), key, &out->block, e);
}

void mf_forwards_let_go(mf_made_block *b) {
    mf_block_destroy(b->block);
    b->block = NULL;
    b->alike = NULL;
    if (b->slot) {
        pthread_mutex_unlock(&b->slot->lock);
        b->slot = NULL;
    }
}
