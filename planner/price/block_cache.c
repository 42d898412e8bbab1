/* block_cache.c - a table of lowered and priced blocks. */
#include "planner/price/block_cache.h"

#include "core/base/scratch.h"
#include "core/base/table.h"
#include "planner/price/block_cost.h"
#include "planner/price/cost_key.h"
#include "simulator/anew.h"
#include "simulator/priced.h"

#include <pthread.h>
#include <stdlib.h>

/* A search asks for the blocks of one layout together, some classes with up to 16 choices each, and
 * comes back to them with other groups. A block takes some 4 KiB; a table of twelve sizes asks for
 * 36,000. */
enum { SLOTS = 32768, ZERO_SLOTS = 8192 };
/* Summaries of layers that were lowered and not kept, half a KiB each. */
enum { SUMMARIES = 32768, SUMMARY_LOCKS = 64 };

/* The summary of a lowered block, without its ops: forward, backward, weight gradients split off.
 */
typedef struct mf_block_summary {
    mf_block_cost cost; /* without times of plays */
    double rest_s[3];   /* see block_cost.h */
    double early_B;     /* of held_B: gradients that wait for their reduction behind a split pass */
} mf_block_summary;

/* A block and its summary. */
typedef struct block_entry {
    mf_cost_key key;
    double load;
    mf_priced *priced;
    mf_block_summary summary;
} block_entry;

typedef struct slot {
    pthread_rwlock_t lock; /* read: `kept` is used alone, with the groups that it has; write: it is
                            * replaced, regrouped or used together with others */
    block_entry *kept;
} slot;

/* The summary of a layer without ZeRO, from which all ZeRO levels are made. */
typedef struct summary_entry {
    mf_cost_key key;
    double load; /* 0: none is known */
    mf_block_summary summary;
} summary_entry;

struct mf_block_cache {
    slot slot[SLOTS + ZERO_SLOTS]; /* the last ones: of weights alone, few and asked for often */
    pthread_mutex_t summary_lock[SUMMARY_LOCKS];
    summary_entry *summary; /* [SUMMARIES] */
};

static void drop(block_entry *x) {
    if (x) {
        mf_priced_destroy(x->priced);
    }
    free(x);
}

void mf_block_cache_destroy(mf_block_cache *t) {
    if (!t) {
        return;
    }
    for (int i = 0; i < SLOTS + ZERO_SLOTS; i++) {
        drop(t->slot[i].kept);
        pthread_rwlock_destroy(&t->slot[i].lock);
    }
    for (int i = 0; i < SUMMARY_LOCKS; i++) {
        pthread_mutex_destroy(&t->summary_lock[i]);
    }
    mf_table_destroy(t->summary);
    mf_table_destroy(t);
}

