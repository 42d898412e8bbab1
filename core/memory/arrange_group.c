/* arrange_group.c - finds slots and nodes, and which of them are alive at the same time. */
#include "core/memory/arrange_group.h"

#include <stdlib.h>
#include <string.h>

/* --- slots ------------------------------------------------------------------------------------ */

static bool alike(const mf_lifetime *a, const mf_lifetime *b) {
    bool same = a->size == b->size && a->parts == b->parts;
    for (int k = 0; k < a->parts && same; k++) {
        same = a->part == b->part || a->part[k] == b->part[k];
    }
    return same;
}

static int64_t family_name(const mf_grouping *g, int i) {
    const mf_lifetime *s = &g->x->list[i];
    int64_t turns = g->how == MF_BY_TURN2 ? 2 * g->turns : g->turns;
    switch (g->how) {
    case MF_BY_SIZE:
    case MF_SIZE_ROWS:
        return s->size;
    case MF_ALONE:
        return i;
    case MF_BY_TURN:
    case MF_BY_TURN2:
        return s->group * turns + s->turn % turns;
    case MF_IN_ROWS:
    case MF_BY_GROUP:
        break;
    }
    return s->group;
}

/* The family of a thing; a new one if there is none yet. */
static int family_of(mf_grouping *g, int i) {
    mf_arrange_slots *x = &g->slots;
    const mf_lifetime *s = &g->x->list[i];
    int64_t name = family_name(g, i);
    int *link = &x->head[(uint64_t)name * 0x9e3779b97f4a7c15u >> 32 & (uint64_t)(x->heads - 1)];
    for (; *link >= 0; link = &x->family[*link].next) {
        if (x->family[*link].name == name && alike(x->family[*link].like, s)) {
            return *link;
        }
    }
    *link = x->families;
    x->family[x->families] = (mf_arrange_family){.name = name, .like = s, .next = -1};
    return x->families++;
}

/* Finds the families of things that are not transient (g->node), and allocates the slots of each.
 */
static void find_families(mf_grouping *g) {
    mf_arrange_slots *x = &g->slots;
    int at = 0, words = 0;
    for (int i = 0; i < x->heads; i++) {
        x->head[i] = -1;
    }
    x->count = x->families = 0;
    for (int i = 0; i < g->x->count; i++) {
        if (!g->x->list[i].transient) {
            g->node[i] = family_of(g, i);
            x->family[g->node[i]].things++;
        }
    }
    for (int i = 0; i < x->families; i++) {
        mf_arrange_family *f = &x->family[i];
        f->at = at;
        f->words = words;
        at += f->things;
        words += (f->things + 63) / 64;
    }
    memset(x->free, 0, (size_t)words * sizeof *x->free);
}

/* The lowest slot of the family that is free. */
static int take(mf_arrange_slots *x, int family, const mf_lifetime *s) {
    mf_arrange_family *f = &x->family[family];
    uint64_t *set = x->free + f->words;
    for (int w = 0; 64 * w < f->slots; w++) {
        if (set[w] != 0) {
            int nth = 64 * w + __builtin_ctzll(set[w]);
            set[w] &= set[w] - 1;
            return x->of[f->at + nth];
        }
    }
    x->of[f->at + f->slots] = x->count;
    x->list[x->count] = (mf_arrange_slot){s, family, f->slots++, 0};
    return x->count++;
}

static void give_back(mf_arrange_slots *x, int slot) {
    const mf_arrange_slot *s = &x->list[slot];
    x->free[x->family[s->family].words + s->nth / 64] |= (uint64_t)1 << (s->nth % 64);
}

/* Gives things that are not transient their slots. */
static void colour(mf_grouping *g) {
    const mf_lifetime *list = g->x->list;
    find_families(g);
    for (int i = 0, died = 0; i < g->x->count; i++) {
        for (; list[g->by_death[died]].last < list[i].first; died++) {
            if (!list[g->by_death[died]].transient) {
                give_back(&g->slots, g->node[g->by_death[died]]);
            }
        }
        if (!list[i].transient) {
            g->node[i] = take(&g->slots, g->node[i], &list[i]);
        }
    }
    g->stays = g->slots.count;
    for (int i = 0; i < g->slots.families && g->how == MF_IN_ROWS; i++) {
        g->turns = g->slots.family[i].slots > g->turns ? g->slots.family[i].slots : g->turns;
    }
    g->words = (g->stays + 63) / 64;
}

