/* test_cost.c - prices of ops: what was measured comes back, the rest is sensible. */
#include "tests/support/cost_fixture.h"

#include "costmodel/price_text.h"

static mf_price price_of(const mf_cost *cost, const char *text) {
    mf_op op = fixture_op(mf_cost_cluster(cost), text);
    mf_price p;
    mf_cost_op(cost, &op, 1, &p);
    return p;
}

static double time_of(const mf_cost *cost, const char *text) {
    return price_of(cost, text).time_s;
}

/* --- measured points -------------------------------------------------------------------------- */

static void measured_shapes_come_back_exactly(void **state) {
    (void)state;
    const mf_cluster c = fixture_h200();
    mf_cost *cost = fixture_cost(&c, -1);
    for (int i = 0; i < WORLD_POINTS; i++) {
        mf_op op = fixture_op(&c, fixture_points[i].text);
        double want = fixture_time_s(&fixture_points[i], &op);
        mf_price p;
        mf_cost_op(cost, &op, 1, &p);
        if (fabs(p.time_s / want - 1) > 1e-9 || p.basis != MF_BASIS_MEASURED) {
            fail_msg("%s: %g s, measured %g s, %s", fixture_points[i].text, p.time_s, want,
                     mf_basis_text((mf_basis)p.basis));
        }
    }
    mf_cost_destroy(cost);
}

static void a_collective_between_two_measured_sizes_lies_between_their_times(void **state) {
    (void)state;
    const mf_cluster c = fixture_h200();
    mf_cost *cost = fixture_cost(&c, -1);
    double lo = time_of(cost, "all_gather bytes=16MiB ranks=4");
    double hi = time_of(cost, "all_gather bytes=64MiB ranks=4");
    mf_price p = price_of(cost, "all_gather bytes=32MiB ranks=4");
    assert_above(p.time_s, lo);
    assert_below(p.time_s, hi);
    assert_int_equal(p.basis, MF_BASIS_INTERPOLATED);
    assert_below(p.low_s, p.time_s);
    assert_below(p.time_s, p.high_s);
    mf_cost_destroy(cost);
}

static void a_shape_beside_a_measured_one_is_interpolated_and_far_ones_are_fitted(void **state) {
    (void)state;
    const mf_cluster c = fixture_h200();
    mf_cost *cost = fixture_cost(&c, -1);
    mf_price near = price_of(cost, "gemm dtype=bf16 m=8192 n=8192 k=7168");
    mf_price far = price_of(cost, "gemm dtype=bf16 m=256 n=512 k=1024");
    assert_int_equal(near.basis, MF_BASIS_INTERPOLATED);
    assert_int_equal(far.basis, MF_BASIS_FITTED);
    assert_below(near.high_s / near.time_s, far.high_s / far.time_s);
    mf_cost_destroy(cost);
}

/* --- formulas --------------------------------------------------------------------------------- */

static void attention_keys_equal_a_count_by_hand(void **state) {
    (void)state;
    for (int sq = 1; sq <= 12; sq += 3) {
        for (int sk = sq; sk <= 16; sk++) {
            for (int window = 0; window <= 17; window++) {
                mf_op op = {.kind = MF_OP_ATTENTION_FWD, .flags = MF_OPF_CAUSAL};
                op.dim[MF_OP_DIM_SEQ_Q] = sq;
                op.dim[MF_OP_DIM_SEQ_K] = sk;
                op.dim[MF_OP_DIM_WINDOW] = window;
                int pairs = 0;
                for (int q = 0; q < sq; q++) {
                    int seen = sk - sq + q + 1;
                    pairs += window > 0 && seen > window ? window : seen;
                }
                assert_below(fabs(mf_attention_keys(&op) - pairs), 1e-9);
            }
        }
    }
}

static uint64_t random_next(uint64_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    return *s ^= *s << 17;
}

