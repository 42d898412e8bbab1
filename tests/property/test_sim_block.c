/* Blocks of random layouts, simulated: bounds, sums, order, and how they follow the machine. */
#include "simulator/play.h"
#include "tests/support/sim_fixture.h"

typedef struct one_block {
    const mf_cost *cost;
    const mf_layout *l;
    const mf_block *b;
    unsigned passes;
    const mf_block *beside;
    double load;
} one_block;

typedef void (*block_check)(const one_block *x, const mf_block_time *t);

static const unsigned parts[] = {MF_PASS_F, MF_PASS_BACKWARD, MF_PASS_R | MF_PASS_B, MF_PASS_W};

static mf_block_time simulate(const one_block *x, bool keep) {
    mf_block_time t;
    mf_err e;
    if (mf_sim_block(x->cost, x->l, x->b, x->passes, x->beside, x->load, keep, &t, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return t;
}

static void over_random_blocks(uint64_t seed, int count, block_check check) {
    rng r = rng_init(seed);
    mf_cluster c = test_cluster();
    mf_software ideal = sim_software_ideal(), real = sim_software_real();
    real.copies_in_pass = 1;
    mf_cost *cost[2] = {sim_cost(&c, &ideal), sim_cost(&c, &real)};
    const mf_model models[] = {test_model_moe(false), test_model_moe(true), test_model_dense()};
    for (int i = 0; i < count; i++) {
        const mf_model *m = &models[i % 3];
        mf_layout l = test_random_layout(&r, m, 256);
        mf_program *p = sim_program(m, &l, &c);
        for (int b = 0; b < p->nblocks; b++) {
            one_block x = {.cost = cost[rng_range(&r, 0, 1)],
                           .l = &l,
                           .b = p->blocks[b],
                           .passes = parts[rng_range(&r, 0, 3)],
                           .load = 1 + (double)rng_range(&r, 0, 3) / 4};
            if (rng_range(&r, 0, 3) == 0) {
                x.beside = p->blocks[rng_range(&r, 0, p->nblocks - 1)];
                x.passes = MF_PASS_F | MF_PASS_BACKWARD;
            }
            mf_block_time t = simulate(&x, true);
            check(&x, &t);
            mf_block_time_clear(&t);
        }
        mf_program_destroy(p);
    }
    mf_cost_destroy(cost[0]);
    mf_cost_destroy(cost[1]);
}

/* Each op's own price, and the sums of streams and of the host. */
static void check_bounds(const one_block *x, const mf_block_time *t) {
    double eps = 1e-9 * t->gpu_time_s, host = mf_cost_host_block_s(x->cost, x->l->graph);
    double stream[MF_STREAM_COUNT] = {0};
    host *= x->beside ? 2 : t->nops > 0 ? 1 : 0;
    for (int i = 0; i < t->nops; i++) {
        const mf_block *b = t->op[i].side ? x->beside : x->b;
        const mf_op *op = &b->ops[t->op[i].op];
        mf_price p;
        mf_cost_op(x->cost, op, x->load, &p);
        stream[op->stream] += p.time_s;
        host += mf_cost_host_s(x->cost, op, x->l->graph);
        assert_at_least(t->op[i].end_s - t->op[i].start_s, p.time_s - eps);
        assert_at_most(t->op[i].end_s, t->gpu_time_s + eps);
    }
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        assert_at_most(stream[s], t->gpu_time_s + eps);
    }
    assert_close(host, t->host_s, 1e-9 * host + 1e-15);
    assert_at_least(t->time_s, t->host_s - 1e-12);
    assert_at_least(t->time_s, t->gpu_time_s - eps);
    assert_at_most(t->time_s, t->gpu_time_s + t->host_s + 1e-6 * t->time_s);
    assert_close(sim_sum(t->class_s), t->gpu_time_s, eps);
    assert_close(t->class_s[MF_BD_COMPUTE] + t->class_s[MF_BD_RECOMPUTE], t->compute_s, eps);
    assert_at_most(t->class_s[MF_BD_BUBBLE], 0);
    assert_at_most(t->class_s[MF_BD_HOST], 0);
    assert_at_most(t->low_s, t->gpu_time_s + eps);
    assert_at_least(t->high_s, t->gpu_time_s - eps);
    if (x->beside == NULL) {
        double bound = mf_sim_block_bound(x->cost, x->l, x->b, x->passes, x->load);
        assert_at_most(bound, t->gpu_time_s + eps);
        for (int s = 0; s < MF_STREAM_COUNT; s++) {
            assert_at_most(stream[s], bound + eps);
        }
    }
}

static void times_lie_above_bounds_and_classes_sum_to_them(void **state) {
    (void)state;
    over_random_blocks(41, 500, check_bounds);
}

/* Pieces of what is cut alike wait for the same piece alone. */
static bool other_piece(const mf_op *a, const mf_op *b) {
    return mf_op_split_axis(a) != MF_SPLIT_NONE && mf_op_split_axis(a) == mf_op_split_axis(b) &&
           a->pieces == b->pieces && a->piece != b->piece;
}

/* Every op after what it reads, unless it belongs to the neighbouring block in time. */
static void check_inputs(const one_block *x, const mf_block_time *t) {
    for (int i = 0; i < t->nops; i++) {
        const mf_block *b = t->op[i].side ? x->beside : x->b;
        const mf_op *op = &b->ops[t->op[i].op];
        bool apart = (op->flags & MF_OPF_PREFETCH) || op->stream == MF_STREAM_D2H ||
                     op->stream == MF_STREAM_DP;
        for (int j = 0; j < i && !apart; j++) {
            const mf_op *from = &(t->op[j].side ? x->beside : x->b)->ops[t->op[j].op];
            bool other = t->op[j].side != t->op[i].side || (from->flags & MF_OPF_PREFETCH) ||
                         from->stream == MF_STREAM_DP || other_piece(from, op);
            for (int o = 0; o < from->nout && !other; o++) {
                for (int k = 0; k < op->nin; k++) {
                    if (op->in[k] == from->out[o] &&
                        t->op[i].start_s < t->op[j].end_s - 1e-9 * t->gpu_time_s) {
                        fail_msg("%s: %s starts before %s ends", b->label, op->name, from->name);
                    }
                }
            }
        }
    }
}

static void ops_start_behind_what_they_read(void **state) {
    (void)state;
    over_random_blocks(42, 250, check_inputs);
}

static void check_load(const one_block *x, const mf_block_time *t) {
    one_block more = *x;
    more.load = x->load * 1.5;
    mf_block_time heavier = simulate(&more, false);
    assert_at_least(heavier.gpu_time_s, t->gpu_time_s * (1 - 1e-9));
}

static void more_routed_rows_are_never_faster(void **state) {
    (void)state;
    over_random_blocks(43, 250, check_load);
}

/* --- copies to and from the host ----------------------------------------------------------------
 */

/* What the device copies of a block's offloaded tensors: each read and written once. */
static double device_copies_s(const mf_cost *cost, const mf_block *b, unsigned passes) {
    double sum = 0;
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        if ((op->pass & passes) && (op->kind == MF_OP_COPY_D2H || op->kind == MF_OP_COPY_H2D)) {
            const mf_op twice = {.kind = MF_OP_SPLIT, .bytes = 2 * op->bytes};
            mf_price price;
            mf_cost_op(cost, &twice, 1, &price);
            sum += price.time_s;
        }
    }
    return sum;
}

