/* arrange_fit.c - first fit in several orders, from the floor and from the bound. */
#include "core/memory/arrange_fit.h"

#include <stdlib.h>
#include <string.h>

bool mf_arrange_graph_init(mf_arrange_graph *g, int count) {
    g->count = count;
    g->words = (count + 63) / 64;
    g->node = calloc((size_t)count + 1, sizeof *g->node);
    g->conflict = calloc((size_t)count * (size_t)g->words + 1, sizeof *g->conflict);
    return g->node != NULL && g->conflict != NULL;
}

void mf_arrange_graph_clear(mf_arrange_graph *g) {
    free(g->node);
    free(g->conflict);
    *g = (mf_arrange_graph){0};
}

uint64_t *mf_arrange_row(mf_arrange_graph *g, int a) {
    return g->conflict + (size_t)a * (size_t)g->words;
}

void mf_arrange_mirror(mf_arrange_graph *g) {
    for (int a = 0; a < g->count; a++) {
        uint64_t *row = mf_arrange_row(g, a);
        row[a / 64] &= ~((uint64_t)1 << (a % 64));
        for (int w = 0; w < g->words; w++) {
            for (uint64_t left = row[w]; left != 0; left &= left - 1) {
                int b = 64 * w + __builtin_ctzll(left);
                mf_arrange_row(g, b)[a / 64] |= (uint64_t)1 << (a % 64);
            }
        }
    }
}

/* --- orders ----------------------------------------------------------------------------------- */

/* A node in an order: keys from the most to the least important, larger first. */
typedef struct rank {
    int64_t key[3];
    int node;
} rank;

static int by_keys(const void *a, const void *b) {
    const rank *x = a, *y = b;
    for (int k = 0; k < 3; k++) {
        if (x->key[k] != y->key[k]) {
            return x->key[k] > y->key[k] ? -1 : 1;
        }
    }
    return x->node - y->node;
}

/* In which order nodes are placed, and whether transient ones are placed from the bound down. */
typedef struct way {
    enum { SLOTS_FIRST, TRANSIENT_FIRST, LARGEST, BY_PRESSURE, BORN, LONGEST } order;
    bool top_down;
} way;

/* The most successful first. */
static const way ways[] = {
    {SLOTS_FIRST, false}, {SLOTS_FIRST, true}, {BY_PRESSURE, true}, {TRANSIENT_FIRST, true},
    {BY_PRESSURE, false}, {LARGEST, false},    {BORN, true},        {LONGEST, true},
    {LARGEST, true},      {BORN, false},       {LONGEST, false},    {TRANSIENT_FIRST, false}};

static rank rank_of(const mf_arrange_node *n, int i, way w) {
    rank r = {{0, 0, n->size}, i};
    switch (w.order) {
    case SLOTS_FIRST:
        r.key[0] = !n->transient;
        r.key[2] = n->transient ? n->size : 0;
        break;
    case TRANSIENT_FIRST:
        r.key[0] = n->transient;
        break;
    case LARGEST:
        break;
    case BORN:
        r.key[0] = -n->first;
        r.key[1] = n->lasts;
        break;
    case LONGEST:
        r.key[0] = n->lasts;
        r.key[1] = -n->first;
        break;
    case BY_PRESSURE:
        r.key[0] = n->pressure;
        break;
    }
    return r;
}

/* --- places ----------------------------------------------------------------------------------- */

/* A part of a node, or a node as one. */
typedef struct piece {
    int node, part; /* -1: all of it */
    int64_t at, end;
} piece;

/* Bytes [at, end) that no conflicting node occupies. */
typedef struct gap {
    int64_t at, end;
} gap;

typedef struct packing {
    rank *order, *spare;
    piece *placed; /* by place */
    gap *gaps;     /* of a node, by place: [most pieces + 1 + MF_ARRANGE_PARTS] */
    int count;
    int64_t bound_B, high_B;
    bool top_down, apart;
} packing;

/* row: the conflicts of one node (none with itself). */
static bool conflicts(const uint64_t *row, int other) {
    return (row[(unsigned)other / 64] >> ((unsigned)other % 64) & 1u) != 0;
}