/* Draws tokens: `limit` of `groups` groups, then k experts of those; counts units that hold one. */
static double drawn_hits(int experts, int k, int units, int groups, int limit, uint64_t *seed) {
    enum { DRAWS = 4000 };
    int total = 0;
    for (int t = 0; t < DRAWS; t++) {
        int order[64], open[512], nopen = 0;
        bool hit[64] = {false};
        for (int g = 0; g < groups; g++) {
            order[g] = g;
        }
        for (int g = 0; g < limit; g++) {
            int j = g + (int)(random_next(seed) % (uint64_t)(groups - g)), swap = order[g];
            order[g] = order[j];
            order[j] = swap;
            for (int e = 0; e < experts / groups; e++) {
                open[nopen++] = order[g] * (experts / groups) + e;
            }
        }
        for (int i = 0; i < k; i++) {
            int j = i + (int)(random_next(seed) % (uint64_t)(nopen - i)), swap = open[i];
            open[i] = open[j];
            open[j] = swap;
            int unit = open[i] / (experts / units);
            total += !hit[unit];
            hit[unit] = true;
        }
    }
    return (double)total / DRAWS;
}

static void expected_destinations_equal_drawn_ones(void **state) {
    (void)state;
    static const int units[] = {1, 2, 4, 8, 16, 64};
    static const int limits[] = {1, 3, 4, 8};
    uint64_t seed = 20261121;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        for (size_t l = 0; l < sizeof limits / sizeof limits[0]; l++) {
            double want = drawn_hits(256, 8, units[u], 8, limits[l], &seed);
            double got = mf_expected_hits(256, 8, units[u], 8, limits[l]);
            if (fabs(got / want - 1) > 0.03) {
                fail_msg("%d units, %d groups: %g, drawn %g", units[u], limits[l], got, want);
            }
        }
    }
}

static void geometry_counts_members_per_domain(void **state) {
    (void)state;
    static const struct {
        int64_t size, stride, inside, domains;
    } want[] = {{8, 1, 8, 1}, {4, 2, 4, 1},  {16, 1, 8, 2}, {8, 2, 4, 2}, {8, 4, 2, 4},
                {8, 8, 1, 8}, {4, 64, 1, 4}, {2, 4, 2, 1},  {2, 8, 1, 2}, {1, 1, 1, 1}};
    const mf_cluster c = fixture_h200();
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        mf_geometry g;
        mf_geometry_of(&c, (mf_group_shape){want[i].size, want[i].stride}, &g);
        if ((int64_t)g.inside != want[i].inside || (int64_t)g.domains != want[i].domains) {
            fail_msg("%lld x %lld: %g per domain, %g domains", (long long)want[i].size,
                     (long long)want[i].stride, g.inside, g.domains);
        }
    }
}

static void a_ring_over_hosts_uses_the_nic_of_every_member(void **state) {
    (void)state;
    const mf_cluster c = fixture_h200();
    mf_geometry one, eight;
    double latency;
    mf_geometry_of(&c, (mf_group_shape){8, 8}, &one);
    mf_geometry_of(&c, (mf_group_shape){64, 1}, &eight);
    double t1 = mf_nccl_time_s(&one, MF_OP_ALL_GATHER, 8e9, false, &latency);
    double t8 = mf_nccl_time_s(&eight, MF_OP_ALL_GATHER, 8e9, false, &latency);
    assert_below(8e9 * 7 / 8 / t1, 50e9);    /* one NIC */
    assert_above(8e9 * 63 / 64 / t8, 250e9); /* eight of them, up to NVLink's rate */
    assert_below(8e9 * 63 / 64 / t8, 371e9);
}

/* CP's members send chunks that lie apart in a sample, which are put in order in memory. NCCL's
 * part of it follows the clock that long runs have, as TP's does; the pass over memory does not. */