/* The copy that comes first in time to break an order: a copy out before its tensor is made, or a
 * reader before its copy in has ended. */
static int early_copies(const mf_block *b, const mf_block_time *t) {
    const double eps = 1e-9 * t->gpu_time_s;
    int early = 0;
    for (int i = 0; i < t->nops; i++) {
        const mf_op *op = &b->ops[t->op[i].op];
        for (int j = 0; j < t->nops; j++) {
            const mf_op *other = &b->ops[t->op[j].op];
            bool out = op->kind == MF_OP_COPY_D2H, makes = false, reads = false;
            for (int k = 0; k < other->nout && out; k++) {
                makes |= other->out[k] == op->in[0];
            }
            for (int k = 0; k < other->nin && op->kind == MF_OP_COPY_H2D; k++) {
                reads |= other->in[k] == op->out[0];
            }
            early += makes && t->op[i].start_s < t->op[j].end_s - eps;
            early += reads && t->op[j].start_s < t->op[i].end_s - eps;
        }
    }
    return early;
}

static void copies_go_through_places_of_their_own_or_wait_for_their_block(void **state) {
    (void)state;
    mf_cluster c = test_cluster();
    mf_software soft = sim_software_ideal();
    mf_cost *free_s = sim_cost(&c, &soft);
    soft.copies_in_pass = 1;
    mf_cost *staged = sim_cost(&c, &soft);
    mf_model m = test_model_dense();
    mf_layout l = sim_layout(&m, 1, 1, 1, 2);
    l.memory.offload = MF_OFFLOAD_QKV | MF_OFFLOAD_FFN;
    mf_program *p = sim_program(&m, &l, &c);
    const mf_block *b = p->blocks[p->block_of[3]];
    assert_above(b->offload_B, 0);
    for (int back = 0; back < 2; back++) {
        const unsigned passes = back ? MF_PASS_BACKWARD : MF_PASS_F;
        one_block x = {free_s, &l, b, passes, NULL, 1};
        mf_block_time plain = simulate(&x, true);
        x.cost = staged;
        mf_block_time through = simulate(&x, true);
        x.passes |= back ? MF_SIM_FIRST : MF_SIM_LAST;
        mf_block_time own = simulate(&x, true);
        double copies_s = device_copies_s(staged, b, passes);
        assert_above(copies_s, 0);
        assert_close(through.gpu_time_s - plain.gpu_time_s, copies_s, 1e-9 * plain.gpu_time_s);
        assert_close(through.class_s[MF_BD_OFFLOAD] - plain.class_s[MF_BD_OFFLOAD], copies_s,
                     1e-9 * plain.gpu_time_s);
        assert_above(early_copies(b, &through), 0);
        assert_int_equal(early_copies(b, &own), 0);
        assert_above(own.gpu_time_s, through.gpu_time_s);
        mf_block_time_clear(&plain);
        mf_block_time_clear(&through);
        mf_block_time_clear(&own);
    }
    mf_program_destroy(p);
    mf_cost_destroy(free_s);
    mf_cost_destroy(staged);
}

