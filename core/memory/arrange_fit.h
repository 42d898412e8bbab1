/* arrange_fit.h - packs nodes, of which conflicting ones must not overlap (core/memory/arrange.h).
 */
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
    int64_t pressure; /* most bytes alive together during its life */
    int64_t first;    /* first step of its life */
    int64_t lasts;    /* its longest life in steps */
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
/* The row of a node has a bit for each node that it conflicts with. mirror: makes the rows
 * symmetric. No node conflicts with itself. */
uint64_t *mf_arrange_row(mf_arrange_graph *g, int a);
void mf_arrange_mirror(mf_arrange_graph *g);

typedef struct mf_arrange_try {
    int64_t bound_B;  /* no arrangement can end below */
    int64_t enough_B; /* the first that ends here or below is taken */
    bool apart;       /* parts of a node get separate places; else one */
    int ways;         /* orders that are tried, the likeliest first, */
    int rounds;       /* each so often: what stuck out comes first next time */
} mf_arrange_try;

/* Looks for the arrangement with the lowest end. If it ends below *high_B, writes the places of all
 * parts and sets *high_B. *looks: budget of comparisons of two nodes; counts down, and the search
 * stops at 0. Errors: MF_NOMEM. */
mf_status mf_arrange_fit(mf_arrange_graph *g, const mf_arrange_try *how, int64_t *high_B,
                         int64_t *looks, mf_err *e);

#endif
