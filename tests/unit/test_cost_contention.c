/* What compute loses to communication beside it, and what launches cost: from measured points. */
#include "tests/support/test.h"

#include "costmodel/cost.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static mf_err e;

static void assert_near(double x, double wanted, double within) {
    if (!(fabs(x - wanted) <= within)) {
        fail_msg("%.12g, wanted %.12g", x, wanted);
    }
}

static void put(mf_store *s, const char *gpu, const char *key, double time_s) {
    mf_point p;
    assert_ok(mf_point_parse(key, &p, &e));
    strcpy(p.gpu, gpu);
    p.time_s = p.low_s = p.high_s = time_s;
    strcpy(p.source, "a test");
    assert_ok(mf_store_put(s, &p, &e));
}

/* Products of two sizes lose a fifth and two fifths of their speed to the large collective, nothing
 * to the small one; a copy of 4.3 TB/s loses a quarter to one that moves a tenth of it. */
static void put_points(mf_store *s, const char *gpu) {
    static const char *const product[] = {"4096", "8192"};
    const double alone[] = {1e-3, 4e-3}, kept[] = {0.8, 0.6};
    char key[160];
    for (int i = 0; i < 2; i++) {
        snprintf(key, sizeof key, "gemm dtype=bf16 m=%s n=%s k=%s", product[i], product[i],
                 product[i]);
        put(s, gpu, key, alone[i]);
        for (int b = 0; b < 2; b++) {
            snprintf(key, sizeof key,
                     "beside of=compute op=gemm size=%s comm=all_gather bytes=%s ranks=2",
                     product[i], b == 0 ? "1048576" : "268435456");
            put(s, gpu, key, b == 0 ? alone[i] : alone[i] / kept[i]);
        }
        put(s, gpu, "beside of=comm op=gemm size=4096 comm=all_gather bytes=268435456 ranks=2",
            9.0); /* whose time it is matters */
    }
    put(s, gpu, "copy bytes=1073741824", 2 * 1073741824.0 / 4.3e12);
    put(s, gpu, "copy bytes=268435456", 2 * 268435456.0 / 4.3e12);
    put(s, gpu, "all_gather bytes=268435456 ranks=2", 2 * 268435456.0 / 0.43e12);
    put(s, gpu, "beside of=compute op=copy size=268435456 comm=all_gather bytes=268435456 ranks=2",
        1.25 * 2 * 268435456.0 / 4.3e12);
    put(s, gpu, "launch mode=stream", 3e-6);
    put(s, gpu, "launch mode=replay", 1e-8);
}

/* A collective takes 1.5 times as long beside products, and waits 100 us; beside a copy it takes
 * less than a line through no wait would say. The fused dispatch has points of its own. */
static void put_losses(mf_store *s, const char *gpu) {
    static const char *const bytes[] = {"16777216", "268435456"};
    const double alone[] = {100e-6, 1e-3};
    char key[200];
    for (int b = 0; b < 2; b++) {
        snprintf(key, sizeof key, "all_reduce bytes=%s ranks=2", bytes[b]);
        put(s, gpu, key, alone[b]);
        for (int i = 0; i < 2; i++) { /* two products: the mean of both lies on the line */
            snprintf(key, sizeof key,
                     "beside of=comm op=gemm size=%d comm=all_reduce bytes=%s ranks=2", 4096 << i,
                     bytes[b]);
            put(s, gpu, key, 100e-6 + 1.5 * alone[b] + (i == 0 ? -20e-6 : 20e-6));
        }
        snprintf(key, sizeof key,
                 "beside of=comm op=copy size=268435456 comm=all_reduce bytes=%s ranks=2",
                 bytes[b]);
        put(s, gpu, key, (b == 0 ? 1.0 : 1.2) * alone[b]);
    }
    put(s, gpu, "dispatch tokens=1024 hidden=7168 topk=8 experts=64 ranks=2 dtype=bf16 impl=fused",
        50e-6);
    put(s, gpu, "beside of=comm op=gemm size=4096 comm=dispatch bytes=117440512 ranks=2", 200e-6);
    put(s, gpu, "gemm dtype=bf16 m=4096 n=4096 k=4096", 1e-3);
    put(s, gpu, "beside of=compute op=gemm size=4096 comm=dispatch bytes=117440512 ranks=2",
        1.25e-3);
}

