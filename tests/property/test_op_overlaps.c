/* Ops of a block that touch the same bytes, one of them writing. Where lowering places local
 * tensors, what the simulator's ops wait for orders all of them. Where all stand in one place, it
 * does not, and those that mf_block_overlaps names order the rest. Layouts are those of
 * test_executor_grid. */
#include "core/program/waits.h"
#include "simulator/block_build.h"
#include "tests/support/account.h"
#include "tests/support/grid_draw.h"
#include "tests/support/overlaps.h"
#include "tests/support/sampled.h"

enum { LAYOUTS = 40, MOST = 2048 };

/* What a pass waits for: bit i of row j says that op i has ended when op j begins (of the play). */
typedef struct closure {
    int n;
    bool *past; /* [n][n] */
} closure;

static void wait_for(closure *c, int i, int on) {
    c->past[i * c->n + on] = true;
    for (int k = 0; k < on; k++) {
        c->past[i * c->n + k] |= c->past[on * c->n + k];
    }
}

/* Place of op `index` of the block among those that play. */
static int place_of(const mf_block_play *p, int index) {
    for (int i = 0; i < p->play.n; i++) {
        if (p->order[i].op == index) {
            return i;
        }
    }
    return -1;
}

/* Order by streams, by values as the simulator has it, and by the first `named` overlaps. */
static void close_over(closure *c, const mf_block_play *p, const mf_overlap *o, int named) {
    int last[MF_STREAM_COUNT];
    memset(last, 0xff, sizeof last);
    c->n = p->play.n;
    c->past = calloc((size_t)(c->n * c->n) + 1, sizeof *c->past);
    assert_non_null(c->past);
    for (int i = 0; i < c->n; i++) {
        const mf_play_op *q = &p->play.ops[i];
        if (last[q->stream] >= 0) {
            wait_for(c, i, last[q->stream]);
        }
        for (int k = 0; k < q->ndeps; k++) {
            wait_for(c, i, p->deps[q->first_dep + k]);
        }
        for (int k = 0; k < named; k++) {
            if (o[k].after == p->order[i].op) {
                wait_for(c, i, place_of(p, o[k].before));
            }
        }
        last[q->stream] = i;
    }
}

/* Bytes of a local tensor in its workspace; others stand by themselves, far behind. */
static void bytes_of(const mf_block *b, int16_t t, int64_t *from, int64_t *to) {
    const mf_tensor *x = &b->tensors[t];
    bool placed = x->class == MF_TENSOR_LOCAL && x->offset_B >= 0;
    *from = placed ? x->offset_B : ((int64_t)1 << 50) + ((int64_t)t << 32);
    *to = *from + (placed ? mf_align_B(x->bytes) : 1);
}

static bool conflict(const mf_block *b, const mf_op *x, const mf_op *y) {
    for (int k = 0; k < x->nin + x->nout; k++) {
        for (int j = 0; j < y->nin + y->nout; j++) {
            int16_t s = k < x->nin ? x->in[k] : x->out[k - x->nin];
            int16_t t = j < y->nin ? y->in[j] : y->out[j - y->nin];
            int64_t from[2], to[2];
            bool pieces = s == t && x->pieces > 1 && x->pieces == y->pieces &&
                          mf_op_split_axis(x) == mf_op_split_axis(y) && x->piece != y->piece;
            bytes_of(b, s, &from[0], &to[0]);
            bytes_of(b, t, &from[1], &to[1]);
            bool meet = from[0] < to[1] && from[1] < to[0];
            if ((k >= x->nin || j >= y->nin) && meet && !pieces) {
                return true;
            }
        }
    }
    return false;
}

/* Ops that belong to the neighbouring block in time wait for nothing here. */
static bool detached(const mf_layout *l, const mf_op *op) {
    return op->stream == MF_STREAM_D2H || (op->flags & MF_OPF_PREFETCH) != 0 ||
           (op->stream == MF_STREAM_DP && (l->overlap & MF_OVERLAP_DP) != 0);
}

/* Pairs that nothing orders. */
static int races(const closure *c, const mf_block_play *p, const mf_block *b, const mf_layout *l) {
    int n = 0;
    for (int j = 0; j < c->n; j++) {
        for (int i = 0; i < j; i++) {
            const mf_op *x = p->play.ops[i].op, *y = p->play.ops[j].op;
            n += !c->past[j * c->n + i] && !detached(l, x) && !detached(l, y) && conflict(b, x, y);
        }
    }
    return n;
}

