/* priced.c - blocks with prices, played again and again. */
#include "simulator/priced.h"

#include "simulator/block_build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An op whose price depends on a data-parallel group. */
typedef struct group_op {
    int at, go;
    mf_op op;
} group_op;

struct mf_priced {
    const mf_cost *cost;
    double load;
    int first[MF_GO_COUNT + 1]; /* go g has ops [first[g], first[g + 1]) */
    double time_s[MF_GO_COUNT]; /* played alone; negative = not yet */
    double sync_s[MF_GO_COUNT]; /* device idle for the host */
    double dp_host_s[MF_GO_COUNT];
    double exposed[MF_STREAM_COUNT];
    mf_play_op *ops; /* [n] by go; deps count from the go's first */
    int *deps, *next_of;
    int *at;         /* [n] place of each op of the block */
    bool *turn;      /* [n] a turn of a merged pair ends behind it */
    group_op *group; /* [groups] */
    int groups;
};

/* --- making ----------------------------------------------------------------------------------- */

static bool is_grouped(const mf_op *op) {
    return op->group == MF_GROUP_DP_CP || op->group == MF_GROUP_EDP;
}

/* Takes the ops over from the builder: what follows from each op of the block is noted, then the
 * block may go. */
static mf_status take(mf_priced *p, mf_block_play *from, const mf_layout *l, const mf_block *b,
                      mf_err *e) {
    size_t room = (size_t)b->nops + 1;
    for (int i = 0; i < b->nops; i++) {
        p->groups += is_grouped(&b->ops[i]);
    }
    p->at = malloc(room * sizeof *p->at);
    p->turn = calloc(room, sizeof *p->turn);
    p->group = malloc(((size_t)p->groups + 1) * sizeof *p->group);
    if (!p->at || !p->turn || !p->group) {
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    p->groups = 0;
    for (int g = 0; g < MF_GO_COUNT; g++) {
        for (int i = p->first[g]; i < p->first[g + 1]; i++) {
            int of = from->order[i].op;
            const mf_op *op = &b->ops[of];
            p->at[of] = i;
            p->sync_s[g] += mf_cost_host_sync_s(p->cost, op, l->graph);
            if (op->stream == MF_STREAM_DP) {
                p->dp_host_s[g] += mf_cost_host_s(p->cost, op, l->graph);
            }
            if (is_grouped(op)) {
                p->group[p->groups++] = (group_op){i, g, *op};
            }
            from->play.ops[i].op = NULL;
        }
    }
    for (int at = 0; at < b->nops;) {
        at = mf_block_turn(b, at, at < b->nforward ? b->nforward : b->nops);
        p->turn[p->at[at - 1]] = true;
    }
    p->ops = from->play.ops;
    p->next_of = from->play.next_of;
    p->deps = from->deps;
    from->play.ops = NULL;
    from->play.next_of = NULL;
    from->deps = NULL;
    return MF_OK;
}

mf_status mf_priced_create(const mf_cost *cost, const mf_layout *l, const mf_block *b, bool split,
                           double load, const mf_alike *alike, mf_priced **out, mf_err *e) {
    const unsigned passes[MF_GO_COUNT] = {
        MF_PASS_F, split ? MF_PASS_R | MF_PASS_B : MF_PASS_BACKWARD, split ? MF_PASS_W : 0};
    mf_block_play build = {.cost = cost, .l = l, .load = load, .alike = alike};
    mf_priced *p = calloc(1, sizeof *p);
    *out = NULL;
    if (p == NULL) {
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    mf_status status = mf_block_play_init(&build, b, NULL, e);
    if (status == MF_OK) {
        p->cost = cost;
        p->load = load;
        for (int g = 0; g < MF_GO_COUNT; g++) {
            int deps = build.ndeps;
            p->time_s[g] = -1;
            p->first[g + 1] = p->first[g] + mf_block_play_add(&build, b, passes[g]);
            for (int k = deps; k < build.ndeps; k++) {
                build.deps[k] -= p->first[g];
            }
        }
        mf_block_exposed(cost, p->exposed);
        status = take(p, &build, l, b, e);
    }
    mf_block_play_clear(&build);
    if (status != MF_OK) {
        mf_priced_destroy(p);
        return status;
    }
    *out = p;
    return MF_OK;
}

void mf_priced_destroy(mf_priced *p) {
    if (p == NULL) {
        return;
    }
    free(p->ops);
    free(p->deps);
    free(p->next_of);
    free(p->at);
    free(p->turn);
    free(p->group);
    free(p);
}

double mf_priced_op_s(const mf_priced *p, int i) {
    return p->ops[p->at[i]].alone_s;
}

void mf_priced_regroup(mf_priced *p, const mf_layout *l) {
    for (int i = 0; i < p->groups; i++) {
        mf_op *op = &p->group[i].op;
        mf_group_shape shape = mf_layout_group(l, (mf_group_kind)op->group);
        if (shape.size != op->shape.size || shape.stride != op->shape.stride) {
            op->shape = shape;
            p->time_s[p->group[i].go] = -1;
            mf_block_price(p->cost, op, p->load, &p->ops[p->group[i].at]);
        }
    }
}

double mf_priced_dp_s(const mf_priced *p, mf_go go) {
    double sum_s = 0;
    for (int i = p->first[go]; i < p->first[go + 1]; i++) {
        sum_s += p->ops[i].stream == MF_STREAM_DP ? p->ops[i].alone_s : 0;
    }
    return sum_s;
}

double mf_priced_dp_host_s(const mf_priced *p, mf_go go) {
    return p->dp_host_s[go];
}

/* --- playing ---------------------------------------------------------------------------------- */

typedef struct rules {
    const mf_cost *cost;
    const mf_play_op *ops;
} rules;

static double slowdown(void *user, int i, double sm_share, double memory_Bps) {
    const rules *r = user;
    return mf_cost_slowdown(r->cost, r->ops[i].memory_share, fmin(sm_share, 0.9), memory_Bps);
}

static double run(const mf_priced *p, mf_play_op *ops, int n, const int *deps, int *next_of) {
    rules r = {p->cost, ops};
    mf_play play = {
        .ops = ops, .n = n, .deps = deps, .slowdown = slowdown, .user = &r, .time_only = true};
    memcpy(play.exposed, p->exposed, sizeof play.exposed);
    play.next_of = next_of;
    mf_play_run(&play);
    return play.time_s;
}

double mf_priced_time_s(mf_priced *p, mf_go go) {
    int first = p->first[go], n = p->first[go + 1] - first;
    if (p->time_s[go] < 0) {
        p->time_s[go] = run(p, p->ops + first, n, p->deps, p->next_of) + p->sync_s[go];
    }
    return p->time_s[go];
}

/* Ops of several blocks in the order in which they are issued (mf_block_merge). */
typedef struct issue {
    mf_play_op *ops;
    int *deps, *next_of, *place[MF_BLOCK_SIDES]; /* place: of each op of a side among all */
    int n, ndeps;
} issue;

static mf_status issue_init(issue *x, int ops, mf_err *e) {
    size_t n = (size_t)ops + 1;
    *x = (issue){.ops = malloc(n * sizeof *x->ops),
                 .deps = malloc(n * (MF_OP_MAX_IN + 3) * sizeof *x->deps)};
    if (!x->ops || !x->deps) {
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    x->next_of = x->deps + n * MF_OP_MAX_IN;
    x->place[0] = x->next_of + n;
    x->place[1] = x->place[0] + n;
    return MF_OK;
}

static void issue_clear(issue *x) {
    free(x->ops);
    free(x->deps);
}

static int ops_of(const mf_priced_zero *p, mf_go go) {
    int zero = p->zero ? p->zero->groups : 0;
    return p->block->first[go + 1] - p->block->first[go] + zero;
}

static void add(issue *x, const mf_priced *p, mf_go go, int side, int i) {
    const mf_play_op *from = &p->ops[i];
    mf_play_op *to = &x->ops[x->n];
    *to = *from;
    to->first_dep = x->ndeps;
    for (int k = 0; k < from->ndeps; k++) {
        x->deps[x->ndeps++] = x->place[side][p->deps[from->first_dep + k]];
    }
    x->place[side][i - p->first[go]] = x->n++;
}

/* Gathers of a go, or reductions. */
static void add_zero(issue *x, const mf_priced *zero, mf_go go, bool gathers) {
    for (int i = 0; zero && i < zero->groups; i++) {
        const group_op *from = &zero->group[i];
        bool is_gather = (from->op.flags & MF_OPF_PREFETCH) != 0;
        if (from->go == (int)go && from->op.stream == MF_STREAM_DP && is_gather == gathers) {
            x->ops[x->n] = zero->ops[from->at];
            x->ops[x->n++].ndeps = 0;
        }
    }
}

/* Op i of a go, with what ZeRO has in front of the first one and behind the last one. */
static void add_with(issue *x, const mf_priced_zero *p, mf_go go, int side, int i) {
    if (i == p->block->first[go]) {
        add_zero(x, p->zero, go, true);
    }
    add(x, p->block, go, side, i);
    if (i + 1 == p->block->first[go + 1]) {
        add_zero(x, p->zero, go, false);
    }
}

static bool adds_to(const mf_priced *zero, mf_go go) {
    bool adds = false;
    for (int i = 0; zero && i < zero->groups; i++) {
        adds |= zero->group[i].go == (int)go && zero->group[i].op.stream == MF_STREAM_DP;
    }
    return adds;
}

mf_status mf_priced_zero_s(const mf_priced_zero *p, mf_go go, double *time_s, mf_err *e) {
    issue x;
    if (!adds_to(p->zero, go)) {
        *time_s = mf_priced_time_s(p->block, go);
        return MF_OK;
    }
    mf_status status = issue_init(&x, ops_of(p, go), e);
    if (status == MF_OK) {
        for (int i = p->block->first[go]; i < p->block->first[go + 1]; i++) {
            add_with(&x, p, go, 0, i);
        }
        *time_s = run(p->block, x.ops, x.n, x.deps, x.next_of) + p->block->sync_s[go];
    }
    issue_clear(&x);
    return status;
}

mf_status mf_priced_pair_s(const mf_priced_zero *forward, const mf_priced_zero *backward,
                           double *time_s, mf_err *e) {
    static const mf_go go[MF_BLOCK_SIDES] = {MF_GO_FORWARD, MF_GO_BACKWARD};
    const mf_priced_zero *p[MF_BLOCK_SIDES] = {forward, backward};
    int at[MF_BLOCK_SIDES], end[MF_BLOCK_SIDES];
    issue x;
    mf_status status =
        issue_init(&x, ops_of(forward, MF_GO_FORWARD) + ops_of(backward, MF_GO_BACKWARD), e);
    if (status != MF_OK) {
        goto out;
    }
    for (int side = 0; side < MF_BLOCK_SIDES; side++) {
        at[side] = p[side]->block->first[go[side]];
        end[side] = p[side]->block->first[go[side] + 1];
    }
    for (int side = 1; at[0] < end[0] || at[1] < end[1]; side = 1 - side) {
        bool more = at[side] < end[side];
        while (more) {
            more = !p[side]->block->turn[at[side]] && at[side] + 1 < end[side];
            add_with(&x, p[side], go[side], side, at[side]++);
        }
    }
    double sync_s = forward->block->sync_s[MF_GO_FORWARD] + backward->block->sync_s[MF_GO_BACKWARD];
    *time_s = run(forward->block, x.ops, x.n, x.deps, x.next_of) + sync_s;
out:
    issue_clear(&x);
    return status;
}
