/* Energies: the five kernels that the terms come from, terms found again from points, what a power
 * cap does to a block, and how what GPUs were built for carries over. */
#include "core/program/lower.h"
#include "costmodel/cost_internal.h"
#include "costmodel/price_text.h"
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

static mf_err e;

static mf_cost *cost_of(const char *cluster, double power_w, const char *software,
                        mf_store *store) {
    mf_cluster c;
    mf_software s;
    mf_cost *cost;
    assert_ok(mf_cluster_load(cluster, &c, &e));
    assert_ok(mf_software_load(software, &s, &e));
    c.gpu.power_w = power_w > 0 ? power_w : c.gpu.power_w;
    assert_ok(mf_cost_create(&c, &s, store, &cost, &e));
    return cost;
}

static mf_op op_of(const mf_cost *cost, const char *text, mf_price *p) {
    mf_op op;
    assert_ok(mf_cost_price_text(cost, text, &op, p, &e));
    return op;
}

/* Two seconds each after seven of warming up, on one H200 on 2026-11-23, with PyTorch's kernels.
 * Its grouped product of few rows took 0.238 ms rested, for 0.194 of ours. */
static void five_measured_kernels_agree(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double energy_J, sustained_s, off;
    } seen[] = {
        {"gemm dtype=bf16 m=8192 n=8192 k=8192", 1.132, 1.647e-3, 0.03},
        {"grouped_gemm dtype=bf16 experts=8 m=2048 n=16384 k=6144", 3.392, 4.913e-3, 0.03},
        {"grouped_gemm dtype=bf16 experts=64 m=512 n=1024 k=2048", 0.171, 0.248e-3, 0.05},
        {"attention pass=fwd b=2 h=48 s=4096 dqk=128", 0.561, 0.813e-3, 0.03},
        {"copy bytes=1GiB", 0.288, 0.509e-3, 0.03},
    };
    mf_cost *cost = cost_of("h200", 0, "moefold", NULL);
    for (size_t i = 0; i < sizeof seen / sizeof seen[0]; i++) {
        mf_price p;
        mf_op op = op_of(cost, seen[i].text, &p);
        const double clock = mf_cost_clock_share(seen[i].sustained_s / p.time_s);
        assert_close(mf_cost_energy_J(cost, &op, 1, seen[i].sustained_s, clock) / seen[i].energy_J,
                     1, seen[i].off);
        assert_close(mf_cost_sustained_s(cost, &op, 1, p.time_s) / seen[i].sustained_s, 1,
                     seen[i].off);
    }
    assert_false(mf_cost_power(cost).measured);
    mf_cost_destroy(cost);
}

/* --- from points ------------------------------------------------------------------------------ */

static void put(mf_store *s, const char *text, double energy_J, double sustained_s) {
    mf_point p;
    assert_ok(mf_point_parse(text, &p, &e));
    snprintf(p.gpu, sizeof p.gpu, "h200");
    snprintf(p.date, sizeof p.date, "2026-11-24");
    p.time_s = p.low_s = p.high_s = sustained_s;
    p.energy_J = energy_J;
    p.sustained_s = sustained_s;
    assert_ok(mf_store_put(s, &p, &e));
}