typedef struct tally {
    int passes;         /* as lowering places them */
    int placed, bare;   /* overlaps named there; pairs that nothing orders */
    int named, loose;   /* the same, placed by the order of ops */
    int left, needless; /* ... with the named ones in order; named, but ordered already */
} tally;

static void check_pass(const mf_cost *cost, const mf_layout *l, const mf_block *b, unsigned passes,
                       bool placed, tally *t) {
    mf_block_play p = {.cost = cost, .l = l, .load = 1.0};
    mf_overlap *o = NULL;
    int named = 0;
    closure all, without;
    assert_ok(mf_block_play_build(&p, b, passes, NULL, NULL));
    assert_ok(mf_block_overlaps(b, passes, &o, &named, NULL));
    assert_below(p.play.n, MOST);
    close_over(&all, &p, o, named);
    close_over(&without, &p, o, 0);
    int bare = races(&without, &p, b, l);
    t->passes += placed;
    *(placed ? &t->placed : &t->named) += named;
    *(placed ? &t->bare : &t->loose) += bare;
    t->left += races(&all, &p, b, l);
    for (int k = 0; k < named; k++) { /* none that waits order already */
        int first = place_of(&p, o[k].before), second = place_of(&p, o[k].after);
        t->needless += without.past[second * without.n + first];
    }
    if (placed && bare > 0) {
        printf("%s, passes %x: %d pairs that nothing orders\n", b->label, passes, bare);
    }
    free(o);
    free(all.past);
    free(without.past);
    mf_block_play_clear(&p);
}

/* The first and the last op of some passes that touches a tensor; none: last < first. */
static void life_of(const mf_block *b, unsigned passes, int16_t t, int *first, int *last) {
    *first = 0;
    *last = -1;
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        for (int k = 0; k < op->nin + op->nout && (op->pass & passes) != 0; k++) {
            if ((k < op->nin ? op->in[k] : op->out[k - op->nin]) == t) {
                *first = *last < 0 ? i : *first;
                *last = i;
            }
        }
    }
}

/* Places that know one queue alone: in the order of ops, whoever is dead by then makes space.
 * Lowest place first, in steps of the alignment of the largest tensor. */
static void place_by_order(mf_block *b, unsigned passes) {
    int64_t step = 0;
    for (int t = 0; t < b->ntensors; t++) {
        int64_t size = mf_align_B(b->tensors[t].bytes);
        step = b->tensors[t].offset_B >= 0 && size > step ? size : step;
    }
    for (int16_t t = 0; t < b->ntensors; t++) {
        int first, last;
        life_of(b, passes, t, &first, &last);
        if (b->tensors[t].class != MF_TENSOR_LOCAL || last < first) {
            continue;
        }
        bool taken = true;
        for (int64_t at = 0; taken; at += step) {
            b->tensors[t].offset_B = at;
            taken = false;
            for (int16_t u = 0; u < t && !taken; u++) {
                int from, to;
                life_of(b, passes, u, &from, &to);
                taken = b->tensors[u].class == MF_TENSOR_LOCAL && from <= last && to >= first &&
                        b->tensors[u].offset_B == at;
            }
        }
    }
}

static void check_passes(const mf_cost *cost, const mf_layout *l, mf_block *b, unsigned passes,
                         tally *t) {
    check_pass(cost, l, b, passes, true, t);
    place_by_order(b, passes);
    check_pass(cost, l, b, passes, false, t);
}

static void check_block(const mf_cost *cost, const mf_layout *l, mf_block *b, bool split,
                        tally *t) {
    check_passes(cost, l, b, MF_PASS_F, t);
    check_passes(cost, l, b, split ? MF_PASS_R | MF_PASS_B : MF_PASS_BACKWARD, t);
    if (split) {
        check_passes(cost, l, b, MF_PASS_W, t);
    }
}

static void lower(const grid_model *m, const mf_layout *drawn, grid_case *g) {
    *g = (grid_case){.layout = *drawn};
    assert_ok(grid_model_load(m, &g->model, NULL));
    assert_ok(mf_cluster_load("h200", &g->cluster, NULL));
    g->layout.capacity_factor = m->capacity;
    g->layout.pad_to_capacity = m->padded;
    assert_ok(mf_layout_resolve(&g->layout, &g->model, NULL));
    assert_ok(mf_assignment_even(&g->model, &g->layout, &g->assignment, NULL));
    assert_ok(
        mf_program_lower(&g->model, &g->layout, &g->cluster, &g->assignment, &g->program, NULL));
}