/* A row of slots is one node. */
static void join_rows(mf_grouping *g) {
    mf_arrange_slots *x = &g->slots;
    int rows = 0;
    for (int i = 0; i < x->count; i++) { /* a family's first slot comes before the others */
        mf_arrange_slot *s = &x->list[i];
        s->row = s->nth == 0 ? rows++ : x->list[x->of[x->family[s->family].at]].row;
    }
    for (int i = 0; i < g->x->count; i++) {
        if (!g->x->list[i].transient) {
            const mf_arrange_slot *s = &x->list[g->node[i]];
            g->offset[i] = s->nth * s->like->size;
            g->node[i] = s->row;
        }
    }
    g->stays = rows;
    g->words = (rows + 63) / 64;
}

/* --- what is alive together ------------------------------------------------------------------- */

static void set(uint64_t *bits, int i) {
    bits[i / 64] |= (uint64_t)1 << (i % 64);
}

static void clear(uint64_t *bits, int i) {
    bits[i / 64] &= ~((uint64_t)1 << (i % 64));
}

static uint64_t *beside_of(const mf_grouping *g, int i) {
    return g->beside + (size_t)g->transient_of[i] * (size_t)g->words;
}

/* What is alive at one moment: nodes of slots as a set, transient things as a list. */
typedef struct moment {
    uint64_t *stays; /* [words] */
    int *many;       /* [stays] things alive in a node: rows hold several */
    int *transient, transients;
    int born, died; /* things, in order of birth and of death */
    int64_t now_B;
} moment;

static void leave(const mf_grouping *g, moment *m, int i) {
    int keep = 0;
    m->now_B -= g->x->list[i].size;
    if (!g->x->list[i].transient) {
        if (--m->many[g->node[i]] == 0) {
            clear(m->stays, g->node[i]);
        }
        return;
    }
    for (int k = 0; k < m->transients; k++) {
        if (m->transient[k] != i) {
            m->transient[keep++] = m->transient[k];
        }
    }
    m->transients = keep;
}

/* Advances to the next step with a birth and removes what died before it. False: there is none. */
static bool advance(const mf_grouping *g, moment *m, int64_t *step) {
    if (m->born == g->x->count) {
        return false;
    }
    *step = g->x->list[m->born].first;
    for (; g->x->list[g->by_death[m->died]].last < *step; m->died++) {
        leave(g, m, g->by_death[m->died]);
    }
    return true;
}

static void enter(const mf_grouping *g, moment *m, int i) {
    m->now_B += g->x->list[i].size;
    if (g->x->list[i].transient) {
        m->transient[m->transients++] = i;
    } else if (m->many[g->node[i]]++ == 0) {
        set(m->stays, g->node[i]);
    }
}

static void or_into(uint64_t *to, const uint64_t *from, int words) {
    for (int k = 0; k < words; k++) {
        to[k] |= from[k];
    }
}

/* Finds the slots alive together with each transient thing. */
static void meet_slots(mf_grouping *g, moment *m) {
    int64_t step;
    while (advance(g, m, &step)) {
        for (; m->born < g->x->count && g->x->list[m->born].first == step; m->born++) {
            enter(g, m, m->born);
        }
        for (int k = 0; k < m->transients; k++) {
            or_into(beside_of(g, m->transient[k]), m->stays, g->words);
        }
    }
}

/* Finds which nodes are alive together, and the most bytes alive during each one's life. */
static void meet_nodes(mf_grouping *g, moment *m, int64_t bound_B) {
    mf_arrange_graph *graph = &g->graph;
    int64_t step;
    while (advance(g, m, &step)) {
        int born = m->born;
        for (; m->born < g->x->count && g->x->list[m->born].first == step; m->born++) {
            enter(g, m, m->born);
        }
        for (int i = born; i < m->born; i++) { /* one direction: mirrored later */
            mf_arrange_node *n = &graph->node[g->node[i]];
            int64_t lasts = g->x->list[i].last - step;
            or_into(mf_arrange_row(graph, g->node[i]), m->stays, g->words);
            n->first = n->lasts == 0 ? step : n->first;
            n->lasts = lasts + 1 > n->lasts ? lasts + 1 : n->lasts;
        }
        for (int k = 0; k < m->transients; k++) {
            uint64_t *row = mf_arrange_row(graph, g->node[m->transient[k]]);
            or_into(row, m->stays, g->words);
            for (int j = 0; j < k; j++) {
                set(row, g->node[m->transient[j]]);
            }
        }
        if (m->now_B >= bound_B - bound_B / 8) {
            for (int i = 0; i < g->stays; i++) {
                int64_t *p = &graph->node[i].pressure;
                *p = m->many[i] > 0 && m->now_B > *p ? m->now_B : *p;
            }
            for (int k = 0; k < m->transients; k++) {
                int64_t *p = &graph->node[g->node[m->transient[k]]].pressure;
                *p = m->now_B > *p ? m->now_B : *p;
            }
        }
    }
    mf_arrange_mirror(graph);
}