/* --- a pair, pieces ----------------------------------------------------------------------------
 */

static mf_layout ep_layout(const mf_model *m, uint8_t overlap) {
    mf_layout l = sim_layout(m, 32, 1, 32, 2);
    l.overlap = overlap;
    return l;
}

static void a_merged_pair_hides_the_exchange_of_tokens(void **state) {
    (void)state;
    mf_cluster c = test_cluster();
    c.nic_Bps = 200e9; /* about as much to send as to compute */
    mf_software ideal = sim_software_ideal();
    mf_cost *cost = sim_cost(&c, &ideal);
    mf_model m = test_model_moe(false);
    mf_layout l = ep_layout(&m, 0);
    mf_program *p = sim_program(&m, &l, &c);
    const mf_block *b = p->blocks[p->block_of[3]];
    one_block f = {cost, &l, b, MF_PASS_F, NULL, 1},
              back = {cost, &l, b, MF_PASS_BACKWARD, NULL, 1},
              pair = {cost, &l, b, MF_PASS_F | MF_PASS_BACKWARD, b, 1};
    mf_block_time tf = simulate(&f, false), tb = simulate(&back, false),
                  tp = simulate(&pair, false);
    assert_above(tf.class_s[MF_BD_EP], 0);
    assert_above(tb.class_s[MF_BD_EP], 0);
    double apart = tf.gpu_time_s + tb.gpu_time_s;
    double exposed = tf.class_s[MF_BD_EP] + tb.class_s[MF_BD_EP];
    assert_below(tp.gpu_time_s, apart);
    assert_below(tp.class_s[MF_BD_EP], 0.5 * exposed);
    mf_program_destroy(p);
    mf_cost_destroy(cost);
}