static void a_gather_of_context_ranks_pays_for_the_order_of_its_chunks(void **state) {
    (void)state;
    const mf_cluster c = fixture_h200();
    mf_cost *cost = fixture_cost(&c, -1);
    mf_software s = *mf_cost_software(cost);
    s.power_cap = 1;
    mf_cost_set_software(cost, &s);
    for (int kind = 0; kind < 2; kind++) {
        mf_op op = {.kind = kind == 0 ? MF_OP_ALL_GATHER : MF_OP_REDUCE_SCATTER,
                    .shape = {2, 1},
                    .stream = MF_STREAM_TP,
                    .group = MF_GROUP_TP,
                    .bytes = 16 << 20};
        const mf_op copy = {.kind = MF_OP_SPLIT, .shape = {1, 1}, .bytes = 32 << 20};
        mf_price tp, cp, pass;
        mf_cost_op(cost, &copy, 1, &pass);
        mf_cost_op(cost, &op, 1, &tp);
        const double tp_slowed = mf_cost_slowed(cost, &op, 1);
        op.stream = MF_STREAM_CP;
        op.group = MF_GROUP_CP;
        op.dim[MF_OP_DIM_CHUNKS] = 1;
        mf_cost_op(cost, &op, 1, &cp);
        const double cp_slowed = mf_cost_slowed(cost, &op, 1);
        assert_above(pass.time_s, 5e-6);
        assert_below(fabs(cp.time_s - tp.time_s - pass.time_s), 1e-12);
        assert_above(tp_slowed, 1.1);
        assert_below(fabs(cp.time_s * cp_slowed - tp.time_s * tp_slowed - pass.time_s), 1e-12);
        mf_op piece = op; /* one of four, which puts its own part in order */
        const mf_op quarter = {.kind = MF_OP_SPLIT, .shape = {1, 1}, .bytes = 8 << 20};
        mf_price split, part;
        piece.bytes /= 4;
        piece.pieces = 4;
        mf_cost_op(cost, &quarter, 1, &part);
        mf_cost_op(cost, &piece, 1, &split);
        assert_below(fabs(split.time_s - tp.time_s / 4 - part.time_s), 1e-12);
        assert_below(4 * part.time_s, 2 * pass.time_s);
        op.kind = MF_OP_SEND_RECV; /* a ring's message comes whole */
        assert_below(fabs(mf_cost_slowed(cost, &op, 1) - 1), 1e-12);
    }
    mf_cost_destroy(cost);
}

/* --- dispatch --------------------------------------------------------------------------------- */

#define EXCHANGE "tokens=4096 hidden=7168 topk=8 experts=256 "

static void fused_dispatch_sends_one_copy_per_destination(void **state) {
    (void)state;
    const mf_cluster c = fixture_h200();
    mf_cost *cost = fixture_cost(&c, -1);
    double fused = time_of(cost, "dispatch " EXCHANGE "ranks=32 nodes=4 impl=fused");
    double nccl = time_of(cost, "dispatch " EXCHANGE "ranks=32 nodes=4 impl=alltoall");
    double gather = time_of(cost, "dispatch " EXCHANGE "ranks=32 nodes=4 impl=allgather");
    assert_below(fused, 0.75 * nccl);
    assert_below(fused, gather);
    assert_at_most(time_of(cost, "dispatch " EXCHANGE "ranks=1 impl=fused"), 0);
    mf_cost_destroy(cost);
}

static void a_wide_domain_keeps_expert_traffic_off_the_network(void **state) {
    (void)state;
    const mf_cluster c = fixture_gb200();
    mf_cost *cost = fixture_cost(&c, -1);
    mf_price inside = price_of(cost, "dispatch " EXCHANGE "ranks=64 nodes=16 impl=fused");
    mf_price across = price_of(cost, "dispatch " EXCHANGE "ranks=128 nodes=32 impl=fused");
    assert_int_equal(inside.link, MF_LINK_SCALEUP);
    assert_int_equal(across.link, MF_LINK_NETWORK);
    assert_above(across.time_s, 1.5 * inside.time_s);
    /* HybridEP on 64 GB200 took 675 us; nothing of Blackwell is among these points */
    assert_above(inside.time_s, 675e-6 / 1.3);
    assert_below(inside.time_s, 675e-6 * 1.3);
    mf_cost_destroy(cost);
}