mf_status mf_block_cache_create(mf_block_cache **out, mf_err *e) {
    mf_block_cache *t = mf_table_create(sizeof *t);
    *out = t;
    if (t) {
        t->summary = mf_table_create(SUMMARIES * sizeof *t->summary);
    }
    if (!t || !t->summary) {
        mf_table_destroy(t);
        *out = NULL;
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (int i = 0; i < SLOTS + ZERO_SLOTS; i++) {
        pthread_rwlock_init(&t->slot[i].lock, NULL);
    }
    for (int i = 0; i < SUMMARY_LOCKS; i++) {
        pthread_mutex_init(&t->summary_lock[i], NULL);
    }
    return MF_OK;
}

/* --- making ----------------------------------------------------------------------------------- */

/* Times of the ops, then and four figures of every tensor. */
static double *new_times(const mf_block *b, mf_err *e) {
    double *figures =
        mf_scratch_take(((size_t)b->nops + 4 * (size_t)b->ntensors + 1) * sizeof *figures);
    if (!figures) {
        mf_err_set(e, MF_NOMEM, "out of memory");
    }
    return figures;
}

/* Gradients that passes before the split-off one leave to it. */
static double early_B(const mf_block *b) {
    int64_t bytes = 0;
    for (int t = 0; t < b->ntensors; t++) {
        const mf_tensor *x = &b->tensors[t];
        bytes += x->class == MF_TENSOR_GRADIENT && x->for_w ? mf_align_B(x->bytes) : 0;
    }
    return (double)bytes;
}

/* op_s: from new_times. */
static mf_block_summary block_summary_of(const mf_block_prices *p, const mf_layout *l,
                                         const mf_block *b, const mf_block_key *key, double *op_s) {
    mf_block_summary f;
    mf_block_cost_make(p->cost, l, b, key, op_s, op_s + b->nops, &f.cost, f.rest_s);
    mf_anew_sides_s(p->cost, p->model, b, f.cost.anew_s);
    f.early_B = early_B(b);
    return f;
}

static void price_ops(const mf_block_prices *p, const mf_block *b, double load, double *op_s) {
    enum { TOGETHER = 64 };
    mf_price price[TOGETHER];
    for (int i = 0; i < b->nops; i += TOGETHER) {
        const int some = b->nops - i < TOGETHER ? b->nops - i : TOGETHER;
        mf_cost_ops(p->cost, &b->ops[i], some, load, price);
        for (int k = 0; k < some; k++) {
            op_s[i + k] = price[k].time_s;
        }
    }
}

static mf_status lower(const mf_block_prices *p, const mf_layout *l, const mf_block_key *key,
                       mf_block **out, mf_err *e) {
    return mf_block_lower_without_runs(p->model, l, mf_cost_cluster(p->cost), key, out, e);
}

/* As simulator/block_build.c has it. */
static void hold_clock(const mf_cost *cost, const mf_block *b, double load, double *op_s) {
    double stretch = mf_cost_stretch(cost, b, load, op_s);
    for (int i = 0; i < b->nops; i++) {
        op_s[i] *= mf_cost_slowed(cost, &b->ops[i], stretch);
    }
}

/* Without times of plays, which many blocks need not that are asked for. */
static mf_status find_block_summary(const mf_block_prices *p, const mf_layout *l,
                                    const mf_block_key *key, double load, mf_block_summary *out,
                                    mf_err *e) {
    mf_block *b = NULL;
    mf_status status = lower(p, l, key, &b, e);
    if (status != MF_OK) {
        return status;
    }
    double *op_s = new_times(b, e);
    if (op_s) {
        price_ops(p, b, load, op_s);
        hold_clock(p->cost, b, load, op_s);
        *out = block_summary_of(p, l, b, key, op_s);
    }
    status = op_s ? MF_OK : MF_NOMEM;
    mf_scratch_give(op_s);
    mf_block_destroy(b);
    return status;
}

/* --- the table -------------------------------------------------------------------------------- */

static int slot_of(const mf_cost_key *key, bool zero) {
    uint64_t hash = mf_cost_key_hash(key) >> 20;
    return zero ? SLOTS + (int)(hash % ZERO_SLOTS) : (int)(hash % SLOTS);
}

/* An entry in use. */
typedef struct held {
    mf_layout layout;
    mf_block_key key;
    mf_cost_key words;
    double load;    /* of its busiest expert rank */
    int at;         /* its slot */
    slot own;       /* used without a table, or if another block of this call has its slot */
    block_entry *x; /* with the layout's groups */
} held;

/* Without ZeRO inside blocks gathers and reductions are missing, and nothing else differs where no
 * op waits for these: then they are taken from a block with the same weights, and the rest from the
 * block without ZeRO, the same for layouts of all levels. */
typedef struct pieces {
    held *block, *zero; /* zero NULL: the block is whole */
} pieces;

enum { MOST_HELD = 4 };

/* The entries that a task has locked. */
typedef struct holding {
    mf_block_cache *t;
    const mf_block_prices *p;
    held held[MOST_HELD];
    int n;
} holding;

static bool same_load(double a, double b) {
    return !(a < b) && !(a > b);
}

static held *acquire(holding *h, const mf_layout *l, const mf_block_key *key,
                     const mf_cost_key *words, double load, bool zero) {
    held *x = &h->held[h->n];
    *x = (held){.layout = *l, .key = *key, .words = *words, .load = load};
    for (int i = 0; i < h->n; i++) {
        held *known = &h->held[i];
        if (mf_cost_key_same(&known->words, &x->words) && same_load(known->load, load) &&
            (known->at >= SLOTS) == zero) {
            return known;
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
    w.dispatcher = MF_DISPATCH_ALLTOALL; /* which needs no group that suits it */
    return w;
}

/* The parts that make up the block of a key. */
typedef struct recipe {
    mf_layout block;   /* of the block itself */
    mf_layout weights; /* and of what ZeRO adds to it, */
    mf_block_key keeps;
    mf_cost_key words; /* the block's */
    bool zero;         /* where it adds anything */
} recipe;

static recipe recipe_of(const mf_model *m, const mf_layout *l, const mf_block_key *key) {
    recipe x = {.block = *l, .words = mf_block_cache_key_of(m, l, key)};
    if (l->zero < 2 && l->expert_zero < 2) {
        return x;
    }
    mf_layout none = *l;
    none.zero = none.expert_zero = 0;
    const mf_cost_key words = mf_block_cache_key_of(m, &none, key);
    bool layer = key->kind == MF_POS_LAYER || key->kind == MF_POS_MTP;
    x.zero = !mf_cost_key_same(&x.words, &words) && layer && key->parts == MF_HALF_BOTH &&
             (l->overlap & MF_OVERLAP_DP) != 0;
    if (x.zero) {
        x.block = none;
        x.words = words;
        x.weights = weights_layout(l);
        x.keeps = *key;
        x.keeps.memory = (mf_memory_choice){0, 0};
        x.keeps.unplaced = true;
        x.keeps.at_end = false;
    }
    return x;
}

static pieces want_block(holding *h, const recipe *x, const mf_block_key *key, double load) {
    pieces out = {acquire(h, &x->block, key, &x->words, load, false), NULL};
    if (x->zero) {
        const mf_cost_key words = mf_block_cache_key_of(h->p->model, &x->weights, &x->keeps);
        out.zero = acquire(h, &x->weights, &x->keeps, &words, load, true);
    }
    return out;
}

/* The slot of a block's summary, and its lock. */
static summary_entry *summary_slot(mf_block_cache *t, const mf_cost_key *key,
                                   pthread_mutex_t **lock) {
    const uint64_t i = (mf_cost_key_hash(key) >> 20) % SUMMARIES;
    *lock = &t->summary_lock[i % SUMMARY_LOCKS];
    return &t->summary[i];
}

static bool is_whole_layer(const mf_block_key *key) {
    return (key->kind == MF_POS_LAYER || key->kind == MF_POS_MTP) && key->parts == MF_HALF_BOTH;
}

/* As find_block_summary, of layers from what was found before: ZeRO levels from 2 on, sixteen of
 * which rest on one block, would lower it each time. */
static mf_status recall_summary(mf_block_cache *t, const mf_block_prices *p, const recipe *x,
                                const mf_block_key *key, double load, mf_block_summary *out,
                                mf_err *e) {
    pthread_mutex_t *lock;
    if (!t || !is_whole_layer(key)) {
        return find_block_summary(p, &x->block, key, load, out, e);
    }
    summary_entry *known = summary_slot(t, &x->words, &lock);
    pthread_mutex_lock(lock);
    const bool found = same_load(known->load, load) && mf_cost_key_same(&known->key, &x->words);
    if (found) {
        *out = known->summary;
    }
    pthread_mutex_unlock(lock);
    const mf_status status = found ? MF_OK : find_block_summary(p, &x->block, key, load, out, e);
    if (!found && status == MF_OK) {
        pthread_mutex_lock(lock);
        *known = (summary_entry){x->words, load, *out};
        pthread_mutex_unlock(lock);
    }
    return status;
}

static bool is_first_at(const holding *h, int i) {
    for (int k = 0; k < i; k++) {
        if (h->held[k].at == h->held[i].at) {
            return false;
        }
    }
    return true;
}

static bool is_here(const slot *s, const held *x) {
    return s->kept && mf_cost_key_same(&s->kept->key, &x->words) &&
           same_load(s->kept->load, x->load);
}

/* To read it, where it is as it is wanted. */
static void lock_slot(const holding *h, const held *x) {
    slot *s = &h->t->slot[x->at];
    pthread_rwlock_rdlock(&s->lock);
    if (!is_here(s, x) || !mf_priced_suits(s->kept->priced, &x->layout)) {
        pthread_rwlock_unlock(&s->lock);
        pthread_rwlock_wrlock(&s->lock);
    }
}

/* Locks the slots in order, so that no two threads wait for each other. */
static void lock_all(holding *h) {
    for (int done = -1; h->t;) {
        const held *next = NULL; /* the first one in the next slot */
        for (int i = 0; i < h->n; i++) {
            const held *x = &h->held[i];
            next = x->at > done && (!next || x->at < next->at) ? x : next;
        }
        if (!next) {
            return;
        }
        lock_slot(h, next);
        done = next->at;
    }
}

static void release(holding *h) {
    for (int i = 0; i < h->n; i++) {
        if (h->t && is_first_at(h, i)) {
            pthread_rwlock_unlock(&h->t->slot[h->held[i].at].lock);
        }
        drop(h->held[i].own.kept);
    }
}

static mf_status price_block(const holding *h, const held *x, const mf_block *b, block_entry *out,
                             mf_err *e) {
    double *op_s = new_times(b, e);
    for (int i = 0; op_s && i < b->nops; i++) {
        op_s[i] = mf_priced_op_s(out->priced, i);
    }
    if (op_s) {
        out->summary = block_summary_of(h->p, &x->layout, b, &x->key, op_s);
    }
    mf_scratch_give(op_s);
    return op_s ? MF_OK : MF_NOMEM;
}

static mf_status make(const holding *h, const held *from, block_entry **out, mf_err *e) {
    block_entry *x = calloc(1, sizeof *x);
    mf_block *b = NULL;
    *out = NULL;
    if (!x) {
        (void)mf_err_set(e, MF_NOMEM, "out of memory");
        return MF_NOMEM;
    }
    mf_status status = lower(h->p, &from->layout, &from->key, &b, e);
    if (status == MF_OK) {
        status = mf_priced_create(h->p->cost, &from->layout, b, from->key.split, from->key.at_end,
                                  from->load, &x->priced, e);
    }
    if (status == MF_OK) {
        status = price_block(h, from, b, x, e);
    }
    mf_block_destroy(b);
    if (status != MF_OK) {
        drop(x);
        return status;
    }
    x->key = from->words;
    x->load = from->load;
    *out = x;
    return MF_OK;
}

/* The entry in the slot, made anew when it is another one; with the layout's groups. */
static mf_status in_slot(const holding *h, slot *s, held *x, mf_err *e) {
    if (!is_here(s, x)) {
        block_entry *made;
        mf_status status = make(h, x, &made, e);
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

/* Finds or makes all blocks that are wanted; if several have one slot, all but the first are made
 * for this call only. */
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

static mf_pass_cost *pass_of(mf_block_cost *q, mf_play_pass pass) {
    return pass == MF_PLAY_FORWARD ? &q->f : pass == MF_PLAY_BACKWARD ? &q->b : &q->w;
}

static int pass_count_of(const mf_block_key *key) {
    return key->split ? MF_PLAY_PASSES : MF_PLAY_WEIGHTS;
}

/* What a block takes with the gathers and reductions of `dp`: of its own, under the layout's
 * groups, or (zero) those that are missing in it. */
static mf_block_cost with_dp(const mf_block_summary *f, const mf_block_key *key,
                             const block_entry *dp, bool zero) {
    mf_block_cost q = f->cost;
    if (zero) {
        q.gather_B = dp->summary.cost.gather_B;
        q.held_B += dp->summary.early_B;
    }
    for (int pass = 0; pass < pass_count_of(key); pass++) {
        mf_pass_cost *cost = pass_of(&q, (mf_play_pass)pass);
        mf_block_cost_dp(cost, f->rest_s[pass], mf_priced_dp_s(dp->priced, (mf_play_pass)pass));
        cost->host_s += zero ? mf_priced_dp_host_s(dp->priced, (mf_play_pass)pass) : 0;
    }
    return q;
}

static mf_status unplayed_cost(mf_block_cache *t, const mf_block_prices *p, const recipe *x,
                               const mf_block_key *key, double load, mf_block_cost *out,
                               mf_err *e) {
    mf_block_summary summary;
    mf_status status = recall_summary(t, p, x, key, load, &summary, e);
    if (status != MF_OK) {
        return status;
    }
    if (!x->zero) {
        *out = summary.cost;
        return MF_OK;
    }
    holding h = {.t = t, .p = p};
    const mf_cost_key words = mf_block_cache_key_of(p->model, &x->weights, &x->keeps);
    const held *zero = acquire(&h, &x->weights, &x->keeps, &words, load, true);
    status = hold(&h, e);
    if (status == MF_OK) {
        *out = with_dp(&summary, key, zero->x, true);
    }
    release(&h);
    return status;
}

static mf_status played_cost(holding *h, const recipe *x, const mf_block_key *key, double load,
                             mf_block_cost *out, mf_err *e) {
    const pieces made = want_block(h, x, key, load);
    mf_status status = hold(h, e);
    if (status != MF_OK) {
        return status;
    }
    const mf_priced_zero priced = priced_of(&made);
    const mf_block_summary *summary = &made.block->x->summary;
    *out = with_dp(summary, key, (x->zero ? made.zero : made.block)->x, x->zero);
    for (int pass = 0; pass < pass_count_of(key) && status == MF_OK; pass++) {
        mf_pass_cost *cost = pass_of(out, (mf_play_pass)pass);
        status = mf_priced_zero_s(&priced, (mf_play_pass)pass, &cost->time_s, e);
        cost->network =
            cost->time_s > 0
                ? mf_priced_link_s(priced.block, (mf_play_pass)pass, MF_LINK_NETWORK) / cost->time_s
                : 0;
    }
    return status;
}

mf_status mf_block_cache_cost(mf_block_cache *t, const mf_block_prices *p, const mf_layout *l,
                              const mf_block_key *key, double load, bool exact, mf_block_cost *out,
                              mf_err *e) {
    const recipe x = recipe_of(p->model, l, key);
    mf_status status;
    if (exact) {
        holding h = {.t = t, .p = p};
        status = played_cost(&h, &x, key, load, out, e);
        release(&h);
    } else {
        status = unplayed_cost(t, p, &x, key, load, out, e);
    }
    for (int side = 0; side < 2 && status == MF_OK; side++) {
        out->anew_s[side] = mf_layout_shards_gradients(l, side) ? 0 : out->anew_s[side];
    }
    return status;
}

mf_status mf_block_cache_pair(mf_block_cache *t, const mf_block_prices *p, const mf_layout *l,
                              const mf_block_side *forward, const mf_block_side *backward,
                              double *time_s, mf_err *e) {
    holding h = {.t = t, .p = p};
    const recipe fx = recipe_of(p->model, l, &forward->key),
                 bx = recipe_of(p->model, l, &backward->key);
    const pieces f = want_block(&h, &fx, &forward->key, forward->load),
                 b = want_block(&h, &bx, &backward->key, backward->load);
    mf_status status = hold(&h, e);
    if (status == MF_OK) {
        const mf_priced_zero fp = priced_of(&f), bp = priced_of(&b);
        status = mf_priced_pair_s(&fp, &bp, time_s, e);
    }
    release(&h);
    return status;
}