static mf_cost *cost_of(const char *cluster, const char *measured, const char *software) {
    mf_store *s;
    mf_cluster c;
    mf_software w;
    mf_cost *cost;
    assert_ok(mf_store_open(":memory:", &s, &e));
    if (measured != NULL && strcmp(measured, "losses") == 0) {
        put_losses(s, "h200");
    } else if (measured != NULL) {
        put_points(s, measured);
    }
    assert_ok(mf_cluster_load(cluster, &c, &e));
    assert_ok(mf_software_load(software, &w, &e));
    assert_ok(mf_cost_create(&c, &w, s, &cost, &e));
    mf_store_close(s);
    return cost;
}

static double share(const mf_cost *cost, mf_op_kind kind, int64_t ranks, double bytes) {
    mf_op op = {.kind = (uint8_t)kind, .bytes = bytes, .shape = {ranks, 1}};
    mf_price p;
    mf_cost_op(cost, &op, 1, &p);
    return p.sm_share;
}

static void shares_are_what_products_lost_and_lie_between_sizes(void **state) {
    (void)state;
    mf_cost *cost = cost_of("h200", "h200", "ideal"), *none = cost_of("h200", NULL, "ideal");
    assert_near(share(cost, MF_OP_ALL_GATHER, 2, 268435456), 0.3, 1e-9);
    assert_near(share(cost, MF_OP_ALL_GATHER, 8, 1e10), 0.3, 1e-9); /* beyond: as there */
    assert_near(share(cost, MF_OP_ALL_GATHER, 2, 1048576), 0, 1e-9);
    assert_near(share(cost, MF_OP_ALL_GATHER, 2, 16777216), 0.15, 1e-9);
    /* another collective, another fabric, another store: NCCL's usual channels */
    assert_near(share(cost, MF_OP_ALL_REDUCE, 2, 1e8), share(none, MF_OP_ALL_REDUCE, 2, 1e8),
                1e-12);
    assert_near(share(cost, MF_OP_ALL_GATHER, 64, 1e8), share(none, MF_OP_ALL_GATHER, 64, 1e8),
                1e-12);
    assert_above(share(none, MF_OP_ALL_GATHER, 2, 1e8), 0.1);
    mf_cost_destroy(cost);
    mf_cost_destroy(none);
}

static void shares_carry_over_within_an_architecture_by_multiprocessors(void **state) {
    (void)state;
    mf_cluster h20, h200;
    mf_cost *same = cost_of("h20", "h200", "ideal"), *other = cost_of("b200", "h200", "ideal");
    mf_cost *none = cost_of("b200", NULL, "ideal");
    assert_ok(mf_cluster_load("h20", &h20, &e));
    assert_ok(mf_cluster_load("h200", &h200, &e));
    assert_below(h20.gpu.sms, h200.gpu.sms);
    assert_near(share(same, MF_OP_ALL_GATHER, 2, 268435456),
                0.3 * (double)h200.gpu.sms / (double)h20.gpu.sms, 1e-9);
    assert_near(share(other, MF_OP_ALL_GATHER, 2, 268435456),
                share(none, MF_OP_ALL_GATHER, 2, 268435456), 1e-12);
    mf_cost_destroy(same);
    mf_cost_destroy(other);
    mf_cost_destroy(none);
}

static void kernels_bound_by_memory_lose_what_a_copy_lost(void **state) {
    (void)state;
    mf_cost *cost = cost_of("h200", "h200", "ideal"), *none = cost_of("h200", NULL, "ideal");
    mf_op norm = {.kind = MF_OP_RMSNORM_FWD, .bytes = 1e9};
    /* the copy lost 0.25 to a tenth of its bandwidth: 2.5 for each byte */
    assert_near(mf_cost_compute_slowdown(cost, &norm, 0.1, 0.43e12), 1.25, 1e-3);
    assert_near(mf_cost_compute_slowdown(cost, &norm, 0.1, 0.215e12), 1.125, 1e-3);
    assert_below(mf_cost_compute_slowdown(none, &norm, 0.1, 0.43e12), 1.2);
    mf_cost_destroy(cost);
    mf_cost_destroy(none);
}