/* --- what surrounds the price ----------------------------------------------------------------- */

static void load_prices_the_routed_rows_and_nothing_else(void **state) {
    (void)state;
    const mf_cluster c = fixture_h200();
    mf_cost *cost = fixture_cost(&c, -1);
    mf_op op = fixture_op(&c, "grouped_gemm dtype=bf16 experts=8 m=4096 n=4096 k=7168");
    mf_price even, heavy, still;
    mf_cost_op(cost, &op, 1, &even);
    mf_cost_op(cost, &op, 1.5, &still);
    op.flags |= MF_OPF_ROUTED;
    mf_cost_op(cost, &op, 1.5, &heavy);
    assert_at_most(still.time_s, even.time_s);
    assert_at_least(still.time_s, even.time_s);
    assert_above(heavy.time_s, 1.35 * even.time_s);
    assert_below(heavy.time_s, 1.6 * even.time_s);
    mf_cost_destroy(cost);
}

/* By formula: nothing that computes for long gains, what waits for memory half. */
static void a_weight_gradient_that_writes_takes_less_by_what_it_need_not_read(void **state) {
    (void)state;
    static const struct {
        const char *adds, *writes;
        double least, most; /* of the time that the one that adds takes */
    } want[] = {{"grouped_gemm dtype=bf16 experts=64 m=256 n=2048 k=1024 pass=wgrad acc=1",
                 "first_wgrad dtype=bf16 experts=64 m=256 n=2048 k=1024", 0.5, 0.8},
                {"grouped_gemm dtype=bf16 experts=8 m=8192 n=4096 k=4096 pass=wgrad acc=1",
                 "first_wgrad dtype=bf16 experts=8 m=8192 n=4096 k=4096", 0.99, 1},
                {"gemm dtype=bf16 m=8192 n=4096 k=128 layout=tn acc=1",
                 "first_wgrad dtype=bf16 m=128 n=8192 k=4096", 0.5, 0.7}};
    const mf_cluster c = fixture_h200();
    mf_software soft = fixture_software();
    mf_cost *always = fixture_cost_with(&c, -1, &soft);
    soft.first_anew = 1;
    mf_cost *cost = fixture_cost_with(&c, -1, &soft);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const mf_op op = fixture_op(&c, want[i].adds);
        const mf_price adds = price_of(cost, want[i].adds), writes = price_of(cost, want[i].writes);
        assert_at_least(writes.time_s / adds.time_s, want[i].least);
        assert_at_most(writes.time_s / adds.time_s, want[i].most);
        assert_at_least(writes.time_s, writes.limit_s);
        assert_close(mf_cost_anew_s(cost, &op), adds.time_s - writes.time_s, 1e-15);
        assert_close(mf_cost_anew_s(always, &op), 0, 0);
    }
    const mf_op forward = fixture_op(&c, "grouped_gemm dtype=bf16 experts=64 m=256 n=2048 k=1024");
    assert_close(mf_cost_anew_s(cost, &forward), 0, 0);
    mf_cost_destroy(always);
    mf_cost_destroy(cost);
}

/* Where both were measured: at the point that share, near it something of it, far away the
 * formula's, and so on a GPU of the same architecture; products that add are left alone. */
