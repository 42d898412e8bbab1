/* templates.c - a table of lowered and priced blocks. */
#include "planner/templates.h"

#include "planner/block_quote.h"
#include "planner/quote_key.h"
#include "simulator/priced.h"

#include <pthread.h>
#include <stdlib.h>

/* A search asks for the blocks of one layout together, some classes with up to 16 choices each, and
 * comes back to them with other groups. A block takes some 16 KiB. */
enum { SLOTS = 4096, PASSES = 3 };

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
    slot slot[SLOTS];
};

mf_status mf_templates_create(mf_templates **out, mf_err *e) {
    mf_templates *t = calloc(1, sizeof *t);
    *out = t;
    if (!t) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (int i = 0; i < SLOTS; i++) {
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
    for (int i = 0; t && i < SLOTS; i++) {
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

/* The template in the slot, made anew when it is another one; with the layout's groups. The lock is
 * held. */
static mf_status in_slot(const mf_block_prices *p, slot *s, const mf_layout *l,
                         const mf_block_key *key, const mf_quote_key *words, double load,
                         template **out, mf_err *e) {
    bool here = s->kept && mf_quote_key_same(&s->kept->key, words) && !(s->kept->load < load) &&
                !(s->kept->load > load);
    if (!here) {
        template *made;
        mf_status status = make(p, l, key, words, load, &made, e);
        if (status != MF_OK) {
            return status;
        }
        drop(s->kept);
        s->kept = made;
    }
    mf_priced_regroup(s->kept->priced, l);
    *out = s->kept;
    return MF_OK;
}

static int slot_of(const mf_quote_key *key) {
    return (int)((mf_quote_key_hash(key) >> 20) % SLOTS);
}

static void set_pass(const template *x, mf_go go, mf_pass_quote *q) {
    mf_block_quote_dp(q, x->rest_s[go], mf_priced_dp_s(x->priced, go));
    q->time_s = mf_priced_time_s(x->priced, go);
}

static void take_quote(const template *x, mf_quote *out) {
    *out = x->quote;
    set_pass(x, MF_GO_FORWARD, &out->f);
    set_pass(x, MF_GO_BACKWARD, &out->b);
    if (x->split) {
        set_pass(x, MF_GO_WEIGHTS, &out->w);
    }
}

mf_status mf_templates_quote(mf_templates *t, const mf_block_prices *p, const mf_layout *l,
                             const mf_block_key *key, double load, bool exact, mf_quote *out,
                             mf_err *e) {
    const mf_quote_key words = mf_template_key_of(p->model, l, key);
    slot own = {.kept = NULL}, *s = t ? &t->slot[slot_of(&words)] : &own;
    template *x = NULL;
    if (!exact) {
        return rough_quote(p, l, key, load, out, e);
    }
    if (t) {
        pthread_mutex_lock(&s->lock);
    }
    mf_status status = in_slot(p, s, l, key, &words, load, &x, e);
    if (status == MF_OK) {
        take_quote(x, out);
    }
    if (t) {
        pthread_mutex_unlock(&s->lock);
    }
    drop(own.kept);
    return status;
}

/* In order, so that no two threads wait for each other. */
static void lock_both(mf_templates *t, int i, int j) {
    pthread_mutex_lock(&t->slot[i < j ? i : j].lock);
    if (i != j) {
        pthread_mutex_lock(&t->slot[i < j ? j : i].lock);
    }
}

static void unlock_both(mf_templates *t, int i, int j) {
    pthread_mutex_unlock(&t->slot[i].lock);
    if (i != j) {
        pthread_mutex_unlock(&t->slot[j].lock);
    }
}

mf_status mf_templates_pair(mf_templates *t, const mf_block_prices *p, const mf_layout *l,
                            const mf_block_key *forward, const mf_block_key *backward, double load,
                            double *time_s, mf_err *e) {
    const mf_quote_key fw = mf_template_key_of(p->model, l, forward),
                       bw = mf_template_key_of(p->model, l, backward);
    int i = slot_of(&fw), j = slot_of(&bw);
    slot own[2] = {{.kept = NULL}, {.kept = NULL}};
    /* two blocks that share a slot: one of them has to be made for once */
    bool apart = i != j || mf_quote_key_same(&fw, &bw);
    slot *fs = t ? &t->slot[i] : &own[0], *bs = t && apart ? &t->slot[j] : &own[1];
    template *f = NULL, *b = NULL;
    if (t) {
        lock_both(t, i, j);
    }
    mf_status status = in_slot(p, fs, l, forward, &fw, load, &f, e);
    if (status == MF_OK) {
        status = in_slot(p, bs, l, backward, &bw, load, &b, e);
    }
    if (status == MF_OK) {
        status = mf_priced_pair_s(f->priced, b->priced, time_s, e);
    }
    if (t) {
        unlock_both(t, i, j);
    }
    drop(own[0].kept);
    drop(own[1].kept);
    return status;
}
