/* test_cost_property.c - what every price must keep, over thousands of random ops: never below the
 * limit, inside its band, more work never cheaper, left-out measurements inside their bands, quick,
 * and the same from any thread. */
#include "tests/support/cost_fixture.h"
#include "tests/support/random_op.h"

#include <pthread.h>
#include <time.h>

/* --- limits and bands ------------------------------------------------------------------------- */

static void every_price_is_finite_above_its_limit_and_inside_its_band(void **state) {
    (void)state;
    uint64_t seed = 71;
    print_message("seed %llu\n", (unsigned long long)seed);
    const mf_cluster clusters[] = {fixture_h200(), fixture_gb200()};
    mf_software boast = fixture_software(); /* claims twice of everything: the limit must hold */
    boast.gemm_eff[MF_MATH_BF16] = boast.gemm_eff[MF_MATH_FP8] = 2;
    boast.attention_eff = boast.memory_eff = boast.collective_eff = 2;
    boast.comm_eff[MF_DISPATCH_ALLTOALL] = boast.comm_eff[MF_DISPATCH_FUSED] = 2;
    for (int c = 0; c < 4; c++) {
        mf_software software = c < 2 ? fixture_software() : boast;
        mf_cost *cost = fixture_cost_with(&clusters[c % 2], -1, &software);
        for (int i = 0; i < 20000; i++) {
            mf_op op = random_op(&seed);
            op.flags |= (uint8_t)(next(&seed) & MF_OPF_ROUTED);
            mf_price p;
            mf_cost_op(cost, &op, 0.25 + (double)(next(&seed) % 16) / 4, &p);
            bool sound = isfinite(p.time_s) && isfinite(p.high_s) && p.limit_s >= 0 &&
                         p.time_s >= p.limit_s && p.low_s >= p.limit_s && p.low_s <= p.time_s &&
                         p.time_s <= p.high_s && p.sm_share >= 0 && p.sm_share <= 1 &&
                         p.link_share >= 0 && p.link_share <= 1 && p.basis < MF_BASIS_COUNT;
            if (!sound) {
                fail_msg("op %d (%s): time %g limit %g band %g..%g", i,
                         mf_op_text((mf_op_kind)op.kind), p.time_s, p.limit_s, p.low_s, p.high_s);
            }
            double slow = mf_cost_compute_slowdown(cost, &op, 0.2, 1e11);
            assert_at_least(slow, 1);
            assert_below(slow, 10);
        }
        mf_cost_destroy(cost);
    }
}

/* --- many at once ----------------------------------------------------------------------------- */

/* Also where several of them have one place in the memory of prices, or are the same. */
static void ops_priced_together_cost_what_each_costs_alone(void **state) {
    (void)state;
    enum { OPS = 500 };
    static mf_op op[OPS];
    static mf_price together[OPS];
    uint64_t seed = 77;
    print_message("seed %llu\n", (unsigned long long)seed);
    const mf_cluster cluster = fixture_h200();
    mf_cost *cost = fixture_cost(&cluster, -1);
    for (int round = 0; round < 200; round++) {
        const int n = (int)(next(&seed) % OPS) + 1;
        const double load = 0.25 + (double)(next(&seed) % 16) / 4;
        for (int i = 0; i < n; i++) {
            op[i] = i > 0 && next(&seed) % 4 == 0 ? op[i - 1] : random_op(&seed);
        }
        memset(together, 0xff, sizeof together);
        mf_cost_ops(cost, op, n, load, together);
        for (int i = 0; i < n; i++) {
            mf_price alone;
            mf_cost_op(cost, &op[i], load, &alone);
            assert_memory_equal(&alone.time_s, &together[i].time_s, sizeof alone.time_s);
            assert_memory_equal(&alone.limit_s, &together[i].limit_s, sizeof alone.limit_s);
            assert_int_equal(alone.basis, together[i].basis);
        }
    }
    mf_cost_destroy(cost);
}

/* --- monotone --------------------------------------------------------------------------------- */