static void measured_pairs_say_what_writing_takes(void **state) {
    (void)state;
    static const char adds_text[] = "grouped_gemm dtype=bf16 experts=64 m=256 n=2048 k=1024 "
                                    "pass=wgrad acc=1",
                      writes_text[] = "first_wgrad dtype=bf16 experts=64 m=256 n=2048 k=1024",
                      near_text[] = "first_wgrad dtype=bf16 experts=64 m=288 n=2048 k=1024",
                      near_adds[] = "grouped_gemm dtype=bf16 experts=64 m=288 n=2048 k=1024 "
                                    "pass=wgrad acc=1",
                      far_text[] = "first_wgrad dtype=bf16 experts=2 m=16384 n=8192 k=8192";
    const mf_cluster c = fixture_h200();
    mf_cluster sibling = c;
    snprintf(sibling.gpu.name, sizeof sibling.gpu.name, "h100");
    mf_software soft = fixture_software();
    mf_cost_device devices[2];
    mf_device_init(&devices[0], &c);
    mf_device_init(&devices[1], &c);
    mf_sample pair[2] = {{.op = fixture_op(&c, adds_text), .time_s = 340e-6, .spread = 0.01},
                         {.op = fixture_op(&c, writes_text), .time_s = 160e-6, .spread = 0.01}};
    mf_cost *alone, *both, *other;
    assert_ok(mf_cost_build(&c, &soft, devices, 1, pair, 1, &alone, NULL));
    assert_ok(mf_cost_build(&c, &soft, devices, 1, pair, 2, &both, NULL));
    assert_close(time_of(both, adds_text), time_of(alone, adds_text), 1e-12);
    assert_close(time_of(both, adds_text), 340e-6, 1e-9);
    assert_close(time_of(both, writes_text), 160e-6, 1e-9);
    assert_above(time_of(alone, writes_text), 200e-6);
    const double measured = time_of(both, near_text) / time_of(both, near_adds);
    assert_above(measured, 160.0 / 340 - 0.01);
    assert_below(measured, time_of(alone, near_text) / time_of(alone, near_adds) - 0.02);
    assert_close(time_of(both, far_text), time_of(alone, far_text),
                 1e-3 * time_of(alone, far_text));
    pair[0].device = pair[1].device = 1;
    mf_device_init(&devices[0], &sibling);
    assert_ok(mf_cost_build(&sibling, &soft, devices, 2, pair, 2, &other, NULL));
    assert_close(time_of(other, writes_text) / time_of(other, adds_text), 160.0 / 340, 0.02);
    mf_cost_destroy(alone);
    mf_cost_destroy(both);
    mf_cost_destroy(other);
}

static void a_gpu_without_points_takes_efficiencies_from_another(void **state) {
    (void)state;
    const mf_cluster h200 = fixture_h200(), gb200 = fixture_gb200();
    mf_cost *own = fixture_cost(&h200, -1), *other = fixture_cost(&gb200, -1);
    const char *text = "gemm dtype=bf16 m=8192 n=8192 k=8192";
    mf_price a = price_of(own, text), b = price_of(other, text);
    assert_int_equal(b.basis, MF_BASIS_TRANSFERRED);
    assert_above(b.high_s / b.time_s, a.high_s / a.time_s + 0.1);
    double ratio = a.time_s / b.time_s; /* of the measured matrix rates: 2.29 */
    assert_above(ratio, 1.9);
    assert_below(ratio, 2.6);
    assert_below(time_of(other, "gemm dtype=nvfp4 m=8192 n=8192 k=8192"), b.time_s);
    mf_cost_destroy(own);
    mf_cost_destroy(other);
}

