/* arrange_fit.h - packs nodes of which some must not overlap (core/memory/arrange.h). */
#ifndef MF_CORE_ARRANGE_FIT_H
#define MF_CORE_ARRANGE_FIT_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { MF_ARRANGE_PARTS = 16 }; /* at most */

typedef struct mf_arrange_node {
    int64_t size;
    const int64_t *part; /* [parts] sizes; NULL: one part */
    int parts;
    int64_t at[MF_ARRANGE_PARTS];
    int64_t pressure; /* most that stands at once while it does */
    int64_t first;    /* step at which it is first there */
    int64_t lasts;    /* steps that it is there at most */
    bool transient;
} mf_arrange_node;

typedef struct mf_arrange_graph {
    int count, words;
    mf_arrange_node *node;
    uint64_t *conflict; /* [count][words] */
} mf_arrange_graph;

/* False: no memory. */
bool mf_arrange_graph_init(mf_arrange_graph *g, int count);
void mf_arrange_graph_clear(mf_arrange_graph *g);
/* The nodes that a node conflicts with, a bit each; mirror: makes all that one row says true of the
 * other. No node conflicts with itself. */
uint64_t *mf_arrange_row(mf_arrange_graph *g, int a);
void mf_arrange_mirror(mf_arrange_graph *g);

typedef struct mf_arrange_try {
    int64_t bound_B;  /* no arrangement can end below */
    int64_t enough_B; /* the first that ends here or below is taken */
    bool apart;       /* parts of a node one by one; else side by side */
    int ways;         /* orders that are tried, the likeliest first, */
    int rounds;       /* each so often: what stuck out comes first next time */
} mf_arrange_try;

/* Gives every part of every node its place in the best arrangement that it finds, if that ends
 * below *high_B, which then is its end. *looks: how often a node may be held against another;
 * counted down, and nothing is tried once it is spent. Errors: MF_NOMEM. */
mf_status mf_arrange_fit(mf_arrange_graph *g, const mf_arrange_try *how, int64_t *high_B,
                         int64_t *looks, mf_err *e);

#endif
