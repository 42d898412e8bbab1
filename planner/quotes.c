/* quotes.c - a hash table of quotes behind one lock for each of a few parts. */
#include "planner/quotes.h"

#include "planner/quote_key.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PARTS 16

typedef struct entry {
    mf_quote_key key;
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

/* --- the table -------------------------------------------------------------------------------- */

static entry *find(const part *p, uint64_t h, const mf_quote_key *key) {
    for (entry *x = p->bucket[(h >> 8) % p->buckets]; x; x = x->next) {
        if (mf_quote_key_same(&x->key, key)) {
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
            entry **to = &bucket[(mf_quote_key_hash(&x->key) >> 8) % buckets];
            next = x->next;
            x->next = *to;
            *to = x;
        }
    }
    free(p->bucket);
    p->bucket = bucket;
    p->buckets = buckets;
}

static bool look_up(mf_quotes *q, const mf_quote_key *key, entry *out) {
    uint64_t h = mf_quote_key_hash(key);
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
    uint64_t h = mf_quote_key_hash(&made->key);
    part *p = &q->part[h % PARTS];
    mf_status status = MF_OK;
    pthread_mutex_lock(&p->lock);
    if (!find(p, h, &made->key)) {
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

/* A table that another block of the stage holds is read all the same, and is no parameter of this
 * one; nothing else differs. */
static mf_block_key with_own_tables(const mf_block_key *key) {
    mf_block_key own = *key;
    own.shared_embedding = own.shared_head = false;
    return own;
}

mf_status mf_quotes_get(mf_quotes *q, const mf_layout *l, const mf_block_key *key, bool exact,
                        mf_quote *out, mf_err *e) {
    entry x;
    const mf_block_key own = with_own_tables(key);
    const mf_quote_key words = mf_quote_key_of(q->oracle->model, l, &own, NULL, exact);
    if (!look_up(q, &words, &x)) {
        memset(&x, 0, sizeof x);
        x.key = words;
        mf_status status = q->oracle->ops->quote(q->oracle->self, l, &own, exact, &x.quote, e);
        if (status == MF_OK) {
            status = keep(q, &x, e);
        }
        if (status != MF_OK) {
            return status;
        }
    }
    *out = x.quote;
    out->params.dense -= mf_block_shared_elements(q->oracle->model, l, key);
    return MF_OK;
}

mf_status mf_quotes_pair(mf_quotes *q, const mf_layout *l, const mf_block_key *forward,
                         const mf_block_key *backward, double *time_s, mf_err *e) {
    entry x;
    const mf_block_key f = with_own_tables(forward), b = with_own_tables(backward);
    const mf_quote_key words = mf_quote_key_of(q->oracle->model, l, &f, &b, true);
    if (!look_up(q, &words, &x)) {
        memset(&x, 0, sizeof x);
        x.key = words;
        mf_status status = q->oracle->ops->pair(q->oracle->self, l, &f, &b, &x.pair_s, e);
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