static void overlapped_pieces_run_beside_their_gemms(void **state) {
    (void)state;
    mf_cluster c = test_cluster();
    mf_software ideal = sim_software_ideal();
    mf_cost *cost = sim_cost(&c, &ideal);
    mf_model m = test_model_dense();
    double exposed[2];
    for (int on = 0; on < 2; on++) {
        mf_layout l = sim_layout(&m, 8, 1, 1, 1);
        l.tp = 8;
        l.mbs = 4;
        l.gbs = 4;
        l.overlap = on ? MF_OVERLAP_TP : 0;
        assert_ok(mf_layout_resolve(&l, &m, NULL));
        mf_program *p = sim_program(&m, &l, &c);
        one_block f = {cost, &l, p->blocks[p->block_of[3]], MF_PASS_F, NULL, 1};
        mf_block_time t = simulate(&f, true);
        exposed[on] = t.class_s[MF_BD_TP];
        /* The second GEMM piece of a gather starts before the gather's last piece has ended. */
        int gathers = 0, early = 0;
        double last_gather = 0;
        for (int i = 0; i < t.nops; i++) {
            const mf_op *op = &f.b->ops[t.op[i].op];
            if (op->kind == MF_OP_ALL_GATHER) {
                gathers++;
                last_gather = t.op[i].end_s;
            } else if (op->kind == MF_OP_GEMM) {
                early += t.op[i].start_s < last_gather;
            }
        }
        assert_true(gathers == (on ? 8 : 2));
        assert_true(on ? early > 0 : early == 0);
        mf_block_time_clear(&t);
        mf_program_destroy(p);
    }
    assert_below(exposed[1], exposed[0]);
    mf_cost_destroy(cost);
}

/* A layer's passes with all-gather or all-to-all CP, whole or by heads. */
typedef struct by_heads {
    double time_s, exposed_s, bytes, flops;
    int beside; /* attention that runs beside exchanges, */
    int pieces; /* of all its pieces */
} by_heads;

static by_heads play_heads(const mf_cost *cost, const mf_layout *like, bool cut, unsigned passes,
                           const mf_cluster *c) {
    mf_model m = test_model_moe(true);
    mf_layout l = *like;
    l.overlap = cut ? MF_OVERLAP_CP : 0;
    assert_ok(mf_layout_resolve(&l, &m, NULL));
    mf_program *p = sim_program(&m, &l, c);
    one_block x = {cost, &l, p->blocks[p->block_of[3]], passes, NULL, 1};
    mf_block_time t = simulate(&x, true);
    by_heads out = {.time_s = t.gpu_time_s, .exposed_s = t.class_s[MF_BD_CP]};
    for (int i = 0; i < t.nops; i++) {
        const mf_op *op = &x.b->ops[t.op[i].op];
        bool attention = mf_op_kind_class((mf_op_kind)op->kind) == MF_CLASS_ATTENTION;
        bool beside = false;
        out.bytes += op->stream == MF_STREAM_CP ? op->bytes : 0;
        for (int j = 0; j < t.nops; j++) {
            beside |= x.b->ops[t.op[j].op].stream == MF_STREAM_CP &&
                      t.op[j].start_s < t.op[i].end_s && t.op[i].start_s < t.op[j].end_s;
        }
        out.flops += attention ? op->flops : 0;
        out.pieces += attention;
        out.beside += attention && beside;
    }
    mf_block_time_clear(&t);
    mf_program_destroy(p);
    return out;
}