/* Finds the gaps that are free for a node; the last one has no end. Returns how many. */
static int find_gaps(const mf_arrange_graph *g, const packing *d, int node, gap *out) {
    const uint64_t *row = g->conflict + (size_t)node * (size_t)g->words;
    int64_t top = 0;
    int n = 0;
    for (const piece *x = d->placed, *end = x + d->count; x < end; x++) {
        if (x->end > top && conflicts(row, x->node)) {
            if (x->at > top) {
                out[n++] = (gap){top, x->at};
            }
            top = x->end;
        }
    }
    out[n] = (gap){top, INT64_MAX};
    return n + 1;
}

/* Puts a piece into the highest gap under the bound (top_down), else into the lowest gap. */
static int64_t take_gap(const packing *d, bool top_down, int64_t size, gap *gaps, int *count) {
    int64_t at = -1;
    int k = top_down ? *count - 1 : -1;
    for (; k >= 0 && at < 0; k -= at < 0) {
        int64_t end = gaps[k].end < d->bound_B ? gaps[k].end : d->bound_B;
        at = end - size >= gaps[k].at ? end - size : -1;
    }
    if (at < 0) { /* the last has no end */
        for (k = 0; k < *count - 1 && gaps[k].end - size < gaps[k].at; k++) {
        }
        at = gaps[k].at;
    }
    gap rest[2] = {{gaps[k].at, at}, {at + size, gaps[k].end}};
    int left = 0;
    for (int i = 0; i < 2; i++) {
        if (rest[i].end > rest[i].at) {
            rest[left++] = rest[i];
        }
    }
    memmove(&gaps[k + left], &gaps[k + 1], (size_t)(*count - k - 1) * sizeof *gaps);
    memcpy(&gaps[k], rest, (size_t)left * sizeof *gaps);
    *count += left - 1;
    return at;
}

/* own [count]: by place. */
static void insert(packing *d, const piece *own, int count) {
    int from = d->count, to = d->count + count;
    d->count = to;
    for (int k = count - 1; k >= 0; k--) {
        for (; from > 0 && d->placed[from - 1].at > own[k].at; from--) {
            d->placed[--to] = d->placed[from - 1];
        }
        d->placed[--to] = own[k];
        d->high_B = own[k].end > d->high_B ? own[k].end : d->high_B;
    }
}

/* All pieces of a node have the same conflicts, so its gaps are found once. */
static void place(const mf_arrange_graph *g, packing *d, int node) {
    const mf_arrange_node *x = &g->node[node];
    bool apart = d->apart && x->parts > 1, top_down = d->top_down && x->transient;
    piece own[MF_ARRANGE_PARTS];
    int count = find_gaps(g, d, node, d->gaps), pieces = apart ? x->parts : 1;
    for (int n = 0; n < pieces; n++) {
        int k = pieces - 1 - n, slot = n;
        int64_t size = apart ? x->part[k] : x->size;
        int64_t at = size > 0 ? take_gap(d, top_down, size, d->gaps, &count) : 0;
        for (; slot > 0 && own[slot - 1].at > at; slot--) {
            own[slot] = own[slot - 1];
        }
        own[slot] = (piece){node, apart ? k : -1, at, at + size};
    }
    insert(d, own, pieces);
}

/* Places all nodes in order; stops as soon as the end reaches limit_B. */
static void place_all(const mf_arrange_graph *g, packing *d, int64_t limit_B) {
    d->count = 0;
    d->high_B = 0;
    for (int n = 0; n < g->count && d->high_B < limit_B; n++) {
        place(g, d, d->order[n].node);
    }
}

static void write_addresses(mf_arrange_graph *g, const packing *d) {
    for (int k = 0; k < d->count; k++) {
        mf_arrange_node *x = &g->node[d->placed[k].node];
        int64_t at = d->placed[k].at;
        if (d->placed[k].part >= 0) {
            x->at[d->placed[k].part] = at;
            continue;
        }
        for (int i = 0; i < x->parts; i++) {
            x->at[i] = at;
            at += x->part != NULL ? x->part[i] : 0;
        }
    }
}

