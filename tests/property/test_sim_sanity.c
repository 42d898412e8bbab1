/* What better machines and better software do to steps and prices, on the clusters and profiles
 * that ship: nothing gets slower, and nobody computes more than the peak. */
#include "costmodel/price_text.h"
#include "tests/support/sampled.h"
#include "tests/support/sim_fixture.h"

static mf_err e;

enum { SCALE_UP = 1, NETWORK = 2 };

static void load(const char *cluster, double by, int links, mf_cluster *out) {
    assert_ok(mf_cluster_load(cluster, out, &e));
    out->scaleup_Bps *= links & SCALE_UP ? by : 1;
    out->scaleup_pair_Bps *= links & SCALE_UP ? by : 1;
    out->scaleup_pair_effective_Bps *= links & SCALE_UP ? by : 1;
    out->scaleup_effective_Bps *= links & SCALE_UP ? by : 1;
    out->nic_Bps *= links & NETWORK ? by : 1;
}

static mf_cost *cost_of(const mf_cluster *c, const char *software) {
    mf_software s;
    mf_cost *cost;
    assert_ok(mf_software_load(software, &s, &e));
    assert_ok(mf_cost_create(c, &s, NULL, &cost, &e));
    return cost;
}

/* The price of text, or 0 where this cluster has no such group. */
static double price_s(const mf_cost *cost, const char *text) {
    mf_op op;
    mf_price p;
    return mf_cost_price_text(cost, text, &op, &p, &e) == MF_OK ? p.time_s : 0;
}

static void check_collectives(const mf_cost *slow, const mf_cost *fast, int *checked) {
    static const char *const ops[] = {"all_gather", "all_reduce", "reduce_scatter", "all_to_all"};
    char text[160];
    for (size_t o = 0; o < sizeof ops / sizeof ops[0]; o++) {
        for (int ranks = 2; ranks <= 64; ranks *= 2 * case_stride(2)) {
            for (int nodes = 1; nodes <= 8 && nodes <= ranks; nodes *= 2) {
                for (double bytes = 4096; bytes < 3e9; bytes *= 8 * case_stride(8)) {
                    snprintf(text, sizeof text, "%s bytes=%.0f ranks=%d nodes=%d", ops[o], bytes,
                             ranks, nodes);
                    double before = price_s(slow, text), after = price_s(fast, text);
                    if (after > before * (1 + 1e-9)) {
                        fail_msg("%s: %g s becomes %g s", text, before, after);
                    }
                    *checked += before > 0;
                }
            }
        }
    }
}

static void faster_links_make_no_collective_slower(void **state) {
    (void)state;
    static const char *const clusters[] = {"h100", "h200", "gb200", "b200", "a100", "mi300x"};
    static const double by[] = {1.1, 2, 3.2};
    int checked = 0;
    for (size_t i = 0; i < sizeof clusters / sizeof clusters[0]; i += (size_t)case_stride(2)) {
        mf_cluster c;
        load(clusters[i], 1, 0, &c);
        mf_cost *slow = cost_of(&c, "moefold");
        for (int links = SCALE_UP; links <= (SCALE_UP | NETWORK); links++) {
            load(clusters[i], by[(size_t)links - 1], links, &c);
            mf_cost *fast = cost_of(&c, "moefold");
            check_collectives(slow, fast, &checked);
            mf_cost_destroy(fast);
        }
        mf_cost_destroy(slow);
    }
    assert_above(checked, 1000 / case_stride(4));
}

static mf_price price_on(const mf_cluster *c, const char *text) {
    mf_cost *cost = cost_of(c, "moefold");
    mf_op op;
    mf_price p;
    assert_ok(mf_cost_price_text(cost, text, &op, &p, &e));
    mf_cost_destroy(cost);
    return p;
}

