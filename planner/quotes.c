/* quotes.c - a hash table of quotes behind one lock for each of a few parts. */
#include "planner/quotes.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PARTS 16
#define KEY_WORDS 6

typedef struct entry {
    uint64_t key[KEY_WORDS];
    mf_quote quote;
    double pair_s;
    struct entry *next;
} entry;

typedef struct part {
    pthread_mutex_t lock;
    entry **bucket;
    size_t buckets, entries;
    int64_t asked;
} part;

struct mf_quotes {
    const mf_oracle *oracle;
    part part[PARTS];
};

mf_status mf_quotes_create(const mf_oracle *oracle, mf_quotes **out, mf_err *e) {
    mf_quotes *q = calloc(1, sizeof *q);
    bool good = q != NULL;
    *out = NULL;
    for (int i = 0; q && i < PARTS; i++) {
        pthread_mutex_init(&q->part[i].lock, NULL);
        q->part[i].buckets = 256;
        q->part[i].bucket = calloc(q->part[i].buckets, sizeof *q->part[i].bucket);
        good = good && q->part[i].bucket;
    }
    if (!good) {
        mf_quotes_destroy(q);
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    q->oracle = oracle;
    *out = q;
    return MF_OK;
}

void mf_quotes_destroy(mf_quotes *q) {
    for (int i = 0; q && i < PARTS; i++) {
        part *p = &q->part[i];
        for (size_t b = 0; p->bucket && b < p->buckets; b++) {
            for (entry *x = p->bucket[b], *next; x; x = next) {
                next = x->next;
                free(x);
            }
        }
        free(p->bucket);
        pthread_mutex_destroy(&p->lock);
    }
    free(q);
}

const mf_oracle *mf_quotes_oracle(const mf_quotes *q) {
    return q->oracle;
}

int64_t mf_quotes_asked(const mf_quotes *q) {
    int64_t sum = 0;
    for (int i = 0; i < PARTS; i++) {
        sum += q->part[i].asked;
    }
    return sum;
}

/* --- keys ------------------------------------------------------------------------------------- */

/* The part of a key that its block depends on (core/lower_block.c). */
static mf_block_key plain_key(const mf_block_key *k) {
    mf_block_key plain = *k;
    bool end = k->kind == MF_POS_EMBEDDING || k->kind == MF_POS_HEAD, mtp = k->kind == MF_POS_MTP;
    plain.shared_embedding = k->shared_embedding && (mtp || k->kind == MF_POS_HEAD);
    plain.shared_head = k->shared_head && mtp;
    if (end) {
        plain.layer_class = 0;
        plain.parts = 0;
        plain.memory = (mf_memory_choice){0, 0};
    }
    return plain;
}

static uint64_t block_word(const mf_block_key *key) {
    mf_block_key k = plain_key(key);
    return (uint64_t)k.kind | (uint64_t)k.layer_class << 4 | (uint64_t)k.parts << 12 |
           (uint64_t)k.split << 14 | (uint64_t)k.shared_embedding << 15 |
           (uint64_t)k.shared_head << 16 | (uint64_t)k.after_depth << 17 |
           (uint64_t)k.before_depth << 18 | (uint64_t)k.memory.recompute << 20 |
           (uint64_t)k.memory.offload << 36;
}

static bool is_layer(const mf_block_key *k) {
    return k && (k->kind == MF_POS_LAYER || k->kind == MF_POS_MTP);
}

static bool routes(const mf_model *m, const mf_block_key *k) {
    return is_layer(k) && m->layer_classes[k->layer_class].ffn == MF_FFN_MOE;
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* What a block depends on: the expert side where experts are, the samples apart from CP where
 * there is attention, ZeRO where it gathers or reduces inside the block. Degrees are below 2^28
 * (core/layout.c). */
static void make_key(const mf_model *m, const mf_layout *l, const mf_block_key *a,
                     const mf_block_key *b, bool exact, uint64_t key[KEY_WORDS]) {
    bool experts = routes(m, a) || routes(m, b), layer = is_layer(a) || is_layer(b);
    int64_t share = layer ? 1 : common_divisor(l->cp, l->mbs);
    uint64_t dense = l->zero >= 2 ? (uint64_t)(l->dp * l->cp) : 0;
    uint64_t expert = l->expert_zero >= 2 && experts ? (uint64_t)l->edp : 0;
    uint64_t stage = experts && l->aux_scope == MF_AUX_GLOBAL ? (uint64_t)(l->gpus / l->pp) : 0;
    key[0] = (uint64_t)l->tp | (uint64_t)(l->cp / share) << 28 |
             (layer ? (uint64_t)l->cp_type << 56 : 0) | (uint64_t)exact << 60 |
             (uint64_t)(b != NULL) << 61;
    key[1] = experts ? (uint64_t)l->ep | (uint64_t)l->etp << 28 | (uint64_t)l->dispatcher << 56 : 0;
    key[2] = (uint64_t)(l->mbs / share) | dense << 28 | (uint64_t)l->precision << 60;
    key[3] = expert | stage << 28 | (uint64_t)(l->zero >= 2 ? l->zero : 0) << 56 |
             (uint64_t)(expert > 0 ? l->expert_zero : 0) << 58;
    key[4] = block_word(a);
    key[5] = b ? block_word(b) : 0;
}

static uint64_t hash_key(const uint64_t key[KEY_WORDS]) {
    uint64_t h = UINT64_C(1469598103934665603);
    for (int i = 0; i < KEY_WORDS; i++) {
        h = (h ^ key[i]) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    return h;
}

/* --- the table -------------------------------------------------------------------------------- */

static entry *find(const part *p, uint64_t h, const uint64_t key[KEY_WORDS]) {
    for (entry *x = p->bucket[(h >> 8) % p->buckets]; x; x = x->next) {
        if (memcmp(x->key, key, sizeof x->key) == 0) {
            return x;
        }
    }
    return NULL;
}

static void grow(part *p) {
    size_t buckets = 4 * p->buckets;
    entry **bucket = calloc(buckets, sizeof *bucket);
    if (!bucket) {
        return; /* longer chains, that is all */
    }
    for (size_t b = 0; b < p->buckets; b++) {
        for (entry *x = p->bucket[b], *next; x; x = next) {
            entry **to = &bucket[(hash_key(x->key) >> 8) % buckets];
            next = x->next;
            x->next = *to;
            *to = x;
        }
    }
    free(p->bucket);
    p->bucket = bucket;
    p->buckets = buckets;
}

static bool look_up(mf_quotes *q, const uint64_t key[KEY_WORDS], entry *out) {
    uint64_t h = hash_key(key);
    part *p = &q->part[h % PARTS];
    pthread_mutex_lock(&p->lock);
    const entry *x = find(p, h, key);
    if (x) {
        *out = *x;
    }
    pthread_mutex_unlock(&p->lock);
    return x != NULL;
}

/* Two threads may have asked for the same: the first answer stays, both are equal. */
static mf_status keep(mf_quotes *q, const entry *made, mf_err *e) {
    uint64_t h = hash_key(made->key);
    part *p = &q->part[h % PARTS];
    mf_status status = MF_OK;
    pthread_mutex_lock(&p->lock);
    if (!find(p, h, made->key)) {
        entry *x = malloc(sizeof *x);
        if (x) {
            entry **to = &p->bucket[(h >> 8) % p->buckets];
            *x = *made;
            x->next = *to;
            *to = x;
            p->asked++;
            if (++p->entries > 2 * p->buckets) {
                grow(p);
            }
        } else {
            status = mf_err_set(e, MF_NOMEM, "out of memory");
        }
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}

mf_status mf_quotes_get(mf_quotes *q, const mf_layout *l, const mf_block_key *key, bool exact,
                        mf_quote *out, mf_err *e) {
    entry x;
    uint64_t words[KEY_WORDS];
    make_key(q->oracle->model, l, key, NULL, exact, words);
    if (!look_up(q, words, &x)) {
        memset(&x, 0, sizeof x);
        memcpy(x.key, words, sizeof words);
        mf_status status = q->oracle->ops->quote(q->oracle->self, l, key, exact, &x.quote, e);
        if (status == MF_OK) {
            status = keep(q, &x, e);
        }
        if (status != MF_OK) {
            return status;
        }
    }
    *out = x.quote;
    return MF_OK;
}

mf_status mf_quotes_pair(mf_quotes *q, const mf_layout *l, const mf_block_key *forward,
                         const mf_block_key *backward, double *time_s, mf_err *e) {
    entry x;
    uint64_t words[KEY_WORDS];
    make_key(q->oracle->model, l, forward, backward, true, words);
    if (!look_up(q, words, &x)) {
        memset(&x, 0, sizeof x);
        memcpy(x.key, words, sizeof words);
        mf_status status =
            q->oracle->ops->pair(q->oracle->self, l, forward, backward, &x.pair_s, e);
        if (status == MF_OK) {
            status = keep(q, &x, e);
        }
        if (status != MF_OK) {
            return status;
        }
    }
    *time_s = x.pair_s;
    return MF_OK;
}