int64_t mf_grouping_most_B(const mf_grouping *g) {
    const mf_lifetimes *x = g->x;
    int64_t now = 0, most = 0;
    for (int i = 0, died = 0; i < x->count; i++) {
        for (; x->list[g->by_death[died]].last < x->list[i].first; died++) {
            now -= x->list[g->by_death[died]].size;
        }
        now += x->list[i].size;
        most = now > most ? now : most;
    }
    return most;
}

static bool moment_init(const mf_grouping *g, moment *m) {
    *m = (moment){.stays = calloc((size_t)g->words + 1, sizeof *m->stays),
                  .many = calloc((size_t)g->stays + 1, sizeof *m->many),
                  .transient = calloc((size_t)g->transients + 1, sizeof *m->transient)};
    return m->stays != NULL && m->many != NULL && m->transient != NULL;
}

static void moment_clear(moment *m) {
    free(m->stays);
    free(m->many);
    free(m->transient);
}

/* --- a try ------------------------------------------------------------------------------------ */

void mf_grouping_slots(mf_grouping *g, mf_arrange_how how) {
    g->how = how;
    colour(g);
    memset(g->offset, 0, (size_t)g->x->count * sizeof *g->offset);
    g->rows = how == MF_IN_ROWS || how == MF_SIZE_ROWS;
    if (g->rows) {
        join_rows(g);
    }
}

mf_status mf_grouping_graph(mf_grouping *g, int64_t bound_B, mf_err *e) {
    moment m;
    bool ok = moment_init(g, &m);
    g->beside = calloc((size_t)g->transients * (size_t)g->words + 1, sizeof *g->beside);
    if (ok && g->beside != NULL) {
        meet_slots(g, &m);
        moment_clear(&m);
        ok = moment_init(g, &m) && mf_grouping_number(g);
        if (ok) {
            meet_nodes(g, &m, bound_B);
        }
    }
    moment_clear(&m);
    return ok && g->beside != NULL ? MF_OK
                                   : mf_err_set(e, MF_NOMEM, "places of the step: out of memory");
}

void mf_grouping_forget(mf_grouping *g) {
    mf_arrange_graph_clear(&g->graph);
    free(g->beside);
    g->beside = NULL;
}

int mf_power_of_two(int n) {
    int p = 16;
    while (p < n) {
        p *= 2;
    }
    return p;
}

mf_status mf_grouping_init(mf_grouping *g, mf_lifetimes *x, mf_err *e) {
    size_t n = (size_t)x->count;
    *g = (mf_grouping){.x = x};
    g->slots.heads = mf_power_of_two(x->count / 4);
    g->slots.list = calloc(n + 1, sizeof *g->slots.list);
    g->slots.family = calloc(n + 1, sizeof *g->slots.family);
    g->slots.of = calloc(n + 1, sizeof *g->slots.of);
    g->slots.free = calloc(n + n / 64 + 1, sizeof *g->slots.free);
    g->slots.head = calloc((size_t)g->slots.heads, sizeof *g->slots.head);
    g->node = calloc(n + 1, sizeof *g->node);
    g->offset = calloc(n + 1, sizeof *g->offset);
    g->transient_of = calloc(n + 1, sizeof *g->transient_of);
    g->by_death = calloc(n + 1, sizeof *g->by_death);
    bool ok = g->slots.list && g->slots.family && g->slots.of && g->slots.free && g->slots.head &&
              g->node && g->offset && g->transient_of && g->by_death;
    if (ok) {
        ok = mf_grouping_by_birth(x, g->by_death) && mf_grouping_by_death(x, g->by_death);
    }
    for (int i = 0; ok && i < x->count; i++) {
        g->transient_of[i] = x->list[i].transient ? g->transients++ : -1;
    }
    return ok && !x->failed ? MF_OK : mf_err_set(e, MF_NOMEM, "places of the step: out of memory");
}

void mf_grouping_clear(mf_grouping *g) {
    free(g->slots.list);
    free(g->slots.family);
    free(g->slots.of);
    free(g->slots.free);
    free(g->slots.head);
    free(g->node);
    free(g->offset);
    free(g->transient_of);
    free(g->by_death);
}