/* Slow links and few multiprocessors, for which many pieces pay. */
static mf_cluster slow_links(void) {
    mf_cluster c = test_cluster();
    c.gpu.sms = 4;
    c.scaleup_Bps = c.scaleup_pair_Bps = 45e9;
    return c;
}

static void attention_runs_by_heads_beside_its_exchanges(void **state) {
    (void)state;
    mf_cluster c = slow_links();
    mf_software ideal = sim_software_ideal();
    mf_cost *cost = sim_cost(&c, &ideal);
    mf_model m = test_model_moe(true);
    const mf_cp_type types[] = {MF_CP_ALLGATHER, MF_CP_ALLTOALL, MF_CP_HIERARCHICAL};
    const uint16_t again[] = {0, MF_RECOMPUTE_CORE_ATTN,
                              MF_RECOMPUTE_CORE_ATTN | MF_RECOMPUTE_MLA_UP_PROJ};
    for (int i = 0; i < 9; i++) {
        mf_layout l = sim_layout(&m, 8, 1, 1, 8);
        l.cp = 4;
        l.seq = 32768;
        l.gbs = 4;
        l.cp_type = types[i % 3];
        l.memory.recompute = again[i / 3];
        for (int back = 0; back < 2; back++) {
            unsigned passes = back ? MF_PASS_BACKWARD : MF_PASS_F;
            by_heads whole = play_heads(cost, &l, false, passes, &c);
            by_heads cut = play_heads(cost, &l, true, passes, &c);
            assert_int_equal(cut.pieces, 4 * whole.pieces);
            assert_close(cut.bytes / whole.bytes, 1.0, 1e-12);
            assert_close(cut.flops / whole.flops, 1.0, 1e-12);
            assert_above(whole.exposed_s, 0);
            assert_below(cut.exposed_s, 0.8 * whole.exposed_s);
            assert_true(whole.beside == 0);
            assert_above(cut.beside, 0);
        }
    }
    mf_cost_destroy(cost);
}

/* Forward attention of a layer; *keys: those that are exchanged piece by piece. */
static int attentions(const mf_model *m, const mf_cluster *c, mf_layout l, int *keys) {
    int n = 0;
    assert_ok(mf_layout_resolve(&l, m, NULL));
    mf_program *p = sim_program(m, &l, c);
    const mf_block *b = p->blocks[p->block_of[3]];
    *keys = 0;
    for (int k = 0; k < b->nforward; k++) {
        const mf_op *op = &b->ops[k];
        n += op->kind == MF_OP_ATTENTION_FWD;
        *keys +=
            mf_op_split_axis(op) == MF_SPLIT_HEADS &&
            (strcmp(op->name, "cp_all_gather_k") == 0 || strcmp(op->name, "cp_all_to_all_k") == 0);
    }
    mf_program_destroy(p);
    return n;
}

/* Pieces have KV heads of their own, or queries that are exchanged and share one; steps of a ring
 * stay whole, and so does what a GPU with many multiprocessors and fast links computes. */
static void pieces_follow_the_kv_heads_where_they_pay(void **state) {
    (void)state;
    const mf_cluster slow = slow_links(), fast = test_cluster();
    mf_model m = test_model_moe(false); /* 16 heads, 4 KV heads */
    const struct {
        mf_cp_type type;
        int64_t tp, cp;
        int attentions, keys;
    } want[] = {
        {MF_CP_ALLGATHER, 1, 2, 4, 4},    {MF_CP_ALLGATHER, 2, 2, 2, 2},
        {MF_CP_ALLGATHER, 4, 2, 1, 0},    {MF_CP_ALLTOALL, 1, 2, 4, 0},
        {MF_CP_ALLTOALL, 1, 4, 4, 0},     {MF_CP_ALLTOALL, 2, 4, 2, 0},
        {MF_CP_ALLTOALL, 4, 4, 1, 0},     {MF_CP_RING, 1, 4, 4, 0},
        {MF_CP_HIERARCHICAL, 1, 2, 4, 0},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        mf_layout l = sim_layout(&m, 16, 1, 1, 8);
        int keys, whole = want[i].type == MF_CP_RING ? (int)want[i].cp : 1;
        l.seq = 8192;
        l.tp = want[i].tp;
        l.cp = want[i].cp;
        l.cp_type = want[i].type;
        assert_int_equal(attentions(&m, &slow, l, &keys), whole);
        assert_int_equal(keys, 0);
        l.overlap = MF_OVERLAP_CP;
        assert_int_equal(attentions(&m, &slow, l, &keys), want[i].attentions);
        assert_int_equal(keys, want[i].keys);
        l.seq = 2048;
        assert_int_equal(attentions(&m, &fast, l, &keys), whole);
    }
}

