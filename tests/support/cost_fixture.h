/* cost_fixture.h - a hand-made H200 host, a B200 cluster and measured points, so that tests of
 * the cost model stand on figures of their own and not on what ships. */
#ifndef MF_TESTS_COST_FIXTURE_H
#define MF_TESTS_COST_FIXTURE_H

#include "costmodel/sample.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline mf_cluster fixture_h200(void) {
    mf_cluster c = {.name = "h200",
                    .gpu = {.name = "h200",
                            .arch = "hopper",
                            .peak_flops = {67e12, 989e12, 1979e12, 0},
                            .measured_flops = {0, 794.5e12, 1453.4e12, 0},
                            .memory_B = 141e9,
                            .memory_Bps = 4.8e12,
                            .memory_measured_Bps = 4.3e12,
                            .l2_B = 50e6,
                            .sms = 132,
                            .power_w = 700},
                    .gpus_per_node = 8,
                    .domain_gpus = 8,
                    .domain_gpus_used = 8,
                    .scaleup_Bps = 450e9,
                    .scaleup_effective_Bps = 370.8e9,
                    .scaleup_pair_Bps = 450e9,
                    .scaleup_latency_s = 1e-6,
                    .nic_Bps = 50e9,
                    .nic_efficiency = 0.92,
                    .nic_latency_s = 5e-6,
                    .host_Bps = 63e9,
                    .host_memory_B = 256e9,
                    .tiers = 1,
                    .tier = {{.name = "spine", .gpus = 1 << 20, .oversubscription = 1}}};
    return c;
}

static inline mf_cluster fixture_gb200(void) {
    mf_cluster c = fixture_h200();
    snprintf(c.name, sizeof c.name, "gb200");
    c.gpu = (mf_gpu){.name = "gb200",
                     .arch = "blackwell",
                     .peak_flops = {80e12, 2500e12, 5000e12, 10000e12},
                     .measured_flops = {0, 1822e12, 3615.6e12, 0},
                     .memory_B = 186e9,
                     .memory_Bps = 8e12,
                     .l2_B = 126e6,
                     .sms = 148,
                     .power_w = 1200};
    c.gpus_per_node = 4;
    c.domain_gpus = 72;
    c.domain_gpus_used = 64;
    c.scaleup_Bps = c.scaleup_pair_Bps = 900e9;
    c.scaleup_effective_Bps = 721.8e9;
    return c;
}

typedef struct fixture_point {
    const char *text;
    double tflops; /* > 0: the time is the op's FLOPs over this */
    double busbw;  /* > 0: GB/s as nccl-tests counts it */
    double time_s;
} fixture_point;