/* A GPU that takes other energies than an H200 is known by them; too few say nothing. */
static void terms_are_found_again_from_points(void **state) {
    (void)state;
    static const double idle_W = 110, product_J = 0.6e-12, attention_J = 1.2e-12, byte_J = 120e-12;
    static const double operand_share = 0.565; /* costmodel/energy.c */
    mf_store *s;
    char text[160];
    assert_ok(mf_store_open(":memory:", &s, &e));
    mf_cost *before = cost_of("h200", 0, "moefold", s);
    for (int i = 0; i < 8; i++) {
        double m = 2048 << (i % 3), n = 1024 << (i % 4), k = 512 * (i + 1);
        double flops = 2 * m * n * k, bytes = 2 * (m * k + k * n + m * n);
        snprintf(text, sizeof text, "gemm dtype=bf16 m=%.0f n=%.0f k=%.0f", m, n, k);
        double t = flops / 600e12 + 3e-6;
        put(s, text, idle_W * t + product_J * flops + byte_J * operand_share * bytes, t);
        double seq = 1024 * (i + 1), keys = seq * (seq + 1) / 2;
        snprintf(text, sizeof text, "attention pass=fwd b=1 h=16 hkv=16 s=%.0f dqk=128", seq);
        flops = 2 * 16 * keys * 256;
        bytes = 2 * 2 * seq * 16 * 256;
        t = flops / 450e12 + 3e-6;
        put(s, text, idle_W * t + attention_J * flops + byte_J * operand_share * bytes, t);
        int64_t size = (int64_t)16 << (20 + i);
        snprintf(text, sizeof text, "copy bytes=%lld", (long long)size);
        bytes = 2.0 * (double)size;
        t = bytes / 4.2e12 + 2e-6;
        if (i < 6) {
            put(s, text, idle_W * t + byte_J * bytes, t);
        }
    }
    mf_cost *cost = cost_of("h200", 0, "moefold", s);
    assert_true(mf_cost_power(cost).measured);
    mf_price p;
    mf_op op = op_of(cost, "gemm dtype=bf16 m=8192 n=4096 k=2048", &p);
    double flops = 2.0 * 8192 * 4096 * 2048,
           bytes = operand_share * 2.0 * (8192 * 2048 + 4096 * 2048 + 8192 * 4096);
    double t = flops / 600e12;
    assert_close(mf_cost_energy_J(cost, &op, 1, t, 1) /
                     (idle_W * t + product_J * flops + byte_J * bytes),
                 1, 0.02);
    assert_false(mf_cost_power(before).measured);
    mf_cost_destroy(before);
    mf_cost_destroy(cost);
    mf_store_close(s);
}

/* --- of a block ------------------------------------------------------------------------------- */

static mf_block *layer(const char *model, mf_model *m) {
    mf_cluster c;
    mf_layout l;
    mf_block *b;
    assert_ok(mf_model_load(model, m, &e));
    assert_ok(mf_cluster_load("h200", &c, &e));
    mf_layout_init(&l);
    l.gpus = 1;
    l.gbs = 4;
    l.mbs = 4;
    l.seq = 4096;
    assert_ok(mf_layout_resolve(&l, m, &e));
    mf_block_key key = mf_block_key_layer(0, (mf_memory_choice){0, 0}, false);
    assert_ok(mf_block_lower(m, &l, &c, &key, &b, &e));
    return b;
}

static void less_power_never_helps_and_a_cap_that_does_not_bind_costs_nothing(void **state) {
    (void)state;
    static mf_model m;
    mf_block *b = layer("mixtral-8x22b", &m);
    static const double watts[] = {2000, 900, 700, 600, 500, 300};
    double last = 1;
    for (size_t i = 0; i < sizeof watts / sizeof watts[0]; i++) {
        mf_cost *cost = cost_of("h200", watts[i], "moefold", NULL);
        double stretch = mf_cost_stretch(cost, b, 1, NULL);
        assert_at_least(stretch, last);
        assert_true(i > 0 || !(stretch > 1)); /* space for everything */
        last = stretch;
        mf_cost_destroy(cost);
    }
    assert_above(last, 1.5);
    mf_cost *ideal = cost_of("h200", 300, "ideal", NULL); /* every op as fast as alone */
    assert_false(mf_cost_stretch(ideal, b, 1, NULL) > 1);
    mf_cost_destroy(ideal);
    mf_block_destroy(b);
}

