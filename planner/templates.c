/* templates.c - a table of lowered and priced blocks. */
#include "planner/templates.h"

#include "planner/block_quote.h"
#include "planner/quote_key.h"
#include "simulator/priced.h"

#include <pthread.h>
#include <stdlib.h>

/* A search asks for the blocks of one layout together, some classes with up to 16 choices each, and
 * comes back to them with other groups. A block takes some 16 KiB. */
enum { SLOTS = 4096, ZERO_SLOTS = 1024, PASSES = 3 };

/* A block and what is known of it. */
typedef struct template {
    mf_quote_key key;
    double load;
    bool split;
    mf_priced *priced;
    mf_quote quote;        /* without times */
    double rest_s[PASSES]; /* see block_quote.h */
}
template;

typedef struct slot {
    pthread_mutex_t lock; /* held by whoever works with the template */
    template *kept;
} slot;

struct mf_templates {
    slot slot[SLOTS + ZERO_SLOTS]; /* the last ones: of weights alone, few and asked for often */
};

mf_status mf_templates_create(mf_templates **out, mf_err *e) {
    mf_templates *t = calloc(1, sizeof *t);
    *out = t;
    if (!t) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (int i = 0; i < SLOTS + ZERO_SLOTS; i++) {
        pthread_mutex_init(&t->slot[i].lock, NULL);
    }
    return MF_OK;
}

static void drop(template *x) {
    if (x) {
        mf_priced_destroy(x->priced);
    }
    free(x);
}

void mf_templates_destroy(mf_templates *t) {
    for (int i = 0; t && i < SLOTS + ZERO_SLOTS; i++) {
        drop(t->slot[i].kept);
        pthread_mutex_destroy(&t->slot[i].lock);
    }
    free(t);
}

/* --- making ----------------------------------------------------------------------------------- */

/* Times of the ops, then room for four figures of every tensor. */
static double *room_for(const mf_block *b, mf_err *e) {
    double *room = malloc(((size_t)b->nops + 4 * (size_t)b->ntensors + 1) * sizeof *room);
    if (!room) {
        mf_err_set(e, MF_NOMEM, "out of memory");
    }
    return room;
}

static mf_status make(const mf_block_prices *p, const mf_layout *l, const mf_block_key *key,
                      const mf_quote_key *words, double load, template **out, mf_err *e) {
    template *x = calloc(1, sizeof *x);
    mf_block *b = NULL;
    double *op_s = NULL;
    *out = NULL;
    if (!x) {
        (void)mf_err_set(e, MF_NOMEM, "out of memory");
        return MF_NOMEM;
    }
    mf_status status = mf_block_lower_uncut(p->model, l, mf_cost_cluster(p->cost), key, &b, e);
    if (status == MF_OK) {
        status = mf_priced_create(p->cost, l, b, key->split, load, &x->priced, e);
    }
    if (status == MF_OK) {
        op_s = room_for(b, e);
        status = op_s ? MF_OK : MF_NOMEM;
    }
    if (op_s) {
        for (int i = 0; i < b->nops; i++) {
            op_s[i] = mf_priced_op_s(x->priced, i);
        }
        mf_block_quote(p->cost, l, b, key, op_s, op_s + b->nops, &x->quote, x->rest_s);
        x->key = *words;
        x->load = load;
        x->split = key->split;
        *out = x;
        x = NULL;
    }
    drop(x);
    free(op_s);
    mf_block_destroy(b);
    return status;
}

/* The quote without times needs no play, and is asked for many blocks that nobody plays. */
static mf_status rough_quote(const mf_block_prices *p, const mf_layout *l, const mf_block_key *key,
                             double load, mf_quote *out, mf_err *e) {
    mf_block *b = NULL;
    double rest_s[PASSES];
    mf_status status = mf_block_lower_uncut(p->model, l, mf_cost_cluster(p->cost), key, &b, e);
    if (status != MF_OK) {
        return status;
    }
    double *op_s = room_for(b, e);
    for (int i = 0; op_s && i < b->nops; i++) {
        mf_price price;
        mf_cost_op(p->cost, &b->ops[i], load, &price);
        op_s[i] = price.time_s;
    }
    if (op_s) {
        mf_block_quote(p->cost, l, b, key, op_s, op_s + b->nops, out, rest_s);
    }
    status = op_s ? MF_OK : MF_NOMEM;
    free(op_s);
    mf_block_destroy(b);
    return status;
}

