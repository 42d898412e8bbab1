/* facts.c - a table of what is known of lowered blocks. */
#include "planner/facts.h"

#include "core/pool.h"

#include <pthread.h>
#include <stdlib.h>

/* A search asks for some thirty thousand blocks; an entry takes some 360 bytes. */
enum { ENTRIES = 1 << 16, LOCKS = 64 };

typedef struct entry {
    mf_quote_key key;
    double load;
    mf_facts facts;
} entry;

struct mf_facts_table {
    pthread_mutex_t lock[LOCKS];
    entry *entry[ENTRIES]; /* NULL: none is here yet */
    pthread_mutex_t pool_lock;
    mf_pool pool; /* of entries */
};

mf_status mf_facts_create(mf_facts_table **out, mf_err *e) {
    mf_facts_table *t = calloc(1, sizeof *t);
    *out = t;
    if (!t) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    pthread_mutex_init(&t->pool_lock, NULL);
    for (int i = 0; i < LOCKS; i++) {
        pthread_mutex_init(&t->lock[i], NULL);
    }
    return MF_OK;
}

void mf_facts_destroy(mf_facts_table *t) {
    if (!t) {
        return;
    }
    for (int i = 0; i < LOCKS; i++) {
        pthread_mutex_destroy(&t->lock[i]);
    }
    pthread_mutex_destroy(&t->pool_lock);
    mf_pool_clear(&t->pool);
    free(t);
}

static size_t place_of(const mf_quote_key *key) {
    return (size_t)(mf_quote_key_hash(key) >> 24) % ENTRIES;
}

bool mf_facts_find(mf_facts_table *t, const mf_quote_key *key, double load, mf_facts *out) {
    size_t at = place_of(key);
    pthread_mutex_lock(&t->lock[at % LOCKS]);
    const entry *x = t->entry[at];
    bool found = x && !(x->load < load) && !(x->load > load) && mf_quote_key_same(&x->key, key);
    if (found) {
        *out = x->facts;
    }
    pthread_mutex_unlock(&t->lock[at % LOCKS]);
    return found;
}

void mf_facts_keep(mf_facts_table *t, const mf_quote_key *key, double load, const mf_facts *facts) {
    size_t at = place_of(key);
    pthread_mutex_lock(&t->lock[at % LOCKS]);
    if (!t->entry[at]) {
        pthread_mutex_lock(&t->pool_lock);
        t->entry[at] = mf_pool_take(&t->pool, sizeof(entry));
        pthread_mutex_unlock(&t->pool_lock);
    }
    if (t->entry[at]) { /* else it is found out again */
        *t->entry[at] = (entry){*key, load, *facts};
    }
    pthread_mutex_unlock(&t->lock[at % LOCKS]);
}