static void check_layout(const mf_cost *cost, const grid_model *m, const mf_layout *drawn,
                         tally *t) {
    grid_case g;
    lower(m, drawn, &g);
    for (int i = 0; i < g.program->nblocks; i++) {
        check_block(cost, &g.layout, g.program->blocks[i], g.program->split, t);
    }
    mf_program_destroy(g.program);
}

static void ops_that_share_bytes_wait_for_each_other(void **state) {
    mf_cost *cost = account_cost(NULL);
    tally t = {0};
    (void)state;
    assert_non_null(cost);
    for (int ranks = 2; ranks <= 8; ranks *= 2) {
        rng r = grid_seed(ranks);
        for (int i = 0; i < case_count(LAYOUTS, 8); i++) {
            mf_layout l;
            const grid_model *m = grid_draw(&r, ranks, &l);
            check_layout(cost, m, &l, &t);
        }
    }
    printf("%d passes; placed by order %d named, %d pairs without them, %d with them\n", t.passes,
           t.named, t.loose, t.left);
    mf_cost_destroy(cost);
    assert_int_equal(t.placed, 0);
    assert_int_equal(t.bare, 0);
    assert_above(t.named, 500 / case_stride(8));
    assert_above(t.loose, 2000 / case_stride(8));
    assert_int_equal(t.left, 0);
    assert_int_equal(t.needless, 0);
}

/* --- reductions ---------------------------------------------------------------------------------
 */

static bool is_reduction(const mf_op *op) {
    return op->kind == MF_OP_REDUCE_SCATTER && op->stream == MF_STREAM_DP;
}

/* Gradients of the reduction's side that op k writes and that may not be there when it begins. */
static int missing_gradients(const mf_waits *w, int reduction, int k) {
    const mf_block *b = w->b;
    bool expert = b->ops[reduction].group == MF_GROUP_EDP;
    int n = 0;
    for (int j = 0; j < b->ops[k].nout; j++) {
        const mf_tensor *t = &b->tensors[b->ops[k].out[j]];
        bool mine = t->class == MF_TENSOR_GRADIENT && (t->part == MF_PART_EXPERT) == expert;
        n += mine && !mf_waits_ended(w, reduction, k);
    }
    return n;
}

static void count_reductions(const mf_block *b, unsigned passes, int *found, int *missing) {
    mf_waits w;
    assert_ok(mf_waits_open(&w, b, passes));
    for (int i = w.first; i < w.end; i++) {
        if (!mf_waits_plays(&w, i)) {
            continue;
        }
        mf_waits_add(&w, i);
        *found += is_reduction(&b->ops[i]);
        for (int k = w.first; k < w.end && is_reduction(&b->ops[i]); k++) {
            *missing += mf_waits_plays(&w, k) && k != i ? missing_gradients(&w, i, k) : 0;
        }
    }
    mf_waits_clear(&w);
}

/* Of ZeRO-2 and -3: the norm's gradient is an output beside another one, made in B. */
static void reductions_wait_for_every_gradient(void **state) {
    int found = 0, missing = 0;
    (void)state;
    for (int ranks = 2; ranks <= 8; ranks *= 2) {
        rng r = grid_seed(ranks);
        for (int i = 0; i < case_count(LAYOUTS, 8); i++) {
            mf_layout l;
            const grid_model *m = grid_draw(&r, ranks, &l);
            grid_case g;
            lower(m, &l, &g);
            for (int k = 0; k < g.program->nblocks; k++) {
                const mf_block *b = g.program->blocks[k];
                bool split = g.program->split;
                count_reductions(b, split ? MF_PASS_W : MF_PASS_BACKWARD, &found, &missing);
            }
            mf_program_destroy(g.program);
        }
    }
    assert_above(found, 50 / case_stride(5));
    assert_int_equal(missing, 0);
}

/* --- gathered weights ---------------------------------------------------------------------------
 */

static bool takes_weight(const mf_block *b, const mf_op *op, bool expert) {
    for (int k = 0; k < op->nin; k++) {
        const mf_tensor *t = &b->tensors[op->in[k]];
        if (t->class == MF_TENSOR_WEIGHT && !t->gather_mark &&
            (t->part == MF_PART_EXPERT) == expert) {
            return true;
        }
    }
    return false;
}

/* Ops behind gather `at` that read its weights, themselves or as the forward op of an input
 * gradient, and may begin before its end. */
static int early_readers(const mf_waits *w, int at) {
    const mf_block *b = w->b;
    bool expert = b->ops[at].group == MF_GROUP_EDP;
    int n = 0;
    for (int i = at + 1; i < w->end; i++) {
        const mf_op *op = &b->ops[i];
        bool reads = takes_weight(b, op, expert) || (op->pass == MF_PASS_B && op->forward >= 0 &&
                                                     takes_weight(b, &b->ops[op->forward], expert));
        n += mf_waits_plays(w, i) && reads && !mf_waits_ended(w, i, at);
    }
    return n;
}