/* Measured on one host of 4 H200 (November 2026), and nccl-tests on 8. */
static const fixture_point fixture_points[] = {
    {"gemm dtype=bf16 m=8192 n=8192 k=8192", 803, 0, 0},
    {"gemm dtype=bf16 m=4096 n=4096 k=4096", 696, 0, 0},
    {"gemm dtype=bf16 m=16384 n=8192 k=8192", 753, 0, 0},
    {"gemm dtype=bf16 m=4096 n=7168 k=2048", 689, 0, 0},
    {"gemm dtype=bf16 m=32768 n=4096 k=7168", 689, 0, 0},
    {"gemm dtype=bf16 m=8192 n=32768 k=6144", 702, 0, 0},
    {"gemm dtype=fp8-tensor m=8192 n=8192 k=8192", 1472, 0, 0},
    {"gemm dtype=fp8-tensor m=4096 n=7168 k=2048", 1191, 0, 0},
    {"gemm dtype=fp8-tensor m=32768 n=4096 k=7168", 1500, 0, 0},
    {"attention pass=fwd b=1 h=32 s=8192 dqk=128", 623, 0, 0},
    {"attention pass=bwd b=1 h=32 s=8192 dqk=128", 545, 0, 0},
    {"attention pass=fwd b=2 h=48 s=4096 dqk=128", 604, 0, 0},
    {"attention pass=bwd b=2 h=48 s=4096 dqk=128", 503, 0, 0},
    {"attention pass=fwd b=1 h=128 s=4096 dqk=128", 610, 0, 0},
    {"attention pass=bwd b=1 h=128 s=4096 dqk=128", 509, 0, 0},
    {"attention pass=fwd b=1 h=32 s=32768 dqk=128", 605, 0, 0},
    {"attention pass=bwd b=1 h=32 s=32768 dqk=128", 537, 0, 0},
    {"grouped_gemm dtype=bf16 experts=2 m=8192 n=32768 k=6144", 670, 0, 0},
    {"grouped_gemm dtype=bf16 experts=2 m=8192 n=6144 k=16384", 669, 0, 0},
    {"grouped_gemm dtype=bf16 experts=2 m=8192 n=32768 k=6144 pass=wgrad", 636, 0, 0},
    {"grouped_gemm dtype=bf16 experts=2 m=8192 n=32768 k=6144 pass=dgrad", 644, 0, 0},
    {"grouped_gemm dtype=bf16 experts=8 m=4096 n=4096 k=7168", 621, 0, 0},
    {"grouped_gemm dtype=bf16 experts=8 m=4096 n=7168 k=2048", 638, 0, 0},
    {"grouped_gemm dtype=bf16 experts=8 m=4096 n=4096 k=7168 pass=wgrad", 675, 0, 0},
    {"grouped_gemm dtype=bf16 experts=8 m=4096 n=4096 k=7168 pass=dgrad", 676, 0, 0},
    {"grouped_gemm dtype=bf16 experts=16 m=4096 n=5120 k=3584", 674, 0, 0},
    {"grouped_gemm dtype=bf16 experts=16 m=4096 n=3584 k=2560", 644, 0, 0},
    {"grouped_gemm dtype=bf16 experts=32 m=1024 n=4096 k=7168", 667, 0, 0},
    {"grouped_gemm dtype=bf16 experts=32 m=1024 n=7168 k=2048", 600, 0, 0},
    {"grouped_gemm dtype=bf16 experts=32 m=1024 n=4096 k=7168 pass=wgrad", 599, 0, 0},
    {"grouped_gemm dtype=bf16 experts=32 m=1024 n=4096 k=7168 pass=dgrad", 618, 0, 0},
    {"grouped_gemm dtype=bf16 experts=64 m=256 n=2816 k=2048", 520, 0, 0},
    {"grouped_gemm dtype=bf16 experts=64 m=256 n=2048 k=1408", 466, 0, 0},
    {"grouped_gemm dtype=bf16 experts=64 m=256 n=2816 k=2048 pass=wgrad", 308, 0, 0},
    {"grouped_gemm dtype=bf16 experts=64 m=256 n=2816 k=2048 pass=dgrad", 549, 0, 0},
    {"copy bytes=1GiB", 0, 0, 2.0 * 1073741824.0 / 4.30e12},
    {"all_reduce bytes=1MiB ranks=4", 0, 40, 0},
    {"all_reduce bytes=16MiB ranks=4", 0, 259, 0},
    {"all_reduce bytes=64MiB ranks=4", 0, 310, 0},
    {"all_reduce bytes=256MiB ranks=4", 0, 340, 0},
    {"all_gather bytes=1MiB ranks=4", 0, 26, 0},
    {"all_gather bytes=16MiB ranks=4", 0, 187, 0},
    {"all_gather bytes=64MiB ranks=4", 0, 269, 0},
    {"all_gather bytes=256MiB ranks=4", 0, 306, 0},
    {"reduce_scatter bytes=1MiB ranks=4", 0, 23, 0},
    {"reduce_scatter bytes=16MiB ranks=4", 0, 208, 0},
    {"reduce_scatter bytes=64MiB ranks=4", 0, 266, 0},
    {"reduce_scatter bytes=256MiB ranks=4", 0, 300, 0},
    {"all_to_all bytes=1MiB ranks=4", 0, 22, 0},
    {"all_to_all bytes=16MiB ranks=4", 0, 183, 0},
    {"all_to_all bytes=64MiB ranks=4", 0, 260, 0},
    {"all_to_all bytes=256MiB ranks=4", 0, 306, 0},
    {"all_reduce bytes=32KiB ranks=8 algo=nvls inplace=1", 0, 1.84, 0},
    {"all_reduce bytes=1MiB ranks=8 algo=nvls inplace=1", 0, 52.96, 0},
    {"all_reduce bytes=4MiB ranks=8 algo=nvls inplace=1", 0, 138.44, 0},
    {"all_reduce bytes=16MiB ranks=8 algo=nvls inplace=1", 0, 240.41, 0},
    {"all_reduce bytes=256MiB ranks=8 algo=nvls inplace=1", 0, 432.24, 0},
    {"all_reduce bytes=8GiB ranks=8 algo=nvls inplace=1", 0, 479.98, 0},
    {"all_gather bytes=16GiB ranks=8 algo=ring", 0, 361.4, 0},
    {"dispatch tokens=4096 hidden=7168 topk=8 experts=256 ranks=8 impl=hybridep", 0, 0, 661e-6},
    {"dispatch tokens=4096 hidden=7168 topk=8 experts=256 ranks=64 nodes=8 impl=hybridep", 0, 0,
     4626e-6},
    {"dispatch tokens=4096 hidden=7168 topk=8 experts=256 ranks=8 impl=alltoall", 0, 0, 1265e-6},
    {"dispatch tokens=4096 hidden=7168 topk=8 experts=256 ranks=64 nodes=8 impl=alltoall", 0, 0,
     9164e-6},
};
enum { WORLD_POINTS = sizeof fixture_points / sizeof fixture_points[0] };