static void communication_loses_what_it_lost_to_products_and_to_copies(void **state) {
    (void)state;
    const mf_op sum = {.kind = MF_OP_ALL_REDUCE}, other = {.kind = MF_OP_SEND_RECV};
    double factor, wait_s;
    mf_cost *cost = cost_of("h200", "losses", "ideal");
    mf_cost_comm_slowdown(cost, &sum, false, &factor, &wait_s);
    assert_near(factor, 1.5, 1e-9);
    assert_near(wait_s, 100e-6, 1e-12);
    mf_cost_comm_slowdown(cost, &sum, true, &factor, &wait_s);
    assert_near(wait_s, 0, 1e-12); /* no line may promise time back */
    assert_above(factor, 1.19);
    assert_below(factor, 1.2);
    mf_cost_comm_slowdown(cost, &other, false, &factor, &wait_s);
    assert_near(factor, 1, 0);
    assert_near(wait_s, 0, 0);
    mf_cost_destroy(cost);
}

static void the_fused_dispatch_has_a_share_of_its_own(void **state) {
    (void)state;
    double factor, wait_s;
    mf_cost *cost = cost_of("h200", "losses", "ideal");
    mf_op op = {.kind = MF_OP_DISPATCH,
                .dim = {1024, 14336, 8, 64, MF_DISPATCH_FUSED},
                .bytes = 117440512,
                .group = MF_GROUP_EP,
                .shape = {2, 1}};
    mf_price p;
    mf_cost_op(cost, &op, 1, &p);
    assert_near(p.sm_share, 0.2, 1e-9); /* 1 ms became 1.25 ms */
    mf_cost_comm_slowdown(cost, &op, false, &factor, &wait_s);
    assert_near(factor, 4, 1e-9);
    op.dim[MF_OP_DIM_DISPATCHER] =
        MF_DISPATCH_ALLTOALL; /* NCCL's, of which nothing is known here */
    mf_cost_comm_slowdown(cost, &op, false, &factor, &wait_s);
    assert_near(factor, 1, 0);
    mf_cost_destroy(cost);
}

static void launches_cost_what_was_measured_where_the_profile_says_so(void **state) {
    (void)state;
    mf_cost *own = cost_of("b200", "h200", "moefold"), *none = cost_of("b200", NULL, "moefold");
    mf_cost *other = cost_of("b200", "h200", "megatron-26.04");
    mf_cost *bare = cost_of("b200", NULL, "megatron-26.04");
    mf_op add = {.kind = MF_OP_ADD, .bytes = 1e6};
    mf_software w;
    assert_ok(mf_software_load("moefold", &w, &e));
    assert_near(mf_cost_host_s(own, &add, MF_GRAPH_NONE), 3e-6, 1e-15);
    assert_near(mf_cost_host_s(own, &add, MF_GRAPH_STEP), 1e-8, 1e-15);
    assert_near(mf_cost_host_s(none, &add, MF_GRAPH_NONE), w.host_op_s, 1e-15);
    assert_near(mf_cost_host_s(other, &add, MF_GRAPH_NONE),
                mf_cost_host_s(bare, &add, MF_GRAPH_NONE), 1e-15);
    mf_cost_destroy(own);
    mf_cost_destroy(none);
    mf_cost_destroy(other);
    mf_cost_destroy(bare);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_what_products_lost_and_lie_between_sizes),
        cmocka_unit_test(shares_carry_over_within_an_architecture_by_multiprocessors),
        cmocka_unit_test(kernels_bound_by_memory_lose_what_a_copy_lost),
        cmocka_unit_test(communication_loses_what_it_lost_to_products_and_to_copies),
        cmocka_unit_test(the_fused_dispatch_has_a_share_of_its_own),
        cmocka_unit_test(launches_cost_what_was_measured_where_the_profile_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