static void count_gathers(const mf_block *b, unsigned passes, int *found, int *early) {
    mf_waits w;
    assert_ok(mf_waits_open(&w, b, passes));
    for (int i = w.first; i < w.end; i++) {
        if (mf_waits_plays(&w, i)) {
            mf_waits_add(&w, i);
        }
    }
    for (int i = w.first; i < w.end; i++) {
        const mf_op *op = &b->ops[i];
        bool gather =
            mf_waits_plays(&w, i) && op->kind == MF_OP_ALL_GATHER && op->stream == MF_STREAM_DP;
        *found += gather;
        *early += gather ? early_readers(&w, i) : 0;
    }
    mf_waits_clear(&w);
}

/* A norm's or a gate's gradient multiplies by a weight that is an operand of its forward op alone.
 */
static void readers_of_gathered_weights_wait(void **state) {
    int found = 0, early = 0;
    (void)state;
    for (int ranks = 2; ranks <= 8; ranks *= 2) {
        rng r = grid_seed(ranks);
        for (int i = 0; i < case_count(2 * LAYOUTS, 30); i++) {
            mf_layout l;
            const grid_model *m = grid_draw(&r, ranks, &l);
            grid_case g;
            mf_model model;
            assert_ok(grid_model_load(m, &model, NULL));
            l.zero = l.expert_zero = 3;
            l.ep = l.etp = 1;
            if (!mf_layout_valid(&l, &model)) {
                continue;
            }
            lower(m, &l, &g);
            for (int k = 0; k < g.program->nblocks; k++) {
                const mf_block *b = g.program->blocks[k];
                unsigned back = g.program->split ? MF_PASS_R | MF_PASS_B : MF_PASS_BACKWARD;
                count_gathers(b, MF_PASS_F, &found, &early);
                count_gathers(b, back, &found, &early);
            }
            mf_program_destroy(g.program);
        }
    }
    assert_above(found, 100 / case_stride(3));
    assert_int_equal(early, 0);
}

/* --- by hand ------------------------------------------------------------------------------------
 */

/* A product reads what was gathered; the next gather takes its place. */
static void a_gather_that_lands_on_what_is_read_is_named(void **state) {
    mf_tensor t[4] = {0};
    mf_op ops[3] = {0};
    mf_block b = {.nops = 3, .nforward = 3, .ntensors = 4, .ops = ops, .tensors = t};
    mf_overlap *o = NULL;
    int n = 0;
    (void)state;
    for (int k = 0; k < 4; k++) {
        t[k] = (mf_tensor){.class = MF_TENSOR_LOCAL, .bytes = 1024, .offset_B = 1024 * k};
    }
    ops[0] = (mf_op){.kind = MF_OP_ALL_GATHER, .stream = MF_STREAM_TP, .nout = 1, .out = {0}};
    ops[1] = (mf_op){.kind = MF_OP_GEMM, .nin = 1, .nout = 1, .in = {0}, .out = {1}};
    ops[2] = (mf_op){.kind = MF_OP_ALL_GATHER, .stream = MF_STREAM_TP, .nout = 1, .out = {2}};
    for (int k = 0; k < 3; k++) {
        ops[k].pass = MF_PASS_F;
        ops[k].forward = -1;
    }
    assert_ok(mf_block_overlaps(&b, MF_PASS_F, &o, &n, NULL));
    assert_int_equal(n, 0);
    t[2].offset_B = 512; /* half of what the product reads */
    assert_ok(mf_block_overlaps(&b, MF_PASS_F, &o, &n, NULL));
    assert_int_equal(n, 1);
    assert_true(o[0].before == 1);
    assert_true(o[0].after == 2);
    assert_true(o[0].tensor_after == 2);
    assert_true(o[0].tensor_before == 0 || o[0].tensor_before == 1);
    free(o);
    ops[2].nin = 1; /* it takes the product: that is order enough */
    ops[2].in[0] = 1;
    assert_ok(mf_block_overlaps(&b, MF_PASS_F, &o, &n, NULL));
    assert_int_equal(n, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_that_share_bytes_wait_for_each_other),
        cmocka_unit_test(reductions_wait_for_every_gradient),
        cmocka_unit_test(readers_of_gathered_weights_wait),
        cmocka_unit_test(a_gather_that_lands_on_what_is_read_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