static void more_bytes_never_take_less_time(void **state) {
    (void)state;
    uint64_t seed = 72;
    print_message("seed %llu\n", (unsigned long long)seed);
    const mf_cluster clusters[] = {fixture_h200(), fixture_gb200()};
    for (int c = 0; c < 2; c++) {
        mf_cost *cost = fixture_cost(&clusters[c], -1);
        for (int kind = MF_OP_ALL_REDUCE; kind <= MF_OP_COPY_H2D; kind++) {
            if (kind == MF_OP_DISPATCH || kind == MF_OP_COMBINE) {
                continue;
            }
            for (int i = 0; i < 60; i++) {
                mf_op op = {.kind = (uint8_t)kind};
                op.shape.size = i < 4 ? 2 << i : sized(&seed, 2, 2048);
                op.shape.stride = i < 4 ? 1 : (int64_t)1 << between(&seed, 0, 8);
                double last = 0;
                for (op.bytes = 1; op.bytes < 1e11; op.bytes *= 1.23) {
                    mf_price p;
                    mf_cost_op(cost, &op, 1, &p);
                    if (p.time_s < last * (1 - 1e-12)) {
                        fail_msg("%s of %g B over %lld x %lld: %g s after %g s",
                                 mf_op_text((mf_op_kind)kind), op.bytes, (long long)op.shape.size,
                                 (long long)op.shape.stride, p.time_s, last);
                    }
                    last = p.time_s;
                }
            }
        }
        mf_cost_destroy(cost);
    }
}

/* A larger product may fill its waves better, and residuals of neighbours differ: growing a side by
 * a quarter or doubling it may not save more than a twentieth of the time. Sides are whole sectors,
 * before and after: a ragged one costs more than the next even one, on the GPU as in the price. */
static void larger_products_take_longer_up_to_wave_quantisation(void **state) {
    (void)state;
    uint64_t seed = 73;
    print_message("seed %llu\n", (unsigned long long)seed);
    const mf_cluster clusters[] = {fixture_h200(), fixture_gb200()};
    double worst = 0;
    for (int c = 0; c < 2; c++) {
        mf_cost *cost = fixture_cost(&clusters[c], -1);
        for (int i = 0; i < 20000; i++) {
            mf_op op = {.kind = (uint8_t)(i % 2 ? MF_OP_GEMM : MF_OP_GROUPED_GEMM),
                        .math = (uint8_t)(i % 3 ? MF_MATH_BF16 : MF_MATH_FP8)};
            op.dim[MF_OP_DIM_M] = sized(&seed, 64, 65536) / 64 * 64;
            op.dim[MF_OP_DIM_N] = sized(&seed, 64, 65536) / 64 * 64;
            op.dim[MF_OP_DIM_K] = sized(&seed, 64, 65536) / 64 * 64;
            op.dim[MF_OP_DIM_GROUPS] = between(&seed, 1, 16);
            mf_price small, large;
            mf_cost_op(cost, &op, 1, &small);
            bool doubled = between(&seed, 0, 1);
            int64_t *side = &op.dim[between(&seed, 0, 2)];
            *side = doubled ? *side * 2 : *side + *side / 4;
            mf_cost_op(cost, &op, 1, &large);
            double saved = 1 - large.time_s / small.time_s;
            worst = fmax(worst, saved);
            if (saved > 0.05) {
                fail_msg("%lld x %lld x %lld: %g s, smaller %g s", (long long)op.dim[MF_OP_DIM_M],
                         (long long)op.dim[MF_OP_DIM_N], (long long)op.dim[MF_OP_DIM_K],
                         large.time_s, small.time_s);
            }
        }
        mf_cost_destroy(cost);
    }
    print_message("a larger product saved at most %.1f %%\n", 100 * worst);
}

/* --- left-out measurements -------------------------------------------------------------------- */

static int order(const void *a, const void *b) {
    double p, q;
    memcpy(&p, a, sizeof p);
    memcpy(&q, b, sizeof q);
    return (p > q) - (p < q);
}

static void left_out_measurements_fall_into_their_bands(void **state) {
    (void)state;
    const mf_cluster c = fixture_h200();
    double compute[WORLD_POINTS], comm[WORLD_POINTS];
    size_t ncompute = 0, ncomm = 0, inside = 0;
    for (int i = 0; i < WORLD_POINTS; i++) {
        mf_cost *cost = fixture_cost(&c, i);
        mf_op op = fixture_op(&c, fixture_points[i].text);
        double t = fixture_time_s(&fixture_points[i], &op);
        mf_price p;
        mf_cost_op(cost, &op, 1, &p);
        assert_int_not_equal(p.basis, MF_BASIS_MEASURED);
        inside += t >= p.low_s && t <= p.high_s;
        double error = fabs(p.time_s / t - 1);
        if (op.shape.size > 0) {
            comm[ncomm++] = error;
        } else {
            compute[ncompute++] = error;
        }
        mf_cost_destroy(cost);
    }
    qsort(compute, ncompute, sizeof *compute, order);
    qsort(comm, ncomm, sizeof *comm, order);
    print_message("left out one by one: median error %.1f %% (%zu kernels), %.1f %% (%zu "
                  "collectives); %zu of %d inside their band\n",
                  100 * compute[ncompute / 2], ncompute, 100 * comm[ncomm / 2], ncomm, inside,
                  (int)WORLD_POINTS);
    assert_below(compute[ncompute / 2], 0.05);
    assert_below(comm[ncomm / 2], 0.12);
    assert_at_least(inside * 100, WORLD_POINTS * 85);
}