static inline double fixture_busbw_factor(const mf_op *op) {
    double n = (double)op->shape.size, f = (n - 1) / n;
    return op->kind == MF_OP_ALL_REDUCE ? 2 * f : f;
}

/* An op of a canonical text on a cluster. */
static inline mf_op fixture_op(const mf_cluster *c, const char *text) {
    mf_point p;
    mf_op op = {.kind = 0};
    mf_err e = {.text = ""};
    if (mf_point_parse(text, &p, &e) != MF_OK || mf_cost_point_op(&p, c, &op, &e) != MF_OK) {
        fail_msg("%s: %s", text, e.text);
    }
    return op;
}

static inline double fixture_time_s(const fixture_point *w, const mf_op *op) {
    return w->tflops > 0  ? op->flops / (w->tflops * 1e12)
           : w->busbw > 0 ? fixture_busbw_factor(op) * op->bytes / (w->busbw * 1e9)
                          : w->time_s;
}

/* The points as samples of device 0; `without` is left out (-1 = none). Returns the count. */
static inline size_t fixture_samples(const mf_cluster *c, int without, mf_sample *out) {
    size_t n = 0;
    for (int i = 0; i < WORLD_POINTS; i++) {
        if (i == without) {
            continue;
        }
        mf_sample s = {.op = fixture_op(c, fixture_points[i].text)};
        s.time_s = fixture_time_s(&fixture_points[i], &s.op);
        s.fixed = strstr(fixture_points[i].text, "algo=") != NULL;
        if (!s.fixed || strstr(fixture_points[i].text, "algo=nvls") != NULL) {
            s.op.flags |= MF_SAMPLE_NVLS;
        }
        out[n++] = s;
    }
    return n;
}

static inline mf_software fixture_software(void) {
    mf_software s = {.name = "plain",
                     .gemm_eff = {1, 1, 1, 1},
                     .grouped_eff = 1,
                     .attention_eff = 1,
                     .memory_eff = 1,
                     .host_graph = {1, 1, 1},
                     .comm_eff = {1, 1, 1},
                     .collective_eff = 1,
                     .gpu_power_eff = 1,
                     .nvls = true};
    return s;
}

/* Cost model of a cluster, with the H200 points as its own (same name) or as another GPU's. */
static inline mf_cost *fixture_cost_with(const mf_cluster *c, int without, const mf_software *s) {
    const mf_cluster h200 = fixture_h200();
    mf_cost_device devices[2];
    mf_sample samples[WORLD_POINTS];
    mf_cost *cost = NULL;
    bool own = strcmp(c->gpu.name, h200.gpu.name) == 0;
    size_t n = fixture_samples(&h200, without, samples);
    for (size_t i = 0; i < n; i++) {
        samples[i].device = own ? 0 : 1;
    }
    mf_device_init(&devices[0], c);
    mf_device_init(&devices[1], &h200);
    assert_ok(mf_cost_build(c, s, devices, own ? 1 : 2, samples, n, &cost, NULL));
    return cost;
}

static inline mf_cost *fixture_cost(const mf_cluster *c, int without) {
    const mf_software s = fixture_software();
    return fixture_cost_with(c, without, &s);
}

#endif