/* --- block by block against op by op ------------------------------------------------------------
 */

typedef struct chain {
    mf_play play;
    int *deps, ndeps;
    const mf_cost *cost;
} chain;

static double chain_slowdown(void *user, int i, double sm_share, double memory_Bps) {
    const chain *k = user;
    return mf_cost_compute_slowdown(k->cost, k->play.ops[i].op, fmin(sm_share, 0.9), memory_Bps);
}

static void chain_op(chain *k, const one_block *x, int index, int *maker, int from) {
    const mf_op *op = &x->b->ops[index];
    mf_play_op *q = &k->play.ops[k->play.n];
    mf_price p;
    mf_cost_op(x->cost, op, x->load, &p);
    *q = (mf_play_op){.op = op,
                      .stream = op->stream,
                      .pass = op->pass,
                      .alone_s = p.time_s,
                      .link = p.link,
                      .link_share = p.link_share,
                      .sm_share = p.sm_share,
                      .first_dep = k->ndeps};
    bool copy = op->stream == MF_STREAM_D2H || op->stream == MF_STREAM_H2D;
    if (op->stream != MF_STREAM_COMPUTE && p.time_s > 0) {
        q->memory_Bps =
            (copy ? 1 : 2) * op->bytes * (op->flags & MF_OPF_ROUTED ? x->load : 1) / p.time_s;
    }
    if (from >= 0) {
        k->deps[k->ndeps++] = from;
    }
    for (int a = 0; a < op->nin; a++) {
        if (maker[op->in[a]] >= 0) {
            k->deps[k->ndeps++] = maker[op->in[a]];
        }
    }
    q->ndeps = k->ndeps - q->first_dep;
    for (int a = 0; a < op->nout; a++) {
        maker[op->out[a]] = k->play.n;
    }
    k->play.n++;
}

/* `times` instances of the same pass of a block, op by op: streams run on across their borders.
 * Prefetched ops are issued with the block before theirs, start when it does and are waited for by
 * their readers. */