/* --- the table -------------------------------------------------------------------------------- */

static int slot_of(const mf_quote_key *key, bool zero) {
    uint64_t hash = mf_quote_key_hash(key) >> 20;
    return zero ? SLOTS + (int)(hash % ZERO_SLOTS) : (int)(hash % SLOTS);
}

/* A template that is worked with. */
typedef struct held {
    mf_layout layout;
    mf_block_key key;
    mf_quote_key words;
    int at;      /* its slot */
    slot own;    /* where that is none's, or another's */
    template *x; /* with the layout's groups */
} held;

/* Without ZeRO inside blocks gathers and reductions are missing, and nothing else differs where no
 * op waits for these: then they are taken from a block with the same weights, and the rest from the
 * block without ZeRO, which layouts of all levels share. */
typedef struct pieces {
    held *block, *zero; /* zero NULL: the block is whole */
} pieces;

enum { MOST_HELD = 4 };

/* What a task works with, locked. */
typedef struct holding {
    mf_templates *t;
    const mf_block_prices *p;
    double load;
    held held[MOST_HELD];
    int n;
} holding;

static held *want(holding *h, const mf_layout *l, const mf_block_key *key, bool zero) {
    held *x = &h->held[h->n];
    *x = (held){.layout = *l, .key = *key};
    x->words = mf_template_key_of(h->p->model, l, key);
    for (int i = 0; i < h->n; i++) {
        if (mf_quote_key_same(&h->held[i].words, &x->words) && (h->held[i].at >= SLOTS) == zero) {
            return &h->held[i];
        }
    }
    x->at = slot_of(&x->words, zero);
    h->n++;
    return x;
}

/* Gathers and reductions follow from the weights of a rank: neither from what it computes with them
 * nor from what it keeps. Context parallelism counts by the group alone. */
static mf_layout weights_layout(const mf_layout *l) {
    mf_layout w = *l;
    w.mbs = 1;
    w.dp *= w.cp;
    w.cp = 1;
    w.cp_type = MF_CP_RING;
    return w;
}

static pieces want_block(holding *h, const mf_layout *l, const mf_block_key *key) {
    mf_layout none = *l;
    bool layer = key->kind == MF_POS_LAYER || key->kind == MF_POS_MTP;
    none.zero = none.expert_zero = 0;
    const mf_quote_key own = mf_template_key_of(h->p->model, l, key),
                       plain = mf_template_key_of(h->p->model, &none, key);
    if (!layer || key->split || key->parts != MF_HALF_BOTH || !(l->overlap & MF_OVERLAP_DP) ||
        mf_quote_key_same(&own, &plain)) {
        return (pieces){want(h, l, key, false), NULL};
    }
    const mf_layout weights = weights_layout(l);
    mf_block_key keeps = *key;
    keeps.memory = (mf_memory_choice){0, 0};
    pieces x = {want(h, &none, key, false), NULL};
    x.zero = want(h, &weights, &keeps, true);
    return x;
}

static bool is_first_at(const holding *h, int i) {
    for (int k = 0; k < i; k++) {
        if (h->held[k].at == h->held[i].at) {
            return false;
        }
    }
    return true;
}

/* Locks the slots in order, so that no two threads wait for each other. */
static void lock_all(holding *h) {
    for (int done = -1; h->t;) {
        int next = SLOTS + ZERO_SLOTS;
        for (int i = 0; i < h->n; i++) {
            next = h->held[i].at > done && h->held[i].at < next ? h->held[i].at : next;
        }
        if (next == SLOTS + ZERO_SLOTS) {
            return;
        }
        pthread_mutex_lock(&h->t->slot[next].lock);
        done = next;
    }
}