static void a_slower_hop_inside_a_domain_makes_collectives_slower(void **state) {
    (void)state;
    static const char *const ops[] = {
        "all_gather bytes=1048576 ranks=2", "all_gather bytes=1048576 ranks=8",
        "all_reduce bytes=65536 ranks=4", "reduce_scatter bytes=1048576 ranks=16 nodes=2",
        "send_recv bytes=65536 ranks=2"};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        mf_cluster c;
        load("h200", 1, 0, &c);
        const double before_s = price_on(&c, ops[i]).time_s;
        c.scaleup_latency_s *= 10;
        const double after_s = price_on(&c, ops[i]).time_s;
        if (!(after_s > before_s + 1e-6)) {
            fail_msg("%s: %g s becomes %g s", ops[i], before_s, after_s);
        }
    }
}

/* A point counts as measured at the figures that it was measured at. */
static void what_a_cluster_states_anew_is_not_called_measured(void **state) {
    (void)state;
    static const char gather[] = "all_gather bytes=67108864 ranks=4";
    static const char product[] = "gemm m=4096 n=4096 k=4096 dtype=bf16";
    mf_cluster c;
    load("h200", 1, 0, &c);
    assert_int_equal(price_on(&c, gather).basis, MF_BASIS_MEASURED);
    assert_int_equal(price_on(&c, product).basis, MF_BASIS_MEASURED);
    load("h200", 2, SCALE_UP, &c);
    assert_int_equal(price_on(&c, gather).basis, MF_BASIS_TRANSFERRED);
    assert_int_equal(price_on(&c, product).basis, MF_BASIS_MEASURED);
    load("h200", 1, 0, &c);
    c.gpu.peak_flops[MF_MATH_BF16] *= 2;
    c.gpu.measured_flops[MF_MATH_BF16] *= 2;
    assert_int_equal(price_on(&c, gather).basis, MF_BASIS_MEASURED);
    assert_int_equal(price_on(&c, product).basis, MF_BASIS_TRANSFERRED);
}

static mf_sim *play(const mf_cluster *c, const char *software, const mf_model *m,
                    const mf_layout *l) {
    mf_cost *cost = cost_of(c, software);
    mf_program *p = sim_program(m, l, c);
    mf_sim *s = sim_step(cost, p, NULL);
    mf_program_destroy(p);
    mf_cost_destroy(cost);
    return s;
}

/* `ideal` is what the hardware allows: no named profile is faster. */
static void nobody_is_faster_than_ideal_or_computes_more_than_the_peak(void **state) {
    (void)state;
    static const char *const clusters[] = {"h100", "h200", "gb200", "b200"};
    static const char *const named[] = {"moefold", "megatron-26.06", "pytorch-fsdp"};
    const mf_model models[] = {test_model_moe(false), test_model_moe(true), test_model_dense()};
    rng r = rng_init(61);
    for (int i = 0; i < 48; i += case_stride(13)) {
        const mf_model *m = &models[i % 3];
        mf_cluster c;
        load(clusters[i % 4], 1, 0, &c);
        mf_layout l = test_random_layout(&r, m, 64);
        mf_sim *ideal = play(&c, "ideal", m, &l);
        mf_sim *other = play(&c, named[i % 3], m, &l);
        if (ideal->step_time_s > other->step_time_s * (1 + 1e-9)) {
            fail_msg("layout %d on %s: ideal %g s, %s %g s", i, clusters[i % 4], ideal->step_time_s,
                     named[i % 3], other->step_time_s);
        }
        if (!(ideal->mfu > 0 && ideal->mfu <= 1)) {
            fail_msg("layout %d on %s: MFU %g", i, clusters[i % 4], ideal->mfu);
        }
        mf_sim_destroy(ideal);
        mf_sim_destroy(other);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faster_links_make_no_collective_slower),
        cmocka_unit_test(a_slower_hop_inside_a_domain_makes_collectives_slower),
        cmocka_unit_test(what_a_cluster_states_anew_is_not_called_measured),
        cmocka_unit_test(nobody_is_faster_than_ideal_or_computes_more_than_the_peak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