/* What the block takes with the stretch is its energy over the cap. */
static void a_block_takes_its_energy_over_the_cap(void **state) {
    (void)state;
    static mf_model m;
    mf_block *b = layer("mixtral-8x22b", &m);
    mf_cost *cost = cost_of("h200", 0, "moefold", NULL);
    double stretch = mf_cost_stretch(cost, b, 1, NULL), time_s = 0, energy_J = 0;
    assert_above(stretch, 1.1);
    assert_below(stretch, 1.3);
    for (int i = 0; i < b->nops; i++) {
        mf_price p;
        mf_cost_op(cost, &b->ops[i], 1, &p);
        double t = p.time_s * (mf_cost_is_clocked(&b->ops[i]) ? stretch : 1);
        time_s += t;
        energy_J += mf_cost_energy_J(cost, &b->ops[i], 1, t, mf_cost_clock_share(stretch));
    }
    /* Of what the GPU draws for the ops, a step takes more than the same kernels alone. */
    double idle_J = mf_cost_power(cost).idle_W * time_s;
    double step_J = idle_J + mf_cost_software(cost)->power_cap * (energy_J - idle_J);
    assert_above(mf_cost_software(cost)->power_cap, 1);
    assert_close(step_J / time_s / mf_cost_power(cost).cap_W, 1, 1e-9);
    mf_cost_destroy(cost);
    mf_block_destroy(b);
}

/* Clocks as they were seen beside the energies above, and a copy's. */
static void the_clock_falls_with_the_power_that_is_asked_for(void **state) {
    (void)state;
    mf_cost *cost = cost_of("h200", 0, "moefold", NULL);
    const mf_power power = mf_cost_power(cost);
    mf_price p;
    mf_op op = op_of(cost, "gemm dtype=bf16 m=8192 n=8192 k=8192", &p);
    const double product =
        mf_cost_clock_share(mf_cost_sustained_s(cost, &op, 1, p.time_s) / p.time_s);
    assert_close(power.clock_Hz, 1980e6, 1);
    assert_close(product * power.clock_Hz / 1476e6, 1, 0.03);
    op = op_of(cost, "copy bytes=1GiB", &p);
    assert_close(mf_cost_sustained_s(cost, &op, 1, p.time_s), p.time_s, 1e-12);
    assert_close(mf_cost_clock_share(1), 1, 1e-12);
    mf_cost_destroy(cost);
}

/* Voltage: a product takes more energy at the highest clock than at that of long runs, a copy as
 * much. Voltage is linear in the clock and does not fall to nothing with it. */
static void joules_of_products_grow_with_the_clock(void **state) {
    (void)state;
    mf_cost *cost = cost_of("h200", 0, "moefold", NULL);
    const double settled = mf_cost_power(cost).settled_clock;
    mf_price p;
    mf_op op = op_of(cost, "gemm dtype=bf16 m=8192 n=8192 k=8192", &p);
    const double J = mf_cost_energy_J(cost, &op, 1, 0, settled);
    assert_close(mf_cost_energy_J(cost, &op, 1, 0, 1.1 * settled) / J, 1.03 * 1.03, 1e-6);
    assert_close(mf_cost_energy_J(cost, &op, 1, 0, 0.9 * settled) / J, 0.97 * 0.97, 1e-6);
    assert_close(mf_cost_energy_J(cost, &op, 1, 0, 0.5 * settled) / J, 0.85 * 0.85, 1e-6);
    op = op_of(cost, "copy bytes=1GiB", &p);
    assert_close(mf_cost_energy_J(cost, &op, 1, 0, 1), mf_cost_energy_J(cost, &op, 1, 0, 0.5),
                 1e-12);
    mf_cost_destroy(cost);
}

/* Work over the cap ends at the stretch where its energy, less for the slower clock, is what the
 * cap gives; work under it is not slowed down, and each of its figures slows it down or does
 * nothing. */
