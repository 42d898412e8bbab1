/* priced.c - blocks with prices, played again and again. */
#include "simulator/priced.h"

#include "core/base/scratch.h"
#include "simulator/block_build.h"
#include "simulator/play_time.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* An op whose price depends on a data-parallel group. */
typedef struct group_op {
    int at, pass;
    mf_op op;
} group_op;

struct mf_priced {
    const mf_cost *cost;
    double load;
    int first[MF_PLAY_PASSES + 1];         /* pass g has ops [first[g], first[g + 1]) */
    _Atomic double time_s[MF_PLAY_PASSES]; /* played alone; negative = not yet */
    double sync_s[MF_PLAY_PASSES];         /* device idle for the host */
    double staged_s[MF_PLAY_PASSES];       /* copies where blocks meet */
    double dp_host_s[MF_PLAY_PASSES];
    double exposed[MF_STREAM_COUNT], exposed_inside;
    mf_timed_work
        *ops; /* [n] by pass; deps count from the pass's first; all of these stand behind it */
    int *deps;
    int *at;         /* [n] place of each op of the block */
    bool *turn;      /* [n] a turn of a merged pair ends behind it */
    group_op *group; /* [groups] */
    int groups;
};

/* --- making ----------------------------------------------------------------------------------- */

static bool is_grouped(const mf_op *op) {
    return op->group == MF_GROUP_DP_CP || op->group == MF_GROUP_EDP;
}

/* A copy of the head with memory for all that it points to, in one piece: there are many of these.
 */
static mf_priced *allocate_like(const mf_priced *head, const mf_block_play *from,
                                const mf_block *b) {
    const size_t n = (size_t)head->first[MF_PLAY_PASSES], of = (size_t)b->nops;
    const size_t groups = (size_t)head->groups, deps = (size_t)from->ndeps;
    mf_priced *p = malloc(sizeof *p + n * sizeof *p->ops + groups * sizeof *p->group +
                          deps * sizeof *p->deps + of * sizeof *p->at + of * sizeof *p->turn);
    if (p != NULL) {
        *p = *head;
        p->ops = (mf_timed_work *)(p + 1);
        p->group = (group_op *)(p->ops + n);
        p->deps = (int *)(p->group + groups);
        p->at = p->deps + deps;
        p->turn = (bool *)(p->at + of);
        memcpy(p->deps, from->deps, deps * sizeof *p->deps);
        memset(p->turn, 0, of * sizeof *p->turn);
    }
    return p;
}

/* Takes the ops over from the builder: what follows from each op of the block is noted, then the
 * block may pass. */
