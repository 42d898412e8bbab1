/* arrange_transient.c - finds which transient things have one place: those of a group that are
 * alive together with the same slots, or with a subset of them. */
#include "core/memory/arrange_group.h"

#include <stdlib.h>
#include <string.h>

typedef struct kind {
    const mf_lifetime *like;
    const uint64_t *beside;
    int node;
    int into; /* the kind whose slots include those of this one; or itself */
    int next; /* of the same group, or of one with its hash; -1 */
} kind;

static bool inside(const uint64_t *a, const uint64_t *b, int words) {
    for (int i = 0; i < words; i++) {
        if (a[i] & ~b[i]) {
            return false;
        }
    }
    return true;
}

static uint64_t hash_of(int32_t group, const uint64_t *bits, int words) {
    uint64_t h = (uint64_t)(uint32_t)group * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < words; i++) {
        h = (h ^ bits[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return h;
}

/* Finds the kinds of transient things: those of a group with the same slots. kind_of[transients].
 */
static int find_kinds(mf_grouping *g, kind *kinds, int *kind_of, int *table, int size) {
    int n = 0;
    for (int i = 0; i < size; i++) {
        table[i] = -1;
    }
    for (int i = 0; i < g->x->count; i++) {
        const mf_lifetime *s = &g->x->list[i];
        if (!s->transient) {
            continue;
        }
        const uint64_t *bits = g->beside + (size_t)g->transient_of[i] * (size_t)g->words;
        uint64_t h = hash_of(s->group, bits, g->words);
        int at = (int)(h & (uint64_t)(size - 1));
        for (; table[at] >= 0; at = (at + 1) & (size - 1)) {
            const kind *k = &kinds[table[at]];
            if (g->how != MF_ALONE && k->like->group == s->group &&
                memcmp(k->beside, bits, (size_t)g->words * sizeof *bits) == 0) {
                break;
            }
        }
        if (table[at] < 0) {
            kinds[n] = (kind){s, bits, -1, n, -1};
            table[at] = n++;
        }
        kind_of[g->transient_of[i]] = table[at];
    }
    return n;
}

static int *chain_of(int *table, int size, const kind *k) {
    return &table[(uint32_t)k->like->group * 0x9e3779b1u & (uint32_t)(size - 1)];
}

/* A kind whose slots are a subset of another's of its group takes that one's place. */
static void fold_kinds(kind *kinds, int n, int words, int *table, int size) {
    for (int i = 0; i < size; i++) {
        table[i] = -1;
    }
    for (int i = n - 1; i >= 0; i--) {
        int *first = chain_of(table, size, &kinds[i]);
        kinds[i].next = *first;
        *first = i;
    }
    for (int i = 0; i < n; i++) {
        int j = *chain_of(table, size, &kinds[i]);
        for (; j >= 0 && kinds[i].into == i; j = kinds[j].next) {
            if (j != i && kinds[j].into == j && kinds[j].like->group == kinds[i].like->group &&
                inside(kinds[i].beside, kinds[j].beside, words)) {
                kinds[i].into = j;
            }
        }
    }
    for (int i = 0; i < n; i++) {
        while (kinds[i].into != kinds[kinds[i].into].into) {
            kinds[i].into = kinds[kinds[i].into].into;
        }
    }
}

static mf_arrange_node node_like(const mf_lifetime *s) {
    return (mf_arrange_node){.size = s->size,
                             .part = s->part,
                             .parts = s->part ? s->parts : 1,
                             .transient = s->transient};
}

/* Nodes of slots. */
static void fill_stays(mf_grouping *g) {
    for (int i = 0; i < g->slots.count; i++) {
        const mf_arrange_slot *s = &g->slots.list[i];
        if (!g->rows) {
            g->graph.node[i] = node_like(s->like);
        } else {
            mf_arrange_node *n = &g->graph.node[s->row];
            n->size += s->like->size;
            n->parts = 1;
        }
    }
}

/* Numbers the nodes: slots, then places of transient things. */
bool mf_grouping_number(mf_grouping *g) {
    int size = mf_power_of_two(2 * g->transients), n = 0;
    kind *kinds = calloc((size_t)g->transients + 1, sizeof *kinds);
    int *kind_of = calloc((size_t)g->transients + 1, sizeof *kind_of);
    int *table = calloc((size_t)size, sizeof *table);
    bool ok = kinds != NULL && kind_of != NULL && table != NULL;
    if (ok) {
        n = find_kinds(g, kinds, kind_of, table, size);
        if (g->how != MF_ALONE) {
            fold_kinds(kinds, n, g->words, table, size);
        }
        int nodes = g->stays;
        for (int i = 0; i < n; i++) {
            kinds[i].node = kinds[i].into == i ? nodes++ : -1;
        }
        ok = mf_arrange_graph_init(&g->graph, nodes);
        if (ok) {
            fill_stays(g);
        }
        for (int i = 0; ok && i < n; i++) {
            if (kinds[i].into == i) {
                g->graph.node[kinds[i].node] = node_like(kinds[i].like);
            }
        }
        for (int i = 0; ok && i < g->x->count; i++) {
            if (g->x->list[i].transient) {
                g->node[i] = kinds[kinds[kind_of[g->transient_of[i]]].into].node;
            }
        }
    }
    free(kinds);
    free(kind_of);
    free(table);
    return ok;
}