static void the_stretch_is_where_energy_meets_the_cap(void **state) {
    (void)state;
    mf_cost *cost = cost_of("h200", 0, "moefold", NULL);
    const mf_power power = mf_cost_power(cost);
    const double spare_W = power.cap_W - power.idle_W;
    for (double own_W = 300; own_W < 1500; own_W += 50) {
        const mf_work w = {1e-3, 2e-4, own_W * 1e-3, 0.06};
        const double stretch = mf_cost_stretch_of(cost, &w), clock = mf_cost_clock_share(stretch);
        const double J = w.clocked_J * pow(0.7 + 0.3 * clock / power.settled_clock, 2);
        const double over_J = J + w.other_J - spare_W * (stretch * w.clocked_s + w.other_s);
        if (stretch > 1) {
            assert_close(over_J / J, 0, 1e-9);
        } else {
            assert_at_most(over_J, 0);
        }
        mf_work more = w;
        more.clocked_J *= 1.1;
        assert_at_least(mf_cost_stretch_of(cost, &more), stretch);
        more = w;
        more.other_s *= 1.1; /* leaves more power */
        assert_at_most(mf_cost_stretch_of(cost, &more), stretch);
        more = w;
        more.clocked_s *= 1.1;
        const double before_s = stretch * w.clocked_s;
        assert_at_least(mf_cost_stretch_of(cost, &more) * more.clocked_s, before_s * (1 - 1e-9));
    }
    assert_close(mf_cost_stretch_of(cost, &(mf_work){0, 1e-3, 0, 1}), 1, 1e-12);
    mf_cost_destroy(cost);
}

/* Below the clocks that were seen kernels need as many cycles as at the slowest of them: no product
 * does more work a cycle than there. */
static void slow_clocks_do_not_make_cycles_do_more(void **state) {
    (void)state;
    double last = 1;
    for (double stretch = 1; stretch < 2.5; stretch += 0.01) {
        const double clock = mf_cost_clock_share(stretch);
        assert_at_most(clock, last);
        if (clock < 1420.0 / 1980) {
            assert_at_least(clock * stretch, 0.717 * 1.2);
        }
        last = clock;
    }
}

/* What a GPU draws whatever runs goes by what it ships with, not by what its owner allows it;
 * J/FLOP by its best product: so each settles as far below that as an H100 does. */
static void others_settle_as_an_h100_does(void **state) {
    (void)state;
    static const char *const clusters[] = {"h200", "a100", "b200", "mi300x", "mi355x"};
    mf_cost *h100 = cost_of("h100", 0, "moefold", NULL);
    mf_price p;
    mf_op op = op_of(h100, "gemm dtype=bf16 m=8192 n=8192 k=8192", &p);
    const double settles = mf_cost_sustained_s(h100, &op, 1, p.time_s) / p.time_s;
    const double idle = mf_cost_power(h100).idle_W / mf_cost_power(h100).cap_W;
    for (size_t i = 0; i < sizeof clusters / sizeof clusters[0]; i++) {
        mf_cost *cost = cost_of(clusters[i], 0, "moefold", NULL);
        op = op_of(cost, "gemm dtype=bf16 m=8192 n=8192 k=8192", &p);
        assert_close(mf_cost_sustained_s(cost, &op, 1, p.time_s) / p.time_s / settles, 1, 0.06);
        assert_close(mf_cost_power(cost).idle_W / mf_cost_power(cost).cap_W, idle, 1e-9);
        mf_cost_destroy(cost);
    }
    mf_cost *lowered = cost_of("h100", 500, "moefold", NULL);
    assert_close(mf_cost_power(lowered).idle_W, mf_cost_power(h100).idle_W, 1e-9);
    mf_cost_destroy(lowered);
    mf_cost_destroy(h100);
}

/* Rates that were fitted to runs hold the power limit that a GPU ships with: only a lower one slows
 * blocks down further, by less than where nothing is fitted. */