/* --- speed and threads ------------------------------------------------------------------------ */

static double ops_per_s(const mf_cost *cost, const mf_op *ops, int n) {
    double sum = 0;
    clock_t start = clock();
    long rounds = 0;
    for (; clock() - start < CLOCKS_PER_SEC / 5; rounds++) {
        for (int i = 0; i < n; i++) {
            mf_price p;
            mf_cost_op(cost, &ops[i], 1, &p);
            sum += p.time_s;
        }
    }
    assert_above(sum, 0);
    return (double)rounds * n / ((double)(clock() - start) / CLOCKS_PER_SEC);
}

static void a_million_simple_ops_are_priced_per_second(void **state) {
    (void)state;
    enum { N = 256 };
    static const struct {
        const char *what;
        mf_op_kind kind;
        double least;
    } sorts[] = {{"memory-bound", MF_OP_ADD, 1e6},
                 {"collective", MF_OP_ALL_GATHER, 1e6},
                 {"gemm", MF_OP_GEMM, 5e5},
                 {"grouped gemm", MF_OP_GROUPED_GEMM, 5e5},
                 {"attention", MF_OP_ATTENTION_FWD, 5e5},
                 {"dispatch", MF_OP_DISPATCH, 5e5}};
    const mf_cluster c = fixture_h200();
    mf_cost *cost = fixture_cost(&c, -1);
    uint64_t seed = 74;
    for (size_t k = 0; k < sizeof sorts / sizeof sorts[0]; k++) {
        mf_op ops[N];
        for (int i = 0; i < N;) {
            ops[i] = random_op(&seed);
            i += ops[i].kind == sorts[k].kind;
        }
        double speed = ops_per_s(cost, ops, N);
        print_message("%-14s %.2f million prices per second\n", sorts[k].what, speed / 1e6);
        if (getenv("MF_SANITIZED") == NULL) {
            assert_at_least(speed, sorts[k].least);
        }
    }
    mf_cost_destroy(cost);
}

typedef struct worker {
    const mf_cost *cost;
    double sum;
} worker;

static void *price_many(void *user) {
    worker *w = user;
    uint64_t seed = 75;
    for (int i = 0; i < 20000; i++) {
        mf_op op = random_op(&seed);
        mf_price p;
        mf_cost_op(w->cost, &op, 1, &p);
        w->sum += p.time_s + p.high_s;
    }
    return NULL;
}

static void threads_read_the_same_prices(void **state) {
    (void)state;
    enum { THREADS = 4 };
    const mf_cluster c = fixture_h200();
    mf_cost *cost = fixture_cost(&c, -1), *again = fixture_cost(&c, -1);
    worker w[THREADS], alone = {again, 0};
    pthread_t id[THREADS];
    price_many(&alone);
    for (int i = 0; i < THREADS; i++) {
        w[i] = (worker){cost, 0};
        assert_int_equal(pthread_create(&id[i], NULL, price_many, &w[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(id[i], NULL);
        assert_memory_equal(&w[i].sum, &alone.sum, sizeof alone.sum);
    }
    mf_cost_destroy(cost);
    mf_cost_destroy(again);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_price_is_finite_above_its_limit_and_inside_its_band),
        cmocka_unit_test(ops_priced_together_cost_what_each_costs_alone),
        cmocka_unit_test(more_bytes_never_take_less_time),
        cmocka_unit_test(larger_products_take_longer_up_to_wave_quantisation),
        cmocka_unit_test(left_out_measurements_fall_into_their_bands),
        cmocka_unit_test(a_million_simple_ops_are_priced_per_second),
        cmocka_unit_test(threads_read_the_same_prices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