static double op_by_op(const one_block *x, int times) {
    const mf_block *b = x->b;
    size_t n = (size_t)(b->nops * (times + 1)), tensors = (size_t)b->ntensors + 1;
    chain k = {.cost = x->cost};
    k.play.ops = calloc(n + 1, sizeof *k.play.ops);
    k.play.next_of = calloc(n + 1, sizeof *k.play.next_of);
    k.deps = calloc(n * (MF_OP_MAX_IN + 1) + 1, sizeof *k.deps);
    int *maker = malloc(2 * tensors * sizeof *maker); /* of this block, of the next */
    memset(maker, 0xFF, 2 * tensors * sizeof *maker);
    int spine = -1; /* last compute op of the block before */
    for (int t = -1; t < times; t++) {
        memcpy(maker, maker + tensors, tensors * sizeof *maker);
        memset(maker + tensors, 0xFF, tensors * sizeof *maker);
        for (int i = 0; i < b->nops; i++) {
            if ((b->ops[i].pass & x->passes) && (b->ops[i].flags & MF_OPF_PREFETCH)) {
                chain_op(&k, x, i, maker + tensors, spine);
            }
        }
        int end = -1;
        for (int i = 0; i < b->nops && t >= 0; i++) {
            if ((b->ops[i].pass & x->passes) && !(b->ops[i].flags & MF_OPF_PREFETCH)) {
                end = b->ops[i].stream == MF_STREAM_COMPUTE ? k.play.n : end;
                chain_op(&k, x, i, maker, spine);
            }
        }
        spine = end >= 0 ? end : spine;
    }
    const mf_software *s = mf_cost_software(x->cost);
    k.play.exposed[MF_STREAM_EP] = s->overlap_exposed[0];
    k.play.exposed[MF_STREAM_TP] = s->overlap_exposed[1];
    k.play.exposed[MF_STREAM_DP] = k.play.exposed_inside = s->overlap_exposed[2];
    k.play.exposed[MF_STREAM_PP] = s->overlap_exposed[3];
    k.play.exposed[MF_STREAM_CP] = s->overlap_exposed[4];
    k.play.deps = k.deps;
    k.play.slowdown = chain_slowdown;
    k.play.user = &k;
    mf_play_run(&k.play);
    double time = k.play.time_s;
    free(k.play.ops);
    free(k.play.next_of);
    free(k.deps);
    free(maker);
    return time;
}

/* What many equal blocks take each, when the first is under way. */
static void block_by_block_is_what_op_by_op_play_takes(void **state) {
    (void)state;
    rng r = rng_init(44);
    mf_cluster c = test_cluster();
    mf_software real = sim_software_real();
    mf_cost *cost = sim_cost(&c, &real);
    const mf_model models[] = {test_model_moe(false), test_model_moe(true), test_model_dense()};
    int exact = 0, all = 0;
    for (int i = 0; i < 120; i++) {
        const mf_model *m = &models[i % 3];
        mf_layout l = test_random_layout(&r, m, 128);
        l.overlap |= MF_OVERLAP_DP;
        l.overlap &= (uint8_t) ~(MF_OVERLAP_TP | MF_OVERLAP_CP); /* pieces: see above */
        l.zero = (uint8_t)(i % 4);
        l.expert_zero = (uint8_t)(i / 4 % 4);
        mf_program *p = sim_program(m, &l, &c);
        one_block x = {
            cost, &l, p->blocks[p->block_of[m->layers / 2]], i % 2 ? MF_PASS_F : MF_PASS_BACKWARD,
            NULL, 1};
        mf_block_time t = simulate(&x, false);
        double slope = (op_by_op(&x, 24) - op_by_op(&x, 8)) / 16;
        /* Communication of a neighbour may meet other ops of the block than in the long run. */
        if (fabs(t.gpu_time_s - slope) > 0.06 * slope) {
            fail_msg("%s zero %d,%d: alone %g, in a row %g", x.b->label, l.zero, l.expert_zero,
                     t.gpu_time_s, slope);
        }
        exact += fabs(t.gpu_time_s - slope) <= 1e-6 * slope;
        all++;
        mf_program_destroy(p);
    }
    printf("%d of %d the same\n", exact, all);
    assert_above(exact, all / 2);
    mf_cost_destroy(cost);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_lie_above_bounds_and_classes_sum_to_them),
        cmocka_unit_test(ops_start_behind_what_they_read),
        cmocka_unit_test(more_routed_rows_are_never_faster),
        cmocka_unit_test(copies_go_through_places_of_their_own_or_wait_for_their_block),
        cmocka_unit_test(a_merged_pair_hides_the_exchange_of_tokens),
        cmocka_unit_test(overlapped_pieces_run_beside_their_gemms),
        cmocka_unit_test(attention_runs_by_heads_beside_its_exchanges),
        cmocka_unit_test(pieces_follow_the_kv_heads_where_they_pay),
        cmocka_unit_test(block_by_block_is_what_op_by_op_play_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