static void fitted_rates_hold_the_shipped_power_limit(void **state) {
    (void)state;
    static mf_model m;
    mf_block *b = layer("mixtral-8x22b", &m);
    static const double watts[] = {900, 700, 600, 500, 400};
    double last = 1;
    for (size_t i = 0; i < sizeof watts / sizeof watts[0]; i++) {
        mf_cost *fitted = cost_of("h100", watts[i], "megatron-26.06", NULL);
        mf_cost *rested = cost_of("h100", watts[i], "moefold", NULL);
        const double stretch = mf_cost_stretch(fitted, b, 1, NULL);
        assert_int_equal(mf_cost_is_capped(fitted), watts[i] < 700);
        assert_true(watts[i] < 700 ? stretch > last : !(stretch > 1));
        assert_at_most(stretch, mf_cost_stretch(rested, b, 1, NULL));
        last = stretch;
        mf_cost_destroy(fitted);
        mf_cost_destroy(rested);
    }
    assert_above(last, 1.2);
    mf_block_destroy(b);
}

/* Softmax works on pairs of tokens: the narrower the head, the more joules a FLOP takes. */
static void attention_of_narrow_heads_takes_more_a_flop(void **state) {
    (void)state;
    static const char *const passes[] = {"fwd", "bwd"};
    mf_cost *cost = cost_of("h200", 0, "moefold", NULL);
    for (int i = 0; i < 2; i++) {
        double J_flop[3];
        for (int k = 0; k < 3; k++) {
            char text[96];
            mf_price p;
            snprintf(text, sizeof text, "attention pass=%s b=1 h=32 s=8192 dqk=%d", passes[i],
                     64 << k);
            mf_op op = op_of(cost, text, &p);
            J_flop[k] = mf_cost_energy_J(cost, &op, 1, 0, 0.7475) / op.flops;
        }
        assert_above(J_flop[0] / J_flop[1], 1.1);
        assert_below(J_flop[0] / J_flop[1], 1.4);
        assert_below(J_flop[2] / J_flop[1], 0.95);
        assert_above(J_flop[2], 0.783e-12); /* products of as many FLOPs */
    }
    mf_cost_destroy(cost);
}

/* A kernel walks over whole blocks of 128 keys: half a block a row beside what a mask leaves. Bytes
 * of queries, keys, values and outputs, once, are not part of it. */
static void attention_takes_energy_by_blocks_of_keys(void **state) {
    (void)state;
    static const struct {
        const char *shape;
        double tokens, keys, edge;
    } cases[] = {{"s=1024", 1024, 512.5, 64},
                 {"s=4096", 4096, 2048.5, 64},
                 {"s=32768", 32768, 16384.5, 64},
                 {"s=4096 causal=0", 4096, 4096, 0},
                 {"s=4096 window=128", 4096, 128 * (1 - 127.0 / 2 / 4096), 64}};
    mf_cost *cost = cost_of("h200", 0, "moefold", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[96];
        mf_price p;
        snprintf(text, sizeof text, "attention pass=fwd b=1 h=8 %s dqk=128", cases[i].shape);
        mf_op op = op_of(cost, text, &p);
        const double bytes = 4 * cases[i].tokens * 8 * 128 * 2;
        const double J = mf_cost_energy_J(cost, &op, 1, 0, 0.7475) - 0.565 * 98e-12 * bytes;
        const double walked = 2.0 * 8 * cases[i].tokens * (cases[i].keys + cases[i].edge) * 256;
        assert_close(J / (1.01e-12 * walked / (1 + 64 / 2048.5)), 1, 2e-3);
    }
    mf_cost_destroy(cost);
}

/* Rows add to the gradient of their head's sink one after the other, whatever else was measured of
 * the shape; points have no sinks. */