static mf_status take(mf_priced *head, const mf_block_play *from, const mf_layout *l,
                      const mf_block *b, mf_priced **out, mf_err *e) {
    for (int i = 0; i < b->nops; i++) {
        head->groups += is_grouped(&b->ops[i]);
    }
    mf_priced *p = allocate_like(head, from, b);
    if (p == NULL) {
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    p->groups = 0;
    for (int g = 0; g < MF_PLAY_PASSES; g++) {
        for (int i = p->first[g]; i < p->first[g + 1]; i++) {
            int of = from->order[i].op;
            const mf_op *op = &b->ops[of];
            p->at[of] = i;
            p->sync_s[g] += mf_cost_host_sync_s(p->cost, op, l->graph);
            p->staged_s[g] += mf_block_staged_s(p->cost, op, p->load);
            if (op->stream == MF_STREAM_DP) {
                p->dp_host_s[g] += mf_cost_host_s(p->cost, op, l->graph);
            }
            if (is_grouped(op)) {
                p->group[p->groups++] = (group_op){i, g, *op};
            }
            p->ops[i] = mf_timed_work_of(&from->play.ops[i]);
        }
    }
    for (int at = 0; at < b->nops;) {
        at = mf_block_turn(b, at, at < b->nforward ? b->nforward : b->nops);
        p->turn[p->at[at - 1]] = true;
    }
    *out = p;
    return MF_OK;
}

mf_status mf_priced_create(const mf_cost *cost, const mf_layout *l, const mf_block *b, bool split,
                           bool at_end, double load, mf_priced **out, mf_err *e) {
    const unsigned passes[MF_PLAY_PASSES] = {
        MF_PASS_F, split ? MF_PASS_R | MF_PASS_B : MF_PASS_BACKWARD, split ? MF_PASS_W : 0};
    const bool own = at_end && mf_cost_software(cost)->copies_in_pass > 0;
    mf_block_play build = {.cost = cost, .l = l, .load = load, .own_out = own, .own_in = own};
    mf_priced head = {.cost = cost, .load = load};
    *out = NULL;
    mf_status status = mf_block_play_init(&build, b, NULL, e);
    if (status == MF_OK) {
        for (int g = 0; g < MF_PLAY_PASSES; g++) {
            int deps = build.ndeps;
            head.time_s[g] = -1;
            head.first[g + 1] = head.first[g] + mf_block_play_add(&build, b, passes[g]);
            for (int k = deps; k < build.ndeps; k++) {
                build.deps[k] -= head.first[g];
            }
        }
        mf_block_exposed(cost, head.exposed, &head.exposed_inside);
        status = take(&head, &build, l, b, out, e);
    }
    mf_block_play_clear(&build);
    return status;
}

void mf_priced_destroy(mf_priced *p) {
    free(p);
}

double mf_priced_op_s(const mf_priced *p, int i) {
    return p->ops[p->at[i]].alone_s;
}

double mf_priced_link_s(const mf_priced *p, mf_play_pass pass, mf_link_kind link) {
    double sum_s = 0;
    for (int i = p->first[pass]; i < p->first[pass + 1]; i++) {
        const mf_timed_work *op = &p->ops[i];
        bool counts = op->link == link && op->stream != MF_STREAM_DP;
        sum_s += counts ? op->alone_s * op->link_share : 0;
    }
    return sum_s;
}

static bool same_group(const mf_op *op, const mf_layout *l) {
    const mf_group_shape shape = mf_layout_group(l, (mf_group_kind)op->group);
    return shape.size == op->shape.size && shape.stride == op->shape.stride;
}

bool mf_priced_suits(const mf_priced *p, const mf_layout *l) {
    for (int i = 0; i < p->groups; i++) {
        if (!same_group(&p->group[i].op, l)) {
            return false;
        }
    }
    return true;
}

static void reprice(const mf_priced *p, const mf_op *op, mf_timed_work *x) {
    mf_play_op q = {.stream = x->stream, .ndeps = x->ndeps, .first_dep = x->first_dep};
    mf_block_price(p->cost, op, p->load, &q);
    *x = mf_timed_work_of(&q);
}

void mf_priced_regroup(mf_priced *p, const mf_layout *l) {
    for (int i = 0; i < p->groups; i++) {
        mf_op *op = &p->group[i].op;
        if (!same_group(op, l)) {
            op->shape = mf_layout_group(l, (mf_group_kind)op->group);
            p->time_s[p->group[i].pass] = -1;
            reprice(p, op, &p->ops[p->group[i].at]);
        }
    }
}

double mf_priced_dp_s(const mf_priced *p, mf_play_pass pass) {
    double sum_s = 0;
    for (int i = p->first[pass]; i < p->first[pass + 1]; i++) {
        sum_s += p->ops[i].stream == MF_STREAM_DP ? p->ops[i].alone_s : 0;
    }
    return sum_s;
}

double mf_priced_dp_host_s(const mf_priced *p, mf_play_pass pass) {
    return p->dp_host_s[pass];
}

/* --- playing ---------------------------------------------------------------------------------- */

static double slowdown(const void *cost, double memory_share, double sm_share, double memory_Bps) {
    return mf_cost_slowdown(cost, memory_share, sm_share < 0.9 ? sm_share : 0.9, memory_Bps);
}

/* Ops of one or two blocks in the order in which they are issued (mf_block_merge). */
typedef struct issue {
    mf_timed_op *ops;
    bool *done[MF_BLOCK_SIDES + 1]; /* of each side; of what waits for nothing, and is not waited
                                     * for */
    int n;
} issue;

static int ops_of(const mf_priced *p, mf_play_pass pass) {
    return p->first[pass + 1] - p->first[pass];
}

static int zeros_of(const mf_priced_zero *p) {
    return p->zero ? p->zero->groups : 0;
}

/* Memory for a pass of each side (NULL: there is none). */
static mf_status issue_init(issue *x, const mf_priced_zero *const p[MF_BLOCK_SIDES],
                            const mf_play_pass pass[MF_BLOCK_SIDES], mf_err *e) {
    int of[MF_BLOCK_SIDES] = {0, 0}, zeros = 0;
    for (int side = 0; side < MF_BLOCK_SIDES && p[side]; side++) {
        of[side] = ops_of(p[side]->block, pass[side]);
        zeros += zeros_of(p[side]);
    }
    size_t done = (size_t)of[0] + (size_t)of[1] + 1, all = done + (size_t)zeros;
    x->n = 0;
    x->ops = mf_scratch_take(all * sizeof *x->ops + done * sizeof(bool));
    if (!x->ops) {
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    x->done[0] = (bool *)(x->ops + all);
    x->done[1] = x->done[0] + of[0];
    x->done[2] = x->done[1] + of[1];
    memset(x->done[0], 0, done * sizeof(bool));
    return MF_OK;
}

static void issue_clear(issue *x) {
    mf_scratch_give(x->ops);
}

static double run(const mf_priced *p, const issue *x) {
    const mf_timing timing = {.ops = x->ops,
                              .n = x->n,
                              .exposed = p->exposed,
                              .exposed_inside = p->exposed_inside,
                              .slowdown = slowdown,
                              .user = p->cost};
    return mf_play_time_s(&timing);
}

static void add(issue *x, const mf_priced *p, mf_play_pass pass, int side, int i) {
    const mf_timed_work *op = &p->ops[i];
    x->ops[x->n++] =
        (mf_timed_op){op, p->deps + op->first_dep, x->done[side], i - p->first[pass], 0};
}

/* Gathers of a pass, or reductions. */
static void add_zero(issue *x, const mf_priced *zero, mf_play_pass pass, bool gathers) {
    for (int i = 0; zero && i < zero->groups; i++) {
        const group_op *from = &zero->group[i];
        bool is_gather = (from->op.flags & MF_OPF_PREFETCH) != 0;
        if (from->pass == (int)pass && from->op.stream == MF_STREAM_DP && is_gather == gathers) {
            const mf_timed_work *op = &zero->ops[from->at];
            assert(op->ndeps == 0);
            x->ops[x->n++] = (mf_timed_op){op, NULL, x->done[MF_BLOCK_SIDES], 0, 0};
        }
    }
}

/* Op i of a pass, with what ZeRO has in front of the first one and behind the last one. */
static void add_with(issue *x, const mf_priced_zero *p, mf_play_pass pass, int side, int i) {
    if (i == p->block->first[pass]) {
        add_zero(x, p->zero, pass, true);
    }
    add(x, p->block, pass, side, i);
    if (i + 1 == p->block->first[pass + 1]) {
        add_zero(x, p->zero, pass, false);
    }
}

static bool adds_to(const mf_priced *zero, mf_play_pass pass) {
    bool adds = false;
    for (int i = 0; zero && i < zero->groups; i++) {
        adds |= zero->group[i].pass == (int)pass && zero->group[i].op.stream == MF_STREAM_DP;
    }
    return adds;
}

static mf_status alone_s(const mf_priced_zero *p, mf_play_pass pass, double *time_s, mf_err *e) {
    const mf_priced_zero *const side[MF_BLOCK_SIDES] = {p, NULL};
    const mf_play_pass both[MF_BLOCK_SIDES] = {pass, pass};
    issue x;
    mf_status status = issue_init(&x, side, both, e);
    if (status != MF_OK) {
        return status;
    }
    for (int i = p->block->first[pass]; i < p->block->first[pass + 1]; i++) {
        add_with(&x, p, pass, 0, i);
    }
    *time_s = run(p->block, &x) + p->block->sync_s[pass] + p->block->staged_s[pass];
    issue_clear(&x);
    return MF_OK;
}

mf_status mf_priced_time_s(mf_priced *p, mf_play_pass pass, double *time_s, mf_err *e) {
    const mf_priced_zero plain = {p, NULL};
    *time_s = atomic_load_explicit(&p->time_s[pass], memory_order_relaxed);
    mf_status status = *time_s < 0 ? alone_s(&plain, pass, time_s, e) : MF_OK;
    if (status == MF_OK) { /* another thread's is equal */
        atomic_store_explicit(&p->time_s[pass], *time_s, memory_order_relaxed);
    }
    return status;
}

mf_status mf_priced_zero_s(const mf_priced_zero *p, mf_play_pass pass, double *time_s, mf_err *e) {
    return adds_to(p->zero, pass) ? alone_s(p, pass, time_s, e)
                                  : mf_priced_time_s(p->block, pass, time_s, e);
}

mf_status mf_priced_pair_s(const mf_priced_zero *forward, const mf_priced_zero *backward,
                           double *time_s, mf_err *e) {
    static const mf_play_pass pass[MF_BLOCK_SIDES] = {MF_PLAY_FORWARD, MF_PLAY_BACKWARD};
    const mf_priced_zero *const p[MF_BLOCK_SIDES] = {forward, backward};
    int at[MF_BLOCK_SIDES], end[MF_BLOCK_SIDES];
    issue x;
    mf_status status = issue_init(&x, p, pass, e);
    if (status != MF_OK) {
        return status;
    }
    for (int side = 0; side < MF_BLOCK_SIDES; side++) {
        at[side] = p[side]->block->first[pass[side]];
        end[side] = p[side]->block->first[pass[side] + 1];
    }
    for (int side = 1; at[0] < end[0] || at[1] < end[1]; side = 1 - side) {
        bool more = at[side] < end[side];
        while (more) {
            more = !p[side]->block->turn[at[side]] && at[side] + 1 < end[side];
            add_with(&x, p[side], pass[side], side, at[side]++);
        }
    }
    double sync_s =
        forward->block->sync_s[MF_PLAY_FORWARD] + backward->block->sync_s[MF_PLAY_BACKWARD];
    double staged_s =
        forward->block->staged_s[MF_PLAY_FORWARD] + backward->block->staged_s[MF_PLAY_BACKWARD];
    *time_s = run(forward->block, &x) + sync_s + staged_s;
    issue_clear(&x);
    return MF_OK;
}
