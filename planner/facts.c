/* facts.c - a table of what is known of lowered blocks. */
#include "planner/facts.h"

#include <pthread.h>
#include <stdlib.h>

/* A search asks for some thirty thousand blocks; an entry takes some 360 bytes, of which those that
 * nobody wrote take none. */
enum { ENTRIES = 1 << 16, LOCKS = 64 };

typedef struct entry {
    mf_quote_key key;
    double load; /* 0: none is here */
    mf_facts facts;
} entry;

struct mf_facts_table {
    pthread_mutex_t lock[LOCKS];
    entry *entry;
};

mf_status mf_facts_create(mf_facts_table **out, mf_err *e) {
    mf_facts_table *t = calloc(1, sizeof *t);
    entry *entries = calloc(ENTRIES, sizeof *entries);
    *out = t;
    if (!t || !entries) {
        free(t);
        free(entries);
        *out = NULL;
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    t->entry = entries;
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
    free(t->entry);
    free(t);
}

static size_t place_of(const mf_quote_key *key) {
    return (size_t)(mf_quote_key_hash(key) >> 24) % ENTRIES;
}

bool mf_facts_find(mf_facts_table *t, const mf_quote_key *key, double load, mf_facts *out) {
    size_t at = place_of(key);
    const entry *x = &t->entry[at];
    pthread_mutex_lock(&t->lock[at % LOCKS]);
    bool found = !(x->load < load) && !(x->load > load) && mf_quote_key_same(&x->key, key);
    if (found) {
        *out = x->facts;
    }
    pthread_mutex_unlock(&t->lock[at % LOCKS]);
    return found;
}

void mf_facts_keep(mf_facts_table *t, const mf_quote_key *key, double load, const mf_facts *facts) {
    size_t at = place_of(key);
    pthread_mutex_lock(&t->lock[at % LOCKS]);
    t->entry[at] = (entry){*key, load, *facts};
    pthread_mutex_unlock(&t->lock[at % LOCKS]);
}