static void gradients_of_sinks_take_time_by_row_and_head(void **state) {
    (void)state;
    static const char *const models[] = {"gpt-oss-20b", "qwen3-30b-a3b"};
    mf_cost *cost = cost_of("h200", 0, "moefold", NULL);
    for (int i = 0; i < 2; i++) {
        static mf_model m;
        mf_block *b = layer(models[i], &m);
        int seen = 0;
        for (int k = 0; k < b->nops; k++) {
            mf_op op = b->ops[k];
            if (op.kind != MF_OP_ATTENTION_BWD) {
                continue;
            }
            mf_price with, without;
            mf_cost_op(cost, &op, 1, &with);
            op.flags &= ~(uint32_t)MF_OPF_SINKS;
            mf_cost_op(cost, &op, 1, &without);
            const double rows = (double)op.dim[MF_OP_DIM_BATCH] * (double)op.dim[MF_OP_DIM_SEQ_Q];
            const double each_s = i == 0 ? 1.4e-9 : 0;
            assert_close(with.time_s - without.time_s,
                         each_s * rows * (double)op.dim[MF_OP_DIM_HEADS], 1e-9);
            seen++;
        }
        assert_above(seen, 0);
        mf_block_destroy(b);
    }
    mf_cost_destroy(cost);
}

/* NCCL's kernels draw while they wait for the other ranks, compute kernels do not. */
static void a_collective_in_flight_draws_power(void **state) {
    (void)state;
    mf_cost *cost = cost_of("h200", 0, "moefold", NULL);
    mf_price p;
    mf_op op = op_of(cost, "all_reduce ranks=2 bytes=16MiB", &p);
    const double wait_W =
        mf_cost_energy_J(cost, &op, 1, 2e-3, 1) - mf_cost_energy_J(cost, &op, 1, 1e-3, 1);
    assert_close(1e3 * wait_W / (mf_cost_power(cost).idle_W + 260), 1, 1e-9);
    op = op_of(cost, "copy bytes=1GiB", &p);
    const double copy_W =
        mf_cost_energy_J(cost, &op, 1, 2e-3, 1) - mf_cost_energy_J(cost, &op, 1, 1e-3, 1);
    assert_close(1e3 * copy_W / mf_cost_power(cost).idle_W, 1, 1e-9);
    mf_cost_destroy(cost);
}

/* Reading and writing every row once more: time and energy of a copy of as many bytes, about. */
static void biases_of_experts_are_another_pass(void **state) {
    (void)state;
    mf_cost *cost = cost_of("h200", 0, "moefold", NULL);
    mf_price plain, biased;
    mf_op op = op_of(cost, "grouped_gemm dtype=bf16 experts=8 m=2048 n=16384 k=6144", &plain);
    const double J = mf_cost_energy_J(cost, &op, 1, 0, 1), bytes = 2 * 8 * 2048.0 * 16384 * 2;
    op.flags |= MF_OPF_BIAS;
    mf_cost_op(cost, &op, 1, &biased);
    assert_above(biased.time_s - plain.time_s, bytes / 4.8e12);
    assert_below(biased.time_s - plain.time_s, bytes / 3.5e12);
    assert_close((mf_cost_energy_J(cost, &op, 1, 0, 1) - J) / (98e-12 * bytes), 1, 1e-6);
    mf_cost_destroy(cost);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_clock_falls_with_the_power_that_is_asked_for),
        cmocka_unit_test(joules_of_products_grow_with_the_clock),
        cmocka_unit_test(the_stretch_is_where_energy_meets_the_cap),
        cmocka_unit_test(slow_clocks_do_not_make_cycles_do_more),
        cmocka_unit_test(others_settle_as_an_h100_does),
        cmocka_unit_test(fitted_rates_hold_the_shipped_power_limit),
        cmocka_unit_test(attention_of_narrow_heads_takes_more_a_flop),
        cmocka_unit_test(attention_takes_energy_by_blocks_of_keys),
        cmocka_unit_test(gradients_of_sinks_take_time_by_row_and_head),
        cmocka_unit_test(a_collective_in_flight_draws_power),
        cmocka_unit_test(biases_of_experts_are_another_pass),
        cmocka_unit_test(five_measured_kernels_agree),
        cmocka_unit_test(terms_are_found_again_from_points),
        cmocka_unit_test(less_power_never_helps_and_a_cap_that_does_not_bind_costs_nothing),
        cmocka_unit_test(a_block_takes_its_energy_over_the_cap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