static void software_efficiencies_divide_the_rate(void **state) {
    (void)state;
    const mf_cluster c = fixture_h200();
    mf_cost_device device;
    mf_device_init(&device, &c);
    mf_software plain = fixture_software(), slow = plain;
    slow.gemm_eff[MF_MATH_BF16] = 0.8;
    slow.gpu_power_eff = 0.9;
    slow.host_op_s = 10e-6;
    slow.host_layer_s = 1e-3;
    slow.host_graph[MF_GRAPH_STEP] = 0.1;
    slow.band = 0.2;
    mf_cost *a, *b;
    assert_ok(mf_cost_build(&c, &plain, &device, 1, NULL, 0, &a, NULL));
    assert_ok(mf_cost_build(&c, &slow, &device, 1, NULL, 0, &b, NULL));
    mf_price p = price_of(a, "gemm dtype=bf16 m=8192 n=8192 k=8192");
    mf_price q = price_of(b, "gemm dtype=bf16 m=8192 n=8192 k=8192");
    assert_below(fabs(q.time_s * 0.8 * 0.9 / p.time_s - 1), 1e-9);
    assert_above(q.high_s / q.time_s, p.high_s / p.time_s + 0.19);
    mf_op op = fixture_op(&c, "gemm dtype=bf16 m=64 n=64 k=64");
    assert_below(fabs(mf_cost_host_s(b, &op, MF_GRAPH_NONE) - 10e-6), 1e-12);
    assert_below(fabs(mf_cost_host_s(b, &op, MF_GRAPH_STEP) - 1e-6), 1e-12);
    assert_below(fabs(mf_cost_host_block_s(b, MF_GRAPH_STEP) - 1e-4), 1e-12);
    mf_cost_destroy(a);
    mf_cost_destroy(b);
}

static void software_tells_kinds_of_gpu_and_scales_apart(void **state) {
    (void)state;
    const mf_cluster c = fixture_h200();
    mf_cost_device device;
    mf_device_init(&device, &c);
    mf_software plain = fixture_software(), slow = plain;
    slow.gpu_eff[MF_RATE_GEMM][MF_GPU_HOPPER] = 0.5;
    slow.gpu_eff[MF_RATE_GEMM][MF_GPU_B200] = 0.1; /* another GPU's */
    slow.gpu_eff[MF_RATE_HOST][MF_GPU_HOPPER] = 0.5;
    slow.gpu_eff[MF_RATE_MEMORY][MF_GPU_HOPPER] = 0.9;
    slow.block_scale_eff = 0.8;
    plain.moe_sync_s = slow.moe_sync_s = 1e-3;
    mf_cost *a, *b;
    assert_ok(mf_cost_build(&c, &plain, &device, 1, NULL, 0, &a, NULL));
    assert_ok(mf_cost_build(&c, &slow, &device, 1, NULL, 0, &b, NULL));
    mf_op gemm = fixture_op(&c, "gemm dtype=fp8-tensor m=8192 n=8192 k=8192");
    mf_price p, q;
    mf_cost_op(a, &gemm, 1, &p);
    mf_cost_op(b, &gemm, 1, &q);
    assert_below(fabs(q.time_s * 0.5 / p.time_s - 1), 1e-9);
    gemm.flags |= MF_OPF_BLOCK_SCALED; /* on Hopper another kernel, with tiles of its own */
    mf_cost_op(a, &gemm, 1, &p);
    mf_cost_op(b, &gemm, 1, &q);
    assert_below(fabs(q.time_s * 0.5 * 0.8 / p.time_s - 1), 1e-9);
    mf_op norm = fixture_op(&c, "memory op=rmsnorm_fwd bytes=268435456");
    mf_cost_op(a, &norm, 1, &p);
    mf_cost_op(b, &norm, 1, &q);
    assert_below(fabs(q.time_s * 0.9 / p.time_s - 1), 1e-9);
    mf_op router = {.kind = MF_OP_ROUTER_FWD, .pass = MF_PASS_F};
    assert_below(fabs(mf_cost_host_sync_s(a, &router, MF_GRAPH_NONE) - 1e-3), 1e-12);
    assert_below(fabs(mf_cost_host_sync_s(b, &router, MF_GRAPH_NONE) - 2e-3), 1e-12);
    router.flags = MF_OPF_CAPACITY;
    assert_below(mf_cost_host_sync_s(a, &router, MF_GRAPH_NONE), 0.5e-3);
    router.pass = MF_PASS_R; /* routing is kept, not made again */
    assert_at_most(mf_cost_host_sync_s(a, &router, MF_GRAPH_NONE), 0);
    assert_at_most(mf_cost_host_sync_s(a, &gemm, MF_GRAPH_NONE), 0);
    mf_cost_destroy(a);
    mf_cost_destroy(b);
}