/* Moves the nodes that ended above the bound to the front of the order, keeping their order. */
static void promote(const mf_arrange_graph *g, packing *d, bool *out) {
    int n = 0;
    memset(out, 0, (size_t)g->count * sizeof *out);
    for (int k = 0; k < d->count; k++) {
        out[d->placed[k].node] |= d->placed[k].end > d->bound_B;
    }
    for (int first = 1; first >= 0; first--) {
        for (int i = 0; i < g->count; i++) {
            if (out[d->order[i].node] == (first == 1)) {
                d->spare[n++] = d->order[i];
            }
        }
    }
    memcpy(d->order, d->spare, (size_t)n * sizeof *d->spare);
}

static int64_t pieces_of(const mf_arrange_graph *g, const mf_arrange_try *how) {
    int64_t pieces = 0;
    for (int k = 0; k < g->count; k++) {
        pieces += how->apart ? g->node[k].parts : 1;
    }
    return pieces;
}

/* Charges the looks of a way that repeats an earlier one, without taking them. */
static void count_rounds(const mf_arrange_graph *g, const mf_arrange_try *how, int64_t high_B,
                         int64_t *looks) {
    int64_t pieces = pieces_of(g, how);
    for (int i = 0; i < how->rounds && high_B > how->enough_B && *looks > 0; i++) {
        *looks -= pieces * pieces;
    }
}

static void try_way(mf_arrange_graph *g, packing *d, bool *out, way w, const mf_arrange_try *how,
                    int64_t *high_B, int64_t *looks) {
    int64_t pieces = pieces_of(g, how);
    for (int k = 0; k < g->count; k++) {
        d->order[k] = rank_of(&g->node[k], k, w);
    }
    qsort(d->order, (size_t)g->count, sizeof *d->order, by_keys);
    d->top_down = w.top_down;
    for (int round = 0; round<how->rounds && * high_B> how->enough_B && *looks > 0; round++) {
        if (round > 0) {
            promote(g, d, out);
        }
        bool last = round + 1 == how->rounds; /* promote needs nothing from the last round */
        place_all(g, d, last ? *high_B : INT64_MAX);
        *looks -= pieces * pieces;
        if (d->high_B < *high_B) {
            *high_B = d->high_B;
            write_addresses(g, d);
        }
    }
}

/* For a graph without transient nodes: is a way the same as an earlier one? Without them, ways do
 * not differ in how they place or order transient nodes. */
static bool repeats(int at) {
    for (int i = 0; i < at; i++) {
        bool largest = ways[i].order <= LARGEST && ways[at].order <= LARGEST;
        if (largest || ways[i].order == ways[at].order) {
            return true;
        }
    }
    return false;
}

mf_status mf_arrange_fit(mf_arrange_graph *g, const mf_arrange_try *how, int64_t *high_B,
                         int64_t *looks, mf_err *e) {
    size_t n = (size_t)g->count + 1, pieces = how->apart ? MF_ARRANGE_PARTS * n : n;
    packing d = {.order = malloc(n * sizeof *d.order),
                 .spare = malloc(n * sizeof *d.spare),
                 .placed = malloc(pieces * sizeof *d.placed),
                 .gaps = malloc((pieces + 1 + MF_ARRANGE_PARTS) * sizeof *d.gaps),
                 .bound_B = how->bound_B,
                 .apart = how->apart};
    bool *out = malloc(n * sizeof *out);
    bool transient = false;
    mf_status status = MF_OK;
    for (int i = 0; i < g->count; i++) {
        transient = transient || g->node[i].transient;
    }
    if (!d.order || !d.spare || !d.placed || !d.gaps || !out) {
        status = mf_err_set(e, MF_NOMEM, "places of the step: out of memory");
        goto out;
    }
    for (int i = 0; i < how->ways && i < (int)(sizeof ways / sizeof ways[0]); i++) {
        if (!transient && repeats(i)) {
            count_rounds(g, how, *high_B, looks);
        } else {
            try_way(g, &d, out, ways[i], how, high_B, looks);
        }
    }
out:
    free(d.order);
    free(d.spare);
    free(d.placed);
    free(d.gaps);
    free(out);
    return status;
}
