/* arrange.c - tries groupings of things into nodes until one packs without gaps. */
#include "core/memory/arrange.h"

#include "core/memory/arrange_group.h"

#include <stdlib.h>

void mf_lifetimes_add(mf_lifetimes *x, mf_lifetime one) {
    if (one.size <= 0 || one.last < one.first || x->failed) {
        return;
    }
    if (x->count == x->allocated) {
        int allocated = x->allocated ? 2 * x->allocated : 256;
        mf_lifetime *list = realloc(x->list, (size_t)allocated * sizeof *list);
        if (list == NULL) {
            x->failed = true;
            return;
        }
        x->list = list;
        x->allocated = allocated;
    }
    x->list[x->count++] = one;
}

void mf_lifetimes_clear(mf_lifetimes *x) {
    free(x->list);
    *x = (mf_lifetimes){0};
}

/* With gaps of a thousandth the search stops. */
static int64_t enough(int64_t bound_B) {
    return bound_B + bound_B / 1000;
}

/* A node of a row has one part, its things may have more. */
static void write_place(const mf_lifetime *s, const mf_arrange_node *n, int64_t offset) {
    int64_t at = n->at[0] + offset;
    for (int k = 0; k < (s->part != NULL ? s->parts : 1) && s->out != NULL; k++) {
        s->out[k] = n->part != NULL ? n->at[k] : at;
        at += s->part != NULL ? s->part[k] : 0;
    }
}

/* The attempts, in order, until a result is good enough: first those that suffice for most programs
 * and then, while the budget of looks lasts, all others. */
typedef struct attempt {
    mf_arrange_how how;
    enum { WHOLE, APART, PARTS } pieces; /* parts: those that stay are things of their own */
    int ways, rounds;
} attempt;

enum { ALL = 99, ROUNDS = 8 };

static const attempt attempts[] = {
    {MF_IN_ROWS, WHOLE, 2, 1},          {MF_SIZE_ROWS, APART, 2, 3},
    {MF_SIZE_ROWS, PARTS, 2, 3},        {MF_BY_TURN, APART, 2, 1},
    {MF_BY_TURN2, APART, 2, 1},         {MF_BY_GROUP, WHOLE, 2, 3},
    {MF_BY_TURN, APART, 2, 3},          {MF_BY_TURN2, APART, 2, 3},
    {MF_BY_SIZE, WHOLE, 2, 2},          {MF_IN_ROWS, WHOLE, ALL, ROUNDS},
    {MF_SIZE_ROWS, APART, ALL, ROUNDS}, {MF_BY_GROUP, WHOLE, ALL, ROUNDS},
    {MF_BY_TURN, APART, ALL, ROUNDS},   {MF_BY_TURN2, APART, ALL, ROUNDS},
    {MF_BY_SIZE, WHOLE, ALL, ROUNDS},   {MF_ALONE, APART, ALL, ROUNDS},
    {MF_BY_TURN, WHOLE, ALL, ROUNDS},   {MF_BY_TURN2, WHOLE, ALL, ROUNDS},
    {MF_BY_SIZE, APART, ALL, ROUNDS},   {MF_BY_GROUP, APART, ALL, ROUNDS},
    {MF_ALONE, WHOLE, ALL, ROUNDS},
};

enum {
    ALWAYS = 3,      /* attempts */
    LOOKS = 1 << 22, /* at pairs of nodes, in all of them */
    FEW = 512,       /* things that may be arranged one by one */
    MOST = 2048      /* slots that are packed apart */
};

/* What an arrangement must reach. */
typedef struct aim {
    int64_t bound_B, enough_B;
} aim;

static mf_status try_one(mf_grouping *g, const attempt *a, const aim *to, int64_t *looks,
                         int64_t *size_B, mf_err *e) {
    const mf_arrange_try how = {.bound_B = to->bound_B,
                                .enough_B = to->enough_B,
                                .apart = a->pieces != WHOLE,
                                .ways = a->ways,
                                .rounds = a->rounds};
    int64_t high_B = *size_B;
    mf_grouping_slots(g, a->how);
    if (!g->rows && g->stays > MOST) {
        return MF_OK;
    }
    mf_status status = mf_grouping_graph(g, to->bound_B, e);
    if (status == MF_OK) {
        status = mf_arrange_fit(&g->graph, &how, &high_B, looks, e);
    }
    if (status == MF_OK && high_B < *size_B) {
        *size_B = high_B;
        for (int i = 0; i < g->x->count; i++) {
            write_place(&g->x->list[i], &g->graph.node[g->node[i]], g->offset[i]);
        }
    }
    mf_grouping_forget(g);
    return status;
}

/* Copies the things, making each part of one that is not transient a thing of its own. */
static void take_apart(const mf_lifetimes *x, mf_lifetimes *out) {
    for (int i = 0; i < x->count; i++) {
        mf_lifetime s = x->list[i];
        if (s.transient || s.part == NULL) {
            mf_lifetimes_add(out, s);
            continue;
        }
        for (int k = 0; k < s.parts; k++) {
            mf_lifetime one = s;
            one.size = s.part[k];
            one.part = NULL;
            one.parts = 0;
            one.out = s.out != NULL ? &s.out[k] : NULL;
            mf_lifetimes_add(out, one);
        }
    }
}

static mf_status try_parts(const mf_lifetimes *x, const attempt *a, const aim *to, int64_t *looks,
                           int64_t *size_B, mf_err *e) {
    mf_lifetimes parts = {0};
    mf_grouping g;
    take_apart(x, &parts);
    mf_status status = mf_grouping_init(&g, &parts, e);
    if (status == MF_OK) {
        status = try_one(&g, a, to, looks, size_B, e);
    }
    mf_grouping_clear(&g);
    mf_lifetimes_clear(&parts);
    return status;
}

mf_status mf_arrange(mf_lifetimes *x, bool alone, int64_t *size_B, int64_t *bound_B, mf_err *e) {
    return mf_arrange_within(x, alone, 0, size_B, bound_B, e);
}

mf_status mf_arrange_within(mf_lifetimes *x, bool alone, int64_t gaps_B, int64_t *size_B,
                            int64_t *bound_B, mf_err *e) {
    mf_grouping g;
    aim to = {0, 0};
    int64_t looks = INT64_MAX; /* at first without limit */
    *bound_B = *size_B = 0;
    if (x->count == 0 && !x->failed) {
        return MF_OK;
    }
    mf_status status = mf_grouping_init(&g, x, e);
    if (status == MF_OK) {
        *size_B = INT64_MAX;
        *bound_B = mf_grouping_most_B(&g);
        to = (aim){*bound_B, enough(*bound_B)};
        to.enough_B = *bound_B + gaps_B > to.enough_B ? *bound_B + gaps_B : to.enough_B;
    }
    for (size_t i = 0; i < sizeof attempts / sizeof attempts[0] && status == MF_OK; i++) {
        const attempt *a = &attempts[i];
        bool may = a->how != MF_ALONE || (alone && x->count <= FEW);
        if (may && looks > 0 && *size_B > to.enough_B) {
            const int64_t before = looks;
            status = a->pieces == PARTS ? try_parts(x, a, &to, &looks, size_B, e)
                                        : try_one(&g, a, &to, &looks, size_B, e);
            x->looks += before - looks;
        }
        looks = i + 1 == ALWAYS ? LOOKS : looks;
    }
    mf_grouping_clear(&g);
    return status;
}