static void one_expert_is_a_plain_product(void **state) {
    (void)state;
    const mf_cluster c = fixture_h200();
    mf_cost *cost = fixture_cost(&c, -1);
    mf_op op = fixture_op(&c, "gemm dtype=bf16 m=4096 n=6144 k=16384");
    mf_price plain, one;
    mf_cost_op(cost, &op, 1, &plain);
    op.kind = MF_OP_GROUPED_GEMM;
    op.dim[MF_OP_DIM_GROUPS] = 1;
    mf_cost_op(cost, &op, 1, &one);
    assert_below(fabs(one.time_s / plain.time_s - 1), 1e-9);
    mf_cost_destroy(cost);
}

/* What a measured job corrects a profile by counts once. */
static void a_slowed_profile_takes_so_much_longer_for_every_op(void **state) {
    (void)state;
    static const char *const ops[] = {"gemm dtype=bf16 m=8192 n=8192 k=8192",
                                      "grouped_gemm dtype=bf16 experts=8 m=4096 n=4096 k=7168",
                                      "attention pass=fwd b=1 h=64 s=8192 dqk=128",
                                      "memory op=rmsnorm_fwd bytes=1GiB",
                                      "all_gather bytes=1GiB ranks=8"};
    const mf_cluster c = fixture_h200();
    mf_cost *cost = fixture_cost(&c, -1);
    mf_software slow = *mf_cost_software(cost);
    double before_s[sizeof ops / sizeof ops[0]];
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        before_s[i] = price_of(cost, ops[i]).time_s;
    }
    mf_software plain = slow;
    mf_software_slow(&slow, 2);
    mf_cost_set_software(cost, &slow);
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        const double ratio = price_of(cost, ops[i]).time_s / before_s[i];
        if (fabs(ratio - 2) > 0.05) {
            fail_msg("%s takes %.3f times as long", ops[i], ratio);
        }
    }
    /* Less time, too, whatever share of its rate alone the profile has, down to the op's limit. */
    mf_software_slow(&plain, 0.8);
    mf_cost_set_software(cost, &plain);
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        const mf_price p = price_of(cost, ops[i]);
        const double expected_s = fmax(0.8 * before_s[i], p.limit_s);
        if (fabs(p.time_s / expected_s - 1) > 0.01) {
            fail_msg("%s takes %g s instead of %g s", ops[i], p.time_s, expected_s);
        }
    }
    mf_cost_destroy(cost);
}

static void communication_beside_compute_slows_it(void **state) {
    (void)state;
    const mf_cluster c = fixture_h200();
    mf_cost *cost = fixture_cost(&c, -1);
    mf_op gemm = fixture_op(&c, "gemm dtype=bf16 m=8192 n=8192 k=8192");
    mf_op norm = fixture_op(&c, "memory op=rmsnorm_fwd bytes=256MiB");
    assert_at_most(mf_cost_compute_slowdown(cost, &gemm, 0, 0), 1);
    double share = price_of(cost, "all_gather bytes=64MiB ranks=8").sm_share;
    assert_above(share, 0.05);
    assert_below(share, 0.4);
    double slow = mf_cost_compute_slowdown(cost, &gemm, share, 300e9);
    assert_above(slow, 1 / (1 - share) - 1e-9);
    assert_below(slow, 1.6);
    assert_at_most(mf_cost_compute_slowdown(cost, &norm, share, 0), 1);
    assert_above(mf_cost_compute_slowdown(cost, &norm, share, 430e9), 1.09);
    mf_cost_destroy(cost);
}