static void release(holding *h) {
    for (int i = 0; i < h->n; i++) {
        if (h->t && is_first_at(h, i)) {
            pthread_mutex_unlock(&h->t->slot[h->held[i].at].lock);
        }
        drop(h->held[i].own.kept);
    }
}

/* The template in the slot, made anew when it is another one; with the layout's groups. */
static mf_status in_slot(const holding *h, slot *s, held *x, mf_err *e) {
    bool here = s->kept && mf_quote_key_same(&s->kept->key, &x->words) &&
                !(s->kept->load < h->load) && !(s->kept->load > h->load);
    if (!here) {
        template *made;
        mf_status status = make(h->p, &x->layout, &x->key, &x->words, h->load, &made, e);
        if (status != MF_OK) {
            return status;
        }
        drop(s->kept);
        s->kept = made;
    }
    mf_priced_regroup(s->kept->priced, &x->layout);
    x->x = s->kept;
    return MF_OK;
}

/* All that is wanted; of several in one slot all but the first are made for once. */
static mf_status hold(holding *h, mf_err *e) {
    mf_status status = MF_OK;
    lock_all(h);
    for (int i = 0; i < h->n && status == MF_OK; i++) {
        held *x = &h->held[i];
        status = in_slot(h, h->t && is_first_at(h, i) ? &h->t->slot[x->at] : &x->own, x, e);
    }
    return status;
}

static mf_priced_zero priced_of(const pieces *x) {
    return (mf_priced_zero){x->block->x->priced, x->zero ? x->zero->x->priced : NULL};
}

static mf_status set_pass(const pieces *x, mf_go go, bool exact, mf_pass_quote *q, mf_err *e) {
    const mf_priced_zero p = priced_of(x);
    const mf_priced *dp = p.zero ? p.zero : p.block;
    mf_block_quote_dp(q, x->block->x->rest_s[go], mf_priced_dp_s(dp, go));
    q->host_s += p.zero ? mf_priced_dp_host_s(p.zero, go) : 0;
    return exact ? mf_priced_zero_s(&p, go, &q->time_s, e) : MF_OK;
}

static mf_status take_quote(const pieces *x, bool exact, mf_quote *out, mf_err *e) {
    *out = x->block->x->quote;
    if (x->zero) {
        out->gather_B = x->zero->x->quote.gather_B;
    }
    mf_status status = set_pass(x, MF_GO_FORWARD, exact, &out->f, e);
    if (status == MF_OK) {
        status = set_pass(x, MF_GO_BACKWARD, exact, &out->b, e);
    }
    if (status == MF_OK && x->block->x->split) {
        status = set_pass(x, MF_GO_WEIGHTS, exact, &out->w, e);
    }
    return status;
}

mf_status mf_templates_quote(mf_templates *t, const mf_block_prices *p, const mf_layout *l,
                             const mf_block_key *key, double load, bool exact, mf_quote *out,
                             mf_err *e) {
    holding h = {.t = t, .p = p, .load = load};
    const pieces x = want_block(&h, l, key);
    if (!exact && !x.zero) {
        return rough_quote(p, l, key, load, out, e);
    }
    mf_status status = hold(&h, e);
    if (status == MF_OK) {
        status = take_quote(&x, exact, out, e);
    }
    release(&h);
    return status;
}

mf_status mf_templates_pair(mf_templates *t, const mf_block_prices *p, const mf_layout *l,
                            const mf_block_key *forward, const mf_block_key *backward, double load,
                            double *time_s, mf_err *e) {
    holding h = {.t = t, .p = p, .load = load};
    const pieces f = want_block(&h, l, forward), b = want_block(&h, l, backward);
    mf_status status = hold(&h, e);
    if (status == MF_OK) {
        const mf_priced_zero fp = priced_of(&f), bp = priced_of(&b);
        status = mf_priced_pair_s(&fp, &bp, time_s, e);
    }
    release(&h);
    return status;
}