static void nothing_costs_nothing(void **state) {
    (void)state;
    const mf_cluster c = fixture_h200();
    mf_cost *cost = fixture_cost(&c, -1);
    for (int k = 0; k < MF_OP_COUNT; k++) {
        mf_op op = {.kind = (uint8_t)k, .shape = {8, 1}};
        mf_price p;
        mf_cost_op(cost, &op, 1, &p);
        assert_at_most(p.time_s, 0);
        assert_at_most(p.high_s, 0);
        assert_at_most(p.limit_s, 0);
    }
    assert_at_most(time_of(cost, "all_reduce bytes=1GiB ranks=1"), 0);
    mf_cost_destroy(cost);
}

static void a_price_is_asked_for_by_text(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"gem m=1 n=1 k=1 dtype=bf16", "did you mean \"gemm\""},
        {"gemm m=1 n=1 dtype=bf16", "k is missing"},
        {"gemm m=0 n=1 k=1 dtype=bf16", "whole number >= 1"},
        {"gemm m=1 n=1 k=1 dtype=int4", "bf16"},
        {"all_reduce bytes=1MiB ranks=6 nodes=4", "nodes must divide ranks"},
        {"memory op=gemm bytes=1MiB", "memory-bound"},
        {"attention h=4 s=128 skv=64 dqk=64", "skv >= s"},
        {"dispatch tokens=8 hidden=64 topk=9 experts=8 ranks=2 impl=fused", "topk"},
        {"launch mode=stream", "no price"},
    };
    const mf_cluster c = fixture_h200();
    mf_cost *cost = fixture_cost(&c, -1);
    mf_op op;
    mf_price p;
    mf_err e;
    assert_ok(mf_cost_price_text(cost, "gemm m=4096 n=7168 k=2048 dtype=bf16", &op, &p, &e));
    assert_below(fabs(op.flops / p.time_s / 689e12 - 1), 1e-9);
    assert_int_equal(op.dim[MF_OP_DIM_N], 7168);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        mf_err_clear(&e);
        mf_status st = mf_cost_price_text(cost, bad[i].text, &op, &p, &e);
        if (mf_status_exit_code(st) != 2 || strstr(e.text, bad[i].says) == NULL) {
            fail_msg("%s -> %d \"%s\"", bad[i].text, (int)st, e.text);
        }
    }
    mf_cost_destroy(cost);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measured_shapes_come_back_exactly),
        cmocka_unit_test(a_collective_between_two_measured_sizes_lies_between_their_times),
        cmocka_unit_test(a_shape_beside_a_measured_one_is_interpolated_and_far_ones_are_fitted),
        cmocka_unit_test(attention_keys_equal_a_count_by_hand),
        cmocka_unit_test(expected_destinations_equal_drawn_ones),
        cmocka_unit_test(geometry_counts_members_per_domain),
        cmocka_unit_test(a_ring_over_hosts_uses_the_nic_of_every_member),
        cmocka_unit_test(a_gather_of_context_ranks_pays_for_the_order_of_its_chunks),
        cmocka_unit_test(fused_dispatch_sends_one_copy_per_destination),
        cmocka_unit_test(a_wide_domain_keeps_expert_traffic_off_the_network),
        cmocka_unit_test(load_prices_the_routed_rows_and_nothing_else),
        cmocka_unit_test(a_weight_gradient_that_writes_takes_less_by_what_it_need_not_read),
        cmocka_unit_test(measured_pairs_say_what_writing_takes),
        cmocka_unit_test(a_gpu_without_points_takes_efficiencies_from_another),
        cmocka_unit_test(software_efficiencies_divide_the_rate),
        cmocka_unit_test(software_tells_kinds_of_gpu_and_scales_apart),
        cmocka_unit_test(one_expert_is_a_plain_product),
        cmocka_unit_test(a_slowed_profile_takes_so_much_longer_for_every_op),
        cmocka_unit_test(communication_beside_compute_slows_it),
        cmocka_unit_test(nothing_costs_nothing),
        cmocka_unit_test(a_price_is_asked_for_by_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
